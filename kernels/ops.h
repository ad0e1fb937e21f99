/* kernels/ops.h: the implementations behind the tables of kernels.h, for backend.c and for tests. Contracts: kernels.h.
 */
#ifndef AG_KERNELS_OPS_H
#define AG_KERNELS_OPS_H

#include <stdint.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Geometry: the largest D of moments and align (their scratch is on the stack), and the non-zero info of eigh. */
#define KERN_GEOMETRY_D_MAX 1024
#define KERN_EIGH_NOT_CONVERGED 1
#define KERN_EIGH_NOT_FINITE 2 /* the matrix holds NaN or infinity: refused before the solver sees it */
#define KERN_EIGH_MEMORY 3

void kern_moments_ref(double *mu, double *cov, const float *x, const int32_t *rows, int64_t n, int64_t D,
                      int64_t token_stride);
void kern_moments_cpu(double *mu, double *cov, const float *x, const int32_t *rows, int64_t n, int64_t D,
                      int64_t token_stride);
void kern_align_ref(double *inside, double *total, const float *x, const double *mu, const double *U, int64_t T,
                    int64_t D, int64_t r, int64_t token_stride);
void kern_align_cpu(double *inside, double *total, const float *x, const double *mu, const double *U, int64_t T,
                    int64_t D, int64_t r, int64_t token_stride);
void kern_eigh_ref(double *w, double *a, int *info, int64_t n, int64_t D);
void kern_eigh_cpu(double *w, double *a, int *info, int64_t n, int64_t D);
/* The sign rule of both: the component of largest magnitude (the first of equals) of each row of a (D, D) is positive.
 */
void kern_eigh_signs(double *a, int64_t D);

#ifdef __cplusplus
}
#endif
#endif
