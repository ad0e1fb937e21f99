/* taylor/merge.c: see merge.h. */
#include "taylor/merge.h"

#include <inttypes.h>
#include <string.h>

#include "taylor/fold.h"

/* What is merged, and where it goes. */
struct merge {
    struct taylor_results *whole;
    const struct taylor_results *const *parts;
    const char *const *paths;
    int64_t n;
    struct ag_arena *scratch;
    struct ag_error *err;
};

static enum ag_status check_pair(const struct merge *x, int64_t k) {
    enum ag_status status = AG_OK;
    const struct taylor_results *a = x->parts[0], *b = x->parts[k];
    const char *path_a = x->paths[0], *path_b = x->paths[k];
    struct ag_error *err = x->err;
    AG_TRY(ag_merge_same("r", a->r, b->r, path_a, path_b, err));
    AG_TRY(ag_merge_same("queries", a->queries, b->queries, path_a, path_b, err));
    AG_TRY(ag_merge_same("draws", a->draws, b->draws, path_a, path_b, err));
    AG_TRY(ag_merge_same("seed of the draws", a->sample_seed, b->sample_seed, path_a, path_b, err));
    AG_TRY(ag_merge_same_layers("query heads", a->Hq, b->Hq, &a->from, path_a, path_b, err));
    AG_TRY(ag_merge_same_layers("KV heads", a->Hk, b->Hk, &a->from, path_a, path_b, err));
    AG_TRY(ag_merge_same_layers("dimensions", a->D, b->D, &a->from, path_a, path_b, err));
    AG_TRY(ag_merge_same_layers("window", a->window, b->window, &a->from, path_a, path_b, err));
    for (int64_t l = 0; l < a->from.Ls; l++)
        if (memcmp(&a->scale[l], &b->scale[l], sizeof *a->scale) != 0)
            return ag_fail(err, AG_E_USAGE,
                           "%s: scale %.17g of layer %" PRId64
                           "; expected %.17g, as in %s; only the shares of one run go together",
                           path_b, b->scale[l], a->from.layer[l], a->scale[l], path_a);
fail:
    return status;
}

static enum ag_status copy_layers(const struct merge *x) {
    struct taylor_results *to = x->whole;
    const struct taylor_results *from = x->parts[0];
    const int64_t Ls = from->from.Ls;
    const int64_t *const read[] = {from->Hq, from->Hk, from->D, from->window};
    const int64_t **const write[] = {&to->Hq, &to->Hk, &to->D, &to->window};
    double *scale = AG_NEW(to->arena, double, Ls, x->err);
    if (scale == NULL) return AG_E_MEMORY;
    memcpy(scale, from->scale, (size_t)Ls * sizeof *scale);
    to->scale = scale;
    for (int i = 0; i < 4; i++) {
        int64_t *copy = AG_NEW(to->arena, int64_t, Ls, x->err);
        if (copy == NULL) return AG_E_MEMORY;
        memcpy(copy, read[i], (size_t)Ls * sizeof *copy);
        *write[i] = copy;
    }
    return AG_OK;
}

static enum ag_status merge_layer(const struct merge *x, int64_t l) {
    const struct taylor_results *whole = x->whole;
    struct taylor_records *to = &whole->records[l];
    const int64_t Hq = whole->Hq[l], bins = Hq * TAYLOR_QUANTITIES * 2 * TAYLOR_BINS,
                  cells = TAYLOR_DENSITY * TAYLOR_DENSITY;
    to->counts = AG_NEW(whole->arena, int64_t, whole->from.P * Hq * TAYLOR_COUNTS, x->err);
    to->medians = AG_NEW(whole->arena, double, whole->from.P *Hq *TAYLOR_MEDIANS, x->err);
    to->histograms = AG_ZEROS(whole->arena, int32_t, bins, x->err);
    to->density = AG_ZEROS(whole->arena, int64_t, cells, x->err);
    if (!to->counts || !to->medians || !to->histograms || !to->density) return AG_E_MEMORY;
    for (int64_t k = 0, heads = 0; k < x->n; heads += x->parts[k++]->from.P * Hq) {
        const struct taylor_records *from = &x->parts[k]->records[l];
        const int64_t more = x->parts[k]->from.P * Hq;
        bool overflow = false;
        memcpy(to->counts + heads * TAYLOR_COUNTS, from->counts, (size_t)(more * TAYLOR_COUNTS) * sizeof *to->counts);
        memcpy(to->medians + heads * TAYLOR_MEDIANS, from->medians,
               (size_t)(more * TAYLOR_MEDIANS) * sizeof *to->medians);
        for (int64_t i = 0; i < bins; i++)
            overflow |= __builtin_add_overflow(to->histograms[i], from->histograms[i], &to->histograms[i]);
        for (int64_t i = 0; i < cells; i++)
            overflow |= __builtin_add_overflow(to->density[i], from->density[i], &to->density[i]);
        if (overflow)
            return ag_fail(x->err, AG_E_UNSUPPORTED,
                           "%s: with its queries a bin of layer %" PRId64 " holds more than %d; expected fewer; merge "
                           "fewer shares",
                           x->paths[k], whole->from.layer[l], INT32_MAX);
    }
    return AG_OK;
}

/* Place of a layer among those analysed, -1: it is not one. */
static int64_t layer_place(const struct ag_provenance *from, int64_t layer) {
    int64_t low = 0, high = from->Ls;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (from->layer[middle] < layer)
            low = middle + 1;
        else
            high = middle;
    }
    return low < from->Ls && from->layer[low] == layer ? low : -1;
}

/* A stable sort by layer: rows are by layer, prompt, position, head in every part, and so in the whole. */
static enum ag_status merge_samples(const struct merge *x) {
    struct taylor_results *whole = x->whole;
    const int64_t Ls = whole->from.Ls;
    int64_t *next = AG_ZEROS(x->scratch, int64_t, Ls + 1, x->err), first = -1;
    if (next == NULL) return AG_E_MEMORY;
    for (int64_t k = 0; k < x->n; k++) {
        const struct taylor_results *part = x->parts[k];
        if (first < 0 && part->n_samples > 0) first = k;
        for (int64_t i = 0; i < part->n_samples; i++) {
            const int64_t l = layer_place(&whole->from, part->samples[i].layer);
            if (l < 0 || part->samples[i].head >= whole->Hq[l])
                return ag_fail(x->err, AG_E_FORMAT,
                               "%s: /samples: row %" PRId64 " names layer %" PRId64 ", head %" PRId64
                               "; expected one of /layers and its heads",
                               x->paths[k], i, part->samples[i].layer, part->samples[i].head);
            next[l + 1]++;
        }
        whole->n_samples += part->n_samples;
    }
    for (int64_t l = 0; l < Ls; l++) next[l + 1] += next[l];
    const int64_t rows = first >= 0 ? x->parts[first]->n_samples : 0;
    int64_t *place = AG_NEW(x->scratch, int64_t, rows, x->err); /* where the rows of the part with the curves went */
    whole->samples = AG_NEW(whole->arena, struct taylor_sample, whole->n_samples, x->err);
    if (!place || !whole->samples) return AG_E_MEMORY;
    for (int64_t k = 0, prompts = 0; k < x->n; prompts += x->parts[k++]->from.P)
        for (int64_t i = 0; i < x->parts[k]->n_samples; i++) {
            const struct taylor_sample *row = &x->parts[k]->samples[i];
            const int64_t to = next[layer_place(&whole->from, row->layer)]++;
            whole->samples[to] = *row;
            whole->samples[to].prompt += prompts;
            if (k == first) place[i] = to;
        }
    whole->n_curves = first >= 0 ? x->parts[first]->n_curves : 0;
    whole->curves = AG_NEW(whole->arena, struct taylor_curve, whole->n_curves, x->err);
    if (whole->curves == NULL) return AG_E_MEMORY;
    for (int64_t i = 0; i < whole->n_curves; i++) {
        whole->curves[i] = x->parts[first]->curves[i];
        whole->curves[i].sample = place[whole->curves[i].sample];
    }
    return AG_OK;
}

static enum ag_status merge_all(const struct merge *x, const struct ag_merge_options *options) {
    enum ag_status status = AG_E_MEMORY;
    struct taylor_results *whole = x->whole;
    struct ag_merge_part *list = AG_NEW(x->scratch, struct ag_merge_part, x->n, x->err);
    if (list == NULL) goto fail;
    for (int64_t k = 0; k < x->n; k++) list[k] = (struct ag_merge_part){x->paths[k], &x->parts[k]->from};
    AG_TRY(ag_provenance_merge(&whole->from, list, x->n, options, whole->arena, x->err));
    for (int64_t k = 1; k < x->n; k++) AG_TRY(check_pair(x, k));
    whole->r = x->parts[0]->r;
    whole->queries = x->parts[0]->queries;
    whole->sample_seed = x->parts[0]->sample_seed;
    whole->draws = x->parts[0]->draws;
    whole->H = x->parts[0]->H;
    AG_TRY(copy_layers(x));
    status = AG_E_MEMORY;
    if (!(whole->records = AG_ZEROS(whole->arena, struct taylor_records, whole->from.Ls, x->err))) goto fail;
    for (int64_t l = 0; l < whole->from.Ls; l++) AG_TRY(merge_layer(x, l));
    AG_TRY(merge_samples(x));
    AG_TRY(taylor_fold(whole, x->err));
fail:
    return status;
}

enum ag_status taylor_results_merge(struct taylor_results **out, const struct taylor_results *const *parts,
                                    const char *const *paths, int64_t n, const struct ag_merge_options *options,
                                    struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    struct ag_arena *arena = ag_arena_new("taylor results"), *scratch = ag_arena_new("merging taylor results");
    struct taylor_results *whole = arena && scratch ? AG_ZEROS(arena, struct taylor_results, 1, err) : NULL;
    *out = NULL;
    if (whole == NULL) {
        status = ag_fail(err, AG_E_MEMORY, "taylor: out of memory");
        goto fail;
    }
    whole->arena = arena;
    const struct merge x = {whole, parts, paths, n, scratch, err};
    AG_TRY(merge_all(&x, options));
    *out = whole;
fail:
    ag_arena_free(scratch);
    if (status != AG_OK) ag_arena_free(arena);
    return status;
}
