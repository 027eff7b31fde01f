/*
 * Dtypes and element access. The small floating-point formats are described by their fields
 * (exponent and mantissa bits, whether the top exponent holds numbers), and one encoder and one
 * decoder serve them all, straight from and to double: a value is rounded once.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/option.h>
#include <ctitan/tensor.h>

static const struct {
    const char *name;
    size_t size;
    bool floating;
} dtypes[] = {
#define X(id, name, bytes, floating) {name, bytes, floating},
    CT_DTYPES(X)
#undef X
};

struct format {
    int exponent_bits, mantissa_bits;
    bool finite; /* no infinity, NaN is all ones (e4m3) */
    bool saturates;
};

static const struct format bf16 = {8, 7, false, false};
static const struct format f16 = {5, 10, false, false};
static const struct format e4m3 = {4, 3, true, true};
static const struct format e5m2 = {5, 2, false, true};

const char *ct_dtype_name(enum ct_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t ct_dtype_size(enum ct_dtype dtype)
{
    return dtypes[dtype].size;
}

bool ct_dtype_is_float(enum ct_dtype dtype)
{
    return dtypes[dtype].floating;
}

int ct_dtype_parse(const char *name, enum ct_dtype *dtype)
{
    const char *names[CT_DTYPE_COUNT], *near;

    for (int i = 0; i < CT_DTYPE_COUNT; i++) {
        names[i] = dtypes[i].name;
        if (!strcmp(name, names[i])) {
            *dtype = (enum ct_dtype)i;
            return 0;
        }
    }
    near = ct_nearest(name, names, CT_DTYPE_COUNT);
    if (near)
        return ct_fail(CT_EINVAL, "no dtype named %s; did you mean %s?", name, near);
    return ct_fail(CT_EINVAL, "no dtype named %s", name);
}

int64_t ct_shape_count(int rank, const int64_t *shape)
{
    int64_t count = 1;

    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(count, shape[i], &count))
            return INT64_MAX;
    return count;
}

int64_t ct_tensor_count(const struct ct_tensor *t)
{
    return ct_shape_count(t->rank, t->shape);
}

struct ct_tensor ct_tensor_dense(void *data, enum ct_dtype dtype, int rank, const int64_t *shape)
{
    struct ct_tensor t = {.data = data, .dtype = dtype, .rank = rank};
    int64_t stride = 1;

    for (int i = rank - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        stride *= shape[i];
    }
    return t;
}

bool ct_tensor_is_dense(const struct ct_tensor *t)
{
    int64_t stride = 1;

    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != stride)
            return false;
        stride *= t->shape[i];
    }
    return true;
}

bool ct_tensor_as_matrix(const struct ct_tensor *t, struct ct_matrix *m)
{
    *m = (struct ct_matrix){1, t->rank ? t->shape[t->rank - 1] : 1, 0};
    if (t->rank && t->stride[t->rank - 1] != 1 && m->columns > 1)
        return false;
    for (int d = t->rank - 2; d >= 0; d--) {
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

static int64_t element(const struct ct_tensor *t, int64_t index)
{
    int64_t offset = 0;

    for (int i = t->rank - 1; i > 0 && index; i--) {
        int64_t rest = index / t->shape[i];

        offset += (index - rest * t->shape[i]) * t->stride[i];
        index = rest;
    }
    return offset + (t->rank ? index * t->stride[0] : 0);
}

static int bias(const struct format *f)
{
    return (1 << (f->exponent_bits - 1)) - 1;
}

static double largest(const struct format *f)
{
    int exponent = (1 << f->exponent_bits) - 1 - bias(f) - (f->finite ? 0 : 1);
    double mantissa = 2 - ldexp(1, (f->finite ? 1 : 0) - f->mantissa_bits);

    return ldexp(mantissa, exponent);
}

static uint32_t nan_of(const struct format *f)
{
    uint32_t exponent = ((1u << f->exponent_bits) - 1) << f->mantissa_bits;

    return exponent | (f->finite ? (1u << f->mantissa_bits) - 1 : 1u << (f->mantissa_bits - 1));
}

static uint32_t encode(const struct format *f, double value)
{
    int lowest = 1 - bias(f), exponent;
    uint32_t sign = (uint32_t) !!signbit(value) << (f->exponent_bits + f->mantissa_bits);
    double magnitude = fabs(value), unit;

    if (isnan(value))
        return sign | nan_of(f);
    if (magnitude > 0 && !isinf(magnitude)) {
        exponent = ilogb(magnitude) < lowest ? lowest : ilogb(magnitude);
        unit = ldexp(1, exponent - f->mantissa_bits);
        magnitude = nearbyint(magnitude / unit) * unit;
    }
    if (magnitude > largest(f)) {
        if (!f->saturates)
            return sign | ((1u << f->exponent_bits) - 1) << f->mantissa_bits;
        magnitude = largest(f);
    }
    if (magnitude < ldexp(1, lowest))
        return sign | (uint32_t)ldexp(magnitude, f->mantissa_bits - lowest);
    exponent = ilogb(magnitude);
    return (sign | (uint32_t)(exponent + bias(f) - 1) << f->mantissa_bits) +
           (uint32_t)ldexp(magnitude, f->mantissa_bits - exponent);
}

static double decode(const struct format *f, uint32_t code)
{
    uint32_t mask = (1u << f->mantissa_bits) - 1, mantissa = code & mask;
    uint32_t top = (1u << f->exponent_bits) - 1, exponent = code >> f->mantissa_bits & top;
    double sign = code >> (f->exponent_bits + f->mantissa_bits) & 1 ? -1 : 1;

    if (exponent == top && (f->finite ? mantissa == mask : mantissa != 0))
        return copysign(NAN, sign);
    if (exponent == top && !f->finite)
        return sign * INFINITY;
    if (!exponent)
        return sign * ldexp(mantissa, 1 - bias(f) - f->mantissa_bits);
    return sign * ldexp(mantissa + mask + 1, (int)exponent - bias(f) - f->mantissa_bits);
}

double ct_tensor_load(const struct ct_tensor *t, int64_t index)
{
    const void *p = (const char *)t->data + element(t, index) * (int64_t)dtypes[t->dtype].size;

    switch (t->dtype) {
    case CT_F32:
        return *(const float *)p;
    case CT_BF16:
        return ct_bf16_to_f32(*(const uint16_t *)p);
    case CT_F64:
        return *(const double *)p;
    case CT_F16:
        return decode(&f16, *(const uint16_t *)p);
    case CT_E4M3:
        return decode(&e4m3, *(const uint8_t *)p);
    case CT_E5M2:
        return decode(&e5m2, *(const uint8_t *)p);
    case CT_I32:
        return *(const int32_t *)p;
    case CT_I64:
        return (double)*(const int64_t *)p;
    case CT_U8:
        return *(const uint8_t *)p;
    case CT_DTYPE_COUNT:
        break;
    }
    return NAN;
}

static uint16_t encode_bf16(double value)
{
    if ((double)(float)value == value)
        return ct_f32_to_bf16((float)value);
    return (uint16_t)encode(&bf16, value);
}

void ct_tensor_store(const struct ct_tensor *t, int64_t index, double value)
{
    void *p = (char *)t->data + element(t, index) * (int64_t)dtypes[t->dtype].size;

    switch (t->dtype) {
    case CT_F32:
        *(float *)p = (float)value;
        break;
    case CT_BF16:
        *(uint16_t *)p = encode_bf16(value);
        break;
    case CT_F64:
        *(double *)p = value;
        break;
    case CT_F16:
        *(uint16_t *)p = (uint16_t)encode(&f16, value);
        break;
    case CT_E4M3:
        *(uint8_t *)p = (uint8_t)encode(&e4m3, value);
        break;
    case CT_E5M2:
        *(uint8_t *)p = (uint8_t)encode(&e5m2, value);
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
    case CT_DTYPE_COUNT:
        break;
    }
}
