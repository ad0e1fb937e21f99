/* plots/taylor_curves.c: what is drawn against the layer: direction fidelity, and the error of the expansion of each
 * order. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plots/taylor_figure.h"

/* ---- direction fidelity ---- */

enum { COSINE, SPAN, MEASURES };
static double measure_of(const struct taylor_sample *s, int k) { return k == COSINE ? s->cosine : s->span; }

/* The finite values of measure k, grouped by layer and head: cell i = l * H + h holds values[first[i] .. first[i + 1]).
 */
struct grouped {
    int64_t *first;
    double *values, *scratch;
    int64_t missing;
};
static enum ag_status group_samples(struct grouped *out, const struct taylor_results *r, const int64_t *slot, int k,
                                    struct ag_arena *arena, struct ag_error *err) {
    const int64_t cells = r->from.Ls * r->H;
    int64_t *first = AG_ZEROS(arena, int64_t, cells + 2, err);
    out->values = AG_NEW(arena, double, r->n_samples, err);
    out->scratch = AG_NEW(arena, double, r->n_samples, err);
    out->missing = 0;
    if (first == NULL || out->values == NULL || out->scratch == NULL) return AG_E_MEMORY;
    for (int pass = 0; pass < 2;
         pass++) { /* counts at cell + 2, which become starts at cell + 1, which placing moves to ends */
        for (int64_t i = 0; i < r->n_samples; i++) {
            const struct taylor_sample *s = &r->samples[i];
            const double value = measure_of(s, k);
            if (slot[s->layer] < 0) continue;
            const int64_t cell = slot[s->layer] * r->H + s->head;
            if (!isfinite(value))
                out->missing += pass == 0;
            else if (pass == 0)
                first[cell + 2]++;
            else
                out->values[first[cell + 1]++] = value;
        }
        for (int64_t i = 2; pass == 0 && i < cells + 2; i++) first[i] += first[i - 1];
    }
    out->first = first;
    return AG_OK;
}

enum ag_status plot_write_taylor_direction(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                           struct ag_error *err) {
    const struct taylor_results *r = choice->taylor;
    static const char *const names[MEASURES] = {"cosine", "span"};
    double lo[MEASURES] = {INFINITY, INFINITY}, hi[MEASURES] = {-INFINITY, -INFINITY};
    int64_t missing[MEASURES] = {0}, there[MEASURES] = {0};
    struct plot_rows rows = {NULL, NULL, 0};
    enum ag_status status = AG_OK;
    const int64_t *slot = plot_taylor_slots(r, arena, err);
    if (slot == NULL) return AG_E_MEMORY;
    AG_TRY(plot_rows_begin(&rows, err));
    for (int k = 0; k < MEASURES; k++) {
        struct grouped g;
        AG_TRY(group_samples(&g, r, slot, k, arena, err));
        missing[k] = g.missing;
        if (k > 0) fputs("\n\n", rows.stream);
        for (int64_t l = 0; l < r->from.Ls; l++)
            for (int64_t h = 0; h < r->Hq[l]; h++) {
                double *values = g.values + g.first[l * r->H + h];
                const int64_t n = g.first[l * r->H + h + 1] - g.first[l * r->H + h];
                qsort(values, (size_t)n, sizeof values[0], plot_compare_doubles);
                const double median = plot_quantile(values, n, 0.5);
                if (n > 0) {
                    lo[k] = fmin(lo[k], median);
                    hi[k] = fmax(hi[k], median);
                }
                fprintf(rows.stream, "%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64, names[k], r->from.layer[l], h, n);
                plot_cell(rows.stream, median);
                fputs("\tNaN\tNaN\t0\n", rows.stream);
            }
        fputs("\n\n", rows.stream);
        bool before = true;
        for (int64_t l = 0; l < r->from.Ls; l++) {
            const int64_t start = g.first[l * r->H], n = g.first[(l + 1) * r->H] - start;
            memcpy(g.scratch, g.values + start, (size_t)n * sizeof g.scratch[0]);
            qsort(g.scratch, (size_t)n, sizeof g.scratch[0], plot_compare_doubles);
            const double low = plot_quantile(g.scratch, n, 0.05), high = plot_quantile(g.scratch, n, 0.95);
            there[k] += n;
            if (n > 0) {
                lo[k] = fmin(lo[k], low);
                hi[k] = fmax(hi[k], high);
            }
            if (l > 0 && (n == 0 || !before))
                fputc('\n', rows.stream); /* gnuplot draws bands across a gap unless a blank line is there */
            before = n > 0;
            fprintf(rows.stream, "%s\t%" PRId64 "\tall\t%" PRId64, names[k], r->from.layer[l], n);
            plot_cell(rows.stream, plot_quantile(g.scratch, n, 0.5));
            plot_cell(rows.stream, low);
            plot_cell(rows.stream, high);
            fprintf(rows.stream, "\t%d\n", r->from.Ls == 1);
        }
    }
    AG_TRY(plot_rows_end(&rows, err));
    AG_TRY(plot_taylor_header(tsv, "taylor-direction", "Does the direction survive?", "", choice, arena, err));
    plot_header(tsv, "panels", "%d", MEASURES);
    plot_header(tsv, "panel1", "cos(Σ q, ∇A(q) − μ)");
    plot_header(tsv, "panel2", "share of |∇A(q) − μ|² in the first %" PRId64 " axes of Σ", r->r);
    plot_header(tsv, "columns", "%" PRId64, r->H);
    for (int k = 0; k < MEASURES; k++) {
        char key[16];
        int64_t D = r->D[0];
        for (int64_t l = 1; l < r->from.Ls; l++)
            if (r->D[l] != D) D = 0; /* hybrids: no single reference line */
        const double reference = k == SPAN && D > r->r ? (double)r->r / (double)D : NAN;
        if (!isnan(reference) && there[k] > 0) lo[k] = fmin(lo[k], reference);
        snprintf(key, sizeof key, "y%d", k + 1);
        struct plot_axis axis = plot_nice_axis(lo[k], hi[k], true);
        if (axis.max > 1) axis.max = 1;
        if (axis.min < -1) axis.min = -1;
        if (!(axis.min < axis.max)) axis = (struct plot_axis){-1, 1, 0.5}; /* no file of ours */
        plot_header_axis(tsv, key, axis);
        plot_header_n(tsv, "reference", k + 1, "%.9g", reference);
        plot_header_empty(tsv, k, 1, there[k], r->n_samples == 0 ? "no sampled query" : "no finite value");
    }
    plot_header(tsv, "note1",
                "Line: median over the sampled queries of a layer; band: 5 to 95 %%; dots: each query head's median. "
                "∇A(q) − μ is how far softmax moves the read.");
    plot_header(tsv, "note2",
                "Left: 1 where the second-order step Σ q points exactly there, whatever its length. Right, thin line: "
                "r/D, for directions independent of the keys.");
    plot_header(tsv, "note3",
                "Of %" PRId64 " sampled queries (%" PRId64
                " positions a prompt, and those that retrieve): missing %" PRId64 " (left; v = 0), %" PRId64
                " (right; also fewer than r + 2 keys).",
                r->n_samples, r->queries, missing[COSINE], missing[SPAN]);
    fputs("measure\tlayer\thead\tn\tmedian\tlo\thi\talone\n", tsv);
    fwrite(rows.text, 1, rows.size, tsv);
fail:
    plot_rows_free(&rows);
    return status;
}

/* ---- orders ---- */

static const enum taylor_quantity order_quantity[TAYLOR_ORDERS] = {TAYLOR_ERROR_0, TAYLOR_C, TAYLOR_ABS_R,
                                                                   TAYLOR_ERROR_3, TAYLOR_ERROR_4};
enum { LOW = 2, MIDDLE = 3, HIGH = 4 }; /* among taylor_quantile_points: 25, 50, 75 % */

struct log_axis {
    double min, max; /* powers of ten */
    int64_t points, missing, floored, infinite;
};

static void see(struct log_axis *axis, double value) {
    if (plot_drawable(value) && value >= 1e-30) {
        axis->min = fmin(axis->min, value);
        axis->max = fmax(axis->max, value);
    }
}

/* A value on the axis: zero (below the histogram's first bin) at its lower end, infinity at the upper. */
static double on_axis(double value, const struct log_axis *axis) {
    return isnan(value) ? NAN : fmin(fmax(value, axis->min), axis->max);
}

static void write_order(FILE *tsv, const char *scope, int n, const double *quantiles, struct log_axis *axis,
                        bool alone) {
    axis->points++;
    axis->missing += isnan(quantiles[MIDDLE]);
    axis->floored += quantiles[MIDDLE] == 0;
    axis->infinite += isinf(quantiles[MIDDLE]);
    fprintf(tsv, "%s\t%d", scope, n);
    for (int i = LOW; i <= HIGH; i++) plot_cell(tsv, quantiles[i]);
    for (int i = LOW; i <= HIGH; i++) plot_cell(tsv, on_axis(quantiles[i], axis));
    fprintf(tsv, "\t%d\n", alone);
}

enum ag_status plot_write_taylor_orders(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                        struct ag_error *err) {
    const struct taylor_results *r = choice->taylor;
    const int64_t Ls = r->from.Ls;
    struct log_axis axis = {INFINITY, 0, 0, 0, 0, 0}, ignored;
    struct plot_rows rows = {NULL, NULL, 0};
    char scope[32];
    enum ag_status status = AG_OK;
#define LAYER(l, n) (r->summary->layer_quantiles + ((l)*TAYLOR_QUANTITIES + order_quantity[n]) * TAYLOR_QUANTILES)
#define MODEL(n) (r->summary->model_quantiles + order_quantity[n] * TAYLOR_QUANTILES)
    for (int n = 0; n < TAYLOR_ORDERS; n++)
        for (int i = LOW; i <= HIGH; i++) {
            see(&axis, MODEL(n)[i]);
            for (int64_t l = 0; l < Ls; l++) see(&axis, LAYER(l, n)[i]);
        }
    const bool any = axis.max > 0;
    axis.min = any ? pow(10, floor(log10(axis.min) + 1e-9)) : 0.1;
    axis.max = any ? pow(10, ceil(log10(axis.max) - 1e-9)) : 10;
    if (axis.max <= axis.min) axis.max = 10 * axis.min;
    ignored = axis;
    AG_TRY(plot_rows_begin(&rows, err));
    for (int n = 0; n < TAYLOR_ORDERS; n++) write_order(rows.stream, "model", n, MODEL(n), &ignored, false);
    fputs("\n\n", rows.stream);
    for (int64_t l = 0; l < Ls; l++) { /* a line a layer */
        if (l > 0) fputc('\n', rows.stream);
        snprintf(scope, sizeof scope, "%" PRId64, r->from.layer[l]);
        for (int n = 0; n < TAYLOR_ORDERS; n++) write_order(rows.stream, scope, n, LAYER(l, n), &axis, false);
    }
    for (int n = 0; n < TAYLOR_ORDERS; n++) { /* a band an order: the same numbers, the other way */
        fputs("\n\n", rows.stream);
        bool before = true;
        for (int64_t l = 0; l < Ls; l++) {
            const bool here = !isnan(LAYER(l, n)[MIDDLE]);
            if (l > 0 && !(here && before)) fputc('\n', rows.stream);
            before = here;
            snprintf(scope, sizeof scope, "%" PRId64, r->from.layer[l]);
            write_order(rows.stream, scope, n, LAYER(l, n), &ignored, Ls == 1);
        }
    }
    AG_TRY(plot_rows_end(&rows, err));
    AG_TRY(plot_taylor_header(tsv, "taylor-orders", "Error of the expansion by order", "", choice, arena, err));
    plot_header(tsv, "panels", "3");
    plot_header(tsv, "panel1", "by order: the model, and each layer's median");
    plot_header(tsv, "panel2", "by layer: medians");
    plot_header(tsv, "panel3", "by layer: median and quartiles");
    plot_header(tsv, "orders", "%d", TAYLOR_ORDERS);
    plot_header(tsv, "y_min", "%.9g", axis.min);
    plot_header(tsv, "y_max", "%.9g", axis.max);
    if (!any) plot_header(tsv, "panel1_empty1", "no positive finite error");
    if (!any) plot_header(tsv, "panel2_empty1", "no positive finite error");
    plot_header(tsv, "note1",
                "Aₙ: cumulant expansion of the log-partition at q = 0 up to order n; A₁ is a linear read, A₂ the "
                "second-order model Q (|A − A₂| = |R|).");
    plot_header(tsv, "note2",
                "All causal queries. Left: median (line) and quartiles (bars) of the model; thin lines: layers, light "
                "to dark with depth.");
    plot_header(tsv, "note3",
                "Of %" PRId64 " layer medians: %" PRId64 " missing, %" PRId64
                " are 0 or below 2⁻⁴⁰ (at the lower end), %" PRId64 " above 2²⁴ (at the upper end).",
                axis.points, axis.missing, axis.floored, axis.infinite);
    fputs("scope\torder\tq25\tmedian\tq75\tdrawn25\tdrawn\tdrawn75\talone\n", tsv);
    fwrite(rows.text, 1, rows.size, tsv);
#undef LAYER
#undef MODEL
fail:
    plot_rows_free(&rows);
    return status;
}
