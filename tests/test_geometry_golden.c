/* tests/test_geometry_golden.c: reducer and fold against tests/golden/geometry.h5, which numpy made from MATH.md; the
 * report and the tables. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/h5.h"
#include "geometry/reducer.h"
#include "geometry/report.h"
#include "kernels/kernels.h"
#include "tests/test.h"

#define LAYERS 2

struct golden {
    struct ag_arena *arena;
    hid_t file;
    int64_t P, r, skip, Hk[LAYERS], D[LAYERS];
    const int64_t *twin, *unit, *offsets;
    const uint8_t *role;
    const float *keys[LAYERS];
    struct ag_layer_shape shapes[LAYERS];
    struct ag_tokens tokens;
    struct ag_source source;
    const char *ids[64];
    char id_text[64][8];
};

static const bool both[LAYERS] = {true, true};

static struct golden *golden_open(void) {
    struct ag_error err = AG_ERROR_INIT;
    struct ag_arena *arena = ag_arena_new("golden");
    struct golden *g = AG_ZEROS(arena, struct golden, 1, &err);
    void *data;
    int64_t dims[3] = {-1};
    g->arena = arena;
    assert_ok(ag_h5_open(&g->file, "tests/golden/geometry.h5", &err), &err);
    assert_ok(ag_h5_get_i64(&g->r, g->file, ".", "r", &err), &err);
    assert_ok(ag_h5_get_i64(&g->skip, g->file, ".", "skip", &err), &err);
    assert_ok(ag_h5_read(&data, g->file, "twin", AG_H5_I64, 1, dims, arena, &err), &err);
    g->twin = data;
    g->P = dims[0];
    assert_true(g->P > 0 && g->P <= 64);
    assert_ok(ag_h5_read(&data, g->file, "unit", AG_H5_I64, 1, dims, arena, &err), &err);
    g->unit = data;
    dims[0] = g->P + 1;
    assert_ok(ag_h5_read(&data, g->file, "offsets", AG_H5_I64, 1, dims, arena, &err), &err);
    g->offsets = data;
    dims[0] = g->offsets[g->P];
    assert_ok(ag_h5_read(&data, g->file, "role", AG_H5_U8, 1, dims, arena, &err), &err);
    g->role = data;
    for (int l = 0; l < LAYERS; l++) {
        char name[32];
        int64_t shape[3] = {g->offsets[g->P], -1, -1};
        snprintf(name, sizeof name, "keys/%d", l);
        assert_ok(ag_h5_read(&data, g->file, name, AG_H5_F32, 3, shape, arena, &err), &err);
        g->keys[l] = data;
        g->Hk[l] = shape[1];
        g->D[l] = shape[2];
        g->shapes[l] = (struct ag_layer_shape){
            .kind = AG_LAYER_SOFTMAX, .Hq = shape[1], .Hk = shape[1], .D = shape[2], .scale = 1};
    }
    for (int64_t p = 0; p < g->P; p++) {
        snprintf(g->id_text[p], sizeof g->id_text[p], "p%d", (int)p);
        g->ids[p] = g->id_text[p];
    }
    g->tokens = (struct ag_tokens){
        .P = g->P, .T = g->offsets[g->P], .offsets = g->offsets, .role = g->role, .twin = g->twin, .prompt_id = g->ids};
    g->source = (struct ag_source){.model = "golden_model",
                                   .prompts_sha256 = "ab",
                                   .command_line = "a\nb",
                                   .L = LAYERS,
                                   .layers = g->shapes,
                                   .selected = both,
                                   .tap = AG_TAP_ROPE,
                                   .last_tap = AG_TAP_ROPE,
                                   .tokens = &g->tokens};
    return g;
}

static void golden_close(struct golden *g) {
    H5Fclose(g->file);
    ag_arena_free(g->arena);
}

static struct ag_reducer *golden_reduce(const struct golden *g, enum ag_backend backend, const char *path) {
    struct ag_error err = AG_ERROR_INIT;
    const struct kern_ops *ops;
    struct ag_reducer *reducer;
    const struct geom_options options = {g->r, g->skip, 1, 10000, true};
    assert_ok(kern_backend(&ops, backend, &err), &err);
    assert_ok(geom_reducer_new(&reducer, &options, ops, NULL, &err), &err);
    assert_ok(reducer->class_->begin(reducer, &g->source, &err), &err);
    for (int pass = 0; pass < 2; pass++) {
        for (int l = 0; l < LAYERS; l++) {
            struct ag_block blocks[64];
            for (int64_t p = 0; p < g->P; p++)
                blocks[p] = (struct ag_block){
                    .layer = l,
                    .prompt = p,
                    .tap = AG_TAP_ROPE,
                    .shape = &g->shapes[l],
                    .T = g->offsets[p + 1] - g->offsets[p],
                    .role = g->role + g->offsets[p],
                    .keys = {g->keys[l] + g->offsets[p] * g->Hk[l] * g->D[l], g->D[l], g->Hk[l] * g->D[l]}};
            assert_ok(reducer->class_->reduce(reducer, blocks, g->P, &err), &err);
        }
        if (pass == 0) assert_ok(geom_reducer_second_pass(reducer, &err), &err);
    }
    assert_ok(reducer->class_->finish(reducer, path, true, &err), &err);
    return reducer;
}

/* A dataset of the golden file as doubles; n elements. */
static const double *golden_data(const struct golden *g, int64_t n, const char *format, ...) {
    struct ag_error err = AG_ERROR_INIT;
    char name[128];
    int rank;
    int64_t dims[AG_H5_MAX_RANK], size = 1;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    assert_ok(ag_h5_shape(&rank, dims, g->file, name, &err), &err);
    for (int i = 0; i < rank; i++) size *= dims[i];
    assert_int_equal(size, n);
    double *data = AG_NEW(g->arena, double, n, &err);
    hid_t set = H5Dopen2(g->file, name, H5P_DEFAULT);
    assert_true(H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0); /* integers too */
    H5Dclose(set);
    return data;
}

static void compare(const double *got, const double *expected, int64_t n, double tolerance, const char *name) {
    for (int64_t i = 0; i < n; i++) {
        if (isnan(expected[i]) && isnan(got[i])) continue;
        const double error = fabs(got[i] - expected[i]);
        if (!(error <= tolerance * fmax(1, fabs(expected[i]))))
            fail_msg("%s[%d]: %.17g, numpy says %.17g", name, (int)i, got[i], expected[i]);
    }
}

static void compare_counts(const int64_t *got, const double *expected, int64_t n, const char *name) {
    for (int64_t i = 0; i < n; i++)
        if ((double)got[i] != expected[i])
            fail_msg("%s[%d]: %d, numpy says %g", name, (int)i, (int)got[i], expected[i]);
}

static void test_golden(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s/x.h5", test_folder("geometry-golden"));
    const enum ag_backend backends[2] = {AG_BACKEND_CPU, AG_BACKEND_REF};
    for (int k = 0; k < 2; k++) {
        struct golden *g = golden_open();
        struct ag_reducer *reducer = golden_reduce(g, backends[k], path);
        const struct geom_results *results = geom_reducer_results(reducer);
        struct ag_error err = AG_ERROR_INIT;
        assert_memory_equal(results->from.unit, g->unit, (size_t)g->P * sizeof(int64_t));
        for (int b = 0; b < GEOM_BASIS_COUNT; b++) {
            const char *basis = geom_basis_names[b];
            for (int l = 0; l < LAYERS; l++) {
                const struct geom_records *records = &results->records[b][l];
                const int64_t n = g->P * g->Hk[l];
                const struct {
                    const char *name;
                    const double *data;
                    int64_t inner;
                } fields[] = {{"spectrum", records->spectrum, g->D[l]},
                              {"mu2", records->mu2, 1},
                              {"ev_r", records->ev_r, 1},
                              {"gap", records->gap, 1},
                              {"align_sum", records->align_sum, AG_ROLE_COUNT}};
                for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
                    compare(fields[i].data,
                            golden_data(g, n * fields[i].inner, "records/%d/%s/%s", l, basis, fields[i].name),
                            n * fields[i].inner, 1e-10, fields[i].name);
                compare_counts(records->n, golden_data(g, n, "records/%d/%s/n", l, basis), n, "n");
                compare_counts(records->align_count,
                               golden_data(g, n * AG_ROLE_COUNT, "records/%d/%s/align_count", l, basis),
                               n * AG_ROLE_COUNT, "align_count");
            }
            const struct geom_summary *s = results->summary[b];
            const int64_t C = LAYERS * results->H;
            const struct {
                const char *name;
                const double *data;
                double tolerance;
            } cells[] = {
                {"delta_mu_prompt", s->delta_prompt, 1e-11},
                {"delta_mu_prompt_p", s->p, 0},
                {"delta_mu_prompt_q", s->q, 1e-15},
                {"delta_mu_token", s->delta_token, 1e-11},
                {"ev_r", s->ev_r, 1e-11},
                {"gap", s->gap, 1e-10},
                {"effective_rank", s->effective_rank, 1e-11},
                {"participation_ratio", s->participation_ratio, 1e-11},
                {"stable_rank", s->stable_rank, 1e-11},
                {"numerical_rank", s->numerical_rank, 0},
                {"condition", s->condition, 1e-9},
                {"mean_dominance", s->mean_dominance, 1e-11},
                {"trace", s->trace, 1e-11},
            };
            for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
                compare(cells[i].data, golden_data(g, C, "summary/%s/%s", basis, cells[i].name), C, cells[i].tolerance,
                        cells[i].name);
            compare(s->layer_align, golden_data(g, LAYERS * AG_ROLE_COUNT, "summary/%s/layer_align", basis),
                    LAYERS * AG_ROLE_COUNT, 1e-11, "layer_align");
            compare(s->layer_delta, golden_data(g, LAYERS, "summary/%s/layer_delta", basis), LAYERS, 1e-11,
                    "layer_delta");
            const double *ends[2] = {s->delta_prompt_lo, s->delta_prompt_hi};
            for (int end = 0; end < 2; end++) {
                const double *least = golden_data(g, C, "summary/%s/%s_least", basis, end ? "hi" : "lo");
                const double *most = golden_data(g, C, "summary/%s/%s_most", basis, end ? "hi" : "lo");
                for (int64_t c = 0; c < C; c++)
                    assert_true(isnan(least[c]) ? isnan(ends[end][c])
                                                : ends[end][c] >= least[c] - 1e-9 && ends[end][c] <= most[c] + 1e-9);
            }
            const double *units = golden_data(g, C, "summary/%s/units", basis);
            for (int64_t c = 0; c < C; c++)
                assert_true(isnan(units[c]) ? s->units[c] == 0 : (double)s->units[c] == units[c]);
            char group[64];
            double fraction;
            snprintf(group, sizeof group, "summary/%s", basis);
            assert_ok(ag_h5_get_f64(&fraction, g->file, group, "fraction_negative", &err), &err);
            compare(&s->fraction_negative, &fraction, 1, 1e-15, "fraction_negative");
        }
        reducer->class_->free(reducer);
        golden_close(g);
    }
}

static void test_report(void **state) {
    (void)state;
    char path[300];
    struct ag_error err = AG_ERROR_INIT;
    struct ag_buf text = {0};
    snprintf(path, sizeof path, "%s/x.h5", test_folder("geometry-report"));
    struct golden *g = golden_open();
    struct ag_reducer *reducer = golden_reduce(g, AG_BACKEND_CPU, path);
    assert_ok(geom_report(&text, geom_reducer_results(reducer), &err), &err);
    static const char *const expected[] = {
        "golden_model",         "rope tap",        "5 cells",        "8 prompts",
        "6 independent units",  "80 % [",          "60 % [",         "haystack basis, the control",
        "smallest reachable p", "Lowest Delta-mu", "layer 1 head 1", "Reading: "};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        if (!strstr(text.data, expected[i])) fail_msg("no \"%s\" in:\n%s", expected[i], text.data);
    int lines = 0;
    for (const char *c = text.data; *c; c++) lines += *c == '\n';
    assert_in_range(lines, 5, 7);
    ag_buf_free(&text);
    reducer->class_->free(reducer);
    golden_close(g);
}

/* Prompts without needles: said, and no nan is printed as a finding about Delta-mu. */
static void test_report_without_needles(void **state) {
    (void)state;
    char path[300];
    struct ag_error err = AG_ERROR_INIT;
    struct ag_buf text = {0};
    snprintf(path, sizeof path, "%s/x.h5", test_folder("geometry-report-none"));
    struct golden *g = golden_open();
    uint8_t *role = AG_ZEROS(g->arena, uint8_t, g->offsets[g->P], &err);
    g->role = g->tokens.role = role;
    struct ag_reducer *reducer = golden_reduce(g, AG_BACKEND_CPU, path);
    assert_ok(geom_report(&text, geom_reducer_results(reducer), &err), &err);
    assert_non_null(strstr(text.data, "missing everywhere"));
    assert_null(strstr(text.data, " nan"));
    assert_null(strstr(text.data, "Reading"));
    ag_buf_free(&text);
    reducer->class_->free(reducer);
    golden_close(g);
}

static int fields_of(const char *line) {
    int n = 1;
    for (; *line && *line != '\n'; line++) n += *line == ',';
    return n;
}

static void test_tables(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("geometry-tables");
    char path[500], inner[400];
    snprintf(path, sizeof path, "%s/x.h5", folder);
    snprintf(inner, sizeof inner, "%s/deep/tables", folder);
    struct golden *g = golden_open();
    struct ag_reducer *reducer = golden_reduce(g, AG_BACKEND_CPU, path);
    const struct geom_results *results = geom_reducer_results(reducer);
    assert_ok(geom_tables_check(inner, false, &err), &err);
    assert_ok(geom_tables(results, inner, false, &err), &err);
    static const char *const names[3] = {"cells.csv", "layers.csv", "spectra.csv"};
    const int rows[3] = {3 * 5, 3 * LAYERS * (AG_ROLE_COUNT + 1), 3 * (2 * 12 + 3 * 9)};
    for (int i = 0; i < 3; i++) {
        const char *text;
        size_t size;
        int lines = 0, columns = 0;
        snprintf(path, sizeof path, "%s/%s", inner, names[i]);
        assert_ok(ag_file_text(&text, &size, path, 1 << 20, g->arena, &err), &err);
        for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
            if (*line == '#') continue;
            if (columns == 0) columns = fields_of(line);
            assert_int_equal(fields_of(line), columns);
            lines++;
        }
        assert_int_equal(lines, rows[i] + 1);
        if (i > 0) continue;
        const char *first = strstr(text, "\nprompt,0,0,12,");
        assert_non_null(first);
        double units, delta;
        assert_int_equal(sscanf(first, "\nprompt,0,0,12,%lf,%lf", &units, &delta), 2);
        assert_true(fabs(delta - results->summary[0]->delta_prompt[0]) <= 1e-9);
    }
    test_refused(geom_tables_check(inner, false, &err), AG_E_IO, &err, "cells.csv", "--force", NULL);
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(geom_tables(results, inner, false, &err), AG_E_IO, &err, "cells.csv", NULL);
    err = (struct ag_error)AG_ERROR_INIT;
    assert_ok(geom_tables(results, inner, true, &err), &err);
    test_refused(geom_tables_check(path, true, &err), AG_E_IO, &err, "folder", NULL);
    reducer->class_->free(reducer);
    golden_close(g);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_golden),
    cmocka_unit_test(test_report),
    cmocka_unit_test(test_report_without_needles),
    cmocka_unit_test(test_tables),
};
TEST_GROUP(geometry_golden, "geometry against numpy, the report, the tables", tests)
