/* taylor/results.c: see results.h. */
#include "taylor/results.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/ops.h"
#include "taylor/fold.h"

const double taylor_quantile_points[TAYLOR_QUANTILES] = {0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99};
const char *const taylor_quantity_names[TAYLOR_QUANTITIES + 1] = {"q_norm",
                                                                  "sqrt_v",
                                                                  "range",
                                                                  "c",
                                                                  "abs_R",
                                                                  "R_over_c",
                                                                  "abs_R_over_half_v",
                                                                  "effective_keys",
                                                                  "largest_weight",
                                                                  "width_B1_over_abs_R",
                                                                  "width_B2_over_abs_R",
                                                                  "width_B3_over_abs_R",
                                                                  "width_B4_over_abs_R",
                                                                  "error_0",
                                                                  "error_3",
                                                                  "error_4",
                                                                  NULL};
const char *const taylor_count_names[TAYLOR_COUNTS + 1] = {
    "queries",   "degenerate", "eps_0.1",   "eps_0.5",   "eps_1",     "sign_B1",   "sign_B2",   "sign_B3",   "sign_B4",
    "proved_B1", "proved_B2",  "proved_B3", "proved_B4", "finite_B1", "finite_B2", "finite_B3", "finite_B4", NULL};
const char *const taylor_median_names[TAYLOR_MEDIANS + 1] = {"R_over_c",       "abs_R_over_c",   "sqrt_v",
                                                             "effective_keys", "largest_weight", NULL};

static const char definitions[] = "Logits x_j = scale k_j . q over exactly the keys that causal attention (and its "
                                  "window) sees at the query; m, v, a, b their "
                                  "mean, population variance, least and largest. A = log sum exp x. Q = log t + m + "
                                  "v/2 is the second-order model at q = 0, R = A - Q "
                                  "its remainder, c = A - log t - m >= 0 the competition, R = c - v/2. Bounds on R: B1 "
                                  "Lagrange, B2 self-concordant, B3 "
                                  "Chebyshev-Markov (sharp given m, v, a, b), B4 the same from what an O(1)-memory "
                                  "state can carry (missing in window layers), B4x from the exact "
                                  "radius and Mahalanobis distances. Enclosures are widened by a bound on all "
                                  "rounding, that of the logits included: the exact R of the "
                                  "stored keys and query lies inside. v = 0: R = c = 0, |R| <= eps c holds; R/c, "
                                  "width/|R| and sign are missing and counted (degenerate). "
                                  "sign: the bound fixes the sign of R; proved: its lower end is at least -v/4, which "
                                  "proves |R| <= c without c. Histograms: bins of "
                                  "2^(1/16) in magnitude from 2^-40 to 2^24, the first for what is below (zero too), "
                                  "the last for what is above (infinity too). Trust radius at eps: "
                                  "the first s in (0, 1] where |R(s q)| > eps c(s q); proved: none before (B2, then "
                                  "B5). cosine: between Sigma q and grad A - mu; "
                                  "span: |U_r^T g|^2 / |g|^2, g = grad A - mu, missing for t <= r + 1. gradient_bound: "
                                  "2 max|k - mu| c. Curves: R(s q)/c(s q) along a few "
                                  "sampled queries, exact and enclosed by B3.";

static const struct {
    const char *name;
    size_t offset;
} numbers[] = {
    {"r", offsetof(struct taylor_results, r)},
    {"queries", offsetof(struct taylor_results, queries)},
    {"sample_seed", offsetof(struct taylor_results, sample_seed)},
    {"bootstrap_draws", offsetof(struct taylor_results, draws)},
};
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* ---- memory ------------------------------------------------------------------------------------------------------- */

static enum ag_status empty_results(struct taylor_results **out, struct ag_error *err) {
    struct ag_arena *arena = ag_arena_new("taylor results");
    struct taylor_results *r = arena ? AG_ZEROS(arena, struct taylor_results, 1, err) : NULL;
    *out = r;
    if (r == NULL) {
        ag_arena_free(arena);
        return ag_fail(err, AG_E_MEMORY, "taylor: out of memory");
    }
    r->arena = arena;
    return AG_OK;
}

void taylor_results_free(struct taylor_results *results) {
    if (results != NULL) ag_arena_free(results->arena);
}

static double *nans(struct ag_arena *arena, int64_t n, struct ag_error *err) {
    double *x = AG_NEW(arena, double, n, err);
    for (int64_t i = 0; x != NULL && i < n; i++) x[i] = NAN;
    return x;
}

struct taylor_summary *taylor_summary_new(const struct taylor_results *r, struct ag_error *err) {
    struct ag_arena *arena = r->arena;
    const int64_t Ls = r->from.Ls, cells = Ls * r->H;
    struct taylor_summary *s = AG_ZEROS(arena, struct taylor_summary, 1, err);
    if (s == NULL) return NULL;
    s->quantiles = nans(arena, cells * TAYLOR_QUANTITIES * TAYLOR_QUANTILES, err);
    s->layer_quantiles = nans(arena, Ls * TAYLOR_QUANTITIES * TAYLOR_QUANTILES, err);
    s->model_quantiles = nans(arena, TAYLOR_QUANTITIES * TAYLOR_QUANTILES, err);
    s->share = nans(arena, cells * TAYLOR_COUNTS, err);
    s->layer_share = (struct taylor_share *)nans(arena, Ls * TAYLOR_COUNTS * 3, err);
    s->model_share = (struct taylor_share *)nans(arena, TAYLOR_COUNTS * 3, err);
    s->layer_median = (struct taylor_share *)nans(arena, Ls * TAYLOR_MEDIANS * 3, err);
    s->model_median = (struct taylor_share *)nans(arena, TAYLOR_MEDIANS * 3, err);
    return s->quantiles && s->layer_quantiles && s->model_quantiles && s->share && s->layer_share && s->model_share &&
                   s->layer_median && s->model_median
               ? s
               : NULL;
}

static enum ag_status new_records(struct taylor_results *r, int64_t l, struct ag_error *err) {
    struct taylor_records *x = &r->records[l];
    x->counts = AG_ZEROS(r->arena, int64_t, r->from.P * r->Hq[l] * TAYLOR_COUNTS, err);
    x->medians = nans(r->arena, r->from.P * r->Hq[l] * TAYLOR_MEDIANS, err);
    x->histograms = AG_ZEROS(r->arena, int32_t, r->Hq[l] * TAYLOR_QUANTITIES * 2 * TAYLOR_BINS, err);
    x->density = AG_ZEROS(r->arena, int64_t, TAYLOR_DENSITY * TAYLOR_DENSITY, err);
    return x->counts && x->medians && x->histograms && x->density ? AG_OK : AG_E_MEMORY;
}

enum ag_status taylor_results_new(struct taylor_results **out, const struct ag_source *source,
                                  const struct taylor_options *options, struct ag_error *err) {
    struct taylor_results *r = NULL;
    enum ag_status status = empty_results(&r, err);
    *out = NULL;
    if (status != AG_OK) return status;
    AG_TRY(ag_provenance_of(&r->from, source, "taylor", r->arena, err));
    r->r = options->r;
    r->queries = options->queries;
    r->sample_seed = options->seed;
    r->draws = options->draws;
    const int64_t Ls = r->from.Ls;
    int64_t *Hq = AG_NEW(r->arena, int64_t, Ls, err), *Hk = AG_NEW(r->arena, int64_t, Ls, err),
            *D = AG_NEW(r->arena, int64_t, Ls, err);
    int64_t *window = AG_NEW(r->arena, int64_t, Ls, err);
    double *scale = AG_NEW(r->arena, double, Ls, err);
    r->records = AG_ZEROS(r->arena, struct taylor_records, Ls, err);
    status = AG_E_MEMORY;
    if (!Hq || !Hk || !D || !window || !scale || !r->records) goto fail;
    r->Hq = Hq;
    r->Hk = Hk;
    r->D = D;
    r->window = window;
    r->scale = scale;
    for (int64_t l = 0; l < Ls; l++) {
        const struct ag_layer_shape *shape = &source->layers[r->from.layer[l]];
        Hq[l] = shape->Hq;
        Hk[l] = shape->Hk;
        D[l] = shape->D;
        window[l] = shape->window;
        scale[l] = shape->scale;
        if (Hq[l] > r->H) r->H = Hq[l];
        if (D[l] > KERN_HEAD_MAX || Hk[l] < 1 || Hq[l] % Hk[l] != 0 || !isfinite(scale[l])) {
            status = ag_fail(err, AG_E_UNSUPPORTED,
                             "taylor: layer %" PRId64 " has %" PRId64 " query heads on %" PRId64 " KV heads of %" PRId64
                             " dimensions; expected whole groups and at most %d dimensions",
                             r->from.layer[l], Hq[l], Hk[l], D[l], KERN_HEAD_MAX);
            goto fail;
        }
        AG_TRY(new_records(r, l, err));
    }
    *out = r;
    return AG_OK;
fail:
    taylor_results_free(r);
    return status;
}

int64_t taylor_results_bytes(const struct ag_source *source, const struct taylor_options *options) {
    double bytes = 0, heads = 0, rows = 0;
    for (int64_t p = 0; p < source->tokens->P; p++) {
        const int64_t T = source->tokens->offsets[p + 1] - source->tokens->offsets[p];
        rows += (double)(options->queries < T ? options->queries : T) + 8;
    }
    for (int64_t l = 0; l < source->L; l++) {
        if (!source->selected[l]) continue;
        heads += (double)source->layers[l].Hq;
        bytes += 8 * TAYLOR_DENSITY * TAYLOR_DENSITY;
    }
    bytes += heads * (4.0 * TAYLOR_QUANTITIES * 2 * TAYLOR_BINS + 8.0 * TAYLOR_QUANTITIES * TAYLOR_QUANTILES +
                      8.0 * TAYLOR_COUNTS);
    bytes += heads * (double)source->tokens->P * 8 * (TAYLOR_COUNTS + TAYLOR_MEDIANS) +
             heads * rows * (double)sizeof(struct taylor_sample);
    bytes += heads * (double)options->curves * (double)sizeof(struct taylor_curve);
    return bytes < (double)INT64_MAX / 2 ? (int64_t)bytes : INT64_MAX / 2;
}

/* ---- the sampled rows as columns --------------------------------------------------------------------------------------- */

struct column {
    const char *name;
    enum ag_h5_type type;
    size_t offset;
    int count; /* values a row; more than one: stride bytes apart */
    size_t stride;
};
#define ROW(field, type)                                                                                               \
    { #field, type, offsetof(struct taylor_sample, field), 1, 0 }
static const struct column columns[] = {
    ROW(prompt, AG_H5_I64),
    ROW(layer, AG_H5_I64),
    ROW(head, AG_H5_I64),
    ROW(position, AG_H5_I64),
    ROW(keys, AG_H5_I64),
    ROW(role, AG_H5_U8),
    ROW(value, AG_H5_U8),
    ROW(q_norm, AG_H5_F64),
    ROW(m, AG_H5_F64),
    ROW(v, AG_H5_F64),
    ROW(a, AG_H5_F64),
    ROW(b, AG_H5_F64),
    ROW(A, AG_H5_F64),
    ROW(c, AG_H5_F64),
    ROW(R, AG_H5_F64),
    ROW(dR, AG_H5_F64),
    ROW(effective, AG_H5_F64),
    ROW(largest, AG_H5_F64),
    ROW(cosine, AG_H5_F64),
    ROW(span, AG_H5_F64),
    ROW(gradient, AG_H5_F64),
    ROW(gradient_bound, AG_H5_F64),
    {"lo", AG_H5_F64, offsetof(struct taylor_sample, bound[0].lo), TAYLOR_SAMPLE_BOUNDS,
     sizeof(struct taylor_interval)},
    {"hi", AG_H5_F64, offsetof(struct taylor_sample, bound[0].hi), TAYLOR_SAMPLE_BOUNDS,
     sizeof(struct taylor_interval)},
    {"radius", AG_H5_F64, offsetof(struct taylor_sample, radius[0].s), TAYLOR_EPS, sizeof(struct taylor_radius)},
    {"proved", AG_H5_F64, offsetof(struct taylor_sample, radius[0].proved), TAYLOR_EPS, sizeof(struct taylor_radius)},
    {"certified", AG_H5_U8, offsetof(struct taylor_sample, radius[0].certified), TAYLOR_EPS,
     sizeof(struct taylor_radius)},
};
_Static_assert(sizeof(bool) == 1, "a bool is stored as one byte");

/* Copies a column between rows and a packed array, either way. */
static void transfer(const struct column *c, struct taylor_sample *rows, int64_t n, char *packed, bool pack) {
    const size_t size = (size_t)ag_h5_size(c->type);
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < c->count; k++) {
            char *in_row = (char *)&rows[i] + c->offset + (size_t)k * c->stride,
                 *in_column = packed + ((size_t)i * (size_t)c->count + (size_t)k) * size;
            memcpy(pack ? in_column : in_row, pack ? in_row : in_column, size);
        }
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

static enum ag_status write_samples(hid_t file, const struct taylor_results *r, struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct ag_arena *scratch = ag_arena_new("writing taylor samples");
    if (scratch == NULL) return ag_fail(err, AG_E_MEMORY, "taylor: out of memory");
    for (size_t i = 0; i < COUNT(columns); i++) {
        const struct column *c = &columns[i];
        const int64_t dims[2] = {r->n_samples, c->count};
        char name[64];
        ag_arena_reset(scratch);
        char *packed = ag_arena_alloc(scratch, r->n_samples * c->count, (size_t)ag_h5_size(c->type), err);
        status = AG_E_MEMORY;
        if (packed == NULL) goto fail;
        transfer(c, r->samples, r->n_samples, packed, true);
        snprintf(name, sizeof name, "samples/%s", c->name);
        AG_TRY(ag_h5_write(file, name, c->type, c->count > 1 ? 2 : 1, dims, packed, err));
    }
fail:
    ag_arena_free(scratch);
    return status;
}

/* The curves: packed columns of TAYLOR_CURVE values, either way. */
static const struct {
    const char *name;
    size_t offset, stride;
} curve_columns[] = {
    {"curves/ratio", offsetof(struct taylor_curve, ratio), sizeof(double)},
    {"curves/lo", offsetof(struct taylor_curve, bound[0].lo), sizeof(struct taylor_interval)},
    {"curves/hi", offsetof(struct taylor_curve, bound[0].hi), sizeof(struct taylor_interval)},
};

static enum ag_status write_curves(hid_t file, const struct taylor_results *r, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const int64_t n = r->n_curves, dims[2] = {n, TAYLOR_CURVE}, points = TAYLOR_CURVE;
    double s[TAYLOR_CURVE];
    struct ag_arena *scratch = ag_arena_new("writing taylor curves");
    double *packed = scratch ? AG_NEW(scratch, double, n *TAYLOR_CURVE, err) : NULL;
    int64_t *sample = scratch ? AG_NEW(scratch, int64_t, n, err) : NULL;
    if (!packed || !sample) {
        ag_arena_free(scratch);
        return ag_fail(err, AG_E_MEMORY, "taylor: out of memory");
    }
    for (int k = 0; k < TAYLOR_CURVE; k++) s[k] = (double)k / (TAYLOR_CURVE - 1);
    for (int64_t i = 0; i < n; i++) sample[i] = r->curves[i].sample;
    AG_TRY(ag_h5_write(file, "curves/s", AG_H5_F64, 1, &points, s, err));
    AG_TRY(ag_h5_write(file, "curves/sample", AG_H5_I64, 1, dims, sample, err));
    for (size_t c = 0; c < COUNT(curve_columns); c++) {
        for (int64_t i = 0; i < n * TAYLOR_CURVE; i++) {
            const char *curve = (const char *)&r->curves[i / TAYLOR_CURVE];
            memcpy(&packed[i], curve + curve_columns[c].offset + (size_t)(i % TAYLOR_CURVE) * curve_columns[c].stride,
                   sizeof packed[i]);
        }
        AG_TRY(ag_h5_write(file, curve_columns[c].name, AG_H5_F64, 2, dims, packed, err));
    }
fail:
    ag_arena_free(scratch);
    return status;
}

/* Every array of fixed place: written and read by one table. dims letters: L layers analysed, H most query heads, q quantities, p
 * quantile points, c counts, m medians, 3 value-lo-hi. */
struct array {
    const char *name, *dims, *about;
    size_t offset;
};
#define SUMMARY(field, dims, about)                                                                                    \
    { "summary/" #field, dims, about, offsetof(struct taylor_summary, field) }
static const struct array arrays[] = {
    SUMMARY(quantiles, "LHqp", "quantiles over all causal queries of a head; quantities and points: root attributes"),
    SUMMARY(layer_quantiles, "Lqp", "of a layer"),
    SUMMARY(model_quantiles, "qp", "of the model"),
    SUMMARY(share, "LHc", "counts as shares of the queries (sign, proved, finite: of those with v > 0)"),
    SUMMARY(layer_share, "Lc3", "of a layer: value, lower, upper end (95 % bootstrap over units)"),
    SUMMARY(model_share, "c3", "of the model"),
    SUMMARY(layer_median, "Lm3",
            "median within a prompt and head, mean over heads, prompts of a unit, units: value, lower, upper end"),
    SUMMARY(model_median, "m3", "of the model"),
};

static int extents(int64_t dims[AG_H5_MAX_RANK], const char *letters, const struct taylor_results *r) {
    int rank = 0;
    for (; *letters != '\0'; letters++)
        dims[rank++] = *letters == 'L'   ? r->from.Ls
                       : *letters == 'H' ? r->H
                       : *letters == 'q' ? TAYLOR_QUANTITIES
                       : *letters == 'p' ? TAYLOR_QUANTILES
                       : *letters == 'c' ? TAYLOR_COUNTS
                       : *letters == 'm' ? TAYLOR_MEDIANS
                                         : 3;
    return rank;
}

static enum ag_status set_names(hid_t file, const char *attribute, const char *const *names, struct ag_error *err) {
    struct ag_buf text = {0};
    enum ag_status status = AG_OK;
    for (int i = 0; names[i] != NULL && status == AG_OK; i++)
        status = ag_buf_printf(&text, err, "%s%s", i ? "," : "", names[i]);
    if (status == AG_OK) status = ag_h5_set_text(file, ".", attribute, text.data, err);
    ag_buf_free(&text);
    return status;
}

static enum ag_status write_root(hid_t file, const struct taylor_results *r, struct ag_error *err) {
    enum ag_status status = AG_OK;
    AG_TRY(ag_provenance_write(file, &r->from, TAYLOR_SCHEMA, err));
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int64_t value;
        memcpy(&value, (const char *)r + numbers[i].offset, sizeof value);
        AG_TRY(ag_h5_set_i64(file, ".", numbers[i].name, value, err));
    }
    AG_TRY(ag_h5_set_i64(file, ".", "softmax_sees", r->from.tap == r->from.last_tap, err));
    AG_TRY(ag_h5_set(file, ".", "eps", AG_H5_F64, taylor_eps, TAYLOR_EPS, err));
    AG_TRY(ag_h5_set(file, ".", "quantile_points", AG_H5_F64, taylor_quantile_points, TAYLOR_QUANTILES, err));
    AG_TRY(set_names(file, "quantities", taylor_quantity_names, err));
    AG_TRY(set_names(file, "counts", taylor_count_names, err));
    AG_TRY(set_names(file, "medians", taylor_median_names, err));
    AG_TRY(ag_h5_set_text(file, ".", "bounds", "B1,B2,B3,B4,B4x", err));
    AG_TRY(ag_h5_set_text(file, ".", "definitions", definitions, err));
    AG_TRY(ag_h5_set(file, "layers", "Hq", AG_H5_I64, r->Hq, r->from.Ls, err));
    AG_TRY(ag_h5_set(file, "layers", "Hk", AG_H5_I64, r->Hk, r->from.Ls, err));
    AG_TRY(ag_h5_set(file, "layers", "D", AG_H5_I64, r->D, r->from.Ls, err));
    AG_TRY(ag_h5_set(file, "layers", "window", AG_H5_I64, r->window, r->from.Ls, err));
    AG_TRY(ag_h5_set(file, "layers", "scale", AG_H5_F64, r->scale, r->from.Ls, err));
fail:
    return status;
}

/* The arrays of one layer's records: name, type, dims, where. */
struct layer_array {
    const char *format;
    enum ag_h5_type type;
    int rank;
    int64_t dims[4];
    void **data;
};
enum { LAYER_ARRAYS = 4 };
static void layer_arrays(struct layer_array out[LAYER_ARRAYS], const struct taylor_results *r, int64_t l) {
    struct taylor_records *x = &r->records[l];
    const int64_t P = r->from.P, Hq = r->Hq[l];
    out[0] =
        (struct layer_array){"records/%" PRId64 "/counts", AG_H5_I64, 3, {P, Hq, TAYLOR_COUNTS}, (void **)&x->counts};
    out[1] = (struct layer_array){
        "records/%" PRId64 "/medians", AG_H5_F64, 3, {P, Hq, TAYLOR_MEDIANS}, (void **)&x->medians};
    out[2] = (struct layer_array){
        "histograms/%" PRId64, AG_H5_I32, 4, {Hq, TAYLOR_QUANTITIES, 2, TAYLOR_BINS}, (void **)&x->histograms};
    out[3] =
        (struct layer_array){"density/%" PRId64, AG_H5_I64, 2, {TAYLOR_DENSITY, TAYLOR_DENSITY}, (void **)&x->density};
}

enum ag_status taylor_results_write(const struct taylor_results *r, const char *path, bool force,
                                    struct ag_error *err) {
    struct ag_h5_out out;
    struct layer_array each[LAYER_ARRAYS];
    int64_t dims[AG_H5_MAX_RANK];
    char name[64];
    enum ag_status status = ag_h5_out_begin(&out, path, force, err);
    if (status != AG_OK) return status;
    AG_TRY(write_root(out.file, r, err));
    for (int64_t l = 0; l < r->from.Ls; l++) {
        layer_arrays(each, r, l);
        for (int i = 0; i < LAYER_ARRAYS; i++) {
            snprintf(name, sizeof name, each[i].format, r->from.layer[l]);
            AG_TRY(ag_h5_write(out.file, name, each[i].type, each[i].rank, each[i].dims, *each[i].data, err));
        }
    }
    for (size_t i = 0; i < COUNT(arrays); i++) {
        const double *data;
        memcpy(&data, (const char *)r->summary + arrays[i].offset, sizeof data);
        AG_TRY(ag_h5_write(out.file, arrays[i].name, AG_H5_F64, extents(dims, arrays[i].dims, r), dims, data, err));
        AG_TRY(ag_h5_set_text(out.file, arrays[i].name, "about", arrays[i].about, err));
    }
    AG_TRY(write_samples(out.file, r, err));
    AG_TRY(write_curves(out.file, r, err));
    return ag_h5_out_commit(&out, err);
fail:
    ag_h5_out_discard(&out);
    return status;
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static enum ag_status read_layers(struct taylor_results *r, hid_t file, const char *path, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const int64_t Ls = r->from.Ls;
    int64_t *table[4];
    static const char *const names[4] = {"Hq", "Hk", "D", "window"};
    double *scale = AG_NEW(r->arena, double, Ls, err);
    if (scale == NULL) return AG_E_MEMORY;
    for (int i = 0; i < 4; i++) {
        if (!(table[i] = AG_NEW(r->arena, int64_t, Ls, err))) return AG_E_MEMORY;
        AG_TRY(ag_h5_get(table[i], file, "layers", names[i], AG_H5_I64, Ls, err));
    }
    AG_TRY(ag_h5_get(scale, file, "layers", "scale", AG_H5_F64, Ls, err));
    r->Hq = table[0];
    r->Hk = table[1];
    r->D = table[2];
    r->window = table[3];
    r->scale = scale;
    for (int64_t l = 0; l < Ls; l++) {
        if (r->Hq[l] < 1 || r->Hq[l] > 65536 || r->Hk[l] < 1 || r->Hq[l] % r->Hk[l] != 0 || r->D[l] < 1 ||
            r->D[l] > KERN_HEAD_MAX || r->window[l] < 0)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: /layers: layer %" PRId64 " has %" PRId64 " query heads on %" PRId64
                           " KV heads of %" PRId64 " dimensions, window %" PRId64 ": out of range",
                           path, r->from.layer[l], r->Hq[l], r->Hk[l], r->D[l], r->window[l]);
        if (r->Hq[l] > r->H) r->H = r->Hq[l];
    }
fail:
    return status;
}

static enum ag_status read_records(struct taylor_results *r, hid_t file, const char *path, struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct layer_array each[LAYER_ARRAYS];
    char name[64];
    if (!(r->records = AG_ZEROS(r->arena, struct taylor_records, r->from.Ls, err))) return AG_E_MEMORY;
    for (int64_t l = 0; l < r->from.Ls; l++) {
        layer_arrays(each, r, l);
        for (int i = 0; i < LAYER_ARRAYS; i++) {
            snprintf(name, sizeof name, each[i].format, r->from.layer[l]);
            AG_TRY(ag_h5_read(each[i].data, file, name, each[i].type, each[i].rank, each[i].dims, r->arena, err));
        }
        for (int64_t i = 0; i < r->from.P * r->Hq[l] * TAYLOR_COUNTS; i++)
            if (r->records[l].counts[i] < 0 || r->records[l].counts[i] > INT32_MAX)
                return ag_fail(err, AG_E_FORMAT, "%s: /records/%" PRId64 "/counts: a count of %" PRId64, path,
                               r->from.layer[l], r->records[l].counts[i]);
        for (int64_t i = 0; i < TAYLOR_DENSITY * TAYLOR_DENSITY; i++) /* sums over them may not overflow */
            if (r->records[l].density[i] < 0 || r->records[l].density[i] > (INT64_C(1) << 40))
                return ag_fail(err, AG_E_FORMAT, "%s: /density/%" PRId64 ": a count of %" PRId64, path,
                               r->from.layer[l], r->records[l].density[i]);
        for (int64_t i = 0; i < r->Hq[l] * TAYLOR_QUANTITIES * 2 * TAYLOR_BINS; i++)
            if (r->records[l].histograms[i] < 0)
                return ag_fail(err, AG_E_FORMAT, "%s: /histograms/%" PRId64 ": a negative count", path,
                               r->from.layer[l]);
    }
fail:
    return status;
}

static enum ag_status read_samples(struct taylor_results *r, hid_t file, const char *path, struct ag_error *err) {
    enum ag_status status = AG_OK;
    for (size_t i = 0; i < COUNT(columns); i++) {
        const struct column *c = &columns[i];
        int64_t dims[2] = {i == 0 ? -1 : r->n_samples, c->count};
        void *packed = NULL;
        char name[64];
        snprintf(name, sizeof name, "samples/%s", c->name);
        AG_TRY(ag_h5_read(&packed, file, name, c->type, c->count > 1 ? 2 : 1, dims, r->arena, err));
        if (i == 0) {
            r->n_samples = dims[0];
            if (!(r->samples = AG_ZEROS(r->arena, struct taylor_sample, r->n_samples, err))) return AG_E_MEMORY;
        }
        if (c->type == AG_H5_U8) /* certified is a bool in memory: nothing but 0 and 1 may enter it */
            for (int64_t k = 0; k < r->n_samples * c->count; k++)
                if (((uint8_t *)packed)[k] > (c->count > 1 ? 1 : AG_ROLE_COUNT))
                    return ag_fail(err, AG_E_FORMAT, "%s: /%s: %d is out of range", path, name, ((uint8_t *)packed)[k]);
        transfer(c, r->samples, r->n_samples, packed, false);
    }
    for (int64_t i = 0; i < r->n_samples; i++)
        if (r->samples[i].prompt < 0 || r->samples[i].prompt >= r->from.P || r->samples[i].layer < 0 ||
            r->samples[i].layer >= r->from.L || r->samples[i].head < 0 || r->samples[i].head >= r->H)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: /samples: row %" PRId64 " names a prompt, layer or head that the file does not have",
                           path, i);
fail:
    return status;
}

/* Files made before there were curves have none. */
static enum ag_status read_curves(struct taylor_results *r, hid_t file, const char *path, struct ag_error *err) {
    enum ag_status status = AG_OK;
    int64_t dims[2] = {-1, TAYLOR_CURVE};
    void *data = NULL;
    if (!ag_h5_exists(file, "curves")) return AG_OK;
    AG_TRY(ag_h5_read(&data, file, "curves/sample", AG_H5_I64, 1, dims, r->arena, err));
    r->n_curves = dims[0];
    if (!(r->curves = AG_ZEROS(r->arena, struct taylor_curve, r->n_curves, err))) return AG_E_MEMORY;
    for (int64_t i = 0; i < r->n_curves; i++) {
        r->curves[i].sample = ((const int64_t *)data)[i];
        if (r->curves[i].sample < 0 || r->curves[i].sample >= r->n_samples)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: /curves/sample: entry %" PRId64 " is row %" PRId64 " of %" PRId64 " samples", path, i,
                           r->curves[i].sample, r->n_samples);
    }
    for (size_t c = 0; c < COUNT(curve_columns); c++) {
        AG_TRY(ag_h5_read(&data, file, curve_columns[c].name, AG_H5_F64, 2, dims, r->arena, err));
        for (int64_t i = 0; i < r->n_curves * TAYLOR_CURVE; i++) {
            char *curve = (char *)&r->curves[i / TAYLOR_CURVE];
            memcpy(curve + curve_columns[c].offset + (size_t)(i % TAYLOR_CURVE) * curve_columns[c].stride,
                   (const double *)data + i, sizeof(double));
        }
    }
fail:
    return status;
}

enum ag_status taylor_results_read(struct taylor_results **out, const char *path, struct ag_error *err) {
    struct taylor_results *r = NULL;
    hid_t file = -1;
    int64_t dims[AG_H5_MAX_RANK];
    *out = NULL;
    enum ag_status status = ag_h5_open(&file, path, err);
    if (status != AG_OK) return status;
    AG_TRY(empty_results(&r, err));
    AG_TRY(ag_provenance_read(&r->from, file, path, TAYLOR_SCHEMA, "attgeo taylor", r->arena, err));
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int64_t value = 0;
        AG_TRY(ag_h5_get_i64(&value, file, ".", numbers[i].name, err));
        memcpy((char *)r + numbers[i].offset, &value, sizeof value);
    }
    if (r->draws < 1 || r->draws > 100000000) {
        status = ag_fail(err, AG_E_FORMAT, "%s: bootstrap_draws %" PRId64 ": out of range", path, r->draws);
        goto fail;
    }
    AG_TRY(read_layers(r, file, path, err));
    AG_TRY(read_records(r, file, path, err));
    status = AG_E_MEMORY;
    if (!(r->summary = AG_ZEROS(r->arena, struct taylor_summary, 1, err))) goto fail;
    for (size_t i = 0; i < COUNT(arrays); i++) {
        void *data = NULL;
        AG_TRY(
            ag_h5_read(&data, file, arrays[i].name, AG_H5_F64, extents(dims, arrays[i].dims, r), dims, r->arena, err));
        memcpy((char *)r->summary + arrays[i].offset, &data, sizeof data);
    }
    AG_TRY(read_samples(r, file, path, err));
    AG_TRY(read_curves(r, file, path, err));
fail:
    if (ag_h5_close(file, err) != AG_OK && status == AG_OK) status = AG_E_IO;
    if (status == AG_OK)
        *out = r;
    else
        taylor_results_free(r);
    return status;
}
