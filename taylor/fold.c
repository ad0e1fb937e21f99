/* taylor/fold.c: see fold.h. */
#include "taylor/fold.h"

#include <math.h>
#include <string.h>

#include "geometry/inference.h"

/* What a count is a share of: all queries, or those with v > 0; nothing where the bound is missing (B4 in window layers). */
static int64_t base_of(const int64_t *counts, int count, int64_t window) {
    if (count <= TAYLOR_N_EPS_2) return counts[TAYLOR_N_QUERIES];
    const bool b4 = count == TAYLOR_N_SIGN_B4 || count == TAYLOR_N_PROVED_B4 || count == TAYLOR_N_FINITE_B4;
    return b4 && window > 0 ? 0 : counts[TAYLOR_N_QUERIES] - counts[TAYLOR_N_DEGENERATE];
}

/* ---- quantiles ---------------------------------------------------------------------------------------------------- */

static void quantiles_of(double *out, const int64_t *counts) {
    for (int i = 0; i < TAYLOR_QUANTILES; i++) out[i] = taylor_quantile(counts, taylor_quantile_points[i]);
}

static enum ag_status fold_quantiles(const struct taylor_results *r, struct ag_arena *scratch, struct ag_error *err) {
    enum { BOTH = 2 * TAYLOR_BINS };
    int64_t *head = AG_NEW(scratch, int64_t, BOTH, err), *layer = AG_NEW(scratch, int64_t, BOTH, err),
            *model = AG_NEW(scratch, int64_t, BOTH, err);
    if (!head || !layer || !model) return AG_E_MEMORY;
    for (int k = 0; k < TAYLOR_QUANTITIES; k++) {
        memset(model, 0, BOTH * sizeof *model);
        for (int64_t l = 0; l < r->from.Ls; l++) {
            memset(layer, 0, BOTH * sizeof *layer);
            for (int64_t h = 0; h < r->Hq[l]; h++) {
                const int32_t *counts = r->records[l].histograms + (h * TAYLOR_QUANTITIES + k) * BOTH;
                for (int i = 0; i < BOTH; i++) {
                    head[i] = counts[i];
                    layer[i] += counts[i];
                    model[i] += counts[i];
                }
                quantiles_of(r->summary->quantiles + ((l * r->H + h) * TAYLOR_QUANTITIES + k) * TAYLOR_QUANTILES, head);
            }
            quantiles_of(r->summary->layer_quantiles + (l * TAYLOR_QUANTITIES + k) * TAYLOR_QUANTILES, layer);
        }
        quantiles_of(r->summary->model_quantiles + k * TAYLOR_QUANTILES, model);
    }
    return AG_OK;
}

/* ---- shares and medians with intervals ------------------------------------------------------------------------------ */

/* C statistics over units, each the ratio of two sums; then their bootstrap. out: (C) of value, lo, hi. */
static enum ag_status bootstrap(struct taylor_share *out, const double *sum, const double *weight, int64_t C,
                                const struct taylor_results *r, struct ag_arena *scratch, struct ag_error *err) {
    const struct geom_ratio ratio = {r->from.units, C, sum, weight, NULL, NULL};
    double *value = AG_NEW(scratch, double, C, err), *lo = AG_NEW(scratch, double, C, err),
           *hi = AG_NEW(scratch, double, C, err);
    if (!value || !lo || !hi) return AG_E_MEMORY;
    geom_ratio_value(value, &ratio);
    const enum ag_status status = geom_bootstrap(lo, hi, NULL, &ratio, r->draws, r->sample_seed, err);
    for (int64_t c = 0; status == AG_OK && c < C; c++) out[c] = (struct taylor_share){value[c], lo[c], hi[c]};
    return status;
}

/* Shares: queries pooled. Statistic (layer or model, count): sum over a unit's prompts and the heads of the counts. */
static enum ag_status fold_shares(const struct taylor_results *r, struct ag_arena *scratch, struct ag_error *err) {
    const int64_t U = r->from.units, C = (r->from.Ls + 1) * TAYLOR_COUNTS;
    double *sum = AG_ZEROS(scratch, double, U *C, err), *weight = AG_ZEROS(scratch, double, U *C, err);
    struct taylor_share *out = AG_NEW(scratch, struct taylor_share, C, err);
    if (!sum || !weight || !out) return AG_E_MEMORY;
    for (int64_t l = 0; l < r->from.Ls; l++)
        for (int64_t h = 0; h < r->Hq[l]; h++) {
            int64_t all[TAYLOR_COUNTS] = {0};
            for (int64_t p = 0; p < r->from.P; p++) {
                const int64_t *counts = r->records[l].counts + (p * r->Hq[l] + h) * TAYLOR_COUNTS;
                for (int c = 0; c < TAYLOR_COUNTS; c++) {
                    const int64_t layer = r->from.unit[p] * C + l * TAYLOR_COUNTS + c,
                                  model = r->from.unit[p] * C + r->from.Ls * TAYLOR_COUNTS + c;
                    sum[layer] += (double)counts[c]; /* integers: exact */
                    sum[model] += (double)counts[c];
                    weight[layer] += (double)base_of(counts, c, r->window[l]);
                    weight[model] += (double)base_of(counts, c, r->window[l]);
                    all[c] += counts[c];
                }
            }
            for (int c = 0; c < TAYLOR_COUNTS; c++) {
                const int64_t base = base_of(all, c, r->window[l]);
                r->summary->share[(l * r->H + h) * TAYLOR_COUNTS + c] = base > 0 ? (double)all[c] / (double)base : NAN;
            }
        }
    const enum ag_status status = bootstrap(out, sum, weight, C, r, scratch, err);
    if (status != AG_OK) return status;
    memcpy(r->summary->layer_share, out, (size_t)(r->from.Ls * TAYLOR_COUNTS) * sizeof *out);
    memcpy(r->summary->model_share, out + r->from.Ls * TAYLOR_COUNTS, TAYLOR_COUNTS * sizeof *out);
    return AG_OK;
}

/* Medians: of a head within a prompt, then the mean over heads (and layers) and the prompts of a unit, then over units. */
static enum ag_status fold_medians(const struct taylor_results *r, struct ag_arena *scratch, struct ag_error *err) {
    const int64_t U = r->from.units, C = (r->from.Ls + 1) * TAYLOR_MEDIANS;
    double *sum = AG_ZEROS(scratch, double, U *C, err), *weight = AG_ZEROS(scratch, double, U *C, err);
    struct taylor_share *out = AG_NEW(scratch, struct taylor_share, C, err);
    if (!sum || !weight || !out) return AG_E_MEMORY;
    for (int64_t l = 0; l < r->from.Ls; l++)
        for (int64_t p = 0; p < r->from.P; p++)
            for (int64_t h = 0; h < r->Hq[l]; h++)
                for (int m = 0; m < TAYLOR_MEDIANS; m++) {
                    const double x = r->records[l].medians[(p * r->Hq[l] + h) * TAYLOR_MEDIANS + m];
                    if (!isfinite(x)) continue;
                    for (int whole = 0; whole < 2; whole++) {
                        const int64_t at = r->from.unit[p] * C + (whole ? r->from.Ls : l) * TAYLOR_MEDIANS + m;
                        sum[at] += x;
                        weight[at] += 1;
                    }
                }
    for (int64_t i = 0; i < U * C; i++)
        if (weight[i] > 0) {
            sum[i] /= weight[i];
            weight[i] = 1; /* every unit counts the same */
        }
    const enum ag_status status = bootstrap(out, sum, weight, C, r, scratch, err);
    if (status != AG_OK) return status;
    memcpy(r->summary->layer_median, out, (size_t)(r->from.Ls * TAYLOR_MEDIANS) * sizeof *out);
    memcpy(r->summary->model_median, out + r->from.Ls * TAYLOR_MEDIANS, TAYLOR_MEDIANS * sizeof *out);
    return AG_OK;
}

enum ag_status taylor_fold(struct taylor_results *r, struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    struct ag_arena *scratch = ag_arena_new("folding taylor records");
    if (scratch == NULL) return ag_fail(err, AG_E_MEMORY, "taylor: out of memory");
    if (r->summary == NULL && (r->summary = taylor_summary_new(r, err)) == NULL) goto fail;
    AG_TRY(fold_quantiles(r, scratch, err));
    AG_TRY(fold_shares(r, scratch, err));
    AG_TRY(fold_medians(r, scratch, err));
fail:
    ag_arena_free(scratch);
    return status;
}
