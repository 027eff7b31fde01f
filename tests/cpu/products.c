/*
 * The kernels of plugins/cpu/products against float64, on every unit that this machine runs and on
 * the emulated tile unit. $CTITAN_CPU_ISA chooses the instruction set of the packing.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/tensor.h>

#include "loops.h"
#include "products/product.h"
#include "team.h"

#define CANARY 0x5a

struct cpu_config cpu_config;

#define UNITS 4

static const struct cpu_unit *units(int i)
{
    const struct cpu_unit *all[UNITS] = {&cpu_unit_emulated, cpu_panels()->dots,
                                         cpu_panels()->multiply_adds, NULL};

#ifdef CPU_WITH_TILES
    all[3] = ct_cpu_has_tiles() ? &cpu_unit_tiles : NULL;
#endif
    return all[i];
}

/* Numbers in [-1, 1], one in 16 of them zero, and some very small. */
static float number(void)
{
    int x = rand() % 512;

    if (x < 32)
        return 0;
    if (x < 40)
        return 0x1p-120f;
    return (float)(x - 272) / 240 + (float)(rand() % 1024) * 0x1p-20f;
}

static void store(void *to, int64_t at, enum ct_dtype type, float x)
{
    if (type == CT_F32)
        ((float *)to)[at] = x;
    else
        ((uint16_t *)to)[at] = ct_f32_to_bf16(x);
}

static float load(const void *from, int64_t at, enum ct_dtype type)
{
    return type == CT_F32 ? ((const float *)from)[at]
                          : ct_bf16_to_f32(((const uint16_t *)from)[at]);
}

static void *numbers(int64_t n, enum ct_dtype type)
{
    void *x = malloc((size_t)n * ct_dtype_size(type));

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        store(x, i, type, number());
    return x;
}

static double *widened(const void *x, int64_t n, enum ct_dtype type)
{
    double *wide = malloc((size_t)(n + 1) * sizeof(*wide));

    assert_non_null(wide);
    for (int64_t i = 0; i < n; i++)
        wide[i] = (double)load(x, i, type);
    return wide;
}

struct size {
    int64_t m, n, k, pad; /* elements beyond each row */
};

static const struct size sizes[] = {{1, 1, 1, 0},      {3, 5, 7, 0},      {32, 32, 32, 0},
                                    {33, 31, 65, 3},   {64, 96, 48, 0},   {45, 70, 130, 1},
                                    {12, 33, 1057, 0}, {40, 64, 1024, 0}, {300, 40, 33, 5},
                                    {100, 290, 64, 0}, {23, 32, 2100, 2}};

struct operands {
    const struct size *s;
    void *a, *w;
    char *c, *before;
    size_t c_bytes;
    enum ct_dtype a_type, w_type, type;
    bool add;
};

static struct operands make(const struct size *s, int64_t a_count, int64_t w_count,
                            const struct cpu_gemm_spec *spec)
{
    enum ct_dtype type = spec->c_type;
    int64_t rows = spec->m, columns = spec->n;
    bool add = spec->accumulate;
    struct operands o = {
        .s = s, .a_type = spec->a_type, .w_type = spec->b_type, .type = type, .add = add};

    o.a = numbers(a_count, o.a_type);
    o.w = numbers(w_count, o.w_type);
    o.c_bytes = (size_t)(rows * (columns + s->pad)) * ct_dtype_size(type) + 64;
    o.c = malloc(o.c_bytes);
    o.before = malloc(o.c_bytes);
    assert_true(o.c && o.before);
    memset(o.before, CANARY, o.c_bytes);
    for (int64_t i = 0; add && i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            store(o.before, i * (columns + s->pad) + j, type, number());
    memcpy(o.c, o.before, o.c_bytes);
    return o;
}

static void drop(struct operands *o)
{
    free(o->a);
    free(o->w);
    free(o->c);
    free(o->before);
}

/* c[i][j] is sum + what was there, within float32's rounding of `size`, the sum of |terms|. */
static void check_element(const struct operands *o, int64_t at, double sum, double size)
{
    double old = o->add ? (double)load(o->before, at, o->type) : 0,
           made = (double)load(o->c, at, o->type), limit = 1e-6 * (size + fabs(old)) + 1e-30;

    if (o->type == CT_BF16)
        limit += fabs(sum + old) / 256;
    if (fabs(made - (sum + old)) > limit)
        fail_msg("[%lld] is %.9g, not %.9g", (long long)at, made, sum + old);
}

/* Nothing beyond the rows was written. */
static void check_padding(const struct operands *o, int64_t rows, int64_t columns)
{
    size_t element_bytes = ct_dtype_size(o->type),
           row = (size_t)(columns + o->s->pad) * element_bytes;

    for (int64_t i = 0; i < rows; i++)
        for (size_t b = (size_t)columns * element_bytes; b < row; b++)
            assert_int_equal(o->c[(size_t)i * row + b], CANARY);
    for (size_t b = (size_t)rows * row; b < o->c_bytes; b++)
        assert_int_equal(o->c[b], CANARY);
}

static void run(const struct cpu_unit *unit, const struct cpu_gemm_spec *spec, const void *a,
                const void *b, void *c)
{
    struct cpu_product p;
    size_t bytes;
    char *workspace;

    assert_true(cpu_product_takes(unit, spec));
    cpu_product_plan(unit, spec, threads, &p);
    bytes = cpu_product_workspace(&p);
    workspace = malloc(bytes + 64);
    assert_non_null(workspace);
    memset(workspace, 0xff, bytes + 64); /* NaN: nothing is read before it is written */
    cpu_product_run(&p, a, b, c, workspace);
    for (int i = 0; i < 64; i++)
        assert_int_equal((unsigned char)workspace[bytes + (size_t)i], 0xff);
    free(workspace);
}

/* Two weights of a dtype, one below the other, from the same or the other one: of bfloat16 numbers
   both give the same. */
static void *pack(enum cpu_use use, const void *w, int64_t n, int64_t k, enum ct_dtype type,
                  bool from_other)
{
    int64_t first = n > CPU_PANEL ? CPU_PANEL : n;
    enum ct_dtype from = from_other ? CT_F32 : type;
    size_t size = ct_dtype_size(from), bytes = cpu_product_packed_bytes(use, n, k, type);
    char *copy = malloc((size_t)(n * k) * size + 4), *packed = aligned_alloc(64, bytes);
    struct cpu_packed_from weight[2] = {{from, copy, k, first, k},
                                        {from, copy + (size_t)(first * k) * size, k, n - first, k}};

    assert_true(copy && packed);
    memset(packed, 0xff, bytes);
    for (int64_t i = 0; i < n * k; i++)
        store(copy, i, from, load(w, i, type));
    cpu_pack_stack(&(struct cpu_packed_to){use, cpu_product_lines(use, n, k, type), packed}, 1,
                   weight, 2);
    free(copy);
    return packed;
}

/* y[m, n] from x[m, k] and a packed weight. */
static struct cpu_gemm_spec rows_spec(const struct cpu_unit *unit, const struct size *s,
                                      enum ct_dtype type)
{
    return (struct cpu_gemm_spec){.m = s->m,
                                  .n = s->n,
                                  .k = s->k,
                                  .a_type = unit->dtype,
                                  .b_type = unit->dtype,
                                  .c_type = type,
                                  .a_row = s->k + s->pad,
                                  .a_col = 1,
                                  .c_row = s->n + s->pad};
}

/* dw[m, n] from dy[k, m] and x[k, n] in float32. */
static struct cpu_gemm_spec gradient_spec(const struct cpu_unit *unit, const struct size *s)
{
    struct cpu_gemm_spec spec = rows_spec(unit, s, CT_F32);

    spec.a_row = 1;
    spec.a_col = s->m + s->pad;
    spec.b_row = s->n + s->pad;
    spec.b_col = 1;
    return spec;
}

/* y[m, n] = x[m, k] w[n, k]^T, or with CPU_BACKWARD y[m, n] = x[m, k] w[k, n] */
static void check_rows(const struct cpu_unit *unit, const struct size *s, enum ct_dtype a_type,
                       enum cpu_use use, enum ct_dtype type, bool add)
{
    int64_t rows = use == CPU_FORWARD ? s->n : s->k, columns = use == CPU_FORWARD ? s->k : s->n;
    struct cpu_gemm_spec spec = rows_spec(unit, s, type);
    struct operands o;
    double *a, *w;
    void *packed;

    spec.accumulate = add;
    spec.b_use = use;
    spec.a_type = a_type;
    o = make(s, s->m * (s->k + s->pad), s->n * s->k, &spec);
    a = widened(o.a, s->m * (s->k + s->pad), o.a_type);
    w = widened(o.w, s->n * s->k, o.w_type);
    packed = pack(use, o.w, rows, columns, unit->dtype, add);
    run(unit, &spec, o.a, packed, o.c);
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            double sum = 0, size = 0;

            for (int64_t l = 0; l < s->k; l++) {
                int64_t at = use == CPU_FORWARD ? j * s->k + l : l * s->n + j;
                double term = a[i * (s->k + s->pad) + l] * w[at];

                sum += term;
                size += fabs(term);
            }
            check_element(&o, i * (s->n + s->pad) + j, sum, size);
        }
    check_padding(&o, s->m, s->n);
    free(packed);
    free(a);
    free(w);
    drop(&o);
}

/* dw[m, n] = dy[k, m]^T x[k, n] */
static void check_gradient(const struct cpu_unit *unit, const struct size *s, enum ct_dtype a_type,
                           enum ct_dtype b_type, bool add)
{
    int64_t a_row = s->m + s->pad, b_row = s->n + s->pad;
    struct cpu_gemm_spec spec = gradient_spec(unit, s);
    struct operands o;
    double *a, *w;

    spec.accumulate = add;
    spec.a_type = a_type;
    spec.b_type = b_type;
    o = make(s, s->k * a_row, s->k * b_row, &spec);
    a = widened(o.a, s->k * a_row, o.a_type);
    w = widened(o.w, s->k * b_row, o.w_type);
    run(unit, &spec, o.a, o.w, o.c);
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            double sum = 0, size = 0;

            for (int64_t l = 0; l < s->k; l++) {
                double term = a[l * a_row + i] * w[l * b_row + j];

                sum += term;
                size += fabs(term);
            }
            check_element(&o, i * b_row + j, sum, size);
        }
    check_padding(&o, s->m, s->n);
    free(a);
    free(w);
    drop(&o);
}

static void check_size(const struct cpu_unit *unit, const struct size *s)
{
    for (int flags = 0; flags < 16; flags++) {
        bool widened = flags & 8;
        enum ct_dtype a_type = widened ? CT_BF16 : unit->dtype;

        if (widened && unit->dtype == CT_BF16)
            break;
        threads = 1 + (int)(s->m + flags) % 3;
        check_rows(unit, s, a_type, flags & 1 ? CPU_BACKWARD : CPU_FORWARD,
                   flags & 2 ? CT_F32 : CT_BF16, flags & 4);
        if (flags & 2)
            check_gradient(unit, s, a_type, widened && flags & 4 ? CT_BF16 : unit->dtype,
                           flags & 1);
    }
}

static void products_equal_float64(void **state)
{
    (void)state;
    for (int u = 0; u < UNITS; u++)
        for (size_t i = 0; units(u) && i < CT_COUNT(sizes); i++)
            check_size(units(u), &sizes[i]);
}

/* The same bits for any number of threads. */
static void threads_do_not_change_a_bit(void **state)
{
    static const struct size s = {.m = 170, .n = 200, .k = 2300};
    size_t bytes = (size_t)(s.m * s.n) * 4;
    float *c[2] = {malloc(bytes), malloc(bytes)};

    (void)state;
    assert_true(c[0] && c[1]);
    for (int u = 0; u < UNITS; u++)
        for (int kind = 0; units(u) && kind < 2; kind++) {
            enum ct_dtype type = units(u)->dtype;
            struct cpu_gemm_spec spec =
                kind ? gradient_spec(units(u), &s) : rows_spec(units(u), &s, CT_F32);
            void *a = numbers(s.m * s.k, type), *w = numbers(s.n * s.k, type),
                 *packed = pack(CPU_FORWARD, w, s.n, s.k, type, false);

            threads = 1;
            run(units(u), &spec, a, kind ? w : packed, c[0]);
            for (threads = 2; threads <= 16; threads += 7)
                for (int i = 0; i < 2; i++) {
                    at_once = i;
                    run(units(u), &spec, a, kind ? w : packed, c[1]);
                    assert_memory_equal(c[0], c[1], bytes);
                }
            at_once = false;
            free(packed);
            free(a);
            free(w);
        }
    free(c[0]);
    free(c[1]);
}

/* A row has the same bits, however many rows stand beside it. */
static void check_rows_beside(const struct cpu_unit *unit)
{
    static const int64_t counts[] = {1, 2, 7, 8, 31, 32, 33, 64, 100, 169};
    static const struct size all = {.m = 170, .n = 200, .k = 1100};
    size_t row = (size_t)all.n * 4, bytes = (size_t)all.m * row;
    enum ct_dtype type = unit->dtype;
    struct cpu_gemm_spec spec = rows_spec(unit, &all, CT_F32);
    char *c = malloc(bytes), *some = malloc(bytes), *a = numbers(all.m * all.k, type);
    void *w = numbers(all.n * all.k, type),
         *packed = pack(CPU_FORWARD, w, all.n, all.k, type, false);
    int64_t stride = all.k * (int64_t)ct_dtype_size(type);

    assert_true(c && some);
    run(unit, &spec, a, packed, c);
    for (size_t i = 0; i < CT_COUNT(counts); i++) {
        int64_t first = all.m - counts[i];

        spec.m = counts[i];
        run(unit, &spec, a + first * stride, packed, some);
        assert_memory_equal(c + (size_t)first * row, some, (size_t)spec.m * row);
    }
    free(packed);
    free(a);
    free(w);
    free(c);
    free(some);
}

static void rows_do_not_change_each_other(void **state)
{
    (void)state;
    for (int u = 0; u < UNITS; u++)
        if (units(u))
            check_rows_beside(units(u));
}

/* Columns begin .. end of a product of few rows, against float64; the others stay as they are. */
static void check_few(struct cpu_few_rows gemm, int64_t n, int64_t begin, int64_t end)
{
    char *a = numbers(gemm.rows * gemm.k, gemm.a_type), *b = numbers(n * gemm.k, gemm.b_type);
    float *c = malloc((size_t)(gemm.rows * n) * sizeof(*c));

    assert_non_null(c);
    memset(c, CANARY, (size_t)(gemm.rows * n) * sizeof(*c));
    gemm.a = a;
    gemm.b = b;
    gemm.c = c;
    gemm.c_row = n;
    cpu_loops()->multiply_few(&gemm, begin, end);
    for (int64_t i = 0; i < gemm.rows * n; i++) {
        double sum = 0, size = 0;
        float canary;

        memset(&canary, CANARY, sizeof(canary));
        for (int64_t k = 0; k < gemm.k; k++) {
            double term = (double)load(a, i / n * gemm.k + k, gemm.a_type) *
                          (double)load(b, i % n * gemm.k + k, gemm.b_type);

            sum += term;
            size += fabs(term);
        }
        if (i % n >= begin && i % n < end)
            assert_true(fabs((double)c[i] - sum) <= 1e-5 * size + 1e-30);
        else
            assert_memory_equal(&c[i], &canary, sizeof(canary));
    }
    free(a);
    free(b);
    free(c);
}

static void few_rows_are_multiplied_in_place(void **state)
{
    static const int64_t depths[] = {1, 7, 16, 33, 300};
    static const enum ct_dtype types[][2] = {
        {CT_F32, CT_F32}, {CT_F32, CT_BF16}, {CT_BF16, CT_BF16}};

    (void)state;
    for (size_t t = 0; t < CT_COUNT(types); t++)
        for (size_t d = 0; d < CT_COUNT(depths); d++)
            for (int64_t rows = 1; rows < 10; rows++) {
                struct cpu_few_rows gemm = {
                    .a_type = types[t][0], .b_type = types[t][1], .rows = rows, .k = depths[d]};

                check_few(gemm, 13, 0, 13);
                check_few(gemm, 13, 4, 9);
            }
}

/* Gradients of one x have the bits that each has alone. */
static void check_together(const struct cpu_unit *unit)
{
    static const struct size each[] = {{40, 150, 2100, 3}, {300, 150, 2100, 0}, {7, 150, 2100, 1}};
    static const int count = CT_COUNT(each);
    void *x = numbers(each[0].k * each[0].n, unit->dtype), *dy[CT_COUNT(each)];
    struct cpu_gradient all[CT_COUNT(each)];
    char *alone[CT_COUNT(each)], *together[CT_COUNT(each)];

    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)(each[i].m * (each[i].n + each[i].pad)) * 4;

        dy[i] = numbers(each[i].k * (each[i].m + each[i].pad), unit->dtype);
        alone[i] = malloc(bytes);
        together[i] = malloc(bytes);
        assert_true(alone[i] && together[i]);
        memset(alone[i], 0, bytes);
        memset(together[i], 0, bytes);
        all[i] = (struct cpu_gradient){gradient_spec(unit, &each[i]), dy[i], together[i]};
        all[i].spec.b_row = each[i].n;
        all[i].spec.accumulate = i == 1;
    }
    for (threads = 1; threads <= 16; threads += threads < 3 ? 1 : 13) {
        size_t bytes = cpu_gradients_workspace(unit, threads, all, count);
        char *workspace = malloc(bytes);

        assert_non_null(workspace);
        memset(workspace, 0xff, bytes);
        for (int i = 0; i < count; i++)
            run(unit, &all[i].spec, dy[i], x, alone[i]);
        cpu_gradients_run(unit, threads, all, count, x, workspace);
        for (int i = 0; i < count; i++)
            assert_memory_equal(alone[i], together[i],
                                (size_t)(each[i].m * (each[i].n + each[i].pad)) * 4);
        free(workspace);
    }
    for (int i = 0; i < count; i++) {
        free(dy[i]);
        free(alone[i]);
        free(together[i]);
    }
    free(x);
}

static void gradients_of_one_x_are_each_alone(void **state)
{
    (void)state;
    for (int u = 0; u < UNITS; u++)
        if (units(u))
            check_together(units(u));
}

/* The emulation has the bits of the hardware. */
static void emulated_tiles_are_the_hardware(void **state)
{
#ifdef CPU_WITH_TILES
    static const struct size s = {.m = 64, .n = 64, .k = 160};
    void *a = numbers(s.m * s.k, CT_BF16), *w = numbers(s.n * s.k, CT_BF16);
    struct cpu_gemm_spec spec = rows_spec(&cpu_unit_emulated, &s, CT_F32);
    static float c[2][64 * 64];
    void *packed;

    (void)state;
    if (!ct_cpu_has_tiles())
        skip();
    threads = 1;
    packed = pack(CPU_FORWARD, w, s.n, s.k, CT_BF16, false);
    run(&cpu_unit_emulated, &spec, a, packed, c[0]);
    run(&cpu_unit_tiles, &spec, a, packed, c[1]);
    assert_memory_equal(c[0], c[1], sizeof(c[0]));
    free(packed);
    free(a);
    free(w);
#else
    (void)state;
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_equal_float64),
                                       cmocka_unit_test(threads_do_not_change_a_bit),
                                       cmocka_unit_test(few_rows_are_multiplied_in_place),
                                       cmocka_unit_test(rows_do_not_change_each_other),
                                       cmocka_unit_test(gradients_of_one_x_are_each_alone),
                                       cmocka_unit_test(emulated_tiles_are_the_hardware)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
