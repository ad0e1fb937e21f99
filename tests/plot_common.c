/* tests/plot_common.c: see plot_common.h. */
#include "tests/plot_common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *plot_slurp(const char *path, size_t *size) {
    static char *kept[64];
    static int next;
    struct ag_buf buf = {0};
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail_msg("%s is not there", path);
    char piece[4096];
    for (size_t n; (n = fread(piece, 1, sizeof piece, file)) > 0;)
        assert_int_equal(ag_buf_add(&buf, piece, n, NULL), AG_OK);
    fclose(file);
    if (buf.size == 0) fail_msg("%s is empty", path);
    free(kept[next % 64]);
    if (strlen(path) > 4 && strcmp(path + strlen(path) - 4, ".svg") == 0)
        buf.size = test_canonical_svg(buf.data, buf.size);
    kept[next++ % 64] = buf.data;
    *size = buf.size;
    return buf.data;
}

int plot_occurrences(const char *text, const char *piece) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, piece)) != NULL; at += strlen(piece)) n++;
    return n;
}

/* With -q only warnings speak: gnuplot must have had nothing to complain about. */
void plot_ok(const char *results, const char *folder, const char *options) {
    struct ag_buf err = {0};
    const int code = test_cli(NULL, &err, "plot %s -o %s -q --force %s", results, folder, options);
    if (code != 0) fail_msg("exit %d: %s", code, err.data);
    if (err.size > 0) fail_msg("said: %s", err.data);
    ag_buf_free(&err);
}

void plot_refused(int code, const char *arguments, const char *piece, const char *other) {
    struct ag_buf err = {0};
    const int got = test_cli(NULL, &err, "plot %s", arguments);
    if (got != code) fail_msg("plot %s: exit %d, expected %d: %s", arguments, got, code, err.data);
    if (strstr(err.data, piece) == NULL || strstr(err.data, other) == NULL)
        fail_msg("'%s' contains not both '%s' and '%s'", err.data, piece, other);
    ag_buf_free(&err);
}
