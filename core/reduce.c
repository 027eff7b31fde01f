/*
 * Ordered reductions of n vectors.
 *
 * Blocks that fit into the first-level cache are summed vector by vector into an accumulator: first
 * (in0 + in1), next (+ in2 ..), last (+ in[n-1], rounded into out). Two vectors need one pass.
 * Small floating-point formats accumulate in float32; all others in themselves. The loops are
 * plain, and compiled for several levels of the instruction set.
 */
#include <assert.h>
#include <string.h>

#include <ctitan/comm.h>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
#define INLINE static inline __attribute__((always_inline))

#define BLOCK 1024

typedef void combine_function(void *out, const void *a, const void *b, size_t count);

struct combine {
    combine_function *pair, *first, *next, *last;
};

INLINE uint32_t bits_of(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    return v.u;
}

INLINE float float_of(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } v = {u};
    return v.f;
}

/* A format of 1 + e + m bits whose top exponent means infinity and NaN, widened. */
INLINE float widen(uint32_t code, int e, int m)
{
    uint32_t magnitude = (code & ((1u << (e + m)) - 1)) << (23 - m);
    uint32_t sign = (code >> (e + m) & 1) << 31, top = ((1u << e) - 1) << 23;
    uint32_t rebias = (uint32_t)(127 - ((1 << (e - 1)) - 1)) << 23;
    float subnormal = float_of(magnitude + rebias + (1u << 23)) - float_of(rebias + (1u << 23));
    uint32_t normal = magnitude + rebias;

    normal = (magnitude & top) == top ? magnitude | 0x7f800000u : normal;
    normal = (magnitude & top) == 0 ? bits_of(subnormal) : normal;
    return float_of(normal | sign);
}

/* Round to nearest even; what is above the largest code becomes `over`. */
INLINE uint32_t narrow(float f, int e, int m, uint32_t largest, uint32_t over, uint32_t nan)
{
    uint32_t u = bits_of(f), magnitude = u & 0x7fffffffu, sign = u >> 31 << (e + m);
    uint32_t bias = (1u << (e - 1)) - 1;
    uint32_t magic = (127 - bias + (uint32_t)(23 - m) + 1) << 23;
    uint32_t subnormal = bits_of(float_of(magnitude) + float_of(magic)) - magic;
    uint32_t rounded = magnitude + (1u << (22 - m)) - 1 + (magnitude >> (23 - m) & 1);
    uint32_t code = (rounded >> (23 - m)) - ((127 - bias) << m);

    code = magnitude < (128 - bias) << 23 ? subnormal : code;
    code = magnitude >= 0x7f800000u || (code > largest && code < 0x80000000u) ? over : code;
    code = magnitude > 0x7f800000u ? nan : code;
    return code | sign;
}

INLINE float load_bf16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

INLINE uint16_t store_bf16(float f)
{
    uint32_t u = bits_of(f), rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40 : rounded);
}

INLINE float load_f16(uint16_t h)
{
    return widen(h, 5, 10);
}

INLINE uint16_t store_f16(float f)
{
    return (uint16_t)narrow(f, 5, 10, 0x7bff, 0x7c00, 0x7e00);
}

INLINE float load_e5m2(uint8_t h)
{
    return widen(h, 5, 2);
}

INLINE uint8_t store_e5m2(float f)
{
    return (uint8_t)narrow(f, 5, 2, 0x7b, 0x7b, 0x7e);
}

/* The top exponent holds numbers but for all ones: widened as one more exponent bit would be. */
INLINE float load_e4m3(uint8_t h)
{
    uint32_t magnitude = h & 0x7fu, sign = (uint32_t)(h & 0x80u) << 24;
    float subnormal = (float)(int32_t)magnitude * 0x1p-9f;
    uint32_t u = (magnitude << 20) + (120u << 23);

    u = magnitude < 8 ? bits_of(subnormal) : u;
    u = magnitude == 0x7f ? 0x7fc00000u : u;
    return float_of(u | sign);
}

INLINE uint8_t store_e4m3(float f)
{
    return (uint8_t)narrow(f, 4, 3, 0x7e, 0x7e, 0x7f);
}

#define SAME(x) (x)
#define ADD(x, y) ((x) + (y))
#define MAX(x, y) ((y) > (x) || (y) != (y) ? (y) : (x))

#define COMBINE(name, O, store, A, load_a, B, load_b, W, op)                                       \
    CLONES static void name(void *out, const void *a, const void *b, size_t count)                 \
    {                                                                                              \
        O *o = out;                                                                                \
        const A *p = a;                                                                            \
        const B *q = b;                                                                            \
                                                                                                   \
        INDEPENDENT                                                                                \
        for (size_t i = 0; i < count; i++) {                                                       \
            W x = load_a(p[i]), y = load_b(q[i]);                                                  \
                                                                                                   \
            o[i] = (O)store(op(x, y));                                                             \
        }                                                                                          \
    }

/* Sums are made in U: for integers an unsigned type, which wraps. */
#define WHOLE(id, T, U)                                                                            \
    COMBINE(id##_add, U, SAME, U, SAME, U, SAME, U, ADD)                                           \
    COMBINE(id##_max, T, SAME, T, SAME, T, SAME, T, MAX)

#define SMALL_OP(id, T, op, OP)                                                                    \
    COMBINE(id##_##op##_pair, T, store_##id, T, load_##id, T, load_##id, float, OP)                \
    COMBINE(id##_##op##_first, float, SAME, T, load_##id, T, load_##id, float, OP)                 \
    COMBINE(id##_##op##_next, float, SAME, float, SAME, T, load_##id, float, OP)                   \
    COMBINE(id##_##op##_last, T, store_##id, float, SAME, T, load_##id, float, OP)

#define SMALL(id, T)                                                                               \
    SMALL_OP(id, T, add, ADD)                                                                      \
    SMALL_OP(id, T, max, MAX)

WHOLE(f32, float, float)
WHOLE(f64, double, double)
WHOLE(i32, int32_t, uint32_t)
WHOLE(i64, int64_t, uint64_t)
WHOLE(u8, uint8_t, uint8_t)
SMALL(bf16, uint16_t)
SMALL(f16, uint16_t)
SMALL(e4m3, uint8_t)
SMALL(e5m2, uint8_t)

#define ONE(f)                                                                                     \
    {                                                                                              \
        f, f, f, f                                                                                 \
    }
#define FOUR(f)                                                                                    \
    {                                                                                              \
        f##_pair, f##_first, f##_next, f##_last                                                    \
    }

static const struct combine table[CT_DTYPE_COUNT][2] = {
    [CT_F32] = {ONE(f32_add), ONE(f32_max)},      [CT_BF16] = {FOUR(bf16_add), FOUR(bf16_max)},
    [CT_F64] = {ONE(f64_add), ONE(f64_max)},      [CT_F16] = {FOUR(f16_add), FOUR(f16_max)},
    [CT_E4M3] = {FOUR(e4m3_add), FOUR(e4m3_max)}, [CT_E5M2] = {FOUR(e5m2_add), FOUR(e5m2_max)},
    [CT_I32] = {ONE(i32_add), ONE(i32_max)},      [CT_I64] = {ONE(i64_add), ONE(i64_max)},
    [CT_U8] = {ONE(u8_add), ONE(u8_max)},
};

static void reduce_block(char *out, const void *const *in, int inputs, size_t offset, size_t count,
                         const struct combine *c)
{
    _Alignas(64) char sum[BLOCK * sizeof(double)];

#define INPUT(i) ((const char *)in[i] + offset)
    if (inputs == 2) {
        c->pair(out, INPUT(0), INPUT(1), count);
        return;
    }
    c->first(sum, INPUT(0), INPUT(1), count);
    for (int i = 2; i < inputs - 1; i++)
        c->next(sum, sum, INPUT(i), count);
    c->last(out, sum, INPUT(inputs - 1), count);
#undef INPUT
}

void ct_reduce(void *out, const void *const *in, int inputs, size_t count, enum ct_dtype dtype,
               enum ct_reduction reduction)
{
    const struct combine *c = &table[dtype][reduction == CT_REDUCE_MAX];
    size_t size = ct_dtype_size(dtype);

    assert(inputs > 0);
    if (inputs == 1) {
        if (count && out != in[0])
            memcpy(out, in[0], count * size);
        return;
    }
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t n = count - i < BLOCK ? count - i : BLOCK;

        reduce_block((char *)out + i * size, in, inputs, i * size, n, c);
    }
}
