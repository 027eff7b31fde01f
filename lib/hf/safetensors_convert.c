/*
 * Copies a shard of a mapped tensor in contiguous runs, and converts its dtype.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/safetensors.h>

#define SHARD 1024

/* count elements, at most SHARD; from is aligned. */
static void convert_shard(const void *from, enum ct_dtype in, void *to, enum ct_dtype out,
                          int64_t count)
{
    const uint16_t *half = from;
    const float *single = from;
    float *f32 = to;
    uint16_t *bf16 = to;

    if (in == CT_BF16 && out == CT_F32) {
        for (int64_t i = 0; i < count; i++)
            f32[i] = ct_bf16_to_f32(half[i]);
    } else if (in == CT_F16 && out == CT_F32) {
        for (int64_t i = 0; i < count; i++)
            f32[i] = ct_f16_to_f32(half[i]);
    } else if (in == CT_F32 && out == CT_BF16) {
        for (int64_t i = 0; i < count; i++)
            bf16[i] = ct_f32_to_bf16(single[i]);
    } else {
        struct ct_tensor x = ct_tensor_dense((void *)(uintptr_t)from, in, 1, &count);
        struct ct_tensor y = ct_tensor_dense(to, out, 1, &count);

        for (int64_t i = 0; i < count; i++)
            ct_tensor_store(&y, i, ct_tensor_load(&x, i));
    }
}

/* count elements; from may be unaligned. */
static void convert(const void *from, enum ct_dtype in, void *to, enum ct_dtype out, int64_t count)
{
    _Alignas(64) unsigned char aligned[SHARD * 8];
    size_t in_size = ct_dtype_size(in), out_size = ct_dtype_size(out);

    if (in == out) {
        memcpy(to, from, (size_t)count * in_size);
        return;
    }
    for (int64_t i = 0; i < count; i += SHARD) {
        int64_t n = count - i < SHARD ? count - i : SHARD;

        memcpy(aligned, (const unsigned char *)from + (size_t)i * in_size, (size_t)n * in_size);
        convert_shard(aligned, in, (unsigned char *)to + (size_t)i * out_size, out, n);
    }
}

#define E8M0_NAN 255 /* the one scale of MX formats that is no number */

/* Elements of MXFP4, at most SHARD. */
static void unpack(const struct ct_weight *w, int64_t at, int64_t count, float *to)
{
    static const float numbers[16] = {0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                      -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
    const unsigned char *bytes = w->data;

    for (int64_t i = at; i < at + count;) {
        int64_t end = i / 32 * 32 + 32;
        float scale = w->scales[i / 32] == E8M0_NAN ? NAN : ldexpf(1, w->scales[i / 32] - 127);

        for (end = end < at + count ? end : at + count; i < end; i++)
            *to++ = numbers[i % 2 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15] * scale;
    }
}

void ct_weights_read_run(const struct ct_weight *weight, int64_t at, int64_t count,
                         enum ct_dtype dtype, void *to)
{
    _Alignas(64) float single[SHARD];

    if (!weight->scales) {
        convert((const unsigned char *)weight->data + (size_t)at * ct_dtype_size(weight->dtype),
                weight->dtype, to, dtype, count);
        return;
    }
    for (int64_t i = 0; i < count; i += SHARD) {
        int64_t n = count - i < SHARD ? count - i : SHARD;

        unpack(weight, at + i, n, single);
        convert(single, CT_F32, (unsigned char *)to + (size_t)i * ct_dtype_size(dtype), dtype, n);
    }
}

/* The least magnitude that is rounded to infinity; of numbers of a wider range alone. */
static float bound_of(enum ct_dtype in, enum ct_dtype out)
{
    if (out == CT_F16 && in != CT_F16)
        return 65520;
    return out == CT_BF16 && in == CT_F32 ? 0x1.ffp127F : INFINITY;
}

int64_t ct_weights_beyond(const struct ct_weight *weight, int64_t at, int64_t count,
                          enum ct_dtype dtype, double *largest)
{
    float bound = bound_of(weight->dtype, dtype);
    _Alignas(64) float wide[SHARD];
    int64_t beyond = 0;

    if (isinf(bound))
        return 0;
    for (int64_t i = 0; i < count; i += SHARD) {
        int64_t n = count - i < SHARD ? count - i : SHARD;

        ct_weights_read_run(weight, at + i, n, CT_F32, wide);
        for (int64_t k = 0; k < n; k++) {
            float magnitude = fabsf(wide[k]);

            if (!(magnitude >= bound) || isinf(magnitude))
                continue;
            beyond++;
            *largest = fmax(*largest, magnitude);
        }
    }
    return beyond;
}

int ct_weights_read(const struct ct_weight *weight, const int64_t *offset, const int64_t *shape,
                    enum ct_dtype dtype, void *to)
{
    int64_t stride[CT_MAX_DIMS] = {0}, position[CT_MAX_DIMS] = {0};
    int64_t run = 1, runs = 1;
    int outer = weight->ndim;

    for (int d = 0; d < weight->ndim; d++)
        if (offset[d] < 0 || shape[d] < 0 || offset[d] > weight->shape[d] - shape[d])
            return ct_fail(CT_EINVAL, "%s: [%lld, +%lld) is outside dimension %d of %lld",
                           weight->name, (long long)offset[d], (long long)shape[d], d,
                           (long long)weight->shape[d]);
    if (ct_shape_count(weight->ndim, shape) == 0)
        return 0;
    for (int d = weight->ndim - 1, whole = 1; d >= 0; d--) {
        stride[d] = d == weight->ndim - 1 ? 1 : stride[d + 1] * weight->shape[d + 1];
        if (whole) {
            run *= shape[d];
            outer = d;
            whole = shape[d] == weight->shape[d];
        }
    }
    for (int d = 0; d < outer; d++)
        runs *= shape[d];
    for (int64_t i = 0; i < runs; i++) {
        int64_t at = 0;

        for (int d = 0; d < weight->ndim; d++)
            at += (offset[d] + position[d]) * stride[d];
        ct_weights_read_run(weight, at, run, dtype,
                            (unsigned char *)to + (size_t)(i * run) * ct_dtype_size(dtype));
        for (int d = outer - 1; d >= 0 && ++position[d] == shape[d]; d--)
            position[d] = 0;
    }
    return 0;
}
