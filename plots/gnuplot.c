/* plots/gnuplot.c: runs gnuplot without a shell and turns what it says into our messages. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plots/figure.h"

extern char **environ;

const char *const plot_format_names[PLOT_FORMATS + 1] = {"png", "svg", "pdf", NULL};
static const char *const terminals[PLOT_FORMATS] = {"pngcairo", "svg", "pdfcairo"};
static const char font[] = "DejaVu Sans";
#define INSTALL "install Debian's gnuplot-nox (5.4 or later)"

struct child {
    int exit;           /* exit status, or 128 + signal */
    struct ag_buf talk; /* stdout and stderr together */
};

/* The program is looked for in PATH. AG_E_IO with errno's text when it cannot be started. */
static enum ag_status run_child(struct child *child, const char *folder, char *const argv[], struct ag_error *err) {
    posix_spawn_file_actions_t actions;
    int pipe_fd[2] = {-1, -1}, failed;
    pid_t pid = 0;
    enum ag_status status = AG_OK;
    char piece[4096];
    if (pipe2(pipe_fd, O_CLOEXEC) != 0) return ag_fail(err, AG_E_IO, "%s: no pipe: %s", argv[0], strerror(errno));
    failed = posix_spawn_file_actions_init(&actions);
    if (failed != 0) {
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        return ag_fail(err, AG_E_MEMORY, "%s: cannot start: %s", argv[0], strerror(failed));
    }
    if (folder != NULL) failed |= posix_spawn_file_actions_addchdir_np(&actions, folder);
    failed |= posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    failed |= posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], 1);
    failed |= posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], 2);
    if (failed == 0) failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fd[1]);
    if (failed != 0) {
        close(pipe_fd[0]);
        return ag_fail(err, AG_E_IO, "%s: cannot be started: %s; " INSTALL, argv[0], strerror(failed));
    }
    for (;;) {
        const ssize_t n = read(pipe_fd[0], piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        /* Past 64 KiB its complaints are only drained, so that it does not block. */
        if (status == AG_OK && child->talk.size < 65536) status = ag_buf_add(&child->talk, piece, (size_t)n, err);
    }
    close(pipe_fd[0]);
    int code = 0;
    while (waitpid(pid, &code, 0) < 0)
        if (errno != EINTR) return ag_fail(err, AG_E_IO, "%s: lost: %s", argv[0], strerror(errno));
    child->exit = WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
    return status;
}

/* gnuplot shows the offending line, a caret and then the reason: one line for us, blanks folded, at most `most` bytes.
 */
static void one_line(char *out, size_t most, const struct ag_buf *talk) {
    size_t n = 0;
    bool blank = true;
    for (size_t i = 0; i < talk->size && n + 1 < most; i++) {
        const unsigned char c = (unsigned char)talk->data[i];
        if (c > ' ')
            out[n++] = (char)c;
        else if (!blank)
            out[n++] = ' ';
        blank = c <= ' ';
    }
    while (n > 0 && out[n - 1] == ' ') n--;
    out[n] = '\0';
}

static enum ag_status check_font(const char **warning, struct ag_arena *arena, struct ag_error *err) {
    struct child child = {0};
    struct ag_error ignored = AG_ERROR_INIT; /* without fc-match the question stays open: no reason to stop */
    char *const argv[] = {"fc-match", "-f", "%{family}", (char *)font, NULL};
    char line[160], text[400];
    enum ag_status status = AG_OK;
    if (run_child(&child, NULL, argv, &ignored) == AG_OK && child.exit == 0) {
        one_line(line, sizeof line, &child.talk);
        if (line[0] == '\0') {
            status = ag_fail(err, AG_E_UNSUPPORTED,
                             "fontconfig: no font at all; expected %s: install fonts-dejavu-core", font);
        } else if (strstr(line, font) == NULL) {
            snprintf(text, sizeof text, "the font %s is missing, PNG and PDF are set in %s: install fonts-dejavu-core",
                     font, line);
            *warning = ag_arena_text(arena, text, strlen(text), err);
            if (*warning == NULL) status = AG_E_MEMORY;
        }
    }
    ag_buf_free(&child.talk);
    return status;
}

enum ag_status plot_gnuplot_check(uint64_t formats, const char **warning, struct ag_arena *arena,
                                  struct ag_error *err) {
    struct child child = {0};
    char *const argv[] = {"gnuplot", "-d", "-e",
                          "set print '-'; print 'attgeo ', GPVAL_VERSION, ' ', GPVAL_TERMINALS, ' '", NULL};
    char line[2048];
    double version = 0;
    *warning = NULL;
    enum ag_status status = run_child(&child, NULL, argv, err);
    if (status != AG_OK) goto fail;
    one_line(line, sizeof line - 1, &child.talk);
    strcat(line, " ");
    const char *answer = strstr(line, "attgeo ");
    if (child.exit != 0 || answer == NULL) {
        status = ag_fail(err, AG_E_UNSUPPORTED, "gnuplot: exit %d when asked for its version, said '%.200s'; " INSTALL,
                         child.exit, line);
        goto fail;
    }
    version = strtod(answer + strlen("attgeo "), NULL);
    if (!(version >= 5.4)) {
        status = ag_fail(err, AG_E_UNSUPPORTED, "gnuplot: found version %.8s; expected 5.4 or later; " INSTALL,
                         answer + strlen("attgeo "));
        goto fail;
    }
    for (int f = 0; f < PLOT_FORMATS; f++) {
        char wanted[16];
        snprintf(wanted, sizeof wanted, " %s ", terminals[f]);
        if ((formats >> f & 1) != 0 && strstr(answer, wanted) == NULL) {
            status = ag_fail(err, AG_E_UNSUPPORTED,
                             "gnuplot: built without the terminal %s, which %s needs; " INSTALL
                             ", or leave %s out of --format",
                             terminals[f], plot_format_names[f], plot_format_names[f]);
            goto fail;
        }
    }
    status = check_font(warning, arena, err);
fail:
    ag_buf_free(&child.talk);
    return status;
}

/* gnuplot and cairo do not notice a full disk: exit 0 and half a picture. Each format says at its end that it is whole.
 */
static bool whole(const char *path) {
    static const char *const marks[PLOT_FORMATS] = {"IEND", "</svg>", "%%EOF"};
    char tail[64];
    const size_t length = strlen(path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const off_t size = lseek(fd, 0, SEEK_END), want = size < (off_t)sizeof tail ? size : (off_t)sizeof tail;
    const ssize_t got = want > 0 ? pread(fd, tail, (size_t)want, size - want) : 0;
    close(fd);
    for (int f = 0; f < PLOT_FORMATS; f++) {
        if (length > 3 && strcmp(path + length - 3, plot_format_names[f]) == 0)
            return got > 0 && memmem(tail, (size_t)got, marks[f], strlen(marks[f])) != NULL;
    }
    return false;
}

enum ag_status plot_gnuplot_run(const char *folder, const char *script, const char *data, const char *output,
                                const char **talk, struct ag_arena *arena, struct ag_error *err) {
    struct child child = {0};
    char *const argv[] = {"gnuplot", "-d", "-c", (char *)script, (char *)data, (char *)output, NULL};
    char line[600], path[4096];
    *talk = NULL;
    const int length = snprintf(path, sizeof path, "%s/%s", folder, output);
    if (length < 0 || (size_t)length >= sizeof path)
        return ag_fail(err, AG_E_USAGE, "%.200s...: the path is too long", folder);
    enum ag_status status = run_child(&child, folder, argv, err);
    if (status != AG_OK) goto fail;
    one_line(line, sizeof line, &child.talk);
    if (child.exit != 0) {
        status = ag_fail(err, AG_E_IO, "gnuplot: %s: exit %d while drawing %s: %s", script, child.exit, output,
                         line[0] != '\0' ? line : "it said nothing");
    } else if (!whole(path)) {
        status =
            ag_fail(err, AG_E_IO, "gnuplot: %s: ended well, but %s is missing or cut short (%s); is the disk full?",
                    script, output, line[0] != '\0' ? line : "it said nothing");
    } else if (line[0] != '\0') {
        *talk = ag_arena_text(arena, line, strlen(line), err);
        if (*talk == NULL) status = AG_E_MEMORY;
    }
fail:
    if (status != AG_OK) (void)unlink(path); /* nothing half-drawn stays behind */
    ag_buf_free(&child.talk);
    return status;
}
