/* taylor/reducer.c: see reducer.h. */
#include "taylor/reducer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "taylor/fold.h"
#include "taylor/sample.h"
#include "taylor/state.h"

struct taylor_reducer {
    struct ag_reducer base;
    struct ag_arena *arena;   /* owns this */
    struct ag_arena *scratch; /* of one block */
    struct taylor_options options;
    const struct kern_ops *ops;
    const struct ag_log *log;
    struct taylor_results *results;
    int64_t *slot;                 /* (L) index into results->from.layer, -1: not selected */
    int64_t *seen;                 /* (Ls) prompts that came so far */
    int64_t **positions;           /* (P) sampled positions of each prompt */
    int64_t *n_positions;          /* (P) */
    int64_t *headline;             /* (P) */
    int64_t *before;               /* (P + 1) sampled positions of the prompts before */
    int64_t *first_sample;         /* (Ls) row of the layer's first sample */
    int64_t curve_prompt, n_curve; /* whose positions have curves, and how many */
    int64_t *curve_slot;           /* (n_positions of that prompt) 0 .. n_curve - 1, -1: none */
    const struct ag_tokens *tokens;
};

/* ---- all causal queries ------------------------------------------------------------------------------------------- */

struct head_scratch {
    double *state;                  /* (5 D) */
    double *median[TAYLOR_MEDIANS]; /* (T) */
    int64_t n[TAYLOR_MEDIANS];
    int64_t *density; /* of this head, added to the layer's afterwards */
};

static void count_value(int32_t *histograms, enum taylor_quantity quantity, double x) {
    if (isnan(x)) x = INFINITY; /* a fourth power that overflowed */
    histograms[((int64_t)quantity * 2 + !(x < 0)) * TAYLOR_BINS + taylor_bin(x)]++;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle value, or the mean of the two in the middle. */
static double median_of(double *x, int64_t n) {
    if (n == 0) return NAN;
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* One query: into the counts, histograms and medians of its head. */
static void count_query(int64_t *counts, int32_t *histograms, struct head_scratch *s,
                        const struct kern_logit_moments *x, const struct taylor_reach *reach, double q_norm) {
    struct taylor_remainder r;
    struct taylor_interval bound[TAYLOR_BOUNDS];
    taylor_remainder_of(&r, x);
    const double log_t = log((double)x->t), size = fabs(r.R);
    const bool degenerate = !(x->v > 0);
    counts[TAYLOR_N_QUERIES]++;
    count_value(histograms, TAYLOR_Q_NORM, q_norm);
    count_value(histograms, TAYLOR_RADIUS_V, sqrt(x->v));
    count_value(histograms, TAYLOR_RANGE, x->b - x->a);
    count_value(histograms, TAYLOR_C, r.c);
    count_value(histograms, TAYLOR_ABS_R, size);
    count_value(histograms, TAYLOR_EFFECTIVE, x->effective);
    count_value(histograms, TAYLOR_LARGEST, x->largest);
    count_value(histograms, TAYLOR_ERROR_0, fabs(x->A - log_t));
    count_value(histograms, TAYLOR_ERROR_3, fabs(r.R - x->k3 / 6));
    count_value(histograms, TAYLOR_ERROR_4, fabs(r.R - x->k3 / 6 - x->k4 / 24));
    s->median[TAYLOR_M_RADIUS_V][s->n[TAYLOR_M_RADIUS_V]++] = sqrt(x->v);
    s->median[TAYLOR_M_EFFECTIVE][s->n[TAYLOR_M_EFFECTIVE]++] = x->effective;
    s->median[TAYLOR_M_LARGEST][s->n[TAYLOR_M_LARGEST]++] = x->largest;
    for (int e = 0; e < TAYLOR_EPS; e++) counts[TAYLOR_N_EPS_0 + e] += degenerate || size <= taylor_eps[e] * r.c;
    if (degenerate) {
        counts[TAYLOR_N_DEGENERATE]++;
        return;
    }
    const double ratio = r.c > 0 ? r.R / r.c : -INFINITY; /* c lost to rounding: R = -v/2 is all that is left */
    count_value(histograms, TAYLOR_R_OVER_C, ratio);
    count_value(histograms, TAYLOR_R_OVER_V2, size / (x->v / 2));
    s->median[TAYLOR_M_R_OVER_C][s->n[TAYLOR_M_R_OVER_C]++] = ratio;
    s->median[TAYLOR_M_ABS_R_OVER_C][s->n[TAYLOR_M_ABS_R_OVER_C]++] = fabs(ratio);
    s->density[taylor_density_bin(sqrt(x->v)) * TAYLOR_DENSITY + taylor_density_bin(fabs(ratio))]++;
    taylor_enclose(bound, x, reach);
    for (int k = 0; k < (reach != NULL ? TAYLOR_BOUNDS : TAYLOR_B4); k++) { /* without a constant state B4 is missing */
        const double lo = bound[k].lo, hi = bound[k].hi;
        counts[TAYLOR_N_FINITE_B1 + k] += isfinite(lo) && isfinite(hi);
        counts[TAYLOR_N_SIGN_B1 + k] += lo > 0 || hi < 0;
        counts[TAYLOR_N_PROVED_B1 + k] += lo >= -(x->v - x->dv) / 4 && isfinite(lo);
        count_value(histograms, (enum taylor_quantity)(TAYLOR_WIDTH_B1 + k), size > 0 ? (hi - lo) / size : INFINITY);
    }
}

static void reduce_head(const struct taylor_reducer *self, const struct ag_block *block, int64_t l, int64_t h,
                        const struct kern_logit_moments *moments, struct head_scratch *s) {
    const struct ag_layer_shape *shape = block->shape;
    const struct taylor_results *results = self->results;
    const struct taylor_records *records = &results->records[l];
    const int64_t D = shape->D, g = h / (shape->Hq / shape->Hk), cell = block->prompt * shape->Hq + h;
    int64_t *counts = records->counts + cell * TAYLOR_COUNTS;
    int32_t *histograms = records->histograms + h * TAYLOR_QUANTITIES * 2 * TAYLOR_BINS;
    struct taylor_state state;
    taylor_state_begin(&state, s->state, D);
    memset(s->n, 0, sizeof s->n);
    for (int64_t t = 0; t < block->T; t++) {
        const float *q = block->queries.data + h * block->queries.head_stride + t * block->queries.token_stride;
        double square = 0;
        for (int64_t d = 0; d < D; d++) square += (double)q[d] * (double)q[d];
        struct taylor_reach reach = {INFINITY, INFINITY}; /* window layers: no constant state carries a window */
        if (shape->window == 0) {
            taylor_state_add(&state, block->keys.data + g * block->keys.head_stride + t * block->keys.token_stride);
            reach = taylor_state_reach(&state, q, shape->scale, moments[t].m, moments[t].dm);
        }
        count_query(counts, histograms, s, &moments[t], shape->window == 0 ? &reach : NULL,
                    fabs(shape->scale) * sqrt(square));
    }
    for (int m = 0; m < TAYLOR_MEDIANS; m++)
        records->medians[cell * TAYLOR_MEDIANS + m] = median_of(s->median[m], s->n[m]);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------- */

/* NaN or infinity among keys or queries: which. */
static enum ag_status check_finite(const struct taylor_reducer *self, const struct ag_block *block,
                                   const struct ag_view *view, int64_t heads, const char *what, struct ag_error *err) {
    const int64_t D = block->shape->D;
    for (int64_t h = 0; h < heads; h++) {
        const float *x = view->data + h * view->head_stride;
        int64_t t = self->ops->nonfinite(x, block->T, D, view->token_stride);
        if (t < 0) continue;
        return ag_fail(err, AG_E_NUMERIC,
                       "taylor: layer %" PRId64 ", prompt %" PRId64 " (%.80s), %s head %" PRId64 ", token %" PRId64
                       ": the %s is not finite; is the checkpoint damaged, or a 16-bit type overflowing?",
                       block->layer, block->prompt, self->results->from.prompt_id[block->prompt], what, h, t, what);
    }
    return AG_OK;
}

static enum ag_status check_block(const struct taylor_reducer *self, const struct ag_block *block, int64_t l,
                                  struct ag_error *err) {
    const struct taylor_results *r = self->results;
    if (l < 0 || block->prompt != self->seen[l] || block->prompt >= r->from.P || block->tap != r->from.tap ||
        block->keys.data == NULL || block->shape->Hq != r->Hq[l] || block->shape->Hk != r->Hk[l] ||
        block->shape->D != r->D[l] || block->T > INT32_MAX ||
        block->T != self->tokens->offsets[block->prompt + 1] - self->tokens->offsets[block->prompt])
        return ag_fail(err, AG_E_INTERNAL,
                       "taylor: layer %" PRId64 ", prompt %" PRId64 ": a block that was not announced, or out of order",
                       block->layer, block->prompt);
    if (block->queries.data == NULL)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "taylor: layer %" PRId64
                       " has no queries; expected keys and queries of every token: probe with --what keys,queries "
                       "and without --positions and --heads",
                       block->layer);
    enum ag_status status = check_finite(self, block, &block->keys, block->shape->Hk, "key", err);
    return status != AG_OK ? status : check_finite(self, block, &block->queries, block->shape->Hq, "query", err);
}

static enum ag_status all_queries(struct taylor_reducer *self, const struct ag_block *block, int64_t l,
                                  struct ag_error *err) {
    const struct ag_layer_shape *shape = block->shape;
    const int64_t Hq = shape->Hq, T = block->T;
    const int threads = (int)(kern_threads() < Hq ? kern_threads() : Hq);
    struct kern_logit_moments *moments = AG_NEW(self->scratch, struct kern_logit_moments, Hq * T, err);
    struct head_scratch *scratch = AG_ZEROS(self->scratch, struct head_scratch, threads, err);
    if (!moments || !scratch) return AG_E_MEMORY;
    for (int i = 0; i < threads; i++) {
        scratch[i].state = AG_NEW(self->scratch, double, TAYLOR_STATE_DOUBLES(shape->D), err);
        scratch[i].density = AG_ZEROS(self->scratch, int64_t, TAYLOR_DENSITY * TAYLOR_DENSITY, err);
        if (!scratch[i].state || !scratch[i].density) return AG_E_MEMORY;
        for (int m = 0; m < TAYLOR_MEDIANS; m++)
            if (!(scratch[i].median[m] = AG_NEW(self->scratch, double, T, err))) return AG_E_MEMORY;
    }
    self->ops->logit_moments(moments, block->keys.data, block->queries.data, T, Hq, shape->Hk, shape->D,
                             block->keys.head_stride, block->keys.token_stride, block->queries.head_stride,
                             block->queries.token_stride, shape->scale, shape->window);
    for (int64_t i = 0; i < Hq * T; i++)
        if (!isfinite(moments[i].A) || !isfinite(moments[i].v))
            return ag_fail(
                err, AG_E_NUMERIC,
                "taylor: layer %" PRId64 ", prompt %" PRId64 ", query head %" PRId64 ", token %" PRId64
                ": a logit of 2^30 or more, beyond what enclosures can be computed for; is the checkpoint damaged?",
                block->layer, block->prompt, i / T, i % T);
    int64_t next = 0;
#pragma omp parallel num_threads(threads) default(none) shared(self, block, l, moments, scratch, next, Hq, T)
    {
        int64_t mine;
#pragma omp atomic capture
        mine = next++;
#pragma omp for schedule(dynamic)
        for (int64_t h = 0; h < Hq; h++) reduce_head(self, block, l, h, moments + h * T, &scratch[mine]);
    }
    for (int i = 0; i < threads; i++) /* integers: the order does not matter */
        for (int64_t k = 0; k < TAYLOR_DENSITY * TAYLOR_DENSITY; k++)
            self->results->records[l].density[k] += scratch[i].density[k];
    return AG_OK;
}

static enum ag_status sampled_queries(struct taylor_reducer *self, const struct ag_block *block, int64_t l,
                                      struct ag_error *err) {
    const struct ag_layer_shape *shape = block->shape;
    const int64_t p = block->prompt, Hk = shape->Hk, G = shape->Hq / Hk, n = self->n_positions[p], tasks = n * Hk;
    const int64_t start = self->tokens->offsets[p];
    const int threads = (int)(kern_threads() < tasks ? kern_threads() : tasks);
    if (tasks == 0) return AG_OK;
    struct taylor_scratch *scratch = AG_NEW(self->scratch, struct taylor_scratch, threads, err);
    /* a KV head's rows belong together in a task but heads alternate in the file: rows of a task, then put in place */
    if (!scratch) return AG_E_MEMORY;
    struct taylor_sample *rows = self->results->samples + self->first_sample[l] + self->before[p] * shape->Hq;
    for (int i = 0; i < threads; i++) {
        enum ag_status status = taylor_scratch_new(&scratch[i], block->T, shape->D, self->scratch, err);
        if (status != AG_OK) return status;
    }
    int64_t next = 0, failed = -1;
    const int64_t *slot = p == self->curve_prompt ? self->curve_slot : NULL;
    struct taylor_curve *curves =
        self->results->curves + self->first_sample[l] / self->before[self->results->from.P] * self->n_curve;
#pragma omp parallel num_threads(threads) default(none)                                                                \
    shared(self, block, scratch, next, failed, rows, curves, slot, tasks, p, Hk, G, start)
    {
        int64_t mine;
#pragma omp atomic capture
        mine = next++;
        /* late positions see most keys: the longest first */
#pragma omp for schedule(dynamic)
        for (int64_t task = tasks - 1; task >= 0; task--) {
            const int64_t i = task / Hk, g = task % Hk, t = self->positions[p][i];
            const bool retrieves = t + 1 < block->T && (self->tokens->value[start + t + 1] & AG_VALUE_ANSWER) != 0;
            const uint8_t value = (uint8_t)(t == self->headline[p] ? 2 : retrieves ? 1 : 0);
            struct taylor_curve *mine_too = slot != NULL && slot[i] >= 0 ? curves + (slot[i] * Hk + g) * G : NULL;
            for (int64_t k = 0; mine_too != NULL && k < G; k++)
                mine_too[k].sample = rows + (i * Hk + g) * G + k - self->results->samples;
            if (!taylor_sample_group(rows + (i * Hk + g) * G, mine_too, block, g, t, value, self->options.r,
                                     &scratch[mine], self->ops)) {
#pragma omp atomic write
                failed = task;
            }
        }
    }
    if (failed >= 0)
        return ag_fail(err, AG_E_NUMERIC,
                       "taylor: layer %" PRId64 ", prompt %" PRId64 ", KV head %" PRId64
                       ": the eigensolver did not converge on the covariance of its keys",
                       block->layer, p, failed % Hk);
    return AG_OK;
}

static enum ag_status reduce(struct ag_reducer *base, const struct ag_block *blocks, int64_t n, struct ag_error *err) {
    struct taylor_reducer *self = (struct taylor_reducer *)base;
    enum ag_status status = AG_OK;
    for (int64_t b = 0; b < n; b++) {
        const int64_t layer = blocks[b].layer, l = layer >= 0 && layer < self->results->from.L ? self->slot[layer] : -1;
        ag_arena_reset(self->scratch);
        AG_TRY(check_block(self, &blocks[b], l, err));
        AG_TRY(all_queries(self, &blocks[b], l, err));
        AG_TRY(sampled_queries(self, &blocks[b], l, err));
        self->seen[l]++;
    }
fail:
    return status;
}

/* ---- begin, finish -------------------------------------------------------------------------------------------------- */

static enum ag_status choose_curves(struct taylor_reducer *self, struct ag_error *err) {
    struct taylor_results *r = self->results;
    int64_t p = 0, heads = 0;
    while (p + 1 < r->from.P && self->n_positions[p] == 0) p++;
    const int64_t n = self->n_positions[p], most = self->options.curves < n ? self->options.curves : n;
    int64_t *chosen = AG_NEW(self->arena, int64_t, most, err);
    self->curve_prompt = p;
    self->curve_slot = AG_NEW(self->arena, int64_t, n, err);
    if (!chosen || !self->curve_slot) return AG_E_MEMORY;
    self->n_curve = taylor_curve_positions(chosen, self->positions[p], n, self->headline[p], most);
    for (int64_t i = 0; i < n; i++) self->curve_slot[i] = -1;
    for (int64_t i = 0; i < self->n_curve; i++) self->curve_slot[chosen[i]] = i;
    for (int64_t l = 0; l < r->from.Ls; l++) heads += r->Hq[l];
    r->n_curves = heads * self->n_curve;
    r->curves = AG_ZEROS(r->arena, struct taylor_curve, r->n_curves, err);
    return r->curves != NULL ? AG_OK : AG_E_MEMORY;
}

static enum ag_status choose_positions(struct taylor_reducer *self, struct ag_error *err) {
    struct taylor_results *r = self->results;
    const struct ag_tokens *tokens = self->tokens;
    const int64_t P = r->from.P;
    int64_t longest = 0, rows = 0;
    self->positions = AG_ZEROS(self->arena, int64_t *, P, err);
    self->n_positions = AG_ZEROS(self->arena, int64_t, P, err);
    self->headline = AG_ZEROS(self->arena, int64_t, P, err);
    self->before = AG_ZEROS(self->arena, int64_t, P + 1, err);
    self->first_sample = AG_ZEROS(self->arena, int64_t, r->from.Ls, err);
    for (int64_t p = 0; p < P; p++)
        if (tokens->offsets[p + 1] - tokens->offsets[p] > longest)
            longest = tokens->offsets[p + 1] - tokens->offsets[p];
    int64_t *all = AG_NEW(self->arena, int64_t, longest, err);
    if (!self->positions || !self->n_positions || !self->headline || !self->before || !self->first_sample || !all)
        return AG_E_MEMORY;
    for (int64_t p = 0; p < P; p++) {
        const int64_t n = taylor_positions(all, &self->headline[p], tokens, p, &self->options);
        if (!(self->positions[p] = AG_NEW(self->arena, int64_t, n, err))) return AG_E_MEMORY;
        memcpy(self->positions[p], all, (size_t)n * sizeof *all);
        self->n_positions[p] = n;
        self->before[p + 1] = self->before[p] + n;
    }
    for (int64_t l = 0; l < r->from.Ls; l++) {
        self->first_sample[l] = rows;
        rows += self->before[P] * r->Hq[l];
    }
    r->n_samples = rows;
    r->samples = AG_ZEROS(r->arena, struct taylor_sample, rows, err);
    return r->samples != NULL ? choose_curves(self, err) : AG_E_MEMORY;
}

static enum ag_status begin(struct ag_reducer *base, const struct ag_source *source, struct ag_error *err) {
    struct taylor_reducer *self = (struct taylor_reducer *)base;
    enum ag_status status = AG_OK;
    AG_TRY(taylor_results_new(&self->results, source, &self->options, err));
    const struct taylor_results *r = self->results;
    self->tokens = source->tokens;
    self->slot = AG_NEW(self->arena, int64_t, r->from.L, err);
    self->seen = AG_ZEROS(self->arena, int64_t, r->from.Ls, err);
    if (!self->slot || !self->seen) return AG_E_MEMORY;
    for (int64_t l = 0; l < r->from.L; l++) self->slot[l] = -1;
    for (int64_t l = 0; l < r->from.Ls; l++) self->slot[r->from.layer[l]] = l;
    AG_TRY(choose_positions(self, err));
    if (source->tap != source->last_tap)
        ag_say(self->log, AG_WARN, "taylor: tap %s is not what the read sees (%s); the results say so",
               ag_tap_names[source->tap], ag_tap_names[source->last_tap]);
fail:
    return status;
}

static enum ag_status finish(struct ag_reducer *base, const char *path, bool force, struct ag_error *err) {
    struct taylor_reducer *self = (struct taylor_reducer *)base;
    const struct taylor_results *r = self->results;
    enum ag_status status = AG_OK;
    for (int64_t l = 0; l < r->from.Ls; l++)
        if (self->seen[l] != r->from.P)
            return ag_fail(err, AG_E_INTERNAL, "taylor: layer %" PRId64 ": %" PRId64 " of %" PRId64 " prompts came",
                           r->from.layer[l], self->seen[l], r->from.P);
    AG_TRY(taylor_fold(self->results, err));
    AG_TRY(taylor_results_write(self->results, path, force, err));
fail:
    return status;
}

static int64_t bytes(const struct ag_reducer *base, const struct ag_source *source) {
    const struct taylor_reducer *self = (const struct taylor_reducer *)base;
    int64_t Hq = 0, D = 0, longest = 0;
    for (int64_t l = 0; l < source->L; l++) {
        if (!source->selected[l]) continue;
        if (source->layers[l].Hq > Hq) Hq = source->layers[l].Hq;
        if (source->layers[l].D > D) D = source->layers[l].D;
    }
    for (int64_t p = 0; p < source->tokens->P; p++) {
        const int64_t T = source->tokens->offsets[p + 1] - source->tokens->offsets[p];
        if (T > longest) longest = T;
    }
    const int64_t thread =
        8 * longest * (D + TAYLOR_MEDIANS + 3) + 8 * (D * D + 12 * D) + 8 * TAYLOR_DENSITY * TAYLOR_DENSITY;
    return taylor_results_bytes(source, &self->options) + kern_threads() * thread +
           (int64_t)sizeof(struct kern_logit_moments) * Hq * longest;
}

static void free_reducer(struct ag_reducer *base) {
    struct taylor_reducer *self = (struct taylor_reducer *)base;
    if (self == NULL) return;
    taylor_results_free(self->results);
    ag_arena_free(self->scratch);
    ag_arena_free(self->arena);
}

const struct taylor_results *taylor_reducer_results(const struct ag_reducer *reducer) {
    return ((const struct taylor_reducer *)reducer)->results;
}

static const struct ag_reducer_class taylor_class = {
    .name = "taylor",
    .needs_queries = true,
    .needs_values = false,
    .bytes = bytes,
    .begin = begin,
    .reduce = reduce,
    .finish = finish,
    .free = free_reducer,
};

enum ag_status taylor_reducer_new(struct ag_reducer **out, const struct taylor_options *options,
                                  const struct kern_ops *ops, const struct ag_log *log, struct ag_error *err) {
    *out = NULL;
    if (!ops->logit_moments || !ops->tilt || !ops->moments || !ops->eigh || !ops->align || !ops->nonfinite)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "taylor: backend %s has no logit_moments, tilt, moments, align, eigh or nonfinite", ops->name);
    struct ag_arena *arena = ag_arena_new("taylor");
    struct taylor_reducer *self = arena ? AG_ZEROS(arena, struct taylor_reducer, 1, err) : NULL;
    if (!self || !(self->scratch = ag_arena_new("taylor scratch"))) {
        ag_arena_free(arena);
        return ag_fail(err, AG_E_MEMORY, "taylor: out of memory");
    }
    self->base.class_ = &taylor_class;
    self->arena = arena;
    self->options = *options;
    self->ops = ops;
    self->log = log;
    *out = &self->base;
    return AG_OK;
}
