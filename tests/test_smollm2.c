/* SmolLM2-135M-Instruct against the reference library (tests/golden/make_smollm2.py); skipped where the file is not. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "probe/forward.h"
#include "probe/score.h"
#include "tests/forward_common.h"
#include "tests/test.h"

enum { N = 500, LAYERS = 30, HEADS = 3, D = 64, ROWS = 4, LOGITS = 8, STEP = 64 };

static struct subject open_smollm2(struct ckpt **golden) {
    struct ag_error err = AG_ERROR_INIT;
    const char *path = test_smollm2();
    if (!path) test_skip("SmolLM2-135M-Instruct is not here: `make fetch` brings it");
    struct subject s = subject_open(path);
    assert_ok(ckpt_open(golden, "tests/golden/smollm2.safetensors", &err), &err);
    assert_ok(kern_backend(&s.request.ops, AG_BACKEND_CPU, &err), &err);
    return s;
}

/* max |difference| over the sampled rows / RMS of all keys of that layer and head, as the library's. */
static double key_distance(const struct seen *seen, const struct ckpt *golden, enum ag_tap tap,
                           const struct subject *s) {
    const char *name = ag_tap_names[tap];
    char text[64];
    int64_t n, *rows = golden_ints(golden, "rows", &n, s->arena);
    assert_int_equal(n, LAYERS * HEADS * ROWS);
    const float *keys = golden_floats(golden, name, (int64_t)LAYERS * HEADS * ROWS * D, s->arena);
    snprintf(text, sizeof text, "%s_norm", name);
    const float *norm = golden_floats(golden, text, LAYERS * HEADS, s->arena);
    snprintf(text, sizeof text, "%s_mean", name);
    const float *mean = golden_floats(golden, text, LAYERS * HEADS * D, s->arena);
    double worst = 0;
    for (int64_t i = 0; i < LAYERS * HEADS; i++) {
        int64_t l = i / HEADS, h = i % HEADS;
        const float *got = seen->tap[l][tap][0];
        double squares = 0, sums[D] = {0};
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t d = 0; d < D; d++) {
                float x = got[(rows[i * ROWS + r] * HEADS + h) * D + d], y = keys[(i * ROWS + r) * D + d];
                if (!isfinite(x)) return INFINITY;
                worst = fmax(worst, fabs((double)x - (double)y) / (double)norm[i]);
            }
        for (int64_t t = 0; t < N; t++)
            for (int64_t d = 0; d < D; d++) {
                double x = (double)got[(t * HEADS + h) * D + d];
                squares += x * x;
                sums[d] += x;
            }
        /* Every key counts here, not only the sampled ones. */
        assert_true(fabs(sqrt(squares / (N * D)) / (double)norm[i] - 1) <= 1e-5);
        for (int64_t d = 0; d < D; d++)
            assert_true(fabs(sums[d] / N - (double)mean[i * D + d]) <= 1e-5 * (double)norm[i]);
    }
    return worst;
}

static void keys_and_logits(void **state) {
    (void)state;
    struct ckpt *golden = NULL;
    struct subject s = open_smollm2(&golden);
    int64_t n, *ids = golden_ints(golden, "ids", &n, s.arena), offsets[2] = {0, N};
    subject_tokens(&s, ids, N, offsets, 1);
    assert_int_equal(s.model->L, LAYERS);
    s.request.taps = 1u << AG_TAP_PROJ | 1u << AG_TAP_ROPE;
    s.request.queries = s.request.values = false;
    struct ag_error err = AG_ERROR_INIT;
    bool *wanted = AG_ZEROS(s.arena, bool, N, &err);
    for (int t = N - LOGITS; t < N; t++) wanted[t] = true;
    s.request.logits = FORWARD_LOGITS_MASK;
    s.request.wanted = wanted;
    struct seen seen;
    subject_run(&seen, &s);
    double proj = key_distance(&seen, golden, AG_TAP_PROJ, &s), rope = key_distance(&seen, golden, AG_TAP_ROPE, &s);
    const int64_t V = s.model->V;
    const float *want = golden_floats(golden, "logits", LOGITS * V / STEP, s.arena);
    float *got = AG_NEW(s.arena, float, LOGITS *V / STEP, &err);
    for (int64_t i = 0; i < LOGITS; i++)
        for (int64_t v = 0; v < V / STEP; v++) got[i * (V / STEP) + v] = seen.logits[(N - LOGITS + i) * V + v * STEP];
    double logits = test_distance(got, want, LOGITS * V / STEP);
    printf("SmolLM2, %d tokens: proj keys %.1e, rope keys %.1e, logits %.1e of their RMS\n", N, proj, rope, logits);
    assert_true(proj <= 5e-5);
    assert_true(rope <= 2e-4);
    assert_true(logits <= 1e-4);
    ckpt_close(golden);
    subject_close(&s);
}

static void perplexity(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct ckpt *golden = NULL;
    struct subject s = open_smollm2(&golden);
    int64_t T, *ids = golden_ints(golden, "ids", &T, s.arena), offsets[2] = {0, T};
    subject_tokens(&s, ids, T, offsets, 1);
    const double *nll = golden_doubles(golden, "nll", T - 1, s.arena);
    struct score score;
    assert_ok(score_begin(&score, &s.tokens, s.request.ops, s.arena, &err), &err);
    s.request.taps = 0;
    struct forward_plan plan;
    struct forward_sink sink = {.self = &score, .logits = score_logits};
    assert_ok(forward_plan(&plan, &s.request, &err), &err);
    assert_ok(forward_run(&s.request, &plan, &sink, &err), &err);
    double expected = 0, worst = 0;
    for (int64_t t = 1; t < T; t++) {
        expected += nll[t - 1] / (double)(T - 1);
        worst = fmax(worst, fabs(score.nll[t] - nll[t - 1]));
    }
    struct score_summary summary = score_fold(&score, 0, 1);
    printf("SmolLM2: perplexity %.6f, the reference library's %.6f; the worst token differs by %.1e nats\n",
           summary.perplexity, exp(expected), worst);
    assert_int_equal(summary.tokens, T - 1);
    assert_true(fabs(summary.perplexity - exp(expected)) <= 1e-3);
    assert_true(worst <= 1e-3);
    ckpt_close(golden);
    subject_close(&s);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(keys_and_logits), cmocka_unit_test(perplexity)};
TEST_GROUP(smollm2_forward, "SmolLM2's keys, logits and perplexity against the reference library", tests)
