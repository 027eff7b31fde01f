/* Whole tensors as numbers, a row at a time: ct_tensor_load() finds each element anew. */
#include <math.h>
#include <string.h>

#include <ctitan/lib/app/check.h>

#include "tensors.h"

/* A dense tensor as one row. */
static struct ct_tensor flat(const struct ct_tensor *t)
{
    int64_t count = ct_tensor_count(t);

    /* rows of elements smaller than a byte have ends of their own */
    return ct_tensor_is_dense(t) && ct_dtype_bits(t->dtype) >= 8
               ? ct_tensor_dense(t->data, t->dtype, 1, &count)
               : *t;
}

static int64_t columns_of(const struct ct_tensor *t)
{
    return t->ndim ? t->shape[t->ndim - 1] : 1;
}

static int64_t rows_of(const struct ct_tensor *t)
{
    return ct_tensor_count(t) / columns_of(t);
}

static struct ct_tensor row_of(const struct ct_tensor *t, int64_t row)
{
    int64_t offset = 0;

    for (int d = t->ndim - 2; d >= 0; d--) {
        offset += row % t->shape[d] * t->stride[d];
        row /= t->shape[d];
    }
    return (struct ct_tensor){.data = (char *)t->data + offset * ct_dtype_bits(t->dtype) / 8,
                              .dtype = t->dtype,
                              .ndim = 1,
                              .shape = {columns_of(t)},
                              .stride = {t->ndim ? t->stride[t->ndim - 1] : 1}};
}

/* The common case apart, which compilers make vectors of. */
static void read_neighbours(const struct ct_tensor *row, double *restrict to)
{
    int64_t n = row->shape[0];

    if (row->dtype == CT_F32)
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const float *)row->data)[i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = ct_bf16_to_f32(((const uint16_t *)row->data)[i]);
}

static void read_row(const struct ct_tensor *row, double *to)
{
    int64_t n = row->shape[0], stride = row->stride[0];

    if (stride == 1 && (row->dtype == CT_F32 || row->dtype == CT_BF16)) {
        read_neighbours(row, to);
        return;
    }
    switch (row->dtype) {
    case CT_F32:
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const float *)row->data)[i * stride];
        break;
    case CT_BF16:
        for (int64_t i = 0; i < n; i++)
            to[i] = ct_bf16_to_f32(((const uint16_t *)row->data)[i * stride]);
        break;
    case CT_F64:
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const double *)row->data)[i * stride];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            to[i] = ct_tensor_load(row, i);
    }
}

static void write_row(const struct ct_tensor *row, const double *from)
{
    int64_t n = row->shape[0], stride = row->stride[0];

    switch (row->dtype) {
    case CT_F32:
        for (int64_t i = 0; i < n; i++)
            ((float *)row->data)[i * stride] = (float)from[i];
        break;
    case CT_BF16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)row->data)[i * stride] = ct_f64_to_bf16(from[i]);
        break;
    case CT_F64:
        for (int64_t i = 0; i < n; i++)
            ((double *)row->data)[i * stride] = from[i];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            ct_tensor_store(row, i, from[i]);
    }
}

/* One element to all of a row, whose elements lie side by side. */
static void repeat(const struct ct_tensor *to, const void *element)
{
    size_t size = ct_dtype_size(to->dtype), bytes = (size_t)to->shape[0] * size, done = size;

    memcpy(to->data, element, size);
    for (; done < bytes; done *= 2)
        memcpy((char *)to->data + done, to->data, done < bytes - done ? done : bytes - done);
}

static void copy_row(const struct ct_tensor *to, const struct ct_tensor *from)
{
    int64_t n = to->shape[0], a = to->stride[0], b = from->stride[0];

    if (a == 1 && b == 1 && ct_dtype_bits(to->dtype) >= 8) {
        memcpy(to->data, from->data, (size_t)n * ct_dtype_size(to->dtype));
        return;
    }
    if (a == 1 && b == 0 && n > 0 && ct_dtype_bits(to->dtype) >= 8) {
        repeat(to, from->data);
        return;
    }
    switch (ct_dtype_bits(to->dtype)) {
    case 4:
        for (int64_t i = 0; i < n; i++)
            ct_tensor_store(to, i, ct_tensor_load(from, i));
        break;
    case 8:
        for (int64_t i = 0; i < n; i++)
            ((uint8_t *)to->data)[i * a] = ((const uint8_t *)from->data)[i * b];
        break;
    case 16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to->data)[i * a] = ((const uint16_t *)from->data)[i * b];
        break;
    case 32:
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)to->data)[i * a] = ((const uint32_t *)from->data)[i * b];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            ((uint64_t *)to->data)[i * a] = ((const uint64_t *)from->data)[i * b];
    }
}

void ct_check_read(const struct ct_tensor *t, double *to)
{
    struct ct_tensor rows = flat(t);

    for (int64_t r = 0, n = rows_of(&rows); r < n; r++, to += columns_of(&rows)) {
        struct ct_tensor row = row_of(&rows, r);

        read_row(&row, to);
    }
}

void ct_check_write(const struct ct_tensor *t, const double *from)
{
    struct ct_tensor rows = flat(t);

    for (int64_t r = 0, n = rows_of(&rows); r < n; r++, from += columns_of(&rows)) {
        struct ct_tensor row = row_of(&rows, r);

        write_row(&row, from);
    }
}

const struct ct_value *tensor_operand(const struct ct_op *op, int i)
{
    return i < op->outs ? op->out[i] : op->in[i - op->outs];
}

void tensor_copy(const struct ct_tensor *to, const struct ct_tensor *from)
{
    bool dense = ct_tensor_is_dense(to) && ct_tensor_is_dense(from);
    struct ct_tensor x = dense ? flat(to) : *to, y = dense ? flat(from) : *from;

    for (int64_t r = 0, n = rows_of(&x); r < n; r++) {
        struct ct_tensor a = row_of(&x, r), b = row_of(&y, r);

        copy_row(&a, &b);
    }
}

const double *tensor_numbers(const struct ct_tensor *t, struct ct_arena *arena)
{
    double *numbers;

    if (t->dtype == CT_F64 && ct_tensor_is_dense(t))
        return t->data;
    numbers = ct_arena_array(arena, double, ct_tensor_count(t));
    ct_check_read(t, numbers);
    return numbers;
}

double tensor_largest(const struct ct_tensor *t, struct ct_arena *arena)
{
    const double *x = tensor_numbers(t, arena);
    double most = 0;

    for (int64_t i = 0, n = ct_tensor_count(t); i < n; i++)
        most = isfinite(x[i]) ? fmax(most, fabs(x[i])) : most;
    return most;
}

double tensor_difference(const struct ct_tensor *a, const struct ct_tensor *b,
                         struct ct_arena *arena)
{
    const double *x = tensor_numbers(a, arena), *y = tensor_numbers(b, arena);
    double most = 0;

    for (int64_t i = 0, n = ct_tensor_count(a); i < n; i++)
        most = fmax(most, fabs(x[i] - y[i]));
    return most;
}
