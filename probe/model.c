/* A checkpoint as a model: every tensor found, its shape checked, nothing left over; and loading rows as f32. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "probe/checkpoint_internal.h"
#include "probe/model_internal.h"

/* The sizes a weight may have. */
enum size {
    NONE,
    SIZE_C,
    SIZE_Q,
    SIZE_K,
    SIZE_D,
    SIZE_F,
    SIZE_V,
    /* linear attention: values, what is read, MLP gate (in old files with up behind it), heads, value heads and their
     * width, rank of GLA's gate */
    SIZE_VALUES,
    SIZE_READ,
    SIZE_GATE,
    SIZE_HEADS,
    SIZE_VALUE_HEADS,
    SIZE_VALUE_WIDTH,
    SIZE_RANK,
    N_SIZES
};

/* Which tensors make a layer (spec/softmax-models.md section 5, spec/linear-models.md). */
enum group {
    ALWAYS,
    QKV_BIAS,
    O_BIAS,
    MLP_BIAS,
    QK_NORM,
    CONV, /* (rows, 1, taps) */
    OUT_GATE,
    GLA_GATE,
    BETA,
    DECAY,
    CCQ,
    NORM_SWISH,
    NORM_G,
    NORM_O,
    NORM_PLAIN,
    UP
};
struct role {
    size_t at; /* of the struct model_weight in struct model_layer */
    const char *hf, *gguf;
    enum size rows, columns; /* rows NONE: a vector */
    enum group group;
    enum { KEEP, QUERY_ROWS, KEY_ROWS } order; /* GGUF's llama permutes these rows for interleaved RoPE */
};
#define AT(field) offsetof(struct model_layer, field)
static const struct role softmax_roles[] = {
    {AT(norm1), "input_layernorm.weight", "attn_norm.weight", NONE, SIZE_C, ALWAYS, KEEP},
    {AT(q), "self_attn.q_proj.weight", "attn_q.weight", SIZE_Q, SIZE_C, ALWAYS, QUERY_ROWS},
    {AT(k), "self_attn.k_proj.weight", "attn_k.weight", SIZE_K, SIZE_C, ALWAYS, KEY_ROWS},
    {AT(v), "self_attn.v_proj.weight", "attn_v.weight", SIZE_K, SIZE_C, ALWAYS, KEEP},
    {AT(o), "self_attn.o_proj.weight", "attn_output.weight", SIZE_C, SIZE_Q, ALWAYS, KEEP},
    {AT(q_bias), "self_attn.q_proj.bias", "attn_q.bias", NONE, SIZE_Q, QKV_BIAS, QUERY_ROWS},
    {AT(k_bias), "self_attn.k_proj.bias", "attn_k.bias", NONE, SIZE_K, QKV_BIAS, KEY_ROWS},
    {AT(v_bias), "self_attn.v_proj.bias", "attn_v.bias", NONE, SIZE_K, QKV_BIAS, KEEP},
    {AT(o_bias), "self_attn.o_proj.bias", "attn_output.bias", NONE, SIZE_C, O_BIAS, KEEP},
    {AT(q_norm), "self_attn.q_norm.weight", "attn_q_norm.weight", NONE, SIZE_D, QK_NORM, KEEP},
    {AT(k_norm), "self_attn.k_norm.weight", "attn_k_norm.weight", NONE, SIZE_D, QK_NORM, KEEP},
    {AT(norm2), "post_attention_layernorm.weight", "ffn_norm.weight", NONE, SIZE_C, ALWAYS, KEEP},
    {AT(gate), "mlp.gate_proj.weight", "ffn_gate.weight", SIZE_F, SIZE_C, ALWAYS, KEEP},
    {AT(up), "mlp.up_proj.weight", "ffn_up.weight", SIZE_F, SIZE_C, ALWAYS, KEEP},
    {AT(down), "mlp.down_proj.weight", "ffn_down.weight", SIZE_C, SIZE_F, ALWAYS, KEEP},
    {AT(gate_bias), "mlp.gate_proj.bias", "ffn_gate.bias", NONE, SIZE_F, MLP_BIAS, KEEP},
    {AT(up_bias), "mlp.up_proj.bias", "ffn_up.bias", NONE, SIZE_F, MLP_BIAS, KEEP},
    {AT(down_bias), "mlp.down_proj.bias", "ffn_down.bias", NONE, SIZE_C, MLP_BIAS, KEEP},
};
static const struct role linear_roles[] = {
    {AT(norm1), "attn_norm.weight", NULL, NONE, SIZE_C, ALWAYS, KEEP},
    {AT(q), "attn.q_proj.weight", NULL, SIZE_Q, SIZE_C, ALWAYS, KEEP},
    {AT(k), "attn.k_proj.weight", NULL, SIZE_K, SIZE_C, ALWAYS, KEEP},
    {AT(v), "attn.v_proj.weight", NULL, SIZE_VALUES, SIZE_C, ALWAYS, KEEP},
    {AT(o), "attn.o_proj.weight", NULL, SIZE_C, SIZE_READ, ALWAYS, KEEP},
    {AT(q_conv), "attn.q_conv1d.weight", NULL, SIZE_Q, NONE, CONV, KEEP},
    {AT(k_conv), "attn.k_conv1d.weight", NULL, SIZE_K, NONE, CONV, KEEP},
    {AT(v_conv), "attn.v_conv1d.weight", NULL, SIZE_VALUES, NONE, CONV, KEEP},
    {AT(out_gate), "attn.g_proj.weight", NULL, SIZE_READ, SIZE_C, OUT_GATE, KEEP},
    {AT(gate_low), "attn.gk_proj.0.weight", NULL, SIZE_RANK, SIZE_C, GLA_GATE, KEEP},
    {AT(gate_high), "attn.gk_proj.1.weight", NULL, SIZE_K, SIZE_RANK, GLA_GATE, KEEP},
    {AT(gk_bias), "attn.gk_proj.1.bias", NULL, NONE, SIZE_K, GLA_GATE, KEEP},
    {AT(b), "attn.b_proj.weight", NULL, SIZE_VALUE_HEADS, SIZE_C, BETA, KEEP},
    {AT(a), "attn.a_proj.weight", NULL, SIZE_VALUE_HEADS, SIZE_C, DECAY, KEEP},
    {AT(A_log), "attn.A_log", NULL, NONE, SIZE_VALUE_HEADS, DECAY, KEEP},
    {AT(dt_bias), "attn.dt_bias", NULL, NONE, SIZE_VALUE_HEADS, DECAY, KEEP},
    {AT(lambda), "attn.lambda_proj.weight", NULL, SIZE_HEADS, SIZE_D, CCQ, KEEP},
    {AT(lambda_bias), "attn.lambda_proj.bias", NULL, NONE, SIZE_HEADS, CCQ, KEEP},
    {AT(o_norm), "attn.g_norm_swish_gate.weight", NULL, NONE, SIZE_VALUE_WIDTH, NORM_SWISH, KEEP},
    {AT(o_norm), "attn.g_norm.weight", NULL, NONE, SIZE_VALUE_WIDTH, NORM_G, KEEP},
    {AT(o_norm), "attn.o_norm.weight", NULL, NONE, SIZE_VALUE_WIDTH, NORM_O, KEEP},
    {AT(o_norm), "attn.norm.weight", NULL, NONE, SIZE_VALUE_WIDTH, NORM_PLAIN, KEEP},
    {AT(norm2), "mlp_norm.weight", NULL, NONE, SIZE_C, ALWAYS, KEEP},
    {AT(gate), "mlp.gate_proj.weight", NULL, SIZE_GATE, SIZE_C, ALWAYS, KEEP},
    {AT(up), "mlp.up_proj.weight", NULL, SIZE_F, SIZE_C, UP, KEEP},
    {AT(down), "mlp.down_proj.weight", NULL, SIZE_C, SIZE_F, ALWAYS, KEEP},
};
/* Its layers of softmax attention: the same names, other shapes. */
static const struct role hybrid_roles[] = {
    {AT(norm1), "attn_norm.weight", NULL, NONE, SIZE_C, ALWAYS, KEEP},
    {AT(q), "attn.q_proj.weight", NULL, SIZE_Q, SIZE_C, ALWAYS, KEEP},
    {AT(k), "attn.k_proj.weight", NULL, SIZE_K, SIZE_C, ALWAYS, KEEP},
    {AT(v), "attn.v_proj.weight", NULL, SIZE_K, SIZE_C, ALWAYS, KEEP},
    {AT(o), "attn.o_proj.weight", NULL, SIZE_C, SIZE_Q, ALWAYS, KEEP},
    {AT(q_bias), "attn.q_proj.bias", NULL, NONE, SIZE_Q, QKV_BIAS, KEEP},
    {AT(k_bias), "attn.k_proj.bias", NULL, NONE, SIZE_K, QKV_BIAS, KEEP},
    {AT(v_bias), "attn.v_proj.bias", NULL, NONE, SIZE_K, QKV_BIAS, KEEP},
    {AT(norm2), "mlp_norm.weight", NULL, NONE, SIZE_C, ALWAYS, KEEP},
    {AT(gate), "mlp.gate_proj.weight", NULL, SIZE_GATE, SIZE_C, ALWAYS, KEEP},
    {AT(up), "mlp.up_proj.weight", NULL, SIZE_F, SIZE_C, UP, KEEP},
    {AT(down), "mlp.down_proj.weight", NULL, SIZE_C, SIZE_F, ALWAYS, KEEP},
};
#undef AT
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

struct finder {
    struct model *model;
    struct model_config config;
    const char *prefix; /* of the safetensors names: "model." */
    const char *head;   /* name of the output head */
    bool linear;        /* the layers' tensors are those of linear attention */
    int64_t sizes[N_SIZES];
    bool *used; /* (n_tensors) */
    struct ag_error *err;
};

static const char *file_of(const struct ckpt *ckpt, const struct ckpt_tensor *t) { return ckpt->files[t->file].path; }

static void show_shape(char text[160], const int64_t *shape, int rank) {
    size_t n = (size_t)snprintf(text, 160, "[");
    for (int i = 0; i < rank; i++) n += (size_t)snprintf(text + n, 160 - n, i ? ", %lld" : "%lld", (long long)shape[i]);
    snprintf(text + n, 160 - n, "]");
}

/* The tensor of that name and shape; NULL with AG_OK when optional. */
static enum ag_status find_shape(struct finder *f, struct model_weight *weight, const char *name, const int64_t *shape,
                                 int rank, bool optional) {
    const struct ckpt *ckpt = f->model->ckpt;
    const struct ckpt_tensor *t = ckpt_find(ckpt, name);
    *weight = (struct model_weight){0};
    if (!t) {
        if (optional) return AG_OK;
        return ag_fail(f->err, AG_E_FORMAT, "%s: tensor '%s' is missing; %s needs it; is the download complete?",
                       ckpt->path, name, f->config.where);
    }
    if (t->dtype < 0) {
        return ag_fail(f->err, AG_E_UNSUPPORTED,
                       "%s: tensor '%s' is stored as %s, which this build does not read; convert the model to "
                       "one that it does (F32, F16, BF16, F64, Q4_0 to Q8_0, Q2_K to Q6_K)",
                       file_of(ckpt, t), name, t->type);
    }
    if (t->rank != rank || memcmp(t->shape, shape, (size_t)rank * sizeof *shape) != 0) {
        char found[160], expected[160];
        show_shape(found, t->shape, t->rank);
        show_shape(expected, shape, rank);
        return ag_fail(f->err, AG_E_FORMAT, "%s: tensor '%s' has shape %s; expected %s from %s", file_of(ckpt, t), name,
                       found, expected, f->config.where);
    }
    f->used[t - ckpt->tensors] = true;
    weight->tensor = t;
    return AG_OK;
}

/* The same for (rows, columns), or (columns) when rows is 0. */
static enum ag_status find(struct finder *f, struct model_weight *weight, const char *name, int64_t rows,
                           int64_t columns, bool optional) {
    int64_t shape[2] = {rows, columns};
    return find_shape(f, weight, name, rows ? shape : shape + 1, rows ? 2 : 1, optional);
}

static void layer_name(const struct finder *f, char name[256], int64_t layer, const struct role *role) {
    if (f->model->ckpt->format == CKPT_GGUF) {
        snprintf(name, 256, "blk.%lld.%s", (long long)layer, role->gguf);
    } else {
        snprintf(name, 256, "%slayers.%lld.%s", f->prefix, (long long)layer, role->hf);
    }
}

static enum presence *group_of(struct finder *f, enum group group) {
    switch (group) {
    case QKV_BIAS:
        return &f->config.qkv_bias;
    case O_BIAS:
        return &f->config.o_bias;
    case MLP_BIAS:
        return &f->config.mlp_bias;
    case QK_NORM:
        return &f->config.qk_norm;
    case CONV:
        return &f->config.conv;
    case OUT_GATE:
        return &f->config.out_gate;
    case GLA_GATE:
        return &f->config.gla_gate;
    case BETA:
        return &f->config.beta;
    case DECAY:
        return &f->config.decay;
    case CCQ:
        return &f->config.ccq;
    case NORM_SWISH:
        return &f->config.norm_swish;
    case NORM_G:
        return &f->config.norm_g;
    case NORM_O:
        return &f->config.norm_o;
    case NORM_PLAIN:
        return &f->config.norm_plain;
    case UP:
        return &f->config.up;
    case ALWAYS:
        break;
    }
    return NULL;
}

static enum ag_status find_layer(struct finder *f, int64_t layer) {
    enum ag_status status;
    char name[256];
    struct model *model = f->model;
    bool permuted = model->ckpt->format == CKPT_GGUF && model->family == MODEL_LLAMA;
    const struct model_config *c = &f->config;
    const bool hybrid = c->softmax && c->softmax[layer];
    const struct role *roles = hybrid ? hybrid_roles : f->linear ? linear_roles : softmax_roles;
    const size_t n_roles = hybrid ? COUNT(hybrid_roles) : f->linear ? COUNT(linear_roles) : COUNT(softmax_roles);
    f->sizes[SIZE_Q] = hybrid ? c->softmax_Hq * c->softmax_D : c->Hq * c->D;
    f->sizes[SIZE_K] = hybrid ? c->softmax_Hk * c->softmax_D : c->Hk * c->D;
    for (size_t i = 0; i < n_roles; i++) {
        const struct role *role = &roles[i];
        enum presence *presence = group_of(f, role->group);
        layer_name(f, name, layer, role);
        if (presence && *presence == BY_PRESENCE) *presence = ckpt_find(model->ckpt, name) ? PRESENT : ABSENT;
        if (presence && *presence == ABSENT) continue; /* where it is there nevertheless, check_unused says so */
        struct model_weight *weight = (struct model_weight *)(void *)((char *)&model->layers[layer] + role->at);
        if (role->group == CONV)
            AG_TRY(find_shape(f, weight, name, (int64_t[]){f->sizes[role->rows], 1, model->linear.conv}, 3, false));
        else
            AG_TRY(find(f, weight, name, f->sizes[role->rows], f->sizes[role->columns], false));
        if (!permuted || role->order == KEEP) continue;
        weight->rotate_heads = role->order == QUERY_ROWS ? f->config.Hq : f->config.Hk;
        if (role->rows == NONE && kern_dtypes[weight->tensor->dtype].block_elements > 1) {
            return ag_fail(f->err, AG_E_UNSUPPORTED,
                           "%s: tensor '%s' is stored as %s; a bias whose order must be undone is expected as "
                           "floats",
                           model->ckpt->path, name, weight->tensor->type);
        }
    }
    return AG_OK;
fail:
    return status;
}

/* The prefix under which the text model's tensors stand. */
static void find_prefix(struct finder *f) {
    static const struct {
        const char *prefix, *head;
    } known[] = {
        {"model.", "lm_head.weight"},
        {"model.language_model.", "lm_head.weight"},
        {"language_model.model.", "language_model.lm_head.weight"},
    };
    size_t n = f->config.text_part ? sizeof known / sizeof known[0] : 1;
    char name[64];
    for (size_t i = 0; i < n; i++) {
        f->prefix = known[i].prefix;
        f->head = known[i].head;
        snprintf(name, sizeof name, "%sembed_tokens.weight", f->prefix);
        if (ckpt_find(f->model->ckpt, name)) return;
    }
    f->prefix = known[0].prefix;
    f->head = known[0].head;
}

/* Are two tensors the same bytes? */
static enum ag_status same_bytes(bool *same, const struct ckpt *ckpt, const struct ckpt_tensor *a,
                                 const struct ckpt_tensor *b, struct ag_arena *arena, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const uint64_t piece = 1 << 20;
    *same = a->dtype == b->dtype && a->bytes == b->bytes;
    if (!*same) return AG_OK;
    struct ag_mark mark = ag_arena_mark(arena);
    uint8_t *x = AG_NEW(arena, uint8_t, 2 * (int64_t)piece, err);
    if (!x) return AG_E_MEMORY;
    for (uint64_t at = 0; at < a->bytes && *same; at += piece) {
        uint64_t n = a->bytes - at < piece ? a->bytes - at : piece;
        AG_TRY(ag_file_read(&ckpt->files[a->file], x, a->offset + at, n, err));
        AG_TRY(ag_file_read(&ckpt->files[b->file], x + piece, b->offset + at, n, err));
        *same = memcmp(x, x + piece, (size_t)n) == 0;
    }
fail:
    ag_arena_release(arena, mark);
    return status;
}

/* The embedding and the head, which may be one (spec/checkpoints.md sections 1 and 4). */
static enum ag_status find_ends(struct finder *f) {
    enum ag_status status;
    struct model *model = f->model;
    bool gguf = model->ckpt->format == CKPT_GGUF, same = false;
    char embedding[64], norm[64];
    snprintf(embedding, sizeof embedding, gguf ? "token_embd.weight" : "%sembed_tokens.weight", f->prefix);
    /* very old files of linear attention call it embed_tokens too */
    if (f->linear && !ckpt_find(model->ckpt, embedding))
        snprintf(embedding, sizeof embedding, "%sembeddings.weight", f->prefix);
    snprintf(norm, sizeof norm, gguf ? "output_norm.weight" : "%snorm.weight", f->prefix);
    const char *head = gguf ? "output.weight" : f->head;
    bool tied = f->config.tied == PRESENT;
    AG_TRY(find(f, &model->final_norm, norm, 0, model->C, false));
    AG_TRY(find(f, &model->head, head, model->V, model->C, true));
    /* tied, and only the head was saved: it is the embedding */
    AG_TRY(find(f, &model->embedding, embedding, model->V, model->C, tied && model->head.tensor));
    if (!model->embedding.tensor) model->embedding = model->head;
    if (!model->head.tensor) {
        model->head = model->embedding;
        if (f->config.tied == ABSENT) {
            model_warn(model, "%s: no tensor %s, though %s does not tie it to the embedding; the embedding is used",
                       model->ckpt->path, head, f->config.where);
        }
    } else if (tied && model->head.tensor != model->embedding.tensor) {
        AG_TRY(same_bytes(&same, model->ckpt, model->head.tensor, model->embedding.tensor, model->arena, f->err));
        if (same) {
            model->head = model->embedding;
        } else {
            model_warn(model,
                       "%s: %s ties the head to the embedding, but the file has both and they differ; the head's own "
                       "weights are "
                       "used, as the reference library does",
                       model->ckpt->path, f->config.where);
        }
    }
    model->tied = model->head.tensor == model->embedding.tensor;
    return AG_OK;
fail:
    return status;
}

/* A tensor that no role claims would change the model, if it is of any use at all. */
static enum ag_status check_unused(const struct finder *f) {
    const struct ckpt *ckpt = f->model->ckpt;
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct ckpt_tensor *t = &ckpt->tensors[i];
        size_t n = strlen(t->name);
        static const char buffer[] = "rotary_emb.inv_freq"; /* of old checkpoints: recomputed */
        if (f->used[i]) continue;
        /* of old checkpoints, where nothing reads it */
        if (f->model->family == MODEL_GATED_DELTANET && n >= 7 && !strcmp(t->name + n - 7, ".attn.D")) continue;
        if (ckpt->format == CKPT_SAFETENSORS) {
            if (n >= sizeof buffer - 1 && !strcmp(t->name + n - (sizeof buffer - 1), buffer)) continue;
            if (f->config.text_part && strncmp(t->name, f->prefix, strlen(f->prefix)) != 0 &&
                !strstr(t->name, "lm_head"))
                continue;
            /* "model." is a prefix of other parts too ("model.visual."): what is ours begins like our own tensors */
            if (f->config.text_part && !strcmp(f->prefix, "model.") && strncmp(t->name, "model.layers.", 13) != 0)
                continue;
        }
        return ag_fail(f->err, AG_E_UNSUPPORTED,
                       "%s: tensor '%s' has no place in a %s of %lld layers as %s describes it, so this forward "
                       "pass would not honour it",
                       file_of(ckpt, t), t->name, f->model->architecture, (long long)f->model->L, f->config.where);
    }
    return AG_OK;
}

/* rope_freqs.weight of a GGUF llama: llama3's scaling as a divisor of each frequency. */
static enum ag_status find_rope(struct finder *f) {
    enum ag_status status;
    struct model *model = f->model;
    struct model_weight weight;
    float *divisors = NULL;
    int64_t n = model->rope.n_rot / 2;
    if (model->ckpt->format == CKPT_GGUF && model->family == MODEL_LLAMA) {
        AG_TRY(find(f, &weight, "rope_freqs.weight", 0, n, true));
        if (weight.tensor) {
            if (weight.tensor->dtype != KERN_F32 || model->rope.type != ROPE_DEFAULT) {
                return ag_fail(f->err, AG_E_UNSUPPORTED,
                               "%s: rope_freqs.weight is %s beside RoPE of factor %g; expected F32 and no other "
                               "scaling",
                               model->ckpt->path, weight.tensor->type, model->rope.factor);
            }
            divisors = AG_NEW(model->arena, float, n, f->err);
            if (!divisors) return AG_E_MEMORY;
            AG_TRY(ckpt_read_rows(model->ckpt, weight.tensor, divisors, 0, 1, f->err));
            model->rope.type = ROPE_LLAMA3;
            for (int64_t i = 0; i < n; i++) {
                if (!(divisors[i] > 0 && divisors[i] < 1e9f)) {
                    return ag_fail(f->err, AG_E_FORMAT,
                                   "%s: rope_freqs.weight[%lld] is %g; expected a positive divisor", model->ckpt->path,
                                   (long long)i, (double)divisors[i]);
                }
            }
            model->rope.factor = (double)divisors[n - 1]; /* the lowest frequency takes all of it */
        }
    }
    return model_rope_table(&model->rope, divisors, model->arena, f->err);
fail:
    return status;
}

static enum ag_status check_dimensions(const struct finder *f) {
    const struct model_config *c = &f->config;
    if (c->Hq % c->Hk != 0 || (!f->linear && (c->D < 2 || c->D % 2 != 0))) {
        return ag_fail(f->err, AG_E_FORMAT,
                       "%s: %lld query heads, %lld key heads, %lld wide; expected a multiple of the key heads%s",
                       c->where, (long long)c->Hq, (long long)c->Hk, (long long)c->D,
                       f->linear ? "" : ", and an even width");
    }
    if (c->D > KERN_HEAD_MAX) {
        return ag_fail(f->err, AG_E_UNSUPPORTED, "%s: heads %lld wide; this build handles at most %d", c->where,
                       (long long)c->D, KERN_HEAD_MAX);
    }
    /* every layer has at least 8 tensors, so a number of layers beyond that is damage, and no reason to allocate */
    if (f->model->L > f->model->ckpt->n_tensors / 8) {
        return ag_fail(f->err, AG_E_FORMAT, "%s: %lld layers, but only %lld tensors in %s; is the download complete?",
                       c->where, (long long)f->model->L, (long long)f->model->ckpt->n_tensors, f->model->ckpt->path);
    }
    return AG_OK;
}

/* What the shapes of the first layers decide: the rank of GLA's gate, and whether gate_proj holds up_proj's rows too.
 */
static void look_at_first_layers(struct finder *f) {
    const struct ckpt *ckpt = f->model->ckpt;
    const struct ckpt_tensor *low = NULL;
    for (int64_t i = 0; i < f->model->L && !low; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%lld.attn.gk_proj.0.weight", (long long)i);
        low = ckpt_find(ckpt, name);
    }
    const struct ckpt_tensor *gate = ckpt_find(ckpt, "model.layers.0.mlp.gate_proj.weight");
    const int64_t F = f->model->F;
    if (f->config.gla_gate == PRESENT)
        f->model->linear.gate_rank = low && low->rank == 2 && low->shape[0] <= 4096 ? low->shape[0] : 16;
    if (gate && gate->rank == 2 && gate->shape[0] == 2 * F) f->config.up = ABSENT;
    f->sizes[SIZE_RANK] = f->model->linear.gate_rank;
    f->sizes[SIZE_GATE] = f->config.up == ABSENT ? 2 * F : F;
    f->sizes[SIZE_VALUES] = f->config.Hk * f->config.Dv;
    f->sizes[SIZE_READ] = f->config.Hq * f->config.Dv;
    f->sizes[SIZE_HEADS] = f->config.Hq;
    f->sizes[SIZE_VALUE_HEADS] = f->model->linear.Hv;
    f->sizes[SIZE_VALUE_WIDTH] = f->model->linear.V;
}

static enum ag_status find_all(struct finder *f) {
    enum ag_status status;
    struct model *model = f->model;
    const struct model_config *c = &f->config;
    f->linear = model->linear.Hv > 0;
    AG_TRY(check_dimensions(f));
    const int64_t sizes[N_SIZES] = {0, model->C, c->Hq * c->D, c->Hk * c->D, c->D, model->F, model->V};
    memcpy(f->sizes, sizes, sizeof sizes);
    if (f->linear) look_at_first_layers(f);
    f->used = AG_ZEROS(model->arena, bool, model->ckpt->n_tensors, f->err);
    model->layers = AG_ZEROS(model->arena, struct model_layer, model->L, f->err);
    model->shapes = AG_ZEROS(model->arena, struct ag_layer_shape, model->L, f->err);
    if (!f->used || !model->layers || !model->shapes) return AG_E_MEMORY;
    find_prefix(f);
    AG_TRY(find_ends(f));
    for (int64_t i = 0; i < model->L; i++) {
        bool slides = c->window > 0 && (!c->sliding || c->sliding[i]);
        model->shapes[i] = (struct ag_layer_shape){.kind = f->linear ? AG_LAYER_LINEAR : AG_LAYER_SOFTMAX,
                                                   .Hq = c->Hq,
                                                   .Hk = c->Hk,
                                                   .D = c->D,
                                                   .Dv = f->linear ? c->Dv : c->D,
                                                   .window = slides ? c->window : 0};
        bool linear = f->linear && !(c->softmax && c->softmax[i]);
        if (f->linear && !linear)
            model->shapes[i] = (struct ag_layer_shape){.kind = AG_LAYER_SOFTMAX,
                                                       .Hq = c->softmax_Hq,
                                                       .Hk = c->softmax_Hk,
                                                       .D = c->softmax_D,
                                                       .Dv = c->softmax_D,
                                                       .window = c->softmax_window};
        model->shapes[i].scale = 1 / __builtin_sqrt((double)model->shapes[i].D);
        model->layers[i].shape = model->shapes[i];
        if (linear) model->layers[i].linear = &model->linear;
        AG_TRY(find_layer(f, i));
    }
    if (f->linear && !c->softmax) return check_unused(f);
    model->rope.n_rot = c->softmax ? c->softmax_D : c->D; /* trusted by now: the tensors have that width */
    AG_TRY(find_rope(f));
    return check_unused(f);
fail:
    return status;
}

/* The name for titles: the folder's or the file's, which is what people know a model by; general.name of a GGUF is often the name of
 * a training run. */
static enum ag_status find_name(struct model *model, struct ag_error *err) {
    const struct ckpt *ckpt = model->ckpt;
    char resolved[PATH_MAX];
    const char *path = ckpt->folder ? ckpt->folder : ckpt->path;
    if (realpath(path, resolved)) path = resolved;
    const char *slash = strrchr(path, '/'), *start = slash ? slash + 1 : path,
               *dot = ckpt->folder ? NULL : strrchr(start, '.');
    model->name = ag_arena_text(model->arena, start, dot ? (size_t)(dot - start) : strlen(start), err);
    return model->name ? AG_OK : AG_E_MEMORY;
}

/* Only whether there is one: no template is ever evaluated. */
static enum ag_status find_chat_template(struct model *model, struct ag_error *err) {
    static const char *const files[] = {"chat_template.jinja", "chat_template.json"};
    if (model->ckpt->format == CKPT_GGUF && ckpt_meta_find(model->ckpt, "tokenizer.chat_template")) {
        model->chat_template_source = "tokenizer.chat_template of the GGUF metadata";
    }
    if (!model->ckpt->folder) return AG_OK;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *path = ag_path_join(model->arena, model->ckpt->folder, files[i], err);
        if (!path) return AG_E_MEMORY;
        if (ag_path_kind(path) == AG_KIND_FILE) model->chat_template_source = files[i];
    }
    const char *path = ag_path_join(model->arena, model->ckpt->folder, "tokenizer_config.json", err), *text;
    if (!path) return AG_E_MEMORY;
    size_t n;
    if (model->chat_template_source || ag_path_kind(path) != AG_KIND_FILE) return AG_OK;
    /* a remark about a file that is nothing to the forward pass: one that cannot be read has no template to speak of */
    if (ag_file_text(&text, &n, path, 16u << 20, model->arena, NULL) != AG_OK) return AG_OK;
    json_t *json = json_loadb(text, n, 0, NULL);
    if (json && !json_is_null(json_object_get(json, "chat_template")) && json_object_get(json, "chat_template")) {
        model->chat_template_source = "tokenizer_config.json";
    }
    json_decref(json);
    return AG_OK;
}

enum ag_status model_open(struct model **out, const struct ckpt *ckpt, struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    *out = NULL;
    struct ag_arena *arena = ag_arena_new("model");
    if (!arena) return ag_fail(err, AG_E_MEMORY, "out of memory (model)");
    struct model *model = AG_ZEROS(arena, struct model, 1, err);
    if (!model) goto fail;
    model->arena = arena;
    model->ckpt = ckpt;
    struct finder finder = {.model = model, .err = err};
    if (ckpt->format == CKPT_GGUF) {
        AG_TRY(model_config_gguf(model, &finder.config, err));
    } else if (ckpt->config) {
        AG_TRY(model_config_hf(model, &finder.config, err));
    } else {
        status =
            ag_fail(err, AG_E_FORMAT,
                    "%s: no config.json beside it, which says what model its tensors are; name a folder that has one",
                    ckpt->path);
        goto fail;
    }
    AG_TRY(find_all(&finder));
    AG_TRY(find_name(model, err));
    AG_TRY(find_chat_template(model, err));
    *out = model;
    return AG_OK;
fail:
    ag_arena_free(arena);
    return status;
}

void model_close(struct model *model) {
    if (model) ag_arena_free(model->arena);
}

/* Row r of a head of D rows in Hugging Face's order is this row of GGUF's llama. */
static int64_t permuted_row(int64_t r, int64_t D) { return r < D / 2 ? 2 * r : 2 * (r - D / 2) + 1; }

/* Rows [row, row + count) in Hugging Face's order, gathered head by head: read a head, pick its rows. */
static enum ag_status read_permuted(uint8_t *out, uint8_t *head, const struct model *model,
                                    const struct model_weight *weight, int64_t row, int64_t count,
                                    struct ag_error *err) {
    const struct ckpt_tensor *t = weight->tensor;
    const struct ag_file *file = &model->ckpt->files[t->file];
    int64_t D = t->shape[0] / weight->rotate_heads, bytes = (int64_t)t->bytes / t->shape[0];
    for (int64_t r = row; r < row + count;) {
        int64_t first = r / D * D; /* of the head */
        enum ag_status status =
            ag_file_read(file, head, t->offset + (uint64_t)(first * bytes), (uint64_t)(D * bytes), err);
        if (status != AG_OK) return status;
        for (; r < row + count && r < first + D; r++) {
            memcpy(out + (r - row) * bytes, head + permuted_row(r - first, D) * bytes, (size_t)bytes);
        }
    }
    return AG_OK;
}

enum ag_status model_read(void *raw, void *scratch, const struct model *model, const struct model_weight *weight,
                          int64_t row, int64_t count, struct ag_error *err) {
    const struct ckpt_tensor *t = weight->tensor;
    bool vector = t->rank < 2;
    int64_t rows = vector ? 1 : t->shape[0];
    if (row < 0 || count < 0 || count > rows || row > rows - count) {
        return ag_fail(err, AG_E_INTERNAL, "tensor '%s': rows %lld + %lld asked for, it has %lld", t->name,
                       (long long)row, (long long)count, (long long)rows);
    }
    if (weight->rotate_heads == 0) return ckpt_read_rows(model->ckpt, t, raw, row, count, err);
    return read_permuted(raw, scratch, model, weight, vector ? 0 : row, vector ? t->shape[0] : count, err);
}

int64_t model_scratch_bytes(const struct model_weight *weight) {
    return weight->rotate_heads > 0 ? (int64_t)weight->tensor->bytes / weight->rotate_heads : 0; /* one head */
}

enum ag_status model_load(float *out, const struct model *model, const struct model_weight *weight, int64_t row,
                          int64_t count, void *raw, const struct kern_ops *ops, struct ag_error *err) {
    const struct ckpt_tensor *t = weight->tensor;
    char *scratch = (char *)raw + ckpt_row_bytes(t) * count;
    enum ag_status status = model_read(raw, scratch, model, weight, row, count, err);
    if (status != AG_OK) return status;
    ops->dequant(out, raw, (enum kern_dtype)t->dtype, count, t->rank < 2 ? t->elements : t->elements / t->shape[0]);
    return AG_OK;
}

int64_t model_raw_bytes(const struct model_weight *weight, int64_t count) {
    return ckpt_row_bytes(weight->tensor) * count + model_scratch_bytes(weight);
}
