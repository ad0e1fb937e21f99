/* The forward pass: tiny models of every family against the reference library, and bits that depend on nothing. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe/forward.h"
#include "probe/score.h"
#include "tests/forward_common.h"
#include "tests/test.h"

static const char *const families[] = {"llama", "llama-bias-gqa", "llama-linear", "llama3",      "smollm",
                                       "qwen2", "qwen3",          "qwen2-window", "qwen3-window"};
static const char *const gguf_files[] = {"llama", "llama-bias-gqa", "qwen2", "qwen3", "llama3-q8_0", "smollm-q4_1"};

static const struct kern_ops *backend(enum ag_backend which) {
    struct ag_error err = AG_ERROR_INIT;
    const struct kern_ops *ops = NULL;
    assert_ok(kern_backend(&ops, which, &err), &err);
    return ops;
}

/* Logits, queries, keys and values of a model at every tap against a golden file. */
static void compare_with_golden(const char *model_path, const char *golden_path, enum ag_backend which) {
    struct ag_error err = AG_ERROR_INIT;
    struct subject s = subject_open(model_path);
    struct ckpt *golden = NULL;
    assert_ok(ckpt_open(&golden, golden_path, &err), &err);
    int64_t T, *ids = golden_ints(golden, "ids", &T, s.arena), P,
               *offsets = golden_ints(golden, "offsets", &P, s.arena);
    subject_tokens(&s, ids, T, offsets, P - 1);
    s.request.ops = backend(which);
    struct seen seen;
    subject_run(&seen, &s);

    double d = test_distance(seen.logits, golden_floats(golden, "logits", T * s.model->V, s.arena), T * s.model->V);
    if (!(d <= 1e-4)) fail_msg("%s, %s: logits differ by %.2e", model_path, s.request.ops->name, d);
    for (int64_t l = 0; l < s.model->L; l++) {
        const struct ag_layer_shape *shape = &s.model->shapes[l];
        const float *last[2] = {NULL, NULL};
        for (int tap = 0; tap < AG_TAP_COUNT; tap++) {
            for (int what = 0; what < 2; what++) {
                int64_t n = T * (what == 0 ? shape->Hk : shape->Hq) * shape->D;
                char name[64];
                snprintf(name, sizeof name, "%" PRId64 ".%s.%c", l, ag_tap_names[tap], what == 0 ? 'k' : 'q');
                if (ckpt_find(golden, name)) last[what] = golden_floats(golden, name, n, s.arena);
                assert_non_null(last[what]); /* a stage that the model lacks equals the one before */
                d = test_distance(seen.tap[l][tap][what], last[what], n);
                if (!(d <= 1e-5)) fail_msg("%s, %s: %s differ by %.2e", model_path, s.request.ops->name, name, d);
            }
            char name[64];
            snprintf(name, sizeof name, "%" PRId64 ".v", l);
            int64_t n = T * shape->Hk * shape->Dv;
            d = test_distance(seen.tap[l][tap][2], golden_floats(golden, name, n, s.arena), n);
            if (!(d <= 1e-5)) fail_msg("%s, %s: %s differ by %.2e", model_path, s.request.ops->name, name, d);
        }
    }
    ckpt_close(golden);
    subject_close(&s);
}

static void golden_families(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (int which = AG_BACKEND_REF; which <= AG_BACKEND_CPU; which++)
            compare_with_golden(test_path("tests/golden/models/%s", families[i]),
                                test_path("tests/golden/models/%s.golden.safetensors", families[i]), which);
}

static void golden_gguf(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof gguf_files / sizeof *gguf_files; i++)
        for (int which = AG_BACKEND_REF; which <= AG_BACKEND_CPU; which++)
            compare_with_golden(test_path("tests/golden/models/%s.gguf", gguf_files[i]),
                                test_path("tests/golden/models/%s.golden.safetensors", gguf_files[i]), which);
}

/* 6 query heads on 2 key heads: q . k from the permuted GGUF equals that from safetensors, head by head. */
static void scores_of_both_formats(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct ckpt *golden = NULL;
    assert_ok(ckpt_open(&golden, "tests/golden/models/llama-bias-gqa.golden.safetensors", &err), &err);
    struct seen seen[2];
    struct subject s[2];
    int64_t T = 0, P;
    for (int i = 0; i < 2; i++) {
        s[i] = subject_open(i ? "tests/golden/models/llama-bias-gqa.gguf" : "tests/golden/models/llama-bias-gqa");
        int64_t *ids = golden_ints(golden, "ids", &T, s[i].arena),
                *offsets = golden_ints(golden, "offsets", &P, s[i].arena);
        subject_tokens(&s[i], ids, T, offsets, P - 1);
        s[i].request.ops = backend(AG_BACKEND_CPU);
        subject_run(&seen[i], &s[i]);
    }
    for (int64_t l = 0; l < s[0].model->L; l++) {
        const struct ag_layer_shape *shape = &s[0].model->shapes[l];
        assert_int_equal(shape->Hq, 6);
        assert_int_equal(shape->Hk, 2);
        float *score[2];
        for (int i = 0; i < 2; i++) {
            score[i] = AG_NEW(s[0].arena, float, shape->Hq *T *T, &err);
            for (int64_t h = 0; h < shape->Hq; h++)
                for (int64_t t = 0; t < T; t++)
                    for (int64_t j = 0; j < T; j++) {
                        double sum = 0;
                        for (int64_t d = 0; d < shape->D; d++)
                            sum += (double)seen[i].tap[l][AG_TAP_ROPE][1][(t * 6 + h) * shape->D + d] *
                                   (double)seen[i].tap[l][AG_TAP_ROPE][0][(j * 2 + h / 3) * shape->D + d];
                        score[i][(h * T + t) * T + j] = (float)sum;
                    }
        }
        assert_true(test_distance(score[1], score[0], shape->Hq * T * T) <= 1e-5);
    }
    ckpt_close(golden);
    subject_close(&s[0]);
    subject_close(&s[1]);
}

/* The trained sample, against golden values computed in double precision. */
static void sample_checkpoint(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct subject s = subject_open("data/sample/softmax");
    struct ckpt *golden = NULL;
    assert_ok(ckpt_open(&golden, "data/sample/softmax/golden.safetensors", &err), &err);
    int64_t T, *ids = golden_ints(golden, "input_ids", &T, s.arena), offsets[2] = {0, T};
    subject_tokens(&s, ids, T, offsets, 1);
    s.request.ops = backend(AG_BACKEND_CPU);
    struct seen seen;
    subject_run(&seen, &s);
    const double *logits = golden_doubles(golden, "logits_f64", T * s.model->V, s.arena);
    float *expected = AG_NEW(s.arena, float, T *s.model->V, &err);
    for (int64_t i = 0; i < T * s.model->V; i++) expected[i] = (float)logits[i];
    double d = test_distance(seen.logits, expected, T * s.model->V);
    if (!(d <= 1e-4)) fail_msg("logits differ by %.2e", d);
    for (int64_t l = 0; l < s.model->L; l++) {
        const struct ag_layer_shape *shape = &s.model->shapes[l];
        for (int what = 0; what < 2; what++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%" PRId64 ".%c", l, what ? 'q' : 'k');
            int64_t H = what ? shape->Hq : shape->Hk, D = shape->D;
            const float *want = golden_floats(golden, name, H * T * D, s.arena); /* (H, T, D) */
            float *got = AG_NEW(s.arena, float, H *T *D, &err);
            for (int64_t h = 0; h < H; h++)
                for (int64_t t = 0; t < T; t++)
                    memcpy(got + (h * T + t) * D, seen.tap[l][AG_TAP_ROPE][what] + (t * H + h) * D, (size_t)D * 4);
            d = test_distance(got, want, H * T * D);
            if (!(d <= 1e-5)) fail_msg("%s differ by %.2e", name, d);
        }
    }
    ckpt_close(golden);
    subject_close(&s);
}

/* --- Bits --- */

static const int64_t lengths[] = {300, 1, 5, 600, 256, 257, 40, 3};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void random_prompts(struct subject *s, int64_t P) {
    struct ag_error err = AG_ERROR_INIT;
    int64_t *offsets = AG_ZEROS(s->arena, int64_t, P + 1, &err);
    for (int64_t p = 0; p < P; p++) offsets[p + 1] = offsets[p] + lengths[p % N_LENGTHS];
    int64_t *ids = AG_NEW(s->arena, int64_t, offsets[P], &err);
    uint64_t x = test_seed() | 1;
    for (int64_t t = 0; t < offsets[P]; t++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        ids[t] = (int64_t)((x >> 33) % (uint64_t)s->model->V);
    }
    subject_tokens(s, ids, offsets[P], offsets, P);
    s->request.ops = backend(AG_BACKEND_CPU);
}

static void assert_same_bits(const struct seen *a, const struct seen *b, const struct subject *s, int64_t first_a,
                             int64_t first_b, int64_t T, const char *what) {
    if (memcmp(a->logits + first_a * s->model->V, b->logits + first_b * s->model->V, (size_t)(T * s->model->V) * 4) !=
        0)
        fail_msg("%s: logits differ", what);
    for (int64_t l = 0; l < s->model->L; l++)
        for (int tap = 0; tap < AG_TAP_COUNT; tap++)
            for (int i = 0; i < 3; i++) {
                const struct ag_layer_shape *shape = &s->model->shapes[l];
                int64_t width = i == 0 ? shape->Hk * shape->D : i == 1 ? shape->Hq * shape->D : shape->Hk * shape->Dv;
                if (memcmp(a->tap[l][tap][i] + first_a * width, b->tap[l][tap][i] + first_b * width,
                           (size_t)(T * width) * 4) != 0)
                    fail_msg("%s: layer %" PRId64 ", tap %s, %s differ", what, l, ag_tap_names[tap],
                             i == 0   ? "keys"
                             : i == 1 ? "queries"
                                      : "values");
            }
}

static void bits_of(const char *path) {
    struct ag_error err = AG_ERROR_INIT;
    struct subject s = subject_open(path), alone = subject_open(path);
    random_prompts(&s, N_LENGTHS);
    struct seen all, other;
    subject_run(&all, &s);

    /* Threads. */
    int64_t threads = kern_threads();
    for (int64_t n = 1; n <= 3; n++) {
        kern_set_threads(n);
        subject_run(&other, &s);
        assert_same_bits(&all, &other, &s, 0, 0, s.tokens.T, "another number of threads");
    }
    kern_set_threads(threads);

    /* Little less than what is roomy: smaller groups and chunks. */
    struct forward_plan plan;
    assert_ok(forward_plan(&plan, &s.request, &err), &err);
    assert_int_equal(plan.waves, 1);
    assert_int_equal(plan.group_tokens, s.tokens.T);
    s.request.memory_limit = plan.peak_bytes - 1;
    assert_ok(forward_plan(&plan, &s.request, &err), &err);
    assert_int_equal(plan.group_tokens, 600);
    assert_int_equal(plan.chunk_tokens, 256);
    assert_int_equal(plan.waves, 1);
    subject_run(&other, &s);
    assert_same_bits(&all, &other, &s, 0, 0, s.tokens.T, "groups");

    /* Waves: the least memory that is not refused makes as many as there can be. */
    s.request.memory_limit = 1;
    test_refused(forward_plan(&plan, &s.request, &err), AG_E_MEMORY, &err, "600 tokens", "would fit", NULL);
    s.request.memory_limit = plan.peak_bytes;
    err = (struct ag_error)AG_ERROR_INIT;
    assert_ok(forward_plan(&plan, &s.request, &err), &err);
    assert_true(plan.waves >= 3);
    assert_true(plan.peak_bytes <= s.request.memory_limit);
    subject_run(&other, &s);
    assert_same_bits(&all, &other, &s, 0, 0, s.tokens.T, "waves");
    s.request.memory_limit = 0;

    /* Each prompt alone. */
    for (int64_t p = 0; p < s.tokens.P; p++) {
        int64_t first = s.tokens.offsets[p], T = s.tokens.offsets[p + 1] - first, offsets[2] = {0, T};
        int64_t *ids = AG_NEW(alone.arena, int64_t, T, &err);
        for (int64_t t = 0; t < T; t++) ids[t] = s.tokens.id[first + t];
        subject_tokens(&alone, ids, T, offsets, 1);
        alone.request.ops = s.request.ops;
        subject_run(&other, &alone);
        assert_same_bits(&all, &other, &s, first, 0, T, "a prompt alone");
    }
    subject_close(&s);
    subject_close(&alone);
}

static void bits_depend_on_nothing(void **state) {
    (void)state;
    bits_of("tests/golden/models/llama-bias-gqa");
    bits_of("tests/golden/models/qwen3-window");
    bits_of("tests/golden/models/smollm-q4_1.gguf");
    bits_of("tests/golden/linear/gla-old");
    bits_of("tests/golden/linear/gdn-values");
    bits_of("tests/golden/linear/delta-elu");
    bits_of("tests/golden/linear/plain-elu");
    bits_of("tests/golden/linear/ccq-gdn");
    bits_of("tests/golden/linear/gla-hybrid");
}

/* --- What is asked for, and nothing else --- */

/* Only some layers, only keys, no logits: the same bits, and nothing beyond. */
static void stops_at_the_last_tap(void **state) {
    (void)state;
    struct subject s = subject_open("tests/golden/models/llama");
    random_prompts(&s, N_LENGTHS);
    struct seen all, few;
    subject_run(&all, &s);
    bool layers[2] = {true, false};
    s.request.layers = layers;
    s.request.logits = FORWARD_LOGITS_NONE;
    s.request.taps = 1u << AG_TAP_ROPE;
    s.request.queries = s.request.values = false;
    subject_run(&few, &s);
    assert_null(few.logits);
    assert_int_equal(few.layers_done, 1);
    int64_t width = s.model->shapes[0].Hk * s.model->shapes[0].D;
    assert_memory_equal(few.tap[0][AG_TAP_ROPE][0], all.tap[0][AG_TAP_ROPE][0], (size_t)(s.tokens.T * width) * 4);
    assert_null(few.tap[0][AG_TAP_ROPE][1]);
    assert_null(few.tap[0][AG_TAP_ROPE][2]);
    assert_null(few.tap[0][AG_TAP_PROJ][0]);
    assert_null(few.tap[1][AG_TAP_ROPE][0]);

    s.request.taps = 0; /* nothing is asked for */
    subject_run(&few, &s);
    assert_int_equal(few.layers_done, 0);
    subject_close(&s);
}

/* Logits of the last tokens, of a mask, and scores, against those of all. */
static void wanted_logits(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct subject s = subject_open("tests/golden/models/smollm");
    random_prompts(&s, N_LENGTHS);
    struct seen all, some;
    subject_run(&all, &s);
    assert_int_equal(all.logit_rows, s.tokens.T);
    const int64_t V = s.model->V;

    s.request.logits = FORWARD_LOGITS_LAST;
    subject_run(&some, &s);
    assert_int_equal(some.logit_rows, s.tokens.P);
    for (int64_t p = 0; p < s.tokens.P; p++) {
        int64_t t = s.tokens.offsets[p + 1] - 1;
        assert_true(test_distance(some.logits + t * V, all.logits + t * V, V) <= 1e-5);
    }
    bool *wanted = AG_ZEROS(s.arena, bool, s.tokens.T, &err);
    for (int64_t t = 0; t < s.tokens.T; t += 7) wanted[t] = true;
    s.request.logits = FORWARD_LOGITS_MASK;
    s.request.wanted = wanted;
    subject_run(&some, &s);
    assert_int_equal(some.logit_rows, (s.tokens.T + 6) / 7);
    for (int64_t t = 0; t < s.tokens.T; t += 7)
        assert_true(test_distance(some.logits + t * V, all.logits + t * V, V) <= 1e-5);

    /* The same in several groups, and in several waves. */
    struct seen tight;
    struct forward_plan roomy, plan;
    assert_ok(forward_plan(&roomy, &s.request, &err), &err);
    for (int waves = 0; waves < 2; waves++) {
        s.request.memory_limit = waves ? 1 : roomy.peak_bytes - 1;
        if (waves) {
            test_refused(forward_plan(&plan, &s.request, &err), AG_E_MEMORY, &err, NULL);
            err = (struct ag_error)AG_ERROR_INIT;
            s.request.memory_limit = plan.peak_bytes;
        }
        assert_ok(forward_plan(&plan, &s.request, &err), &err);
        assert_true(waves ? plan.waves > 1 : plan.waves == 1 && plan.group_tokens < s.tokens.T);
        subject_run(&tight, &s);
        assert_int_equal(tight.logit_rows, some.logit_rows);
        assert_memory_equal(tight.logits, some.logits, (size_t)(s.tokens.T * V) * 4);
    }
    s.request.memory_limit = 0;

    /* Scores, from a plain log-sum-exp in double. The last two tokens of every prompt are its answer. */
    uint8_t *role = AG_ZEROS(s.arena, uint8_t, s.tokens.T, &err), *value = AG_ZEROS(s.arena, uint8_t, s.tokens.T, &err);
    for (int64_t p = 0; p < s.tokens.P; p++)
        for (int64_t t = s.tokens.offsets[p + 1] - 2; t < s.tokens.offsets[p + 1]; t++)
            if (t > s.tokens.offsets[p]) role[t] = AG_ROLE_ANSWER, value[t] = AG_VALUE_ANSWER;
    s.tokens.role = role;
    s.tokens.value = value;
    for (int answers = 0; answers < 2; answers++) {
        struct score score;
        assert_ok(score_begin(&score, &s.tokens, s.request.ops, s.arena, &err), &err);
        score_wanted(wanted, &s.tokens, answers);
        assert_ok(forward_plan(&plan, &s.request, &err), &err);
        struct forward_sink sink = {.self = &score, .logits = score_logits};
        assert_ok(forward_run(&s.request, &plan, &sink, &err), &err);
        int64_t n = 0, hits = 0, prompts = 0;
        double sum = 0;
        for (int64_t p = 0; p < s.tokens.P; p++) {
            bool all_hit = true, any = false;
            for (int64_t t = s.tokens.offsets[p]; t < s.tokens.offsets[p + 1]; t++) {
                if (t == s.tokens.offsets[p] || (answers && role[t] != AG_ROLE_ANSWER)) {
                    assert_true(isnan(score.nll[t]));
                    continue;
                }
                const float *row = all.logits + (t - 1) * V;
                double total = 0;
                int64_t best = 0;
                for (int64_t i = 0; i < V; i++) {
                    total += exp((double)row[i]);
                    if (row[i] > row[best]) best = i;
                }
                double nll = log(total) - (double)row[s.tokens.id[t]];
                assert_true(fabs(score.nll[t] - nll) <= 1e-4);
                sum += nll;
                n++;
                if (role[t] == AG_ROLE_ANSWER) {
                    any = true;
                    all_hit = all_hit && best == s.tokens.id[t];
                    assert_int_equal(score.hit[t], best == s.tokens.id[t]);
                }
            }
            prompts += any;
            hits += any && all_hit;
            assert_int_equal(score_retrieved(&score, p), !any ? -1 : all_hit);
        }
        struct score_summary summary = score_fold(&score, 0, s.tokens.P);
        assert_int_equal(summary.tokens, n);
        assert_int_equal(summary.prompts, prompts);
        assert_int_equal(summary.hits, hits);
        assert_true(fabs(summary.mean_nll - sum / (double)n) <= 1e-4);
        assert_true(fabs(summary.perplexity - exp(sum / (double)n)) <= 1e-3 * summary.perplexity);
    }
    subject_close(&s);
}

/* --- A vocabulary large enough for several blocks of the head and of rows --- */

enum { WIDE = 70001, COPIES = 16 };

static void copy_piece(FILE *out, const struct ckpt *from, const struct ckpt_tensor *tensor, int64_t repeated_rows,
                       struct ag_arena *arena) {
    struct ag_error err = AG_ERROR_INIT;
    int64_t rows = tensor->rank < 2 ? 1 : tensor->shape[0], row_bytes = (int64_t)tensor->bytes / rows;
    char *data = AG_NEW(arena, char, (int64_t)tensor->bytes, &err);
    assert_ok(ckpt_read_rows(from, tensor, data, 0, rows, &err), &err);
    for (int64_t r = 0; r < repeated_rows; r++)
        assert_int_equal(fwrite(data + r % rows * row_bytes, 1, (size_t)row_bytes, out), (size_t)row_bytes);
}

/* The tied tiny model with its embedding's rows repeated: row v is row v % 61. */
static const char *wide_copy(struct ag_arena *arena) {
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("forward-wide");
    struct ckpt *from = NULL;
    assert_ok(ckpt_open(&from, "tests/golden/models/smollm", &err), &err);
    struct ag_buf header = {0};
    uint64_t offset = 0;
    for (int64_t i = 0; i < from->n_tensors; i++) {
        const struct ckpt_tensor *t = &from->tensors[i];
        bool embedding = t->rank == 2 && t->shape[0] == 61;
        uint64_t bytes = embedding ? t->bytes / 61 * WIDE : t->bytes;
        assert_ok(ag_buf_printf(&header, &err, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, i ? "," : "{", t->name,
                                t->type, embedding ? WIDE : t->shape[0]),
                  &err);
        if (t->rank == 2) assert_ok(ag_buf_printf(&header, &err, ",%" PRId64, t->shape[1]), &err);
        assert_ok(ag_buf_printf(&header, &err, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + bytes),
                  &err);
        offset += bytes;
    }
    assert_ok(ag_buf_printf(&header, &err, "}"), &err);
    FILE *out = fopen(test_path("%s/model.safetensors", folder), "wb");
    assert_non_null(out);
    uint64_t n = header.size;
    assert_int_equal(fwrite(&n, 1, 8, out), 8);
    assert_int_equal(fwrite(header.data, 1, header.size, out), header.size);
    for (int64_t i = 0; i < from->n_tensors; i++) {
        const struct ckpt_tensor *t = &from->tensors[i];
        copy_piece(out, from, t, t->rank < 2 ? 1 : t->shape[0] == 61 ? WIDE : t->shape[0], arena);
    }
    assert_int_equal(fclose(out), 0);
    assert_int_equal(
        system(test_path("sed 's/\"vocab_size\": 61/\"vocab_size\": %d/' tests/golden/models/smollm/config.json "
                         "> %s/config.json",
                         WIDE, folder)),
        0);
    ag_buf_free(&header);
    ckpt_close(from);
    return folder;
}

struct wide {
    const float *expected; /* (T, 61) of one copy */
    int64_t T, next, calls;
    double worst;
};

static enum ag_status compare_wide(void *self, const float *logits, const int64_t *token, int64_t rows, int64_t V,
                                   struct ag_error *err) {
    (void)err;
    struct wide *wide = self;
    wide->calls++;
    for (int64_t i = 0; i < rows; i++) {
        assert_int_equal(token[i], wide->next++);
        const float *want = wide->expected + token[i] % wide->T * 61, *got = logits + i * V;
        double rms = 0;
        for (int64_t v = 0; v < 61; v++) rms += (double)want[v] * (double)want[v] / 61;
        for (int64_t v = 0; v < V; v++) {
            double d = fabs((double)got[v] - (double)want[v % 61]) / sqrt(rms);
            if (!(d <= wide->worst)) wide->worst = d;
        }
    }
    return AG_OK;
}

static void wide_vocabulary(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    struct ag_arena *arena = ag_arena_new("test");
    struct subject s = subject_open(wide_copy(arena));
    assert_int_equal(s.model->V, WIDE);
    struct ckpt *golden = NULL;
    assert_ok(ckpt_open(&golden, "tests/golden/models/smollm.golden.safetensors", &err), &err);
    int64_t T, P, *ids = golden_ints(golden, "ids", &T, s.arena),
                  *offsets = golden_ints(golden, "offsets", &P, s.arena);
    P--;
    int64_t *more_ids = AG_NEW(s.arena, int64_t, T * COPIES, &err),
            *more = AG_ZEROS(s.arena, int64_t, P * COPIES + 1, &err);
    for (int64_t i = 0; i < T * COPIES; i++) more_ids[i] = ids[i % T] + 61 * (i % 1000); /* the same row, elsewhere */
    for (int64_t i = 0; i < P * COPIES; i++) more[i + 1] = i / P * T + offsets[i % P + 1];
    subject_tokens(&s, more_ids, T * COPIES, more, P * COPIES);
    s.request.ops = backend(AG_BACKEND_CPU);
    s.request.taps = 0;
    struct wide wide = {.expected = golden_floats(golden, "logits", T * 61, s.arena), .T = T};
    struct forward_sink sink = {.self = &wide, .logits = compare_wide};
    struct forward_plan plan;
    assert_ok(forward_plan(&plan, &s.request, &err), &err);
    assert_ok(forward_run(&s.request, &plan, &sink, &err), &err);
    assert_int_equal(wide.next, T * COPIES);
    assert_true(wide.calls > 1); /* several blocks of rows; the head of 27 MB comes in several blocks of 4 MB */
    assert_true(wide.worst <= 1e-4);
    ckpt_close(golden);
    subject_close(&s);
    ag_arena_free(arena);
}

/* What the pass takes from the system is what the plan said; attention memory is linear in the length. */
static void plan_is_kept(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    int64_t peak[3];
    for (int i = 0; i < 3; i++) {
        struct subject s = subject_open("tests/golden/models/smollm");
        int64_t T = (int64_t)1024 << i, offsets[2] = {0, T}, *ids = AG_ZEROS(s.arena, int64_t, T, &err);
        subject_tokens(&s, ids, T, offsets, 1);
        s.request.ops = backend(AG_BACKEND_CPU);
        s.request.logits = FORWARD_LOGITS_LAST;
        char *text = NULL;
        size_t size = 0;
        struct ag_log log = {.stream = open_memstream(&text, &size), .level = AG_DETAIL};
        s.request.log = &log;
        struct forward_plan plan;
        struct forward_sink sink = {0};
        assert_ok(forward_plan(&plan, &s.request, &err), &err);
        assert_ok(forward_run(&s.request, &plan, &sink, &err), &err);
        fclose(log.stream);
        size_t used = 0;
        const char *found = strstr(text, "waves, ");
        assert_non_null(found);
        assert_int_equal(sscanf(found, "waves, %zu bytes", &used), 1);
        assert_true(fabs((double)used / (double)plan.peak_bytes - 1) <= 0.05);
        assert_non_null(strstr(text, "more than the 64 positions"));
        peak[i] = plan.peak_bytes;
        assert_int_equal(plan.waves, 1);
        free(text);
        subject_close(&s);
    }
    assert_true(peak[2] - peak[1] <= 2 * (peak[1] - peak[0]) + 4096);
}

/* --- What must be refused --- */

/* A copy of a tiny model whose one tensor starts with a NaN. */
static const char *damaged_copy(const char *tensor, float value) {
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = test_folder("forward-damaged");
    char command[1024];
    snprintf(command, sizeof command,
             "cp tests/golden/models/llama/config.json tests/golden/models/llama/model.safetensors %s", folder);
    assert_int_equal(system(command), 0);
    struct ckpt *ckpt = NULL;
    assert_ok(ckpt_open(&ckpt, folder, &err), &err);
    const struct ckpt_tensor *found = ckpt_find(ckpt, tensor);
    assert_non_null(found);
    assert_int_equal(found->dtype, KERN_F32);
    snprintf(command, sizeof command, "%s/model.safetensors", folder);
    int fd = open(command, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &value, sizeof value, (off_t)found->offset), sizeof value);
    close(fd);
    ckpt_close(ckpt);
    return folder;
}

static enum ag_status run_quietly(struct subject *s, struct ag_error *err) {
    struct forward_plan plan;
    struct forward_sink sink = {0};
    enum ag_status status = forward_plan(&plan, &s->request, err);
    return status == AG_OK ? forward_run(&s->request, &plan, &sink, err) : status;
}

static void refuses_what_is_not_finite(void **state) {
    (void)state;
    static const struct {
        const char *tensor;
        float value;
    } cases[] = {{"model.layers.1.mlp.down_proj.weight", NAN},
                 {"model.layers.1.self_attn.v_proj.weight", INFINITY},
                 {"model.layers.1.self_attn.k_proj.weight", NAN},
                 {"model.layers.1.input_layernorm.weight", -INFINITY}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int taps = 0; taps < 2; taps++) {
            struct ag_error err = AG_ERROR_INIT;
            struct subject s = subject_open(damaged_copy(cases[i].tensor, cases[i].value));
            random_prompts(&s, 3);
            s.request.logits = taps ? FORWARD_LOGITS_NONE : FORWARD_LOGITS_LAST;
            if (!taps) s.request.taps = 0;
            if (taps && i == 0) { /* a pass that stops at layer 1's taps never needs this weight */
                assert_ok(run_quietly(&s, &err), &err);
            } else {
                /* in the last layer only the tokens whose logits are asked for are computed to the end */
                test_refused(run_quietly(&s, &err), AG_E_NUMERIC, &err, "layer 1", taps ? "token 0" : "token 299",
                             "prompt p0", NULL);
            }
            subject_close(&s);
        }
    }
}

static void refuses_foreign_tokens(void **state) {
    (void)state;
    struct ag_error none = AG_ERROR_INIT;
    struct subject empty = subject_open("tests/golden/models/llama");
    subject_tokens(&empty, (int64_t[]){1, 2}, 2, (int64_t[]){0, 2, 2}, 2);
    empty.request.ops = backend(AG_BACKEND_CPU);
    test_refused(run_quietly(&empty, &none), AG_E_FORMAT, &none, "prompt p1", "no tokens", NULL);
    subject_close(&empty);
    for (int i = 0; i < 2; i++) {
        struct ag_error err = AG_ERROR_INIT;
        struct subject s = subject_open("tests/golden/models/llama");
        int64_t ids[3] = {0, i ? -1 : s.model->V, 1}, offsets[2] = {0, 3};
        subject_tokens(&s, ids, 3, offsets, 1);
        s.request.ops = backend(AG_BACKEND_CPU);
        test_refused(run_quietly(&s, &err), AG_E_FORMAT, &err, "token 1", "61 rows", NULL);
        subject_close(&s);
    }
}

/* A checkpoint that shrinks between opening and reading. */
static void shrinking_file(void **state) {
    (void)state;
    struct ag_error err = AG_ERROR_INIT;
    const char *folder = damaged_copy("model.norm.weight", 1);
    struct subject s = subject_open(folder);
    random_prompts(&s, 2);
    assert_int_equal(truncate(test_path("%s/model.safetensors", folder), 40000), 0);
    test_refused(run_quietly(&s, &err), AG_E_IO, &err, "model.safetensors", NULL);
    subject_close(&s);
}

static enum ag_status failing_blocks(void *self, const struct ag_block *blocks, int64_t n, struct ag_error *err) {
    (void)n;
    int64_t *left = self;
    return (*left)-- == 0 ? ag_fail(err, AG_E_IO, "disk full at layer %" PRId64, blocks[0].layer) : AG_OK;
}

/* A sink's error ends the pass and is what the caller gets; so does every failing allocation. */
static void errors_end_the_pass(void **state) {
    (void)state;
    struct subject s = subject_open("tests/golden/models/llama");
    random_prompts(&s, 2);
    struct forward_plan plan;
    struct ag_error err = AG_ERROR_INIT;
    assert_ok(forward_plan(&plan, &s.request, &err), &err);
    for (int64_t n = 0; n < 8; n++) {
        int64_t left = n;
        struct forward_sink sink = {.self = &left, .blocks = failing_blocks};
        err = (struct ag_error)AG_ERROR_INIT;
        test_refused(forward_run(&s.request, &plan, &sink, &err), AG_E_IO, &err, "disk full at layer", NULL);
    }
    bool finished = false;
    for (int64_t n = 0; n < 100 && !finished; n++) {
        struct forward_sink sink = {0};
        err = (struct ag_error)AG_ERROR_INIT;
        ag_arena_fail_after(n);
        enum ag_status status = forward_run(&s.request, &plan, &sink, &err);
        ag_arena_fail_after(-1);
        finished = status == AG_OK;
        if (!finished) test_refused(status, AG_E_MEMORY, &err, "memory", NULL);
    }
    assert_true(finished);
    subject_close(&s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(golden_families),        cmocka_unit_test(golden_gguf),
    cmocka_unit_test(scores_of_both_formats), cmocka_unit_test(sample_checkpoint),
    cmocka_unit_test(bits_depend_on_nothing), cmocka_unit_test(stops_at_the_last_tap),
    cmocka_unit_test(wanted_logits),          cmocka_unit_test(wide_vocabulary),
    cmocka_unit_test(plan_is_kept),           cmocka_unit_test(refuses_what_is_not_finite),
    cmocka_unit_test(refuses_foreign_tokens), cmocka_unit_test(shrinking_file),
    cmocka_unit_test(errors_end_the_pass),
};
TEST_GROUP(forward, "the forward pass against the reference library; bits, waves, plan, refusals", tests)
