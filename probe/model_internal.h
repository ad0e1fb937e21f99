/* probe/model_internal.h: what model.c, model_config.c and model_rope.c share. */
#ifndef AG_PROBE_MODEL_INTERNAL_H
#define AG_PROBE_MODEL_INTERNAL_H

#include "probe/model.h"

/* Does a group of tensors belong to the model? By presence: what layer 0 has, all layers must have. */
enum presence { ABSENT, PRESENT, BY_PRESENCE };

/* What the configuration says, before the tensors are looked at. */
struct model_config {
    const char *where; /* file that said so, for messages */
    int64_t Hq, Hk, D;
    enum presence qkv_bias, o_bias, mlp_bias, qk_norm, tied;
    bool text_part;      /* of a multimodal checkpoint: tensors of other parts are no concern of ours */
    int64_t window;      /* of the sliding layers; 0: none slide */
    const bool *sliding; /* (L) NULL: all or none, as window says */
};

/* Fill model (family to rope) and config from config.json, or from GGUF metadata. */
enum ag_status model_config_hf(struct model *model, struct model_config *config, struct ag_error *err);
enum ag_status model_config_gguf(struct model *model, struct model_config *config, struct ag_error *err);

/* inv_freq from type, theta, factor, ... divisors (n_rot / 2, may be NULL): of rope_freqs.weight. */
enum ag_status model_rope_table(struct model_rope *rope, const float *divisors, struct ag_arena *arena,
                                struct ag_error *err);

/* A remark for people; beyond the room for them they are dropped. */
void model_warn(struct model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
