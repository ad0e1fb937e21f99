/* kernels/attention_cpu.c: causal softmax attention by online softmax over blocks of keys (Milakov & Gimelshein 2018;
 * Dao et al. 2022), linear in memory.
 *
 * The query heads that share a KV head are stacked: row i of a prompt's stack is head i % G of token i / G. One task is
 * a strip of STRIP rows against all the keys they see. Its queries are transposed once, (D, STRIP), so that in the
 * scores S^T (key, row) the vector lanes are rows: maxima and sums over keys need no shuffles, keys and values are read
 * where they lie, and P^T is already laid out as the second product wants it. A row's operations depend on nothing but
 * its own position in its prompt, so bits depend neither on threads nor on packing. */
#include "kernels/ops.h"

#include <string.h>

#include <omp.h>

#include "kernels/simd.h"

/* Register tiles: KEYS x VECTORS accumulators for the scores, ROWS x COLUMNS for the output. */
#if KERN_V == 16
enum { VECTORS = 3, KEYS = 8, ROWS = 6, COLUMNS = 4 };
#else
enum { VECTORS = 3, KEYS = 4, ROWS = 6, COLUMNS = 2 };
#endif
enum { STRIP = VECTORS * KERN_V, BLOCK = 64, PAD = (KERN_HEAD_MAX + KERN_V - 1) / KERN_V * KERN_V };
_Static_assert(STRIP % ROWS == 0 && BLOCK % KEYS == 0, "register tiles divide a strip and a block");

struct strip {
    float q[KERN_HEAD_MAX * STRIP]; /* (D, STRIP), times scale and log2 e */
    float s[BLOCK * STRIP];         /* (BLOCK, STRIP) scores, then weights */
    float o[STRIP * PAD];           /* (STRIP, ld) */
    int64_t ld;                     /* Dv rounded up to whole vectors */
    float tail[BLOCK * KERN_V];     /* the last Dv % KERN_V columns of a block of values, zero-padded */
    float max[STRIP], sum[STRIP], decay[STRIP];
    int32_t token[STRIP]; /* of each row, within the prompt; padding rows repeat the last */
} __attribute__((aligned(64)));

/* s (n, STRIP) = k (n, D) q (D, STRIP); n is rounded up to KEYS by repeating the last key. */
static void scores(float *s, const float *q, const float *k, int64_t n, int64_t D, int64_t ldk) {
    for (int64_t j = 0; j < n; j += KEYS) {
        const float *row[KEYS];
        kern_vec acc[KEYS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < KEYS; r++) {
            row[r] = k + (j + r < n ? j + r : n - 1) * ldk;
#pragma GCC unroll 8
            for (int c = 0; c < VECTORS; c++) acc[r][c] = kern_splat(0);
            for (int64_t d = 0; d < D; d += 16) __builtin_prefetch(row[r] + KEYS * ldk + d);
        }
        for (int64_t d = 0; d < D; d++) {
            kern_vec x[VECTORS];
#pragma GCC unroll 8
            for (int c = 0; c < VECTORS; c++) x[c] = kern_load(q + d * STRIP + c * KERN_V);
#pragma GCC unroll 8
            for (int r = 0; r < KEYS; r++)
#pragma GCC unroll 8
                for (int c = 0; c < VECTORS; c++) acc[r][c] += row[r][d] * x[c];
        }
#pragma GCC unroll 8
        for (int r = 0; r < KEYS; r++)
#pragma GCC unroll 8
            for (int c = 0; c < VECTORS; c++) kern_store(s + (j + r) * STRIP + c * KERN_V, acc[r][c]);
    }
}

/* Rows that may not see a key get -inf. first: position of the block's first key. */
static void mask(struct strip *w, int64_t first, int64_t n, int64_t window) {
    for (int64_t j = 0; j < n; j++)
        for (int i = 0; i < STRIP; i++) {
            int64_t back = w->token[i] - (first + j);
            if (back < 0 || (window > 0 && back >= window)) w->s[j * STRIP + i] = -INFINITY;
        }
}

/* s: scores to weights 2^(s - max); max, sum and decay (what earlier output must be multiplied by) brought up to date.
 */
static void softmax(struct strip *w, int64_t n) {
    for (int c = 0; c < STRIP; c += KERN_V) {
        kern_vec old = kern_load(w->max + c), max = old;
        for (int64_t j = 0; j < n; j++) max = kern_max(kern_load(w->s + j * STRIP + c), max);
        /* A row that has seen no key yet has max = -inf: shift by 0, so that its weights are 0 and not NaN. */
        kern_vec shift = kern_max(kern_splat(-0x1p126f), max);
        kern_vec decay = kern_exp2(old - shift), sum = kern_load(w->sum + c) * decay;
        for (int64_t j = 0; j < n; j++) {
            kern_vec p = kern_exp2(kern_load(w->s + j * STRIP + c) - shift);
            kern_store(w->s + j * STRIP + c, p);
            sum += p;
        }
        kern_store(w->max + c, max);
        kern_store(w->sum + c, sum);
        kern_store(w->decay + c, decay);
    }
}

/* ROWS x (vectors) piece of o = decay o + P V; constant `vectors` after inlining. */
static inline __attribute__((always_inline)) void mix(float *o, const float *p, const float *decay, const float *v,
                                                      int64_t n, int64_t lda, int64_t ldv, const int vectors) {
    kern_vec acc[ROWS][COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++) acc[r][c] = decay[r] * kern_load(o + r * lda + c * KERN_V);
    for (int64_t j = 0; j < n; j++) {
        kern_vec x[COLUMNS];
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++) x[c] = kern_load(v + j * ldv + c * KERN_V);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int c = 0; c < vectors; c++) acc[r][c] += p[j * STRIP + r] * x[c];
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++) kern_store(o + r * lda + c * KERN_V, acc[r][c]);
}

static void values(struct strip *w, const float *v, int64_t n, int64_t Dv, int64_t ldv) {
    int64_t whole = Dv / KERN_V * KERN_V, rest = Dv - whole, d;
    if (rest > 0)
        for (int64_t j = 0; j < n; j++) {
            memset(w->tail + j * KERN_V, 0, sizeof(kern_vec));
            memcpy(w->tail + j * KERN_V, v + j * ldv + whole, (size_t)rest * sizeof *v);
        }
    for (d = 0; d + COLUMNS * KERN_V <= whole; d += COLUMNS * KERN_V)
        for (int i = 0; i < STRIP; i += ROWS)
            mix(w->o + i * w->ld + d, w->s + i, w->decay + i, v + d, n, w->ld, ldv, COLUMNS);
    for (; d < whole; d += KERN_V)
        for (int i = 0; i < STRIP; i += ROWS)
            mix(w->o + i * w->ld + d, w->s + i, w->decay + i, v + d, n, w->ld, ldv, 1);
    if (rest > 0)
        for (int i = 0; i < STRIP; i += ROWS)
            mix(w->o + i * w->ld + d, w->s + i, w->decay + i, w->tail, n, w->ld, KERN_V, 1);
}

/* The same where some value is not finite: a key that a row may not see must not touch it (0 * inf is NaN). */
static void values_careful(struct strip *w, const float *v, int64_t first, int64_t n, int64_t Dv, int64_t ldv,
                           int64_t window) {
    for (int i = 0; i < STRIP; i++)
        for (int64_t d = 0; d < Dv; d++) {
            float sum = w->decay[i] * w->o[i * w->ld + d];
            for (int64_t j = 0; j < n; j++) {
                int64_t back = w->token[i] - (first + j);
                if (back >= 0 && !(window > 0 && back >= window)) sum += w->s[j * STRIP + i] * v[j * ldv + d];
            }
            w->o[i * w->ld + d] = sum;
        }
}

static bool all_finite(const float *v, int64_t n, int64_t Dv, int64_t ldv) {
    kern_vec zeros = kern_splat(0);
    float zero = 0;
    for (int64_t j = 0; j < n; j++, v += ldv) {
        int64_t d = 0;
        for (; d + KERN_V <= Dv; d += KERN_V) zeros += 0 * kern_load(v + d);
        for (; d < Dv; d++) zero += 0 * v[d];
    }
    return zero == 0 && kern_sum(zeros) == 0;
}

/* Rows [row, row + rows) of one prompt's stack; all pointers at the prompt's first token and the group's first head. */
static void attend(float *out, const float *q, const float *k, const float *v, int64_t row, int64_t rows, int64_t G,
                   int64_t D, int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk, int64_t ldv, float scale,
                   int64_t window) {
    struct strip w;
    const float *from[STRIP];
    for (int i = 0; i < STRIP; i++) {
        int64_t at = row + (i < rows ? i : rows - 1), t = at / G;
        from[i] = q + t * ldq + at % G * D;
        w.token[i] = (int32_t)t;
        w.max[i] = -INFINITY;
        w.sum[i] = 0;
    }
    int64_t d = 0;
    for (; d + KERN_V <= D; d += KERN_V)
        for (int i = 0; i < STRIP; i += KERN_V) kern_transpose(w.q + d * STRIP + i, from + i, d, STRIP, scale);
    for (; d < D; d++)
        for (int i = 0; i < STRIP; i++) w.q[d * STRIP + i] = from[i][d] * scale;
    w.ld = (Dv + KERN_V - 1) / KERN_V * KERN_V;
    memset(w.o, 0, (size_t)(STRIP * w.ld) * sizeof *w.o);
    int64_t low = w.token[0], high = w.token[STRIP - 1], begin = 0;
    if (window > 0 && low - window + 1 > 0) begin = (low - window + 1) / BLOCK * BLOCK;
    for (int64_t j = begin; j <= high; j += BLOCK) {
        int64_t n = high + 1 - j < BLOCK ? high + 1 - j : BLOCK;
        bool partial = j + n - 1 > low || (window > 0 && high - j >= window);
        scores(w.s, w.q, k + j * ldk, n, D, ldk);
        if (partial) mask(&w, j, n, window);
        softmax(&w, n);
        if (partial && !all_finite(v + j * ldv, n, Dv, ldv))
            values_careful(&w, v + j * ldv, j, n, Dv, ldv, window);
        else
            values(&w, v + j * ldv, n, Dv, ldv);
    }
    for (int i = 0; i < rows; i++) {
        float *to = out + (row + i) / G * ldo + (row + i) % G * Dv;
        const float share = 1 / w.sum[i];
        for (d = 0; d < Dv; d++) to[d] = w.o[i * w.ld + d] * share;
    }
}

void kern_attention_cpu(float *out, const float *q, const float *k, const float *v, const int64_t *offsets, int64_t P,
                        int64_t Hq, int64_t Hk, int64_t D, int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk,
                        int64_t ldv, double scale, int64_t window) {
    const int64_t G = Hq / Hk;
    const float scale2 = (float)(scale * M_LOG2E);
    int threads = (int)kern_threads();
#pragma omp parallel num_threads(threads) default(none)                                                                \
    shared(out, q, k, v, offsets, P, Hk, D, Dv, ldo, ldq, ldk, ldv, scale2, window, G)
    for (int64_t p = 0; p < P; p++) {
        const int64_t start = offsets[p], rows = (offsets[p + 1] - start) * G, strips = (rows + STRIP - 1) / STRIP;
        /* The longest strips first, so that the threads end together. */
#pragma omp for schedule(dynamic) nowait
        for (int64_t task = 0; task < strips * Hk; task++) {
            int64_t row = (strips - 1 - task / Hk) * STRIP, g = task % Hk;
            attend(out + start * ldo + g * G * Dv, q + start * ldq + g * G * D, k + start * ldk + g * D,
                   v + start * ldv + g * Dv, row, rows - row < STRIP ? rows - row : STRIP, G, D, Dv, ldo, ldq, ldk, ldv,
                   scale2, window);
        }
    }
}
