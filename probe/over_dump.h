/* probe/over_dump.h: a reducer over a dump, for the commands that work on dumps. */
#ifndef AG_PROBE_OVER_DUMP_H
#define AG_PROBE_OVER_DUMP_H

#include "base/cli.h"
#include "probe/dump.h"

/* Values of --tap: the names of the taps and last. */
extern const char *const over_dump_taps[AG_TAP_COUNT + 2]; /* NULL-terminated */
#define OVER_DUMP_TAP_LAST AG_TAP_COUNT
#define OVER_DUMP_TAP_HELP                                                                                             \
    "Where keys and queries were taken: after projection, convolution, QK-norm or RoPE. Default last: the last tap "   \
    "stored."
#define OVER_DUMP_LAYERS_HELP "Layers to analyse, e.g. 0-3,7. Default: all that are stored."

struct over_dump {
    struct dump_reader *reader;
    struct ag_source source; /* of the chosen tap and layers, command line and path filled in */
    struct ag_arena *arena;
};

/* Checks -o (given, not the dump itself, not there without --force), opens the dump and chooses tap and layers (NULL: all
 * stored). Close it also after a failure. */
enum ag_status over_dump_open(struct over_dump *out, const struct ag_run *run, int tap, const char *layers);
void over_dump_close(struct over_dump *over);

/* reducer->begin, with the dump named in what goes wrong; then over_dump_pass hands all blocks of the chosen layers over. */
enum ag_status over_dump_begin(const struct over_dump *over, struct ag_reducer *reducer, struct ag_error *err);
enum ag_status over_dump_pass(const struct over_dump *over, struct ag_reducer *reducer, const char *label,
                              const struct ag_log *log, struct ag_error *err);

#endif
