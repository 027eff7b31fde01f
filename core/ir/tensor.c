/*
 * Dtypes, shapes and access to single elements.
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/option.h>
#include <ctitan/tensor.h>

static const struct {
    const char *name;
    int bits;
    bool floating;
} dtypes[] = {
#define X(id, name, bits, floating) {name, bits, floating},
    CT_DTYPES(X)
#undef X
};

const char *ct_dtype_name(enum ct_dtype dtype)
{
    return dtypes[dtype].name;
}

int ct_dtype_bits(enum ct_dtype dtype)
{
    return dtypes[dtype].bits;
}

size_t ct_dtype_size(enum ct_dtype dtype)
{
    assert(dtypes[dtype].bits >= 8);
    return (size_t)dtypes[dtype].bits / 8;
}

/* Elements of a dense row with this many in use. */
static int64_t row_length(enum ct_dtype dtype, int64_t columns)
{
    int64_t in_byte = dtypes[dtype].bits < 8 ? 8 / dtypes[dtype].bits : 1;

    return (columns + in_byte - 1) / in_byte * in_byte;
}

size_t ct_dtype_bytes(enum ct_dtype dtype, int ndim, const int64_t *shape)
{
    int64_t columns = ndim ? shape[ndim - 1] : 1;
    size_t row = (size_t)row_length(dtype, columns) * (size_t)dtypes[dtype].bits / 8;

    return (size_t)ct_shape_count(ndim ? ndim - 1 : 0, shape) * row;
}

bool ct_dtype_is_float(enum ct_dtype dtype)
{
    return dtypes[dtype].floating;
}

int ct_dtype_parse(const char *name, enum ct_dtype *dtype)
{
    const char *names[CT_DTYPE_COUNT];

    for (int i = 0; i < CT_DTYPE_COUNT; i++) {
        names[i] = dtypes[i].name;
        if (!strcmp(name, names[i])) {
            *dtype = (enum ct_dtype)i;
            return 0;
        }
    }
    return ct_fail(CT_EINVAL, "no dtype named %s%s", name,
                   ct_did_you_mean(name, names, CT_DTYPE_COUNT));
}

struct ct_shape ct_shape_of(int ndim, const int64_t *sizes)
{
    struct ct_shape shape = {.ndim = ndim};

    for (int i = 0; i < ndim; i++)
        shape.size[i] = sizes[i];
    return shape;
}

int ct_shape_print(const struct ct_shape *shape, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};

    if (room)
        *text = '\0';
    for (int i = 0; i < shape->ndim; i++)
        ct_line_add(&line, "%s%" PRId64, i ? "," : "", shape->size[i]);
    return (int)line.used;
}

int ct_shape_parse(const char *text, struct ct_shape *shape)
{
    const char *p = text ? text : "";
    char *end;

    *shape = (struct ct_shape){0};
    for (; *p; p = end + (*end == ',')) {
        if (shape->ndim == CT_MAX_DIMS)
            return ct_fail(CT_EINVAL, "shape \"%s\" has more than %d dimensions", text,
                           CT_MAX_DIMS);
        shape->size[shape->ndim] = strtoll(p, &end, 10);
        if (end == p || (*end && *end != ',') || shape->size[shape->ndim] <= 0)
            return ct_fail(CT_EINVAL, "shape \"%s\" is not a list of sizes", text);
        shape->ndim++;
    }
    return 0;
}

int64_t ct_shape_count(int ndim, const int64_t *shape)
{
    int64_t count = 1;

    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(count, shape[i], &count))
            return INT64_MAX;
    return count;
}

int64_t ct_tensor_count(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim, t->shape);
}

struct ct_tensor ct_tensor_dense(void *data, enum ct_dtype dtype, int ndim, const int64_t *shape)
{
    struct ct_tensor t = {.data = data, .dtype = dtype, .ndim = ndim};
    int64_t stride = 1;

    for (int i = ndim - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        /* too large shapes are refused later */
        __builtin_mul_overflow(stride, i == ndim - 1 ? row_length(dtype, shape[i]) : shape[i],
                               &stride);
    }
    return t;
}

bool ct_tensor_is_dense(const struct ct_tensor *t)
{
    int64_t stride = 1;

    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != stride)
            return false;
        __builtin_mul_overflow(
            stride, i == t->ndim - 1 ? row_length(t->dtype, t->shape[i]) : t->shape[i], &stride);
    }
    return true;
}

size_t ct_tensor_bytes(const struct ct_tensor *t)
{
    return ct_dtype_bytes(t->dtype, t->ndim, t->shape);
}

size_t ct_tensor_extent(const struct ct_tensor *t)
{
    int64_t last = 0;

    for (int d = 0; d < t->ndim; d++)
        last += (t->shape[d] - 1) * t->stride[d];
    return (size_t)row_length(t->dtype, last + 1) * (size_t)dtypes[t->dtype].bits / 8;
}

struct ct_tensor ct_tensor_packed(const struct ct_tensor *t)
{
    int64_t shape[CT_MAX_DIMS] = {1};

    if (dtypes[t->dtype].bits >= 8)
        return *t;
    assert(ct_tensor_is_dense(t));
    memcpy(shape, t->shape, sizeof(*shape) * (size_t)t->ndim);
    if (t->ndim)
        shape[t->ndim - 1] = row_length(t->dtype, shape[t->ndim - 1]) * dtypes[t->dtype].bits / 8;
    return ct_tensor_dense(t->data, CT_U8, t->ndim, shape);
}

bool ct_tensor_as_matrix(const struct ct_tensor *t, struct ct_matrix *m)
{
    *m = (struct ct_matrix){1, t->ndim ? t->shape[t->ndim - 1] : 1, 0};
    if (t->ndim && t->stride[t->ndim - 1] != 1 && m->columns > 1)
        return false;
    for (int d = t->ndim - 2; d >= 0; d--) {
        if (t->shape[d] == 1)
            continue;
        if (m->rows == 1)
            m->stride = t->stride[d];
        else if (t->stride[d] != m->stride * m->rows)
            return false;
        m->rows *= t->shape[d];
    }
    if (m->rows <= 1)
        m->stride = m->columns;
    return m->stride >= m->columns;
}

/* Trailing dimensions that are dense need no division. */
static int64_t element(const struct ct_tensor *t, int64_t index)
{
    int64_t dense = 1, offset;
    int i = t->ndim;

    for (; i > 0 && t->stride[i - 1] == dense; i--)
        dense *= t->shape[i - 1];
    if (i == 0)
        return index;
    offset = index % dense;
    index /= dense;
    for (i--; i > 0 && index; i--) {
        int64_t rest = index / t->shape[i];

        offset += (index - rest * t->shape[i]) * t->stride[i];
        index = rest;
    }
    return offset + index * t->stride[0];
}

/* The code at an element, in the high half of a byte or in the low one. */
static uint8_t code_at(const struct ct_tensor *t, int64_t at)
{
    uint8_t both = ((const uint8_t *)t->data)[at / 2];

    return at % 2 ? both & 15 : both >> 4;
}

static void set_code(const struct ct_tensor *t, int64_t at, uint8_t code)
{
    uint8_t *both = (uint8_t *)t->data + at / 2;

    *both = (uint8_t)(at % 2 ? (*both & 0xf0) | code : (*both & 15) | code << 4);
}

double ct_tensor_load(const struct ct_tensor *t, int64_t index)
{
    int64_t at = element(t, index);
    const void *p = (const char *)t->data + at * dtypes[t->dtype].bits / 8;

    switch (t->dtype) {
    case CT_F32:
        return *(const float *)p;
    case CT_BF16:
        return ct_bf16_to_f32(*(const uint16_t *)p);
    case CT_F64:
        return *(const double *)p;
    case CT_F16:
        return ct_f16_to_f32(*(const uint16_t *)p);
    case CT_E4M3:
        return ct_e4m3_to_f32(*(const uint8_t *)p);
    case CT_E5M2:
        return ct_e5m2_to_f32(*(const uint8_t *)p);
    case CT_I32:
        return *(const int32_t *)p;
    case CT_I64:
        return (double)*(const int64_t *)p;
    case CT_U8:
        return *(const uint8_t *)p;
    case CT_U4:
        return code_at(t, at);
    case CT_DTYPE_COUNT:
        break;
    }
    return NAN;
}

void ct_tensor_store(const struct ct_tensor *t, int64_t index, double value)
{
    int64_t at = element(t, index);
    void *p = (char *)t->data + at * dtypes[t->dtype].bits / 8;

    switch (t->dtype) {
    case CT_F32:
        *(float *)p = (float)value;
        break;
    case CT_BF16:
        *(uint16_t *)p = ct_f64_to_bf16(value);
        break;
    case CT_F64:
        *(double *)p = value;
        break;
    case CT_F16:
        *(uint16_t *)p = ct_f64_to_f16(value);
        break;
    case CT_E4M3:
        *(uint8_t *)p = ct_f64_to_e4m3(value);
        break;
    case CT_E5M2:
        *(uint8_t *)p = ct_f64_to_e5m2(value);
        break;
    case CT_I32:
        *(int32_t *)p = (int32_t)llrint(value);
        break;
    case CT_I64:
        *(int64_t *)p = llrint(value);
        break;
    case CT_U8:
        *(uint8_t *)p = (uint8_t)llrint(value);
        break;
    case CT_U4:
        set_code(t, at, (uint8_t)llrint(value) & 15);
        break;
    case CT_DTYPE_COUNT:
        break;
    }
}
