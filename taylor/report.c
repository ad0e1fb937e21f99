/* taylor/report.c: see report.h. */
#include "taylor/report.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "geometry/inference.h"

/* ---- what the samples say ------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Value at rank ceil(p n) of sorted x. */
static double at_rank(const double *x, int64_t n, double p) {
    int64_t rank = (int64_t)ceil(p * (double)n);
    return n == 0 ? NAN : x[rank < 1 ? 0 : rank - 1];
}

/* The statistics of sampled rows that are averaged with an interval. */
enum { INSIDE = 0, CERTIFIED = INSIDE + TAYLOR_EPS, COSINE = CERTIFIED + TAYLOR_EPS, SPAN, AVERAGES };
static double row_value(const struct taylor_sample *row, int which) {
    if (which < CERTIFIED) return row->radius[which].s >= 1;
    if (which < COSINE) return row->radius[which - CERTIFIED].certified;
    return which == COSINE ? row->cosine : row->span;
}

static enum ag_status averages(struct taylor_share out[AVERAGES], const struct taylor_results *r,
                               struct ag_arena *arena, struct ag_error *err) {
    const int64_t U = r->from.units;
    double *sum = AG_ZEROS(arena, double, U *AVERAGES, err), *weight = AG_ZEROS(arena, double, U *AVERAGES, err);
    double value[AVERAGES], lo[AVERAGES], hi[AVERAGES];
    if (!sum || !weight) return AG_E_MEMORY;
    for (int64_t i = 0; i < r->n_samples; i++)
        for (int k = 0; k < AVERAGES; k++) {
            const double x = row_value(&r->samples[i], k);
            if (isnan(x)) continue;
            sum[r->from.unit[r->samples[i].prompt] * AVERAGES + k] += x;
            weight[r->from.unit[r->samples[i].prompt] * AVERAGES + k] += 1;
        }
    const struct geom_ratio ratio = {U, AVERAGES, sum, weight, NULL, NULL};
    geom_ratio_value(value, &ratio);
    const enum ag_status status = geom_bootstrap(lo, hi, NULL, &ratio, r->draws, r->sample_seed, err);
    for (int k = 0; k < AVERAGES; k++) out[k] = (struct taylor_share){value[k], lo[k], hi[k]};
    return status;
}

enum ag_status taylor_judge(struct taylor_verdict *v, const struct taylor_results *r, struct ag_arena *arena,
                            struct ag_error *err) {
    struct taylor_share mean[AVERAGES];
    *v = (struct taylor_verdict){.samples = r->n_samples};
    for (int64_t l = 0; l < r->from.Ls; l++)
        for (int64_t i = 0; i < r->from.P * r->Hq[l]; i++) {
            v->queries += r->records[l].counts[i * TAYLOR_COUNTS + TAYLOR_N_QUERIES];
            v->degenerate += r->records[l].counts[i * TAYLOR_COUNTS + TAYLOR_N_DEGENERATE];
        }
    enum ag_status status = averages(mean, r, arena, err);
    if (status != AG_OK) return status;
    memcpy(v->inside, mean + INSIDE, sizeof v->inside);
    memcpy(v->certified, mean + CERTIFIED, sizeof v->certified);
    v->cosine = mean[COSINE];
    v->span = mean[SPAN];
    double *x = AG_NEW(arena, double, r->n_samples, err);
    v->layer_cosine = AG_NEW(arena, double, r->from.Ls, err);
    v->layer_inside = AG_NEW(arena, double, r->from.Ls, err);
    if (!x || !v->layer_cosine || !v->layer_inside) return AG_E_MEMORY;
    static const double points[3] = {0.05, 0.5, 0.95};
    for (int which = 0; which < TAYLOR_EPS + 4; which++) {
        int64_t n = 0;
        for (int64_t i = 0; i < r->n_samples; i++) {
            const struct taylor_sample *row = &r->samples[i];
            const double y = which < TAYLOR_EPS        ? row->radius[which].s
                             : which == TAYLOR_EPS     ? row->cosine
                             : which == TAYLOR_EPS + 1 ? row->span
                             : which == TAYLOR_EPS + 2
                                 ? (row->gradient_bound > 0 ? row->gradient / row->gradient_bound : NAN)
                                 : (row->v > 0 && row->R != 0
                                        ? (row->bound[TAYLOR_B4X].hi - row->bound[TAYLOR_B4X].lo) / fabs(row->R)
                                        : NAN);
            if (!isnan(y)) x[n++] = y;
        }
        qsort(x, (size_t)n, sizeof *x, ascending);
        if (which < TAYLOR_EPS) v->radius[which] = at_rank(x, n, 0.5);
        for (int k = 0; k < 3; k++) {
            if (which == TAYLOR_EPS) v->cosine_quantiles[k] = at_rank(x, n, points[k]);
            if (which == TAYLOR_EPS + 1) v->span_quantiles[k] = at_rank(x, n, points[k]);
        }
        if (which == TAYLOR_EPS + 2) v->gradient_tightness = at_rank(x, n, 0.5);
        if (which == TAYLOR_EPS + 3) v->b4x_width = at_rank(x, n, 0.5);
    }
    for (int64_t i = 0; i < r->n_samples; i++) v->retrieving += r->samples[i].value > 0;
    for (int64_t l = 0; l < r->from.Ls; l++) {
        int64_t n = 0, inside = 0, rows = 0;
        for (int64_t i = 0; i < r->n_samples; i++) {
            if (r->samples[i].layer != r->from.layer[l]) continue;
            rows++;
            inside += r->samples[i].radius[1].s >= 1;
            if (!isnan(r->samples[i].cosine)) x[n++] = r->samples[i].cosine;
        }
        qsort(x, (size_t)n, sizeof *x, ascending);
        v->layer_cosine[l] = at_rank(x, n, 0.5);
        v->layer_inside[l] = rows > 0 ? (double)inside / (double)rows : NAN;
    }
    return AG_OK;
}

/* ---- heads in order ---------------------------------------------------------------------------------------------------- */

struct head {
    int64_t l, h;
    double share; /* |R| <= 0.5 c */
};
static int by_share(const void *a, const void *b) {
    const struct head *x = a, *y = b;
    if (x->share != y->share) return x->share < y->share ? 1 : -1;
    return x->l != y->l ? (x->l > y->l) - (x->l < y->l) : (x->h > y->h) - (x->h < y->h);
}

/* Heads that carry a share, strongest first; returns how many. */
static int64_t rank_heads(struct head *heads, const struct taylor_results *r) {
    int64_t n = 0;
    for (int64_t l = 0; l < r->from.Ls; l++)
        for (int64_t h = 0; h < r->Hq[l]; h++) {
            const double share = r->summary->share[(l * r->H + h) * TAYLOR_COUNTS + TAYLOR_N_EPS_1];
            if (!isnan(share)) heads[n++] = (struct head){l, h, share};
        }
    qsort(heads, (size_t)n, sizeof *heads, by_share);
    return n;
}

static int64_t all_heads(const struct taylor_results *r) {
    int64_t n = 0;
    for (int64_t l = 0; l < r->from.Ls; l++) n += r->Hq[l];
    return n;
}

/* ---- the page -------------------------------------------------------------------------------------------------------------- */

/* As ag_buf_printf, but what is missing (NaN) shows as "-" in a field of the same width: no page says "nan %". */
static enum ag_status say(struct ag_buf *out, struct ag_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum ag_status say(struct ag_buf *out, struct ag_error *err, const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *at = text; (at = strstr(at, "nan")) != NULL; at += 3) {
        if (at > text && at[-1] == '-') at[-1] = ' ';
        memcpy(at, "  -", 3);
    }
    return ag_buf_printf(out, err, "%s", text);
}
#define SAY(...) AG_TRY(say(out, err, __VA_ARGS__))

static enum ag_status say_share(struct ag_buf *out, const char *before, struct taylor_share s, struct ag_error *err) {
    if (isnan(s.value)) return ag_buf_printf(out, err, "%smissing", before);
    if (isnan(s.lo)) return ag_buf_printf(out, err, "%s%.1f %%", before, 100 * s.value);
    return ag_buf_printf(out, err, "%s%.1f %% [%.1f, %.1f]", before, 100 * s.value, 100 * s.lo, 100 * s.hi);
}

static const double *model_quantile(const struct taylor_results *r, enum taylor_quantity k) {
    return r->summary->model_quantiles + k * TAYLOR_QUANTILES;
}

static enum ag_status say_layers(struct ag_buf *out, const struct taylor_results *r, const struct taylor_verdict *v,
                                 struct ag_error *err) {
    enum ag_status status = AG_OK;
    SAY("\nlayer  |R|<=0.1c  <=0.5c    <=c  median R/c  median sqrt(v)  effective keys  inside at 0.5  cosine\n");
    for (int64_t l = 0; l < r->from.Ls; l++) {
        const struct taylor_share *s = r->summary->layer_share + l * TAYLOR_COUNTS;
        const double *q = r->summary->layer_quantiles + l * TAYLOR_QUANTITIES * TAYLOR_QUANTILES;
        SAY("%5" PRId64 "  %7.1f %%  %5.1f %%  %5.1f %%  %10.3g  %14.3g  %14.3g  %11.1f %%  %6.2f\n", r->from.layer[l],
            100 * s[TAYLOR_N_EPS_0].value, 100 * s[TAYLOR_N_EPS_1].value, 100 * s[TAYLOR_N_EPS_2].value,
            q[TAYLOR_R_OVER_C * TAYLOR_QUANTILES + 3], q[TAYLOR_RADIUS_V * TAYLOR_QUANTILES + 3],
            q[TAYLOR_EFFECTIVE * TAYLOR_QUANTILES + 3], 100 * v->layer_inside[l], v->layer_cosine[l]);
    }
fail:
    return status;
}

static enum ag_status say_heads(struct ag_buf *out, const struct taylor_results *r, struct ag_arena *arena,
                                struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct head *heads = AG_NEW(arena, struct head, all_heads(r), err);
    if (heads == NULL) return AG_E_MEMORY;
    const int64_t n = rank_heads(heads, r), show = n < 5 ? n : 5;
    SAY("heads        most queries with |R| <= 0.5 c:");
    for (int64_t i = 0; i < show; i++)
        SAY("%s L%" PRId64 "H%" PRId64 " %.0f %%", i ? "," : "", r->from.layer[heads[i].l], heads[i].h,
            100 * heads[i].share);
    SAY("\n             fewest:");
    for (int64_t i = 0; i < show; i++)
        SAY("%s L%" PRId64 "H%" PRId64 " %.0f %%", i ? "," : "", r->from.layer[heads[n - 1 - i].l], heads[n - 1 - i].h,
            100 * heads[n - 1 - i].share);
    SAY("\n");
fail:
    return status;
}

/* For and against, from the numbers alone: the model of the value, the model of the direction, the distance, the bounds. */
static enum ag_status say_verdict(struct ag_buf *out, const struct taylor_results *r, const struct taylor_verdict *v,
                                  struct ag_error *err) {
    enum ag_status status = AG_OK;
    const struct taylor_share *share = r->summary->model_share;
    int64_t good = 0, bad = 0, straight = 0, judged = 0;
    for (int64_t l = 0; l < r->from.Ls; l++) {
        const double half = r->summary->layer_share[l * TAYLOR_COUNTS + TAYLOR_N_EPS_1].value;
        good += half >= 0.5;
        bad += half < 0.5;
        judged += !isnan(v->layer_cosine[l]);
        straight += v->layer_cosine[l] >= 0.9;
    }
    const double *order1 = model_quantile(r, TAYLOR_C), *order2 = model_quantile(r, TAYLOR_ABS_R);
    const bool helps = order2[3] < order1[3], comparable = !isnan(order1[3]);
    SAY("\nfor          in %" PRId64 " of %" PRId64 " layers at least half of the queries have |R| <= 0.5 c", good,
        r->from.Ls);
    if (judged > 0)
        SAY("; in %" PRId64 " of %" PRId64
            " the median cosine of Sigma q with what softmax adds to the mean is 0.9 or more",
            straight, judged);
    if (helps) SAY("; order 2 lowers the median error of order 1 from %.3g to %.3g", order1[3], order2[3]);
    SAY("\nagainst      in %" PRId64 " of %" PRId64 " layers at least half of the queries have |R| > 0.5 c", bad,
        r->from.Ls);
    if (judged > 0) SAY("; in %" PRId64 " of %" PRId64 " the median cosine is below 0.9", judged - straight, judged);
    if (!helps && comparable)
        SAY("; order 2 does not lower the median error of order 1 (%.3g against %.3g)", order2[3], order1[3]);
    if (isnan(share[TAYLOR_N_PROVED_B4].value))
        SAY("; no constant state (B4) carries a window\n");
    else
        SAY("; a constant state (B4) proves |R| <= c for %.1f %% of the queries\n",
            100 * share[TAYLOR_N_PROVED_B4].value);
fail:
    return status;
}

enum ag_status taylor_report(struct ag_buf *out, const struct taylor_results *r, struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    struct taylor_verdict v;
    struct ag_arena *arena = ag_arena_new("taylor report");
    if (arena == NULL) return ag_fail(err, AG_E_MEMORY, "taylor: out of memory");
    AG_TRY(taylor_judge(&v, r, arena, err));
    const struct taylor_share *share = r->summary->model_share;
    const double *ratio = model_quantile(r, TAYLOR_R_OVER_C), *radius = model_quantile(r, TAYLOR_RADIUS_V),
                 *norm = model_quantile(r, TAYLOR_Q_NORM);
    const double *effective = model_quantile(r, TAYLOR_EFFECTIVE), *largest = model_quantile(r, TAYLOR_LARGEST);
    AG_TRY(ag_buf_printf(out, err,
                         "model        %s, tap %s%s; %" PRId64 " layers, up to %" PRId64 " query heads; %" PRId64
                         " prompts in %" PRId64 " units\n",
                         r->from.model, ag_tap_names[r->from.tap],
                         r->from.tap == r->from.last_tap ? " (what the read sees)" : " (NOT what the read sees)",
                         r->from.Ls, r->H, r->from.P, r->from.units));
    SAY("queries      %" PRId64 " causal ones, %" PRId64 " of them with v = 0 (one key, or equal logits); %" PRId64
        " sampled in full, %" PRId64 " of which retrieve a value\n",
        v.queries, v.degenerate, v.samples, v.retrieving);
    SAY("premise      the second-order model holds at eps where |R| <= eps c:");
    AG_TRY(say_share(out, " eps 0.1 ", share[TAYLOR_N_EPS_0], err));
    AG_TRY(say_share(out, ", 0.5 ", share[TAYLOR_N_EPS_1], err));
    AG_TRY(say_share(out, ", 1 ", share[TAYLOR_N_EPS_2], err));
    SAY(" of the queries\nremainder    R/c: median %.3g, 5 to 95 %% of the queries %.3g to %.3g\n", ratio[3], ratio[1],
        ratio[5]);
    SAY("distance     |q| (scaled): median %.3g, 5 to 95 %% %.3g to %.3g; curvature radius sqrt(v): median %.3g, %.3g "
        "to %.3g\n",
        norm[3], norm[1], norm[5], radius[3], radius[1], radius[5]);
    SAY("isotropy     effective keys: median %.3g, 5 to 95 %% %.3g to %.3g; largest weight: median %.3g (isotropic: "
        "1/t)\n",
        effective[3], effective[1], effective[5], largest[3]);
    SAY("orders       median |A - A_n| at order 0 to 4: %.3g, %.3g, %.3g, %.3g, %.3g\n",
        model_quantile(r, TAYLOR_ERROR_0)[3], model_quantile(r, TAYLOR_C)[3], model_quantile(r, TAYLOR_ABS_R)[3],
        model_quantile(r, TAYLOR_ERROR_3)[3], model_quantile(r, TAYLOR_ERROR_4)[3]);
    if (v.samples > 0) {
        SAY("radius       sampled queries inside their trust radius:");
        AG_TRY(say_share(out, " eps 0.1 ", v.inside[0], err));
        AG_TRY(say_share(out, ", 0.5 ", v.inside[1], err));
        AG_TRY(say_share(out, ", 1 ", v.inside[2], err));
        SAY("; median radius %.3g, %.3g, %.3g; certified %.1f, %.1f, %.1f %%\n", v.radius[0], v.radius[1], v.radius[2],
            100 * v.certified[0].value, 100 * v.certified[1].value, 100 * v.certified[2].value);
        SAY("direction    cosine of Sigma q with grad A - mu: mean %.3f", v.cosine.value);
        if (!isnan(v.cosine.lo)) SAY(" [%.3f, %.3f]", v.cosine.lo, v.cosine.hi);
        SAY(", median %.3f, 5 to 95 %% %.3f to %.3f; share of grad A - mu within\n             span(U_%" PRId64
            "): median %.3f; |e| / (D_k c): median %.3g\n",
            v.cosine_quantiles[1], v.cosine_quantiles[0], v.cosine_quantiles[2], r->r, v.span_quantiles[1],
            v.gradient_tightness);
    }
    SAY("bounds       median width/|R| of B1 to B4: %.3g, %.3g, %.3g, %.3g", model_quantile(r, TAYLOR_WIDTH_B1)[3],
        model_quantile(r, TAYLOR_WIDTH_B2)[3], model_quantile(r, TAYLOR_WIDTH_B3)[3],
        model_quantile(r, TAYLOR_WIDTH_B4)[3]);
    if (v.samples > 0) SAY("; B4x %.3g", v.b4x_width);
    SAY("\n             sign of R fixed for %.1f, %.1f, %.1f, %.1f %%; |R| <= c proved for %.1f, %.1f, %.1f, %.1f %% "
        "of the queries\n",
        100 * share[TAYLOR_N_SIGN_B1].value, 100 * share[TAYLOR_N_SIGN_B2].value, 100 * share[TAYLOR_N_SIGN_B3].value,
        100 * share[TAYLOR_N_SIGN_B4].value, 100 * share[TAYLOR_N_PROVED_B1].value,
        100 * share[TAYLOR_N_PROVED_B2].value, 100 * share[TAYLOR_N_PROVED_B3].value,
        100 * share[TAYLOR_N_PROVED_B4].value);
    AG_TRY(say_heads(out, r, arena, err));
    AG_TRY(say_verdict(out, r, &v, err));
    AG_TRY(say_layers(out, r, &v, err));
    if (r->from.units < 2) SAY("\nOne unit: no intervals.\n");
    if (v.queries == v.degenerate || v.samples == 0) SAY("\n-: missing.\n");
fail:
    ag_arena_free(arena);
    return status;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------- */

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }
static json_t *share_json(struct taylor_share s) {
    return json_pack("{s:o,s:o,s:o}", "value", number(s.value), "lo", number(s.lo), "hi", number(s.hi));
}
static json_t *numbers_json(const double *x, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, number(x[i]));
    return list;
}

/* Shares and quantiles of a layer or of the model. */
static json_t *part_json(const struct taylor_share *share, const double *quantiles, const struct taylor_share *median) {
    json_t *part = json_object(), *shares = json_object(), *lists = json_object(), *medians = json_object();
    for (int c = 0; c < TAYLOR_COUNTS; c++)
        if (c != TAYLOR_N_QUERIES) json_object_set_new(shares, taylor_count_names[c], share_json(share[c]));
    for (int k = 0; k < TAYLOR_QUANTITIES; k++)
        json_object_set_new(lists, taylor_quantity_names[k],
                            numbers_json(quantiles + k * TAYLOR_QUANTILES, TAYLOR_QUANTILES));
    for (int m = 0; m < TAYLOR_MEDIANS; m++)
        json_object_set_new(medians, taylor_median_names[m], share_json(median[m]));
    json_object_set_new(part, "shares", shares);
    json_object_set_new(part, "quantiles", lists);
    json_object_set_new(part, "medians_over_units", medians);
    return part;
}

enum ag_status taylor_report_json(struct ag_buf *out, const struct taylor_results *r, struct ag_error *err) {
    struct taylor_verdict v;
    struct ag_arena *arena = ag_arena_new("taylor report");
    if (arena == NULL) return ag_fail(err, AG_E_MEMORY, "taylor: out of memory");
    enum ag_status status = taylor_judge(&v, r, arena, err);
    struct head *heads = status == AG_OK ? AG_NEW(arena, struct head, all_heads(r), err) : NULL;
    if (heads == NULL) {
        ag_arena_free(arena);
        return status == AG_OK ? AG_E_MEMORY : status;
    }
    json_t *root =
        json_pack("{s:s,s:s,s:s,s:s,s:b,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "schema", "attgeo-taylor-report-1", "model",
                  r->from.model, "architecture", r->from.architecture, "tap", ag_tap_names[r->from.tap],
                  "softmax_sees_tap", r->from.tap == r->from.last_tap, "checkpoint_sha256", r->from.checkpoint_sha256,
                  "prompts_sha256", r->from.prompts_sha256, "prompts", (json_int_t)r->from.P, "units",
                  (json_int_t)r->from.units, "queries", (json_int_t)v.queries, "degenerate", (json_int_t)v.degenerate,
                  "sampled", (json_int_t)v.samples, "retrieving", (json_int_t)v.retrieving);
    json_t *layers = json_array(), *sample = json_object(), *order = json_array();
    json_object_set_new(root, "quantile_points", numbers_json(taylor_quantile_points, TAYLOR_QUANTILES));
    json_object_set_new(root, "all",
                        part_json(r->summary->model_share, r->summary->model_quantiles, r->summary->model_median));
    for (int64_t l = 0; l < r->from.Ls; l++) {
        json_t *layer = part_json(r->summary->layer_share + l * TAYLOR_COUNTS,
                                  r->summary->layer_quantiles + l * TAYLOR_QUANTITIES * TAYLOR_QUANTILES,
                                  r->summary->layer_median + l * TAYLOR_MEDIANS);
        json_object_set_new(layer, "layer", json_integer(r->from.layer[l]));
        json_object_set_new(layer, "median_cosine", number(v.layer_cosine[l]));
        json_object_set_new(layer, "inside_eps_0.5", number(v.layer_inside[l]));
        json_array_append_new(layers, layer);
    }
    json_object_set_new(root, "layers", layers);
    for (int e = 0; e < TAYLOR_EPS; e++) {
        char name[32];
        snprintf(name, sizeof name, "eps_%g", taylor_eps[e]);
        json_object_set_new(sample, name,
                            json_pack("{s:o,s:o,s:o}", "inside", share_json(v.inside[e]), "certified",
                                      share_json(v.certified[e]), "median_radius", number(v.radius[e])));
    }
    json_object_set_new(sample, "cosine", share_json(v.cosine));
    json_object_set_new(sample, "cosine_5_50_95", numbers_json(v.cosine_quantiles, 3));
    json_object_set_new(sample, "span", share_json(v.span));
    json_object_set_new(sample, "span_5_50_95", numbers_json(v.span_quantiles, 3));
    json_object_set_new(sample, "median_gradient_over_bound", number(v.gradient_tightness));
    json_object_set_new(sample, "median_width_B4x_over_abs_R", number(v.b4x_width));
    json_object_set_new(root, "sample", sample);
    const int64_t n = rank_heads(heads, r);
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(order, json_pack("{s:I,s:I,s:o}", "layer", (json_int_t)r->from.layer[heads[i].l], "head",
                                               (json_int_t)heads[i].h, "share_eps_0.5", number(heads[i].share)));
    json_object_set_new(root, "heads_strongest_first", order);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(root);
    status = text == NULL ? ag_fail(err, AG_E_MEMORY, "taylor: out of memory") : ag_buf_printf(out, err, "%s\n", text);
    free(text);
    ag_arena_free(arena);
    return status;
}
