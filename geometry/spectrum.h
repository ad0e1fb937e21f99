/* geometry/spectrum.h: moments that merge, and what is read off a spectrum (MATH.md sections 2 and 3). Pure functions.
 */
#ifndef AG_GEOMETRY_SPECTRUM_H
#define AG_GEOMETRY_SPECTRUM_H

#include <stdint.h>

/* (n, mean, population covariance) of set A, updated to that of A and B together: the pairwise update of Chan, Golub
 * and LeVeque. mu (D), cov (D, D) symmetric, in the squared unit of the keys. An empty set may hold anything (NaN). */
void geom_moments_merge(int64_t *n, double *mu, double *cov, int64_t n_b, const double *mu_b, const double *cov_b,
                        int64_t D);

/* Named measures of one spectrum. NaN where undefined: all but trace for tr = 0, all for a spectrum that is not finite.
 */
struct geom_ranks {
    double trace;               /* tr Sigma, squared unit of the keys */
    double effective_rank;      /* exp(-sum p log p), p_i = s_i / tr; 1 to D */
    double participation_ratio; /* (sum s)^2 / sum s^2; 1 to D */
    double stable_rank;         /* tr / s_1; 1 to D */
    double numerical_rank;      /* #{s_i > 1e-11 s_1} */
    double condition;           /* s_1 over the smallest s_i that numerical_rank counts */
    double mean_dominance;      /* |mu|^2 / (|mu|^2 + tr) in [0,1]; defined for tr = 0 too unless mu = 0 as well */
};
#define GEOM_RANK_CUT 1e-11

/* s (D) descending and >= 0 (geom_spectrum_clamp), mu2 = |mu|^2. */
struct geom_ranks geom_ranks(const double *s, int64_t D, double mu2);

/* s_i := max(s_i, 0), MATH section 3. */
void geom_spectrum_clamp(double *s, int64_t D);

/* Explained variance of the first r axes, sum_{i<=r} s_i / tr; NaN for tr = 0. r in 1..D. */
double geom_explained(const double *s, int64_t D, int64_t r);

/* How well posed U_r is: (s_r - s_{r+1}) / s_r in [0,1], MATH section 4; NaN for s_r = 0 and for r >= D. */
double geom_gap(const double *s, int64_t D, int64_t r);

#endif
