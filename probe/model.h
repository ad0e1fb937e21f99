/* probe/model.h: what a checkpoint is as a model: family, dimensions, RoPE, windows, and which tensor plays which role.
 */
#ifndef AG_PROBE_MODEL_H
#define AG_PROBE_MODEL_H

#include "base/block.h"
#include "kernels/kernels.h"
#include "probe/checkpoint.h"

enum model_family {
    MODEL_LLAMA,
    MODEL_QWEN2,
    MODEL_QWEN3,
    /* linear attention in the layout of flash-linear-attention (spec/linear-models.md) */
    MODEL_GLA,
    MODEL_GATED_DELTANET,
    MODEL_DELTA_NET,
    MODEL_LINEAR_ATTN
};

/* How the layers of kind AG_LAYER_LINEAR mix tokens: the same in all of them. */
struct model_linear {
    bool delta;           /* the delta rule, else S_t = diag(e^g) S_{t-1} + k v^T */
    int64_t conv;         /* taps of the short convolution of q, k and v; 0: none */
    enum kern_map qk_map; /* of q and k, of v: after the convolution, or where there is none after the projection */
    enum kern_map v_map;
    enum kern_map feature; /* of q and k, per head, before the scaling */
    enum kern_unit q_unit, k_unit;
    double unit_eps;
    int64_t Hv, V;     /* value heads and their width; key head h has value heads [h Hv / Hk, (h + 1) Hv / Hk), which
                          lie side by side: Dv of the layer's shape is their width together */
    int64_t gate_rank; /* GLA: width between the two matrices of the gate; 0: none */
    double gate_divisor, gate_least; /* GLA: log gate = max(logsigmoid(a) / divisor, least) */
    double beta_factor;              /* delta: 1, or 2 with allow_neg_eigval */
    bool ccq;                        /* the read is that of CCQ, with the trained lambda */
};

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3 };
struct model_rope {
    enum rope_type type;
    double theta, factor;
    double low_freq_factor, high_freq_factor, original_max_position; /* llama3 */
    int64_t n_rot;                                                   /* coordinates that rotate; 0: no RoPE */
    float *inv_freq;         /* (n_rot / 2) f32, scaling applied, as the reference library computes it */
    float attention_scaling; /* 1 for these types */
};

/* One matrix or vector of the model, found and shape-checked. rotate_heads > 0: rows are stored in GGUF llama order for
 * that many heads and must be unpermuted (spec/checkpoints.md section 4, fact 1). */
struct model_weight {
    const struct ckpt_tensor *tensor; /* NULL: the model has none (no bias, no QK-norm) */
    int64_t rotate_heads;
};
struct model_layer {
    struct ag_layer_shape shape;
    const struct model_linear *linear; /* NULL: a layer of another kind */
    struct model_weight norm1, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
    struct model_weight norm2, gate, up, down, gate_bias, up_bias, down_bias;
    /* Linear attention. gate: of the MLP, in old files with the rows of up behind its own; out_gate: of what is read.
     * gate_low, gate_high, gk_bias: GLA's log gates; a, A_log, dt_bias: Gated DeltaNet's; b: beta. */
    struct model_weight q_conv, k_conv, v_conv, out_gate, gate_low, gate_high, gk_bias, b, a, A_log, dt_bias, o_norm;
    struct model_weight lambda, lambda_bias;
};

struct model {
    const char *name; /* directory or general.name, for titles */
    enum model_family family;
    const char *architecture; /* the model_type: "llama", "qwen2", "gla", "ccq_gla", ... */
    int64_t L, C, F, V;       /* V: rows of the embedding */
    int64_t max_position;     /* 0: unknown */
    double norm_eps;
    struct model_rope rope;
    struct model_linear linear; /* of linear attention; else zeros */
    enum ag_tap last_tap;       /* what the read sees: rope, or norm in models without rotary positions */
    bool tied;                  /* the head is the embedding */
    struct model_weight embedding, final_norm, head;
    struct model_layer *layers;       /* (L) */
    struct ag_layer_shape *shapes;    /* (L) the layers' shapes, contiguous, for ag_source */
    const char *chat_template_source; /* where a chat template was seen; NULL: none. Never evaluated. */
    const char *warnings[16];         /* what a person should hear: unknown keys, an assumed tied head, ... */
    int n_warnings;
    const struct ckpt *ckpt; /* borrowed */
    struct ag_arena *arena;
};

/* Reads config.json or the GGUF keys, refuses by name what the forward pass would not honour (unknown architecture,
 * activation, RoPE type, softcaps, sliding patterns of other families, ...), finds all tensors and checks their shapes.
 */
enum ag_status model_open(struct model **out, const struct ckpt *ckpt, struct ag_error *err);
void model_close(struct model *model);

/* The stored bytes of `count` rows from `row` of a weight, in the order of Hugging Face (unpermuted), still to be
 * dequantised; vectors: one row. scratch: model_scratch_bytes(weight) bytes. */
enum ag_status model_read(void *raw, void *scratch, const struct model *model, const struct model_weight *weight,
                          int64_t row, int64_t count, struct ag_error *err);
int64_t model_scratch_bytes(const struct model_weight *weight);
/* The same as f32 into out. raw: scratch of model_raw_bytes(weight, count). */
enum ag_status model_load(float *out, const struct model *model, const struct model_weight *weight, int64_t row,
                          int64_t count, void *raw, const struct kern_ops *ops, struct ag_error *err);
int64_t model_raw_bytes(const struct model_weight *weight, int64_t count);

#endif
