/* plots/taylor_radius.c: R(s q)/c(s q) along a few sampled queries, from q = 0 to the query, with its B3 enclosure and
 * the trust radii. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "plots/taylor_figure.h"

enum { MOST_HEADS = 3, MOST_CURVES = 4 };
static const double lowest = -3; /* what lies below is clipped, and counted */

struct head {
    int64_t layer, head;
    const char *what;
    int64_t curve[MOST_CURVES], n, stored; /* indices into results->curves */
};

static int choose_heads(struct head *out, const struct plot_choice *choice) {
    const struct taylor_results *r = choice->taylor;
    int n = 0;
    if (choice->head_given) {
        out[n++] = (struct head){choice->layer, choice->head, "chosen", {0}, 0, 0};
    } else {
        const struct head three[MOST_HEADS] = {{choice->end_layer[0], choice->end_head[0], "lowest share", {0}, 0, 0},
                                               {choice->layer, choice->head, "median share", {0}, 0, 0},
                                               {choice->end_layer[1], choice->end_head[1], "highest share", {0}, 0, 0}};
        for (int i = 0; i < MOST_HEADS; i++) {
            const bool again = n > 0 && out[n - 1].layer == three[i].layer && out[n - 1].head == three[i].head;
            if (!again)
                out[n++] = three[i];
            else
                out[n - 1].what = n == 1 && i == 2 ? "the only head" : out[n - 1].what;
        }
    }
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < r->n_curves; i++) {
            const struct taylor_sample *s = &r->samples[r->curves[i].sample];
            if (s->layer != out[k].layer || s->head != out[k].head) continue;
            out[k].stored++;
            if (out[k].n < MOST_CURVES) out[k].curve[out[k].n++] = i;
        }
    return n;
}

/* R/c between two grid points, linear. */
static double at(const struct taylor_curve *curve, double s) {
    const double x = s * (TAYLOR_CURVE - 1);
    const int i = x >= TAYLOR_CURVE - 1 ? TAYLOR_CURVE - 2 : (int)x;
    return curve->ratio[i] + (x - i) * (curve->ratio[i + 1] - curve->ratio[i]);
}

struct counts {
    int64_t points, missing, clipped, open;
};

static void write_where(FILE *tsv, const char *kind, const struct taylor_sample *s) {
    fprintf(tsv, "%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64, kind, s->layer, s->head, s->prompt,
            s->position);
}

/* Two indices: the curve, then the radii that lie before the query. */
static void write_curve(FILE *tsv, const struct taylor_results *r, const struct taylor_curve *curve, double bottom,
                        struct counts *c) {
    const struct taylor_sample *s = &r->samples[curve->sample];
    for (int k = 0; k < TAYLOR_CURVE; k++) {
        const double ratio = curve->ratio[k], lo = curve->bound[k].lo, hi = curve->bound[k].hi;
        const bool there = isfinite(ratio);
        c->points++;
        c->missing += !there;
        c->clipped += there && ratio < bottom;
        c->open += there && !isfinite(lo);
        write_where(tsv, "curve", s);
        plot_cell(tsv, (double)k / (TAYLOR_CURVE - 1));
        plot_cell(tsv, ratio);
        plot_cell(tsv, lo);
        plot_cell(tsv, hi);
        plot_cell(tsv, there ? fmax(ratio, bottom) : NAN);
        plot_cell(tsv, there ? fmax(lo, bottom) : NAN);
        plot_cell(tsv, there ? fmax(fmin(hi, 1), bottom) : NAN);
        fputc('\n', tsv);
    }
    fputs("\n\n", tsv);
    for (int e = 0; e < TAYLOR_EPS; e++) {
        const double x = s->radius[e].s, y = x < 1 ? at(curve, x) : NAN;
        const double crossing = isnan(y) ? NAN
                                : y < 0  ? -taylor_eps[e]
                                         : taylor_eps[e]; /* there |R| = eps c, by definition */
        write_where(tsv, "radius", s);
        plot_cell(tsv, x);
        plot_cell(tsv, x < 1 ? crossing : NAN);
        plot_cell(tsv, taylor_eps[e]);
        plot_cell(tsv, s->radius[e].proved);
        plot_cell(tsv, x < 1 && crossing >= bottom ? crossing : NAN);
        fprintf(tsv, "\t%d\tNaN\n", s->radius[e].certified);
    }
}

static void write_panel_header(FILE *tsv, int64_t panel, const struct head *head, const struct taylor_sample *s) {
    char text[128];
    int used = 0;
    plot_header_n(tsv, "panel", panel, "layer %" PRId64 ", head %" PRId64 " (%s)", head->layer, head->head, head->what);
    plot_header_n(tsv, "where", panel, "prompt %" PRId64 ", token %" PRId64 "%s; %" PRId64 " key%s", s->prompt,
                  s->position,
                  s->value == 2   ? ", headline"
                  : s->value == 1 ? ", retrieves"
                                  : "",
                  s->keys, s->keys == 1 ? "" : "s");
    for (int e = 0; e < TAYLOR_EPS; e++) {
        if (s->radius[e].s >= 1)
            used += snprintf(text + used, sizeof text - (size_t)used, "%s1", e > 0 ? " · " : "");
        else
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%.3f", e > 0 ? " · " : "", s->radius[e].s);
        used += snprintf(text + used, sizeof text - (size_t)used, "%s", s->radius[e].certified ? "*" : "");
    }
    plot_header_n(tsv, "radii", panel, "radii %s", text);
}

enum ag_status plot_write_taylor_radius(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                        struct ag_error *err) {
    const struct taylor_results *r = choice->taylor;
    struct head heads[MOST_HEADS] = {{0}};
    const int n = choose_heads(heads, choice);
    struct plot_rows rows = {NULL, NULL, 0};
    struct counts c = {0, 0, 0, 0};
    double least = 0;
    int64_t across = 0, panels = 0, stored = 0, drawn = 0;
    char besides[96] = "";
    enum ag_status status = AG_OK;
    for (int k = 0; k < n; k++) {
        across = heads[k].n > across ? heads[k].n : across;
        stored += heads[k].stored;
        drawn += heads[k].n;
        for (int64_t i = 0; i < heads[k].n; i++)
            for (int s = 0; s < TAYLOR_CURVE; s++) {
                const double ratio = r->curves[heads[k].curve[i]].ratio[s];
                if (isfinite(ratio)) least = fmin(least, ratio);
            }
    }
    const double bottom = fmax(lowest, least < -0.45 ? floor(2 * least - 0.2) / 2 : -0.6);
    AG_TRY(plot_rows_begin(&rows, err));
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < heads[k].n; i++) {
            if (k > 0 || i > 0) fputs("\n\n", rows.stream);
            write_curve(rows.stream, r, &r->curves[heads[k].curve[i]], bottom, &c);
        }
    AG_TRY(plot_rows_end(&rows, err));
    if (n == 1)
        snprintf(besides, sizeof besides, "layer %" PRId64 ", query head %" PRId64, heads[0].layer, heads[0].head);
    AG_TRY(plot_taylor_header(tsv, "taylor-radius", "Remainder along the query", besides, choice, arena, err));
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < heads[k].n; i++) {
            panels++;
            write_panel_header(tsv, panels, &heads[k], &r->samples[r->curves[heads[k].curve[i]].sample]);
            plot_header_n(tsv, "row", panels, "%d", k);
            plot_header_n(tsv, "column", panels, "%" PRId64, i);
            const struct taylor_curve *curve = &r->curves[heads[k].curve[i]];
            int64_t any = 0;
            for (int s = 0; s < TAYLOR_CURVE; s++) any += isfinite(curve->ratio[s]);
            if (any == 0) plot_header_n(tsv, "empty", panels, "v = 0: no R/c");
        }
    plot_header(tsv, "panels", "%" PRId64, panels);
    plot_header(tsv, "across", "%" PRId64, across > 0 ? across : 1);
    plot_header(tsv, "down", "%d", across > 0 ? n : 1);
    plot_header(tsv, "y_min", "%.9g", bottom);
    for (int e = 0; e < TAYLOR_EPS; e++) plot_header_n(tsv, "eps", e + 1, "%.9g", taylor_eps[e]);
    if (panels == 0)
        plot_header(
            tsv, "none", "%s",
            r->n_curves == 0
                ? "the results file holds no curves: made with --curves 0, without samples, or before there were any"
                : "the results file holds no curve of this head");
    plot_header(tsv, "note1",
                "Line: exact R/c at s q, 0 ≤ s ≤ 1; s = 1 is the query the model forms. Grey: its enclosure by B3 at "
                "s; R/c < 1 always.");
    plot_header(tsv, "note2",
                "Levels: ±0.1, ±0.5, ±1. Marks: trust radii, the first s with |R| > ε c for ε = 0.1 ○, 0.5 □, 1 △; 1: "
                "none before the query; *: certified.");
    plot_header(tsv, "note3",
                "Of %" PRId64 " points: %" PRId64 " missing (v = 0 or c lost to rounding), %" PRId64
                " below the axis (drawn at its end); at %" PRId64 " the enclosure has no lower end.",
                c.points, c.missing, c.clipped, c.open);
    plot_header(tsv, "note4",
                "Heads by their share of queries with |R| ≤ 0.5 c; %" PRId64 " of the %" PRId64
                " curves kept for %s are drawn.",
                drawn, stored, n == 1 ? "this head" : "these heads");
    fputs("kind\tlayer\thead\tprompt\tposition\ts\tratio\tlo\thi\tdrawn\tdrawn_lo\tdrawn_hi\n", tsv);
    fwrite(rows.text, 1, rows.size, tsv);
fail:
    plot_rows_free(&rows);
    return status;
}
