/* taylor/state.c: see state.h. u = 2^-53; every bound is rounded up by more than the roundings it went through. */
#include "taylor/state.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define U (DBL_EPSILON / 2)

static double up(double x, double n) { return x * (1 + n * U) + 4.94e-324; }

void taylor_state_begin(struct taylor_state *state, double *memory, int64_t D) {
    *state = (struct taylor_state){D, 0, 0, 0, 0, memory, memory + D, memory + 2 * D, memory + 3 * D, memory + 4 * D};
    memset(memory, 0, (size_t)TAYLOR_STATE_DOUBLES(D) * sizeof *memory);
}

void taylor_state_add(struct taylor_state *state, const float *key) {
    const int64_t D = state->D;
    double *first = state->first, *least = state->least, *most = state->most, *sum = state->sum, *carry = state->carry;
    double distance = 0, offset = 0, square = 0, N = (double)++state->t;
    if (state->t == 1)
        for (int64_t d = 0; d < D; d++) first[d] = least[d] = most[d] = (double)key[d];
#pragma omp simd reduction(+ : distance, offset, square)
    for (int64_t d = 0; d < D; d++) {
        double k = (double)key[d];
        least[d] = k < least[d] ? k : least[d];
        most[d] = k > most[d] ? k : most[d];
        /* two-sum on the differences to k_1, each exact up to u */
        double y = k - first[d], s = sum[d] + y, z = s - sum[d], c = carry[d] + ((sum[d] - (s - z)) + (y - z)),
               total = s + c;
        sum[d] = s;
        carry[d] = c;
        distance += y * y;
        offset += total * total;
        square += k * k;
    }
    state->rho = fmax(state->rho, up(sqrt(distance), (double)(D + 8)));
    /* mu - k_1 = total / t: a component is off by at most 4u of the mean of its |y_j| (compensated, t < 2^26), and the norm of those means
     * is at most the mean of |k_j - k_1|, which rho bounds */
    state->offset = up(sqrt(offset) / N + 4 * U * state->rho, (double)(D + 8));
    state->largest = fmax(state->largest, up(sqrt(square), (double)(D + 8)));
}

struct taylor_reach taylor_state_reach(const struct taylor_state *state, const float *q, double scale, double m,
                                       double dm) {
    const int64_t D = state->D;
    double square = 0, high = 0, low = 0, size = 0;
    const double *least = state->least, *most = state->most;
#pragma omp simd reduction(+ : square, high, low, size)
    for (int64_t d = 0; d < D; d++) {
        double x = (double)q[d] * scale, a = x * least[d], b = x * most[d], above = a > b ? a : b,
               below = a > b ? b : a;
        square += x * x;
        high += above;
        low += below;
        size += above > -below ? above : -below;
    }
    double radius = up(sqrt(square) * (state->rho + state->offset), (double)(D + 16));
    double slack = dm + U * ((double)(D + 4) * size + 2 * fabs(m) + 2 * fabs(high) + 2 * fabs(low));
    /* both are upper bounds, so the lesser one is too; never below zero */
    return (struct taylor_reach){fmax(fmin(radius, up((high - m) + slack, 8)), 0),
                                 fmax(fmin(radius, up((m - low) + slack, 8)), 0)};
}
