/* plots/taylor_density.c: all causal queries by sqrt(v) and |R|/c. The counts are on the grid of taylor/histogram.h:
 * half octaves. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "plots/taylor_figure.h"

enum { SIDE = TAYLOR_DENSITY, MOST_LAYERS = 35 };

/* Lower edge of a bin, as a power of two. */
static double edge(int bin) { return TAYLOR_DENSITY_LOWEST + bin / 2.0; }

/* Bins [lo, hi) that are shown along one axis: all but a share of 5e-4 at either end, whole octaves; never the end
 * bins, which take what is beyond the grid. */
struct window {
    int lo, hi;
};
static struct window central(const int64_t marginal[SIDE]) {
    int64_t n = 0, below = 0;
    struct window w = {SIDE, 0};
    for (int i = 1; i < SIDE - 1; i++) n += marginal[i];
    if (n == 0) return (struct window){SIDE / 2 - 8, SIDE / 2 + 8};
    const int64_t cut = n / 2000;
    for (int i = 1; i < SIDE - 1; i++) {
        below += marginal[i];
        if (below > cut && w.lo == SIDE) w.lo = i;
        if (marginal[i] > 0 && n - (below - marginal[i]) > cut) w.hi = i + 1;
    }
    w.lo -= w.lo % 2;
    w.hi += w.hi % 2;
    if (w.lo < 1) w.lo = 1;
    if (w.hi > SIDE - 1) w.hi = SIDE - 1;
    return w;
}

static void write_panel(FILE *tsv, const char *name, const int64_t *density, const struct window *x,
                        const struct window *y, int64_t *most) {
    int64_t written = 0;
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            const int64_t n = density[i * SIDE + j];
            if (n == 0) continue;
            if (i >= x->lo && i < x->hi && j >= y->lo && j < y->hi && n > *most) *most = n;
            fprintf(tsv, "%s\t%.9g\t%.9g\t%.9g\t%.9g\t%" PRId64 "\n", name, exp2(edge(i)), exp2(edge(i + 1)),
                    exp2(edge(j)), exp2(edge(j + 1)), n);
            written++;
        }
    if (written == 0)
        fprintf(tsv, "%s\tNaN\tNaN\tNaN\tNaN\tNaN\n", name); /* an index that is not there would shift all others */
}

enum ag_status plot_write_taylor_density(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                         struct ag_error *err) {
    const struct taylor_results *r = choice->taylor;
    const int64_t Ls = r->from.Ls, shown = Ls < MOST_LAYERS ? Ls : MOST_LAYERS;
    int64_t *all = AG_ZEROS(arena, int64_t, SIDE * SIDE, err), along_x[SIDE] = {0}, along_y[SIDE] = {0};
    int64_t degenerate = 0, left = 0, right = 0, above = 0, below = 0, total = 0, drawn = 0, most = 1;
    struct plot_rows rows = {NULL, NULL, 0};
    char name[32], a[32], b[32], c[32], d[32], e[32];
    enum ag_status status = AG_OK;
    if (all == NULL) return AG_E_MEMORY;
    for (int64_t l = 0; l < Ls; l++) {
        for (int i = 0; i < SIDE * SIDE; i++) {
            all[i] += r->records[l].density[i];
            along_x[i / SIDE] += r->records[l].density[i];
            along_y[i % SIDE] += r->records[l].density[i];
        }
        for (int64_t i = 0; i < r->from.P * r->Hq[l]; i++)
            degenerate += r->records[l].counts[i * TAYLOR_COUNTS + TAYLOR_N_DEGENERATE];
    }
    const struct window x = central(along_x);
    struct window y = central(along_y);
    const int line = taylor_density_bin(1) + 2, least = taylor_density_bin(0.1) - taylor_density_bin(0.1) % 2;
    if (y.hi < line) y.hi = line; /* the lines at eps are the point of the figure */
    if (y.lo > least) y.lo = least;
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            const int64_t n = all[i * SIDE + j];
            total += n;
            if (i < x.lo)
                left += n;
            else if (i >= x.hi)
                right += n;
            else if (j < y.lo)
                below += n;
            else if (j >= y.hi)
                above += n;
            else
                drawn += n;
        }
    AG_TRY(plot_rows_begin(&rows, err));
    write_panel(rows.stream, "all", all, &x, &y, &most);
    for (int64_t k = 0; k < shown; k++) {
        const int64_t l = shown > 1 ? k * (Ls - 1) / (shown - 1) : 0;
        fputs("\n\n", rows.stream);
        snprintf(name, sizeof name, "%" PRId64, r->from.layer[l]);
        write_panel(rows.stream, name, r->records[l].density, &x, &y, &most);
    }
    AG_TRY(plot_rows_end(&rows, err));
    AG_TRY(plot_taylor_header(tsv, "taylor-density", "Remainder against curvature radius, all causal queries", "",
                              choice, arena, err));
    plot_header(tsv, "panels", "%" PRId64, shown + 1);
    for (int64_t k = 0; k <= shown; k++) {
        const int64_t l = k == 0 ? 0 : shown > 1 ? (k - 1) * (Ls - 1) / (shown - 1) : 0;
        const double share = k == 0 ? r->summary->model_share[TAYLOR_N_EPS_1].value
                                    : r->summary->layer_share[l * TAYLOR_COUNTS + TAYLOR_N_EPS_1].value;
        if (k == 0)
            plot_header_n(tsv, "panel", k + 1, "all layers");
        else
            plot_header_n(tsv, "panel", k + 1, "layer %" PRId64, r->from.layer[l]);
        if (isnan(share))
            plot_header_n(tsv, "share", k + 1, "–");
        else
            plot_header_n(tsv, "share", k + 1, "%.0f %%", 100 * share);
        const int64_t *density = k == 0 ? all : r->records[l].density;
        int64_t any = 0, inside = 0;
        for (int i = 0; i < SIDE * SIDE; i++) {
            any += density[i];
            if (i / SIDE >= x.lo && i / SIDE < x.hi && i % SIDE >= y.lo && i % SIDE < y.hi) inside += density[i];
        }
        if (any == 0)
            plot_header_n(tsv, "empty", k + 1, "no query with v > 0");
        else if (inside == 0)
            plot_header_n(tsv, "empty", k + 1, "all beyond the axes");
    }
    plot_header(tsv, "x_min", "%.9g", edge(x.lo));
    plot_header(tsv, "x_max", "%.9g", edge(x.hi));
    plot_header(tsv, "y_min", "%.9g", edge(y.lo));
    plot_header(tsv, "y_max", "%.9g", edge(y.hi));
    plot_header(tsv, "most", "%" PRId64, most);
    plot_header(tsv, "note1",
                "Each query of each head once, in cells of half an octave; √v: standard deviation of the logits; c: "
                "what the normaliser adds over a linear read.");
    plot_header(tsv, "note2",
                "Percentages: queries with |R| ≤ 0.5 c. Lines: |R| = 0.1 c, 0.5 c, c; above 1 the model overshoots (R "
                "< 0), as R ≤ c always.");
    plot_header(tsv, "note3",
                "Of %s queries with v > 0: %s drawn; beyond the axes %s left, %s right, %s below, %s above. No |R|/c "
                "where v = 0: %" PRId64 ".",
                plot_count(a, total), plot_count(b, drawn), plot_count(c, left), plot_count(d, right),
                plot_count(e, below), plot_count(name, above), degenerate);
    if (shown < Ls)
        plot_header(tsv, "note4",
                    "%" PRId64 " of %" PRId64 " layers are shown, evenly spaced; the first panel holds all.", shown,
                    Ls);
    fputs("layer\tsqrt_v_lo\tsqrt_v_hi\tratio_lo\tratio_hi\tcount\n", tsv);
    fwrite(rows.text, 1, rows.size, tsv);
fail:
    plot_rows_free(&rows);
    return status;
}
