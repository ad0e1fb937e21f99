/* tests/test_inference.c: units, bootstrap, sign flips and false discovery rate. */
#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <string.h>

#include "base/provenance.h"
#include "geometry/inference.h"
#include "kernels/kernels.h"
#include "tests/test.h"

static void close_to(double got, double expected, double tolerance) {
    if (!(fabs(got - expected) <= tolerance)) fail_msg("%.17g is not %.17g within %g", got, expected, tolerance);
}

static void test_units(void **state) {
    (void)state;
    const int64_t twin[7] = {2, -1, 0, 5, -1, 3, -1};
    const int64_t expected[7] = {0, 1, 0, 2, 3, 2, 4};
    int64_t unit[7];
    assert_int_equal(ag_units(unit, twin, 7), 5);
    assert_memory_equal(unit, expected, sizeof unit);
}

/* All 2^n patterns, one after the other. */
static double enumerate(const double *x, int64_t n) {
    double sum = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i], largest = fmax(largest, fabs(x[i]));
    int64_t hits = 0;
    for (int64_t s = 0; s < (int64_t)1 << n; s++) {
        double flipped = 0;
        for (int64_t i = 0; i < n; i++) flipped += s >> i & 1 ? -x[i] : x[i];
        hits += fabs(flipped) / (double)n >= fabs(sum) / (double)n - 1e-12 * largest;
    }
    return (double)hits / (double)((int64_t)1 << n);
}

static void test_sign_flip_exact(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, test_seed());
    for (int64_t n = 1; n <= 13; n++) {
        double x[13 * 3], p[3], one[13];
        for (int64_t u = 0; u < n; u++) {
            x[u * 3] = gsl_ran_gaussian(rng, 1) + 0.5;
            x[u * 3 + 1] =
                floor(gsl_ran_gaussian(rng, 1) * 2) / 10; /* many ties, of values that binary does not hold */
            x[u * 3 + 2] = 1 + (double)u;                 /* one sign: nothing is more extreme */
        }
        assert_ok(geom_sign_flip(p, x, n, 3, 1, &err), &err);
        for (int c = 0; c < 3; c++) {
            for (int64_t u = 0; u < n; u++) one[u] = x[u * 3 + c];
            close_to(p[c], enumerate(one, n), 0);
        }
        close_to(p[2], geom_smallest_p(n), 0);
        close_to(p[2], ldexp(1, (int)(1 - n)), 0);
    }
    gsl_rng_free(rng);
    /* ties by construction: {1, 1, -2}: |sum| = 0, every pattern counts; missing units do not */
    const double tied[5] = {1, NAN, 1, -2, NAN}, zero[4] = {0, 0, 0, 0}, none[2] = {NAN, NAN};
    double p = -1;
    assert_ok(geom_sign_flip(&p, tied, 5, 1, 1, &err), &err);
    close_to(p, 1, 0);
    assert_ok(geom_sign_flip(&p, zero, 4, 1, 1, &err), &err);
    close_to(p, 1, 0);
    assert_ok(geom_sign_flip(&p, none, 2, 1, 1, &err), &err);
    assert_true(isnan(p));
    const double tenth[3] = {0.1, 0.2, -0.3}, hundred[3] = {0.1, 0.1, 0.1}; /* 0.1 + 0.2 is not 0.3 in binary */
    assert_ok(geom_sign_flip(&p, tenth, 3, 1, 1, &err), &err);
    close_to(p, 1, 0);
    assert_ok(geom_sign_flip(&p, hundred, 3, 1, 1, &err), &err);
    close_to(p, 0.25, 0);
}

static void test_sign_flip_drawn(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    enum { U = 40, C = 5 };
    double x[U * C], p[C], again[C], other[C];
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, 20261129); /* fixed: the expectations below are about this draw */
    for (int u = 0; u < U; u++) {
        x[u * C] = 1;
        x[u * C + 1] = u % 2 ? 1 : -1;
        x[u * C + 2] = gsl_ran_gaussian(rng, 1) + 0.1;
        x[u * C + 3] = u < 20 ? 0.5 + u : NAN; /* 20 units: exact */
        x[u * C + 4] = NAN;
    }
    gsl_rng_free(rng);
    assert_ok(geom_sign_flip(p, x, U, C, 3, &err), &err);
    close_to(p[0], 1.0 / 10001, 1e-18);
    close_to(geom_smallest_p(U), 1.0 / 10001, 1e-18);
    close_to(p[1], 1, 0);
    close_to(p[3], ldexp(1, -19), 0);
    assert_true(isnan(p[4]));
    /* the normal approximation of the same test: |mean| against sqrt(sum x^2) / n */
    double sum = 0, square = 0;
    for (int u = 0; u < U; u++) sum += x[u * C + 2], square += x[u * C + 2] * x[u * C + 2];
    close_to(p[2], erfc(fabs(sum) / sqrt(2 * square)), 0.02);
    kern_set_threads(1);
    assert_ok(geom_sign_flip(again, x, U, C, 3, &err), &err);
    kern_set_threads(0);
    assert_memory_equal(p, again, sizeof p);
    assert_ok(geom_sign_flip(other, x, U, C, 4, &err), &err);
    assert_true(other[2] != p[2]);
}

static void test_false_discovery(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    /* q by hand: p_(k) m / k, then the running minimum from above; m = 8 tests, one missing */
    const double p[9] = {0.01, 0.02, NAN, 0.03, 0.04, 0.05, 0.9, 1, 0.001};
    const double expected[9] = {0.04, 0.16 / 3, NAN, 0.06, 0.064, 0.4 / 6, 1, 1, 0.008};
    double q[9];
    assert_ok(geom_benjamini_hochberg(q, p, 9, &err), &err);
    for (int i = 0; i < 9; i++) {
        if (isnan(expected[i]))
            assert_true(isnan(q[i]));
        else
            close_to(q[i], expected[i], 1e-15);
    }
    const double equal[3] = {0.2, 0.2, 0.2}, none[2] = {NAN, NAN};
    assert_ok(geom_benjamini_hochberg(q, equal, 3, &err), &err);
    for (int i = 0; i < 3; i++) close_to(q[i], 0.2, 1e-16);
    assert_ok(geom_benjamini_hochberg(q, none, 2, &err), &err);
    assert_true(isnan(q[0]) && isnan(q[1]));
    assert_ok(geom_benjamini_hochberg(q, NULL, 0, &err), &err);
}

/* Means of normal units: the percentile interval has the width of theory and covers about as often as it says. */
static void test_bootstrap_coverage(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    enum { U = 25, C = 400, DRAWS = 1000 };
    static double sum[U * C], weight[U * C];
    double lo[C], hi[C], share[3], width = 0;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, 7); /* fixed: 400 samples leave 1 % of noise in the coverage */
    for (int i = 0; i < U * C; i++) {
        weight[i] = 1;
        sum[i] = gsl_ran_gaussian(rng, 1) + 2;
    }
    gsl_rng_free(rng);
    assert_ok(geom_bootstrap(lo, hi, share, &(struct geom_ratio){U, C, sum, weight, NULL, NULL}, DRAWS, 1, &err), &err);
    int covered = 0;
    for (int c = 0; c < C; c++) {
        covered += lo[c] <= 2 && 2 <= hi[c];
        width += (hi[c] - lo[c]) / C;
    }
    assert_in_range(covered, 360, 388); /* percentile intervals of 25 units are known to be a little narrow: 0.93 */
    close_to(width, 2 * 1.96 / sqrt(U), 0.05);
    close_to(share[0], 0, 0);
    close_to(share[2], 0, 0);
}

static void test_bootstrap_few(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    for (int64_t U = 1; U <= 5; U++) {
        double sum[5], weight[5] = {1, 1, 1, 1, 1}, lo = 0, hi = 0, share[3];
        for (int64_t u = 0; u < U; u++) sum[u] = (double)(u * u) - 1.5;
        const struct geom_ratio ratio = {U, 1, sum, weight, NULL, NULL};
        double value;
        geom_ratio_value(&value, &ratio);
        assert_ok(geom_bootstrap(&lo, &hi, share, &ratio, 10000, 5, &err), &err);
        assert_true(share[0] == (value < 0));
        if (U == 1) {
            assert_true(isnan(lo) && isnan(hi) && isnan(share[1]) && isnan(share[2]));
            continue;
        }
        assert_true(lo >= sum[0] && hi <= sum[U - 1] && lo <= value && value <= hi && lo < hi);
        if (U == 2) close_to(lo, sum[0], 0), close_to(hi, sum[1], 0); /* each end has probability 1/4 */
    }
}

/* Two terms, units that lack one, cells without units, and the same bits for any number of threads and beside other
 * cells. */
static void test_bootstrap_ratio(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    enum { U = 12, C = 300, DRAWS = 500 };
    static double a[U * C], na[U * C], b[U * C], nb[U * C], one[4][U];
    double lo[C], hi[C], lo1[C], hi1[C], value[C], share[3], share1[3];
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, test_seed());
    for (int i = 0; i < U * C; i++) {
        na[i] = (double)gsl_rng_uniform_int(rng, 4);
        nb[i] = (double)gsl_rng_uniform_int(rng, 9) + (i % C == 5 ? 3 : 0);
        if (i % C == 7) na[i] = 0;
        if (i % C == 8) na[i] = nb[i] = 0;
        a[i] = na[i] * gsl_rng_uniform(rng);
        b[i] = nb[i] * gsl_rng_uniform(rng);
    }
    gsl_rng_free(rng);
    const struct geom_ratio ratio = {U, C, a, na, b, nb};
    geom_ratio_value(value, &ratio);
    assert_true(isnan(value[7]) && isnan(value[8]) && isfinite(value[5]));
    kern_set_threads(3);
    assert_ok(geom_bootstrap(lo, hi, share, &ratio, DRAWS, 11, &err), &err);
    kern_set_threads(1);
    assert_ok(geom_bootstrap(lo1, hi1, share1, &ratio, DRAWS, 11, &err), &err);
    kern_set_threads(0);
    assert_memory_equal(lo, lo1, sizeof lo);
    assert_memory_equal(hi, hi1, sizeof hi);
    assert_memory_equal(share, share1, sizeof share);
    assert_true(isnan(lo[7]) && isnan(hi[8]));
    /* a percentile interval of a share need not hold the share itself: only its order and range are theorems */
    assert_true(share[0] >= 0 && share[0] <= 1 && share[1] <= share[2] && share[1] >= 0 && share[2] <= 1);
    for (int c = 200; c < C; c += 50) { /* alone, in another block of cells */
        for (int u = 0; u < U; u++)
            one[0][u] = a[u * C + c], one[1][u] = na[u * C + c], one[2][u] = b[u * C + c], one[3][u] = nb[u * C + c];
        bool all = true; /* alone, units without either are not drawn: compare only where none is */
        for (int u = 0; u < U; u++) all &= one[1][u] > 0 || one[3][u] > 0;
        assert_ok(
            geom_bootstrap(lo1, hi1, NULL, &(struct geom_ratio){U, 1, one[0], one[1], one[2], one[3]}, DRAWS, 11, &err),
            &err);
        if (all) assert_true(lo1[0] == lo[c] && hi1[0] == hi[c]);
        assert_true(lo1[0] <= hi1[0]);
    }
}

/* Twins that cancel leave rounding noise, whose sign is no finding. */
static void test_rounding(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    assert_true(geom_rounded(1e-13) == 0 && geom_rounded(-1e-12) == 0 && geom_rounded(-1.1e-12) < 0);
    assert_true(isnan(geom_rounded(NAN)));
    const double a[8] = {0.3 + 1e-16, 0.5, 0.3, 0.5, 0.3 - 2e-16, 0.5, 0.3, 0.5}, weight[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const double b[8] = {0.3, 0.6, 0.3, 0.6, 0.3, 0.6, 0.3, 0.6};
    double value[2], lo[2], hi[2], share[3];
    const struct geom_ratio ratio = {4, 2, a, weight, b, weight};
    geom_ratio_value(value, &ratio);
    assert_true(value[0] == 0 && value[1] < 0);
    assert_ok(geom_bootstrap(lo, hi, share, &ratio, 200, 1, &err), &err);
    assert_true(lo[0] == 0 && hi[0] == 0);
    for (int i = 0; i < 3; i++) close_to(share[i], 0.5, 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_units),
    cmocka_unit_test(test_sign_flip_exact),
    cmocka_unit_test(test_sign_flip_drawn),
    cmocka_unit_test(test_false_discovery),
    cmocka_unit_test(test_bootstrap_coverage),
    cmocka_unit_test(test_bootstrap_few),
    cmocka_unit_test(test_bootstrap_ratio),
    cmocka_unit_test(test_rounding),
};
TEST_GROUP(inference, "units, bootstrap, sign flips, false discovery rate", tests)
