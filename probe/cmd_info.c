/* `attgeo info`: what a file is, before anything is computed with it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/commands.h"
#include "kernels/device.h"
#include "probe/info.h"

struct options {
    bool json, backends, no_sha256;
    int64_t tokens;
};
static const struct options defaults = {.tokens = 2048};
#define AT(field) offsetof(struct options, field)
static const struct ag_option options[] = {
    {"json", 0, AG_OPT_FLAG, AT(json), NULL, "The same for programs, with every tensor.", NULL, 0, 0},
    {"tokens", 0, AG_OPT_INT, AT(tokens), "N", "Length of the prompt that the memory plan is made for. Default 2048.",
     NULL, 1, 1e8},
    {"no-sha256", 0, AG_OPT_FLAG, AT(no_sha256), NULL, "Do not read the whole file for its SHA-256.", NULL, 0, 0},
    {"backends", 0, AG_OPT_FLAG, AT(backends), NULL,
     "What this build and this machine can compute with, a line each; needs no PATH.", NULL, 0, 0},
};

/* ---- backends ---- */

static enum ag_status describe_backends(struct ag_buf *out, bool json, struct ag_error *err) {
    enum ag_status status;
    struct kern_device devices[16];
    char reason[256] = "", size[32];
    int driver, runtime, n = kern_devices(devices, 16, &driver, &runtime, reason);
    const struct kern_ops *ops;
    struct ag_error missing = AG_ERROR_INIT;
    bool cuda = kern_backend(&ops, AG_BACKEND_CUDA, &missing) == AG_OK;
    if (json) {
        json_t *list = json_array();
        for (int i = 0; i < n && i < 16; i++) {
            json_array_append_new(list, json_pack("{s:o, s:i, s:i, s:I, s:I}", "name", info_json_text(devices[i].name),
                                                  "major", devices[i].major, "minor", devices[i].minor, "memory",
                                                  (json_int_t)devices[i].memory, "memory_free",
                                                  (json_int_t)devices[i].memory_free));
        }
        json_t *root =
            json_pack("{s:s, s:{s:b}, s:{s:b, s:I, s:s}, s:{s:b, s:b, s:o, s:s, s:i, s:i}}", "version", ag_version,
                      "ref", "usable", 1, "cpu", "usable", 1, "threads", (json_int_t)kern_threads(), "blas_core",
                      kern_blas_core(), "cuda", "usable", cuda, "built", AG_HAVE_CUDA, "devices", list, "reason",
                      n > 0 ? missing.text : reason, "driver", driver, "runtime", runtime);
        char *text = json_dumps(root, JSON_INDENT(1));
        status = text ? ag_buf_printf(out, err, "%s\n", text) : ag_fail(err, AG_E_MEMORY, "out of memory (JSON)");
        free(text);
        json_decref(root);
        return status;
    }
    AG_TRY(ag_buf_printf(out, err, "ref    usable: plain loops in double, one thread\n"));
    AG_TRY(ag_buf_printf(out, err, "cpu    usable: %" PRId64 " threads, OpenBLAS kernels %s\n", kern_threads(),
                         kern_blas_core()));
    if (n == 0) return ag_buf_printf(out, err, "cuda   not usable: %s\n", reason);
    for (int i = 0; i < n && i < 16; i++) {
        AG_TRY(ag_buf_printf(out, err, "cuda   %s: device %d, %s, compute capability %d.%d, %s%s%s\n",
                             cuda ? "usable" : "not usable", i, devices[i].name, devices[i].major, devices[i].minor,
                             info_size(size, (double)devices[i].memory), cuda ? "" : "; ", cuda ? "" : missing.text));
    }
    return AG_OK;
fail:
    return status;
}

/* ---- checkpoints ---- */

static enum ag_status make_plan(struct info *info, const struct kern_ops *ops, struct ag_error *err) {
    int64_t offsets[2] = {0, info->tokens};
    struct ag_tokens tokens = {.P = 1, .T = info->tokens, .offsets = offsets};
    tokens.id = AG_ZEROS(info->arena, int32_t, info->tokens, err);
    if (!tokens.id) return AG_E_MEMORY;
    struct forward_request request = {.model = info->model,
                                      .tokens = &tokens,
                                      .ops = ops,
                                      .taps = 1u << AG_TAP_ROPE,
                                      .keys = true,
                                      .queries = true,
                                      .logits = FORWARD_LOGITS_LAST};
    info->planned = forward_plan(&info->plan, &request, &info->plan_error) == AG_OK;
    return AG_OK;
}

static enum ag_status describe_checkpoint(struct ag_buf *out, struct ag_run *run, const char *path) {
    enum ag_status status;
    const struct options *o = run->options;
    struct ag_error *err = run->err;
    struct ckpt *ckpt = NULL;
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    struct info info = {.path = path, .tokens = o->tokens};
    const struct kern_ops *ops;
    info.arena = ag_arena_new("info");
    if (!info.arena) return ag_fail(err, AG_E_MEMORY, "out of memory (info)");
    AG_TRY(kern_backend(&ops, (enum ag_backend)run->common.backend, err));
    info.backend = ops->name;
    AG_TRY(ckpt_open(&ckpt, path, err));
    info.ckpt = ckpt;
    if (model_open(&model, ckpt, &info.model_error) == AG_OK) info.model = model;
    if (tokenizer_open(&tokenizer, ckpt, &info.tokenizer_error) == AG_OK) info.tokenizer = tokenizer;
    if (!o->no_sha256) AG_TRY(ckpt_sha256(info.sha256, ckpt, err));
    if (model) AG_TRY(make_plan(&info, ops, err));
    AG_TRY(o->json ? info_json(out, &info, err) : info_text(out, &info, run->common.verbose, err));
    /* described as far as it goes, and still a failure: a script must not take it for a model */
    if (!model) status = ag_fail(err, info.model_error.status, "%s", info.model_error.text);
fail:
    tokenizer_close(tokenizer);
    model_close(model);
    ckpt_close(ckpt);
    ag_arena_free(info.arena);
    return status;
}

/* ---- the command ---- */

static bool is_hdf5(const char *path) {
    struct ag_file file;
    char start[8];
    if (ag_path_kind(path) != AG_KIND_FILE || ag_file_open(&file, path, NULL) != AG_OK) return false;
    bool yes =
        file.size >= 8 && ag_file_read(&file, start, 0, 8, NULL) == AG_OK && !memcmp(start, "\x89HDF\r\n\x1a\n", 8);
    ag_file_close(&file);
    return yes;
}

static enum ag_status write_out(struct ag_run *run, const struct ag_buf *text) {
    enum ag_status status;
    struct ag_out file;
    if (!run->common.output) {
        fwrite(text->data, 1, text->size, run->out);
        return AG_OK;
    }
    AG_TRY(ag_out_begin(&file, run->common.output, run->common.force, run->err));
    fwrite(text->data, 1, text->size, file.stream); /* ag_out_commit sees an error of the stream */
    return ag_out_commit(&file, run->err);
fail:
    return status;
}

static enum ag_status run_info(struct ag_run *run) {
    enum ag_status status, written = AG_OK;
    const struct options *o = run->options;
    struct ag_buf text = {0};
    if (run->common.threads > 0) kern_set_threads(run->common.threads);
    if (o->backends) {
        if (run->n_arguments > 0)
            return ag_fail(run->err, AG_E_USAGE, "--backends describes this machine; no PATH is expected with it");
        status = describe_backends(&text, o->json, run->err);
    } else if (run->n_arguments != 1) {
        return ag_fail(run->err, AG_E_USAGE,
                       "a PATH is expected: a model, a dump or a results file; see attgeo info --help");
    } else if (is_hdf5(run->arguments[0])) {
        status = info_h5(&text, run->arguments[0], o->json, run->common.verbose, run->err);
    } else {
        status = describe_checkpoint(&text, run, run->arguments[0]);
    }
    if (text.size > 0) written = write_out(run, &text); /* also what is known of a model that is refused */
    ag_buf_free(&text);
    return status != AG_OK ? status : written;
}

const struct ag_command command_info = {
    .name = "info",
    .summary = "describe a model, a dump or a results file",
    .usage = "PATH",
    .description =
        "Prints what PATH is. A model (a .safetensors or .gguf file, or a Hugging Face folder): architecture, "
        "dimensions, RoPE, which "
        "query heads read which key head, tokenizer, tensors, SHA-256, and the memory that a prompt of --tokens would "
        "take. A dump or "
        "results file of attgeo: where it comes from and what it holds. -v lists every tensor or dataset.\n\n"
        "Everything that can be checked without reading weights is checked. A model that this build cannot run is "
        "described as far "
        "as its files go, the reason is given, and the exit status is 1. A chat template is never evaluated; that "
        "there is one is "
        "said.",
    .examples = "attgeo info data/sample/softmax\nattgeo info --json model.gguf\nattgeo info --backends",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .options_size = sizeof(struct options),
    .defaults = &defaults,
    .min_arguments = 0,
    .max_arguments = 1,
    .ignores = AG_IGNORES_SEED,
    .run = run_info,
};
