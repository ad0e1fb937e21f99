/* probe/dump.c: making, finishing and abandoning a dump. See dump.h for the schema, dump_blocks.c for the numbers.
 *
 * HDF5 makes the whole file first: every dataset, every chunk allocated, flushed and closed. From then on its structure
 * never changes, so the numbers are written straight to their places (the library tells the addresses): in parallel,
 * and a kill at any moment leaves a valid file. */
#include "probe/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cli.h"
#include "probe/dump_file.h"

/* ---- where things lie in the file -------------------------------------------------------------------------- */

/* Each question about a chunk walks the whole index. So of many chunks (then large ones, which fit no gap and are laid
 * out in ascending order) only some are asked: where the distance of two says that all between lie in a row, they do.
 */
#define ASK_ALL 1024
struct locate {
    hid_t id;
    struct dump_target *target;
    struct ag_arena *arena;
    int64_t capacity;
    bool ok;
};

static uint64_t ask(struct locate *at, int64_t chunk) {
    const struct dump_target *t = at->target;
    hsize_t offset[3] = {(hsize_t)(chunk / t->chunks), (hsize_t)(chunk % t->chunks * t->chunk_tokens), 0}, size = 0;
    unsigned mask = 0;
    haddr_t addr = HADDR_UNDEF;
    if (H5Dget_chunk_info_by_coord(at->id, offset, &mask, &addr, &size) < 0 || addr == HADDR_UNDEF ||
        (int64_t)size != t->chunk_bytes)
        at->ok = false;
    return addr;
}

static void add_run(struct locate *at, int64_t first, uint64_t addr) {
    struct dump_target *t = at->target;
    if (t->n_runs > 0) {
        const struct dump_run *last = &t->runs[t->n_runs - 1];
        if (last->addr + (uint64_t)((first - last->first) * t->chunk_bytes) == addr) return;
    }
    if (t->n_runs == at->capacity) {
        int64_t more = at->capacity ? 2 * at->capacity : 8;
        struct dump_run *runs = AG_NEW(at->arena, struct dump_run, more, NULL);
        if (!runs) {
            at->ok = false;
            return;
        }
        if (t->n_runs) memcpy(runs, t->runs, (size_t)t->n_runs * sizeof *runs);
        t->runs = runs;
        at->capacity = more;
    }
    t->runs[t->n_runs++] = (struct dump_run){first, addr};
}

static void bisect(struct locate *at, int64_t lo, uint64_t lo_addr, int64_t hi, uint64_t hi_addr) {
    if (!at->ok || hi - lo < 2 || hi_addr - lo_addr == (uint64_t)((hi - lo) * at->target->chunk_bytes)) return;
    int64_t mid = lo + (hi - lo) / 2;
    uint64_t addr = ask(at, mid);
    if (addr <= lo_addr || addr >= hi_addr) at->ok = false; /* not ascending: the proof would not hold */
    bisect(at, lo, lo_addr, mid, addr);
    add_run(at, mid, addr);
    bisect(at, mid, addr, hi, hi_addr);
}

/* Where the chunks of a dataset lie. */
static enum ag_status locate_target(hid_t file, struct dump_writer *w, struct dump_target *target,
                                    struct ag_error *err) {
    int64_t dims[3] = {target->heads, target->tokens, target->D};
    enum ag_status status = ag_h5_check_shape(file, target->name, 3, dims, err);
    int64_t n = target->heads * target->chunks;
    if (status != AG_OK || n == 0) return status;
    struct locate at = {H5Dopen2(file, target->name, H5P_DEFAULT), target, w->arena, 0, true};
    uint64_t first = ask(&at, 0), last = ask(&at, n - 1);
    if (n <= ASK_ALL) {
        for (int64_t i = 0; i < n && at.ok; i++) add_run(&at, i, ask(&at, i));
    } else if (at.ok) {
        add_run(&at, 0, first);
        bisect(&at, 0, first, n - 1, last);
        add_run(&at, n - 1, last);
    }
    if (at.id >= 0) H5Dclose(at.id);
    return at.ok
               ? AG_OK
               : ag_fail(err, AG_E_FORMAT, "%s: %s: the chunks do not lie as attgeo lays them; start anew with --force",
                         w->part, target->name);
}

uint64_t dump_chunk_address(const struct dump_target *target, int64_t chunk) {
    int64_t lo = 0, hi = target->n_runs - 1;
    while (lo < hi) {
        int64_t mid = (lo + hi + 1) / 2;
        if (target->runs[mid].first <= chunk)
            lo = mid;
        else
            hi = mid - 1;
    }
    return target->runs[lo].addr + (uint64_t)((chunk - target->runs[lo].first) * target->chunk_bytes);
}

static enum ag_status locate_all(struct dump_writer *w, struct ag_error *err) {
    hid_t file;
    enum ag_status status = ag_h5_open(&file, w->part, err);
    if (status != AG_OK) return status;
    for (int64_t l = 0; l < w->options.source->L; l++) {
        struct dump_target *target;
        for (int i = 0; (target = dump_target_at(&w->layers[l], i)) != NULL; i++)
            if (target->exists) AG_TRY(locate_target(file, w, target, err));
    }
    if (w->options.selfcheck) {
        int64_t dims[2] = {w->options.source->tokens->P, DUMP_SELFCHECK};
        AG_TRY(ag_h5_check_shape(file, "/selfcheck/id", 2, dims, err));
        AG_TRY(ag_h5_check_shape(file, "/selfcheck/logit", 2, dims, err));
        hid_t id = H5Dopen2(file, "/selfcheck/id", H5P_DEFAULT),
              logit = H5Dopen2(file, "/selfcheck/logit", H5P_DEFAULT);
        w->selfcheck_id = H5Dget_offset(id);
        w->selfcheck_logit = H5Dget_offset(logit);
        H5Dclose(id);
        H5Dclose(logit);
        if (w->selfcheck_id == HADDR_UNDEF || w->selfcheck_logit == HADDR_UNDEF)
            status = ag_fail(err, AG_E_FORMAT, "%s: /selfcheck has no place; start anew with --force", w->part);
    }
fail:
    if (status == AG_OK)
        status = ag_h5_close(file, err);
    else
        ag_h5_close(file, NULL);
    return status;
}

/* ---- making ------------------------------------------------------------------------------------------------ */

static enum ag_status plan_positions(struct dump_writer *w, struct ag_error *err) {
    const struct ag_tokens *tokens = w->options.source->tokens;
    int64_t *first = AG_NEW(w->arena, int64_t, tokens->P + 1, err), *of = NULL, n = 0;
    if (!first) return AG_E_MEMORY;
    if (!w->options.positions) {
        memcpy(first, tokens->offsets, (size_t)(tokens->P + 1) * sizeof *first);
        n = tokens->T;
    } else {
        of = AG_NEW(w->arena, int64_t, tokens->T, err);
        if (!of) return AG_E_MEMORY;
        for (int64_t p = 0; p < tokens->P; p++) {
            first[p] = n;
            for (int64_t t = tokens->offsets[p]; t < tokens->offsets[p + 1]; t++)
                if (w->options.positions[t]) of[n++] = t;
        }
        first[tokens->P] = n;
    }
    w->Tq = n;
    w->first_of = first;
    w->token_of = of;
    return AG_OK;
}

/* What a dump that is resumed must have in common with the command that resumes it. */
#define MAX_FIELDS 24
static int64_t describe(struct dump_field *fields, const struct dump_writer *w, struct ag_error *err) {
    const struct dump_options *o = &w->options;
    const struct ag_source *s = o->source;
    const struct ag_tokens *t = s->tokens;
    char hex[AG_SHA256_HEX], taps[64];
    struct ag_buf text = {0};
    int64_t n = 0;
    enum ag_status status = AG_OK;
#define FIELD(name, ...)                                                                                               \
    do {                                                                                                               \
        text.size = 0;                                                                                                 \
        AG_TRY(ag_buf_printf(&text, err, __VA_ARGS__));                                                                \
        for (size_t c_ = 0; c_ < text.size; c_++)                                                                      \
            if (text.data[c_] == '\n') text.data[c_] = ' ';                                                            \
        fields[n].key = name;                                                                                          \
        fields[n].value = ag_arena_text(w->arena, text.data, text.size, err);                                          \
        if (!fields[n++].value) AG_TRY(AG_E_MEMORY);                                                                   \
    } while (0)
    dump_list_taps(taps, o->taps);
    FIELD("the program's version", "%s", ag_version);
    FIELD("the model", "%s", s->architecture);
    FIELD("the checkpoint's SHA-256", "%s", s->checkpoint_sha256);
    FIELD("the tokenizer's SHA-256", "%s", s->tokenizer_sha256);
    FIELD("the prompts' SHA-256", "%s", s->prompts_sha256);
    FIELD("--shard", "%s", o->shard ? o->shard : "1/1");
    FIELD("the number of prompts", "%" PRId64, t->P);
    AG_TRY(ag_sha256_bytes(hex, t->id, (size_t)t->T * sizeof *t->id, err));
    FIELD("the tokens' SHA-256", "%s", hex);
    FIELD("--no-special", "%s", o->specials ? "off" : "on");
    FIELD("--backend", "%s", s->backend);
    FIELD("--dtype", "%s", s->dtype);
    FIELD("--store", "%s", dump_store_names[o->store]);
    FIELD("--taps", "%s", taps);
    FIELD("--what", "%s", dump_what_text(o));
    FIELD("--compress", "%s", o->compress ? "on" : "off");
    FIELD("the self-check", "%s", o->selfcheck ? "on" : "off");
    text.size = 0;
    AG_TRY(ag_buf_printf(&text, err, "%s", ""));
    for (int64_t l = 0; l < s->L; l++) { /* "0-3,7" */
        if (!o->layers[l] || (l > 0 && o->layers[l - 1])) continue;
        int64_t last = l;
        while (last + 1 < s->L && o->layers[last + 1]) last++;
        AG_TRY(ag_buf_printf(&text, err, last > l ? "%s%" PRId64 "-%" PRId64 : "%s%" PRId64, text.size ? "," : "", l,
                             last));
    }
    fields[n].key = "--layers";
    fields[n].value = ag_arena_text(w->arena, text.data, text.size, err);
    if (!fields[n++].value) AG_TRY(AG_E_MEMORY);
    if (o->positions) AG_TRY(ag_sha256_bytes(hex, o->positions, (size_t)t->T, err));
    FIELD("--positions", "%s", o->positions ? hex : "all");
    if (o->query_heads) {
        int64_t most = 0;
        for (int64_t l = 0; l < s->L; l++) most = s->layers[l].Hq > most ? s->layers[l].Hq : most;
        AG_TRY(ag_sha256_bytes(hex, o->query_heads, (size_t)most, err));
    }
    FIELD("--heads", "%s", o->query_heads ? hex : "all");
#undef FIELD
fail:
    ag_buf_free(&text);
    return status == AG_OK ? n : -1;
}

static bool locking(void) {
    const char *value = getenv("HDF5_USE_FILE_LOCKING");
    return !value || (strcasecmp(value, "FALSE") && strcmp(value, "0"));
}

static const char *bytes_text(char out[32], double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 999.5 && u < 4) {
        bytes /= 1000;
        u++;
    }
    snprintf(out, 32, u ? "%.3g %s" : "%.0f %s", bytes, units[u]);
    return out;
}

static enum ag_status no_room(const struct dump_writer *w, int64_t need, uint64_t have, struct ag_error *err) {
    char a[32], b[32];
    return ag_fail(
        err, AG_E_IO,
        "%s: the dump needs %s and %s are free there; choose another folder, fewer --layers, --taps or --what, "
        "--store bf16, or --reduce instead of a dump",
        w->path, bytes_text(a, (double)need), bytes_text(b, (double)have));
}

/* Sets the whole file's room aside on the disk, so that it cannot fill up half-way. */
static enum ag_status set_aside(struct dump_writer *w, struct ag_error *err) {
    struct stat info;
    if (fstat(w->fd, &info)) return ag_fail(err, AG_E_IO, "%s: %s", w->part, strerror(errno));
    if (fallocate(w->fd, 0, 0, info.st_size) == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return AG_OK;
    if (errno == ENOSPC || errno == EDQUOT) return no_room(w, info.st_size, ag_path_free_space(w->path), err);
    return ag_fail(err, AG_E_IO, "%s: setting %lld bytes aside failed: %s", w->path, (long long)info.st_size,
                   strerror(errno));
}

static enum ag_status check_room(const struct dump_writer *w, struct ag_error *err) {
    struct stat info;
    int64_t need = dump_bytes(&w->options);
    uint64_t have = ag_path_free_space(w->path);
    if (have == UINT64_MAX) return AG_OK;
    if (!stat(w->part, &info)) have += (uint64_t)info.st_blocks * 512; /* what an unfinished one takes is reused */
    return (uint64_t)need > have ? no_room(w, need, have, err) : AG_OK;
}

static enum ag_status open_part(struct dump_writer *w, struct ag_error *err) {
    w->fd = open(w->part, O_RDWR | O_CLOEXEC);
    if (w->fd < 0) return ag_fail(err, AG_E_IO, "%s: cannot be opened for writing: %s", w->part, strerror(errno));
    if (locking() && flock(w->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return ag_fail(err, AG_E_IO,
                       "%s: another program has it open (locked); close that program, or set the environment variable "
                       "HDF5_USE_FILE_LOCKING=FALSE",
                       w->part);
    return AG_OK;
}

enum ag_status dump_create(struct dump_writer **out, const struct dump_options *options, struct ag_error *err) {
    enum ag_status status;
    bool fresh = false, made = false;
    struct dump_field fields[MAX_FIELDS];
    struct ag_arena *arena = ag_arena_new("dump");
    struct dump_writer *w = arena ? AG_ZEROS(arena, struct dump_writer, 1, err) : NULL;
    *out = NULL;
    if (!w) {
        ag_arena_free(arena);
        return ag_fail(err, AG_E_MEMORY, "out of memory");
    }
    w->arena = arena;
    w->options = *options;
    w->fd = -1;
    w->current = -1;
    AG_TRY(ag_h5_out_check(options->path, options->force, err));
    if (strlen(options->path) > sizeof w->path - 1) {
        status = ag_fail(err, AG_E_USAGE, "%.60s...: the name is too long", options->path);
        goto fail;
    }
    snprintf(w->path, sizeof w->path, "%s", options->path);
    snprintf(w->part, sizeof w->part, "%s.part", w->path);
    snprintf(w->journal_path, sizeof w->journal_path, "%s.journal", w->part);
    enum ag_kind part = ag_path_kind(w->part);
    if (part == AG_KIND_FILE && !options->resume && !options->force) {
        status =
            ag_fail(err, AG_E_IO,
                    "%s: an unfinished dump is there; continue it with --resume or start anew with --force", w->part);
        goto fail;
    }
    AG_TRY(plan_positions(w, err));
    AG_TRY(dump_plan_targets(&w->layers, options, arena, err));
    AG_TRY(check_room(w, err));
    int64_t n = describe(fields, w, err), L = options->source->L, P = options->source->tokens->P;
    if (n < 0) {
        status = err && err->status != AG_OK ? err->status : AG_E_MEMORY;
        goto fail;
    }
    AG_TRY(dump_journal_open(&w->journal, w->journal_path, w->part, &fresh, arena, err));
    if (part == AG_KIND_FILE && options->resume && !fresh) {
        int64_t *done = AG_ZEROS(arena, int64_t, L, err);
        if (!done) {
            status = AG_E_MEMORY;
            goto fail;
        }
        AG_TRY(dump_journal_resume(w->journal, fields, n, L, P, done, arena, err));
        for (int64_t l = 0; l < L; l++) w->layers[l].done = w->layers[l].posted = done[l];
    } else {
        hid_t file;
        made = true;
        AG_TRY(ag_h5_create(&file, w->part, err));
        status = dump_make_skeleton(file, w, false, err);
        if (status != AG_OK) {
            ag_h5_close(file, NULL);
            goto fail;
        }
        AG_TRY(ag_h5_close(file, err));
    }
    AG_TRY(locate_all(w, err));
    AG_TRY(open_part(w, err));
    AG_TRY(set_aside(w, err));
    if (made && fsync(w->fd)) {
        status = ag_fail(err, AG_E_IO, "%s: flushing failed: %s", w->part, strerror(errno));
        goto fail;
    }
    if (made) AG_TRY(dump_journal_start(w->journal, fields, n, L, arena, err));
    w->threads = omp_get_max_threads();
    int64_t piece = DUMP_CHUNK_BYTES;
    for (int64_t l = 0; l < L; l++) {
        struct dump_target *target;
        for (int i = 0; (target = dump_target_at(&w->layers[l], i)) != NULL; i++)
            if (target->exists && target->chunk_bytes > piece) piece = target->chunk_bytes;
        for (int tap = 0; tap < AG_TAP_COUNT; tap++) w->layers[l].next[tap] = w->layers[l].done;
        w->layers[l].next_values = w->layers[l].done;
    }
    w->scratch = AG_NEW(arena, char *, w->threads, err);
    for (int i = 0; i < w->threads && w->scratch; i++) {
        w->scratch[i] = ag_arena_alloc(arena, piece, 1, err);
        if (!w->scratch[i]) w->scratch = NULL;
    }
    if (!w->scratch) {
        status = AG_E_MEMORY;
        goto fail;
    }
    AG_TRY(dump_journal_run(w->journal, w->fd, err));
    *out = w;
    return AG_OK;
fail:
    if (w->fd >= 0) close(w->fd);
    if (made) unlink(w->part);
    dump_journal_close(w->journal, made || fresh);
    ag_arena_free(arena);
    return status;
}

bool dump_has_layer(const struct dump_writer *writer, int64_t layer) {
    return writer->layers[layer].done == writer->options.source->tokens->P;
}

/* ---- finishing --------------------------------------------------------------------------------------------- */

/* One dataset of the plain file into the compressed one, chunk by chunk. */
static enum ag_status squeeze(hid_t to, hid_t from, const struct dump_target *target, const struct dump_writer *w,
                              struct ag_error *err) {
    hid_t type = ag_h5_file_type(dump_type(w->options.store)), memory = -1, space = -1;
    hid_t in = H5Dopen2(from, target->name, H5P_DEFAULT), id = H5Dopen2(to, target->name, H5P_DEFAULT);
    enum ag_status status = AG_OK;
    if (in >= 0) space = H5Dget_space(in);
    for (int64_t i = 0; i < target->heads * target->chunks && status == AG_OK; i++) {
        int64_t first = i % target->chunks * target->chunk_tokens;
        int64_t tokens = target->tokens - first < target->chunk_tokens ? target->tokens - first : target->chunk_tokens;
        hsize_t start[3] = {(hsize_t)(i / target->chunks), (hsize_t)first, 0};
        hsize_t count[3] = {1, (hsize_t)tokens, (hsize_t)target->D};
        memory = H5Screate_simple(3, count, NULL);
        if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
            H5Dread(in, type, memory, space, H5P_DEFAULT, w->scratch[0]) < 0)
            status = ag_h5_fail(err, from, NULL, target->name, "reading");
        else if (H5Dwrite(id, type, memory, space, H5P_DEFAULT, w->scratch[0]) < 0)
            status = ag_h5_fail(err, to, NULL, target->name, "writing");
        H5Sclose(memory);
    }
    if (id >= 0 && H5Dclose(id) < 0 && status == AG_OK) status = ag_h5_fail(err, to, NULL, target->name, "writing");
    if (in >= 0) H5Dclose(in);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    return status;
}

static enum ag_status copy_selfcheck(hid_t to, hid_t from, struct ag_error *err) {
    if (H5Ldelete(to, "/selfcheck", H5P_DEFAULT) < 0 ||
        H5Ocopy(from, "/selfcheck", to, "/selfcheck", H5P_DEFAULT, H5P_DEFAULT) < 0)
        return ag_h5_fail(err, to, NULL, "/selfcheck", "writing");
    return AG_OK;
}

static enum ag_status compress(struct dump_writer *w, struct ag_error *err) {
    enum ag_status status;
    hid_t from = -1;
    struct ag_h5_out out;
    AG_TRY(ag_h5_out_begin(&out, w->path, w->options.force, err));
    AG_TRY(ag_h5_open(&from, w->part, err));
    AG_TRY(dump_make_skeleton(out.file, w, true, err));
    if (w->options.selfcheck) AG_TRY(copy_selfcheck(out.file, from, err));
    for (int64_t l = 0; l < w->options.source->L; l++) {
        struct dump_target *target;
        for (int i = 0; (target = dump_target_at(&w->layers[l], i)) != NULL; i++)
            if (target->exists) AG_TRY(squeeze(out.file, from, target, w, err));
    }
    AG_TRY(ag_h5_close(from, err));
    return ag_h5_out_commit(&out, err);
fail:
    if (from >= 0) H5Fclose(from);
    ag_h5_out_discard(&out);
    return status;
}

static void release(struct dump_writer *w, bool keep) {
    dump_journal_finish(w->journal, NULL); /* its thread still syncs the data: before they are closed */
    if (w->fd >= 0) close(w->fd);
    if (!keep) unlink(w->part);
    dump_journal_close(w->journal, !keep);
    ag_arena_free(w->arena);
}

enum ag_status dump_commit(struct dump_writer *w, struct ag_error *err) {
    enum ag_status status = AG_OK;
    bool done = false;
    int64_t P = w->options.source->tokens->P;
    for (int64_t l = 0; l < w->options.source->L; l++) {
        if (!w->options.layers[l]) continue;
        if (dump_prompts_written(w, l) < P) {
            status =
                ag_fail(err, AG_E_INTERNAL, "%s: layer %" PRId64 " is not complete: %" PRId64 " of %" PRId64 " prompts",
                        w->part, l, dump_prompts_written(w, l), P);
            goto fail;
        }
        AG_TRY(dump_journal_post(w->journal, l, P, err));
    }
    AG_TRY(dump_journal_finish(w->journal, err));
    if (fsync(w->fd)) {
        status = ag_fail(err, AG_E_IO, "%s: flushing failed: %s; make room, then continue with --resume", w->part,
                         strerror(errno));
        goto fail;
    }
    int closed = close(w->fd);
    w->fd = -1;
    if (closed) {
        status = ag_fail(err, AG_E_IO, "%s: closing failed: %s", w->part, strerror(errno));
        goto fail;
    }
    AG_TRY(ag_h5_out_check(w->path, w->options.force, err)); /* somebody may have made or locked it meanwhile */
    if (w->options.compress) {
        AG_TRY(compress(w, err));
        unlink(w->part);
    } else if (rename(w->part, w->path)) {
        status = ag_fail(err, AG_E_IO, "%s: cannot be given its name: %s; the whole dump is %s", w->path,
                         strerror(errno), w->part);
        goto fail;
    }
    done = true;
fail:
    if (done) {
        dump_journal_close(w->journal, true);
        ag_arena_free(w->arena);
    } else {
        release(w, true);
    }
    return status;
}

void dump_abandon(struct dump_writer *w, bool keep) {
    if (w) release(w, keep);
}
