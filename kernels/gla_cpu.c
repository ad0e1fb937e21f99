/* kernels/gla_cpu.c: gated linear attention chunk by chunk (spec/linear-models.md section 2). A chunk is as long as the
 * sub-chunks of other implementations, 16 tokens: inside it every weight e^{b_i - b_j} is formed as such, so no
 * exponent is ever positive; between chunks everything goes through the state, which costs the same for any length of
 * chunk. Sums of log gates are kept in double (as binary logarithms). OpenMP over (prompt, key head). */
#include "kernels/ops.h"

#include "kernels/chunk.h"

enum { CHUNK = 16 };

struct work {
    float S[KERN_HEAD_MAX * KERN_HEAD_MAX];                   /* (D, ldv) */
    double b[(CHUNK + 1) * KERN_HEAD_MAX];                    /* row i + 1: through token i; row 0: 0 */
    float q[CHUNK * KERN_HEAD_MAX], k[CHUNK * KERN_HEAD_MAX]; /* (n, ldd) as they are */
    float x[CHUNK * KERN_HEAD_MAX];                           /* q or k with their decays */
    float kt[KERN_HEAD_MAX * CHUNK];                          /* (D, CHUNK) decayed keys, transposed */
    float v[CHUNK * KERN_HEAD_MAX], o[CHUNK * KERN_HEAD_MAX]; /* (n, ldv) */
    float A[CHUNK * CHUNK], decay[KERN_HEAD_MAX];
};

/* The n tokens at the pointers, for one key head and its G query heads. */
static void chunk(struct work *w, float *out, const float *q, const float *k, const float *v, const float *g, int64_t n,
                  int64_t G, int64_t D, int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk, int64_t ldv, int64_t ldg,
                  float scale) {
    const int64_t wd = chunk_padded(D), wv = chunk_padded(Dv);
    chunk_copy(w->k, wd, k, n, D, ldk);
    chunk_copy(w->v, wv, v, n, Dv, ldv);
    if (g)
        for (int64_t i = 0; i < n; i++)
            for (int64_t d = 0; d < D; d++) {
                double gate = g[i * ldg + d];
                w->b[(i + 1) * wd + d] =
                    w->b[i * wd + d] + (gate < KERN_LOG_GATE_MIN ? KERN_LOG_GATE_MIN : gate) * M_LOG2E;
            }
    for (int64_t a = 0; a < G; a++) {
        chunk_copy(w->q, wd, q + a * D, n, D, ldq);
        for (int64_t i = 0; i < n; i++) {
            const float *qi = w->q + i * wd;
            if (g) chunk_decays(w->decay, w->b + (i + 1) * wd, w->b, wd);
            for (int64_t d = 0; d < wd; d++) w->x[i * wd + d] = g ? qi[d] * w->decay[d] : qi[d];
            for (int64_t j = 0; j < n; j++) {
                const float *kj = w->k + j * wd;
                if (j > i) {
                    w->A[i * CHUNK + j] = 0;
                } else if (!g || j == i) {
                    w->A[i * CHUNK + j] = chunk_dot(qi, kj, wd);
                } else {
                    chunk_decays(w->decay, w->b + (i + 1) * wd, w->b + (j + 1) * wd, wd);
                    for (int64_t d = 0; d < wd; d++) w->decay[d] *= kj[d];
                    w->A[i * CHUNK + j] = chunk_dot(qi, w->decay, wd);
                }
            }
        }
        chunk_multiply(w->o, wv, w->x, wd, w->S, wv, n, D, wv, false);
        chunk_multiply(w->o, wv, w->A, CHUNK, w->v, wv, n, n, wv, true);
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < Dv; c++) out[i * ldo + a * Dv + c] = scale * w->o[i * wv + c];
    }
    for (int64_t j = 0; j < n; j++) {
        if (g) chunk_decays(w->decay, w->b + n * wd, w->b + (j + 1) * wd, wd);
        for (int64_t d = 0; d < D; d++) w->kt[d * CHUNK + j] = g ? w->k[j * wd + d] * w->decay[d] : w->k[j * wd + d];
    }
    if (g) {
        chunk_decays(w->decay, w->b + n * wd, w->b, wd);
        for (int64_t d = 0; d < D; d++)
            for (int64_t c = 0; c < wv; c++) w->S[d * wv + c] *= w->decay[d];
    }
    chunk_multiply(w->S, wv, w->kt, CHUNK, w->v, wv, D, n, wv, true);
}

void kern_gla_cpu(float *out, const float *q, const float *k, const float *v, const float *g, const int64_t *offsets,
                  int64_t P, int64_t Hq, int64_t Hk, int64_t D, int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk,
                  int64_t ldv, int64_t ldg, double scale) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) schedule(dynamic) default(none)                                          \
    shared(out, q, k, v, g, offsets, P, Hq, Hk, D, Dv, ldo, ldq, ldk, ldv, ldg, scale)
    for (int64_t task = 0; task < P * Hk; task++) {
        struct work w;
        const int64_t p = task / Hk, h = task % Hk, G = Hq / Hk;
        memset(w.S, 0, (size_t)(D * chunk_padded(Dv)) * sizeof *w.S);
        memset(w.b, 0, (size_t)((CHUNK + 1) * chunk_padded(D)) * sizeof *w.b);
        for (int64_t t = offsets[p]; t < offsets[p + 1]; t += CHUNK)
            chunk(&w, out + t * ldo + h * G * Dv, q + t * ldq + h * G * D, k + t * ldk + h * D, v + t * ldv + h * Dv,
                  g ? g + t * ldg + h * D : NULL, offsets[p + 1] - t < CHUNK ? offsets[p + 1] - t : CHUNK, G, D, Dv,
                  ldo, ldq, ldk, ldv, ldg, (float)scale);
    }
}
