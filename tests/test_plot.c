/* tests/test_plot.c: figures: their tables, their pictures and what goes wrong. Results files are written here, by the
 * schema of geometry/results.h. */
#include "tests/plot_common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/block.h"
#include "base/file.h"
#include "base/h5.h"
#include "geometry/results.h"
#include "plots/figure.h"

enum content { ORDINARY, ALL_NAN, ALL_ZERO, HUGE_VALUES, HOLES };
struct made {
    int64_t Ls, H, D, P;
    enum content content;
    const char *model;
};
#define ROLES AG_ROLE_COUNT

static double wave(int64_t i, double a, double b) { return a + b * sin(1.7 * (double)i + 0.3); }

/* Values that are arbitrary but known: cell (l, h) of Delta-mu is wave(l * H + h, shift, 0.1). */
static double delta_at(const struct made *m, int64_t i, double shift) {
    switch (m->content) {
    case ALL_NAN:
        return NAN;
    case ALL_ZERO:
        return 0;
    case HUGE_VALUES:
        return i == 0 ? INFINITY : i == 1 ? -INFINITY : 1e308 * wave(i, shift, 0.9);
    case HOLES:
        return i % 3 == 0 ? NAN : i == 4 ? 7.0 : wave(i, shift, 0.1);
    default:
        return wave(i, shift, 0.1);
    }
}

static double curve_at(const struct made *m, int64_t i) {
    switch (m->content) {
    case ALL_NAN:
        return NAN;
    case ALL_ZERO:
        return 0;
    case HUGE_VALUES:
        return 1e200 * wave(i, 0, 1);
    case HOLES:
        return i % 2 == 0 ? NAN : wave(i, 0.5, 0.1);
    default:
        return wave(i, 0.5, 0.1);
    }
}

static void put(hid_t file, const char *basis, const char *name, int rank, int64_t d0, int64_t d1, int64_t d2,
                double *data) {
    struct ag_error err = AG_ERROR_INIT;
    const int64_t dims[3] = {d0, d1, d2};
    char path[128];
    snprintf(path, sizeof path, "summary/%s/%s", basis, name);
    assert_ok(ag_h5_write(file, path, AG_H5_F64, rank, dims, data, &err), &err);
}

static void put_basis(hid_t file, const struct made *m, const char *basis, double shift) {
    struct ag_error err = AG_ERROR_INIT;
    const int64_t cells = m->Ls * m->H, curve = m->Ls * ROLES, all = cells * m->D;
    double *a = calloc((size_t)(all > curve ? all : curve), sizeof *a);
    const bool interval = m->P > 1;
    char group[64];
    assert_non_null(a);
    static const char *const ends[] = {"", "_lo", "_hi"};
    for (int pooling = 0; pooling < 2; pooling++) {
        for (int e = 0; e < 3; e++) {
            char name[64];
            snprintf(name, sizeof name, "delta_mu_%s%s", pooling ? "token" : "prompt", ends[e]);
            for (int64_t i = 0; i < cells; i++)
                a[i] = e > 0 && !interval ? NAN
                                          : delta_at(m, i, shift) +
                                                (e == 1   ? -0.02
                                                 : e == 2 ? 0.02
                                                          : 0) +
                                                0.5 * pooling;
            put(file, basis, name, 2, m->Ls, m->H, 0, a);
        }
    }
    for (int64_t i = 0; i < cells; i++) a[i] = interval && isfinite(delta_at(m, i, shift)) ? (i % 2 ? 0.01 : 0.5) : NAN;
    put(file, basis, "delta_mu_prompt_p", 2, m->Ls, m->H, 0, a);
    put(file, basis, "delta_mu_prompt_q", 2, m->Ls, m->H, 0, a);
    for (int e = 0; e < 3; e++) {
        char name[64];
        snprintf(name, sizeof name, "layer_align%s", ends[e]);
        for (int64_t i = 0; i < curve; i++)
            a[i] = e > 0 && !interval ? NAN : curve_at(m, i) + (e == 1 ? -0.03 : e == 2 ? 0.03 : 0);
        put(file, basis, name, 2, m->Ls, ROLES, 0, a);
    }
    for (int e = 0; e < 3; e++) {
        char name[64];
        snprintf(name, sizeof name, "layer_delta%s", ends[e]);
        for (int64_t l = 0; l < m->Ls; l++)
            a[l] = m->content == ALL_NAN || (e > 0 && !interval) ? NAN
                                                                 : 0.04 * (double)(l - 1) + (e == 1   ? -0.03
                                                                                             : e == 2 ? 0.03
                                                                                                      : 0);
        put(file, basis, name, 1, m->Ls, 0, 0, a);
    }
    static const char *const ranks[] = {"effective_rank", "participation_ratio", "stable_rank", "ev_r"};
    for (int k = 0; k < 4; k++) {
        for (int64_t i = 0; i < cells; i++)
            a[i] = m->content == ALL_NAN || m->content == ALL_ZERO ? NAN : wave(i, 5 - k, 0.5);
        put(file, basis, ranks[k], 2, m->Ls, m->H, 0, a);
    }
    for (int64_t i = 0; i < all; i++) {
        const int64_t d = i % m->D;
        a[i] = m->content == ALL_NAN                                              ? NAN
               : m->content == ALL_ZERO || (m->content == HOLES && d + 1 == m->D) ? 0
                                                                                  : pow(0.5, (double)d + 1);
    }
    put(file, basis, "scree", 3, m->Ls, m->H, m->D, a);
    for (int64_t i = 0; i < all; i++)
        a[i] = m->content == ALL_NAN || m->content == ALL_ZERO ? NAN : 1 - pow(0.5, (double)(i % m->D) + 1);
    put(file, basis, "explained", 3, m->Ls, m->H, m->D, a);
    free(a);
    snprintf(group, sizeof group, "summary/%s", basis);
    static const char *const fractions[] = {"fraction_negative",
                                            "fraction_negative_lo",
                                            "fraction_negative_hi",
                                            "fraction_negative_token",
                                            "fraction_negative_token_lo",
                                            "fraction_negative_token_hi",
                                            "smallest_p"};
    const double values[] = {0.75, interval ? 0.5 : NAN, interval ? 0.9 : NAN, 0.25, NAN, NAN, interval ? 0.001 : 1};
    for (int i = 0; i < 7; i++) assert_ok(ag_h5_set_f64(file, group, fractions[i], values[i], &err), &err);
    static const char *const numbers[] = {"significant_negative", "significant_positive", "cells", "missing"};
    for (int i = 0; i < 4; i++) assert_ok(ag_h5_set_i64(file, group, numbers[i], 11 + i, &err), &err);
}

static const char *make_results(const char *folder, const struct made *m) {
    struct ag_error err = AG_ERROR_INIT;
    const char *path = test_path("%s/results.h5", folder);
    hid_t file;
    assert_ok(ag_h5_create(&file, path, &err), &err);
    static const char *const texts[][2] = {
        {"schema", GEOM_SCHEMA},
        {"architecture", "llama"},
        {"tap", "rope"},
        {"last_tap", "rope"},
        {"checkpoint_sha256", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
        {"prompts_sha256", "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"},
        {"version", "0.0 (test)"},
        {"bases", "prompt,haystack"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_ok(ag_h5_set_text(file, ".", texts[i][0], texts[i][1], &err), &err);
    assert_ok(ag_h5_set_text(file, ".", "model", m->model, &err), &err);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"P", m->P}, {"r", 2}, {"skip", 0}};
    for (int i = 0; i < 3; i++) assert_ok(ag_h5_set_i64(file, ".", numbers[i].name, numbers[i].value, &err), &err);
    int64_t *v = calloc((size_t)(m->Ls + m->P), sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < m->Ls; i++) v[i] = i;
    assert_ok(ag_h5_write(file, "layers", AG_H5_I64, 1, &m->Ls, v, &err), &err);
    for (int64_t i = 0; i < m->Ls; i++) v[i] = m->H;
    assert_ok(ag_h5_set(file, "layers", "Hk", AG_H5_I64, v, m->Ls, &err), &err);
    for (int64_t i = 0; i < m->Ls; i++) v[i] = m->D;
    assert_ok(ag_h5_set(file, "layers", "D", AG_H5_I64, v, m->Ls, &err), &err);
    for (int64_t i = 0; i < m->P; i++) v[i] = i / 2;
    assert_ok(ag_h5_write(file, "prompts/unit", AG_H5_I64, 1, &m->P, v, &err), &err);
    free(v);
    put_basis(file, m, "prompt", -0.05);
    put_basis(file, m, "haystack", 0.05);
    assert_ok(ag_h5_close(file, &err), &err);
    return path;
}

static const struct made ordinary = {3, 2, 8, 12, ORDINARY, "tiny attn_k"};

static void every_shape(void **state) {
    (void)state;
    static const struct made shapes[] = {
        {3, 2, 8, 12, ORDINARY, "ordinary"},
        {1, 1, 4, 1, ORDINARY, "one of each"},
        {1, 1, 1, 2, ORDINARY, "one dimension"},
        {4, 3, 8, 8, ALL_NAN, "nothing"},
        {4, 3, 8, 8, ALL_ZERO, "zero"},
        {4, 3, 8, 8, HUGE_VALUES, "huge"},
        {6, 3, 8, 8, HOLES, "holes"},
        {5, 1, 8, 8, HOLES,
         "a model whose name is far too long for the first line of any figure "
         "that has ever been printed, and goes on"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const char *folder = test_folder("plot_shapes");
        const char *results = make_results(folder, &shapes[i]);
        const bool all = i < 2; /* the other formats take the same way */
        plot_ok(results, folder, all ? "" : "--format svg");
        for (int f = 0; f < PLOT_FIGURES; f++) {
            size_t size;
            const char *name = plot_figures[f].name;
            if (all)
                assert_memory_equal(plot_slurp(test_path("%s/%s.png", folder, name), &size), "\x89PNG\r\n\x1a\n", 8);
            if (all) assert_memory_equal(plot_slurp(test_path("%s/%s.pdf", folder, name), &size), "%PDF-", 5);
            const char *svg = plot_slurp(test_path("%s/%s.svg", folder, name), &size);
            assert_non_null(strstr(svg, "</svg>"));
            if (shapes[i].content == ALL_NAN) assert_non_null(strstr(svg, "no finite value"));
        }
        assert_int_equal(plot_occurrences(plot_slurp(test_path("%s/rank.tsv", folder), &(size_t){0}), "\nprompt\t"),
                         3 * shapes[i].Ls * (shapes[i].H + 1));
    }
}

static void many_cells(void **state) {
    (void)state;
    const char *folder = test_folder("plot_many");
    const struct made m = {60, 64, 4, 8, ORDINARY, "many"};
    size_t size;
    const char *results = make_results(folder, &m);
    plot_ok(results, folder, "--format svg");
    const char *table = plot_slurp(test_path("%s/delta-mu.tsv", folder), &size);
    assert_int_equal(plot_occurrences(table, "\nprompt\t"), 60 * 64);
    assert_non_null(strstr(table, "# numbers\t0\n"));
    assert_non_null(
        strstr(plot_slurp(test_path("%s/spectra.tsv", folder), &size), "every 10th of 3840 heads is drawn"));
}

static void heatmap_table(void **state) {
    (void)state;
    const char *folder = test_folder("plot_table");
    size_t size;
    plot_ok(make_results(folder, &ordinary), folder, "--format svg --figure delta-mu");
    const char *table = plot_slurp(test_path("%s/delta-mu.tsv", folder), &size),
               *svg = plot_slurp(test_path("%s/delta-mu.svg", folder), &size);
    static const char *const lines[] = {
        "# model\ttiny attn_k\n",
        "# tap\trope\n",
        "# basis\tprompt\n",
        "# control\thaystack\n",
        "# r\t2\n",
        "# prompts\t12\n",
        "# units\t6\n",
        "# pooling\tprompt\n",
        "# checkpoint_sha256\t0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n",
        "# panel1_note1\t75 % of cells < 0 (95 %: 50 to 90)\n",
        "# panel1_note2\tq < 0.05: 11 negative, 12 positive\n",
        "# title\tΔμ by layer and KV head · tiny attn_k\n",
        "# range\t0.15\n",
        "\nbasis\tlayer\thead\tdelta_mu\tlo\thi\tp\tq\trow\tcolour\tmark\tstate\tlabel\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (strstr(table, lines[i]) == NULL) fail_msg("no '%s' in\n%s", lines[i], table);
    /* Cell (2, 1): every column. */
    const double value = wave(5, -0.05, 0.1);
    const char *row = strstr(table, "\nprompt\t2\t1\t");
    assert_non_null(row);
    double got[8];
    int mark;
    char name[16];
    assert_int_equal(sscanf(row, "\nprompt\t2\t1\t%lf\t%lf\t%lf\t%lf\t%lf\t%lf\t%lf\t%d\t%15s", &got[0], &got[1],
                            &got[2], &got[3], &got[4], &got[5], &got[6], &mark, name),
                     9);
    const double expected[7] = {value, value - 0.02, value + 0.02, 0.01, 0.01, 2, value / 0.15};
    for (int i = 0; i < 7; i++) assert_true(fabs(got[i] - expected[i]) <= 1e-8);
    assert_int_equal(mark, 1);
    assert_string_equal(name, "ok");
    /* On the picture: names as they are, Unicode, both panels, the range. */
    static const char *const shown[] = {"tiny attn_k", "Δμ by layer", "basis prompt", "basis haystack (control)",
                                        "±0.15",       "r = 2",       "12 prompts",   "pooling prompt"};
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++)
        if (strstr(svg, shown[i]) == NULL) fail_msg("the picture does not show '%s'", shown[i]);
}

static void counts_on_figure(void **state) {
    (void)state;
    const char *folder = test_folder("plot_counts");
    const struct made m = {6, 3, 8, 8, HOLES, "holes"};
    size_t size;
    const char *results = make_results(folder, &m);
    plot_ok(results, folder, "--format svg");
    /* 18 cells a panel: 6 missing; the 7.0 lies over four times the 95th percentile of the rest. */
    const char *svg = plot_slurp(test_path("%s/delta-mu.svg", folder), &size);
    assert_non_null(
        strstr(svg, "Of 36 cells: 12 missing (hatched), 0 infinite (grey, ∞), 2 beyond the range (end colour)."));
    assert_int_equal(plot_occurrences(plot_slurp(test_path("%s/delta-mu.tsv", folder), &size), "\tmissing\t"), 12);
    /* Roles 0 to 3 of 6 layers: layer * 6 + role is even for half of them. */
    assert_non_null(strstr(plot_slurp(test_path("%s/separation.svg", folder), &size), "Of 48 points: 24 missing"));
    assert_non_null(strstr(plot_slurp(test_path("%s/spectra.svg", folder), &size),
                           "Of 288 eigenvalues in the scree: 36 are 0 or below"));
    const struct made huge = {4, 3, 8, 8, HUGE_VALUES, "huge"};
    folder = test_folder("plot_counts");
    plot_ok(make_results(folder, &huge), folder, "--format svg");
    assert_non_null(strstr(plot_slurp(test_path("%s/delta-mu.svg", folder), &size), "4 infinite"));
    assert_non_null(
        strstr(plot_slurp(test_path("%s/separation.svg", folder), &size), "Of 32 points: 32 missing or not drawable"));
    /* A range that is given clips, and says so. */
    folder = test_folder("plot_counts");
    plot_ok(make_results(folder, &ordinary), folder, "--format svg --figure delta-mu --range 0.0001");
    svg = plot_slurp(test_path("%s/delta-mu.svg", folder), &size);
    assert_non_null(strstr(svg, "±0.0001 (given)"));
    assert_non_null(strstr(svg, "12 beyond the range"));
}

static void curves_table(void **state) {
    (void)state;
    const char *folder = test_folder("plot_curves");
    size_t size;
    plot_ok(make_results(folder, &ordinary), folder, "--format svg --figure separation,spectra,rank");
    const char *table = plot_slurp(test_path("%s/separation.tsv", folder), &size);
    assert_int_equal(plot_occurrences(table, "\nhaystack\t"), 3 * 5); /* the basis; four roles and the differences */
    const char *row = strstr(table, "\nhaystack\t2\tdistractor\t");
    double v[3];
    assert_non_null(row);
    assert_int_equal(sscanf(row, "\nhaystack\t2\tdistractor\t%lf\t%lf\t%lf\t0\n", &v[0], &v[1], &v[2]), 3);
    const double expected = wave(2 * ROLES + AG_ROLE_DISTRACTOR, 0.5, 0.1);
    assert_true(fabs(v[0] - expected) <= 1e-8 && fabs(v[1] - expected + 0.03) <= 1e-8 &&
                fabs(v[2] - expected - 0.03) <= 1e-8);
    /* Differences -0.04, 0, 0.04, each +- 0.03. */
    assert_non_null(strstr(table, "\nprompt\t0\tneedle-distractor\t-0.04\t-0.07\t-0.01\t-1\n"));
    assert_non_null(strstr(table, "\nprompt\t1\tneedle-distractor\t0\t-0.03\t0.03\t0\n"));
    assert_non_null(strstr(table, "\nprompt\t2\tneedle-distractor\t0.04\t0.01\t0.07\t1\n"));
    table = plot_slurp(test_path("%s/spectra.tsv", folder), &size);
    assert_non_null(strstr(table, "\nprompt\t1\tmean\t2\tNaN\t0.75\tNaN\n"));
    assert_non_null(strstr(table, "\nprompt\t1\t1\t3\t0.125\t0.875\t0.125\n"));
    table = plot_slurp(test_path("%s/rank.tsv", folder), &size);
    row = strstr(table, "\nprompt\t1\tmedian\tstable_rank\t");
    assert_non_null(row);
    assert_true(fabs(strtod(row + strlen("\nprompt\t1\tmedian\tstable_rank\t"), NULL) -
                     0.5 * (wave(2, 3, 0.5) + wave(3, 3, 0.5))) <= 1e-8);
}

static void pooling_and_basis(void **state) {
    (void)state;
    const char *folder = test_folder("plot_pooling");
    size_t size;
    const char *results = make_results(folder, &ordinary);
    plot_ok(results, folder, "--format svg --figure delta-mu --pooling token");
    const char *table = plot_slurp(test_path("%s/delta-mu.tsv", folder), &size);
    const char *row = strstr(table, "\nhaystack\t0\t1\t");
    assert_non_null(row);
    assert_true(fabs(strtod(row + strlen("\nhaystack\t0\t1\t"), NULL) - (wave(1, 0.05, 0.1) + 0.5)) <= 1e-8);
    assert_non_null(strstr(table, "# pooling\ttoken\n"));
    assert_int_equal(plot_occurrences(table, "\t1\tok\t"), 0); /* no test, no marks */
    plot_refused(2, test_path("%s -o %s/pooled --basis pooled", results, folder), "no basis 'pooled'",
                 "attgeo geometry");
    assert_int_equal(ag_path_kind(test_path("%s/pooled", folder)), AG_KIND_NONE);
}

static void redrawn_equal(void **state) {
    (void)state;
    const char *folder = test_folder("plot_again"), *other = test_folder("plot_other");
    size_t a, b;
    const char *results = make_results(folder, &ordinary);
    plot_ok(results, folder, "--format png,svg");
    plot_ok(results, other, "--format svg");
    for (int f = 0; f < PLOT_FIGURES; f++) {
        const char *name = plot_figures[f].name;
        const char *first = plot_slurp(test_path("%s/%s.svg", folder, name), &a);
        const char *second = plot_slurp(test_path("%s/%s.svg", other, name), &b);
        assert_int_equal(a, b);
        assert_memory_equal(first, second, a);
        /* The script alone, in the folder, without attgeo: the same bytes. */
        const char *picture = plot_slurp(test_path("%s/%s.png", folder, name), &a);
        assert_int_equal(unlink(test_path("%s/%s.png", folder, name)), 0);
        assert_int_equal(system(test_path("cd %s && gnuplot -d -c %s.gp && gnuplot -d -c %s.gp %s.tsv again.svg",
                                          folder, name, name, name)),
                         0);
        second = plot_slurp(test_path("%s/%s.png", folder, name), &b);
        assert_int_equal(a, b);
        assert_memory_equal(picture, second, a);
        second = plot_slurp(test_path("%s/again.svg", folder), &b);
        first = plot_slurp(test_path("%s/%s.svg", folder, name), &a);
        assert_int_equal(a, b);
        assert_memory_equal(first, second, a);
        /* The committed script, as it stands in the tree. */
        assert_int_equal(
            system(test_path("gnuplot -d -c plots/%s.gp %s/%s.tsv %s/tree.svg", name, folder, name, folder)), 0);
        second = plot_slurp(test_path("%s/tree.svg", folder), &b);
        assert_int_equal(a, b);
        assert_memory_equal(first, second, a);
    }
}

static void hostile_names(void **state) {
    (void)state;
    const char *folder = test_folder("plot_hostile");
    size_t size;
    const struct made m = {
        2, 2,        4,
        4, ORDINARY, "\"`touch build/test/plot_hostile/pwned`\" $(id)\t{/=90 x}\n# r\t99\nm_k^2 <&> \xff\xfe @x'"};
    plot_ok(make_results(folder, &m), folder, "--figure rank,delta-mu");
    assert_int_equal(ag_path_kind(test_path("%s/pwned", folder)), AG_KIND_NONE);
    const char *table = plot_slurp(test_path("%s/rank.tsv", folder), &size);
    assert_non_null(strstr(table, "# model\t'`touch build/test/plot_hostile/pwned`' $(id) {/=90 x} # r 99 m_k^2 <&> "
                                  "\xef\xbf\xbd\xef\xbf\xbd @x'\n"));
    assert_int_equal(plot_occurrences(table, "\n# r\t"), 1);
}

static void bad_inputs(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("plot_bad");
    const char *results = make_results(folder, &ordinary);
    hid_t file;
    plot_refused(2, results, "-o DIR", "no output");
    plot_refused(1, test_path("%s/none.h5 -o %s/out", folder, folder), "none.h5", "");
    plot_refused(1, test_path("Makefile -o %s/out", folder), "Makefile", "HDF5");
    plot_refused(2, test_path("%s -o %s/out --figure nonsense", results, folder), "--figure", "delta-mu");
    plot_refused(2, test_path("%s -o %s/out --format gif", results, folder), "--format", "pdf");
    plot_refused(2, test_path("%s -o Makefile", results), "Makefile", "folder");
    plot_refused(2, test_path("%s -o %s/out --range -1", results, folder), "--range", "");
    /* A dump, another schema, none. */
    const char *dump = test_path("%s/dump.h5", folder);
    assert_ok(ag_h5_create(&file, dump, &err), &err);
    assert_ok(ag_h5_close(file, &err), &err);
    plot_refused(1, test_path("%s -o %s/out", dump, folder), "dump.h5", "without a schema");
    static const char *const schemas[][2] = {{"attgeo-dump-1", "attgeo geometry"},
                                             {"attgeo-geometry-99", "attgeo-geometry-1"}};
    for (int i = 0; i < 2; i++) {
        assert_ok(ag_h5_create(&file, dump, &err), &err);
        assert_ok(ag_h5_set_text(file, ".", "schema", schemas[i][0], &err), &err);
        assert_ok(ag_h5_close(file, &err), &err);
        plot_refused(1, test_path("%s -o %s/out", dump, folder), schemas[i][0], schemas[i][1]);
    }
    /* Damaged: each object the figures need, missing or of another shape. */
    static const char *const needed[] = {"/summary/haystack", "/summary/prompt/delta_mu_prompt_q",
                                         "/summary/prompt/scree", "/layers", "/prompts/unit"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const char *damaged = make_results(folder, &ordinary);
        hid_t id = H5Fopen(damaged, H5F_ACC_RDWR, H5P_DEFAULT);
        assert_true(id >= 0 && H5Ldelete(id, needed[i], H5P_DEFAULT) >= 0 && H5Fclose(id) >= 0);
        plot_refused(1, test_path("%s -o %s/out", damaged, folder), "results.h5", needed[i] + 1);
    }
    const char *damaged = make_results(folder, &ordinary);
    const int64_t three = 3, order[3] = {0, 2, 1}, heads[3] = {2, 2, 2}, dims[3] = {8, 8, 8};
    hid_t id = H5Fopen(damaged, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(id >= 0 && H5Ldelete(id, "/layers", H5P_DEFAULT) >= 0);
    assert_ok(ag_h5_write(id, "layers", AG_H5_I64, 1, &three, order, &err), &err);
    assert_ok(ag_h5_set(id, "layers", "Hk", AG_H5_I64, heads, 3, &err), &err);
    assert_ok(ag_h5_set(id, "layers", "D", AG_H5_I64, dims, 3, &err), &err);
    assert_ok(ag_h5_close(id, &err), &err);
    plot_refused(1, test_path("%s -o %s/out", damaged, folder), "/layers", "ascending");
    damaged = make_results(folder, &ordinary);
    id = H5Fopen(damaged, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(id >= 0 && H5Ldelete(id, "/summary/prompt/scree", H5P_DEFAULT) >= 0);
    const int64_t small[3] = {3, 2, 7};
    static const double zeros[42];
    assert_ok(ag_h5_write(id, "summary/prompt/scree", AG_H5_F64, 3, small, zeros, &err), &err);
    assert_ok(ag_h5_close(id, &err), &err);
    plot_refused(1, test_path("%s -o %s/out", damaged, folder), "scree", "(3, 2, 8)");
    assert_int_equal(truncate(damaged, 3000), 0);
    plot_refused(1, test_path("%s -o %s/out", damaged, folder), "results.h5", "");
    assert_int_equal(ag_path_kind(test_path("%s/out", folder)), AG_KIND_NONE); /* nothing was made for any of them */
}

static void nothing_replaced(void **state) {
    (void)state;
    const char *folder = test_folder("plot_force");
    size_t size;
    const char *results = make_results(folder, &ordinary), *kept = test_path("%s/rank.gp", folder);
    FILE *file = fopen(kept, "w");
    assert_non_null(file);
    fputs("mine", file);
    fclose(file);
    plot_refused(1, test_path("%s -o %s", results, folder), "rank.gp", "--force");
    assert_string_equal(plot_slurp(kept, &size), "mine");
    assert_int_equal(ag_path_kind(test_path("%s/delta-mu.tsv", folder)), AG_KIND_NONE);
    plot_ok(results, folder, "--figure delta-mu --format svg"); /* not in the way of this one */
    plot_ok(results, folder, "--force --format svg");
    assert_non_null(strstr(plot_slurp(kept, &size), "gnuplot -c"));
}

/* Programs that stand in for gnuplot. */
static void false_gnuplot(const char *folder, const char *script) {
    const char *path = test_path("%s/gnuplot", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\n%s\n", script);
    fclose(file);
    assert_int_equal(chmod(path, 0755), 0);
}

static void run_without(const char *folder, const char *results, const char *piece, const char *other) {
    const char *program = getenv("ATTGEO");
    const char *command = test_path("PATH=$PWD/%s %s plot %s -o %s/out >%s/said 2>&1", folder,
                                    program != NULL ? program : "build/attgeo", results, folder, folder);
    size_t size;
    const int code = system(command);
    const char *said = plot_slurp(test_path("%s/said", folder), &size);
    assert_int_equal(WEXITSTATUS(code), 1);
    if (strstr(said, piece) == NULL || strstr(said, other) == NULL)
        fail_msg("'%s' contains not both '%s' and '%s'", said, piece, other);
    assert_int_equal(ag_path_kind(test_path("%s/out", folder)), AG_KIND_NONE); /* not even the folder stays */
}

static void gnuplot_missing(void **state) {
    (void)state;
    const char *folder = test_folder("plot_missing"), *results = make_results(folder, &ordinary);
    run_without(folder, results, "gnuplot", "gnuplot-nox");
    false_gnuplot(folder, "echo 'attgeo 4.6  pngcairo svg pdfcairo '");
    run_without(folder, results, "4.6", "5.4");
    false_gnuplot(folder, "echo 'attgeo 5.4  pngcairo svg '");
    run_without(folder, results, "pdfcairo", "--format");
    false_gnuplot(folder, "echo no such thing; exit 3");
    run_without(folder, results, "exit 3", "no such thing");
    /* Good at first, then it fails, dies or makes nothing. */
#define ASKED "case \"$*\" in *GPVAL*) echo 'attgeo 5.4  pngcairo svg pdfcairo '; exit 0;; esac\n"
    false_gnuplot(folder, ASKED "echo half >\"$5\"; echo 'line 7: cannot'; exit 1");
    run_without(folder, results, "delta-mu.gp: exit 1", "line 7: cannot");
    false_gnuplot(folder, ASKED "kill -9 $$");
    run_without(folder, results, "137", "it said nothing");
    false_gnuplot(folder, ASKED ": >\"$5\"");
    run_without(folder, results, "delta-mu.png", "cut short");
    false_gnuplot(folder, ASKED "printf '\\211PNG and no more' >\"$5\"");
    run_without(folder, results, "delta-mu.png", "cut short");
}

/* Tables that gnuplot itself must refuse: exit 1, and a word that helps. */
static void scripts_refuse(void **state) {
    (void)state;
    const char *folder = test_folder("plot_scripts");
    size_t size;
    plot_ok(make_results(folder, &ordinary), folder, "--format svg");
    static const char *const calls[][2] = {
        {"delta-mu.gp rank.tsv a.svg", "no table of the figure delta-mu"},
        {"delta-mu.gp none.tsv a.svg", "none.tsv"},
        {"rank.gp rank.tsv a.gif", ".png, .svg or .pdf"},
    };
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(system(test_path("cd %s && gnuplot -d -c %s >said 2>&1", folder, calls[i][0])), 0);
        if (strstr(plot_slurp(test_path("%s/said", folder), &size), calls[i][1]) == NULL)
            fail_msg("%s: no '%s'", calls[i][0], calls[i][1]);
    }
}

static void helpers(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct ag_arena *arena = ag_arena_new("test");
    char label[64];
    assert_string_equal(plot_label(label, -0.004, 2), "0.00");
    assert_string_equal(plot_label(label, -0.006, 2), "−0.01");
    assert_string_equal(plot_label(label, 12.34, 1), "12.3");
    assert_string_equal(plot_text("abcdefghijkl", 7, arena, &err), "abcd…kl");
    assert_string_equal(plot_text("Δμ\t\"x\"", 0, arena, &err), "Δμ 'x'");
    assert_string_equal(plot_text("", 5, arena, &err), "");
    for (double x = 1e-300; x < 1e300; x *= 7.3)
        assert_true(plot_round_up(x) >= x * (1 - 1e-11) && plot_round_up(x) <= x * 1.34);
    const double cases[][2] = {{0, 1}, {0.2, 0.8}, {0.5, 0.5}, {0, 0}, {-3, 1e9}, {1e-9, 2e-9}, {-1e30, 1e30}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct plot_axis axis = plot_nice_axis(cases[i][0], cases[i][1], true);
        assert_true(axis.min <= cases[i][0] && axis.max >= cases[i][1] && axis.min < axis.max && axis.step > 0);
        assert_true((axis.max - axis.min) / axis.step <= 12);
    }
    const struct plot_axis none = plot_nice_axis(INFINITY, -INFINITY, true);
    assert_true(none.min == 0 && none.max == 1);
    assert_false(plot_drawable(NAN) || plot_drawable(INFINITY) || plot_drawable(1e31));
    ag_arena_free(arena);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_shape),      cmocka_unit_test(many_cells),      cmocka_unit_test(heatmap_table),
    cmocka_unit_test(counts_on_figure), cmocka_unit_test(curves_table),    cmocka_unit_test(pooling_and_basis),
    cmocka_unit_test(redrawn_equal),    cmocka_unit_test(hostile_names),   cmocka_unit_test(bad_inputs),
    cmocka_unit_test(nothing_replaced), cmocka_unit_test(gnuplot_missing), cmocka_unit_test(scripts_refuse),
    cmocka_unit_test(helpers),
};
TEST_GROUP(plot, "figures: tables, pictures, degenerate data, gnuplot missing or failing", tests)

/* The recipe of papers/ccq on the sample, and its numbers against the results file they come from. */
static void recipe(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("plot_recipe"), *program = getenv("ATTGEO");
    size_t size;
    hid_t file;
    assert_int_equal(system(test_path("sh papers/ccq/figures.sh %s sample %s >%s/said 2>&1",
                                      program != NULL ? program : "build/attgeo", folder, folder)),
                     0);
    const char *verdicts = plot_slurp(test_path("%s/verdicts.tsv", folder), &size);
    static const char *const taps[] = {"rope", "norm"}, *const bases[] = {"prompt", "haystack"};
    for (int t = 0; t < 2; t++) {
        assert_ok(ag_h5_open(&file, test_path("%s/%s.h5", folder, taps[t]), &err), &err);
        for (int b = 0; b < 2; b++) {
            char start[64], group[64];
            double fraction, negative, mean;
            int64_t significant;
            int cells, missing, marked;
            snprintf(group, sizeof group, "summary/%s", bases[b]);
            assert_ok(ag_h5_get_f64(&fraction, file, group, "fraction_negative", &err), &err);
            assert_ok(ag_h5_get_i64(&significant, file, group, "significant_negative", &err), &err);
            snprintf(start, sizeof start, "\n%s\t%s\tprompt\t", taps[t], bases[b]);
            const char *row = strstr(verdicts, start);
            assert_non_null(row);
            assert_int_equal(
                sscanf(row + strlen(start), "%d\t%d\t%lf\t%lf\t%d", &cells, &missing, &negative, &mean, &marked), 5);
            assert_int_equal(cells, 16);
            assert_int_equal(missing, 0);
            assert_true(fabs(negative - 100 * fraction) <= 0.051);
            assert_int_equal(marked, significant);
        }
        assert_ok(ag_h5_close(file, &err), &err);
        plot_slurp(test_path("%s/%s/separation.pdf", folder, taps[t]), &size);
        plot_slurp(test_path("%s/%s/token/delta-mu.pdf", folder, taps[t]), &size);
    }
}

static const struct CMUnitTest long_tests[] = {cmocka_unit_test(recipe)};
TEST_GROUP_NEED(plot_recipe, "papers/ccq: the recipe on the sample, its numbers against the results", long_tests,
                TEST_LONG)
