/*
 * Attention by cuDNN, in bfloat16.
 *
 * Queries and keys that are the same tokens in order need no more than cuDNN's own causal mask and
 * window, and where some queries see some keys whole (a block of a ring), cuDNN gets these alone,
 * without a mask. Documents are packed sequences (attention_documents.c). Other positions it would
 * need a matrix of all pairs for: they are left to the kernels on tensor cores (attention.c), which
 * skip what is not seen.
 *
 * cuDNN's backward adds the parts of dq as blocks finish. With [training] deterministic it gets
 * another graph, in which dq is a product of the gradients of all scores: these are written to
 * memory, of as many sequences at a time as fit into ORDERED_BYTES. The order of its sums is then
 * that of a product. cuDNN's numerical notes do not tell the two apart (9.19), so this follows from
 * the graph alone.
 */
#include <ctitan/lib/ops.h>

#include "sdpa_plans.h"

/* ---- shapes ---- */

/* [batch, tokens, heads, size], dense: of results on their way to another dtype. */
static void dense_strides(int64_t to[3], const struct ct_tensor *t, int64_t tokens)
{
    to[2] = t->shape[3];
    to[1] = t->shape[2] * to[2];
    to[0] = tokens * to[1];
}

static bool has(const struct ct_prepare *p, int i)
{
    return i < p->ins && p->present[i];
}

/* A call's mask, and the tokens that cuDNN gets: queries that see none of the keys are left out,
   as are keys that no query sees. */
struct mask {
    bool known, causal; /* known: cuDNN can do it */
    int64_t window;     /* of causal; 0: none */
    struct ct_seen_block seen;
};

static struct mask choose_mask(const struct ct_prepare *p, int at, int more)
{
    struct mask m;
    enum ct_seen seen = ct_attention_seen(p, at, more + 2, &m.seen);

    m.causal = seen == CT_SEEN_CAUSAL;
    m.window = ct_op_int(p->op, "window");
    if (m.causal && m.window >= p->in[at].shape[1])
        m.window = 0; /* wider than the sequence */
    m.known =
        !has(p, more) && !has(p, more + 1) && seen != CT_SEEN_UNKNOWN && (m.causal || !m.window);
    return m;
}

/* q is input `at`, k and v the next; false: not for cuDNN. */
static bool shape_of(const struct ct_prepare *p, int at, int more, struct sdpa_shape *s)
{
    const struct ct_tensor *q = &p->in[at], *k = q + 1, *v = q + 2;
    struct mask m = choose_mask(p, at, more);

    memset(s, 0, sizeof(*s)); /* padding too: shapes are compared whole */
    s->batch = q->shape[0];
    s->queries = m.seen.queries;
    s->keys = m.seen.keys;
    s->rows = q->shape[1];
    s->heads = q->shape[2];
    s->groups = k->shape[2];
    s->size = q->shape[3];
    s->of_v = v->shape[3];
    s->causal = m.causal;
    s->window = m.window;
    for (int i = 0; i < 3; i++)
        if (q[i].dtype != CT_BF16)
            return false;
    for (int i = more; i < p->ins; i++)
        if (p->present[i] && !ct_tensor_is_dense(&p->in[i]))
            return false;
    return m.known && !gpu_attention_changes(p->op) && sdpa_has_heads(gpu_of(p->device), s) &&
           sdpa_take_strides(s->q, q) && sdpa_take_strides(s->k, k) && sdpa_take_strides(s->v, v);
}

static bool forward_shape(const struct ct_prepare *p, struct sdpa_shape *s)
{
    if (!shape_of(p, 0, 3, s) || !ct_cuda_computes(p->out[0].dtype) || p->out[1].dtype != CT_F32 ||
        !ct_tensor_is_dense(&p->out[1]))
        return false;
    s->o_float = p->out[0].dtype == CT_F32;
    return sdpa_take_strides(s->o, &p->out[0]);
}

/* Results in float32: dq is that before it is rounded, dk and dv are cast. */
static bool backward_shape(const struct ct_prepare *p, struct sdpa_shape *s)
{
    int64_t *to[3] = {s->dq, s->dk, s->dv};

    if (!shape_of(p, 1, 6, s) || p->in[0].dtype != CT_BF16 || p->in[4].dtype != CT_BF16 ||
        p->in[5].dtype != CT_F32 || !ct_tensor_is_dense(&p->in[5]))
        return false;
    s->backward = true;
    s->dq_sum_placed = p->out[0].dtype == CT_F32;
    for (int i = 0; i < 3; i++) {
        if (!ct_cuda_computes(p->out[i].dtype) || !sdpa_take_strides(to[i], &p->out[i]))
            return false;
        if (i > 0 && p->out[i].dtype == CT_F32)
            dense_strides(to[i], &p->out[i], s->keys);
    }
    return sdpa_take_strides(s->d_o, &p->in[0]) && sdpa_take_strides(s->o, &p->in[4]);
}

#define ORDERED_BYTES ((size_t)1 << 30) /* at most, unless one sequence needs more: */
#define ORDERED_MOST ((size_t)8 << 30)

/* A plan for some sequences at a time. */
static bool ordered_shape(const struct ct_prepare *p, struct sdpa_shape *s)
{
    int64_t batch;

    if (!backward_shape(p, s))
        return false;
    for (int i = 0; i < 3; i++)
        if (p->out[i].dtype != CT_BF16)
            return gpu_refuse("gradients in float32 are left to own kernels");
    s->ordered = true;
    batch = s->batch;
    for (int64_t each = batch; each > 0; each--) {
        s->batch = each;
        if (batch % each == 0 && (each == 1 || SDPA_ORDERED_BYTES(s) <= ORDERED_BYTES))
            break;
    }
    if (SDPA_ORDERED_BYTES(s) > ORDERED_MOST)
        return gpu_refuse("the gradients of a sequence's scores take more than 8 GiB");
    return true;
}

/* ---- workspace ---- */

struct state {
    const struct sdpa_plan *plan; /* NULL: no query sees a key */
    struct ct_seen_block seen;
    int64_t parts; /* of the batch, one after the other */
    size_t delta, dq, dq_sum, dk, dv, work;
    struct ct_cuda_function *clear;
    struct gpu_widths cast; /* of bfloat16 to float32 */
};

static size_t bytes_of(const struct ct_tensor *t, size_t item)
{
    return (size_t)ct_tensor_count(t) * item;
}

static struct state *make_state(struct ct_prepare *p, int at, int more,
                                const struct sdpa_plan *plan)
{
    struct state *state = ct_arena_new(p->arena, struct state);

    p->state = state;
    state->plan = plan;
    state->parts = plan ? p->in[at].shape[0] / plan->shape.batch : 1;
    state->seen = choose_mask(p, at, more).seen;
    if (plan)
        state->work = ct_cuda_carve(&p->workspace, plan->graph.workspace);
    return state;
}

static int find_functions(const struct ct_prepare *p, struct state *state)
{
    int rc = gpu_find(p, &state->clear, "attention_unseen");

    return rc < 0 ? rc : gpu_find_cast(p, CT_BF16, CT_F32, &state->cast);
}

/* Where no query sees a key, no plan is needed. */
static bool has_plan(const struct ct_prepare *p, const struct sdpa_shape *s)
{
    return sdpa_is_offered(gpu_of(p->device)) &&
           (!s->queries || sdpa_find_plan(gpu_of(p->device), s));
}

static bool accepts_attention_dnn(const struct ct_prepare *p)
{
    struct sdpa_shape s;

    return forward_shape(p, &s) && has_plan(p, &s);
}

static const struct sdpa_plan *plan_of(const struct ct_prepare *p, const struct sdpa_shape *s)
{
    return s->queries ? sdpa_find_plan(gpu_of(p->device), s) : NULL;
}

static int prepare_attention_dnn(struct ct_prepare *p)
{
    struct sdpa_shape s;

    forward_shape(p, &s);
    return find_functions(p, make_state(p, 0, 3, plan_of(p, &s)));
}

static bool accepts_grad(const struct ct_prepare *p)
{
    struct sdpa_shape s;

    return backward_shape(p, &s) && has_plan(p, &s);
}

static bool accepts_ordered(const struct ct_prepare *p)
{
    struct sdpa_shape s;

    return p->repeatable && ordered_shape(p, &s) && has_plan(p, &s);
}

static int prepare_ordered(struct ct_prepare *p)
{
    struct sdpa_shape s;
    struct state *state;

    ordered_shape(p, &s);
    state = make_state(p, 1, 6, plan_of(p, &s));
    state->delta = ct_cuda_carve(&p->workspace, bytes_of(&p->in[5], sizeof(float)));
    if (state->plan) /* gradients of scores are written and read; of causal ones, half */
        p->traffic = (double)(state->parts * s.batch * s.heads * s.queries * s.keys) *
                     sizeof(uint16_t) * (s.causal ? 1 : 2);
    return find_functions(p, state);
}

static int prepare_grad(struct ct_prepare *p)
{
    struct sdpa_shape s;
    struct state *state;

    backward_shape(p, &s);
    state = make_state(p, 1, 6, plan_of(p, &s));
    if (!state->plan)
        return find_functions(p, state);
    state->delta = ct_cuda_carve(&p->workspace, bytes_of(&p->in[5], sizeof(float)));
    if (s.dq_sum_placed)
        state->dq = ct_cuda_carve(&p->workspace, (size_t)(s.batch * s.dq[0]) * sizeof(uint16_t));
    else
        state->dq_sum = ct_cuda_carve(&p->workspace, bytes_of(&p->out[0], sizeof(float)));
    if (p->out[1].dtype == CT_F32)
        state->dk = ct_cuda_carve(&p->workspace, bytes_of(&p->out[1], sizeof(uint16_t)));
    if (p->out[2].dtype == CT_F32)
        state->dv = ct_cuda_carve(&p->workspace, bytes_of(&p->out[2], sizeof(uint16_t)));
    return find_functions(p, state);
}

/* ---- running ---- */

static void *in_workspace(const struct ct_launch *l, size_t offset)
{
    return (char *)l->workspace + offset;
}

/* The address of a token of a tensor [batch, tokens, heads, size]. */
static void *token_at(const struct ct_tensor *t, int64_t sequence, int64_t token)
{
    int64_t elements = sequence * t->stride[0] + token * t->stride[1];

    return (char *)t->data + (size_t)elements * ct_dtype_size(t->dtype);
}

static void *token_of(const struct ct_tensor *t, int64_t token)
{
    return token_at(t, 0, token);
}

/* Zeros for the tokens but `count` from `first` on; lse NULL: there is none. */
static int clear_unseen(const struct ct_launch *l, const struct ct_tensor *t, float *lse,
                        int64_t first, int64_t count)
{
    struct gpu_unseen a = {.x = t->data,
                           .lse = lse,
                           .batch = t->shape[0],
                           .tokens = t->shape[1],
                           .from = first,
                           .to = first + count,
                           .heads = (int32_t)t->shape[2],
                           .size = (int32_t)t->shape[3],
                           .kind = ct_cuda_float_of(t->dtype)};
    int64_t rows = a.batch * a.tokens * a.heads;

    memcpy(a.stride, t->stride, sizeof(a.stride));
    if (count == t->shape[1])
        return 0;
    return ct_cuda_launch(l, ((const struct state *)l->state)->clear,
                          (struct ct_cuda_size){(unsigned)ct_cuda_blocks(rows, 8), 1, 1},
                          (struct ct_cuda_size){256, 1, 1}, 0, &a);
}

/* Sets the operands that forward and backward share, from a sequence on. q is input `at`. */
static void begin(const struct ct_launch *l, int at, int64_t sequence, struct sdpa_pack *pack)
{
    const struct state *state = l->state;

    sdpa_give_numbers(l, state->plan, pack);
    sdpa_give(pack, SDPA_Q, token_at(&l->in[at], sequence, state->seen.query));
    sdpa_give(pack, SDPA_K, token_at(&l->in[at + 1], sequence, state->seen.key));
    sdpa_give(pack, SDPA_V, token_at(&l->in[at + 2], sequence, state->seen.key));
}

static int execute(const struct ct_launch *l, struct sdpa_pack *pack)
{
    const struct state *state = l->state;

    return sdpa_execute(l, state->plan, pack, in_workspace(l, state->work));
}

static int run_attention_dnn(const struct ct_launch *l)
{
    const struct state *state = l->state;
    const struct ct_seen_block *seen = &state->seen;
    struct sdpa_pack pack = {.count = 0};
    int rc = clear_unseen(l, &l->out[0], l->out[1].data, seen->query, seen->queries);

    if (rc < 0 || !state->plan)
        return rc;
    begin(l, 0, 0, &pack);
    sdpa_give(&pack, SDPA_O, token_of(&l->out[0], seen->query));
    sdpa_give(&pack, SDPA_LSE, (float *)l->out[1].data + seen->query);
    return execute(l, &pack);
}

/* A result in bfloat16, of the keys that are seen, cast to its float32 output. */
static int cast_back(const struct ct_launch *l, size_t offset, const struct ct_tensor *out)
{
    const struct state *state = l->state;
    const struct ct_seen_block *seen = &state->seen;
    struct ct_tensor wide = *out, narrow;
    int rc = 0;

    wide.shape[0] = 1;
    wide.shape[1] = seen->keys;
    narrow = ct_tensor_dense(in_workspace(l, offset), CT_BF16, out->ndim, wide.shape);
    wide.data = token_of(out, seen->key);
    for (int64_t b = 0; rc == 0 && out->dtype == CT_F32 && b < out->shape[0]; b++) {
        rc = gpu_cast(l, &state->cast, &narrow, &wide);
        narrow.data = (char *)narrow.data + bytes_of(&narrow, sizeof(uint16_t));
        wide.data = (float *)wide.data + out->stride[0];
    }
    return rc;
}

static int clear_gradients(const struct ct_launch *l)
{
    const struct ct_seen_block *seen = &((const struct state *)l->state)->seen;
    int rc = clear_unseen(l, &l->out[0], NULL, seen->query, seen->queries);

    for (int i = 1; rc == 0 && i < 3; i++)
        rc = clear_unseen(l, &l->out[i], NULL, seen->key, seen->keys);
    return rc;
}

static int run_grad(const struct ct_launch *l)
{
    const struct state *state = l->state;
    const struct ct_seen_block *seen = &state->seen;
    const struct ct_tensor *out = l->out;
    struct sdpa_pack pack = {.count = 0};
    void *dq, *to[3];
    bool placed;
    int rc = clear_gradients(l);

    if (rc < 0 || !state->plan)
        return rc;
    placed = state->plan->shape.dq_sum_placed;
    begin(l, 1, 0, &pack);
    dq = token_of(&out[0], seen->query);
    for (int i = 1; i < 3; i++)
        to[i] = out[i].dtype == CT_F32 ? in_workspace(l, i == 1 ? state->dk : state->dv)
                                       : token_of(&out[i], seen->key);
    sdpa_give(&pack, SDPA_D_O, token_of(&l->in[0], seen->query));
    sdpa_give(&pack, SDPA_O, token_of(&l->in[4], seen->query));
    sdpa_give(&pack, SDPA_LSE, (float *)l->in[5].data + seen->query);
    sdpa_give(&pack, SDPA_DELTA, in_workspace(l, state->delta));
    sdpa_give(&pack, SDPA_DQ, placed ? in_workspace(l, state->dq) : dq);
    sdpa_give(&pack, SDPA_DQ_SUM, placed ? dq : in_workspace(l, state->dq_sum));
    sdpa_give(&pack, SDPA_DK, to[1]);
    sdpa_give(&pack, SDPA_DV, to[2]);
    rc = execute(l, &pack);
    if (rc == 0)
        rc = cast_back(l, state->dk, &out[1]);
    return rc < 0 ? rc : cast_back(l, state->dv, &out[2]);
}

static int run_part(const struct ct_launch *l, int64_t sequence)
{
    const struct state *state = l->state;
    const struct ct_seen_block *seen = &state->seen;
    const struct sdpa_shape *s = &state->plan->shape;
    const struct ct_tensor *out = l->out;
    struct sdpa_pack pack = {.count = 0};
    float *lse = (float *)l->in[5].data + sequence * s->heads * s->rows + seen->query;

    begin(l, 1, sequence, &pack);
    sdpa_give(&pack, SDPA_D_O, token_at(&l->in[0], sequence, seen->query));
    sdpa_give(&pack, SDPA_O, token_at(&l->in[4], sequence, seen->query));
    sdpa_give(&pack, SDPA_LSE, lse);
    sdpa_give(&pack, SDPA_DELTA, in_workspace(l, state->delta));
    sdpa_give(&pack, SDPA_DQ, token_at(&out[0], sequence, seen->query));
    sdpa_give(&pack, SDPA_DK, token_at(&out[1], sequence, seen->key));
    sdpa_give(&pack, SDPA_DV, token_at(&out[2], sequence, seen->key));
    return execute(l, &pack);
}

static int run_ordered(const struct ct_launch *l)
{
    const struct state *state = l->state;
    int rc = clear_gradients(l);

    for (int64_t i = 0; rc == 0 && state->plan && i < state->parts; i++)
        rc = run_part(l, i * state->plan->shape.batch);
    return rc;
}

const struct ct_kernel gpu_attention_dnn_kernels[] = {
    CT_KERNEL("attention", "cudnn", CT_KERNEL_STRIDED, accepts_attention_dnn, prepare_attention_dnn,
              run_attention_dnn),
    CT_KERNEL("attention_grad", "cudnn", CT_KERNEL_STRIDED | CT_KERNEL_VARIES, accepts_grad,
              prepare_grad, run_grad),
    CT_KERNEL("attention_grad", "cudnn.ordered", CT_KERNEL_STRIDED, accepts_ordered,
              prepare_ordered, run_ordered),
    {0}};
