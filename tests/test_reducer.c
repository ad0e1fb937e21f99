/* tests/test_reducer.c: the geometry reducer against a naive implementation in this file; bits that depend neither on
 * threads, nor waves, nor layout, nor on how records were split; bad keys; the results file. */
#include <fcntl.h>
#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/h5.h"
#include "geometry/fold.h"
#include "geometry/reducer.h"
#include "geometry/results_table.h"
#include "kernels/kernels.h"
#include "kernels/ops.h"
#include "tests/test.h"

enum { L = 3, P = 7, T_MAX = 90 };

/* A made-up model and prompts; keys in both layouts. */
struct world {
    struct ag_arena *arena;
    struct ag_layer_shape shapes[L];
    bool selected[L];
    int64_t offsets[P + 1], twin[P];
    uint8_t role[P * T_MAX];
    const char *ids[P], *texts[P];
    struct ag_tokens tokens;
    struct ag_source source;
    float *heads_first[L];  /* per prompt (Hk, T, D), prompts one after the other */
    float *tokens_first[L]; /* (all T, Hk, D) */
};

static struct world *world_new(uint64_t seed) {
    static const int64_t lengths[P] = {80, 61, 90, 12, 75, 1, 77};
    static const int64_t twins[P] = {2, -1, 0, -1, 6, -1, 4};
    static const char *const ids[P] = {"a", "b", "a-twin", "short", "c", "one", "c-twin"};
    struct ag_arena *arena = ag_arena_new("world");
    struct world *w = AG_ZEROS(arena, struct world, 1, NULL);
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, seed);
    w->arena = arena;
    w->shapes[0] = (struct ag_layer_shape){AG_LAYER_SOFTMAX, 4, 2, 24, 24, 0.2, 0};
    w->shapes[1] = (struct ag_layer_shape){AG_LAYER_SOFTMAX, 4, 1, 20, 20, 0.2, 8};
    w->shapes[2] = (struct ag_layer_shape){AG_LAYER_SOFTMAX, 3, 3, 17, 24, 0.2, 0};
    w->selected[0] = w->selected[2] = true;
    for (int p = 0; p < P; p++) {
        w->offsets[p + 1] = w->offsets[p] + lengths[p];
        w->twin[p] = twins[p];
        w->ids[p] = ids[p];
        w->texts[p] = "";
        for (int64_t t = 0; t < lengths[p]; t++) {
            uint8_t role = AG_ROLE_HAYSTACK;
            if (t == 0) role = AG_ROLE_SPECIAL;
            if (t % 20 >= 5 && t % 20 < 10) role = AG_ROLE_DISTRACTOR;
            if (t >= 30 && t < 35) role = AG_ROLE_NEEDLE;
            if (t >= lengths[p] - 8) role = AG_ROLE_QUESTION;
            if (t >= lengths[p] - 3 && t > 0) role = AG_ROLE_ANSWER;
            if (p == 1 && role == AG_ROLE_NEEDLE) role = AG_ROLE_HAYSTACK; /* a prompt that lacks a role */
            if (p == 4 && role == AG_ROLE_HAYSTACK && t > 20) role = AG_ROLE_DISTRACTOR; /* a haystack below r + 2 */
            w->role[w->offsets[p] + t] = role;
        }
    }
    for (int l = 0; l < L; l++) {
        const int64_t Hk = w->shapes[l].Hk, D = w->shapes[l].D, all = w->offsets[P];
        w->heads_first[l] = AG_NEW(arena, float, all *Hk *D, NULL);
        w->tokens_first[l] = AG_NEW(arena, float, all *Hk *D, NULL);
        for (int p = 0; p < P; p++) {
            const int64_t T = lengths[p];
            for (int64_t h = 0; h < Hk; h++) {
                for (int64_t t = 0; t < T; t++) {
                    const double shared = gsl_ran_gaussian(rng, 2);
                    for (int64_t i = 0; i < D; i++) {
                        const double x = 5 * cos((double)(i + h)) + shared * sin((double)(i * (h + 2))) +
                                         gsl_ran_gaussian(rng, 1.0 / (double)(1 + i));
                        w->heads_first[l][(w->offsets[p] * Hk + h * T + t) * D + i] = (float)x;
                        w->tokens_first[l][((w->offsets[p] + t) * Hk + h) * D + i] = (float)x;
                    }
                }
            }
        }
    }
    gsl_rng_free(rng);
    w->tokens = (struct ag_tokens){.P = P,
                                   .T = w->offsets[P],
                                   .offsets = w->offsets,
                                   .role = w->role,
                                   .prompt_id = w->ids,
                                   .text = w->texts,
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
                                   .tap = AG_TAP_PROJ,
                                   .last_tap = AG_TAP_ROPE,
                                   .tokens = &w->tokens};
    return w;
}

static struct ag_block block_of(const struct world *w, int64_t l, int64_t p, bool tokens_first) {
    const int64_t Hk = w->shapes[l].Hk, D = w->shapes[l].D, T = w->offsets[p + 1] - w->offsets[p];
    struct ag_block block = {
        .layer = l, .prompt = p, .tap = AG_TAP_PROJ, .shape = &w->shapes[l], .T = T, .role = w->role + w->offsets[p]};
    if (tokens_first)
        block.keys = (struct ag_view){w->tokens_first[l] + w->offsets[p] * Hk * D, D, Hk * D};
    else
        block.keys = (struct ag_view){w->heads_first[l] + w->offsets[p] * Hk * D, T * D, D};
    return block;
}

static enum ag_status feed(struct ag_reducer *reducer, const struct world *w, int64_t wave, bool waves_outside,
                           bool tokens_first, struct ag_error *err) {
    for (int64_t outer = 0; outer < (waves_outside ? (P + wave - 1) / wave : L); outer++) {
        for (int64_t inner = 0; inner < (waves_outside ? L : (P + wave - 1) / wave); inner++) {
            const int64_t l = waves_outside ? inner : outer, first = (waves_outside ? outer : inner) * wave;
            struct ag_block blocks[P];
            int64_t n = 0;
            if (!w->selected[l]) continue;
            for (int64_t p = first; p < first + wave && p < w->tokens.P; p++)
                blocks[n++] = block_of(w, l, p, tokens_first);
            const enum ag_status status = reducer->class_->reduce(reducer, blocks, n, err);
            if (status != AG_OK) return status;
        }
    }
    return AG_OK;
}

struct run {
    enum ag_backend backend;
    int64_t threads, wave;
    bool waves_outside, tokens_first;
};

static struct ag_reducer *run_all(const struct world *w, const struct geom_options *options, const struct run *run,
                                  const char *path) {
    struct ag_error err = AG_ERROR_INIT;
    const struct kern_ops *ops;
    struct ag_reducer *reducer;
    kern_set_threads(run->threads);
    assert_ok(kern_backend(&ops, run->backend, &err), &err);
    assert_ok(geom_reducer_new(&reducer, options, ops, NULL, &err), &err);
    assert_true(reducer->class_->bytes(reducer, &w->source) > 0);
    assert_ok(reducer->class_->begin(reducer, &w->source, &err), &err);
    assert_ok(feed(reducer, w, run->wave, run->waves_outside, run->tokens_first, &err), &err);
    if (options->pooled) {
        assert_ok(geom_reducer_second_pass(reducer, &err), &err);
        assert_ok(feed(reducer, w, run->wave, run->waves_outside, run->tokens_first, &err), &err);
    }
    assert_ok(reducer->class_->finish(reducer, path, true, &err), &err);
    kern_set_threads(0);
    return reducer;
}

static void same_datasets(const void *a, const void *b, const struct geom_dataset *datasets, int n,
                          const struct geom_results *g, int64_t l) {
    for (int i = 0; i < n; i++) {
        int64_t dims[AG_H5_MAX_RANK], size = 1;
        const int rank = geom_dims(dims, &datasets[i], g, l);
        const void *x, *y;
        for (int k = 0; k < rank; k++) size *= dims[k];
        memcpy(&x, (const char *)a + datasets[i].offset, sizeof x);
        memcpy(&y, (const char *)b + datasets[i].offset, sizeof y);
        if (memcmp(x, y, (size_t)size * 8) != 0) fail_msg("%s differs", datasets[i].name);
    }
}

static void same_share(double a, double b) { assert_memory_equal(&a, &b, sizeof a); }

static void same_results(const struct geom_results *a, const struct geom_results *b) {
    assert_int_equal(a->from.Ls, b->from.Ls);
    assert_int_equal(a->from.units, b->from.units);
    for (int k = 0; k < GEOM_BASIS_COUNT; k++) {
        assert_int_equal(a->basis[k], b->basis[k]);
        if (!a->basis[k]) continue;
        for (int64_t l = 0; l < a->from.Ls; l++)
            same_datasets(&a->records[k][l], &b->records[k][l], geom_record_datasets, geom_n_record_datasets, a, l);
        same_datasets(a->summary[k], b->summary[k], geom_summary_datasets, geom_n_summary_datasets, a, 0);
        same_share(a->summary[k]->fraction_negative, b->summary[k]->fraction_negative);
        same_share(a->summary[k]->fraction_negative_lo, b->summary[k]->fraction_negative_lo);
        same_share(a->summary[k]->fraction_negative_hi, b->summary[k]->fraction_negative_hi);
        same_share(a->summary[k]->fraction_negative_token_hi, b->summary[k]->fraction_negative_token_hi);
        same_share(a->summary[k]->smallest_p, b->summary[k]->smallest_p);
        assert_int_equal(a->summary[k]->cells, b->summary[k]->cells);
        assert_int_equal(a->summary[k]->missing, b->summary[k]->missing);
        assert_int_equal(a->summary[k]->zero, b->summary[k]->zero);
        assert_int_equal(a->summary[k]->significant_negative, b->summary[k]->significant_negative);
        assert_int_equal(a->summary[k]->significant_positive, b->summary[k]->significant_positive);
    }
}

/* The naive implementation: alignment of every token of a prompt on a basis. NaN: undefined. Returns the number of
 * keys. */
static int64_t naive(const struct world *w, int64_t l, int64_t p, int64_t h, enum geom_basis basis, int64_t r,
                     int64_t skip, double *a, double *s, double *mu2) {
    const int64_t D = w->shapes[l].D, Hk = w->shapes[l].Hk;
    double mu[24] = {0}, cov[24 * 24] = {0}, largest = 0;
    int64_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t q = 0; q < P; q++) {
            if (basis != GEOM_BASIS_POOLED && q != p) continue;
            for (int64_t t = skip; t < w->offsets[q + 1] - w->offsets[q]; t++) {
                const int64_t at = w->offsets[q] + t;
                const float *key = w->tokens_first[l] + (at * Hk + h) * D;
                if (w->role[at] == AG_ROLE_ANSWER || (basis == GEOM_BASIS_HAYSTACK && w->role[at] != AG_ROLE_HAYSTACK))
                    continue;
                n += pass == 0;
                for (int64_t i = 0; i < D && pass == 0; i++) mu[i] += key[i];
                for (int64_t i = 0; i < D * D && pass == 1; i++)
                    cov[i] += (key[i / D] - mu[i / D]) * (key[i % D] - mu[i % D]) / (double)n;
            }
        }
        for (int64_t i = 0; i < D && pass == 0; i++) mu[i] /= (double)n;
    }
    if (n == 0) return 0;
    int info = 0;
    kern_eigh_ref(s, cov, &info, 1, D);
    assert_int_equal(info, 0);
    *mu2 = 0;
    for (int64_t i = 0; i < D; i++) *mu2 += mu[i] * mu[i];
    const int64_t T = w->offsets[p + 1] - w->offsets[p];
    double total[T_MAX];
    for (int64_t t = 0; t < T; t++) {
        const float *key = w->tokens_first[l] + ((w->offsets[p] + t) * Hk + h) * D;
        total[t] = a[t] = 0;
        for (int64_t i = 0; i < D; i++) total[t] += pow(key[i] - mu[i], 2);
        for (int64_t k = 0; k < r; k++) {
            double dot = 0;
            for (int64_t i = 0; i < D; i++) dot += cov[k * D + i] * (key[i] - mu[i]);
            a[t] += dot * dot / total[t];
        }
        if (t >= skip && w->role[w->offsets[p] + t] != AG_ROLE_ANSWER) largest = fmax(largest, total[t]);
    }
    for (int64_t t = 0; t < T; t++)
        if (t < skip || !(total[t] > 1e-24 * largest)) a[t] = NAN;
    return n;
}

static void close_to(double got, double expected, double tolerance) {
    if (isnan(expected) && isnan(got)) return;
    if (!(fabs(got - expected) <= tolerance)) fail_msg("%.17g is not %.17g within %g", got, expected, tolerance);
}

static const struct geom_options options_all = {6, 2, 5, 400, true};

static void test_against_naive(void **state) {
    (void)state;
    struct world *w = world_new(test_seed());
    const int64_t r = options_all.r, skip = options_all.skip, layers[2] = {0, 2};
    char path[300];
    snprintf(path, sizeof path, "%s/x.h5", test_folder("reducer-naive"));
    const enum ag_backend backends[2] = {AG_BACKEND_CPU, AG_BACKEND_REF};
    for (int k = 0; k < 2; k++) {
        const struct run run = {backends[k], 0, P, false, false};
        struct ag_reducer *reducer = run_all(w, &options_all, &run, path);
        const struct geom_results *g = geom_reducer_results(reducer);
        assert_int_equal(g->from.units, 5);
        assert_int_equal(g->H, 3);
        for (int b = 0; b < GEOM_BASIS_COUNT; b++) {
            for (int64_t l = 0; l < 2; l++) {
                const int64_t Hk = w->shapes[layers[l]].Hk, D = w->shapes[layers[l]].D;
                for (int64_t h = 0; h < Hk; h++) {
                    double unit_sum[5] = {0}, needle_sum = 0, distractor_sum = 0;
                    int64_t unit_n[5] = {0}, needle_n = 0, distractor_n = 0;
                    for (int64_t p = 0; p < P; p++) {
                        double a[T_MAX], s[24], mu2 = NAN, sums[AG_ROLE_COUNT] = {0};
                        int64_t counts[AG_ROLE_COUNT] = {0}, cell = p * Hk + h;
                        const struct geom_records *records = &g->records[b][l];
                        const int64_t n = naive(w, layers[l], p, h, (enum geom_basis)b, r, skip, a, s, &mu2);
                        assert_int_equal(records->n[cell], n);
                        double trace = 0, inside = 0;
                        for (int64_t i = 0; i < D && n > 0; i++) trace += fmax(s[i], 0), inside += i < r ? s[i] : 0;
                        for (int64_t i = 0; i < D; i++)
                            close_to(records->spectrum[cell * D + i], n > 0 ? fmax(s[i], 0) : NAN, 1e-10 * trace);
                        close_to(records->mu2[cell], mu2, 1e-10 * mu2);
                        close_to(records->ev_r[cell], n > r + 1 ? inside / trace : NAN, 1e-10);
                        close_to(records->gap[cell], n > r + 1 ? 1 - s[r] / s[r - 1] : NAN, 1e-8);
                        for (int64_t t = 0; n > r + 1 && t < w->offsets[p + 1] - w->offsets[p]; t++) {
                            if (isnan(a[t])) continue;
                            sums[w->role[w->offsets[p] + t]] += a[t];
                            counts[w->role[w->offsets[p] + t]]++;
                        }
                        for (int role = 0; role < AG_ROLE_COUNT; role++) {
                            assert_int_equal(records->align_count[cell * AG_ROLE_COUNT + role], counts[role]);
                            /* 1e-6: the r-th axis may lie close to the next */
                            close_to(records->align_sum[cell * AG_ROLE_COUNT + role], sums[role], 1e-6);
                        }
                        needle_sum += sums[AG_ROLE_NEEDLE];
                        needle_n += counts[AG_ROLE_NEEDLE];
                        distractor_sum += sums[AG_ROLE_DISTRACTOR];
                        distractor_n += counts[AG_ROLE_DISTRACTOR];
                        if (counts[AG_ROLE_NEEDLE] == 0 || counts[AG_ROLE_DISTRACTOR] == 0) continue;
                        static const int64_t unit[P] = {0, 1, 0, 2, 3, 4, 3};
                        unit_sum[unit[p]] += sums[AG_ROLE_NEEDLE] / (double)counts[AG_ROLE_NEEDLE] -
                                             sums[AG_ROLE_DISTRACTOR] / (double)counts[AG_ROLE_DISTRACTOR];
                        unit_n[unit[p]]++;
                    }
                    double sum = 0;
                    int64_t n = 0;
                    for (int u = 0; u < 5; u++)
                        if (unit_n[u] > 0) sum += unit_sum[u] / (double)unit_n[u], n++;
                    const struct geom_summary *s = g->summary[b];
                    const int64_t at = l * g->H + h;
                    assert_int_equal(n, 2); /* the twins a and c; b, short and one lack a role */
                    assert_int_equal(s->units[at], n);
                    close_to(s->delta_prompt[at], sum / (double)n, 1e-6);
                    close_to(s->delta_token[at], needle_sum / (double)needle_n - distractor_sum / (double)distractor_n,
                             1e-6);
                    assert_true(s->delta_prompt_lo[at] <= s->delta_prompt[at] &&
                                s->delta_prompt[at] <= s->delta_prompt_hi[at]);
                    assert_true(s->p[at] == 0.5 || s->p[at] == 1);
                }
            }
            assert_int_equal(g->summary[b]->cells, 5);
            close_to(g->summary[b]->smallest_p, 0.5, 0);
            assert_true(isnan(g->summary[b]->delta_prompt[2])); /* layer 0 has two heads of three columns */
            assert_int_equal(g->summary[b]->significant_negative + g->summary[b]->significant_positive, 0);
        }
        const struct geom_summary *s = g->summary[GEOM_BASIS_PROMPT];
        assert_int_equal(s->prompts_missing[0], 2);  /* "one", and "short" with 7 keys: r + 1 */
        assert_int_equal(s->prompts_few_keys[0], 2); /* the others have more than 25 */
        reducer->class_->free(reducer);
    }
    ag_arena_free(w->arena);
}

static void test_same_bits(void **state) {
    (void)state;
    struct world *w = world_new(test_seed() + 1);
    const char *folder = test_folder("reducer-bits");
    char one[300], two[300];
    snprintf(one, sizeof one, "%s/one.h5", folder);
    snprintf(two, sizeof two, "%s/two.h5", folder);
    const struct run first = {AG_BACKEND_CPU, 1, P, false, false};
    const struct run others[] = {{AG_BACKEND_CPU, 3, P, false, false},
                                 {AG_BACKEND_CPU, 2, 1, false, true},
                                 {AG_BACKEND_CPU, 2, 2, true, false},
                                 {AG_BACKEND_CPU, 5, 3, true, true}};
    struct ag_reducer *a = run_all(w, &options_all, &first, one);
    struct ag_error err = AG_ERROR_INIT;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct ag_reducer *b = run_all(w, &options_all, &others[i], two);
        struct geom_results *read;
        same_results(geom_reducer_results(a), geom_reducer_results(b));
        assert_ok(geom_results_read(&read, two, &err), &err); /* and through the file */
        same_results(geom_reducer_results(a), read);
        assert_string_equal(read->from.model, "made-up");
        assert_string_equal(read->from.prompt_id[2], "a-twin");
        assert_int_equal(read->from.tap, AG_TAP_PROJ);
        assert_int_equal(read->from.last_tap, AG_TAP_ROPE);
        assert_int_equal(read->resample_seed, 5);
        assert_ok(geom_fold(read, &err), &err);
        same_results(geom_reducer_results(a), read);
        geom_results_free(read);
        b->class_->free(b);
    }
    a->class_->free(a);
    ag_arena_free(w->arena);
}

/* Two runs over half the prompts each; their records put together and folded are the records and summary of one run. */
static void test_split_and_fold(void **state) {
    (void)state;
    struct world *w = world_new(test_seed() + 2);
    struct geom_options options = options_all;
    options.pooled = false; /* that basis is of all prompts */
    options.skip = 0;
    char path[300];
    snprintf(path, sizeof path, "%s/x.h5", test_folder("reducer-split"));
    const struct run run = {AG_BACKEND_CPU, 2, P, false, false};
    struct ag_reducer *whole = run_all(w, &options, &run, path);
    struct geom_results *joined;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(geom_results_new(&joined, &w->source, &options, &err), &err);
    for (int part = 0; part < 2; part++) { /* prompts 0-2 (a, b, a-twin) and 3-6 */
        const int64_t from = part == 0 ? 0 : 3, n = part == 0 ? 3 : 4;
        struct world half = *w;
        int64_t offsets[P + 1], twin[P];
        for (int64_t p = 0; p <= n; p++) offsets[p] = w->offsets[from + p] - w->offsets[from];
        for (int64_t p = 0; p < n; p++) twin[p] = w->twin[from + p] < 0 ? -1 : w->twin[from + p] - from;
        half.tokens.P = n;
        half.tokens.T = offsets[n];
        half.tokens.offsets = offsets;
        half.tokens.twin = twin;
        half.tokens.prompt_id = w->ids + from;
        half.source.tokens = &half.tokens;
        const struct kern_ops *ops;
        struct ag_reducer *reducer;
        assert_ok(kern_backend(&ops, AG_BACKEND_CPU, &err), &err);
        assert_ok(geom_reducer_new(&reducer, &options, ops, NULL, &err), &err);
        assert_ok(reducer->class_->begin(reducer, &half.source, &err), &err);
        for (int64_t l = 0; l < L; l++) {
            struct ag_block blocks[P];
            if (!w->selected[l]) continue;
            for (int64_t p = 0; p < n; p++) {
                blocks[p] = block_of(w, l, from + p, true);
                blocks[p].prompt = p;
            }
            assert_ok(reducer->class_->reduce(reducer, blocks, n, &err), &err);
        }
        assert_ok(reducer->class_->finish(reducer, path, true, &err), &err);
        const struct geom_results *g = geom_reducer_results(reducer);
        for (int b = 0; b < 2; b++) {
            for (int64_t l = 0; l < g->from.Ls; l++) {
                for (int i = 0; i < geom_n_record_datasets; i++) {
                    int64_t dims[AG_H5_MAX_RANK], size = 1;
                    const int rank = geom_dims(dims, &geom_record_datasets[i], g, l);
                    for (int k = 1; k < rank; k++) size *= dims[k];
                    const void *x;
                    char *y;
                    memcpy(&x, (const char *)&g->records[b][l] + geom_record_datasets[i].offset, sizeof x);
                    memcpy(&y, (char *)&joined->records[b][l] + geom_record_datasets[i].offset, sizeof y);
                    memcpy(y + from * size * 8, x, (size_t)(n * size) * 8);
                }
            }
        }
        reducer->class_->free(reducer);
    }
    assert_ok(geom_fold(joined, &err), &err);
    same_results(geom_reducer_results(whole), joined);
    whole->class_->free(whole);
    geom_results_free(joined);
    ag_arena_free(w->arena);
}

static struct ag_reducer *begun(const struct world *w, const struct geom_options *options) {
    struct ag_error err = AG_ERROR_INIT;
    const struct kern_ops *ops;
    struct ag_reducer *reducer;
    assert_ok(kern_backend(&ops, AG_BACKEND_CPU, &err), &err);
    assert_ok(geom_reducer_new(&reducer, options, ops, NULL, &err), &err);
    assert_ok(reducer->class_->begin(reducer, &w->source, &err), &err);
    return reducer;
}

static void test_bad_keys(void **state) {
    (void)state;
    const float bad[3] = {NAN, INFINITY, -INFINITY};
    const int64_t tokens[3] = {0, 40, 79}; /* special, haystack, answer */
    for (int i = 0; i < 3; i++) {
        struct world *w = world_new(9);
        struct ag_error err = AG_ERROR_INIT;
        struct geom_options options = {6, 0, 1, 10, false};
        struct ag_reducer *reducer = begun(w, &options);
        const int64_t Hk = 3, D = 17;
        w->tokens_first[2][((w->offsets[0] + tokens[i]) * Hk + 1) * D + 4] = bad[i];
        w->tokens_first[2][((w->offsets[2] + 5) * Hk + 0) * D + 4] = NAN; /* a later prompt's is not the one named */
        const enum ag_status status = feed(reducer, w, P, false, true, &err);
        char token[32];
        snprintf(token, sizeof token, "token %d:", (int)tokens[i]);
        test_refused(status, AG_E_NUMERIC, &err, "layer 2 head 1", "(a)", token, "component 4", NULL);
        reducer->class_->free(reducer);
        ag_arena_free(w->arena);
    }
}

static void test_refusals(void **state) {
    (void)state;
    struct world *w = world_new(9);
    struct ag_error err = AG_ERROR_INIT;
    const struct kern_ops *ops;
    struct ag_reducer *reducer;
    struct geom_options options = {17, 0, 1, 10, false};
    assert_ok(kern_backend(&ops, AG_BACKEND_CPU, &err), &err);
    assert_ok(geom_reducer_new(&reducer, &options, ops, NULL, &err), &err);
    test_refused(reducer->class_->begin(reducer, &w->source, &err), AG_E_USAGE, &err, "--r 17", "layer 2",
                 "17 dimensions", NULL);
    reducer->class_->free(reducer);
    options.r = 6;
    options.skip = 90;
    err = (struct ag_error)AG_ERROR_INIT;
    assert_ok(geom_reducer_new(&reducer, &options, ops, NULL, &err), &err);
    test_refused(reducer->class_->begin(reducer, &w->source, &err), AG_E_USAGE, &err, "--skip 90", "90 tokens", NULL);
    reducer->class_->free(reducer);
    options.skip = 0;
    options.r = 16; /* below every D of the layers that are selected */
    reducer = begun(w, &options);
    err = (struct ag_error)AG_ERROR_INIT;
    struct ag_block block = block_of(w, 1, 0, true);
    test_refused(reducer->class_->reduce(reducer, &block, 1, &err), AG_E_INTERNAL, &err, "layer 1", NULL);
    err = (struct ag_error)AG_ERROR_INIT;
    block = block_of(w, 0, 1, true);
    test_refused(reducer->class_->reduce(reducer, &block, 1, &err), AG_E_INTERNAL, &err, "prompt 1", NULL);
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(reducer->class_->finish(reducer, "build/test/never.h5", false, &err), AG_E_INTERNAL, &err, "0 of 7",
                 NULL);
    assert_int_equal(access("build/test/never.h5", F_OK), -1);
    reducer->class_->free(reducer);
    w->twin[0] = 1;
    err = (struct ag_error)AG_ERROR_INIT;
    assert_ok(geom_reducer_new(&reducer, &options, ops, NULL, &err), &err);
    test_refused(reducer->class_->begin(reducer, &w->source, &err), AG_E_FORMAT, &err, "twin", NULL);
    reducer->class_->free(reducer);
    ag_arena_free(w->arena);
}

/* All keys zero, all keys equal, and skip beyond nearly every token: records say missing, the summary says NaN, nothing
 * fails. */
static void test_degenerate(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s/x.h5", test_folder("reducer-degenerate"));
    const struct run run = {AG_BACKEND_CPU, 2, P, false, true};
    for (int kind = 0; kind < 3; kind++) {
        struct world *w = world_new(9);
        struct geom_options options = {6, kind == 2 ? 88 : 0, 1, 100, true};
        for (int l = 0; l < L && kind < 2; l++)
            for (int64_t i = 0; i < w->offsets[P] * w->shapes[l].Hk * w->shapes[l].D; i++)
                w->tokens_first[l][i] = kind == 0 ? 0 : 0.1f;
        struct ag_reducer *reducer = run_all(w, &options, &run, path);
        const struct geom_results *g = geom_reducer_results(reducer);
        for (int b = 0; b < GEOM_BASIS_COUNT; b++) {
            const struct geom_summary *s = g->summary[b];
            assert_int_equal(s->cells, 0);
            assert_int_equal(s->missing, 5);
            assert_true(isnan(s->fraction_negative) && isnan(s->smallest_p));
            assert_true(isnan(s->delta_prompt[0]) && isnan(s->delta_token[0]) && isnan(s->effective_rank[0]));
            if (kind < 2) assert_true(s->trace[0] == 0 && s->tokens_undefined[0] > 0 && s->prompts_zero_trace[0] > 0);
            if (kind == 2) assert_true(isnan(s->trace[0]) && s->prompts_missing[0] == P);
        }
        if (kind == 1) close_to(g->summary[0]->mean_dominance[0], 1, 0);
        reducer->class_->free(reducer);
        ag_arena_free(w->arena);
    }
}

/* CASES: mean 400, deviation 0.05, stored as bf16: warned; as f32: not. */
static void test_storage_warning(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s/x.h5", test_folder("reducer-storage"));
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct world *w = world_new(9);
        gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
        for (int64_t i = 0; i < w->offsets[P] * 2 * 24; i++) {
            if (i % 24 == 3) w->tokens_first[0][i] = (float)(400 + gsl_ran_gaussian(rng, 0.05));
            if (!bf16) continue;
            uint32_t bits;
            memcpy(&bits, &w->tokens_first[0][i], 4);
            bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
            memcpy(&w->tokens_first[0][i], &bits, 4);
        }
        gsl_rng_free(rng);
        struct geom_options options = {6, 0, 1, 10, false};
        const struct run run = {AG_BACKEND_CPU, 2, P, false, true};
        struct ag_reducer *reducer = run_all(w, &options, &run, path);
        assert_int_equal(geom_reducer_results(reducer)->storage_lost,
                         bf16 ? 2 * (P - 1) : 0); /* "one" has no variance */
        reducer->class_->free(reducer);
        ag_arena_free(w->arena);
    }
}

static void test_results_damaged(void **state) {
    (void)state;
    struct world *w = world_new(9);
    const char *folder = test_folder("results-damaged");
    char path[300], cut[300];
    snprintf(path, sizeof path, "%s/good.h5", folder);
    snprintf(cut, sizeof cut, "%s/bad.h5", folder);
    const struct run run = {AG_BACKEND_CPU, 2, P, false, true};
    struct geom_options options = {6, 0, 1, 10, false};
    struct ag_reducer *reducer = run_all(w, &options, &run, path);
    struct geom_results *read;
    struct ag_error err = AG_ERROR_INIT;
    test_refused(geom_results_write(geom_reducer_results(reducer), path, false, &err), AG_E_IO, &err, path, NULL);
    static char data[1 << 22];
    FILE *file = fopen(path, "rb");
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    assert_true(size > 1000 && size < sizeof data);
    const size_t sizes[] = {0, 100, size / 2, size - 1};
    for (int i = 0; i < 4; i++) {
        file = fopen(cut, "wb");
        fwrite(data, 1, sizes[i], file);
        fclose(file);
        err = (struct ag_error)AG_ERROR_INIT;
        assert_true(geom_results_read(&read, cut, &err) != AG_OK && err.text[0] && !read);
    }
    for (int i = 0; i < 5; i++) { /* values that cannot be */
        hid_t h5;
        file = fopen(cut, "wb");
        fwrite(data, 1, size, file);
        fclose(file);
        h5 = H5Fopen(cut, H5F_ACC_RDWR, H5P_DEFAULT);
        assert_true(h5 >= 0);
        static const char *const names[] = {"prompts/twin", "prompts/unit", "layers", "records/2/haystack/align_count",
                                            "records/0/prompt/n"};
        hid_t set = H5Dopen2(h5, names[i], H5P_DEFAULT);
        int64_t values[P * 3 * AG_ROLE_COUNT];
        H5Dread(set, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
        values[1] = i == 1 ? 4 : -7;
        H5Dwrite(set, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
        H5Dclose(set);
        H5Fclose(h5);
        err = (struct ag_error)AG_ERROR_INIT;
        test_refused(geom_results_read(&read, cut, &err), AG_E_FORMAT, &err, "bad.h5", i == 3 ? "count" : names[i],
                     NULL);
    }
    reducer->class_->free(reducer);
    ag_arena_free(w->arena);
}

/* Every allocation may fail: an error, no file, nothing lost (the sanitizers look). */
static void test_out_of_memory(void **state) {
    (void)state;
    struct world *w = world_new(9);
    char path[300];
    snprintf(path, sizeof path, "%s/x.h5", test_folder("reducer-memory"));
    struct geom_options options = {6, 0, 1, 10, true};
    bool done = false;
    for (int64_t n = 0; !done && n < 4000; n += 1 + n / 40) {
        struct ag_error err = AG_ERROR_INIT;
        const struct kern_ops *ops;
        struct ag_reducer *reducer = NULL;
        kern_set_threads(1);
        assert_ok(kern_backend(&ops, AG_BACKEND_CPU, &err), &err);
        ag_arena_fail_after(n);
        enum ag_status status = geom_reducer_new(&reducer, &options, ops, NULL, &err);
        if (status == AG_OK) status = reducer->class_->begin(reducer, &w->source, &err);
        if (status == AG_OK) status = feed(reducer, w, P, false, true, &err);
        if (status == AG_OK) status = geom_reducer_second_pass(reducer, &err);
        if (status == AG_OK) status = feed(reducer, w, P, false, true, &err);
        if (status == AG_OK) status = reducer->class_->finish(reducer, path, true, &err);
        ag_arena_fail_after(-1);
        kern_set_threads(0);
        if (reducer) reducer->class_->free(reducer);
        done = status == AG_OK;
        if (!done) assert_true(err.text[0] != '\0' && access(path, F_OK) != 0);
        if (done) assert_true(n > 50 && access(path, F_OK) == 0);
    }
    assert_true(done);
    ag_arena_free(w->arena);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_against_naive),   cmocka_unit_test(test_same_bits),
    cmocka_unit_test(test_split_and_fold),  cmocka_unit_test(test_bad_keys),
    cmocka_unit_test(test_refusals),        cmocka_unit_test(test_degenerate),
    cmocka_unit_test(test_storage_warning), cmocka_unit_test(test_results_damaged),
    cmocka_unit_test(test_out_of_memory),
};
TEST_GROUP(reducer, "geometry reducer, fold and results file", tests)
