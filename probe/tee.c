#include "probe/tee.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t stop;
static struct sigaction before[2];
static const int signals[2] = {SIGINT, SIGTERM};

static void on_signal(int number) {
    (void)number;
    stop = 1;
}

void tee_catch(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    stop = 0;
    for (int i = 0; i < 2; i++) sigaction(signals[i], &action, &before[i]);
}

void tee_release(void) {
    for (int i = 0; i < 2; i++) sigaction(signals[i], &before[i], NULL);
}

bool tee_interrupted(void) { return stop != 0; }

static enum ag_status interrupted(struct ag_error *err) {
    if (!stop) return AG_OK;
    return ag_fail(err, AG_E_INTERRUPTED, "interrupted");
}

/* The view's numbers as the store will hold them, packed (head, token, dim). */
static enum ag_status round_view(struct ag_view *view, int64_t heads, int64_t T, int64_t D, const struct tee *tee,
                                 struct ag_error *err) {
    if (!view->data) return AG_OK;
    float *out = AG_NEW(tee->scratch, float, heads *T *D, err);
    if (!out) return AG_E_MEMORY;
    const struct ag_view in = *view;
    const enum dump_store store = tee->store;
#pragma omp parallel for default(none) shared(heads, T, D, out, in, store)
    for (int64_t h = 0; h < heads; h++)
        for (int64_t t = 0; t < T; t++)
            dump_round(out + (h * T + t) * D, in.data + h * in.head_stride + t * in.token_stride, D, store);
    *view = (struct ag_view){out, T * D, D};
    return AG_OK;
}

static enum ag_status reduce(struct tee *tee, const struct ag_block *blocks, int64_t n, struct ag_error *err) {
    enum ag_status status = AG_OK;
    bool queries = false, values = false;
    for (int r = 0; r < tee->n_reducers; r++) {
        queries |= tee->reducers[r]->class_->needs_queries;
        values |= tee->reducers[r]->class_->needs_values;
    }
    if (tee->store != DUMP_F32) {
        ag_arena_reset(tee->scratch);
        struct ag_block *rounded = AG_NEW(tee->scratch, struct ag_block, n, err);
        if (!rounded) return AG_E_MEMORY;
        memcpy(rounded, blocks, (size_t)n * sizeof *blocks);
        for (int64_t i = 0; i < n; i++) {
            struct ag_block *b = &rounded[i];
            AG_TRY(round_view(&b->keys, b->shape->Hk, b->T, b->shape->D, tee, err));
            if (queries) AG_TRY(round_view(&b->queries, b->shape->Hq, b->T, b->shape->D, tee, err));
            if (values) AG_TRY(round_view(&b->values, b->shape->Hk, b->T, b->shape->Dv, tee, err));
        }
        blocks = rounded;
    }
    for (int r = 0; r < tee->n_reducers; r++)
        AG_TRY(tee->reducers[r]->class_->reduce(tee->reducers[r], blocks, n, err));
fail:
    return status;
}

static enum ag_status on_blocks(void *self, const struct ag_block *blocks, int64_t n, struct ag_error *err) {
    struct tee *tee = self;
    enum ag_status status;
    double start = ag_now(), middle;
    AG_TRY(interrupted(err));
    if (tee->dump) AG_TRY(dump_blocks(tee->dump, blocks, n, err));
    middle = ag_now();
    tee->dump_seconds += middle - start;
    if (n > 0 && tee->n_reducers > 0 && blocks[0].tap == tee->tap) AG_TRY(reduce(tee, blocks, n, err));
    tee->reduce_seconds += ag_now() - middle;
fail:
    return status;
}

static enum ag_status on_layer_done(void *self, int64_t layer, struct ag_error *err) {
    struct tee *tee = self;
    enum ag_status status = tee->dump ? dump_layer_done(tee->dump, layer, err) : AG_OK;
    return status != AG_OK ? status : interrupted(err);
}

static enum ag_status on_logits(void *self, const float *logits, const int64_t *token, int64_t rows, int64_t V,
                                struct ag_error *err) {
    struct tee *tee = self;
    enum ag_status status = AG_OK;
    if (tee->score) AG_TRY(score_logits(tee->score, logits, token, rows, V, err));
    if (!tee->dump) return AG_OK;
    int64_t p = 0;
    for (int64_t i = 0; i < rows; i++) {
        while (tee->tokens->offsets[p + 1] <= token[i]) p++;
        if (token[i] + 1 == tee->tokens->offsets[p + 1]) AG_TRY(dump_selfcheck(tee->dump, p, logits + i * V, V, err));
    }
fail:
    return status;
}

struct forward_sink tee_sink(struct tee *tee) {
    return (struct forward_sink){.self = tee, .blocks = on_blocks, .layer_done = on_layer_done, .logits = on_logits};
}
