/* kernels/linear_ref.c: y = x w^T + bias, plain. */
#include "kernels/ops.h"

void kern_linear_ref(float *y, const float *x, const float *w, const float *bias, const struct kern_tile *tiles,
                     int64_t n_tiles, int64_t N, int64_t K, int64_t ldy, int64_t ldx, bool accumulate) {
    for (int64_t i = 0; i < n_tiles; i++)
        for (int64_t t = tiles[i].row; t < tiles[i].row + tiles[i].rows; t++)
            for (int64_t n = 0; n < N; n++) {
                double sum = accumulate ? y[t * ldy + n] : 0;
                for (int64_t c = 0; c < K; c++) sum += (double)x[t * ldx + c] * w[n * K + c];
                y[t * ldy + n] = (float)(sum + (bias ? bias[n] : 0));
            }
}
