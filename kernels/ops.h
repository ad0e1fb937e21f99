/* kernels/ops.h: the implementations behind the tables of kernels.h, for backend.c and for tests. Contracts: kernels.h.
 */
#ifndef AG_KERNELS_OPS_H
#define AG_KERNELS_OPS_H

#include <stdint.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stored types to f32. */
void kern_dequant_ref(float *y, const void *blocks, enum kern_dtype dtype, int64_t rows, int64_t D);
void kern_dequant_cpu(float *y, const void *blocks, enum kern_dtype dtype, int64_t rows, int64_t D);

/* Forward pass. */
#define KERN_DECLARE(suffix)                                                                                           \
    void kern_linear_##suffix(float *y, const float *x, const float *w, const float *bias,                             \
                              const struct kern_tile *tiles, int64_t n_tiles, int64_t N, int64_t K, int64_t ldy,       \
                              int64_t ldx, bool accumulate);                                                           \
    void kern_rmsnorm_##suffix(float *y, const float *x, const float *w, int64_t rows, int64_t C, int64_t ldy,         \
                               int64_t ldx, double eps);                                                               \
    void kern_rope_##suffix(float *y, const float *x, const int32_t *position, const float *inv_freq, int64_t T,       \
                            int64_t heads, int64_t D, int64_t n_rot, int64_t ldy, int64_t ldx,                         \
                            float attention_scaling);                                                                  \
    void kern_attention_##suffix(float *out, const float *q, const float *k, const float *v, const int64_t *offsets,   \
                                 int64_t P, int64_t Hq, int64_t Hk, int64_t D, int64_t Dv, int64_t ldo, int64_t ldq,   \
                                 int64_t ldk, int64_t ldv, double scale, int64_t window);                              \
    void kern_swiglu_##suffix(float *y, const float *gate, const float *up, int64_t rows, int64_t F, int64_t ldy,      \
                              int64_t ldg, int64_t ldu);                                                               \
    void kern_nll_##suffix(double *nll, int32_t *argmax, const float *logits, const int32_t *target, int64_t rows,     \
                           int64_t V);
KERN_DECLARE(ref)
KERN_DECLARE(cpu)
#undef KERN_DECLARE

/* Linear attention. */
#define KERN_DECLARE(suffix)                                                                                           \
    void kern_shortconv_##suffix(float *y, const float *x, const float *w, const int64_t *offsets, int64_t P,          \
                                 int64_t C, int64_t W, int64_t ldy, int64_t ldx, enum kern_map map);                   \
    void kern_map_##suffix(float *y, const float *x, int64_t rows, int64_t n, int64_t ldy, int64_t ldx,                \
                           enum kern_map map);                                                                         \
    void kern_unit_##suffix(float *y, const float *x, int64_t rows, int64_t D, int64_t ldy, int64_t ldx,               \
                            enum kern_unit unit, double eps);                                                          \
    void kern_log_gate_##suffix(float *y, const float *x, const float *bias, const float *decay, int64_t rows,         \
                                int64_t n, int64_t ldy, int64_t ldx, double divisor, double least);                    \
    void kern_gla_##suffix(float *out, const float *q, const float *k, const float *v, const float *g,                 \
                           const int64_t *offsets, int64_t P, int64_t Hq, int64_t Hk, int64_t D, int64_t Dv,           \
                           int64_t ldo, int64_t ldq, int64_t ldk, int64_t ldv, int64_t ldg, double scale);             \
    void kern_gdn_##suffix(float *out, const float *q, const float *k, const float *v, const float *g,                 \
                           const float *beta, const int64_t *offsets, int64_t P, int64_t H, int64_t Hv, int64_t D,     \
                           int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk, int64_t ldv, int64_t ldg, int64_t ldb,   \
                           double scale, double beta_factor);                                                          \
    void kern_ccq_read_##suffix(float *y, const float *q, const float *k, const float *w, const float *b,              \
                                const int64_t *offsets, int64_t P, int64_t Hq, int64_t Hk, int64_t D, int64_t ldy,     \
                                int64_t ldq, int64_t ldk);
KERN_DECLARE(ref)
KERN_DECLARE(cpu)
#undef KERN_DECLARE
/* One (prompt, query head) of ccq_read, for both tables: C (D, D) and s (D) are scratch. */
void kern_ccq_head(float *y, const float *q, const float *k, const float *w, double b, int64_t T, int64_t D,
                   int64_t ldy, int64_t ldq, int64_t ldk);

/* Log-partition. */
#define KERN_DECLARE(suffix)                                                                                           \
    void kern_logit_moments_##suffix(struct kern_logit_moments *out, const float *keys, const float *queries,          \
                                     int64_t T, int64_t Hq, int64_t Hk, int64_t D, int64_t key_head_stride,            \
                                     int64_t key_token_stride, int64_t query_head_stride, int64_t query_token_stride,  \
                                     double scale, int64_t window);                                                    \
    void kern_tilt_##suffix(struct kern_tilt *out, const double *x, int64_t n, double s);
KERN_DECLARE(ref)
KERN_DECLARE(cpu)
#undef KERN_DECLARE
/* Moments of n >= 1 finite logits, each within eta of its exact value: compensated, max-shifted. */
void kern_logit_moments_row(struct kern_logit_moments *out, const double *x, int64_t n, double eta);

/* The decision behind kern_blas_core_fix as a pure function: the OPENBLAS_CORETYPE to run with, NULL to leave things as
 * they are. detected: openblas_get_corename(); features: KERN_CPU_* bits of this processor; user: the variable's value
 * in the environment, NULL when unset (a user's choice is never overruled). */
#define KERN_CPU_AVX2 1U   /* AVX2 and FMA */
#define KERN_CPU_AVX512 2U /* AVX-512 F, DQ, BW, VL and CD */
#define KERN_CPU_INTEL 4U
const char *kern_blas_core_choose(const char *detected, unsigned features, const char *user);

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

int64_t kern_nonfinite_ref(const float *x, int64_t rows, int64_t n, int64_t ld);
int64_t kern_nonfinite_cpu(const float *x, int64_t rows, int64_t n, int64_t ld);

#ifdef __cplusplus
}
#endif
#endif
