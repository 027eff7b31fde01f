/*
 * The transform "squares_in_products".
 *
 * The gradient norm reads every gradient once more, after all are made. Where a product makes a
 * gradient that nothing is added to any more, in a step of one microbatch and without a collective
 * behind it, its squares are summed there, while it is in a thread's caches: linear_dw becomes
 * cpu.squares.linear_dw. squared_norm keeps the other gradients, and cpu.add_squares adds the sums
 * in their order.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/run.h>

#include "loops.h"
#include "pack.h"
#include "products/unit.h"
#include "squares.h"

/* ---- summing ---- */

static int64_t blocks(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

size_t cpu_squares_bytes(int64_t rows, int64_t columns)
{
    return (size_t)(blocks(rows, CPU_PANEL) * blocks(columns, CPU_MADE_COLUMNS)) * sizeof(double);
}

static void sum_block(void *context, const struct cpu_made *made)
{
    const struct cpu_squares *s = context;
    int64_t size = (int64_t)ct_dtype_size(s->dtype), stride = made->stride / size;

    for (int64_t j = 0; j < made->columns; j += CPU_MADE_COLUMNS) {
        int64_t rest = made->columns - j,
                columns = rest < CPU_MADE_COLUMNS ? rest : CPU_MADE_COLUMNS;

        s->sums[made->row / CPU_PANEL * s->across + (made->column + j) / CPU_MADE_COLUMNS] +=
            cpu_loops()->squares(s->dtype, made->at + j * size,
                                 (struct ct_matrix){made->rows, columns, stride});
    }
}

void cpu_squares_begin(struct cpu_squares *squares, int64_t rows, int64_t columns,
                       enum ct_dtype dtype, void *memory)
{
    *squares = (struct cpu_squares){memory,
                                    blocks(rows, CPU_PANEL) * blocks(columns, CPU_MADE_COLUMNS),
                                    blocks(columns, CPU_MADE_COLUMNS),
                                    dtype,
                                    {sum_block, squares, NULL, 0}};
    memset(memory, 0, cpu_squares_bytes(rows, columns));
}

double cpu_squares_end(const struct cpu_squares *squares)
{
    double sum = 0;

    for (int64_t i = 0; i < squares->count; i++)
        sum += squares->sums[i];
    return sum;
}

/* ---- the ops ---- */

/* The op without the squares. */
static struct ct_op product_of(const struct ct_op *op)
{
    struct ct_op product = *op;

    product.outs--;
    return product;
}

static double dw_flops(const struct ct_op *op, const struct ct_tensor *in,
                       const struct ct_tensor *out)
{
    struct ct_op product = product_of(op);

    return ct_op_linear_dw.flops(&product, in, out);
}

static int dw_join(const struct ct_op *op, struct ct_value ***values)
{
    return ct_op_linear_dw.join(op, values);
}

const struct ct_op_type cpu_op_dw_squares = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.squares.linear_dw",
    .summary = "linear_dw, and the sum of squares of all dw",
    .signature = "x[.k] T, *dy[.n] T -> *dw[nk] T, squares[] d",
    .flags = CT_OP_ANY_DTYPE,
    .flops = dw_flops,
    .join = dw_join,
};

static int loss_grad_infer(struct ct_op *op)
{
    int rc = cpu_op_loss_grad.infer(op);

    op->out[3]->ndim = 0;
    return rc;
}

static double loss_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    return cpu_op_loss_grad.flops(op, in, out);
}

const struct ct_op_type cpu_op_loss_grad_squares = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.squares.linear_cross_entropy_grad",
    .summary = "cpu.linear_cross_entropy_grad, and the sum of squares of dw",
    .signature = "dloss F, x T, forward F, backward F, labels i -> dx T, dw T, loss W, squares d",
    .flags = CT_OP_ANY_DTYPE,
    .infer = loss_grad_infer,
    .flops = loss_grad_flops,
};

const struct ct_op_type cpu_op_add_squares = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.add_squares",
    .summary = "sum of sums of squares, in their order",
    .signature = "*part[] d -> sum[] d",
};

static int run_add_squares(const struct ct_launch *l)
{
    double sum = 0;

    for (int i = 0; i < l->ins; i++)
        sum += *(const double *)l->in[i].data;
    *(double *)l->out[0].data = sum;
    return 0;
}

const struct ct_kernel cpu_squares_kernels[] = {
    CT_KERNEL("cpu.add_squares", "scalar", 0, NULL, NULL, run_add_squares), {0}};

/* ---- the transform ---- */

static const char why[] = "squares of gradients are summed where products make them";

static bool has_squares(const struct ct_op *op)
{
    return op->type == &cpu_op_dw_squares || op->type == &cpu_op_loss_grad_squares;
}

/* The type that makes the squares as well, for an op that makes gradients; NULL: none does. */
static const struct ct_op_type *with_squares(const struct ct_op *op)
{
    if (op->type == &ct_op_linear_dw)
        return &cpu_op_dw_squares;
    if (op->type == &cpu_op_loss_grad && op->out[1]->dtype == CT_F32)
        return &cpu_op_loss_grad_squares;
    return has_squares(op) ? op->type : NULL;
}

/* The first gradient among the outputs of such an op. */
static int first_gradient(const struct ct_op *op)
{
    return with_squares(op) == &cpu_op_loss_grad_squares;
}

static int uses_in(const struct ct_op *op, const struct ct_value *value)
{
    int count = 0;

    ct_for_each_use (use, value)
        count += use->op == op;
    return count;
}

/* True if the norm sums the squares of all gradients that the maker makes, once. */
static bool all_in(const struct ct_op *norm, const struct ct_op *maker)
{
    int first = first_gradient(maker), end = first ? 2 : maker->outs - has_squares(maker);

    for (int i = first; i < end; i++)
        if (uses_in(norm, maker->out[i]) != 1)
            return false;
    return true;
}

/* Put an op with squares in the maker's place. */
static struct ct_op *add_squares(struct ct_graph *graph, struct ct_op *maker,
                                 const struct ct_value *norm)
{
    struct ct_op *op =
        cpu_emit_for(graph, maker, maker, with_squares(maker), maker->in, maker->ins, NULL, why);
    struct ct_value *squares;

    if (!op)
        return NULL;
    cpu_hand_over(graph, maker, op, 0);
    squares = op->out[op->outs - 1];
    squares->sharding = norm->sharding;
    ct_value_rename(graph, squares,
                    ct_arena_printf(graph->arena, "%s.squares", op->out[first_gradient(op)]->name));
    return op;
}

/* The sum of squares of this gradient, and of others that the norm wants; NULL: there is none. */
static int squares_of(struct ct_graph *graph, const struct ct_op *norm,
                      const struct ct_value *gradient, struct ct_value **squares)
{
    struct ct_op *maker = gradient->producer;

    *squares = NULL;
    if (!maker || !ct_part_is_microbatch(maker->section->part) || !with_squares(maker) ||
        !all_in(norm, maker))
        return 0;
    if (!has_squares(maker))
        maker = add_squares(graph, maker, norm->out[0]);
    if (!maker)
        return CT_EINVAL;
    *squares = maker->out[maker->outs - 1];
    return 0;
}

/* The sums, and the norm of the rest, take the norm's place. */
static int add_up(struct ct_graph *graph, struct ct_op *norm, struct ct_value **rest, int rests,
                  struct ct_value **parts, int count)
{
    struct ct_op *op = NULL;

    if (rests) {
        op = cpu_emit_for(graph, norm, norm, &ct_op_squared_norm, rest, rests, NULL, why);
        if (!op)
            return CT_EINVAL;
        op->out[0]->sharding = norm->out[0]->sharding;
        parts[count++] = op->out[0];
    }
    if (count > 1 || parts[0]->use_count)
        op = cpu_emit_for(graph, norm, norm, &cpu_op_add_squares, parts, count, NULL, why);
    else
        op = parts[0]->producer; /* the product makes the norm's value itself */
    if (!op)
        return CT_EINVAL;
    cpu_hand_over(graph, norm, op, op->outs - 1);
    return 0;
}

static int split_norm(struct ct_graph *graph, struct ct_op *norm)
{
    struct ct_value **rest = ct_arena_array(graph->arena, struct ct_value *, norm->ins),
                    **parts = ct_arena_array(graph->arena, struct ct_value *, norm->ins + 1);
    int rests = 0, count = 0, rc = 0;

    for (int i = 0; rc >= 0 && i < norm->ins; i++) {
        struct ct_value *gradient = norm->in[i], *squares;

        rc = squares_of(graph, norm, gradient, &squares);
        if (!squares)
            rest[rests++] = gradient;
        else if (gradient == squares->producer->out[first_gradient(squares->producer)])
            parts[count++] = squares; /* once for all its gradients */
    }
    return rc >= 0 && count ? add_up(graph, norm, rest, rests, parts, count) : rc;
}

/* True if an op is the norm of a gradient that a product makes. */
static bool is_norm_of_products(const struct ct_op *op)
{
    if (op->type != &ct_op_squared_norm || op->section->part != CT_PART_POST)
        return false;
    for (int i = 0; i < op->ins; i++)
        if (op->in[i]->producer && with_squares(op->in[i]->producer))
            return true;
    return false;
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    int microbatches = 0, rc = 0;
    int64_t batch;

    if (!cpu_config.epilogues || run->device_ops->open != cpu_device_ops.open)
        return 0;
    ct_for_each_op_safe (op, graph) {
        if (rc < 0 || !is_norm_of_products(op))
            continue;
        rc = ct_run_batch_sizes(run, &batch, &microbatches);
        if (rc >= 0 && microbatches == 1)
            rc = split_norm(graph, op);
    }
    return rc;
}

const struct ct_transform cpu_squares_in_products = {
    .size = sizeof(struct ct_transform),
    .name = "squares_in_products",
    .summary = "the CPU's products sum the squares of gradients that they make",
    .phase = CT_PHASE_FUSE,
    .gives = (const char *const[]){"preferred", NULL},
    .after = (const char *const[]){"packed", NULL},
    .apply = apply,
};
