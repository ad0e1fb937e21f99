/* kernels/gdn_cpu.c: the (gated) delta rule chunk by chunk (spec/linear-models.md section 3). With R = U - W S = T
 * diag(beta) (V - diag(e^b) K S), the corrected values are found by forward substitution on that right-hand side, and
 * neither T, U nor W is formed. Sums of log gates are kept in double; no exponent is positive. OpenMP over (prompt,
 * value head). */
#include "kernels/ops.h"

#include "kernels/chunk.h"

enum { CHUNK = 32 };

struct work {
    float S[KERN_HEAD_MAX * KERN_HEAD_MAX];                   /* (D, ldv) */
    float q[CHUNK * KERN_HEAD_MAX], k[CHUNK * KERN_HEAD_MAX]; /* (n, D) */
    float kt[KERN_HEAD_MAX * CHUNK];                          /* (D, CHUNK) keys transposed */
    float R[CHUNK * KERN_HEAD_MAX], o[CHUNK * KERN_HEAD_MAX]; /* (n, ldv) */
    float A[CHUNK * CHUNK];
    double b[CHUNK];                         /* inclusive sums of log gates, binary */
    float decay[CHUNK * CHUNK], past[CHUNK]; /* e^{b_i - b_j} for j <= i, else 0; e^{b_i} */
};

static void chunk(struct work *w, float *out, const float *q, const float *k, const float *v, const float *g,
                  const float *beta, int64_t n, int64_t D, int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk,
                  int64_t ldv, int64_t ldg, int64_t ldb, float scale, float beta_factor) {
    const int64_t wv = chunk_padded(Dv);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double gate = g ? (double)g[i * ldg] : 0;
        w->b[i] = sum += (gate < KERN_LOG_GATE_MIN ? KERN_LOG_GATE_MIN : gate) * M_LOG2E;
        w->past[i] = (float)sum;
    }
    for (int64_t i = 0; i < n; i++) {
        float *row = w->decay + i * CHUNK;
        for (int64_t j = 0; j < CHUNK; j++) row[j] = j <= i ? (float)(w->b[i] - w->b[j]) : -INFINITY;
        for (int64_t j = 0; j < CHUNK; j += KERN_V) kern_store(row + j, kern_exp2(kern_load(row + j)));
    }
    for (int64_t i = n; i < CHUNK; i++) w->past[i] = 0;
    for (int64_t i = 0; i < CHUNK; i += KERN_V) kern_store(w->past + i, kern_exp2(kern_load(w->past + i)));
    chunk_copy(w->q, D, q, n, D, ldq);
    chunk_copy(w->k, D, k, n, D, ldk);
    for (int64_t d = 0; d < D; d++)
        for (int64_t j = 0; j < CHUNK; j++) w->kt[d * CHUNK + j] = j < n ? w->k[j * D + d] : 0;

    /* R_i = beta_i (v_i - e^{b_i} S^T k_i - sum_{j<i} e^{b_i - b_j} (k_i . k_j) R_j) */
    chunk_multiply(w->R, wv, w->k, D, w->S, wv, n, D, wv, false);
    chunk_multiply(w->A, CHUNK, w->k, D, w->kt, CHUNK, n, D, CHUNK, false);
    for (int64_t i = 0; i < n; i++) {
        const float strength = beta_factor * (beta ? beta[i * ldb] : 1), decay = w->past[i];
        float *r = w->R + i * wv;
        for (int64_t c = 0; c < Dv; c++) r[c] = v[i * ldv + c] - decay * r[c];
        for (int64_t j = 0; j < i; j++) {
            const float a = w->A[i * CHUNK + j] * w->decay[i * CHUNK + j], *rj = w->R + j * wv;
            for (int64_t c = 0; c < wv; c++) r[c] -= a * rj[c];
        }
        for (int64_t c = 0; c < wv; c++) r[c] *= strength;
    }
    /* o_i = scale (e^{b_i} S^T q_i + sum_{j<=i} e^{b_i - b_j} (q_i . k_j) R_j) */
    chunk_multiply(w->o, wv, w->q, D, w->S, wv, n, D, wv, false);
    chunk_multiply(w->A, CHUNK, w->q, D, w->kt, CHUNK, n, D, CHUNK, false);
    for (int64_t i = 0; i < n; i++) {
        const float decay = w->past[i];
        for (int64_t c = 0; c < wv; c++) w->o[i * wv + c] *= decay;
        for (int64_t j = 0; j < CHUNK; j++) w->A[i * CHUNK + j] *= w->decay[i * CHUNK + j];
    }
    chunk_multiply(w->o, wv, w->A, CHUNK, w->R, wv, n, n, wv, true);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < Dv; c++) out[i * ldo + c] = scale * w->o[i * wv + c];
    /* S = e^{b_n} S + sum_j e^{b_n - b_j} k_j R_j^T */
    const float decay = w->past[n - 1], *left = w->decay + (n - 1) * CHUNK;
    for (int64_t i = 0; i < D * wv; i++) w->S[i] *= decay;
    for (int64_t d = 0; d < D; d++)
        for (int64_t j = 0; j < CHUNK; j++) w->kt[d * CHUNK + j] *= left[j];
    chunk_multiply(w->S, wv, w->kt, CHUNK, w->R, wv, D, n, wv, true);
}

void kern_gdn_cpu(float *out, const float *q, const float *k, const float *v, const float *g, const float *beta,
                  const int64_t *offsets, int64_t P, int64_t H, int64_t Hv, int64_t D, int64_t Dv, int64_t ldo,
                  int64_t ldq, int64_t ldk, int64_t ldv, int64_t ldg, int64_t ldb, double scale, double beta_factor) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) schedule(dynamic) default(none)                                          \
    shared(out, q, k, v, g, beta, offsets, P, H, Hv, D, Dv, ldo, ldq, ldk, ldv, ldg, ldb, scale, beta_factor)
    for (int64_t task = 0; task < P * Hv; task++) {
        struct work w;
        const int64_t p = task / Hv, h = task % Hv, kh = h / (Hv / H);
        memset(w.S, 0, (size_t)(D * chunk_padded(Dv)) * sizeof *w.S);
        for (int64_t t = offsets[p]; t < offsets[p + 1]; t += CHUNK)
            chunk(&w, out + t * ldo + h * Dv, q + t * ldq + kh * D, k + t * ldk + kh * D, v + t * ldv + h * Dv,
                  g ? g + t * ldg + h : NULL, beta ? beta + t * ldb + h : NULL,
                  offsets[p + 1] - t < CHUNK ? offsets[p + 1] - t : CHUNK, D, Dv, ldo, ldq, ldk, ldv, ldg, ldb,
                  (float)scale, (float)beta_factor);
    }
}
