/*
 * The causal convolution of channels. Threads share blocks of channels, so that each weight's
 * gradient is summed by one of them, in the order of tokens.
 */
#include <omp.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define BLOCK 64 /* channels */

enum { STATE = 4 }; /* an input, in front of slots */

struct conv {
    const struct ct_tensor *x, *dy;    /* dy: of the gradient */
    const struct ct_tensor *to;        /* y or dx */
    const struct ct_tensor *documents; /* NULL: one for each sequence */
    const struct ct_tensor *state;     /* of tokens before the row; NULL: none, as slots */
    const struct ct_tensor *slots;
    int64_t batch, tokens, channels, size;
    float *w;    /* [size][channels], the token's own first */
    float *dw;   /* the same */
    float *bias; /* or its gradient; [channels] */
    int64_t *at;
    bool add; /* to `to` */
};

static size_t row_bytes(const struct ct_tensor *w)
{
    return ((size_t)w->shape[0] * sizeof(float) + 63) & ~(size_t)63;
}

static void prepare(struct ct_prepare *p, const struct ct_tensor *x, const struct ct_tensor *w,
                    int64_t rows)
{
    cpu_carve(&p->workspace, (size_t)x->shape[1] * sizeof(int64_t));
    cpu_carve(&p->workspace, row_bytes(w) * (size_t)rows);
}

/* Columns of w as rows, in the workspace; x is input `at`. */
static struct conv conv_of(const struct ct_launch *l, int at)
{
    const struct ct_tensor *x = &l->in[at], *w = &l->in[at + 1];
    int64_t size = w->shape[1], row = (int64_t)(row_bytes(w) / sizeof(float));
    size_t used = 0;
    struct conv c = {.x = x,
                     .to = l->out,
                     .documents = l->ins > 3 && l->in[3].data ? &l->in[3] : NULL,
                     .batch = x->shape[0],
                     .tokens = x->shape[1],
                     .channels = x->shape[2],
                     .size = size};

    cpu_carve(&used, (size_t)x->shape[1] * sizeof(int64_t));
    c.at = l->workspace;
    c.w = (float *)((char *)l->workspace + used);
    c.bias = c.w + row * size;
    c.dw = c.bias + row;
    ct_launch_order(l, l->op->in[at], 1, c.at);
    for (int64_t j = 0; j < size; j++)
        for (int64_t k = 0; k < c.channels; k++)
            c.w[j * row + k] = (float)ct_tensor_load(w, k * size + size - 1 - j);
    return c;
}

static int64_t row_of(const struct conv *c)
{
    return (c->channels + 15) & ~(int64_t)15;
}

static char *state_at(const struct conv *c, int64_t b, int64_t row)
{
    const struct ct_tensor *t = c->state;

    return (char *)t->data +
           (b * t->stride[0] + row * t->stride[1]) * (int64_t)ct_dtype_size(t->dtype);
}

static char *token_at(const struct ct_tensor *t, const struct conv *c, int64_t b, int64_t position)
{
    int64_t at = b * t->stride[0] + c->at[position] * t->stride[1];

    return (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
}

static int64_t taps(const struct conv *c, int64_t b, int64_t position)
{
    const int32_t *documents = c->documents ? c->documents->data : NULL;

    return ct_taps(documents ? documents + b * c->documents->stride[0] : NULL, c->at, position,
                   c->size);
}

/* The vector j tokens before a position, in the row or the state. */
static char *tap(const struct conv *c, int64_t b, int64_t position, int64_t j)
{
    return j <= position ? token_at(c->x, c, b, position - j)
                         : state_at(c, b, c->size - 1 + position - j);
}

CPU_INLINE void forward_token(enum ct_dtype dtype, const struct conv *c, struct cpu_range channels,
                              int64_t b, int64_t position)
{
    int64_t count = c->state ? c->size : taps(c, b, position), row = row_of(c);
    char *y = token_at(c->to, c, b, position);

    for (int64_t k = channels.begin; k < channels.end; k += CPU_LANES) {
        vf sum = v_load(c->bias + k);

        for (int64_t j = 0; j < count; j++)
            sum +=
                v_load(c->w + j * row + k) * v_get(dtype, tap(c, b, position, j), k, channels.end);
        v_put(dtype, y, k, channels.end, sum);
    }
}

/* Channels of a sequence. */
CPU_INLINE void forward_row(enum ct_dtype dtype, const struct conv *c, struct cpu_range channels,
                            int64_t b)
{
    int64_t used = ct_slots_used(c->slots, b, c->tokens), item = (int64_t)ct_dtype_size(dtype);
    size_t bytes = (size_t)((channels.end - channels.begin) * item);

    if (c->state && ct_slots_begin(c->slots, b))
        for (int64_t i = 0; i + 1 < c->size; i++)
            memset(state_at(c, b, i) + channels.begin * item, 0, bytes);
    for (int64_t t = 0; t < used; t++)
        forward_token(dtype, c, channels, b, t);
    for (int64_t t = used; t < c->tokens; t++)
        memset(token_at(c->to, c, b, t) + channels.begin * item, 0, bytes);
    for (int64_t i = 0; c->state && used && i + 1 < c->size; i++)
        memcpy(state_at(c, b, i) + channels.begin * item,
               tap(c, b, used, c->size - 1 - i) + channels.begin * item, bytes);
}

bool CPU_ISA(cpu_causal_conv_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && p->out[0].dtype == dtype;
}

int CPU_ISA(cpu_causal_conv_prepare)(struct ct_prepare *p)
{
    prepare(p, &p->in[0], &p->in[1], p->in[1].shape[1] + 1);
    return 0;
}

static struct cpu_range block_of(const struct conv *c, int64_t block)
{
    int64_t begin = block * BLOCK, end = begin + BLOCK;

    return (struct cpu_range){begin, end < c->channels ? end : c->channels};
}

int CPU_ISA(cpu_causal_conv_run)(const struct ct_launch *l)
{
    struct conv c = conv_of(l, 0);
    int64_t blocks = (c.channels + BLOCK - 1) / BLOCK;

    for (int64_t k = 0; k < row_of(&c); k++)
        c.bias[k] =
            l->ins > 2 && l->in[2].data && k < c.channels ? (float)ct_tensor_load(&l->in[2], k) : 0;
    if (l->ins > STATE && l->in[STATE].data) {
        c.state = &l->in[STATE];
        c.slots = &l->in[STATE + 1];
    }
#pragma omp parallel for if (cpu_worth_threads(ct_tensor_count(c.x)))
    for (int64_t i = 0; i < c.batch * blocks; i++) {
        if (c.x->dtype == CT_F32)
            forward_row(CT_F32, &c, block_of(&c, i % blocks), i / blocks);
        else
            forward_row(CT_BF16, &c, block_of(&c, i % blocks), i / blocks);
    }
    return 0;
}

/* ---- gradient ---- */

/* How many tokens see one: itself, and those behind it. */
static int64_t viewers(const struct conv *c, int64_t b, int64_t position)
{
    int64_t j = 1;

    while (j < c->size && position + j < c->tokens && taps(c, b, position + j) > j)
        j++;
    return j;
}

/* dx of a token: what these saw of it. */
CPU_INLINE vf gradient_at(enum ct_dtype dtype, const struct conv *c, struct cpu_range channels,
                          int64_t b, int64_t position, int64_t count, int64_t k)
{
    int64_t row = row_of(c);
    vf sum = {0};

    for (int64_t j = 0; j < count; j++)
        sum += v_load(c->w + j * row + k) *
               v_get(dtype, token_at(c->dy, c, b, position + j), k, channels.end);
    return sum;
}

CPU_INLINE void gradient_token(enum ct_dtype dtype, const struct conv *c, struct cpu_range channels,
                               int64_t b, int64_t position)
{
    int64_t count = taps(c, b, position), later = viewers(c, b, position), row = row_of(c);
    const char *dy = token_at(c->dy, c, b, position);
    char *dx = token_at(c->to, c, b, position);

    for (int64_t k = channels.begin; k < channels.end; k += CPU_LANES) {
        vf d = v_get(dtype, dy, k, channels.end);
        vf old = c->add ? v_get(dtype, dx, k, channels.end) : v_set(0);

        v_store(c->bias + k, v_load(c->bias + k) + d);
        for (int64_t j = 0; j < count; j++)
            v_store(c->dw + j * row + k,
                    v_load(c->dw + j * row + k) +
                        d * v_get(dtype, token_at(c->x, c, b, position - j), k, channels.end));
        v_put(dtype, dx, k, channels.end,
              old + gradient_at(dtype, c, channels, b, position, later, k));
    }
}

/* What a block's columns of dw and dbias are, or add. */
static void store_block(const struct ct_launch *l, const struct conv *c, struct cpu_range channels)
{
    const struct ct_tensor *dw = l->out + 1, *dbias = l->out + 2;
    bool add = l->accumulate >> 1 & 1, add_bias = l->accumulate >> 2 & 1;

    for (int64_t k = channels.begin; k < channels.end; k++) {
        for (int64_t j = 0; j < c->size; j++) {
            int64_t i = k * c->size + c->size - 1 - j;

            ct_tensor_store(dw, i,
                            (add ? ct_tensor_load(dw, i) : 0) + (double)c->dw[j * row_of(c) + k]);
        }
        ct_tensor_store(dbias, k, (add_bias ? ct_tensor_load(dbias, k) : 0) + (double)c->bias[k]);
    }
}

bool CPU_ISA(cpu_causal_conv_grad_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && p->in[1].dtype == dtype && p->out[0].dtype == dtype &&
           cpu_is_compute_dtype(p->out[1].dtype) && cpu_is_compute_dtype(p->out[2].dtype);
}

int CPU_ISA(cpu_causal_conv_grad_prepare)(struct ct_prepare *p)
{
    prepare(p, &p->in[1], &p->in[2], 2 * p->in[2].shape[1] + 1);
    return 0;
}

int CPU_ISA(cpu_causal_conv_grad_run)(const struct ct_launch *l)
{
    struct conv c = conv_of(l, 1);
    int64_t blocks = (c.channels + BLOCK - 1) / BLOCK;

    c.dy = l->in;
    c.add = l->accumulate & 1;
    memset(c.bias, 0, sizeof(float) * (size_t)(row_of(&c) * (c.size + 1)));
#pragma omp parallel for if (cpu_worth_threads(ct_tensor_count(c.x)))
    for (int64_t i = 0; i < blocks; i++) {
        struct cpu_range channels = block_of(&c, i);

        for (int64_t t = 0; t < c.batch * c.tokens; t++)
            if (c.x->dtype == CT_F32)
                gradient_token(CT_F32, &c, channels, t / c.tokens, t % c.tokens);
            else
                gradient_token(CT_BF16, &c, channels, t / c.tokens, t % c.tokens);
        store_block(l, &c, channels);
    }
    return 0;
}
