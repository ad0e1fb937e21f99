/* kernels/moments_ref.c: mean and population covariance, the definition (MATH.md section 2): two passes in double. */
#include <math.h>

#include "kernels/ops.h"

void kern_moments_ref(double *mu, double *cov, const float *x, const int32_t *rows, int64_t n, int64_t D,
                      int64_t token_stride) {
    for (int64_t i = 0; i < D; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += x[rows[j] * token_stride + i];
        mu[i] = n > 0 ? sum / (double)n : NAN;
    }
    for (int64_t i = 0; i < D; i++) {
        for (int64_t k = i; k < D; k++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++) {
                const float *key = x + rows[j] * token_stride;
                sum += (key[i] - mu[i]) * (key[k] - mu[k]);
            }
            cov[i * D + k] = cov[k * D + i] = n > 0 ? sum / (double)n : NAN;
        }
    }
}
