/* probe/tokenizer_gguf.c: a tokenizer from GGUF metadata (spec/tokenizer.md section 7). */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "probe/tokenizer_parts.h"
#include "probe/unicode.h"

#define PREFIX "tokenizer.ggml."

/* What tokenizer.ggml.pre implies. llama.cpp applies no NFC; the model's own tokenizer does, and so do we: the
 * checkpoint was trained on it. */
static const struct family {
    const char *pre;
    enum pattern pattern;
    bool nfc, ignore_merges, adds_bos;
} families[] = {
    {"gpt-2", PATTERN_GPT2, false, false, false},   {"smollm", PATTERN_SMOLLM, false, false, false},
    {"qwen2", PATTERN_QWEN2, true, false, false},   {"deepseek-r1-qwen", PATTERN_QWEN2, true, false, false},
    {"qwen35", PATTERN_QWEN35, true, false, false}, {"llama-bpe", PATTERN_LLAMA3, false, true, true},
    {"llama3", PATTERN_LLAMA3, false, true, true},  {"llama-v3", PATTERN_LLAMA3, false, true, true},
};

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

struct loader {
    struct tokenizer *t;
    const struct ckpt *ckpt;
    struct ag_arena *scratch;
    struct ag_error *err;
};

static const struct ckpt_meta *find(const struct loader *l, const char *key) {
    char name[128];
    snprintf(name, sizeof name, PREFIX "%s", key);
    return ckpt_meta_find(l->ckpt, name);
}

static enum ag_status malformed(const struct loader *l, const char *key, const char *expected) {
    return ag_fail(l->err, AG_E_FORMAT, "%s: " PREFIX "%s is %s; expected %s", l->ckpt->path, key,
                   find(l, key) == NULL ? "missing" : "of another kind", expected);
}

static enum ag_status read_array(const struct ckpt_meta **out, const struct loader *l, const char *key, int kind,
                                 const char *expected) {
    *out = find(l, key);
    if (*out == NULL || (*out)->kind != CKPT_META_ARRAY || ((*out)->n > 0 && (*out)->element_kind != kind))
        return malformed(l, key, expected);
    return AG_OK;
}

/* An id that may be missing (-1). */
static enum ag_status read_id(int32_t *out, const struct loader *l, const char *key) {
    const struct ckpt_meta *meta = find(l, key);
    *out = -1;
    if (meta == NULL) return AG_OK;
    if (meta->kind != CKPT_META_INT) return malformed(l, key, "an integer");
    if (meta->i < 0 || meta->i >= l->t->bpe.n_ids)
        return ag_fail(l->err, AG_E_FORMAT, "%s: " PREFIX "%s is %lld; the vocabulary has %lld tokens", l->ckpt->path,
                       key, (long long)meta->i, (long long)l->t->bpe.n_ids);
    *out = (int32_t)meta->i;
    return AG_OK;
}

static enum ag_status read_bool(bool *out, const struct loader *l, const char *key, bool otherwise) {
    const struct ckpt_meta *meta = find(l, key);
    *out = otherwise;
    if (meta == NULL) return AG_OK;
    if (meta->kind != CKPT_META_BOOL) return malformed(l, key, "true or false");
    *out = meta->i != 0;
    return AG_OK;
}

/* SHA-256 of the tokenizer.ggml.* metadata in key order: for each key its name, a NUL, its kind and its value (integers
 * and reals 8 bytes, texts length and bytes, arrays kind of elements, count and elements). */
static enum ag_status hash_value(struct ag_buf *buf, int kind, int64_t i, double f, const char *text, int64_t n,
                                 struct ag_error *err) {
    if (kind == CKPT_META_REAL) return ag_buf_add(buf, &f, sizeof f, err);
    if (kind != CKPT_META_TEXT) return ag_buf_add(buf, &i, sizeof i, err);
    enum ag_status status = ag_buf_add(buf, &n, sizeof n, err);
    return status == AG_OK ? ag_buf_add(buf, text, (size_t)n, err) : status;
}

static enum ag_status hash_metadata(struct loader *l) {
    enum ag_status status = AG_OK;
    struct ag_buf buf = {0};
    for (int64_t k = 0; k < l->ckpt->n_meta; k++) {
        const struct ckpt_meta *m = &l->ckpt->meta[k];
        if (strncmp(m->key, PREFIX, strlen(PREFIX)) != 0) continue;
        unsigned char kind = (unsigned char)m->kind;
        AG_TRY(ag_buf_add(&buf, m->key, strlen(m->key) + 1, l->err));
        AG_TRY(ag_buf_add(&buf, &kind, 1, l->err));
        if (m->kind != CKPT_META_ARRAY) {
            AG_TRY(hash_value(&buf, (int)m->kind, m->i, m->f, m->text, (int64_t)m->text_bytes, l->err));
            continue;
        }
        kind = (unsigned char)m->element_kind;
        AG_TRY(ag_buf_add(&buf, &kind, 1, l->err));
        AG_TRY(ag_buf_add(&buf, &m->n, sizeof m->n, l->err));
        for (int64_t i = 0; i < m->n; i++) {
            bool text = m->element_kind == CKPT_META_TEXT, real = m->element_kind == CKPT_META_REAL;
            AG_TRY(hash_value(&buf, m->element_kind, text || real ? 0 : m->is[i], real ? m->fs[i] : 0,
                              text ? m->texts[i] : NULL, text ? m->text_sizes[i] : 0, l->err));
        }
    }
    AG_TRY(ag_sha256_bytes(l->t->info.sha256, buf.data, buf.size, l->err));
fail:
    ag_buf_free(&buf);
    return status;
}

static enum ag_status read_family(struct loader *l, const struct family **out) {
    const struct ckpt_meta *model = find(l, "model"), *pre = find(l, "pre");
    const char *path = l->ckpt->path;
    char shown[UNI_SHOW];
    if (model == NULL || model->kind != CKPT_META_TEXT) return malformed(l, "model", "\"gpt2\" (byte-level BPE)");
    if (strcmp(model->text, "gpt2") != 0)
        return ag_fail(l->err, AG_E_UNSUPPORTED,
                       "%s: " PREFIX "model is \"%s\"%s, which is not supported; supported: \"gpt2\" (byte-level BPE)",
                       path, uni_show(shown, sizeof shown, model->text, (int64_t)model->text_bytes),
                       strcmp(model->text, "llama") == 0 ? " (SentencePiece-style BPE)"
                       : strcmp(model->text, "t5") == 0  ? " (Unigram)"
                                                         : "");
    if (pre != NULL && pre->kind != CKPT_META_TEXT) return malformed(l, "pre", "the name of a pre-tokenizer");
    for (size_t k = 0; pre != NULL && k < sizeof families / sizeof families[0]; k++)
        if (strcmp(pre->text, families[k].pre) == 0) {
            *out = &families[k];
            return AG_OK;
        }
    return ag_fail(l->err, AG_E_UNSUPPORTED,
                   "%s: " PREFIX "pre is %s%s%s; a pre-tokenizer is never guessed, supported: gpt-2, smollm, qwen2, "
                   "deepseek-r1-qwen, qwen35, llama-bpe; or put the model's tokenizer.json into a folder with it",
                   path, pre != NULL ? "\"" : "missing",
                   pre != NULL ? uni_show(shown, sizeof shown, pre->text, (int64_t)pre->text_bytes) : "",
                   pre != NULL ? "\"" : "");
}

/* Tokens, by type: normal ones (and the unknown one) make the vocabulary, control and user-defined ones are matched in
 * the text, unused ones ([PAD7]) are no tokens at all. */
static enum ag_status read_tokens(struct loader *l, struct bpe_source *source) {
    enum ag_status status = AG_OK;
    const struct ckpt_meta *tokens, *types = find(l, "token_type");
    const char *path = l->ckpt->path;
    struct tokenizer *t = l->t;
    char shown[UNI_SHOW];
    AG_TRY(read_array(&tokens, l, "tokens", CKPT_META_TEXT, "a list of texts"));
    if (types != NULL) AG_TRY(read_array(&types, l, "token_type", CKPT_META_INT, "a list of integers"));
    if (tokens->n < 1 || tokens->n > BPE_MAX_ID)
        AG_TRY(ag_fail(l->err, AG_E_FORMAT, "%s: " PREFIX "tokens has %lld tokens; expected 1 to %lld", path,
                       (long long)tokens->n, (long long)BPE_MAX_ID));
    if (types != NULL && types->n != tokens->n)
        AG_TRY(ag_fail(l->err, AG_E_FORMAT, "%s: " PREFIX "token_type has %lld entries for %lld tokens", path,
                       (long long)types->n, (long long)tokens->n));
    struct bpe_string *strings = AG_NEW(l->scratch, struct bpe_string, tokens->n, l->err);
    int32_t *ids = AG_NEW(l->scratch, int32_t, tokens->n, l->err);
    bool *literal = AG_NEW(l->scratch, bool, tokens->n, l->err);
    t->added = AG_ZEROS(t->arena, struct added_token, tokens->n, l->err);
    if (strings == NULL || ids == NULL || literal == NULL || t->added == NULL) return AG_E_MEMORY;
    for (int64_t k = 0; k < tokens->n; k++) {
        const char *text = tokens->texts[k];
        int64_t n = tokens->text_sizes[k], type = types != NULL ? types->is[k] : TYPE_NORMAL;
        if (uni_invalid(text, n) < n)
            AG_TRY(ag_fail(l->err, AG_E_FORMAT, "%s: " PREFIX "tokens[%lld] is not valid UTF-8", path, (long long)k));
        if (type < TYPE_NORMAL || type > TYPE_BYTE)
            AG_TRY(ag_fail(l->err, AG_E_FORMAT, "%s: " PREFIX "token_type[%lld] is %lld; expected 1 to 6", path,
                           (long long)k, (long long)type));
        if (type == TYPE_BYTE)
            AG_TRY(ag_fail(l->err, AG_E_UNSUPPORTED,
                           "%s: " PREFIX "tokens[%lld] \"%s\" is a byte token, which byte-level BPE has none of", path,
                           (long long)k, uni_show(shown, sizeof shown, text, n)));
        if (type == TYPE_UNUSED) continue;
        bool added = type == TYPE_CONTROL || type == TYPE_USER_DEFINED;
        if (added) {
            if (n > ADDED_MAX_BYTES)
                AG_TRY(ag_fail(l->err, AG_E_FORMAT,
                               "%s: " PREFIX "tokens[%lld] \"%s\" has %lld bytes; a special string has at most %d",
                               path, (long long)k, uni_show(shown, sizeof shown, text, n), (long long)n,
                               ADDED_MAX_BYTES));
            struct added_token *token = &t->added[t->n_added++];
            *token = (struct added_token){.n = n, .id = (int32_t)k, .special = type == TYPE_CONTROL};
            if ((token->content = ag_arena_text(t->arena, text, (size_t)n, l->err)) == NULL) return AG_E_MEMORY;
        }
        strings[source->n_tokens] = (struct bpe_string){text, n};
        ids[source->n_tokens] = (int32_t)k;
        literal[source->n_tokens++] = added;
    }
    source->tokens = strings;
    source->ids = ids;
    source->literal = literal;
    source->n_ids = tokens->n;
fail:
    return status;
}

static enum ag_status read_merges(struct loader *l, struct bpe_source *source) {
    enum ag_status status = AG_OK;
    const struct ckpt_meta *list;
    char shown[UNI_SHOW];
    AG_TRY(read_array(&list, l, "merges", CKPT_META_TEXT, "a list of texts"));
    if (list->n > INT32_MAX) AG_TRY(malformed(l, "merges", "fewer than 2^31 merges"));
    struct bpe_string *merges = AG_NEW(l->scratch, struct bpe_string, 2 * list->n, l->err);
    if (merges == NULL) return AG_E_MEMORY;
    for (int64_t k = 0; k < list->n; k++) {
        const char *text = list->texts[k];
        int64_t n = list->text_sizes[k];
        /* At the first blank from the second byte on: a blank inside a token is U+0120, so this is safe. */
        const char *blank = n > 1 ? memchr(text + 1, ' ', (size_t)n - 1) : NULL;
        if (blank == NULL)
            AG_TRY(ag_fail(l->err, AG_E_FORMAT,
                           "%s: " PREFIX "merges[%lld] is \"%s\"; expected two tokens with a blank between",
                           l->ckpt->path, (long long)k, uni_show(shown, sizeof shown, text, n)));
        merges[2 * k] = (struct bpe_string){text, blank - text};
        merges[2 * k + 1] = (struct bpe_string){blank + 1, n - (blank + 1 - text)};
    }
    source->merges = merges;
    source->n_merges = list->n;
fail:
    return status;
}

/* BOS and EOS around every text. A file without a BOS key gets none, whatever its family does. */
static enum ag_status read_template(struct loader *l, const struct family *family) {
    enum ag_status status = AG_OK;
    struct tokenizer *t = l->t;
    bool bos, eos;
    AG_TRY(read_id(&t->info.bos, l, "bos_token_id"));
    AG_TRY(read_id(&t->info.eos, l, "eos_token_id"));
    AG_TRY(read_bool(&bos, l, "add_bos_token", family->adds_bos));
    AG_TRY(read_bool(&eos, l, "add_eos_token", false));
    int32_t *ids = AG_NEW(t->arena, int32_t, 2, l->err);
    if (ids == NULL) return AG_E_MEMORY;
    ids[0] = t->info.bos;
    ids[1] = t->info.eos;
    t->before = ids;
    t->after = ids + 1;
    t->n_before = bos && t->info.bos >= 0;
    t->n_after = eos && t->info.eos >= 0;
fail:
    return status;
}

enum ag_status tokenizer_from_gguf(struct tokenizer *t, const struct ckpt *ckpt, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const struct ckpt_meta *whole = ckpt_meta_find(ckpt, "tokenizer.huggingface.json");
    const struct family *family = NULL;
    struct loader l = {t, ckpt, ag_arena_new("tokenizer scratch"), err};
    struct bpe_source source = {.path = ckpt->path};
    if (l.scratch == NULL) return ag_fail(err, AG_E_MEMORY, "out of memory");
    if (whole != NULL) { /* the file it was converted from, which says everything */
        t->info.source = "tokenizer.json inside the GGUF";
        if (whole->kind != CKPT_META_TEXT)
            AG_TRY(ag_fail(err, AG_E_FORMAT, "%s: tokenizer.huggingface.json is no text", ckpt->path));
        AG_TRY(ag_sha256_bytes(t->info.sha256, whole->text, whole->text_bytes, err));
        AG_TRY(tokenizer_from_json(t, ckpt->path, whole->text, whole->text_bytes, err));
    } else {
        t->info.source = "GGUF metadata";
        AG_TRY(read_family(&l, &family));
        t->pattern = family->pattern;
        t->info.nfc = family->nfc;
        source.ignore_merges = family->ignore_merges;
        AG_TRY(read_tokens(&l, &source));
        AG_TRY(read_merges(&l, &source));
        AG_TRY(bpe_build(&t->bpe, &source, t->arena, err));
        AG_TRY(read_template(&l, family));
        AG_TRY(hash_metadata(&l));
    }
fail:
    ag_arena_free(l.scratch);
    return status;
}
