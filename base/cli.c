/* base/cli.c: the parser, --help and the manual page, all made from the command tables. */
#include "base/cli.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"

#ifndef AG_GIT
#define AG_GIT "unknown"
#endif
const char ag_version[] = "0.1.0 (git " AG_GIT ")";

static const char *const backends[] = {"auto", "ref", "cpu", "cuda", NULL};

#define COMMON(field) offsetof(struct ag_common, field)
static const struct ag_option common_options[] = {
    {"output", 'o', AG_OPT_OUTPUT, COMMON(output), "PATH", "Where the result goes.", NULL, 0, 0},
    {"backend", 0, AG_OPT_CHOICE, COMMON(backend), "NAME",
     "Which kernels compute. Exact: what the backend lacks is an error. Default auto, the best there is.", backends, 0,
     0},
    {"threads", 0, AG_OPT_INT, COMMON(threads), "N",
     "Threads to use. Results do not depend on it. Default: all that the process may use.", NULL, 1, 4096},
    {"seed", 0, AG_OPT_INT, COMMON(seed), "N", "Seed of everything random; stored with the results. Default 0.", NULL,
     0, 9007199254740992.0},
    {"quiet", 'q', AG_OPT_FLAG, COMMON(quiet), NULL, "Only warnings and errors on stderr.", NULL, 0, 0},
    {"verbose", 'v', AG_OPT_FLAG, COMMON(verbose), NULL, "More on stderr: the plan, the BLAS core, timings.", NULL, 0,
     0},
    {"force", 0, AG_OPT_FLAG, COMMON(force), NULL, "Replace an output that exists.", NULL, 0, 0},
};
#define N_COMMON (int)(sizeof common_options / sizeof common_options[0])
static const struct ag_common common_defaults = {NULL, AG_BACKEND_AUTO, 0, 0, false, false, false};

/* ---- help ------------------------------------------------------------------------------------------------------ */

/* Words of text (n bytes) from column `column` on, wrapped at 100 with continuation lines indented. */
static void wrap(FILE *out, const char *text, size_t n, int column, int indent) {
    const int width = 100;
    bool first = true;
    for (size_t i = 0; i < n;) {
        while (i < n && (text[i] == ' ' || text[i] == '\n')) i++;
        size_t end = i;
        while (end < n && text[end] != ' ' && text[end] != '\n') end++;
        if (end == i) break;
        int length = 0; /* columns: UTF-8 continuation bytes take none */
        for (size_t j = i; j < end; j++) length += (text[j] & 0xC0) != 0x80;
        if (!first && column + 1 + length > width) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            fputc(' ', out);
            column++;
        }
        fwrite(text + i, 1, end - i, out);
        column += length;
        first = false;
        i = end;
    }
    fputc('\n', out);
}

static void print_choices(FILE *out, const struct ag_option *o) {
    for (int i = 0; o->choices[i] != NULL; i++) fprintf(out, "%s%s", i ? ", " : "", o->choices[i]);
}

static void help_option(FILE *out, const struct ag_option *o) {
    struct ag_buf head = {0};
    bool listed = o->type == AG_OPT_CHOICE || o->type == AG_OPT_SET;
    if (o->letter)
        ag_buf_printf(&head, NULL, "  -%c, --%s", o->letter, o->name);
    else
        ag_buf_printf(&head, NULL, "      --%s", o->name);
    if (o->argument != NULL) ag_buf_printf(&head, NULL, " %s", o->argument);
    fprintf(out, "%-28s", head.data == NULL ? "" : head.data);
    if (head.size > 27) fprintf(out, "\n%28s", "");
    ag_buf_free(&head);
    struct ag_buf text = {0};
    ag_buf_printf(&text, NULL, "%s", o->help);
    if (listed) {
        ag_buf_printf(&text, NULL, " %s is %s", o->argument, o->type == AG_OPT_SET ? "a list of" : "one of");
        for (int i = 0; o->choices[i] != NULL; i++) ag_buf_printf(&text, NULL, "%s %s", i ? "," : "", o->choices[i]);
        ag_buf_printf(&text, NULL, ".");
    }
    if (text.data != NULL) wrap(out, text.data, text.size, 28, 28);
    ag_buf_free(&text);
}

/* The paragraphs of a description, wrapped. */
static void paragraphs(FILE *out, const char *text) {
    while (*text != '\0') {
        const char *end = strstr(text, "\n\n");
        size_t n = end == NULL ? strlen(text) : (size_t)(end - text);
        wrap(out, text, n, 0, 0);
        text += n;
        while (*text == '\n') text++;
        if (*text != '\0') fputc('\n', out);
    }
}

static void lines(FILE *out, const char *text, const char *before, const char *after) {
    while (text != NULL && *text != '\0') {
        size_t n = strcspn(text, "\n");
        fprintf(out, "%s%.*s%s\n", before, (int)n, text, after);
        text += n + (text[n] == '\n');
    }
}

static bool ignored(const struct ag_command *c, const struct ag_option *o) {
    return (o->offset == COMMON(backend) && (c->ignores & AG_IGNORES_BACKEND)) ||
           (o->offset == COMMON(threads) && (c->ignores & AG_IGNORES_THREADS)) ||
           (o->offset == COMMON(seed) && (c->ignores & AG_IGNORES_SEED));
}

static void help_command(FILE *out, const struct ag_command *c) {
    fprintf(out, "usage: attgeo %s %s%s[options]\n\n", c->name, c->usage, *c->usage ? " " : "");
    paragraphs(out, c->description);
    if (c->examples != NULL) {
        fprintf(out, "\nexample:\n");
        lines(out, c->examples, "  ", "");
    }
    if (c->n_options > 0) fprintf(out, "\noptions:\n");
    for (int i = 0; i < c->n_options; i++) help_option(out, &c->options[i]);
    fprintf(out, "\noptions of every command:\n");
    for (int i = 0; i < N_COMMON; i++) {
        struct ag_option o = common_options[i];
        if (ignored(c, &o)) {
            o.type = AG_OPT_TEXT; /* its values do not matter either */
            o.help = "Accepted, as everywhere; this command has no use for it.";
        }
        help_option(out, &o);
    }
    fprintf(out, "  -h, --help                This text.\n      --version             The program's version.\n");
}

static void help_all(FILE *out, const struct ag_command *const *commands, int n) {
    fprintf(out, "usage: attgeo COMMAND [arguments] [options]\n\n"
                 "attention geometry of trained language models: where the keys are dense, whether a needle lies off\n"
                 "those directions, and what follows from it.\n\ncommands:\n");
    for (int i = 0; i < n; i++) fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "\nattgeo COMMAND --help tells more; man ./attgeo.1 holds it all.\n"
                 "Exit status: 0 done, 1 failed, 2 wrong usage.\n");
}

/* troff: a leading dot or quote and every backslash and hyphen of an option must not be taken for markup. */
static void troff(FILE *out, const char *text, size_t n) {
    bool start = true;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (start && (c == '.' || c == '\'')) fputs("\\&", out);
        if (c == '\\')
            fputs("\\e", out);
        else if (c == '-')
            fputs("\\-", out);
        else
            fputc(c, out);
        start = c == '\n';
    }
}

static void troff_option(FILE *out, const struct ag_option *o) {
    fprintf(out, ".TP\n.B ");
    if (o->letter) fprintf(out, "\\-%c, ", o->letter);
    fprintf(out, "\\-\\-");
    troff(out, o->name, strlen(o->name));
    if (o->argument != NULL) fprintf(out, " \\fI%s\\fR", o->argument);
    fputc('\n', out);
    troff(out, o->help, strlen(o->help));
    if (o->type == AG_OPT_CHOICE || o->type == AG_OPT_SET) {
        fprintf(out, " Values: ");
        print_choices(out, o);
        fputc('.', out);
    }
    fputc('\n', out);
}

void ag_cli_manual(const struct ag_command *const *commands, int n, FILE *out) {
    fprintf(out, ".\\\" made by attgeo --manual from the command tables; do not edit\n"
                 ".TH ATTGEO 1 \"\" \"attgeo\" \"attention geometry\"\n.SH NAME\nattgeo \\- attention geometry of "
                 "trained language models\n"
                 ".SH SYNOPSIS\n");
    for (int i = 0; i < n; i++) {
        fprintf(out, ".B attgeo %s\n", commands[i]->name);
        if (*commands[i]->usage) troff(out, commands[i]->usage, strlen(commands[i]->usage)), fputc('\n', out);
        fprintf(out, "[options]\n.br\n");
    }
    fprintf(out, ".SH COMMANDS\n");
    for (int i = 0; i < n; i++) {
        const struct ag_command *c = commands[i];
        fprintf(out, ".SS attgeo %s ", c->name);
        troff(out, c->usage, strlen(c->usage));
        fputc('\n', out);
        for (const char *text = c->description; *text != '\0';) {
            const char *end = strstr(text, "\n\n");
            size_t length = end == NULL ? strlen(text) : (size_t)(end - text);
            fprintf(out, ".PP\n");
            troff(out, text, length);
            fputc('\n', out);
            text += length;
            while (*text == '\n') text++;
        }
        for (int j = 0; j < c->n_options; j++) troff_option(out, &c->options[j]);
        for (int j = 0, first = 1; c->ignores != 0 && j < N_COMMON; j++)
            if (ignored(c, &common_options[j])) {
                fprintf(out, "%s\\-\\-%s", first ? ".PP\nAccepted without effect: " : ", ", common_options[j].name);
                first = 0;
            }
        if (c->ignores != 0) fprintf(out, ".\n");
        if (c->examples != NULL) {
            fprintf(out, ".PP\nExample:\n.PP\n.nf\n");
            troff(out, c->examples, strlen(c->examples));
            fprintf(out, "\n.fi\n");
        }
    }
    fprintf(out, ".SH OPTIONS OF EVERY COMMAND\n");
    for (int j = 0; j < N_COMMON; j++) troff_option(out, &common_options[j]);
    fprintf(out,
            ".TP\n.B \\-h, \\-\\-help\nShow what a command does and its options.\n.TP\n.B \\-\\-version\nShow the "
            "version.\n"
            ".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage. Errors go to stderr in one line; stdout is data.\n");
}

/* ---- parsing --------------------------------------------------------------------------------------------------- */

static int find_choice(const struct ag_option *o, const char *text, size_t n) {
    for (int i = 0; o->choices[i] != NULL; i++)
        if (strlen(o->choices[i]) == n && memcmp(o->choices[i], text, n) == 0) return i;
    return -1;
}

static enum ag_status refuse_choice(const struct ag_option *o, const char *text, size_t n, struct ag_error *err) {
    struct ag_buf all = {0};
    for (int i = 0; o->choices[i] != NULL; i++) ag_buf_printf(&all, NULL, "%s%s", i ? ", " : "", o->choices[i]);
    ag_fail(err, AG_E_USAGE, "--%s: '%.*s' is not known; expected %s %s", o->name, (int)n, text,
            o->type == AG_OPT_SET ? "a comma-separated list of" : "one of", all.data == NULL ? "" : all.data);
    ag_buf_free(&all);
    return AG_E_USAGE;
}

static enum ag_status set_option(const struct ag_option *o, char *base, const char *text, struct ag_error *err) {
    void *field = base + o->offset;
    char *end;
    switch (o->type) {
    case AG_OPT_FLAG:
        *(bool *)field = true;
        return AG_OK;
    case AG_OPT_TEXT:
    case AG_OPT_INPUT:
    case AG_OPT_OUTPUT:
        if (*text == '\0') return ag_fail(err, AG_E_USAGE, "--%s: is empty; expected %s", o->name, o->argument);
        *(const char **)field = text;
        return AG_OK;
    case AG_OPT_INT: {
        errno = 0;
        long long value = strtoll(text, &end, 10);
        if (end == text || *end != '\0' || errno != 0 || (double)value < o->min || (double)value > o->max)
            return ag_fail(err, AG_E_USAGE, "--%s: '%s' is not usable; expected a whole number from %.0f to %.0f",
                           o->name, text, o->min, o->max);
        *(int64_t *)field = value;
        return AG_OK;
    }
    case AG_OPT_REAL: {
        double value = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(value) || value < o->min || value > o->max)
            return ag_fail(err, AG_E_USAGE, "--%s: '%s' is not usable; expected a number from %g to %g", o->name, text,
                           o->min, o->max);
        *(double *)field = value;
        return AG_OK;
    }
    case AG_OPT_CHOICE: {
        int i = find_choice(o, text, strlen(text));
        if (i < 0) return refuse_choice(o, text, strlen(text), err);
        *(int *)field = i;
        return AG_OK;
    }
    case AG_OPT_SET: {
        uint64_t mask = 0;
        for (const char *item = text;; item++) {
            size_t n = strcspn(item, ",");
            int i = find_choice(o, item, n);
            if (i < 0) return refuse_choice(o, item, n, err);
            mask |= (uint64_t)1 << i;
            item += n;
            if (*item == '\0') break;
        }
        *(uint64_t *)field = mask;
        return AG_OK;
    }
    }
    return ag_fail(err, AG_E_INTERNAL, "--%s: has no type", o->name);
}

enum ag_status ag_parse_ranges(bool *mask, int64_t n, const char *text, const char *option, struct ag_error *err) {
    memset(mask, 0, (size_t)n * sizeof *mask);
    for (const char *c = text;; c++) {
        char *end;
        const char *start = c;
        errno = 0;
        if (*c < '0' || *c > '9') goto rubbish;
        long long from = strtoll(c, &end, 10), to = from;
        if (*end == '-') {
            c = end + 1;
            if (*c < '0' || *c > '9') goto rubbish;
            to = strtoll(c, &end, 10);
        }
        if (errno != 0 || (*end != '\0' && *end != ',')) goto rubbish;
        if (from > to || to >= n) {
            return ag_fail(err, AG_E_USAGE, "--%s: %.*s is out of range; expected rising numbers from 0 to %lld",
                           option, (int)(end - start), start, (long long)n - 1);
        }
        for (long long i = from; i <= to; i++) mask[i] = true;
        c = end;
        if (*c == '\0') return AG_OK;
    }
rubbish:
    return ag_fail(err, AG_E_USAGE, "--%s: '%s' is not usable; expected numbers and ranges such as 0-3,7", option,
                   text);
}

/* What getopt_long refused: it says only '?' or ':', so look which of the four reasons it was. */
static enum ag_status refuse_option(const struct ag_command *c, const struct option *longs, int n, int got,
                                    const char *word, struct ag_error *err) {
    if (optopt > 0 && optopt < 256 && got == '?')
        return ag_fail(err, AG_E_USAGE, "-%c: is no option of this command; see attgeo %s --help", optopt, c->name);
    if (got == ':') return ag_fail(err, AG_E_USAGE, "%s: needs a value; see attgeo %s --help", word, c->name);
    const char *name = word + strspn(word, "-");
    const size_t length = strcspn(name, "=");
    const char *first = NULL, *second = NULL;
    for (int i = 0; i < n && length > 0; i++) {
        if (strncmp(longs[i].name, name, length) != 0) continue;
        if (longs[i].name[length] == '\0') {
            first = longs[i].name;
            second = NULL;
            break;
        }
        *(first ? &second : &first) = longs[i].name;
    }
    if (second)
        return ag_fail(err, AG_E_USAGE, "%s: is ambiguous: --%s or --%s; see attgeo %s --help", word, first, second,
                       c->name);
    if (first) return ag_fail(err, AG_E_USAGE, "%s: --%s takes no value; see attgeo %s --help", word, first, c->name);
    return ag_fail(err, AG_E_USAGE, "%s: is no option of this command; see attgeo %s --help", word, c->name);
}

/* A path that an option names, and whether the command writes there. */
struct named_path {
    const char *path, *option;
    bool output;
};

static bool same_path(const char *a, const char *b) {
    struct stat x, y;
    if (strcmp(a, b) == 0) return true;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Whether file exists, lies in folder and has the name of a checkpoint's part. */
static bool part_of_checkpoint(const char *file, const char *folder) {
    static const char *const ends[] = {".safetensors", ".json", ".gguf"};
    struct stat x, y;
    const char *slash = strrchr(file, '/');
    if (stat(folder, &x) != 0 || !S_ISDIR(x.st_mode) || ag_path_kind(file) != AG_KIND_FILE) return false;
    char parent[4096] = ".";
    if (slash) snprintf(parent, sizeof parent, "%.*s", slash == file ? 1 : (int)(slash - file), file);
    if (stat(parent, &y) != 0 || x.st_dev != y.st_dev || x.st_ino != y.st_ino) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(file), m = strlen(ends[i]);
        if (n > m && strcmp(file + n - m, ends[i]) == 0) return true;
    }
    return false;
}

static const char *dashes(const struct named_path *named) { return named->option[1] ? "--" : "-"; }

/* An output against one input. */
static enum ag_status check_output(const struct named_path *output, const char *input, struct ag_error *err) {
    if (same_path(output->path, input))
        return ag_fail(err, AG_E_USAGE, "%s%s %s: is the input %s itself; name another file for the output",
                       dashes(output), output->option, output->path, input);
    if (part_of_checkpoint(output->path, input))
        return ag_fail(err, AG_E_USAGE, "%s%s %s: is a file of the input %s; name another file for the output",
                       dashes(output), output->option, output->path, input);
    return AG_OK;
}

/* --force replaces earlier results, never what this very command reads or writes elsewhere: no output may name an input,
 * a file of a checkpoint's folder, or another output. */
static enum ag_status check_outputs(const struct ag_command *c, const struct ag_run *run) {
    struct named_path named[64 + 1];
    enum ag_status status = AG_OK;
    int n = 0;
    if (run->common.output) named[n++] = (struct named_path){run->common.output, "o", true};
    for (int i = 0; i < c->n_options && n < 65; i++) {
        const struct ag_option *o = &c->options[i];
        if (o->type != AG_OPT_INPUT && o->type != AG_OPT_OUTPUT) continue;
        const char *path = *(const char *const *)((const char *)run->options + o->offset);
        if (path) named[n++] = (struct named_path){path, o->name, o->type == AG_OPT_OUTPUT};
    }
    for (int i = 0; i < n; i++) {
        if (!named[i].output) continue;
        for (int j = 0; j < n; j++) {
            if (!named[j].output) AG_TRY(check_output(&named[i], named[j].path, run->err));
            if (j > i && named[j].output && same_path(named[i].path, named[j].path))
                return ag_fail(run->err, AG_E_USAGE, "%s%s and %s%s name the same file %s; give each its own",
                               dashes(&named[i]), named[i].option, dashes(&named[j]), named[j].option, named[i].path);
        }
        for (int j = 0; j < run->n_arguments; j++) AG_TRY(check_output(&named[i], run->arguments[j], run->err));
    }
fail:
    return status;
}

/* Everything of one command line; getopt's own messages are off, ours say what was expected. */
static enum ag_status parse(const struct ag_command *c, struct ag_run *run, int argc, char **argv, bool *done) {
    struct option longs[64 + N_COMMON + 3];
    const struct ag_option *table[64 + N_COMMON];
    char letters[2 * (64 + N_COMMON) + 4], *l = letters;
    int n = 0;
    *l++ = ':';
    for (int i = 0; i < c->n_options + N_COMMON; i++) {
        const struct ag_option *o = i < c->n_options ? &c->options[i] : &common_options[i - c->n_options];
        int argument = o->type == AG_OPT_FLAG ? no_argument : required_argument;
        table[n] = o;
        longs[n] = (struct option){o->name, argument, NULL, 256 + n};
        if (o->letter) {
            *l++ = o->letter;
            if (argument == required_argument) *l++ = ':';
        }
        n++;
    }
    longs[n] = (struct option){"help", no_argument, NULL, 'h'};
    longs[n + 1] = (struct option){"version", no_argument, NULL, 'V'};
    longs[n + 2] = (struct option){NULL, 0, NULL, 0};
    *l++ = 'h';
    *l = '\0';
    opterr = 0;
    optind = 0; /* glibc: forget all of an earlier parse */
    for (int got; (got = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
        if (got == 'h') {
            help_command(run->out, c);
            *done = true;
            return AG_OK;
        }
        if (got == 'V') {
            fprintf(run->out, "attgeo %s\n", ag_version);
            *done = true;
            return AG_OK;
        }
        if (got == '?' || got == ':') return refuse_option(c, longs, n + 2, got, argv[optind - 1], run->err);
        int index = got - 256;
        for (int i = 0; got < 256 && i < n; i++)
            if (table[i]->letter == got) index = i;
        char *base = index < c->n_options ? run->options : (char *)&run->common;
        enum ag_status status = set_option(table[index], base, optarg, run->err);
        if (status != AG_OK) return status;
    }
    run->n_arguments = argc - optind;
    run->arguments = argv + optind;
    if (run->n_arguments < c->min_arguments || (c->max_arguments >= 0 && run->n_arguments > c->max_arguments))
        return ag_fail(run->err, AG_E_USAGE, "attgeo %s: %d argument%s given; expected %s; see attgeo %s --help",
                       c->name, run->n_arguments, run->n_arguments == 1 ? "" : "s", *c->usage ? c->usage : "none",
                       c->name);
    return check_outputs(c, run);
}

int ag_cli_main(int argc, char **argv, const struct ag_command *const *commands, int n_commands, FILE *out,
                FILE *err_stream) {
    signal(SIGXFSZ, SIG_IGN); /* a file that reaches a limit (ulimit -f, quota) is an error of write(), not a kill */
    struct ag_error err = AG_ERROR_INIT;
    const struct ag_command *command = NULL;
    const char *name = argc > 1 ? argv[1] : "--help";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help_all(argc > 1 ? out : err_stream, commands, n_commands);
        return argc > 1 ? 0 : 2;
    }
    if (strcmp(name, "--version") == 0) {
        fprintf(out, "attgeo %s\n", ag_version);
        return 0;
    }
    if (strcmp(name, "--manual") == 0) {
        ag_cli_manual(commands, n_commands, out);
        return fflush(out) == 0 ? 0 : 1;
    }
    for (int i = 0; i < n_commands; i++)
        if (strcmp(commands[i]->name, name) == 0) command = commands[i];
    if (command == NULL) {
        fprintf(err_stream, "attgeo: '%s' is no command; see attgeo --help\n", name);
        return 2;
    }
    struct ag_log log = {err_stream, AG_INFO, isatty(fileno(err_stream)) == 1};
    struct ag_arena *arena = ag_arena_new("the command line");
    struct ag_buf line = {0};
    for (int i = 0; i < argc; i++) ag_buf_printf(&line, NULL, "%s%s", i ? " " : "", i ? argv[i] : "attgeo");
    struct ag_run run = {.common = common_defaults, .log = &log, .out = out, .err = &err, .command_line = line.data};
    enum ag_status status = AG_E_MEMORY;
    bool done = false;
    if (arena == NULL || line.data == NULL)
        ag_fail(&err, AG_E_MEMORY, "out of memory");
    else if ((run.options = ag_arena_zeros(arena, 1, command->options_size + 1, &err)) != NULL) {
        if (command->defaults != NULL) memcpy(run.options, command->defaults, command->options_size);
        status = parse(command, &run, argc - 1, argv + 1, &done);
    }
    if (status == AG_OK && !done) {
        log.level = run.common.quiet ? AG_WARN : run.common.verbose ? AG_DETAIL : AG_INFO;
        status = command->run(&run);
    }
    if (status == AG_OK && (fflush(out) != 0 || ferror(out)))
        status = ag_fail(&err, AG_E_IO, "standard output could not be written whole (%s)", strerror(errno));
    for (char *c = err.text; *c != '\0'; c++) /* names from hostile files must not steer the terminal */
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    if (status != AG_OK)
        fprintf(err_stream, "%sattgeo: %s\n", log.terminal ? "\r\033[K" : "",
                err.status == AG_OK ? ag_status_name(status) : err.text);
    ag_buf_free(&line);
    ag_arena_free(arena);
    return status == AG_OK ? 0 : status == AG_E_USAGE ? 2 : 1;
}
