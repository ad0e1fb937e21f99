/* tests/bench_attgeo.c: the product's speed and memory beside its peer's (tests/bench/peer.py: transformers, torch,
 * h5py), run in turns, since a machine differs from minute to minute. TSV on stdout: medians, ranges, ratios. The main
 * part of `make bench`. Usage: build/bench-attgeo MODEL [REPEATS]; PEER_PYTHON: an interpreter that has the peer
 * (default python3). */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/log.h"
#include "kernels/kernels.h"
#include "taylor/enclosure.h"
#include "taylor/state.h"

enum { RUNS_MAX = 99, HEADS = 24 * 90, KEYS = 512, D = 64 };
static const int lengths[] = {512, 2048};

/* Runs of one thing: seconds for `tokens`. */
struct runs {
    const char *name;
    double seconds[RUNS_MAX], tokens, peak; /* MB, 0: not known */
    int n;
};

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void add(struct runs *runs, double seconds) {
    if (seconds > 0 && runs->n < RUNS_MAX) runs->seconds[runs->n++] = seconds;
}
static double median(struct runs *runs) {
    if (runs->n == 0) return NAN;
    qsort(runs->seconds, (size_t)runs->n, sizeof *runs->seconds, compare);
    return runs->n % 2 ? runs->seconds[runs->n / 2] : (runs->seconds[runs->n / 2 - 1] + runs->seconds[runs->n / 2]) / 2;
}

/* --- the peer --- */

static FILE *peer_in, *peer_out;
static pid_t peer_pid;

/* Starts it and waits for its first line; without torch and the rest there is no peer. */
static void peer_start(void) {
    const char *python = getenv("PEER_PYTHON");
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) return;
    if ((peer_pid = fork()) == 0) {
        char threads[24];
        snprintf(threads, sizeof threads, "%lld", (long long)kern_threads());
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(nowhere, 2);
        close(in[1]);
        close(out[0]);
        execlp(python ? python : "python3", python ? python : "python3", "tests/bench/peer.py", threads, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    peer_in = fdopen(in[1], "w");
    peer_out = fdopen(out[0], "r");
    char line[256];
    if (peer_in && peer_out && fgets(line, sizeof line, peer_out)) {
        printf("# peer: %s", line);
        return;
    }
    printf("# peer: not installed (torch, transformers and h5py for %s)\n", python ? python : "python3");
    peer_in = NULL;
}

/* Seconds (or MB), 0 without a peer. */
static double ask(const char *format, const char *path, int a, int b) {
    char line[256];
    if (!peer_in) return 0;
    if (path)
        fprintf(peer_in, format, a, path);
    else
        fprintf(peer_in, format, a, b);
    fflush(peer_in);
    return fgets(line, sizeof line, peer_out) ? atof(line) : 0;
}

/* --- ours --- */

/* Runs attgeo; its stdout and stderr into text. Returns the peak in MB, negative when it failed. */
static double attgeo(char *text, size_t size, char *const *arguments) {
    int out[2];
    if (pipe(out) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], 1);
        dup2(out[1], 2);
        close(out[0]);
        execv("build/attgeo", arguments);
        _exit(127);
    }
    close(out[1]);
    size_t n = 0;
    ssize_t got;
    char drop[512];
    while ((got = n + 1 < size ? read(out[0], text + n, size - 1 - n) : read(out[0], drop, sizeof drop)) > 0)
        if (n + 1 < size) n += (size_t)got;
    text[n] = 0;
    close(out[0]);
    int status;
    struct rusage usage;
    if (wait4(pid, &status, 0, &usage) != pid || status != 0) {
        fprintf(stderr, "bench-attgeo: attgeo %s failed:\n%s", arguments[1], text);
        return -1;
    }
    return (double)usage.ru_maxrss / 1024;
}

/* One `attgeo probe`: seconds of the pass, as it says itself (reading weights and flushing the dump included). */
static void probe(struct runs *runs, const char *model, const char *prompts, const char *what, const char *output) {
    char text[8192];
    char *arguments[16] = {"attgeo", "probe", (char *)model, (char *)prompts, "-q"};
    int n = 5;
    if (strcmp(what, "bare") == 0) arguments[n++] = "--bare";
    if (strcmp(what, "geometry") == 0) arguments[n++] = "--reduce", arguments[n++] = "geometry";
    if (strncmp(what, "taylor", 6) == 0) {
        arguments[n++] = "--reduce", arguments[n++] = "taylor", arguments[n++] = "--queries";
        arguments[n++] = (char *)what + 6; /* how many are sampled */
    }
    if (output) arguments[n++] = "-o", arguments[n++] = (char *)output, arguments[n++] = "--force";
    double peak = attgeo(text, sizeof text, arguments);
    const char *tokens = strstr(text, "\ntokens "), *speed = strstr(text, "\nspeed ");
    double seconds = 0, rate = 0, count = 0;
    if (peak < 0) return;
    if (!tokens || !speed || sscanf(tokens, "\ntokens %lf", &count) != 1 ||
        sscanf(speed, "\nspeed %lf s, %lf tokens/s", &seconds, &rate) != 2 || !(rate > 0)) {
        fprintf(stderr, "bench-attgeo: attgeo probe printed no speed:\n%s", text);
        return;
    }
    add(runs, count / rate);
    runs->tokens = count;
    if (peak > runs->peak) runs->peak = peak;
    if (output) unlink(output);
}

/* Covariances and eigenproblems as the geometry reducer calls them: a head is a task. */
static void heads(struct runs *covariance, struct runs *eigen, const struct kern_ops *ops, const float *keys,
                  const int32_t *rows, double *mu, double *s, double *w, int *info) {
    double start = ag_now();
#pragma omp parallel for num_threads((int)kern_threads()) schedule(dynamic, 4)
    for (int64_t h = 0; h < HEADS; h++) ops->moments(mu + h * D, s + h * D * D, keys + h * KEYS * D, rows, KEYS, D, D);
    add(covariance, ag_now() - start);
    start = ag_now();
#pragma omp parallel for num_threads((int)kern_threads()) schedule(dynamic)
    for (int64_t h = 0; h < HEADS; h += 16)
        ops->eigh(w + h * D, s + h * D * D, info + h, HEADS - h < 16 ? HEADS - h : 16, D);
    add(eigen, ag_now() - start);
}

/* Moments, remainder and B1 to B4 at every causal query of one layer of SmolLM2's shape, as the Taylor reducer computes them. */
static void taylor(struct runs *runs, const struct kern_ops *ops, const float *keys, const float *queries, struct kern_logit_moments *moments,
                   int64_t T) {
    enum { Hq = 9, Hk = 3 };
    const double start = ag_now();
    ops->logit_moments(moments, keys, queries, T, Hq, Hk, D, D, Hk * D, D, Hq * D, 0.125, 0);
    double finite = 0;
#pragma omp parallel for num_threads((int)kern_threads()) reduction(+ : finite)
    for (int64_t h = 0; h < Hq; h++) {
        double memory[TAYLOR_STATE_DOUBLES(D)];
        struct taylor_state state;
        taylor_state_begin(&state, memory, D);
        for (int64_t t = 0; t < T; t++) {
            const struct kern_logit_moments *x = &moments[h * T + t];
            struct taylor_remainder remainder;
            struct taylor_interval bound[TAYLOR_BOUNDS];
            taylor_state_add(&state, keys + (t * Hk + h / (Hq / Hk)) * D);
            const struct taylor_reach reach = taylor_state_reach(&state, queries + (t * Hq + h) * D, 0.125, x->m, x->dm);
            taylor_remainder_of(&remainder, x);
            taylor_enclose(bound, x, &reach);
            finite += isfinite(bound[TAYLOR_B3].hi) && isfinite(remainder.R);
        }
    }
    add(runs, ag_now() - start);
    if (!(finite > 0)) runs->n = 0; /* uses the results, so that nothing is left out */
}

/* --- the table --- */

static void row(const char *name, int length, struct runs *ours, struct runs *base, const char *base_name) {
    double a = median(ours), b = median(base), unit = ours->tokens > 0 ? ours->tokens : 0;
    char size[24] = "";
    if (length > 0) snprintf(size, sizeof size, "%d", length);
    if (ours->n == 0) return;
    printf("%s\t%s\t", name, size);
    if (unit > 0)
        printf("%.0f tok/s\t%.0f-%.0f\t", unit / a, unit / ours->seconds[ours->n - 1], unit / ours->seconds[0]);
    else
        printf("%.3f s\t%.3f-%.3f\t", a, ours->seconds[0], ours->seconds[ours->n - 1]);
    if (base->n == 0) {
        printf("-\t-\t-\t%s\t", base_name);
    } else {
        double base_unit = base->tokens > 0 ? base->tokens : 0;
        if (unit > 0)
            printf("%.0f tok/s\t%.0f-%.0f\t%.2f\t%s\t", base_unit / b, base_unit / base->seconds[base->n - 1],
                   base_unit / base->seconds[0], unit / a / (base_unit / b), base_name);
        else
            printf("%.3f s\t%.3f-%.3f\t%.2f\t%s\t", b, base->seconds[0], base->seconds[base->n - 1], b / a, base_name);
    }
    if (ours->peak > 0) printf("%.0f MB", ours->peak);
    if (base->peak > 0) printf("\t%.0f MB", base->peak);
    printf("\n");
    fflush(stdout);
}

static bool make_prompts(const char *path, const char *model, int length) {
    char count[24], text[4096];
    snprintf(count, sizeof count, "%d", length);
    char *const arguments[] = {"attgeo", "prompts",    "-t",       (char *)model, "--kind",   "niah2",
                               "-n",     "1",          "--length", count,         "--digits", "4",
                               "-o",     (char *)path, "--force",  NULL};
    return attgeo(text, sizeof text, arguments) >= 0;
}

int main(int argc, char **argv) {
    kern_blas_core_fix(argv);
    const int repeats = argc > 2 ? atoi(argv[2]) : 7;
    struct ag_error err = AG_ERROR_INIT;
    const struct kern_ops *ops;
    struct ag_arena *arena = ag_arena_new("bench");
    if (argc < 2 || repeats < 1 || repeats > RUNS_MAX) {
        fprintf(stderr, "usage: bench-attgeo MODEL [REPEATS]\n");
        return 2;
    }
    if (!arena || kern_backend(&ops, AG_BACKEND_CPU, &err) != AG_OK) return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("# %s, %lld threads, OpenBLAS core %s, medians of %d runs in turns; the pass's own time\n", argv[1],
           (long long)kern_threads(), kern_blas_core(), repeats);
    peer_start();
    printf("work\ttokens\tours\trange\tbeside\trange\tratio\twhat beside\tour peak\tits peak\n");
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        struct runs bare = {0}, geometry = {0}, dump = {0}, peer = {0}, peer_dump = {0}, every = {0}, sampled = {0};
        char prompts[64];
        const int T = lengths[l];
        snprintf(prompts, sizeof prompts, "build/bench-%d.jsonl", T);
        if (!make_prompts(prompts, argv[1], T)) return 1;
        ask("prefill %d\n", NULL, T, 0); /* warm up, choose the faster attention */
        for (int r = 0; r < repeats; r++) {
            probe(&bare, argv[1], prompts, "bare", NULL);
            add(&peer, ask("prefill %d\n", NULL, T, 0));
            probe(&geometry, argv[1], prompts, "geometry", "build/bench-geometry.h5");
            probe(&dump, argv[1], prompts, "dump", "build/bench-dump.h5");
            probe(&every, argv[1], prompts, "taylor0", "build/bench-taylor.h5");
            probe(&sampled, argv[1], prompts, "taylor64", "build/bench-taylor.h5");
        }
        peer.tokens = T;
        peer.peak = ask("memory\n", NULL, 0, 0);
        for (int r = 0; r < repeats; r++) add(&peer_dump, ask("dump %d %s\n", "build/bench-peer.h5", T, 0));
        peer_dump.tokens = T;
        row("bare prefill", T, &bare, &peer, "transformers");
        row("prefill and geometry", T, &geometry, &bare, "our bare prefill");
        row("prefill and taylor, all causal queries", T, &every, &bare, "our bare prefill");
        row("prefill and taylor, 64 positions in full too", T, &sampled, &bare, "our bare prefill");
        row("prefill and dump of keys and queries", T, &dump, &bare, "our bare prefill");
        row("prefill and dump of keys and queries", T, &dump, &peer_dump, "hooks, h5py");
    }
    /* Only now: a child's peak counts what its parent held when it forked. */
    float *keys = AG_NEW(arena, float, (int64_t)HEADS *KEYS *D, &err);
    double *mu = AG_NEW(arena, double, HEADS *D, &err), *s = AG_NEW(arena, double, HEADS *D *D, &err);
    double *w = AG_NEW(arena, double, HEADS *D, &err);
    int *info = AG_NEW(arena, int, HEADS, &err);
    int32_t all[KEYS];
    if (err.status != AG_OK) return 1;
    uint32_t seed = 1;
    for (int64_t i = 0; i < (int64_t)HEADS * KEYS * D; i++)
        keys[i] = (float)((seed = seed * 1664525 + 1013904223) >> 8) * 0x1p-23f - 1;
    for (int i = 0; i < KEYS; i++) all[i] = i;
    struct runs covariance = {0}, eigen = {0}, peer_covariance = {0}, peer_eigen = {0}, layer = {0}, peer_layer = {0};
    struct kern_logit_moments *moments = AG_NEW(arena, struct kern_logit_moments, 9 * 2048, &err);
    if (moments == NULL) return 1;
    for (int r = 0; r < repeats; r++) {
        heads(&covariance, &eigen, ops, keys, all, mu, s, w, info);
        add(&peer_covariance, ask("covariance %d %d\n", NULL, HEADS, KEYS));
        add(&peer_eigen, ask("eigh %d\n", NULL, HEADS, 0));
        taylor(&layer, ops, keys, keys + 3 * 2048 * D, moments, 2048);
        add(&peer_layer, ask("taylor %d\n", NULL, 2048, 0));
    }
    row("covariance, 24 prompts x 90 heads x 512 keys, f64", 0, &covariance, &peer_covariance, "torch");
    row("eigenproblems, 24 x 90, 64 wide, f64", 0, &eigen, &peer_eigen, "torch");
    row("Taylor remainder and bounds, one layer, 9 heads, all causal queries, f64", 2048, &layer, &peer_layer, "numpy");
    ag_arena_free(arena);
    if (peer_pid > 0) {
        if (peer_in) fclose(peer_in);
        waitpid(peer_pid, NULL, 0);
    }
    return 0;
}
