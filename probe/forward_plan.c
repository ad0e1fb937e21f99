/* What a pass needs and how it is cut, before anything starts. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "probe/forward_pass.h"

#define MEGABYTE ((int64_t)1 << 20)
/* Enough rows for GEMMs to run at full speed and for dequantisation to vanish beside them; more only costs memory. */
#define GROUP_TOKENS 4096
#define CHUNK_TOKENS 1024
#define EMBED_ROWS 64
/* f32 bytes of one block of the head, and of the logits in memory together. */
#define HEAD_BYTES (4 * MEGABYTE)
#define LOGIT_BYTES (64 * MEGABYTE)

static int64_t min_i(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_i(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t forward_aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

const struct mixer *forward_mixer(enum ag_layer_kind kind) {
    static const struct mixer *const mixers[] = {
        [AG_LAYER_SOFTMAX] = &forward_mixer_softmax, [AG_LAYER_LINEAR] = &forward_mixer_linear};
    return (size_t)kind < sizeof mixers / sizeof *mixers ? mixers[kind] : NULL;
}

bool forward_is_tapped(const struct forward_request *request, int64_t layer) {
    return request->taps != 0 && (!request->layers || request->layers[layer]);
}

int64_t forward_cut(const struct ag_tokens *tokens, int64_t prompt, int64_t end, int64_t limit) {
    int64_t first = tokens->offsets[prompt++];
    while (prompt < end && tokens->offsets[prompt + 1] - first <= limit) prompt++;
    return prompt;
}

int64_t forward_wanted_rows(int64_t *rows, const struct forward_request *request, int64_t prompt, int64_t end) {
    const int64_t *offsets = request->tokens->offsets;
    int64_t n = 0;
    for (int64_t p = prompt; p < end; p++) {
        int64_t last = offsets[p + 1] - 1;
        for (int64_t t = offsets[p]; t <= last; t++) {
            bool asked = request->logits == FORWARD_LOGITS_ALL ||
                         (request->logits == FORWARD_LOGITS_LAST && t == last) ||
                         (request->logits == FORWARD_LOGITS_MASK && request->wanted[t]);
            if (!asked) continue;
            if (rows) rows[n] = t;
            n++;
        }
    }
    return n;
}

void forward_describe(struct weight_set *set, const struct model *model, const struct pass_sizes *sizes, int64_t step,
                      int64_t head_row) {
    weight_set_begin(set);
    if (step < sizes->steps) {
        const struct model_layer *layer = &model->layers[step];
        bool taps_only = sizes->ends_at_taps && step == sizes->steps - 1;
        weight_set_add(set, SLOT_NORM1, &layer->norm1);
        forward_mixer(layer->shape.kind)->describe(set, layer, taps_only);
        if (!taps_only) {
            weight_set_add(set, SLOT_NORM2, &layer->norm2);
            weight_set_add(set, SLOT_GATE_UP, &layer->gate);
            weight_set_add(set, SLOT_GATE_UP, &layer->up);
            if (layer->gate_bias.tensor || layer->up_bias.tensor) {
                weight_set_add_or_zeros(set, SLOT_GATE_UP_BIAS, &layer->gate_bias, model->F);
                weight_set_add_or_zeros(set, SLOT_GATE_UP_BIAS, &layer->up_bias, model->F);
            }
            weight_set_add(set, SLOT_DOWN, &layer->down);
            weight_set_add(set, SLOT_DOWN_BIAS, &layer->down_bias);
        }
    } else {
        weight_set_add_rows(set, SLOT_HEAD, &model->head, head_row, min_i(sizes->head_rows, model->V - head_row));
    }
    weight_set_layout(set);
}

/* Bytes that the process may still take: what the system calls available, or less under a limit of its control group.
 */
static int64_t free_memory(void) {
    int64_t kib = -1, limit = -1, used = -1;
    char line[256];
    FILE *file = fopen("/proc/meminfo", "r");
    if (file) {
        while (fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %" SCNd64, &kib) != 1) continue;
        fclose(file);
    }
    int64_t available = kib < 0 ? -1 : kib * 1024;
    file = fopen("/sys/fs/cgroup/memory.max", "r"); /* "max" where there is no limit */
    if (file) {
        if (fscanf(file, "%" SCNd64, &limit) != 1) limit = -1;
        fclose(file);
    }
    file = limit < 0 ? NULL : fopen("/sys/fs/cgroup/memory.current", "r");
    if (file) {
        if (fscanf(file, "%" SCNd64, &used) == 1 && limit - used >= 0 && (available < 0 || limit - used < available))
            available = limit - used;
        fclose(file);
    }
    return available;
}

static enum ag_status check_tokens(const struct forward_request *request, struct ag_error *err) {
    const struct ag_tokens *tokens = request->tokens;
    for (int64_t p = 0; p < tokens->P; p++) {
        if (tokens->offsets[p + 1] <= tokens->offsets[p])
            return ag_fail(err, AG_E_FORMAT, "prompt %s has no tokens; the forward pass needs at least one",
                           tokens->prompt_id ? tokens->prompt_id[p] : "?");
        for (int64_t t = tokens->offsets[p]; t < tokens->offsets[p + 1]; t++) {
            if (tokens->id[t] >= 0 && tokens->id[t] < request->model->V) continue;
            return ag_fail(err, AG_E_FORMAT,
                           "prompt %s, token %" PRId64 ": id %d; the model's embedding has %" PRId64
                           " rows: tokenizer and model do not belong together",
                           tokens->prompt_id ? tokens->prompt_id[p] : "?", t - tokens->offsets[p], (int)tokens->id[t],
                           request->model->V);
        }
    }
    return AG_OK;
}

/* Largest prompts, tiles, groups and rows over the waves that wave_tokens and group_tokens make. */
static void count_waves(struct pass_sizes *sizes, struct forward_plan *plan, const struct forward_request *request) {
    const struct ag_tokens *tokens = request->tokens;
    int64_t most = 0;
    plan->waves = 0;
    sizes->wave_prompts = sizes->wave_tiles = sizes->wave_groups = sizes->wave_rows = 0;
    sizes->wave_row_tiles = 0;
    for (int64_t p = 0, end; p < tokens->P; p = end) {
        end = forward_cut(tokens, p, tokens->P, plan->wave_tokens);
        int64_t groups = 0, tiles = 0, rows = 0, row_tiles = 0;
        for (int64_t g = p; g < end; g = forward_cut(tokens, g, end, plan->group_tokens)) groups++;
        for (int64_t i = p; i < end; i++) {
            int64_t wanted = forward_wanted_rows(NULL, request, i, i + 1);
            tiles += (tokens->offsets[i + 1] - tokens->offsets[i] + KERN_TILE_ROWS - 1) / KERN_TILE_ROWS;
            rows += wanted;
            row_tiles += (wanted + sizes->logit_tile - 1) / sizes->logit_tile;
        }
        most = max_i(most, tokens->offsets[end] - tokens->offsets[p]);
        sizes->wave_prompts = max_i(sizes->wave_prompts, end - p);
        sizes->wave_tiles = max_i(sizes->wave_tiles, tiles);
        sizes->wave_groups = max_i(sizes->wave_groups, groups);
        sizes->wave_rows = max_i(sizes->wave_rows, rows);
        sizes->wave_row_tiles = max_i(sizes->wave_row_tiles, row_tiles);
        plan->waves++;
    }
    plan->wave_tokens = most;
}

/* Everything in bytes for the cut that plan holds (wave_tokens, group_tokens, chunk_tokens). */
static void add_up(struct pass_sizes *sizes, struct forward_plan *plan, const struct forward_request *request) {
    const struct model *model = request->model;
    count_waves(sizes, plan, request);
    plan->logit_rows = min_i(sizes->wave_rows, max_i(sizes->logit_tile, LOGIT_BYTES / (4 * model->V)));
    plan->weights_bytes =
        weights_bytes(sizes->raw_bytes, sizes->out_floats, sizes->staging_bytes) + forward_aligned(4 * model->C);
    plan->hidden_bytes = forward_aligned(4 * plan->wave_tokens * model->C) + forward_aligned(4 * plan->wave_tokens);
    sizes->group_bytes = forward_aligned(4 * plan->group_tokens * sizes->mixer_floats) +
                         forward_aligned(4 * plan->chunk_tokens * model->C) +
                         forward_aligned(4 * plan->chunk_tokens * sizes->mlp_floats);
    sizes->logit_bytes =
        forward_aligned(4 * plan->logit_rows * model->C) + forward_aligned(4 * plan->logit_rows * model->V);
    int64_t tables =
        forward_aligned(sizes->wave_groups * (int64_t)sizeof(struct group)) +
        forward_aligned((sizes->wave_prompts + sizes->wave_groups) * 8) +
        forward_aligned(sizes->wave_tiles * (int64_t)sizeof(struct kern_tile)) +
        forward_aligned(max_i(sizes->wave_tiles, sizes->wave_row_tiles) * (int64_t)sizeof(struct kern_tile)) +
        forward_aligned(sizes->wave_rows * 8) +
        forward_aligned(sizes->wave_row_tiles * (int64_t)sizeof(struct kern_tile)) +
        forward_aligned(sizes->wave_prompts * (int64_t)sizeof(struct ag_block)) + forward_aligned(sizes->embed_bytes);
    plan->scratch_bytes = max_i(sizes->group_bytes, sizes->logit_bytes) + tables;
    plan->peak_bytes = plan->weights_bytes + plan->hidden_bytes + plan->scratch_bytes;
}

static double count_flops(const struct pass_sizes *sizes, const struct forward_request *request) {
    const struct ag_tokens *tokens = request->tokens;
    const struct model *model = request->model;
    double flops = 0;
    for (int64_t s = 0; s < sizes->steps; s++) {
        struct weight_set set;
        forward_describe(&set, model, sizes, s, 0);
        double elements = 0;
        for (int i = 0; i < set.n; i++)
            if (set.part[i].rows > 1) elements += (double)set.part[i].rows * (double)set.part[i].columns;
        flops += 2 * (double)tokens->T * elements;
        if (sizes->ends_at_taps && s == sizes->steps - 1) continue;
        for (int64_t p = 0; p < tokens->P; p++)
            flops += forward_mixer(model->shapes[s].kind)
                         ->flops(&model->layers[s], tokens->offsets[p + 1] - tokens->offsets[p]);
    }
    return flops + 2 * (double)forward_wanted_rows(NULL, request, 0, tokens->P) * (double)model->V * (double)model->C;
}

/* Tokens of the longest prompt that would fit alone. */
static int64_t longest_that_fits(const struct pass_sizes *sizes, const struct forward_plan *plan, int64_t limit,
                                 int64_t C) {
    int64_t per_token = 4 * (sizes->mixer_floats + C + 1);
    int64_t fixed = plan->peak_bytes - per_token * plan->longest;
    return limit > fixed ? (limit - fixed) / per_token : 0;
}

/* What depends on the model and on what is asked, but not on how tokens are cut. */
static enum ag_status size_up(struct pass_sizes *sizes, const struct forward_request *request, struct ag_error *err) {
    const struct model *model = request->model;
    memset(sizes, 0, sizeof *sizes);
    if (request->logits == FORWARD_LOGITS_NONE) {
        for (int64_t l = 0; l < model->L; l++)
            if (forward_is_tapped(request, l)) sizes->steps = l + 1;
        sizes->ends_at_taps = true;
    } else {
        sizes->steps = model->L;
    }
    sizes->logit_tile = KERN_TILE_ROWS;
    while (sizes->logit_tile > 16 && 4 * sizes->logit_tile * model->V > LOGIT_BYTES) sizes->logit_tile /= 2;
    sizes->head_rows = min_i(model->V, max_i(64, HEAD_BYTES / (4 * model->C) / 64 * 64));
    sizes->mlp_floats = 2 * model->F;
    sizes->embed_bytes = EMBED_ROWS * ckpt_row_bytes(model->embedding.tensor);

    int64_t sets = sizes->steps + (request->logits != FORWARD_LOGITS_NONE);
    for (int64_t s = -1; s < sets; s++) {
        struct weight_set set;
        if (s < 0) { /* the final norm comes through the same stream, before all layers */
            weight_set_begin(&set);
            weight_set_add(&set, SLOT_FINAL_NORM, &model->final_norm);
            weight_set_layout(&set);
        } else {
            if (s < sizes->steps) {
                const struct mixer *mixer = forward_mixer(model->shapes[s].kind);
                if (!mixer)
                    return ag_fail(err, AG_E_UNSUPPORTED,
                                   "%s: layer %" PRId64
                                   " mixes tokens in a way that this build has no forward pass for",
                                   model->name, s);
                sizes->mixer_floats = max_i(sizes->mixer_floats, mixer->floats(&model->layers[s]));
            }
            forward_describe(&set, model, sizes, s, 0);
        }
        sizes->raw_bytes = max_i(sizes->raw_bytes, set.raw_bytes);
        sizes->out_floats = max_i(sizes->out_floats, set.out_floats);
        sizes->staging_bytes = max_i(sizes->staging_bytes, set.staging_bytes);
    }
    return AG_OK;
}

enum ag_status forward_sizes(struct pass_sizes *sizes, const struct forward_plan *plan,
                             const struct forward_request *request, struct ag_error *err) {
    struct forward_plan copy = *plan;
    enum ag_status status = size_up(sizes, request, err);
    if (status == AG_OK) add_up(sizes, &copy, request);
    return status;
}

enum ag_status forward_plan(struct forward_plan *plan, const struct forward_request *request, struct ag_error *err) {
    const struct model *model = request->model;
    const struct ag_tokens *tokens = request->tokens;
    struct pass_sizes sizes;
    enum ag_status status = AG_OK;
    memset(plan, 0, sizeof *plan);
    AG_TRY(check_tokens(request, err));
    AG_TRY(size_up(&sizes, request, err));
    for (int64_t p = 0; p < tokens->P; p++)
        plan->longest = max_i(plan->longest, tokens->offsets[p + 1] - tokens->offsets[p]);
    plan->flops = (int64_t)count_flops(&sizes, request);

    const bool given = request->memory_limit > 0;
    int64_t limit = given ? request->memory_limit : free_memory(), threads = kern_threads();
    if (!given) limit = limit < 0 ? INT64_MAX : limit / 10 * 8;

    /* As roomy as is useful; else the least scratch; else as many waves as it takes. */
    plan->wave_tokens = tokens->T;
    plan->group_tokens = min_i(tokens->T, max_i(plan->longest, max_i(GROUP_TOKENS, 2 * KERN_TILE_ROWS * threads)));
    plan->chunk_tokens = min_i(plan->group_tokens, max_i(CHUNK_TOKENS, KERN_TILE_ROWS * threads));
    add_up(&sizes, plan, request);
    if (plan->peak_bytes <= limit) return AG_OK;

    plan->group_tokens = plan->longest;
    plan->chunk_tokens = min_i(plan->longest, KERN_TILE_ROWS);
    int64_t low = plan->longest, high = tokens->T;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        plan->wave_tokens = middle;
        add_up(&sizes, plan, request);
        if (plan->peak_bytes <= limit)
            low = middle;
        else
            high = middle - 1;
    }
    plan->wave_tokens = low;
    add_up(&sizes, plan, request);
    if (plan->peak_bytes <= limit) return AG_OK;
    status =
        ag_fail(err, AG_E_MEMORY,
                "%s: the longest prompt (%" PRId64 " tokens) needs %" PRId64 " MB for the forward pass and %" PRId64
                " MB %s; prompts of up to %" PRId64 " tokens would fit: shorten it%s",
                model->name, plan->longest, plan->peak_bytes / 1000000 + 1, limit / 1000000,
                given ? "are allowed" : "can be used", longest_that_fits(&sizes, plan, limit, model->C),
                given ? " or allow more memory" : " or free memory");
fail:
    return status;
}
