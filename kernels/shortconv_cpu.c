/* kernels/shortconv_cpu.c: short convolution, elementwise maps, head scalings and log gates of linear attention: OpenMP
 * over rows, or over (prompt, block of channels); vectors along a row. */
#include "kernels/ops.h"

#include <math.h>

#include "kernels/simd.h"

enum { GRAIN = 1 << 13, BLOCK = 64, TAPS_MAX = 16 };

static kern_vec sigmoid(kern_vec x) {
    return 1.0f / (kern_exp2(-(kern_max(kern_splat(-88.8f), x) * (float)M_LOG2E)) + 1.0f);
}

static inline kern_vec mapped(kern_vec x, enum kern_map map) {
    const kern_vec zero = kern_splat(0);
    switch (map) {
    case KERN_MAP_NONE:
        break;
    case KERN_MAP_SILU:
        return x / (kern_exp2(-(kern_max(kern_splat(-88.8f), x) * (float)M_LOG2E)) + 1.0f);
    case KERN_MAP_RELU:
        return kern_max(zero, x);
    case KERN_MAP_ELU1: { /* e^x below 0, x + 1 above */
        kern_ivec above = x > zero;
        kern_vec low = kern_exp2((x - kern_max(zero, x)) * (float)M_LOG2E), high = x + 1.0f;
        return (kern_vec)((above & (kern_ivec)high) | (~above & (kern_ivec)low));
    }
    case KERN_MAP_SIGMOID:
        return sigmoid(x);
    case KERN_MAP_SQRELU: {
        kern_vec r = kern_max(zero, x);
        return r * r;
    }
    }
    return x;
}

/* The last n < KERN_V floats, the rest 0. */
static kern_vec load_part(const float *x, int64_t n) {
    kern_vec v = kern_splat(0);
    for (int64_t i = 0; i < n; i++) v[i] = x[i];
    return v;
}
static void store_part(float *y, kern_vec v, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = v[i];
}

/* Channels [c, c + n), n <= BLOCK, of one prompt; from its last token to its first, since y may be x. */
static void convolve(float *y, const float *x, const float *w, int64_t T, int64_t n, int64_t W, int64_t ldy,
                     int64_t ldx, enum kern_map map) {
    float taps[TAPS_MAX][BLOCK];
    for (int64_t j = 0; j < W; j++)
        for (int64_t c = 0; c < n; c++) taps[j][c] = w[c * W + j];
    for (int64_t t = T - 1; t >= 0; t--) {
        const int64_t first = t >= W - 1 ? 0 : W - 1 - t; /* taps before the prompt meet zeros */
        int64_t c = 0;
        for (; c + KERN_V <= n; c += KERN_V) {
            kern_vec sum = kern_splat(0);
            for (int64_t j = first; j < W; j++)
                sum += kern_load(taps[j] + c) * kern_load(x + (t - (W - 1) + j) * ldx + c);
            kern_store(y + t * ldy + c, mapped(sum, map));
        }
        if (c == n) continue;
        kern_vec sum = kern_splat(0);
        for (int64_t j = first; j < W; j++)
            sum += load_part(taps[j] + c, n - c) * load_part(x + (t - (W - 1) + j) * ldx + c, n - c);
        store_part(y + t * ldy + c, mapped(sum, map), n - c);
    }
}

void kern_shortconv_cpu(float *y, const float *x, const float *w, const int64_t *offsets, int64_t P, int64_t C,
                        int64_t W, int64_t ldy, int64_t ldx, enum kern_map map) {
    if (W > TAPS_MAX) { /* the reader refuses more; exact all the same */
        kern_shortconv_ref(y, x, w, offsets, P, C, W, ldy, ldx, map);
        return;
    }
    const int64_t blocks = (C + BLOCK - 1) / BLOCK;
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) schedule(dynamic) default(none)                                          \
    shared(y, x, w, offsets, P, C, W, ldy, ldx, map, blocks)
    for (int64_t i = 0; i < P * blocks; i++) {
        const int64_t p = i / blocks, c = i % blocks * BLOCK, row = offsets[p];
        convolve(y + row * ldy + c, x + row * ldx + c, w + c * W, offsets[p + 1] - row, C - c < BLOCK ? C - c : BLOCK,
                 W, ldy, ldx, map);
    }
}

void kern_map_cpu(float *y, const float *x, int64_t rows, int64_t n, int64_t ldy, int64_t ldx, enum kern_map map) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) if (rows * n >= GRAIN) default(none) shared(y, x, rows, n, ldy, ldx, map)
    for (int64_t t = 0; t < rows; t++) {
        int64_t i = 0;
        for (; i + KERN_V <= n; i += KERN_V) kern_store(y + t * ldy + i, mapped(kern_load(x + t * ldx + i), map));
        if (i < n) store_part(y + t * ldy + i, mapped(load_part(x + t * ldx + i, n - i), map), n - i);
    }
}

void kern_unit_cpu(float *y, const float *x, int64_t rows, int64_t D, int64_t ldy, int64_t ldx, enum kern_unit unit,
                   double eps) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) if (rows * D >= GRAIN) default(none)                                     \
    shared(y, x, rows, D, ldy, ldx, unit, eps)
    for (int64_t t = 0; t < rows; t++) {
        double sum = eps;
        for (int64_t d = 0; d < D; d++) {
            double value = x[t * ldx + d];
            sum += unit == KERN_UNIT_L2 ? value * value : value;
        }
        double factor = unit == KERN_UNIT_NONE ? 1 : unit == KERN_UNIT_L2 ? 1 / sqrt(sum) : 1 / sum;
        for (int64_t d = 0; d < D; d++) y[t * ldy + d] = (float)(x[t * ldx + d] * factor);
    }
}

/* log(1 + e^-|a|) + max(a, 0). The logarithm is 2 atanh(s), s = e / (2 + e) <= 1/3, whose series ends here at s^15:
 * relative error below 2e-9. */
static kern_vec softplus(kern_vec a) {
    const kern_vec zero = kern_splat(0);
    kern_vec above = kern_max(zero, a), e = kern_exp2((kern_splat(0) - kern_max(a, -a)) * (float)M_LOG2E);
    kern_vec s = e / (e + 2.0f), s2 = s * s, sum = kern_splat(1.0f / 15);
    for (int n = 13; n > 0; n -= 2) sum = sum * s2 + 1 / (float)n;
    return above + 2.0f * s * sum;
}

/* Of GLA, where there is a gate for every coordinate of a key. */
static void gla_gates(float *y, const float *x, const float *bias, int64_t n, float divisor, float least) {
    for (int64_t i = 0; i < n; i += KERN_V) {
        const int64_t left = n - i;
        kern_vec a = left < KERN_V ? load_part(x + i, left) : kern_load(x + i);
        if (bias) a += left < KERN_V ? load_part(bias + i, left) : kern_load(bias + i);
        kern_vec g = kern_max(kern_splat(least), -softplus(-a) / divisor);
        if (left < KERN_V)
            store_part(y + i, g, left);
        else
            kern_store(y + i, g);
    }
}

void kern_log_gate_cpu(float *y, const float *x, const float *bias, const float *decay, int64_t rows, int64_t n,
                       int64_t ldy, int64_t ldx, double divisor, double least) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) if (rows * n >= GRAIN) default(none)                                     \
    shared(y, x, bias, decay, rows, n, ldy, ldx, divisor, least)
    for (int64_t t = 0; t < rows; t++)
        if (!decay)
            gla_gates(y + t * ldy, x + t * ldx, bias, n, (float)divisor, (float)least);
        else
            kern_log_gate_ref(y + t * ldy, x + t * ldx, bias, decay, 1, n, ldy, ldx, divisor, least);
}
