/* kernels/rmsnorm_cpu.c: root mean square norm, vectorised over a row, OpenMP over rows. */
#include "kernels/ops.h"

#include <math.h>

#include "kernels/simd.h"

enum { GRAIN = 1 << 14 }; /* elements worth a thread */

static void norm(float *y, const float *x, const float *w, int64_t C, double eps) {
    enum { LANES = 4 * KERN_V };
    kern_vec s0 = kern_splat(0), s1 = s0, s2 = s0, s3 = s0;
    int64_t c = 0;
    for (; c + LANES <= C; c += LANES) {
        kern_vec a = kern_load(x + c), b = kern_load(x + c + KERN_V);
        kern_vec d = kern_load(x + c + 2 * KERN_V), e = kern_load(x + c + 3 * KERN_V);
        s0 += a * a;
        s1 += b * b;
        s2 += d * d;
        s3 += e * e;
    }
    double sum = kern_sum((s0 + s1) + (s2 + s3));
    for (; c < C; c++) sum += (double)x[c] * x[c];
    float factor = (float)(1 / sqrt(sum / (double)C + eps));
    for (c = 0; c < C; c++) y[c] = x[c] * factor * w[c];
}

void kern_rmsnorm_cpu(float *y, const float *x, const float *w, int64_t rows, int64_t C, int64_t ldy, int64_t ldx,
                      double eps) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) if (rows * C >= GRAIN) default(none)                                     \
    shared(y, x, w, rows, C, ldy, ldx, eps)
    for (int64_t t = 0; t < rows; t++) norm(y + t * ldy, x + t * ldx, w, C, eps);
}
