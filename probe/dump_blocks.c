/* probe/dump_blocks.c: the numbers of a dump, from the blocks of the forward pass to their places in the file.
 *
 * A block holds one prompt as (head, token) rows at any strides; the file holds chunks of (1 head, tokens, D). Each
 * piece (one head, the prompt's tokens inside one chunk) is one task: check, round, gather, one pwrite. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <string.h>
#include <unistd.h>

#include "probe/dump_file.h"

static uint16_t to_bf16(float x) { /* round to nearest, ties to even; x is finite */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static uint16_t to_f16(float x) {
    _Float16 h = (_Float16)x; /* IEEE round to nearest even */
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}

void dump_round(float *out, const float *in, int64_t n, enum dump_store store) {
    if (store == DUMP_BF16) {
        for (int64_t i = 0; i < n; i++) out[i] = isfinite(in[i]) ? from_bf16(to_bf16(in[i])) : in[i];
    } else if (store == DUMP_F16) {
        for (int64_t i = 0; i < n; i++) out[i] = (float)(_Float16)in[i];
    } else if (out != in) {
        memcpy(out, in, (size_t)n * sizeof *out);
    }
}

/* Largest |x| of a row as bits without the sign: at least 0x7f800000 means NaN or infinity. */
static uint32_t magnitude(const float *x, int64_t n) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most;
}

/* The least magnitude that the store cannot hold (what would round to infinity). */
static uint32_t limit(enum dump_store store) {
    if (store == DUMP_F32) return 0x7f800000;
    if (store == DUMP_BF16) return 0x7f7f8000;
    return 0x477ff000; /* 65520 */
}

enum ag_status dump_pwrite(int fd, const char *path, const void *data, int64_t count, uint64_t offset,
                           struct ag_error *err) {
    const char *at = data;
    while (count > 0) {
        ssize_t w = pwrite(fd, at, (size_t)count, (off_t)offset);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0)
            return ag_fail(err, AG_E_IO, "%s: writing failed: %s; make room, then continue with --resume", path,
                           w == 0 ? "no room" : strerror(errno));
        at += w;
        count -= w;
        offset += (uint64_t)w;
    }
    return AG_OK;
}

struct piece {
    const struct dump_writer *w;
    const struct dump_target *target;
    const struct ag_block *block;
    const struct ag_view *view;
    const char *what;
};

/* Tokens [first, last) of the stored token axis, all in one chunk, of stored head h. */
static enum ag_status write_piece(const struct piece *p, int64_t h, int64_t first, int64_t last, char *scratch,
                                  struct ag_error *err) {
    const struct dump_writer *w = p->w;
    const struct dump_target *t = p->target;
    const struct ag_tokens *tokens = w->options.source->tokens;
    enum dump_store store = w->options.store;
    const int64_t *token_of = t->limited ? w->token_of : NULL;
    int64_t start = tokens->offsets[p->block->prompt], D = t->D, size = ag_h5_size(dump_type(store));
    const float *head = p->view->data + t->head[h] * p->view->head_stride;
    uint32_t most = limit(store);
    for (int64_t s = first; s < last; s++) {
        int64_t token = (token_of ? token_of[s] : s) - start;
        const float *row = head + token * p->view->token_stride;
        if (magnitude(row, D) >= most) {
            bool finite = magnitude(row, D) < 0x7f800000;
            return ag_fail(err, AG_E_NUMERIC,
                           "%s: layer %" PRId64 " (%s), %s, head %d, prompt %s, token %" PRId64 ": %s", w->path,
                           p->block->layer, ag_tap_names[p->block->tap], p->what, t->head[h],
                           tokens->prompt_id[p->block->prompt], token,
                           finite ? "a value too large for the store; use --store bf16 or f32"
                                  : "a value that is not finite; the checkpoint or the arithmetic is broken there");
        }
        if (store == DUMP_F32)
            memcpy(scratch + (s - first) * D * size, row, (size_t)(D * size));
        else
            for (int64_t d = 0; d < D; d++)
                ((uint16_t *)scratch)[(s - first) * D + d] = store == DUMP_BF16 ? to_bf16(row[d]) : to_f16(row[d]);
    }
    int64_t chunk = first / t->chunk_tokens;
    uint64_t offset =
        dump_chunk_address(t, h * t->chunks + chunk) + (uint64_t)((first - chunk * t->chunk_tokens) * D * size);
    return dump_pwrite(w->fd, w->part, scratch, (last - first) * D * size, offset, err);
}

/* One prompt of one dataset. */
static enum ag_status write_target(struct dump_writer *w, const struct dump_target *target,
                                   const struct ag_block *block, const struct ag_view *view, const char *what,
                                   struct ag_error *err) {
    const struct ag_tokens *tokens = w->options.source->tokens;
    int64_t first = tokens->offsets[block->prompt], last = tokens->offsets[block->prompt + 1];
    if (!view->data)
        return ag_fail(err, AG_E_INTERNAL, "layer %" PRId64 " came without the %s that the dump needs", block->layer,
                       what);
    if (target->limited) {
        first = w->first_of[block->prompt];
        last = w->first_of[block->prompt + 1];
    }
    if (first == last) return AG_OK;
    int64_t first_chunk = first / target->chunk_tokens, per_head = (last - 1) / target->chunk_tokens - first_chunk + 1;
    int64_t n = target->heads * per_head, worst = INT64_MAX;
    struct piece piece = {w, target, block, view, what};
    struct ag_error failed = AG_ERROR_INIT;
    enum ag_status status = AG_OK;
#pragma omp parallel for schedule(dynamic) num_threads(w->threads) default(none)                                       \
    shared(n, per_head, first_chunk, first, last, target, piece, w, worst, failed, status)
    for (int64_t i = 0; i < n; i++) {
        struct ag_error mine = AG_ERROR_INIT;
        int64_t h = i / per_head, chunk = first_chunk + i % per_head;
        int64_t a = chunk * target->chunk_tokens, b = a + target->chunk_tokens;
        enum ag_status got =
            write_piece(&piece, h, a < first ? first : a, b > last ? last : b, w->scratch[omp_get_thread_num()], &mine);
        if (got == AG_OK) continue;
#pragma omp critical(dump_failed)
        if (i < worst) { /* the first failing piece names the error, whatever the threads did */
            worst = i;
            failed = mine;
            status = got;
        }
    }
    return status == AG_OK ? AG_OK : ag_fail(err, status, "%s", failed.text);
}

int64_t dump_prompts_written(const struct dump_writer *w, int64_t layer) {
    const struct dump_layer_state *state = &w->layers[layer];
    int64_t least = w->options.source->tokens->P;
    for (int tap = 0; tap < AG_TAP_COUNT; tap++)
        if ((state->keys[tap].exists || state->queries[tap].exists) && state->next[tap] < least)
            least = state->next[tap];
    if (state->values.exists && state->next_values < least) least = state->next_values;
    return least;
}

/* What is whole of the layer whose blocks came until now goes to the journal. */
static enum ag_status post(struct dump_writer *w, int64_t layer, struct ag_error *err) {
    if (layer < 0 || !w->options.layers[layer]) return AG_OK;
    int64_t written = dump_prompts_written(w, layer);
    if (written <= w->layers[layer].posted) return AG_OK;
    w->layers[layer].posted = written;
    return dump_journal_post(w->journal, layer, written, err);
}

static enum ag_status one(struct dump_writer *w, const struct ag_block *block, struct ag_error *err) {
    struct dump_layer_state *state = &w->layers[block->layer];
    const struct dump_target *keys = &state->keys[block->tap], *queries = &state->queries[block->tap];
    int64_t prompt = block->prompt;
    enum ag_status status = AG_OK;
    if ((keys->exists || queries->exists) && prompt >= state->next[block->tap]) {
        if (prompt != state->next[block->tap])
            return ag_fail(err, AG_E_INTERNAL, "layer %" PRId64 ": prompt %" PRId64 " came where %" PRId64 " was due",
                           block->layer, prompt, state->next[block->tap]);
        if (keys->exists) AG_TRY(write_target(w, keys, block, &block->keys, "keys", err));
        if (queries->exists) AG_TRY(write_target(w, queries, block, &block->queries, "queries", err));
        state->next[block->tap]++;
    }
    /* Values are the same at every tap: the first block that brings them counts. */
    if (state->values.exists && block->values.data && prompt == state->next_values) {
        AG_TRY(write_target(w, &state->values, block, &block->values, "values", err));
        state->next_values++;
    }
fail:
    return status;
}

enum ag_status dump_blocks(struct dump_writer *w, const struct ag_block *blocks, int64_t n, struct ag_error *err) {
    const struct ag_source *source = w->options.source;
    for (int64_t i = 0; i < n; i++) {
        const struct ag_block *block = &blocks[i];
        if (block->layer < 0 || block->layer >= source->L || block->prompt < 0 || block->prompt >= source->tokens->P ||
            block->T != source->tokens->offsets[block->prompt + 1] - source->tokens->offsets[block->prompt])
            return ag_fail(err, AG_E_INTERNAL, "a block of layer %" PRId64 ", prompt %" PRId64 " does not belong here",
                           block->layer, block->prompt);
        if (block->layer != w->current) {
            enum ag_status status = post(w, w->current, err);
            if (status != AG_OK) return status;
            w->current = block->layer;
        }
        if (!w->options.layers[block->layer]) continue;
        enum ag_status status = one(w, block, err);
        if (status != AG_OK) return status;
    }
    return AG_OK;
}

enum ag_status dump_layer_done(struct dump_writer *w, int64_t layer, struct ag_error *err) {
    return post(w, layer, err);
}

enum ag_status dump_selfcheck(struct dump_writer *w, int64_t prompt, const float *logits, int64_t V,
                              struct ag_error *err) {
    int32_t id[DUMP_SELFCHECK];
    float logit[DUMP_SELFCHECK];
    int n = 0;
    if (!w->options.selfcheck) return AG_OK;
    for (int64_t v = 0; v < V; v++) { /* insertion into a sorted list; ties keep the lower id first */
        if (n == DUMP_SELFCHECK && !(logits[v] > logit[n - 1])) continue;
        int at = n < DUMP_SELFCHECK ? n++ : n - 1;
        for (; at > 0 && logits[v] > logit[at - 1]; at--) {
            id[at] = id[at - 1];
            logit[at] = logit[at - 1];
        }
        id[at] = (int32_t)v;
        logit[at] = logits[v];
    }
    for (; n < DUMP_SELFCHECK; n++) {
        id[n] = -1;
        logit[n] = NAN;
    }
    uint64_t at = (uint64_t)prompt * DUMP_SELFCHECK * 4;
    enum ag_status status = dump_pwrite(w->fd, w->part, id, sizeof id, w->selfcheck_id + at, err);
    return status != AG_OK ? status : dump_pwrite(w->fd, w->part, logit, sizeof logit, w->selfcheck_logit + at, err);
}
