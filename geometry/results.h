/* geometry/results.h: the geometry results file (HDF5). The schema is written down here, once.
 *
 *  / attributes          schema "attgeo-geometry-1"; provenance carried over from the source: model, architecture,
 *                        checkpoint_sha256, tokenizer_sha256, prompts_sha256, backend, dtype, seed, command, version,
 *                        dump; tap, last_tap, r, skip, L, P, T, bootstrap_draws, bases ("prompt,haystack[,pooled]")
 *  /prompts/id (P) utf8, twin (P) i64, unit (P) i64 (index of its twin pair or itself)
 *  /layers (Ls) i64      the layers analysed; attributes Hk (Ls), D (Ls)
 *  /records/N/BASIS/...  one small record per (prompt, KV head) of layer N:
 *       n (P, Hk) i64 keys in the basis; spectrum (P, Hk, D) f64 eigenvalues, descending, >= 0; mu2 (P, Hk) |mu|^2;
 *       ev_r (P, Hk); gap (P, Hk) (s_r - s_{r+1}) / s_r; align_sum (P, Hk, roles) f64; align_count (P, Hk, roles) i64;
 *       align_undefined (P, Hk, roles) i64
 *  /summary/BASIS/...    folded, (Ls, H) with H the most KV heads of any layer; NaN where missing; `missing` counts:
 *       delta_mu_prompt, _lo, _hi, p, q, units (Ls, H); delta_mu_token, _lo, _hi (Ls, H);
 *       align (Ls, H, roles) token-pooled mean; layer_align (Ls, roles), layer_align_lo, layer_align_hi: mean over heads
 *       of the per-prompt role means, 95 % bootstrap over units;
 *       ev_r, effective_rank, participation_ratio, stable_rank, numerical_rank, condition, mean_dominance, gap,
 *       trace (Ls, H): means over prompts; scree (Ls, H, Dmax): mean of s_i / tr; explained (Ls, H, Dmax): its cumulative
 *       attributes: fraction_negative, _lo, _hi, significant_negative, significant_positive, cells, missing, smallest_p
 */
#ifndef AG_GEOMETRY_RESULTS_H
#define AG_GEOMETRY_RESULTS_H

#define GEOM_SCHEMA "attgeo-geometry-1"

#endif
