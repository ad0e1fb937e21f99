/* probe/added.c: see added.h; the rules are those of spec/tokenizer.md section 1, step 1. */
#include "probe/added.h"

#include <string.h>

#include "probe/unicode.h"

static uint64_t slot_of(const struct added_set *set, uint64_t key) {
    uint64_t at = key * 0x9e3779b97f4a7c15u;
    at = (at ^ at >> 32) & set->mask;
    while (set->edges[at].key != UINT64_MAX && set->edges[at].key != key) at = (at + 1) & set->mask;
    return at;
}

enum ag_status added_build(struct added_set *set, const struct added_token *tokens, int64_t n, struct ag_arena *arena,
                           struct ag_error *err) {
    *set = (struct added_set){.tokens = tokens, .n = n};
    int64_t bytes = 1;
    for (int64_t k = 0; k < n; k++)
        if (!ag_add(bytes, tokens[k].n, &bytes)) return ag_fail(err, AG_E_MEMORY, "added tokens: too many bytes");
    if (bytes > INT32_MAX / 4) return ag_fail(err, AG_E_UNSUPPORTED, "added tokens of more than 512 MiB");
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)bytes) slots *= 2;
    set->mask = slots - 1;
    set->edges = AG_NEW(arena, struct added_edge, (int64_t)slots, err);
    set->ends = AG_NEW(arena, int32_t, bytes, err);
    if (set->edges == NULL || set->ends == NULL) return AG_E_MEMORY;
    memset(set->edges, 0xff, slots * sizeof *set->edges);
    memset(set->ends, 0xff, (size_t)bytes * sizeof *set->ends);
    int32_t nodes = 1;
    for (int64_t k = 0; k < n; k++) {
        int32_t node = 0;
        for (int64_t i = 0; i < tokens[k].n; i++) {
            uint64_t key = (uint64_t)node << 8 | (unsigned char)tokens[k].content[i];
            struct added_edge *edge = &set->edges[slot_of(set, key)];
            if (edge->key == UINT64_MAX) *edge = (struct added_edge){key, nodes++};
            node = edge->node;
        }
        if (tokens[k].n == 0) continue;
        if (set->ends[node] >= 0) {
            char shown[UNI_SHOW];
            return ag_fail(err, AG_E_FORMAT, "the added token \"%s\" is given twice",
                           uni_show(shown, sizeof shown, tokens[k].content, tokens[k].n));
        }
        set->first[(unsigned char)tokens[k].content[0]] = true;
        set->ends[node] = (int32_t)k;
    }
    return AG_OK;
}

static bool word_before(const char *text, int64_t i) {
    int length;
    return i > 0 && uni_word(uni_decode(text + uni_before(text, i), &length));
}
static bool word_after(const char *text, int64_t i, int64_t n) {
    int length;
    return i < n && uni_word(uni_decode(text + i, &length));
}
static bool blank(const char *text, int64_t i, int *length) {
    return (uni_class(uni_decode(text + i, length)) & UNI_SPACE) != 0;
}

bool added_next(struct added_match *match, const struct added_set *set, const char *text, int64_t n, int64_t from,
                bool plain) {
    if (set->n == 0) return false;
    for (int64_t i = from; i < n;) {
        if (!set->first[(unsigned char)text[i]]) {
            i++;
            continue;
        }
        int32_t node = 0, found = -1;
        int64_t end = i;
        for (int64_t k = i; k < n; k++) {
            const struct added_edge *edge = &set->edges[slot_of(set, (uint64_t)node << 8 | (unsigned char)text[k])];
            if (edge->key == UINT64_MAX) break;
            node = edge->node;
            if (set->ends[node] >= 0) {
                found = set->ends[node];
                end = k + 1;
            }
        }
        if (found < 0) {
            i++;
            continue;
        }
        const struct added_token *token = &set->tokens[found];
        int64_t begin = i;
        i = end; /* what is passed over below is passed over whole, as the reference does */
        if (plain && token->special) continue;
        if (token->single_word && (word_before(text, begin) || word_after(text, end, n))) continue;
        int length;
        if (token->lstrip)
            for (int64_t at; begin > from && blank(text, at = uni_before(text, begin), &length);) begin = at;
        if (token->rstrip)
            while (end < n && blank(text, end, &length)) end += length;
        *match = (struct added_match){token, begin, end};
        return true;
    }
    return false;
}
