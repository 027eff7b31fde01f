/*
 * What goes between the ranks of a pipeline. A value is made in one stage; these carry it to
 * another.
 *
 * Ranks are numbered along the axis: `from` and `to` are coordinates, all others being equal.
 */
#include "standard.h"

struct transfer {
    const char *axes, *dtype, *shape;
    int64_t from, to, tag;
};

static int receive_infer(struct ct_op *op)
{
    int rc = ct_dtype_parse(ct_op_string(op, "dtype"), &op->out[0]->dtype);

    if (rc < 0)
        return rc;
    return ct_shape_parse(ct_op_string(op, "shape"), &op->out[0]->rank, op->out[0]->shape);
}

static int no_outputs(const struct ct_op *op)
{
    (void)op;
    return 0;
}

#define TRANSFER(...)                                                                              \
    .attrs =                                                                                       \
        (const struct ct_option[]){                                                                \
            CT_OPT_STRING(struct transfer, axes, "axes", "", "The axis along which ranks count"),  \
            CT_OPT_INT(struct transfer, from, "from", "0", 0, 1 << 20, "The rank that has it"),    \
            CT_OPT_INT(struct transfer, to, "to", "0", 0, 1 << 20, "The rank that gets it"),       \
            CT_OPT_INT(struct transfer, tag, "tag", "0", 0, 1 << 30, "The same on both sides"),    \
            __VA_ARGS__{0}},                                                                       \
    .attrs_size = sizeof(struct transfer)

const struct ct_op_type ct_op_send = {
    .name = "send",
    .summary = "a value that another stage of the pipeline receives",
    .flags = CT_OP_COLLECTIVE | CT_OP_EFFECT,
    .count_outputs = no_outputs,
    TRANSFER(),
};

const struct ct_op_type ct_op_receive = {
    .name = "receive",
    .summary = "a value that another stage of the pipeline sends",
    .flags = CT_OP_COLLECTIVE,
    .infer = receive_infer,
    TRANSFER(CT_OPT_STRING(struct transfer, dtype, "dtype", "float32", "What it is made of"),
             CT_OPT_STRING(struct transfer, shape, "shape", "", "Sizes, with commas between"), ),
};

struct sum {
    const char *axes, *dtype;
};

static int stage_sum_infer(struct ct_op *op)
{
    struct ct_value *y = op->out[0];
    int rc = ct_dtype_parse(ct_op_string(op, "dtype"), &y->dtype);

    y->rank = 0;
    for (int i = 0; rc == 0 && i < op->ins; i++)
        if (op->in[i]->rank || op->in[i]->dtype != y->dtype)
            return ct_fail(CT_EINVAL, "x.%d %%%s is not a single %s", i, op->in[i]->name,
                           ct_dtype_name(y->dtype));
    return rc;
}

/* Each term counts on one rank only: `localise` leaves it there, and takes it away on the others.
 */
const struct ct_op_type ct_op_stage_sum = {
    .name = "stage_sum",
    .summary = "sum of numbers that several stages of the pipeline have, on all ranks",
    .flags = CT_OP_COLLECTIVE,
    .infer = stage_sum_infer,
    .attrs =
        (const struct ct_option[]){
            CT_OPT_STRING(struct sum, axes, "axes", "", "The axis of the stages' ranks"),
            CT_OPT_STRING(struct sum, dtype, "dtype", "float32", "What the numbers are"),
            {0}},
    .attrs_size = sizeof(struct sum),
};
