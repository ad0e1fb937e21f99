/* probe/pretokenize.h: the splitting patterns of spec/tokenizer.md section 3, matched by hand. */
#ifndef AG_PROBE_PRETOKENIZE_H
#define AG_PROBE_PRETOKENIZE_H

#include <stdbool.h>
#include <stdint.h>

enum pattern { PATTERN_GPT2, PATTERN_SMOLLM, PATTERN_QWEN2, PATTERN_LLAMA3, PATTERN_QWEN35, PATTERN_COUNT };
extern const char *const pattern_names[PATTERN_COUNT + 1]; /* "gpt-2", ..., NULL-terminated */

/* The regular expression as tokenizer.json files spell it (smollm: its second stage). */
extern const char *const pattern_regex[PATTERN_COUNT];

/* Pieces of one stretch of valid UTF-8, left to right: look-ahead ends where the stretch ends. */
struct pieces {
    enum pattern pattern;
    const char *text;
    int64_t n;
    int64_t begin, end; /* the current piece */
    int64_t limit;      /* smollm: end of the stage-1 piece that holds it */
};
/* Moves to the next piece; false at the end. Start with begin, end and limit zero. */
bool pieces_next(struct pieces *pieces);

#endif
