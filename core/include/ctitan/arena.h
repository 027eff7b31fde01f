/*
 * Host memory with the lifetime of its arena: process, run, plan.
 *
 * Small objects (graphs, ops, names, programs) are never freed one by one; the arena is freed as a
 * whole. Allocation does not fail: an arena that cannot get memory ends the process, as a host that
 * cannot hold a graph cannot hold the model either. Not thread-safe: one arena, one thread.
 */
#ifndef CT_ARENA_H
#define CT_ARENA_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

struct ct_arena {
    struct ct_arena_block *head;
    size_t used, total; /* bytes in the head block; bytes in all of them */
};

/* Free all memory of the arena. `struct ct_arena a = {0};` is an empty one. */
CT_API void ct_arena_finish(struct ct_arena *arena);

/* size zeroed bytes, aligned for any object. */
CT_API void *ct_arena_alloc(struct ct_arena *arena, size_t size);
#define ct_arena_new(arena, type) ((type *)ct_arena_alloc((arena), sizeof(type)))
#define ct_arena_array(arena, type, n) ((type *)ct_arena_alloc((arena), sizeof(type) * (size_t)(n)))

/* Bytes of its blocks, without those at the end that nothing has taken yet. */
CT_API size_t ct_arena_taken(const struct ct_arena *arena);

/* A copy of text, which is not NULL. */
CT_API char *ct_arena_strdup(struct ct_arena *arena, const char *text);
/* The text that printf would print. */
CT_API char *ct_arena_printf(struct ct_arena *arena, const char *fmt, ...) CT_PRINTF(2, 3);
/* size bytes copied from data. */
CT_API void *ct_arena_copy(struct ct_arena *arena, const void *data, size_t size);

/*
 * Grow an array in an arena. Returns items with room for at least need elements, moved if it had to
 * grow, and updates *capacity.
 */
CT_API void *ct_arena_grow(struct ct_arena *arena, void *items, size_t *capacity, size_t need,
                           size_t item_size);

CT_END_DECLS

#endif
