/* plots/taylor_heatmap.c: every layer and query head: the median of R/c, and how many sampled queries lie inside the
 * trust radius. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "plots/taylor_figure.h"

enum { HALF = 1 }; /* index of eps 0.5, in taylor_eps and from TAYLOR_N_EPS_0 */

struct counts {
    int64_t cells, missing, infinite, clipped, negative, finite;
};

/* A cell: value, what of, its colour in [-1, 1] or [0, 1], and the number in it. */
static void write_cell(FILE *tsv, const char *panel, int64_t layer, int64_t row, int64_t h, double value, int64_t n,
                       double scale, double unit, int decimals, struct counts *counts) {
    const char *state = "ok";
    char label[64] = " ";
    double colour = NAN;
    counts->cells++;
    if (isnan(value)) {
        state = "missing";
        counts->missing++;
    } else if (isinf(value)) {
        state = "infinite";
        snprintf(label, sizeof label, "%s∞", value < 0 ? "−" : "+");
        counts->infinite++;
    } else {
        counts->finite++;
        counts->negative += value < 0;
        colour = value / scale;
        if (fabs(colour) > 1) {
            state = "clipped";
            colour = value < 0 ? -1 : 1;
            counts->clipped++;
        }
        if (fabs(value / unit) < 1e4) {
            plot_label(label, value / unit, decimals);
        } else {
            snprintf(label, sizeof label, "%s1e%.0f", value < 0 ? "−" : "", floor(log10(fabs(value / unit))));
        }
    }
    fprintf(tsv, "%s\t%" PRId64 "\t%" PRId64, panel, layer, h);
    plot_cell(tsv, value);
    fprintf(tsv, "\t%" PRId64 "\t%" PRId64, n, row);
    plot_cell(tsv, colour);
    fprintf(tsv, "\t%s\t%s\n", state, label);
}

/* How many sampled queries a cell has, and how many of them have trust radius 1. */
static void count_inside(int64_t *n, int64_t *inside, const struct taylor_results *r, const int64_t *slot) {
    for (int64_t i = 0; i < r->n_samples; i++) {
        const struct taylor_sample *s = &r->samples[i];
        const int64_t l = slot[s->layer];
        if (l < 0) continue;
        n[l * r->H + s->head]++;
        inside[l * r->H + s->head] += s->radius[HALF].s >= 1;
    }
}

enum ag_status plot_write_taylor_heatmap(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                         struct ag_error *err) {
    const struct taylor_results *r = choice->taylor;
    const int64_t Ls = r->from.Ls, cells = Ls * r->H;
    double *size = AG_NEW(arena, double, cells, err);
    int64_t *n = AG_ZEROS(arena, int64_t, cells, err), *inside = AG_ZEROS(arena, int64_t, cells, err), m = 0,
            fewest = INT64_MAX, most = 0;
    struct plot_range range;
    struct counts ratio = {0}, share = {0};
    struct plot_rows rows = {NULL, NULL, 0};
    struct ag_buf labels = {0};
    enum ag_status status = AG_OK;
    const int64_t *slot = plot_taylor_slots(r, arena, err);
    if (!size || !n || !inside || !slot) return AG_E_MEMORY;
#define MEDIAN(l, h)                                                                                                   \
    (r->summary->quantiles[(((l)*r->H + (h)) * TAYLOR_QUANTITIES + TAYLOR_R_OVER_C) * TAYLOR_QUANTILES +               \
                           TAYLOR_QUANTILES / 2])
    for (int64_t l = 0; l < Ls; l++)
        for (int64_t h = 0; h < r->Hq[l]; h++)
            if (isfinite(MEDIAN(l, h))) size[m++] = fabs(MEDIAN(l, h));
    AG_TRY(plot_choose_range(&range, size, m, choice->range, "|median|", arena, err));
    count_inside(n, inside, r, slot);
    const bool sampled = r->n_samples > 0;
    const int decimals = range.half < 0.1 ? 3 : range.half < 10 ? 2 : 1;
    AG_TRY(plot_rows_begin(&rows, err));
    for (int64_t l = 0; l < Ls; l++)
        for (int64_t h = 0; h < r->Hq[l]; h++)
            write_cell(rows.stream, "median", r->from.layer[l], l, h, MEDIAN(l, h), -1, range.half, 1, decimals,
                       &ratio);
    fputs("\n\n", rows.stream);
    for (int64_t l = 0; l < Ls; l++)
        for (int64_t h = 0; h < r->Hq[l]; h++) {
            const int64_t i = l * r->H + h;
            double value = r->summary->share[i * TAYLOR_COUNTS + TAYLOR_N_EPS_0 + HALF];
            if (sampled) value = n[i] > 0 ? (double)inside[i] / (double)n[i] : NAN;
            write_cell(rows.stream, sampled ? "inside" : "share", r->from.layer[l], l, h, value, sampled ? n[i] : -1, 1,
                       0.01, 0, &share);
            fewest = n[i] < fewest ? n[i] : fewest;
            most = n[i] > most ? n[i] : most;
        }
    AG_TRY(plot_rows_end(&rows, err));
    AG_TRY(
        plot_taylor_header(tsv, "taylor-heatmap", "Quadratic model by layer and query head", "", choice, arena, err));
    plot_header(tsv, "panels", "2");
    plot_header(tsv, "rows", "%" PRId64, Ls);
    plot_header(tsv, "columns", "%" PRId64, r->H);
    for (int64_t l = 0; l < Ls; l++)
        AG_TRY(ag_buf_printf(&labels, err, "%s%" PRId64, l > 0 ? " " : "", r->from.layer[l]));
    plot_header(tsv, "row_labels", "%s", labels.data);
    const bool numbers = r->H <= 40 && Ls * (r->H > 12 ? 2 : 1) <= 130; /* the room for them */
    plot_header(tsv, "numbers", "%d", numbers);
    plot_header(tsv, "range", "%.9g", range.half);
    static const double at[5] = {-1, -0.5, 0, 0.5, 1};
    for (int i = 0; i < 5; i++)
        plot_header_n(tsv, "tick", i + 1, "%s%.3g", at[i] < 0 ? "−" : "", fabs(at[i]) * range.half);
    plot_header(tsv, "panel1", "median of R/c");
    plot_header(tsv, "panel1_note1", "all causal queries");
    if (ratio.finite == 0)
        plot_header(tsv, "panel1_note2", "no finite value");
    else
        plot_header(tsv, "panel1_note2", "%.0f %% of cells < 0", 100.0 * (double)ratio.negative / (double)ratio.finite);
    if (sampled) {
        plot_header(tsv, "panel2", "%% inside the trust radius");
        plot_header(tsv, "panel2_note1", "ε = 0.5: |R| ≤ 0.5 c on all of [0, q]");
        if (fewest == most)
            plot_header(tsv, "panel2_note2", "n = %" PRId64 " sampled queries a cell", most);
        else
            plot_header(tsv, "panel2_note2", "n = %" PRId64 " to %" PRId64 " sampled queries a cell", fewest, most);
    } else {
        plot_header(tsv, "panel2", "%% with |R| ≤ 0.5 c");
        plot_header(tsv, "panel2_note1", "at q itself, all causal queries:");
        plot_header(tsv, "panel2_note2", "no query was sampled");
    }
    plot_header(tsv, "note1",
                "R/c: what the quadratic term gets wrong, as a share of what the normaliser adds; 0: the second-order "
                "model is right; < 0: it overshoots.");
    plot_header(tsv, "note2", "Colours on the left: ±%.3g (%s).%s", range.half, range.how,
                numbers ? "" : " No room for numbers: + marks positive cells.");
    plot_header(tsv, "note3",
                "Of %" PRId64 " cells: %" PRId64 " missing (hatched), %" PRId64 " infinite (grey), %" PRId64
                " beyond the range (end colour).%s",
                ratio.cells + share.cells, ratio.missing + share.missing, ratio.infinite + share.infinite,
                ratio.clipped, ratio.cells < cells ? " Blank: a layer with fewer heads." : "");
    plot_header(tsv, "note4", "Medians are read from histograms of 16 bins an octave: right to 2.2 %%.");
    fputs("panel\tlayer\thead\tvalue\tn\trow\tcolour\tstate\tlabel\n", tsv);
    fwrite(rows.text, 1, rows.size, tsv);
#undef MEDIAN
fail:
    plot_rows_free(&rows);
    ag_buf_free(&labels);
    return status;
}
