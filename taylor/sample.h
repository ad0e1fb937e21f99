/* taylor/sample.h: the second depth of MATH.md section 5: everything about a few queries, in double. */
#ifndef AG_TAYLOR_SAMPLE_H
#define AG_TAYLOR_SAMPLE_H

#include "taylor/results.h"

/* Positions of prompt p to look at, ascending, into out (room for T of the prompt): n drawn without replacement from (seed,
 * prompt id) alone, so that shards agree, or those that options->positions names; and the queries whose target is a value token of
 * the answer. Returns how many. headline: the first of those, -1 when the prompt has none. */
int64_t taylor_positions(int64_t *out, int64_t *headline, const struct ag_tokens *tokens, int64_t p,
                         const struct taylor_options *options);

/* Which of a prompt's n sampled positions get curves, at most `most`, ascending indices into positions, into out (room for most): the
 * headline, then the last (most keys), the middle, and so on by halves. Returns how many. */
int64_t taylor_curve_positions(int64_t *out, const int64_t *positions, int64_t n, int64_t headline, int64_t most);

/* Scratch of one thread for keys up to T, width D, r axes. */
struct taylor_scratch {
    double *x, *axes;                                                 /* (T), (D, D) */
    double *mu, *cov, *spectrum, *read, *sigma_q, *projected, *state; /* (D), (D, D), (D), (D), (D), (D), (5 D) */
    double *weight;                                                   /* (T) */
    int32_t *rows;                                                    /* (T) */
};
enum ag_status taylor_scratch_new(struct taylor_scratch *scratch, int64_t T, int64_t D, struct ag_arena *arena,
                                  struct ag_error *err);

/* Rows out[0..G) for the G = Hq / Hk query heads of KV head g at position t of a block; keys and queries must be finite. False:
 * the eigensolver did not converge. value: as in struct taylor_sample. curves: (G), or NULL: none. */
bool taylor_sample_group(struct taylor_sample *out, struct taylor_curve *curves, const struct ag_block *block,
                         int64_t g, int64_t t, uint8_t value, int64_t r, struct taylor_scratch *scratch,
                         const struct kern_ops *ops);

#endif
