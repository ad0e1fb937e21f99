/* probe/cmd_geometry.c: attgeo geometry: the geometry reducer over a dump. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/commands.h"
#include "base/file.h"
#include "base/h5.h"
#include "geometry/reducer.h"
#include "geometry/report.h"
#include "probe/dump.h"

struct geometry_options {
    int tap; /* index into taps */
    const char *layers, *csv;
    int64_t r, skip, draws;
    uint64_t bases;
};
static const char *const taps[] = {"proj", "conv", "norm", "rope", "last", NULL};
#define TAP_LAST 4
static const struct geometry_options defaults = {.tap = TAP_LAST, .r = 16, .draws = 10000, .bases = 3};

#define FIELD(name) offsetof(struct geometry_options, name)
static const struct ag_option options[] = {
    {"tap", 0, AG_OPT_CHOICE, FIELD(tap), "TAP",
     "Where the keys were taken: after projection, convolution, QK-norm or RoPE. Default last: the last tap stored.",
     taps, 0, 0},
    {"layers", 0, AG_OPT_TEXT, FIELD(layers), "LIST", "Layers to analyse, e.g. 0-3,7. Default: all that are stored.",
     NULL, 0, 0},
    {"r", 'r', AG_OPT_INT, FIELD(r), "N",
     "Leading axes of the covariance that alignment is measured with; smaller than the head dimension. Default 16.",
     NULL, 1, 1024},
    {"skip", 0, AG_OPT_INT, FIELD(skip), "N",
     "Drop the first N tokens of every prompt (attention sinks) from mean, covariance and roles. Default 0.", NULL, 0,
     1000000000},
    {"basis", 0, AG_OPT_SET, FIELD(bases), "LIST",
     "Which keys mean and axes come from. prompt and haystack, the control, are always computed; pooled (all keys of "
     "all "
     "prompts) reads the dump twice. Default prompt,haystack.",
     geom_basis_names, 0, 0},
    {"draws", 0, AG_OPT_INT, FIELD(draws), "N", "Bootstrap draws of the intervals. Default 10000.", NULL, 100,
     10000000},
    {"csv", 0, AG_OPT_TEXT, FIELD(csv), "DIR", "Also write cells.csv, layers.csv and spectra.csv into DIR.", NULL, 0,
     0},
};

/* The layers to analyse: what --layers asks for, which must be in the file. */
static enum ag_status choose_layers(bool *mask, const struct ag_source *source, const char *text, const char *path,
                                    struct ag_error *err) {
    if (!text) {
        memcpy(mask, source->selected, (size_t)source->L * sizeof *mask);
        return AG_OK;
    }
    const enum ag_status status = ag_parse_ranges(mask, source->L, text, "layers", err);
    if (status != AG_OK) return status;
    for (int64_t l = 0; l < source->L; l++)
        if (mask[l] && !source->selected[l])
            return ag_fail(err, AG_E_USAGE,
                           "--layers %s: layer %" PRId64 " is not in %s; its layers are listed by attgeo info", text, l,
                           path);
    return AG_OK;
}

/* -o that names the dump itself would, with --force, replace it. */
static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

struct feed {
    struct ag_reducer *reducer;
    struct ag_progress *progress;
};

static enum ag_status hand_over(void *self, const struct ag_block *blocks, int64_t n, struct ag_error *err) {
    const struct feed *feed = self;
    const enum ag_status status = feed->reducer->class_->reduce(feed->reducer, blocks, n, err);
    int64_t tokens = 0;
    for (int64_t i = 0; i < n; i++) tokens += blocks[i].T;
    ag_progress_add(feed->progress, tokens);
    return status;
}

static enum ag_status one_pass(struct dump_reader *reader, const struct ag_source *source, struct ag_reducer *reducer,
                               const char *label, const struct ag_log *log, struct ag_error *err) {
    enum ag_status status = AG_OK;
    int64_t layers = 0;
    for (int64_t l = 0; l < source->L; l++) layers += source->selected[l];
    struct ag_progress progress = ag_progress_begin(log, label, layers * source->tokens->T, "tokens x layers");
    struct feed feed = {reducer, &progress};
    for (int64_t l = 0; l < source->L && status == AG_OK; l++)
        if (source->selected[l]) status = dump_layer(reader, l, source->tap, false, false, hand_over, &feed, err);
    ag_progress_end(&progress);
    return status;
}

static enum ag_status run_geometry(struct ag_run *run) {
    const struct geometry_options *o = run->options;
    const char *path = run->arguments[0], *output = run->common.output;
    struct ag_error *err = run->err;
    enum ag_status status = AG_OK;
    struct dump_reader *reader = NULL;
    struct ag_reducer *reducer = NULL;
    const struct kern_ops *ops;
    struct ag_source source;
    struct ag_buf text = {0};
    const struct geom_options reducing = {o->r, o->skip, run->common.seed, o->draws,
                                          (o->bases >> GEOM_BASIS_POOLED & 1) != 0};
    if (!output) return ag_fail(err, AG_E_USAGE, "-o is missing: name the results file, for example -o results.h5");
    if (same_file(path, output))
        return ag_fail(err, AG_E_USAGE, "-o %s is the dump itself; name another file for the results", output);
    struct ag_arena *arena = ag_arena_new("geometry command");
    if (!arena) return ag_fail(err, AG_E_MEMORY, "out of memory");
    AG_TRY(ag_h5_out_check(output, run->common.force, err)); /* before the work, not after it */
    if (o->csv) AG_TRY(geom_tables_check(o->csv, run->common.force, err));
    AG_TRY(kern_backend(&ops, (enum ag_backend)run->common.backend, err));
    kern_set_threads(run->common.threads);
    AG_TRY(dump_open(&reader, path, err));
    AG_TRY(dump_source(&source, reader, o->tap == TAP_LAST ? AG_TAP_COUNT : (enum ag_tap)o->tap, err));
    bool *mask = AG_ZEROS(arena, bool, source.L, err);
    if (!mask) AG_TRY(AG_E_MEMORY);
    AG_TRY(choose_layers(mask, &source, o->layers, path, err));
    source.selected = mask;
    source.command_line = run->command_line;
    source.dump_path = path;
    AG_TRY(geom_reducer_new(&reducer, &reducing, ops, run->log, err));
    status = reducer->class_->begin(reducer, &source, err);
    if (status != AG_OK) {
        if (status != AG_E_USAGE) ag_fail_context(err, "%s", path);
        goto fail;
    }
    ag_say(run->log, AG_DETAIL, "geometry: backend %s, %" PRId64 " threads, BLAS core %s, at most %.1f MB", ops->name,
           kern_threads(), kern_blas_core(), (double)reducer->class_->bytes(reducer, &source) / 1e6);
    AG_TRY(one_pass(reader, &source, reducer, "geometry", run->log, err));
    if (reducing.pooled) {
        AG_TRY(geom_reducer_second_pass(reducer, err));
        AG_TRY(one_pass(reader, &source, reducer, "geometry, pooled basis", run->log, err));
    }
    AG_TRY(reducer->class_->finish(reducer, output, run->common.force, err));
    if (o->csv) AG_TRY(geom_tables(geom_reducer_results(reducer), o->csv, run->common.force, err));
    AG_TRY(geom_report(&text, geom_reducer_results(reducer), err));
    if (fwrite(text.data, 1, text.size, run->out) != text.size)
        status = ag_fail(err, AG_E_IO, "standard output: the summary could not be written");
fail:
    ag_buf_free(&text);
    if (reducer) reducer->class_->free(reducer);
    dump_close(reader);
    ag_arena_free(arena);
    return status;
}

const struct ag_command command_geometry = {
    .name = "geometry",
    .summary = "covariance spectra, alignment and Delta-mu of the keys in a dump",
    .usage = "DUMP.h5",
    .description = "For every layer and key head: the spectrum of the keys' covariance with its named ranks, the "
                   "alignment of each role's "
                   "tokens with the r leading axes, and Delta-mu, the alignment of needle tokens minus that of "
                   "distractor tokens. Negative "
                   "means that the needle lies off the directions where the keys are dense.\n\n"
                   "Every result is computed on two bases: prompt (all keys of the same prompt) and haystack (its "
                   "haystack keys only). A "
                   "sentence that is repeated turns the axes of the prompt basis towards itself, so that Delta-mu is "
                   "negative there partly "
                   "by construction; the haystack basis is the control that a claim must survive.\n\n"
                   "The results file (HDF5) holds a record for every prompt, layer and head, and the summary with 95 % "
                   "intervals over "
                   "independent units (twin pairs), sign-flip p and Benjamini-Hochberg q. A summary in words goes to "
                   "stdout. The same "
                   "results come from attgeo probe --reduce geometry without a dump.",
    .examples = "attgeo geometry dump.h5 -o results.h5\n"
                "attgeo geometry dump.h5 -o results.h5 --tap proj --layers 4-9 -r 8 --skip 1 --csv tables\n"
                "attgeo geometry dump.h5 -o results.h5 --basis prompt,haystack,pooled",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .options_size = sizeof(struct geometry_options),
    .defaults = &defaults,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run_geometry,
};
