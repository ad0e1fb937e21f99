/* tests/test_tokenizer.c: the tokenizer against the reference library's golden ids and spans
 * (tests/golden/make_tokenizers.py), properties on random text, and bad files. */
#include "tests/test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "probe/pretokenize.h"
#include "probe/tokenizer_parts.h"
#include "probe/unicode.h"

static const char *const names[] = {"gpt2", "smollm", "qwen2", "llama", "qwen35", "flags"};
#define N_NAMES 6

static json_t *golden(const char *name) {
    json_error_t problem;
    json_t *root = json_load_file(test_path("tests/golden/tokenizers/%s", name), JSON_ALLOW_NUL, &problem);
    if (root == NULL) fail_msg("%s: %s", name, problem.text);
    return root;
}

static struct tokenizer *open_golden(const char *name) {
    struct ag_error err = AG_ERROR_INIT;
    struct tokenizer *t;
    assert_ok(tokenizer_open_path(&t, test_path("tests/golden/tokenizers/%s.json", name), &err), &err);
    return t;
}

/* Spans start at 0, follow each other and end at n. */
static void check_cover(const struct token_list *list, int64_t n) {
    int64_t at = 0;
    for (int64_t i = 0; i < list->n; i++) {
        assert_int_equal(list->data[i].begin, at);
        assert_true(list->data[i].end >= at);
        at = list->data[i].end;
    }
    assert_int_equal(at, n);
}

static void check_tokens(const struct token_list *list, const json_t *expected, const char *name, size_t number) {
    const json_t *ids = json_array_get(expected, 0), *bytes = json_array_get(expected, 1);
    bool same = list->n == (int64_t)json_array_size(ids);
    for (int64_t i = 0; i < list->n && same; i++)
        same = json_integer_value(json_array_get(ids, (size_t)i)) == list->data[i].id &&
               json_integer_value(json_array_get(bytes, (size_t)i)) == list->data[i].end - list->data[i].begin;
    if (same) return;
    struct ag_buf got = {0};
    for (int64_t i = 0; i < list->n; i++)
        ag_buf_printf(&got, NULL, " %d[%lld]", list->data[i].id, (long long)(list->data[i].end - list->data[i].begin));
    fail_msg("%s, text %zu: got%s", name, number, got.data != NULL ? got.data : " nothing");
}

static void check_corpus(const struct tokenizer *t, const char *name, const json_t *texts, const json_t *expected) {
    struct token_list list = {0};
    assert_int_equal(json_array_size(texts), json_array_size(expected));
    for (size_t k = 0; k < json_array_size(texts); k++) {
        const json_t *text = json_array_get(texts, k);
        struct ag_error err = AG_ERROR_INIT;
        list.n = 0;
        enum ag_status status =
            tokenizer_encode(&list, t, json_string_value(text), json_string_length(text), true, NULL, &err);
        if (json_is_null(json_array_get(expected, k))) { /* the reference drops a byte */
            test_refused(status, AG_E_UNSUPPORTED, &err, "no token for the byte", NULL);
            continue;
        }
        assert_ok(status, &err);
        check_cover(&list, (int64_t)json_string_length(text));
        check_tokens(&list, json_array_get(expected, k), name, k);
    }
    token_list_free(&list);
}

static uint64_t lcg(uint64_t state) { return state * 6364136223846793005u + 1442695040888963407u; }

/* The generator of make_tokenizers.py; room for 40 characters. */
static int64_t random_text(char out[160], const json_t *pool, uint64_t number) {
    uint64_t state = lcg(number + 1), length = 1 + (state >> 33) % 40;
    int64_t n = 0;
    for (uint64_t i = 0; i < length; i++) {
        state = lcg(state);
        n += uni_encode(out + n, (int32_t)json_integer_value(
                                     json_array_get(pool, (size_t)((state >> 33) % json_array_size(pool)))));
    }
    return n;
}

static uint64_t fnv(uint64_t h, uint64_t word) {
    for (int b = 0; b < 8; b++, word >>= 8) h = (h ^ (word & 255)) * 0x100000001b3u;
    return h;
}

static void check_random(const struct tokenizer *t, const char *name, const json_t *root, const json_t *hashes) {
    struct token_list list = {0};
    char text[160], hex[17];
    for (size_t k = 0; k < json_array_size(hashes); k++) {
        struct ag_error err = AG_ERROR_INIT;
        int64_t n = random_text(text, json_object_get(root, "pool"), k);
        list.n = 0;
        enum ag_status status = tokenizer_encode(&list, t, text, (size_t)n, true, NULL, &err);
        if (json_is_null(json_array_get(hashes, k))) {
            test_refused(status, AG_E_UNSUPPORTED, &err, "no token for the byte", NULL);
            continue;
        }
        assert_ok(status, &err);
        check_cover(&list, n);
        uint64_t h = 0xcbf29ce484222325u;
        for (int64_t i = 0; i < list.n; i++) h = fnv(fnv(h, (uint64_t)list.data[i].id), (uint64_t)list.data[i].end);
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
        if (strcmp(hex, json_string_value(json_array_get(hashes, k))) != 0)
            fail_msg("%s: random text %zu has other ids or spans than the reference's", name, k);
    }
    token_list_free(&list);
}

static void test_golden(void **state) {
    (void)state;
    json_t *expected = golden("expected.json"), *random = golden("random.json");
    for (int k = 0; k < N_NAMES; k++) {
        struct tokenizer *t = open_golden(names[k]);
        const json_t *texts = json_object_get(expected, strcmp(names[k], "flags") == 0 ? "flag_texts" : "texts");
        check_corpus(t, names[k], texts, json_object_get(expected, names[k]));
        assert_true(json_array_size(json_object_get(random, names[k])) == 300);
        check_random(t, names[k], random, json_object_get(random, names[k]));
        tokenizer_close(t);
    }
    json_decref(expected);
    json_decref(random);
}

static void test_info(void **state) {
    (void)state;
    static const char *const patterns[] = {"gpt-2", "smollm", "qwen2", "llama-bpe", "qwen35", "gpt-2"};
    for (int k = 0; k < N_NAMES; k++) {
        struct tokenizer *t = open_golden(names[k]);
        const struct tokenizer_info *info = tokenizer_info(t);
        assert_string_equal(info->pattern, patterns[k]);
        assert_string_equal(info->kind, "byte-level BPE");
        assert_string_equal(info->source, "tokenizer.json");
        assert_int_equal(info->nfc, k == 2 || k == 4 || k == 5);
        assert_int_equal(info->adds_bos, k == 3);
        assert_false(info->adds_eos);
        assert_int_equal(info->ignore_merges, k == 3);
        assert_int_equal(strlen(info->sha256), 64);
        assert_true(info->vocabulary > 300 && info->merges > 0 && info->added > 0);
        size_t n;
        assert_null(tokenizer_bytes(t, -1, &n));
        assert_null(tokenizer_bytes(t, (int32_t)info->vocabulary, &n));
        if (k == 3) {
            const char *bos = tokenizer_bytes(t, info->bos, &n);
            assert_int_equal(n, strlen("<|begin_of_text|>"));
            assert_memory_equal(bos, "<|begin_of_text|>", n);
        } else {
            assert_int_equal(info->bos, -1);
        }
        tokenizer_close(t);
    }
}

static int64_t encode(struct token_list *list, const struct tokenizer *t, const char *text, bool specials,
                      bool *twice) {
    struct ag_error err = AG_ERROR_INIT;
    list->n = 0;
    assert_ok(tokenizer_encode(list, t, text, strlen(text), specials, twice, &err), &err);
    return list->n;
}

static void test_bos(void **state) {
    (void)state;
    struct tokenizer *t = open_golden("llama");
    int32_t bos = tokenizer_info(t)->bos;
    struct token_list list = {0};
    bool twice = true;
    assert_int_equal(encode(&list, t, "", true, &twice), 1);
    assert_int_equal(list.data[0].id, bos);
    assert_true(list.data[0].special && list.data[0].begin == 0 && list.data[0].end == 0 && !twice);
    assert_int_equal(encode(&list, t, "", false, &twice), 0);
    encode(&list, t, "<|begin_of_text|>the", true, &twice);
    assert_true(twice && list.data[0].id == bos && list.data[0].special && list.data[0].end == 17);
    assert_true(list.n > 1 && list.data[1].id != bos && !list.data[1].special);
    /* A text of two has two, none is added; plain text has none, and the string is ordinary text. */
    encode(&list, t, "<|begin_of_text|><|begin_of_text|>the", true, &twice);
    assert_true(twice && list.data[0].id == bos && list.data[1].id == bos && list.data[2].id != bos);
    encode(&list, t, "<|begin_of_text|>the", false, &twice);
    assert_false(twice);
    for (int64_t i = 0; i < list.n; i++) assert_true(list.data[i].id != bos && !list.data[i].special);
    encode(&list, t, " <|begin_of_text|>", true, &twice);
    assert_true(!twice && list.n == 3);
    token_list_free(&list);
    tokenizer_close(t);
    /* plain: special strings are text, added tokens that are not special are still matched. */
    t = open_golden("smollm");
    int64_t special = encode(&list, t, "<tool><|im_end|>", true, NULL);
    assert_int_equal(special, 2);
    assert_true(!list.data[0].special && list.data[1].special);
    int64_t plain = encode(&list, t, "<tool><|im_end|>", false, NULL);
    assert_true(plain > 2 && list.data[0].end == 6);
    token_list_free(&list);
    tokenizer_close(t);
}

static void test_invalid_utf8(void **state) {
    (void)state;
    struct tokenizer *t = open_golden("gpt2");
    struct token_list list = {0};
    static const struct {
        const char *text, *byte;
    } bad[] = {
        {"\x80", "byte 0 "},          {"abcdefghij\xff", "byte 10 "},
        {"a\xc0\x80", "byte 1 "},     {"ab\xe0\x80\x80", "byte 2 "},
        {"\xed\xa0\x80", "byte 0 "},  {"x\xf4\x90\x80\x80", "byte 1 "},
        {"\xc3", "byte 0 "},          {"\xe2\x82", "byte 0 "},
        {"\xf0\x9f\x98", "byte 0 "},  {"\xf8\x88\x80\x80\x80", "byte 0 "},
        {"\xc3\xa9\xc3(", "byte 2 "}, {"\xf0\x8f\xbf\xbf", "byte 0 "},
    };
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        struct ag_error err = AG_ERROR_INIT;
        test_refused(tokenizer_encode(&list, t, bad[k].text, strlen(bad[k].text), true, NULL, &err), AG_E_FORMAT, &err,
                     bad[k].byte, "UTF-8", NULL);
        assert_int_equal(list.n, 0);
    }
    token_list_free(&list);
    tokenizer_close(t);
}

/* Concatenated token bytes give the text back under no normaliser; under NFC they give the NFC of it. */
static void test_round_trip(void **state) {
    (void)state;
    json_t *random = golden("random.json");
    struct ag_buf back = {0};
    struct ag_arena *arena = ag_arena_new("test");
    for (int k = 0; k < 5; k++) {
        struct tokenizer *t = open_golden(names[k]);
        struct token_list list = {0};
        for (uint64_t number = 0; number < 2000; number++) {
            char text[160];
            struct ag_error err = AG_ERROR_INIT;
            int64_t n = random_text(text, json_object_get(random, "pool"), test_seed() + number);
            list.n = 0;
            assert_ok(tokenizer_encode(&list, t, text, (size_t)n, false, NULL, &err), &err);
            check_cover(&list, n);
            back.size = 0;
            for (int64_t i = 0; i < list.n; i++) {
                size_t bytes;
                const char *token = tokenizer_bytes(t, list.data[i].id, &bytes);
                assert_non_null(token);
                assert_ok(ag_buf_add(&back, token, bytes, &err), &err);
            }
            struct uni_text normal = {text, n, NULL, 0};
            ag_arena_reset(arena);
            if (tokenizer_info(t)->nfc) assert_ok(uni_nfc(&normal, text, n, arena, &err), &err);
            assert_int_equal(back.size, normal.n);
            assert_memory_equal(back.data, normal.data, back.size);
        }
        token_list_free(&list);
        tokenizer_close(t);
    }
    ag_arena_free(arena);
    ag_buf_free(&back);
    json_decref(random);
}

/* Where the reference's pre-tokenizers cut, also where no merge would show it. */
static void test_pieces_golden(void **state) {
    (void)state;
    json_t *pieces = golden("pieces.json"), *expected = golden("expected.json"), *random = golden("random.json");
    const json_t *texts = json_object_get(expected, "texts");
    for (int k = 0; k < PATTERN_COUNT; k++) { /* names are in the order of the patterns */
        const json_t *both = json_object_get(pieces, names[k]), *corpus = json_array_get(both, 0),
                     *hashes = json_array_get(both, 1);
        assert_int_equal(json_array_size(corpus), json_array_size(texts));
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *ends = json_array_get(corpus, i);
            struct pieces p = {.pattern = (enum pattern)k,
                               .text = json_string_value(json_array_get(texts, i)),
                               .n = (int64_t)json_string_length(json_array_get(texts, i))};
            size_t count = 0;
            for (; pieces_next(&p); count++)
                if (json_integer_value(json_array_get(ends, count)) != p.end)
                    fail_msg("%s, text %zu: piece %zu ends at %d", names[k], i, count, (int)p.end);
            assert_int_equal(count, json_array_size(ends));
        }
        assert_int_equal(json_array_size(hashes), 300);
        for (size_t i = 0; i < 300; i++) {
            char text[160], hex[17];
            struct pieces p = {
                .pattern = (enum pattern)k, .text = text, .n = random_text(text, json_object_get(random, "pool"), i)};
            uint64_t h = 0xcbf29ce484222325u;
            while (pieces_next(&p)) h = fnv(fnv(h, 0), (uint64_t)p.end);
            snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
            if (strcmp(hex, json_string_value(json_array_get(hashes, i))) != 0)
                fail_msg("%s: random text %zu is cut elsewhere than by the reference", names[k], i);
        }
    }
    json_decref(pieces);
    json_decref(expected);
    json_decref(random);
}

/* Pieces follow each other without gaps, on any text and under any pattern. */
static void test_pieces(void **state) {
    (void)state;
    json_t *random = golden("random.json");
    for (uint64_t number = 0; number < 2000; number++)
        for (int p = 0; p < PATTERN_COUNT; p++) {
            char text[160];
            struct pieces pieces = {.pattern = (enum pattern)p, .text = text};
            pieces.n = random_text(text, json_object_get(random, "pool"), test_seed() + number);
            int64_t at = 0;
            while (pieces_next(&pieces)) {
                assert_true(pieces.begin == at && pieces.end > at && pieces.end <= pieces.n);
                assert_int_equal(uni_invalid(text + at, pieces.end - at), pieces.end - at);
                at = pieces.end;
            }
            assert_int_equal(at, pieces.n);
        }
    json_decref(random);
}

/* The rule itself, with no cleverness: the pair of lowest rank, leftmost, until none is left. */
struct rule {
    int32_t rank, id; /* rank -1: the pair has none */
};
#define MOST_IDS 800
static int64_t merge_naively(int32_t *ids, int64_t n, const struct rule *rules) {
    for (;;) {
        struct rule best = {INT32_MAX, -1};
        int64_t where = 0;
        for (int64_t i = 0; i + 1 < n; i++) {
            struct rule rule = rules[ids[i] * MOST_IDS + ids[i + 1]];
            if (rule.rank < 0 || rule.rank >= best.rank) continue;
            best = rule;
            where = i;
        }
        if (best.id < 0) return n;
        ids[where] = best.id;
        n--;
        for (int64_t i = where + 1; i < n; i++) ids[i] = ids[i + 1];
    }
}

/* Words of random length around the switch between scan and heap. */
static void test_merging(void **state) {
    (void)state;
    static const char *const bits[] = {"a", "e", "the", "th", "er",       "wea",     "in",
                                       "n", "s", "ing", "o",  "\xc3\xa9", "\xd0\xbe"};
    struct tokenizer *t = open_golden("gpt2");
    struct ag_arena *arena = ag_arena_new("test");
    uint64_t random = test_seed() * 2 + 1;
    struct rule *rules = test_malloc(sizeof *rules * MOST_IDS * MOST_IDS);
    memset(rules, 0xff, sizeof *rules * MOST_IDS * MOST_IDS);
    assert_true(t->bpe.n_ids <= MOST_IDS);
    for (uint64_t slot = 0; slot <= t->bpe.merge_mask; slot++) {
        const struct bpe_merge *m = &t->bpe.merges[slot];
        if (m->pair != UINT64_MAX)
            rules[(m->pair >> 32) * MOST_IDS + (m->pair & 0xffffffffu)] = (struct rule){m->rank, m->id};
    }
    for (int round = 0; round < 3000; round++) {
        char word[200];
        int32_t room[BPE_SHORT], naive[200];
        const int32_t *ids;
        int64_t n = 0, count;
        struct ag_error err = AG_ERROR_INIT;
        int64_t length = 1 + (round * 7) % 130;
        while (n < length) {
            random = lcg(random);
            const char *bit = bits[(random >> 33) % (sizeof bits / sizeof bits[0])];
            memcpy(word + n, bit, strlen(bit));
            n += (int64_t)strlen(bit);
        }
        for (int64_t i = 0; i < n; i++) naive[i] = t->bpe.symbol[(unsigned char)word[i]];
        int64_t expected = merge_naively(naive, n, rules);
        assert_ok(bpe_encode(&ids, &count, room, &t->bpe, word, n, arena, &err), &err);
        assert_int_equal(count, expected);
        assert_memory_equal(ids, naive, (size_t)count * sizeof *ids);
        ag_arena_reset(arena);
    }
    test_free(rules);
    ag_arena_free(arena);
    tokenizer_close(t);
}

/* abcd, over and over: bc is merged first; then the rank that ab had must not carry over to a + bc, which comes after
 * bc + d. */
static void test_stale_ranks(void **state) {
    (void)state;
    static const struct bpe_string tokens[] = {{"a", 1},  {"b", 1},  {"c", 1},   {"d", 1},
                                               {"bc", 2}, {"ab", 2}, {"bcd", 3}, {"abc", 3}};
    static const struct bpe_string merges[] = {{"b", 1},  {"c", 1}, {"a", 1}, {"b", 1},
                                               {"bc", 2}, {"d", 1}, {"a", 1}, {"bc", 2}};
    static const int32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct bpe_source source = {
        .path = "test", .n_tokens = 8, .n_merges = 4, .tokens = tokens, .ids = ids, .merges = merges, .n_ids = 8};
    struct ag_arena *arena = ag_arena_new("test");
    struct ag_error err = AG_ERROR_INIT;
    struct bpe bpe;
    assert_ok(bpe_build(&bpe, &source, arena, &err), &err);
    for (int64_t times = 1; times <= 40; times++) { /* scanned up to 64 bytes, by the heap beyond */
        char word[160];
        int32_t room[BPE_SHORT];
        const int32_t *got;
        int64_t count;
        for (int64_t i = 0; i < times; i++) memcpy(word + 4 * i, "abcd", 4);
        assert_ok(bpe_encode(&got, &count, room, &bpe, word, 4 * times, arena, &err), &err);
        assert_int_equal(count, 2 * times);
        for (int64_t i = 0; i < count; i++) assert_int_equal(got[i], i % 2 == 0 ? 0 : 6);
    }
    ag_arena_free(arena);
}

/* Long runs of one kind must be fast. */
static void test_long_runs(void **state) {
    (void)state;
    struct tokenizer *t = open_golden("gpt2");
    struct token_list list = {0};
    struct ag_error err = AG_ERROR_INIT;
    int64_t n = 100000;
    struct ag_buf text = {0};
    for (int64_t i = 0; i < n; i++) assert_ok(ag_buf_add(&text, "a", 1, &err), &err);
    double start = ag_now();
    assert_ok(tokenizer_encode(&list, t, text.data, text.size, true, NULL, &err), &err);
    double seconds = ag_now() - start;
    if (!(seconds < 2)) fail_msg("100,000 letters took %.1f s", seconds);
    check_cover(&list, n);
    /* 100,000 combining marks on one letter, NFC */
    tokenizer_close(t);
    t = open_golden("qwen2");
    text.size = 0;
    assert_ok(ag_buf_add(&text, "e", 1, &err), &err);
    for (int64_t i = 0; i < n; i++) assert_ok(ag_buf_add(&text, i % 2 ? "\xcc\x81" : "\xcc\xa3", 2, &err), &err);
    list.n = 0;
    start = ag_now();
    assert_ok(tokenizer_encode(&list, t, text.data, text.size, true, NULL, &err), &err);
    seconds = ag_now() - start;
    if (!(seconds < 4)) fail_msg("100,000 marks took %.1f s", seconds);
    check_cover(&list, (int64_t)text.size);
    token_list_free(&list);
    ag_buf_free(&text);
    tokenizer_close(t);
}

/* SmolLM2's own vocabulary, from the GGUF; and the vectors of spec/tokenizer.md section 11. */
static void test_smollm2_vocabulary(void **state) {
    (void)state;
    const char *path = test_smollm2();
    if (path == NULL) test_skip("no SmolLM2 (make fetch brings it)");
    struct ag_error err = AG_ERROR_INIT;
    struct tokenizer *t;
    assert_ok(tokenizer_open_path(&t, path, &err), &err);
    const struct tokenizer_info *info = tokenizer_info(t);
    assert_string_equal(info->pattern, "smollm");
    assert_string_equal(info->source, "GGUF metadata");
    assert_true(info->vocabulary == 49152 && !info->adds_bos && !info->adds_eos && !info->nfc && !info->ignore_merges);
    static const struct {
        const char *text;
        int32_t ids[12];
        int64_t n;
    } known[] = {{"Hello, we can use", {19556, 28, 392, 416, 722}, 5},
                 {"The capital of France is", {504, 3575, 282, 4649, 314}, 5},
                 {"\n", {198}, 1},
                 {"Hello world! 123", {19556, 905, 17, 216, 33, 34, 35}, 7},
                 {"  multiple   spaces", {216, 2701, 256, 5600}, 4}};
    struct token_list list = {0};
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        assert_int_equal(encode(&list, t, known[k].text, true, NULL), known[k].n);
        for (int64_t i = 0; i < list.n; i++) assert_int_equal(list.data[i].id, known[k].ids[i]);
    }
    json_t *expected = golden("expected.json"), *smollm2 = golden("smollm2.json"), *random = golden("random.json");
    check_corpus(t, "smollm2", json_object_get(expected, "texts"), json_object_get(smollm2, "corpus"));
    check_random(t, "smollm2", random, json_object_get(smollm2, "random"));
    json_decref(expected);
    json_decref(smollm2);
    json_decref(random);
    token_list_free(&list);
    tokenizer_close(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_smollm2_vocabulary),
    cmocka_unit_test(test_golden),
    cmocka_unit_test(test_info),
    cmocka_unit_test(test_bos),
    cmocka_unit_test(test_invalid_utf8),
    cmocka_unit_test(test_round_trip),
    cmocka_unit_test(test_pieces_golden),
    cmocka_unit_test(test_pieces),
    cmocka_unit_test(test_merging),
    cmocka_unit_test(test_stale_ranks),
    cmocka_unit_test(test_long_runs),
};
TEST_GROUP(tokenizer, "byte-level BPE against the reference library, spans, random text", tests)
