/* data/cmd_prompts.c: attgeo prompts. */
#include <string.h>

#include "base/commands.h"
#include "base/file.h"
#include "data/generate.h"

struct prompts_options {
    const char *tokenizer, *haystack;
    int kind, template_, wording;
    int64_t count, length, distractors, digits;
    double depth;
    bool near_duplicates, repeat;
};
/* The distractors of niah kinds are refused only where they were asked for. */
#define NOT_GIVEN (-1)
static const struct prompts_options defaults = {.count = 16, .length = 512, .distractors = NOT_GIVEN, .depth = -1};

#define FIELD(name) offsetof(struct prompts_options, name)
static const struct ag_option options[] = {
    {"tokenizer", 't', AG_OPT_INPUT, FIELD(tokenizer), "PATH",
     "Tokenizer that lengths are counted with: a model's directory, a tokenizer.json or a .gguf. Required.", NULL, 0,
     0},
    {"kind", 'k', AG_OPT_CHOICE, FIELD(kind), "KIND",
     "needle: counterbalanced pairs. niah1: a number in one repeated sentence; niah2: a number in prose; niah3: a UUID "
     "in "
     "prose. Default needle.",
     generate_kinds, 0, 0},
    {"count", 'n', AG_OPT_INT, FIELD(count), "N", "Pairs (needle: two prompts each) or prompts (niah). Default 16.",
     NULL, 1, GENERATE_MAX_COUNT},
    {"length", 'l', AG_OPT_INT, FIELD(length), "N",
     "Tokens of a prompt's text, what the tokenizer and the template add included, the answer not. Default 512.", NULL,
     1, GENERATE_MAX_LENGTH},
    {"distractors", 0, AG_OPT_INT, FIELD(distractors), "N",
     "Repetitions of the other fact in a needle prompt. Default 4.", NULL, 1, GENERATE_MAX_DISTRACTORS},
    {"near-duplicates", 0, AG_OPT_FLAG, FIELD(near_duplicates), NULL,
     "Each distractor states the other fact in different words, instead of the same sentence again.", NULL, 0, 0},
    {"depth", 0, AG_OPT_REAL, FIELD(depth), "X",
     "Where the needle is: 0 at the start, 1 right before the question. Default: uniformly random.", NULL, 0, 1},
    {"haystack", 0, AG_OPT_INPUT, FIELD(haystack), "FILE",
     "Prose to hide the facts in, UTF-8, at most 8 MiB; its sentences are shuffled. Default: the text in "
     "data/haystack.txt.",
     NULL, 0, 0},
    {"repeat", 0, AG_OPT_FLAG, FIELD(repeat), NULL,
     "Use sentences of the haystack again when it is too short for the length. They are then repeated keys too.", NULL,
     0, 0},
    {"digits", 0, AG_OPT_INT, FIELD(digits), "N", "Digits of a number. Default 4 for needle, 7 for niah1 and niah2.",
     NULL, 1, 18},
    {"wording", 0, AG_OPT_CHOICE, FIELD(wording), "NAME",
     "How the fact is stated and asked for. Default any: drawn for each pair or prompt.", generate_wordings, 0, 0},
    {"template", 0, AG_OPT_CHOICE, FIELD(template_), "NAME",
     "Chat template around context and question; the answer begins in the assistant's turn. Default none.",
     generate_templates, 0, 0},
};

static void say_summary(FILE *stream, const struct prompts_options *o, int64_t seed, const struct generate_summary *s,
                        const char *path) {
    fprintf(stream, "prompts  %lld", (long long)s->prompts);
    if (s->pairs) fprintf(stream, " in %lld twin pair%s", (long long)s->pairs, s->pairs == 1 ? "" : "s");
    fprintf(stream, ", kind %s, seed %lld\n", generate_kinds[o->kind], (long long)seed);
    fprintf(stream, "tokens   min %lld, median %lld, max %lld; asked %lld; the answer is not counted\n",
            (long long)s->tokens_min, (long long)s->tokens_median, (long long)s->tokens_max, (long long)o->length);
    fprintf(stream, "roles   ");
    int64_t total = 0;
    for (int r = 0; r < AG_ROLE_COUNT; r++) total += s->role_tokens[r];
    for (int r = 0; r < AG_ROLE_COUNT; r++)
        if (s->role_tokens[r])
            fprintf(stream, " %s %lld (%.1f %%)", ag_role_names[r], (long long)s->role_tokens[r],
                    100.0 * (double)s->role_tokens[r] / (double)total);
    fprintf(stream, "\ndepth    of the needle: min %.3f, median %.3f, max %.3f\n", s->depth_min, s->depth_median,
            s->depth_max);
    if (s->pairs)
        fprintf(stream,
                "twins    %lld of %lld pairs with equal token counts and positions; largest difference: %lld tokens, "
                "%lld positions\n",
                (long long)s->aligned_pairs, (long long)s->pairs, (long long)s->token_difference,
                (long long)s->position_difference);
    fprintf(stream, "checked  every span and value decoded; every answer once in its text\n");
    if (path) fprintf(stream, "written  %s\n", path);
}

static enum ag_status run_prompts(struct ag_run *run) {
    const struct prompts_options *o = run->options;
    struct ag_error *err = run->err;
    enum ag_status status = AG_OK;
    struct generate_options g = generate_defaults;
    bool needle = o->kind == GENERATE_NEEDLE;
    if (!o->tokenizer)
        return ag_fail(err, AG_E_USAGE,
                       "--tokenizer is missing: lengths are counted in the tokens of a model; give its directory, "
                       "tokenizer.json or .gguf");
    if (!needle && (o->distractors != NOT_GIVEN || o->near_duplicates))
        return ag_fail(err, AG_E_USAGE,
                       "--kind %s has a needle alone; --distractors and --near-duplicates belong to --kind needle",
                       generate_kinds[o->kind]);
    if (o->kind == GENERATE_NIAH1 && (o->haystack || o->repeat))
        return ag_fail(
            err, AG_E_USAGE,
            "--kind niah1 repeats one sentence of its own; --haystack and --repeat belong to the other kinds");
    if (o->kind == GENERATE_NIAH3 && o->digits)
        return ag_fail(err, AG_E_USAGE, "--kind niah3 asks for UUIDs; --digits belongs to the other kinds");
    g.kind = (enum generate_kind)o->kind;
    g.count = o->count;
    g.length = o->length;
    if (o->distractors != NOT_GIVEN) g.distractors = o->distractors;
    g.near_duplicates = o->near_duplicates;
    g.repeat = o->repeat;
    g.depth = o->depth;
    g.digits = o->digits;
    g.template_ = (enum generate_template)o->template_;
    g.wording = o->wording;
    g.seed = run->common.seed;

    struct tokenizer *tokenizer = NULL;
    struct generator *generator = NULL;
    struct haystack haystack;
    struct ag_out out;
    bool writing = false;
    struct ag_arena *arena = ag_arena_new("prompts");
    if (!arena) return ag_fail(err, AG_E_MEMORY, "out of memory");
    AG_TRY(haystack_open(&haystack, o->haystack, arena, err));
    if (haystack.repeated)
        ag_say(run->log, AG_INFO, "%s: %lld repeated sentences were left out, %lld different ones remain",
               haystack.path, (long long)haystack.repeated, (long long)haystack.n);
    AG_TRY(tokenizer_open_path(&tokenizer, o->tokenizer, err));
    status = generator_open(&generator, &g, tokenizer, &haystack, err);
    if (status == AG_E_UNSUPPORTED) ag_fail_context(err, "%s", o->tokenizer);
    AG_TRY(status);
    if (run->common.output) {
        AG_TRY(ag_out_begin(&out, run->common.output, run->common.force, err));
        writing = true;
    }
    FILE *stream = writing ? out.stream : run->out;
    struct ag_progress progress = ag_progress_begin(run->log, "prompts", g.count, needle ? "pairs" : "prompts");
    for (;;) {
        struct prompt prompts[2];
        int64_t n;
        AG_TRY(generator_next(generator, prompts, &n, err));
        if (!n) break;
        for (int64_t i = 0; i < n; i++) {
            status = generate_write(stream, &prompts[i], err);
            if (status == AG_E_IO) ag_fail_context(err, "%s", writing ? run->common.output : "standard output");
            AG_TRY(status);
        }
        ag_progress_add(&progress, 1);
    }
    ag_progress_end(&progress);
    struct generate_summary summary;
    AG_TRY(generator_summary(generator, &summary, err));
    if (writing) AG_TRY(ag_out_commit(&out, err));
    writing = false;
    if (summary.repeats)
        ag_say(run->log, AG_WARN, "the haystack was too short: sentences occur more than once in %lld %s",
               (long long)summary.repeats, needle ? "pairs" : "prompts");
    if (summary.tokens_max < g.length || summary.tokens_min < summary.tokens_max)
        ag_say(run->log, AG_INFO, "not every prompt has exactly %lld tokens: no choice of whole sentences filled it",
               (long long)g.length);
    if (run->common.output)
        say_summary(run->out, o, g.seed, &summary, run->common.output);
    else if (!run->common.quiet)
        say_summary(run->log->stream, o, g.seed, &summary, NULL);
fail:
    if (writing) ag_out_discard(&out);
    generator_close(generator);
    tokenizer_close(tokenizer);
    ag_arena_free(arena);
    return status;
}

const struct ag_command command_prompts = {
    .name = "prompts",
    .summary = "make needle-in-a-haystack prompts with exact spans",
    .usage = "",
    .description = "Writes prompts as JSON lines, one prompt a line: id, text, spans (byte ranges with roles), answer "
                   "and, for needle "
                   "pairs, twin. With -o the file is written whole or not at all and a summary goes to stdout; "
                   "without, the lines go to "
                   "stdout and the summary to stderr.\n\n"
                   "Kind needle: a pair is two prompts over the same sentences. One fact is stated once, another "
                   "several times; the twin "
                   "exchanges them and asks for the other. Keys and values are drawn so that twins have equal token "
                   "counts and every fact "
                   "the same token positions; where that cannot be had the difference is reported.\n\n"
                   "The same seed, options, haystack and tokenizer give the same bytes; a larger --count continues a "
                   "smaller one. Sizes "
                   "that cannot be met are refused with what would fit.\n\n"
                   "The sample checkpoint in data/sample knows only the words of its own data/sample/prompts.jsonl: "
                   "use those prompts "
                   "with it.",
    .examples = "attgeo prompts --tokenizer SmolLM2-135M-Instruct.gguf -o prompts.jsonl\n"
                "attgeo prompts -t MODEL --length 2048 --distractors 8 --near-duplicates --seed 7 -o near.jsonl\n"
                "attgeo prompts -t MODEL --kind niah3 --count 100 --depth 0.5 --template chatml > uuid.jsonl",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .options_size = sizeof(struct prompts_options),
    .defaults = &defaults,
    .min_arguments = 0,
    .max_arguments = 0,
    .ignores = AG_IGNORES_BACKEND | AG_IGNORES_THREADS,
    .run = run_prompts,
};
