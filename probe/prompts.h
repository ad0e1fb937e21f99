/* probe/prompts.h: prompt files (JSON lines, DESIGN.md "Files") and their tokens with roles (MATH.md section 1). */
#ifndef AG_PROBE_PROMPTS_H
#define AG_PROBE_PROMPTS_H

#include "base/block.h"
#include "probe/tokenizer.h"

struct prompt_span {
    int64_t begin, end;             /* bytes of the text, half-open */
    enum ag_role role;              /* needle, distractor, question, haystack, special (template text) */
    int64_t value_begin, value_end; /* of the value inside; -1: not given */
};
struct prompt {
    const char *id, *text, *answer, *twin; /* answer, twin: NULL when absent */
    int64_t text_bytes;
    struct prompt_span *spans;
    int64_t n_spans;
    int64_t twin_index; /* -1: none */
    int64_t line;       /* in the file, from 1 */
};
struct prompts {
    const char *path;
    struct prompt *data;
    int64_t P;
    char sha256[AG_SHA256_HEX]; /* of the file */
    struct ag_arena *arena;
};

/* JSON lines, one object a line: id and text (required), spans, answer, twin (missing or null: none); a span: start,
 * end, role, value. Errors name file, line and key. Checked: JSON without duplicate or unknown keys, UTF-8 (NUL
 * refused), spans that are not empty, lie inside the text and begin and end between characters, values inside needles
 * and distractors, roles, unique ids, twins that exist and point back. Blank lines and CR LF are allowed, as is a UTF-8
 * byte order mark at the start of the file; a file without a prompt, a text or answer of no bytes, and a line of more
 * than 64 MiB are refused. */
enum ag_status prompts_open(struct prompts **out, const char *path, struct ag_error *err);
void prompts_close(struct prompts *prompts);

struct prompt_tokens {
    struct ag_tokens tokens;
    int64_t double_bos; /* prompts that already started with BOS text */
    /* Prompts of which a needle / a distractor / the answer has no value (MATH.md section 1): a span without "value" in
     * which the trimmed answer (of the twin, for distractors) does not occur; an answer without letter or digit. */
    int64_t missing_value[3];
    struct ag_arena *arena;
};
/* Encodes text + answer of every prompt and assigns roles and values; an error names prompt and line if the answer
 * changes the tokens of the text. specials as tokenizer_encode; an EOS that the tokenizer appends is left out where an
 * answer follows. Roles: matched special strings and added tokens special, whatever span they lie in; then by byte
 * overlap needle > distractor > question > haystack > special; no overlap: haystack if the prompt declares no haystack
 * span, else special. Values: needle and distractor tokens overlap the bytes of a value; answer tokens overlap a
 * character that is a letter or a number, matched special strings never. */
enum ag_status prompts_encode(struct prompt_tokens **out, const struct prompts *prompts,
                              const struct tokenizer *tokenizer, bool specials, struct ag_error *err);
void prompt_tokens_free(struct prompt_tokens *tokens);

/* The queries of a prompt that retrieve (MATH.md section 1): positions, counted from the prompt's first token, whose
 * next token is a value token of the answer. Ascending; out[0] is the headline query. Returns how many there are; out
 * (NULL: count only) has room for `room` of them. 0: the prompt has no answer, or one without a value. */
int64_t prompt_queries(int64_t *out, int64_t room, const struct ag_tokens *tokens, int64_t prompt);

#endif
