/* tests/test_geometry.c: moments, eigenproblems, spectra and alignment: identities, invariances, degenerate input and
 * the numbers of CASES.md, on the reference and the cpu kernels. */
#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <string.h>

#include "geometry/alignment.h"
#include "geometry/spectrum.h"
#include "kernels/ops.h"
#include "tests/test.h"

struct kernels {
    const char *name;
    void (*moments)(double *, double *, const float *, const int32_t *, int64_t, int64_t, int64_t);
    void (*align)(double *, double *, const float *, const double *, const double *, int64_t, int64_t, int64_t,
                  int64_t);
    void (*eigh)(double *, double *, int *, int64_t, int64_t);
};
static const struct kernels backends[] = {{"ref", kern_moments_ref, kern_align_ref, kern_eigh_ref},
                                          {"cpu", kern_moments_cpu, kern_align_cpu, kern_eigh_cpu}};
#define BACKENDS ((int)(sizeof(backends) / sizeof(backends[0])))

#define GUARD 8
static const double guard = 1.0e300;

/* One head: keys (T, D) at a stride, and everything that geometry makes of them. */
struct head {
    struct ag_arena *arena;
    int64_t T, D, stride;
    float *x;
    int32_t *rows;
    double *mu, *cov, *s, *u, *inside, *total;
    int info;
};

static double *guarded(struct ag_arena *arena, int64_t n) {
    double *data = AG_NEW(arena, double, n + 2 * GUARD, NULL);
    assert_non_null(data);
    for (int64_t i = 0; i < n + 2 * GUARD; i++) data[i] = guard;
    return data + GUARD;
}

static void check_guard(const double *data, int64_t n) {
    for (int64_t i = 1; i <= GUARD; i++) assert_true(data[-i] == guard && data[n - 1 + i] == guard);
}

static struct head head_new(int64_t T, int64_t D, int64_t stride) {
    struct head head = {.arena = ag_arena_new("test"), .T = T, .D = D, .stride = stride};
    assert_non_null(head.arena);
    head.x = AG_ZEROS(head.arena, float, T *stride + 1, NULL);
    head.rows = AG_NEW(head.arena, int32_t, T + 1, NULL);
    for (int64_t t = 0; t < T; t++) head.rows[t] = (int32_t)t;
    head.mu = guarded(head.arena, D);
    head.cov = guarded(head.arena, D * D);
    head.s = guarded(head.arena, D);
    head.u = guarded(head.arena, D * D);
    head.inside = guarded(head.arena, T);
    head.total = guarded(head.arena, T);
    return head;
}

/* Keys with a decaying spectrum, mixed axes and an offset. */
static void head_fill(struct head *head, double offset, uint64_t seed) {
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, seed);
    for (int64_t t = 0; t < head->T; t++) {
        double shared = gsl_ran_gaussian(rng, 1);
        for (int64_t i = 0; i < head->D; i++)
            head->x[t * head->stride + i] =
                (float)(offset + gsl_ran_gaussian(rng, 1) / (1 + 0.2 * (double)i) + shared * cos((double)i));
        for (int64_t i = head->D; i < head->stride; i++) head->x[t * head->stride + i] = NAN; /* never to be read */
    }
    gsl_rng_free(rng);
}

static void head_run(struct head *head, const struct kernels *k, int64_t r) {
    k->moments(head->mu, head->cov, head->x, head->rows, head->T, head->D, head->stride);
    memcpy(head->u, head->cov, (size_t)(head->D * head->D) * sizeof(double));
    k->eigh(head->s, head->u, &head->info, 1, head->D);
    if (head->info == 0)
        k->align(head->inside, head->total, head->x, head->mu, head->u, head->T, head->D, r, head->stride);
    check_guard(head->mu, head->D);
    check_guard(head->cov, head->D * head->D);
    check_guard(head->s, head->D);
    check_guard(head->u, head->D * head->D);
    check_guard(head->inside, head->T);
    check_guard(head->total, head->T);
}

static void close_to(double got, double expected, double tolerance) {
    const double error = fabs(got - expected);
    if (!(error <= tolerance)) fail_msg("%.17g is not %.17g within %g (off by %g)", got, expected, tolerance, error);
}

static void test_backends_agree(void **state) {
    (void)state;
    const int64_t dims[] = {1, 2, 3, 7, 8, 15, 16, 17, 32, 40, 63, 64, 65, 128, 200},
                  lengths[] = {1, 2, 31, 64, 65, 200};
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++) {
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            const int64_t D = dims[d], T = lengths[l], r = D > 16 ? 16 + (D > 40) : (D + 1) / 2;
            struct head a = head_new(T, D, D + (int64_t)(l % 3)), b = head_new(T, D, a.stride);
            head_fill(&a, 50, test_seed() + d * 31 + l);
            memcpy(b.x, a.x, (size_t)(T * a.stride) * sizeof(float));
            head_run(&a, &backends[0], r);
            head_run(&b, &backends[1], r);
            double trace = 0;
            for (int64_t i = 0; i < D; i++) trace += a.cov[i * D + i];
            for (int64_t i = 0; i < D; i++) close_to(b.mu[i], a.mu[i], 1e-12);
            for (int64_t i = 0; i < D * D; i++) close_to(b.cov[i], a.cov[i], 1e-12 * trace);
            for (int64_t i = 0; i < D; i++) close_to(b.s[i], a.s[i], 1e-12 * trace);
            /* the axes of one backend for both: inside a cluster they may differ */
            backends[1].align(b.inside, b.total, b.x, a.mu, a.u, T, D, r, b.stride);
            for (int64_t t = 0; t < T; t++) {
                close_to(b.total[t], a.total[t], 1e-12 * a.total[t]);
                close_to(b.inside[t], a.inside[t], 1e-12 * a.total[t] + 1e-24);
            }
            ag_arena_free(a.arena);
            ag_arena_free(b.arena);
        }
    }
}

static void test_rows_and_empty(void **state) {
    (void)state;
    struct head a = head_new(100, 24, 24), b = head_new(40, 24, 24);
    head_fill(&a, 3, test_seed());
    for (int b_ = 0; b_ < BACKENDS; b_++) {
        for (int64_t t = 0; t < 40; t++) {
            a.rows[t] = (int32_t)(2 * t + t / 3);
            memcpy(b.x + t * 24, a.x + a.rows[t] * 24, 24 * sizeof(float));
        }
        backends[b_].moments(a.mu, a.cov, a.x, a.rows, 40, 24, 24);
        backends[b_].moments(b.mu, b.cov, b.x, b.rows, 40, 24, 24);
        assert_memory_equal(a.mu, b.mu, 24 * sizeof(double));
        assert_memory_equal(a.cov, b.cov, 24 * 24 * sizeof(double));
        backends[b_].moments(a.mu, a.cov, a.x, a.rows, 0, 24, 24);
        for (int64_t i = 0; i < 24; i++) assert_true(isnan(a.mu[i]));
        for (int64_t i = 0; i < 24 * 24; i++) assert_true(isnan(a.cov[i]));
    }
    ag_arena_free(a.arena);
    ag_arena_free(b.arena);
}

static void test_identities(void **state) {
    (void)state;
    const int64_t T = 300, D = 64, r = 16;
    for (int b = 0; b < BACKENDS; b++) {
        struct head h = head_new(T, D, D);
        head_fill(&h, 10, test_seed() + 7);
        head_run(&h, &backends[b], r);
        assert_int_equal(h.info, 0);
        double trace = 0, sum = 0, inside = 0, total = 0;
        for (int64_t i = 0; i < D; i++) trace += h.cov[i * D + i], sum += h.s[i];
        close_to(sum, trace, 1e-12 * trace);
        for (int64_t i = 0; i < D; i++) {
            assert_true(i == 0 || h.s[i] <= h.s[i - 1]);
            double biggest = 0;
            for (int64_t j = 0; j < D; j++) {
                double dot = 0, residual = 0;
                for (int64_t k = 0; k < D; k++) dot += h.u[i * D + k] * h.u[j * D + k];
                for (int64_t k = 0; k < D; k++) residual += h.cov[j * D + k] * h.u[i * D + k];
                close_to(dot, i == j, 1e-13 * (double)D);
                close_to(residual, h.s[i] * h.u[i * D + j], 1e-12 * trace);
                if (fabs(h.u[i * D + j]) > fabs(biggest)) biggest = h.u[i * D + j];
            }
            assert_true(biggest > 0); /* the sign rule */
        }
        /* MATH section 4: sum a |k - mu|^2 / sum |k - mu|^2 = EV_r, and the total is T tr Sigma */
        uint8_t role[300];
        double a[300];
        struct geom_alignment alignment;
        memset(role, AG_ROLE_HAYSTACK, sizeof(role));
        geom_align(&alignment, a, h.inside, h.total, role, T, 0);
        for (int64_t t = 0; t < T; t++) {
            assert_true(a[t] >= 0 && a[t] <= 1);
            inside += a[t] * h.total[t];
            total += h.total[t];
        }
        close_to(inside / total, geom_explained(h.s, D, r), 1e-12);
        close_to(total / (double)T, trace, 1e-12 * trace);
        close_to(geom_role_mean(&alignment, AG_ROLE_HAYSTACK) * (double)T, alignment.sum[AG_ROLE_HAYSTACK], 1e-9);
        ag_arena_free(h.arena);
    }
}

/* Householder reflection, a translation and another order of the tokens change no spectrum and no alignment. */
static void test_invariances(void **state) {
    (void)state;
    const int64_t T = 200, D = 48, r = 8;
    for (int b = 0; b < BACKENDS; b++) {
        struct head h = head_new(T, D, D), g = head_new(T, D, D);
        head_fill(&h, 0, test_seed() + 1);
        for (int64_t t = 0; t < T; t++) /* a clear gap after the r-th axis, whatever the seed */
            for (int64_t i = 0; i < r; i++) h.x[t * D + i] *= 4;
        double v[48], norm = 0;
        for (int64_t i = 0; i < D; i++) v[i] = sin((double)(3 * i + 1)), norm += v[i] * v[i];
        for (int64_t t = 0; t < T; t++) {
            const float *key = h.x + (T - 1 - t) * D;
            double dot = 0;
            for (int64_t i = 0; i < D; i++) dot += v[i] * key[i];
            for (int64_t i = 0; i < D; i++) g.x[t * D + i] = (float)(key[i] - 2 * dot / norm * v[i] + 4);
        }
        head_run(&h, &backends[b], r);
        head_run(&g, &backends[b], r);
        for (int64_t i = 0; i < D; i++) close_to(g.s[i], h.s[i], 3e-6 * h.s[0]); /* the moved keys are rounded to f32 */
        for (int64_t t = 0; t < T; t++)
            close_to(g.inside[t] / g.total[t], h.inside[T - 1 - t] / h.total[T - 1 - t], 1e-4);
        ag_arena_free(h.arena);
        ag_arena_free(g.arena);
    }
}

static void test_merge(void **state) {
    (void)state;
    const int64_t D = 33, T = 257, cuts[] = {0, 1, 2, 100, 256, 257};
    struct head h = head_new(T, D, D), a = head_new(T, D, D), b = head_new(T, D, D);
    head_fill(&h, 1000, test_seed() + 3);
    kern_moments_ref(h.mu, h.cov, h.x, h.rows, T, D, D);
    for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
        int64_t n = cuts[c];
        kern_moments_cpu(a.mu, a.cov, h.x, h.rows, n, D, D);
        kern_moments_cpu(b.mu, b.cov, h.x, h.rows + n, T - n, D, D);
        geom_moments_merge(&n, a.mu, a.cov, T - n, b.mu, b.cov, D);
        assert_int_equal(n, T);
        for (int64_t i = 0; i < D; i++) close_to(a.mu[i], h.mu[i], 1e-12 * 1000);
        for (int64_t i = 0; i < D * D; i++) close_to(a.cov[i], h.cov[i], 1e-11);
    }
    ag_arena_free(h.arena);
    ag_arena_free(a.arena);
    ag_arena_free(b.arena);
}

static void test_ranks(void **state) {
    (void)state;
    const double flat[4] = {2, 2, 2, 2}, one[4] = {5, 0, 0, 0}, none[4] = {0, 0, 0, 0}, mixed[4] = {4, 2, 1, 1},
                 thin[3] = {1, 1, 1e-12};
    struct geom_ranks g = geom_ranks(flat, 4, 8);
    close_to(g.effective_rank, 4, 1e-14);
    close_to(g.participation_ratio, 4, 1e-14);
    close_to(g.stable_rank, 4, 0);
    close_to(g.numerical_rank, 4, 0);
    close_to(g.condition, 1, 0);
    close_to(g.mean_dominance, 0.5, 0);
    close_to(geom_explained(flat, 4, 3), 0.75, 0);
    close_to(geom_gap(flat, 4, 2), 0, 0);
    g = geom_ranks(one, 4, 0);
    close_to(g.effective_rank, 1, 0);
    close_to(g.participation_ratio, 1, 0);
    close_to(g.numerical_rank, 1, 0);
    close_to(g.condition, 1, 0);
    close_to(g.mean_dominance, 0, 0);
    assert_true(isnan(geom_gap(one, 4, 2)) && isnan(geom_gap(one, 4, 4)));
    close_to(geom_gap(one, 4, 1), 1, 0);
    g = geom_ranks(none, 4, 9);
    assert_true(isnan(g.effective_rank) && isnan(g.participation_ratio) && isnan(g.stable_rank) &&
                isnan(g.numerical_rank) && isnan(g.condition) && isnan(geom_explained(none, 4, 2)));
    close_to(g.trace, 0, 0);
    close_to(g.mean_dominance, 1, 0);
    assert_true(isnan(geom_ranks(none, 4, 0).mean_dominance));
    g = geom_ranks(mixed, 4, 8);
    close_to(g.effective_rank, exp(0.5 * log(2) + 0.25 * log(4) + 0.25 * log(8)), 1e-14);
    close_to(g.participation_ratio, 64.0 / 22, 1e-14);
    close_to(g.stable_rank, 2, 0);
    close_to(g.condition, 4, 0);
    close_to(geom_gap(mixed, 4, 1), 0.5, 0);
    g = geom_ranks(thin, 3, 0);
    close_to(g.numerical_rank, 2, 0);
    close_to(g.condition, 1, 0);
    const double nan_[2] = {NAN, 1};
    assert_true(isnan(geom_ranks(nan_, 2, 1).trace));
    double negative[3] = {1, -1e-18, -1e-17};
    geom_spectrum_clamp(negative, 3);
    assert_true(negative[1] == 0 && negative[2] == 0);
}

/* Zero, identity, rank one, diag(1, 1, 1e-12), a block that is degenerate, one NaN, one infinity, huge and tiny. */
static void test_eigh_degenerate(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        double a[9] = {0}, w[3];
        int info = -1;
        backends[b].eigh(w, a, &info, 1, 3);
        assert_int_equal(info, 0);
        assert_true(w[0] == 0 && w[1] == 0 && w[2] == 0);
        double eye[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
        backends[b].eigh(w, eye, &info, 1, 3);
        assert_int_equal(info, 0);
        for (int i = 0; i < 3; i++) close_to(w[i], 1, 1e-15);
        double one[9] = {1, 2, 3, 2, 4, 6, 3, 6, 9};
        backends[b].eigh(w, one, &info, 1, 3);
        assert_int_equal(info, 0);
        close_to(w[0], 14, 1e-13);
        close_to(w[1], 0, 1e-13);
        close_to(w[2], 0, 1e-13);
        for (int i = 0; i < 3; i++) close_to(one[i], (i + 1) / sqrt(14), 1e-14);
        double thin[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1e-12};
        backends[b].eigh(w, thin, &info, 1, 3);
        assert_int_equal(info, 0);
        close_to(w[1], 1, 1e-15);
        close_to(w[2], 1e-12, 1e-15);
        double scaled[2][4] = {{2e200, 1e200, 1e200, 2e200}, {2e-200, 1e-200, 1e-200, 2e-200}};
        backends[b].eigh(w, scaled[0], &info, 1, 2);
        close_to(w[0] / 1e200, 3, 1e-13);
        close_to(w[1] / 1e200, 1, 1e-13);
        backends[b].eigh(w, scaled[1], &info, 1, 2);
        close_to(w[0] / 1e-200, 3, 1e-13);
        /* one bad problem does not touch its neighbours */
        double three[3][4] = {{2, 1, 1, 2}, {1, NAN, NAN, 1}, {INFINITY, 0, 0, 1}}, values[3][2];
        int infos[3] = {-1, -1, -1};
        backends[b].eigh(values[0], three[0], infos, 3, 2);
        assert_int_equal(infos[0], 0);
        close_to(values[0][0], 3, 1e-14);
        assert_int_equal(infos[1], KERN_EIGH_NOT_FINITE);
        assert_int_equal(infos[2], KERN_EIGH_NOT_FINITE);
    }
}

/* Equal keys, also of values that no sum of few bits holds: Sigma is exactly zero and no alignment is defined. */
static void test_equal_keys(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        struct head h = head_new(300, 20, 20);
        for (int64_t t = 0; t < h.T; t++)
            for (int64_t i = 0; i < h.D; i++) h.x[t * h.D + i] = (float)(1e4 * sin((double)i + 0.1));
        head_run(&h, &backends[b], 4);
        uint8_t role[300] = {0};
        struct geom_alignment alignment;
        geom_align(&alignment, NULL, h.inside, h.total, role, h.T, 0);
        assert_int_equal(alignment.count[AG_ROLE_HAYSTACK], 0);
        assert_int_equal(alignment.undefined[AG_ROLE_HAYSTACK], 300);
        assert_true(isnan(geom_role_mean(&alignment, AG_ROLE_HAYSTACK)));
        for (int64_t i = 0; i < h.D * h.D; i++) assert_true(h.cov[i] == 0);
        assert_true(isnan(geom_ranks(h.s, h.D, 1).effective_rank));
        ag_arena_free(h.arena);
    }
}

static void test_cases_numbers(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        struct head h = head_new(2, 2, 2);
        const float keys[4] = {10001, 10000, 10000, 10001};
        memcpy(h.x, keys, sizeof(keys));
        head_run(&h, &backends[b], 1);
        close_to(h.s[0], 0.5, 1e-15);
        close_to(h.s[1], 0, 1e-15);
        close_to(fabs(h.u[0]), sqrt(0.5), 1e-14);
        close_to(h.u[0] + h.u[1], 0, 1e-14);
        ag_arena_free(h.arena);

        /* 32,768 keys with channels of mean 40 and 400 and deviation 0.05, 1 beside them; the truth from the f32 values
         */
        struct head g = head_new(32768, 3, 3);
        gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
        gsl_rng_set(rng, test_seed());
        long double sum[3] = {0}, square[3] = {0};
        const double mean[3] = {40, 400, 0}, deviation[3] = {0.05, 0.05, 1};
        for (int64_t t = 0; t < g.T; t++) {
            for (int i = 0; i < 3; i++) {
                const double value =
                    mean[i] + (t < 64 ? 0.5 : 0) + gsl_ran_gaussian(rng, deviation[i]); /* a poor reference */
                g.x[t * 3 + i] = (float)value;
                sum[i] += g.x[t * 3 + i] - (long double)mean[i];
                square[i] += ((long double)g.x[t * 3 + i] - mean[i]) * ((long double)g.x[t * 3 + i] - mean[i]);
            }
        }
        gsl_rng_free(rng);
        head_run(&g, &backends[b], 1);
        for (int i = 0; i < 3; i++) {
            const double truth = (double)(square[i] / g.T - (sum[i] / g.T) * (sum[i] / g.T));
            close_to(g.cov[i * 3 + i], truth, 1e-9 * truth);
        }
        close_to(g.cov[0], 0.0025 + 0.25 * 64 / 32768, 1e-4);
        ag_arena_free(g.arena);
    }
}

static void test_align_roles(void **state) {
    (void)state;
    const double inside[7] = {1, 1, 9, 3, 0, 1e-30, 5}, total[7] = {2, 4, 10, 4, 0, 1.1e-23, 1e30};
    const uint8_t role[7] = {AG_ROLE_SPECIAL,    AG_ROLE_NEEDLE,   AG_ROLE_NEEDLE, AG_ROLE_DISTRACTOR,
                             AG_ROLE_DISTRACTOR, AG_ROLE_HAYSTACK, AG_ROLE_ANSWER};
    struct geom_alignment g;
    double a[7];
    assert_true(geom_largest(total, role, 7, 1) == 10); /* the answer's 1e30 is not looked at */
    geom_align(&g, a, inside, total, role, 7, 1);
    assert_true(isnan(a[0]) && isnan(a[4]) && a[1] == 0.25);
    assert_int_equal(g.count[AG_ROLE_SPECIAL], 0);
    assert_int_equal(g.count[AG_ROLE_NEEDLE], 2);
    close_to(geom_role_mean(&g, AG_ROLE_NEEDLE), (0.25 + 0.9) / 2, 1e-16);
    assert_int_equal(g.count[AG_ROLE_DISTRACTOR], 1);
    assert_int_equal(g.undefined[AG_ROLE_DISTRACTOR], 1);
    assert_int_equal(g.count[AG_ROLE_HAYSTACK], 1);
    assert_int_equal(g.count[AG_ROLE_ANSWER], 1);
    assert_true(isnan(geom_role_mean(&g, AG_ROLE_QUESTION)));
    geom_align(&g, NULL, inside, total, role, 7, 9); /* skip past the end */
    for (int i = 0; i < AG_ROLE_COUNT; i++) assert_true(g.count[i] == 0 && g.undefined[i] == 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_backends_agree),  cmocka_unit_test(test_rows_and_empty), cmocka_unit_test(test_identities),
    cmocka_unit_test(test_invariances),     cmocka_unit_test(test_merge),          cmocka_unit_test(test_ranks),
    cmocka_unit_test(test_eigh_degenerate), cmocka_unit_test(test_equal_keys),     cmocka_unit_test(test_cases_numbers),
    cmocka_unit_test(test_align_roles),
};
TEST_GROUP(geometry, "moments, eigenproblems, spectra, alignment", tests)
