/* kernels/swiglu_cpu.c: silu(gate) * up, vectorised over a row, OpenMP over rows. */
#include "kernels/ops.h"

#include "kernels/simd.h"

enum { GRAIN = 1 << 13 }; /* elements worth a thread */

/* g / (1 + e^-g) u; e^-g overflows to infinity, and the quotient vanishes, as in the plain version. */
static kern_vec gated(kern_vec g, kern_vec u) {
    kern_vec x = -(kern_max(kern_splat(-88.8f), g) * (float)M_LOG2E);
    return g / (kern_exp2(x) + 1.0f) * u;
}

static void row(float *y, const float *gate, const float *up, int64_t F) {
    int64_t f = 0;
    for (; f + KERN_V <= F; f += KERN_V) kern_store(y + f, gated(kern_load(gate + f), kern_load(up + f)));
    if (f < F) {
        kern_vec g = kern_splat(0), u = g;
        for (int64_t i = f; i < F; i++) g[i - f] = gate[i], u[i - f] = up[i];
        g = gated(g, u);
        for (int64_t i = f; i < F; i++) y[i] = g[i - f];
    }
}

void kern_swiglu_cpu(float *y, const float *gate, const float *up, int64_t rows, int64_t F, int64_t ldy, int64_t ldg,
                     int64_t ldu) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) if (rows * F >= GRAIN) default(none)                                     \
    shared(y, gate, up, rows, F, ldy, ldg, ldu)
    for (int64_t t = 0; t < rows; t++) row(y + t * ldy, gate + t * ldg, up + t * ldu, F);
}
