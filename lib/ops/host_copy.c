/* Copies between the device's memory and its host memory. Values there are "offloaded". */
#include <string.h>

#include "list.h"

static int check(const struct ct_op *op, int input, enum ct_space space)
{
    const struct ct_value *v = op->in[input];

    if (v->space == space)
        return 0;
    return ct_fail(CT_EINVAL, "%%%s is %soffloaded", v->name, space == CT_SPACE_HOST ? "not " : "");
}

static int copy(const struct ct_tensor *to, const struct ct_tensor *from, bool add)
{
    if (!add && ct_tensor_is_dense(to) && ct_tensor_is_dense(from)) {
        memcpy(to->data, from->data, ct_tensor_bytes(to));
        return 0;
    }
    for (int64_t i = 0; i < ct_tensor_count(to); i++)
        ct_tensor_store(to, i, ct_tensor_load(from, i) + (add ? ct_tensor_load(to, i) : 0));
    return 0;
}

static int copy_out(const struct ct_launch *l)
{
    return copy(&l->out[0], &l->in[0], l->accumulate & 1);
}

static int load_infer(struct ct_op *op)
{
    return check(op, 0, CT_SPACE_HOST);
}

const struct ct_op_type ct_op_load = {
    .size = sizeof(struct ct_op_type),
    .name = "load",
    .summary = "a copy in device memory of an offloaded value",
    .signature = "x[.] A -> y[.] A",
    .samples = "offloaded[2,4]",
    .flags = CT_OP_SPACES | CT_OP_PACKED,
    .infer = load_infer,
    .reference = copy_out,
};

static int store_infer(struct ct_op *op)
{
    int rc = check(op, 0, CT_SPACE_HOST);

    return rc < 0 ? rc : check(op, 1, CT_SPACE_DEVICE);
}

static int store_reference(const struct ct_launch *l)
{
    return copy(&l->in[0], &l->in[1], false);
}

const struct ct_op_type ct_op_store = {
    .size = sizeof(struct ct_op_type),
    .name = "store",
    .summary = "replaces the offloaded y by x",
    .signature = "!y[.] A, x[.] A",
    .samples = "offloaded[4,6] real[4,6]",
    .flags = CT_OP_SPACES | CT_OP_PACKED,
    .infer = store_infer,
    .reference = store_reference,
};

static int offload_infer(struct ct_op *op)
{
    op->out[0]->space = CT_SPACE_HOST;
    return check(op, 0, CT_SPACE_DEVICE);
}

const struct ct_op_type ct_op_offload = {
    .size = sizeof(struct ct_op_type),
    .name = "offload",
    .summary = "an offloaded copy of x",
    .signature = "x[.] A -> y[.] A",
    .flags = CT_OP_SPACES | CT_OP_PACKED,
    .infer = offload_infer,
    .reference = copy_out,
    .samples = "real[2,4]",
};

struct ct_value *ct_load(struct ct_builder *b, const char *name, struct ct_value *x)
{
    return ct_emit_type1(b, &ct_op_load, name, &x, 1, NULL);
}

struct ct_op *ct_store(struct ct_builder *b, struct ct_value *y, struct ct_value *x)
{
    return ct_emit_type(b, &ct_op_store, NULL, (struct ct_value *[]){y, x}, 2, NULL);
}

struct ct_value *ct_offload(struct ct_builder *b, const char *name, struct ct_value *x)
{
    return ct_emit_type1(b, &ct_op_offload, name, &x, 1, NULL);
}
