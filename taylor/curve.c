/* taylor/curve.c: see curve.h. */
#include "taylor/curve.h"

#include <float.h>
#include <math.h>

#include "kernels/ops.h"

#define U (DBL_EPSILON / 2)

/* With V = v / 2 > 0 and c = R + V > 0, R / (R + V) rises with R. In V it falls where R >= 0 and rises where R < 0. So
 * the upper end takes the upper R with the smaller V if R >= 0, else the larger, and the lower end the other way round;
 * R <= -V excludes nothing (c > 0 is all that is known), and the supremum over R is 1. A quotient of a sum: 4
 * roundings. */
static double share(double R, double V) {
    if (R == INFINITY) return 1;
    if (!(R + V > 0)) return -INFINITY;
    return R / (R + V);
}

static double outwards(double x, double by) { return x + by * (8 * U * fabs(x) + 4.94e-324); }

struct taylor_interval taylor_share_enclosure(double v_lo, double v_hi, double up, double down) {
    struct taylor_interval out = {-INFINITY, 1};
    if (!(v_lo > 0) || !isfinite(v_hi)) return out;
    const struct taylor_interval R = taylor_chebyshev_markov(v_lo, v_hi, up, down);
    /* the sum R + V may itself cancel: its error is U |R + V|, so the quotient's relative error is bounded all the same
     */
    const double hi = share(R.hi, (R.hi >= 0 ? v_lo : v_hi) / 2), lo = share(R.lo, (R.lo >= 0 ? v_hi : v_lo) / 2);
    out.hi = fmin(1, outwards(hi, 1));
    if (isfinite(lo)) out.lo = outwards(lo, -1);
    return out;
}

void taylor_curve_of(struct taylor_curve *out, const double *x, int64_t n, const struct kern_logit_moments *moments,
                     const struct kern_ops *ops) {
    const double above = (moments->b - moments->m) + moments->dab + moments->dm,
                 below = (moments->m - moments->a) + moments->dab + moments->dm;
    const double slop = 8 * U * (fabs(moments->a) + fabs(moments->b) + fabs(moments->m));
    const bool flat = !(moments->v > 0);
    for (int k = 0; k < TAYLOR_CURVE; k++) {
        const double s = (double)k / (TAYLOR_CURVE - 1),
                     s2 = s * s; /* both exact: TAYLOR_CURVE - 1 is a power of two */
        out->ratio[k] = NAN;
        out->bound[k] = (struct taylor_interval){-INFINITY, 1};
        if (flat) continue;
        if (k == 0) {
            out->ratio[k] = 0;
            out->bound[k] = (struct taylor_interval){0, 0};
            continue;
        }
        struct kern_tilt tilt;
        ops->tilt(&tilt, x, n, s);
        const double c = tilt.K - s * moments->m, V = s2 * moments->v / 2;
        /* below its own error c says nothing: left out rather than drawn as noise */
        if (c > 64 * (tilt.dK + s * (moments->dm + moments->dab) + U * (fabs(tilt.K) + s * fabs(moments->m))))
            out->ratio[k] = (c - V) / c;
        const double v_lo = s2 * (moments->v - moments->dv) * (1 - 4 * U),
                     v_hi = s2 * (moments->v + moments->dv) * (1 + 4 * U);
        out->bound[k] =
            taylor_share_enclosure(v_lo, v_hi, s * (above + slop) * (1 + 8 * U), s * (below + slop) * (1 + 8 * U));
    }
}
