/* probe/dump_journal.c: which layers of an unfinished dump are complete. See dump_file.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "probe/dump_file.h"

#define MAGIC "attgeo-dump-journal-1\n"
#define END_OF_HEADER "--\n"

struct dump_journal {
    const char *path, *part;
    int fd, data;
    int64_t L;
    /* Shared with the thread, under lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool running, stop;
    int64_t *posted, *noted, *batch; /* (L); batch belongs to the thread */
    int failed;                      /* errno of the thread's first failure */
    const char *failed_doing;
};

enum ag_status dump_journal_open(struct dump_journal **out, const char *path, const char *part, bool *fresh,
                                 struct ag_arena *arena, struct ag_error *err) {
    struct dump_journal *journal = AG_ZEROS(arena, struct dump_journal, 1, err);
    *out = NULL;
    if (!journal) return AG_E_MEMORY;
    journal->path = path;
    journal->part = part;
    journal->data = -1;
    journal->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0666);
    if (journal->fd < 0) return ag_fail(err, AG_E_IO, "%s: cannot be opened for writing: %s", path, strerror(errno));
    if (flock(journal->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(journal->fd);
        return ag_fail(err, AG_E_IO, "%s: another attgeo is writing this dump; wait for it, or choose another name",
                       part);
    }
    struct stat info;
    if (fstat(journal->fd, &info) || info.st_nlink == 0) {
        close(journal->fd);
        return ag_fail(err, AG_E_IO, "%s: another attgeo has just finished this dump; try again", part);
    }
    *fresh = info.st_size == 0;
    pthread_mutex_init(&journal->lock, NULL);
    pthread_cond_init(&journal->changed, NULL);
    *out = journal;
    return AG_OK;
}

static enum ag_status prepare(struct dump_journal *journal, int64_t L, struct ag_arena *arena, struct ag_error *err) {
    journal->L = L;
    journal->posted = AG_ZEROS(arena, int64_t, L, err);
    journal->noted = AG_ZEROS(arena, int64_t, L, err);
    journal->batch = AG_ZEROS(arena, int64_t, L, err);
    return journal->posted && journal->noted && journal->batch ? AG_OK : AG_E_MEMORY;
}

static bool write_all(int fd, const char *data, size_t n) {
    while (n > 0) {
        ssize_t w = write(fd, data, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) {
            if (w == 0) errno = ENOSPC;
            return false;
        }
        data += w;
        n -= (size_t)w;
    }
    return true;
}

enum ag_status dump_journal_start(struct dump_journal *journal, const struct dump_field *fields, int64_t n, int64_t L,
                                  struct ag_arena *arena, struct ag_error *err) {
    enum ag_status status = prepare(journal, L, arena, err);
    struct ag_buf text = {0};
    if (status == AG_OK) status = ag_buf_printf(&text, err, "%s", MAGIC);
    for (int64_t i = 0; i < n && status == AG_OK; i++)
        status = ag_buf_printf(&text, err, "%s\t%s\n", fields[i].key, fields[i].value);
    if (status == AG_OK) status = ag_buf_printf(&text, err, "%s", END_OF_HEADER);
    if (status == AG_OK &&
        (ftruncate(journal->fd, 0) || !write_all(journal->fd, text.data, text.size) || fsync(journal->fd)))
        status = ag_fail(err, AG_E_IO, "%s: writing failed: %s", journal->path, strerror(errno));
    ag_buf_free(&text);
    return status;
}

enum ag_status dump_journal_resume(struct dump_journal *journal, const struct dump_field *fields, int64_t n, int64_t L,
                                   int64_t P, int64_t *done, struct ag_arena *arena, struct ag_error *err) {
    enum ag_status status = prepare(journal, L, arena, err);
    if (status != AG_OK) return status;
    const char *text, *magic = MAGIC;
    size_t size;
    status = ag_file_text(&text, &size, journal->path, 1 << 28, arena, err);
    if (status != AG_OK) return status;
    const char *at = text, *end = text + size;
    if (size < strlen(magic) || memcmp(text, magic, strlen(magic)))
        return ag_fail(err, AG_E_FORMAT, "%s: is not a journal of this version; start anew with --force",
                       journal->path);
    at += strlen(magic);
    for (int64_t i = 0; i < n; i++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const char *tab = stop ? memchr(at, '\t', (size_t)(stop - at)) : NULL;
        size_t key = tab ? (size_t)(tab - at) : 0;
        if (!tab || key != strlen(fields[i].key) || memcmp(at, fields[i].key, key))
            return ag_fail(err, AG_E_FORMAT, "%s: does not say \"%s\"; start anew with --force", journal->path,
                           fields[i].key);
        size_t value = (size_t)(stop - tab - 1);
        if (value != strlen(fields[i].value) || memcmp(tab + 1, fields[i].value, value))
            return ag_fail(err, AG_E_USAGE,
                           "%s: cannot be resumed: %s was %.*s, now it is %s; give the same as before, or start anew "
                           "with --force",
                           journal->part, fields[i].key, value > 200 ? 200 : (int)value, tab + 1, fields[i].value);
        at = stop + 1;
    }
    const char *header_end = END_OF_HEADER;
    if ((size_t)(end - at) < strlen(header_end) || memcmp(at, header_end, strlen(header_end)))
        return ag_fail(err, AG_E_FORMAT, "%s: the header is not that of this version; start anew with --force",
                       journal->path);
    at += strlen(header_end);
    /* A line without its end was being written when the run was killed: cut off, so that appending stays clean. */
    for (const char *stop; at < end && (stop = memchr(at, '\n', (size_t)(end - at))) != NULL; at = stop + 1) {
        int64_t layer, prompts;
        int used = 0;
        if (sscanf(at, "layer %" SCNd64 " prompts %" SCNd64 "%n", &layer, &prompts, &used) != 2 || at + used != stop ||
            layer < 0 || layer >= L || prompts < 0 || prompts > P)
            return ag_fail(err, AG_E_FORMAT, "%s: line \"%.*s\" is not understood; start anew with --force",
                           journal->path, stop - at > 80 ? 80 : (int)(stop - at), at);
        if (prompts > done[layer]) done[layer] = prompts;
    }
    if (at < end && ftruncate(journal->fd, at - text))
        return ag_fail(err, AG_E_IO, "%s: writing failed: %s", journal->path, strerror(errno));
    memcpy(journal->posted, done, (size_t)L * sizeof *done);
    memcpy(journal->noted, done, (size_t)L * sizeof *done);
    return AG_OK;
}

/* First the data reaches the disk, then the line that says so. */
static bool note(struct dump_journal *journal, const char **doing) {
    *doing = "flushing the data";
    if (fdatasync(journal->data)) return false;
    *doing = "writing the journal";
    for (int64_t layer = 0; layer < journal->L; layer++) {
        char line[64];
        if (journal->batch[layer] <= journal->noted[layer]) continue;
        int size = snprintf(line, sizeof line, "layer %" PRId64 " prompts %" PRId64 "\n", layer, journal->batch[layer]);
        if (!write_all(journal->fd, line, (size_t)size)) return false;
        journal->noted[layer] = journal->batch[layer];
    }
    return fdatasync(journal->fd) == 0;
}

static void *journal_thread(void *self) {
    struct dump_journal *journal = self;
    pthread_mutex_lock(&journal->lock);
    for (;;) {
        bool news = memcmp(journal->posted, journal->batch, (size_t)journal->L * sizeof *journal->posted) != 0;
        if (news && !journal->failed) {
            memcpy(journal->batch, journal->posted, (size_t)journal->L * sizeof *journal->posted);
            pthread_mutex_unlock(&journal->lock);
            const char *doing;
            bool ok = note(journal, &doing);
            int code = errno;
            pthread_mutex_lock(&journal->lock);
            if (!ok) {
                journal->failed = code ? code : EIO;
                journal->failed_doing = doing;
            }
        } else if (journal->stop) {
            break;
        } else {
            pthread_cond_wait(&journal->changed, &journal->lock);
        }
    }
    pthread_mutex_unlock(&journal->lock);
    return NULL;
}

enum ag_status dump_journal_run(struct dump_journal *journal, int fd, struct ag_error *err) {
    journal->data = fd;
    memcpy(journal->batch, journal->posted, (size_t)journal->L * sizeof *journal->posted);
    int code = pthread_create(&journal->thread, NULL, journal_thread, journal);
    if (code) return ag_fail(err, AG_E_IO, "%s: a thread could not be started: %s", journal->path, strerror(code));
    journal->running = true;
    return AG_OK;
}

static enum ag_status failure(const struct dump_journal *journal, struct ag_error *err) {
    if (!journal->failed) return AG_OK;
    return ag_fail(err, AG_E_IO, "%s: %s failed: %s; make room, then continue with --resume", journal->part,
                   journal->failed_doing, strerror(journal->failed));
}

enum ag_status dump_journal_post(struct dump_journal *journal, int64_t layer, int64_t prompts, struct ag_error *err) {
    pthread_mutex_lock(&journal->lock);
    if (prompts > journal->posted[layer]) journal->posted[layer] = prompts;
    enum ag_status status = failure(journal, err);
    pthread_cond_signal(&journal->changed);
    pthread_mutex_unlock(&journal->lock);
    return status;
}

enum ag_status dump_journal_finish(struct dump_journal *journal, struct ag_error *err) {
    if (!journal->running) return AG_OK;
    pthread_mutex_lock(&journal->lock);
    journal->stop = true;
    pthread_cond_signal(&journal->changed);
    pthread_mutex_unlock(&journal->lock);
    pthread_join(journal->thread, NULL);
    journal->running = false;
    return failure(journal, err);
}

void dump_journal_close(struct dump_journal *journal, bool remove) {
    if (!journal) return;
    dump_journal_finish(journal, NULL);
    if (remove) unlink(journal->path); /* while the lock is held, so that nobody else's journal goes */
    close(journal->fd);
    pthread_mutex_destroy(&journal->lock);
    pthread_cond_destroy(&journal->changed);
}
