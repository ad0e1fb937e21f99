#include "geometry/results.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cli.h"
#include "geometry/fold.h"
#include "geometry/inference.h"
#include "geometry/reducer.h"
#include "geometry/results_table.h"
#include "kernels/ops.h"

const char *const geom_basis_names[GEOM_BASIS_COUNT + 1] = {"prompt", "haystack", "pooled", NULL};

/* The choices among MATH.md's definitions, in the file for whoever finds it. */
static const char definitions[] =
    "Sigma is the population covariance (1/n, centred) of a prompt's keys at the tap, answer tokens and the first "
    "`skip` tokens "
    "left out, over all keys of the prompt also in sliding-window layers. Basis prompt: all those keys; haystack: "
    "those with "
    "role haystack; pooled: those of all prompts. U_r: the r leading eigenvectors of the basis. Alignment a(k) = "
    "|U_r^T (k - "
    "mu)|^2 / |k - mu|^2, undefined where |k - mu|^2 is at most 1e-24 of the largest of the prompt (answer left out). "
    "Delta-mu is the mean over needle tokens minus the mean over distractor tokens; at most 1e-12 is rounding and "
    "counts as 0. A prompt with r + 1 or fewer keys "
    "in the "
    "basis is missing. Unit: a pair of twins, or a prompt without twin. Intervals: 95 % percentile bootstrap over "
    "units, NaN "
    "for fewer than two. p: two-sided sign flips of unit means, exact up to 20 units, else 10,000 drawn. q: "
    "Benjamini-Hochberg "
    "over the cells of a basis. Effective rank: exp(entropy of s_i / tr) (Roy & Vetterli 2007); participation ratio "
    "(sum s)^2 / "
    "sum s^2; stable rank tr / s_1; numerical rank #{s_i > 1e-11 s_1}; mean dominance |mu|^2 / (|mu|^2 + tr).";

/* Numbers of the root beside the provenance. */
static const struct {
    const char *name;
    size_t offset;
} numbers[] = {
    {"r", offsetof(struct geom_results, r)},
    {"skip", offsetof(struct geom_results, skip)},
    {"bootstrap_draws", offsetof(struct geom_results, draws)},
    {"resample_seed", offsetof(struct geom_results, resample_seed)},
    {"storage_lost", offsetof(struct geom_results, storage_lost)},
};
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* Attributes of a summary. */
static const struct {
    const char *name;
    size_t offset;
    bool integer;
} shares[] = {
    {"fraction_negative", offsetof(struct geom_summary, fraction_negative), false},
    {"fraction_negative_lo", offsetof(struct geom_summary, fraction_negative_lo), false},
    {"fraction_negative_hi", offsetof(struct geom_summary, fraction_negative_hi), false},
    {"fraction_negative_token", offsetof(struct geom_summary, fraction_negative_token), false},
    {"fraction_negative_token_lo", offsetof(struct geom_summary, fraction_negative_token_lo), false},
    {"fraction_negative_token_hi", offsetof(struct geom_summary, fraction_negative_token_hi), false},
    {"smallest_p", offsetof(struct geom_summary, smallest_p), false},
    {"significant_negative", offsetof(struct geom_summary, significant_negative), true},
    {"significant_positive", offsetof(struct geom_summary, significant_positive), true},
    {"cells", offsetof(struct geom_summary, cells), true},
    {"missing", offsetof(struct geom_summary, missing), true},
    {"zero", offsetof(struct geom_summary, zero), true},
};

static enum ag_status check_source(const struct ag_source *source, const struct geom_options *options,
                                   struct ag_error *err) {
    const struct ag_tokens *tokens = source->tokens;
    if (options->r < 1 || options->skip < 0 || options->draws < 1)
        return ag_fail(err, AG_E_USAGE, "geometry: r must be at least 1, skip at least 0, bootstrap draws at least 1");
    for (int64_t l = 0; l < source->L; l++) {
        if (!source->selected[l]) continue;
        const struct ag_layer_shape *shape = &source->layers[l];
        if (shape->D > KERN_GEOMETRY_D_MAX)
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "geometry: layer %" PRId64 " has heads of %" PRId64 " dimensions; at most %d", l, shape->D,
                           KERN_GEOMETRY_D_MAX);
        if (options->r >= shape->D)
            return ag_fail(err, AG_E_USAGE,
                           "geometry: --r %" PRId64 ", but the heads of layer %" PRId64 " have %" PRId64
                           " dimensions; r must be smaller, for example --r %" PRId64,
                           options->r, l, shape->D, shape->D > 1 ? (shape->D + 3) / 4 : 0);
    }
    int64_t longest = 0;
    for (int64_t p = 0; p < tokens->P; p++) {
        const int64_t T = tokens->offsets[p + 1] - tokens->offsets[p];
        if (T > longest) longest = T;
    }
    if (options->skip >= longest)
        return ag_fail(err, AG_E_USAGE,
                       "geometry: --skip %" PRId64 " leaves nothing: the longest prompt has %" PRId64 " tokens",
                       options->skip, longest);
    return AG_OK;
}

static enum ag_status copy_shapes(struct geom_results *g, const struct ag_source *source, struct ag_error *err) {
    int64_t *Hk = AG_NEW(g->arena, int64_t, g->from.Ls, err), *D = AG_NEW(g->arena, int64_t, g->from.Ls, err);
    if (!Hk || !D) return AG_E_MEMORY;
    for (int64_t l = 0; l < g->from.Ls; l++) {
        Hk[l] = source->layers[g->from.layer[l]].Hk;
        D[l] = source->layers[g->from.layer[l]].D;
        if (Hk[l] > g->H) g->H = Hk[l];
        if (D[l] > g->Dmax) g->Dmax = D[l];
    }
    g->Hk = Hk;
    g->D = D;
    return AG_OK;
}

static enum ag_status empty_results(struct geom_results **out, struct ag_error *err) {
    *out = NULL;
    struct ag_arena *arena = ag_arena_new("geometry results");
    struct geom_results *g = arena ? AG_ZEROS(arena, struct geom_results, 1, err) : NULL;
    if (!g) {
        ag_arena_free(arena);
        return ag_fail(err, AG_E_MEMORY, "geometry: out of memory");
    }
    g->arena = arena;
    *out = g;
    return AG_OK;
}

enum ag_status geom_results_new(struct geom_results **out, const struct ag_source *source,
                                const struct geom_options *options, struct ag_error *err) {
    struct geom_results *g = NULL;
    enum ag_status status = AG_OK;
    *out = NULL;
    AG_TRY(empty_results(&g, err));
    AG_TRY(ag_provenance_of(&g->from, source, "geometry", g->arena, err));
    AG_TRY(check_source(source, options, err));
    g->r = options->r;
    g->skip = options->skip;
    g->draws = options->draws;
    g->resample_seed = options->seed;
    g->basis[GEOM_BASIS_PROMPT] = g->basis[GEOM_BASIS_HAYSTACK] = true;
    g->basis[GEOM_BASIS_POOLED] = options->pooled;
    AG_TRY(copy_shapes(g, source, err));
    for (int b = 0; b < GEOM_BASIS_COUNT; b++) {
        if (!g->basis[b]) continue;
        status = AG_E_MEMORY;
        if (!(g->records[b] = AG_ZEROS(g->arena, struct geom_records, g->from.Ls, err))) goto fail;
        for (int64_t l = 0; l < g->from.Ls; l++)
            AG_TRY(geom_allocate(&g->records[b][l], geom_record_datasets, geom_n_record_datasets, g, l, err));
        status = AG_OK;
    }
    *out = g;
    return AG_OK;
fail:
    geom_results_free(g);
    return status;
}

void geom_results_free(struct geom_results *results) {
    if (results) ag_arena_free(results->arena);
}

int64_t geom_results_bytes(const struct ag_source *source, const struct geom_options *options) {
    double bytes = 0;
    const double bases = options->pooled ? 3 : 2;
    int64_t Ls = 0, H = 0, Dmax = 0;
    for (int64_t l = 0; l < source->L; l++) {
        if (!source->selected[l]) continue;
        const double Hk = (double)source->layers[l].Hk, D = (double)source->layers[l].D;
        bytes += 8 * bases * (double)source->tokens->P * Hk * (D + 4 + 3 * AG_ROLE_COUNT);
        bytes += options->pooled ? 8 * Hk * D * (D + 2) : 0;
        if (source->layers[l].Hk > H) H = source->layers[l].Hk;
        if (source->layers[l].D > Dmax) Dmax = source->layers[l].D;
        Ls++;
    }
    /* the summary, and while folding about eight numbers per unit and cell and the draws of 128 cells */
    bytes += 8 * bases * (double)(Ls * H) * (30 + 2 * (double)Dmax);
    bytes += 8 * (8 * (double)source->tokens->P * (double)(Ls * H) + 130 * (double)options->draws);
    return bytes < (double)INT64_MAX / 2 ? (int64_t)bytes : INT64_MAX / 2;
}

static enum ag_status write_datasets(hid_t file, const char *group, const void *from,
                                     const struct geom_dataset *datasets, int n, const struct geom_results *g,
                                     int64_t layer, struct ag_error *err) {
    enum ag_status status = AG_OK;
    for (int i = 0; i < n; i++) {
        int64_t dims[AG_H5_MAX_RANK];
        char name[160];
        const void *data = NULL;
        memcpy(&data, (const char *)from + datasets[i].offset, sizeof(data));
        snprintf(name, sizeof(name), "%s/%s", group, datasets[i].name);
        AG_TRY(ag_h5_write(file, name, datasets[i].type, geom_dims(dims, &datasets[i], g, layer), dims, data, err));
        AG_TRY(ag_h5_set_text(file, name, "about", datasets[i].about, err));
        char axes[AG_H5_MAX_RANK * 16];
        geom_axes(axes, sizeof(axes), &datasets[i]);
        AG_TRY(ag_h5_set_text(file, name, "axes", axes, err));
    }
fail:
    return status;
}

static void join(char *out, size_t size, const char *const *names, const bool *use, int n) {
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (use && !use[i]) continue;
        const int wrote = snprintf(out + used, size - used, "%s%s", used > 0 ? "," : "", names[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
        if (used >= size) return;
    }
}

static enum ag_status write_root(hid_t file, const struct geom_results *g, struct ag_error *err) {
    enum ag_status status = AG_OK;
    char names[256];
    AG_TRY(ag_provenance_write(file, &g->from, GEOM_SCHEMA, err));
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int64_t value;
        memcpy(&value, (const char *)g + numbers[i].offset, sizeof(value));
        AG_TRY(ag_h5_set_i64(file, ".", numbers[i].name, value, err));
    }
    join(names, sizeof(names), geom_basis_names, g->basis, GEOM_BASIS_COUNT);
    AG_TRY(ag_h5_set_text(file, ".", "bases", names, err));
    join(names, sizeof(names), ag_role_names, NULL, AG_ROLE_COUNT);
    AG_TRY(ag_h5_set_text(file, ".", "role_names", names, err));
    AG_TRY(ag_h5_set_text(file, ".", "definitions", definitions, err));
    AG_TRY(ag_h5_set(file, "layers", "Hk", AG_H5_I64, g->Hk, g->from.Ls, err));
    AG_TRY(ag_h5_set(file, "layers", "D", AG_H5_I64, g->D, g->from.Ls, err));
fail:
    return status;
}

static enum ag_status write_basis(hid_t file, const struct geom_results *g, int b, struct ag_error *err) {
    enum ag_status status = AG_OK;
    char group[96];
    for (int64_t l = 0; l < g->from.Ls; l++) {
        snprintf(group, sizeof(group), "records/%" PRId64 "/%s", g->from.layer[l], geom_basis_names[b]);
        AG_TRY(write_datasets(file, group, &g->records[b][l], geom_record_datasets, geom_n_record_datasets, g, l, err));
    }
    snprintf(group, sizeof(group), "summary/%s", geom_basis_names[b]);
    AG_TRY(write_datasets(file, group, g->summary[b], geom_summary_datasets, geom_n_summary_datasets, g, 0, err));
    for (size_t i = 0; i < COUNT(shares); i++) {
        int64_t bits;
        double value;
        memcpy(&bits, (const char *)g->summary[b] + shares[i].offset, sizeof(bits));
        memcpy(&value, &bits, sizeof(value));
        if (shares[i].integer)
            AG_TRY(ag_h5_set_i64(file, group, shares[i].name, bits, err));
        else
            AG_TRY(ag_h5_set_f64(file, group, shares[i].name, value, err));
    }
fail:
    return status;
}

enum ag_status geom_results_write(const struct geom_results *results, const char *path, bool force,
                                  struct ag_error *err) {
    struct ag_h5_out out;
    enum ag_status status = ag_h5_out_begin(&out, path, force, err);
    if (status != AG_OK) return status;
    AG_TRY(write_root(out.file, results, err));
    for (int b = 0; b < GEOM_BASIS_COUNT; b++)
        if (results->basis[b]) AG_TRY(write_basis(out.file, results, b, err));
    return ag_h5_out_commit(&out, err);
fail:
    ag_h5_out_discard(&out);
    return status;
}

static enum ag_status read_root(struct geom_results *g, hid_t file, const char *path, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const char *bases = NULL, *roles = NULL;
    char names[256];
    AG_TRY(ag_provenance_read(&g->from, file, path, GEOM_SCHEMA, "attgeo geometry", g->arena, err));
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int64_t value = 0;
        AG_TRY(ag_h5_get_i64(&value, file, ".", numbers[i].name, err));
        memcpy((char *)g + numbers[i].offset, &value, sizeof(value));
    }
    AG_TRY(ag_h5_get_text(&bases, file, ".", "bases", g->arena, err));
    if (strcmp(bases, "prompt,haystack") != 0 && strcmp(bases, "prompt,haystack,pooled") != 0)
        return ag_fail(err, AG_E_FORMAT, "%s: bases %.60s; expected prompt,haystack[,pooled]", path, bases);
    g->basis[GEOM_BASIS_PROMPT] = g->basis[GEOM_BASIS_HAYSTACK] = true;
    g->basis[GEOM_BASIS_POOLED] = strlen(bases) > strlen("prompt,haystack");
    AG_TRY(ag_h5_get_text(&roles, file, ".", "role_names", g->arena, err));
    join(names, sizeof(names), ag_role_names, NULL, AG_ROLE_COUNT);
    if (strcmp(roles, names) != 0)
        return ag_fail(err, AG_E_FORMAT, "%s: role_names %.100s; expected %s", path, roles, names);
    if (g->draws < 1 || g->draws > 100000000 || g->r < 1 || g->skip < 0)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: r %" PRId64 ", skip %" PRId64 ", bootstrap_draws %" PRId64 ": out of range", path, g->r,
                       g->skip, g->draws);
fail:
    return status;
}

static enum ag_status read_layers(struct geom_results *g, hid_t file, const char *path, struct ag_error *err) {
    enum ag_status status = AG_OK;
    int64_t *Hk, *D;
    Hk = AG_NEW(g->arena, int64_t, g->from.Ls, err);
    D = AG_NEW(g->arena, int64_t, g->from.Ls, err);
    if (!Hk || !D) return AG_E_MEMORY;
    AG_TRY(ag_h5_get(Hk, file, "layers", "Hk", AG_H5_I64, g->from.Ls, err));
    AG_TRY(ag_h5_get(D, file, "layers", "D", AG_H5_I64, g->from.Ls, err));
    g->Hk = Hk;
    g->D = D;
    for (int64_t l = 0; l < g->from.Ls; l++) {
        if (Hk[l] < 1 || Hk[l] > 65536 || D[l] <= g->r || D[l] > KERN_GEOMETRY_D_MAX)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: /layers: layer %" PRId64 " with %" PRId64 " heads of %" PRId64
                           " dimensions; expected 1 to 65536 heads, dimensions above r up to %d",
                           path, g->from.layer[l], Hk[l], D[l], KERN_GEOMETRY_D_MAX);
        if (Hk[l] > g->H) g->H = Hk[l];
        if (D[l] > g->Dmax) g->Dmax = D[l];
    }
fail:
    return status;
}

static enum ag_status read_datasets(void *to, hid_t file, const char *group, const struct geom_dataset *datasets, int n,
                                    const struct geom_results *g, int64_t layer, struct ag_error *err) {
    enum ag_status status = AG_OK;
    for (int i = 0; i < n; i++) {
        int64_t dims[AG_H5_MAX_RANK];
        char name[160];
        void *data = NULL;
        snprintf(name, sizeof(name), "%s/%s", group, datasets[i].name);
        AG_TRY(ag_h5_read(&data, file, name, datasets[i].type, geom_dims(dims, &datasets[i], g, layer), dims, g->arena,
                          err));
        memcpy((char *)to + datasets[i].offset, &data, sizeof(data));
    }
fail:
    return status;
}

static enum ag_status check_records(const struct geom_results *g, int b, int64_t l, const char *path,
                                    struct ag_error *err) {
    const struct geom_records *records = &g->records[b][l];
    const int64_t n = g->from.P * g->Hk[l];
    for (int64_t i = 0; i < n; i++)
        if (records->n[i] < 0)
            return ag_fail(err, AG_E_FORMAT, "%s: /records/%" PRId64 "/%s/n: %" PRId64 " keys", path, g->from.layer[l],
                           geom_basis_names[b], records->n[i]);
    for (int64_t i = 0; i < n * AG_ROLE_COUNT; i++)
        if (records->align_count[i] < 0 || records->align_undefined[i] < 0 || !isfinite(records->align_sum[i]))
            return ag_fail(err, AG_E_FORMAT,
                           "%s: /records/%" PRId64 "/%s: a negative count or a sum that is not finite", path,
                           g->from.layer[l], geom_basis_names[b]);
    return AG_OK;
}

static enum ag_status read_basis(struct geom_results *g, hid_t file, const char *path, int b, struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    char group[96];
    struct geom_summary *summary = AG_ZEROS(g->arena, struct geom_summary, 1, err);
    g->records[b] = AG_ZEROS(g->arena, struct geom_records, g->from.Ls, err);
    if (!summary || !g->records[b]) goto fail;
    for (int64_t l = 0; l < g->from.Ls; l++) {
        snprintf(group, sizeof(group), "records/%" PRId64 "/%s", g->from.layer[l], geom_basis_names[b]);
        AG_TRY(read_datasets(&g->records[b][l], file, group, geom_record_datasets, geom_n_record_datasets, g, l, err));
        AG_TRY(check_records(g, b, l, path, err));
    }
    snprintf(group, sizeof(group), "summary/%s", geom_basis_names[b]);
    AG_TRY(read_datasets(summary, file, group, geom_summary_datasets, geom_n_summary_datasets, g, 0, err));
    for (size_t i = 0; i < COUNT(shares); i++) {
        int64_t count = 0;
        double share = 0;
        if (shares[i].integer) {
            AG_TRY(ag_h5_get_i64(&count, file, group, shares[i].name, err));
            memcpy((char *)summary + shares[i].offset, &count, sizeof(count));
        } else {
            AG_TRY(ag_h5_get_f64(&share, file, group, shares[i].name, err));
            memcpy((char *)summary + shares[i].offset, &share, sizeof(share));
        }
    }
    g->summary[b] = summary;
fail:
    return status;
}

enum ag_status geom_results_read(struct geom_results **out, const char *path, struct ag_error *err) {
    struct geom_results *g = NULL;
    hid_t file = -1;
    *out = NULL;
    enum ag_status status = ag_h5_open(&file, path, err);
    if (status != AG_OK) return status;
    AG_TRY(empty_results(&g, err));
    AG_TRY(read_root(g, file, path, err));
    AG_TRY(read_layers(g, file, path, err));
    for (int b = 0; b < GEOM_BASIS_COUNT; b++)
        if (g->basis[b]) AG_TRY(read_basis(g, file, path, b, err));
fail:
    if (ag_h5_close(file, err) != AG_OK && status == AG_OK) status = AG_E_IO;
    if (status == AG_OK)
        *out = g;
    else
        geom_results_free(g);
    return status;
}
