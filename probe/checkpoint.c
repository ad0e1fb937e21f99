/* Opening a checkpoint: which files there are, their tensors in one table sorted by name, and reading rows. The formats
 * are in safetensors.c and gguf.c. */
#include "probe/checkpoint_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_LIMIT (16u << 20) /* bytes of config.json */
#define INDEX_LIMIT (64u << 20)  /* bytes of an index: a few hundred thousand tensors */

bool ckpt_utf8_valid(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        unsigned char c = s[i];
        size_t more = c < 0x80                ? 0
                      : c >= 0xc2 && c < 0xe0 ? 1
                      : c >= 0xe0 && c < 0xf0 ? 2
                      : c >= 0xf0 && c < 0xf5 ? 3
                                              : n;
        if (more >= n - i) return false;
        /* the second byte excludes overlong forms, surrogates and what lies beyond U+10FFFF */
        unsigned char low = c == 0xe0   ? 0xa0
                            : c == 0xf0 ? 0x90
                                        : 0x80,
                      high = c == 0xed   ? 0x9f
                             : c == 0xf4 ? 0x8f
                                         : 0xbf;
        for (size_t k = 1; k <= more; k++, low = 0x80, high = 0xbf) {
            if (s[i + k] < low || s[i + k] > high) return false;
        }
        i += more + 1;
    }
    return true;
}

bool ckpt_name_valid(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] < 32 || text[i] == 127) return false;
    }
    return ckpt_utf8_valid(text, n);
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct ckpt_tensor *)a)->name, ((const struct ckpt_tensor *)b)->name);
}

/* The list that the readers filled becomes the table. */
static enum ag_status finish_table(struct ckpt *ckpt, const struct ag_buf *list, struct ag_error *err) {
    ckpt->n_tensors = (int64_t)(list->size / sizeof(struct ckpt_tensor));
    ckpt->tensors = AG_NEW(ckpt->arena, struct ckpt_tensor, ckpt->n_tensors, err);
    if (!ckpt->tensors) return AG_E_MEMORY;
    if (ckpt->n_tensors == 0) return AG_OK;
    memcpy(ckpt->tensors, list->data, list->size);
    qsort(ckpt->tensors, (size_t)ckpt->n_tensors, sizeof *ckpt->tensors, by_name);
    for (int64_t i = 1; i < ckpt->n_tensors; i++) {
        const struct ckpt_tensor *a = &ckpt->tensors[i - 1], *b = &ckpt->tensors[i];
        if (strcmp(a->name, b->name) != 0) continue;
        if (a->file == b->file) {
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' appears twice; expected once", ckpt->files[a->file].path,
                           a->name);
        }
        return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' is also in %s; expected in one of the files",
                       ckpt->files[a->file].path, a->name, ckpt->files[b->file].path);
    }
    return AG_OK;
}

static enum ag_status add_file(struct ckpt *ckpt, const char *path, struct ag_error *err) {
    struct ag_file *file = &ckpt->files[ckpt->n_files];
    enum ag_status status = ag_file_open(file, path, err);
    if (status == AG_OK) ckpt->n_files++;
    return status;
}

static enum ag_status parse_json(json_t **out, const char *path, uint64_t limit, struct ag_arena *arena,
                                 struct ag_error *err) {
    enum ag_status status;
    const char *text;
    size_t n;
    json_error_t at;
    AG_TRY(ag_file_text(&text, &n, path, limit, arena, err));
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &at);
    if (!*out)
        return ag_fail(err, AG_E_FORMAT, "%s: line %d, column %d: %s; expected JSON", path, at.line, at.column,
                       at.text);
    if (!json_is_object(*out)) return ag_fail(err, AG_E_FORMAT, "%s: no JSON object; expected {...}", path);
    return AG_OK;
fail:
    return status;
}

/* A shard is a file beside its index, never a path. */
static bool shard_name_valid(const char *name) {
    return *name && !strchr(name, '/') && !strchr(name, '\\') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
           ckpt_name_valid(name, strlen(name));
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Opens the shards that the index names, reads them all, and requires every mapped tensor where it is said to be. */
static enum ag_status open_shards(struct ckpt *ckpt, const char *index_path, json_t *index, struct ag_buf *list,
                                  struct ag_error *err) {
    enum ag_status status;
    json_t *map = json_object_get(index, "weight_map"), *value;
    const char *tensor;
    if (!json_is_object(map) || json_object_size(map) == 0) {
        return ag_fail(err, AG_E_FORMAT, "%s: no weight_map; expected an object that maps tensors to files",
                       index_path);
    }
    int64_t n = 0, unique = 0;
    const char **names = AG_NEW(ckpt->arena, const char *, (int64_t)json_object_size(map), err);
    if (!names) return AG_E_MEMORY;
    json_object_foreach(map, tensor, value) {
        const char *name = json_string_value(value);
        if (!name || !shard_name_valid(name) || !ends_with(name, ".safetensors")) {
            return ag_fail(err, AG_E_FORMAT,
                           "%s: tensor '%.80s' is mapped to '%.80s'; expected the name of a .safetensors file "
                           "in the same folder",
                           index_path, tensor, name && ckpt_utf8_valid(name, strlen(name)) ? name : "?");
        }
        names[n++] = name;
    }
    qsort(names, (size_t)n, sizeof *names, by_text);
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) names[unique++] = names[i];
    }
    ckpt->files = AG_NEW(ckpt->arena, struct ag_file, unique, err);
    if (!ckpt->files) return AG_E_MEMORY;
    for (int64_t i = 0; i < unique; i++) {
        const char *path = ag_path_join(ckpt->arena, ckpt->folder, names[i], err);
        if (!path) return AG_E_MEMORY;
        AG_TRY(add_file(ckpt, path, err));
        AG_TRY(safetensors_read(ckpt, (int)i, list, err));
    }
    AG_TRY(finish_table(ckpt, list, err));
    json_object_foreach(map, tensor, value) {
        const struct ckpt_tensor *t = ckpt_find(ckpt, tensor);
        if (!t) {
            return ag_fail(err, AG_E_FORMAT,
                           "%s: tensor '%.80s' is not in %s; expected there; download the files again", index_path,
                           tensor, json_string_value(value));
        }
        const char *found = strrchr(ckpt->files[t->file].path, '/') + 1;
        if (strcmp(found, json_string_value(value)) != 0) {
            return ag_fail(err, AG_E_FORMAT, "%s: tensor '%.80s' is in %s; expected in %s", index_path, tensor, found,
                           json_string_value(value));
        }
    }
    return AG_OK;
fail:
    return status;
}

/* One file: which format it is says its beginning, not its name. */
static enum ag_status open_file(struct ckpt *ckpt, const char *path, struct ag_buf *list, struct ag_error *err) {
    enum ag_status status;
    char start[10] = {0};
    ckpt->files = AG_NEW(ckpt->arena, struct ag_file, 1, err);
    if (!ckpt->files) return AG_E_MEMORY;
    AG_TRY(add_file(ckpt, path, err));
    uint64_t size = ckpt->files[0].size;
    AG_TRY(ag_file_read(&ckpt->files[0], start, 0, size < 9 ? size : 9, err));
    if (!memcmp(start, "GGUF", 4)) {
        ckpt->format = CKPT_GGUF;
        AG_TRY(gguf_read(ckpt, list, err));
    } else if (!memcmp(start, "\x89HDF", 4) || !memcmp(start, "PK\3\4", 4) || !memcmp(start, "ggml", 4) ||
               !memcmp(start, "ggjt", 4) || !memcmp(start, "lmgg", 4) || !memcmp(start, "tjgg", 4)) {
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: is %s; expected safetensors or GGUF", path,
                       start[1] == 'H'   ? "an HDF5 file"
                       : start[0] == 'P' ? "a zip archive (a PyTorch file?)"
                                         : "a file of GGUF's predecessor, which must be converted");
    } else if (!ends_with(path, ".safetensors") && (size < 9 || !start[8] || !strchr("{ \t\r\n", start[8]))) {
        return ag_fail(err, AG_E_FORMAT,
                       "%s: neither a GGUF nor a safetensors file; expected one, or a folder with config.json", path);
    } else {
        ckpt->format = CKPT_SAFETENSORS;
        AG_TRY(safetensors_read(ckpt, 0, list, err));
    }
    return finish_table(ckpt, list, err);
fail:
    return status;
}

/* What stands in a folder, as far as it matters. */
struct contents {
    bool config, single, index, pickle, adapter;
    int n_gguf;
    const char *gguf;
};

static enum ag_status look_into(struct contents *contents, const struct ckpt *ckpt, struct ag_error *err) {
    DIR *folder = opendir(ckpt->path);
    if (!folder) return ag_fail(err, AG_E_IO, "%s: the folder cannot be read (%s)", ckpt->path, strerror(errno));
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        const char *name = entry->d_name;
        contents->config |= !strcmp(name, "config.json");
        contents->single |= !strcmp(name, "model.safetensors");
        contents->index |= !strcmp(name, "model.safetensors.index.json");
        contents->adapter |= !strcmp(name, "adapter_config.json");
        contents->pickle |= ends_with(name, ".bin") || ends_with(name, ".pt") || ends_with(name, ".pth");
        if (!ends_with(name, ".gguf")) continue;
        contents->n_gguf++;
        contents->gguf = ag_arena_text(ckpt->arena, name, strlen(name), err);
        if (!contents->gguf) break;
    }
    closedir(folder);
    return contents->n_gguf > 0 && !contents->gguf ? AG_E_MEMORY : AG_OK;
}

static enum ag_status open_folder(struct ckpt *ckpt, struct ag_buf *list, struct ag_error *err) {
    enum ag_status status;
    struct contents has = {0};
    json_t *index = NULL;
    const char *path;
    AG_TRY(look_into(&has, ckpt, err));
    ckpt->folder = ckpt->path;
    if (has.single || has.index) {
        if (!has.config) {
            return ag_fail(err, AG_E_FORMAT,
                           "%s: safetensors but no config.json, which says what model they are; download it too",
                           ckpt->path);
        }
        if (has.adapter) {
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "%s: an adapter (adapter_config.json) lies over these weights; merge it into them "
                           "first",
                           ckpt->path);
        }
        if (!(path = ag_path_join(ckpt->arena, ckpt->path, "config.json", err))) return AG_E_MEMORY;
        AG_TRY(parse_json(&ckpt->config, path, CONFIG_LIMIT, ckpt->arena, err));
        path = ag_path_join(ckpt->arena, ckpt->path, has.single ? "model.safetensors" : "model.safetensors.index.json",
                            err);
        if (!path) return AG_E_MEMORY;
        if (has.single) return open_file(ckpt, path, list, err); /* as the reference library, which prefers it */
        AG_TRY(parse_json(&index, path, INDEX_LIMIT, ckpt->arena, err));
        status = open_shards(ckpt, path, index, list, err);
        json_decref(index);
        return status;
    }
    if (has.n_gguf == 1) {
        if (!(path = ag_path_join(ckpt->arena, ckpt->path, has.gguf, err))) return AG_E_MEMORY;
        return open_file(ckpt, path, list, err);
    }
    if (has.n_gguf > 1) {
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: holds %d .gguf files; name the one to read", ckpt->path, has.n_gguf);
    }
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "%s: no model here: expected config.json with model.safetensors or its index, or a .gguf "
                   "file%s",
                   ckpt->path, has.pickle ? " (PyTorch's pickle files are not read: convert them to safetensors)" : "");
fail:
    json_decref(index);
    return status;
}

/* A file of a Hugging Face folder, named itself, is the model of that folder when config.json stands beside it. */
static enum ag_status find_config(struct ckpt *ckpt, struct ag_error *err) {
    const char *slash = strrchr(ckpt->path, '/');
    const char *folder =
        slash ? ag_arena_text(ckpt->arena, ckpt->path, (size_t)(slash - ckpt->path) + (slash == ckpt->path), err) : ".";
    if (!folder) return AG_E_MEMORY;
    const char *path = ag_path_join(ckpt->arena, folder, "config.json", err);
    if (!path) return AG_E_MEMORY;
    if (ag_path_kind(path) != AG_KIND_FILE) return AG_OK;
    ckpt->folder = folder;
    return parse_json(&ckpt->config, path, CONFIG_LIMIT, ckpt->arena, err);
}

enum ag_status ckpt_open(struct ckpt **out, const char *path, struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    struct ag_buf list = {0};
    struct ckpt *ckpt = NULL;
    *out = NULL;
    if (!*path) return ag_fail(err, AG_E_USAGE, "the path of the model is empty; expected a file or a folder");
    struct ag_arena *arena = ag_arena_new("checkpoint");
    if (!arena) return ag_fail(err, AG_E_MEMORY, "out of memory (checkpoint)");
    ckpt = AG_ZEROS(arena, struct ckpt, 1, err);
    if (!ckpt) goto fail;
    ckpt->arena = arena;
    ckpt->path = ag_arena_text(arena, path, strlen(path), err);
    if (!ckpt->path) goto fail;
    if (ag_path_kind(path) == AG_KIND_FOLDER) {
        AG_TRY(open_folder(ckpt, &list, err));
    } else if (ends_with(path, ".index.json")) {
        status = ag_fail(err, AG_E_USAGE, "%s: an index; name the folder that it is in", path);
        goto fail;
    } else {
        AG_TRY(open_file(ckpt, ckpt->path, &list, err));
        if (ckpt->format == CKPT_SAFETENSORS) AG_TRY(find_config(ckpt, err));
    }
    ag_buf_free(&list);
    *out = ckpt;
    return AG_OK;
fail:
    ag_buf_free(&list);
    if (ckpt) {
        ckpt_close(ckpt);
    } else {
        ag_arena_free(arena);
    }
    return status;
}

void ckpt_close(struct ckpt *ckpt) {
    if (!ckpt) return;
    for (int i = 0; i < ckpt->n_files; i++) ag_file_close(&ckpt->files[i]);
    json_decref(ckpt->config);
    ag_arena_free(ckpt->arena);
}

const struct ckpt_tensor *ckpt_find(const struct ckpt *ckpt, const char *name) {
    struct ckpt_tensor key = {.name = name};
    if (ckpt->n_tensors == 0) return NULL;
    return bsearch(&key, ckpt->tensors, (size_t)ckpt->n_tensors, sizeof key, by_name);
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct ckpt_meta *)a)->key, ((const struct ckpt_meta *)b)->key);
}
const struct ckpt_meta *ckpt_meta_find(const struct ckpt *ckpt, const char *key) {
    struct ckpt_meta wanted = {.key = key};
    if (ckpt->n_meta == 0) return NULL;
    return bsearch(&wanted, ckpt->meta, (size_t)ckpt->n_meta, sizeof wanted, by_key);
}

int64_t ckpt_row_bytes(const struct ckpt_tensor *tensor) {
    if (tensor->rank < 2) return (int64_t)tensor->bytes;
    return tensor->shape[0] > 0 ? (int64_t)tensor->bytes / tensor->shape[0] : 0;
}

enum ag_status ckpt_read_rows(const struct ckpt *ckpt, const struct ckpt_tensor *tensor, void *out, int64_t row,
                              int64_t rows, struct ag_error *err) {
    const struct ag_file *file = &ckpt->files[tensor->file];
    int64_t all = tensor->rank < 2 ? 1 : tensor->shape[0], bytes = ckpt_row_bytes(tensor);
    if (row < 0 || rows < 0 || rows > all || row > all - rows) {
        return ag_fail(err, AG_E_INTERNAL, "%s: tensor '%s': rows %lld + %lld asked for, it has %lld", file->path,
                       tensor->name, (long long)row, (long long)rows, (long long)all);
    }
    return ag_file_read(file, out, tensor->offset + (uint64_t)(row * bytes), (uint64_t)(rows * bytes), err);
}

enum ag_status ckpt_sha256(char hex[AG_SHA256_HEX], const struct ckpt *ckpt, struct ag_error *err) {
    enum ag_status status;
    struct ag_buf lines = {0};
    if (ckpt->n_files == 1) return ag_sha256_file(hex, ckpt->files[0].path, err);
    for (int i = 0; i < ckpt->n_files; i++) { /* shards were opened in the order of their names */
        char one[AG_SHA256_HEX];
        AG_TRY(ag_sha256_file(one, ckpt->files[i].path, err));
        AG_TRY(ag_buf_printf(&lines, err, "%s  %s\n", one, strrchr(ckpt->files[i].path, '/') + 1));
    }
    AG_TRY(ag_sha256_bytes(hex, lines.data, lines.size, err));
fail:
    ag_buf_free(&lines);
    return status;
}
