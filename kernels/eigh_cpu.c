/* kernels/eigh_cpu.c: the symmetric eigenproblem by LAPACK's divide and conquer. Each problem runs on the calling
 * thread. */
#include <lapacke.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "kernels/ops.h"

static int solve(double *w, double *a, int64_t D, double *work, lapack_int work_size, lapack_int *iwork,
                 lapack_int iwork_size) {
    for (int64_t i = 0; i < D * D; i++)
        if (!isfinite(a[i])) return KERN_EIGH_NOT_FINITE; /* LAPACK may loop or answer nonsense */
    /* Symmetric, so the row-major matrix is its own column-major one, and the eigenvectors come back as our rows. */
    const lapack_int info = LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'L', (lapack_int)D, a, (lapack_int)D, w, work,
                                                work_size, iwork, iwork_size);
    if (info != 0) return info > 0 ? KERN_EIGH_NOT_CONVERGED : (int)info;
    for (int64_t i = 0, j = D - 1; i < j; i++, j--) { /* ascending to descending */
        const double value = w[i];
        w[i] = w[j];
        w[j] = value;
        for (int64_t k = 0; k < D; k++) {
            const double element = a[i * D + k];
            a[i * D + k] = a[j * D + k];
            a[j * D + k] = element;
        }
    }
    kern_eigh_signs(a, D);
    return 0;
}

void kern_eigh_cpu(double *w, double *a, int *info, int64_t n, int64_t D) {
    const int64_t work_size = 1 + 6 * D + 2 * D * D, iwork_size = 3 + 5 * D; /* LAPACK's minimum for jobz = V */
    struct ag_arena *arena = ag_arena_new("eigenproblem");
    double *work = arena ? AG_NEW(arena, double, work_size, NULL) : NULL;
    lapack_int *iwork = work ? AG_NEW(arena, lapack_int, iwork_size, NULL) : NULL;
    for (int64_t i = 0; i < n; i++)
        info[i] = iwork ? solve(w + i * D, a + i * D * D, D, work, (lapack_int)work_size, iwork, (lapack_int)iwork_size)
                        : KERN_EIGH_MEMORY;
    ag_arena_free(arena);
}
