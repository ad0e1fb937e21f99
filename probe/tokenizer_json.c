/* probe/tokenizer_json.c: a tokenizer from tokenizer.json. Everything that changes the tokens is either honoured or
 * refused by name; what does not (truncation, padding, decoder) is passed over. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "probe/tokenizer_parts.h"
#include "probe/unicode.h"

#define MAX_STAGES 8

struct loader {
    struct tokenizer *t;
    const char *path;
    struct ag_arena *scratch;
    struct ag_error *err;
};

/* Shows a value in messages: strings as they are, the rest as JSON. */
static const char *show(char out[192], const json_t *value) {
    if (value == NULL) return strcpy(out, "nothing");
    if (json_is_string(value)) return uni_show(out, 192, json_string_value(value), (int64_t)json_string_length(value));
    char text[1024];
    size_t n = json_dumpb(value, text, sizeof text, JSON_COMPACT | JSON_ENCODE_ANY);
    if (n == 0 || n > sizeof text) return strcpy(out, json_is_object(value) ? "an object" : "a list");
    return uni_show(out, 192, text, (int64_t)n);
}

static bool is_null(const json_t *value) { return value == NULL || json_is_null(value); }
static bool is_text(const json_t *value, const char *text) {
    return json_is_string(value) && json_string_length(value) == strlen(text) &&
           strcmp(json_string_value(value), text) == 0;
}
static bool type_is(const json_t *object, const char *type) { return is_text(json_object_get(object, "type"), type); }

static enum ag_status unsupported(struct loader *l, const char *key, const json_t *value, const char *expected) {
    char shown[192];
    return ag_fail(l->err, AG_E_UNSUPPORTED, "%s: %s is %s, which is not supported; supported: %s", l->path, key,
                   show(shown, value), expected);
}
static enum ag_status malformed(struct loader *l, const char *key, const json_t *value, const char *expected) {
    char shown[192];
    return ag_fail(l->err, AG_E_FORMAT, "%s: %s is %s; expected %s", l->path, key, show(shown, value), expected);
}

static enum ag_status read_bool(bool *out, struct loader *l, const json_t *object, const char *where, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_boolean(value)) {
        char name[128];
        snprintf(name, sizeof name, "%s.%s", where, key);
        return malformed(l, name, value, "true or false");
    }
    *out = json_is_true(value);
    return AG_OK;
}

static enum ag_status read_id(int32_t *out, struct loader *l, const json_t *value, const char *where, const char *token,
                              size_t n) {
    char shown[UNI_SHOW], number[192];
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > BPE_MAX_ID)
        return ag_fail(l->err, AG_E_FORMAT, "%s: %s: the id of \"%s\" is %s; expected an integer from 0 to %lld",
                       l->path, where, uni_show(shown, sizeof shown, token, (int64_t)n), show(number, value),
                       (long long)BPE_MAX_ID);
    *out = (int32_t)json_integer_value(value);
    return AG_OK;
}

/* Normalizer: none or NFC, also inside Sequences. */
static enum ag_status read_normalizer(struct loader *l, const json_t *value, int depth) {
    if (is_null(value)) return AG_OK;
    if (!json_is_object(value) || depth > 4) return malformed(l, "normalizer", value, "an object or null");
    if (type_is(value, "NFC")) {
        l->t->info.nfc = true;
        return AG_OK;
    }
    const json_t *list = json_object_get(value, "normalizers");
    if (type_is(value, "Sequence") && json_is_array(list)) {
        for (size_t i = 0; i < json_array_size(list); i++) {
            enum ag_status status = read_normalizer(l, json_array_get(list, i), depth + 1);
            if (status != AG_OK) return status;
        }
        return AG_OK;
    }
    if (type_is(value, "Prepend") || type_is(value, "Replace"))
        return unsupported(l, "normalizer", value, "none and NFC (this looks like a SentencePiece-style tokenizer)");
    return unsupported(l, "normalizer", value, "none and NFC");
}

static enum ag_status flatten(struct loader *l, const json_t **stages, int *n, const json_t *value, int depth) {
    if (!json_is_object(value) || depth > 4) return malformed(l, "pre_tokenizer", value, "an object");
    if (!type_is(value, "Sequence")) {
        if (*n == MAX_STAGES) return unsupported(l, "pre_tokenizer", value, "fewer stages");
        stages[(*n)++] = value;
        return AG_OK;
    }
    const json_t *list = json_object_get(value, "pretokenizers");
    if (!json_is_array(list)) return malformed(l, "pre_tokenizer.pretokenizers", list, "a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        enum ag_status status = flatten(l, stages, n, json_array_get(list, i), depth + 1);
        if (status != AG_OK) return status;
    }
    return AG_OK;
}

/* The regular expression of a Split that isolates its matches, else NULL. */
static const json_t *isolating(const json_t *stage) {
    const json_t *regex = json_object_get(json_object_get(stage, "pattern"), "Regex");
    bool fits = type_is(stage, "Split") && json_is_string(regex) &&
                is_text(json_object_get(stage, "behavior"), "Isolated") &&
                json_is_false(json_object_get(stage, "invert"));
    return fits ? regex : NULL;
}

/* Known sequences only (spec section 3): [Digits or Split(\p{N})] ByteLevel with its own pattern, or
 * Split(one of the patterns) ByteLevel without. Anything else is refused with the stage that does not fit. */
static enum ag_status read_pre_tokenizer(struct loader *l, const json_t *value) {
    enum ag_status status = AG_OK;
    const json_t *stages[MAX_STAGES];
    int n = 0, at = 0;
    bool digits = false, prefix = false, regex = true;
    if (is_null(value)) return unsupported(l, "pre_tokenizer", value, "byte-level pre-tokenizers");
    AG_TRY(flatten(l, stages, &n, value, 0));
    if (n == 0) return unsupported(l, "pre_tokenizer", value, "byte-level pre-tokenizers");
    const json_t *byte_level = stages[n - 1], *split = NULL;
    if (n > 1 && (type_is(stages[0], "Digits") || is_text(isolating(stages[0]), "\\p{N}"))) {
        bool single = true;
        if (type_is(stages[0], "Digits"))
            AG_TRY(read_bool(&single, l, stages[0], "pre_tokenizer Digits", "individual_digits"));
        if (!single) return unsupported(l, "pre_tokenizer", stages[0], "Digits with individual_digits true");
        digits = true;
        at++;
    }
    if (n - at == 2) {
        split = isolating(stages[at]);
        if (split == NULL)
            return unsupported(l, "pre_tokenizer", stages[at], "a Split that isolates one of the known patterns");
        at++;
    }
    if (n - at != 1 || !type_is(byte_level, "ByteLevel"))
        return unsupported(l, "pre_tokenizer", stages[at], "sequences that end in ByteLevel");
    AG_TRY(read_bool(&prefix, l, byte_level, "pre_tokenizer ByteLevel", "add_prefix_space"));
    if (prefix) return unsupported(l, "pre_tokenizer", byte_level, "ByteLevel with add_prefix_space false");
    if (json_object_get(byte_level, "use_regex") != NULL)
        AG_TRY(read_bool(&regex, l, byte_level, "pre_tokenizer ByteLevel", "use_regex"));
    if (split == NULL) {
        if (!regex)
            return unsupported(l, "pre_tokenizer", value, "ByteLevel with use_regex true, or a Split before it");
        l->t->pattern = digits ? PATTERN_SMOLLM : PATTERN_GPT2;
        return AG_OK;
    }
    if (regex) return unsupported(l, "pre_tokenizer", byte_level, "ByteLevel with use_regex false after a Split");
    for (int p = 0; p < PATTERN_COUNT; p++) {
        if (p == PATTERN_SMOLLM || !is_text(split, pattern_regex[p])) continue;
        if (digits && p != PATTERN_GPT2) break;
        l->t->pattern = digits ? PATTERN_SMOLLM : (enum pattern)p;
        return AG_OK;
    }
    return unsupported(l, "pre_tokenizer Split pattern", split,
                       "the patterns of GPT-2, SmolLM, Qwen2/3, Llama-3 and Qwen3.5, each spelt exactly");
fail:
    return status;
}

/* One TemplateProcessing: ids before and after sequence A. */
static enum ag_status read_template(struct loader *l, const json_t *value) {
    struct tokenizer *t = l->t;
    const json_t *single = json_object_get(value, "single"), *table = json_object_get(value, "special_tokens");
    if (!json_is_array(single)) return malformed(l, "post_processor.single", single, "a list");
    if (t->before != NULL) return unsupported(l, "post_processor", value, "one TemplateProcessing");
    int64_t total = 0, used = 0, split = -1;
    for (int pass = 0; pass < 2; pass++) {
        int32_t *ids = NULL;
        if (pass == 1 && (ids = AG_NEW(t->arena, int32_t, total, l->err)) == NULL) return AG_E_MEMORY;
        for (size_t i = 0; i < json_array_size(single); i++) {
            const json_t *piece = json_array_get(single, i), *sequence = json_object_get(piece, "Sequence");
            const json_t *name = json_object_get(json_object_get(piece, "SpecialToken"), "id");
            if (sequence != NULL && is_text(json_object_get(sequence, "id"), "A")) {
                if (pass == 0 && split >= 0) return malformed(l, "post_processor.single", single, "sequence A once");
                split = pass == 0 ? total : split;
                continue;
            }
            if (!json_is_string(name))
                return malformed(l, "post_processor.single", piece, "a SpecialToken or Sequence A");
            const json_t *list = json_object_get(json_object_get(table, json_string_value(name)), "ids");
            if (!json_is_array(list))
                return malformed(l, "post_processor.special_tokens", list, "a list of ids for each name");
            for (size_t k = 0; k < json_array_size(list); k++) {
                int32_t id;
                enum ag_status status = read_id(&id, l, json_array_get(list, k), "post_processor",
                                                json_string_value(name), json_string_length(name));
                if (status != AG_OK) return status;
                if (id >= t->bpe.n_ids || t->bpe.tokens[id].bytes == NULL)
                    return malformed(l, "post_processor.special_tokens", list, "ids of tokens that exist");
                if (pass == 0)
                    total++;
                else
                    ids[used++] = id;
            }
        }
        if (split < 0) return malformed(l, "post_processor.single", single, "sequence A in it");
        t->before = ids;
        t->after = ids != NULL ? ids + split : NULL;
    }
    t->n_before = split;
    t->n_after = total - split;
    return AG_OK;
}

static enum ag_status read_post_processor(struct loader *l, const json_t *value, int depth) {
    if (is_null(value)) return AG_OK;
    if (!json_is_object(value) || depth > 4) return malformed(l, "post_processor", value, "an object or null");
    if (type_is(value, "ByteLevel")) return AG_OK; /* trims reported offsets only; ours are untrimmed */
    if (type_is(value, "TemplateProcessing")) return read_template(l, value);
    const json_t *list = json_object_get(value, "processors");
    if (!type_is(value, "Sequence") || !json_is_array(list))
        return unsupported(l, "post_processor", value, "none, ByteLevel, TemplateProcessing and sequences of them");
    for (size_t i = 0; i < json_array_size(list); i++) {
        enum ag_status status = read_post_processor(l, json_array_get(list, i), depth + 1);
        if (status != AG_OK) return status;
    }
    return AG_OK;
}

static enum ag_status read_added(struct loader *l, const json_t *list, const json_t *vocab) {
    enum ag_status status = AG_OK;
    struct tokenizer *t = l->t;
    if (is_null(list)) return AG_OK;
    if (!json_is_array(list)) return malformed(l, "added_tokens", list, "a list");
    t->added = AG_ZEROS(t->arena, struct added_token, (int64_t)json_array_size(list), l->err);
    if (t->added == NULL) return AG_E_MEMORY;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *content = json_object_get(item, "content");
        struct added_token *token = &t->added[t->n_added];
        char where[64];
        snprintf(where, sizeof where, "added_tokens[%zu]", i);
        if (!json_is_string(content)) AG_TRY(malformed(l, where, item, "an object with content"));
        const char *text = json_string_value(content);
        size_t n = json_string_length(content);
        AG_TRY(read_id(&token->id, l, json_object_get(item, "id"), where, text, n));
        AG_TRY(read_bool(&token->special, l, item, where, "special"));
        AG_TRY(read_bool(&token->single_word, l, item, where, "single_word"));
        AG_TRY(read_bool(&token->lstrip, l, item, where, "lstrip"));
        AG_TRY(read_bool(&token->rstrip, l, item, where, "rstrip"));
        AG_TRY(read_bool(&token->normalized, l, item, where, "normalized"));
        if (n == 0 || n > ADDED_MAX_BYTES) AG_TRY(malformed(l, where, item, "content of 1 to 4096 bytes"));
        const json_t *same = strlen(text) == n ? json_object_get(vocab, text) : NULL;
        if (same != NULL && json_integer_value(same) != token->id)
            AG_TRY(malformed(l, where, item, "the id that the vocabulary gives to the same string"));
        token->content = ag_arena_text(t->arena, text, n, l->err);
        token->n = (int64_t)n;
        if (token->content == NULL) return AG_E_MEMORY;
        t->n_added++;
    }
fail:
    return status;
}

/* Merges as pairs, or as strings with one blank in the middle. */
static enum ag_status read_merges(struct loader *l, struct bpe_source *source, const json_t *list) {
    if (!json_is_array(list)) return malformed(l, "model.merges", list, "a list");
    struct bpe_string *merges = AG_NEW(l->scratch, struct bpe_string, 2 * (int64_t)json_array_size(list), l->err);
    if (merges == NULL) return AG_E_MEMORY;
    source->merges = merges;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *a = json_array_get(item, 0), *b = json_array_get(item, 1);
        char where[64];
        snprintf(where, sizeof where, "model.merges[%zu]", i);
        struct bpe_string *pair = &merges[2 * source->n_merges];
        if (json_is_string(item)) {
            const char *text = json_string_value(item);
            size_t n = json_string_length(item);
            if (strncmp(text, "#version", 8) == 0) continue;
            const char *blank = memchr(text, ' ', n);
            if (blank == NULL || memchr(blank + 1, ' ', n - (size_t)(blank + 1 - text)) != NULL)
                return malformed(l, where, item, "two tokens with one blank between");
            pair[0] = (struct bpe_string){text, blank - text};
            pair[1] = (struct bpe_string){blank + 1, (int64_t)n - (blank + 1 - text)};
        } else if (json_array_size(item) == 2 && json_is_string(a) && json_is_string(b)) {
            pair[0] = (struct bpe_string){json_string_value(a), (int64_t)json_string_length(a)};
            pair[1] = (struct bpe_string){json_string_value(b), (int64_t)json_string_length(b)};
        } else {
            return malformed(l, where, item, "a pair of tokens");
        }
        source->n_merges++;
    }
    return AG_OK;
}

/* Refuses by name what a model may say that our merging does not do. */
static enum ag_status check_model(struct loader *l, const json_t *model) {
    const json_t *type = json_object_get(model, "type"), *dropout = json_object_get(model, "dropout"), *value;
    if (type == NULL ? json_object_get(model, "merges") == NULL : !is_text(type, "BPE"))
        return unsupported(l, "model.type", type, "byte-level BPE");
    if (!is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return unsupported(l, "model.dropout", dropout, "null or 0");
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++)
        if (!is_null(value = json_object_get(model, affixes[i])) && !is_text(value, ""))
            return unsupported(l, affixes[i], value, "null");
    if (!is_null(value = json_object_get(model, "byte_fallback")) && !json_is_false(value))
        return unsupported(l, "model.byte_fallback", value, "false (true belongs to SentencePiece-style tokenizers)");
    return AG_OK;
}

static enum ag_status read_model(struct loader *l, const json_t *root, const json_t *model) {
    enum ag_status status = AG_OK;
    struct tokenizer *t = l->t;
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *ignore = json_object_get(model, "ignore_merges");
    struct bpe_source source = {.path = l->path};
    if (!json_is_object(vocab)) AG_TRY(malformed(l, "model.vocab", vocab, "an object"));
    if (!is_null(ignore)) AG_TRY(read_bool(&source.ignore_merges, l, model, "model", "ignore_merges"));
    AG_TRY(read_added(l, json_object_get(root, "added_tokens"), vocab));
    int64_t room = (int64_t)json_object_size(vocab) + t->n_added;
    struct bpe_string *tokens = AG_NEW(l->scratch, struct bpe_string, room, l->err);
    int32_t *ids = AG_NEW(l->scratch, int32_t, room, l->err);
    bool *literal = AG_ZEROS(l->scratch, bool, room, l->err);
    if (tokens == NULL || ids == NULL || literal == NULL) return AG_E_MEMORY;
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value) {
        size_t n = strlen(key);
        AG_TRY(read_id(&ids[source.n_tokens], l, value, "model.vocab", key, n));
        tokens[source.n_tokens++] = (struct bpe_string){key, (int64_t)n};
    }
    for (int64_t k = 0; k < t->n_added; k++) {
        const struct added_token *token = &t->added[k];
        if (strlen(token->content) == (size_t)token->n && json_object_get(vocab, token->content) != NULL) continue;
        literal[source.n_tokens] = true;
        ids[source.n_tokens] = token->id;
        tokens[source.n_tokens++] = (struct bpe_string){token->content, token->n};
    }
    for (int64_t k = 0; k < source.n_tokens; k++)
        if (ids[k] >= source.n_ids) source.n_ids = ids[k] + 1;
    source.tokens = tokens;
    source.ids = ids;
    source.literal = literal;
    AG_TRY(read_merges(l, &source, json_object_get(model, "merges")));
    AG_TRY(bpe_build(&t->bpe, &source, t->arena, l->err));
    for (int64_t k = 0; k < t->n_added;
         k++) /* an added token stands for its content, also where it is in the vocabulary */
        t->bpe.tokens[t->added[k].id] = (struct bpe_bytes){t->added[k].content, (int32_t)t->added[k].n};
fail:
    return status;
}

enum ag_status tokenizer_from_json(struct tokenizer *t, const char *path, const char *text, size_t n,
                                   struct ag_error *err) {
    enum ag_status status = AG_OK;
    json_error_t problem;
    struct loader l = {t, path, ag_arena_new("tokenizer scratch"), err};
    json_t *root = NULL;
    if (l.scratch == NULL) return ag_fail(err, AG_E_MEMORY, "out of memory");
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
    if (root == NULL) {
        char shown[192];
        AG_TRY(ag_fail(err, AG_E_FORMAT, "%s: line %d, column %d: not valid JSON: %s", path, problem.line,
                       problem.column, uni_show(shown, sizeof shown, problem.text, (int64_t)strlen(problem.text))));
    }
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model)) AG_TRY(malformed(&l, "model", model, "the object \"model\" of a tokenizer.json"));
    AG_TRY(check_model(&l, model));
    AG_TRY(read_normalizer(&l, json_object_get(root, "normalizer"), 0));
    AG_TRY(read_pre_tokenizer(&l, json_object_get(root, "pre_tokenizer")));
    AG_TRY(read_model(&l, root, model));
    AG_TRY(read_post_processor(&l, json_object_get(root, "post_processor"), 0));
fail:
    json_decref(root);
    ag_arena_free(l.scratch);
    return status;
}
