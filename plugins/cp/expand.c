/*
 * The ops that a rank runs for a ring (Liu et al. 2023; merging by log-sum-exp: Dao et al. 2022).
 *
 * Forward: keys and values move on by one rank while attention runs on the current block. Results
 * are merged in float32. Backward: given the lse of the whole sequence, the gradient of each block
 * is exact by itself. dq is summed on its own rank. dk and dv travel with their block, each rank
 * adds its contribution, and a last hop returns them. Keys and values are rotated again rather than
 * saved.
 *
 * Documents and positions identify the tokens of a block. They are rotated in the same way, once
 * per microbatch for all layers.
 */
#include <string.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "cp.h"

/* Documents and positions; NULL if absent. */
struct places {
    struct ct_value *value[2];
};

/* Documents and positions of each block, shared by all rings that start from the same ones. */
struct moved {
    struct places home, here;
    int step, group;
    struct moved *next;
};

struct expansion {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct moved *moved;
};

/* One ring op that is being replaced. */
struct ring {
    struct expansion *x;
    struct ct_builder b;
    struct ct_op *op;
    struct places places;
    ct_axes axes; /* axes that split the sequence */
    int ranks;
};

/* ---- emitting ---- */

static struct ct_value *placed(struct ct_value *v, const struct ct_value *like)
{
    if (v)
        v->sharding = like->sharding;
    return v;
}

/* Make v at least float32, whatever the dtype of the operands, because it is summed. */
static void widen(struct ct_value *v)
{
    if (ct_dtype_size(v->dtype) >= ct_dtype_size(CT_F32))
        return;
    v->dtype = CT_F32;
    v->dtype_fixed = true;
}

static const char *numbered(const struct ring *r, const struct ct_value *v, int step)
{
    return ct_arena_printf(r->x->graph->arena, "%s.block%d", v->name, step);
}

/* Move values on by one rank, in one op. They then hold `home` of the rank `step` hops away. */
static void rotate(struct ring *r, struct ct_value **values, struct ct_value *const *home,
                   int count, int step)
{
    struct ct_op *op = ct_permute(&r->b, NULL, values, count, r->axes, 1);

    if (!op)
        return;
    op->stream = ct_stream("p2p", 0);
    for (int i = 0; i < count; i++) {
        ct_value_rename(r->x->graph, op->out[i], numbered(r, home[i], step));
        values[i] = placed(op->out[i], values[i]);
    }
}

static struct moved *find_moved(const struct ring *r, int step)
{
    struct moved *m = r->x->moved;

    while (m && (memcmp(&m->home, &r->places, sizeof(m->home)) || m->step != step ||
                 m->group != r->op->section->group))
        m = m->next;
    return m;
}

static struct places places_of_block(struct ring *r, int step)
{
    struct moved *m = step ? find_moved(r, step) : NULL;
    struct ct_value *from[2], *home[2];
    struct places here;
    int count = 0;

    if (!step || m)
        return m ? m->here : r->places;
    here = places_of_block(r, step - 1);
    for (int i = 0; i < 2; i++)
        if (here.value[i]) {
            home[count] = r->places.value[i];
            from[count++] = here.value[i];
        }
    if (count)
        rotate(r, from, home, count, step);
    for (int i = 1; i >= 0; i--)
        if (here.value[i])
            here.value[i] = from[--count];
    m = ct_arena_new(&r->x->scratch, struct moved);
    *m = (struct moved){r->places, here, step, r->op->section->group, r->x->moved};
    r->x->moved = m;
    return here;
}

/* Turn keys and values of block `step` into those of the next; the transfer overlaps other work. */
static void fetch_next(struct ring *r, struct ct_value *kv[2], struct ct_value *const *home,
                       int step)
{
    if (step + 1 == r->ranks)
        return;
    rotate(r, kv, home, 2, step + 1);
    places_of_block(r, step + 1);
}

/* `type` on block number step, with operands, then documents and positions of both sides. */
static struct ct_op *on_block(struct ring *r, const struct ct_op_type *type,
                              struct ct_value *const *operands, int count, int step)
{
    struct places of_keys = places_of_block(r, step);
    struct ct_attention how = *(const struct ct_attention *)r->op->attrs;
    struct ct_value *in[6 + CP_OPTIONAL];

    memcpy(in, operands, sizeof(*in) * (size_t)count);
    for (int i = 0; i < 2; i++) {
        in[count + 2 * i] = r->places.value[i];
        in[count + 2 * i + 1] = of_keys.value[i];
    }
    how.blockwise = true;
    how.known = 1 + step;
    return ct_emit_type(&r->b, type, numbered(r, r->op->out[0], step), in, count + CP_OPTIONAL,
                        &how);
}

/* Cast value to the dtype of old; it replaces old and takes its name. */
static void deliver(struct ring *r, struct ct_value *value, struct ct_value *old)
{
    const char *name = old->name;

    if (!value)
        return;
    ct_value_replace(r->x->graph, old, value);
    ct_value_rename(r->x->graph, old, ct_arena_printf(r->x->graph->arena, "%s.ring", name));
    ct_value_rename(r->x->graph, value, name);
}

static struct ct_value *narrowed(struct ring *r, struct ct_value *value, const struct ct_value *old)
{
    const char *name = ct_arena_printf(r->x->graph->arena, "%s.rounded", old->name);

    if (!value || value->dtype == old->dtype)
        return value;
    return placed(ct_cast(&r->b, name, value, old->dtype), old);
}

/* ---- rings ---- */

static struct ring ring_of(struct expansion *x, struct ct_op *op, int q, int optional)
{
    struct ring r = {.x = x, .b = ct_builder_before(x->graph, op), .op = op, .ranks = 1};
    const struct ct_sharding *s = &op->in[q]->sharding;
    const struct ct_mesh *mesh = &x->graph->mesh;

    r.b.why = "cp: keys and values go round the ranks";
    r.places = (struct places){{ct_op_input(op, optional), ct_op_input(op, optional + 1)}};
    for (int i = 0; i < s->count[1]; i++) {
        r.axes |= (ct_axes)1 << s->axis[1][i];
        r.ranks *= (int)mesh->axis[s->axis[1][i]].size;
    }
    return r;
}

/* Attention on one block, with o in float32. */
static struct ct_op *attend(struct ring *r, struct ct_value *const *kv, int step)
{
    struct ct_op *op =
        on_block(r, &ct_op_attention, (struct ct_value *[]){r->op->in[0], kv[0], kv[1]}, 3, step);

    if (!op)
        return NULL;
    widen(op->out[0]);
    placed(op->out[0], r->op->out[0]);
    placed(op->out[1], r->op->out[1]);
    return op;
}

static struct ct_op *merge(struct ring *r, const struct ct_op *so_far, const struct ct_op *block)
{
    struct ct_op *op = ct_emit_type(
        &r->b, &cp_attention_merge,
        ct_arena_printf(r->x->graph->arena, "%s.merged", block->out[0]->name),
        (struct ct_value *[]){so_far->out[0], so_far->out[1], block->out[0], block->out[1]}, 4,
        NULL);

    for (int i = 0; op && i < 2; i++)
        placed(op->out[i], r->op->out[i]);
    return op;
}

/* Give the last result the op's own dtype. */
static void finish(struct ring *r, struct ct_op *last)
{
    if (last->out[0]->dtype != r->op->out[0]->dtype) {
        last->out[0]->dtype = r->op->out[0]->dtype;
        last->out[0]->dtype_fixed = true;
    }
    for (int i = 0; i < 2; i++)
        deliver(r, last->out[i], r->op->out[i]);
}

static int expand_forward(struct expansion *x, struct ct_op *ring)
{
    struct ring r = ring_of(x, ring, 0, 3);
    struct ct_value *next[2] = {ring->in[1], ring->in[2]};
    struct ct_op *o = NULL;

    for (int step = 0; step < r.ranks && r.b.status == 0; step++) {
        struct ct_value *here[2] = {next[0], next[1]};
        struct ct_op *block;

        fetch_next(&r, next, ring->in + 1, step);
        block = attend(&r, here, step);
        if (block)
            o = step ? merge(&r, o, block) : block;
    }
    if (r.b.status < 0)
        return r.b.status;
    finish(&r, o);
    ct_graph_remove(x->graph, ring);
    return 0;
}

/* Gradients of one block: dq, dk, dv, in float32. */
static struct ct_op *attend_grad(struct ring *r, struct ct_value *const *kv, int step)
{
    struct ct_value **in = r->op->in;
    struct ct_op *op =
        on_block(r, &ct_op_attention_grad,
                 (struct ct_value *[]){in[0], in[1], kv[0], kv[1], in[4], in[5]}, 6, step);

    for (int i = 0; op && i < 3; i++) {
        widen(op->out[i]);
        placed(op->out[i], r->op->out[i]);
    }
    return op;
}

/* Add a block's contribution to output i of the ring to the sum over earlier blocks. */
static struct ct_value *sum(struct ring *r, struct ct_value *so_far, struct ct_value *share, int i,
                            int step)
{
    const struct ct_value *whole = r->op->out[i];
    const char *name = ct_arena_printf(r->x->graph->arena, "%s.sum%d", whole->name, step);

    return step ? placed(ct_add(&r->b, name, so_far, share), whole) : share;
}

/* dk and dv are rounded before their last hop, because only sums need float32. */
static int expand_backward(struct expansion *x, struct ct_op *ring)
{
    struct ring r = ring_of(x, ring, 1, 6);
    struct ct_value *next[2] = {ring->in[2], ring->in[3]}, *grad[3] = {NULL};

    for (int step = 0; step < r.ranks && r.b.status == 0; step++) {
        struct ct_value *here[2] = {next[0], next[1]};
        struct ct_op *block;

        fetch_next(&r, next, ring->in + 2, step);
        if (step > 0)
            rotate(&r, grad + 1, ring->out + 1, 2, step);
        block = attend_grad(&r, here, step);
        for (int i = 0; block && i < 3; i++)
            grad[i] = sum(&r, grad[i], block->out[i], i, step);
    }
    for (int i = 0; i < 3; i++)
        grad[i] = narrowed(&r, grad[i], ring->out[i]);
    if (r.b.status == 0 && r.ranks > 1)
        rotate(&r, grad + 1, ring->out + 1, 2, r.ranks);
    if (r.b.status < 0)
        return r.b.status;
    for (int i = 0; i < 3; i++)
        deliver(&r, grad[i], ring->out[i]);
    ct_graph_remove(x->graph, ring);
    return 0;
}

int cp_expand_rings(struct ct_graph *graph, struct ct_run *run)
{
    struct expansion x = {.graph = graph};
    int rc = 0;

    (void)run;
    ct_for_each_op_safe (op, graph) {
        if (op->type == &cp_ring_attention)
            rc = expand_forward(&x, op);
        else if (op->type == &cp_ring_attention_grad)
            rc = expand_backward(&x, op);
        if (rc < 0)
            break;
    }
    ct_arena_finish(&x.scratch);
    return rc;
}
