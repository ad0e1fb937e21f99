/* taylor/fold.h: records -> summary. Separate from reducing, so that records that come from several files (merge) give the
 * same bits as those of one run. */
#ifndef AG_TAYLOR_FOLD_H
#define AG_TAYLOR_FOLD_H

#include "taylor/results.h"

/* An empty summary in the arena of results, NaN throughout; NULL when out of memory. */
struct taylor_summary *taylor_summary_new(const struct taylor_results *results, struct ag_error *err);

/* Fills results->summary: quantiles from the histograms; shares and medians with 95 % bootstrap intervals over units. */
enum ag_status taylor_fold(struct taylor_results *results, struct ag_error *err);

#endif
