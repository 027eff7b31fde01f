#include <ctitan/app/verify.h>
#include <ctitan/error.h>

#include "steps.h"

/* The step as an op of a graph. */
static struct ct_value *emit_step(struct ct_builder *b, struct ct_value *v,
                                  const struct ct_step *step)
{
    struct ct_collective_attrs attrs = {
        .axes = step->axes, .dim = step->dim, .to = step->to, .reduction = step->reduction};

    v = ct_emit_type1(b, step->op, NULL, &v, 1, &attrs);
    if (v)
        v->sharding = step->after;
    return v;
}

int random_steps(struct ct_arena *arena, struct random *random, struct ct_graph **graph,
                 struct ct_value **x, struct ct_sharding *to, struct ct_steps *steps)
{
    struct ct_graph *g = *graph = ct_graph_create(arena, "steps");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    int rank = (int)random_below(random, 5), rc;
    int64_t shape[CT_MAX_DIMS];
    struct ct_value *v;

    random_mesh(random, &g->mesh);
    for (int d = 0; d < rank; d++)
        shape[d] = 1 + random_below(random, 7);
    v = *x = ct_graph_source(g, CT_ROLE_INPUT, "x", CT_F64, rank, shape);
    v->sharding = random_sharding(random, &g->mesh, rank, true);
    *to = random_sharding(random, &g->mesh, rank, true);
    to->unreduced &= v->sharding.unreduced;
    rc = ct_redistribute_steps(&g->mesh, rank, &v->sharding, to, steps);
    for (int i = 0; rc == 0 && v && i < steps->count; i++)
        v = emit_step(&b, v, &steps->step[i]);
    if (rc == 0)
        rc = b.status;
    return rc == 0 ? ct_graph_verify(g, NULL) : rc;
}

void world_of_steps(struct world *w, const struct ct_graph *graph, const struct ct_value *x,
                    struct random *random)
{
    struct ct_tensor whole;

    world_create(w, graph);
    whole = world_whole(w, x);
    for (int64_t i = 0; i < ct_tensor_count(&whole); i++)
        ct_tensor_store(&whole, i, random_normal(random));
    world_scatter(w, x, &whole, random);
}
