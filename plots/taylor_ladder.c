/* plots/taylor_ladder.c: one head's sampled queries in the order of R, each with the five enclosures around the exact
 * R. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plots/taylor_figure.h"

enum { MOST_QUERIES = 120 }; /* more than that and a bar is thinner than a printed line */
static const char *const bound_names[TAYLOR_SAMPLE_BOUNDS] = {"B1", "B2", "B3", "B4", "B4x"};
static const char *const bound_about[TAYLOR_SAMPLE_BOUNDS] = {"Lagrange", "self-concordant", "Chebyshev-Markov",
                                                              "constant state", "exact radius"};

static int by_R(const void *a, const void *b) {
    const struct taylor_sample *x = *(const struct taylor_sample *const *)a,
                               *y = *(const struct taylor_sample *const *)b;
    if (x->R != y->R) return x->R < y->R ? -1 : 1;
    return (x > y) - (x < y); /* rows of one array */
}

/* The axis: signed logarithm sign(y) log10(1 + |y| / linear), of [-most, most]. Both powers of ten. */
struct axis {
    double linear, most;
};
static struct axis choose_axis(const struct taylor_sample *const *rows, int64_t n, double *scratch) {
    double R = 0, end = 0;
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++) {
        const double size = fabs(rows[i]->R);
        if (size > 0 && isfinite(size)) scratch[m++] = size;
        R = plot_drawable(size) ? fmax(R, size) : R;
        for (int k = 0; k < TAYLOR_SAMPLE_BOUNDS; k++) {
            if (plot_drawable(rows[i]->bound[k].lo)) end = fmax(end, -rows[i]->bound[k].lo);
            if (plot_drawable(rows[i]->bound[k].hi)) end = fmax(end, rows[i]->bound[k].hi);
        }
    }
    qsort(scratch, (size_t)m, sizeof scratch[0], plot_compare_doubles);
    /* a bound may be e^700: what lies further than this is clipped, and counted */
    double most = R > 0 ? fmax(fmin(end, 1e3 * R), R) : end;
    if (!(most > 0)) most = 1;
    struct axis axis = {0, pow(10, ceil(log10(most) - 1e-9))};
    const double small = m > 0 ? plot_quantile(scratch, m, 0.1) : axis.most / 1e3;
    axis.linear = pow(10, floor(log10(fmin(fmax(small, axis.most * 1e-9), axis.most / 10)) + 1e-9));
    return axis;
}

/* An end of an interval as it is drawn: inside the axis; state -1, 1: clipped there, 2: infinite. */
static double drawn_end(double x, const struct axis *axis, int *state) {
    *state = isinf(x) ? 2 : x < -axis->most ? -1 : x > axis->most ? 1 : 0;
    return fmin(fmax(x, -axis->most), axis->most);
}

/* What is counted of one bound: of all the head's sampled queries, and of those drawn. */
struct summary {
    int64_t below, above, sign;
    int64_t infinite, clipped;
};

static void count_bound(struct summary *s, int k, const struct taylor_sample *const *rows, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        s->below += isinf(rows[i]->bound[k].lo) != 0; /* glibc: -1 for minus infinity */
        s->above += isinf(rows[i]->bound[k].hi) != 0;
        s->sign += rows[i]->bound[k].lo > 0 || rows[i]->bound[k].hi < 0;
    }
}

static void write_bound(FILE *tsv, int k, const struct taylor_sample *const *rows, int64_t n, const struct axis *axis,
                        struct summary *s) {
    for (int64_t i = 0; i < n; i++) {
        const struct taylor_sample *row = rows[i];
        int lo_state, hi_state, none;
        const double lo = drawn_end(row->bound[k].lo, axis, &lo_state),
                     hi = drawn_end(row->bound[k].hi, axis, &hi_state);
        s->infinite += (lo_state == 2) + (hi_state == 2);
        s->clipped += (abs(lo_state) == 1) + (abs(hi_state) == 1);
        fprintf(tsv, "%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%s\t%d", bound_names[k], i + 1, row->prompt,
                row->position, ag_role_names[row->role < AG_ROLE_COUNT ? row->role : AG_ROLE_SPECIAL], row->value);
        plot_cell(tsv, row->R);
        plot_cell(tsv, row->bound[k].lo);
        plot_cell(tsv, row->bound[k].hi);
        plot_cell(tsv, drawn_end(row->R, axis, &none));
        plot_cell(tsv, lo);
        plot_cell(tsv, hi);
        fprintf(tsv, "\t%d\t%d", lo_state, hi_state);
        plot_cell(tsv, drawn_end(row->bound[TAYLOR_B3].lo, axis, &none));
        plot_cell(tsv, drawn_end(row->bound[TAYLOR_B3].hi, axis, &none));
        fputc('\n', tsv);
    }
    if (n == 0) {
        fprintf(tsv, "%s", bound_names[k]);
        for (int c = 0; c < 15; c++) fputs("\tNaN", tsv);
        fputc('\n', tsv);
    }
}

static void write_heading(FILE *tsv, int k, const struct taylor_sample *const *rows, int64_t n, const struct summary *s,
                          double *scratch) {
    int64_t m = 0, v = 0;
    for (int64_t i = 0; i < n; i++) {
        v += rows[i]->v > 0;
        const double width = rows[i]->bound[k].hi - rows[i]->bound[k].lo;
        if (rows[i]->v > 0) scratch[m++] = isfinite(width) && rows[i]->R != 0 ? width / fabs(rows[i]->R) : 1e300;
    }
    qsort(scratch, (size_t)m, sizeof scratch[0], plot_compare_doubles);
    const double median = plot_quantile(scratch, m, 0.5);
    plot_header_n(tsv, "panel", k + 1, "%s", bound_names[k]);
    plot_header_n(tsv, "about", k + 1, "%s", bound_about[k]);
    if (isnan(median))
        plot_header_n(tsv, "width", k + 1, "no query with v > 0");
    else if (median > 1e200)
        plot_header_n(tsv, "width", k + 1, "median width ∞");
    else if (median > 9999)
        plot_header_n(tsv, "width", k + 1, "median width %.1g |R|", median);
    else
        plot_header_n(tsv, "width", k + 1, "median width %.*f |R|", median < 10 ? 1 : 0, median);
    if (v > 0) plot_header_n(tsv, "sign", k + 1, "sign fixed: %.0f %%", 100.0 * (double)s->sign / (double)v);
    plot_header_n(tsv, "infinite", k + 1, "∞ ends: %" PRId64 " low, %" PRId64 " high", s->below, s->above);
    if (n > 0 && s->below == n && s->above == n) plot_header_n(tsv, "empty", k + 1, "infinite throughout");
}

enum ag_status plot_write_taylor_ladder(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                        struct ag_error *err) {
    const struct taylor_results *r = choice->taylor;
    const struct taylor_sample **rows = AG_NEW(arena, const struct taylor_sample *, r->n_samples, err);
    double *scratch = AG_NEW(arena, double, r->n_samples, err);
    struct plot_rows table = {NULL, NULL, 0}, headings = {NULL, NULL, 0};
    struct summary s[TAYLOR_SAMPLE_BOUNDS] = {{0}};
    int64_t all = 0, n = 0, missing = 0, infinite = 0, clipped = 0;
    char besides[96];
    enum ag_status status = AG_OK;
    if (!rows || !scratch) return AG_E_MEMORY;
    for (int64_t i = 0; i < r->n_samples; i++) {
        if (r->samples[i].layer != choice->layer || r->samples[i].head != choice->head) continue;
        if (isfinite(r->samples[i].R))
            rows[all++] = &r->samples[i];
        else
            missing++;
    }
    qsort(rows, (size_t)all, sizeof rows[0], by_R);
    AG_TRY(plot_rows_begin(&headings, err));
    for (int k = 0; k < TAYLOR_SAMPLE_BOUNDS; k++) {
        count_bound(&s[k], k, rows, all);
        write_heading(headings.stream, k, rows, all, &s[k], scratch);
    }
    AG_TRY(plot_rows_end(&headings, err));
    n = all < MOST_QUERIES ? all : MOST_QUERIES;
    for (int64_t i = 0; i < n && n < all; i++) rows[i] = rows[i * (all - 1) / (n - 1)]; /* i <= its source: in place */
    const struct axis axis = choose_axis(rows, n, scratch);
    AG_TRY(plot_rows_begin(&table, err));
    for (int k = 0; k < TAYLOR_SAMPLE_BOUNDS; k++) {
        if (k > 0) fputs("\n\n", table.stream);
        write_bound(table.stream, k, rows, n, &axis, &s[k]);
        infinite += s[k].infinite;
        clipped += s[k].clipped;
    }
    AG_TRY(plot_rows_end(&table, err));
    snprintf(besides, sizeof besides, "layer %" PRId64 ", query head %" PRId64, choice->layer, choice->head);
    AG_TRY(plot_taylor_header(tsv, "taylor-ladder", "Enclosures of the remainder R", besides, choice, arena, err));
    plot_header(tsv, "layer", "%" PRId64, choice->layer);
    plot_header(tsv, "head", "%" PRId64, choice->head);
    plot_header(tsv, "panels", "%d", TAYLOR_SAMPLE_BOUNDS);
    fwrite(headings.text, 1, headings.size, tsv);
    if (n == 0)
        for (int k = 0; k < TAYLOR_SAMPLE_BOUNDS; k++) plot_header_n(tsv, "empty", k + 1, "no sampled query");
    plot_header(tsv, "n", "%" PRId64, n);
    plot_header(tsv, "linear", "%.9g", axis.linear);
    plot_header(tsv, "most", "%.9g", axis.most);
    const int64_t slot = plot_taylor_slot(r, choice->layer);
    const double share =
        slot < 0 ? NAN : r->summary->share[(slot * r->H + choice->head) * TAYLOR_COUNTS + TAYLOR_N_EPS_1];
    plot_header(tsv, "note1",
                "Dots: the exact R of each sampled query, in ascending order; light: the panel's enclosure; dark: B3, "
                "the tightest of all that know only m, v, a, b.");
    plot_header(
        tsv, "note2",
        "B1 to B3 need the logits; B4 only what an O(1)-memory state carries%s; B4x every key, but not the logits.",
        slot >= 0 && r->window[slot] > 0 ? " (none carries a window: missing)" : "");
    plot_header(tsv, "note3",
                "Axis: sign(y) log₁₀(1 + |y|/%g), so linear near 0. Drawn ends that are infinite (grey, in the strips "
                "±∞): %" PRId64 "; clipped at ±%g: %" PRId64 ".",
                axis.linear, infinite, axis.most, clipped);
    char which[96] = "The head";
    if (!isnan(share))
        snprintf(which, sizeof which, "%s head (|R| ≤ 0.5 c at %.0f %% of its queries)",
                 choice->head_given ? "The chosen" : "The median", 100 * share);
    plot_header(tsv, "note4",
                "%s: %" PRId64 " of its %" PRId64 " sampled queries are drawn%s; R is not finite at %" PRId64 ".",
                which, n, all + missing, n < all ? ", evenly spaced in rank" : "", missing);
    plot_header(tsv, "note5", "Headings are of all its sampled queries (width, sign: of those with v > 0).");
    fputs("bound\trank\tprompt\tposition\trole\tvalue\tR\tlo\thi\tdrawn_R\tdrawn_lo\tdrawn_hi\tlo_state\thi_"
          "state\tdrawn_b3_lo\tdrawn_b3_hi\n",
          tsv);
    fwrite(table.text, 1, table.size, tsv);
fail:
    plot_rows_free(&table);
    plot_rows_free(&headings);
    return status;
}
