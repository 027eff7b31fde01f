/*
 * Packed weights: oneDNN's own blocked layout, one matrix for all the weights of an op.
 *
 * The layout is always requested for a fixed number of rows, so that all users of a weight get the
 * same one. If oneDNN has no layout of its own (without AVX-512), the weight keeps its stored
 * order, and packing only widens it.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "loops.h"
#include "onednn.h"
#include "products/choice.h"
#include "products/product.h"

#define ROWS 256 /* of A, in the request to oneDNN */

#define WHOLE 64 /* rows of a weight that fill oneDNN's blocks */

/* Rows of a weight that one reorder packs. */
struct part {
    int weight;
    int64_t begin, n; /* of its rows */
    dnnl_primitive_t reorder;
    dnnl_memory_t from, to;
};

struct cpu_packing {
    struct cpu_packing_spec spec;
    int64_t n[CPU_MAX_WEIGHTS], stride[CPU_MAX_WEIGHTS];
    bool own;
    struct part part[2 * CPU_MAX_WEIGHTS];
    int parts;
    size_t bytes;
    struct cpu_packing *next;
};

static struct cpu_packing *cache;

enum ct_dtype cpu_packed_type(enum ct_dtype dtype)
{
    return dtype == CT_BF16 && cpu_bf16_native() ? CT_BF16 : CT_F32;
}

int cpu_onednn_packed(dnnl_memory_desc_t *md, enum cpu_use use, int64_t n, int64_t k,
                      enum ct_dtype dtype)
{
    int64_t rows = use == CPU_FORWARD ? k : n, columns = use == CPU_FORWARD ? n : k;
    dnnl_dims_t dims = {rows, columns};
    dnnl_primitive_desc_t descriptor = NULL;
    dnnl_memory_desc_t a, any, c;
    int rc = cpu_onednn_matrix(&a, ROWS, rows, dtype, rows, 1);

    if (rc >= 0)
        rc = cpu_onednn_matrix(&c, ROWS, columns, dtype, columns, 1);
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_memory_desc_init_by_tag(&any, 2, dims, cpu_onednn_type(dtype),
                                                           dnnl_format_tag_any),
                              "packed matrix");
    if (rc >= 0)
        rc = cpu_onednn_product(&descriptor, &a, &any, &c, false);
    if (rc < 0)
        return rc;
    *md = *dnnl_primitive_desc_query_md(descriptor, dnnl_query_weights_md, 0);
    dnnl_primitive_desc_destroy(descriptor);
    if (md->format_desc.blocking.inner_nblks)
        return 0;
    return use == CPU_FORWARD ? cpu_onednn_matrix(md, k, n, dtype, 1, k)
                              : cpu_onednn_matrix(md, n, k, dtype, k, 1);
}

int cpu_packed_bytes(enum cpu_use use, int64_t n, int64_t k, enum ct_dtype dtype, size_t *bytes)
{
    dnnl_memory_desc_t md;
    int rc = cpu_gemm_start();

    if (rc >= 0 && cpu_choose_panels(use, n, k, dtype)) {
        *bytes = cpu_product_packed_bytes(use, n, k);
        return 0;
    }
    if (rc >= 0)
        rc = cpu_onednn_packed(&md, use, n, k, dtype);
    if (rc >= 0)
        *bytes = dnnl_memory_desc_get_size(&md);
    return rc;
}

/* Rows of all weights together. */
static int64_t rows_of(const struct cpu_packing *p)
{
    int64_t n = 0;

    for (int i = 0; i < p->spec.count; i++)
        n += p->n[i];
    return n;
}

/* The part of the packed matrix for n rows, which starts at row `first`. */
static int place_of(dnnl_memory_desc_t *md, const struct cpu_packing *p, int64_t first, int64_t n)
{
    const struct cpu_packing_spec *s = &p->spec;
    bool forward = s->use == CPU_FORWARD;
    dnnl_dims_t dims = {forward ? s->k : n, forward ? n : s->k};
    dnnl_dims_t offsets = {forward ? 0 : first, forward ? first : 0};
    dnnl_memory_desc_t whole;
    int rc = cpu_onednn_packed(&whole, s->use, rows_of(p), s->k, s->to);

    if (rc < 0)
        return rc;
    return cpu_onednn_check(dnnl_memory_desc_init_submemory(md, &whole, dims, offsets),
                            "weights side by side");
}

/* first: of the weight's rows among those of all. */
static int create_reorder(const struct cpu_packing *p, struct part *part, int64_t first)
{
    const struct cpu_packing_spec *s = &p->spec;
    int64_t stride = p->stride[part->weight];
    dnnl_memory_desc_t from, to;
    dnnl_primitive_desc_t descriptor = NULL;
    int rc = s->use == CPU_FORWARD ? cpu_onednn_matrix(&from, s->k, part->n, s->from, 1, stride)
                                   : cpu_onednn_matrix(&from, part->n, s->k, s->from, stride, 1);

    if (rc >= 0)
        rc = place_of(&to, p, first + part->begin, part->n);
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_reorder_primitive_desc_create(&descriptor, &from,
                                                                 cpu_onednn_engine, &to,
                                                                 cpu_onednn_engine, NULL),
                              "packing");
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_primitive_create(&part->reorder, descriptor), "packing");
    if (rc >= 0)
        rc = cpu_onednn_check(
            dnnl_memory_create(&part->from, &from, cpu_onednn_engine, DNNL_MEMORY_NONE), "weight");
    if (rc >= 0)
        rc = cpu_onednn_check(
            dnnl_memory_create(&part->to, &to, cpu_onednn_engine, DNNL_MEMORY_NONE), "weight");
    dnnl_primitive_desc_destroy(descriptor);
    return rc;
}

/* Rows that fill no block are packed by themselves: oneDNN's reorder of a matrix that has some is
   several times as slow. */
static int create_reorders(struct cpu_packing *p)
{
    int64_t first = 0;
    int rc = 0;

    for (int i = 0; i < p->spec.count; first += p->n[i++])
        for (int64_t begin = 0, end; rc >= 0 && begin < p->n[i]; begin = end) {
            struct part *part = &p->part[p->parts++];

            end = begin || p->n[i] < WHOLE ? p->n[i] : p->n[i] / WHOLE * WHOLE;
            *part = (struct part){.weight = i, .begin = begin, .n = end - begin};
            rc = create_reorder(p, part, first);
        }
    return rc;
}

static void destroy(struct cpu_packing *p)
{
    for (int i = 0; i < p->parts; i++) {
        dnnl_primitive_destroy(p->part[i].reorder);
        dnnl_memory_destroy(p->part[i].from);
        dnnl_memory_destroy(p->part[i].to);
    }
    free(p);
}

static int create(const struct cpu_packing_spec *spec, struct cpu_packing **out)
{
    struct cpu_packing *p = calloc(1, sizeof(*p));
    int rc = 0;

    if (!p)
        return ct_fail(CT_ENOMEM, "no memory for packing");
    p->spec = *spec;
    memcpy(p->n, spec->n, sizeof(*p->n) * (size_t)spec->count);
    memcpy(p->stride, spec->stride, sizeof(*p->stride) * (size_t)spec->count);
    p->own = cpu_choose_panels(spec->use, rows_of(p), spec->k, spec->to);
    if (p->own && !cpu_product_can_stack(p->n, spec->count))
        rc = ct_fail(CT_EINVAL, "weights side by side: rows are no multiple of %d", CPU_PANEL);
    if (!p->own)
        rc = create_reorders(p);
    if (rc >= 0)
        rc = cpu_packed_bytes(spec->use, rows_of(p), spec->k, spec->to, &p->bytes);
    if (rc < 0) {
        destroy(p);
        return rc;
    }
    *out = p;
    return 0;
}

static bool same(const struct cpu_packing *p, const struct cpu_packing_spec *s)
{
    return p->spec.use == s->use && p->spec.count == s->count && p->spec.k == s->k &&
           p->spec.from == s->from && p->spec.to == s->to && p->spec.round == s->round &&
           !memcmp(p->n, s->n, sizeof(*p->n) * (size_t)s->count) &&
           !memcmp(p->stride, s->stride, sizeof(*p->stride) * (size_t)s->count);
}

int cpu_packing_prepare(const struct cpu_packing_spec *spec, struct cpu_packing **packing)
{
    int rc;

    for (struct cpu_packing *p = cache; p; p = p->next)
        if (same(p, spec)) {
            *packing = p;
            return 0;
        }
    rc = create(spec, packing);
    if (rc < 0)
        return rc;
    (*packing)->next = cache;
    cache = *packing;
    return 0;
}

struct truncation {
    float *data;
    int64_t count;
};

static void truncate_part(void *context, int thread, int threads)
{
    const struct truncation *t = context;
    struct cpu_range mine = cpu_share(t->count, 1024, thread, threads);

    cpu_loops()->truncate(t->data + mine.begin, t->data + mine.begin, mine.end - mine.begin);
}

static void run_own(const struct cpu_packing *p, const void *const *weights, void *packed)
{
    const struct cpu_packing_spec *s = &p->spec;
    int64_t first = 0;

    for (int i = 0; i < s->count; first += p->n[i++])
        cpu_product_pack(
            s->use, &(struct cpu_packed_from){s->from, weights[i], p->stride[i], p->n[i], s->k},
            first, rows_of(p), packed);
}

int cpu_packing_run(struct cpu_packing *p, const void *const *weights, void *packed)
{
    if (p->own) {
        run_own(p, weights, packed);
        return 0;
    }
    for (int i = 0; i < p->parts; i++) {
        const struct part *part = &p->part[i];
        size_t row = (size_t)p->stride[part->weight] * ct_dtype_size(p->spec.from);
        char *from = (char *)(uintptr_t)weights[part->weight] + (size_t)part->begin * row;
        dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, part->from}, {DNNL_ARG_TO, part->to}};
        dnnl_status_t status = dnnl_memory_set_data_handle(part->from, from);
        int rc;

        if (status == dnnl_success)
            status = dnnl_memory_set_data_handle(part->to, packed);
        if (status == dnnl_success)
            status = dnnl_primitive_execute(part->reorder, cpu_onednn_stream, 2, args);
        rc = cpu_onednn_check(status, "packing");
        if (rc < 0)
            return rc;
    }
    if (p->spec.round)
        cpu_parallel(truncate_part,
                     &(struct truncation){packed, (int64_t)(p->bytes / sizeof(float))});
    return 0;
}
