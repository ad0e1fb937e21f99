#include "probe/select.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum ag_status select_shard(struct prompts *out, const struct prompts *prompts, const char *text,
                            struct ag_arena *arena, struct ag_error *err) {
    int64_t i = 0, n = 0, P = prompts->P, kept = 0, units = 0, unit = 0;
    int used = 0;
    if (text[0] < '0' || text[0] > '9' || sscanf(text, "%6" SCNd64 "/%6" SCNd64 "%n", &i, &n, &used) != 2 ||
        text[used] || i < 1 || i > n)
        return ag_fail(err, AG_E_USAGE, "--shard: '%s' is not usable; expected i/n with 1 <= i <= n, such as 1/4",
                       text);
    bool *mine = AG_ZEROS(arena, bool, P, err);
    int64_t *index = AG_NEW(arena, int64_t, P, err);
    struct prompt *data = AG_NEW(arena, struct prompt, P, err);
    if (!mine || !index || !data) return AG_E_MEMORY;
    /* A unit (a twin pair, or a prompt alone) stands where its first prompt does. */
    for (int64_t p = 0; p < P; p++) units += prompts->data[p].twin_index < 0 || prompts->data[p].twin_index > p;
    for (int64_t p = 0; p < P; p++) {
        int64_t twin = prompts->data[p].twin_index;
        if (twin >= 0 && twin < p) continue;
        mine[p] = unit++ * n / units == i - 1;
        if (twin >= 0) mine[twin] = mine[p];
    }
    for (int64_t p = 0; p < P; p++) {
        if (!mine[p]) continue;
        index[p] = kept;
        data[kept++] = prompts->data[p];
    }
    if (!kept)
        return ag_fail(err, AG_E_USAGE,
                       "--shard %s: this share of the %" PRId64 " prompts of %s is empty; use fewer shares", text, P,
                       prompts->path);
    for (int64_t k = 0; k < kept; k++)
        if (data[k].twin_index >= 0) data[k].twin_index = index[data[k].twin_index];
    *out = *prompts;
    out->data = data;
    out->P = kept;
    return AG_OK;
}

static enum ag_status rubbish(const char *item, size_t n, struct ag_error *err) {
    return ag_fail(
        err, AG_E_USAGE,
        "--positions: '%.*s' is not usable; expected a list of roles (needle, distractor, haystack, question, "
        "answer, special), value, last, retrieve, and positions inside a prompt such as 0-63",
        n > 100 ? 100 : (int)n, item);
}

static enum ag_status one_item(bool *mask, const struct ag_tokens *tokens, const char *item, size_t n,
                               struct ag_error *err) {
    char word[32];
    int role = -1;
    if (n == 0 || n >= sizeof word) return rubbish(item, n, err);
    memcpy(word, item, n);
    word[n] = 0;
    for (int r = 0; r < AG_ROLE_COUNT; r++)
        if (!strcmp(word, ag_role_names[r])) role = r;
    bool value = !strcmp(word, "value"), last = !strcmp(word, "last"), retrieve = !strcmp(word, "retrieve");
    int64_t from = -1, to = -1, longest = 0;
    if (role < 0 && !value && !last && !retrieve) {
        char *end;
        if (*word < '0' || *word > '9') return rubbish(item, n, err);
        errno = 0;
        from = to = strtoll(word, &end, 10);
        if (*end == '-' && end[1] >= '0' && end[1] <= '9') to = strtoll(end + 1, &end, 10);
        if (*end || errno) return rubbish(item, n, err);
        for (int64_t p = 0; p < tokens->P; p++) {
            int64_t length = tokens->offsets[p + 1] - tokens->offsets[p];
            longest = length > longest ? length : longest;
        }
        if (from > to || to >= longest)
            return ag_fail(err, AG_E_USAGE,
                           "--positions: %s is out of range; expected rising numbers from 0 to %" PRId64
                           " (the longest prompt has %" PRId64 " tokens)",
                           word, longest - 1, longest);
    }
    for (int64_t p = 0; p < tokens->P; p++) {
        int64_t begin = tokens->offsets[p], end = tokens->offsets[p + 1], final = end - 1;
        while (last && final > begin && tokens->role[final] == AG_ROLE_ANSWER) final--;
        if (last) mask[final] = true;
        if (retrieve) {
            int64_t queries[256], found = prompt_queries(queries, 256, tokens, p);
            for (int64_t q = 0; q < found && q < 256; q++) mask[begin + queries[q]] = true;
        }
        for (int64_t t = begin; t < end; t++)
            if ((role >= 0 && tokens->role[t] == role) || (value && tokens->value[t]) ||
                (from >= 0 && t - begin >= from && t - begin <= to))
                mask[t] = true;
    }
    return AG_OK;
}

enum ag_status select_positions(bool *mask, const struct ag_tokens *tokens, const char *text, struct ag_error *err) {
    memset(mask, 0, (size_t)tokens->T * sizeof *mask);
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        enum ag_status status = one_item(mask, tokens, at, n, err);
        if (status != AG_OK) return status;
        at += n;
        if (!*at) break;
    }
    for (int64_t t = 0; t < tokens->T; t++)
        if (mask[t]) return AG_OK;
    return ag_fail(err, AG_E_USAGE, "--positions: %s selects no token of these prompts", text);
}

enum ag_status select_bytes(int64_t *bytes, const char *text, const char *option, struct ag_error *err) {
    static const char units[] = "kMGT";
    char *end = NULL;
    errno = 0;
    double value = *text >= '0' && *text <= '9' ? strtod(text, &end) : -1;
    if (end && *end) {
        const char *unit = *end == 'K' ? units : strchr(units, *end);
        for (const char *u = units; unit && u <= unit; u++) value *= 1000;
        if (unit) end++;
        if (*end == 'B') end++;
    }
    if (!end || *end || errno || !(value >= 1) || value > 9e18)
        return ag_fail(err, AG_E_USAGE, "--%s: '%s' is not usable; expected a size such as 800M or 4G", option, text);
    *bytes = (int64_t)value;
    return AG_OK;
}
