/* GGUF metadata as a model's configuration (spec/checkpoints.md section 4). Keys under the architecture's prefix
 * describe the model, so one that is not known here is refused by name. */
#include <math.h>
#include <string.h>

#include "probe/checkpoint_internal.h"
#include "probe/model_internal.h"

struct keys {
    const struct ckpt *ckpt;
    const char *architecture;
    struct ag_error *err;
};

static const struct ckpt_meta *get(const struct keys *k, const char *key) {
    char name[160];
    snprintf(name, sizeof name, "%s.%s", k->architecture, key);
    return ckpt_meta_find(k->ckpt, name);
}

static enum ag_status wrong(const struct keys *k, const char *key, const char *expected) {
    return ag_fail(k->err, AG_E_FORMAT, "%s: key %s.%s is not %s; the file is damaged or of a kind unknown here",
                   k->ckpt->path, k->architecture, key, expected);
}

/* A positive integer; an array with one value for each layer is accepted when all are equal. */
static enum ag_status get_int(const struct keys *k, const char *key, int64_t *out) {
    const struct ckpt_meta *m = get(k, key);
    int64_t value;
    if (!m) return AG_OK;
    if (m->kind == CKPT_META_ARRAY && m->element_kind == CKPT_META_INT && m->n > 0) {
        for (int64_t i = 1; i < m->n; i++) {
            if (m->is[i] != m->is[0]) {
                return ag_fail(k->err, AG_E_UNSUPPORTED,
                               "%s: key %s.%s differs between layers (%lld, then %lld at layer %lld); equal "
                               "layers are expected",
                               k->ckpt->path, k->architecture, key, (long long)m->is[0], (long long)m->is[i],
                               (long long)i);
            }
        }
        value = m->is[0];
    } else if (m->kind == CKPT_META_INT) {
        value = m->i;
    } else {
        return wrong(k, key, "an integer");
    }
    if (value < 1 || value > INT32_MAX) return wrong(k, key, "an integer from 1 to 2147483647");
    *out = value;
    return AG_OK;
}
static enum ag_status get_real(const struct keys *k, const char *key, double *out) {
    const struct ckpt_meta *m = get(k, key);
    if (!m) return AG_OK;
    if (m->kind != CKPT_META_REAL || !isfinite(m->f) || m->f <= 0) return wrong(k, key, "a positive number");
    *out = m->f;
    return AG_OK;
}
static enum ag_status missing(const struct keys *k, const char *key) {
    return ag_fail(k->err, AG_E_FORMAT, "%s: no key %s.%s; expected there; is the file complete?", k->ckpt->path,
                   k->architecture, key);
}

static enum ag_status check_keys(const struct keys *k) {
    static const char *const known[] = {
        "vocab_size",
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.causal",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "rope.scale_linear",
        "tensor_data_layout",
        "attention.layer_norm_epsilon",
        "vocab_only",
    };
    size_t n = strlen(k->architecture);
    for (int64_t i = 0; i < k->ckpt->n_meta; i++) {
        const struct ckpt_meta *m = &k->ckpt->meta[i];
        if (strncmp(m->key, k->architecture, n) != 0 || m->key[n] != '.') continue;
        bool found = false;
        for (size_t j = 0; j < sizeof known / sizeof known[0]; j++) found |= !strcmp(known[j], m->key + n + 1);
        bool off = (m->kind == CKPT_META_INT || m->kind == CKPT_META_BOOL) ? m->i == 0
                                                                           : m->kind == CKPT_META_REAL && m->f == 0;
        if (!found && !off) {
            return ag_fail(k->err, AG_E_UNSUPPORTED,
                           "%s: key %.100s is not known here, so this forward pass would not honour it; a plain "
                           "%s model is expected",
                           k->ckpt->path, m->key, k->architecture);
        }
    }
    const struct ckpt_meta *causal = get(k, "attention.causal");
    if (causal && (causal->kind != CKPT_META_BOOL || causal->i != 1)) return wrong(k, "attention.causal", "true");
    return AG_OK;
}

static enum ag_status read_rope(struct model *model, const struct keys *k) {
    enum ag_status status;
    struct model_rope *rope = &model->rope;
    const struct ckpt_meta *type = get(k, "rope.scaling.type");
    rope->type = ROPE_DEFAULT;
    rope->theta = 10000;
    rope->factor = 1;
    AG_TRY(get_real(k, "rope.freq_base", &rope->theta));
    AG_TRY(get_real(k, "rope.scale_linear", &rope->factor));
    AG_TRY(get_real(k, "rope.scaling.factor", &rope->factor));
    if (type && type->kind != CKPT_META_TEXT) return wrong(k, "rope.scaling.type", "text");
    if (type && strcmp(type->text, "none") != 0 && strcmp(type->text, "linear") != 0) {
        return ag_fail(k->err, AG_E_UNSUPPORTED, "%s: rope.scaling.type is %.40s; none and linear are computed here",
                       k->ckpt->path, ckpt_name_valid(type->text, type->text_bytes) ? type->text : "?");
    }
    if (type && !strcmp(type->text, "none")) rope->factor = 1;
    if (rope->factor != 1) rope->type = ROPE_LINEAR;
    return AG_OK;
fail:
    return status;
}

enum ag_status model_config_gguf(struct model *model, struct model_config *config, struct ag_error *err) {
    static const struct {
        enum model_family id;
        const char *name;
    } families[] = {{MODEL_LLAMA, "llama"}, {MODEL_QWEN2, "qwen2"}, {MODEL_QWEN3, "qwen3"}};
    enum ag_status status;
    const struct ckpt *ckpt = model->ckpt;
    const struct ckpt_meta *m = ckpt_meta_find(ckpt, "general.architecture");
    struct keys k = {ckpt, NULL, err};
    config->where = ckpt->files[0].path;
    if (!m || m->kind != CKPT_META_TEXT) {
        return ag_fail(err, AG_E_FORMAT, "%s: no key general.architecture; expected the name of a model family",
                       ckpt->path);
    }
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(m->text, families[i].name) != 0) continue;
        model->family = families[i].id;
        model->last_tap = AG_TAP_ROPE;
        k.architecture = model->architecture = families[i].name;
    }
    if (!k.architecture) {
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: general.architecture is %.40s; this build reads llama (also SmolLM2), qwen2 and qwen3",
                       ckpt->path, ckpt_name_valid(m->text, m->text_bytes) ? m->text : "?");
    }
    AG_TRY(check_keys(&k));
    static const char *const required[] = {"embedding_length", "block_count", "feed_forward_length",
                                           "attention.head_count", "attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        if (!get(&k, required[i])) return missing(&k, required[i]);
    }
    AG_TRY(get_int(&k, "embedding_length", &model->C));
    AG_TRY(get_int(&k, "block_count", &model->L));
    AG_TRY(get_int(&k, "feed_forward_length", &model->F));
    AG_TRY(get_int(&k, "attention.head_count", &config->Hq));
    config->Hk = config->Hq;
    AG_TRY(get_int(&k, "attention.head_count_kv", &config->Hk));
    AG_TRY(get_int(&k, "context_length", &model->max_position));
    AG_TRY(get_real(&k, "attention.layer_norm_rms_epsilon", &model->norm_eps));
    config->D = model->C / config->Hq;
    AG_TRY(get_int(&k, "attention.key_length", &config->D));
    int64_t Dv = config->D, n_rot = config->D;
    AG_TRY(get_int(&k, "attention.value_length", &Dv));
    AG_TRY(get_int(&k, "rope.dimension_count", &n_rot));
    if (Dv != config->D || n_rot != config->D) {
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: keys are %lld wide, values %lld, and RoPE turns %lld coordinates; equal numbers are "
                       "expected in a %s",
                       ckpt->path, (long long)config->D, (long long)Dv, (long long)n_rot, k.architecture);
    }
    m = get(&k, "attention.sliding_window");
    if (m && !(m->kind == CKPT_META_INT && m->i == 0)) AG_TRY(get_int(&k, "attention.sliding_window", &config->window));
    AG_TRY(read_rope(model, &k));

    /* V: rows of the embedding, which model.c compares with vocab_size where there is one */
    const struct ckpt_tensor *embedding = ckpt_find(ckpt, "token_embd.weight");
    if (!embedding || embedding->rank != 2 || embedding->shape[0] < 1 || embedding->shape[0] > INT32_MAX) {
        return ag_fail(err, AG_E_FORMAT, "%s: no usable tensor token_embd.weight; expected [vocabulary, %lld]",
                       ckpt->path, (long long)model->C);
    }
    model->V = embedding->shape[0];
    AG_TRY(get_int(&k, "vocab_size", &model->V));
    m = ckpt_meta_find(ckpt, "tokenizer.ggml.tokens");
    if (m && m->kind == CKPT_META_ARRAY && m->n > model->V) {
        return ag_fail(err, AG_E_FORMAT, "%s: %lld tokens but an embedding of %lld rows; the file is damaged",
                       ckpt->path, (long long)m->n, (long long)model->V);
    }
    config->qkv_bias = model->family == MODEL_QWEN2 ? PRESENT : BY_PRESENCE;
    config->o_bias = model->family == MODEL_QWEN2 ? ABSENT : BY_PRESENCE;
    config->mlp_bias = model->family == MODEL_LLAMA ? BY_PRESENCE : ABSENT;
    config->qk_norm = model->family == MODEL_QWEN3 ? PRESENT : ABSENT;
    config->tied = BY_PRESENCE;
    return AG_OK;
fail:
    return status;
}
