#include <math.h>

#include "kernels/ops.h"

int64_t kern_nonfinite_ref(const float *x, int64_t rows, int64_t n, int64_t ld) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < n; i++)
            if (!isfinite(x[row * ld + i])) return row;
    return -1;
}
