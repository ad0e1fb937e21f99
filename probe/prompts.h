/* probe/prompts.h: prompt files (JSON lines, DESIGN.md "Files") and their tokens with roles (MATH.md section 1). */
#ifndef AG_PROBE_PROMPTS_H
#define AG_PROBE_PROMPTS_H

#include "base/block.h"
#include "probe/tokenizer.h"

struct prompt_span {
    int64_t begin, end; /* bytes of the text, half-open */
    enum ag_role role;  /* needle, distractor, question, haystack, special (template text) */
    int64_t value_begin, value_end; /* of the value inside; -1: not given */
};
struct prompt {
    const char *id, *text, *answer, *twin; /* answer, twin: NULL when absent */
    int64_t text_bytes;
    struct prompt_span *spans;
    int64_t n_spans;
};
struct prompts {
    const char *path;
    struct prompt *data;
    int64_t P;
    char sha256[AG_SHA256_HEX]; /* of the file */
    struct ag_arena *arena;
};

/* Errors name file, line and key. Checked: UTF-8, span ranges on character boundaries, roles, unique ids, twins that
 * exist and point back, no unknown keys. */
enum ag_status prompts_open(struct prompts **out, const char *path, struct ag_error *err);
void prompts_close(struct prompts *prompts);

struct prompt_tokens {
    struct ag_tokens tokens;
    int64_t double_bos;        /* prompts that already started with BOS text */
    int64_t missing_value[3];  /* prompts with a needle/distractor/answer whose value could not be found */
    struct ag_arena *arena;
};
/* Encodes text + answer of every prompt (error if the answer changes the tokens of the text) and assigns roles and
 * values. specials as tokenizer_encode. */
enum ag_status prompts_encode(struct prompt_tokens **out, const struct prompts *prompts,
                              const struct tokenizer *tokenizer, bool specials, struct ag_error *err);
void prompt_tokens_free(struct prompt_tokens *tokens);

#endif
