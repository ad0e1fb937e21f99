/* base/status.c: see status.h. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum ag_status ag_fail(struct ag_error *err, enum ag_status status, const char *format, ...) {
    if (err == NULL || err->status != AG_OK) return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return status;
}

enum ag_status ag_fail_context(struct ag_error *err, const char *format, ...) {
    if (err == NULL || err->status == AG_OK) return AG_E_INTERNAL;
    char text[sizeof err->text];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n;
    if (used > 0 && used < sizeof text && strncmp(err->text, text, used) == 0 && err->text[used] == ':')
        return err->status; /* the message begins so already */
    const char *pieces[] = {": ", err->text};
    for (int i = 0; i < 2; i++) /* the end of a message that grows too long is cut */
        for (const char *c = pieces[i]; *c != '\0' && used + 1 < sizeof text; c++) text[used++] = *c;
    if (used >= sizeof text) used = sizeof text - 1;
    text[used] = '\0';
    memcpy(err->text, text, used + 1);
    return err->status;
}

const char *ag_status_name(enum ag_status status) {
    switch (status) {
    case AG_OK:
        return "ok";
    case AG_E_USAGE:
        return "usage";
    case AG_E_MEMORY:
        return "memory";
    case AG_E_IO:
        return "input/output";
    case AG_E_FORMAT:
        return "format";
    case AG_E_UNSUPPORTED:
        return "unsupported";
    case AG_E_NUMERIC:
        return "numeric";
    case AG_E_INTERNAL:
        return "internal";
    case AG_E_INTERRUPTED:
        return "interrupted";
    }
    return "unknown";
}
