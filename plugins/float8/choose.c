/*
 * The linear layers that become Float8 products: those whose sizes fit, that no filter names, and
 * by whose outputs nothing is chosen. Ops say in `why` what became of them, and the log has a
 * summary.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/names.h>
#include <ctitan/log.h>
#include <ctitan/rng.h>

#include "float8.h"

#define AUTO "auto_filter_small_kn"

struct name {
    const char *text;
    bool used;
};

/* Layers that were left for one reason. */
struct left {
    const char *reason, *first;
    int count;
};

struct choosing {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct name *name;
    struct left *left;
    size_t names, name_room, lefts, left_room;
    bool small; /* AUTO is given */
    int chosen, layers;
    int mixtures;     /* ops whose weights are stacked matrices */
    const char *kept; /* the dtype in which they compute */
};

static int read_filter(struct choosing *c)
{
    char *rest = ct_arena_strdup(&c->scratch, float8_config.filter), *item;

    while ((item = strsep(&rest, ","))) {
        item += strspn(item, " \t");
        item[strcspn(item, " \t")] = '\0';
        if (!strcmp(item, AUTO)) {
            c->small = true;
        } else if (*item) {
            c->name =
                ct_arena_grow(&c->scratch, c->name, &c->name_room, c->names + 1, sizeof(*c->name));
            c->name[c->names++] = (struct name){item, false};
        }
    }
    if (!float8_recipe() && strcmp(float8_config.filter, CT_REGION_HEAD) != 0)
        return ct_fail(CT_ECONFIG,
                       "[float8] filter = %s needs a recipe: with recipe = none no linear layer is "
                       "changed",
                       float8_config.filter);
    if (!c->small || float8_config.recipe == FLOAT8_TENSORWISE ||
        float8_config.recipe == FLOAT8_ROWWISE)
        return 0;
    return ct_fail(CT_ECONFIG, "[float8] filter: " AUTO " has no sizes for recipe = %s",
                   float8_word("recipe", &c->scratch));
}

/* The parameter that w is cast or gathered from, or w itself; NULL: none. */
static const struct ct_value *parameter_of(const struct ct_value *w)
{
    while (w->producer &&
           (w->producer->type == &ct_op_redistribute || w->producer->type == &ct_op_cast))
        w = w->producer->in[0];
    return w->role == CT_ROLE_PARAM ? w : NULL;
}

/* torchao's sizes, measured on H100: smaller products are no faster in Float8. */
static bool is_small(int64_t k, int64_t n)
{
    if (float8_config.recipe == FLOAT8_TENSORWISE)
        return k <= 4096 && n <= 1024;
    return n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
}

static bool same_shape(const struct ct_value *a, const struct ct_value *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(*a->shape) * (size_t)a->ndim);
}

/* The op that makes indices of x, or of what follows from it without a product, such as a router's
   choice of experts; NULL: none. A rounding of x may choose others. */
static const struct ct_op *choice_by(const struct ct_value *x)
{
    const struct ct_op *found = NULL;

    ct_for_each_use (use, x)
        for (int i = 0; !found && use->op->section->part == CT_PART_F && i < use->op->outs; i++) {
            const struct ct_value *y = use->op->out[i];

            if (!ct_dtype_is_float(y->dtype))
                found = use->op;
            else if (!use->op->type->flops && same_shape(y, x))
                found = choice_by(y);
        }
    return found;
}

/* NULL, or why the layer is left unchanged. */
static const char *refuse(struct choosing *c, const struct ct_op *op, const struct ct_value *param)
{
    struct ct_arena *arena = c->graph->arena;
    const struct ct_value *x = op->in[0];
    const struct float8_recipe *recipe = float8_recipe();
    int64_t n = op->in[1]->shape[0], k = op->in[1]->shape[1],
            unit = recipe->block ? recipe->block : 16;
    const struct ct_op *choice = choice_by(op->out[0]);
    const char *reason = NULL;

    if (!param)
        return "the weight is not a parameter";
    if (op->marks & ct_mark(CT_MARK_FULL_PRECISION))
        return "they are marked full_precision";
    for (size_t i = 0; i < c->names; i++)
        if (strstr(param->name, c->name[i].text) || !strcmp(op->region, c->name[i].text)) {
            c->name[i].used = true;
            reason = ct_arena_printf(arena, "filter names %s", c->name[i].text);
        }
    if (reason)
        return reason;
    if (choice)
        return ct_arena_printf(arena, "%s chooses by the output", choice->type->name);
    if (n % unit || k % unit)
        return ct_arena_printf(arena, "K = %lld and N = %lld are not both multiples of %lld",
                               (long long)k, (long long)n, (long long)unit);
    if (recipe->block && x->shape[x->ndim - 2] % unit)
        return ct_arena_printf(arena, "sequences of %lld tokens are not a multiple of %lld",
                               (long long)x->shape[x->ndim - 2], (long long)unit);
    if (recipe->nvfp4 && (x->ndim != 3 || x->shape[0] != ct_graph_batch(c->graph) ||
                          x->shape[1] != ct_graph_seq_len(c->graph)))
        return "rows are not the tokens of sequences, whose numbers round gradients";
    if (c->small && is_small(k, n))
        return ct_arena_printf(arena, "K = %lld and N = %lld are small (" AUTO ")", (long long)k,
                               (long long)n);
    return NULL;
}

static void leave(struct choosing *c, struct ct_op *op, const struct ct_value *param,
                  const char *reason)
{
    size_t i = 0;

    op->why = ct_arena_printf(c->graph->arena, "float8: not, as %s", reason);
    while (i < c->lefts && strcmp(c->left[i].reason, reason) != 0)
        i++;
    if (i == c->lefts) {
        c->left = ct_arena_grow(&c->scratch, c->left, &c->left_room, ++c->lefts, sizeof(*c->left));
        c->left[i] = (struct left){reason, param ? param->name : op->in[1]->name, 0};
    }
    c->left[i].count++;
}

static bool is_float8_linear(const struct ct_op *op)
{
    return op->type == &float8_op_linear || op->type == &float8_op_nvfp4_linear;
}

static int64_t stream_of(const struct ct_value *param)
{
    return float8_recipe()->nvfp4 ? (int64_t)ct_rng_stream(param->name) : 0;
}

static int64_t mx_block(void)
{
    return float8_recipe()->nvfp4 ? 0 : float8_recipe()->block;
}

static void decide(struct choosing *c, struct ct_op *op)
{
    const struct ct_value *param = parameter_of(op->in[1]);
    const char *reason = refuse(c, op, param);

    c->layers++;
    if (reason) {
        leave(c, op, param, reason);
        return;
    }
    c->chosen++;
    op->why = ct_arena_printf(c->graph->arena, "float8: %s", float8_word("recipe", &c->scratch));
    ct_op_become(c->graph, op, float8_recipe()->nvfp4 ? &float8_op_nvfp4_linear : &float8_op_linear,
                 (struct ct_value *[]){op->in[0], op->in[1]}, 2,
                 &(struct float8_product){.dtype = op->out[0]->dtype,
                                          .fast_accumulation = true,
                                          .plain_dw = float8_recipe()->plain_dw,
                                          .stream = stream_of(param),
                                          .block = mx_block()});
}

/* Experts: a product of another op, with weights that are stacked matrices. */
static void count_mixture(struct choosing *c, const struct ct_op *op)
{
    for (int i = 0; op->section->part == CT_PART_F && op->type->flops && i < op->ins; i++) {
        const struct ct_value *param = op->in[i] ? parameter_of(op->in[i]) : NULL;

        if (!param || param->ndim < 3)
            continue;
        c->mixtures++;
        c->kept = ct_dtype_name(op->in[i]->dtype);
        return;
    }
}

/* Layers that a model emitted in one op are decided one by one. `join` joins those that stay. */
static int separate(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_value **out = ct_arena_array(graph->arena, struct ct_value *, op->outs);
    int rc = op->type->apart(&b, op, out);

    for (int i = 0; rc == 0 && i < op->outs; i++) {
        const char *name = op->out[i]->name;

        ct_value_replace(graph, op->out[i], out[i]);
        ct_value_rename(graph, op->out[i], "apart");
        ct_value_rename(graph, out[i], name);
    }
    if (rc == 0)
        ct_graph_remove(graph, op);
    return rc;
}

/* "q_proj" of "model.layers.0.self_attn.q_proj.weight" */
static const char *layer_name(struct ct_arena *arena, const char *param)
{
    const char *end = strrchr(param, '.'), *begin = end ? end : param;

    while (begin > param && begin[-1] != '.')
        begin--;
    return ct_arena_printf(arena, "%.*s", (int)(end ? end - begin : 0), begin);
}

/* Names that a filter may have been meant to be. */
static const char **list_names(struct choosing *c, size_t *count)
{
    const char **names = NULL;
    size_t room = 0;

    *count = 0;
    ct_for_each_op (op, c->graph) {
        const struct ct_value *param =
            op->type == &ct_op_linear || is_float8_linear(op) ? parameter_of(op->in[1]) : NULL;

        if (!param)
            continue;
        names = ct_arena_grow(&c->scratch, names, &room, *count + 2, sizeof(*names));
        names[(*count)++] = op->region;
        names[(*count)++] = layer_name(&c->scratch, param->name);
    }
    return names;
}

static int check_names(struct choosing *c)
{
    for (size_t i = 0; i < c->names; i++)
        if (!c->name[i].used && strcmp(c->name[i].text, CT_REGION_HEAD) != 0) {
            size_t count;
            const char **names = list_names(c, &count);

            return ct_fail(CT_ECONFIG,
                           "[float8] filter: %s is neither a linear layer's region nor part of a "
                           "weight's name%s; `ctitan explain` shows both",
                           c->name[i].text, ct_did_you_mean(c->name[i].text, names, count));
        }
    return 0;
}

static void report(struct choosing *c)
{
    if (float8_recipe())
        ct_info("float8: %d of %d linear layers have %s products", c->chosen, c->layers,
                float8_word("recipe", &c->scratch));
    for (size_t i = 0; i < c->lefts; i++)
        ct_info("float8: %d do not, as %s: %s%s", c->left[i].count, c->left[i].reason,
                c->left[i].first, c->left[i].count > 1 ? ", .." : "");
    if (c->mixtures && float8_config.experts != FLOAT8_EXPERTS_NONE)
        ct_info("float8: the experts of %d mixtures have %s products", c->mixtures,
                float8_word("experts", &c->scratch));
    else if (c->mixtures)
        ct_info("float8: the experts of %d mixtures stay in %s, as they are no linear layers",
                c->mixtures, c->kept);
}

static int check_options(struct ct_arena *scratch)
{
    if (!float8_recipe() && float8_config.experts == FLOAT8_EXPERTS_NONE)
        return ct_fail(CT_ECONFIG, "[float8] recipe = none and experts = none leave nothing to do: "
                                   "choose a recipe of one, or leave the plugin float8 out");
    if (float8_config.all_gather && !float8_recipe())
        return ct_fail(CT_ECONFIG, "[float8] all_gather = true needs recipe = tensorwise: with "
                                   "none no weight is quantised");
    if (float8_config.all_gather && float8_config.recipe != FLOAT8_TENSORWISE)
        return ct_fail(CT_ECONFIG,
                       "[float8] all_gather = true needs recipe = tensorwise: with %s a weight has "
                       "several scales",
                       float8_word("recipe", scratch));
    return 0;
}

static int choose_layers(struct choosing *c)
{
    int rc = 0;

    ct_for_each_op_safe (op, c->graph)
        if (rc == 0 && op->type == &ct_op_linear && op->outs > 1)
            rc = separate(c->graph, op);
    ct_for_each_op (op, c->graph)
        if (rc == 0 && op->type == &ct_op_linear)
            decide(c, op);
    return rc < 0 ? rc : check_names(c);
}

static int look_at_experts(struct choosing *c)
{
    ct_for_each_op (op, c->graph)
        if (op->type != &ct_op_linear && !is_float8_linear(op))
            count_mixture(c, op);
    if (c->mixtures || float8_config.experts == FLOAT8_EXPERTS_NONE)
        return 0;
    return ct_fail(CT_ECONFIG, "[float8] experts = %s, but the model has no experts",
                   float8_word("experts", &c->scratch));
}

int float8_choose(struct ct_graph *graph, struct ct_run *run)
{
    struct choosing c = {.graph = graph};
    int rc = check_options(&c.scratch);

    if (rc == 0)
        rc = read_filter(&c);
    if (rc == 0 && float8_recipe())
        rc = choose_layers(&c);
    if (rc == 0)
        rc = look_at_experts(&c);
    if (rc == 0 && graph != run->validation_graph)
        report(&c);
    ct_arena_finish(&c.scratch);
    return rc;
}
