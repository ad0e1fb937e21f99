/* probe/dump_file.h: what the parts of the dump writer share (dump.c, dump_blocks.c, dump_journal.c). Private to them.
 */
#ifndef AG_PROBE_DUMP_FILE_H
#define AG_PROBE_DUMP_FILE_H

#include <hdf5.h>

#include "base/file.h"
#include "base/h5.h"
#include "probe/dump.h"

#define DUMP_CHUNK_BYTES (1 << 20)

/* Chunks first, first + 1, ... (head-major order) lie one after the other in the file from addr on. */
struct dump_run {
    int64_t first;
    uint64_t addr;
};

/* One dataset (heads, tokens, D). heads: which source heads are stored, in order. limited: the token axis is
 * /positions. */
struct dump_target {
    char name[64];
    int64_t heads, tokens, D;
    const int32_t *head;
    int64_t chunk_tokens, chunks, chunk_bytes; /* tokens in a chunk, chunks of a head */
    bool exists, limited, limited_heads;
    struct dump_run *runs;
    int64_t n_runs;
};

struct dump_layer_state {
    struct dump_target keys[AG_TAP_COUNT], queries[AG_TAP_COUNT], values;
    int64_t next[AG_TAP_COUNT], next_values; /* first prompt not yet written */
    int64_t done;                            /* prompts complete and flushed when the writer started (resume) */
    int64_t posted;                          /* prompts handed to the journal */
};

struct dump_journal;

struct dump_writer {
    struct dump_options options;
    struct ag_arena *arena;
    char path[4096], part[4112], journal_path[4128];
    int fd;                          /* of part, locked */
    struct dump_layer_state *layers; /* (L) */
    int64_t Tq;
    const int64_t *token_of; /* (Tq) packed token of each stored position; NULL: all */
    const int64_t *first_of; /* (P + 1) first stored position of each prompt */
    uint64_t selfcheck_id, selfcheck_logit;
    int64_t current; /* layer whose blocks are coming; -1: none */
    int threads;
    char **scratch; /* (threads) DUMP_CHUNK_BYTES or one token each */
    struct dump_journal *journal;
};

/* Layout of every dataset from the options (names, shapes, chunks). */
enum ag_status dump_plan_targets(struct dump_layer_state **layers, const struct dump_options *options,
                                 struct ag_arena *arena, struct ag_error *err);
enum ag_h5_type dump_type(enum dump_store store);
/* The datasets of a layer one after the other: i counts up from 0, NULL at the end. */
struct dump_target *dump_target_at(struct dump_layer_state *state, int i);
/* Everything but the numbers: attributes, tokens, prompts, datasets, links (dump_schema.c). */
enum ag_status dump_make_skeleton(hid_t file, struct dump_writer *writer, bool compress, struct ag_error *err);
/* "proj,rope"; "keys,queries" */
void dump_list_taps(char out[64], uint32_t taps);
const char *dump_what_text(const struct dump_options *options);
/* Address in the file of a chunk (head-major number). */
uint64_t dump_chunk_address(const struct dump_target *target, int64_t chunk);
/* count bytes at offset, all of them. */
enum ag_status dump_pwrite(int fd, const char *path, const void *data, int64_t count, uint64_t offset,
                           struct ag_error *err);
/* Prompts of which everything asked for was written. */
int64_t dump_prompts_written(const struct dump_writer *writer, int64_t layer);

/* The journal: a text file, header lines "key<TAB>value" that say what is being dumped, then lines "layer N prompts M".
 * A thread of its own syncs the data and then appends (fsync after the flush), while the next layer computes. */
struct dump_field {
    const char *key, *value;
};
/* Opens and locks the journal file (created when missing; *fresh tells). */
enum ag_status dump_journal_open(struct dump_journal **out, const char *path, const char *part, bool *fresh,
                                 struct ag_arena *arena, struct ag_error *err);
/* Starts anew with these header fields. */
enum ag_status dump_journal_start(struct dump_journal *journal, const struct dump_field *fields, int64_t n, int64_t L,
                                  struct ag_arena *arena, struct ag_error *err);
/* Compares the header with these fields, reads done (L), the prompts complete in each layer. */
enum ag_status dump_journal_resume(struct dump_journal *journal, const struct dump_field *fields, int64_t n, int64_t L,
                                   int64_t P, int64_t *done, struct ag_arena *arena, struct ag_error *err);
/* Starts the thread; fd is the data file. */
enum ag_status dump_journal_run(struct dump_journal *journal, int fd, struct ag_error *err);
/* Prompts [0, prompts) of this layer are written: to be synced and noted. */
enum ag_status dump_journal_post(struct dump_journal *journal, int64_t layer, int64_t prompts, struct ag_error *err);
/* Waits until everything posted is on disk and stops the thread. */
enum ag_status dump_journal_finish(struct dump_journal *journal, struct ag_error *err);
void dump_journal_close(struct dump_journal *journal, bool remove);

#endif
