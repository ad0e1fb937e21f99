/* base/provenance.c: see provenance.h. */
#include "base/provenance.h"

#include <inttypes.h>
#include <string.h>

#include "base/cli.h"

static const struct {
    const char *name;
    size_t offset;
} texts[] = {
    {"model", offsetof(struct ag_provenance, model)},
    {"architecture", offsetof(struct ag_provenance, architecture)},
    {"checkpoint_sha256", offsetof(struct ag_provenance, checkpoint_sha256)},
    {"tokenizer_sha256", offsetof(struct ag_provenance, tokenizer_sha256)},
    {"prompts_sha256", offsetof(struct ag_provenance, prompts_sha256)},
    {"backend", offsetof(struct ag_provenance, backend)},
    {"dtype", offsetof(struct ag_provenance, dtype)},
    {"command", offsetof(struct ag_provenance, command)},
    {"version", offsetof(struct ag_provenance, version)},
    {"dump", offsetof(struct ag_provenance, dump)},
};
static const struct {
    const char *name;
    size_t offset;
} numbers[] = {
    {"seed", offsetof(struct ag_provenance, seed)},
    {"L", offsetof(struct ag_provenance, L)},
    {"P", offsetof(struct ag_provenance, P)},
    {"T", offsetof(struct ag_provenance, T)},
};
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

int64_t ag_units(int64_t *unit, const int64_t *twin, int64_t P) {
    int64_t U = 0;
    for (int64_t p = 0; p < P; p++) unit[p] = twin[p] >= 0 && twin[p] < p ? unit[twin[p]] : U++;
    return U;
}

enum ag_status ag_provenance_of(struct ag_provenance *out, const struct ag_source *source, const char *who,
                                struct ag_arena *arena, struct ag_error *err) {
    const struct ag_tokens *tokens = source->tokens;
    const int64_t P = tokens->P;
    if (P < 1) return ag_fail(err, AG_E_USAGE, "%s: no prompts; expected at least one", who);
    *out = (struct ag_provenance){
        .seed = source->seed, .tap = source->tap, .last_tap = source->last_tap, .L = source->L, .P = P, .T = tokens->T};
    const char *const from[] = {source->model,
                                source->architecture,
                                source->checkpoint_sha256,
                                source->tokenizer_sha256,
                                source->prompts_sha256,
                                source->backend,
                                source->dtype,
                                source->command_line,
                                ag_version,
                                source->dump_path};
    for (size_t i = 0; i < COUNT(texts); i++) {
        const char *text = from[i] != NULL ? from[i] : "", *copy = ag_arena_text(arena, text, strlen(text), err);
        if (copy == NULL) return AG_E_MEMORY;
        memcpy((char *)out + texts[i].offset, &copy, sizeof copy);
    }
    for (int64_t l = 0; l < source->L; l++) out->Ls += source->selected[l];
    if (out->Ls == 0) return ag_fail(err, AG_E_USAGE, "%s: no layer is selected; expected at least one", who);
    int64_t *layer = AG_NEW(arena, int64_t, out->Ls, err), *twin = AG_NEW(arena, int64_t, P, err),
            *unit = AG_NEW(arena, int64_t, P, err);
    const char **ids = AG_NEW(arena, const char *, P, err);
    if (!layer || !twin || !unit || !ids) return AG_E_MEMORY;
    for (int64_t l = 0, at = 0; l < source->L; l++)
        if (source->selected[l]) layer[at++] = l;
    for (int64_t p = 0; p < P; p++) {
        twin[p] = tokens->twin[p];
        if (twin[p] >= 0 && (twin[p] >= P || twin[p] == p || tokens->twin[twin[p]] != p))
            return ag_fail(err, AG_E_FORMAT, "%s: prompt %" PRId64 " (%.80s) has a twin that does not point back", who,
                           p, tokens->prompt_id[p]);
        ids[p] = ag_arena_text(arena, tokens->prompt_id[p], strlen(tokens->prompt_id[p]), err);
        if (ids[p] == NULL) return AG_E_MEMORY;
    }
    out->units = ag_units(unit, twin, P);
    out->layer = layer;
    out->twin = twin;
    out->unit = unit;
    out->prompt_id = ids;
    return AG_OK;
}

enum { MERGED_LISTS = 4 };
static const char *const merged_names[MERGED_LISTS] = {"merged/command", "merged/version", "merged/backend",
                                                       "merged/dump"};

static enum ag_status merged_write(hid_t file, const struct ag_merged *merged, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const char *const *lists[MERGED_LISTS] = {merged->command, merged->version, merged->backend, merged->dump};
    for (int i = 0; i < MERGED_LISTS && merged->n > 0; i++)
        AG_TRY(ag_h5_write_texts(file, merged_names[i], lists[i], merged->n, err));
fail:
    return status;
}

static enum ag_status merged_read(struct ag_merged *out, hid_t file, const char *path, struct ag_arena *arena,
                                  struct ag_error *err) {
    enum ag_status status = AG_OK;
    const char *const *lists[MERGED_LISTS] = {NULL};
    int64_t n = -1;
    *out = (struct ag_merged){0};
    if (!ag_h5_exists(file, "merged")) return AG_OK;
    for (int i = 0; i < MERGED_LISTS; i++) AG_TRY(ag_h5_read_texts(&lists[i], file, merged_names[i], &n, arena, err));
    if (n < 2) return ag_fail(err, AG_E_FORMAT, "%s: /merged lists %" PRId64 " runs; expected at least two", path, n);
    *out = (struct ag_merged){n, lists[0], lists[1], lists[2], lists[3]};
fail:
    return status;
}

enum ag_status ag_provenance_write(hid_t file, const struct ag_provenance *x, const char *schema,
                                   struct ag_error *err) {
    enum ag_status status = AG_OK;
    const int64_t P[1] = {x->P}, Ls[1] = {x->Ls};
    AG_TRY(ag_h5_set_text(file, ".", "schema", schema, err));
    for (size_t i = 0; i < COUNT(texts); i++) {
        const char *text;
        memcpy(&text, (const char *)x + texts[i].offset, sizeof text);
        AG_TRY(ag_h5_set_text(file, ".", texts[i].name, text, err));
    }
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int64_t value;
        memcpy(&value, (const char *)x + numbers[i].offset, sizeof value);
        AG_TRY(ag_h5_set_i64(file, ".", numbers[i].name, value, err));
    }
    AG_TRY(ag_h5_set_text(file, ".", "tap", ag_tap_names[x->tap], err));
    AG_TRY(ag_h5_set_text(file, ".", "last_tap", ag_tap_names[x->last_tap], err));
    AG_TRY(ag_h5_write_texts(file, "prompts/id", x->prompt_id, x->P, err));
    AG_TRY(ag_h5_write(file, "prompts/twin", AG_H5_I64, 1, P, x->twin, err));
    AG_TRY(ag_h5_write(file, "prompts/unit", AG_H5_I64, 1, P, x->unit, err));
    AG_TRY(ag_h5_write(file, "layers", AG_H5_I64, 1, Ls, x->layer, err));
    AG_TRY(merged_write(file, &x->merged, err));
fail:
    return status;
}

static enum ag_status read_tap(enum ag_tap *tap, hid_t file, const char *path, const char *name, struct ag_arena *arena,
                               struct ag_error *err) {
    const char *text = NULL;
    const enum ag_status status = ag_h5_get_text(&text, file, ".", name, arena, err);
    if (status != AG_OK) return status;
    for (int i = 0; i < AG_TAP_COUNT; i++) {
        if (strcmp(text, ag_tap_names[i]) != 0) continue;
        *tap = (enum ag_tap)i;
        return AG_OK;
    }
    return ag_fail(err, AG_E_FORMAT, "%s: attribute %s: %.40s; expected proj, conv, norm or rope", path, name, text);
}

enum ag_status ag_provenance_read(struct ag_provenance *out, hid_t file, const char *path, const char *schema,
                                  const char *made_by, struct ag_arena *arena, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const char *found = NULL;
    void *twin = NULL, *stored = NULL, *layer = NULL;
    *out = (struct ag_provenance){0};
    if (!ag_h5_has_attribute(file, ".", "schema"))
        return ag_fail(err, AG_E_FORMAT, "%s: no schema attribute; expected a results file of %s", path, made_by);
    AG_TRY(ag_h5_get_text(&found, file, ".", "schema", arena, err));
    if (strcmp(found, schema) != 0)
        return ag_fail(err, AG_E_FORMAT, "%s: schema %.40s; expected %s, as %s writes it", path, found, schema,
                       made_by);
    for (size_t i = 0; i < COUNT(texts); i++) {
        const char *text = NULL;
        AG_TRY(ag_h5_get_text(&text, file, ".", texts[i].name, arena, err));
        memcpy((char *)out + texts[i].offset, &text, sizeof text);
    }
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int64_t value = 0;
        AG_TRY(ag_h5_get_i64(&value, file, ".", numbers[i].name, err));
        memcpy((char *)out + numbers[i].offset, &value, sizeof value);
    }
    if (out->P < 1 || out->T < 0 || out->L < 1)
        return ag_fail(err, AG_E_FORMAT, "%s: L %" PRId64 ", P %" PRId64 ", T %" PRId64 ": out of range", path, out->L,
                       out->P, out->T);
    AG_TRY(read_tap(&out->tap, file, path, "tap", arena, err));
    AG_TRY(read_tap(&out->last_tap, file, path, "last_tap", arena, err));
    int64_t dims[1] = {out->P}, n = out->P;
    AG_TRY(ag_h5_read_texts(&out->prompt_id, file, "prompts/id", &n, arena, err));
    AG_TRY(ag_h5_read(&twin, file, "prompts/twin", AG_H5_I64, 1, dims, arena, err));
    AG_TRY(ag_h5_read(&stored, file, "prompts/unit", AG_H5_I64, 1, dims, arena, err));
    out->twin = twin;
    for (int64_t p = 0; p < out->P; p++) {
        const int64_t other = out->twin[p];
        if (other < -1 || other >= out->P || other == p || (other >= 0 && out->twin[other] != p))
            return ag_fail(err, AG_E_FORMAT,
                           "%s: /prompts/twin: prompt %" PRId64 " has twin %" PRId64
                           "; expected -1 or a prompt whose twin it is",
                           path, p, other);
    }
    int64_t *unit = AG_NEW(arena, int64_t, out->P, err);
    if (unit == NULL) return AG_E_MEMORY;
    out->units = ag_units(unit, out->twin, out->P);
    out->unit = unit;
    if (memcmp(unit, stored, (size_t)out->P * sizeof *unit) != 0)
        return ag_fail(err, AG_E_FORMAT, "%s: /prompts/unit does not follow from /prompts/twin", path);
    dims[0] = -1;
    AG_TRY(ag_h5_read(&layer, file, "layers", AG_H5_I64, 1, dims, arena, err));
    out->layer = layer;
    out->Ls = dims[0];
    for (int64_t l = 0; l < out->Ls; l++)
        if (out->layer[l] < 0 || out->layer[l] >= out->L || (l > 0 && out->layer[l] <= out->layer[l - 1]))
            return ag_fail(err, AG_E_FORMAT,
                           "%s: /layers: entry %" PRId64 " is layer %" PRId64
                           "; expected ascending layers below %" PRId64,
                           path, l, out->layer[l], out->L);
    if (out->Ls < 1) return ag_fail(err, AG_E_FORMAT, "%s: /layers is empty; expected at least one", path);
    AG_TRY(merged_read(&out->merged, file, path, arena, err));
fail:
    return status;
}
