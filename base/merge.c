/* base/merge.c: see merge.h. */
#include "base/merge.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"

#define TOGETHER "only the shares of one run go together: run this share again as the others were, or leave it out"

static enum ag_status differ(const char *what, const char *a, const char *b, const char *path_a, const char *path_b,
                             struct ag_error *err) {
    return ag_fail(err, AG_E_USAGE, "%.200s: %s %.70s; expected %.70s, as in %.200s; " TOGETHER, path_b, what,
                   *b ? b : "(none)", *a ? a : "(none)", path_a);
}

enum ag_status ag_merge_same(const char *what, int64_t a, int64_t b, const char *path_a, const char *path_b,
                             struct ag_error *err) {
    char x[32], y[32];
    if (a == b) return AG_OK;
    snprintf(x, sizeof x, "%" PRId64, a);
    snprintf(y, sizeof y, "%" PRId64, b);
    return differ(what, x, y, path_a, path_b, err);
}

enum ag_status ag_merge_same_layers(const char *what, const int64_t *a, const int64_t *b,
                                    const struct ag_provenance *from, const char *path_a, const char *path_b,
                                    struct ag_error *err) {
    char name[96];
    for (int64_t l = 0; l < from->Ls; l++) {
        if (a[l] == b[l]) continue;
        snprintf(name, sizeof name, "%s of layer %" PRId64, what, from->layer[l]);
        return ag_merge_same(name, a[l], b[l], path_a, path_b, err);
    }
    return AG_OK;
}

/* "0-3,7", cut at the end of out. */
static void layer_list(char out[64], const struct ag_provenance *x) {
    size_t used = 0;
    out[0] = '\0';
    for (int64_t l = 0; l < x->Ls && used < 64; l++) {
        const int64_t first = l;
        while (l + 1 < x->Ls && x->layer[l + 1] == x->layer[l] + 1) l++;
        const char *comma = used > 0 ? "," : "";
        const int wrote =
            l > first ? snprintf(out + used, 64 - used, "%s%" PRId64 "-%" PRId64, comma, x->layer[first], x->layer[l])
                      : snprintf(out + used, 64 - used, "%s%" PRId64, comma, x->layer[l]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* ---- do they belong together? ----------------------------------------------------------------------------------------- */

static enum ag_status check_pair(const struct ag_merge_part *first, const struct ag_merge_part *part,
                                 const struct ag_merge_options *options, struct ag_error *err) {
    enum ag_status status = AG_OK;
    const struct ag_provenance *a = first->from, *b = part->from;
    const struct {
        const char *what, *a, *b;
    } texts[] = {
        {"checkpoint SHA-256", a->checkpoint_sha256, b->checkpoint_sha256},
        {"tokenizer SHA-256", a->tokenizer_sha256, b->tokenizer_sha256},
        {"prompts SHA-256", a->prompts_sha256, b->prompts_sha256},
        {"tap", ag_tap_names[a->tap], ag_tap_names[b->tap]},
        {"last tap", ag_tap_names[a->last_tap], ag_tap_names[b->last_tap]},
        {"dtype", a->dtype, b->dtype},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (strcmp(texts[i].a, texts[i].b) != 0)
            AG_TRY(differ(texts[i].what, texts[i].a, texts[i].b, first->path, part->path, err));
    if (!options->allow_backends && strcmp(a->backend, b->backend) != 0)
        return ag_fail(
            err, AG_E_USAGE,
            "%.200s: backend %.40s; expected %.40s, as in %.200s: backends agree within tolerances, not bit for bit; "
            "run this share again there, or give --allow-backends",
            part->path, b->backend, a->backend, first->path);
    AG_TRY(ag_merge_same("seed", a->seed, b->seed, first->path, part->path, err));
    AG_TRY(ag_merge_same("layers in all", a->L, b->L, first->path, part->path, err));
    if (a->Ls != b->Ls || memcmp(a->layer, b->layer, (size_t)a->Ls * sizeof *a->layer) != 0) {
        char x[64], y[64];
        layer_list(x, a);
        layer_list(y, b);
        AG_TRY(differ("layers", x, y, first->path, part->path, err));
    }
fail:
    return status;
}

struct named {
    const char *id;
    int64_t part, prompt;
};
static int by_id(const void *a, const void *b) {
    const struct named *x = a, *y = b;
    const int order = strcmp(x->id, y->id);
    if (order != 0) return order;
    return x->part != y->part ? (x->part > y->part) - (x->part < y->part)
                              : (x->prompt > y->prompt) - (x->prompt < y->prompt);
}

static enum ag_status check_ids(const struct ag_merge_part *parts, int64_t n, int64_t P, struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct ag_arena *scratch = ag_arena_new("prompt ids");
    struct named *all = scratch != NULL ? AG_NEW(scratch, struct named, P, err) : NULL;
    if (all == NULL) {
        ag_arena_free(scratch);
        return ag_fail(err, AG_E_MEMORY, "merge: out of memory");
    }
    for (int64_t k = 0, at = 0; k < n; k++)
        for (int64_t p = 0; p < parts[k].from->P; p++) all[at++] = (struct named){parts[k].from->prompt_id[p], k, p};
    qsort(all, (size_t)P, sizeof *all, by_id);
    for (int64_t i = 0; i + 1 < P && status == AG_OK; i++)
        if (strcmp(all[i].id, all[i + 1].id) == 0) {
            const char *path = parts[all[i + 1].part].path, *other = parts[all[i].part].path;
            status =
                all[i].part == all[i + 1].part
                    ? ag_fail(err, AG_E_FORMAT, "%.200s: prompt %.100s is there twice; expected every prompt once",
                              path, all[i].id)
                    : ag_fail(
                          err, AG_E_USAGE,
                          "%.200s: prompt %.100s is in %.200s too; expected every prompt once; give every share once",
                          path, all[i].id, other);
        }
    ag_arena_free(scratch);
    return status;
}

/* ---- the list of what was merged ---------------------------------------------------------------------------------------- */

/* Copies of texts that belong to the parts. */
static enum ag_status own(const char **texts, int64_t n, struct ag_arena *arena, struct ag_error *err) {
    for (int64_t i = 0; i < n; i++)
        if ((texts[i] = ag_arena_text(arena, texts[i], strlen(texts[i]), err)) == NULL) return AG_E_MEMORY;
    return AG_OK;
}

static enum ag_status list_merged(struct ag_merged *out, const struct ag_merge_part *parts, int64_t n,
                                  struct ag_arena *arena, struct ag_error *err) {
    int64_t total = 0, at = 0;
    for (int64_t k = 0; k < n; k++) total += parts[k].from->merged.n > 0 ? parts[k].from->merged.n : 1;
    const char **command = AG_NEW(arena, const char *, total, err), **version = AG_NEW(arena, const char *, total, err);
    const char **backend = AG_NEW(arena, const char *, total, err), **dump = AG_NEW(arena, const char *, total, err);
    if (!command || !version || !backend || !dump) return AG_E_MEMORY;
    for (int64_t k = 0; k < n; k++) {
        const struct ag_provenance *x = parts[k].from;
        const struct ag_merged alone = {1, &x->command, &x->version, &x->backend, &x->dump},
                               *from = x->merged.n > 0 ? &x->merged : &alone;
        for (int64_t i = 0; i < from->n; i++, at++) {
            command[at] = from->command[i];
            version[at] = from->version[i];
            backend[at] = from->backend[i];
            dump[at] = from->dump[i];
        }
    }
    const char **const lists[] = {command, version, backend, dump};
    for (int i = 0; i < 4; i++)
        if (own(lists[i], total, arena, err) != AG_OK) return AG_E_MEMORY;
    *out = (struct ag_merged){total, command, version, backend, dump};
    return AG_OK;
}

/* What occurs in a list, once each in order of appearance, separated by commas; empty texts are left out. */
static enum ag_status occurring(const char **out, const char *const *texts, int64_t n, struct ag_arena *arena,
                                struct ag_error *err) {
    struct ag_buf text = {0};
    enum ag_status status = AG_OK;
    for (int64_t i = 0; i < n; i++) {
        bool seen = texts[i][0] == '\0';
        for (int64_t j = 0; j < i && !seen; j++) seen = strcmp(texts[i], texts[j]) == 0;
        if (!seen) AG_TRY(ag_buf_printf(&text, err, "%s%s", text.size > 0 ? "," : "", texts[i]));
    }
    *out = ag_arena_text(arena, text.size > 0 ? text.data : "", text.size, err);
    if (*out == NULL) status = AG_E_MEMORY;
fail:
    ag_buf_free(&text);
    return status;
}

enum ag_status ag_provenance_merge(struct ag_provenance *out, const struct ag_merge_part *parts, int64_t n,
                                   const struct ag_merge_options *options, struct ag_arena *arena,
                                   struct ag_error *err) {
    enum ag_status status = AG_OK;
    int64_t P = 0, T = 0;
    if (n < 2) return ag_fail(err, AG_E_USAGE, "merge: %" PRId64 " file; expected at least two", n);
    for (int64_t k = 0; k < n; k++) {
        if (k > 0) AG_TRY(check_pair(&parts[0], &parts[k], options, err));
        if (!ag_add(P, parts[k].from->P, &P) || !ag_add(T, parts[k].from->T, &T))
            return ag_fail(err, AG_E_FORMAT, "%s: more prompts or tokens than can be counted", parts[k].path);
    }
    AG_TRY(check_ids(parts, n, P, err));
    int64_t *twin = AG_NEW(arena, int64_t, P, err), *unit = AG_NEW(arena, int64_t, P, err);
    const char **ids = AG_NEW(arena, const char *, P, err);
    int64_t *layer = AG_NEW(arena, int64_t, parts[0].from->Ls, err);
    if (!twin || !unit || !ids || !layer) return AG_E_MEMORY;
    for (int64_t k = 0, first = 0; k < n; first += parts[k++].from->P)
        for (int64_t p = 0; p < parts[k].from->P; p++) {
            const int64_t other = parts[k].from->twin[p];
            twin[first + p] = other < 0 ? -1 : first + other;
            ids[first + p] = parts[k].from->prompt_id[p];
        }
    memcpy(layer, parts[0].from->layer, (size_t)parts[0].from->Ls * sizeof *layer);
    AG_TRY(own(ids, P, arena, err));
    *out = *parts[0].from;
    out->P = P;
    out->T = T;
    out->twin = twin;
    out->units = ag_units(unit, twin, P);
    out->unit = unit;
    out->prompt_id = ids;
    out->layer = layer;
    out->command = options->command;
    out->version = ag_version;
    const char **const texts[] = {
        &out->model,          &out->architecture, &out->checkpoint_sha256, &out->tokenizer_sha256,
        &out->prompts_sha256, &out->dtype,        &out->command,           &out->version};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) AG_TRY(own(texts[i], 1, arena, err));
    AG_TRY(list_merged(&out->merged, parts, n, arena, err));
    AG_TRY(occurring(&out->backend, out->merged.backend, out->merged.n, arena, err));
    AG_TRY(occurring(&out->dump, out->merged.dump, out->merged.n, arena, err));
fail:
    return status;
}
