/* geometry/merge.h: the results of several runs over shares of the same prompts as those of one run. */
#ifndef AG_GEOMETRY_MERGE_H
#define AG_GEOMETRY_MERGE_H

#include "base/merge.h"
#include "geometry/results.h"

/* Records of parts[0], parts[1], ... one after the other, folded anew: bit for bit what one run over the prompts in that order
 * gives. The shares 1/N to N/N of attgeo probe in order are the order of one run where twins stand side by side. paths (n): names
 * for messages. Refused with AG_E_USAGE: what ag_provenance_merge refuses; other r, skip, draws, seed of draws, heads or dims of a
 * layer; the pooled basis, whose axes are those of all prompts together. The parts may be freed afterwards. */
enum ag_status geom_results_merge(struct geom_results **out, const struct geom_results *const *parts,
                                  const char *const *paths, int64_t n, const struct ag_merge_options *options,
                                  struct ag_error *err);

#endif
