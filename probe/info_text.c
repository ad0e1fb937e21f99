/* `attgeo info` for a terminal. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe/info.h"

const char *info_size(char text[32], double bytes) {
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 999.5 && u < 4) {
        bytes /= 1000;
        u++;
    }
    snprintf(text, 32,
             u == 0          ? "%.0f %s"
             : bytes < 9.995 ? "%.2f %s"
             : bytes < 99.95 ? "%.1f %s"
                             : "%.0f %s",
             bytes, units[u]);
    return text;
}

int64_t info_parameters(const struct ckpt *ckpt) {
    int64_t n = 0;
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        if (!ag_add(n, ckpt->tensors[i].elements, &n))
            return -1; /* 2^63 numbers of no bytes: cannot be, the files are finite */
    }
    return n;
}
uint64_t info_bytes(const struct ckpt *ckpt) {
    uint64_t n = 0;
    for (int i = 0; i < ckpt->n_files; i++) n += ckpt->files[i].size;
    return n;
}
int64_t info_dump_bytes(const struct model *model) {
    int64_t n = 0;
    for (int64_t i = 0; i < model->L; i++) n += (model->shapes[i].Hq + model->shapes[i].Hk) * model->shapes[i].D * 4;
    return n;
}

/* The number of the layer, a name's part of digits only, becomes N. */
static char *pattern_of(const char *name, struct ag_arena *arena, struct ag_error *err) {
    char *pattern = ag_arena_text(arena, name, strlen(name), err), *to = pattern;
    if (!pattern) return NULL;
    for (const char *from = name; *from;) {
        size_t n = strspn(from, "0123456789");
        bool whole = n > 0 && (from == name || from[-1] == '.') && (from[n] == '.' || !from[n]);
        if (whole) {
            *to++ = 'N';
        } else {
            n = n > 0 ? n : 1;
            memmove(to, from, n);
            to += n;
        }
        from += n;
    }
    *to = 0;
    return pattern;
}

static int by_kind(const void *a, const void *b) {
    const struct info_group *x = a, *y = b;
    int order = strcmp(x->pattern, y->pattern);
    if (order == 0) order = strcmp(x->first->type, y->first->type);
    if (order == 0) order = x->first->rank - y->first->rank;
    if (order == 0) order = memcmp(x->first->shape, y->first->shape, sizeof x->first->shape);
    if (order == 0) order = x->first < y->first ? -1 : x->first > y->first;
    return order;
}

enum ag_status info_groups(struct info_group **out, int64_t *n, const struct info *info, struct ag_error *err) {
    const struct ckpt *ckpt = info->ckpt;
    struct info_group *groups = AG_NEW(info->arena, struct info_group, ckpt->n_tensors, err);
    int64_t count = 0;
    if (!groups) return AG_E_MEMORY;
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct ckpt_tensor *t = &ckpt->tensors[i];
        const char *pattern = pattern_of(t->name, info->arena, err);
        if (!pattern) return AG_E_MEMORY;
        groups[i] = (struct info_group){pattern, t, 1, t->bytes};
    }
    if (ckpt->n_tensors > 0) qsort(groups, (size_t)ckpt->n_tensors, sizeof *groups, by_kind);
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        struct info_group *last = count > 0 ? &groups[count - 1] : NULL;
        const struct ckpt_tensor *a = last ? last->first : NULL, *b = groups[i].first;
        if (last && !strcmp(last->pattern, groups[i].pattern) && !strcmp(a->type, b->type) && a->rank == b->rank &&
            !memcmp(a->shape, b->shape, sizeof a->shape)) {
            last->count++;
            last->bytes += b->bytes;
        } else {
            groups[count++] = groups[i];
        }
    }
    *out = groups;
    *n = count;
    return AG_OK;
}

/* ---- lines: a label, then what it says ---- */

static void line(struct ag_buf *out, const char *label, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void line(struct ag_buf *out, const char *label, const char *format, ...) {
    char text[1400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ag_buf_printf(out, NULL, "%-14s %s\n", label, text);
}

static void shape_text(char text[128], const struct ckpt_tensor *t) {
    size_t n = (size_t)snprintf(text, 128, "[");
    for (int i = 0; i < t->rank && n < 100; i++)
        n += (size_t)snprintf(text + n, 128 - n, i ? ", %" PRId64 : "%" PRId64, t->shape[i]);
    snprintf(text + n, 128 - n, "]");
}

/* Which query heads read which key head, spelled out while it is short. */
static void head_map(struct ag_buf *out, const struct ag_layer_shape *s) {
    char text[400];
    int64_t group = s->Hq / s->Hk;
    size_t n = 0;
    if (group == 1) {
        line(out, "head map", "each query head reads its own key head");
        return;
    }
    for (int64_t h = 0; h < s->Hk && n < 300; h++) {
        if (s->Hk > 6 && h == 3) {
            n += (size_t)snprintf(text + n, sizeof text - n, ", ...");
            h = s->Hk - 1;
        }
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%" PRId64 "-%" PRId64 " -> %s%" PRId64, h ? ", " : "",
                              h * group, h * group + group - 1, h ? "" : "key head ", h);
    }
    line(out, "head map", "query heads %s (a -> a / %" PRId64 ")", text, group);
}

static void windows(struct ag_buf *out, const struct model *m) {
    struct ag_buf text = {0};
    int64_t sliding = 0, window = 0;
    for (int64_t i = 0; i < m->L; i++) {
        if (m->shapes[i].window == 0) continue;
        int64_t end = i;
        while (end + 1 < m->L && m->shapes[end + 1].window == m->shapes[i].window) end++;
        window = m->shapes[i].window;
        sliding += end - i + 1;
        ag_buf_printf(&text, NULL, text.size ? ", %" PRId64 : "%" PRId64, i);
        if (end > i) ag_buf_printf(&text, NULL, "-%" PRId64, end);
        i = end;
    }
    if (sliding > 0) {
        line(out, "window",
             "%" PRId64 " tokens in %" PRId64 " of %" PRId64 " layers (%.200s); the others see all before them", window,
             sliding, m->L, text.data);
    } else {
        line(out, "window",
             m->layers[0].linear ? "none: the state holds all tokens before" : "none: every token sees all before it");
    }
    ag_buf_free(&text);
}

static void rope(struct ag_buf *out, const struct model_rope *r) {
    char more[200] = "";
    if (r->n_rot == 0) {
        line(out, "RoPE", "none");
        return;
    }
    if (r->type == ROPE_LINEAR) snprintf(more, sizeof more, ", positions divided by %g", r->factor);
    if (r->type == ROPE_LLAMA3 && r->original_max_position > 0) {
        snprintf(more, sizeof more, ", factor %g, frequency factors %g and %g, trained at %g", r->factor,
                 r->low_freq_factor, r->high_freq_factor, r->original_max_position);
    } else if (r->type == ROPE_LLAMA3) {
        snprintf(more, sizeof more, ", divisors up to %g from rope_freqs.weight", r->factor);
    }
    static const char *const names[] = {"default", "linear", "llama3"};
    line(out, "RoPE", "%s, theta %g, all %" PRId64 " coordinates of a head, half-split pairs%s", names[r->type],
         r->theta, r->n_rot, more);
}

static void linear_lines(struct ag_buf *out, const struct model_layer *l) {
    static const char *const units[] = {"not scaled", "of unit length (L2 norm)", "divided by their sum"};
    const struct ag_layer_shape *s = &l->shape;
    const struct model_linear *linear = l->linear;
    char conv[48] = "no short convolution", heads[64] = "";
    if (linear->conv > 0) snprintf(conv, sizeof conv, "short convolution of %" PRId64 " taps", linear->conv);
    if (linear->Hv != s->Hk) snprintf(heads, sizeof heads, " on %" PRId64 " value heads", linear->Hv);
    line(out, "attention",
         "linear, %s: %" PRId64 " query heads, %" PRId64 " key heads, %" PRId64 " wide%s, values %" PRId64
         " wide, scale %.6g",
         linear->delta        ? l->a.tensor ? "gated delta rule" : "delta rule"
         : l->gate_low.tensor ? "gated by key channel"
                              : "no gates",
         s->Hq, s->Hk, s->D, heads, linear->V, s->scale);
    line(out, "", "%s; keys %s; %s output gate%s", conv, units[linear->k_unit], l->out_gate.tensor ? "an" : "no",
         linear->ccq ? "; CCQ read with trained lambda" : "");
}

static void model_lines(struct ag_buf *out, const struct info *info) {
    const struct model *m = info->model;
    const struct model_layer *l = &m->layers[0];
    const struct ag_layer_shape *s = &l->shape;
    line(out, "model", "%s", m->name);
    line(out, "architecture", "%s, %.1f million parameters", m->architecture,
         (double)info_parameters(info->ckpt) / 1e6);
    line(out, "dimensions", "%" PRId64 " layers, hidden %" PRId64 ", MLP %" PRId64 ", vocabulary %" PRId64, m->L, m->C,
         m->F, m->V);
    if (m->max_position > 0) line(out, "positions", "trained for up to %" PRId64, m->max_position);
    if (l->linear)
        linear_lines(out, l);
    else
        line(out, "attention", "%" PRId64 " query heads, %" PRId64 " key heads, %" PRId64 " wide, scale %.6g; %s; %s",
             s->Hq, s->Hk, s->D, s->scale,
             l->q_bias.tensor   ? l->o_bias.tensor ? "biases on q, k, v, o" : "biases on q, k, v"
             : l->o_bias.tensor ? "bias on o"
                                : "no biases",
             l->q_norm.tensor ? "QK-norm per head before RoPE" : "no QK-norm");
    int64_t softmax = 0;
    for (int64_t i = 0; i < m->L; i++) softmax += m->shapes[i].kind == AG_LAYER_SOFTMAX;
    if (softmax > 0 && softmax < m->L)
        line(out, "", "that is layer 0; %" PRId64 " of %" PRId64 " layers are softmax attention, the others linear",
             softmax, m->L);
    head_map(out, s);
    rope(out, &m->rope);
    windows(out, m);
    line(out, "norm", "RMS, eps %.6g; MLP: SwiGLU%s", m->norm_eps, l->gate_bias.tensor ? " with biases" : "");
    line(out, "output head", m->tied ? "tied to the embedding" : "weights of its own");
}

static void tokenizer_lines(struct ag_buf *out, const struct info *info) {
    if (!info->tokenizer) {
        line(out, "tokenizer", "none usable: %s", info->tokenizer_error.text);
        return;
    }
    const struct tokenizer_info *t = tokenizer_info(info->tokenizer);
    char bos[64] = "adds no BOS", eos[32] = "";
    if (t->adds_bos) snprintf(bos, sizeof bos, "adds BOS %d", (int)t->bos);
    if (t->adds_eos) snprintf(eos, sizeof eos, ", EOS %d", (int)t->eos);
    line(out, "tokenizer",
         "%s, pattern %s, from %s: %" PRId64 " tokens (%" PRId64 " added), %" PRId64 " merges; %s%s%s", t->kind,
         t->pattern, t->source, t->vocabulary, t->added, t->merges, bos, eos, t->nfc ? "; NFC" : "");
    line(out, "", "SHA-256 %s", t->sha256);
}

static void plan_lines(struct ag_buf *out, const struct info *info) {
    char a[32], b[32], c[32], d[32], e[32], f[32];
    const struct forward_plan *p = &info->plan;
    if (!info->planned) {
        line(out, "memory plan", "%s", info->plan_error.text);
        return;
    }
    line(out, "memory plan",
         "%" PRId64 " tokens on %s in f32: peak %s = weights %s (a layer at a time) + hidden states %s + scratch %s",
         info->tokens, info->backend, info_size(a, (double)p->peak_bytes), info_size(b, (double)p->weights_bytes),
         info_size(c, (double)p->hidden_bytes), info_size(d, (double)p->scratch_bytes));
    line(out, "", "%.4g GFLOP; a dump of all keys and queries takes %s a token and tap, %s in all",
         (double)p->flops / 1e9, info_size(e, (double)info_dump_bytes(info->model)),
         info_size(f, (double)info_dump_bytes(info->model) * (double)info->tokens));
    if (info->model->max_position > 0 && info->tokens > info->model->max_position) {
        line(out, "", "that is longer than the %" PRId64 " positions it was trained for", info->model->max_position);
    }
}

/* ": 210 Q4_1, 61 F32, ..." */
static void count_types(char text[400], const struct ckpt *ckpt) {
    struct {
        const char *type;
        int64_t n;
    } kinds[64];
    int count = 0;
    size_t used = 0;
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        int k = 0;
        while (k < count && strcmp(kinds[k].type, ckpt->tensors[i].type) != 0) k++;
        if (k == count && count < 64) kinds[count++].type = ckpt->tensors[i].type, kinds[k].n = 0;
        if (k < count) kinds[k].n++;
    }
    *text = 0;
    for (int k = 0; k < count && used < 360; k++) {
        used +=
            (size_t)snprintf(text + used, 400 - used, "%s%" PRId64 " %s", k ? ", " : ": ", kinds[k].n, kinds[k].type);
    }
}

static enum ag_status tensor_lines(struct ag_buf *out, const struct info *info, bool all, struct ag_error *err) {
    enum ag_status status;
    struct info_group *groups;
    int64_t n;
    char shape[128], size[32], kinds[400];
    int width = 20;
    AG_TRY(info_groups(&groups, &n, info, err));
    count_types(kinds, info->ckpt);
    line(out, "tensors", "%" PRId64 "%s%s", info->ckpt->n_tensors, kinds, all ? "" : " (N: the layer; -v lists each)");
    for (int64_t i = 0; i < n; i++) {
        int length = (int)strlen(groups[i].pattern);
        if (length > width && length < 70) width = length;
    }
    if (all) {
        for (int64_t i = 0; i < info->ckpt->n_tensors; i++) {
            const struct ckpt_tensor *t = &info->ckpt->tensors[i];
            shape_text(shape, t);
            AG_TRY(ag_buf_printf(out, err, "  %-*s  %-7s %-18s %s\n", width + 4, t->name, t->type, shape,
                                 info_size(size, (double)t->bytes)));
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            shape_text(shape, groups[i].first);
            AG_TRY(ag_buf_printf(out, err, "%5" PRId64 " x %-*s  %-7s %-18s %s\n", groups[i].count, width,
                                 groups[i].pattern, groups[i].first->type, shape,
                                 info_size(size, (double)groups[i].bytes)));
        }
    }
    return AG_OK;
fail:
    return status;
}

enum ag_status info_text(struct ag_buf *out, const struct info *info, bool all, struct ag_error *err) {
    const struct ckpt *ckpt = info->ckpt;
    char size[32], version[64] = "safetensors";
    if (ckpt->format == CKPT_GGUF) {
        snprintf(version, sizeof version, "GGUF version %d%s%s", ckpt->gguf_version, ckpt->file_type ? ", " : "",
                 ckpt->file_type ? ckpt->file_type : "");
    }
    line(out, "path", "%s", info->path);
    line(out, "format", "%s, %s in %d file%s", version, info_size(size, (double)info_bytes(ckpt)), ckpt->n_files,
         ckpt->n_files == 1 ? "" : "s");
    if (info->sha256[0]) {
        line(out, "SHA-256", "%s%s", info->sha256, ckpt->n_files > 1 ? " (of the list of the files' sums)" : "");
    }
    if (info->model) {
        model_lines(out, info);
    } else {
        line(out, "model", "none that this build can run: %s", info->model_error.text);
    }
    tokenizer_lines(out, info);
    if (info->model && info->model->chat_template_source) {
        line(out, "chat template", "there is one (%s); it is not evaluated: see attgeo prompts --template",
             info->model->chat_template_source);
    }
    if (info->model) plan_lines(out, info);
    for (int i = 0; info->model && i < info->model->n_warnings; i++) line(out, "note", "%s", info->model->warnings[i]);
    return tensor_lines(out, info, all, err);
}
