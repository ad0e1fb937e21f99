/* See ckpt_files.h. */
#include "tests/ckpt_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"

static void put(struct ag_buf *buf, const void *data, size_t n) {
    assert_int_equal(ag_buf_add(buf, data, n, NULL), AG_OK);
}
void put_u32(struct ag_buf *buf, uint32_t value) { put(buf, &value, 4); }
void put_u64(struct ag_buf *buf, uint64_t value) { put(buf, &value, 8); }
void put_text(struct ag_buf *buf, const char *text) {
    put_u64(buf, strlen(text));
    put(buf, text, strlen(text));
}

static void key(struct gguf_writer *w, const char *name, uint32_t type) {
    put_text(&w->keys, name);
    put_u32(&w->keys, type);
    w->n_keys++;
}
void gguf_u32(struct gguf_writer *w, const char *name, uint32_t value) {
    key(w, name, 4);
    put_u32(&w->keys, value);
}
void gguf_f32(struct gguf_writer *w, const char *name, float value) {
    key(w, name, 6);
    put(&w->keys, &value, 4);
}
void gguf_bool(struct gguf_writer *w, const char *name, uint8_t value) {
    key(w, name, 7);
    put(&w->keys, &value, 1);
}
void gguf_text(struct gguf_writer *w, const char *name, const char *value) {
    key(w, name, 8);
    put_text(&w->keys, value);
}
void gguf_texts(struct gguf_writer *w, const char *name, const char *const *values, uint64_t n) {
    key(w, name, 9);
    put_u32(&w->keys, 8);
    put_u64(&w->keys, n);
    for (uint64_t i = 0; i < n; i++) put_text(&w->keys, values[i]);
}

static void pad(struct ag_buf *buf, uint64_t alignment) {
    while (buf->size % alignment != 0) put(buf, "", 1);
}

void gguf_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                 const void *data, uint64_t bytes) {
    put_text(&w->infos, name);
    put_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) put_u64(&w->infos, dims[i]);
    put_u32(&w->infos, type);
    put_u64(&w->infos, w->data.size);
    put(&w->data, data, bytes);
    pad(&w->data, w->alignment ? w->alignment : 32);
    w->n_tensors++;
}

void gguf_bytes(struct gguf_writer *w, struct ag_buf *out) {
    put(out, "GGUF", 4);
    put_u32(out, w->version ? w->version : 3);
    put_u64(out, w->n_tensors);
    put_u64(out, w->n_keys);
    put(out, w->keys.data, w->keys.size);
    put(out, w->infos.data, w->infos.size);
    if (w->data.size > 0) pad(out, w->alignment ? w->alignment : 32);
    put(out, w->data.data, w->data.size);
    ag_buf_free(&w->keys);
    ag_buf_free(&w->infos);
    ag_buf_free(&w->data);
}
void gguf_save(struct gguf_writer *w, const char *path) {
    struct ag_buf out = {0};
    gguf_bytes(w, &out);
    save_bytes(path, out.data, out.size);
    ag_buf_free(&out);
}

void st_tensor(struct st_writer *w, const char *name, const char *dtype, int rank, const int64_t *shape,
               const void *data, uint64_t bytes) {
    struct ag_buf *h = &w->header;
    ag_buf_printf(h, NULL, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", h->size ? ',' : '{', name, dtype);
    for (int i = 0; i < rank; i++) ag_buf_printf(h, NULL, i ? ",%lld" : "%lld", (long long)shape[i]);
    ag_buf_printf(h, NULL, "],\"data_offsets\":[%zu,%zu]}", w->data.size, w->data.size + (size_t)bytes);
    put(&w->data, data, bytes);
}
void st_bytes(struct st_writer *w, struct ag_buf *out, uint64_t header_bytes) {
    put(&w->header, w->header.size ? "}" : "{}", w->header.size ? 1 : 2);
    while (header_bytes ? w->header.size < header_bytes : w->header.size % 8 != 0) put(&w->header, " ", 1);
    put_u64(out, w->header.size);
    put(out, w->header.data, w->header.size);
    put(out, w->data.data, w->data.size);
    ag_buf_free(&w->header);
    ag_buf_free(&w->data);
}
void st_save(struct st_writer *w, const char *path, uint64_t header_bytes) {
    struct ag_buf out = {0};
    st_bytes(w, &out, header_bytes);
    save_bytes(path, out.data, out.size);
    ag_buf_free(&out);
}
void st_raw(struct ag_buf *out, const char *header, uint64_t n) {
    put_u64(out, strlen(header));
    put(out, header, strlen(header));
    for (uint64_t i = 0; i < n; i++) put(out, "", 1);
}

void save_bytes(const char *path, const void *data, uint64_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (n > 0) assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}
void save_text(const char *path, const char *text) { save_bytes(path, text, strlen(text)); }

const struct tiny tiny_llama = {.family = "llama", .L = 2, .C = 20, .F = 24, .V = 40, .Hq = 6, .Hk = 2, .D = 8};

/* The tensors of a tiny model, in both names; rows 0: a vector. */
struct entry {
    const char *hf, *gguf;
    int64_t rows, columns;
    int64_t heads; /* > 0: permuted in GGUF's llama */
};

static int list_tensors(const struct tiny *t, struct entry *list, char names[][2][64]) {
    int n = 0;
    int64_t Q = t->Hq * t->D, K = t->Hk * t->D;
#define ADD(hf_, gguf_, rows_, columns_, heads_) list[n] = (struct entry){hf_, gguf_, rows_, columns_, heads_}, n++
    ADD("model.embed_tokens.weight", "token_embd.weight", t->V, t->C, 0);
    ADD("model.norm.weight", "output_norm.weight", 0, t->C, 0);
    if (!t->tied) ADD("lm_head.weight", "output.weight", t->V, t->C, 0);
    for (int64_t l = 0; l < t->L; l++) {
        const struct {
            const char *hf, *gguf;
            int64_t rows, columns, heads;
            bool present;
        } layer[] = {
            {"input_layernorm.weight", "attn_norm.weight", 0, t->C, 0, true},
            {"self_attn.q_proj.weight", "attn_q.weight", Q, t->C, t->Hq, true},
            {"self_attn.k_proj.weight", "attn_k.weight", K, t->C, t->Hk, true},
            {"self_attn.v_proj.weight", "attn_v.weight", K, t->C, 0, true},
            {"self_attn.o_proj.weight", "attn_output.weight", t->C, Q, 0, true},
            {"self_attn.q_proj.bias", "attn_q.bias", 0, Q, t->Hq, t->qkv_bias},
            {"self_attn.k_proj.bias", "attn_k.bias", 0, K, t->Hk, t->qkv_bias},
            {"self_attn.v_proj.bias", "attn_v.bias", 0, K, 0, t->qkv_bias},
            {"self_attn.o_proj.bias", "attn_output.bias", 0, t->C, 0, t->o_bias},
            {"self_attn.q_norm.weight", "attn_q_norm.weight", 0, t->D, 0, t->qk_norm},
            {"self_attn.k_norm.weight", "attn_k_norm.weight", 0, t->D, 0, t->qk_norm},
            {"post_attention_layernorm.weight", "ffn_norm.weight", 0, t->C, 0, true},
            {"mlp.gate_proj.weight", "ffn_gate.weight", t->F, t->C, 0, true},
            {"mlp.up_proj.weight", "ffn_up.weight", t->F, t->C, 0, true},
            {"mlp.down_proj.weight", "ffn_down.weight", t->C, t->F, 0, true},
            {"mlp.gate_proj.bias", "ffn_gate.bias", 0, t->F, 0, t->mlp_bias},
            {"mlp.up_proj.bias", "ffn_up.bias", 0, t->F, 0, t->mlp_bias},
            {"mlp.down_proj.bias", "ffn_down.bias", 0, t->C, 0, t->mlp_bias},
        };
        for (size_t i = 0; i < sizeof layer / sizeof layer[0]; i++) {
            if (!layer[i].present) continue;
            snprintf(names[n][0], 64, "model.layers.%lld.%s", (long long)l, layer[i].hf);
            snprintf(names[n][1], 64, "blk.%lld.%s", (long long)l, layer[i].gguf);
            ADD(names[n][0], names[n][1], layer[i].rows, layer[i].columns, layer[i].heads);
        }
    }
    if (t->extra) ADD(t->extra, t->extra, 0, t->C, 0);
    return n;
}

/* Numbers in (-1, 1) from the name. */
static float *values_of(const struct entry *e, int64_t n) {
    uint32_t s = 2166136261u;
    for (const char *c = e->hf; *c; c++) s = (s ^ (unsigned char)*c) * 16777619u;
    float *x = test_calloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)(s & 0xffffff00u) * 0x1p-31f;
    }
    return x;
}

#define MOST 128

void tiny_save_hf(const struct tiny *t, const char *folder, int shards) {
    struct entry list[MOST];
    char names[MOST][2][64], path[600];
    struct st_writer files[8] = {0};
    struct ag_buf config = {0}, index = {0};
    int n = list_tensors(t, list, names);
    assert_in_range(shards, 1, 8);
    for (int i = 0; i < n; i++) {
        const struct entry *e = &list[i];
        int more = t->reshape && !strcmp(e->hf, t->reshape), file = i % shards;
        int64_t shape[2] = {e->rows + (e->rows ? more : 0), e->columns + (e->rows ? 0 : more)};
        int64_t elements = (e->rows ? shape[0] : 1) * shape[1];
        if (t->skip && !strcmp(e->hf, t->skip)) continue;
        float *x = values_of(e, elements);
        st_tensor(&files[file], e->hf, "F32", e->rows ? 2 : 1, e->rows ? shape : shape + 1, x, (uint64_t)elements * 4);
        ag_buf_printf(&index, NULL, "%s\"%s\":\"model-%05d-of-%05d.safetensors\"", i ? "," : "{\"weight_map\":{", e->hf,
                      file + 1, shards);
        test_free(x);
    }
    ag_buf_printf(&index, NULL, "}}");
    for (int i = 0; i < shards; i++) {
        if (shards == 1) snprintf(path, sizeof path, "%s/model.safetensors", folder);
        if (shards > 1) snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", folder, i + 1, shards);
        st_save(&files[i], path, 0);
    }
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    if (shards > 1) save_text(path, index.data);
    const char *name = !strcmp(t->family, "qwen2") ? "Qwen2" : !strcmp(t->family, "qwen3") ? "Qwen3" : "Llama";
    ag_buf_printf(
        &config, NULL,
        "{\"model_type\":\"%s\",\"architectures\":[\"%sForCausalLM\"],\"hidden_size\":%lld,\"intermediate_size\":%lld,"
        "\"num_hidden_layers\":%lld,\"num_attention_heads\":%lld,\"num_key_value_heads\":%lld,\"head_dim\":%lld,"
        "\"vocab_size\":%lld,\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\",\"rope_theta\":10000.0,"
        "\"max_position_embeddings\":64,\"attention_bias\":%s,\"mlp_bias\":%s,\"tie_word_embeddings\":%s%s}",
        t->family, name, (long long)t->C, (long long)t->F, (long long)t->L, (long long)t->Hq, (long long)t->Hk,
        (long long)t->D, (long long)t->V, t->o_bias ? "true" : "false", t->mlp_bias ? "true" : "false",
        t->tied ? "true" : "false", t->more_config ? t->more_config : "");
    snprintf(path, sizeof path, "%s/config.json", folder);
    save_text(path, config.data);
    ag_buf_free(&config);
    ag_buf_free(&index);
}

void tiny_put_gguf(const struct tiny *t, struct gguf_writer *w) {
    struct entry list[MOST];
    char names[MOST][2][64], key_name[64];
    int n = list_tensors(t, list, names);
    const struct {
        const char *name;
        int64_t value;
    } ints[] = {
        {"block_count", t->L},
        {"embedding_length", t->C},
        {"feed_forward_length", t->F},
        {"attention.head_count", t->Hq},
        {"attention.head_count_kv", t->Hk},
        {"attention.key_length", t->D},
        {"attention.value_length", t->D},
        {"rope.dimension_count", t->D},
        {"context_length", 64},
        {"vocab_size", t->V},
    };
    gguf_text(w, "general.architecture", t->family);
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        snprintf(key_name, sizeof key_name, "%s.%s", t->family, ints[i].name);
        gguf_u32(w, key_name, (uint32_t)ints[i].value);
    }
    snprintf(key_name, sizeof key_name, "%s.attention.layer_norm_rms_epsilon", t->family);
    gguf_f32(w, key_name, 1e-5f);
    for (int i = 0; i < n; i++) {
        const struct entry *e = &list[i];
        int64_t rows = e->rows ? e->rows : e->columns, width = e->rows ? e->columns : 1;
        if (t->skip && !strcmp(e->hf, t->skip)) continue;
        float *x = values_of(e, rows * width), *y = test_malloc((size_t)(rows * width) * sizeof *y);
        for (int64_t r = 0; r < rows; r++) {
            int64_t to = r;
            if (e->heads && !strcmp(t->family, "llama")) {
                int64_t head = r / t->D, i_row = r % t->D, half = t->D / 2;
                to = head * t->D + (i_row < half ? 2 * i_row : 2 * (i_row - half) + 1);
            }
            memcpy(y + to * width, x + r * width, (size_t)width * sizeof *x);
        }
        uint64_t dims[2] = {(uint64_t)e->columns, (uint64_t)e->rows};
        gguf_tensor(w, e->gguf, 0, e->rows ? 2 : 1, dims, y, (uint64_t)(rows * width) * 4);
        test_free(x);
        test_free(y);
    }
}
void tiny_save_gguf(const struct tiny *t, const char *path) {
    struct gguf_writer w = {0};
    tiny_put_gguf(t, &w);
    gguf_save(&w, path);
}
