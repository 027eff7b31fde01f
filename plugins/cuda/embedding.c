/*
 * embedding and its gradient, on dense tensors.
 */
#include <stdio.h>

#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256

static bool starts_at_vectors(const struct ct_tensor *t)
{
    return (uintptr_t)t->data % (GPU_EMBEDDING_VECTOR * ct_dtype_size(t->dtype)) == 0;
}

/* A block for each of `blocks` rows, from one dtype to the other. */
static int launch(const struct ct_launch *l, const char *what, const struct ct_tensor *from,
                  const struct ct_tensor *to, int64_t blocks, const void *arguments)
{
    int64_t columns = to->shape[to->ndim - 1];
    bool vector =
        columns % GPU_EMBEDDING_VECTOR == 0 && starts_at_vectors(from) && starts_at_vectors(to);
    char name[80];

    snprintf(name, sizeof(name), "%s_%s_to_%s%s", what, ct_dtype_name(from->dtype),
             ct_dtype_name(to->dtype), vector ? "_vector" : "");
    return gpu_launch(l, name, (struct ct_cuda_size){(unsigned)blocks, 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, arguments);
}

static bool accepts_embedding(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[1].dtype) && ct_cuda_computes(p->out[0].dtype);
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

    return launch(l, "embedding", &l->in[1], &l->out[0], a.count, &a);
}

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
    lay_out(&p->out[0], ct_tensor_count(&p->in[1]), NULL, &p->workspace);
    return 0;
}

/* The positions of each row's token, in order. */
static int sort_positions(const struct ct_launch *l, const struct gpu_embedding_grad *a)
{
    struct ct_cuda_size block = {THREADS, 1, 1};
    struct ct_cuda_size rows = {(unsigned)ct_cuda_blocks(a->rows, THREADS), 1, 1};
    struct ct_cuda_size positions = {(unsigned)ct_cuda_blocks(a->count, THREADS), 1, 1};
    struct ct_cuda_size spans = {(unsigned)spans_of(a->rows), 1, 1};
    struct ct_cuda_size span = {GPU_EMBEDDING_SPAN, 1, 1};
    int rc = gpu_launch(l, "embedding_clear", rows, block, 0, a);

    if (rc == 0)
        rc = gpu_launch(l, "embedding_rank", positions, block, 0, a);
    if (rc == 0)
        rc = gpu_launch(l, "embedding_totals", spans, span, 0, a);
    if (rc == 0)
        rc = gpu_launch(l, "embedding_scan", spans, span, 0, a);
    return rc < 0 ? rc : gpu_launch(l, "embedding_sort", positions, block, 0, a);
}

static int run_grad(const struct ct_launch *l)
{
    const struct ct_embedding_grad *attrs = l->op->attrs;
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
        rc = gpu_launch_as(l, "embedding_chunks", dy->dtype, vector,
                           (struct ct_cuda_size){(unsigned)chunks_of(a.count), 1, 1},
                           (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
    return rc < 0 ? rc : launch(l, "embedding_grad", dy, &l->out[0], a.rows, &a);
}

const struct ct_kernel gpu_embedding_kernels[] = {
    CT_KERNEL("embedding", "rows", 0, accepts_embedding, NULL, run_embedding),
    CT_KERNEL("embedding_grad", "rows", CT_KERNEL_ACCUMULATES, accepts_grad, prepare_grad,
              run_grad),
    {0}};
