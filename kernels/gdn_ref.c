/* kernels/gdn_ref.c: the (gated) delta rule, one token after the other in double (spec/linear-models.md section 3). */
#include "kernels/ops.h"

#include <math.h>

enum { COLUMNS = 16 };

static void head(float *out, const float *q, const float *k, const float *v, const float *g, const float *beta,
                 int64_t T, int64_t D, int64_t n, int64_t ldo, int64_t ldq, int64_t ldk, int64_t ldv, int64_t ldg,
                 int64_t ldb, double scale, double beta_factor) {
    double S[KERN_HEAD_MAX][COLUMNS] = {{0}};
    for (int64_t t = 0; t < T; t++) {
        double u[COLUMNS], o[COLUMNS] = {0}, gate = g ? (double)g[t * ldg] : 0;
        const double decay = exp(gate < KERN_LOG_GATE_MIN ? KERN_LOG_GATE_MIN : gate);
        const double strength = beta_factor * (beta ? (double)beta[t * ldb] : 1);
        for (int64_t i = 0; i < n; i++) u[i] = v[t * ldv + i];
        for (int64_t d = 0; d < D; d++)
            for (int64_t i = 0; i < n; i++) {
                S[d][i] *= decay;
                u[i] -= S[d][i] * k[t * ldk + d];
            }
        for (int64_t d = 0; d < D; d++)
            for (int64_t i = 0; i < n; i++) {
                S[d][i] += (double)k[t * ldk + d] * strength * u[i];
                o[i] += S[d][i] * q[t * ldq + d];
            }
        for (int64_t i = 0; i < n; i++) out[t * ldo + i] = (float)(scale * o[i]);
    }
}

void kern_gdn_ref(float *out, const float *q, const float *k, const float *v, const float *g, const float *beta,
                  const int64_t *offsets, int64_t P, int64_t H, int64_t Hv, int64_t D, int64_t Dv, int64_t ldo,
                  int64_t ldq, int64_t ldk, int64_t ldv, int64_t ldg, int64_t ldb, double scale, double beta_factor) {
    for (int64_t p = 0; p < P; p++)
        for (int64_t h = 0; h < Hv; h++)
            for (int64_t c = 0; c < Dv; c += COLUMNS) {
                const int64_t row = offsets[p], kh = h / (Hv / H);
                head(out + row * ldo + h * Dv + c, q + row * ldq + kh * D, k + row * ldk + kh * D,
                     v + row * ldv + h * Dv + c, g ? g + row * ldg + h : NULL, beta ? beta + row * ldb + h : NULL,
                     offsets[p + 1] - row, D, Dv - c < COLUMNS ? Dv - c : COLUMNS, ldo, ldq, ldk, ldv, ldg, ldb, scale,
                     beta_factor);
            }
}
