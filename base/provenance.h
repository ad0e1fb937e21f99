/* base/provenance.h: where results come from, carried in every results file: the attributes of the root, the prompts with their
 * twins and units, the layers analysed. Written and read here, once, for all kinds of results. */
#ifndef AG_BASE_PROVENANCE_H
#define AG_BASE_PROVENANCE_H

#include "base/block.h"
#include "base/h5.h"

/* The runs that a merged results file (attgeo merge) is made of, in order; n = 0: it is of one run. In the file: /merged/command,
 * version, backend, dump (n) utf8, there only when n > 0. */
struct ag_merged {
    int64_t n;
    const char *const *command, *const *version, *const *backend, *const *dump; /* (n) */
};

struct ag_provenance {
    const char *model, *architecture, *checkpoint_sha256, *tokenizer_sha256, *prompts_sha256, *backend, *dtype,
        *command, *version, *dump; /* dump: "" when reduced during the forward pass */
    int64_t seed;                  /* of the source */
    enum ag_tap tap, last_tap;
    int64_t L, P, T;
    const char *const *prompt_id; /* (P) */
    const int64_t *twin, *unit;   /* (P); unit: its twin pair or itself, 0..units-1 by first appearance */
    int64_t units;
    int64_t Ls;           /* layers analysed */
    const int64_t *layer; /* (Ls) ascending, the model's own numbers */
    struct ag_merged merged;
};

/* unit (P): 0..U-1 in order of first appearance; a prompt and its twin share one. twin (P): index or -1. Returns U. */
int64_t ag_units(int64_t *unit, const int64_t *twin, int64_t P);

/* Copies into the arena. Refused: no prompts, no layer selected, a twin that does not point back. who: the command, for messages. */
enum ag_status ag_provenance_of(struct ag_provenance *out, const struct ag_source *source, const char *who,
                                struct ag_arena *arena, struct ag_error *err);
/* Root attributes (schema too), /prompts, /layers. */
enum ag_status ag_provenance_write(hid_t file, const struct ag_provenance *provenance, const char *schema,
                                   struct ag_error *err);
/* The same back, checked; another schema is refused, naming `made_by` ("attgeo taylor"). */
enum ag_status ag_provenance_read(struct ag_provenance *out, hid_t file, const char *path, const char *schema,
                                  const char *made_by, struct ag_arena *arena, struct ag_error *err);

#endif
