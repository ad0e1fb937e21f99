/* geometry/alignment.h: alignment by role (MATH.md section 4). Pure functions over what the align kernel left. */
#ifndef AG_GEOMETRY_ALIGNMENT_H
#define AG_GEOMETRY_ALIGNMENT_H

#include <stdint.h>

#include "base/block.h"

#define GEOM_UNDEFINED 1e-24 /* |k - mu|^2 at most this share of the largest: the direction is rounding noise */

/* Sums over the tokens of each role, of one (prompt, head, basis). */
struct geom_alignment {
    double sum[AG_ROLE_COUNT];        /* of a(k), over tokens where it is defined */
    int64_t count[AG_ROLE_COUNT];     /* tokens with a defined alignment */
    int64_t undefined[AG_ROLE_COUNT]; /* tokens without */
};

/* a(k) = inside / total in [0,1] for tokens [skip, T); NaN where total <= GEOM_UNDEFINED * largest. largest: of the
 * total of all keys that geometry sees (not answer tokens), see geom_largest. a (T) may be NULL; entries before skip
 * are NaN. */
void geom_align(struct geom_alignment *out, double *a, const double *inside, const double *total, const uint8_t *role,
                int64_t T, int64_t skip);

/* Largest total of the tokens in [skip, T) that are not answer tokens; 0 when there are none. */
double geom_largest(const double *total, const uint8_t *role, int64_t T, int64_t skip);

/* Mean alignment of a role; NaN when no token of the role has one. */
double geom_role_mean(const struct geom_alignment *alignment, enum ag_role role);

#endif
