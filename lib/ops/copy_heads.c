/*
 * Copies of heads: where more ranks than there are key/value heads share the heads of queries, each
 * has a copy of the head that its queries use. Ranks of `axes` make the copies that they hold, from
 * whole heads; gradients of a head's copies add up, within a rank and over ranks.
 */
#include <string.h>

#include <ctitan/error.h>

#include "list.h"

#define AXES(T) CT_OPT_AXES(T, axes, "axes", "Axes that split the copies")

static int head_dim(const struct ct_value *x)
{
    return x->ndim - 2;
}

static int infer(struct ct_op *op, int64_t heads, int64_t groups, int64_t result)
{
    if (groups < 1 || heads % groups)
        return ct_fail(CT_EINVAL, "%lld heads cannot be copies of %lld", (long long)heads,
                       (long long)groups);
    op->out[0]->shape[head_dim(op->in[0])] = result;
    return 0;
}

static int64_t size_at(const struct ct_value *x)
{
    return x->shape[head_dim(x)];
}

/* The axes on a dimension that split its `groups` evenly; the rest are dropped, and returned. */
static ct_axes keep_even(struct ct_sharding *s, const struct ct_mesh *mesh, int dim, int64_t groups)
{
    ct_axes rest = 0;
    int64_t shards = 1;
    int keep = 0;

    while (keep < s->count[dim] && groups % (shards *= mesh->axis[s->axis[dim][keep]].size) == 0)
        keep++;
    for (int i = keep; i < s->count[dim]; i++)
        rest |= (ct_axes)1 << s->axis[dim][i];
    s->count[dim] = (uint8_t)keep;
    return rest;
}

/* As the input comes, but with whole features and nothing pending. */
static struct ct_sharding as_it_comes(const struct ct_value *x)
{
    struct ct_sharding s = x->sharding;

    s.unreduced = 0;
    s.count[x->ndim - 1] = 0;
    return s;
}

/* This rank's heads and groups, both counted from the first of all. */
struct span {
    int64_t rows, heads, groups, first, first_group, share, size;
};

static struct span span_of(const struct ct_launch *l, const struct ct_value *heads,
                           const struct ct_tensor *of_heads, const struct ct_value *groups,
                           const struct ct_tensor *of_groups)
{
    int d = head_dim(heads);

    return (struct span){.rows = ct_shape_count(d, of_heads->shape),
                         .heads = of_heads->shape[d],
                         .groups = of_groups->shape[d],
                         .first = ct_launch_offset(l, heads, d),
                         .first_group = ct_launch_offset(l, groups, d),
                         .share = heads->shape[d] / groups->shape[d],
                         .size = of_heads->shape[d + 1]};
}

/* The row of the group of local head number `row`, of all rows. */
static int64_t group_row(const struct span *s, int64_t row)
{
    int64_t head = s->first + row % s->heads;

    return row / s->heads * s->groups + head / s->share - s->first_group;
}

/* ---- forward ---- */

static int copy_infer(struct ct_op *op)
{
    int64_t heads = ((const struct ct_copy_heads *)op->attrs)->heads;

    return infer(op, heads, size_at(op->in[0]), heads);
}

static int copy_place(const struct ct_op *op, const struct ct_mesh *mesh, struct ct_sharding *in,
                      struct ct_sharding *out)
{
    const struct ct_value *x = op->in[0];
    ct_axes axes = ((const struct ct_copy_heads *)op->attrs)->axes;

    in[0] = as_it_comes(x);
    keep_even(&in[0], mesh, head_dim(x), size_at(x));
    out[0] = in[0];
    for (int a = 0; a < mesh->count; a++)
        if (axes & ~ct_sharding_axes(&out[0]) & (ct_axes)1 << a)
            ct_sharding_split(&out[0], head_dim(x), a);
    return 0;
}

static int copy_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct span s = span_of(l, l->op->out[0], &l->out[0], l->op->in[0], &l->in[0]);

    for (int64_t row = 0; row < s.rows * s.heads; row++)
        memcpy(r.out[0] + row * s.size, r.in[0] + group_row(&s, row) * s.size,
               (size_t)s.size * sizeof(double));
    return ct_reference_end(&r, 0);
}

static int copy_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &ct_op_copy_heads_grad, v->dout, 1,
                             &(struct ct_copy_heads_grad){size_at(v->op->in[0])}, (int[]){0}, 1);
}

const struct ct_op_type ct_op_copy_heads = {
    .size = sizeof(struct ct_op_type),
    .name = "copy_heads",
    .summary = "several copies of each head, one behind the other",
    .signature = "x[.GD] T -> y[.HD] T",
    .samples = "heads=4: real[2,3,2,5]; heads=6: real[2,6,3]",
    .flags = CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){CT_OPT_INT(struct ct_copy_heads, heads, "heads", "1", 1,
                                                   1 << 20, "Heads of the output"),
                                        AXES(struct ct_copy_heads),
                                        {0}},
    .attrs_size = sizeof(struct ct_copy_heads),
    .infer = copy_infer,
    .place = copy_place,
    .vjp = copy_vjp,
    .reference = copy_reference,
};

/* ---- its gradient ---- */

static int grad_infer(struct ct_op *op)
{
    int64_t groups = ((const struct ct_copy_heads_grad *)op->attrs)->groups;

    return infer(op, size_at(op->in[0]), groups, groups);
}

/* Sums over copies that several ranks hold are pending. */
static int grad_place(const struct ct_op *op, const struct ct_mesh *mesh, struct ct_sharding *in,
                      struct ct_sharding *out)
{
    const struct ct_value *dy = op->in[0];

    in[0] = out[0] = as_it_comes(dy);
    out[0].unreduced = keep_even(&out[0], mesh, head_dim(dy), size_at(op->out[0]));
    return 0;
}

static int grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct span s = span_of(l, l->op->in[0], &l->in[0], l->op->out[0], &l->out[0]);

    for (int64_t row = 0; row < s.rows * s.heads; row++)
        for (int64_t i = 0; i < s.size; i++)
            r.out[0][group_row(&s, row) * s.size + i] += r.in[0][row * s.size + i];
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_copy_heads_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "copy_heads_grad",
    .summary = "sums of the gradients of a head's copies",
    .signature = "dy[.HD] T -> dx[.GD] T",
    .samples = "groups=2: real[2,3,4,5]; groups=3: real[2,3,3]",
    .flags = CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){CT_OPT_INT(struct ct_copy_heads_grad, groups, "groups", "1",
                                                   1, 1 << 20, "Heads of which they are copies"),
                                        {0}},
    .attrs_size = sizeof(struct ct_copy_heads_grad),
    .infer = grad_infer,
    .place = grad_place,
    .reference = grad_reference,
};

struct ct_value *ct_copy_heads(struct ct_builder *b, const char *name, struct ct_value *x,
                               int64_t heads, ct_axes axes)
{
    return ct_emit_type1(b, &ct_op_copy_heads, name, &x, 1, &(struct ct_copy_heads){heads, axes});
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

int ct_share_heads(struct ct_graph *graph, struct ct_op *op, int64_t shards, ct_axes axes,
                   const char *why)
{
    struct ct_builder b = ct_builder_before(graph, op);
    int64_t groups = op->in[1]->shape[2], heads = shards / common_divisor(shards, groups) * groups;

    b.why = why;
    for (int i = 1; i < 3 && heads > groups; i++) {
        const char *name = ct_arena_printf(graph->arena, "%s.copies", op->in[i]->name);

        ct_op_set_input(op, i, ct_copy_heads(&b, name, op->in[i], heads, axes));
    }
    return b.status;
}
