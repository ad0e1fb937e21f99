/* data/facts.c: word lists and wordings of the facts. */
#include "data/facts.h"

#include <ctype.h>
#include <string.h>

const struct fact_wording fact_wordings[FACT_WORDINGS] = {
    {"code", "The special code for the {K} is {V}", "What is the special code for the {K}?",
     "The special code for the {K} is"},
    {"register", "The {K} is registered under the code {V}", "Under which code is the {K} registered?",
     "The {K} is registered under the code"},
    {"ledger", "The entry for the {K} in the ledger reads {V}", "What does the entry for the {K} in the ledger read?",
     "The entry for the {K} in the ledger reads"},
    {"label", "The label on the {K} says {V}", "What does the label on the {K} say?", "The label on the {K} says"},
    {"locker", "The locker that holds the {K} opens with {V}", "What opens the locker that holds the {K}?",
     "The locker that holds the {K} opens with"},
    {"ticket", "Whoever collects the {K} has to show the ticket {V}",
     "Which ticket has to be shown by whoever collects the {K}?", "Whoever collects the {K} has to show the ticket"},
};

/* The openings are followed by the statement with a small first letter. */
static const char *const openings[] = {
    "",
    "Remember that ",
    "Once again, ",
    "As everyone here knows, ",
    "According to the notice, ",
    "It is written down that ",
    "For the record, ",
    "To be exact, ",
    "Nobody doubts that ",
    "By the way, ",
    "We have been told that ",
    "As was said before, ",
};
static const char *const endings[] = {
    "", ", as agreed", " this year", ", and it will stay so", ", at least for now", " until further notice",
};
#define OPENINGS (int)(sizeof openings / sizeof openings[0])
#define ENDINGS (int)(sizeof endings / sizeof endings[0])
_Static_assert(sizeof openings / sizeof openings[0] * (sizeof endings / sizeof endings[0]) == FACT_VARIANTS,
               "FACT_VARIANTS counts openings times endings");

static const char *const adjectives[] = {
    "amber",   "bronze",  "cobalt", "copper", "crimson", "crystal", "dusty",   "ebony",   "emerald", "faded",
    "folded",  "gilded",  "golden", "hollow", "indigo",  "ivory",   "jade",    "leather", "linen",   "marble",
    "narrow",  "oak",     "olive",  "orange", "painted", "pale",    "patched", "pearl",   "pewter",  "pink",
    "plain",   "plastic", "purple", "round",  "rusty",   "satin",   "scarlet", "silver",  "slender", "spotted",
    "striped", "tiny",    "velvet", "violet", "walnut",  "wicker",  "wooden",  "yellow",
};
static const char *const nouns[] = {
    "anchor",  "banner",   "barrel",    "basket",  "blanket", "bracelet", "bucket",  "cabinet", "candle",   "canoe",
    "carpet",  "compass",  "cradle",    "curtain", "drum",    "easel",    "flute",   "globe",   "goblet",   "hammer",
    "hammock", "harp",     "helmet",    "jacket",  "jug",     "kettle",   "lantern", "locket",  "mandolin", "medal",
    "mirror",  "necklace", "notebook",  "paddle",  "parasol", "pillow",   "pitcher", "puppet",  "quilt",    "raft",
    "ribbon",  "rocket",   "saddle",    "sandal",  "scarf",   "shield",   "sled",    "statue",  "stool",    "suitcase",
    "sundial", "teapot",   "telescope", "tripod",  "trumpet", "vase",     "violin",  "wagon",   "wardrobe", "whistle",
};
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

void fact_draw_key(char key[FACT_KEY_BYTES], const char *other, gsl_rng *rng) {
    for (;;) {
        const char *adjective = adjectives[gsl_rng_uniform_int(rng, COUNT(adjectives))];
        const char *noun = nouns[gsl_rng_uniform_int(rng, COUNT(nouns))];
        if (other) {
            const char *space = strchr(other, ' ');
            size_t n = space ? (size_t)(space - other) : strlen(other);
            if ((strlen(adjective) == n && !memcmp(adjective, other, n)) || (space && !strcmp(noun, space + 1)))
                continue;
        }
        size_t a = strlen(adjective), b = strlen(noun);
        memcpy(key, adjective, a);
        key[a] = ' ';
        memcpy(key + a + 1, noun, b + 1);
        return;
    }
}

void fact_draw_number(char value[FACT_VALUE_BYTES], int digits, const char *other, gsl_rng *rng) {
    for (int i = 0; i < digits; i++) {
        do value[i] = (char)('0' + gsl_rng_uniform_int(rng, 10));
        while ((i == 0 && value[i] == '0') || (other && value[i] == other[i]));
    }
    value[digits] = 0;
}

void fact_draw_uuid(char value[FACT_VALUE_BYTES], gsl_rng *rng) {
    static const char form[] = "xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx"; /* RFC 9562, version 4 */
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof form; i++) {
        if (form[i] == 'x')
            value[i] = hex[gsl_rng_uniform_int(rng, 16)];
        else if (form[i] == 'y')
            value[i] = hex[8 + gsl_rng_uniform_int(rng, 4)];
        else
            value[i] = form[i];
    }
}

/* Appends form with {K} and {V} replaced. */
static enum ag_status expand(struct ag_buf *buf, const char *form, const struct fact *fact, bool small_first,
                             int64_t *value_begin, int64_t *value_end, struct ag_error *err) {
    enum ag_status status;
    size_t start = buf->size;
    for (const char *p = form; *p;) {
        const char *brace = strchr(p, '{');
        size_t n = brace ? (size_t)(brace - p) : strlen(p);
        AG_TRY(ag_buf_add(buf, p, n, err));
        if (!brace) break;
        bool is_value = brace[1] == 'V';
        if (is_value && value_begin) *value_begin = (int64_t)buf->size;
        const char *word = is_value ? fact->value : fact->key;
        AG_TRY(ag_buf_add(buf, word, strlen(word), err));
        if (is_value && value_end) *value_end = (int64_t)buf->size;
        p = brace + 3;
    }
    if (small_first) buf->data[start] = (char)tolower((unsigned char)buf->data[start]);
    return AG_OK;
fail:
    return status;
}

enum ag_status fact_state(struct ag_buf *buf, const struct fact *fact, int wording, int variant, int64_t *value_begin,
                          int64_t *value_end, struct ag_error *err) {
    enum ag_status status;
    const char *opening = openings[variant % OPENINGS], *ending = endings[variant / OPENINGS % ENDINGS];
    AG_TRY(ag_buf_add(buf, opening, strlen(opening), err));
    AG_TRY(expand(buf, fact_wordings[wording].statement, fact, *opening != 0, value_begin, value_end, err));
    AG_TRY(ag_buf_add(buf, ending, strlen(ending), err));
    AG_TRY(ag_buf_add(buf, ".", 1, err));
    return AG_OK;
fail:
    return status;
}

enum ag_status fact_ask(struct ag_buf *buf, const struct fact *fact, int wording, struct ag_error *err) {
    return expand(buf, fact_wordings[wording].question, fact, false, NULL, NULL, err);
}

enum ag_status fact_stem(struct ag_buf *buf, const struct fact *fact, int wording, struct ag_error *err) {
    return expand(buf, fact_wordings[wording].stem, fact, false, NULL, NULL, err);
}
