/*
 * Weights become codes in the graph. This is after their casts and gathers were added: a cast is
 * dropped, a gather moves codes and scales, and an op decodes them in front of each product.
 */
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/lib/names.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/lib/stored.h>
#include <ctitan/log.h>

#include "qlora.h"

struct quantising {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct ct_patterns keep;
    ct_marks adapter;       /* of products with adapters */
    int64_t elements, bits; /* of weights that have become codes */
    int weights;
};

/* ---- which ---- */

/* The next value of a parameter on its way to a product: a cast of it, or a gathered one. */
static bool leads_on(const struct ct_op *op)
{
    return op->type == &ct_op_cast || op->type == &ct_op_redistribute;
}

/* Whether an op multiplies with a value as the weight of a layer. */
static bool multiplies(const struct quantising *q, const struct ct_use *use)
{
    const struct ct_op *op = use->op;

    return op->type == &ct_op_linear && use->index > 0 && !(op->marks & q->adapter) &&
           strcmp(op->region, CT_REGION_HEAD) != 0;
}

/* Whether linear layers read a value as a weight, and besides only what no gradient flows through.
 */
static bool is_weight(const struct quantising *q, const struct ct_value *v)
{
    bool used = false;

    ct_for_each_use (use, v) {
        const struct ct_op *op = use->op;
        bool weight = leads_on(op) ? is_weight(q, op->out[0]) : multiplies(q, use);

        if (op->section->part == CT_PART_INIT)
            continue;
        if (!weight && !(op->type->flags & CT_OP_STOPS))
            return false;
        used |= weight;
    }
    return used && !v->fetch_count;
}

static bool is_chosen(const struct quantising *q, const struct ct_value *param)
{
    return ct_value_is_own_param(param) && param->ndim == 2 && !param->coding &&
           ct_dtype_is_float(param->dtype) && ct_patterns_find(&q->keep, param->name) < 0 &&
           is_weight(q, param);
}

/* ---- scales ---- */

/* Whether shards have whole blocks wherever the columns are split. */
static bool is_together(const struct ct_graph *graph, const struct ct_value *w)
{
    int64_t shards = 1;

    for (int i = 0; i < w->sharding.count[1]; i++)
        shards *= graph->mesh.axis[w->sharding.axis[1][i]].size;
    return w->shape[1] % (QLORA_BLOCK * shards) == 0;
}

static void drop_columns(struct ct_sharding *s)
{
    s->count[1] = 0;
}

static struct ct_value *parameter(const struct quantising *q, const struct ct_value *w,
                                  const char *suffix, enum ct_dtype dtype, int ndim,
                                  const int64_t *shape)
{
    struct ct_value *p = ct_graph_source(q->graph, CT_ROLE_PARAM,
                                         ct_arena_printf(q->graph->arena, "%s%s", w->name, suffix),
                                         dtype, ndim, shape);

    p->dtype_fixed = true;
    p->beside = true;
    p->holders = w->holders;
    return p;
}

/* The parameters that belong to the codes of a weight. */
struct scales {
    struct ct_value *absmax, *nested;
    bool together;
};

static struct scales add_scales(const struct quantising *q, const struct ct_value *w)
{
    struct qlora_blocks b = qlora_blocks_of(w->shape[0], w->shape[1]);
    bool nested = qlora_config.double_quantisation;
    struct scales s = {.together = is_together(q->graph, w)};

    s.absmax =
        parameter(q, w, QLORA_ABSMAX, nested ? CT_U8 : CT_F32, 2, (int64_t[]){b.rows, b.slots});
    s.absmax->sharding = w->sharding;
    if (!s.together)
        drop_columns(&s.absmax->sharding);
    if (nested)
        s.nested = parameter(q, w, QLORA_NESTED, CT_F32, 1, (int64_t[]){b.groups + 1});
    return s;
}

/* ---- in the graph ---- */

/* The scales go where a gather brings the codes. */
static int follow(struct quantising *q, struct ct_op *gather, struct scales *s)
{
    const struct ct_redistribute *attrs = gather->attrs;
    struct ct_builder b = ct_builder_before(q->graph, gather);
    struct ct_sharding to = attrs->to.sharding;

    if (!s->together)
        drop_columns(&to);
    b.why = gather->why;
    b.marks = gather->marks;
    s->absmax = ct_redistribute(&b, ct_arena_printf(q->graph->arena, "%s.whole", s->absmax->name),
                                s->absmax, &to, NULL);
    if (s->absmax)
        s->absmax->producer->stream = gather->stream;
    return b.status;
}

/* The weight that is decoded for an op just before, in the same layer; NULL: none is. */
static struct ct_value *decoded_for(const struct ct_value *codes, const struct ct_op *user)
{
    for (const struct ct_op *op = user->prev; op && op->region == user->region; op = op->prev)
        if (op->type == &qlora_op_dequantise && op->in[0] == codes && op->section == user->section)
            return op->out[0];
    return NULL;
}

/* Decode in front of a product, in the dtype that it computed with. */
static int decode_before(struct quantising *q, struct ct_op *user, int index,
                         struct ct_value *codes, const struct scales *s, enum ct_dtype dtype)
{
    struct ct_builder b = ct_builder_before(q->graph, user);
    struct qlora_dequantise attrs = {dtype, qlora_config.base, s->together};
    struct ct_value *w = decoded_for(codes, user);

    if (w) {
        ct_op_set_input(user, index, w);
        return 0;
    }
    b.why = "qlora: a weight is decoded for the product that needs it";
    w = ct_emit_type1(
        &b, &qlora_op_dequantise, ct_arena_printf(q->graph->arena, "%s.decoded", codes->name),
        (struct ct_value *[]){codes, s->absmax, s->nested}, s->nested ? 3 : 2, &attrs);
    if (w)
        ct_op_set_input(user, index, w);
    return b.status;
}

/* dtype: of the numbers that v had. */
static int replace(struct quantising *q, struct ct_value *v, struct scales s, enum ct_dtype dtype)
{
    int rc = 0;

    ct_for_each_use_safe (use, v) {
        struct ct_op *op = use->op;
        struct scales there = s;
        enum ct_dtype before;

        if (rc < 0 || op->section->part == CT_PART_INIT || op->type == &qlora_op_dequantise)
            continue;
        before = leads_on(op) ? op->out[0]->dtype : dtype;
        if (op->type == &ct_op_redistribute) {
            rc = follow(q, op, &there);
            op->out[0]->dtype = v->dtype;
        }
        if (rc == 0 && leads_on(op))
            rc = replace(q, op->out[0], there, before);
        else if (rc == 0)
            rc = decode_before(q, op, use->index, v, &s, dtype);
    }
    return rc;
}

/* Casts give codes as they are: they go, and with them what filled the parameter. */
static void drop_casts(struct ct_graph *graph, struct ct_value *v)
{
    ct_for_each_use_safe (use, v) {
        struct ct_op *op = use->op;

        if (op->section->part == CT_PART_INIT) {
            ct_graph_remove(graph, op);
        } else if (op->type == &ct_op_cast) {
            ct_value_replace(graph, op->out[0], v);
            ct_graph_remove(graph, op);
        }
    }
}

static int quantise(struct quantising *q, struct ct_value *w)
{
    enum ct_dtype dtype = w->dtype;
    struct scales s;

    ct_for_each_use (use, w)
        if (use->op->type == &ct_op_cast)
            dtype = use->op->out[0]->dtype;
    drop_casts(q->graph, w);
    s = add_scales(q, w);
    w->dtype = qlora_dtype(qlora_config.base);
    w->dtype_fixed = true;
    w->coding = qlora_coding();
    q->weights++;
    q->elements += ct_shape_count(2, w->shape);
    q->bits +=
        8 * (int64_t)(ct_value_bytes(q->graph, w, -1) + ct_value_bytes(q->graph, s.absmax, -1) +
                      (s.nested ? ct_value_bytes(q->graph, s.nested, -1) : 0));
    return replace(q, w, s, dtype);
}

static const struct ct_stored_rule stored[] = {
    {QLORA_ABSMAX, "", false, 0, 0}, {QLORA_NESTED, "", false, 0, 0}, {0}};

static void report(const struct quantising *q)
{
    ct_info("qlora: %d weights with %lld parameters are stored in %s, with %.3f bits for each",
            q->weights, (long long)q->elements, qlora_config.base == QLORA_NF4 ? "nf4" : "int8",
            (double)q->bits / (double)q->elements);
}

/* Every pattern must fit a parameter. */
static int read_keep(struct quantising *q)
{
    struct ct_value **params =
        ct_arena_array(&q->scratch, struct ct_value *, q->graph->value_count + 1);
    size_t count = 0;

    q->keep = ct_patterns_read(&q->scratch, qlora_config.keep);
    for (size_t i = 0; i < q->graph->value_count; i++)
        if (ct_value_is_own_param(q->graph->values[i]))
            params[count++] = q->graph->values[i];
    return ct_patterns_check(&q->keep, params, count, "[qlora] keep");
}

int qlora_quantise(struct ct_graph *graph, struct ct_run *run)
{
    struct quantising q = {.graph = graph};
    size_t count = graph->value_count;
    int rc = 0;

    q.adapter = ct_mark(CT_MARK_FULL_PRECISION);
    rc = read_keep(&q);
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (is_chosen(&q, graph->values[i]))
            rc = quantise(&q, graph->values[i]);
    if (rc == 0 && !q.weights)
        rc = ct_fail(CT_ECONFIG, "[qlora] the model has no linear layer whose weight could be "
                                 "stored in fewer bits");
    if (rc == 0 && graph != run->validation_graph)
        report(&q);
    ct_arena_finish(&q.scratch);
    if (rc == 0)
        ct_stored_add(run, stored);
    return rc < 0 ? rc : ct_graph_infer(graph);
}

/* ---- the backward ---- */

int qlora_again(struct ct_graph *graph, struct ct_run *run)
{
    int rc = 0;

    (void)run;
    ct_for_each_op_safe (op, graph)
        if (rc == 0 && op->type == &qlora_op_dequantise && op->section->part == CT_PART_F)
            rc = ct_compute_again(graph, op, "qlora: a weight is decoded again for the backward");
    return rc;
}
