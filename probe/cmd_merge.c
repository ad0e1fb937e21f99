/* probe/cmd_merge.c: attgeo merge: results files of shares of the same prompts -> the results file of one run. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/commands.h"
#include "base/h5.h"
#include "geometry/merge.h"
#include "geometry/report.h"
#include "kernels/kernels.h"
#include "taylor/merge.h"
#include "taylor/report.h"

struct merge_command_options {
    bool allow_backends;
    const char *csv;
};
static const struct merge_command_options defaults = {0};

#define FIELD(name) offsetof(struct merge_command_options, name)
static const struct ag_option options[] = {
    {"allow-backends", 0, AG_OPT_FLAG, FIELD(allow_backends), NULL,
     "Merge files of different backends too. They agree within tolerances, not bit for bit; stderr and the file say "
     "so.",
     NULL, 0, 0},
    {"csv", 0, AG_OPT_TEXT, FIELD(csv), "FOLDER", "geometry: also write cells.csv, layers.csv and spectra.csv there.",
     NULL, 0, 0},
};

/* A kind of results, its functions seen through void. */
struct kind {
    const char *schema, *command;
    enum ag_status (*read)(void **out, const char *path, struct ag_error *err);
    enum ag_status (*merge)(void **out, void *const *parts, const char *const *paths, int64_t n,
                            const struct ag_merge_options *options, struct ag_error *err);
    enum ag_status (*write)(const void *results, const char *path, bool force, struct ag_error *err);
    enum ag_status (*report)(struct ag_buf *out, const void *results, struct ag_error *err);
    const char *(*version)(const void *results);
    const char *(*backend)(const void *results);
    void (*free)(void *results);
};

/* The same for both kinds; from: where the provenance is. */
#define KIND(name)                                                                                                     \
    static enum ag_status name##_read(void **out, const char *path, struct ag_error *err) {                            \
        struct name##_results *r = NULL;                                                                               \
        const enum ag_status status = name##_results_read(&r, path, err);                                              \
        *out = r;                                                                                                      \
        return status;                                                                                                 \
    }                                                                                                                  \
    static enum ag_status name##_merge(void **out, void *const *parts, const char *const *paths, int64_t n,            \
                                       const struct ag_merge_options *o, struct ag_error *err) {                       \
        struct name##_results *r = NULL;                                                                               \
        const enum ag_status status =                                                                                  \
            name##_results_merge(&r, (const struct name##_results *const *)parts, paths, n, o, err);                   \
        *out = r;                                                                                                      \
        return status;                                                                                                 \
    }                                                                                                                  \
    static enum ag_status name##_write(const void *r, const char *path, bool force, struct ag_error *err) {            \
        return name##_results_write(r, path, force, err);                                                              \
    }                                                                                                                  \
    static enum ag_status name##_say(struct ag_buf *out, const void *r, struct ag_error *err) {                        \
        return name##_report(out, r, err);                                                                             \
    }                                                                                                                  \
    static const char *name##_version(const void *r) { return ((const struct name##_results *)r)->from.version; }      \
    static const char *name##_backend(const void *r) { return ((const struct name##_results *)r)->from.backend; }      \
    static void name##_free(void *r) { name##_results_free(r); }
KIND(geom)
KIND(taylor)

static const struct kind kinds[] = {
    {GEOM_SCHEMA, "attgeo geometry", geom_read, geom_merge, geom_write, geom_say, geom_version, geom_backend,
     geom_free},
    {TAYLOR_SCHEMA, "attgeo taylor", taylor_read, taylor_merge, taylor_write, taylor_say, taylor_version,
     taylor_backend, taylor_free},
};

static enum ag_status kind_of(const struct kind **out, const char *path, struct ag_arena *arena, struct ag_error *err) {
    hid_t file = -1;
    const char *schema = "";
    enum ag_status status = ag_h5_open(&file, path, err);
    if (status != AG_OK) return status;
    if (ag_h5_has_attribute(file, ".", "schema")) status = ag_h5_get_text(&schema, file, ".", "schema", arena, err);
    if (ag_h5_close(file, err) != AG_OK && status == AG_OK) status = AG_E_IO;
    if (status != AG_OK) return status;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(schema, kinds[i].schema) == 0) {
            *out = &kinds[i];
            return AG_OK;
        }
    if (strncmp(schema, "attgeo-dump-", 12) == 0)
        return ag_fail(err, AG_E_USAGE,
                       "%s: a dump; expected results; run attgeo geometry or attgeo taylor over each dump and merge "
                       "what they write",
                       path);
    return ag_fail(err, AG_E_USAGE, "%s: schema %.40s; expected %s or %s, results of attgeo geometry or attgeo taylor",
                   path, *schema ? schema : "none", GEOM_SCHEMA, TAYLOR_SCHEMA);
}

static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Everything that can be refused before a file is read. */
static enum ag_status check_arguments(const struct kind **out, const struct ag_run *run, struct ag_arena *arena) {
    enum ag_status status = AG_OK;
    const struct merge_command_options *o = run->options;
    const char *output = run->common.output;
    struct ag_error *err = run->err;
    if (output == NULL)
        return ag_fail(err, AG_E_USAGE, "-o is missing: name the merged results file, for example -o whole.h5");
    if (run->n_arguments < 2)
        return ag_fail(err, AG_E_USAGE,
                       "%s: one file alone; expected at least two: the results of every share, in order",
                       run->arguments[0]);
    for (int i = 0; i < run->n_arguments; i++) {
        const struct kind *kind = NULL;
        const char *path = run->arguments[i];
        for (int j = 0; j < i; j++)
            if (same_file(path, run->arguments[j]))
                return ag_fail(err, AG_E_USAGE, "%s: the same file as %s; expected every share once", path,
                               run->arguments[j]);
        AG_TRY(kind_of(&kind, path, arena, err));
        if (i > 0 && kind != *out)
            return ag_fail(err, AG_E_USAGE,
                           "%s: results of %s; expected those of %s, as in %s; merge each kind by itself", path,
                           kind->command, (*out)->command, run->arguments[0]);
        *out = kind;
    }
    if (o->csv != NULL && *out != &kinds[0])
        return ag_fail(
            err, AG_E_USAGE,
            "--csv is about geometry; for Taylor results attgeo taylor --report %s --json PATH writes the numbers",
            output);
    AG_TRY(ag_h5_out_check(output, run->common.force, err)); /* before the work, not after it */
    if (o->csv != NULL) AG_TRY(geom_tables_check(o->csv, run->common.force, err));
fail:
    return status;
}

/* What a reader of the results should know. */
static void remark(const struct ag_run *run, const struct kind *kind, void *const *parts, const void *whole) {
    const char *const *paths = (const char *const *)run->arguments;
    for (int k = 1; k < run->n_arguments; k++)
        if (strcmp(kind->version(parts[0]), kind->version(parts[k])) != 0) {
            ag_say(run->log, AG_WARN,
                   "%s was made by attgeo %.60s, %s by %.60s: equal bits are promised within one version", paths[0],
                   kind->version(parts[0]), paths[k], kind->version(parts[k]));
            break;
        }
    if (strchr(kind->backend(whole), ',') != NULL)
        ag_say(run->log, AG_WARN,
               "the shares are of different backends (%.60s): the whole equals a run on one of them within tolerances, "
               "not bit for "
               "bit; /merged/backend says which share is of which",
               kind->backend(whole));
}

static enum ag_status run_merge(struct ag_run *run) {
    const struct merge_command_options *o = run->options;
    const char *const *paths = (const char *const *)run->arguments;
    const struct ag_merge_options how = {o->allow_backends, run->command_line};
    struct ag_error *err = run->err;
    enum ag_status status = AG_OK;
    const struct kind *kind = NULL;
    void **parts = NULL, *whole = NULL;
    struct ag_buf text = {0};
    struct ag_arena *arena = ag_arena_new("merge command");
    if (arena == NULL) return ag_fail(err, AG_E_MEMORY, "out of memory");
    kern_set_threads(run->common.threads);
    AG_TRY(check_arguments(&kind, run, arena));
    if (!(parts = AG_ZEROS(arena, void *, run->n_arguments, err))) AG_TRY(AG_E_MEMORY);
    for (int k = 0; k < run->n_arguments; k++) AG_TRY(kind->read(&parts[k], paths[k], err));
    AG_TRY(kind->merge(&whole, parts, paths, run->n_arguments, &how, err));
    remark(run, kind, parts, whole);
    AG_TRY(kind->write(whole, run->common.output, run->common.force, err));
    if (o->csv != NULL) AG_TRY(geom_tables(whole, o->csv, run->common.force, err));
    AG_TRY(kind->report(&text, whole, err));
    if (fwrite(text.data, 1, text.size, run->out) != text.size)
        status = ag_fail(err, AG_E_IO, "standard output: the report could not be written");
fail:
    ag_buf_free(&text);
    if (whole != NULL) kind->free(whole);
    for (int k = 0; parts != NULL && k < run->n_arguments; k++)
        if (parts[k] != NULL) kind->free(parts[k]);
    ag_arena_free(arena);
    return status;
}

const struct ag_command command_merge = {
    .name = "merge",
    .summary = "results of shares of the prompts -> the results of one run, bit for bit",
    .usage = "SHARE1.h5 SHARE2.h5 ...",
    .description =
        "Results of attgeo geometry or attgeo taylor (or probe --reduce) over shares of one prompt file, as attgeo "
        "probe --shard makes them on many "
        "machines, become the results of one run: the records of the files follow one another in the order of the "
        "command line, histograms and "
        "densities add, sampled rows follow one another layer by layer, and everything is folded anew, so that "
        "intervals and p values are those of "
        "all prompts. Numbers are equal bit for bit to those of one run over the prompts in that order, and that is "
        "what the shares 1/N to "
        "N/N in order are wherever twins stand side by side, as attgeo prompts writes them. Merged files can be merged "
        "further.\n\n"
        "Files that are not of one run are refused by name: another kind, checkpoint, tokenizer, prompt file, tap, "
        "layers, seed, dtype, backend, or "
        "option (r, skip, draws, queries), and a prompt that occurs twice. So is the pooled basis of geometry: its "
        "axes are those of all prompts "
        "together, which the shares do not know. Shares that are missing are not noticed: the whole is then of the "
        "prompts there are, and "
        "the first line of the report counts them. Of Taylor curves those of the first prompt are kept, as in one "
        "run.\n\n"
        "The file's command is that of the merge; /merged lists command, version, backend and dump of every run in it.",
    .examples = "attgeo merge share1.h5 share2.h5 share3.h5 share4.h5 -o whole.h5\n"
                "attgeo merge cpu.h5 gpu.h5 -o whole.h5 --allow-backends --csv tables",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .options_size = sizeof(struct merge_command_options),
    .defaults = &defaults,
    .min_arguments = 1,
    .max_arguments = -1,
    .ignores = AG_IGNORES_BACKEND | AG_IGNORES_SEED,
    .run = run_merge,
};
