/* kernels/shortconv_ref.c: short convolution, elementwise maps, head scalings and log gates of linear attention, plain.
 */
#include "kernels/ops.h"

#include <math.h>

static double mapped(double x, enum kern_map map) {
    switch (map) {
    case KERN_MAP_NONE:
        break;
    case KERN_MAP_SILU:
        return x / (1 + exp(-x));
    case KERN_MAP_RELU:
        return x > 0 ? x : 0 * x; /* NaN stays NaN */
    case KERN_MAP_ELU1:
        return x > 0 ? x + 1 : exp(x);
    case KERN_MAP_SIGMOID:
        return 1 / (1 + exp(-x));
    case KERN_MAP_SQRELU:
        return x > 0 ? x * x : 0 * x;
    }
    return x;
}

void kern_shortconv_ref(float *y, const float *x, const float *w, const int64_t *offsets, int64_t P, int64_t C,
                        int64_t W, int64_t ldy, int64_t ldx, enum kern_map map) {
    for (int64_t p = 0; p < P; p++)
        for (int64_t t = offsets[p + 1] - 1; t >= offsets[p]; t--) /* backwards: y may be x */
            for (int64_t c = 0; c < C; c++) {
                double sum = 0;
                for (int64_t j = 0; j < W; j++) {
                    int64_t from = t - (W - 1) + j;
                    if (from >= offsets[p]) sum += (double)w[c * W + j] * x[from * ldx + c];
                }
                y[t * ldy + c] = (float)mapped(sum, map);
            }
}

void kern_map_ref(float *y, const float *x, int64_t rows, int64_t n, int64_t ldy, int64_t ldx, enum kern_map map) {
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < n; i++) y[t * ldy + i] = (float)mapped(x[t * ldx + i], map);
}

void kern_unit_ref(float *y, const float *x, int64_t rows, int64_t D, int64_t ldy, int64_t ldx, enum kern_unit unit,
                   double eps) {
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

void kern_log_gate_ref(float *y, const float *x, const float *bias, const float *decay, int64_t rows, int64_t n,
                       int64_t ldy, int64_t ldx, double divisor, double least) {
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < n; i++) {
            double a = (double)x[t * ldx + i] + (bias ? (double)bias[i] : 0);
            if (!decay) a = -a; /* logsigmoid(a) = -softplus(-a) */
            double softplus = (a > 0 ? a : 0) + log1p(exp(-fabs(a)));
            double g = decay ? -exp((double)decay[i]) * softplus : -softplus / divisor;
            y[t * ldy + i] = (float)(g < least ? least : g);
        }
}
