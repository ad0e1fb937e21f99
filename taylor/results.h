/* taylor/results.h: the Taylor results file (HDF5). The schema is written down here, once; taylor_results_write makes it and
 * taylor_results_read checks it. Definitions: MATH.md section 5.
 *
 *  / attributes          schema "attgeo-taylor-1"; provenance as in geometry/results.h; tap, last_tap as text, softmax_sees
 *                        (0/1: tap is the one the read sees), L, P, T, samples (rows), queries (N a prompt), seed,
 *                        eps (3) f64, r (of direction fidelity), quantities, bounds ("B1,B2,B3,B4"), bins in words,
 *                        definitions
 *  /prompts/id (P) utf8, twin (P) i64, unit (P) i64
 *  /layers (Ls) i64      the layers analysed; attributes Hq, Hk, D, window (Ls) i64, scale (Ls) f64
 *
 *  All causal queries:
 *  /records/N/counts (P, Hq, TAYLOR_COUNTS) i64: see enum taylor_count; medians (P, Hq, TAYLOR_MEDIANS) f64, NaN: none
 *  /histograms/N/counts (Hq, quantities, 2, TAYLOR_BINS) i32: second axis: negative, positive values (bins by magnitude)
 *  /density/N (TAYLOR_DENSITY, TAYLOR_DENSITY) i64: queries by sqrt(v) (rows) and |R|/c (columns), 2 bins an octave from
 *                        2^-20; the first and last bins take what is beyond
 *
 *  Folded, (Ls, H) with H the most query heads of any layer, NaN where missing; value-lo-hi: 95 % bootstrap over units:
 *  /summary/quantiles (Ls, H, quantities, 7) f64 at 1, 5, 25, 50, 75, 95, 99 %; layer_quantiles (Ls, quantities, 7);
 *                        model_quantiles (quantities, 7): from the histograms, right to half a bin (2.2 %). The errors of the cumulant
 *                        expansion are among the quantities: error_0, c (order 1), abs_R (order 2), error_3, error_4
 *  /summary/share (Ls, H, counts): each count as a share of all queries (eps: |R| <= eps c) or of those with v > 0 (sign, proved,
 *                        finite); B4's are missing in window layers; layer_share (Ls, counts, 3), model_share (counts, 3)
 *  /summary/layer_median (Ls, medians, 3), model_median (medians, 3): mean over units of the medians within prompt and head
 *
 *  Sampled queries (double precision logits), one row each; every dataset (rows):
 *  /samples/prompt, layer, head, position, keys i64; role u8; value u8 (1: its target is a value token of the answer; 2: the
 *                        headline query); q_norm, m, v, a, b, A, c, R, dR, effective, largest f64; lo, hi (rows, 5) for B1..B4, B4x;
 *                        radius, proved (rows, 3) f64, certified (rows, 3) u8; cosine, span (direction fidelity; NaN: missing),
 *                        gradient (|e|), gradient_bound (D_k c)
 *
 *  Along a few sampled queries (of the first prompt that has any: taylor_curve_positions), for figures; may be missing:
 *  /curves/s (33) f64    k / 32; /curves/sample (n) i64: row of /samples; ratio, lo, hi (n, 33) f64: R(s q)/c(s q), NaN where v = 0
 *                        or c is lost to rounding, and its enclosure by B3 from s m, s^2 v, s a, s b (at most 1; -inf: nothing known)
 */
#ifndef AG_TAYLOR_RESULTS_H
#define AG_TAYLOR_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/block.h"
#include "base/provenance.h"
#include "taylor/enclosure.h"
#include "taylor/histogram.h"
#include "taylor/radius.h"

#define TAYLOR_SCHEMA "attgeo-taylor-1"

/* Histogrammed for all causal queries. R_over_c is signed, the others are not negative. */
enum taylor_quantity {
    TAYLOR_Q_NORM,    /* |q|, scale included */
    TAYLOR_RADIUS_V,  /* sqrt(v) */
    TAYLOR_RANGE,     /* b - a */
    TAYLOR_C,         /* competition; also the error of order 1 */
    TAYLOR_ABS_R,     /* |R|; also the error of order 2 */
    TAYLOR_R_OVER_C,  /* signed */
    TAYLOR_R_OVER_V2, /* |R| / (v / 2) */
    TAYLOR_EFFECTIVE, /* effective keys */
    TAYLOR_LARGEST,   /* largest weight */
    TAYLOR_WIDTH_B1,
    TAYLOR_WIDTH_B2,
    TAYLOR_WIDTH_B3,
    TAYLOR_WIDTH_B4, /* width / |R| */
    TAYLOR_ERROR_0,
    TAYLOR_ERROR_3,
    TAYLOR_ERROR_4, /* |A - A_n| of orders 0, 3, 4 */
    TAYLOR_QUANTITIES
};

/* Per (prompt, query head). */
enum taylor_count {
    TAYLOR_N_QUERIES,
    TAYLOR_N_DEGENERATE, /* v = 0: R/c, width/|R| and sign missing */
    TAYLOR_N_EPS_0,
    TAYLOR_N_EPS_1,
    TAYLOR_N_EPS_2, /* |R| <= eps c, eps = 0.1, 0.5, 1 (degenerate ones included) */
    TAYLOR_N_SIGN_B1,
    TAYLOR_N_SIGN_B2,
    TAYLOR_N_SIGN_B3,
    TAYLOR_N_SIGN_B4, /* the bound fixes the sign of R */
    TAYLOR_N_PROVED_B1,
    TAYLOR_N_PROVED_B2,
    TAYLOR_N_PROVED_B3,
    TAYLOR_N_PROVED_B4, /* lower end >= -v/4: |R| <= c */
    TAYLOR_N_FINITE_B1,
    TAYLOR_N_FINITE_B2,
    TAYLOR_N_FINITE_B3,
    TAYLOR_N_FINITE_B4,
    TAYLOR_COUNTS
};
enum taylor_median {
    TAYLOR_M_R_OVER_C,
    TAYLOR_M_ABS_R_OVER_C,
    TAYLOR_M_RADIUS_V,
    TAYLOR_M_EFFECTIVE,
    TAYLOR_M_LARGEST,
    TAYLOR_MEDIANS
};

enum { TAYLOR_QUANTILES = 7, TAYLOR_ORDERS = 5 };
extern const double taylor_quantile_points[TAYLOR_QUANTILES]; /* 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99 */
extern const char *const taylor_quantity_names[TAYLOR_QUANTITIES + 1];
extern const char *const taylor_count_names[TAYLOR_COUNTS + 1];
extern const char *const taylor_median_names[TAYLOR_MEDIANS + 1];

/* One layer, all causal queries. */
struct taylor_records {
    int64_t *counts;     /* (P, Hq, TAYLOR_COUNTS) */
    double *medians;     /* (P, Hq, TAYLOR_MEDIANS) */
    int32_t *histograms; /* (Hq, TAYLOR_QUANTITIES, 2, TAYLOR_BINS) */
    int64_t *density;    /* (TAYLOR_DENSITY, TAYLOR_DENSITY) */
};

/* One sampled query. */
enum { TAYLOR_B4X = TAYLOR_BOUNDS, TAYLOR_SAMPLE_BOUNDS };
struct taylor_sample {
    int64_t prompt, layer, head, position, keys;
    uint8_t role, value; /* value: 1 its target is a value token of the answer, 2 the headline query */
    double q_norm, m, v, a, b, A, c, R, dR, effective, largest;
    struct taylor_interval bound[TAYLOR_SAMPLE_BOUNDS];
    struct taylor_radius radius[TAYLOR_EPS];
    double cosine, span, gradient, gradient_bound; /* NaN: missing */
};

/* A share with its interval. */
struct taylor_share {
    double value, lo, hi;
};

/* Along one sampled query. */
enum { TAYLOR_CURVE = 33 };
struct taylor_curve {
    int64_t sample; /* row */
    double ratio[TAYLOR_CURVE];
    struct taylor_interval bound[TAYLOR_CURVE];
};

struct taylor_summary {
    double *quantiles;       /* (Ls, H, TAYLOR_QUANTITIES, 7) */
    double *layer_quantiles; /* (Ls, TAYLOR_QUANTITIES, 7) */
    double *model_quantiles; /* (TAYLOR_QUANTITIES, 7) */
    double *
        share; /* (Ls, H, TAYLOR_COUNTS): count / queries (degenerate: of all; sign, proved, finite: of those with v > 0) */
    struct taylor_share *layer_share; /* (Ls, TAYLOR_COUNTS) */
    struct taylor_share *model_share; /* (TAYLOR_COUNTS) */
    struct taylor_share
        *layer_median; /* (Ls, TAYLOR_MEDIANS): mean over units of the prompts' medians, heads averaged */
    struct taylor_share *model_median; /* (TAYLOR_MEDIANS) */
};

struct taylor_results {
    struct ag_arena *arena; /* owns everything here, this struct included */
    struct ag_provenance from;
    int64_t r, queries, sample_seed, draws;
    int64_t H;                           /* most query heads */
    const int64_t *Hq, *Hk, *D, *window; /* (Ls) */
    const double *scale;                 /* (Ls) */
    struct taylor_records *records;      /* (Ls) */
    struct taylor_sample *samples;       /* (n_samples), by layer, prompt, position, head */
    int64_t n_samples;
    struct taylor_curve *curves; /* (n_curves), by layer, position, head */
    int64_t n_curves;
    struct taylor_summary *summary; /* NULL until taylor_fold */
};

struct taylor_options {
    int64_t queries; /* sampled positions a prompt; 64 */
    int64_t r;       /* of direction fidelity; 16 */
    int64_t seed, draws;
    const bool *positions; /* (T packed) --positions: these instead of a draw; NULL: draw */
    int64_t curves;        /* positions of the first prompt whose curves are kept; 3 */
};
#define TAYLOR_OPTIONS_INIT                                                                                            \
    { 64, 16, 0, 10000, NULL, 3 }

/* An empty results object for this source: provenance and shapes copied, counts zero, medians NaN, no samples. */
enum ag_status taylor_results_new(struct taylor_results **out, const struct ag_source *source,
                                  const struct taylor_options *options, struct ag_error *err);
void taylor_results_free(struct taylor_results *results);
int64_t taylor_results_bytes(const struct ag_source *source, const struct taylor_options *options);
enum ag_status taylor_results_write(const struct taylor_results *results, const char *path, bool force,
                                    struct ag_error *err);
enum ag_status taylor_results_read(struct taylor_results **out, const char *path, struct ag_error *err);

#endif
