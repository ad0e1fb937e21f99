/* safetensors: u64 N | N bytes of JSON | tensor bytes (spec/checkpoints.md section 1).
 *
 * The header is parsed by a reader of our own that knows the one shape a header may have. It builds no tree, so a
 * hostile header cannot make it use more memory than the header has bytes, and it sees every integer exactly. Strings
 * are unescaped in place: names point into the header, which lives as long as the checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "probe/checkpoint_internal.h"

#define HEADER_LIMIT 100000000u

static const struct {
    const char *name;
    unsigned bits;
    int dtype;
} types[] = {
    {"F32", 32, KERN_F32}, {"F16", 16, KERN_F16},  {"BF16", 16, KERN_BF16}, {"F64", 64, KERN_F64},
    {"F4", 4, -1},         {"F6_E2M3", 6, -1},     {"F6_E3M2", 6, -1},      {"BOOL", 8, -1},
    {"U8", 8, -1},         {"I8", 8, -1},          {"F8_E5M2", 8, -1},      {"F8_E4M3", 8, -1},
    {"F8_E8M0", 8, -1},    {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1},  {"I16", 16, -1},
    {"U16", 16, -1},       {"I32", 32, -1},        {"U32", 32, -1},         {"I64", 64, -1},
    {"U64", 64, -1},       {"C64", 64, -1},
};

struct reader {
    const char *path;
    char *text; /* the header */
    size_t size, at;
    struct ag_error *err;
};

static enum ag_status expected(const struct reader *r, const char *what) {
    char found[16] = "the end";
    if (r->at < r->size) {
        unsigned char c = (unsigned char)r->text[r->at];
        snprintf(found, sizeof found, c > 32 && c < 127 ? "'%c'" : "byte 0x%02x", c);
    }
    return ag_fail(r->err, AG_E_FORMAT, "%s: safetensors header, byte %zu: found %s, expected %s; the file is damaged",
                   r->path, r->at, found, what);
}

static void skip_blanks(struct reader *r) {
    while (r->at < r->size && strchr(" \t\n\r", r->text[r->at]) && r->text[r->at]) r->at++;
}
/* Skips blanks and takes c if it comes next. */
static bool accept(struct reader *r, char c) {
    skip_blanks(r);
    if (r->at >= r->size || r->text[r->at] != c) return false;
    r->at++;
    return true;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}
/* Four hex digits after \u; -1: not four. */
static int32_t hex4(struct reader *r) {
    int32_t value = 0;
    if (r->size - r->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(r->text[r->at + (size_t)i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    r->at += 4;
    return value;
}
/* A code point at out: at most 4 bytes, always fewer than its escape had. */
static size_t put_utf8(char *out, uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)(c | (n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0));
    return n;
}

static enum ag_status escape(struct reader *r, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (r->at >= r->size) return expected(r, "an escape");
    char c = r->text[r->at];
    const char *plain = c ? strchr(from, c) : NULL;
    if (plain) {
        r->at++;
        *(*out)++ = to[plain - from];
        return AG_OK;
    }
    if (c != 'u') return expected(r, "an escape of JSON");
    r->at++;
    int32_t high = hex4(r), low = 0;
    if (high >= 0xd800 && high < 0xdc00) {
        if (r->size - r->at < 6 || r->text[r->at] != '\\' || r->text[r->at + 1] != 'u') {
            return expected(r, "the second half of a surrogate pair");
        }
        r->at += 2;
        low = hex4(r);
        if (low < 0xdc00 || low > 0xdfff) return expected(r, "the second half of a surrogate pair");
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    } else if (high <= 0 || (high >= 0xdc00 && high < 0xe000)) {
        return expected(r, "four hex digits of a character");
    }
    *out += put_utf8(*out, (uint32_t)high);
    return AG_OK;
}

/* A string, unescaped in place and NUL-terminated (the closing quote makes room). */
static enum ag_status take_string(struct reader *r, const char **text, size_t *n, const char *what) {
    enum ag_status status;
    if (!accept(r, '"')) return expected(r, what);
    char *start = r->text + r->at, *out = start;
    while (r->at < r->size && r->text[r->at] != '"') {
        unsigned char c = (unsigned char)r->text[r->at];
        if (c < 32) return expected(r, "no control character inside a string");
        r->at++;
        if (c == '\\') {
            AG_TRY(escape(r, &out));
        } else {
            *out++ = (char)c;
        }
    }
    if (r->at >= r->size) return expected(r, "the end of a string");
    r->at++;
    *out = 0;
    *text = start;
    *n = (size_t)(out - start);
    return AG_OK;
fail:
    return status;
}

/* A non-negative integer of at most 64 bits: no sign, fraction, exponent or leading zero. */
static enum ag_status take_u64(struct reader *r, uint64_t *value) {
    uint64_t v = 0;
    skip_blanks(r);
    size_t first = r->at;
    for (; r->at < r->size && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++) {
        uint64_t digit = (uint64_t)(r->text[r->at] - '0');
        if (v > (UINT64_MAX - digit) / 10 || (r->at > first && v == 0)) {
            return expected(r, "a non-negative integer of at most 64 bits");
        }
        v = v * 10 + digit;
    }
    if (r->at == first || (r->at < r->size && strchr(".eE", r->text[r->at]) && r->text[r->at])) {
        return expected(r, "a non-negative integer");
    }
    *value = v;
    return AG_OK;
}

static enum ag_status take_shape(struct reader *r, struct ckpt_tensor *t, const char *name) {
    enum ag_status status;
    if (!accept(r, '[')) return expected(r, "'[' of a shape");
    t->rank = 0;
    if (accept(r, ']')) return AG_OK;
    do {
        uint64_t dim;
        AG_TRY(take_u64(r, &dim));
        if (dim > INT64_MAX) {
            return ag_fail(r->err, AG_E_FORMAT, "%s: tensor '%s': dimension %d is %llu; expected less than 2^63",
                           r->path, name, t->rank, (unsigned long long)dim);
        }
        if (t->rank == 8) {
            return ag_fail(r->err, AG_E_UNSUPPORTED, "%s: tensor '%s' has more than 8 dimensions; at most 8 are read",
                           r->path, name);
        }
        t->shape[t->rank++] = (int64_t)dim;
    } while (accept(r, ','));
    if (!accept(r, ']')) return expected(r, "',' or ']' in a shape");
    return AG_OK;
fail:
    return status;
}

/* The size that shape and dtype give must be the one of the offsets. */
static enum ag_status check_size(const struct reader *r, struct ckpt_tensor *t, unsigned bits, uint64_t begin,
                                 uint64_t end) {
    int64_t elements = 1, total = 0;
    for (int i = 0; i < t->rank; i++) {
        if (!ag_mul(elements, t->shape[i], &elements)) {
            return ag_fail(r->err, AG_E_FORMAT,
                           "%s: tensor '%s': dimension %d (%lld) makes 2^63 elements or more; the file is damaged",
                           r->path, t->name, i, (long long)t->shape[i]);
        }
    }
    if (!ag_mul(elements, (int64_t)bits, &total) || total % 8 != 0) {
        return ag_fail(r->err, AG_E_FORMAT,
                       "%s: tensor '%s': %lld elements of %u bits are no whole number of bytes below 2^60", r->path,
                       t->name, (long long)elements, bits);
    }
    if (end < begin || end - begin != (uint64_t)total / 8) {
        return ag_fail(
            r->err, AG_E_FORMAT,
            "%s: tensor '%s': data_offsets [%llu, %llu] but type %s and shape need %lld bytes; the file is damaged",
            r->path, t->name, (unsigned long long)begin, (unsigned long long)end, t->type, (long long)(total / 8));
    }
    t->elements = elements;
    t->offset = begin;
    t->bytes = end - begin;
    return AG_OK;
}

/* {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} in any order. */
static enum ag_status take_tensor(struct reader *r, struct ckpt_tensor *t) {
    enum ag_status status;
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    unsigned seen = 0, bits = 0;
    uint64_t begin = 0, end = 0;
    size_t n;
    const char *key, *text;
    if (!accept(r, '{')) return expected(r, "'{' of a tensor");
    do {
        AG_TRY(take_string(r, &key, &n, "a key of a tensor"));
        unsigned bit = !strcmp(key, "dtype")          ? DTYPE
                       : !strcmp(key, "shape")        ? SHAPE
                       : !strcmp(key, "data_offsets") ? OFFSETS
                                                      : 0;
        if (bit == 0 || (seen & bit)) {
            return ag_fail(r->err, AG_E_FORMAT,
                           "%s: tensor '%s': %s key '%.40s'; expected dtype, shape and data_offsets once each", r->path,
                           t->name, bit ? "second" : "unknown", key);
        }
        seen |= bit;
        if (!accept(r, ':')) return expected(r, "':'");
        if (bit == DTYPE) {
            AG_TRY(take_string(r, &text, &n, "the name of a type"));
            for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
                if (!strcmp(types[i].name, text)) {
                    t->type = types[i].name;
                    t->dtype = types[i].dtype;
                    bits = types[i].bits;
                }
            }
            if (bits == 0) {
                return ag_fail(
                    r->err, AG_E_UNSUPPORTED,
                    "%s: tensor '%s' has the unknown type '%.40s', so the sizes in this file cannot be checked",
                    r->path, t->name, text);
            }
        } else if (bit == SHAPE) {
            AG_TRY(take_shape(r, t, t->name));
        } else {
            if (!accept(r, '[')) return expected(r, "'[' of data_offsets");
            AG_TRY(take_u64(r, &begin));
            if (!accept(r, ',')) return expected(r, "two numbers in data_offsets");
            AG_TRY(take_u64(r, &end));
            if (!accept(r, ']')) return expected(r, "two numbers in data_offsets");
        }
    } while (accept(r, ','));
    if (!accept(r, '}')) return expected(r, "',' or '}' in a tensor");
    if (seen != (DTYPE | SHAPE | OFFSETS)) {
        return ag_fail(r->err, AG_E_FORMAT, "%s: tensor '%s' lacks %s; the file is damaged", r->path, t->name,
                       !(seen & DTYPE)   ? "dtype"
                       : !(seen & SHAPE) ? "shape"
                                         : "data_offsets");
    }
    return check_size(r, t, bits, begin, end);
fail:
    return status;
}

/* {"key": "text", ...}: checked and dropped; nothing here says anything about the model. */
static enum ag_status take_metadata(struct reader *r) {
    enum ag_status status;
    const char *text;
    size_t n;
    if (!accept(r, '{')) return expected(r, "'{' of __metadata__");
    if (accept(r, '}')) return AG_OK;
    do {
        AG_TRY(take_string(r, &text, &n, "a key of __metadata__"));
        if (!accept(r, ':')) return expected(r, "':'");
        AG_TRY(take_string(r, &text, &n, "a string (all values of __metadata__ are strings)"));
    } while (accept(r, ','));
    if (!accept(r, '}')) return expected(r, "',' or '}' in __metadata__");
    return AG_OK;
fail:
    return status;
}

static enum ag_status take_header(struct reader *r, int file, struct ag_buf *list) {
    enum ag_status status;
    bool metadata = false;
    if (!accept(r, '{')) return expected(r, "'{'");
    if (!accept(r, '}')) {
        do {
            struct ckpt_tensor t = {.file = file};
            size_t n;
            AG_TRY(take_string(r, &t.name, &n, "the name of a tensor"));
            if (!accept(r, ':')) return expected(r, "':'");
            if (!strcmp(t.name, "__metadata__")) {
                if (metadata)
                    return ag_fail(r->err, AG_E_FORMAT, "%s: __metadata__ appears twice; expected once", r->path);
                metadata = true;
                AG_TRY(take_metadata(r));
                continue;
            }
            if (!ckpt_name_valid(t.name, n)) {
                return ag_fail(r->err, AG_E_FORMAT,
                               "%s: safetensors header, byte %zu: a tensor's name holds control characters", r->path,
                               r->at);
            }
            AG_TRY(take_tensor(r, &t));
            AG_TRY(ag_buf_add(list, &t, sizeof t, r->err));
        } while (accept(r, ','));
        if (!accept(r, '}')) return expected(r, "',' or '}'");
    }
    skip_blanks(r);
    if (r->at != r->size) return expected(r, "nothing but blanks after the last '}'");
    return AG_OK;
fail:
    return status;
}

static int by_offset(const void *a, const void *b) {
    const struct ckpt_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Tensors follow one another without gap or overlap, from the start of the data to the end of the file. */
static enum ag_status check_layout(const struct ag_file *file, struct ckpt_tensor *t, int64_t n, uint64_t data,
                                   struct ag_error *err) {
    uint64_t at = 0, room = file->size - data;
    if (n > 0) qsort(t, (size_t)n, sizeof *t, by_offset);
    for (int64_t i = 0; i < n; i++) {
        if (t[i].offset != at) {
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' begins at byte %llu of the data, %s; expected byte %llu",
                           file->path, t[i].name, (unsigned long long)t[i].offset,
                           t[i].offset > at ? "which leaves a hole" : "inside another tensor", (unsigned long long)at);
        }
        if (t[i].bytes > room - at) {
            return ag_fail(
                err, AG_E_FORMAT,
                "%s: cut short: tensor '%s' needs %llu bytes, of which %llu are missing; download the file again",
                file->path, t[i].name, (unsigned long long)t[i].bytes, (unsigned long long)(t[i].bytes - (room - at)));
        }
        at += t[i].bytes;
        t[i].offset += data;
    }
    if (at != room) {
        return ag_fail(err, AG_E_FORMAT, "%s: %llu bytes after the last tensor; expected the end of the file",
                       file->path, (unsigned long long)(room - at));
    }
    return AG_OK;
}

enum ag_status safetensors_read(struct ckpt *ckpt, int file_index, struct ag_buf *list, struct ag_error *err) {
    enum ag_status status;
    const struct ag_file *file = &ckpt->files[file_index];
    uint8_t prefix[8];
    uint64_t n = 0;
    size_t before = list->size;
    if (file->size < 8) {
        return ag_fail(err, AG_E_FORMAT, "%s: %llu bytes; a safetensors file has at least 8", file->path,
                       (unsigned long long)file->size);
    }
    AG_TRY(ag_file_read(file, prefix, 0, 8, err));
    for (int i = 7; i >= 0; i--) n = n << 8 | prefix[i];
    if (n > HEADER_LIMIT || n > file->size - 8) {
        return ag_fail(
            err, AG_E_FORMAT,
            "%s: declares a header of %llu bytes; expected at most %s (%llu): no safetensors file, or cut short",
            file->path, (unsigned long long)n, n > HEADER_LIMIT ? "the format's limit" : "what the file has left",
            n > HEADER_LIMIT ? (unsigned long long)HEADER_LIMIT : (unsigned long long)(file->size - 8));
    }
    struct reader r = {.path = file->path, .size = (size_t)n, .err = err};
    r.text = AG_NEW(ckpt->arena, char, (int64_t)n + 1, err);
    if (!r.text) return AG_E_MEMORY;
    AG_TRY(ag_file_read(file, r.text, 8, n, err));
    r.text[n] = 0;
    if (!ckpt_utf8_valid(r.text, r.size)) {
        return ag_fail(err, AG_E_FORMAT, "%s: the safetensors header is not UTF-8; the file is damaged", file->path);
    }
    AG_TRY(take_header(&r, file_index, list));
    /* list->data is NULL while no tensor was ever added */
    struct ckpt_tensor *mine = list->data ? (struct ckpt_tensor *)(void *)(list->data + before) : NULL;
    AG_TRY(check_layout(file, mine, (int64_t)((list->size - before) / sizeof *mine), 8 + n, err));
    return AG_OK;
fail:
    return status;
}
