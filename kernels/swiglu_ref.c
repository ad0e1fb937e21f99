/* kernels/swiglu_ref.c: silu(gate) * up, plain. */
#include "kernels/ops.h"

#include <math.h>

void kern_swiglu_ref(float *y, const float *gate, const float *up, int64_t rows, int64_t F, int64_t ldy, int64_t ldg,
                     int64_t ldu) {
    for (int64_t t = 0; t < rows; t++)
        for (int64_t f = 0; f < F; f++) {
            double g = gate[t * ldg + f];
            y[t * ldy + f] = (float)(g / (1 + exp(-g)) * up[t * ldu + f]);
        }
}
