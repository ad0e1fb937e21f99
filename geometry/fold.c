#include "geometry/fold.h"

#include <math.h>
#include <string.h>

#include "geometry/alignment.h"
#include "geometry/inference.h"
#include "geometry/results_table.h"
#include "geometry/spectrum.h"
#include "kernels/kernels.h"

struct fold {
    const struct geom_results *results;
    const struct geom_records *records; /* (Ls) of one basis */
    struct geom_summary *summary;
    struct ag_arena *arena; /* scratch */
    struct ag_error *err;
};

struct geom_summary *geom_summary_new(const struct geom_results *results, struct ag_error *err) {
    struct geom_summary *summary = AG_ZEROS(results->arena, struct geom_summary, 1, err);
    if (!summary) return NULL;
    if (geom_allocate(summary, geom_summary_datasets, geom_n_summary_datasets, results, 0, err) != AG_OK) return NULL;
    summary->fraction_negative = summary->fraction_negative_lo = summary->fraction_negative_hi = NAN;
    summary->fraction_negative_token = summary->fraction_negative_token_lo = summary->fraction_negative_token_hi = NAN;
    summary->smallest_p = NAN;
    return summary;
}

/* A running mean over what is defined. */
struct mean {
    double sum;
    int64_t n;
};
static void mean_add(struct mean *mean, double value) {
    if (isnan(value)) return;
    mean->sum += value;
    mean->n++;
}
static double mean_value(const struct mean *mean) { return mean->n > 0 ? mean->sum / (double)mean->n : NAN; }

static double role_mean(const struct geom_records *records, int64_t cell, enum ag_role role) {
    const int64_t i = cell * AG_ROLE_COUNT + role;
    return records->align_count[i] > 0 ? records->align_sum[i] / (double)records->align_count[i] : NAN;
}

static double delta(const struct geom_records *records, int64_t cell) {
    return role_mean(records, cell, AG_ROLE_NEEDLE) - role_mean(records, cell, AG_ROLE_DISTRACTOR);
}

/* Spectra and counts of one cell: means over prompts, in their order. */
static void fold_spectra(const struct fold *f, int64_t l, int64_t h) {
    const struct geom_results *g = f->results;
    const struct geom_records *records = &f->records[l];
    struct geom_summary *s = f->summary;
    const int64_t D = g->D[l], Hk = g->Hk[l], at = l * g->H + h;
    double *scree = s->scree + at * g->Dmax, *explained = s->explained + at * g->Dmax;
    struct mean ev = {0, 0}, effective = ev, participation = ev, stable = ev, numerical = ev, condition = ev,
                dominance = ev, gap = ev, trace = ev;
    int64_t defined = 0;
    for (int64_t i = 0; i < D; i++) scree[i] = 0;
    for (int64_t p = 0; p < g->from.P; p++) {
        const int64_t cell = p * Hk + h;
        const double *spectrum = records->spectrum + cell * D;
        const struct geom_ranks ranks = geom_ranks(spectrum, D, records->mu2[cell]);
        mean_add(&ev, records->ev_r[cell]);
        mean_add(&gap, records->gap[cell]);
        mean_add(&effective, ranks.effective_rank);
        mean_add(&participation, ranks.participation_ratio);
        mean_add(&stable, ranks.stable_rank);
        mean_add(&numerical, ranks.numerical_rank);
        mean_add(&condition, ranks.condition);
        mean_add(&dominance, ranks.mean_dominance);
        mean_add(&trace, ranks.trace);
        s->prompts_missing[at] += records->n[cell] <= g->r + 1;
        s->prompts_few_keys[at] += records->n[cell] < D + 1;
        s->prompts_zero_trace[at] += ranks.trace == 0;
        for (int role = 0; role < AG_ROLE_COUNT; role++)
            s->tokens_undefined[at] += records->align_undefined[cell * AG_ROLE_COUNT + role];
        if (!(ranks.trace > 0)) continue;
        defined++;
        for (int64_t i = 0; i < D; i++) scree[i] += spectrum[i] / ranks.trace;
    }
    double cumulative = 0;
    for (int64_t i = 0; i < D; i++) {
        scree[i] = defined > 0 ? scree[i] / (double)defined : NAN;
        explained[i] = cumulative += scree[i];
    }
    s->ev_r[at] = mean_value(&ev);
    s->gap[at] = mean_value(&gap);
    s->effective_rank[at] = mean_value(&effective);
    s->participation_ratio[at] = mean_value(&participation);
    s->stable_rank[at] = mean_value(&stable);
    s->numerical_rank[at] = mean_value(&numerical);
    s->condition[at] = mean_value(&condition);
    s->mean_dominance[at] = mean_value(&dominance);
    s->trace[at] = mean_value(&trace);
}

/* Pooling `prompt`: x (units, Ls * H), NaN where no prompt of a unit has both roles. */
static void unit_deltas(const struct fold *f, double *x) {
    const struct geom_results *g = f->results;
    const int64_t C = g->from.Ls * g->H;
    for (int64_t i = 0; i < g->from.units * C; i++) x[i] = NAN;
    for (int64_t l = 0; l < g->from.Ls; l++) {
        for (int64_t h = 0; h < g->Hk[l]; h++) {
            for (int64_t p = 0; p < g->from.P; p++) {
                struct mean mean = {0, 0};
                const int64_t twin = g->from.twin[p], first = twin >= 0 && twin < p ? twin : p;
                if (first != p) continue; /* the unit was made with the first of the pair */
                mean_add(&mean, delta(&f->records[l], p * g->Hk[l] + h));
                if (twin >= 0) mean_add(&mean, delta(&f->records[l], twin * g->Hk[l] + h));
                x[g->from.unit[p] * C + l * g->H + h] = geom_rounded(mean_value(&mean));
            }
        }
    }
}

/* sum and weight for geom_ratio out of values that may be NaN. */
static void as_ratio(double *sum, double *weight, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        weight[i] = isnan(x[i]) ? 0 : 1;
        sum[i] = isnan(x[i]) ? 0 : x[i];
    }
}

static enum ag_status fold_prompt_pooling(const struct fold *f) {
    const struct geom_results *g = f->results;
    struct geom_summary *s = f->summary;
    enum ag_status status = AG_OK;
    const int64_t C = g->from.Ls * g->H;
    int64_t size = 0, most = 0;
    if (!ag_mul(g->from.units, C, &size)) return ag_fail(f->err, AG_E_MEMORY, "geometry: too many units and cells");
    double *x = AG_NEW(f->arena, double, size, f->err), *sum = AG_NEW(f->arena, double, size, f->err);
    double *weight = AG_NEW(f->arena, double, size, f->err), negative[3];
    if (!x || !sum || !weight) return AG_E_MEMORY;
    unit_deltas(f, x);
    as_ratio(sum, weight, x, size);
    const struct geom_ratio ratio = {g->from.units, C, sum, weight, NULL, NULL};
    geom_ratio_value(s->delta_prompt, &ratio);
    AG_TRY(
        geom_bootstrap(s->delta_prompt_lo, s->delta_prompt_hi, negative, &ratio, g->draws, g->resample_seed, f->err));
    AG_TRY(geom_sign_flip(s->p, x, g->from.units, C, g->resample_seed, f->err));
    AG_TRY(geom_benjamini_hochberg(s->q, s->p, C, f->err));
    s->fraction_negative = negative[0];
    s->fraction_negative_lo = negative[1];
    s->fraction_negative_hi = negative[2];
    for (int64_t l = 0; l < g->from.Ls; l++) {
        for (int64_t h = 0; h < g->Hk[l]; h++) {
            const int64_t c = l * g->H + h;
            for (int64_t u = 0; u < g->from.units; u++) s->units[c] += !isnan(x[u * C + c]);
            if (s->units[c] > most) most = s->units[c];
            s->cells += s->units[c] > 0;
            s->missing += s->units[c] == 0;
            s->zero += s->delta_prompt[c] == 0;
            s->significant_negative += s->q[c] < 0.05 && s->delta_prompt[c] < 0;
            s->significant_positive += s->q[c] < 0.05 && s->delta_prompt[c] > 0;
        }
    }
    s->smallest_p = geom_smallest_p(most);
fail:
    return status;
}

static enum ag_status fold_token_pooling(const struct fold *f) {
    const struct geom_results *g = f->results;
    struct geom_summary *s = f->summary;
    enum ag_status status = AG_OK;
    const int64_t C = g->from.Ls * g->H;
    int64_t size = 0;
    double *parts[4], negative[3];
    if (!ag_mul(g->from.units, C, &size)) return ag_fail(f->err, AG_E_MEMORY, "geometry: too many units and cells");
    for (int k = 0; k < 4; k++)
        if (!(parts[k] = AG_ZEROS(f->arena, double, size, f->err))) return AG_E_MEMORY;
    for (int64_t l = 0; l < g->from.Ls; l++) {
        for (int64_t p = 0; p < g->from.P; p++) {
            for (int64_t h = 0; h < g->Hk[l]; h++) {
                const int64_t from = (p * g->Hk[l] + h) * AG_ROLE_COUNT, to = g->from.unit[p] * C + l * g->H + h;
                parts[0][to] += f->records[l].align_sum[from + AG_ROLE_NEEDLE];
                parts[1][to] += (double)f->records[l].align_count[from + AG_ROLE_NEEDLE];
                parts[2][to] += f->records[l].align_sum[from + AG_ROLE_DISTRACTOR];
                parts[3][to] += (double)f->records[l].align_count[from + AG_ROLE_DISTRACTOR];
            }
        }
        for (int64_t h = 0; h < g->Hk[l]; h++) {
            for (int role = 0; role < AG_ROLE_COUNT; role++) {
                double sum = 0;
                int64_t count = 0;
                for (int64_t p = 0; p < g->from.P; p++) {
                    const int64_t from = (p * g->Hk[l] + h) * AG_ROLE_COUNT + role;
                    sum += f->records[l].align_sum[from];
                    count += f->records[l].align_count[from];
                }
                s->align[(l * g->H + h) * AG_ROLE_COUNT + role] = count > 0 ? sum / (double)count : NAN;
            }
        }
    }
    const struct geom_ratio ratio = {g->from.units, C, parts[0], parts[1], parts[2], parts[3]};
    geom_ratio_value(s->delta_token, &ratio);
    AG_TRY(geom_bootstrap(s->delta_token_lo, s->delta_token_hi, negative, &ratio, g->draws, g->resample_seed, f->err));
    s->fraction_negative_token = negative[0];
    s->fraction_negative_token_lo = negative[1];
    s->fraction_negative_token_hi = negative[2];
fail:
    return status;
}

/* Mean over heads of what value gives for a record. */
static double over_heads(const struct geom_records *records, int64_t p, int64_t Hk, int role) {
    struct mean mean = {0, 0};
    for (int64_t h = 0; h < Hk; h++)
        mean_add(&mean, role < AG_ROLE_COUNT ? role_mean(records, p * Hk + h, (enum ag_role)role)
                                             : delta(records, p * Hk + h));
    return mean_value(&mean);
}

/* The curves of layer-by-layer separation: roles, and as one more column needle minus distractor. */
static enum ag_status fold_layers(const struct fold *f) {
    const struct geom_results *g = f->results;
    struct geom_summary *s = f->summary;
    enum ag_status status = AG_OK;
    const int64_t columns = AG_ROLE_COUNT + 1, C = g->from.Ls * columns;
    int64_t size = 0;
    if (!ag_mul(g->from.units, C, &size)) return ag_fail(f->err, AG_E_MEMORY, "geometry: too many units and layers");
    double *x = AG_NEW(f->arena, double, size, f->err), *sum = AG_NEW(f->arena, double, size, f->err);
    double *weight = AG_NEW(f->arena, double, size, f->err), *value = AG_NEW(f->arena, double, C, f->err);
    double *lo = AG_NEW(f->arena, double, C, f->err), *hi = AG_NEW(f->arena, double, C, f->err);
    if (!x || !sum || !weight || !value || !lo || !hi) return AG_E_MEMORY;
    for (int64_t i = 0; i < size; i++) x[i] = NAN;
    for (int64_t p = 0; p < g->from.P; p++) {
        const int64_t twin = g->from.twin[p];
        if (twin >= 0 && twin < p) continue;
        for (int64_t c = 0; c < C; c++) {
            const int64_t l = c / columns;
            struct mean mean = {0, 0};
            mean_add(&mean, over_heads(&f->records[l], p, g->Hk[l], (int)(c % columns)));
            if (twin >= 0) mean_add(&mean, over_heads(&f->records[l], twin, g->Hk[l], (int)(c % columns)));
            x[g->from.unit[p] * C + c] = mean_value(&mean);
        }
    }
    as_ratio(sum, weight, x, size);
    const struct geom_ratio ratio = {g->from.units, C, sum, weight, NULL, NULL};
    geom_ratio_value(value, &ratio);
    AG_TRY(geom_bootstrap(lo, hi, NULL, &ratio, g->draws, g->resample_seed, f->err));
    for (int64_t l = 0; l < g->from.Ls; l++) {
        const int64_t from = l * columns, to = l * AG_ROLE_COUNT;
        memcpy(s->layer_align + to, value + from, AG_ROLE_COUNT * sizeof(double));
        memcpy(s->layer_align_lo + to, lo + from, AG_ROLE_COUNT * sizeof(double));
        memcpy(s->layer_align_hi + to, hi + from, AG_ROLE_COUNT * sizeof(double));
        s->layer_delta[l] = value[from + AG_ROLE_COUNT];
        s->layer_delta_lo[l] = lo[from + AG_ROLE_COUNT];
        s->layer_delta_hi[l] = hi[from + AG_ROLE_COUNT];
    }
fail:
    return status;
}

static enum ag_status fold_basis(struct fold *f) {
    enum ag_status status = AG_OK;
    const struct geom_results *g = f->results;
    const int64_t C = g->from.Ls * g->H;
    const int threads = (int)kern_threads();
    f->summary = geom_summary_new(g, f->err);
    if (!f->summary) return AG_E_MEMORY;
#pragma omp parallel for num_threads(threads) default(none) shared(f, g, C) schedule(dynamic)
    for (int64_t c = 0; c < C; c++)
        if (c % g->H < g->Hk[c / g->H]) fold_spectra(f, c / g->H, c % g->H);
    AG_TRY(fold_prompt_pooling(f));
    AG_TRY(fold_token_pooling(f));
    AG_TRY(fold_layers(f));
fail:
    return status;
}

enum ag_status geom_fold(struct geom_results *results, struct ag_error *err) {
    for (int basis = 0; basis < GEOM_BASIS_COUNT; basis++) {
        if (!results->basis[basis]) continue;
        struct ag_arena *arena = ag_arena_new("folding geometry records");
        if (!arena) return ag_fail(err, AG_E_MEMORY, "geometry: out of memory");
        struct fold f = {results, results->records[basis], NULL, arena, err};
        const enum ag_status status = fold_basis(&f);
        ag_arena_free(arena);
        if (status != AG_OK) return status;
        results->summary[basis] = f.summary;
    }
    return AG_OK;
}
