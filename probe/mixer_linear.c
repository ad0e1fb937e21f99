/* Linear attention: GLA, Gated DeltaNet, DeltaNet, plain (spec/linear-models.md sections 2 to 4), also with the trained
 * CCQ read. What the matrices make of a token lies side by side in one row, from one GEMM: [query heads | key heads |
 * value heads | output gate | beta | decay | low-rank gate], as far as the model has them. */
#include <math.h>

#include "probe/forward_pass.h"

/* Where the parts of a row begin, and its length. */
struct columns {
    int64_t q, k, v, out_gate, beta, decay, low, ld;
};

static struct columns columns_of(const struct model_layer *layer, bool taps_only) {
    const struct ag_layer_shape *shape = &layer->shape;
    const struct model_linear *linear = layer->linear;
    struct columns c = {0};
    c.k = shape->Hq * shape->D;
    c.v = c.k + shape->Hk * shape->D;
    c.ld = c.out_gate = c.v + shape->Hk * shape->Dv;
    if (taps_only) return c;
    c.beta = c.out_gate + (layer->out_gate.tensor ? shape->Hq * shape->Dv : 0);
    c.decay = c.beta + (layer->b.tensor ? linear->Hv : 0);
    c.low = c.decay + (layer->a.tensor ? linear->Hv : 0);
    c.ld = c.low + (layer->gate_low.tensor ? linear->gate_rank : 0);
    return c;
}

static int64_t gate_floats(const struct model_layer *layer) {
    return layer->gate_low.tensor ? layer->shape.Hk * layer->shape.D : 0;
}
static int64_t clean_floats(const struct model_layer *layer) {
    return layer->linear->ccq ? layer->shape.Hq * layer->shape.D : 0;
}
static int64_t linear_read_floats(const struct model_layer *layer) { return layer->shape.Hq * layer->shape.Dv; }

static int64_t linear_floats(const struct model_layer *layer) {
    return columns_of(layer, false).ld + gate_floats(layer) + clean_floats(layer) + linear_read_floats(layer);
}

static double linear_flops(const struct model_layer *layer, int64_t T) {
    const struct ag_layer_shape *shape = &layer->shape;
    const double state = (double)shape->D * (double)shape->Dv;
    /* Reading and writing the state; the delta rule reads it once more. CCQ: the same for Sigma. */
    double flops = 2 * state * (double)(shape->Hq + shape->Hk * (layer->linear->delta ? 2 : 1));
    if (layer->linear->ccq) flops += 4 * (double)shape->Hq * (double)shape->D * (double)shape->D;
    return flops * (double)T;
}

static void linear_describe(struct weight_set *set, const struct model_layer *layer, bool taps_only) {
    weight_set_add(set, SLOT_QKV, &layer->q);
    weight_set_add(set, SLOT_QKV, &layer->k);
    weight_set_add(set, SLOT_QKV, &layer->v);
    weight_set_add(set, SLOT_CONV, &layer->q_conv);
    weight_set_add(set, SLOT_CONV, &layer->k_conv);
    weight_set_add(set, SLOT_CONV, &layer->v_conv);
    if (taps_only) return;
    weight_set_add(set, SLOT_QKV, &layer->out_gate);
    weight_set_add(set, SLOT_QKV, &layer->b);
    weight_set_add(set, SLOT_QKV, &layer->a);
    weight_set_add(set, SLOT_QKV, &layer->gate_low);
    weight_set_add(set, SLOT_GATE_HIGH, &layer->gate_high);
    weight_set_add(set, SLOT_GATE_HIGH_BIAS, &layer->gk_bias);
    weight_set_add(set, SLOT_DECAY, &layer->A_log);
    weight_set_add(set, SLOT_DECAY_BIAS, &layer->dt_bias);
    weight_set_add(set, SLOT_READ_NORM, &layer->o_norm);
    weight_set_add(set, SLOT_LAMBDA, &layer->lambda);
    weight_set_add(set, SLOT_LAMBDA_BIAS, &layer->lambda_bias);
    weight_set_add(set, SLOT_O, &layer->o);
}

/* The convolution of n columns from `first` on with its activation; the activation alone where there is none. */
static void convolve(struct pass *pass, const struct group *group, const struct model_linear *linear, float *rows,
                     int64_t first, int64_t n, int64_t ld, enum kern_map map) {
    float *x = rows + first;
    if (linear->conv > 0)
        pass->ops->shortconv(x, x, pass->slot[SLOT_CONV] + first * linear->conv, group->offsets, group->P, n,
                             linear->conv, ld, ld, map);
    else if (map != KERN_MAP_NONE)
        pass->ops->map(x, x, group->T, n, ld, ld, map);
}

static void scale_heads(struct pass *pass, float *x, int64_t T, int64_t heads, int64_t D, int64_t ld,
                        enum kern_unit unit, double eps) {
    if (unit == KERN_UNIT_NONE) return;
    for (int64_t h = 0; h < heads; h++) pass->ops->unit(x + h * D, x + h * D, T, D, ld, ld, unit, eps);
}

/* read = what the state gives to every token's query, normalised and gated. */
static enum ag_status read_state(struct pass *pass, const struct group *group, int64_t layer, float *rows,
                                 const struct columns *c, struct ag_error *err) {
    const struct kern_ops *ops = pass->ops;
    const struct model_layer *l = &pass->model->layers[layer];
    const struct ag_layer_shape *shape = &l->shape;
    const struct model_linear *linear = l->linear;
    const int64_t T = group->T, Hq = shape->Hq, Hk = shape->Hk, D = shape->D, Dv = shape->Dv, ldo = Hq * Dv;
    const int64_t ldg = gate_floats(l);
    float *gates = rows + T * c->ld, *clean = gates + T * ldg, *read = clean + T * clean_floats(l);
    float *k = rows + c->k, *v = rows + c->v, *beta = NULL, *decay = NULL;
    const float *q = rows + c->q;
    int64_t ldq = c->ld;
    enum ag_status status = AG_OK;

    if (linear->ccq) {
        ops->ccq_read(clean, q, k, pass->slot[SLOT_LAMBDA], pass->slot[SLOT_LAMBDA_BIAS], group->offsets, group->P, Hq,
                      Hk, D, Hq * D, c->ld, c->ld);
        q = clean;
        ldq = Hq * D;
    }
    if (l->b.tensor) {
        beta = rows + c->beta;
        ops->map(beta, beta, T, linear->Hv, c->ld, c->ld, KERN_MAP_SIGMOID);
    }
    if (l->a.tensor) {
        decay = rows + c->decay;
        ops->log_gate(decay, decay, pass->slot[SLOT_DECAY_BIAS], pass->slot[SLOT_DECAY], T, linear->Hv, c->ld, c->ld, 1,
                      linear->gate_least);
        AG_TRY(pass_check(pass, decay, NULL, group->token, T, linear->Hv, c->ld, layer, "a log gate", err));
    }
    if (l->gate_low.tensor) {
        ops->linear(gates, rows + c->low, pass->slot[SLOT_GATE_HIGH], pass->slot[SLOT_GATE_HIGH_BIAS], group->tiles,
                    group->n_tiles, ldg, linear->gate_rank, ldg, c->ld, false);
        ops->log_gate(gates, gates, NULL, NULL, T, ldg, ldg, ldg, linear->gate_divisor, linear->gate_least);
        AG_TRY(pass_check(pass, gates, NULL, group->token, T, ldg, ldg, layer, "a log gate", err));
    }
    if (linear->delta)
        ops->gdn(read, q, k, v, decay, beta, group->offsets, group->P, Hk, linear->Hv, D, linear->V, ldo, ldq, c->ld,
                 c->ld, c->ld, c->ld, shape->scale, linear->beta_factor);
    else
        ops->gla(read, q, k, v, l->gate_low.tensor ? gates : NULL, group->offsets, group->P, Hq, Hk, D, Dv, ldo, ldq,
                 c->ld, c->ld, ldg, shape->scale);
    for (int64_t h = 0; h < ldo / linear->V; h++)
        ops->rmsnorm(read + h * linear->V, read + h * linear->V, pass->slot[SLOT_READ_NORM], T, linear->V, ldo, ldo,
                     pass->model->norm_eps);
    if (l->out_gate.tensor) ops->swiglu(read, rows + c->out_gate, read, T, ldo, ldo, c->ld, ldo);
    pass->read = read;
fail:
    return status;
}

static enum ag_status linear_run(struct pass *pass, const struct group *group, int64_t layer, bool taps_only,
                                 struct ag_error *err) {
    const struct forward_request *request = pass->request;
    const struct kern_ops *ops = pass->ops;
    const struct model *model = pass->model;
    const struct model_layer *l = &model->layers[layer];
    const struct ag_layer_shape *shape = &l->shape;
    const struct model_linear *linear = l->linear;
    const int64_t C = model->C, T = group->T, Hq = shape->Hq, Hk = shape->Hk, D = shape->D;
    const struct columns c = columns_of(l, taps_only);
    const int64_t heads = c.v, ld = c.ld;
    float *rows = pass->mixing, *q = rows + c.q, *k = rows + c.k, *v = rows + c.v;
    const bool tapped = forward_is_tapped(request, layer);
    enum ag_status status = AG_OK;

    if (!ops->shortconv || !ops->map || !ops->unit || !ops->log_gate || !ops->gla || !ops->gdn || !ops->ccq_read)
        return ag_fail(err, AG_E_UNSUPPORTED, "--backend %s: it has no linear attention; use --backend cpu", ops->name);
    for (struct chunk chunk = {0}; pass_chunk(&chunk, pass, group);) {
        ops->rmsnorm(pass->normed, group->hidden + chunk.row * C, pass->slot[SLOT_NORM1], chunk.rows, C, C, C,
                     model->norm_eps);
        ops->linear(rows + chunk.row * ld, pass->normed, pass->slot[SLOT_QKV], NULL, chunk.tiles, chunk.n_tiles, ld, C,
                    ld, C, false);
    }
    /* Values are the same at every tap: as the state takes them. */
    convolve(pass, group, linear, rows, c.v, Hk * shape->Dv, ld, linear->v_map);
    for (int tap = 0; tap < AG_TAP_COUNT; tap++) {
        if (tap == AG_TAP_CONV) convolve(pass, group, linear, rows, 0, heads, ld, linear->qk_map);
        if (tap == AG_TAP_NORM) {
            if (linear->feature != KERN_MAP_NONE) ops->map(q, q, T, heads, ld, ld, linear->feature);
            scale_heads(pass, q, T, Hq, D, ld, linear->q_unit, linear->unit_eps);
            scale_heads(pass, k, T, Hk, D, ld, linear->k_unit, linear->unit_eps);
        }
        if (!tapped || !(request->taps & 1u << tap)) continue;
        AG_TRY(pass_check(pass, rows, NULL, group->token, T, c.out_gate, ld, layer, "a query, key or value", err));
        AG_TRY(pass_deliver(pass, group, layer, (enum ag_tap)tap, (struct ag_view){request->keys ? k : NULL, D, ld},
                            (struct ag_view){request->queries ? q : NULL, D, ld},
                            (struct ag_view){request->values ? v : NULL, shape->Dv, ld}, err));
    }
    if (!taps_only) AG_TRY(read_state(pass, group, layer, rows, &c, err));
fail:
    return status;
}

const struct mixer forward_mixer_linear = {
    .name = "linear attention",
    .floats = linear_floats,
    .read_floats = linear_read_floats,
    .flops = linear_flops,
    .describe = linear_describe,
    .run = linear_run,
};
