/* tests/forward_common.h: a model with tokens and everything that a pass shows of it. */
#ifndef AG_TESTS_FORWARD_COMMON_H
#define AG_TESTS_FORWARD_COMMON_H

#include "probe/forward.h"

/* A model and a request for everything: all taps, keys, queries, values, all logits. */
struct subject {
    struct ckpt *ckpt;
    struct model *model;
    struct ag_tokens tokens;
    struct forward_request request;
    struct ag_arena *arena;
};
struct subject subject_open(const char *path);
void subject_close(struct subject *subject);
/* Packs P prompts; the arrays are copied. Roles are all haystack, ids "p0", "p1", ... */
void subject_tokens(struct subject *subject, const int64_t *ids, int64_t T, const int64_t *offsets, int64_t P);

/* keys, queries, values as (T, heads * D) rows, NULL where nothing came; logits (T, V), rows that were not asked for
 * zero. */
#define SEEN_LAYERS 32
struct seen {
    float *tap[SEEN_LAYERS][AG_TAP_COUNT][3];
    float *logits;
    int64_t logit_rows, layers_done;
    const struct subject *subject;
};
/* Plans and runs; fails the test on any error, on a token delivered twice and on taps that came in part. */
void subject_run(struct seen *seen, struct subject *subject);

int64_t *golden_ints(const struct ckpt *golden, const char *name, int64_t *n, struct ag_arena *arena);
float *golden_floats(const struct ckpt *golden, const char *name, int64_t n, struct ag_arena *arena);
double *golden_doubles(const struct ckpt *golden, const char *name, int64_t n, struct ag_arena *arena);

#endif
