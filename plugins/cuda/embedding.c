/*
 * embedding and its gradient, on dense tensors.
 */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256

static bool starts_at_vectors(const struct ct_tensor *t)
{
    return (uintptr_t)t->data % (GPU_EMBEDDING_VECTOR * ct_dtype_size(t->dtype)) == 0;
}

/* A block for each of `blocks` rows, from one dtype to the other. */
static int launch(const struct ct_launch *l, const struct gpu_widths *by,
                  const struct ct_tensor *from, const struct ct_tensor *to, int64_t blocks,
                  const void *arguments)
{
    int64_t columns = to->shape[to->ndim - 1];
    bool vector =
        columns % GPU_EMBEDDING_VECTOR == 0 && starts_at_vectors(from) && starts_at_vectors(to);

    return ct_cuda_launch(l, by->f[vector], (struct ct_cuda_size){(unsigned)blocks, 1, 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, arguments);
}

static bool accepts_embedding(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[1].dtype) && ct_cuda_computes(p->out[0].dtype);
}

static int prepare_embedding(struct ct_prepare *p)
{
    p->state = ct_arena_new(p->arena, struct gpu_widths);
    return gpu_find_conversion(p, "embedding", p->in[1].dtype, p->out[0].dtype, p->state);
}

static int run_embedding(const struct ct_launch *l)
{
    const struct ct_value *table = l->op->in[1];
    struct gpu_embedding a = {.y = l->out[0].data,
                              .table = l->in[1].data,
                              .tokens = l->in[0].data,
                              .count = ct_tensor_count(&l->in[0]),
                              .columns = l->in[1].shape[1],
                              .rows = l->in[1].shape[0],
                              .first = ct_launch_offset(l, table, 0),
                              .limit = table->shape[0],
                              .fault = ct_cuda_of(l->device)->fault};

    return launch(l, l->state, &l->in[1], &l->out[0], a.count, &a);
}

/* ---- the gradient ---- */

enum { CLEAR, RANK, TOTALS, SCAN, SORT, SORTING };

struct functions {
    struct ct_cuda_function *sorting[SORTING];
    struct gpu_widths chunks, grad;
};

static bool accepts_grad(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && ct_cuda_computes(p->out[0].dtype) &&
           ct_tensor_count(&p->in[1]) < INT32_MAX;
}

/* Chunks of frequent tokens, at most. */
static int64_t chunks_of(int64_t count)
{
    return count / (GPU_EMBEDDING_CHUNK / 2);
}

/* One more row than the table has begins where the last one ends. */
static int64_t spans_of(int64_t rows)
{
    return ct_cuda_blocks(rows + 1, GPU_EMBEDDING_SPAN);
}

static struct gpu_embedding_grad lay_out(const struct ct_tensor *dtable, int64_t count,
                                         char *workspace, size_t *bytes)
{
    struct gpu_embedding_grad a = {
        .count = count, .columns = dtable->shape[1], .rows = dtable->shape[0]};
    int32_t **by_row[] = {&a.counts, &a.begin, &a.chunk}, **by_position[] = {&a.rank, &a.sorted};

    *bytes = 0;
    for (size_t i = 0; i < CT_COUNT(by_row); i++)
        *by_row[i] =
            (void *)(workspace + ct_cuda_carve(bytes, (size_t)(a.rows + 1) * sizeof(int32_t)));
    a.totals = (void *)(workspace +
                        ct_cuda_carve(bytes, (size_t)(2 * spans_of(a.rows)) * sizeof(int32_t)));
    for (size_t i = 0; i < CT_COUNT(by_position); i++)
        *by_position[i] =
            (void *)(workspace + ct_cuda_carve(bytes, (size_t)count * sizeof(int32_t)));
    a.partial = (void *)(workspace + ct_cuda_carve(bytes, (size_t)(chunks_of(count) * a.columns) *
                                                              sizeof(float)));
    return a;
}

static int prepare_grad(struct ct_prepare *p)
{
    struct functions *f = ct_arena_new(p->arena, struct functions);
    enum ct_dtype dtype = p->in[0].dtype;
    int rc = gpu_find(p, f->sorting, "embedding_clear", "embedding_rank", "embedding_totals",
                      "embedding_scan", "embedding_sort");

    if (rc == 0)
        rc = gpu_find_as(p, dtype, f->chunks.f, "embedding_chunks_*", "embedding_chunks_*_vector");
    if (rc == 0)
        rc = gpu_find_conversion(p, "embedding_grad", dtype, p->out[0].dtype, &f->grad);
    lay_out(&p->out[0], ct_tensor_count(&p->in[1]), NULL, &p->workspace);
    p->state = f;
    return rc;
}

/* The positions of each row's token, in order. */
static int sort_positions(const struct ct_launch *l, const struct gpu_embedding_grad *a)
{
    struct ct_cuda_function *const *f = ((const struct functions *)l->state)->sorting;
    struct ct_cuda_size block = {THREADS, 1, 1};
    struct ct_cuda_size rows = {(unsigned)ct_cuda_blocks(a->rows, THREADS), 1, 1};
    struct ct_cuda_size positions = {(unsigned)ct_cuda_blocks(a->count, THREADS), 1, 1};
    struct ct_cuda_size spans = {(unsigned)spans_of(a->rows), 1, 1};
    struct ct_cuda_size span = {GPU_EMBEDDING_SPAN, 1, 1};
    int rc = ct_cuda_launch(l, f[CLEAR], rows, block, 0, a);

    if (rc == 0)
        rc = ct_cuda_launch(l, f[RANK], positions, block, 0, a);
    if (rc == 0)
        rc = ct_cuda_launch(l, f[TOTALS], spans, span, 0, a);
    if (rc == 0)
        rc = ct_cuda_launch(l, f[SCAN], spans, span, 0, a);
    return rc < 0 ? rc : ct_cuda_launch(l, f[SORT], positions, block, 0, a);
}

static int run_grad(const struct ct_launch *l)
{
    const struct ct_embedding_grad *attrs = l->op->attrs;
    const struct functions *f = l->state;
    const struct ct_value *table = l->op->out[0];
    const struct ct_tensor *dy = &l->in[0];
    size_t bytes;
    struct gpu_embedding_grad a =
        lay_out(&l->out[0], ct_tensor_count(&l->in[1]), l->workspace, &bytes);
    bool vector = a.columns % GPU_EMBEDDING_VECTOR == 0 && starts_at_vectors(dy);
    int rc;

    a.dtable = l->out[0].data;
    a.dy = dy->data;
    a.tokens = l->in[1].data;
    a.first = ct_launch_offset(l, table, 0);
    a.limit = table->shape[0];
    a.padding = (int32_t)attrs->padding;
    a.accumulate = l->accumulate & 1;
    a.fault = ct_cuda_of(l->device)->fault;
    rc = sort_positions(l, &a);
    if (rc == 0)
        rc = ct_cuda_launch(l, f->chunks.f[vector],
                            (struct ct_cuda_size){(unsigned)chunks_of(a.count), 1, 1},
                            (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
    return rc < 0 ? rc : launch(l, &f->grad, dy, &l->out[0], a.rows, &a);
}

const struct ct_kernel gpu_embedding_kernels[] = {
    CT_KERNEL("embedding", "rows", 0, accepts_embedding, prepare_embedding, run_embedding),
    CT_KERNEL("embedding_grad", "rows", CT_KERNEL_ACCUMULATES, accepts_grad, prepare_grad,
              run_grad),
    {0}};
