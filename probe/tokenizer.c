/* probe/tokenizer.c: the pipeline of spec/tokenizer.md section 1, with byte spans of the original (section 10). */
#include "probe/tokenizer.h"

#include <string.h>

#include "base/file.h"
#include "probe/tokenizer_parts.h"
#include "probe/unicode.h"

#define MAX_JSON_BYTES ((uint64_t)512 * 1024 * 1024)

/* After a loader: splits the added tokens into the two sets and fills in what follows from the parts. */
static enum ag_status finish(struct tokenizer *t, const char *path, struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct added_token *sorted = AG_NEW(t->arena, struct added_token, t->n_added, err);
    if (sorted == NULL) return AG_E_MEMORY;
    int64_t raw = 0, at = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t k = 0; k < t->n_added; k++) {
            if (t->added[k].normalized != (pass == 1)) continue;
            sorted[at] = t->added[k];
            struct uni_text nfc;
            if (pass == 1 && t->info.nfc) { /* the reference normalises these patterns too */
                AG_TRY(uni_nfc(&nfc, sorted[at].content, sorted[at].n, t->arena, err));
                sorted[at].content = nfc.data;
                sorted[at].n = nfc.n;
            }
            at++;
        }
        if (pass == 0) raw = at;
    }
    AG_TRY(added_build(&t->raw, sorted, raw, t->arena, err));
    AG_TRY(added_build(&t->normalized, sorted + raw, at - raw, t->arena, err));
    t->info.kind = "byte-level BPE";
    t->info.pattern = pattern_names[t->pattern];
    t->info.merges = t->bpe.n_merges;
    t->info.added = t->n_added;
    t->info.vocabulary = t->bpe.n_ids;
    t->info.ignore_merges = t->bpe.whole != NULL;
    t->info.adds_bos = t->n_before > 0;
    t->info.adds_eos = t->n_after > 0;
    if (t->info.adds_bos) t->info.bos = t->before[0];
    if (t->info.adds_eos) t->info.eos = t->after[t->n_after - 1];
    return AG_OK;
fail:
    ag_fail_context(err, "%s", path);
    return status;
}

static enum ag_status new_tokenizer(struct tokenizer **out, struct ag_error *err) {
    *out = NULL;
    struct ag_arena *arena = ag_arena_new("tokenizer");
    struct tokenizer *t = arena != NULL ? AG_ZEROS(arena, struct tokenizer, 1, err) : NULL;
    if (t == NULL) {
        ag_arena_free(arena);
        return ag_fail(err, AG_E_MEMORY, "out of memory: tokenizer");
    }
    t->arena = arena;
    t->info.bos = t->info.eos = -1;
    *out = t;
    return AG_OK;
}

static enum ag_status open_json(struct tokenizer **out, const char *path, struct ag_error *err) {
    struct tokenizer *t;
    struct ag_arena *scratch = NULL;
    enum ag_status status = new_tokenizer(&t, err);
    if (status != AG_OK) return status;
    const char *text;
    size_t n;
    if ((scratch = ag_arena_new("tokenizer.json")) == NULL) AG_TRY(ag_fail(err, AG_E_MEMORY, "out of memory"));
    AG_TRY(ag_file_text(&text, &n, path, MAX_JSON_BYTES, scratch, err));
    AG_TRY(ag_sha256_bytes(t->info.sha256, text, n, err));
    AG_TRY(tokenizer_from_json(t, path, text, n, err));
    t->info.source = "tokenizer.json";
    AG_TRY(finish(t, path, err));
    ag_arena_free(scratch);
    *out = t;
    return AG_OK;
fail:
    ag_arena_free(scratch);
    tokenizer_close(t);
    *out = NULL;
    return status;
}

static enum ag_status open_gguf(struct tokenizer **out, const struct ckpt *ckpt, struct ag_error *err) {
    struct tokenizer *t;
    enum ag_status status = new_tokenizer(&t, err);
    if (status != AG_OK) return status;
    AG_TRY(tokenizer_from_gguf(t, ckpt, err));
    AG_TRY(finish(t, ckpt->path, err));
    *out = t;
    return AG_OK;
fail:
    tokenizer_close(t);
    *out = NULL;
    return status;
}

/* tokenizer.json in a folder: opened when it is there; *out stays NULL when it is not. */
static enum ag_status open_in_folder(struct tokenizer **out, const char *folder, struct ag_error *err) {
    struct ag_arena *scratch = ag_arena_new("path");
    if (scratch == NULL) return ag_fail(err, AG_E_MEMORY, "out of memory");
    const char *path = ag_path_join(scratch, folder, "tokenizer.json", err);
    enum ag_status status = path == NULL ? AG_E_MEMORY : AG_OK;
    if (status == AG_OK && ag_path_kind(path) != AG_KIND_NONE) status = open_json(out, path, err);
    ag_arena_free(scratch);
    return status;
}

enum ag_status tokenizer_open(struct tokenizer **out, const struct ckpt *ckpt, struct ag_error *err) {
    *out = NULL;
    enum ag_status status = AG_OK;
    if (ckpt->folder != NULL) {
        status = open_in_folder(out, ckpt->folder, err);
    } else if (ckpt->format == CKPT_SAFETENSORS) { /* a single weight file: its folder */
        char folder[4096] = ".";
        const char *slash = strrchr(ckpt->path, '/');
        if (slash != NULL && (size_t)(slash - ckpt->path) < sizeof folder) {
            size_t n = slash == ckpt->path ? 1 : (size_t)(slash - ckpt->path);
            memcpy(folder, ckpt->path, n);
            folder[n] = '\0';
        }
        status = open_in_folder(out, folder, err);
    }
    if (status != AG_OK || *out != NULL) return status;
    if (ckpt->format == CKPT_GGUF) return open_gguf(out, ckpt, err);
    return ag_fail(err, AG_E_FORMAT, "%s: has no tokenizer.json beside the weights; put the model's there", ckpt->path);
}

enum ag_status tokenizer_open_path(struct tokenizer **out, const char *path, struct ag_error *err) {
    *out = NULL;
    size_t n = strlen(path);
    struct ckpt *ckpt;
    enum ag_status status;
    bool folder = ag_path_kind(path) == AG_KIND_FOLDER;
    if (folder) {
        status = open_in_folder(out, path, err);
        if (status != AG_OK || *out != NULL) return status;
    } else if (n < 5 || strcmp(path + n - 5, ".gguf") != 0) {
        return open_json(out, path, err);
    }
    status = ckpt_open(&ckpt, path, err);
    if (status != AG_OK)
        return folder ? ag_fail_context(err, "%s: holds no tokenizer.json, and no model with a tokenizer inside", path)
                      : status;
    status = tokenizer_open(out, ckpt, err);
    ckpt_close(ckpt);
    return status;
}

void tokenizer_close(struct tokenizer *tokenizer) {
    if (tokenizer != NULL) ag_arena_free(tokenizer->arena);
}

const struct tokenizer_info *tokenizer_info(const struct tokenizer *tokenizer) { return &tokenizer->info; }

const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *n) {
    if (id < 0 || id >= tokenizer->bpe.n_ids || tokenizer->bpe.tokens[id].bytes == NULL) return NULL;
    *n = (size_t)tokenizer->bpe.tokens[id].n;
    return tokenizer->bpe.tokens[id].bytes;
}

void token_list_free(struct token_list *list) {
    ag_arena_free(list->arena);
    *list = (struct token_list){0};
}

static enum ag_status push(struct token_list *list, const struct token *token, struct ag_error *err) {
    if (list->n == list->capacity) {
        if (list->arena == NULL && (list->arena = ag_arena_new("token list")) == NULL)
            return ag_fail(err, AG_E_MEMORY, "out of memory: token list");
        int64_t capacity = 2 * list->capacity + 256;
        struct token *data = AG_NEW(list->arena, struct token, capacity, err);
        if (data == NULL) return AG_E_MEMORY;
        if (list->n > 0) memcpy(data, list->data, (size_t)list->n * sizeof *data);
        list->data = data;
        list->capacity = capacity;
    }
    list->data[list->n++] = *token;
    return AG_OK;
}

/* What one call of tokenizer_encode carries along. */
struct run {
    struct token_list *out;
    const struct tokenizer *t;
    struct ag_arena *scratch; /* of this call */
    bool plain;
    int64_t base; /* of the current stretch in the input */
    struct uni_cursor cursor;
    int64_t done; /* input bytes that have a token */
    struct ag_error *err;
};

/* A token that ends at byte `end` of the current (normalised) stretch and begins where the one before ended. */
static enum ag_status emit(struct run *run, int32_t id, bool special, int64_t end) {
    int64_t stop = run->base + uni_origin(&run->cursor, end);
    struct token token = {id, special, run->done, stop};
    run->done = stop;
    return push(run->out, &token, run->err);
}

/* Pre-tokens and merges of [begin, end) of the normalised stretch, which holds no added token. */
static enum ag_status words(struct run *run, const char *text, int64_t begin, int64_t end) {
    struct pieces pieces = {.pattern = run->t->pattern, .text = text + begin, .n = end - begin};
    const struct bpe *bpe = &run->t->bpe;
    while (pieces_next(&pieces)) {
        int32_t room[BPE_SHORT];
        const int32_t *ids;
        int64_t count, at = begin + pieces.begin;
        enum ag_status status = bpe_encode(&ids, &count, room, bpe, pieces.text + pieces.begin,
                                           pieces.end - pieces.begin, run->scratch, run->err);
        for (int64_t k = 0; k < count && status == AG_OK; k++) {
            at += bpe->tokens[ids[k]].n;
            status = emit(run, ids[k], false, at);
        }
        if (status != AG_OK) return status;
    }
    return AG_OK;
}

/* A stretch of the input between the added tokens that are matched in the raw text. */
static enum ag_status stretch(struct run *run, const char *text, int64_t begin, int64_t end) {
    if (begin == end) return AG_OK;
    enum ag_status status = AG_OK;
    struct uni_text normal = {text + begin, end - begin, NULL, 0};
    struct ag_mark mark = ag_arena_mark(run->scratch);
    if (run->t->info.nfc) AG_TRY(uni_nfc(&normal, text + begin, end - begin, run->scratch, run->err));
    run->base = begin;
    run->cursor = (struct uni_cursor){&normal, 0, 0};
    struct added_match match;
    int64_t at = 0;
    while (added_next(&match, &run->t->normalized, normal.data, normal.n, at, run->plain)) {
        AG_TRY(words(run, normal.data, at, match.begin));
        AG_TRY(emit(run, match.token->id, match.token->special, match.end));
        at = match.end;
    }
    AG_TRY(words(run, normal.data, at, normal.n));
    ag_arena_release(run->scratch, mark);
fail:
    return status;
}

enum ag_status tokenizer_encode(struct token_list *out, const struct tokenizer *t, const char *text, size_t size,
                                bool specials, bool *double_bos, struct ag_error *err) {
    enum ag_status status = AG_OK;
    int64_t n = (int64_t)size, first = out->n;
    struct run run = {.out = out, .t = t, .plain = !specials, .err = err};
    if (double_bos != NULL) *double_bos = false;
    if (size > INT64_MAX / 64) return ag_fail(err, AG_E_MEMORY, "text: %zu bytes are too many", size);
    int64_t bad = uni_invalid(text, n);
    if (bad < n)
        return ag_fail(err, AG_E_FORMAT, "text: byte %lld (0x%02x) is not valid UTF-8; give UTF-8 text", (long long)bad,
                       (unsigned char)text[bad]);
    if ((run.scratch = ag_arena_new("tokenizer scratch")) == NULL) return ag_fail(err, AG_E_MEMORY, "out of memory");
    for (int64_t k = 0; specials && k < t->n_before; k++)
        AG_TRY(push(out, &(struct token){t->before[k], true, 0, 0}, err));
    struct uni_text whole = {text, n, NULL, 0};
    struct added_match match;
    int64_t at = 0;
    while (added_next(&match, &t->raw, text, n, at, run.plain)) {
        AG_TRY(stretch(&run, text, at, match.begin));
        run.base = 0;
        run.cursor = (struct uni_cursor){&whole, 0, 0};
        AG_TRY(emit(&run, match.token->id, match.token->special, match.end));
        at = match.end;
    }
    AG_TRY(stretch(&run, text, at, n));
    if (run.done != n) /* spans cover all bytes exactly */
        AG_TRY(ag_fail(err, AG_E_INTERNAL, "text: the tokens cover %lld of %lld bytes", (long long)run.done,
                       (long long)n));
    for (int64_t k = 0; specials && k < t->n_after; k++)
        AG_TRY(push(out, &(struct token){t->after[k], true, n, n}, err));
    /* A text that already starts with the BOS string keeps that one only (CASES.md "Tokens"). */
    if (specials && t->n_before == 1 && out->n - first > 1 && out->data[first + 1].id == t->before[0] &&
        out->data[first + 1].end > 0) {
        out->n--;
        memmove(&out->data[first], &out->data[first + 1], (size_t)(out->n - first) * sizeof *out->data);
        if (double_bos != NULL) *double_bos = true;
    }
fail:
    if (status != AG_OK) out->n = first;
    ag_arena_free(run.scratch);
    return status;
}
