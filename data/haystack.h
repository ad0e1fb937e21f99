/* data/haystack.h: the prose that facts are hidden in, as a list of sentences (MATH.md section 7, DESIGN.md "Layout").
 */
#ifndef AG_DATA_HAYSTACK_H
#define AG_DATA_HAYSTACK_H

#include "base/arena.h"

/* Larger files are refused: the generator needs thousands of sentences, not millions. */
#define HAYSTACK_LIMIT ((uint64_t)8 << 20)

struct haystack {
    const char *path;      /* of the file, "the built-in haystack" for ours */
    const char **sentence; /* (n) distinct, runs of blanks and line breaks made one blank, in the order of the file */
    int64_t n;
    int64_t repeated;  /* sentences of the file that were left out because they had been seen before */
    const char *text;  /* all sentences joined by one blank: for "does this string occur anywhere?" */
    const char *lower; /* the same with ASCII letters in lower case */
};

/* Reads path (NULL: the built-in text) into the arena. Refused by name: no sentence at all, control bytes (a binary
 * file), invalid UTF-8 (with its byte position), more than HAYSTACK_LIMIT bytes.
 *
 * A sentence ends at . ! ? (closing quotes and brackets included) before a blank and anything but a small letter, not
 * after an initial or a common abbreviation; at a CJK full stop; and at an empty line. In a text
 * with fewer than one such end in 400 bytes, or only one, small letters begin sentences too. */
enum ag_status haystack_open(struct haystack *out, const char *path, struct ag_arena *arena, struct ag_error *err);
/* The same on n bytes in memory; name appears in messages and becomes path. */
enum ag_status haystack_parse(struct haystack *out, const char *text, size_t n, const char *name,
                              struct ag_arena *arena, struct ag_error *err);

#endif
