/*
 * The transform "swiglu_in_products".
 *
 * Where own kernels multiply, the products on both sides of SwiGLU compute it from results that are
 * in a thread's caches:
 *
 *   gate, up = cpu.linear; h = swiglu           cpu.swiglu.linear makes all three
 *   dh = cpu.linear_dx; dgate, dup = swiglu_grad  cpu.swiglu_grad.linear_dx; dh is never stored
 *
 * The bits are those of the separate ops.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/run.h>

#include "pack.h"
#include "products/choice.h"
#include "products/unit.h"

/* ---- the ops ---- */

static int linear_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0], *packed = op->in[1];

    if (packed->shape[0] % 2 || x->shape[x->ndim - 1] != packed->shape[1])
        return ct_fail(CT_EINVAL, "the packed weights are not those of a gate and an up product");
    for (int i = 0; i < op->outs; i++) {
        struct ct_value *y = op->out[i];

        y->ndim = x->ndim;
        memcpy(y->shape, x->shape, sizeof(y->shape));
        y->shape[y->ndim - 1] = packed->shape[0] / 2;
    }
    return 0;
}

static double linear_flops(const struct ct_op *op, const struct ct_tensor *in,
                           const struct ct_tensor *out)
{
    struct ct_op product = *op;

    product.outs = 2; /* gate, up */
    return cpu_op_linear.flops(&product, in, out);
}

/* Their gradients lie where they lay, as one matrix that linear_dx reads. */
static int linear_join(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->out;
    return 2;
}

const struct ct_op_type cpu_op_swiglu_linear = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.swiglu.linear",
    .summary = "linear of a gate and an up product on packed weights, and swiglu of both",
    .signature = "x T, packed F -> gate T, up T, h T",
    .attrs = (const struct ct_option[]){CPU_SHARDS(struct cpu_shards_attrs), {0}},
    .attrs_size = sizeof(struct cpu_shards_attrs),
    .infer = linear_infer,
    .flops = linear_flops,
    .join = linear_join,
};

static int linear_dx_infer(struct ct_op *op)
{
    const struct ct_value *gate = op->in[2];

    for (int i = 0; i < op->outs; i++) {
        op->out[i]->ndim = gate->ndim;
        memcpy(op->out[i]->shape, gate->shape, sizeof(gate->shape));
    }
    return 0;
}

static double linear_dx_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    struct ct_op product = *op;

    product.ins = 2; /* dy, packed */
    return cpu_op_linear_dx.flops(&product, in, out);
}

static const int8_t linear_dx_inplace[][2] = {{0, 2}, {1, 3}, {-1, -1}};

const struct ct_op_type cpu_op_swiglu_linear_dx = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.swiglu_grad.linear_dx",
    .summary = "gradient of swiglu for what linear_dx makes on packed weights",
    .signature = "dy T, packed F, gate T, up T -> dgate T, dup T",
    .attrs = (const struct ct_option[]){CPU_SHARDS(struct cpu_shards_attrs), {0}},
    .attrs_size = sizeof(struct cpu_shards_attrs),
    .inplace = linear_dx_inplace,
    .infer = linear_dx_infer,
    .flops = linear_dx_flops,
};

/* ---- their kernels ---- */

static bool are_matrices(const struct ct_prepare *p)
{
    struct ct_matrix rows;

    for (int i = 0; i < p->ins + p->outs; i++) {
        const struct ct_tensor *t = i < p->ins ? &p->in[i] : &p->out[i - p->ins];

        if (t->dtype != CT_BF16 || (i != 1 && !ct_tensor_as_matrix(t, &rows)))
            return false;
    }
    return true;
}

/* By the sizes of activations: the packed weights' shape may be that of all ranks. */
static bool accepts_linear(const struct ct_prepare *p)
{
    return are_matrices(p) &&
           cpu_choose_panels(CPU_FORWARD, 2 * cpu_rows_of(&p->out[0]).columns,
                             cpu_rows_of(&p->in[0]).columns, ct_op_int(p->op, "shards"), CT_BF16);
}

static bool accepts_linear_dx(const struct ct_prepare *p)
{
    return are_matrices(p) &&
           cpu_choose_panels(CPU_BACKWARD, cpu_rows_of(&p->in[0]).columns,
                             cpu_rows_of(&p->out[0]).columns, ct_op_int(p->op, "shards"), CT_BF16);
}

static bool pads_linear(const struct ct_prepare *p)
{
    return cpu_config.pad_rows && accepts_linear(p);
}

static bool pads_linear_dx(const struct ct_prepare *p)
{
    return cpu_config.pad_rows && accepts_linear_dx(p);
}

/* Of n columns, from x and a packed weight. */
static int prepare(struct ct_prepare *p, int64_t n, struct cpu_gemm_spec spec)
{
    struct ct_matrix x = cpu_rows_of(&p->in[0]);
    int rc;

    spec.m = x.rows;
    spec.n = n;
    spec.k = x.columns;
    spec.a_type = spec.b_type = spec.c_type = spec.b_for = CT_BF16;
    spec.a_row = x.stride;
    spec.a_col = 1;
    spec.own = true;
    rc = cpu_gemm_prepare_as(&spec, (struct cpu_gemm **)&p->state);
    if (rc >= 0)
        p->workspace = cpu_gemm_workspace(p->state);
    return rc;
}

static int prepare_linear(struct ct_prepare *p)
{
    struct ct_matrix gate = cpu_rows_of(&p->out[0]);

    return prepare(p, 2 * gate.columns,
                   (struct cpu_gemm_spec){.b_use = CPU_FORWARD,
                                          .b_shards = cpu_shards_of(p->op, p->out, 2),
                                          .c_row = gate.stride,
                                          .halves = true});
}

static int prepare_linear_dx(struct ct_prepare *p)
{
    return prepare(p, cpu_rows_of(&p->out[0]).columns,
                   (struct cpu_gemm_spec){.b_use = CPU_BACKWARD,
                                          .b_shards = cpu_shards_of(p->op, p->in, 1),
                                          .passed = true});
}

/* Matrices in bfloat16 that an epilogue reads and writes. */
struct operands {
    char *at[4];
    int64_t stride[4]; /* bytes */
};

static struct operands operands(const struct ct_tensor *const t[4])
{
    struct operands o = {0};

    for (int i = 0; i < 4 && t[i]; i++) {
        o.at[i] = t[i]->data;
        o.stride[i] = cpu_rows_of(t[i]).stride * 2;
    }
    return o;
}

static char *element(const struct operands *o, int i, int64_t row, int64_t column)
{
    return o->at[i] + row * o->stride[i] + column * 2;
}

/* up, h */
static void run_swiglu(void *context, const struct cpu_made *made)
{
    const struct operands *o = context;

    for (int64_t i = 0; i < made->rows; i++)
        cpu_panels()->swiglu(made->at + i * made->stride,
                             element(o, 0, made->row + i, made->column),
                             element(o, 1, made->row + i, made->column), made->columns);
}

static int run_linear(const struct ct_launch *l)
{
    struct operands o = operands((const struct ct_tensor *[4]){&l->out[1], &l->out[2]});
    struct cpu_epilogue epilogue = {run_swiglu, &o, l->out[1].data, o.stride[0] / 2};

    return cpu_gemm_run_then(l->state, l->in[0].data, l->in[1].data, l->out[0].data, l->workspace,
                             &epilogue);
}

/* gate, up, dgate, dup */
static void run_swiglu_grad(void *context, const struct cpu_made *made)
{
    const struct operands *o = context;

    for (int64_t i = 0; i < made->rows; i++) {
        int64_t row = made->row + i, column = made->column;

        cpu_panels()->swiglu_grad(made->at + i * made->stride, element(o, 0, row, column),
                                  element(o, 1, row, column), element(o, 2, row, column),
                                  element(o, 3, row, column), made->columns);
    }
}

static int run_linear_dx(const struct ct_launch *l)
{
    struct operands o =
        operands((const struct ct_tensor *[4]){&l->in[2], &l->in[3], &l->out[0], &l->out[1]});
    struct cpu_epilogue epilogue = {.run = run_swiglu_grad, .context = &o};

    return cpu_gemm_run_then(l->state, l->in[0].data, l->in[1].data, NULL, l->workspace, &epilogue);
}

#define FLAGS CT_KERNEL_STRIDED

const struct ct_kernel cpu_swiglu_kernels[] = {
    CT_KERNEL("cpu.swiglu.linear", "unit", FLAGS, pads_linear, prepare_linear, run_linear,
              CPU_SPREAD_ROWS),
    CT_KERNEL("cpu.swiglu_grad.linear_dx", "unit", FLAGS, pads_linear_dx, prepare_linear_dx,
              run_linear_dx, CPU_SPREAD_ROWS),
    CT_KERNEL("cpu.swiglu.linear", "unit", FLAGS, accepts_linear, prepare_linear, run_linear),
    CT_KERNEL("cpu.swiglu_grad.linear_dx", "unit", FLAGS, accepts_linear_dx, prepare_linear_dx,
              run_linear_dx),
    {0}};

/* ---- the transform ---- */

static const char why[] = "own products compute swiglu in the caches";

static int64_t local_columns(const struct ct_graph *graph, const struct ct_run *run,
                             const struct ct_value *v)
{
    int64_t local[CT_MAX_DIMS];

    cpu_local_shape(graph, run, v, local);
    return local[v->ndim - 1];
}

/* Whether own kernels run product, of packed [n, k]. */
static bool own(const struct ct_op *product, enum cpu_use use, int64_t n, int64_t k)
{
    return product->in[0]->dtype == CT_BF16 && product->in[1]->dtype == CT_BF16 &&
           cpu_choose_panels(use, n, k, ct_op_int(product, "shards"), CT_BF16);
}

/* h = swiglu(gate, up) right behind the product that makes gate and up. */
static int fuse_forward(struct ct_graph *graph, const struct ct_run *run, struct ct_op *swiglu)
{
    struct ct_op *linear = swiglu->in[0]->producer, *op;
    struct cpu_shards_attrs attrs;
    int64_t width;

    if (!linear || linear->type != &cpu_op_linear || linear->outs != 2 ||
        linear->section != swiglu->section || swiglu->in[0] != linear->out[0] ||
        swiglu->in[1] != linear->out[1])
        return 0;
    width = local_columns(graph, run, swiglu->out[0]);
    if (width % CPU_PANEL ||
        !own(linear, CPU_FORWARD, 2 * width, local_columns(graph, run, linear->in[0])))
        return 0;
    attrs.shards = ct_op_int(linear, "shards");
    op = cpu_emit_for(graph, linear, linear, &cpu_op_swiglu_linear, linear->in, linear->ins, &attrs,
                      why);
    if (!op)
        return CT_EINVAL;
    cpu_hand_over(graph, linear, op, 0);
    cpu_hand_over(graph, swiglu, op, 2);
    return 0;
}

/* dgate, dup = swiglu_grad(dh, ..) of a product dh that nothing else reads. */
static int fuse_backward(struct ct_graph *graph, const struct ct_run *run, struct ct_op *grad)
{
    struct ct_op *dx = grad->in[0]->producer, *op;

    if (!dx || dx->type != &cpu_op_linear_dx || dx->ins != 2 || dx->section != grad->section ||
        ct_value_only_user(dx->out[0]) != grad ||
        !own(dx, CPU_BACKWARD, local_columns(graph, run, dx->in[0]),
             local_columns(graph, run, dx->out[0])))
        return 0;
    op = cpu_emit_for(graph, dx, grad, &cpu_op_swiglu_linear_dx,
                      (struct ct_value *[]){dx->in[0], dx->in[1], grad->in[1], grad->in[2]}, 4,
                      dx->attrs, why);
    if (!op)
        return CT_EINVAL;
    cpu_hand_over(graph, grad, op, 0);
    ct_graph_remove(graph, dx);
    return 0;
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    int rc = 0;

    if (!cpu_config.epilogues || run->device_ops->open != cpu_device_ops.open)
        return 0;
    ct_for_each_op_safe (op, graph) {
        if (rc >= 0 && op->type == &ct_op_swiglu)
            rc = fuse_forward(graph, run, op);
        else if (rc >= 0 && op->type == &ct_op_swiglu_grad)
            rc = fuse_backward(graph, run, op);
    }
    return rc;
}

const struct ct_transform cpu_swiglu_in_products = {
    .size = sizeof(struct ct_transform),
    .name = "swiglu_in_products",
    .summary = "the CPU's products compute swiglu and its gradient from their results",
    .phase = CT_PHASE_FUSE,
    .gives = (const char *const[]){"preferred", NULL},
    .after = (const char *const[]){"packed", NULL},
    .evaluation = true,
    .apply = apply,
};
