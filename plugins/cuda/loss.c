/*
 * Cross entropy on logits, and joined with the linear layer in front: then logits are computed in
 * chunks of tokens, in float32 (or bfloat16, if configured). A chunk is overwritten by its gradient
 * in the dtype of x, and multiplied.
 */
#include "blas.h"

#define THREADS 1024
#define SHARED_BESIDE 4096 /* bytes that blocks take beside their part of a row */

static int64_t rows_of(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim - 1, t->shape);
}

static int64_t columns_of(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

static unsigned threads_for(int64_t columns)
{
    int64_t warps = ct_cuda_blocks(columns, 32);

    return (unsigned)(warps < THREADS / 32 ? warps * 32 : THREADS);
}

/* How a row is read once: vectors of it that shared memory keeps, and blocks of a multiprocessor,
   two where the rest of all their rows fits into most of the L2 cache. */
struct residence {
    int32_t kept;
    unsigned threads;
    size_t shared;
};

static struct residence choose_residence(const struct gpu *gpu, int64_t row_bytes)
{
    struct residence r = {0};
    int64_t at_most = (gpu->cuda.shared_memory - SHARED_BESIDE) / 16;

    for (int blocks = 2; blocks >= 1; blocks--) {
        int64_t kept = at_most / blocks < row_bytes / 16 ? at_most / blocks : row_bytes / 16;
        int64_t rest = (row_bytes - 16 * kept) * blocks * gpu->cuda.multiprocessors;

        r = (struct residence){(int32_t)kept, THREADS / (unsigned)blocks, (size_t)kept * 16};
        if (4 * rest <= 3 * gpu->cuda.cache)
            break;
    }
    return r;
}

static int find_rows(const struct ct_prepare *p, enum ct_dtype from, enum ct_dtype to,
                     struct gpu_widths *found)
{
    return gpu_find_conversion(p, "loss_rows", from, to, found);
}

/* from: dtype of the logits */
static int launch_rows(const struct ct_launch *l, const struct gpu_widths *by, enum ct_dtype from,
                       const struct gpu_loss_rows *arguments)
{
    struct gpu_loss_rows a = *arguments;
    bool vector = a.columns % ct_cuda_lanes(from) == 0 && a.stride % ct_cuda_lanes(from) == 0 &&
                  (uintptr_t)a.logits % 16 == 0 && (uintptr_t)a.dlogits % 16 == 0;
    struct residence r = {0, THREADS, 0};
    unsigned threads = threads_for(a.columns);

    if (vector && a.dlogits && !a.given_lse)
        r = choose_residence(gpu_of(l->device), a.columns * (int64_t)ct_dtype_size(from));
    a.kept = r.kept;
    return ct_cuda_launch(l, by->f[vector], (struct ct_cuda_size){(unsigned)a.rows, 1, 1},
                          (struct ct_cuda_size){threads < r.threads ? threads : r.threads, 1, 1},
                          r.shared, &a);
}

int gpu_sum_losses(const struct ct_launch *l, struct ct_cuda_function *f,
                   const struct ct_tensor *loss, const float *losses, int64_t count,
                   bool accumulate)
{
    struct gpu_loss_sum a = {loss->data, losses, count, ct_cuda_float_of(loss->dtype), accumulate};

    return ct_cuda_launch(l, f, (struct ct_cuda_size){1, 1, 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static bool is_scalar_float(const struct ct_tensor *t)
{
    return ct_cuda_computes(t->dtype) || t->dtype == CT_F64;
}

/* ---- on logits ---- */

static bool accepts_loss(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && is_scalar_float(&p->out[0]) &&
           p->out[1].dtype == CT_F32;
}

struct functions {
    struct gpu_widths rows, cast_in, cast_out; /* casts: of dw to its sum and back */
    struct ct_cuda_function *sum;
};

static int prepare_loss(struct ct_prepare *p)
{
    struct functions *f = ct_arena_new(p->arena, struct functions);
    int rc = find_rows(p, p->in[0].dtype, p->in[0].dtype, &f->rows);

    p->workspace = (size_t)rows_of(&p->in[0]) * sizeof(float);
    p->state = f;
    return rc < 0 ? rc : gpu_find(p, &f->sum, GPU_SUM_LOSSES);
}

static int run_loss(const struct ct_launch *l)
{
    const struct functions *f = l->state;
    const struct ct_tensor *logits = &l->in[0];
    struct gpu_loss_rows a = {.logits = logits->data,
                              .lse = l->out[1].data,
                              .loss = l->workspace,
                              .labels = l->in[1].data,
                              .rows = rows_of(logits),
                              .columns = columns_of(logits),
                              .stride = columns_of(logits),
                              .fault = ct_cuda_of(l->device)->fault};
    int rc = launch_rows(l, &f->rows, logits->dtype, &a);

    return rc < 0 ? rc : gpu_sum_losses(l, f->sum, &l->out[0], a.loss, a.rows, false);
}

static bool accepts_grad(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[1].dtype) && p->out[0].dtype == p->in[1].dtype &&
           is_scalar_float(&p->in[0]) && p->in[3].dtype == CT_F32;
}

static int prepare_grad(struct ct_prepare *p)
{
    p->state = ct_arena_new(p->arena, struct gpu_widths);
    return find_rows(p, p->in[1].dtype, p->in[1].dtype, p->state);
}

static int run_grad(const struct ct_launch *l)
{
    const struct ct_tensor *logits = &l->in[1];

    return launch_rows(l, l->state, logits->dtype,
                       &(struct gpu_loss_rows){.logits = logits->data,
                                               .dlogits = l->out[0].data,
                                               .given_lse = l->in[3].data,
                                               .labels = l->in[2].data,
                                               .dloss = l->in[0].data,
                                               .dloss_kind = ct_cuda_float_of(l->in[0].dtype),
                                               .rows = rows_of(logits),
                                               .columns = columns_of(logits),
                                               .stride = columns_of(logits),
                                               .fault = ct_cuda_of(l->device)->fault});
}

/* ---- with the linear layer in front ---- */

struct head {
    const struct ct_tensor *dloss, *x, *w, *labels, *dx, *dw, *loss;
    /* d..: NULL without backward; dw: if nothing needs it */
};

static struct head head_of(const struct ct_tensor *in, const struct ct_tensor *out, int outs)
{
    if (outs == 1)
        return (struct head){.x = in, .w = in + 1, .labels = in + 2, .loss = out};
    return (struct head){
        in, in + 1, in + 2, in + 3, out, outs > 2 ? out + 1 : NULL, out + outs - 1};
}

/* Layout of a call's workspace. */
struct layout {
    enum ct_dtype dtype;   /* of logits */
    int64_t chunk, stride; /* tokens at once; between rows of logits: whole vectors */
    size_t logits, dlogits, losses, dw;
};

static struct layout lay_out(const struct head *h, size_t *bytes)
{
    bool narrow = h->x->dtype == CT_BF16 && gpu_config.logits == GPU_LOGITS_BF16;
    struct layout at = {.dtype = narrow ? CT_BF16 : CT_F32, .stride = (h->w->shape[0] + 7) / 8 * 8};
    int64_t tokens = rows_of(h->x), item = (int64_t)ct_dtype_size(at.dtype);

    at.chunk = (gpu_config.logits_memory << 20) / (at.stride * item) / 128 * 128;
    at.chunk = at.chunk < 128 ? 128 : at.chunk;
    at.chunk = at.chunk < tokens ? at.chunk : tokens;
    *bytes = GPU_BLAS_WORKSPACE;
    at.logits = ct_cuda_carve(bytes, (size_t)(at.chunk * at.stride * item));
    at.dlogits = at.logits;
    if (h->dx && h->x->dtype != at.dtype)
        at.dlogits = ct_cuda_carve(bytes, (size_t)(at.chunk * at.stride) * sizeof(uint16_t));
    at.losses = ct_cuda_carve(bytes, (size_t)tokens * sizeof(float));
    if (h->dw && h->dw->dtype == CT_BF16)
        at.dw = ct_cuda_carve(bytes, (size_t)ct_tensor_count(h->dw) * sizeof(float));
    return at;
}

static bool accepts_head(const struct ct_prepare *p)
{
    struct head h = head_of(p->in, p->out, p->outs);
    struct ct_matrix rows;

    return ct_cuda_computes(h.x->dtype) && h.w->dtype == h.x->dtype && is_scalar_float(h.loss) &&
           ct_tensor_as_matrix(h.x, &rows) && ct_tensor_as_matrix(h.w, &rows) &&
           ct_tensor_is_dense(h.labels) &&
           (!h.dx || (is_scalar_float(h.dloss) && h.dx->dtype == h.x->dtype &&
                      ct_tensor_as_matrix(h.dx, &rows))) &&
           (!h.dw || (ct_cuda_computes(h.dw->dtype) && ct_tensor_is_dense(h.dw)));
}

/* Logits are read once, and in the backward overwritten; each chunk but the first adds to dw. */
static double traffic_of(const struct head *h, const struct layout *at)
{
    int64_t tokens = rows_of(h->x), chunks = ct_cuda_blocks(tokens, at->chunk);
    double logits = (double)(tokens * at->stride) * (double)ct_dtype_size(at->dtype);
    double dw = h->dw ? (double)ct_tensor_count(h->dw) * sizeof(float) : 0;

    return (h->dx ? 2 : 1) * logits + 2 * (double)(chunks - 1) * dw;
}

static int find_functions(const struct ct_prepare *p, const struct head *h, const struct layout *at,
                          struct functions *f)
{
    int rc = find_rows(p, at->dtype, h->dx ? h->x->dtype : at->dtype, &f->rows);

    if (rc == 0)
        rc = gpu_find(p, &f->sum, GPU_SUM_LOSSES);
    if (rc == 0)
        rc = gpu_find_cast(p, CT_BF16, CT_F32, &f->cast_in);
    return rc < 0 ? rc : gpu_find_cast(p, CT_F32, CT_BF16, &f->cast_out);
}

static int prepare_head(struct ct_prepare *p)
{
    struct head h = head_of(p->in, p->out, p->outs);
    struct layout at = lay_out(&h, &p->workspace);

    p->traffic = traffic_of(&h, &at);
    p->state = ct_arena_new(p->arena, struct functions);
    return find_functions(p, &h, &at, p->state);
}

struct call {
    const struct ct_launch *l;
    const struct functions *f;
    struct head h;
    struct layout at;
    struct ct_matrix x, w, dx;
    struct ct_tensor dw; /* where it is summed up */
    uint32_t accumulate; /* bits for dx, dw, loss */
};

static void *row(const struct ct_tensor *t, const struct ct_matrix *rows, int64_t first)
{
    return (char *)t->data + (size_t)(first * rows->stride) * ct_dtype_size(t->dtype);
}

static int make_logits(const struct call *c, int64_t first, int64_t count, void *logits)
{
    return gpu_multiply(c->l,
                        &(struct gpu_product){.m = count,
                                              .n = c->w.rows,
                                              .k = c->x.columns,
                                              .a = row(c->h.x, &c->x, first),
                                              .b = c->h.w->data,
                                              .c = logits,
                                              .a_stride = c->x.stride,
                                              .b_stride = c->w.stride,
                                              .c_stride = c->at.stride,
                                              .a_dtype = c->h.x->dtype,
                                              .b_dtype = c->h.w->dtype,
                                              .c_dtype = c->at.dtype},
                        c->l->workspace);
}

static int chunk_gradients(const struct call *c, int64_t first, int64_t count, const void *dlogits)
{
    int rc = gpu_multiply(c->l,
                          &(struct gpu_product){.m = count,
                                                .n = c->x.columns,
                                                .k = c->w.rows,
                                                .a = dlogits,
                                                .b = c->h.w->data,
                                                .c = row(c->h.dx, &c->dx, first),
                                                .a_stride = c->at.stride,
                                                .b_stride = c->w.stride,
                                                .c_stride = c->dx.stride,
                                                .b_by_k = true,
                                                .a_dtype = c->h.x->dtype,
                                                .b_dtype = c->h.w->dtype,
                                                .c_dtype = c->h.dx->dtype,
                                                .accumulate = c->accumulate & 1},
                          c->l->workspace);

    if (rc < 0 || !c->h.dw)
        return rc;
    return gpu_multiply(c->l,
                        &(struct gpu_product){.m = c->w.rows,
                                              .n = c->x.columns,
                                              .k = count,
                                              .a = dlogits,
                                              .b = row(c->h.x, &c->x, first),
                                              .c = c->dw.data,
                                              .a_stride = c->at.stride,
                                              .b_stride = c->x.stride,
                                              .c_stride = c->x.columns,
                                              .a_by_k = true,
                                              .b_by_k = true,
                                              .a_dtype = c->h.x->dtype,
                                              .b_dtype = c->h.x->dtype,
                                              .c_dtype = c->dw.dtype,
                                              .accumulate = first > 0 || (c->accumulate & 2)},
                        c->l->workspace);
}

static int run_chunk(const struct call *c, int64_t first, int64_t count)
{
    char *workspace = c->l->workspace;
    void *logits = workspace + c->at.logits, *dlogits = workspace + c->at.dlogits;
    struct gpu_loss_rows a = {.logits = logits,
                              .loss = (float *)(workspace + c->at.losses) + first,
                              .labels = (const int32_t *)c->h.labels->data + first,
                              .rows = count,
                              .columns = c->w.rows,
                              .stride = c->at.stride,
                              .first_position = first,
                              .fault = ct_cuda_of(c->l->device)->fault};
    int rc = make_logits(c, first, count, logits);

    if (c->h.dx) {
        a.dlogits = dlogits;
        a.dloss = c->h.dloss->data;
        a.dloss_kind = ct_cuda_float_of(c->h.dloss->dtype);
    }
    if (rc == 0)
        rc = launch_rows(c->l, &c->f->rows, c->at.dtype, &a);
    if (rc == 0 && c->h.dx)
        rc = chunk_gradients(c, first, count, dlogits);
    return rc;
}

/* A bfloat16 dw is summed up in float32, and rounded once. */
static int run_head(const struct ct_launch *l)
{
    struct call c = {.l = l, .f = l->state, .h = head_of(l->in, l->out, l->outs)};
    size_t bytes;
    int64_t tokens;
    bool narrow = c.h.dw && c.h.dw->dtype == CT_BF16;
    int rc = 0;

    c.at = lay_out(&c.h, &bytes);
    c.accumulate = (l->accumulate & (c.h.dw ? 3 : !!c.h.dx)) | (l->accumulate >> (l->outs - 1))
                                                                   << 2;
    ct_tensor_as_matrix(c.h.x, &c.x);
    ct_tensor_as_matrix(c.h.w, &c.w);
    tokens = rows_of(c.h.x);
    if (c.h.dx)
        ct_tensor_as_matrix(c.h.dx, &c.dx);
    if (c.h.dw)
        c.dw = narrow ? ct_tensor_dense((char *)l->workspace + c.at.dw, CT_F32, 2, c.h.dw->shape)
                      : *c.h.dw;
    if (narrow && c.accumulate & 2)
        rc = gpu_cast(l, &c.f->cast_in, c.h.dw, &c.dw);
    for (int64_t first = 0; rc == 0 && first < tokens; first += c.at.chunk)
        rc = run_chunk(&c, first, tokens - first < c.at.chunk ? tokens - first : c.at.chunk);
    if (rc == 0 && narrow)
        rc = gpu_cast(l, &c.f->cast_out, &c.dw, c.h.dw);
    if (rc == 0)
        rc = gpu_sum_losses(l, c.f->sum, c.h.loss,
                            (const float *)((char *)l->workspace + c.at.losses), tokens,
                            c.accumulate >> 2 & 1);
    return rc;
}

#define FLAGS (CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED)

const struct ct_kernel gpu_loss_kernels[] = {
    CT_KERNEL("cross_entropy", "rows", 0, accepts_loss, prepare_loss, run_loss),
    CT_KERNEL("cross_entropy_grad", "rows", 0, accepts_grad, prepare_grad, run_grad),
    CT_KERNEL("linear_cross_entropy", "cublaslt", FLAGS, accepts_head, prepare_head, run_head),
    CT_KERNEL("linear_cross_entropy_grad", "cublaslt", FLAGS, accepts_head, prepare_head, run_head),
    CT_KERNEL("linear_cross_entropy_dx", "cublaslt", FLAGS, accepts_head, prepare_head, run_head),
    {0}};
