/* geometry/inference.h: intervals and tests over independent units (MATH.md section 4, Inference). Pure functions: the
 * same seed gives the same bits for any number of threads. */
#ifndef AG_GEOMETRY_INFERENCE_H
#define AG_GEOMETRY_INFERENCE_H

#include <stdint.h>

#include "base/arena.h"

#define GEOM_EXACT_UNITS 20   /* sign flips are enumerated up to here */
#define GEOM_SIGN_DRAWS 10000 /* and drawn beyond */
#define GEOM_ROUNDING 1e-12   /* differences of alignments of at most this are zero: see geom_rounded */
#define GEOM_TIE 1e-12        /* of the largest |unit mean| */

/* 0 for |x| <= GEOM_ROUNDING, else x. Alignments lie in [0,1] and carry an error of about 1e-14, and counterbalanced
 * twins make some differences exactly zero (layer 0 before RoPE, where a key depends on its token alone, on the
 * haystack basis): the sign of what rounding leaves there is no finding. */
double geom_rounded(double x);

/* What is resampled: C statistics over U units, each a_sum / a_weight - b_sum / b_weight where sum and weight run over
 * the units drawn. All arrays (U, C), weights >= 0, zero (with sum 0) where a unit lacks the statistic. b_* NULL: no
 * second term. */
struct geom_ratio {
    int64_t U, C;
    const double *a_sum, *a_weight, *b_sum, *b_weight;
};
/* The statistics themselves, rounded as above, value (C); NaN where a weight is zero. */
void geom_ratio_value(double *value, const struct geom_ratio *ratio);

/* Percentile bootstrap, 95 %: units that carry any of the statistics are drawn with replacement (the same draws for all
 * C), lo and hi (C) are the 2.5 and 97.5 % quantiles, interpolated linearly, of the draws in which a statistic is
 * defined. NaN where fewer than two units carry a statistic. negative (3), may be NULL: the share of the C statistics
 * that are < 0 among those defined, and the quantiles of that share over the draws (NaN for fewer than two units). */
enum ag_status geom_bootstrap(double *lo, double *hi, double negative[3], const struct geom_ratio *ratio, int64_t draws,
                              int64_t seed, struct ag_error *err);

/* Two-sided sign-flip p of C samples of unit means x (U, C), NaN where a unit is missing: the share of the 2^n sign
 * patterns whose |mean| is at least the one observed (within GEOM_TIE), exact up to 20 units, else (1 + hits) / (1 +
 * 10,000) over drawn patterns. p (C) NaN without a unit. */
enum ag_status geom_sign_flip(double *p, const double *x, int64_t U, int64_t C, int64_t seed, struct ag_error *err);
/* The smallest p that n units can reach: 2^(1-n), or 1/10,001 above 20; NaN for n = 0. */
double geom_smallest_p(int64_t n);

/* Benjamini-Hochberg q (n) of p (n); NaN entries are no tests and stay NaN. */
enum ag_status geom_benjamini_hochberg(double *q, const double *p, int64_t n, struct ag_error *err);

#endif
