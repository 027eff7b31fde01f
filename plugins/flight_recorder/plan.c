/*
 * A program as tables that a file can hold: fixed entries, and strings by their offset.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <ctitan/arena.h>
#include <ctitan/device/comm.h>
#include <ctitan/lib/ops.h>
#include <ctitan/recipe.h>

#include "flight.h"

static void *extend(struct flight_table *t, size_t bytes)
{
    if (t->used + bytes > t->room) {
        t->room = 2 * (t->used + bytes) + 4096;
        t->data = realloc(t->data, t->room);
        assert(t->data);
    }
    memset(t->data + t->used, 0, bytes);
    t->used += bytes;
    return t->data + t->used - bytes;
}

/* ---- strings ---- */

static size_t hash(const char *text)
{
    return (size_t)XXH3_64bits(text, strlen(text));
}

static void widen_index(struct flight_plan *p)
{
    size_t size = p->index_size ? 2 * p->index_size : 1024;
    uint32_t *index = calloc(size, sizeof(*index));

    assert(index);
    for (size_t i = 0; i < p->index_size; i++) {
        size_t at;

        if (!p->index[i])
            continue;
        for (at = hash(p->strings.data + p->index[i] - 1); index[at & (size - 1)]; at++)
            ;
        index[at & (size - 1)] = p->index[i];
    }
    free(p->index);
    p->index = index;
    p->index_size = size;
}

uint32_t flight_plan_string(struct flight_plan *p, const char *text)
{
    size_t at;
    uint32_t *slot;

    if (2 * p->string_count >= p->index_size)
        widen_index(p);
    for (at = hash(text);; at++) {
        slot = &p->index[at & (p->index_size - 1)];
        if (!*slot)
            break;
        if (!strcmp(p->strings.data + *slot - 1, text))
            return *slot - 1;
    }
    *slot = (uint32_t)p->strings.used + 1;
    p->string_count++;
    strcpy(extend(&p->strings, strlen(text) + 1), text);
    return *slot - 1;
}

/* ---- groups ---- */

int flight_plan_group(struct flight_plan *p, const struct ct_group *group)
{
    struct ct_flight_group *list = (struct ct_flight_group *)p->groups.data, *g;
    int count = (int)(p->groups.used / sizeof(*g));

    if (!group)
        return -1;
    for (int i = 0; i < count; i++)
        if (list[i].key == group)
            return i;
    g = extend(&p->groups, sizeof(*g));
    *g = (struct ct_flight_group){.key = group,
                                  .name = flight_plan_string(p, group->name),
                                  .instance = group->instance,
                                  .size = group->size,
                                  .ranks = (uint32_t)(p->ranks.used / sizeof(int32_t))};
    for (int i = 0; i < group->size; i++)
        *(int32_t *)extend(&p->ranks, sizeof(int32_t)) = group->ranks[i];
    return count;
}

/* ---- instructions ---- */

static int64_t bytes_of(const struct ct_tensor *t, int count)
{
    int64_t bytes = 0;

    for (int i = 0; i < count; i++)
        if (t[i].ndim >= 0)
            bytes += (int64_t)ct_tensor_bytes(&t[i]);
    return bytes;
}

static uint32_t sizes_of(struct flight_plan *p, const struct ct_launch *l)
{
    const struct ct_tensor *side[2] = {l->ins ? l->in : NULL, l->outs ? l->out : NULL};
    char text[256];
    size_t used = 0;

    *text = '\0';
    for (int i = 0; i < 2; i++) {
        char shape[96];
        struct ct_shape s;

        if (!side[i] || side[i]->ndim < 0)
            continue;
        s = ct_shape_of(side[i]->ndim, side[i]->shape);
        ct_shape_print(&s, shape, sizeof(shape));
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s[%s] %s", used ? " -> " : "",
                                 shape, ct_dtype_name(side[i]->dtype));
    }
    return flight_plan_string(p, text);
}

static enum ct_flight_work instruction_work(const struct ct_instruction *i)
{
    const struct ct_op_type *type = i->op->type;
    const struct ct_launch *l = &i->lowered->launch;

    if (type->flags & CT_OP_COLLECTIVE)
        return CT_FLIGHT_CALLS;
    if (type->flags & CT_OP_SPACES)
        return CT_FLIGHT_TRANSFERS;
    return type->flops && type->flops(i->op, l->in, l->out) > 0 ? CT_FLIGHT_PRODUCTS
                                                                : CT_FLIGHT_MEMORY;
}

static enum ct_flight_form form_of(const struct ct_op_type *type)
{
    if (type == &ct_op_send)
        return CT_FLIGHT_SEND;
    if (type == &ct_op_receive)
        return CT_FLIGHT_RECEIVE;
    if (type == &ct_op_all_to_all)
        return CT_FLIGHT_UNEVEN;
    return type == &ct_op_all_gather || type == &ct_op_reduce_scatter || type == &ct_op_all_reduce
               ? CT_FLIGHT_ALIKE
               : CT_FLIGHT_OTHER;
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

/* made_by: index of the instruction that records an event, by event. */
static void add(struct flight_plan *p, const struct ct_program *program,
                const struct ct_instruction *i, const int32_t *made_by)
{
    const struct ct_op *op = i->op;
    const struct ct_launch *l = &i->lowered->launch;
    int64_t in = bytes_of(l->in, l->ins), out = bytes_of(l->out, l->outs);
    const struct ct_value *value = op->outs ? op->out[0] : op->ins ? op->in[0] : NULL;
    struct ct_flight_instruction f = {
        .op = flight_plan_string(p, op->type->name),
        .value = flight_plan_string(p, value ? value->name : ""),
        .section = flight_plan_string(p, op->section->name),
        .region = flight_plan_string(p, or_empty(op->region)),
        .item =
            flight_plan_string(p, i->item < 0 ? "" : or_empty(program->order.item[i->item].name)),
        .why = flight_plan_string(p, or_empty(op->why)),
        .sizes = sizes_of(p, l),
        .dtype = flight_plan_string(p, value ? ct_dtype_name(value->dtype) : ""),
        .microbatch = i->microbatch,
        .stream = i->stream,
        .stream_name = flight_plan_string(p, ct_stream_name(i->stream)),
        .work = (int32_t)instruction_work(i),
        .form = (int32_t)form_of(op->type),
        .group = flight_plan_group(p, i->lowered->group),
        .waits = (uint32_t)(p->waits.used / sizeof(int32_t)),
        .bytes = in > out ? in : out};

    for (const int32_t *w = i->waits; w && *w >= 0; w++) {
        *(int32_t *)extend(&p->waits, sizeof(int32_t)) = made_by[*w];
        f.wait_count++;
    }
    memcpy(extend(&p->instructions, sizeof(f)), &f, sizeof(f));
}

static void add_list(struct flight_plan *p, const struct ct_program *program,
                     const struct ct_instruction *list, size_t count, int64_t first)
{
    int32_t *made_by = calloc((size_t)program->events + 1, sizeof(*made_by));

    assert(made_by);
    for (size_t i = 0; i < count; i++)
        if (list[i].signal >= 0)
            made_by[list[i].signal] = (int32_t)(first + (int64_t)i);
    for (size_t i = 0; i < count; i++)
        add(p, program, &list[i], made_by);
    free(made_by);
}

void flight_plan_add(struct flight_plan *p, int which, const struct ct_program *program)
{
    p->program[which] = (struct ct_flight_program){
        p->instructions.used, (int64_t)program->init_count, (int64_t)program->step_count};
    add_list(p, program, program->init, program->init_count, -(int64_t)program->init_count);
    add_list(p, program, program->step, program->step_count, 0);
}

void flight_plan_recipe(struct flight_plan *p)
{
    struct ct_arena scratch = {0};
    char *text = ct_recipe_setup(&scratch);

    assert(text);
    strcpy(extend(&p->recipe, strlen(text) + 1), text);
    free(text);
    ct_arena_finish(&scratch);
}

void flight_plan_finish(struct flight_plan *p)
{
    free(p->instructions.data);
    free(p->waits.data);
    free(p->groups.data);
    free(p->ranks.data);
    free(p->strings.data);
    free(p->recipe.data);
    free(p->index);
    *p = (struct flight_plan){0};
}
