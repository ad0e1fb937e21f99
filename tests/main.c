/* tests/main.c: the runner. See test.h. */
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

static struct test_group *first;
static uint64_t seed;
static int skipped;

void test_register(struct test_group *group) {
    struct test_group **at = &first; /* by name, so that the order does not depend on the linker */
    while (*at != NULL && strcmp((*at)->name, group->name) < 0) at = &(*at)->next;
    group->next = *at;
    *at = group;
}

uint64_t test_seed(void) { return seed; }

void test_skip(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("           skipped: ", stdout);
    vprintf(format, args);
    fputc('\n', stdout);
    va_end(args);
    skipped++;
    skip();
    abort();
}

void test_refused(enum ag_status got, enum ag_status expected, const struct ag_error *err, ...) {
    if (got != expected)
        fail_msg("status %s (%s), expected %s", ag_status_name(got), err->text, ag_status_name(expected));
    if (strchr(err->text, '\n') != NULL) fail_msg("the message is more than one line: %s", err->text);
    va_list args;
    va_start(args, err);
    for (const char *piece; (piece = va_arg(args, const char *)) != NULL;)
        if (strstr(err->text, piece) == NULL) fail_msg("the message '%s' does not contain '%s'", err->text, piece);
    va_end(args);
}

double test_distance(const float *a, const float *b, int64_t n) {
    double worst = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        double d = fabs((double)a[i] - (double)b[i]);
        if (d > worst) worst = d;
        sum += (double)b[i] * (double)b[i];
    }
    return worst == 0 ? 0 : sum == 0 ? INFINITY : worst / sqrt(sum / (double)n);
}

double test_distance_f64(const double *a, const double *b, int64_t n) {
    double worst = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        double d = fabs(a[i] - b[i]);
        if (d > worst) worst = d;
        sum += b[i] * b[i];
    }
    return worst == 0 ? 0 : sum == 0 ? INFINITY : worst / sqrt(sum / (double)n);
}

/* Paths live as long as the run: a ring large enough for any one test. */
static char *path_slot(void) {
    static char slots[256][512];
    static int next;
    return slots[next++ % 256];
}

const char *test_folder(const char *name) {
    char *path = path_slot(), command[700];
    snprintf(path, 512, "build/test/%s", name);
    snprintf(command, sizeof command, "chmod -R u+w '%s' 2>/dev/null; rm -rf '%s' && mkdir -p '%s'", path, path, path);
    assert_int_equal(system(command), 0);
    return path;
}

const char *test_path(const char *format, ...) {
    char *path = path_slot();
    va_list args;
    va_start(args, format);
    vsnprintf(path, 512, format, args);
    va_end(args);
    return path;
}

size_t test_canonical_svg(char *text, size_t n) {
    static const char open[] = "<path stroke='", close[] = "'/>", data[] = "d='";
    char colour[64] = "", *to = text;
    for (const char *from = text, *end = text + n; from < end;) {
        const char *path = from;
        bool again = (size_t)(end - from) > sizeof close && memcmp(from, close, sizeof close - 1) == 0;
        if (again) path += sizeof close - 1;
        while (again && path < end && (*path == ' ' || *path == '\t' || *path == '\n')) path++;
        if (path < end && (size_t)(end - path) > sizeof open && memcmp(path, open, sizeof open - 1) == 0) {
            const char *stop = memchr(path + sizeof open - 1, '\'', (size_t)(end - path) - sizeof open + 1);
            const size_t size = stop == NULL ? sizeof colour : (size_t)(stop - path);
            if (size < sizeof colour) {
                const char *start = strstr(stop, data);
                if (again && start != NULL && strlen(colour) == size && memcmp(colour, path, size) == 0) {
                    from = start + sizeof data - 1; /* the same colour goes on: no new path */
                    continue;
                }
                memcpy(colour, path, size);
                colour[size] = '\0';
            }
        }
        if (*from == ' ' || *from == '\t' || *from == '\n') { /* blanks as one */
            if (to == text || to[-1] != ' ') *to++ = ' ';
            from++;
        } else
            *to++ = *from++;
    }
    *to = '\0';
    return (size_t)(to - text);
}

static void slurp(struct ag_buf *buf, const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char piece[4096];
    for (size_t n; (n = fread(piece, 1, sizeof piece, file)) > 0;)
        assert_int_equal(ag_buf_add(buf, piece, n, NULL), AG_OK);
    fclose(file);
    assert_int_equal(ag_buf_add(buf, "", 0, NULL), AG_OK);
}

int test_cli(struct ag_buf *out, struct ag_buf *err, const char *format, ...) {
    char arguments[6000], command[7000];
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    const char *program = getenv("ATTGEO");
    static int calls;
    const char *o = test_path("build/test/cli.%ld.%d.out", (long)getpid(), ++calls);
    const char *e = test_path("build/test/cli.%ld.%d.err", (long)getpid(), calls);
    assert_int_equal(system("mkdir -p build/test"), 0);
    snprintf(command, sizeof command, "%s %s >%s 2>%s </dev/null", program != NULL ? program : "build/attgeo",
             arguments, o, e);
    fflush(NULL);
    int code = system(command);
    if (out != NULL) slurp(out, o);
    if (err != NULL) slurp(err, e);
    unlink(o);
    unlink(e);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
}

const char *test_smollm2(void) {
    const char *path = getenv("ATTGEO_SMOLLM2");
    if (path == NULL || *path == '\0') path = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    return ag_path_kind(path) == AG_KIND_FILE ? path : NULL;
}

static bool wanted(const struct test_group *group, const char *test, int n, char **patterns) {
    for (int i = 0; i < n; i++)
        if (strstr(group->name, patterns[i]) != NULL || strstr(test, patterns[i]) != NULL) return true;
    return n == 0;
}

int main(int argc, char **argv) {
    bool with_long = false, gpu = false, list = false;
    int n_patterns = 0;
    seed = (uint64_t)time(NULL);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--long") == 0)
            with_long = true;
        else if (strcmp(argv[i], "--gpu") == 0)
            gpu = true;
        else if (strcmp(argv[i], "--list") == 0)
            list = true;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else if (argv[i][0] == '-') {
            fprintf(stderr, "usage: attgeo-test [--list] [--long] [--gpu] [--seed N] [PATTERN...]\n");
            return 2;
        } else
            argv[1 + n_patterns++] = argv[i]; /* never overtakes i */
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    int run = 0, failed = 0;
    if (!list) printf("seed %llu\n", (unsigned long long)seed);
    for (struct test_group *group = first; group != NULL; group = group->next) {
        if ((group->need == TEST_LONG && !with_long) || (group->need == TEST_GPU) != gpu) {
            if (!list) continue;
        }
        struct CMUnitTest *chosen = calloc(group->n, sizeof *chosen);
        if (chosen == NULL) return 1;
        size_t n = 0;
        for (size_t i = 0; i < group->n; i++)
            if (wanted(group, group->tests[i].name, n_patterns, argv + 1)) chosen[n++] = group->tests[i];
        if (list && n > 0) {
            printf("%s: %s\n", group->name, group->about);
            for (size_t i = 0; i < n; i++)
                printf("  %s%s\n", chosen[i].name,
                       group->need == TEST_LONG  ? " (long)"
                       : group->need == TEST_GPU ? " (gpu)"
                                                 : "");
        } else if (n > 0) {
            double start = (double)clock() / CLOCKS_PER_SEC;
            int bad = _cmocka_run_group_tests(group->name, chosen, n, NULL, NULL);
            printf("%s: %s: %.1f s of processor time\n", group->name, group->about,
                   (double)clock() / CLOCKS_PER_SEC - start);
            run += (int)n;
            failed += bad < 0 ? (int)n : bad;
        }
        free(chosen);
    }
    if (list) return 0;
    printf("%d passed, %d failed, %d skipped\n", run - failed - skipped, failed, skipped);
    return failed != 0 || run == 0 ? 1 : 0;
}
