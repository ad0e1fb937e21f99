/* tests/plot_common.h: what the tests of figures share. */
#ifndef AG_TESTS_PLOT_COMMON_H
#define AG_TESTS_PLOT_COMMON_H

#include "tests/test.h"

/* A whole file, an SVG in its canonical form (test_canonical_svg); missing or empty: the test fails. The text stays valid for
 * the next 63 calls. */
const char *plot_slurp(const char *path, size_t *size);
/* How often piece stands in text. */
int plot_occurrences(const char *text, const char *piece);
/* attgeo plot RESULTS -o FOLDER -q --force OPTIONS must succeed and say nothing, and so must gnuplot. */
void plot_ok(const char *results, const char *folder, const char *options);
/* attgeo plot ARGUMENTS must end with this code, its message holding both pieces. */
void plot_refused(int code, const char *arguments, const char *piece, const char *other);

#endif
