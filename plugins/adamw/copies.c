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

#include <ctitan/lib/ops.h>
#include <ctitan/plugin.h>

#include "adamw.h"

#define WHY "written by adamw, not cast anew in each step"

/* ---- the ops ---- */

const struct ct_op_type adamw_copies = {
    .size = sizeof(struct ct_op_type),
    .name = "adamw.copies",
    .summary = "as adamw; also writes copies of the updated parameters in other dtypes",
    .signature = "lr[] d, step[] d, clip[] f, *(!p[.] F, g[.] F, !m[.] F, !v[.] F, ?!copy[.] F)",
    .samples =
        "square[] square[] factor[] real[2,4] real[2,4] real[2,4] positive[2,4] real[2,4];"
        "weight_decay=0.5 lr_factor=0.25: square[] square[] factor[] real[2,4] real[2,4] real[2,4] "
        "positive[2,4] real[2,4]",
    .attrs = adamw_attrs,
    .attrs_size = sizeof(struct adamw_hyper),
    .reference = adamw_copies_reference,
};

/* ---- the transform ---- */

/* The use of a parameter by the op of adamw that alone updates it after init, or NULL. */
static const struct ct_use *update_of(const struct ct_value *param)
{
    const struct ct_use *update = NULL;

    ct_for_each_use (use, param) {
        if (use->op->section->part == CT_PART_INIT || !ct_op_mutates(use->op, use->index))
            continue;
        if (update || (use->op->type != &adamw_type && use->op->type != &adamw_copies))
            return NULL;
        update = use;
    }
    return update;
}

/* Whether the op that updates a parameter writes no copy of it yet. */
static bool has_room(const struct ct_use *update)
{
    return update->op->type == &adamw_type || !update->op->in[update->index + ADAMW_GROUP];
}

static void become_copies(struct ct_graph *graph, struct ct_op *adamw)
{
    int groups = (adamw->ins - ADAMW_FIRST) / ADAMW_GROUP;
    int ins = ADAMW_FIRST + groups * ADAMW_COPIES_GROUP;
    struct ct_value **in = ct_arena_array(graph->arena, struct ct_value *, ins);

    memcpy(in, adamw->in, sizeof(*in) * ADAMW_FIRST);
    for (int i = 0; i < groups; i++)
        memcpy(in + ADAMW_FIRST + i * ADAMW_COPIES_GROUP, adamw->in + ADAMW_FIRST + i * ADAMW_GROUP,
               sizeof(*in) * ADAMW_GROUP);
    ct_op_become(graph, adamw, &adamw_copies, in, ins, adamw->attrs);
}

struct copying {
    struct ct_graph *graph;
    struct ct_builder init;
};

/* A cast of a parameter, in the place of which adamw can write a copy. */
static bool is_cast(const struct ct_value *v)
{
    const struct ct_use *update = ct_is_parameter_cast(v) ? update_of(v->producer->in[0]) : NULL;

    return update && has_room(update);
}

static int keep(struct copying *c, struct ct_value *cast)
{
    struct ct_value *p = cast->producer->in[0];
    struct ct_value *copy =
        ct_cast_once(&c->init, cast, ct_arena_printf(c->graph->arena, "adamw.copy.%s", p->name));
    const struct ct_use *update;

    if (update_of(p)->op->type == &adamw_type)
        become_copies(c->graph, update_of(p)->op);
    update = update_of(p);
    ct_op_set_input(update->op, update->index + ADAMW_GROUP, copy);
    return c->init.status;
}

static int keep_all(struct copying *c, const struct ct_op *user)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < user->ins; i++)
        if (user->in[i] && is_cast(user->in[i]))
            rc = keep(c, user->in[i]);
    return rc;
}

int adamw_write_copies(struct ct_graph *graph)
{
    struct copying c = {graph, ct_init_builder(graph)};
    int rc = 0;

    c.init.why = WHY;
    if (!ct_device_runs(&adamw_copies, 0) || !ct_device_runs(&ct_op_cast_into, 0))
        return 0;
    ct_for_each_op_safe (op, graph)
        if (rc == 0)
            rc = keep_all(&c, op);
    return rc;
}
