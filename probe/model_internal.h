/* probe/model_internal.h: what model.c, model_config.c and model_rope.c share. */
#ifndef AG_PROBE_MODEL_INTERNAL_H
#define AG_PROBE_MODEL_INTERNAL_H

#include <jansson.h>

#include "probe/model.h"

/* Does a group of tensors belong to the model? By presence: what layer 0 has, all layers must have. */
enum presence { ABSENT, PRESENT, BY_PRESENCE };

/* What the configuration says, before the tensors are looked at. */
struct model_config {
    const char *where; /* file that said so, for messages */
    int64_t Hq, Hk, D;
    int64_t Dv; /* linear attention: as in the layer's shape */
    enum presence qkv_bias, o_bias, mlp_bias, qk_norm, tied;
    /* linear attention: out_gate, GLA's gate, beta, Gated DeltaNet's decay, and which name the output norm has */
    enum presence conv, out_gate, gla_gate, beta, decay, ccq, norm_swish, norm_g, norm_o, norm_plain, up;
    /* linear attention: the layers that are softmax attention (L), NULL: none; and what those are. Their biases are
     * qkv_bias. */
    const bool *softmax;
    int64_t softmax_Hq, softmax_Hk, softmax_D, softmax_window;
    bool text_part;      /* of a multimodal checkpoint: tensors of other parts are no concern of ours */
    int64_t window;      /* of the sliding layers; 0: none slide */
    const bool *sliding; /* (L) NULL: all or none, as window says */
};

/* A family of Hugging Face folders, by the model_type of config.json. */
struct model_hf_family {
    enum model_family id;
    const char *model_type, *class_name;
    int64_t default_head_dim; /* 0: hidden_size / num_attention_heads */
    bool windows, linear, ccq;
};

/* Where a value is read from: an object of config.json. The getters leave *out, the default, where the key is absent or
 * null; model_config_is_off: null, false, 0, or empty. */
struct config_source {
    const json_t *object;
    const char *where;
    struct ag_error *err;
};
const json_t *config_get(const struct config_source *s, const char *key);
enum ag_status config_wrong(const struct config_source *s, const char *key, const json_t *value, const char *expected);
enum ag_status config_int(const struct config_source *s, const char *key, int64_t min, int64_t max, int64_t *out);
enum ag_status config_need_int(const struct config_source *s, const char *key, int64_t *out);
enum ag_status config_real(const struct config_source *s, const char *key, double *out);
enum ag_status config_bool(const struct config_source *s, const char *key, bool *out);
bool config_is_off(const json_t *value);
/* Every key is in `read`, says nothing about a forward pass, is off, or is reported; one of those that change a model
 * is refused unless it is in `read`. */
enum ag_status config_check_keys(struct model *model, const struct config_source *s, const char *const *read, size_t n);

/* The part of config.json that only families of linear attention have: all but family, architecture and tied. */
enum ag_status model_config_linear(struct model *model, struct model_config *config, const struct config_source *s,
                                   const struct model_hf_family *family);

/* Fill model (family to rope) and config from config.json, or from GGUF metadata. */
enum ag_status model_config_hf(struct model *model, struct model_config *config, struct ag_error *err);
enum ag_status model_config_gguf(struct model *model, struct model_config *config, struct ag_error *err);

/* inv_freq from type, theta, factor, ... divisors (n_rot / 2, may be NULL): of rope_freqs.weight. */
enum ag_status model_rope_table(struct model_rope *rope, const float *divisors, struct ag_arena *arena,
                                struct ag_error *err);

/* A remark for people; beyond the room for them they are dropped. */
void model_warn(struct model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
