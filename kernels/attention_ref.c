/* kernels/attention_ref.c: causal softmax attention, plain: two passes over the keys of each query, in double. */
#include "kernels/ops.h"

#include <math.h>

static double logit(const float *q, const float *k, int64_t D, double scale) {
    double sum = 0;
    for (int64_t d = 0; d < D; d++) sum += (double)q[d] * k[d];
    return sum * scale;
}

void kern_attention_ref(float *out, const float *q, const float *k, const float *v, const int64_t *offsets, int64_t P,
                        int64_t Hq, int64_t Hk, int64_t D, int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk,
                        int64_t ldv, double scale, int64_t window) {
    for (int64_t p = 0; p < P; p++)
        for (int64_t t = offsets[p]; t < offsets[p + 1]; t++)
            for (int64_t h = 0; h < Hq; h++) {
                int64_t g = h / (Hq / Hk),
                        first = window > 0 && t - window + 1 > offsets[p] ? t - window + 1 : offsets[p];
                const float *query = q + t * ldq + h * D;
                double max = -INFINITY;
                for (int64_t j = first; j <= t; j++) max = fmax(max, logit(query, k + j * ldk + g * D, D, scale));
                double total = 0, sum[KERN_HEAD_MAX] = {0};
                for (int64_t j = first; j <= t; j++) {
                    double weight = exp(logit(query, k + j * ldk + g * D, D, scale) - max);
                    total += weight;
                    for (int64_t d = 0; d < Dv; d++) sum[d] += weight * v[j * ldv + g * Dv + d];
                }
                for (int64_t d = 0; d < Dv; d++) out[t * ldo + h * Dv + d] = (float)(sum[d] / total);
            }
}
