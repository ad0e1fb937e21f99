/* kernels/eigh_ref.c: the symmetric eigenproblem by cyclic Jacobi rotations (Golub & Van Loan, section 8.5),
 * independent of LAPACK. Slow, small and accurate. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "kernels/ops.h"

#define SWEEPS_MAX 60

/* Largest component of every eigenvector positive, so that the same matrix gives the same rows on every backend. */
void kern_eigh_signs(double *a, int64_t D) {
    for (int64_t i = 0; i < D; i++) {
        double *row = a + i * D, best = 0;
        for (int64_t j = 0; j < D; j++)
            if (fabs(row[j]) > fabs(best)) best = row[j];
        if (best >= 0) continue;
        for (int64_t j = 0; j < D; j++) row[j] = -row[j];
    }
}

static void rotate(double *a, double *v, int64_t D, int64_t p, int64_t q) {
    const double apq = a[p * D + q];
    if (apq == 0) return;
    const double theta = (a[q * D + q] - a[p * D + p]) / (2 * apq);
    const double t = copysign(1, theta) / (fabs(theta) + hypot(theta, 1)), c = 1 / sqrt(t * t + 1), s = t * c;
    for (int64_t k = 0; k < D; k++) {
        const double kp = a[k * D + p], kq = a[k * D + q];
        a[k * D + p] = c * kp - s * kq;
        a[k * D + q] = s * kp + c * kq;
    }
    for (int64_t k = 0; k < D; k++) {
        const double pk = a[p * D + k], qk = a[q * D + k];
        a[p * D + k] = c * pk - s * qk;
        a[q * D + k] = s * pk + c * qk;
    }
    a[p * D + q] = a[q * D + p] = 0;
    for (int64_t k = 0; k < D; k++) {
        const double pk = v[p * D + k], qk = v[q * D + k];
        v[p * D + k] = c * pk - s * qk;
        v[q * D + k] = s * pk + c * qk;
    }
}

static int solve(double *w, double *a, double *v, int64_t D) {
    double scale = 0;
    for (int64_t i = 0; i < D * D; i++) {
        if (!isfinite(a[i])) return KERN_EIGH_NOT_FINITE;
        scale = fmax(scale, fabs(a[i]));
    }
    memset(v, 0, (size_t)(D * D) * sizeof(*v));
    for (int64_t i = 0; i < D; i++) v[i * D + i] = 1;
    int sweep = 0;
    for (; sweep < SWEEPS_MAX; sweep++) {
        double off = 0;
        for (int64_t i = 0; i < D; i++)
            for (int64_t j = i + 1; j < D; j++) off = fmax(off, fabs(a[i * D + j]));
        if (off <= 1e-18 * scale) break;
        for (int64_t p = 0; p < D; p++)
            for (int64_t q = p + 1; q < D; q++) rotate(a, v, D, p, q);
    }
    if (sweep == SWEEPS_MAX) return KERN_EIGH_NOT_CONVERGED;
    for (int64_t i = 0; i < D; i++) w[i] = a[i * D + i];
    for (int64_t i = 0; i < D; i++) { /* selection sort, descending, into a */
        int64_t best = i;
        for (int64_t j = i + 1; j < D; j++)
            if (w[j] > w[best]) best = j;
        const double value = w[best];
        w[best] = w[i];
        w[i] = value;
        memcpy(a + i * D, v + best * D, (size_t)D * sizeof(*a));
        if (best != i) memcpy(v + best * D, v + i * D, (size_t)D * sizeof(*v));
    }
    kern_eigh_signs(a, D);
    return 0;
}

void kern_eigh_ref(double *w, double *a, int *info, int64_t n, int64_t D) {
    struct ag_arena *arena = ag_arena_new("eigenproblem");
    double *v = arena ? AG_NEW(arena, double, D *D, NULL) : NULL;
    for (int64_t i = 0; i < n; i++) info[i] = v ? solve(w + i * D, a + i * D * D, v, D) : KERN_EIGH_MEMORY;
    ag_arena_free(arena);
}
