/* geometry/fold.h: records in prompt order -> summary (MATH.md section 4). Separate from reducing, so that records that
 * come from several files (merge) give the same bits as those of one run. */
#ifndef AG_GEOMETRY_FOLD_H
#define AG_GEOMETRY_FOLD_H

#include "geometry/results.h"

/* Fills results->summary of every basis from its records; units, draws and seed are those of results. */
enum ag_status geom_fold(struct geom_results *results, struct ag_error *err);

/* Allocates a summary in the arena of results, arrays filled with NaN and 0; NULL when out of memory. */
struct geom_summary *geom_summary_new(const struct geom_results *results, struct ag_error *err);

#endif
