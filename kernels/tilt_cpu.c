/* kernels/tilt_cpu.c: the tilted law in one pass over the logits, vector lanes along the keys (x is contiguous here). Exponents
 * are kept as in logit_moments_cpu.c, the centre is the caller's business: y = x - x_max, which the weights favour.
 * u = 2^-53. */
#include <float.h>
#include <math.h>

#include "kernels/ops.h"
#include "kernels/simd_double.h"

typedef double unaligned __attribute__((vector_size(KERN_DV * 8), aligned(8), may_alias));

enum { BLOCK = 64 * KERN_DV };

static double lanes(kern_dvec v) {
    double sum = 0;
    for (int i = 0; i < KERN_DV; i++) sum += v[i];
    return sum;
}

void kern_tilt_cpu(struct kern_tilt *out, const double *x, int64_t n, double s) {
    const double u = DBL_EPSILON / 2;
    double a = x[0], b = x[0];
    kern_dvec least[2] = {kern_dsplat(a), kern_dsplat(a)}, most[2] = {kern_dsplat(a), kern_dsplat(a)};
    int64_t begin = 0;
    for (; begin + 2 * KERN_DV <= n; begin += 2 * KERN_DV)
        for (int i = 0; i < 2; i++) {
            const kern_dvec v = *(const unaligned *)(x + begin + i * KERN_DV);
            least[i] = kern_smaller(v, least[i]);
            most[i] = kern_larger(v, most[i]);
        }
    for (int i = 0; i < 2 * KERN_DV; i++) {
        a = fmin(a, least[i / KERN_DV][i % KERN_DV]);
        b = fmax(b, most[i / KERN_DV][i % KERN_DV]);
    }
    for (int64_t j = begin; j < n; j++) {
        a = x[j] < a ? x[j] : a;
        b = x[j] > b ? x[j] : b;
    }
    const double top = s >= 0 ? b : a; /* s x is largest there */
    const double shift = s * top;
    double e0 = 0, e1 = 0, e2 = 0;
    for (int64_t from = 0; from < n; from += BLOCK) {
        int64_t many = n - from < BLOCK ? n - from : BLOCK, whole = many / KERN_DV * KERN_DV;
        kern_dvec w0 = kern_dsplat(0), w1 = w0, w2 = w0;
        for (int64_t j = 0; j < many; j += KERN_DV) {
            kern_dvec v = kern_dsplat(top), k;
            kern_divec real = (kern_divec)(v == v);
            if (j < whole)
                v = *(const unaligned *)(x + from + j);
            else
                for (int i = 0; i < KERN_DV; i++) {
                    if (j + i < many)
                        v[i] = x[from + j + i];
                    else
                        real[i] = 0;
                }
            kern_dvec y = v - top, p = kern_dexp(s * v - shift, &k);
            p = kern_choose(real, p * kern_dpow2(k), kern_dsplat(0));
            w0 += p;
            w1 += p * y;
            w2 += p * y * y;
        }
        e0 += lanes(w0);
        e1 += lanes(w1);
        e2 += lanes(w2);
    }
    double d = e1 / e0, q2 = e2 / e0, v = fmax(q2 - d * d, 0);
    out->K = shift + log(e0 / (double)n);
    out->mean = top + d;
    out->variance = v;
    /* The exponent s v - shift is off by 3u |s| w where w = max |x|: the weights by that much relative, besides 5u. A sum's
     * terms of one sign: 64 + KERN_DV + n / BLOCK additions. K: that of e0, the logarithm, the additions. mean: twice (numerator
     * and denominator) on |d|. variance: on q2 and on d^2. */
    double w = fmax(fabs(a), fabs(b)), relative = u * (64 + KERN_DV + (double)(n / BLOCK) + 8 + 3 * fabs(s) * w);
    out->dK = (relative + u * (4 + 2 * fabs(shift) + 2 * fabs(out->K))) * (1 + 64 * u);
    out->dmean = (2 * relative * fabs(d) + u * (4 * fabs(d) + 2 * fabs(out->mean))) * (1 + 64 * u);
    out->dvariance = (2 * relative * (q2 + 2 * d * d) + u * (6 * q2 + 6 * d * d)) * (1 + 64 * u) + 1e-300;
}
