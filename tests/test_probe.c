/* attgeo probe, end to end on the sample checkpoint: dump and on the fly agree bit for bit, threads and waves and
 * shards change nothing, a kill is survived, wrong input is refused in one line. */
#include "tests/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/h5.h"
#include "probe/dump.h"
#include "probe/select.h"

#define MODEL "data/sample/softmax"
#define ALL_PROMPTS "data/sample/prompts.jsonl"

static struct ag_error err;
static const char *folder; /* of this group; prompts.jsonl lies there */

/* Two twin pairs and a prompt alone, in the sample's small language. */
static int set_up(void **state) {
    (void)state;
    static const struct {
        const char *id, *twin, *first, *second, *answer;
    } p[] = {
        {"a", "b", "The special code for dusty unicorn is 5995.", "The special code for rough violin is 5998.",
         " 5998"},
        {"c", "d", "The special code for quiet tiger is 2059.", "The special code for dusty unicorn is 3124.", " 3124"},
        {"d", "c", "The special code for dusty unicorn is 3124.", "The special code for quiet tiger is 2059.", " 2059"},
        {"b", "a", "The special code for rough violin is 5998.", "The special code for dusty unicorn is 5995.",
         " 5995"}};
    folder = test_folder("probe");
    char path[512];
    snprintf(path, sizeof path, "%s/prompts.jsonl", folder);
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 4; i++) {
        char text[1024];
        int n = 0, at[5];
        at[0] = n;
        n += snprintf(text + n, sizeof text - (size_t)n, "%s", p[i].first);
        at[1] = n;
        n += snprintf(text + n, sizeof text - (size_t)n, " Tobin waited at the kitchen until the afternoon. ");
        at[2] = n;
        n += snprintf(text + n, sizeof text - (size_t)n, "%s", p[i].second);
        at[3] = n;
        n += snprintf(text + n, sizeof text - (size_t)n, " %s Selma carried the blue rope to the orchard.", p[i].first);
        fprintf(f,
                "{\"id\":\"%s\",\"twin\":\"%s\",\"text\":\"%s\",\"answer\":\"%s\",\"spans\":[{\"start\":%d,\"end\":%d,"
                "\"role\":"
                "\"distractor\"},{\"start\":%d,\"end\":%d,\"role\":\"needle\"}]}\n",
                p[i].id, p[i].twin, text, p[i].answer, at[0], at[1], at[2], at[3]);
    }
    fprintf(f, "{\"id\":\"e\",\"text\":\"Ivan put the white rope in the kitchen.\"}\n");
    fclose(f);
    return 0;
}

static void run_ok(struct ag_buf *out, const char *arguments) {
    struct ag_buf o = {0}, e = {0};
    int code = test_cli(&o, &e, "%s", arguments);
    if (code != 0) fail_msg("attgeo %s: exit %d: %s", arguments, code, e.data ? e.data : "");
    if (out)
        *out = o;
    else
        ag_buf_free(&o);
    ag_buf_free(&e);
}

#define RUN(out, ...)                                                                                                  \
    do {                                                                                                               \
        char line_[2000];                                                                                              \
        snprintf(line_, sizeof line_, __VA_ARGS__);                                                                    \
        run_ok(out, line_);                                                                                            \
    } while (0)

/* Exit code and pieces of the one line on stderr. */
static void refused(int code, const char *arguments, const char *a, const char *b) {
    struct ag_buf o = {0}, e = {0};
    int got = test_cli(&o, &e, "%s", arguments);
    const char *text = e.data ? e.data : "";
    if (got != code || !strstr(text, a) || !strstr(text, b))
        fail_msg("attgeo %s: exit %d, said: %s (expected exit %d, '%s', '%s')", arguments, got, text, code, a, b);
    const char *line = strstr(text, "attgeo: ");
    if (!line || strchr(line, '\n') != text + e.size - 1) fail_msg("attgeo %s: not one line: %s", arguments, text);
    assert_int_equal(o.size, 0);
    ag_buf_free(&o);
    ag_buf_free(&e);
}

struct walk {
    hid_t other;
    int64_t sets, differ;
    char first[128];
};

static herr_t compare_set(hid_t at, const char *name, const H5O_info_t *info, void *self) {
    struct walk *w = self;
    if (info->type != H5O_TYPE_DATASET) return 0;
    hid_t a = H5Dopen2(at, name, H5P_DEFAULT),
          b = ag_h5_exists(w->other, name) ? H5Dopen2(w->other, name, H5P_DEFAULT) : -1;
    hid_t type = H5Dget_type(a);
    bool same = b >= 0;
    if (same && H5Tget_class(type) != H5T_STRING) {
        hid_t sa = H5Dget_space(a), sb = H5Dget_space(b), tb = H5Dget_type(b);
        same = H5Sextent_equal(sa, sb) > 0 && H5Tequal(type, tb) > 0;
        size_t bytes = (size_t)H5Sget_simple_extent_npoints(sa) * H5Tget_size(type);
        char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
        if (same && bytes > 0)
            same = H5Dread(a, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0 &&
                   H5Dread(b, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, y) >= 0 && !memcmp(x, y, bytes);
        free(x);
        free(y);
        H5Tclose(tb);
        H5Sclose(sa);
        H5Sclose(sb);
    }
    w->sets++;
    if (!same && !w->differ++) snprintf(w->first, sizeof w->first, "%s", name);
    H5Tclose(type);
    if (b >= 0) H5Dclose(b);
    H5Dclose(a);
    return 0;
}

/* Every dataset of both files has the same shape, type and bytes. */
static void same_data(const char *a, const char *b) {
    char path[2][512];
    hid_t file[2];
    memset(&err, 0, sizeof err);
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", folder, i ? b : a);
        assert_ok(ag_h5_open(&file[i], path[i], &err), &err);
    }
    for (int i = 0; i < 2; i++) {
        struct walk w = {file[1 - i], 0, 0, ""};
        assert_true(H5Ovisit2(file[i], H5_INDEX_NAME, H5_ITER_INC, compare_set, &w, H5O_INFO_BASIC) >= 0);
        if (w.differ) fail_msg("%s and %s: %d datasets differ, first %s", a, b, (int)w.differ, w.first);
        assert_true(w.sets > 10);
    }
    for (int i = 0; i < 2; i++) assert_ok(ag_h5_close(file[i], &err), &err);
}

static bool there(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return ag_path_kind(path) != AG_KIND_NONE;
}

static void test_dump_command(void **state) {
    (void)state;
    struct ag_buf out = {0};
    RUN(&out, "probe " MODEL " %s/prompts.jsonl -o %s/all.h5 --taps proj,norm,last --what keys,queries,values", folder,
        folder);
    assert_non_null(strstr(out.data, "5, 4 of them in twin pairs"));
    assert_non_null(strstr(out.data, "value not found: needle 0, distractor 0, answer 0"));
    assert_non_null(strstr(out.data, "of 4 retrieved"));
    assert_non_null(strstr(out.data, "all.h5"));
    assert_false(there("all.h5.part") || there("all.h5.part.journal"));
    ag_buf_free(&out);
    char path[512];
    snprintf(path, sizeof path, "%s/all.h5", folder);
    struct dump_reader *r;
    struct ag_source s;
    memset(&err, 0, sizeof err);
    assert_ok(dump_open(&r, path, &err), &err);
    assert_ok(dump_source(&s, r, AG_TAP_COUNT, &err), &err);
    assert_true(s.L == 4 && s.tokens->P == 5 && s.tap == AG_TAP_ROPE && s.tokens->twin[0] == 3 &&
                s.tokens->twin[4] == -1);
    assert_string_equal(s.backend, "cpu");
    assert_int_equal(strlen(s.checkpoint_sha256), 64);
    assert_int_equal(strlen(s.prompts_sha256), 64);
    dump_close(r);
    /* Neither threads, waves, nor the reference to everything at once changes a bit. */
    RUN(NULL,
        "probe " MODEL " %s/prompts.jsonl -o %s/one.h5 --threads 1 --taps proj,norm,rope --what keys,queries,values",
        folder, folder);
    same_data("all.h5", "one.h5");
    RUN(&out,
        "probe " MODEL
        " %s/prompts.jsonl -o %s/waves.h5 --memory 9500k -v --taps proj,norm,rope --what keys,queries,values",
        folder, folder);
    same_data("all.h5", "waves.h5");
    ag_buf_free(&out);
    RUN(NULL, "probe " MODEL " %s/prompts.jsonl -o %s/z.h5 --compress --taps proj,norm,rope --what keys,queries,values",
        folder, folder);
    same_data("all.h5", "z.h5");
}

static void test_reduce(void **state) {
    (void)state;
    static const char *const stores[] = {"f32", "bf16"};
    for (int i = 0; i < 2; i++) {
        RUN(NULL, "probe " MODEL " %s/prompts.jsonl --store %s -o %s/dump-%s.h5", folder, stores[i], folder, stores[i]);
        RUN(NULL, "geometry %s/dump-%s.h5 -o %s/over-%s.h5 --draws 200", folder, stores[i], folder, stores[i]);
        RUN(NULL, "probe " MODEL " %s/prompts.jsonl --store %s --reduce geometry --draws 200 -o %s/fly-%s.h5", folder,
            stores[i], folder, stores[i]);
        char a[64], b[64];
        snprintf(a, sizeof a, "over-%s.h5", stores[i]);
        snprintf(b, sizeof b, "fly-%s.h5", stores[i]);
        same_data(a, b);
    }
    /* Both at once; another tap; layers. */
    RUN(NULL,
        "probe " MODEL
        " %s/prompts.jsonl --reduce geometry --draws 200 --tap proj --layers 1-2 --taps proj --dump %s/both-dump.h5 -o "
        "%s/both.h5",
        folder, folder, folder);
    RUN(NULL, "geometry %s/both-dump.h5 --tap proj -o %s/both-over.h5 --draws 200", folder, folder);
    same_data("both.h5", "both-over.h5");
}

static void test_shards(void **state) {
    (void)state;
    char path[512], text[16];
    int64_t prompts = 0;
    RUN(NULL, "probe " MODEL " %s/prompts.jsonl -o %s/whole.h5", folder, folder);
    struct dump_reader *r;
    struct ag_source whole, part;
    struct dump_reader *w;
    memset(&err, 0, sizeof err);
    snprintf(path, sizeof path, "%s/whole.h5", folder);
    assert_ok(dump_open(&w, path, &err), &err);
    assert_ok(dump_source(&whole, w, AG_TAP_COUNT, &err), &err);
    bool seen[5] = {false};
    for (int i = 1; i <= 3; i++) {
        snprintf(text, sizeof text, "%d/3", i);
        RUN(NULL, "probe " MODEL " %s/prompts.jsonl --shard %s -o %s/shard%d.h5", folder, text, folder, i);
        snprintf(path, sizeof path, "%s/shard%d.h5", folder, i);
        assert_ok(dump_open(&r, path, &err), &err);
        assert_ok(dump_source(&part, r, AG_TAP_COUNT, &err), &err);
        prompts += part.tokens->P;
        hid_t a, b;
        char file[512];
        snprintf(file, sizeof file, "%s/whole.h5", folder);
        assert_ok(ag_h5_open(&a, file, &err), &err);
        assert_ok(ag_h5_open(&b, path, &err), &err);
        struct ag_arena *arena = ag_arena_new("test");
        void *x, *y;
        int64_t all[3] = {-1, -1, -1}, some[3] = {-1, -1, -1};
        assert_ok(ag_h5_read(&x, a, "/layers/3/rope/keys", AG_H5_F32, 3, all, arena, &err), &err);
        assert_ok(ag_h5_read(&y, b, "/layers/3/rope/keys", AG_H5_F32, 3, some, arena, &err), &err);
        for (int64_t p = 0; p < part.tokens->P; p++) {
            int64_t twin = part.tokens->twin[p], q = 0;
            assert_true(twin < part.tokens->P && (twin < 0 || part.tokens->twin[twin] == p)); /* pairs stay together */
            while (strcmp(whole.tokens->prompt_id[q], part.tokens->prompt_id[p])) q++;
            assert_false(seen[q]);
            seen[q] = true;
            int64_t T = part.tokens->offsets[p + 1] - part.tokens->offsets[p];
            assert_int_equal(T, whole.tokens->offsets[q + 1] - whole.tokens->offsets[q]);
            for (int64_t h = 0; h < all[0]; h++)
                assert_memory_equal((float *)x + (h * all[1] + whole.tokens->offsets[q]) * all[2],
                                    (float *)y + (h * some[1] + part.tokens->offsets[p]) * all[2],
                                    (size_t)(T * all[2]) * sizeof(float));
        }
        ag_arena_free(arena);
        assert_ok(ag_h5_close(a, &err), &err);
        assert_ok(ag_h5_close(b, &err), &err);
        dump_close(r);
    }
    assert_int_equal(prompts, 5);
    dump_close(w);
}

/* Starts the product in a process of its own, sends a signal once the journal tells of a layer, then resumes. */
static int stopped_by(int number, const char *name) {
    char journal[600], output[512];
    snprintf(output, sizeof output, "%s/%s", folder, name);
    snprintf(journal, sizeof journal, "%s.part.journal", output);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        const char *program = getenv("ATTGEO");
        if (!program) program = "build/attgeo";
        if (!freopen("/dev/null", "w", stdout) || !freopen("build/test/probe/stop.err", "w", stderr)) _exit(99);
        execl(program, program, "probe", MODEL, ALL_PROMPTS, "-o", output, "--shard", "1/4", "--threads", "1", NULL);
        _exit(98);
    }
    int result = 0;
    for (int i = 0; i < 120000; i++) {
        struct ag_arena *arena = ag_arena_new("test");
        const char *text = NULL;
        size_t size;
        ag_file_text(&text, &size, journal, 1 << 20, arena, NULL);
        bool now = text && strstr(text, "layer 0 prompts");
        ag_arena_free(arena);
        if (now) {
            kill(child, number);
            break;
        }
        if (waitpid(child, &result, WNOHANG) == child) fail_msg("the run ended before it could be stopped: %d", result);
        usleep(500);
    }
    waitpid(child, &result, 0);
    return result;
}

static void test_kill(void **state) {
    (void)state;
    RUN(NULL, "probe " MODEL " " ALL_PROMPTS " --shard 1/4 -o %s/calm.h5", folder);
    int result = stopped_by(SIGKILL, "killed.h5");
    assert_true(WIFSIGNALED(result));
    assert_false(there("killed.h5"));
    assert_true(there("killed.h5.part"));
    char line[1000];
    snprintf(line, sizeof line, "probe " MODEL " " ALL_PROMPTS " --shard 1/4 -o %s/killed.h5", folder);
    refused(1, line, "unfinished", "--resume");
    snprintf(line, sizeof line, "probe " MODEL " " ALL_PROMPTS " --shard 2/4 --resume -o %s/killed.h5", folder);
    refused(2, line, "--shard was 1/4", "2/4");
    RUN(NULL, "probe " MODEL " " ALL_PROMPTS " --shard 1/4 --resume -o %s/killed.h5", folder);
    assert_false(there("killed.h5.part") || there("killed.h5.part.journal"));
    same_data("calm.h5", "killed.h5");
    result = stopped_by(SIGTERM, "stopped.h5");
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 1); /* cleaned up after itself */
    struct ag_arena *arena = ag_arena_new("test");
    const char *text;
    size_t size;
    assert_ok(ag_file_text(&text, &size, "build/test/probe/stop.err", 1 << 20, arena, &err), &err);
    assert_non_null(strstr(text, "--resume"));
    ag_arena_free(arena);
    RUN(NULL, "probe " MODEL " " ALL_PROMPTS " --shard 1/4 --resume -o %s/stopped.h5", folder);
    same_data("calm.h5", "stopped.h5");
}

static void test_dry_run_and_bare(void **state) {
    (void)state;
    struct ag_buf out = {0};
    RUN(&out, "probe " MODEL " %s/prompts.jsonl -o %s/dry.h5 --dry-run", folder, folder);
    assert_non_null(strstr(out.data, "wave"));
    assert_non_null(strstr(out.data, "memory"));
    assert_non_null(strstr(out.data, "to write"));
    assert_false(there("dry.h5") || there("dry.h5.part"));
    ag_buf_free(&out);
    RUN(&out, "probe " MODEL " %s/prompts.jsonl --bare", folder);
    assert_non_null(strstr(out.data, "tokens/s"));
    ag_buf_free(&out);
    RUN(NULL,
        "probe " MODEL " %s/prompts.jsonl --no-score --layers 0 --positions retrieve,needle,0-2 --heads 1 -o %s/few.h5",
        folder, folder);
    hid_t file;
    char path[512];
    snprintf(path, sizeof path, "%s/few.h5", folder);
    memset(&err, 0, sizeof err);
    assert_ok(ag_h5_open(&file, path, &err), &err);
    int64_t keys[3] = {4, -1, 32}, queries[3] = {1, -1, 32};
    assert_ok(ag_h5_check_shape(file, "/layers/0/rope/keys", 3, keys, &err), &err);
    assert_ok(ag_h5_check_shape(file, "/layers/0/rope/queries", 3, queries, &err), &err);
    assert_true(queries[1] < keys[1] && queries[1] >= 15);
    assert_false(ag_h5_exists(file, "/selfcheck"));
    assert_ok(ag_h5_close(file, &err), &err);
}

static void test_wrong(void **state) {
    (void)state;
    static const struct {
        int code;
        const char *arguments, *a, *b;
    } cases[] = {
        {2, "", "-o is missing", "--dry-run"},
        {2, "-o %s/x.h5 --taps proj,nose", "nose", "rope"},
        {2, "-o %s/x.h5 --layers 2-9", "--layers", "0 to 3"},
        {2, "-o %s/x.h5 --heads 4", "--heads", "0 to 3"},
        {2, "-o %s/x.h5 --positions nose", "--positions", "nose"},
        {2, "-o %s/x.h5 --positions 0-4000", "--positions", "out of range"},
        {2, "-o %s/x.h5 --positions 0-3 --what keys", "--positions", "--what"},
        {2, "-o %s/x.h5 --shard 0/4", "--shard", "1/4"},
        {2, "-o %s/x.h5 --shard 4/4000", "--shard", "fewer"},
        {2, "-o %s/x.h5 --memory lots", "--memory", "800M"},
        {1, "-o %s/x.h5 --memory 10k", "", "memory"},
        {2, "-o %s/x.h5 --dump %s/y.h5", "--dump", "--reduce"},
        {2, "--reduce geometry -o %s/x.h5 --resume", "--resume", "--dump"},
        {2, "--reduce curves -o %s/x.h5", "curves", "geometry"},
        {2, "--tap proj -o %s/x.h5", "--tap", "--taps"},
        {2, "--bare -o %s/x.h5", "--bare", "-o"},
        {1, "-o %s", "folder", "file"},
        {1, "-o %s/none/x.h5", "no folder", "none"},
        {1, "-o %s/there.h5", "exists", "--force"},
        {2, "-o %s/prompts.jsonl --force", "is the input", "name another"},
        {2, "--reduce geometry --r 32 -o %s/x.h5", "32", "r"},
    };
    char text[1000], arguments[900];
    snprintf(text, sizeof text, "%s/there.h5", folder);
    FILE *file = fopen(text, "w");
    assert_non_null(file);
    fclose(file);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = cases[i].arguments;
        size_t n = 0;
        for (; *at; at++) { /* %s: the folder */
            if (at[0] == '%') {
                n += (size_t)snprintf(arguments + n, sizeof arguments - n, "%s", folder);
                at++;
            } else {
                arguments[n++] = *at;
            }
        }
        arguments[n] = 0;
        snprintf(text, sizeof text, "probe " MODEL " %s/prompts.jsonl %s", folder, arguments);
        refused(cases[i].code, text, cases[i].a, cases[i].b);
        assert_false(there("x.h5") || there("x.h5.part") || there("x.h5.part.journal"));
    }
    refused(1, "probe no/model data/sample/prompts.jsonl -o build/test/probe/x.h5", "no/model", "");
    refused(1, "probe data/sample/softmax no.jsonl -o build/test/probe/x.h5", "no.jsonl", "");
    refused(2, "probe data/sample/softmax", "MODEL PROMPTS", "");
}

/* A limit on the size of files plays the full disk: one line, exit 1, nothing under the final name or beside it. */
static void test_full_disk(void **state) {
    (void)state;
    static const char *const cases[] = {"-o", "--reduce geometry --draws 100 -o"};
    for (int i = 0; i < 2; i++) {
        char command[1500];
        const char *program = getenv("ATTGEO");
        snprintf(command, sizeof command,
                 "sh -c 'ulimit -f 16; %s probe " MODEL " %s/prompts.jsonl %s %s/full.h5 -q >/dev/null 2>%s/full.err'",
                 program ? program : "build/attgeo", folder, cases[i], folder, folder);
        int code = system(command);
        assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 1);
        struct ag_arena *arena = ag_arena_new("test");
        const char *text;
        size_t size;
        snprintf(command, sizeof command, "%s/full.err", folder);
        assert_ok(ag_file_text(&text, &size, command, 1 << 20, arena, &err), &err);
        if (!strstr(text, "full.h5") || !strstr(text, "File too large") || strchr(text, '\n') != text + size - 1)
            fail_msg("said: %s", text);
        ag_arena_free(arena);
        snprintf(command, sizeof command, "ls %s | grep -q 'full.h5'", folder);
        assert_int_not_equal(system(command), 0);
    }
}

static void test_sizes(void **state) {
    (void)state;
    int64_t n;
    memset(&err, 0, sizeof err);
    assert_ok(select_bytes(&n, "800M", "memory", &err), &err);
    assert_int_equal(n, 800000000);
    assert_ok(select_bytes(&n, "2.5GB", "memory", &err), &err);
    assert_int_equal(n, 2500000000);
    assert_ok(select_bytes(&n, "1234", "memory", &err), &err);
    assert_int_equal(n, 1234);
    static const char *const bad[] = {"", "M", "-1", "4Gi", "1e400", "nan", "0", "0x10q", " 4G"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(&err, 0, sizeof err);
        test_refused(select_bytes(&n, bad[i], "memory", &err), AG_E_USAGE, &err, "--memory", "such as", NULL);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(test_dump_command, set_up),     cmocka_unit_test_setup(test_reduce, set_up),
    cmocka_unit_test_setup(test_shards, set_up),           cmocka_unit_test_setup(test_kill, set_up),
    cmocka_unit_test_setup(test_dry_run_and_bare, set_up), cmocka_unit_test_setup(test_wrong, set_up),
    cmocka_unit_test_setup(test_full_disk, set_up),        cmocka_unit_test_setup(test_sizes, set_up),
};
TEST_GROUP(probe, "attgeo probe on the sample: dump, reduce, resume, shards, plan, wrong input", tests)
