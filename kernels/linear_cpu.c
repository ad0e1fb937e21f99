/* kernels/linear_cpu.c: y = x w^T + bias. A task packs COLUMNS rows of w into a panel (DEPTH, COLUMNS) on its stack and
 * runs its rows of x past it, ROWS at a time, in registers; OpenMP over the tasks. Every element of y is one sum in the
 * order of its K terms, cut at multiples of a depth that K alone decides: its bits depend on its row of x and nothing
 * else, neither on tiles, nor on threads, nor on packing. (One sgemm a tile of OpenBLAS: 10 % slower here, as it packs
 * x and w each time.) */
#include "kernels/ops.h"

#include <string.h>

#include "kernels/simd.h"

/* ROWS x VECTORS accumulators leave room for VECTORS of the panel and one broadcast among the registers. */
#if KERN_V == 16
enum { ROWS = 8, VECTORS = 3 };
#else
enum { ROWS = 4, VECTORS = 3 };
#endif
enum { COLUMNS = VECTORS * KERN_V, DEPTH = 640, CHUNK_BYTES = 8 << 20, CHUNK_ROWS = 1024, PARTS = 4 };

/* panel (depth, COLUMNS) = n rows of w transposed, missing ones 0. */
static void pack(float *panel, const float *w, int64_t n, int64_t depth, int64_t ldw) {
    for (int c = 0; c < COLUMNS; c += KERN_V) {
        const float *row[KERN_V];
        int64_t k = 0;
        for (int i = 0; i < KERN_V; i++) row[i] = c + i < n ? w + (c + i) * ldw : NULL;
        for (; c + KERN_V <= n && k + KERN_V <= depth; k += KERN_V)
            kern_transpose(panel + k * COLUMNS + c, row, k, COLUMNS, 1);
        for (; k < depth; k++)
            for (int i = 0; i < KERN_V; i++) panel[k * COLUMNS + c + i] = row[i] ? row[i][k] : 0;
    }
}

/* The finishing of one row: y = or += sum, + bias; n columns of it are real. */
static inline void finish(float *y, const kern_vec *sum, const float *bias, int64_t n, bool add) {
    float row[COLUMNS] __attribute__((aligned(64)));
    float *to = n == COLUMNS ? y : row;
    if (n < COLUMNS && add) memcpy(row, y, (size_t)n * sizeof *y);
#pragma GCC unroll 4
    for (int c = 0; c < VECTORS; c++) {
        kern_vec v = sum[c];
        if (add) v = kern_load(to + c * KERN_V) + v;
        if (bias) v = v + kern_load(bias + c * KERN_V);
        kern_store(to + c * KERN_V, v);
    }
    if (n < COLUMNS) memcpy(y, row, (size_t)n * sizeof *y);
}

/* y (rows, n) = or += x (rows, depth) panel (depth, COLUMNS), + bias (COLUMNS) unless NULL. */
static void multiply(float *y, const float *x, const float *panel, const float *bias, int64_t rows, int64_t n,
                     int64_t depth, int64_t ldy, int64_t ldx, bool add) {
    for (int64_t t = 0; t < rows; t += ROWS) {
        const int64_t left = rows - t;
        const float *row[ROWS];
        kern_vec sum[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            row[r] = x + (r < left ? t + r : rows - 1) * ldx;
#pragma GCC unroll 4
            for (int c = 0; c < VECTORS; c++) sum[r][c] = kern_splat(0);
        }
        for (int64_t k = 0; k < depth; k++) {
            kern_vec v[VECTORS];
#pragma GCC unroll 4
            for (int c = 0; c < VECTORS; c++) v[c] = kern_load(panel + k * COLUMNS + c * KERN_V);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
                for (int c = 0; c < VECTORS; c++) sum[r][c] += row[r][k] * v[c];
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
            if (r < left) finish(y + (t + r) * ldy, sum[r], bias, n, add);
    }
}

/* Columns [n0, n0 + n) of the part-th of `parts` shares of the rows of some tiles, which are taken together where they
 * touch. */
static void task(float *y, const float *x, const float *w, const float *bias, const struct kern_tile *tiles,
                 int64_t n_tiles, int64_t part, int64_t parts, int64_t n0, int64_t n, int64_t K, int64_t ldy,
                 int64_t ldx, bool accumulate) {
    float panel[DEPTH * COLUMNS] __attribute__((aligned(64)));
    float edge[COLUMNS] = {0};
    if (bias) memcpy(edge, bias + n0, (size_t)n * sizeof *bias);
    const int64_t cuts = K > DEPTH ? (K + DEPTH - 1) / DEPTH : 1, step = (K + cuts - 1) / cuts;
    for (int64_t cut = 0; cut < cuts; cut++) {
        const int64_t k = cut * step, depth = K - k < step ? K - k : step;
        pack(panel, w + n0 * K + k, n, depth, K);
        for (int64_t i = 0, next; i < n_tiles; i = next) {
            int64_t rows = tiles[i].rows;
            for (next = i + 1; next < n_tiles && tiles[next].row == tiles[i].row + rows; next++)
                rows += tiles[next].rows;
            const int64_t from = rows * part / parts / ROWS * ROWS, row = tiles[i].row + from;
            if (part < parts - 1) rows = rows * (part + 1) / parts / ROWS * ROWS;
            multiply(y + row * ldy + n0, x + row * ldx + k, panel, bias && cut == cuts - 1 ? edge : NULL, rows - from,
                     n, depth, ldy, ldx, accumulate || cut > 0);
        }
    }
}

void kern_linear_cpu(float *y, const float *x, const float *w, const float *bias, const struct kern_tile *tiles,
                     int64_t n_tiles, int64_t N, int64_t K, int64_t ldy, int64_t ldx, bool accumulate) {
    if (n_tiles <= 0 || N <= 0) return;
    /* Tiles a task: few enough that its rows of x stay in the cache and that every thread gets a few tasks. */
    const int64_t blocks = (N + COLUMNS - 1) / COLUMNS, threads = kern_threads();
    int64_t rows = CHUNK_BYTES / 4 / (K > 0 ? K : 1), most = n_tiles * blocks / (4 * threads);
    int64_t group = (rows < CHUNK_ROWS ? rows : CHUNK_ROWS) / KERN_TILE_ROWS;
    if (group > most) group = most;
    if (group < 1) group = 1;
    const int64_t groups = (n_tiles + group - 1) / group;
    /* The last blocks are cut into PARTS tasks each, so that the threads end together; not worth it for few rows. */
    const int64_t last_rows = tiles[n_tiles - 1].row + tiles[n_tiles - 1].rows - tiles[(groups - 1) * group].row;
    const int64_t cut = last_rows < PARTS * 4 * ROWS ? 0 : blocks < threads ? blocks : threads;
    const int64_t whole = groups * blocks - cut;
#pragma omp parallel for num_threads((int)threads) schedule(dynamic) default(none)                                     \
    shared(y, x, w, bias, tiles, n_tiles, N, K, ldy, ldx, accumulate, blocks, group, cut, whole)
    for (int64_t i = 0; i < whole + cut * PARTS; i++) {
        const int64_t late = i - whole, at = late < 0 ? i : whole + late / PARTS;
        const int64_t first = at / blocks * group, n0 = at % blocks * COLUMNS;
        task(y, x, w, bias, tiles + first, n_tiles - first < group ? n_tiles - first : group,
             late < 0 ? 0 : late % PARTS, late < 0 ? 1 : PARTS, n0, N - n0 < COLUMNS ? N - n0 : COLUMNS, K, ldy, ldx,
             accumulate);
    }
}
