/* base/block.h: the currency between the forward pass, dumps and reducers (DESIGN.md, Flow). */
#ifndef AG_BASE_BLOCK_H
#define AG_BASE_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Letters, the same in code, comments and files: L layers, P prompts, T tokens, Hq query heads, Hk KV heads, D head dim
 * of keys and queries, Dv head dim of values, C hidden width, F MLP width, V vocabulary. */

/* MATH.md section 1, in the order of the forward pass. A stage a model lacks equals the one before. */
enum ag_tap { AG_TAP_PROJ, AG_TAP_CONV, AG_TAP_NORM, AG_TAP_ROPE, AG_TAP_COUNT };
extern const char *const ag_tap_names[AG_TAP_COUNT + 1]; /* NULL-terminated */

/* MATH.md section 1. The numbers are those stored in /tokens/role. */
enum ag_role {
    AG_ROLE_HAYSTACK,
    AG_ROLE_NEEDLE,
    AG_ROLE_DISTRACTOR,
    AG_ROLE_QUESTION,
    AG_ROLE_ANSWER,
    AG_ROLE_SPECIAL,
    AG_ROLE_COUNT
};
extern const char *const ag_role_names[AG_ROLE_COUNT + 1];

/* All prompts of a run, packed one after the other without padding. Token t of prompt p sits at offsets[p] + t. */
struct ag_tokens {
    int64_t P, T;           /* prompts, tokens in all */
    const int64_t *offsets; /* (P + 1) */
    const int32_t *id;      /* (T) */
    const uint8_t *role;    /* (T) enum ag_role */
    const int64_t *begin;   /* (T) half-open byte span in the prompt's text followed by its answer */
    const int64_t *end;     /* (T) */
    const uint8_t
        *value; /* (T) 0, or AG_VALUE_*: the token overlaps the value of a needle/distractor/answer (MATH 1) */
    const char *const *prompt_id; /* (P) */
    const char *const *text;      /* (P) prompt text, UTF-8, NUL-terminated */
    const char *const *answer;    /* (P) NULL: none */
    const int64_t *twin;          /* (P) index of the twin prompt, -1: none */
};
#define AG_VALUE_NEEDLE 1
#define AG_VALUE_DISTRACTOR 2
#define AG_VALUE_ANSWER 4 /* an answer token whose bytes hold at least one letter or digit */

/* What a layer is, independent of prompts. */
enum ag_layer_kind { AG_LAYER_SOFTMAX, AG_LAYER_LINEAR };
struct ag_layer_shape {
    enum ag_layer_kind kind;
    int64_t Hq, Hk, D, Dv;
    double scale;   /* logit scale: x_j = scale * k_j . q */
    int64_t window; /* keys seen: the token itself and window - 1 before it; 0: all */
};

/* Keys and queries (values where asked) of one (layer, prompt) at one tap. Element (head h, token t, dim d) is at
 * h * head_stride + t * token_stride + d floats from the pointer. NULL: not asked for. */
struct ag_view {
    const float *data;
    int64_t head_stride, token_stride;
};
struct ag_block {
    int64_t layer, prompt;
    enum ag_tap tap;
    const struct ag_layer_shape *shape;
    int64_t T;              /* tokens of this prompt, answer included */
    const uint8_t *role;    /* (T) */
    struct ag_view keys;    /* (Hk, T, D) raw, unscaled */
    struct ag_view queries; /* (Hq, T, D) raw, unscaled */
    struct ag_view values;  /* (Hk, T, Dv) */
};

/* What a reducer learns before the first block, and what it later stores with its results. */
struct ag_source {
    const char *model, *architecture, *checkpoint_sha256, *tokenizer_sha256, *prompts_sha256, *backend, *dtype,
        *command_line, *dump_path; /* dump_path: NULL when reduced during the forward pass */
    int64_t seed;
    int64_t L;                           /* layers of the model */
    const struct ag_layer_shape *layers; /* (L) */
    const bool *selected;                /* (L) layers that will come */
    enum ag_tap tap, last_tap;           /* the tap of the blocks; the one that the read really sees */
    const struct ag_tokens *tokens;
};

/* A reducer consumes blocks, layer by layer, all prompts of a layer in order (in waves), and leaves small records
 * per (prompt, layer, head). Bits may not depend on waves, threads or where the blocks come from. */
struct ag_reducer;
struct ag_reducer_class {
    const char *name;
    bool needs_queries, needs_values;
    /* Bytes the reducer will hold at most, for the plan. */
    int64_t (*bytes)(const struct ag_reducer *self, const struct ag_source *source);
    /* Called once, before the first layer. */
    enum ag_status (*begin)(struct ag_reducer *self, const struct ag_source *source, struct ag_error *err);
    /* Consecutive prompts of one layer; the views are valid only during the call. */
    enum ag_status (*reduce)(struct ag_reducer *self, const struct ag_block *blocks, int64_t n, struct ag_error *err);
    /* After the last layer: fold and write the results file (temporary name, renamed). */
    enum ag_status (*finish)(struct ag_reducer *self, const char *path, bool force, struct ag_error *err);
    void (*free)(struct ag_reducer *self);
};
struct ag_reducer {
    const struct ag_reducer_class *class_;
};

#ifdef __cplusplus
}
#endif
#endif
