/* probe/forward.h: the layer-major forward pass (DESIGN.md). All prompts go through layer 0, then all through layer 1;
 * a layer's weights are read and dequantised once per wave, the next layer's read while this one computes; hidden
 * states (f32) are kept between layers, in waves of prompts when memory is short.
 *
 * Three sizes cut the packed tokens, and none of them changes a bit, because every GEMM works on the row tiles of
 * kern_tiles, which start at prompt boundaries: a *wave* is the prompts whose hidden states are in memory together; a
 * *group* is the prompts of a wave whose queries, keys and values are; a *chunk* is the tiles of a group whose MLP is.
 */
#ifndef AG_PROBE_FORWARD_H
#define AG_PROBE_FORWARD_H

#include "base/block.h"
#include "base/log.h"
#include "kernels/kernels.h"
#include "probe/model.h"

/* Who receives what the pass sees. Any function may be NULL. Called from the thread that runs forward_run. */
struct forward_sink {
    void *self;
    /* Consecutive prompts of one layer at one tap: the groups of a wave in order, and for each group its asked-for taps
     * in order, so a tap arrives in several calls. A stage that the model lacks is delivered with the data of the one
     * before. Values are the same at every tap of a layer. Views are valid only during the call and must not be written
     * to. */
    enum ag_status (*blocks)(void *self, const struct ag_block *blocks, int64_t n, struct ag_error *err);
    /* Every block of this layer was delivered, in all waves: with one wave after each layer, else (layers arrive wave
     * by wave) after the layer's part of the last wave. Only for tapped layers. */
    enum ag_status (*layer_done)(void *self, int64_t layer, struct ag_error *err);
    /* logits (rows, V) of the tokens token[0..rows), packed indices, ascending over the whole pass; each asked-for
     * token exactly once. */
    enum ag_status (*logits)(void *self, const float *logits, const int64_t *token, int64_t rows, int64_t V,
                             struct ag_error *err);
};

/* Which tokens' logits are computed. NONE: the pass stops after the last tapped layer's taps. */
enum forward_logits { FORWARD_LOGITS_NONE, FORWARD_LOGITS_LAST, FORWARD_LOGITS_MASK, FORWARD_LOGITS_ALL };

struct forward_request {
    const struct model *model;
    const struct ag_tokens *tokens; /* only P, T, offsets, id and (if not NULL) role and prompt_id are read */
    const struct kern_ops *ops;
    uint32_t taps;      /* bit (1 << enum ag_tap) */
    const bool *layers; /* (L) which layers are tapped; NULL: all */
    bool keys, queries, values;
    enum forward_logits logits;
    const bool *wanted; /* (T) for FORWARD_LOGITS_MASK: tokens whose logits (for the token after them) are asked for */
    int64_t memory_limit; /* bytes for the pass alone; 0: most of what the machine has free */
    const struct ag_log *log;
};

struct forward_plan {
    int64_t waves, wave_tokens;         /* most tokens in a wave */
    int64_t group_tokens, chunk_tokens; /* most tokens in a group, in a chunk */
    int64_t logit_rows;                 /* most rows of logits in memory together */
    int64_t weights_bytes, hidden_bytes, scratch_bytes,
        peak_bytes;  /* of one wave; peak: what the pass allocates in all */
    int64_t flops;   /* multiplications and additions of the whole pass */
    int64_t longest; /* tokens of the longest prompt */
};
/* Pure arithmetic (memory_limit 0 asks the system). AG_E_MEMORY names what would fit: the limit needed for these
 * prompts, and the longest prompt under this limit. AG_E_FORMAT: token ids beyond the embedding, a prompt without
 * tokens. */
enum ag_status forward_plan(struct forward_plan *plan, const struct forward_request *request, struct ag_error *err);
/* With more than one wave, the pass runs wave by wave, each layer-major: the sink sees blocks ordered by wave, then
 * layer. AG_E_NUMERIC: a hidden state became NaN or infinite (layer, prompt and token named). */
enum ag_status forward_run(const struct forward_request *request, const struct forward_plan *plan,
                           const struct forward_sink *sink, struct ag_error *err);

#endif
