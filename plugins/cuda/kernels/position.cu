/*
 * Queries times a factor of their positions, and ids of chunks. A head of a query has `lanes`
 * threads of one warp.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

template <typename T, int W> DEVICE void temper(const gpu_temper &a)
{
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / a.lanes;
    int64_t h = row % a.heads, t = row / a.heads % a.tokens, b = row / a.heads / a.tokens;
    const T *x = (const T *)a.x + b * a.x_stride[0] + t * a.x_stride[1] + h * a.x_stride[2];
    T *y = (T *)a.y + b * a.y_stride[0] + t * a.y_stride[1] + h * a.y_stride[2];
    int64_t position;
    float factor;

    if (row >= a.rows)
        return;
    position = a.positions ? a.positions[b * a.position_stride[0] + t * a.position_stride[1]]
                           : a.first + t;
    factor = 1.0f + a.scale * log1pf((float)((position + a.added) / a.every));
    for (int i = ((int)threadIdx.x & (a.lanes - 1)) * W; i < a.size; i += a.lanes * W) {
        float v[W];

        load<W>(x + i, v);
#pragma unroll
        for (int k = 0; k < W; k++)
            v[k] *= factor;
        store<W>(y + i, v);
    }
}

#define TEMPER(T, dtype)                                                                           \
    KERNEL(temper_##dtype, gpu_temper, 256)                                                        \
    {                                                                                              \
        temper<T, 1>(a);                                                                           \
    }                                                                                              \
    KERNEL(temper_##dtype##_vector, gpu_temper, 256)                                               \
    {                                                                                              \
        temper<T, lanes<T>::of>(a);                                                                \
    }
FOR_DTYPES(TEMPER)

KERNEL(document_chunks, gpu_document_chunks, 256)
{
    int64_t token = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t b = token / a.tokens, t = token % a.tokens, document = 0, position = a.first + t;

    if (token >= a.count)
        return;
    if (a.documents)
        document = a.documents[b * a.document_stride[0] + t * a.document_stride[1]];
    if (a.positions)
        position = a.positions[b * a.position_stride[0] + t * a.position_stride[1]];
    a.out[b * a.out_stride[0] + t * a.out_stride[1]] =
        (int32_t)(uint32_t)(document * a.most + position / a.of_chunk);
}
