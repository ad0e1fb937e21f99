/* tests/test_plot_taylor.c: the figures of Taylor results: tables, pictures, degenerate data, refusals; and the curves
 * they draw. Results are made up here and written with taylor_results_write. */
#include "tests/plot_common.h"

#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/h5.h"
#include "geometry/results.h"
#include "kernels/ops.h"
#include "plots/taylor_figure.h"
#include "taylor/curve.h"
#include "taylor/fold.h"
#include "taylor/sample.h"

enum content { ORDINARY, NOTHING, INFINITE, MISSING, EXTREME };
struct made {
    int64_t Ls, H, P, rows; /* rows: samples a prompt and head */
    enum content content;
    int64_t window;
    enum ag_tap tap;
    const char *model;
};
static const struct made ordinary = {4, 2, 4, 6, ORDINARY, 0, AG_TAP_ROPE, "tiny attn_q"};

/* 20 queries a prompt and head, one of them with v = 0; R/c is 1/4 in even heads and -3/4 in odd ones, |R|/c grows with
 * the layer. */
static void fill_records(struct taylor_results *r, const struct made *m) {
    for (int64_t l = 0; l < m->Ls; l++) {
        struct taylor_records *x = &r->records[l];
        for (int64_t p = 0; p < m->P; p++)
            for (int64_t h = 0; h < m->H; h++) {
                int64_t *counts = x->counts + (p * m->H + h) * TAYLOR_COUNTS;
                double *medians = x->medians + (p * m->H + h) * TAYLOR_MEDIANS;
                if (m->content == NOTHING) continue;
                counts[TAYLOR_N_QUERIES] = 20;
                counts[TAYLOR_N_DEGENERATE] = 1;
                counts[TAYLOR_N_EPS_0] = 2;
                counts[TAYLOR_N_EPS_1] = 1 + (l * m->H + h) % 19;
                counts[TAYLOR_N_EPS_2] = 20;
                for (int k = 0; k < TAYLOR_MEDIANS; k++) medians[k] = m->content == MISSING ? NAN : 0.25;
                if (m->content == MISSING) continue;
                int32_t *bins = x->histograms + h * TAYLOR_QUANTITIES * 2 * TAYLOR_BINS;
                for (int q = 0; q < TAYLOR_QUANTITIES; q++) {
                    const double size = m->content == EXTREME ? (q % 2 ? 0 : INFINITY) : ldexp(1, -q);
                    bins[(q * 2 + 1) * TAYLOR_BINS + taylor_bin(size)] += 20;
                }
                for (int sign = 0; sign < 2; sign++)
                    memset(bins + (TAYLOR_R_OVER_C * 2 + sign) * TAYLOR_BINS, 0, TAYLOR_BINS * sizeof *bins);
                bins[(TAYLOR_R_OVER_C * 2 + (h % 2 == 0)) * TAYLOR_BINS + taylor_bin(m->content == EXTREME ? INFINITY
                                                                                     : h % 2               ? 0.75
                                                                                             : 0.25)] += 19;
                for (int k = 0; k < 19; k++) {
                    const double root = m->content == EXTREME ? (k % 2 ? 1e-30 : 1e30) : 1 + 0.1 * k,
                                 ratio = m->content == EXTREME ? 1e-30 : 0.3 + 0.1 * (double)l;
                    x->density[taylor_density_bin(root) * TAYLOR_DENSITY + taylor_density_bin(ratio)]++;
                }
            }
    }
}

static double R_at(int64_t i) { return 0.01 * (double)((i * 7) % 11 - 5); }

static void fill_samples(struct taylor_results *r, const struct made *m) {
    const int64_t n = m->Ls * m->P * m->rows * m->H;
    struct ag_error err = AG_ERROR_INIT;
    r->n_samples = n;
    r->samples = AG_ZEROS(r->arena, struct taylor_sample, n, &err);
    for (int64_t i = 0; i < n; i++) {
        struct taylor_sample *s = &r->samples[i];
        const int64_t h = i % m->H, row = i / m->H % m->rows, p = i / m->H / m->rows % m->P,
                      l = i / m->H / m->rows / m->P;
        *s = (struct taylor_sample){.prompt = p,
                                    .layer = r->from.layer[l],
                                    .head = h,
                                    .position = 10 * row,
                                    .keys = 10 * row + 1,
                                    .v = 1,
                                    .c = 0.5,
                                    .R = R_at(i),
                                    .cosine = 0.9,
                                    .span = 0.8 - 0.01 * (double)l,
                                    .value = row == 1 ? 2 : 0};
        for (int k = 0; k < TAYLOR_SAMPLE_BOUNDS; k++) {
            s->bound[k] = (struct taylor_interval){s->R - 0.2 * (k + 1), s->R + 0.3 * (k + 1)};
            if (m->content == INFINITE || (m->window > 0 && k == TAYLOR_B4))
                s->bound[k] = (struct taylor_interval){-INFINITY, INFINITY};
        }
        if (m->content == ORDINARY && i % 5 == 0) s->bound[TAYLOR_B2].hi = 1e9;
        if (m->content == ORDINARY && i % 7 == 0) s->bound[TAYLOR_B4].hi = INFINITY;
        if (m->content == EXTREME) s->bound[TAYLOR_B2].hi = 1e300;
        if (m->content == MISSING) s->R = s->cosine = s->span = NAN;
        for (int e = 0; e < TAYLOR_EPS; e++)
            s->radius[e] = (struct taylor_radius){row % 3 == 0 ? 1 : 0.25 * (e + 1), 0.2, row % 2 == 0};
    }
    if (m->rows == 0) return;
    r->n_curves = m->Ls * m->H * 2; /* rows 0 and 1 of the first prompt */
    r->curves = AG_ZEROS(r->arena, struct taylor_curve, r->n_curves, &err);
    for (int64_t i = 0; i < r->n_curves; i++) {
        const int64_t l = i / m->H / 2, row = i / m->H % 2;
        r->curves[i].sample = l * m->P * m->rows * m->H + (m->rows > 1 ? row : 0) * m->H + i % m->H;
        for (int k = 0; k < TAYLOR_CURVE; k++) {
            const double s = k / 32.0;
            r->curves[i].ratio[k] = m->content == MISSING   ? NAN
                                    : m->content == EXTREME ? -1e20 * s
                                                            : (row ? -0.9 : 0.6) * s;
            r->curves[i].bound[k] = m->content == INFINITE || m->content == MISSING
                                        ? (struct taylor_interval){-INFINITY, 1}
                                        : (struct taylor_interval){-1.5 * s, 0.9 * s};
        }
    }
}

static const char *make_results(const char *folder, const struct made *m) {
    struct ag_error err = AG_ERROR_INIT;
    struct ag_arena *arena = ag_arena_new("made-up taylor results");
    struct taylor_results *r = NULL;
    const char *path = test_path("%s/taylor.h5", folder);
    struct ag_layer_shape *shapes = AG_ZEROS(arena, struct ag_layer_shape, m->Ls + 2, &err);
    bool *selected = AG_ZEROS(arena, bool, m->Ls + 2, &err);
    int64_t *offsets = AG_NEW(arena, int64_t, m->P + 1, &err), *twin = AG_NEW(arena, int64_t, m->P, &err);
    const char **ids = AG_NEW(arena, const char *, m->P, &err);
    for (int64_t l = 0; l < m->Ls + 2; l++) {
        shapes[l] = (struct ag_layer_shape){AG_LAYER_SOFTMAX, m->H, 1, 64, 64, 0.125, m->window};
        selected[l] = l >= 2; /* so that layers are not their own indices */
    }
    for (int64_t p = 0; p <= m->P; p++) offsets[p] = 20 * p;
    for (int64_t p = 0; p < m->P; p++) {
        twin[p] = -1;
        ids[p] = "made up";
    }
    const struct ag_tokens tokens = {.P = m->P, .T = 20 * m->P, .offsets = offsets, .prompt_id = ids, .twin = twin};
    const struct ag_source source = {.model = m->model,
                                     .architecture = "llama",
                                     .checkpoint_sha256 = "0123456789abcdef",
                                     .tokenizer_sha256 = "00",
                                     .prompts_sha256 = "fedcba9876543210",
                                     .backend = "ref",
                                     .dtype = "f32",
                                     .command_line = "attgeo test",
                                     .L = m->Ls + 2,
                                     .layers = shapes,
                                     .selected = selected,
                                     .tap = m->tap,
                                     .last_tap = AG_TAP_ROPE,
                                     .tokens = &tokens};
    struct taylor_options options = TAYLOR_OPTIONS_INIT;
    options.draws = 100;
    assert_ok(taylor_results_new(&r, &source, &options, &err), &err);
    fill_records(r, m);
    fill_samples(r, m);
    assert_ok(taylor_fold(r, &err), &err);
    assert_ok(taylor_results_write(r, path, true, &err), &err);
    taylor_results_free(r);
    ag_arena_free(arena);
    return path;
}

/* ---- helpers ---- */

static void holds(const char *text, const char *piece) {
    if (strstr(text, piece) == NULL) fail_msg("no '%s' in\n%.3000s", piece, text);
}

static const char *table_of(const char *folder, const char *figure) {
    size_t size;
    return plot_slurp(test_path("%s/%s.tsv", folder, figure), &size);
}

/* ---- figures ---- */

static void every_shape(void **state) {
    (void)state;
    static const struct made shapes[] = {
        {4, 2, 4, 6, ORDINARY, 0, AG_TAP_ROPE, "ordinary"},
        {1, 1, 1, 1, ORDINARY, 0, AG_TAP_ROPE, "one of each"},
        {3, 2, 2, 0, ORDINARY, 0, AG_TAP_ROPE, "no samples"},
        {2, 2, 2, 3, ORDINARY, 8, AG_TAP_NORM, "a window, another tap"},
        {3, 2, 2, 0, NOTHING, 0, AG_TAP_ROPE, "nothing"},
        {2, 2, 2, 3, INFINITE, 0, AG_TAP_ROPE, "infinite"},
        {2, 3, 2, 3, MISSING, 0, AG_TAP_ROPE, "missing"},
        {2, 2, 2, 3, EXTREME, 0, AG_TAP_ROPE, "extreme"},
        {40, 20, 1, 2, ORDINARY, 0, AG_TAP_ROPE,
         "many, and a name that is far too long for the first line of any figure that was ever printed"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const char *folder = test_folder("plot_taylor_shapes"), *results = make_results(folder, &shapes[i]);
        const bool all = i < 2; /* the other formats take the same way */
        plot_ok(results, folder, all ? "" : "--format svg");
        for (int f = 0; f < PLOT_TAYLOR_FIGURES; f++) {
            size_t size;
            const char *name = plot_taylor_figures[f].name;
            if (all)
                assert_memory_equal(plot_slurp(test_path("%s/%s.png", folder, name), &size), "\x89PNG\r\n\x1a\n", 8);
            if (all) assert_memory_equal(plot_slurp(test_path("%s/%s.pdf", folder, name), &size), "%PDF-", 5);
            const char *svg = plot_slurp(test_path("%s/%s.svg", folder, name), &size);
            holds(svg, "</svg>");
            if (shapes[i].tap != AG_TAP_ROPE) holds(svg, "tap norm, NOT what the read sees (rope)");
        }
    }
}

static void density_table(void **state) {
    (void)state;
    const char *folder = test_folder("plot_taylor_density");
    const char *results = make_results(folder, &ordinary);
    plot_ok(results, folder, "--format svg --figure taylor-density");
    const char *table = table_of(folder, "taylor-density");
    static const char *const lines[] = {"# model\ttiny attn_q\n",
                                        "# tap\trope\n",
                                        "# prompts\t4\n",
                                        "# units\t4\n",
                                        "# queries\t640\n",
                                        "# panels\t5\n",
                                        "# panel1\tall layers\n",
                                        "# panel2\tlayer 2\n",
                                        "# panel5\tlayer 5\n",
                                        "# share5\t38 %\n",
                                        "\nlayer\tsqrt_v_lo\tsqrt_v_hi\tratio_lo\tratio_hi\tcount\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) holds(table, lines[i]); /* share5: (7 + 8) / 40 */
    holds(table, "Of 608 queries with v > 0: 608 drawn; beyond the axes 0 left, 0 right, 0 below, 0 above. No |R|/c "
                 "where v = 0: 32.");
    /* Rows of a panel add up; sqrt(v) from 1 to 2.8 in three cells of half an octave. */
    int64_t sum = 0, cells = 0;
    for (const char *at = table; (at = strstr(at, "\n3\t")) != NULL; at++) {
        double v[5];
        assert_int_equal(sscanf(at, "\n3\t%lf\t%lf\t%lf\t%lf\t%lf\n", &v[0], &v[1], &v[2], &v[3], &v[4]), 5);
        assert_true(v[0] >= 1 - 1e-8 && v[1] <= 2.8284272 && v[2] <= 0.4 && v[3] > 0.4);
        sum += (int64_t)v[4];
        cells++;
    }
    assert_int_equal(cells, 3);
    assert_int_equal(sum, 19 * ordinary.P * ordinary.H);
    /* What lies beyond the grid is counted, not drawn. */
    const struct made far = {1, 1, 1, 2, EXTREME, 0, AG_TAP_ROPE, "far"};
    plot_ok(make_results(folder, &far), folder, "--format svg --figure taylor-density");
    holds(table_of(folder, "taylor-density"),
          "Of 19 queries with v > 0: 0 drawn; beyond the axes 9 left, 10 right, 0 below, 0 above.");
    const struct made many = {60, 1, 1, 1, ORDINARY, 0, AG_TAP_ROPE, "many"};
    plot_ok(make_results(folder, &many), folder, "--format svg --figure taylor-density");
    table = table_of(folder, "taylor-density");
    holds(table, "35 of 60 layers are shown");
    holds(table, "# panel36\tlayer 61\n"); /* the last too */
}

static void heatmap_table(void **state) {
    (void)state;
    const char *folder = test_folder("plot_taylor_heatmap");
    const char *results = make_results(folder, &ordinary);
    plot_ok(results, folder, "--format svg --figure taylor-heatmap");
    const char *table = table_of(folder, "taylor-heatmap"), *row = strstr(table, "\nmedian\t3\t1\t");
    double value, colour;
    assert_non_null(row);
    assert_int_equal(sscanf(row, "\nmedian\t3\t1\t%lf\t-1\t1\t%lf\tok\t", &value, &colour), 2);
    assert_true(fabs(value + 0.75) <= 0.022 * 0.75 && fabs(colour - value / 0.8) <= 1e-8);
    holds(table, "# range\t0.8\n");
    holds(table,
          "\ninside\t2\t0\t0.333333333\t24\t0\t0.333333333\tok\t33\n"); /* rows 0 and 3 of 6 are inside at eps 0.5 */
    holds(table, "n = 24 sampled queries a cell");
    holds(table, "50 % of cells < 0");
    plot_ok(results, folder, "--format svg --figure taylor-heatmap --range 0.5");
    table = table_of(folder, "taylor-heatmap");
    holds(table, "±0.5 (given)");
    holds(table, "4 beyond the range");
    const struct made none = {3, 2, 2, 0, ORDINARY, 0, AG_TAP_ROPE, "no samples"};
    plot_ok(make_results(folder, &none), folder, "--format svg --figure taylor-heatmap");
    table = table_of(folder, "taylor-heatmap");
    holds(table, "no query was sampled");
    holds(table, "\nshare\t3\t1\t0.2\t-1\t1\t0.2\tok\t20\n");
    const struct made far = {2, 2, 2, 2, EXTREME, 0, AG_TAP_ROPE, "far"};
    plot_ok(make_results(folder, &far), folder, "--format svg --figure taylor-heatmap");
    holds(table_of(folder, "taylor-heatmap"), "Of 8 cells: 0 missing (hatched), 4 infinite (grey)");
}

static void ladder_table(void **state) {
    (void)state;
    const char *folder = test_folder("plot_taylor_ladder");
    const char *results = make_results(folder, &ordinary);
    /* Shares are (1 .. 8)/20 in the order of the heads: the median is the fourth, layer 3, head 1. */
    plot_ok(results, folder, "--format svg --figure taylor-ladder");
    const char *table = table_of(folder, "taylor-ladder");
    holds(table, "# layer\t3\n# head\t1\n");
    holds(table, "24 of its 24 sampled queries");
    for (int k = 0; k < TAYLOR_SAMPLE_BOUNDS; k++) {
        static const char *const names[] = {"\nB1\t", "\nB2\t", "\nB3\t", "\nB4\t", "\nB4x\t"};
        assert_int_equal(plot_occurrences(table, names[k]), 24);
    }
    /* B3 in the order of R, ends as they are; B4 infinite and B2 far away where it was made so, inside the axis as
     * drawn. */
    double most = NAN, before = -INFINITY;
    int infinite = 0, clipped = 0;
    assert_int_equal(sscanf(strstr(table, "# most\t"), "# most\t%lf", &most), 1);
    for (const char *at = table; (at = strstr(at, "\nB")) != NULL; at++) {
        char name[8], role[16];
        long rank, prompt, position;
        int value, lo_state, hi_state;
        double v[6], b3[2];
        assert_int_equal(
            sscanf(at, "\n%7[^\t]\t%ld\t%ld\t%ld\t%15[^\t]\t%d\t%lf\t%lf\t%lf\t%lf\t%lf\t%lf\t%d\t%d\t%lf\t%lf", name,
                   &rank, &prompt, &position, role, &value, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &lo_state,
                   &hi_state, &b3[0], &b3[1]),
            16);
        assert_true(fabs(v[4]) <= most && fabs(v[5]) <= most && v[3] == v[0] && value == (position == 10 ? 2 : 0));
        assert_true(fabs(b3[0] - (v[0] - 0.6)) <= 1e-8 && fabs(b3[1] - (v[0] + 0.9)) <= 1e-8);
        infinite += hi_state == 2;
        clipped += hi_state == 1;
        assert_int_equal(hi_state, strcmp(name, "B4") == 0 && isinf(v[2]) ? 2 : v[2] > most ? 1 : 0);
        if (strcmp(name, "B3") == 0) {
            assert_true(v[0] >= before);
            before = v[0];
        }
    }
    assert_true(infinite > 0 && clipped > 0);
    char note[128];
    snprintf(note, sizeof note, "(grey, in the strips ±∞): %d; clipped at ±%g: %d.", infinite, most, clipped);
    holds(table, note);
    plot_ok(results, folder, "--format svg --figure taylor-ladder --layer 5 --head 0");
    holds(table_of(folder, "taylor-ladder"), "# layer\t5\n# head\t0\n");
    plot_ok(results, folder, "--format svg --figure taylor-ladder --layer 4"); /* of 5/20 and 6/20 the lower */
    holds(table_of(folder, "taylor-ladder"), "# layer\t4\n# head\t0\n");
    const struct made window = {2, 2, 2, 3, ORDINARY, 8, AG_TAP_ROPE, "window"};
    plot_ok(make_results(folder, &window), folder, "--format svg --figure taylor-ladder");
    holds(table_of(folder, "taylor-ladder"), "# empty4\tinfinite throughout\n");
    holds(table_of(folder, "taylor-ladder"), "none carries a window: missing");
    const struct made long_one = {1, 1, 1, 500, ORDINARY, 0, AG_TAP_ROPE, "long"};
    plot_ok(make_results(folder, &long_one), folder, "--format svg --figure taylor-ladder");
    holds(table_of(folder, "taylor-ladder"), "120 of its 500 sampled queries are drawn, evenly spaced in rank");
}

static void radius_table(void **state) {
    (void)state;
    const char *folder = test_folder("plot_taylor_radius");
    const char *results = make_results(folder, &ordinary);
    plot_ok(results, folder, "--format svg --figure taylor-radius");
    const char *table = table_of(folder, "taylor-radius");
    /* lowest: layer 2, head 0; highest: layer 5, head 1 */
    holds(table, "# panel1\tlayer 2, head 0 (lowest share)\n");
    holds(table, "# panel3\tlayer 3, head 1 (median share)\n");
    holds(table, "# panel5\tlayer 5, head 1 (highest share)\n");
    assert_int_equal(plot_occurrences(table, "\ncurve\t"), 6 * TAYLOR_CURVE);
    assert_int_equal(plot_occurrences(table, "\nradius\t"), 6 * TAYLOR_EPS);
    holds(table, "\ncurve\t3\t1\t0\t10\t0.5\t-0.45\t-0.75\t0.45\t-0.45\t-0.75\t0.45\n");
    holds(table, "\nradius\t3\t1\t0\t10\t0.25\t-0.1\t0.1\t0.2\t-0.1\t0\tNaN\n"); /* the curve is below 0 there */
    holds(table, "# radii4\tradii 0.250 · 0.500 · 0.750\n");
    holds(table, "# radii3\tradii 1* · 1* · 1*\n");
    plot_ok(results, folder, "--format svg --figure taylor-radius --layer 4 --head 1");
    table = table_of(folder, "taylor-radius");
    assert_int_equal(plot_occurrences(table, "\ncurve\t"), 2 * TAYLOR_CURVE);
    holds(table, "# panel1\tlayer 4, head 1 (chosen)\n");
    const struct made far = {1, 1, 1, 2, EXTREME, 0, AG_TAP_ROPE, "far"};
    plot_ok(make_results(folder, &far), folder, "--format svg --figure taylor-radius");
    holds(table_of(folder, "taylor-radius"),
          "Of 66 points: 0 missing (v = 0 or c lost to rounding), 64 below the axis");
    const struct made none = {1, 1, 1, 0, ORDINARY, 0, AG_TAP_ROPE, "none"};
    plot_ok(make_results(folder, &none), folder, "--format svg --figure taylor-radius");
    holds(table_of(folder, "taylor-radius"), "# none\tthe results file holds no curves");
}

static void by_layer_tables(void **state) {
    (void)state;
    const char *folder = test_folder("plot_taylor_layers");
    plot_ok(make_results(folder, &ordinary), folder, "--format svg --figure taylor-direction,taylor-orders");
    const char *table = table_of(folder, "taylor-direction");
    assert_int_equal(plot_occurrences(table, "\ncosine\t"), 4 * 3);
    holds(table, "\nspan\t4\tall\t48\t0.78\t0.78\t0.78\t0\n");
    holds(table, "\ncosine\t5\t1\t24\t0.9\tNaN\tNaN\t0\n");
    holds(table, "# reference2\t0.25\n"); /* 16 / 64 */
    holds(table, "Of 192 sampled queries");
    table = table_of(folder, "taylor-orders");
    static const enum taylor_quantity order[] = {TAYLOR_ERROR_0, TAYLOR_C, TAYLOR_ABS_R, TAYLOR_ERROR_3,
                                                 TAYLOR_ERROR_4};
    for (int n = 0; n < TAYLOR_ORDERS; n++) { /* every query of a quantity q has the value 2^-q */
        double v[6];
        const char *at = strstr(table, test_path("\n4\t%d\t", n));
        assert_non_null(at);
        assert_int_equal(
            sscanf(strchr(at + 3, '\t'), "\t%lf\t%lf\t%lf\t%lf\t%lf\t%lf", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5]),
            6);
        for (int i = 0; i < 6; i++) assert_true(fabs(v[i] / ldexp(1, -(int)order[n]) - 1) <= 0.023);
        assert_int_equal(plot_occurrences(table, test_path("\nmodel\t%d\t", n)), 1);
        assert_int_equal(plot_occurrences(table, test_path("\n4\t%d\t", n)), 2);
    }
    const struct made far = {2, 1, 1, 1, EXTREME, 0, AG_TAP_ROPE, "far"}; /* odd quantities 0, even ones infinite */
    plot_ok(make_results(folder, &far), folder, "--format svg --figure taylor-direction,taylor-orders");
    holds(table_of(folder, "taylor-orders"),
          "Of 10 layer medians: 0 missing, 6 are 0 or below 2⁻⁴⁰ (at the lower end), 4 above 2²⁴ (at the upper end).");
    const struct made missing = {2, 3, 2, 3, MISSING, 0, AG_TAP_ROPE, "missing"};
    plot_ok(make_results(folder, &missing), folder, "--format svg --figure taylor-direction,taylor-orders");
    holds(table_of(folder, "taylor-direction"), "missing 36 (left; v = 0), 36 (right");
    holds(table_of(folder, "taylor-direction"), "# panel1_empty1\tno finite value\n");
}

static void redrawn_equal(void **state) {
    (void)state;
    const char *folder = test_folder("plot_taylor_again"), *other = test_folder("plot_taylor_other");
    const char *results = make_results(folder, &ordinary);
    size_t a, b;
    plot_ok(results, folder, "--format png,svg");
    plot_ok(results, other, "--format svg");
    for (int f = 0; f < PLOT_TAYLOR_FIGURES; f++) {
        const char *name = plot_taylor_figures[f].name;
        const char *first = plot_slurp(test_path("%s/%s.svg", folder, name), &a),
                   *second = plot_slurp(test_path("%s/%s.svg", other, name), &b);
        assert_int_equal(a, b);
        assert_memory_equal(first, second, a);
        /* The script alone, in the folder, without attgeo; and the committed one, as it stands in the tree. */
        const char *picture = plot_slurp(test_path("%s/%s.png", folder, name), &a);
        assert_int_equal(unlink(test_path("%s/%s.png", folder, name)), 0);
        assert_int_equal(system(test_path("cd %s && gnuplot -d -c %s.gp", folder, name)), 0);
        second = plot_slurp(test_path("%s/%s.png", folder, name), &b);
        assert_int_equal(a, b);
        assert_memory_equal(picture, second, a);
        assert_int_equal(
            system(test_path("gnuplot -d -c plots/%s.gp %s/%s.tsv %s/tree.svg", name, folder, name, folder)), 0);
        second = plot_slurp(test_path("%s/tree.svg", folder), &b);
        first = plot_slurp(test_path("%s/%s.svg", folder, name), &a);
        assert_int_equal(a, b);
        assert_memory_equal(first, second, a);
    }
}

static void names_are_text(void **state) {
    (void)state;
    const char *folder = test_folder("plot_taylor_hostile");
    const struct made m = {
        2,           2,
        2,           2,
        ORDINARY,    0,
        AG_TAP_ROPE, "\"`touch build/test/plot_taylor_hostile/pwned`\" $(id)\t{/=90 x}\n# tap\tnorm\nm_k^2 <&>"};
    plot_ok(make_results(folder, &m), folder, "--format svg");
    assert_int_equal(ag_path_kind(test_path("%s/pwned", folder)), AG_KIND_NONE);
    for (int f = 0; f < PLOT_TAYLOR_FIGURES; f++) {
        holds(table_of(folder, plot_taylor_figures[f].name),
              "# model\t'`touch build/test/plot_taylor_hostile/pwned`' $(id) {/=90 x} # tap norm m_k^2 <&>\n");
        assert_int_equal(plot_occurrences(table_of(folder, plot_taylor_figures[f].name), "\n# tap\t"), 1);
    }
}

static void refusals(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("plot_taylor_bad"), *results = make_results(folder, &ordinary);
    hid_t file;
    static const char *const wrong[][3] = {
        {"--figure delta-mu", "delta-mu", "taylor-density"},
        {"--figure taylor-orders,rank", "rank", "attgeo taylor"},
        {"--pooling token", "--pooling", "attgeo taylor"},
        {"--basis prompt", "--basis", "attgeo taylor"},
        {"--layer 1", "--layer 1", "2 to 5"},
        {"--layer 3 --head 2", "--head 2", "0 to 1"},
        {"--head 7", "--head 7", "0 to 1"},
        {"--figure taylor-none", "--figure", "taylor-ladder"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        plot_refused(2, test_path("%s -o %s/out %s", results, folder, wrong[i][0]), wrong[i][1], wrong[i][2]);
    /* What is of Taylor's is refused for geometry, before the file is read further. */
    const char *geometry = test_path("%s/geometry.h5", folder);
    assert_ok(ag_h5_create(&file, geometry, &err), &err);
    assert_ok(ag_h5_set_text(file, ".", "schema", GEOM_SCHEMA, &err), &err);
    assert_ok(ag_h5_close(file, &err), &err);
    plot_refused(2, test_path("%s -o %s/out --figure taylor-radius", geometry, folder), "taylor-radius",
                 "attgeo geometry");
    plot_refused(2, test_path("%s -o %s/out --layer 0", geometry, folder), "--layer", "attgeo geometry");
    plot_refused(2, test_path("%s -o %s/out --head 0", geometry, folder), "--head", "attgeo geometry");
    /* Damaged: each object the figures need, missing. */
    static const char *const needed[] = {"/density/3",      "/summary/quantiles", "/summary/layer_share", "/samples/lo",
                                         "/samples/radius", "/curves/ratio",      "/curves/sample",       "/layers"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const char *damaged = make_results(folder, &ordinary);
        hid_t id = H5Fopen(damaged, H5F_ACC_RDWR, H5P_DEFAULT);
        assert_true(id >= 0 && H5Ldelete(id, needed[i], H5P_DEFAULT) >= 0 && H5Fclose(id) >= 0);
        plot_refused(1, test_path("%s -o %s/out", damaged, folder), "taylor.h5", needed[i] + 1);
    }
    const char *damaged = make_results(folder, &ordinary);
    hid_t id = H5Fopen(damaged, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(id >= 0 && H5Ldelete(id, "/curves/sample", H5P_DEFAULT) >= 0);
    int64_t n = 16, row[16] = {0};
    row[5] = 192;
    assert_ok(ag_h5_write(id, "curves/sample", AG_H5_I64, 1, &n, row, &err), &err);
    assert_ok(ag_h5_close(id, &err), &err);
    plot_refused(1, test_path("%s -o %s/out", damaged, folder), "entry 5 is row 192", "192 samples");
    damaged = make_results(folder, &ordinary);
    id = H5Fopen(damaged, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(id >= 0 && H5Ldelete(id, "/density/4", H5P_DEFAULT) >= 0);
    static int64_t density[TAYLOR_DENSITY * TAYLOR_DENSITY];
    const int64_t side[2] = {TAYLOR_DENSITY, TAYLOR_DENSITY};
    density[77] = -3;
    assert_ok(ag_h5_write(id, "density/4", AG_H5_I64, 2, side, density, &err), &err);
    assert_ok(ag_h5_close(id, &err), &err);
    plot_refused(1, test_path("%s -o %s/out", damaged, folder), "/density/4", "-3");
    assert_int_equal(ag_path_kind(test_path("%s/out", folder)), AG_KIND_NONE); /* nothing was made for any of them */
}

/* The tables when memory runs out at any allocation: refused, never a crash, and whole at last. */
static void out_of_memory(void **state) {
    (void)state;
    const char *folder = test_folder("plot_taylor_memory");
    struct ag_error err = AG_ERROR_INIT;
    struct taylor_results *r = NULL;
    assert_ok(taylor_results_read(&r, make_results(folder, &ordinary), &err), &err);
    struct plot_choice choice = {.path = "taylor.h5", .taylor = r, .layer = -1, .head = -1};
    ag_arena_fail_after(0);
    assert_int_equal(plot_taylor_choose(&choice, &err), AG_E_MEMORY);
    ag_arena_fail_after(-1);
    choice.layer = choice.head = -1;
    assert_ok(plot_taylor_choose(&choice, &err), &err);
    for (int f = 0; f < PLOT_TAYLOR_FIGURES; f++) {
        enum ag_status status = AG_E_MEMORY;
        for (int64_t n = 0; status != AG_OK; n++) {
            struct ag_arena *arena = ag_arena_new("figures");
            FILE *tsv = fopen("/dev/null", "w");
            assert_true(arena != NULL && tsv != NULL && n < 1000);
            ag_arena_fail_after(n);
            status = plot_taylor_figures[f].write(tsv, &choice, arena, &err);
            ag_arena_fail_after(-1);
            assert_true(status == AG_OK ? n > 0 : status == AG_E_MEMORY);
            fclose(tsv);
            ag_arena_free(arena);
        }
    }
    taylor_results_free(r);
}

/* ---- curves ---- */

static void curves_hold(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const struct kern_ops *ops;
    assert_ok(kern_backend(&ops, AG_BACKEND_REF, &err), &err);
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)test_seed());
    int seen = 0;
    for (int trial = 0; trial < 2000; trial++) {
        enum { MOST = 200 };
        double x[MOST], size = exp(gsl_ran_flat(rng, log(1e-3), log(300)));
        const int64_t n = 2 + (int64_t)gsl_rng_uniform_int(rng, MOST - 1);
        const bool two = trial % 4 == 0; /* two atoms attain B3 */
        for (int64_t j = 0; j < n; j++)
            x[j] = size * (two              ? (j == 0) * (trial % 8 ? 1 : -1)
                           : trial % 4 == 1 ? gsl_ran_tdist(rng, 2)
                                            : gsl_ran_gaussian(rng, 1));
        struct kern_logit_moments moments;
        struct taylor_curve curve;
        struct taylor_remainder end;
        kern_logit_moments_row(&moments, x, n, 0);
        taylor_curve_of(&curve, x, n, &moments, ops);
        taylor_remainder_of(&end, &moments);
        assert_true(curve.ratio[0] == 0 && curve.bound[0].lo == 0 && curve.bound[0].hi == 0);
        for (int k = 1; k < TAYLOR_CURVE; k++) {
            if (isnan(curve.ratio[k])) continue;
            const double s = k / 32.0, c = (s * s * moments.v / 2) / (1 - curve.ratio[k]); /* c = V / (1 - R/c) */
            const double slack = 1e-13 * (1 + fabs(moments.m) + fabs(moments.b) + fabs(moments.a)) /
                                 c; /* rounding of the point itself */
            assert_true(curve.ratio[k] >= curve.bound[k].lo - slack * (1 + fabs(curve.ratio[k])));
            assert_true(curve.ratio[k] <= curve.bound[k].hi + slack * (1 + fabs(curve.ratio[k])));
            assert_true(curve.bound[k].hi <= 1);
            seen++;
        }
        const double last = curve.ratio[TAYLOR_CURVE - 1];
        if (!isnan(last))
            assert_true(fabs(last * end.c - end.R) <=
                        1e-11 * (1 + fabs(moments.m) + moments.b - moments.a) * (1 + fabs(last)));
    }
    assert_true(seen > 2000 * 16);
    gsl_rng_free(rng);
    /* All logits equal: there is no R/c. */
    const double flat[3] = {2, 2, 2};
    struct kern_logit_moments moments;
    struct taylor_curve curve;
    kern_logit_moments_row(&moments, flat, 3, 0);
    taylor_curve_of(&curve, flat, 3, &moments, ops);
    for (int k = 0; k < TAYLOR_CURVE; k++)
        assert_true(isnan(curve.ratio[k]) && curve.bound[k].lo == -INFINITY && curve.bound[k].hi == 1);
    /* Nothing is known of v: nothing is claimed. */
    const struct taylor_interval none = taylor_share_enclosure(0, 1, 1, 1);
    assert_true(none.lo == -INFINITY && none.hi == 1);
}

static void curve_positions(void **state) {
    (void)state;
    const int64_t positions[6] = {3, 8, 20, 41, 77, 90};
    int64_t out[8];
    assert_int_equal(taylor_curve_positions(out, positions, 6, 41, 3), 3); /* headline, last, middle */
    assert_true(out[0] == 2 && out[1] == 3 && out[2] == 5);
    assert_int_equal(taylor_curve_positions(out, positions, 6, -1, 1), 1);
    assert_int_equal(out[0], 5);
    assert_int_equal(taylor_curve_positions(out, positions, 6, 41, 0), 0);
    assert_int_equal(taylor_curve_positions(out, positions, 0, -1, 3), 0);
    assert_int_equal(taylor_curve_positions(out, positions, 1, 3, 3), 1);
    assert_int_equal(taylor_curve_positions(out, positions, 6, 3, 6), 6); /* all of them, each once */
    for (int i = 0; i < 6; i++) assert_int_equal(out[i], i);
}

static void curves_survive(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("taylor_curves"), *path = make_results(folder, &ordinary);
    struct taylor_results *r = NULL;
    assert_ok(taylor_results_read(&r, path, &err), &err);
    assert_int_equal(r->n_curves, 16);
    assert_int_equal(r->curves[6].sample, 1 * 4 * 6 * 2 + 1 * 2);
    assert_true(r->curves[6].ratio[16] == -0.45 && r->curves[6].bound[32].lo == -1.5 &&
                r->curves[6].bound[32].hi == 0.9);
    taylor_results_free(r);
    hid_t id = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT); /* as written before there were curves */
    assert_true(id >= 0 && H5Ldelete(id, "/curves", H5P_DEFAULT) >= 0 && H5Fclose(id) >= 0);
    assert_ok(taylor_results_read(&r, path, &err), &err);
    assert_int_equal(r->n_curves, 0);
    taylor_results_free(r);
    plot_ok(path, folder, "--format svg --figure taylor-radius");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_shape),    cmocka_unit_test(density_table),  cmocka_unit_test(heatmap_table),
    cmocka_unit_test(ladder_table),   cmocka_unit_test(radius_table),   cmocka_unit_test(by_layer_tables),
    cmocka_unit_test(redrawn_equal),  cmocka_unit_test(names_are_text), cmocka_unit_test(out_of_memory),
    cmocka_unit_test(refusals),       cmocka_unit_test(curves_hold),    cmocka_unit_test(curve_positions),
    cmocka_unit_test(curves_survive),
};
TEST_GROUP(plot_taylor, "figures of Taylor results: tables, pictures, degenerate data, refusals; curves along queries",
           tests)
