/* kernels/logit_moments_ref.c: reference. Plain loops, compensated double; u = 2^-53. */
#include <float.h>
#include <math.h>

#include "base/arena.h"
#include "kernels/ops.h"

#define U (DBL_EPSILON / 2)

/* Moves a non-negative bound up by n units in the last place and the smallest subnormal. */
static double up(double x, double n) { return x * (1 + n * U) + 4.94e-324; }

/* Neumaier's compensated sum: error at most 2u |sum| + O(n u^2) sum |terms|. */
struct sum {
    double s, c;
};
static void add(struct sum *sum, double x) {
    double t = sum->s + x;
    sum->c += fabs(sum->s) >= fabs(x) ? (sum->s - t) + x : (x - t) + sum->s;
    sum->s = t;
}
static double value(const struct sum *sum) { return sum->s + sum->c; }

void kern_logit_moments_row(struct kern_logit_moments *out, const double *x, int64_t n, double eta) {
    double a = x[0], b = x[0];
    struct sum first = {0, 0};
    for (int64_t j = 0; j < n; j++) {
        a = fmin(a, x[j]);
        b = fmax(b, x[j]);
        add(&first, x[j] - x[0]);
    }
    /* centre: any double near the mean; y = x - centre is then exact up to u |y| */
    double centre = x[0] + value(&first) / (double)n;
    if (!(centre >= a)) centre = a;
    if (!(centre <= b)) centre = b;
    struct sum s1 = {0, 0}, s2 = {0, 0}, s3 = {0, 0}, s4 = {0, 0}, e1 = {0, 0}, e2 = {0, 0};
    double widest = 0;
    for (int64_t j = 0; j < n; j++) {
        double y = x[j] - centre, p = exp(x[j] - b);
        widest = fmax(widest, fabs(y));
        add(&s1, y);
        add(&s2, y * y);
        add(&s3, y * y * y);
        add(&s4, y * y * y * y);
        add(&e1, p);
        add(&e2, p * p);
    }
    double N = (double)n, d = value(&s1) / N, q2 = value(&s2) / N, q3 = value(&s3) / N, q4 = value(&s4) / N;
    double v = q2 - d * d;
    if (!(v > 0)) v = 0;
    out->t = n;
    out->m = centre + d;
    out->v = v;
    out->a = a;
    out->b = b;
    out->k3 = q3 - 3 * d * q2 + 2 * d * d * d;
    out->k4 = q4 - 4 * d * q3 + 6 * d * d * q2 - 3 * d * d * d * d - 3 * v * v;
    out->A = b + log(value(&e1));
    out->effective = value(&e1) * value(&e1) / value(&e2);
    out->largest = 1 / value(&e1);
    /* Errors. The exact logit is centre + y_j + e_j with |e_j| <= eps := eta + u max|y|. A compensated sum of n terms
     * is off by 2u of itself and n^2 u^2 of the magnitudes, the latter below u up to 2^26 keys.
     * m: |mean e| <= eps; the sum of y: 2u|d| + u mean|y|; the division and the addition: u (|d| + |m|).
     * v: sd is 1-Lipschitz in the root mean square of e: |sd - sd'| <= eps, so v moves by at most 2 eps sd + eps^2, with sd that of the
     * y_j, at most sqrt(v + v's own rounding); q2: each square
     *    u, the sum 3u, the division u: 5u q2; d^2 and the difference: 4u d^2 + u v; underflow of squares: 1e-300.
     * A: log-sum-exp is 1-Lipschitz in the largest |e|, here |e_j| <= eta + u |x_j - b| (the subtraction): eta + u (b - a), but a term
     *    that far down carries weight e^-(b-x): the effect is at most u max(z e^-z) <= u. exp: 2u relative, sum 3u, log:
     *    2u |log| + 2u, addition u |A|. */
    double eps = up(eta + U * widest, 8), rounding = U * (6 * q2 + 6 * d * d + 2 * v), sd = up(sqrt(v + rounding), 8);
    double log_sum = fabs(log(value(&e1)));
    out->dab = eta;
    out->dm = up(eps + U * (4 * fabs(d) + widest + 2 * fabs(out->m)), 16) + 1e-320;
    out->dv = up(eps * (2 * sd + eps) + rounding, 32) + 1e-300;
    out->dA = up(eta + U * (10 + 3 * log_sum + 2 * fabs(out->A) + 2 * fabs(b)), 16);
    if (n == 1 || a == b) { /* equal stored logits: exactly the point mass, up to eta */
        out->m = a;
        out->v = out->k3 = out->k4 = 0;
        out->dm = eta;
        out->dv = up(eta * eta, 4);
    }
}

void kern_logit_moments_ref(struct kern_logit_moments *out, const float *keys, const float *queries, int64_t T,
                            int64_t Hq, int64_t Hk, int64_t D, int64_t key_head_stride, int64_t key_token_stride,
                            int64_t query_head_stride, int64_t query_token_stride, double scale, int64_t window) {
    struct ag_arena *scratch = ag_arena_new("reference logits");
    double *x = scratch == NULL ? NULL : AG_NEW(scratch, double, T, NULL);
    if (x == NULL) { /* no memory: NaN, which no caller takes for a result */
        for (int64_t i = 0; i < Hq * T; i++) out[i] = (struct kern_logit_moments){.t = 0, .m = NAN, .v = NAN, .A = NAN};
        ag_arena_free(scratch);
        return;
    }
    for (int64_t h = 0; h < Hq; h++) {
        const float *k = keys + h / (Hq / Hk) * key_head_stride;
        for (int64_t t = 0; t < T; t++) {
            const float *q = queries + h * query_head_stride + t * query_token_stride;
            int64_t first = window > 0 && t + 1 > window ? t + 1 - window : 0;
            double size = 0;
            for (int64_t j = first; j <= t; j++) {
                struct sum dot = {0, 0};
                double around = 0;
                for (int64_t d = 0; d < D; d++) {
                    double product = (double)q[d] * (double)k[j * key_token_stride + d]; /* exact: 24 + 24 bits */
                    add(&dot, product);
                    around += fabs(product);
                }
                x[j - first] = scale * value(&dot);
                size = fmax(size, around);
            }
            /* compensated sum: 2u |dot| + O(D u^2); times scale: u; 4u of the largest sum of magnitudes covers both */
            kern_logit_moments_row(&out[h * T + t], x, t + 1 - first, up(4 * U * fabs(scale) * size, 4));
            if (!(fmax(fabs(out[h * T + t].a), fabs(out[h * T + t].b)) < KERN_LOGIT_MAX)) out[h * T + t].A = NAN;
        }
    }
    ag_arena_free(scratch);
}
