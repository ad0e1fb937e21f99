/* tests/test_merge.c: attgeo merge: shares of the prompts become one run, every dataset and attribute bit for bit; merging is
 * associative; what does not belong together is refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/h5.h"
#include "geometry/merge.h"
#include "taylor/merge.h"
#include "tests/test.h"

#define FOLDER "build/test/merge"
#define PROBE                                                                                                          \
    "probe data/sample/softmax " FOLDER                                                                                \
    "/p.jsonl --layers 0-1 --no-score --draws 200 --queries 2 --reduce geometry,taylor "

static const char *const kinds[] = {"geometry", "taylor"};

/* ---- files compared ------------------------------------------------------------------------------------------------- */

struct walk {
    const char *paths[2];
    hid_t other;
    const char *const *ignored; /* attributes of the root and groups that may differ */
    int objects, attributes;
    struct ag_arena *arena;
};

static bool ignored(const struct walk *w, const char *name) {
    for (int i = 0; w->ignored[i]; i++)
        if (strcmp(w->ignored[i], name) == 0) return true;
    return false;
}

/* Bytes of a numeric dataset or attribute with its type and extents; NULL: text. */
static void *bytes_of(hid_t at, bool attribute, size_t *n) {
    hid_t type = attribute ? H5Aget_type(at) : H5Dget_type(at), space = attribute ? H5Aget_space(at) : H5Dget_space(at);
    void *data = NULL;
    if (H5Tget_class(type) != H5T_STRING) {
        *n = (size_t)H5Sget_simple_extent_npoints(space) * H5Tget_size(type);
        data = calloc(*n + 1, 1);
        assert_true((attribute ? H5Aread(at, type, data) : H5Dread(at, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data)) >=
                    0);
    }
    H5Tclose(type);
    H5Sclose(space);
    return data;
}

static bool same_bytes(hid_t a, hid_t b, bool attribute) {
    size_t n = 0, m = 0;
    void *x = bytes_of(a, attribute, &n), *y = bytes_of(b, attribute, &m);
    assert_true((x == NULL) == (y == NULL));
    const bool same = n == m && (n == 0 || memcmp(x, y, n) == 0);
    free(x);
    free(y);
    return same;
}

static const char *object_name;
static herr_t compare_attribute(hid_t at, const char *name, const H5A_info_t *info, void *self) {
    struct walk *w = self;
    (void)info;
    if (strcmp(object_name, ".") == 0 && ignored(w, name)) return 0;
    struct ag_error err = AG_ERROR_INIT;
    if (!ag_h5_has_attribute(w->other, object_name, name))
        fail_msg("%s has no attribute %s of %s", w->paths[1], name, object_name);
    hid_t a = H5Aopen(at, name, H5P_DEFAULT),
          b = H5Aopen_by_name(w->other, object_name, name, H5P_DEFAULT, H5P_DEFAULT);
    hid_t type = H5Aget_type(a);
    if (H5Tget_class(type) == H5T_STRING) {
        const char *x, *y;
        assert_ok(ag_h5_get_text(&x, at, ".", name, w->arena, &err), &err);
        assert_ok(ag_h5_get_text(&y, w->other, object_name, name, w->arena, &err), &err);
        if (strcmp(x, y) != 0)
            fail_msg("%s: attribute %s of %s: %s; %s has %s", w->paths[0], name, object_name, x, w->paths[1], y);
    } else if (!same_bytes(a, b, true)) {
        fail_msg("attribute %s of %s differs between %s and %s", name, object_name, w->paths[0], w->paths[1]);
    }
    H5Tclose(type);
    H5Aclose(a);
    H5Aclose(b);
    w->attributes++;
    return 0;
}

static herr_t compare_object(hid_t at, const char *name, const H5O_info_t *info, void *self) {
    struct walk *w = self;
    struct ag_error err = AG_ERROR_INIT;
    char top[32];
    snprintf(top, sizeof top, "%.*s", (int)strcspn(name, "/"), name);
    if (ignored(w, top)) return 0;
    if (strcmp(name, ".") != 0 && !ag_h5_exists(w->other, name))
        fail_msg("%s has no %s, which is in %s", w->paths[1], name, w->paths[0]);
    hid_t a = H5Oopen(at, name, H5P_DEFAULT);
    object_name = name;
    assert_true(H5Aiterate2(a, H5_INDEX_NAME, H5_ITER_INC, NULL, compare_attribute, w) >= 0);
    if (info->type == H5O_TYPE_DATASET) {
        hid_t b = H5Dopen2(w->other, name, H5P_DEFAULT), type = H5Dget_type(a), space = H5Dget_space(a),
              space_b = H5Dget_space(b);
        if (H5Sextent_equal(space, space_b) <= 0)
            fail_msg("%s: the shape differs between %s and %s", name, w->paths[0], w->paths[1]);
        if (H5Tget_class(type) == H5T_STRING) {
            const char *const *x, *const *y;
            int64_t n = -1;
            assert_ok(ag_h5_read_texts(&x, at, name, &n, w->arena, &err), &err);
            assert_ok(ag_h5_read_texts(&y, w->other, name, &n, w->arena, &err), &err);
            for (int64_t i = 0; i < n; i++) assert_string_equal(x[i], y[i]);
        } else if (!same_bytes(a, b, false)) {
            fail_msg("%s differs between %s and %s", name, w->paths[0], w->paths[1]);
        }
        H5Tclose(type);
        H5Sclose(space);
        H5Sclose(space_b);
        H5Dclose(b);
        w->objects++;
    }
    H5Oclose(a);
    return 0;
}

/* Every dataset and attribute of either file is in the other with the same bits. */
static void same_files(const char *a, const char *b, const char *const *ignore) {
    struct ag_error err = AG_ERROR_INIT;
    const char *const paths[2] = {a, b};
    hid_t file[2];
    for (int i = 0; i < 2; i++) assert_ok(ag_h5_open(&file[i], paths[i], &err), &err);
    for (int i = 0; i < 2; i++) {
        struct walk w = {{paths[i], paths[1 - i]}, file[1 - i], ignore, 0, 0, ag_arena_new("test")};
        assert_true(H5Ovisit2(file[i], H5_INDEX_NAME, H5_ITER_INC, compare_object, &w, H5O_INFO_BASIC) >= 0);
        assert_true(w.objects > 30 && w.attributes > 25);
        ag_arena_free(w.arena);
    }
    for (int i = 0; i < 2; i++) assert_ok(ag_h5_close(file[i], &err), &err);
}
static const char *const provenance[] = {"command", "merged", NULL},
                         *const with_dump[] = {"command", "merged", "dump", NULL},
                         *const whose_command[] = {"command", NULL},
                         *const other_order[] = {"command", "merged", "prompts_sha256", NULL};

/* ---- runs ------------------------------------------------------------------------------------------------------------- */

/* On one thread, unless arguments say otherwise: the work is small. */
static void run(const char *arguments) {
    struct ag_buf err = {0};
    if (test_cli(NULL, &err, "%s%s", arguments, strstr(arguments, "--threads") ? "" : " --threads 1") != 0)
        fail_msg("attgeo %s: %s", arguments, err.data ? err.data : "no message");
    ag_buf_free(&err);
}

/* Twins of about 120 tokens in the words of the sample, as its own prompts are made, only shorter. */
static void write_prompts(const char *path, int pairs) {
    static const char *const prose[] = {"Selma carried the blue rope to the orchard.",
                                        "Tobin waited at the kitchen until the afternoon.",
                                        "Every autumn Ivan walked from the river to the meadow.",
                                        "Victor put the golden candle in the library.",
                                        "The sailor asked Ivan about the white rope.",
                                        "Tobin the potter was happy in the spring."};
    static const char *const facts[] = {"The special code for dusty unicorn is 5995.",
                                        "The special code for rough violin is 5998."};
    static const char *const questions[] = {
        "What is the special code for dusty unicorn? The special code for dusty unicorn is",
        "What is the special code for rough violin? The special code for rough violin is"};
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 2 * pairs; i++) {
        const int needle = (i + i / 2) % 2;
        struct ag_buf text = {0}, spans = {0};
        for (int k = 0; k < 9; k++) {
            const int fact = k % 3 != 2                 ? -1
                             : k == 2 + 3 * (i / 2 % 3) ? needle
                                                        : !needle; /* the needle once, the other twice */
            const char *sentence = fact < 0 ? prose[(k + i / 2) % 6] : facts[fact];
            if (fact >= 0)
                assert_int_equal(ag_buf_printf(&spans, NULL, "{\"start\": %d, \"end\": %d, \"role\": \"%s\"}, ",
                                               (int)text.size, (int)(text.size + strlen(sentence)),
                                               fact == needle ? "needle" : "distractor"),
                                 AG_OK);
            assert_int_equal(ag_buf_printf(&text, NULL, "%s ", sentence), AG_OK);
        }
        const size_t question = text.size;
        assert_int_equal(ag_buf_printf(&text, NULL, "%s", questions[needle]), AG_OK);
        fprintf(file,
                "{\"id\": \"pair%d-%c\", \"twin\": \"pair%d-%c\", \"text\": \"%s\", \"spans\": [%s{\"start\": %zu, "
                "\"end\": %zu, "
                "\"role\": \"question\"}], \"answer\": \" %s\"}\n",
                i / 2, 'a' + i % 2, i / 2, 'b' - i % 2, text.data, spans.data, question, text.size,
                needle ? "5998" : "5995");
        ag_buf_free(&text), ag_buf_free(&spans);
    }
    assert_int_equal(fclose(file), 0);
}

/* Four twin pairs whole and in shares of N = 2, 3, 4: FOLDER/whole.KIND.h5, FOLDER/I-N.KIND.h5. Made once. */
static void make_runs(void) {
    static bool made;
    if (made) return;
    char text[600];
    test_folder("merge");
    write_prompts(FOLDER "/p.jsonl", 4);
    run(PROBE "-o " FOLDER "/whole");
    for (int n = 1; n <= 4; n++)
        for (int i = 1; i <= n; i++) {
            snprintf(text, sizeof text, PROBE "--shard %d/%d --threads %d -o " FOLDER "/%d-%d", i, n, n == 2 ? 2 : 1, i,
                     n);
            run(text);
        }
    made = true;
}

static void test_union(void **state) {
    (void)state;
    make_runs();
    for (int k = 0; k < 2; k++) {
        char whole[200], merged[200], arguments[1200];
        snprintf(whole, sizeof whole, FOLDER "/whole.%s.h5", kinds[k]);
        snprintf(merged, sizeof merged, FOLDER "/1-1.%s.h5", kinds[k]);
        same_files(whole, merged, provenance);
        for (int n = 2; n <= 4; n++) {
            struct ag_buf out = {0}, err = {0}, same = {0};
            int used = snprintf(arguments, sizeof arguments, "merge -q --threads %d", n == 3 ? 3 : 1);
            for (int i = 1; i <= n; i++)
                used += snprintf(arguments + used, sizeof arguments - (size_t)used, " " FOLDER "/%d-%d.%s.h5", i, n,
                                 kinds[k]);
            snprintf(merged, sizeof merged, FOLDER "/union-%d.%s.h5", n, kinds[k]);
            assert_int_equal(test_cli(&out, &err, "%s -o %s", arguments, merged), 0);
            assert_int_equal(err.size, 0);
            same_files(whole, merged, provenance);
            assert_non_null(strstr(out.data, "8 prompts"));
            if (k == 1) { /* the page of one run */
                assert_int_equal(test_cli(&same, NULL, "taylor --report %s", whole), 0);
                assert_string_equal(out.data, same.data);
            }
            ag_buf_free(&out), ag_buf_free(&err), ag_buf_free(&same);
        }
    }
}

/* Another order of files is that order of prompts. */
static void test_order(void **state) {
    (void)state;
    make_runs();
    assert_int_equal(system("cd " FOLDER " && { tail -n 4 p.jsonl; head -n 4 p.jsonl; } > turned.jsonl"), 0);
    run("probe data/sample/softmax " FOLDER
        "/turned.jsonl --layers 0-1 --no-score --draws 200 --queries 2 --reduce geometry,taylor -o " FOLDER "/turned");
    for (int k = 0; k < 2; k++) {
        char arguments[600], a[200], b[200];
        snprintf(a, sizeof a, FOLDER "/turned.%s.h5", kinds[k]);
        snprintf(b, sizeof b, FOLDER "/backwards.%s.h5", kinds[k]);
        snprintf(arguments, sizeof arguments, "merge " FOLDER "/2-2.%s.h5 " FOLDER "/1-2.%s.h5 -o %s", kinds[k],
                 kinds[k], b);
        run(arguments);
        same_files(a, b, other_order);
    }
}

static void test_associative(void **state) {
    (void)state;
    make_runs();
    for (int k = 0; k < 2; k++) {
        char text[1000], left[200], right[200], all[200];
        snprintf(all, sizeof all, FOLDER "/abc.%s.h5", kinds[k]);
        snprintf(left, sizeof left, FOLDER "/ab-c.%s.h5", kinds[k]);
        snprintf(right, sizeof right, FOLDER "/a-bc.%s.h5", kinds[k]);
        snprintf(text, sizeof text, "merge " FOLDER "/1-3.%s.h5 " FOLDER "/2-3.%s.h5 " FOLDER "/3-3.%s.h5 -o %s",
                 kinds[k], kinds[k], kinds[k], all);
        run(text);
        snprintf(text, sizeof text, "merge " FOLDER "/1-3.%s.h5 " FOLDER "/2-3.%s.h5 -o " FOLDER "/ab.%s.h5", kinds[k],
                 kinds[k], kinds[k]);
        run(text);
        snprintf(text, sizeof text, "merge " FOLDER "/2-3.%s.h5 " FOLDER "/3-3.%s.h5 -o " FOLDER "/bc.%s.h5", kinds[k],
                 kinds[k], kinds[k]);
        run(text);
        snprintf(text, sizeof text, "merge " FOLDER "/ab.%s.h5 " FOLDER "/3-3.%s.h5 -o %s", kinds[k], kinds[k], left);
        run(text);
        snprintf(text, sizeof text, "merge " FOLDER "/1-3.%s.h5 " FOLDER "/bc.%s.h5 -o %s", kinds[k], kinds[k], right);
        run(text);
        same_files(all, left, whose_command); /* the list of what was merged too */
        same_files(all, right, whose_command);
    }
    struct geom_results *g;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(geom_results_read(&g, FOLDER "/ab-c.geometry.h5", &err), &err);
    assert_int_equal(g->from.merged.n, 3);
    for (int i = 0; i < 3; i++) {
        char shard[32];
        snprintf(shard, sizeof shard, "--shard %d/3", i + 1);
        assert_non_null(strstr(g->from.merged.command[i], shard));
        assert_string_equal(g->from.merged.backend[i], g->from.backend);
    }
    assert_non_null(strstr(g->from.command, "ab.geometry.h5"));
    geom_results_free(g);
}

/* Through dumps. */
static void test_over_dumps(void **state) {
    (void)state;
    make_runs();
    run("probe data/sample/softmax " FOLDER "/p.jsonl --layers 0 --no-score -o " FOLDER "/d.h5");
    for (int i = 0; i <= 2; i++) {
        char text[600];
        if (i > 0)
            snprintf(text, sizeof text,
                     "probe data/sample/softmax " FOLDER "/p.jsonl --layers 0 --no-score --shard %d/2 -o " FOLDER
                     "/d%d.h5",
                     i, i);
        if (i > 0) run(text);
        for (int k = 0; k < 2; k++) {
            snprintf(text, sizeof text, "%s " FOLDER "/d%.*d.h5 --draws 200 -o " FOLDER "/over%d.%s.h5", kinds[k],
                     i > 0, i, i, kinds[k]);
            run(text);
        }
    }
    for (int k = 0; k < 2; k++) {
        char text[600], a[200], b[200];
        snprintf(a, sizeof a, FOLDER "/over0.%s.h5", kinds[k]);
        snprintf(b, sizeof b, FOLDER "/over.%s.h5", kinds[k]);
        snprintf(text, sizeof text, "merge " FOLDER "/over1.%s.h5 " FOLDER "/over2.%s.h5 -o %s", kinds[k], kinds[k], b);
        run(text);
        same_files(a, b, with_dump);
    }
    struct taylor_results *r;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(taylor_results_read(&r, FOLDER "/over.taylor.h5", &err), &err);
    assert_string_equal(r->from.dump, FOLDER "/d1.h5," FOLDER "/d2.h5");
    taylor_results_free(r);
}

/* ---- what is refused ---------------------------------------------------------------------------------------------------- */

/* A results file with one thing in it changed. */
static void changed_geometry(struct geom_results *g, const char *path, const char *backend) {
    struct ag_error err = AG_ERROR_INIT;
    const char *before = g->from.backend;
    g->from.backend = backend;
    assert_ok(geom_results_write(g, path, true, &err), &err);
    g->from.backend = before;
}

static void test_backends(void **state) {
    (void)state;
    make_runs();
    struct geom_results *g;
    struct ag_error err = AG_ERROR_INIT;
    struct ag_buf said = {0};
    assert_ok(geom_results_read(&g, FOLDER "/2-2.geometry.h5", &err), &err);
    changed_geometry(g, FOLDER "/cuda.h5", "cuda");
    char backend[64];
    snprintf(backend, sizeof backend, "%s,cuda", g->from.backend);
    geom_results_free(g);
    assert_int_equal(test_cli(NULL, &said, "merge " FOLDER "/1-2.geometry.h5 " FOLDER "/cuda.h5 -o " FOLDER "/x.h5"),
                     2);
    assert_non_null(strstr(said.data, "cuda.h5: backend cuda; expected "));
    assert_non_null(strstr(said.data, "--allow-backends"));
    assert_int_equal(access(FOLDER "/x.h5", F_OK), -1);
    ag_buf_free(&said);
    assert_int_equal(test_cli(NULL, &said,
                              "merge " FOLDER "/1-2.geometry.h5 " FOLDER "/cuda.h5 -o " FOLDER
                              "/mixed.h5 --allow-backends -q"),
                     0);
    assert_non_null(strstr(said.data, "different backends"));
    assert_ok(geom_results_read(&g, FOLDER "/mixed.h5", &err), &err);
    assert_string_equal(g->from.backend, backend);
    assert_string_equal(g->from.merged.backend[1], "cuda");
    geom_results_free(g);
    ag_buf_free(&said);
    /* another version merges, and is named */
    assert_ok(geom_results_read(&g, FOLDER "/2-2.geometry.h5", &err), &err);
    g->from.version = "0.0.1 (git 0123abc)";
    assert_ok(geom_results_write(g, FOLDER "/old.h5", true, &err), &err);
    geom_results_free(g);
    assert_int_equal(test_cli(NULL, &said,
                              "merge " FOLDER "/1-2.geometry.h5 " FOLDER "/old.h5 -o " FOLDER
                              "/versions.h5 -q --threads 1"),
                     0);
    assert_non_null(strstr(said.data, "0.0.1 (git 0123abc)"));
    ag_buf_free(&said);
}

/* One field changed of what would merge. */
static void test_fields(void **state) {
    (void)state;
    make_runs();
    const struct ag_merge_options how = {false, "test"};
    const char *const paths[2] = {"a.h5", "b.h5"};
    struct ag_error err = AG_ERROR_INIT;
    struct geom_results *a, *b, *whole;
    struct taylor_results *c, *d, *both;
    assert_ok(geom_results_read(&a, FOLDER "/1-2.geometry.h5", &err), &err);
    assert_ok(geom_results_read(&b, FOLDER "/2-2.geometry.h5", &err), &err);
    const char *const *b_ids = b->from.prompt_id;
    assert_ok(taylor_results_read(&c, FOLDER "/1-2.taylor.h5", &err), &err);
    assert_ok(taylor_results_read(&d, FOLDER "/2-2.taylor.h5", &err), &err);
#define REFUSED(kind, x, y, out, field, other, ...)                                                                    \
    do {                                                                                                               \
        const __typeof__((y)->field) before = (y)->field;                                                              \
        (y)->field = (__typeof__(before))(other);                                                                      \
        err = (struct ag_error)AG_ERROR_INIT;                                                                          \
        test_refused(kind##_results_merge(&(out), (const struct kind##_results *const[]){x, y}, paths, 2, &how, &err), \
                     AG_E_USAGE, &err, "b.h5", __VA_ARGS__, NULL);                                                     \
        assert_null(out);                                                                                              \
        (y)->field = before;                                                                                           \
    } while (0)
    REFUSED(geom, a, b, whole, from.checkpoint_sha256, "0000", "checkpoint SHA-256 0000; expected", "as in a.h5");
    REFUSED(geom, a, b, whole, from.tokenizer_sha256, "", "tokenizer SHA-256 (none)");
    REFUSED(geom, a, b, whole, from.prompts_sha256, "abc", "prompts SHA-256 abc");
    REFUSED(geom, a, b, whole, from.dtype, "bf16", "dtype bf16; expected f32");
    REFUSED(geom, a, b, whole, from.tap, AG_TAP_PROJ, "tap proj; expected rope");
    REFUSED(geom, a, b, whole, from.last_tap, AG_TAP_NORM, "last tap norm; expected rope");
    REFUSED(geom, a, b, whole, from.seed, 5, "seed 5; expected 0");
    REFUSED(geom, a, b, whole, from.L, 7, "layers in all 7; expected 4");
    REFUSED(geom, a, b, whole, from.Ls, 1, "layers 0; expected 0-1");
    REFUSED(geom, a, b, whole, r, 3, "r 3; expected 16");
    REFUSED(geom, a, b, whole, skip, 1, "skip 1; expected 0");
    REFUSED(geom, a, b, whole, draws, 100, "draws 100; expected 200");
    REFUSED(geom, a, b, whole, resample_seed, 9, "seed of the draws 9");
    REFUSED(geom, a, b, whole, Hk, ((int64_t[]){4, 3}), "KV heads of layer 1 3; expected 4");
    REFUSED(geom, a, b, whole, D, ((int64_t[]){64, 32}), "dimensions of layer 0 64; expected 32");
    REFUSED(geom, a, b, whole, basis[GEOM_BASIS_POOLED], true, "pooled basis", "prompt,haystack");
    REFUSED(geom, a, b, whole, from.prompt_id, a->from.prompt_id, "is in a.h5 too", a->from.prompt_id[0]);
    const char *const twice[] = {"new", "same", "other", "same"};
    b->from.prompt_id = twice;
    err = (struct ag_error)AG_ERROR_INIT;
    const enum ag_status got =
        geom_results_merge(&whole, (const struct geom_results *const[]){a, b}, paths, 2, &how, &err);
    test_refused(got, AG_E_FORMAT, &err, "b.h5: prompt same is there twice", NULL);
    b->from.prompt_id = b_ids;
    REFUSED(taylor, c, d, both, from.checkpoint_sha256, "0000", "checkpoint SHA-256 0000");
    REFUSED(taylor, c, d, both, from.backend, "cuda", "backend cuda", "--allow-backends");
    REFUSED(taylor, c, d, both, r, 8, "r 8; expected 16");
    REFUSED(taylor, c, d, both, queries, 3, "queries 3; expected 2");
    REFUSED(taylor, c, d, both, draws, 100, "draws 100");
    REFUSED(taylor, c, d, both, sample_seed, 1, "seed of the draws 1");
    REFUSED(taylor, c, d, both, Hq, ((int64_t[]){4, 8}), "query heads of layer 1 8");
    REFUSED(taylor, c, d, both, Hk, ((int64_t[]){2, 4}), "KV heads of layer 0 2");
    REFUSED(taylor, c, d, both, D, ((int64_t[]){32, 16}), "dimensions of layer 1 16");
    REFUSED(taylor, c, d, both, window, ((int64_t[]){0, 128}), "window of layer 1 128; expected 0");
    REFUSED(taylor, c, d, both, scale, ((double[]){1, 1}), "scale 1 of layer 0");
    REFUSED(taylor, c, d, both, from.prompt_id, c->from.prompt_id, "is in a.h5 too");
#undef REFUSED
    /* counts that no longer fit are refused, never wrapped; so are rows of a layer that is not there */
    int32_t *bin = d->records[1].histograms + 5, one = c->records[1].histograms[5];
    c->records[1].histograms[5] = INT32_MAX;
    const int32_t was = *bin;
    *bin = 1;
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(taylor_results_merge(&both, (const struct taylor_results *const[]){c, d}, paths, 2, &how, &err),
                 AG_E_UNSUPPORTED, &err, "b.h5", "layer 1", NULL);
    *bin = was;
    c->records[1].histograms[5] = one;
    d->samples[0].layer = 3;
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(taylor_results_merge(&both, (const struct taylor_results *const[]){c, d}, paths, 2, &how, &err),
                 AG_E_FORMAT, &err, "b.h5", "row 0 names layer 3", NULL);
    d->samples[0].layer = 0;
    err = (struct ag_error)AG_ERROR_INIT;
    assert_ok(taylor_results_merge(&both, (const struct taylor_results *const[]){c, d}, paths, 2, &how, &err),
              &err); /* all was put back */
    assert_int_equal(both->from.P, 8);
    taylor_results_free(both);
    assert_ok(geom_results_merge(&whole, (const struct geom_results *const[]){a, b}, paths, 2, &how, &err), &err);
    assert_int_equal(whole->from.units, 4);
    geom_results_free(whole);
    /* out of memory at any allocation: an error, nothing lost */
    int64_t n = 0;
    for (;; n++) {
        err = (struct ag_error)AG_ERROR_INIT;
        ag_arena_fail_after(n);
        const enum ag_status status =
            taylor_results_merge(&both, (const struct taylor_results *const[]){c, d}, paths, 2, &how, &err);
        ag_arena_fail_after(-1);
        if (status == AG_OK) break;
        assert_int_equal(status, AG_E_MEMORY);
        assert_null(both);
        assert_true(err.text[0] != '\0' && n < 1000);
    }
    assert_true(n > 20);
    taylor_results_free(both);
    geom_results_free(a), geom_results_free(b), taylor_results_free(c), taylor_results_free(d);
}

static void test_refused_commands(void **state) {
    (void)state;
    make_runs();
    run("probe data/sample/softmax " FOLDER "/p.jsonl --layers 0 --no-score --what keys --shard 1/4 -o " FOLDER
        "/dump.h5");
    run("probe data/sample/softmax " FOLDER
        "/p.jsonl --layers 0-1 --no-score --draws 200 --shard 2/4 --reduce geometry --basis pooled -o " FOLDER
        "/pooled.h5");
    assert_int_equal(system("cd " FOLDER " && head -c 5000 1-2.taylor.h5 > cut.h5 && ln 2-4.geometry.h5 link.h5"), 0);
#define G(name) FOLDER "/" name ".geometry.h5 "
#define T(name) FOLDER "/" name ".taylor.h5 "
    static const struct {
        int code;
        const char *arguments, *expected[2];
    } cases[] = {
        {2, "merge", {"SHARE1.h5"}},
        {2, "merge " G("1-4") "-o " FOLDER "/x.h5", {"one file alone", "at least two"}},
        {2, "merge " G("1-4") G("2-4"), {"-o is missing"}},
        {2, "merge " G("1-4") G("2-4") "--force -o " G("2-4"), {"is the input", "another file"}},
        {2, "merge " G("1-4") G("2-4") "--force -o " FOLDER "/link.h5", {"is the input"}},
        {2, "merge " G("1-4") G("1-4") "-o " FOLDER "/x.h5", {"same file"}},
        {2, "merge " G("1-4") G("1-2") "-o " FOLDER "/x.h5", {"pair0-a is in", "every share once"}},
        {2,
         "merge " G("1-4") T("2-4") "-o " FOLDER "/x.h5",
         {"attgeo taylor; expected those of attgeo geometry", "by itself"}},
        {2,
         "merge " G("1-4") FOLDER "/dump.h5 -o " FOLDER "/x.h5",
         {"dump.h5: a dump", "run attgeo geometry or attgeo taylor"}},
        {2, "merge " G("1-4") FOLDER "/pooled.h5 -o " FOLDER "/x.h5", {"pooled.h5", "all prompts together"}},
        {2, "merge " T("1-4") T("2-4") "--csv " FOLDER "/tables -o " FOLDER "/x.h5", {"--csv is about geometry"}},
        {1, "merge " G("1-4") G("2-4") "-o " G("3-4"), {"exists"}},
        {1, "merge " G("1-4") FOLDER "/none.h5 -o " FOLDER "/x.h5", {"none.h5"}},
        {1, "merge " T("1-4") FOLDER "/cut.h5 -o " FOLDER "/x.h5", {"cut.h5"}},
        {1, "merge " G("1-4") FOLDER "/p.jsonl -o " FOLDER "/x.h5", {"p.jsonl"}},
        {1, "merge " G("1-4") G("2-4") "-o " FOLDER "/no/such/x.h5", {"no/such"}},
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
    run("merge " G("1-4") G("2-4") "--csv " FOLDER "/tables -o " FOLDER "/csv.h5");
    assert_int_equal(access(FOLDER "/tables/cells.csv", F_OK), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_union),
    cmocka_unit_test(test_order),
    cmocka_unit_test(test_associative),
    cmocka_unit_test(test_over_dumps),
    cmocka_unit_test(test_backends),
    cmocka_unit_test(test_fields),
    cmocka_unit_test(test_refused_commands),
};
TEST_GROUP(merge, "attgeo merge: shares to one run", tests)
