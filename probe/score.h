/* probe/score.h: teacher-forced scores of one forward pass (MATH.md section 7): negative log-likelihood of tokens given
 * their prefix, and whether greedy decoding would have said them. Plugs into forward_sink.logits. */
#ifndef AG_PROBE_SCORE_H
#define AG_PROBE_SCORE_H

#include "base/arena.h"
#include "base/block.h"
#include "kernels/kernels.h"

struct score {
    const struct ag_tokens *tokens;
    const struct kern_ops *ops;
    double *nll;  /* (T) -log p(token | its prefix), natural; NaN where it was not asked for (and for first tokens) */
    uint8_t *hit; /* (T) 1: the token is the argmax given its prefix */
};

/* wanted (T), for forward_request.wanted: the tokens before those to be scored. answers: those of role answer only. */
void score_wanted(bool *wanted, const struct ag_tokens *tokens, bool answers);
enum ag_status score_begin(struct score *score, const struct ag_tokens *tokens, const struct kern_ops *ops,
                           struct ag_arena *arena, struct ag_error *err);
/* forward_sink.logits with self = a struct score. AG_E_NUMERIC where a likelihood is not finite. */
enum ag_status score_logits(void *self, const float *logits, const int64_t *token, int64_t rows, int64_t V,
                            struct ag_error *err);

struct score_summary {
    int64_t tokens;  /* scored */
    double mean_nll; /* NaN without tokens */
    double perplexity;
    int64_t prompts, hits; /* prompts whose answer was scored, and those of which every token is the argmax */
    int64_t value_tokens;  /* scored tokens of the answers' values */
    double mean_value_nll; /* NaN without them */
};
/* Over prompts [first, end), in order. */
struct score_summary score_fold(const struct score *score, int64_t first, int64_t end);
/* 1: greedy decoding gives the answer of prompt p exactly; 0: it does not; -1: no answer, or not all of it scored. */
int score_retrieved(const struct score *score, int64_t p);

#endif
