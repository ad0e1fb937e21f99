/* probe/model*.c: the same model from every format, what is refused and how, RoPE frequencies. */
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/ops.h"
#include "probe/model.h"
#include "probe/model_internal.h"
#include "tests/ckpt_files.h"

static const struct kern_ops ops = {.name = "ref", .dequant = kern_dequant_ref};

struct opened {
    struct ckpt *ckpt;
    struct model *model;
};
static struct opened open_model(const char *path) {
    struct ag_error err = AG_ERROR_INIT;
    struct opened o = {0};
    assert_ok(ckpt_open(&o.ckpt, path, &err), &err);
    assert_ok(model_open(&o.model, o.ckpt, &err), &err);
    return o;
}
static void close_model(struct opened *o) {
    model_close(o->model);
    ckpt_close(o->ckpt);
}

static int64_t elements(const struct model_weight *w) { return w->tensor ? w->tensor->elements : 0; }

/* All of a weight, loaded `step` rows at a time; freed by the caller. */
static float *load(const struct model *model, const struct model_weight *w, int64_t step) {
    struct ag_error err = AG_ERROR_INIT;
    int64_t rows = w->tensor->rank == 2 ? w->tensor->shape[0] : 1, width = elements(w) / rows;
    float *out = test_malloc((size_t)elements(w) * sizeof *out);
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = rows - row < step ? rows - row : step;
        void *raw = test_malloc((size_t)model_raw_bytes(w, n)); /* exactly: the sanitizer sees one byte more */
        assert_ok(model_load(out + row * width, model, w, row, n, raw, &ops, &err), &err);
        test_free(raw);
    }
    return out;
}

#define N_WEIGHTS (sizeof(struct model_layer) - offsetof(struct model_layer, norm1)) / sizeof(struct model_weight)

static void same_weight(const struct opened *a, const struct model_weight *x, const struct opened *b,
                        const struct model_weight *y) {
    assert_true(!x->tensor == !y->tensor);
    if (!x->tensor) return;
    assert_int_equal(elements(x), elements(y));
    for (int64_t step = 1; step <= 64; step += 21) { /* single rows, across heads, all */
        float *p = load(a->model, x, step), *q = load(b->model, y, step);
        if (memcmp(p, q, (size_t)elements(x) * sizeof *p) != 0) {
            fail_msg("%s and %s differ, %lld rows at a time", x->tensor->name, y->tensor->name, (long long)step);
        }
        test_free(p);
        test_free(q);
    }
}

static void same_model(const struct opened *a, const struct opened *b) {
    const struct model *m = a->model, *n = b->model;
    assert_int_equal(m->family, n->family);
    assert_true(m->L == n->L && m->C == n->C && m->F == n->F && m->V == n->V && m->tied == n->tied);
    assert_true(m->max_position == n->max_position);
    assert_true((float)m->norm_eps == (float)n->norm_eps);
    assert_int_equal(m->rope.n_rot, n->rope.n_rot);
    assert_memory_equal(m->rope.inv_freq, n->rope.inv_freq, (size_t)m->rope.n_rot / 2 * 4);
    same_weight(a, &m->embedding, b, &n->embedding);
    same_weight(a, &m->final_norm, b, &n->final_norm);
    same_weight(a, &m->head, b, &n->head);
    for (int64_t l = 0; l < m->L; l++) {
        const struct ag_layer_shape *s = &m->layers[l].shape, *t = &n->layers[l].shape;
        assert_memory_equal(s, &m->shapes[l], sizeof *s);
        assert_true(s->Hq == t->Hq && s->Hk == t->Hk && s->D == t->D && s->Dv == t->Dv && s->window == t->window);
        assert_true(s->scale == 1 / sqrt((double)s->D) && s->scale == t->scale);
        for (size_t i = 0; i < N_WEIGHTS; i++) same_weight(a, &m->layers[l].norm1 + i, b, &n->layers[l].norm1 + i);
    }
}

/* CASES.md: 6 query heads and 2 key heads, the same weights as safetensors and GGUF; here the weights, in test_forward
 * the scores. Biases are permuted too. Also in shards, and for the families whose GGUF is not permuted. */
static void formats_agree(void **state) {
    (void)state;
    struct tiny models[4];
    models[0] = tiny_llama;
    models[1] = tiny_llama;
    models[1].qkv_bias = models[1].o_bias = models[1].mlp_bias = models[1].tied = true;
    models[2] =
        (struct tiny){.family = "qwen2", .L = 3, .C = 24, .F = 10, .V = 30, .Hq = 4, .Hk = 4, .D = 6, .qkv_bias = true};
    models[3] = (struct tiny){
        .family = "qwen3", .L = 2, .C = 12, .F = 10, .V = 30, .Hq = 4, .Hk = 2, .D = 10, .qk_norm = true, .tied = true};
    for (size_t i = 0; i < 4; i++) {
        const char *one = test_folder("model_hf"), *many = test_folder("model_hf_shards"),
                   *g = test_folder("model_gguf");
        tiny_save_hf(&models[i], one, 1);
        tiny_save_hf(&models[i], many, 3);
        tiny_save_gguf(&models[i], test_path("%s/tiny.gguf", g));
        struct opened a = open_model(one), b = open_model(many), c = open_model(test_path("%s/tiny.gguf", g)),
                      d = open_model(g), e = open_model(test_path("%s/model.safetensors", one));
        same_model(&a, &b);
        same_model(&a, &c);
        same_model(&a, &d);
        same_model(&a, &e);
        assert_string_equal(a.model->name, "model_hf");
        assert_string_equal(c.model->name, "tiny");
        assert_int_equal(a.model->n_warnings, 0);
        assert_int_equal(c.model->n_warnings, 0);
        close_model(&a);
        close_model(&b);
        close_model(&c);
        close_model(&d);
        close_model(&e);
    }
}

/* A permuted matrix of blocks: rows are moved whole, so quantised rows too. */
static void permuted_blocks(void **state) {
    (void)state;
    struct tiny t = tiny_llama;
    t.C = 32;
    const char *folder = test_folder("model_q8");
    struct gguf_writer w = {0};
    t.skip = "model.layers.1.self_attn.k_proj.weight";
    tiny_put_gguf(&t, &w);
    uint8_t raw[16 * 34];
    for (size_t i = 0; i < sizeof raw; i++) raw[i] = (uint8_t)(i * 7 + i / 34);
    for (int r = 0; r < 16; r++) memcpy(raw + 34 * r, "\x00\x2c", 2); /* scale 2^-4 */
    gguf_tensor(&w, "blk.1.attn_k.weight", 8, 2, (const uint64_t[]){32, 16}, raw, sizeof raw);
    gguf_save(&w, test_path("%s/m.gguf", folder));
    struct opened o = open_model(test_path("%s/m.gguf", folder));
    const struct model_weight *k = &o.model->layers[1].k;
    assert_int_equal(k->rotate_heads, 2);
    for (int64_t step = 1; step <= 16; step += 5) {
        float *y = load(o.model, k, step);
        for (int r = 0; r < 16; r++) {
            int head = r / 8, i = r % 8, source = head * 8 + (i < 4 ? 2 * i : 2 * (i - 4) + 1);
            for (int c = 0; c < 32; c++)
                assert_true(y[r * 32 + c] == (float)(int8_t)raw[source * 34 + 2 + c] * 0.0625f);
        }
        test_free(y);
    }
    close_model(&o);
}

/* Frequencies as the reference library has them (golden/make_rope.py): all but a few last bits of powf. */
static void rope_frequencies(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct ag_arena *arena = ag_arena_new("test");
    static const char *const kinds[] = {"default", "linear", "llama3"};
    const char *text;
    char *at, *end;
    size_t size;
    int cases = 0, values = 0, off = 0;
    assert_ok(ag_file_text(&text, &size, test_path("tests/golden/rope.txt"), 1 << 16, arena, &err), &err);
    for (at = (char *)(uintptr_t)text; *at; cases++) {
        struct model_rope rope = {0};
        rope.n_rot = strtol(at, &at, 10);
        at++;
        while (strncmp(at, kinds[rope.type], strlen(kinds[rope.type])) != 0) rope.type++;
        at += strlen(kinds[rope.type]);
        rope.theta = strtod(at, &at);
        rope.factor = strtod(at, &at);
        rope.low_freq_factor = strtod(at, &at);
        rope.high_freq_factor = strtod(at, &at);
        rope.original_max_position = strtod(at, &at);
        assert_ok(model_rope_table(&rope, NULL, arena, &err), &err);
        for (int64_t i = 0; i < rope.n_rot / 2; i++, values++) {
            uint32_t expected = (uint32_t)strtoul(at, &end, 16), found;
            assert_ptr_not_equal(at, end);
            at = end;
            memcpy(&found, &rope.inv_freq[i], 4);
            off += found != expected;
            assert_true(found - expected + 1 <= 2); /* at most one unit in the last place */
        }
        assert_int_equal(*at++, '\n');
    }
    assert_int_equal(cases, 8);
    assert_true(values > 300 && off * 50 <= values);
    ag_arena_free(arena);
}

/* GGUF carries llama3's scaling as divisors; the same frequencies as from config.json, to rounding. */
static void rope_divisors(void **state) {
    (void)state;
    const char *folder = test_folder("model_rope");
    struct tiny t = tiny_llama;
    t.D = 16;
    t.more_config =
        ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":64}";
    tiny_save_hf(&t, folder, 1);
    struct opened a = open_model(folder);
    assert_int_equal(a.model->rope.type, ROPE_LLAMA3);
    float divisors[8];
    for (int i = 0; i < 8; i++) divisors[i] = (float)(pow(10000, -i / 8.0) / (double)a.model->rope.inv_freq[i]);
    assert_true(divisors[0] == 1 && divisors[7] > 3.99f);
    struct gguf_writer w = {0};
    tiny_put_gguf(&t, &w);
    gguf_tensor(&w, "rope_freqs.weight", 0, 1, (const uint64_t[]){8}, divisors, sizeof divisors);
    gguf_save(&w, test_path("%s/m.gguf", folder));
    struct opened b = open_model(test_path("%s/m.gguf", folder));
    assert_int_equal(b.model->rope.type, ROPE_LLAMA3);
    for (int i = 0; i < 8; i++) assert_true(fabsf(b.model->rope.inv_freq[i] / a.model->rope.inv_freq[i] - 1) <= 3e-7f);
    close_model(&a);
    close_model(&b);
}

/* v4's rope_scaling and v5's rope_parameters; linear; sliding windows from both descriptions. */
static void configurations(void **state) {
    (void)state;
    static const struct {
        const char *family, *more;
        enum rope_type type;
        double theta, factor;
        int64_t windows[3];
    } cases[] = {
        {"llama", ",\"rope_scaling\":null", ROPE_DEFAULT, 1e4, 1, {0, 0, 0}},
        {"llama", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}", ROPE_LINEAR, 1e4, 2, {0, 0, 0}},
        {"llama",
         ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":5e5}",
         ROPE_LINEAR,
         5e5,
         2,
         {0, 0, 0}},
        {"llama",
         ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":130000}",
         ROPE_DEFAULT,
         130000,
         1,
         {0, 0, 0}},
        {"qwen2", ",\"sliding_window\":5,\"max_window_layers\":1", ROPE_DEFAULT, 1e4, 1, {0, 0, 0}},
        {"qwen2", ",\"use_sliding_window\":false,\"sliding_window\":5", ROPE_DEFAULT, 1e4, 1, {0, 0, 0}},
        {"qwen2",
         ",\"use_sliding_window\":true,\"sliding_window\":5,\"max_window_layers\":1",
         ROPE_DEFAULT,
         1e4,
         1,
         {0, 5, 5}},
        {"qwen3",
         ",\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":9,\"layer_types\":[\"sliding_"
         "attention\","
         "\"full_attention\",\"sliding_attention\"]",
         ROPE_DEFAULT,
         1e4,
         1,
         {7, 0, 7}},
        {"qwen3",
         ",\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0",
         ROPE_DEFAULT,
         1e4,
         1,
         {0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *folder = test_folder("model_config");
        struct tiny t = tiny_llama;
        t.family = cases[i].family;
        t.L = 3;
        t.qkv_bias = !strcmp(t.family, "qwen2");
        t.qk_norm = !strcmp(t.family, "qwen3");
        t.more_config = cases[i].more;
        tiny_save_hf(&t, folder, 1);
        struct opened o = open_model(folder);
        assert_int_equal(o.model->rope.type, cases[i].type);
        assert_true(o.model->rope.theta == cases[i].theta && o.model->rope.factor == cases[i].factor);
        for (int l = 0; l < 3; l++) assert_int_equal(o.model->shapes[l].window, cases[i].windows[l]);
        close_model(&o);
    }
}

/* The text part of a multimodal folder: text_config, its prefix, tensors of other parts left alone. */
static void text_part(void **state) {
    (void)state;
    const char *folder = test_folder("model_text_part");
    struct st_writer w = {0};
    struct tiny t = tiny_llama;
    tiny_save_hf(&t, folder, 1);
    struct opened a = open_model(folder);
    for (int64_t i = 0; i < a.ckpt->n_tensors; i++) {
        const struct ckpt_tensor *x = &a.ckpt->tensors[i];
        char name[200], *raw = test_malloc(x->bytes);
        struct ag_error err = AG_ERROR_INIT;
        assert_ok(ckpt_read_rows(a.ckpt, x, raw, 0, x->rank == 2 ? x->shape[0] : 1, &err), &err);
        bool inner = !strncmp(x->name, "model.", 6);
        snprintf(name, sizeof name, inner ? "model.language_model.%s" : "%s", x->name + (inner ? 6 : 0));
        st_tensor(&w, name, "F32", x->rank, x->shape, raw, x->bytes);
        test_free(raw);
    }
    st_tensor(&w, "model.visual.patch.weight", "F32", 1, (const int64_t[]){2}, "12345678", 8);
    const char *other = test_folder("model_text_part2");
    st_save(&w, test_path("%s/model.safetensors", other), 0);
    char *text = json_dumps(a.ckpt->config, 0);
    struct ag_buf config = {0};
    ag_buf_printf(&config, NULL, "{\"model_type\":\"some_vl\",\"architectures\":[\"SomeVL\"],\"text_config\":%s}",
                  text);
    save_text(test_path("%s/config.json", other), config.data);
    struct opened b = open_model(other);
    same_model(&a, &b);
    free(text);
    ag_buf_free(&config);
    close_model(&a);
    close_model(&b);
}

/* Tied or not: what the head is when the file and the configuration disagree. */
static void tied_heads(void **state) {
    (void)state;
    const char *folder = test_folder("model_tied");
    struct tiny t = tiny_llama;
    t.skip = "lm_head.weight"; /* not tied, and no head */
    tiny_save_hf(&t, folder, 1);
    struct opened o = open_model(folder);
    assert_true(o.model->tied && o.model->n_warnings == 1 && strstr(o.model->warnings[0], "lm_head.weight"));
    close_model(&o);
    t.skip = NULL; /* tied, but a head of its own */
    t.more_config = NULL;
    tiny_save_hf(&t, folder, 1);
    struct ag_buf text = {0};
    char piece[4096];
    FILE *file = fopen(test_path("%s/config.json", folder), "r");
    size_t n = fread(piece, 1, sizeof piece - 1, file);
    fclose(file);
    piece[n] = 0;
    char *at = strstr(piece, "\"tie_word_embeddings\":false");
    assert_non_null(at);
    memcpy(at + strlen("\"tie_word_embeddings\":"), "true ", 5);
    save_text(test_path("%s/config.json", folder), piece);
    o = open_model(folder);
    assert_true(!o.model->tied && o.model->n_warnings == 1 && strstr(o.model->warnings[0], "differ"));
    assert_string_equal(o.model->head.tensor->name, "lm_head.weight");
    close_model(&o);
    ag_buf_free(&text);
}

static void refuse(const char *path, enum ag_status expected, const char *a, const char *b) {
    struct ag_error err = AG_ERROR_INIT;
    struct ckpt *ckpt;
    struct model *model;
    enum ag_status status = ckpt_open(&ckpt, path, &err);
    if (status == AG_OK) {
        status = model_open(&model, ckpt, &err);
        if (status == AG_OK) fail_msg("%s was accepted; expected a refusal with '%s' and '%s'", path, a, b);
        assert_null(model);
        ckpt_close(ckpt);
    }
    test_refused(status, expected, &err, a, b, NULL);
}

/* What the forward pass would not honour: refused with file and key. */
static void refused_configurations(void **state) {
    (void)state;
    static const struct {
        const char *family, *more, *say;
        enum ag_status status;
    } cases[] = {
        {"gemma3_text", "", "gemma3_text", AG_E_UNSUPPORTED},
        {"gla", "", "gla", AG_E_UNSUPPORTED},
        {"ccq_gated_deltanet", "", "ccq_gated_deltanet", AG_E_UNSUPPORTED},
        {"llama", ",\"ccq\":{\"tap\":\"norm\"}", "ccq", AG_E_UNSUPPORTED},
        {"llama", ",\"quantization_config\":{\"bits\":4}", "quantization_config", AG_E_UNSUPPORTED},
        {"llama", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}", "yarn", AG_E_UNSUPPORTED},
        {"llama", ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":4.0}", "dynamic", AG_E_UNSUPPORTED},
        {"llama", ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":4.0}", "longrope", AG_E_UNSUPPORTED},
        {"llama", ",\"rope_scaling\":{\"type\":\"linear\"}", "factor", AG_E_FORMAT},
        {"llama", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":-2}", "factor", AG_E_FORMAT},
        {"llama", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"mrope_section\":[1]}", "mrope_section",
         AG_E_UNSUPPORTED},
        {"llama", ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1.0}}", "full_attention", AG_E_UNSUPPORTED},
        {"llama", ",\"rope_parameters\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.5}", "partial_rotary_factor",
         AG_E_UNSUPPORTED},
        {"llama", ",\"attn_logit_softcapping\":50.0", "attn_logit_softcapping", AG_E_UNSUPPORTED},
        {"llama", ",\"final_logit_softcapping\":30.0", "final_logit_softcapping", AG_E_UNSUPPORTED},
        {"llama", ",\"residual_multiplier\":0.22", "residual_multiplier", AG_E_UNSUPPORTED},
        {"llama", ",\"num_local_experts\":8", "num_local_experts", AG_E_UNSUPPORTED},
        {"llama", ",\"is_causal\":false", "is_causal", AG_E_UNSUPPORTED},
        {"llama", ",\"sliding_window\":4096", "sliding window", AG_E_UNSUPPORTED},
        {"llama", ",\"hidden_activation\":\"gelu\"", "hidden_activation", AG_E_UNSUPPORTED},
        {"qwen3", ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]", "use_sliding_window",
         AG_E_UNSUPPORTED},
        {"qwen3", ",\"use_sliding_window\":true,\"layer_types\":[\"chunked_attention\",\"full_attention\"]",
         "chunked_attention", AG_E_UNSUPPORTED},
        {"qwen3", ",\"layer_types\":[\"full_attention\"]", "layer_types", AG_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *folder = test_folder("model_refused");
        struct tiny t = tiny_llama;
        t.family = cases[i].family;
        t.qk_norm = !strcmp(t.family, "qwen3");
        t.more_config = cases[i].more;
        tiny_save_hf(&t, folder, 1);
        refuse(folder, cases[i].status, "config.json", cases[i].say);
    }
}

/* A key of config.json replaced by another text of any length. */
static void change_config(const char *folder, const char *from, const char *to) {
    char text[8192];
    struct ag_buf out = {0};
    FILE *file = fopen(test_path("%s/config.json", folder), "r");
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    char *at = strstr(text, from);
    assert_non_null(at);
    ag_buf_add(&out, text, (size_t)(at - text), NULL);
    ag_buf_printf(&out, NULL, "%s%s", to, at + strlen(from));
    save_text(test_path("%s/config.json", folder), out.data);
    ag_buf_free(&out);
}

static void refused_values(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *say;
        enum ag_status status;
    } cases[] = {
        {"\"hidden_act\":\"silu\"", "\"hidden_act\":\"gelu\"", "gelu", AG_E_UNSUPPORTED},
        {"LlamaForCausalLM", "LlamaForSequenceClassification", "LlamaForSequenceClassification", AG_E_UNSUPPORTED},
        {"\"num_hidden_layers\":2", "\"num_hidden_layers\":1", "model.layers.1", AG_E_UNSUPPORTED},
        {"\"num_hidden_layers\":2", "\"num_hidden_layers\":2000000000", "2000000000 layers", AG_E_FORMAT},
        {"\"num_hidden_layers\":2", "\"num_hidden_layers\":-2", "num_hidden_layers", AG_E_FORMAT},
        {"\"num_hidden_layers\":2,", "", "num_hidden_layers", AG_E_FORMAT},
        {"\"hidden_size\":20", "\"hidden_size\":20.5", "hidden_size", AG_E_FORMAT},
        {"\"num_key_value_heads\":2", "\"num_key_value_heads\":3", "expected [24, 20]", AG_E_FORMAT},
        {"\"num_key_value_heads\":2", "\"num_key_value_heads\":4", "multiple", AG_E_FORMAT},
        {"\"head_dim\":8", "\"head_dim\":7", "even", AG_E_FORMAT},
        {"\"head_dim\":8", "\"head_dim\":514", "at most 512", AG_E_UNSUPPORTED},
        {"\"vocab_size\":40", "\"vocab_size\":41", "shape [40, 20]; expected [41, 20]", AG_E_FORMAT},
        {"\"rms_norm_eps\":1e-5", "\"rms_norm_eps\":\"1e-5\"", "rms_norm_eps", AG_E_FORMAT},
        {"\"attention_bias\":false", "\"attention_bias\":true", "q_proj.bias", AG_E_FORMAT},
        {"\"attention_bias\":false", "\"attention_bias\":1", "attention_bias", AG_E_FORMAT},
        {"\"rope_theta\":10000.0", "\"rope_theta\":0", "rope_theta", AG_E_FORMAT},
        {"{\"model_type\"", "{\"hidden_size\":20,\"model_type\"", "config.json: line 1", AG_E_FORMAT},
        {"{\"model_type\"", "[\"model_type\"", "config.json: line 1", AG_E_FORMAT},
        {"\"model_type\":\"llama\",", "", "model_type is missing", AG_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *folder = test_folder("model_values");
        tiny_save_hf(&tiny_llama, folder, 1);
        change_config(folder, cases[i].from, cases[i].to);
        refuse(folder, cases[i].status, cases[i].say, cases[i].say);
    }
}

static void refused_tensors(void **state) {
    (void)state;
    const char *folder = test_folder("model_tensors");
    struct tiny t = tiny_llama;
    t.reshape = "model.layers.1.mlp.up_proj.weight";
    tiny_save_hf(&t, folder, 1);
    refuse(folder, AG_E_FORMAT, "model.layers.1.mlp.up_proj.weight", "shape [25, 20]; expected [24, 20]");
    t = tiny_llama;
    t.skip = "model.layers.0.self_attn.v_proj.weight";
    tiny_save_hf(&t, folder, 1);
    refuse(folder, AG_E_FORMAT, "model.layers.0.self_attn.v_proj.weight", "missing");
    t = tiny_llama;
    t.extra = "model.layers.0.self_attn.q_norm.weight";
    tiny_save_hf(&t, folder, 1);
    refuse(folder, AG_E_UNSUPPORTED, "model.layers.0.self_attn.q_norm.weight", "no place in a llama");
    t.extra = "model.layers.0.self_attn.q_proj.bias"; /* the configuration says that there is none */
    tiny_save_hf(&t, folder, 1);
    refuse(folder, AG_E_UNSUPPORTED, "q_proj.bias", "no place");
    t.extra = "attn.lambda_proj.bias";
    tiny_save_hf(&t, folder, 1);
    refuse(folder, AG_E_UNSUPPORTED, "attn.lambda_proj.bias", "no place");
    t.extra = "model.layers.0.self_attn.rotary_emb.inv_freq"; /* a buffer of old checkpoints: ignored */
    tiny_save_hf(&t, folder, 1);
    struct opened o = open_model(folder);
    close_model(&o);
    t = tiny_llama;
    t.family = "qwen2"; /* has no biases, though a qwen2 always does */
    tiny_save_hf(&t, folder, 1);
    refuse(folder, AG_E_FORMAT, "q_proj.bias", "missing");
    t.family = "qwen3";
    tiny_save_hf(&t, folder, 1);
    refuse(folder, AG_E_FORMAT, "q_norm.weight", "missing");

    const char *file = test_path("%s/x.safetensors", test_folder("model_alone"));
    struct st_writer w = {0};
    st_tensor(&w, "a", "F32", 1, (const int64_t[]){1}, "1234", 4);
    st_save(&w, file, 0);
    refuse(file, AG_E_FORMAT, "x.safetensors", "config.json");
}

static void refused_gguf(void **state) {
    (void)state;
    const char *folder = test_folder("model_gguf_refused"), *path = test_path("%s/m.gguf", folder);
    static const struct {
        const char *key, *text; /* text NULL: a u32 of 8 */
        const char *say;
    } keys[] = {
        {"llama.expert_count", NULL, "llama.expert_count"},
        {"llama.rope.scaling.type", "yarn", "yarn"},
        {"llama.logit_scale", NULL, "llama.logit_scale"},
        {"llama.attention.value_residual", NULL, "value_residual"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct gguf_writer w = {0};
        tiny_put_gguf(&tiny_llama, &w);
        if (keys[i].text) gguf_text(&w, keys[i].key, keys[i].text);
        if (!keys[i].text) gguf_u32(&w, keys[i].key, 8);
        gguf_save(&w, path);
        refuse(path, AG_E_UNSUPPORTED, "m.gguf", keys[i].say);
    }
    struct tiny t = tiny_llama;
    t.family = "mamba2";
    tiny_save_gguf(&t, path);
    refuse(path, AG_E_UNSUPPORTED, "general.architecture is mamba2", "qwen3");
    t = tiny_llama;
    t.extra = "blk.0.attn_q_norm.weight";
    tiny_save_gguf(&t, path);
    refuse(path, AG_E_UNSUPPORTED, "blk.0.attn_q_norm.weight", "no place");
    t = tiny_llama;
    t.skip = "model.norm.weight";
    struct gguf_writer w = {0};
    tiny_put_gguf(&t, &w);
    uint8_t blocks[18] = {0};
    gguf_tensor(&w, "output_norm.weight", 20, 1, (const uint64_t[]){32}, blocks, 18);
    gguf_save(&w, path);
    refuse(path, AG_E_UNSUPPORTED, "output_norm.weight", "IQ4_NL");
    struct gguf_writer none = {0};
    gguf_save(&none, path);
    refuse(path, AG_E_FORMAT, "general.architecture", "m.gguf");
}

/* Every allocation failing in turn: a message, and nothing leaked (the sanitizer run sees). */
static void out_of_memory(void **state) {
    (void)state;
    const char *folder = test_folder("model_memory");
    tiny_save_hf(&tiny_llama, folder, 2);
    tiny_save_gguf(&tiny_llama, test_path("%s/m.gguf", folder));
    const char *const paths[] = {folder, test_path("%s/m.gguf", folder)};
    for (int p = 0; p < 2; p++) {
        int k = 0;
        for (enum ag_status status = AG_E_MEMORY; status != AG_OK; k++) {
            struct ag_error err = AG_ERROR_INIT;
            struct ckpt *ckpt = NULL;
            struct model *model = NULL;
            ag_arena_fail_after(k);
            status = ckpt_open(&ckpt, paths[p], &err);
            if (status == AG_OK) status = model_open(&model, ckpt, &err);
            ag_arena_fail_after(-1);
            if (status != AG_OK) assert_int_equal(status, AG_E_MEMORY);
            assert_true(status == AG_OK || err.text[0]);
            model_close(model);
            ckpt_close(ckpt);
            assert_true(k < 1000);
        }
        assert_true(k > 10);
    }
}

/* The model of the project's own sample, and SmolLM2 where it was fetched. */
static void real_models(void **state) {
    (void)state;
    if (ag_path_kind(test_path("data/sample/model.safetensors")) == AG_KIND_FILE) {
        struct opened o = open_model(test_path("data/sample"));
        assert_true(o.model->L == 4 && o.model->C == 128 && o.model->V == 960 && o.model->tied);
        assert_true(o.model->shapes[3].Hq == 4 && o.model->shapes[3].D == 32 && o.model->rope.theta == 1e4);
        close_model(&o);
    }
    if (!test_smollm2()) test_skip("no SmolLM2 (make fetch)");
    struct opened o = open_model(test_smollm2());
    assert_true(o.model->L == 30 && o.model->C == 576 && o.model->F == 1536 && o.model->V == 49152 && o.model->tied);
    assert_true(o.model->shapes[0].Hq == 9 && o.model->shapes[0].Hk == 3 && o.model->shapes[0].D == 64);
    assert_true(o.model->rope.theta == 1e5 && o.model->layers[29].q.rotate_heads == 9 &&
                o.model->layers[29].k.rotate_heads == 3);
    assert_non_null(o.model->chat_template_source);
    assert_string_equal(o.ckpt->file_type, "mostly Q4_1");
    close_model(&o);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(formats_agree),   cmocka_unit_test(permuted_blocks),        cmocka_unit_test(rope_frequencies),
    cmocka_unit_test(rope_divisors),   cmocka_unit_test(configurations),         cmocka_unit_test(text_part),
    cmocka_unit_test(tied_heads),      cmocka_unit_test(refused_configurations), cmocka_unit_test(refused_values),
    cmocka_unit_test(refused_tensors), cmocka_unit_test(refused_gguf),           cmocka_unit_test(out_of_memory),
    cmocka_unit_test(real_models),
};
TEST_GROUP(model, "checkpoints as models: families, shapes, RoPE, what is refused", tests)
