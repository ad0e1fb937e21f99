/* taylor/merge.h: the results of several runs over shares of the same prompts as those of one run. */
#ifndef AG_TAYLOR_MERGE_H
#define AG_TAYLOR_MERGE_H

#include "base/merge.h"
#include "taylor/results.h"

/* Records of parts[0], parts[1], ... one after the other, histograms and densities added, sampled rows by layer and then in that
 * order, folded anew: bit for bit what one run over the prompts in that order gives. Curves are of the first prompt that has rows, as in
 * one run, so those of the other parts are left out. The shares 1/N to N/N of attgeo probe in order are the order of one run where
 * twins stand side by side. paths (n): names for messages. Refused with AG_E_USAGE: what ag_provenance_merge refuses; other r,
 * queries, draws, seed of the draws, heads, dims, window or scale of a layer. The parts may be freed afterwards. */
enum ag_status taylor_results_merge(struct taylor_results **out, const struct taylor_results *const *parts,
                                    const char *const *paths, int64_t n, const struct ag_merge_options *options,
                                    struct ag_error *err);

#endif
