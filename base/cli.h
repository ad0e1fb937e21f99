/* base/cli.h: commands as tables. A command is a struct; --help, the man page and the parser are all made from it. */
#ifndef AG_BASE_CLI_H
#define AG_BASE_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/log.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ag_option_type {
    AG_OPT_FLAG,   /* bool: set to true */
    AG_OPT_TEXT,   /* const char *, not empty */
    AG_OPT_INPUT,  /* the same, a path that the command reads */
    AG_OPT_OUTPUT, /* the same, a path that it writes: may name no input and no other output */
    AG_OPT_INT,    /* int64_t within [min, max] */
    AG_OPT_REAL,   /* double, finite, within [min, max] */
    AG_OPT_CHOICE, /* int: index of the value in choices, a NULL-terminated list */
    AG_OPT_SET,    /* uint64_t: bit mask over choices, given as a comma-separated list */
};

struct ag_option {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    enum ag_option_type type;
    size_t offset;        /* of the field in the command's options struct */
    const char *argument; /* placeholder in the help, NULL for flags */
    const char *help;     /* one or two sentences; the default is stated here */
    const char *const *choices;
    double min, max;
};

/* Options every command has; the command's table adds its own. */
enum ag_backend { AG_BACKEND_AUTO, AG_BACKEND_REF, AG_BACKEND_CPU, AG_BACKEND_CUDA };
struct ag_common {
    const char *output; /* -o, --output; NULL: not given */
    int backend;        /* enum ag_backend */
    int64_t threads;    /* 0: all the process may use */
    int64_t seed;
    bool quiet, verbose, force;
};

/* Which of them a command accepts, as every command does, but has no use for: --help and the manual say so. */
enum { AG_IGNORES_BACKEND = 1, AG_IGNORES_THREADS = 2, AG_IGNORES_SEED = 4 };

struct ag_run {
    struct ag_common common;
    void *options; /* the command's options struct, defaults filled in, then parsed */
    int n_arguments;
    char **arguments;         /* the positional ones */
    const char *command_line; /* as typed, for provenance */
    struct ag_log *log;
    FILE *out; /* data */
    struct ag_error *err;
};

struct ag_command {
    const char *name;
    const char *summary;     /* one line */
    const char *usage;       /* positional arguments, e.g. "MODEL PROMPTS" */
    const char *description; /* paragraphs, separated by blank lines */
    const char *examples;    /* one command line per line */
    const struct ag_option *options;
    int n_options;
    size_t options_size;
    const void *defaults;             /* an options struct */
    int min_arguments, max_arguments; /* max -1: any number */
    unsigned ignores; /* AG_IGNORES_* */
    enum ag_status (*run)(struct ag_run *run);
};

/* Parses argv, runs the command and returns the exit code: 0 ok, 1 failed, 2 usage. Messages go to err_stream. */
int ag_cli_main(int argc, char **argv, const struct ag_command *const *commands, int n_commands, FILE *out,
                FILE *err_stream);

/* The manual page (troff) of all commands, made from the same tables as --help. */
void ag_cli_manual(const struct ag_command *const *commands, int n_commands, FILE *out);

/* "0-3,7" over n items: sets mask[i]; an index out of range, a reversed range or rubbish is AG_E_USAGE naming option. */
enum ag_status ag_parse_ranges(bool *mask, int64_t n, const char *text, const char *option, struct ag_error *err);

extern const char ag_version[]; /* "0.1.0 (git abc1234)" */

#ifdef __cplusplus
}
#endif
#endif
