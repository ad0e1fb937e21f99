/* taylor/reducer.h: the reducer (base/block.h) of the Taylor study: every causal query of every query head, and a sample of
 * queries in full. The same bits from a dump and during the forward pass. */
#ifndef AG_TAYLOR_REDUCER_H
#define AG_TAYLOR_REDUCER_H

#include "taylor/results.h"

/* Needs keys and queries; not finite ones are refused (layer, head, prompt and token named). Free through class_->free; log, ops
 * and options->positions are borrowed. */
enum ag_status taylor_reducer_new(struct ag_reducer **out, const struct taylor_options *options,
                                  const struct kern_ops *ops, const struct ag_log *log, struct ag_error *err);

/* The results; folded after finish. Owned by the reducer. NULL before begin. */
const struct taylor_results *taylor_reducer_results(const struct ag_reducer *reducer);

#endif
