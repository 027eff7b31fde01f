/*
 * Muon (Jordan et al. 2024): the momentum of a matrix, made nearly orthogonal by five steps of a
 * Newton-Schulz iteration. It takes the matrices of layers, without routers, that no pattern
 * excludes; another optimizer takes the rest: embeddings, the head, routers, what has one row or
 * one column, such as taps of depthwise convolutions, and vectors.
 *
 * An update is scaled by 0.2 sqrt(larger dimension), so that its elements are as large as AdamW's
 * and both can share learning rate and decay (Liu et al. 2025; torch.optim.Muon with
 * adjust_lr_fn = match_rms_adamw). The iteration needs whole matrices: its factors may not be
 * split, so propagation gathers the momentum, and each rank keeps its shard of the result. Stacked
 * matrices, such as experts, may be split between matrices. Where they are split within, ranks
 * exchange their shards of all matrices for some whole ones, and the results back.
 *
 * The ops' kernels are the devices' (plugins/cpu/muon.c, plugins/cuda/muon.c).
 */
#include <float.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/names.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/model.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

#define BELOW_1 0.999999999999 /* with 1, the momentum would stay 0 */

struct hyper {
    double momentum, weight_decay, scale;
};

/* Operands of the iteration: float32, or matrices rounded to bfloat16, with float32 sums. */
enum products { FLOAT32, BFLOAT16 };

#define BIASES "*.bias" /* of experts: stacks of vectors */
/* Patterns that recipes may have for several models: not every model has such names. */
#define USUAL "*embed*, *lm_head*, *wte*, *wpe*, *mlp.gate.weight, *.router.weight, " BIASES

static struct config {
    struct hyper hyper;
    enum products products;
    const char *exclude, *lr_factors;
} config;

static const struct ct_option options[] = {
    CT_OPT_FLOAT(struct config, hyper.momentum, "momentum", "0.95", 0, BELOW_1,
                 "Decay of the momentum"),
    CT_OPT_FLOAT(struct config, hyper.weight_decay, "weight_decay", "0.1", 0, DBL_MAX,
                 "Share of a weight that a step at learning rate 1 takes away"),
    CT_OPT_FLOAT(struct config, hyper.scale, "scale", "0.2", 0, DBL_MAX,
                 "An update is its direction, times this, times the root of the larger dimension"),
    CT_OPT_ENUM(struct config, products, "products", "float32", "float32|bfloat16",
                "What the iteration multiplies; sums are float32"),
    CT_OPT_STRING(struct config, exclude, "exclude", BIASES,
                  "Patterns of names, separated by commas: matrices of layers left to the other "
                  "optimizer, beside embeddings, the head and routers"),
    CT_OPT_STRING(struct config, lr_factors, "lr_factors", "",
                  "PATTERN:FACTOR, separated by commas: matrices whose learning rate is so many "
                  "times lr; the first pattern counts"),
    {0}};

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct hyper, momentum, "momentum", "0.95", 0, BELOW_1, "Decay of the momentum"),
    CT_OPT_FLOAT(struct hyper, weight_decay, "weight_decay", "0.1", 0, DBL_MAX, "Decay"),
    CT_OPT_FLOAT(struct hyper, scale, "scale", "1", 0, DBL_MAX, "Factor of the update"),
    {0}};

static void put(const struct ct_launch *l, int64_t i, double value)
{
    ct_tensor_store(&l->out[0], i, value + (l->accumulate & 1 ? ct_tensor_load(&l->out[0], i) : 0));
}

struct iteration {
    enum products products;
};

static const struct ct_option iteration_attrs[] = {
    CT_OPT_ENUM(struct iteration, products, "products", "float32", "float32|bfloat16", "Operands"),
    {0}};

/* ---- the momentum, with Nesterov's look ahead ---- */

static int momentum_run(const struct ct_launch *l)
{
    double keep = ((const struct hyper *)l->op->attrs)->momentum;
    double clip = ct_tensor_load(&l->in[0], 0);

    for (int64_t i = 0; clip >= 0 && i < ct_tensor_count(&l->in[1]); i++) {
        double g = clip * ct_tensor_load(&l->in[1], i);
        double m = keep * ct_tensor_load(&l->in[2], i) + (1 - keep) * g;

        ct_tensor_store(&l->in[2], i, m);
        put(l, i, (1 - keep) * g + keep * m);
    }
    return 0;
}

static const struct ct_op_type momentum_type = {
    .size = sizeof(struct ct_op_type),
    .name = "muon.momentum",
    .summary = "m = momentum m + (1 - momentum) g; direction = the same of m and g again",
    .signature = "clip[] f, g[.] T, !m[.] T -> direction[.] T",
    .attrs = attrs,
    .attrs_size = sizeof(struct hyper),
    .reference = momentum_run,
};

/* ---- the iteration ---- */

/* c[m, n] = a[m, k] b[k, n] */
static void multiply(const double *a, const double *b, double *c, int64_t m, int64_t n, int64_t k)
{
    memset(c, 0, sizeof(*c) * (size_t)(m * n));
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < n; j++)
                c[i * n + j] += a[i * k + l] * b[l * n + j];
}

/* Rounded as an operand of a product. */
static void round_operand(enum products products, const double *x, double *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = products == BFLOAT16 ? (double)ct_bf16_to_f32(ct_f32_to_bf16((float)x[i])) : x[i];
}

/* x[m, n], m <= n: five times x = 3.4445 x - 4.775 x x^T x + 2.0315 (x x^T)^2 x. */
static void iterate(enum products products, double *x, int64_t m, int64_t n, double *work)
{
    double *a = work, *b = a + m * m, *y = b + m * m, *z = y + m * n, norm = 0;

    for (int64_t i = 0; i < m * n; i++)
        norm += x[i] * x[i];
    norm = fmax(sqrt(norm), 1e-7);
    for (int64_t i = 0; i < m * n; i++)
        x[i] /= norm;
    for (int step = 0; step < 5; step++) {
        round_operand(products, x, y, m * n);
        for (int64_t i = 0; i < m * n; i++)
            z[i % n * m + i / n] = y[i];
        multiply(y, z, a, m, m, n);
        round_operand(products, a, z, m * m);
        multiply(z, z, b, m, m, m);
        for (int64_t i = 0; i < m * m; i++)
            b[i] = -4.775 * a[i] + 2.0315 * b[i];
        round_operand(products, b, b, m * m);
        multiply(b, y, z, m, n, m);
        for (int64_t i = 0; i < m * n; i++)
            x[i] = 3.4445 * x[i] + z[i];
    }
}

static int orthogonal_run(const struct ct_launch *l)
{
    const struct ct_tensor *in = &l->in[0];
    int64_t rows = in->shape[in->ndim - 2], columns = in->shape[in->ndim - 1];
    int64_t m = rows < columns ? rows : columns, n = rows < columns ? columns : rows;
    enum products products = ((const struct iteration *)l->op->attrs)->products;
    double *x = malloc(sizeof(*x) * (size_t)(3 * m * n + 2 * m * m));

    if (!x)
        return ct_fail(CT_ENOMEM, "a matrix of %lld x %lld", (long long)rows, (long long)columns);
    for (int64_t first = 0; first < ct_tensor_count(in); first += rows * columns) {
        for (int64_t i = 0; i < rows * columns; i++)
            x[rows <= columns ? i : i % columns * rows + i / columns] =
                ct_tensor_load(in, first + i);
        iterate(products, x, m, n, x + m * n);
        for (int64_t i = 0; i < rows * columns; i++)
            put(l, first + i, x[rows <= columns ? i : i % columns * rows + i / columns]);
    }
    free(x);
    return 0;
}

static double orthogonal_flops(const struct ct_op *op, const struct ct_tensor *in,
                               const struct ct_tensor *out)
{
    double rows = (double)in[0].shape[in[0].ndim - 2], columns = ct_columns(&in[0]);
    double m = fmin(rows, columns), n = fmax(rows, columns);

    (void)op, (void)out;
    return (double)ct_tensor_count(&in[0]) / (m * n) * 5 * (4 * m * m * n + 2 * m * m * m);
}

static const struct ct_op_type orthogonal_type = {
    .size = sizeof(struct ct_op_type),
    .name = "muon.orthogonal",
    .summary = "whole matrices, made nearly orthogonal (Newton-Schulz)",
    .signature = "x[.MN] T -> y[.MN] T",
    .samples =
        "@flops=20480: real[2,4,6,4]", /* 8 matrices, 5 times 4 * 4 * 4 * 6 + 2 * 4 * 4 * 4 */
    .attrs = iteration_attrs,
    .attrs_size = sizeof(struct iteration),
    .flops = orthogonal_flops,
    .reference = orthogonal_run,
};

/* ---- the update ---- */

static int update_run(const struct ct_launch *l)
{
    const struct hyper *h = l->op->attrs;
    double lr = ct_tensor_load(&l->in[0], 0), clip = ct_tensor_load(&l->in[1], 0);

    for (int64_t i = 0; clip >= 0 && i < ct_tensor_count(&l->in[2]); i++)
        ct_tensor_store(&l->in[2], i,
                        ct_tensor_load(&l->in[2], i) * (1 - lr * h->weight_decay) -
                            lr * h->scale * ct_tensor_load(&l->in[3], i));
    return 0;
}

static const struct ct_op_type update_type = {
    .size = sizeof(struct ct_op_type),
    .name = "muon.update",
    .summary = "p = (1 - lr weight_decay) p - lr scale direction; nothing if clip is negative",
    .signature = "lr[] d, clip[] f, !p[.] F, direction[.] F",
    .attrs = attrs,
    .attrs_size = sizeof(struct hyper),
    .reference = update_run,
};

/* ---- the optimizer ---- */

static bool excluded(const char *name)
{
    struct ct_arena scratch = {0};
    struct ct_patterns patterns = ct_patterns_read(&scratch, config.exclude);
    bool found = ct_patterns_find(&patterns, name) >= 0;

    ct_arena_finish(&scratch);
    return found;
}

static bool names_parameter(const char *pattern, const struct ct_graph *graph)
{
    for (size_t i = 0; i < graph->value_count; i++)
        if (ct_value_is_own_param(graph->values[i]) && !fnmatch(pattern, graph->values[i]->name, 0))
            return true;
    return false;
}

static int check_patterns(const struct ct_graph *graph)
{
    struct ct_patterns given = ct_patterns_read(graph->arena, config.exclude);
    struct ct_patterns usual = ct_patterns_read(graph->arena, USUAL);

    for (size_t i = 0; i < given.count; i++) {
        size_t k = 0;

        while (k < usual.count && strcmp(usual.pattern[k], given.pattern[i]) != 0)
            k++;
        if (k == usual.count && !names_parameter(given.pattern[i], graph))
            return ct_fail(CT_ECONFIG,
                           "[muon] exclude: the model has no parameter '%s'; `ctitan explain` "
                           "shows their names",
                           given.pattern[i]);
    }
    return 0;
}

/* Whether v, or what is made of it once a step, is used before or behind the layers, or is a table
   of rows to choose from. */
static bool is_outside_layers(const struct ct_value *v)
{
    ct_for_each_use (use, v) {
        const struct ct_op *op = use->op;

        if (ct_part_is_microbatch(op->section->part) &&
            (op->type == &ct_op_embedding || !strcmp(op->region, CT_REGION_EMBEDDING) ||
             !strcmp(op->region, CT_REGION_HEAD)))
            return true;
        for (int i = 0; op->section->part == CT_PART_PRE && i < op->outs; i++)
            if (is_outside_layers(op->out[i]))
                return true;
    }
    return false;
}

static bool takes(const struct ct_value *param)
{
    int n = param->ndim;

    return n >= 2 && param->shape[n - 2] > 1 && param->shape[n - 1] > 1 &&
           !(param->marks & ct_mark(CT_MARK_ROUTER)) && !is_outside_layers(param) &&
           !excluded(param->name);
}

/* The sharding of stacked matrices with every axis between them, none within. */
static struct ct_sharding between(const struct ct_value *stack)
{
    struct ct_sharding s = stack->sharding;

    for (int dim = stack->ndim - 1; dim >= stack->ndim - 2; dim--)
        while (s.count[dim]) {
            int axis = s.axis[dim][--s.count[dim]];

            ct_sharding_split(&s, 0, axis);
        }
    return s;
}

static struct ct_value *whole_matrices(struct ct_builder *b, const struct ct_value *p,
                                       struct ct_value *direction)
{
    struct ct_sharding to;

    if (p->ndim < 3)
        return direction;
    to = between(p);
    if (ct_sharding_equal(&to, &p->sharding))
        return direction;
    return ct_redistribute(b, ct_arena_printf(b->graph->arena, "muon.whole.%s", p->name), direction,
                           &to, NULL);
}

/* The factors of [muon] lr_factors. */
static int read_factors(const struct ct_graph *graph, struct ct_factors *factors)
{
    struct ct_value **taken = ct_arena_array(graph->arena, struct ct_value *, graph->value_count);
    size_t count = 0;

    for (size_t i = 0; i < graph->value_count; i++)
        if (ct_value_is_own_param(graph->values[i]) && graph->values[i]->grad &&
            takes(graph->values[i]))
            taken[count++] = graph->values[i];
    return ct_factors_read(graph->arena, config.lr_factors, taken, count,
                           "[muon] lr_factors, for the matrices that muon updates", factors);
}

/* factor: of the learning rate, by which both terms of the update are multiplied. */
static void update(struct ct_builder *b, struct ct_builder *init, struct ct_value *p,
                   struct ct_value *lr, struct ct_value *clip, double factor)
{
    struct ct_arena *arena = b->graph->arena;
    struct ct_value *m =
        ct_graph_source(b->graph, CT_ROLE_STATE, ct_arena_printf(arena, "muon.m.%s", p->name),
                        p->grad->dtype, p->ndim, p->shape);
    int64_t rows = p->shape[p->ndim - 2], columns = p->shape[p->ndim - 1];
    struct hyper hyper = config.hyper;
    struct ct_value *u;

    m->sharding = p->sharding;
    ct_init_constant(init, m, 0);
    hyper.scale *= factor * sqrt((double)(rows > columns ? rows : columns));
    hyper.weight_decay *= factor;
    u = ct_emit_type1(b, &momentum_type, ct_arena_printf(arena, "muon.direction.%s", p->name),
                      (struct ct_value *[]){clip, p->grad, m}, 3, &hyper);
    u = whole_matrices(b, p, u);
    u = ct_emit_type1(b, &orthogonal_type, ct_arena_printf(arena, "muon.orthogonal.%s", p->name),
                      &u, 1, &(struct iteration){config.products});
    ct_emit_type(b, &update_type, "muon", (struct ct_value *[]){lr, clip, p, u}, 4, &hyper);
}

static int build(struct ct_builder *b, struct ct_value *const *params, size_t count,
                 struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    struct ct_builder init = ct_init_builder(b->graph);
    struct ct_factors factors;
    int rc = check_patterns(b->graph);

    (void)step;
    if (rc == 0)
        rc = read_factors(b->graph, &factors);
    if (rc < 0)
        return rc;
    init.why = "state of muon";
    for (size_t i = 0; i < count && b->status == 0 && init.status == 0; i++)
        update(b, &init, params[i], lr, clip, ct_factors_of(&factors, params[i]->name));
    return b->status < 0 ? b->status : init.status;
}

static const struct ct_optimizer_ops optimizer = {
    .size = sizeof(struct ct_optimizer_ops), .build = build, .takes = takes};

CT_PLUGIN(.name = "muon", .version = "1.0",
          .summary = "Muon, for matrices; with adamw for the rest", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_OPTIMIZER, "muon", &optimizer},
                              {CT_OP, "muon.momentum", &momentum_type},
                              {CT_OP, "muon.orthogonal", &orthogonal_type},
                              {CT_OP, "muon.update", &update_type}));
