/* kernels/logit_moments_cpu.c: the moments of every causal query's logits in one pass, without an n x n matrix.
 *
 * As in attention_cpu.c the query heads of a KV head are stacked and a strip of STRIP rows is held against all keys that it
 * sees, block by block, with the vector lanes along the rows: sums over keys need no shuffles. Everything is double: a
 * product of two floats is exact there, so a logit's error is that of the summation alone (about 1e-14 of |q| |k|), and
 * that is what makes the enclosures of section 5 tight. u = 2^-53.
 *
 * exp x is kept as p 2^n with n an integer, and the row's sum as S 2^K with K the largest n so far: rescaling when K rises is
 * exact. A row's operations depend on nothing but its own prompt: bits depend neither on threads nor on packing. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/ops.h"
#include "kernels/simd_double.h"

#define U (DBL_EPSILON / 2)

enum { V = KERN_DV, VECTORS = 3, KEYS = KERN_V == 16 ? 8 : 4, STRIP = V * VECTORS, BLOCK = 64 };
_Static_assert(BLOCK % KEYS == 0, "register tiles divide a block");

/* Compensated accumulation (Knuth's two-sum): error u per block on top of the block's own. */
struct total {
    kern_dvec s, c;
};
static inline void accumulate(struct total *total, kern_dvec x) {
    kern_dvec s = total->s + x, z = s - total->s;
    total->c += (total->s - (s - z)) + (x - z);
    total->s = s;
}

enum { S1, S2, S3, S4, E1, E2, SUMS };
struct strip {
    double q[KERN_HEAD_MAX * STRIP]; /* (D, STRIP), times scale */
    double s[BLOCK * STRIP];         /* (BLOCK, STRIP) logits */
    struct total sums[VECTORS][SUMS];
    kern_dvec a[VECTORS], b[VECTORS], centre[VECTORS], K[VECTORS];
    int64_t token[STRIP];
    bool begun;
} __attribute__((aligned(64)));

/* s (n, STRIP) = k (n, D) q (D, STRIP); n is rounded up to KEYS by repeating the last key. */
static void scores(double *s, const double *q, const float *k, int64_t n, int64_t D, int64_t ldk) {
    for (int64_t j = 0; j < n; j += KEYS) {
        const float *row[KEYS];
        kern_dvec acc[KEYS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < KEYS; r++) {
            row[r] = k + (j + r < n ? j + r : n - 1) * ldk;
#pragma GCC unroll 8
            for (int c = 0; c < VECTORS; c++) acc[r][c] = kern_dsplat(0);
        }
        for (int64_t d = 0; d < D; d++) {
            kern_dvec x[VECTORS];
#pragma GCC unroll 8
            for (int c = 0; c < VECTORS; c++) x[c] = *(const kern_dvec *)(q + d * STRIP + c * V);
#pragma GCC unroll 8
            for (int r = 0; r < KEYS; r++) {
                double key = (double)row[r][d];
#pragma GCC unroll 8
                for (int c = 0; c < VECTORS; c++) acc[r][c] += key * x[c];
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < KEYS; r++)
#pragma GCC unroll 8
            for (int c = 0; c < VECTORS; c++) *(kern_dvec *)(s + (j + r) * STRIP + c * V) = acc[r][c];
    }
}

/* Which rows of vector c see key j of the prompt. */
static inline kern_divec sees(const struct strip *w, int c, int64_t j, int64_t window) {
    kern_divec back = *(const kern_divec *)(w->token + c * V) - j, mask = back >= 0;
    if (window > 0) mask &= back < window;
    return mask;
}

/* Adds keys [first, first + n) to the sums; partial: some rows do not see some of them. Always inlined twice. */
static inline __attribute__((always_inline)) void gather(struct strip *w, int64_t first, int64_t n, int64_t window,
                                                         bool partial) {
    for (int c = 0; c < VECTORS; c++) {
        const double *s = w->s + c * V;
        kern_dvec a = w->a[c], b = w->b[c], centre = w->centre[c];
        /* extremes; and the centre of a row is the mean of the first logits that it sees */
        kern_dvec sum = kern_dsplat(0), count = kern_dsplat(0);
        for (int64_t j = 0; j < n; j++) {
            kern_dvec x = *(const kern_dvec *)(s + j * STRIP);
            kern_divec mask = partial ? sees(w, c, first + j, window) : (kern_divec)(x == x);
            a = kern_smaller(partial ? kern_choose(mask, x, kern_dsplat(INFINITY)) : x, a);
            b = kern_larger(partial ? kern_choose(mask, x, kern_dsplat(-INFINITY)) : x, b);
            sum += partial ? kern_choose(mask, x, kern_dsplat(0)) : x;
            count -= __builtin_convertvector(mask, kern_dvec); /* true is -1 */
        }
        kern_divec fresh = w->b[c] == -INFINITY;
        centre = kern_choose(fresh & (count > 0), sum / kern_larger(count, kern_dsplat(1)), centre);
        kern_dvec K = kern_larger((b * 0x1.71547652b82fep0 + KERN_ROUND) - KERN_ROUND,
                                  kern_dsplat(-0x1p50)); /* a row that has seen nothing: harmless */
        kern_dvec decay = kern_dpow2(w->K[c] - K), decay2 = decay * decay;
        w->sums[c][E1].s *= decay, w->sums[c][E1].c *= decay;
        w->sums[c][E2].s *= decay2, w->sums[c][E2].c *= decay2;
        kern_dvec s1 = kern_dsplat(0), s2 = s1, s3 = s1, s4 = s1, e1 = s1, e2 = s1;
        for (int64_t j = 0; j < n; j++) {
            kern_dvec x = *(const kern_dvec *)(s + j * STRIP), k, p;
            if (partial) x = kern_choose(sees(w, c, first + j, window), x, centre);
            kern_dvec y = x - centre, y2 = y * y;
            p = kern_dexp(x, &k);
            p *= kern_dpow2(k - K);
            if (partial) p = kern_choose(sees(w, c, first + j, window), p, kern_dsplat(0));
            s1 += y;
            s2 += y2;
            s3 += y2 * y;
            s4 += y2 * y2;
            e1 += p;
            e2 += p * p;
        }
        kern_dvec part[SUMS] = {s1, s2, s3, s4, e1, e2};
        for (int i = 0; i < SUMS; i++) accumulate(&w->sums[c][i], part[i]);
        w->a[c] = a;
        w->b[c] = b;
        w->centre[c] = centre;
        w->K[c] = K;
    }
}

static double up(double x, double n) { return x * (1 + n * U) + 4.94e-324; }

/* Row i of the strip, t keys seen. size: largest |k| times |q| scale, rounded up. */
static void finish(struct kern_logit_moments *out, const struct strip *w, int i, int64_t t, int64_t D, double size) {
    int c = i / V, l = i % V;
    double sum[SUMS], N = (double)t, centre = w->centre[c][l], a = w->a[c][l], b = w->b[c][l], K = w->K[c][l];
    for (int k = 0; k < SUMS; k++) sum[k] = w->sums[c][k].s[l] + w->sums[c][k].c[l];
    double d = sum[S1] / N, q2 = sum[S2] / N, q3 = sum[S3] / N, q4 = sum[S4] / N, v = fmax(q2 - d * d, 0);
    double log_sum = log(sum[E1]), shift = K * 0x1.62e42fefa39efp-1;
    out->t = t;
    out->m = centre + d;
    out->v = v;
    out->a = a;
    out->b = b;
    out->A = shift + log_sum;
    out->k3 = q3 - 3 * d * q2 + 2 * d * d * d;
    out->k4 = q4 - 4 * d * q3 + 6 * d * d * q2 - 3 * d * d * d * d - 3 * v * v;
    out->effective = sum[E1] * sum[E1] / sum[E2];
    out->largest = fmin(exp(b - out->A), 1);
    /* Errors, with n = BLOCK + 4 for the relative error (in u) of a sum of terms of one sign: BLOCK additions, the
     * compensated accumulation, the last addition.
     * eta: the query times scale rounds once, the dot product D times: (D + 1) u |q| |k|.
     * eps: as in kern_logit_moments_row, |x_j - centre - y_j| <= eta + u |y_j|.
     * m: mean eps, n u mean |y| (mean |y| <= sqrt q2), division, addition.
     * v: 2 eps sd + eps^2 (sd of the y_j: at most sqrt(v + its rounding)); squares 1, sum n, division 1; d carries n u sqrt q2, so d^2 moves by 2 |d| n u sqrt q2 + ...
     * A: eta; exp 4u and scaling 0; sum n u; log 1 + |log|; K log 2: 2u |shift|; addition. Terms kept at 2^-1022 instead of
     *    less: far below u. */
    const double n = BLOCK + 4, root = sqrt(q2), widest = fmax(fabs(a - centre), fabs(b - centre));
    const double rounding = U * ((n + 4) * q2 + 2 * (n + 2) * fabs(d) * root + 4 * d * d + 2 * v);
    double eta = up((double)(D + 2) * U * size, 8), eps = up(eta + U * widest, 8), sd = up(sqrt(v + rounding), 8);
    out->dab = eta;
    out->dm = up(eps + U * ((n + 2) * root + 2 * fabs(d) + 2 * fabs(out->m)), 16) + 1e-320;
    out->dv = up(eps * (2 * sd + eps) + rounding, 32) + 1e-300;
    out->dA = up(eta + U * (n + 8 + 3 * fabs(log_sum) + 3 * fabs(shift) + 2 * fabs(out->A)), 16);
    if (!(fmax(fabs(a), fabs(b)) < KERN_LOGIT_MAX))
        out->A = NAN; /* beyond kern_dexp: no result rather than a wrong one */
    if (a == b) {     /* one key, or equal stored logits: the point mass, up to eta */
        out->m = a;
        out->v = out->k3 = out->k4 = 0;
        out->dm = eta;
        out->dv = up(eta * eta, 4);
    }
}

/* Rows [row, row + rows) of the stack of one KV head. */
static void strip_of(struct kern_logit_moments *out, const float *keys, const float *queries, int64_t row, int64_t rows,
                     int64_t G, int64_t T, int64_t D, int64_t ldk, int64_t query_head_stride, int64_t ldq, double scale,
                     int64_t window, double largest_key) {
    struct strip w;
    double size[STRIP];
    for (int i = 0; i < STRIP; i++) {
        int64_t at = row + (i < rows ? i : rows - 1), t = at / G;
        const float *from = queries + at % G * query_head_stride + t * ldq;
        double squares = 0;
        for (int64_t d = 0; d < D; d++) {
            w.q[d * STRIP + i] = (double)from[d] * scale;
            squares += w.q[d * STRIP + i] * w.q[d * STRIP + i];
        }
        size[i] = up(sqrt(squares) * largest_key, (double)(D + 8));
        w.token[i] = t;
    }
    for (int c = 0; c < VECTORS; c++) {
        w.a[c] = kern_dsplat(INFINITY);
        w.b[c] = kern_dsplat(-INFINITY);
        w.centre[c] = kern_dsplat(0);
        w.K[c] = kern_dsplat(-0x1p50);
        for (int k = 0; k < SUMS; k++) w.sums[c][k] = (struct total){kern_dsplat(0), kern_dsplat(0)};
    }
    int64_t low = w.token[0], high = w.token[STRIP - 1];
    int64_t begin = window > 0 && low - window + 1 > 0 ? (low - window + 1) / BLOCK * BLOCK : 0;
    for (int64_t j = begin; j <= high; j += BLOCK) {
        int64_t n = high + 1 - j < BLOCK ? high + 1 - j : BLOCK;
        scores(w.s, w.q, keys + j * ldk, n, D, ldk);
        if (j + n - 1 > low || (window > 0 && high - j >= window))
            gather(&w, j, n, window, true);
        else
            gather(&w, j, n, window, false);
    }
    for (int i = 0; i < rows; i++) {
        int64_t t = w.token[i], seen = window > 0 && t + 1 > window ? window : t + 1;
        finish(out + (row + i) % G * T + t, &w, i, seen, D, size[i]);
    }
}

void kern_logit_moments_cpu(struct kern_logit_moments *out, const float *keys, const float *queries, int64_t T,
                            int64_t Hq, int64_t Hk, int64_t D, int64_t key_head_stride, int64_t key_token_stride,
                            int64_t query_head_stride, int64_t query_token_stride, double scale, int64_t window) {
    const int64_t G = Hq / Hk, strips = (T * G + STRIP - 1) / STRIP;
    double largest[KERN_HEADS_MAX];
    int threads = (int)kern_threads();
#pragma omp parallel num_threads(threads) default(none)                                                                \
    shared(out, keys, queries, T, Hk, D, key_head_stride, key_token_stride, query_head_stride, query_token_stride,     \
           scale, window, G, strips, largest)
    {
#pragma omp for
        for (int64_t g = 0; g < Hk; g++) {
            double most = 0;
            for (int64_t t = 0; t < T; t++) {
                const float *k = keys + g * key_head_stride + t * key_token_stride;
                double squares = 0;
                for (int64_t d = 0; d < D; d++) squares += (double)k[d] * (double)k[d];
                most = fmax(most, squares);
            }
            largest[g] = up(sqrt(most), (double)(D + 8));
        }
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < strips * Hk; task++) { /* the longest strips first */
            int64_t row = (strips - 1 - task / Hk) * STRIP, g = task % Hk;
            strip_of(out + g * G * T, keys + g * key_head_stride, queries + g * G * query_head_stride, row,
                     T * G - row < STRIP ? T * G - row : STRIP, G, T, D, key_token_stride, query_head_stride,
                     query_token_stride, scale, window, largest[g]);
        }
    }
}
