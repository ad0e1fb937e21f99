/* probe/tee.h: one forward pass, several consumers: a dump, reducers, scores of the answers. What they see is rounded
 * to the store first, so that a reducer gets the same bits during the pass as from the file. */
#ifndef AG_PROBE_TEE_H
#define AG_PROBE_TEE_H

#include "probe/dump.h"
#include "probe/forward.h"
#include "probe/score.h"

#define TEE_REDUCERS 8

struct tee {
    struct dump_writer *dump; /* NULL: none */
    struct ag_reducer *reducers[TEE_REDUCERS];
    int n_reducers;
    enum ag_tap tap; /* that the reducers get */
    enum dump_store store;
    struct score *score; /* NULL: none */
    const struct ag_tokens *tokens;
    struct ag_arena *scratch;            /* of one call */
    double dump_seconds, reduce_seconds; /* spent in them so far */
};

/* The functions of a forward_sink whose self is the tee. Between blocks they look whether the user has interrupted
 * (tee_interrupted): then AG_E_INTERRUPTED. */
struct forward_sink tee_sink(struct tee *tee);
/* From now on SIGINT and SIGTERM only ask for a stop (a second one kills as usual); tee_release puts the old behaviour
 * back. */
void tee_catch(void);
void tee_release(void);
bool tee_interrupted(void);

#endif
