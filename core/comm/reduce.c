/*
 * Ordered reductions of n vectors.
 *
 * Blocks that fit into the first-level cache are summed vector by vector into an accumulator: first
 * (in0 + in1), next (+ in2 ..), last (+ in[n-1], rounded into out). Two vectors need one pass.
 * Small floating-point formats accumulate in float32, all others in their own dtype. The loops are
 * plain C, compiled for several levels of the instruction set.
 */
#include <assert.h>
#include <string.h>

#include <ctitan/comm.h>

/* The loader chooses among clones before a sanitizer is ready. */
#ifdef __has_feature
#define SANITIZED                                                                                  \
    (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                        \
     __has_feature(coverage_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#if defined(__x86_64__) && !SANITIZED
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define BLOCK 1024

typedef void combine_function(void *out, const void *a, const void *b, size_t count);

struct combine {
    combine_function *pair, *first, *next, *last;
};

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

/* Sums are computed in U: for integers an unsigned type, which wraps. */
#define WHOLE(id, T, U)                                                                            \
    COMBINE(id##_add, U, SAME, U, SAME, U, SAME, U, ADD)                                           \
    COMBINE(id##_max, T, SAME, T, SAME, T, SAME, T, MAX)

#define SMALL_OP(id, T, op, OP)                                                                    \
    COMBINE(id##_##op##_pair, T, ct_f32_to_##id, T, ct_##id##_to_f32, T, ct_##id##_to_f32, float,  \
            OP)                                                                                    \
    COMBINE(id##_##op##_first, float, SAME, T, ct_##id##_to_f32, T, ct_##id##_to_f32, float, OP)   \
    COMBINE(id##_##op##_next, float, SAME, float, SAME, T, ct_##id##_to_f32, float, OP)            \
    COMBINE(id##_##op##_last, T, ct_f32_to_##id, float, SAME, T, ct_##id##_to_f32, float, OP)

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
