#include "probe/weights.h"

#include <pthread.h>
#include <string.h>

#define ALIGN 64

static int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

void weight_set_begin(struct weight_set *set) { memset(set, 0, sizeof *set); }

static void add(struct weight_set *set, enum weight_slot slot, const struct model_weight *weight, int64_t row,
                int64_t rows, int64_t columns) {
    if (set->n == WEIGHT_PARTS) return; /* a bug of ours: weight_set_layout's sizes are then short, and tests fail */
    set->part[set->n++] =
        (struct weight_part){.weight = weight, .slot = slot, .row = row, .rows = rows, .columns = columns};
}

void weight_set_add(struct weight_set *set, enum weight_slot slot, const struct model_weight *weight) {
    const struct ckpt_tensor *tensor = weight->tensor;
    if (!tensor) return;
    int64_t rows = tensor->rank < 2 ? 1 : tensor->shape[0];
    add(set, slot, weight, 0, rows, rows ? tensor->elements / rows : 0);
}

void weight_set_add_or_zeros(struct weight_set *set, enum weight_slot slot, const struct model_weight *weight,
                             int64_t elements) {
    if (weight->tensor)
        weight_set_add(set, slot, weight);
    else
        add(set, slot, NULL, 0, 1, elements);
}

void weight_set_add_rows(struct weight_set *set, enum weight_slot slot, const struct model_weight *weight, int64_t row,
                         int64_t rows) {
    add(set, slot, weight, row, rows, weight->tensor->elements / weight->tensor->shape[0]);
}

static int64_t part_raw_bytes(const struct weight_part *part) {
    if (!part->weight) return 0;
    const struct kern_dtype_info *info = &kern_dtypes[part->weight->tensor->dtype];
    return part->rows * (part->columns / info->block_elements) * info->block_bytes;
}

void weight_set_layout(struct weight_set *set) {
    set->raw_bytes = set->out_floats = set->staging_bytes = 0;
    for (int s = 0; s < SLOT_COUNT; s++) {
        bool any = false, direct = true;
        for (int i = 0; i < set->n; i++) {
            if ((int)set->part[i].slot != s) continue;
            any = true;
            direct = direct && set->part[i].weight && set->part[i].weight->tensor->dtype == KERN_F32;
        }
        set->direct[s] = direct;
        set->offset[s] = !any ? -1 : direct ? set->raw_bytes : set->out_floats;
        for (int i = 0; i < set->n; i++) {
            struct weight_part *part = &set->part[i];
            if ((int)part->slot != s) continue;
            part->raw_bytes = part_raw_bytes(part);
            part->raw_offset = set->raw_bytes;
            part->out_offset = set->out_floats;
            int64_t scratch = part->weight ? model_scratch_bytes(part->weight) : 0;
            if (scratch > set->staging_bytes) set->staging_bytes = scratch;
            /* Parts that are used where they lie must touch one another. */
            set->raw_bytes += direct ? part->raw_bytes : aligned(part->raw_bytes);
            if (!direct) set->out_floats += part->rows * part->columns;
        }
        set->raw_bytes = aligned(set->raw_bytes);
        set->out_floats = aligned(set->out_floats * (int64_t)sizeof(float)) / (int64_t)sizeof(float);
    }
}

struct weights {
    const struct model *model;
    const struct kern_ops *ops;
    char *raw[2], *staging;
    float *out;
    int64_t raw_bytes, out_floats, staging_bytes;
    int reading; /* the raw buffer that the reader fills */
    struct weight_set set;
    struct ag_error err; /* the reader's */
    /* The hand-over: the main thread sets busy, the reader clears it. */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool started, busy, pending, quit;
};

static enum ag_status read_set(struct weights *weights) {
    const struct weight_set *set = &weights->set;
    struct ag_error *err = &weights->err;
    enum ag_status status = AG_OK;
    char *raw = weights->raw[weights->reading];
    if (set->raw_bytes > weights->raw_bytes || set->out_floats > weights->out_floats ||
        set->staging_bytes > weights->staging_bytes)
        return ag_fail(err, AG_E_INTERNAL, "a set of weights is larger than its buffers");
    for (int i = 0; i < set->n; i++) {
        const struct weight_part *part = &set->part[i];
        if (!part->weight) continue;
        AG_TRY(model_read(raw + part->raw_offset, weights->staging, weights->model, part->weight, part->row, part->rows,
                          err));
    }
fail:
    return status;
}

static void *reader_main(void *argument) {
    struct weights *weights = argument;
    pthread_mutex_lock(&weights->mutex);
    for (;;) {
        while (!weights->busy && !weights->quit) pthread_cond_wait(&weights->changed, &weights->mutex);
        if (weights->quit) break;
        pthread_mutex_unlock(&weights->mutex);
        read_set(weights); /* leaves its error in weights->err */
        pthread_mutex_lock(&weights->mutex);
        weights->busy = false;
        pthread_cond_signal(&weights->changed);
    }
    pthread_mutex_unlock(&weights->mutex);
    return NULL;
}

int64_t weights_bytes(int64_t raw_bytes, int64_t out_floats, int64_t staging_bytes) {
    return aligned(sizeof(struct weights)) + 2 * aligned(raw_bytes) + aligned(out_floats * (int64_t)sizeof(float)) +
           aligned(staging_bytes);
}

enum ag_status weights_open(struct weights **out, const struct model *model, const struct kern_ops *ops,
                            int64_t raw_bytes, int64_t out_floats, int64_t staging_bytes, struct ag_arena *arena,
                            struct ag_error *err) {
    *out = NULL;
    struct weights *weights = AG_ZEROS(arena, struct weights, 1, err);
    if (!weights) return AG_E_MEMORY;
    *weights = (struct weights){
        .model = model, .ops = ops, .raw_bytes = raw_bytes, .out_floats = out_floats, .staging_bytes = staging_bytes};
    weights->raw[0] = AG_NEW(arena, char, raw_bytes, err);
    weights->raw[1] = AG_NEW(arena, char, raw_bytes, err);
    weights->staging = AG_NEW(arena, char, staging_bytes, err);
    weights->out = AG_NEW(arena, float, out_floats, err);
    if (!weights->raw[0] || !weights->raw[1] || !weights->staging || !weights->out) return AG_E_MEMORY;
    pthread_mutex_init(&weights->mutex, NULL);
    pthread_cond_init(&weights->changed, NULL);
    /* Without a thread (a limit of the system) the same reads happen in weights_take. */
    weights->started = pthread_create(&weights->thread, NULL, reader_main, weights) == 0;
    *out = weights;
    return AG_OK;
}

void weights_close(struct weights *weights) {
    if (!weights) return;
    if (weights->started) {
        pthread_mutex_lock(&weights->mutex);
        weights->quit = true;
        pthread_cond_signal(&weights->changed);
        pthread_mutex_unlock(&weights->mutex);
        pthread_join(weights->thread, NULL);
    }
    pthread_mutex_destroy(&weights->mutex);
    pthread_cond_destroy(&weights->changed);
}

void weights_read(struct weights *weights, const struct weight_set *set) {
    pthread_mutex_lock(&weights->mutex);
    weights->set = *set;
    weights->pending = true;
    weights->busy = weights->started;
    pthread_cond_signal(&weights->changed);
    pthread_mutex_unlock(&weights->mutex);
}

enum ag_status weights_take(const float *slot[SLOT_COUNT], struct weights *weights, struct ag_error *err) {
    pthread_mutex_lock(&weights->mutex);
    while (weights->busy) pthread_cond_wait(&weights->changed, &weights->mutex);
    pthread_mutex_unlock(&weights->mutex);
    if (!weights->pending) return ag_fail(err, AG_E_INTERNAL, "weights were taken that nobody had asked for");
    if (!weights->started) read_set(weights);
    if (weights->err.status != AG_OK) return ag_fail(err, weights->err.status, "%s", weights->err.text);

    const struct weight_set *set = &weights->set;
    const char *raw = weights->raw[weights->reading];
    for (int i = 0; i < set->n; i++) {
        const struct weight_part *part = &set->part[i];
        float *to = weights->out + part->out_offset;
        if (!part->weight)
            memset(to, 0, (size_t)(part->rows * part->columns) * sizeof(float));
        else if (!set->direct[part->slot])
            weights->ops->dequant(to, raw + part->raw_offset, (enum kern_dtype)part->weight->tensor->dtype, part->rows,
                                  part->columns);
    }
    for (int s = 0; s < SLOT_COUNT; s++) {
        slot[s] = set->offset[s] < 0 ? NULL
                  : set->direct[s]   ? (const float *)(const void *)(raw + set->offset[s])
                                     : weights->out + set->offset[s];
    }
    weights->reading ^= 1;
    weights->pending = false;
    return AG_OK;
}
