/* taylor/enclosure.c: see enclosure.h. u = 2^-53 throughout. */
#include "taylor/enclosure.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#define U (DBL_EPSILON / 2)

/* Moves a non-negative bound up by n units in the last place and the smallest subnormal: an upper bound stays one when it
 * was computed with at most n/2 roundings. */
static double up(double x, double n) { return x * (1 + n * U) + 4.94e-324; }

double taylor_psi_excess(double z) {
    if (fabs(z) < 1) {
        /* sum over k >= 1 of z^k / (k + 2)!, Horner from k = 18: the tail is below 2e-17 of the first term */
        double s = 0;
        for (int k = 18; k >= 1; k--) s = (1 + s) * z / (k + 2); /* s_k = z/(k+2) (1 + s_{k+1}) */
        return s / 2;
    }
    /* no cancellation worth naming: for z >= 1, e^z - 1 - z >= 0.7 of e^z - 1 ... ; for z <= -1 both parts have one sign */
    if (z > 0) return ((expm1(z) - z) / z - z / 2) / z;
    return (expm1(z) - z) / (z * z) - 0.5;
}

void taylor_remainder_of(struct taylor_remainder *out, const struct kern_logit_moments *x) {
    double log_t = log((double)x->t);
    out->c = (x->A - log_t) - x->m;
    if (out->c < 0) out->c = 0; /* c >= 0 is Jensen's: the projection moves it towards the truth */
    out->R = out->c - x->v / 2;
    out->Q = log_t + x->m + x->v / 2;
    if (x->v == 0 && x->a == x->b) { /* MATH.md: v = 0 gives R = c = 0 */
        out->c = out->R = 0;
        /* logits within eta of one value: c <= 2 eta, R within 2 eta + dv */
        out->dc = up(2 * x->dab, 8);
        out->dR = up(2 * x->dab + x->dv, 8);
        return;
    }
    out->dc = up(x->dA + x->dm + U * (2 * log_t + fabs(x->A) + fabs(x->A - log_t) + fabs(x->m) + out->c), 16);
    out->dR = up(out->dc + x->dv / 2 + U * (fabs(out->c) + x->v), 16);
}

/* ---- enclosures ------------------------------------------------------------------------------------------------- */

/* log(w e^p + (1 - w) e^n) for a two-atom law of mean 0: weight w = v / (v + p^2) on p > 0 (or p < 0), the rest on
 * n = -v / p. Absolute error at most 8u max(1, |result|, |p| where w e^p dominates): returned in *error. */
static double two_atoms(double v, double p, double *error) {
    double n = -v / p, p2 = p * p, w = v / (v + p2), rest = p2 / (v + p2), result;
    if (!isfinite(p2) || (w == 0 && v > 0)) { /* p^2 out of range: scale by hand */
        double ratio = (v / p) / p;          /* v / p^2 */
        w = ratio / (1 + ratio);
        rest = 1 / (1 + ratio);
    }
    double high = fmax(p, n);
    if (high < 0.5 && fabs(fmin(p, n)) < 700) {
        /* expm1 keeps the small terms: their first orders cancel (w p + rest n = 0), so subtract them before they round:
         * w (e^p - 1 - p) + rest (e^n - 1 - n) = w p^2 (1/2 + x(p)) + rest n^2 (1/2 + x(n)), w p^2 + rest n^2 = v */
        double s = w * p * p * (0.5 + taylor_psi_excess(p)) + rest * n * n * (0.5 + taylor_psi_excess(n));
        result = log1p(s);
        *error = 64 * U * s;
        return result;
    }
    double lp = p + log(w), ln = n + log(rest); /* log of each term */
    double top = fmax(lp, ln), bottom = fmin(lp, ln);
    result = top + log1p(exp(bottom - top));
    *error = 8 * U * (fabs(p) + fabs(n) + fabs(log(w)) + fabs(log(rest)) + fabs(result) + 1);
    return result;
}

/* Upper end: sup of E e^y over laws of mean 0, y <= up, E y^2 <= v is attained by the two atoms (Bennett 1962): the quadratic
 * that meets e^y twice at -v/up and once at up lies above e^y on (-inf, up], and its leading coefficient, a divided
 * difference of exp, is positive: so the sup rises with v, and with up since the set of laws grows.
 * Lower end: inf over y >= -down, E y^2 >= v likewise by the quadratic through -down (once) and v/down (twice), which lies below;
 * it falls as down grows and rises with v. Hence the outward inputs: v_hi for the upper log, v_lo for the lower. */
struct taylor_interval taylor_chebyshev_markov(double v_lo, double v_hi, double reach_up, double reach_down) {
    struct taylor_interval out = {-INFINITY, INFINITY};
    double error;
    if (v_lo < 0) v_lo = 0;
    if (v_hi > 0 && reach_up > 0 && isfinite(reach_up) && isfinite(v_hi)) {
        double log_mean = two_atoms(v_hi, reach_up, &error);
        double hi = log_mean + error - v_lo / 2;
        hi += 4 * U * (fabs(log_mean) + v_lo) + 1e-320; /* 1e-320: underflow of a term or of v */
        if (!isnan(hi)) out.hi = hi;
    }
    out.lo = -up(v_hi / 2, 4); /* Jensen: c >= 0 */
    if (v_lo > 0 && reach_down > 0 && isfinite(reach_down)) {
        double log_mean = two_atoms(v_lo, -reach_down, &error);
        double lo = log_mean - error - v_hi / 2;
        lo -= 4 * U * (fabs(log_mean) + v_hi) + 1e-320;
        if (lo > out.lo) out.lo = lo;
    }
    return out;
}

double taylor_samuelson(const struct kern_logit_moments *x) { return up(sqrt((double)(x->t - 1) * up(x->v + x->dv, 4)), 8); }

void taylor_enclose(struct taylor_interval out[TAYLOR_BOUNDS], const struct kern_logit_moments *x,
                    const struct taylor_reach *reach) {
    double v_lo = (x->v - x->dv) * (1 - 2 * U), v_hi = up(x->v + x->dv, 4);
    double range = up((x->b - x->a) + 2 * x->dab, 8);
    double above = up((x->b - x->m) + x->dab + x->dm + U * (fabs(x->b) + fabs(x->m)), 8);
    double below = up((x->m - x->a) + x->dab + x->dm + U * (fabs(x->a) + fabs(x->m)), 8);
    if (v_lo < 0) v_lo = 0;
    /* Samuelson's inequality is a theorem about any t numbers: it can only help where the extremes are wide of the mark */
    double b1 = up(range * range * range / (36 * sqrt(3.0)), 16);
    out[TAYLOR_B1] = (struct taylor_interval){-b1, b1};
    double rise = taylor_psi_excess(above), fall = taylor_psi_excess(-range);
    out[TAYLOR_B2] = (struct taylor_interval){-up(v_hi * -fall, 80), up(v_hi * rise, 80)};
    out[TAYLOR_B3] = taylor_chebyshev_markov(v_lo, v_hi, above, below);
    out[TAYLOR_B4] = (struct taylor_interval){-INFINITY, INFINITY};
    if (reach != NULL) {
        double samuelson = taylor_samuelson(x);
        out[TAYLOR_B4] = taylor_chebyshev_markov(v_lo, v_hi, fmin(reach->up, samuelson), fmin(reach->down, samuelson));
    }
    /* The moments m and v carry the uncertainty dv themselves: Q uses their exact values, so R needs no further widening. */
    for (int i = 0; i < TAYLOR_BOUNDS; i++) {
        if (isnan(out[i].lo)) out[i].lo = -INFINITY;
        if (isnan(out[i].hi)) out[i].hi = INFINITY;
    }
}
