/* plots/taylor_table.c: the list of the Taylor figures and what their tables share: the choice of a head, provenance,
 * rows in memory. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "plots/taylor_figure.h"

AG_EMBED(script_taylor_density, "plots/taylor-density.gp");
AG_EMBED(script_taylor_heatmap, "plots/taylor-heatmap.gp");
AG_EMBED(script_taylor_ladder, "plots/taylor-ladder.gp");
AG_EMBED(script_taylor_radius, "plots/taylor-radius.gp");
AG_EMBED(script_taylor_direction, "plots/taylor-direction.gp");
AG_EMBED(script_taylor_orders, "plots/taylor-orders.gp");

const struct plot_figure plot_taylor_figures[PLOT_TAYLOR_FIGURES] = {
    {"taylor-density", "all causal queries by sqrt(v) and |R|/c, by layer", script_taylor_density,
     script_taylor_density_end, plot_write_taylor_density},
    {"taylor-heatmap", "median R/c and share inside the trust radius, by layer and query head", script_taylor_heatmap,
     script_taylor_heatmap_end, plot_write_taylor_heatmap},
    {"taylor-ladder", "enclosures of R at the sampled queries of one head", script_taylor_ladder,
     script_taylor_ladder_end, plot_write_taylor_ladder},
    {"taylor-radius", "R/c along a few queries, with its enclosure and trust radii", script_taylor_radius,
     script_taylor_radius_end, plot_write_taylor_radius},
    {"taylor-direction", "direction fidelity by layer", script_taylor_direction, script_taylor_direction_end,
     plot_write_taylor_direction},
    {"taylor-orders", "error of the expansion by order and layer", script_taylor_orders, script_taylor_orders_end,
     plot_write_taylor_orders},
};

/* ---- the head to look at ---- */

int64_t plot_taylor_slot(const struct taylor_results *r, int64_t layer) {
    for (int64_t l = 0; l < r->from.Ls; l++)
        if (r->from.layer[l] == layer) return l;
    return -1;
}

const int64_t *plot_taylor_slots(const struct taylor_results *r, struct ag_arena *arena, struct ag_error *err) {
    int64_t *slot = AG_NEW(arena, int64_t, r->from.L, err);
    for (int64_t l = 0; slot != NULL && l < r->from.L; l++) slot[l] = -1;
    for (int64_t l = 0; slot != NULL && l < r->from.Ls; l++) slot[r->from.layer[l]] = l;
    return slot;
}

struct candidate {
    double share; /* NaN is put last */
    int64_t l, h;
};
static int by_share(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    const double s = isnan(x->share) ? 2 : x->share, t = isnan(y->share) ? 2 : y->share;
    if (s != t) return s < t ? -1 : 1;
    if (x->l != y->l) return x->l < y->l ? -1 : 1;
    return (x->h > y->h) - (x->h < y->h);
}

enum ag_status plot_taylor_choose(struct plot_choice *choice, struct ag_error *err) {
    const struct taylor_results *r = choice->taylor;
    const int64_t Ls = r->from.Ls;
    int64_t n = 0, finite = 0, most = 0, l0 = 0, l1 = Ls;
    choice->head_given = choice->layer >= 0 || choice->head >= 0;
    if (choice->layer >= 0) {
        l0 = plot_taylor_slot(r, choice->layer);
        if (l0 < 0)
            return ag_fail(err, AG_E_USAGE,
                           "--layer %" PRId64 ": %s holds no such layer; expected one of %" PRId64 " analysed, %" PRId64
                           " to %" PRId64,
                           choice->layer, choice->path, Ls, r->from.layer[0], r->from.layer[Ls - 1]);
        l1 = l0 + 1;
    }
    for (int64_t l = l0; l < l1; l++) most = r->Hq[l] > most ? r->Hq[l] : most;
    if (choice->head >= most)
        return ag_fail(err, AG_E_USAGE, "--head %" PRId64 ": %s has query heads 0 to %" PRId64 "%s", choice->head,
                       choice->path, most - 1, choice->layer >= 0 ? " in that layer" : "");
    struct ag_arena *scratch = ag_arena_new("choosing a head");
    struct candidate *all = scratch ? AG_NEW(scratch, struct candidate, Ls * r->H, err) : NULL;
    if (all == NULL) {
        ag_arena_free(scratch);
        return ag_fail(err, AG_E_MEMORY, "plot: no memory");
    }
    for (int64_t l = l0; l < l1; l++)
        for (int64_t h = 0; h < r->Hq[l]; h++) {
            if (choice->head >= 0 && h != choice->head) continue;
            const double share = r->summary->share[(l * r->H + h) * TAYLOR_COUNTS + TAYLOR_N_EPS_1];
            all[n++] = (struct candidate){share, l, h};
            finite += !isnan(share);
        }
    qsort(all, (size_t)n, sizeof all[0], by_share);
    const struct candidate *median = &all[finite > 0 ? (finite - 1) / 2 : 0],
                           *ends[2] = {&all[0], &all[finite > 0 ? finite - 1 : 0]};
    choice->layer = r->from.layer[median->l];
    choice->head = median->h;
    for (int i = 0; i < 2; i++) {
        choice->end_layer[i] = r->from.layer[ends[i]->l];
        choice->end_head[i] = ends[i]->h;
    }
    ag_arena_free(scratch);
    return AG_OK;
}

/* ---- the header ---- */

const char *plot_count(char out[32], int64_t n) {
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%" PRId64, n);
    int used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-') out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

void plot_header_n(FILE *tsv, const char *key, int64_t n, const char *format, ...) {
    va_list list;
    fprintf(tsv, "# %s%" PRId64 "\t", key, n);
    va_start(list, format);
    vfprintf(tsv, format, list);
    va_end(list);
    fputc('\n', tsv);
}

enum ag_status plot_taylor_header(FILE *tsv, const char *figure, const char *measure, const char *besides,
                                  const struct plot_choice *choice, struct ag_arena *arena, struct ag_error *err) {
    const struct taylor_results *r = choice->taylor;
    const struct ag_provenance *from = &r->from;
    const char *tap = ag_tap_names[from->tap], *last = ag_tap_names[from->last_tap];
    const char *slash = strrchr(choice->path, '/'), *path = slash != NULL ? slash + 1 : choice->path;
    const struct {
        const char *key, *value;
        int most;
    } given[] = {
        {"model", from->model, 0},
        {"architecture", from->architecture, 0},
        {"checkpoint_sha256", from->checkpoint_sha256, 0},
        {"prompts_sha256", from->prompts_sha256, 0},
        {"results", path, 0},
        {"version", from->version, 60},
    };
    enum { COUNT = sizeof given / sizeof given[0] };
    const char *text[COUNT], *brief = plot_text(from->model, 44, arena, err);
    int64_t queries = 0;
    char many[32];
    if (brief == NULL) return AG_E_MEMORY;
    plot_header(tsv, "figure", "%s", figure);
    for (size_t i = 0; i < COUNT; i++) {
        if ((text[i] = plot_text(given[i].value, given[i].most, arena, err)) == NULL) return AG_E_MEMORY;
        plot_header(tsv, given[i].key, "%s", text[i]);
    }
    for (int64_t l = 0; l < from->Ls; l++)
        for (int64_t i = 0; i < from->P * r->Hq[l]; i++)
            queries += r->records[l].counts[i * TAYLOR_COUNTS + TAYLOR_N_QUERIES];
    plot_header(tsv, "tap", "%s", tap);
    plot_header(tsv, "last_tap", "%s", last);
    plot_header(tsv, "softmax_sees", "%d", from->tap == from->last_tap);
    plot_header(tsv, "r", "%" PRId64, r->r);
    plot_header(tsv, "prompts", "%" PRId64, from->P);
    plot_header(tsv, "units", "%" PRId64, from->units);
    plot_header(tsv, "queries", "%" PRId64, queries);
    plot_header(tsv, "samples", "%" PRId64, r->n_samples);
    plot_header(tsv, "sample_seed", "%" PRId64, r->sample_seed);
    plot_header(tsv, "title", "%s · %s", measure, brief);
    char seen[64];
    if (from->tap == from->last_tap) {
        snprintf(seen, sizeof seen, "tap %s", tap);
    } else {
        snprintf(seen, sizeof seen, "tap %s, NOT what the read sees (%s)", tap, last);
    }
    plot_header(tsv, "subtitle", "%s · %" PRId64 " prompt%s (%" PRId64 " unit%s) · %s causal queries%s%s", seen,
                from->P, from->P == 1 ? "" : "s", from->units, from->units == 1 ? "" : "s", plot_count(many, queries),
                besides[0] != '\0' ? " · " : "", besides);
    plot_header(tsv, "source", "checkpoint %.12s · prompts %.12s (SHA-256) · attgeo %s", text[2], text[3], text[5]);
    plot_header(tsv, "layer_min", "%" PRId64, from->layer[0]);
    plot_header(tsv, "layer_max", "%" PRId64, from->layer[from->Ls - 1]);
    return AG_OK;
}

double plot_quantile(const double *sorted, int64_t n, double p) {
    if (n == 0) return NAN;
    const double at = p * (double)(n - 1);
    const int64_t i = (int64_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

/* ---- rows in memory ---- */

enum ag_status plot_rows_begin(struct plot_rows *rows, struct ag_error *err) {
    *rows = (struct plot_rows){NULL, NULL, 0};
    rows->stream = open_memstream(&rows->text, &rows->size);
    return rows->stream != NULL ? AG_OK : ag_fail(err, AG_E_MEMORY, "plot: no memory for the table");
}

enum ag_status plot_rows_end(struct plot_rows *rows, struct ag_error *err) {
    FILE *stream = rows->stream;
    rows->stream = NULL;
    const bool failed = ferror(stream) != 0;
    if (fclose(stream) != 0 || failed) return ag_fail(err, AG_E_MEMORY, "plot: no memory for the table");
    return AG_OK;
}

void plot_rows_free(struct plot_rows *rows) {
    if (rows->stream != NULL) (void)fclose(rows->stream);
    free(rows->text);
}
