/* tests/test_base.c: arenas, files, option tables. */
#include "tests/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/file.h"

static void error_first_wins(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    assert_int_equal(ag_fail(&err, AG_E_FORMAT, "a %d", 1), AG_E_FORMAT);
    assert_int_equal(ag_fail(&err, AG_E_IO, "b"), AG_E_IO);
    assert_string_equal(err.text, "a 1");
    assert_int_equal(ag_fail_context(&err, "file %s", "x"), AG_E_FORMAT);
    assert_int_equal(ag_fail_context(&err, "file %s", "x"), AG_E_FORMAT); /* said once */
    assert_string_equal(err.text, "file x: a 1");
    for (int i = 0; i < 2000; i++) ag_fail_context(&err, i % 2 ? "again" : "and again");
    assert_true(strlen(err.text) < sizeof err.text);
}

static void arena_pieces(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct ag_arena *arena = ag_arena_new("test");
    char *a = ag_arena_alloc(arena, 3, 1, &err), *b = ag_arena_alloc(arena, 0, 8, &err);
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal((uintptr_t)b % 64, 0);
    struct ag_mark mark = ag_arena_mark(arena);
    size_t used = ag_arena_used(arena);
    for (int i = 0; i < 10; i++) memset(AG_NEW(arena, char, 1000000, &err), i, 1000000);
    assert_true(ag_arena_used(arena) > 10000000);
    ag_arena_release(arena, mark);
    assert_int_equal(ag_arena_used(arena), used);
    assert_true(ag_arena_peak(arena) > 10000000);
    assert_null(ag_arena_alloc(arena, INT64_MAX / 4, 8, &err));
    assert_int_equal(err.status, AG_E_MEMORY);
    ag_arena_reset(arena);
    assert_int_equal(ag_arena_used(arena), 0);
    ag_arena_fail_after(1);
    err = (struct ag_error)AG_ERROR_INIT;
    assert_non_null(ag_arena_alloc(arena, 1, 1, &err));
    assert_null(ag_arena_alloc(arena, 1, 1, &err));
    ag_arena_fail_after(-1);
    test_refused(err.status, AG_E_MEMORY, &err, "test", NULL);
    ag_arena_free(arena);
}

static void output_whole_or_not(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("base"), *path = test_path("%s/out", folder);
    struct ag_out out;
    assert_ok(ag_out_begin(&out, path, false, &err), &err);
    fputs("abc", out.stream);
    assert_int_equal(ag_path_kind(path), AG_KIND_NONE);
    assert_ok(ag_out_commit(&out, &err), &err);
    char hex[AG_SHA256_HEX];
    assert_ok(ag_sha256_file(hex, path, &err), &err);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    test_refused(ag_out_begin(&out, path, false, &err), AG_E_IO, &err, path, "--force", NULL);
    err = (struct ag_error)AG_ERROR_INIT;
    assert_ok(ag_out_begin(&out, path, true, &err), &err);
    fputs("abcd", out.stream);
    ag_out_discard(&out);
    assert_ok(ag_sha256_file(hex, path, &err), &err);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    /* /dev/full takes nothing: the commit must notice */
    assert_int_equal(symlink("/dev/full", test_path("%s/full.%ld.tmp", folder, (long)getpid())), 0);
    assert_ok(ag_out_begin(&out, test_path("%s/full", folder), false, &err), &err);
    fputs("abc", out.stream);
    test_refused(ag_out_commit(&out, &err), AG_E_IO, &err, "full", "No space", NULL);
    assert_int_equal(ag_path_kind(test_path("%s/full", folder)), AG_KIND_NONE);
    /* a rename over a device or pipe would destroy it, --force or not */
    assert_int_equal(mkfifo(test_path("%s/pipe", folder), 0600), 0);
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(ag_out_begin(&out, test_path("%s/pipe", folder), true, &err), AG_E_IO, &err, "pipe", "device", NULL);
    assert_int_equal(ag_path_kind(test_path("%s/pipe", folder)), AG_KIND_OTHER);
}

static void hostile_paths(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("base");
    struct ag_file file;
    test_refused(ag_file_open(&file, folder, &err), AG_E_IO, &err, "directory", NULL);
    const char *fifo = test_path("%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(ag_file_open(&file, fifo, &err), AG_E_IO, &err, "regular", NULL);
    const char *path = test_path("%s/shrinks", folder);
    FILE *stream = fopen(path, "wb");
    fputs("0123456789", stream);
    fclose(stream);
    err = (struct ag_error)AG_ERROR_INIT;
    assert_ok(ag_file_open(&file, path, &err), &err);
    char bytes[16];
    test_refused(ag_file_read(&file, bytes, 8, 3, &err), AG_E_FORMAT, &err, "shrinks", NULL);
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(ag_file_read(&file, bytes, UINT64_MAX, 2, &err), AG_E_FORMAT, &err, NULL);
    assert_int_equal(truncate(path, 5), 0);
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(ag_file_read(&file, bytes, 0, 10, &err), AG_E_IO, &err, "shrank", NULL);
    ag_file_close(&file);
}

static void ranges(void **state) {
    (void)state;
    bool mask[8];
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(ag_parse_ranges(mask, 8, "0-2,5,7-7", "layers", &err), &err);
    assert_memory_equal(mask, ((bool[]){1, 1, 1, 0, 0, 1, 0, 1}), sizeof mask);
    const char *bad[] = {"",    ",",  "1,", "-1", "3-1", "8", "0-8", "a", "1-", "1--2", "99999999999999999999",
                         "1 2", "0x1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (struct ag_error)AG_ERROR_INIT;
        test_refused(ag_parse_ranges(mask, 8, bad[i], "layers", &err), AG_E_USAGE, &err, "--layers", NULL);
    }
}

struct example_options {
    int64_t count;
    double rate;
    int kind;
    uint64_t parts;
    bool flag;
    const char *name, *from, *report;
};
static struct example_options seen;
static int seen_arguments;
static enum ag_status example_run(struct ag_run *run) {
    seen = *(struct example_options *)run->options;
    seen_arguments = run->n_arguments;
    return AG_OK;
}
static const char *const kinds[] = {"red", "green", NULL};
#define AT(field) offsetof(struct example_options, field)
static const struct ag_option example_options[] = {
    {"count", 'c', AG_OPT_INT, AT(count), "N", "How many.", NULL, 1, 10},
    {"rate", 0, AG_OPT_REAL, AT(rate), "X", "How fast.", NULL, 0, 1},
    {"kind", 0, AG_OPT_CHOICE, AT(kind), "KIND", "Which.", kinds, 0, 0},
    {"parts", 0, AG_OPT_SET, AT(parts), "LIST", "What.", kinds, 0, 0},
    {"flag", 0, AG_OPT_FLAG, AT(flag), NULL, "Whether.", NULL, 0, 0},
    {"name", 0, AG_OPT_TEXT, AT(name), "TEXT", "Who.", NULL, 0, 0},
    {"from", 0, AG_OPT_INPUT, AT(from), "PATH", "Whence.", NULL, 0, 0},
    {"report", 0, AG_OPT_OUTPUT, AT(report), "PATH", "Whither.", NULL, 0, 0},
};
static const struct example_options example_defaults = {3, 0.5, 1, 0, false, NULL, NULL, NULL};
static const struct ag_command example = {"example",
                                          "an example",
                                          "A [B]",
                                          "Does nothing.\n\nTwice.",
                                          "attgeo example x",
                                          example_options,
                                          8,
                                          sizeof(struct example_options),
                                          &example_defaults,
                                          1,
                                          2,
                                          AG_IGNORES_SEED,
                                          example_run};
static const struct ag_command *const examples[] = {&example};

/* Runs the example command on words; returns the exit code and what was said. */
static int example_cli(char *said, size_t size, int n, const char **words) {
    char *argv[16] = {0};
    char copies[16][64];
    for (int i = 0; i < n; i++) argv[i] = strcpy(copies[i], words[i]);
    FILE *out = fmemopen(said, size, "w"), *sink = fopen("/dev/null", "w");
    bool help = n > 1 && strcmp(words[n - 1], "--help") == 0;
    int code = ag_cli_main(n, argv, examples, 1, help ? out : sink, help ? sink : out);
    fclose(out);
    fclose(sink);
    return code;
}
#define CLI(...)                                                                                                       \
    example_cli(said, sizeof said, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),                      \
                (const char *[]){__VA_ARGS__})

static void option_tables(void **state) {
    (void)state;
    char said[8192];
    assert_int_equal(CLI("attgeo", "example", "x"), 0);
    assert_int_equal(seen.count, 3);
    assert_int_equal(
        CLI("attgeo", "example", "x", "y", "-c", "7", "--rate=0.25", "--kind", "red", "--parts", "green,red", "--flag"),
        0);
    assert_int_equal(seen.count, 7);
    assert_int_equal(seen.kind, 0);
    assert_int_equal(seen.parts, 3);
    assert_true(seen.flag && seen.rate == 0.25);
    assert_int_equal(seen_arguments, 2);
    assert_int_equal(CLI("attgeo", "example", "--help"), 0);
    for (int i = 0; i < 8; i++) assert_non_null(strstr(said, example_options[i].name));
    struct {
        const char *option, *value, *message;
    } bad[] = {{"-c", "11", "1 to 10"},
               {"-c", "0", "--count"},
               {"-c", "3x", "whole"},
               {"-c", "1e3", "whole"},
               {"--rate", "nan", "--rate"},
               {"--rate", "inf", "--rate"},
               {"--rate", "", "--rate"},
               {"--kind", "blue", "red, green"},
               {"--parts", "red,,green", "red, green"},
               {"--name", "", "empty"},
               {"--unknown", "1", "is no option of this command;"},
               {"-z", "1", "-z: is no option"},
               {"--v", "1", "ambiguous: --verbose or --version"},
               {"--k", "blue", "red, green"},
               {"--fl=1", "x", "--flag takes no value"},
               {"--r", "2", "--rate"},
               {"--flag=1", "x", "takes no value"},
               {"--threads", "0", "--threads"},
               {"--seed", "-1", "--seed"},
               {"--backend", "gpu", "cuda"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(CLI("attgeo", "example", "x", bad[i].option, bad[i].value), 2);
        if (strstr(said, bad[i].message) == NULL) fail_msg("%s %s: %s", bad[i].option, bad[i].value, said);
    }
    assert_int_equal(CLI("attgeo", "example"), 2);
    assert_int_equal(CLI("attgeo", "example", "x", "y", "z"), 2);
    assert_int_equal(CLI("attgeo", "exampel", "x"), 2);
    assert_int_equal(CLI("attgeo", "example", "x", "-c"), 2);
    assert_non_null(strstr(said, "needs a value"));
    assert_int_equal(CLI("attgeo"), 2);
    /* no output names an input, a part of an input folder's checkpoint, or another output; --force changes nothing */
    char there[64], inside[96], link_of[96];
    snprintf(there, sizeof there, "%s", test_folder("cli"));
    snprintf(inside, sizeof inside, "%s/model.json", there);
    snprintf(link_of, sizeof link_of, "%s/link", there);
    FILE *file = fopen(inside, "w");
    assert_non_null(file);
    fclose(file);
    unlink(link_of);
    assert_int_equal(symlink("model.json", link_of), 0);
    assert_int_equal(CLI("attgeo", "example", inside, "--force", "-o", inside), 2);
    assert_non_null(strstr(said, "is the input"));
    assert_int_equal(CLI("attgeo", "example", "x", inside, "--force", "--report", link_of), 2);
    assert_non_null(strstr(said, "--report"));
    assert_int_equal(CLI("attgeo", "example", "x", "--from", inside, "--force", "-o", inside), 2);
    assert_non_null(strstr(said, "is the input"));
    assert_int_equal(CLI("attgeo", "example", there, "--force", "-o", inside), 2);
    assert_non_null(strstr(said, "is a file of the input"));
    assert_int_equal(CLI("attgeo", "example", "x", "-o", "new", "--report", "new"), 2);
    assert_non_null(strstr(said, "name the same file"));
    assert_int_equal(CLI("attgeo", "example", inside, "--from", inside, "-o", "new", "--report", "newer"), 0);
    assert_int_equal(CLI("attgeo", "example", "x", "--kind", "b\x1b[31m\nd"), 2);
    assert_non_null(strstr(said, "b?[31m?d"));
}

static void manual_is_current(void **state) {
    (void)state;
    struct ag_buf out = {0};
    assert_int_equal(test_cli(&out, NULL, "--manual"), 0);
    FILE *file = fopen("attgeo.1", "rb");
    assert_non_null(file);
    char *page = calloc(1, out.size + 2);
    size_t n = fread(page, 1, out.size + 1, file);
    fclose(file);
    if (n != out.size || memcmp(page, out.data, n) != 0)
        fail_msg("attgeo.1 differs from attgeo --manual: run make manual");
    free(page);
    ag_buf_free(&out);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(error_first_wins),  cmocka_unit_test(arena_pieces), cmocka_unit_test(output_whole_or_not),
    cmocka_unit_test(hostile_paths),     cmocka_unit_test(ranges),       cmocka_unit_test(option_tables),
    cmocka_unit_test(manual_is_current),
};
TEST_GROUP(base, "status, arenas, files, options", tests)
