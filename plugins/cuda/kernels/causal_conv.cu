/*
 * The causal convolution of channels, its gradient, and what it needs of the tokens before a
 * segment. A thread has a channel: of a token, or, for the gradients of weights, of all tokens in
 * turn.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "sequences.cuh"

/* How many tokens one sees, itself among them; those of the state count. */
DEVICE int taps_of(const gpu_conv &a, int64_t b, int64_t token, bool state)
{
    int count = 1;

    while (count < a.size && count <= token &&
           !begins_at(a.documents, a.inner, b, token - count + 1))
        count++;
    return count > token && state ? a.size : count;
}

/* Tokens before the first one are in the state. */
DEVICE float input_at(const gpu_conv &a, int64_t b, int64_t token, int64_t channel)
{
    const gpu_sequence &r = token < 0 ? a.state : a.x;
    int64_t at = token < 0 ? row_offset(r, a.inner, b, 0, a.size - 1 + token)
                           : row_offset(r, a.inner, b, token, 0);

    return number_at(r.data, r.kind, at + channel);
}

DEVICE float weight_at(const gpu_conv &a, int64_t channel, int back)
{
    return number_at(a.w, a.kind, channel * a.w_stride + a.size - 1 - back);
}

/* The sum of dy of the tokens that see one, by its weights. */
DEVICE float gradient_at(const gpu_conv &a, int64_t b, int64_t token, int64_t channel)
{
    float sum = 0;

    for (int j = token < 0 ? (int)-token : 0; j < a.size && token + j < a.tokens; j++) {
        if (taps_of(a, b, token + j, true) <= j)
            break;
        sum +=
            weight_at(a, channel, j) *
            number_at(a.dy.data, a.dy.kind, row_offset(a.dy, a.inner, b, token + j, 0) + channel);
    }
    return sum;
}

KERNEL(causal_conv, gpu_conv, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, channel = i % a.channels;
    int64_t token = i / a.channels % a.tokens, b = i / a.channels / a.tokens;
    float sum = 0;
    int count;

    if (b >= a.sequences)
        return;
    count = taps_of(a, b, token, a.state.data != NULL);
    if (a.bias)
        sum = number_at(a.bias, a.kind, channel);
    for (int j = 0; j < count; j++)
        sum += weight_at(a, channel, j) * input_at(a, b, token - j, channel);
    put_number(a.y.data, a.y.kind, row_offset(a.y, a.inner, b, token, 0) + channel, sum, false);
}

KERNEL(causal_conv_grad, gpu_conv, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, channel = i % a.channels;
    int64_t token = i / a.channels % a.tokens, b = i / a.channels / a.tokens;
    float sum;
    bool last;

    if (b >= a.sequences)
        return;
    sum = gradient_at(a, b, token, channel);
    last = a.after.data && token >= a.tokens - a.size + 1;
    for (int64_t t = token + 1; last && t < a.tokens; t++)
        last = !begins_at(a.documents, a.inner, b, t);
    if (last)
        sum +=
            ((const float *)
                 a.after.data)[row_offset(a.after, a.inner, b, 0, token - a.tokens + a.size - 1) +
                               channel];
    put_number(a.dx.data, a.dx.kind, row_offset(a.dx, a.inner, b, token, 0) + channel, sum,
               a.accumulate & 1);
}

/* A block has a channel and a tap, or behind the taps the bias. */
KERNEL(causal_conv_weights, gpu_conv, 256)
{
    int64_t channel = blockIdx.x, tap = blockIdx.y;
    float sum = 0;

    for (int64_t i = threadIdx.x; i < a.sequences * a.tokens; i += blockDim.x) {
        int64_t b = i / a.tokens, token = i % a.tokens;
        float dy =
            number_at(a.dy.data, a.dy.kind, row_offset(a.dy, a.inner, b, token, 0) + channel);

        if (tap == a.size)
            sum += dy;
        else if (tap < taps_of(a, b, token, a.state.data != NULL))
            sum += dy * input_at(a, b, token - tap, channel);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0 && tap < a.size)
        put_number(a.dw, a.dw_kind, channel * a.dw_stride + a.size - 1 - tap, sum,
                   a.accumulate >> 1 & 1);
    else if (threadIdx.x == 0)
        put_number(a.dbias, a.dbias_kind, channel, sum, a.accumulate >> 2 & 1);
}

/* y: the last tokens of each sequence, as far as they are of the last one's document. */
KERNEL(causal_conv_carry, gpu_conv, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, channel = i % a.channels;
    int64_t rows = a.size - 1, row = i / a.channels % rows, b = i / a.channels / rows;
    int64_t token = a.tokens - rows + row;
    bool last = token >= 0;

    if (b >= a.sequences)
        return;
    for (int64_t t = token + 1; last && t < a.tokens; t++)
        last = !begins_at(a.documents, a.inner, b, t);
    put_number(a.y.data, a.y.kind, row_offset(a.y, a.inner, b, 0, row) + channel,
               last ? input_at(a, b, token, channel) : 0, false);
}

KERNEL(causal_conv_dstate, gpu_conv, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, channel = i % a.channels;
    int64_t rows = a.size - 1, row = i / a.channels % rows, b = i / a.channels / rows;

    if (b < a.sequences)
        ((float *)a.dstate.data)[row_offset(a.dstate, a.inner, b, 0, row) + channel] =
            gradient_at(a, b, row - rows, channel);
}
