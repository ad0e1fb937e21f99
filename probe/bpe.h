/* probe/bpe.h: a byte-level BPE vocabulary and its merges (spec/tokenizer.md sections 1, 2 and 5). */
#ifndef AG_PROBE_BPE_H
#define AG_PROBE_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

/* Largest vocabulary accepted; the largest in use is near 262,144. */
#define BPE_MAX_ID ((int64_t)4 * 1024 * 1024 - 1)

/* What a file says, borrowed until bpe_build returns. Strings are in mapped characters (one for each byte). */
struct bpe_string {
    const char *text;
    int64_t n;
};
struct bpe_source {
    const char *path; /* for messages */
    int64_t n_tokens, n_merges;
    const struct bpe_string *tokens; /* (n_tokens) */
    const int32_t *ids;              /* (n_tokens) 0 to BPE_MAX_ID */
    const bool *literal;             /* (n_tokens) NULL: none. An added token: its own UTF-8, no part of merges */
    const struct bpe_string *merges; /* (n_merges, 2) in order of rank */
    bool ignore_merges;
    int64_t n_ids; /* ids are below; at least one more than the largest */
};

struct bpe_bytes {
    const char *bytes; /* NULL: no such token */
    int32_t n;
};
struct bpe_merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: free slot */
    int32_t rank, id;
};
struct bpe {
    int64_t n_ids;
    struct bpe_bytes *tokens; /* (n_ids) raw bytes */
    int32_t symbol[256];      /* id of each byte, -1: the vocabulary has none */
    struct bpe_merge *merges; /* open addressing, merge_mask + 1 slots */
    uint64_t merge_mask;
    int64_t n_merges;
    int32_t *whole; /* ignore_merges: ids by raw bytes, open addressing, -1 free; NULL without */
    uint64_t whole_mask;
};

/* Refuses duplicate strings and ids, and merges whose parts or result are no tokens. The result lives in the arena. */
enum ag_status bpe_build(struct bpe *out, const struct bpe_source *source, struct ag_arena *arena,
                         struct ag_error *err);

/* Token ids of one pre-token of n >= 1 bytes. Up to BPE_SHORT bytes go to ids, which has room for as many; a longer one
 * goes to memory from the arena. *out is where they are. AG_E_UNSUPPORTED when the vocabulary lacks one of the bytes.
 */
#define BPE_SHORT 64
enum ag_status bpe_encode(const int32_t **out, int64_t *count, int32_t ids[BPE_SHORT], const struct bpe *bpe,
                          const char *text, int64_t n, struct ag_arena *arena, struct ag_error *err);

/* Bytes of a string of mapped characters, written to out (at most n); -1 when a character maps to no byte. */
int64_t bpe_unmap(char *out, const char *text, int64_t n);

#endif
