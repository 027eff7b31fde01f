/*
 * Rotary embedding. A thread turns a vector of pairs of one token in several heads: the angle is
 * found once. Angles count in turns and are reduced in double precision, as positions are large.
 * Pairs are of the two halves, or of neighbours. Further threads copy what is not rotated.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

DEVICE void turn(float &x, float &y, float c, float s)
{
    float turned = x * c - y * s;

    y = y * c + x * s;
    x = turned;
}

/* Element i of two vectors, one behind the other. */
template <int W> DEVICE float &element(float (&low)[W], float (&high)[W], int i)
{
    return i < W ? low[i] : high[i - W];
}

/* The W pairs of a head that a thread turns. */
template <typename T, int W> struct pairs {
    vector<T, W> low, high;
};

template <typename T, int W, bool NEIGHBOURS>
DEVICE void turn_pairs(const pairs<T, W> &x, T *low_y, T *high_y, const float (&c)[W],
                       const float (&s)[W])
{
    float low[W], high[W];

    widen(x.low, low);
    widen(x.high, high);
#pragma unroll
    for (int i = 0; i < W; i++)
        if (NEIGHBOURS)
            turn(element(low, high, 2 * i), element(low, high, 2 * i + 1), c[i], s[i]);
        else
            turn(low[i], high[i], c[i], s[i]);
    store<W>(low_y, low);
    store<W>(high_y, high);
}

#define BATCH 2 /* heads that a thread asks for before it turns the first */

/* Rotates heads from `head` on, gridDim.y apart. x may be y. */
template <typename T, int W, bool NEIGHBOURS>
DEVICE void turn_heads(const gpu_rope &a, const T *x, T *y, int head, const float (&c)[W],
                       const float (&s)[W])
{
    int other = NEIGHBOURS ? W : a.pairs;
    pairs<T, W> of_head[BATCH] = {};

#pragma unroll
    for (int k = 0; k < BATCH; k++) {
        const T *from = x + (head + k * (int)gridDim.y) * a.x_stride[2];

        if (head + k * (int)gridDim.y < a.heads)
            of_head[k] = {*(const vector<T, W> *)from, *(const vector<T, W> *)(from + other)};
    }
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
        T *to = y + (head + k * (int)gridDim.y) * a.y_stride[2];

        if (head + k * (int)gridDim.y < a.heads)
            turn_pairs<T, W, NEIGHBOURS>(of_head[k], to, to + other, c, s);
    }
}

template <typename T, int W, bool NEIGHBOURS>
DEVICE void rotate(const gpu_rope &a, const T *x, T *y, double position, int64_t pair)
{
    int64_t at = a.unrotated + (NEIGHBOURS ? 2 * pair : pair);
    float c[W], s[W];

#pragma unroll
    for (int i = 0; i < W; i++) {
        double turns = position * a.turns[pair + i];

        sincospif((float)(2 * (turns - rint(turns))), &s[i], &c[i]);
        s[i] *= a.inverse ? -a.magnitude : a.magnitude;
        c[i] *= a.magnitude;
    }
    x += at;
    y += at;
    for (int head = (int)blockIdx.y; head < a.heads; head += BATCH * (int)gridDim.y)
        turn_heads<T, W, NEIGHBOURS>(a, x, y, head, c, s);
}

/* at: among the features that are not rotated */
template <typename T, int W> DEVICE void copy(const gpu_rope &a, const T *x, T *y, int64_t at)
{
    at += at < a.unrotated ? 0 : 2 * a.pairs;
    for (int head = (int)blockIdx.y; head < a.heads; head += (int)gridDim.y)
        *(vector<T, W> *)(y + head * a.y_stride[2] + at) =
            *(const vector<T, W> *)(x + head * a.x_stride[2] + at);
}

template <typename T, int W, bool NEIGHBOURS> DEVICE void rope(const gpu_rope &a)
{
    int64_t rotated = a.pairs / W, chunks = rotated + a.copied / W;
    int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, chunk = item % chunks;
    int64_t token = item / chunks, batch = token / a.tokens;
    const T *x;
    T *y;

    if (batch >= a.batch)
        return;
    token %= a.tokens;
    x = (const T *)a.x + batch * a.x_stride[0] + token * a.x_stride[1];
    y = (T *)a.y + batch * a.y_stride[0] + token * a.y_stride[1];
    if (chunk >= rotated)
        copy<T, W>(a, x, y, (chunk - rotated) * W);
    else
        rotate<T, W, NEIGHBOURS>(
            a, x, y,
            a.positions
                ? (double)a.positions[batch * a.position_stride[0] + token * a.position_stride[1]]
                : (double)(a.first + token),
            chunk * W);
}

#define ROPE_AT(T, W, suffix)                                                                      \
    KERNEL(rope_##suffix, gpu_rope, 256)                                                           \
    {                                                                                              \
        rope<T, W, false>(a);                                                                      \
    }                                                                                              \
    KERNEL(rope_neighbours_##suffix, gpu_rope, 256)                                                \
    {                                                                                              \
        rope<T, W, true>(a);                                                                       \
    }
#define ROPE(T, dtype)                                                                             \
    ROPE_AT(T, 1, dtype)                                                                           \
    ROPE_AT(T, lanes<T>::of, dtype##_vector)
FOR_DTYPES(ROPE)
