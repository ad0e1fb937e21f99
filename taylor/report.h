/* taylor/report.h: the verdict that anyone can read: one page, for and against the premise alike, and the same as JSON. */
#ifndef AG_TAYLOR_REPORT_H
#define AG_TAYLOR_REPORT_H

#include "taylor/results.h"

/* What the samples say, over rows that carry the value. Shares with 95 % bootstrap intervals over units. */
struct taylor_verdict {
    int64_t queries, degenerate, samples, retrieving; /* retrieving: sampled rows whose target is a value token */
    struct taylor_share inside[TAYLOR_EPS];           /* trust radius 1 */
    struct taylor_share certified[TAYLOR_EPS];        /* radius certified */
    double radius[TAYLOR_EPS];                        /* median radius */
    struct taylor_share cosine, span;                 /* means; quantiles below: 5, 50, 95 % */
    double cosine_quantiles[3], span_quantiles[3];
    double gradient_tightness;           /* median of |e| / (D_k c) */
    double b4x_width;                    /* median width of B4x / |R| */
    double *layer_cosine, *layer_inside; /* (Ls) medians of the cosine, share inside at eps 0.5; NaN: no rows */
};
enum ag_status taylor_judge(struct taylor_verdict *out, const struct taylor_results *results, struct ag_arena *arena,
                            struct ag_error *err);

/* results must be folded. */
enum ag_status taylor_report(struct ag_buf *out, const struct taylor_results *results, struct ag_error *err);
/* The same numbers as a JSON object; NaN and infinities are null. */
enum ag_status taylor_report_json(struct ag_buf *out, const struct taylor_results *results, struct ag_error *err);

#endif
