/* probe/weights.h: the stream of weights of a layer-major pass. A *set* is what one step needs at once (a layer, or a
 * block of the head's rows). A reader thread preads the next set while the current one computes; all threads dequantise
 * it when it is taken. So two raw sets and one in f32 are in memory, never a model. */
#ifndef AG_PROBE_WEIGHTS_H
#define AG_PROBE_WEIGHTS_H

#include "kernels/kernels.h"
#include "probe/model.h"

/* Where a weight lands in f32. Weights that are added to one slot follow one another (rows of one matrix). */
enum weight_slot {
    SLOT_NORM1,
    SLOT_QKV,
    SLOT_QKV_BIAS,
    SLOT_Q_NORM,
    SLOT_K_NORM,
    /* linear attention; SLOT_QKV then holds all matrices that meet the layer's input */
    SLOT_CONV,
    SLOT_GATE_HIGH,
    SLOT_GATE_HIGH_BIAS,
    SLOT_DECAY,
    SLOT_DECAY_BIAS,
    SLOT_READ_NORM,
    SLOT_LAMBDA,
    SLOT_LAMBDA_BIAS,
    SLOT_O,
    SLOT_O_BIAS,
    SLOT_NORM2,
    SLOT_GATE_UP,
    SLOT_GATE_UP_BIAS,
    SLOT_DOWN,
    SLOT_DOWN_BIAS,
    SLOT_HEAD,
    SLOT_FINAL_NORM,
    SLOT_COUNT
};

#define WEIGHT_PARTS 32
struct weight_part {
    const struct model_weight *weight; /* NULL: zeros */
    enum weight_slot slot;
    int64_t row, rows, columns;                /* a vector is one row */
    int64_t raw_offset, raw_bytes, out_offset; /* in bytes, in floats: set by weight_set_layout */
};
struct weight_set {
    struct weight_part part[WEIGHT_PARTS];
    int n;
    bool direct[SLOT_COUNT];       /* all its parts are f32 in the file: used where they were read */
    int64_t offset[SLOT_COUNT];    /* bytes into raw (direct) or floats into the f32 buffer; -1: the set has none */
    int64_t raw_bytes, out_floats; /* sizes of the buffers that the set needs */
    int64_t staging_bytes;         /* largest model_scratch_bytes of its parts */
};

void weight_set_begin(struct weight_set *set);
/* Adds a whole weight; one that the model lacks is left out. */
void weight_set_add(struct weight_set *set, enum weight_slot slot, const struct model_weight *weight);
/* The same, but `elements` zeros where the model lacks it (a bias of one part of a fused matrix). */
void weight_set_add_or_zeros(struct weight_set *set, enum weight_slot slot, const struct model_weight *weight,
                             int64_t elements);
void weight_set_add_rows(struct weight_set *set, enum weight_slot slot, const struct model_weight *weight, int64_t row,
                         int64_t rows);
/* After the last part: offsets and sizes. */
void weight_set_layout(struct weight_set *set);

struct weights;
/* Buffers from the arena for sets of at most these sizes, and the reader thread. */
enum ag_status weights_open(struct weights **out, const struct model *model, const struct kern_ops *ops,
                            int64_t raw_bytes, int64_t out_floats, int64_t staging_bytes, struct ag_arena *arena,
                            struct ag_error *err);
/* Bytes that weights_open takes from the arena. */
int64_t weights_bytes(int64_t raw_bytes, int64_t out_floats, int64_t staging_bytes);
/* Starts reading a set (copied). One at a time: take it before the next. */
void weights_read(struct weights *weights, const struct weight_set *set);
/* Waits for the set being read and dequantises it; slot[i] is its data, or NULL where the set has no such slot. Valid
 * until the next take. */
enum ag_status weights_take(const float *slot[SLOT_COUNT], struct weights *weights, struct ag_error *err);
/* Ends the reader thread; NULL is allowed. The memory is the arena's. */
void weights_close(struct weights *weights);

#endif
