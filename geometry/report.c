#include "geometry/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* "83 % [71, 92]"; without a second unit there is no interval. */
static const char *share_text(char out[64], double share, double lo, double hi) {
    if (isnan(share))
        snprintf(out, 64, "no cell");
    else if (isnan(lo) || isnan(hi))
        snprintf(out, 64, "%.0f %% [no interval]", 100 * share);
    else
        snprintf(out, 64, "%.0f %% [%.0f, %.0f]", 100 * share, 100 * lo, 100 * hi);
    return out;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of the cells that are defined; NaN without any. */
static enum ag_status median(double *out, const double *x, int64_t n, struct ag_error *err) {
    struct ag_arena *arena = ag_arena_new("report");
    double *sorted = arena ? AG_NEW(arena, double, n, err) : NULL;
    int64_t m = 0;
    *out = NAN;
    if (!sorted) {
        ag_arena_free(arena);
        return ag_fail(err, AG_E_MEMORY, "geometry: out of memory for the report");
    }
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i])) sorted[m++] = x[i];
    qsort(sorted, (size_t)m, sizeof *sorted, ascending);
    if (m > 0) *out = (sorted[(m - 1) / 2] + sorted[m / 2]) / 2;
    ag_arena_free(arena);
    return AG_OK;
}

static enum ag_status what_was_analysed(struct ag_buf *out, const struct geom_results *g, struct ag_error *err) {
    int64_t cells = 0;
    for (int64_t l = 0; l < g->from.Ls; l++) cells += g->Hk[l];
    return ag_buf_printf(out, err,
                         "%s: keys at the %s tap%s, %" PRId64 " layers, %" PRId64 " cells (layer x key head); %" PRId64
                         " prompts, %" PRId64 " independent units; r = %" PRId64 ", skip %" PRId64 "\n",
                         g->from.model, ag_tap_names[g->from.tap],
                         g->from.tap == g->from.last_tap ? " (what attention reads)" : " (attention reads a later one)",
                         g->from.Ls, cells, g->from.P, g->from.units, g->r, g->skip);
}

static enum ag_status the_sign(struct ag_buf *out, const struct geom_results *g, struct ag_error *err) {
    const struct geom_summary *prompt = g->summary[GEOM_BASIS_PROMPT], *haystack = g->summary[GEOM_BASIS_HAYSTACK];
    char a[64], b[64], c[64], d[64];
    enum ag_status status = ag_buf_printf(
        out, err,
        "Delta-mu < 0 (needle off the dense directions, the premise) in %s of %" PRId64
        " cells on the prompt basis, in %s of %" PRId64
        " on the haystack basis, the control; pooled over tokens: %s and %s",
        share_text(a, prompt->fraction_negative, prompt->fraction_negative_lo, prompt->fraction_negative_hi),
        prompt->cells,
        share_text(b, haystack->fraction_negative, haystack->fraction_negative_lo, haystack->fraction_negative_hi),
        haystack->cells,
        share_text(c, prompt->fraction_negative_token, prompt->fraction_negative_token_lo,
                   prompt->fraction_negative_token_hi),
        share_text(d, haystack->fraction_negative_token, haystack->fraction_negative_token_lo,
                   haystack->fraction_negative_token_hi));
    if (status == AG_OK && g->basis[GEOM_BASIS_POOLED]) {
        const struct geom_summary *pooled = g->summary[GEOM_BASIS_POOLED];
        status = ag_buf_printf(
            out, err, "; basis of all prompts pooled: %s",
            share_text(a, pooled->fraction_negative, pooled->fraction_negative_lo, pooled->fraction_negative_hi));
    }
    if (status == AG_OK && prompt->zero + haystack->zero > 0)
        status = ag_buf_printf(out, err, "; exactly zero (the twins cancel) in %" PRId64 " and %" PRId64 " cells",
                               prompt->zero, haystack->zero);
    return status == AG_OK ? ag_buf_printf(out, err, "\n") : status;
}

static enum ag_status significance(struct ag_buf *out, const struct geom_results *g, struct ag_error *err) {
    const struct geom_summary *prompt = g->summary[GEOM_BASIS_PROMPT], *haystack = g->summary[GEOM_BASIS_HAYSTACK];
    enum ag_status status = ag_buf_printf(
        out, err,
        "q < 0.05: prompt basis %" PRId64 " cells below zero and %" PRId64 " above; haystack basis %" PRId64
        " below and %" PRId64 " above; smallest reachable p %.2g and %.2g",
        prompt->significant_negative, prompt->significant_positive, haystack->significant_negative,
        haystack->significant_positive, prompt->smallest_p, haystack->smallest_p);
    if (status != AG_OK) return status;
    const double least = fmin(prompt->smallest_p, haystack->smallest_p);
    return ag_buf_printf(out, err, "%s\n", least > 0.05 ? ": with so few units no cell can pass 0.05" : "");
}

/* The cell that speaks most for the premise and the one that speaks most against it, each with its control. */
static enum ag_status extremes(struct ag_buf *out, const struct geom_results *g, struct ag_error *err) {
    const struct geom_summary *prompt = g->summary[GEOM_BASIS_PROMPT], *haystack = g->summary[GEOM_BASIS_HAYSTACK];
    int64_t least = -1, most = -1;
    for (int64_t c = 0; c < g->from.Ls * g->H; c++) {
        if (isnan(prompt->delta_prompt[c])) continue;
        if (least < 0 || prompt->delta_prompt[c] < prompt->delta_prompt[least]) least = c;
        if (most < 0 || prompt->delta_prompt[c] > prompt->delta_prompt[most]) most = c;
    }
    enum ag_status status = AG_OK;
    for (int k = 0; k < 2 && status == AG_OK; k++) {
        const int64_t c = k == 0 ? least : most;
        status = ag_buf_printf(
            out, err, "%s layer %" PRId64 " head %" PRId64 " %+.3f [%+.3f, %+.3f], control %+.3f [%+.3f, %+.3f]%s",
            k == 0 ? "Lowest Delta-mu:" : "highest:", g->from.layer[c / g->H], c % g->H, prompt->delta_prompt[c],
            prompt->delta_prompt_lo[c], prompt->delta_prompt_hi[c], haystack->delta_prompt[c],
            haystack->delta_prompt_lo[c], haystack->delta_prompt_hi[c], k == 0 ? "; " : "\n");
    }
    return status;
}

static enum ag_status spectra(struct ag_buf *out, const struct geom_results *g, struct ag_error *err) {
    const struct geom_summary *s = g->summary[GEOM_BASIS_PROMPT];
    const int64_t C = g->from.Ls * g->H;
    double ev, gap, rank, dominance;
    enum ag_status status = AG_OK;
    AG_TRY(median(&ev, s->ev_r, C, err));
    AG_TRY(median(&gap, s->gap, C, err));
    AG_TRY(median(&rank, s->effective_rank, C, err));
    AG_TRY(median(&dominance, s->mean_dominance, C, err));
    if (isnan(ev)) return ag_buf_printf(out, err, "Spectra: missing everywhere\n");
    AG_TRY(ag_buf_printf(
        out, err,
        "Spectra (median over cells): the first %" PRId64 " of %" PRId64
        " axes explain %.2f of the variance (%.2f if all were equal); effective rank %.1f; mean dominance "
        "%.2f; how well posed U_r is, (s_r - s_{r+1}) / s_r: %.3f\n",
        g->r, g->Dmax, ev, (double)g->r / (double)g->Dmax, rank, dominance, gap));
fail:
    return status;
}

/* The reading follows from the two intervals alone: below, above or across one half. Percentile intervals over two to five
 * units are far too narrow, and no test can reach 0.05 there, so nothing is read from them. */
static enum ag_status reading(struct ag_buf *out, const struct geom_results *g, struct ag_error *err) {
    const struct geom_summary *prompt = g->summary[GEOM_BASIS_PROMPT], *haystack = g->summary[GEOM_BASIS_HAYSTACK];
    const bool known = !isnan(prompt->fraction_negative_lo) && !isnan(haystack->fraction_negative_lo);
    const bool for_it = prompt->fraction_negative_lo > 0.5, against = prompt->fraction_negative_hi < 0.5;
    const char *text;
    if (!known)
        text = "undecided: fewer than two independent units with needle and distractor";
    else if (prompt->smallest_p > 0.05 || haystack->smallest_p > 0.05)
        text =
            "undecided: too few independent units for a test or an interval to mean something; six or more are needed";
    else if (for_it && haystack->fraction_negative_lo > 0.5)
        text = "for the premise: the sign is negative in most cells, also on the control, where no repeated sentence "
               "shapes U_r";
    else if (for_it && haystack->fraction_negative_hi < 0.5)
        text = "against the premise: negative in most cells on the prompt basis, but on the control, where no repeated "
               "sentence "
               "shapes U_r, in a minority; the repetition itself makes the effect";
    else if (for_it)
        text =
            "not established: negative in most cells on the prompt basis, but there partly by construction (repeated "
            "distractors shape U_r), and the control does not decide";
    else if (against)
        text = "against the premise: the sign is negative in a minority of cells even on the prompt basis";
    else
        text = "not established: the share of negative cells is compatible with one half already on the prompt basis";
    return ag_buf_printf(out, err, "Reading: %s.\n", text);
}

static enum ag_status what_is_missing(struct ag_buf *out, const struct geom_results *g, struct ag_error *err) {
    int64_t missing[2] = {0, 0}, few = 0, zero = 0, undefined = 0, records = 0;
    const enum geom_basis bases[2] = {GEOM_BASIS_PROMPT, GEOM_BASIS_HAYSTACK};
    for (int64_t l = 0; l < g->from.Ls; l++) {
        for (int64_t h = 0; h < g->Hk[l]; h++) {
            const int64_t c = l * g->H + h;
            records += g->from.P;
            for (int b = 0; b < 2; b++) missing[b] += g->summary[bases[b]]->prompts_missing[c];
            few += g->summary[GEOM_BASIS_PROMPT]->prompts_few_keys[c];
            zero += g->summary[GEOM_BASIS_PROMPT]->prompts_zero_trace[c];
            undefined += g->summary[GEOM_BASIS_PROMPT]->tokens_undefined[c];
        }
    }
    if (missing[0] + missing[1] + few + zero + undefined + g->storage_lost == 0) return AG_OK;
    return ag_buf_printf(out, err,
                         "Of %" PRId64 " (prompt, layer, head) records: missing (r + 1 or fewer keys) %" PRId64
                         " on the prompt and %" PRId64 " on the haystack basis; fewer than D + 1 keys %" PRId64
                         "; no variance %" PRId64 "; variance lost by 16-bit storage %" PRId64
                         "; tokens without a direction %" PRId64 "\n",
                         records, missing[0], missing[1], few, zero, g->storage_lost, undefined);
}

enum ag_status geom_report(struct ag_buf *out, const struct geom_results *results, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const bool any = results->summary[GEOM_BASIS_PROMPT]->cells > 0;
    AG_TRY(what_was_analysed(out, results, err));
    if (any) {
        AG_TRY(the_sign(out, results, err));
        AG_TRY(significance(out, results, err));
        AG_TRY(extremes(out, results, err));
    } else {
        AG_TRY(ag_buf_printf(out, err,
                             "Delta-mu: missing everywhere: no prompt has an alignment for both needle and "
                             "distractor tokens (spans absent, skipped, or r + 1 or fewer keys)\n"));
    }
    AG_TRY(spectra(out, results, err));
    if (any) AG_TRY(reading(out, results, err));
    AG_TRY(what_is_missing(out, results, err));
fail:
    return status;
}

static void print_header(FILE *file, const struct geom_results *g, const char *what) {
    fprintf(file, "# attgeo geometry: %s\n# model %s, checkpoint %s, prompts %s\n", what, g->from.model,
            g->from.checkpoint_sha256, g->from.prompts_sha256);
    fprintf(file,
            "# tap %s (last %s), r %" PRId64 ", skip %" PRId64 ", %" PRId64 " prompts, %" PRId64 " units, %" PRId64
            " bootstrap draws, seed %" PRId64 "\n# command: ",
            ag_tap_names[g->from.tap], ag_tap_names[g->from.last_tap], g->r, g->skip, g->from.P, g->from.units,
            g->draws, g->resample_seed);
    for (const char *c = g->from.command; *c; c++) fputc(*c == '\n' || *c == '\r' ? ' ' : *c, file);
    fprintf(file,
            "\n# layers are numbered from 0; intervals are 95 %% percentile bootstrap over units; nan: missing\n");
}

static void print_cells(FILE *file, const struct geom_results *g, int b) {
    const struct geom_summary *s = g->summary[b];
    for (int64_t l = 0; l < g->from.Ls; l++) {
        for (int64_t h = 0; h < g->Hk[l]; h++) {
            const int64_t c = l * g->H + h;
            const double values[] = {s->delta_prompt[c],
                                     s->delta_prompt_lo[c],
                                     s->delta_prompt_hi[c],
                                     s->p[c],
                                     s->q[c],
                                     s->delta_token[c],
                                     s->delta_token_lo[c],
                                     s->delta_token_hi[c],
                                     s->ev_r[c],
                                     s->gap[c],
                                     s->effective_rank[c],
                                     s->participation_ratio[c],
                                     s->stable_rank[c],
                                     s->numerical_rank[c],
                                     s->condition[c],
                                     s->mean_dominance[c],
                                     s->trace[c]};
            fprintf(file, "%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64, geom_basis_names[b], g->from.layer[l], h,
                    g->D[l], s->units[c]);
            for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) fprintf(file, ",%.10g", values[i]);
            for (int role = 0; role < AG_ROLE_COUNT; role++)
                fprintf(file, ",%.10g", s->align[c * AG_ROLE_COUNT + role]);
            fprintf(file, ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "\n", s->prompts_missing[c],
                    s->prompts_few_keys[c], s->prompts_zero_trace[c], s->tokens_undefined[c]);
        }
    }
}

static void print_layers(FILE *file, const struct geom_results *g, int b) {
    const struct geom_summary *s = g->summary[b];
    for (int64_t l = 0; l < g->from.Ls; l++) {
        for (int role = 0; role < AG_ROLE_COUNT; role++) {
            const int64_t i = l * AG_ROLE_COUNT + role;
            fprintf(file, "%s,%" PRId64 ",%s,%.10g,%.10g,%.10g\n", geom_basis_names[b], g->from.layer[l],
                    ag_role_names[role], s->layer_align[i], s->layer_align_lo[i], s->layer_align_hi[i]);
        }
        fprintf(file, "%s,%" PRId64 ",needle-distractor,%.10g,%.10g,%.10g\n", geom_basis_names[b], g->from.layer[l],
                s->layer_delta[l], s->layer_delta_lo[l], s->layer_delta_hi[l]);
    }
}

static void print_spectra(FILE *file, const struct geom_results *g, int b) {
    const struct geom_summary *s = g->summary[b];
    for (int64_t l = 0; l < g->from.Ls; l++)
        for (int64_t h = 0; h < g->Hk[l]; h++)
            for (int64_t i = 0; i < g->D[l]; i++)
                fprintf(file, "%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%.10g,%.10g\n", geom_basis_names[b],
                        g->from.layer[l], h, i + 1, s->scree[(l * g->H + h) * g->Dmax + i],
                        s->explained[(l * g->H + h) * g->Dmax + i]);
}

static const struct {
    const char *name, *what, *columns;
    void (*print)(FILE *, const struct geom_results *, int);
} tables[] = {
    {"cells.csv", "one line a basis, layer and key head; Delta-mu is needle minus distractor alignment",
     "basis,layer,head,D,units,delta_mu_prompt,delta_mu_prompt_lo,delta_mu_prompt_hi,p,q,delta_mu_token,"
     "delta_mu_token_lo,delta_mu_token_hi,ev_r,gap,effective_rank,participation_ratio,stable_rank,numerical_rank,"
     "condition,mean_dominance,trace,align_haystack,align_needle,align_distractor,align_question,align_answer,"
     "align_special,prompts_missing,prompts_few_keys,prompts_zero_trace,tokens_undefined",
     print_cells},
    {"layers.csv", "mean alignment by role and layer (mean over heads, prompts of a unit, units)",
     "basis,layer,role,alignment,lo,hi", print_layers},
    {"spectra.csv", "shares s_i / tr of the eigenvalues and their cumulative sum, mean over prompts",
     "basis,layer,head,i,share,explained", print_spectra},
};

#define TABLES (sizeof tables / sizeof tables[0])

enum ag_status geom_tables_check(const char *folder, bool force, struct ag_error *err) {
    const enum ag_kind kind = ag_path_kind(folder);
    if (kind != AG_KIND_NONE && kind != AG_KIND_FOLDER)
        return ag_fail(err, AG_E_IO, "%s: is no folder; tables go into a folder of their own", folder);
    for (size_t i = 0; i < TABLES && !force; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, tables[i].name);
        if (ag_path_kind(path) != AG_KIND_NONE)
            return ag_fail(err, AG_E_IO, "%s: exists already; choose another folder or give --force", path);
    }
    return AG_OK;
}

enum ag_status geom_tables(const struct geom_results *results, const char *folder, bool force, struct ag_error *err) {
    enum ag_status status = ag_path_make_folder(folder, err);
    struct ag_arena *arena = status == AG_OK ? ag_arena_new("tables") : NULL;
    if (status != AG_OK) return status;
    if (!arena) return ag_fail(err, AG_E_MEMORY, "geometry: out of memory for tables");
    for (size_t i = 0; i < TABLES && status == AG_OK; i++) {
        struct ag_out out;
        const char *path = ag_path_join(arena, folder, tables[i].name, err);
        if (!path) status = AG_E_MEMORY;
        if (status == AG_OK) status = ag_out_begin(&out, path, force, err);
        if (status != AG_OK) break;
        print_header(out.stream, results, tables[i].what);
        fprintf(out.stream, "%s\n", tables[i].columns);
        for (int b = 0; b < GEOM_BASIS_COUNT; b++)
            if (results->basis[b]) tables[i].print(out.stream, results, b);
        status = ag_out_commit(&out, err);
        if (status != AG_OK) ag_out_discard(&out);
    }
    ag_arena_free(arena);
    return status;
}
