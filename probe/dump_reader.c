/* probe/dump_reader.c: a dump as blocks again. Everything in the file is checked against the schema (dump.h) before a
 * number is used; the file may come from anywhere. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/h5.h"
#include "probe/dump.h"

struct dump_reader {
    struct ag_arena *arena, *wave;
    hid_t file;
    const char *path;
    struct dump_facts facts;
    struct ag_tokens tokens;
    struct ag_source source;
    struct ag_layer_shape *shapes; /* (L) */
    bool *selected;                /* (L) */
    const int64_t *positions;      /* (Tq) NULL: all */
    enum ag_tap last_tap;
    int64_t wave_bytes;
};

static enum ag_h5_type type_of(enum dump_store store) {
    return store == DUMP_F32 ? AG_H5_F32 : store == DUMP_BF16 ? AG_H5_BF16 : AG_H5_F16;
}

static enum ag_status bad(const struct dump_reader *r, struct ag_error *err, const char *what, const char *found,
                          const char *expected) {
    return ag_fail(err, AG_E_FORMAT,
                   "%s: %s: found %s, expected %s; the file is damaged or was not made by attgeo probe", r->path, what,
                   found, expected);
}

/* An index into a NULL-terminated list of names, or -1. */
static int name_index(const char *text, size_t n, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (strlen(names[i]) == n && !memcmp(names[i], text, n)) return i;
    return -1;
}

static enum ag_status read_name_list(uint32_t *mask, const struct dump_reader *r, const char *attribute,
                                     const char *const *names, struct ag_error *err) {
    const char *text;
    enum ag_status status = ag_h5_get_text(&text, r->file, ".", attribute, r->arena, err);
    *mask = 0;
    for (const char *at = text; status == AG_OK && *at;) {
        size_t n = strcspn(at, ",");
        int i = name_index(at, n, names);
        if (i < 0) return bad(r, err, attribute, text, "a comma-separated list of known names");
        *mask |= 1u << i;
        at += n + (at[n] == ',');
    }
    return status;
}

static enum ag_status read_root(struct dump_reader *r, struct ag_error *err) {
    static const char *const what_names[] = {"keys", "queries", "values", NULL};
    enum ag_status status;
    const char *text;
    uint32_t what;
    struct ag_source *s = &r->source;
    if (!ag_h5_has_attribute(r->file, ".", "schema"))
        return bad(r, err, "attribute schema", "nothing", "\"" DUMP_SCHEMA "\"");
    AG_TRY(ag_h5_get_text(&text, r->file, ".", "schema", r->arena, err));
    if (strcmp(text, DUMP_SCHEMA)) {
        status = ag_fail(err, AG_E_FORMAT, "%s: attribute schema: found \"%.60s\", expected \"" DUMP_SCHEMA "\"; %s",
                         r->path, text,
                         !strncmp(text, "attgeo-dump-", 12) ? "it was made by another version of attgeo"
                         : !strncmp(text, "attgeo-", 7)     ? "it is a results file, and a dump is needed here"
                                                            : "it was not made by attgeo probe");
        goto fail;
    }
    const struct {
        const char *name, **to;
    } texts[] = {{"model", &s->model},
                 {"architecture", &s->architecture},
                 {"checkpoint_sha256", &s->checkpoint_sha256},
                 {"tokenizer_sha256", &s->tokenizer_sha256},
                 {"prompts_sha256", &s->prompts_sha256},
                 {"backend", &s->backend},
                 {"dtype", &s->dtype},
                 {"command", &s->command_line},
                 {"version", &r->facts.version}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        AG_TRY(ag_h5_get_text(texts[i].to, r->file, ".", texts[i].name, r->arena, err));
    AG_TRY(ag_h5_get_text(&text, r->file, ".", "store", r->arena, err));
    int store = name_index(text, strlen(text), dump_store_names);
    if (store < 0) {
        status = bad(r, err, "attribute store", text, "f32, bf16 or f16");
        goto fail;
    }
    r->facts.store = (enum dump_store)store;
    AG_TRY(ag_h5_get_text(&text, r->file, ".", "last_tap", r->arena, err));
    int last = name_index(text, strlen(text), ag_tap_names);
    if (last < 0) {
        status = bad(r, err, "attribute last_tap", text, "proj, conv, norm or rope");
        goto fail;
    }
    r->last_tap = (enum ag_tap)last;
    AG_TRY(read_name_list(&r->facts.taps, r, "taps", ag_tap_names, err));
    AG_TRY(read_name_list(&what, r, "what", what_names, err));
    r->facts.keys = what & 1;
    r->facts.queries = what >> 1 & 1;
    r->facts.values = what >> 2 & 1;
    int64_t specials;
    AG_TRY(ag_h5_get_i64(&s->seed, r->file, ".", "seed", err));
    AG_TRY(ag_h5_get_i64(&r->facts.L, r->file, ".", "L", err));
    AG_TRY(ag_h5_get_i64(&r->facts.P, r->file, ".", "P", err));
    AG_TRY(ag_h5_get_i64(&r->facts.T, r->file, ".", "T", err));
    AG_TRY(ag_h5_get_i64(&specials, r->file, ".", "specials", err));
    AG_TRY(ag_h5_get_i64(&r->facts.double_bos, r->file, ".", "double_bos", err));
    AG_TRY(ag_h5_get(r->facts.missing_value, r->file, ".", "missing_value", AG_H5_I64, 3, err));
    r->facts.specials = specials != 0;
    if (r->facts.L < 1 || r->facts.L > 1 << 20)
        status = bad(r, err, "attribute L", "a number out of range", "1 layer or more");
    if (r->facts.P < 1) status = bad(r, err, "attribute P", "a number out of range", "1 prompt or more");
    if (r->facts.T < r->facts.P)
        status = bad(r, err, "attribute T", "a number out of range", "a token or more per prompt");
fail:
    return status;
}

/* A whole dataset of known length. */
static enum ag_status column(const void **out, struct dump_reader *r, const char *name, enum ag_h5_type type, int64_t n,
                             struct ag_error *err) {
    void *data = NULL;
    enum ag_status status = ag_h5_read(&data, r->file, name, type, 1, &n, r->arena, err);
    *out = data;
    return status;
}

static enum ag_status read_tokens(struct dump_reader *r, struct ag_error *err) {
    enum ag_status status;
    struct ag_tokens *t = &r->tokens;
    int64_t T = r->facts.T, P = r->facts.P;
    const void *id, *role, *begin, *end, *value, *offsets, *has, *twin;
    const char *const *answers;
    char where[160], found[64];
    AG_TRY(column(&id, r, "/tokens/id", AG_H5_I32, T, err));
    AG_TRY(column(&role, r, "/tokens/role", AG_H5_U8, T, err));
    AG_TRY(column(&begin, r, "/tokens/begin", AG_H5_I64, T, err));
    AG_TRY(column(&end, r, "/tokens/end", AG_H5_I64, T, err));
    AG_TRY(column(&value, r, "/tokens/value", AG_H5_U8, T, err));
    AG_TRY(column(&offsets, r, "/prompts/offset", AG_H5_I64, P + 1, err));
    AG_TRY(column(&has, r, "/prompts/has_answer", AG_H5_U8, P, err));
    AG_TRY(column(&twin, r, "/prompts/twin", AG_H5_I64, P, err));
    AG_TRY(ag_h5_read_texts(&t->prompt_id, r->file, "/prompts/id", &P, r->arena, err));
    AG_TRY(ag_h5_read_texts(&t->text, r->file, "/prompts/text", &P, r->arena, err));
    AG_TRY(ag_h5_read_texts(&answers, r->file, "/prompts/answer", &P, r->arena, err));
    const char **answer = AG_NEW(r->arena, const char *, P, err);
    if (!answer) AG_TRY(AG_E_MEMORY);
    t->P = P;
    t->T = T;
    t->id = id;
    t->role = role;
    t->begin = begin;
    t->end = end;
    t->value = value;
    t->offsets = offsets;
    t->answer = answer;
    t->twin = twin;
    for (int64_t p = 0; p <= P; p++) {
        int64_t o = t->offsets[p];
        if (p == 0 ? o == 0 : o > t->offsets[p - 1] && o <= T && (p < P || o == T)) continue;
        snprintf(where, sizeof where, "/prompts/offset[%" PRId64 "]", p);
        snprintf(found, sizeof found, "%" PRId64, o);
        return bad(r, err, where, found, "ascending token numbers from 0 to T");
    }
    for (int64_t p = 0; p < P; p++) {
        answer[p] = ((const uint8_t *)has)[p] ? answers[p] : NULL;
        int64_t other = t->twin[p], bytes = (int64_t)(strlen(t->text[p]) + strlen(answers[p]));
        if (other < -1 || other >= P || other == p || (other >= 0 && t->twin[other] != p)) {
            snprintf(where, sizeof where, "/prompts/twin[%" PRId64 "]", p);
            snprintf(found, sizeof found, "%" PRId64, other);
            return bad(r, err, where, found, "-1, or a prompt that points back");
        }
        for (int64_t i = t->offsets[p]; i < t->offsets[p + 1]; i++) {
            if (t->role[i] >= AG_ROLE_COUNT) {
                snprintf(where, sizeof where, "/tokens/role[%" PRId64 "]", i);
                snprintf(found, sizeof found, "%d", t->role[i]);
                return bad(r, err, where, found, "a role below 6");
            }
            if (t->begin[i] < 0 || t->end[i] < t->begin[i] || t->end[i] > bytes) {
                snprintf(where, sizeof where, "/tokens/begin, end[%" PRId64 "]", i);
                snprintf(found, sizeof found, "%" PRId64 " to %" PRId64, t->begin[i], t->end[i]);
                return bad(r, err, where, found, "bytes of the prompt's text and answer");
            }
        }
    }
    r->facts.Tq = T;
    if (ag_h5_exists(r->file, "/positions")) {
        void *data;
        int64_t n = -1;
        AG_TRY(ag_h5_read(&data, r->file, "/positions", AG_H5_I64, 1, &n, r->arena, err));
        r->positions = data;
        for (int64_t i = 0; i < n; i++)
            if (r->positions[i] < 0 || r->positions[i] >= T || (i > 0 && r->positions[i] <= r->positions[i - 1]))
                return bad(r, err, "/positions", "numbers out of order or range", "ascending token numbers below T");
        r->facts.Tq = n;
        r->facts.limited = true;
    }
fail:
    return status;
}

/* Shape and type of one dataset; heads as stored (all, or as many as its attribute heads lists). */
static enum ag_status check_set(struct dump_reader *r, const char *name, int64_t heads, int64_t tokens, int64_t D,
                                bool may_be_limited, struct ag_error *err) {
    enum ag_status status;
    int64_t dims[3] = {heads, tokens, D};
    if (may_be_limited && ag_h5_has_attribute(r->file, name, "heads")) {
        int rank;
        int64_t have[AG_H5_MAX_RANK];
        AG_TRY(ag_h5_shape(&rank, have, r->file, name, err));
        if (rank == 3 && have[0] > 0 && have[0] < heads) {
            int32_t *list = AG_NEW(r->arena, int32_t, have[0], err);
            if (!list) AG_TRY(AG_E_MEMORY);
            AG_TRY(ag_h5_get(list, r->file, name, "heads", AG_H5_I32, have[0], err));
            for (int64_t i = 0; i < have[0]; i++)
                if (list[i] < 0 || list[i] >= heads || (i > 0 && list[i] <= list[i - 1]))
                    return bad(r, err, name, "an attribute heads out of order or range", "ascending head numbers");
            dims[0] = have[0];
            r->facts.limited = true;
        }
    }
    AG_TRY(ag_h5_check_shape(r->file, name, 3, dims, err));
    hid_t id = H5Dopen2(r->file, name, H5P_DEFAULT), type = id < 0 ? -1 : H5Dget_type(id);
    hid_t want = ag_h5_file_type(type_of(r->facts.store));
    bool same = type >= 0 && want >= 0 && H5Tequal(type, want) > 0;
    if (type >= 0) H5Tclose(type);
    if (want >= 0) H5Tclose(want);
    if (id >= 0) H5Dclose(id);
    if (!same) status = bad(r, err, name, "elements of another type", dump_store_names[r->facts.store]);
fail:
    return status;
}

static enum ag_status read_layer(struct dump_reader *r, int64_t l, struct ag_error *err) {
    enum ag_status status;
    struct ag_layer_shape *shape = &r->shapes[l];
    char name[64], set[96];
    const char *kind;
    snprintf(name, sizeof name, "/layers/%" PRId64, l);
    AG_TRY(ag_h5_get_text(&kind, r->file, name, "kind", r->arena, err));
    if (strcmp(kind, "softmax") && strcmp(kind, "linear")) return bad(r, err, name, kind, "kind softmax or linear");
    shape->kind = kind[0] == 's' ? AG_LAYER_SOFTMAX : AG_LAYER_LINEAR;
    AG_TRY(ag_h5_get_f64(&shape->scale, r->file, name, "scale", err));
    AG_TRY(ag_h5_get_i64(&shape->window, r->file, name, "window", err));
    AG_TRY(ag_h5_get_i64(&shape->Hq, r->file, name, "Hq", err));
    AG_TRY(ag_h5_get_i64(&shape->Hk, r->file, name, "Hk", err));
    AG_TRY(ag_h5_get_i64(&shape->D, r->file, name, "D", err));
    AG_TRY(ag_h5_get_i64(&shape->Dv, r->file, name, "Dv", err));
    const int64_t most = 1 << 20;
    if (!isfinite(shape->scale) || shape->window < 0 || shape->Hk < 1 || shape->Hq < shape->Hk || shape->Hq > most ||
        shape->Hq % shape->Hk || shape->D < 1 || shape->D > most || shape->Dv < 1 || shape->Dv > most)
        return bad(r, err, name, "dimensions that cannot be (scale, window, Hq, Hk, D, Dv)",
                   "Hq a multiple of Hk, all positive");
    int32_t *head = AG_NEW(r->arena, int32_t, shape->Hq, err);
    if (!head) AG_TRY(AG_E_MEMORY);
    AG_TRY(ag_h5_get(head, r->file, name, "key_head", AG_H5_I32, shape->Hq, err));
    for (int64_t h = 0; h < shape->Hq; h++)
        if (head[h] != h / (shape->Hq / shape->Hk))
            return bad(r, err, name, "a head map (key_head) other than a / (Hq / Hk)", "that one");
    for (int tap = 0; tap < AG_TAP_COUNT; tap++) {
        if (!(r->facts.taps >> tap & 1)) continue;
        snprintf(set, sizeof set, "%s/%s/keys", name, ag_tap_names[tap]);
        if (r->facts.keys) AG_TRY(check_set(r, set, shape->Hk, r->facts.T, shape->D, false, err));
        snprintf(set, sizeof set, "%s/%s/queries", name, ag_tap_names[tap]);
        if (r->facts.queries) AG_TRY(check_set(r, set, shape->Hq, r->facts.Tq, shape->D, true, err));
    }
    snprintf(set, sizeof set, "%s/values", name);
    if (r->facts.values) AG_TRY(check_set(r, set, shape->Hk, r->facts.Tq, shape->Dv, true, err));
fail:
    return status;
}

enum ag_status dump_open(struct dump_reader **out, const char *path, struct ag_error *err) {
    enum ag_status status;
    struct ag_arena *arena = ag_arena_new("dump reader");
    struct dump_reader *r = arena ? AG_ZEROS(arena, struct dump_reader, 1, err) : NULL;
    *out = NULL;
    if (!r) {
        ag_arena_free(arena);
        return ag_fail(err, AG_E_MEMORY, "out of memory");
    }
    r->arena = arena;
    r->file = -1;
    r->wave_bytes = 256 << 20;
    r->wave = ag_arena_new("dump reader");
    r->path = ag_arena_text(arena, path, strlen(path), err);
    if (!r->wave || !r->path) AG_TRY(ag_fail(err, AG_E_MEMORY, "out of memory"));
    AG_TRY(ag_h5_open(&r->file, path, err));
    AG_TRY(read_root(r, err));
    AG_TRY(read_tokens(r, err));
    r->shapes = AG_ZEROS(arena, struct ag_layer_shape, r->facts.L, err);
    r->selected = AG_ZEROS(arena, bool, r->facts.L, err);
    if (!r->shapes || !r->selected) AG_TRY(AG_E_MEMORY);
    int64_t chosen = 0;
    for (int64_t l = 0; l < r->facts.L; l++) {
        char name[64];
        snprintf(name, sizeof name, "/layers/%" PRId64, l);
        r->selected[l] = ag_h5_exists(r->file, name);
        if (r->selected[l]) AG_TRY(read_layer(r, l, err));
        chosen += r->selected[l];
    }
    if (chosen == 0) AG_TRY(bad(r, err, "/layers", "no layer", "one or more"));
    r->facts.selfcheck = ag_h5_exists(r->file, "/selfcheck/logit");
    *out = r;
    return AG_OK;
fail:
    dump_close(r);
    return status;
}

void dump_close(struct dump_reader *r) {
    if (!r) return;
    if (r->file >= 0) ag_h5_close(r->file, NULL);
    ag_arena_free(r->wave);
    ag_arena_free(r->arena);
}

void dump_set_wave(struct dump_reader *r, int64_t bytes) { r->wave_bytes = bytes; }

struct dump_facts dump_facts(const struct dump_reader *r) {
    return r->facts;
}

static enum ag_status check_tap(const struct dump_reader *r, enum ag_tap tap, struct ag_error *err) {
    if (tap < AG_TAP_COUNT && r->facts.taps >> tap & 1) return AG_OK;
    char stored[64] = "none";
    size_t n = 0;
    for (int t = 0; t < AG_TAP_COUNT; t++)
        if (r->facts.taps >> t & 1)
            n += (size_t)snprintf(stored + n, sizeof stored - n, "%s%s", n ? ", " : "", ag_tap_names[t]);
    return ag_fail(err, AG_E_USAGE, "%s: tap %s is not in this dump; stored: %s: choose one with --tap", r->path,
                   tap < AG_TAP_COUNT ? ag_tap_names[tap] : "?", stored);
}

enum ag_status dump_source(struct ag_source *source, struct dump_reader *r, enum ag_tap tap, struct ag_error *err) {
    if (tap == AG_TAP_COUNT) tap = r->last_tap;
    enum ag_status status = check_tap(r, tap, err);
    if (status != AG_OK) return status;
    *source = r->source;
    source->dump_path = r->path;
    source->L = r->facts.L;
    source->layers = r->shapes;
    source->selected = r->selected;
    source->tap = tap;
    source->last_tap = r->last_tap;
    source->tokens = &r->tokens;
    return AG_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------------------ */

struct set {
    const char *what;
    char name[96];
    hid_t id;
    int64_t heads, D;
    float *data; /* (heads, wave tokens, D) */
};

static enum ag_status open_set(struct set *set, struct dump_reader *r, struct ag_error *err) {
    /* One row of chunks, a chunk for each head, stays in the cache: nothing is read twice. */
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, 10007, (size_t)(set->heads + 1) << 20, 1.0);
    set->id = H5Dopen2(r->file, set->name, access);
    H5Pclose(access);
    return set->id >= 0 ? AG_OK : ag_h5_fail(err, r->file, NULL, set->name, "opening");
}

static void widen(float *data, const uint16_t *raw, int64_t n, enum dump_store store) {
    for (int64_t i = 0; i < n; i++) {
        if (store == DUMP_BF16) {
            uint32_t wide = (uint32_t)raw[i] << 16;
            memcpy(&data[i], &wide, 4);
        } else {
            _Float16 half;
            memcpy(&half, &raw[i], 2);
            data[i] = (float)half;
        }
    }
}

/* Tokens [first, first + n) of all heads; a value that is not finite is refused with its place. */
static enum ag_status read_set(struct set *set, struct dump_reader *r, int64_t layer, enum ag_tap tap, int64_t first,
                               int64_t n, struct ag_error *err) {
    enum ag_status status = AG_OK;
    int64_t elements, row = n * set->D;
    if (!ag_mul(set->heads, row, &elements))
        return ag_fail(err, AG_E_MEMORY, "%s: a prompt too large for memory", r->path);
    set->data = AG_NEW(r->wave, float, elements, err);
    if (!set->data) return AG_E_MEMORY;
    hsize_t start[3] = {0, (hsize_t)first, 0}, count[3] = {(hsize_t)set->heads, (hsize_t)n, (hsize_t)set->D};
    hid_t memory = H5Screate_simple(3, count, NULL), space = H5Dget_space(set->id),
          type = ag_h5_file_type(type_of(r->facts.store));
    bool narrow = r->facts.store != DUMP_F32;
    void *to = narrow ? ag_arena_alloc(r->wave, elements, 2, err) : set->data;
    if (!to)
        status = AG_E_MEMORY;
    else if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
             H5Dread(set->id, type, memory, space, H5P_DEFAULT, to) < 0)
        status = ag_h5_fail(err, r->file, NULL, set->name, "reading");
    H5Sclose(memory);
    H5Sclose(space);
    H5Tclose(type);
    if (status != AG_OK) return status;
    if (narrow) widen(set->data, to, elements, r->facts.store);
    int64_t broken = INT64_MAX, heads = set->heads;
    const float *data = set->data;
#pragma omp parallel for default(none) shared(data, heads, row) reduction(min : broken)
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = h * row; i < (h + 1) * row; i++)
            if (!isfinite(data[i]) && i < broken) broken = i;
    if (broken == INT64_MAX) return AG_OK;
    int64_t head = broken / row, token = first + broken % row / set->D, p = 0;
    while (r->tokens.offsets[p + 1] <= token) p++;
    return ag_fail(err, AG_E_NUMERIC,
                   "%s: %s: layer %" PRId64 " (%s), %s head %" PRId64 ", prompt %s, token %" PRId64
                   " holds a value that is not finite; make the dump again",
                   r->path, set->name, layer, ag_tap_names[tap], set->what, head, r->tokens.prompt_id[p],
                   token - r->tokens.offsets[p]);
}

static enum ag_status check_request(const struct dump_reader *r, int64_t layer, enum ag_tap tap, bool queries,
                                    bool values, struct ag_error *err) {
    enum ag_status status = check_tap(r, tap, err);
    if (status != AG_OK) return status;
    if (layer < 0 || layer >= r->facts.L || !r->selected[layer])
        return ag_fail(err, AG_E_USAGE, "%s: layer %" PRId64 " is not in this dump", r->path, layer);
    if (!r->facts.keys) return ag_fail(err, AG_E_USAGE, "%s: holds no keys; make a dump with --what keys", r->path);
    if ((queries && !r->facts.queries) || (values && !r->facts.values))
        return ag_fail(err, AG_E_USAGE, "%s: holds no %s; make a dump with --what keys,%s", r->path,
                       queries && !r->facts.queries ? "queries" : "values",
                       queries && !r->facts.queries ? "queries" : "values");
    if ((queries || values) && r->facts.limited)
        return ag_fail(
            err, AG_E_USAGE,
            "%s: holds queries and values of some positions or heads only (--positions, --heads), and all are "
            "needed here; make a dump without these options",
            r->path);
    return AG_OK;
}

enum ag_status dump_layer(struct dump_reader *r, int64_t layer, enum ag_tap tap, bool queries, bool values,
                          enum ag_status (*reduce)(void *self, const struct ag_block *blocks, int64_t n,
                                                   struct ag_error *err),
                          void *self, struct ag_error *err) {
    enum ag_status status = check_request(r, layer, tap, queries, values, err);
    if (status != AG_OK) return status;
    const struct ag_layer_shape *shape = &r->shapes[layer];
    const struct ag_tokens *t = &r->tokens;
    struct set sets[3] = {{"key", "", -1, shape->Hk, shape->D, NULL},
                          {"query", "", -1, shape->Hq, shape->D, NULL},
                          {"value", "", -1, shape->Hk, shape->Dv, NULL}};
    bool wanted[3] = {true, queries, values};
    int64_t per_token = 0;
    snprintf(sets[0].name, sizeof sets[0].name, "/layers/%" PRId64 "/%s/keys", layer, ag_tap_names[tap]);
    snprintf(sets[1].name, sizeof sets[1].name, "/layers/%" PRId64 "/%s/queries", layer, ag_tap_names[tap]);
    snprintf(sets[2].name, sizeof sets[2].name, "/layers/%" PRId64 "/values", layer);
    for (int i = 0; i < 3; i++) {
        if (!wanted[i]) continue;
        AG_TRY(open_set(&sets[i], r, err));
        per_token += sets[i].heads * sets[i].D * (int64_t)sizeof(float);
    }
    for (int64_t p = 0, next; p < t->P; p = next) {
        for (next = p + 1; next < t->P && (t->offsets[next + 1] - t->offsets[p]) * per_token <= r->wave_bytes;) next++;
        int64_t first = t->offsets[p], n = t->offsets[next] - first;
        ag_arena_reset(r->wave);
        struct ag_block *blocks = AG_ZEROS(r->wave, struct ag_block, next - p, err);
        if (!blocks) AG_TRY(AG_E_MEMORY);
        for (int i = 0; i < 3; i++)
            if (wanted[i]) AG_TRY(read_set(&sets[i], r, layer, tap, first, n, err));
        for (int64_t b = 0; b < next - p; b++) {
            int64_t start = t->offsets[p + b] - first;
            struct ag_view *views[3] = {&blocks[b].keys, &blocks[b].queries, &blocks[b].values};
            blocks[b].layer = layer;
            blocks[b].prompt = p + b;
            blocks[b].tap = tap;
            blocks[b].shape = shape;
            blocks[b].T = t->offsets[p + b + 1] - t->offsets[p + b];
            blocks[b].role = t->role + t->offsets[p + b];
            for (int i = 0; i < 3; i++)
                if (wanted[i]) *views[i] = (struct ag_view){sets[i].data + start * sets[i].D, n * sets[i].D, sets[i].D};
        }
        AG_TRY(reduce(self, blocks, next - p, err));
    }
fail:
    for (int i = 0; i < 3; i++)
        if (sets[i].id >= 0) H5Dclose(sets[i].id);
    ag_arena_reset(r->wave);
    return status;
}
