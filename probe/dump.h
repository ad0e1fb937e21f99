/* probe/dump.h: the raw dump, HDF5 (DESIGN.md "Files"). The schema is written down here, once; the writer makes it and
 * the reader checks it.
 *
 *  / attributes       schema "attgeo-dump-1", about (this list in words), model, architecture, checkpoint_sha256,
 *                     tokenizer_sha256, prompts_sha256, backend, dtype, store ("f32", "bf16", "f16"), seed, command,
 *                     version, L, P, T, specials (0/1), taps ("proj,rope"), what ("keys,queries"), last_tap;
 *                     double_bos (prompts that began with BOS text); missing_value (3) i64: prompts with a needle, a
 *                     distractor, an answer whose value was not found; shard ("1/4": which share of the prompt file);
 *                     max_position (of the model; 0: unknown), beyond_max_position (prompts longer than that)
 *  /tokens/           id (T) i32; role (T) u8, attribute role_names; begin, end (T) i64: bytes of the prompt's text
 *                     followed by its answer; value (T) u8, bits: 1 needle, 2 distractor, 4 answer
 *  /prompts/          offset (P + 1) i64; id, text, answer (P) utf8 (answer "" where has_answer (P) u8 is 0);
 *                     twin (P) i64 (-1: none)
 *  /layers/N          attributes kind ("softmax", "linear"), scale, window (0: all), Hq, Hk, D, Dv; key_head (Hq) i32
 *                     (query head -> KV head); rope_type, rope_theta, rope_factor, rope_n_rot, rope_attention_scaling,
 *                     rope_inv_freq (n_rot / 2) f32; llama3 also rope_low_freq_factor, rope_high_freq_factor,
 *                     rope_original_max_position
 *  /layers/N/TAP/     keys (Hk, T, D), queries (Hq', Tq, D): raw, unscaled; a tap equal to the one before is a hard link
 *  /layers/N/values   (Hk', Tq, Dv)
 *                     each with attribute axes; where --heads limited queries and values (Hq', Hk' < Hq, Hk), attribute
 *                     heads i32: which heads are stored, in order
 *  /positions         (Tq) i64, only when --positions limited queries and values (else Tq = T): packed indices of the
 *                     stored tokens
 *  /selfcheck/        id (P, 16) i32, logit (P, 16) f32: the largest logits after each prompt's last token, descending;
 *                     only when the pass went as far. Whoever runs the model elsewhere can compare.
 *
 * Layers of kind "linear" have no RoPE (rope_n_rot 0) and last_tap "norm"; a value head group of one key head is Dv wide
 * together. What is not stored yet: log gates, beta, final states, q_clean of CCQ models.
 *
 * Stored as f32, or rounded at the tap to f16 / bf16 (bf16 as a 16-bit HDF5 float type of 8 exponent bits, which h5py
 * reads without help). Layout: chunks of (1 head, tokens, D), at most 1 MiB (HDF5's chunk cache). --compress: shuffle
 * and deflate, made from the plain file when that is complete. */
#ifndef AG_PROBE_DUMP_H
#define AG_PROBE_DUMP_H

#include "base/block.h"
#include "probe/model.h"

#define DUMP_SCHEMA "attgeo-dump-1"
#define DUMP_SELFCHECK 16 /* largest logits kept for each prompt */

enum dump_store { DUMP_F32, DUMP_BF16, DUMP_F16 };
extern const char *const dump_store_names[]; /* NULL-terminated */

struct dump_writer;
struct dump_options {
    const char *path;
    bool force, resume, compress;
    enum dump_store store;
    uint32_t taps; /* bit (1 << enum ag_tap) */
    bool keys, queries, values;
    bool selfcheck;          /* dump_selfcheck will be called for every prompt */
    const bool *layers;      /* (L) */
    const bool *positions;   /* (T) packed; NULL: all */
    const bool *query_heads; /* (largest Hq) NULL: all. Values: the KV heads that these use */
    const struct model *model;
    const struct ag_source *source;
    bool specials;
    int64_t double_bos, missing_value[3];
    const char *shard; /* "1/1": all of the file */
};

/* Bytes the file will need, for the plan and the free-space check (--compress: while both files are there). */
int64_t dump_bytes(const struct dump_options *options);
/* Does this tap hold the same as the stage before it, in this layer (then it is a hard link)? */
bool dump_tap_repeats(const struct model *model, int64_t layer, enum ag_tap tap);
/* Creates (or with resume, reopens after checking that everything matches) path.part and its journal path.part.journal,
 * allocates every dataset and flushes. The file is a whole HDF5 file from then on; blocks go to their places in it.
 * Refused by name: an existing path or path.part without force, a lock, too little room, options that differ. */
enum ag_status dump_create(struct dump_writer **out, const struct dump_options *options, struct ag_error *err);
/* True when resume found this layer complete: its blocks need not be written again (the caller may skip its taps). */
bool dump_has_layer(const struct dump_writer *writer, int64_t layer);
/* Same contract as forward_sink.blocks and layer_done. The values are rounded to the store here (dump_round gives the
 * same to reducers). Prompts that resume found complete and taps that are links are passed over. NaN, infinities and
 * what the store cannot hold are AG_E_NUMERIC with layer, head, prompt and token. */
enum ag_status dump_blocks(struct dump_writer *writer, const struct ag_block *blocks, int64_t n, struct ag_error *err);
enum ag_status dump_layer_done(struct dump_writer *writer, int64_t layer, struct ag_error *err);
/* The largest logits after the last token of a prompt. */
enum ag_status dump_selfcheck(struct dump_writer *writer, int64_t prompt, const float *logits, int64_t V,
                              struct ag_error *err);
/* Checks that everything came, flushes, compresses where asked, renames to the final name, removes the journal. The
 * writer is gone afterwards, also on failure; path.part then stays for --resume. */
enum ag_status dump_commit(struct dump_writer *writer, struct ag_error *err);
/* keep: leave path.part and its journal for --resume; else remove both. NULL is allowed. */
void dump_abandon(struct dump_writer *writer, bool keep);

/* n floats as the store will hold them, widened again; f32: a copy. out may be in. */
void dump_round(float *out, const float *in, int64_t n, enum dump_store store);

struct dump_reader;
/* Opens and checks everything but the numbers: schema, ranges, shapes and types of every dataset. */
enum ag_status dump_open(struct dump_reader **out, const char *path, struct ag_error *err);
void dump_close(struct dump_reader *reader);
/* Everything a reducer needs to know; it lives as long as the reader. tap: one of those stored (AG_TAP_COUNT: the last,
 * which the read sees). */
enum ag_status dump_source(struct ag_source *source, struct dump_reader *reader, enum ag_tap tap, struct ag_error *err);
/* Reads one layer in waves that fit and hands its blocks to `reduce`, in prompt order. NaN and infinities are refused
 * with layer, head, prompt and token. Queries or values that the dump lacks, or holds for some positions or heads only,
 * are refused by name. */
enum ag_status dump_layer(struct dump_reader *reader, int64_t layer, enum ag_tap tap, bool queries, bool values,
                          enum ag_status (*reduce)(void *self, const struct ag_block *blocks, int64_t n,
                                                   struct ag_error *err),
                          void *self, struct ag_error *err);
/* Most bytes that dump_layer's buffers take at a time unless one prompt alone needs more (default 256 MiB). */
void dump_set_wave(struct dump_reader *reader, int64_t bytes);

/* For `info` and messages. */
struct dump_facts {
    enum dump_store store;
    uint32_t taps;
    bool keys, queries, values, specials, selfcheck, limited; /* limited: by --positions or --heads */
    int64_t L, P, T, Tq, double_bos, missing_value[3];
    const char *version;
};
struct dump_facts dump_facts(const struct dump_reader *reader);

#endif
