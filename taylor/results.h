/* taylor/results.h: the Taylor results file (HDF5). The schema is written down here, once; taylor_results_write makes it and
 * taylor_results_read checks it. Definitions: MATH.md section 5.
 *
 *  / attributes          schema "attgeo-taylor-1"; provenance as in geometry/results.h; tap, last_tap as text, softmax_sees
 *                        (0/1: tap is the one the softmax sees), L, P, T, samples (rows), queries (N a prompt), seed,
 *                        eps (3) f64, r (of direction fidelity), quantities, bounds ("B1,B2,B3,B4"), bins in words,
 *                        definitions
 *  /prompts/id (P) utf8, twin (P) i64, unit (P) i64
 *  /layers (Ls) i64      the layers analysed; attributes Hq, Hk, D, window (Ls) i64, scale (Ls) f64
 *
 *  All causal queries:
 *  /records/N/counts (P, Hq, TAYLOR_COUNTS) i64: see enum taylor_count; medians (P, Hq, TAYLOR_MEDIANS) f64, NaN: none
 *  /histograms/N/counts (Hq, quantities, 2, TAYLOR_BINS) i32: second axis: negative, positive values (bins by magnitude)
 *  /density/N (TAYLOR_DENSITY, TAYLOR_DENSITY) i64: queries by sqrt(v) (rows) and |R|/c (columns), 2 bins an octave from
 *                        2^-20; the first and last bins take what is beyond
 *
 *  Folded, (Ls, H) with H the most query heads of any layer, NaN where missing:
 *  /summary/quantiles (Ls, H, quantities, 7) f64 at 1, 5, 25, 50, 75, 95, 99 %; layer_quantiles (Ls, quantities, 7); and
 *                        model_quantiles (quantities, 7): from the histograms, right to half a bin (2.2 %)
 *  /summary/share_eps (Ls, H, 3): |R| <= eps c; share_sign (Ls, H, 4), share_proved (Ls, H, 4), share_finite (Ls, H, 4);
 *                        layer_* of the same with _lo, _hi (95 % bootstrap over units), model_* likewise
 *  /summary/order (Ls, 5, 7): quantiles of |A - A_n| for the cumulant expansion of order n = 0..4, by layer
 *
 *  Sampled queries (double precision logits), one row each; every dataset (rows):
 *  /samples/prompt, layer, head, position, keys i64; role u8; value u8 (1: its target is a value token of the answer; 2: the
 *                        headline query); q_norm, m, v, a, b, A, c, R, dR, effective, largest f64; lo, hi (rows, 5) for B1..B4, B4x;
 *                        radius, proved (rows, 3) f64, certified (rows, 3) u8; cosine, span (direction fidelity; NaN: missing),
 *                        gradient (|e|), gradient_bound (D_k c)
 */
#ifndef AG_TAYLOR_RESULTS_H
#define AG_TAYLOR_RESULTS_H

#define TAYLOR_SCHEMA "attgeo-taylor-1"

/* Histogrammed for all causal queries. R_over_c is signed, the others are not negative. */
enum taylor_quantity {
    TAYLOR_Q_NORM,      /* |q|, scale included */
    TAYLOR_RADIUS_V,    /* sqrt(v) */
    TAYLOR_RANGE,       /* b - a */
    TAYLOR_C,           /* competition; also the error of order 1 */
    TAYLOR_ABS_R,       /* |R|; also the error of order 2 */
    TAYLOR_R_OVER_C,    /* signed */
    TAYLOR_R_OVER_V2,   /* |R| / (v / 2) */
    TAYLOR_EFFECTIVE,   /* effective keys */
    TAYLOR_LARGEST,     /* largest weight */
    TAYLOR_WIDTH_B1, TAYLOR_WIDTH_B2, TAYLOR_WIDTH_B3, TAYLOR_WIDTH_B4, /* width / |R| */
    TAYLOR_ERROR_0, TAYLOR_ERROR_3, TAYLOR_ERROR_4,                     /* |A - A_n| of orders 0, 3, 4 */
    TAYLOR_QUANTITIES
};

/* Per (prompt, query head). */
enum taylor_count {
    TAYLOR_N_QUERIES,
    TAYLOR_N_DEGENERATE,                        /* v = 0: R/c, width/|R| and sign missing */
    TAYLOR_N_EPS_0, TAYLOR_N_EPS_1, TAYLOR_N_EPS_2, /* |R| <= eps c, eps = 0.1, 0.5, 1 (degenerate ones included) */
    TAYLOR_N_SIGN_B1, TAYLOR_N_SIGN_B2, TAYLOR_N_SIGN_B3, TAYLOR_N_SIGN_B4,         /* the bound fixes the sign of R */
    TAYLOR_N_PROVED_B1, TAYLOR_N_PROVED_B2, TAYLOR_N_PROVED_B3, TAYLOR_N_PROVED_B4, /* lower end >= -v/4: |R| <= c */
    TAYLOR_N_FINITE_B1, TAYLOR_N_FINITE_B2, TAYLOR_N_FINITE_B3, TAYLOR_N_FINITE_B4,
    TAYLOR_COUNTS
};
enum taylor_median { TAYLOR_M_R_OVER_C, TAYLOR_M_ABS_R_OVER_C, TAYLOR_M_RADIUS_V, TAYLOR_M_EFFECTIVE, TAYLOR_M_LARGEST, TAYLOR_MEDIANS };

#endif
