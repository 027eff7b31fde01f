/*
 * The causal convolution of channels. Threads share blocks of channels, so that each weight's
 * gradient is summed by one of them, in the order of tokens.
 */
#include <omp.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include "rows.h"

#define BLOCK 64 /* channels */
#define AHEAD 8  /* tokens whose rows are fetched early: these are far from each other */

/* Inputs; those of the gradient are dy, x, w, documents, before, and that of the state behind. */
enum { DOCUMENTS = 3, STATE, SLOTS, BEFORE };

/* Weights of a block are together: rows of all channels, whose width often is a power of two, would
   be in the way of each other and of the tokens' in a cache. */
struct conv {
    int64_t batch, tokens, channels, size;
    float *w;    /* [blocks][size][BLOCK], the token's own first */
    float *dw;   /* the same */
    float *bias; /* or its gradient; [blocks][BLOCK] */
};

/* The operands of one sequence; those that an op has not are absent. */
struct sequence {
    struct rows x, dy, to; /* to: y or dx */
    struct rows documents;
    struct rows state; /* the tokens in front of the first one, the last of them last */
    struct rows after; /* the gradient of the state behind */
    bool add;          /* to `to` */
};

static int64_t blocks_of(int64_t channels)
{
    return (channels + BLOCK - 1) / BLOCK;
}

static void prepare_causal_conv(struct ct_prepare *p, const struct ct_tensor *w, int64_t rows)
{
    cpu_carve(&p->workspace, sizeof(float) * (size_t)(blocks_of(w->shape[0]) * BLOCK * rows));
}

/* Row j of the weights of a block, as if it began at channel 0. */
static float *taps_at(float *w, const struct conv *c, struct cpu_range channels, int64_t j)
{
    return w + channels.begin * c->size + j * BLOCK - channels.begin;
}

/* Columns of w as rows, in the workspace. */
static struct conv conv_of(const struct ct_launch *l, const struct ct_tensor *x,
                           const struct ct_tensor *w)
{
    int64_t size = w->shape[1], all = blocks_of(w->shape[0]) * BLOCK;
    struct conv c = {.batch = ct_shape_count(x->ndim - 2, x->shape),
                     .tokens = x->shape[x->ndim - 2],
                     .channels = x->shape[x->ndim - 1],
                     .size = size,
                     .w = l->workspace};

    c.bias = c.w + all * size;
    c.dw = c.bias + all;
    for (int64_t k = 0; k < c.channels; k++)
        for (int64_t j = 0; j < size; j++)
            c.w[(k / BLOCK * size + j) * BLOCK + k % BLOCK] =
                (float)ct_tensor_load(w, k * size + size - 1 - j);
    return c;
}

/* A state [.., rows, channels], so that row -1 is the last one; dims: of its rows, and in front. */
static struct rows state_of(const struct ct_launch *l, int input, int64_t b, int dims)
{
    struct rows r = rows_of_input(l, input, b, dims);
    int64_t step = dims == 2 ? r.token : r.head;

    if (r.at)
        r = (struct rows){r.at + step * l->in[input].shape[l->in[input].ndim - 2], step, 0, r.size,
                          r.dtype};
    return r;
}

/* How many tokens one sees, itself among them; those of the state count. */
static int64_t taps(const struct conv *c, const struct sequence *s, int64_t token)
{
    int64_t count = 1;

    while (count < c->size && count <= token && !row_begins(&s->documents, token - count + 1))
        count++;
    return count > token && s->state.at ? c->size : count;
}

/* Let a token's row of a block come into the cache. */
static void fetch(const struct rows *r, struct cpu_range channels, int64_t token)
{
    int64_t size = (int64_t)ct_dtype_size(r->dtype);
    const char *row = row_at(r, token, 0);

    for (int64_t at = channels.begin * size; at < channels.end * size; at += 64)
        __builtin_prefetch(row + at);
}

static const char *input_at(const struct sequence *s, int64_t token)
{
    return row_at(token < 0 ? &s->state : &s->x, token, 0);
}

CPU_INLINE void forward_token(enum ct_dtype dtype, const struct conv *c, const struct sequence *s,
                              struct cpu_range channels, int64_t token)
{
    int64_t count = taps(c, s, token);
    char *y = row_at(&s->to, token, 0);

    if (token + AHEAD < c->tokens)
        fetch(&s->x, channels, token + AHEAD);
    for (int64_t k = channels.begin; k < channels.end; k += CPU_LANES) {
        vf sum = v_load(c->bias + k);

        for (int64_t j = 0; j < count; j++)
            sum += v_load(taps_at(c->w, c, channels, j) + k) *
                   v_get(dtype, input_at(s, token - j), k, channels.end);
        v_put(dtype, y, k, channels.end, sum);
    }
}

bool CPU_ISA(cpu_causal_conv_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && p->out[0].dtype == dtype;
}

int CPU_ISA(cpu_causal_conv_prepare)(struct ct_prepare *p)
{
    prepare_causal_conv(p, &p->in[1], p->in[1].shape[1] + 1);
    return 0;
}

static struct cpu_range block_of(const struct conv *c, int64_t block)
{
    int64_t begin = block * BLOCK, end = begin + BLOCK;

    return (struct cpu_range){begin, end < c->channels ? end : c->channels};
}

static struct sequence forward_sequence(const struct ct_launch *l, int64_t b)
{
    bool part = l->ins > STATE && l->in[STATE].data;

    return (struct sequence){.x = rows_of(l->in, b, 2),
                             .to = rows_of(l->out, b, 2),
                             .documents = rows_of_input(l, DOCUMENTS, b, 1),
                             .state = state_of(l, part ? STATE : BEFORE, b, part ? 2 : 3)};
}

/* Channels of a sequence. */
CPU_INLINE void forward_row(enum ct_dtype dtype, const struct conv *c, const struct ct_launch *l,
                            struct cpu_range channels, int64_t b)
{
    const struct ct_tensor *slots = l->ins > SLOTS && l->in[SLOTS].data ? &l->in[SLOTS] : NULL;
    int64_t used = ct_slots_used(slots, b, c->tokens), item = (int64_t)ct_dtype_size(dtype);
    int64_t first = channels.begin * item, rows = c->size - 1;
    size_t bytes = (size_t)((channels.end - channels.begin) * item);
    struct sequence s = forward_sequence(l, b);

    for (int64_t i = 1; slots && ct_slots_begin(slots, b) && i <= rows; i++)
        memset(row_at(&s.state, -i, 0) + first, 0, bytes);
    for (int64_t t = 0; t < used; t++)
        forward_token(dtype, c, &s, channels, t);
    for (int64_t t = used; t < c->tokens; t++)
        memset(row_at(&s.to, t, 0) + first, 0, bytes);
    for (int64_t i = 0; slots && used && i < rows; i++)
        memcpy(row_at(&s.state, i - rows, 0) + first, input_at(&s, used - rows + i) + first, bytes);
}

int CPU_ISA(cpu_causal_conv_run)(const struct ct_launch *l)
{
    struct conv c = conv_of(l, &l->in[0], &l->in[1]);
    int64_t blocks = blocks_of(c.channels);

    for (int64_t k = 0; k < blocks_of(c.channels) * BLOCK; k++)
        c.bias[k] =
            l->ins > 2 && l->in[2].data && k < c.channels ? (float)ct_tensor_load(&l->in[2], k) : 0;
#pragma omp parallel for if (cpu_worth_threads(ct_tensor_count(l->in)))
    for (int64_t i = 0; i < c.batch * blocks; i++)
        if (l->in[0].dtype == CT_F32)
            forward_row(CT_F32, &c, l, block_of(&c, i % blocks), i / blocks);
        else
            forward_row(CT_BF16, &c, l, block_of(&c, i % blocks), i / blocks);
    return 0;
}

/* ---- gradient ---- */

/* How many tokens see one: itself, and those behind it; most: so many of those. */
static int64_t viewers(const struct conv *c, const struct sequence *s, int64_t token)
{
    int64_t j = token < 0 ? -token : 1;

    while (j < c->size && token + j < c->tokens && taps(c, s, token + j) > j)
        j++;
    return j;
}

/* The gradient of a token: what these saw of it, from the first of the sequence on. */
CPU_INLINE vf gradient_at(enum ct_dtype dtype, const struct conv *c, const struct sequence *s,
                          struct cpu_range channels, int64_t token, int64_t count, int64_t k)
{
    vf sum = {0};

    for (int64_t j = token < 0 ? -token : 0; j < count; j++)
        sum += v_load(taps_at(c->w, c, channels, j) + k) *
               v_get(dtype, row_at(&s->dy, token + j, 0), k, channels.end);
    return sum;
}

/* The token's place in the state behind: it is among the last ones, in their document. */
static const char *after_of(const struct conv *c, const struct sequence *s, int64_t token)
{
    bool last = s->after.at && token >= c->tokens - c->size + 1;

    for (int64_t t = token + 1; last && t < c->tokens; t++)
        last = !row_begins(&s->documents, t);
    return last ? row_at(&s->after, token - c->tokens, 0) : NULL;
}

CPU_INLINE void gradient_token(enum ct_dtype dtype, const struct conv *c, const struct sequence *s,
                               struct cpu_range channels, int64_t token)
{
    int64_t count = taps(c, s, token), later = viewers(c, s, token);
    const char *dy = row_at(&s->dy, token, 0), *after = after_of(c, s, token);
    char *dx = row_at(&s->to, token, 0);

    if (token + AHEAD < c->tokens) {
        fetch(&s->x, channels, token + AHEAD);
        fetch(&s->dy, channels, token + AHEAD);
    }
    for (int64_t k = channels.begin; k < channels.end; k += CPU_LANES) {
        vf d = v_get(dtype, dy, k, channels.end);
        vf old = s->add ? v_get(dtype, dx, k, channels.end) : v_set(0);

        if (after)
            old += v_get(CT_F32, after, k, channels.end);
        v_store(c->bias + k, v_load(c->bias + k) + d);
        for (int64_t j = 0; j < count; j++) {
            float *dw = taps_at(c->dw, c, channels, j) + k;

            v_store(dw, v_load(dw) + d * v_get(dtype, input_at(s, token - j), k, channels.end));
        }
        v_put(dtype, dx, k, channels.end,
              old + gradient_at(dtype, c, s, channels, token, later, k));
    }
}

static struct sequence gradient_sequence(const struct ct_launch *l, int64_t b)
{
    return (struct sequence){.x = rows_of(&l->in[1], b, 2),
                             .dy = rows_of(&l->in[0], b, 2),
                             .to = rows_of(l->out, b, 2),
                             .documents = rows_of_input(l, 3, b, 1),
                             .state = state_of(l, 4, b, 3),
                             .after = state_of(l, 5, b, 3),
                             .add = l->accumulate & 1};
}

/* Stores or adds a block's columns of dw and dbias. */
static void store_block(const struct ct_launch *l, const struct conv *c, struct cpu_range channels)
{
    const struct ct_tensor *dw = l->out + 1, *dbias = l->out + 2;
    bool add = l->accumulate >> 1 & 1, add_bias = l->accumulate >> 2 & 1;

    for (int64_t k = channels.begin; k < channels.end; k++) {
        for (int64_t j = 0; j < c->size; j++) {
            int64_t i = k * c->size + c->size - 1 - j;

            ct_tensor_store(dw, i,
                            (add ? ct_tensor_load(dw, i) : 0) +
                                (double)taps_at(c->dw, c, channels, j)[k]);
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
    prepare_causal_conv(p, &p->in[2], 2 * p->in[2].shape[1] + 1);
    return 0;
}

int CPU_ISA(cpu_causal_conv_grad_run)(const struct ct_launch *l)
{
    struct conv c = conv_of(l, &l->in[1], &l->in[2]);
    int64_t blocks = blocks_of(c.channels);

    memset(c.bias, 0, sizeof(float) * (size_t)(blocks_of(c.channels) * BLOCK * (c.size + 1)));
#pragma omp parallel for if (cpu_worth_threads(ct_tensor_count(l->in)))
    for (int64_t i = 0; i < blocks; i++) {
        struct cpu_range channels = block_of(&c, i);

        for (int64_t b = 0; b < c.batch; b++) {
            struct sequence s = gradient_sequence(l, b);

            for (int64_t t = 0; t < c.tokens; t++)
                if (s.x.dtype == CT_F32)
                    gradient_token(CT_F32, &c, &s, channels, t);
                else
                    gradient_token(CT_BF16, &c, &s, channels, t);
        }
        store_block(l, &c, channels);
    }
    return 0;
}

/* ---- segments ---- */

bool CPU_ISA(cpu_causal_conv_carry_accepts)(const struct ct_prepare *p)
{
    return cpu_is_compute_dtype(p->in[0].dtype);
}

int CPU_ISA(cpu_causal_conv_carry_run)(const struct ct_launch *l)
{
    const struct ct_tensor *x = l->in, *tail = l->out;
    int64_t tokens = x->shape[x->ndim - 2], rows = tail->shape[tail->ndim - 2];
    size_t bytes = (size_t)x->shape[x->ndim - 1] * ct_dtype_size(x->dtype);

    for (int64_t b = 0; b < ct_shape_count(x->ndim - 2, x->shape); b++) {
        struct rows from = rows_of(x, b, 2), documents = rows_of_input(l, 1, b, 1);
        struct rows to = rows_of(tail, b, 3);
        bool same = true;

        for (int64_t i = 1; i <= rows; i++) {
            char *row = to.at + (rows - i) * to.head;

            same = same && i <= tokens && (i == 1 || !row_begins(&documents, tokens - i + 1));
            if (same)
                memcpy(row, row_at(&from, tokens - i, 0), bytes);
            else
                memset(row, 0, bytes);
        }
    }
    return 0;
}

bool CPU_ISA(cpu_causal_conv_dstate_accepts)(const struct ct_prepare *p)
{
    return cpu_is_compute_dtype(p->in[0].dtype);
}

int CPU_ISA(cpu_causal_conv_dstate_prepare)(struct ct_prepare *p)
{
    prepare_causal_conv(p, &p->in[1], p->in[1].shape[1]);
    return 0;
}

int CPU_ISA(cpu_causal_conv_dstate_run)(const struct ct_launch *l)
{
    struct conv c = conv_of(l, &l->in[0], &l->in[1]);

    for (int64_t b = 0; b < c.batch; b++) {
        struct rows to = rows_of(l->out, b, 3);
        struct sequence s = {.dy = rows_of(l->in, b, 2), .documents = rows_of_input(l, 2, b, 1)};

        s.state = s.dy;
        for (int64_t i = 1; i < c.size; i++) {
            int64_t count = viewers(&c, &s, -i);
            char *row = to.at + (c.size - 1 - i) * to.head;

            for (int64_t k = 0; k < c.channels; k += CPU_LANES) {
                struct cpu_range own = block_of(&c, k / BLOCK);

                v_put(CT_F32, row, k, own.end,
                      s.dy.dtype == CT_F32 ? gradient_at(CT_F32, &c, &s, own, -i, count, k)
                                           : gradient_at(CT_BF16, &c, &s, own, -i, count, k));
            }
        }
    }
    return 0;
}
