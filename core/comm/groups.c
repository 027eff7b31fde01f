/*
 * Groups of ranks that communicate. Each is made at its first use.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/text.h>

#include "comm/groups.h"

static struct ct_group *find(const struct ct_communicator_groups *known, const char *key)
{
    for (size_t i = 0; i < known->count; i++)
        if (!strcmp(known->item[i].key, key))
            return known->item[i].group;
    return NULL;
}

/* key is kept, not copied. */
static int make(const struct ct_communicator *c, const int64_t *ranks, int64_t count,
                const char *name, const char *key, struct ct_group **group)
{
    struct ct_communicator_groups *known = c->groups;
    double begin = ct_now();
    int rc = count > INT32_MAX ? ct_fail(CT_EINVAL, "a group of %lld ranks", (long long)count)
                               : c->ops->group(c->comm, ranks, (int)count, name, group);

    known->seconds += ct_now() - begin;
    if (rc < 0)
        return ct_context(rc, "group %s", name);
    for (size_t i = 0; i < known->count; i++)
        (*group)->instance += !strcmp(known->item[i].group->name, name);
    known->item = ct_arena_grow(known->arena, known->item, &known->room, known->count + 1,
                                sizeof(*known->item));
    known->item[known->count++] = (struct ct_known_group){key, *group};
    return 0;
}

/* The full names of axes. */
static char *axes_text(struct ct_arena *arena, const struct ct_mesh *mesh, ct_axes axes)
{
    size_t room = (size_t)ct_axes_print(mesh, axes, NULL, 0) + 1;
    char *text = ct_arena_array(arena, char, room);

    ct_axes_print(mesh, axes, text, room);
    return text;
}

int ct_communicator_group(const struct ct_communicator *c, const struct ct_mesh *mesh, int64_t rank,
                          ct_axes axes, int stream, struct ct_group **group)
{
    struct ct_arena scratch = {0};
    char *name = axes_text(&scratch, mesh, axes), *key;
    int64_t *ranks;
    int rc = 0;

    key = ct_arena_printf(&scratch, "stream %d: %s", stream, name);
    *group = find(c->groups, key);
    if (!*group) {
        ranks = ct_arena_array(&scratch, int64_t, ct_mesh_degree(mesh, axes));
        rc = make(c, ranks, ct_mesh_group(mesh, rank, axes, ranks), name,
                  ct_arena_strdup(c->groups->arena, key), group);
    }
    ct_arena_finish(&scratch);
    return rc;
}

int ct_communicator_ranks(const struct ct_communicator *c, const int64_t *ranks, int count,
                          const char *name, struct ct_group **group)
{
    struct ct_arena scratch = {0};
    char *key = ct_arena_array(&scratch, char, strlen(name) + (size_t)count * 21 + 1);
    size_t used = strlen(strcpy(key, name));
    int rc = 0;

    for (int i = 0; i < count; i++)
        used += (size_t)sprintf(key + used, ",%lld", (long long)ranks[i]);
    *group = find(c->groups, key);
    if (!*group)
        rc = make(c, ranks, count, name, ct_arena_strdup(c->groups->arena, key), group);
    ct_arena_finish(&scratch);
    return rc;
}

/* Two ranks along the graph's partition_axis, a sender and a receiver, and an op of theirs. */
struct pair {
    int64_t from, to;
    const struct ct_op *op;
};

static int by_ends(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;

    return x->from != y->from ? (x->from < y->from ? -1 : 1) : (x->to < y->to ? -1 : x->to > y->to);
}

static size_t find_pairs(const struct ct_graph *graph, struct ct_arena *scratch,
                         struct pair **pairs)
{
    size_t count = 0, room = 0;

    *pairs = NULL;
    ct_for_each_op (op, graph)
        if (op->type->flags & CT_OP_RENDEZVOUS) {
            *pairs = ct_arena_grow(scratch, *pairs, &room, count + 1, sizeof(**pairs));
            (*pairs)[count++] = (struct pair){ct_op_int(op, "from"), ct_op_int(op, "to"), op};
        }
    if (count)
        qsort(*pairs, count, sizeof(**pairs), by_ends);
    return count;
}

int ct_communicator_pair(const struct ct_communicator *c, const struct ct_mesh *mesh, int64_t rank,
                         ct_axes axes, int64_t from, int64_t to, struct ct_group **group)
{
    struct ct_arena scratch = {0};
    int64_t *ranks = ct_arena_array(&scratch, int64_t, ct_mesh_degree(mesh, axes));
    int64_t count = ct_mesh_group(mesh, rank, axes, ranks);
    const char *axis = axes_text(&scratch, mesh, axes);
    int rc;

    if (from < count && to < count)
        rc = ct_communicator_ranks(
            c, (int64_t[]){ranks[from], ranks[to]}, 2,
            ct_arena_printf(&scratch, "%s %lld to %lld", axis, (long long)from, (long long)to),
            group);
    else
        rc = ct_fail(CT_EINVAL, "from %lld to %lld of %lld ranks along %s", (long long)from,
                     (long long)to, (long long)count, axis);
    ct_arena_finish(&scratch);
    return rc;
}

/* "send of %x (layers.3)" */
static const char *op_text(const struct ct_op *op, char text[256])
{
    const struct ct_value *value = op->ins ? op->in[0] : op->out[0];

    snprintf(text, 256, "%s of %%%s (%s)", op->type->name, value->name,
             *op->region ? op->region : op->section->name);
    return text;
}

/* All ranks make groups in the same, sorted order, so they cannot deadlock. */
int ct_communicator_open(struct ct_communicator *c, const struct ct_graph *graph, int64_t rank,
                         struct ct_arena *arena)
{
    ct_axes axes = graph->partition_axis < 0 ? 0 : (ct_axes)1 << graph->partition_axis;
    struct ct_arena scratch = {0};
    struct ct_group *group;
    struct pair *pairs;
    char text[256];
    size_t count = find_pairs(graph, &scratch, &pairs);
    int rc = 0;

    if (!c->groups) {
        c->groups = ct_arena_new(arena, struct ct_communicator_groups);
        c->groups->arena = arena;
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = ct_communicator_pair(c, &graph->mesh, rank, axes, pairs[i].from, pairs[i].to, &group);
        if (rc < 0)
            ct_context(rc, "for %s", op_text(pairs[i].op, text));
    }
    ct_arena_finish(&scratch);
    return rc;
}
