#include "geometry/alignment.h"

#include <math.h>

double geom_largest(const double *total, const uint8_t *role, int64_t T, int64_t skip) {
    double largest = 0;
    for (int64_t t = skip; t < T; t++)
        if (role[t] != AG_ROLE_ANSWER && total[t] > largest) largest = total[t];
    return largest;
}

void geom_align(struct geom_alignment *out, double *a, const double *inside, const double *total, const uint8_t *role,
                int64_t T, int64_t skip) {
    const double cut = GEOM_UNDEFINED * geom_largest(total, role, T, skip);
    *out = (struct geom_alignment){{0}, {0}, {0}};
    for (int64_t t = 0; a && t < skip && t < T; t++) a[t] = NAN;
    for (int64_t t = skip; t < T; t++) {
        /* inside exceeds total by rounding only (U_r has orthonormal rows) */
        const double value = total[t] > cut ? fmin(inside[t] / total[t], 1) : NAN;
        if (isnan(value)) {
            out->undefined[role[t]]++;
        } else {
            out->sum[role[t]] += value;
            out->count[role[t]]++;
        }
        if (a) a[t] = value;
    }
}

double geom_role_mean(const struct geom_alignment *alignment, enum ag_role role) {
    return alignment->count[role] > 0 ? alignment->sum[role] / (double)alignment->count[role] : NAN;
}
