/* Fuzz target: any bytes as a checkpoint, opened as a model where that succeeds, every tensor read and dequantised.
 * tests/test_checkpoint.c drives the same function with a fixed seed in every test run. With clang, after `make CUDA=0`:
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -DAG_HAVE_CUDA=0 -I. tests/fuzz_checkpoint.c \
 *     probe/checkpoint.c probe/safetensors.c probe/gguf.c probe/model*.c build/obj/base/?*.o build/obj/kernels/?*.o \
 *     $(pkg-config --cflags --libs hdf5 gsl lapacke openblas jansson libcrypto) -lhdf5_hl -lm -lgomp -o build/fuzz
 *   build/fuzz -max_len=8000 CORPUS
 *
 * CORPUS: a folder with small valid files; a test run leaves some in build/test. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "probe/checkpoint.h"
#include "probe/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A configuration for the tensors of a safetensors file, so that the model is reached too. */
static const char fuzz_config[] = "{\"model_type\":\"llama\",\"hidden_size\":2,\"intermediate_size\":2,\"num_hidden_"
                                  "layers\":1,\"num_attention_heads\":6,"
                                  "\"num_key_value_heads\":2,\"head_dim\":2,\"vocab_size\":3}";

static void fuzz_read_all(const struct ckpt *ckpt) {
    struct ag_error err = AG_ERROR_INIT;
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct ckpt_tensor *t = &ckpt->tensors[i];
        if (t->bytes > 1 << 20 || t->elements > 1 << 20) abort(); /* the file is smaller: the checks are wrong */
        uint8_t *raw = malloc(t->bytes + 1);
        float *y = malloc(((size_t)t->elements + 1) * sizeof *y);
        int64_t rows = t->rank >= 2 ? t->shape[0] : 1;
        if (!raw || !y || ckpt_read_rows(ckpt, t, raw, 0, rows, &err) != AG_OK) abort();
        if (t->dtype >= 0) kern_dequant_cpu(y, raw, (enum kern_dtype)t->dtype, 1, t->elements);
        free(raw);
        free(y);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ag_error err = AG_ERROR_INIT;
    struct ckpt *ckpt;
    struct model *model;
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ckpt_open(&ckpt, path, &err) == AG_OK) {
        fuzz_read_all(ckpt);
        if (ckpt->format == CKPT_SAFETENSORS) {
            ckpt->config = json_loads(fuzz_config, 0, NULL);
            ckpt->folder = ".";
        }
        if (model_open(&model, ckpt, &err) == AG_OK) model_close(model);
        ckpt_close(ckpt);
    }
    close(fd);
    return 0;
}
