/* probe/checkpoint.h: one view of safetensors files, sharded Hugging Face directories and GGUF files: a table of tensors
 * that are read on demand (pread), and the metadata. Hostile input until checked (spec/checkpoints.md). */
#ifndef AG_PROBE_CHECKPOINT_H
#define AG_PROBE_CHECKPOINT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/status.h"
#include "kernels/kernels.h"

enum ckpt_format { CKPT_SAFETENSORS, CKPT_GGUF };

struct ckpt_tensor {
    const char *name; /* as in the file */
    const char *type; /* as in the file: "BF16", "Q4_1", "I64", ... */
    int dtype;        /* enum kern_dtype, or -1: a type that no weight may have (the file still opens) */
    int rank;         /* 0 to 8 */
    int64_t shape[8]; /* C order, slowest first (GGUF is reversed on reading) */
    int64_t elements;
    int file;               /* index into ckpt.files */
    uint64_t offset, bytes; /* absolute in that file */
};

/* One GGUF key. Integers of any width and bools in u (sign-extended in i), floats in f. */
struct ckpt_meta {
    const char *key;
    enum { CKPT_META_INT, CKPT_META_REAL, CKPT_META_BOOL, CKPT_META_TEXT, CKPT_META_ARRAY } kind;
    int64_t i;
    double f;
    const char *text;
    size_t text_bytes;
    int element_kind;         /* arrays: kind of the elements */
    int64_t n;                /* arrays: elements */
    const int64_t *is;        /* arrays of INT or BOOL */
    const double *fs;         /* arrays of REAL */
    const char *const *texts; /* arrays of TEXT, NUL-terminated; text_sizes gives the bytes */
    const int64_t *text_sizes;
};

struct ckpt {
    enum ckpt_format format;
    const char *path;   /* as given */
    const char *folder; /* of a Hugging Face directory, else NULL */
    struct ag_file *files;
    int n_files;
    struct ckpt_tensor *tensors; /* sorted by name */
    int64_t n_tensors;
    json_t *config;         /* config.json of a directory, else NULL */
    struct ckpt_meta *meta; /* GGUF, sorted by key */
    int64_t n_meta;
    int gguf_version;
    const char *file_type; /* GGUF: general.file_type in words, else NULL */
    struct ag_arena *arena;
};

/* path: a .safetensors file, a .gguf file, or a directory with config.json and safetensors (single or with index) or with
 * exactly one .gguf. Checks everything that can be checked without reading weights. On failure *out is NULL. */
enum ag_status ckpt_open(struct ckpt **out, const char *path, struct ag_error *err);
void ckpt_close(struct ckpt *ckpt);

/* NULL when there is none. */
const struct ckpt_tensor *ckpt_find(const struct ckpt *ckpt, const char *name);
/* Raw bytes of rows [row, row + rows) of a tensor seen as (shape[0], rest), or all of it for rank < 2 with row 0. */
enum ag_status ckpt_read_rows(const struct ckpt *ckpt, const struct ckpt_tensor *tensor, void *out, int64_t row,
                              int64_t rows, struct ag_error *err);
/* Bytes of one row (one slice along shape[0]). */
int64_t ckpt_row_bytes(const struct ckpt_tensor *tensor);

const struct ckpt_meta *ckpt_meta_find(const struct ckpt *ckpt, const char *key);

/* SHA-256 of the only weight file, or of the lines "hex  name\n" of all of them in name order. */
enum ag_status ckpt_sha256(char hex[AG_SHA256_HEX], const struct ckpt *ckpt, struct ag_error *err);

#endif
