#include "tests/forward_common.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/test.h"

struct subject subject_open(const char *path) {
    struct ag_error err = AG_ERROR_INIT;
    struct subject s = {.arena = ag_arena_new("test")};
    assert_ok(ckpt_open(&s.ckpt, path, &err), &err);
    assert_ok(model_open(&s.model, s.ckpt, &err), &err);
    assert_true(s.model->L <= SEEN_LAYERS);
    s.request.model = s.model;
    s.request.taps = (1u << AG_TAP_COUNT) - 1;
    s.request.keys = s.request.queries = s.request.values = true;
    s.request.logits = FORWARD_LOGITS_ALL;
    return s;
}

void subject_close(struct subject *s) {
    model_close(s->model);
    ckpt_close(s->ckpt);
    ag_arena_free(s->arena);
}

void subject_tokens(struct subject *s, const int64_t *ids, int64_t T, const int64_t *offsets, int64_t P) {
    struct ag_error err = AG_ERROR_INIT;
    int32_t *id = AG_NEW(s->arena, int32_t, T, &err);
    int64_t *copy = AG_NEW(s->arena, int64_t, P + 1, &err);
    const char **names = AG_NEW(s->arena, const char *, P, &err);
    for (int64_t t = 0; t < T; t++) id[t] = (int32_t)ids[t];
    memcpy(copy, offsets, (size_t)(P + 1) * sizeof *copy);
    for (int64_t p = 0; p < P; p++) {
        char name[32];
        int n = snprintf(name, sizeof name, "p%" PRId64, p);
        names[p] = ag_arena_text(s->arena, name, (size_t)n, &err);
    }
    s->tokens = (struct ag_tokens){.P = P, .T = T, .offsets = copy, .id = id, .prompt_id = names};
    s->request.tokens = &s->tokens;
    s->tokens.role = AG_ZEROS(s->arena, uint8_t, T, &err);
    s->tokens.value = AG_ZEROS(s->arena, uint8_t, T, &err);
}

static enum ag_status see_blocks(void *self, const struct ag_block *blocks, int64_t n, struct ag_error *err) {
    struct seen *seen = self;
    const struct subject *s = seen->subject;
    for (int64_t i = 0; i < n; i++) {
        const struct ag_block *b = &blocks[i];
        int64_t first = s->tokens.offsets[b->prompt];
        assert_int_equal(b->T, s->tokens.offsets[b->prompt + 1] - first);
        assert_ptr_equal(b->role, s->tokens.role + first);
        const struct ag_view *views[3] = {&b->keys, &b->queries, &b->values};
        for (int j = 0; j < 3; j++) {
            if (!views[j]->data) continue;
            int64_t heads = j == 1 ? b->shape->Hq : b->shape->Hk, D = j == 2 ? b->shape->Dv : b->shape->D;
            float **to = &seen->tap[b->layer][b->tap][j];
            if (!*to) *to = AG_ZEROS(s->arena, float, s->tokens.T *heads *D, err);
            for (int64_t t = 0; t < b->T; t++)
                for (int64_t h = 0; h < heads; h++)
                    memcpy(*to + ((first + t) * heads + h) * D,
                           views[j]->data + h * views[j]->head_stride + t * views[j]->token_stride, (size_t)D * 4);
        }
    }
    return AG_OK;
}

static enum ag_status see_layer_done(void *self, int64_t layer, struct ag_error *err) {
    (void)layer, (void)err;
    struct seen *seen = self;
    seen->layers_done++;
    return AG_OK;
}

static enum ag_status see_logits(void *self, const float *logits, const int64_t *token, int64_t rows, int64_t V,
                                 struct ag_error *err) {
    struct seen *seen = self;
    const struct subject *s = seen->subject;
    static int64_t before;
    if (!seen->logits) {
        seen->logits = AG_ZEROS(s->arena, float, s->tokens.T *V, err);
        before = -1;
    }
    for (int64_t i = 0; i < rows; i++) {
        assert_true(token[i] > before && token[i] < s->tokens.T);
        before = token[i];
        memcpy(seen->logits + token[i] * V, logits + i * V, (size_t)V * 4);
    }
    seen->logit_rows += rows;
    return AG_OK;
}

void subject_run(struct seen *seen, struct subject *s) {
    struct ag_error err = AG_ERROR_INIT;
    struct forward_plan plan;
    memset(seen, 0, sizeof *seen);
    seen->subject = s;
    struct forward_sink sink = {seen, see_blocks, see_layer_done, see_logits};
    assert_ok(forward_plan(&plan, &s->request, &err), &err);
    assert_ok(forward_run(&s->request, &plan, &sink, &err), &err);
}

static void *golden(const struct ckpt *file, const char *name, int64_t n, size_t size, int64_t *got,
                    struct ag_arena *arena) {
    struct ag_error err = AG_ERROR_INIT;
    const struct ckpt_tensor *tensor = ckpt_find(file, name);
    if (!tensor) fail_msg("%s has no %s", file->path, name);
    if (n >= 0) assert_int_equal(tensor->elements, n);
    assert_int_equal(tensor->bytes, (uint64_t)tensor->elements * size);
    if (got) *got = tensor->elements;
    void *out = ag_arena_alloc(arena, tensor->elements, size, &err);
    assert_ok(ckpt_read_rows(file, tensor, out, 0, tensor->rank < 2 ? 1 : tensor->shape[0], &err), &err);
    return out;
}

int64_t *golden_ints(const struct ckpt *file, const char *name, int64_t *n, struct ag_arena *arena) {
    return golden(file, name, -1, sizeof(int64_t), n, arena);
}
float *golden_floats(const struct ckpt *file, const char *name, int64_t n, struct ag_arena *arena) {
    return golden(file, name, n, sizeof(float), NULL, arena);
}
double *golden_doubles(const struct ckpt *file, const char *name, int64_t n, struct ag_arena *arena) {
    return golden(file, name, n, sizeof(double), NULL, arena);
}
