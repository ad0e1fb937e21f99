/* geometry/report.h: what was found, in words and in tables. */
#ifndef AG_GEOMETRY_REPORT_H
#define AG_GEOMETRY_REPORT_H

#include <stdbool.h>

#include "geometry/results.h"

/* The summary that `attgeo geometry` and `attgeo probe --reduce geometry` print: about six lines, for and against the
 * premise (the needle lies off the dense directions: Delta-mu < 0), the haystack control always beside the default
 * basis. results must be folded. */
enum ag_status geom_report(struct ag_buf *out, const struct geom_results *results, struct ag_error *err);

/* cells.csv, layers.csv, spectra.csv in folder (made if need be): comma-separated with a line of names, comment lines
 * start with #, missing is nan. Existing files are refused without force. */
enum ag_status geom_tables(const struct geom_results *results, const char *folder, bool force, struct ag_error *err);
/* The refusal alone, for a command that writes only after long work. */
enum ag_status geom_tables_check(const char *folder, bool force, struct ag_error *err);

#endif
