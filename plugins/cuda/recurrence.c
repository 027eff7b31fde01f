/*
 * gated_delta and state_scan, their gradients and segments: chunks of linear attention, a block for
 * some heads of a group. The number of blocks depends on the call alone, and their gradients of
 * queries and keys are summed in order.
 */
#include <math.h>

#include <ctitan/lib/ops.h>

#include "sequences.h"

#define THREADS 256
#define TASKS 64 /* at least, as far as there are heads */

/* Inputs of a kernel by what they are to it; -1: none. part: the state of a part of a sequence,
   which no kernel takes. */
struct operands {
    int q, k, v, gate, beta, documents, d_o, state, after, rate, skip, bias, part;
};

static const struct operands of_delta = {0, 1, 2, 3, 4, 5, -1, 8, -1, -1, -1, -1, 6},
                             of_delta_grad = {1, 2, 3, 4, 5, 6, 0, 7, 8, -1, -1, -1, -1},
                             of_delta_carry = {-1, 0, 1, 2, 3, 4, -1, -1, -1, -1, -1, -1, -1},
                             of_delta_dstate = {1, 2, -1, 3, 4, 5, 0, -1, -1, -1, -1, -1, -1},
                             of_scan = {4, 3, 0, 1, -1, 7, -1, 10, -1, 2, 5, 6, 8},
                             of_scan_grad = {5, 4, 1, 2, -1, 8, 0, 9, 10, 3, 6, 7, -1},
                             of_scan_carry = {-1, 3, 0, 1, -1, 5, -1, -1, -1, 2, -1, 4, -1},
                             of_scan_dstate = {3, -1, -1, 1, -1, 5, 0, -1, -1, 2, -1, 4, -1};

/* A kernel's memory in its workspace, in floats: of each task, the tasks' dq and dk, numbers. */
struct layout {
    int64_t tasks, blocks, each, parts, numbers;
};

static int64_t padded(int64_t n)
{
    return (n + 15) & ~(int64_t)15;
}

static const struct ct_tensor *rows_of_keys(const struct operands *at, const struct ct_tensor *in)
{
    return &in[at->k >= 0 ? at->k : at->q];
}

static const struct ct_tensor *rows_of_values(const struct operands *at, const struct ct_tensor *in)
{
    return &in[at->v >= 0 ? at->v : at->d_o];
}

/* As task_of of kernels/chunks.cuh places a task's matrices. carry: a state has keys' columns,
   too. */
static struct layout layout_of(const struct operands *at, const struct ct_tensor *in, bool carry,
                               bool gradient)
{
    const struct ct_tensor *k = rows_of_keys(at, in), *v = rows_of_values(at, in);
    int64_t sequences = gpu_sequences(k, 3), groups = k->shape[k->ndim - 2];
    int64_t tokens = k->shape[k->ndim - 3], heads = v->shape[v->ndim - 2];
    int64_t chunks = (tokens + GPU_CHUNK - 1) / GPU_CHUNK, ldk = padded(k->shape[k->ndim - 1]);
    int64_t ldv = padded(v->shape[v->ndim - 1]) + (carry ? ldk : 0);
    struct layout y = {.blocks = (TASKS + sequences * groups - 1) / (sequences * groups)};

    y.blocks = y.blocks < heads / groups ? y.blocks : heads / groups;
    y.tasks = sequences * groups * y.blocks;
    y.each =
        GPU_CHUNK * (6 * ldk + 6 * ldv + 6 * GPU_CHUNK) + ldk * ldv * (3 + (gradient ? chunks : 0));
    y.parts = gradient ? 2 * y.tasks * tokens * ldk : 0;
    y.numbers = gradient ? 3 * sequences * heads : 0;
    return y;
}

static size_t bytes_of(const struct layout *y)
{
    return sizeof(float) * (size_t)(y->tasks * y->each + y->parts + y->numbers);
}

static struct gpu_numbers numbers_of(const struct ct_launch *l, int i)
{
    return i < 0 ? (struct gpu_numbers){NULL}
                 : (struct gpu_numbers){l->in[i].data, ct_cuda_float_of(l->in[i].dtype)};
}

static struct gpu_chunks arguments_of(const struct ct_launch *l, const struct operands *at,
                                      const struct layout *y)
{
    const struct ct_tensor *k = rows_of_keys(at, l->in), *v = rows_of_values(at, l->in);
    struct gpu_chunks a = {.inner = gpu_inner(k, 3),
                           .tokens = k->shape[k->ndim - 3],
                           .tasks = y->tasks,
                           .groups = k->shape[k->ndim - 2],
                           .heads = v->shape[v->ndim - 2],
                           .blocks = y->blocks,
                           .key = (int32_t)k->shape[k->ndim - 1],
                           .value = (int32_t)v->shape[v->ndim - 1],
                           .work = l->workspace,
                           .each = y->each,
                           .accumulate = l->accumulate};

    a.parts = a.work + y->tasks * y->each;
    a.numbers = a.parts + y->parts;
    a.q = gpu_sequence_of_input(l, at->q, 3);
    a.k = gpu_sequence_of_input(l, at->k, 3);
    a.v = gpu_sequence_of_input(l, at->v, 3);
    a.gate = gpu_sequence_of_input(l, at->gate, 2);
    a.beta = gpu_sequence_of_input(l, at->beta, 2);
    a.documents = gpu_sequence_of_input(l, at->documents, 1);
    a.d_o = gpu_sequence_of_input(l, at->d_o, 3);
    a.state = gpu_sequence_of_input(l, at->state, 3);
    a.after = gpu_sequence_of_input(l, at->after, 3);
    a.rate = numbers_of(l, at->rate);
    a.skip = numbers_of(l, at->skip);
    a.bias = numbers_of(l, at->bias);
    if (at->rate >= 0) {
        const struct ct_state_scan *how = l->op->attrs;

        a.least = (float)how->least;
        a.most = how->most > 0 ? (float)how->most : INFINITY;
    }
    return a;
}

static int launch(const struct ct_launch *l, int function, int64_t blocks, const void *a)
{
    return gpu_launch(l, function, (struct ct_cuda_size){(unsigned)blocks, 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
}

/* Operands along sequences are of one dtype, and all others are float32 or bfloat16. */
static bool accepts_recurrence(const struct ct_prepare *p, const struct operands *at)
{
    const struct ct_tensor *k = rows_of_keys(at, p->in);
    bool part = at->part >= 0 && p->ins > at->part && p->present[at->part];

    if (part)
        return gpu_refuse("%s of parts of sequences has no kernel", p->op->type->name);
    for (int i = 0; i < p->outs; i++)
        if (!ct_cuda_computes(p->out[i].dtype))
            return false;
    for (int i = 0; i < p->ins; i++)
        if (i != at->documents && p->present[i] && !ct_cuda_computes(p->in[i].dtype))
            return false;
    return gpu_is_batch(k, 3);
}

/* ---- forward ---- */

#define FORWARD(op, carried)                                                                       \
    static bool accepts_##op(const struct ct_prepare *p)                                           \
    {                                                                                              \
        return accepts_recurrence(p, &of_##op);                                                    \
    }                                                                                              \
    static int prepare_##op(struct ct_prepare *p)                                                  \
    {                                                                                              \
        struct layout y = layout_of(&of_##op, p->in, carried, false);                              \
                                                                                                   \
        p->workspace = bytes_of(&y);                                                               \
        return gpu_prepare(p, "@");                                                                \
    }                                                                                              \
    static int run_##op(const struct ct_launch *l)                                                 \
    {                                                                                              \
        return run_recurrence(l, &of_##op, carried);                                               \
    }

/* The outputs are o; keeps and gain; or dstate. */
static int run_recurrence(const struct ct_launch *l, const struct operands *at, bool carried)
{
    struct layout y = layout_of(at, l->in, carried, false);
    struct gpu_chunks a = arguments_of(l, at, &y);

    if (l->outs == 2) {
        a.keeps = gpu_sequence_of(&l->out[0], 3);
        a.gain = gpu_sequence_of(&l->out[1], 3);
    } else if (at->d_o >= 0) {
        a.dstate = gpu_sequence_of(&l->out[0], 3);
    } else {
        a.o = gpu_sequence_of(&l->out[0], 3);
    }
    return launch(l, 0, y.tasks, &a);
}

FORWARD(delta, false)
FORWARD(delta_carry, true)
FORWARD(delta_dstate, false)
FORWARD(scan, false)
FORWARD(scan_carry, false)
FORWARD(scan_dstate, false)

/* ---- gradient ---- */

enum { GRADIENT, SUM, NUMBERS }; /* functions */

static size_t gradient_bytes(const struct ct_prepare *p, const struct operands *at)
{
    struct layout y = layout_of(at, p->in, false, true);

    return bytes_of(&y);
}

static bool accepts_delta_grad(const struct ct_prepare *p)
{
    return accepts_recurrence(p, &of_delta_grad);
}

static int prepare_delta_grad(struct ct_prepare *p)
{
    p->workspace = gradient_bytes(p, &of_delta_grad);
    return gpu_prepare(p, "gated_delta_grad", "gated_delta_sum");
}

static int run_delta_grad(const struct ct_launch *l)
{
    struct layout y = layout_of(&of_delta_grad, l->in, false, true);
    struct gpu_chunks a = arguments_of(l, &of_delta_grad, &y);
    int rc;

    a.dq = gpu_sequence_of(&l->out[0], 3);
    a.dk = gpu_sequence_of(&l->out[1], 3);
    a.dv = gpu_sequence_of(&l->out[2], 3);
    a.dgate = gpu_sequence_of(&l->out[3], 2);
    a.dbeta = gpu_sequence_of(&l->out[4], 2);
    rc = launch(l, GRADIENT, y.tasks, &a);
    return rc < 0 ? rc : launch(l, SUM, y.tasks / y.blocks * a.tokens, &a);
}

static bool accepts_scan_grad(const struct ct_prepare *p)
{
    return accepts_recurrence(p, &of_scan_grad);
}

static int prepare_scan_grad(struct ct_prepare *p)
{
    p->workspace = gradient_bytes(p, &of_scan_grad);
    return gpu_prepare(p, "state_scan_grad", "state_scan_sum", "state_scan_numbers");
}

static int run_scan_grad(const struct ct_launch *l)
{
    static const int outputs[] = {2, 5, 6};
    struct layout y = layout_of(&of_scan_grad, l->in, false, true);
    struct gpu_chunks a = arguments_of(l, &of_scan_grad, &y);
    struct gpu_chunks_numbers n = {.numbers = a.numbers, .heads = a.heads};
    int rc;

    a.dv = gpu_sequence_of(&l->out[0], 3);
    a.dgate = gpu_sequence_of(&l->out[1], 2);
    a.dk = gpu_sequence_of(&l->out[3], 3);
    a.dq = gpu_sequence_of(&l->out[4], 3);
    n.sequences = y.tasks / y.blocks / a.groups;
    for (int i = 0; i < 3; i++) {
        n.out[i] = l->out[outputs[i]].data;
        n.kind[i] = ct_cuda_float_of(l->out[outputs[i]].dtype);
    }
    rc = launch(l, GRADIENT, y.tasks, &a);
    if (rc == 0)
        rc = launch(l, SUM, y.tasks / y.blocks * a.tokens, &a);
    return rc < 0 ? rc : launch(l, NUMBERS, ct_cuda_blocks(a.heads, THREADS), &n);
}

#define KERNEL(op, what, flags)                                                                    \
    CT_KERNEL(op, "chunks", flags, accepts_##what, prepare_##what, run_##what)

const struct ct_kernel gpu_recurrence_kernels[] = {
    KERNEL("gated_delta", delta, CT_KERNEL_STRIDED),
    KERNEL("gated_delta_grad", delta_grad, CT_KERNEL_STRIDED | CT_KERNEL_ACCUMULATES),
    KERNEL("gated_delta_carry", delta_carry, CT_KERNEL_STRIDED),
    KERNEL("gated_delta_dstate", delta_dstate, CT_KERNEL_STRIDED),
    KERNEL("state_scan", scan, CT_KERNEL_STRIDED),
    KERNEL("state_scan_grad", scan_grad, CT_KERNEL_STRIDED),
    KERNEL("state_scan_carry", scan_carry, CT_KERNEL_STRIDED),
    KERNEL("state_scan_dstate", scan_dstate, CT_KERNEL_STRIDED),
    {0}};
