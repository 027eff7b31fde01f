/*
 * Recomputation of activations (Chen et al. 2016): a region of the model, such as a layer, keeps
 * its inputs. Its backward recomputes everything else that it needs from them.
 *
 * Values that other regions read, and those that a model or a plugin has marked "save", are kept.
 * Values computed from parameters alone are left alone: fsdp gathers them again by its own rule.
 */
#include <fnmatch.h>
#include <string.h>

#include <ctitan/op.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>

static struct config {
    const char *regions;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, regions, "regions", "layers.*",
                  "Regions whose forward is recomputed in the backward, as a pattern"),
    {0}};

struct recompute {
    struct ct_graph *graph;
    size_t count;            /* number of values before recomputation */
    bool *weight;            /* by id: computed from parameters alone */
    struct ct_value **again; /* by id: the backward's replacement; NULL: none yet */
    int status;
};

static void find_weights(struct recompute *r)
{
    for (size_t i = 0; i < r->count; i++)
        r->weight[i] = r->graph->values[i]->role == CT_ROLE_PARAM;
    ct_for_each_op (op, r->graph) {
        bool weight = op->ins > 0 && op->section->part <= CT_PART_F;

        for (int i = 0; i < op->ins; i++)
            weight &= op->in[i] && r->weight[op->in[i]->id];
        for (int i = 0; weight && i < op->outs; i++)
            r->weight[op->out[i]->id] = true;
    }
}

static bool is_backward(const struct ct_op *op)
{
    return op->section->part == CT_PART_I || op->section->part == CT_PART_W;
}

static bool is_repeatable(const struct ct_op *op)
{
    return op->section->part == CT_PART_F && !fnmatch(config.regions, op->region, 0) &&
           !(op->type->flags & (CT_OP_EFFECT | CT_OP_RENDEZVOUS));
}

static bool same_region(const struct ct_op *a, const struct ct_op *b)
{
    return a->section == b->section && a->region == b->region;
}

/* True for a collective at the start of a region, such as a reduce-scatter of the previous region's
   unreduced output. Its result is kept if it is no larger than its input. Sizes are those of the
   first rank, so that all ranks decide alike. */
static bool arrives(const struct recompute *r, const struct ct_op *op)
{
    size_t in = 0, out = 0;

    if (!(op->type->flags & CT_OP_COLLECTIVE))
        return false;
    for (int i = 0; i < op->ins; i++) {
        if (op->in[i]->producer && same_region(op->in[i]->producer, op))
            return false;
        in += ct_value_bytes(r->graph, op->in[i], 0);
    }
    for (int i = 0; i < op->outs; i++)
        out += ct_value_bytes(r->graph, op->out[i], 0);
    return out <= in;
}

/* True if the backward can use v without recomputing it. */
static bool is_kept(const struct recompute *r, const struct ct_value *v)
{
    const struct ct_op *op = v->producer;

    if (!op || v->id >= r->count || r->weight[v->id] || !is_repeatable(op) || arrives(r, op) ||
        v->fetch_count || v->marks & ct_mark("save"))
        return true;
    ct_for_each_use (use, v)
        if (!is_backward(use->op) && !same_region(use->op, op))
            return true;
    return false;
}

/* The backward's replacement for v. New ops are placed in front of user, their first user, in
   section I: a schedule may run W, the gradients of weights, much later. */
static struct ct_value *again(struct recompute *r, struct ct_value *v, struct ct_op *user)
{
    struct ct_op *op, *copy;
    struct ct_value **in;
    struct ct_builder b;

    if (!v || r->status < 0 || is_kept(r, v))
        return v;
    if (r->again[v->id])
        return r->again[v->id];
    op = v->producer;
    in = ct_arena_array(r->graph->arena, struct ct_value *, op->ins);
    for (int i = 0; i < op->ins; i++)
        in[i] = again(r, op->in[i], user);
    b = ct_builder_before(r->graph, user);
    b.section = ct_graph_section(r->graph, CT_PART_I, op->section->group);
    b.region = op->region;
    b.why = "recompute: its region keeps only its inputs";
    copy = ct_op_clone(&b, op, in, "again");
    r->status = b.status;
    for (int i = 0; copy && i < op->outs; i++)
        r->again[op->out[i]->id] = copy->out[i];
    return r->again[v->id];
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct recompute r = {.graph = graph, .count = graph->value_count};

    (void)run;
    r.weight = ct_arena_array(&scratch, bool, r.count);
    r.again = ct_arena_array(&scratch, struct ct_value *, r.count);
    find_weights(&r);
    ct_for_each_op (op, graph)
        for (int i = 0; is_backward(op) && i < op->ins && r.status == 0; i++) {
            struct ct_value *v = again(&r, op->in[i], op);

            if (v != op->in[i])
                ct_op_set_input(op, i, v);
        }
    ct_arena_finish(&scratch);
    if (r.status == 0)
        ct_graph_sweep(graph); /* removes ops that only the backward needed */
    return r.status;
}

static const struct ct_transform transform = {.size = sizeof(struct ct_transform),
                                              .name = "recompute",
                                              .summary = "recomputes regions in the backward",
                                              .phase = CT_PHASE_MEMORY,
                                              .needs = CT_NAMES("gradients"),
                                              .gives = CT_NAMES("recomputed"),
                                              .apply = apply};

CT_PLUGIN(.name = "recompute", .version = "1.0",
          .summary = "Activation checkpointing: regions are recomputed in the backward",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_TRANSFORM, "recompute", &transform}));
