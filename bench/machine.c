#include "machine.h"

#include <dnnl.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECONDS 0.2

/* The benchmark has no use for a machine that oneDNN refuses. */
static void need(dnnl_status_t status)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "oneDNN fails with status %d\n", (int)status);
    exit(1);
}

static dnnl_engine_t engine;
static dnnl_stream_t stream;

struct product {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
    dnnl_memory_t memory[3];
};

static void describe(dnnl_memory_desc_t *md, int64_t rows, int64_t columns, bool transposed,
                     dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : columns, transposed ? rows : 1};

    need(dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides));
}

/* c[m, n] = a[m, k] b[k, n]; false: oneDNN has none for this type. */
static bool create(struct product *p, dnnl_memory_desc_t md[3])
{
    static const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    static const dnnl_query_t queries[3] = {dnnl_query_src_md, dnnl_query_weights_md,
                                            dnnl_query_dst_md};
    dnnl_primitive_desc_t descriptor;
    dnnl_matmul_desc_t desc;

    need(dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]));
    if (dnnl_primitive_desc_create(&descriptor, &desc, NULL, engine, NULL) != dnnl_success)
        return false;
    need(dnnl_primitive_create(&p->primitive, descriptor));
    for (int i = 0; i < 3; i++) {
        const dnnl_memory_desc_t *used = dnnl_primitive_desc_query_md(descriptor, queries[i], 0);
        void *data;

        need(dnnl_memory_create(&p->memory[i], used, engine, DNNL_MEMORY_ALLOCATE));
        need(dnnl_memory_get_data_handle(p->memory[i], &data));
        memset(data, 0, dnnl_memory_desc_get_size(used));
        p->args[i] = (dnnl_exec_arg_t){names[i], p->memory[i]};
    }
    dnnl_primitive_desc_destroy(descriptor);
    return true;
}

static double time_product(struct product *p)
{
    double begin = omp_get_wtime(), best = 1e9;

    for (int i = 0; i < 4 || omp_get_wtime() - begin < SECONDS; i++) {
        double t = omp_get_wtime();

        need(dnnl_primitive_execute(p->primitive, stream, 3, p->args));
        t = omp_get_wtime() - t;
        best = i > 0 && t < best ? t : best;
    }
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(p->memory[i]);
    dnnl_primitive_destroy(p->primitive);
    return best;
}

static double try_product(enum machine_product which, int64_t m, int64_t n, int64_t k,
                          dnnl_data_type_t type, bool packed)
{
    dnnl_memory_desc_t md[3];
    struct product p;

    if (which == MACHINE_FORWARD) {
        describe(&md[0], m, k, false, type);
        describe(&md[1], k, n, true, type);
        describe(&md[2], m, n, false, type);
    } else if (which == MACHINE_DX) {
        describe(&md[0], m, n, false, type);
        describe(&md[1], n, k, false, type);
        describe(&md[2], m, k, false, type);
    } else {
        describe(&md[0], n, m, true, type);
        describe(&md[1], m, k, false, type);
        describe(&md[2], n, k, false, dnnl_f32);
    }
    if (packed) {
        dnnl_dims_t dims = {md[1].dims[0], md[1].dims[1]};

        need(dnnl_memory_desc_init_by_tag(&md[1], 2, dims, type, dnnl_format_tag_any));
    }
    return create(&p, md) ? time_product(&p) : 1e9;
}

double machine_product(enum machine_product which, int64_t m, int64_t n, int64_t k,
                       enum ct_dtype dtype)
{
    static struct known {
        enum machine_product which;
        int64_t m, n, k;
        enum ct_dtype dtype;
        double seconds;
    } known[256];
    static int count;
    double best = 1e9;

    for (int i = 0; i < count; i++)
        if (known[i].which == which && known[i].m == m && known[i].n == n && known[i].k == k &&
            known[i].dtype == dtype)
            return known[i].seconds;
    if (!engine) {
        need(dnnl_engine_create(&engine, dnnl_cpu, 0));
        need(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    }
    for (int packed = 0; packed < (which == MACHINE_DW ? 1 : 2); packed++)
        for (int bf16 = 0; bf16 < (dtype == CT_BF16 ? 2 : 1); bf16++) {
            double seconds = try_product(which, m, n, k, bf16 ? dnnl_bf16 : dnnl_f32, packed);

            best = seconds < best ? seconds : best;
        }
    if (count < 256)
        known[count++] = (struct known){which, m, n, k, dtype, best};
    return best;
}

enum { OUTPUT = -1 };

/* As bits, and the operand that has x's columns: an input, or the output. */
static unsigned products_of(const char *type, int *x)
{
    static const struct {
        const char *name;
        unsigned products;
        int x;
    } ways[] = {{"cross_entropy_grad", 1 << MACHINE_FORWARD | 1 << MACHINE_DX | 1 << MACHINE_DW, 1},
                {"cross_entropy_dx", 1 << MACHINE_FORWARD | 1 << MACHINE_DX, 1},
                {"linear_dx", 1 << MACHINE_DX, OUTPUT},
                {"linear_dw", 1 << MACHINE_DW, 0},
                {"linear", 1 << MACHINE_FORWARD, 0}};
    size_t i = 0;

    while (!strstr(type, ways[i].name))
        i++;
    *x = ways[i].x;
    return ways[i].products;
}

struct machine_op machine_op(const struct ct_op *op, const struct ct_tensor *in,
                             const struct ct_tensor *out)
{
    int operand;
    struct machine_op m = {.products = products_of(op->type->name, &operand),
                           .flops = op->type->flops(op, in, out)};
    const struct ct_tensor *x = operand == OUTPUT ? &out[0] : &in[operand];

    m.k = x->shape[x->ndim - 1];
    m.m = ct_tensor_count(x) / m.k;
    m.n = (int64_t)(m.flops / __builtin_popcount(m.products) / 2 / (double)(m.m * m.k) + 0.5);
    return m;
}

double machine_op_seconds(const struct machine_op *op, enum ct_dtype dtype)
{
    double seconds = 0;

    for (int i = MACHINE_FORWARD; i <= MACHINE_DW; i++)
        if (op->products >> i & 1)
            seconds += machine_product((enum machine_product)i, op->m, op->n, op->k, dtype);
    return seconds;
}

double machine_bandwidth(double bytes)
{
    int64_t n = (int64_t)(bytes / 12) + 1024;
    float *a = aligned_alloc(64, (size_t)(n + 16) / 16 * 64),
          *b = aligned_alloc(64, (size_t)(n + 16) / 16 * 64);
    float *c = aligned_alloc(64, (size_t)(n + 16) / 16 * 64);
    double begin, best = 1e9;

    if (!a || !b || !c) {
        fprintf(stderr, "no memory for a triad of %.0f bytes\n", bytes);
        exit(1);
    }
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        a[i] = b[i] = c[i] = 1;
    begin = omp_get_wtime();
    for (int repetition = 0; repetition < 4 || omp_get_wtime() - begin < SECONDS; repetition++) {
        double t = omp_get_wtime();

#pragma omp parallel for simd
        for (int64_t i = 0; i < n; i++)
            a[i] = b[i] + 0.5f * c[i];
        t = omp_get_wtime() - t;
        best = t < best ? t : best;
    }
    free(a);
    free(b);
    free(c);
    return (double)n * 12 / best;
}
