/* Fuzz target: any bytes as tokenizer.json, as a GGUF whose tokenizer is opened, as a prompt file, or as text. With
 * clang: clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. tests/fuzz_tokenizer.c base/(all).c
 * kernels/(all).c probe/(all but cmd_).c and the libraries (`make CUDA=0 info` lists them) The first byte chooses
 * which. tests/test_tokenizer_files.c drives the same function with mutations in every test run. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "probe/prompts.h"
#include "probe/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whatever the vocabulary, an encoding covers the text exactly, with ids that have bytes. */
static void fuzz_encode(const struct tokenizer *t, const char *text, size_t n) {
    for (int specials = 0; specials < 2; specials++) {
        struct token_list list = {0};
        struct ag_error err = AG_ERROR_INIT;
        bool twice;
        if (tokenizer_encode(&list, t, text, n, specials, &twice, &err) == AG_OK) {
            int64_t at = 0;
            for (int64_t i = 0; i < list.n; i++) {
                size_t bytes;
                if (list.data[i].begin != at || list.data[i].end < at ||
                    tokenizer_bytes(t, list.data[i].id, &bytes) == NULL)
                    abort();
                at = list.data[i].end;
            }
            if (at != (int64_t)n) abort();
        } else if (list.n != 0 || err.text[0] == '\0') {
            abort();
        }
        token_list_free(&list);
    }
}

static void fuzz_texts(struct tokenizer *t) {
    static const char *const texts[] = {"", "abc ab\nba'll 12", "\xc3\xa9 e\xcc\x81 <|x|>",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) fuzz_encode(t, texts[k], strlen(texts[k]));
    tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *trained[5];
    static const char *const names[] = {"gpt2", "smollm", "qwen2", "llama", "qwen35"};
    struct ag_error err = AG_ERROR_INIT;
    struct tokenizer *t;
    struct ckpt *ckpt;
    struct prompts *prompts;
    struct prompt_tokens *tokens;
    char path[256];
    if (size == 0) return 0;
    unsigned what = data[0] % 4;
    data++;
    size--;
    for (int k = 0; what >= 2 && k < 5 && trained[k] == NULL; k++) {
        snprintf(path, sizeof path, "tests/golden/tokenizers/%s.json", names[k]);
        if (tokenizer_open_path(&trained[k], path, &err) != AG_OK) abort();
    }
    if (what == 3) {
        for (int k = 0; k < 5; k++) fuzz_encode(trained[k], (const char *)data, size);
        return 0;
    }
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (what == 0) {
        if (tokenizer_open_path(&t, path, &err) == AG_OK) fuzz_texts(t);
    } else if (what == 1) {
        if (ckpt_open(&ckpt, path, &err) == AG_OK) {
            if (tokenizer_open(&t, ckpt, &err) == AG_OK) fuzz_texts(t);
            ckpt_close(ckpt);
        }
    } else if (prompts_open(&prompts, path, &err) == AG_OK) {
        for (int k = 0; k < 5; k++) {
            struct ag_error problem = AG_ERROR_INIT;
            if (prompts_encode(&tokens, prompts, trained[k], true, &problem) == AG_OK) {
                for (int64_t p = 0; p < tokens->tokens.P; p++)
                    if (prompt_queries(NULL, 0, &tokens->tokens, p) > tokens->tokens.T) abort();
                prompt_tokens_free(tokens);
            }
        }
        prompts_close(prompts);
    }
    close(fd);
    return 0;
}
