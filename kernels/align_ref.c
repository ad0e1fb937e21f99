/* kernels/align_ref.c: alignment energies, the definition (MATH.md section 4). */
#include "kernels/ops.h"

void kern_align_ref(double *inside, double *total, const float *x, const double *mu, const double *U, int64_t T,
                    int64_t D, int64_t r, int64_t token_stride) {
    for (int64_t t = 0; t < T; t++) {
        const float *key = x + t * token_stride;
        inside[t] = total[t] = 0;
        for (int64_t i = 0; i < D; i++) total[t] += (key[i] - mu[i]) * (key[i] - mu[i]);
        for (int64_t k = 0; k < r; k++) {
            double dot = 0;
            for (int64_t i = 0; i < D; i++) dot += U[k * D + i] * (key[i] - mu[i]);
            inside[t] += dot * dot;
        }
    }
}
