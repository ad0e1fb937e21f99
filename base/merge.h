/* base/merge.h: what merging results files of any kind has in common: which files belong together, whose prompts come where,
 * and the list of what was merged. Pure functions but for the two that touch a file. */
#ifndef AG_BASE_MERGE_H
#define AG_BASE_MERGE_H

#include "base/provenance.h"

struct ag_merge_options {
    bool allow_backends; /* files of different backends too: equal within tolerances only */
    const char *command; /* becomes the attribute command */
};

/* A file to merge. Provenance is read only. */
struct ag_merge_part {
    const char *path;
    const struct ag_provenance *from;
};

/* The provenance of the whole: prompts of parts[0], parts[1], ... with their twins, units numbered anew, T summed, backend and dump
 * as lists of what occurs, and `merged` with one entry for each file of a single run (that of a merged file is taken over). Refused
 * with AG_E_USAGE, naming what differs, both values and both files: checkpoint, tokenizer, prompts, tap, last tap, dtype, backend
 * (unless allowed), seed, layers; a prompt id that occurs twice; fewer than two parts. All of it is in the arena: the parts
 * may be freed. */
enum ag_status ag_provenance_merge(struct ag_provenance *out, const struct ag_merge_part *parts, int64_t n,
                                   const struct ag_merge_options *options, struct ag_arena *arena,
                                   struct ag_error *err);

/* Is b of path_b what a of path_a is? AG_E_USAGE naming `what` otherwise. */
enum ag_status ag_merge_same(const char *what, int64_t a, int64_t b, const char *path_a, const char *path_b,
                             struct ag_error *err);
/* The same for a number of each layer, layer (Ls) being their names. */
enum ag_status ag_merge_same_layers(const char *what, const int64_t *a, const int64_t *b,
                                    const struct ag_provenance *from, const char *path_a, const char *path_b,
                                    struct ag_error *err);

#endif
