/* plots/table.c: what all figure tables share: safe text, the header, numbers, axes. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "plots/figure.h"

const char *const plot_pooling_names[PLOT_POOL_COUNT + 1] = {"prompt", "token", NULL};

const char *plot_text(const char *text, int most, struct ag_arena *arena, struct ag_error *err) {
    /* Two passes over code points: the first counts them, the second copies those that stay. */
    const size_t n = strlen(text);
    int64_t size, points = 0;
    if (!ag_mul((int64_t)n, 3, &size)) return NULL;
    char *out = ag_arena_alloc(arena, size + 4, 1, err);
    if (out == NULL) return NULL;
    size_t used = 0;
    for (int pass = 0; pass < 2; pass++) {
        int64_t index = 0;
        for (size_t i = 0; i < n; index++) {
            utf8proc_int32_t c = 0;
            const utf8proc_ssize_t step =
                utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &c);
            i += step > 0 ? (size_t)step : 1;
            if (step <= 0) c = 0xFFFD;
            if (c == '"') c = '\'';
            const utf8proc_category_t kind = utf8proc_category(c);
            if (kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_ZL ||
                kind == UTF8PROC_CATEGORY_ZP || kind == UTF8PROC_CATEGORY_CN)
                c = ' ';
            if (pass == 0) continue;
            const int64_t head = most - most / 3 - 1, tail = points - most / 3;
            if (most > 0 && points > most) {
                if (index == head) c = 0x2026;
                if (index > head && index < tail) continue;
            }
            used += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out + used);
        }
        points = index;
    }
    out[used] = '\0';
    return out;
}

void plot_header(FILE *tsv, const char *key, const char *format, ...) {
    va_list list;
    fprintf(tsv, "# %s\t", key);
    va_start(list, format);
    vfprintf(tsv, format, list);
    va_end(list);
    fputc('\n', tsv);
}

enum ag_status plot_provenance(FILE *tsv, const char *figure, const char *measure, const char *pooling,
                               const struct plot_choice *choice, struct ag_arena *arena, struct ag_error *err) {
    const struct plot_results *r = choice->results;
    const char *model = plot_text(r->model, 0, arena, err), *brief = plot_text(r->model, 44, arena, err);
    const char *tap = plot_text(r->tap, 16, arena, err), *last = plot_text(r->last_tap, 16, arena, err);
    const char *architecture = plot_text(r->architecture, 0, arena, err);
    const char *checkpoint = plot_text(r->checkpoint_sha256, 0, arena, err);
    const char *prompts = plot_text(r->prompts_sha256, 0, arena, err);
    const char *version = plot_text(r->version, 60, arena, err);
    const char *slash = strrchr(r->path, '/'), *file = plot_text(slash != NULL ? slash + 1 : r->path, 0, arena, err);
    if (model == NULL || brief == NULL || tap == NULL || last == NULL || architecture == NULL || checkpoint == NULL ||
        prompts == NULL || version == NULL || file == NULL)
        return AG_E_MEMORY;
    plot_header(tsv, "figure", "%s", figure);
    plot_header(tsv, "model", "%s", model);
    plot_header(tsv, "architecture", "%s", architecture);
    plot_header(tsv, "tap", "%s", tap);
    plot_header(tsv, "last_tap", "%s", last);
    plot_header(tsv, "basis", "%s", choice->panel[0]->name);
    plot_header(tsv, "control", "%s", choice->panel[choice->n_panels - 1]->name);
    plot_header(tsv, "r", "%" PRId64, r->r);
    plot_header(tsv, "prompts", "%" PRId64, r->P);
    plot_header(tsv, "units", "%" PRId64, r->units);
    plot_header(tsv, "skip", "%" PRId64, r->skip);
    plot_header(tsv, "pooling", "%s", pooling != NULL ? pooling : "none");
    plot_header(tsv, "checkpoint_sha256", "%s", checkpoint);
    plot_header(tsv, "prompts_sha256", "%s", prompts);
    plot_header(tsv, "results", "%s", file);
    plot_header(tsv, "version", "%s", version);
    plot_header(tsv, "title", "%s · %s", measure, brief);
    char skipped[48] = "";
    if (r->skip > 0) snprintf(skipped, sizeof skipped, " · first %" PRId64 " tokens skipped", r->skip);
    plot_header(tsv, "subtitle", "tap %s%s · r = %" PRId64 " · %" PRId64 " prompt%s (%" PRId64 " unit%s)%s%s%s", tap,
                strcmp(tap, last) == 0 ? " (the last)" : "", r->r, r->P, r->P == 1 ? "" : "s", r->units,
                r->units == 1 ? "" : "s", pooling != NULL ? " · pooling " : "", pooling != NULL ? pooling : "",
                skipped);
    char lost[80] = "";
    if (r->storage_lost > 0)
        snprintf(lost, sizeof lost, " · %" PRId64 " records lost to 16-bit storage", r->storage_lost);
    plot_header(tsv, "source", "checkpoint %.12s · prompts %.12s (SHA-256) · attgeo %s%s", checkpoint, prompts, version,
                lost);
    plot_header(tsv, "panels", "%d", choice->n_panels);
    for (int i = 0; i < choice->n_panels; i++) {
        const char *name = choice->panel[i]->name;
        plot_header(tsv,
                    i == 0   ? "panel1"
                    : i == 1 ? "panel2"
                             : "panel3",
                    "%s",
                    strcmp(name, "haystack") == 0 ? "basis haystack (control)"
                    : strcmp(name, "pooled") == 0 ? "basis pooled (all prompts)"
                                                  : "basis prompt (all keys)");
    }
    return AG_OK;
}

void plot_number(FILE *tsv, double value) {
    if (isnan(value)) {
        fputs("NaN", tsv);
    } else if (isinf(value)) {
        fputs(value > 0 ? "inf" : "-inf", tsv);
    } else {
        fprintf(tsv, "%.9g", value);
    }
}

const char *plot_label(char out[64], double value, int decimals) {
    char digits[56];
    snprintf(digits, sizeof digits, "%.*f", decimals, fabs(value));
    bool zero = true; /* no "-0.00": the sign of a value that rounds to nothing is not shown */
    for (const char *c = digits; *c != '\0'; c++) zero = zero && (*c == '0' || *c == '.');
    snprintf(out, 64, "%s%s", value < 0 && !zero ? "−" : "", digits);
    return out;
}

bool plot_drawable(double value) { return isfinite(value) && fabs(value) <= 1e30; }

double plot_round_up(double value) {
    static const double nice[] = {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10};
    const double power = pow(10, floor(log10(value)));
    for (size_t i = 0; i < sizeof nice / sizeof nice[0]; i++)
        if (nice[i] * power >= value * (1 - 1e-12)) return nice[i] * power;
    return 10 * power;
}

enum ag_status plot_choose_range(struct plot_range *out, double *magnitudes, int64_t n, double given, const char *what,
                                 struct ag_arena *arena, struct ag_error *err) {
    char how[160];
    qsort(magnitudes, (size_t)n, sizeof magnitudes[0], plot_compare_doubles);
    const double largest = n > 0 ? magnitudes[n - 1] : 0, usual = n > 0 ? magnitudes[(n - 1) * 95 / 100] : 0;
    if (given > 0) {
        out->half = given;
        snprintf(how, sizeof how, "given");
    } else if (n == 0) {
        out->half = 0.1;
        snprintf(how, sizeof how, "arbitrary: nothing is finite");
    } else if (largest == 0) {
        out->half = 0.1;
        snprintf(how, sizeof how, "arbitrary: every value is 0");
    } else if (usual > 0 && largest > 4 * usual) {
        int64_t last = n - 1;
        while (magnitudes[last] > 4 * usual) last--;
        out->half = plot_round_up(magnitudes[last]);
        snprintf(how, sizeof how, "the largest %s up to 4 × its 95th percentile, rounded up", what);
    } else {
        out->half = largest < 1e300 ? plot_round_up(largest) : largest;
        snprintf(how, sizeof how, "the largest %s, rounded up", what);
    }
    out->how = ag_arena_text(arena, how, strlen(how), err);
    return out->how != NULL ? AG_OK : AG_E_MEMORY;
}

struct plot_axis plot_nice_axis(double lo, double hi, bool unit_interval) {
    if (!(lo <= hi)) return (struct plot_axis){0, 1, 0.2};
    const bool bounded = unit_interval && lo >= 0 && hi <= 1;
    double span = hi - lo;
    const double least = fmax(1e-3 * fmax(fabs(lo), fabs(hi)), 1e-6); /* constant data still get an axis */
    if (span < least) {
        lo -= least / 2;
        hi += least / 2;
        span = hi - lo;
    }
    const double rough = span / 5, power = pow(10, floor(log10(rough)));
    const double step = (rough / power <= 1.2 ? 1 : rough / power <= 2.5 ? 2 : rough / power <= 6 ? 5 : 10) * power;
    struct plot_axis axis = {floor((lo - 0.02 * span) / step) * step, ceil((hi + 0.02 * span) / step) * step, step};
    if (bounded) {
        axis.min = fmax(axis.min, 0);
        axis.max = fmin(axis.max, 1);
    }
    return axis;
}

/* A row whose first cells say where we are: basis, layer. */
void plot_row(FILE *tsv, const struct plot_basis *basis, int64_t layer) {
    fprintf(tsv, "%s\t%" PRId64, basis->name, layer);
}

void plot_cell(FILE *tsv, double value) {
    fputc('\t', tsv);
    plot_number(tsv, value);
}

void plot_header_axis(FILE *tsv, const char *prefix, struct plot_axis axis) {
    char key[48];
    const double values[3] = {axis.min, axis.max, axis.step};
    const char *const names[3] = {"min", "max", "step"};
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "%s_%s", prefix, names[i]);
        plot_header(tsv, key, "%.12g", values[i]);
    }
}

void plot_header_layers(FILE *tsv, const struct plot_results *r) {
    plot_header(tsv, "layer_min", "%" PRId64, r->layer[0]);
    plot_header(tsv, "layer_max", "%" PRId64, r->layer[r->Ls - 1]);
}

/* Said in the middle of a panel that has no point, so that it is not taken for a fault of the drawing. */
void plot_header_empty(FILE *tsv, int panel, int part, int64_t drawn, const char *why) {
    char key[32];
    if (drawn > 0) return;
    snprintf(key, sizeof key, "panel%d_empty%d", panel + 1, part);
    plot_header(tsv, key, "%s", why);
}

int plot_compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
