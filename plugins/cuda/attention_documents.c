/*
 * Causal attention within documents, by cuDNN: the documents of all rows of a batch are packed
 * sequences. A kernel finds where they begin, so that the host need not know.
 *
 * A plan has room for documents of TOKENS_OF_DOCUMENT tokens on average, and FEWEST more in each
 * row: every possible block of a sequence is launched, so room costs time. If there are more
 * documents, or ids come again in a row, the sequences are left empty and the kernels on tensor
 * cores (attention.c) do the work instead. They are always launched, and end at once where they are
 * not wanted.
 *
 * Ampere's kernels are not for this: their workspace has float32 sums of the longest sequence for
 * each one.
 */
#include <ctitan/lib/ops.h>

#include "sdpa_plans.h"

#define TOKENS_OF_DOCUMENT 256
#define FEWEST 4
#define HOPPER 9
#define BLACKWELL 10
#define HEAD_LANES 16 /* of others, NVIDIA's front end says that packed sums are faulty */
#define ROUND 32      /* begins of a tensor are at multiples of 256 bytes */

/* ---- shapes ---- */

static bool has(const struct ct_prepare *p, int i)
{
    return i < p->ins && p->present[i];
}

static int64_t most_sequences(const struct ct_tensor *q)
{
    int64_t most = FEWEST + q->shape[1] / TOKENS_OF_DOCUMENT;

    return q->shape[0] * (most < q->shape[1] ? most : q->shape[1]);
}

/* The strides of bfloat16 rows that follow each other; false: they do not. */
static bool take_packed(int64_t to[3], const struct ct_tensor *t)
{
    if (t->dtype != CT_BF16 || !sdpa_take_strides(to, t))
        return false;
    to[0] = t->shape[1] * t->stride[1];
    return t->shape[0] == 1 || t->stride[0] == to[0];
}

/* Are the documents those of queries and keys, which are the same tokens in order? */
static bool is_masked(const struct ct_prepare *p, int at, int more)
{
    struct ct_seen_block block;

    return has(p, more) && !has(p, more + 1) && ct_tensor_is_dense(&p->in[more]) &&
           ct_attention_seen(p, at, more + 2, &block) == CT_SEEN_CAUSAL;
}

/* q is input `at`; documents are input `more`. */
static bool shape_of(const struct ct_prepare *p, int at, int more, struct sdpa_shape *s)
{
    const struct ct_tensor *q = &p->in[at], *k = q + 1, *v = q + 2;
    const struct gpu *gpu = gpu_of(p->device);
    int generation = gpu->cuda.capability / 10;

    memset(s, 0, sizeof(*s)); /* padding too: shapes are compared whole */
    s->batch = most_sequences(q);
    s->queries = s->keys = s->rows = q->shape[1];
    s->heads = q->shape[2];
    s->groups = k->shape[2];
    s->size = q->shape[3];
    s->of_v = v->shape[3];
    s->window = ct_op_int(p->op, "window");
    if (s->window >= s->keys)
        s->window = 0; /* wider than the sequence */
    s->causal = s->packed = true;
    return (generation == HOPPER || generation == BLACKWELL) && is_masked(p, at, more) &&
           q->shape[0] * q->shape[1] <= INT32_MAX && s->size % HEAD_LANES == 0 &&
           s->of_v % HEAD_LANES == 0 && sdpa_has_heads(gpu, s) && take_packed(s->q, q) &&
           take_packed(s->k, k) && take_packed(s->v, v);
}

static bool forward_shape(const struct ct_prepare *p, struct sdpa_shape *s)
{
    return shape_of(p, 0, 3, s) && take_packed(s->o, &p->out[0]) && gpu_attention_accepts(p);
}

static bool backward_shape(const struct ct_prepare *p, struct sdpa_shape *s)
{
    int64_t *to[3] = {s->dq, s->dk, s->dv};

    if (!shape_of(p, 1, 6, s) || !take_packed(s->d_o, &p->in[0]) || !take_packed(s->o, &p->in[4]))
        return false;
    s->backward = true;
    for (int i = 0; i < 3; i++)
        if (!take_packed(to[i], &p->out[i]) || !ct_tensor_is_dense(&p->out[i]))
            return false; /* float32 sums have the same strides */
    return gpu_attention_grad_accepts(p);
}

static bool has_plan(const struct ct_prepare *p, const struct sdpa_shape *s)
{
    return sdpa_is_offered(gpu_of(p->device)) && sdpa_find_plan(gpu_of(p->device), s);
}

static bool accepts_attention_documents(const struct ct_prepare *p)
{
    struct sdpa_shape s;

    return forward_shape(p, &s) && has_plan(p, &s);
}

static bool accepts_grad(const struct ct_prepare *p)
{
    struct sdpa_shape s;

    return backward_shape(p, &s) && has_plan(p, &s);
}

/* ---- workspace ---- */

struct state {
    struct ct_cuda_function *sequences, *statistics, *rest;
    struct gpu_attention_grad_functions rest_grad;
    const struct sdpa_plan *plan;
    int64_t pitch; /* of the begins of a tensor */
    size_t first, lengths, begins, unpacked, lse, delta, dq_sum, dk_heads, dv_heads, work;
};

static size_t carve(struct ct_prepare *p, int64_t count, size_t item)
{
    return ct_cuda_carve(&p->workspace, (size_t)count * item);
}

static int find_functions(const struct ct_prepare *p, struct state *state)
{
    int rc = gpu_find(p, &state->sequences, "attention_documents");

    if (rc == 0)
        rc = gpu_find(p, &state->statistics, "attention_statistics");
    if (rc < 0)
        return rc;
    return state->plan->shape.backward ? gpu_attention_grad_find(p, true, &state->rest_grad)
                                       : gpu_attention_find(p, true, &state->rest);
}

static struct state *make_state(struct ct_prepare *p, const struct sdpa_shape *s, int64_t rows)
{
    struct state *state = ct_arena_new(p->arena, struct state);

    p->state = state;
    state->plan = sdpa_find_plan(gpu_of(p->device), s);
    state->pitch = ct_cuda_blocks(s->batch + 1, ROUND) * ROUND;
    state->first = carve(p, s->batch, sizeof(int32_t));
    state->lengths = carve(p, s->batch, sizeof(int32_t));
    state->begins = carve(p, GPU_PACKED * state->pitch, sizeof(int64_t));
    state->unpacked = carve(p, 1, sizeof(int32_t));
    state->lse = carve(p, rows, sizeof(float));
    state->work = ct_cuda_carve(&p->workspace, state->plan->graph.workspace);
    return state;
}

static int prepare_attention_documents(struct ct_prepare *p)
{
    struct sdpa_shape s;

    forward_shape(p, &s);
    return find_functions(p, make_state(p, &s, ct_tensor_count(&p->out[1])));
}

static int prepare_grad(struct ct_prepare *p)
{
    struct sdpa_shape s;
    struct state *state;
    int64_t rows = ct_tensor_count(&p->in[5]);

    backward_shape(p, &s);
    state = make_state(p, &s, rows);
    state->delta = carve(p, rows, sizeof(float));
    state->dq_sum = carve(p, ct_tensor_count(&p->out[0]), sizeof(float));
    if (s.heads != s.groups) {
        state->dk_heads = carve(p, rows * s.size, sizeof(uint16_t));
        state->dv_heads = carve(p, rows * s.of_v, sizeof(uint16_t));
    }
    return find_functions(p, state);
}

/* ---- running ---- */

static void *in_workspace(const struct ct_launch *l, size_t offset)
{
    return (char *)l->workspace + offset;
}

/* Where the sequences are in every tensor. documents: input `more`. */
static int find_sequences(const struct ct_launch *l, int more, struct sdpa_pack *pack)
{
    const struct state *state = l->state;
    const struct sdpa_shape *s = &state->plan->shape;
    const struct {
        int id;
        int64_t stride;
    } packed[GPU_PACKED] = {{SDPA_Q, s->q[1]},   {SDPA_K, s->k[1]},    {SDPA_V, s->v[1]},
                            {SDPA_O, s->o[1]},   {SDPA_LSE, s->heads}, {SDPA_D_O, s->d_o[1]},
                            {SDPA_DQ, s->dq[1]}, {SDPA_DK, s->dk[1]},  {SDPA_DV, s->dv[1]}};
    struct gpu_packing a = {.documents = l->in[more].data,
                            .first = in_workspace(l, state->first),
                            .lengths = in_workspace(l, state->lengths),
                            .begins = in_workspace(l, state->begins),
                            .unpacked = in_workspace(l, state->unpacked),
                            .rows = l->in[more].shape[0],
                            .tokens = s->queries,
                            .most = s->batch,
                            .pitch = state->pitch,
                            .tensors = s->backward ? GPU_PACKED : GPU_PACKED_FORWARD};

    sdpa_give(pack, SDPA_QUERY_LENGTHS, a.lengths);
    sdpa_give(pack, SDPA_KEY_LENGTHS, a.lengths);
    for (int i = 0; i < a.tensors; i++) {
        a.stride[i] = packed[i].stride;
        sdpa_give(pack, SDPA_BEGINS + packed[i].id, a.begins + i * a.pitch);
    }
    return ct_cuda_launch(l, state->sequences, (struct ct_cuda_size){1, 1, 1},
                          (struct ct_cuda_size){GPU_PACKERS, 1, 1}, 0, &a);
}

/* LSE of the op [row, head, token], and that of the workspace [row, token, head]: one from the
   other. */
static int turn_statistics(const struct ct_launch *l, const struct ct_tensor *lse, bool pack)
{
    const struct state *state = l->state;
    struct gpu_pack_statistics a = {.of_rows = lse->data,
                                    .of_tokens = in_workspace(l, state->lse),
                                    .rows = lse->shape[0],
                                    .heads = lse->shape[1],
                                    .tokens = lse->shape[2],
                                    .pack = pack};

    return ct_cuda_launch(
        l, state->statistics,
        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(ct_tensor_count(lse), 256), 1, 1},
        (struct ct_cuda_size){256, 1, 1}, 0, &a);
}

/* Sets the operands that forward and backward share. q is input `at`. */
static int begin(const struct ct_launch *l, int at, int more, struct sdpa_pack *pack)
{
    const struct state *state = l->state;

    sdpa_give_numbers(l, state->plan, pack);
    sdpa_give(pack, SDPA_Q, l->in[at].data);
    sdpa_give(pack, SDPA_K, l->in[at + 1].data);
    sdpa_give(pack, SDPA_V, l->in[at + 2].data);
    sdpa_give(pack, SDPA_LSE, in_workspace(l, state->lse));
    return find_sequences(l, more, pack);
}

static int execute(const struct ct_launch *l, struct sdpa_pack *pack)
{
    const struct state *state = l->state;

    return sdpa_execute(l, state->plan, pack, in_workspace(l, state->work));
}

static int run_attention_documents(const struct ct_launch *l)
{
    const struct state *state = l->state;
    struct sdpa_pack pack = {.count = 0};
    int rc = begin(l, 0, 3, &pack);

    sdpa_give(&pack, SDPA_O, l->out[0].data);
    if (rc == 0)
        rc = execute(l, &pack);
    if (rc == 0)
        rc = turn_statistics(l, &l->out[1], false);
    return rc < 0 ? rc : gpu_attention_run(l, state->rest, in_workspace(l, state->unpacked));
}

static int run_grad(const struct ct_launch *l)
{
    const struct state *state = l->state;
    const struct sdpa_shape *s = &state->plan->shape;
    struct sdpa_pack pack = {.count = 0};
    int rc = begin(l, 1, 6, &pack);

    sdpa_give(&pack, SDPA_D_O, l->in[0].data);
    sdpa_give(&pack, SDPA_O, l->in[4].data);
    sdpa_give(&pack, SDPA_DELTA, in_workspace(l, state->delta));
    sdpa_give(&pack, SDPA_DQ_SUM, in_workspace(l, state->dq_sum));
    sdpa_give(&pack, SDPA_DQ, l->out[0].data);
    sdpa_give(&pack, SDPA_DK, l->out[1].data);
    sdpa_give(&pack, SDPA_DV, l->out[2].data);
    if (s->heads != s->groups) {
        sdpa_give(&pack, SDPA_DK_HEADS, in_workspace(l, state->dk_heads));
        sdpa_give(&pack, SDPA_DV_HEADS, in_workspace(l, state->dv_heads));
    }
    if (rc == 0)
        rc = turn_statistics(l, &l->in[5], true);
    if (rc == 0)
        rc = execute(l, &pack);
    return rc < 0 ? rc
                  : gpu_attention_grad_run(l, &state->rest_grad, in_workspace(l, state->delta),
                                           in_workspace(l, state->unpacked));
}

const struct ct_kernel gpu_attention_documents_kernels[] = {
    CT_KERNEL("attention", "documents", CT_KERNEL_STRIDED, accepts_attention_documents,
              prepare_attention_documents, run_attention_documents),
    CT_KERNEL("attention_grad", "documents", CT_KERNEL_STRIDED | CT_KERNEL_VARIES, accepts_grad,
              prepare_grad, run_grad),
    {0}};
