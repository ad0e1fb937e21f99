/* probe/unicode.c: character classes, UTF-8 and NFC. See unicode.h. */
#include "probe/unicode.h"

#include <string.h>
#include <utf8proc.h>

#define O 0
#define S UNI_SPACE
#define C (UNI_SPACE | UNI_CRLF)
#define N UNI_N
#define L UNI_L
const uint8_t uni_ascii[128] = {
    O, O, O, O, O, O, O, O, O, S, C, S, S, C, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, //
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O, //
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O, //
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};
#undef O
#undef S
#undef C
#undef N
#undef L

/* Letters, numbers and marks that Unicode 15.1 and 16 added (UnicodeData), ascending. Asked only where the installed
 * utf8proc says "unassigned". */
static const struct range {
    int32_t first, last;
    uint8_t bits;
} later[] = {
    {0x0897, 0x0897, UNI_M},   {0x1c89, 0x1c8a, UNI_L},   {0xa7cb, 0xa7cd, UNI_L},   {0xa7da, 0xa7dc, UNI_L},
    {0x105c0, 0x105f3, UNI_L}, {0x10d40, 0x10d49, UNI_N}, {0x10d4a, 0x10d65, UNI_L}, {0x10d69, 0x10d6d, UNI_M},
    {0x10d6f, 0x10d85, UNI_L}, {0x10ec2, 0x10ec4, UNI_L}, {0x10efc, 0x10efc, UNI_M}, {0x11380, 0x11389, UNI_L},
    {0x1138b, 0x1138b, UNI_L}, {0x1138e, 0x1138e, UNI_L}, {0x11390, 0x113b5, UNI_L}, {0x113b7, 0x113b7, UNI_L},
    {0x113b8, 0x113c0, UNI_M}, {0x113c2, 0x113c2, UNI_M}, {0x113c5, 0x113c5, UNI_M}, {0x113c7, 0x113ca, UNI_M},
    {0x113cc, 0x113d0, UNI_M}, {0x113d1, 0x113d1, UNI_L}, {0x113d2, 0x113d2, UNI_M}, {0x113d3, 0x113d3, UNI_L},
    {0x113e1, 0x113e2, UNI_M}, {0x116d0, 0x116e3, UNI_N}, {0x11bc0, 0x11be0, UNI_L}, {0x11bf0, 0x11bf9, UNI_N},
    {0x11f5a, 0x11f5a, UNI_M}, {0x13460, 0x143fa, UNI_L}, {0x16100, 0x1611d, UNI_L}, {0x1611e, 0x1612f, UNI_M},
    {0x16130, 0x16139, UNI_N}, {0x16d40, 0x16d6c, UNI_L}, {0x16d70, 0x16d79, UNI_N}, {0x18cff, 0x18cff, UNI_L},
    {0x1ccf0, 0x1ccf9, UNI_N}, {0x1e5d0, 0x1e5ed, UNI_L}, {0x1e5ee, 0x1e5ef, UNI_M}, {0x1e5f0, 0x1e5f0, UNI_L},
    {0x1e5f1, 0x1e5fa, UNI_N}, {0x2ebf0, 0x2ee5d, UNI_L},
};

static unsigned later_class(int32_t cp) {
    size_t low = 0, high = sizeof later / sizeof later[0];
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > later[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < sizeof later / sizeof later[0] && cp >= later[low].first ? later[low].bits : 0;
}

static bool is_space(int32_t cp) {
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

unsigned uni_class(int32_t cp) {
    if (cp < 128) return uni_ascii[cp];
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return UNI_L;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return UNI_N;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return UNI_M;
    case UTF8PROC_CATEGORY_CN:
        return later_class(cp);
    default:
        return is_space(cp) ? UNI_SPACE : 0;
    }
}

bool uni_digit(int32_t cp) {
    return (uni_class(cp) & UNI_N) != 0 || (cp >= 0x11de0 && cp <= 0x11de9) || (cp >= 0x16ff4 && cp <= 0x16ff6);
}

bool uni_word(int32_t cp) {
    if (cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
        (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189))
        return true;
    utf8proc_category_t category = utf8proc_category(cp);
    if (category == UTF8PROC_CATEGORY_PC) return true;
    unsigned bits = uni_class(cp);
    return (bits & (UNI_L | UNI_M)) != 0 || ((bits & UNI_N) != 0 && category != UTF8PROC_CATEGORY_NO);
}

int uni_encode(char out[4], int32_t cp) { return (int)utf8proc_encode_char(cp, (utf8proc_uint8_t *)out); }

int64_t uni_invalid(const char *s, int64_t n) {
    const unsigned char *u = (const unsigned char *)s;
    int64_t i = 0;
    while (i < n) {
        uint64_t eight;
        while (i + 8 <= n && (memcpy(&eight, u + i, 8), (eight & 0x8080808080808080u) == 0)) i += 8;
        if (i == n) break;
        unsigned c = u[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        int more = c >= 0xc2 && c <= 0xdf ? 1 : (c & 0xf0) == 0xe0 ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 0;
        if (more == 0 || n - i <= more) return i;
        unsigned low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        if (u[i + 1] < low || u[i + 1] > high) return i;
        for (int k = 2; k <= more; k++)
            if ((u[i + k] & 0xc0) != 0x80) return i;
        i += more + 1;
    }
    return n;
}

const char *uni_show(char *out, size_t size, const char *s, int64_t n) {
    int64_t length = n, used = 0, most = (int64_t)size - 4;
    if (n > most) {
        length = most;
        while (length > most - 4 && ((unsigned char)s[length] & 0xc0) == 0x80) length--;
    }
    while (used < length) {
        int64_t valid = uni_invalid(s + used, length - used);
        for (int64_t i = used; i < used + valid; i++) out[i] = (unsigned char)s[i] < 32 || s[i] == 127 ? '?' : s[i];
        used += valid;
        if (used < length) out[used++] = '?';
    }
    strcpy(out + used, n > length ? "..." : "");
    return out;
}

/* A character that may combine with, or move before, the one in front of it: normalisation never acts across any other
 * place. Besides marks these are the vowels and finals of Hangul and the vowel signs of Kirat Rai. */
static bool joins(int32_t cp) {
    return cp >= 0x300 && ((uni_class(cp) & UNI_M) != 0 || (cp >= 0x1160 && cp <= 0x11ff) ||
                           (cp >= 0xd7b0 && cp <= 0xd7ff) || (cp >= 0x16d63 && cp <= 0x16d6a));
}

static int combining_class(int32_t cp) { return utf8proc_get_property(cp)->combining_class; }

/* Canonical ordering: runs of marks sorted by combining class, stable. By counting, since a run may be very long. */
static enum ag_status order_marks(int32_t *cp, int64_t n, struct ag_arena *arena, struct ag_error *err) {
    for (int64_t i = 0, end; i < n; i = end) {
        int ccc = combining_class(cp[i]);
        end = i + 1;
        if (ccc == 0) continue;
        bool sorted = true;
        for (int before = ccc, now; end < n && (now = combining_class(cp[end])) != 0; before = now, end++)
            if (now < before) sorted = false;
        if (sorted) continue;
        int64_t at[257] = {0};
        int32_t *copy = AG_NEW(arena, int32_t, end - i, err);
        if (copy == NULL) return AG_E_MEMORY;
        memcpy(copy, cp + i, (size_t)(end - i) * sizeof *cp);
        for (int64_t k = i; k < end; k++) at[combining_class(cp[k]) + 1]++;
        for (int k = 1; k < 257; k++) at[k] += at[k - 1];
        for (int64_t k = 0; k < end - i; k++) cp[i + at[combining_class(copy[k])]++] = copy[k];
    }
    return AG_OK;
}

/* NFC of one stretch that starts where nothing joins to what is before it; its UTF-8 goes to out. */
static enum ag_status compose(char *out, int64_t *n_out, const char *text, int64_t n, struct ag_arena *arena,
                              struct ag_error *err) {
    int32_t *cp = AG_NEW(arena, int32_t, 4 * n, err); /* a character decomposes into 4 at most */
    if (cp == NULL) return AG_E_MEMORY;
    int64_t count = 0;
    for (int64_t i = 0; i < n;) {
        int length;
        utf8proc_ssize_t got = utf8proc_decompose_char(uni_decode(text + i, &length), cp + count,
                                                       (utf8proc_ssize_t)(4 * n - count), UTF8PROC_DECOMPOSE, NULL);
        if (got < 0 || got > 4) return ag_fail(err, AG_E_INTERNAL, "utf8proc: %s", utf8proc_errmsg(got));
        count += got;
        i += length;
    }
    enum ag_status status = order_marks(cp, count, arena, err);
    if (status != AG_OK) return status;
    count = utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (count < 0) return ag_fail(err, AG_E_INTERNAL, "utf8proc: %s", utf8proc_errmsg((utf8proc_ssize_t)count));
    *n_out = 0;
    for (int64_t i = 0; i < count; i++) *n_out += uni_encode(out + *n_out, cp[i]);
    return AG_OK;
}

enum ag_status uni_nfc(struct uni_text *out, const char *text, int64_t n, struct ag_arena *arena,
                       struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct uni_change *changes = NULL;
    int64_t n_changes = 0, capacity = 0, to = 0;
    char *data = NULL;
    *out = (struct uni_text){text, n, NULL, 0};
    int64_t copied = 0; /* of the original */
    for (int64_t i = 0; i < n;) {
        if ((unsigned char)text[i] < 0x80 && (i + 1 == n || (unsigned char)text[i + 1] < 0x80)) {
            i++;
            continue;
        }
        int length;
        int32_t cp = uni_decode(text + i, &length);
        int64_t end = i + length;
        bool single = !joins(cp);
        for (int32_t next; end < n && (unsigned char)text[end] >= 0x80; end += length) {
            next = uni_decode(text + end, &length);
            if (!joins(next)) break;
            single = false;
        }
        if (single && (cp < 0x300 || utf8proc_get_property(cp)->decomp_seqindex == UINT16_MAX)) {
            i = end;
            continue;
        }
        if (data == NULL) { /* canonical composition lengthens UTF-8 at most threefold */
            data = ag_arena_alloc(arena, 3, (size_t)n, err);
            if (data == NULL) return AG_E_MEMORY;
        }
        memcpy(data + to, text + copied, (size_t)(i - copied));
        to += i - copied;
        int64_t bytes = 0;
        struct ag_mark mark = ag_arena_mark(arena);
        AG_TRY(compose(data + to, &bytes, text + i, end - i, arena, err));
        ag_arena_release(arena, mark);
        if (bytes != end - i || memcmp(data + to, text + i, (size_t)bytes) != 0) {
            if (n_changes == capacity) {
                struct uni_change *more = AG_NEW(arena, struct uni_change, 2 * capacity + 16, err);
                if (more == NULL) return AG_E_MEMORY;
                if (n_changes > 0) memcpy(more, changes, (size_t)n_changes * sizeof *more);
                changes = more;
                capacity = 2 * capacity + 16;
            }
            changes[n_changes++] = (struct uni_change){i, end, to, to + bytes};
        }
        to += bytes;
        copied = i = end;
    }
    if (n_changes > 0) {
        memcpy(data + to, text + copied, (size_t)(n - copied));
        *out = (struct uni_text){data, to + n - copied, changes, n_changes};
    }
fail:
    return status;
}

int64_t uni_origin(struct uni_cursor *cursor, int64_t position) {
    const struct uni_text *text = cursor->text;
    while (cursor->next < text->n_changes && position >= text->changes[cursor->next].to_end) {
        cursor->shift = text->changes[cursor->next].from_end - text->changes[cursor->next].to_end;
        cursor->next++;
    }
    if (cursor->next == text->n_changes || position <= text->changes[cursor->next].to) return position + cursor->shift;
    const struct uni_change *c = &text->changes[cursor->next];
    return c->from + (position - c->to) * (c->from_end - c->from) / (c->to_end - c->to);
}
