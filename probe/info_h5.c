/* `attgeo info` for files of ours that are no model: dumps and results, whatever schema they have. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/h5.h"
#include "probe/info.h"

#define MOST_OBJECTS 20000 /* a file with more, or with groups inside one another, is shown in part */
#define MOST_DEPTH 8
#define MOST_VALUES 64 /* of an attribute */

struct object {
    char *path;
    const char *type;
    int rank;
    hsize_t dims[H5S_MAX_RANK];
    uint64_t bytes;
    int64_t count;
};
struct listing {
    struct object *objects;
    int64_t n;
    bool cut;
    struct ag_arena *arena;
    struct ag_error *err;
};

static const char *type_name(hid_t type) {
    size_t size = H5Tget_size(type), position, e_position, e_size, m_position, m_size;
    static const char *const ints[] = {"i8", "i16", "i32", "i64"}, *const unsigned_ints[] = {"u8", "u16", "u32", "u64"};
    int log = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
    switch (H5Tget_class(type)) {
    case H5T_INTEGER:
        return H5Tget_sign(type) == H5T_SGN_NONE ? unsigned_ints[log] : ints[log];
    case H5T_FLOAT:
        if (size == 2 && H5Tget_fields(type, &position, &e_position, &e_size, &m_position, &m_size) >= 0 && e_size == 8)
            return "bf16";
        return size == 2 ? "f16" : size == 4 ? "f32" : "f64";
    case H5T_STRING:
        return "text";
    default:
        return "other";
    }
}

/* ---- attributes ---- */

static json_t *texts_json(hid_t attribute, hid_t type, hssize_t n) {
    json_t *list = json_array();
    bool variable = H5Tis_variable_str(type) > 0;
    size_t size = variable ? sizeof(char *) : H5Tget_size(type);
    char *data = n * (hssize_t)size < (1 << 20) ? calloc((size_t)n + 1, size + 1) : NULL;
    hid_t memory = H5Tcopy(type);
    if (data && H5Aread(attribute, memory, data) >= 0) {
        for (hssize_t i = 0; i < n; i++) {
            char *text = variable ? ((char **)(void *)data)[i] : strndup(data + (size_t)i * size, size);
            json_array_append_new(list, info_json_text(text ? text : ""));
            if (variable)
                H5free_memory(text);
            else
                free(text);
        }
    }
    H5Tclose(memory);
    free(data);
    return list;
}

/* A number as JSON has it: NaN and infinities, which JSON lacks, as text. */
static json_t *real_json(double x) {
    return isfinite(x) ? json_real(x) : json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

static json_t *attribute_json(hid_t attribute) {
    hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    hssize_t n = H5Sget_simple_extent_npoints(space);
    bool scalar = H5Sget_simple_extent_type(space) == H5S_SCALAR;
    H5T_class_t kind = H5Tget_class(type);
    json_t *list = json_array();
    if (n < 0 || n > 65536) n = 0;
    if (kind == H5T_STRING) {
        json_decref(list);
        list = texts_json(attribute, type, n);
    } else if (kind == H5T_INTEGER || kind == H5T_FLOAT) {
        int64_t *ints = calloc((size_t)n + 1, 8);
        double *reals = calloc((size_t)n + 1, 8);
        bool is_int = kind == H5T_INTEGER, ok = ints && reals;
        ok = ok && H5Aread(attribute, is_int ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE,
                           is_int ? (void *)ints : (void *)reals) >= 0;
        for (hssize_t i = 0; ok && i < n; i++)
            json_array_append_new(list, is_int ? json_integer(ints[i]) : real_json(reals[i]));
        free(ints);
        free(reals);
    }
    H5Sclose(space);
    H5Tclose(type);
    if (!scalar || json_array_size(list) != 1) return list;
    json_t *value = json_incref(json_array_get(list, 0));
    json_decref(list);
    return value;
}

static json_t *attributes_json(hid_t file) {
    json_t *all = json_object();
    hid_t root = H5Gopen2(file, "/", H5P_DEFAULT);
    H5O_info_t info;
    hsize_t n = H5Oget_info(root, &info) >= 0 ? info.num_attrs : 0;
    for (hsize_t i = 0; i < n && i < 1000; i++) {
        char name[256];
        hid_t attribute = H5Aopen_by_idx(root, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT);
        if (attribute < 0) continue;
        if (H5Aget_name(attribute, sizeof name, name) >= 0) {
            json_t *key = info_json_text(name); /* also as UTF-8 */
            if (key) json_object_set_new(all, json_string_value(key), attribute_json(attribute));
            json_decref(key);
        }
        H5Aclose(attribute);
    }
    H5Gclose(root);
    return all;
}

/* ---- objects ---- */

static enum ag_status add_dataset(struct listing *l, hid_t set, const char *path) {
    struct object *o = &l->objects[l->n];
    hid_t type = H5Dget_type(set), space = H5Dget_space(set);
    o->path = ag_arena_text(l->arena, path, strlen(path), l->err);
    if (o->path) {
        o->type = type_name(type);
        o->rank = H5Sget_simple_extent_dims(space, o->dims, NULL);
        if (o->rank < 0) o->rank = 0;
        o->bytes = H5Dget_storage_size(set);
        o->count = 1;
        l->n++;
    }
    H5Sclose(space);
    H5Tclose(type);
    return o->path ? AG_OK : AG_E_MEMORY;
}

static enum ag_status walk(struct listing *l, hid_t group, const char *path, int depth) {
    enum ag_status status = AG_OK;
    H5G_info_t info;
    if (H5Gget_info(group, &info) < 0) return AG_OK;
    for (hsize_t i = 0; i < info.nlinks && status == AG_OK; i++) {
        char name[128], full[1200];
        if (l->n == MOST_OBJECTS || depth == MOST_DEPTH) {
            l->cut = true;
            break;
        }
        ssize_t length = H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT);
        H5L_info_t link; /* only what is in this file: no soft or external links are followed */
        if (length < 0 || (size_t)length >= sizeof name || H5Lget_info(group, name, &link, H5P_DEFAULT) < 0 ||
            link.type != H5L_TYPE_HARD) {
            continue;
        }
        hid_t object = H5Oopen(group, name, H5P_DEFAULT);
        if (object < 0) continue;
        snprintf(full, sizeof full, "%.1000s/%s", path, name);
        if (H5Iget_type(object) == H5I_DATASET) status = add_dataset(l, object, full);
        if (H5Iget_type(object) == H5I_GROUP) status = walk(l, object, full, depth + 1);
        H5Oclose(object);
    }
    return status;
}

/* ---- writing ---- */

static enum ag_status to_json(struct ag_buf *out, const char *path, json_t *attributes, const struct listing *l,
                              struct ag_error *err) {
    json_t *list = json_array();
    for (int64_t i = 0; i < l->n; i++) {
        const struct object *o = &l->objects[i];
        json_t *shape = json_array();
        for (int d = 0; d < o->rank; d++) json_array_append_new(shape, json_integer((json_int_t)o->dims[d]));
        json_array_append_new(list, json_pack("{s:o, s:s, s:o, s:I}", "path", info_json_text(o->path), "type", o->type,
                                              "shape", shape, "bytes", (json_int_t)o->bytes));
    }
    json_t *root = json_pack("{s:o, s:s, s:O, s:o, s:b}", "path", info_json_text(path), "kind", "attgeo HDF5",
                             "attributes", attributes, "datasets", list, "listed_in_part", l->cut);
    char *text = json_dumps(root, JSON_INDENT(1));
    enum ag_status status =
        text ? ag_buf_printf(out, err, "%s\n", text) : ag_fail(err, AG_E_MEMORY, "out of memory (JSON)");
    free(text);
    json_decref(root);
    return status;
}

static void clean(char *text) {
    for (; *text; text++) {
        if ((unsigned char)*text < 32 || *text == 127) *text = ' ';
    }
}

/* One attribute on a line; what is long is cut unless all is asked for. */
static enum ag_status attribute_line(struct ag_buf *out, const char *name, json_t *value, bool all,
                                     struct ag_error *err) {
    struct ag_buf text = {0};
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    for (size_t i = 0; i < n; i++) {
        json_t *x = json_is_array(value) ? json_array_get(value, i) : value;
        if (!all && i == MOST_VALUES) {
            ag_buf_printf(&text, NULL, " ... (%zu in all)", n);
            break;
        }
        if (i > 0) ag_buf_printf(&text, NULL, " ");
        if (json_is_string(x)) ag_buf_printf(&text, NULL, "%s", json_string_value(x));
        if (json_is_integer(x)) ag_buf_printf(&text, NULL, "%" PRId64, (int64_t)json_integer_value(x));
        if (json_is_real(x)) ag_buf_printf(&text, NULL, "%.9g", json_real_value(x));
    }
    const char *shown = text.data ? text.data : "";
    size_t length = strlen(shown), limit = 200;
    if (all || length <= limit) limit = length;
    while (limit < length && limit > 0 && (shown[limit] & 0xc0) == 0x80) limit--; /* whole characters */
    if (text.data) clean(text.data);
    enum ag_status status =
        ag_buf_printf(out, err, "%-22s %.*s%s\n", name, (int)limit, shown, limit < length ? " ... (-v: all)" : "");
    ag_buf_free(&text);
    return status;
}

/* A path's parts of digits only become N. */
static void to_pattern(char *path) {
    char *to = path;
    for (const char *from = path; *from;) {
        size_t n = strspn(from, "0123456789");
        bool whole = n > 0 && (from > path && from[-1] == '/') && (from[n] == '/' || !from[n]);
        size_t keep = whole ? 1 : n > 0 ? n : 1;
        if (whole) *to = 'N';
        if (!whole) memmove(to, from, keep);
        to += keep;
        from += n > 0 ? n : 1;
    }
    *to = 0;
}

/* Equal but for a number in the path: one entry with a count. */
static int64_t group_objects(struct listing *l) {
    int64_t groups = 0;
    for (int64_t i = 0; i < l->n; i++) {
        struct object o = l->objects[i];
        int64_t j = 0;
        to_pattern(o.path);
        for (; j < groups; j++) {
            const struct object *g = &l->objects[j];
            if (!strcmp(g->path, o.path) && g->type == o.type && g->rank == o.rank &&
                !memcmp(g->dims, o.dims, (size_t)o.rank * sizeof *o.dims))
                break;
        }
        if (j < groups) {
            l->objects[j].count++;
            l->objects[j].bytes += o.bytes;
        } else {
            l->objects[groups++] = o;
        }
    }
    return groups;
}

static enum ag_status object_lines(struct ag_buf *out, const struct listing *l, int64_t n, struct ag_error *err) {
    enum ag_status status;
    for (int64_t i = 0; i < n; i++) {
        const struct object *o = &l->objects[i];
        char shape[200] = "(", size[32];
        size_t length = 1;
        for (int d = 0; d < o->rank && length < 150; d++) {
            length += (size_t)snprintf(shape + length, sizeof shape - length, d ? ", %" PRIu64 : "%" PRIu64,
                                       (uint64_t)o->dims[d]);
        }
        snprintf(shape + length, sizeof shape - length, ")");
        AG_TRY(ag_buf_printf(out, err, "%5" PRId64 " x %-44s %-5s %-22s %s\n", o->count, o->path, o->type, shape,
                             info_size(size, (double)o->bytes)));
    }
    return AG_OK;
fail:
    return status;
}

/* Is a name one of "a, bc, d"? */
static bool is_listed(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *at = list; at && *at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL) {
        if (!strncmp(at, name, n) && (at[n] == ',' || !at[n])) return true;
    }
    return false;
}

/* A line for each group of the file, with the names in it as far as they fit: results have too many for a line each. */
static enum ag_status parent_lines(struct ag_buf *out, const struct listing *l, int64_t n, struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct ag_buf names = {0};
    char size[32];
    for (int64_t i = 0; i < n && status == AG_OK; i++) {
        const char *path = l->objects[i].path;
        size_t parent = (size_t)(strrchr(path, '/') - path) + 1;
        int64_t count = 0;
        uint64_t bytes = 0;
        bool first = true;
        for (int64_t j = 0; j < n; j++) {
            const struct object *o = &l->objects[j];
            const char *leaf = o->path + parent;
            if (strncmp(o->path, path, parent) != 0 || strchr(leaf, '/')) continue;
            if (j < i) { /* shown already */
                first = false;
                break;
            }
            count += o->count;
            bytes += o->bytes;
            if (names.size < 72 && !is_listed(names.data, leaf)) {
                AG_TRY(ag_buf_printf(&names, err, "%s%s", names.size ? ", " : "", leaf));
            }
        }
        if (first) {
            AG_TRY(ag_buf_printf(out, err, "%5" PRId64 " in %-24.*s %-9s %s%s\n", count, (int)parent, path,
                                 info_size(size, (double)bytes), names.data, names.size >= 72 ? ", ..." : ""));
        }
        ag_buf_free(&names);
        names = (struct ag_buf){0};
    }
fail:
    ag_buf_free(&names);
    return status;
}

#define MOST_LINES 24 /* of datasets, before they are shown by group */

static enum ag_status to_text(struct ag_buf *out, const char *path, json_t *attributes, struct listing *l, bool all,
                              struct ag_error *err) {
    enum ag_status status;
    const char *key;
    json_t *value;
    AG_TRY(ag_buf_printf(out, err, "%-22s %s\n", "path", path));
    AG_TRY(attribute_line(out, "schema", json_object_get(attributes, "schema"), all, err));
    json_object_foreach(attributes, key, value) {
        if (strcmp(key, "schema") != 0) AG_TRY(attribute_line(out, key, value, all, err));
    }
    AG_TRY(ag_buf_printf(out, err, "%-22s %" PRId64 "%s%s\n", "datasets", l->n,
                         all ? "" : " (N: a number; -v lists each)",
                         l->cut ? "; there are more, which are not shown" : ""));
    int64_t n = all ? l->n : group_objects(l);
    for (int64_t i = 0; i < n; i++) clean(l->objects[i].path);
    return all || n <= MOST_LINES ? object_lines(out, l, n, err) : parent_lines(out, l, n, err);
fail:
    return status;
}

enum ag_status info_h5(struct ag_buf *out, const char *path, bool json, bool all, struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    hid_t file = -1, root = -1;
    json_t *attributes = NULL;
    struct ag_arena *arena = ag_arena_new("info");
    struct listing l = {.arena = arena, .err = err};
    if (!arena) return ag_fail(err, AG_E_MEMORY, "out of memory (info)");
    AG_TRY(ag_h5_open(&file, path, err));
    if (!ag_h5_has_attribute(file, "/", "schema")) {
        status =
            ag_fail(err, AG_E_UNSUPPORTED,
                    "%s: an HDF5 file without the root attribute schema: none of attgeo's; h5dump shows any", path);
        goto fail;
    }
    status = AG_E_MEMORY;
    l.objects = AG_ZEROS(arena, struct object, MOST_OBJECTS + 1, err);
    if (!l.objects) goto fail;
    attributes = attributes_json(file);
    if ((root = H5Gopen2(file, "/", H5P_DEFAULT)) < 0) {
        status = ag_h5_fail(err, file, path, "/", "opening");
        goto fail;
    }
    AG_TRY(walk(&l, root, "", 0));
    AG_TRY(json ? to_json(out, path, attributes, &l, err) : to_text(out, path, attributes, &l, all, err));
fail:
    if (root >= 0) H5Gclose(root);
    if (file >= 0) {
        enum ag_status closed = ag_h5_close(file, status == AG_OK ? err : NULL);
        if (status == AG_OK) status = closed;
    }
    json_decref(attributes);
    ag_arena_free(arena);
    return status;
}
