/*
 * An optimizer as a separate plugin, built outside ctitan's tree: stochastic gradient descent with
 * momentum, equal to torch.optim.SGD. It provides an op type with its plain reference, a faster
 * kernel for the cpu device, and the optimizer that inserts the op into the graph.
 */
#include <math.h>

#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

static struct config {
    double lr, momentum;
} config;

static const struct ct_option options[] = {
    CT_OPT_FLOAT(struct config, lr, "lr", "0.1", 0, INFINITY, "Peak learning rate"),
    CT_OPT_FLOAT(struct config, momentum, "momentum", "0.9", 0, 1,
                 "Momentum: fraction of the last step that is added"),
    {0}};

/* ---- the op: m = momentum m + clip g, p = p - lr m, for every parameter ---- */

/* Inputs are lr, clip, then p, g, m of each parameter. */
enum { LR, CLIP, FIRST, GROUP = 3 };

struct attrs {
    double momentum;
};

static const struct ct_option attrs[] = {CT_OPT_FLOAT(struct attrs, momentum, "momentum", "0", 0, 1,
                                                      "Fraction of the last step that is added"),
                                         {0}};

static void update_any(const struct ct_tensor *t, double lr, double clip, double momentum)
{
    for (int64_t i = 0; i < ct_tensor_count(t); i++) {
        double m = momentum * ct_tensor_load(&t[2], i) + clip * ct_tensor_load(&t[1], i);

        ct_tensor_store(&t[2], i, m);
        ct_tensor_store(&t[0], i, ct_tensor_load(&t[0], i) - lr * m);
    }
}

static void update_float(const struct ct_tensor *t, double lr, double clip, double momentum)
{
    float *p = t[0].data, *m = t[2].data;
    const float *g = t[1].data;

    for (int64_t i = 0; i < ct_tensor_count(t); i++) {
        m[i] = (float)momentum * m[i] + (float)clip * g[i];
        p[i] -= (float)lr * m[i];
    }
}

static int update_all(const struct ct_launch *l,
                      void (*update)(const struct ct_tensor *t, double lr, double clip,
                                     double momentum))
{
    double lr = ct_tensor_load(&l->in[LR], 0), clip = ct_tensor_load(&l->in[CLIP], 0);

    for (int i = FIRST; clip >= 0 && i < l->ins; i += GROUP)
        update(&l->in[i], lr, clip, ((const struct attrs *)l->op->attrs)->momentum);
    return 0;
}

static int reference(const struct ct_launch *l)
{
    return update_all(l, update_any);
}

static const struct ct_op_type op_type = {
    .size = sizeof(struct ct_op_type),
    .name = "sgd",
    .summary = "updates p from its gradient g and its momentum m; nothing if clip is negative",
    .signature = "lr[] d, clip[] f, *(!p[.] F, g[.] F, !m[.] F)",
    .attrs = attrs,
    .attrs_size = sizeof(struct attrs),
    .reference = reference,
};

/* ---- a kernel: float32 only; without CT_KERNEL_STRIDED, all tensors are dense ---- */

static bool accepts(const struct ct_prepare *p)
{
    for (int i = FIRST; i < p->ins; i++)
        if (p->in[i].dtype != CT_F32)
            return false;
    return true;
}

static int run(const struct ct_launch *l)
{
    return update_all(l, update_float);
}

static const struct ct_kernel kernels[] = {
    CT_KERNEL(.op = "sgd", .name = "plain", .accepts = accepts, .run = run), {0}};

/* ---- the optimizer: one op in the post part, one state for each parameter ---- */

static struct ct_value *momentum_of(struct ct_graph *graph, const struct ct_value *param)
{
    struct ct_builder init = ct_init_builder(graph);
    const char *name = ct_arena_printf(graph->arena, "sgd.m.%s", param->name);
    struct ct_value *m =
        ct_graph_source(graph, CT_ROLE_STATE, name, param->dtype, param->ndim, param->shape);

    m->sharding = param->sharding;
    ct_init_constant(&init, m, 0);
    return init.status < 0 ? NULL : m;
}

static int build(struct ct_builder *b, struct ct_value *const *params, size_t count,
                 struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    struct attrs values = {config.momentum};
    size_t ins = FIRST + count * GROUP;
    struct ct_value **in = ct_arena_array(b->graph->arena, struct ct_value *, ins);

    (void)step;
    in[LR] = lr;
    in[CLIP] = clip;
    for (size_t i = 0; i < count; i++) {
        struct ct_value **group = in + FIRST + i * GROUP;

        group[0] = params[i];
        group[1] = params[i]->grad;
        group[2] = momentum_of(b->graph, params[i]);
    }
    ct_emit_type(b, &op_type, "sgd", in, (int)ins, &values);
    return b->status;
}

static double peak_lr(void)
{
    return config.lr;
}

static const struct ct_optimizer_ops optimizer = {
    .size = sizeof(struct ct_optimizer_ops), build, peak_lr};

CT_PLUGIN(.name = "sgd", .version = "1.0", .summary = "Stochastic gradient descent with momentum",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_OPTIMIZER, "sgd", &optimizer}, {CT_OP, "sgd", &op_type},
                              {CT_KERNELS, "cpu", kernels}));
