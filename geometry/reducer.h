/* geometry/reducer.h: the reducer (base/block.h) that leaves a geometry record per (prompt, layer, KV head, basis). */
#ifndef AG_GEOMETRY_REDUCER_H
#define AG_GEOMETRY_REDUCER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/block.h"
#include "geometry/results.h"
#include "kernels/kernels.h"

struct geom_options {
    int64_t r;     /* dimensions of U_r, below every head's D; 16 is the paper's */
    int64_t skip;  /* tokens dropped at the start of every prompt; 0 */
    int64_t seed;  /* of bootstrap and sign flips */
    int64_t draws; /* of the bootstrap; 10,000 */
    bool pooled;   /* also the `pooled` basis: needs a second pass over all blocks, see geom_reducer_second_pass */
};
#define GEOM_OPTIONS_INIT                                                                                              \
    { 16, 0, 1, 10000, false }

/* The bases `prompt` and `haystack` are always computed. Keys are refused when not finite (layer, head, prompt and
 * token named). Free through class_->free; log and ops are borrowed. */
enum ag_status geom_reducer_new(struct ag_reducer **out, const struct geom_options *options, const struct kern_ops *ops,
                                const struct ag_log *log, struct ag_error *err);

/* With options.pooled: between the two passes over the same blocks. The second needs only keys. */
enum ag_status geom_reducer_second_pass(struct ag_reducer *reducer, struct ag_error *err);

/* The results; folded after finish. Owned by the reducer. NULL before begin. */
const struct geom_results *geom_reducer_results(const struct ag_reducer *reducer);

#endif
