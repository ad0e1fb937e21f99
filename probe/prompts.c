/* probe/prompts.c: reading prompt files. Roles and values are in prompt_roles.c. */
#include "probe/prompts.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "probe/unicode.h"

#define MAX_LINE ((int64_t)64 * 1024 * 1024)
#define MAX_FILE ((uint64_t)16 * 1024 * 1024 * 1024)

/* Where we are, for messages. */
struct reader {
    struct prompts *prompts;
    int64_t line;
    struct ag_error *err;
};

static enum ag_status bad(const struct reader *r, const char *key, const char *found, const char *expected) {
    return ag_fail(r->err, AG_E_FORMAT, "%s: line %lld: %s: %s; expected %s", r->prompts->path, (long long)r->line, key,
                   found, expected);
}

/* What a JSON value is, for messages. */
static const char *kind(const json_t *value) {
    if (value == NULL) return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "is an object";
    case JSON_ARRAY:
        return "is a list";
    case JSON_STRING:
        return "is a string";
    case JSON_INTEGER:
        return "is an integer";
    case JSON_REAL:
        return "is a real number";
    case JSON_NULL:
        return "is null";
    default:
        return "is true or false";
    }
}

static enum ag_status only_keys(const struct reader *r, json_t *object, const char *const *keys, const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        bool known = false;
        for (const char *const *k = keys; *k != NULL; k++) known = known || strcmp(key, *k) == 0;
        if (known) continue;
        char shown[UNI_SHOW], found[128];
        snprintf(found, sizeof found, "unknown key \"%s\"", uni_show(shown, sizeof shown, key, (int64_t)strlen(key)));
        return bad(r, where, found, "a key that the prompt format has (a misspelt one?)");
    }
    return AG_OK;
}

/* A string without NUL into the arena. optional: missing or null gives NULL. */
static enum ag_status read_text(const char **out, int64_t *n, const struct reader *r, const json_t *object,
                                const char *key, bool optional) {
    const json_t *value = json_object_get(object, key);
    *out = NULL;
    *n = 0;
    if (optional && (value == NULL || json_is_null(value))) return AG_OK;
    if (!json_is_string(value)) return bad(r, key, kind(value), "a string");
    const char *text = json_string_value(value);
    *n = (int64_t)json_string_length(value);
    if (*n == 0) return bad(r, key, "is empty", "at least one character");
    const char *nul = memchr(text, '\0', (size_t)*n);
    if (nul != NULL) {
        char found[64];
        snprintf(found, sizeof found, "holds a NUL character at byte %lld", (long long)(nul - text));
        return bad(r, key, found, "text without NUL");
    }
    *out = ag_arena_text(r->prompts->arena, text, (size_t)*n, r->err);
    return *out != NULL ? AG_OK : AG_E_MEMORY;
}

/* A byte position of the text, between two characters. */
static enum ag_status read_position(int64_t *out, const struct reader *r, const json_t *value,
                                    const struct prompt *prompt, const char *key) {
    char found[128];
    if (!json_is_integer(value)) return bad(r, key, kind(value), "a byte position of the text");
    *out = json_integer_value(value);
    if (*out < 0 || *out > prompt->text_bytes) {
        snprintf(found, sizeof found, "is %lld, the text has %lld bytes", (long long)*out,
                 (long long)prompt->text_bytes);
        return bad(r, key, found, "a byte position of the text");
    }
    if (*out < prompt->text_bytes && ((unsigned char)prompt->text[*out] & 0xc0) == 0x80) {
        snprintf(found, sizeof found, "%lld is inside a character", (long long)*out);
        return bad(r, key, found, "a byte position between characters (positions count bytes of UTF-8)");
    }
    return AG_OK;
}

static enum ag_status read_span(struct prompt_span *span, const struct reader *r, json_t *object,
                                const struct prompt *prompt, size_t number) {
    enum ag_status status = AG_OK;
    static const char *const keys[] = {"start", "end", "role", "value", NULL};
    static const enum ag_role roles[] = {AG_ROLE_NEEDLE, AG_ROLE_DISTRACTOR, AG_ROLE_QUESTION, AG_ROLE_HAYSTACK,
                                         AG_ROLE_SPECIAL};
    char where[64], key[96], found[160];
    snprintf(where, sizeof where, "spans[%zu]", number);
    *span = (struct prompt_span){.value_begin = -1, .value_end = -1};
    if (!json_is_object(object)) return bad(r, where, kind(object), "an object");
    AG_TRY(only_keys(r, object, keys, where));
    snprintf(key, sizeof key, "%s.start", where);
    AG_TRY(read_position(&span->begin, r, json_object_get(object, "start"), prompt, key));
    snprintf(key, sizeof key, "%s.end", where);
    AG_TRY(read_position(&span->end, r, json_object_get(object, "end"), prompt, key));
    if (span->begin >= span->end) {
        snprintf(found, sizeof found, "runs from %lld to %lld", (long long)span->begin, (long long)span->end);
        return bad(r, where, found, "start before end");
    }
    const json_t *role = json_object_get(object, "role"), *value = json_object_get(object, "value");
    snprintf(key, sizeof key, "%s.role", where);
    if (!json_is_string(role)) return bad(r, key, kind(role), "needle, distractor, question, haystack or special");
    size_t k = 0, n = sizeof roles / sizeof roles[0];
    while (k < n && strcmp(json_string_value(role), ag_role_names[roles[k]]) != 0) k++;
    if (k == n || json_string_length(role) != strlen(json_string_value(role))) {
        char shown[UNI_SHOW];
        snprintf(found, sizeof found, "is \"%s\"",
                 uni_show(shown, sizeof shown, json_string_value(role), (int64_t)json_string_length(role)));
        return bad(r, key, found,
                   "needle, distractor, question, haystack or special (the answer has a key of its own)");
    }
    span->role = roles[k];
    if (value == NULL || json_is_null(value)) return AG_OK;
    snprintf(key, sizeof key, "%s.value", where);
    if (span->role != AG_ROLE_NEEDLE && span->role != AG_ROLE_DISTRACTOR)
        return bad(r, key, "given for another role", "a value only in needles and distractors");
    if (json_array_size(value) != 2)
        return bad(r, key, json_is_array(value) ? "is no pair" : kind(value), "[start, end]");
    AG_TRY(read_position(&span->value_begin, r, json_array_get(value, 0), prompt, key));
    AG_TRY(read_position(&span->value_end, r, json_array_get(value, 1), prompt, key));
    if (span->value_begin >= span->value_end || span->value_begin < span->begin || span->value_end > span->end) {
        snprintf(found, sizeof found, "runs from %lld to %lld", (long long)span->value_begin,
                 (long long)span->value_end);
        return bad(r, key, found, "a range inside its span, start before end");
    }
fail:
    return status;
}

static enum ag_status read_prompt(struct prompt *prompt, const struct reader *r, json_t *object) {
    enum ag_status status = AG_OK;
    static const char *const keys[] = {"id", "text", "spans", "answer", "twin", NULL};
    int64_t n;
    if (!json_is_object(object)) return bad(r, "the line", kind(object), "an object");
    AG_TRY(only_keys(r, object, keys, "the line"));
    AG_TRY(read_text(&prompt->id, &n, r, object, "id", false));
    AG_TRY(read_text(&prompt->text, &prompt->text_bytes, r, object, "text", false));
    AG_TRY(read_text(&prompt->answer, &n, r, object, "answer", true));
    AG_TRY(read_text(&prompt->twin, &n, r, object, "twin", true));
    json_t *spans = json_object_get(object, "spans");
    if (spans != NULL && !json_is_null(spans) && !json_is_array(spans)) return bad(r, "spans", kind(spans), "a list");
    prompt->n_spans = (int64_t)json_array_size(spans);
    prompt->spans = AG_NEW(r->prompts->arena, struct prompt_span, prompt->n_spans, r->err);
    if (prompt->spans == NULL) return AG_E_MEMORY;
    for (int64_t k = 0; k < prompt->n_spans; k++)
        AG_TRY(read_span(&prompt->spans[k], r, json_array_get(spans, (size_t)k), prompt, (size_t)k));
fail:
    return status;
}

/* Index of the prompt with this id by open addressing; slots hold indices, -1 free. */
static int64_t *id_slot(int64_t *slots, uint64_t mask, const struct prompts *prompts, const char *id) {
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *c = id; *c != '\0'; c++) h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    h ^= h >> 32;
    while (slots[h & mask] >= 0 && strcmp(prompts->data[slots[h & mask]].id, id) != 0) h++;
    return &slots[h & mask];
}

/* Unique ids; twins that exist and point back. */
static enum ag_status link_twins(struct reader *r, struct ag_arena *scratch) {
    struct prompts *prompts = r->prompts;
    uint64_t slots = 16;
    char shown[UNI_SHOW], found[160];
    while (slots < 2 * (uint64_t)prompts->P) slots *= 2;
    int64_t *table = AG_NEW(scratch, int64_t, (int64_t)slots, r->err);
    if (table == NULL) return AG_E_MEMORY;
    memset(table, 0xff, slots * sizeof *table);
    for (int64_t p = 0; p < prompts->P; p++) {
        const struct prompt *prompt = &prompts->data[p];
        int64_t *slot = id_slot(table, slots - 1, prompts, prompt->id);
        r->line = prompt->line;
        if (*slot >= 0) {
            snprintf(found, sizeof found, "\"%s\" is the id of line %lld already",
                     uni_show(shown, sizeof shown, prompt->id, (int64_t)strlen(prompt->id)),
                     (long long)prompts->data[*slot].line);
            return bad(r, "id", found, "ids that are unique");
        }
        *slot = p;
    }
    for (int64_t p = 0; p < prompts->P; p++) {
        struct prompt *prompt = &prompts->data[p];
        prompt->twin_index = -1;
        if (prompt->twin == NULL) continue;
        r->line = prompt->line;
        uni_show(shown, sizeof shown, prompt->twin, (int64_t)strlen(prompt->twin));
        int64_t twin = *id_slot(table, slots - 1, prompts, prompt->twin);
        if (twin < 0) {
            snprintf(found, sizeof found, "the file has no prompt \"%s\"", shown);
            return bad(r, "twin", found, "the id of another prompt of the file");
        }
        const struct prompt *other = &prompts->data[twin];
        if (twin == p || other->twin == NULL || strcmp(other->twin, prompt->id) != 0) {
            snprintf(found, sizeof found, "\"%s\" (line %lld) %s", shown, (long long)other->line,
                     twin == p ? "is the prompt itself" : "does not name this prompt as its twin");
            return bad(r, "twin", found, "two prompts that name each other");
        }
        prompt->twin_index = twin;
    }
    return AG_OK;
}

/* All lines of a file; data holds as many prompts as there are lines. */
static enum ag_status read_lines(struct reader *r, const char *text, int64_t size) {
    enum ag_status status = AG_OK;
    const char *end = text + size;
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
    if (size >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0)) {
        r->line = 1;
        return bad(r, "the file", "is UTF-16", "UTF-8");
    }
    for (const char *next; text < end; text = next) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((newline != NULL ? newline : end) - text);
        next = newline != NULL ? newline + 1 : end;
        r->line++;
        if (strspn(text, " \t\r") >= n) continue; /* the file ends in a NUL, or the line in its newline */
        if ((int64_t)n > MAX_LINE) {
            char found[64];
            snprintf(found, sizeof found, "has %zu bytes", n);
            return bad(r, "the line", found, "at most 64 MiB (one prompt a line)");
        }
        int64_t invalid = uni_invalid(text, (int64_t)n);
        if (invalid < (int64_t)n) {
            char found[64];
            snprintf(found, sizeof found, "byte %lld is not valid UTF-8", (long long)invalid);
            return bad(r, "the line", found, "UTF-8");
        }
        json_error_t problem;
        json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &problem);
        if (object == NULL) {
            char shown[192], found[256];
            snprintf(found, sizeof found, "not valid JSON at byte %d: %s", problem.position,
                     uni_show(shown, sizeof shown, problem.text, (int64_t)strlen(problem.text)));
            return bad(r, "the line", found, "one JSON object a line");
        }
        struct prompt *prompt = &r->prompts->data[r->prompts->P];
        prompt->line = r->line;
        status = read_prompt(prompt, r, object);
        json_decref(object);
        if (status != AG_OK) return status;
        r->prompts->P++;
    }
    if (r->prompts->P == 0)
        return ag_fail(r->err, AG_E_FORMAT, "%s: holds no prompt; expected one JSON object a line", r->prompts->path);
    return AG_OK;
}

enum ag_status prompts_open(struct prompts **out, const char *path, struct ag_error *err) {
    enum ag_status status = AG_OK;
    *out = NULL;
    struct ag_arena *arena = ag_arena_new("prompts"), *scratch = ag_arena_new("prompt file");
    const char *text;
    size_t size;
    if (arena == NULL || scratch == NULL) AG_TRY(ag_fail(err, AG_E_MEMORY, "out of memory: prompts"));
    struct prompts *prompts = AG_ZEROS(arena, struct prompts, 1, err);
    if (prompts == NULL) AG_TRY(AG_E_MEMORY);
    prompts->arena = arena;
    if ((prompts->path = ag_arena_text(arena, path, strlen(path), err)) == NULL) AG_TRY(AG_E_MEMORY);
    AG_TRY(ag_file_text(&text, &size, path, MAX_FILE, scratch, err));
    AG_TRY(ag_sha256_bytes(prompts->sha256, text, size, err));
    int64_t lines = 1;
    for (const char *c = text; (c = memchr(c, '\n', (size_t)(text + size - c))) != NULL; c++) lines++;
    prompts->data = AG_ZEROS(arena, struct prompt, lines, err);
    if (prompts->data == NULL) AG_TRY(AG_E_MEMORY);
    struct reader reader = {prompts, 0, err};
    AG_TRY(read_lines(&reader, text, (int64_t)size));
    AG_TRY(link_twins(&reader, scratch));
    ag_arena_free(scratch);
    *out = prompts;
    return AG_OK;
fail:
    ag_arena_free(scratch);
    ag_arena_free(arena);
    return status;
}

void prompts_close(struct prompts *prompts) {
    if (prompts != NULL) ag_arena_free(prompts->arena);
}
