/* probe/unicode.h: UTF-8, the character classes of the pre-tokenizer patterns, and NFC with byte spans of the original.
 * Categories come from utf8proc; what Unicode 16 added after Debian 12's utf8proc (Unicode 15) is a small table here,
 * so that the classes equal those of the reference library whatever utf8proc is installed. */
#ifndef AG_PROBE_UNICODE_H
#define AG_PROBE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

/* A character is in at most one of L, N, M, SPACE; none of them: "other" (punctuation, symbols, controls, unassigned).
 */
#define UNI_L 1     /* \p{L} */
#define UNI_N 2     /* \p{N}: Nd, Nl, No */
#define UNI_M 4     /* \p{M} */
#define UNI_SPACE 8 /* \s: White_Space, 25 characters; U+001C to U+001F are not among them */
#define UNI_CRLF 16 /* CR or LF; SPACE is set as well */
extern const uint8_t uni_ascii[128];

/* Class bits of a code point. */
unsigned uni_class(int32_t cp);
/* A number to the Digits pre-tokenizer: N, and the numbers that Unicode 17 added (its table is newer than the
 * patterns'). */
bool uni_digit(int32_t cp);
/* \w of the single_word option: letters, marks, decimal and letter numbers, connectors, joiners, other alphabetics. */
bool uni_word(int32_t cp);

/* Code point at s, valid UTF-8; *n its bytes. */
static inline int32_t uni_decode(const char *s, int *n) {
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) return *n = 1, u[0];
    if (u[0] < 0xe0) return *n = 2, (u[0] & 31) << 6 | (u[1] & 63);
    if (u[0] < 0xf0) return *n = 3, (u[0] & 15) << 12 | (u[1] & 63) << 6 | (u[2] & 63);
    return *n = 4, (u[0] & 7) << 18 | (u[1] & 63) << 12 | (u[2] & 63) << 6 | (u[3] & 63);
}
/* Start of the character that ends before position i > 0. */
static inline int64_t uni_before(const char *s, int64_t i) {
    do i--;
    while (i > 0 && ((unsigned char)s[i] & 0xc0) == 0x80);
    return i;
}
/* Bytes written to out (1 to 4). */
int uni_encode(char out[4], int32_t cp);
/* Position of the first byte that is not part of valid UTF-8 (no overlong forms, no surrogates), n when there is none.
 */
int64_t uni_invalid(const char *s, int64_t n);
/* For messages: s as far as it fits into size bytes, cut between characters, controls and invalid bytes as '?'. */
#define UNI_SHOW 48
const char *uni_show(char *out, size_t size, const char *s, int64_t n);

/* A piece of text under NFC. Bytes outside the changes are those of the original, in order. */
struct uni_change {
    int64_t from, from_end; /* bytes of the original */
    int64_t to, to_end;     /* the same in the normalised text */
};
struct uni_text {
    const char *data; /* the original itself when nothing changes */
    int64_t n;
    const struct uni_change *changes; /* ascending */
    int64_t n_changes;
};
/* Canonical composition of n bytes of valid UTF-8; results live in the arena. */
enum ag_status uni_nfc(struct uni_text *out, const char *text, int64_t n, struct ag_arena *arena, struct ag_error *err);

/* Maps ascending byte positions of a normalised text to the original. Inside a changed stretch, where no byte has a
 * counterpart, positions are shared out in proportion: so spans stay non-decreasing and cover every byte. */
struct uni_cursor {
    const struct uni_text *text;
    int64_t next, shift;
};
int64_t uni_origin(struct uni_cursor *cursor, int64_t position);

#endif
