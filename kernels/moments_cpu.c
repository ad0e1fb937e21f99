/* kernels/moments_cpu.c: mean and covariance in one pass over the keys. A block of keys is widened to double and
 * shifted by the mean of the first block; its products go through a register tile of 8 x 16 sums, upper triangle only.
 * One call is one (head, basis) and runs on one thread; every sum has a fixed order. */
#include <math.h>
#include <string.h>

#include "kernels/ops.h"

#define BLOCK_ROWS 64
#define BLOCK_DOUBLES 8192
#define TILE_I 8
#define TILE_J 16
#define LANES 8

/* A vector type cannot be spelled without a typedef. may_alias and the alignment of one double: it reads plain arrays.
 */
typedef double vec __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));

/* sums[8][16] += y[:, i0..i0+8)^T y[:, j0..j0+16) over rows of width ld. */
static inline void tile_add(double sums[TILE_I][TILE_J], const double *y, int64_t rows, int64_t ld, int64_t i0,
                            int64_t j0) {
    vec acc[TILE_I][TILE_J / LANES];
    memcpy(acc, sums, sizeof(acc));
    for (int64_t t = 0; t < rows; t++) {
        const double *row = y + t * ld;
        const vec b0 = *(const vec *)(row + j0), b1 = *(const vec *)(row + j0 + LANES);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_I; i++) {
            acc[i][0] += row[i0 + i] * b0;
            acc[i][1] += row[i0 + i] * b1;
        }
    }
    memcpy(sums, acc, sizeof(acc));
}

void kern_moments_cpu(double *mu, double *cov, const float *x, const int32_t *rows, int64_t n, int64_t D,
                      int64_t token_stride) {
    _Alignas(64) double y[BLOCK_DOUBLES];
    double sum[KERN_GEOMETRY_D_MAX];
    if (n <= 0) {
        for (int64_t i = 0; i < D; i++) mu[i] = NAN;
        for (int64_t i = 0; i < D * D; i++) cov[i] = NAN;
        return;
    }
    const int64_t ld = (D + TILE_J - 1) / TILE_J * TILE_J; /* padding is zero: it adds nothing to any tile */
    const int64_t most = BLOCK_DOUBLES / ld < BLOCK_ROWS ? BLOCK_DOUBLES / ld : BLOCK_ROWS;
    memset(y, 0, sizeof(y));
    memset(cov, 0, (size_t)(D * D) * sizeof(*cov));
    for (int64_t i = 0; i < D; i++) mu[i] = sum[i] = 0;
    const int64_t first = n < most ? n : most;
    for (int64_t j = 0; j < first; j++) {
        const float *key = x + rows[j] * token_stride;
        for (int64_t i = 0; i < D; i++) mu[i] += key[i];
    }
    for (int64_t i = 0; i < D; i++) mu[i] /= (double)first;

    for (int64_t begin = 0; begin < n; begin += most) {
        const int64_t count = n - begin < most ? n - begin : most;
        for (int64_t j = 0; j < count; j++) {
            const float *key = x + rows[begin + j] * token_stride;
            double *row = y + j * ld;
            for (int64_t i = 0; i < D; i++) {
                row[i] = key[i] - mu[i];
                sum[i] += row[i];
            }
        }
        for (int64_t i0 = 0; i0 < D; i0 += TILE_I) {
            for (int64_t j0 = i0 / TILE_J * TILE_J; j0 < D; j0 += TILE_J) {
                _Alignas(64) double sums[TILE_I][TILE_J] = {{0}};
                const int64_t ni = D - i0 < TILE_I ? D - i0 : TILE_I, nj = D - j0 < TILE_J ? D - j0 : TILE_J;
                tile_add(sums, y, count, ld, i0, j0);
                for (int64_t i = 0; i < ni; i++)
                    for (int64_t j = 0; j < nj; j++) cov[(i0 + i) * D + j0 + j] += sums[i][j];
            }
        }
    }
    for (int64_t i = 0; i < D; i++) sum[i] /= (double)n;
    for (int64_t i = 0; i < D; i++) {
        for (int64_t j = i; j < D; j++) {
            const double value = cov[i * D + j] / (double)n - sum[i] * sum[j];
            cov[i * D + j] = cov[j * D + i] = value;
        }
    }
    for (int64_t i = 0; i < D; i++) mu[i] += sum[i];
}
