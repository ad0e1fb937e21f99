/* plots/delta_mu.c: the table of the heatmap: its one colour range, its numbers, and what is counted on it. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plots/figure.h"

/* One range for all panels. */
static enum ag_status choose_range(struct plot_range *out, const struct plot_choice *choice, struct ag_arena *arena,
                                   struct ag_error *err) {
    const struct plot_results *r = choice->results;
    double *all = AG_NEW(arena, double, r->Ls * r->H * choice->n_panels, err);
    if (all == NULL) return AG_E_MEMORY;
    int64_t n = 0;
    for (int b = 0; b < choice->n_panels; b++) {
        const double *values = choice->panel[b]->delta[choice->pooling];
        for (int64_t i = 0; i < r->Ls * r->H; i++)
            if (isfinite(values[i]) && i % r->H < r->Hk[i / r->H]) all[n++] = fabs(values[i]);
    }
    return plot_choose_range(out, all, n, choice->range, "|Δμ|", arena, err);
}

struct counts {
    int64_t cells, finite, negative, positive, missing, infinite, clipped, marked;
};

/* Cells carry at most five characters or so: values are shown in units of 10^exponent. */
struct format {
    int exponent, decimals;
};
static struct format choose_format(double half) {
    if (half < 0.01 || half >= 100) return (struct format){(int)floor(log10(half)), 1};
    return (struct format){0, half < 0.1 ? 3 : half < 10 ? 2 : 1};
}

static void write_cell(FILE *tsv, const struct plot_choice *choice, const struct plot_basis *basis, int64_t l,
                       int64_t h, double half, struct format format, struct counts *counts) {
    const struct plot_results *r = choice->results;
    const int64_t i = l * r->H + h;
    const double value = basis->delta[choice->pooling][i], p = basis->p[i], q = basis->q[i];
    const bool test = choice->pooling == PLOT_POOL_PROMPT, mark = test && isfinite(value) && q < 0.05;
    const char *state = "ok";
    char label[64] = "";
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
        counts->positive += value > 0;
        counts->marked += mark;
        colour = value / half;
        if (fabs(value) > half) {
            state = "clipped";
            colour = value < 0 ? -1 : 1;
            counts->clipped++;
        }
        const double shown = value / pow(10, format.exponent);
        if (fabs(shown) < 1e4) {
            plot_label(label, shown, format.decimals);
        } else {
            snprintf(label, sizeof label, "%s%.0fe%.0f", value < 0 ? "−" : "",
                     fabs(value) / pow(10, floor(log10(fabs(value)))), floor(log10(fabs(value))));
        }
    }
    plot_row(tsv, basis, r->layer[l]);
    fprintf(tsv, "\t%" PRId64, h);
    plot_cell(tsv, value);
    plot_cell(tsv, basis->lo[choice->pooling][i]);
    plot_cell(tsv, basis->hi[choice->pooling][i]);
    plot_cell(tsv, test ? p : NAN);
    plot_cell(tsv, test ? q : NAN);
    fprintf(tsv, "\t%" PRId64, l);
    plot_cell(tsv, colour);
    fprintf(tsv, "\t%d\t%s\t%s\n", mark, state, label[0] != '\0' ? label : " ");
}

static void panel_notes(FILE *tsv, int panel, const struct plot_choice *choice, const struct plot_basis *basis,
                        const struct counts *c) {
    char key[32];
    snprintf(key, sizeof key, "panel%d_note1", panel + 1);
    if (c->finite == 0) {
        plot_header(tsv, key, "no finite value");
    } else if (isfinite(basis->fraction_lo[choice->pooling]) && isfinite(basis->fraction_hi[choice->pooling])) {
        plot_header(tsv, key, "%.0f %% of cells < 0 (95 %%: %.0f to %.0f)", 100 * basis->fraction[choice->pooling],
                    100 * basis->fraction_lo[choice->pooling], 100 * basis->fraction_hi[choice->pooling]);
    } else {
        plot_header(tsv, key, "%.0f %% of cells < 0 (no interval)", 100.0 * (double)c->negative / (double)c->finite);
    }
    snprintf(key, sizeof key, "panel%d_note2", panel + 1);
    if (choice->pooling == PLOT_POOL_PROMPT) {
        plot_header(tsv, key, "q < 0.05: %" PRId64 " negative, %" PRId64 " positive", basis->significant_negative,
                    basis->significant_positive);
    } else {
        plot_header(tsv, key, "no test with this pooling");
    }
}

enum ag_status plot_write_delta_mu(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                   struct ag_error *err) {
    const struct plot_results *r = choice->results;
    struct plot_range range;
    struct ag_buf rows = {0}, note = {0};
    struct counts total = {0}, panel[3] = {{0}};
    enum ag_status status = AG_OK;
    char *text = NULL, half[64];
    size_t size = 0;
    AG_TRY(choose_range(&range, choice, arena, err));
    AG_TRY(plot_provenance(tsv, "delta-mu", "Δμ by layer and KV head", plot_pooling_names[choice->pooling], choice,
                           arena, err));
    /* The header counts what the rows hold: rows first, into memory. */
    FILE *memory = open_memstream(&text, &size);
    if (memory == NULL) {
        status = ag_fail(err, AG_E_MEMORY, "delta-mu: no memory for the table");
        goto fail;
    }
    const struct format format = choose_format(range.half);
    for (int b = 0; b < choice->n_panels; b++) {
        if (b > 0) fputs("\n\n", memory);
        for (int64_t l = 0; l < r->Ls; l++)
            for (int64_t h = 0; h < r->Hk[l]; h++)
                write_cell(memory, choice, choice->panel[b], l, h, range.half, format, &panel[b]);
        total.missing += panel[b].missing;
        total.infinite += panel[b].infinite;
        total.clipped += panel[b].clipped;
        total.cells += panel[b].cells;
    }
    if (fclose(memory) != 0) {
        status = ag_fail(err, AG_E_MEMORY, "delta-mu: no memory for the table");
        goto fail;
    }
    plot_header(tsv, "rows", "%" PRId64, r->Ls);
    plot_header(tsv, "columns", "%" PRId64, r->H);
    AG_TRY(ag_buf_printf(&rows, err, "%" PRId64, r->layer[0]));
    for (int64_t l = 1; l < r->Ls; l++) AG_TRY(ag_buf_printf(&rows, err, " %" PRId64, r->layer[l]));
    const bool numbers = r->H <= 40 && r->Ls * (r->H > 12 ? choice->n_panels : 1) <= 130; /* the room for them */
    plot_header(tsv, "numbers", "%d", numbers);
    plot_header(tsv, "row_labels", "%s", rows.data);
    for (int b = 0; b < choice->n_panels; b++) panel_notes(tsv, b, choice, choice->panel[b], &panel[b]);
    plot_header(tsv, "range", "%.9g", range.half);
    snprintf(half, sizeof half, "%.3g", range.half);
    static const double at[5] = {-1, -0.5, 0, 0.5, 1};
    for (int i = 0; i < 5; i++) {
        char key[32];
        snprintf(key, sizeof key, "tick%d", i + 1);
        plot_header(tsv, key, "%s%.3g", at[i] < 0 ? "−" : "", fabs(at[i]) * range.half);
    }
    plot_header(tsv, "note1",
                "Δμ = mean alignment of needle keys − of distractor keys with the basis' top %" PRId64
                " directions (no unit).",
                r->r);
    AG_TRY(ag_buf_printf(&note, err, "Colours: ±%s (%s).", half, range.how));
    if (!numbers) AG_TRY(ag_buf_printf(&note, err, " No room for numbers: + marks positive cells."));
    if (numbers && format.exponent != 0)
        AG_TRY(ag_buf_printf(&note, err, " Numbers in cells: × 10^%d.", format.exponent));
    plot_header(tsv, "note2", "%s", note.data);
    plot_header(tsv, "note3",
                "Of %" PRId64 " cells: %" PRId64 " missing (hatched), %" PRId64 " infinite (grey, ∞), %" PRId64
                " beyond the range (end colour).%s",
                total.cells, total.missing, total.infinite, total.clipped,
                total.cells < r->Ls * r->H * choice->n_panels ? " Blank: a layer with fewer heads." : "");
    if (choice->pooling == PLOT_POOL_PROMPT) {
        const double smallest = choice->panel[0]->smallest_p;
        char reach[80];
        snprintf(reach, sizeof reach, "smallest reachable p %.2g%s", smallest,
                 smallest > 0.05 ? ": no cell can pass" : "");
        plot_header(tsv, "note4", "%s: sign-flip test over units, Benjamini-Hochberg q < 0.05; %s.",
                    numbers ? "•" : "• and bold +", isnan(smallest) ? "no cell to test" : reach);
    } else {
        plot_header(tsv, "note4",
                    "All tokens of all prompts pooled, as in the paper's Figures 5 and 6; intervals are in the table.");
    }
    fputs("basis\tlayer\thead\tdelta_mu\tlo\thi\tp\tq\trow\tcolour\tmark\tstate\tlabel\n", tsv);
    fwrite(text, 1, size, tsv);
fail:
    free(text);
    ag_buf_free(&rows);
    ag_buf_free(&note);
    return status;
}
