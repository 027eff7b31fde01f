/*
 * Which ops are computed together.
 *
 * An op with a formula joins the groups of the ops whose results it takes, then those of ops that
 * take the same rows, if all of them can run where it stands: in the same section, with the same
 * rows and columns, and nothing outside needs their results earlier. Ops that other techniques have
 * put on another stream stay alone. So do those that update a parameter.
 *
 * Compiled code is not as fast as the best kernels for all formulas. So an op joins a group only if
 * the memory traffic that this saves is worth more than what is lost (`gain`). The rates are
 * constants, as every rank must come to the same graph; `bench/fuse/chains` measures them.
 */
#include <string.h>

#include <ctitan/error.h>

#include "fuse.h"

#define MOST_NODES 400

/* Bytes of memory a nanosecond, and nanoseconds that compiled code loses against a device's own
   kernel by a sum over rows beside other outputs. Host: one thread, cached memory,
   measured. Devices: memory of a data-center GPU; a sum is 8 bytes more to its cache; not measured.
 */
static const struct rates {
    double bytes, column_sum;
} host_rates = {50, 0.055}, device_rates = {2000, 0.002};

struct member {
    struct ct_op *op;
    struct ct_value *whole;
    uint32_t place; /* in the graph's list */
    int group;      /* -1: cannot be fused */
    int last;       /* its group before the last merge */
};

struct finder {
    struct fuse_plan *plan;
    struct ct_arena scratch;
    struct member *member; /* by place */
    uint32_t *place;       /* by id of output 0 */
    int *first, *next;     /* by group, by place: lists of members in order; -1 ends */
    int *node;             /* by value id: its node in the program being written; -1: none */
    double *gain;          /* by group: nanoseconds that fusing its ops saves, predicted */
    int count;
};

/* ---- single ops ---- */

static bool is_float(const struct ct_value *v)
{
    return v->dtype == CT_F32 || v->dtype == CT_BF16;
}

static bool fits(const struct ct_value *v, unsigned level)
{
    if (v->space != CT_SPACE_DEVICE || v->opaque_bytes)
        return false;
    return is_float(v) || (level == 0 && v->dtype == CT_F64);
}

/* Does the op's formula hold for its operands? */
static bool may_fuse(struct finder *f, const struct ct_op *op)
{
    const unsigned excluded = CT_OP_VIEW | CT_OP_EFFECT | CT_OP_COLLECTIVE | CT_OP_SPACES;
    struct ct_value *whole;
    unsigned *level;

    if (!ct_op_type_whole(op->type)->pointwise || op->type->flags & excluded || op->stream ||
        op->outs == 0 || op->ins > CT_COMPILED_INPUTS || op->outs > CT_COMPILED_OUTPUTS)
        return false;
    if (op->section->part == CT_PART_INIT || op->section->part == CT_PART_POST)
        return false;
    whole = ct_pointwise_whole(op);
    level = ct_arena_array(&f->scratch, unsigned, op->ins + op->outs);
    if (!whole || whole->ndim == 0 || ct_pointwise_levels(op, level) < 0)
        return false;
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && (!fits(op->in[i], level[i]) || ct_op_mutates(op, i)))
            return false;
    for (int i = 0; i < op->outs; i++)
        if (!fits(op->out[i], level[op->ins + i]))
            return false;
    return true;
}

static bool has_kernel(const char *device, const struct ct_op_type *type)
{
    const struct ct_kernel *kernel;

    for (size_t i = 0; (kernel = ct_kernel_at(device, i)); i++)
        if (!strcmp(kernel->op, type->name))
            return true;
    return false;
}

/* ---- groups of ops ---- */

static int group_of(const struct finder *f, const struct ct_op *op)
{
    return op && op->outs ? f->member[f->place[op->out[0]->id]].group : -1;
}

static bool same_whole(const struct ct_value *a, const struct ct_value *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(*a->shape) * (size_t)a->ndim) &&
           ct_sharding_equal(&a->sharding, &b->sharding);
}

/* Does something outside of the two groups use v before `place`? A fetch or a gradient is used
   after everything. */
static bool used_before(const struct finder *f, const struct ct_value *v, int group, uint32_t place)
{
    ct_for_each_use (use, v) {
        const struct ct_op *user = use->op;
        uint32_t at = user->outs ? f->place[user->out[0]->id] : UINT32_MAX;

        if (at < place && f->member[at].group != group)
            return true;
    }
    return false;
}

/* A value that has columns only is known after all rows: no op of its own group can take it. */
static bool fits_as_input(const struct ct_value *v)
{
    const struct ct_value *whole = ct_pointwise_whole(v->producer);

    return v->ndim == whole->ndim ||
           (v->ndim == whole->ndim - 1 && v->ndim > 0 &&
            !memcmp(v->shape, whole->shape, sizeof(*v->shape) * (size_t)v->ndim));
}

/* Can the whole group run at `member`, which takes some of its results? */
static bool may_join(const struct finder *f, int group, const struct member *m)
{
    const struct member *any = &f->member[f->first[group]];

    if (any->op->section != m->op->section || !same_whole(any->whole, m->whole))
        return false;
    for (int i = 0; i < m->op->ins; i++) {
        const struct ct_value *v = m->op->in[i];

        if (v && group_of(f, v->producer) == group && !fits_as_input(v))
            return false;
    }
    for (int at = f->first[group]; at >= 0; at = f->next[at])
        for (int i = 0; i < f->member[at].op->outs; i++)
            if (used_before(f, f->member[at].op->out[i], group, m->place))
                return false;
    return true;
}

/* Link the places in a and b, each in order, into one list for `group`. */
static void link_members(struct finder *f, int group, int a, int b)
{
    int *tail = &f->first[group];

    while (a >= 0 || b >= 0) {
        int *least = b < 0 || (a >= 0 && a < b) ? &a : &b, at = *least;

        f->member[at].group = group;
        *least = f->next[at];
        *tail = at;
        tail = &f->next[at];
    }
    *tail = -1;
}

static void merge(struct finder *f, int to, int from)
{
    int a = f->first[to], b = f->first[from];

    for (int at = a; at >= 0; at = f->next[at])
        f->member[at].last = to;
    for (int at = b; at >= 0; at = f->next[at])
        f->member[at].last = from;
    f->first[from] = -1;
    link_members(f, to, a, b);
}

/* Undo the last merge of the two. */
static void split(struct finder *f, int to, int from)
{
    int *tail[] = {&f->first[to], &f->first[from]};

    for (int at = f->first[to], next; at >= 0; at = next) {
        int which = f->member[at].last == from;

        next = f->next[at];
        f->member[at].group = which ? from : to;
        *tail[which] = at;
        tail[which] = &f->next[at];
    }
    *tail[0] = *tail[1] = -1;
}

/* ---- what a group takes and gives ---- */

static bool is_needed_outside(const struct finder *f, const struct ct_value *v, int group)
{
    if (v->fetch_count || v->grad_of)
        return true;
    ct_for_each_use (use, v)
        if (group_of(f, use->op) != group)
            return true;
    return false;
}

static int find(struct ct_value *const *list, int count, const struct ct_value *v)
{
    for (int i = 0; i < count; i++)
        if (list[i] == v)
            return i;
    return -1;
}

static bool collect_operands(const struct finder *f, int group, struct fuse_group *g, int *ins,
                             int *outs)
{
    *ins = *outs = 0;
    for (int at = f->first[group]; at >= 0; at = f->next[at]) {
        const struct ct_op *op = f->member[at].op;

        for (int i = 0; i < op->ins; i++) {
            struct ct_value *v = op->in[i];

            if (!v || group_of(f, v->producer) == group || find(g->in, *ins, v) >= 0)
                continue;
            if (*ins == CT_COMPILED_INPUTS)
                return false;
            g->in[(*ins)++] = v;
        }
        for (int i = 0; i < op->outs; i++) {
            if (!is_needed_outside(f, op->out[i], group))
                continue;
            if (*outs == CT_COMPILED_OUTPUTS)
                return false;
            g->out[(*outs)++] = op->out[i];
        }
    }
    return *ins > 0 && *outs > 0;
}

/* A per-column value that is computed from rows must be exactly one sum over them. */
static bool is_sum(const struct ct_pointwise *p, int node)
{
    if (p->node[node].kind == CT_POINTWISE_BF16)
        node = p->node[node].arg[0];
    return p->node[node].kind == CT_POINTWISE_COLUMN_SUM;
}

/* Apply the formula of op, whose inputs are inputs of the group or results of earlier ops. */
static bool write_op(struct finder *f, struct fuse_group *g, const struct ct_op *op)
{
    struct ct_pointwise *p = &g->program.p;
    unsigned *level = ct_arena_array(&f->scratch, unsigned, op->ins + op->outs);
    int in[CT_COMPILED_INPUTS] = {0}, out[CT_COMPILED_OUTPUTS];

    if (ct_pointwise_levels(op, level) < 0)
        return false;
    for (int i = 0; i < op->ins; i++) {
        const struct ct_value *v = op->in[i];

        if (!v)
            continue;
        if (f->node[v->id] < 0)
            f->node[v->id] = ct_pointwise_input(p, find(g->in, g->program.ins, v), level[i]);
        in[i] = f->node[v->id];
        if (p->node[in[i]].level != level[i])
            return false;
    }
    if (ct_pointwise_apply(p, op, in, out) < 0 || p->count > MOST_NODES)
        return false;
    for (int i = 0; i < op->outs; i++) {
        unsigned is = level[op->ins + i];

        if (p->node[out[i]].level != is || (is == CT_BY_COLUMN && !is_sum(p, out[i])))
            return false;
        f->node[op->out[i]->id] = out[i];
    }
    return true;
}

static void mark_needed(const struct ct_pointwise *p, int node, bool *needed)
{
    if (needed[node])
        return;
    needed[node] = true;
    for (int i = 0; i < ct_pointwise_arguments(p->node[node].kind); i++)
        mark_needed(p, p->node[node].arg[i], needed);
}

/* Nanoseconds that compiled code takes longer than the kernels of the device. first: the first node
   of each op. */
static double loss(const struct finder *f, const struct fuse_group *g, const size_t *first)
{
    const struct ct_pointwise *p = &g->program.p;
    const struct ct_value *whole = ct_pointwise_whole(g->op[0]);
    const struct rates *rates = f->plan->target.ops ? &device_rates : &host_rates;
    bool needed[MOST_NODES + 1] = {false};
    double each = 0;

    for (int i = 0; i < g->program.outs; i++)
        mark_needed(p, g->program.out[i], needed);
    for (int i = 0; i < g->count; i++)
        for (size_t k = first[i]; k < first[i + 1] && has_kernel(f->plan->device, g->op[i]->type);
             k++)
            if (needed[k] && p->node[k].kind == CT_POINTWISE_COLUMN_SUM && g->op[i]->outs > 1)
                each += rates->column_sum;
    return each * (double)ct_value_bytes(f->plan->graph, whole, f->plan->rank) /
           (double)ct_dtype_size(whole->dtype);
}

/* Write the group's program: the formulas one after the other. False: it is not possible. */
static bool write_program(struct finder *f, struct fuse_group *g, int ins, int outs)
{
    struct ct_rows_program *program = &g->program;
    size_t *first = ct_arena_array(&f->scratch, size_t, g->count + 1);
    bool ok = true;

    *program = (struct ct_rows_program){.p = {.arena = f->plan->arena}, .ins = ins, .outs = outs};
    for (int i = 0; i < ins; i++) {
        program->in_dtype[i] = g->in[i]->dtype;
        f->node[g->in[i]->id] = -1;
    }
    for (int k = 0; ok && k < g->count; k++) {
        ok = write_op(f, g, g->op[k]);
        first[k + 1] = program->p.count;
    }
    g->attrs.outputs.ndim = outs;
    for (int i = 0; ok && i < outs; i++) {
        program->out[i] = f->node[g->out[i]->id];
        program->out_dtype[i] = g->out[i]->dtype;
        g->attrs.outputs.size[i] = program->p.node[program->out[i]].level;
    }
    ok = ok && ct_rows_count_passes(program, &f->scratch) <= CT_ROWS_PASSES;
    g->attrs.program = ok ? ct_rows_text(program, f->plan->arena) : NULL;
    g->lost = ok ? loss(f, g, first) : 0;
    return ok;
}

/* Bytes of an op's operands on this rank. */
static double traffic(const struct fuse_plan *plan, const struct ct_op *op)
{
    double bytes = 0;

    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            bytes += (double)ct_value_bytes(plan->graph, op->in[i], plan->rank);
    for (int i = 0; i < op->outs; i++)
        bytes += (double)ct_value_bytes(plan->graph, op->out[i], plan->rank);
    return bytes;
}

/* Bytes that the ops move one by one, less those of the fused op. */
static double saved(const struct finder *f, const struct fuse_group *g, int ins, int outs)
{
    const struct fuse_plan *plan = f->plan;
    double bytes = 0;

    for (int k = 0; k < g->count; k++)
        bytes += traffic(plan, g->op[k]);
    for (int i = 0; i < ins; i++)
        bytes -= (double)ct_value_bytes(plan->graph, g->in[i], plan->rank);
    for (int i = 0; i < outs; i++)
        bytes -= (double)ct_value_bytes(plan->graph, g->out[i], plan->rank);
    return bytes;
}

/* The group as a fused op; NULL: it would not be possible. */
static struct fuse_group *plan_group(struct finder *f, int group)
{
    struct fuse_group *g = ct_arena_new(f->plan->arena, struct fuse_group);
    int ins, outs;

    for (int at = f->first[group]; at >= 0; at = f->next[at])
        g->count++;
    g->op = ct_arena_array(f->plan->arena, struct ct_op *, g->count);
    g->count = 0;
    for (int at = f->first[group]; at >= 0; at = f->next[at])
        g->op[g->count++] = f->member[at].op;
    if (!collect_operands(f, group, g, &ins, &outs) || !write_program(f, g, ins, outs))
        return NULL;
    g->saved = saved(f, g, ins, outs);
    g->lone = g->count == 1;
    return g;
}

static double gain(const struct finder *f, const struct fuse_group *g)
{
    const struct rates *rates = f->plan->target.ops ? &device_rates : &host_rates;

    return g->lone ? 0 : g->saved / rates->bytes - g->lost;
}

/* Say at op why it stands apart from what makes its input. */
static void refuse(struct finder *f, struct ct_op *op, const struct ct_op *maker, double less)
{
    op->why = ct_arena_printf(
        f->plan->graph->arena, "%s%snot fused with %s: predicted to be %.0f us slower",
        op->why ? op->why : "", op->why ? "; " : "", maker->type->name, less * 1e-3);
}

/* Let `group` run where m is. False: it may not, or would be slower, by *less nanoseconds. */
static bool join(struct finder *f, const struct member *m, int group, double *less)
{
    double apart = f->gain[m->group] + f->gain[group];
    struct fuse_group *joined;

    *less = 0;
    if (!may_join(f, group, m))
        return false;
    merge(f, m->group, group);
    joined = plan_group(f, m->group);
    if (joined && (fuse_config.always || gain(f, joined) >= apart)) {
        f->gain[m->group] = gain(f, joined);
        return true;
    }
    split(f, m->group, group);
    if (joined) /* else it is too large for an op */
        *less = apart - gain(f, joined);
    return false;
}

static void join_producers(struct finder *f, struct member *m)
{
    for (int i = 0; i < m->op->ins; i++) {
        const struct ct_op *maker = m->op->in[i] ? m->op->in[i]->producer : NULL;
        int group = group_of(f, maker);
        double less;

        if (group >= 0 && group != m->group && !join(f, m, group, &less) && less > 0)
            refuse(f, m->op, maker, less);
    }
}

/* Earlier ops that take the same rows: they are read once for all. */
static void join_neighbours(struct finder *f, struct member *m)
{
    for (int i = 0; i < m->op->ins; i++) {
        if (!m->op->in[i] || m->op->in[i]->ndim < m->whole->ndim)
            continue;
        ct_for_each_use (use, m->op->in[i]) {
            int group = group_of(f, use->op);
            double less;

            if (group >= 0 && group != m->group && f->place[use->op->out[0]->id] < m->place)
                join(f, m, group, &less);
        }
    }
}

static void begin(struct finder *f)
{
    ct_for_each_op (op, f->plan->graph)
        f->count++;
    f->member = ct_arena_array(&f->scratch, struct member, f->count + 1);
    f->first = ct_arena_array(&f->scratch, int, f->count + 1);
    f->next = ct_arena_array(&f->scratch, int, f->count + 1);
    f->place = ct_arena_array(&f->scratch, uint32_t, f->plan->graph->value_count + 1);
    f->gain = ct_arena_array(&f->scratch, double, f->count + 1);
    f->node = ct_arena_array(&f->scratch, int, f->plan->graph->value_count + 1);
    for (size_t i = 0; i < f->plan->graph->value_count; i++)
        f->node[i] = -1;
    f->count = 0;
    ct_for_each_op (op, f->plan->graph) {
        bool may = may_fuse(f, op);
        int at = f->count++;

        if (ct_part_is_microbatch(op->section->part) && !(op->type->flags & CT_OP_VIEW)) {
            f->plan->moved += traffic(f->plan, op);
            f->plan->moved_by_formula += may ? traffic(f->plan, op) : 0;
        }
        for (int i = 0; i < op->outs; i++)
            f->place[op->out[i]->id] = (uint32_t)at;
        f->member[at] =
            (struct member){op, may ? ct_pointwise_whole(op) : NULL, (uint32_t)at, may ? at : -1};
        f->first[at] = may ? at : -1;
        f->next[at] = -1;
    }
}

int fuse_find(struct fuse_plan *plan)
{
    struct finder f = {.plan = plan};

    begin(&f);
    for (int at = 0; at < f.count; at++)
        if (f.member[at].group >= 0) {
            join_producers(&f, &f.member[at]);
            join_neighbours(&f, &f.member[at]);
        }
    for (int group = 0; group < f.count; group++) {
        struct fuse_group *g = f.first[group] >= 0 ? plan_group(&f, group) : NULL;

        if (!g || (!fuse_config.always && g->lone && has_kernel(plan->device, g->op[0]->type)))
            continue;
        plan->group = ct_arena_grow(plan->arena, plan->group, &plan->room, plan->count + 1,
                                    sizeof(struct fuse_group *));
        plan->group[plan->count++] = g;
    }
    ct_arena_finish(&f.scratch);
    return 0;
}
