/* tests/test_prompts.c: prompt files, roles, values and the queries that retrieve; bad files. */
#include "tests/test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "probe/prompts.h"

static const char *write_file(const char *name, const char *text, size_t n) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_folder("prompts"), name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static struct prompts *open_text(const char *text) {
    struct ag_error err = AG_ERROR_INIT;
    struct prompts *prompts;
    assert_ok(prompts_open(&prompts, write_file("prompts.jsonl", text, strlen(text)), &err), &err);
    return prompts;
}

static struct tokenizer *open_tokenizer(const char *name) {
    struct ag_error err = AG_ERROR_INIT;
    struct tokenizer *t;
    assert_ok(tokenizer_open_path(&t, test_path("tests/golden/tokenizers/%s.json", name), &err), &err);
    return t;
}

static struct prompt_tokens *encode(const struct prompts *prompts, const struct tokenizer *t) {
    struct ag_error err = AG_ERROR_INIT;
    struct prompt_tokens *tokens;
    assert_ok(prompts_encode(&tokens, prompts, t, true, &err), &err);
    return tokens;
}

/* Bytes [begin, end) of the texts of all tokens of prompt p with this role (or value bit), one after the other. */
static const char *bytes_of(const struct ag_tokens *t, int64_t p, int role, int value) {
    static char out[4][4096];
    static int turn;
    char *at = out[turn = (turn + 1) % 4];
    char whole[4096];
    snprintf(whole, sizeof whole, "%s%s", t->text[p], t->answer[p] != NULL ? t->answer[p] : "");
    for (int64_t i = t->offsets[p]; i < t->offsets[p + 1]; i++) {
        if (role >= 0 ? t->role[i] != role : (t->value[i] & value) == 0) continue;
        memcpy(at, whole + t->begin[i], (size_t)(t->end[i] - t->begin[i]));
        at += t->end[i] - t->begin[i];
    }
    *at = '\0';
    return out[turn];
}

#define A                                                                                                              \
    "{\"id\":\"a\",\"twin\":\"b\",\"text\":\"The sea is blue. The code is 12. The sky is red. What is the code?\","
#define B                                                                                                              \
    "{\"id\":\"b\",\"twin\":\"a\",\"text\":\"The sea is blue. The code is 34. The sky is red. What is the code?\","
#define SPANS                                                                                                          \
    "\"spans\":[{\"start\":17,\"end\":32,\"role\":\"needle\"},{\"start\":49,\"end\":66,\"role\":\"question\"}],"

static void test_roles(void **state) {
    (void)state;
    struct prompts *prompts = open_text(A SPANS "\"answer\":\" 12\"}\n\n" B SPANS "\"answer\":\" 34\"}\r\n");
    assert_int_equal(prompts->P, 2);
    assert_int_equal(prompts->data[0].twin_index, 1);
    assert_int_equal(prompts->data[1].line, 3);
    struct tokenizer *t = open_tokenizer("smollm");
    struct prompt_tokens *tokens = encode(prompts, t);
    const struct ag_tokens *k = &tokens->tokens;
    assert_int_equal(k->offsets[2], k->T);
    assert_string_equal(bytes_of(k, 0, AG_ROLE_NEEDLE, 0), "The code is 12.");
    assert_string_equal(bytes_of(k, 0, AG_ROLE_HAYSTACK, 0), "The sea is blue.  The sky is red. ");
    assert_string_equal(bytes_of(k, 0, AG_ROLE_QUESTION, 0), "What is the code?");
    assert_string_equal(bytes_of(k, 0, AG_ROLE_ANSWER, 0), " 12");
    assert_string_equal(bytes_of(k, 0, -1, AG_VALUE_NEEDLE), "12");
    assert_string_equal(bytes_of(k, 0, -1, AG_VALUE_ANSWER), "12");
    assert_string_equal(bytes_of(k, 1, -1, AG_VALUE_ANSWER), "34");
    assert_true(tokens->missing_value[0] == 0 && tokens->missing_value[1] == 0 && tokens->missing_value[2] == 0);
    int64_t queries[8];
    int64_t T = k->offsets[1];
    assert_int_equal(prompt_queries(queries, 8, k, 0), 2);
    /* answer tokens: blank, 1, 2; the blank is the one that predicts "1" */
    assert_true(queries[0] == T - 3 && queries[1] == T - 2);
    assert_int_equal(k->end[queries[0]] - k->begin[queries[0]], 1);
    assert_int_equal(prompt_queries(NULL, 0, k, 1), 2);
    prompt_tokens_free(tokens);
    tokenizer_close(t);
    prompts_close(prompts);
}

/* One prompt, given as the rest of its object behind "id" and "text". */
static struct prompts *open_one(const char *text, const char *rest) {
    char line[4096];
    snprintf(line, sizeof line, "{\"id\":\"p\",\"text\":\"%s\"%s}", text, rest);
    return open_text(line);
}

static void expect_roles(const char *tokenizer, const char *text, const char *rest,
                         const char *const by_role[AG_ROLE_COUNT]) {
    struct prompts *prompts = open_one(text, rest);
    struct tokenizer *t = open_tokenizer(tokenizer);
    struct prompt_tokens *tokens = encode(prompts, t);
    for (int role = 0; role < AG_ROLE_COUNT; role++)
        assert_string_equal(bytes_of(&tokens->tokens, 0, role, 0), by_role[role] != NULL ? by_role[role] : "");
    prompt_tokens_free(tokens);
    tokenizer_close(t);
    prompts_close(prompts);
}
#define ROLES(...) ((const char *const[AG_ROLE_COUNT]){__VA_ARGS__})

static void test_precedence(void **state) {
    (void)state;
    /* digits are single tokens under smollm: 0123456789 */
    expect_roles(
        "smollm", "0123456789",
        ",\"spans\":[{\"start\":1,\"end\":9,\"role\":\"haystack\"},{\"start\":2,\"end\":8,\"role\":\"question\"},"
        "{\"start\":4,\"end\":5,\"role\":\"needle\"},{\"start\":3,\"end\":7,\"role\":\"distractor\"}]",
        ROLES([AG_ROLE_SPECIAL] = "09", [AG_ROLE_HAYSTACK] = "18", [AG_ROLE_QUESTION] = "27",
              [AG_ROLE_DISTRACTOR] = "356", [AG_ROLE_NEEDLE] = "4"));
    /* no haystack span: the rest is haystack; template text is weaker than any other span */
    expect_roles("smollm", "0123456789",
                 ",\"spans\":[{\"start\":0,\"end\":4,\"role\":\"special\"},{\"start\":3,\"end\":6,\"role\":"
                 "\"question\"}],\"twin\":null",
                 ROLES([AG_ROLE_SPECIAL] = "012", [AG_ROLE_QUESTION] = "345", [AG_ROLE_HAYSTACK] = "6789"));
    expect_roles("smollm", "0123456789", "", ROLES([AG_ROLE_HAYSTACK] = "0123456789"));
    /* special strings inside a span stay special, added tokens that are not special do not; a token is one as a whole
     */
    expect_roles(
        "smollm", "12<|im_end|>34<tool>56",
        ",\"spans\":[{\"start\":0,\"end\":22,\"role\":\"needle\"}],\"answer\":\"7<|im_end|>\"",
        ROLES([AG_ROLE_SPECIAL] = "<|im_end|>", [AG_ROLE_NEEDLE] = "1234<tool>56", [AG_ROLE_ANSWER] = "7<|im_end|>"));
    expect_roles("smollm", "1 the weather", ",\"spans\":[{\"start\":7,\"end\":8,\"role\":\"needle\"}]",
                 ROLES([AG_ROLE_HAYSTACK] = "1 the", [AG_ROLE_NEEDLE] = " weather"));
    /* decomposed accents under NFC: spans count bytes of the text as it is */
    expect_roles("qwen2", "1e\\u03012e\\u03013", ",\"spans\":[{\"start\":4,\"end\":8,\"role\":\"needle\"}]",
                 ROLES([AG_ROLE_HAYSTACK] = "1e\xcc\x81"
                                            "3",
                       [AG_ROLE_NEEDLE] = "2e\xcc\x81"));
    /* a character that NFC takes apart, over six tokens of which some have no byte of the text: all belong to its span
     */
    struct prompts *prompts =
        open_one("1\\u09dc2", ",\"answer\":\"3<|im_end|>\",\"spans\":[{\"start\":1,\"end\":4,\"role\":\"needle\"}]");
    struct tokenizer *t = open_tokenizer("qwen2");
    struct prompt_tokens *tokens = encode(prompts, t);
    const struct ag_tokens *k = &tokens->tokens;
    assert_int_equal(k->T, 10);
    for (int64_t i = 0; i < 10; i++)
        assert_int_equal(k->role[i], i == 0 || i == 7 ? AG_ROLE_HAYSTACK : i < 7 ? AG_ROLE_NEEDLE : AG_ROLE_ANSWER);
    assert_int_equal(k->begin[1], k->end[1]);
    assert_true(k->value[8] == AG_VALUE_ANSWER && k->value[9] == 0); /* a special string is no value */
    prompt_tokens_free(tokens);
    prompts_close(prompts);
    tokenizer_close(t);
    /* BOS is special */
    prompts = open_one("<|begin_of_text|>12", ",\"answer\":\" 3\"");
    t = open_tokenizer("llama");
    tokens = encode(prompts, t);
    assert_true(tokens->double_bos == 1 && tokens->tokens.role[0] == AG_ROLE_SPECIAL && tokens->tokens.end[0] == 17);
    prompt_tokens_free(tokens);
    prompts_close(prompts);
    prompts = open_one("12", ",\"answer\":\" 3\"");
    tokens = encode(prompts, t);
    assert_true(tokens->double_bos == 0 && tokens->tokens.role[0] == AG_ROLE_SPECIAL && tokens->tokens.end[0] == 0);
    assert_string_equal(bytes_of(&tokens->tokens, 0, AG_ROLE_HAYSTACK, 0), "12");
    prompt_tokens_free(tokens);
    prompts_close(prompts);
    tokenizer_close(t);
}

/* Roles by the definition, token by token, on random spans. */
static void test_roles_random(void **state) {
    (void)state;
    static const char text[] = "The weather was e\xcc\x81t\xc3\xa9 12 <|im_end|> \xe6\x97\xa5\xe6\x9c\xac 345 of the "
                               "sea; and \xf0\x9f\x98\x80 more 6789.";
    static const int order[] = {AG_ROLE_NEEDLE, AG_ROLE_DISTRACTOR, AG_ROLE_QUESTION, AG_ROLE_HAYSTACK,
                                AG_ROLE_SPECIAL};
    static const char *const names[] = {"smollm", "qwen2", "qwen35", "gpt2"};
    int64_t n = (int64_t)sizeof text - 1;
    uint64_t s = test_seed() * 2 + 1;
    for (int round = 0; round < 200; round++) {
        struct prompt_span spans[6] = {0};
        int64_t n_spans = round % 7;
        for (int64_t k = 0; k < n_spans; k++) {
            int64_t cut[2];
            for (int c = 0; c < 2; c++) {
                s = s * 6364136223846793005u + 1442695040888963407u;
                cut[c] = (int64_t)(s >> 33) % (n + 1);
                while (cut[c] < n && ((unsigned char)text[cut[c]] & 0xc0) == 0x80) cut[c]++;
            }
            if (cut[0] == cut[1]) cut[0] = 0, cut[1] = n;
            spans[k] = (struct prompt_span){cut[0] < cut[1] ? cut[0] : cut[1], cut[0] < cut[1] ? cut[1] : cut[0],
                                            (enum ag_role)order[(s >> 20) % 5], -1, -1};
        }
        struct prompt prompt = {
            .id = "x", .text = text, .text_bytes = n, .spans = spans, .n_spans = n_spans, .twin_index = -1};
        struct prompts prompts = {.path = "x", .data = &prompt, .P = 1};
        struct tokenizer *t = open_tokenizer(names[round % 4]);
        struct prompt_tokens *tokens = encode(&prompts, t);
        struct token_list list = {0};
        struct ag_error err = AG_ERROR_INIT;
        assert_ok(tokenizer_encode(&list, t, text, (size_t)n, true, NULL, &err), &err);
        assert_int_equal(list.n, tokens->tokens.T);
        bool haystack = false;
        for (int64_t k = 0; k < n_spans; k++) haystack = haystack || spans[k].role == AG_ROLE_HAYSTACK;
        for (int64_t i = 0; i < list.n; i++) {
            int role = haystack ? AG_ROLE_SPECIAL : AG_ROLE_HAYSTACK;
            for (int r = 4; r >= 0; r--)
                for (int64_t k = 0; k < n_spans; k++)
                    if ((int)spans[k].role == order[r] && list.data[i].begin < spans[k].end &&
                        list.data[i].end > spans[k].begin)
                        role = order[r];
            if (list.data[i].special) role = AG_ROLE_SPECIAL;
            assert_int_equal(tokens->tokens.role[i], role);
        }
        token_list_free(&list);
        prompt_tokens_free(tokens);
        tokenizer_close(t);
    }
}

static void test_values(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer("smollm");
    /* given; last occurrence; the twin's answer in distractors; not found; an answer without letter or digit */
    static const char file[] =
        "{\"id\":\"a\",\"twin\":\"b\",\"text\":\"12 is 12 or 7. x 34 y 12.\",\"answer\":\" 12\",\"spans\":["
        "{\"start\":0,\"end\":13,\"role\":\"needle\"},{\"start\":15,\"end\":25,\"role\":\"distractor\"}]}\n"
        "{\"id\":\"b\",\"twin\":\"a\",\"text\":\"12 is 12 or 7. x 34 y 12.\",\"answer\":\"\\u00a0 34\\n\",\"spans\":["
        "{\"start\":0,\"end\":13,\"role\":\"needle\",\"value\":[6,8]},{\"start\":15,\"end\":25,\"role\":\"distractor\","
        "\"value\":[15,19]}]}\n"
        "{\"id\":\"c\",\"text\":\"12 is 12 or 7. x 34 y 12.\",\"answer\":\" ...\",\"spans\":["
        "{\"start\":0,\"end\":13,\"role\":\"needle\"},{\"start\":15,\"end\":25,\"role\":\"distractor\"}]}\n"
        "{\"id\":\"d\",\"text\":\"12 is 12\",\"spans\":[{\"start\":0,\"end\":8,\"role\":\"needle\"}]}";
    struct prompts *prompts = open_text(file);
    struct prompt_tokens *tokens = encode(prompts, t);
    const struct ag_tokens *k = &tokens->tokens;
    int64_t i = k->offsets[0], queries[4];
    assert_string_equal(bytes_of(k, 0, -1, AG_VALUE_NEEDLE), "12");
    while ((k->value[i] & AG_VALUE_NEEDLE) == 0) i++;
    assert_int_equal(k->begin[i], 6); /* the last of the two */
    assert_string_equal(bytes_of(k, 0, -1, AG_VALUE_DISTRACTOR), "34");
    assert_string_equal(bytes_of(k, 1, -1, AG_VALUE_NEEDLE), "12");
    assert_string_equal(bytes_of(k, 1, -1, AG_VALUE_DISTRACTOR), "x 34");
    assert_string_equal(bytes_of(k, 1, -1, AG_VALUE_ANSWER), "34");
    assert_string_equal(bytes_of(k, 2, -1, AG_VALUE_NEEDLE | AG_VALUE_DISTRACTOR | AG_VALUE_ANSWER), "");
    assert_string_equal(bytes_of(k, 3, -1, AG_VALUE_NEEDLE), "");
    assert_int_equal(tokens->missing_value[0], 2);
    assert_int_equal(tokens->missing_value[1], 1);
    assert_int_equal(tokens->missing_value[2], 1);
    assert_true(prompt_queries(queries, 4, k, 2) == 0 && prompt_queries(queries, 4, k, 3) == 0);
    assert_true(k->answer[3] == NULL && k->twin[3] == -1 && k->twin[0] == 1 && k->twin[1] == 0);
    prompt_tokens_free(tokens);
    prompts_close(prompts);
    /* a value of characters that are split into bytes: every part of a letter counts */
    prompts = open_one("code", ",\"answer\":\" \\uD55C\\uAE00\"");
    tokens = encode(prompts, t);
    assert_string_equal(bytes_of(&tokens->tokens, 0, -1, AG_VALUE_ANSWER), "\xed\x95\x9c\xea\xb8\x80");
    prompt_tokens_free(tokens);
    prompts_close(prompts);
    tokenizer_close(t);
}

/* The prompts of the sample under the sample's tokenizer: 16 pairs, all values found, the answer in the needle. */
static void test_sample(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct prompts *prompts;
    struct tokenizer *t;
    assert_ok(prompts_open(&prompts, "data/sample/prompts.jsonl", &err), &err);
    assert_ok(tokenizer_open_path(&t, "data/sample/softmax", &err), &err);
    struct prompt_tokens *tokens = encode(prompts, t);
    const struct ag_tokens *k = &tokens->tokens;
    assert_int_equal(k->P, 32);
    assert_true(tokens->missing_value[0] == 0 && tokens->missing_value[1] == 0 && tokens->missing_value[2] == 0);
    for (int64_t p = 0; p < k->P; p++) {
        assert_string_equal(bytes_of(k, p, -1, AG_VALUE_NEEDLE), k->answer[p] + 1);
        assert_string_equal(bytes_of(k, p, AG_ROLE_ANSWER, 0), k->answer[p]);
        assert_int_equal(strlen(bytes_of(k, p, -1, AG_VALUE_DISTRACTOR)) % strlen(k->answer[p] + 1), 0);
        int64_t q[8], n = prompt_queries(q, 8, k, p);
        assert_int_equal(n, 4);                                          /* four digits */
        assert_int_equal(k->role[k->offsets[p] + q[0]], AG_ROLE_ANSWER); /* the blank */
        assert_int_equal(k->twin[k->twin[p]], p);
    }
    prompt_tokens_free(tokens);
    tokenizer_close(t);
    prompts_close(prompts);
}

static void test_answer_changes_text(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer("gpt2");
    struct prompts *prompts =
        open_text("{\"id\":\"x\",\"text\":\"fine\"}\n{\"id\":\"y\",\"text\":\"the wea\",\"answer\":\"ther\"}");
    struct prompt_tokens *tokens;
    struct ag_error err = AG_ERROR_INIT;
    test_refused(prompts_encode(&tokens, prompts, t, true, &err), AG_E_FORMAT, &err, "prompts.jsonl", "line 2",
                 "answer", "\"ther\"", "byte 3", NULL);
    assert_null(tokens);
    prompts_close(prompts);
    tokenizer_close(t);
}

/* A tokenizer that appends EOS: dropped where an answer follows the text, kept where none does. */
static void test_appended_eos(void **state) {
    (void)state;
    json_error_t problem;
    json_t *root = json_load_file("tests/golden/tokenizers/smollm.json", 0, &problem), *added;
    assert_non_null(root);
    size_t i;
    json_int_t eos = -1;
    json_array_foreach(json_object_get(root, "added_tokens"), i,
                       added) if (strcmp(json_string_value(json_object_get(added, "content")), "<|endoftext|>") == 0)
        eos = json_integer_value(json_object_get(added, "id"));
    json_object_set_new(root, "post_processor",
                        json_pack("{s:s, s:[{s:{s:s}}, {s:{s:s}}], s:{s:{s:[I]}}}", "type", "TemplateProcessing",
                                  "single", "Sequence", "id", "A", "SpecialToken", "id", "E", "special_tokens", "E",
                                  "ids", eos));
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", test_folder("eos"));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    struct ag_error err = AG_ERROR_INIT;
    struct tokenizer *t;
    assert_ok(tokenizer_open_path(&t, path, &err), &err);
    assert_true(tokenizer_info(t)->adds_eos && tokenizer_info(t)->eos == eos);
    struct prompts *prompts =
        open_text("{\"id\":\"x\",\"text\":\"12\",\"answer\":\"3\"}\n{\"id\":\"y\",\"text\":\"12\"}");
    struct prompt_tokens *tokens = encode(prompts, t);
    const struct ag_tokens *k = &tokens->tokens;
    assert_true(k->offsets[1] == 3 && k->T == 6 && k->id[2] != eos && k->id[5] == eos);
    assert_true(k->role[2] == AG_ROLE_ANSWER && k->role[5] == AG_ROLE_SPECIAL);
    prompt_tokens_free(tokens);
    prompts_close(prompts);
    tokenizer_close(t);
}

static void test_file_forms(void **state) {
    (void)state;
    static const char *const same[] = {
        "{\"id\":\"a\",\"text\":\"x\"}\n{\"id\":\"b\",\"text\":\"y\"}\n",
        "{\"id\":\"a\",\"text\":\"x\"}\r\n{\"id\":\"b\",\"text\":\"y\"}\r\n",
        "\xef\xbb\xbf{\"id\":\"a\",\"text\":\"x\"}\n\n "
        "\t\r\n{\"id\":\"b\",\"text\":\"y\",\"spans\":null,\"twin\":null,\"answer\":null}",
        "{\"text\":\"x\",\"spans\":[],\"id\":\"a\"}\n  {\"id\":\"\\u0062\",\"text\":\"y\"}  ",
    };
    for (size_t k = 0; k < sizeof same / sizeof same[0]; k++) {
        struct prompts *prompts = open_text(same[k]);
        assert_int_equal(prompts->P, 2);
        assert_string_equal(prompts->data[1].id, "b");
        assert_string_equal(prompts->data[1].text, "y");
        assert_int_equal(strlen(prompts->sha256), 64);
        prompts_close(prompts);
    }
}

static void test_refusals(void **state) {
    (void)state;
#define OK_LINE "{\"id\":\"a\",\"text\":\"x\"}\n"
#define SPAN(fields) "{\"id\":\"a\",\"text\":\"ab\\u00e9cd\",\"spans\":[{" fields "}]}"
    static const struct {
        const char *text, *pieces[3];
    } cases[] = {
        {"", {"holds no prompt"}},
        {"\n\n", {"holds no prompt"}},
        {"\xff\xfe{", {"line 1", "UTF-16"}},
        {OK_LINE "{\"id\":", {"line 2", "JSON"}},
        {OK_LINE "[1]", {"line 2", "is a list"}},
        {OK_LINE "7", {"line 2", "is an integer"}},
        {"{\"id\":\"a\",\"text\":\"\xff\"}", {"line 1", "byte 18", "UTF-8"}},
        {"{\"id\":\"a\",\"text\":\"x\"} {}", {"line 1", "JSON"}},
        {"{\"id\":\"a\",\"id\":\"b\",\"text\":\"x\"}", {"line 1", "duplicate"}},
        {"{\"text\":\"x\"}", {"line 1: id: missing"}},
        {"{\"id\":\"a\"}", {"line 1: text: missing"}},
        {"{\"id\":1,\"text\":\"x\"}", {"id: is an integer"}},
        {"{\"id\":\"\",\"text\":\"x\"}", {"id: is empty"}},
        {"{\"id\":\"a\",\"text\":\"\"}", {"text: is empty"}},
        {"{\"id\":\"a\",\"text\":null}", {"text: is null"}},
        {"{\"id\":\"a\",\"text\":\"x\\u0000y\"}", {"text", "NUL", "byte 1"}},
        {"{\"id\":\"a\",\"text\":\"x\",\"answer\":\"\"}", {"answer: is empty"}},
        {"{\"id\":\"a\",\"text\":\"x\",\"answer\":[]}", {"answer: is a list"}},
        {"{\"id\":\"a\",\"text\":\"x\",\"anwser\":\"y\"}", {"line 1", "unknown key \"anwser\""}},
        {OK_LINE OK_LINE, {"line 2", "\"a\"", "line 1"}},
        {"{\"id\":\"a\",\"text\":\"x\",\"twin\":\"a\"}", {"twin", "itself"}},
        {"{\"id\":\"a\",\"text\":\"x\",\"twin\":\"z\"}", {"twin", "no prompt \"z\""}},
        {"{\"id\":\"a\",\"text\":\"x\",\"twin\":\"b\"}\n{\"id\":\"b\",\"text\":\"x\"}",
         {"line 1", "twin", "does not name"}},
        {"{\"id\":\"a\",\"text\":\"x\",\"twin\":\"b\"}\n{\"id\":\"b\",\"text\":\"x\",\"twin\":\"c\"}\n{\"id\":\"c\","
         "\"text\":\"x\",\"twin\":\"b\"}",
         {"line 1", "twin", "does not name"}},
        {"{\"id\":\"a\",\"text\":\"x\",\"spans\":{}}", {"spans: is an object"}},
        {"{\"id\":\"a\",\"text\":\"x\",\"spans\":[3]}", {"spans[0]: is an integer"}},
        {SPAN("\"start\":0,\"end\":2"), {"spans[0].role: missing"}},
        {SPAN("\"end\":2,\"role\":\"needle\""), {"spans[0].start: missing"}},
        {SPAN("\"start\":0.5,\"end\":2,\"role\":\"needle\""), {"spans[0].start: is a real"}},
        {SPAN("\"start\":-1,\"end\":2,\"role\":\"needle\""), {"spans[0].start: is -1", "6 bytes"}},
        {SPAN("\"start\":0,\"end\":7,\"role\":\"needle\""), {"spans[0].end: is 7", "6 bytes"}},
        {SPAN("\"start\":0,\"end\":9223372036854775807,\"role\":\"needle\""), {"spans[0].end", "6 bytes"}},
        {SPAN("\"start\":3,\"end\":6,\"role\":\"needle\""), {"spans[0].start: 3 is inside a character"}},
        {SPAN("\"start\":2,\"end\":2,\"role\":\"needle\""), {"spans[0]", "from 2 to 2"}},
        {SPAN("\"start\":4,\"end\":2,\"role\":\"needle\""), {"spans[0]", "from 4 to 2"}},
        {SPAN("\"start\":0,\"end\":2,\"role\":\"answer\""), {"spans[0].role: is \"answer\""}},
        {SPAN("\"start\":0,\"end\":2,\"role\":\"Needle\""), {"spans[0].role: is \"Needle\""}},
        {SPAN("\"start\":0,\"end\":2,\"role\":\"needle\\u0000\""), {"spans[0].role"}},
        {SPAN("\"start\":0,\"end\":2,\"role\":1"), {"spans[0].role: is an integer"}},
        {SPAN("\"start\":0,\"end\":2,\"role\":\"needle\",\"val\":[0,1]"), {"spans[0]", "unknown key \"val\""}},
        {SPAN("\"start\":0,\"end\":2,\"role\":\"needle\",\"value\":[0]"), {"spans[0].value: is no pair"}},
        {SPAN("\"start\":0,\"end\":2,\"role\":\"needle\",\"value\":3"), {"spans[0].value: is an integer"}},
        {SPAN("\"start\":0,\"end\":2,\"role\":\"needle\",\"value\":[0,4]"),
         {"spans[0].value", "from 0 to 4", "inside its span"}},
        {SPAN("\"start\":1,\"end\":4,\"role\":\"needle\",\"value\":[0,2]"), {"spans[0].value", "inside its span"}},
        {SPAN("\"start\":0,\"end\":4,\"role\":\"needle\",\"value\":[2,3]"), {"spans[0].value", "inside a character"}},
        {SPAN("\"start\":0,\"end\":4,\"role\":\"question\",\"value\":[0,1]"), {"spans[0].value", "another role"}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct ag_error err = AG_ERROR_INIT;
        struct prompts *prompts;
        enum ag_status status =
            prompts_open(&prompts, write_file("prompts.jsonl", cases[k].text, strlen(cases[k].text)), &err);
        test_refused(status, AG_E_FORMAT, &err, "prompts.jsonl", cases[k].pieces[0], cases[k].pieces[1],
                     cases[k].pieces[2], NULL);
        assert_null(prompts);
    }
    struct ag_error err = AG_ERROR_INIT;
    struct prompts *prompts;
    const char *path = write_file("long.jsonl", "x", 1);
    assert_int_equal(truncate(path, 64 * 1024 * 1024 + 1), 0); /* one line of 64 MiB and a byte */
    test_refused(prompts_open(&prompts, path, &err), AG_E_FORMAT, &err, "long.jsonl", "line 1", "64 MiB", NULL);
    err = (struct ag_error)AG_ERROR_INIT;
    assert_true(prompts_open(&prompts, "build/test/no-such.jsonl", &err) != AG_OK &&
                strstr(err.text, "no-such.jsonl") != NULL);
    err = (struct ag_error)AG_ERROR_INIT;
    assert_true(prompts_open(&prompts, "build/test", &err) != AG_OK && strstr(err.text, "build/test") != NULL);
}

static void test_out_of_memory(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer("qwen2");
    const char *path = write_file("prompts.jsonl", A SPANS "\"answer\":\" 12\"}\n" B SPANS "\"answer\":\" 34\"}\n",
                                  sizeof(A SPANS "\"answer\":\" 12\"}\n" B SPANS "\"answer\":\" 34\"}\n") - 1);
    struct prompts *prompts = NULL;
    struct prompt_tokens *tokens = NULL;
    int64_t n = 0;
    for (enum ag_status status = AG_E_MEMORY; status != AG_OK; n++) {
        struct ag_error err = AG_ERROR_INIT;
        ag_arena_fail_after(n);
        status = prompts_open(&prompts, path, &err);
        ag_arena_fail_after(-1);
        if (status != AG_OK && (status != AG_E_MEMORY || prompts != NULL))
            fail_msg("allocation %d: %s", (int)n, err.text);
    }
    assert_true(n > 8);
    n = 0;
    for (enum ag_status status = AG_E_MEMORY; status != AG_OK; n++) {
        struct ag_error err = AG_ERROR_INIT;
        ag_arena_fail_after(n);
        status = prompts_encode(&tokens, prompts, t, true, &err);
        ag_arena_fail_after(-1);
        if (status != AG_OK && (status != AG_E_MEMORY || tokens != NULL))
            fail_msg("allocation %d: %s", (int)n, err.text);
    }
    assert_true(n > 8);
    prompt_tokens_free(tokens);
    prompts_close(prompts);
    tokenizer_close(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_roles),         cmocka_unit_test(test_precedence), cmocka_unit_test(test_roles_random),
    cmocka_unit_test(test_values),        cmocka_unit_test(test_sample),     cmocka_unit_test(test_answer_changes_text),
    cmocka_unit_test(test_appended_eos),  cmocka_unit_test(test_file_forms), cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_out_of_memory),
};
TEST_GROUP(prompts, "prompt files, roles, values, retrieving queries, files that are refused", tests)
