/* kernels/rmsnorm_ref.c: root mean square norm, plain. */
#include "kernels/ops.h"

#include <math.h>

void kern_rmsnorm_ref(float *y, const float *x, const float *w, int64_t rows, int64_t C, int64_t ldy, int64_t ldx,
                      double eps) {
    for (int64_t t = 0; t < rows; t++) {
        double sum = 0;
        for (int64_t c = 0; c < C; c++) sum += (double)x[t * ldx + c] * x[t * ldx + c];
        double factor = 1 / sqrt(sum / (double)C + eps);
        for (int64_t c = 0; c < C; c++) y[t * ldy + c] = (float)(x[t * ldx + c] * factor * w[c]);
    }
}
