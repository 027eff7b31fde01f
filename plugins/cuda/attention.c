/*
 * Attention by this plugin's own kernels, for any positions, documents and windows: in bfloat16 on
 * tensor cores, else plain ones, which take any strides with a last one of 1.
 */
#include <math.h>
#include <stdio.h>

#include "gpu.h"

#define TILE 32
#define THREADS 256
#define LARGEST_HEAD 256

static void strides(int64_t to[3], const struct ct_tensor *t)
{
    memcpy(to, t->stride, 3 * sizeof(*to));
}

static const void *optional(const struct ct_launch *l, int i)
{
    return ct_op_input(l->op, i) ? l->in[i].data : NULL;
}

static struct gpu_head head_of(const struct ct_tensor *t)
{
    return (struct gpu_head){(int32_t)t->shape[3], (int32_t)t->shape[3] + 1};
}

/* q is input `at`; documents and positions are the inputs from `more` on. */
static struct gpu_attention arguments(const struct ct_launch *l, int at, int more)
{
    const struct ct_tensor *q = &l->in[at], *k = q + 1, *v = q + 2;
    const struct ct_value *whole = l->op->in[at];
    double scale = ct_op_float(l->op, "scale");
    struct gpu_attention a = {.q = q->data,
                              .k = k->data,
                              .v = v->data,
                              .batch = q->shape[0],
                              .heads = (int32_t)q->shape[2],
                              .groups = (int32_t)k->shape[2],
                              .causal = ct_op_bool(l->op, "causal"),
                              .window = ct_op_int(l->op, "window"),
                              .softcap = (float)ct_op_float(l->op, "softcap"),
                              .alibi = (float)ct_op_float(l->op, "alibi"),
                              .first_head = (int32_t)ct_launch_offset(l, whole, 2),
                              .all_heads = (int32_t)whole->shape[2],
                              .scale = (float)(scale > 0 ? scale : 1 / sqrt((double)q->shape[3]))};

    a.key = head_of(q);
    a.value = head_of(v);
    strides(a.q_stride, q);
    strides(a.k_stride, k);
    strides(a.v_stride, v);
    a.queries = (struct gpu_side){optional(l, more), optional(l, more + 2),
                                  ct_launch_offset(l, l->op->in[at], 1), q->shape[1]};
    a.keys = (struct gpu_side){optional(l, more + 1), optional(l, more + 3),
                               ct_launch_offset(l, l->op->in[at + 1], 1), k->shape[1]};
    if (!a.keys.documents)
        a.keys.documents = a.queries.documents;
    return a;
}

/* All dimensions except the last may be strided; documents and positions are dense. */
static bool fits(const struct ct_prepare *p, int tensors, int outs, int more)
{
    for (int i = 0; i < tensors; i++)
        if (p->in[i].dtype != p->in[0].dtype || p->in[i].stride[3] != 1)
            return false;
    for (int i = 0; i < outs; i++)
        if (!ct_cuda_computes(p->out[i].dtype) || p->out[i].stride[3] != 1)
            return false;
    for (int i = more; i < p->ins; i++)
        if (p->present[i] && !ct_tensor_is_dense(&p->in[i]))
            return false;
    return ct_cuda_computes(p->in[0].dtype);
}

/* Scores that softcap or alibi changes are for the plain kernels. */
bool gpu_attention_changes(const struct ct_op *op)
{
    return ct_op_float(op, "softcap") > 0 || ct_op_float(op, "alibi") > 0;
}

/* With [cuda] attention = cudnn, bfloat16 is left to the other kernels. */
static bool suits(const struct ct_prepare *p, int tensors, int outs, int more)
{
    if (!fits(p, tensors, outs, more))
        return false;
    if (p->in[0].shape[3] > LARGEST_HEAD || p->in[2].shape[3] > LARGEST_HEAD)
        return gpu_refuse("heads are larger than %d", LARGEST_HEAD);
    if (p->in[0].dtype != CT_F32 && gpu_config.attention == GPU_CUDNN)
        return gpu_refuse("[cuda] attention = cudnn leaves bfloat16 to cuDNN");
    return true;
}

static unsigned tiles(int64_t tokens)
{
    return (unsigned)ct_cuda_blocks(tokens, TILE);
}

/* Tiles of q and k, and so many of values or their gradients and of scores. v is q[2]. */
static size_t shared_bytes(const struct ct_tensor *q, int values)
{
    int32_t rows = 2 * head_of(q).padded + values * (head_of(q + 2).padded + TILE);

    return (size_t)(TILE * rows) * sizeof(float);
}

static bool has_shared(const struct ct_prepare *p, size_t bytes)
{
    return bytes <= (size_t)gpu_of(p->device)->cuda.shared_memory;
}

static bool accepts_attention(const struct ct_prepare *p)
{
    return suits(p, 3, 1, 3) && has_shared(p, shared_bytes(&p->in[0], 1)) &&
           p->out[1].dtype == CT_F32 && ct_tensor_is_dense(&p->out[1]);
}

static struct gpu_attention forward_arguments(const struct ct_launch *l)
{
    struct gpu_attention a = arguments(l, 0, 3);

    a.o = l->out[0].data;
    strides(a.o_stride, &l->out[0]);
    a.out_kind[0] = ct_cuda_float_of(l->out[0].dtype);
    a.lse = l->out[1].data;
    return a;
}

static int prepare_attention(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "attention_*");
}

static int run_attention(const struct ct_launch *l)
{
    struct gpu_attention a = forward_arguments(l);

    return gpu_launch(
        l, 0, (struct ct_cuda_size){tiles(a.queries.tokens), (unsigned)a.heads, (unsigned)a.batch},
        (struct ct_cuda_size){THREADS, 1, 1}, shared_bytes(&l->in[0], 1), &a);
}

/* ---- the gradient ---- */

enum { DELTA, DQ, DKV }; /* functions */

static bool accepts_grad(const struct ct_prepare *p)
{
    return suits(p, 5, 3, 6) && has_shared(p, shared_bytes(&p->in[1], 2)) &&
           p->in[5].dtype == CT_F32 && ct_tensor_is_dense(&p->in[5]);
}

static size_t delta_bytes(const struct ct_prepare *p)
{
    return (size_t)ct_tensor_count(&p->in[5]) * sizeof(float);
}

static int prepare_grad(struct ct_prepare *p)
{
    p->workspace = delta_bytes(p);
    return gpu_prepare_as(p, p->in[1].dtype, "attention_delta_*", "attention_dq_*",
                          "attention_dkv_*");
}

static struct gpu_attention gradient_arguments(const struct ct_launch *l)
{
    struct gpu_attention a = arguments(l, 1, 6);

    a.d_o = l->in[0].data;
    strides(a.do_stride, &l->in[0]);
    a.o_in = l->in[4].data;
    strides(a.oin_stride, &l->in[4]);
    a.lse_in = l->in[5].data;
    a.delta = l->workspace;
    a.dq = l->out[0].data;
    a.dk = l->out[1].data;
    a.dv = l->out[2].data;
    strides(a.dq_stride, &l->out[0]);
    strides(a.dk_stride, &l->out[1]);
    strides(a.dv_stride, &l->out[2]);
    for (int i = 0; i < 3; i++)
        a.out_kind[i] = ct_cuda_float_of(l->out[i].dtype);
    return a;
}

/* Where nothing is expected to do, as empty blocks take time too. */
static int64_t few_blocks(const struct ct_launch *l)
{
    return 2 * gpu_of(l->device)->cuda.multiprocessors;
}

static int make_delta(const struct ct_launch *l, struct ct_cuda_function *f,
                      const struct gpu_attention *a)
{
    int64_t blocks = ct_cuda_blocks(ct_tensor_count(&l->in[5]), THREADS / 32);

    if (a->wanted && blocks > few_blocks(l))
        blocks = few_blocks(l);
    return ct_cuda_launch(l, f, (struct ct_cuda_size){(unsigned)blocks, 1, 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
}

static int run_grad(const struct ct_launch *l)
{
    struct gpu_attention a = gradient_arguments(l);
    struct ct_cuda_size block = {THREADS, 1, 1};
    size_t shared = shared_bytes(&l->in[1], 2);
    int rc = make_delta(l, ct_cuda_function(l, DELTA), &a);

    if (rc == 0)
        rc = gpu_launch(
            l, DQ,
            (struct ct_cuda_size){tiles(a.queries.tokens), (unsigned)a.heads, (unsigned)a.batch},
            block, shared, &a);
    if (rc == 0)
        rc = gpu_launch(
            l, DKV,
            (struct ct_cuda_size){tiles(a.keys.tokens), (unsigned)a.groups, (unsigned)a.batch},
            block, shared, &a);
    return rc;
}

/* ---- on tensor cores ---- */

#define VECTOR 8            /* elements that are moved at once */
#define ROOM ((size_t)4096) /* of shared memory, for what kernels declare themselves */

/* Head sizes that there are kernels for: columns of heads of q and k, and of v and o, in shared
   memory. */
static const struct columns {
    int key, value;
} columns[] = {{64, 64}, {128, 128}, {192, 128}};

/* v is q[2]; NULL: heads are too large. */
static const struct columns *columns_of(const struct ct_tensor *q)
{
    for (size_t i = 0; i < CT_COUNT(columns); i++)
        if (q->shape[3] <= columns[i].key && q[2].shape[3] <= columns[i].value)
            return &columns[i];
    return NULL;
}

/* Three tiles of q and k, and so many of v and o. */
static size_t tile_bytes(const struct columns *c, int values)
{
    return (size_t)(GPU_ATTENTION_ROWS * (3 * c->key + values * c->value)) * sizeof(uint16_t);
}

static bool in_vectors(const struct ct_tensor *t, int count)
{
    for (int i = 0; i < count; i++)
        for (int d = 0; d < 3; d++)
            if (t[i].stride[d] % VECTOR)
                return false;
    return true;
}

/* values: tiles in shared memory */
static bool suits_tensor(const struct ct_prepare *p, int tensors, int outs, int more, int values)
{
    const struct ct_tensor *q = &p->in[outs == 1 ? 0 : 1];
    const struct columns *c = columns_of(q);

    return gpu_config.attention != GPU_PLAIN && !gpu_attention_changes(p->op) &&
           fits(p, tensors, outs, more) && q->dtype == CT_BF16 && in_vectors(p->in, tensors) &&
           in_vectors(p->out, outs) && q->shape[3] % VECTOR == 0 && q[2].shape[3] % VECTOR == 0 &&
           c && has_shared(p, tile_bytes(c, values) + ROOM);
}

bool gpu_attention_accepts(const struct ct_prepare *p)
{
    return suits_tensor(p, 3, 1, 3, 2) && p->out[1].dtype == CT_F32 &&
           ct_tensor_is_dense(&p->out[1]);
}

static int find_tensor(const struct ct_prepare *p, const char *name, const struct ct_tensor *q,
                       struct ct_cuda_function **f)
{
    char full[64];

    snprintf(full, sizeof(full), "%s_%d", name, columns_of(q)->key);
    return gpu_find(p, f, full);
}

static int launch_tensor(const struct ct_launch *l, struct ct_cuda_function *f,
                         const struct ct_tensor *q, int64_t blocks, int32_t heads, int values,
                         const struct gpu_attention *a)
{
    struct ct_cuda_size grid = {(unsigned)blocks, (unsigned)heads, (unsigned)a->batch};

    return ct_cuda_launch(l, f, grid, (struct ct_cuda_size){GPU_ATTENTION_THREADS, 1, 1},
                          tile_bytes(columns_of(q), values), a);
}

static int64_t row_tiles(int64_t rows)
{
    return ct_cuda_blocks(rows, GPU_ATTENTION_ROWS);
}

/* Blocks for a head's tiles of queries, of which they may take several. */
static int64_t rest_blocks(const struct ct_launch *l, const struct gpu_attention *a)
{
    int64_t few = ct_cuda_blocks(few_blocks(l), a->heads * a->batch),
            all = row_tiles(a->queries.tokens);

    return few < all ? few : all;
}

int gpu_attention_find(const struct ct_prepare *p, bool rest, struct ct_cuda_function **f)
{
    return find_tensor(p, rest ? "attention_tensor_rest" : "attention_tensor", &p->in[0], f);
}

int gpu_attention_run(const struct ct_launch *l, struct ct_cuda_function *f, const int32_t *wanted)
{
    struct gpu_attention a = forward_arguments(l);

    a.wanted = wanted;
    return launch_tensor(l, f, &l->in[0], wanted ? rest_blocks(l, &a) : row_tiles(a.queries.tokens),
                         a.heads, 2, &a);
}

static int tensor_prepare(struct ct_prepare *p)
{
    p->state = ct_arena_array(p->arena, struct ct_cuda_function *, 1);
    return gpu_attention_find(p, false, p->state);
}

static int tensor_run(const struct ct_launch *l)
{
    return gpu_attention_run(l, ct_cuda_function(l, 0), NULL);
}

bool gpu_attention_grad_accepts(const struct ct_prepare *p)
{
    return suits_tensor(p, 5, 3, 6, 3) && p->in[5].dtype == CT_F32 && ct_tensor_is_dense(&p->in[5]);
}

int gpu_attention_grad_find(const struct ct_prepare *p, bool rest,
                            struct gpu_attention_grad_functions *f)
{
    const struct ct_tensor *q = &p->in[1];
    int rc = gpu_find_as(p, q->dtype, &f->delta, "attention_delta_*");

    if (rc == 0)
        rc = find_tensor(p, rest ? "attention_tensor_rest_dq" : "attention_tensor_dq", q, &f->dq);
    return rc < 0 ? rc : find_tensor(p, "attention_tensor_dkv", q, &f->dkv);
}

int gpu_attention_grad_run(const struct ct_launch *l, const struct gpu_attention_grad_functions *f,
                           float *delta, const int32_t *wanted)
{
    struct gpu_attention a = gradient_arguments(l);
    int rc;

    a.delta = delta;
    a.wanted = wanted;
    rc = make_delta(l, f->delta, &a);
    if (rc == 0)
        rc = launch_tensor(l, f->dq, &l->in[1],
                           wanted ? rest_blocks(l, &a) : row_tiles(a.queries.tokens), a.heads, 3,
                           &a);
    return rc < 0 ? rc
                  : launch_tensor(l, f->dkv, &l->in[1], row_tiles(a.keys.tokens), a.groups, 3, &a);
}

static int tensor_prepare_grad(struct ct_prepare *p)
{
    p->workspace = delta_bytes(p);
    p->state = ct_arena_new(p->arena, struct gpu_attention_grad_functions);
    return gpu_attention_grad_find(p, false, p->state);
}

static int tensor_run_grad(const struct ct_launch *l)
{
    return gpu_attention_grad_run(l, l->state, l->workspace, NULL);
}

/* ---- merging ---- */

static bool accepts_merge(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->in[2].dtype == p->in[0].dtype &&
           ct_cuda_computes(p->out[0].dtype) && p->in[1].dtype == CT_F32 &&
           p->in[3].dtype == CT_F32 && p->out[1].dtype == CT_F32;
}

static int prepare_merge(struct ct_prepare *p)
{
    return gpu_prepare(p, "attention_merge");
}

static int run_merge(const struct ct_launch *l)
{
    const struct ct_tensor *o = &l->in[0];
    struct gpu_attention_merge a = {.o = l->out[0].data,
                                    .lse = l->out[1].data,
                                    .a = o->data,
                                    .b = l->in[2].data,
                                    .a_lse = l->in[1].data,
                                    .b_lse = l->in[3].data,
                                    .batch = o->shape[0],
                                    .tokens = o->shape[1],
                                    .heads = o->shape[2],
                                    .size = o->shape[3],
                                    .a_kind = ct_cuda_float_of(o->dtype),
                                    .out_kind = ct_cuda_float_of(l->out[0].dtype)};

    return gpu_launch(
        l, 0,
        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.batch * a.tokens * a.heads, THREADS / 32),
                              1, 1},
        (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

/* ---- caches ---- */

static bool accepts_write(const struct ct_prepare *p)
{
    return p->in[0].stride[3] == 1 && p->in[1].stride[3] == 1 && ct_tensor_is_dense(&p->in[2]);
}

static int prepare_write(struct ct_prepare *p)
{
    return gpu_prepare(p, "cache_write");
}

static int run_write(const struct ct_launch *l)
{
    const struct ct_tensor *cache = &l->in[0], *x = &l->in[1];
    int64_t item = (int64_t)ct_dtype_size(x->dtype);
    struct gpu_cache_write a = {.cache = cache->data,
                                .x = x->data,
                                .positions = l->in[2].data,
                                .slots = cache->shape[1],
                                .tokens = x->shape[1],
                                .rows = x->shape[0] * x->shape[1] * x->shape[2],
                                .groups = (int32_t)x->shape[2],
                                .bytes = (int32_t)(x->shape[3] * item),
                                .fault = ct_cuda_of(l->device)->fault};

    for (int i = 0; i < 3; i++) {
        a.cache_stride[i] = cache->stride[i] * item;
        a.stride[i] = x->stride[i] * item;
    }
    return gpu_launch(l, 0,
                      (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.rows, THREADS / 32), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_attention_kernels[] = {
    CT_KERNEL("attention", "tensor", CT_KERNEL_STRIDED, gpu_attention_accepts, tensor_prepare,
              tensor_run),
    CT_KERNEL("attention_grad", "tensor", CT_KERNEL_STRIDED, gpu_attention_grad_accepts,
              tensor_prepare_grad, tensor_run_grad),
    CT_KERNEL("attention", "plain", CT_KERNEL_STRIDED, accepts_attention, prepare_attention,
              run_attention),
    CT_KERNEL("attention_grad", "plain", CT_KERNEL_STRIDED, accepts_grad, prepare_grad, run_grad),
    CT_KERNEL("attention_merge", "plain", 0, accepts_merge, prepare_merge, run_merge),
    CT_KERNEL("cache_write", "rows", CT_KERNEL_STRIDED, accepts_write, prepare_write, run_write),
    {0}};
