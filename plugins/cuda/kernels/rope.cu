/*
 * Rotary embedding. A thread turns a vector of pairs of one token in every head: the angle is found
 * once. Angles count in turns and are reduced in double precision, as positions are large.
 */
#include "device.cuh"

template <typename T, int W>
DEVICE void turn(const gpu_rope &a, const T *x, T *y, const float (&c)[W], const float (&s)[W])
{
    float low[W], high[W];

    load<W>(x, low);
    load<W>(x + a.pairs, high);
#pragma unroll
    for (int i = 0; i < W; i++) {
        float turned = low[i] * c[i] - high[i] * s[i];

        high[i] = high[i] * c[i] + low[i] * s[i];
        low[i] = turned;
    }
    store<W>(y, low);
    store<W>(y + a.pairs, high);
}

template <typename T, int W> DEVICE void rope(const gpu_rope &a)
{
    int64_t chunks = a.pairs / W, item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t token = item / chunks, batch = token / a.tokens, pair = item % chunks * W;
    float c[W], s[W];
    double position;
    const T *x;
    T *y;

    if (batch >= a.batch)
        return;
    token %= a.tokens;
    position =
        a.positions
            ? (double)a.positions[batch * a.position_stride[0] + token * a.position_stride[1]]
            : (double)(a.first + token);
#pragma unroll
    for (int i = 0; i < W; i++) {
        double turns = position * a.turns[pair + i];

        sincospif((float)(2 * (turns - rint(turns))), &s[i], &c[i]);
        s[i] = a.inverse ? -s[i] : s[i];
    }
    x = (const T *)a.x + batch * a.x_stride[0] + token * a.x_stride[1] + pair;
    y = (T *)a.y + batch * a.y_stride[0] + token * a.y_stride[1] + pair;
    for (int head = 0; head < a.heads; head++)
        turn<T, W>(a, x + head * a.x_stride[2], y + head * a.y_stride[2], c, s);
}

#define ROPE(T, dtype)                                                                             \
    KERNEL(rope_##dtype, gpu_rope, 256)                                                            \
    {                                                                                              \
        rope<T, 1>(a);                                                                             \
    }                                                                                              \
    KERNEL(rope_##dtype##_vector, gpu_rope, 256)                                                   \
    {                                                                                              \
        rope<T, lanes<T>::of>(a);                                                                  \
    }
FOR_DTYPES(ROPE)
