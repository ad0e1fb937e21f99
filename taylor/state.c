/* taylor/state.c: see state.h. u = 2^-53; every bound is rounded up by more than the roundings it went through. */
#include "taylor/state.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define U (DBL_EPSILON / 2)

static double up(double x, double n) { return x * (1 + n * U) + 4.94e-324; }

void taylor_state_begin(struct taylor_state *state, double *memory, int64_t D)
{
    *state = (struct taylor_state){D, 0, 0, 0, 0, memory, memory + D, memory + 2 * D, memory + 3 * D, memory + 4 * D};
    memset(memory, 0, (size_t)TAYLOR_STATE_DOUBLES(D) * sizeof *memory);
}

void taylor_state_add(struct taylor_state *state, const float *key)
{
    const int64_t D = state->D;
    double distance = 0, offset = 0, square = 0, N = (double)++state->t;
    for (int64_t d = 0; d < D; d++) {
        double k = (double)key[d];
        if (state->t == 1) state->first[d] = state->least[d] = state->most[d] = k;
        state->least[d] = k < state->least[d] ? k : state->least[d];
        state->most[d] = k > state->most[d] ? k : state->most[d];
        /* Neumaier on the differences to k_1, each exact up to u */
        double y = k - state->first[d], s = state->sum[d] + y;
        state->carry[d] += fabs(state->sum[d]) >= fabs(y) ? (state->sum[d] - s) + y : (y - s) + state->sum[d];
        state->sum[d] = s;
        double mean = (state->sum[d] + state->carry[d]) / N;
        distance += y * y;
        offset += mean * mean;
        square += k * k;
    }
    state->rho = fmax(state->rho, up(sqrt(distance), (double)(D + 8)));
    /* mu - k_1: each component within 4u of the mean of |y_j| <= rho: sqrt D times that in the norm */
    state->offset = up(sqrt(offset) + 4 * U * sqrt((double)D) * state->rho, (double)(D + 8));
    state->largest = fmax(state->largest, up(sqrt(square), (double)(D + 8)));
}

struct taylor_reach taylor_state_reach(const struct taylor_state *state, const float *q, double scale, double m, double dm)
{
    const int64_t D = state->D;
    double square = 0, high = 0, low = 0, size = 0;
    for (int64_t d = 0; d < D; d++) {
        double x = (double)q[d] * scale, a = x * state->least[d], b = x * state->most[d];
        square += x * x;
        high += fmax(a, b);
        low += fmin(a, b);
        size += fmax(fabs(a), fabs(b));
    }
    double radius = up(sqrt(square) * (state->rho + state->offset), (double)(D + 16));
    double slack = dm + U * ((double)(D + 4) * size + 2 * fabs(m) + 2 * fabs(high) + 2 * fabs(low));
    /* both are upper bounds, so the lesser one is too; never below zero */
    return (struct taylor_reach){fmax(fmin(radius, up((high - m) + slack, 8)), 0), fmax(fmin(radius, up((m - low) + slack, 8)), 0)};
}
