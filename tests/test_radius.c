/* tests/test_radius.c: the tilted law, trust radii and the refined bound B5 (MATH.md section 5). */
#include "tests/test.h"

#include <gsl/gsl_rng.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/ops.h"
#include "taylor/radius.h"

static const struct kern_ops *cpu(void) {
    const struct kern_ops *ops = NULL;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(kern_backend(&ops, AG_BACKEND_CPU, &err), &err);
    return ops;
}

static int64_t draw(double *x, int64_t most, gsl_rng *rng) {
    int64_t n = 2 + (int64_t)gsl_rng_uniform_int(rng, (unsigned long)(most - 1));
    double size = pow(10, -3 + 4 * gsl_rng_uniform(rng)), skew = gsl_rng_uniform(rng) < 0.5 ? 1 : -1;
    for (int64_t j = 0; j < n; j++) {
        double y = -log(gsl_rng_uniform_pos(rng));
        x[j] = 3 + size * (skew * y * (j % 11 == 0 ? 3 : 0.3) + 0.1 * (gsl_rng_uniform(rng) - 0.5));
    }
    return n;
}

static void tilt_agrees(void **state) {
    (void)state;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)test_seed());
    double x[700];
    for (int i = 0; i < 600; i++) {
        int64_t n = i < 40 ? 1 + i : draw(x, 700, rng);
        if (i < 40)
            for (int64_t j = 0; j < n; j++) x[j] = 5 * gsl_rng_uniform(rng);
        double s = 2 * gsl_rng_uniform(rng) - 0.5;
        struct kern_tilt c, r;
        kern_tilt_cpu(&c, x, n, s);
        kern_tilt_ref(&r, x, n, s);
        if (!(fabs(c.K - r.K) <= c.dK + r.dK)) fail_msg("K %.17g and %.17g, bounds %g %g", c.K, r.K, c.dK, r.dK);
        if (!(fabs(c.mean - r.mean) <= c.dmean + r.dmean))
            fail_msg("mean %.17g and %.17g, bounds %g %g", c.mean, r.mean, c.dmean, r.dmean);
        if (!(fabs(c.variance - r.variance) <= c.dvariance + r.dvariance))
            fail_msg("variance %.17g and %.17g, bounds %g %g", c.variance, r.variance, c.dvariance, r.dvariance);
        assert_true(c.dK < 1e-11 * (1 + fabs(c.K)) && c.dvariance < 1e-10 * (1 + c.variance));
    }
    gsl_rng_free(rng);
}

/* |R(s)| - eps c(s) on a fine grid, directly. */
static void radius_is_the_first_crossing(void **state) {
    (void)state;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)test_seed());
    double x[200];
    int inside = 0, crossed = 0, certified = 0, total = 0;
    for (int i = 0; i < 120; i++) {
        int64_t n = draw(x, 200, rng);
        struct kern_logit_moments moments;
        kern_logit_moments_row(&moments, x, n, 0);
        struct taylor_radius radii[TAYLOR_EPS];
        taylor_trust_radii(radii, x, n, &moments, cpu());
        for (int e = 0; e < TAYLOR_EPS; e++) {
            struct taylor_radius radius = radii[e];
            assert_true(radius.s > 0 && radius.s <= 1 && radius.proved > 0 && radius.proved <= 1);
            total++;
            certified += radius.certified;
            inside += radius.s == 1;
            crossed += radius.s < 1;
            /* nothing is outside before what is proved; just beyond the radius it is outside */
            for (int k = 1; k <= 150; k++) {
                double s = radius.proved * k / 150;
                struct kern_tilt tilt;
                kern_tilt_ref(&tilt, x, n, s);
                double c = tilt.K - s * moments.m, R = c - s * s * moments.v / 2,
                       error = tilt.dK + s * moments.dm + 1e-15 * (1 + fabs(c));
                if (fabs(R) - taylor_eps[e] * c > 2 * error)
                    fail_msg("outside at s = %g though proved to %g (eps %g)", s, radius.proved, taylor_eps[e]);
            }
            if (radius.s < 1) {
                double s = fmin(1, radius.s * (1 + 1e-6));
                struct kern_tilt tilt;
                kern_tilt_ref(&tilt, x, n, s);
                double c = tilt.K - s * moments.m, R = c - s * s * moments.v / 2;
                assert_true(fabs(R) - taylor_eps[e] * c > -1e-12 * (1 + c));
            }
        }
    }
    printf("           %d radii: %d inside, %d crossed, %d certified\n", total, inside, crossed, certified);
    assert_true(inside > 0 && crossed > 0 && certified > total / 2);
    gsl_rng_free(rng);
}

static void refined_holds_and_tightens(void **state) {
    (void)state;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)test_seed());
    double x[200];
    for (int i = 0; i < 80; i++) {
        int64_t n = draw(x, 200, rng);
        struct kern_logit_moments moments;
        struct taylor_remainder remainder;
        kern_logit_moments_row(&moments, x, n, 0);
        taylor_remainder_of(&remainder, &moments);
        double width = INFINITY;
        for (int64_t nodes = 1; nodes <= 1024; nodes *= 4) {
            struct taylor_interval interval = taylor_refined(x, n, &moments, 1, nodes, cpu());
            if (!(interval.lo <= remainder.R + remainder.dR && remainder.R - remainder.dR <= interval.hi))
                fail_msg("B5 with %lld nodes [%.17g, %.17g], R %.17g", (long long)nodes, interval.lo, interval.hi,
                         remainder.R);
            assert_true(interval.hi - interval.lo <= width * (1 + 1e-9) + 1e-13 * (1 + moments.v));
            width = interval.hi - interval.lo;
        }
        assert_true(width <= 0.1 * (moments.b - moments.a) * moments.v + 1e-12 * (1 + moments.v));
    }
    gsl_rng_free(rng);
}

static void degenerate(void **state) {
    (void)state;
    double x[] = {2, 2, 2};
    struct kern_logit_moments moments;
    struct taylor_radius radii[TAYLOR_EPS];
    for (int64_t n = 1; n <= 3; n++) {
        kern_logit_moments_row(&moments, x, n, 0);
        taylor_trust_radii(radii, x, n, &moments, cpu());
        for (int e = 0; e < TAYLOR_EPS; e++) assert_true(radii[e].s == 1 && radii[e].certified);
    }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(tilt_agrees), cmocka_unit_test(radius_is_the_first_crossing),
                                          cmocka_unit_test(refined_holds_and_tightens), cmocka_unit_test(degenerate)};
TEST_GROUP(radius, "trust radii and the refined bound", tests)
