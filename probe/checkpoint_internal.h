/* probe/checkpoint_internal.h: what checkpoint.c, safetensors.c and gguf.c share. */
#ifndef AG_PROBE_CHECKPOINT_INTERNAL_H
#define AG_PROBE_CHECKPOINT_INTERNAL_H

#include "probe/checkpoint.h"

/* Read the header of ckpt->files[file] and append its tensors to list, an array of struct ckpt_tensor. */
enum ag_status safetensors_read(struct ckpt *ckpt, int file, struct ag_buf *list, struct ag_error *err);
/* Likewise for ckpt->files[0]; also fills meta, n_meta, gguf_version and file_type. */
enum ag_status gguf_read(struct ckpt *ckpt, struct ag_buf *list, struct ag_error *err);

/* A name from a file that may stand in a message and in a C string: valid UTF-8 without control characters. */
bool ckpt_name_valid(const char *text, size_t n);
bool ckpt_utf8_valid(const char *text, size_t n);

#endif
