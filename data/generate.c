/* data/generate.c: plans facts, fills the haystack to the asked number of tokens, places the facts and verifies. */
#include "data/generate.h"

#include <gsl/gsl_randist.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const generate_kinds[] = {"needle", "niah1", "niah2", "niah3", NULL};
const char *const generate_templates[] = {"none", "chatml", "llama3", NULL};
const char *const generate_wordings[] = {"any", "code", "register", "ledger", "label", "locker", "ticket", NULL};
_Static_assert(sizeof generate_wordings / sizeof generate_wordings[0] == FACT_WORDINGS + 2, "one name a wording");

const struct generate_options generate_defaults = {
    .kind = GENERATE_NEEDLE, .count = 16, .length = 512, .distractors = 4, .depth = -1};

static const char noise[] = "The wind moves in the reeds, the hour is slow, and nothing else happens on the shore.";

/* Chat templates, spelled with the special strings of the families that use them. The user's turn holds the context and
 * the question, the assistant's turn begins with the stem of the answer. */
static const struct template_text {
    const char *before, *between; /* the context and question; the question and the stem */
    const char *specials[5];      /* that the tokenizer must know, NULL-terminated */
} templates[] = {
    [GENERATE_NONE] = {"", "", {NULL}},
    [GENERATE_CHATML] = {"<|im_start|>user\n",
                         "<|im_end|>\n<|im_start|>assistant\n",
                         {"<|im_start|>", "<|im_end|>", NULL}},
    [GENERATE_LLAMA3] = {"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
                         "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
                         {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", NULL}},
};

/* What is decided about a pair (or single prompt) before any haystack is chosen. */
struct plan {
    struct fact fact[2]; /* of side a; side b exchanges them */
    int wording;
    int needle_variant;
    const uint8_t *variant; /* (distractors) */
    int64_t fixed;          /* tokens of the prompt without haystack, the larger of both sides */
};

/* A piece of the context: a haystack sentence (>= 0), the needle, or distractor j as FIRST_DISTRACTOR - j. */
#define PIECE_NEEDLE (-1)
#define PIECE_FIRST_DISTRACTOR (-2)

/* One side of a pair while it is being made. */
struct side {
    struct ag_buf text;
    struct prompt_span *spans; /* (max_spans) in the order of the text */
    int64_t n_spans;
    struct token_list tokens;
    char id[96], twin[96], answer[FACT_VALUE_BYTES + 1];
};

struct generator {
    struct generate_options options;
    const struct tokenizer *tokenizer;
    const struct haystack *haystack;
    struct haystack noise; /* of niah1 */
    struct ag_arena *arena;
    gsl_rng *fact_rng, *layout_rng;
    int sides;
    int64_t max_spans, next;
    struct plan *plans;       /* (count) */
    int32_t *sentence_tokens; /* (haystack->n) with the blank before it; 0: not counted yet */
    int64_t shortest;         /* sentence among those counted, -1: none */
    int64_t *order, n_order;  /* laps over the haystack, each drawn (in part) like a shuffled deck */
    int64_t laps;
    int64_t *chosen, *pieces, *best,
        *before;   /* scratch: sentences, context, best context so far, tokens before a gap */
    int64_t *used; /* (haystack->n) 1 + the last pair or prompt that has the sentence */
    int32_t *gap;  /* scratch: distractors in a gap */
    struct side side[2];
    struct ag_buf scratch;
    struct token_list scratch_tokens;
    /* of the prompts handed out */
    int64_t *token_counts;
    double *depths;
    int64_t made;
    struct generate_summary summary;
};

/* ---- tokens ----------------------------------------------------------------------------------------------------- */

static enum ag_status encode(struct generator *g, struct token_list *out, const char *text, size_t n,
                             struct ag_error *err) {
    out->n = 0;
    return tokenizer_encode(out, g->tokenizer, text, n, true, NULL, err);
}

/* Tokens [*first, *last) that overlap the bytes [begin, end). Tokens without bytes (BOS) overlap nothing. */
static void overlap(const struct token_list *tokens, int64_t begin, int64_t end, int64_t *first, int64_t *last) {
    int64_t low = 0, high = tokens->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (tokens->data[middle].end > begin)
            high = middle;
        else
            low = middle + 1;
    }
    *first = low;
    while (low < tokens->n && tokens->data[low].begin < end) low++;
    *last = low;
}

/* Tokens that sentence i adds to a context, the blank before it included. */
static enum ag_status sentence_cost(struct generator *g, int64_t i, int64_t *tokens, struct ag_error *err) {
    enum ag_status status;
    if (!g->sentence_tokens[i]) {
        const char *text = g->haystack->sentence[i];
        size_t n = strlen(text);
        g->scratch.size = 0;
        AG_TRY(ag_buf_add(&g->scratch, " ", 1, err));
        AG_TRY(ag_buf_add(&g->scratch, text, n, err));
        AG_TRY(encode(g, &g->scratch_tokens, g->scratch.data, g->scratch.size, err));
        int64_t count = 0;
        for (int64_t t = 0; t < g->scratch_tokens.n; t++) {
            const struct token *token = &g->scratch_tokens.data[t];
            if (token->begin == token->end) continue;
            if (token->special)
                return ag_fail(err, AG_E_FORMAT,
                               "%s: the sentence \"%.60s...\" holds the special string %.*s of the tokenizer; a "
                               "haystack is plain text; remove it",
                               g->haystack->path, text, (int)(token->end - token->begin),
                               g->scratch.data + token->begin);
            count++;
        }
        g->sentence_tokens[i] = (int32_t)(count > 0 ? count : 1);
        if (g->shortest < 0 || g->sentence_tokens[i] < g->sentence_tokens[g->shortest]) g->shortest = i;
    }
    *tokens = g->sentence_tokens[i];
    return AG_OK;
fail:
    return ag_fail_context(err, "%s, sentence \"%.40s\"", g->haystack->path, g->haystack->sentence[i]), status;
}

/* ---- text of one prompt ----------------------------------------------------------------------------------------- */

static void add_span(struct side *side, int64_t begin, enum ag_role role, int64_t value_begin, int64_t value_end) {
    side->spans[side->n_spans++] = (struct prompt_span){begin, (int64_t)side->text.size, role, value_begin, value_end};
}

/* Writes the text and spans of side s (0: a, 1: b) from the pieces of its context and encodes it. */
static enum ag_status build(struct generator *g, const struct plan *plan, int s, const int64_t *pieces, int64_t n,
                            struct ag_error *err) {
    enum ag_status status;
    struct side *side = &g->side[s];
    struct ag_buf *text = &side->text;
    const struct template_text *form = &templates[g->options.template_];
    const struct fact *needle = &plan->fact[s], *other = &plan->fact[1 - s];
    int64_t begin = 0;
    text->size = 0;
    side->n_spans = 0;
    if (*form->before) {
        AG_TRY(ag_buf_add(text, form->before, strlen(form->before), err));
        add_span(side, 0, AG_ROLE_SPECIAL, -1, -1);
    }
    for (int64_t i = 0; i < n; i++) {
        if (i) AG_TRY(ag_buf_add(text, " ", 1, err));
        begin = (int64_t)text->size;
        if (pieces[i] >= 0) {
            const char *sentence = g->haystack->sentence[pieces[i]];
            AG_TRY(ag_buf_add(text, sentence, strlen(sentence), err));
            continue;
        }
        bool is_needle = pieces[i] == PIECE_NEEDLE;
        int variant = is_needle ? plan->needle_variant : plan->variant[PIECE_FIRST_DISTRACTOR - pieces[i]];
        int64_t value_begin, value_end;
        AG_TRY(fact_state(text, is_needle ? needle : other, plan->wording, variant, &value_begin, &value_end, err));
        add_span(side, begin, is_needle ? AG_ROLE_NEEDLE : AG_ROLE_DISTRACTOR, value_begin, value_end);
    }
    AG_TRY(ag_buf_add(text, " ", 1, err));
    begin = (int64_t)text->size;
    AG_TRY(fact_ask(text, needle, plan->wording, err));
    if (*form->between) {
        add_span(side, begin, AG_ROLE_QUESTION, -1, -1);
        begin = (int64_t)text->size;
        AG_TRY(ag_buf_add(text, form->between, strlen(form->between), err));
        add_span(side, begin, AG_ROLE_SPECIAL, -1, -1);
        begin = (int64_t)text->size;
    } else {
        AG_TRY(ag_buf_add(text, " ", 1, err));
    }
    AG_TRY(fact_stem(text, needle, plan->wording, err));
    add_span(side, begin, AG_ROLE_QUESTION, -1, -1);
    side->answer[0] = ' ';
    memcpy(side->answer + 1, needle->value, strlen(needle->value) + 1);
    AG_TRY(encode(g, &side->tokens, text->data, text->size, err));
    return AG_OK;
fail:
    return status;
}

static int64_t larger_side(const struct generator *g) {
    int64_t n = g->side[0].tokens.n;
    return g->sides == 2 && g->side[1].tokens.n > n ? g->side[1].tokens.n : n;
}

/* How far the twins as built differ: in tokens, and in the token positions of spans and values. */
static void compare_sides(const struct generator *g, int64_t *tokens, int64_t *positions) {
    const struct side *a = &g->side[0], *b = &g->side[1];
    *tokens = llabs((long long)(a->tokens.n - b->tokens.n));
    *positions = 0;
    for (int64_t i = 0; i < a->n_spans; i++) {
        const struct prompt_span *x = &a->spans[i], *y = &b->spans[i];
        const int64_t of_a[2][2] = {{x->begin, x->end}, {x->value_begin, x->value_end}};
        const int64_t of_b[2][2] = {{y->begin, y->end}, {y->value_begin, y->value_end}};
        for (int range = 0; range < (x->value_begin >= 0 ? 2 : 1); range++) {
            int64_t at_a[2], at_b[2];
            overlap(&a->tokens, of_a[range][0], of_a[range][1], &at_a[0], &at_a[1]);
            overlap(&b->tokens, of_b[range][0], of_b[range][1], &at_b[0], &at_b[1]);
            for (int end = 0; end < 2; end++) {
                int64_t difference = llabs((long long)(at_a[end] - at_b[end]));
                if (difference > *positions) *positions = difference;
            }
        }
    }
}

/* ---- planning --------------------------------------------------------------------------------------------------- */

static enum ag_status draw_fact(struct generator *g, struct fact *fact, const struct fact *other,
                                struct ag_error *err) {
    const int tries = 1000;
    int i = 0;
    do fact_draw_key(fact->key, other ? other->key : NULL, g->fact_rng);
    while (strstr(g->haystack->lower, fact->key) && ++i < tries);
    if (i == tries)
        return ag_fail(err, AG_E_USAGE, "%s: holds all of %d drawn keys (such as \"%s\"); give another --haystack",
                       g->haystack->path, tries, fact->key);
    i = 0;
    do {
        if (g->options.kind == GENERATE_NIAH3)
            fact_draw_uuid(fact->value, g->fact_rng);
        else
            fact_draw_number(fact->value, (int)g->options.digits, other ? other->value : NULL, g->fact_rng);
    } while (strstr(g->haystack->lower, fact->value) && ++i < tries);
    if (i == tries)
        return ag_fail(
            err, AG_E_USAGE,
            "%s: holds all of %d drawn values of %d digits, so an answer could occur by chance; give more --digits",
            g->haystack->path, tries, (int)g->options.digits);
    return AG_OK;
}

/* Facts whose two sides agree in tokens and positions; where 200 draws find none, the pair that differs least. */
static enum ag_status draw_plan(struct generator *g, struct plan *plan, struct ag_error *err) {
    enum ag_status status;
    const struct generate_options *o = &g->options;
    plan->wording = o->wording ? o->wording - 1 : (int)gsl_rng_uniform_int(g->fact_rng, FACT_WORDINGS);
    if (o->distractors) {
        uint8_t *variant = AG_ZEROS(g->arena, uint8_t, o->distractors, err);
        if (!variant) return AG_E_MEMORY;
        if (o->near_duplicates) {
            uint8_t deck[FACT_VARIANTS];
            for (int i = 0; i < FACT_VARIANTS; i++) deck[i] = (uint8_t)i;
            gsl_ran_choose(g->fact_rng, variant, (size_t)o->distractors, deck, FACT_VARIANTS, 1);
            gsl_ran_shuffle(g->fact_rng, variant, (size_t)o->distractors, 1);
            plan->needle_variant = variant[gsl_rng_uniform_int(g->fact_rng, (unsigned long)o->distractors)];
        }
        plan->variant = variant;
    }
    for (int64_t i = 0; i <= o->distractors; i++) g->pieces[i] = PIECE_NEEDLE - i;
    struct plan best = *plan;
    int64_t best_difference = -1;
    for (int i = 0; i < 200 && best_difference != 0; i++) {
        AG_TRY(draw_fact(g, &plan->fact[0], NULL, err));
        if (g->sides == 2) AG_TRY(draw_fact(g, &plan->fact[1], &plan->fact[0], err));
        for (int s = 0; s < g->sides; s++) AG_TRY(build(g, plan, s, g->pieces, o->distractors + 1, err));
        int64_t tokens = 0, positions = 0;
        if (g->sides == 2) compare_sides(g, &tokens, &positions);
        plan->fixed = larger_side(g);
        if (best_difference < 0 || tokens + positions < best_difference) {
            best_difference = tokens + positions;
            best = *plan;
        }
    }
    *plan = best;
    return AG_OK;
fail:
    return status;
}

static enum ag_status check_template(struct generator *g, struct ag_error *err) {
    enum ag_status status;
    for (const char *const *special = templates[g->options.template_].specials; *special; special++) {
        AG_TRY(encode(g, &g->scratch_tokens, *special, strlen(*special), err));
        int64_t with_bytes = 0, special_ones = 0;
        for (int64_t t = 0; t < g->scratch_tokens.n; t++) {
            const struct token *token = &g->scratch_tokens.data[t];
            with_bytes += token->begin < token->end;
            special_ones += token->begin < token->end && token->special;
        }
        if (with_bytes != 1 || special_ones != 1)
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "the tokenizer has no special token %s, which --template %s needs; give --template none",
                           *special, generate_templates[g->options.template_]);
    }
    return AG_OK;
fail:
    return status;
}

/* Lengths that cannot be met: shorter than the facts, the question and one sentence; longer than the haystack. */
static enum ag_status check_length(struct generator *g, struct ag_error *err) {
    enum ag_status status;
    const struct generate_options *o = &g->options;
    int64_t largest = 0, smallest = INT64_MAX, cost, total = 0;
    for (int64_t i = 0; i < o->count; i++) {
        if (g->plans[i].fixed > largest) largest = g->plans[i].fixed;
        if (g->plans[i].fixed < smallest) smallest = g->plans[i].fixed;
    }
    /* Enough sentences to know a short one; all of them where the length asks for more. */
    for (int64_t i = 0; i < g->haystack->n && (i < 4096 || total < o->length - smallest); i++) {
        AG_TRY(sentence_cost(g, i, &cost, err));
        total += cost;
    }
    AG_TRY(sentence_cost(g, g->shortest, &cost, err));
    /* One token to spare: the first piece of a text may take one more without the blank before it. */
    if (o->length <= largest)
        return ag_fail(err, AG_E_USAGE,
                       "--length %lld is too short: %lld fact%s and the question take %lld tokens, the shortest "
                       "sentence of the haystack %lld; give --length %lld or more%s",
                       (long long)o->length, (long long)o->distractors + 1, o->distractors ? "s" : "",
                       (long long)largest, (long long)cost, (long long)(largest + cost + 1),
                       o->distractors > 1 ? ", or fewer --distractors" : "");
    if (o->length <= largest + cost)
        return ag_fail(
            err, AG_E_USAGE,
            "--length %lld is too short: beside the facts and the question (%lld tokens) not even the shortest "
            "sentence of %s fits (%lld tokens); give --length %lld or more, or a --haystack of shorter sentences",
            (long long)o->length, (long long)largest, g->haystack->path, (long long)cost,
            (long long)(largest + cost + 1));
    if (!o->repeat && total < o->length - smallest)
        return ag_fail(err, AG_E_USAGE,
                       "--length %lld is longer than %s can fill: its %lld different sentences and the facts take %lld "
                       "tokens; give --length %lld or less, a longer --haystack, or --repeat",
                       (long long)o->length, g->haystack->path, (long long)g->haystack->n,
                       (long long)(total + smallest), (long long)(total + smallest));
    g->laps = o->repeat ? o->length / total + 3 : 1;
    return AG_OK;
fail:
    return status;
}

/* 32 bits that seed one stream. One to one for seeds below 2^32; the upper bits of larger ones are mixed in. */
static unsigned long stream_seed(int64_t seed, uint32_t stream) {
    uint32_t x = (uint32_t)seed ^ ((uint32_t)(seed >> 32) * 0x9E3779B9u) ^ (stream * 0x85EBCA6Bu);
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

static enum ag_status check_options(const struct generate_options *o, struct ag_error *err) {
    bool needle = o->kind == GENERATE_NEEDLE;
    if (o->count < 1 || o->count > GENERATE_MAX_COUNT || o->length < 1 || o->length > GENERATE_MAX_LENGTH ||
        o->seed < 0 || o->digits < 1 || o->digits > 18 || !(o->depth <= 1) || o->distractors < 0 ||
        o->distractors > GENERATE_MAX_DISTRACTORS || o->wording < 0 || o->wording > FACT_WORDINGS)
        return ag_fail(err, AG_E_USAGE, "an option of the prompt generator is out of range");
    if (needle && o->distractors < 1)
        return ag_fail(err, AG_E_USAGE,
                       "--kind needle needs at least one distractor; for a needle alone give --kind niah2");
    if (o->near_duplicates && o->distractors > FACT_VARIANTS)
        return ag_fail(
            err, AG_E_USAGE,
            "--near-duplicates has %d different wordings of a fact, --distractors %lld asks for more; give %d or fewer",
            FACT_VARIANTS, (long long)o->distractors, FACT_VARIANTS);
    return AG_OK;
}

enum ag_status generator_open(struct generator **out, const struct generate_options *options,
                              const struct tokenizer *tokenizer, const struct haystack *haystack,
                              struct ag_error *err) {
    enum ag_status status;
    struct generate_options o = *options;
    struct generator *g = NULL;
    *out = NULL;
    if (!o.digits) o.digits = o.kind == GENERATE_NEEDLE ? 4 : 7;
    if (o.kind != GENERATE_NEEDLE) o.distractors = 0, o.near_duplicates = false;
    if (o.kind == GENERATE_NIAH1) o.repeat = true;
    AG_TRY(check_options(&o, err));
    struct ag_arena *arena = ag_arena_new("prompt generator");
    if (!arena) return ag_fail(err, AG_E_MEMORY, "out of memory");
    g = AG_ZEROS(arena, struct generator, 1, err);
    if (!g) {
        ag_arena_free(arena);
        return AG_E_MEMORY;
    }
    g->arena = arena;
    g->options = o;
    g->tokenizer = tokenizer;
    g->haystack = haystack;
    g->sides = o.kind == GENERATE_NEEDLE ? 2 : 1;
    g->max_spans = o.distractors + 5;
    g->shortest = -1;
    if (o.kind == GENERATE_NIAH1) {
        AG_TRY(haystack_parse(&g->noise, noise, sizeof noise - 1, "noise sentence", arena, err));
        g->haystack = &g->noise;
    }
    status = AG_E_MEMORY;
    g->fact_rng = gsl_rng_alloc(gsl_rng_mt19937);
    g->layout_rng = gsl_rng_alloc(gsl_rng_mt19937);
    if (!g->fact_rng || !g->layout_rng) {
        ag_fail(err, AG_E_MEMORY, "out of memory");
        goto fail;
    }
    gsl_rng_set(g->fact_rng, stream_seed(o.seed, 1));
    gsl_rng_set(g->layout_rng, stream_seed(o.seed, 2));
    /* A piece has at least one token, so a context has at most `length` sentences (and the facts, checked below). */
    int64_t most = o.length + o.distractors + 8;
    g->plans = AG_ZEROS(arena, struct plan, o.count, err);
    g->sentence_tokens = AG_ZEROS(arena, int32_t, g->haystack->n, err);
    g->used = AG_ZEROS(arena, int64_t, g->haystack->n, err);
    g->chosen = AG_NEW(arena, int64_t, most, err);
    g->pieces = AG_NEW(arena, int64_t, most, err);
    g->best = AG_NEW(arena, int64_t, most, err);
    g->before = AG_NEW(arena, int64_t, most, err);
    g->gap = AG_NEW(arena, int32_t, most, err);
    g->token_counts = AG_NEW(arena, int64_t, o.count * g->sides, err);
    g->depths = AG_NEW(arena, double, o.count * g->sides, err);
    if (!g->plans || !g->sentence_tokens || !g->used || !g->chosen || !g->pieces || !g->best || !g->before || !g->gap ||
        !g->token_counts || !g->depths)
        goto fail;
    for (int s = 0; s < 2; s++) {
        g->side[s].spans = AG_NEW(arena, struct prompt_span, g->max_spans, err);
        if (!g->side[s].spans) goto fail;
    }
    AG_TRY(check_template(g, err));
    /* The first plan alone tells nearly always whether the length can work: no need to draw them all for a refusal. */
    for (int64_t i = 0; i < o.count; i++) {
        AG_TRY(draw_plan(g, &g->plans[i], err));
        if (g->plans[i].fixed >= o.length) {
            g->options.count = i + 1;
            break;
        }
    }
    AG_TRY(check_length(g, err));
    g->n_order = g->laps * g->haystack->n;
    g->order = AG_NEW(arena, int64_t, g->n_order, err);
    if (!g->order) {
        status = AG_E_MEMORY;
        goto fail;
    }
    for (int64_t i = 0; i < g->n_order; i++) g->order[i] = i % g->haystack->n;
    *out = g;
    return AG_OK;
fail:
    generator_close(g);
    return status;
}

void generator_close(struct generator *g) {
    if (!g) return;
    for (int s = 0; s < 2; s++) {
        ag_buf_free(&g->side[s].text);
        token_list_free(&g->side[s].tokens);
    }
    ag_buf_free(&g->scratch);
    token_list_free(&g->scratch_tokens);
    if (g->fact_rng) gsl_rng_free(g->fact_rng);
    if (g->layout_rng) gsl_rng_free(g->layout_rng);
    ag_arena_free(g->arena);
}

/* ---- layout ----------------------------------------------------------------------------------------------------- */

/* The i-th card of the deck, drawn when it is first looked at; *drawn counts them within this prompt. */
static int64_t card(struct generator *g, int64_t i, int64_t *drawn) {
    int64_t n = g->haystack->n;
    for (; *drawn <= i; ++*drawn) {
        int64_t end = (*drawn / n + 1) * n;
        int64_t other = *drawn + (int64_t)gsl_rng_uniform_int(g->layout_rng, (unsigned long)(end - *drawn));
        int64_t swap = g->order[*drawn];
        g->order[*drawn] = g->order[other];
        g->order[other] = swap;
    }
    return g->order[i];
}

/* Chooses sentences of `budget` tokens in all, or as near below as can be found: cards from the deck while they fit;
 * then one card, or one exchange, that closes the gap exactly; else the largest that fits. */
static enum ag_status choose(struct generator *g, int64_t budget, int64_t *drawn, int64_t *n_chosen,
                             struct ag_error *err) {
    enum { LOOK_AHEAD = 256 };
    enum ag_status status;
    int64_t n = 0, i = 0, rest = budget, cost;
    for (; i < g->n_order; i++) {
        AG_TRY(sentence_cost(g, card(g, i, drawn), &cost, err));
        if (cost > rest) break;
        g->chosen[n++] = g->order[i];
        rest -= cost;
    }
    int64_t pool[LOOK_AHEAD], pool_cost[LOOK_AHEAD], n_pool = 0;
    for (; i < g->n_order && n_pool < LOOK_AHEAD && rest > 0; i++, n_pool++) {
        pool[n_pool] = card(g, i, drawn);
        AG_TRY(sentence_cost(g, pool[n_pool], &pool_cost[n_pool], err));
    }
    while (rest > 0) {
        int64_t fits = -1;
        for (int64_t p = 0; p < n_pool; p++)
            if (pool[p] >= 0 && pool_cost[p] <= rest && (fits < 0 || pool_cost[p] > pool_cost[fits])) fits = p;
        if (fits < 0 || pool_cost[fits] < rest) {
            bool closed = false;
            for (int64_t p = 0; p < n_pool && !closed; p++) {
                for (int64_t c = n - 1; c >= 0 && pool[p] >= 0 && !closed; c--) { /* the first sentence rather stays */
                    if (pool_cost[p] - g->sentence_tokens[g->chosen[c]] != rest) continue;
                    g->chosen[c] = pool[p];
                    closed = true;
                }
            }
            if (closed) break;
        }
        if (fits < 0) break;
        g->chosen[n++] = pool[fits];
        rest -= pool_cost[fits];
        pool[fits] = -1;
    }
    if (!n) g->chosen[n++] = g->shortest; /* check_length made sure that it fits */
    *n_chosen = n;
    return AG_OK;
fail:
    return status;
}

/* Puts the facts into gaps between the chosen sentences (gap i is before sentence i): distractors into random gaps, no
 * two in one while there are enough; the needle where its depth is nearest to `depth`, a distractor there moved away.
 */
static int64_t arrange(struct generator *g, const struct plan *plan, int64_t n, double depth) {
    int64_t m = g->options.distractors, gaps = n + 1;
    int64_t fact_tokens = plan->fixed / (m + 3); /* the question has two sentences; near enough for placing */
    bool apart = m + 1 <= gaps;
    memset(g->gap, 0, (size_t)gaps * sizeof *g->gap);
    for (int64_t j = 0; j < m; j++) {
        unsigned long at;
        do at = gsl_rng_uniform_int(g->layout_rng, (unsigned long)gaps);
        while (apart && g->gap[at]);
        g->gap[at]++;
    }
    int64_t at = 0;
    for (int round = 0; round < 64; round++) {
        int64_t total = 0;
        for (int64_t i = 0; i < gaps; i++) {
            g->before[i] = total;
            total += g->gap[i] * fact_tokens + (i < n ? g->sentence_tokens[g->chosen[i]] : 0);
        }
        if (gaps > 1) g->before[n] = total; /* in the last gap the needle comes last, in the others first */
        bool last_round = round == 63;
        double nearest = INFINITY;
        for (int64_t i = 0; i < gaps; i++) {
            if (last_round && apart && g->gap[i]) continue;
            double error = fabs((double)g->before[i] / (double)(total > 0 ? total : 1) - depth);
            if (error < nearest) {
                nearest = error;
                at = i;
            }
        }
        if (!apart || !g->gap[at]) break;
        unsigned long other;
        do other = gsl_rng_uniform_int(g->layout_rng, (unsigned long)gaps);
        while (g->gap[other] || (int64_t)other == at);
        g->gap[other]++;
        g->gap[at]--;
    }
    int64_t k = 0, distractor = 0;
    for (int64_t i = 0; i < gaps; i++) {
        if (i == at && i < n) g->pieces[k++] = PIECE_NEEDLE;
        for (int32_t j = 0; j < g->gap[i]; j++) g->pieces[k++] = PIECE_FIRST_DISTRACTOR - distractor++;
        if (i == at && i == n) g->pieces[k++] = PIECE_NEEDLE;
        if (i < n) g->pieces[k++] = g->chosen[i];
    }
    return k;
}

/* ---- verification ----------------------------------------------------------------------------------------------- */

static int64_t occurrences(const char *text, const char *word) {
    int64_t n = 0;
    for (const char *p = text; (p = strstr(p, word)); p++) n++;
    return n;
}

/* The tokens that overlap bytes [begin, end) must decode to a text that holds those bytes. */
static enum ag_status verify_range(struct generator *g, const struct side *side, int64_t begin, int64_t end,
                                   struct ag_error *err) {
    enum ag_status status;
    int64_t first, last;
    overlap(&side->tokens, begin, end, &first, &last);
    g->scratch.size = 0;
    AG_TRY(ag_buf_add(&g->scratch, "", 0, err));
    for (int64_t t = first; t < last; t++) {
        size_t n;
        const char *bytes = tokenizer_bytes(g->tokenizer, side->tokens.data[t].id, &n);
        if (bytes) AG_TRY(ag_buf_add(&g->scratch, bytes, n, err));
    }
    if (first == last || !memmem(g->scratch.data, g->scratch.size, side->text.data + begin, (size_t)(end - begin)))
        return ag_fail(err, AG_E_INTERNAL, "%s: the tokens of bytes %lld to %lld decode to \"%.80s\", not to \"%.*s\"",
                       side->id, (long long)begin, (long long)end, g->scratch.data ? g->scratch.data : "",
                       (int)(end - begin > 80 ? 80 : end - begin), side->text.data + begin);
    return AG_OK;
fail:
    return status;
}

static enum ag_status verify(struct generator *g, const struct plan *plan, int s, struct ag_error *err) {
    enum ag_status status;
    const struct side *side = &g->side[s];
    for (int64_t i = 0; i < side->n_spans; i++) {
        const struct prompt_span *span = &side->spans[i];
        AG_TRY(verify_range(g, side, span->begin, span->end, err));
        if (span->value_begin >= 0) AG_TRY(verify_range(g, side, span->value_begin, span->value_end, err));
    }
    int64_t own = occurrences(side->text.data, plan->fact[s].value);
    int64_t others = g->sides == 2 ? occurrences(side->text.data, plan->fact[1 - s].value) : 0;
    if (own != 1 || others != g->options.distractors)
        return ag_fail(err, AG_E_INTERNAL,
                       "%s: the answer occurs %lld times and the other value %lld times, not 1 and %lld", side->id,
                       (long long)own, (long long)others, (long long)g->options.distractors);
    if (!tokenizer_info(g->tokenizer)->adds_eos) {
        g->scratch.size = 0;
        AG_TRY(ag_buf_add(&g->scratch, side->text.data, side->text.size, err));
        AG_TRY(ag_buf_add(&g->scratch, side->answer, strlen(side->answer), err));
        AG_TRY(encode(g, &g->scratch_tokens, g->scratch.data, g->scratch.size, err));
        bool same = g->scratch_tokens.n > side->tokens.n;
        for (int64_t t = 0; same && t < side->tokens.n; t++)
            same = g->scratch_tokens.data[t].id == side->tokens.data[t].id;
        if (!same)
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "%s: with the answer \"%s\" after it the text has other tokens in this tokenizer, so the "
                           "answer cannot be scored",
                           side->id, side->answer);
    }
    return AG_OK;
fail:
    return status;
}

/* ---- summary ---------------------------------------------------------------------------------------------------- */

static enum ag_status record(struct generator *g, const struct side *side, struct ag_error *err) {
    static const enum ag_role by_precedence[] = {AG_ROLE_SPECIAL, AG_ROLE_QUESTION, AG_ROLE_DISTRACTOR, AG_ROLE_NEEDLE};
    struct ag_mark mark = ag_arena_mark(g->arena);
    int64_t n = side->tokens.n, first, last, start = 0, needle = 0, needle_end = 0, question = n;
    uint8_t *role = AG_NEW(g->arena, uint8_t, n, err);
    if (!role) return AG_E_MEMORY;
    for (int64_t t = 0; t < n; t++) role[t] = side->tokens.data[t].special ? AG_ROLE_SPECIAL : AG_ROLE_HAYSTACK;
    for (size_t p = 0; p < sizeof by_precedence / sizeof by_precedence[0]; p++) {
        for (int64_t i = side->n_spans - 1; i >= 0; i--) {
            if (side->spans[i].role != by_precedence[p]) continue;
            overlap(&side->tokens, side->spans[i].begin, side->spans[i].end, &first, &last);
            for (int64_t t = first; t < last; t++)
                if (!side->tokens.data[t].special) role[t] = (uint8_t)by_precedence[p];
            if (by_precedence[p] == AG_ROLE_SPECIAL && i == 0) start = last;
            if (by_precedence[p] == AG_ROLE_QUESTION) /* the blank before it, maybe a token of its own, is no context */
                overlap(&side->tokens, side->spans[i].begin - 1, side->spans[i].end, &question, &last);
            if (by_precedence[p] == AG_ROLE_NEEDLE) needle = first, needle_end = last;
        }
    }
    while (start < n && side->tokens.data[start].begin == side->tokens.data[start].end) start++;
    for (int64_t t = 0; t < n; t++) g->summary.role_tokens[role[t]]++;
    ag_arena_release(g->arena, mark);
    int64_t others = question - start - (needle_end - needle);
    g->depths[g->made] = others > 0 ? (double)(needle - start) / (double)others : 0;
    g->token_counts[g->made++] = n;
    return AG_OK;
}

enum ag_status generator_next(struct generator *g, struct prompt prompts[2], int64_t *n, struct ag_error *err) {
    enum ag_status status;
    const struct generate_options *o = &g->options;
    *n = 0;
    if (g->next >= o->count) return AG_OK;
    const struct plan *plan = &g->plans[g->next];
    double depth = gsl_rng_uniform(g->layout_rng);
    if (o->depth >= 0) depth = o->depth;

    /* Costs of pieces add up but for rare merges over their borders and the first blank: measure, correct, keep the
     * best. */
    int64_t budget = o->length - plan->fixed, drawn = 0, best_tokens = -1, n_best = 0, n_chosen = 0, best_chosen = 0;
    int attempts = o->kind == GENERATE_NIAH1 ? 4 : 16; /* with one sentence only, more would not help */
    for (int attempt = 0; attempt < attempts && best_tokens != o->length; attempt++) {
        AG_TRY(choose(g, budget, &drawn, &n_chosen, err));
        if (attempt > 1) { /* another sentence first, or two budgets could alternate for ever */
            int64_t other = (int64_t)gsl_rng_uniform_int(g->layout_rng, (unsigned long)n_chosen),
                    swap = g->chosen[other];
            g->chosen[other] = g->chosen[0];
            g->chosen[0] = swap;
        }
        int64_t k = arrange(g, plan, n_chosen, depth);
        for (int s = 0; s < g->sides; s++) AG_TRY(build(g, plan, s, g->pieces, k, err));
        int64_t tokens = larger_side(g);
        if (tokens <= o->length && tokens > best_tokens) {
            best_tokens = tokens;
            n_best = k;
            best_chosen = n_chosen;
            memcpy(g->best, g->pieces, (size_t)k * sizeof *g->best);
        }
        budget += o->length - tokens;
        if (budget > o->length) budget = o->length;
    }
    if (best_tokens < 0)
        return ag_fail(err, AG_E_USAGE, "--length %lld is too short for pair %lld; give a larger one",
                       (long long)o->length, (long long)g->next);
    for (int s = 0; s < g->sides; s++) {
        struct side *side = &g->side[s];
        char stem[64];
        snprintf(stem, sizeof stem, "%s-%lld-s%lld-%03lld", generate_kinds[o->kind], (long long)o->length,
                 (long long)o->seed, (long long)g->next);
        snprintf(side->id, sizeof side->id, "%s%s", stem, g->sides == 1 ? "" : s ? "-b" : "-a");
        snprintf(side->twin, sizeof side->twin, "%s%s", stem, s ? "-a" : "-b");
        AG_TRY(build(g, plan, s, g->best, n_best, err));
        AG_TRY(verify(g, plan, s, err));
        AG_TRY(record(g, side, err));
        prompts[s] = (struct prompt){.id = side->id,
                                     .text = side->text.data,
                                     .answer = side->answer,
                                     .twin = g->sides == 2 ? side->twin : NULL,
                                     .text_bytes = (int64_t)side->text.size,
                                     .spans = side->spans,
                                     .n_spans = side->n_spans};
    }
    g->summary.sentences += best_chosen * g->sides;
    bool repeats = false;
    for (int64_t i = 0; i < n_best; i++) {
        if (g->best[i] < 0) continue;
        repeats |= g->used[g->best[i]] == g->next + 1;
        g->used[g->best[i]] = g->next + 1;
    }
    g->summary.repeats += repeats && o->kind != GENERATE_NIAH1;
    if (g->sides == 2) {
        int64_t tokens, positions;
        compare_sides(g, &tokens, &positions);
        g->summary.pairs++;
        g->summary.aligned_pairs += !tokens && !positions;
        if (tokens > g->summary.token_difference) g->summary.token_difference = tokens;
        if (positions > g->summary.position_difference) g->summary.position_difference = positions;
    }
    g->next++;
    *n = g->sides;
    return AG_OK;
fail:
    return status;
}

static int compare_int64(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}
static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum ag_status generator_summary(struct generator *g, struct generate_summary *out, struct ag_error *err) {
    *out = g->summary;
    out->prompts = g->made;
    if (!g->made) return AG_OK;
    struct ag_mark mark = ag_arena_mark(g->arena);
    int64_t *tokens = AG_NEW(g->arena, int64_t, g->made, err);
    double *depths = AG_NEW(g->arena, double, g->made, err);
    if (!tokens || !depths) return AG_E_MEMORY;
    memcpy(tokens, g->token_counts, (size_t)g->made * sizeof *tokens);
    memcpy(depths, g->depths, (size_t)g->made * sizeof *depths);
    qsort(tokens, (size_t)g->made, sizeof *tokens, compare_int64);
    qsort(depths, (size_t)g->made, sizeof *depths, compare_double);
    out->tokens_min = tokens[0];
    out->tokens_median = tokens[g->made / 2];
    out->tokens_max = tokens[g->made - 1];
    out->depth_min = depths[0];
    out->depth_median = depths[g->made / 2];
    out->depth_max = depths[g->made - 1];
    ag_arena_release(g->arena, mark);
    return AG_OK;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

enum ag_status generate_write(FILE *stream, const struct prompt *prompt, struct ag_error *err) {
    json_t *root = json_object(), *spans = json_array();
    int bad = 0;
    bad |= json_object_set_new(root, "id", json_string(prompt->id));
    if (prompt->twin) bad |= json_object_set_new(root, "twin", json_string(prompt->twin));
    bad |= json_object_set_new(root, "text", json_stringn(prompt->text, (size_t)prompt->text_bytes));
    for (int64_t i = 0; i < prompt->n_spans; i++) {
        const struct prompt_span *span = &prompt->spans[i];
        json_t *item = json_object();
        bad |= json_object_set_new(item, "start", json_integer(span->begin));
        bad |= json_object_set_new(item, "end", json_integer(span->end));
        bad |= json_object_set_new(item, "role", json_string(ag_role_names[span->role]));
        if (span->value_begin >= 0) {
            json_t *value = json_array();
            bad |= json_array_append_new(value, json_integer(span->value_begin));
            bad |= json_array_append_new(value, json_integer(span->value_end));
            bad |= json_object_set_new(item, "value", value);
        }
        bad |= json_array_append_new(spans, item);
    }
    bad |= json_object_set_new(root, "spans", spans);
    if (prompt->answer) bad |= json_object_set_new(root, "answer", json_string(prompt->answer));
    enum ag_status status = AG_OK;
    if (bad)
        status = ag_fail(err, AG_E_MEMORY, "%s: out of memory while writing, or not UTF-8", prompt->id);
    else if (json_dumpf(root, stream, 0) || fputc('\n', stream) == EOF)
        status = ag_fail(err, AG_E_IO, "prompt %s could not be written; is the disk full?", prompt->id);
    json_decref(root);
    return status;
}
