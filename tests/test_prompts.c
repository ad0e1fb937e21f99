/* tests/test_prompts.c: prompt files, roles, values and the queries that retrieve; bad files. */
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

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

#define A "{\"id\":\"a\",\"twin\":\"b\",\"text\":\"The sea is blue. The code is 12. The sky is red. What is the code?\","
#define B "{\"id\":\"b\",\"twin\":\"a\",\"text\":\"The sea is blue. The code is 34. The sky is red. What is the code?\","
#define SPANS \
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

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_roles)};
TEST_GROUP(prompts, "prompt files, roles, values", tests)
