/* tests/test_taylor.c: the Taylor reducer. Counts, histograms, medians and sampled rows against naive long double in this file; the
 * same bits for any threads, waves and layout; windows, equal keys, q = 0, one-token prompts; refusals; the results file; and,
 * over adversarial keys and queries, the exact remainder (MPFR, exact products) inside every enclosure. */
#include <float.h>
#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <mpfr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/h5.h"
#include "kernels/ops.h"
#include "taylor/reducer.h"
#include "taylor/report.h"
#include "taylor/sample.h"
#include "taylor/state.h"
#include "tests/test.h"

enum { L = 3, P = 6, T_MAX = 80, WINDOW = 9 };

/* A made-up model: plain layer, window layer, ungrouped layer whose head 1 has equal keys and whose head 2 gets queries of zero. */
struct world {
    struct ag_arena *arena;
    struct ag_layer_shape shapes[L];
    bool selected[L];
    int64_t offsets[P + 1], twin[P];
    uint8_t role[P * T_MAX], value[P * T_MAX];
    const char *ids[P], *texts[P], *answers[P];
    struct ag_tokens tokens;
    struct ag_source source;
    float *keys[L], *queries[L]; /* (all T, heads, D) */
};

static struct world *world_new(void) {
    static const int64_t lengths[P] = {70, 1, 80, 33, 2, 64}, twins[P] = {2, -1, 0, -1, -1, -1};
    static const char *const ids[P] = {"a", "one", "a-twin", "c", "two", "e"};
    struct ag_arena *arena = ag_arena_new("world");
    struct world *w = AG_ZEROS(arena, struct world, 1, NULL);
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, 4711);
    w->arena = arena;
    w->shapes[0] = (struct ag_layer_shape){AG_LAYER_SOFTMAX, 4, 2, 24, 24, 0.2, 0};
    w->shapes[1] = (struct ag_layer_shape){AG_LAYER_SOFTMAX, 2, 1, 20, 20, 0.3, WINDOW};
    w->shapes[2] = (struct ag_layer_shape){AG_LAYER_SOFTMAX, 3, 3, 17, 17, 0.25, 0};
    for (int l = 0; l < L; l++) w->selected[l] = true;
    for (int p = 0; p < P; p++) {
        w->offsets[p + 1] = w->offsets[p] + lengths[p];
        w->twin[p] = twins[p];
        w->ids[p] = ids[p];
        w->texts[p] = "";
        for (int64_t t = 0; t < lengths[p];
             t++) /* the answer: a blank, then two value tokens; prompts 0, 2, 3 have one */
            if (p != 5 && t >= lengths[p] - 3 && lengths[p] > 3) {
                w->role[w->offsets[p] + t] = AG_ROLE_ANSWER;
                w->value[w->offsets[p] + t] = t >= lengths[p] - 2 ? AG_VALUE_ANSWER : 0;
            }
    }
    for (int l = 0; l < L; l++) {
        const struct ag_layer_shape *s = &w->shapes[l];
        const int64_t D = s->D, all = w->offsets[P];
        w->keys[l] = AG_NEW(arena, float, all * s->Hk * D, NULL);
        w->queries[l] = AG_NEW(arena, float, all * s->Hq * D, NULL);
        for (int64_t t = 0; t < all; t++) {
            for (int64_t h = 0; h < s->Hk; h++)
                for (int64_t d = 0; d < D; d++)
                    w->keys[l][(t * s->Hk + h) * D + d] =
                        l == 2 && h == 1
                            ? (float)cos((double)d)
                            : (float)(2 * cos((double)(d + h)) + gsl_ran_gaussian(rng, 1.5 / (1 + 0.3 * (double)d)));
            for (int64_t h = 0; h < s->Hq; h++)
                for (int64_t d = 0; d < D; d++)
                    w->queries[l][(t * s->Hq + h) * D + d] =
                        l == 2 && h == 2 ? 0 : (float)gsl_ran_gaussian(rng, t % 7 == 3 ? 6 : 0.8);
        }
    }
    gsl_rng_free(rng);
    w->tokens = (struct ag_tokens){.P = P,
                                   .T = w->offsets[P],
                                   .offsets = w->offsets,
                                   .role = w->role,
                                   .value = w->value,
                                   .prompt_id = w->ids,
                                   .text = w->texts,
                                   .answer = w->answers,
                                   .twin = w->twin};
    w->source = (struct ag_source){.model = "made-up",
                                   .architecture = "llama",
                                   .checkpoint_sha256 = "00",
                                   .backend = "cpu",
                                   .dtype = "f32",
                                   .command_line = "attgeo test",
                                   .seed = 3,
                                   .L = L,
                                   .layers = w->shapes,
                                   .selected = w->selected,
                                   .tap = AG_TAP_ROPE,
                                   .last_tap = AG_TAP_ROPE,
                                   .tokens = &w->tokens};
    return w;
}

static struct ag_block block_of(const struct world *w, int64_t l, int64_t p) {
    const struct ag_layer_shape *s = &w->shapes[l];
    const int64_t at = w->offsets[p];
    return (struct ag_block){.layer = l,
                             .prompt = p,
                             .tap = w->source.tap,
                             .shape = s,
                             .T = w->offsets[p + 1] - at,
                             .role = w->role + at,
                             .keys = {w->keys[l] + at * s->Hk * s->D, s->D, s->Hk * s->D},
                             .queries = {w->queries[l] + at * s->Hq * s->D, s->D, s->Hq * s->D}};
}

static const struct kern_ops *backend(enum ag_backend which) {
    const struct kern_ops *ops;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(kern_backend(&ops, which, &err), &err);
    return ops;
}

/* All layers in waves of `wave` prompts (layers inside waves or the other way round), finished into path. */
static struct ag_reducer *run_world(const struct world *w, const struct taylor_options *options, enum ag_backend which,
                                    int64_t threads, int64_t wave, bool layers_inside, const char *path) {
    struct ag_error err = AG_ERROR_INIT;
    struct ag_reducer *reducer;
    const int64_t waves = (w->tokens.P + wave - 1) / wave;
    kern_set_threads(threads);
    assert_ok(taylor_reducer_new(&reducer, options, backend(which), NULL, &err), &err);
    assert_ok(reducer->class_->begin(reducer, &w->source, &err), &err);
    assert_true(reducer->class_->bytes(reducer, &w->source) > 0);
    for (int64_t i = 0; i < waves * L; i++) {
        const int64_t l = layers_inside ? i % L : i / waves, first = (layers_inside ? i / L : i % waves) * wave;
        struct ag_block blocks[P];
        int64_t n = 0;
        if (!w->selected[l]) continue;
        for (int64_t p = first; p < first + wave && p < w->tokens.P; p++) blocks[n++] = block_of(w, l, p);
        assert_ok(reducer->class_->reduce(reducer, blocks, n, &err), &err);
    }
    assert_ok(reducer->class_->finish(reducer, path, true, &err), &err);
    kern_set_threads(0);
    return reducer;
}

/* ---- naive ---------------------------------------------------------------------------------------------------------- */

struct naive {
    int64_t t;
    long double x[T_MAX], m, v, a, b, A, k3, k4, c, R, effective, largest, q_norm, reach_up, reach_down, radius;
    long double lo[TAYLOR_BOUNDS], hi[TAYLOR_BOUNDS];
    long double cosine, gradient;
};

static long double psi_of(long double z) {
    return fabsl(z) < 1e-4L ? 0.5L + z / 6 + z * z / 24 : (expm1l(z) - z) / (z * z);
}

static void markov(long double *lo, long double *hi, long double v, long double up, long double down) {
    const long double wu = v / (v + up * up), wl = v / (v + down * down);
    *hi = logl(wu * expl(up) + (1 - wu) * expl(-v / up)) - v / 2;
    *lo = fmaxl(logl(wl * expl(-down) + (1 - wl) * expl(v / down)) - v / 2, -v / 2);
}

static void naive_of(struct naive *n, const struct ag_block *block, int64_t h, int64_t t) {
    const struct ag_layer_shape *s = block->shape;
    const int64_t D = s->D, first = s->window > 0 && t >= s->window ? t + 1 - s->window : 0, g = h / (s->Hq / s->Hk),
                  N = t + 1 - first;
    const float *q = block->queries.data + h * block->queries.head_stride + t * block->queries.token_stride;
    const float *k = block->keys.data + g * block->keys.head_stride + first * block->keys.token_stride;
    const int64_t stride = block->keys.token_stride;
    long double S = 0, S2 = 0, mu[32] = {0}, read[32] = {0}, sigma_q[32] = {0}, square = 0;
    memset(n, 0, sizeof *n);
    n->t = N;
    for (int64_t d = 0; d < D; d++) square += (long double)q[d] * q[d];
    n->q_norm = fabsl((long double)s->scale) * sqrtl(square);
    n->a = INFINITY, n->b = -INFINITY;
    for (int64_t j = 0; j < N; j++) {
        for (int64_t d = 0; d < D; d++) {
            n->x[j] += (long double)q[d] * k[j * stride + d];
            mu[d] += (long double)k[j * stride + d] / N;
        }
        n->x[j] *= s->scale;
        n->m += n->x[j] / N;
        n->a = fminl(n->a, n->x[j]);
        n->b = fmaxl(n->b, n->x[j]);
    }
    long double m3 = 0, m4 = 0;
    for (int64_t j = 0; j < N; j++) {
        const long double y = n->x[j] - n->m, p = expl(n->x[j] - n->b);
        n->v += y * y / N, m3 += y * y * y / N, m4 += y * y * y * y / N;
        S += p, S2 += p * p;
        long double distance = 0;
        for (int64_t d = 0; d < D; d++) {
            const long double z = k[j * stride + d] - mu[d];
            distance += z * z;
            read[d] += p * z;
            sigma_q[d] += z * y / N;
        }
        n->radius = fmaxl(n->radius, sqrtl(distance));
    }
    n->k3 = m3, n->k4 = m4 - 3 * n->v * n->v;
    n->A = n->b + logl(S);
    n->c = logl(S / N) + n->b - n->m;
    n->R = n->c - n->v / 2;
    n->effective = S * S / S2;
    n->largest = 1 / S;
    long double gg = 0, gs = 0, ss = 0, ee = 0;
    for (int64_t d = 0; d < D; d++) {
        read[d] /= S;
        gg += read[d] * read[d], gs += read[d] * sigma_q[d], ss += sigma_q[d] * sigma_q[d];
        ee += (read[d] - sigma_q[d]) * (read[d] - sigma_q[d]);
    }
    n->cosine = gs / sqrtl(gg * ss);
    n->gradient = sqrtl(ee);
    /* the bounds as MATH.md section 5 writes them */
    const long double r = n->b - n->a;
    n->hi[0] = r * r * r / (36 * sqrtl(3)), n->lo[0] = -n->hi[0];
    n->lo[1] = n->v * (psi_of(-r) - 0.5L), n->hi[1] = n->v * (psi_of(n->b - n->m) - 0.5L);
    markov(&n->lo[2], &n->hi[2], n->v, n->b - n->m, n->m - n->a);
    long double rho = 0, offset = 0, high = 0, low = 0;
    for (int64_t j = 0; j < N; j++) {
        long double distance = 0;
        for (int64_t d = 0; d < D; d++) distance += powl((long double)k[j * stride + d] - k[d], 2);
        rho = fmaxl(rho, sqrtl(distance));
    }
    for (int64_t d = 0; d < D; d++) {
        long double least = k[d], most = k[d], z = s->scale * (long double)q[d];
        for (int64_t j = 0; j < N; j++) least = fminl(least, k[j * stride + d]), most = fmaxl(most, k[j * stride + d]);
        offset += powl(mu[d] - k[d], 2);
        high += fmaxl(z * most, z * least), low += fminl(z * most, z * least);
    }
    const long double ball = n->q_norm * (rho + sqrtl(offset)), samuelson = sqrtl((long double)(N - 1) * n->v);
    n->reach_up = fminl(fminl(ball, samuelson), high - n->m);
    n->reach_down = fminl(fminl(ball, samuelson), n->m - low);
    markov(&n->lo[3], &n->hi[3], n->v, n->reach_up, n->reach_down);
}

/* ---- counts, histograms, medians -------------------------------------------------------------------------------------- */

struct tally {
    int64_t sure[2 * TAYLOR_BINS], doubtful; /* values within 1e-6 of an edge may fall on either side */
};
static void tally(struct tally *t, long double x, long double absolute) {
    const int64_t at = (x < 0 ? 0 : 1) * TAYLOR_BINS;
    const double size = (double)fabsl(x), slack = 1e-6 * size + (double)absolute;
    if (taylor_bin(size - slack < 0 ? 0 : size - slack) != taylor_bin(size + slack))
        t->doubtful++;
    else
        t->sure[at + taylor_bin(size)]++;
}

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void counts_are_right(void **state) {
    (void)state;
    struct world *w = world_new();
    const struct taylor_options options = {3, 5, 0, 100, NULL, 0};
    struct ag_reducer *reducer =
        run_world(w, &options, AG_BACKEND_CPU, 2, P, false, test_path("build/test/taylor-counts.h5"));
    const struct taylor_results *r = taylor_reducer_results(reducer);
    static struct tally tallies[TAYLOR_QUANTITIES];
    static struct naive n;
    for (int64_t l = 0; l < L; l++)
        for (int64_t h = 0; h < w->shapes[l].Hq; h++) {
            memset(tallies, 0, sizeof tallies);
            for (int64_t p = 0; p < P; p++) {
                const struct ag_block block = block_of(w, l, p);
                const int64_t *got = r->records[l].counts + (p * w->shapes[l].Hq + h) * TAYLOR_COUNTS;
                int64_t least[TAYLOR_COUNTS] = {0}, most[TAYLOR_COUNTS] = {0}, ratios = 0;
                double ratio[T_MAX], spread[T_MAX], effective[T_MAX];
#define COUNT(c, holds, margin)                                                                                        \
    (least[c] += (holds) && fabsl((long double)(margin)) > 1e-9L,                                                      \
     most[c] += (holds) || fabsl((long double)(margin)) <= 1e-9L)
                for (int64_t t = 0; t < block.T; t++) {
                    naive_of(&n, &block, h, t);
                    const bool flat = n.a == n.b || n.t == 1 || (l == 2 && h >= 1); /* one key, equal keys, q = 0 */
                    const long double R = flat ? 0 : n.R, c = flat ? 0 : n.c, tiny = 1e-12L;
                    COUNT(TAYLOR_N_QUERIES, true, 1);
                    COUNT(TAYLOR_N_DEGENERATE, flat, 1);
                    for (int e = 0; e < TAYLOR_EPS; e++)
                        COUNT(TAYLOR_N_EPS_0 + e, flat || fabsl(R) <= taylor_eps[e] * c,
                              flat ? 1 : fabsl(R) - taylor_eps[e] * c);
                    tally(&tallies[TAYLOR_Q_NORM], n.q_norm, 0);
                    tally(&tallies[TAYLOR_RADIUS_V], flat ? 0 : sqrtl(n.v), 0);
                    tally(&tallies[TAYLOR_RANGE], flat ? 0 : n.b - n.a, tiny);
                    tally(&tallies[TAYLOR_C], c, tiny);
                    tally(&tallies[TAYLOR_ABS_R], fabsl(R), tiny);
                    tally(&tallies[TAYLOR_EFFECTIVE], n.effective, 0);
                    tally(&tallies[TAYLOR_LARGEST], n.largest, 0);
                    tally(&tallies[TAYLOR_ERROR_0], fabsl(n.A - logl(n.t)), tiny);
                    tally(&tallies[TAYLOR_ERROR_3], flat ? 0 : fabsl(R - n.k3 / 6), tiny * (1 + fabsl(n.k3)));
                    tally(&tallies[TAYLOR_ERROR_4], flat ? 0 : fabsl(R - n.k3 / 6 - n.k4 / 24),
                          tiny * (1 + fabsl(n.k3) + fabsl(n.k4)));
                    spread[t] = flat ? 0 : (double)sqrtl(n.v);
                    effective[t] = (double)n.effective;
                    if (flat) continue;
                    ratio[ratios++] = (double)(R / c);
                    tally(&tallies[TAYLOR_R_OVER_C], R / c, tiny / c);
                    tally(&tallies[TAYLOR_R_OVER_V2], fabsl(R) / (n.v / 2), tiny / n.v);
                    for (int k = 0; k < (w->shapes[l].window ? 3 : 4); k++) {
                        COUNT(TAYLOR_N_FINITE_B1 + k, true, 1);
                        COUNT(TAYLOR_N_SIGN_B1 + k, n.lo[k] > 0 || n.hi[k] < 0, fminl(fabsl(n.lo[k]), fabsl(n.hi[k])));
                        COUNT(TAYLOR_N_PROVED_B1 + k, n.lo[k] >= -n.v / 4, n.lo[k] + n.v / 4);
                        tally(&tallies[TAYLOR_WIDTH_B1 + k], (n.hi[k] - n.lo[k]) / fabsl(R), 1e-9L * (1 + 1 / (R * R)));
                    }
                }
                for (int c = 0; c < TAYLOR_COUNTS; c++)
                    if (!(got[c] >= least[c] && got[c] <= most[c]))
                        fail_msg("layer %d head %d prompt %d: %s is %d, expected %d to %d", (int)l, (int)h, (int)p,
                                 taylor_count_names[c], (int)got[c], (int)least[c], (int)most[c]);
                const double *median = r->records[l].medians + (p * w->shapes[l].Hq + h) * TAYLOR_MEDIANS;
                qsort(ratio, (size_t)ratios, sizeof *ratio, ascending);
                qsort(spread, (size_t)block.T, sizeof *spread, ascending);
                qsort(effective, (size_t)block.T, sizeof *effective, ascending);
#define MIDDLE(x, size) (((x)[((size)-1) / 2] + (x)[(size) / 2]) / 2)
                if (ratios == 0)
                    assert_true(isnan(median[TAYLOR_M_R_OVER_C]));
                else
                    assert_true(fabs(median[TAYLOR_M_R_OVER_C] - MIDDLE(ratio, ratios)) <= 1e-7);
                assert_true(fabs(median[TAYLOR_M_RADIUS_V] - MIDDLE(spread, block.T)) <=
                            1e-9 * (1 + fabs(median[TAYLOR_M_RADIUS_V])));
                assert_true(fabs(median[TAYLOR_M_EFFECTIVE] - MIDDLE(effective, block.T)) <=
                            1e-9 * median[TAYLOR_M_EFFECTIVE]);
            }
            for (int k = 0; k < TAYLOR_QUANTITIES; k++) {
                const int32_t *got = r->records[l].histograms + (h * TAYLOR_QUANTITIES + k) * 2 * TAYLOR_BINS;
                int64_t surplus = 0;
                for (int i = 0; i < 2 * TAYLOR_BINS; i++) {
                    if (got[i] < tallies[k].sure[i])
                        fail_msg("layer %d head %d: histogram of %s, bin %d: %d, expected %d", (int)l, (int)h,
                                 taylor_quantity_names[k], i, (int)got[i], (int)tallies[k].sure[i]);
                    surplus += got[i] - tallies[k].sure[i];
                }
                assert_int_equal(surplus, tallies[k].doubtful);
            }
        }
    /* a window carries no constant state: missing, not zero */
    assert_true(isnan(r->summary->layer_share[1 * TAYLOR_COUNTS + TAYLOR_N_FINITE_B4].value));
    assert_true(r->summary->layer_share[0 * TAYLOR_COUNTS + TAYLOR_N_FINITE_B4].value == 1);
    assert_true(isnan(r->summary->layer_quantiles[(1 * TAYLOR_QUANTITIES + TAYLOR_WIDTH_B4) * TAYLOR_QUANTILES + 3]));
    reducer->class_->free(reducer);
    ag_arena_free(w->arena);
}

/* ---- sampled rows ------------------------------------------------------------------------------------------------------ */

static void near(const char *what, const struct taylor_sample *row, double got, long double expected,
                 long double tolerance) {
    if (!(fabsl(got - expected) <= tolerance))
        fail_msg("%s of layer %d head %d prompt %d position %d: %.17g, expected %.17Lg within %.3Lg", what,
                 (int)row->layer, (int)row->head, (int)row->prompt, (int)row->position, got, expected, tolerance);
}

static void samples_are_right(void **state) {
    (void)state;
    struct world *w = world_new();
    const struct taylor_options options = {9, 5, 1, 100, NULL, 0};
    struct ag_reducer *reducer =
        run_world(w, &options, AG_BACKEND_CPU, 2, 2, true, test_path("build/test/taylor-samples.h5"));
    const struct taylor_results *r = taylor_reducer_results(reducer);
    static struct naive n;
    int64_t headlines = 0, values = 0, keys_of_windows = 0;
    for (int64_t i = 0; i < r->n_samples; i++) {
        const struct taylor_sample *row = &r->samples[i];
        const struct ag_block block = block_of(w, row->layer, row->prompt);
        const int64_t start = w->offsets[row->prompt], T = block.T;
        naive_of(&n, &block, row->head, row->position);
        const bool flat = n.t == 1 || (row->layer == 2 && row->head >= 1);
        const bool predicts = row->position + 1 < T && w->value[start + row->position + 1] == AG_VALUE_ANSWER;
        assert_int_equal(row->keys, n.t);
        assert_int_equal(row->role, w->role[start + row->position]);
        assert_int_equal(row->value, !predicts ? 0 : row->position == T - 3 ? 2 : 1);
        headlines += row->value == 2, values += row->value == 1;
        keys_of_windows += row->layer == 1 && row->keys == WINDOW;
        near("q_norm", row, row->q_norm, n.q_norm, 1e-14L * n.q_norm);
        near("m", row, row->m, n.m, 1e-13L * (1 + fabsl(n.m)));
        near("v", row, row->v, flat ? 0 : n.v, 1e-13L * (1 + n.v));
        near("a", row, row->a, n.a, 1e-13L * (1 + fabsl(n.a)));
        near("b", row, row->b, n.b, 1e-13L * (1 + fabsl(n.b)));
        near("A", row, row->A, n.A, 1e-13L * (1 + fabsl(n.A)));
        near("c", row, row->c, flat ? 0 : n.c, 1e-12L * (1 + fabsl(n.A)));
        near("R", row, row->R, flat ? 0 : n.R, 1e-12L * (1 + fabsl(n.A) + n.v));
        near("R by its own bound", row, row->R, flat ? 0 : n.R, row->dR + 1e-17L * (fabsl(n.A) + n.v));
        near("effective", row, row->effective, n.effective, 1e-12L * n.effective);
        near("largest", row, row->largest, n.largest, 1e-12L);
        for (int k = 0; k < TAYLOR_SAMPLE_BOUNDS; k++) {
            if (row->layer == 1 && k == TAYLOR_B4) {
                assert_true(isinf(row->bound[k].lo) && isinf(row->bound[k].hi));
                continue;
            }
            assert_true(row->bound[k].lo <= row->R + row->dR && row->R - row->dR <= row->bound[k].hi);
            if (flat || k == TAYLOR_B4X) continue;
            near("lower end", row, row->bound[k].lo, n.lo[k], 1e-9L * (1 + fabsl(n.lo[k])));
            if (isfinite((double)n.hi[k]))
                near("upper end", row, row->bound[k].hi, n.hi[k], 1e-9L * (1 + fabsl(n.hi[k])));
        }
        if (row->layer != 1 && !flat) { /* B4x is never looser than B4 */
            assert_true(row->bound[TAYLOR_B4X].lo >= row->bound[TAYLOR_B4].lo &&
                        row->bound[TAYLOR_B4X].hi <= row->bound[TAYLOR_B4].hi);
        }
        near("gradient bound", row, row->gradient_bound, flat ? 0 : 2 * n.radius * n.c, 1e-11L * (1 + n.radius * n.c));
        near("gradient", row, row->gradient, flat ? 0 : n.gradient, 1e-12L * (1 + n.radius * (1 + n.v)));
        assert_true(row->gradient <= row->gradient_bound * (1 + 1e-12) + 1e-13 * (double)n.radius);
        for (int e = 0; e < TAYLOR_EPS; e++) {
            assert_true(row->radius[e].s > 0 && row->radius[e].s <= 1);
            if (flat) assert_true(row->radius[e].s == 1 && row->radius[e].certified);
            /* at the query itself the radius agrees with the remainder */
            const long double excess = fabsl(n.R) - taylor_eps[e] * n.c;
            if (!flat && excess > 1e-9L) assert_true(row->radius[e].s < 1);
        }
        if (flat)
            assert_true(isnan(row->cosine) && isnan(row->span));
        else
            near("cosine", row, row->cosine, n.cosine, 1e-10L);
        assert_int_equal(!isnan(row->span), !flat && row->keys > options.r + 1);
        if (!isnan(row->span)) assert_true(row->span >= 0 && row->span <= 1 + 1e-12);
    }
    assert_int_equal(headlines, 3 * (4 + 2 + 3)); /* prompts 0, 2, 3, all heads */
    assert_int_equal(values, 3 * (4 + 2 + 3));
    assert_true(keys_of_windows > 0);
    reducer->class_->free(reducer);
    ag_arena_free(w->arena);
}

/* ---- bits ---------------------------------------------------------------------------------------------------------------- */

static void same_bits(void **state) {
    (void)state;
    struct world *w = world_new();
    const struct taylor_options options = {4, 5, 1, 200, NULL, 2};
    const char *folder = test_folder("taylor");
    char first[300], other[300], command[700];
    snprintf(first, sizeof first, "%s/first.h5", folder);
    snprintf(other, sizeof other, "%s/other.h5", folder);
    struct ag_reducer *reducer = run_world(w, &options, AG_BACKEND_CPU, 1, P, false, first);
    reducer->class_->free(reducer);
    static const struct {
        int64_t threads, wave;
        bool inside;
    } runs[] = {{2, P, false}, {3, 1, false}, {3, 2, true}, {1, 1, true}};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        reducer = run_world(w, &options, AG_BACKEND_CPU, runs[i].threads, runs[i].wave, runs[i].inside, other);
        reducer->class_->free(reducer);
        snprintf(command, sizeof command, "cmp -s %s %s", first, other); /* HDF5 without times: the same bytes */
        if (system(command) != 0)
            fail_msg("%lld threads, waves of %lld: other bytes", (long long)runs[i].threads, (long long)runs[i].wave);
    }
    /* round trip: read, write again */
    struct taylor_results *r;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(taylor_results_read(&r, first, &err), &err);
    assert_ok(taylor_results_write(r, other, true, &err), &err);
    taylor_results_free(r);
    snprintf(command, sizeof command, "cmp -s %s %s", first, other);
    assert_int_equal(system(command), 0);
    ag_arena_free(w->arena);
}

/* Drawn from (seed, id) alone: neither the order of the prompts nor the others matter; another seed draws others. */
static void positions_are_drawn(void **state) {
    (void)state;
    struct world *w = world_new();
    struct taylor_options options = {10, 5, 42, 100, NULL, 0};
    int64_t a[T_MAX], b[T_MAX], headline, alone = 0;
    const int64_t n = taylor_positions(a, &headline, &w->tokens, 2, &options);
    assert_int_equal(headline, 77);
    assert_true(n >= 10 && n <= 12);
    for (int64_t i = 1; i < n; i++) assert_true(a[i] > a[i - 1]);
    struct ag_tokens one = w->tokens;
    const int64_t offsets[2] = {w->offsets[2], w->offsets[3]};
    one.P = 1, one.offsets = offsets, one.prompt_id = &w->tokens.prompt_id[2];
    assert_int_equal(taylor_positions(b, &headline, &one, 0, &options), n);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    options.seed = 43;
    const int64_t m = taylor_positions(b, &headline, &w->tokens, 2, &options);
    for (int64_t i = 0; i < m && i < n; i++) alone += a[i] != b[i];
    assert_true(alone > 0);
    options.queries = 0; /* the value tokens alone */
    assert_int_equal(taylor_positions(b, &headline, &w->tokens, 2, &options), 2);
    assert_int_equal(taylor_positions(b, &headline, &w->tokens, 5, &options), 0);
    assert_int_equal(headline, -1);
    options.queries = 1000000; /* all */
    assert_int_equal(taylor_positions(b, &headline, &w->tokens, 2, &options), 80);
    bool mask[P * T_MAX] = {false};
    mask[w->offsets[2] + 5] = true;
    options.positions = mask;
    assert_int_equal(taylor_positions(b, &headline, &w->tokens, 2, &options), 3);
    assert_int_equal(b[0], 5);
    /* every position equally likely: 4,000 draws of 10 of 80 */
    int64_t hits[80] = {0};
    options = (struct taylor_options){10, 5, 0, 100, NULL, 0};
    for (options.seed = 0; options.seed < 4000; options.seed++) {
        const int64_t got = taylor_positions(b, &headline, &w->tokens, 2, &options);
        for (int64_t i = 0; i < got; i++) hits[b[i]]++;
    }
    for (int t = 0; t < 77; t++)
        assert_true(hits[t] > 500 - 6 * 22 && hits[t] < 500 + 6 * 22); /* 6 standard deviations */
    ag_arena_free(w->arena);
}

/* ---- refusals and degenerate results ------------------------------------------------------------------------------------ */

static void refuses(void **state) {
    (void)state;
    struct world *w = world_new();
    struct ag_error err = AG_ERROR_INIT;
    const struct taylor_options options = TAYLOR_OPTIONS_INIT;
    for (int which = 0; which < 5; which++) {
        struct ag_reducer *reducer;
        struct ag_block block = block_of(w, 0, 0);
        float *keys = (float *)block.keys.data, *queries = (float *)block.queries.data,
              key = keys[(17 * 2 + 1) * 24 + 3], query = queries[(9 * 4 + 2) * 24];
        err = (struct ag_error)AG_ERROR_INIT;
        assert_ok(taylor_reducer_new(&reducer, &options, backend(AG_BACKEND_CPU), NULL, &err), &err);
        assert_ok(reducer->class_->begin(reducer, &w->source, &err), &err);
        if (which == 0) keys[(17 * 2 + 1) * 24 + 3] = NAN;
        if (which == 1) queries[(9 * 4 + 2) * 24] = -INFINITY;
        if (which == 2) block.queries.data = NULL;
        if (which == 3) keys[(17 * 2 + 1) * 24 + 3] = 3e38f; /* finite, but not its logits to the square */
        if (which == 4) block.prompt = 3;
        const enum ag_status got = reducer->class_->reduce(reducer, &block, 1, &err);
        if (which == 0) test_refused(got, AG_E_NUMERIC, &err, "layer 0", "key head 1", "token 17", "(a)", NULL);
        if (which == 1) test_refused(got, AG_E_NUMERIC, &err, "layer 0", "query head 2", "token 9", NULL);
        if (which == 2) test_refused(got, AG_E_UNSUPPORTED, &err, "no queries", "--what keys,queries", NULL);
        if (which == 3) test_refused(got, AG_E_NUMERIC, &err, "layer 0", "query head 2", "token 17", "2^30", NULL);
        if (which == 4) test_refused(got, AG_E_INTERNAL, &err, "not announced", NULL);
        keys[(17 * 2 + 1) * 24 + 3] = key, queries[(9 * 4 + 2) * 24] = query;
        reducer->class_->free(reducer);
    }
    ag_arena_free(w->arena);
}

/* Nothing to say is said, not printed as a number. */
static void report_of_nothing(void **state) {
    (void)state;
    struct world *w = world_new();
    const char *folder = test_folder("taylor-nothing");
    char path[300];
    for (int which = 0; which < 3; which++) {
        const struct taylor_options options = {which == 0 ? 0 : 3, 5, 1, 200, NULL, 0};
        struct ag_tokens tokens = w->tokens;
        snprintf(path, sizeof path, "%s/%d.h5", folder, which);
        tokens.P = which == 2 ? P : 2; /* 2: every query of zero; 0: no sample; 1: prompts of 70 and 1 tokens */
        int64_t none[2] = {-1, -1};
        if (which < 2) tokens.twin = none, tokens.T = w->offsets[2], memset(w->value, 0, sizeof w->value);
        if (which == 2)
            for (int l = 0; l < L; l++)
                memset(w->queries[l], 0, (size_t)(w->offsets[P] * w->shapes[l].Hq * w->shapes[l].D) * 4);
        struct ag_tokens kept = w->tokens;
        w->tokens = tokens;
        struct ag_reducer *reducer = run_world(w, &options, AG_BACKEND_CPU, 1, P, false, path);
        w->tokens = kept;
        struct ag_buf text = {0}, json = {0};
        struct ag_error err = AG_ERROR_INIT;
        assert_ok(taylor_report(&text, taylor_reducer_results(reducer), &err), &err);
        assert_ok(taylor_report_json(&json, taylor_reducer_results(reducer), &err), &err);
        if (strstr(text.data, "nan") || strstr(json.data, "nan") || strstr(json.data, "NaN")) fail_msg("%s", text.data);
        assert_non_null(strstr(text.data, which == 2 ? "missing" : "causal ones"));
        if (which == 2)
            assert_true(taylor_reducer_results(reducer)->summary->model_share[TAYLOR_N_EPS_0].value ==
                        1); /* v = 0: |R| <= eps c holds */
        ag_buf_free(&text), ag_buf_free(&json);
        reducer->class_->free(reducer);
    }
    ag_arena_free(w->arena);
}

static void damaged_files(void **state) {
    (void)state;
    struct world *w = world_new();
    const struct taylor_options options = {2, 5, 1, 100, NULL, 1};
    const char *folder = test_folder("taylor-damaged");
    char good[300], bad[300], command[900];
    struct ag_error err = AG_ERROR_INIT;
    snprintf(good, sizeof good, "%s/good.h5", folder);
    snprintf(bad, sizeof bad, "%s/bad.h5", folder);
    struct ag_reducer *reducer = run_world(w, &options, AG_BACKEND_CPU, 1, P, false, good);
    reducer->class_->free(reducer);
    static const struct {
        const char *name;
        int64_t value; /* written over element 0 */
        const char *expected;
    } cases[] = {{"samples/prompt", 6, "/samples"},
                 {"samples/head", -1, "/samples"},
                 {"samples/layer", 9, "/samples"},
                 {"records/0/counts", -4, "/records/0"},
                 {"prompts/twin", 1, "/prompts/twin"},
                 {"prompts/unit", 3, "/prompts/unit"},
                 {"layers", 7, "/layers"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct taylor_results *r = NULL;
        snprintf(command, sizeof command, "cp %s %s", good, bad);
        assert_int_equal(system(command), 0);
        hid_t file = H5Fopen(bad, H5F_ACC_RDWR, H5P_DEFAULT), set = H5Dopen2(file, cases[i].name, H5P_DEFAULT),
              space = H5Dget_space(set);
        const hsize_t start[4] = {0}, count[4] = {1, 1, 1, 1}, single[1] = {1};
        hid_t memory = H5Screate_simple(1, single, NULL);
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL);
        assert_true(H5Dwrite(set, H5T_NATIVE_INT64, memory, space, H5P_DEFAULT, &cases[i].value) >= 0);
        H5Sclose(memory), H5Sclose(space), H5Dclose(set), H5Fclose(file);
        err = (struct ag_error)AG_ERROR_INIT;
        test_refused(taylor_results_read(&r, bad, &err), AG_E_FORMAT, &err, "bad.h5", cases[i].expected, NULL);
        assert_null(r);
    }
    /* cut anywhere: an error, never a crash */
    FILE *in = fopen(good, "rb");
    fseek(in, 0, SEEK_END);
    const long size = ftell(in);
    fclose(in);
    for (int i = 0; i < 24; i++) {
        struct taylor_results *r = NULL;
        snprintf(command, sizeof command, "cp %s %s", good, bad);
        assert_int_equal(system(command), 0);
        assert_int_equal(truncate(bad, size * i / 24), 0);
        err = (struct ag_error)AG_ERROR_INIT;
        assert_int_not_equal(taylor_results_read(&r, bad, &err), AG_OK);
        assert_null(r);
    }
    ag_arena_free(w->arena);
}

/* ---- certified, from stored f32 keys and queries -------------------------------------------------------------------------- */

enum law {
    PLAIN,
    HUGE_NORM,
    FAR_MEAN,
    COLLINEAR,
    RANK_ONE,
    DENORMAL,
    ONE_DIM,
    DUPLICATES,
    BIG_LOGITS,
    SPIKE,
    TINY_QUERY,
    TWO_POINTS,
    SPARSE,
    NEGATIVE_SCALE,
    LAWS
};
enum { MOST = 48, WIDEST = 40 };
struct cloud_case {
    int64_t n, D;
    double scale;
    float keys[MOST * WIDEST], q[2 * WIDEST]; /* two query heads */
};

static void draw_case(struct cloud_case *c, enum law law, gsl_rng *rng) {
    c->n = 1 + (int64_t)gsl_rng_uniform_int(rng, MOST);
    c->D = law == ONE_DIM ? 1 : 1 + (int64_t)gsl_rng_uniform_int(rng, WIDEST);
    c->scale = (law == NEGATIVE_SCALE ? -1 : 1) / sqrt((double)c->D);
    double key_size = 1, query_size = exp(gsl_ran_gaussian(rng, 1));
    if (law == HUGE_NORM) key_size = 1e4;
    if (law == BIG_LOGITS) key_size = 100, query_size = 100;
    if (law == TINY_QUERY) query_size = 1e-7;
    float first[WIDEST], along[WIDEST];
    for (int64_t d = 0; d < c->D; d++) {
        first[d] = (float)gsl_ran_gaussian(rng, 1);
        along[d] = (float)gsl_ran_gaussian(rng, 1);
        for (int h = 0; h < 2; h++)
            c->q[h * c->D + d] = (float)gsl_ran_gaussian(rng, law == DENORMAL ? 1e-40 : query_size);
    }
    for (int64_t j = 0; j < c->n; j++) {
        const double step = gsl_ran_gaussian(rng, 1);
        for (int64_t d = 0; d < c->D; d++) {
            double x = gsl_ran_gaussian(rng, key_size);
            if (law == FAR_MEAN) x = 300 * (double)first[d] + 1e-3 * x;
            if (law == COLLINEAR) x = (double)first[d] + step * (double)along[d];
            if (law == RANK_ONE) x = step * (double)along[d];
            if (law == DENORMAL) x *= 1e-41;
            if (law == DUPLICATES) x = j % 3 == 0 ? first[d] : along[d];
            if (law == SPIKE) x = j == c->n / 2 ? 40 * (double)along[d] : 1e-2 * x;
            if (law == TWO_POINTS) x = j == 0 ? -3 * (double)along[d] : (double)first[d];
            if (law == SPARSE && gsl_rng_uniform(rng) < 0.8) x = 0;
            c->keys[j * c->D + d] = (float)x;
        }
    }
}

struct exact {
    mpfr_t x[MOST], m, v, R, work, sum;
};

static void exact_set(struct exact *e, mpfr_prec_t precision) {
    for (int j = 0; j < MOST; j++) mpfr_set_prec(e->x[j], precision);
    mpfr_set_prec(e->m, precision), mpfr_set_prec(e->v, precision), mpfr_set_prec(e->R, precision),
        mpfr_set_prec(e->work, precision);
    mpfr_set_prec(e->sum, precision);
}

/* R of the first t keys: products and sums without rounding that matters. */
static void exact_of(struct exact *e, const float *keys, int64_t stride, int64_t t, int64_t D, const float *q,
                     double scale) {
    int top = 0;
    mpfr_set_zero(e->m, 1);
    for (int64_t j = 0; j < t; j++) {
        mpfr_set_zero(e->x[j], 1);
        for (int64_t d = 0; d < D; d++) {
            mpfr_set_d(e->work, (double)q[d], MPFR_RNDN);
            mpfr_mul_d(e->work, e->work, (double)keys[j * stride + d], MPFR_RNDN);
            mpfr_add(e->x[j], e->x[j], e->work, MPFR_RNDN);
        }
        mpfr_mul_d(e->x[j], e->x[j], scale, MPFR_RNDN);
        mpfr_add(e->m, e->m, e->x[j], MPFR_RNDN);
        if (mpfr_cmp(e->x[j], e->x[top]) > 0) top = (int)j;
    }
    mpfr_div_si(e->m, e->m, (long)t, MPFR_RNDN);
    mpfr_set_zero(e->v, 1), mpfr_set_zero(e->sum, 1);
    for (int64_t j = 0; j < t; j++) {
        mpfr_sub(e->work, e->x[j], e->m, MPFR_RNDN);
        mpfr_sqr(e->work, e->work, MPFR_RNDN);
        mpfr_add(e->v, e->v, e->work, MPFR_RNDN);
        mpfr_sub(e->work, e->x[j], e->x[top], MPFR_RNDN);
        mpfr_exp(e->work, e->work, MPFR_RNDN);
        mpfr_add(e->sum, e->sum, e->work, MPFR_RNDN);
    }
    mpfr_div_si(e->v, e->v, (long)t, MPFR_RNDN);
    mpfr_div_si(e->sum, e->sum, (long)t, MPFR_RNDN);
    mpfr_log(e->R, e->sum, MPFR_RNDN);
    mpfr_add(e->R, e->R, e->x[top], MPFR_RNDN);
    mpfr_sub(e->R, e->R, e->m, MPFR_RNDN);
    mpfr_div_si(e->work, e->v, 2, MPFR_RNDN);
    mpfr_sub(e->R, e->R, e->work, MPFR_RNDN);
}

static void holds(const char *what, struct taylor_interval i, const struct exact *e, int law, int64_t t, int64_t D) {
    const double slack = ldexp(1e6, -(int)mpfr_get_prec(e->R)) * (1 + fabs(mpfr_get_d(e->m, MPFR_RNDN)));
    if (!(mpfr_cmp_d(e->R, i.lo - slack) >= 0 && mpfr_cmp_d(e->R, i.hi + slack) <= 0))
        fail_msg("%s [%.17g, %.17g] does not hold R = %.17g: law %d, %d keys of %d", what, i.lo, i.hi,
                 mpfr_get_d(e->R, MPFR_RNDN), law, (int)t, (int)D);
}

static void certified_cases(int64_t rounds, uint64_t seed) {
    static const char *const names[TAYLOR_SAMPLE_BOUNDS] = {"B1", "B2", "B3", "B4", "B4x"};
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)seed);
    struct ag_arena *arena = ag_arena_new("cases");
    struct ag_error err = AG_ERROR_INIT;
    struct taylor_scratch scratch;
    assert_ok(taylor_scratch_new(&scratch, MOST, WIDEST, arena, &err), &err);
    const struct kern_ops *ops = backend(AG_BACKEND_CPU);
    static struct cloud_case c;
    static uint8_t role[MOST];
    static double memory[TAYLOR_STATE_DOUBLES(WIDEST)];
    struct exact e;
    for (int j = 0; j < MOST; j++) mpfr_init(e.x[j]);
    mpfr_inits(e.m, e.v, e.R, e.work, e.sum, (mpfr_ptr)NULL);
    int64_t rows = 0, narrow = 0;
    for (int64_t i = 0; i < rounds * LAWS; i++) {
        const enum law law = (enum law)(i % LAWS);
        draw_case(&c, law, rng);
        exact_set(&e, law == DENORMAL ? 1400 : law == TINY_QUERY ? 420 : 260);
        const struct ag_layer_shape shape = {AG_LAYER_SOFTMAX, 2, 1, c.D, c.D, c.scale, 0};
        struct kern_logit_moments moments[2 * MOST];
        float queries[2 * MOST * WIDEST];
        for (int64_t h = 0; h < 2; h++)
            for (int64_t t = 0; t < c.n; t++)
                memcpy(queries + (h * c.n + t) * c.D, c.q + h * c.D, (size_t)c.D * sizeof *queries);
        const struct ag_block block = {.tap = AG_TAP_ROPE,
                                       .shape = &shape,
                                       .T = c.n,
                                       .role = role,
                                       .keys = {c.keys, 0, c.D},
                                       .queries = {queries, c.n * c.D, c.D}};
        ops->logit_moments(moments, c.keys, queries, c.n, 2, 1, c.D, 0, c.D, c.n * c.D, c.D, c.scale, 0);
        const int64_t at[2] = {c.n - 1, (int64_t)gsl_rng_uniform_int(rng, (unsigned long)c.n)};
        for (int k = 0; k < 2; k++) {
            const int64_t t = at[k];
            struct taylor_sample row[2];
            struct taylor_state constant;
            assert_true(taylor_sample_group(row, NULL, &block, 0, t, 0, 3, &scratch, ops));
            taylor_state_begin(&constant, memory, c.D);
            for (int64_t j = 0; j <= t; j++) taylor_state_add(&constant, c.keys + j * c.D);
            for (int h = 0; h < 2; h++) {
                const struct kern_logit_moments *x = &moments[h * c.n + t];
                struct taylor_remainder remainder;
                struct taylor_interval bound[TAYLOR_BOUNDS];
                exact_of(&e, c.keys, c.D, t + 1, c.D, c.q + h * c.D, c.scale);
                for (int b = 0; b < TAYLOR_SAMPLE_BOUNDS; b++)
                    holds(names[b], row[h].bound[b], &e, (int)law, t + 1, c.D);
                holds("R +- dR of the sample", (struct taylor_interval){row[h].R - row[h].dR, row[h].R + row[h].dR}, &e,
                      (int)law, t + 1, c.D);
                /* the pass over all causal queries, with the constant state's reach against the true extremes */
                const struct taylor_reach reach = taylor_state_reach(&constant, c.q + h * c.D, c.scale, x->m, x->dm);
                taylor_enclose(bound, x, &reach);
                for (int b = 0; b < TAYLOR_BOUNDS; b++) holds(names[b], bound[b], &e, (int)law, t + 1, c.D);
                taylor_remainder_of(&remainder, x);
                holds("R +- dR", (struct taylor_interval){remainder.R - remainder.dR, remainder.R + remainder.dR}, &e,
                      (int)law, t + 1, c.D);
                narrow +=
                    bound[TAYLOR_B3].hi - bound[TAYLOR_B3].lo < mpfr_get_d(e.v, MPFR_RNDN) + 1e-9 * (1 + fabs(x->m));
                for (int64_t j = 0; j <= t; j++) {
                    mpfr_sub(e.work, e.x[j], e.m, MPFR_RNDN);
                    if (mpfr_cmp_d(e.work, reach.up) > 0 || mpfr_cmp_d(e.work, -reach.down) < 0)
                        fail_msg("a logit %.17g beyond the mean is out of reach %g, %g: law %d",
                                 mpfr_get_d(e.work, MPFR_RNDN), reach.up, reach.down, (int)law);
                }
                rows++;
            }
        }
    }
    printf("           %lld rows, no violation; B3 narrower than v for %lld\n", (long long)rows, (long long)narrow);
    assert_true(narrow > rows / 4);
    for (int j = 0; j < MOST; j++) mpfr_clear(e.x[j]);
    mpfr_clears(e.m, e.v, e.R, e.work, e.sum, (mpfr_ptr)NULL);
    mpfr_free_cache();
    ag_arena_free(arena);
    gsl_rng_free(rng);
}

static void certified(void **state) {
    (void)state;
    certified_cases(15, test_seed());
}
static void certified_long(void **state) {
    (void)state;
    certified_cases(2000, test_seed() + 1);
}

/* ---- golden: numpy, from MATH.md alone (tests/golden/make_taylor.py) -------------------------------------------------------- */

static const double *golden(hid_t file, int layer, const char *name, int64_t n, struct ag_arena *arena) {
    struct ag_error err = AG_ERROR_INIT;
    char path[64];
    int64_t dims[1] = {n};
    void *data = NULL;
    snprintf(path, sizeof path, "%d/%s", layer, name);
    assert_ok(ag_h5_read(&data, file, path, AG_H5_F64, 1, dims, arena, &err), &err);
    return data;
}

static void close_to(const char *what, int layer, int64_t i, double got, double expected, double tolerance) {
    if (isnan(expected) ? !isnan(got) : !(fabs(got - expected) <= tolerance))
        fail_msg("layer %d, %s[%d]: %.17g, numpy %.17g, tolerance %g", layer, what, (int)i, got, expected, tolerance);
}

static void numpy_agrees(void **state) {
    (void)state;
    enum { LENGTH = 72, HEADS = 2, WIDTH = 32, ROWS = 8 };
    struct ag_arena *arena = ag_arena_new("golden");
    struct ag_error err = AG_ERROR_INIT;
    const struct kern_ops *ops = backend(AG_BACKEND_CPU);
    hid_t file;
    assert_ok(ag_h5_open(&file, test_path("tests/golden/taylor.h5"), &err), &err);
    for (int layer = 0; layer <= 3; layer += 3) {
        void *keys = NULL, *queries = NULL, *at = NULL;
        char name[64];
        double scale;
        int64_t dims[3] = {HEADS, LENGTH, WIDTH}, rows[1] = {ROWS};
        snprintf(name, sizeof name, "%d/keys", layer);
        assert_ok(ag_h5_read(&keys, file, name, AG_H5_F32, 3, dims, arena, &err), &err);
        snprintf(name, sizeof name, "%d/queries", layer);
        assert_ok(ag_h5_read(&queries, file, name, AG_H5_F32, 3, dims, arena, &err), &err);
        snprintf(name, sizeof name, "%d/positions", layer);
        assert_ok(ag_h5_read(&at, file, name, AG_H5_I64, 1, rows, arena, &err), &err);
        snprintf(name, sizeof name, "%d", layer);
        assert_ok(ag_h5_get(&scale, file, name, "scale", AG_H5_F64, 1, &err), &err);
        const struct ag_layer_shape shape = {AG_LAYER_SOFTMAX, HEADS, HEADS, WIDTH, WIDTH, scale, 0};
        static uint8_t role[LENGTH];
        const struct ag_block block = {.layer = layer,
                                       .tap = AG_TAP_ROPE,
                                       .shape = &shape,
                                       .T = LENGTH,
                                       .role = role,
                                       .keys = {keys, LENGTH * WIDTH, WIDTH},
                                       .queries = {queries, LENGTH * WIDTH, WIDTH}};
        static struct kern_logit_moments moments[HEADS * LENGTH];
        static struct taylor_sample samples[HEADS * ROWS];
        ops->logit_moments(moments, keys, queries, LENGTH, HEADS, HEADS, WIDTH, LENGTH * WIDTH, WIDTH, LENGTH * WIDTH,
                           WIDTH, scale, 0);
        struct taylor_scratch scratch;
        assert_ok(taylor_scratch_new(&scratch, LENGTH, WIDTH, arena, &err), &err);
        for (int64_t h = 0; h < HEADS; h++)
            for (int i = 0; i < ROWS; i++)
                assert_true(taylor_sample_group(&samples[h * ROWS + i], NULL, &block, h, ((int64_t *)at)[i], 0, 8,
                                                &scratch, ops));
        const int64_t all = HEADS * (LENGTH - 1);
        double memory[TAYLOR_STATE_DOUBLES(WIDTH)];
        struct taylor_state constant;
#define EVERY(name) const double *name = golden(file, layer, "every/" #name, all, arena)
        EVERY(m);
        EVERY(v);
        EVERY(a);
        EVERY(b);
        EVERY(A);
        EVERY(c);
        EVERY(R);
        EVERY(k3);
        EVERY(k4);
        EVERY(effective);
        EVERY(largest);
        const double *lo[TAYLOR_SAMPLE_BOUNDS], *hi[TAYLOR_SAMPLE_BOUNDS];
        for (int k = 0; k < TAYLOR_BOUNDS; k++) {
            snprintf(name, sizeof name, "every/lo%d", k + 1);
            lo[k] = golden(file, layer, name, all, arena);
            snprintf(name, sizeof name, "every/hi%d", k + 1);
            hi[k] = golden(file, layer, name, all, arena);
        }
        for (int64_t i = 0; i < all; i++) {
            const int64_t h = i / (LENGTH - 1), t = i % (LENGTH - 1) + 1;
            const struct kern_logit_moments *x = &moments[h * LENGTH + t];
            const float *key = (float *)keys + h * LENGTH * WIDTH;
            struct taylor_remainder remainder;
            struct taylor_interval bound[TAYLOR_BOUNDS];
            if (t == 1) {
                taylor_state_begin(&constant, memory, WIDTH);
                taylor_state_add(&constant, key);
            }
            taylor_state_add(&constant, key + t * WIDTH);
            const struct taylor_reach reach =
                taylor_state_reach(&constant, (float *)queries + (h * LENGTH + t) * WIDTH, scale, x->m, x->dm);
            taylor_remainder_of(&remainder, x);
            taylor_enclose(bound, x, &reach);
            const double unit = 1e-13 * (1 + fabs(A[i]) + v[i]);
            close_to("m", layer, i, x->m, m[i], unit);
            close_to("v", layer, i, x->v, v[i], unit);
            close_to("a", layer, i, x->a, a[i], unit);
            close_to("b", layer, i, x->b, b[i], unit);
            close_to("A", layer, i, x->A, A[i], unit);
            close_to("c", layer, i, remainder.c, c[i], 10 * unit);
            close_to("R", layer, i, remainder.R, R[i], 10 * unit);
            close_to("k3", layer, i, x->k3, k3[i], 1e-12 * (1 + fabs(k3[i])));
            close_to("k4", layer, i, x->k4, k4[i], 1e-12 * (1 + v[i] * v[i] + fabs(k4[i])));
            close_to("effective", layer, i, x->effective, effective[i], 1e-12 * effective[i]);
            close_to("largest", layer, i, x->largest, largest[i], 1e-12);
            for (int k = 0; k < TAYLOR_BOUNDS; k++) {
                close_to("lower end", layer, i, bound[k].lo, lo[k][i], 1e-10 * (1 + fabs(lo[k][i])));
                close_to("upper end", layer, i, bound[k].hi, hi[k][i], 1e-10 * (1 + fabs(hi[k][i])));
            }
        }
        const double *cosine = golden(file, layer, "sample/cosine", HEADS * ROWS, arena),
                     *span = golden(file, layer, "sample/span", HEADS * ROWS, arena);
        const double *gradient = golden(file, layer, "sample/gradient", HEADS * ROWS, arena);
        const double *gradient_bound = golden(file, layer, "sample/gradient_bound", HEADS * ROWS, arena);
        for (int i = 0; i < HEADS * ROWS; i++) {
            close_to("cosine", layer, i, samples[i].cosine, cosine[i], 1e-11);
            close_to("span", layer, i, samples[i].span, span[i], 1e-9);
            close_to("gradient", layer, i, samples[i].gradient, gradient[i], 1e-12 * (1 + gradient[i]));
            close_to("gradient bound", layer, i, samples[i].gradient_bound, gradient_bound[i],
                     1e-11 * (1 + gradient_bound[i]));
        }
        for (int k = 0; k < TAYLOR_SAMPLE_BOUNDS; k++) {
            snprintf(name, sizeof name, "sample/lo%d", k + 1);
            lo[k] = golden(file, layer, name, HEADS * ROWS, arena);
            snprintf(name, sizeof name, "sample/hi%d", k + 1);
            hi[k] = golden(file, layer, name, HEADS * ROWS, arena);
            /* near full rank the cut at 1e-11 s_1 decides on rounding: B4x to 1e-6 */
            for (int i = 0; i < HEADS * ROWS; i++) {
                const double relative = k == TAYLOR_B4X ? 1e-6 : 1e-10;
                close_to("sample's lower end", layer, i, samples[i].bound[k].lo, lo[k][i],
                         relative * (1 + fabs(lo[k][i])));
                close_to("sample's upper end", layer, i, samples[i].bound[k].hi, hi[k][i],
                         relative * (1 + fabs(hi[k][i])));
            }
        }
        for (int e = 0; e < TAYLOR_EPS; e++) {
            snprintf(name, sizeof name, "sample/radius_%g", taylor_eps[e]);
            const double *radius = golden(file, layer, name, HEADS * ROWS, arena);
            for (int i = 0; i < HEADS * ROWS; i++)
                close_to("radius", layer, i, samples[i].radius[e].s, radius[i], 1e-8);
        }
    }
    assert_ok(ag_h5_close(file, &err), &err);
    ag_arena_free(arena);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(numpy_agrees),      cmocka_unit_test(counts_are_right),    cmocka_unit_test(samples_are_right),
    cmocka_unit_test(same_bits),         cmocka_unit_test(positions_are_drawn), cmocka_unit_test(refuses),
    cmocka_unit_test(report_of_nothing), cmocka_unit_test(damaged_files),       cmocka_unit_test(certified)};
TEST_GROUP(taylor, "the Taylor reducer: naive, bits, refusals, files, certified from stored keys", tests)
static const struct CMUnitTest long_tests[] = {cmocka_unit_test(certified_long)};
TEST_GROUP_NEED(taylor_long, "enclosures of adversarial keys and queries, many", long_tests, TEST_LONG)
