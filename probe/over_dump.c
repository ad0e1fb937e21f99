/* probe/over_dump.c: see over_dump.h. */
#include "probe/over_dump.h"

#include <inttypes.h>
#include <string.h>

#include "base/h5.h"

const char *const over_dump_taps[AG_TAP_COUNT + 2] = {"proj", "conv", "norm", "rope", "last", NULL};

/* The layers to analyse: what --layers asks for, which must be in the file. */
static enum ag_status choose_layers(bool *mask, const struct ag_source *source, const char *text, const char *path,
                                    struct ag_error *err) {
    if (text == NULL) {
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

enum ag_status over_dump_open(struct over_dump *out, const struct ag_run *run, int tap, const char *layers) {
    const char *path = run->arguments[0], *output = run->common.output;
    struct ag_error *err = run->err;
    enum ag_status status = AG_OK;
    *out = (struct over_dump){0};
    if (output == NULL)
        return ag_fail(err, AG_E_USAGE, "-o is missing: name the results file, for example -o results.h5");
    AG_TRY(ag_h5_out_check(output, run->common.force, err)); /* before the work, not after it */
    if ((out->arena = ag_arena_new("a command over a dump")) == NULL) return ag_fail(err, AG_E_MEMORY, "out of memory");
    AG_TRY(dump_open(&out->reader, path, err));
    AG_TRY(dump_source(&out->source, out->reader, (enum ag_tap)tap, err)); /* AG_TAP_COUNT: the last one stored */
    bool *mask = AG_ZEROS(out->arena, bool, out->source.L, err);
    if (mask == NULL) return AG_E_MEMORY;
    AG_TRY(choose_layers(mask, &out->source, layers, path, err));
    out->source.selected = mask;
    out->source.command_line = run->command_line;
    out->source.dump_path = path;
fail:
    return status;
}

void over_dump_close(struct over_dump *over) {
    dump_close(over->reader);
    ag_arena_free(over->arena);
    *over = (struct over_dump){0};
}

enum ag_status over_dump_begin(const struct over_dump *over, struct ag_reducer *reducer, struct ag_error *err) {
    const enum ag_status status = reducer->class_->begin(reducer, &over->source, err);
    if (status != AG_OK && status != AG_E_USAGE) ag_fail_context(err, "%s", over->source.dump_path);
    return status;
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

enum ag_status over_dump_pass(const struct over_dump *over, struct ag_reducer *reducer, const char *label,
                              const struct ag_log *log, struct ag_error *err) {
    const struct ag_source *source = &over->source;
    const struct ag_reducer_class *class_ = reducer->class_;
    enum ag_status status = AG_OK;
    int64_t layers = 0;
    for (int64_t l = 0; l < source->L; l++) layers += source->selected[l];
    struct ag_progress progress = ag_progress_begin(log, label, layers * source->tokens->T, "tokens x layers");
    struct feed feed = {reducer, &progress};
    for (int64_t l = 0; l < source->L && status == AG_OK; l++)
        if (source->selected[l])
            status = dump_layer(over->reader, l, source->tap, class_->needs_queries, class_->needs_values, hand_over,
                                &feed, err);
    if (status != AG_OK && status != AG_E_USAGE) ag_fail_context(err, "%s", source->dump_path);
    ag_progress_end(&progress);
    return status;
}
