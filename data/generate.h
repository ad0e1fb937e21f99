/* data/generate.h: seeded generator of counterbalanced needle prompts and of S-NIAH sets (MATH.md sections 1, 4, 7).
 *
 * A needle pair is two prompts, a and b, over the same haystack sentences in the same order. Prompt a states fact A
 * once (the needle) and fact B `distractors` times; b is the same with A and B exchanged, so the unique sentence of one
 * is a repeated one of the other. Keys and values of a pair are drawn so that both texts have the same number of tokens
 * and every fact sits at the same token positions. niah1 to niah3 are single prompts without distractors and without
 * twin. */
#ifndef AG_DATA_GENERATE_H
#define AG_DATA_GENERATE_H

#include <stdio.h>

#include "base/block.h"
#include "data/facts.h"
#include "data/haystack.h"
#include "probe/prompts.h"
#include "probe/tokenizer.h"

enum generate_kind { GENERATE_NEEDLE, GENERATE_NIAH1, GENERATE_NIAH2, GENERATE_NIAH3 };
extern const char *const generate_kinds[]; /* NULL-terminated, as the next two */
enum generate_template { GENERATE_NONE, GENERATE_CHATML, GENERATE_LLAMA3 };
extern const char *const generate_templates[];
extern const char *const generate_wordings[]; /* "any", then those of fact_wordings */

#define GENERATE_MAX_COUNT 100000
#define GENERATE_MAX_LENGTH 4194304
#define GENERATE_MAX_DISTRACTORS 4096

struct generate_options {
    enum generate_kind kind;
    int64_t count;        /* pairs (needle) or prompts */
    int64_t length;       /* tokens of the text, BOS and template included, answer not */
    int64_t distractors;  /* needle only */
    bool near_duplicates; /* distractors state the same fact in different words */
    bool repeat;          /* the haystack may be used more than once */
    double depth;         /* of the needle in [0, 1]; negative: uniform */
    int64_t digits;       /* of a number, 0: 4 for needle, 7 for niah */
    enum generate_template template_;
    int wording;  /* index of generate_wordings */
    int64_t seed; /* >= 0 */
};
extern const struct generate_options generate_defaults;

struct generate_summary {
    int64_t prompts, pairs;
    int64_t tokens_min, tokens_median, tokens_max;
    int64_t role_tokens[AG_ROLE_COUNT];        /* over all prompts; tokens outside every span are haystack */
    double depth_min, depth_median, depth_max; /* tokens before the needle / (context tokens - needle tokens) */
    int64_t aligned_pairs; /* equal token counts, and every span and value at equal token positions */
    int64_t token_difference, position_difference; /* the largest between twins */
    int64_t sentences;                             /* of the haystack, in all prompts */
    int64_t repeats; /* pairs or prompts in which a sentence of the haystack occurs more than once */
};

struct generator;

/* Draws every fact and checks every size, so that what is impossible is refused here, before anything is written:
 * AG_E_USAGE says what would fit; AG_E_UNSUPPORTED: the tokenizer lacks the template's special tokens; AG_E_FORMAT: the
 * haystack holds a special string of the tokenizer. tokenizer and haystack must outlive the
 * generator. */
enum ag_status generator_open(struct generator **out, const struct generate_options *options,
                              const struct tokenizer *tokenizer, const struct haystack *haystack, struct ag_error *err);
/* The next pair (n = 2) or prompt (n = 1), or n = 0 after the last; valid until the next call. Each prompt was
 * verified: the tokens that overlap a span or value decode to a text that holds it, the answer occurs once in the text
 * and as the start of what follows, the value of the distractors only inside them. Same options, tokenizer and
 * haystack: same bits; a larger count continues a smaller one. */
enum ag_status generator_next(struct generator *generator, struct prompt prompts[2], int64_t *n, struct ag_error *err);
/* Over the prompts handed out so far. */
enum ag_status generator_summary(struct generator *generator, struct generate_summary *out, struct ag_error *err);
void generator_close(struct generator *generator);

/* Writes one JSON line (DESIGN.md "Prompts are JSON lines"). */
enum ag_status generate_write(FILE *stream, const struct prompt *prompt, struct ag_error *err);

#endif
