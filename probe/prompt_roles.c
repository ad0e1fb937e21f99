/* probe/prompt_roles.c: prompts as tokens, with roles and values (MATH.md section 1). */
#include <string.h>

#include "probe/prompts.h"
#include "probe/unicode.h"

struct range {
    int64_t begin, end; /* begin < 0: none */
};

/* Without the blanks at both ends. */
static struct range trimmed(const char *text) {
    struct range r = {0, (int64_t)strlen(text)};
    int n;
    while (r.begin < r.end && (uni_class(uni_decode(text + r.begin, &n)) & UNI_SPACE) != 0) r.begin += n;
    while (r.begin < r.end && (uni_class(uni_decode(text + uni_before(text, r.end), &n)) & UNI_SPACE) != 0)
        r.end = uni_before(text, r.end);
    return r;
}

/* The value of a needle or distractor: as given, or the last occurrence of the trimmed answer in the span. */
static struct range value_of(const struct prompts *prompts, const struct prompt *prompt,
                             const struct prompt_span *span) {
    const struct range none = {-1, -1};
    if (span->value_begin >= 0) return (struct range){span->value_begin, span->value_end};
    const char *answer = prompt->answer;
    if (span->role == AG_ROLE_DISTRACTOR)
        answer = prompt->twin_index >= 0 ? prompts->data[prompt->twin_index].answer : NULL;
    if (answer == NULL) return none;
    struct range word = trimmed(answer);
    int64_t n = word.end - word.begin;
    if (n == 0) return none;
    for (int64_t at = span->end - n; at >= span->begin; at--)
        if (memcmp(prompt->text + at, answer + word.begin, (size_t)n) == 0) return (struct range){at, at + n};
    return none;
}

static const int rank_of[AG_ROLE_COUNT] = {[AG_ROLE_NEEDLE] = 5,
                                           [AG_ROLE_DISTRACTOR] = 4,
                                           [AG_ROLE_QUESTION] = 3,
                                           [AG_ROLE_HAYSTACK] = 2,
                                           [AG_ROLE_SPECIAL] = 1};

/* Index of the first token that ends behind byte `begin`: tokens are in order, so a range is a run of them. A token of
 * no bytes (a share of a character that NFC spread over several tokens) counts as the byte at its place. */
static int64_t first_over(const struct token *tokens, int64_t n, int64_t begin) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t mid = (low + high) / 2, end = tokens[mid].end + (tokens[mid].end == tokens[mid].begin);
        if (end > begin)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Whether a token's bytes touch a letter or a number. text: prompt, then answer. */
static bool holds_value(const char *text, const struct token *token) {
    if (token->special) return false;
    int64_t at = token->begin;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) at--;
    for (int n; at < token->end; at += n)
        if ((uni_class(uni_decode(text + at, &n)) & (UNI_L | UNI_N)) != 0) return true;
    return false;
}

/* Roles and values of one prompt's tokens; the first n_text of n belong to the text. missing: bits AG_VALUE_*. */
static unsigned assign(uint8_t *role, uint8_t *value, const struct token *tokens, int64_t n_text, int64_t n,
                       const struct prompts *prompts, const struct prompt *prompt, const char *whole) {
    unsigned missing = 0;
    bool haystack = false;
    for (int64_t k = 0; k < prompt->n_spans; k++) haystack = haystack || prompt->spans[k].role == AG_ROLE_HAYSTACK;
    memset(role, haystack ? AG_ROLE_SPECIAL : AG_ROLE_HAYSTACK, (size_t)n_text);
    memset(value, 0, (size_t)n);
    for (int rank = 1; rank <= 5; rank++) /* the strongest role last */
        for (int64_t k = 0; k < prompt->n_spans; k++) {
            const struct prompt_span *span = &prompt->spans[k];
            if (rank_of[span->role] != rank) continue;
            for (int64_t i = first_over(tokens, n_text, span->begin); i < n_text && tokens[i].begin < span->end; i++)
                role[i] = (uint8_t)span->role;
            if (span->role != AG_ROLE_NEEDLE && span->role != AG_ROLE_DISTRACTOR) continue;
            uint8_t bit = span->role == AG_ROLE_NEEDLE ? AG_VALUE_NEEDLE : AG_VALUE_DISTRACTOR;
            struct range v = value_of(prompts, prompt, span);
            if (v.begin < 0) missing |= bit;
            for (int64_t i = first_over(tokens, n_text, v.begin); v.begin >= 0 && i < n_text && tokens[i].begin < v.end;
                 i++)
                if (!tokens[i].special) value[i] |= bit;
        }
    for (int64_t i = 0; i < n_text; i++)
        if (tokens[i].special) role[i] = AG_ROLE_SPECIAL;
    bool found = false;
    for (int64_t i = n_text; i < n; i++) {
        role[i] = AG_ROLE_ANSWER;
        if (holds_value(whole, &tokens[i])) {
            value[i] = AG_VALUE_ANSWER;
            found = true;
        }
    }
    if (prompt->answer != NULL && !found) missing |= AG_VALUE_ANSWER;
    return missing;
}

/* Appends a prompt's tokens to all; *n_text of them belong to the text. whole: scratch for text + answer. */
static enum ag_status encode_one(struct token_list *all, int64_t *n_text, struct ag_buf *whole,
                                 const struct prompts *prompts, const struct prompt *prompt,
                                 const struct tokenizer *tokenizer, bool specials, bool *double_bos,
                                 struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct token_list alone = {0};
    int64_t first = all->n;
    bool twice;
    whole->size = 0;
    AG_TRY(ag_buf_add(whole, prompt->text, (size_t)prompt->text_bytes, err));
    if (prompt->answer == NULL) {
        AG_TRY(tokenizer_encode(all, tokenizer, whole->data, whole->size, specials, double_bos, err));
        *n_text = all->n - first;
        return AG_OK;
    }
    AG_TRY(ag_buf_add(whole, prompt->answer, strlen(prompt->answer), err));
    AG_TRY(tokenizer_encode(&alone, tokenizer, prompt->text, (size_t)prompt->text_bytes, specials, double_bos, err));
    AG_TRY(tokenizer_encode(all, tokenizer, whole->data, whole->size, specials, &twice, err));
    /* EOS that the tokenizer appends, an empty span at the end, would stand between text and answer, or follow it. */
    if (specials && tokenizer_info(tokenizer)->adds_eos) {
        while (alone.n > 0 && alone.data[alone.n - 1].special && alone.data[alone.n - 1].begin == prompt->text_bytes)
            alone.n--;
        while (all->n > first && all->data[all->n - 1].special && all->data[all->n - 1].begin == (int64_t)whole->size)
            all->n--;
    }
    const struct token *with = all->data + first;
    int64_t same = 0;
    while (same < alone.n && same < all->n - first && alone.data[same].id == with[same].id &&
           alone.data[same].begin == with[same].begin && alone.data[same].end == with[same].end)
        same++;
    if (same < alone.n) {
        char shown[UNI_SHOW];
        AG_TRY(ag_fail(
            err, AG_E_FORMAT,
            "answer: \"%s\" changes the tokens of the text from byte %lld on; expected an answer that starts a new "
            "token (begin it with a blank, or end the text elsewhere)",
            uni_show(shown, sizeof shown, prompt->answer, (int64_t)strlen(prompt->answer)),
            (long long)alone.data[same].begin));
    }
    *n_text = alone.n;
fail:
    if (status != AG_OK) ag_fail_context(err, "%s: line %lld", prompts->path, (long long)prompt->line);
    token_list_free(&alone);
    return status;
}

enum ag_status prompts_encode(struct prompt_tokens **out, const struct prompts *prompts,
                              const struct tokenizer *tokenizer, bool specials, struct ag_error *err) {
    enum ag_status status = AG_OK;
    *out = NULL;
    int64_t P = prompts->P, T = 0;
    struct token_list all = {0};
    struct ag_buf whole = {0};
    struct ag_arena *arena = ag_arena_new("prompt tokens");
    if (arena == NULL) return ag_fail(err, AG_E_MEMORY, "out of memory: prompt tokens");
    struct prompt_tokens *result = AG_ZEROS(arena, struct prompt_tokens, 1, err);
    int64_t *offsets = AG_NEW(arena, int64_t, P + 1, err), *n_text = AG_NEW(arena, int64_t, P, err);
    int64_t *twin = AG_NEW(arena, int64_t, P, err);
    const char **id = AG_NEW(arena, const char *, P, err), **text = AG_NEW(arena, const char *, P, err),
               **answer = AG_NEW(arena, const char *, P, err);
    if (result == NULL || offsets == NULL || n_text == NULL || twin == NULL || id == NULL || text == NULL ||
        answer == NULL)
        AG_TRY(AG_E_MEMORY);
    for (int64_t p = 0; p < P; p++) {
        const struct prompt *prompt = &prompts->data[p];
        bool twice = false;
        offsets[p] = all.n;
        AG_TRY(encode_one(&all, &n_text[p], &whole, prompts, prompt, tokenizer, specials, &twice, err));
        result->double_bos += twice;
        twin[p] = prompt->twin_index;
        id[p] = ag_arena_text(arena, prompt->id, strlen(prompt->id), err);
        text[p] = ag_arena_text(arena, prompt->text, (size_t)prompt->text_bytes, err);
        answer[p] = prompt->answer == NULL ? NULL : ag_arena_text(arena, prompt->answer, strlen(prompt->answer), err);
        if (id[p] == NULL || text[p] == NULL || (answer[p] == NULL && prompt->answer != NULL)) AG_TRY(AG_E_MEMORY);
        if (all.n == offsets[p])
            AG_TRY(ag_fail(err, AG_E_FORMAT, "%s: line %lld: text: gives no token", prompts->path,
                           (long long)prompt->line));
    }
    offsets[P] = T = all.n;
    int32_t *ids = AG_NEW(arena, int32_t, T, err);
    uint8_t *role = AG_NEW(arena, uint8_t, T, err), *value = AG_NEW(arena, uint8_t, T, err);
    int64_t *begin = AG_NEW(arena, int64_t, T, err), *end = AG_NEW(arena, int64_t, T, err);
    if (ids == NULL || role == NULL || value == NULL || begin == NULL || end == NULL) AG_TRY(AG_E_MEMORY);
    for (int64_t t = 0; t < T; t++) {
        ids[t] = all.data[t].id;
        begin[t] = all.data[t].begin;
        end[t] = all.data[t].end;
    }
    for (int64_t p = 0; p < P; p++) {
        whole.size = 0;
        AG_TRY(ag_buf_add(&whole, text[p], strlen(text[p]), err));
        if (answer[p] != NULL) AG_TRY(ag_buf_add(&whole, answer[p], strlen(answer[p]), err));
        unsigned missing = assign(role + offsets[p], value + offsets[p], all.data + offsets[p], n_text[p],
                                  offsets[p + 1] - offsets[p], prompts, &prompts->data[p], whole.data);
        result->missing_value[0] += (missing & AG_VALUE_NEEDLE) != 0;
        result->missing_value[1] += (missing & AG_VALUE_DISTRACTOR) != 0;
        result->missing_value[2] += (missing & AG_VALUE_ANSWER) != 0;
    }
    result->tokens = (struct ag_tokens){P, T, offsets, ids, role, begin, end, value, id, text, answer, twin};
    result->arena = arena;
    *out = result;
fail:
    if (status != AG_OK) ag_arena_free(arena);
    token_list_free(&all);
    ag_buf_free(&whole);
    return status;
}

void prompt_tokens_free(struct prompt_tokens *tokens) {
    if (tokens != NULL) ag_arena_free(tokens->arena);
}

int64_t prompt_queries(int64_t *out, int64_t room, const struct ag_tokens *tokens, int64_t prompt) {
    int64_t first = tokens->offsets[prompt], count = 0;
    for (int64_t t = first + 1; t < tokens->offsets[prompt + 1]; t++) {
        if ((tokens->value[t] & AG_VALUE_ANSWER) == 0) continue;
        if (out != NULL && count < room) out[count] = t - 1 - first;
        count++;
    }
    return count;
}
