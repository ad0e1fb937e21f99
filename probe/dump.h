/* probe/dump.h: the raw dump, HDF5 (DESIGN.md "Files"). The schema is written down here, once; the writer makes it and
 * the reader checks it.
 *
 *  / attributes          schema "attgeo-dump-1", model, architecture, checkpoint_sha256, tokenizer_sha256, prompts_sha256,
 *                        backend, dtype, store ("f32", "bf16", "f16"), seed, command, version, L, P, T, specials (0/1),
 *                        taps ("proj,rope"), last_tap, double_bos
 *  /tokens/id (T) i32, role (T) u8, begin (T) i64, end (T) i64, value (T) u8 (bits: 1 needle, 2 distractor, 4 answer);
 *                        attribute role_names on role
 *  /prompts/offset (P + 1) i64, id (P) utf8, text (P) utf8, answer (P) utf8 ("" = none, attribute has_answer u8 (P)),
 *                        twin (P) i64 (-1: none)
 *  /layers/N             attributes: kind ("softmax", "linear"), scale, window (0: all), Hq, Hk, D, Dv,
 *                        key_head (Hq) i32: query head -> KV head; rope_type, rope_theta, rope_factor, rope_n_rot
 *  /layers/N/TAP/keys (Hk, T, D), queries (Hq, Tq, D): raw, unscaled; a tap equal to the one before is a hard link
 *  /layers/N/values (Hk, Tq, Dv)
 *  /positions (Tq) i64   only when --positions limited queries and values: packed token indices that are stored
 *  /heads                only when --heads limited queries and values: attribute list on queries/values
 *
 * Stored as f32, or rounded at the tap to f16 / bf16 (bf16 as a 16-bit HDF5 float type of 8 exponent bits, which h5py
 * reads without help). */
#ifndef AG_PROBE_DUMP_H
#define AG_PROBE_DUMP_H

#include "base/block.h"
#include "probe/model.h"

enum dump_store { DUMP_F32, DUMP_BF16, DUMP_F16 };

struct dump_writer;
struct dump_options {
    const char *path;
    bool force, resume, compress;
    enum dump_store store;
    uint32_t taps; /* bit (1 << enum ag_tap) */
    bool keys, queries, values;
    const bool *layers;      /* (L) */
    const bool *positions;   /* (T) packed; NULL: all */
    const bool *query_heads; /* (largest Hq) NULL: all */
    const struct model *model;
    const struct ag_source *source;
    bool specials;
    int64_t double_bos;
};

/* Bytes the file will need, for the plan and the free-space check. */
int64_t dump_bytes(const struct dump_options *options);
/* Creates (or with resume, reopens after checking that everything matches) path.part and its journal path.part.journal,
 * allocates every dataset and flushes. */
enum ag_status dump_create(struct dump_writer **out, const struct dump_options *options, struct ag_error *err);
/* True when resume found this layer complete: its blocks need not be written again (the caller may skip its taps). */
bool dump_has_layer(const struct dump_writer *writer, int64_t layer);
/* Same contract as forward_sink.blocks and layer_done. */
enum ag_status dump_blocks(struct dump_writer *writer, const struct ag_block *blocks, int64_t n, struct ag_error *err);
enum ag_status dump_layer_done(struct dump_writer *writer, int64_t layer, struct ag_error *err);
/* Flush, close, rename to the final name, remove the journal. The writer is gone afterwards, also on failure. */
enum ag_status dump_commit(struct dump_writer *writer, struct ag_error *err);
/* keep: leave path.part and its journal for --resume; else remove both. */
void dump_abandon(struct dump_writer *writer, bool keep);

struct dump_reader;
enum ag_status dump_open(struct dump_reader **out, const char *path, struct ag_error *err);
void dump_close(struct dump_reader *reader);
/* Everything a reducer needs to know; tap chosen by the caller among those stored (AG_TAP_COUNT: the last). */
enum ag_status dump_source(struct ag_source *source, struct dump_reader *reader, enum ag_tap tap, struct ag_error *err);
/* Reads one layer in waves that fit and hands its blocks to `reduce`, in prompt order. NaN and infinities are refused with
 * layer, head and token. */
enum ag_status dump_layer(struct dump_reader *reader, int64_t layer, enum ag_tap tap, bool queries, bool values,
                          enum ag_status (*reduce)(void *self, const struct ag_block *blocks, int64_t n,
                                                   struct ag_error *err),
                          void *self, struct ag_error *err);

#endif
