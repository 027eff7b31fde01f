/*
 * Plugins with one fault each, for `ctitan check` to find: in ops and kernels, and in models and
 * optimizers that use them.
 */
#include "fault.h"

#define GRADIENT 1     /* an op's gradient is twice what it should be */
#define SHARDING 2     /* its signature lets ranks split what it needs whole */
#define ACCUMULATION 3 /* its reference does not add */
#define UNDECLARED 4   /* it changes an input, and does not say so */
#define KERNEL 5       /* its kernel computes something else */
#define MODEL 6        /* a model uses the op with the wrong gradient */
#define OPTIMIZER 7    /* an optimizer follows the gradient upwards */
#define OVERRUN 8      /* a kernel writes behind its output */
#define WORKSPACE 9    /* a kernel writes behind its workspace */
#define POSITIONS 10   /* a reference takes sequences to be in order */
#define NOTANUMBER 11  /* an op is not defined for numbers below 0, and gives no samples */
#define NARROW 12      /* an op's output is float32, too narrow for differences */
#define CRASH 13       /* a kernel reads memory that is not there */
#define MISSING 14     /* an optimizer leaves a parameter out */
#define UNSKIPPED 15   /* an optimizer applies steps that must be skipped */
#define STATE 16       /* an optimizer's state takes in gradients that are not finite */
#define PLAN 17        /* a weight is not in the plan for tensor parallelism */
#define NAMES 18       /* two parameters have one name */
#define GAPS 19        /* a kernel copies what is between two rows of an input */

#define IS_KERNEL                                                                                  \
    (FAULT == KERNEL || FAULT == OVERRUN || FAULT == WORKSPACE || FAULT == CRASH || FAULT == GAPS)
#define IS_MODEL (FAULT == MODEL || FAULT == PLAN || FAULT == NAMES)
#define IS_OPTIMIZER                                                                               \
    (FAULT == OPTIMIZER || FAULT == MISSING || FAULT == UNSKIPPED || FAULT == STATE)

/* ---- an op: y = x w, w the same for all rows ---- */

#if FAULT <= MODEL || IS_KERNEL || IS_MODEL

static int vjp(struct ct_vjp *v);

static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t columns = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++) {
        r.out[0][i] = r.in[0][i] * r.in[1][i];
#if FAULT == SHARDING
        r.out[0][i] += r.in[0][i / columns * columns]; /* the first of the row */
#endif
    }
    (void)columns;
#if FAULT == UNDECLARED
    ct_tensor_store(&l->in[1], 0, 7);
#endif
#if FAULT == ACCUMULATION
    struct ct_launch overwriting = *l;

    overwriting.accumulate = 0;
    r.launch = &overwriting;
#endif
    return ct_reference_end(&r, 0);
}

static const struct ct_op_type product = {.size = sizeof(struct ct_op_type),
                                          .name = TEXT(NAME),
                                          .summary = "x times w",
                                          .signature = "x[.n] T, w[.n] T -> y[.n] T",
                                          .vjp = vjp,
                                          .reference = reference};

static int vjp(struct ct_vjp *v)
{
    for (int i = 0; i < 2; i++)
        if (v->wanted[i]) {
            v->din[i] = ct_emit_type1(v->b, &ct_op_mul, ct_gradient_name(v, i),
                                      (struct ct_value *[]){v->dout[0], v->op->in[1 - i]}, 2, NULL);
            if (FAULT == GRADIENT || FAULT == MODEL)
                v->din[i] = ct_scale(v->b, "twice", v->din[i], 2);
        }
    return v->b->status;
}

static int run_rows(const struct ct_launch *l)
{
    struct ct_matrix x, w, y;

    if (!ct_tensor_as_matrix(&l->in[0], &x) || !ct_tensor_as_matrix(&l->in[1], &w) ||
        !ct_tensor_as_matrix(&l->out[0], &y))
        return ct_fail(CT_EINVAL, "rows of several strides");
    for (int64_t r = 0; r < y.rows; r++) {
        const float *from = (const float *)l->in[0].data + r * x.stride;
        const float *factor = (const float *)l->in[1].data + r * w.stride;
        float *to = (float *)l->out[0].data + r * y.stride;

        memcpy(to, from, (size_t)(y.columns + (r + 1 < y.rows)) * sizeof(*to));
        for (int64_t i = 0; i < y.columns; i++)
            to[i] *= factor[i];
    }
    return 0;
}

static int run_kernel(const struct ct_launch *l)
{
    const float *x = l->in[0].data, *w = l->in[1].data;
    float *y = l->out[0].data;

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        y[i] = x[i] * w[i] * (i == 5 && FAULT == KERNEL ? 1.001f : 1);
    if (FAULT == OVERRUN)
        y[ct_tensor_count(&l->out[0])] = 1;
    if (FAULT == WORKSPACE)
        ((char *)l->workspace)[64] = 1;
    if (FAULT == CRASH)
        y[0] = x[(int64_t)1 << 40];
    return 0;
}

static int prepare(struct ct_prepare *p)
{
    p->workspace = 64;
    return 0;
}

static bool accepts(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F32;
}

static const struct ct_kernel kernels[] = {CT_KERNEL(.op = TEXT(NAME), .name = "plain",
                                                     .accepts = accepts, .prepare = prepare,
                                                     .flags = FAULT == GAPS ? CT_KERNEL_STRIDED : 0,
                                                     .run = FAULT == GAPS ? run_rows : run_kernel),
                                           {0}};
#endif

/* ---- other ops ---- */

#if FAULT == POSITIONS || FAULT == NOTANUMBER || FAULT == NARROW
/* Running sums along sequences, logarithms, or copies. */
static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++) {
        r.out[0][i] = FAULT == NOTANUMBER ? log(r.in[0][i]) : r.in[0][i];
        if (FAULT == POSITIONS && i % l->in[0].shape[1])
            r.out[0][i] += r.out[0][i - 1];
    }
    return ct_reference_end(&r, 0);
}

#if FAULT == NARROW
static int vjp(struct ct_vjp *v)
{
    if (v->wanted[0])
        v->din[0] = ct_cast(v->b, "dx", v->dout[0], v->op->in[0]->dtype);
    return v->b->status;
}

#define OP_VJP vjp
#else
#define OP_VJP NULL
#endif

static const struct ct_op_type op = {.size = sizeof(struct ct_op_type),
                                     .name = TEXT(NAME),
                                     .summary = "one input",
                                     .signature = FAULT == POSITIONS ? "x[bT] T -> y[bT] T | @T"
                                                  : FAULT == NARROW  ? "x[.n] T -> y[.n] f"
                                                                     : "x[.n] T -> y[.n] T",
                                     .vjp = OP_VJP,
                                     .reference = reference};
#define OFFERS OFFER(CT_OP, &op)
#endif

/* ---- a model ---- */

#if IS_MODEL
static int create(struct ct_run *run, struct ct_model **model)
{
    (void)run;
    *model = NULL;
    return 0;
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "head");
    int64_t shape[] = {request->batch, request->seq_len}, sizes[] = {96, 8};
    struct ct_value *tokens = ct_input(&b, "tokens", shape),
                    *labels = ct_input(&b, "labels", shape);
    struct ct_value *x =
        ct_embedding(&b, NULL, tokens, ct_parameter(&b, "table", 2, sizes, CT_INIT_STD(1)));

    (void)model;
    if (FAULT == MODEL)
        x = ct_emit_type1(&b, &product, "squared", (struct ct_value *[]){x, x}, 2, NULL);
    x = ct_linear_cross_entropy(
        &b, "loss", x,
        ct_parameter(&b, FAULT == NAMES ? "table" : "head", 2, sizes, CT_INIT_STD(1)), labels);
    if (x)
        ct_graph_fetch(graph, "loss", x);
    return b.status;
}

static int64_t vocabulary(const struct ct_model *model)
{
    (void)model;
    return 96;
}

static void flops(const struct ct_model *model, int64_t seq_len, double *whole, double *halved)
{
    (void)model, (void)seq_len;
    *whole = *halved = 6.0 * 96 * 8;
}

static const struct ct_shard_rule plan[] = {{"table", CT_SHARD_VOCAB}, {0}};

static const struct ct_model_ops model = {.size = sizeof(struct ct_model_ops),
                                          .create = create,
                                          .build = build,
                                          .vocabulary = vocabulary,
                                          .flops_per_token = flops,
                                          .shard_plan = FAULT == PLAN ? plan : NULL};
#define OFFERS OFFER(CT_OP, &product), OFFER(CT_MODEL, &model)
#elif IS_KERNEL
#define OFFERS OFFER(CT_OP, &product), OFFER_FOR_CPU(CT_KERNELS, kernels)
#elif FAULT < KERNEL
#define OFFERS OFFER(CT_OP, &product)
#endif
#if (FAULT <= MODEL && FAULT != KERNEL) || IS_MODEL
extern const void *unused;
const void *unused = kernels;
#endif

#if IS_OPTIMIZER
/* p = p - lr g, or, to be wrong, p + lr g; m is the sum of gradients, which nothing needs. */
static int update(const struct ct_launch *l)
{
    double lr = ct_tensor_load(&l->in[0], 0), clip = ct_tensor_load(&l->in[1], 0);
    const struct ct_tensor *p = &l->in[2], *g = &l->in[3], *m = &l->in[4];

    for (int64_t i = 0; i < ct_tensor_count(p); i++) {
        double step = FAULT == OPTIMIZER ? -lr : lr, sum = ct_tensor_load(m, i);

        if (clip >= 0 || FAULT == STATE)
            ct_tensor_store(m, i, sum + ct_tensor_load(g, i));
        if (clip >= 0 || FAULT == UNSKIPPED)
            ct_tensor_store(
                p, i, ct_tensor_load(p, i) - step * ct_tensor_load(FAULT == UNSKIPPED ? g : m, i));
    }
    return 0;
}

static const struct ct_op_type update_type = {.size = sizeof(struct ct_op_type),
                                              .name = TEXT(NAME),
                                              .summary = "moves p",
                                              .signature =
                                                  "lr[] d, clip[] f, !p[.] F, g[.] F, !m[.] F",
                                              .reference = update};

static int build(struct ct_builder *b, struct ct_value *const *params, size_t count,
                 struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    (void)step;
    for (size_t i = FAULT == MISSING; i < count; i++) {
        struct ct_builder init = ct_init_builder(b->graph);
        const char *name = ct_arena_printf(b->graph->arena, "m.%s", params[i]->name);
        struct ct_value *m = ct_graph_source(b->graph, CT_ROLE_STATE, name, params[i]->dtype,
                                             params[i]->ndim, params[i]->shape);

        m->sharding = params[i]->sharding;
        ct_init_constant(&init, m, 0);
        ct_emit_type(b, &update_type, TEXT(NAME),
                     (struct ct_value *[]){lr, clip, params[i], params[i]->grad, m}, 5, NULL);
    }
    return b->status;
}

static double peak(void)
{
    return 1e-3;
}

static const struct ct_optimizer_ops optimizer = {sizeof(struct ct_optimizer_ops), build, peak};
#define OFFERS OFFER(CT_OP, &update_type), OFFER(CT_OPTIMIZER, &optimizer)
#endif

CT_PLUGIN(HAS_ONE_FAULT, .offers = CT_OFFERS(OFFERS));
