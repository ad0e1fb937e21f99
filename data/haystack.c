/* data/haystack.c: from a text to a list of distinct sentences. */
#include "data/haystack.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/embed.h"
#include "base/file.h"

AG_EMBED(embedded_haystack, "data/haystack.txt");

/* ---- characters ------------------------------------------------------------------------------------------------- */

/* ASCII only: a no-break space is there to keep words together. */
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }

static enum ag_status check_text(const char *text, size_t n, const char *name, struct ag_error *err) {
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &c);
        if (length <= 0)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: byte %zu (0x%02x) is not valid UTF-8; a haystack is UTF-8 text; convert it", name, i,
                           (unsigned char)text[i]);
        if ((c < 0x20 && !is_blank((char)c)) || c == 0x7F)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: byte %zu is the control character 0x%02x; a haystack is plain text, not a binary file",
                           name, i, (unsigned)c);
        i += (size_t)length;
    }
    return AG_OK;
}

/* Length in bytes of the mark at p when it is one of a NUL-terminated list of strings, else 0. */
static size_t one_of(const char *p, const char *const *marks) {
    for (; *marks; marks++)
        if (!strncmp(p, *marks, strlen(*marks))) return strlen(*marks);
    return 0;
}
static const char *const closers[] = {"\"", "'", ")", "]", "\xE2\x80\x9D", "\xE2\x80\x99", "\xC2\xBB", NULL};
static const char *const cjk_stops[] = {"\xE3\x80\x82", "\xEF\xBC\x81", "\xEF\xBC\x9F", NULL};

/* The full stop at text[at] belongs to an initial ("J.") or an abbreviation ("Dr."). */
static bool is_abbreviation(const char *text, size_t start, size_t at) {
    static const char *const known[] = {"Mr",  "Mrs",  "Ms",     "Dr",  "Prof", "St", "Rev", "Gen",
                                        "Col", "Capt", "Lt",     "Jr",  "Sr",   "vs", "cf",  "e.g",
                                        "i.e", "etc",  "approx", "Fig", "fig",  "No", NULL};
    size_t begin = at;
    while (begin > start && text[begin - 1] != ' ' && text[begin - 1] != '(' && text[begin - 1] != '"') begin--;
    size_t n = at - begin;
    if (n == 1 && isupper((unsigned char)text[begin]) && text[begin] != 'I') return true;
    for (const char *const *word = known; *word; word++)
        if (strlen(*word) == n && !memcmp(text + begin, *word, n)) return true;
    return false;
}

/* ---- sentences -------------------------------------------------------------------------------------------------- */

/* End of the sentence that starts at `start` of one paragraph, whose blanks are single: an offset <= n. before_small: a
 * full stop ends a sentence before a small letter too. */
static size_t sentence_end(const char *text, size_t start, size_t n, bool before_small) {
    for (size_t i = start; i < n;) {
        size_t stop = one_of(text + i, cjk_stops), at = i;
        bool cjk = stop > 0;
        if (!cjk && (text[i] == '.' || text[i] == '!' || text[i] == '?')) stop = 1;
        if (!stop) {
            i++;
            continue;
        }
        i += stop;
        while (i < n && (text[i] == '.' || text[i] == '!' || text[i] == '?')) i++;
        for (size_t closer; i < n && (closer = one_of(text + i, closers)) > 0;) i += closer;
        if (i >= n || cjk) return i < n ? i : n;
        if (text[i] != ' ' || (!before_small && islower((unsigned char)text[i + 1]))) continue;
        if (text[at] == '.' && is_abbreviation(text, start, at)) continue;
        return i;
    }
    return n;
}

static bool has_letter(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (isalnum((unsigned char)text[i]) || (unsigned char)text[i] >= 0x80) return true;
    return false;
}

struct piece {
    const char *text;
    int64_t index;
};
static int compare_pieces(const void *a, const void *b) {
    const struct piece *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* Leaves only the first of equal sentences, in the order of the file. */
static enum ag_status drop_repeated(struct haystack *haystack, struct ag_arena *arena, struct ag_error *err) {
    struct ag_mark mark = ag_arena_mark(arena);
    struct piece *sorted = AG_NEW(arena, struct piece, haystack->n, err);
    if (!sorted) return AG_E_MEMORY;
    for (int64_t i = 0; i < haystack->n; i++) sorted[i] = (struct piece){haystack->sentence[i], i};
    qsort(sorted, (size_t)haystack->n, sizeof *sorted, compare_pieces);
    for (int64_t i = haystack->n - 1; i > 0; i--)
        if (!strcmp(sorted[i].text, sorted[i - 1].text)) haystack->sentence[sorted[i].index] = NULL;
    int64_t kept = 0;
    for (int64_t i = 0; i < haystack->n; i++)
        if (haystack->sentence[i]) haystack->sentence[kept++] = haystack->sentence[i];
    haystack->repeated = haystack->n - kept;
    haystack->n = kept;
    ag_arena_release(arena, mark);
    return AG_OK;
}

/* The sentences joined by blanks, as written and in small letters. */
static enum ag_status join(struct haystack *haystack, size_t bytes, struct ag_arena *arena, struct ag_error *err) {
    char *text = AG_NEW(arena, char, (int64_t)bytes + haystack->n + 1, err);
    if (!text) return AG_E_MEMORY;
    size_t at = 0;
    for (int64_t i = 0; i < haystack->n; i++) {
        size_t n = strlen(haystack->sentence[i]);
        if (i) text[at++] = ' ';
        memcpy(text + at, haystack->sentence[i], n);
        at += n;
    }
    text[at] = 0;
    char *lower = ag_arena_text(arena, text, at, err);
    if (!lower) return AG_E_MEMORY;
    for (size_t i = 0; i < at; i++) lower[i] = (char)tolower((unsigned char)lower[i]);
    haystack->text = text;
    haystack->lower = lower;
    return AG_OK;
}

/* Reads the paragraph at *at, makes its blanks single in `line`, and returns how many sentences it has; where `out` is
 * given they are copied to *pool, which moves on. */
static int64_t paragraph(const char *text, size_t n, size_t *at, char *line, bool before_small, const char **out,
                         char **pool) {
    size_t length = 0, i = *at;
    int64_t found = 0;
    for (int breaks = 0; i < n && breaks < 2; i++) {
        if (is_blank(text[i])) {
            breaks += text[i] == '\n';
            if (length && line[length - 1] != ' ') line[length++] = ' ';
        } else {
            breaks = 0;
            line[length++] = text[i];
        }
    }
    *at = i;
    while (length && line[length - 1] == ' ') length--;
    line[length] = 0;
    for (size_t start = 0, end; start < length; start = end < length && line[end] == ' ' ? end + 1 : end) {
        end = sentence_end(line, start, length, before_small);
        if (!has_letter(line + start, end - start)) continue;
        if (out) {
            memcpy(*pool, line + start, end - start);
            (*pool)[end - start] = 0;
            out[found] = *pool;
            *pool += end - start + 1;
        }
        found++;
    }
    return found;
}

enum ag_status haystack_parse(struct haystack *out, const char *text, size_t n, const char *name,
                              struct ag_arena *arena, struct ag_error *err) {
    enum ag_status status;
    if (n >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) text += 3, n -= 3;
    *out = (struct haystack){.path = name};
    AG_TRY(check_text(text, n, name, err));

    /* Twice over the text: count the sentences, then keep them. A paragraph is normalised in place in `line`. Prose has
     * a sentence in every few lines; a text without is taken for one that writes no capitals, and counted anew. */
    char *line = AG_NEW(arena, char, (int64_t)n + 1, err), *pool = NULL;
    if (!line) return AG_E_MEMORY;
    int64_t found = 0;
    bool small = false;
    for (size_t i = 0; i < n;) found += paragraph(text, n, &i, line, small, NULL, NULL);
    if (found < 2 || found < (int64_t)(n / 400)) {
        small = true;
        found = 0;
        for (size_t i = 0; i < n;) found += paragraph(text, n, &i, line, small, NULL, NULL);
    }
    if (!found)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: no sentence found in %zu bytes; a haystack is prose whose sentences end with . ! or ?",
                       name, n);
    out->sentence = AG_NEW(arena, const char *, found, err);
    pool = AG_NEW(arena, char, (int64_t)n + found, err);
    if (!out->sentence || !pool) return AG_E_MEMORY;
    for (size_t i = 0; i < n;) out->n += paragraph(text, n, &i, line, small, out->sentence + out->n, &pool);
    AG_TRY(drop_repeated(out, arena, err));
    AG_TRY(join(out, n, arena, err));
    return AG_OK;
fail:
    return status;
}

enum ag_status haystack_open(struct haystack *out, const char *path, struct ag_arena *arena, struct ag_error *err) {
    if (!path)
        return haystack_parse(out, embedded_haystack, (size_t)(embedded_haystack_end - embedded_haystack),
                              "the built-in haystack", arena, err);
    const char *text;
    size_t size;
    enum ag_status status = ag_file_text(&text, &size, path, HAYSTACK_LIMIT, arena, err);
    return status == AG_OK ? haystack_parse(out, text, size, path, arena, err) : status;
}
