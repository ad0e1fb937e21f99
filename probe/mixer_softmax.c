/* Causal softmax attention with rotary positions: Llama, SmolLM2, Qwen2, Qwen3 (spec/softmax-models.md section 1). A
 * token's queries, keys and values lie side by side in one row, made by one GEMM: [query heads | key heads | value
 * heads]. */
#include "probe/forward_pass.h"

static int64_t key_floats(const struct ag_layer_shape *shape) { return (shape->Hq + shape->Hk) * shape->D; }

static int64_t row_floats(const struct ag_layer_shape *shape) { return key_floats(shape) + shape->Hk * shape->Dv; }

static int64_t softmax_floats(const struct model_layer *layer) {
    return row_floats(&layer->shape) + layer->shape.Hq * layer->shape.Dv;
}

static double softmax_flops(const struct model_layer *layer, int64_t T) {
    const struct ag_layer_shape *shape = &layer->shape;
    double w = shape->window > 0 && shape->window < T ? (double)shape->window : (double)T;
    double pairs = w * (w + 1) / 2 + ((double)T - w) * w;
    return 2 * pairs * (double)shape->Hq * (double)(shape->D + shape->Dv);
}

static void softmax_describe(struct weight_set *set, const struct model_layer *layer, bool taps_only) {
    const struct ag_layer_shape *shape = &layer->shape;
    weight_set_add(set, SLOT_QKV, &layer->q);
    weight_set_add(set, SLOT_QKV, &layer->k);
    weight_set_add(set, SLOT_QKV, &layer->v);
    if (layer->q_bias.tensor || layer->k_bias.tensor || layer->v_bias.tensor) {
        weight_set_add_or_zeros(set, SLOT_QKV_BIAS, &layer->q_bias, shape->Hq * shape->D);
        weight_set_add_or_zeros(set, SLOT_QKV_BIAS, &layer->k_bias, shape->Hk * shape->D);
        weight_set_add_or_zeros(set, SLOT_QKV_BIAS, &layer->v_bias, shape->Hk * shape->Dv);
    }
    weight_set_add(set, SLOT_Q_NORM, &layer->q_norm);
    weight_set_add(set, SLOT_K_NORM, &layer->k_norm);
    if (taps_only) return;
    weight_set_add(set, SLOT_O, &layer->o);
    weight_set_add(set, SLOT_O_BIAS, &layer->o_bias);
}

/* RMSNorm of each head's D coordinates, in place. */
static void norm_heads(struct pass *pass, float *x, const float *weight, int64_t T, int64_t heads, int64_t D,
                       int64_t ld) {
    if (!weight) return;
    for (int64_t h = 0; h < heads; h++)
        pass->ops->rmsnorm(x + h * D, x + h * D, weight, T, D, ld, ld, pass->model->norm_eps);
}

static enum ag_status softmax_run(struct pass *pass, const struct group *group, int64_t layer, bool taps_only,
                                  struct ag_error *err) {
    const struct forward_request *request = pass->request;
    const struct kern_ops *ops = pass->ops;
    const struct model *model = pass->model;
    const struct ag_layer_shape *shape = &model->shapes[layer];
    const int64_t C = model->C, Hq = shape->Hq, Hk = shape->Hk, D = shape->D, Dv = shape->Dv;
    const int64_t ld = row_floats(shape), ldo = Hq * Dv;
    float *q = pass->mixing, *k = q + Hq * D, *v = k + Hk * D, *read = pass->mixing + group->T * ld;
    const bool tapped = forward_is_tapped(request, layer);
    enum ag_status status = AG_OK;

    for (struct chunk chunk = {0}; pass_chunk(&chunk, pass, group);) {
        ops->rmsnorm(pass->normed, group->hidden + chunk.row * C, pass->slot[SLOT_NORM1], chunk.rows, C, C, C,
                     model->norm_eps);
        ops->linear(q + chunk.row * ld, pass->normed, pass->slot[SLOT_QKV], pass->slot[SLOT_QKV_BIAS], chunk.tiles,
                    chunk.n_tiles, ld, C, ld, C, false);
    }
    for (int tap = 0; tap < AG_TAP_COUNT; tap++) {
        if (tap == AG_TAP_NORM) {
            norm_heads(pass, q, pass->slot[SLOT_Q_NORM], group->T, Hq, D, ld);
            norm_heads(pass, k, pass->slot[SLOT_K_NORM], group->T, Hk, D, ld);
        }
        if (tap == AG_TAP_ROPE) /* keys follow the queries: one call for both */
            ops->rope(q, q, group->position, model->rope.inv_freq, group->T, Hq + Hk, D, model->rope.n_rot, ld, ld,
                      model->rope.attention_scaling);
        if (!tapped || !(request->taps & 1u << tap)) continue;
        AG_TRY(pass_check(pass, q, NULL, group->token, group->T, ld, ld, layer, "a query, key or value", err));
        AG_TRY(pass_deliver(pass, group, layer, (enum ag_tap)tap, (struct ag_view){request->keys ? k : NULL, D, ld},
                            (struct ag_view){request->queries ? q : NULL, D, ld},
                            (struct ag_view){request->values ? v : NULL, Dv, ld}, err));
    }
    if (taps_only) return AG_OK;
    ops->attention(read, q, k, v, group->offsets, group->P, Hq, Hk, D, Dv, ldo, ld, ld, ld, shape->scale,
                   shape->window);
    pass->read = read;
fail:
    return status;
}

static int64_t softmax_read_floats(const struct model_layer *layer) { return layer->shape.Hq * layer->shape.Dv; }

const struct mixer forward_mixer_softmax = {
    .name = "softmax attention",
    .floats = softmax_floats,
    .read_floats = softmax_read_floats,
    .flops = softmax_flops,
    .describe = softmax_describe,
    .run = softmax_run,
};
