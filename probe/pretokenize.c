/* probe/pretokenize.c: each branch of the regular expressions as a few lines of C, tried in the order of the pattern.
 * Why not a regular expression engine: its tables of L and N would depend on the engine's version, and it is slower. */
#include "probe/pretokenize.h"

#include <stddef.h>

#include "probe/unicode.h"

const char *const pattern_names[PATTERN_COUNT + 1] = {"gpt-2", "smollm", "qwen2", "llama-bpe", "qwen35", NULL};

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define QWEN(letters, numbers, not_other)                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" numbers "| ?[^\\s" not_other                    \
    "]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
const char *const pattern_regex[PATTERN_COUNT] = {
    GPT2,
    GPT2,
    QWEN("\\p{L}", "\\p{N}", "\\p{L}\\p{N}"),
    QWEN("\\p{L}", "\\p{N}{1,3}", "\\p{L}\\p{N}"),
    QWEN("[\\p{L}\\p{M}]", "\\p{N}", "\\p{L}\\p{M}\\p{N}"),
};

/* Class of the character at i < end, and its length. */
static inline unsigned class_at(const char *s, int64_t i, int *length) {
    unsigned char c = (unsigned char)s[i];
    if (c < 0x80) return *length = 1, uni_ascii[c];
    return uni_class(uni_decode(s + i, length));
}

/* End of the run of characters from i whose class has one of the bits (run_without: none of them). */
static inline int64_t run_of(const char *s, int64_t i, int64_t end, unsigned bits) {
    int length;
    while (i < end && (class_at(s, i, &length) & bits) != 0) i += length;
    return i;
}
static inline int64_t run_without(const char *s, int64_t i, int64_t end, unsigned bits) {
    int length;
    while (i < end && (class_at(s, i, &length) & bits) == 0) i += length;
    return i;
}

/* Bytes of 's 't 're 've 'm 'll 'd at i, where an apostrophe is; 0: none. fold: in any case, and U+017F, which folds to
 * s. */
static int contraction(const char *s, int64_t i, int64_t end, bool fold) {
    if (end - i < 2) return 0;
    int lower = fold ? 0x20 : 0;
    char a = (char)(s[i + 1] | ((unsigned char)s[i + 1] < 0x80 ? lower : 0));
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (end - i < 3) return 0;
    if (fold && (unsigned char)a == 0xc5 && (unsigned char)s[i + 2] == 0xbf) return 3;
    char b = (char)(s[i + 2] | ((unsigned char)s[i + 2] < 0x80 ? lower : 0));
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ on the run of blanks [i, run_end). */
static int64_t blanks(const char *s, int64_t i, int64_t run_end, int64_t end) {
    if (run_end == end) return run_end;
    int64_t last = uni_before(s, run_end);
    return last > i ? last : run_end;
}

static int64_t gpt2_end(const char *s, int64_t i, int64_t end) {
    int length;
    if (s[i] == '\'') {
        int n = contraction(s, i, end, false);
        if (n > 0) return i + n;
    }
    int64_t j = i;
    if (s[i] == ' ' && i + 1 < end && (class_at(s, i + 1, &length) & UNI_SPACE) == 0) j = i + 1;
    unsigned bits = class_at(s, j, &length);
    if (bits & UNI_L) return run_of(s, j + length, end, UNI_L);
    if (bits & UNI_N) return run_of(s, j + length, end, UNI_N);
    if ((bits & UNI_SPACE) == 0) return run_without(s, j + length, end, UNI_SPACE | UNI_L | UNI_N);
    return blanks(s, i, run_of(s, i, end, UNI_SPACE), end);
}

/* The qwen2 family: most digits in one piece, and the classes that count as letters. */
static int64_t qwen_end(const char *s, int64_t i, int64_t end, int digits, unsigned letters) {
    int length, length2;
    if (s[i] == '\'') {
        int n = contraction(s, i, end, true);
        if (n > 0) return i + n;
    }
    unsigned bits = class_at(s, i, &length);
    if (bits & letters) return run_of(s, i + length, end, letters);
    if (bits & UNI_N) {
        int64_t j = i + length;
        for (int k = 1; k < digits && j < end && (class_at(s, j, &length) & UNI_N); k++) j += length;
        return j;
    }
    bool more = i + length < end;
    unsigned next = more ? class_at(s, i + length, &length2) : 0;
    if (more && (bits & UNI_CRLF) == 0 && (next & letters) != 0) return run_of(s, i + length + length2, end, letters);
    unsigned not_other = UNI_SPACE | UNI_N | letters;
    if ((bits & UNI_SPACE) == 0 || (s[i] == ' ' && more && (next & not_other) == 0))
        return run_of(s, run_without(s, i + length, end, not_other), end, UNI_CRLF);
    int64_t run_end = i, last_break = -1;
    while (run_end < end && ((bits = class_at(s, run_end, &length)) & UNI_SPACE) != 0) {
        run_end += length;
        if (bits & UNI_CRLF) last_break = run_end;
    }
    return last_break >= 0 ? last_break : blanks(s, i, run_end, end);
}

bool pieces_next(struct pieces *p) {
    if (p->end >= p->n) return false;
    int64_t i = p->begin = p->end;
    switch (p->pattern) {
    case PATTERN_SMOLLM:
        if (i >= p->limit) { /* stage 1: single digits, and what lies between them */
            int length;
            if (uni_digit(uni_decode(p->text + i, &length))) {
                p->limit = i + length;
            } else {
                p->limit = i + length;
                while (p->limit < p->n && !uni_digit(uni_decode(p->text + p->limit, &length))) p->limit += length;
            }
        }
        p->end = gpt2_end(p->text, i, p->limit);
        break;
    case PATTERN_QWEN2:
        p->end = qwen_end(p->text, i, p->n, 1, UNI_L);
        break;
    case PATTERN_LLAMA3:
        p->end = qwen_end(p->text, i, p->n, 3, UNI_L);
        break;
    case PATTERN_QWEN35:
        p->end = qwen_end(p->text, i, p->n, 1, UNI_L | UNI_M);
        break;
    case PATTERN_GPT2:
    default:
        p->end = gpt2_end(p->text, i, p->n);
        break;
    }
    return true;
}
