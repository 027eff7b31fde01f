/*
 * Guards are bytes that are compared afterwards, as are those of a tensor that are no elements.
 * Each block has other ones, or a kernel that copies too much would copy guards onto guards.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define NAN_BYTE 255
#define GUARD_BYTE                                                                                 \
    254 /* in floating dtypes a large number: reading it shows, too; of the first block */
#define GUARD_BYTES 8 /* the others have lower ones */

void memory_blank(char *data, size_t bytes)
{
    memset(data, NAN_BYTE, bytes);
}

char *memory_behind(const struct guarded *g)
{
    return g->data + (g->apart ? 0 : g->bytes);
}

/* Guards around so many bytes, which are left as they are. */
static struct guarded *add(struct memory *m, size_t bytes, const char *name, int index)
{
    size_t all = GUARD + bytes + GUARD;
    char *begin = ct_arena_alloc(m->arena, all + 64);
    int byte = GUARD_BYTE - m->count % GUARD_BYTES;
    struct guarded *g;

    begin += 64 - (uintptr_t)begin % 64;
    memset(begin, byte, GUARD);
    memset(begin + GUARD + bytes, byte, GUARD);
    m->block = ct_arena_grow(m->arena, m->block, &m->room, (size_t)m->count + 1, sizeof(*g));
    g = &m->block[m->count++];
    *g = (struct guarded){.data = begin + GUARD, .bytes = bytes, .guard = (unsigned char)byte};
    snprintf(g->name, sizeof(g->name), index < 0 ? "%s" : "%s %d", name, index);
    return g;
}

char *memory_add(struct memory *m, size_t bytes, const struct ct_tensor *tensor, const char *name,
                 int index)
{
    struct guarded *g = add(m, bytes, name, index);

    g->tensor = tensor;
    memset(g->data, tensor ? g->guard : NAN_BYTE, bytes);
    return g->data;
}

char *memory_add_apart(struct memory *m, size_t bytes, const char *name)
{
    struct guarded *g = add(m, 0, name, -1);

    g->bytes = bytes;
    g->apart = true;
    return g->data;
}

static bool changed(unsigned char guard, const char *from, const char *to, const char *data,
                    int64_t *at)
{
    const char *p = from;

    if (p == to || (*(const unsigned char *)p == guard &&
                    memcmp(p, p + 1, (size_t)(to - p) - 1) == 0)) /* each byte is the one before */
        return false;
    for (; p < to; p++)
        if (*(const unsigned char *)p != guard) {
            *at = p - data;
            return true;
        }
    return false;
}

/* Between the rows of a tensor, whose last stride is 1. */
static bool changed_between(const struct guarded *g, int64_t *at)
{
    const struct ct_tensor *t = g->tensor;
    int64_t columns = t->ndim ? t->shape[t->ndim - 1] : 1;
    size_t row = (size_t)columns * ct_dtype_size(t->dtype);
    struct ct_arena scratch = {0};
    char *copy = ct_arena_alloc(&scratch, g->bytes + 1);
    bool found;

    memcpy(copy, g->data, g->bytes);
    for (int64_t r = 0, n = ct_tensor_count(t) / columns; r < n; r++) {
        int64_t offset = 0, rest = r;

        for (int d = t->ndim - 2; d >= 0; rest /= t->shape[d--])
            offset += rest % t->shape[d] * t->stride[d];
        memset(copy + offset * (int64_t)ct_dtype_size(t->dtype), g->guard, row);
    }
    found = changed(g->guard, copy, copy + g->bytes, copy, at);
    ct_arena_finish(&scratch);
    return found;
}

const struct guarded *memory_stray(const struct memory *m, int64_t *at)
{
    for (const struct guarded *g = m->block; g < m->block + m->count; g++) {
        const char *behind = memory_behind(g);
        bool gaps = g->tensor && !ct_tensor_is_dense(g->tensor);

        if (changed(g->guard, g->data - GUARD, g->data, g->data, at) ||
            (gaps && changed_between(g, at)) ||
            changed(g->guard, behind, behind + GUARD, behind - g->bytes, at))
            return g;
    }
    return NULL;
}
