/* taylor/curve.h: the remainder along a query, s q for s in [0, 1], as a share of the competition: what the trust radii
 * are read from, kept for a few sampled queries so that it can be drawn. */
#ifndef AG_TAYLOR_CURVE_H
#define AG_TAYLOR_CURVE_H

#include "kernels/kernels.h"
#include "taylor/results.h"

/* R(s)/c(s) of n logits x with moments `moments` at s = k / (TAYLOR_CURVE - 1), and its enclosure by B3 from s m, s^2
 * v, s a, s b. s = 0: the limit 0. v = 0: NaN and an unbounded enclosure. R/c < 1 always, so the upper end is at
 * most 1. ops: tilt. */
void taylor_curve_of(struct taylor_curve *out, const double *x, int64_t n, const struct kern_logit_moments *moments,
                     const struct kern_ops *ops);

/* B3 on R(s)/c(s) for given outward inputs: variance in [v_lo, v_hi] and reaches of the logits times s. */
struct taylor_interval taylor_share_enclosure(double v_lo, double v_hi, double up, double down);

#endif
