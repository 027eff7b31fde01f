/*
 * Reverse-mode differentiation over the op table.
 *
 * Ops are visited from last to first. Each op type's vjp emits the ops that turn gradients of
 * outputs into gradients of inputs; several gradients of one value are added. An op that a vjp
 * emits belongs to I if an activation's gradient needs it, and to W if only weights' gradients do;
 * zero-bubble schedules need this split. Ops of part pre (casts of weights, gathers) are
 * differentiated into part post, where a gradient is the sum over all microbatches.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/pass.h>

struct diff {
    struct ct_graph *graph;
    struct ct_builder b;
    bool *wanted;           /* by id: depends on a parameter */
    bool *weight;           /* by id: a parameter, or computed from parameters alone */
    struct ct_value **grad; /* by id */
    size_t count;           /* values before differentiation */
};

/* No gradient flows into a second set of weights, into a forward pass with the mark "reference", or
   through CT_OP_STOPS. */
static void mark_values(struct diff *d)
{
    ct_marks reference = ct_mark(CT_REFERENCE);

    for (size_t i = 0; i < d->count; i++) {
        d->weight[i] = d->graph->values[i]->role == CT_ROLE_PARAM;
        d->wanted[i] = ct_value_is_own_param(d->graph->values[i]);
    }
    ct_for_each_op (op, d->graph) {
        bool wanted = false, weight = true,
             stops = op->marks & reference || op->type->flags & CT_OP_STOPS;

        for (int i = 0; i < op->ins; i++) {
            wanted |= !stops && op->in[i] && d->wanted[op->in[i]->id];
            weight &= !op->in[i] || d->weight[op->in[i]->id];
        }
        for (int i = 0; wanted && i < op->outs; i++) {
            d->wanted[op->out[i]->id] = ct_dtype_is_float(op->out[i]->dtype);
            d->weight[op->out[i]->id] = weight || op->section->part == CT_PART_PRE;
        }
    }
}

/* Move to W every op after `before` that no value in `activations` depends on. */
static void split_weight_ops(struct diff *d, struct ct_op *before, struct ct_value **activations,
                             int count)
{
    struct ct_arena scratch = {0};
    bool *needed = ct_arena_array(&scratch, bool, d->graph->value_count);

    for (int i = 0; i < count; i++)
        needed[activations[i]->id] = true;
    for (struct ct_op *op = d->graph->last; op != before; op = op->prev) {
        bool input_gradient = false;

        for (int i = 0; i < op->outs; i++)
            input_gradient |= needed[op->out[i]->id];
        for (int i = 0; input_gradient && i < op->ins; i++)
            if (op->in[i])
                needed[op->in[i]->id] = true;
        if (!input_gradient && op->section->part == CT_PART_I)
            ct_op_set_part(d->graph, op, CT_PART_W);
    }
    ct_arena_finish(&scratch);
}

/* Groups may run on different ranks: their gradients are added once a step, not per microbatch. */
static bool other_group(const struct ct_value *a, const struct ct_value *b)
{
    return a->producer && b->producer &&
           (a->producer->section->part == CT_PART_POST ||
            a->producer->section->group != b->producer->section->group);
}

static void add_gradient(struct diff *d, struct ct_value *value, struct ct_value *grad)
{
    struct ct_value **sum = &d->grad[value->id];
    const struct ct_section *section = d->b.section;

    if (*sum) {
        if (d->weight[value->id] && other_group(*sum, grad))
            ct_builder_set_part(&d->b, CT_PART_POST);
        else if (d->weight[value->id] && section->part == CT_PART_I)
            ct_builder_set_part(&d->b, CT_PART_W);
        d->b.why = "sums the gradients of several uses";
        grad = ct_add(&d->b, ct_arena_printf(d->graph->arena, "d.%s", value->name), *sum, grad);
        d->b.why = NULL;
        d->b.section = section;
    }
    *sum = grad;
}

/* uses: of the outputs' gradients, before the vjp. */
static int check_used(const struct ct_vjp *v, const uint32_t *uses)
{
    const struct ct_op *op = v->op;

    for (int i = 0; i < op->outs; i++) {
        bool used = !v->dout[i] || v->dout[i]->use_count > uses[i];

        for (int k = 0; k < op->ins; k++)
            used |= v->din[k] == v->dout[i];
        if (!used)
            return ct_fail(CT_EINVAL, "%%%s: op type %s has no gradient of output %d",
                           op->out[i]->name, op->type->name, i);
    }
    return 0;
}

static int differentiate_op(struct diff *d, struct ct_op *op)
{
    struct ct_arena *arena = d->graph->arena;
    struct ct_op *before = d->graph->last;
    struct ct_value **activations = ct_arena_array(arena, struct ct_value *, op->ins);
    bool *wanted = ct_arena_array(arena, bool, op->ins), flows = false;
    struct ct_vjp v = {.b = &d->b, .op = op, .wanted = wanted};
    uint32_t *uses = ct_arena_array(arena, uint32_t, op->outs);
    int count = 0, rc;

    v.dout = ct_arena_array(arena, struct ct_value *, op->outs);
    v.din = ct_arena_array(arena, struct ct_value *, op->ins);
    for (int i = 0; i < op->outs; i++) {
        flows |= (v.dout[i] = d->grad[op->out[i]->id]) != NULL;
        uses[i] = v.dout[i] ? v.dout[i]->use_count : 0;
    }
    for (int i = 0; i < op->ins; i++)
        wanted[i] = op->in[i] && d->wanted[op->in[i]->id];
    if (!flows)
        return 0;
    if (!op->type->vjp)
        return ct_fail(CT_EINVAL, "%%%s: op type %s has no gradient", op->out[0]->name,
                       op->type->name);
    d->b.section = ct_graph_section(
        d->graph, op->section->part == CT_PART_PRE ? CT_PART_POST : CT_PART_I, op->section->group);
    d->b.region = op->region;
    rc = op->type->vjp(&v);
    rc = rc < 0 ? rc : d->b.status;
    if (rc < 0)
        return ct_context(rc, "the gradient of %%%s", op->out[0]->name);
    rc = check_used(&v, uses);
    if (rc < 0)
        return rc;
    for (int i = 0; i < op->ins; i++)
        if (v.din[i] && wanted[i] && !d->weight[op->in[i]->id])
            activations[count++] = v.din[i];
    split_weight_ops(d, before, activations, count);
    for (int i = 0; i < op->ins; i++)
        if (v.din[i] && wanted[i])
            add_gradient(d, op->in[i], v.din[i]);
    return d->b.status;
}

/* Differentiate ops of one part, last first. New ops are appended after `last` and not visited. */
static int differentiate_part(struct diff *d, struct ct_op *last, enum ct_part part)
{
    for (struct ct_op *op = last; op; op = op->prev) {
        int rc = op->section->part == part ? differentiate_op(d, op) : 0;

        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Is the gradient of value i summed over the microbatches? */
static bool adds_up(const struct diff *d, size_t i)
{
    const struct ct_value *v = d->graph->values[i];

    return v->role == CT_ROLE_PARAM || (v->producer && v->producer->section->part == CT_PART_PRE);
}

/* A weight's gradient is summed over the microbatches. If it is also read within one, or not
   computed in one (it may be the gradient of another value, too), a copy is summed instead. */
static void separate_sums(struct diff *d)
{
    d->b.why = "adds up over the microbatches, unlike the value that it copies";
    for (size_t i = 0; i < d->count; i++) {
        struct ct_value *grad = d->weight[i] && adds_up(d, i) ? d->grad[i] : NULL;

        if (!grad || (grad->producer && grad->producer->section->part == CT_PART_POST) ||
            (!grad->use_count && grad->producer &&
             ct_part_is_microbatch(grad->producer->section->part)))
            continue;
        d->b.region = grad->producer ? grad->producer->region : "";
        d->b.section = ct_graph_section(
            d->graph, CT_PART_W, grad->producer ? grad->producer->section->group : CT_NO_GROUP);
        d->grad[i] =
            ct_cast(&d->b, ct_arena_printf(d->graph->arena, "d.%s", d->graph->values[i]->name),
                    grad, grad->dtype);
    }
    d->b.why = NULL;
}

/* Can the op that computes value output dtype at no cost? fix: make it do so. */
static bool fold_dtype(struct ct_value *value, enum ct_dtype dtype, bool fix)
{
    struct ct_op *op = value->producer;

    if (!op || !ct_value_only_user(value))
        return false;
    if (op->type->flags & CT_OP_ANY_DTYPE) {
        if (fix) {
            value->dtype = dtype;
            value->dtype_fixed = true;
        }
        return true;
    }
    if (op->type != &ct_op_add && op->type != &ct_op_redistribute)
        return false;
    for (int i = 0; i < op->ins; i++)
        if (!fold_dtype(op->in[i], dtype, fix))
            return false;
    return !fix || ct_op_infer(op) == 0;
}

/* A gradient that is computed in bfloat16 only to be cast to float32 is computed in float32. The
   other way round, only if it is not summed over the microbatches before the cast. */
static void fold_casts(struct ct_graph *graph, struct ct_op *from)
{
    for (struct ct_op *op = from, *next; op; op = next) {
        next = op->next;
        if (op->type != &ct_op_cast ||
            (!ct_part_is_microbatch(op->section->part) &&
             ct_dtype_size(op->out[0]->dtype) < ct_dtype_size(op->in[0]->dtype)) ||
            !fold_dtype(op->in[0], op->out[0]->dtype, false))
            continue;
        fold_dtype(op->in[0], op->out[0]->dtype, true);
        ct_value_replace(graph, op->out[0], op->in[0]);
        ct_graph_remove(graph, op);
    }
}

/* The gradient of a sum, of whose mean `weight` times is differentiated. over: what divides it;
   NULL: the labels. */
static struct ct_value *seed(struct ct_graph *graph, const char *name, const char *over,
                             double weight)
{
    const char *counted = over ? over : ct_default_counts[0].name;
    struct ct_value *count = ct_graph_find_input(graph, counted);
    struct ct_builder b = ct_pre_builder(graph);

    if (!count)
        count = ct_graph_source(graph, CT_ROLE_SCALAR, counted, CT_F32, 0, NULL);
    b.why = "gradients are those of the mean over the global batch";
    return ct_emit_type1(&b, &ct_op_reciprocal, ct_arena_printf(graph->arena, "d.%s", name), &count,
                         1, &(struct ct_reciprocal){weight});
}

struct start {
    struct ct_value *value, *gradient;
};

/* Lists the values to differentiate: the loss, and fetches with a weight. Returns how many. */
static size_t seed_all(struct ct_graph *graph, struct ct_value *loss, struct start *starts)
{
    size_t count = 0, fetches = graph->fetch_count;

    starts[count++] =
        (struct start){loss, seed(graph, "loss", ct_graph_fetched_over(graph, "loss"), 1)};
    for (size_t i = 0; i < fetches; i++)
        if (graph->fetches[i].weight != 0)
            starts[count++] = (struct start){
                graph->fetches[i].value, seed(graph, graph->fetches[i].name, graph->fetches[i].over,
                                              graph->fetches[i].weight)};
    return count;
}

int ct_differentiate(struct ct_graph *graph)
{
    struct ct_arena scratch = {0};
    struct ct_value *loss = ct_graph_fetched(graph, "loss");
    struct diff d = {.graph = graph, .b = ct_builder_at_end(graph, CT_PART_I, "")};
    struct ct_op *last = graph->last;
    struct start *starts;
    size_t count;
    int rc;

    if (!loss || !loss->producer)
        return ct_fail(CT_EINVAL, "the graph fetches no loss to differentiate");
    starts = ct_arena_array(&scratch, struct start, graph->fetch_count + 1);
    count = seed_all(graph, loss, starts); /* their ops are visited, too */
    d.count = graph->value_count;
    d.wanted = ct_arena_array(&scratch, bool, d.count);
    d.weight = ct_arena_array(&scratch, bool, d.count);
    d.grad = ct_arena_array(&scratch, struct ct_value *, d.count);
    mark_values(&d);
    for (size_t i = 0; i < count; i++)
        add_gradient(&d, starts[i].value, starts[i].gradient); /* a value may be fetched twice */
    rc = differentiate_part(&d, last, CT_PART_F);
    if (rc == 0) {
        separate_sums(&d);
        rc = d.b.status;
    }
    if (rc == 0)
        rc = differentiate_part(&d, last, CT_PART_PRE);
    for (size_t i = 0; rc == 0 && i < d.count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            ct_value_set_grad(graph->values[i], d.grad[i]);
    ct_arena_finish(&scratch);
    if (rc < 0)
        return rc;
    fold_casts(graph, last->next);
    ct_graph_sweep(graph);
    return 0;
}

/* ---- the transform ---- */

static int differentiate(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    return ct_differentiate(graph);
}

const struct ct_transform ct_pass_differentiate = {
    .size = sizeof(struct ct_transform),
    .name = "differentiate",
    .summary = "appends the backward",
    .phase = CT_PHASE_DIFFERENTIATE,
    .gives = (const char *const[]){"gradients", NULL},
    .apply = differentiate,
    .required = true,
};
