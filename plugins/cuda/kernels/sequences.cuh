/* Rows of operands along sequences (struct gpu_sequence), number by number. */
#ifndef GPU_SEQUENCES_CUH
#define GPU_SEQUENCES_CUH

#include <ctitan/lib/cuda/device.cuh>

#include "sequences.h"

DEVICE int64_t row_offset(const gpu_sequence &r, int64_t inner, int64_t b, int64_t t, int64_t h)
{
    return b / inner * r.first + b % inner * r.second + t * r.token + h * r.head;
}

DEVICE float number_at(const void *data, int kind, int64_t i)
{
    return kind == CT_CUDA_BF16 ? to_float(((const bfloat16 *)data)[i]) : ((const float *)data)[i];
}

DEVICE void put_number(void *data, int kind, int64_t i, float x, bool add)
{
    x += add ? number_at(data, kind, i) : 0;
    if (kind == CT_CUDA_BF16)
        ((bfloat16 *)data)[i] = from_float<bfloat16>(x);
    else
        ((float *)data)[i] = x;
}

DEVICE bool begins_at(const gpu_sequence &documents, int64_t inner, int64_t b, int64_t t)
{
    const int32_t *ids = (const int32_t *)documents.data;

    return t > 0 && ids &&
           ids[row_offset(documents, inner, b, t, 0)] !=
               ids[row_offset(documents, inner, b, t - 1, 0)];
}

#endif
