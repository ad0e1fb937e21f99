/* plots/cmd_plot.c: `attgeo plot`: figures of a results file, each as table, script and pictures. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/commands.h"
#include "base/file.h"
#include "plots/figure.h"
#include "plots/taylor_figure.h"

/* Geometry's, then Taylor's, in the order of plot_figures and plot_taylor_figures. */
static const char *const figure_names[] = {
    "delta-mu",      "separation",       "spectra",       "rank", "taylor-density", "taylor-heatmap", "taylor-ladder",
    "taylor-radius", "taylor-direction", "taylor-orders", NULL};
_Static_assert(sizeof figure_names / sizeof figure_names[0] == PLOT_FIGURES + PLOT_TAYLOR_FIGURES + 1,
               "a name for every figure");
enum { MOST_FIGURES = (int)PLOT_TAYLOR_FIGURES > (int)PLOT_FIGURES ? (int)PLOT_TAYLOR_FIGURES : (int)PLOT_FIGURES };
static const char *const basis_names[] = {"prompt", "pooled", NULL};

struct plot_options {
    uint64_t formats, figures; /* figures 0: all that the results have */
    int pooling, basis;        /* -1: not given */
    int64_t layer, head;       /* -1: not given */
    double range;
};
static const struct plot_options defaults = {(1u << PLOT_FORMATS) - 1, 0, -1, -1, -1, -1, 0};
static const struct ag_option options[] = {
    {"format", 0, AG_OPT_SET, offsetof(struct plot_options, formats), "LIST",
     "Pictures to draw: png, svg, pdf. Default: all three.", plot_format_names, 0, 0},
    {"figure", 0, AG_OPT_SET, offsetof(struct plot_options, figures), "LIST",
     "Figures to draw. Of geometry: delta-mu, separation, spectra, rank. Of taylor: taylor-density, taylor-heatmap, "
     "taylor-ladder, "
     "taylor-radius, taylor-direction, taylor-orders. Default: all that the results have.",
     figure_names, 0, 0},
    {"pooling", 0, AG_OPT_CHOICE, offsetof(struct plot_options, pooling), "NAME",
     "Geometry: pooling of Delta-mu: prompt (differences within a prompt, with a test) or token (all tokens of all "
     "prompts, as in the paper's Figure 5). Default: prompt.",
     plot_pooling_names, 0, 0},
    {"basis", 0, AG_OPT_CHOICE, offsetof(struct plot_options, basis), "NAME",
     "Geometry: basis shown first: prompt or pooled; the haystack control always stands beside it. Default: prompt.",
     basis_names, 0, 0},
    {"layer", 0, AG_OPT_INT, offsetof(struct plot_options, layer), "N",
     "Taylor: layer that taylor-ladder and taylor-radius look at. Default: the head whose share of queries with |R| <= "
     "0.5 c is "
     "the median of those that fit --layer or --head (without either, taylor-radius adds the lowest and the highest).",
     NULL, 0, 1e9},
    {"head", 0, AG_OPT_INT, offsetof(struct plot_options, head), "N",
     "Taylor: query head that taylor-ladder and taylor-radius look at. Default: as for --layer.", NULL, 0, 1e9},
    {"range", 0, AG_OPT_REAL, offsetof(struct plot_options, range), "X",
     "Half width of the colour range of Delta-mu, or of the median R/c, to compare models. Default: 0, from the data "
     "(stated on "
     "the figure).",
     NULL, 0, 1e30},
};

/* What a run makes, so that it can be put in place at the end or removed on failure. */
struct output {
    const char *folder, *work; /* work: a folder inside, where everything is made first */
    bool folder_is_new, work_is_there;
    const char *names[MOST_FIGURES * (2 + PLOT_FORMATS)];
    int n;
};

/* The chosen figures as a mask over the set's; what the results do not have is refused by name. */
static enum ag_status choose_figures(uint64_t *figures, enum plot_schema schema, const struct plot_options *o,
                                     const char *path, struct ag_error *err) {
    const struct plot_set *set = &plot_sets[schema];
    const int first = schema == PLOT_TAYLOR ? PLOT_FIGURES : 0;
    const uint64_t all = ((uint64_t)1 << set->n) - 1;
    const bool geometry = schema == PLOT_GEOMETRY;
    *figures = o->figures == 0 ? all : o->figures >> first & all;
    for (int f = 0; figure_names[f] != NULL; f++) {
        if ((o->figures >> f & 1) != 0 && (f < first || f >= first + set->n))
            return ag_fail(err, AG_E_USAGE,
                           "--figure %s: %s holds results of %s, which have the figures %s to %s; leave it out",
                           figure_names[f], path, set->made_by, set->figures[0].name, set->figures[set->n - 1].name);
    }
    const struct {
        const char *name;
        bool wrong;
    } given[] = {
        {"pooling", !geometry && o->pooling >= 0},
        {"basis", !geometry && o->basis >= 0},
        {"layer", geometry && o->layer >= 0},
        {"head", geometry && o->head >= 0},
    };
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
        if (given[i].wrong)
            return ag_fail(err, AG_E_USAGE, "--%s: %s holds results of %s, which have no such choice; leave it out",
                           given[i].name, path, set->made_by);
    return AG_OK;
}

static enum ag_status name_outputs(struct output *out, const struct plot_set *set, uint64_t figures,
                                   const struct plot_options *o, struct ag_arena *arena, struct ag_error *err) {
    for (int f = 0; f < set->n; f++) {
        if ((figures >> f & 1) == 0) continue;
        for (int k = 0; k < 2 + PLOT_FORMATS; k++) {
            char name[64];
            if (k >= 2 && (o->formats >> (k - 2) & 1) == 0) continue;
            snprintf(name, sizeof name, "%s.%s", set->figures[f].name,
                     k == 0   ? "tsv"
                     : k == 1 ? "gp"
                              : plot_format_names[k - 2]);
            out->names[out->n] = ag_arena_text(arena, name, strlen(name), err);
            if (out->names[out->n++] == NULL) return AG_E_MEMORY;
        }
    }
    return AG_OK;
}

/* Before any work: the folder can be written and nothing in it would be replaced. */
static enum ag_status check_folder(struct output *out, bool force, struct ag_arena *arena, struct ag_error *err) {
    const enum ag_kind kind = ag_path_kind(out->folder);
    if (kind == AG_KIND_FILE || kind == AG_KIND_OTHER) {
        return ag_fail(err, AG_E_USAGE, "%s: is no folder; expected a folder for the figures (-o DIR)", out->folder);
    }
    out->folder_is_new = kind == AG_KIND_NONE;
    for (int i = 0; i < out->n; i++) {
        const char *path = ag_path_join(arena, out->folder, out->names[i], err);
        struct stat there;
        if (path == NULL) return AG_E_MEMORY;
        if (lstat(path, &there) != 0) continue;
        if (S_ISDIR(there.st_mode))
            return ag_fail(err, AG_E_IO, "%s: is a folder; expected a file or nothing; move it away", path);
        if (!force)
            return ag_fail(err, AG_E_IO, "%s: exists; expected to make it anew; choose another folder or give --force",
                           path);
    }
    return AG_OK;
}

static enum ag_status make_folders(struct output *out, struct ag_arena *arena, struct ag_error *err) {
    char name[64];
    enum ag_status status = ag_path_make_folder(out->folder, err);
    if (status != AG_OK) return status;
    snprintf(name, sizeof name, ".attgeo-plot.%ld.tmp", (long)getpid());
    out->work = ag_path_join(arena, out->folder, name, err);
    if (out->work == NULL) return AG_E_MEMORY;
    if (mkdir(out->work, 0777) != 0) {
        return ag_fail(err, AG_E_IO, "%s: cannot make a folder here: %s; choose another -o", out->work,
                       strerror(errno));
    }
    out->work_is_there = true;
    return AG_OK;
}

static enum ag_status write_script(const struct plot_figure *figure, const char *path, struct ag_error *err) {
    struct ag_out out;
    enum ag_status status = ag_out_begin(&out, path, false, err);
    if (status != AG_OK) return status;
    fwrite(plot_style, 1, (size_t)(plot_style_end - plot_style), out.stream);
    fputc('\n', out.stream);
    fwrite(figure->script, 1, (size_t)(figure->script_end - figure->script), out.stream);
    return ag_out_commit(&out, err);
}

static enum ag_status write_table(const struct plot_figure *figure, const char *path, const struct plot_choice *choice,
                                  struct ag_arena *arena, struct ag_error *err) {
    struct ag_out out;
    enum ag_status status = ag_out_begin(&out, path, false, err);
    if (status != AG_OK) return status;
    status = figure->write(out.stream, choice, arena, err);
    if (status == AG_OK) return ag_out_commit(&out, err);
    ag_out_discard(&out);
    return status;
}

static enum ag_status draw(const struct plot_figure *figure, const struct output *out, const struct plot_choice *choice,
                           uint64_t formats, const struct ag_run *run, struct ag_arena *arena) {
    char script[64], data[64], picture[64];
    enum ag_status status = AG_OK;
    snprintf(script, sizeof script, "%s.gp", figure->name);
    snprintf(data, sizeof data, "%s.tsv", figure->name);
    const char *script_path = ag_path_join(arena, out->work, script, run->err);
    const char *data_path = ag_path_join(arena, out->work, data, run->err), *talk;
    if (script_path == NULL || data_path == NULL) return AG_E_MEMORY;
    AG_TRY(write_script(figure, script_path, run->err));
    AG_TRY(write_table(figure, data_path, choice, arena, run->err));
    for (int f = 0; f < PLOT_FORMATS; f++) {
        if ((formats >> f & 1) == 0) continue;
        snprintf(picture, sizeof picture, "%s.%s", figure->name, plot_format_names[f]);
        AG_TRY(plot_gnuplot_run(out->work, script, data, picture, &talk, arena, run->err));
        if (talk != NULL) ag_say(run->log, AG_WARN, "gnuplot on %s: %s", picture, talk);
    }
fail:
    return status;
}

/* Everything is whole: into its place. */
static enum ag_status put_in_place(const struct output *out, struct ag_run *run, struct ag_arena *arena) {
    for (int i = 0; i < out->n; i++) {
        const char *from = ag_path_join(arena, out->work, out->names[i], run->err);
        const char *to = ag_path_join(arena, out->folder, out->names[i], run->err);
        if (from == NULL || to == NULL) return AG_E_MEMORY;
        if (rename(from, to) != 0)
            return ag_fail(run->err, AG_E_IO, "%s: cannot be put in place: %s", to, strerror(errno));
        fprintf(run->out, "%s\n", to);
    }
    return AG_OK;
}

static void clean_up(const struct output *out, bool failed, struct ag_arena *arena) {
    if (out->work_is_there) {
        for (int i = 0; i < out->n; i++) {
            const char *path = ag_path_join(arena, out->work, out->names[i], NULL);
            if (path != NULL) (void)unlink(path);
        }
        (void)rmdir(out->work);
    }
    if (failed && out->folder_is_new) (void)rmdir(out->folder);
}

static enum ag_status choose_panels(struct plot_choice *choice, const char *basis, struct ag_error *err) {
    const struct plot_basis *first = plot_find_basis(choice->results, basis);
    if (first == NULL) {
        return ag_fail(
            err, AG_E_USAGE,
            "%s: holds no basis '%s'; make the results with `attgeo geometry --basis %s`, or choose --basis prompt",
            choice->results->path, basis, basis);
    }
    choice->panel[0] = first;
    choice->panel[1] = plot_find_basis(choice->results, "haystack");
    choice->n_panels = 2;
    return AG_OK;
}

static enum ag_status run_plot(struct ag_run *run) {
    const struct plot_options *o = run->options;
    const char *const path = run->arguments[0];
    struct plot_results results;
    struct taylor_results *taylor = NULL;
    struct plot_choice choice = {.path = path,
                                 .pooling = o->pooling < 0 ? PLOT_POOL_PROMPT : (enum plot_pooling)o->pooling,
                                 .range = o->range,
                                 .layer = o->layer,
                                 .head = o->head};
    struct output out = {.folder = run->common.output};
    enum ag_status status = AG_OK;
    enum plot_schema schema = PLOT_GEOMETRY;
    const struct plot_set *set = NULL;
    uint64_t figures = 0;
    const char *warning = NULL;
    if (out.folder == NULL)
        return ag_fail(run->err, AG_E_USAGE, "plot: no output; expected -o DIR, the folder for the figures");
    struct ag_arena *arena = ag_arena_new("figures");
    if (arena == NULL) return ag_fail(run->err, AG_E_MEMORY, "plot: no memory");
    AG_TRY(plot_schema_of(&schema, path, arena, run->err));
    set = &plot_sets[schema];
    AG_TRY(choose_figures(&figures, schema, o, path, run->err));
    AG_TRY(name_outputs(&out, set, figures, o, arena, run->err));
    AG_TRY(check_folder(&out, run->common.force, arena, run->err));
    if (schema == PLOT_TAYLOR) {
        AG_TRY(taylor_results_read(&taylor, path, run->err));
        choice.taylor = taylor;
        AG_TRY(plot_taylor_choose(&choice, run->err));
    } else {
        AG_TRY(plot_results_open(&results, path, arena, run->err));
        choice.results = &results;
        AG_TRY(choose_panels(&choice, basis_names[o->basis < 0 ? 0 : o->basis], run->err));
    }
    AG_TRY(plot_gnuplot_check(o->formats, &warning, arena, run->err));
    if (warning != NULL) ag_say(run->log, AG_WARN, "%s", warning);
    AG_TRY(make_folders(&out, arena, run->err));
    for (int f = 0; f < set->n; f++) {
        if ((figures >> f & 1) == 0) continue;
        ag_say(run->log, AG_INFO, "%s: %s", set->figures[f].name, set->figures[f].about);
        AG_TRY(draw(&set->figures[f], &out, &choice, o->formats, run, arena));
    }
    AG_TRY(put_in_place(&out, run, arena));
fail:
    clean_up(&out, status != AG_OK, arena);
    taylor_results_free(taylor);
    ag_arena_free(arena);
    return status;
}

const struct ag_command command_plot = {
    .name = "plot",
    .summary = "draw the figures of a results file",
    .usage = "RESULTS",
    .description =
        "Draws what a results file holds, into the folder -o DIR.\n\n"
        "Of `attgeo geometry` (or `attgeo probe --reduce geometry`): delta-mu, the heatmap of Delta-mu by layer and KV "
        "head with its haystack control; separation, the mean alignment of each role by layer with 95 % bands; "
        "spectra, "
        "explained variance by layer and the scree of every head; rank, three effective ranks by layer.\n\n"
        "Of `attgeo taylor` (or `attgeo probe --reduce taylor`): taylor-density, all causal queries by sqrt(v) and "
        "|R|/c, layer by layer; taylor-heatmap, "
        "the "
        "median R/c of every head and the share of its sampled queries inside the trust radius; taylor-ladder, the "
        "enclosures of R of one head's sampled queries around the exact R; taylor-radius, R/c along a few queries with "
        "its enclosure; taylor-direction, whether Sigma q points where softmax goes, by layer; taylor-orders, the "
        "error "
        "of the expansion of order 0 to 4.\n\n"
        "Beside the pictures of a figure lie its data (NAME.tsv, with title, provenance and notes in the header) and "
        "its "
        "script (NAME.gp): `gnuplot -c NAME.gp` in that folder draws NAME.png again, `gnuplot -c NAME.gp NAME.tsv "
        "NAME.pdf` another "
        "format; neither needs attgeo or the model. Missing, infinite and clipped values are counted on the figure.\n\n"
        "The paths of the files made are printed. Needs gnuplot 5.4.",
    .examples = "attgeo plot geometry.h5 -o figures\n"
                "attgeo plot geometry.h5 -o figures --figure delta-mu --pooling token --format pdf --force\n"
                "attgeo plot taylor.h5 -o figures --figure taylor-ladder,taylor-radius --layer 12 --head 3",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .options_size = sizeof(struct plot_options),
    .defaults = &defaults,
    .min_arguments = 1,
    .max_arguments = 1,
    .ignores = AG_IGNORES_BACKEND | AG_IGNORES_THREADS | AG_IGNORES_SEED,
    .run = run_plot,
};
