/*
 * The op types on packed weights, which the transform "pack_weights" (pack_weights.c) inserts into
 * graphs.
 */
#include <string.h>

#include <ctitan/error.h>

#include "pack_weights.h"

static int pack_infer(struct ct_op *op)
{
    int64_t rows = 0;

    for (int i = 0; i < op->ins; i++) {
        if (op->in[i]->ndim != 2 || op->in[i]->shape[1] != op->in[0]->shape[1])
            return ct_fail(CT_EINVAL, "weights of different widths, or no matrices");
        rows += op->in[i]->shape[0];
    }
    for (int i = 0; i < op->outs; i++) {
        op->out[i]->dtype = cpu_packed_type(cpu_pack_dtype(op));
        op->out[i]->ndim = 2;
        op->out[i]->shape[0] = rows;
        op->out[i]->shape[1] = op->in[0]->shape[1];
    }
    return 0;
}

#define USE                                                                                        \
    CT_OPT_ENUM(struct cpu_pack_attrs, use, "use", "forward", "forward|backward",                  \
                "Multiplied as w^T, or as w")
#define DTYPE                                                                                      \
    CT_OPT_DTYPE(                                                                                  \
        struct cpu_pack_attrs, dtype, "dtype", "float32",                                          \
        "Dtype of the activations: packed elements are numbers of it, whatever holds them")
const struct ct_op_type cpu_op_pack = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.pack",
    .summary = "weights in the layout of the CPU's matrix product, one below the other",
    .signature = "*w F -> packed F",
    .attrs = (const struct ct_option[]){USE, DTYPE, {0}},
    .attrs_size = sizeof(struct cpu_pack_attrs),
    .infer = pack_infer,
};

const struct ct_op_type cpu_op_pack_both = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.pack_both",
    .summary = "cpu.pack for both uses, in one pass over the weights",
    .signature = "*w F -> forward F, backward F",
    .attrs = (const struct ct_option[]){DTYPE, {0}},
    .attrs_size = sizeof(struct cpu_pack_attrs),
    .infer = pack_infer,
};

const struct ct_op_type cpu_op_pack_into = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.pack_into",
    .summary = "cpu.pack into a state",
    .signature = "!packed F, *w F",
    .attrs = (const struct ct_option[]){USE, DTYPE, {0}},
    .attrs_size = sizeof(struct cpu_pack_attrs),
};

static int linear_infer(struct ct_op *op)
{
    const struct ct_shape *widths = &((const struct cpu_linear_attrs *)op->attrs)->widths;
    const struct ct_value *x = op->in[0], *packed = op->in[1];
    char text[160];
    int64_t sum = 0;

    for (int i = 0; i < op->outs; i++) {
        struct ct_value *y = op->out[i];

        y->ndim = x->ndim;
        memcpy(y->shape, x->shape, sizeof(y->shape));
        y->shape[y->ndim - 1] = widths->size[i];
        sum += widths->size[i];
    }
    if (sum == packed->shape[0] && x->shape[x->ndim - 1] == packed->shape[1])
        return 0;
    ct_shape_print(widths, text, sizeof(text));
    return ct_fail(CT_EINVAL, "widths %s do not fit the packed weights", text);
}

static int join_outputs(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->out;
    return op->outs > 1 ? op->outs : 0;
}

static double linear_flops(const struct ct_op *op, const struct ct_tensor *in,
                           const struct ct_tensor *out)
{
    double sum = 0;

    for (int i = 0; i < op->outs; i++)
        sum += 2.0 * (double)ct_tensor_count(&in[0]) * (double)out[i].shape[out[i].ndim - 1];
    return sum;
}

const struct ct_op_type cpu_op_linear = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.linear",
    .summary = "linear on packed weights",
    .signature = "x T, packed F -> *y T | *widths",
    .attrs =
        (const struct ct_option[]){CT_OPT_SHAPE(struct cpu_linear_attrs, widths, "widths", NULL,
                                                "Widths of the outputs, comma-separated"),
                                   {0}},
    .attrs_size = sizeof(struct cpu_linear_attrs),
    .infer = linear_infer,
    .flops = linear_flops,
    .join = join_outputs,
};

static int linear_dx_infer(struct ct_op *op)
{
    const struct ct_value *dy = op->in[0], *packed = op->in[op->ins - 1];
    struct ct_value *dx = op->out[0];

    dx->ndim = dy->ndim;
    memcpy(dx->shape, dy->shape, sizeof(dx->shape));
    dx->shape[dx->ndim - 1] = packed->shape[1];
    return 0;
}

static int join_inputs(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->in;
    return op->ins > 2 ? op->ins - 1 : 0;
}

static double linear_dx_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    double sum = 0;

    for (int i = 0; i + 1 < op->ins; i++)
        sum += 2.0 * (double)ct_tensor_count(&in[i]) * (double)out[0].shape[out[0].ndim - 1];
    return sum;
}

const struct ct_op_type cpu_op_linear_dx = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.linear_dx",
    .summary = "linear_dx on packed weights",
    .signature = "*dy T, packed F -> dx T",
    .infer = linear_dx_infer,
    .flops = linear_dx_flops,
    .join = join_inputs,
};

static int loss_infer(struct ct_op *op)
{
    op->out[0]->ndim = 0;
    return 0;
}

static double loss_flops(const struct ct_op *op, const struct ct_tensor *in,
                         const struct ct_tensor *out)
{
    (void)op;
    (void)out;
    return 2.0 * (double)ct_tensor_count(&in[0]) * (double)in[1].shape[0];
}

const struct ct_op_type cpu_op_loss = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.linear_cross_entropy",
    .summary = "linear_cross_entropy on packed weights",
    .signature = "x T, packed F, labels i -> loss W",
    .infer = loss_infer,
    .flops = loss_flops,
};

static int loss_grad_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[1], *packed = op->in[2];
    struct ct_value *dx = op->out[0], *dw = op->out[1];

    dx->ndim = x->ndim;
    memcpy(dx->shape, x->shape, sizeof(dx->shape));
    dw->ndim = 2;
    memcpy(dw->shape, packed->shape, sizeof(dw->shape));
    op->out[2]->ndim = 0;
    return 0;
}

static double loss_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    return 3 * loss_flops(op, in + 1, out);
}

static int loss_dx_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[1];

    op->out[0]->ndim = x->ndim;
    memcpy(op->out[0]->shape, x->shape, sizeof(x->shape));
    op->out[1]->ndim = 0;
    return 0;
}

static double loss_dx_flops(const struct ct_op *op, const struct ct_tensor *in,
                            const struct ct_tensor *out)
{
    return 2 * loss_flops(op, in + 1, out);
}

const struct ct_op_type cpu_op_loss_dx = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.linear_cross_entropy_dx",
    .summary = "linear_cross_entropy_dx on packed weights, for the forward and the backward",
    .signature = "dloss F, x T, forward F, backward F, labels i -> dx T, loss W",
    .flags = CT_OP_ANY_DTYPE,
    .infer = loss_dx_infer,
    .flops = loss_dx_flops,
};

const struct ct_op_type cpu_op_loss_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.linear_cross_entropy_grad",
    .summary = "linear_cross_entropy_grad on packed weights, for the forward and the backward",
    .signature = "dloss F, x T, forward F, backward F, labels i -> dx T, dw T, loss W",
    .flags = CT_OP_ANY_DTYPE,
    .infer = loss_grad_infer,
    .flops = loss_grad_flops,
};
