/* kernels/chunk.h: what the chunkwise forms share: padded copies of rows, and a small product in registers. */
#ifndef AG_KERNELS_CHUNK_H
#define AG_KERNELS_CHUNK_H

#include <stdbool.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/simd.h"

static inline int64_t chunk_padded(int64_t n) { return (n + KERN_V - 1) / KERN_V * KERN_V; }

/* to (rows, ld) = n columns of from, zeros behind them. */
static inline void chunk_copy(float *to, int64_t ld, const float *from, int64_t rows, int64_t n, int64_t ld_from) {
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + i * ld, from + i * ld_from, (size_t)n * sizeof *to);
        memset(to + i * ld + n, 0, (size_t)(ld - n) * sizeof *to);
    }
}

enum { CHUNK_ROWS = 4 };

static inline __attribute__((always_inline)) void chunk_strip(float *y, int64_t ldy, const float *x, int64_t ldx,
                                                              const float *b, int64_t ldb, int64_t rows, int64_t inner,
                                                              bool add, const int vectors) {
    for (int64_t r0 = 0; r0 < rows; r0 += CHUNK_ROWS) {
        const float *row[CHUNK_ROWS];
        kern_vec sum[CHUNK_ROWS][2];
#pragma GCC unroll 4
        for (int r = 0; r < CHUNK_ROWS; r++) {
            row[r] = x + (r0 + r < rows ? r0 + r : rows - 1) * ldx;
#pragma GCC unroll 2
            for (int c = 0; c < vectors; c++)
                sum[r][c] = add && r0 + r < rows ? kern_load(y + (r0 + r) * ldy + c * KERN_V) : kern_splat(0);
        }
        for (int64_t k = 0; k < inner; k++) {
            kern_vec v[2];
#pragma GCC unroll 2
            for (int c = 0; c < vectors; c++) v[c] = kern_load(b + k * ldb + c * KERN_V);
#pragma GCC unroll 4
            for (int r = 0; r < CHUNK_ROWS; r++)
#pragma GCC unroll 2
                for (int c = 0; c < vectors; c++) sum[r][c] += row[r][k] * v[c];
        }
#pragma GCC unroll 4
        for (int r = 0; r < CHUNK_ROWS; r++)
            if (r0 + r < rows)
#pragma GCC unroll 2
                for (int c = 0; c < vectors; c++) kern_store(y + (r0 + r) * ldy + c * KERN_V, sum[r][c]);
    }
}

/* y (rows, n) = or += x (rows, inner) b (inner, n), n a multiple of KERN_V; every sum in the order of its terms. */
static inline void chunk_multiply(float *y, int64_t ldy, const float *x, int64_t ldx, const float *b, int64_t ldb,
                                  int64_t rows, int64_t inner, int64_t n, bool add) {
    int64_t c = 0;
    for (; c + 2 * KERN_V <= n; c += 2 * KERN_V) chunk_strip(y + c, ldy, x, ldx, b + c, ldb, rows, inner, add, 2);
    if (c < n) chunk_strip(y + c, ldy, x, ldx, b + c, ldb, rows, inner, add, 1);
}

static inline float chunk_dot(const float *a, const float *b, int64_t n) {
    kern_vec sum = kern_splat(0);
    for (int64_t d = 0; d < n; d += KERN_V) sum += kern_load(a + d) * kern_load(b + d);
    return kern_sum(sum);
}

/* to = 2^(a - b), n a multiple of KERN_V; the difference is made in double and must not be positive. */
static inline void chunk_decays(float *to, const double *a, const double *b, int64_t n) {
    for (int64_t d = 0; d < n; d++) to[d] = (float)(a[d] - b[d]);
    for (int64_t d = 0; d < n; d += KERN_V) kern_store(to + d, kern_exp2(kern_load(to + d)));
}

#endif
