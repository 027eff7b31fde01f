/*
 * Operands of Float8 products become Float8.
 *
 * An activation is quantised in front of its first product; products that need the same cells of it
 * share the result. So under tensorwise the backward keeps one byte for each element of x.
 *
 * The largest magnitude of a whole weight is that of its shards, so it is found before the weight
 * is gathered, once a step. With all_gather the stored parameter is quantised too, and gathers move
 * Float8. Otherwise a gathered weight is quantised where it is used, once for the forward and once
 * for the backward, so that fsdp can free it between.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/input.h>

#include "float8.h"

struct quantised {
    struct ct_value *q, *scale, *amax; /* amax: of the tensor, for NVFP4 */
};

/* Record of a quantised value. */
struct done {
    enum float8_cells cells;
    enum ct_dtype dtype;
    const struct ct_section *section;
    struct quantised result;
    struct done *next;
};

struct quantising {
    struct ct_graph *graph;
    struct ct_arena scratch;
    const struct float8_recipe *recipe;
    struct done **done;      /* by id */
    struct ct_value **scale; /* by id: of the whole value */
    size_t count;
    struct ct_value *ordinals; /* of tokens, for gradients; NULL: none was quantised yet */
    int status;
};

/* ---- emitting ---- */

static const char *named(const struct ct_graph *graph, const struct ct_value *v, const char *what)
{
    return ct_arena_printf(graph->arena, "%s.%s", v->name, what);
}

static struct ct_shape grid_of(const struct ct_value *x, enum float8_cells cells, int block)
{
    struct ct_shape grid = ct_shape_of(x->ndim, x->shape);
    bool rows = cells == FLOAT8_ROW || cells == FLOAT8_ROW_BLOCK;

    for (int d = 0; d + 1 < x->ndim && (cells == FLOAT8_TENSOR || cells == FLOAT8_COLUMN); d++)
        grid.size[d] = 1;
    if (cells == FLOAT8_TENSOR || cells == FLOAT8_ROW)
        grid.size[x->ndim - 1] = 1;
    if (cells == FLOAT8_ROW_BLOCK || cells == FLOAT8_COLUMN_BLOCK)
        grid.size[x->ndim - (rows ? 1 : 2)] /= block;
    return grid;
}

static struct ct_value *emit_amax(const struct quantising *p, struct ct_builder *b,
                                  struct ct_value *x, enum float8_cells cells)
{
    struct float8_amax grid = {grid_of(x, cells, p->recipe->block)};

    return ct_emit_type1(b, &float8_op_amax, named(p->graph, x, "amax"), &x, 1, &grid);
}

/* A weight's blocks are parts of tiles, so that y and dx have the same numbers of it. */
static struct ct_value *emit_nvfp4_scale(const struct quantising *p, struct ct_builder *b,
                                         struct ct_value *x, struct ct_value *amax,
                                         enum float8_cells cells)
{
    struct ct_value *in[] = {amax, emit_amax(p, b, amax, FLOAT8_TENSOR)};
    struct float8_nvfp4_scale attrs = {x->ndim != 2                ? FLOAT8_SHARE_NONE
                                       : cells == FLOAT8_ROW_BLOCK ? FLOAT8_SHARE_ROWS
                                                                   : FLOAT8_SHARE_COLUMNS};

    return ct_emit_type1(b, &float8_op_nvfp4_scale, named(p->graph, x, "scale"), in, 2, &attrs);
}

static struct ct_value *emit_scale(const struct quantising *p, struct ct_builder *b,
                                   struct ct_value *x, enum float8_cells cells, enum ct_dtype dtype)
{
    struct float8_scale attrs = {dtype == CT_E4M3 ? 448 : 57344, p->recipe->rule};
    struct ct_value *amax = emit_amax(p, b, x, cells);

    if (p->recipe->nvfp4)
        return emit_nvfp4_scale(p, b, x, amax, cells);
    return ct_emit_type1(b, &float8_op_scale, named(p->graph, x, "scale"), &amax, 1, &attrs);
}

/* The largest magnitude of the tensor by which NVFP4's scales were made; NULL: none was. */
static struct ct_value *amax_behind(const struct ct_value *scale)
{
    return scale && scale->producer->type == &float8_op_nvfp4_scale ? scale->producer->in[1] : NULL;
}

static struct ct_value *emit_quantise(const struct quantising *p, struct ct_builder *b,
                                      struct ct_value *x, struct ct_value *scale,
                                      enum ct_dtype dtype)
{
    if (p->recipe->nvfp4)
        return ct_emit_type1(b, &float8_op_nvfp4_quantise, named(p->graph, x, "q"),
                             (struct ct_value *[]){x, scale}, 2, NULL);
    return ct_emit_type1(b, &float8_op_quantise, named(p->graph, x, "q"),
                         (struct ct_value *[]){x, scale}, 2, &(struct float8_quantise){dtype});
}

/* ---- activations ---- */

static struct quantised *entry(struct quantising *p, const struct ct_value *x,
                               enum float8_cells cells, enum ct_dtype dtype,
                               const struct ct_section *section, bool earlier)
{
    struct done *d = p->done[x->id];

    while (d && (d->cells != cells || d->dtype != dtype || d->section->group != section->group ||
                 (earlier ? d->section->part > section->part : d->section != section)))
        d = d->next;
    if (d)
        return &d->result;
    d = ct_arena_new(&p->scratch, struct done);
    *d = (struct done){cells, dtype, section, {NULL, NULL, NULL}, p->done[x->id]};
    p->done[x->id] = d;
    return &d->result;
}

static struct ct_builder builder_before(struct quantising *p, struct ct_op *op, const char *why)
{
    struct ct_builder b = ct_builder_before(p->graph, op);

    b.why = why;
    return b;
}

/* Both operands of dw = dy^T x are transformed along the sum, which leaves it as it is. */
static struct ct_value *emit_hadamard(const struct quantising *p, struct ct_builder *b,
                                      struct ct_value *x)
{
    return ct_emit_type1(b, &float8_op_hadamard, named(p->graph, x, "hadamard"), &x, 1,
                         &(struct float8_hadamard){FLOAT8_NVFP4, (int64_t)p->graph->seed});
}

/* The input is split as the others that run along sequences are. */
static int number_tokens(struct quantising *p)
{
    int64_t shape[] = {ct_graph_batch(p->graph), ct_graph_seq_len(p->graph)};
    struct ct_sharding sharding = ct_graph_sequence_sharding(p->graph);
    int rc = p->ordinals ? 0 : ct_graph_input(p->graph, "ordinals", shape, &p->ordinals);

    if (rc == 0)
        p->ordinals->sharding = sharding;
    return rc;
}

/* A gradient for a product, rounded stochastically. Names of gradients depend on the mesh, so the
   stream is that of the product. */
static struct ct_value *emit_rounded(struct quantising *p, struct ct_builder *b,
                                     const struct ct_op *product, struct ct_value *x,
                                     struct ct_value *scale)
{
    const struct float8_product *of = product->attrs;
    struct float8_nvfp4_quantise attrs = {
        (int64_t)p->graph->seed,
        (int64_t)((uint64_t)of->stream + (product->type == &float8_op_nvfp4_dw))};

    if (b->status == 0)
        b->status = number_tokens(p);
    return ct_emit_type1(b, &float8_op_nvfp4_quantise, named(p->graph, x, "q"),
                         (struct ct_value *[]){x, scale, p->ordinals}, 3, &attrs);
}

static struct quantised activation(struct quantising *p, struct ct_op *op, struct ct_value *x,
                                   enum float8_cells cells, enum ct_dtype dtype, bool is_gradient)
{
    struct quantised *q = entry(p, x, cells, dtype, op->section, true);
    struct ct_builder b = builder_before(p, op, "float8: quantised for products");

    if (q->q)
        return *q;
    if (p->recipe->nvfp4 && cells == FLOAT8_COLUMN_BLOCK)
        x = emit_hadamard(p, &b, x);
    q->scale = x ? emit_scale(p, &b, x, cells, dtype) : NULL;
    q->amax = amax_behind(q->scale);
    q->q = p->recipe->nvfp4 && is_gradient ? emit_rounded(p, &b, op, x, q->scale)
                                           : emit_quantise(p, &b, x, q->scale, dtype);
    p->status = b.status;
    return *q;
}

/* ---- weights ---- */

static bool is_step_value(const struct ct_value *v)
{
    return !v->producer || v->producer->section->part == CT_PART_PRE;
}

/* Right after v, once a step, if v is there once a step; else in front of op. */
static struct ct_builder place(struct quantising *p, struct ct_op *op, struct ct_value *v)
{
    struct ct_builder b = builder_before(p, op, "float8: a weight is quantised for products");

    if (!is_step_value(v))
        return b;
    b = v->producer ? ct_builder_after(p->graph, v->producer) : ct_pre_builder(p->graph);
    b.region = op->region;
    b.why = "float8: a weight is quantised, once a step";
    return b;
}

static bool is_gather(const struct ct_value *v)
{
    return v->producer && v->producer->type == &ct_op_redistribute;
}

/* The value that w is gathered from, and with all_gather the parameter behind its cast. */
static struct ct_value *origin(struct ct_value *w)
{
    while (is_gather(w) ||
           (float8_config.all_gather && w->producer && w->producer->type == &ct_op_cast))
        w = w->producer->in[0];
    return w;
}

static struct ct_value *scale_of_whole(struct quantising *p, struct ct_op *op, struct ct_value *v)
{
    struct ct_builder b = place(p, op, v);

    if (!p->scale[v->id])
        p->scale[v->id] = emit_scale(p, &b, v, FLOAT8_TENSOR, CT_E4M3);
    p->status = b.status;
    return p->scale[v->id];
}

/* The gathers between origin(w) and w, on the quantised origin. */
static struct ct_value *gathered(struct quantising *p, struct ct_op *op, struct ct_value *w,
                                 struct ct_value *scale)
{
    struct quantised *q =
        entry(p, w, FLOAT8_TENSOR, CT_E4M3, ct_graph_section(p->graph, CT_PART_PRE, 0), false);
    struct ct_value *from;

    if (q->q)
        return q->q;
    if (w == origin(w)) {
        struct ct_builder b = place(p, op, w);

        b.before = scale->producer->next;
        q->q = emit_quantise(p, &b, w, scale, CT_E4M3);
        p->status = b.status;
        return q->q;
    }
    from = gathered(p, op, w->producer->in[0], scale);
    if (from && is_gather(w)) {
        struct ct_builder b = ct_builder_before(p->graph, w->producer);
        struct ct_op *gather = ct_op_clone(&b, w->producer, &from, "q");

        from = gather ? gather->out[0] : NULL;
        p->status = b.status;
    }
    return q->q = from;
}

static struct quantised weight(struct quantising *p, struct ct_op *op, struct ct_value *w,
                               enum float8_cells cells)
{
    struct ct_builder b;
    struct quantised *q;

    if (float8_config.all_gather) {
        struct ct_value *scale = scale_of_whole(p, op, origin(w));

        return (struct quantised){scale ? gathered(p, op, w, scale) : NULL, scale, NULL};
    }
    q = entry(p, w, cells, CT_E4M3,
              is_step_value(w) ? ct_graph_section(p->graph, CT_PART_PRE, 0) : op->section, false);
    if (q->q)
        return *q;
    if (cells == FLOAT8_TENSOR)
        q->scale = scale_of_whole(p, op, origin(w));
    b = place(p, op, w);
    if (cells != FLOAT8_TENSOR) {
        q->scale = emit_scale(p, &b, w, cells, CT_E4M3);
        q->amax = amax_behind(q->scale);
    } else if (q->scale && origin(w) == w) {
        b.before = q->scale->producer->next;
    }
    q->q = emit_quantise(p, &b, w, q->scale, CT_E4M3);
    p->status = b.status;
    return *q;
}

/* ---- products ---- */

static void take(struct quantising *p, struct ct_op *op, struct quantised a, struct quantised b)
{
    struct ct_value *in[] = {a.q, b.q, a.scale, b.scale, a.amax, b.amax};

    if (p->status == 0)
        ct_op_set_inputs(p->graph, op, in, p->recipe->nvfp4 ? 6 : 4);
}

static int quantise(struct quantising *p, struct ct_op *op)
{
    const struct float8_recipe *r = p->recipe;
    struct ct_value *first = op->in[0], *second = op->in[1];

    if (op->type == &float8_op_linear || op->type == &float8_op_nvfp4_linear)
        take(p, op, activation(p, op, first, r->y.first, CT_E4M3, false),
             weight(p, op, second, r->y.second));
    else if (op->type == &float8_op_dx || op->type == &float8_op_nvfp4_dx)
        take(p, op, activation(p, op, first, r->dx.first, r->gradient, true),
             weight(p, op, second, r->dx.second));
    else if (op->type == &float8_op_dw || op->type == &float8_op_nvfp4_dw)
        take(p, op, activation(p, op, first, r->dw.first, CT_E4M3, false),
             activation(p, op, second, r->dw.second, r->gradient, true));
    return p->status;
}

int float8_quantise_operands(struct ct_graph *graph, struct ct_run *run)
{
    struct quantising p = {.graph = graph, .recipe = float8_recipe(), .count = graph->value_count};
    int rc = 0;

    if (!p.recipe)
        return 0;
    (void)run;
    p.done = ct_arena_array(&p.scratch, struct done *, p.count);
    p.scale = ct_arena_array(&p.scratch, struct ct_value *, p.count);
    ct_for_each_op (op, graph)
        if (rc == 0)
            rc = quantise(&p, op);
    ct_arena_finish(&p.scratch);
    if (rc == 0)
        ct_graph_sweep(graph);
    return rc;
}
