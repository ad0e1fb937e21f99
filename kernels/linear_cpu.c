/* kernels/linear_cpu.c: y = x w^T + bias: one single-threaded sgemm a task (row tile x block of columns), OpenMP over the
 * tasks. The cut depends only on shapes and on where prompts begin, so bits depend neither on threads nor on packing. */
#include "kernels/ops.h"

#include <cblas.h>

enum { COLUMNS = 192 };

void kern_linear_cpu(float *y, const float *x, const float *w, const float *bias, const struct kern_tile *tiles,
                     int64_t n_tiles, int64_t N, int64_t K, int64_t ldy, int64_t ldx, bool accumulate)
{
    if (N <= 0) return;
    openblas_set_num_threads(1);
    const int64_t blocks = (N + COLUMNS - 1) / COLUMNS;
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) schedule(dynamic) default(none)                                         \
    shared(y, x, w, bias, tiles, n_tiles, N, K, ldy, ldx, accumulate, blocks)
    for (int64_t task = 0; task < n_tiles * blocks; task++) {
        /* Neighbouring tasks share a block of w. */
        const struct kern_tile *tile = &tiles[task % n_tiles];
        const int64_t n0 = task / n_tiles * COLUMNS, n = N - n0 < COLUMNS ? N - n0 : COLUMNS;
        float *to = y + tile->row * ldy + n0;
        if (K > 0)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)tile->rows, (blasint)n, (blasint)K, 1.0f,
                        x + tile->row * ldx, (blasint)ldx, w + n0 * K, (blasint)K, accumulate ? 1.0f : 0.0f, to,
                        (blasint)ldy);
        if (bias || (K == 0 && !accumulate))
            for (int64_t t = 0; t < tile->rows; t++)
                for (int64_t i = 0; i < n; i++)
                    to[t * ldy + i] = (K == 0 && !accumulate ? 0 : to[t * ldy + i]) + (bias ? bias[n0 + i] : 0);
    }
}
