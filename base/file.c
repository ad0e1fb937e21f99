/* base/file.c: see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum ag_status ag_file_open(struct ag_file *file, const char *path, struct ag_error *err) {
    *file = (struct ag_file){-1, 0, path};
    /* O_NONBLOCK: opening a fifo must not wait for its writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ag_fail(err, AG_E_IO, "%s: cannot be opened for reading (%s)", path, strerror(errno));
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        const char *what = S_ISDIR(info.st_mode) ? "a directory" : "not a regular file";
        close(fd);
        return ag_fail(err, AG_E_IO, "%s: is %s; a regular file is expected", path, what);
    }
    file->fd = fd;
    file->size = (uint64_t)info.st_size;
    return AG_OK;
}

enum ag_status ag_file_read(const struct ag_file *file, void *out, uint64_t offset, uint64_t n, struct ag_error *err) {
    if (offset > file->size || n > file->size - offset)
        return ag_fail(err, AG_E_FORMAT,
                       "%s: %llu bytes at %llu lie beyond its end at %llu; the file is cut or damaged", file->path,
                       (unsigned long long)n, (unsigned long long)offset, (unsigned long long)file->size);
    char *to = out;
    while (n > 0) {
        ssize_t got = pread(file->fd, to, n < (1u << 30) ? n : (1u << 30), (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return ag_fail(err, AG_E_IO, "%s: reading at %llu failed (%s)", file->path, (unsigned long long)offset,
                           strerror(errno));
        if (got == 0)
            return ag_fail(err, AG_E_IO,
                           "%s: ends at %llu but had %llu bytes when it was opened; it shrank while in use", file->path,
                           (unsigned long long)offset, (unsigned long long)file->size);
        to += got;
        offset += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return AG_OK;
}

void ag_file_close(struct ag_file *file) {
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}

enum ag_status ag_file_text(const char **out, size_t *size, const char *path, uint64_t limit, struct ag_arena *arena,
                            struct ag_error *err) {
    struct ag_file file;
    enum ag_status status = ag_file_open(&file, path, err);
    if (status != AG_OK) return status;
    char *text = NULL;
    if (file.size > limit)
        status = ag_fail(err, AG_E_FORMAT, "%s: has %llu bytes; at most %llu are read here", path,
                         (unsigned long long)file.size, (unsigned long long)limit);
    else if ((text = ag_arena_alloc(arena, (int64_t)file.size + 1, 1, err)) == NULL)
        status = AG_E_MEMORY;
    else
        status = ag_file_read(&file, text, 0, file.size, err);
    if (status == AG_OK) {
        text[file.size] = '\0';
        *out = text;
        *size = (size_t)file.size;
    }
    ag_file_close(&file);
    return status;
}

enum ag_kind ag_path_kind(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return AG_KIND_NONE;
    return S_ISREG(info.st_mode) ? AG_KIND_FILE : S_ISDIR(info.st_mode) ? AG_KIND_FOLDER : AG_KIND_OTHER;
}

const char *ag_path_join(struct ag_arena *arena, const char *folder, const char *name, struct ag_error *err) {
    size_t a = strlen(folder), b = strlen(name);
    while (a > 1 && folder[a - 1] == '/') a--;
    char *path = ag_arena_alloc(arena, (int64_t)(a + b + 2), 1, err);
    if (path == NULL) return NULL;
    memcpy(path, folder, a);
    path[a] = '/';
    memcpy(path + a + 1, name, b + 1);
    return path;
}

enum ag_status ag_path_make_folder(const char *path, struct ag_error *err) {
    char partial[4096];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof partial) return ag_fail(err, AG_E_USAGE, "a folder name of %zu bytes is not usable", n);
    memcpy(partial, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (partial[i] != '/' && partial[i] != '\0') continue;
        char keep = partial[i];
        partial[i] = '\0';
        if (mkdir(partial, 0777) != 0 && errno != EEXIST)
            return ag_fail(err, AG_E_IO, "%s: the folder cannot be made (%s)", partial, strerror(errno));
        partial[i] = keep;
    }
    if (ag_path_kind(path) != AG_KIND_FOLDER) return ag_fail(err, AG_E_IO, "%s: exists and is no folder", path);
    return AG_OK;
}

uint64_t ag_path_free_space(const char *path) {
    char copy[4096];
    if (strlen(path) >= sizeof copy) return UINT64_MAX;
    strcpy(copy, path);
    struct statvfs info;
    if (statvfs(dirname(copy), &info) != 0) return UINT64_MAX;
    return (uint64_t)info.f_bavail * info.f_frsize;
}

enum ag_status ag_out_begin(struct ag_out *out, const char *path, bool force, struct ag_error *err) {
    *out = (struct ag_out){0};
    size_t n = strlen(path);
    if (n == 0 || n > sizeof out->path - 32)
        return ag_fail(err, AG_E_USAGE, "an output name of %zu bytes is not usable", n);
    enum ag_kind kind = ag_path_kind(path);
    if (kind == AG_KIND_FOLDER) return ag_fail(err, AG_E_IO, "%s: is a folder; a file name is expected", path);
    if (kind == AG_KIND_OTHER) /* a rename would replace the device, with --force even /dev/null */
        return ag_fail(err, AG_E_IO, "%s: is a device, pipe or socket; a file name is expected", path);
    if (kind != AG_KIND_NONE && !force)
        return ag_fail(err, AG_E_IO, "%s: exists already; give another name or --force to replace it", path);
    memcpy(out->path, path, n + 1);
    snprintf(out->temporary, sizeof out->temporary, "%.*s.%ld.tmp", (int)(sizeof out->path - 32), path, (long)getpid());
    out->stream = fopen(out->temporary, "wbe");
    if (out->stream == NULL)
        return ag_fail(err, AG_E_IO, "%s: cannot be opened for writing (%s)", out->temporary, strerror(errno));
    return AG_OK;
}

enum ag_status ag_out_commit(struct ag_out *out, struct ag_error *err) {
    bool ok = ferror(out->stream) == 0 && fflush(out->stream) == 0 && fsync(fileno(out->stream)) == 0;
    int code = errno;
    if (fclose(out->stream) != 0 && ok) {
        ok = false;
        code = errno;
    }
    out->stream = NULL;
    if (!ok || rename(out->temporary, out->path) != 0) {
        if (ok) code = errno;
        ag_fail(err, AG_E_IO, "%s: could not be written whole (%s); nothing was left behind", out->path,
                strerror(code));
        ag_out_discard(out);
        return AG_E_IO;
    }
    out->temporary[0] = '\0';
    return AG_OK;
}

void ag_out_discard(struct ag_out *out) {
    if (out->stream != NULL) fclose(out->stream);
    out->stream = NULL;
    if (out->temporary[0] != '\0') unlink(out->temporary);
    out->temporary[0] = '\0';
}

static void to_hex(char hex[AG_SHA256_HEX], const unsigned char *digest) {
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

enum ag_status ag_sha256_bytes(char hex[AG_SHA256_HEX], const void *data, size_t n, struct ag_error *err) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    if (EVP_Digest(data, n, digest, NULL, EVP_sha256(), NULL) != 1)
        return ag_fail(err, AG_E_INTERNAL, "SHA-256 is not available in libcrypto");
    to_hex(hex, digest);
    return AG_OK;
}

enum ag_status ag_sha256_file(char hex[AG_SHA256_HEX], const char *path, struct ag_error *err) {
    struct ag_file file;
    enum ag_status status = ag_file_open(&file, path, err);
    if (status != AG_OK) return status;
    const size_t piece = 1 << 20;
    void *buffer = malloc(piece);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    unsigned char digest[EVP_MAX_MD_SIZE];
    if (buffer == NULL || context == NULL || EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        status = ag_fail(err, AG_E_MEMORY, "%s: no memory for its SHA-256", path);
        goto fail;
    }
    for (uint64_t at = 0; at < file.size; at += piece) {
        uint64_t n = file.size - at < piece ? file.size - at : piece;
        AG_TRY(ag_file_read(&file, buffer, at, n, err));
        EVP_DigestUpdate(context, buffer, n);
    }
    EVP_DigestFinal_ex(context, digest, NULL);
    to_hex(hex, digest);
fail:
    EVP_MD_CTX_free(context);
    free(buffer);
    ag_file_close(&file);
    return status;
}
