/* kernels/ccq_read_ref.c: the trained CCQ read, one token after the other in double. Sums of k k^T and k about the
 * first key of the prompt, so that the centred covariance does not cancel where keys share a large mean. */
#include "kernels/ops.h"

#include <math.h>

void kern_ccq_head(float *y, const float *q, const float *k, const float *w, double b, int64_t T, int64_t D,
                   int64_t ldy, int64_t ldq, int64_t ldk) {
    /* The lower triangle, packed: at most 1 MiB. */
    double C[KERN_HEAD_MAX * (KERN_HEAD_MAX + 1) / 2], s[KERN_HEAD_MAX], x[KERN_HEAD_MAX], Cq[KERN_HEAD_MAX];
    for (int64_t i = 0; i < D * (D + 1) / 2; i++) C[i] = 0;
    for (int64_t d = 0; d < D; d++) s[d] = 0;
    for (int64_t t = 0; t < T; t++) {
        const float *qt = q + t * ldq;
        double logit = b, sq = 0;
        for (int64_t d = 0; d < D; d++) {
            x[d] = (double)k[t * ldk + d] - (double)k[d];
            s[d] += x[d];
            logit += (double)w[d] * qt[d];
            sq += s[d] * qt[d];
            Cq[d] = 0;
        }
        for (int64_t i = 0; i < D; i++) {
            double *row = C + i * (i + 1) / 2, sum = 0;
            for (int64_t j = 0; j <= i; j++) row[j] += x[i] * x[j];
            for (int64_t j = 0; j < i; j++) {
                sum += row[j] * qt[j];
                Cq[j] += row[j] * qt[i];
            }
            Cq[i] += sum + row[i] * qt[i];
        }
        const double n = (double)(t + 1), lambda = 1 / (1 + exp(-logit));
        for (int64_t d = 0; d < D; d++)
            y[t * ldy + d] = (float)((double)qt[d] - lambda * (Cq[d] / n - s[d] / n * (sq / n)));
    }
}

void kern_ccq_read_ref(float *y, const float *q, const float *k, const float *w, const float *b, const int64_t *offsets,
                       int64_t P, int64_t Hq, int64_t Hk, int64_t D, int64_t ldy, int64_t ldq, int64_t ldk) {
    for (int64_t p = 0; p < P; p++)
        for (int64_t h = 0; h < Hq; h++) {
            const int64_t row = offsets[p];
            kern_ccq_head(y + row * ldy + h * D, q + row * ldq + h * D, k + row * ldk + h / (Hq / Hk) * D, w + h * D,
                          (double)b[h], offsets[p + 1] - row, D, ldy, ldq, ldk);
        }
}
