/* tests/test_tokenizer_files.c: the same vocabularies through GGUF metadata; files that are broken, hostile or of a
 * kind we refuse by name; running out of memory at every allocation; mutated files. */
#include "tests/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "probe/tokenizer.h"
#include "probe/unicode.h"
#include "tests/ckpt_files.h"
#define LLVMFuzzerTestOneInput fuzz_tokenizer_input /* other tests include their own */
#include "tests/fuzz_tokenizer.c"

static void gguf_i32s(struct gguf_writer *w, const char *key, const int32_t *values, uint64_t n) {
    put_text(&w->keys, key);
    put_u32(&w->keys, 9);
    put_u32(&w->keys, 5);
    put_u64(&w->keys, n);
    for (uint64_t i = 0; i < n; i++) put_u32(&w->keys, (uint32_t)values[i]);
    w->n_keys++;
}

#define ROOM 1200

/* A tokenizer.json as the conversion script of llama.cpp would write it: token types, padding, merges as text. */
static void write_as_gguf(const char *path, const char *json_path, const char *pre) {
    json_error_t problem;
    json_t *root = json_load_file(json_path, 0, &problem), *model, *value;
    assert_non_null(root);
    model = json_object_get(root, "model");
    static const char *tokens[ROOM], *merges[ROOM];
    static int32_t types[ROOM];
    static char text[ROOM][128];
    for (int i = 0; i < ROOM; i++) {
        tokens[i] = NULL;
        types[i] = 5;
    }
    uint64_t n = 0, n_merges = 0;
    const char *key;
    json_object_foreach(json_object_get(model, "vocab"), key, value) {
        tokens[json_integer_value(value)] = key;
        types[json_integer_value(value)] = 1;
        if ((uint64_t)json_integer_value(value) >= n) n = (uint64_t)json_integer_value(value) + 1;
    }
    size_t i;
    json_array_foreach(json_object_get(root, "added_tokens"), i, value) {
        int64_t id = json_integer_value(json_object_get(value, "id"));
        tokens[id] = json_string_value(json_object_get(value, "content"));
        types[id] = json_is_true(json_object_get(value, "special")) ? 3 : 4;
        if ((uint64_t)id >= n) n = (uint64_t)id + 1;
    }
    for (uint64_t pad = 0; pad < 3; pad++) {
        snprintf(text[ROOM - 1 - pad], sizeof text[0], "[PAD%d]", (int)(n + pad));
        tokens[n + pad] = text[ROOM - 1 - pad];
    }
    n += 3;
    json_array_foreach(json_object_get(model, "merges"), i, value) {
        if (json_is_array(value))
            snprintf(text[i], sizeof text[i], "%s %s", json_string_value(json_array_get(value, 0)),
                     json_string_value(json_array_get(value, 1)));
        merges[n_merges++] = json_is_array(value) ? text[i] : json_string_value(value);
    }
    struct gguf_writer w = {0};
    gguf_text(&w, "general.architecture", "llama");
    gguf_text(&w, "tokenizer.ggml.model", "gpt2");
    gguf_text(&w, "tokenizer.ggml.pre", pre);
    gguf_texts(&w, "tokenizer.ggml.tokens", tokens, n);
    gguf_i32s(&w, "tokenizer.ggml.token_type", types, n);
    gguf_texts(&w, "tokenizer.ggml.merges", merges, n_merges);
    for (uint64_t id = 0; id < n; id++)
        if (strcmp(tokens[id], "<|begin_of_text|>") == 0) gguf_u32(&w, "tokenizer.ggml.bos_token_id", (uint32_t)id);
    uint64_t dims[] = {4};
    static const float zeros[4];
    gguf_tensor(&w, "x", 0, 1, dims, zeros, sizeof zeros);
    gguf_save(&w, path);
    json_decref(root);
}

static void same_tokens(const struct tokenizer *a, const struct tokenizer *b, const char *text, size_t n) {
    struct token_list x = {0}, y = {0};
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(tokenizer_encode(&x, a, text, n, true, NULL, &err), &err);
    assert_ok(tokenizer_encode(&y, b, text, n, true, NULL, &err), &err);
    assert_int_equal(x.n, y.n);
    for (int64_t i = 0; i < x.n; i++) {
        assert_true(x.data[i].id == y.data[i].id && x.data[i].special == y.data[i].special);
        assert_true(x.data[i].begin == y.data[i].begin && x.data[i].end == y.data[i].end);
    }
    token_list_free(&x);
    token_list_free(&y);
}

static void test_gguf_same(void **state) {
    (void)state;
    static const char *const list[][2] = {
        {"gpt2", "gpt-2"}, {"smollm", "smollm"}, {"qwen2", "qwen2"}, {"llama", "llama-bpe"}, {"qwen35", "qwen35"}};
    json_error_t problem;
    json_t *expected = json_load_file("tests/golden/tokenizers/expected.json", JSON_ALLOW_NUL, &problem), *text;
    assert_non_null(expected);
    for (size_t k = 0; k < sizeof list / sizeof list[0]; k++) {
        struct tokenizer *a, *b;
        struct ag_error err = AG_ERROR_INIT;
        char path[512], json[512];
        snprintf(path, sizeof path, "%s/model.gguf", test_folder("tokenizer"));
        snprintf(json, sizeof json, "%s", test_path("tests/golden/tokenizers/%s.json", list[k][0]));
        write_as_gguf(path, json, list[k][1]);
        assert_ok(tokenizer_open_path(&a, json, &err), &err);
        assert_ok(tokenizer_open_path(&b, path, &err), &err);
        const struct tokenizer_info *x = tokenizer_info(a), *y = tokenizer_info(b);
        assert_string_equal(x->pattern, y->pattern);
        assert_string_equal(y->source, "GGUF metadata");
        assert_true(x->nfc == y->nfc && x->adds_bos == y->adds_bos && x->merges == y->merges && x->added == y->added);
        assert_true(x->ignore_merges == y->ignore_merges && x->bos == y->bos && y->vocabulary == x->vocabulary + 3);
        assert_true(strlen(y->sha256) == 64 && strcmp(x->sha256, y->sha256) != 0);
        size_t n, i;
        for (int32_t id = 0; id < y->vocabulary; id++) {
            const char *p = tokenizer_bytes(a, id, &n), *q = tokenizer_bytes(b, id, &i);
            assert_true((p == NULL) == (q == NULL)); /* padding is no token */
            if (p != NULL) assert_true(n == i && memcmp(p, q, n) == 0);
        }
        json_array_foreach(json_object_get(expected, "texts"), i, text)
            same_tokens(a, b, json_string_value(text), json_string_length(text));
        tokenizer_close(a);
        tokenizer_close(b);
    }
    json_decref(expected);
}

/* A minimal GGUF tokenizer; a test changes one thing. NULL: leave the key out. */
struct mini {
    const char *model, *pre, *merge;
    int32_t type_of_b, bos;
    int more_types; /* entries of token_type beyond the tokens */
    const char *token0;
    int add_bos; /* -1: no key */
};
static const struct mini mini = {"gpt2", "llama-bpe", "a b", 1, 3, 0, "a", -1};

static enum ag_status open_mini(struct tokenizer **t, const struct mini *m, struct ag_error *err) {
    struct gguf_writer w = {0};
    const char *const tokens[] = {m->token0, "b", "ab", "<s>"}, *const merges[] = {m->merge};
    const int32_t types[] = {1, m->type_of_b, 1, 3, 1, 1};
    if (m->model != NULL) gguf_text(&w, "tokenizer.ggml.model", m->model);
    if (m->pre != NULL) gguf_text(&w, "tokenizer.ggml.pre", m->pre);
    gguf_texts(&w, "tokenizer.ggml.tokens", tokens, 4);
    gguf_i32s(&w, "tokenizer.ggml.token_type", types, (uint64_t)(4 + m->more_types));
    if (m->merge != NULL) gguf_texts(&w, "tokenizer.ggml.merges", merges, 1);
    if (m->bos >= 0) gguf_u32(&w, "tokenizer.ggml.bos_token_id", (uint32_t)m->bos);
    if (m->add_bos == 2)
        gguf_u32(&w, "tokenizer.ggml.add_bos_token", 1);
    else if (m->add_bos >= 0)
        gguf_bool(&w, "tokenizer.ggml.add_bos_token", (uint8_t)m->add_bos);
    uint64_t dims[] = {4};
    static const float zeros[4];
    gguf_tensor(&w, "x", 0, 1, dims, zeros, sizeof zeros);
    char path[512];
    snprintf(path, sizeof path, "%s/mini.gguf", test_folder("tokenizer"));
    gguf_save(&w, path);
    return tokenizer_open_path(t, path, err);
}

static void test_gguf_bos(void **state) {
    (void)state;
    static const struct {
        const char *pre;
        int bos, add_bos;
        bool expected;
    } cases[] = {{"llama-bpe", 3, -1, true},  {"llama-bpe", 3, 0, false}, {"llama-bpe", -1, -1, false},
                 {"llama-bpe", -1, 1, false}, {"gpt-2", 3, -1, false},    {"gpt-2", 3, 1, true},
                 {"smollm", 3, -1, false},    {"smollm", 3, 0, false}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct mini m = mini;
        m.pre = cases[k].pre;
        m.bos = cases[k].bos;
        m.add_bos = cases[k].add_bos;
        struct tokenizer *t;
        struct ag_error err = AG_ERROR_INIT;
        assert_ok(open_mini(&t, &m, &err), &err);
        struct token_list list = {0};
        assert_ok(tokenizer_encode(&list, t, "ab", 2, true, NULL, &err), &err);
        assert_int_equal(tokenizer_info(t)->adds_bos, cases[k].expected);
        assert_int_equal(list.n, cases[k].expected ? 2 : 1);
        assert_int_equal(list.data[list.n - 1].id, 2);
        assert_int_equal(tokenizer_info(t)->bos, cases[k].bos);
        token_list_free(&list);
        tokenizer_close(t);
    }
}

#define REFUSE_MINI(change, status, ...)                                                                               \
    do {                                                                                                               \
        struct mini m = mini;                                                                                          \
        struct ag_error err = AG_ERROR_INIT;                                                                           \
        struct tokenizer *t;                                                                                           \
        change;                                                                                                        \
        test_refused(open_mini(&t, &m, &err), status, &err, __VA_ARGS__, NULL);                                        \
        assert_null(t);                                                                                                \
    } while (0)

static void test_gguf_refused(void **state) {
    (void)state;
    REFUSE_MINI(m.model = "llama", AG_E_UNSUPPORTED, "mini.gguf", "SentencePiece", "gpt2");
    REFUSE_MINI(m.model = "t5", AG_E_UNSUPPORTED, "Unigram");
    REFUSE_MINI(m.model = "no\nvel", AG_E_UNSUPPORTED, "no?vel");
    REFUSE_MINI(m.model = NULL, AG_E_FORMAT, "tokenizer.ggml.model is missing");
    REFUSE_MINI(m.pre = NULL, AG_E_UNSUPPORTED, "pre is missing", "never guessed");
    REFUSE_MINI(m.pre = "tekken", AG_E_UNSUPPORTED, "\"tekken\"", "smollm");
    REFUSE_MINI(m.merge = NULL, AG_E_FORMAT, "merges is missing");
    REFUSE_MINI(m.merge = "ab", AG_E_FORMAT, "merges[0]", "blank");
    REFUSE_MINI(m.merge = "a ", AG_E_FORMAT, "merge 0", "empty");
    REFUSE_MINI(m.merge = "a c", AG_E_FORMAT, "merge 0", "\"c\"");
    REFUSE_MINI(m.merge = "b a", AG_E_FORMAT, "merge 0", "\"ba\"");
    REFUSE_MINI(m.token0 = "b", AG_E_FORMAT, "\"b\" is in the vocabulary twice");
    REFUSE_MINI(m.token0 = "\xff", AG_E_FORMAT, "tokens[0]", "UTF-8");
    REFUSE_MINI(m.type_of_b = 6, AG_E_UNSUPPORTED, "tokens[1]", "byte token");
    REFUSE_MINI(m.type_of_b = 7, AG_E_FORMAT, "token_type[1] is 7");
    REFUSE_MINI(m.type_of_b = -1, AG_E_FORMAT, "token_type[1] is -1");
    REFUSE_MINI(m.type_of_b = 5, AG_E_FORMAT, "merge 0", "\"b\"");
    REFUSE_MINI(m.more_types = 1, AG_E_FORMAT, "token_type has 5 entries for 4 tokens");
    REFUSE_MINI(m.more_types = -1, AG_E_FORMAT, "token_type has 3 entries for 4 tokens");
    REFUSE_MINI(m.bos = 4, AG_E_FORMAT, "bos_token_id is 4", "4 tokens");
    REFUSE_MINI(m.bos = 1000000000, AG_E_FORMAT, "bos_token_id is 1000000000");
    REFUSE_MINI(m.add_bos = 2, AG_E_FORMAT, "add_bos_token", "true or false");
}

/* Pieces of a tokenizer.json; a test replaces one. */
struct parts {
    const char *added, *normalizer, *pre_tokenizer, *post_processor, *model;
};
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MERGES "\"merges\":[[\"a\",\"b\"]]"
#define BYTE_LEVEL(regex)                                                                                              \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" regex "}"
#define SEQUENCE(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list "]}"
#define SPLIT(regex, behavior, invert)                                                                                 \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}"
#define ADDED(id, content, more)                                                                                       \
    "[{\"id\":" id ",\"content\":\"" content                                                                           \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false" more "}]"
#define SPECIAL ",\"special\":true"
#define TEMPLATE(single, ids)                                                                                          \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"special_tokens\":{\"x\":{\"id\":\"x\",\"ids\":[" ids   \
    "]}}}"
#define X_FIRST "{\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}}"
#define THEN_A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
static const struct parts parts = {"[]", "null", BYTE_LEVEL("true"), "null", "{\"type\":\"BPE\"," VOCAB "," MERGES "}"};

static enum ag_status open_text(struct tokenizer **t, const char *text, size_t n, struct ag_error *err) {
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", test_folder("tokenizer"));
    save_bytes(path, text, n);
    return tokenizer_open_path(t, path, err);
}
static enum ag_status open_parts(struct tokenizer **t, const struct parts *p, struct ag_error *err) {
    struct ag_buf buf = {0};
    assert_ok(
        ag_buf_printf(
            &buf, err,
            "{\"version\":\"1.0\",\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,"
            "\"model\":%s}",
            p->added, p->normalizer, p->pre_tokenizer, p->post_processor, p->model),
        err);
    enum ag_status status = open_text(t, buf.data, buf.size, err);
    ag_buf_free(&buf);
    return status;
}

#define REFUSE(part, text, status, ...)                                                                                \
    do {                                                                                                               \
        struct parts p = parts;                                                                                        \
        struct ag_error err = AG_ERROR_INIT;                                                                           \
        struct tokenizer *t;                                                                                           \
        p.part = text;                                                                                                 \
        test_refused(open_parts(&t, &p, &err), status, &err, __VA_ARGS__, NULL);                                       \
        assert_null(t);                                                                                                \
    } while (0)
#define MODEL(vocab, merges) "{\"type\":\"BPE\"," vocab "," merges "}"

static void test_json_refused(void **state) {
    (void)state;
    /* model */
    REFUSE(model, "{\"type\":\"Unigram\"," VOCAB "}", AG_E_UNSUPPORTED, "tokenizer.json", "model.type is Unigram",
           "BPE");
    REFUSE(model, "{\"type\":\"WordPiece\"," VOCAB "}", AG_E_UNSUPPORTED, "WordPiece");
    REFUSE(model, "{" VOCAB "}", AG_E_UNSUPPORTED, "model.type");
    REFUSE(model, "[]", AG_E_FORMAT, "model");
    REFUSE(model, MODEL("\"vocab\":[]", MERGES), AG_E_FORMAT, "model.vocab");
    REFUSE(model, "{\"type\":\"BPE\"," VOCAB "}", AG_E_FORMAT, "model.merges", "nothing");
    REFUSE(model, MODEL(VOCAB, "\"merges\":{}"), AG_E_FORMAT, "model.merges");
    REFUSE(model, MODEL(VOCAB, "\"merges\":[[\"a\",\"c\"]]"), AG_E_FORMAT, "merge 0", "\"c\"");
    REFUSE(model, MODEL(VOCAB, "\"merges\":[[\"b\",\"a\"]]"), AG_E_FORMAT, "merge 0", "\"ba\"");
    REFUSE(model, MODEL(VOCAB, "\"merges\":[[\"a\",\"b\",\"c\"]]"), AG_E_FORMAT, "model.merges[0]");
    REFUSE(model, MODEL(VOCAB, "\"merges\":[[\"a\",1]]"), AG_E_FORMAT, "model.merges[0]");
    REFUSE(model, MODEL(VOCAB, "\"merges\":[\"ab\"]"), AG_E_FORMAT, "model.merges[0]", "blank");
    REFUSE(model, MODEL(VOCAB, "\"merges\":[\"a b c\"]"), AG_E_FORMAT, "model.merges[0]", "blank");
    REFUSE(model, MODEL(VOCAB, "\"merges\":[\"a \"]"), AG_E_FORMAT, "merge 0", "empty");
    REFUSE(model, MODEL("\"vocab\":{\"a\":0,\"b\":-1,\"ab\":2}", MERGES), AG_E_FORMAT, "\"b\"", "-1");
    REFUSE(model, MODEL("\"vocab\":{\"a\":0,\"b\":0,\"ab\":2}", MERGES), AG_E_FORMAT, "two tokens", "id 0");
    REFUSE(model, MODEL("\"vocab\":{\"a\":0,\"b\":1000000000,\"ab\":2}", MERGES), AG_E_FORMAT, "\"b\"", "1000000000");
    REFUSE(model, MODEL("\"vocab\":{\"a\":0,\"b\":1e30,\"ab\":2}", MERGES), AG_E_FORMAT, "\"b\"", "integer");
    REFUSE(model, MODEL("\"vocab\":{\"a\":0,\"b\":100000000000000000000,\"ab\":2}", MERGES), AG_E_FORMAT, "JSON");
    REFUSE(model, MODEL("\"vocab\":{\"a\":0,\"b\":1.5,\"ab\":2}", MERGES), AG_E_FORMAT, "\"b\"", "1.5");
    REFUSE(model, MODEL("\"vocab\":{\"a\":0,\"b\":\"1\",\"ab\":2}", MERGES), AG_E_FORMAT, "\"b\"");
    REFUSE(model, MODEL("\"vocab\":{\"a\":0,\"a\":1,\"ab\":2}", MERGES), AG_E_FORMAT, "duplicate");
    REFUSE(model, "{\"type\":\"BPE\",\"byte_fallback\":true," VOCAB "," MERGES "}", AG_E_UNSUPPORTED, "byte_fallback",
           "SentencePiece");
    REFUSE(model, "{\"type\":\"BPE\",\"dropout\":0.1," VOCAB "," MERGES "}", AG_E_UNSUPPORTED, "dropout", "0.1");
    REFUSE(model, "{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"," VOCAB "," MERGES "}", AG_E_UNSUPPORTED,
           "end_of_word_suffix");
    REFUSE(model, "{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\"," VOCAB "," MERGES "}", AG_E_UNSUPPORTED,
           "##");
    REFUSE(model, "{\"type\":\"BPE\",\"ignore_merges\":1," VOCAB "," MERGES "}", AG_E_FORMAT, "ignore_merges");
    /* pre-tokenizer: never guessed */
    REFUSE(pre_tokenizer, "null", AG_E_UNSUPPORTED, "pre_tokenizer");
    REFUSE(pre_tokenizer, "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", AG_E_UNSUPPORTED, "Metaspace");
    REFUSE(pre_tokenizer, "{\"type\":\"Whitespace\"}", AG_E_UNSUPPORTED, "Whitespace");
    REFUSE(pre_tokenizer, "7", AG_E_FORMAT, "pre_tokenizer");
    REFUSE(pre_tokenizer, BYTE_LEVEL("false"), AG_E_UNSUPPORTED, "use_regex");
    REFUSE(pre_tokenizer, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", AG_E_UNSUPPORTED, "add_prefix_space");
    REFUSE(pre_tokenizer, "{\"type\":\"ByteLevel\"}", AG_E_FORMAT, "add_prefix_space");
    REFUSE(pre_tokenizer, SEQUENCE(""), AG_E_UNSUPPORTED, "pre_tokenizer");
    REFUSE(pre_tokenizer, SEQUENCE(SPLIT("\\\\d+", "Isolated", "false") "," BYTE_LEVEL("false")), AG_E_UNSUPPORTED,
           "\\d+", "GPT-2");
    REFUSE(pre_tokenizer, SEQUENCE(SPLIT("\\\\p{N}", "Removed", "false") "," BYTE_LEVEL("true")), AG_E_UNSUPPORTED,
           "Removed");
    REFUSE(pre_tokenizer, SEQUENCE(SPLIT("\\\\p{N}", "Isolated", "true") "," BYTE_LEVEL("true")), AG_E_UNSUPPORTED,
           "Split");
    REFUSE(pre_tokenizer, SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":false}," BYTE_LEVEL("true")),
           AG_E_UNSUPPORTED, "Digits");
    REFUSE(pre_tokenizer, SEQUENCE(BYTE_LEVEL("true") "," BYTE_LEVEL("true")), AG_E_UNSUPPORTED, "pre_tokenizer");
    REFUSE(pre_tokenizer, SEQUENCE("{\"type\":\"Punctuation\"}," BYTE_LEVEL("true")), AG_E_UNSUPPORTED, "Punctuation");
    /* normalizer, post-processor */
    REFUSE(normalizer, "{\"type\":\"Lowercase\"}", AG_E_UNSUPPORTED, "normalizer", "Lowercase", "NFC");
    REFUSE(normalizer, "{\"type\":\"NFKC\"}", AG_E_UNSUPPORTED, "NFKC");
    REFUSE(normalizer,
           "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Prepend\",\"prepend\":\"_\"}]}",
           AG_E_UNSUPPORTED, "Prepend", "SentencePiece");
    REFUSE(normalizer, "[]", AG_E_FORMAT, "normalizer");
    REFUSE(post_processor, "{\"type\":\"RobertaProcessing\"}", AG_E_UNSUPPORTED, "post_processor", "RobertaProcessing");
    REFUSE(post_processor, TEMPLATE(X_FIRST, "1"), AG_E_FORMAT, "single", "A");
    REFUSE(post_processor, TEMPLATE(THEN_A "," THEN_A, "1"), AG_E_FORMAT, "once");
    REFUSE(post_processor, TEMPLATE(X_FIRST "," THEN_A, "7"), AG_E_FORMAT, "exist");
    REFUSE(post_processor, TEMPLATE(X_FIRST "," THEN_A, "-1"), AG_E_FORMAT, "-1");
    REFUSE(post_processor, TEMPLATE("{\"Sequence\":{\"id\":\"B\"}}", "1"), AG_E_FORMAT, "single");
    REFUSE(post_processor, "{\"type\":\"TemplateProcessing\"}", AG_E_FORMAT, "single");
    /* added tokens */
    REFUSE(added, "{}", AG_E_FORMAT, "added_tokens");
    REFUSE(added, "[1]", AG_E_FORMAT, "added_tokens[0]");
    REFUSE(added, ADDED("3", "<s>", ""), AG_E_FORMAT, "added_tokens[0]", "special");
    REFUSE(added, ADDED("3", "", SPECIAL), AG_E_FORMAT, "added_tokens[0]");
    REFUSE(added, ADDED("-3", "<s>", SPECIAL), AG_E_FORMAT, "added_tokens[0]", "-3");
    REFUSE(added, ADDED("1000000000", "<s>", SPECIAL), AG_E_FORMAT, "1000000000");
    REFUSE(added, ADDED("2", "<s>", SPECIAL), AG_E_FORMAT, "two tokens", "id 2");
    REFUSE(added, ADDED("3", "ab", SPECIAL), AG_E_FORMAT, "added_tokens[0]", "vocabulary");
    struct ag_error err = AG_ERROR_INIT;
    struct tokenizer *t;
    struct parts p = parts;
    assert_ok(open_parts(&t, &p, &err), &err); /* the parts themselves are fine */
    tokenizer_close(t);
    p.post_processor = TEMPLATE(X_FIRST "," THEN_A, "1, 0");
    assert_ok(open_parts(&t, &p, &err), &err);
    struct token_list list = {0};
    assert_ok(tokenizer_encode(&list, t, "ab", 2, true, NULL, &err), &err);
    assert_true(list.n == 3 && list.data[0].id == 1 && list.data[1].id == 0 && list.data[2].id == 2);
    /* a vocabulary without the byte that the text holds */
    test_refused(tokenizer_encode(&list, t, "abc", 3, true, NULL, &err), AG_E_UNSUPPORTED, &err, "0x63", NULL);
    assert_int_equal(list.n, 3);
    token_list_free(&list);
    tokenizer_close(t);
}

static void test_json_broken(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "null",
                                        "{\"model\":1}",
                                        "{\"model\":{}}x",
                                        "\xff\xfe{\0}",
                                        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\\ud800\":1}}}"};
    struct tokenizer *t;
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
        struct ag_error err = AG_ERROR_INIT;
        test_refused(open_text(&t, texts[k], strlen(texts[k]), &err), AG_E_FORMAT, &err, "tokenizer.json", NULL);
    }
    struct ag_buf deep = {0};
    struct ag_error err = AG_ERROR_INIT;
    for (int i = 0; i < 100000; i++) assert_ok(ag_buf_add(&deep, "[", 1, &err), &err);
    test_refused(open_text(&t, deep.data, deep.size, &err), AG_E_FORMAT, &err, "JSON", NULL);
    ag_buf_free(&deep);
    err = (struct ag_error)AG_ERROR_INIT;
    assert_true(tokenizer_open_path(&t, "build/test/no-such-tokenizer.json", &err) != AG_OK);
    assert_non_null(strstr(err.text, "no-such-tokenizer.json"));
    err = (struct ag_error)AG_ERROR_INIT;
    assert_true(tokenizer_open_path(&t, test_folder("empty-folder"), &err) != AG_OK);
    assert_non_null(strstr(err.text, "empty-folder"));
    assert_non_null(strstr(err.text, "tokenizer.json"));
}

/* Every allocation fails once: an error, no crash, no leak (the sanitizers look). */
static void test_out_of_memory(void **state) {
    (void)state;
    const char *path = test_path("tests/golden/tokenizers/flags.json");
    int64_t n = 0;
    struct tokenizer *t = NULL;
    for (enum ag_status status = AG_E_MEMORY; status != AG_OK; n++) {
        struct ag_error err = AG_ERROR_INIT;
        ag_arena_fail_after(n);
        status = tokenizer_open_path(&t, path, &err);
        ag_arena_fail_after(-1);
        if (status != AG_OK && (status != AG_E_MEMORY || t != NULL)) fail_msg("allocation %d: %s", (int)n, err.text);
    }
    assert_true(n > 10);
    struct ag_buf text = {0};
    for (int i = 0; i < 300; i++) ag_buf_printf(&text, NULL, "aaaaaaaaaae\xcc\x81word <mask> ");
    for (int i = 0; i < 300; i++) ag_buf_printf(&text, NULL, "b");
    struct token_list list = {0};
    n = 0;
    for (enum ag_status status = AG_E_MEMORY; status != AG_OK; n++) {
        struct ag_error err = AG_ERROR_INIT;
        ag_arena_fail_after(n);
        status = tokenizer_encode(&list, t, text.data, text.size, true, NULL, &err);
        ag_arena_fail_after(-1);
        if (status != AG_OK && (status != AG_E_MEMORY || list.n != 0)) fail_msg("allocation %d: %s", (int)n, err.text);
        token_list_free(&list);
    }
    assert_true(n > 5);
    ag_buf_free(&text);
    tokenizer_close(t);
}

/* Mutations of valid files through the fuzz target, which aborts where a promise is broken. */
static void mutate(const char *path, uint8_t what, int rounds) {
    struct ag_error err = AG_ERROR_INIT;
    struct ag_arena *arena = ag_arena_new("test");
    const char *text;
    size_t n;
    assert_ok(ag_file_text(&text, &n, path, 1 << 20, arena, &err), &err);
    uint8_t *copy = test_malloc(n + 1);
    uint64_t state = test_seed() * 2 + 1;
    for (int round = 0; round < rounds; round++) {
        copy[0] = what;
        memcpy(copy + 1, text, n);
        size_t length = n;
        for (int edits = 1 + round % 4; edits > 0; edits--) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            size_t at = 1 + (size_t)(state >> 33) % length;
            static const char bytes[] = "\"{}[],:0123456789-ab \\\n\x80\xff";
            if (round % 5 == 0)
                length = at; /* cut */
            else if (round % 5 == 1)
                memmove(copy + at, copy + at + 1, length - at); /* one byte less */
            else
                copy[at] = round % 5 == 2 ? (uint8_t)(state >> 20) : (uint8_t)bytes[(state >> 20) % (sizeof bytes - 1)];
            if (length < 2) break;
        }
        fuzz_tokenizer_input(copy, length + 1);
    }
    test_free(copy);
    ag_arena_free(arena);
}

static void test_mutations(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/model.gguf", test_folder("tokenizer"));
    write_as_gguf(path, "tests/golden/tokenizers/llama.json", "llama-bpe");
    mutate("tests/golden/tokenizers/flags.json", 0, 300);
    mutate(path, 1, 300);
    mutate("data/sample/prompts.jsonl", 2, 20);
    mutate("tests/golden/tokenizer_corpus.py", 3, 60);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_gguf_same),    cmocka_unit_test(test_gguf_bos),    cmocka_unit_test(test_gguf_refused),
    cmocka_unit_test(test_json_refused), cmocka_unit_test(test_json_broken), cmocka_unit_test(test_out_of_memory),
    cmocka_unit_test(test_mutations),
};
TEST_GROUP(tokenizer_files, "tokenizers from GGUF, files that are refused, out of memory, mutations", tests)
