/* tests/test_logits.c: the log-partition kernel: cpu against the compensated reference within the stated error bounds,
 * independence of threads, windows, groups, degenerate inputs. */
#include "tests/test.h"

#include <gsl/gsl_rng.h>
#include <math.h>
#include <mpfr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "kernels/simd_double.h"

static double normal(gsl_rng *rng) {
    return sqrt(-2 * log(gsl_rng_uniform_pos(rng))) * cos(2 * M_PI * gsl_rng_uniform(rng));
}

/* |a - b| <= bound_a + bound_b, NaN fails. */
static void agree(const char *what, int64_t t, double a, double da, double b, double db) {
    if (!(fabs(a - b) <= da + db))
        fail_msg("%s at %lld: %.17g +- %g and %.17g +- %g", what, (long long)t, a, da, b, db);
}

static void compare(int64_t T, int64_t Hk, int64_t G, int64_t D, double size, double offset, int64_t window,
                    gsl_rng *rng) {
    int64_t Hq = Hk * G, nk = T * Hk * D, nq = T * Hq * D;
    float *k = malloc((size_t)nk * 4 + 4), *q = malloc((size_t)nq * 4 + 4);
    struct kern_logit_moments *r = malloc((size_t)(Hq * T + 1) * sizeof *r),
                              *c = malloc((size_t)(Hq * T + 1) * sizeof *c),
                              *one = malloc((size_t)(Hq * T + 1) * sizeof *one);
    for (int64_t i = 0; i < nk; i++) k[i] = (float)(size * normal(rng) + offset);
    for (int64_t i = 0; i < nq; i++) q[i] = (float)normal(rng);
    memset(c, 0x5a, (size_t)(Hq * T + 1) * sizeof *c);
    double scale = 1 / sqrt((double)D);
    /* (T, heads, D) in memory, as the forward pass has it */
    kern_logit_moments_ref(r, k, q, T, Hq, Hk, D, D, Hk * D, D, Hq * D, scale, window);
    kern_set_threads(2);
    kern_logit_moments_cpu(c, k, q, T, Hq, Hk, D, D, Hk * D, D, Hq * D, scale, window);
    kern_set_threads(1);
    kern_logit_moments_cpu(one, k, q, T, Hq, Hk, D, D, Hk * D, D, Hq * D, scale, window);
    kern_set_threads(0);
    assert_memory_equal(c, one, (size_t)(Hq * T) * sizeof *c);
    assert_int_equal(((unsigned char *)(c + Hq * T))[0], 0x5a);
    for (int64_t i = 0; i < Hq * T; i++) {
        assert_int_equal(c[i].t, r[i].t);
        agree("m", i, c[i].m, c[i].dm, r[i].m, r[i].dm);
        agree("v", i, c[i].v, c[i].dv, r[i].v, r[i].dv);
        agree("a", i, c[i].a, c[i].dab, r[i].a, r[i].dab);
        agree("b", i, c[i].b, c[i].dab, r[i].b, r[i].dab);
        agree("A", i, c[i].A, c[i].dA, r[i].A, r[i].dA);
        double s = sqrt(r[i].v) + c[i].dm * 1e3;
        /* logits off by eps move k3 by 6 w^2 eps and k4 by 14 w^3 eps at most (enclosure.c); dm bounds eps */
        double w = r[i].b - r[i].a, eps = c[i].dm + r[i].dm;
        agree("k3", i, c[i].k3, 1e-9 * s * s * s + 6 * w * w * eps, r[i].k3, 1e-300);
        agree("k4", i, c[i].k4, 1e-9 * s * s * s * s * (double)r[i].t + 14 * w * w * w * eps, r[i].k4, 1e-300);
        agree("effective", i, c[i].effective, 1e-9 * c[i].effective, r[i].effective, 0);
        agree("largest", i, c[i].largest, 1e-9 * (1 + fabs(r[i].b)), r[i].largest, 0);
        /* the bounds must be worth something: 1e-11 of the scale of the logits */
        double span = fmax(fabs(c[i].a), fabs(c[i].b)) + size * sqrt((double)D) + fabs(offset) * (double)D + 1;
        assert_true(c[i].dA <= 1e-11 * span && c[i].dm <= 1e-11 * span);
    }
    free(k), free(q), free(r), free(c), free(one);
}

static void cpu_within_bounds(void **state) {
    (void)state;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)test_seed());
    const int64_t lengths[] = {0, 1, 2, 3, 7, 8, 23, 24, 25, 63, 64, 65, 130, 300}, dims[] = {1, 3, 32, 64, 80};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
            compare(lengths[i], 1 + (int64_t)(i % 2), 1 + (int64_t)(d % 3), dims[d], 1, 0, 0, rng);
            compare(lengths[i], 2, 3, dims[d], 10, 5, d % 2 ? 5 : 70, rng);
        }
    compare(100, 1, 2, 64, 1e4, 0, 0, rng); /* logits of 1e4 and more */
    compare(100, 1, 2, 64, 1e-30, 0, 0, rng);
    compare(100, 1, 2, 64, 0, 3, 0, rng);      /* equal keys */
    compare(100, 1, 2, 64, 0, 0, 0, rng);      /* zero keys */
    compare(100, 1, 2, 16, 1e-3, 400, 0, rng); /* far from the origin */
    gsl_rng_free(rng);
}

/* e^x = p 2^n within 4u, against MPFR; powers of two exact. */
static void exponential(void **state) {
    (void)state;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)test_seed());
    mpfr_t e, d;
    mpfr_inits2(120, e, d, (mpfr_ptr)NULL);
    double worst = 0;
    for (int i = 0; i < 40000; i++) {
        const double size = i % 4 == 0 ? 1 : i % 4 == 1 ? 700 : i % 4 == 2 ? 1e5 : 0x1p29;
        const double x = (2 * gsl_rng_uniform(rng) - 1) * size;
        kern_dvec n, p = kern_dexp(kern_dsplat(x), &n);
        mpfr_set_d(e, x, MPFR_RNDN); /* e^x 2^-n: 2^29: within the exponents of MPFR */
        mpfr_exp(e, e, MPFR_RNDN);
        mpfr_mul_2si(e, e, -(long)n[0], MPFR_RNDN);
        mpfr_sub_d(d, e, p[0], MPFR_RNDN);
        mpfr_div(d, d, e, MPFR_RNDN);
        const double error = fabs(mpfr_get_d(d, MPFR_RNDN)) * 0x1p53;
        if (!(error <= 4)) fail_msg("e^%.17g is off by %g units", x, error);
        worst = fmax(worst, error);
    }
    printf("           largest relative error %.2f units\n", worst);
    for (int n = -1022; n <= 0; n++) assert_true(kern_dpow2(kern_dsplat(n))[KERN_DV - 1] == ldexp(1, n));
    assert_true(kern_dpow2(kern_dsplat(-1e9))[0] == 0x1p-1022);
    mpfr_clears(e, d, (mpfr_ptr)NULL);
    mpfr_free_cache();
    gsl_rng_free(rng);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(exponential), cmocka_unit_test(cpu_within_bounds)};
TEST_GROUP(logits, "moments of every causal query's logits", tests)
