/*
 * The work of a pipeline: a gather with the products that take its rows, or a scatter with those
 * that it sums.
 */
#include "tp_async.h"

/* ---- rows ---- */

static int64_t shards_of(const struct ct_graph *graph, const struct ct_sharding *s, int dim)
{
    int64_t shards = 1;

    for (int i = 0; i < s->count[dim]; i++)
        shards *= graph->mesh.axis[s->axis[dim][i]].size;
    return shards;
}

/* How the rows of a shard are laid out; NULL, or why no pipeline can exchange them. */
static const char *find_rows(struct async_work *work, const struct ct_value *shard)
{
    const struct ct_graph *graph = work->graph;
    struct async_rows *rows = &work->rows;
    int64_t shards = shards_of(graph, &shard->sharding, 1);

    if (shard->ndim != 3 || ct_op_int(work->collective, "dim") != 1)
        return "it is not split along the sequence";
    *rows = (struct async_rows){.batch = shards_of(graph, &shard->sharding, 0),
                                .ranks = graph->mesh.axis[async_axis(graph)].size};
    rows->sequences = shard->shape[0] / rows->batch;
    rows->outer = shards / rows->ranks;
    rows->tokens = shard->shape[1] % shards ? 0 : shard->shape[1] / shards;
    if (shard->shape[0] % rows->batch)
        return "the batch is split unevenly";
    if (!rows->tokens && rows->sequences == 1)
        return "the sequence is split unevenly";
    return rows->tokens * rows->sequences == 1 ? "a rank has only one row" : NULL;
}

/* ---- all_gather, products ---- */

static bool uses(const struct ct_op *op, const struct ct_value *v)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] == v)
            return true;
    return false;
}

/* Does op multiply the rows of v, and take nothing else of v? */
static bool multiplies(const struct ct_op *op, const struct ct_value *v)
{
    if (!(async_row_inputs(op) & 1) || op->in[0] != v || op->section != v->producer->section)
        return false;
    for (int i = 1; i < op->ins; i++)
        if (op->in[i] == v)
            return false;
    return true;
}

/* Can op run where `first` does? */
static bool can_run_at(const struct ct_op *op, const struct ct_op *first,
                       const struct async_places *places)
{
    for (int i = 1; i < op->ins; i++) {
        const struct ct_value *v = op->in[i];

        if (v && v->producer &&
            (v->id >= places->count || places->of[v->id] > places->of[first->out[0]->id]))
            return false;
    }
    return true;
}

/* Move the first product to where the gathered value is first used: its other users may be before
   all products. False: it cannot run there. */
static bool begin_at_first_use(struct async_work *work, struct async_places *places,
                               struct ct_op *product)
{
    const struct ct_value *whole = work->collective->out[0];
    struct ct_op *user = work->collective->next;

    while (user != product && !uses(user, whole))
        user = user->next;
    if (user == product)
        return true;
    if (user->section != product->section || user->outs == 0 || user->out[0]->id >= places->count ||
        !can_run_at(product, user, places))
        return false;
    ct_op_move(work->graph, product, user);
    for (int i = 0; i < product->outs; i++)
        places->of[product->out[i]->id] = places->of[user->out[0]->id] - 1;
    return true;
}

/* NULL, or why there are none. */
static const char *find_products(struct async_work *work, struct async_places *places,
                                 struct ct_arena *scratch)
{
    const struct ct_value *whole = work->collective->out[0];
    struct ct_op *first = NULL;

    work->product = ct_arena_array(scratch, struct ct_op *, whole->use_count + 1);
    ct_for_each_use (use, whole)
        if (multiplies(use->op, whole) &&
            (!first || places->of[use->op->out[0]->id] < places->of[first->out[0]->id]))
            first = use->op;
    if (!first)
        return "no product takes it by rows";
    if (!begin_at_first_use(work, places, first))
        return "it is used before a product could be";
    work->product[work->products++] = first;
    ct_for_each_use (use, whole)
        if (use->op != first && multiplies(use->op, whole) && can_run_at(use->op, first, places))
            work->product[work->products++] = use->op;
    for (int k = 0; k < work->products; k++)
        work->flops += ct_op_flops(work->graph, work->product[k], 0);
    return NULL;
}

const char *async_find_gather(struct async_work *work, struct async_places *places,
                              struct ct_arena *scratch)
{
    const char *reason = find_rows(work, work->collective->in[0]);

    return reason ? reason : find_products(work, places, scratch);
}

/* ---- products, reduce_scatter ---- */

/* A sum of products, each used only here: they are added to the work; NULL, or why it is none. */
static const char *check_sum(const struct ct_value *v, const struct ct_op *user,
                             struct async_work *work)
{
    struct ct_op *op = v->producer;
    const char *reason = NULL;

    if (!op || op->section != user->section)
        return "what it sums is made in another section";
    if (ct_value_only_user(v) != user)
        return ct_arena_printf(work->graph->arena, "%%%s is used by others, too", v->name);
    if (async_row_inputs(op) && op->outs == 1) {
        work->product[0] = op;
        work->products++;
        work->flops += ct_op_flops(work->graph, op, 0);
    } else if (op->type == &ct_op_add) {
        for (int i = 0; !reason && i < 2; i++)
            reason = check_sum(op->in[i], op, work);
    } else {
        reason = ct_arena_printf(work->graph->arena, "%%%s is made by %s", v->name, op->type->name);
    }
    return reason;
}

const char *async_find_scatter(struct async_work *work, struct ct_arena *scratch)
{
    struct ct_op *op = work->collective;
    const char *reason = find_rows(work, op->out[0]);

    work->product = ct_arena_array(scratch, struct ct_op *, 1);
    return reason ? reason : check_sum(op->in[0], op, work);
}
