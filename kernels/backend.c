/* kernels/backend.c: the tables of operations, the thread count, and how packed prompts are cut into tiles. */
#include "kernels/ops.h"

#include <cblas.h>
#include <omp.h>
#include <stdlib.h>

static const struct kern_ops table_ref = {
    .name = "ref",
    .dequant = kern_dequant_ref,
    .linear = kern_linear_ref,
    .rmsnorm = kern_rmsnorm_ref,
    .rope = kern_rope_ref,
    .attention = kern_attention_ref,
    .swiglu = kern_swiglu_ref,
    .nonfinite = kern_nonfinite_ref,
    .nll = kern_nll_ref,
    .shortconv = kern_shortconv_ref,
    .map = kern_map_ref,
    .unit = kern_unit_ref,
    .log_gate = kern_log_gate_ref,
    .gla = kern_gla_ref,
    .gdn = kern_gdn_ref,
    .ccq_read = kern_ccq_read_ref,
    .logit_moments = kern_logit_moments_ref,
    .tilt = kern_tilt_ref,
    .moments = kern_moments_ref,
    .align = kern_align_ref,
    .eigh = kern_eigh_ref,
};

static const struct kern_ops table_cpu = {
    .name = "cpu",
    .dequant = kern_dequant_cpu,
    .linear = kern_linear_cpu,
    .rmsnorm = kern_rmsnorm_cpu,
    .rope = kern_rope_cpu,
    .attention = kern_attention_cpu,
    .swiglu = kern_swiglu_cpu,
    .nonfinite = kern_nonfinite_cpu,
    .nll = kern_nll_cpu,
    .shortconv = kern_shortconv_cpu,
    .map = kern_map_cpu,
    .unit = kern_unit_cpu,
    .log_gate = kern_log_gate_cpu,
    .gla = kern_gla_cpu,
    .gdn = kern_gdn_cpu,
    .ccq_read = kern_ccq_read_cpu,
    .logit_moments = kern_logit_moments_cpu,
    .tilt = kern_tilt_cpu,
    .moments = kern_moments_cpu,
    .align = kern_align_cpu,
    .eigh = kern_eigh_cpu,
};

/* `--backend` is exact: what the table lacks is named, never taken from another one. */
static enum ag_status complete(const struct kern_ops *ops, struct ag_error *err) {
    const struct {
        const char *name;
        bool there;
    } list[] = {{"dequant", ops->dequant},
                {"linear", ops->linear},
                {"rmsnorm", ops->rmsnorm},
                {"rope", ops->rope},
                {"attention", ops->attention},
                {"swiglu", ops->swiglu},
                {"nonfinite", ops->nonfinite},
                {"nll", ops->nll},
                {"moments", ops->moments},
                {"align", ops->align},
                {"eigh", ops->eigh}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!list[i].there)
            return ag_fail(err, AG_E_UNSUPPORTED, "--backend %s: it has no operation %s; use another backend",
                           ops->name, list[i].name);
    return AG_OK;
}

enum ag_status kern_backend(const struct kern_ops **ops, enum ag_backend backend, struct ag_error *err) {
    switch (backend) {
    case AG_BACKEND_REF:
        *ops = &table_ref;
        return complete(*ops, err);
    case AG_BACKEND_AUTO:
    case AG_BACKEND_CPU:
        openblas_set_num_threads(1); /* also for LAPACK, which eigh calls from many threads at once */
        *ops = &table_cpu;
        return complete(*ops, err);
    case AG_BACKEND_CUDA:
        break;
    }
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "--backend cuda: this version has no CUDA operations yet; expected cpu or ref; use --backend cpu");
}

int64_t kern_tiles(struct kern_tile *tiles, const int64_t *offsets, int64_t P) {
    int64_t n = 0;
    for (int64_t p = 0; p < P; p++)
        for (int64_t row = offsets[p]; row < offsets[p + 1]; row += KERN_TILE_ROWS, n++)
            if (tiles) {
                int64_t left = offsets[p + 1] - row;
                tiles[n] = (struct kern_tile){row, left < KERN_TILE_ROWS ? left : KERN_TILE_ROWS};
            }
    return n;
}

/* A thread that waits for others spins for a fraction of a millisecond, not for GCC's default of several: where other
 * programs want the cores too, that halves the time of a pass, and costs nothing where they do not. libgomp reads this
 * when it starts, hence a constructor before its own. A user's settings stand. */
__attribute__((constructor(101))) static void spin_briefly(void) {
    if (!getenv("OMP_WAIT_POLICY")) setenv("GOMP_SPINCOUNT", "5000", 0);
}

static int64_t threads; /* 0: not set */

void kern_set_threads(int64_t n) {
    static int all;
    if (all == 0) all = omp_get_max_threads(); /* what the process may use, or OMP_NUM_THREADS */
    threads = n > 0 ? n : 0;
    omp_set_num_threads(n > 0 ? (int)n : all); /* for parallel loops outside kernels/ */
}

int64_t kern_threads(void) { return threads > 0 ? threads : omp_get_max_threads(); }
