/* kernels/gla_ref.c: gated linear attention, one token after the other in double (spec/linear-models.md section 2). */
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

/* A block of the state's columns at a time: they do not know of one another. */
enum { COLUMNS = 16 };

static void head(float *out, const float *q, const float *k, const float *v, const float *g, int64_t T, int64_t D,
                 int64_t n, int64_t ldo, int64_t ldq, int64_t ldk, int64_t ldv, int64_t ldg, double scale) {
    double S[KERN_HEAD_MAX][COLUMNS] = {{0}};
    for (int64_t t = 0; t < T; t++) {
        double o[COLUMNS] = {0};
        for (int64_t d = 0; d < D; d++) {
            double gate = g ? (double)g[t * ldg + d] : 0,
                   decay = exp(gate < KERN_LOG_GATE_MIN ? KERN_LOG_GATE_MIN : gate);
            for (int64_t i = 0; i < n; i++) {
                S[d][i] = decay * S[d][i] + (double)k[t * ldk + d] * v[t * ldv + i];
                o[i] += S[d][i] * q[t * ldq + d];
            }
        }
        for (int64_t i = 0; i < n; i++) out[t * ldo + i] = (float)(scale * o[i]);
    }
}

void kern_gla_ref(float *out, const float *q, const float *k, const float *v, const float *g, const int64_t *offsets,
                  int64_t P, int64_t Hq, int64_t Hk, int64_t D, int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk,
                  int64_t ldv, int64_t ldg, double scale) {
    for (int64_t p = 0; p < P; p++)
        for (int64_t h = 0; h < Hq; h++)
            for (int64_t c = 0; c < Dv; c += COLUMNS) {
                const int64_t row = offsets[p], kh = h / (Hq / Hk);
                head(out + row * ldo + h * Dv + c, q + row * ldq + h * D, k + row * ldk + kh * D,
                     v + row * ldv + kh * Dv + c, g ? g + row * ldg + kh * D : NULL, offsets[p + 1] - row, D,
                     Dv - c < COLUMNS ? Dv - c : COLUMNS, ldo, ldq, ldk, ldv, ldg, scale);
            }
}
