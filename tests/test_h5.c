/* base/h5: round trips, shapes and types that do not match, hostile files, results files that appear whole or not. */
#include "tests/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/h5.h"

static struct ag_error err;
static char path[512];

static const char *in_folder(const char *folder, const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void make_sample(const char *file) {
    hid_t h5;
    memset(&err, 0, sizeof err);
    assert_ok(ag_h5_create(&h5, file, &err), &err);
    float keys[3 * 4] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    int64_t offsets[3] = {0, 5, 9};
    uint16_t half[2] = {0x3c00, 0xc000};
    assert_ok(ag_h5_write(h5, "/layers/0/keys", AG_H5_F32, 2, (int64_t[]){3, 4}, keys, &err), &err);
    assert_ok(ag_h5_write(h5, "/prompts/offset", AG_H5_I64, 1, (int64_t[]){3}, offsets, &err), &err);
    assert_ok(ag_h5_write(h5, "half", AG_H5_F16, 1, (int64_t[]){2}, half, &err), &err);
    assert_ok(ag_h5_write(h5, "brain", AG_H5_BF16, 1, (int64_t[]){2}, (uint16_t[]){0x3f80, 0xc000}, &err), &err);
    assert_ok(ag_h5_write(h5, "empty", AG_H5_F64, 2, (int64_t[]){0, 4}, NULL, &err), &err);
    const char *texts[3] = {"a", "", "naïve \xe6\xbc\xa2"};
    assert_ok(ag_h5_write_texts(h5, "/prompts/text", texts, 3, &err), &err);
    assert_ok(ag_h5_set_text(h5, ".", "schema", "test-1", &err), &err);
    assert_ok(ag_h5_set_text(h5, ".", "schema", "test-2", &err), &err); /* replaces */
    assert_ok(ag_h5_set_i64(h5, "layers/0", "Hk", 3, &err), &err);
    assert_ok(ag_h5_set_f64(h5, "layers/0", "scale", 0.125, &err), &err);
    assert_ok(ag_h5_set(h5, "layers/0", "key_head", AG_H5_I32, (int32_t[]){0, 0, 1}, 3, &err), &err);
    assert_ok(ag_h5_link(h5, "/layers/0/rope/keys", "/layers/0/keys", &err), &err);
    assert_ok(ag_h5_close(h5, &err), &err);
}

static void test_round_trip(void **state) {
    (void)state;
    const char *file = in_folder(test_folder("h5"), "a.h5");
    make_sample(file);
    struct ag_arena *arena = ag_arena_new("test");
    hid_t h5;
    assert_ok(ag_h5_open(&h5, file, &err), &err);
    void *data;
    int64_t dims[4] = {-1, 4};
    assert_ok(ag_h5_read(&data, h5, "/layers/0/rope/keys", AG_H5_F32, 2, dims, arena, &err), &err);
    assert_int_equal(dims[0], 3);
    for (int i = 0; i < 12; i++) assert_true(((float *)data)[i] == (float)i);
    assert_ok(ag_h5_read(&data, h5, "/layers/0/keys", AG_H5_F64, 2, dims, arena, &err),
              &err); /* widening is lossless */
    assert_true(((double *)data)[11] == 11);
    dims[0] = -1;
    assert_ok(ag_h5_read(&data, h5, "brain", AG_H5_BF16, 1, dims, arena, &err), &err);
    assert_int_equal(((uint16_t *)data)[1], 0xc000);
    dims[0] = -1;
    assert_ok(ag_h5_read(&data, h5, "brain", AG_H5_F32, 1, dims, arena, &err), &err); /* the library knows the type */
    assert_true(((float *)data)[0] == 1.0f && ((float *)data)[1] == -2.0f);
    assert_ok(ag_h5_read(&data, h5, "half", AG_H5_F32, 1, dims, arena, &err), &err);
    assert_true(((float *)data)[0] == 1.0f && ((float *)data)[1] == -2.0f);
    int64_t n = -1;
    const char *const *texts, *text;
    assert_ok(ag_h5_read_texts(&texts, h5, "/prompts/text", &n, arena, &err), &err);
    assert_int_equal(n, 3);
    assert_string_equal(texts[2], "naïve \xe6\xbc\xa2");
    assert_string_equal(texts[1], "");
    assert_ok(ag_h5_get_text(&text, h5, ".", "schema", arena, &err), &err);
    assert_string_equal(text, "test-2");
    int64_t Hk;
    double scale;
    int32_t heads[3];
    assert_ok(ag_h5_get_i64(&Hk, h5, "layers/0", "Hk", &err), &err);
    assert_ok(ag_h5_get_f64(&scale, h5, "layers/0", "scale", &err), &err);
    assert_ok(ag_h5_get(heads, h5, "layers/0", "key_head", AG_H5_I32, 3, &err), &err);
    assert_int_equal(Hk, 3);
    assert_true(scale == 0.125 && heads[2] == 1);
    int rank;
    assert_ok(ag_h5_shape(&rank, dims, h5, "empty", &err), &err);
    assert_true(rank == 2 && dims[0] == 0 && dims[1] == 4);
    assert_true(ag_h5_exists(h5, "/layers/0/keys"));
    assert_false(ag_h5_exists(h5, "/layers/7/keys"));
    assert_true(ag_h5_has_attribute(h5, "layers/0", "Hk"));
    assert_false(ag_h5_has_attribute(h5, "layers/1", "Hk"));
    assert_ok(ag_h5_close(h5, &err), &err);
    ag_arena_free(arena);
}

static void test_mismatches(void **state) {
    (void)state;
    const char *file = in_folder(test_folder("h5"), "b.h5");
    make_sample(file);
    struct ag_arena *arena = ag_arena_new("test");
    hid_t h5;
    void *data;
    const char *text;
    const char *const *texts;
    int64_t value, n = -1;
    assert_ok(ag_h5_open(&h5, file, &err), &err);
#define REFUSED(call, ...)                                                                                             \
    do {                                                                                                               \
        memset(&err, 0, sizeof err);                                                                                   \
        test_refused(call, AG_E_FORMAT, &err, "b.h5", __VA_ARGS__, NULL);                                              \
    } while (0)
    REFUSED(ag_h5_read(&data, h5, "/layers/0/keys", AG_H5_F32, 2, (int64_t[]){4, 64}, arena, &err), "/layers/0/keys",
            "found (3, 4)", "expected (4, 64)");
    REFUSED(ag_h5_read(&data, h5, "/layers/0/keys", AG_H5_F32, 3, (int64_t[]){-1, -1, -1}, arena, &err), "(*, *, *)");
    REFUSED(ag_h5_read(&data, h5, "/layers/0/keys", AG_H5_I32, 2, (int64_t[]){3, 4}, arena, &err), "found f32", "i32");
    REFUSED(ag_h5_read(&data, h5, "/prompts/offset", AG_H5_I32, 1, (int64_t[]){3}, arena, &err), "found i64", "i32");
    REFUSED(ag_h5_read(&data, h5, "half", AG_H5_BF16, 1, (int64_t[]){2}, arena, &err), "half", "bf16");
    REFUSED(ag_h5_read(&data, h5, "/layers/9/keys", AG_H5_F32, 2, (int64_t[]){3, 4}, arena, &err), "found nothing");
    REFUSED(ag_h5_read(&data, h5, "/layers/0", AG_H5_F32, 2, (int64_t[]){3, 4}, arena, &err), "a dataset");
    REFUSED(ag_h5_read_texts(&texts, h5, "/prompts/offset", &n, arena, &err), "texts");
    REFUSED(ag_h5_get_text(&text, h5, "layers/0", "Hk", arena, &err), "attribute Hk", "one text");
    REFUSED(ag_h5_get_i64(&value, h5, ".", "schema", &err), "attribute schema", "found text");
    REFUSED(ag_h5_get_i64(&value, h5, "layers/0", "scale", &err), "found f64");
    REFUSED(ag_h5_get_i64(&value, h5, "layers/0", "none", &err), "attribute none", "found nothing");
    REFUSED(ag_h5_get(&value, h5, "layers/0", "key_head", AG_H5_I32, 2, &err), "3 elements", "list of 2");
    assert_ok(ag_h5_close(h5, &err), &err);
    ag_arena_free(arena);
}

static void test_hostile_files(void **state) {
    (void)state;
    const char *folder = test_folder("h5");
    hid_t h5;
    memset(&err, 0, sizeof err);
    test_refused(ag_h5_open(&h5, in_folder(folder, "none.h5"), &err), AG_E_IO, &err, "none.h5", "No such file", NULL);
    memset(&err, 0, sizeof err);
    test_refused(ag_h5_open(&h5, folder, &err), AG_E_IO, &err, "a folder", NULL);
    FILE *f = fopen(in_folder(folder, "text.h5"), "w");
    fputs("not hdf5 at all", f);
    fclose(f);
    memset(&err, 0, sizeof err);
    test_refused(ag_h5_open(&h5, path, &err), AG_E_FORMAT, &err, "text.h5", "not an HDF5 file", NULL);
    make_sample(in_folder(folder, "whole.h5"));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size / 2), 0);
    memset(&err, 0, sizeof err);
    test_refused(ag_h5_open(&h5, path, &err), AG_E_FORMAT, &err, "whole.h5", "cut short", NULL);
    /* A writer elsewhere holds the lock: a second process, since HDF5 shares open files inside one. */
    make_sample(in_folder(folder, "busy.h5"));
    int fd = open(path, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    memset(&err, 0, sizeof err);
    test_refused(ag_h5_open(&h5, path, &err), AG_E_IO, &err, "busy.h5", "locked", "HDF5_USE_FILE_LOCKING", NULL);
    struct ag_h5_out out;
    memset(&err, 0, sizeof err);
    test_refused(ag_h5_out_begin(&out, path, true, &err), AG_E_IO, &err, "busy.h5", "locked", "HDF5_USE_FILE_LOCKING",
                 NULL);
    close(fd);
}

static void test_results_file(void **state) {
    (void)state;
    const char *folder = test_folder("h5");
    struct ag_h5_out out;
    memset(&err, 0, sizeof err);
    in_folder(folder, "r.h5");
    assert_ok(ag_h5_out_begin(&out, path, false, &err), &err);
    assert_ok(ag_h5_set_i64(out.file, ".", "x", 1, &err), &err);
    assert_int_equal(ag_path_kind(path), AG_KIND_NONE); /* not there before it is whole */
    ag_h5_out_discard(&out);
    assert_int_equal(ag_path_kind(path), AG_KIND_NONE);
    assert_ok(ag_h5_out_begin(&out, path, false, &err), &err);
    assert_ok(ag_h5_out_commit(&out, &err), &err);
    assert_int_equal(ag_path_kind(path), AG_KIND_FILE);
    test_refused(ag_h5_out_begin(&out, path, false, &err), AG_E_IO, &err, "r.h5", "exists", "--force", NULL);
    memset(&err, 0, sizeof err);
    test_refused(ag_h5_out_check(folder, true, &err), AG_E_IO, &err, "a folder", NULL);
    memset(&err, 0, sizeof err);
    test_refused(ag_h5_out_check(in_folder(folder, "no/such/r.h5"), true, &err), AG_E_IO, &err, "no folder", NULL);
}

/* A disk that is full, played by a limit on the file size in a child: one message, no file, no crash at exit. */
static void test_full(void **state) {
    (void)state;
    const char *folder = test_folder("h5");
    in_folder(folder, "full.h5");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        struct rlimit limit = {64 << 10, 64 << 10};
        setrlimit(RLIMIT_FSIZE, &limit);
        struct ag_error e = AG_ERROR_INIT;
        struct ag_h5_out out;
        static double data[1 << 17];
        enum ag_status status = ag_h5_out_begin(&out, path, false, &e);
        if (status == AG_OK) status = ag_h5_write(out.file, "data", AG_H5_F64, 1, (int64_t[]){1 << 17}, data, &e);
        if (status == AG_OK)
            status = ag_h5_out_commit(&out, &e);
        else
            ag_h5_out_discard(&out);
        exit(status == AG_E_IO && strstr(e.text, "File too large") && ag_path_kind(path) == AG_KIND_NONE ? 0 : 1);
    }
    int result = -1;
    waitpid(child, &result, 0);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    char command[600];
    snprintf(command, sizeof command, "test -z \"$(ls %s | grep full)\"", folder);
    assert_int_equal(system(command), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_mismatches), cmocka_unit_test(test_hostile_files),
    cmocka_unit_test(test_results_file), cmocka_unit_test(test_full),
};
TEST_GROUP(h5, "HDF5 helpers: round trips, mismatches, hostile and locked files, full disk", tests)
