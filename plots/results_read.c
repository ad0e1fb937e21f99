/* plots/results_read.c: what a results file is, and the part of one of geometry that figures show. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/block.h"
#include "base/h5.h"
#include "geometry/results.h"
#include "plots/figure.h"

struct reading {
    hid_t file;
    struct plot_results *results;
    struct ag_arena *arena;
    struct ag_error *err;
};

static enum ag_status read_kind(enum plot_schema *out, hid_t file, const char *path, struct ag_arena *arena,
                                struct ag_error *err) {
    const char *schema = NULL;
    if (!ag_h5_has_attribute(file, ".", "schema")) {
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: an HDF5 file without a schema attribute, so not made by attgeo; expected a results file of "
                       "`attgeo geometry`, `attgeo taylor` or `attgeo probe --reduce`",
                       path);
    }
    enum ag_status status = ag_h5_get_text(&schema, file, ".", "schema", arena, err);
    if (status != AG_OK) return status;
    for (int i = 0; i < PLOT_SCHEMAS; i++) {
        *out = (enum plot_schema)i;
        if (strcmp(schema, plot_sets[i].schema) == 0) return AG_OK;
    }
    if (strncmp(schema, "attgeo-dump-", 12) == 0) {
        return ag_fail(
            err, AG_E_UNSUPPORTED,
            "%s: a dump of keys (%.40s), which has no figures; make results of it first: attgeo geometry %s -o "
            "results.h5, or attgeo taylor",
            path, schema, path);
    }
    return ag_fail(err, AG_E_UNSUPPORTED, "%s: schema %.40s; this version draws %s and %s: make the file anew with it",
                   path, schema, plot_sets[0].schema, plot_sets[1].schema);
}

enum ag_status plot_schema_of(enum plot_schema *out, const char *path, struct ag_arena *arena, struct ag_error *err) {
    hid_t file = -1;
    enum ag_status status = ag_h5_open(&file, path, err);
    if (status != AG_OK) return status;
    status = read_kind(out, file, path, arena, err);
    const enum ag_status closed = ag_h5_close(file, err);
    return status != AG_OK ? status : closed;
}

/* A dataset of doubles with exactly these dimensions. */
static enum ag_status read_array(const struct reading *in, const double **out, const char *basis, const char *name,
                                 int rank, int64_t d0, int64_t d1, int64_t d2) {
    char path[160];
    int64_t dims[3] = {d0, d1, d2};
    void *data = NULL;
    snprintf(path, sizeof path, "summary/%s/%s", basis, name);
    enum ag_status status = ag_h5_read(&data, in->file, path, AG_H5_F64, rank, dims, in->arena, in->err);
    *out = data;
    return status;
}

static enum ag_status read_basis(const struct reading *in, struct plot_basis *basis, const char *name) {
    const struct plot_results *r = in->results;
    enum ag_status status = AG_OK;
    char group[96];
    basis->name = name;
    snprintf(group, sizeof group, "summary/%s", name);
    const struct {
        const double **out;
        const char *name;
    } cells[] = {
        {&basis->delta[PLOT_POOL_PROMPT], "delta_mu_prompt"},
        {&basis->lo[PLOT_POOL_PROMPT], "delta_mu_prompt_lo"},
        {&basis->hi[PLOT_POOL_PROMPT], "delta_mu_prompt_hi"},
        {&basis->delta[PLOT_POOL_TOKEN], "delta_mu_token"},
        {&basis->lo[PLOT_POOL_TOKEN], "delta_mu_token_lo"},
        {&basis->hi[PLOT_POOL_TOKEN], "delta_mu_token_hi"},
        {&basis->p, "delta_mu_prompt_p"},
        {&basis->q, "delta_mu_prompt_q"},
        {&basis->effective_rank, "effective_rank"},
        {&basis->participation_ratio, "participation_ratio"},
        {&basis->stable_rank, "stable_rank"},
        {&basis->ev_r, "ev_r"},
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        AG_TRY(read_array(in, cells[i].out, name, cells[i].name, 2, r->Ls, r->H, 0));
    AG_TRY(read_array(in, &basis->layer_align, name, "layer_align", 2, r->Ls, r->roles, 0));
    AG_TRY(read_array(in, &basis->layer_lo, name, "layer_align_lo", 2, r->Ls, r->roles, 0));
    AG_TRY(read_array(in, &basis->layer_hi, name, "layer_align_hi", 2, r->Ls, r->roles, 0));
    AG_TRY(read_array(in, &basis->layer_delta, name, "layer_delta", 1, r->Ls, 0, 0));
    AG_TRY(read_array(in, &basis->layer_delta_lo, name, "layer_delta_lo", 1, r->Ls, 0, 0));
    AG_TRY(read_array(in, &basis->layer_delta_hi, name, "layer_delta_hi", 1, r->Ls, 0, 0));
    AG_TRY(read_array(in, &basis->scree, name, "scree", 3, r->Ls, r->H, r->Dmax));
    AG_TRY(read_array(in, &basis->explained, name, "explained", 3, r->Ls, r->H, r->Dmax));
    for (int i = 0; i < PLOT_POOL_COUNT; i++) {
        const char *const which = i == PLOT_POOL_TOKEN ? "_token" : "";
        char name_of[64];
        snprintf(name_of, sizeof name_of, "fraction_negative%s", which);
        AG_TRY(ag_h5_get_f64(&basis->fraction[i], in->file, group, name_of, in->err));
        snprintf(name_of, sizeof name_of, "fraction_negative%s_lo", which);
        AG_TRY(ag_h5_get_f64(&basis->fraction_lo[i], in->file, group, name_of, in->err));
        snprintf(name_of, sizeof name_of, "fraction_negative%s_hi", which);
        AG_TRY(ag_h5_get_f64(&basis->fraction_hi[i], in->file, group, name_of, in->err));
    }
    AG_TRY(ag_h5_get_f64(&basis->smallest_p, in->file, group, "smallest_p", in->err));
    AG_TRY(ag_h5_get_i64(&basis->significant_negative, in->file, group, "significant_negative", in->err));
    AG_TRY(ag_h5_get_i64(&basis->significant_positive, in->file, group, "significant_positive", in->err));
fail:
    return status;
}

static int compare_i64(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static enum ag_status read_prompts(const struct reading *in) {
    int64_t dims[1] = {in->results->P};
    void *data = NULL;
    enum ag_status status = ag_h5_read(&data, in->file, "prompts/unit", AG_H5_I64, 1, dims, in->arena, in->err);
    if (status != AG_OK) return status;
    int64_t *unit = data;
    qsort(unit, (size_t)dims[0], sizeof unit[0], compare_i64);
    for (int64_t i = 0; i < dims[0]; i++) in->results->units += i == 0 || unit[i] != unit[i - 1];
    return AG_OK;
}

static enum ag_status read_layers(const struct reading *in, const char *path) {
    struct plot_results *r = in->results;
    enum ag_status status = AG_OK;
    int64_t dims[1] = {-1}, *Hk, *D;
    void *data = NULL;
    AG_TRY(ag_h5_read(&data, in->file, "layers", AG_H5_I64, 1, dims, in->arena, in->err));
    r->layer = data;
    r->Ls = dims[0];
    if (r->Ls < 1 || r->Ls > 8192) { /* 8192: what fits into an attribute of 64 KiB, as the schema stores Hk */
        return ag_fail(in->err, AG_E_FORMAT, "%s: /layers: %" PRId64 " layers; expected 1 to 8192", path, r->Ls);
    }
    Hk = AG_NEW(in->arena, int64_t, r->Ls, in->err);
    D = AG_NEW(in->arena, int64_t, r->Ls, in->err);
    if (Hk == NULL || D == NULL) return AG_E_MEMORY;
    AG_TRY(ag_h5_get(Hk, in->file, "layers", "Hk", AG_H5_I64, r->Ls, in->err));
    AG_TRY(ag_h5_get(D, in->file, "layers", "D", AG_H5_I64, r->Ls, in->err));
    r->Hk = Hk;
    r->D = D;
    for (int64_t l = 0; l < r->Ls; l++) {
        if (r->layer[l] < 0 || (l > 0 && r->layer[l] <= r->layer[l - 1])) {
            return ag_fail(in->err, AG_E_FORMAT,
                           "%s: /layers: entry %" PRId64 " is %" PRId64 "; expected ascending layers", path, l,
                           r->layer[l]);
        }
        if (Hk[l] < 1 || Hk[l] > 65536 || D[l] < 1 || D[l] > 65536) {
            return ag_fail(in->err, AG_E_FORMAT,
                           "%s: /layers: layer %" PRId64 " has %" PRId64 " heads of dimension %" PRId64
                           "; expected 1 to 65536",
                           path, r->layer[l], Hk[l], D[l]);
        }
        if (Hk[l] > r->H) r->H = Hk[l];
        if (D[l] > r->Dmax) r->Dmax = D[l];
    }
fail:
    return status;
}

static enum ag_status read_all(const struct reading *in, const char *path) {
    struct plot_results *r = in->results;
    enum ag_status status = AG_OK;
    const char *bases = NULL;
    char group[64];
    enum plot_schema schema;
    const struct {
        const char **out;
        const char *name;
    } texts[] = {
        {&r->model, "model"},
        {&r->architecture, "architecture"},
        {&r->tap, "tap"},
        {&r->last_tap, "last_tap"},
        {&r->checkpoint_sha256, "checkpoint_sha256"},
        {&r->prompts_sha256, "prompts_sha256"},
        {&r->version, "version"},
        {&bases, "bases"},
    };
    AG_TRY(read_kind(&schema, in->file, path, in->arena, in->err));
    if (schema != PLOT_GEOMETRY)
        return ag_fail(in->err, AG_E_UNSUPPORTED, "%s: results of %s; expected those of attgeo geometry", path,
                       plot_sets[schema].made_by);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        AG_TRY(ag_h5_get_text(texts[i].out, in->file, ".", texts[i].name, in->arena, in->err));
    AG_TRY(ag_h5_get_i64(&r->P, in->file, ".", "P", in->err));
    AG_TRY(ag_h5_get_i64(&r->r, in->file, ".", "r", in->err));
    AG_TRY(ag_h5_get_i64(&r->skip, in->file, ".", "skip", in->err));
    if (ag_h5_has_attribute(in->file, ".", "storage_lost"))
        AG_TRY(ag_h5_get_i64(&r->storage_lost, in->file, ".", "storage_lost", in->err));
    AG_TRY(read_layers(in, path));
    AG_TRY(read_prompts(in));
    snprintf(group, sizeof group, "summary/prompt/layer_align");
    int64_t dims[2] = {r->Ls, -1};
    AG_TRY(ag_h5_check_shape(in->file, group, 2, dims, in->err));
    r->roles = dims[1];
    if (r->roles <= AG_ROLE_QUESTION) {
        return ag_fail(in->err, AG_E_FORMAT, "%s: /%s: %" PRId64 " roles; expected at least %d", path, group, r->roles,
                       AG_ROLE_QUESTION + 1);
    }
    static const char *const known[] = {"prompt", "haystack", "pooled"};
    for (int i = 0; i < 3; i++) {
        snprintf(group, sizeof group, "summary/%s", known[i]);
        if (ag_h5_exists(in->file, group)) AG_TRY(read_basis(in, &r->basis[r->n_bases++], known[i]));
    }
    if (plot_find_basis(r, "haystack") == NULL) {
        return ag_fail(
            in->err, AG_E_FORMAT,
            "%s: no /summary/haystack (bases: %.60s); the control is part of every results file: make it anew", path,
            bases);
    }
fail:
    return status;
}

enum ag_status plot_results_open(struct plot_results *out, const char *path, struct ag_arena *arena,
                                 struct ag_error *err) {
    struct reading in = {-1, out, arena, err};
    memset(out, 0, sizeof *out);
    out->path = path;
    enum ag_status status = ag_h5_open(&in.file, path, err);
    if (status != AG_OK) return status;
    status = read_all(&in, path);
    const enum ag_status closed = ag_h5_close(in.file, err);
    return status != AG_OK ? status : closed;
}

const struct plot_basis *plot_find_basis(const struct plot_results *results, const char *name) {
    for (int i = 0; i < results->n_bases; i++)
        if (strcmp(results->basis[i].name, name) == 0) return &results->basis[i];
    return NULL;
}
