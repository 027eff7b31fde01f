#include <string.h>

#include "ends.h"

void ends_add(struct ct_arena *arena, int32_t **ids, size_t *count, int32_t id)
{
    int32_t *more = ct_arena_array(arena, int32_t, *count + 1);

    if (id < 0)
        return;
    if (*count)
        memcpy(more, *ids, *count * sizeof(*more));
    more[*count] = id;
    ++*count;
    *ids = more;
}
