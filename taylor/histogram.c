/* taylor/histogram.c: see histogram.h. */
#include "taylor/histogram.h"

#include <math.h>

/* floor(16 log2 x) from the exponent and a comparison with 2^(k/16): exact on every machine, unlike a logarithm. */
static int sixteenths(double x) {
    static const double root[TAYLOR_OCTAVE] = {1,
                                               0x1.0b5586cf9890fp+0,
                                               0x1.172b83c7d517bp+0,
                                               0x1.2387a6e756238p+0,
                                               0x1.306fe0a31b715p+0,
                                               0x1.3dea64c123422p+0,
                                               0x1.4bfdad5362a27p+0,
                                               0x1.5ab07dd485429p+0,
                                               0x1.6a09e667f3bcdp+0,
                                               0x1.7a11473eb0187p+0,
                                               0x1.8ace5422aa0dbp+0,
                                               0x1.9c49182a3f090p+0,
                                               0x1.ae89f995ad3adp+0,
                                               0x1.c199bdd85529cp+0,
                                               0x1.d5818dcfba487p+0,
                                               0x1.ea4afa2a490dap+0};
    int exponent, k = 0;
    double mantissa = 2 * frexp(x, &exponent); /* in [1, 2) */
    for (int step = TAYLOR_OCTAVE / 2; step > 0; step /= 2)
        if (mantissa >= root[k + step]) k += step;
    return (exponent - 1) * TAYLOR_OCTAVE + k;
}

int taylor_bin(double x) {
    x = fabs(x);
    if (x < ldexp(1, TAYLOR_LOWEST)) return 0;
    if (x >= ldexp(1, TAYLOR_HIGHEST)) return TAYLOR_BINS - 1;
    return sixteenths(x) - TAYLOR_LOWEST * TAYLOR_OCTAVE + 1;
}

double taylor_bin_value(int bin) {
    if (bin <= 0) return 0;
    if (bin >= TAYLOR_BINS - 1) return INFINITY;
    return exp2(TAYLOR_LOWEST + (bin - 0.5) / TAYLOR_OCTAVE);
}

double taylor_quantile(const int64_t *counts, double p) {
    const int64_t *negative = counts, *positive = counts + TAYLOR_BINS;
    int64_t n = 0, below = 0;
    for (int i = 0; i < 2 * TAYLOR_BINS; i++) n += counts[i];
    if (n == 0) return NAN;
    int64_t rank = (int64_t)ceil(p * (double)n);
    if (rank < 1) rank = 1;
    for (int i = TAYLOR_BINS - 1; i >= 0; i--)
        if ((below += negative[i]) >= rank) return -taylor_bin_value(i);
    for (int i = 0; i < TAYLOR_BINS; i++)
        if ((below += positive[i]) >= rank) return taylor_bin_value(i);
    return NAN;
}

int taylor_density_bin(double x) {
    if (!(x >= ldexp(1, TAYLOR_DENSITY_LOWEST))) return 0;
    if (x >= ldexp(1, TAYLOR_DENSITY_LOWEST + TAYLOR_DENSITY / 2)) return TAYLOR_DENSITY - 1;
    int bin = sixteenths(x) / (TAYLOR_OCTAVE / 2);
    if (sixteenths(x) < 0 && sixteenths(x) % (TAYLOR_OCTAVE / 2) != 0) bin--; /* towards minus infinity */
    return bin - 2 * TAYLOR_DENSITY_LOWEST;
}
