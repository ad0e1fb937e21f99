/* probe/cmd_geometry.c: attgeo geometry: the geometry reducer over a dump. */
#include <inttypes.h>
#include <stdio.h>

#include "base/commands.h"
#include "base/file.h"
#include "geometry/reducer.h"
#include "geometry/report.h"
#include "probe/over_dump.h"

struct geometry_options {
    int tap; /* index into over_dump_taps */
    const char *layers, *csv;
    int64_t r, skip, draws;
    uint64_t bases;
};
static const struct geometry_options defaults = {.tap = OVER_DUMP_TAP_LAST, .r = 16, .draws = 10000, .bases = 3};

#define FIELD(name) offsetof(struct geometry_options, name)
static const struct ag_option options[] = {
    {"tap", 0, AG_OPT_CHOICE, FIELD(tap), "TAP", OVER_DUMP_TAP_HELP, over_dump_taps, 0, 0},
    {"layers", 0, AG_OPT_TEXT, FIELD(layers), "LIST", OVER_DUMP_LAYERS_HELP, NULL, 0, 0},
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

static enum ag_status run_geometry(struct ag_run *run) {
    const struct geometry_options *o = run->options;
    const char *output = run->common.output;
    struct ag_error *err = run->err;
    enum ag_status status = AG_OK;
    struct over_dump over = {0};
    struct ag_reducer *reducer = NULL;
    const struct kern_ops *ops;
    struct ag_buf text = {0};
    const struct geom_options reducing = {o->r, o->skip, run->common.seed, o->draws,
                                          (o->bases >> GEOM_BASIS_POOLED & 1) != 0};
    AG_TRY(kern_backend(&ops, (enum ag_backend)run->common.backend, err));
    kern_set_threads(run->common.threads);
    AG_TRY(over_dump_open(&over, run, o->tap, o->layers));
    if (o->csv) AG_TRY(geom_tables_check(o->csv, run->common.force, err)); /* before the work, not after it */
    AG_TRY(geom_reducer_new(&reducer, &reducing, ops, run->log, err));
    AG_TRY(over_dump_begin(&over, reducer, err));
    ag_say(run->log, AG_DETAIL, "geometry: backend %s, %" PRId64 " threads, BLAS core %s, at most %.1f MB", ops->name,
           kern_threads(), kern_blas_core(), (double)reducer->class_->bytes(reducer, &over.source) / 1e6);
    AG_TRY(over_dump_pass(&over, reducer, "geometry", run->log, err));
    if (reducing.pooled) {
        AG_TRY(geom_reducer_second_pass(reducer, err));
        AG_TRY(over_dump_pass(&over, reducer, "geometry, pooled basis", run->log, err));
    }
    AG_TRY(reducer->class_->finish(reducer, output, run->common.force, err));
    if (o->csv) AG_TRY(geom_tables(geom_reducer_results(reducer), o->csv, run->common.force, err));
    AG_TRY(geom_report(&text, geom_reducer_results(reducer), err));
    if (fwrite(text.data, 1, text.size, run->out) != text.size)
        status = ag_fail(err, AG_E_IO, "standard output: the summary could not be written");
fail:
    ag_buf_free(&text);
    if (reducer) reducer->class_->free(reducer);
    over_dump_close(&over);
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
