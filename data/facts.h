/* data/facts.h: the facts that prompts hide and ask for: wordings, keys (what a fact is about) and values. */
#ifndef AG_DATA_FACTS_H
#define AG_DATA_FACTS_H

#include <gsl/gsl_rng.h>

#include "base/arena.h"

/* One way to state a fact and to ask for it. {K} stands for the key, {V} for the value. The question ends with the
 * sentence up to its value, so that the answer is what comes next. */
struct fact_wording {
    const char *name;
    const char *statement; /* without the full stop, ends with {V} */
    const char *question;
    const char *stem; /* the beginning of the answer */
};
/* Indices count from 0; names are those of --wording, after "any". */
#define FACT_WORDINGS 6
extern const struct fact_wording fact_wordings[FACT_WORDINGS];

/* A near duplicate states the same fact with another opening and another ending. Variant 0 is the plain statement. */
#define FACT_VARIANTS 72

#define FACT_KEY_BYTES 64
#define FACT_VALUE_BYTES 40
struct fact {
    char key[FACT_KEY_BYTES];     /* "copper kettle" */
    char value[FACT_VALUE_BYTES]; /* "5995", or a UUID */
};

/* Draws a key that shares no word with `other` (may be NULL). */
void fact_draw_key(char key[FACT_KEY_BYTES], const char *other, gsl_rng *rng);
/* A number of `digits` digits (1 to 18), no leading zero, that differs from `other` (may be NULL) in every digit: so
 * every token of a value tells the needle from its distractors. */
void fact_draw_number(char value[FACT_VALUE_BYTES], int digits, const char *other, gsl_rng *rng);
/* A random (version 4) UUID in small letters. */
void fact_draw_uuid(char value[FACT_VALUE_BYTES], gsl_rng *rng);

/* Appends the sentence, full stop included; *value_begin and *value_end (may be NULL) are bytes of buf->data. */
enum ag_status fact_state(struct ag_buf *buf, const struct fact *fact, int wording, int variant, int64_t *value_begin,
                          int64_t *value_end, struct ag_error *err);
/* Append "What ...?" and the beginning of its answer, without a blank before or after. */
enum ag_status fact_ask(struct ag_buf *buf, const struct fact *fact, int wording, struct ag_error *err);
enum ag_status fact_stem(struct ag_buf *buf, const struct fact *fact, int wording, struct ag_error *err);

#endif
