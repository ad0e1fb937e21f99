/* attgeo info: what it says of models, dumps, machines and of what it cannot read. */
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/h5.h"
#include "tests/ckpt_files.h"

/* Runs `attgeo info ARGUMENTS`; every piece of text must be in stdout (or in stderr when the code is not 0). */
static void says(int code, const char *arguments, const char *const *pieces) {
    struct ag_buf out = {0}, err = {0};
    int got = test_cli(&out, &err, "info %s", arguments);
    if (got != code) fail_msg("info %s: exit %d, expected %d: %s", arguments, got, code, err.data);
    for (; *pieces; pieces++) {
        const char *text = code == 0 ? out.data : err.data;
        if (!text || !strstr(text, *pieces))
            fail_msg("info %s: '%s' is not in: %s", arguments, *pieces, text ? text : "nothing");
    }
    ag_buf_free(&out);
    ag_buf_free(&err);
}
#define SAYS(code, arguments, ...) says(code, arguments, (const char *const[]){__VA_ARGS__, NULL})

static json_t *json_of(const char *arguments) {
    struct ag_buf out = {0}, err = {0};
    int got = test_cli(&out, &err, "info --json %s", arguments);
    if (got != 0) fail_msg("info --json %s: exit %d: %s", arguments, got, err.data);
    json_error_t at;
    json_t *json = json_loadb(out.data, out.size, JSON_REJECT_DUPLICATES, &at);
    if (!json) fail_msg("info --json %s: line %d: %s", arguments, at.line, at.text);
    ag_buf_free(&out);
    ag_buf_free(&err);
    return json;
}
static json_int_t number(json_t *json, const char *object, const char *key) {
    json_t *value = json_object_get(json_object_get(json, object), key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void models(void **state) {
    (void)state;
    const char *folder = test_folder("info");
    struct tiny t = tiny_llama;
    t.qkv_bias = t.o_bias = t.tied = true;
    t.more_config = ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0},\"strange_key\":\"x\"";
    tiny_save_hf(&t, folder, 2);
    tiny_save_gguf(&t, test_path("%s/m.gguf", folder));
    SAYS(0, folder, "safetensors", "in 2 files", "model          info\n", "llama, 0.0 million",
         "2 layers, hidden 20, MLP 24, vocabulary 40", "6 query heads, 2 key heads, 8 wide", "biases on q, k, v, o",
         "0-2 -> key head 0, 3-5 -> 1", "linear, theta 10000", "divided by 2", "tied to the embedding", "none usable",
         "memory plan    2048 tokens on cpu", "longer than the 64 positions",
         "2 x model.layers.N.self_attn.q_proj.weight", "[48, 20]", "strange_key", "28: 28 F32");
    SAYS(0, test_path("%s/m.gguf --no-sha256 -v --tokens 10", folder), "GGUF version 3", "10 tokens",
         "blk.1.attn_k.bias", "[16]");

    json_t *json = json_of(folder), *gguf = json_of(test_path("%s/m.gguf", folder));
    static const char *const keys[] = {"layers",      "hidden",    "mlp",      "vocabulary",
                                       "query_heads", "key_heads", "head_dim", "max_position"};
    static const json_int_t values[] = {2, 20, 24, 40, 6, 2, 8, 64};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(number(json, "model", keys[i]), values[i]);
        assert_int_equal(number(gguf, "model", keys[i]), values[i]);
    }
    assert_int_equal(json_array_size(json_object_get(json, "tensors")), 28);
    assert_int_equal(json_array_size(json_object_get(gguf, "tensors")), 28);
    assert_int_equal(number(json, "plan", "dump_bytes_per_token"), 2 * 8 * 8 * 4);
    assert_true(number(json, "plan", "peak_bytes") > 0);
    json_t *map = json_object_get(json_object_get(json, "model"), "key_head_of_query_head");
    assert_int_equal(json_array_size(map), 6);
    for (size_t i = 0; i < 6; i++) assert_int_equal(json_integer_value(json_array_get(map, i)), (json_int_t)i / 3);
    assert_int_equal(strlen(json_string_value(json_object_get(json, "sha256"))), 64);
    assert_true(json_is_null(json_object_get(json, "tokenizer")));
    assert_true(json_is_string(json_object_get(json, "tokenizer_error")));
    json_decref(json);
    json_decref(gguf);
}

static void refused_models(void **state) {
    (void)state;
    const char *folder = test_folder("info_refused");
    struct tiny t = tiny_llama;
    t.family = "mistral";
    tiny_save_hf(&t, folder, 1);
    SAYS(1, folder, "model_type \"mistral\"", "config.json", "qwen3");
    struct ag_buf out = {0};
    assert_int_equal(test_cli(&out, NULL, "info --json %s", folder), 1); /* described as far as its files go */
    json_t *json = json_loadb(out.data, out.size, 0, NULL);
    assert_non_null(json);
    assert_true(json_is_null(json_object_get(json, "model")) &&
                json_array_size(json_object_get(json, "tensors")) == 21);
    json_decref(json);
    ag_buf_free(&out);
    SAYS(1, test_path("%s/absent", folder), "absent", "opened");
    SAYS(1, "/dev/null", "/dev/null", "regular file");
    save_text(test_path("%s/short", folder), "abc");
    SAYS(1, test_path("%s/short", folder), "short", "neither");
    SAYS(2, "", "a PATH is expected");
    SAYS(2, "a b", "info");
    SAYS(2, test_path("%s --tokens 0", folder), "--tokens");
    SAYS(2, test_path("%s --backends", folder), "--backends");
    SAYS(1, test_path("%s --backend cuda", folder), "cuda");
}

static void output_file(void **state) {
    (void)state;
    const char *folder = test_folder("info_output"), *out = test_path("%s/out.txt", folder);
    tiny_save_hf(&tiny_llama, folder, 1);
    assert_int_equal(test_cli(NULL, NULL, "info %s -o %s", folder, out), 0);
    assert_int_equal(ag_path_kind(out), AG_KIND_FILE);
    SAYS(1, test_path("%s -o %s", folder, out), out, "--force");
    assert_int_equal(test_cli(NULL, NULL, "info %s -o %s --force", folder, out), 0);
}

static void backends(void **state) {
    (void)state;
    SAYS(0, "--backends --threads 1", "ref    usable", "cpu    usable: 1 threads", "cuda   ");
    json_t *json = json_of("--backends");
    assert_true(number(json, "cpu", "threads") >= 1);
    assert_true(json_is_array(json_object_get(json_object_get(json, "cuda"), "devices")));
    json_decref(json);
}

/* A file as dumps and results are: described without knowing its schema. */
static void hdf5(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("info_h5"), *path = test_path("%s/x.h5", folder);
    hid_t file;
    static const float data[12];
    static const int64_t list[3] = {7, 8, 9};
    static const char *const texts[] = {"a", "bc"};
    int64_t dims[2] = {3, 4}, none[1] = {0};
    assert_ok(ag_h5_create(&file, path, &err), &err);
    assert_ok(ag_h5_set_text(file, ".", "schema", "attgeo-something-9", &err), &err);
    assert_ok(ag_h5_set_text(file, ".", "model", "na\xc3\xafve \xe2\x9c\x93", &err), &err);
    assert_ok(ag_h5_set_i64(file, ".", "T", 42, &err), &err);
    assert_ok(ag_h5_set_f64(file, ".", "p", 0.25, &err), &err);
    assert_ok(ag_h5_set_f64(file, ".", "missing", (double)NAN, &err), &err);
    assert_ok(ag_h5_set(file, ".", "heads", AG_H5_I64, list, 3, &err), &err);
    for (int i = 0; i < 12; i++) {
        assert_ok(ag_h5_write(file, test_path("layers/%d/rope/keys", i), AG_H5_F32, 2, dims, data, &err), &err);
    }
    assert_ok(ag_h5_write(file, "empty", AG_H5_I64, 1, none, NULL, &err), &err);
    assert_ok(ag_h5_write_texts(file, "prompts/id", texts, 2, &err), &err);
    assert_ok(ag_h5_close(file, &err), &err);
    SAYS(0, path, "schema                 attgeo-something-9", "na\xc3\xafve \xe2\x9c\x93", "7 8 9",
         "12 x /layers/N/rope/keys", "f32   (3, 4)", "/prompts/id", "text  (2)");
    SAYS(0, test_path("-v %s", path), "/layers/11/rope/keys");
    json_t *json = json_of(path);
    assert_int_equal(number(json, "attributes", "T"), 42);
    assert_int_equal(json_array_size(json_object_get(json_object_get(json, "attributes"), "heads")), 3);
    assert_int_equal(json_array_size(json_object_get(json, "datasets")), 14);
    assert_string_equal(json_string_value(json_object_get(json_object_get(json, "attributes"), "missing")), "nan");
    json_decref(json);

    /* many datasets: by group */
    const char *many = test_path("%s/many.h5", folder);
    assert_ok(ag_h5_create(&file, many, &err), &err);
    assert_ok(ag_h5_set_text(file, ".", "schema", "attgeo-something-9", &err), &err);
    for (int i = 0; i < 60; i++) {
        const char *name = test_path("%s/%d/quantity_%c", i < 30 ? "first" : "second", i % 2, 'a' + i / 2 % 15);
        assert_ok(ag_h5_write(file, name, AG_H5_F32, 2, dims, data, &err), &err);
    }
    assert_ok(ag_h5_close(file, &err), &err);
    SAYS(0, many, "60 (N: a number", "30 in /first/N/", "30 in /second/N/", "1.44 kB", "quantity_a, quantity_b",
         ", ...");

    assert_ok(ag_h5_create(&file, test_path("%s/foreign.h5", folder), &err), &err);
    assert_ok(ag_h5_close(file, &err), &err);
    SAYS(1, test_path("%s/foreign.h5", folder), "foreign.h5", "schema");
    struct ag_arena *arena = ag_arena_new("test");
    const char *text;
    size_t n;
    assert_ok(ag_file_text(&text, &n, path, 1 << 20, arena, &err), &err);
    save_bytes(test_path("%s/cut.h5", folder), text, n / 2);
    SAYS(1, test_path("%s/cut.h5", folder), "cut.h5");
    ag_arena_free(arena);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(models),   cmocka_unit_test(refused_models), cmocka_unit_test(output_file),
    cmocka_unit_test(backends), cmocka_unit_test(hdf5),
};
TEST_GROUP(info, "attgeo info: models, dumps, backends, and what is refused", tests)
