/* geometry/results_table.h: the datasets of a results file as tables, for results.c and fold.c. */
#ifndef AG_GEOMETRY_RESULTS_TABLE_H
#define AG_GEOMETRY_RESULTS_TABLE_H

#include <stddef.h>

#include "base/h5.h"
#include "geometry/results.h"

/* Dimensions as letters: P prompts, k KV heads and d dims of the layer, r roles, L layers, H most heads, D largest dim.
 */
struct geom_dataset {
    const char *name, *dims, *about;
    enum ag_h5_type type; /* AG_H5_F64 or AG_H5_I64 */
    size_t offset;        /* of the pointer in the struct */
};
extern const struct geom_dataset geom_record_datasets[], geom_summary_datasets[];
extern const int geom_n_record_datasets, geom_n_summary_datasets;

/* Extents of a dataset; layer: index into results->layer for records. Returns the rank. */
int geom_dims(int64_t dims[AG_H5_MAX_RANK], const struct geom_dataset *dataset, const struct geom_results *results,
              int64_t layer);

/* The same in words, such as "prompt, KV head, role": the attribute axes of the dataset. */
void geom_axes(char *out, size_t size, const struct geom_dataset *dataset);

/* Allocates every array of a struct by its table: f64 NaN, i64 zero (sums and counts of the alignment: zero). */
enum ag_status geom_allocate(void *target, const struct geom_dataset *datasets, int n,
                             const struct geom_results *results, int64_t layer, struct ag_error *err);

#endif
