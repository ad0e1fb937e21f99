/* kernels/align_cpu.c: alignment energies. Eight keys against sixteen eigenvectors at a time, in registers; one call
 * runs on one thread and every sum has a fixed order, whatever T is. */
#include <string.h>

#include "kernels/ops.h"

#define KEYS 8
#define VECTORS 16
#define LANES 8

typedef double vec __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));

/* inside[8] += squared projections of y (8, D) on the 16 columns of u (D, 16). */
static inline void project(double inside[KEYS], const double *y, const double *u, int64_t D) {
    vec acc[KEYS][VECTORS / LANES];
    memset(acc, 0, sizeof(acc));
    for (int64_t i = 0; i < D; i++) {
        const vec u0 = *(const vec *)(u + i * VECTORS), u1 = *(const vec *)(u + i * VECTORS + LANES);
#pragma GCC unroll 8
        for (int j = 0; j < KEYS; j++) {
            acc[j][0] += y[j * D + i] * u0;
            acc[j][1] += y[j * D + i] * u1;
        }
    }
    for (int j = 0; j < KEYS; j++) {
        const vec square = acc[j][0] * acc[j][0] + acc[j][1] * acc[j][1];
        for (int k = 0; k < LANES; k++) inside[j] += square[k];
    }
}

void kern_align_cpu(double *inside, double *total, const float *x, const double *mu, const double *U, int64_t T,
                    int64_t D, int64_t r, int64_t token_stride) {
    _Alignas(64) double u[KERN_GEOMETRY_D_MAX * VECTORS];
    _Alignas(64) double y[KEYS * KERN_GEOMETRY_D_MAX];
    for (int64_t t = 0; t < T; t++) inside[t] = 0;
    for (int64_t k0 = 0; k0 < r || k0 == 0; k0 += VECTORS) {
        const int64_t vectors = r - k0 < VECTORS ? r - k0 : VECTORS;
        memset(u, 0, (size_t)(D * VECTORS) * sizeof(*u));
        for (int64_t k = 0; k < vectors; k++)
            for (int64_t i = 0; i < D; i++) u[i * VECTORS + k] = U[(k0 + k) * D + i];
        for (int64_t t = 0; t < T; t += KEYS) {
            const int64_t keys = T - t < KEYS ? T - t : KEYS;
            double sums[KEYS] = {0};
            for (int64_t j = 0; j < KEYS; j++) {
                const float *key = x + (t + (j < keys ? j : 0)) * token_stride; /* a short tile repeats its first key */
                for (int64_t i = 0; i < D; i++) y[j * D + i] = key[i] - mu[i];
            }
            project(sums, y, u, D);
            for (int64_t j = 0; j < keys; j++) inside[t + j] += sums[j];
            if (k0 > 0) continue;
            for (int64_t j = 0; j < keys; j++) {
                vec square = {0};
                double sum = 0;
                int64_t i = 0;
                for (; i + LANES <= D; i += LANES) {
                    const vec v = *(const vec *)(y + j * D + i);
                    square += v * v;
                }
                for (int k = 0; k < LANES; k++) sum += square[k];
                for (; i < D; i++) sum += y[j * D + i] * y[j * D + i];
                total[t + j] = sum;
            }
        }
    }
}
