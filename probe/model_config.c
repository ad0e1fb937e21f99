/* config.json of a Hugging Face folder, read as the reference library reads it (spec/checkpoints.md section 3). What
 * the forward pass would not honour is refused by name; a key that nobody here knows is reported, never dropped in
 * silence. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "probe/checkpoint_internal.h"
#include "probe/model_internal.h"

static const struct model_hf_family families[] = {
    {MODEL_LLAMA, "llama", "LlamaForCausalLM", .default_head_dim = 0},
    {MODEL_QWEN2, "qwen2", "Qwen2ForCausalLM", .windows = true},
    {MODEL_QWEN3, "qwen3", "Qwen3ForCausalLM", .default_head_dim = 128, .windows = true},
    {MODEL_GLA, "gla", "GLAForCausalLM", .linear = true},
    {MODEL_GATED_DELTANET, "gated_deltanet", "GatedDeltaNetForCausalLM", .linear = true},
    {MODEL_DELTA_NET, "delta_net", "DeltaNetForCausalLM", .linear = true},
    {MODEL_LINEAR_ATTN, "linear_attn", "LinearAttentionForCausalLM", .linear = true},
    {MODEL_GLA, "ccq_gla", "CCQGLAForCausalLM", .linear = true, .ccq = true},
    {MODEL_GATED_DELTANET, "ccq_gated_deltanet", "CCQGatedDeltaNetForCausalLM", .linear = true, .ccq = true},
};
#define N_FAMILIES (sizeof families / sizeof families[0])

/* Keys that are read for softmax attention. */
static const char *const softmax_keys[] = {
    "model_type",
    "architectures",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "hidden_act",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "use_sliding_window",
    "sliding_window",
    "max_window_layers",
    "layer_types",
    "max_position_embeddings",
    "text_config",
    "is_causal",
    "partial_rotary_factor",
};

/* Keys that say nothing about a forward pass. */
static const char *const harmless_keys[] = {
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "decoder_start_token_id",
    "torch_dtype",
    "dtype",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "transformers_version",
    "_name_or_path",
    "name_or_path",
    "pretraining_tp",
    "auto_map",
    "is_decoder",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "output_scores",
    "return_dict_in_generate",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "pruned_heads",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "tie_encoder_decoder",
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "finetuning_task",
    "id2label",
    "label2id",
    "tokenizer_class",
    "prefix",
    "task_specific_params",
    "problem_type",
    "_attn_implementation",
    "attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "transformers.js_config",
    "is_llama_config",
    "unsloth_version",
    "unsloth_fixed",
    "seq_length",
    "max_sequence_length",
    "generation_config",
    "fuse_norm",
    "fuse_cross_entropy",
    "ignore_keys_at_rope_validation",
    "_experts_implementation",
    "output_router_logits",
    "default_theta",
    "license",
};

/* Keys that change the model when they are on. Off is null, false, 0 or empty. */
static const char *const must_be_off[] = {
    "quantization_config",
    "quantization",
    "compression_config",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attn_logit_softcap",
    "final_logit_softcap",
    "logit_softcapping",
    "query_pre_attn_scalar",
    "qk_norm",
    "use_qk_norm",
    "qk_layernorm",
    "use_qk_layernorm",
    "rope_interleaved",
    "no_rope_layers",
    "no_rope_layer_interval",
    "add_cross_attention",
    "is_encoder_decoder",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_intermediate_size",
    "ccq",
    "attn_output_gate",
    "use_output_gate",
    "attention_chunk_size",
    "attention_sinks",
    "use_attention_sinks",
    "dual_chunk_attention_config",
    "alibi",
    "use_alibi",
    "clip_qkv",
    "use_parallel_residual",
    "parallel_attn",
    "num_nextn_predict_layers",
    "attn_temperature_tuning",
    "kv_lora_rank",
    "q_lora_rank",
    "attention_multiplier",
    "use_bidirectional_attention",
    "bidirectional",
    "layer_norm_eps",
    "norm_eps",
    "hidden_activation",
    "activation_function",
    "use_short_conv",
    "attn",
    "linear_attn_config",
    "encoder_layers",
    "adapters",
    "attnres_block_size",
};
/* Keys that change the model unless they are 1 (or null). */
static const char *const must_be_one[] = {
    "embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale",           "scale_emb",
    "scale_depth",          "rotary_pct",          "rope_ratio",     "partial_rotary_factor", "rope_percent",
    "embedding_scale",
};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static bool in_list(const char *const *list, size_t n, const char *key) {
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(list[i], key)) return true;
    }
    return false;
}

void model_warn(struct model *model, const char *format, ...) {
    char text[512];
    va_list args;
    if (model->n_warnings == (int)(sizeof model->warnings / sizeof model->warnings[0])) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *copy = ag_arena_text(model->arena, text, strlen(text), NULL);
    if (copy) model->warnings[model->n_warnings++] = copy;
}

/* A value as it may stand in a message: short, one line. */
static const char *shown(const json_t *value, char text[64]) {
    switch (json_typeof(value)) {
    case JSON_STRING:
        snprintf(text, 64, "\"%.40s\"", json_string_value(value));
        break;
    case JSON_INTEGER:
        snprintf(text, 64, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(text, 64, "%g", json_real_value(value));
        break;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    case JSON_ARRAY:
        return "a list";
    default:
        return "an object";
    }
    for (char *c = text; *c; c++) {
        if ((unsigned char)*c < 32 || *c == 127) *c = '?';
    }
    return text;
}

/* NULL when absent or null: both mean the default. */
const json_t *config_get(const struct config_source *s, const char *key) {
    const json_t *value = json_object_get(s->object, key);
    return json_is_null(value) ? NULL : value;
}

enum ag_status config_wrong(const struct config_source *s, const char *key, const json_t *value, const char *expected) {
    char text[64];
    return ag_fail(s->err, AG_E_FORMAT, "%s: \"%s\" is %s; expected %s", s->where, key, shown(value, text), expected);
}

/* An integer in [min, max]; *out keeps its value (the default) when the key is absent. */
enum ag_status config_int(const struct config_source *s, const char *key, int64_t min, int64_t max, int64_t *out) {
    const json_t *value = config_get(s, key);
    char expected[96];
    if (!value) return AG_OK;
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min, (long long)max);
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max) {
        return config_wrong(s, key, value, expected);
    }
    *out = json_integer_value(value);
    return AG_OK;
}
enum ag_status config_need_int(const struct config_source *s, const char *key, int64_t *out) {
    if (!config_get(s, key)) {
        return ag_fail(s->err, AG_E_FORMAT, "%s: no \"%s\"; expected an integer; is the configuration complete?",
                       s->where, key);
    }
    return config_int(s, key, 1, INT32_MAX, out);
}
enum ag_status config_real(const struct config_source *s, const char *key, double *out) {
    const json_t *value = config_get(s, key);
    if (!value) return AG_OK;
    double x = json_number_value(value);
    if (!json_is_number(value) || !isfinite(x) || x <= 0) return config_wrong(s, key, value, "a positive number");
    *out = x;
    return AG_OK;
}
static enum ag_status need_real(const struct config_source *s, const char *key, double *out) {
    if (!config_get(s, key))
        return ag_fail(s->err, AG_E_FORMAT, "%s: no \"%s\"; expected a positive number", s->where, key);
    return config_real(s, key, out);
}
enum ag_status config_bool(const struct config_source *s, const char *key, bool *out) {
    const json_t *value = config_get(s, key);
    if (!value) return AG_OK;
    if (!json_is_boolean(value)) return config_wrong(s, key, value, "true or false");
    *out = json_is_true(value);
    return AG_OK;
}

bool config_is_off(const json_t *value) {
    return json_is_null(value) || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Every key is one that we read, one that does not matter, one that is off, or reported. */
enum ag_status config_check_keys(struct model *model, const struct config_source *s, const char *const *read,
                                 size_t n_read) {
    char text[64], unknown[300] = "";
    size_t used = 0;
    int more = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)s->object, key, value) {
        if (in_list(read, n_read, key)) continue;
        bool one = json_is_null(value) || (json_is_number(value) && json_number_value(value) == 1);
        if ((in_list(must_be_off, COUNT(must_be_off), key) && !config_is_off(value)) ||
            (in_list(must_be_one, COUNT(must_be_one), key) && !one)) {
            return ag_fail(s->err, AG_E_UNSUPPORTED,
                           "%s: \"%s\" is %s, which this forward pass would not honour; a model without it "
                           "is expected",
                           s->where, key, shown(value, text));
        }
        if (in_list(harmless_keys, COUNT(harmless_keys), key) || in_list(must_be_off, COUNT(must_be_off), key) ||
            in_list(must_be_one, COUNT(must_be_one), key) || config_is_off(value)) {
            continue;
        }
        size_t room = sizeof unknown - used;
        int n = snprintf(unknown + used, room, "%s%.60s", used ? ", " : "", key);
        if (n < 0 || (size_t)n >= room || !ckpt_name_valid(key, strlen(key))) {
            unknown[used] = 0;
            more++;
        } else {
            used += (size_t)n;
        }
    }
    if (used > 0 || more > 0) {
        model_warn(model, "%s: unknown keys, which do not change what is computed here: %s%s", s->where, unknown,
                   more ? " and more" : "");
    }
    return AG_OK;
}

static enum ag_status check_rope_keys(const struct config_source *s) {
    static const char *const known[] = {
        "rope_theta",
        "rope_type",
        "type",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "finetuned",
    };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)s->object, key, value) {
        if (json_is_object(value)) {
            return ag_fail(s->err, AG_E_UNSUPPORTED,
                           "%s: RoPE parameters by layer type (\"%s\"); one set for all layers is expected", s->where,
                           key);
        }
        if (!in_list(known, COUNT(known), key) && !config_is_off(value)) {
            return ag_fail(s->err, AG_E_UNSUPPORTED,
                           "%s: RoPE parameter \"%s\" is not known here and would not be honoured", s->where, key);
        }
    }
    double partial = 1;
    enum ag_status status = config_real(s, "partial_rotary_factor", &partial);
    if (status != AG_OK) return status;
    if (partial != 1) {
        return ag_fail(s->err, AG_E_UNSUPPORTED, "%s: partial_rotary_factor %g; expected 1 in these families", s->where,
                       partial);
    }
    return AG_OK;
}

/* rope_parameters (v5) first, else rope_scaling and rope_theta (v4). */
static enum ag_status read_rope(struct model *model, const struct config_source *config) {
    enum ag_status status;
    struct model_rope *rope = &model->rope;
    struct config_source s = *config;
    const char *name = config_get(config, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const json_t *object = config_get(config, name), *type = NULL;
    rope->type = ROPE_DEFAULT;
    rope->theta = 0;
    rope->factor = 1;
    if (object) {
        if (!json_is_object(object)) return config_wrong(config, name, object, "an object");
        s.object = object;
        AG_TRY(check_rope_keys(&s));
        AG_TRY(config_real(&s, "rope_theta", &rope->theta));
        type = config_get(&s, "rope_type") ? config_get(&s, "rope_type") : config_get(&s, "type");
    }
    if (rope->theta == 0) AG_TRY(config_real(config, "rope_theta", &rope->theta));
    if (rope->theta == 0) {
        rope->theta = 10000;
        model_warn(model, "%s: no rope_theta; 10000 assumed, as the reference library does", config->where);
    }
    const char *text = type ? json_string_value(type) : "default";
    if (!text) return config_wrong(&s, "rope_type", type, "text");
    if (!strcmp(text, "default")) return AG_OK;
    if (!strcmp(text, "linear")) {
        rope->type = ROPE_LINEAR;
        return need_real(&s, "factor", &rope->factor);
    }
    if (!strcmp(text, "llama3")) {
        rope->type = ROPE_LLAMA3;
        AG_TRY(need_real(&s, "factor", &rope->factor));
        AG_TRY(need_real(&s, "low_freq_factor", &rope->low_freq_factor));
        AG_TRY(need_real(&s, "high_freq_factor", &rope->high_freq_factor));
        rope->original_max_position = (double)model->max_position; /* the reference's fallback */
        if (model->max_position == 0 || config_get(&s, "original_max_position_embeddings")) {
            AG_TRY(need_real(&s, "original_max_position_embeddings", &rope->original_max_position));
        }
        if (rope->high_freq_factor <= rope->low_freq_factor) {
            return ag_fail(s.err, AG_E_FORMAT, "%s: llama3 RoPE: high_freq_factor %g is not above low_freq_factor %g",
                           s.where, rope->high_freq_factor, rope->low_freq_factor);
        }
        return AG_OK;
    }
    char shown_text[64];
    return ag_fail(s.err, AG_E_UNSUPPORTED, "%s: rope_type %s is not computed here; default, linear and llama3 are",
                   s.where, shown(type, shown_text));
fail:
    return status;
}

/* Which layers slide: layer_types where listed, else those from max_window_layers on (only with use_sliding_window). */
static enum ag_status read_windows(struct model *model, struct model_config *config, const struct config_source *s,
                                   const struct model_hf_family *family) {
    enum ag_status status;
    bool use = false;
    int64_t window = 4096, first = 28;
    const json_t *types = config_get(s, "layer_types");
    AG_TRY(config_bool(s, "use_sliding_window", &use));
    if (!family->windows && (use || config_get(s, "sliding_window"))) {
        return ag_fail(s->err, AG_E_UNSUPPORTED,
                       "%s: a sliding window in a %s, where the reference library would ignore it; remove "
                       "the key if that is what you want",
                       s->where, family->model_type);
    }
    if (use && json_is_null(json_object_get(s->object, "sliding_window"))) use = false; /* null: no window */
    AG_TRY(config_int(s, "sliding_window", 1, INT32_MAX, &window));
    AG_TRY(config_int(s, "max_window_layers", 0, INT32_MAX, &first));
    if (types && (!json_is_array(types) || (int64_t)json_array_size(types) != model->L)) {
        return ag_fail(s->err, AG_E_FORMAT,
                       "%s: \"layer_types\" has %lld entries; expected one for each of %lld layers", s->where,
                       json_is_array(types) ? (long long)json_array_size(types) : -1LL, (long long)model->L);
    }
    if (!types && !use) return AG_OK;
    bool *sliding = AG_ZEROS(model->arena, bool, model->L, s->err), any = false;
    if (!sliding) return AG_E_MEMORY;
    for (int64_t i = 0; i < model->L; i++) {
        const json_t *type = types ? json_array_get(types, (size_t)i) : NULL;
        const char *text = json_string_value(type);
        sliding[i] = types ? text && !strcmp(text, "sliding_attention") : i >= first;
        if (types && !sliding[i] && !(text && !strcmp(text, "full_attention"))) {
            char shown_text[64];
            return ag_fail(s->err, AG_E_UNSUPPORTED,
                           "%s: layer %lld is %s; full_attention and sliding_attention are computed here", s->where,
                           (long long)i, shown(type, shown_text));
        }
        any |= sliding[i];
    }
    if (any && !use) {
        return ag_fail(s->err, AG_E_UNSUPPORTED,
                       "%s: layer_types names sliding_attention, but use_sliding_window is not true; "
                       "expected both or neither",
                       s->where);
    }
    if (any) {
        config->window = window;
        config->sliding = sliding;
    }
    return AG_OK;
fail:
    return status;
}

/* The reference library's class must be the family's: a classifier or a value head is another model. */
static enum ag_status check_class(const struct config_source *s, const struct model_hf_family *family) {
    const json_t *list = config_get(s, "architectures"), *value = json_array_get(list, 0);
    const char *text = json_string_value(value);
    char shown_text[64];
    if (!list || (json_is_array(list) && json_array_size(list) == 0)) return AG_OK;
    if (text && !strcmp(text, family->class_name)) return AG_OK;
    return ag_fail(s->err, AG_E_UNSUPPORTED, "%s: architectures[0] is %s; with model_type %s this build reads %s",
                   s->where, value ? shown(value, shown_text) : "no list", family->model_type, family->class_name);
}

static enum ag_status find_family(const struct config_source *s, const struct model_hf_family **family) {
    const json_t *value = config_get(s, "model_type");
    const char *text = json_string_value(value);
    char shown_text[64];
    for (size_t i = 0; text && i < N_FAMILIES; i++) {
        if (!strcmp(text, families[i].model_type)) {
            *family = &families[i];
            return AG_OK;
        }
    }
    return ag_fail(
        s->err, AG_E_UNSUPPORTED,
        "%s: model_type %s; this build reads llama (also SmolLM2), qwen2, qwen3, gla, gated_deltanet, delta_net, "
        "linear_attn, ccq_gla and ccq_gated_deltanet",
        s->where, value ? shown(value, shown_text) : "is missing");
}

enum ag_status model_config_hf(struct model *model, struct model_config *config, struct ag_error *err) {
    enum ag_status status;
    const struct model_hf_family *family = NULL;
    const json_t *outer = model->ckpt->config, *text = json_object_get(outer, "text_config");
    config->where = ag_path_join(model->arena, model->ckpt->folder, "config.json", err);
    if (!config->where) return AG_E_MEMORY;
    struct config_source whole = {outer, config->where, err}, s = whole;
    if (json_is_object(text)) { /* a multimodal model: its text part, if that is one of ours */
        config->text_part = true;
        s.object = text;
        const json_t *quantised = json_object_get(outer, "quantization_config");
        if (quantised && !config_is_off(quantised)) {
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "%s: \"quantization_config\" is an object, which this forward pass would not honour; a "
                           "model without it is expected",
                           config->where);
        }
    }
    AG_TRY(find_family(&s, &family));
    if (!config->text_part) AG_TRY(check_class(&s, family));
    model->family = family->id;
    model->architecture = family->model_type;
    if (family->linear) {
        bool tied_ends = false;
        AG_TRY(config_bool(&s, "tie_word_embeddings", &tied_ends));
        config->tied = tied_ends ? PRESENT : ABSENT;
        model->last_tap = AG_TAP_NORM;
        return model_config_linear(model, config, &s, family);
    }
    model->last_tap = AG_TAP_ROPE;
    AG_TRY(config_check_keys(model, &s, softmax_keys, COUNT(softmax_keys)));

    AG_TRY(config_need_int(&s, "hidden_size", &model->C));
    AG_TRY(config_need_int(&s, "intermediate_size", &model->F));
    AG_TRY(config_need_int(&s, "num_hidden_layers", &model->L));
    AG_TRY(config_need_int(&s, "num_attention_heads", &config->Hq));
    AG_TRY(config_need_int(&s, "vocab_size", &model->V));
    config->Hk = config->Hq;
    AG_TRY(config_int(&s, "num_key_value_heads", 1, INT32_MAX, &config->Hk));
    /* absent: the class's default; null: derived */
    config->D = json_object_get(s.object, "head_dim") || !family->default_head_dim ? model->C / config->Hq
                                                                                   : family->default_head_dim;
    AG_TRY(config_int(&s, "head_dim", 1, INT32_MAX, &config->D));
    AG_TRY(config_int(&s, "max_position_embeddings", 1, INT32_MAX, &model->max_position));
    model->norm_eps = 1e-6;
    AG_TRY(config_real(&s, "rms_norm_eps", &model->norm_eps));

    const json_t *act = config_get(&s, "hidden_act");
    const char *name = act ? json_string_value(act) : "silu";
    if (!name || (strcmp(name, "silu") != 0 && strcmp(name, "swish") != 0)) {
        char shown_text[64];
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: hidden_act %s; silu is computed here", config->where,
                       shown(act, shown_text));
    }
    bool causal = true, attention_bias = false, mlp_bias = false, tied = false;
    AG_TRY(config_bool(&s, "is_causal", &causal));
    if (!causal)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: is_causal false; causal attention is computed here", config->where);
    AG_TRY(config_bool(&s, "attention_bias", &attention_bias));
    AG_TRY(config_bool(&s, "mlp_bias", &mlp_bias));
    if (mlp_bias && family->id != MODEL_LLAMA) {
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: mlp_bias in a %s, where the reference library would ignore it",
                       config->where, family->model_type);
    }
    AG_TRY(config_bool(config_get(&s, "tie_word_embeddings") ? &s : &whole, "tie_word_embeddings", &tied));
    config->qkv_bias = family->id == MODEL_QWEN2 || attention_bias ? PRESENT : ABSENT;
    config->o_bias = family->id != MODEL_QWEN2 && attention_bias ? PRESENT : ABSENT;
    config->mlp_bias = mlp_bias ? PRESENT : ABSENT;
    config->qk_norm = family->id == MODEL_QWEN3 ? PRESENT : ABSENT;
    config->tied = tied ? PRESENT : ABSENT;
    AG_TRY(read_rope(model, &s));
    AG_TRY(read_windows(model, config, &s, family));
    return AG_OK;
fail:
    return status;
}
