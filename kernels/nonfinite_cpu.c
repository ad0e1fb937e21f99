/* One pass over memory: a float is not finite exactly when all bits of its exponent are set. */
#include <string.h>

#include "kernels/ops.h"

static uint32_t row_is_bad(const float *x, int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad;
}

int64_t kern_nonfinite_cpu(const float *x, int64_t rows, int64_t n, int64_t ld) {
    int64_t first = rows;
#pragma omp parallel for default(none) shared(x, rows, n, ld) reduction(min                                            \
                                                                        : first) schedule(static)                      \
    num_threads((int)kern_threads()) if (rows * n > 65536)
    for (int64_t row = 0; row < rows; row++)
        if (row_is_bad(x + row * ld, n) && row < first) first = row;
    return first == rows ? -1 : first;
}
