/* base/status.h: how every function of attgeo reports failure.
 *
 * Library code returns a status and fills a fixed-size message; only attgeo.c prints it and chooses the exit code.
 * The first error wins: a message that is already set is not overwritten by the clean-up that follows it.
 * A message names the file, what was found, what was expected and what to do. */
#ifndef AG_BASE_STATUS_H
#define AG_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum ag_status {
    AG_OK = 0,
    AG_E_USAGE = -1,       /* the command line is wrong: exit 2 */
    AG_E_MEMORY = -2,      /* out of memory, or the plan does not fit */
    AG_E_IO = -3,          /* the system refused: open, read, write, rename, disk full, locked */
    AG_E_FORMAT = -4,      /* a file is damaged or breaks its format */
    AG_E_UNSUPPORTED = -5, /* a valid input that this build cannot handle: refused by name */
    AG_E_NUMERIC = -6,     /* NaN, infinity, or a solver that did not converge */
    AG_E_INTERNAL = -7,    /* a bug of ours */
    AG_E_INTERRUPTED = -8, /* SIGINT or SIGTERM: cleaned up on request */
};

struct ag_error {
    enum ag_status status;
    char text[1024];
};

#define AG_ERROR_INIT                                                                                                  \
    {                                                                                                                  \
        AG_OK, { 0 }                                                                                                   \
    }

/* Sets err (may be NULL) unless it already holds an error; returns status, so that callers can write
 * `return ag_fail(err, AG_E_FORMAT, "%s: ...", path)`. */
enum ag_status ag_fail(struct ag_error *err, enum ag_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the message of an error that is already set, unless it begins so already. */
enum ag_status ag_fail_context(struct ag_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One word for the status, never NULL. */
const char *ag_status_name(enum ag_status status);

/* The single clean-up path: needs `enum ag_status status` and a label `fail:` in the function. */
#define AG_TRY(expression)                                                                                             \
    do {                                                                                                               \
        status = (expression);                                                                                         \
        if (status != AG_OK) goto fail;                                                                                \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
