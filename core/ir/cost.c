/*
 * Costs of values and ops before lowering, from their shards alone, without a device.
 */
#include <ctitan/op.h>

static struct ct_tensor shard(const struct ct_graph *graph, const struct ct_value *v, int64_t rank)
{
    int64_t local[CT_MAX_DIMS];

    if (rank < 0)
        return ct_tensor_dense(NULL, v->dtype, v->ndim, v->shape);
    ct_sharding_local(&v->sharding, &graph->mesh, rank, v->ndim, v->shape, local, NULL);
    return ct_tensor_dense(NULL, v->dtype, v->ndim, local);
}

static double bytes_of(const struct ct_tensor *t, int count)
{
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += (double)ct_tensor_bytes(&t[i]);
    return sum;
}

double ct_op_sent(const struct ct_op *op, const struct ct_mesh *mesh, const struct ct_tensor *in,
                  const struct ct_tensor *out)
{
    const struct ct_collective_ops *ops = op->type->collective;

    if (!ops || !ops->sent)
        return 0;
    return ops->sent(bytes_of(in, op->ins), bytes_of(out, op->outs),
                     (double)ct_mesh_degree(mesh, ct_op_axes(op, "axes")));
}

size_t ct_value_bytes(const struct ct_graph *graph, const struct ct_value *value, int64_t rank)
{
    struct ct_tensor t = shard(graph, value, rank);

    if (value->opaque_bytes)
        return value->opaque_bytes;
    return ct_tensor_bytes(&t);
}

double ct_op_flops(const struct ct_graph *graph, const struct ct_op *op, int64_t rank)
{
    struct ct_arena scratch = {0};
    struct ct_tensor *in, *out;
    double flops;

    if (!op->type->flops)
        return 0;
    in = ct_arena_array(&scratch, struct ct_tensor, op->ins);
    out = ct_arena_array(&scratch, struct ct_tensor, op->outs);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            in[i] = shard(graph, op->in[i], rank);
    for (int i = 0; i < op->outs; i++)
        out[i] = shard(graph, op->out[i], rank);
    flops = op->type->flops(op, in, out);
    ct_arena_finish(&scratch);
    return flops;
}
