/*
 * Packed weights: oneDNN's own layout, or that of own kernels, one matrix for all the weights of an
 * op.
 *
 * oneDNN's layout is always requested for a fixed number of rows, so that all users of a weight get
 * the same one, and packed by its reorders. That of own kernels is one of panels (panel_pack.h),
 * packed for both uses in one pass over the weights. If oneDNN has no layout of its own (without
 * AVX-512), the weight keeps its stored order, and packing only widens it.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "loops.h"
#include "onednn.h"
#include "products/select.h"
#include "products/product.h"

#define ROWS 256 /* of A, in the request to oneDNN */

/* One use of the weights. */
struct layout {
    bool own, round; /* round: to bfloat16, but kept as float32 */
    struct cpu_lines lines;
    dnnl_primitive_t reorder[CPU_MAX_WEIGHTS]; /* by weight, for oneDNN's layout */
    dnnl_memory_t from[CPU_MAX_WEIGHTS], to[CPU_MAX_WEIGHTS];
    size_t bytes;
};

struct cpu_packing {
    struct cpu_packing_spec spec;
    enum ct_dtype to; /* of the packed elements */
    int64_t n[CPU_MAX_WEIGHTS], stride[CPU_MAX_WEIGHTS];
    struct layout layout[CPU_USES];
    struct cpu_packing *next;
};

static struct cpu_packing *cache;

enum ct_dtype cpu_packed_type(enum ct_dtype dtype)
{
    return dtype == CT_BF16 && cpu_bf16_native() ? CT_BF16 : CT_F32;
}

bool cpu_packing_rounds(enum ct_dtype from, enum ct_dtype dtype)
{
    return from == CT_F32 && dtype == CT_BF16 && cpu_packed_type(dtype) == CT_F32;
}

/* ---- layouts ---- */

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
        *bytes = cpu_product_packed_bytes(use, n, k, cpu_packed_type(dtype));
        return 0;
    }
    if (rc >= 0)
        rc = cpu_onednn_packed(&md, use, n, k, cpu_packed_type(dtype));
    if (rc >= 0)
        *bytes = dnnl_memory_desc_get_size(&md);
    return rc;
}

/* ---- preparing ---- */

/* Rows of the weights before number `count`. */
static int64_t rows_before(const struct cpu_packing *p, int count)
{
    int64_t n = 0;

    for (int i = 0; i < count; i++)
        n += p->n[i];
    return n;
}

/* Each weight but the last fills its panels or steps. */
static int check_lines(const struct cpu_packing *p, enum cpu_use use, const struct cpu_lines *lines)
{
    int64_t whole = use == CPU_FORWARD ? lines->columns : cpu_lines_depth(lines);

    for (int i = 0; i + 1 < p->spec.count; i++)
        if (p->n[i] % whole)
            return ct_fail(CT_EINVAL, "weights side by side: %lld rows are no multiple of %lld",
                           (long long)p->n[i], (long long)whole);
    return 0;
}

/* The part of the packed matrix for weight i. */
static int place_of(dnnl_memory_desc_t *md, const struct cpu_packing *p, enum cpu_use use, int i)
{
    const struct cpu_packing_spec *s = &p->spec;
    bool forward = use == CPU_FORWARD;
    int64_t n = p->n[i], first = rows_before(p, i);
    dnnl_dims_t dims = {forward ? s->k : n, forward ? n : s->k};
    dnnl_dims_t offsets = {forward ? 0 : first, forward ? first : 0};
    dnnl_memory_desc_t whole;
    int rc = cpu_onednn_packed(&whole, use, rows_before(p, s->count), s->k, p->to);

    if (rc < 0)
        return rc;
    return cpu_onednn_check(dnnl_memory_desc_init_submemory(md, &whole, dims, offsets),
                            "weights side by side");
}

static int create_reorder(struct cpu_packing *p, enum cpu_use use, int i)
{
    const struct cpu_packing_spec *s = &p->spec;
    struct layout *layout = &p->layout[use];
    dnnl_memory_desc_t from, to;
    dnnl_primitive_desc_t descriptor = NULL;
    int rc = use == CPU_FORWARD ? cpu_onednn_matrix(&from, s->k, p->n[i], s->from, 1, p->stride[i])
                                : cpu_onednn_matrix(&from, p->n[i], s->k, s->from, p->stride[i], 1);

    if (rc >= 0)
        rc = place_of(&to, p, use, i);
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_reorder_primitive_desc_create(&descriptor, &from,
                                                                 cpu_onednn_engine, &to,
                                                                 cpu_onednn_engine, NULL),
                              "packing");
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_primitive_create(&layout->reorder[i], descriptor), "packing");
    if (rc >= 0)
        rc = cpu_onednn_check(
            dnnl_memory_create(&layout->from[i], &from, cpu_onednn_engine, DNNL_MEMORY_NONE),
            "weight");
    if (rc >= 0)
        rc = cpu_onednn_check(
            dnnl_memory_create(&layout->to[i], &to, cpu_onednn_engine, DNNL_MEMORY_NONE), "weight");
    dnnl_primitive_desc_destroy(descriptor);
    return rc;
}

static int prepare_use(struct cpu_packing *p, enum cpu_use use)
{
    const struct cpu_packing_spec *s = &p->spec;
    struct layout *layout = &p->layout[use];
    int64_t n = rows_before(p, s->count);
    int rc = cpu_packed_bytes(use, n, s->k, s->dtype, &layout->bytes);

    if (rc < 0)
        return rc;
    layout->own = cpu_choose_panels(use, n, s->k, s->dtype);
    layout->round = cpu_packing_rounds(s->from, s->dtype);
    if (layout->own) {
        layout->lines = cpu_product_lines(use, n, s->k, p->to);
        layout->lines.round = layout->round;
        layout->lines.stream = true;
        return check_lines(p, use, &layout->lines);
    }
    for (int i = 0; rc >= 0 && i < s->count; i++)
        rc = create_reorder(p, use, i);
    return rc;
}

static void destroy(struct cpu_packing *p)
{
    for (int use = 0; use < CPU_USES; use++)
        for (int i = 0; i < p->spec.count; i++) {
            dnnl_primitive_destroy(p->layout[use].reorder[i]);
            dnnl_memory_destroy(p->layout[use].from[i]);
            dnnl_memory_destroy(p->layout[use].to[i]);
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
    p->to = cpu_packed_type(spec->dtype);
    memcpy(p->n, spec->n, sizeof(*p->n) * (size_t)spec->count);
    memcpy(p->stride, spec->stride, sizeof(*p->stride) * (size_t)spec->count);
    for (int use = 0; rc >= 0 && use < CPU_USES; use++)
        if (spec->use[use])
            rc = prepare_use(p, use);
    if (rc < 0) {
        destroy(p);
        return rc;
    }
    *out = p;
    return 0;
}

static bool same(const struct cpu_packing *p, const struct cpu_packing_spec *s)
{
    return !memcmp(p->spec.use, s->use, sizeof(s->use)) && p->spec.count == s->count &&
           p->spec.k == s->k && p->spec.from == s->from && p->spec.dtype == s->dtype &&
           p->to == cpu_packed_type(s->dtype) &&
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

/* ---- running ---- */

/* The uses of lines in one pass, the backward first: it reads rows along. */
static void run_lines(const struct cpu_packing *p, const void *const *weights, void *const *packed)
{
    const struct cpu_packing_spec *s = &p->spec;
    struct cpu_packed_from weight[CPU_MAX_WEIGHTS];
    struct cpu_packed_to to[CPU_USES];
    int places = 0;

    for (int i = 0; i < s->count; i++)
        weight[i] = (struct cpu_packed_from){s->from, weights[i], p->stride[i], p->n[i], s->k};
    for (int use = CPU_USES - 1; use >= 0; use--)
        if (p->layout[use].own)
            to[places++] = (struct cpu_packed_to){use, p->layout[use].lines, packed[use]};
    if (places)
        cpu_pack_stack(to, places, weight, s->count);
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

static int run_reorders(const struct cpu_packing *p, const struct layout *layout,
                        const void *const *weights, void *packed)
{
    for (int i = 0; i < p->spec.count; i++) {
        dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, layout->from[i]}, {DNNL_ARG_TO, layout->to[i]}};
        dnnl_status_t status =
            dnnl_memory_set_data_handle(layout->from[i], (void *)(uintptr_t)weights[i]);
        int rc;

        if (status == dnnl_success)
            status = dnnl_memory_set_data_handle(layout->to[i], packed);
        if (status == dnnl_success)
            status = dnnl_primitive_execute(layout->reorder[i], cpu_onednn_stream, 2, args);
        rc = cpu_onednn_check(status, "packing");
        if (rc < 0)
            return rc;
    }
    if (layout->round)
        cpu_parallel(truncate_part,
                     &(struct truncation){packed, (int64_t)(layout->bytes / sizeof(float))});
    return 0;
}

int cpu_packing_run(struct cpu_packing *p, const void *const *weights, void *const *packed)
{
    int rc = 0;

    run_lines(p, weights, packed);
    for (int use = 0; rc >= 0 && use < CPU_USES; use++)
        if (p->spec.use[use] && !p->layout[use].own)
            rc = run_reorders(p, &p->layout[use], weights, packed[use]);
    return rc;
}
