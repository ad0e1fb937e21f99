/* tests/test_generate.c: the prompt generator and `attgeo prompts`, as properties over seeds, options and tokenizers.
 */
#include "tests/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "data/generate.h"

static void write_file(const char *path, const void *data, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* ---- tokenizers ------------------------------------------------------------------------------------------------- */

/* A character of the byte alphabet of byte-level BPE, as UTF-8. */
static void byte_character(char out[3], int byte) {
    int code = byte;
    if (byte <= 0x20 || (byte >= 0x7F && byte <= 0xA0) || byte == 0xAD) {
        code = 256;
        for (int i = 0; i < byte; i++) code += i <= 0x20 || (i >= 0x7F && i <= 0xA0) || i == 0xAD;
    }
    out[0] = (char)code, out[1] = out[2] = 0;
    if (code >= 0x80) out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 0x3F));
}

/* tokenizer.json with the 256 bytes, a few merges and the special tokens of both chat templates; llama: BOS is added.
 */
static const char *tiny_tokenizer(const char *folder, bool llama) {
    static const char *const merges[][2] = {
        {"t", "h"}, {"\xC4\xA0", "th"}, {"\xC4\xA0th", "e"}, {"i", "n"}, {"\xC4\xA0", "c"}};
    static const char *const specials[] = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                           "<|eot_id|>",        "<|im_start|>",        "<|im_end|>"};
    json_t *vocab = json_object(), *merge_list = json_array(), *added = json_array();
    int id = 0;
    for (int byte = 0; byte < 256; byte++) {
        char text[3];
        byte_character(text, byte);
        json_object_set_new(vocab, text, json_integer(id++));
    }
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        char joined[16];
        snprintf(joined, sizeof joined, "%s%s", merges[i][0], merges[i][1]);
        json_object_set_new(vocab, joined, json_integer(id++));
        json_array_append_new(merge_list, json_pack("[s, s]", merges[i][0], merges[i][1]));
    }
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++)
        json_array_append_new(added,
                              json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id++, "content", specials[i],
                                        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    json_t *pre = llama ? json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b, s:b}]}", "type", "Sequence",
                                    "pretokenizers", "type", "Split", "pattern", "Regex",
                                    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                                    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                                    "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0,
                                    "trim_offsets", 1, "use_regex", 0)
                        : json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets",
                                    1, "use_regex", 1);
    json_t *post = llama ? json_pack("{s:s, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:[], s:{s:{s:s, s:[i], s:[s]}}}",
                                     "type", "TemplateProcessing", "single", "SpecialToken", "id", specials[0],
                                     "type_id", 0, "Sequence", "id", "A", "type_id", 0, "pair", "special_tokens",
                                     specials[0], "id", specials[0], "ids", id - 6, "tokens", specials[0])
                         : json_null();
    json_t *root = json_pack("{s:s, s:o, s:n, s:o, s:o, s:{s:s, s:b, s:o, s:o}}", "version", "1.0", "added_tokens",
                             added, "normalizer", "pre_tokenizer", pre, "post_processor", post, "model", "type", "BPE",
                             "ignore_merges", 0, "vocab", vocab, "merges", merge_list);
    assert_non_null(root);
    const char *path = test_path("%s/tokenizer.json", folder);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return path;
}

/* Tokenizers and the built-in haystack, made once and kept until the end of the program. */
struct fixture {
    struct tokenizer *sample, *plain, *llama, *smollm2; /* smollm2: NULL where it was not fetched */
    struct haystack haystack;
    struct ag_arena *arena;
};
static struct fixture *fixture;

static void prepare(void) {
    struct ag_error err = AG_ERROR_INIT;
    if (fixture) return;
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->arena = ag_arena_new("test");
    assert_ok(haystack_open(&f->haystack, NULL, f->arena, &err), &err);
    assert_ok(tokenizer_open_path(&f->sample, "data/sample/softmax", &err), &err);
    assert_ok(tokenizer_open_path(&f->plain, tiny_tokenizer(test_folder("generate-plain"), false), &err), &err);
    assert_ok(tokenizer_open_path(&f->llama, tiny_tokenizer(test_folder("generate-llama"), true), &err), &err);
    if (test_smollm2()) assert_ok(tokenizer_open_path(&f->smollm2, test_smollm2(), &err), &err);
    fixture = f;
}

/* ---- reading back what was made --------------------------------------------------------------------------------- */

static int64_t count_word(const char *text, const char *word) {
    int64_t n = 0;
    for (const char *p = text; (p = strstr(p, word)); p++) n++;
    return n;
}
static bool same_bytes(const struct prompt *p, int64_t begin, int64_t end, const struct prompt *q, int64_t begin_q,
                       int64_t end_q) {
    return end - begin == end_q - begin_q && !memcmp(p->text + begin, q->text + begin_q, (size_t)(end - begin));
}

/* First token that overlaps byte `begin`, by plain search: the generator's own is binary. */
static int64_t token_at(const struct token_list *tokens, int64_t begin) {
    for (int64_t t = 0; t < tokens->n; t++)
        if (tokens->data[t].begin <= begin && begin < tokens->data[t].end) return t;
    return -1;
}

/* The tokens over [begin, end) decode to text with those bytes, and with no other letter or digit around them. */
static void check_decodes(const struct tokenizer *tokenizer, const struct token_list *tokens, const struct prompt *p,
                          int64_t begin, int64_t end) {
    struct ag_buf decoded = {0};
    for (int64_t t = 0; t < tokens->n; t++) {
        if (tokens->data[t].begin >= end || tokens->data[t].end <= begin) continue;
        size_t n;
        const char *bytes = tokenizer_bytes(tokenizer, tokens->data[t].id, &n);
        assert_non_null(bytes);
        assert_int_equal(ag_buf_add(&decoded, bytes, n, NULL), AG_OK);
    }
    char *wanted = strndup(p->text + begin, (size_t)(end - begin));
    char *found = decoded.data ? strstr(decoded.data, wanted) : NULL;
    if (!found) fail_msg("%s: \"%s\" decodes to \"%s\"", p->id, wanted, decoded.data ? decoded.data : "nothing");
    for (const char *c = decoded.data; *c; c++)
        if ((c < found || c >= found + (end - begin)) && (*c >= '0' && *c <= '9'))
            fail_msg("%s: a digit more in \"%s\"", p->id, decoded.data);
    free(wanted);
    ag_buf_free(&decoded);
}

/* Everything that is promised of one prompt alone. Returns the number of its tokens. */
static int64_t check_prompt(const struct generate_options *o, const struct tokenizer *tokenizer, const struct prompt *p,
                            struct token_list *tokens) {
    struct ag_error err = AG_ERROR_INIT;
    tokens->n = 0;
    bool double_bos = false;
    assert_int_equal(strlen(p->text), p->text_bytes);
    assert_ok(tokenizer_encode(tokens, tokenizer, p->text, (size_t)p->text_bytes, true, &double_bos, &err), &err);
    assert_true(tokens->n <= o->length);
    assert_int_equal(p->answer[0], ' ');
    const char *value = p->answer + 1;
    int64_t needles = 0, distractors = 0, questions = 0, specials = 0, last = 0;
    for (int64_t i = 0; i < p->n_spans; i++) {
        const struct prompt_span *s = &p->spans[i];
        assert_true(s->begin >= last && s->begin < s->end && s->end <= p->text_bytes);
        last = s->end;
        check_decodes(tokenizer, tokens, p, s->begin, s->end);
        needles += s->role == AG_ROLE_NEEDLE;
        distractors += s->role == AG_ROLE_DISTRACTOR;
        questions += s->role == AG_ROLE_QUESTION;
        specials += s->role == AG_ROLE_SPECIAL;
        bool fact = s->role == AG_ROLE_NEEDLE || s->role == AG_ROLE_DISTRACTOR;
        assert_int_equal(s->value_begin >= 0, fact);
        if (!fact) continue;
        assert_true(s->value_begin > s->begin && s->value_end < s->end);
        assert_int_equal(p->text[s->end - 1], '.');
        check_decodes(tokenizer, tokens, p, s->value_begin, s->value_end);
        bool is_answer = s->value_end - s->value_begin == (int64_t)strlen(value) &&
                         !memcmp(p->text + s->value_begin, value, strlen(value));
        assert_int_equal(is_answer, s->role == AG_ROLE_NEEDLE);
    }
    assert_int_equal(needles, 1);
    assert_int_equal(distractors, o->kind == GENERATE_NEEDLE ? o->distractors : 0);
    assert_int_equal(questions, o->template_ ? 2 : 1);
    assert_int_equal(specials, o->template_ ? 2 : 0);
    assert_int_equal(last, p->text_bytes); /* the text ends with the question */
    assert_int_equal(count_word(p->text, value), 1);
    /* special tokens are where the template is, and nowhere else */
    for (int64_t t = 0; t < tokens->n; t++) {
        const struct token *token = &tokens->data[t];
        if (!token->special || token->begin == token->end) continue;
        bool inside = false;
        for (int64_t i = 0; i < p->n_spans; i++)
            inside |= p->spans[i].role == AG_ROLE_SPECIAL && token->begin >= p->spans[i].begin &&
                      token->end <= p->spans[i].end;
        assert_true(inside);
    }
    return tokens->n;
}

/* b is a with the two facts exchanged, everything else equal. */
static void check_twins(const struct generate_options *o, const struct prompt *a, const struct prompt *b) {
    assert_string_equal(a->twin, b->id);
    assert_string_equal(b->twin, a->id);
    assert_int_equal(a->n_spans, b->n_spans);
    assert_string_not_equal(a->answer, b->answer);
    assert_int_equal(strlen(a->answer), strlen(b->answer));
    for (size_t i = 1; i < strlen(a->answer); i++) assert_int_not_equal(a->answer[i], b->answer[i]);
    assert_int_equal(count_word(a->text, b->answer + 1), o->distractors);
    assert_int_equal(count_word(b->text, a->answer + 1), o->distractors);
    const struct prompt *sides[2] = {a, b};
    int64_t at_a = 0, at_b = 0;
    for (int64_t i = 0; i < a->n_spans; i++) {
        const struct prompt_span *x = &a->spans[i], *y = &b->spans[i];
        assert_int_equal(x->role, y->role);
        if (x->role == AG_ROLE_QUESTION) break;
        assert_true(same_bytes(a, at_a, x->begin, b, at_b, y->begin)); /* the haystack between the facts */
        at_a = x->end, at_b = y->end;
    }
    /* the needle of each side is a distractor of the other, with exact repeats: all of them */
    for (int s = 0; s < 2; s++) {
        const struct prompt *p = sides[s], *q = sides[1 - s];
        int64_t same = 0, different = 0;
        for (int64_t i = 0; i < p->n_spans; i++) {
            if (p->spans[i].role != AG_ROLE_NEEDLE) continue;
            for (int64_t j = 0; j < q->n_spans; j++) {
                if (q->spans[j].role != AG_ROLE_DISTRACTOR) continue;
                bool equal = same_bytes(p, p->spans[i].begin, p->spans[i].end, q, q->spans[j].begin, q->spans[j].end);
                same += equal;
                different += !equal;
            }
        }
        assert_int_equal(same, o->near_duplicates ? 1 : o->distractors);
        assert_int_equal(different, o->near_duplicates ? o->distractors - 1 : 0);
    }
}

static const struct haystack *hay(void) { return &fixture->haystack; }

/* Generates everything, checks it, and appends the JSON lines to `lines` (may be NULL). */
static struct generate_summary check_all(const struct generate_options *o, const struct tokenizer *tokenizer,
                                         const struct haystack *haystack, struct ag_buf *lines) {
    struct ag_error err = AG_ERROR_INIT;
    struct generator *generator;
    struct generate_summary summary;
    struct token_list tokens[2] = {{0}, {0}};
    int64_t made = 0, n, least = INT64_MAX, most = 0, aligned = 0;
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    assert_ok(generator_open(&generator, o, tokenizer, haystack, &err), &err);
    for (;;) {
        struct prompt prompts[2];
        assert_ok(generator_next(generator, prompts, &n, &err), &err);
        if (!n) break;
        assert_int_equal(n, o->kind == GENERATE_NEEDLE ? 2 : 1);
        for (int64_t i = 0; i < n; i++) {
            int64_t count = check_prompt(o, tokenizer, &prompts[i], &tokens[i]);
            if (count < least) least = count;
            if (count > most) most = count;
            assert_ok(generate_write(stream, &prompts[i], &err), &err);
        }
        if (n == 2) {
            check_twins(o, &prompts[0], &prompts[1]);
            bool equal = tokens[0].n == tokens[1].n;
            for (int64_t i = 0; i < prompts[0].n_spans; i++)
                equal &=
                    token_at(&tokens[0], prompts[0].spans[i].begin) == token_at(&tokens[1], prompts[1].spans[i].begin);
            aligned += equal;
        } else {
            assert_null(prompts[0].twin);
        }
        made += n;
    }
    assert_ok(generator_summary(generator, &summary, &err), &err);
    assert_int_equal(made, o->count * (o->kind == GENERATE_NEEDLE ? 2 : 1));
    assert_int_equal(summary.prompts, made);
    assert_int_equal(summary.tokens_min, least);
    assert_int_equal(summary.tokens_max, most);
    assert_true(summary.aligned_pairs <= aligned);
    int64_t roles = 0;
    for (int r = 0; r < AG_ROLE_COUNT; r++) roles += summary.role_tokens[r];
    assert_true(roles >= least * made && roles <= most * made);
    assert_true(summary.role_tokens[AG_ROLE_HAYSTACK] > 0 && summary.role_tokens[AG_ROLE_ANSWER] == 0);
    fclose(stream);
    if (lines) assert_int_equal(ag_buf_add(lines, text, size, NULL), AG_OK);
    free(text);
    generator_close(generator);
    token_list_free(&tokens[0]);
    token_list_free(&tokens[1]);
    return summary;
}

static enum ag_status try_open(const struct generate_options *o, const struct tokenizer *tokenizer,
                               const struct haystack *haystack, struct ag_error *err) {
    struct generator *generator;
    *err = (struct ag_error)AG_ERROR_INIT;
    enum ag_status status = generator_open(&generator, o, tokenizer, haystack, err);
    if (status == AG_OK) generator_close(generator);
    return status;
}

/* ---- the generator ---------------------------------------------------------------------------------------------- */

static void pairs_over_seeds(void **state) {
    (void)state;
    prepare();
    struct tokenizer *const tokenizers[] = {fixture->sample, fixture->plain, fixture->llama, fixture->smollm2};
    for (int k = 0; k < 4; k++) {
        if (!tokenizers[k]) continue;
        for (int64_t seed = 0; seed < 12; seed++) {
            struct generate_options o = generate_defaults;
            o.seed = seed < 6 ? seed : (int64_t)((test_seed() + (uint64_t)seed * 7919) & 0xFFFFFFFFFF);
            o.count = 3;
            o.distractors = 1 + seed % 5;
            o.near_duplicates = seed % 2;
            o.length = k == 3 ? 400 + 100 * (seed % 3) : 2000 + 500 * (seed % 3);
            struct generate_summary s = check_all(&o, tokenizers[k], hay(), NULL);
            assert_int_equal(s.pairs, 3);
            assert_int_equal(s.aligned_pairs, 3);
            assert_int_equal(s.token_difference, 0);
            assert_int_equal(s.position_difference, 0);
            assert_int_equal(s.tokens_min, o.length);
            assert_int_equal(s.tokens_max, o.length);
            assert_int_equal(s.repeats, 0);
        }
    }
}

static void templates_kinds_wordings(void **state) {
    (void)state;
    prepare();
    for (int kind = 0; kind < 4; kind++) {
        for (int template_ = 0; template_ < 3; template_++) {
            for (int wording = 0; wording <= FACT_WORDINGS; wording++) {
                struct generate_options o = generate_defaults;
                o.kind = (enum generate_kind)kind;
                o.template_ = (enum generate_template)template_;
                o.wording = wording;
                o.count = 1;
                o.length = 1800;
                o.seed = (int64_t)(test_seed() & 0xFFFF);
                struct generate_summary s = check_all(&o, fixture->llama, hay(), NULL);
                /* niah1 has but one sentence to fill with */
                assert_true(s.tokens_min > (kind == GENERATE_NIAH1 ? o.length - 86 : o.length - 1));
                assert_int_equal(s.role_tokens[AG_ROLE_SPECIAL] > s.prompts, template_ != 0); /* one BOS */
            }
        }
    }
}

/* The answers of niah have the form that their kind names. */
static void answers(void **state) {
    (void)state;
    prepare();
    struct ag_error err = AG_ERROR_INIT;
    for (int kind = GENERATE_NIAH1; kind <= GENERATE_NIAH3; kind++) {
        struct generate_options o = generate_defaults;
        struct generator *generator;
        o.kind = (enum generate_kind)kind;
        o.count = 20;
        o.length = 1500;
        o.digits = kind == GENERATE_NIAH2 ? 11 : 0;
        assert_ok(generator_open(&generator, &o, fixture->plain, hay(), &err), &err);
        struct prompt p[2];
        int64_t n;
        assert_ok(generator_next(generator, p, &n, &err), &err);
        for (; n;) {
            const char *value = p[0].answer + 1;
            if (kind == GENERATE_NIAH3) {
                assert_int_equal(strlen(value), 36);
                assert_int_equal(value[14], '4');
                for (int i = 0; i < 36; i++)
                    assert_int_equal(strchr("0123456789abcdef", value[i]) == NULL,
                                     i == 8 || i == 13 || i == 18 || i == 23);
            } else {
                assert_int_equal(strlen(value), kind == GENERATE_NIAH2 ? 11 : 7);
                assert_int_equal(strspn(value, "0123456789"), strlen(value));
                assert_int_not_equal(value[0], '0');
            }
            assert_ok(generator_next(generator, p, &n, &err), &err);
        }
        generator_close(generator);
    }
}

static void depth(void **state) {
    (void)state;
    prepare();
    const double depths[] = {0, 0.1, 0.5, 0.77, 1};
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
            struct generate_options o = generate_defaults;
            o.kind = (enum generate_kind)kind;
            o.depth = depths[i];
            o.count = 6;
            o.length = 4000;
            struct generate_summary s = check_all(&o, fixture->plain, hay(), NULL);
            /* a gap is at most half a sentence (169 bytes) and a fact (below 100) away */
            double tolerance = depths[i] == 0 || depths[i] == 1 ? 0 : 0.05;
            assert_true(s.depth_min >= depths[i] - tolerance);
            assert_true(s.depth_max <= depths[i] + tolerance);
        }
    }
    /* uniform: over 60 pairs both ends and the middle are reached */
    struct generate_options o = generate_defaults;
    o.count = 60;
    o.length = 2500;
    struct generate_summary s = check_all(&o, fixture->plain, hay(), NULL);
    assert_true(s.depth_min < 0.1 && s.depth_max > 0.9 && s.depth_median > 0.3 && s.depth_median < 0.7);
}

/* Facts do not touch each other while there are sentences enough. */
static void facts_apart(void **state) {
    (void)state;
    prepare();
    struct ag_error err = AG_ERROR_INIT;
    struct generate_options o = generate_defaults;
    struct generator *generator;
    o.count = 30;
    o.length = 3000;
    assert_ok(generator_open(&generator, &o, fixture->plain, hay(), &err), &err);
    for (;;) {
        struct prompt p[2];
        int64_t n;
        assert_ok(generator_next(generator, p, &n, &err), &err);
        if (!n) break;
        for (int64_t i = 1; i + 1 < p[0].n_spans; i++) assert_true(p[0].spans[i].begin > p[0].spans[i - 1].end + 20);
    }
    generator_close(generator);
}

static void same_bits(void **state) {
    (void)state;
    prepare();
    struct ag_buf first = {0}, again = {0}, more = {0}, other = {0}, large = {0};
    struct generate_options o = generate_defaults;
    o.count = 4;
    o.length = 1500;
    o.seed = 5;
    check_all(&o, fixture->plain, hay(), &first);
    check_all(&o, fixture->plain, hay(), &again);
    o.count = 9;
    check_all(&o, fixture->plain, hay(), &more);
    o.count = 4;
    o.seed = 6;
    check_all(&o, fixture->plain, hay(), &other);
    o.seed = 5 + ((int64_t)1 << 32);
    check_all(&o, fixture->plain, hay(), &large);
    assert_int_equal(first.size, again.size);
    assert_memory_equal(first.data, again.data, first.size);
    assert_true(more.size > first.size);
    assert_memory_equal(first.data, more.data, first.size); /* a larger count continues a smaller one */
    /* not only the seed in the ids differs */
    assert_null(strstr(strstr(other.data, "\"text\""), strndupa(strstr(first.data, "\"text\""), 80)));
    assert_null(strstr(strstr(large.data, "\"text\""), strndupa(strstr(first.data, "\"text\""), 80)));
    ag_buf_free(&first);
    ag_buf_free(&again);
    ag_buf_free(&more);
    ag_buf_free(&other);
    ag_buf_free(&large);
}

/* Every length from the shortest that is allowed: refused below with what fits, made at it and above. */
static void short_lengths(void **state) {
    (void)state;
    prepare();
    struct ag_error err;
    for (int kind = 0; kind < 4; kind++) {
        struct generate_options o = generate_defaults;
        o.kind = (enum generate_kind)kind;
        o.count = 5;
        o.length = 30;
        test_refused(try_open(&o, fixture->plain, hay(), &err), AG_E_USAGE, &err, "--length 30 is too short",
                     "give --length", NULL);
        o.length = atoll(strstr(err.text, "give --length ") + 14);
        /* the number is that of the pair which was refused: others of the set may need a little more */
        while (try_open(&o, fixture->plain, hay(), &err) != AG_OK) {
            int64_t better = atoll(strstr(err.text, "give --length ") + 14);
            assert_true(better > o.length && better < 2000);
            o.length = better;
        }
        for (int64_t i = 0; i < 40; i++, o.length++) check_all(&o, fixture->plain, hay(), NULL);
    }
}

static void long_lengths(void **state) {
    (void)state;
    prepare();
    struct ag_error err;
    struct generate_options o = generate_defaults;
    o.count = 2;
    o.length = 1000000;
    test_refused(try_open(&o, fixture->plain, hay(), &err), AG_E_USAGE, &err, "the built-in haystack",
                 "387 different sentences", "--repeat", NULL);
    o.length = atoll(strstr(err.text, "give --length ") + 14) + 1;
    test_refused(try_open(&o, fixture->plain, hay(), &err), AG_E_USAGE, &err, "--repeat", NULL);
    o.length--; /* the whole haystack */
    struct generate_summary s = check_all(&o, fixture->plain, hay(), NULL);
    assert_int_equal(s.repeats, 0);
    assert_true(s.tokens_min >= o.length - 200);
    o.length = 100000;
    o.repeat = true;
    s = check_all(&o, fixture->plain, hay(), NULL);
    assert_int_equal(s.repeats, 2);
    assert_int_equal(s.tokens_min, 100000);
    o.length = 8000; /* allowed, not needed */
    s = check_all(&o, fixture->plain, hay(), NULL);
    assert_int_equal(s.repeats, 0);
}

static void options_refused(void **state) {
    (void)state;
    prepare();
    struct ag_error err;
    struct generate_options o = generate_defaults;
    o.length = 4000;
    o.distractors = 0;
    test_refused(try_open(&o, fixture->plain, hay(), &err), AG_E_USAGE, &err, "distractor", "niah2", NULL);
    o.distractors = FACT_VARIANTS + 1;
    o.near_duplicates = true;
    test_refused(try_open(&o, fixture->plain, hay(), &err), AG_E_USAGE, &err, "--near-duplicates", "72", NULL);
    o.distractors = FACT_VARIANTS;
    o.length = 12000;
    o.count = 1;
    check_all(&o, fixture->plain, hay(), NULL);
    o = generate_defaults;
    o.template_ = GENERATE_CHATML;
    test_refused(try_open(&o, fixture->sample, hay(), &err), AG_E_UNSUPPORTED, &err, "<|im_start|>", "--template none",
                 NULL);
    o.template_ = GENERATE_LLAMA3;
    test_refused(try_open(&o, fixture->sample, hay(), &err), AG_E_UNSUPPORTED, &err, "<|begin_of_text|>", NULL);
}

/* Crowded: more facts than gaps between sentences. */
static void crowded(void **state) {
    (void)state;
    prepare();
    struct generate_options o = generate_defaults;
    o.count = 4;
    o.distractors = 60;
    o.length = 4600;
    for (int i = 0; i < 3; i++) {
        o.depth = i / 2.0;
        o.wording = 1;
        struct generate_summary s = check_all(&o, fixture->plain, hay(), NULL);
        if (i == 0) assert_true(s.depth_max == 0);
        if (i == 2) assert_true(s.depth_min == 1);
    }
}

/* ---- haystacks -------------------------------------------------------------------------------------------------- */

static void built_in_haystack(void **state) {
    (void)state;
    prepare();
    const struct haystack *h = hay();
    assert_true(strlen(h->text) >= 30000);
    assert_true(h->n > 300);
    assert_int_equal(h->repeated, 0);
    for (const char *c = h->text; *c; c++) {
        assert_false(*c >= '0' && *c <= '9');
        assert_true(*c >= ' ' && *c <= '~');
    }
    for (int64_t i = 0; i < h->n; i++) {
        size_t n = strlen(h->sentence[i]);
        assert_true(n > 20 && n < 200);
        assert_true(h->sentence[i][0] >= 'A' && h->sentence[i][0] <= 'Z');
        assert_non_null(strchr(".!?", h->sentence[i][n - 1]));
        assert_null(strstr(h->sentence[i], "  "));
    }
}

static void sentences(void **state) {
    (void)state;
    prepare();
    struct ag_error err = AG_ERROR_INIT;
    struct haystack h;
    static const char text[] =
        "\xEF\xBB\xBFOne is here.  Two\nis\tthere!\r\nDr. Who met J. Smith, i.e. him. \"Go on!\" he said. A value of "
        "3.5 "
        "is fine.\n\nA title without a stop\n\n(In brackets.) One is here. "
        "\xE4\xBD\xA0\xE5\xA5\xBD\xE3\x80\x82\xE5\x86\x8D\xE8\xA7\x81\xE3\x80\x82 --- And so I. Then we.";
    static const char *const expected[] = {"One is here.",
                                           "Two is there!",
                                           "Dr. Who met J. Smith, i.e. him.",
                                           "\"Go on!\" he said.",
                                           "A value of 3.5 is fine.",
                                           "A title without a stop",
                                           "(In brackets.)",
                                           "\xE4\xBD\xA0\xE5\xA5\xBD\xE3\x80\x82",
                                           "\xE5\x86\x8D\xE8\xA7\x81\xE3\x80\x82",
                                           "--- And so I.",
                                           "Then we."};
    assert_ok(haystack_parse(&h, text, sizeof text - 1, "text", fixture->arena, &err), &err);
    for (int64_t i = 0; i < h.n && i < 11; i++) assert_string_equal(h.sentence[i], expected[i]);
    assert_int_equal(h.n, 11);
    assert_int_equal(h.repeated, 1);
    assert_non_null(strstr(h.text, "him. \"Go on!\" he"));
    assert_non_null(strstr(h.lower, "dr. who met j. smith"));
    /* no capitals at all */
    struct ag_buf small = {0};
    for (int i = 0; i < 40; i++) assert_int_equal(ag_buf_printf(&small, NULL, "line %d goes on and ends. ", i), AG_OK);
    assert_ok(haystack_parse(&h, small.data, small.size, "small", fixture->arena, &err), &err);
    assert_int_equal(h.n, 40);
    assert_string_equal(h.sentence[39], "line 39 goes on and ends.");
    ag_buf_free(&small);
}

static void hostile_haystacks(void **state) {
    (void)state;
    prepare();
    struct ag_error err;
    struct haystack h;
    struct {
        const char *text;
        size_t n;
        enum ag_status status;
        const char *says;
    } cases[] = {
        {"", 0, AG_E_FORMAT, "no sentence"},
        {" \n\t\r\n ", 6, AG_E_FORMAT, "no sentence"},
        {"... !!! ???", 11, AG_E_FORMAT, "no sentence"},
        {"\xEF\xBB\xBF", 3, AG_E_FORMAT, "no sentence"},
        {"Fine. \0 Not.", 12, AG_E_FORMAT, "byte 6 is the control character 0x00"},
        {"Fine.\x1B[31m", 10, AG_E_FORMAT, "control character 0x1b"},
        {"Caf\xE9 au lait.", 13, AG_E_FORMAT, "byte 3 (0xe9) is not valid UTF-8"},
        {"A surrogate \xED\xA0\x80.", 16, AG_E_FORMAT, "byte 12"},
        {"Cut \xE2\x82", 6, AG_E_FORMAT, "byte 4"},
        {"Too long \xF5\x80\x80\x80.", 14, AG_E_FORMAT, "byte 9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        err = (struct ag_error)AG_ERROR_INIT;
        test_refused(haystack_parse(&h, cases[i].text, cases[i].n, "h.txt", fixture->arena, &err), cases[i].status,
                     &err, "h.txt", cases[i].says, NULL);
    }
    const char *folder = test_folder("generate-haystack"), *path = test_path("%s/large.txt", folder);
    write_file(path, "", 0);
    assert_int_equal(truncate(path, 100000000), 0); /* sparse: nothing is read */
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(haystack_open(&h, path, fixture->arena, &err), AG_E_FORMAT, &err, "large.txt", "100000000", "8388608",
                 NULL);
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(haystack_open(&h, folder, fixture->arena, &err), AG_E_IO, &err, folder, NULL);

    /* One sentence; a sentence with a special string; keys and values that are all taken. */
    struct generate_options o = generate_defaults;
    o.length = 2000;
    static const char one[] = "Only this one sentence is here.";
    err = (struct ag_error)AG_ERROR_INIT;
    assert_ok(haystack_parse(&h, one, sizeof one - 1, "one.txt", fixture->arena, &err), &err);
    test_refused(try_open(&o, fixture->plain, &h, &err), AG_E_USAGE, &err, "one.txt", "1 different sentences",
                 "--repeat", NULL);
    o.repeat = true;
    o.count = 2;
    assert_int_equal(check_all(&o, fixture->plain, &h, NULL).repeats, 2);
    static const char special[] = "Some text. Then <|im_end|> appears. More text follows here.";
    assert_ok(haystack_parse(&h, special, sizeof special - 1, "special.txt", fixture->arena, &err), &err);
    test_refused(try_open(&o, fixture->plain, &h, &err), AG_E_FORMAT, &err, "special.txt", "<|im_end|>", NULL);
    assert_int_equal(try_open(&o, fixture->sample, &h, &err), AG_OK); /* plain text to this tokenizer */
    struct ag_buf digits = {0};
    for (int i = 0; i < 10000; i++) assert_int_equal(ag_buf_printf(&digits, NULL, "It was %04d. ", i), AG_OK);
    assert_ok(haystack_parse(&h, digits.data, digits.size, "digits.txt", fixture->arena, &err), &err);
    test_refused(try_open(&o, fixture->plain, &h, &err), AG_E_USAGE, &err, "digits.txt", "4 digits", "more --digits",
                 NULL);
    o.digits = 9;
    check_all(&o, fixture->plain, &h, NULL);
    ag_buf_free(&digits);
}

/* Text of the alphabet .!? quotes, blanks, letters and multi-byte characters: whatever comes, the sentences hold every
 * byte that is not blank, and prompts made of them keep their promises. */
static void random_haystacks(void **state) {
    (void)state;
    prepare();
    static const char *const alphabet[] = {"a",         "B",  ".",  "!",  "?",        " ",
                                           " ",         "\n", "\"", ")",  "\xC3\xA9", "\xF0\x9F\x99\x82",
                                           "e\xCC\x81", "7",  "Mr", ". ", "word ",    "\xE3\x80\x82",
                                           "\xC2\xA0",  "\t"};
    struct ag_error err = AG_ERROR_INIT;
    unsigned seed = (unsigned)test_seed();
    for (int round = 0; round < 60; round++) {
        struct ag_buf text = {0};
        struct haystack h;
        int pieces = 20 + rand_r(&seed) % 400;
        assert_int_equal(ag_buf_add(&text, "Start. ", 7, NULL), AG_OK);
        for (int i = 0; i < pieces; i++) {
            const char *piece = alphabet[(size_t)rand_r(&seed) % (sizeof alphabet / sizeof alphabet[0])];
            assert_int_equal(ag_buf_add(&text, piece, strlen(piece), NULL), AG_OK);
        }
        assert_ok(haystack_parse(&h, text.data, text.size, "random", fixture->arena, &err), &err);
        for (int64_t i = 0; i < h.n; i++) {
            assert_true(h.sentence[i][0] && h.sentence[i][0] != ' ');
            for (int64_t j = 0; j < i; j++) assert_string_not_equal(h.sentence[i], h.sentence[j]);
        }
        struct generate_options o = generate_defaults;
        o.count = 1;
        o.distractors = 2;
        o.repeat = true;
        o.length = 1200;
        check_all(&o, round % 2 ? fixture->plain : fixture->llama, &h, NULL);
        ag_buf_free(&text);
    }
}

static void out_of_memory(void **state) {
    (void)state;
    prepare();
    struct generate_options o = generate_defaults;
    o.length = 2000;
    o.count = 2;
    int64_t n = 0;
    for (;; n++) {
        struct ag_error err = AG_ERROR_INIT;
        struct ag_arena *arena = ag_arena_new("test");
        struct generator *generator = NULL;
        struct haystack h;
        ag_arena_fail_after(n);
        enum ag_status status = haystack_open(&h, NULL, arena, &err);
        if (status == AG_OK) status = generator_open(&generator, &o, fixture->plain, &h, &err);
        ag_arena_fail_after(-1);
        generator_close(generator);
        ag_arena_free(arena);
        if (status == AG_OK) break;
        test_refused(status, AG_E_MEMORY, &err, NULL);
        assert_true(n < 1000);
    }
    assert_true(n > 5);
}

/* ---- the files -------------------------------------------------------------------------------------------------- */

/* What the reader of prompt files and its roles make of a generated file agrees with the generator's own summary. */
static void read_back(void **state) {
    (void)state;
    prepare();
    struct ag_error err = AG_ERROR_INIT;
    for (int template_ = 0; template_ < 3; template_++) {
        struct generate_options o = generate_defaults;
        struct ag_buf lines = {0};
        o.template_ = (enum generate_template)template_;
        o.count = 3;
        o.length = 2200;
        struct generate_summary s = check_all(&o, fixture->llama, hay(), &lines);
        const char *path = test_path("%s/prompts.jsonl", test_folder("generate-read"));
        write_file(path, lines.data, lines.size);
        struct prompts *prompts;
        struct prompt_tokens *tokens;
        assert_ok(prompts_open(&prompts, path, &err), &err);
        assert_ok(prompts_encode(&tokens, prompts, fixture->llama, true, &err), &err);
        assert_int_equal(tokens->tokens.P, 6);
        int64_t roles[AG_ROLE_COUNT] = {0};
        for (int64_t t = 0; t < tokens->tokens.T; t++) roles[tokens->tokens.role[t]]++;
        for (int r = 0; r < AG_ROLE_COUNT; r++)
            if (r != AG_ROLE_ANSWER) assert_int_equal(roles[r], s.role_tokens[r]);
        for (int64_t p = 0; p < 6; p++) assert_int_equal(tokens->tokens.twin[p], p ^ 1);
        for (int i = 0; i < 3; i++) assert_int_equal(tokens->missing_value[i], 0);
        prompt_tokens_free(tokens);
        prompts_close(prompts);
        ag_buf_free(&lines);
    }
}

static void command(void **state) {
    (void)state;
    prepare();
    const char *folder = test_folder("generate-cli"), *path = test_path("%s/p.jsonl", folder);
    const char *tokenizer = "data/sample/softmax/tokenizer.json";
    struct ag_buf out = {0}, err = {0}, plain = {0}, talk = {0};
    assert_int_equal(
        test_cli(&out, &err, "prompts --tokenizer %s --count 2 --length 1500 --seed 3 -o %s", tokenizer, path), 0);
    assert_non_null(strstr(out.data, "prompts  4 in 2 twin pairs, kind needle, seed 3"));
    assert_non_null(strstr(out.data, "min 1500, median 1500, max 1500"));
    assert_non_null(strstr(out.data, path));
    assert_int_equal(err.size, 0);
    assert_int_equal(test_cli(&plain, &talk, "prompts -t %s -n 2 -l 1500 --seed 3", tokenizer), 0);
    assert_non_null(strstr(talk.data, "4 in 2 twin pairs"));
    json_error_t problem;
    int lines = 0;
    for (char *line = plain.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, lines++) {
        json_t *root = json_loadb(line, (size_t)(end - line), 0, &problem);
        assert_non_null(root);
        const char *text = json_string_value(json_object_get(root, "text")),
                   *answer = json_string_value(json_object_get(root, "answer"));
        assert_non_null(strstr(text, answer + 1));
        json_t *spans = json_object_get(root, "spans");
        assert_int_equal(json_array_size(spans), 6);
        assert_string_equal(json_string_value(json_object_get(json_array_get(spans, 5), "role")), "question");
        json_decref(root);
    }
    assert_int_equal(lines, 4);
    struct ag_arena *arena = ag_arena_new("test");
    const char *file;
    size_t size;
    struct ag_error error = AG_ERROR_INIT;
    assert_ok(ag_file_text(&file, &size, path, 1 << 20, arena, &error), &error);
    assert_int_equal(size, plain.size);
    assert_memory_equal(file, plain.data, size);
    ag_arena_free(arena);
    ag_buf_free(&out);
    ag_buf_free(&err);
    ag_buf_free(&plain);
    ag_buf_free(&talk);
}

static void command_refuses(void **state) {
    (void)state;
    prepare();
    const char *folder = test_folder("generate-bad");
    const char *binary = test_path("%s/binary.txt", folder), *latin = test_path("%s/latin.txt", folder),
               *empty = test_path("%s/empty.txt", folder);
    write_file(binary,
               "\x7F"
               "ELF\x02\x01\0\0",
               8);
    write_file(latin, "Caf\xE9.", 5);
    write_file(empty, "", 0);
    const char *there = test_path("%s/there.jsonl", folder);
    write_file(there, "keep\n", 5);
    const char *good = "-t data/sample/softmax";
    struct {
        int code;
        const char *arguments;
        const char *says[3];
    } cases[] = {
        {2, "", {"--tokenizer is missing", NULL}},
        {1, "-t no/such/folder", {"no/such/folder", NULL}},
        {1, "-t data/README.md", {"data/README.md", NULL}},
        {2, test_path("%s --length 20", good), {"--length 20 is too short", "give --length", NULL}},
        {2, test_path("%s --length 99999", good), {"built-in haystack", "--repeat", NULL}},
        {2, test_path("%s --length 0", good), {"--length", NULL}},
        {2, test_path("%s --length 12x", good), {"--length", "12x", NULL}},
        {2, test_path("%s --depth 1.5", good), {"--depth", NULL}},
        {2, test_path("%s --depth nan", good), {"--depth", NULL}},
        {2, test_path("%s --kind niah4", good), {"niah4", NULL}},
        {2, test_path("%s --kind niah2 --distractors 3", good), {"niah2", "--distractors", NULL}},
        {2, test_path("%s --kind niah1 --haystack %s", good, empty), {"niah1", "--haystack", NULL}},
        {2, test_path("%s --kind niah3 --digits 5", good), {"niah3", "--digits", NULL}},
        {2, test_path("%s --near-duplicates --distractors 100", good), {"--near-duplicates", "72", NULL}},
        {1, test_path("%s --template chatml", good), {"data/sample/softmax", "<|im_start|>", NULL}},
        {1, test_path("%s --haystack %s", good, binary), {"binary.txt", "control character", NULL}},
        {1, test_path("%s --haystack %s", good, latin), {"latin.txt", "UTF-8", NULL}},
        {1, test_path("%s --haystack %s", good, empty), {"empty.txt", "no sentence", NULL}},
        {1, test_path("%s --haystack /dev/zero", good), {"/dev/zero", NULL}},
        {1, test_path("%s -l 1500 -o %s", good, there), {"there.jsonl", "--force", NULL}},
        {1, test_path("%s -l 1500 -o %s/no/p.jsonl", good, folder), {"p.jsonl", NULL}},
        {2, test_path("%s surplus", good), {"argument", NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ag_buf out = {0}, err = {0};
        int code = test_cli(&out, &err, "prompts %s", cases[i].arguments);
        if (code != cases[i].code)
            fail_msg("prompts %s: exit %d, expected %d (%s)", cases[i].arguments, code, cases[i].code, err.data);
        for (int k = 0; k < 3 && cases[i].says[k]; k++)
            if (!strstr(err.data, cases[i].says[k]))
                fail_msg("prompts %s: \"%s\" does not say \"%s\"", cases[i].arguments, err.data, cases[i].says[k]);
        assert_int_equal(out.size, 0);
        ag_buf_free(&out);
        ag_buf_free(&err);
    }
    struct ag_arena *arena = ag_arena_new("test");
    const char *file;
    size_t size;
    struct ag_error error = AG_ERROR_INIT;
    assert_ok(ag_file_text(&file, &size, there, 100, arena, &error), &error);
    assert_string_equal(file, "keep\n");
    ag_arena_free(arena);
    /* nothing but what the test put there */
    assert_int_equal(system(test_path("test $(ls %s | wc -l) = 4", folder)), 0);
    const char *program = getenv("ATTGEO");
    int code = system(
        test_path("%s prompts %s -q -l 1500 >/dev/full 2>%s/full", program ? program : "build/attgeo", good, folder));
    assert_int_equal(WIFEXITED(code) ? WEXITSTATUS(code) : -1, 1);
    assert_int_equal(system(test_path("test $(wc -l < %s/full) = 1 && grep -q attgeo: %s/full", folder, folder)), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pairs_over_seeds),  cmocka_unit_test(templates_kinds_wordings),
    cmocka_unit_test(answers),           cmocka_unit_test(depth),
    cmocka_unit_test(facts_apart),       cmocka_unit_test(same_bits),
    cmocka_unit_test(short_lengths),     cmocka_unit_test(long_lengths),
    cmocka_unit_test(options_refused),   cmocka_unit_test(crowded),
    cmocka_unit_test(built_in_haystack), cmocka_unit_test(sentences),
    cmocka_unit_test(hostile_haystacks), cmocka_unit_test(random_haystacks),
    cmocka_unit_test(out_of_memory),     cmocka_unit_test(read_back),
    cmocka_unit_test(command),           cmocka_unit_test(command_refuses),
};
TEST_GROUP(generate, "prompt generator and the prompts command", tests)
