/* The pass itself: memory, waves, the stream of weights, residual stream, MLP and logits. How tokens are mixed is in
 * mixer_*.c, what things cost in forward_plan.c. */
#include "probe/forward.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "probe/forward_pass.h"

bool pass_chunk(struct chunk *chunk, struct pass *pass, const struct group *group) {
    int64_t tile = chunk->next, rows = 0, n = 0;
    if (tile == group->n_tiles) return false;
    int64_t row = group->tiles[tile].row;
    while (tile < group->n_tiles && (n == 0 || rows + group->tiles[tile].rows <= pass->plan->chunk_tokens)) {
        pass->chunk_tiles[n++] = (struct kern_tile){group->tiles[tile].row - row, group->tiles[tile].rows};
        rows += group->tiles[tile++].rows;
    }
    *chunk = (struct chunk){.row = row, .rows = rows, .next = tile, .tiles = pass->chunk_tiles, .n_tiles = n};
    return true;
}

enum ag_status pass_deliver(struct pass *pass, const struct group *group, int64_t layer, enum ag_tap tap,
                            struct ag_view keys, struct ag_view queries, struct ag_view values, struct ag_error *err) {
    const struct ag_tokens *tokens = pass->request->tokens;
    if (!pass->sink->blocks) return AG_OK;
    for (int64_t i = 0; i < group->P; i++) {
        int64_t row = group->offsets[i];
        struct ag_view view[3] = {keys, queries, values};
        for (int j = 0; j < 3; j++)
            if (view[j].data) view[j].data += row * view[j].token_stride;
        pass->blocks[i] = (struct ag_block){.layer = layer,
                                            .prompt = group->prompt + i,
                                            .tap = tap,
                                            .shape = &pass->model->shapes[layer],
                                            .T = group->offsets[i + 1] - row,
                                            .role = tokens->role ? tokens->role + group->token + row : NULL,
                                            .keys = view[0],
                                            .queries = view[1],
                                            .values = view[2]};
    }
    return pass->sink->blocks(pass->sink->self, pass->blocks, group->P, err);
}

enum ag_status pass_check(struct pass *pass, const float *x, const int64_t *of, int64_t first_token, int64_t rows,
                          int64_t n, int64_t ld, int64_t layer, const char *what, struct ag_error *err) {
    int64_t row = pass->ops->nonfinite(x, rows, n, ld);
    if (row < 0) return AG_OK;
    const struct ag_tokens *tokens = pass->request->tokens;
    int64_t token = of ? of[row] : first_token + row, p = 0;
    while (p + 1 < tokens->P && tokens->offsets[p + 1] <= token) p++;
    return ag_fail(err, AG_E_NUMERIC,
                   "%s: %s became NaN or infinite in layer %" PRId64 ", prompt %s, token %" PRId64
                   "; a forward pass has only finite numbers: the weights are damaged, or too large for f32",
                   pass->model->name, what, layer, tokens->prompt_id ? tokens->prompt_id[p] : "?",
                   token - tokens->offsets[p]);
}

/* --- The stream of weights: layers of a wave, its blocks of the head, layers of the next wave, ... --- */

static int64_t head_blocks(const struct pass *pass) {
    return (pass->model->V + pass->sizes.head_rows - 1) / pass->sizes.head_rows;
}

/* Starts to read the set after next_step; head_steps of the current wave must be known before its last layer is taken.
 */
static void read_next(struct pass *pass) {
    if (pass->next_wave == pass->plan->waves) return;
    int64_t step = pass->next_step, block = step - pass->sizes.steps;
    struct weight_set set;
    forward_describe(&set, pass->model, &pass->sizes, step,
                     block < 0 ? 0 : block % head_blocks(pass) * pass->sizes.head_rows);
    weights_read(pass->weights, &set);
    pass->next_step++;
    if (pass->next_step >= pass->sizes.steps + pass->head_steps) {
        pass->next_step = 0;
        pass->next_wave++;
    }
}

static enum ag_status take_next(struct pass *pass, struct ag_error *err) {
    enum ag_status status = weights_take(pass->slot, pass->weights, err);
    if (status == AG_OK) read_next(pass);
    return status;
}

/* --- One wave --- */

/* Blocks of rows of logits: whole tiles, as many as plan.logit_rows holds. */
static int64_t cut_rows(int64_t *end_tile, const struct pass *pass, int64_t tile) {
    int64_t rows = 0;
    while (tile < pass->n_row_tiles && (rows == 0 || rows + pass->row_tiles[tile].rows <= pass->plan->logit_rows))
        rows += pass->row_tiles[tile++].rows;
    *end_tile = tile;
    return rows;
}

static void cut_wave(struct pass *pass, int64_t prompt, int64_t end) {
    const struct ag_tokens *tokens = pass->request->tokens;
    const int64_t first = tokens->offsets[prompt];
    int64_t *offsets = pass->offsets;
    struct kern_tile *tiles = pass->tiles;
    pass->n_groups = 0;
    for (int64_t p = prompt, next; p < end; p = next) {
        next = forward_cut(tokens, p, end, pass->plan->group_tokens);
        struct group *group = &pass->groups[pass->n_groups++];
        int64_t token = tokens->offsets[p];
        *group = (struct group){.prompt = p,
                                .P = next - p,
                                .token = token,
                                .T = tokens->offsets[next] - token,
                                .offsets = offsets,
                                .tiles = tiles,
                                .position = pass->position + (token - first),
                                .hidden = pass->hidden + (token - first) * pass->model->C};
        for (int64_t i = p; i <= next; i++) *offsets++ = tokens->offsets[i] - token;
        for (int64_t i = p; i < next; i++)
            for (int64_t t = tokens->offsets[i]; t < tokens->offsets[i + 1]; t++)
                pass->position[t - first] = (int32_t)(t - tokens->offsets[i]);
        group->n_tiles = kern_tiles(tiles, group->offsets, group->P);
        tiles += group->n_tiles;
    }
    /* Tiles of the rows whose logits are asked for: like all tiles they start at prompt boundaries. */
    pass->n_rows = pass->n_row_tiles = pass->kept_rows = pass->kept_tiles = pass->head_steps = 0;
    for (int64_t p = prompt; p < end; p++) {
        int64_t n = forward_wanted_rows(pass->rows + pass->n_rows, pass->request, p, p + 1);
        for (int64_t done = 0; done < n; done += pass->sizes.logit_tile) {
            int64_t rows = n - done < pass->sizes.logit_tile ? n - done : pass->sizes.logit_tile;
            pass->row_tiles[pass->n_row_tiles++] = (struct kern_tile){pass->n_rows + done, rows};
        }
        pass->n_rows += n;
    }
    for (int64_t tile = 0; tile < pass->n_row_tiles; pass->head_steps += head_blocks(pass)) cut_rows(&tile, pass, tile);
}

/* Rows of the embedding, by need from the file. */
static enum ag_status embed(struct pass *pass, int64_t token, int64_t T, struct ag_error *err) {
    const struct model *model = pass->model;
    const struct ckpt_tensor *tensor = model->embedding.tensor;
    const int64_t row_bytes = ckpt_row_bytes(tensor), batch = pass->sizes.embed_bytes / row_bytes;
    const int32_t *id = pass->request->tokens->id + token;
    enum ag_status status = AG_OK;
    for (int64_t t = 0; t < T; t += batch) {
        int64_t n = T - t < batch ? T - t : batch;
        for (int64_t i = 0; i < n; i++)
            AG_TRY(ckpt_read_rows(model->ckpt, tensor, pass->embed_raw + i * row_bytes, id[t + i], 1, err));
        pass->ops->dequant(pass->hidden + t * model->C, pass->embed_raw, (enum kern_dtype)tensor->dtype, n, model->C);
    }
fail:
    return status;
}

/* After the last layer's mixing only the rows whose logits are asked for still matter: they move to the front of the
 * wave's hidden states (and their reads to the front of read), and `kept` is the group of them. */
static void keep_wanted_rows(struct group *kept, struct pass *pass, const struct group *group, int64_t read_floats) {
    const int64_t C = pass->model->C, first = pass->kept_rows, first_tile = pass->kept_tiles;
    int64_t n = first, tile = first_tile;
    for (; n < pass->n_rows && pass->rows[n] < group->token + group->T; n++) {
        int64_t from = pass->rows[n] - group->token;
        memmove(pass->hidden + n * C, group->hidden + from * C, (size_t)C * sizeof(float));
        memmove(pass->read + (n - first) * read_floats, pass->read + from * read_floats,
                (size_t)read_floats * sizeof(float));
    }
    while (tile < pass->n_row_tiles && pass->row_tiles[tile].row < n) tile++;
    *kept = (struct group){.token = first, .T = n - first, .hidden = pass->hidden + first * C};
    kept->tiles = pass->row_tiles + first_tile;
    kept->n_tiles = tile - first_tile;
    for (int64_t i = 0; i < kept->n_tiles; i++) kept->tiles[i].row -= first;
    pass->kept_rows = n;
    pass->kept_tiles = tile;
}

/* hidden += O read; hidden += down(silu(gate(x)) * up(x)), x = norm(hidden); chunk by chunk. token: as in pass_check.
 */
static enum ag_status run_rest(struct pass *pass, const struct group *group, int64_t layer, const int64_t *token,
                               int64_t read_floats, struct ag_error *err) {
    const struct kern_ops *ops = pass->ops;
    const float *const *slot = pass->slot;
    const int64_t C = pass->model->C, F = pass->model->F;
    enum ag_status status = AG_OK;
    for (struct chunk chunk = {0}; pass_chunk(&chunk, pass, group);) {
        float *hidden = group->hidden + chunk.row * C;
        ops->linear(hidden, pass->read + chunk.row * read_floats, slot[SLOT_O], slot[SLOT_O_BIAS], chunk.tiles,
                    chunk.n_tiles, C, read_floats, C, read_floats, true);
        ops->rmsnorm(pass->normed, hidden, slot[SLOT_NORM2], chunk.rows, C, C, C, pass->model->norm_eps);
        ops->linear(pass->mlp, pass->normed, slot[SLOT_GATE_UP], slot[SLOT_GATE_UP_BIAS], chunk.tiles, chunk.n_tiles,
                    2 * F, C, 2 * F, C, false);
        ops->swiglu(pass->mlp, pass->mlp, pass->mlp + F, chunk.rows, F, 2 * F, 2 * F, 2 * F);
        ops->linear(hidden, pass->mlp, slot[SLOT_DOWN], slot[SLOT_DOWN_BIAS], chunk.tiles, chunk.n_tiles, C, F, C,
                    2 * F, true);
        AG_TRY(pass_check(pass, hidden, token ? token + chunk.row : NULL, group->token + chunk.row, chunk.rows, C, C,
                          layer, "a hidden state", err));
    }
fail:
    return status;
}

static enum ag_status run_layer(struct pass *pass, int64_t layer, int64_t wave_tokens, struct ag_error *err) {
    const bool last = layer == pass->sizes.steps - 1, taps_only = pass->sizes.ends_at_taps && last;
    const struct ag_layer_shape *shape = &pass->model->shapes[layer];
    const struct mixer *mixer = forward_mixer(shape->kind);
    const int64_t read_floats = mixer->read_floats(&pass->model->layers[layer]);
    enum ag_status status = AG_OK;
    for (int64_t g = 0; g < pass->n_groups; g++) {
        const struct group *group = &pass->groups[g];
        AG_TRY(mixer->run(pass, group, layer, taps_only, err));
        if (taps_only) continue;
        if (last && pass->n_rows < wave_tokens) {
            struct group kept;
            keep_wanted_rows(&kept, pass, group, read_floats);
            AG_TRY(run_rest(pass, &kept, layer, pass->rows + kept.token, read_floats, err));
            for (int64_t i = 0; i < kept.n_tiles; i++) kept.tiles[i].row += kept.token;
        } else {
            AG_TRY(run_rest(pass, group, layer, NULL, read_floats, err));
        }
    }
fail:
    return status;
}

/* Logits of the wave's rows, a block of rows at a time and for each the whole head in blocks. */
static enum ag_status run_logits(struct pass *pass, struct ag_error *err) {
    const struct model *model = pass->model;
    const int64_t C = model->C, V = model->V;
    enum ag_status status = AG_OK;
    for (int64_t tile = 0, end; tile < pass->n_row_tiles; tile = end) {
        int64_t rows = cut_rows(&end, pass, tile), row = pass->row_tiles[tile].row;
        for (int64_t i = tile; i < end; i++) pass->row_tiles[i].row -= row;
        /* Row i of the wave's hidden states is that of token rows[i]: all rows, or kept by the last layer. */
        pass->ops->rmsnorm(pass->head_x, pass->hidden + row * C, pass->final_norm, rows, C, C, C, model->norm_eps);
        for (int64_t v = 0; v < V; v += pass->sizes.head_rows) {
            AG_TRY(take_next(pass, err));
            int64_t n = V - v < pass->sizes.head_rows ? V - v : pass->sizes.head_rows;
            pass->ops->linear(pass->logits + v, pass->head_x, pass->slot[SLOT_HEAD], NULL, pass->row_tiles + tile,
                              end - tile, n, C, V, C, false);
        }
        if (pass->sink->logits)
            AG_TRY(pass->sink->logits(pass->sink->self, pass->logits, pass->rows + row, rows, V, err));
    }
fail:
    return status;
}

/* --- The whole --- */

static float *carve(char **from, int64_t floats) {
    float *piece = (float *)(void *)*from;
    *from += forward_aligned(floats * (int64_t)sizeof(float));
    return piece;
}

/* All memory of the pass, in one place: whoever moves it to a device begins here. */
static enum ag_status pass_open(struct pass *pass, struct ag_arena *arena, struct ag_error *err) {
    const struct pass_sizes *sizes = &pass->sizes;
    const struct forward_plan *plan = pass->plan;
    const int64_t C = pass->model->C;
    enum ag_status status = AG_E_MEMORY;
    if (!(pass->final_norm = AG_NEW(arena, float, C, err)) ||
        !(pass->hidden = AG_NEW(arena, float, plan->wave_tokens *C, err)) ||
        !(pass->position = AG_NEW(arena, int32_t, plan->wave_tokens, err)) ||
        !(pass->groups = AG_NEW(arena, struct group, sizes->wave_groups, err)) ||
        !(pass->offsets = AG_NEW(arena, int64_t, sizes->wave_prompts + sizes->wave_groups, err)) ||
        !(pass->tiles = AG_NEW(arena, struct kern_tile, sizes->wave_tiles, err)) ||
        !(pass->chunk_tiles =
              AG_NEW(arena, struct kern_tile,
                     sizes->wave_tiles > sizes->wave_row_tiles ? sizes->wave_tiles : sizes->wave_row_tiles, err)) ||
        !(pass->rows = AG_NEW(arena, int64_t, sizes->wave_rows, err)) ||
        !(pass->row_tiles = AG_NEW(arena, struct kern_tile, sizes->wave_row_tiles, err)) ||
        !(pass->blocks = AG_NEW(arena, struct ag_block, sizes->wave_prompts, err)) ||
        !(pass->embed_raw = AG_NEW(arena, char, sizes->embed_bytes, err)) ||
        !(pass->scratch = AG_NEW(
              arena, char, sizes->group_bytes > sizes->logit_bytes ? sizes->group_bytes : sizes->logit_bytes, err)))
        goto fail;
    char *scratch = pass->scratch;
    pass->mixing = carve(&scratch, plan->group_tokens * sizes->mixer_floats);
    pass->normed = carve(&scratch, plan->chunk_tokens * C);
    pass->mlp = carve(&scratch, plan->chunk_tokens * sizes->mlp_floats);
    scratch = pass->scratch;
    pass->head_x = carve(&scratch, plan->logit_rows * C);
    pass->logits = carve(&scratch, plan->logit_rows * pass->model->V);
    AG_TRY(weights_open(&pass->weights, pass->model, pass->ops, sizes->raw_bytes, sizes->out_floats,
                        sizes->staging_bytes, arena, err));

    struct weight_set set;
    weight_set_begin(&set);
    weight_set_add(&set, SLOT_FINAL_NORM, &pass->model->final_norm);
    weight_set_layout(&set);
    weights_read(pass->weights, &set);
    AG_TRY(weights_take(pass->slot, pass->weights, err));
    memcpy(pass->final_norm, pass->slot[SLOT_FINAL_NORM], (size_t)C * sizeof(float));
fail:
    return status;
}

enum ag_status forward_run(const struct forward_request *request, const struct forward_plan *plan,
                           const struct forward_sink *sink, struct ag_error *err) {
    const struct ag_tokens *tokens = request->tokens;
    const struct model *model = request->model;
    struct pass pass = {.request = request, .plan = plan, .sink = sink, .model = model, .ops = request->ops};
    struct ag_arena *arena = NULL;
    enum ag_status status = AG_OK;
    AG_TRY(forward_sizes(&pass.sizes, plan, request, err));
    if (pass.sizes.steps == 0 || tokens->T == 0) return AG_OK;
    if (model->max_position > 0 && plan->longest > model->max_position)
        ag_say(request->log, AG_WARN,
               "%s: the longest prompt has %" PRId64 " tokens, more than the %" PRId64
               " positions that the model was made for: what it computes beyond them may mean little",
               model->name, plan->longest, model->max_position);
    if (!(arena = ag_arena_new("the forward pass"))) {
        status = ag_fail(err, AG_E_MEMORY, "out of memory: the forward pass");
        goto fail;
    }
    AG_TRY(pass_open(&pass, arena, err));

    struct ag_progress progress = ag_progress_begin(request->log, "forward pass", tokens->T, "tokens");
    for (int64_t prompt = 0, wave = 0, end; prompt < tokens->P; prompt = end, wave++) {
        end = forward_cut(tokens, prompt, tokens->P, plan->wave_tokens);
        int64_t first = tokens->offsets[prompt], T = tokens->offsets[end] - first;
        cut_wave(&pass, prompt, end);
        if (wave == 0) read_next(&pass);
        AG_TRY(embed(&pass, first, T, err));
        for (int64_t layer = 0; layer < pass.sizes.steps; layer++) {
            AG_TRY(take_next(&pass, err));
            AG_TRY(run_layer(&pass, layer, T, err));
            if (end == tokens->P && sink->layer_done && forward_is_tapped(request, layer))
                AG_TRY(sink->layer_done(sink->self, layer, err));
            /* A token counts when all its layers are done; on the way, by its share of them. */
            ag_progress_add(&progress, first + T * (layer + 1) / pass.sizes.steps - progress.done);
        }
        AG_TRY(run_logits(&pass, err));
    }
    ag_progress_end(&progress);
    ag_say(request->log, AG_DETAIL,
           "forward pass: %" PRId64 " tokens in %" PRId64 " waves, %zu bytes at most (planned %" PRId64 ")", tokens->T,
           plan->waves, ag_arena_peak(arena), plan->peak_bytes);
fail:
    weights_close(pass.weights);
    ag_arena_free(arena);
    return status;
}
