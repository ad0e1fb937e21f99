/* taylor/enclosure.h: certified enclosures of the remainder of the second-order model of softmax's log-partition
 * (MATH.md section 5; arXiv 2606.01294, the expansion behind its equation for CCQ). Pure functions over numbers.
 *
 * Certified means: R of the exact stored keys and query (reals, no rounding) lies inside the interval. Every input comes
 * with an absolute bound on its own error; an enclosure is evaluated at inputs moved outwards by those bounds (each formula
 * is monotone in each input, proved beside it in enclosure.c) and the result is moved outwards by the formula's own
 * rounding. A bound that is not finite is infinite, never a number. */
#ifndef AG_TAYLOR_ENCLOSURE_H
#define AG_TAYLOR_ENCLOSURE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* Remainder and competition, with the error bound that they share: c = A - log t - m, R = c - v / 2, Q = A - R. */
struct taylor_remainder {
    double c, R, Q;
    double dc, dR; /* absolute error bounds of c and R */
};

struct taylor_interval {
    double lo, hi; /* -INFINITY, INFINITY: nothing can be said */
};

enum taylor_bound { TAYLOR_B1, TAYLOR_B2, TAYLOR_B3, TAYLOR_B4, TAYLOR_BOUNDS };

/* What a constant-size state knows about the logits at q: upper bounds on the largest logit minus the mean and on the mean
 * minus the least. INFINITY: unknown (then B4 says nothing). */
struct taylor_reach {
    double up, down;
};

/* psi(z) - 1/2 = (e^z - 1 - z) / z^2 - 1/2: relative error at most 32 units in the last place; rises with z. */
double taylor_psi_excess(double z);

void taylor_remainder_of(struct taylor_remainder *out, const struct kern_logit_moments *moments);

/* The four enclosures of R. reach: for B4; NULL: B4 is infinite. */
void taylor_enclose(struct taylor_interval out[TAYLOR_BOUNDS], const struct kern_logit_moments *moments,
                    const struct taylor_reach *reach);

/* B3 for given outward inputs: v in [v_lo, v_hi], up >= b - m, down >= m - a. */
struct taylor_interval taylor_chebyshev_markov(double v_lo, double v_hi, double up, double down);

/* Upper bound on (t - 1) v's root: |x_j - m| <= sqrt((t - 1) v) (Samuelson), from v's upper end. */
double taylor_samuelson(const struct kern_logit_moments *moments);

#endif
