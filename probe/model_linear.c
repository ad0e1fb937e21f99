/* config.json of a model of linear attention in the layout of flash-linear-attention (spec/linear-models.md), and of
 * the two CCQ types of the samples. What the forward pass would not honour is refused by name. */
#include <math.h>
#include <string.h>

#include "probe/checkpoint_internal.h"
#include "probe/model_internal.h"

/* Keys that are read here, or that the reference's blocks of these families do not read. */
static const char *const common_keys[] = {
    "model_type",         "architectures",
    "vocab_size",         "hidden_size",
    "intermediate_size",  "num_hidden_layers",
    "hidden_act",         "tie_word_embeddings",
    "norm_eps",           "rms_norm_eps",
    "num_heads",          "hidden_ratio",
    "elementwise_affine", "max_position_embeddings",
    "text_config",        "attn_mode",
    "fuse_swiglu",        "fuse_linear_cross_entropy",
    "use_l2warp",
};
static const char *const gla_keys[] = {
    "expand_k",        "expand_v",  "num_kv_heads", "feature_map", "use_short_conv", "conv_size",
    "use_output_gate", "clamp_min", "qk_norm",      "use_gk",      "use_gv",
};
static const char *const gdn_keys[] = {
    "head_dim", "expand_v", "num_v_heads", "use_gate", "use_short_conv", "conv_size", "allow_neg_eigval", "conv_bias",
};
static const char *const delta_keys[] = {
    "expand_k", "expand_v",      "use_gate",         "use_beta",        "use_short_conv", "conv_size",
    "qk_norm",  "qk_activation", "allow_neg_eigval", "use_output_norm", "conv_bias",
};
static const char *const plain_keys[] = {
    "expand_k", "expand_v", "num_kv_heads", "feature_map", "tie_feature_map_qk", "norm_q", "norm_k", "norm_feature_map",
};
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))
enum { READ_MAX = 48, CONV_MAX = 16 };

static enum ag_status check_keys(struct model *model, const struct config_source *s,
                                 const struct model_hf_family *family) {
    const char *read[READ_MAX];
    size_t n = 0;
    const struct {
        enum model_family id;
        const char *const *keys;
        size_t n;
    } lists[] = {
        {MODEL_GLA, gla_keys, COUNT(gla_keys)},
        {MODEL_GATED_DELTANET, gdn_keys, COUNT(gdn_keys)},
        {MODEL_DELTA_NET, delta_keys, COUNT(delta_keys)},
        {MODEL_LINEAR_ATTN, plain_keys, COUNT(plain_keys)},
    };
    for (size_t i = 0; i < COUNT(common_keys); i++) read[n++] = common_keys[i];
    for (size_t l = 0; l < COUNT(lists); l++)
        for (size_t i = 0; i < lists[l].n && lists[l].id == family->id; i++) read[n++] = lists[l].keys[i];
    read[n++] = "attn";
    if (family->ccq) read[n++] = "ccq";
    return config_check_keys(model, s, read, n);
}

/* One of the names, by number; *out keeps its value when the key is absent or null. */
static enum ag_status choose(const struct config_source *s, const char *key, const char *const *names, size_t n,
                             const char *expected, int *out) {
    const json_t *value = config_get(s, key);
    const char *text = json_string_value(value);
    if (!value) return AG_OK;
    for (size_t i = 0; text && i < n; i++)
        if (!strcmp(text, names[i])) {
            *out = (int)i;
            return AG_OK;
        }
    if (text)
        return ag_fail(s->err, AG_E_UNSUPPORTED, "%s: \"%s\" is \"%.40s\", which is not computed here; expected %s",
                       s->where, key, ckpt_name_valid(text, strlen(text)) ? text : "?", expected);
    return config_wrong(s, key, value, expected);
}

static enum ag_status need_true(const struct config_source *s, const char *key) {
    bool on = true;
    enum ag_status status = config_bool(s, key, &on);
    if (status != AG_OK || on) return status;
    return ag_fail(s->err, AG_E_UNSUPPORTED, "%s: \"%s\" is false, which is not computed here; expected true", s->where,
                   key);
}
static enum ag_status need_false(const struct config_source *s, const char *key) {
    bool on = false;
    enum ag_status status = config_bool(s, key, &on);
    if (status != AG_OK || !on) return status;
    return ag_fail(s->err, AG_E_UNSUPPORTED, "%s: \"%s\" is true, which is not computed here; expected false", s->where,
                   key);
}

static enum ag_status get_ratio(const struct config_source *s, const char *key, double *out) {
    enum ag_status status = config_real(s, key, out);
    if (status != AG_OK || *out <= 1024) return status;
    return config_wrong(s, key, config_get(s, key), "a number up to 1024");
}

/* The MLP's width: given, or made from the ratio as the reference makes it. */
static enum ag_status read_mlp(struct model *model, const struct config_source *s) {
    static const char *const acts[] = {"swish", "silu"};
    double ratio = 4;
    int act = 0;
    enum ag_status status;
    AG_TRY(choose(s, "hidden_act", acts, COUNT(acts), "swish or silu", &act));
    AG_TRY(get_ratio(s, "hidden_ratio", &ratio));
    model->F = ((int64_t)((double)model->C * ratio * 2 / 3) + 255) / 256 * 256;
    AG_TRY(config_int(s, "intermediate_size", 1, INT32_MAX, &model->F));
fail:
    return status;
}

/* int(width * ratio) / heads, which must divide. */
static enum ag_status head_width(const struct config_source *s, const char *key, double ratio, int64_t width,
                                 int64_t heads, int64_t *out) {
    enum ag_status status = get_ratio(s, key, &ratio);
    if (status != AG_OK) return status;
    int64_t whole = (int64_t)((double)width * ratio);
    if (whole < heads || whole % heads != 0)
        return ag_fail(s->err, AG_E_FORMAT,
                       "%s: \"%s\" makes %lld coordinates of %lld; expected a multiple of %lld heads", s->where, key,
                       (long long)whole, (long long)width, (long long)heads);
    *out = whole / heads;
    return AG_OK;
}

static enum ag_status read_conv(struct model *model, struct model_config *config, const struct config_source *s,
                                bool by_default) {
    bool conv = by_default;
    int64_t taps = 4;
    enum ag_status status;
    AG_TRY(config_bool(s, "use_short_conv", &conv));
    AG_TRY(config_int(s, "conv_size", 1, CONV_MAX, &taps));
    model->linear.conv = conv ? taps : 0;
    config->conv = conv ? PRESENT : ABSENT;
fail:
    return status;
}

static enum ag_status read_gate(struct model_config *config, const struct config_source *s, const char *key,
                                bool by_default) {
    bool gate = by_default;
    enum ag_status status = config_bool(s, key, &gate);
    config->out_gate = gate ? PRESENT : ABSENT;
    return status;
}

static enum ag_status read_gla(struct model *model, struct model_config *config, const struct config_source *s) {
    static const char *const maps[] = {"relu", "sigmoid", "silu", "swish", "sqrelu"};
    static const enum kern_map map_of[] = {KERN_MAP_RELU, KERN_MAP_SIGMOID, KERN_MAP_SILU, KERN_MAP_SILU,
                                           KERN_MAP_SQRELU};
    static const char *const norms[] = {"l2"};
    struct model_linear *linear = &model->linear;
    const json_t *clamp = config_get(s, "clamp_min");
    int map = -1, norm = -1;
    enum ag_status status;
    AG_TRY(config_int(s, "num_kv_heads", 1, INT32_MAX, &config->Hk));
    AG_TRY(head_width(s, "expand_k", 0.5, model->C, config->Hq, &config->D));
    AG_TRY(head_width(s, "expand_v", 1, model->C, config->Hq, &config->Dv));
    AG_TRY(read_conv(model, config, s, false));
    AG_TRY(read_gate(config, s, "use_output_gate", true));
    AG_TRY(choose(s, "feature_map", maps, COUNT(maps), "null, relu, sigmoid, silu, swish or sqrelu", &map));
    AG_TRY(choose(s, "qk_norm", norms, COUNT(norms), "null or \"l2\"", &norm));
    if (linear->conv > 0) linear->qk_map = linear->v_map = KERN_MAP_SILU;
    if (map >= 0) linear->feature = map_of[map];
    if (norm == 0) linear->q_unit = linear->k_unit = KERN_UNIT_L2;
    linear->gate_divisor = 16;
    if (clamp) {
        if (!json_is_number(clamp) || !isfinite(json_number_value(clamp)) || json_number_value(clamp) > 0) {
            status = config_wrong(s, "clamp_min", clamp, "null or a number that is not positive");
            goto fail;
        }
        linear->gate_least = json_number_value(clamp);
    }
    config->gla_gate = PRESENT;
    /* Named by the kernel that does norm and gate at once, or by the plain norm. */
    bool fused = false;
    for (int64_t i = 0; i < model->L && i < model->ckpt->n_tensors && !fused; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%lld.attn.g_norm_swish_gate.weight", (long long)i);
        fused = ckpt_find(model->ckpt, name) != NULL;
    }
    config->norm_swish = fused ? PRESENT : ABSENT;
    config->norm_g = fused ? ABSENT : PRESENT;
fail:
    return status;
}

static enum ag_status read_gdn(struct model *model, struct model_config *config, const struct config_source *s) {
    struct model_linear *linear = &model->linear;
    bool negative = false;
    double expand = 2;
    enum ag_status status;
    config->D = 256;
    AG_TRY(config_int(s, "head_dim", 1, INT32_MAX, &config->D));
    AG_TRY(head_width(s, "expand_v", expand, config->D, 1, &linear->V));
    linear->Hv = config->Hq;
    AG_TRY(config_int(s, "num_v_heads", 1, INT32_MAX, &linear->Hv));
    if (linear->Hv % config->Hq != 0) {
        status = ag_fail(s->err, AG_E_FORMAT, "%s: %lld value heads on %lld heads; expected a multiple", s->where,
                         (long long)linear->Hv, (long long)config->Hq);
        goto fail;
    }
    AG_TRY(read_conv(model, config, s, true));
    AG_TRY(read_gate(config, s, "use_gate", true));
    AG_TRY(config_bool(s, "allow_neg_eigval", &negative));
    linear->delta = true;
    linear->beta_factor = negative ? 2 : 1;
    linear->qk_map = linear->v_map = KERN_MAP_SILU;
    linear->q_unit = linear->k_unit = KERN_UNIT_L2;
    config->Dv = linear->Hv / config->Hq * linear->V;
    config->beta = config->decay = config->norm_o = PRESENT;
fail:
    return status;
}

static enum ag_status read_delta_net(struct model *model, struct model_config *config, const struct config_source *s) {
    static const char *const norms[] = {"l2", "sum"}, *const maps[] = {"silu", "relu", "elu", "identity"};
    static const enum kern_map map_of[] = {KERN_MAP_NONE, KERN_MAP_RELU, KERN_MAP_ELU1, KERN_MAP_NONE};
    struct model_linear *linear = &model->linear;
    bool negative = false, beta = true;
    int norm = 0, map = 0;
    enum ag_status status;
    AG_TRY(head_width(s, "expand_k", 1, model->C, config->Hq, &config->D));
    AG_TRY(head_width(s, "expand_v", 1, model->C, config->Hq, &config->Dv));
    AG_TRY(read_conv(model, config, s, true));
    AG_TRY(read_gate(config, s, "use_gate", false));
    AG_TRY(config_bool(s, "use_beta", &beta));
    AG_TRY(config_bool(s, "allow_neg_eigval", &negative));
    AG_TRY(need_true(s, "use_output_norm"));
    AG_TRY(choose(s, "qk_norm", norms, COUNT(norms), "\"l2\" or \"sum\"", &norm));
    AG_TRY(choose(s, "qk_activation", maps, COUNT(maps), "silu, relu, elu or identity", &map));
    linear->delta = true;
    linear->beta_factor = negative ? 2 : 1;
    linear->qk_map = map == 0 ? KERN_MAP_SILU : KERN_MAP_NONE;
    linear->v_map = KERN_MAP_SILU;
    linear->feature = map_of[map];
    linear->q_unit = linear->k_unit = norm == 0 ? KERN_UNIT_L2 : KERN_UNIT_SUM;
    if (norm == 1) linear->unit_eps = 0;
    config->beta = beta ? PRESENT : ABSENT;
    config->norm_o = PRESENT;
fail:
    return status;
}

static enum ag_status read_plain(struct model *model, struct model_config *config, const struct config_source *s) {
    static const char *const maps[] = {"identity", "relu", "elu"};
    static const enum kern_map map_of[] = {KERN_MAP_NONE, KERN_MAP_RELU, KERN_MAP_ELU1};
    static const char expected[] = "identity, relu or elu (the others, elementwise_product by default, have weights of "
                                   "their own or double the width)";
    struct model_linear *linear = &model->linear;
    bool q_sum = false, k_sum = false;
    int map = -1;
    enum ag_status status;
    AG_TRY(config_int(s, "num_kv_heads", 1, INT32_MAX, &config->Hk));
    AG_TRY(head_width(s, "expand_k", 1, model->C, config->Hq, &config->D));
    AG_TRY(head_width(s, "expand_v", 1, model->C, config->Hq, &config->Dv));
    AG_TRY(choose(s, "feature_map", maps, COUNT(maps), expected, &map));
    if (map < 0) {
        status = ag_fail(s->err, AG_E_UNSUPPORTED, "%s: no \"feature_map\", so elementwise_product; expected %s",
                         s->where, expected);
        goto fail;
    }
    AG_TRY(need_false(s, "norm_feature_map"));
    AG_TRY(config_bool(s, "norm_q", &q_sum));
    AG_TRY(config_bool(s, "norm_k", &k_sum));
    linear->feature = map_of[map];
    linear->q_unit = q_sum ? KERN_UNIT_SUM : KERN_UNIT_NONE;
    linear->k_unit = k_sum ? KERN_UNIT_SUM : KERN_UNIT_NONE;
    linear->unit_eps = 1e-4;
    config->norm_plain = PRESENT;
fail:
    return status;
}

/* The trained read: only the one that the samples define. */
static enum ag_status read_ccq(struct model *model, struct model_config *config, const struct config_source *s) {
    static const struct {
        const char *key, *text; /* text NULL: true */
    } wanted[] = {
        {"weights", "uniform"}, {"centred", NULL}, {"current_key", NULL}, {"gate", "sigmoid"}, {"tap", "norm"}};
    const json_t *object = config_get(s, "ccq");
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return ag_fail(s->err, AG_E_FORMAT,
                       "%s: no object \"ccq\", which a %s needs; expected weights, centred, "
                       "current_key, gate and tap",
                       s->where, model->architecture);
    struct config_source inner = {object, s->where, s->err};
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        bool known = false;
        for (size_t i = 0; i < COUNT(wanted); i++) known |= !strcmp(key, wanted[i].key);
        if (!known)
            return ag_fail(s->err, AG_E_UNSUPPORTED,
                           "%s: \"ccq\" has a key \"%.40s\" that is not known here; expected "
                           "weights, centred, current_key, gate and tap",
                           s->where, ckpt_name_valid(key, strlen(key)) ? key : "?");
    }
    for (size_t i = 0; i < COUNT(wanted); i++) {
        const char *text;
        value = json_object_get(object, wanted[i].key);
        text = json_string_value(value);
        if (wanted[i].text ? text && !strcmp(text, wanted[i].text) : json_is_true(value)) continue;
        if (!value)
            return ag_fail(s->err, AG_E_FORMAT, "%s: \"ccq\" has no \"%s\"; expected %s", s->where, wanted[i].key,
                           wanted[i].text ? wanted[i].text : "true");
        char name[32];
        snprintf(name, sizeof name, "ccq.%s", wanted[i].key);
        return config_wrong(&inner, name, value, wanted[i].text ? wanted[i].text : "true");
    }
    model->linear.ccq = true;
    config->ccq = PRESENT;
    return AG_OK;
}

/* `attn`: some layers are softmax attention with rotary positions instead. */
static enum ag_status read_hybrid(struct model *model, struct model_config *config, const struct config_source *outer) {
    static const char *const known[] = {"layers", "num_heads", "num_kv_heads", "qkv_bias", "window_size", "rope_theta"};
    const json_t *object = config_get(outer, "attn");
    const struct config_source s = {object, outer->where, outer->err};
    const char *key;
    json_t *value;
    enum ag_status status;
    if (!object) return AG_OK;
    if (!json_is_object(object))
        return ag_fail(
            outer->err, AG_E_UNSUPPORTED,
            "%s: \"attn\" is not an object; expected null, or one object of layers, num_heads, num_kv_heads, "
            "qkv_bias, window_size and rope_theta",
            outer->where);
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        bool found = config_is_off(value);
        for (size_t i = 0; i < COUNT(known); i++) found |= !strcmp(key, known[i]);
        if (!found)
            return ag_fail(s.err, AG_E_UNSUPPORTED,
                           "%s: \"attn\" has a key \"%.40s\" that is not known here and would not be honoured", s.where,
                           ckpt_name_valid(key, strlen(key)) ? key : "?");
    }
    const json_t *layers = json_object_get(object, "layers");
    bool bias = false, *softmax;
    if (!json_is_array(layers))
        return ag_fail(s.err, AG_E_FORMAT, "%s: \"attn\" has no list \"layers\"; expected the numbers of its layers",
                       s.where);
    if (model->L > model->ckpt->n_tensors) return AG_OK; /* damage, which is named when tensors are counted */
    softmax = AG_ZEROS(model->arena, bool, model->L, s.err);
    if (!softmax) return AG_E_MEMORY;
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *layer = json_array_get(layers, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 || json_integer_value(layer) >= model->L)
            return config_wrong(&s, "attn.layers", layer, "numbers of layers");
        softmax[json_integer_value(layer)] = true;
        config->softmax = softmax;
    }
    AG_TRY(config_need_int(&s, "num_heads", &config->softmax_Hq));
    config->softmax_Hk = config->softmax_Hq;
    AG_TRY(config_int(&s, "num_kv_heads", 1, INT32_MAX, &config->softmax_Hk));
    AG_TRY(config_bool(&s, "qkv_bias", &bias));
    AG_TRY(config_int(&s, "window_size", 1, INT32_MAX, &config->softmax_window));
    model->rope.theta = 10000;
    AG_TRY(config_real(&s, "rope_theta", &model->rope.theta));
    model->rope.factor = 1;
    config->softmax_D = model->C / config->softmax_Hq;
    config->qkv_bias = bias ? PRESENT : ABSENT;
    if (config->softmax_D * config->softmax_Hq != model->C || config->softmax_Hq % config->softmax_Hk != 0 ||
        config->softmax_D % 2 != 0 || config->softmax_D > KERN_HEAD_MAX) {
        status = ag_fail(
            s.err, AG_E_FORMAT,
            "%s: \"attn\" has %lld query and %lld key heads for %lld coordinates; expected heads of one even "
            "width, at most %d, and a multiple of the key heads",
            s.where, (long long)config->softmax_Hq, (long long)config->softmax_Hk, (long long)model->C, KERN_HEAD_MAX);
        goto fail;
    }
    if (config->softmax) model->last_tap = AG_TAP_ROPE;
fail:
    return status;
}

enum ag_status model_config_linear(struct model *model, struct model_config *config, const struct config_source *s,
                                   const struct model_hf_family *family) {
    struct model_linear *linear = &model->linear;
    enum ag_status status;
    AG_TRY(check_keys(model, s, family));
    AG_TRY(config_need_int(s, "hidden_size", &model->C));
    AG_TRY(config_need_int(s, "num_hidden_layers", &model->L));
    AG_TRY(config_need_int(s, "vocab_size", &model->V));
    AG_TRY(config_need_int(s, "num_heads", &config->Hq));
    AG_TRY(config_int(s, "max_position_embeddings", 1, INT32_MAX, &model->max_position));
    model->norm_eps = 1e-6;
    AG_TRY(config_real(s, config_get(s, "norm_eps") ? "norm_eps" : "rms_norm_eps", &model->norm_eps));
    AG_TRY(need_true(s, "elementwise_affine"));
    AG_TRY(read_mlp(model, s));
    config->Hk = config->Hq;
    linear->gate_least = -INFINITY;
    linear->beta_factor = 1;
    linear->unit_eps = 1e-6;
    config->up = PRESENT;
    switch (family->id) {
    case MODEL_GLA:
        AG_TRY(read_gla(model, config, s));
        break;
    case MODEL_GATED_DELTANET:
        AG_TRY(read_gdn(model, config, s));
        break;
    case MODEL_DELTA_NET:
        AG_TRY(read_delta_net(model, config, s));
        break;
    default:
        AG_TRY(read_plain(model, config, s));
    }
    if (linear->Hv == 0) {
        linear->Hv = config->Hk;
        linear->V = config->Dv;
    }
    if (linear->V > KERN_HEAD_MAX) {
        status = ag_fail(s->err, AG_E_UNSUPPORTED, "%s: value heads %lld wide; this build handles at most %d", s->where,
                         (long long)linear->V, KERN_HEAD_MAX);
        goto fail;
    }
    if (family->ccq) AG_TRY(read_ccq(model, config, s));
    AG_TRY(read_hybrid(model, config, s));
fail:
    return status;
}
