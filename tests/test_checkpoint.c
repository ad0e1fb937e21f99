/* probe/checkpoint.c, safetensors.c, gguf.c: valid files of every kind, and hostile ones (spec/checkpoints.md,
 * CASES.md). */
#include "tests/test.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "probe/checkpoint.h"
#include "tests/ckpt_files.h"

/* tests/fuzz_checkpoint.c, which is a program of its own for libFuzzer, is part of this test. */
#define FUZZ_NO_MAIN
#include "tests/fuzz_checkpoint.c"

static void refuse_file(const char *path, enum ag_status expected, const char *a, const char *b) {
    struct ag_error err = AG_ERROR_INIT;
    struct ckpt *ckpt;
    enum ag_status status = ckpt_open(&ckpt, path, &err);
    if (status == AG_OK) fail_msg("%s was accepted; expected a refusal with '%s' and '%s'", path, a, b);
    assert_null(ckpt);
    test_refused(status, expected, &err, path, a, b, NULL);
}

/* Saves buf (and frees it), and expects a refusal that names the file. */
static void refuse(struct ag_buf *buf, enum ag_status expected, const char *a, const char *b) {
    const char *path = "build/test/checkpoint_refused.safetensors";
    save_bytes(path, buf->data, buf->size);
    ag_buf_free(buf);
    refuse_file(path, expected, a, b);
}

static struct ckpt *open_file_ok(const char *path) {
    struct ag_error err = AG_ERROR_INIT;
    struct ckpt *ckpt = NULL;
    assert_ok(ckpt_open(&ckpt, path, &err), &err);
    return ckpt;
}

/* ---- safetensors ---- */

static void safetensors_valid(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *path = test_path("%s/m.safetensors", test_folder("ckpt_valid"));
    struct ag_buf out = {0};
    /* names with escapes, a scalar, an empty tensor, blanks, metadata, odd widths, file order unlike the header's */
    st_raw(&out,
           " \n{ \"__metadata__\" : {\"format\":\"pt\"} "
           ",\"b\\u0120\\ud83d\\ude00\\/\\\"\":{\"shape\":[2,3],\"dtype\":\"F32\",\"data_offsets\""
           ":[0,24]},\"scalar\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[25,27]},\"empty\":{\"dtype\":"
           "\"F16\",\"shape\":[0,7],"
           "\"data_offsets\":[25,25]},\"odd\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[24,25]}}  ",
           27);
    for (int i = 0; i < 24; i++) out.data[out.size - 27 + (size_t)i] = (char)i;
    save_bytes(path, out.data, out.size);
    struct ckpt *ckpt = open_file_ok(path);
    assert_int_equal(ckpt->n_tensors, 4);
    for (int i = 1; i < 4; i++) assert_true(strcmp(ckpt->tensors[i - 1].name, ckpt->tensors[i].name) < 0);
    const struct ckpt_tensor *t = ckpt_find(ckpt, "b\xc4\xa0\xf0\x9f\x98\x80/\"");
    assert_non_null(t);
    assert_true(t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->elements == 6 && t->dtype == KERN_F32);
    char row[12];
    assert_int_equal(ckpt_row_bytes(t), 12);
    assert_ok(ckpt_read_rows(ckpt, t, row, 1, 1, &err), &err);
    for (int i = 0; i < 12; i++) assert_int_equal(row[i], 12 + i);
    assert_int_equal(ckpt_read_rows(ckpt, t, row, 1, 2, &err), AG_E_INTERNAL);
    assert_int_equal(ckpt_find(ckpt, "scalar")->elements, 1);
    assert_int_equal(ckpt_find(ckpt, "empty")->elements, 0);
    assert_int_equal(ckpt_find(ckpt, "odd")->dtype, -1);
    assert_null(ckpt_find(ckpt, "none"));
    char hex[AG_SHA256_HEX], expected[AG_SHA256_HEX];
    assert_ok(ckpt_sha256(hex, ckpt, &err), &err);
    assert_ok(ag_sha256_bytes(expected, out.data, out.size, &err), &err);
    assert_string_equal(hex, expected);
    ckpt_close(ckpt);
    ag_buf_free(&out);
    st_raw(&out, "{}", 0);
    save_bytes(path, out.data, out.size);
    ckpt = open_file_ok(path);
    assert_int_equal(ckpt->n_tensors, 0);
    ckpt_close(ckpt);
    ag_buf_free(&out);
}

static void safetensors_header_sizes(void **state) {
    (void)state;
    static const uint64_t sizes[] = {99993, 100000, 100001, 1000003};
    const char *path = test_path("%s/m.safetensors", test_folder("ckpt_sizes"));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct st_writer w = {0};
        st_tensor(&w, "x", "F32", 1, (const int64_t[]){3}, "0123456789ab", 12);
        st_save(&w, path, sizes[i]);
        struct ckpt *ckpt = open_file_ok(path);
        assert_int_equal(ckpt_find(ckpt, "x")->offset, 8 + sizes[i]);
        ckpt_close(ckpt);
    }
}

static void safetensors_hostile(void **state) {
    (void)state;
    struct ag_buf b = {0};
    test_folder("checkpoint"); /* makes build/test */
    static const uint64_t lengths[] = {UINT64_C(1) << 62, UINT64_MAX, UINT64_MAX - 7, INT64_MAX, 100000001, 17};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        put_u64(&b, lengths[i]);
        ag_buf_add(&b, "{}", 2, NULL);
        char text[32];
        snprintf(text, sizeof text, "%llu", (unsigned long long)lengths[i]);
        refuse(&b, AG_E_FORMAT, "header", text);
    }
    ag_buf_add(&b, "1234567", 7, NULL);
    refuse(&b, AG_E_FORMAT, "7 bytes", "at least 8");
    ag_buf_add(&b, "", 0, NULL);
    refuse(&b, AG_E_FORMAT, "0 bytes", "at least 8");

#define T(name, rest) "\"" name "\":{" rest "}"
#define F32_3 "\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":"
    static const struct {
        const char *header;
        uint64_t n;
        const char *a, *b;
        enum ag_status status;
    } cases[] = {
        {"", 0, "found the end", "'{'", AG_E_FORMAT},
        {"[]", 0, "'['", "'{'", AG_E_FORMAT},
        {"x{}", 0, "'x'", "'{'", AG_E_FORMAT},
        {"{}x", 0, "'x'", "blanks", AG_E_FORMAT},
        {"{} {}", 0, "byte 3", "blanks", AG_E_FORMAT},
        {"{\"a\"", 0, "the end", "':'", AG_E_FORMAT},
        {"{\"a", 0, "the end", "end of a string", AG_E_FORMAT},
        {"{\"a\\", 0, "the end", "escape", AG_E_FORMAT},
        {"{\"a\\x\":1}", 0, "'x'", "escape", AG_E_FORMAT},
        {"{\"a\\u12\":1}", 0, "byte", "hex", AG_E_FORMAT},
        {"{\"a\\ud800\":1}", 0, "byte", "surrogate", AG_E_FORMAT},
        {"{\"a\\udc00\":1}", 0, "byte", "hex digits", AG_E_FORMAT},
        {"{\"a\\ud800\\u0041\":1}", 0, "byte", "surrogate", AG_E_FORMAT},
        {"{\"a\\u0000\":1}", 0, "byte", "character", AG_E_FORMAT},
        {"{\"a\\n\":1}", 0, "control", "name", AG_E_FORMAT},
        {"{\"\xff\":1}", 0, "UTF-8", "damaged", AG_E_FORMAT},
        {"{\"\xc0\x80\":1}", 0, "UTF-8", "damaged", AG_E_FORMAT},
        {"{\"\xed\xa0\x80\":1}", 0, "UTF-8", "damaged", AG_E_FORMAT},
        {"{\"a\":1}", 0, "'1'", "'{' of a tensor", AG_E_FORMAT},
        {"{\"a\":[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]}", 0, "'['", "'{' of a tensor", AG_E_FORMAT},
        {"{\"__metadata__\":{\"a\":1}}", 0, "'1'", "string", AG_E_FORMAT},
        {"{\"__metadata__\":{\"a\":{\"b\":[]}}}", 0, "'{'", "string", AG_E_FORMAT},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__", "twice", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,12]") "," T("a", F32_3 "[12,24]") "}", 24, "'a'", "twice", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,12]") "," T("b", F32_3 "[0,12]") "}", 12, "'b'", "inside another", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,12]") "," T("b", F32_3 "[8,20]") "}", 20, "'b'", "inside another", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,12]") "," T("b", F32_3 "[16,28]") "}", 28, "'b'", "hole", AG_E_FORMAT},
        {"{" T("a", F32_3 "[4,16]") "}", 16, "'a'", "hole", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,12]") "}", 13, "1 bytes after", "end of the file", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,12]") "}", 7, "'a'", "5 are missing", AG_E_FORMAT},
        {"{" T("a", F32_3 "[12,0]") "}", 12, "'a'", "[12, 0]", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,16]") "}", 16, "'a'", "need 12 bytes", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,12.0]") "}", 12, "'.'", "integer", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,1e2]") "}", 12, "'e'", "integer", AG_E_FORMAT},
        {"{" T("a", F32_3 "[-0,12]") "}", 12, "'-'", "integer", AG_E_FORMAT},
        {"{" T("a", F32_3 "[00,12]") "}", 12, "'0'", "integer", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,18446744073709551628]") "}", 12, "64 bits", "integer", AG_E_FORMAT},
        {"{" T("a", F32_3 "[18446744073709551610,6]") "}", 12, "'a'", "need 12", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0]") "}", 12, "']'", "two numbers", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,6,12]") "}", 12, "','", "two numbers", AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"F32\",\"shape\":[3]") "}", 12, "'a'", "lacks data_offsets", AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"F32\",\"data_offsets\":[0,4]") "}", 4, "'a'", "lacks shape", AG_E_FORMAT},
        {"{" T("a", "\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, "'a'", "lacks dtype", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,12],\"shape\":[3]") "}", 12, "'a'", "second key 'shape'", AG_E_FORMAT},
        {"{" T("a", F32_3 "[0,12],\"strides\":[1]") "}", 12, "'a'", "unknown key 'strides'", AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, "'a'", "'Q9'", AG_E_UNSUPPORTED},
        {"{" T("a", "\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, "'7'", "type", AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]") "}", 4, "'-'", "integer", AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"F32\",\"shape\":3,\"data_offsets\":[0,4]") "}", 4, "'3'", "'['", AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"U8\",\"shape\":[1099511627776,1099511627776],\"data_offsets\":[0,0]") "}", 0, "'a'",
         "dimension 1", AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]") "}", 0, "'a'", "2^63",
         AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"F64\",\"shape\":[1152921504606846976],\"data_offsets\":[0,0]") "}", 0, "'a'",
         "whole number", AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]") "}", 1, "'a'", "whole number",
         AG_E_FORMAT},
        {"{" T("a", "\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]") "}", 1, "'a'",
         "8 dimensions", AG_E_UNSUPPORTED},
        {"{" T("a", F32_3 "[0,12]") ",}", 12, "'}'", "name of a tensor", AG_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        st_raw(&b, cases[i].header, cases[i].n);
        refuse(&b, cases[i].status, cases[i].a, cases[i].b);
    }
    /* a header of brackets only: refused without a tree of them */
    put_u64(&b, 10000000);
    ag_buf_add(&b, "{\"a\":", 5, NULL);
    for (int i = 5; i < 10000000; i++) ag_buf_add(&b, "[", 1, NULL);
    refuse(&b, AG_E_FORMAT, "'['", "tensor");
}

/* One of three shards is 4 kB short: refused at once, with shard, tensor and missing bytes. */
static void shards(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct tiny t = tiny_llama;
    t.C = 200;
    const char *folder = test_folder("ckpt_shards"), *shard = test_path("%s/model-00002-of-00003.safetensors", folder),
               *index = test_path("%s/model.safetensors.index.json", folder);
    tiny_save_hf(&t, folder, 3);
    struct ckpt *ckpt = open_file_ok(folder);
    assert_int_equal(ckpt->n_files, 3);
    char hex[AG_SHA256_HEX], expected[AG_SHA256_HEX];
    struct ag_buf lines = {0};
    for (int i = 1; i <= 3; i++) {
        char one[AG_SHA256_HEX];
        assert_ok(ag_sha256_file(one, test_path("%s/model-%05d-of-00003.safetensors", folder, i), &err), &err);
        ag_buf_printf(&lines, &err, "%s  model-%05d-of-00003.safetensors\n", one, i);
    }
    assert_ok(ag_sha256_bytes(expected, lines.data, lines.size, &err), &err);
    assert_ok(ckpt_sha256(hex, ckpt, &err), &err);
    assert_string_equal(hex, expected);
    ag_buf_free(&lines);

    /* the file shrinks while it is open: a message at the read, no signal */
    const struct ckpt_tensor *last = NULL;
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct ckpt_tensor *x = &ckpt->tensors[i];
        if (x->file == 1 && (!last || x->offset > last->offset)) last = x;
    }
    struct stat info;
    assert_int_equal(stat(shard, &info), 0);
    assert_int_equal(truncate(shard, info.st_size - 4096), 0);
    char *out = test_malloc(last->bytes);
    test_refused(ckpt_read_rows(ckpt, last, out, 0, last->rank == 2 ? last->shape[0] : 1, &err), AG_E_IO, &err, shard,
                 "shrank", NULL);
    test_free(out);
    char *name = strdup(last->name);
    ckpt_close(ckpt);

    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(ckpt_open(&ckpt, folder, &err), AG_E_FORMAT, &err, shard, name, "4096 are missing", NULL);
    free(name);
    assert_int_equal(truncate(shard, info.st_size / 2), 0); /* the header and half of the data */
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(ckpt_open(&ckpt, folder, &err), AG_E_FORMAT, &err, shard, "missing", NULL);
    assert_int_equal(unlink(shard), 0);
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(ckpt_open(&ckpt, folder, &err), AG_E_IO, &err, shard, NULL);

    static const struct {
        const char *index, *a, *b;
        enum ag_status status;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"../model-00001-of-00003.safetensors\"}}", "'a'", "same folder", AG_E_FORMAT},
        {"{\"weight_map\":{\"a\":\"sub/x.safetensors\"}}", "'a'", "same folder", AG_E_FORMAT},
        {"{\"weight_map\":{\"a\":\"..\"}}", "'a'", "same folder", AG_E_FORMAT},
        {"{\"weight_map\":{\"a\":\"x\\\\y.safetensors\"}}", "'a'", "same folder", AG_E_FORMAT},
        {"{\"weight_map\":{\"a\":3}}", "'a'", "same folder", AG_E_FORMAT},
        {"{\"weight_map\":{\"a\":\"pytorch_model.bin\"}}", "'a'", ".safetensors", AG_E_FORMAT},
        {"{\"weight_map\":{}}", "weight_map", "object", AG_E_FORMAT},
        {"{\"weight_map\":[]}", "weight_map", "object", AG_E_FORMAT},
        {"{}", "weight_map", "object", AG_E_FORMAT},
        {"[]", "object", "index", AG_E_FORMAT},
        {"{\"weight_map\":", "line 1", "JSON", AG_E_FORMAT},
        {"{\"weight_map\":{\"a\":\"b\\u0000.safetensors\"}}", "line 1", "NUL", AG_E_FORMAT},
        {"{\"weight_map\":{\"absent\":\"model-00001-of-00003.safetensors\"}}", "'absent'", "is not in", AG_E_FORMAT},
        {"{\"weight_map\":{\"absent\":\"model-00009-of-00003.safetensors\"}}", "model-00009", "opened", AG_E_IO},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        save_text(index, cases[i].index);
        err = (struct ag_error)AG_ERROR_INIT;
        test_refused(ckpt_open(&ckpt, folder, &err), cases[i].status, &err, folder, cases[i].a, cases[i].b, NULL);
    }
    /* a tensor in two shards; and in another shard than the index says */
    struct st_writer w = {0};
    st_tensor(&w, "model.embed_tokens.weight", "F32", 1, (const int64_t[]){1}, "1234", 4);
    st_save(&w, shard, 0);
    save_text(index, "{\"weight_map\":{\"model.embed_tokens.weight\":\"model-00001-of-00003.safetensors\",\"x\":"
                     "\"model-00002-of-00003.safetensors\"}}");
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(ckpt_open(&ckpt, folder, &err), AG_E_FORMAT, &err, "model.embed_tokens.weight", "is also in", NULL);
    st_tensor(&w, "x", "F32", 1, (const int64_t[]){1}, "1234", 4);
    st_tensor(&w, "y", "F32", 1, (const int64_t[]){1}, "1234", 4);
    st_save(&w, shard, 0);
    save_text(
        index,
        "{\"weight_map\":{\"x\":\"model-00002-of-00003.safetensors\",\"y\":\"model-00001-of-00003.safetensors\"}}");
    err = (struct ag_error)AG_ERROR_INIT;
    test_refused(ckpt_open(&ckpt, folder, &err), AG_E_FORMAT, &err, "'y'", "expected in model-00001", NULL);
}

static void folders(void **state) {
    (void)state;
    const char *folder = test_folder("ckpt_folder");
    refuse_file(folder, AG_E_UNSUPPORTED, "no model", "config.json");
    save_text(test_path("%s/pytorch_model.bin", folder), "x");
    refuse_file(folder, AG_E_UNSUPPORTED, "no model", "pickle");
    save_text(test_path("%s/a.gguf", folder), "x");
    save_text(test_path("%s/b.gguf", folder), "x");
    refuse_file(folder, AG_E_UNSUPPORTED, "2 .gguf", "name the one");
    tiny_save_hf(&tiny_llama, folder, 1);
    ckpt_close(open_file_ok(folder)); /* safetensors with a configuration come first */
    struct ckpt *ckpt = open_file_ok(test_path("%s/", folder));
    assert_int_equal(ckpt->format, CKPT_SAFETENSORS);
    ckpt_close(ckpt);
    save_text(test_path("%s/adapter_config.json", folder), "{}");
    refuse_file(folder, AG_E_UNSUPPORTED, "adapter", "merge");
    assert_int_equal(unlink(test_path("%s/config.json", folder)), 0);
    refuse_file(folder, AG_E_FORMAT, "config.json", "download");
    refuse_file(test_path("%s/nothing", folder), AG_E_IO, "nothing", "opened");
    refuse_file("/dev/null", AG_E_IO, "regular file", "/dev/null");
    save_bytes(test_path("%s/x.h5", folder), "\x89HDF\r\n\x1a\n", 8);
    refuse_file(test_path("%s/x.h5", folder), AG_E_UNSUPPORTED, "HDF5", "expected");
    save_bytes(test_path("%s/x.pt", folder), "PK\3\4xxxx", 8);
    refuse_file(test_path("%s/x.pt", folder), AG_E_UNSUPPORTED, "PyTorch", "expected");
    save_text(test_path("%s/x.txt", folder), "once upon a time");
    refuse_file(test_path("%s/x.txt", folder), AG_E_FORMAT, "neither", "config.json");
    save_text(test_path("%s/x.gguf", folder), "");
    refuse_file(test_path("%s/x.gguf", folder), AG_E_FORMAT, "neither", "GGUF");
    save_text(test_path("%s/x.safetensors.index.json", folder), "{}");
    refuse_file(test_path("%s/x.safetensors.index.json", folder), AG_E_USAGE, "an index", "folder");
}

/* ---- GGUF ---- */

static void gguf_valid(void **state) {
    (void)state;
    const char *path = test_path("%s/m.gguf", test_folder("ckpt_gguf"));
    for (uint32_t version = 2; version <= 3; version++) {
        for (uint32_t alignment = 8; alignment <= 64; alignment *= 8) {
            struct gguf_writer w = {.version = version, .alignment = alignment};
            static const char *const texts[] = {"a", "", "\xff\xfe", "bcd"};
            float f[4] = {1, 2, 3, 4};
            uint8_t q8[68];
            for (int i = 0; i < 68; i++) q8[i] = (uint8_t)i;
            gguf_u32(&w, "general.alignment", alignment);
            gguf_texts(&w, "texts", texts, 4);
            gguf_texts(&w, "none", texts, 0);
            gguf_bool(&w, "yes", 1);
            gguf_text(&w, "text", "some text");
            put_text(&w.keys, "i8"), put_u32(&w.keys, 1), ag_buf_add(&w.keys, "\xfe", 1, NULL), w.n_keys++;
            put_text(&w.keys, "u16"), put_u32(&w.keys, 2), ag_buf_add(&w.keys, "\xfe\xff", 2, NULL), w.n_keys++;
            put_text(&w.keys, "i64"), put_u32(&w.keys, 11), put_u64(&w.keys, (uint64_t)INT64_MIN), w.n_keys++;
            put_text(&w.keys, "f64"), put_u32(&w.keys, 12), put_u64(&w.keys, UINT64_C(0x3ff8000000000000)), w.n_keys++;
            put_text(&w.keys, "list"), put_u32(&w.keys, 9), put_u32(&w.keys, 5), put_u64(&w.keys, 2), w.n_keys++;
            put_u32(&w.keys, 7), put_u32(&w.keys, (uint32_t)-7);
            put_text(&w.keys, "reals"), put_u32(&w.keys, 9), put_u32(&w.keys, 6), put_u64(&w.keys, 1), w.n_keys++;
            put_u32(&w.keys, 0x40200000);
            gguf_tensor(&w, "vector", 0, 1, (const uint64_t[]){4}, f, 16);
            gguf_tensor(&w, "matrix", 8, 2, (const uint64_t[]){32, 2}, q8, 68);
            gguf_tensor(&w, "scalar", 0, 0, NULL, f, 4);
            gguf_tensor(&w, "empty", 8, 2, (const uint64_t[]){32, 0}, NULL, 0);
            gguf_tensor(&w, "strange", 23, 1, (const uint64_t[]){256}, (const uint8_t[136]){0}, 136);
            struct ag_buf out = {0};
            struct ag_error err = AG_ERROR_INIT;
            gguf_bytes(&w, &out);
            if (version == 2)
                out.size -= (alignment - 136 % alignment) % alignment; /* the last padding may be absent */
            save_bytes(path, out.data, out.size);
            ag_buf_free(&out);
            struct ckpt *ckpt = open_file_ok(path);
            assert_true(ckpt->format == CKPT_GGUF && ckpt->gguf_version == (int)version);
            assert_true(ckpt->n_tensors == 5 && ckpt->n_meta == 11);
            const struct ckpt_meta *m = ckpt_meta_find(ckpt, "texts");
            assert_true(m->kind == CKPT_META_ARRAY && m->element_kind == CKPT_META_TEXT && m->n == 4);
            assert_string_equal(m->texts[3], "bcd");
            assert_string_equal(m->texts[2], "\xff\xfe");
            assert_true(m->text_sizes[1] == 0 && m->text_sizes[2] == 2 && m->texts[1][0] == 0);
            assert_int_equal(ckpt_meta_find(ckpt, "none")->n, 0);
            assert_true(ckpt_meta_find(ckpt, "yes")->kind == CKPT_META_BOOL && ckpt_meta_find(ckpt, "yes")->i == 1);
            assert_string_equal(ckpt_meta_find(ckpt, "text")->text, "some text");
            assert_int_equal(ckpt_meta_find(ckpt, "i8")->i, -2);
            assert_int_equal(ckpt_meta_find(ckpt, "u16")->i, 0xfffe);
            assert_true(ckpt_meta_find(ckpt, "i64")->i == INT64_MIN);
            assert_true(ckpt_meta_find(ckpt, "f64")->f == 1.5);
            assert_true(ckpt_meta_find(ckpt, "list")->is[0] == 7 && ckpt_meta_find(ckpt, "list")->is[1] == -7);
            assert_true(ckpt_meta_find(ckpt, "reals")->fs[0] == 2.5);
            const struct ckpt_tensor *t = ckpt_find(ckpt, "matrix");
            assert_true(t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 32 && t->dtype == KERN_Q8_0 &&
                        t->bytes == 68);
            assert_true(ckpt_find(ckpt, "strange")->dtype == -1 && ckpt_find(ckpt, "empty")->bytes == 0);
            assert_string_equal(ckpt_find(ckpt, "strange")->type, "IQ4_XS");
            uint8_t row[34];
            assert_ok(ckpt_read_rows(ckpt, t, row, 1, 1, &err), &err);
            assert_memory_equal(row, q8 + 34, 34);
            ckpt_close(ckpt);
        }
    }
}

/* A GGUF file of one tensor info with these fields, and `bytes` bytes of data. */
static void one_tensor(struct ag_buf *out, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset,
                       uint64_t bytes) {
    struct gguf_writer w = {.n_tensors = 1};
    put_text(&w.infos, "the.tensor");
    put_u32(&w.infos, n_dims);
    for (uint32_t i = 0; i < n_dims && i < 8; i++) put_u64(&w.infos, dims[i]);
    put_u32(&w.infos, type);
    put_u64(&w.infos, offset);
    for (uint64_t i = 0; i < bytes; i++) ag_buf_add(&w.data, "", 1, NULL);
    gguf_bytes(&w, out);
}

static void gguf_hostile_tensors(void **state) {
    (void)state;
    struct ag_buf b = {0};
    static const struct {
        uint32_t n_dims;
        uint64_t dims[8];
        uint32_t type;
        uint64_t offset, bytes;
        const char *say;
        enum ag_status status;
    } cases[] = {
        {2, {INT64_MAX, 2}, 0, 0, 64, "dimension 1 is 2,", AG_E_FORMAT},
        {2, {2, INT64_MAX}, 0, 0, 64, "dimension 1 is 9223372036854775807", AG_E_FORMAT},
        {1, {UINT64_MAX}, 0, 0, 64, "dimension 0 is 18446744073709551615", AG_E_FORMAT},
        {3, {UINT64_C(1) << 32, UINT64_C(1) << 31, 0}, 0, 0, 64, "dimension 1", AG_E_FORMAT},
        {0xffffffff, {1, 1, 1, 1, 1, 1, 1, 1}, 0, 0, 64, "4294967295 dimensions", AG_E_FORMAT},
        {5, {1, 1, 1, 1, 1}, 0, 0, 64, "5 dimensions", AG_E_FORMAT},
        {1, {INT64_MAX / 2}, 0, 0, 64, "bytes", AG_E_FORMAT},
        {2, {1, INT64_MAX / 4}, 0, 0, 64, "missing", AG_E_FORMAT},
        {1, {16}, 3, 0, 64, "multiple of 32", AG_E_FORMAT},
        {1, {33}, 8, 0, 64, "multiple of 32", AG_E_FORMAT},
        {1, {128}, 12, 0, 144, "multiple of 256", AG_E_FORMAT},
        {0, {0}, 12, 0, 144, "multiple of 256", AG_E_FORMAT},
        {1, {4}, 4, 0, 64, "type id 4", AG_E_UNSUPPORTED},
        {1, {4}, 42, 0, 64, "type id 42", AG_E_UNSUPPORTED},
        {1, {4}, 0xffffffff, 0, 64, "type id 4294967295", AG_E_UNSUPPORTED},
        {1, {4}, 0, 16, 64, "offset is at offset 16", AG_E_FORMAT},
        {1, {4}, 0, 64, 64, "16 are missing", AG_E_FORMAT},
        {1, {4}, 0, UINT64_MAX - 31, 64, "missing", AG_E_FORMAT},
        {1, {17}, 0, 0, 64, "4 are missing", AG_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        one_tensor(&b, cases[i].n_dims, cases[i].dims, cases[i].type, cases[i].offset, cases[i].bytes);
        const char *say = !strncmp(cases[i].say, "offset is", 9) ? "is at offset 16" : cases[i].say;
        refuse(&b, cases[i].status, "'the.tensor'", say);
    }
    float f[8] = {0};
    for (int kind = 0; kind < 3; kind++) { /* the same name, overlap, no name */
        struct gguf_writer w = {0};
        gguf_tensor(&w, "a", 0, 1, (const uint64_t[]){8}, f, 32);
        gguf_tensor(&w, kind == 0 ? "a" : kind == 1 ? "b" : "", 0, 1, (const uint64_t[]){8}, f, 32);
        if (kind == 1) memset(w.infos.data + w.infos.size - 8, 0, 8);
        gguf_bytes(&w, &b);
        refuse(&b, AG_E_FORMAT, kind == 2 ? "name of a tensor" : "'a'",
               kind == 0   ? "twice"
               : kind == 1 ? "overlap"
                           : "0 bytes");
    }
    struct gguf_writer w = {0};
    gguf_tensor(&w, "a234567890123456789012345678901234567890123456789012345678901234", 0, 1, (const uint64_t[]){8}, f,
                32);
    gguf_bytes(&w, &b);
    refuse(&b, AG_E_FORMAT, "name of a tensor", "64 bytes");
}

static void gguf_hostile_header(void **state) {
    (void)state;
    struct ag_buf b = {0};
    static const struct {
        uint32_t version;
        uint64_t tensors, keys;
        const char *say;
        enum ag_status status;
    } cases[] = {
        {1, 0, 0, "version 1", AG_E_UNSUPPORTED},
        {4, 0, 0, "version 4", AG_E_UNSUPPORTED},
        {0, 0, 0, "version 0", AG_E_UNSUPPORTED},
        {0x03000000, 0, 0, "big-endian", AG_E_UNSUPPORTED},
        {0x02000000, 0, 0, "big-endian", AG_E_UNSUPPORTED},
        {3, UINT64_MAX, 0, "tensors", AG_E_FORMAT},
        {3, 0, UINT64_MAX, "keys", AG_E_FORMAT},
        {3, UINT64_C(1) << 40, 0, "1099511627776 tensors", AG_E_FORMAT},
        {3, 0, 1, "1 keys", AG_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ag_buf_add(&b, "GGUF", 4, NULL);
        put_u32(&b, cases[i].version);
        put_u64(&b, cases[i].tensors);
        put_u64(&b, cases[i].keys);
        refuse(&b, cases[i].status, cases[i].say, cases[i].say);
    }
    ag_buf_add(&b, "GGUF\3\0\0", 7, NULL);
    refuse(&b, AG_E_FORMAT, "cut short", "byte 4");

    /* values: the type, then up to three u64 of content; 64 bytes of zeros follow */
    static const struct {
        uint32_t type, element;
        uint64_t n;
        const char *say;
    } values[] = {
        {13, 0, 0, "type 13"},
        {0xffffffff, 0, 0, "type 4294967295"},
        {8, 0, UINT64_MAX, "18446744073709551615"},
        {8, 0, UINT64_C(1) << 62, "2^30"},
        {8, 0, 1000, "needs 1000 bytes"},
        {9, 9, 1, "array inside an array"},
        {9, 99, 1, "type 99"},
        {9, 0, UINT64_MAX, "18446744073709551615 elements"},
        {9, 8, UINT64_C(1) << 61, "elements"},
        {9, 8, 9, "room for 8"},
        {9, 10, 9, "room for 8"},
        {9, 0, 65, "room for 64"},
        {9, 7, 1, NULL}, /* valid: one false */
        {7, 0, 2, "0 or 1"},
        {10, 0, UINT64_C(1) << 63, "2^63"},
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct gguf_writer w = {.n_keys = 1};
        put_text(&w.keys, "the.key");
        put_u32(&w.keys, values[i].type);
        if (values[i].type == 9) put_u32(&w.keys, values[i].element);
        put_u64(&w.keys, values[i].n);
        for (int k = 0; k < 8; k++) put_u64(&w.keys, 0);
        gguf_bytes(&w, &b);
        if (values[i].say) {
            refuse(&b, AG_E_FORMAT, "the.key", values[i].say);
        } else {
            save_bytes("build/test/checkpoint_refused.safetensors", b.data, b.size);
            ag_buf_free(&b);
            ckpt_close(open_file_ok("build/test/checkpoint_refused.safetensors"));
        }
    }
    static const uint32_t alignments[] = {0, 3, 33, 0xffffffff};
    for (size_t i = 0; i < 4; i++) {
        struct gguf_writer w = {0};
        gguf_u32(&w, "general.alignment", alignments[i]);
        gguf_bytes(&w, &b);
        refuse(&b, AG_E_FORMAT, "general.alignment", "power of two");
    }
    struct gguf_writer w = {0};
    gguf_u32(&w, "k", 1);
    gguf_u32(&w, "k", 1);
    gguf_bytes(&w, &b);
    refuse(&b, AG_E_FORMAT, "'k'", "twice");
    w = (struct gguf_writer){0};
    gguf_u32(&w, "a\nb", 1);
    gguf_bytes(&w, &b);
    refuse(&b, AG_E_FORMAT, "name of a key", "ASCII");
    w = (struct gguf_writer){0};
    gguf_u32(&w, "split.count", 3);
    gguf_bytes(&w, &b);
    refuse(&b, AG_E_UNSUPPORTED, "split in 3", "merge");
    w = (struct gguf_writer){0};
    const char *part = test_path("%s/x-00002-of-00003.gguf", test_folder("ckpt_split"));
    gguf_save(&w, part);
    refuse_file(part, AG_E_UNSUPPORTED, "split in 3", "merge");
}

/* Every way to cut a valid file short: an error each time, never a crash, never a file that opens. */
static void every_length(void **state) {
    (void)state;
    struct ag_buf whole = {0};
    struct gguf_writer w = {0};
    float f[8] = {0};
    static const char *const texts[] = {"one", "two"};
    gguf_texts(&w, "texts", texts, 2);
    gguf_u32(&w, "number", 5);
    gguf_tensor(&w, "a", 0, 2, (const uint64_t[]){4, 2}, f, 32);
    gguf_bytes(&w, &whole);
    const char *path = test_path("%s/cut", test_folder("ckpt_cut"));
    for (int format = 0; format < 2; format++) {
        for (size_t n = 0; n <= whole.size; n++) {
            struct ag_error err = AG_ERROR_INIT;
            struct ckpt *ckpt;
            save_bytes(path, whole.data, n);
            enum ag_status status = ckpt_open(&ckpt, path, &err);
            assert_true((status == AG_OK) == (n == whole.size));
            assert_true(status == AG_OK || strstr(err.text, path));
            ckpt_close(ckpt);
        }
        ag_buf_free(&whole);
        st_raw(
            &whole,
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[0,32]},\"b\":{\"dtype\":\"I64\",\"shape\":[],"
            "\"data_offsets\":[32,40]}}",
            40);
    }
    ag_buf_free(&whole);
}

/* ---- random damage ---- */

static uint64_t next_random(uint64_t *s) {
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *s >> 33;
}

/* Damaged copies of small valid files through the fuzz target, which opens them, opens the model and reads every
 * tensor. The seed is fixed: what failed once fails again. */
static void mutations(void **state) {
    (void)state;
    struct ag_buf seeds[3] = {{0}, {0}, {0}};
    struct tiny t = tiny_llama;
    t.L = 1;
    t.C = 2;
    t.F = 2;
    t.V = 3;
    t.D = 2;
    struct gguf_writer w = {0};
    static const char *const texts[] = {"a", "b"};
    gguf_texts(&w, "tokenizer.ggml.tokens", texts, 2);
    tiny_put_gguf(&t, &w);
    gguf_bytes(&w, &seeds[0]);
    struct st_writer s = {0};
    st_tensor(&s, "model.a", "F32", 2, (const int64_t[]){2, 2}, "0123456789abcdef", 16);
    st_tensor(&s, "b", "BF16", 1, (const int64_t[]){2}, "0123", 4);
    st_bytes(&s, &seeds[1], 0);
    const char *folder = test_folder("ckpt_mutate");
    tiny_save_hf(&t, folder, 1);
    struct ag_arena *arena = ag_arena_new("test");
    const char *text;
    size_t size;
    assert_int_equal(ag_file_text(&text, &size, test_path("%s/model.safetensors", folder), 1 << 20, arena, NULL),
                     AG_OK);
    ag_buf_add(&seeds[2], text, size, NULL);
    ag_arena_free(arena);

    uint64_t rng = 20;
    static const uint8_t values[] = {0, 1, 2, 0x7f, 0x80, 0xff, '{', '}', '"', '\\', '[', '9', ','};
    for (int round = 0; round < 6000; round++) {
        const struct ag_buf *seed = &seeds[round % 3];
        size_t n = seed->size, header = n < 2600 ? n : 2600;
        uint8_t *data = test_malloc(n);
        memcpy(data, seed->data, n);
        for (uint64_t k = 1 + next_random(&rng) % 3; k > 0; k--) {
            size_t at = next_random(&rng) % header;
            switch (next_random(&rng) % 4) {
            case 0:
                data[at] ^= (uint8_t)(1u << next_random(&rng) % 8);
                break;
            case 1:
                data[at] = values[next_random(&rng) % sizeof values];
                break;
            case 2: /* a whole number at once */
                for (size_t i = at; i < at + 8 && i < n; i++)
                    data[i] = i < at + 4 ? 0xff : (uint8_t)(next_random(&rng) % 2 * 0x7f);
                break;
            default:
                n = n > 1 ? 1 + next_random(&rng) % n : 1;
                break;
            }
            if (header > n) header = n;
        }
        LLVMFuzzerTestOneInput(data, n);
        test_free(data);
    }
    for (int i = 0; i < 3; i++) ag_buf_free(&seeds[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(safetensors_valid),
    cmocka_unit_test(safetensors_header_sizes),
    cmocka_unit_test(safetensors_hostile),
    cmocka_unit_test(shards),
    cmocka_unit_test(folders),
    cmocka_unit_test(gguf_valid),
    cmocka_unit_test(gguf_hostile_tensors),
    cmocka_unit_test(gguf_hostile_header),
    cmocka_unit_test(every_length),
    cmocka_unit_test(mutations),
};
TEST_GROUP(checkpoint, "safetensors, shards and GGUF: valid and hostile files", tests)
