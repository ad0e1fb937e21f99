/* probe/tokenizer_parts.h: what the two loaders (tokenizer_json.c, tokenizer_gguf.c) fill in and tokenizer.c uses. */
#ifndef AG_PROBE_TOKENIZER_PARTS_H
#define AG_PROBE_TOKENIZER_PARTS_H

#include "probe/added.h"
#include "probe/bpe.h"
#include "probe/pretokenize.h"
#include "probe/tokenizer.h"

struct tokenizer {
    struct ag_arena *arena;
    struct tokenizer_info info; /* loaders: source, nfc, vocabulary, bos, eos, sha256; the rest by tokenizer_finish */
    enum pattern pattern;
    struct bpe bpe;
    struct added_token *added; /* (n_added) in the order of the file; both sets point into copies */
    int64_t n_added;
    struct added_set raw, normalized; /* matched before and after normalisation */
    const int32_t *before, *after;    /* ids put around every text */
    int64_t n_before, n_after;
};

/* path: for messages. The tokenizer is zero except for its arena. */
enum ag_status tokenizer_from_json(struct tokenizer *tokenizer, const char *path, const char *text, size_t n,
                                   struct ag_error *err);
enum ag_status tokenizer_from_gguf(struct tokenizer *tokenizer, const struct ckpt *ckpt, struct ag_error *err);

#endif
