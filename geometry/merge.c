/* geometry/merge.c: see merge.h. */
#include "geometry/merge.h"

#include <string.h>

#include "geometry/fold.h"
#include "geometry/results_table.h"

static enum ag_status check_pair(const struct geom_results *a, const struct geom_results *b,
                                 const struct ag_provenance *from, const char *path_a, const char *path_b,
                                 struct ag_error *err) {
    enum ag_status status = AG_OK;
    AG_TRY(ag_merge_same("r", a->r, b->r, path_a, path_b, err));
    AG_TRY(ag_merge_same("skip", a->skip, b->skip, path_a, path_b, err));
    AG_TRY(ag_merge_same("draws", a->draws, b->draws, path_a, path_b, err));
    AG_TRY(ag_merge_same("seed of the draws", a->resample_seed, b->resample_seed, path_a, path_b, err));
    AG_TRY(ag_merge_same_layers("KV heads", a->Hk, b->Hk, from, path_a, path_b, err));
    AG_TRY(ag_merge_same_layers("dimensions", a->D, b->D, from, path_a, path_b, err));
fail:
    return status;
}

/* Every array of a layer's records begins with the prompts. */
static enum ag_status append(struct geom_results *g, const struct geom_results *const *parts, int64_t n, int basis,
                             int64_t l, struct ag_error *err) {
    struct geom_records *to = &g->records[basis][l];
    enum ag_status status = geom_allocate(to, geom_record_datasets, geom_n_record_datasets, g, l, err);
    for (int i = 0; i < geom_n_record_datasets && status == AG_OK; i++) {
        const struct geom_dataset *dataset = &geom_record_datasets[i];
        char *write;
        memcpy(&write, (const char *)to + dataset->offset, sizeof write);
        for (int64_t k = 0; k < n; k++) {
            const char *read;
            int64_t dims[AG_H5_MAX_RANK], bytes = 8; /* f64 or i64 */
            const int rank = geom_dims(dims, dataset, parts[k], l);
            for (int d = 0; d < rank; d++) bytes *= dims[d];
            memcpy(&read, (const char *)&parts[k]->records[basis][l] + dataset->offset, sizeof read);
            memcpy(write, read, (size_t)bytes);
            write += bytes;
        }
    }
    return status;
}

static enum ag_status merge_into(struct geom_results *g, const struct geom_results *const *parts,
                                 const char *const *paths, int64_t n, const struct ag_merge_options *options,
                                 struct ag_arena *scratch, struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    const struct geom_results *first = parts[0];
    struct ag_merge_part *list = AG_NEW(scratch, struct ag_merge_part, n, err);
    if (!list) goto fail;
    for (int64_t k = 0; k < n; k++) {
        list[k] = (struct ag_merge_part){paths[k], &parts[k]->from};
        if (parts[k]->basis[GEOM_BASIS_POOLED])
            return ag_fail(
                err, AG_E_USAGE,
                "%s: it has the pooled basis, whose axes are those of all prompts together and cannot be had from "
                "shares; "
                "expected --basis prompt,haystack: run the shares without pooled, or one run over all prompts",
                paths[k]);
    }
    AG_TRY(ag_provenance_merge(&g->from, list, n, options, g->arena, err));
    for (int64_t k = 1; k < n; k++) AG_TRY(check_pair(first, parts[k], &first->from, paths[0], paths[k], err));
    g->r = first->r;
    g->skip = first->skip;
    g->draws = first->draws;
    g->resample_seed = first->resample_seed;
    g->H = first->H;
    g->Dmax = first->Dmax;
    for (int64_t k = 0; k < n; k++)
        if (parts[k]->storage_lost < 0 || !ag_add(g->storage_lost, parts[k]->storage_lost, &g->storage_lost))
            return ag_fail(err, AG_E_FORMAT, "%s: storage_lost %lld: out of range", paths[k],
                           (long long)parts[k]->storage_lost);
    status = AG_E_MEMORY;
    int64_t *Hk = AG_NEW(g->arena, int64_t, g->from.Ls, err), *D = AG_NEW(g->arena, int64_t, g->from.Ls, err);
    if (!Hk || !D) goto fail;
    memcpy(Hk, first->Hk, (size_t)g->from.Ls * sizeof *Hk);
    memcpy(D, first->D, (size_t)g->from.Ls * sizeof *D);
    g->Hk = Hk;
    g->D = D;
    for (int b = 0; b < GEOM_BASIS_COUNT; b++) {
        if (!(g->basis[b] = first->basis[b])) continue;
        status = AG_E_MEMORY;
        if (!(g->records[b] = AG_ZEROS(g->arena, struct geom_records, g->from.Ls, err))) goto fail;
        for (int64_t l = 0; l < g->from.Ls; l++) AG_TRY(append(g, parts, n, b, l, err));
    }
    AG_TRY(geom_fold(g, err));
fail:
    return status;
}

enum ag_status geom_results_merge(struct geom_results **out, const struct geom_results *const *parts,
                                  const char *const *paths, int64_t n, const struct ag_merge_options *options,
                                  struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    struct ag_arena *arena = ag_arena_new("geometry results"), *scratch = ag_arena_new("merging geometry results");
    struct geom_results *g = arena && scratch ? AG_ZEROS(arena, struct geom_results, 1, err) : NULL;
    *out = NULL;
    if (g == NULL) {
        status = ag_fail(err, AG_E_MEMORY, "geometry: out of memory");
        goto fail;
    }
    g->arena = arena;
    AG_TRY(merge_into(g, parts, paths, n, options, scratch, err));
    *out = g;
fail:
    ag_arena_free(scratch);
    if (status != AG_OK) ag_arena_free(arena);
    return status;
}
