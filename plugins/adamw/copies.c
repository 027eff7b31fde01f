/*
 * Copies of parameters in the dtype of the forward pass, kept from step to step: where a step would
 * begin with casts of all parameters, AdamW writes what they would give, while it has the new
 * values in registers.
 *
 * A copy is a state that is not saved, since the init part makes it from its parameter, as it does
 * whenever the host has written parameters. Copies are made in the order in which the graph uses
 * them: the weights of one product then lie one after the other. What remains a cast: parameters
 * that another op updates in a step, that lie in host memory, or whose moments have 8 bits; and the
 * casts that a device has folded into something else. Copies are in bfloat16, of parameters in
 * float32.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/plugin.h>

#include "adamw.h"

#define WHY "written by adamw, not cast anew in each step"

/* ---- the ops ---- */

const struct ct_op_type adamw_copies = {
    .size = sizeof(struct ct_op_type),
    .name = "adamw.copies",
    .summary = "as adamw; also writes copies of the updated parameters in other dtypes",
    .signature = "lr[] d, step[] d, clip[] f, *(!p[.] F, g[.] F, !m[.] F, !v[.] F, ?!copy[.] F)",
    .samples = "square[] square[] factor[] real[2,4] real[2,4] real[2,4] positive[2,4] real[2,4]",
    .attrs = adamw_attrs,
    .attrs_size = sizeof(struct adamw_hyper),
    .reference = adamw_copies_reference,
};

static int copy_reference(const struct ct_launch *l)
{
    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        ct_tensor_store(&l->in[0], i, ct_tensor_load(&l->in[1], i));
    return 0;
}

const struct ct_op_type adamw_copy = {
    .size = sizeof(struct ct_op_type),
    .name = "adamw.copy",
    .summary = "copy = p, in its dtype",
    .signature = "!copy[.] F, p[.] F",
    .reference = copy_reference,
};

/* ---- the transform ---- */

struct copying {
    struct ct_graph *graph;
    struct ct_builder init;
    struct ct_value **copy; /* by id of the parameter */
    bool *updated;          /* by id of the parameter: by adamw alone, and not copied yet */
};

/* Has the run's device a kernel of this type? */
static bool has_kernel(const struct ct_op_type *type)
{
    const struct ct_offer *device = ct_offer_at(CT_DEVICE, 0);
    const struct ct_kernel *kernel;

    for (size_t i = 0; device && (kernel = ct_kernel_at(device->name, i)); i++)
        if (!strcmp(kernel->op, type->name))
            return true;
    return false;
}

bool adamw_can_write_copies(void)
{
    return has_kernel(&adamw_copies) && has_kernel(&adamw_copy);
}

static bool is_cast(const struct copying *c, const struct ct_value *v)
{
    const struct ct_op *op = v->producer;

    return op && op->type == &ct_op_cast && op->section->part == CT_PART_PRE &&
           c->updated[op->in[0]->id] && op->in[0]->dtype == CT_F32 && v->dtype == CT_BF16 &&
           ct_sharding_equal(&v->sharding, &op->in[0]->sharding);
}

static int keep(struct copying *c, struct ct_value *cast)
{
    struct ct_op *op = cast->producer;
    struct ct_value *p = op->in[0], *copy;

    copy = ct_graph_source(c->graph, CT_ROLE_STATE,
                           ct_arena_printf(c->graph->arena, "adamw.copy.%s", p->name), cast->dtype,
                           p->ndim, p->shape);
    copy->sharding = p->sharding;
    copy->holders = p->holders;
    copy->dtype_fixed = true;
    ct_value_replace(c->graph, cast, copy);
    if (c->init.before == op)
        c->init.before = op->next;
    ct_graph_remove(c->graph, op);
    ct_emit_type(&c->init, &adamw_copy, NULL, (struct ct_value *[]){copy, p}, 2, NULL);
    c->copy[p->id] = copy;
    c->updated[p->id] = false;
    return c->init.status;
}

static int keep_all(struct copying *c, const struct ct_op *user)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < user->ins; i++)
        if (user->in[i] && is_cast(c, user->in[i]))
            rc = keep(c, user->in[i]);
    return rc;
}

static void write_in(struct copying *c, struct ct_op *adamw)
{
    int groups = (adamw->ins - ADAMW_FIRST) / ADAMW_GROUP, each = ADAMW_GROUP + 1;
    struct ct_value **in =
        ct_arena_array(c->graph->arena, struct ct_value *, ADAMW_FIRST + groups * each);
    bool any = false;

    memcpy(in, adamw->in, sizeof(*in) * ADAMW_FIRST);
    for (int i = 0; i < groups; i++) {
        struct ct_value *const *from = adamw->in + ADAMW_FIRST + i * ADAMW_GROUP;
        struct ct_value **to = in + ADAMW_FIRST + i * each;

        memcpy(to, from, sizeof(*to) * ADAMW_GROUP);
        to[ADAMW_GROUP] = c->copy[from[0]->id];
        any |= to[ADAMW_GROUP] != NULL;
    }
    if (any)
        ct_op_become(c->graph, adamw, &adamw_copies, in, ADAMW_FIRST + groups * each, adamw->attrs);
}

/* After all that fill parameters. */
static struct ct_builder after_init(struct ct_graph *graph)
{
    struct ct_builder b = ct_init_builder(graph);

    ct_for_each_op (op, graph)
        if (op->section->part == CT_PART_INIT)
            b.before = op->next;
    b.why = WHY;
    return b;
}

static void find_updated(struct copying *c)
{
    ct_for_each_op (op, c->graph)
        for (int i = ADAMW_FIRST; op->type == &adamw_type && i < op->ins; i += ADAMW_GROUP)
            if (op->in[i]->role == CT_ROLE_PARAM)
                c->updated[op->in[i]->id] = true;
    ct_for_each_op (op, c->graph)
        for (int i = 0; op->type != &adamw_type && i < op->ins; i++)
            if (op->in[i] && op->section->part != CT_PART_INIT && ct_op_mutates(op, i))
                c->updated[op->in[i]->id] = false;
}

int adamw_write_copies(struct ct_graph *graph)
{
    struct ct_arena scratch = {0};
    struct copying c = {.graph = graph,
                        .init = after_init(graph),
                        .copy = ct_arena_array(&scratch, struct ct_value *, graph->value_count),
                        .updated = ct_arena_array(&scratch, bool, graph->value_count)};
    int rc = 0;

    find_updated(&c);
    ct_for_each_op_safe (op, graph)
        if (rc == 0)
            rc = keep_all(&c, op);
    ct_for_each_op (op, graph)
        if (rc == 0 && op->type == &adamw_type)
            write_in(&c, op);
    ct_arena_finish(&scratch);
    return rc;
}
