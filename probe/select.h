/* probe/select.h: which prompts, positions and how much memory: small texts of the command line, parsed strictly. */
#ifndef AG_PROBE_SELECT_H
#define AG_PROBE_SELECT_H

#include "probe/prompts.h"

/* "i/n", 1 <= i <= n: the i-th of n shares of the prompts, in order, twin pairs kept together, equal numbers of pairs
 * (and prompts without twin) up to one. The shares of 1..n together are all prompts. *out shares memory with `prompts`
 * (its texts) and with the arena. A share without prompts (n larger than the number of units) is AG_E_USAGE. */
enum ag_status select_shard(struct prompts *out, const struct prompts *prompts, const char *text,
                            struct ag_arena *arena, struct ag_error *err);

/* A comma-separated list into mask (T): role names; value (tokens of a needle's, distractor's or answer's value); last
 * (the last token before the answer); retrieve (the queries whose next token is a value token of the answer, MATH.md
 * section 1); positions and ranges inside every prompt, "0-63,70". Unknown words, ranges beyond the longest prompt and
 * a list that selects nothing are AG_E_USAGE. */
enum ag_status select_positions(bool *mask, const struct ag_tokens *tokens, const char *text, struct ag_error *err);

/* "800M", "2.5GB", "1000000": bytes (k, M, G, T are powers of 1000). AG_E_USAGE names option. */
enum ag_status select_bytes(int64_t *bytes, const char *text, const char *option, struct ag_error *err);

#endif
