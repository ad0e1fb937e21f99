/* taylor/radius.h: trust radii of the second-order model along a query (MATH.md section 5). For s in [0, 1] the query is s q:
 * R(s) = K(s) - s m - s^2 v / 2 and c(s) = K(s) - s m, with K(s) = log mean e^{s x} over the logits x of q. */
#ifndef AG_TAYLOR_RADIUS_H
#define AG_TAYLOR_RADIUS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "taylor/enclosure.h"

/* Shares of c that the remainder may take: the premise holds at eps where |R| <= eps c. */
enum { TAYLOR_EPS = 3 };
extern const double taylor_eps[TAYLOR_EPS]; /* 0.1, 0.5, 1 */

struct taylor_radius {
    double s; /* sup of s in (0, 1] with |R(s')| <= eps c(s') for all s' <= s, as far as the search sees; 1: inside */
    double proved;  /* no crossing in (0, proved]: a theorem about these logits (B2 near 0, then B5) */
    bool certified; /* proved >= (1 - 1e-3) s */
};

/* The radii at every eps, out (TAYLOR_EPS), for n logits with moments `moments`: each search starts where B2 proves that there
 * is no crossing, looks at 64 points (the same for all eps), refines the first change of sign by Brent's method (GSL), then
 * certifies by B5. v = 0: inside, certified. ops: tilt. */
void taylor_trust_radii(struct taylor_radius *out, const double *x, int64_t n, const struct kern_logit_moments *moments,
                        const struct kern_ops *ops);

/* B5: K'' exact at `nodes` + 1 equidistant nodes of [0, s], enclosed between them and integrated twice: an enclosure of R(s) that
 * does not use K itself. For the ladder figure; s in (0, 1], nodes >= 1. */
struct taylor_interval taylor_refined(const double *x, int64_t n, const struct kern_logit_moments *moments, double s,
                                      int64_t nodes, const struct kern_ops *ops);

#endif
