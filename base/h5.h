/* base/h5.h: HDF5 with our manners. Files are written in the earliest format that holds them, so that every HDF5 since
 * 1.6 reads them. The library's own error printing is switched off; a failure becomes one line that names file, object,
 * what was found, what was expected and what to do. Every function that writes or closes is checked: with HDF5 1.10 a
 * full disk shows only in the flush.
 *
 * `at` is a file, group or dataset and `name` a path below it ("." the object itself). Debian's library is not
 * thread-safe: one thread at a time calls into it. */
#ifndef AG_BASE_H5_H
#define AG_BASE_H5_H

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. In files they are little-endian; F16 is IEEE half, BF16 a 16-bit float with 8 exponent bits (h5py
 * shows it as float32). F16 and BF16 are read and written as raw 16-bit patterns (uint16_t), without conversion. */
enum ag_h5_type {
    AG_H5_I8,
    AG_H5_U8,
    AG_H5_I16,
    AG_H5_I32,
    AG_H5_I64,
    AG_H5_F32,
    AG_H5_F64,
    AG_H5_F16,
    AG_H5_BF16,
    AG_H5_TYPE_COUNT
};
/* Bytes of one element. */
int64_t ag_h5_size(enum ag_h5_type type);
/* The type in a file; the caller closes it with H5Tclose. Negative when the library refuses. */
hid_t ag_h5_file_type(enum ag_h5_type type);

/* Opens for reading. Refused by name: no such file, folder, not HDF5, cut short, locked by a writer. */
enum ag_status ag_h5_open(hid_t *file, const char *path, struct ag_error *err);
/* A new file, replacing what is there (callers write to a temporary name: see ag_h5_out). */
enum ag_status ag_h5_create(hid_t *file, const char *path, struct ag_error *err);
/* Flush (of a file open for writing) and close, both checked, with everything in it that is still open. The handle is
 * gone afterwards, also on failure. */
enum ag_status ag_h5_close(hid_t file, struct ag_error *err);

/* Is there an object (link) of that name? Missing parents are a plain false. */
bool ag_h5_exists(hid_t at, const char *name);
bool ag_h5_has_attribute(hid_t at, const char *name, const char *attribute);
/* Opens a group (H5Gclose it); ag_h5_make_group makes it, with missing parents, where it is not there. */
enum ag_status ag_h5_group(hid_t *group, hid_t at, const char *name, struct ag_error *err);
enum ag_status ag_h5_make_group(hid_t *group, hid_t at, const char *name, struct ag_error *err);
/* A second name for an object that exists (hard link); missing parents are made. */
enum ag_status ag_h5_link(hid_t at, const char *name, const char *existing, struct ag_error *err);

/* Attributes. Text is variable-length UTF-8 (h5py: str). n = -1 makes a scalar, else an array of n (at most 64 KiB in
 * all: longer lists belong into a dataset). */
enum ag_status ag_h5_set_text(hid_t at, const char *name, const char *attribute, const char *text,
                              struct ag_error *err);
enum ag_status ag_h5_set(hid_t at, const char *name, const char *attribute, enum ag_h5_type type, const void *data,
                         int64_t n, struct ag_error *err);
enum ag_status ag_h5_set_i64(hid_t at, const char *name, const char *attribute, int64_t value, struct ag_error *err);
enum ag_status ag_h5_set_f64(hid_t at, const char *name, const char *attribute, double value, struct ag_error *err);
/* Reading: fixed or variable text; numbers of the same class (integer or float) that fit without loss. Missing,
 * another type or another length: AG_E_FORMAT. get: exactly n elements (-1: a scalar) into data, element type as given.
 */
enum ag_status ag_h5_get_text(const char **text, hid_t at, const char *name, const char *attribute,
                              struct ag_arena *arena, struct ag_error *err);
enum ag_status ag_h5_get(void *data, hid_t at, const char *name, const char *attribute, enum ag_h5_type type, int64_t n,
                         struct ag_error *err);
enum ag_status ag_h5_get_i64(int64_t *value, hid_t at, const char *name, const char *attribute, struct ag_error *err);
enum ag_status ag_h5_get_f64(double *value, hid_t at, const char *name, const char *attribute, struct ag_error *err);

#define AG_H5_MAX_RANK 4
/* A new dataset, contiguous, with its data; missing parents are made. A dimension may be 0. */
enum ag_status ag_h5_write(hid_t at, const char *name, enum ag_h5_type type, int rank, const int64_t *dims,
                           const void *data, struct ag_error *err);
enum ag_status ag_h5_write_texts(hid_t at, const char *name, const char *const *texts, int64_t n, struct ag_error *err);
/* Rank (0 for a scalar) and dimensions of a dataset. */
enum ag_status ag_h5_shape(int *rank, int64_t dims[AG_H5_MAX_RANK], hid_t at, const char *name, struct ag_error *err);
/* Shape against what is expected: -1 in dims accepts any extent and receives it. "found (3, 64), expected (4, 64)". */
enum ag_status ag_h5_check_shape(hid_t at, const char *name, int rank, int64_t *dims, struct ag_error *err);
/* A whole dataset into the arena, shape checked as above. The element class must be the same and fit without loss (F16
 * and BF16: exactly that type). */
enum ag_status ag_h5_read(void **data, hid_t at, const char *name, enum ag_h5_type type, int rank, int64_t *dims,
                          struct ag_arena *arena, struct ag_error *err);
/* n texts (-1: any number, received). */
enum ag_status ag_h5_read_texts(const char *const **texts, hid_t at, const char *name, int64_t *n,
                                struct ag_arena *arena, struct ag_error *err);
/* "(3, *, 64)" */
const char *ag_h5_shape_text(char out[96], int rank, const int64_t *dims);

/* Turns the library's error stack into a message "FILE: OBJECT: doing what: reason". at may be negative when path says
 * which file. Returns AG_E_IO. */
enum ag_status ag_h5_fail(struct ag_error *err, hid_t at, const char *path, const char *name, const char *doing);

/* A results file being written: path.PID.tmp beside path, renamed when whole. An existing path is refused without
 * force, and with force when another program holds it locked. */
struct ag_h5_out {
    hid_t file;
    char path[4096], temporary[4160];
};
/* The checks of begin alone, for a command that writes only after long work. */
enum ag_status ag_h5_out_check(const char *path, bool force, struct ag_error *err);
enum ag_status ag_h5_out_begin(struct ag_h5_out *out, const char *path, bool force, struct ag_error *err);
/* Flush, close, fsync, rename; discarded on failure. */
enum ag_status ag_h5_out_commit(struct ag_h5_out *out, struct ag_error *err);
void ag_h5_out_discard(struct ag_h5_out *out);

#ifdef __cplusplus
}
#endif
#endif
