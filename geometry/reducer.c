#include "geometry/reducer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "geometry/alignment.h"
#include "geometry/fold.h"
#include "geometry/spectrum.h"
#include "kernels/ops.h"

/* Moments of all prompts of one (layer, head): the `pooled` basis. In the second pass cov holds eigenvectors. */
struct pooled {
    int64_t *n;       /* (Hk) */
    double *mu, *cov; /* (Hk, D), (Hk, D, D) */
    double *s;        /* (Hk, D) */
};

struct geom_reducer {
    struct ag_reducer base;
    struct ag_arena *arena;   /* owns this */
    struct ag_arena *scratch; /* of one reduce call */
    struct geom_options options;
    const struct kern_ops *ops;
    const struct ag_log *log;
    struct geom_results *results;
    int64_t *slot; /* (L) index into results->from.layer, -1: not selected */
    int64_t *seen; /* (Ls) prompts that came so far */
    bool second_pass;
    struct pooled *pooled;         /* (Ls) */
    int64_t lost_layer, lost_head; /* first record whose variance the storage lost */
};

/* Tokens of one block that geometry looks at, split by basis. */
struct block_rows {
    int32_t *haystack, *rest;
    int64_t n_haystack, n_rest;
};

enum failure { FAILED_NOT = 0, FAILED_NOT_FINITE, FAILED_SOLVER };

/* One (block, head) and what it needs. */
struct task {
    const struct ag_block *block;
    const struct block_rows *rows;
    int64_t l, head; /* l: index into results->from.layer */
    const float *x;
    double *pooled_mu, *pooled_cov; /* where to leave the prompt's moments, NULL: not wanted */
    bool lost;
};

struct scratch {
    double *cov, *mu, *s;   /* (2, D, D), (2, D), (2, D): prompt, haystack */
    double *inside, *total; /* (T) */
};

static bool all_finite(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * 0; /* NaN and infinity times zero are NaN */
    return sum == 0;
}

static const float *head_keys(const struct ag_block *block, int64_t head) {
    return block->keys.data + head * block->keys.head_stride;
}

/* True where some channel varies by less than half a step of a 16-bit storage format around its mean. Which grid the
 * keys lie on is seen from their bits: bf16 leaves the low 16 of an f32 zero, f16 the low 13. */
static bool storage_lost(const struct task *task, const double *mu, const double *cov, int64_t D) {
    uint32_t bits = 0;
    const int64_t stride = task->block->keys.token_stride;
    for (int64_t t = 0; t < task->block->T; t++) {
        const float *key = task->x + t * stride;
        for (int64_t i = 0; i < D; i++) {
            uint32_t word;
            memcpy(&word, key + i, sizeof(word));
            bits |= word;
        }
    }
    int zeros = 0;
    while (zeros < 23 && !(bits >> zeros & 1)) zeros++;
    if (zeros < 13) return false;
    if (zeros > 16) zeros = 16; /* coarser by chance; no storage of ours is */
    for (int64_t i = 0; i < D; i++) {
        if (mu[i] == 0) continue;
        const double step = ldexp(1, ilogb(mu[i]) - 23 + zeros);
        if (cov[i * D + i] < step * step / 4) return true;
    }
    return false;
}

/* Alignment on one basis and the record of it. */
static enum failure align_record(const struct geom_reducer *self, const struct task *task, enum geom_basis basis,
                                 const double *mu, const double *U, struct scratch *scratch) {
    const struct geom_results *g = self->results;
    const struct ag_block *block = task->block;
    const struct geom_records *records = &g->records[basis][task->l];
    const int64_t D = g->D[task->l], cell = block->prompt * g->Hk[task->l] + task->head;
    struct geom_alignment alignment;
    self->ops->align(scratch->inside, scratch->total, task->x, mu, U, block->T, D, g->r, block->keys.token_stride);
    if (!all_finite(scratch->total, block->T)) return FAILED_NOT_FINITE;
    geom_align(&alignment, NULL, scratch->inside, scratch->total, block->role, block->T, g->skip);
    memcpy(records->align_sum + cell * AG_ROLE_COUNT, alignment.sum, sizeof(alignment.sum));
    memcpy(records->align_count + cell * AG_ROLE_COUNT, alignment.count, sizeof(alignment.count));
    memcpy(records->align_undefined + cell * AG_ROLE_COUNT, alignment.undefined, sizeof(alignment.undefined));
    return FAILED_NOT;
}

/* s (D) descending, not yet clamped. */
static void spectrum_record(const struct geom_reducer *self, const struct task *task, enum geom_basis basis, int64_t n,
                            const double *mu, double *s) {
    const struct geom_results *g = self->results;
    const struct geom_records *records = &g->records[basis][task->l];
    const int64_t D = g->D[task->l], cell = task->block->prompt * g->Hk[task->l] + task->head;
    double mu2 = 0;
    geom_spectrum_clamp(s, D);
    for (int64_t i = 0; i < D; i++) mu2 += mu[i] * mu[i];
    memcpy(records->spectrum + cell * D, s, (size_t)D * sizeof(*s));
    records->mu2[cell] = mu2;
    if (n <= g->r + 1) return; /* stays NaN: missing */
    records->ev_r[cell] = geom_explained(s, D, g->r);
    records->gap[cell] = geom_gap(s, D, g->r);
}

static enum failure first_pass_task(const struct geom_reducer *self, struct task *task, struct scratch *scratch) {
    const struct geom_results *g = self->results;
    const struct ag_block *block = task->block;
    const int64_t D = g->D[task->l], cell = block->prompt * g->Hk[task->l] + task->head;
    const int64_t stride = block->keys.token_stride,
                  n[2] = {task->rows->n_haystack + task->rows->n_rest, task->rows->n_haystack};
    static const enum geom_basis bases[2] = {GEOM_BASIS_PROMPT, GEOM_BASIS_HAYSTACK};
    int info[2] = {0, 0};
    int64_t merged = task->rows->n_rest;
    if (n[0] == 0) return FAILED_NOT; /* the records stay as they were made: missing */
    /* The products of the haystack's keys are formed once, for both bases. */
    self->ops->moments(scratch->mu, scratch->cov, task->x, task->rows->rest, task->rows->n_rest, D, stride);
    self->ops->moments(scratch->mu + D, scratch->cov + D * D, task->x, task->rows->haystack, n[1], D, stride);
    geom_moments_merge(&merged, scratch->mu, scratch->cov, n[1], scratch->mu + D, scratch->cov + D * D, D);
    if (!all_finite(scratch->cov, D * D) || !all_finite(scratch->mu, D)) return FAILED_NOT_FINITE;
    task->lost = n[0] > 1 && storage_lost(task, scratch->mu, scratch->cov, D);
    if (task->pooled_cov) {
        memcpy(task->pooled_mu, scratch->mu, (size_t)D * sizeof(double));
        memcpy(task->pooled_cov, scratch->cov, (size_t)(D * D) * sizeof(double));
    }
    const int problems = n[1] > 0 ? 2 : 1;
    self->ops->eigh(scratch->s, scratch->cov, info, problems, D);
    for (int b = 0; b < problems; b++) {
        g->records[bases[b]][task->l].n[cell] = n[b];
        if (info[b] != 0) return FAILED_SOLVER;
        spectrum_record(self, task, bases[b], n[b], scratch->mu + b * D, scratch->s + b * D);
        if (n[b] <= g->r + 1) continue;
        const enum failure failure =
            align_record(self, task, bases[b], scratch->mu + b * D, scratch->cov + b * D * D, scratch);
        if (failure != FAILED_NOT) return failure;
    }
    return FAILED_NOT;
}

static enum failure second_pass_task(const struct geom_reducer *self, struct task *task, struct scratch *scratch) {
    const struct geom_results *g = self->results;
    const struct pooled *pooled = &self->pooled[task->l];
    const int64_t D = g->D[task->l], n = pooled->n[task->head];
    const double *mu = pooled->mu + task->head * D;
    if (n == 0) return FAILED_NOT;
    g->records[GEOM_BASIS_POOLED][task->l].n[task->block->prompt * g->Hk[task->l] + task->head] = n;
    memcpy(scratch->s, pooled->s + task->head * D, (size_t)D * sizeof(double));
    spectrum_record(self, task, GEOM_BASIS_POOLED, n, mu, scratch->s);
    if (n <= g->r + 1) return FAILED_NOT;
    return align_record(self, task, GEOM_BASIS_POOLED, mu, pooled->cov + task->head * D * D, scratch);
}

/* Which key it was; the task that failed first in order, so that the message does not depend on threads. */
static enum ag_status describe_failure(const struct geom_reducer *self, const struct task *task, enum failure failure,
                                       struct ag_error *err) {
    const struct ag_block *block = task->block;
    const char *prompt = self->results->from.prompt_id[block->prompt];
    const int64_t D = self->results->D[task->l];
    if (failure == FAILED_SOLVER)
        return ag_fail(err, AG_E_NUMERIC,
                       "geometry: layer %" PRId64 " head %" PRId64 ", prompt %" PRId64
                       " (%.80s): the eigensolver did not converge on the covariance of its keys",
                       block->layer, task->head, block->prompt, prompt);
    for (int64_t t = 0; t < block->T; t++)
        for (int64_t i = 0; i < D; i++)
            if (!isfinite(task->x[t * block->keys.token_stride + i]))
                return ag_fail(err, AG_E_NUMERIC,
                               "geometry: layer %" PRId64 " head %" PRId64 ", prompt %" PRId64
                               " (%.80s), token %" PRId64 ": key component %" PRId64
                               " is %g; expected finite keys; is the checkpoint damaged, or a "
                               "16-bit type overflowing?",
                               block->layer, task->head, block->prompt, prompt, t, i,
                               (double)task->x[t * block->keys.token_stride + i]);
    return ag_fail(err, AG_E_INTERNAL,
                   "geometry: layer %" PRId64 " head %" PRId64 ": moments of finite keys are not finite", block->layer,
                   task->head);
}

/* Runs tasks [0, n) of one layer in parallel. */
static enum ag_status run_tasks(const struct geom_reducer *self, struct task *tasks, int64_t n, struct scratch *scratch,
                                int threads, struct ag_error *err) {
    enum failure *failures = AG_ZEROS(self->scratch, enum failure, n, err);
    if (!failures) return AG_E_MEMORY;
    int64_t next = 0;
#pragma omp parallel num_threads(threads) default(none) shared(self, tasks, n, scratch, failures, next)
    {
        /* every thread that runs takes the next scratch: no assumption on thread numbers */
        int64_t mine;
#pragma omp atomic capture
        mine = next++;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < n; i++)
            failures[i] = self->second_pass ? second_pass_task(self, &tasks[i], &scratch[mine])
                                            : first_pass_task(self, &tasks[i], &scratch[mine]);
    }
    for (int64_t i = 0; i < n; i++)
        if (failures[i] != FAILED_NOT) return describe_failure(self, &tasks[i], failures[i], err);
    return AG_OK;
}

static enum ag_status new_scratch(const struct geom_reducer *self, struct scratch *scratch, int threads, int64_t D,
                                  int64_t T, struct ag_error *err) {
    for (int i = 0; i < threads; i++) {
        scratch[i].cov = AG_NEW(self->scratch, double, 2 * D * D, err);
        scratch[i].mu = AG_NEW(self->scratch, double, 2 * D, err);
        scratch[i].s = AG_NEW(self->scratch, double, 2 * D, err);
        scratch[i].inside = AG_NEW(self->scratch, double, T, err);
        scratch[i].total = AG_NEW(self->scratch, double, T, err);
        if (!scratch[i].cov || !scratch[i].mu || !scratch[i].s || !scratch[i].inside || !scratch[i].total)
            return AG_E_MEMORY;
    }
    return AG_OK;
}

static enum ag_status new_rows(const struct geom_reducer *self, struct block_rows *rows, const struct ag_block *block,
                               struct ag_error *err) {
    rows->n_haystack = rows->n_rest = 0;
    rows->haystack = AG_NEW(self->scratch, int32_t, block->T, err);
    rows->rest = AG_NEW(self->scratch, int32_t, block->T, err);
    if (!rows->haystack || !rows->rest) return AG_E_MEMORY;
    for (int64_t t = self->options.skip; t < block->T; t++) {
        if (block->role[t] == AG_ROLE_ANSWER) continue;
        if (block->role[t] == AG_ROLE_HAYSTACK)
            rows->haystack[rows->n_haystack++] = (int32_t)t;
        else
            rows->rest[rows->n_rest++] = (int32_t)t;
    }
    return AG_OK;
}

/* Eigenvectors of the pooled moments of one layer, in place of them. */
static enum ag_status solve_pooled(const struct geom_reducer *self, int64_t l, struct ag_error *err) {
    const struct pooled *pooled = &self->pooled[l];
    const int64_t Hk = self->results->Hk[l], D = self->results->D[l];
    const int threads = (int)kern_threads();
    int *info = AG_ZEROS(self->scratch, int, Hk, err);
    if (!info) return AG_E_MEMORY;
#pragma omp parallel for num_threads(threads) default(none) shared(self, pooled, Hk, D, info) schedule(dynamic)
    for (int64_t h = 0; h < Hk; h++)
        if (pooled->n[h] > 0) self->ops->eigh(pooled->s + h * D, pooled->cov + h * D * D, info + h, 1, D);
    for (int64_t h = 0; h < Hk; h++)
        if (info[h] != 0)
            return ag_fail(err, AG_E_NUMERIC,
                           "geometry: layer %" PRId64 " head %" PRId64
                           ", all prompts: the eigensolver did not converge on the covariance of the keys",
                           self->results->from.layer[l], h);
    return AG_OK;
}

static enum ag_status check_block(const struct geom_reducer *self, const struct ag_block *block, int64_t l,
                                  int64_t expected, struct ag_error *err) {
    const struct geom_results *g = self->results;
    if (l < 0 || block->prompt != expected || block->prompt >= g->from.P || !block->keys.data ||
        block->tap != g->from.tap || block->shape->Hk != g->Hk[l] || block->shape->D != g->D[l] || block->T > INT32_MAX)
        return ag_fail(err, AG_E_INTERNAL,
                       "geometry: layer %" PRId64 ", prompt %" PRId64
                       ": a block that was not announced, or out of order",
                       block->layer, block->prompt);
    for (int64_t t = 0; t < block->T; t++)
        if (block->role[t] >= AG_ROLE_COUNT)
            return ag_fail(err, AG_E_FORMAT,
                           "geometry: prompt %" PRId64 ", token %" PRId64 ": role %d; expected 0 to %d", block->prompt,
                           t, block->role[t], AG_ROLE_COUNT - 1);
    return AG_OK;
}

#define TASKS_POOLED 64 /* with the pooled basis: moments kept until they are merged in order */

static enum ag_status reduce(struct ag_reducer *base, const struct ag_block *blocks, int64_t n, struct ag_error *err) {
    struct geom_reducer *self = (struct geom_reducer *)base;
    enum ag_status status = AG_OK;
    if (n == 0) return AG_OK;
    const struct geom_results *g = self->results;
    const int64_t layer = blocks[0].layer, l = layer >= 0 && layer < g->from.L ? self->slot[layer] : -1;
    int64_t longest = 0, n_tasks = 0;
    for (int64_t b = 0; b < n; b++) {
        AG_TRY(check_block(self, &blocks[b], l, self->seen[l < 0 ? 0 : l] + b, err));
        if (blocks[b].T > longest) longest = blocks[b].T;
    }
    const int64_t Hk = g->Hk[l], D = g->D[l];
    const bool pooling = self->options.pooled && !self->second_pass;
    ag_arena_reset(self->scratch);
    if (!ag_mul(n, Hk, &n_tasks)) return ag_fail(err, AG_E_MEMORY, "geometry: too many blocks at once");
    const int64_t at_once = pooling && n_tasks > TASKS_POOLED ? TASKS_POOLED : n_tasks;
    const int threads = (int)(kern_threads() < at_once ? kern_threads() : at_once);
    status = AG_E_MEMORY;
    struct task *tasks = AG_ZEROS(self->scratch, struct task, n_tasks, err);
    struct block_rows *rows = AG_NEW(self->scratch, struct block_rows, n, err);
    struct scratch *scratch = AG_NEW(self->scratch, struct scratch, threads, err);
    double *moments = pooling ? AG_NEW(self->scratch, double, at_once *D *(D + 1), err) : NULL;
    if (!tasks || !rows || !scratch || (pooling && !moments)) goto fail;
    AG_TRY(new_scratch(self, scratch, threads, D, longest, err));
    if (self->second_pass && self->seen[l] == 0) AG_TRY(solve_pooled(self, l, err));
    for (int64_t b = 0; b < n; b++) {
        AG_TRY(new_rows(self, &rows[b], &blocks[b], err));
        for (int64_t h = 0; h < Hk; h++) {
            struct task *task = &tasks[b * Hk + h];
            *task = (struct task){&blocks[b], &rows[b], l, h, head_keys(&blocks[b], h), NULL, NULL, false};
            if (!pooling) continue;
            task->pooled_mu = moments + (b * Hk + h) % at_once * D * (D + 1);
            task->pooled_cov = task->pooled_mu + D;
        }
    }
    for (int64_t first = 0; first < n_tasks; first += at_once) {
        const int64_t count = n_tasks - first < at_once ? n_tasks - first : at_once;
        AG_TRY(run_tasks(self, tasks + first, count, scratch, threads, err));
        for (int64_t i = first; pooling && i < first + count; i++) {
            const struct task *task = &tasks[i];
            struct pooled *pooled = &self->pooled[l];
            geom_moments_merge(&pooled->n[task->head], pooled->mu + task->head * D, pooled->cov + task->head * D * D,
                               task->rows->n_haystack + task->rows->n_rest, task->pooled_mu, task->pooled_cov, D);
        }
    }
    for (int64_t i = 0; i < n_tasks && !self->second_pass; i++) {
        if (!tasks[i].lost) continue;
        if (self->results->storage_lost++ > 0) continue;
        self->lost_layer = layer;
        self->lost_head = tasks[i].head;
    }
    self->seen[l] += n;
fail:
    return status;
}

static enum ag_status begin(struct ag_reducer *base, const struct ag_source *source, struct ag_error *err) {
    struct geom_reducer *self = (struct geom_reducer *)base;
    enum ag_status status = AG_OK;
    AG_TRY(geom_results_new(&self->results, source, &self->options, err));
    const struct geom_results *g = self->results;
    status = AG_E_MEMORY;
    self->slot = AG_NEW(self->arena, int64_t, g->from.L, err);
    self->seen = AG_ZEROS(self->arena, int64_t, g->from.Ls, err);
    if (!self->slot || !self->seen) goto fail;
    for (int64_t l = 0; l < g->from.L; l++) self->slot[l] = -1;
    for (int64_t l = 0; l < g->from.Ls; l++) self->slot[g->from.layer[l]] = l;
    if (self->options.pooled) {
        if (!(self->pooled = AG_ZEROS(self->arena, struct pooled, g->from.Ls, err))) goto fail;
        for (int64_t l = 0; l < g->from.Ls; l++) {
            struct pooled *pooled = &self->pooled[l];
            const int64_t Hk = g->Hk[l], D = g->D[l];
            pooled->n = AG_ZEROS(self->arena, int64_t, Hk, err);
            pooled->mu = AG_NEW(self->arena, double, Hk *D, err);
            pooled->cov = AG_NEW(self->arena, double, Hk *D *D, err);
            pooled->s = AG_NEW(self->arena, double, Hk *D, err);
            if (!pooled->n || !pooled->mu || !pooled->cov || !pooled->s) goto fail;
        }
    }
    status = AG_OK;
fail:
    return status;
}

static enum ag_status all_came(const struct geom_reducer *self, const char *pass, struct ag_error *err) {
    const struct geom_results *g = self->results;
    for (int64_t l = 0; l < g->from.Ls; l++)
        if (self->seen[l] != g->from.P)
            return ag_fail(err, AG_E_INTERNAL,
                           "geometry: %s: layer %" PRId64 ": %" PRId64 " of %" PRId64 " prompts came", pass,
                           g->from.layer[l], self->seen[l], g->from.P);
    return AG_OK;
}

enum ag_status geom_reducer_second_pass(struct ag_reducer *reducer, struct ag_error *err) {
    struct geom_reducer *self = (struct geom_reducer *)reducer;
    if (!self->options.pooled || self->second_pass)
        return ag_fail(err, AG_E_INTERNAL, "geometry: a second pass that was not asked for");
    const enum ag_status status = all_came(self, "first pass", err);
    if (status != AG_OK) return status;
    self->second_pass = true;
    memset(self->seen, 0, (size_t)self->results->from.Ls * sizeof(*self->seen));
    return AG_OK;
}

static enum ag_status finish(struct ag_reducer *base, const char *path, bool force, struct ag_error *err) {
    struct geom_reducer *self = (struct geom_reducer *)base;
    enum ag_status status = AG_OK;
    if (self->options.pooled && !self->second_pass)
        return ag_fail(err, AG_E_INTERNAL, "geometry: the pooled basis without its second pass");
    AG_TRY(all_came(self, self->second_pass ? "second pass" : "first pass", err));
    AG_TRY(geom_fold(self->results, err));
    AG_TRY(geom_results_write(self->results, path, force, err));
    if (self->results->storage_lost > 0)
        ag_say(self->log, AG_WARN,
               "geometry: the keys lie on the grid of a 16-bit type (bf16 or f16), and in %" PRId64
               " of the (prompt, layer, head) records some channel varies by less than half a step of it (first: layer "
               "%" PRId64 " head %" PRId64 "): that variance was lost when the keys were stored; use --store f32",
               self->results->storage_lost, self->lost_layer, self->lost_head);
fail:
    return status;
}

static int64_t bytes(const struct ag_reducer *base, const struct ag_source *source) {
    const struct geom_reducer *self = (const struct geom_reducer *)base;
    int64_t D = 0, longest = 0;
    for (int64_t l = 0; l < source->L; l++)
        if (source->selected[l] && source->layers[l].D > D) D = source->layers[l].D;
    for (int64_t p = 0; p < source->tokens->P; p++) {
        const int64_t T = source->tokens->offsets[p + 1] - source->tokens->offsets[p];
        if (T > longest) longest = T;
    }
    const int64_t thread = 8 * (5 * D * D + 2 * longest),
                  pooled = self->options.pooled ? TASKS_POOLED * 8 * D * (D + 1) : 0;
    return geom_results_bytes(source, &self->options) + kern_threads() * thread + 8 * source->tokens->T + pooled;
}

static void free_reducer(struct ag_reducer *base) {
    struct geom_reducer *self = (struct geom_reducer *)base;
    if (!self) return;
    geom_results_free(self->results);
    ag_arena_free(self->scratch);
    ag_arena_free(self->arena);
}

const struct geom_results *geom_reducer_results(const struct ag_reducer *reducer) {
    return ((const struct geom_reducer *)reducer)->results;
}

static const struct ag_reducer_class geometry_class = {
    .name = "geometry",
    .needs_queries = false,
    .needs_values = false,
    .bytes = bytes,
    .begin = begin,
    .reduce = reduce,
    .finish = finish,
    .free = free_reducer,
};

enum ag_status geom_reducer_new(struct ag_reducer **out, const struct geom_options *options, const struct kern_ops *ops,
                                const struct ag_log *log, struct ag_error *err) {
    *out = NULL;
    if (!ops->moments || !ops->align || !ops->eigh)
        return ag_fail(err, AG_E_UNSUPPORTED, "geometry: backend %s has no moments, align or eigh", ops->name);
    struct ag_arena *arena = ag_arena_new("geometry");
    struct geom_reducer *self = arena ? AG_ZEROS(arena, struct geom_reducer, 1, err) : NULL;
    if (!self || !(self->scratch = ag_arena_new("geometry scratch"))) {
        ag_arena_free(arena);
        return ag_fail(err, AG_E_MEMORY, "geometry: out of memory");
    }
    self->base.class_ = &geometry_class;
    self->arena = arena;
    self->options = *options;
    self->ops = ops;
    self->log = log;
    *out = &self->base;
    return AG_OK;
}
