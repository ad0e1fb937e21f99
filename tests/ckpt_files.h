/* tests/ckpt_files.h: writers of small checkpoints for the tests, valid ones and (by hand) broken ones. */
#ifndef AG_TESTS_CKPT_FILES_H
#define AG_TESTS_CKPT_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

/* Pieces of a GGUF file, put together by gguf_bytes. Zero-initialise; version 0 means 3, alignment 0 means 32. */
struct gguf_writer {
    struct ag_buf keys, infos, data;
    uint64_t n_keys, n_tensors;
    uint32_t version, alignment;
};
void put_u32(struct ag_buf *buf, uint32_t value);
void put_u64(struct ag_buf *buf, uint64_t value);
void put_text(struct ag_buf *buf, const char *text); /* u64 length and bytes */
void gguf_u32(struct gguf_writer *w, const char *key, uint32_t value);
void gguf_f32(struct gguf_writer *w, const char *key, float value);
void gguf_bool(struct gguf_writer *w, const char *key, uint8_t value);
void gguf_text(struct gguf_writer *w, const char *key, const char *value);
void gguf_texts(struct gguf_writer *w, const char *key, const char *const *values, uint64_t n);
/* dims: fastest first, as in the file; the data follows, padded. */
void gguf_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                 const void *data, uint64_t bytes);
void gguf_bytes(struct gguf_writer *w, struct ag_buf *out); /* frees the pieces */
void gguf_save(struct gguf_writer *w, const char *path);

/* Pieces of a safetensors file. */
struct st_writer {
    struct ag_buf header, data;
};
void st_tensor(struct st_writer *w, const char *name, const char *dtype, int rank, const int64_t *shape,
               const void *data, uint64_t bytes);
/* header_bytes: pad the header with blanks to that length; 0: to a multiple of 8. */
void st_bytes(struct st_writer *w, struct ag_buf *out, uint64_t header_bytes);
void st_save(struct st_writer *w, const char *path, uint64_t header_bytes);
/* A file from a header given as text and n bytes of zeros as data. */
void st_raw(struct ag_buf *out, const char *header, uint64_t n);

void save_bytes(const char *path, const void *data, uint64_t n);
void save_text(const char *path, const char *text);

/* A tiny model whose weights follow from its tensors' names: the same numbers in every format. */
struct tiny {
    const char *family; /* "llama", "qwen2", "qwen3" */
    int64_t L, C, F, V, Hq, Hk, D;
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied;
    const char *more_config; /* further lines of config.json: ", \"key\": 1" */
    const char *skip;        /* a tensor (safetensors name) to leave out */
    const char *extra;       /* a tensor to add: a vector of C */
    const char *reshape;     /* a tensor to write with one row (or element) more */
};
extern const struct tiny tiny_llama; /* 2 layers, 6 query and 2 key heads, head_dim not hidden / heads */
/* config.json and model.safetensors into folder; shards > 1: that many files and an index. */
void tiny_save_hf(const struct tiny *tiny, const char *folder, int shards);
/* The same as GGUF, q and k permuted where the architecture is llama. w may hold more keys already. */
void tiny_put_gguf(const struct tiny *tiny, struct gguf_writer *w);
void tiny_save_gguf(const struct tiny *tiny, const char *path);

#endif
