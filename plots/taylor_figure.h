/* plots/taylor_figure.h: what the tables of the Taylor figures share. They are written like those of geometry
 * (figure.h). */
#ifndef AG_PLOTS_TAYLOR_FIGURE_H
#define AG_PLOTS_TAYLOR_FIGURE_H

#include "plots/figure.h"
#include "taylor/results.h"

/* The head that taylor-ladder looks at, into choice->layer (the model's number) and head, where not both were given:
 * the head whose share of |R| <= 0.5 c is the median among those that fit what was given. A layer or head that is not
 * there: AG_E_USAGE. */
enum ag_status plot_taylor_choose(struct plot_choice *choice, struct ag_error *err);
/* Position of a layer among those analysed, -1: not there. */
int64_t plot_taylor_slot(const struct taylor_results *results, int64_t layer);
/* The same for every layer of the model, (L); NULL when out of memory. */
const int64_t *plot_taylor_slots(const struct taylor_results *results, struct ag_arena *arena, struct ag_error *err);

/* Provenance, title (measure first), subtitle (with what is said in it besides) and source. */
enum ag_status plot_taylor_header(FILE *tsv, const char *figure, const char *measure, const char *besides,
                                  const struct plot_choice *choice, struct ag_arena *arena, struct ag_error *err);
/* "# KEYn<TAB>value" */
void plot_header_n(FILE *tsv, const char *key, int64_t n, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* 1,234,567 */
const char *plot_count(char out[32], int64_t n);
/* Quantile p of sorted values, linear between ranks; NaN when empty. */
double plot_quantile(const double *sorted, int64_t n, double p);
/* The rows first, into memory, so that the header can count what they hold: begin, write to ->stream, end (which gives
 * text and size, to be freed by rows_free). */
struct plot_rows {
    FILE *stream;
    char *text;
    size_t size;
};
enum ag_status plot_rows_begin(struct plot_rows *rows, struct ag_error *err);
enum ag_status plot_rows_end(struct plot_rows *rows, struct ag_error *err);
void plot_rows_free(struct plot_rows *rows);

enum ag_status plot_write_taylor_density(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                         struct ag_error *err);
enum ag_status plot_write_taylor_heatmap(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                         struct ag_error *err);
enum ag_status plot_write_taylor_ladder(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                        struct ag_error *err);
enum ag_status plot_write_taylor_radius(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                        struct ag_error *err);
enum ag_status plot_write_taylor_direction(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                           struct ag_error *err);
enum ag_status plot_write_taylor_orders(FILE *tsv, const struct plot_choice *choice, struct ag_arena *arena,
                                        struct ag_error *err);

#endif
