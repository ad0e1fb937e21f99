/* GGUF v2 and v3, little endian (spec/checkpoints.md section 2): header | keys and values | tensor infos | padding |
 * data.
 *
 * Everything before the data goes through one cursor. It asks, before each step, whether the file has room for it (by
 * subtraction, which cannot overflow), so no count or length from the file reaches an allocation unchecked. */
#include <stdlib.h>
#include <string.h>

#include "probe/checkpoint_internal.h"

#define TEXT_LIMIT (UINT64_C(1) << 30)
#define ARRAY_LIMIT (UINT64_C(1) << 30)
#define NAME_LIMIT 64 /* bytes of a tensor's name, NUL included */
#define WINDOW 65536

/* Every type id there is, so that the layout can be checked also where the weights cannot be read. */
static const struct {
    const char *name;
    int elements, bytes, dtype;
} types[] = {
    [0] = {"F32", 1, 4, KERN_F32},
    [1] = {"F16", 1, 2, KERN_F16},
    [2] = {"Q4_0", 32, 18, KERN_Q4_0},
    [3] = {"Q4_1", 32, 20, KERN_Q4_1},
    [6] = {"Q5_0", 32, 22, KERN_Q5_0},
    [7] = {"Q5_1", 32, 24, KERN_Q5_1},
    [8] = {"Q8_0", 32, 34, KERN_Q8_0},
    [9] = {"Q8_1", 32, 36, -1},
    [10] = {"Q2_K", 256, 84, KERN_Q2_K},
    [11] = {"Q3_K", 256, 110, KERN_Q3_K},
    [12] = {"Q4_K", 256, 144, KERN_Q4_K},
    [13] = {"Q5_K", 256, 176, KERN_Q5_K},
    [14] = {"Q6_K", 256, 210, KERN_Q6_K},
    [15] = {"Q8_K", 256, 292, -1},
    [16] = {"IQ2_XXS", 256, 66, -1},
    [17] = {"IQ2_XS", 256, 74, -1},
    [18] = {"IQ3_XXS", 256, 98, -1},
    [19] = {"IQ1_S", 256, 50, -1},
    [20] = {"IQ4_NL", 32, 18, -1},
    [21] = {"IQ3_S", 256, 110, -1},
    [22] = {"IQ2_S", 256, 82, -1},
    [23] = {"IQ4_XS", 256, 136, -1},
    [24] = {"I8", 1, 1, -1},
    [25] = {"I16", 1, 2, -1},
    [26] = {"I32", 1, 4, -1},
    [27] = {"I64", 1, 8, -1},
    [28] = {"F64", 1, 8, KERN_F64},
    [29] = {"IQ1_M", 256, 56, -1},
    [30] = {"BF16", 1, 2, KERN_BF16},
    [34] = {"TQ1_0", 256, 54, -1},
    [35] = {"TQ2_0", 256, 66, -1},
    [39] = {"MXFP4", 32, 17, -1},
    [40] = {"NVFP4", 64, 36, -1},
    [41] = {"Q1_0", 128, 18, -1},
};
#define N_TYPES (sizeof types / sizeof types[0])

/* general.file_type */
static const char *const file_types[] = {
    [0] = "all F32",        [1] = "mostly F16",     [2] = "mostly Q4_0",    [3] = "mostly Q4_1",
    [7] = "mostly Q8_0",    [8] = "mostly Q5_0",    [9] = "mostly Q5_1",    [10] = "mostly Q2_K",
    [11] = "mostly Q3_K_S", [12] = "mostly Q3_K_M", [13] = "mostly Q3_K_L", [14] = "mostly Q4_K_S",
    [15] = "mostly Q4_K_M", [16] = "mostly Q5_K_S", [17] = "mostly Q5_K_M", [18] = "mostly Q6_K",
    [32] = "mostly BF16",
};

enum value_type { U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64, N_VALUE_TYPES };
static const struct {
    unsigned bytes; /* in the file; of a text: its length, the least it takes */
    int kind;
    bool is_signed;
} values[N_VALUE_TYPES] = {
    [U8] = {1, CKPT_META_INT, false},       [I8] = {1, CKPT_META_INT, true},     [U16] = {2, CKPT_META_INT, false},
    [I16] = {2, CKPT_META_INT, true},       [U32] = {4, CKPT_META_INT, false},   [I32] = {4, CKPT_META_INT, true},
    [F32] = {4, CKPT_META_REAL, true},      [BOOL] = {1, CKPT_META_BOOL, false}, [TEXT] = {8, CKPT_META_TEXT, false},
    [ARRAY] = {12, CKPT_META_ARRAY, false}, [U64] = {8, CKPT_META_INT, false},   [I64] = {8, CKPT_META_INT, true},
    [F64] = {8, CKPT_META_REAL, true},
};

struct cursor {
    const struct ag_file *file;
    struct ag_arena *arena;
    uint64_t at;          /* next byte */
    uint64_t from, until; /* bytes of the file in the window */
    uint8_t *window;
    const char *what; /* being read, for messages */
    struct ag_error *err;
};

static uint64_t room(const struct cursor *c) { return c->file->size - c->at; }

static enum ag_status need(const struct cursor *c, uint64_t n) {
    if (n <= room(c)) return AG_OK;
    return ag_fail(c->err, AG_E_FORMAT,
                   "%s: cut short or damaged: %s at byte %llu needs %llu bytes, the file has %llu left", c->file->path,
                   c->what, (unsigned long long)c->at, (unsigned long long)n, (unsigned long long)room(c));
}

static enum ag_status take(struct cursor *c, void *out, uint64_t n) {
    enum ag_status status;
    uint8_t *to = out;
    AG_TRY(need(c, n));
    while (n > 0) {
        if (c->at < c->from || c->at >= c->until) {
            uint64_t size = room(c) < WINDOW ? room(c) : WINDOW;
            AG_TRY(ag_file_read(c->file, c->window, c->at, size, c->err));
            c->from = c->at;
            c->until = c->at + size;
        }
        uint64_t part = c->until - c->at < n ? c->until - c->at : n;
        memcpy(to, c->window + (c->at - c->from), (size_t)part);
        to += part;
        c->at += part;
        n -= part;
    }
    return AG_OK;
fail:
    return status;
}

static enum ag_status take_u32(struct cursor *c, uint32_t *value) {
    uint8_t b[4];
    enum ag_status status = take(c, b, 4);
    if (status == AG_OK) *value = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    return status;
}
static enum ag_status take_u64(struct cursor *c, uint64_t *value) {
    uint32_t low = 0, high = 0;
    enum ag_status status = take_u32(c, &low);
    if (status == AG_OK) status = take_u32(c, &high);
    *value = (uint64_t)high << 32 | low;
    return status;
}

/* The length of a text, checked against the format's limit and the rest of the file. */
static enum ag_status take_length(struct cursor *c, uint64_t *n) {
    enum ag_status status;
    AG_TRY(take_u64(c, n));
    if (*n > TEXT_LIMIT) {
        return ag_fail(c->err, AG_E_FORMAT,
                       "%s: %s at byte %llu: a text of %llu bytes; expected at most 2^30; the file is damaged",
                       c->file->path, c->what, (unsigned long long)c->at, (unsigned long long)*n);
    }
    return need(c, *n);
fail:
    return status;
}
static enum ag_status take_text(struct cursor *c, const char **text, size_t *n) {
    enum ag_status status;
    uint64_t length;
    AG_TRY(take_length(c, &length));
    char *copy = AG_NEW(c->arena, char, (int64_t)length + 1, c->err);
    if (!copy) return AG_E_MEMORY;
    AG_TRY(take(c, copy, length));
    copy[length] = 0;
    *text = copy;
    *n = (size_t)length;
    return AG_OK;
fail:
    return status;
}

/* A number or bool; ints and bools to *i, floats to *f. */
static enum ag_status take_scalar(struct cursor *c, enum value_type type, int64_t *i, double *f) {
    enum ag_status status;
    uint8_t b[8];
    uint64_t bits = 0;
    unsigned n = values[type].bytes;
    AG_TRY(take(c, b, n));
    for (unsigned k = n; k-- > 0;) bits = bits << 8 | b[k];
    if (type == F32) {
        uint32_t low = (uint32_t)bits;
        float value;
        memcpy(&value, &low, 4);
        *f = value;
        return AG_OK;
    }
    if (type == F64) {
        memcpy(f, &bits, 8);
        return AG_OK;
    }
    if (type == BOOL && bits > 1) {
        return ag_fail(c->err, AG_E_FORMAT, "%s: %s: a bool of value %llu; expected 0 or 1; the file is damaged",
                       c->file->path, c->what, (unsigned long long)bits);
    }
    if (type == U64 && bits > INT64_MAX) {
        return ag_fail(c->err, AG_E_FORMAT, "%s: %s: %llu; expected less than 2^63", c->file->path, c->what,
                       (unsigned long long)bits);
    }
    unsigned unused = 64 - 8 * n; /* sign-extend */
    *i = values[type].is_signed && unused ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
    return AG_OK;
fail:
    return status;
}

/* n texts into one piece of memory: measured in a first pass over the file, copied in a second. */
static enum ag_status take_texts(struct cursor *c, struct ckpt_meta *m) {
    enum ag_status status;
    uint64_t start = c->at, length, total = 0;
    for (int64_t i = 0; i < m->n; i++) {
        AG_TRY(take_length(c, &length));
        c->at += length;
        total += length + 1; /* each length is below the file's, and there are fewer than 2^30 */
    }
    c->at = start;
    const char **texts = AG_NEW(c->arena, const char *, m->n, c->err);
    int64_t *sizes = AG_NEW(c->arena, int64_t, m->n, c->err);
    char *bytes = AG_NEW(c->arena, char, (int64_t)total, c->err);
    if (!texts || !sizes || !bytes) return AG_E_MEMORY;
    for (int64_t i = 0; i < m->n; i++) {
        AG_TRY(take_length(c, &length));
        if (length + 1 > total) {
            return ag_fail(c->err, AG_E_IO, "%s: changed while it was read; try again", c->file->path);
        }
        AG_TRY(take(c, bytes, length));
        bytes[length] = 0;
        texts[i] = bytes;
        sizes[i] = (int64_t)length;
        bytes += length + 1;
        total -= length + 1;
    }
    m->texts = texts;
    m->text_sizes = sizes;
    return AG_OK;
fail:
    return status;
}

static enum ag_status check_value_type(const struct cursor *c, uint32_t type, bool element) {
    if (type < N_VALUE_TYPES && !(element && type == ARRAY)) return AG_OK;
    ag_fail(c->err, AG_E_FORMAT, "%s: %s at byte %llu has %s type %u%s; expected a scalar or text%s", c->file->path,
            c->what, (unsigned long long)c->at, element ? "element" : "value", (unsigned)type,
            type == ARRAY ? " (an array inside an array)" : "", element ? "" : " or array");
    return AG_E_FORMAT;
}

static enum ag_status take_array(struct cursor *c, struct ckpt_meta *m) {
    enum ag_status status;
    uint32_t type;
    uint64_t n;
    AG_TRY(take_u32(c, &type));
    AG_TRY(check_value_type(c, type, true));
    AG_TRY(take_u64(c, &n));
    if (n > ARRAY_LIMIT || n > room(c) / values[type].bytes) {
        return ag_fail(c->err, AG_E_FORMAT,
                       "%s: %s: an array of %llu elements; the rest of the file has room for %llu, the format "
                       "allows 2^30; cut short or damaged",
                       c->file->path, c->what, (unsigned long long)n,
                       (unsigned long long)(room(c) / values[type].bytes));
    }
    m->n = (int64_t)n;
    m->element_kind = values[type].kind;
    if (type == TEXT) return take_texts(c, m);
    if (m->element_kind == CKPT_META_REAL) {
        double *fs = AG_NEW(c->arena, double, m->n, c->err);
        if (!fs) return AG_E_MEMORY;
        for (int64_t i = 0; i < m->n; i++) AG_TRY(take_scalar(c, type, NULL, &fs[i]));
        m->fs = fs;
    } else {
        int64_t *is = AG_NEW(c->arena, int64_t, m->n, c->err);
        if (!is) return AG_E_MEMORY;
        for (int64_t i = 0; i < m->n; i++) AG_TRY(take_scalar(c, type, &is[i], NULL));
        m->is = is;
    }
    return AG_OK;
fail:
    return status;
}

static enum ag_status take_meta(struct cursor *c, struct ckpt_meta *m) {
    enum ag_status status;
    size_t n;
    uint32_t type;
    c->what = "the name of a key";
    AG_TRY(take_text(c, &m->key, &n));
    for (size_t i = 0; i < n; i++) {
        if (m->key[i] <= 32 || m->key[i] > 126) n = 0;
    }
    if (n == 0 || n > 65535) {
        return ag_fail(c->err, AG_E_FORMAT,
                       "%s: the name of a key that ends at byte %llu: expected 1 to 65535 printable ASCII "
                       "characters; the file is damaged",
                       c->file->path, (unsigned long long)c->at);
    }
    c->what = m->key;
    AG_TRY(take_u32(c, &type));
    AG_TRY(check_value_type(c, type, false));
    m->kind = values[type].kind;
    if (type == TEXT) return take_text(c, &m->text, &m->text_bytes);
    if (type == ARRAY) return take_array(c, m);
    return take_scalar(c, type, &m->i, &m->f);
fail:
    return status;
}

static enum ag_status take_tensor(struct cursor *c, struct ckpt_tensor *t, uint64_t alignment) {
    enum ag_status status;
    const char *path = c->file->path;
    size_t n;
    uint32_t rank, type;
    int64_t dims[4], rows = 1;
    c->what = "the name of a tensor";
    AG_TRY(take_text(c, &t->name, &n));
    if (n == 0 || n >= NAME_LIMIT || !ckpt_name_valid(t->name, n)) {
        return ag_fail(c->err, AG_E_FORMAT,
                       "%s: the name of a tensor that ends at byte %llu: %zu bytes; expected 1 to %d of "
                       "printable UTF-8; the file is damaged",
                       path, (unsigned long long)c->at, n, NAME_LIMIT - 1);
    }
    c->what = t->name;
    AG_TRY(take_u32(c, &rank));
    if (rank > 4) {
        return ag_fail(c->err, AG_E_FORMAT,
                       "%s: tensor '%s' has %u dimensions; expected at most 4; the file is damaged", path, t->name,
                       (unsigned)rank);
    }
    t->rank = (int)rank;
    t->elements = 1;
    for (int i = 0; i < t->rank; i++) {
        uint64_t dim;
        AG_TRY(take_u64(c, &dim));
        if (dim > INT64_MAX || !ag_mul(t->elements, (int64_t)dim, &t->elements)) {
            return ag_fail(c->err, AG_E_FORMAT,
                           "%s: tensor '%s': dimension %d is %llu, which makes 2^63 elements or more; the file "
                           "is damaged",
                           path, t->name, i, (unsigned long long)dim);
        }
        dims[i] = (int64_t)dim;
    }
    for (int i = 0; i < t->rank; i++) t->shape[i] = dims[t->rank - 1 - i]; /* the file lists the fastest first */
    AG_TRY(take_u32(c, &type));
    if (type >= N_TYPES || !types[type].name) {
        return ag_fail(c->err, AG_E_UNSUPPORTED,
                       "%s: tensor '%s' has type id %u, which is removed or unknown, so its size cannot "
                       "be checked; convert the file anew",
                       path, t->name, (unsigned)type);
    }
    t->type = types[type].name;
    t->dtype = types[type].dtype;
    int64_t row = t->rank > 0 ? dims[0] : 1, bytes;
    if (row % types[type].elements != 0) {
        return ag_fail(c->err, AG_E_FORMAT, "%s: tensor '%s': dimension 0 is %lld; type %s needs a multiple of %d",
                       path, t->name, (long long)row, t->type, types[type].elements);
    }
    for (int i = 1; i < t->rank; i++) rows *= row ? dims[i] : 0; /* row * rows = elements, which did not overflow */
    if (!ag_mul(row / types[type].elements * rows, types[type].bytes, &bytes)) {
        return ag_fail(c->err, AG_E_FORMAT,
                       "%s: tensor '%s': %lld elements of type %s take 2^63 bytes or more; the file is damaged", path,
                       t->name, (long long)t->elements, t->type);
    }
    t->bytes = (uint64_t)bytes;
    AG_TRY(take_u64(c, &t->offset));
    if (t->offset % alignment != 0) {
        return ag_fail(c->err, AG_E_FORMAT,
                       "%s: tensor '%s' is at offset %llu; expected a multiple of %llu (general.alignment)", path,
                       t->name, (unsigned long long)t->offset, (unsigned long long)alignment);
    }
    return AG_OK;
fail:
    return status;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct ckpt_meta *)a)->key, ((const struct ckpt_meta *)b)->key);
}
static int by_offset(const void *a, const void *b) {
    const struct ckpt_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Inside the file and not over one another; offsets become absolute. */
static enum ag_status check_layout(struct cursor *c, struct ckpt_tensor *t, int64_t n, uint64_t alignment) {
    uint64_t padding = (alignment - c->at % alignment) % alignment, end = 0;
    const char *previous = NULL, *path = c->file->path;
    uint64_t data = padding <= room(c) ? c->at + padding : c->file->size, size = c->file->size - data;
    if (n > 0) qsort(t, (size_t)n, sizeof *t, by_offset);
    for (int64_t i = 0; i < n; i++) {
        if (t[i].offset > size || t[i].bytes > size - t[i].offset) {
            uint64_t have = t[i].offset > size ? 0 : size - t[i].offset;
            return ag_fail(c->err, AG_E_FORMAT,
                           "%s: cut short: tensor '%s' needs %llu bytes at offset %llu of the data, of which "
                           "%llu are missing; download the file again",
                           path, t[i].name, (unsigned long long)t[i].bytes, (unsigned long long)t[i].offset,
                           (unsigned long long)(t[i].bytes - have));
        }
        if (t[i].bytes > 0) {
            if (t[i].offset < end) {
                return ag_fail(c->err, AG_E_FORMAT, "%s: tensors '%s' and '%s' overlap; the file is damaged", path,
                               previous, t[i].name);
            }
            end = t[i].offset + t[i].bytes;
            previous = t[i].name;
        }
        t[i].offset += data;
    }
    return AG_OK;
}

static const struct ckpt_meta *int_meta(const struct ckpt *ckpt, const char *key) {
    const struct ckpt_meta *m = ckpt_meta_find(ckpt, key);
    return m && m->kind == CKPT_META_INT ? m : NULL;
}

/* The parts of a split file: NAME-00001-of-00003.gguf, with the key split.count. Returns how many, 1: not split. */
static int64_t split_count(const struct ckpt *ckpt) {
    const struct ckpt_meta *m = int_meta(ckpt, "split.count");
    const char *path = ckpt->files[0].path, *end = "-00001-of-00002.gguf";
    size_t n = strlen(path), length = strlen(end);
    if (m) return m->i;
    if (n < length) return 1;
    path += n - length;
    for (size_t i = 0; i < length; i++) {
        bool digit = path[i] >= '0' && path[i] <= '9';
        if (end[i] >= '0' && end[i] <= '9' ? !digit : path[i] != end[i]) return 1;
    }
    return strtol(path + 10, NULL, 10);
}

static enum ag_status take_header(struct cursor *c, struct ckpt *ckpt, uint64_t *n_tensors, uint64_t *n_meta) {
    enum ag_status status;
    const char *path = c->file->path;
    uint8_t magic[4];
    uint32_t version;
    c->what = "the header";
    AG_TRY(take(c, magic, 4));
    if (memcmp(magic, "GGUF", 4) != 0)
        return ag_fail(c->err, AG_E_FORMAT, "%s: no GGUF file (it does not begin with GGUF)", path);
    AG_TRY(take_u32(c, &version));
    if (version != 0 && (version & 0xffff) == 0) {
        return ag_fail(c->err, AG_E_UNSUPPORTED,
                       "%s: a big-endian GGUF file; only little-endian files are read: convert it", path);
    }
    if (version != 2 && version != 3) {
        return ag_fail(c->err, AG_E_UNSUPPORTED, "%s: GGUF version %u; versions 2 and 3 are read: convert it", path,
                       (unsigned)version);
    }
    ckpt->gguf_version = (int)version;
    AG_TRY(take_u64(c, n_tensors));
    AG_TRY(take_u64(c, n_meta));
    /* the least a key takes: its length, 1 byte, its type, a byte of value; a tensor: length, 1 byte, rank, type,
     * offset */
    if (*n_meta > room(c) / 14 || *n_tensors > room(c) / 25) {
        return ag_fail(c->err, AG_E_FORMAT,
                       "%s: declares %llu keys and %llu tensors, more than its %llu bytes can hold; cut short or "
                       "damaged",
                       path, (unsigned long long)*n_meta, (unsigned long long)*n_tensors,
                       (unsigned long long)c->file->size);
    }
    return AG_OK;
fail:
    return status;
}

static enum ag_status take_metas(struct cursor *c, struct ckpt *ckpt, int64_t n) {
    enum ag_status status;
    ckpt->meta = AG_ZEROS(ckpt->arena, struct ckpt_meta, n, c->err);
    if (!ckpt->meta) return AG_E_MEMORY;
    for (int64_t i = 0; i < n; i++) AG_TRY(take_meta(c, &ckpt->meta[i]));
    ckpt->n_meta = n;
    if (n > 0) qsort(ckpt->meta, (size_t)n, sizeof *ckpt->meta, by_key);
    for (int64_t i = 1; i < n; i++) {
        if (!strcmp(ckpt->meta[i - 1].key, ckpt->meta[i].key)) {
            return ag_fail(c->err, AG_E_FORMAT, "%s: key '%.80s' appears twice; the file is damaged", c->file->path,
                           ckpt->meta[i].key);
        }
    }
    return AG_OK;
fail:
    return status;
}

enum ag_status gguf_read(struct ckpt *ckpt, struct ag_buf *list, struct ag_error *err) {
    enum ag_status status;
    struct cursor c = {.file = &ckpt->files[0], .arena = ckpt->arena, .err = err};
    uint64_t n_tensors = 0, n_meta = 0, alignment = 32;
    c.window = AG_NEW(ckpt->arena, uint8_t, WINDOW, err);
    if (!c.window) return AG_E_MEMORY;
    AG_TRY(take_header(&c, ckpt, &n_tensors, &n_meta));
    AG_TRY(take_metas(&c, ckpt, (int64_t)n_meta));

    const struct ckpt_meta *m = ckpt_meta_find(ckpt, "general.alignment");
    if (m) {
        alignment = m->kind == CKPT_META_INT && m->i > 0 && m->i <= UINT32_MAX ? (uint64_t)m->i : 0;
        if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
            return ag_fail(err, AG_E_FORMAT,
                           "%s: general.alignment is %lld; expected a power of two; the file is damaged", c.file->path,
                           (long long)m->i);
        }
    }
    if (split_count(ckpt) > 1) {
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: one part of a GGUF file split in %lld; split files are not read: merge them "
                       "(llama-gguf-split --merge)",
                       c.file->path, (long long)split_count(ckpt));
    }
    m = int_meta(ckpt, "general.file_type");
    if (m && m->i >= 0 && m->i < (int64_t)(sizeof file_types / sizeof file_types[0]))
        ckpt->file_type = file_types[m->i];

    for (uint64_t i = 0; i < n_tensors; i++) {
        struct ckpt_tensor t = {0};
        AG_TRY(take_tensor(&c, &t, alignment));
        AG_TRY(ag_buf_add(list, &t, sizeof t, err));
    }
    AG_TRY(check_layout(&c, (struct ckpt_tensor *)(void *)list->data, (int64_t)n_tensors, alignment));
    return AG_OK;
fail:
    return status;
}
