/* kernels/ccq_read_cpu.c: the trained CCQ read, OpenMP over (prompt, query head); each is the recurrence of the
 * reference (a chunkwise form is for later). */
#include "kernels/ops.h"

void kern_ccq_read_cpu(float *y, const float *q, const float *k, const float *w, const float *b, const int64_t *offsets,
                       int64_t P, int64_t Hq, int64_t Hk, int64_t D, int64_t ldy, int64_t ldq, int64_t ldk) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) schedule(dynamic) default(none)                                          \
    shared(y, q, k, w, b, offsets, P, Hq, Hk, D, ldy, ldq, ldk)
    for (int64_t i = 0; i < P * Hq; i++) {
        const int64_t p = i / Hq, h = i % Hq, row = offsets[p];
        kern_ccq_head(y + row * ldy + h * D, q + row * ldq + h * D, k + row * ldk + h / (Hq / Hk) * D, w + h * D,
                      (double)b[h], offsets[p + 1] - row, D, ldy, ldq, ldk);
    }
}
