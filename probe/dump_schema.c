/* probe/dump_schema.c: the layout of a dump and everything in it but the numbers. The schema is described in dump.h. */
#include "probe/dump.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cli.h"
#include "probe/dump_file.h"

const char *const dump_store_names[] = {"f32", "bf16", "f16", NULL};
static const char *const rope_names[] = {"default", "linear", "llama3"};

static const char about[] =
    "Keys, queries and values of a language model at the positions of /prompts, tapped during one prefill. "
    "/layers/N/TAP/keys is (key head, token, dim) and queries (query head, token, dim), raw: multiply logits by the "
    "layer's attribute scale. Taps in order: proj (after the projection), conv (short convolution and its activation), "
    "norm (QK-norm, feature map or L2 norm), rope (rotary embedding); last_tap is what attention, or the state, reads. "
    "Query head a reads key head key_head[a]. Token t of prompt p "
    "is index /prompts/offset[p] + t of every token axis; /tokens/role gives its role (attribute role_names).";

enum ag_h5_type dump_type(enum dump_store store) {
    return store == DUMP_F32 ? AG_H5_F32 : store == DUMP_BF16 ? AG_H5_BF16 : AG_H5_F16;
}

bool dump_tap_repeats(const struct model *model, int64_t layer, enum ag_tap tap) {
    const struct model_layer *l = &model->layers[layer];
    if (tap == AG_TAP_PROJ) return false;
    const struct model_linear *linear = l->linear;
    if (tap == AG_TAP_CONV) return !linear || (linear->conv == 0 && linear->qk_map == KERN_MAP_NONE);
    if (tap == AG_TAP_NORM && linear)
        return linear->feature == KERN_MAP_NONE && linear->q_unit == KERN_UNIT_NONE && linear->k_unit == KERN_UNIT_NONE;
    if (tap == AG_TAP_NORM) return !l->q_norm.tensor && !l->k_norm.tensor;
    return linear || model->rope.n_rot == 0;
}

/* The stage among those stored that holds the numbers of this one: itself, or an earlier one that it repeats. */
static enum ag_tap stored_as(const struct dump_options *o, int64_t layer, enum ag_tap tap) {
    enum ag_tap first = tap;
    for (int t = (int)tap; t > 0 && dump_tap_repeats(o->model, layer, (enum ag_tap)t); t--)
        if (o->taps >> (t - 1) & 1) first = (enum ag_tap)(t - 1);
    return first;
}

/* ---- layout ------------------------------------------------------------------------------------------------ */

static void plan_target(struct dump_target *target, int64_t heads, const int32_t *head, int64_t tokens, int64_t D,
                        const struct dump_options *o) {
    int64_t most = DUMP_CHUNK_BYTES / (D * ag_h5_size(dump_type(o->store)));
    if (most < 1) most = 1;
    target->exists = true;
    target->heads = heads;
    target->head = head;
    target->tokens = tokens;
    target->D = D;
    target->chunks = (tokens + most - 1) / most;
    target->chunk_tokens = target->chunks ? (tokens + target->chunks - 1) / target->chunks : 0; /* even chunks */
    target->chunks = target->chunk_tokens ? (tokens + target->chunk_tokens - 1) / target->chunk_tokens : 0;
    target->chunk_bytes = target->chunk_tokens * D * ag_h5_size(dump_type(o->store));
}

static int64_t stored_positions(const struct dump_options *o) {
    int64_t T = o->source->tokens->T, n = 0;
    if (!o->positions) return T;
    for (int64_t t = 0; t < T; t++) n += o->positions[t];
    return n;
}

enum ag_status dump_plan_targets(struct dump_layer_state **layers, const struct dump_options *o, struct ag_arena *arena,
                                 struct ag_error *err) {
    int64_t L = o->source->L, T = o->source->tokens->T, Tq = stored_positions(o);
    *layers = AG_ZEROS(arena, struct dump_layer_state, L, err);
    if (!*layers) return AG_E_MEMORY;
    for (int64_t l = 0; l < L; l++) {
        const struct ag_layer_shape *shape = &o->source->layers[l];
        struct dump_layer_state *state = &(*layers)[l];
        if (!o->layers[l]) continue;
        int32_t *all = AG_NEW(arena, int32_t, shape->Hq, err), *q = AG_NEW(arena, int32_t, shape->Hq, err);
        int32_t *kv = AG_NEW(arena, int32_t, shape->Hk, err);
        if (!all || !q || !kv) return AG_E_MEMORY;
        int64_t nq = 0, nkv = 0, group = shape->Hq / shape->Hk;
        for (int64_t h = 0; h < shape->Hq; h++) {
            all[h] = (int32_t)h;
            if (o->query_heads && !o->query_heads[h]) continue;
            q[nq++] = (int32_t)h;
            if (nkv == 0 || kv[nkv - 1] != h / group) kv[nkv++] = (int32_t)(h / group);
        }
        for (int tap = 0; tap < AG_TAP_COUNT; tap++) {
            if (!(o->taps >> tap & 1) || stored_as(o, l, (enum ag_tap)tap) != (enum ag_tap)tap) continue;
            struct dump_target *keys = &state->keys[tap], *queries = &state->queries[tap];
            if (o->keys) plan_target(keys, shape->Hk, all, T, shape->D, o);
            if (o->queries && nq > 0) plan_target(queries, nq, q, Tq, shape->D, o);
            queries->limited = o->positions != NULL;
            queries->limited_heads = nq < shape->Hq;
            snprintf(keys->name, sizeof keys->name, "/layers/%" PRId64 "/%s/keys", l, ag_tap_names[tap]);
            snprintf(queries->name, sizeof queries->name, "/layers/%" PRId64 "/%s/queries", l, ag_tap_names[tap]);
        }
        if (o->values && nkv > 0) plan_target(&state->values, nkv, kv, Tq, shape->Dv, o);
        state->values.limited = o->positions != NULL;
        state->values.limited_heads = nkv < shape->Hk;
        snprintf(state->values.name, sizeof state->values.name, "/layers/%" PRId64 "/values", l);
    }
    return AG_OK;
}

struct dump_target *dump_target_at(struct dump_layer_state *state, int i) {
    if (i < AG_TAP_COUNT) return &state->keys[i];
    if (i < 2 * AG_TAP_COUNT) return &state->queries[i - AG_TAP_COUNT];
    return i == 2 * AG_TAP_COUNT ? &state->values : NULL;
}

int64_t dump_bytes(const struct dump_options *o) {
    struct ag_arena *arena = ag_arena_new("dump plan");
    struct dump_layer_state *layers;
    const struct ag_tokens *tokens = o->source->tokens;
    int64_t sum = 0, L = o->source->L;
    if (arena && dump_plan_targets(&layers, o, arena, NULL) == AG_OK) {
        for (int64_t l = 0; l < L; l++) {
            const struct dump_target *target;
            for (int i = 0; (target = dump_target_at(&layers[l], i)) != NULL; i++)
                if (target->exists) sum += target->heads * target->chunks * (target->chunk_bytes + 64) + 2048;
        }
        if (o->compress) sum *= 2;
        sum += tokens->T * (4 + 1 + 8 + 8 + 1 + (o->positions ? 8 : 0)) + 65536 + tokens->P * 256;
        for (int64_t p = 0; p < tokens->P; p++)
            sum += (int64_t)strlen(tokens->text[p]) + (tokens->answer[p] ? (int64_t)strlen(tokens->answer[p]) : 0);
    }
    ag_arena_free(arena);
    return sum;
}

/* ---- the skeleton ------------------------------------------------------------------------------------------ */

static enum ag_status make_target(hid_t file, const struct dump_target *target, const struct dump_options *o,
                                  bool compress, struct ag_error *err) {
    enum ag_status status = AG_OK;
    hsize_t dims[3] = {(hsize_t)target->heads, (hsize_t)target->tokens, (hsize_t)target->D};
    hsize_t chunk[3] = {1, (hsize_t)target->chunk_tokens, (hsize_t)target->D};
    hid_t space = H5Screate_simple(3, dims, NULL), type = ag_h5_file_type(dump_type(o->store)), id = -1;
    hid_t links = H5Pcreate(H5P_LINK_CREATE), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    H5Pset_obj_track_times(create, 0);
    H5Pset_fill_time(create, H5D_FILL_TIME_NEVER); /* the room is set aside by the file system instead */
    if (target->chunks > 0) {
        H5Pset_chunk(create, 3, chunk);
        H5Pset_alloc_time(create, compress ? H5D_ALLOC_TIME_INCR : H5D_ALLOC_TIME_EARLY);
        if (compress) {
            H5Pset_shuffle(create);
            H5Pset_deflate(create, 4);
        }
    }
    id = H5Dcreate2(file, target->name, type, space, links, create, H5P_DEFAULT);
    if (id < 0) {
        status = ag_h5_fail(err, file, NULL, target->name, "making the dataset");
        goto fail;
    }
    AG_TRY(ag_h5_set_text(id, ".", "axes", "head, token, dim", err));
    if (target->limited_heads) AG_TRY(ag_h5_set(id, ".", "heads", AG_H5_I32, target->head, target->heads, err));
fail:
    if (id >= 0 && H5Dclose(id) < 0 && status == AG_OK)
        status = ag_h5_fail(err, file, NULL, target->name, "making the dataset");
    H5Pclose(create);
    H5Pclose(links);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    return status;
}

static enum ag_status make_layer(hid_t file, int64_t l, struct dump_layer_state *state, const struct dump_options *o,
                                 bool compress, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const struct ag_layer_shape *shape = &o->source->layers[l];
    static const struct model_rope none;
    const struct model_rope *rope = shape->kind == AG_LAYER_SOFTMAX ? &o->model->rope : &none;
    char name[64], link[64];
    int32_t *head = NULL;
    hid_t group = -1;
    struct ag_arena *arena = ag_arena_new("dump");
    if (!arena) return ag_fail(err, AG_E_MEMORY, "out of memory");
    snprintf(name, sizeof name, "/layers/%" PRId64, l);
    AG_TRY(ag_h5_make_group(&group, file, name, err));
    AG_TRY(ag_h5_set_text(group, ".", "kind", shape->kind == AG_LAYER_SOFTMAX ? "softmax" : "linear", err));
    AG_TRY(ag_h5_set_f64(group, ".", "scale", shape->scale, err));
    AG_TRY(ag_h5_set_i64(group, ".", "window", shape->window, err));
    AG_TRY(ag_h5_set_i64(group, ".", "Hq", shape->Hq, err));
    AG_TRY(ag_h5_set_i64(group, ".", "Hk", shape->Hk, err));
    AG_TRY(ag_h5_set_i64(group, ".", "D", shape->D, err));
    AG_TRY(ag_h5_set_i64(group, ".", "Dv", shape->Dv, err));
    head = AG_NEW(arena, int32_t, shape->Hq, err);
    if (!head) {
        status = AG_E_MEMORY;
        goto fail;
    }
    for (int64_t h = 0; h < shape->Hq; h++) head[h] = (int32_t)(h / (shape->Hq / shape->Hk));
    AG_TRY(ag_h5_set(group, ".", "key_head", AG_H5_I32, head, shape->Hq, err));
    AG_TRY(ag_h5_set_i64(group, ".", "rope_n_rot", rope->n_rot, err));
    if (rope->n_rot > 0) {
        AG_TRY(ag_h5_set_text(group, ".", "rope_type", rope_names[rope->type], err));
        AG_TRY(ag_h5_set_f64(group, ".", "rope_theta", rope->theta, err));
        AG_TRY(ag_h5_set_f64(group, ".", "rope_factor", rope->factor, err));
        AG_TRY(ag_h5_set_f64(group, ".", "rope_attention_scaling", rope->attention_scaling, err));
        if (rope->inv_freq)
            AG_TRY(ag_h5_set(group, ".", "rope_inv_freq", AG_H5_F32, rope->inv_freq, rope->n_rot / 2, err));
        if (rope->type == ROPE_LLAMA3) {
            AG_TRY(ag_h5_set_f64(group, ".", "rope_low_freq_factor", rope->low_freq_factor, err));
            AG_TRY(ag_h5_set_f64(group, ".", "rope_high_freq_factor", rope->high_freq_factor, err));
            AG_TRY(ag_h5_set_f64(group, ".", "rope_original_max_position", rope->original_max_position, err));
        }
    }
    struct dump_target *target;
    for (int i = 0; (target = dump_target_at(state, i)) != NULL; i++)
        if (target->exists) AG_TRY(make_target(file, target, o, compress, err));
    for (int tap = 0; tap < AG_TAP_COUNT; tap++) {
        enum ag_tap as = stored_as(o, l, (enum ag_tap)tap);
        if (!(o->taps >> tap & 1) || as == (enum ag_tap)tap) continue;
        snprintf(link, sizeof link, "/layers/%" PRId64 "/%s/keys", l, ag_tap_names[tap]);
        if (state->keys[as].exists) AG_TRY(ag_h5_link(file, link, state->keys[as].name, err));
        snprintf(link, sizeof link, "/layers/%" PRId64 "/%s/queries", l, ag_tap_names[tap]);
        if (state->queries[as].exists) AG_TRY(ag_h5_link(file, link, state->queries[as].name, err));
    }
fail:
    if (group >= 0) H5Gclose(group);
    ag_arena_free(arena);
    return status;
}

void dump_list_taps(char out[64], uint32_t taps) {
    size_t n = 0;
    out[0] = 0;
    for (int t = 0; t < AG_TAP_COUNT; t++)
        if (taps >> t & 1) n += (size_t)snprintf(out + n, 64 - n, "%s%s", n ? "," : "", ag_tap_names[t]);
}

const char *dump_what_text(const struct dump_options *o) {
    static const char *const names[8] = {"",       "keys",        "queries",        "keys,queries",
                                         "values", "keys,values", "queries,values", "keys,queries,values"};
    return names[o->keys + 2 * o->queries + 4 * o->values];
}

static enum ag_status make_root(hid_t file, const struct dump_writer *w, struct ag_error *err) {
    enum ag_status status;
    const struct dump_options *o = &w->options;
    const struct ag_source *s = o->source;
    char taps[64];
    dump_list_taps(taps, o->taps);
    int64_t beyond = 0;
    for (int64_t p = 0; p < s->tokens->P && o->model->max_position > 0; p++)
        beyond += s->tokens->offsets[p + 1] - s->tokens->offsets[p] > o->model->max_position;
    const struct {
        const char *name, *text;
    } texts[] = {
        {"schema", DUMP_SCHEMA},
        {"about", about},
        {"model", s->model},
        {"architecture", s->architecture},
        {"checkpoint_sha256", s->checkpoint_sha256},
        {"tokenizer_sha256", s->tokenizer_sha256},
        {"prompts_sha256", s->prompts_sha256},
        {"backend", s->backend},
        {"dtype", s->dtype},
        {"store", dump_store_names[o->store]},
        {"command", s->command_line},
        {"version", ag_version},
        {"shard", o->shard ? o->shard : "1/1"},
        {"taps", taps},
        {"what", dump_what_text(o)},
        {"last_tap", ag_tap_names[s->last_tap]},
    };
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"seed", s->seed},
        {"L", s->L},
        {"P", s->tokens->P},
        {"T", s->tokens->T},
        {"specials", o->specials},
        {"double_bos", o->double_bos},
        {"max_position", o->model->max_position},
        {"beyond_max_position", beyond},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        AG_TRY(ag_h5_set_text(file, ".", texts[i].name, texts[i].text, err));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        AG_TRY(ag_h5_set_i64(file, ".", numbers[i].name, numbers[i].value, err));
    AG_TRY(ag_h5_set(file, ".", "missing_value", AG_H5_I64, o->missing_value, 3, err));
fail:
    return status;
}

static enum ag_status make_tokens(hid_t file, const struct dump_writer *w, struct ag_error *err) {
    enum ag_status status;
    const struct ag_tokens *t = w->options.source->tokens;
    struct ag_arena *arena = ag_arena_new("dump");
    const char **answers = arena ? AG_NEW(arena, const char *, t->P, err) : NULL;
    uint8_t *has = answers ? AG_NEW(arena, uint8_t, t->P, err) : NULL;
    if (!has) {
        status = ag_fail(err, AG_E_MEMORY, "out of memory");
        goto fail;
    }
    for (int64_t p = 0; p < t->P; p++) {
        has[p] = t->answer[p] != NULL;
        answers[p] = has[p] ? t->answer[p] : "";
    }
    int64_t bounds = t->P + 1;
    AG_TRY(ag_h5_write(file, "/tokens/id", AG_H5_I32, 1, &t->T, t->id, err));
    AG_TRY(ag_h5_write(file, "/tokens/role", AG_H5_U8, 1, &t->T, t->role, err));
    AG_TRY(
        ag_h5_set_text(file, "/tokens/role", "role_names", "haystack,needle,distractor,question,answer,special", err));
    AG_TRY(ag_h5_write(file, "/tokens/begin", AG_H5_I64, 1, &t->T, t->begin, err));
    AG_TRY(ag_h5_write(file, "/tokens/end", AG_H5_I64, 1, &t->T, t->end, err));
    AG_TRY(ag_h5_write(file, "/tokens/value", AG_H5_U8, 1, &t->T, t->value, err));
    AG_TRY(ag_h5_set_text(file, "/tokens/value", "bits", "1 needle value, 2 distractor value, 4 answer value", err));
    AG_TRY(ag_h5_write(file, "/prompts/offset", AG_H5_I64, 1, &bounds, t->offsets, err));
    AG_TRY(ag_h5_write_texts(file, "/prompts/id", t->prompt_id, t->P, err));
    AG_TRY(ag_h5_write_texts(file, "/prompts/text", t->text, t->P, err));
    AG_TRY(ag_h5_write_texts(file, "/prompts/answer", answers, t->P, err));
    AG_TRY(ag_h5_write(file, "/prompts/has_answer", AG_H5_U8, 1, &t->P, has, err));
    AG_TRY(ag_h5_write(file, "/prompts/twin", AG_H5_I64, 1, &t->P, t->twin, err));
    if (w->token_of) AG_TRY(ag_h5_write(file, "/positions", AG_H5_I64, 1, &w->Tq, w->token_of, err));
fail:
    ag_arena_free(arena);
    return status;
}

/* /selfcheck with "nothing yet" in every place: id -1, logit NaN. */
static enum ag_status make_selfcheck(hid_t file, const struct dump_writer *w, struct ag_error *err) {
    enum ag_status status;
    int64_t dims[2] = {w->options.source->tokens->P, DUMP_SELFCHECK}, n = dims[0] * DUMP_SELFCHECK;
    struct ag_arena *arena = ag_arena_new("dump");
    int32_t *id = arena ? AG_NEW(arena, int32_t, n, err) : NULL;
    float *logit = id ? AG_NEW(arena, float, n, err) : NULL;
    if (!logit) {
        status = ag_fail(err, AG_E_MEMORY, "out of memory");
        goto fail;
    }
    for (int64_t i = 0; i < n; i++) {
        id[i] = -1;
        logit[i] = NAN;
    }
    AG_TRY(ag_h5_write(file, "/selfcheck/id", AG_H5_I32, 2, dims, id, err));
    AG_TRY(ag_h5_write(file, "/selfcheck/logit", AG_H5_F32, 2, dims, logit, err));
    AG_TRY(ag_h5_set_text(file, "/selfcheck", "about",
                          "the largest logits after the last token of each prompt (answer included), descending: run "
                          "the model elsewhere and compare",
                          err));
fail:
    ag_arena_free(arena);
    return status;
}

enum ag_status dump_make_skeleton(hid_t file, struct dump_writer *w, bool compress, struct ag_error *err) {
    enum ag_status status;
    AG_TRY(make_root(file, w, err));
    AG_TRY(make_tokens(file, w, err));
    if (w->options.selfcheck) AG_TRY(make_selfcheck(file, w, err));
    for (int64_t l = 0; l < w->options.source->L; l++)
        if (w->options.layers[l]) AG_TRY(make_layer(file, l, &w->layers[l], &w->options, compress, err));
fail:
    return status;
}
