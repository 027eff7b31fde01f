/*
 * The linear layers that get adapters, and what is added for each.
 */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/lib/stored.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>

#include "lora.h"

#define ALL "all-linear"
#define HEAD "head" /* the head's region */

struct adapting {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct ct_patterns patterns;
    bool *used;          /* which of them */
    const char *example; /* a layer's name */
    int layers, adapted;
    const struct ct_value *experts; /* a weight of the first experts */
    int mixtures;
};

/* ---- which ---- */

/* "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight". */
static const char *module_of(struct adapting *a, const struct ct_value *w)
{
    size_t size = strlen(w->name), end = strlen(LORA_WEIGHT);

    if (size > end && !strcmp(w->name + size - end, LORA_WEIGHT))
        size -= end;
    return ct_arena_printf(&a->scratch, "%.*s", (int)size, w->name);
}

/* The whole name, or what follows one of its dots. */
static bool fits(const char *pattern, const char *module)
{
    while (module) {
        if (!fnmatch(pattern, module, 0))
            return true;
        module = strchr(module, '.');
        module += module != NULL;
    }
    return false;
}

static bool is_chosen(struct adapting *a, const struct ct_op *op, const char *module)
{
    bool chosen = false;

    for (size_t i = 0; i < a->patterns.count; i++) {
        const char *pattern = a->patterns.pattern[i];

        if (strcmp(pattern, ALL) ? fits(pattern, module) : strcmp(op->region, HEAD) != 0)
            chosen = a->used[i] = true;
    }
    return chosen;
}

/* Of a forward pass that has the weights of the beginning, and so no adapters. */
static bool is_reference(const struct ct_op *op)
{
    return op->marks & ct_mark("reference");
}

/* The weight of an adapted layer is merged with the product, which no other op may see. */
static int check_weight(const struct ct_value *w, const struct ct_op *op, const char *module)
{
    if (w->ndim != 2)
        return ct_fail(CT_ECONFIG, "[lora] modules: the weight of %s is no matrix", module);
    ct_for_each_use (use, w)
        if (use->op != op && use->op->section->part != CT_PART_INIT && !is_reference(use->op))
            return ct_fail(CT_ECONFIG,
                           "[lora] modules: %s is used by %s, too (is the head tied to the "
                           "embedding?), and cannot have an adapter: choose other modules",
                           w->name, use->op->type->name);
    return 0;
}

/* ---- adapters ---- */

static void split_like(struct ct_sharding *s, int dim, const struct ct_sharding *w, int of)
{
    for (int i = 0; i < w->count[of]; i++)
        ct_sharding_split(s, dim, w->axis[of][i]);
}

/* Whether each of the shards that W's columns have gets a part of `rank`. */
static bool divides(const struct ct_graph *graph, const struct ct_sharding *w)
{
    int64_t shards = 1, rank = lora_config.rank;

    for (int i = 0; i < w->count[1]; i++)
        shards *= graph->mesh.axis[w->axis[1][i]].size;
    return rank > (rank + shards - 1) / shards * (shards - 1);
}

static struct ct_value *parameter(struct ct_builder *b, const struct ct_value *w,
                                  const char *module, const char *suffix, int64_t rows,
                                  int64_t columns, struct ct_init init)
{
    const char *name = ct_arena_printf(b->graph->arena, "%s%s", module, suffix);
    struct ct_value *p = ct_parameter(b, name, 2, (int64_t[]){rows, columns}, init);

    if (!p)
        return NULL;
    p->dtype = w->dtype;
    p->holders = w->holders;
    p->marks |= ct_mark(LORA_ADAPTER);
    return p;
}

/* y becomes W x + scale B (A x), under its name. */
static int adapt(struct adapting *a, struct ct_op *op, int i, const char *module)
{
    struct ct_value *w = op->in[1 + i], *y = op->out[i], *down, *up, *h;
    struct ct_builder b = ct_builder_after(a->graph, op);
    const char *name = y->name;
    double bound = 1 / sqrt((double)w->shape[1]);

    b.why = "lora: an adapter";
    b.marks = ct_mark("full_precision");
    down = parameter(&b, w, module, LORA_A, lora_config.rank, w->shape[1],
                     (struct ct_init){CT_INIT_UNIFORM, .a = -bound, .b = bound});
    up = parameter(&b, w, module, LORA_B, w->shape[0], lora_config.rank, (struct ct_init){0});
    if (!up)
        return b.status;
    split_like(&down->sharding, 1, &w->sharding, 1);
    split_like(&up->sharding, 0, &w->sharding, 0);
    if (divides(a->graph, &w->sharding))
        split_like(&up->sharding, 1, &w->sharding, 1);
    ct_value_rename(a->graph, y, ct_arena_printf(a->graph->arena, "%s.frozen", name));
    h = ct_linear(&b, ct_arena_printf(a->graph->arena, "%s.lora_A", name), op->in[0], down);
    h = ct_scale(&b, ct_arena_printf(a->graph->arena, "%s.lora_scaled", name), h, lora_scale());
    h = ct_linear(&b, ct_arena_printf(a->graph->arena, "%s.lora_B", name), h, up);
    h = ct_add(&b, name, y, h);
    if (h)
        ct_value_replace(a->graph, y, h);
    return b.status;
}

static int adapt_layer(struct adapting *a, struct ct_op *op, int i)
{
    struct ct_value *w = op->in[1 + i];
    const char *module = module_of(a, w);
    int rc;

    if (w->role != CT_ROLE_PARAM || is_reference(op))
        return 0;
    a->layers++;
    a->example = a->example ? a->example : module;
    if (!is_chosen(a, op, module))
        return 0;
    rc = check_weight(w, op, module);
    a->adapted += rc == 0;
    return rc == 0 ? adapt(a, op, i, module) : rc;
}

/* ---- all ---- */

static int check_patterns(const struct adapting *a)
{
    if (!a->patterns.count)
        return ct_fail(CT_ECONFIG, "[lora] modules is empty: name linear layers, or " ALL);
    for (size_t i = 0; i < a->patterns.count; i++)
        if (!a->used[i])
            return ct_fail(CT_ECONFIG,
                           "[lora] modules: %s fits no linear layer; they have names like %s, and "
                           "`ctitan explain` shows all weights",
                           a->patterns.pattern[i],
                           a->example ? a->example : "(the model has none)");
    return 0;
}

static void report(const struct adapting *a)
{
    int64_t trained = 0, all = 0;

    for (size_t i = 0; i < a->graph->value_count; i++) {
        const struct ct_value *v = a->graph->values[i];
        int64_t count = v->role == CT_ROLE_PARAM ? ct_shape_count(v->ndim, v->shape) : 0;

        all += count;
        trained += v->marks & ct_mark(LORA_ADAPTER) ? count : 0;
    }
    ct_info("lora: %d of %d linear layers have adapters of rank %lld: %lld of %lld parameters are "
            "trained (%.2f%%)",
            a->adapted, a->layers, (long long)lora_config.rank, (long long)trained, (long long)all,
            100 * (double)trained / (double)all);
    if (a->mixtures)
        ct_info("lora: the experts of %d layers are frozen, and have no adapters: %s, ..",
                a->mixtures, a->experts->name);
}

/* Files of the model have no adapters. */
static const struct ct_stored_rule stored[] = {
    {LORA_A, "", false, 0, 0}, {LORA_B, "", false, 0, 0}, {0}};

int lora_adapt(struct ct_graph *graph, struct ct_run *run)
{
    struct adapting a = {.graph = graph};
    int rc = 0;

    a.patterns = ct_patterns_read(&a.scratch, lora_config.modules);
    a.used = ct_arena_array(&a.scratch, bool, a.patterns.count);
    ct_for_each_op_safe (op, graph) {
        for (int i = op->outs - 1; rc == 0 && op->type == &ct_op_linear && i >= 0; i--)
            rc = adapt_layer(&a, op, i);
        if (op->type == &ct_op_experts) {
            a.experts = a.experts ? a.experts : op->in[3];
            a.mixtures++;
        }
    }
    if (rc == 0)
        rc = check_patterns(&a);
    if (rc == 0 && graph != run->validation_graph)
        report(&a);
    ct_arena_finish(&a.scratch);
    if (rc == 0)
        ct_stored_add(run, stored);
    return rc;
}
