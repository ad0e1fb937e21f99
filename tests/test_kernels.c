/* tests/test_kernels.c: the forward pass's kernels. Each cpu version against the plain one over shapes with 0, 1, odd
 * sizes and strides, on inputs of several temperaments, with guard bands around outputs and tolerances derived from the
 * arithmetic; equal bits for any number of threads and any packing; what is not finite is compared explicitly. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "kernels/simd.h"
#include "tests/test.h"

#define EPS 0x1p-24

/* Inputs */

enum mode { PLAIN, TINY, HUGE_VALUES, OUTLIER, CONSTANT, MODES };

static uint64_t state;
static uint64_t next(void) {
    state += 0x9e3779b97f4a7c15U; /* splitmix64 */
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}
/* About normal: mean 0, variance 1. */
static float normal(void) {
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)(next() >> 11) * 0x1p-53 - 0.5;
    return (float)(sum * sqrt(3));
}

static struct ag_arena *arena;
static int set_up(void **unused) {
    (void)unused;
    state = test_seed();
    arena = ag_arena_new("kernel tests");
    return arena ? 0 : -1;
}
static int tear_down(void **unused) {
    (void)unused;
    ag_arena_free(arena);
    kern_set_threads(0);
    return 0;
}

static void *take(int64_t n, size_t size) {
    struct ag_error err = AG_ERROR_INIT;
    void *p = ag_arena_zeros(arena, n, size, &err);
    if (!p) fail_msg("%s", err.text);
    return p;
}

static float *input(int64_t n, enum mode mode) {
    float *x = take(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        float z = normal();
        switch (mode) {
        case TINY:
            x[i] = z * 1e-18f;
            break;
        case HUGE_VALUES:
            x[i] = z * 1e4f;
            break;
        case OUTLIER:
            x[i] = next() % 97 == 0 ? z * 1e3f : z;
            break;
        case CONSTANT:
            x[i] = 0.75f;
            break;
        default:
            x[i] = z;
        }
    }
    return x;
}

/* Outputs: BAND floats of a marked NaN before and after, and NaN inside, so that what is not written shows. */

enum { BAND = 64 };
static const uint32_t mark = 0x7fc0beefU;

static float *output(int64_t n) {
    float *y = take(n + 2 * BAND, sizeof *y);
    for (int64_t i = 0; i < n + 2 * BAND; i++) memcpy(y + i, &mark, sizeof mark);
    return y + BAND;
}
static bool untouched(const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(y + i, &mark, sizeof mark) != 0) return false;
    return true;
}
/* Nothing but the first `width` of each of `rows` rows at stride ld was written. */
static void check_guards(const float *y, int64_t rows, int64_t width, int64_t ld) {
    assert_true(untouched(y - BAND, BAND));
    assert_true(untouched(y + rows * ld, BAND));
    for (int64_t t = 0; t < rows; t++) assert_true(untouched(y + t * ld + width, ld - width));
}
static void check_close(float got, float expected, double tolerance, const char *what, int64_t row, int64_t column) {
    if (isfinite(expected) && isfinite(got)) {
        if (fabs((double)got - expected) <= tolerance) return;
    } else if (isnan(expected) ? isnan(got) : got == expected)
        return;
    fail_msg("%s: row %lld, column %lld: %.9g, expected %.9g within %.3g", what, (long long)row, (long long)column,
             (double)got, (double)expected, tolerance);
}
static void check_bits(const float *a, const float *b, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s: element %lld of %lld: %.9g and %.9g differ", what, (long long)i, (long long)n, (double)a[i],
                     (double)b[i]);
}

/* simd.h */

static void test_exp2(void **unused) {
    (void)unused;
    double worst = 0;
    for (uint32_t i = 0; i < 1u << 22; i++) {
        float x = (float)i * 0x1p-15f - 127 + (float)(next() >> 40) * 0x1p-39f; /* all of [-127, 1) */
        double exact = exp2((double)x), got = kern_exp2(kern_splat(x))[i % KERN_V];
        if (exact >= 0x1p-126) worst = fmax(worst, fabs(got - exact) / exact);
    }
    if (!(worst <= 1.7 * 2 * EPS)) fail_msg("exp2: relative error %.3g", worst);
    static const float special[][2] = {{0, 1}, {1, 2}, {-1, 0.5f}, {-INFINITY, 0}, {-1e30f, 0}, {128.5f, INFINITY}};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        assert_true(kern_exp2(kern_splat(special[i][0]))[0] == special[i][1]);
    assert_true(isnan(kern_exp2(kern_splat(NAN))[0]));
}

static void test_transpose(void **unused) {
    (void)unused;
    float *from = input(KERN_V * 40, PLAIN), *to = output(KERN_V * 40);
    const float *row[KERN_V];
    for (int i = 0; i < KERN_V; i++) row[i] = from + i * 40;
    kern_transpose(to, row, 3, 40, 2);
    check_guards(to, KERN_V, KERN_V, 40);
    for (int i = 0; i < KERN_V; i++)
        for (int j = 0; j < KERN_V; j++) assert_true(to[i * 40 + j] == 2 * from[j * 40 + 3 + i]);
}

/* linear */

static void linear_case(int64_t T, int64_t N, int64_t K, int64_t gap, bool with_bias, bool accumulate, enum mode mode) {
    struct ag_mark here = ag_arena_mark(arena);
    int64_t ldx = K + gap, ldy = N + gap, offsets[2] = {0, T};
    struct kern_tile *tiles = take(kern_tiles(NULL, offsets, 1), sizeof *tiles);
    int64_t n = kern_tiles(tiles, offsets, 1);
    float *x = input(T * ldx, mode), *w = input(N * K, mode == HUGE_VALUES ? PLAIN : mode);
    float *bias = with_bias ? input(N, PLAIN) : NULL, *start = input(T * N, PLAIN);
    float *a = output(T * ldy), *b = output(T * ldy);
    if (accumulate)
        for (int64_t t = 0; t < T; t++)
            for (int64_t i = 0; i < N; i++) a[t * ldy + i] = b[t * ldy + i] = start[t * N + i];
    kern_linear_ref(a, x, w, bias, tiles, n, N, K, ldy, ldx, accumulate);
    kern_linear_cpu(b, x, w, bias, tiles, n, N, K, ldy, ldx, accumulate);
    check_guards(b, T, N, ldy);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < N; i++) {
            double size = (bias ? fabsf(bias[i]) : 0) + (accumulate ? fabsf(start[t * N + i]) : 0);
            for (int64_t c = 0; c < K; c++) size += fabs((double)x[t * ldx + c] * w[i * K + c]);
            check_close(b[t * ldy + i], a[t * ldy + i], (double)(K + 3) * EPS * size, "linear", t, i);
        }
    ag_arena_release(arena, here);
}

static void test_linear(void **unused) {
    (void)unused;
    static const int64_t T[] = {0, 1, 2, 7, 33, 256, 257}, N[] = {0, 1, 3, 64, 193}, K[] = {0, 1, 5, 64, 131};
    for (size_t t = 0; t < 7; t++)
        for (size_t n = 0; n < 5; n++)
            for (size_t k = 0; k < 5; k++) {
                int at = (int)(t * 25 + n * 5 + k);
                linear_case(T[t], N[n], K[k], at % 3 * 5, at % 2, at % 4 > 1, (enum mode)(at % MODES));
            }
}

/* Rows outside the tiles stay as they are, and a row's bits do not depend on the other tiles or on the threads. */
static void test_linear_exact(void **unused) {
    (void)unused;
    enum { N = 517, K = 320 };
    const int64_t offsets[] = {0, 3, 3, 260, 300, 811, 812}, P = 6, T = 812;
    struct kern_tile tiles[16];
    int64_t n = kern_tiles(tiles, offsets, P);
    assert_int_equal(n, 7);
    float *x = input(T * K, OUTLIER), *w = input((int64_t)N * K, PLAIN), *all = output(T * N);
    kern_set_threads(1);
    kern_linear_cpu(all, x, w, NULL, tiles, n, N, K, N, K, false);
    for (int threads = 2; threads <= 3; threads++) {
        float *again = output(T * N);
        kern_set_threads(threads);
        kern_linear_cpu(again, x, w, NULL, tiles, n, N, K, N, K, false);
        check_bits(again, all, T * N, "linear, threads");
    }
    for (int64_t p = 0; p < P; p++) {
        int64_t rows = offsets[p + 1] - offsets[p], own[2] = {0, rows};
        struct kern_tile mine[4];
        float *alone = output(rows * N);
        kern_linear_cpu(alone, x + offsets[p] * K, w, NULL, mine, kern_tiles(mine, own, 1), N, K, N, K, false);
        check_bits(alone, all + offsets[p] * N, rows * N, "linear, packing");
    }
    float *some = output(T * N);
    kern_linear_cpu(some, x, w, NULL, tiles + 2, 1, N, K, N, K, false);
    assert_true(untouched(some, tiles[2].row * N));
    check_bits(some + tiles[2].row * N, all + tiles[2].row * N, tiles[2].rows * N, "linear, one tile");
    int64_t end = tiles[2].row + tiles[2].rows;
    assert_true(untouched(some + end * N, (T - end) * N));
}

/* rmsnorm */

static void test_rmsnorm(void **unused) {
    (void)unused;
    static const int64_t rows[] = {0, 1, 3, 50}, C[] = {1, 2, 15, 16, 63, 64, 129, 576};
    for (int mode = 0; mode < MODES; mode++)
        for (size_t r = 0; r < 4; r++)
            for (size_t c = 0; c < 8; c++) {
                int64_t ld = C[c] + (int64_t)c, n = rows[r] * ld;
                float *x = input(n, (enum mode)mode), *w = input(C[c], PLAIN), *a = output(n), *b = output(n);
                double eps = mode == TINY ? 1e-36 : 1e-5;
                kern_rmsnorm_ref(a, x, w, rows[r], C[c], ld, ld, eps);
                kern_rmsnorm_cpu(b, x, w, rows[r], C[c], ld, ld, eps);
                check_guards(b, rows[r], C[c], ld);
                for (int64_t t = 0; t < rows[r]; t++)
                    for (int64_t i = 0; i < C[c]; i++)
                        check_close(b[t * ld + i], a[t * ld + i], ((double)C[c] / 64 + 8) * EPS * fabsf(a[t * ld + i]),
                                    "rmsnorm", t, i);
                kern_rmsnorm_cpu(x, x, w, rows[r], C[c], ld, ld, eps); /* in place */
                for (int64_t t = 0; t < rows[r]; t++) check_bits(x + t * ld, b + t * ld, C[c], "rmsnorm in place");
            }
}

/* rope */

static void test_rope(void **unused) {
    (void)unused;
    static const int64_t D[] = {2, 6, 16, 64, 128, 512};
    static const int32_t first[] = {0, 1, 8191, 131071, 999000, 30000000};
    for (size_t d = 0; d < 6; d++)
        for (int64_t n_rot = D[d]; n_rot >= 0; n_rot -= D[d] == 2 ? 2 : D[d] / 2 & ~1) {
            int64_t T = 9, heads = 3, ld = heads * D[d] + 5, n = T * ld, half = n_rot / 2;
            float *x = input(n, PLAIN), *a = output(n), *b = output(n), *freq = take(half + 1, sizeof *freq);
            int32_t *position = take(T, sizeof *position);
            for (int64_t i = 0; i < half; i++) freq[i] = powf(10000.0f, -(float)i / (float)half);
            for (int64_t t = 0; t < T; t++) position[t] = first[t % 6] + (int32_t)t;
            float scaling = d % 2 ? 1.0f : 1.25f;
            kern_rope_ref(a, x, position, freq, T, heads, D[d], n_rot, ld, ld, scaling);
            kern_rope_cpu(b, x, position, freq, T, heads, D[d], n_rot, ld, ld, scaling);
            check_guards(b, T, heads * D[d], ld);
            for (int64_t t = 0; t < T; t++)
                for (int64_t h = 0; h < heads; h++)
                    for (int64_t i = 0; i < D[d]; i++) {
                        int64_t at = t * ld + h * D[d] + i;
                        double size =
                            i < 2 * half ? fabsf(x[at]) + fabsf(x[t * ld + h * D[d] + (i + half) % (2 * half)]) : 0;
                        check_close(b[at], a[at], 4 * EPS * size * scaling, "rope", t, h * D[d] + i);
                    }
            kern_rope_cpu(x, x, position, freq, T, heads, D[d], n_rot, ld, ld, scaling);
            for (int64_t t = 0; t < T; t++) check_bits(x + t * ld, b + t * ld, heads * D[d], "rope in place");
        }
}

/* swiglu */

static void test_swiglu(void **unused) {
    (void)unused;
    for (int64_t F = 1; F <= 130; F += F < 40 ? 1 : 30)
        for (int mode = 0; mode < MODES; mode++) {
            int64_t rows = 4, ld = F + 3, n = rows * ld;
            float *gate = input(n, (enum mode)mode), *up = input(n, PLAIN), *a = output(n), *b = output(n);
            static const float hard[] = {-INFINITY, INFINITY, NAN, -104.0f, -88.6f, 88.8f, -0.0f, 3e38f, -3e38f};
            for (size_t i = 0; i < 9; i++)
                if (mode == PLAIN && (int64_t)i < F) gate[i] = hard[i];
            kern_swiglu_ref(a, gate, up, rows, F, ld, ld, ld);
            kern_swiglu_cpu(b, gate, up, rows, F, ld, ld, ld);
            check_guards(b, rows, F, ld);
            for (int64_t t = 0; t < rows; t++)
                for (int64_t i = 0; i < F; i++) {
                    float g = gate[t * ld + i];
                    double size = fabsf(up[t * ld + i]) * fabs(g) / (1 + exp(-(double)g));
                    /* g log2 e carries two roundings (the constant's and the product's): 2 |g| of the result */
                    double tolerance = (6 + 2 * fabs(g)) * EPS * size + 1e-35 * fabsf(up[t * ld + i]);
                    check_close(b[t * ld + i], a[t * ld + i], tolerance, "swiglu", t, i);
                }
            kern_swiglu_cpu(gate, gate, up, rows, F, ld, ld, ld);
            for (int64_t t = 0; t < rows; t++) check_bits(gate + t * ld, b + t * ld, F, "swiglu in place");
        }
}

/* nll */

static void test_nll(void **unused) {
    (void)unused;
    static const int64_t V[] = {1, 2, 15, 16, 17, 1000};
    enum { ROWS = 12 };
    for (int mode = 0; mode < MODES; mode++)
        for (size_t v = 0; v < 6; v++) {
            float *x = input(ROWS * V[v], (enum mode)mode);
            int32_t target[ROWS], best_a[ROWS], best_b[ROWS];
            double a[ROWS], b[ROWS];
            for (int t = 0; t < ROWS; t++) target[t] = (int32_t)(next() % (uint64_t)V[v]);
            for (int64_t i = 0; i < V[v]; i++) {
                x[i] = (float)(i % 3) + 90;                    /* ties, and e^92 is beyond f32 */
                if (i % 2) x[V[v] + i] = -INFINITY;            /* impossible tokens */
                if (i == V[v] / 2) x[2 * V[v] + i] = NAN;      /* one NaN */
                if (i == V[v] - 1) x[3 * V[v] + i] = INFINITY; /* one infinity */
                if (i == 0) x[4 * V[v] + i] = NAN;
                x[5 * V[v] + i] = -INFINITY;
            }
            kern_nll_ref(a, best_a, x, target, ROWS, V[v]);
            kern_nll_cpu(b, best_b, x, target, ROWS, V[v]);
            for (int t = 0; t < ROWS; t++) {
                assert_int_equal(best_a[t], best_b[t]);
                if (isnan(a[t]))
                    assert_true(isnan(b[t]));
                else if (isinf(a[t]))
                    assert_true(a[t] == b[t]);
                else
                    assert_true(fabs(a[t] - b[t]) <= 1e-11 + 1e-15 * fabsf(x[t * V[v] + best_a[t]]));
            }
        }
    const float x[] = {90, 91, 92};
    int32_t target = 2, best;
    double nll;
    kern_nll_cpu(&nll, &best, x, &target, 1, 3);
    assert_true(fabs(nll - 0.40760596444438) <= 1e-13);
    assert_int_equal(best, 2);
}

/* attention */

struct heads {
    int64_t Hq, Hk, D, Dv, window, gap;
};

static void attention_case(const int64_t *offsets, int64_t P, struct heads s, enum mode mode) {
    struct ag_mark here = ag_arena_mark(arena);
    int64_t T = offsets[P], ldo = s.Hq * s.Dv + s.gap, ldq = s.Hq * s.D + s.gap, ldk = s.Hk * s.D + s.gap,
            ldv = s.Hk * s.Dv + s.gap;
    /* Logits up to hundreds in the huge mode: softmax picks one key, and the shift must hold. */
    float *q = input(T * ldq, mode == HUGE_VALUES ? PLAIN : mode),
          *k = input(T * ldk, mode == HUGE_VALUES ? PLAIN : mode);
    float *v = input(T * ldv, mode), *a = output(T * ldo), *b = output(T * ldo);
    double scale = (mode == HUGE_VALUES ? 40 : 1) / sqrt((double)s.D);
    kern_attention_ref(a, q, k, v, offsets, P, s.Hq, s.Hk, s.D, s.Dv, ldo, ldq, ldk, ldv, scale, s.window);
    kern_attention_cpu(b, q, k, v, offsets, P, s.Hq, s.Hk, s.D, s.Dv, ldo, ldq, ldk, ldv, scale, s.window);
    check_guards(b, T, s.Hq * s.Dv, ldo);
    /* Error of a logit: about (D + 4) eps sum |q k|, twice in a weight, times the spread of the values; then the sum.
     */
    double top_v = 0;
    for (int64_t i = 0; i < T * ldv; i++) top_v = fmax(top_v, fabsf(v[i]));
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < s.Hq; h++) {
            double size = 0;
            int64_t p = 0;
            while (offsets[p + 1] <= t) p++;
            for (int64_t j = offsets[p]; j <= t; j++) {
                double sum = 0;
                for (int64_t d = 0; d < s.D; d++)
                    sum += fabs((double)q[t * ldq + h * s.D + d] * k[j * ldk + h / (s.Hq / s.Hk) * s.D + d]);
                size = fmax(size, sum * scale);
            }
            double tolerance = EPS * (2 * ((double)s.D / 4 + 4) * size + (double)(t - offsets[p]) / 4 + 16) * top_v;
            for (int64_t d = 0; d < s.Dv; d++)
                check_close(b[t * ldo + h * s.Dv + d], a[t * ldo + h * s.Dv + d], tolerance, "attention", t,
                            h * s.Dv + d);
        }
    ag_arena_release(arena, here);
}

static void test_attention_lengths(void **unused) {
    (void)unused;
    for (int64_t T = 0; T <= 300; T += T < 70 ? 1 : 23) {
        int64_t offsets[] = {0, T};
        attention_case(offsets, 1, (struct heads){3, 1, 16, 16, T % 3 == 2 ? 1 + T / 2 : 0, T % 4},
                       (enum mode)(T % MODES));
    }
}

static void test_attention_shapes(void **unused) {
    (void)unused;
    static const struct heads shapes[] = {
        {1, 1, 1, 1, 0, 0},      {2, 2, 3, 5, 0, 1},     {4, 2, 8, 24, 7, 0},    {9, 3, 64, 64, 0, 0},
        {7, 1, 40, 17, 1, 2},    {8, 2, 128, 96, 64, 3}, {2, 1, 512, 512, 0, 0}, {6, 2, 33, 80, 65, 0},
        {2, 1, 257, 129, 63, 1}, {5, 5, 16, 31, 200, 7},
    };
    static const int64_t offsets[] = {0, 1, 1, 65, 70, 199};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int mode = 0; mode < MODES; mode++) attention_case(offsets, 5, shapes[i], (enum mode)mode);
}

static void test_attention_exact(void **unused) {
    (void)unused;
    const int64_t offsets[] = {0, 1, 130, 130, 431, 440}, P = 5, T = 440, Hq = 6, Hk = 2, D = 40, Dv = 24;
    for (int64_t window = 0; window <= 100; window += 50) {
        float *q = input(T * Hq * D, PLAIN), *k = input(T * Hk * D, OUTLIER), *v = input(T * Hk * Dv, PLAIN);
        float *all = output(T * Hq * Dv);
        kern_set_threads(1);
        kern_attention_cpu(all, q, k, v, offsets, P, Hq, Hk, D, Dv, Hq * Dv, Hq * D, Hk * D, Hk * Dv, 0.2, window);
        for (int threads = 2; threads <= 3; threads++) {
            float *again = output(T * Hq * Dv);
            kern_set_threads(threads);
            kern_attention_cpu(again, q, k, v, offsets, P, Hq, Hk, D, Dv, Hq * Dv, Hq * D, Hk * D, Hk * Dv, 0.2,
                               window);
            check_bits(again, all, T * Hq * Dv, "attention, threads");
        }
        for (int64_t p = 0; p < P; p++) {
            int64_t at = offsets[p], rows = offsets[p + 1] - at, own[2] = {0, rows};
            float *alone = output(rows * Hq * Dv);
            kern_attention_cpu(alone, q + at * Hq * D, k + at * Hk * D, v + at * Hk * Dv, own, 1, Hq, Hk, D, Dv,
                               Hq * Dv, Hq * D, Hk * D, Hk * Dv, 0.2, window);
            check_bits(alone, all + at * Hq * Dv, rows * Hq * Dv, "attention, packing");
            /* Nor on later tokens of the same prompt. */
            own[1] = rows / 2;
            float *half = output(rows / 2 * Hq * Dv);
            kern_attention_cpu(half, q + at * Hq * D, k + at * Hk * D, v + at * Hk * Dv, own, 1, Hq, Hk, D, Dv, Hq * Dv,
                               Hq * D, Hk * D, Hk * Dv, 0.2, window);
            check_bits(half, all + at * Hq * Dv, rows / 2 * Hq * Dv, "attention, prefix");
        }
    }
}

/* What is not finite reaches the tokens that see it and no other. */
static void test_attention_not_finite(void **unused) {
    (void)unused;
    enum { T = 100, D = 16 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const int64_t offsets[] = {0, T};
    for (int where = 0; where < 3; where++)
        for (int which = 0; which < 3; which++)
            for (int64_t window = 0; window <= 10; window += 10)
                for (int64_t at = 0; at < T; at += 33) {
                    float *q = input(T * D, PLAIN), *k = input(T * D, PLAIN), *v = input(T * D, PLAIN),
                          *y = output(T * D);
                    (where == 0 ? q : where == 1 ? k : v)[at * D + 3] = bad[which];
                    kern_attention_cpu(y, q, k, v, offsets, 1, 1, 1, D, D, D, D, D, D, 0.25, window);
                    for (int64_t t = 0; t < T; t++) {
                        bool sees = where == 0 ? t == at : t >= at && (window == 0 || t - at < window);
                        for (int64_t d = 0; d < D; d++) {
                            if (!sees && !isfinite(y[t * D + d]))
                                fail_msg("row %d must not see what is not finite at %d", (int)t, (int)at);
                            if (sees && bad[which] != bad[which] && (where < 2 || d == 3) && isfinite(y[t * D + d]))
                                fail_msg("row %d must show the NaN at %d", (int)t, (int)at);
                            if (sees && where == 2 && d == 3 && isfinite(y[t * D + d]))
                                fail_msg("row %d must show the value that is not finite at %d", (int)t, (int)at);
                        }
                    }
                }
    /* Logits 90, 91, 92 and thousands: shifted by the maximum. */
    float q[3] = {0, 0, 1}, k[3] = {90, 91, 92}, v[3] = {1, 2, 4}, y[3];
    const int64_t three[] = {0, 3};
    for (float by = 1; by <= 1000; by *= 10) {
        kern_attention_cpu(y, q, k, v, three, 1, 1, 1, 1, 1, 1, 1, 1, 1, by, 0);
        double a = exp(-2 * by), b = exp(-by), expected = (a + 2 * b + 4) / (a + b + 1);
        assert_true(y[0] == 1 && fabs(y[1] - 1.5) <= 1e-6);
        assert_true(fabs(y[2] - expected) <= 100 * by * EPS * 4);
    }
}

/* backend */

static void test_backend(void **unused) {
    (void)unused;
    const struct kern_ops *ops = NULL;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(kern_backend(&ops, AG_BACKEND_REF, &err), &err);
    assert_string_equal(ops->name, "ref");
    assert_ok(kern_backend(&ops, AG_BACKEND_CPU, &err), &err);
    assert_string_equal(ops->name, "cpu");
    assert_ok(kern_backend(&ops, AG_BACKEND_AUTO, &err), &err);

    const int64_t offsets[] = {0, 0, 256, 513, 514};
    struct kern_tile tiles[8];
    assert_int_equal(kern_tiles(NULL, offsets, 4), 4);
    assert_int_equal(kern_tiles(tiles, offsets, 4), 4);
    static const struct kern_tile expected[] = {{0, 256}, {256, 256}, {512, 1}, {513, 1}};
    assert_memory_equal(tiles, expected, sizeof expected);
    assert_int_equal(kern_tiles(NULL, offsets, 0), 0);

    kern_set_threads(3);
    assert_int_equal(kern_threads(), 3);
    kern_set_threads(0);
    assert_true(kern_threads() >= 1);
}

static void test_blas_core(void **unused) {
    (void)unused;
    const unsigned intel = KERN_CPU_INTEL | KERN_CPU_AVX2 | KERN_CPU_AVX512, amd = KERN_CPU_AVX2 | KERN_CPU_AVX512;
    static const char *const none = NULL;
    const struct {
        const char *detected;
        unsigned features;
        const char *user, *expected;
    } cases[] = {
        {"Prescott", intel, none, "SkylakeX"},
        {"Prescott", amd, none, "SkylakeX"},
        {"Prescott", KERN_CPU_AVX2, none, "Haswell"},
        {"Prescott", 0, none, none},
        {"Nehalem", KERN_CPU_AVX2 | KERN_CPU_INTEL, none, "Haswell"},
        {"Haswell", intel, none, "SkylakeX"},
        {"Haswell", amd, none, none},
        {"Zen", amd, none, none},
        {"Zen", KERN_CPU_AVX2, none, none},
        {"SkylakeX", intel, none, none},
        {"Cooperlake", amd, none, none},
        {"SAPPHIRERAPIDS", intel, none, none},
        {"Sandybridge", amd, none, "SkylakeX"},
        {"Prescott", intel, "Prescott", none},
        {"Prescott", intel, "", none},
        {"Unknown", KERN_CPU_AVX2, none, "Haswell"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = kern_blas_core_choose(cases[i].detected, cases[i].features, cases[i].user);
        if ((got == NULL) != (cases[i].expected == NULL) || (got && strcmp(got, cases[i].expected) != 0))
            fail_msg("%s, features %u: %s, expected %s", cases[i].detected, cases[i].features, got ? got : "nothing",
                     cases[i].expected ? cases[i].expected : "nothing");
    }
    assert_non_null(kern_blas_core());
    assert_true(strlen(kern_blas_core()) > 4);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_exp2, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_transpose, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_linear, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_linear_exact, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_rmsnorm, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_rope, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_swiglu, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_nll, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_attention_lengths, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_attention_shapes, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_attention_exact, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_attention_not_finite, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_backend, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_blas_core, set_up, tear_down),
};
TEST_GROUP(kernels, "forward pass kernels: cpu against plain, exact under threads and packing", tests)
