/*
 * Strides come first, then memory, then the values.
 */
#include <string.h>

#include "layout.h"
#include "tensors.h"

#define GAP 3      /* elements between two rows that are spaced */
#define PADDING 24 /* between two that are padded: rows end inside a vector */
#define BESIDE 64  /* buffers of a plan begin at multiples of this */

static int64_t dense_strides(struct ct_tensor *t, int64_t gap)
{
    int64_t step = 1;

    for (int d = t->ndim - 1; d >= 0; d--) {
        t->stride[d] = step;
        step = step * t->shape[d] + (d == t->ndim - 1 && t->ndim > 1 ? gap : 0);
    }
    return step;
}

/* Dimensions but the last in another order. */
static int64_t permuted_strides(struct ct_tensor *t)
{
    int last = t->ndim - 1;
    int64_t step = t->shape[last] + PADDING;

    t->stride[last] = 1;
    for (int d = 0; d < last; d++) {
        t->stride[d] = step;
        step *= t->shape[d];
    }
    return step;
}

/* Also if only those of dimensions of size 1 do. */
static bool strides_differ(const struct ct_tensor *t)
{
    struct ct_tensor dense = *t;

    dense_strides(&dense, 0);
    return memcmp(dense.stride, t->stride, sizeof(*t->stride) * (size_t)t->ndim) != 0;
}

/* Returns the elements, gaps included. */
static int64_t set_strides(struct ct_tensor *t, enum layout layout)
{
    bool real = ct_dtype_is_float(t->dtype);

    if (ct_dtype_bits(t->dtype) < 8) { /* always dense */
        *t = ct_tensor_dense(t->data, t->dtype, t->ndim, t->shape);
        return (int64_t)ct_tensor_bytes(t) * 8 / ct_dtype_bits(t->dtype);
    }
    if (layout == PERMUTED && real && t->ndim > 2)
        return permuted_strides(t);
    return dense_strides(t, layout == SPACED                          ? GAP
                            : layout == PADDED && real && t->ndim > 1 ? PADDING
                                                                      : 0);
}

static struct ct_tensor *tensor_of(struct operands *o, const struct ct_op *op, int i)
{
    return i < op->outs ? &o->out[i] : &o->in[i - op->outs];
}

/* An operand in memory of its own. True: its strides are not those of a dense one. */
static bool place(struct operands *o, const struct ct_check_case *c, int i, enum layout layout)
{
    const struct ct_value *v = tensor_operand(c->op, i);
    struct ct_tensor *t = tensor_of(o, c->op, i);
    bool output = i < c->op->outs;
    size_t bytes;

    if (v->opaque_bytes)
        layout = DENSE;
    bytes = (size_t)set_strides(t, layout) * (size_t)ct_dtype_bits(t->dtype) / 8 + v->opaque_bytes;
    t->data =
        memory_add(&o->memory, bytes, t, output ? "output" : "input", output ? i : i - c->op->outs);
    return strides_differ(t);
}

/* The op's values that it would like side by side. */
static bool join(struct operands *o, const struct ct_op *op)
{
    struct ct_value **values;
    int count = ct_op_join(op, &values);
    int64_t width = 0, rows = 0;
    char *data;

    if (count < 2)
        return false;
    for (int i = 0; i < count; i++) {
        width += values[i]->shape[values[i]->ndim - 1];
        rows = ct_shape_count(values[i]->ndim, values[i]->shape) /
               values[i]->shape[values[i]->ndim - 1];
    }
    data = memory_add(&o->memory, (size_t)(rows * width) * ct_dtype_size(values[0]->dtype), NULL,
                      "operands that are columns of one matrix", -1);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < op->outs + op->ins; k++) {
            struct ct_tensor *t = tensor_of(o, op, k);
            int64_t stride = width;

            if (tensor_operand(op, k) != values[i] || t->data)
                continue;
            t->data = data;
            t->stride[t->ndim - 1] = 1;
            for (int d = t->ndim - 2; d >= 0; d--) {
                t->stride[d] = stride;
                stride *= t->shape[d];
            }
            data += (size_t)t->shape[t->ndim - 1] * ct_dtype_size(t->dtype);
            break;
        }
    return true;
}

/* Operands that may lie anywhere: in one block. Inputs come first. */
static void place_beside(struct operands *o, const struct ct_op *op, enum layout layout)
{
    int n = op->outs + op->ins;
    size_t bytes = 0;

    for (char *base = NULL;; base = memory_add(&o->memory, bytes, NULL, "operands in a row", -1)) {
        bytes = 0;
        for (int k = 0; k < n; k++) {
            int i = (k + op->outs) % n;
            const struct ct_value *v = tensor_operand(op, i);
            struct ct_tensor *t = tensor_of(o, op, i);

            if (!v || v->opaque_bytes || t->data)
                continue;
            set_strides(t, layout);
            if (!ct_tensor_is_dense(t))
                continue;
            if (base)
                t->data = base + bytes;
            bytes += (ct_tensor_bytes(t) + BESIDE - 1) / BESIDE * BESIDE;
        }
        if (base || !bytes)
            return;
    }
}

bool lay_out(struct operands *o, const struct ct_check_case *c, enum layout layout)
{
    const struct ct_op *op = c->op;
    bool differs = layout == DENSE;
    int n = op->outs + op->ins;

    o->in = ct_arena_array(o->memory.arena, struct ct_tensor, op->ins + 1);
    o->out = ct_arena_array(o->memory.arena, struct ct_tensor, op->outs + 1);
    for (int i = 0; i < n; i++)
        if (tensor_operand(op, i)) {
            *tensor_of(o, op, i) = c->value[tensor_operand(op, i)->id];
            tensor_of(o, op, i)->data = NULL;
        }
    if (layout == JOINED)
        differs = join(o, op);
    if (o->beside)
        place_beside(o, op, layout);
    for (int i = 0; i < n; i++)
        if (tensor_operand(op, i) && !tensor_of(o, op, i)->data)
            differs |= place(o, c, i, layout);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && !op->in[i]->opaque_bytes)
            tensor_copy(&o->in[i], &c->value[op->in[i]->id]);
    for (int i = 0; i < n; i++)
        if (tensor_operand(op, i) && tensor_operand(op, i)->opaque_bytes) {
            const struct ct_tensor *from = &c->value[tensor_operand(op, i)->id];

            memcpy(tensor_of(o, op, i)->data, from->data,
                   (size_t)ct_tensor_count(from) * ct_dtype_size(from->dtype) +
                       tensor_operand(op, i)->opaque_bytes);
        }
    return differs;
}

void take_opaque(const struct operands *o, const struct ct_check_case *c)
{
    const struct ct_op *op = c->op;

    for (int i = 0; i < op->outs; i++)
        if (op->out[i]->opaque_bytes)
            memcpy(c->value[op->out[i]->id].data, o->out[i].data,
                   (size_t)ct_tensor_count(&o->out[i]) * ct_dtype_size(o->out[i].dtype) +
                       op->out[i]->opaque_bytes);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && op->in[i]->opaque_bytes && ct_op_mutates(op, i))
            memcpy(c->value[op->in[i]->id].data, o->in[i].data,
                   (size_t)ct_tensor_count(&o->in[i]) * ct_dtype_size(o->in[i].dtype) +
                       op->in[i]->opaque_bytes);
}
