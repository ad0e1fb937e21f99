/* base/log.c: see log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <time.h>

double ag_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void ag_say(const struct ag_log *log, enum ag_level level, const char *format, ...) {
    if (log == NULL || log->stream == NULL || level > log->level) return;
    va_list args;
    va_start(args, format);
    if (log->terminal) fputs("\r\033[K", log->stream); /* over a progress line that may stand there */
    if (level == AG_WARN) fputs("attgeo: warning: ", log->stream);
    vfprintf(log->stream, format, args);
    fputc('\n', log->stream);
    va_end(args);
}

struct ag_progress ag_progress_begin(const struct ag_log *log, const char *label, int64_t total, const char *unit) {
    double now = ag_now();
    return (struct ag_progress){log, label, unit, 0, total, now, now, false};
}

static void show(struct ag_progress *progress, double now, bool last) {
    double spent = now - progress->start, rate = spent > 0 ? (double)progress->done / spent : 0;
    FILE *stream = progress->log->stream;
    if (progress->log->terminal) fputs("\r\033[K", stream);
    fprintf(stream, "%s  %3.0f %%  %.4g %s/s", progress->label,
            progress->total > 0 ? 100.0 * (double)progress->done / (double)progress->total : 100.0, rate,
            progress->unit);
    if (last)
        fprintf(stream, "  %.1f s", spent);
    else if (rate > 0)
        fprintf(stream, "  %.0f s left", (double)(progress->total - progress->done) / rate);
    if (!progress->log->terminal || last) fputc('\n', stream);
    fflush(stream);
    progress->shown = true;
    progress->last = now;
}

void ag_progress_add(struct ag_progress *progress, int64_t n) {
    progress->done += n;
    if (progress->log == NULL || progress->log->stream == NULL || progress->log->level < AG_INFO) return;
    double now = ag_now();
    if (now - progress->start < 1 || now - progress->last < (progress->log->terminal ? 0.2 : 10)) return;
    show(progress, now, false);
}

void ag_progress_end(struct ag_progress *progress) {
    if (progress->log == NULL || progress->log->stream == NULL || progress->log->level < AG_INFO) return;
    if (progress->shown || ag_now() - progress->start >= 1) show(progress, ag_now(), true);
}
