/* kernels/kernels.h: every hot operation behind one table of function pointers. Each operation NAME exists as
 * NAME_ref.c (double accumulation, plain loops, never optimised), NAME_cpu.c (OpenMP, SIMD, BLAS) and, where there is a
 * device, NAME.cu. A table is filled ref, then cpu, then cuda; `--backend` is exact: an operation that the chosen
 * backend lacks is an error, never a silent detour (kern_backend names it).
 *
 * Row-major C order. Arguments: outputs, inputs, dims (outermost first), strides, scalars. All pointers of one call
 * live in the backend's memory. Exactness (DESIGN.md): bits depend neither on the number of threads nor on which other
 * prompts are packed beside one: work is cut into row tiles that start at prompt boundaries, BLAS is single-threaded
 * inside a tile, every sum has a fixed order. */
#ifndef AG_KERNELS_KERNELS_H
#define AG_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cli.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows [row, row + rows) of a packed array; never across a prompt boundary; rows <= KERN_TILE_ROWS. */
#define KERN_TILE_ROWS 256
struct kern_tile {
    int64_t row, rows;
};

/* Widest head (D, Dv) that attention takes; the model reader refuses more. */
#define KERN_HEAD_MAX 512
#define KERN_LOGIT_MAX 0x1p30 /* logits of this size and more are not computed with */
/* Most KV heads of a layer that the kernels take (the reader refuses more by name). */
#define KERN_HEADS_MAX 1024

/* Element types of stored weights. Names as in the files. */
enum kern_dtype {
    KERN_F32,
    KERN_F16,
    KERN_BF16,
    KERN_F64,
    KERN_Q4_0,
    KERN_Q4_1,
    KERN_Q5_0,
    KERN_Q5_1,
    KERN_Q8_0,
    KERN_Q2_K,
    KERN_Q3_K,
    KERN_Q4_K,
    KERN_Q5_K,
    KERN_Q6_K,
    KERN_DTYPE_COUNT
};
struct kern_dtype_info {
    const char *name;
    int64_t block_elements, block_bytes; /* F32: 1, 4; Q4_K: 256, 144 */
};
extern const struct kern_dtype_info kern_dtypes[KERN_DTYPE_COUNT];

/* The logits x_1..x_t that one query sees, under uniform weights (MATH.md section 5). m, v, A and the extremes lie within
 * the error bounds of the values that exact arithmetic gives for the stored keys and query. */
struct kern_logit_moments {
    int64_t t;                 /* keys seen */
    double m, v;               /* mean and population variance of the logits */
    double a, b;               /* least and largest logit */
    double A;                  /* log sum exp x */
    double k3, k4;             /* third and fourth cumulant */
    double effective, largest; /* 1 / sum p^2 and max p of the softmax */
    double dm, dv, dab, dA;    /* absolute error bounds of m, v, a and b, A */
};

/* K(s) = log mean e^{s x} and its first two derivatives, the mean and variance of the tilted law (MATH.md section 5). */
struct kern_tilt {
    double K, mean, variance;
    double dK, dmean, dvariance; /* absolute error bounds, for the x and s given */
};

/* Elementwise maps of linear attention: of the short convolution's sums, and feature maps of keys and queries. */
enum kern_map {
    KERN_MAP_NONE,
    KERN_MAP_SILU,
    KERN_MAP_RELU,
    KERN_MAP_ELU1 /* elu + 1 */,
    KERN_MAP_SIGMOID,
    KERN_MAP_SQRELU
};
/* Scalings of a head's vector: x (sum x^2 + eps)^-1/2, and x / (sum x + eps). */
enum kern_unit { KERN_UNIT_NONE, KERN_UNIT_L2, KERN_UNIT_SUM };
/* A log gate below this is a reset: e^-100 is nothing beside anything, and sums of gates stay exact in double. */
#define KERN_LOG_GATE_MIN (-100.0)

struct kern_ops {
    const char *name; /* "ref", "cpu", "cuda" */

    /* y (rows, D) f32 from rows * D / block_elements blocks of a stored type (spec/checkpoints.md 2.1); bit-exact on
     * every backend. D is a multiple of block_elements (checked by the reader). */
    void (*dequant)(float *y, const void *blocks, enum kern_dtype dtype, int64_t rows, int64_t D);

    /* y (T, N) = x (T, K) w (N, K)^T + bias (N); accumulate: y += instead of y =; bias may be NULL. Leading dimensions
     * ldy, ldx in floats. Rows are those of the tiles; rows outside every tile are untouched. */
    void (*linear)(float *y, const float *x, const float *w, const float *bias, const struct kern_tile *tiles,
                   int64_t n_tiles, int64_t N, int64_t K, int64_t ldy, int64_t ldx, bool accumulate);

    /* y_t = x_t * (mean(x_t^2) + eps)^-1/2 * w for `rows` rows of width C at strides ldy, ldx; y may be x. Used for
     * hidden states (C wide) and, with rows = T * heads, for QK-norm (D wide). */
    void (*rmsnorm)(float *y, const float *x, const float *w, int64_t rows, int64_t C, int64_t ldy, int64_t ldx,
                    double eps);

    /* In place on x (T, heads, D) with row stride ldx: half-split rotary embedding of the first n_rot coordinates, angle =
     * f32(position) * inv_freq[i] in f32, cos and sin times attention_scaling (spec/softmax-models.md section 2).
     * position (T) int32. y may be x. */
    void (*rope)(float *y, const float *x, const int32_t *position, const float *inv_freq, int64_t T, int64_t heads,
                 int64_t D, int64_t n_rot, int64_t ldy, int64_t ldx, float attention_scaling);

    /* out (T, Hq, Dv): causal softmax attention inside each prompt [offsets[p], offsets[p+1]); query head a uses KV head
     * a / (Hq / Hk); window w > 0: only keys with t - j < w. Row strides in floats; D, Dv <= KERN_HEAD_MAX;
     * needs no memory but its threads' stacks (under 256 KiB each). */
    void (*attention)(float *out, const float *q, const float *k, const float *v, const int64_t *offsets, int64_t P,
                      int64_t Hq, int64_t Hk, int64_t D, int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk, int64_t ldv,
                      double scale, int64_t window);

    /* y (rows, F) = silu(gate) * up, strides in floats; y may be gate. */
    void (*swiglu)(float *y, const float *gate, const float *up, int64_t rows, int64_t F, int64_t ldy, int64_t ldg,
                   int64_t ldu);

    /* Linear attention (spec/linear-models.md). The operations from here to `ccq_read` may be missing from a backend's
     * table: whoever runs such a model asks first. */

    /* Depthwise causal convolution inside each prompt, zeros before it: y_t[c] = map(sum_j w[c][j] x_{t - (W-1) + j}[c]),
     * w (C, W): the last tap meets the current token. y may be x. */
    void (*shortconv)(float *y, const float *x, const float *w, const int64_t *offsets, int64_t P, int64_t C, int64_t W,
                      int64_t ldy, int64_t ldx, enum kern_map map);
    /* y (rows, n) = map(x); y may be x. */
    void (*map)(float *y, const float *x, int64_t rows, int64_t n, int64_t ldy, int64_t ldx, enum kern_map map);
    /* Each of `rows` rows of width D scaled; y may be x. */
    void (*unit)(float *y, const float *x, int64_t rows, int64_t D, int64_t ldy, int64_t ldx, enum kern_unit unit,
                 double eps);
    /* Log gates. decay NULL (GLA): y = max(logsigmoid(x + bias) / divisor, least), bias NULL: 0; else (Gated DeltaNet,
     * decay (n) = A_log): y = -e^decay softplus(x + bias). least -INFINITY: no clamp. y may be x. */
    void (*log_gate)(float *y, const float *x, const float *bias, const float *decay, int64_t rows, int64_t n,
                     int64_t ldy, int64_t ldx, double divisor, double least);
    /* out (T, Hq, Dv): per prompt and key head S_t = diag(e^{g_t}) S_{t-1} + k_t v_t^T from S = 0, and for its Hq / Hk
     * query heads o_t = scale S_t^T q_t. g (T, Hk, D) log gates <= 0, clamped at KERN_LOG_GATE_MIN; NULL: all 0. D, Dv <=
     * KERN_HEAD_MAX; needs under 2 MiB of its threads' stacks. */
    void (*gla)(float *out, const float *q, const float *k, const float *v, const float *g, const int64_t *offsets,
                int64_t P, int64_t Hq, int64_t Hk, int64_t D, int64_t Dv, int64_t ldo, int64_t ldq, int64_t ldk,
                int64_t ldv, int64_t ldg, double scale);
    /* out (T, Hv, Dv): per prompt and value head j, with q and k of head j / (Hv / H): S' = e^{g_t} S_{t-1}, u = beta_t
     * (v_t - S'^T k_t), S_t = S' + k_t u^T, o_t = scale S_t^T q_t. g (T, Hv) as in gla, NULL: 0; beta (T, Hv), NULL: 1,
     * times beta_factor. Limits as in gla. */
    void (*gdn)(float *out, const float *q, const float *k, const float *v, const float *g, const float *beta,
                const int64_t *offsets, int64_t P, int64_t H, int64_t Hv, int64_t D, int64_t Dv, int64_t ldo,
                int64_t ldq, int64_t ldk, int64_t ldv, int64_t ldg, int64_t ldb, double scale, double beta_factor);
    /* y (T, Hq, D) = q_t - lambda_t Sigma_t q_t, lambda_t = sigmoid(w_h . q_t + b_h), w (Hq, D), b (Hq); Sigma_t the
     * centred covariance, uniform weights, of the keys of the head's key head from the prompt's first to the current
     * one. Double, recurrent. y may not be q. */
    void (*ccq_read)(float *y, const float *q, const float *k, const float *w, const float *b, const int64_t *offsets,
                     int64_t P, int64_t Hq, int64_t Hk, int64_t D, int64_t ldy, int64_t ldq, int64_t ldk);

    /* First of `rows` rows (n wide, stride ld) of x that holds a NaN or an infinity; -1: all finite. */
    int64_t (*nonfinite)(const float *x, int64_t rows, int64_t n, int64_t ld);

    /* Per row of logits (rows, V): nll = log sum exp(row) - row[target], argmax (lowest index on ties). double inside. */
    void (*nll)(double *nll, int32_t *argmax, const float *logits, const int32_t *target, int64_t rows, int64_t V);

    /* out (Hq, T): the moments of the logits scale * k_j . q_t over the keys that causal attention sees at t (window as in
     * attention), for one prompt; query head a uses KV head a / (Hq / Hk). Double throughout, memory linear in T. Keys and
     * queries must be finite; a query with a logit of KERN_LOGIT_MAX or more gets A = NaN. */
    void (*logit_moments)(struct kern_logit_moments *out, const float *keys, const float *queries, int64_t T,
                          int64_t Hq, int64_t Hk, int64_t D, int64_t key_head_stride, int64_t key_token_stride,
                          int64_t query_head_stride, int64_t query_token_stride, double scale, int64_t window);

    /* The law of n >= 1 finite logits x tilted by s: weights proportional to e^{s x_j}. */
    void (*tilt)(struct kern_tilt *out, const double *x, int64_t n, double s);

    /* Mean mu (D) and population covariance cov (D, D, full symmetric) of the keys x + j * token_stride for j in rows[]
     * (n of them, ascending), shifted as MATH.md section 2 says, in double. n = 0: mu and cov are NaN. One call is one
     * (head, basis); the caller loops over them in parallel. */
    void (*moments)(double *mu, double *cov, const float *x, const int32_t *rows, int64_t n, int64_t D,
                    int64_t token_stride);

    /* Alignment energies (MATH.md section 4): for each of T keys, total[t] = |k_t - mu|^2 and inside[t] =
     * |U_r^T (k_t - mu)|^2, U (r, D): one eigenvector per row. */
    void (*align)(double *inside, double *total, const float *x, const double *mu, const double *U, int64_t T,
                  int64_t D, int64_t r, int64_t token_stride);

    /* Symmetric eigenproblem of n matrices a (n, D, D) in double, overwritten: a[i] row j becomes the eigenvector of
     * w[i][j], w (n, D) descending. info (n): 0, or the solver's status, non-zero meaning that result i is not valid. */
    void (*eigh)(double *w, double *a, int *info, int64_t n, int64_t D);
};

/* The table of a backend; AUTO picks the best that this build and machine have. AG_E_UNSUPPORTED with the reason
 * otherwise. */
enum ag_status kern_backend(const struct kern_ops **ops, enum ag_backend backend, struct ag_error *err);

/* Cuts packed prompts into tiles (in prompt order): returns how many; tiles may be NULL to count. */
int64_t kern_tiles(struct kern_tile *tiles, const int64_t *offsets, int64_t P);

/* Threads used by the cpu backend; n = 0: all that the process may use. BLAS stays single-threaded. */
void kern_set_threads(int64_t n);
int64_t kern_threads(void);

/* DESIGN.md, BLAS core: when OpenBLAS chose kernels too weak for this processor, sets OPENBLAS_CORETYPE and executes
 * the program again (once). Call first thing in main. Returns when nothing is to be done or exec failed. */
void kern_blas_core_fix(char **argv);
/* "SkylakeX (as detected)", for -v and info. */
const char *kern_blas_core(void);

#ifdef __cplusplus
}
#endif
#endif
