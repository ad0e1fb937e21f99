/* kernels/dequant*.c: every stored type, bit for bit what the formats' own numpy code gives (golden/make_dequant.py),
 * and both backends equal on anything. */
#include "tests/test.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "kernels/ops.h"

typedef void dequant_function(float *, const void *, enum kern_dtype, int64_t, int64_t);

static enum kern_dtype dtype_named(const char *name) {
    for (int i = 0; i < KERN_DTYPE_COUNT; i++) {
        if (!strcmp(kern_dtypes[i].name, name)) return (enum kern_dtype)i;
    }
    fail_msg("no type %s", name);
    return KERN_DTYPE_COUNT;
}

static void golden(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct ag_arena *arena = ag_arena_new("test");
    dequant_function *const functions[] = {kern_dequant_ref, kern_dequant_cpu};
    const char *file, *at;
    size_t size;
    int types = 0;
    assert_ok(ag_file_text(&file, &size, test_path("tests/golden/dequant.bin"), 1 << 20, arena, &err), &err);
    for (at = file; at < file + size; types++) {
        uint32_t counts[2];
        enum kern_dtype dtype = dtype_named(at);
        memcpy(counts, at + 8, 8);
        const char *raw = at + 16, *expected = raw + counts[0] * (size_t)kern_dtypes[dtype].block_bytes;
        assert_int_equal(counts[0] * kern_dtypes[dtype].block_elements, counts[1]);
        for (int f = 0; f < 2; f++) {
            float *y = AG_NEW(arena, float, counts[1] + 1, &err);
            y[counts[1]] = 1234.5f;
            functions[f](y, raw, dtype, 1, counts[1]); /* raw is unaligned: as rows in a file are */
            for (uint32_t i = 0; i < counts[1]; i++) {
                if (memcmp(&y[i], expected + 4 * (size_t)i, 4) != 0) {
                    float e;
                    memcpy(&e, expected + 4 * (size_t)i, 4);
                    fail_msg("%s, function %d, element %u: %a, expected %a", at, f, i, (double)y[i], (double)e);
                }
            }
            assert_true(y[counts[1]] == 1234.5f);
        }
        at = expected + 4 * (size_t)counts[1];
    }
    assert_ptr_equal(at, file + size);
    assert_int_equal(types, KERN_DTYPE_COUNT - 1); /* all but F32, which is a copy */
    ag_arena_free(arena);
}

static uint64_t next(uint64_t *s) {
    *s += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *s;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Any bytes, also infinite and NaN scales: equal bits, except that a NaN may be any NaN. */
static void backends_agree(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct ag_arena *arena = ag_arena_new("test");
    static const int64_t blocks[] = {0, 1, 2, 31, 4500}; /* the last one spreads over threads */
    uint64_t seed = test_seed();
    for (int d = 0; d < KERN_DTYPE_COUNT; d++) {
        for (size_t k = 0; k < sizeof blocks / sizeof blocks[0]; k++) {
            struct ag_mark mark = ag_arena_mark(arena);
            int64_t n = blocks[k], bytes = n * kern_dtypes[d].block_bytes, D = kern_dtypes[d].block_elements;
            uint8_t *raw = AG_NEW(arena, uint8_t, bytes + 8, &err);
            float *a = AG_ZEROS(arena, float, n *D + 1, &err), *b = AG_ZEROS(arena, float, n *D + 1, &err);
            assert_true(raw && a && b);
            for (int64_t i = 0; i < bytes; i += 8) {
                uint64_t r = next(&seed);
                memcpy(raw + i, &r, 8);
            }
            kern_dequant_ref(a, raw, (enum kern_dtype)d, n, D);
            kern_dequant_cpu(b, raw, (enum kern_dtype)d, n, D);
            for (int64_t i = 0; i <= n * D; i++) {
                if (memcmp(&a[i], &b[i], 4) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
                    fail_msg("%s, element %lld: %a and %a", kern_dtypes[d].name, (long long)i, (double)a[i],
                             (double)b[i]);
                }
            }
            ag_arena_release(arena, mark);
        }
    }
    ag_arena_free(arena);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(golden),
    cmocka_unit_test(backends_agree),
};
TEST_GROUP(dequant, "stored types to f32, bit-exact with the formats' authors", tests)
