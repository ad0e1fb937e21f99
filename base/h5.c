/* HDF5 with our manners: see h5.h. */
#include "base/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

static const int64_t sizes[AG_H5_TYPE_COUNT] = {1, 1, 2, 4, 8, 4, 8, 2, 2};
static const char *const type_names[AG_H5_TYPE_COUNT] = {"i8", "u8", "i16", "i32", "i64", "f32", "f64", "f16", "bf16"};

/* ---- errors ------------------------------------------------------------------------------------------------ */

/* No exit handler: after a failed close (disk full) HDF5 1.10 crashes in it. All files are closed by hand anyway. */
static void quiet(void) {
    static bool first = true;
    if (first) H5dont_atexit();
    first = false;
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5Eclear2(H5E_DEFAULT);
}

struct reason {
    char innermost[256], system[128];
    bool locked, truncated;
};

static herr_t collect(unsigned n, const H5E_error2_t *entry, void *self) {
    struct reason *reason = self;
    const char *text = entry->desc ? entry->desc : "";
    if (n == 0 || !reason->innermost[0]) snprintf(reason->innermost, sizeof reason->innermost, "%s", text);
    const char *message = strstr(text, "error message = '");
    if (message && !reason->system[0]) {
        message += strlen("error message = '");
        snprintf(reason->system, sizeof reason->system, "%.*s", (int)strcspn(message, "'"), message);
    }
    if (strstr(text, "unable to lock file")) reason->locked = true;
    if (strstr(text, "truncated file")) reason->truncated = true;
    return 0;
}

static struct reason why(void) {
    struct reason reason = {{0}, {0}, false, false};
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &reason);
    return reason;
}

/* The file that an object lies in; "HDF5 file" when even that cannot be told. */
static const char *file_name(char out[1024], hid_t at) {
    if (at < 0 || H5Fget_name(at, out, 1024) <= 0) snprintf(out, 1024, "HDF5 file");
    return out;
}

/* Full name of `name` below `at`, for messages. */
static const char *full_name(char out[512], hid_t at, const char *name) {
    char base[256] = "";
    if (at < 0 || H5Iget_name(at, base, sizeof base) < 0) base[0] = 0;
    if (!name || !strcmp(name, ".") || !*name)
        snprintf(out, 512, "%s", *base ? base : "/");
    else if (*name == '/')
        snprintf(out, 512, "%s", name);
    else
        snprintf(out, 512, "%s%s%s", base, *base && base[strlen(base) - 1] == '/' ? "" : "/", name);
    return out;
}

enum ag_status ag_h5_fail(struct ag_error *err, hid_t at, const char *path, const char *name, const char *doing) {
    struct reason reason = why(); /* first: the calls below clear the stack */
    char file[1024], object[512];
    if (!path) path = file_name(file, at);
    full_name(object, at, name);
    H5Eclear2(H5E_DEFAULT);
    const char *text = reason.system[0] ? reason.system : reason.innermost[0] ? reason.innermost : "unknown reason";
    return ag_fail(err, AG_E_IO, "%s: %s%s%s failed: %s", path, name ? object : "", name ? ": " : "", doing, text);
}

/* AG_E_FORMAT with file and object in front. */
static enum ag_status broken(struct ag_error *err, hid_t at, const char *name, const char *attribute, const char *found,
                             const char *expected) {
    char file[1024], object[512];
    file_name(file, at);
    full_name(object, at, name);
    H5Eclear2(H5E_DEFAULT);
    return ag_fail(err, AG_E_FORMAT, "%s: %s%s%s: found %s, expected %s", file, object, attribute ? ", attribute " : "",
                   attribute ? attribute : "", found, expected);
}

/* ---- types ------------------------------------------------------------------------------------------------- */

int64_t ag_h5_size(enum ag_h5_type type) { return sizes[type]; }

hid_t ag_h5_file_type(enum ag_h5_type type) {
    quiet();
    switch (type) {
    case AG_H5_I8:
        return H5Tcopy(H5T_STD_I8LE);
    case AG_H5_U8:
        return H5Tcopy(H5T_STD_U8LE);
    case AG_H5_I16:
        return H5Tcopy(H5T_STD_I16LE);
    case AG_H5_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case AG_H5_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case AG_H5_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case AG_H5_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    default:
        break;
    }
    /* sign 1, exponent and mantissa bits: 5 and 10 (half) or 8 and 7 (bfloat16). The fields shrink before the size. */
    hid_t half = H5Tcopy(H5T_IEEE_F32LE);
    bool bf16 = type == AG_H5_BF16;
    if (half >= 0 &&
        (H5Tset_fields(half, 15, bf16 ? 7 : 10, bf16 ? 8 : 5, 0, bf16 ? 7 : 10) < 0 || H5Tset_precision(half, 16) < 0 ||
         H5Tset_size(half, 2) < 0 || H5Tset_ebias(half, bf16 ? 127 : 15) < 0)) {
        H5Tclose(half);
        return -1;
    }
    return half;
}

static hid_t memory_type(enum ag_h5_type type) {
    switch (type) {
    case AG_H5_I8:
        return H5Tcopy(H5T_NATIVE_INT8);
    case AG_H5_U8:
        return H5Tcopy(H5T_NATIVE_UINT8);
    case AG_H5_I16:
        return H5Tcopy(H5T_NATIVE_INT16);
    case AG_H5_I32:
        return H5Tcopy(H5T_NATIVE_INT32);
    case AG_H5_I64:
        return H5Tcopy(H5T_NATIVE_INT64);
    case AG_H5_F32:
        return H5Tcopy(H5T_NATIVE_FLOAT);
    case AG_H5_F64:
        return H5Tcopy(H5T_NATIVE_DOUBLE);
    default:
        return ag_h5_file_type(type);
    }
}

static hid_t text_type(void) {
    hid_t type = H5Tcopy(H5T_C_S1);
    if (type >= 0 && (H5Tset_size(type, H5T_VARIABLE) < 0 || H5Tset_cset(type, H5T_CSET_UTF8) < 0)) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

/* Does every value of the file's type fit the wanted one? found: what the file has, in words. */
static bool fits(hid_t file_type, enum ag_h5_type want, char found[32]) {
    size_t size = H5Tget_size(file_type);
    H5T_class_t class_ = H5Tget_class(file_type);
    bool is_signed = class_ == H5T_INTEGER && H5Tget_sign(file_type) == H5T_SGN_2;
    if (class_ == H5T_INTEGER)
        snprintf(found, 32, "%c%zu", is_signed ? 'i' : 'u', 8 * size);
    else if (class_ == H5T_FLOAT)
        snprintf(found, 32, "f%zu", 8 * size);
    else
        snprintf(found, 32, "%s", class_ == H5T_STRING ? "text" : "another kind of element");
    if (want == AG_H5_F16 || want == AG_H5_BF16) {
        hid_t exact = ag_h5_file_type(want);
        bool same = exact >= 0 && H5Tequal(exact, file_type) > 0;
        if (exact >= 0) H5Tclose(exact);
        return same;
    }
    if (want == AG_H5_F32 || want == AG_H5_F64) return class_ == H5T_FLOAT && size <= (size_t)sizes[want];
    if (class_ != H5T_INTEGER) return false;
    if (want == AG_H5_U8) return !is_signed && size == 1;
    return is_signed ? size <= (size_t)sizes[want] : size < (size_t)sizes[want];
}

/* ---- files ------------------------------------------------------------------------------------------------- */

static bool locking(void) {
    const char *value = getenv("HDF5_USE_FILE_LOCKING");
    return !value || (strcasecmp(value, "FALSE") && strcmp(value, "0"));
}

/* Everything that the library parses, once: objects, attributes, texts, chunk indices. */
static herr_t visit_attribute(hid_t at, const char *name, const H5A_info_t *info, void *self) {
    (void)info;
    char *buffer = self;
    hid_t id = H5Aopen(at, name, H5P_DEFAULT), type = id < 0 ? -1 : H5Aget_type(id),
          space = id < 0 ? -1 : H5Aget_space(id);
    if (type >= 0 && space >= 0 && H5Tis_variable_str(type) > 0 && H5Sget_simple_extent_npoints(space) == 1) {
        H5Aread(id, type, buffer);
        H5Dvlen_reclaim(type, space, H5P_DEFAULT, buffer);
    }
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    if (id >= 0) H5Aclose(id);
    return 0;
}

static herr_t visit(hid_t at, const char *name, const H5O_info_t *info, void *self) {
    H5Aiterate_by_name(at, name, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, visit_attribute, self, H5P_DEFAULT);
    hid_t set = info->type == H5O_TYPE_DATASET ? H5Dopen2(at, name, H5P_DEFAULT) : -1;
    if (set < 0) return 0;
    hid_t type = H5Dget_type(set), space = H5Dget_space(set);
    hsize_t chunks;
    H5Dget_num_chunks(set, space, &chunks);
    if (type >= 0 && H5Tis_variable_str(type) > 0 && H5Dvlen_get_buf_size(set, type, space, &chunks) >= 0) {
        hssize_t n = H5Sget_simple_extent_npoints(space);
        char **texts = n > 0 && n < 1 << 28 ? H5allocate_memory((size_t)n * sizeof *texts, true) : NULL;
        if (texts && H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, texts) >= 0)
            for (hssize_t i = 0; i < n; i++)
                if (texts[i] && strlen(texts[i]) > SIZE_MAX / 2) return -1;
    }
    H5Dclose(set);
    return 0;
}

/* HDF5 1.10 crashes, or runs for ever, on some damaged files. So a child process walks through the structure first, and
 * only what it survives is opened here. */
static bool survives(const char *path) {
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) return true;
    if (child == 0) {
        const int signals[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGXCPU};
        for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], SIG_DFL);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        setrlimit(RLIMIT_CPU, &(struct rlimit){20, 20});
        int null = open("/dev/null", O_WRONLY);
        if (null >= 0) dup2(null, 2); /* what malloc has to say about a damaged heap */
        static char buffer[4096];
        hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
        if (file >= 0) H5Ovisit2(file, H5_INDEX_NAME, H5_ITER_NATIVE, visit, buffer, H5O_INFO_BASIC);
        _exit(0);
    }
    int result = 0;
    while (waitpid(child, &result, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(result) && WEXITSTATUS(result) == 0; /* a sanitizer ends the child with a status, not a signal */
}

enum ag_status ag_h5_open(hid_t *file, const char *path, struct ag_error *err) {
    quiet();
    *file = -1;
    struct stat info;
    if (stat(path, &info))
        return ag_fail(err, AG_E_IO, "%s: cannot be opened: %s; an HDF5 file was expected", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return ag_fail(err, AG_E_IO, "%s: is %s; an HDF5 file was expected", path,
                       S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
    if (access(path, R_OK)) return ag_fail(err, AG_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    if (!survives(path))
        return ag_fail(err, AG_E_FORMAT,
                       "%s: is damaged so badly that the HDF5 library itself fails on it; copy or make it again", path);
    hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(list, H5F_CLOSE_STRONG);
    *file = H5Fopen(path, H5F_ACC_RDONLY, list);
    struct reason reason = *file < 0 ? why() : (struct reason){{0}, {0}, false, false};
    H5Pclose(list);
    if (*file >= 0) return AG_OK;
    H5Eclear2(H5E_DEFAULT);
    if (reason.locked)
        return ag_fail(err, AG_E_IO,
                       "%s: is locked by a program that writes it; wait until it has finished, or set the environment "
                       "variable HDF5_USE_FILE_LOCKING=FALSE to read it all the same",
                       path);
    if (reason.truncated)
        return ag_fail(err, AG_E_FORMAT, "%s: is cut short (%s); copy or make it again", path, reason.innermost);
    if (H5Fis_hdf5(path) == 0)
        return ag_fail(err, AG_E_FORMAT, "%s: is not an HDF5 file; expected one that attgeo wrote", path);
    return ag_fail(err, AG_E_FORMAT, "%s: HDF5 cannot open it: %s; the file is damaged: copy or make it again", path,
                   reason.system[0] ? reason.system : reason.innermost);
}

enum ag_status ag_h5_create(hid_t *file, const char *path, struct ag_error *err) {
    quiet();
    hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(list, H5F_CLOSE_STRONG);
    H5Pset_libver_bounds(list, H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST);
    *file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, list);
    enum ag_status status = AG_OK;
    if (*file < 0) {
        struct reason reason = why();
        if (reason.locked)
            status = ag_fail(err, AG_E_IO,
                             "%s: is locked by another program that has it open; close that program or write elsewhere "
                             "(or set HDF5_USE_FILE_LOCKING=FALSE)",
                             path);
        else
            status = ag_h5_fail(err, -1, path, NULL, "creating the file");
    }
    H5Pclose(list);
    return status;
}

enum ag_status ag_h5_close(hid_t file, struct ag_error *err) {
    if (file < 0) return AG_OK;
    char name[1024];
    file_name(name, file);
    unsigned intent = 0;
    enum ag_status status = AG_OK;
    if (H5Fget_intent(file, &intent) >= 0 && (intent & H5F_ACC_RDWR) && H5Fflush(file, H5F_SCOPE_GLOBAL) < 0)
        status = ag_h5_fail(err, -1, name, NULL, "writing (flush)");
    if (H5Fclose(file) < 0 && status == AG_OK) status = ag_h5_fail(err, -1, name, NULL, "closing");
    return status;
}

/* ---- links and groups -------------------------------------------------------------------------------------- */

bool ag_h5_exists(hid_t at, const char *name) {
    quiet();
    char part[512];
    size_t n = strlen(name);
    if (n >= sizeof part) return false;
    if (!strcmp(name, ".") || !strcmp(name, "/")) return true;
    for (size_t i = 1; i <= n; i++) {
        if (i < n && name[i] != '/') continue;
        memcpy(part, name, i);
        part[i] = 0;
        if (H5Lexists(at, part, H5P_DEFAULT) <= 0) return false;
    }
    bool there = H5Oexists_by_name(at, name, H5P_DEFAULT) > 0; /* a link may dangle */
    H5Eclear2(H5E_DEFAULT);
    return there;
}

bool ag_h5_has_attribute(hid_t at, const char *name, const char *attribute) {
    quiet();
    return ag_h5_exists(at, name) && H5Aexists_by_name(at, name, attribute, H5P_DEFAULT) > 0;
}

enum ag_status ag_h5_group(hid_t *group, hid_t at, const char *name, struct ag_error *err) {
    *group = ag_h5_exists(at, name) ? H5Gopen2(at, name, H5P_DEFAULT) : -1;
    return *group >= 0 ? AG_OK : broken(err, at, name, NULL, "nothing that can be read", "a group");
}

/* Link creation that makes missing parents. */
static hid_t link_list(void) {
    hid_t list = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(list, 1);
    return list;
}

enum ag_status ag_h5_make_group(hid_t *group, hid_t at, const char *name, struct ag_error *err) {
    if (ag_h5_exists(at, name)) return ag_h5_group(group, at, name, err);
    hid_t list = link_list();
    *group = H5Gcreate2(at, name, list, H5P_DEFAULT, H5P_DEFAULT);
    enum ag_status status = *group >= 0 ? AG_OK : ag_h5_fail(err, at, NULL, name, "making the group");
    H5Pclose(list);
    return status;
}

enum ag_status ag_h5_link(hid_t at, const char *name, const char *existing, struct ag_error *err) {
    quiet();
    hid_t list = link_list();
    enum ag_status status = AG_OK;
    if (H5Lcreate_hard(at, existing, at, name, list, H5P_DEFAULT) < 0)
        status = ag_h5_fail(err, at, NULL, name, "making the link");
    H5Pclose(list);
    return status;
}

/* ---- attributes -------------------------------------------------------------------------------------------- */

static enum ag_status write_attribute(hid_t at, const char *name, const char *attribute, hid_t file_type, hid_t memory,
                                      const void *data, int64_t n, struct ag_error *err) {
    hsize_t dims = (hsize_t)n;
    hid_t space = n < 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &dims, NULL), id = -1;
    bool ok = file_type >= 0 && memory >= 0 && space >= 0;
    if (ok && H5Aexists_by_name(at, name, attribute, H5P_DEFAULT) > 0)
        ok = H5Adelete_by_name(at, name, attribute, H5P_DEFAULT) >= 0;
    if (ok) id = H5Acreate_by_name(at, name, attribute, file_type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    ok = id >= 0 && H5Awrite(id, memory, data) >= 0;
    char doing[128];
    snprintf(doing, sizeof doing, "writing attribute %.80s", attribute);
    /* The reason is taken at once: the next call of the library, even a close, clears it. */
    enum ag_status status = ok ? AG_OK : ag_h5_fail(err, at, NULL, name, doing);
    if (id >= 0 && H5Aclose(id) < 0 && status == AG_OK) status = ag_h5_fail(err, at, NULL, name, doing);
    if (space >= 0) H5Sclose(space);
    return status;
}

enum ag_status ag_h5_set_text(hid_t at, const char *name, const char *attribute, const char *text,
                              struct ag_error *err) {
    quiet();
    if (!text) text = "";
    hid_t type = text_type();
    enum ag_status status = write_attribute(at, name, attribute, type, type, &text, -1, err);
    if (type >= 0) H5Tclose(type);
    return status;
}

enum ag_status ag_h5_set(hid_t at, const char *name, const char *attribute, enum ag_h5_type type, const void *data,
                         int64_t n, struct ag_error *err) {
    quiet();
    hid_t file_type = ag_h5_file_type(type), memory = memory_type(type);
    enum ag_status status = write_attribute(at, name, attribute, file_type, memory, data, n, err);
    if (file_type >= 0) H5Tclose(file_type);
    if (memory >= 0) H5Tclose(memory);
    return status;
}

enum ag_status ag_h5_set_i64(hid_t at, const char *name, const char *attribute, int64_t value, struct ag_error *err) {
    return ag_h5_set(at, name, attribute, AG_H5_I64, &value, -1, err);
}

enum ag_status ag_h5_set_f64(hid_t at, const char *name, const char *attribute, double value, struct ag_error *err) {
    return ag_h5_set(at, name, attribute, AG_H5_F64, &value, -1, err);
}

/* Opens an attribute and its type. */
static enum ag_status open_attribute(hid_t *id, hid_t *type, hid_t at, const char *name, const char *attribute,
                                     const char *expected, struct ag_error *err) {
    quiet();
    *id = *type = -1;
    if (!ag_h5_has_attribute(at, name, attribute)) return broken(err, at, name, attribute, "nothing", expected);
    *id = H5Aopen_by_name(at, name, attribute, H5P_DEFAULT, H5P_DEFAULT);
    if (*id >= 0) *type = H5Aget_type(*id);
    return *type >= 0 ? AG_OK : broken(err, at, name, attribute, "something unreadable", expected);
}

enum ag_status ag_h5_get_text(const char **text, hid_t at, const char *name, const char *attribute,
                              struct ag_arena *arena, struct ag_error *err) {
    enum ag_status status;
    hid_t id = -1, type = -1, memory = -1, space = -1;
    char *piece = NULL;
    *text = NULL;
    AG_TRY(open_attribute(&id, &type, at, name, attribute, "a text", err));
    space = H5Aget_space(id);
    if (H5Tget_class(type) != H5T_STRING || space < 0 || H5Sget_simple_extent_npoints(space) != 1) {
        status = broken(err, at, name, attribute, "another type", "one text");
        goto fail;
    }
    if (H5Tis_variable_str(type) > 0) {
        memory = H5Tcopy(H5T_C_S1);
        H5Tset_size(memory, H5T_VARIABLE);
        H5Tset_cset(memory, H5Tget_cset(type));
        if (H5Aread(id, memory, &piece) < 0) {
            status = ag_h5_fail(err, at, NULL, name, "reading a text attribute");
            goto fail;
        }
        *text = ag_arena_text(arena, piece ? piece : "", piece ? strlen(piece) : 0, err);
    } else {
        size_t size = H5Tget_size(type);
        char *buffer = ag_arena_zeros(arena, (int64_t)size + 1, 1, err);
        if (!buffer) {
            status = AG_E_MEMORY;
            goto fail;
        }
        if (H5Aread(id, type, buffer) < 0) {
            status = ag_h5_fail(err, at, NULL, name, "reading a text attribute");
            goto fail;
        }
        if (H5Tget_strpad(type) == H5T_STR_SPACEPAD)
            while (size > 0 && buffer[size - 1] == ' ') buffer[--size] = 0;
        *text = buffer;
    }
    if (!*text) status = AG_E_MEMORY;
fail:
    if (piece) H5free_memory(piece);
    if (memory >= 0) H5Tclose(memory);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    if (id >= 0) H5Aclose(id);
    return status;
}

enum ag_status ag_h5_get(void *data, hid_t at, const char *name, const char *attribute, enum ag_h5_type type, int64_t n,
                         struct ag_error *err) {
    enum ag_status status;
    hid_t id = -1, file_type = -1, memory = -1, space = -1;
    char found[64], expected[64];
    AG_TRY(open_attribute(&id, &file_type, at, name, attribute, type_names[type], err));
    if (!fits(file_type, type, found)) {
        snprintf(expected, sizeof expected, "%s (or narrower)", type_names[type]);
        status = broken(err, at, name, attribute, found, expected);
        goto fail;
    }
    space = H5Aget_space(id);
    int64_t have = space < 0 ? -1 : (int64_t)H5Sget_simple_extent_npoints(space);
    if (have != (n < 0 ? 1 : n) || (n >= 0 && H5Sget_simple_extent_ndims(space) != 1)) {
        snprintf(found, sizeof found, "%lld elements", (long long)have);
        snprintf(expected, sizeof expected, n < 0 ? "one number" : "a list of %lld", (long long)n);
        status = broken(err, at, name, attribute, found, expected);
        goto fail;
    }
    memory = memory_type(type);
    if (memory < 0 || (have > 0 && H5Aread(id, memory, data) < 0))
        status = ag_h5_fail(err, at, NULL, name, "reading an attribute");
fail:
    if (memory >= 0) H5Tclose(memory);
    if (space >= 0) H5Sclose(space);
    if (file_type >= 0) H5Tclose(file_type);
    if (id >= 0) H5Aclose(id);
    return status;
}

enum ag_status ag_h5_get_i64(int64_t *value, hid_t at, const char *name, const char *attribute, struct ag_error *err) {
    return ag_h5_get(value, at, name, attribute, AG_H5_I64, -1, err);
}

enum ag_status ag_h5_get_f64(double *value, hid_t at, const char *name, const char *attribute, struct ag_error *err) {
    return ag_h5_get(value, at, name, attribute, AG_H5_F64, -1, err);
}

/* ---- datasets ---------------------------------------------------------------------------------------------- */

const char *ag_h5_shape_text(char out[96], int rank, const int64_t *dims) {
    size_t n = (size_t)snprintf(out, 96, "(");
    for (int i = 0; i < rank && n < 80; i++) {
        if (dims[i] < 0)
            n += (size_t)snprintf(out + n, 96 - n, "%s*", i ? ", " : "");
        else
            n += (size_t)snprintf(out + n, 96 - n, "%s%lld", i ? ", " : "", (long long)dims[i]);
    }
    snprintf(out + n, 96 - n, rank == 1 ? ",)" : ")");
    return out;
}

static enum ag_status write_dataset(hid_t at, const char *name, hid_t file_type, hid_t memory, int rank,
                                    const int64_t *dims, const void *data, struct ag_error *err) {
    hsize_t extent[AG_H5_MAX_RANK] = {0};
    int64_t elements = 1;
    if (rank < 1 || rank > AG_H5_MAX_RANK) return ag_fail(err, AG_E_INTERNAL, "dataset %s of rank %d", name, rank);
    for (int i = 0; i < rank; i++) {
        extent[i] = (hsize_t)dims[i];
        elements = dims[i] > 0 && elements > 0 ? 1 : 0;
    }
    hid_t links = link_list(), create = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(rank, extent, NULL);
    H5Pset_obj_track_times(create, 0); /* equal contents give equal bytes */
    hid_t id = file_type < 0 || memory < 0 || space < 0
                   ? -1
                   : H5Dcreate2(at, name, file_type, space, links, create, H5P_DEFAULT);
    bool ok = id >= 0 && (elements == 0 || H5Dwrite(id, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    enum ag_status status = ok ? AG_OK : ag_h5_fail(err, at, NULL, name, "writing the dataset");
    if (id >= 0 && H5Dclose(id) < 0 && status == AG_OK) status = ag_h5_fail(err, at, NULL, name, "writing the dataset");
    if (space >= 0) H5Sclose(space);
    H5Pclose(create);
    H5Pclose(links);
    return status;
}

enum ag_status ag_h5_write(hid_t at, const char *name, enum ag_h5_type type, int rank, const int64_t *dims,
                           const void *data, struct ag_error *err) {
    quiet();
    hid_t file_type = ag_h5_file_type(type), memory = memory_type(type);
    enum ag_status status = write_dataset(at, name, file_type, memory, rank, dims, data, err);
    if (file_type >= 0) H5Tclose(file_type);
    if (memory >= 0) H5Tclose(memory);
    return status;
}

enum ag_status ag_h5_write_texts(hid_t at, const char *name, const char *const *texts, int64_t n,
                                 struct ag_error *err) {
    quiet();
    hid_t type = text_type();
    enum ag_status status = write_dataset(at, name, type, type, 1, &n, texts, err);
    if (type >= 0) H5Tclose(type);
    return status;
}

static enum ag_status open_dataset(hid_t *id, hid_t at, const char *name, struct ag_error *err) {
    quiet();
    *id = -1;
    if (!ag_h5_exists(at, name)) return broken(err, at, name, NULL, "nothing", "a dataset");
    *id = H5Dopen2(at, name, H5P_DEFAULT);
    return *id >= 0 ? AG_OK : broken(err, at, name, NULL, "something else", "a dataset");
}

static enum ag_status extent_of(int *rank, int64_t dims[AG_H5_MAX_RANK], hid_t id, hid_t at, const char *name,
                                struct ag_error *err) {
    hsize_t extent[H5S_MAX_RANK];
    hid_t space = H5Dget_space(id);
    *rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    bool ok = *rank >= 0 && *rank <= AG_H5_MAX_RANK && H5Sget_simple_extent_dims(space, extent, NULL) == *rank;
    for (int i = 0; ok && i < *rank; i++) {
        if (extent[i] > INT64_MAX) ok = false;
        dims[i] = (int64_t)extent[i];
    }
    if (space >= 0) H5Sclose(space);
    return ok ? AG_OK : broken(err, at, name, NULL, "an unusable shape", "at most four dimensions");
}

enum ag_status ag_h5_shape(int *rank, int64_t dims[AG_H5_MAX_RANK], hid_t at, const char *name, struct ag_error *err) {
    hid_t id;
    enum ag_status status = open_dataset(&id, at, name, err);
    if (status != AG_OK) return status;
    status = extent_of(rank, dims, id, at, name, err);
    H5Dclose(id);
    return status;
}

static enum ag_status match(hid_t id, hid_t at, const char *name, int rank, int64_t *dims, struct ag_error *err) {
    int have;
    int64_t found[AG_H5_MAX_RANK] = {0};
    enum ag_status status = extent_of(&have, found, id, at, name, err);
    if (status != AG_OK) return status;
    bool ok = have == rank;
    for (int i = 0; ok && i < rank; i++) ok = dims[i] < 0 || dims[i] == found[i];
    char a[96], b[96];
    if (!ok) return broken(err, at, name, NULL, ag_h5_shape_text(a, have, found), ag_h5_shape_text(b, rank, dims));
    for (int i = 0; i < rank; i++) dims[i] = found[i];
    return AG_OK;
}

enum ag_status ag_h5_check_shape(hid_t at, const char *name, int rank, int64_t *dims, struct ag_error *err) {
    hid_t id;
    enum ag_status status = open_dataset(&id, at, name, err);
    if (status != AG_OK) return status;
    status = match(id, at, name, rank, dims, err);
    H5Dclose(id);
    return status;
}

enum ag_status ag_h5_read(void **data, hid_t at, const char *name, enum ag_h5_type type, int rank, int64_t *dims,
                          struct ag_arena *arena, struct ag_error *err) {
    enum ag_status status;
    hid_t id = -1, file_type = -1, memory = -1;
    char found[64], expected[64];
    int64_t elements = 1;
    *data = NULL;
    AG_TRY(open_dataset(&id, at, name, err));
    AG_TRY(match(id, at, name, rank, dims, err));
    file_type = H5Dget_type(id);
    if (file_type < 0 || !fits(file_type, type, found)) {
        snprintf(expected, sizeof expected, "elements of type %s", type_names[type]);
        status = broken(err, at, name, NULL, file_type < 0 ? "an unreadable type" : found, expected);
        goto fail;
    }
    for (int i = 0; i < rank; i++) {
        if (!ag_mul(elements, dims[i], &elements)) {
            status = broken(err, at, name, NULL, "more elements than memory can hold", "a real size");
            goto fail;
        }
    }
    *data = ag_arena_alloc(arena, elements, (size_t)sizes[type], err);
    if (!*data) {
        status = AG_E_MEMORY;
        goto fail;
    }
    memory = memory_type(type);
    if (memory < 0 || (elements > 0 && H5Dread(id, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, *data) < 0))
        status = ag_h5_fail(err, at, NULL, name, "reading the dataset");
fail:
    if (memory >= 0) H5Tclose(memory);
    if (file_type >= 0) H5Tclose(file_type);
    if (id >= 0) H5Dclose(id);
    return status;
}

enum ag_status ag_h5_read_texts(const char *const **texts, hid_t at, const char *name, int64_t *n,
                                struct ag_arena *arena, struct ag_error *err) {
    enum ag_status status;
    hid_t id = -1, type = -1, memory = -1, space = -1;
    char **pieces = NULL, *fixed = NULL;
    bool variable = false;
    *texts = NULL;
    AG_TRY(open_dataset(&id, at, name, err));
    AG_TRY(match(id, at, name, 1, n, err));
    type = H5Dget_type(id);
    if (type < 0 || H5Tget_class(type) != H5T_STRING) {
        status = broken(err, at, name, NULL, "another type", "texts");
        goto fail;
    }
    variable = H5Tis_variable_str(type) > 0;
    size_t size = variable ? sizeof(char *) : H5Tget_size(type);
    const char **out = AG_NEW(arena, const char *, *n, err);
    void *raw = ag_arena_zeros(arena, *n, size, err);
    if (!out || !raw) {
        status = AG_E_MEMORY;
        goto fail;
    }
    memory = H5Tcopy(variable ? H5T_C_S1 : type);
    if (variable) {
        H5Tset_size(memory, H5T_VARIABLE);
        H5Tset_cset(memory, H5Tget_cset(type));
        pieces = raw;
    } else {
        fixed = raw;
    }
    space = H5Dget_space(id);
    if (*n > 0 && H5Dread(id, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw) < 0) {
        status = ag_h5_fail(err, at, NULL, name, "reading the texts");
        goto fail;
    }
    for (int64_t i = 0; i < *n && status == AG_OK; i++) {
        const char *piece = variable ? (pieces[i] ? pieces[i] : "") : fixed + (size_t)i * size;
        out[i] = ag_arena_text(arena, piece, variable ? strlen(piece) : strnlen(piece, size), err);
        if (!out[i]) status = AG_E_MEMORY;
    }
    if (pieces && *n > 0) H5Dvlen_reclaim(memory, space, H5P_DEFAULT, pieces);
    *texts = out;
fail:
    if (space >= 0) H5Sclose(space);
    if (memory >= 0) H5Tclose(memory);
    if (type >= 0) H5Tclose(type);
    if (id >= 0) H5Dclose(id);
    return status;
}

/* ---- results files ----------------------------------------------------------------------------------------- */

/* Somebody else holds a lock on the file. */
static bool is_locked(const char *path) {
    if (!locking()) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool busy = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    close(fd);
    return busy;
}

enum ag_status ag_h5_out_check(const char *path, bool force, struct ag_error *err) {
    struct stat info;
    if (!*path) return ag_fail(err, AG_E_USAGE, "the name of the file to write is empty");
    if (strlen(path) >= sizeof(((struct ag_h5_out *)0)->path))
        return ag_fail(err, AG_E_USAGE, "%.60s...: the name of the file to write is too long", path);
    if (!stat(path, &info)) {
        if (!S_ISREG(info.st_mode))
            return ag_fail(err, AG_E_IO, "%s: is %s; give the name of a file to write", path,
                           S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
        if (!force)
            return ag_fail(err, AG_E_IO, "%s: exists already; choose another name or replace it with --force", path);
        if (is_locked(path))
            return ag_fail(err, AG_E_IO,
                           "%s: cannot be replaced, another program has it open (locked); close that program, choose "
                           "another name, or set the environment variable HDF5_USE_FILE_LOCKING=FALSE",
                           path);
    } else if (path[strlen(path) - 1] == '/') {
        return ag_fail(err, AG_E_IO, "%s: is a folder's name; give the name of a file to write", path);
    }
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == folder)
        slash[1] = 0;
    else if (slash)
        *slash = 0;
    else
        snprintf(folder, sizeof folder, ".");
    if (stat(folder, &info) || !S_ISDIR(info.st_mode))
        return ag_fail(err, AG_E_IO, "%s: cannot be written: there is no folder %s; make it first", path, folder);
    if (access(folder, W_OK | X_OK))
        return ag_fail(err, AG_E_IO, "%s: cannot be written: folder %s: %s", path, folder, strerror(errno));
    return AG_OK;
}

enum ag_status ag_h5_out_begin(struct ag_h5_out *out, const char *path, bool force, struct ag_error *err) {
    out->file = -1;
    out->path[0] = out->temporary[0] = 0;
    enum ag_status status = ag_h5_out_check(path, force, err);
    if (status != AG_OK) return status;
    snprintf(out->path, sizeof out->path, "%s", path);
    snprintf(out->temporary, sizeof out->temporary, "%s.%ld.tmp", path, (long)getpid());
    status = ag_h5_create(&out->file, out->temporary, err);
    if (status != AG_OK) ag_h5_out_discard(out);
    return status;
}

enum ag_status ag_h5_out_commit(struct ag_h5_out *out, struct ag_error *err) {
    enum ag_status status = ag_h5_close(out->file, err);
    out->file = -1;
    int fd = status == AG_OK ? open(out->temporary, O_RDONLY | O_CLOEXEC) : -1;
    if (status == AG_OK && (fd < 0 || fsync(fd)))
        status = ag_fail(err, AG_E_IO, "%s: writing failed: %s", out->path, strerror(errno));
    if (fd >= 0 && close(fd) && status == AG_OK)
        status = ag_fail(err, AG_E_IO, "%s: closing failed: %s", out->path, strerror(errno));
    if (status == AG_OK && rename(out->temporary, out->path))
        status = ag_fail(err, AG_E_IO, "%s: cannot be given its name: %s", out->path, strerror(errno));
    if (status == AG_OK) out->temporary[0] = 0;
    ag_h5_out_discard(out);
    return status;
}

void ag_h5_out_discard(struct ag_h5_out *out) {
    if (out->file >= 0) H5Fclose(out->file);
    out->file = -1;
    if (out->temporary[0]) unlink(out->temporary);
    out->temporary[0] = 0;
    H5Eclear2(H5E_DEFAULT);
}
