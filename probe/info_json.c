/* `attgeo info --json` for checkpoints. */
#include <stdlib.h>
#include <string.h>

#include "probe/checkpoint_internal.h"
#include "probe/info.h"

json_t *info_json_text(const char *text) {
    size_t n = strlen(text);
    if (ckpt_utf8_valid(text, n)) return json_stringn(text, n);
    struct ag_buf copy = {0};
    if (ag_buf_add(&copy, text, n, NULL) != AG_OK) return NULL;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)copy.data[i] >= 0x80) copy.data[i] = '?';
    }
    json_t *json = json_string(copy.data);
    ag_buf_free(&copy);
    return json;
}

static json_t *text_or_null(const char *text) { return text ? info_json_text(text) : json_null(); }

static const char *const rope_types[] = {"default", "linear", "llama3"};

static json_t *rope_json(const struct model_rope *rope) {
    if (rope->n_rot == 0) return json_null();
    json_t *frequencies = json_array();
    for (int64_t i = 0; i < rope->n_rot / 2; i++)
        json_array_append_new(frequencies, json_real((double)rope->inv_freq[i]));
    json_t *json = json_pack("{s:s, s:f, s:f, s:I, s:f}", "type", rope_types[rope->type], "theta", rope->theta,
                             "factor", rope->factor, "rotated", (json_int_t)rope->n_rot, "attention_scaling",
                             (double)rope->attention_scaling);
    if (rope->type == ROPE_LLAMA3 && rope->original_max_position > 0) {
        json_object_set_new(json, "low_freq_factor", json_real(rope->low_freq_factor));
        json_object_set_new(json, "high_freq_factor", json_real(rope->high_freq_factor));
        json_object_set_new(json, "original_max_position", json_real(rope->original_max_position));
    }
    json_object_set_new(json, "inv_freq", frequencies);
    return json;
}

static json_t *model_json(const struct info *info) {
    const struct model *m = info->model;
    const struct model_layer *layer = &m->layers[0];
    const struct ag_layer_shape *s = &layer->shape;
    json_t *windows = json_array(), *map = json_array(), *warnings = json_array();
    for (int64_t i = 0; i < m->L; i++) json_array_append_new(windows, json_integer(m->shapes[i].window));
    for (int64_t i = 0; i < s->Hq; i++) json_array_append_new(map, json_integer(i / (s->Hq / s->Hk)));
    for (int i = 0; i < m->n_warnings; i++) json_array_append_new(warnings, info_json_text(m->warnings[i]));
    return json_pack(
        "{s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:b, s:b, s:b, s:b, s:b, s:o, s:o, s:o, "
        "s:o}",
        "name", info_json_text(m->name), "architecture", m->architecture, "parameters",
        (json_int_t)info_parameters(info->ckpt), "layers", (json_int_t)m->L, "hidden", (json_int_t)m->C, "mlp",
        (json_int_t)m->F, "vocabulary", (json_int_t)m->V, "max_position", (json_int_t)m->max_position, "query_heads",
        (json_int_t)s->Hq, "key_heads", (json_int_t)s->Hk, "head_dim", (json_int_t)s->D, "scale", s->scale, "norm_eps",
        m->norm_eps, "qkv_bias", layer->q_bias.tensor != NULL, "o_bias", layer->o_bias.tensor != NULL, "mlp_bias",
        layer->gate_bias.tensor != NULL, "qk_norm", layer->q_norm.tensor != NULL, "tied_head", m->tied, "rope",
        rope_json(&m->rope), "window", windows, "key_head_of_query_head", map, "warnings", warnings);
}

static json_t *tokenizer_json(const struct info *info) {
    const struct tokenizer_info *t = tokenizer_info(info->tokenizer);
    return json_pack("{s:s, s:s, s:s, s:b, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:s}", "kind", t->kind, "pattern",
                     t->pattern, "source", t->source, "nfc", t->nfc, "adds_bos", t->adds_bos, "adds_eos", t->adds_eos,
                     "ignore_merges", t->ignore_merges, "vocabulary", (json_int_t)t->vocabulary, "merges",
                     (json_int_t)t->merges, "added", (json_int_t)t->added, "bos", (json_int_t)t->bos, "eos",
                     (json_int_t)t->eos, "sha256", t->sha256);
}

static json_t *plan_json(const struct info *info) {
    const struct forward_plan *p = &info->plan;
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I}", "backend", info->backend, "tokens",
                     (json_int_t)info->tokens, "waves", (json_int_t)p->waves, "weights_bytes",
                     (json_int_t)p->weights_bytes, "hidden_bytes", (json_int_t)p->hidden_bytes, "scratch_bytes",
                     (json_int_t)p->scratch_bytes, "peak_bytes", (json_int_t)p->peak_bytes, "flop", (double)p->flops,
                     "dump_bytes", (json_int_t)(info_dump_bytes(info->model) * info->tokens), "dump_bytes_per_token",
                     (json_int_t)info_dump_bytes(info->model));
}

static json_t *tensors_json(const struct ckpt *ckpt) {
    json_t *list = json_array();
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct ckpt_tensor *t = &ckpt->tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->rank; d++) json_array_append_new(shape, json_integer(t->shape[d]));
        json_array_append_new(list, json_pack("{s:o, s:s, s:o, s:I, s:i, s:I}", "name", info_json_text(t->name), "type",
                                              t->type, "shape", shape, "bytes", (json_int_t)t->bytes, "file", t->file,
                                              "offset", (json_int_t)t->offset));
    }
    return list;
}

enum ag_status info_json(struct ag_buf *out, const struct info *info, struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    const struct ckpt *ckpt = info->ckpt;
    json_t *root = json_object(), *files = json_array();
    for (int i = 0; i < ckpt->n_files; i++) {
        json_array_append_new(files, json_pack("{s:o, s:I}", "path", info_json_text(ckpt->files[i].path), "bytes",
                                               (json_int_t)ckpt->files[i].size));
    }
    json_object_set_new(root, "path", info_json_text(info->path));
    json_object_set_new(root, "kind", json_string("checkpoint"));
    json_object_set_new(root, "format", json_string(ckpt->format == CKPT_GGUF ? "gguf" : "safetensors"));
    if (ckpt->format == CKPT_GGUF) {
        json_object_set_new(root, "gguf_version", json_integer(ckpt->gguf_version));
        json_object_set_new(root, "file_type", text_or_null(ckpt->file_type));
    }
    json_object_set_new(root, "sha256", info->sha256[0] ? json_string(info->sha256) : json_null());
    json_object_set_new(root, "files", files);
    json_object_set_new(root, "model", info->model ? model_json(info) : json_null());
    if (!info->model) json_object_set_new(root, "model_error", info_json_text(info->model_error.text));
    json_object_set_new(root, "tokenizer", info->tokenizer ? tokenizer_json(info) : json_null());
    if (!info->tokenizer) json_object_set_new(root, "tokenizer_error", info_json_text(info->tokenizer_error.text));
    json_object_set_new(root, "chat_template", text_or_null(info->model ? info->model->chat_template_source : NULL));
    json_object_set_new(root, "plan", info->planned ? plan_json(info) : json_null());
    if (info->model && !info->planned) json_object_set_new(root, "plan_error", info_json_text(info->plan_error.text));
    json_object_set_new(root, "tensors", tensors_json(ckpt));
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    if (text) status = ag_buf_printf(out, err, "%s\n", text);
    if (status != AG_OK) ag_fail(err, status, "out of memory (JSON)");
    free(text);
    json_decref(root);
    return status;
}
