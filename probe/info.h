/* probe/info.h: what `attgeo info` gathers and the two ways it is written; see cmd_info.c. */
#ifndef AG_PROBE_INFO_H
#define AG_PROBE_INFO_H

#include "probe/checkpoint.h"
#include "probe/forward.h"
#include "probe/model.h"
#include "probe/tokenizer.h"

struct info {
    const char *path, *backend;
    const struct ckpt *ckpt;
    const struct model *model;         /* NULL: model_error says why */
    const struct tokenizer *tokenizer; /* NULL: tokenizer_error says why */
    char sha256[AG_SHA256_HEX];        /* "": not asked for */
    int64_t tokens;                    /* of the one prompt that is planned for */
    bool planned;                      /* else plan_error says why not */
    struct forward_plan plan;
    struct ag_error model_error, tokenizer_error, plan_error;
    struct ag_arena *arena;
};

/* Tensors that differ only in the layer's number: name with N in its place. */
struct info_group {
    const char *pattern;
    const struct ckpt_tensor *first;
    int64_t count;
    uint64_t bytes;
};
enum ag_status info_groups(struct info_group **out, int64_t *n, const struct info *info, struct ag_error *err);

int64_t info_parameters(const struct ckpt *ckpt);
uint64_t info_bytes(const struct ckpt *ckpt); /* of the files */
/* Bytes of keys and queries of all layers, a token, stored as f32. */
int64_t info_dump_bytes(const struct model *model);
/* "1.23 GB" */
const char *info_size(char text[32], double bytes);

enum ag_status info_text(struct ag_buf *out, const struct info *info, bool all_tensors, struct ag_error *err);
enum ag_status info_json(struct ag_buf *out, const struct info *info, struct ag_error *err);
/* A dump or a results file (HDF5 with the root attribute `schema`): its root attributes and its objects. */
enum ag_status info_h5(struct ag_buf *out, const char *path, bool json, bool all, struct ag_error *err);

/* Text for JSON: what is not UTF-8 is written as '?'. */
json_t *info_json_text(const char *text);

#endif
