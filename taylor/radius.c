/* taylor/radius.c: see radius.h.
 *
 * B5. Along s the third central moment of the tilted law is at most (b - m_s) times its variance and at least -(m_s - a) times it
 * (y^3 <= (b - m) y^2 for y <= b - m, likewise below), so with m_s rising in s, on an interval [s0, s1] with K'' = k0 at
 * s0, k1 at s1 and h = s - s0:
 *     k0 e^{-(m1 - a) h} <= K''(s) <= k0 e^{(b - m0) h}        and from the right
 *     k1 e^{-(b - m0)(s1 - s)} <= K''(s) <= k1 e^{(m1 - a)(s1 - s)}.
 * R'' = K'' - v, R(0) = R'(0) = 0. */
#include "taylor/radius.h"

#include <float.h>
#include <gsl/gsl_errno.h>
#include <gsl/gsl_roots.h>
#include <math.h>

#define U (DBL_EPSILON / 2)
enum { GRID = 64, HALVINGS = 20 };

const double taylor_eps[TAYLOR_EPS] = {0.1, 0.5, 1};

struct line {
    const double *x;
    int64_t n;
    const struct kern_logit_moments *moments;
    double eps;
    const struct kern_ops *ops;
};

/* R, its first derivative and K'' at s, with the error bounds of R and R'. */
struct point {
    double s, R, slope, curvature, mean, dR, dslope, dcurvature;
};
static struct point at(const struct line *line, double s) {
    struct kern_tilt tilt;
    const struct kern_logit_moments *x = line->moments;
    line->ops->tilt(&tilt, line->x, line->n, s);
    struct point p = {
        s, (tilt.K - s * x->m) - s * s * x->v / 2, (tilt.mean - x->m) - s * x->v, tilt.variance, tilt.mean, 0, 0, 0};
    /* each logit is itself only known to within dab: K moves by s dab; the tilted mean by dab + s dab sd (sd along
     * the way: at most that of the exact and the stored law and dab more); K'' by 2 sd dab and s |third moment with e| <= 2 s dab K'' */
    double sd = sqrt(tilt.variance + tilt.dvariance) + x->dab, eta = x->dab;
    p.dR = tilt.dK + s * (eta + x->dm) + s * s * x->dv / 2 + 8 * U * (fabs(tilt.K) + s * fabs(x->m) + s * s * x->v);
    p.dslope =
        tilt.dmean + eta + 4 * s * eta * sd + x->dm + s * x->dv + 8 * U * (fabs(tilt.mean) + fabs(x->m) + s * x->v);
    p.dcurvature = tilt.dvariance + 4 * eta * (sd + eta) + 8 * s * eta * tilt.variance;
    return p;
}

/* Positive where |R| > eps c: the larger of the two sides. v2 = s^2 v / 2, c = R + v2. */
static double excess(const struct line *line, double R, double s) {
    double v2 = s * s * line->moments->v / 2;
    return fmax((1 - line->eps) * R - line->eps * v2, -(1 + line->eps) * R - line->eps * v2);
}

static double excess_at(double s, void *self) {
    const struct line *line = self;
    return excess(line, at(line, s).R, s);
}

/* The largest z with psi(z) - 1/2 <= level (sign +1), or 1/2 - psi(-z) <= level (sign -1); a little less, to be safe. */
static double reach(double level, double sign) {
    double lo = 0, hi = 1;
    while (hi < 1e6 && sign * taylor_psi_excess(sign * hi) <= level) hi *= 2;
    for (int i = 0; i < 100; i++) {
        double z = (lo + hi) / 2;
        *(sign * taylor_psi_excess(sign * z) <= level ? &lo : &hi) = z;
    }
    return lo * (1 - 1e-12);
}

/* The s up to which B2 excludes a crossing: R <= s^2 v e+ with e+ = psi(s (b - m)) - 1/2 implies R <= eps c when
 * (1 - eps) e+ <= eps / 2; R >= -s^2 v e- with e- = 1/2 - psi(-s r) implies -R <= eps c when (1 + eps) e- <= eps / 2. */
static double proved_start(const struct kern_logit_moments *x, double eps) {
    double above = (x->b - x->m) + x->dab + x->dm, range = (x->b - x->a) + 2 * x->dab, s = 1;
    if (eps < 1 && above > 0) s = fmin(s, reach(eps / (2 * (1 - eps)), 1) / above);
    if (range > 0 && eps / (2 * (1 + eps)) < 0.5) s = fmin(s, reach(eps / (2 * (1 + eps)), -1) / range);
    return s * (1 - 8 * U);
}

/* K'' in [lo, hi] between the points, up >= b - m_0, down >= m_1 - a. The exponents are off by 2u of themselves, e^x by 2u. */
static void between(double *lo, double *hi, const struct point *p, const struct point *q, double up, double down) {
    const double H = q->s - p->s, slop = 16 * U * (1 + (up + down) * H);
    *hi =
        fmin((p->curvature + p->dcurvature) * exp(up * H), (q->curvature + q->dcurvature) * exp(down * H)) * (1 + slop);
    *lo = fmax(0, fmax((p->curvature - p->dcurvature) * exp(-down * H), (q->curvature - q->dcurvature) * exp(-up * H)) *
                      (1 - slop));
}

/* True when B5 excludes a crossing on [p.s, q.s]: with K'' in [lo, hi] there, R(s0 + h) lies between the parabolas R0 + R0' h +
 * (lo - v) h^2 / 2 and the same with hi; each side of `excess` is then at most a parabola in h, whose maximum is looked up. */
static bool excluded(const struct line *line, const struct point *p, const struct point *q) {
    const struct kern_logit_moments *x = line->moments;
    double H = q->s - p->s, up = fmax((x->b + x->dab) - (p->mean - p->dslope), 0),
           down = fmax((q->mean + q->dslope) - (x->a - x->dab), 0);
    double lo, hi;
    between(&lo, &hi, p, q, up, down);
    double v_lo = x->v - x->dv, v_hi = x->v + x->dv, eps = line->eps, s = p->s;
    for (int side = 0; side < 2; side++) {
        double factor = side == 0 ? 1 - eps : 1 + eps, sign = side == 0 ? 1 : -1;
        /* factor sign R - eps v (s + h)^2 / 2 <= A + B h + C h^2 */
        double A = factor * (sign * p->R + p->dR) - eps * v_lo * s * s / 2;
        double B = factor * (sign * p->slope + p->dslope) - eps * v_lo * s;
        double bend = side == 0 ? hi - v_lo : v_hi - lo;
        double C = factor * bend / 2 - eps * v_lo / 2;
        double most = fmax(A, A + H * (B + C * H));
        if (C < 0 && B > 0 && -B / (2 * C) < H) most = fmax(most, A - B * B / (4 * C));
        if (!(most + 8 * U * (fabs(A) + fabs(B * H) + fabs(C * H * H)) <= 0)) return false;
    }
    return true;
}

/* Certifies as far as it can from p towards q, halving where B5 is too coarse; returns how far. */
static double certify(const struct line *line, const struct point *p, const struct point *q, int halvings) {
    if (excluded(line, p, q)) return q->s;
    if (halvings == 0) return p->s;
    struct point middle = at(line, (p->s + q->s) / 2);
    double far = certify(line, p, &middle, halvings - 1);
    return far < middle.s ? far : certify(line, &middle, q, halvings - 1);
}

/* Between a point inside, lo, and one outside, hi: the crossing, from below. A start where rounding hides the sign is it. */
static double crossing(struct line *line, double lo, double hi) {
    if (excess_at(lo, line) >= 0) return lo;
    gsl_function function = {excess_at, line};
    gsl_root_fsolver *solver = gsl_root_fsolver_alloc(gsl_root_fsolver_brent);
    double found = lo;
    if (solver != NULL && gsl_root_fsolver_set(solver, &function, lo, hi) == GSL_SUCCESS) {
        for (int k = 0; k < 100 && gsl_root_fsolver_iterate(solver) == GSL_SUCCESS; k++)
            if (gsl_root_test_interval(gsl_root_fsolver_x_lower(solver), gsl_root_fsolver_x_upper(solver), 0, 1e-10) ==
                GSL_SUCCESS)
                break;
        found = gsl_root_fsolver_x_lower(solver);
    }
    gsl_root_fsolver_free(solver);
    return found;
}

void taylor_trust_radii(struct taylor_radius *out, const double *x, int64_t n, const struct kern_logit_moments *moments,
                        const struct kern_ops *ops) {
    double start[TAYLOR_EPS], least = 1;
    for (int e = 0; e < TAYLOR_EPS; e++) {
        start[e] = moments->v > 0 ? proved_start(moments, taylor_eps[e]) : 1;
        if (start[e] >= 1 - 16 * U) start[e] = 1;
        least = fmin(least, start[e]);
        out[e] = (struct taylor_radius){1, 1, true};
    }
    struct line line = {x, n, moments, 1, ops};
    struct point grid[GRID + 1];
    int filled = -1; /* the grid runs from the least start to 1 and is filled as far as a search needs */
    for (int e = 0; e < TAYLOR_EPS; e++) {
        if (start[e] == 1) continue;
        line.eps = taylor_eps[e];
        int last = GRID, first = 0;
        double radius = 1;
        for (int i = 0; i <= GRID; i++) {
            if (i > filled) grid[filled = i] = at(&line, i == GRID ? 1 : least + (1 - least) * i / GRID);
            if (grid[i].s <= start[e]) {
                first = i; /* the last one that B2 covers */
                continue;
            }
            if (excess(&line, grid[i].R, grid[i].s) <= 0) continue;
            radius = crossing(&line, fmax(grid[i - 1].s, start[e]), grid[i].s);
            last = i - 1;
            break;
        }
        double proved = start[e], goal = radius * (1 - 1e-3);
        struct point from = grid[first];
        if (from.s < start[e]) from = at(&line, start[e]);
        for (int i = first + 1; i <= last && proved == from.s; i++) {
            proved = certify(&line, &from, &grid[i], HALVINGS);
            from = grid[i];
        }
        if (proved == from.s && proved < goal) { /* the rest of the way towards the crossing */
            struct point end = at(&line, goal);
            proved = certify(&line, &from, &end, HALVINGS);
        }
        out[e] = (struct taylor_radius){radius, proved, proved >= goal * (1 - 4 * U)};
    }
}

struct taylor_interval taylor_refined(const double *x, int64_t n, const struct kern_logit_moments *moments, double s,
                                      int64_t nodes, const struct kern_ops *ops) {
    struct line line = {x, n, moments, 1, ops};
    struct point p = at(&line, 0);
    double lo = 0, hi = 0; /* of the integral of (s - u) (K''(u) - v) */
    for (int64_t i = 1; i <= nodes; i++) {
        struct point q = at(&line, s * (double)i / (double)nodes);
        double least, most, up = fmax((moments->b + moments->dab) - (p.mean - p.dslope), 0);
        double down = fmax((q.mean + q.dslope) - (moments->a - moments->dab), 0);
        between(&least, &most, &p, &q, up, down);
        double weight = ((s - p.s) * (s - p.s) - (s - q.s) * (s - q.s)) / 2; /* integral of s - u over [p.s, q.s] */
        hi += weight * (most - (moments->v - moments->dv));
        lo += weight * (least - (moments->v + moments->dv));
        double slop = 64 * U * weight * (most + moments->v);
        hi += slop;
        lo -= slop;
        p = q;
    }
    return (struct taylor_interval){isnan(lo) ? -INFINITY : lo, isnan(hi) ? INFINITY : hi};
}
