/* tests/bench_kernels.c: speed of the forward pass's kernels at the shapes of SmolLM2-135M, beside the sgemm rate of
 * this machine. TSV on stdout: medians of REPEATS runs. Part of `make bench`; `build/bench-kernels [THREADS [TOKENS]]`.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <omp.h>

#include "base/arena.h"
#include "base/log.h"
#include "kernels/kernels.h"

enum { L = 30, C = 576, F = 1536, Hq = 9, Hk = 3, D = 64, REPEATS = 7 };

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of all threads together; unlike elapsed time it hardly feels other programs. */
static double processor_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct work {
    const struct kern_ops *ops;
    int64_t T;
    struct kern_tile *tiles;
    int64_t n_tiles, offsets[2];
    int32_t *position;
    float *x, *y, *w, *q, *k, *v, *freq;
};

static void do_linear(const struct work *a, int64_t N, int64_t K) {
    a->ops->linear(a->y, a->x, a->w, NULL, a->tiles, a->n_tiles, N, K, N, K, false);
}
static void do_qo(const struct work *a) { do_linear(a, C, C); }
static void do_kv(const struct work *a) { do_linear(a, Hk * D, C); }
static void do_up(const struct work *a) { do_linear(a, F, C); }
static void do_down(const struct work *a) { do_linear(a, C, F); }
static void do_attention(const struct work *a) {
    a->ops->attention(a->y, a->q, a->k, a->v, a->offsets, 1, Hq, Hk, D, D, Hq * D, Hq * D, Hk * D, Hk * D, 0.125, 0);
}
static void do_norm(const struct work *a) { a->ops->rmsnorm(a->y, a->x, a->w, a->T, C, C, C, 1e-5); }
static void do_rope(const struct work *a) {
    a->ops->rope(a->y, a->q, a->position, a->freq, a->T, Hq, D, D, Hq * D, Hq * D, 1);
}
static void do_swiglu(const struct work *a) { a->ops->swiglu(a->y, a->x, a->x, a->T, F, F, F, F); }
static void do_sgemm(const struct work *a) {
    (void)a;
#pragma omp parallel num_threads((int)kern_threads())
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 512, 512, 512, 1, a->x, 512, a->w, 512, 0,
                a->y + 512 * 512 * omp_get_thread_num(), 512);
}

int main(int argc, char **argv) {
    kern_blas_core_fix(argv);
    struct ag_error err = AG_ERROR_INIT;
    struct work a = {.T = argc > 2 ? atoll(argv[2]) : 2048};
    kern_set_threads(argc > 1 ? atoll(argv[1]) : 0);
    struct ag_arena *arena = ag_arena_new("bench");
    if (a.T < 1 || a.T > 1 << 20 || !arena || kern_backend(&a.ops, AG_BACKEND_CPU, &err) != AG_OK) return 1;
    a.offsets[1] = a.T;
    a.n_tiles = kern_tiles(NULL, a.offsets, 1);
    a.tiles = AG_NEW(arena, struct kern_tile, a.n_tiles, &err);
    int64_t most = (a.T > 512 * kern_threads() ? a.T : 512 * kern_threads()) * F;
    a.x = AG_NEW(arena, float, most, &err);
    a.y = AG_NEW(arena, float, most, &err);
    a.w = AG_NEW(arena, float, F *C, &err);
    a.q = AG_NEW(arena, float, a.T *Hq *D, &err);
    a.k = AG_NEW(arena, float, a.T *Hk *D, &err);
    a.v = AG_NEW(arena, float, a.T *Hk *D, &err);
    a.freq = AG_NEW(arena, float, D / 2, &err);
    a.position = AG_NEW(arena, int32_t, a.T, &err);
    if (err.status != AG_OK) {
        fprintf(stderr, "bench-kernels: %s\n", err.text);
        return 1;
    }
    kern_tiles(a.tiles, a.offsets, 1);
    uint32_t s = 1;
    float *const all[] = {a.x, a.w, a.q, a.k, a.v};
    const int64_t sizes[] = {most, F * C, a.T * Hq * D, a.T * Hk * D, a.T * Hk * D};
    for (int i = 0; i < 5; i++)
        for (int64_t j = 0; j < sizes[i]; j++) all[i][j] = (float)((s = s * 1664525 + 1013904223) >> 8) * 0x1p-23f - 1;
    for (int64_t t = 0; t < a.T; t++) a.position[t] = (int32_t)t;
    for (int i = 0; i < D / 2; i++) a.freq[i] = 1.0f / (float)(1 + i * i);

    const double T = (double)a.T;
    const struct {
        const char *name;
        void (*run)(const struct work *);
        double flops, each; /* per call; calls in a prefill */
    } list[] = {
        {"sgemm 512^3 a thread", do_sgemm, 2.0 * 512 * 512 * 512 * (double)kern_threads(), 0},
        {"linear q, o (576 x 576)", do_qo, 2.0 * T * C * C, 2 * L},
        {"linear k, v (192 x 576)", do_kv, 2.0 * T * C * Hk * D, 2 * L},
        {"linear gate, up (1536 x 576)", do_up, 2.0 * T * C * F, 2 * L},
        {"linear down (576 x 1536)", do_down, 2.0 * T * C * F, L},
        {"attention (9 heads, 3 of keys, 64)", do_attention, 2.0 * T * (T + 1) * D * Hq, L},
        {"rmsnorm (576)", do_norm, 0, 2 * L},
        {"rope (9 x 64)", do_rope, 0, L * 4 / 3.0},
        {"swiglu (1536)", do_swiglu, 0, L},
    };
    printf("# kernels at SmolLM2-135M's shapes, %lld tokens, %lld threads, OpenBLAS core %s, medians of %d\n",
           (long long)a.T, (long long)kern_threads(), kern_blas_core(), (int)REPEATS);
    printf("kernel\tms\tGFLOP/s\tms a prefill\tleast processor ms\n");
    double total = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        double t[REPEATS], processor = 1e9;
        list[i].run(&a);
        for (int r = 0; r < REPEATS; r++) {
            double start = ag_now(), busy = processor_time();
            list[i].run(&a);
            t[r] = ag_now() - start;
            busy = processor_time() - busy;
            processor = busy < processor ? busy : processor;
        }
        qsort(t, REPEATS, sizeof *t, compare);
        total += t[REPEATS / 2] * list[i].each;
        printf("%s\t%.3f\t%.1f\t%.1f\t%.3f\n", list[i].name, t[REPEATS / 2] * 1e3,
               list[i].flops / t[REPEATS / 2] * 1e-9, t[REPEATS / 2] * 1e3 * list[i].each, processor * 1e3);
    }
    printf("all of a prefill\t\t\t%.1f\n# %.0f tokens/s\n", total * 1e3, T / total);
    ag_arena_free(arena);
    return 0;
}
