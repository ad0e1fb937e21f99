/* plots/figure.h: figures of results files (geometry/results.h, taylor/results.h), as data: each figure is a TSV table
 * whose header carries all that is written on the picture, and a committed gnuplot script that draws such a table. */
#ifndef AG_PLOTS_FIGURE_H
#define AG_PLOTS_FIGURE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum plot_pooling { PLOT_POOL_PROMPT, PLOT_POOL_TOKEN, PLOT_POOL_COUNT };
extern const char *const plot_pooling_names[PLOT_POOL_COUNT + 1];

/* One basis (MATH.md section 4) of a results file. Arrays are (Ls, H) unless said; NaN: missing. */
struct plot_basis {
    const char *name;
    const double *delta[PLOT_POOL_COUNT], *lo[PLOT_POOL_COUNT], *hi[PLOT_POOL_COUNT];
    const double *p, *q;                                         /* pooling prompt only */
    const double *layer_align, *layer_lo, *layer_hi;             /* (Ls, roles) */
    const double *layer_delta, *layer_delta_lo, *layer_delta_hi; /* (Ls) needle - distractor within a prompt */
    const double *effective_rank, *participation_ratio, *stable_rank, *ev_r;
    const double *scree, *explained; /* (Ls, H, Dmax) */
    /* Share of cells below 0 with its interval, by pooling. */
    double fraction[PLOT_POOL_COUNT], fraction_lo[PLOT_POOL_COUNT], fraction_hi[PLOT_POOL_COUNT];
    double smallest_p; /* NaN: no cell */
    int64_t significant_negative, significant_positive;
};
struct plot_results {
    const char *path, *model, *architecture, *tap, *last_tap, *checkpoint_sha256, *prompts_sha256, *version;
    int64_t Ls, H, Dmax, roles, P, r, skip, units;
    int64_t storage_lost;          /* records whose spread was lost by 16-bit storage */
    const int64_t *layer, *Hk, *D; /* (Ls) */
    struct plot_basis basis[3];
    int n_bases;
};

/* Which results a file holds. Another kind of file (a dump, an unknown schema) is AG_E_UNSUPPORTED, saying what to do.
 */
enum plot_schema { PLOT_GEOMETRY, PLOT_TAYLOR, PLOT_SCHEMAS };
enum ag_status plot_schema_of(enum plot_schema *out, const char *path, struct ag_arena *arena, struct ag_error *err);

/* Reads what the figures need into the arena. Another kind of file (a dump, an unknown schema) is AG_E_UNSUPPORTED,
 * saying what to do; a damaged one AG_E_FORMAT. */
enum ag_status plot_results_open(struct plot_results *out, const char *path, struct ag_arena *arena,
                                 struct ag_error *err);
/* The basis of that name, or NULL. */
const struct plot_basis *plot_find_basis(const struct plot_results *results, const char *name);

struct taylor_results;
struct plot_choice {
    const char *path;
    const struct plot_results *results;  /* of attgeo geometry, or NULL; with the panels and pooling */
    const struct taylor_results *taylor; /* of attgeo taylor, or NULL; with layer and head */
    int64_t layer, head;                 /* the head that is looked at closely; -1 before plot_taylor_choose: ours */
    bool head_given;                     /* layer or head was asked for */
    int64_t end_layer[2], end_head[2];   /* the heads with the lowest and the highest share of |R| <= 0.5 c */
    const struct plot_basis *panel[3];   /* the chosen basis, then its control */
    int n_panels;
    enum plot_pooling pooling;
    double range; /* half width of the colour range of Delta-mu, of the median R/c; 0: ours */
};

/* A figure: its name is that of its files; script and script_end enclose the embedded gnuplot text. */
struct plot_figure {
    const char *name, *about;
    const char *script, *script_end;
    enum ag_status (*write)(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena, struct ag_error *err);
};
enum { PLOT_DELTA_MU, PLOT_SEPARATION, PLOT_SPECTRA, PLOT_RANK, PLOT_FIGURES };
extern const struct plot_figure plot_figures[PLOT_FIGURES];
enum {
    PLOT_TAYLOR_DENSITY,
    PLOT_TAYLOR_HEATMAP,
    PLOT_TAYLOR_LADDER,
    PLOT_TAYLOR_RADIUS,
    PLOT_TAYLOR_DIRECTION,
    PLOT_TAYLOR_ORDERS,
    PLOT_TAYLOR_FIGURES
};
extern const struct plot_figure plot_taylor_figures[PLOT_TAYLOR_FIGURES]; /* plots/taylor_table.c */
/* By schema: what is drawn. */
struct plot_set {
    const char *schema, *made_by;
    const struct plot_figure *figures;
    int n;
};
extern const struct plot_set plot_sets[PLOT_SCHEMAS];
/* Put before every script that is written out: terminals, reading of the header, title and notes. */
extern const char plot_style[], plot_style_end[];

/* The table functions behind plot_figures. Errors: memory only; the caller checks the stream. */
enum ag_status plot_write_delta_mu(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                   struct ag_error *err);
enum ag_status plot_write_separation(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                     struct ag_error *err);
enum ag_status plot_write_spectra(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                  struct ag_error *err);
enum ag_status plot_write_rank(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                               struct ag_error *err);

/* Shared by the tables. */
struct plot_axis {
    double min, max, step;
};
/* Text safe in a TSV cell and for gnuplot: control characters, tabs and double quotes replaced, broken UTF-8 too,
 * shortened in the middle to at most `most` characters (0: not at all). */
const char *plot_text(const char *text, int most, struct ag_arena *arena, struct ag_error *err);
/* "# key<TAB>value" */
void plot_header(FILE *tsv, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Provenance and title common to all figures; measure is the first part of the title; pooling NULL: the figure pools nothing. */
enum ag_status plot_provenance(FILE *tsv, const char *figure, const char *measure, const char *pooling,
                               const struct plot_choice *choice, struct ag_arena *arena, struct ag_error *err);
/* "%.9g", with NaN and the infinities spelled the same everywhere. */
void plot_number(FILE *tsv, double value);
/* The first cells of a row: basis, layer; a further cell: a tab and the number. */
void plot_row(FILE *tsv, const struct plot_basis *basis, int64_t layer);
void plot_cell(FILE *tsv, double value);
/* Said in the middle of a panel (its part, from 1) that has no point, so that it is not taken for a fault of the
 * drawing. */
void plot_header_empty(FILE *tsv, int panel, int part, int64_t drawn, const char *why);
/* PREFIX_min, PREFIX_max, PREFIX_step; the first and the last layer. */
void plot_header_axis(FILE *tsv, const char *prefix, struct plot_axis axis);
void plot_header_layers(FILE *tsv, const struct plot_results *results);
/* For qsort; NaN must have been removed. */
int plot_compare_doubles(const void *a, const void *b);
/* A number for people: `%.*f` with a true minus sign. */
const char *plot_label(char out[64], double value, int decimals);
/* An axis that holds [lo, hi] (lo > hi: nothing finite): nice ends and step; [0, 1] is not left when the data do not.
 */
struct plot_axis plot_nice_axis(double lo, double hi, bool unit_interval);
/* The smallest of 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten that is >= value > 0. */
double plot_round_up(double value);
/* The half width of a colour range around 0 for n magnitudes (sorted here): given, if > 0; else up to the largest, but
 * not dictated by a few: those over four times the 95th percentile do not count, they are clipped (and counted by the
 * caller). *how: said on the figure; `what` is the quantity's name in it. */
struct plot_range {
    double half;
    const char *how;
};
enum ag_status plot_choose_range(struct plot_range *out, double *magnitudes, int64_t n, double given, const char *what,
                                 struct ag_arena *arena, struct ag_error *err);
/* Finite and small enough that gnuplot's own arithmetic cannot overflow. */
bool plot_drawable(double value);

/* plots/gnuplot.c: the program that draws. */
enum plot_format { PLOT_PNG, PLOT_SVG, PLOT_PDF, PLOT_FORMATS };
extern const char *const plot_format_names[PLOT_FORMATS + 1];
/* Is gnuplot there, new enough, with a terminal for each format of the mask and our font? A missing font is not an
 * error: *warning receives a sentence (else NULL). */
enum ag_status plot_gnuplot_check(uint64_t formats, const char **warning, struct ag_arena *arena, struct ag_error *err);
/* `gnuplot -d -c SCRIPT DATA OUTPUT` in folder, without a shell; names are relative to it. What it says on success is
 * put in *talk (NULL when silent); on failure it is in the message, and an output it left behind is deleted. */
enum ag_status plot_gnuplot_run(const char *folder, const char *script, const char *data, const char *output,
                                const char **talk, struct ag_arena *arena, struct ag_error *err);

#ifdef __cplusplus
}
#endif
#endif
