/*
 * See select.h. Both ways run in turn on all threads of the rank, and the median of the ratios of
 * their times counts. As in a step, A is in the caches as far as it fits, and B and C are not. Own
 * kernels must be faster by a margin.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>

#include "../onednn.h"
#include "../tuning.h"
#include "select.h"
#include "product.h"

#define PAIRS 7
/* Elements of a weight: the first product of a process by oneDNN takes longer than hundreds of
   steps gain. */
#define SMALL (1 << 15)
#define MARGIN 1.02
#define PACKING 0.03   /* more, where oneDNN would read weights as they lie */
#define FLOPS 4e9      /* of a measured product of rows, by fewer of them */
#define MOST 2048      /* rows, columns and depth of a measured gradient: for larger ones too */
#define MOST_ROWS 4096 /* the same for products of rows */
#define ONE 0x3f80     /* 1 in bfloat16; two of them are nearly 1 in float32 */

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void *filled(size_t bytes)
{
    uint16_t *memory = aligned_alloc(64, (bytes + 127) & ~(size_t)63);

    for (size_t i = 0; memory && i < bytes / 2; i++)
        memory[i] = ONE;
    return memory;
}

static size_t elements(int64_t rows, int64_t columns)
{
    return (size_t)(rows * columns);
}

/* Bytes of B, however it is packed: oneDNN fills more columns than own kernels do. */
static size_t bytes_of_b(const struct cpu_gemm_spec *s)
{
    size_t own = cpu_product_packed_bytes(CPU_FORWARD, s->n, s->k, s->b_type), other = 0;
    bool forward = s->b_use == CPU_FORWARD;
    dnnl_memory_desc_t md;

    if (!s->b_row && cpu_onednn_packed(&md, s->b_use, forward ? s->n : s->k, forward ? s->k : s->n,
                                       s->b_type) >= 0)
        other = dnnl_memory_desc_get_size(&md);
    return own > other ? own : other;
}

/* Out of all caches. */
static void evict(const void *memory, size_t bytes)
{
#ifdef __x86_64__
    for (size_t i = 0; i < bytes; i += CPU_LINE_BYTES)
        __builtin_ia32_clflush((const char *)memory + i);
    __builtin_ia32_mfence();
#else
    (void)memory;
    (void)bytes;
#endif
}

/* Time of oneDNN divided by that of own kernels, the median of pairs; negative if that cannot be
   known. */
static double compare(const struct cpu_gemm_spec *s, struct cpu_gemm *const ways[2])
{
    size_t other = cpu_gemm_workspace(ways[0]), own = cpu_gemm_workspace(ways[1]);
    size_t b_bytes = bytes_of_b(s), c_bytes = elements(s->m, s->n) * 4;
    void *a = filled(elements(s->m, s->k) * ct_dtype_size(s->a_type)), *b = filled(b_bytes),
         *c = filled(c_bytes), *memory = filled(other > own ? other : own);
    double ratio[PAIRS];
    bool ok = a && b && c && memory;

    for (int i = -1; ok && i < PAIRS; i++) {
        double seconds[2];

        for (int way = 0; ok && way < 2; way++) {
            evict(b, b_bytes);
            evict(c, c_bytes);
            seconds[way] = ct_now();
            ok = cpu_gemm_run(ways[way], a, b, c, memory) >= 0;
            seconds[way] = ct_now() - seconds[way];
        }
        if (i >= 0)
            ratio[i] = seconds[0] / seconds[1];
    }
    free(a);
    free(b);
    free(c);
    free(memory);
    if (!ok)
        return -1;
    qsort(ratio, PAIRS, sizeof(*ratio), rising);
    return ratio[PAIRS / 2];
}

static double measure(void *context)
{
    const struct cpu_gemm_spec *shape = context;
    struct cpu_gemm *ways[2];
    bool ok = true;

    for (int own = 0; ok && own < 2; own++) {
        struct cpu_gemm_spec s = *shape;

        s.own = own;
        ok = cpu_gemm_prepare_as(&s, &ways[own]) >= 0;
    }
    return ok ? compare(shape, ways) : -1;
}

/* Without AVX-512 oneDNN needs no packed weights: to pack them takes a share of their products. */
static double margin(const struct cpu_gemm_spec *s)
{
    return !s->b_row && s->a_type == CT_F32 && ct_cpu_isa() < CT_CPU_AVX512 ? MARGIN + PACKING
                                                                            : MARGIN;
}

/* what: the kind of product, and the sizes that tell it apart; weight: elements of the weight. */
static bool faster(const struct cpu_gemm_spec *shape, const char *what, int64_t weight)
{
    struct cpu_gemm_spec s = *shape;
    enum ct_dtype dtype = cpu_gemm_dtype(shape);
    char name[128];

    if (cpu_config.products != CPU_PRODUCTS_AUTO)
        return cpu_config.products != CPU_PRODUCTS_ONEDNN;
    if (weight <= SMALL)
        return true;
    snprintf(name, sizeof(name), "%s%s.%s.%d", cpu_unit(dtype)->name,
             s.a_type == dtype ? "" : ".widened", what, cpu_threads());
    return cpu_tuned(name, measure, &s) > margin(&s);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t clamp(double x, int64_t low, int64_t high)
{
    return x < (double)low ? low : x > (double)high ? high : (int64_t)x;
}

bool cpu_choose_panels(enum cpu_use use, int64_t n, int64_t k, enum ct_dtype dtype)
{
    int64_t columns = least(use == CPU_FORWARD ? n : k, MOST_ROWS),
            depth = least(use == CPU_FORWARD ? k : n, MOST_ROWS);
    struct cpu_gemm_spec s = {.m = clamp(FLOPS / 2 / (double)(columns * depth + 1), 64, 1024),
                              .n = columns,
                              .k = depth,
                              .a_type = dtype,
                              .b_type = cpu_packed_type(dtype),
                              .c_type = dtype,
                              .a_row = depth,
                              .a_col = 1,
                              .c_row = columns,
                              .b_use = use,
                              .b_for = dtype};
    const struct cpu_unit *unit = cpu_unit(s.b_type);
    char what[80];

    snprintf(what, sizeof(what), "rows.%lldx%lld", (long long)columns, (long long)depth);
    return n && k && unit && faster(&s, what, n * k);
}

static bool choose_gradient(const struct cpu_gemm_spec *spec)
{
    struct cpu_gemm_spec s = *spec;
    char what[80];

    s.m = least(s.m, MOST);
    s.n = least(s.n, MOST);
    s.k = least(s.k, MOST);
    s.a_col = s.m;
    s.b_row = s.c_row = s.n;
    s.a_type = s.b_type = s.a_type == CT_BF16 && s.b_type == CT_BF16 ? CT_BF16 : CT_F32;
    s.accumulate = true;
    snprintf(what, sizeof(what), "gradient.%lldx%lldx%lld", (long long)s.m, (long long)s.n,
             (long long)s.k);
    return faster(&s, what, spec->m * spec->n);
}

bool cpu_choose_own(const struct cpu_gemm_spec *s)
{
    const struct cpu_unit *unit = cpu_unit(cpu_gemm_dtype(s));

    if (!unit)
        return false;
    if (cpu_product_packs(unit, s))
        return cpu_config.products != CPU_PRODUCTS_ONEDNN && s->n * s->k <= SMALL;
    if (!cpu_product_takes(unit, s))
        return false;
    if (s->b_row)
        return choose_gradient(s);
    return s->b_use == CPU_FORWARD ? cpu_choose_panels(CPU_FORWARD, s->n, s->k, s->b_for)
                                   : cpu_choose_panels(CPU_BACKWARD, s->k, s->n, s->b_for);
}
