/* base/arena.h: memory by lifetime. One arena for a model, one for a run, one for the scratch of a layer; nothing else
 * calls malloc. An arena grows by blocks, hands out 64-byte aligned pieces and frees all of them at once.
 * Not thread-safe: one arena belongs to one thread at a time (worker threads get pieces carved beforehand). */
#ifndef AG_BASE_ARENA_H
#define AG_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ag_arena;

/* A new, empty arena; name appears in out-of-memory messages (kept by pointer: use a literal). NULL when out of memory. */
struct ag_arena *ag_arena_new(const char *name);
/* Frees the arena and all it handed out; NULL is allowed. */
void ag_arena_free(struct ag_arena *arena);
/* Forgets all pieces but keeps the largest block for reuse. */
void ag_arena_reset(struct ag_arena *arena);

/* count elements of size bytes each, uninitialised (ag_arena_zeros: zero), 64-byte aligned; a zero-sized request gives a
 * valid pointer. NULL, with err set, on overflow of count * size or when out of memory. */
void *ag_arena_alloc(struct ag_arena *arena, int64_t count, size_t size, struct ag_error *err);
void *ag_arena_zeros(struct ag_arena *arena, int64_t count, size_t size, struct ag_error *err);
/* A NUL-terminated copy of n bytes of text. */
char *ag_arena_text(struct ag_arena *arena, const char *text, size_t n, struct ag_error *err);

/* Stack discipline for scratch: release everything allocated after the mark. */
struct ag_mark {
    void *block;
    size_t used;
};
struct ag_mark ag_arena_mark(const struct ag_arena *arena);
void ag_arena_release(struct ag_arena *arena, struct ag_mark mark);

/* Bytes handed out now, and the most there ever were. */
size_t ag_arena_used(const struct ag_arena *arena);
size_t ag_arena_peak(const struct ag_arena *arena);

/* Test hook: the n-th allocation from now on fails, in any arena; negative: never. */
void ag_arena_fail_after(int64_t n);

/* a * b and a + b of non-negative sizes; false on overflow, *out then untouched. */
bool ag_mul(int64_t a, int64_t b, int64_t *out);
bool ag_add(int64_t a, int64_t b, int64_t *out);

#define AG_NEW(arena, type, count, err) ((type *)ag_arena_alloc((arena), (count), sizeof(type), (err)))
#define AG_ZEROS(arena, type, count, err) ((type *)ag_arena_zeros((arena), (count), sizeof(type), (err)))

/* A byte string that grows (text being built, lists of unknown length). Lives in malloc'ed memory of its own:
 * ag_buf_free it. Zero-initialise before use. */
struct ag_buf {
    char *data; /* always NUL-terminated once anything was added */
    size_t size, capacity;
};
enum ag_status ag_buf_add(struct ag_buf *buf, const void *data, size_t n, struct ag_error *err);
enum ag_status ag_buf_printf(struct ag_buf *buf, struct ag_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ag_buf_free(struct ag_buf *buf);

#ifdef __cplusplus
}
#endif
#endif
