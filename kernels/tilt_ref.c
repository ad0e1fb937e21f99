/* kernels/tilt_ref.c: reference. Two passes in long double. */
#include <float.h>
#include <math.h>

#include "kernels/ops.h"

void kern_tilt_ref(struct kern_tilt *out, const double *x, int64_t n, double s) {
    const double u = DBL_EPSILON / 2;
    long double top = -INFINITY, weight = 0, first = 0, second = 0;
    for (int64_t j = 0; j < n; j++) top = fmaxl(top, (long double)s * x[j]);
    for (int64_t j = 0; j < n; j++) {
        long double e = expl((long double)s * x[j] - top);
        weight += e;
        first += e * x[j];
    }
    long double mean = first / weight, widest = 0;
    for (int64_t j = 0; j < n; j++) {
        long double y = x[j] - mean;
        second += expl((long double)s * x[j] - top) * y * y;
        widest = fmaxl(widest, fabsl(x[j]));
    }
    out->K = (double)(top + logl(weight / (long double)n));
    out->mean = (double)mean;
    out->variance = (double)(second / weight);
    /* long double carries 11 bits more: n additions, the exponential and s x stay below u for n < 2000 and grow by u / 2048 a
     * key; the rounding to double is u */
    double grow = 1 + (double)n / 2048;
    out->dK = u * grow * (2 + 2 * fabs(out->K) + fabs(s) * (double)widest);
    out->dmean = u * grow * 4 * (double)widest;
    out->dvariance = u * grow * 4 * (out->variance + (double)(widest * widest) * u);
}
