/* probe/forward_pass.h: private to the forward pass: its state, and the table of mixing functions by kind of layer.
 * Sizes are decided in forward_plan.c, memory is handed out in forward.c (pass_open), layers are computed in mixer_*.c.
 */
#ifndef AG_PROBE_FORWARD_PASS_H
#define AG_PROBE_FORWARD_PASS_H

#include "probe/forward.h"
#include "probe/weights.h"

/* Consecutive prompts of a wave. Rows are packed tokens counted from the group's first one. */
struct group {
    int64_t prompt, P;       /* first prompt, prompts */
    int64_t token, T;        /* first token (of the packed array), tokens */
    int64_t *offsets;        /* (P + 1) rows */
    struct kern_tile *tiles; /* (n_tiles) rows */
    int64_t n_tiles;
    const int32_t *position; /* (T) */
    float *hidden;           /* (T, C) the group's part of the wave's hidden states */
};

/* Consecutive tiles of a group. */
struct chunk {
    int64_t row, rows;
    int64_t next;                  /* tile to go on with */
    const struct kern_tile *tiles; /* rows counted from `row` */
    int64_t n_tiles;
};

/* What everything is cut into, from the request and the plan alone; the plan's bytes are sums over this. */
struct pass_sizes {
    int64_t steps;     /* layers that are computed: all, or up to the last tapped one without logits */
    bool ends_at_taps; /* the last of them stops after its taps */
    int64_t raw_bytes, out_floats, staging_bytes; /* largest set of weights */
    int64_t mixer_floats;                         /* of a group's buffer, per token: largest over the layers */
    int64_t mlp_floats;                           /* of a chunk's buffer, per token */
    int64_t embed_bytes;                          /* raw rows of the embedding that are read together */
    int64_t group_bytes, logit_bytes;             /* of the scratch: the larger one counts */
    int64_t head_rows;                            /* rows of the head in one set */
    int64_t logit_tile; /* most rows of logits in one GEMM: depends on V alone, since bits may depend on it */
    int64_t wave_prompts, wave_tiles, wave_groups; /* most in one wave */
    int64_t wave_rows, wave_row_tiles;             /* most rows of logits asked for in one wave, and their tiles */
};

struct pass {
    const struct forward_request *request;
    const struct forward_plan *plan;
    const struct forward_sink *sink;
    const struct model *model;
    const struct kern_ops *ops;
    struct pass_sizes sizes;
    struct weights *weights;
    const float *slot[SLOT_COUNT]; /* of the set in use */
    float *final_norm;             /* (C) */
    /* Where the stream of weights stands: what is being read. */
    int64_t next_wave, next_step;

    /* One wave. */
    float *hidden;     /* (wave_tokens, C) */
    int32_t *position; /* (wave_tokens) */
    struct group *groups;
    int64_t n_groups;
    int64_t *offsets;            /* of all groups */
    struct kern_tile *tiles;     /* of all groups */
    int64_t *rows;               /* (n_rows) packed tokens whose logits are asked for */
    struct kern_tile *row_tiles; /* (n_row_tiles) of indices into rows, never across a prompt boundary */
    int64_t n_rows, n_row_tiles;
    int64_t kept_rows, kept_tiles; /* of those, how many the last layer has put at the front of hidden */
    int64_t head_steps;            /* blocks of the head still to come, counted once for each block of rows */

    /* Scratch of a group and of its chunks; the logits use the same memory once the layers are done. */
    char *scratch, *embed_raw;
    float *read;   /* inside mixing, where the layer's mixer put it */
    float *mixing; /* (group_tokens, mixer_floats) */
    float *normed; /* (chunk_tokens, C) */
    float *mlp;    /* (chunk_tokens, mlp_floats) */
    float *head_x; /* (logit_rows, C) normed */
    float *logits; /* (logit_rows, V) */
    struct kern_tile *chunk_tiles;
    struct ag_block *blocks; /* (wave_prompts) */
};

/* One row for each kind of layer: how tokens are mixed. The MLP and the residual stream are the same for all. */
struct mixer {
    const char *name;
    /* Floats of pass.mixing per token. */
    int64_t (*floats)(const struct model_layer *layer);
    /* Multiplications and additions for a prompt of T tokens, beside those of the weights' matrices. */
    double (*flops)(const struct model_layer *layer, int64_t T);
    /* The weights it needs; taps_only: as far as the last tap. */
    void (*describe)(struct weight_set *set, const struct model_layer *layer, bool taps_only);
    /* Floats of pass.read per token. */
    int64_t (*read_floats)(const struct model_layer *layer);
    /* pass.read (T of the group, read_floats) = what each token reads, from norm(hidden) of the tokens that it sees,
     * still to be projected by SLOT_O. What is tapped goes to the sink on the way. taps_only: nothing is read. */
    enum ag_status (*run)(struct pass *pass, const struct group *group, int64_t layer, bool taps_only,
                          struct ag_error *err);
};
/* NULL: this build has none for the kind. */
const struct mixer *forward_mixer(enum ag_layer_kind kind);
extern const struct mixer forward_mixer_softmax, forward_mixer_linear;

/* The sizes for a plan that forward_plan made for the same request. */
enum ag_status forward_sizes(struct pass_sizes *sizes, const struct forward_plan *plan,
                             const struct forward_request *request, struct ag_error *err);
/* Bytes rounded up to the alignment of the arena's pieces. */
int64_t forward_aligned(int64_t bytes);
/* First prompt after the wave (or group) that starts at `prompt` and may hold `tokens` tokens; never past `end`. */
int64_t forward_cut(const struct ag_tokens *tokens, int64_t prompt, int64_t end, int64_t limit);
bool forward_is_tapped(const struct forward_request *request, int64_t layer);
/* Appends the packed tokens of [prompt, end) whose logits are asked for; rows may be NULL to count. */
int64_t forward_wanted_rows(int64_t *rows, const struct forward_request *request, int64_t prompt, int64_t end);
/* The weights of step `step` of a wave: a layer, or after the last one a block of the head. */
void forward_describe(struct weight_set *set, const struct model *model, const struct pass_sizes *sizes, int64_t step,
                      int64_t head_row);

/* The next chunk of at most plan.chunk_tokens; false at the end. Start with a zeroed chunk. */
bool pass_chunk(struct chunk *chunk, struct pass *pass, const struct group *group);
/* Hands one tap of a group to the sink. NULL views are left out. */
enum ag_status pass_deliver(struct pass *pass, const struct group *group, int64_t layer, enum ag_tap tap,
                            struct ag_view keys, struct ag_view queries, struct ag_view values, struct ag_error *err);
/* AG_E_NUMERIC naming layer, prompt and token where rows (rows, n) at stride ld hold a NaN or an infinity. Row i is
 * token token[i] of the packed array, or first_token + i without such a table. */
enum ag_status pass_check(struct pass *pass, const float *x, const int64_t *token, int64_t first_token, int64_t rows,
                          int64_t n, int64_t ld, int64_t layer, const char *what, struct ag_error *err);

#endif
