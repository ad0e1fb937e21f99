/* probe/cmd_probe.c: attgeo probe: prompts through a model, keys and queries into a dump or straight into reducers. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/commands.h"
#include "base/h5.h"
#include "geometry/reducer.h"
#include "geometry/report.h"
#include "probe/select.h"
#include "probe/tee.h"
#include "taylor/reducer.h"
#include "taylor/report.h"

enum { WHAT_KEYS = 1, WHAT_QUERIES = 2, WHAT_VALUES = 4 };
enum { REDUCE_GEOMETRY, REDUCE_TAYLOR };
#define TAP_LAST AG_TAP_COUNT
static const char *const tap_choices[] = {"proj", "conv", "norm", "rope", "last", NULL};
static const char *const what_choices[] = {"keys", "queries", "values", NULL};
static const char *const reducer_names[] = {"geometry", "taylor", NULL};

struct probe_options {
    uint64_t taps, what, reduce, bases;
    const char *dump, *layers, *heads, *positions, *shard, *memory;
    int tap, store;
    bool compress, resume, no_special, no_score, dry_run, bare;
    int64_t r, skip, draws, queries; /* queries -1: not given */
};
static const struct probe_options defaults = {
    .taps = 1 << TAP_LAST, .what = WHAT_KEYS | WHAT_QUERIES, .tap = TAP_LAST, .r = 16, .draws = 10000, .queries = -1};

#define FIELD(name) offsetof(struct probe_options, name)
static const struct ag_option options[] = {
    {"taps", 0, AG_OPT_SET, FIELD(taps), "LIST",
     "Where keys and queries of the dump are taken; several make several datasets. last: what attention reads. Default "
     "last.",
     tap_choices, 0, 0},
    {"what", 0, AG_OPT_SET, FIELD(what), "LIST", "What the dump holds. Default keys,queries.", what_choices, 0, 0},
    {"layers", 0, AG_OPT_TEXT, FIELD(layers), "LIST", "Layers from 0, such as 0-3,7. Default: all.", NULL, 0, 0},
    {"heads", 0, AG_OPT_TEXT, FIELD(heads), "LIST",
     "Query heads whose queries (and the values they read) are dumped. Keys are always whole. Default: all.", NULL, 0,
     0},
    {"positions", 0, AG_OPT_TEXT, FIELD(positions), "LIST",
     "Tokens whose queries and values are dumped: role names, value, last (before the answer), retrieve (queries that "
     "predict the answer's value), positions inside a prompt such as 0-63. Keys are always whole. Default: all.",
     NULL, 0, 0},
    {"store", 0, AG_OPT_CHOICE, FIELD(store), "TYPE",
     "Element type. Rounding happens at the tap: reducers see what the file holds. Default f32.", dump_store_names, 0,
     0},
    {"compress", 0, AG_OPT_FLAG, FIELD(compress), NULL,
     "Deflate the dump when it is whole (room for both files is needed until then). Slow; saves about a seventh.", NULL,
     0, 0},
    {"resume", 0, AG_OPT_FLAG, FIELD(resume), NULL,
     "Continue the unfinished dump OUTPUT.part: the pass is computed again, layers that are complete are not written "
     "again. Everything else must be as before. Without OUTPUT.part: start.",
     NULL, 0, 0},
    {"reduce", 0, AG_OPT_SET, FIELD(reduce), "LIST",
     "Compute results during the pass; -o names the results file (with several reducers: OUTPUT.NAME.h5 each). Same "
     "bits as over a dump of the same --store.",
     reducer_names, 0, 0},
    {"dump", 0, AG_OPT_OUTPUT, FIELD(dump), "PATH", "With --reduce: write a dump too.", NULL, 0, 0},
    {"tap", 0, AG_OPT_CHOICE, FIELD(tap), "TAP", "The tap that reducers see. Default last.", tap_choices, 0, 0},
    {"r", 'r', AG_OPT_INT, FIELD(r), "N",
     "geometry, taylor: leading axes of the covariance that keys or directions are compared with. Default 16.", NULL, 1,
     1024},
    {"skip", 0, AG_OPT_INT, FIELD(skip), "N", "geometry: tokens left out at the start of every prompt. Default 0.",
     NULL, 0, 1e9},
    {"draws", 0, AG_OPT_INT, FIELD(draws), "N", "geometry, taylor: bootstrap draws. Default 10000.", NULL, 100, 1e7},
    {"basis", 0, AG_OPT_SET, FIELD(bases), "LIST",
     "geometry: which keys mean and axes come from. prompt and haystack are always computed; with pooled the pass runs "
     "twice. Default prompt,haystack.",
     geom_basis_names, 0, 0},
    {"queries", 0, AG_OPT_INT, FIELD(queries), "N",
     "taylor: positions of each prompt that are looked at in full, drawn from the seed and the prompt's id. Default "
     "64.",
     NULL, 0, 1e9},
    {"no-special", 0, AG_OPT_FLAG, FIELD(no_special), NULL,
     "Encode the text alone: no BOS or EOS, special strings are plain text.", NULL, 0, 0},
    {"no-score", 0, AG_OPT_FLAG, FIELD(no_score), NULL,
     "No logits: the pass ends at the last chosen layer; no accuracy of the answers, no self-check in the dump.", NULL,
     0, 0},
    {"shard", 0, AG_OPT_TEXT, FIELD(shard), "I/N",
     "Only the I-th of N shares of the prompts (from 1), for batch queues. Twin pairs stay together.", NULL, 0, 0},
    {"memory", 0, AG_OPT_TEXT, FIELD(memory), "SIZE",
     "Most memory to plan for, such as 4G; prompts go through in waves that fit. Default: most of what is free.", NULL,
     0, 0},
    {"dry-run", 0, AG_OPT_FLAG, FIELD(dry_run), NULL,
     "Print the plan (memory, waves, bytes to write) and compute nothing.", NULL, 0, 0},
    {"bare", 0, AG_OPT_FLAG, FIELD(bare), NULL,
     "Benchmark: the pass to the logits of every prompt's last token, nothing tapped or written.", NULL, 0, 0},
};

/* Everything of one run, in the order in which it comes to be. */
struct probe {
    struct ag_run *run;
    const struct probe_options *o;
    struct ag_arena *arena;
    const struct kern_ops *ops;
    struct ckpt *ckpt;
    struct model *model;
    struct tokenizer *tokenizer;
    struct prompts *prompts, share;
    struct prompt_tokens *encoded;
    const struct ag_tokens *tokens;
    char checkpoint_sha256[AG_SHA256_HEX];
    struct ag_source source;
    bool *layers, *heads, *positions, *wanted;
    const char *dump_path;
    struct dump_options dump;
    struct geom_options geometry;
    struct taylor_options taylor;
    struct forward_request request;
    struct forward_plan plan;
    int64_t reducer_bytes, rounding_bytes, dump_bytes;
    struct tee tee;
    struct score score;
    double seconds;
};

static bool pooled(const struct probe *p) { return p->o->bases >> GEOM_BASIS_POOLED & 1; }

static const char *size_text(char out[32], double bytes) {
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 999.5 && u < 4) {
        bytes /= 1000;
        u++;
    }
    snprintf(out, 32, u ? "%.3g %s" : "%.0f %s", bytes, units[u]);
    return out;
}

/* ---- before anything is read ------------------------------------------------------------------------------- */

static enum ag_status check_options(struct probe *p) {
    const struct probe_options *o = p->o;
    const char *output = p->run->common.output;
    struct ag_error *err = p->run->err;
    if (o->bare) {
        if (output || o->reduce || o->dump || o->resume || o->positions || o->heads || o->layers)
            return ag_fail(err, AG_E_USAGE,
                           "--bare writes nothing; -o and everything about dumps and reducers do not go with it");
        return AG_OK;
    }
    if (!output && !o->dry_run)
        return ag_fail(err, AG_E_USAGE, "-o is missing; name the %s to write (or give --bare or --dry-run)",
                       o->reduce ? "results file" : "dump");
    if (o->dump && !o->reduce)
        return ag_fail(err, AG_E_USAGE, "--dump goes with --reduce; without it -o names the dump");
    if (!o->reduce && (o->bases || o->tap != defaults.tap || o->r != defaults.r || o->skip != defaults.skip ||
                       o->draws != defaults.draws))
        return ag_fail(err, AG_E_USAGE,
                       "--tap, --r, --skip, --basis and --draws are about reducers; add --reduce geometry "
                       "(the dump's taps are chosen by --taps)");
    p->dump_path = o->reduce ? o->dump : output ? output : "dump.h5";
    if (!p->dump_path) {
        const char *wrong = o->resume      ? "--resume"
                            : o->compress  ? "--compress"
                            : o->positions ? "--positions"
                            : o->heads     ? "--heads"
                                           : NULL;
        if (wrong) return ag_fail(err, AG_E_USAGE, "%s is about a dump, and none is written; add --dump PATH", wrong);
    }
    const bool geometry = o->reduce >> REDUCE_GEOMETRY & 1, taylor = o->reduce >> REDUCE_TAYLOR & 1;
    if ((pooled(p) || o->skip > 0) && !geometry)
        return ag_fail(err, AG_E_USAGE, "%s is about geometry; expected --reduce geometry with it",
                       pooled(p) ? "--basis" : "--skip");
    if (o->queries >= 0 && !taylor)
        return ag_fail(err, AG_E_USAGE, "--queries is about taylor; expected --reduce taylor with it");
    if (!o->taps || !o->what) return ag_fail(err, AG_E_USAGE, "--taps and --what may not be empty");
    if ((o->positions || o->heads) && !(o->what & (WHAT_QUERIES | WHAT_VALUES)))
        return ag_fail(err, AG_E_USAGE, "%s limits queries and values, and --what has neither",
                       o->positions ? "--positions" : "--heads");
    return AG_OK;
}

/* ---- model and prompts ------------------------------------------------------------------------------------- */

static enum ag_status open_all(struct probe *p) {
    enum ag_status status;
    struct ag_error *err = p->run->err;
    const struct probe_options *o = p->o;
    AG_TRY(kern_backend(&p->ops, (enum ag_backend)p->run->common.backend, err));
    AG_TRY(ckpt_open(&p->ckpt, p->run->arguments[0], err));
    AG_TRY(model_open(&p->model, p->ckpt, err));
    AG_TRY(tokenizer_open(&p->tokenizer, p->ckpt, err));
    AG_TRY(prompts_open(&p->prompts, p->run->arguments[1], err));
    const struct prompts *prompts = p->prompts;
    if (o->shard) {
        AG_TRY(select_shard(&p->share, p->prompts, o->shard, p->arena, err));
        prompts = &p->share;
    }
    AG_TRY(prompts_encode(&p->encoded, prompts, p->tokenizer, !o->no_special, err));
    p->tokens = &p->encoded->tokens;
fail:
    return status;
}

static enum ag_status choose(struct probe *p) {
    enum ag_status status = AG_OK;
    struct ag_error *err = p->run->err;
    const struct probe_options *o = p->o;
    int64_t L = p->model->L, most = 0;
    for (int64_t l = 0; l < L; l++) most = p->model->shapes[l].Hq > most ? p->model->shapes[l].Hq : most;
    p->layers = AG_NEW(p->arena, bool, L, err);
    p->wanted = AG_ZEROS(p->arena, bool, p->tokens->T, err);
    if (!p->layers || !p->wanted) return AG_E_MEMORY;
    memset(p->layers, 1, (size_t)L * sizeof(bool));
    if (o->layers) AG_TRY(ag_parse_ranges(p->layers, L, o->layers, "layers", err));
    if (o->heads) {
        p->heads = AG_NEW(p->arena, bool, most, err);
        if (!p->heads) return AG_E_MEMORY;
        AG_TRY(ag_parse_ranges(p->heads, most, o->heads, "heads", err));
    }
    if (o->positions) {
        p->positions = AG_NEW(p->arena, bool, p->tokens->T, err);
        if (!p->positions) return AG_E_MEMORY;
        AG_TRY(select_positions(p->positions, p->tokens, o->positions, err));
    }
fail:
    return status;
}

static void warn(const struct probe *p) {
    const struct ag_log *log = p->run->log;
    int64_t longest = 0, beyond = 0;
    for (int i = 0; i < p->model->n_warnings; i++) ag_say(log, AG_WARN, "%s", p->model->warnings[i]);
    for (int64_t i = 0; i < p->tokens->P; i++) {
        int64_t length = p->tokens->offsets[i + 1] - p->tokens->offsets[i];
        longest = length > longest ? length : longest;
        beyond += p->model->max_position > 0 && length > p->model->max_position;
    }
    if (beyond)
        ag_say(log, AG_WARN,
               "%" PRId64 " prompt%s longer than the %" PRId64
               " positions that the model was made for (the longest has %" PRId64
               " tokens): keys there are an extrapolation",
               beyond, beyond == 1 ? " is" : "s are", p->model->max_position, longest);
    if (p->encoded->double_bos)
        ag_say(log, AG_WARN, "%" PRId64 " prompt%s with BOS text already: no second BOS was added",
               p->encoded->double_bos, p->encoded->double_bos == 1 ? " begins" : "s begin");
}

/* ---- the plan ---------------------------------------------------------------------------------------------- */

static uint32_t tap_mask(uint64_t taps, enum ag_tap last) {
    uint32_t mask = (uint32_t)taps & ((1u << AG_TAP_COUNT) - 1);
    return taps >> TAP_LAST & 1 ? mask | 1u << last : mask;
}

static void make_requests(struct probe *p) {
    const struct probe_options *o = p->o;
    const struct ag_tokens *t = p->tokens;
    p->tee.tap = o->tap == TAP_LAST ? p->model->last_tap : (enum ag_tap)o->tap;
    p->tee.store = (enum dump_store)o->store;
    p->tee.tokens = t;
    p->source = (struct ag_source){.model = p->model->name,
                                   .architecture = p->model->architecture,
                                   .checkpoint_sha256 = p->checkpoint_sha256,
                                   .tokenizer_sha256 = tokenizer_info(p->tokenizer)->sha256,
                                   .prompts_sha256 = p->prompts->sha256,
                                   .backend = p->ops->name,
                                   .dtype = "f32",
                                   .command_line = p->run->command_line,
                                   .seed = p->run->common.seed,
                                   .L = p->model->L,
                                   .layers = p->model->shapes,
                                   .selected = p->layers,
                                   .tap = p->tee.tap,
                                   .last_tap = p->model->last_tap,
                                   .tokens = t};
    p->dump = (struct dump_options){.path = p->dump_path,
                                    .force = p->run->common.force,
                                    .resume = o->resume,
                                    .compress = o->compress,
                                    .store = p->tee.store,
                                    .taps = tap_mask(o->taps, p->model->last_tap),
                                    .keys = o->what & WHAT_KEYS,
                                    .queries = o->what & WHAT_QUERIES,
                                    .values = o->what & WHAT_VALUES,
                                    .selfcheck = !o->no_score,
                                    .layers = p->layers,
                                    .positions = p->positions,
                                    .query_heads = p->heads,
                                    .model = p->model,
                                    .source = &p->source,
                                    .specials = !o->no_special,
                                    .double_bos = p->encoded->double_bos,
                                    .shard = o->shard};
    memcpy(p->dump.missing_value, p->encoded->missing_value, sizeof p->dump.missing_value);
    bool reduces = o->reduce != 0, dumps = p->dump_path != NULL, answers = false;
    if (!o->no_score) score_wanted(p->wanted, t, true);
    for (int64_t i = 0; i < t->P; i++) {
        answers |= t->answer[i] != NULL;
        if (o->bare || dumps) p->wanted[t->offsets[i + 1] - 1] = true;
    }
    p->request = (struct forward_request){.model = p->model,
                                          .tokens = t,
                                          .ops = p->ops,
                                          .taps = (dumps ? p->dump.taps : 0) | (reduces ? 1u << p->tee.tap : 0),
                                          .layers = p->layers,
                                          .keys = reduces || (dumps && p->dump.keys),
                                          .queries = dumps && p->dump.queries,
                                          .values = dumps && p->dump.values,
                                          .logits = o->bare              ? FORWARD_LOGITS_LAST
                                                    : o->no_score        ? FORWARD_LOGITS_NONE
                                                    : !answers && !dumps ? FORWARD_LOGITS_NONE
                                                                         : FORWARD_LOGITS_MASK,
                                          .wanted = p->wanted,
                                          .log = p->run->log};
    for (int r = 0; r < p->tee.n_reducers; r++) {
        p->request.queries |= p->tee.reducers[r]->class_->needs_queries;
        p->request.values |= p->tee.reducers[r]->class_->needs_values;
    }
}

/* Geometry comes first: the second pass of its pooled basis is its alone. */
static enum ag_status make_reducers(struct probe *p) {
    enum ag_status status = AG_OK;
    const struct probe_options *o = p->o;
    const struct ag_run *run = p->run;
    struct tee *tee = &p->tee;
    if (o->reduce >> REDUCE_GEOMETRY & 1) {
        p->geometry = (struct geom_options){o->r, o->skip, run->common.seed, o->draws, pooled(p)};
        AG_TRY(geom_reducer_new(&tee->reducers[tee->n_reducers++], &p->geometry, p->ops, run->log, run->err));
    }
    if (o->reduce >> REDUCE_TAYLOR & 1) {
        p->taylor =
            (struct taylor_options){o->queries >= 0 ? o->queries : 64, o->r, run->common.seed, o->draws, NULL, 3};
        AG_TRY(taylor_reducer_new(&tee->reducers[tee->n_reducers++], &p->taylor, p->ops, run->log, run->err));
    }
fail:
    return status;
}

static enum ag_status make_plan(struct probe *p) {
    enum ag_status status;
    struct ag_error *err = p->run->err;
    int64_t limit = 0, longest = 0;
    for (int64_t i = 0; i < p->tokens->P; i++) {
        int64_t length = p->tokens->offsets[i + 1] - p->tokens->offsets[i];
        longest = length > longest ? length : longest;
    }
    for (int r = 0; r < p->tee.n_reducers; r++)
        p->reducer_bytes += p->tee.reducers[r]->class_->bytes(p->tee.reducers[r], &p->source);
    if (p->o->memory) {
        AG_TRY(select_bytes(&limit, p->o->memory, "memory", err));
        const int64_t beside = p->reducer_bytes + (p->dump_path ? kern_threads() * (1 << 20) : 0);
        limit -= beside;
        if (limit < 1) {
            char a[32];
            status = ag_fail(err, AG_E_MEMORY, "--memory %s: %s alone need %s; give more, or fewer prompts or layers",
                             p->o->memory, p->reducer_bytes ? "the reducers" : "the dump's buffers",
                             size_text(a, (double)beside));
            goto fail;
        }
    }
    p->request.memory_limit = limit;
    AG_TRY(forward_plan(&p->plan, &p->request, err));
    if (p->dump_path) p->dump_bytes = dump_bytes(&p->dump);
    if (p->tee.n_reducers > 0 && p->tee.store != DUMP_F32) { /* copies of a group's keys, and of what else is reduced */
        int64_t most = 0;
        for (int64_t l = 0; l < p->model->L; l++) {
            const struct ag_layer_shape *s = &p->model->shapes[l];
            int64_t row =
                s->Hk * s->D + (p->request.queries ? s->Hq * s->D : 0) + (p->request.values ? s->Hk * s->Dv : 0);
            most = row > most ? row : most;
        }
        p->rounding_bytes = 4 * most * p->plan.group_tokens;
    }
fail:
    return status;
}

static enum ag_status say_plan(const struct probe *p, struct ag_buf *out) {
    enum ag_status status;
    struct ag_error *err = p->run->err;
    const struct model *m = p->model;
    const struct forward_plan *plan = &p->plan;
    char a[32], b[32], c[32], d[32];
    int64_t chosen = 0, P = p->tokens->P, T = p->tokens->T;
    for (int64_t l = 0; l < m->L; l++) chosen += p->layers[l];
    AG_TRY(ag_buf_printf(
        out, err, "plan       %s (%s), %" PRId64 " of %" PRId64 " layers tapped, backend %s, %" PRId64 " threads\n",
        m->name, m->architecture, p->request.taps ? chosen : 0, m->L, p->ops->name, kern_threads()));
    AG_TRY(ag_buf_printf(out, err, "prompts    %" PRId64 ", %" PRId64 " tokens, the longest %" PRId64 "\n", P, T,
                         plan->longest));
    AG_TRY(ag_buf_printf(out, err, "pass       %" PRId64 " wave%s of at most %" PRId64 " tokens, %.3g TFLOP%s\n",
                         plan->waves, plan->waves == 1 ? "" : "s", plan->wave_tokens,
                         (double)plan->flops / 1e12 * (pooled(p) ? 2 : 1), pooled(p) ? ", run twice" : ""));
    AG_TRY(ag_buf_printf(out, err, "memory     peak %s: pass %s (weights %s, hidden states %s), reducers %s",
                         size_text(a, (double)(plan->peak_bytes + p->reducer_bytes + p->rounding_bytes)),
                         size_text(b, (double)plan->peak_bytes), size_text(c, (double)plan->weights_bytes),
                         size_text(d, (double)plan->hidden_bytes), p->reducer_bytes ? "" : "none\n"));
    if (p->reducer_bytes)
        AG_TRY(ag_buf_printf(out, err, "%s\n", size_text(a, (double)(p->reducer_bytes + p->rounding_bytes))));
    if (p->dump_path) {
        uint64_t room = ag_path_free_space(p->dump_path);
        AG_TRY(ag_buf_printf(out, err, "dump       %s to write, %s a token; %s free\n",
                             size_text(a, (double)p->dump_bytes), size_text(b, (double)p->dump_bytes / (double)T),
                             room == UINT64_MAX ? "unknown" : size_text(c, (double)room)));
        if (room != UINT64_MAX && (uint64_t)p->dump_bytes > room)
            AG_TRY(ag_buf_printf(
                out, err,
                "           this does not fit: fewer --layers, --taps or --what, --store bf16, or --reduce\n"));
    } else {
        AG_TRY(ag_buf_printf(out, err, "dump       none\n"));
    }
fail:
    return status;
}

/* ---- the run ----------------------------------------------------------------------------------------------- */

static void reducer_path(char out[4096], const struct probe *p, int r) {
    const char *output = p->run->common.output;
    if (p->tee.n_reducers == 1)
        snprintf(out, 4096, "%s", output);
    else
        snprintf(out, 4096, "%s.%s.h5", output, p->tee.reducers[r]->class_->name);
}

static enum ag_status pass(struct probe *p) {
    enum ag_status status;
    struct ag_error *err = p->run->err;
    struct forward_sink sink = p->o->bare ? (struct forward_sink){0} : tee_sink(&p->tee);
    double start = ag_now();
    AG_TRY(forward_run(&p->request, &p->plan, &sink, err));
    if (pooled(p) && p->tee.n_reducers > 0) {
        struct forward_request again = p->request;
        struct dump_writer *dump = p->tee.dump;
        struct score *score = p->tee.score;
        const int reducers = p->tee.n_reducers;
        again.taps = 1u << p->tee.tap;
        again.queries = again.values = false;
        again.logits = FORWARD_LOGITS_NONE;
        AG_TRY(geom_reducer_second_pass(p->tee.reducers[0], err));
        AG_TRY(forward_plan(&p->plan, &again, err));
        p->tee.dump = NULL;
        p->tee.score = NULL;
        p->tee.n_reducers = 1; /* the others have seen everything */
        status = forward_run(&again, &p->plan, &sink, err);
        p->tee.dump = dump;
        p->tee.score = score;
        p->tee.n_reducers = reducers;
    }
fail:
    p->seconds = ag_now() - start;
    return status;
}

static enum ag_status compute(struct probe *p) {
    enum ag_status status = AG_OK;
    struct ag_error *err = p->run->err;
    char path[4096];
    if (p->o->bare) return pass(p);
    for (int r = 0; r < p->tee.n_reducers; r++) {
        reducer_path(path, p, r);
        AG_TRY(ag_h5_out_check(path, p->run->common.force, err));
    }
    p->tee.scratch = ag_arena_new("rounding");
    if (!p->tee.scratch) return ag_fail(err, AG_E_MEMORY, "out of memory (rounding)");
    if (p->request.logits == FORWARD_LOGITS_MASK) {
        AG_TRY(score_begin(&p->score, p->tokens, p->ops, p->arena, err));
        p->tee.score = &p->score;
    }
    if (p->dump_path) AG_TRY(dump_create(&p->tee.dump, &p->dump, err));
    for (int r = 0; r < p->tee.n_reducers; r++)
        AG_TRY(p->tee.reducers[r]->class_->begin(p->tee.reducers[r], &p->source, err));
    tee_catch();
    status = pass(p);
    if (status == AG_OK && p->tee.dump) {
        struct dump_writer *dump = p->tee.dump;
        double start = ag_now();
        p->tee.dump = NULL;
        status = dump_commit(dump, err);
        p->seconds += ag_now() - start; /* the last layers reach the disk */
        p->tee.dump_seconds += ag_now() - start;
    }
    for (int r = 0; r < p->tee.n_reducers && status == AG_OK; r++) {
        reducer_path(path, p, r);
        status = p->tee.reducers[r]->class_->finish(p->tee.reducers[r], path, p->run->common.force, err);
    }
    tee_release();
fail:
    if (p->tee.dump) {
        bool keep = status == AG_E_IO || status == AG_E_INTERRUPTED || status == AG_E_MEMORY;
        dump_abandon(p->tee.dump, keep);
        p->tee.dump = NULL;
        if (keep && err->status == AG_E_INTERRUPTED) {
            err->status = AG_OK;
            ag_fail(err, AG_E_INTERRUPTED, "interrupted; what is complete is in %s.part: continue with --resume",
                    p->dump_path);
        }
    }
    return status;
}

/* ---- the summary ------------------------------------------------------------------------------------------- */

static enum ag_status report_answers(const struct probe *p, struct ag_buf *out) {
    struct score_summary s = score_fold(&p->score, 0, p->tokens->P);
    if (s.prompts == 0) return ag_buf_printf(out, p->run->err, "answers    none in the prompts\n");
    enum ag_status status = ag_buf_printf(out, p->run->err, "answers    %" PRId64 " of %" PRId64 " retrieved (%.1f %%)",
                                          s.hits, s.prompts, 100.0 * (double)s.hits / (double)s.prompts);
    if (status == AG_OK && s.value_tokens > 0)
        status = ag_buf_printf(out, p->run->err, ", %.3f nats a value token", s.mean_value_nll);
    return status != AG_OK ? status : ag_buf_printf(out, p->run->err, "\n");
}

static enum ag_status report(const struct probe *p, struct ag_buf *out) {
    enum ag_status status;
    struct ag_error *err = p->run->err;
    const struct ag_tokens *t = p->tokens;
    const struct ag_layer_shape *s = &p->model->shapes[0];
    int64_t roles[AG_ROLE_COUNT] = {0}, pairs = 0;
    char taps[64], path[4096];
    for (int64_t i = 0; i < t->T; i++) roles[t->role[i]]++;
    for (int64_t i = 0; i < t->P; i++) pairs += t->twin[i] > i;
    AG_TRY(ag_buf_printf(out, err,
                         "model      %s (%s): %" PRId64 " layers, %" PRId64 " query and %" PRId64
                         " key heads of %" PRId64 "\n",
                         p->model->name, p->model->architecture, p->model->L, s->Hq, s->Hk, s->D));
    AG_TRY(ag_buf_printf(out, err, "prompts    %" PRId64 ", %" PRId64 " of them in twin pairs%s%s\n", t->P, 2 * pairs,
                         p->o->shard ? ", share " : "", p->o->shard ? p->o->shard : ""));
    AG_TRY(ag_buf_printf(out, err, "tokens     %" PRId64 ":", t->T));
    for (int r = 0; r < AG_ROLE_COUNT; r++)
        AG_TRY(ag_buf_printf(out, err, "%s %s %" PRId64, r ? "," : "", ag_role_names[r], roles[r]));
    AG_TRY(ag_buf_printf(out, err,
                         "\nchecks     double BOS %" PRId64 "; value not found: needle %" PRId64 ", distractor %" PRId64
                         ", answer %" PRId64 "\n",
                         p->encoded->double_bos, p->encoded->missing_value[0], p->encoded->missing_value[1],
                         p->encoded->missing_value[2]));
    if (p->tee.score) AG_TRY(report_answers(p, out));
    AG_TRY(ag_buf_printf(out, err, "speed      %.2f s, %.0f tokens/s%s\n", p->seconds, (double)t->T / p->seconds,
                         pooled(p) ? " (two passes)" : ""));
    if (p->dump_path) {
        size_t n = 0;
        for (int tap = 0; tap < AG_TAP_COUNT; tap++)
            if (p->dump.taps >> tap & 1)
                n += (size_t)snprintf(taps + n, sizeof taps - n, "%s%s", n ? "," : "", ag_tap_names[tap]);
        struct ag_file file;
        char size[32] = "";
        if (ag_file_open(&file, p->dump_path, NULL) == AG_OK) {
            size_text(size, (double)file.size);
            ag_file_close(&file);
        }
        AG_TRY(ag_buf_printf(out, err, "dump       %s (%s; taps %s, %s)\n", p->dump_path, size, taps,
                             dump_store_names[p->o->store]));
    }
    for (int r = 0; r < p->tee.n_reducers; r++) {
        reducer_path(path, p, r);
        AG_TRY(ag_buf_printf(out, err, "%-10s %s (tap %s)\n", p->tee.reducers[r]->class_->name, path,
                             ag_tap_names[p->tee.tap]));
        if (strcmp(p->tee.reducers[r]->class_->name, "geometry") == 0)
            AG_TRY(geom_report(out, geom_reducer_results(p->tee.reducers[r]), err));
        else
            AG_TRY(taylor_report(out, taylor_reducer_results(p->tee.reducers[r]), err));
    }
fail:
    return status;
}

static enum ag_status run_probe(struct ag_run *run) {
    enum ag_status status;
    struct probe p = {.run = run, .o = run->options};
    struct ag_buf text = {0};
    p.arena = ag_arena_new("probe");
    if (!p.arena) return ag_fail(run->err, AG_E_MEMORY, "out of memory (probe)");
    AG_TRY(check_options(&p));
    kern_set_threads(run->common.threads);
    AG_TRY(open_all(&p));
    AG_TRY(choose(&p));
    AG_TRY(make_reducers(&p));
    make_requests(&p);
    AG_TRY(make_plan(&p));
    if (p.o->dry_run || run->common.verbose) AG_TRY(say_plan(&p, &text));
    warn(&p);
    if (p.o->dry_run) {
        fwrite(text.data, 1, text.size, run->out);
        goto fail;
    }
    if (run->common.verbose) {
        text.data[text.size - 1] = 0;
        ag_say(run->log, AG_DETAIL, "%s\nBLAS       %s", text.data, kern_blas_core());
        text.size = 0;
    }
    if (!p.o->bare) AG_TRY(ckpt_sha256(p.checkpoint_sha256, p.ckpt, run->err));
    AG_TRY(compute(&p));
    ag_say(run->log, AG_DETAIL, "time       %.3f s: dump %.3f s, reducers %.3f s, the rest is the pass", p.seconds,
           p.tee.dump_seconds, p.tee.reduce_seconds);
    AG_TRY(report(&p, &text));
    fwrite(text.data, 1, text.size, run->out);
fail:
    for (int r = 0; r < p.tee.n_reducers; r++)
        if (p.tee.reducers[r]) p.tee.reducers[r]->class_->free(p.tee.reducers[r]);
    ag_buf_free(&text);
    ag_arena_free(p.tee.scratch);
    prompt_tokens_free(p.encoded);
    prompts_close(p.prompts);
    tokenizer_close(p.tokenizer);
    model_close(p.model);
    ckpt_close(p.ckpt);
    ag_arena_free(p.arena);
    return status;
}

const struct ag_command command_probe = {
    .name = "probe",
    .summary = "run prompts through a model: dump keys and queries, or reduce them on the fly",
    .usage = "MODEL PROMPTS",
    .description =
        "Runs every prompt of PROMPTS (JSON lines, see attgeo prompts) through MODEL (a Hugging Face folder, a "
        ".safetensors or .gguf file) once, layer by layer, and takes keys, queries and values where --taps says.\n\n"
        "Without --reduce they go into the dump -o, an HDF5 file that explains itself (h5dump -A; read by h5py as it "
        "is; the schema is in probe/dump.h). It is written as OUTPUT.part and renamed when whole; a run that was "
        "stopped or killed continues with --resume.\n\n"
        "With --reduce the results of attgeo geometry and attgeo taylor are computed during the pass and nothing raw "
        "is "
        "written: dumping is for samples, reducing is for scale. Answers in PROMPTS are appended (teacher forcing) and "
        "scored: retrieved means that greedy decoding would have said exactly the answer.\n\n"
        "Taps, in the order of the pass: proj (after the projection and its bias), conv (after a short convolution), "
        "norm (after QK-norm), rope (after the rotary embedding). A stage that the model lacks equals the one before.",
    .examples = "attgeo probe data/sample/softmax data/sample/prompts.jsonl -o build/dump.h5 --taps proj,rope\n"
                "attgeo probe data/sample/softmax data/sample/prompts.jsonl --reduce geometry -o build/geometry.h5\n"
                "attgeo probe data/sample/softmax data/sample/prompts.jsonl --reduce geometry,taylor -o build/results\n"
                "attgeo probe data/sample/softmax data/sample/prompts.jsonl --dry-run",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .options_size = sizeof(struct probe_options),
    .defaults = &defaults,
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run_probe,
};
