/* probe/added.h: added tokens (special strings, user-defined tokens) found in a text: leftmost, longest at that place.
 */
#ifndef AG_PROBE_ADDED_H
#define AG_PROBE_ADDED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

struct added_token {
    const char *content; /* what is matched, valid UTF-8 */
    int64_t n;
    int32_t id;
    bool special, single_word, lstrip, rstrip;
    bool normalized; /* matched after normalisation, in what the tokens without this flag have left over */
};
#define ADDED_MAX_BYTES 4096

/* A trie whose edges sit in one hash table. */
struct added_edge {
    uint64_t key; /* node << 8 | byte; UINT64_MAX: free */
    int32_t node;
};
struct added_set {
    const struct added_token *tokens;
    int64_t n;
    struct added_edge *edges;
    uint64_t mask;
    int32_t *ends; /* (nodes) index of the token that ends there, -1 */
    bool first[256];
};
/* Content of at most ADDED_MAX_BYTES each. Empty contents are never matched. Lives in the arena; tokens stays borrowed.
 */
enum ag_status added_build(struct added_set *set, const struct added_token *tokens, int64_t n, struct ag_arena *arena,
                           struct ag_error *err);

struct added_match {
    const struct added_token *token;
    int64_t begin, end; /* with the blanks that lstrip and rstrip swallow */
};
/* The next match in text[0, n) from position from on (the end of the match before). plain: tokens flagged special are
 * ordinary text. */
bool added_next(struct added_match *match, const struct added_set *set, const char *text, int64_t n, int64_t from,
                bool plain);

#endif
