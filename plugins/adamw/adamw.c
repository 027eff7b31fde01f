/*
 * Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019), equal to
 * torch.optim.AdamW. One op updates all parameters, so that a device can run them in one launch.
 */
#include <math.h>
#include <string.h>

#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

struct hyper {
    double lr, beta1, beta2, eps, weight_decay;
};

static struct config {
    struct hyper hyper;
    const char *state_dtype;
} config;

static const struct ct_option options[] = {
    CT_OPT_FLOAT(struct config, hyper.lr, "lr", "8e-4", 0, INFINITY, "Peak learning rate"),
    CT_OPT_FLOAT(struct config, hyper.beta1, "beta1", "0.9", 0, 1, "Decay of the first moment"),
    CT_OPT_FLOAT(struct config, hyper.beta2, "beta2", "0.95", 0, 1, "Decay of the second moment"),
    CT_OPT_FLOAT(struct config, hyper.eps, "eps", "1e-8", 0, INFINITY,
                 "Added to the root of the second moment"),
    CT_OPT_FLOAT(struct config, hyper.weight_decay, "weight_decay", "0.1", 0, INFINITY,
                 "Weight decay: fraction of a weight that a step at learning rate 1 subtracts"),
    CT_OPT_CHOICE(struct config, state_dtype, "state_dtype", "parameter",
                  "parameter|float32|bfloat16",
                  "Dtype of the moments; parameter: that of the parameter"),
    {0}};

/* ---- the op ---- */

/* Inputs are lr, step, clip, then p, g, m, v of each parameter. */
enum { LR, STEP, CLIP, FIRST, GROUP = 4 };

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct hyper, beta1, "beta1", "0.9", 0, 1, "Decay of the first moment"),
    CT_OPT_FLOAT(struct hyper, beta2, "beta2", "0.95", 0, 1, "Decay of the second moment"),
    CT_OPT_FLOAT(struct hyper, eps, "eps", "1e-8", 0, INFINITY, "Added to the root"),
    CT_OPT_FLOAT(struct hyper, weight_decay, "weight_decay", "0.1", 0, INFINITY, "Decay"),
    {0}};

static void update(const struct ct_tensor *t, const struct hyper *h, double step, double clip)
{
    const struct ct_tensor *p = &t[0], *g = &t[1], *m = &t[2], *v = &t[3];
    double correct1 = 1 - pow(h->beta1, step), correct2 = sqrt(1 - pow(h->beta2, step));

    for (int64_t i = 0; i < ct_tensor_count(p); i++) {
        double grad = ct_tensor_load(g, i) * clip;
        double weight = ct_tensor_load(p, i) * (1 - h->lr * h->weight_decay);
        double first = h->beta1 * ct_tensor_load(m, i) + (1 - h->beta1) * grad;
        double second = h->beta2 * ct_tensor_load(v, i) + (1 - h->beta2) * grad * grad;
        double denominator = sqrt(second) / correct2 + h->eps;

        ct_tensor_store(m, i, first);
        ct_tensor_store(v, i, second);
        ct_tensor_store(p, i, weight - h->lr / correct1 * first / denominator);
    }
}

static int reference(const struct ct_launch *l)
{
    double step = ct_tensor_load(&l->in[STEP], 0), clip = ct_tensor_load(&l->in[CLIP], 0);
    struct hyper h = {.lr = ct_tensor_load(&l->in[LR], 0),
                      .beta1 = ct_op_float(l->op, "beta1"),
                      .beta2 = ct_op_float(l->op, "beta2"),
                      .eps = ct_op_float(l->op, "eps"),
                      .weight_decay = ct_op_float(l->op, "weight_decay")};

    if (clip < 0)
        return 0;
    for (int i = FIRST; i + GROUP <= l->ins; i += GROUP)
        update(&l->in[i], &h, step, clip);
    return 0;
}

static const struct ct_op_type op_type = {
    .size = sizeof(struct ct_op_type),
    .name = "adamw",
    .summary = "updates p from its gradient g and its moments m and v; nothing if clip is negative",
    .signature = "lr[] d, step[] d, clip[] f, *(!p[.] F, g[.] F, !m[.] F, !v[.] F)",
    .samples = "square[] square[] factor[] real[2,4] real[2,4] real[2,4] positive[2,4]",
    .attrs = attrs,
    .attrs_size = sizeof(struct hyper),
    .reference = reference,
};

/* ---- the optimizer ---- */

static enum ct_dtype state_dtype(const struct ct_value *param)
{
    if (!strcmp(config.state_dtype, "bfloat16"))
        return CT_BF16;
    return strcmp(config.state_dtype, "float32") ? param->dtype : CT_F32;
}

/* A zeroed moment with the sharding of param. */
static struct ct_value *moment(struct ct_builder *init, const struct ct_value *param,
                               const char *which)
{
    struct ct_graph *graph = init->graph;
    const char *name = ct_arena_printf(graph->arena, "adamw.%s.%s", which, param->name);
    struct ct_value *state =
        ct_graph_source(graph, CT_ROLE_STATE, name, state_dtype(param), param->ndim, param->shape);

    state->sharding = param->sharding;
    ct_init_constant(init, state, 0);
    return state;
}

static int build(struct ct_builder *b, struct ct_value *const *params, size_t count,
                 struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    struct ct_builder init = ct_init_builder(b->graph);
    size_t ins = FIRST + count * GROUP;
    struct hyper hyper = config.hyper;
    struct ct_value **in = ct_arena_array(b->graph->arena, struct ct_value *, ins), **next;

    init.why = "state of adamw";
    in[LR] = lr;
    in[STEP] = step;
    in[CLIP] = clip;
    next = in + FIRST;
    for (size_t i = 0; i < count; i++) {
        *next++ = params[i];
        *next++ = params[i]->grad;
        *next++ = moment(&init, params[i], "m");
        *next++ = moment(&init, params[i], "v");
    }
    if (init.status < 0)
        return init.status;
    hyper.lr = 0; /* not an attribute: the value is passed in at each step */
    ct_emit_type(b, &op_type, "adamw", in, (int)ins, &hyper);
    return b->status;
}

static double peak_lr(void)
{
    return config.hyper.lr;
}

static const struct ct_optimizer_ops optimizer = {
    .size = sizeof(struct ct_optimizer_ops), build, peak_lr};

CT_PLUGIN(.name = "adamw", .version = "1.0", .summary = "Adam with decoupled weight decay",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_OPTIMIZER, "adamw", &optimizer}, {CT_OP, "adamw", &op_type}));
