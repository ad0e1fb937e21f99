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

/* Small ranges: A - log t - m loses the digits that R is made of, the cumulants do not.
 *   R = k3/6 + k4/24 + integral_0^1 (1 - s)^4 / 24 K^(5)(s) ds,   |K^(5)| = |m5 - 10 m2 m3| <= 1.25 w^5 for a law on a range w
 * (|m5| <= w^5, m2 <= w^2/4, |m3| <= w^3/10), so the last term is at most w^5 / 96.
 * k3 = mean (x - m)^3 of logits that are off by e <= eps each moves by at most 3 w^2 2 eps, k4 = m4 - 3 m2^2 by 4 w^3 2 eps +
 * 6 m2 2 w 2 eps <= 14 w^3 eps (w: the range with them), eps = dab and the roundings of y = x - centre. The means of y^i
 * are relative to w^i, (68 + i) u as in kern_logit_moments_cpu, centre inside the range: in q3 - 3 d q2 + 2 d^3 that makes 71 + 3 141 + 2 204 < 1000,
 * in k4 72 + 4 142 + 6 210 + 3 277 + 3 105 < 3200. */
static double by_cumulants(double *error, const struct kern_logit_moments *x) {
    const double w = up((x->b - x->a) + 2 * x->dab, 8), eps = up(x->dab + 2 * U * w, 8), w2 = w * w, w3 = w2 * w;
    *error =
        up((6 * w2 * eps + 1000 * U * w3) / 6 + (14 * w3 * eps + 3200 * U * w3 * w) / 24 + w3 * w2 / 96, 64) + 1e-300;
    return x->k3 / 6 + x->k4 / 24;
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
    double error, R = by_cumulants(&error, x);
    if (!(error < out->dR)) return;
    out->R = R;
    out->dR = error;
    /* c = R + v / 2 >= 0 */
    const double c = R + x->v / 2, dc = up(error + x->dv / 2 + U * fabs(c), 16);
    if (!(dc < out->dc)) return;
    out->c = fmax(c, 0);
    out->dc = dc;
}

/* ---- enclosures ------------------------------------------------------------------------------------------------- */

/* psi(z) = (e^z - 1 - z) / z^2 itself: positive, so unlike 1/2 + excess it loses nothing far below zero. z <= 0.5; relative error at
 * most 10u: for z <= -1 the one cancellation is that of 1 against (1 - e^z) / -z, which loses a factor 4.5 at most. */
static double psi(double z) { return z > -1 ? 0.5 + taylor_psi_excess(z) : (expm1(z) / z - 1) / z; }

/* log(w e^p + (1 - w) e^n) for a two-atom law of mean 0: weight w = v / (v + p^2) on p > 0 (or p < 0), the rest on n = -v / p. NaN where
 * the other atom overflows. *error: absolute error bound.
 * With ratio = v / p^2, w = ratio / (1 + ratio) and 1 - w = 1 / (1 + ratio): squares that leave the range are never formed. */
static double two_atoms(double v, double p, double *error) {
    const double n = -v / p, ratio = v / p / p, high = fmax(p, n);
    *error = INFINITY;
    if (!isfinite(n)) return NAN;
    if (high < 0.5) {
        /* The first orders of the two terms cancel (w p + (1 - w) n = 0), so they are left out before they round: what remains is
         * w p^2 psi(p) + (1 - w) n^2 psi(n) with w p^2 = v (1 - w) and (1 - w) n^2 = v w. All terms are positive: ratio 2u, 1 + ratio 3u,
         * weights 5u, psi 10u, products and sum 3u, log1p 2u: below 32u. ratio = infinity: w = 1. */
        const double rest = 1 / (1 + ratio), w = isinf(ratio) ? 1 : ratio * rest, s = v * (rest * psi(p) + w * psi(n));
        *error = 64 * U * s;
        return log1p(s);
    }
    /* log w and log (1 - w) without a quotient that underflows: log1p of the other ratio, or logarithms alone */
    const double apart = log(v) - 2 * log(fabs(p)), inverse = p / v * p;
    const double log_w = ratio < 1e-290 ? apart : -log1p(inverse), log_rest = inverse < 1e-290 ? -apart : -log1p(ratio);
    const double lp = p + log_w, ln = n + log_rest, top = fmax(lp, ln), bottom = fmin(lp, ln),
                 result = top + log1p(exp(bottom - top));
    /* log-sum-exp moves by no more than its arguments: p exact; n u |n|; the ratios 2u, the logarithms 2u |.| + 2u, where they stand
     * alone 2u (|log v| + 2 |log |p||) + 2u; the sums u |lp|, u |ln|; the difference under exp u (|lp| + |ln|), exp and log1p 4u. */
    *error = 8 * U *
             (fabs(p) + fabs(n) + fabs(log_w) + fabs(log_rest) + fabs(log(v)) + fabs(log(fabs(p))) + fabs(result) + 1);
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

double taylor_samuelson(const struct kern_logit_moments *x) {
    return up(sqrt((double)(x->t - 1) * up(x->v + x->dv, 4)), 8);
}

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
