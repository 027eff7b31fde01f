/*
 * Pipelines of collectives in chunks: the gather of a chunk runs beside the products of the one
 * before, the scatter of a chunk beside the products of the next.
 *
 * A chunk is some rows of every rank's shard: whole sequences where a rank has several, else a part
 * of its shard of each sequence. So a chunk of the whole is a chunk from each rank, one behind the
 * other, and chunks of all values are parts of one dimension of a view:
 *
 *   sequences  [batch, tokens, k] -> [shards, batch / shards, tokens, k]
 *   tokens     [batch, tokens, k] -> [batch, shards, tokens / shards, k]
 */
#include <string.h>

#include "tp_async.h"

static int chunk_dim(const struct async_pipeline *p)
{
    return p->work->rows.sequences > 1 ? 1 : 2;
}

static int shard_dim(const struct async_pipeline *p)
{
    return p->work->rows.sequences > 1 ? 2 : 1;
}

static int64_t first_of(const struct async_pipeline *p, int chunk)
{
    const struct async_rows *rows = &p->work->rows;

    return (rows->sequences > 1 ? rows->sequences : rows->tokens) * chunk / p->work->chunks;
}

static struct ct_sharding divide(const struct async_pipeline *p, const struct ct_sharding *s)
{
    struct ct_sharding view = {.unreduced = s->unreduced, .reduction = s->reduction};
    const int to[3] = {0, shard_dim(p), 3};

    for (int d = 0; d < 3; d++) {
        view.count[to[d]] = s->count[d];
        memcpy(view.axis[to[d]], s->axis[d], sizeof(view.axis[0]));
    }
    return view;
}

static struct ct_value *take(struct async_pipeline *p, struct ct_value *v, int chunk)
{
    int64_t shards = p->work->rows.outer * p->work->rows.ranks, batch = p->work->rows.batch;
    int64_t by_sequences[4] = {batch, v->shape[0] / batch, v->shape[1], v->shape[2]};
    int64_t by_tokens[4] = {v->shape[0], shards, v->shape[1] / shards, v->shape[2]};
    struct ct_value *view = async_view(
        p, v, 4, p->work->rows.sequences > 1 ? by_sequences : by_tokens, divide(p, &v->sharding));
    int64_t from = first_of(p, chunk);
    struct ct_value *part;

    if (!view)
        return NULL;
    part = ct_narrow(&p->b, async_named(p, view, "chunk", chunk), view, chunk_dim(p), from,
                     first_of(p, chunk + 1) - from);
    if (part)
        part->sharding = view->sharding;
    return part;
}

static struct async_pipeline begin(const struct async_work *work, struct ct_op *before,
                                   const char *what)
{
    struct async_pipeline p = {
        .work = work, .b = ct_builder_before(work->graph, before), .take = take, .divide = divide};

    p.b.why = ct_arena_printf(work->graph->arena, "tp_async: %s in %d chunks, beside products",
                              what, work->chunks);
    return p;
}

/* The chunks of a value, put together. */
static void deliver(struct async_pipeline *p, struct ct_value *const *chunks, struct ct_value *old)
{
    struct ct_value *view =
        ct_concat(&p->b, async_named(p, old, "view", -1), chunks, p->work->chunks, chunk_dim(p));

    if (!view)
        return;
    view->sharding = divide(p, &old->sharding);
    async_deliver(p, view, old);
}

/* A collective of shards, or into shards, that runs beside compute. */
static struct ct_value *collective(struct async_pipeline *p, struct ct_value *chunk, int number)
{
    const struct ct_op *like = p->work->collective;
    struct ct_collective_attrs attrs = *(const struct ct_collective_attrs *)like->attrs;
    struct ct_op *op;

    attrs.dim = shard_dim(p);
    op = chunk ? ct_emit_type(&p->b, like->type, async_named(p, like->out[0], "chunk", number),
                              &chunk, 1, &attrs)
               : NULL;
    if (!op)
        return NULL;
    op->stream = async_stream();
    op->out[0]->sharding = divide(p, &like->out[0]->sharding);
    return op->out[0];
}

/* ---- all_gather, products ---- */

static void gather(struct async_pipeline *p, int chunk, struct ct_value **gathered)
{
    if (chunk < p->work->chunks)
        gathered[chunk] = collective(p, take(p, p->work->collective->in[0], chunk), chunk);
}

/* chunk[k][i][c]: chunk c of output i of product k. */
static void multiply(struct async_pipeline *p, struct ct_value *rows, int c,
                     struct ct_value ***const *chunk)
{
    for (int k = 0; rows && k < p->work->products; k++) {
        const struct ct_op *copy = async_product(p, p->work->product[k], rows, c);

        for (int i = 0; copy && i < copy->outs; i++)
            chunk[k][i][c] = copy->out[i];
    }
}

static struct ct_value ****make_room(struct async_pipeline *p)
{
    const struct async_work *work = p->work;
    struct ct_value ****chunk = ct_arena_array(&p->scratch, struct ct_value ***, work->products);

    for (int k = 0; k < work->products; k++) {
        chunk[k] = ct_arena_array(&p->scratch, struct ct_value **, work->product[k]->outs);
        for (int i = 0; i < work->product[k]->outs; i++)
            chunk[k][i] = ct_arena_array(&p->scratch, struct ct_value *, work->chunks);
    }
    return chunk;
}

/* The gather of the first chunk stands where that of the whole did, each other one in front of the
   products of the chunk before. */
int async_gather_in_chunks(const struct async_work *work)
{
    struct async_pipeline p = begin(work, work->collective, "gathered");
    struct ct_value *whole = work->collective->out[0];
    struct ct_value **gathered = ct_arena_array(&p.scratch, struct ct_value *, work->chunks);
    struct ct_value ****chunk = make_room(&p);

    gather(&p, 0, gathered);
    p.b.before = work->product[0];
    for (int c = 0; c < work->chunks; c++) {
        gather(&p, c + 1, gathered);
        multiply(&p, gathered[c], c, chunk);
    }
    for (int k = 0; k < work->products; k++)
        for (int i = 0; p.b.status == 0 && i < work->product[k]->outs; i++)
            deliver(&p, chunk[k][i], work->product[k]->out[i]);
    if (p.b.status == 0 && whole->use_count + whole->fetch_count > (uint32_t)work->products)
        deliver(&p, gathered, whole);
    return async_end_gather(&p);
}

/* ---- products, reduce_scatter ---- */

int async_scatter_in_chunks(const struct async_work *work)
{
    struct ct_value *sum = work->collective->in[0];
    struct ct_op *made = sum->producer;
    struct async_pipeline p = begin(work, made, "scattered");
    struct ct_value **scattered = ct_arena_array(&p.scratch, struct ct_value *, work->chunks);

    for (int c = 0; c < work->chunks; c++)
        scattered[c] = collective(&p, async_sum(&p, sum, c), c);
    if (p.b.status == 0)
        deliver(&p, scattered, work->collective->out[0]);
    return async_end_scatter(&p, made);
}
