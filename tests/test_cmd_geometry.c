/* tests/test_cmd_geometry.c: attgeo geometry end to end on the sample checkpoint: the same bits from a dump and on the
 * fly, for any number of threads; the summary; what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "geometry/results.h"
#include "geometry/results_table.h"
#include "tests/test.h"

/* Two twin pairs of the sample's prompts, and a dump of them: made once. */
static const char *dump_path(void) {
    static const char *path;
    if (path) return path;
    const char *folder = test_folder("cmd-geometry");
    char command[700];
    struct ag_buf err = {0};
    snprintf(command, sizeof command, "head -n 4 data/sample/prompts.jsonl > %s/p.jsonl", folder);
    assert_int_equal(system(command), 0);
    if (test_cli(NULL, &err, "probe data/sample/softmax %s/p.jsonl --taps proj,rope -o %s/d.h5", folder, folder) != 0)
        fail_msg("%s", err.data);
    ag_buf_free(&err);
    path = test_path("%s/d.h5", folder);
    return path;
}

static void same_files(const char *a, const char *b) {
    struct geom_results *x, *y;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(geom_results_read(&x, a, &err), &err);
    assert_ok(geom_results_read(&y, b, &err), &err);
    assert_int_equal(x->from.Ls, 4);
    for (int k = 0; k < GEOM_BASIS_COUNT; k++) {
        assert_int_equal(x->basis[k], y->basis[k]);
        for (int64_t l = 0; x->basis[k] && l <= x->from.Ls; l++) { /* the records of all layers, then the summary */
            const bool records = l < x->from.Ls;
            const struct geom_dataset *sets = records ? geom_record_datasets : geom_summary_datasets;
            const char *from = records ? (const char *)&x->records[k][l] : (const char *)x->summary[k];
            const char *to = records ? (const char *)&y->records[k][l] : (const char *)y->summary[k];
            for (int i = 0; i < (records ? geom_n_record_datasets : geom_n_summary_datasets); i++) {
                int64_t dims[AG_H5_MAX_RANK], size = 1;
                const void *p, *q;
                for (int d = geom_dims(dims, &sets[i], x, records ? l : 0) - 1; d >= 0; d--) size *= dims[d];
                memcpy(&p, from + sets[i].offset, sizeof p);
                memcpy(&q, to + sets[i].offset, sizeof q);
                if (memcmp(p, q, (size_t)size * 8) != 0) fail_msg("%s differs in %s and %s", sets[i].name, a, b);
            }
        }
    }
    geom_results_free(x);
    geom_results_free(y);
}

static void test_same_bits(void **state) {
    (void)state;
    const char *dump = dump_path(), *folder = "build/test/cmd-geometry";
    struct ag_buf out = {0}, err = {0}, fly = {0};
    assert_int_equal(
        test_cli(&out, &err, "geometry %s -o %s/a.h5 --threads 1 --basis prompt,haystack,pooled -q", dump, folder), 0);
    assert_int_equal(err.size, 0);
    assert_int_equal(test_cli(NULL, NULL, "geometry %s -o %s/b.h5 --threads 3 --basis pooled", dump, folder), 0);
    assert_int_equal(
        test_cli(&fly, NULL,
                 "probe data/sample/softmax %s/p.jsonl --reduce geometry --basis pooled --threads 2 -o %s/c.h5", folder,
                 folder),
        0);
    char a[300], b[300];
    snprintf(a, sizeof a, "%s/a.h5", folder);
    for (int i = 0; i < 2; i++) {
        snprintf(b, sizeof b, "%s/%c.h5", folder, 'b' + i);
        same_files(a, b);
    }
    /* the summary is the same text after what probe says itself */
    assert_non_null(strstr(out.data, "independent units"));
    assert_non_null(strstr(fly.data, out.data));
    assert_non_null(strstr(out.data, "haystack basis, the control"));
    assert_non_null(strstr(out.data, "no cell can pass 0.05"));
    assert_non_null(strstr(out.data, "Reading: undecided: too few independent units"));
    ag_buf_free(&out);
    ag_buf_free(&err);
    ag_buf_free(&fly);
}

static void test_options(void **state) {
    (void)state;
    const char *dump = dump_path(), *folder = "build/test/cmd-geometry";
    struct geom_results *g;
    struct ag_error err = AG_ERROR_INIT;
    char path[300];
    assert_int_equal(
        test_cli(NULL, NULL,
                 "geometry %s -o %s/o.h5 --tap proj --layers 1,3 -r 5 --skip 7 --seed 9 --draws 200 --csv %s/csv "
                 "--backend ref",
                 dump, folder, folder),
        0);
    snprintf(path, sizeof path, "%s/o.h5", folder);
    assert_ok(geom_results_read(&g, path, &err), &err);
    assert_int_equal(g->from.Ls, 2);
    assert_int_equal(g->from.layer[1], 3);
    assert_int_equal(g->r, 5);
    assert_int_equal(g->skip, 7);
    assert_int_equal(g->draws, 200);
    assert_int_equal(g->resample_seed, 9);
    assert_int_equal(g->from.tap, AG_TAP_PROJ);
    assert_int_equal(g->from.last_tap, AG_TAP_ROPE);
    assert_non_null(strstr(g->from.command, "--skip 7"));
    assert_string_equal(g->from.dump, dump);
    assert_int_equal(strlen(g->from.checkpoint_sha256), 64);
    geom_results_free(g);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"cells", "layers", "spectra"};
        snprintf(path, sizeof path, "%s/csv/%s.csv", folder, names[i]);
        assert_int_equal(access(path, R_OK), 0);
    }
}

static void test_refused_commands(void **state) {
    (void)state;
    const char *dump = dump_path();
    assert_int_equal(test_cli(NULL, NULL, "geometry %s -o build/test/cmd-geometry/exists.h5", dump), 0);
    static const struct {
        int code;
        const char *arguments, *expected;
    } cases[] = {
        {2, "%s", "-o is missing"},
        {2, "", "DUMP.h5"},
        {2, "%s -o %s --force", "is the input"},
        {2, "%s -o build/test/cmd-geometry/x.h5 -r 32", "32 dimensions"},
        {2, "%s -o build/test/cmd-geometry/x.h5 -r 0", "-r"},
        {2, "%s -o build/test/cmd-geometry/x.h5 --skip -1", "--skip"},
        {2, "%s -o build/test/cmd-geometry/x.h5 --layers 2-9", "--layers"},
        {2, "%s -o build/test/cmd-geometry/x.h5 --basis needle", "--basis"},
        {2, "%s -o build/test/cmd-geometry/x.h5 --tap norm", "norm"},
        {1, "%s -o build/test/cmd-geometry/exists.h5", "exists"},
        {1, "%s -o build/test/cmd-geometry/no/such/x.h5", "no/such"},
        {1, "%s -o build/test/cmd-geometry/x.h5 --csv %s", "is no folder"},
        {1, "build/test/cmd-geometry/exists.h5 -o build/test/cmd-geometry/x.h5", "attgeo-geometry-1"},
        {1, "build/test/cmd-geometry/none.h5 -o build/test/cmd-geometry/x.h5", "none.h5"},
        {1, "build/test/cmd-geometry/p.jsonl -o build/test/cmd-geometry/x.h5", "p.jsonl"},
        {1, "build/test/cmd-geometry -o build/test/cmd-geometry/x.h5", "build/test/cmd-geometry"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ag_buf err = {0};
        char arguments[900];
        snprintf(arguments, sizeof arguments, cases[i].arguments, dump, dump); /* at most two %s each */
        const int code = test_cli(NULL, &err, "geometry %s", arguments);
        if (code != cases[i].code) fail_msg("geometry %s: exit %d, message: %s", arguments, code, err.data);
        if (!err.data || !strstr(err.data, cases[i].expected))
            fail_msg("geometry %s: no \"%s\" in: %s", arguments, cases[i].expected, err.data ? err.data : "nothing");
        assert_int_equal(access("build/test/cmd-geometry/x.h5", F_OK), -1);
        ag_buf_free(&err);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_same_bits),
    cmocka_unit_test(test_options),
    cmocka_unit_test(test_refused_commands),
};
TEST_GROUP(cmd_geometry, "attgeo geometry end to end", tests)
