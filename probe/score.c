#include "probe/score.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void score_wanted(bool *wanted, const struct ag_tokens *tokens, bool answers) {
    memset(wanted, 0, (size_t)tokens->T * sizeof *wanted);
    for (int64_t p = 0; p < tokens->P; p++)
        for (int64_t t = tokens->offsets[p] + 1; t < tokens->offsets[p + 1]; t++)
            wanted[t - 1] = !answers || tokens->role[t] == AG_ROLE_ANSWER;
}

enum ag_status score_begin(struct score *score, const struct ag_tokens *tokens, const struct kern_ops *ops,
                           struct ag_arena *arena, struct ag_error *err) {
    *score = (struct score){.tokens = tokens, .ops = ops};
    score->nll = AG_NEW(arena, double, tokens->T, err);
    score->hit = AG_ZEROS(arena, uint8_t, tokens->T, err);
    if (!score->nll || !score->hit) return AG_E_MEMORY;
    for (int64_t t = 0; t < tokens->T; t++) score->nll[t] = NAN;
    return AG_OK;
}

static int64_t prompt_of(const struct ag_tokens *tokens, int64_t token) {
    int64_t low = 0, high = tokens->P - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (tokens->offsets[middle] <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

enum ag_status score_logits(void *self, const float *logits, const int64_t *token, int64_t rows, int64_t V,
                            struct ag_error *err) {
    enum { BATCH = 256 };
    struct score *score = self;
    const struct ag_tokens *tokens = score->tokens;
    double nll[BATCH];
    int32_t argmax[BATCH], target[BATCH];
    for (int64_t row = 0; row < rows; row += BATCH) {
        int64_t n = rows - row < BATCH ? rows - row : BATCH;
        /* The last token of a prompt predicts nothing that we know. */
        for (int64_t i = 0; i < n; i++) {
            int64_t t = token[row + i];
            bool follows = t + 1 < tokens->offsets[prompt_of(tokens, t) + 1];
            target[i] = follows ? tokens->id[t + 1] : -1;
        }
        for (int64_t i = 0, end; i < n; i = end) {
            for (end = i; end < n && target[end] >= 0;) end++;
            if (end > i) score->ops->nll(nll + i, argmax + i, logits + (row + i) * V, target + i, end - i, V);
            while (end < n && target[end] < 0) end++;
        }
        for (int64_t i = 0; i < n; i++) {
            int64_t t = token[row + i];
            if (target[i] < 0) continue;
            if (!isfinite(nll[i])) {
                int64_t p = prompt_of(tokens, t);
                return ag_fail(err, AG_E_NUMERIC,
                               "prompt %s, token %" PRId64
                               ": its likelihood is not finite; the logits hold a NaN, an infinity or overflow",
                               tokens->prompt_id ? tokens->prompt_id[p] : "?", t + 1 - tokens->offsets[p]);
            }
            score->nll[t + 1] = nll[i];
            score->hit[t + 1] = argmax[i] == target[i];
        }
    }
    return AG_OK;
}

int score_retrieved(const struct score *score, int64_t p) {
    const struct ag_tokens *tokens = score->tokens;
    int64_t answer = 0, hits = 0;
    for (int64_t t = tokens->offsets[p]; t < tokens->offsets[p + 1]; t++) {
        if (!tokens->role || tokens->role[t] != AG_ROLE_ANSWER) continue;
        if (isnan(score->nll[t])) return -1;
        answer++;
        hits += score->hit[t];
    }
    return answer == 0 ? -1 : hits == answer;
}

struct score_summary score_fold(const struct score *score, int64_t first, int64_t end) {
    const struct ag_tokens *tokens = score->tokens;
    struct score_summary summary = {0};
    double sum = 0, value_sum = 0;
    for (int64_t p = first; p < end; p++) {
        for (int64_t t = tokens->offsets[p]; t < tokens->offsets[p + 1]; t++) {
            if (isnan(score->nll[t])) continue;
            summary.tokens++;
            sum += score->nll[t];
            if (!tokens->value || !(tokens->value[t] & AG_VALUE_ANSWER)) continue;
            summary.value_tokens++;
            value_sum += score->nll[t];
        }
        int retrieved = score_retrieved(score, p);
        summary.prompts += retrieved >= 0;
        summary.hits += retrieved == 1;
    }
    summary.mean_nll = summary.tokens ? sum / (double)summary.tokens : NAN;
    summary.perplexity = exp(summary.mean_nll);
    summary.mean_value_nll = summary.value_tokens ? value_sum / (double)summary.value_tokens : NAN;
    return summary;
}
