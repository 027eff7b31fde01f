/*
 * A list of zeroed blocks, filled from the front. An object that would waste most of a block gets
 * its own block behind the head, so the head keeps its free space.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/app/exhausted.h>
#include <ctitan/arena.h>

#define BLOCK ((size_t)64 << 10)
#define ALIGNMENT _Alignof(max_align_t)

struct ct_arena_block {
    struct ct_arena_block *next;
    size_t size;
    _Alignas(max_align_t) unsigned char data[];
};

static void (*exhausted)(size_t bytes);

void ct_arena_on_exhausted(void (*call)(size_t bytes))
{
    exhausted = call;
}

static _Noreturn void out_of_memory(size_t size)
{
    if (exhausted)
        exhausted(size);
    fprintf(stderr, "ctitan: out of memory: no %zu bytes for the host's own objects\n", size);
    abort();
}

static struct ct_arena_block *new_block(struct ct_arena *arena, size_t size)
{
    struct ct_arena_block *block;

    if (size > SIZE_MAX - sizeof(*block))
        out_of_memory(size);
    block = calloc(1, sizeof(*block) + size);
    if (!block)
        out_of_memory(size);
    block->size = size;
    arena->total += size;
    return block;
}

void ct_arena_finish(struct ct_arena *arena)
{
    for (struct ct_arena_block *block = arena->head, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    *arena = (struct ct_arena){0};
}

static void *alloc_alone(struct ct_arena *arena, size_t size)
{
    struct ct_arena_block *block = new_block(arena, size);

    if (arena->head) {
        block->next = arena->head->next;
        arena->head->next = block;
    } else {
        arena->head = block;
        arena->used = size;
    }
    return block->data;
}

void *ct_arena_alloc(struct ct_arena *arena, size_t size)
{
    void *data;

    if (size > BLOCK / 4)
        return alloc_alone(arena, size);
    size = (size + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    if (!arena->head || arena->head->size - arena->used < size) {
        struct ct_arena_block *block = new_block(arena, BLOCK);

        block->next = arena->head;
        arena->head = block;
        arena->used = 0;
    }
    data = arena->head->data + arena->used;
    arena->used += size;
    return data;
}

size_t ct_arena_taken(const struct ct_arena *arena)
{
    return arena->head ? arena->total - (arena->head->size - arena->used) : 0;
}

void *ct_arena_copy(struct ct_arena *arena, const void *data, size_t size)
{
    void *copy = ct_arena_alloc(arena, size);

    if (size)
        memcpy(copy, data, size);
    return copy;
}

char *ct_arena_strdup(struct ct_arena *arena, const char *text)
{
    return ct_arena_copy(arena, text, strlen(text) + 1);
}

char *ct_arena_printf(struct ct_arena *arena, const char *fmt, ...)
{
    va_list args;
    char *text;
    int length;

    va_start(args, fmt);
    length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    text = ct_arena_alloc(arena, length < 0 ? 1 : (size_t)length + 1);
    if (length > 0) {
        va_start(args, fmt);
        vsnprintf(text, (size_t)length + 1, fmt, args);
        va_end(args);
    }
    return text;
}

void *ct_arena_grow(struct ct_arena *arena, void *items, size_t *capacity, size_t need,
                    size_t item_size)
{
    size_t room = *capacity ? *capacity : 8, size;
    void *grown;

    if (need <= *capacity)
        return items;
    while (room < need && room <= SIZE_MAX / 2)
        room *= 2;
    if (room < need || __builtin_mul_overflow(room, item_size, &size))
        size = SIZE_MAX; /* which nothing has */
    grown = ct_arena_alloc(arena, size);
    if (*capacity)
        memcpy(grown, items, *capacity * item_size);
    *capacity = room;
    return grown;
}
