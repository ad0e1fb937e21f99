/* base/arena.c: blocks in a list, the newest first; each piece is 64-byte aligned. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64
#define BLOCK_BYTES (size_t)(256 * 1024)

struct block {
    struct block *older;
    size_t size, used; /* of data */
    unsigned char *data;
};
struct ag_arena {
    const char *name;
    struct block *newest;
    size_t used, peak;
};

static _Atomic int64_t fail_after = -1;

void ag_arena_fail_after(int64_t n) { atomic_store(&fail_after, n); }

/* True when the test hook says that this allocation is the one to fail. */
static bool must_fail(void) {
    int64_t left = atomic_load(&fail_after);
    if (left < 0) return false;
    atomic_store(&fail_after, left - 1);
    return left == 0;
}

struct ag_arena *ag_arena_new(const char *name) {
    struct ag_arena *arena = must_fail() ? NULL : calloc(1, sizeof *arena);
    if (arena != NULL) arena->name = name;
    return arena;
}

static void free_block(struct block *block) {
    free(block->data);
    free(block);
}

void ag_arena_free(struct ag_arena *arena) {
    if (arena == NULL) return;
    while (arena->newest != NULL) {
        struct block *older = arena->newest->older;
        free_block(arena->newest);
        arena->newest = older;
    }
    free(arena);
}

void ag_arena_reset(struct ag_arena *arena) {
    struct block *largest = arena->newest;
    for (struct block *b = arena->newest; b != NULL; b = b->older)
        if (b->size > largest->size) largest = b;
    for (struct block *b = arena->newest, *older; b != NULL; b = older) {
        older = b->older;
        if (b != largest) free_block(b);
    }
    if (largest != NULL) {
        largest->older = NULL;
        largest->used = 0;
    }
    arena->newest = largest;
    arena->used = 0;
}

void *ag_arena_alloc(struct ag_arena *arena, int64_t count, size_t size, struct ag_error *err) {
    int64_t bytes;
    if (count < 0 || size > INT64_MAX || !ag_mul(count, (int64_t)size, &bytes) || bytes > INT64_MAX - 2 * ALIGNMENT) {
        ag_fail(err, AG_E_MEMORY, "%s: a size of %lld x %zu bytes is out of range", arena->name, (long long)count,
                size);
        return NULL;
    }
    size_t need = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (need == 0) need = ALIGNMENT;
    struct block *block = arena->newest;
    if (must_fail()) goto out_of_memory;
    if (block == NULL || block->size - block->used < need) {
        size_t room = need > BLOCK_BYTES ? need : BLOCK_BYTES;
        block = malloc(sizeof *block);
        unsigned char *data = block == NULL ? NULL : aligned_alloc(ALIGNMENT, room);
        if (data == NULL) {
            free(block);
            goto out_of_memory;
        }
        *block = (struct block){arena->newest, room, 0, data};
        arena->newest = block;
    }
    void *piece = block->data + block->used;
    block->used += need;
    arena->used += need;
    if (arena->used > arena->peak) arena->peak = arena->used;
    return piece;
out_of_memory:
    ag_fail(err, AG_E_MEMORY, "out of memory: %s needs %zu more bytes and holds %zu", arena->name, need, arena->used);
    return NULL;
}

void *ag_arena_zeros(struct ag_arena *arena, int64_t count, size_t size, struct ag_error *err) {
    void *piece = ag_arena_alloc(arena, count, size, err);
    if (piece != NULL) memset(piece, 0, (size_t)count * size);
    return piece;
}

char *ag_arena_text(struct ag_arena *arena, const char *text, size_t n, struct ag_error *err) {
    char *copy = n < INT64_MAX ? ag_arena_alloc(arena, (int64_t)n + 1, 1, err) : NULL;
    if (copy == NULL) return NULL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

struct ag_mark ag_arena_mark(const struct ag_arena *arena) {
    return (struct ag_mark){arena->newest, arena->newest != NULL ? arena->newest->used : 0};
}

void ag_arena_release(struct ag_arena *arena, struct ag_mark mark) {
    while (arena->newest != NULL && arena->newest != mark.block) {
        struct block *older = arena->newest->older;
        arena->used -= arena->newest->used;
        free_block(arena->newest);
        arena->newest = older;
    }
    if (arena->newest != NULL) {
        arena->used -= arena->newest->used - mark.used;
        arena->newest->used = mark.used;
    }
}

size_t ag_arena_used(const struct ag_arena *arena) { return arena->used; }
size_t ag_arena_peak(const struct ag_arena *arena) { return arena->peak; }

bool ag_mul(int64_t a, int64_t b, int64_t *out) {
    int64_t product;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

bool ag_add(int64_t a, int64_t b, int64_t *out) {
    int64_t sum;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum)) return false;
    *out = sum;
    return true;
}

/* Room for n more bytes and the NUL. */
static enum ag_status reserve(struct ag_buf *buf, size_t n, struct ag_error *err) {
    if (n < buf->capacity - buf->size) return AG_OK;
    size_t capacity = buf->capacity < 128 ? 256 : buf->capacity;
    while (capacity - buf->size <= n && capacity <= SIZE_MAX / 2) capacity *= 2;
    char *data = capacity - buf->size <= n || must_fail() ? NULL : realloc(buf->data, capacity);
    if (data == NULL) return ag_fail(err, AG_E_MEMORY, "out of memory: a text of %zu bytes grows by %zu", buf->size, n);
    buf->data = data;
    buf->capacity = capacity;
    return AG_OK;
}

enum ag_status ag_buf_add(struct ag_buf *buf, const void *data, size_t n, struct ag_error *err) {
    enum ag_status status = reserve(buf, n, err);
    if (status != AG_OK) return status;
    if (n > 0) memcpy(buf->data + buf->size, data, n);
    buf->size += n;
    buf->data[buf->size] = '\0';
    return AG_OK;
}

enum ag_status ag_buf_printf(struct ag_buf *buf, struct ag_error *err, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    enum ag_status status =
        n < 0 ? ag_fail(err, AG_E_INTERNAL, "a text could not be formatted") : reserve(buf, (size_t)n, err);
    if (status == AG_OK) {
        vsnprintf(buf->data + buf->size, (size_t)n + 1, format, again);
        buf->size += (size_t)n;
    }
    va_end(again);
    return status;
}

void ag_buf_free(struct ag_buf *buf) {
    free(buf->data);
    *buf = (struct ag_buf){0};
}
