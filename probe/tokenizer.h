/* probe/tokenizer.h: byte-level BPE from tokenizer.json or GGUF metadata, with exact byte spans (spec/tokenizer.md). */
#ifndef AG_PROBE_TOKENIZER_H
#define AG_PROBE_TOKENIZER_H

#include "probe/checkpoint.h"

struct tokenizer;

/* From a model's checkpoint: tokenizer.json in its directory, else GGUF metadata. AG_E_UNSUPPORTED names what we lack
 * (an unknown pre-tokenizer is refused, never guessed). */
enum ag_status tokenizer_open(struct tokenizer **out, const struct ckpt *ckpt, struct ag_error *err);
/* From a path: tokenizer.json, a directory that holds one, or a .gguf. */
enum ag_status tokenizer_open_path(struct tokenizer **out, const char *path, struct ag_error *err);
void tokenizer_close(struct tokenizer *tokenizer);

struct token {
    int32_t id;
    bool special;       /* added by the tokenizer (BOS) or matched as a special string */
    int64_t begin, end; /* half-open byte span of the input; BOS: empty */
};
struct token_list { /* zero-initialise before use */
    struct token *data;
    int64_t n, capacity;
    struct ag_arena *arena;
};
void token_list_free(struct token_list *list);

/* Appends the tokens of n bytes of UTF-8 (invalid UTF-8 is AG_E_FORMAT with the byte position). specials: match special
 * strings in the text and add BOS/EOS as the tokenizer's post-processor says; a text that already starts with the BOS
 * string gets no second one, and *double_bos (may be NULL) tells. */
enum ag_status tokenizer_encode(struct token_list *out, const struct tokenizer *tokenizer, const char *text, size_t n,
                                bool specials, bool *double_bos, struct ag_error *err);
/* Bytes of one token (not NUL-terminated), NULL for an id without a token. */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *n);

struct tokenizer_info {
    const char *kind;    /* "byte-level BPE" */
    const char *pattern; /* "gpt-2", "smollm", "qwen2", "llama-bpe", "qwen35" */
    const char *source;  /* "tokenizer.json" or "GGUF metadata" */
    bool nfc, adds_bos, adds_eos, ignore_merges;
    int64_t vocabulary, merges, added;
    int32_t bos, eos;           /* -1: none */
    char sha256[AG_SHA256_HEX]; /* of tokenizer.json, or of the GGUF's tokenizer.ggml.* metadata in key order */
};
const struct tokenizer_info *tokenizer_info(const struct tokenizer *tokenizer);

#endif
