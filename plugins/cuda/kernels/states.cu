/*
 * States of the segments of sequences, and the ends of their documents. A thread has a column of a
 * head's state, and goes from segment to segment.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "sequences.cuh"

/* Where element (i, j) of a head of the segment at a position lies. */
DEVICE int64_t state_at(const gpu_fold &a, const int64_t *stride, int64_t head, int64_t position,
                        int64_t i)
{
    return head / a.heads * stride[0] + a.at[position] * stride[1] + head % a.heads * stride[2] +
           i * stride[3];
}

DEVICE bool goes_on(const gpu_fold &a, int64_t b, int64_t position)
{
    const int32_t *ends = a.ends ? a.ends + b * a.ends_stride[0] : NULL;

    return !ends || ends[a.at[position - 1] * a.ends_stride[1] + 1] ==
                        ends[a.at[position] * a.ends_stride[1]];
}

DEVICE float kept(const gpu_fold &a, int64_t head, int64_t position, int64_t i, int64_t j)
{
    const float *keeps = (const float *)a.keeps;

    if (!keeps || (a.factor == 1 && i != j))
        return 0;
    return a.factor == 1 ? keeps[state_at(a, a.keeps_stride, head, position, 0)]
                         : keeps[state_at(a, a.keeps_stride, head, position, i) + j];
}

KERNEL(fold_states, gpu_fold, 128)
{
    int64_t head = blockIdx.x, column = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;

    for (int64_t step = 0; step < a.segments && column < a.v; step++) {
        int64_t position = a.back ? a.segments - 1 - step : step;
        int64_t from = position + (a.back ? 1 : -1);
        bool passed = step > 0 && goes_on(a, head / a.heads, a.back ? from : position);

        for (int64_t i = 0; i < a.k; i++) {
            float sum = 0;

            if (passed)
                sum = number_at(a.gain, a.kind, state_at(a, a.gain_stride, head, from, i) + column);
            for (int64_t j = 0; passed && a.keeps && j < a.k; j++) {
                float w = a.back ? kept(a, head, from, j, i) : kept(a, head, from, i, j);

                sum += w * number_at(a.state, a.kind,
                                     state_at(a, a.state_stride, head, from, j) + column);
            }
            put_number(a.state, a.kind, state_at(a, a.state_stride, head, position, i) + column,
                       sum, false);
        }
    }
}

KERNEL(document_ends, gpu_ends, 256)
{
    int64_t b = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int32_t *from = (const int32_t *)a.documents.data;
    int32_t *to = (int32_t *)a.ends.data;

    if (b >= a.sequences)
        return;
    to += row_offset(a.ends, a.inner, b, 0, 0);
    to[0] = from[row_offset(a.documents, a.inner, b, 0, 0)];
    to[1] = from[row_offset(a.documents, a.inner, b, a.tokens - 1, 0)];
}
