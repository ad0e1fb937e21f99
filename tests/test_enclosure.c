/* tests/test_enclosure.c: the enclosures of the Taylor remainder against multiple-precision arithmetic (MATH.md section 5).
 * Logits are exact doubles here (eta = 0) or are perturbed by at most eta; the exact remainder is computed by MPFR with 200
 * bits and more where the range is tiny. A violation of any enclosure fails. */
#include "tests/test.h"

#include <float.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <mpfr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "taylor/enclosure.h"

#define MOST 256
enum law {
    GAUSSIAN,
    UNIFORM,
    HEAVY,
    TWO_UPPER,
    TWO_LOWER,
    EQUAL,
    NEARLY_EQUAL,
    ONE_HOT,
    TINY,
    HUGE_RANGE,
    FAR,
    THREE,
    LATTICE,
    EXPONENTIAL,
    LAWS
};
static const char *const law_names[LAWS] = {"gaussian",
                                            "uniform",
                                            "heavy tails",
                                            "two atoms, upper extremal",
                                            "two atoms, lower extremal",
                                            "all equal",
                                            "nearly equal",
                                            "one far key",
                                            "range 1e-300",
                                            "range 1e3",
                                            "logits of 1e4",
                                            "t = 1, 2, 3",
                                            "lattice",
                                            "exponential"};

static double normal(gsl_rng *rng) {
    return sqrt(-2 * log(gsl_rng_uniform_pos(rng))) * cos(2 * M_PI * gsl_rng_uniform(rng));
}

static int64_t draw(double *x, enum law law, gsl_rng *rng) {
    int64_t n = 1 + (int64_t)(pow(gsl_rng_uniform(rng), 2) * (MOST - 1));
    double size = pow(10, -8 + 10 * gsl_rng_uniform(rng)), shift = (gsl_rng_uniform(rng) < 0.5 ? 0 : 30) * normal(rng);
    if (law == TINY) n = 1 + n % 12; /* thousands of bits each */
    if (law == THREE) n = 1 + (int64_t)gsl_rng_uniform_int(rng, 3);
    if (law == TWO_UPPER || law == TWO_LOWER || law == ONE_HOT) n = 2 + (int64_t)gsl_rng_uniform_int(rng, MOST - 2);
    int64_t few = 1 + (int64_t)gsl_rng_uniform_int(rng, (unsigned long)(n > 1 ? n - 1 : 1));
    for (int64_t j = 0; j < n; j++) {
        switch (law) {
        case GAUSSIAN:
            x[j] = shift + size * normal(rng);
            break;
        case UNIFORM:
            x[j] = shift + size * gsl_rng_uniform(rng);
            break;
        case HEAVY:
            x[j] = shift + fmax(-1e4, fmin(1e4, size * 0.01 * tan(M_PI * (gsl_rng_uniform_pos(rng) - 0.5))));
            break;
        case TWO_UPPER:
            x[j] = shift + (j < few ? size : 0);
            break;
        case TWO_LOWER:
            x[j] = shift - (j < few ? size : 0);
            break;
        case EQUAL:
            x[j] = shift;
            break;
        case NEARLY_EQUAL:
            x[j] = j % 7 == 3 ? nextafter(shift + 1, 1e9) : shift + 1;
            break;
        case ONE_HOT:
            x[j] = j == 0 ? 20 + 80 * gsl_rng_uniform(rng) : 1e-3 * normal(rng);
            break;
        case TINY:
            x[j] = 1e-300 * gsl_rng_uniform(rng);
            break;
        case HUGE_RANGE:
            x[j] = 1e3 * (gsl_rng_uniform(rng) - 0.5);
            break;
        case FAR:
            x[j] = (shift < 0 ? -1e4 : 1e4) + size * normal(rng);
            break;
        case THREE:
            x[j] = shift + size * normal(rng);
            break;
        case LATTICE:
            x[j] = (double)gsl_rng_uniform_int(rng, 5) - 2;
            break;
        case EXPONENTIAL:
            x[j] = shift - size * log(gsl_rng_uniform_pos(rng)) * (few % 2 ? 1 : -1);
            break;
        case LAWS:
            break;
        }
    }
    return n;
}

/* Exact c, R, m, v, A of the logits, as MPFR numbers. */
struct exact {
    mpfr_t c, R, m, v, A, work, sum;
};
static void exact_init(struct exact *e) {
    mpfr_inits2(200, e->c, e->R, e->m, e->v, e->A, e->work, e->sum, (mpfr_ptr)NULL);
}
static void exact_clear(struct exact *e) { mpfr_clears(e->c, e->R, e->m, e->v, e->A, e->work, e->sum, (mpfr_ptr)NULL); }
static void exact_of(struct exact *e, const double *x, int64_t n) {
    double a = x[0], b = x[0];
    for (int64_t j = 1; j < n; j++) {
        a = fmin(a, x[j]);
        b = fmax(b, x[j]);
    }
    /* R is of order range^3: carry the bits that cancel */
    double bits = b > a && b - a < 1 ? -4 * log2(b - a) : 0;
    if (b > 1 || a < -1) bits += log2(fabs(a) + fabs(b));
    mpfr_prec_t precision = 200 + (mpfr_prec_t)bits;
    mpfr_ptr all[] = {e->c, e->R, e->m, e->v, e->A, e->work, e->sum};
    for (int i = 0; i < 7; i++) mpfr_set_prec(all[i], precision);
    mpfr_set_zero(e->sum, 1);
    for (int64_t j = 0; j < n; j++) mpfr_add_d(e->sum, e->sum, x[j], MPFR_RNDN);
    mpfr_div_si(e->m, e->sum, (long)n, MPFR_RNDN);
    mpfr_set_zero(e->v, 1);
    mpfr_set_zero(e->sum, 1);
    for (int64_t j = 0; j < n; j++) {
        mpfr_d_sub(e->work, x[j], e->m, MPFR_RNDN);
        mpfr_sqr(e->work, e->work, MPFR_RNDN);
        mpfr_add(e->v, e->v, e->work, MPFR_RNDN);
        mpfr_set_d(e->work, x[j], MPFR_RNDN);
        mpfr_sub_d(e->work, e->work, b, MPFR_RNDN);
        mpfr_exp(e->work, e->work, MPFR_RNDN);
        mpfr_add(e->sum, e->sum, e->work, MPFR_RNDN);
    }
    mpfr_div_si(e->v, e->v, (long)n, MPFR_RNDN);
    mpfr_log(e->A, e->sum, MPFR_RNDN);
    mpfr_add_d(e->A, e->A, b, MPFR_RNDN);
    mpfr_set_si(e->work, (long)n, MPFR_RNDN);
    mpfr_log(e->work, e->work, MPFR_RNDN);
    mpfr_sub(e->c, e->A, e->work, MPFR_RNDN);
    mpfr_sub(e->c, e->c, e->m, MPFR_RNDN);
    mpfr_div_si(e->work, e->v, 2, MPFR_RNDN);
    mpfr_sub(e->R, e->c, e->work, MPFR_RNDN);
}

/* What the multiple-precision values may themselves be off by: far below any stated bound. */
static double slack(mpfr_t exact) { return ldexp(1e5, -(int)mpfr_get_prec(exact)); }

/* |approximate - exact| <= bound, judged in multiple precision. */
static void within(const char *what, const char *law, int64_t n, double approximate, mpfr_t exact, double bound) {
    mpfr_t d;
    mpfr_init2(d, mpfr_get_prec(exact));
    mpfr_sub_d(d, exact, approximate, MPFR_RNDN);
    mpfr_abs(d, d, MPFR_RNDN);
    if (!(mpfr_cmp_d(d, bound + slack(exact)) <= 0))
        fail_msg("%s of '%s' with %lld keys: %.17g is off by %g, stated bound %g", what, law, (long long)n, approximate,
                 mpfr_get_d(d, MPFR_RNDN), bound);
    mpfr_clear(d);
}

static void cases(int64_t count, uint64_t seed) {
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)seed);
    double x[MOST], y[MOST];
    struct exact e;
    exact_init(&e);
    int64_t finite[TAYLOR_BOUNDS] = {0};
    for (int64_t i = 0; i < count; i++) {
        enum law law = (enum law)(i % LAWS);
        int64_t n = draw(x, law, rng);
        double eta = i % 3 == 0 ? 0 : pow(10, -14 + 8 * gsl_rng_uniform(rng)) * (law == TINY ? 1e-300 : 1);
        for (int64_t j = 0; j < n; j++) { /* what the program sees: the exact logit moved by less than eta */
            y[j] = x[j] + 0.999 * eta * (2 * gsl_rng_uniform(rng) - 1);
            if (fabs(y[j] - x[j]) > eta) y[j] = x[j];
        }
        exact_of(&e, x, n);
        struct kern_logit_moments moments;
        struct taylor_remainder remainder;
        kern_logit_moments_row(&moments, y, n, eta);
        taylor_remainder_of(&remainder, &moments);
        within("m", law_names[law], n, moments.m, e.m, moments.dm);
        within("v", law_names[law], n, moments.v, e.v, moments.dv);
        within("A", law_names[law], n, moments.A, e.A, moments.dA);
        within("c", law_names[law], n, remainder.c, e.c, remainder.dc);
        within("R", law_names[law], n, remainder.R, e.R, remainder.dR);
        double a = x[0], b = x[0];
        for (int64_t j = 1; j < n; j++) {
            a = fmin(a, x[j]);
            b = fmax(b, x[j]);
        }
        /* a constant-size state knows looser extremes; sometimes none */
        struct taylor_reach reach = {INFINITY, INFINITY};
        if (i % 5 != 0) {
            double looser = 1 + gsl_rng_uniform(rng), m = mpfr_get_d(e.m, MPFR_RNDN);
            reach = (struct taylor_reach){looser * (b - m) + 1e-12 * (1 + fabs(m)),
                                          looser * (m - a) + 1e-12 * (1 + fabs(m))};
        }
        struct taylor_interval bound[TAYLOR_BOUNDS];
        taylor_enclose(bound, &moments, &reach);
        for (int k = 0; k < TAYLOR_BOUNDS; k++) {
            assert_false(isnan(bound[k].lo) || isnan(bound[k].hi));
            if (isfinite(bound[k].lo) && isfinite(bound[k].hi)) finite[k]++;
            if (mpfr_cmp_d(e.R, bound[k].lo - slack(e.R)) < 0 || mpfr_cmp_d(e.R, bound[k].hi + slack(e.R)) > 0)
                fail_msg("B%d [%.17g, %.17g] does not hold R = %.17g: '%s', %lld keys, eta %g, case %lld", k + 1,
                         bound[k].lo, bound[k].hi, mpfr_get_d(e.R, MPFR_RNDN), law_names[law], (long long)n, eta,
                         (long long)i);
        }
    }
    printf("           %lld cases, no violation; finite: B1 %lld, B2 %lld, B3 %lld, B4 %lld\n", (long long)count,
           (long long)finite[0], (long long)finite[1], (long long)finite[2], (long long)finite[3]);
    for (int k = 0; k < 3; k++) assert_true(finite[k] > count / 2); /* an enclosure that says nothing proves nothing */
    exact_clear(&e);
    mpfr_free_cache();
    gsl_rng_free(rng);
}

static void enclosures_hold(void **state) {
    (void)state;
    cases(10000, test_seed());
}
/* In shares with seeds of their own; cmocka's failures must stay in one thread, so processes share the work. */
static void enclosures_hold_million(void **state) {
    (void)state;
    enum { SHARES = 100, WORKERS = 2 };
    pid_t workers[WORKERS];
    fflush(stdout);
    for (int w = 0; w < WORKERS; w++) {
        workers[w] = fork();
        assert_true(workers[w] >= 0);
        if (workers[w] > 0) continue;
        for (int i = w; i < SHARES; i += WORKERS)
            cases(1000000 / SHARES, test_seed() + 1000u * (uint64_t)(i + 1)); /* a failure ends the worker */
        fflush(stdout);
        _exit(0);
    }
    for (int w = 0; w < WORKERS; w++) {
        int how = -1;
        assert_int_equal(waitpid(workers[w], &how, 0), workers[w]);
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
            fail_msg("worker %d found a violation (above) or died: status %d", w, how);
    }
}

/* B3 is attained by the two-atom laws: k keys of n at the far end. */
static void extremal_is_attained(void **state) {
    (void)state;
    struct exact e;
    exact_init(&e);
    double x[MOST], worst = 0;
    for (int side = 0; side < 2; side++)
        for (int n = 2; n < MOST; n += 7)
            for (double size = 1e-6; size < 1e3; size *= 3.7)
                for (int k = 1; k < n; k += 1 + n / 5) {
                    for (int j = 0; j < n; j++) x[j] = j < k ? (side ? -size : size) : 0;
                    struct kern_logit_moments moments;
                    struct taylor_interval bound[TAYLOR_BOUNDS];
                    kern_logit_moments_row(&moments, x, n, 0);
                    taylor_enclose(bound, &moments, NULL);
                    exact_of(&e, x, n);
                    double end = side ? bound[TAYLOR_B3].lo : bound[TAYLOR_B3].hi, R = mpfr_get_d(e.R, MPFR_RNDN);
                    double gap = fabs(end - R) / fmax(1, fmax(moments.v, fabs(moments.A)));
                    if (!(gap <= 1e-12))
                        fail_msg("%s end %.17g, R %.17g: n %d, k %d, size %g", side ? "lower" : "upper", end, R, n, k,
                                 size);
                    worst = fmax(worst, gap);
                }
    printf("           largest gap %.1e\n", worst);
    exact_clear(&e);
    mpfr_free_cache();
}

static void excess_of_psi(void **state) {
    (void)state;
    mpfr_t z, e, r;
    mpfr_inits2(400, z, e, r, (mpfr_ptr)NULL);
    double worst = 0;
    for (double magnitude = 1e-12; magnitude < 700; magnitude *= 1.07)
        for (int sign = -1; sign <= 1; sign += 2) {
            double at = sign * magnitude;
            mpfr_set_d(z, at, MPFR_RNDN);
            mpfr_expm1(e, z, MPFR_RNDN);
            mpfr_sub(e, e, z, MPFR_RNDN);
            mpfr_sqr(r, z, MPFR_RNDN);
            mpfr_div(e, e, r, MPFR_RNDN);
            mpfr_sub_d(e, e, 0.5, MPFR_RNDN);
            mpfr_d_sub(r, taylor_psi_excess(at), e, MPFR_RNDN);
            mpfr_div(r, r, e, MPFR_RNDN);
            double error = fabs(mpfr_get_d(r, MPFR_RNDN)) / (DBL_EPSILON / 2);
            if (!(error <= 32)) fail_msg("psi(%g) - 1/2 is off by %g units", at, error);
            worst = fmax(worst, error);
        }
    printf("           largest relative error %.1f units\n", worst);
    assert_true(taylor_psi_excess(0) == 0);
    assert_true(isinf(taylor_psi_excess(1e4)));
    assert_true(fabs(taylor_psi_excess(-1e300) + 0.5) < 1e-15);
    mpfr_clears(z, e, r, (mpfr_ptr)NULL);
}

/* The ends of B3 for inputs that no law need have: atoms far apart, weights that underflow, squares out of range. */
static void markov_ends_hold(void **state) {
    (void)state;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)test_seed());
    mpfr_t p, n, w, e, f, v;
    mpfr_inits2(300, p, n, w, e, f, v, (mpfr_ptr)NULL);
    mpfr_ptr all[] = {p, n, w, e, f, v};
    int64_t finite = 0;
    for (int i = 0; i < 6000; i++) {
        const bool wild = i % 5 == 0;
        const double range = wild ? pow(10, -170 + 174 * gsl_rng_uniform(rng)) : pow(10, -3 + 7 * gsl_rng_uniform(rng));
        const double variance =
            wild ? pow(10, -300 + 304 * gsl_rng_uniform(rng)) : range * range * pow(10, -9 * gsl_rng_uniform(rng));
        const struct taylor_interval ends = taylor_chebyshev_markov(variance, variance, range, range);
        for (int k = 0; k < 6; k++) mpfr_set_prec(all[k], wild ? 4000 : 300);
        for (int side = 0; side < 2; side++) { /* log (w e^p + (1 - w) e^n) - v / 2 */
            mpfr_set_d(p, side ? -range : range, MPFR_RNDN);
            mpfr_set_d(v, variance, MPFR_RNDN);
            mpfr_div(n, v, p, MPFR_RNDN);
            mpfr_neg(n, n, MPFR_RNDN);
            mpfr_sqr(w, p, MPFR_RNDN);
            mpfr_add(w, w, v, MPFR_RNDN);
            mpfr_div(w, v, w, MPFR_RNDN);
            if (mpfr_cmp_d(n, 1e6) > 0) continue; /* e^n does not matter for a law */
            mpfr_exp(e, p, MPFR_RNDN);
            mpfr_mul(e, e, w, MPFR_RNDN);
            mpfr_exp(f, n, MPFR_RNDN);
            mpfr_ui_sub(w, 1, w, MPFR_RNDN);
            mpfr_mul(f, f, w, MPFR_RNDN);
            mpfr_add(e, e, f, MPFR_RNDN);
            mpfr_log(e, e, MPFR_RNDN);
            mpfr_div_si(f, v, 2, MPFR_RNDN);
            mpfr_sub(e, e, f, MPFR_RNDN);
            const double end = side ? ends.lo : ends.hi, truth = mpfr_get_d(e, MPFR_RNDN);
            const double slack = ldexp(1e5, -(int)mpfr_get_prec(e)),
                         size =
                             1e-12 * (fmax(fmax(variance, fabs(truth)), fmax(1, range)) + 0.02 * fabs(log(variance))) +
                             slack;
            if (!isfinite(end)) continue;
            finite++;
            if (side == 0 ? mpfr_cmp_d(e, end + slack) > 0 : truth > -variance / 2 && mpfr_cmp_d(e, end - slack) < 0)
                fail_msg("%s end %.17g, truth %.17g: v %g, range %g", side ? "lower" : "upper", end, truth, variance,
                         range);
            if (!(fabs(end - fmax(truth, -variance / 2)) <= size))
                fail_msg("%s end %.17g is far from %.17g: v %g, range %g", side ? "lower" : "upper", end, truth,
                         variance, range);
        }
    }
    assert_true(finite > 6000);
    mpfr_clears(p, n, w, e, f, v, (mpfr_ptr)NULL);
    mpfr_free_cache();
    gsl_rng_free(rng);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(markov_ends_hold), cmocka_unit_test(excess_of_psi),
                                          cmocka_unit_test(enclosures_hold), cmocka_unit_test(extremal_is_attained)};
TEST_GROUP(enclosure, "Taylor remainder inside its enclosures (MPFR)", tests)
static const struct CMUnitTest long_tests[] = {cmocka_unit_test(enclosures_hold_million)};
TEST_GROUP_NEED(enclosure_long, "a million cases", long_tests, TEST_LONG)
