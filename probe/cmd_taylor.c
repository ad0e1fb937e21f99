/* probe/cmd_taylor.c: attgeo taylor: the Taylor reducer over a dump, and the report of a results file. */
#include <stdio.h>
#include <string.h>

#include "base/commands.h"
#include "base/file.h"
#include "probe/over_dump.h"
#include "probe/select.h"
#include "taylor/reducer.h"
#include "taylor/report.h"

struct taylor_command_options {
    int tap;
    const char *layers, *positions, *json;
    int64_t queries, r, draws, curves;
    bool report;
};
static const struct taylor_command_options defaults = {
    .tap = OVER_DUMP_TAP_LAST, .queries = 64, .r = 16, .draws = 10000, .curves = 3};

#define FIELD(name) offsetof(struct taylor_command_options, name)
static const struct ag_option options[] = {
    {"report", 0, AG_OPT_FLAG, FIELD(report), NULL,
     "The argument is a results file of attgeo taylor: print its report and compute nothing.", NULL, 0, 0},
    {"json", 0, AG_OPT_OUTPUT, FIELD(json), "PATH", "Also write the report's numbers as JSON.", NULL, 0, 0},
    {"tap", 0, AG_OPT_CHOICE, FIELD(tap), "TAP", OVER_DUMP_TAP_HELP, over_dump_taps, 0, 0},
    {"layers", 0, AG_OPT_TEXT, FIELD(layers), "LIST", OVER_DUMP_LAYERS_HELP, NULL, 0, 0},
    {"queries", 0, AG_OPT_INT, FIELD(queries), "N",
     "Positions of each prompt that are looked at in full, drawn from the seed and the prompt's id, the same for all "
     "heads; those that "
     "retrieve the answer's value are added. Default 64.",
     NULL, 0, 1000000000},
    {"positions", 0, AG_OPT_TEXT, FIELD(positions), "LIST",
     "These positions of every prompt instead of a draw: role names, value, last, retrieve, or numbers such as 0-63.",
     NULL, 0, 0},
    {"curves", 0, AG_OPT_INT, FIELD(curves), "N",
     "Positions of the first prompt at which R(s q)/c(s q) is kept for 33 values of s, every head: the headline query "
     "first, then those "
     "with most keys. For the figure taylor-radius. Default 3.",
     NULL, 0, 1000},
    {"r", 'r', AG_OPT_INT, FIELD(r), "N", "Axes of Sigma_t that the direction is compared with. Default 16.", NULL, 1,
     1024},
    {"draws", 0, AG_OPT_INT, FIELD(draws), "N", "Bootstrap draws of the intervals. Default 10000.", NULL, 100,
     10000000},
};

/* The report on stdout, and as JSON into the file begun before the work (NULL: not asked for). */
static enum ag_status publish(const struct ag_run *run, const struct taylor_results *results, struct ag_out *json) {
    struct ag_buf text = {0};
    enum ag_status status = AG_OK;
    AG_TRY(taylor_report(&text, results, run->err));
    if (fwrite(text.data, 1, text.size, run->out) != text.size)
        AG_TRY(ag_fail(run->err, AG_E_IO, "standard output: the report could not be written"));
    if (json != NULL) {
        ag_buf_free(&text);
        AG_TRY(taylor_report_json(&text, results, run->err));
        fwrite(text.data, 1, text.size, json->stream); /* commit notices what fails */
    }
fail:
    ag_buf_free(&text);
    return status;
}

static enum ag_status report_file(const struct ag_run *run, struct ag_out *json) {
    struct taylor_results *results;
    enum ag_status status = taylor_results_read(&results, run->arguments[0], run->err);
    if (status != AG_OK) return status;
    status = publish(run, results, json);
    taylor_results_free(results);
    return status;
}

static enum ag_status compute(const struct ag_run *run, struct ag_out *json) {
    const struct taylor_command_options *o = run->options;
    struct ag_error *err = run->err;
    enum ag_status status = AG_OK;
    struct over_dump over = {0};
    struct ag_reducer *reducer = NULL;
    const struct kern_ops *ops;
    struct taylor_options reducing = {o->queries, o->r, run->common.seed, o->draws, NULL, o->curves};
    AG_TRY(kern_backend(&ops, (enum ag_backend)run->common.backend, err));
    kern_set_threads(run->common.threads);
    AG_TRY(over_dump_open(&over, run, o->tap, o->layers));
    if (o->positions != NULL) {
        bool *mask = AG_ZEROS(over.arena, bool, over.source.tokens->T, err);
        if (mask == NULL) AG_TRY(AG_E_MEMORY);
        AG_TRY(select_positions(mask, over.source.tokens, o->positions, err));
        reducing.positions = mask;
    }
    AG_TRY(taylor_reducer_new(&reducer, &reducing, ops, run->log, err));
    AG_TRY(over_dump_begin(&over, reducer, err));
    AG_TRY(over_dump_pass(&over, reducer, "taylor", run->log, err));
    AG_TRY(reducer->class_->finish(reducer, run->common.output, run->common.force, err));
    AG_TRY(publish(run, taylor_reducer_results(reducer), json));
fail:
    if (reducer != NULL) reducer->class_->free(reducer);
    over_dump_close(&over);
    return status;
}

static enum ag_status run_taylor(struct ag_run *run) {
    const struct taylor_command_options *o = run->options;
    struct ag_out out;
    struct ag_out *json = o->json != NULL ? &out : NULL;
    enum ag_status status;
    if (o->report && run->common.output != NULL)
        return ag_fail(run->err, AG_E_USAGE,
                       "-o does not go with --report, which computes nothing; --json PATH writes the numbers");
    if (json != NULL) { /* before the work, not after it */
        status = ag_out_begin(json, o->json, run->common.force, run->err);
        if (status != AG_OK) return status;
    }
    status = o->report ? report_file(run, json) : compute(run, json);
    if (json == NULL) return status;
    if (status == AG_OK) return ag_out_commit(json, run->err);
    ag_out_discard(json);
    return status;
}

const struct ag_command command_taylor = {
    .name = "taylor",
    .summary = "the remainder of the second-order model of softmax, certified, at the queries the model forms",
    .usage = "DUMP.h5",
    .description = "Softmax's log-partition A(q) = log sum exp k_j.q is modelled at q = 0 to second order by log t + "
                   "mu.q + 1/2 q^T Sigma q. For every "
                   "causal query of every query head, over exactly the keys that it sees: the remainder R, the "
                   "competition c that the normaliser adds over a "
                   "linear read, how far the query is from q = 0, and four enclosures of R: B1 to B3 from the logits, "
                   "B4 from what a constant-size state could "
                   "carry. The enclosures hold for the stored keys and queries with all rounding included. Of a linear-attention "
                   "model it is the softmax that its keys and queries would form, the object that the paper expands.\n\n"
                   "A seeded sample of queries is looked at in full: trust radii (up to which multiple of the query "
                   "|R| stays below a share of c), whether they are "
                   "certified, and whether the direction Sigma q points to where softmax goes.\n\n"
                   "The results file (HDF5) holds counts, histograms and the sampled rows; the report on stdout says "
                   "what was found, for and against. The "
                   "same results come from attgeo probe --reduce taylor without a dump. The dump must hold queries of "
                   "every token.",
    .examples = "attgeo taylor dump.h5 -o taylor.h5\n"
                "attgeo taylor dump.h5 -o taylor.h5 --queries 16 --layers 0-3 --json taylor.json\n"
                "attgeo taylor --report taylor.h5",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .options_size = sizeof(struct taylor_command_options),
    .defaults = &defaults,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run_taylor,
};
