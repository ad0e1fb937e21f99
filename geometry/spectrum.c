#include "geometry/spectrum.h"

#include <math.h>
#include <string.h>

void geom_moments_merge(int64_t *n, double *mu, double *cov, int64_t n_b, const double *mu_b, const double *cov_b,
                        int64_t D) {
    if (n_b == 0) return;
    if (*n == 0) {
        *n = n_b;
        memcpy(mu, mu_b, (size_t)D * sizeof(*mu));
        memcpy(cov, cov_b, (size_t)(D * D) * sizeof(*cov));
        return;
    }
    const double total = (double)(*n + n_b), wa = (double)*n / total, wb = (double)n_b / total, between = wa * wb;
    for (int64_t i = 0; i < D; i++) {
        const double di = mu_b[i] - mu[i];
        for (int64_t j = i; j < D; j++) {
            const double value = wa * cov[i * D + j] + wb * cov_b[i * D + j] + between * di * (mu_b[j] - mu[j]);
            cov[i * D + j] = cov[j * D + i] = value;
        }
    }
    for (int64_t i = 0; i < D; i++) mu[i] += wb * (mu_b[i] - mu[i]);
    *n += n_b;
}

void geom_spectrum_clamp(double *s, int64_t D) {
    for (int64_t i = 0; i < D; i++)
        if (s[i] < 0) s[i] = 0;
}

struct geom_ranks geom_ranks(const double *s, int64_t D, double mu2) {
    struct geom_ranks ranks = {NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    double trace = 0, squares = 0, entropy = 0;
    for (int64_t i = 0; i < D; i++) trace += s[i];
    if (!isfinite(trace) || !isfinite(mu2)) return ranks;
    ranks.trace = trace;
    if (mu2 + trace > 0) ranks.mean_dominance = mu2 / (mu2 + trace);
    if (!(trace > 0)) return ranks;
    int64_t rank = 0;
    for (int64_t i = 0; i < D; i++) {
        const double p = s[i] / trace;
        squares += p * p; /* as shares: no overflow or underflow whatever the unit */
        if (p > 0) entropy -= p * log(p);
        if (s[i] > GEOM_RANK_CUT * s[0]) rank = i + 1;
    }
    ranks.effective_rank = exp(entropy);
    ranks.participation_ratio = 1 / squares;
    ranks.stable_rank = trace / s[0];
    ranks.numerical_rank = (double)rank;
    ranks.condition = s[0] / s[rank - 1];
    return ranks;
}

double geom_explained(const double *s, int64_t D, int64_t r) {
    double inside = 0, trace = 0;
    for (int64_t i = 0; i < D; i++) {
        trace += s[i];
        if (i + 1 == r) inside = trace;
    }
    return trace > 0 ? inside / trace : NAN;
}

double geom_gap(const double *s, int64_t D, int64_t r) {
    if (r >= D || !(s[r - 1] > 0)) return NAN;
    return (s[r - 1] - s[r]) / s[r - 1];
}
