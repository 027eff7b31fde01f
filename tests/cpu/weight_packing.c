/*
 * Packing of weights: own code (plugins/cpu/panel_pack.h) against the definition of panels
 * (products/unit.h), and oneDNN's layout against its reorders, to the bit. $CTITAN_CPU_ISA chooses
 * the instruction set.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <ctitan/error.h>

#include "onednn.h"
#include "products/select.h"
#include "products/product.h"
#include "team.h"

#define MOST 4 /* weights */
#define POISON 0x5a

struct cpu_config cpu_config = {.bf16_matmul = CPU_BF16_WIDEN, .products = CPU_PRODUCTS_ONEDNN};

/* Weights w[n[i], k], one below the other; all but the last are whole panels and steps. */
static const struct stack {
    int64_t n[MOST], k;
} stacks[] = {{{1}, 1},        {{3}, 5},           {{16}, 16},  {{70}, 37},    {{37}, 70},
              {{31}, 1030},    {{200}, 513},       {{65}, 512}, {{64, 3}, 33}, {{128, 64, 64}, 96},
              {{64, 64}, 600}, {{64, 128, 17}, 47}};

static int64_t rows_of(const struct stack *s)
{
    int64_t n = 0;

    for (int i = 0; i < MOST; i++)
        n += s->n[i];
    return n;
}

struct weights {
    enum ct_dtype dtype;
    int64_t rows, columns, stride;
    char *at;
};

static int64_t gap = 3; /* elements between rows */

/* Numbers of all magnitudes, in rows with gaps. */
static struct weights make(const struct stack *s, enum ct_dtype dtype)
{
    struct weights w = {dtype, rows_of(s), s->k, s->k + gap, NULL};
    int64_t count = w.rows * w.stride;

    w.at = malloc((size_t)count * ct_dtype_size(dtype));
    assert_non_null(w.at);
    for (int64_t i = 0; i < count; i++) {
        float x = (float)(rand() - RAND_MAX / 2) * (rand() % 2 ? 0x1p-31f : 0x1p-80f);

        if (dtype == CT_F32)
            ((float *)w.at)[i] = x;
        else
            ((uint16_t *)w.at)[i] = ct_f32_to_bf16(x);
    }
    return w;
}

static char *poisoned(size_t bytes)
{
    char *at = aligned_alloc(64, (bytes + 127) & ~(size_t)63);

    assert_non_null(at);
    return memset(at, POISON, (bytes + 127) & ~(size_t)63);
}

/* All weights by own code. */
static void pack(const struct weights *w, const struct stack *s, const struct cpu_packed_to *to)
{
    struct cpu_packed_from weight[MOST];
    int count = 0;

    for (int64_t row = 0; count < MOST && s->n[count]; row += s->n[count++])
        weight[count] = (struct cpu_packed_from){
            w->dtype, w->at + (size_t)(row * w->stride) * ct_dtype_size(w->dtype), w->stride,
            s->n[count], s->k};
    cpu_pack_stack(to, 1, weight, count);
}

/* ---- oneDNN ---- */

static dnnl_memory_t memory(const dnnl_memory_desc_t *md, void *at)
{
    dnnl_memory_t m;

    assert_int_equal(dnnl_memory_create(&m, md, cpu_onednn_engine, at), dnnl_success);
    return m;
}

/* All weights by oneDNN. */
static void reorder(const struct weights *w, enum cpu_use use, const dnnl_memory_desc_t *to,
                    void *at)
{
    bool forward = use == CPU_FORWARD;
    dnnl_memory_desc_t from;
    dnnl_primitive_desc_t descriptor;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[2];

    assert_int_equal(cpu_onednn_matrix(&from, forward ? w->columns : w->rows,
                                       forward ? w->rows : w->columns, w->dtype,
                                       forward ? 1 : w->stride, forward ? w->stride : 1),
                     0);
    assert_int_equal(dnnl_reorder_primitive_desc_create(&descriptor, &from, cpu_onednn_engine, to,
                                                        cpu_onednn_engine, NULL),
                     dnnl_success);
    assert_int_equal(dnnl_primitive_create(&primitive, descriptor), dnnl_success);
    args[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, memory(&from, w->at)};
    args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, memory(to, at)};
    assert_int_equal(dnnl_primitive_execute(primitive, cpu_onednn_stream, 2, args), dnnl_success);
    dnnl_memory_destroy(args[0].memory);
    dnnl_memory_destroy(args[1].memory);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(descriptor);
}

/* ---- panels ---- */

/* w(row, column) in a dtype; 0 beyond. */
static float at(const struct weights *w, int64_t row, int64_t column, enum ct_dtype to)
{
    int64_t i = row * w->stride + column;
    float x;

    if (row >= w->rows || column >= w->columns)
        return 0;
    x = w->dtype == CT_F32 ? ((float *)w->at)[i] : ct_bf16_to_f32(((uint16_t *)w->at)[i]);
    return to == CT_BF16 ? ct_bf16_to_f32(ct_f32_to_bf16(x)) : x;
}

/* Elements in a dtype, which are rounded to bfloat16 if `round`. */
static void check_elements(const struct weights *w, const struct cpu_packed_to *to,
                           enum ct_dtype dtype, bool round)
{
    int64_t bytes = (int64_t)cpu_product_packed_bytes(to->use, w->rows, w->columns, dtype);
    int64_t size = (int64_t)ct_dtype_size(dtype), each = 4 / size,
            steps = to->lines.panel / CPU_STEP_BYTES;

    for (int64_t i = 0; i < bytes / size; i++) {
        int64_t word = i / each, panel = word / 512 / steps, step = word / 512 % steps,
                tile = word / 256 % 2, k = (step * 16 + word / 16 % 16) * each + i % each,
                column = panel * 32 + tile * 16 + word % 16;
        float packed =
            dtype == CT_F32 ? ((float *)to->at)[i] : ct_bf16_to_f32(((uint16_t *)to->at)[i]);
        enum ct_dtype rounded = round ? CT_BF16 : dtype;
        float expected =
            to->use == CPU_FORWARD ? at(w, column, k, rounded) : at(w, k, column, rounded);

        assert_memory_equal(&packed, &expected, sizeof(packed));
    }
}

static void check_panels(const struct stack *s, enum cpu_use use, enum ct_dtype from,
                         enum ct_dtype dtype)
{
    struct weights w = make(s, from);
    size_t bytes = cpu_product_packed_bytes(use, w.rows, w.columns, dtype);
    struct cpu_packed_to to = {use, cpu_product_lines(use, w.rows, w.columns, dtype),
                               poisoned(bytes)};

    pack(&w, s, &to);
    check_elements(&w, &to, dtype, false);
    free(w.at);
    free(to.at);
}

static void panels_are_as_defined(void **state)
{
    (void)state;
    for (size_t i = 0; i < CT_COUNT(stacks); i++)
        for (int kind = 0; kind < 8; kind++) {
            threads = 1 + (int)i % 3;
            check_panels(&stacks[i], kind & 1 ? CPU_BACKWARD : CPU_FORWARD,
                         kind & 2 ? CT_F32 : CT_BF16, kind & 4 ? CT_F32 : CT_BF16);
        }
}

/* ---- whole packings ---- */

static void truncate_all(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = ct_bf16_to_f32(ct_f32_to_bf16(x[i]));
}

static void check_reordered(const struct weights *w, enum cpu_use use, enum ct_dtype to, bool round,
                            const void *packed, size_t bytes)
{
    char *theirs = poisoned(bytes);
    dnnl_memory_desc_t md;

    assert_int_equal(cpu_onednn_packed(&md, use, w->rows, w->columns, to), 0);
    reorder(w, use, &md, theirs);
    if (round)
        truncate_all((float *)theirs, bytes / sizeof(float));
    assert_memory_equal(packed, theirs, bytes);
    free(theirs);
}

/* Both uses at once, in oneDNN's layouts or in panels. */
static void check_packing(const struct stack *s, enum ct_dtype from, enum ct_dtype dtype)
{
    enum ct_dtype to = cpu_packed_type(dtype);
    bool round = cpu_packing_rounds(from, dtype);
    struct weights w = make(s, from);
    int64_t stride[MOST] = {w.stride, w.stride, w.stride, w.stride};
    struct cpu_packing_spec spec = {{true, true}, 0, s->n, stride, s->k, from, dtype};
    struct cpu_packing *packing;
    const void *weights[MOST];
    void *packed[CPU_USES];
    size_t bytes[CPU_USES];

    for (int64_t row = 0; spec.count < MOST && s->n[spec.count]; row += s->n[spec.count++])
        weights[spec.count] = w.at + (size_t)(row * w.stride) * ct_dtype_size(from);
    for (int use = 0; use < CPU_USES; use++) {
        assert_int_equal(cpu_packed_bytes(use, w.rows, s->k, dtype, &bytes[use]), 0);
        packed[use] = poisoned(bytes[use]);
    }
    if (cpu_packing_prepare(&spec, &packing) < 0)
        fail_msg("%s", ct_error_message());
    assert_int_equal(cpu_packing_run(packing, weights, packed), 0);
    for (int use = 0; use < CPU_USES; use++) {
        if (cpu_config.products == CPU_PRODUCTS_OWN)
            check_elements(
                &w,
                &(struct cpu_packed_to){use, cpu_product_lines(use, w.rows, s->k, to), packed[use]},
                to, round);
        else
            check_reordered(&w, use, to, round, packed[use], bytes[use]);
        free(packed[use]);
    }
    free(w.at);
}

/* The packings of a process are kept, whatever the products: gaps tell both kinds apart. */
static void check_packings(enum cpu_products products)
{
    cpu_config.products = products;
    gap = products == CPU_PRODUCTS_OWN ? 5 : 3;
    for (size_t i = 0; i < CT_COUNT(stacks); i++) {
        threads = 1 + (int)i % 3;
        cpu_config.bf16_matmul = CPU_BF16_WIDEN;
        check_packing(&stacks[i], CT_F32, CT_F32);
        check_packing(&stacks[i], CT_F32, CT_BF16);
        check_packing(&stacks[i], CT_BF16, CT_BF16);
        if (ct_cpu_isa() == CT_CPU_AVX512) { /* where oneDNN has products of bfloat16 */
            cpu_config.bf16_matmul = CPU_BF16_NATIVE;
            check_packing(&stacks[i], CT_F32, CT_BF16);
            check_packing(&stacks[i], CT_BF16, CT_BF16);
        }
    }
}

static void both_uses_are_packed_at_once(void **state)
{
    (void)state;
    check_packings(CPU_PRODUCTS_ONEDNN);
    check_packings(CPU_PRODUCTS_OWN);
}

static void weights_that_fill_no_panel_do_not_stack(void **state)
{
    int64_t n[2] = {7, 64}, stride[2] = {32, 32};
    struct cpu_packing_spec spec = {{true, true}, 2, n, stride, 32, CT_F32, CT_F32};
    struct cpu_packing *packing;

    (void)state;
    cpu_config.bf16_matmul = CPU_BF16_WIDEN;
    cpu_config.products = CPU_PRODUCTS_OWN;
    assert_int_equal(cpu_packing_prepare(&spec, &packing), CT_EINVAL);
    cpu_config.products = CPU_PRODUCTS_ONEDNN;
    stride[0] = stride[1] = 33;
    if (ct_cpu_isa() >= CT_CPU_AVX512) /* else matrices are plain */
        assert_int_equal(cpu_packing_prepare(&spec, &packing), CT_EINVAL);
}

/* ---- what is measured ---- */

#define PAGE ((size_t)4096)

/* Memory that ends where a page that nobody has begins. */
static bool guarded;
static char *guard[8];
static size_t guard_bytes[8]; /* mapped */

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void __wrap_free(void *memory);

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    char *pages;
    int i = 0;

    if (!guarded)
        return __real_aligned_alloc(alignment, bytes);
    while (guard[i])
        assert_true(++i < (int)CT_COUNT(guard));
    pages = mmap(NULL, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + whole, PAGE, PROT_NONE), 0);
    guard[i] = pages + whole - bytes;
    guard_bytes[i] = whole + PAGE;
    return guard[i];
}

void __wrap_free(void *memory)
{
    for (int i = 0; memory && i < (int)CT_COUNT(guard); i++)
        if (guard[i] == memory) {
            munmap((char *)((uintptr_t)memory / PAGE * PAGE), guard_bytes[i]);
            guard[i] = NULL;
            return;
        }
    __real_free(memory);
}

/* Both ways read and write within what they are given, for shapes that fill no panel of theirs. */
static void measured_products_stay_within_their_memory(void **state)
{
    static const int64_t sizes[][2] = {{8, 32}, {8, 256}, {160, 64}, {32, 8}, {64, 16}, {33, 70}};
    char folder[] = "/tmp/ctitan-packing-XXXXXX", command[64];

    (void)state;
    assert_true(mkdtemp(folder) && setenv("XDG_CACHE_HOME", folder, 1) == 0);
    threads = 1;
    cpu_config.products = CPU_PRODUCTS_AUTO;
    cpu_config.bf16_matmul = CPU_BF16_AUTO;
    guarded = true;
    for (size_t i = 0; i < CT_COUNT(sizes); i++)
        for (int flags = 0; flags < 4; flags++)
            cpu_choose_panels(flags & 1 ? CPU_BACKWARD : CPU_FORWARD, sizes[i][0], sizes[i][1],
                              flags & 2 ? CT_BF16 : CT_F32);
    guarded = false;
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(panels_are_as_defined), cmocka_unit_test(both_uses_are_packed_at_once),
        cmocka_unit_test(weights_that_fill_no_panel_do_not_stack),
        cmocka_unit_test(measured_products_stay_within_their_memory)};

    cpu_flush_denormals();
    return cpu_gemm_start() < 0 || cmocka_run_group_tests(tests, NULL, NULL);
}
