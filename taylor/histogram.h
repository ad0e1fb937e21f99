/* taylor/histogram.h: counts on a fixed logarithmic grid. Integer counts merge exactly, in any order. 16 bins an octave from
 * 2^-40 to 2^24; bin 0 takes zero and what is below, the last what is above (infinity included). A quantile read from it is
 * right to half a bin, 2.2 %. */
#ifndef AG_TAYLOR_HISTOGRAM_H
#define AG_TAYLOR_HISTOGRAM_H

#include <stdint.h>

enum {
    TAYLOR_OCTAVE = 16,
    TAYLOR_LOWEST = -40,
    TAYLOR_HIGHEST = 24,
    TAYLOR_BINS = (TAYLOR_HIGHEST - TAYLOR_LOWEST) * TAYLOR_OCTAVE + 2
};

/* The bin of |x|; x must not be NaN. */
int taylor_bin(double x);
/* Geometric middle of a bin; 0 for the first, infinity for the last. */
double taylor_bin_value(int bin);

/* Quantile p in (0, 1) of counts (2, TAYLOR_BINS): negative values first, positive second; NaN when empty. The value at rank
 * ceil(p n), as the middle of its bin. */
double taylor_quantile(const int64_t *counts, double p);

/* Bins of the density map: 2 an octave from 2^-20, TAYLOR_DENSITY of them, the ends taking what is beyond. */
enum { TAYLOR_DENSITY = 80, TAYLOR_DENSITY_LOWEST = -20 };
int taylor_density_bin(double x);

#endif
