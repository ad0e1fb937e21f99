#include "geometry/inference.h"

#include <gsl/gsl_rng.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#define CELLS_AT_ONCE 128

/* Every draw has a generator of its own (Tausworthe: small state, cheap to seed), so that it does not matter which
 * thread makes it, or how often. */
static void seed_draw(gsl_rng *rng, int64_t seed, int64_t draw) {
    uint64_t z = (uint64_t)seed * 0x9e3779b97f4a7c15u + (uint64_t)draw + 1; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    gsl_rng_set(rng, (unsigned long)((z ^ (z >> 31)) & 0xffffffffu) | 1u);
}

double geom_rounded(double x) { return fabs(x) <= GEOM_ROUNDING ? 0 : x; }

static double ratio_of(double a_sum, double a_weight, double b_sum, double b_weight) {
    if (!(a_weight > 0) || !(b_weight > 0)) return NAN;
    return geom_rounded(a_sum / a_weight - b_sum / b_weight);
}

void geom_ratio_value(double *value, const struct geom_ratio *ratio) {
    for (int64_t c = 0; c < ratio->C; c++) {
        double sums[4] = {0, 0, 0, ratio->b_sum ? 0 : 1};
        for (int64_t u = 0; u < ratio->U; u++) {
            const int64_t i = u * ratio->C + c;
            sums[0] += ratio->a_sum[i];
            sums[1] += ratio->a_weight[i];
            if (!ratio->b_sum) continue;
            sums[2] += ratio->b_sum[i];
            sums[3] += ratio->b_weight[i];
        }
        value[c] = ratio_of(sums[0], sums[1], sums[2], sums[3]);
    }
}

/* The k-th smallest of n, which are permuted so that nothing before it is larger and nothing after it smaller. */
static double select_nth(double *x, int64_t n, int64_t k) {
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const double pivot = x[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (x[i] < pivot) i++;
            while (x[j] > pivot) j--;
            if (i > j) break;
            const double value = x[i];
            x[i++] = x[j];
            x[j--] = value;
        }
        if (k <= j) {
            hi = j;
        } else if (k >= i) {
            lo = i;
        } else {
            break;
        }
    }
    return x[k];
}

/* Linear interpolation between order statistics; x is permuted. */
static double quantile(double *x, int64_t n, double share) {
    if (n == 0) return NAN;
    const double position = share * (double)(n - 1);
    const int64_t k = (int64_t)position;
    const double low = select_nth(x, n, k);
    if (k + 1 >= n) return low;
    double high = x[k + 1];
    for (int64_t i = k + 2; i < n; i++) high = x[i] < high ? x[i] : high;
    return low + (position - (double)k) * (high - low);
}

/* Moves the defined values to the front and returns how many they are. */
static int64_t keep_defined(double *x, int64_t n) {
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i])) x[m++] = x[i];
    return m;
}

struct bootstrap {
    const struct geom_ratio *ratio;
    const int64_t *rows; /* units that are drawn */
    int64_t n_rows, draws, seed;
    int64_t begin, end;       /* cells of this pass */
    double *values;           /* (end - begin, draws) */
    int64_t *below, *defined; /* (draws) cells < 0 and cells defined, summed over passes */
};

/* sums[k][c] += times * part[k][u][begin + c] */
static void add_unit(double sums[4][CELLS_AT_ONCE], const struct bootstrap *b, int64_t u, double times) {
    const double *const parts[4] = {b->ratio->a_sum, b->ratio->a_weight, b->ratio->b_sum, b->ratio->b_weight};
    const int64_t n = b->end - b->begin;
    for (int k = 0; k < 4; k++) {
        if (!parts[k]) continue;
        const double *part = parts[k] + u * b->ratio->C + b->begin;
        double *sum = sums[k];
        for (int64_t c = 0; c < n; c++) sum[c] += times * part[c];
    }
}

static void bootstrap_draw(const struct bootstrap *b, int64_t draw, gsl_rng *rng, int64_t *times) {
    double sums[4][CELLS_AT_ONCE] = {{0}};
    seed_draw(rng, b->seed, draw);
    memset(times, 0, (size_t)b->n_rows * sizeof(*times));
    for (int64_t i = 0; i < b->n_rows; i++) times[gsl_rng_uniform_int(rng, (unsigned long)b->n_rows)]++;
    for (int64_t i = 0; i < b->n_rows; i++)
        if (times[i] > 0) add_unit(sums, b, b->rows[i], (double)times[i]);
    for (int64_t c = 0; c < b->end - b->begin; c++) {
        const double value = ratio_of(sums[0][c], sums[1][c], sums[2][c], b->ratio->b_sum ? sums[3][c] : 1);
        b->values[c * b->draws + draw] = value;
        b->below[draw] += value < 0;
        b->defined[draw] += !isnan(value);
    }
}

/* Each thread has a generator and a row of counts; draws are independent, so any schedule gives the same bits. */
static enum ag_status bootstrap_pass(const struct bootstrap *b, struct ag_error *err) {
    bool failed = false;
    const int threads = (int)kern_threads();
#pragma omp parallel num_threads(threads) default(none) shared(b, failed, gsl_rng_taus2)
    {
        gsl_rng *rng = gsl_rng_alloc(gsl_rng_taus2);
        struct ag_arena *arena = ag_arena_new("bootstrap");
        int64_t *times = arena ? AG_NEW(arena, int64_t, b->n_rows, NULL) : NULL;
        if (!rng || !times) {
#pragma omp atomic write
            failed = true;
        }
#pragma omp for schedule(static)
        for (int64_t draw = 0; draw < b->draws; draw++)
            if (rng && times) bootstrap_draw(b, draw, rng, times);
        if (rng) gsl_rng_free(rng);
        ag_arena_free(arena);
    }
    return failed ? ag_fail(err, AG_E_MEMORY, "bootstrap: out of memory for %lld units", (long long)b->n_rows) : AG_OK;
}

static bool carries(const struct geom_ratio *ratio, int64_t u, int64_t c) {
    const int64_t i = u * ratio->C + c;
    return ratio->a_weight[i] > 0 || (ratio->b_weight && ratio->b_weight[i] > 0);
}

static void share_negative(double negative[3], const struct bootstrap *b, const double *value, struct ag_arena *arena) {
    int64_t below = 0, defined = 0;
    for (int64_t c = 0; c < b->ratio->C; c++) {
        below += value[c] < 0;
        defined += !isnan(value[c]);
    }
    negative[0] = defined > 0 ? (double)below / (double)defined : NAN;
    negative[1] = negative[2] = NAN;
    double *shares = b->n_rows >= 2 ? AG_NEW(arena, double, b->draws, NULL) : NULL;
    for (int64_t i = 0; shares && i < b->draws; i++)
        shares[i] = b->defined[i] > 0 ? (double)b->below[i] / (double)b->defined[i] : NAN;
    if (!shares) return;
    const int64_t m = keep_defined(shares, b->draws);
    negative[1] = quantile(shares, m, 0.025);
    negative[2] = quantile(shares, m, 0.975);
}

enum ag_status geom_bootstrap(double *lo, double *hi, double negative[3], const struct geom_ratio *ratio, int64_t draws,
                              int64_t seed, struct ag_error *err) {
    enum ag_status status = AG_E_MEMORY;
    const int64_t U = ratio->U, C = ratio->C;
    const int threads = (int)kern_threads();
    struct ag_arena *arena = ag_arena_new("bootstrap");
    if (!arena) return ag_fail(err, AG_E_MEMORY, "bootstrap: out of memory");
    int64_t *rows = AG_NEW(arena, int64_t, U, err), *carriers = AG_ZEROS(arena, int64_t, C, err);
    double *value = AG_NEW(arena, double, C, err);
    struct bootstrap b = {.ratio = ratio, .rows = rows, .draws = draws, .seed = seed};
    b.below = AG_ZEROS(arena, int64_t, draws, err);
    b.defined = AG_ZEROS(arena, int64_t, draws, err);
    int64_t cells;
    if (!ag_mul(draws, C < CELLS_AT_ONCE ? C : CELLS_AT_ONCE, &cells)) goto fail;
    b.values = AG_NEW(arena, double, cells, err);
    if (!rows || !carriers || !value || !b.below || !b.defined || !b.values) goto fail;
    for (int64_t u = 0; u < U; u++) {
        bool any = false;
        for (int64_t c = 0; c < C; c++) {
            const bool has = carries(ratio, u, c);
            carriers[c] += has;
            any |= has;
        }
        if (any) rows[b.n_rows++] = u;
    }
    status = AG_OK;
    for (int64_t c = 0; c < C; c++) lo[c] = hi[c] = NAN;
    for (b.begin = 0; b.begin < C && b.n_rows >= 2; b.begin = b.end) {
        b.end = C - b.begin < CELLS_AT_ONCE ? C : b.begin + CELLS_AT_ONCE;
        AG_TRY(bootstrap_pass(&b, err));
#pragma omp parallel for num_threads(threads) default(none) shared(b, lo, hi, carriers) schedule(dynamic)
        for (int64_t c = b.begin; c < b.end; c++) {
            double *x = b.values + (c - b.begin) * b.draws;
            if (carriers[c] < 2) continue;
            const int64_t m = keep_defined(x, b.draws);
            lo[c] = quantile(x, m, 0.025);
            hi[c] = quantile(x, m, 0.975);
        }
    }
    if (negative) {
        geom_ratio_value(value, ratio);
        share_negative(negative, &b, value, arena);
    }
fail:
    ag_arena_free(arena);
    return status;
}

double geom_smallest_p(int64_t n) {
    if (n <= 0) return NAN;
    return n <= GEOM_EXACT_UNITS ? ldexp(1, (int)(1 - n)) : 1.0 / (1 + GEOM_SIGN_DRAWS);
}

/* All sign patterns with the first sign +, twice over: the others are their mirror images. Sums of the first and the
 * second half are tabulated, so that each pattern is one addition and rounding stays far below the tie. */
static double sign_flip_exact(const double *x, int64_t n) {
    double low[1 << (GEOM_EXACT_UNITS / 2)], high[1 << (GEOM_EXACT_UNITS / 2)], largest = 0;
    const int64_t n_low = n / 2, n_high = n - n_low;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i]));
    for (int64_t s = 0; s < (int64_t)1 << n_low; s++) {
        low[s] = 0;
        for (int64_t i = 0; i < n_low; i++) low[s] += s >> i & 1 ? -x[i] : x[i];
    }
    for (int64_t s = 0; s < (int64_t)1 << n_high; s++) {
        high[s] = 0;
        for (int64_t i = 0; i < n_high; i++) high[s] += s >> i & 1 ? -x[n_low + i] : x[n_low + i];
    }
    const double bar = fabs(low[0] + high[0]) - (double)n * GEOM_TIE * largest; /* on sums: n times that of means */
    const int64_t half = (int64_t)1 << (n_high - 1);                            /* the last sign stays + */
    int64_t hits = 0;
    for (int64_t s = 0; s < half; s++)
        for (int64_t t = 0; t < (int64_t)1 << n_low; t++) hits += fabs(low[t] + high[s]) >= bar;
    return (double)hits / (double)(half << n_low);
}

struct flips {
    const double *x;   /* (U, C), zero where missing */
    const double *bar; /* (C); infinite where not drawn */
    int64_t U, C, seed;
};

static void flip_draw(const struct flips *f, int64_t draw, gsl_rng *rng, double *sums, int64_t *hits) {
    seed_draw(rng, f->seed, draw);
    for (int64_t c = 0; c < f->C; c++) sums[c] = 0;
    unsigned long bits = 0;
    for (int64_t u = 0; u < f->U; u++) {
        if (u % 32 == 0) bits = gsl_rng_get(rng);
        const double sign = bits >> (u % 32) & 1 ? -1 : 1;
        for (int64_t c = 0; c < f->C; c++) sums[c] += sign * f->x[u * f->C + c];
    }
    for (int64_t c = 0; c < f->C; c++) hits[c] += fabs(sums[c]) >= f->bar[c];
}

/* hits (C) are counts: they add up the same whoever made which draw. */
static enum ag_status flips_run(int64_t *hits, const struct flips *f, struct ag_error *err) {
    bool failed = false;
    const int threads = (int)kern_threads();
#pragma omp parallel num_threads(threads) default(none) shared(f, hits, failed, gsl_rng_taus2)
    {
        gsl_rng *rng = gsl_rng_alloc(gsl_rng_taus2);
        struct ag_arena *arena = ag_arena_new("sign flips");
        double *sums = arena ? AG_NEW(arena, double, f->C, NULL) : NULL;
        int64_t *mine = sums ? AG_ZEROS(arena, int64_t, f->C, NULL) : NULL;
        if (!rng || !mine) {
#pragma omp atomic write
            failed = true;
        }
#pragma omp for schedule(static)
        for (int64_t draw = 0; draw < GEOM_SIGN_DRAWS; draw++)
            if (rng && mine) flip_draw(f, draw, rng, sums, mine);
        if (mine) {
#pragma omp critical
            for (int64_t c = 0; c < f->C; c++) hits[c] += mine[c];
        }
        if (rng) gsl_rng_free(rng);
        ag_arena_free(arena);
    }
    return failed ? ag_fail(err, AG_E_MEMORY, "sign flips: out of memory for %lld cells", (long long)f->C) : AG_OK;
}

enum ag_status geom_sign_flip(double *p, const double *x, int64_t U, int64_t C, int64_t seed, struct ag_error *err) {
    enum ag_status status = AG_OK;
    struct ag_arena *arena = ag_arena_new("sign flips");
    int64_t size = 0, *count = NULL, *hits = NULL;
    double *filled = NULL, *bar = NULL;
    const int threads = (int)kern_threads();
    bool many = false;
    if (arena && ag_mul(U, C, &size)) {
        count = AG_ZEROS(arena, int64_t, C, err);
        hits = AG_ZEROS(arena, int64_t, C, err);
        bar = AG_NEW(arena, double, C, err);
        filled = AG_NEW(arena, double, size, err);
    }
    if (!count || !hits || !bar || !filled) {
        status = ag_fail(err, AG_E_MEMORY, "sign flips: out of memory for %lld units of %lld cells", (long long)U,
                         (long long)C);
        goto fail;
    }
    for (int64_t i = 0; i < size; i++) {
        filled[i] = isnan(x[i]) ? 0 : x[i];
        count[i % C] += !isnan(x[i]);
    }
    for (int64_t c = 0; c < C; c++) many |= count[c] > GEOM_EXACT_UNITS;
#pragma omp parallel for num_threads(threads) default(none) shared(p, x, U, C, count) schedule(dynamic)
    for (int64_t c = 0; c < C; c++) {
        double sample[GEOM_EXACT_UNITS];
        int64_t n = 0;
        p[c] = NAN;
        if (count[c] == 0 || count[c] > GEOM_EXACT_UNITS) continue;
        for (int64_t u = 0; u < U; u++)
            if (!isnan(x[u * C + c])) sample[n++] = x[u * C + c];
        p[c] = sign_flip_exact(sample, n);
    }
    if (!many) goto fail;
    for (int64_t c = 0; c < C; c++) {
        double sum = 0, largest = 0;
        for (int64_t u = 0; u < U; u++) {
            sum += filled[u * C + c];
            largest = fmax(largest, fabs(filled[u * C + c]));
        }
        bar[c] = count[c] > GEOM_EXACT_UNITS ? fabs(sum) - (double)count[c] * GEOM_TIE * largest : INFINITY;
    }
    AG_TRY(flips_run(hits, &(struct flips){filled, bar, U, C, seed}, err));
    for (int64_t c = 0; c < C; c++)
        if (count[c] > GEOM_EXACT_UNITS) p[c] = (double)(1 + hits[c]) / (1 + GEOM_SIGN_DRAWS);
fail:
    ag_arena_free(arena);
    return status;
}

struct ranked {
    double p;
    int64_t index;
};

static int by_p(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

enum ag_status geom_benjamini_hochberg(double *q, const double *p, int64_t n, struct ag_error *err) {
    struct ag_arena *arena = ag_arena_new("false discovery rate");
    struct ranked *ranked = arena ? AG_NEW(arena, struct ranked, n, err) : NULL;
    if (!ranked) {
        ag_arena_free(arena);
        return ag_fail(err, AG_E_MEMORY, "false discovery rate: out of memory for %lld cells", (long long)n);
    }
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++) {
        q[i] = NAN;
        if (!isnan(p[i])) ranked[m++] = (struct ranked){p[i], i};
    }
    qsort(ranked, (size_t)m, sizeof(*ranked), by_p);
    double least = 1;
    for (int64_t k = m; k > 0; k--) {
        least = fmin(least, ranked[k - 1].p * (double)m / (double)k);
        q[ranked[k - 1].index] = least;
    }
    ag_arena_free(arena);
    return AG_OK;
}
