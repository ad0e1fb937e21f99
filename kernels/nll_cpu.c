/* kernels/nll_cpu.c: negative log-likelihood and argmax of rows of logits, in double, OpenMP over rows. */
#include "kernels/ops.h"

#include <math.h>

enum { LANES = 16 };

/* e^x for x <= 0, relative error below 1e-12, at least e^-708 (which vanishes beside the largest term, 1); NaN stays.
 * x = n ln 2 + r; adding 1.5 2^52 rounds to n and leaves it in the low bits. */
static inline double exp_down(double x) {
    x = x < -708 ? -708 : x;
    union {
        double real;
        int64_t bits;
    } n = {x * M_LOG2E + 0x1.8p52}, power;
    double whole = n.real - 0x1.8p52, r = (x - whole * 0x1.62e42feep-1) - whole * 0x1.a39ef35793c76p-33,
           p = 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    power.bits = (int64_t)((uint64_t)(n.bits + 1023) << 52);
    return p * power.real;
}

static void row(double *nll, int32_t *argmax, const float *x, int32_t target, int64_t V) {
    float top[LANES];
    double sums[LANES] = {0}, sum = 0;
    int64_t i = 0, best = 0;
    for (int l = 0; l < LANES; l++) top[l] = x[0];
    for (; i + LANES <= V; i += LANES)
        for (int l = 0; l < LANES; l++) top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
    float max = top[0];
    for (int l = 1; l < LANES; l++) max = top[l] > max ? top[l] : max;
    for (; i < V; i++) max = x[i] > max ? x[i] : max;
    while (best < V - 1 && x[best] != max) best++;
    if (max != max) best = 0;

    for (i = 0; i + LANES <= V; i += LANES)
        for (int l = 0; l < LANES; l++) sums[l] += exp_down((double)x[i + l] - max);
    for (; i < V; i++) sum += exp_down((double)x[i] - max);
    for (int l = 0; l < LANES; l++) sum += sums[l];
    *nll = log(sum) + max - x[target];
    *argmax = (int32_t)best;
}

void kern_nll_cpu(double *nll, int32_t *argmax, const float *logits, const int32_t *target, int64_t rows, int64_t V) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) default(none) shared(nll, argmax, logits, target, rows, V)
    for (int64_t t = 0; t < rows; t++) row(nll + t, argmax + t, logits + t * V, target[t], V);
}
