/* base/file.h: files in and files out. Reading is by pread into memory of ours (nothing is mapped: a file that shrinks
 * is an error, not a signal). Writing goes to a temporary name beside the target and is renamed when whole. */
#ifndef AG_BASE_FILE_H
#define AG_BASE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ag_file {
    int fd;
    uint64_t size;    /* bytes, when opened */
    const char *path; /* kept by pointer: must outlive the file */
};

/* Opens a regular file for reading (a directory, fifo or device is refused by name). */
enum ag_status ag_file_open(struct ag_file *file, const char *path, struct ag_error *err);
/* Exactly n bytes at offset; a short read is AG_E_IO ("ends after ..., shrank while in use?"). */
enum ag_status ag_file_read(const struct ag_file *file, void *out, uint64_t offset, uint64_t n, struct ag_error *err);
void ag_file_close(struct ag_file *file);
/* A whole file into the arena, NUL-terminated; more than limit bytes is refused. */
enum ag_status ag_file_text(const char **out, size_t *size, const char *path, uint64_t limit, struct ag_arena *arena,
                            struct ag_error *err);

enum ag_kind { AG_KIND_NONE, AG_KIND_FILE, AG_KIND_FOLDER, AG_KIND_OTHER };
enum ag_kind ag_path_kind(const char *path);
/* folder + "/" + name, in the arena; NULL with err set when out of memory. */
const char *ag_path_join(struct ag_arena *arena, const char *folder, const char *name, struct ag_error *err);
/* Makes a folder and its missing parents. */
enum ag_status ag_path_make_folder(const char *path, struct ag_error *err);
/* Bytes free to us on the file system that holds (or will hold) path; UINT64_MAX when unknown. */
uint64_t ag_path_free_space(const char *path);

/* A text or binary file being written: path.PID.tmp beside path, renamed by ag_out_commit. An existing path is refused
 * without force. ag_out_discard (also after a failed commit) removes the temporary file; both close stream. */
struct ag_out {
    FILE *stream;
    char path[4096], temporary[4096];
};
enum ag_status ag_out_begin(struct ag_out *out, const char *path, bool force, struct ag_error *err);
enum ag_status ag_out_commit(struct ag_out *out, struct ag_error *err); /* checks flush, fsync, close and rename */
void ag_out_discard(struct ag_out *out);

/* SHA-256 (libcrypto), as 64 lower-case hex digits and a NUL. */
#define AG_SHA256_HEX 65
enum ag_status ag_sha256_file(char hex[AG_SHA256_HEX], const char *path, struct ag_error *err);
enum ag_status ag_sha256_bytes(char hex[AG_SHA256_HEX], const void *data, size_t n, struct ag_error *err);

#ifdef __cplusplus
}
#endif
#endif
