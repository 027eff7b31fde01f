/*
 * The layers that get adapters, and what is added for each.
 */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/names.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/lib/stored.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>

#include "lora.h"

#define ALL "all-linear"

enum kind { LINEAR, EMBEDDING, STACK, KINDS };

struct adapting {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct ct_patterns patterns;
    bool *used;          /* which of them */
    const char *example; /* a layer's name */
    int layers[KINDS], adapted[KINDS];
    const struct ct_value *stack; /* the first that has no adapter */
    int64_t tokens;               /* rows of the embedding that are trained */
};

/* ---- which ---- */

const char *lora_module_of(struct ct_arena *arena, const struct ct_value *w)
{
    size_t size = strlen(w->name);

    if (ct_ends_in(w->name, LORA_WEIGHT))
        size -= strlen(LORA_WEIGHT);
    return ct_arena_printf(arena, "%.*s", (int)size, w->name);
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

/* in_all: it is one of all linear layers. */
static bool is_chosen(struct adapting *a, const char *module, bool in_all)
{
    bool chosen = false;

    for (size_t i = 0; i < a->patterns.count; i++) {
        const char *pattern = a->patterns.pattern[i];

        if (strcmp(pattern, ALL) ? fits(pattern, module) : in_all)
            chosen = a->used[i] = true;
    }
    return chosen;
}

/* Whether op is of a forward pass with the weights of the beginning, and so without adapters. */
static bool is_reference(const struct ct_op *op)
{
    return op->marks & ct_mark(CT_REFERENCE);
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
                           "embedding, or are further tokens predicted?), and cannot have an "
                           "adapter: choose other modules",
                           w->name, use->op->type->name);
    return 0;
}

static int check_dora(const char *module, const char *what)
{
    if (!lora_config.dora)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "[lora] dora: %s is %s, and magnitudes are those of linear layers: leave it out "
                   "([lora] modules), or train without dora",
                   module, what);
}

/* ---- adapters ---- */

static void split_like(struct ct_sharding *s, int dim, const struct ct_sharding *w, int of)
{
    for (int i = 0; i < w->count[of]; i++)
        ct_sharding_split(s, dim, w->axis[of][i]);
}

/* Whether each of the shards that a dimension of W has gets a part of `rank`. */
static bool divides(const struct ct_graph *graph, const struct ct_sharding *w, int dim)
{
    int64_t shards = 1, rank = lora_config.rank;

    for (int i = 0; i < w->count[dim]; i++)
        shards *= graph->mesh.axis[w->axis[dim][i]].size;
    return rank > (rank + shards - 1) / shards * (shards - 1);
}

struct ct_value *lora_parameter(struct ct_builder *b, const struct ct_value *w, const char *module,
                                const char *suffix, struct ct_shape shape, const int *like,
                                struct ct_init init)
{
    const char *name = ct_arena_printf(b->graph->arena, "%s%s", module, suffix);
    struct ct_value *p = ct_parameter(b, name, shape.ndim, shape.size, init);

    if (!p)
        return NULL;
    p->dtype = w->dtype;
    p->holders = w->holders;
    p->marks |= ct_mark(LORA_ADAPTER);
    for (int d = 0; d < shape.ndim; d++)
        if (like[d] >= 0)
            split_like(&p->sharding, d, &w->sharding, like[d]);
    return p;
}

/* Ops and values that are added for one layer. */
struct addition {
    struct ct_builder b;
    struct ct_value *w, *y, *sum; /* y: the layer's result, sum: that with B A x; not of a stack */
    const char *module, *name;
};

static struct addition begin(struct ct_builder b, struct ct_value *w, const char *module)
{
    struct addition add = {.b = b, .w = w, .module = module};

    add.b.why = "lora: an adapter";
    add.b.marks = ct_mark(CT_MARK_FULL_PRECISION);
    return add;
}

static const char *named(const struct addition *add, const char *suffix)
{
    return ct_arena_printf(add->b.graph->arena, "%s.%s", add->name, suffix);
}

/* The result of the layer's own op gets another name, and all that use it the new one. */
static void take_result(struct addition *add, struct ct_value *y)
{
    add->y = y;
    add->name = y->name;
    ct_value_rename(add->b.graph, y, named(add, "frozen"));
}

/* The columns of `up` are split as dimension dim of W is, so that a rank gets some rows of an
   unreduced sum, where there are enough. */
static void split_columns(struct addition *add, struct ct_value *up, int dim)
{
    if (divides(add->b.graph, &add->w->sharding, dim))
        split_like(&up->sharding, 1, &add->w->sharding, dim);
}

/* B (scale h) */
static struct ct_value *go_up(struct addition *add, struct ct_value *h, struct ct_value *up)
{
    h = ct_scale(&add->b, named(add, "lora_scaled"), h, lora_scale());
    return ct_linear(&add->b, named(add, "lora_B"), h, up);
}

/* y + h */
static struct ct_value *add_up(struct addition *add, const char *name, struct ct_value *h)
{
    add->sum = ct_add(&add->b, name, add->y, h);
    return add->sum;
}

/* Makes users of y use h, which is made of it. */
static void replace(struct addition *add, struct ct_value *h)
{
    if (!h)
        return;
    ct_value_replace(add->b.graph, add->y, h);
    ct_op_set_input(add->sum->producer, 0, add->y);
}

/* y + h, with the layer's magnitudes if there are any. */
static struct ct_value *sum(struct addition *add, struct ct_value *h, struct ct_value *down,
                            struct ct_value *up)
{
    const struct lora_scaled attrs = {lora_scale()};
    struct ct_value *m, *squared_norms;

    if (!lora_config.dora)
        return add_up(add, add->name, h);
    m = lora_parameter(&add->b, add->w, add->module, LORA_MAGNITUDE, ct_shape_of(1, add->w->shape),
                       (int[]){0}, (struct ct_init){0});
    if (!m)
        return NULL;
    m->dtype = CT_F32;
    m->dtype_fixed = true;
    squared_norms = ct_emit_type1(&add->b, &lora_op_squared_norms, named(add, "lora_squared_norms"),
                                  (struct ct_value *[]){add->w, down, up}, 3, &attrs);
    h = add_up(add, named(add, "lora_sum"), h);
    return ct_emit_type1(&add->b, &lora_op_magnify, add->name,
                         (struct ct_value *[]){h, m, squared_norms}, 3, NULL);
}

/* y becomes W x + scale B (A x), under its name. */
static int adapt_linear(struct adapting *a, struct ct_op *op, int i, const char *module)
{
    struct ct_value *w = op->in[1 + i], *down, *up, *h;
    struct addition add = begin(ct_builder_after(a->graph, op), w, module);
    int64_t rank = lora_config.rank;
    double bound = 1 / sqrt((double)w->shape[1]);

    down =
        lora_parameter(&add.b, w, module, LORA_A, (struct ct_shape){2, {rank, w->shape[1]}},
                       (int[]){-1, 1}, (struct ct_init){CT_INIT_UNIFORM, .a = -bound, .b = bound});
    up = lora_parameter(&add.b, w, module, LORA_B, (struct ct_shape){2, {w->shape[0], rank}},
                        (int[]){0, -1}, (struct ct_init){0});
    if (!up)
        return add.b.status;
    split_columns(&add, up, 1);
    take_result(&add, op->out[i]);
    h = go_up(&add, ct_linear(&add.b, named(&add, "lora_A"), op->in[0], down), up);
    replace(&add, sum(&add, h, down, up));
    return add.b.status;
}

/* y becomes the rows of W + scale (B A)^T. A is stored as the table is, [vocabulary, rank]. */
static int adapt_embedding(struct adapting *a, struct ct_op *op, const char *module)
{
    struct ct_value *w = op->in[1], *down, *up, *h;
    struct addition add = begin(ct_builder_after(a->graph, op), w, module);
    int64_t rank = lora_config.rank;

    down = lora_parameter(&add.b, w, module, LORA_EMBEDDING_A,
                          (struct ct_shape){2, {w->shape[0], rank}}, (int[]){0, -1},
                          (struct ct_init){0});
    up = lora_parameter(&add.b, w, module, LORA_EMBEDDING_B,
                        (struct ct_shape){2, {w->shape[1], rank}}, (int[]){1, -1}, CT_INIT_STD(1));
    if (!up)
        return add.b.status;
    split_columns(&add, up, 0);
    take_result(&add, op->out[0]);
    h = ct_padded_embedding(&add.b, named(&add, "lora_A"), op->in[0], down,
                            ((const struct ct_embedding *)op->attrs)->padding);
    replace(&add, add_up(&add, add.name, go_up(&add, h, up)));
    return add.b.status;
}

/* ---- stacked weights ---- */

bool lora_is_forward(const struct ct_use *use)
{
    return use->op->section->part != CT_PART_INIT && !is_reference(use->op);
}

/* Gives users of W the sum W + scale B A, which is made in front of them. */
static int adapt_stack(struct adapting *a, struct ct_value *w, const char *module)
{
    const int64_t *size = w->shape, rank = lora_config.rank;
    double bound = 1 / sqrt((double)size[2]);
    const struct lora_scaled attrs = {lora_scale()};
    struct ct_value *down = NULL, *up = NULL;
    int rc = 0;

    ct_for_each_use_safe (use, w) {
        struct ct_op *op = use->op;
        struct addition add;
        struct ct_value *merged;

        if (rc < 0 || !lora_is_forward(use))
            continue;
        add = begin(ct_builder_before(a->graph, op), w, module);
        if (!up) {
            down = lora_parameter(&add.b, w, module, LORA_A,
                                  (struct ct_shape){3, {size[0], rank, size[2]}}, (int[]){0, -1, 2},
                                  (struct ct_init){CT_INIT_UNIFORM, .a = -bound, .b = bound});
            up = lora_parameter(&add.b, w, module, LORA_B,
                                (struct ct_shape){3, {size[0], size[1], rank}}, (int[]){0, 1, -1},
                                (struct ct_init){0});
        }
        merged = ct_emit_type1(&add.b, &lora_op_merge,
                               ct_arena_printf(a->graph->arena, "%s.merged", w->name),
                               (struct ct_value *[]){w, down, up}, 3, &attrs);
        rc = add.b.status;
        if (merged) {
            merged->sharding = w->sharding;
            ct_op_set_input(op, use->index, merged);
        }
    }
    return rc;
}

/* A weight of three dimensions, one matrix for each expert. Depthwise convolutions have three
   dimensions too, but rows of one channel. */
static bool is_stack(const struct ct_value *v)
{
    bool used = false;

    if (v->role != CT_ROLE_PARAM || v->ndim != 3 || v->shape[1] == 1 ||
        !ct_dtype_is_float(v->dtype))
        return false;
    ct_for_each_use (use, v)
        used |= lora_is_forward(use);
    return used;
}

static int try_stack(struct adapting *a, struct ct_value *w)
{
    const char *module = lora_module_of(&a->scratch, w);
    int rc;

    a->layers[STACK]++;
    if (!is_chosen(a, module, false)) {
        a->stack = a->stack ? a->stack : w;
        return 0;
    }
    rc = check_dora(module, "a stack of experts");
    a->adapted[STACK] += rc == 0;
    return rc == 0 ? adapt_stack(a, w, module) : rc;
}

/* ---- all ---- */

static int try_linear(struct adapting *a, struct ct_op *op, int i)
{
    struct ct_value *w = op->in[1 + i];
    const char *module = lora_module_of(&a->scratch, w);
    int rc;

    if (w->role != CT_ROLE_PARAM || is_reference(op))
        return 0;
    a->layers[LINEAR]++;
    a->example = a->example ? a->example : module;
    if (!is_chosen(a, module, strcmp(op->region, CT_REGION_HEAD) != 0))
        return 0;
    rc = check_weight(w, op, module);
    a->adapted[LINEAR] += rc == 0;
    return rc == 0 ? adapt_linear(a, op, i, module) : rc;
}

static int try_embedding(struct adapting *a, struct ct_op *op)
{
    struct ct_value *w = op->in[1];
    const char *module = lora_module_of(&a->scratch, w);
    int rc;

    if (w->role != CT_ROLE_PARAM || is_reference(op))
        return 0;
    a->layers[EMBEDDING]++;
    if (!is_chosen(a, module, false))
        return 0;
    rc = check_weight(w, op, module);
    rc = rc == 0 ? check_dora(module, "an embedding") : rc;
    a->adapted[EMBEDDING] += rc == 0;
    return rc == 0 ? adapt_embedding(a, op, module) : rc;
}

static int check_patterns(const struct adapting *a)
{
    if (!a->patterns.count)
        return ct_fail(CT_ECONFIG, "[lora] modules is empty: name linear layers, or " ALL);
    for (size_t i = 0; i < a->patterns.count; i++)
        if (!a->used[i])
            return ct_fail(CT_ECONFIG,
                           "[lora] modules: %s fits no linear layer, no embedding and no experts; "
                           "they have names like %s, and `ctitan explain` shows all weights",
                           a->patterns.pattern[i],
                           a->example ? a->example : "(the model has none)");
    return 0;
}

static void report(const struct adapting *a)
{
    static const char *const names[] = {"linear layers", "embeddings", "stacks of experts"};
    int64_t trained = 0, all = 0;
    char others[96] = "";

    for (size_t i = 0; i < a->graph->value_count; i++) {
        const struct ct_value *v = a->graph->values[i];
        int64_t count = ct_value_is_own_param(v) ? ct_shape_count(v->ndim, v->shape) : 0;

        all += count;
        trained += v->marks & ct_mark(LORA_ADAPTER) ? count : 0;
    }
    for (int kind = EMBEDDING; kind < KINDS; kind++)
        if (a->adapted[kind])
            snprintf(others + strlen(others), sizeof(others) - strlen(others), ", %d of %d %s",
                     a->adapted[kind], a->layers[kind], names[kind]);
    ct_info("lora: %d of %d %s%s have adapters of rank %lld: %lld of %lld parameters are "
            "trained (%.2f%%)",
            a->adapted[LINEAR], a->layers[LINEAR], names[LINEAR], others,
            (long long)lora_config.rank, (long long)trained, (long long)all,
            100 * (double)trained / (double)all);
    if (a->tokens)
        ct_info("lora: %lld rows of the embedding are trained", (long long)a->tokens);
    if (a->stack)
        ct_info("lora: %d of %d stacks of experts are frozen, and have no adapters: %s, ..",
                a->layers[STACK] - a->adapted[STACK], a->layers[STACK], a->stack->name);
}

/* Files of the model have no adapters. */
static const struct ct_stored_rule stored[] = {
    {LORA_A, "", false, 0, 0},           {LORA_B, "", false, 0, 0},
    {LORA_EMBEDDING_A, "", false, 0, 0}, {LORA_EMBEDDING_B, "", false, 0, 0},
    {LORA_MAGNITUDE, "", false, 0, 0},   {LORA_TOKENS, "", false, 0, 0},
    {LORA_SELECTION, "", false, 0, 0},   {0}};

static int adapt_all(struct adapting *a)
{
    size_t values = a->graph->value_count;
    int rc = 0;

    ct_for_each_op_safe (op, a->graph) {
        for (int i = op->outs - 1; rc == 0 && op->type == &ct_op_linear && i >= 0; i--)
            rc = try_linear(a, op, i);
        if (rc == 0 && op->type == &ct_op_embedding)
            rc = try_embedding(a, op);
    }
    for (size_t i = 0; rc == 0 && i < values; i++)
        if (is_stack(a->graph->values[i]))
            rc = try_stack(a, a->graph->values[i]);
    if (rc == 0)
        rc = lora_adapt_tokens(a->graph, &a->scratch, &a->tokens);
    return rc < 0 ? rc : check_patterns(a);
}

int lora_adapt(struct ct_graph *graph, struct ct_run *run)
{
    struct adapting a = {.graph = graph};
    int rc;

    a.patterns = ct_patterns_read(&a.scratch, lora_config.modules);
    a.used = ct_arena_array(&a.scratch, bool, a.patterns.count);
    rc = adapt_all(&a);
    if (rc == 0 && graph != run->validation_graph)
        report(&a);
    ct_arena_finish(&a.scratch);
    if (rc == 0)
        ct_stored_add(run, stored);
    return rc;
}
