/*
 * A product is run in one of four ways.
 *
 * Whole: one oneDNN primitive over all threads. Operands that it cannot read directly (bfloat16
 * without AMX) are first widened into the workspace, and the result is rounded afterwards.
 *
 * By rows: if A or C must be converted, A is split into chunks of rows. Each thread widens a chunk,
 * runs a one-thread primitive on it and rounds the result while it is in the thread's cache. The
 * same if B is packed and rows of A or C lie apart: oneDNN has only its slow reference for that,
 * and chunks are copied.
 *
 * By depth: if A is stored transposed (the gradient of a weight), both operands are widened in
 * chunks of their common dimension. A primitive over all threads adds each chunk's product to C.
 *
 * Own: by the kernels of products/, where they are faster. B that is not packed is packed into the
 * workspace.
 */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "convert.h"
#include "onednn.h"
#include "products/select.h"
#include "products/product.h"

#define CHUNK 256 /* rows */
#define DEPTH 512
#define CHUNK_BYTES (2 << 20) /* of A and C widened; above it, half the rows */

/* One oneDNN primitive, with `lanes` sets of arguments, one for each thread that runs it. */
struct primitive {
    dnnl_primitive_t handle;
    dnnl_memory_t (*lane)[4]; /* A, B, C, scratchpad */
    size_t scratch;
};

enum way { WHOLE, BY_ROWS, BY_DEPTH, OWN };

struct cpu_gemm {
    struct cpu_gemm_spec spec;
    int threads;
    enum way way;
    enum ct_dtype compute; /* dtype of A and B in the primitives */
    bool widen_a, widen_b, round_c;
    bool copy_a, copy_c;               /* rows lie apart, and B is packed */
    int64_t chunk;                     /* of m or k */
    int lanes;                         /* threads that run primitives of their own */
    struct primitive main, next, tail; /* next: by depth, from the second chunk on */
    struct cpu_product product;        /* own */
    struct cpu_packing *packing;       /* own: of B; NULL: B is read as it lies */
    /* Offsets in the workspace; the first three areas exist once per lane. */
    size_t a_at, c_at, scratch_at, b_at, lane_bytes, workspace;
    size_t own_at; /* what own kernels need, after packed B */
    struct cpu_gemm *next_in_cache;
};

struct call {
    struct cpu_gemm *gemm;
    const char *a, *b;
    char *c, *workspace;
    _Atomic int status;
};

static struct cpu_gemm *cache;

/* Create the primitive for one thread, or for `lanes` threads that run it concurrently. */
static int create_primitive(struct primitive *p, const struct cpu_gemm_spec *s, int lanes)
{
    dnnl_memory_desc_t md[4];
    dnnl_primitive_desc_t descriptor = NULL;
    int rc = cpu_onednn_matrix(&md[0], s->m, s->k, s->a_type, s->a_row, s->a_col);

    if (rc >= 0)
        rc = s->b_row ? cpu_onednn_matrix(&md[1], s->k, s->n, s->b_type, s->b_row, s->b_col)
                      : cpu_onednn_packed(&md[1], s->b_use, s->b_use == CPU_FORWARD ? s->n : s->k,
                                          s->b_use == CPU_FORWARD ? s->k : s->n, s->b_type);
    if (rc >= 0)
        rc = cpu_onednn_matrix(&md[2], s->m, s->n, s->c_type, s->c_row, 1);
    if (rc >= 0)
        rc = cpu_onednn_product(&descriptor, &md[0], &md[1], &md[2], s->accumulate);
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_primitive_create(&p->handle, descriptor), "primitive");
    if (rc >= 0) {
        md[3] = *dnnl_primitive_desc_query_md(descriptor, dnnl_query_scratchpad_md, 0);
        p->scratch = dnnl_memory_desc_get_size(&md[3]);
        p->lane = calloc((size_t)lanes, sizeof(*p->lane));
        rc = p->lane ? 0 : ct_fail(CT_ENOMEM, "no memory for a matrix product");
    }
    for (int lane = 0; rc >= 0 && lane < lanes; lane++)
        for (int i = 0; rc >= 0 && i < 4; i++)
            rc = cpu_onednn_check(
                dnnl_memory_create(&p->lane[lane][i], &md[i], cpu_onednn_engine, DNNL_MEMORY_NONE),
                "argument");
    dnnl_primitive_desc_destroy(descriptor);
    return rc;
}

static void destroy_primitive(struct primitive *p, int lanes)
{
    for (int lane = 0; p->lane && lane < lanes; lane++)
        for (int i = 0; i < 4; i++)
            dnnl_memory_destroy(p->lane[lane][i]);
    free(p->lane);
    dnnl_primitive_destroy(p->handle);
}

static int run_primitive(struct primitive *p, int lane, const void *a, const void *b, void *c,
                         void *scratch)
{
    static const int names[4] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
    void *data[4] = {(void *)a, (void *)b, c, scratch};
    dnnl_exec_arg_t args[4];

    for (int i = 0; i < 4; i++) {
        dnnl_status_t status = dnnl_memory_set_data_handle(p->lane[lane][i], data[i]);

        if (status != dnnl_success)
            return cpu_onednn_check(status, "argument");
        args[i] = (dnnl_exec_arg_t){names[i], p->lane[lane][i]};
    }
    return cpu_onednn_check(dnnl_primitive_execute(p->handle, cpu_onednn_stream, 4, args),
                            "execution");
}

/* ---- preparing ---- */

/* A or B as stored in memory: rows of contiguous elements. */
static struct ct_matrix stored(int64_t rows, int64_t columns, int64_t row_stride,
                               int64_t column_stride)
{
    if (column_stride == 1)
        return (struct ct_matrix){rows, columns, row_stride};
    return (struct ct_matrix){columns, rows, column_stride};
}

static struct ct_matrix stored_a(const struct cpu_gemm_spec *s)
{
    return stored(s->m, s->k, s->a_row, s->a_col);
}

static struct ct_matrix stored_b(const struct cpu_gemm_spec *s)
{
    return stored(s->k, s->n, s->b_row, s->b_col);
}

static int64_t chunk_rows(const struct cpu_gemm *g)
{
    const struct cpu_gemm_spec *s = &g->spec;
    int64_t row_bytes = (s->k * (g->widen_a || g->copy_a) + s->n * (g->round_c || g->copy_c)) * 4;
    int64_t most = row_bytes * CHUNK > CHUNK_BYTES ? CHUNK / 2 : CHUNK;
    int64_t chunks = g->threads * ((s->m + most * g->threads - 1) / (most * g->threads));

    return ((s->m + chunks - 1) / chunks + 15) / 16 * 16;
}

static void choose_way(struct cpu_gemm *g)
{
    const struct cpu_gemm_spec *s = &g->spec;
    bool native = cpu_gemm_dtype(s) == CT_BF16;

    g->compute = cpu_gemm_dtype(s);
    g->widen_a = s->a_type != g->compute;
    g->widen_b = s->b_type != g->compute;
    g->round_c = !native && s->c_type == CT_BF16;
    g->lanes = 1;
    g->chunk = s->m;
    g->copy_a = !s->b_row && !g->widen_a && s->a_row != s->k;
    g->copy_c = !s->b_row && !g->round_c && s->c_row != s->n;
    if ((g->widen_a || g->round_c || g->copy_a || g->copy_c) && s->a_col == 1 &&
        s->m >= 32 * g->threads) {
        g->way = BY_ROWS;
        g->lanes = g->threads;
        g->chunk = chunk_rows(g);
    } else if (g->widen_a && g->widen_b && s->a_row == 1 && s->b_col == 1 && s->k > DEPTH) {
        g->way = BY_DEPTH;
        g->chunk = DEPTH;
    }
}

/* Spec of the primitive for a chunk; converted and copied operands are dense in the workspace. */
static struct cpu_gemm_spec inner_spec(const struct cpu_gemm *g, int64_t chunk)
{
    struct cpu_gemm_spec s = g->spec;

    if (g->way == BY_DEPTH)
        s.k = chunk;
    else
        s.m = chunk;
    if (g->widen_a) {
        s.a_row = s.a_col == 1 ? s.k : 1;
        s.a_col = s.a_col == 1 ? 1 : s.m;
    }
    if (g->copy_a)
        s.a_row = s.k;
    if (g->copy_c)
        s.c_row = s.n;
    if (g->widen_b) {
        s.b_row = s.b_col == 1 ? s.n : 1;
        s.b_col = s.b_col == 1 ? 1 : s.k;
    }
    if (g->round_c) {
        s.c_row = s.n;
        s.accumulate = false;
        s.c_type = CT_F32;
    }
    s.a_type = s.b_type = g->compute;
    return s;
}

static int create_primitives(struct cpu_gemm *g)
{
    int64_t rest = (g->way == BY_DEPTH ? g->spec.k : g->spec.m) % g->chunk;
    struct cpu_gemm_spec s = inner_spec(g, g->chunk);
    int rc;

    if (g->way == BY_ROWS)
        omp_set_num_threads(1);
    rc = create_primitive(&g->main, &s, g->lanes);
    if (rc >= 0 && g->way == BY_DEPTH) {
        s.accumulate = true;
        rc = create_primitive(&g->next, &s, 1);
    }
    if (rc >= 0 && rest) {
        s = inner_spec(g, rest);
        s.accumulate |= g->way == BY_DEPTH;
        rc = create_primitive(&g->tail, &s, g->lanes);
    }
    omp_set_num_threads(g->threads);
    return rc;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void plan_workspace(struct cpu_gemm *g)
{
    const struct cpu_gemm_spec *s = &g->spec;
    int64_t rows = g->way == BY_ROWS ? g->chunk : s->m,
            depth = g->way == BY_DEPTH ? g->chunk : s->k;
    size_t lane = 0, at = 0;

    g->a_at = cpu_carve(&lane, g->widen_a || g->copy_a ? (size_t)(rows * depth) * 4 : 0);
    g->c_at = cpu_carve(&lane, g->round_c || g->copy_c ? (size_t)(rows * s->n) * 4 : 0);
    g->scratch_at =
        cpu_carve(&lane, larger(g->main.scratch, larger(g->next.scratch, g->tail.scratch)));
    g->lane_bytes = lane;
    cpu_carve(&at, lane * (size_t)g->lanes);
    g->b_at = cpu_carve(&at, g->widen_b ? (size_t)(depth * s->n) * 4 : 0);
    g->workspace = at;
}

/* s: becomes the spec of the product with B packed. */
static int plan_packing(struct cpu_gemm *g, struct cpu_gemm_spec *s)
{
    bool forward = s->b_row == 1;
    int64_t n = forward ? s->n : s->k, k = forward ? s->k : s->n,
            stride = forward ? s->b_col : s->b_row;
    size_t bytes = 0;
    int rc = cpu_packing_prepare(&(struct cpu_packing_spec){.use = {forward, !forward},
                                                            .count = 1,
                                                            .n = &n,
                                                            .stride = &stride,
                                                            .k = k,
                                                            .from = s->b_type,
                                                            .dtype = s->a_type},
                                 &g->packing);

    s->b_use = forward ? CPU_FORWARD : CPU_BACKWARD;
    if (rc >= 0)
        rc = cpu_packed_bytes(s->b_use, n, k, s->a_type, &bytes);
    s->b_row = s->b_col = 0;
    s->b_for = s->a_type;
    s->b_type = cpu_packed_type(s->a_type);
    g->workspace = CPU_LINE_BYTES + bytes;
    return rc;
}

static int plan_own(struct cpu_gemm *g)
{
    struct cpu_gemm_spec s = g->spec;
    const struct cpu_unit *unit = cpu_unit(cpu_gemm_dtype(&s));
    int rc = cpu_product_packs(unit, &s) ? plan_packing(g, &s) : 0;

    g->way = OWN;
    if (rc < 0)
        return rc;
    cpu_product_plan(unit, &s, g->threads, &g->product);
    g->own_at = g->workspace;
    g->workspace += cpu_product_workspace(&g->product);
    return 0;
}

static int create(const struct cpu_gemm_spec *spec, struct cpu_gemm **out)
{
    struct cpu_gemm *g = calloc(1, sizeof(*g));
    int rc;

    if (!g)
        return ct_fail(CT_ENOMEM, "no memory for a matrix product");
    g->spec = *spec;
    g->threads = cpu_threads();
    if (spec->own) {
        rc = plan_own(g);
    } else {
        choose_way(g);
        rc = spec->m && spec->n && spec->k ? create_primitives(g) : 0;
    }
    if (rc < 0) {
        destroy_primitive(&g->main, g->lanes);
        destroy_primitive(&g->next, 1);
        destroy_primitive(&g->tail, g->lanes);
        free(g);
        return ct_context(rc, "product of [%lld, %lld] and [%lld, %lld]", (long long)spec->m,
                          (long long)spec->k, (long long)spec->k, (long long)spec->n);
    }
    if (!spec->own)
        plan_workspace(g);
    *out = g;
    return 0;
}

int cpu_gemm_prepare_as(const struct cpu_gemm_spec *spec, struct cpu_gemm **gemm)
{
    int rc;

    for (struct cpu_gemm *g = cache; g; g = g->next_in_cache)
        if (!memcmp(&g->spec, spec, sizeof(*spec)) && g->threads == cpu_threads()) {
            *gemm = g;
            return 0;
        }
    rc = create(spec, gemm);
    if (rc < 0)
        return rc;
    (*gemm)->next_in_cache = cache;
    cache = *gemm;
    return 0;
}

int cpu_gemm_prepare(const struct cpu_gemm_spec *spec, struct cpu_gemm **gemm)
{
    struct cpu_gemm_spec chosen = *spec;

    chosen.own = cpu_choose_own(spec);
    return cpu_gemm_prepare_as(&chosen, gemm);
}

size_t cpu_gemm_workspace(const struct cpu_gemm *gemm)
{
    return gemm->workspace;
}

/* ---- running ---- */

static void copy_rows(char *to, int64_t to_row, const char *from, int64_t from_row, int64_t rows,
                      int64_t columns, enum ct_dtype dtype)
{
    size_t size = ct_dtype_size(dtype);

    for (int64_t i = 0; i < rows; i++)
        memcpy(to + (size_t)(i * to_row) * size, from + (size_t)(i * from_row) * size,
               (size_t)columns * size);
}

/* Rows of A and C as the primitive takes them: in the room for them, or as they are. */
static const char *dense_a(const struct cpu_gemm *g, const char *a, char *room, int64_t rows)
{
    if (!g->copy_a)
        return a;
    copy_rows(room, g->spec.k, a, g->spec.a_row, rows, g->spec.k, g->spec.a_type);
    return room;
}

static char *dense_c(const struct cpu_gemm *g, char *c, char *room, int64_t rows)
{
    const struct cpu_gemm_spec *s = &g->spec;

    if (g->copy_c && s->accumulate)
        copy_rows(room, s->n, c, s->c_row, rows, s->n, s->c_type);
    return g->copy_c || g->round_c ? room : c;
}

static void finish_c(const struct cpu_gemm *g, char *c, const char *room, int64_t rows)
{
    if (g->copy_c)
        copy_rows(c, g->spec.c_row, room, g->spec.n, rows, g->spec.n, g->spec.c_type);
}

static void run_chunks(void *context, int thread, int threads)
{
    struct call *call = context;
    struct cpu_gemm *g = call->gemm;
    const struct cpu_gemm_spec *s = &g->spec;
    struct cpu_range mine = cpu_share(s->m, g->chunk, thread, threads);
    char *lane = call->workspace + g->lane_bytes * (size_t)thread;
    const char *b = g->widen_b ? call->workspace + g->b_at : call->b;

    for (int64_t row = mine.begin; row < mine.end; row += g->chunk) {
        int64_t rows = s->m - row < g->chunk ? s->m - row : g->chunk;
        const char *a = call->a + (size_t)(row * s->a_row) * ct_dtype_size(s->a_type);
        char *c = call->c + (size_t)(row * s->c_row) * ct_dtype_size(s->c_type);
        char *inner_c = dense_c(g, c, lane + g->c_at, rows);
        int rc;

        if (g->widen_a) {
            cpu_widen((float *)(lane + g->a_at), (const uint16_t *)a,
                      (struct ct_matrix){rows, s->k, s->a_row});
            a = lane + g->a_at;
        }
        a = dense_a(g, a, lane + g->a_at, rows);
        rc = run_primitive(rows == g->chunk ? &g->main : &g->tail, thread, a, b, inner_c,
                           lane + g->scratch_at);
        if (rc < 0)
            call->status = rc;
        if (g->round_c)
            cpu_round((uint16_t *)c, (const float *)inner_c,
                      (struct ct_matrix){rows, s->n, s->c_row}, s->accumulate);
        finish_c(g, c, inner_c, rows);
    }
}

static int run_whole(struct call *call)
{
    struct cpu_gemm *g = call->gemm;
    const struct cpu_gemm_spec *s = &g->spec;
    char *room_a = call->workspace + g->a_at,
         *c = dense_c(g, call->c, call->workspace + g->c_at, s->m);
    const char *a = dense_a(g, g->widen_a ? room_a : call->a, room_a, s->m);
    int rc;

    if (g->widen_a)
        cpu_widen_all((float *)room_a, (const uint16_t *)call->a, stored_a(s));
    rc = run_primitive(&g->main, 0, a, g->widen_b ? call->workspace + g->b_at : call->b, c,
                       call->workspace + g->scratch_at);
    if (rc >= 0 && g->round_c)
        cpu_round_all((uint16_t *)call->c, (const float *)c,
                      (struct ct_matrix){s->m, s->n, s->c_row}, s->accumulate);
    if (rc >= 0)
        finish_c(g, call->c, c, s->m);
    return rc;
}

/* Widen rows first .. first + count of an operand, in its stored order. */
static void widen_rows(char *to, const char *from, struct ct_matrix rows, int64_t first,
                       int64_t count)
{
    const uint16_t *at = (const uint16_t *)from + first * rows.stride;

    rows.rows = count;
    cpu_widen_all((float *)to, at, rows);
}

static int run_by_depth(struct call *call)
{
    struct cpu_gemm *g = call->gemm;
    const struct cpu_gemm_spec *s = &g->spec;
    char *a = call->workspace + g->a_at, *b = call->workspace + g->b_at;
    char *c = g->round_c ? call->workspace + g->c_at : call->c;
    int rc = 0;

    for (int64_t first = 0; rc >= 0 && first < s->k; first += g->chunk) {
        int64_t count = s->k - first < g->chunk ? s->k - first : g->chunk;
        struct primitive *p = first == 0 ? &g->main : count == g->chunk ? &g->next : &g->tail;

        widen_rows(a, call->a, stored_a(s), first, count);
        widen_rows(b, call->b, stored_b(s), first, count);
        rc = run_primitive(p, 0, a, b, c, call->workspace + g->scratch_at);
    }
    if (rc >= 0 && g->round_c)
        cpu_round_all((uint16_t *)call->c, (const float *)c,
                      (struct ct_matrix){s->m, s->n, s->c_row}, s->accumulate);
    return rc;
}

/* Set C to zero. */
static void clear(const struct call *call)
{
    const struct cpu_gemm_spec *s = &call->gemm->spec;
    size_t size = ct_dtype_size(s->c_type);

    for (int64_t row = 0; row < s->m && !s->accumulate; row++)
        memset(call->c + (size_t)(row * s->c_row) * size, 0, (size_t)s->n * size);
}

static int run_onednn(struct cpu_gemm *g, const void *a, const void *b, void *c, void *workspace)
{
    static char nothing; /* of a workspace of 0 bytes: NULL has no offsets, not even 0 */
    struct call call = {g, a, b, c, workspace ? workspace : &nothing, 0};

    if (!g->main.handle) {
        clear(&call);
        return 0;
    }
    if (g->way == BY_DEPTH)
        return run_by_depth(&call);
    if (g->widen_b)
        cpu_widen_all((float *)(call.workspace + g->b_at), (const uint16_t *)b, stored_b(&g->spec));
    if (g->way == WHOLE)
        return run_whole(&call);
    cpu_parallel(run_chunks, &call);
    return call.status < 0 ? ct_fail(call.status, "oneDNN failed on a chunk of rows") : 0;
}

int cpu_gemm_run(struct cpu_gemm *g, const void *a, const void *b, void *c, void *workspace)
{
    if (g->way != OWN)
        return run_onednn(g, a, b, c, workspace);
    if (g->packing) {
        char *packed = cpu_first_line(workspace);
        int rc = cpu_packing_run(g->packing, &b, (void *[CPU_USES]){packed, packed});

        if (rc < 0)
            return rc;
        b = packed;
    }
    cpu_product_run(&g->product, a, b, c, (char *)workspace + g->own_at);
    return 0;
}

/* ---- gradients of one x ---- */

/* False: not all are own, of one unit. */
static bool run_together(const struct cpu_gemm_operands *each, int count,
                         struct cpu_gradient *gradients)
{
    for (int i = 0; i < count; i++) {
        const struct cpu_gemm_operands *o = &each[i];

        if (o->gemm->way != OWN || o->gemm->product.unit != each->gemm->product.unit)
            return false;
        gradients[i] = (struct cpu_gradient){o->gemm->spec, o->a, o->c};
    }
    return count > 0;
}

size_t cpu_gemm_gradients_workspace(struct cpu_gemm *const *gemm, int count)
{
    struct cpu_gemm_operands each[CPU_MAX_WEIGHTS] = {0};
    struct cpu_gradient gradients[CPU_MAX_WEIGHTS];
    size_t bytes = 0;

    for (int i = 0; i < count; i++) {
        each[i].gemm = gemm[i];
        bytes = larger(bytes, gemm[i]->workspace);
    }
    if (run_together(each, count, gradients))
        bytes = larger(bytes, cpu_gradients_workspace(gemm[0]->product.unit, gemm[0]->threads,
                                                      gradients, count));
    return bytes;
}

int cpu_gemm_run_gradients(const struct cpu_gemm_operands *each, int count, const void *b,
                           void *workspace)
{
    struct cpu_gradient gradients[CPU_MAX_WEIGHTS];
    int rc = 0;

    if (run_together(each, count, gradients)) {
        cpu_gradients_run(each->gemm->product.unit, each->gemm->threads, gradients, count, b,
                          workspace);
        return 0;
    }
    for (int i = 0; rc >= 0 && i < count; i++)
        rc = cpu_gemm_run(each[i].gemm, each[i].a, b, each[i].c, workspace);
    return rc;
}
