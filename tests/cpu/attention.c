/*
 * Attention in float32 by each instruction set, and in bfloat16 on the units that this machine runs
 * and on the emulated tile unit: bits do not depend on the number of threads, queries that see no
 * key get zeros, and units agree, and instruction sets.
 * tests/conformance compares them with float64.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/arena.h>
#include <ctitan/lib/ops.h>

#include "attention.h"
#include "kernels/kernels.h"

enum { TENSORS = 10 };

struct cpu_config cpu_config;
static int threads = 1;

int cpu_threads(void)
{
    return threads;
}

void cpu_parallel(void (*body)(void *context, int thread, int count), void *context)
{
    body(context, 0, 1);
}

/* One attention and its gradient: t queries, s keys. */
struct shape {
    int64_t b, t, s, h, g, d, e, window; /* e: of v */
    bool documents;
    int unseen; /* queries in front of all keys */
};

static const struct shape shapes[] = {
    {2, 75, 75, 4, 2, 32, 32, 0, true, 0},    {1, 200, 200, 1, 1, 64, 64, 0, false, 0},
    {1, 170, 170, 3, 1, 40, 40, 50, true, 0}, {3, 33, 33, 1, 1, 20, 20, 0, false, 0},
    {2, 70, 70, 2, 1, 16, 16, 0, false, 0},   {2, 75, 75, 4, 2, 72, 40, 0, true, 0},
    {1, 90, 60, 2, 2, 64, 64, 0, false, 37}};

struct call {
    struct ct_arena arena;
    struct ct_tensor t[TENSORS]; /* do, q, k, v, o, lse, documents and positions of q, of k */
    struct ct_tensor dq, dk, dv;
    struct ct_attention how;
};

static struct ct_tensor tensor(struct call *c, enum ct_dtype dtype, int ndim, const int64_t *shape)
{
    struct ct_tensor t = ct_tensor_dense(NULL, dtype, ndim, shape);
    size_t bytes = (size_t)ct_tensor_count(&t) * ct_dtype_size(dtype);

    t.data = ct_arena_alloc(&c->arena, bytes);
    memset(t.data, 0x7f, bytes);
    return t;
}

static void fill(struct ct_tensor *t)
{
    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        ct_tensor_store(t, i, (rand() % 512 - 256) / 200.0);
}

static void fill_places(struct call *c, const struct shape *s)
{
    for (int64_t i = 0; i < s->b * s->t; i++) {
        ct_tensor_store(&c->t[6], i, (double)(i % s->t / 30));
        ct_tensor_store(&c->t[8], i, (double)(i % s->t));
    }
    for (int64_t i = 0; i < s->b * s->s; i++) {
        ct_tensor_store(&c->t[7], i, (double)(i % s->s / 30));
        ct_tensor_store(&c->t[9], i, (double)(i % s->s + s->unseen));
    }
}

static void begin(struct call *c, const struct shape *s, enum ct_dtype dtype)
{
    int64_t q[] = {s->b, s->t, s->h, s->d}, k[] = {s->b, s->s, s->g, s->d};
    int64_t o[] = {s->b, s->t, s->h, s->e}, v[] = {s->b, s->s, s->g, s->e};
    const int64_t *shape[] = {o, q, k, v, o};
    int64_t lse[] = {s->b, s->h, s->t}, at[] = {s->b, s->t}, k_at[] = {s->b, s->s};

    *c = (struct call){.how = {.causal = true, .window = s->window}};
    for (int i = 0; i < 5; i++)
        c->t[i] = tensor(c, dtype, 4, shape[i]);
    c->t[5] = tensor(c, CT_F32, 3, lse);
    for (int i = 6; i < 10; i++)
        c->t[i] = tensor(c, CT_I32, 2, i % 2 ? k_at : at);
    c->dq = tensor(c, dtype, 4, q);
    c->dk = tensor(c, dtype, 4, k);
    c->dv = tensor(c, dtype, 4, v);
    srand(5);
    for (int i = 0; i < 4; i++)
        fill(&c->t[i]);
    fill_places(c, s);
    if (!s->documents)
        c->t[6].data = c->t[7].data = NULL;
}

static void launch(struct call *c, const struct ct_kernel *kernel, const struct ct_op_type *type,
                   const struct ct_tensor *in, int ins, const struct ct_tensor *out, int outs)
{
    struct ct_value *none[TENSORS] = {0};
    struct ct_op op = {.type = type, .ins = ins, .outs = outs, .in = none, .attrs = &c->how};
    struct ct_prepare p = {
        .op = &op, .in = in, .out = out, .ins = ins, .outs = outs, .arena = &c->arena};
    struct ct_launch l = {.op = &op, .in = in, .out = out, .ins = ins, .outs = outs};
    char *workspace;

    assert_int_equal(kernel->prepare(&p), 0);
    workspace = ct_arena_alloc(&c->arena, p.workspace + 64);
    l.workspace = workspace + (64 - (uintptr_t)workspace % 64) % 64;
    l.state = p.state;
    assert_int_equal(kernel->run(&l), 0);
}

struct way {
    enum ct_dtype dtype;
    enum cpu_attention attention;
    enum ct_cpu_isa isa;
    struct ct_kernel kernels[2];
};

static void run(struct call *c, const struct way *way, const struct shape *s)
{
    struct ct_tensor in[7], grads[3];

    begin(c, s, way->dtype);
    memcpy(in, &c->t[1], 3 * sizeof(*in));
    memcpy(in + 3, &c->t[6], 4 * sizeof(*in));
    launch(c, &way->kernels[0], &ct_op_attention, in, 7, &c->t[4], 2);
    grads[0] = c->dq;
    grads[1] = c->dk;
    grads[2] = c->dv;
    launch(c, &way->kernels[1], &ct_op_attention_grad, c->t, 10, grads, 3);
}

#define KERNELS(name, grad, isa)                                                                   \
    {                                                                                              \
        CT_KERNEL("attention", #isa, 0, NULL, cpu_##name##_prepare_##isa, cpu_##name##_run_##isa), \
            CT_KERNEL("attention_grad", #isa, 0, NULL, cpu_##grad##_prepare_##isa,                 \
                      cpu_##grad##_run_##isa)                                                      \
    }
#define BFLOAT16(isa) KERNELS(attention_bf16, attention_grad_bf16, isa)
#define FLOAT32(isa) KERNELS(attention, attention_grad, isa)

/* The first of a dtype runs everywhere. */
static const struct way ways[] = {
    {CT_BF16, CPU_ATTENTION_EMULATED, CT_CPU_PORTABLE, BFLOAT16(portable)},
#ifdef __x86_64__
    {CT_BF16, CPU_ATTENTION_BFLOAT16, CT_CPU_AVX512, BFLOAT16(avx512bf16)},
#endif
    {CT_F32, CPU_ATTENTION_FLOAT32, CT_CPU_PORTABLE, FLOAT32(portable)},
#ifdef __x86_64__
    {CT_F32, CPU_ATTENTION_FLOAT32, CT_CPU_AVX2, FLOAT32(avx2)},
    {CT_F32, CPU_ATTENTION_FLOAT32, CT_CPU_AVX512, FLOAT32(avx512)},
#endif
};

static bool can(const struct way *way)
{
    cpu_config.attention = way->attention;
    if (way->attention == CPU_ATTENTION_BFLOAT16)
        return cpu_best_unit() && __builtin_cpu_supports("avx512bf16");
    return ct_cpu_isa() >= way->isa;
}

static void same_bits(const struct ct_tensor *a, const struct ct_tensor *b)
{
    assert_memory_equal(a->data, b->data, (size_t)ct_tensor_count(a) * ct_dtype_size(a->dtype));
}

static void threads_do_not_change_a_bit(void **state)
{
    (void)state;
    for (size_t w = 0; w < CT_COUNT(ways); w++)
        for (size_t i = 0; can(&ways[w]) && i < CT_COUNT(shapes); i++) {
            struct call one, other;

            threads = 1;
            run(&one, &ways[w], &shapes[i]);
            for (threads = 2; threads < 6; threads += 1 + threads / 3) {
                run(&other, &ways[w], &shapes[i]);
                same_bits(&one.t[4], &other.t[4]);
                same_bits(&one.t[5], &other.t[5]);
                same_bits(&one.dq, &other.dq);
                same_bits(&one.dk, &other.dk);
                same_bits(&one.dv, &other.dv);
                ct_arena_finish(&other.arena);
            }
            ct_arena_finish(&one.arena);
        }
}

static void queries_that_see_no_key_get_zeros(void **state)
{
    const struct shape *s = &shapes[CT_COUNT(shapes) - 1];
    struct call c;

    (void)state;
    threads = 2;
    for (size_t w = 0; w < CT_COUNT(ways); w++) {
        if (!can(&ways[w]))
            continue;
        run(&c, &ways[w], s);
        for (int64_t i = 0; i < s->t * s->h * s->d; i++) {
            bool unseen = i / s->h / s->d < s->unseen;

            assert_true(!unseen || ct_tensor_load(&c.t[4], i) == 0);
            assert_true(!unseen || ct_tensor_load(&c.dq, i) == 0);
            assert_true(isfinite(ct_tensor_load(&c.dq, i)));
        }
        for (int64_t i = 0; i < s->h * s->t; i++)
            assert_true(isfinite(ct_tensor_load(&c.t[5], i)) == (i % s->t >= s->unseen));
        ct_arena_finish(&c.arena);
    }
}

static void differ_by_rounding(const struct ct_tensor *a, const struct ct_tensor *b)
{
    double difference = 0, size = 0;

    for (int64_t i = 0; i < ct_tensor_count(a); i++) {
        double x = ct_tensor_load(a, i), y = ct_tensor_load(b, i);

        difference += (x - y) * (x - y);
        size += x * x;
    }
    assert_true(sqrt(difference / size) < (a->dtype == CT_F32 ? 0x1p-20 : 0x1p-8));
}

static void ways_agree(void **state)
{
    (void)state;
    threads = 2;
    for (size_t i = 0; i < CT_COUNT(shapes); i++) {
        struct call first = {0}, other;

        for (size_t w = 0; w < CT_COUNT(ways); w++) {
            if (!can(&ways[w]))
                continue;
            run(&other, &ways[w], &shapes[i]);
            if (w == 0 || ways[w].dtype != ways[w - 1].dtype) {
                ct_arena_finish(&first.arena);
                first = other;
                continue;
            }
            differ_by_rounding(&first.t[4], &other.t[4]);
            differ_by_rounding(&first.dq, &other.dq);
            differ_by_rounding(&first.dk, &other.dk);
            differ_by_rounding(&first.dv, &other.dv);
            ct_arena_finish(&other.arena);
        }
        ct_arena_finish(&first.arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_do_not_change_a_bit),
                                       cmocka_unit_test(queries_that_see_no_key_get_zeros),
                                       cmocka_unit_test(ways_agree)};

    omp_set_dynamic(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
