/* probe/forward.h: the layer-major forward pass (DESIGN.md). All prompts go through layer 0, then all through layer 1;
 * a layer's weights are read and dequantised once per pass, the next layer's while this one computes; hidden states are
 * kept between layers, in waves of prompts when memory is short. */
#ifndef AG_PROBE_FORWARD_H
#define AG_PROBE_FORWARD_H

#include "base/block.h"
#include "base/log.h"
#include "kernels/kernels.h"
#include "probe/model.h"

/* Who receives what the pass sees. Any function may be NULL. Called from the thread that runs forward_run. */
struct forward_sink {
    void *self;
    /* Consecutive prompts of one layer at one tap; views are valid only during the call. */
    enum ag_status (*blocks)(void *self, const struct ag_block *blocks, int64_t n, struct ag_error *err);
    /* After the last wave... of layer `layer`: everything of this layer was delivered. */
    enum ag_status (*layer_done)(void *self, int64_t layer, struct ag_error *err);
    /* logits (rows, V) of consecutive tokens [first, first + rows) of the packed array; only for tokens asked for. */
    enum ag_status (*logits)(void *self, const float *logits, int64_t first, int64_t rows, int64_t V,
                             struct ag_error *err);
};

enum forward_logits { FORWARD_LOGITS_NONE, FORWARD_LOGITS_LAST, FORWARD_LOGITS_ALL };

struct forward_request {
    const struct model *model;
    const struct ag_tokens *tokens;
    const struct kern_ops *ops;
    uint32_t taps;       /* bit (1 << enum ag_tap) */
    const bool *layers;  /* (L) which layers are tapped; NULL: all */
    bool keys, queries, values;
    enum forward_logits logits; /* NONE: the pass may stop after the last tapped layer's taps */
    int64_t memory_limit;       /* bytes; 0: what the machine has free */
    const struct ag_log *log;
};

struct forward_plan {
    int64_t waves;
    int64_t weights_bytes, hidden_bytes, scratch_bytes, peak_bytes; /* per wave peak */
    int64_t flops;
    int64_t wave_tokens; /* most tokens in a wave */
};
/* Pure arithmetic. AG_E_MEMORY names what would fit (longest prompt, or the limit needed). */
enum ag_status forward_plan(struct forward_plan *plan, const struct forward_request *request, struct ag_error *err);
/* Waves: with more than one, the pass runs wave by wave, each layer-major (all layers for wave 0, then wave 1, ...);
 * the sink sees blocks ordered by wave, then layer. */
enum ag_status forward_run(const struct forward_request *request, const struct forward_plan *plan,
                           const struct forward_sink *sink, struct ag_error *err);

#endif
