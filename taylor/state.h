/* taylor/state.h: what an O(1)-memory model can know about its own Taylor error: bound B4 of MATH.md section 5. Per KV head it
 * carries the first key, the largest distance to it, the mean and 2 D extremes; a query then gets an upper bound on how far
 * a logit may lie above and below the mean. */
#ifndef AG_TAYLOR_STATE_H
#define AG_TAYLOR_STATE_H

#include <stdint.h>

#include "base/arena.h"
#include "taylor/enclosure.h"

struct taylor_state {
    int64_t D, t;         /* keys seen */
    double rho;           /* max |k_j - k_1|, rounded up */
    double offset;        /* |mu_t - k_1|, rounded up */
    double largest;       /* max |k_j|, rounded up */
    double *first;        /* (D) k_1 */
    double *sum, *carry;  /* (D) compensated sum of the keys */
    double *least, *most; /* (D) */
};
/* Doubles that a state needs behind it. */
#define TAYLOR_STATE_DOUBLES(D) (5 * (D))
void taylor_state_begin(struct taylor_state *state, double *memory, int64_t D);
void taylor_state_add(struct taylor_state *state, const float *key);
/* The reach at the query q (D, raw) times scale, whose logits have mean m within dm. */
struct taylor_reach taylor_state_reach(const struct taylor_state *state, const float *q, double scale, double m,
                                       double dm);

#endif
