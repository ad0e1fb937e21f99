/* tests/test_cmd_taylor.c: attgeo taylor end to end on the sample checkpoint: the same bits from a dump and on the fly, alone
 * or beside geometry, for any number of threads; the report; what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "taylor/results.h"
#include "tests/test.h"

#define FOLDER "build/test/cmd-taylor"

/* Two twin pairs of the sample's prompts, and dumps of them: made once. */
static const char *dump_path(void) {
    static const char *path;
    if (path) return path;
    struct ag_buf err = {0};
    test_folder("cmd-taylor");
    assert_int_equal(system("head -n 4 data/sample/prompts.jsonl > " FOLDER "/p.jsonl"), 0);
    if (test_cli(NULL, &err, "probe data/sample/softmax %s/p.jsonl --taps proj,rope -o %s/d.h5", FOLDER, FOLDER) != 0)
        fail_msg("%s", err.data);
    ag_buf_free(&err);
    return path = FOLDER "/d.h5";
}

static struct taylor_results *read_results(const char *path) {
    struct taylor_results *r;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(taylor_results_read(&r, path, &err), &err);
    return r;
}

static void same(const char *what, const void *a, const void *b, int64_t bytes, const char *file) {
    if (memcmp(a, b, (size_t)bytes) != 0) fail_msg("%s differs in %s", what, file);
}

/* Everything but the provenance, bit by bit (rows come from zeroed memory, so padding is equal too). */
static void same_results(const char *a, const char *b) {
    struct taylor_results *x = read_results(a), *y = read_results(b);
    const int64_t Ls = x->from.Ls, P = x->from.P, H = x->H, Q = TAYLOR_QUANTITIES * TAYLOR_QUANTILES;
    assert_int_equal(Ls, y->from.Ls);
    assert_int_equal(x->n_samples, y->n_samples);
    assert_int_equal(H, y->H);
    for (int64_t l = 0; l < Ls; l++) {
        const int64_t heads = x->Hq[l];
        same("counts", x->records[l].counts, y->records[l].counts, P * heads * TAYLOR_COUNTS * 8, b);
        same("medians", x->records[l].medians, y->records[l].medians, P * heads * TAYLOR_MEDIANS * 8, b);
        same("histograms", x->records[l].histograms, y->records[l].histograms,
             heads * TAYLOR_QUANTITIES * 2 * TAYLOR_BINS * 4, b);
        same("density", x->records[l].density, y->records[l].density, TAYLOR_DENSITY * TAYLOR_DENSITY * 8, b);
    }
    same("samples", x->samples, y->samples, x->n_samples * (int64_t)sizeof *x->samples, b);
    assert_int_equal(x->n_curves, y->n_curves);
    same("curves", x->curves, y->curves, x->n_curves * (int64_t)sizeof *x->curves, b);
    same("quantiles", x->summary->quantiles, y->summary->quantiles, Ls * H * Q * 8, b);
    same("layer quantiles", x->summary->layer_quantiles, y->summary->layer_quantiles, Ls * Q * 8, b);
    same("model quantiles", x->summary->model_quantiles, y->summary->model_quantiles, Q * 8, b);
    same("shares", x->summary->share, y->summary->share, Ls * H * TAYLOR_COUNTS * 8, b);
    same("layer shares", x->summary->layer_share, y->summary->layer_share, Ls * TAYLOR_COUNTS * 24, b);
    same("model shares", x->summary->model_share, y->summary->model_share, TAYLOR_COUNTS * 24, b);
    same("layer medians", x->summary->layer_median, y->summary->layer_median, Ls * TAYLOR_MEDIANS * 24, b);
    same("model medians", x->summary->model_median, y->summary->model_median, TAYLOR_MEDIANS * 24, b);
    taylor_results_free(x);
    taylor_results_free(y);
}

static void test_same_bits(void **state) {
    (void)state;
    const char *dump = dump_path();
    struct ag_buf out = {0}, err = {0}, fly = {0}, again = {0}, both = {0};
    assert_int_equal(test_cli(&out, &err, "taylor %s -o %s/a.h5 --queries 6 --threads 1 -q", dump, FOLDER), 0);
    assert_int_equal(err.size, 0);
    assert_int_equal(test_cli(NULL, NULL, "taylor %s -o %s/b.h5 --queries 6 --threads 3", dump, FOLDER), 0);
    same_results(FOLDER "/a.h5", FOLDER "/b.h5");
    assert_int_equal(test_cli(&fly, NULL,
                              "probe data/sample/softmax %s/p.jsonl --reduce taylor --queries 6 --threads 2 -o %s/c.h5",
                              FOLDER, FOLDER),
                     0);
    same_results(FOLDER "/a.h5", FOLDER "/c.h5");
    assert_non_null(strstr(fly.data, out.data)); /* the same page after what probe says itself */
    assert_int_equal(test_cli(&again, NULL, "taylor --report %s/c.h5", FOLDER), 0);
    assert_string_equal(again.data, out.data);
    /* beside geometry with its second pass, in small waves: neither disturbs the other */
    assert_int_equal(
        test_cli(&both, NULL,
                 "probe data/sample/softmax %s/p.jsonl --reduce geometry,taylor --basis pooled --queries 6 --draws 200 "
                 "-o %s/both",
                 FOLDER, FOLDER),
        0);
    assert_int_equal(test_cli(NULL, NULL, "taylor %s -o %s/d200.h5 --queries 6 --draws 200", dump, FOLDER), 0);
    same_results(FOLDER "/d200.h5", FOLDER "/both.taylor.h5");
    ag_buf_free(&out);
    assert_int_equal(test_cli(&out, NULL, "geometry %s -o %s/g.h5 --basis pooled --draws 200", dump, FOLDER), 0);
    assert_non_null(strstr(both.data, out.data));
    /* a store that rounds: the reducer sees what the file holds */
    assert_int_equal(
        test_cli(
            NULL, NULL,
            "probe data/sample/softmax %s/p.jsonl --store bf16 --reduce taylor --queries 3 --dump %s/bf.h5 -o %s/e.h5",
            FOLDER, FOLDER, FOLDER),
        0);
    assert_int_equal(test_cli(NULL, NULL, "taylor %s/bf.h5 -o %s/f.h5 --queries 3", FOLDER, FOLDER), 0);
    same_results(FOLDER "/e.h5", FOLDER "/f.h5");
    ag_buf_free(&out), ag_buf_free(&err), ag_buf_free(&fly), ag_buf_free(&again), ag_buf_free(&both);
}

/* Positions are drawn from (seed, prompt id) alone: a shard holds the rows of the whole run. */
static void test_shards_agree(void **state) {
    (void)state;
    const char *dump = dump_path();
    int64_t found = 0, total = 0;
    assert_int_equal(test_cli(NULL, NULL, "taylor %s -o %s/whole.h5 --queries 5 --seed 7 --layers 1", dump, FOLDER), 0);
    struct taylor_results *whole = read_results(FOLDER "/whole.h5");
    for (int i = 1; i <= 2; i++) {
        char path[300];
        assert_int_equal(
            test_cli(
                NULL, NULL,
                "probe data/sample/softmax %s/p.jsonl --reduce taylor --queries 5 --seed 7 --layers 1 --shard %d/2 "
                "-o %s/shard%d.h5",
                FOLDER, i, FOLDER, i),
            0);
        snprintf(path, sizeof path, "%s/shard%d.h5", FOLDER, i);
        struct taylor_results *part = read_results(path);
        for (int64_t k = 0; k < part->n_samples; k++) {
            struct taylor_sample row = part->samples[k];
            total++;
            for (int64_t j = 0; j < whole->n_samples; j++) {
                if (strcmp(whole->from.prompt_id[whole->samples[j].prompt], part->from.prompt_id[row.prompt]) != 0)
                    continue;
                row.prompt = whole->samples[j].prompt; /* its number in the whole file */
                found += memcmp(&row, &whole->samples[j], sizeof row) == 0;
                row.prompt = part->samples[k].prompt;
            }
        }
        taylor_results_free(part);
    }
    assert_int_equal(total, whole->n_samples);
    assert_int_equal(found, total);
    taylor_results_free(whole);
}

static void test_other_tap(void **state) {
    (void)state;
    struct ag_buf out = {0}, err = {0}, json = {0};
    assert_int_equal(test_cli(&out, &err,
                              "taylor %s -o %s/proj.h5 --tap proj --queries 2 --layers 0 --json %s/proj.json",
                              dump_path(), FOLDER, FOLDER),
                     0);
    assert_non_null(strstr(out.data, "NOT what the read sees"));
    assert_non_null(strstr(err.data, "tap proj is not what the read sees"));
    assert_int_equal(test_cli(&json, NULL, "taylor --report %s/proj.h5 --json %s/proj2.json", FOLDER, FOLDER), 0);
    assert_string_equal(json.data, out.data);
    assert_int_equal(system("cmp -s " FOLDER "/proj.json " FOLDER
                            "/proj2.json && grep -q '\"softmax_sees_tap\": false' " FOLDER "/proj.json"),
                     0);
    ag_buf_free(&out), ag_buf_free(&err), ag_buf_free(&json);
}

static void test_refused_commands(void **state) {
    (void)state;
    const char *dump = dump_path();
    assert_int_equal(test_cli(NULL, NULL, "taylor %s -o %s/exists.h5 --queries 0 --layers 0 --json %s/exists.json",
                              dump, FOLDER, FOLDER),
                     0);
    assert_int_equal(test_cli(NULL, NULL, "probe data/sample/softmax %s/p.jsonl --what keys --layers 0 -o %s/keys.h5",
                              FOLDER, FOLDER),
                     0);
    assert_int_equal(test_cli(NULL, NULL,
                              "probe data/sample/softmax %s/p.jsonl --positions last --layers 0 -o %s/some.h5", FOLDER,
                              FOLDER),
                     0);
    assert_int_equal(test_cli(NULL, NULL, "probe data/sample/softmax %s/p.jsonl --heads 0,2 --layers 0 -o %s/heads.h5",
                              FOLDER, FOLDER),
                     0);
    static const struct {
        int code;
        const char *arguments, *expected[2];
    } cases[] = {
        {2, "taylor " FOLDER "/d.h5", {"-o is missing"}},
        {2, "taylor", {"DUMP.h5"}},
        {2, "taylor " FOLDER "/d.h5 -o " FOLDER "/d.h5 --force", {"is the input"}},
        {2, "taylor " FOLDER "/keys.h5 -o " FOLDER "/x.h5", {"queries", "--what keys,queries"}},
        {2, "taylor " FOLDER "/some.h5 -o " FOLDER "/x.h5", {"--positions", "all are needed"}},
        {2, "taylor " FOLDER "/heads.h5 -o " FOLDER "/x.h5", {"--heads", "all are needed"}},
        {2, "taylor " FOLDER "/d.h5 -o " FOLDER "/x.h5 --queries -1", {"--queries"}},
        {2, "taylor " FOLDER "/d.h5 -o " FOLDER "/x.h5 --queries many", {"--queries"}},
        {2, "taylor " FOLDER "/d.h5 -o " FOLDER "/x.h5 -r 0", {"--r"}},
        {2, "taylor " FOLDER "/d.h5 -o " FOLDER "/x.h5 --layers 3-9", {"--layers"}},
        {2, "taylor " FOLDER "/d.h5 -o " FOLDER "/x.h5 --tap norm", {"norm"}},
        {2, "taylor " FOLDER "/d.h5 -o " FOLDER "/x.h5 --positions 100000", {"positions"}},
        {2, "taylor " FOLDER "/d.h5 -o " FOLDER "/x.h5 --positions nowhere", {"positions"}},
        {1, "taylor " FOLDER "/d.h5 -o " FOLDER "/exists.h5", {"exists"}},
        {1, "taylor " FOLDER "/d.h5 -o " FOLDER "/x.h5 --json " FOLDER "/exists.json", {"exists.json"}},
        {1, "taylor " FOLDER "/d.h5 -o " FOLDER "/no/such/x.h5", {"no/such"}},
        {1, "taylor " FOLDER "/none.h5 -o " FOLDER "/x.h5", {"none.h5"}},
        {1, "taylor " FOLDER "/exists.h5 -o " FOLDER "/x.h5", {"attgeo-taylor-1", "attgeo-dump-1"}},
        {1, "taylor --report " FOLDER "/d.h5", {"attgeo-dump-1", "attgeo taylor"}},
        {1, "taylor --report " FOLDER "/p.jsonl", {"p.jsonl"}},
        {2, "taylor --report " FOLDER "/exists.h5 -o " FOLDER "/x.h5", {"--report"}},
        {2, "probe data/sample/softmax " FOLDER "/p.jsonl --queries 3 -o " FOLDER "/x.h5", {"--reduce"}},
        {2,
         "probe data/sample/softmax " FOLDER "/p.jsonl --reduce taylor --basis pooled -o " FOLDER "/x.h5",
         {"--basis is about geometry"}},
        {2,
         "probe data/sample/softmax " FOLDER "/p.jsonl --reduce taylor --skip 2 -o " FOLDER "/x.h5",
         {"--skip is about geometry"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ag_buf err = {0};
        const int code = test_cli(NULL, &err, "%s", cases[i].arguments);
        if (code != cases[i].code)
            fail_msg("%s: exit %d, message: %s", cases[i].arguments, code, err.data ? err.data : "none");
        for (int k = 0; k < 2 && cases[i].expected[k]; k++)
            if (!err.data || !strstr(err.data, cases[i].expected[k]))
                fail_msg("%s: no \"%s\" in: %s", cases[i].arguments, cases[i].expected[k],
                         err.data ? err.data : "nothing");
        if (access(FOLDER "/x.h5", F_OK) == 0) fail_msg("%s left a results file", cases[i].arguments);
        ag_buf_free(&err);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_same_bits),
    cmocka_unit_test(test_shards_agree),
    cmocka_unit_test(test_other_tap),
    cmocka_unit_test(test_refused_commands),
};
TEST_GROUP(cmd_taylor, "attgeo taylor end to end", tests)
