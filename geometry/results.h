/* geometry/results.h: the geometry results file (HDF5). The schema is written down here, once; geom_results_write makes
 * it and geom_results_read checks it.
 *
 *  / attributes       schema "attgeo-geometry-1"; provenance carried over from the source: model, architecture,
 *                     checkpoint_sha256, tokenizer_sha256, prompts_sha256, backend, dtype, command, version, dump (""
 *                     when reduced during the forward pass) as text, seed; tap, last_tap as text; r, skip, L, P, T,
 *                     bootstrap_draws, resample_seed; storage_lost (records with a channel that varies by less than half
 *                     a step of the 16-bit type its keys were stored in); bases ("prompt,haystack[,pooled]"), role_names
 *                     ("haystack,needle,..."), definitions (the choices among MATH.md's definitions, in words)
 *  /prompts/          id (P) utf8; twin (P) i64 (-1: none); unit (P) i64 (index of its twin pair or itself, from 0)
 *  /layers            (Ls) i64: the layers analysed; attributes Hk (Ls), D (Ls) i64
 *
 *  /records/N/BASIS/  one small record per (prompt, KV head) of layer N (the model's own number)
 *     f64             spectrum (P, Hk, D): eigenvalues, descending, >= 0; mu2 (P, Hk): |mu|^2; ev_r (P, Hk);
 *                     gap (P, Hk): (s_r - s_{r+1}) / s_r; align_sum (P, Hk, roles)
 *     i64             n (P, Hk): keys in the basis; align_count, align_undefined (P, Hk, roles)
 *                     n = 0: spectrum and mu2 are NaN. n <= r + 1: ev_r and gap are NaN and nothing is aligned (all
 *                     counts 0): the record is missing for Delta-mu.
 *
 *  /summary/BASIS/    folded; H: the most KV heads of any layer; f64, NaN where missing
 *     (Ls, H)         delta_mu_prompt, delta_mu_prompt_lo, _hi, _p, _q; delta_mu_token, delta_mu_token_lo, _hi;
 *                     ev_r, effective_rank, participation_ratio, stable_rank, numerical_rank, condition,
 *                     mean_dominance, gap, trace: means over the prompts where defined
 *     (Ls, H, roles)  align: token-pooled mean
 *     (Ls, H, Dmax)   scree: mean of s_i / tr; explained: its cumulative sum
 *     (Ls, roles)     layer_align, _lo, _hi: mean over heads of the per-prompt role means, then over units
 *     (Ls)            layer_delta, _lo, _hi: needle minus distractor of the same, within a prompt
 *     (Ls, H) i64     counts: units (that carry delta_mu_prompt), prompts_missing (r + 1 or fewer keys),
 *                     prompts_few_keys (fewer than D + 1), prompts_zero_trace (tr = 0: ranks NaN), tokens_undefined
 *                     (|k - mu|^2 <= 1e-24 of the largest, all roles)
 *     attributes      fraction_negative, fraction_negative_lo, _hi (cells with delta_mu_prompt < 0);
 *                     fraction_negative_token, _lo, _hi; smallest_p (NaN without a cell) f64; significant_negative,
 *                     significant_positive (q < 0.05), cells (with a delta_mu_prompt), missing (without), zero (cells
 *                     where it is 0: at most 1e-12, which is rounding) i64
 *
 *  /merged            (base/provenance.h): the runs that attgeo merge made one of
 * _lo and _hi are the ends of 95 % intervals by bootstrap over units. Every dataset of records and summary has the
 * attributes about and axes ("prompt, KV head, role").
 */
#ifndef AG_GEOMETRY_RESULTS_H
#define AG_GEOMETRY_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/block.h"
#include "base/provenance.h"

#define GEOM_SCHEMA "attgeo-geometry-1"

enum geom_basis { GEOM_BASIS_PROMPT, GEOM_BASIS_HAYSTACK, GEOM_BASIS_POOLED, GEOM_BASIS_COUNT };
extern const char *const geom_basis_names[GEOM_BASIS_COUNT + 1]; /* NULL-terminated */

/* Records of one (layer, basis). Element (prompt p, head h, i) of an array with inner extent I is at (p * Hk + h) * I +
 * i. */
struct geom_records {
    int64_t *n;                             /* (P, Hk) */
    double *spectrum;                       /* (P, Hk, D) */
    double *mu2, *ev_r, *gap;               /* (P, Hk) */
    double *align_sum;                      /* (P, Hk, AG_ROLE_COUNT) */
    int64_t *align_count, *align_undefined; /* (P, Hk, AG_ROLE_COUNT) */
};

/* What fold makes of all records of one basis: the arrays of /summary/BASIS, shapes above. */
struct geom_summary {
    double *delta_prompt, *delta_prompt_lo, *delta_prompt_hi, *p, *q;
    double *delta_token, *delta_token_lo, *delta_token_hi;
    double *align, *layer_align, *layer_align_lo, *layer_align_hi, *layer_delta, *layer_delta_lo, *layer_delta_hi;
    double *ev_r, *effective_rank, *participation_ratio, *stable_rank, *numerical_rank, *condition, *mean_dominance,
        *gap, *trace;
    double *scree, *explained;
    int64_t *units, *prompts_missing, *prompts_few_keys, *prompts_zero_trace, *tokens_undefined;
    double fraction_negative, fraction_negative_lo, fraction_negative_hi;
    double fraction_negative_token, fraction_negative_token_lo, fraction_negative_token_hi, smallest_p;
    int64_t significant_negative, significant_positive, cells, missing, zero;
};

struct geom_results {
    struct ag_arena *arena; /* owns everything here, this struct included */
    struct ag_provenance from;
    int64_t r, skip;
    int64_t draws, resample_seed; /* of bootstrap and sign flips */
    int64_t
        storage_lost; /* (prompt, layer, head) records with a channel that varies by less than half a storage step */
    bool basis[GEOM_BASIS_COUNT];
    int64_t H, Dmax;                                /* most heads, largest D */
    const int64_t *Hk, *D;                          /* (Ls) */
    struct geom_records *records[GEOM_BASIS_COUNT]; /* (Ls) each, NULL for a basis that is not there */
    struct geom_summary *summary[GEOM_BASIS_COUNT]; /* NULL until geom_fold (geometry/fold.h) */
};

/* An empty results object for this source: provenance and shapes copied, records allocated and marked missing (n = 0).
 * Refused: r >= D of a selected layer, skip >= the longest prompt, no layer selected, no prompts. Free with geom_results_free. */
struct geom_options;
enum ag_status geom_results_new(struct geom_results **out, const struct ag_source *source,
                                const struct geom_options *options, struct ag_error *err);
void geom_results_free(struct geom_results *results);
/* Bytes of records and summaries of the same, for the plan. */
int64_t geom_results_bytes(const struct ag_source *source, const struct geom_options *options);

/* Writes records and summaries (which must be folded) under a temporary name, renamed when whole. */
enum ag_status geom_results_write(const struct geom_results *results, const char *path, bool force,
                                  struct ag_error *err);
/* Reads all of a file back, records and summaries. Damaged or foreign files are refused by name. */
enum ag_status geom_results_read(struct geom_results **out, const char *path, struct ag_error *err);

#endif
