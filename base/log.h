/* base/log.h: talk for people, on the stream that main hands down (stderr). Libraries receive a log and may be given
 * NULL: then they are silent. stdout is data and never passes through here. */
#ifndef AG_BASE_LOG_H
#define AG_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ag_level { AG_WARN = 0, AG_INFO = 1, AG_DETAIL = 2 }; /* -q shows warnings only, default INFO, -v DETAIL */

struct ag_log {
    FILE *stream;
    enum ag_level level;
    bool terminal; /* progress rewrites one line on a terminal, else plain lines every ten seconds */
};

/* One line (a newline is added). */
void ag_say(const struct ag_log *log, enum ag_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Progress with rate and time left; silent for the first second and with -q. Call from one thread. */
struct ag_progress {
    const struct ag_log *log;
    const char *label, *unit;
    int64_t done, total;
    double start, last;
    bool shown;
};
struct ag_progress ag_progress_begin(const struct ag_log *log, const char *label, int64_t total, const char *unit);
void ag_progress_add(struct ag_progress *progress, int64_t n);
void ag_progress_end(struct ag_progress *progress);

/* Monotonic seconds. */
double ag_now(void);

#ifdef __cplusplus
}
#endif
#endif
