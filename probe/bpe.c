/* probe/bpe.c: see bpe.h. Merging always takes the lowest rank, leftmost on ties: a scan over short pre-tokens, a heap
 * over long ones (a run of one letter is a single pre-token, however long). */
#include "probe/bpe.h"

#include <string.h>

#include "probe/unicode.h"

/* Bytes that print as themselves; the other 68 are U+0100 and on, in ascending order (spec section 2). */
static bool is_direct(unsigned b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae; }

static int32_t mapped_character(unsigned b) {
    if (is_direct(b)) return (int32_t)b;
    int32_t cp = 0x100;
    for (unsigned k = 0; k < b; k++)
        if (!is_direct(k)) cp++;
    return cp;
}

int64_t bpe_unmap(char *out, const char *text, int64_t n) {
    int64_t used = 0;
    for (int64_t i = 0; i < n;) {
        int length;
        int32_t cp = uni_decode(text + i, &length);
        i += length;
        if (cp < 0x100) {
            if (!is_direct((unsigned)cp)) return -1;
        } else { /* 00-20, 7f-a0, ad */
            cp -= 0x100;
            if (cp > 67) return -1;
            cp = cp <= 0x20 ? cp : cp < 67 ? cp - 0x21 + 0x7f : 0xad;
        }
        out[used++] = (char)cp;
    }
    return used;
}

static uint64_t hash_bytes(const char *s, int64_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ (uint64_t)n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, s, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    for (; n > 0; s++, n--) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    h ^= h >> 29;
    return h * 0xc4ceb9fe1a85ec53u >> 16;
}

static uint64_t hash_pair(uint64_t pair) {
    pair *= 0x9e3779b97f4a7c15u;
    return pair ^ pair >> 29;
}

static uint64_t slots_for(int64_t n) {
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n + 2) slots *= 2;
    return slots;
}

/* Build-time index of token strings. */
struct index {
    const struct bpe_source *source;
    int32_t *slots; /* token number, -1 free */
    uint64_t mask;
    bool *mapped; /* (n_tokens) the string is made of mapped characters only */
};

static int64_t index_find(const struct index *index, const char *text, int64_t n, uint64_t *slot) {
    uint64_t at = hash_bytes(text, n) & index->mask;
    for (; index->slots[at] >= 0; at = (at + 1) & index->mask) {
        const struct bpe_string *s = &index->source->tokens[index->slots[at]];
        if (s->n == n && memcmp(s->text, text, (size_t)n) == 0) break;
    }
    *slot = at;
    return index->slots[at];
}

static int32_t index_id(const struct index *index, const char *text, int64_t n) {
    uint64_t slot;
    int64_t k = index_find(index, text, n, &slot);
    return k < 0 ? -1 : index->source->ids[k];
}

static const struct bpe_merge *find_merge(const struct bpe *bpe, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint64_t at = hash_pair(pair) & bpe->merge_mask;; at = (at + 1) & bpe->merge_mask) {
        if (bpe->merges[at].pair == pair) return &bpe->merges[at];
        if (bpe->merges[at].pair == UINT64_MAX) return NULL;
    }
}

static enum ag_status build_tokens(struct bpe *bpe, struct index *index, struct ag_arena *arena,
                                   struct ag_arena *scratch, struct ag_error *err) {
    const struct bpe_source *source = index->source;
    int64_t bytes = 0;
    char shown[UNI_SHOW];
    for (int64_t k = 0; k < source->n_tokens; k++)
        if (source->tokens[k].n > INT32_MAX || !ag_add(bytes, source->tokens[k].n, &bytes))
            return ag_fail(err, AG_E_FORMAT, "%s: tokens of more than 2 GiB", source->path);
    char *pool = ag_arena_alloc(arena, bytes, 1, err);
    bpe->tokens = AG_ZEROS(arena, struct bpe_bytes, source->n_ids, err);
    index->mask = slots_for(source->n_tokens) - 1;
    index->slots = AG_NEW(scratch, int32_t, (int64_t)index->mask + 1, err);
    index->mapped = AG_NEW(scratch, bool, source->n_tokens, err);
    if (pool == NULL || bpe->tokens == NULL || index->slots == NULL || index->mapped == NULL) return AG_E_MEMORY;
    memset(index->slots, 0xff, ((size_t)index->mask + 1) * sizeof *index->slots);
    for (int64_t k = 0; k < source->n_tokens; k++) {
        const struct bpe_string *s = &source->tokens[k];
        struct bpe_bytes *token = &bpe->tokens[source->ids[k]];
        if (token->bytes != NULL)
            return ag_fail(err, AG_E_FORMAT, "%s: two tokens have the id %d, the second is \"%s\"", source->path,
                           (int)source->ids[k], uni_show(shown, sizeof shown, s->text, s->n));
        token->bytes = pool;
        bool literal = source->literal != NULL && source->literal[k];
        int64_t n = literal ? -1 : bpe_unmap(pool, s->text, s->n);
        index->mapped[k] = n >= 0;
        if (n < 0) memcpy(pool, s->text, (size_t)(n = s->n));
        token->n = (int32_t)n;
        pool += n;
        uint64_t slot;
        if (literal) continue;
        if (index_find(index, s->text, s->n, &slot) >= 0)
            return ag_fail(err, AG_E_FORMAT, "%s: the token \"%s\" is in the vocabulary twice", source->path,
                           uni_show(shown, sizeof shown, s->text, s->n));
        index->slots[slot] = (int32_t)k;
    }
    return AG_OK;
}

static enum ag_status build_merges(struct bpe *bpe, const struct index *index, struct ag_arena *arena,
                                   struct ag_error *err) {
    const struct bpe_source *source = index->source;
    bpe->merge_mask = slots_for(source->n_merges) - 1;
    bpe->merges = AG_NEW(arena, struct bpe_merge, (int64_t)bpe->merge_mask + 1, err);
    if (bpe->merges == NULL) return AG_E_MEMORY;
    memset(bpe->merges, 0xff, ((size_t)bpe->merge_mask + 1) * sizeof *bpe->merges);
    struct ag_buf joined = {0};
    enum ag_status status = AG_OK;
    for (int64_t k = 0; k < source->n_merges; k++) {
        const struct bpe_string *a = &source->merges[2 * k], *b = a + 1;
        int32_t left = index_id(index, a->text, a->n), right = index_id(index, b->text, b->n);
        joined.size = 0;
        AG_TRY(ag_buf_add(&joined, a->text, (size_t)a->n, err));
        AG_TRY(ag_buf_add(&joined, b->text, (size_t)b->n, err));
        int32_t id = index_id(index, joined.data, (int64_t)joined.size);
        if (a->n == 0 || b->n == 0)
            AG_TRY(ag_fail(err, AG_E_FORMAT, "%s: merge %lld has an empty part", source->path, (long long)k));
        if (left < 0 || right < 0 || id < 0) {
            char shown[2][UNI_SHOW], missing[UNI_SHOW];
            if (left < 0)
                uni_show(missing, sizeof missing, a->text, a->n);
            else if (right < 0)
                uni_show(missing, sizeof missing, b->text, b->n);
            else
                uni_show(missing, sizeof missing, joined.data, (int64_t)joined.size);
            AG_TRY(ag_fail(err, AG_E_FORMAT,
                           "%s: merge %lld (\"%s\", \"%s\") needs the token \"%s\", which the vocabulary lacks",
                           source->path, (long long)k, uni_show(shown[0], UNI_SHOW, a->text, a->n),
                           uni_show(shown[1], UNI_SHOW, b->text, b->n), missing));
        }
        uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
        uint64_t at = hash_pair(pair) & bpe->merge_mask;
        while (bpe->merges[at].pair != UINT64_MAX && bpe->merges[at].pair != pair) at = (at + 1) & bpe->merge_mask;
        if (bpe->merges[at].pair != pair) bpe->n_merges++;
        bpe->merges[at] =
            (struct bpe_merge){pair, (int32_t)k, id}; /* given twice: the last one, as the reference does */
    }
fail:
    ag_buf_free(&joined);
    return status;
}

static enum ag_status build_whole(struct bpe *bpe, const struct index *index, struct ag_arena *arena,
                                  struct ag_error *err) {
    const struct bpe_source *source = index->source;
    bpe->whole_mask = slots_for(source->n_tokens) - 1;
    bpe->whole = AG_NEW(arena, int32_t, (int64_t)bpe->whole_mask + 1, err);
    if (bpe->whole == NULL) return AG_E_MEMORY;
    memset(bpe->whole, 0xff, ((size_t)bpe->whole_mask + 1) * sizeof *bpe->whole);
    for (uint64_t slot = 0; slot <= index->mask; slot++) {
        if (index->slots[slot] < 0) continue;
        int32_t id = source->ids[index->slots[slot]];
        const struct bpe_bytes *token = &bpe->tokens[id];
        if (token->n == 0 || !index->mapped[index->slots[slot]]) continue; /* no text maps to it */
        uint64_t at = hash_bytes(token->bytes, token->n) & bpe->whole_mask;
        while (bpe->whole[at] >= 0) at = (at + 1) & bpe->whole_mask;
        bpe->whole[at] = id;
    }
    return AG_OK;
}

enum ag_status bpe_build(struct bpe *out, const struct bpe_source *source, struct ag_arena *arena,
                         struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct ag_arena *scratch = ag_arena_new("tokenizer scratch");
    if (scratch == NULL) return ag_fail(err, AG_E_MEMORY, "out of memory");
    struct index index = {source, NULL, 0, NULL};
    *out = (struct bpe){.n_ids = source->n_ids};
    if (source->n_merges > INT32_MAX) AG_TRY(ag_fail(err, AG_E_FORMAT, "%s: too many merges", source->path));
    AG_TRY(build_tokens(out, &index, arena, scratch, err));
    for (unsigned b = 0; b < 256; b++) {
        char c[4];
        out->symbol[b] = index_id(&index, c, uni_encode(c, mapped_character(b)));
    }
    AG_TRY(build_merges(out, &index, arena, err));
    if (source->ignore_merges) AG_TRY(build_whole(out, &index, arena, err));
fail:
    ag_arena_free(scratch);
    return status;
}

/* Pre-tokens of up to BPE_SHORT bytes: the pairs' merges in an array, rescanned after each merge. */
static int64_t merge_short(int32_t *ids, int64_t n, const struct bpe *bpe) {
    int32_t rank[BPE_SHORT], merged[BPE_SHORT];
    for (int64_t i = 0; i + 1 < n; i++) {
        const struct bpe_merge *m = find_merge(bpe, ids[i], ids[i + 1]);
        rank[i] = m != NULL ? m->rank : INT32_MAX;
        merged[i] = m != NULL ? m->id : -1;
    }
    while (n > 1) {
        int64_t best = 0;
        for (int64_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == INT32_MAX) break;
        ids[best] = merged[best];
        n--;
        for (int64_t i = best + 1; i < n; i++) ids[i] = ids[i + 1];
        for (int64_t i = best; i + 1 < n; i++) {
            rank[i] = rank[i + 1];
            merged[i] = merged[i + 1];
        }
        for (int64_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct bpe_merge *m = find_merge(bpe, ids[i], ids[i + 1]);
            rank[i] = m != NULL ? m->rank : INT32_MAX;
            merged[i] = m != NULL ? m->id : -1;
        }
    }
    return n;
}

/* A binary heap of rank << 32 | position: the smallest is the lowest rank, leftmost. */
struct heap {
    uint64_t *keys;
    int64_t n;
};
static void heap_push(struct heap *heap, uint64_t key) {
    int64_t at = heap->n++;
    for (; at > 0 && heap->keys[(at - 1) / 2] > key; at = (at - 1) / 2) heap->keys[at] = heap->keys[(at - 1) / 2];
    heap->keys[at] = key;
}
static uint64_t heap_pop(struct heap *heap) {
    uint64_t top = heap->keys[0], key = heap->keys[--heap->n];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < heap->n; at = child) {
        if (child + 1 < heap->n && heap->keys[child + 1] < heap->keys[child]) child++;
        if (heap->keys[child] >= key) break;
        heap->keys[at] = heap->keys[child];
    }
    heap->keys[at] = key;
    return top;
}

static enum ag_status merge_long(int32_t *ids, int64_t *count, const struct bpe *bpe, struct ag_arena *arena,
                                 struct ag_error *err) {
    int64_t n = *count;
    int32_t *before = AG_NEW(arena, int32_t, n, err), *after = AG_NEW(arena, int32_t, n, err);
    struct heap heap = {AG_NEW(arena, uint64_t, 3 * n, err), 0}; /* n - 1 pairs, and two for each of n - 1 merges */
    if (before == NULL || after == NULL || heap.keys == NULL) return AG_E_MEMORY;
    for (int64_t i = 0; i < n; i++) {
        before[i] = (int32_t)(i - 1);
        after[i] = i + 1 < n ? (int32_t)(i + 1) : -1;
        const struct bpe_merge *m = i + 1 < n ? find_merge(bpe, ids[i], ids[i + 1]) : NULL;
        if (m != NULL) heap_push(&heap, (uint64_t)m->rank << 32 | (uint64_t)i);
    }
    while (heap.n > 0) {
        uint64_t key = heap_pop(&heap);
        int32_t i = (int32_t)(key & 0xffffffffu), j = ids[i] < 0 ? -1 : after[i];
        if (j < 0) continue; /* merged into the one before, or the last */
        const struct bpe_merge *m = find_merge(bpe, ids[i], ids[j]);
        if (m == NULL || (uint64_t)m->rank != key >> 32) continue; /* the pair has changed since */
        ids[i] = m->id;
        ids[j] = -1;
        after[i] = after[j];
        if (after[i] >= 0) {
            before[after[i]] = i;
            if ((m = find_merge(bpe, ids[i], ids[after[i]])) != NULL)
                heap_push(&heap, (uint64_t)m->rank << 32 | (uint32_t)i);
        }
        if (before[i] >= 0 && (m = find_merge(bpe, ids[before[i]], ids[i])) != NULL)
            heap_push(&heap, (uint64_t)m->rank << 32 | (uint32_t)before[i]);
    }
    *count = 0;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0) ids[(*count)++] = ids[i];
    return AG_OK;
}

enum ag_status bpe_encode(const int32_t **out, int64_t *count, int32_t ids[BPE_SHORT], const struct bpe *bpe,
                          const char *text, int64_t n, struct ag_arena *arena, struct ag_error *err) {
    *out = ids;
    if (bpe->whole != NULL) {
        for (uint64_t at = hash_bytes(text, n) & bpe->whole_mask; bpe->whole[at] >= 0;
             at = (at + 1) & bpe->whole_mask) {
            const struct bpe_bytes *token = &bpe->tokens[bpe->whole[at]];
            if (token->n != n || memcmp(token->bytes, text, (size_t)n) != 0) continue;
            ids[0] = bpe->whole[at];
            *count = 1;
            return AG_OK;
        }
    }
    int32_t *symbols = ids;
    if (n > BPE_SHORT) {
        if (n > INT32_MAX / 4) return ag_fail(err, AG_E_UNSUPPORTED, "a single word of %lld bytes", (long long)n);
        symbols = AG_NEW(arena, int32_t, n, err);
        if (symbols == NULL) return AG_E_MEMORY;
        *out = symbols;
    }
    for (int64_t i = 0; i < n; i++) {
        symbols[i] = bpe->symbol[(unsigned char)text[i]];
        if (symbols[i] < 0)
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "the vocabulary has no token for the byte 0x%02x, which the text holds",
                           (unsigned char)text[i]);
    }
    *count = n;
    if (n > BPE_SHORT) return merge_long(symbols, count, bpe, arena, err);
    *count = merge_short(symbols, n, bpe);
    return AG_OK;
}
