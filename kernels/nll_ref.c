/* kernels/nll_ref.c: negative log-likelihood and argmax of rows of logits, plain. */
#include "kernels/ops.h"

#include <math.h>

void kern_nll_ref(double *nll, int32_t *argmax, const float *logits, const int32_t *target, int64_t rows, int64_t V) {
    for (int64_t t = 0; t < rows; t++) {
        const float *x = logits + t * V;
        int64_t best = 0;
        for (int64_t i = 1; i < V; i++)
            if (x[i] > x[best]) best = i;
        double sum = 0;
        for (int64_t i = 0; i < V; i++) sum += exp((double)x[i] - x[best]);
        nll[t] = log(sum) + x[best] - x[target[t]];
        argmax[t] = (int32_t)best;
    }
}
