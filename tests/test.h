/* tests/test.h: one binary, cmocka groups. A test file ends with TEST_GROUP(name, "what it covers", tests); groups register
 * themselves before main. Run build/attgeo-test [--list] [--long] [--gpu] [--seed N] [PATTERN...] (PATTERN matches group
 * or test name). Pass is written `err <= tol`, so that NaN fails. */
#ifndef AG_TESTS_TEST_H
#define AG_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/status.h"

enum test_need { TEST_QUICK = 0, TEST_LONG = 1, TEST_GPU = 2 };
struct test_group {
    const char *name, *about;
    const struct CMUnitTest *tests;
    size_t n;
    enum test_need need;
    struct test_group *next;
};
void test_register(struct test_group *group);

#define TEST_GROUP_NEED(id, text, list, need_)                                                                         \
    static struct test_group group_##id = {#id, text, list, sizeof(list) / sizeof((list)[0]), need_, NULL};            \
    __attribute__((constructor)) static void register_##id(void) { test_register(&group_##id); }
#define TEST_GROUP(id, text, list) TEST_GROUP_NEED(id, text, list, TEST_QUICK)

/* Ends the current test as skipped, printing why and counting it. */
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* The run's seed (printed at start); every random test draws from it. */
uint64_t test_seed(void);

/* Fails with the message of err unless status is AG_OK. */
#define assert_ok(call, err)                                                                                           \
    do {                                                                                                               \
        enum ag_status assert_status_ = (call);                                                                        \
        if (assert_status_ != AG_OK) fail_msg("%s: %s", ag_status_name(assert_status_), (err)->text);                  \
    } while (0)
/* The call must fail with this status, and its message must contain every given piece of text (NULL-terminated). */
void test_refused(enum ag_status got, enum ag_status expected, const struct ag_error *err, ...);

/* max |a - b| / RMS(b); infinite when any element is not finite or b is all zero while a is not. */
double test_distance(const float *a, const float *b, int64_t n);
double test_distance_f64(const double *a, const double *b, int64_t n);

/* A fresh folder under build/test, removed and made anew; the path stays valid for the run. */
const char *test_folder(const char *name);
/* tests/golden/NAME, or data/NAME, relative to the root of the tree (tests run there). */
const char *test_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* An SVG of gnuplot 5.4 in place without what varies between runs: consecutive curves of one colour are one path or several,
 * depending on memory that gnuplot did not set. Returns the new size. */
size_t test_canonical_svg(char *text, size_t n);

/* Runs the product: `attgeo ARGS` through the shell from the root of the tree; stdout and stderr into the buffers (NULL:
 * dropped). Returns the exit code, or 128 + signal. */
int test_cli(struct ag_buf *out, struct ag_buf *err, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Path of the SmolLM2-135M-Instruct GGUF, or NULL when it is not there (`make fetch` brings it): then test_skip. */
const char *test_smollm2(void);

#endif
