/* taylor/sample.c: see sample.h. u = 2^-53. */
#include "taylor/sample.h"

#include <float.h>
#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <string.h>

#include "kernels/ops.h"
#include "taylor/curve.h"
#include "taylor/state.h"

#define U (DBL_EPSILON / 2)

static double up(double x, double n) { return x * (1 + n * U) + 4.94e-324; }

/* ---- positions ---------------------------------------------------------------------------------------------------- */

/* FNV-1a over the seed's bytes and the id: a generator's seed that depends on nothing else. */
static unsigned long position_seed(int64_t seed, const char *id) {
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < 8; i++) hash = (hash ^ ((uint64_t)seed >> 8 * i & 255)) * 1099511628211u;
    for (; *id != '\0'; id++) hash = (hash ^ (unsigned char)*id) * 1099511628211u;
    return (unsigned long)((hash ^ hash >> 32) & 0xffffffffu);
}

int64_t taylor_positions(int64_t *out, int64_t *headline, const struct ag_tokens *tokens, int64_t p,
                         const struct taylor_options *options) {
    const int64_t start = tokens->offsets[p], T = tokens->offsets[p + 1] - start;
    int64_t left = options->queries < T ? options->queries : T, n = 0;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    if (rng != NULL) gsl_rng_set(rng, position_seed(options->seed, tokens->prompt_id[p]));
    *headline = -1;
    for (int64_t t = 0; t < T; t++) {
        /* selection sampling (Knuth's algorithm S): every position draws once */
        bool drawn = rng != NULL && gsl_rng_uniform(rng) * (double)(T - t) < (double)left;
        left -= drawn;
        if (options->positions != NULL) drawn = options->positions[start + t];
        bool retrieves = t + 1 < T && (tokens->value[start + t + 1] & AG_VALUE_ANSWER) != 0;
        if (retrieves && *headline < 0) *headline = t;
        if (drawn || retrieves) out[n++] = t;
    }
    gsl_rng_free(rng);
    return n;
}

static bool holds(const int64_t *list, int64_t n, int64_t x) {
    for (int64_t i = 0; i < n; i++)
        if (list[i] == x) return true;
    return false;
}

int64_t taylor_curve_positions(int64_t *out, const int64_t *positions, int64_t n, int64_t headline, int64_t most) {
    int64_t count = 0;
    for (int64_t i = 0; i < n && count < most; i++)
        if (positions[i] == headline) out[count++] = i;
    for (int64_t parts = 1; parts < 4 * n && count < most;
         parts *= 2) /* steps of half an index at the end: every one is met */
        for (int64_t k = parts > 1 ? parts - 1 : 1; k >= 1 && count < most;
             k -= 2) { /* odd parts end where none did before */
            const int64_t i = n * k > parts ? (n * k - 1) / parts : 0;
            if (!holds(out, count, i)) out[count++] = i;
        }
    for (int64_t i = 1; i < count; i++) /* few: by insertion */
        for (int64_t k = i; k > 0 && out[k - 1] > out[k]; k--) {
            const int64_t swap = out[k];
            out[k] = out[k - 1];
            out[k - 1] = swap;
        }
    return count;
}

/* ---- one group of query heads --------------------------------------------------------------------------------------- */

enum ag_status taylor_scratch_new(struct taylor_scratch *s, int64_t T, int64_t D, struct ag_arena *arena,
                                  struct ag_error *err) {
    *s = (struct taylor_scratch){AG_NEW(arena, double, T, err),
                                 AG_NEW(arena, double, D *D, err),
                                 AG_NEW(arena, double, D, err),
                                 AG_NEW(arena, double, D *D, err),
                                 AG_NEW(arena, double, D, err),
                                 AG_NEW(arena, double, D, err),
                                 AG_NEW(arena, double, D, err),
                                 AG_NEW(arena, double, D, err),
                                 AG_NEW(arena, double, TAYLOR_STATE_DOUBLES(D), err),
                                 AG_NEW(arena, double, T, err),
                                 AG_NEW(arena, int32_t, T, err)};
    return s->x && s->axes && s->mu && s->cov && s->spectrum && s->read && s->sigma_q && s->projected && s->state &&
                   s->weight && s->rows
               ? AG_OK
               : AG_E_MEMORY;
}

/* What the keys j = first .. first + n - 1 are as a cloud: mean, axes, and how far they reach. */
struct cloud {
    int64_t n, kept;    /* keys; axes with s_i > 1e-11 s_1 */
    double radius;      /* max |k_j - mu|, rounded up */
    double mahalanobis; /* max over keys of sqrt(sum over kept axes y_i^2 / s_i) */
    double cut;         /* max |(k_j - mu) outside the kept axes| */
    double skew;        /* |I - U U^T| in the Frobenius norm: how far U is from orthogonal */
};

/* Leaves the eigenvectors in cov (rows), eigenvalues in spectrum. The lengths along the axes come from the alignment kernel, with
 * axes scaled by s_i^-1/2 for the Mahalanobis distance. */
static bool cloud_of(struct cloud *cloud, const float *keys, int64_t stride, int64_t n, int64_t D,
                     struct taylor_scratch *s, const struct kern_ops *ops) {
    int info = 0;
    ops->eigh(s->spectrum, s->cov, &info, 1, D);
    if (info != 0) return false;
    *cloud = (struct cloud){n, 0, 0, 0, 0, 0};
    while (cloud->kept < D && s->spectrum[cloud->kept] > 1e-11 * s->spectrum[0] && s->spectrum[cloud->kept] > 0)
        cloud->kept++;
    for (int64_t i = 0; i < D; i++)
        for (int64_t j = 0; j <= i; j++) {
            double dot = i == j ? -1 : 0;
#pragma omp simd reduction(+ : dot)
            for (int64_t d = 0; d < D; d++) dot += s->cov[i * D + d] * s->cov[j * D + d];
            cloud->skew += (i == j ? 1 : 2) * dot * dot;
        }
    cloud->skew = sqrt(cloud->skew) + 4 * (double)D * (double)D * U; /* its own rounding */
    double *along = s->x, *total = s->weight;
    for (int64_t i = 0; i < cloud->kept; i++)
        for (int64_t d = 0; d < D; d++) s->axes[i * D + d] = s->cov[i * D + d] / sqrt(s->spectrum[i]);
    ops->align(along, total, keys, s->mu, s->axes, n, D, cloud->kept, stride);
    for (int64_t j = 0; j < n; j++) {
        cloud->radius = fmax(cloud->radius, total[j]);
        cloud->mahalanobis = fmax(cloud->mahalanobis, along[j]);
    }
    if (cloud->kept < D) {
        ops->align(along, total, keys, s->mu, s->cov + cloud->kept * D, n, D, D - cloud->kept, stride);
        for (int64_t j = 0; j < n; j++) cloud->cut = fmax(cloud->cut, along[j]);
    }
    cloud->radius = up(sqrt(cloud->radius), (double)(D + 8));
    cloud->mahalanobis = sqrt(cloud->mahalanobis);
    cloud->cut = sqrt(cloud->cut);
    return true;
}

/* |x_j - m| by the cloud: q . y = sum over kept axes (q_i sqrt s_i)(y_i / sqrt s_i) + the rest, each by Cauchy and Schwarz; what U
 * lacks in orthogonality, the rounding of the projections and that of mu enter as |q| times a length. */
static double cloud_reach(const struct cloud *cloud, const float *q, double scale, int64_t D, double mu_error,
                          const struct taylor_scratch *s) {
    double square = 0, along = 0, rest = 0;
    for (int64_t d = 0; d < D; d++) square += (double)q[d] * scale * ((double)q[d] * scale);
    for (int64_t i = 0; i < D; i++) {
        double part = 0;
        for (int64_t d = 0; d < D; d++) part += s->cov[i * D + d] * ((double)q[d] * scale);
        if (i < cloud->kept)
            along += part * part * s->spectrum[i];
        else
            rest += part * part;
    }
    /* a projection on an axis is off by (D + 1) u |.|, a vector of at most D of them by sqrt D times that: `spread` of its length */
    const double spread = ((double)D + 4) * sqrt((double)D) * U;
    double norm = sqrt(square), slop = norm * (cloud->radius * (cloud->skew + 8 * spread) + mu_error);
    double direct = up(norm * cloud->radius + norm * mu_error, (double)(D + 8));
    double mahalanobis = sqrt(along) * cloud->mahalanobis + sqrt(rest) * cloud->cut;
    /* (q_i sqrt s_i) is off by spread |q| sqrt s_1, (y_i / sqrt s_i) by spread |y| / sqrt(s_kept): twice each for the product of both */
    double shake = cloud->kept > 0 ? 2 * spread * cloud->radius / sqrt(s->spectrum[cloud->kept - 1]) : 0;
    mahalanobis += sqrt(along) * shake +
                   2 * spread * norm * (sqrt(s->spectrum[0] > 0 ? s->spectrum[0] : 0) * (cloud->mahalanobis + shake));
    return fmin(direct, up(mahalanobis + slop, 64));
}

/* The softmax read's centroid, the direction of Sigma q and what lies between them (MATH.md section 5, Gradient). */
static void direction(struct taylor_sample *out, const struct cloud *cloud, const double *mu_read, const float *q,
                      double scale, int64_t D, int64_t r, struct taylor_scratch *s) {
    double gg = 0, ss = 0, gs = 0, ee = 0, inside = 0;
    for (int64_t i = 0; i < D;
         i++) { /* Sigma q = U diag(s) U^T q, in the axes; |.| and dot products are the same there */
        double q_i = 0, g_i = 0;
        for (int64_t d = 0; d < D; d++) {
            q_i += s->cov[i * D + d] * ((double)q[d] * scale);
            g_i += s->cov[i * D + d] * mu_read[d];
        }
        double sigma_q = fmax(s->spectrum[i], 0) * q_i;
        gg += g_i * g_i;
        ss += sigma_q * sigma_q;
        gs += g_i * sigma_q;
        ee += (g_i - sigma_q) * (g_i - sigma_q);
        if (i < r) inside += g_i * g_i;
    }
    bool defined = out->v > 0 && gg > 0 && ss > 0;
    out->cosine = defined ? gs / (sqrt(gg) * sqrt(ss)) : NAN;
    out->span = defined && cloud->n > r + 1 && r < D ? inside / gg : NAN;
    out->gradient = out->v > 0 ? sqrt(ee) : 0; /* v = 0: the read is the mean */
    out->gradient_bound = 2 * cloud->radius * out->c;
}

bool taylor_sample_group(struct taylor_sample *out, struct taylor_curve *curves, const struct ag_block *block,
                         int64_t g, int64_t t, uint8_t value, int64_t r, struct taylor_scratch *s,
                         const struct kern_ops *ops) {
    const struct ag_layer_shape *shape = block->shape;
    const int64_t D = shape->D, G = shape->Hq / shape->Hk, stride = block->keys.token_stride;
    const int64_t first = shape->window > 0 && t + 1 > shape->window ? t + 1 - shape->window : 0, n = t + 1 - first;
    const float *keys = block->keys.data + g * block->keys.head_stride + first * stride;
    struct taylor_state state;
    struct cloud cloud;
    taylor_state_begin(&state, s->state, D);
    for (int64_t j = 0; j < n; j++) {
        taylor_state_add(&state, keys + j * stride);
        s->rows[j] = (int32_t)j;
    }
    ops->moments(s->mu, s->cov, keys, s->rows, n, D, stride);
    if (!cloud_of(&cloud, keys, stride, n, D, s, ops)) return false;
    double mu_error = (double)(n + 8) * U * state.largest * 2; /* whatever the order of the sum */
    for (int64_t i = 0; i < G; i++) {
        struct taylor_sample *row = out + i;
        const int64_t h = g * G + i;
        const float *q = block->queries.data + h * block->queries.head_stride + t * block->queries.token_stride;
        struct kern_logit_moments moments;
        struct taylor_remainder remainder;
        double square = 0;
        for (int64_t d = 0; d < D; d++) square += (double)q[d] * shape->scale * ((double)q[d] * shape->scale);
        for (int64_t j = 0; j < n; j++) {
            double dot = 0;
#pragma omp simd reduction(+ : dot)
            for (int64_t d = 0; d < D; d++) dot += (double)q[d] * (double)keys[j * stride + d];
            s->x[j] = shape->scale * dot;
        }
        double eta = up((double)(D + 2) * U * sqrt(square) * state.largest, (double)(D + 16));
        kern_logit_moments_row(&moments, s->x, n, eta);
        taylor_remainder_of(&remainder, &moments);
        *row = (struct taylor_sample){.prompt = block->prompt,
                                      .layer = block->layer,
                                      .head = h,
                                      .position = t,
                                      .keys = n,
                                      .role = block->role[t],
                                      .value = value,
                                      .q_norm = sqrt(square),
                                      .m = moments.m,
                                      .v = moments.v,
                                      .a = moments.a,
                                      .b = moments.b,
                                      .A = moments.A,
                                      .c = remainder.c,
                                      .R = remainder.R,
                                      .dR = remainder.dR,
                                      .effective = moments.effective,
                                      .largest = moments.largest};
        struct taylor_reach reach = taylor_state_reach(&state, q, shape->scale, moments.m, moments.dm);
        taylor_enclose(row->bound, &moments, shape->window > 0 ? NULL : &reach);
        double exact = cloud_reach(&cloud, q, shape->scale, D, mu_error, s);
        struct taylor_reach nearer = {fmin(exact, reach.up), fmin(exact, reach.down)};
        struct taylor_interval all[TAYLOR_BOUNDS];
        taylor_enclose(all, &moments, &nearer);
        row->bound[TAYLOR_B4X] = all[TAYLOR_B4];
        taylor_trust_radii(row->radius, s->x, n, &moments, ops);
        if (curves != NULL) taylor_curve_of(&curves[i], s->x, n, &moments, ops);
        memset(s->read, 0, (size_t)D * sizeof *s->read);
        for (int64_t j = 0; j < n; j++) {
            double p = exp(s->x[j] - moments.A);
            for (int64_t d = 0; d < D; d++) s->read[d] += p * ((double)keys[j * stride + d] - s->mu[d]);
        }
        direction(row, &cloud, s->read, q, shape->scale, D, r, s);
    }
    return true;
}
