/* plots/figure.c: the tables of the figures but the heatmap (delta_mu.c), and the list of all. Everything that is
 * counted or chosen (colour range, axes, what is missing, which curves) is decided here and written into the table's
 * header; the gnuplot scripts only draw. */
#include "plots/figure.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/block.h"
#include "base/embed.h"
#include "geometry/results.h"
#include "taylor/results.h"

AG_EMBED(plot_style, "plots/style.gp");
AG_EMBED(script_delta_mu, "plots/delta-mu.gp");
AG_EMBED(script_separation, "plots/separation.gp");
AG_EMBED(script_spectra, "plots/spectra.gp");
AG_EMBED(script_rank, "plots/rank.gp");

const struct plot_figure plot_figures[PLOT_FIGURES] = {
    {"delta-mu", "Delta-mu of every layer and KV head, with its control", script_delta_mu, script_delta_mu_end,
     plot_write_delta_mu},
    {"separation", "mean alignment by layer, one curve per role", script_separation, script_separation_end,
     plot_write_separation},
    {"spectra", "explained variance by layer, scree by head", script_spectra, script_spectra_end, plot_write_spectra},
    {"rank", "effective rank, participation ratio and stable rank by layer", script_rank, script_rank_end,
     plot_write_rank},
};

const struct plot_set plot_sets[PLOT_SCHEMAS] = {
    {GEOM_SCHEMA, "attgeo geometry", plot_figures, PLOT_FIGURES},
    {TAYLOR_SCHEMA, "attgeo taylor", plot_taylor_figures, PLOT_TAYLOR_FIGURES},
};

/* ---- Separation by layer ---- */

static const enum ag_role separation_roles[] = {AG_ROLE_NEEDLE, AG_ROLE_DISTRACTOR, AG_ROLE_HAYSTACK, AG_ROLE_QUESTION};
#define SEPARATION_ROLES (int)(sizeof separation_roles / sizeof separation_roles[0])

static void extend(double *lo, double *hi, double value) {
    if (!plot_drawable(value)) return;
    *lo = fmin(*lo, value);
    *hi = fmax(*hi, value);
}

/* One curve. mark: 1 at a point that has no neighbour, so no band; the script gives it a bar. */
static void write_curve(FILE *tsv, const struct plot_results *r, const struct plot_basis *basis, enum ag_role role) {
    for (int64_t l = 0; l < r->Ls; l++) {
        const int64_t i = l * r->roles + role;
        const double *mean = basis->layer_align + i;
        const bool alone =
            (l == 0 || !plot_drawable(mean[-r->roles])) && (l + 1 == r->Ls || !plot_drawable(mean[r->roles]));
        /* gnuplot draws bands across a gap unless a blank line is there. */
        if (l > 0 && !(plot_drawable(*mean) && plot_drawable(mean[-r->roles]))) fputc('\n', tsv);
        plot_row(tsv, basis, r->layer[l]);
        fprintf(tsv, "\t%s", ag_role_names[role]);
        plot_cell(tsv, *mean);
        plot_cell(tsv, basis->layer_lo[i]);
        plot_cell(tsv, basis->layer_hi[i]);
        fprintf(tsv, "\t%d\n", alone);
    }
    fputs("\n\n", tsv);
}

/* Fewer units reach no p of 0.05 (2^(1-n)), and their percentile intervals are too narrow to mark anything by. */
#define SEPARATION_LEAST_UNITS 6

/* Needle minus distractor within a prompt. mark: the sign of an interval that excludes 0, else 0. */
static void write_differences(FILE *tsv, const struct plot_results *r, const struct plot_basis *basis) {
    for (int64_t l = 0; l < r->Ls; l++) {
        plot_row(tsv, basis, r->layer[l]);
        fputs("\tneedle-distractor", tsv);
        plot_cell(tsv, basis->layer_delta[l]);
        plot_cell(tsv, basis->layer_delta_lo[l]);
        plot_cell(tsv, basis->layer_delta_hi[l]);
        const int sign = basis->layer_delta_hi[l] < 0 ? -1 : basis->layer_delta_lo[l] > 0 ? 1 : 0;
        fprintf(tsv, "\t%d\n", r->units < SEPARATION_LEAST_UNITS ? 0 : sign);
    }
}

enum ag_status plot_write_separation(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                     struct ag_error *err) {
    const struct plot_results *r = choice->results;
    double lo = INFINITY, hi = -INFINITY;
    int64_t missing = 0, bare = 0, points = 0;
    enum ag_status status =
        plot_provenance(tsv, "separation", "Alignment by layer and role", "prompt", choice, arena, err);
    if (status != AG_OK) return status;
    for (int b = 0; b < choice->n_panels; b++) {
        const struct plot_basis *basis = choice->panel[b];
        const int64_t before = points - missing;
        for (int k = 0; k < SEPARATION_ROLES; k++) {
            for (int64_t l = 0; l < r->Ls; l++) {
                const int64_t i = l * r->roles + separation_roles[k];
                extend(&lo, &hi, basis->layer_align[i]);
                extend(&lo, &hi, basis->layer_lo[i]);
                extend(&lo, &hi, basis->layer_hi[i]);
                points++;
                missing += !plot_drawable(basis->layer_align[i]);
                bare += plot_drawable(basis->layer_align[i]) &&
                        !(plot_drawable(basis->layer_lo[i]) && plot_drawable(basis->layer_hi[i]));
            }
        }
        plot_header_empty(tsv, b, 1, points - missing - before, "no finite value");
    }
    int64_t D = r->D[0];
    for (int64_t l = 1; l < r->Ls; l++)
        if (r->D[l] != D) D = 0; /* hybrids: no single reference line */
    if (D > 0 && lo <= hi) extend(&lo, &hi, (double)r->r / (double)D);
    plot_header_layers(tsv, r);
    plot_header_axis(tsv, "y", plot_nice_axis(lo, hi, true));
    plot_header(tsv, "reference", "%.9g", D > 0 ? (double)r->r / (double)D : NAN);
    plot_header(tsv, "roles", "%d", SEPARATION_ROLES);
    for (int k = 0; k < SEPARATION_ROLES; k++) {
        char key[16];
        snprintf(key, sizeof key, "role%d", k + 1);
        plot_header(tsv, key, "%s", ag_role_names[separation_roles[k]]);
    }
    plot_header(tsv, "note1",
                "Mean over heads of the per-prompt mean alignment with the top %" PRId64
                " directions; bands: 95 %%, bootstrap over units.",
                r->r);
    if (D > 0) {
        plot_header(tsv, "note2",
                    "Thin line: r/D = %" PRId64 "/%" PRId64 ", for directions that are independent of the keys.", r->r,
                    D);
    } else {
        plot_header(tsv, "note2", "Layers differ in head dimension: no r/D line.");
    }
    if (r->units < SEPARATION_LEAST_UNITS)
        plot_header(tsv, "note3", "Only %" PRId64 " unit%s: no layer is marked, and bands over so few are too narrow.",
                    r->units, r->units == 1 ? "" : "s");
    else
        plot_header(tsv, "note3",
                    "▼ ▲ at the top: layers where needle lies below or above distractor within prompts (the 95 %% "
                    "interval of the difference excludes 0).");
    plot_header(tsv, "note4",
                "Control: the directions are fitted to the haystack's keys, so only the haystack is in sample there.");
    plot_header(tsv, "note5",
                "Of %" PRId64 " points: %" PRId64 " missing or not drawable, %" PRId64 " without an interval%s.",
                points, missing, bare, r->units < 2 ? " (one unit has none)" : "");
    fputs("basis\tlayer\trole\talignment\tlo\thi\tmark\n", tsv);
    for (int b = 0; b < choice->n_panels; b++) {
        if (b > 0) fputs("\n\n", tsv);
        for (int k = 0; k < SEPARATION_ROLES; k++) write_curve(tsv, r, choice->panel[b], separation_roles[k]);
        write_differences(tsv, r, choice->panel[b]);
    }
    return AG_OK;
}

/* ---- Spectra ---- */

/* Scree curves of more heads than this are a block of ink and a huge file: then every n-th head is drawn, which is
 * said. */
#define MOST_CURVES 400
/* Smaller shares of the trace are rounding error of the covariance; the axis ends here at the latest. */
#define SCREE_FLOOR 1e-12

static double mean_over_heads(const double *values, int64_t heads, int64_t stride, int64_t *missing) {
    double sum = 0;
    int64_t n = 0;
    for (int64_t h = 0; h < heads; h++) {
        if (plot_drawable(values[h * stride])) {
            sum += values[h * stride];
            n++;
        } else {
            ++*missing;
        }
    }
    return n > 0 ? sum / (double)n : NAN;
}

/* Which components have a curve: powers of two and r. */
static int choose_components(int64_t out[24], int64_t Dmax, int64_t r) {
    int n = 0;
    for (int64_t i = 1; i <= Dmax && n < 20; i *= 2) {
        if (r > i / 2 && r < i) out[n++] = r;
        out[n++] = i;
    }
    return n;
}

/* Labels at the right end of the curves, pushed apart: y ascending in, at least gap apart and within [0, 1] out. */
static void spread_labels(double *y, int n, double gap) {
    for (int i = 1; i < n; i++)
        if (y[i] < y[i - 1] + gap) y[i] = y[i - 1] + gap;
    double top = 1;
    for (int i = n - 1; i >= 0; i--) {
        if (y[i] > top) y[i] = top;
        top = y[i] - gap;
    }
}

static void write_explained(FILE *tsv, const struct plot_results *r, const struct plot_basis *basis,
                            const int64_t *component, int n) {
    double end[24];
    int64_t unused = 0;
    for (int k = 0; k < n; k++) {
        end[k] = NAN;
        for (int64_t l = 0; l < r->Ls; l++) {
            const int64_t i = component[k] - 1;
            const double value = component[k] > r->D[l] ? NAN
                                                        : mean_over_heads(basis->explained + l * r->H * r->Dmax + i,
                                                                          r->Hk[l], r->Dmax, &unused);
            if (plot_drawable(value)) end[k] = value;
            plot_row(tsv, basis, r->layer[l]);
            fprintf(tsv, "\tmean\t%" PRId64 "\tNaN", component[k]);
            plot_cell(tsv, value);
            fputs("\tNaN\n", tsv);
        }
        fputs("\n\n", tsv);
    }
    double shown[24];
    int m = 0;
    for (int k = 0; k < n; k++)
        if (plot_drawable(end[k])) shown[m++] = fmin(fmax(end[k], 0), 1);
    spread_labels(shown, m, 0.052);
    m = 0;
    for (int k = 0; k < n; k++) {
        plot_row(tsv, basis, r->layer[r->Ls - 1]);
        fprintf(tsv, "\tlabel\t%" PRId64 "\tNaN", component[k]);
        plot_cell(tsv, end[k]);
        plot_cell(tsv,
                  plot_drawable(end[k]) ? shown[m++] : -1); /* out of sight; NaN in all of them would end gnuplot 5.4 */
        fputc('\n', tsv);
    }
}

static void write_scree(FILE *tsv, const struct plot_results *r, const struct plot_basis *basis, int64_t every) {
    int64_t index = 0;
    bool first = true;
    for (int64_t l = 0; l < r->Ls; l++) {
        for (int64_t h = 0; h < r->Hk[l]; h++) {
            if (index++ % every != 0) continue;
            if (!first) fputc('\n', tsv);
            first = false;
            for (int64_t i = 0; i < r->D[l]; i++) {
                const int64_t at = (l * r->H + h) * r->Dmax + i;
                plot_row(tsv, basis, r->layer[l]);
                fprintf(tsv, "\t%" PRId64 "\t%" PRId64, h, i + 1);
                plot_cell(tsv, basis->scree[at]);
                plot_cell(tsv, basis->explained[at]);
                /* The share as drawn: what a log axis cannot show ends the curve. */
                plot_cell(tsv,
                          plot_drawable(basis->scree[at]) && basis->scree[at] >= SCREE_FLOOR ? basis->scree[at] : NAN);
                fputc('\n', tsv);
            }
        }
    }
}

enum ag_status plot_write_spectra(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                  struct ag_error *err) {
    const struct plot_results *r = choice->results;
    int64_t component[24], heads = 0, points = 0, missing = 0, floored = 0;
    double smallest = 1;
    enum ag_status status = plot_provenance(tsv, "spectra", "Spectra of the key covariance", NULL, choice, arena, err);
    if (status != AG_OK) return status;
    const int n = choose_components(component, r->Dmax, r->r);
    for (int64_t l = 0; l < r->Ls; l++) heads += r->Hk[l];
    const int64_t every = (heads + MOST_CURVES - 1) / MOST_CURVES;
    for (int b = 0; b < choice->n_panels; b++) {
        const int64_t before = points - missing - floored, zero_before = floored;
        int64_t index = 0, none = 0;
        double explained = NAN;
        for (int64_t l = 0; l < r->Ls && isnan(explained); l++)
            explained = mean_over_heads(choice->panel[b]->explained + l * r->H * r->Dmax, r->Hk[l], r->Dmax, &none);
        plot_header_empty(tsv, b, 1, !isnan(explained), "no finite value");
        for (int64_t l = 0; l < r->Ls; l++) {
            for (int64_t h = 0; h < r->Hk[l]; h++) {
                if (index++ % every != 0) continue;
                for (int64_t i = 0; i < r->D[l]; i++) {
                    const double s = choice->panel[b]->scree[(l * r->H + h) * r->Dmax + i];
                    points++;
                    if (!plot_drawable(s)) {
                        missing++;
                    } else if (s < SCREE_FLOOR) {
                        floored++;
                    } else {
                        smallest = fmin(smallest, s);
                    }
                }
            }
        }
        plot_header_empty(tsv, b, 2, points - missing - floored - before,
                          floored > zero_before ? "every eigenvalue is 0" : "no finite value");
    }
    plot_header_layers(tsv, r);
    plot_header(tsv, "components", "%d", n);
    plot_header(tsv, "r_component", "%" PRId64, r->r);
    plot_header(tsv, "dimension", "%" PRId64, r->Dmax);
    plot_header(tsv, "share_min", "%.0e", fmin(0.1, pow(10, floor(log10(smallest) + 1e-9))));
    plot_header(
        tsv, "note1",
        "Left: share of tr Σ in the first i directions, mean over heads and prompts; i at the end of each curve. "
        "Right: sᵢ / tr Σ.");
    if (every == 1) {
        plot_header(tsv, "note2", "Scree: one curve per layer and KV head (%" PRId64 "), coloured by layer.", heads);
    } else {
        plot_header(tsv, "note2",
                    "Scree: every %" PRId64 "th of %" PRId64
                    " heads is drawn, coloured by layer; the results file holds all.",
                    every, heads);
    }
    plot_header(tsv, "note3",
                "Of %" PRId64 " eigenvalues in the scree: %" PRId64 " are 0 or below %.0e tr Σ and not drawn, %" PRId64
                " missing.",
                points, floored, SCREE_FLOOR, missing);
    fputs("basis\tlayer\thead\tcomponent\tshare\texplained\tdrawn\n", tsv);
    for (int b = 0; b < choice->n_panels; b++) {
        if (b > 0) fputs("\n\n", tsv);
        write_explained(tsv, r, choice->panel[b], component, n);
        fputs("\n\n", tsv);
        write_scree(tsv, r, choice->panel[b], every);
    }
    return AG_OK;
}

/* ---- Ranks ---- */

struct measure {
    const char *key, *label;
    const double *values[3]; /* by panel */
};

static double median(const double *values, int64_t n, double *scratch) {
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++)
        if (plot_drawable(values[i])) scratch[m++] = values[i];
    if (m == 0) return NAN;
    qsort(scratch, (size_t)m, sizeof scratch[0], plot_compare_doubles);
    return m % 2 != 0 ? scratch[m / 2] : 0.5 * (scratch[m / 2 - 1] + scratch[m / 2]);
}

static void write_ranks(FILE *tsv, const struct plot_results *r, const struct plot_basis *basis, const char *key,
                        const double *values, double *scratch) {
    for (int64_t l = 0; l < r->Ls; l++) {
        for (int64_t h = 0; h < r->Hk[l]; h++) {
            const double value = values[l * r->H + h];
            plot_row(tsv, basis, r->layer[l]);
            fprintf(tsv, "\t%" PRId64 "\t%s", h, key);
            plot_cell(tsv, value);
            plot_cell(tsv, plot_drawable(value) ? value : NAN);
            fputc('\n', tsv);
        }
    }
    fputs("\n\n", tsv);
    for (int64_t l = 0; l < r->Ls; l++) {
        const double value = median(values + l * r->H, r->Hk[l], scratch);
        plot_row(tsv, basis, r->layer[l]);
        fprintf(tsv, "\tmedian\t%s", key);
        plot_cell(tsv, value);
        plot_cell(tsv, value);
        fputc('\n', tsv);
    }
}

enum ag_status plot_write_rank(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                               struct ag_error *err) {
    const struct plot_results *r = choice->results;
    struct measure measures[3] = {{"effective_rank", "effective rank (entropy)", {NULL}},
                                  {"participation_ratio", "participation ratio", {NULL}},
                                  {"stable_rank", "stable rank (tr Σ / s₁)", {NULL}}};
    int64_t missing = 0, points = 0;
    double *scratch = AG_NEW(arena, double, r->H, err);
    if (scratch == NULL) return AG_E_MEMORY;
    enum ag_status status = plot_provenance(tsv, "rank", "Ranks of the key covariance", NULL, choice, arena, err);
    if (status != AG_OK) return status;
    for (int b = 0; b < choice->n_panels; b++) {
        measures[0].values[b] = choice->panel[b]->effective_rank;
        measures[1].values[b] = choice->panel[b]->participation_ratio;
        measures[2].values[b] = choice->panel[b]->stable_rank;
    }
    plot_header_layers(tsv, r);
    plot_header(tsv, "columns", "%" PRId64, r->H);
    for (int k = 0; k < 3; k++) {
        char key[32];
        double hi = -INFINITY, none = INFINITY;
        for (int b = 0; b < choice->n_panels; b++) {
            const int64_t before = points - missing;
            for (int64_t l = 0; l < r->Ls; l++) {
                for (int64_t h = 0; h < r->Hk[l]; h++) {
                    const double value = measures[k].values[b][l * r->H + h];
                    extend(&none, &hi, value);
                    points++;
                    missing += !plot_drawable(value);
                }
            }
            plot_header_empty(tsv, b, k + 1, points - missing - before, "no finite value");
        }
        struct plot_axis axis = plot_nice_axis(hi >= 0 ? 0 : none, hi, false);
        if (hi >= 0 && none >= 0) axis.min = 0;
        snprintf(key, sizeof key, "y%d", k + 1);
        plot_header_axis(tsv, key, axis);
        snprintf(key, sizeof key, "measure%d", k + 1);
        plot_header(tsv, key, "%s", measures[k].label);
    }
    plot_header(tsv, "note1",
                "Dots: KV heads (mean over prompts). Line: median over heads. Largest possible: D = %" PRId64 ".",
                r->Dmax);
    plot_header(tsv, "note2", "Of %" PRId64 " dots: %" PRId64 " missing or not drawable (tr Σ = 0 has no rank).",
                points, missing);
    fputs("basis\tlayer\thead\tmeasure\tvalue\tdrawn\n", tsv);
    for (int b = 0; b < choice->n_panels; b++) {
        for (int k = 0; k < 3; k++) {
            if (b > 0 || k > 0) fputs("\n\n", tsv);
            write_ranks(tsv, r, choice->panel[b], measures[k].key, measures[k].values[b], scratch);
        }
    }
    return AG_OK;
}
