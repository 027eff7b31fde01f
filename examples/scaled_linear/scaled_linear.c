/*
 * Linear layers on 8-bit numbers (Micikevicius et al. 2022): x and w are divided by scales that map
 * their largest elements to the largest float8_e4m3, and rounded to float8_e4m3.
 *
 * Each row of x has a scale of its own; w has a single scale. A scale comes from the largest
 * magnitude. For a shard this is a pending maximum, and propagation adds the all-reduce, so that
 * scales are the same on every mesh. A weight is quantised once a step and then gathered, so fsdp
 * moves one byte per element. The backward uses the 8-bit operands; gradients pass through the
 * rounding unchanged.
 */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>

static struct config {
    const char *regions;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, regions, "regions", "layers.*",
                  "Regions whose linear layers compute with 8-bit numbers, as a pattern"),
    {0}};

/* The divisor for a given largest magnitude. */
static double scale_of(double largest)
{
    return fmax(largest, 1e-12) / 448;
}

/* Element i of t, whose dtype is 8-bit, bfloat16 or float32. */
static float element(const struct ct_tensor *t, int64_t i)
{
    if (t->dtype == CT_E4M3)
        return ct_e4m3_to_f32(((const uint8_t *)t->data)[i]);
    if (t->dtype == CT_BF16)
        return ct_bf16_to_f32(((const uint16_t *)t->data)[i]);
    return ((const float *)t->data)[i];
}

/* ---- largest magnitudes, of rows or of the whole tensor ---- */

static int largest_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t columns = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double *largest = &r.out[0][l->out[0].ndim ? i / columns : 0];

        *largest = fmax(*largest, fabs(r.in[0][i]));
    }
    return ct_reference_end(&r, 0);
}

static int largest_run(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[0];
    int64_t count = ct_tensor_count(x), columns = l->out[0].ndim ? ct_columns(x) : count;
    float *largest = l->out[0].data;

    memset(largest, 0, sizeof(*largest) * (size_t)ct_tensor_count(&l->out[0]));
    for (int64_t i = 0; i < count; i++)
        largest[i / columns] = fmaxf(largest[i / columns], fabsf(element(x, i)));
    return 0;
}

static const struct ct_op_type largest_of_all = {
    .size = sizeof(struct ct_op_type),
    .name = "scaled_linear.largest_of_all",
    .summary = "the largest magnitude of x",
    .signature = "x[.] F -> largest[] f max",
    .reference = largest_reference,
};

static const struct ct_op_type largest_of_rows = {
    .size = sizeof(struct ct_op_type),
    .name = "scaled_linear.largest_of_rows",
    .summary = "the largest magnitude of each row of x",
    .signature = "x[.k] F -> largest[.] f max",
    .reference = largest_reference,
};

/* ---- rounding to 8 bits ---- */

static int quantise_infer(struct ct_op *op)
{
    op->out[0]->dtype = CT_E4M3;
    return 0;
}

static int quantise_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t columns = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i] = r.in[0][i] / scale_of(r.in[1][l->in[1].ndim ? i / columns : 0]);
    return ct_reference_end(&r, 0);
}

static int quantise_run(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[0];
    int64_t count = ct_tensor_count(x), columns = l->in[1].ndim ? ct_columns(x) : count;
    uint8_t *q = l->out[0].data;

    for (int64_t i = 0; i < count; i++)
        q[i] = ct_f64_to_e4m3((double)element(x, i) /
                              scale_of((double)element(&l->in[1], i / columns)));
    return 0;
}

static int quantise_vjp(struct ct_vjp *v)
{
    if (!v->wanted[0])
        return 0;
    v->din[0] = v->dout[0]->dtype == v->op->in[0]->dtype
                    ? v->dout[0]
                    : ct_cast(v->b, ct_gradient_name(v, 0), v->dout[0], v->op->in[0]->dtype);
    return v->b->status;
}

static const struct ct_op_type quantise_all = {
    .size = sizeof(struct ct_op_type),
    .name = "scaled_linear.quantise_all",
    .summary = "x in float8_e4m3, divided by the scale of all",
    .signature = "x[.] F, largest[] f -> q[.] F",
    .flags = CT_OP_STRAIGHT_THROUGH,
    .samples = "real[4,6] factor[]",
    .infer = quantise_infer,
    .vjp = quantise_vjp,
    .reference = quantise_reference,
};

static const struct ct_op_type quantise_rows = {
    .size = sizeof(struct ct_op_type),
    .name = "scaled_linear.quantise_rows",
    .summary = "x in float8_e4m3, each row divided by its scale",
    .signature = "x[.k] F, largest[.] f -> q[.k] F",
    .flags = CT_OP_STRAIGHT_THROUGH,
    .samples = "real[2,4,6] factor[2,4]",
    .infer = quantise_infer,
    .vjp = quantise_vjp,
    .reference = quantise_reference,
};

/* ---- products: y = x w^T, dx = dy w, dw = dy^T x ---- */

/* Which inputs are the factors of c = a b and their scales (NONE: no scale). The flags transpose a
   and b. */
struct product {
    int a, a_largest, b, b_largest;
    bool a_turned, b_turned;
};
#define NONE (-1)

/* c[i, j] is the sum over o of a[i, o] b[o, j], for k values of o. */
struct sizes {
    int64_t m, n, k;
};

static struct sizes sizes_of(const struct product *p, const struct ct_tensor *in,
                             const struct ct_tensor *out)
{
    return (struct sizes){ct_rows(out), ct_columns(out),
                          p->a_turned ? ct_rows(&in[p->a]) : ct_columns(&in[p->a])};
}

static int product_reference(const struct ct_launch *l, const struct product *p)
{
    struct ct_reference r = ct_reference_begin(l);
    struct sizes s = sizes_of(p, l->in, l->out);

    for (int64_t i = 0; i < s.m; i++)
        for (int64_t o = 0; o < s.k; o++) {
            int64_t a_row = p->a_turned ? o : i;
            double a = r.in[p->a][p->a_turned ? o * s.m + i : i * s.k + o];

            if (p->a_largest != NONE)
                a *= scale_of(r.in[p->a_largest][l->in[p->a_largest].ndim ? a_row : 0]);
            for (int64_t j = 0; j < s.n; j++) {
                double b = r.in[p->b][p->b_turned ? j * s.k + o : o * s.n + j];

                if (p->b_largest != NONE)
                    b *= scale_of(r.in[p->b_largest][l->in[p->b_largest].ndim ? o : 0]);
                r.out[0][i * s.n + j] += a * b;
            }
        }
    return ct_reference_end(&r, 0);
}

/* Load t times its scales. */
static void load(const struct ct_launch *l, int in, int largest, bool turned, float *to)
{
    const struct ct_tensor *t = &l->in[in];
    int64_t rows = ct_rows(t), columns = ct_columns(t);

    for (int64_t i = 0; i < rows; i++) {
        double scale =
            largest == NONE
                ? 1
                : scale_of((double)element(&l->in[largest], l->in[largest].ndim ? i : 0));

        for (int64_t j = 0; j < columns; j++)
            to[turned ? j * rows + i : i * columns + j] =
                (float)scale * element(t, i * columns + j);
    }
}

/* Computed row by row, so that a row does not depend on the other rows of the shard. */
static int product_run(const struct ct_launch *l, const struct product *p)
{
    struct sizes s = sizes_of(p, l->in, l->out);
    float *a = l->workspace, *b = a + s.m * s.k, *row = b + s.k * s.n;

    load(l, p->a, p->a_largest, p->a_turned, a);
    load(l, p->b, p->b_largest, p->b_turned, b);
    for (int64_t i = 0; i < s.m; i++) {
        memset(row, 0, sizeof(*row) * (size_t)s.n);
        for (int64_t o = 0; o < s.k; o++)
            for (int64_t j = 0; j < s.n; j++)
                row[j] += a[i * s.k + o] * b[o * s.n + j];
        for (int64_t j = 0; j < s.n; j++)
            ct_tensor_store(&l->out[0], i * s.n + j, (double)row[j]);
    }
    return 0;
}

static int product_prepare(struct ct_prepare *p, const struct product *product)
{
    struct sizes s = sizes_of(product, p->in, p->out);

    p->workspace = sizeof(float) * (size_t)(s.m * s.k + s.k * s.n + s.n);
    return 0;
}

static double product_flops(const struct product *p, const struct ct_tensor *in,
                            const struct ct_tensor *out)
{
    struct sizes s = sizes_of(p, in, out);

    return 2.0 * (double)s.m * (double)s.n * (double)s.k;
}

/* The functions of each product's op type and kernel. */
#define PRODUCT(name, ...)                                                                         \
    static const struct product name = {__VA_ARGS__};                                              \
    static int name##_reference(const struct ct_launch *l)                                         \
    {                                                                                              \
        return product_reference(l, &name);                                                        \
    }                                                                                              \
    static int name##_run(const struct ct_launch *l)                                               \
    {                                                                                              \
        return product_run(l, &name);                                                              \
    }                                                                                              \
    static int name##_prepare(struct ct_prepare *p)                                                \
    {                                                                                              \
        return product_prepare(p, &name);                                                          \
    }                                                                                              \
    static double name##_flops(const struct ct_op *op, const struct ct_tensor *in,                 \
                               const struct ct_tensor *out)                                        \
    {                                                                                              \
        (void)op;                                                                                  \
        return product_flops(&name, in, out);                                                      \
    }

PRODUCT(forward, 0, 1, 2, 3, false, true)        /* x, largest of its rows, w, its largest */
PRODUCT(input_grad, 0, NONE, 1, 2, false, false) /* dy, w, its largest */
PRODUCT(weight_grad, 2, NONE, 0, 1, true, false) /* x, largest of its rows, dy */

static const struct ct_op_type dx_type = {
    .size = sizeof(struct ct_op_type),
    .name = "scaled_linear_dx",
    .summary = "gradient of scaled_linear for x: dy w",
    .signature = "dy[.n] T, w[nk] F, w_largest[] f -> dx[.k] T",
    .flops = input_grad_flops,
    .reference = input_grad_reference,
};

static const struct ct_op_type dw_type = {
    .size = sizeof(struct ct_op_type),
    .name = "scaled_linear_dw",
    .summary = "gradient of scaled_linear for w: dy^T x",
    .signature = "x[.k] F, x_largest[.] f, dy[.n] T -> dw[nk] T",
    .flags = CT_OP_ANY_DTYPE,
    .flops = weight_grad_flops,
    .reference = weight_grad_reference,
};

struct attrs {
    enum ct_dtype dtype;
};

static const struct ct_option attrs[] = {
    CT_OPT_DTYPE(struct attrs, dtype, "dtype", "float32", "Dtype of the result"), {0}};

static int infer(struct ct_op *op)
{
    op->out[0]->dtype = ((const struct attrs *)op->attrs)->dtype;
    return 0;
}

static int vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in, *dy = v->dout[0];

    ct_emit_gradients(v, &dx_type, (struct ct_value *[]){dy, in[2], in[3]}, 3, NULL, (int[]){0}, 1);
    return ct_emit_gradients(v, &dw_type, (struct ct_value *[]){in[0], in[1], dy}, 3, NULL,
                             (int[]){2}, 1);
}

static const struct ct_op_type type = {
    .size = sizeof(struct ct_op_type),
    .name = "scaled_linear",
    .summary = "y = x w^T of 8-bit x and w, times their scales",
    .signature = "x[.k] F, x_largest[.] f, w[nk] F, w_largest[] f -> y[.n] F",
    /* Its gradients are those of what was quantised: they pass through the rounding. */
    .flags = CT_OP_STRAIGHT_THROUGH,
    .samples = "dtype=float64: real[2,4,6] factor[2,4] real[8,6] factor[]",
    .attrs = attrs,
    .attrs_size = sizeof(struct attrs),
    .infer = infer,
    .vjp = vjp,
    .flops = forward_flops,
    .reference = forward_reference,
};

static bool accepts(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (p->in[i].dtype != CT_E4M3 && p->in[i].dtype != CT_BF16 && p->in[i].dtype != CT_F32)
            return false;
    return true;
}

static const struct ct_kernel kernels[] = {
    CT_KERNEL("scaled_linear.largest_of_all", "plain", 0, accepts, NULL, largest_run),
    CT_KERNEL("scaled_linear.largest_of_rows", "plain", 0, accepts, NULL, largest_run),
    CT_KERNEL("scaled_linear.quantise_all", "plain", 0, accepts, NULL, quantise_run),
    CT_KERNEL("scaled_linear.quantise_rows", "plain", 0, accepts, NULL, quantise_run),
    CT_KERNEL("scaled_linear", "plain", 0, accepts, forward_prepare, forward_run),
    CT_KERNEL("scaled_linear_dx", "plain", 0, accepts, input_grad_prepare, input_grad_run),
    CT_KERNEL("scaled_linear_dw", "plain", 0, accepts, weight_grad_prepare, weight_grad_run),
    {0}};

/* ---- the transform ---- */

struct scaled {
    struct ct_graph *graph;
    size_t count;              /* number of values at the start */
    struct ct_value **weight;  /* by id of a parameter or its gather: in 8 bits */
    struct ct_value **rows;    /* by id of an x: in 8 bits */
    struct ct_value **largest; /* by id of a parameter or x */
};

/* The parameter that w is cast or gathered from, or w itself. */
static struct ct_value *parameter_of(struct ct_value *w)
{
    while (w->producer &&
           (w->producer->type == &ct_op_redistribute || w->producer->type == &ct_op_cast))
        w = w->producer->in[0];
    return w;
}

/* Done once a step, before all microbatches and any gathers there. */
static struct ct_value *quantise_weight(struct scaled *p, struct ct_builder *b, struct ct_value *w)
{
    struct ct_value **q = &p->weight[w->id], **largest = &p->largest[w->id];
    struct ct_builder pre = ct_pre_builder(p->graph);

    if (*q)
        return *q;
    pre.region = b->region;
    pre.why = b->why;
    *largest = ct_emit_type1(&pre, &largest_of_all,
                             ct_arena_printf(p->graph->arena, "%s.largest", w->name), &w, 1, NULL);
    *q = ct_emit_type1(&pre, &quantise_all, ct_arena_printf(p->graph->arena, "%s.q", w->name),
                       (struct ct_value *[]){w, *largest}, 2, NULL);
    b->status = pre.status;
    return *q;
}

/* Clone the gather of w, with its marks, onto the 8-bit input. */
static struct ct_value *gather(struct scaled *p, struct ct_builder *b, struct ct_value *w,
                               struct ct_value *q)
{
    struct ct_builder here;
    struct ct_op *again;

    if (!w->producer || w->producer->type != &ct_op_redistribute || p->weight[w->id])
        return p->weight[w->id] ? p->weight[w->id] : q;
    here = ct_builder_before(p->graph, w->producer);
    again = ct_op_clone(&here, w->producer, &q, "q");
    b->status = here.status;
    p->weight[w->id] = again ? again->out[0] : NULL;
    return p->weight[w->id];
}

static struct ct_value *quantise_rows_of(struct scaled *p, struct ct_builder *b, struct ct_value *x)
{
    struct ct_value **q = &p->rows[x->id], **largest = &p->largest[x->id];

    if (*q)
        return *q;
    *largest = ct_emit_type1(b, &largest_of_rows,
                             ct_arena_printf(p->graph->arena, "%s.largest", x->name), &x, 1, NULL);
    *q = ct_emit_type1(b, &quantise_rows, ct_arena_printf(p->graph->arena, "%s.q", x->name),
                       (struct ct_value *[]){x, *largest}, 2, NULL);
    return *q;
}

static int replace(struct scaled *p, struct ct_op *op)
{
    struct ct_builder b = ct_builder_before(p->graph, op);
    struct ct_value *x = op->in[0], *w = op->in[1], *from = parameter_of(w), *in[4];

    if (from->role != CT_ROLE_PARAM)
        return 0;
    b.why = "scaled_linear: computed with 8-bit numbers";
    in[0] = quantise_rows_of(p, &b, x);
    in[1] = p->largest[x->id];
    in[2] = gather(p, &b, w, quantise_weight(p, &b, from));
    in[3] = p->largest[from->id];
    if (b.status == 0)
        ct_op_become(p->graph, op, &type, in, 4, &(struct attrs){op->out[0]->dtype});
    return b.status;
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct scaled p = {.graph = graph, .count = graph->value_count};
    int rc = 0;

    (void)run;
    p.weight = ct_arena_array(&scratch, struct ct_value *, p.count);
    p.rows = ct_arena_array(&scratch, struct ct_value *, p.count);
    p.largest = ct_arena_array(&scratch, struct ct_value *, p.count);
    ct_for_each_op (op, graph)
        if (rc == 0 && op->type == &ct_op_linear && op->outs == 1 &&
            !fnmatch(config.regions, op->region, 0))
            rc = replace(&p, op);
    ct_arena_finish(&scratch);
    if (rc == 0)
        ct_graph_sweep(graph); /* removes casts and gathers that are unused now */
    return rc;
}

static const struct ct_transform transform = {.size = sizeof(struct ct_transform),
                                              .name = "scaled_linear",
                                              .summary =
                                                  "makes linear layers compute with 8-bit numbers",
                                              .phase = CT_PHASE_PRECISION,
                                              .after = CT_NAMES("precision"),
                                              .evaluation = true,
                                              .apply = apply};

CT_PLUGIN(.name = "scaled_linear", .version = "1.0",
          .summary = "Linear layers in float8_e4m3, with weights gathered in it",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS(
              {CT_OP, "scaled_linear", &type}, {CT_OP, "scaled_linear_dx", &dx_type},
              {CT_OP, "scaled_linear_dw", &dw_type}, {CT_OP, "largest_of_all", &largest_of_all},
              {CT_OP, "largest_of_rows", &largest_of_rows}, {CT_OP, "quantise_all", &quantise_all},
              {CT_OP, "quantise_rows", &quantise_rows}, {CT_KERNELS, "cpu", kernels},
              {CT_TRANSFORM, "scaled_linear", &transform}));
