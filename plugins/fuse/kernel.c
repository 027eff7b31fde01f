/*
 * The kernel of "fused" for devices in host memory.
 *
 * Rows are divided into blocks whose number depends on the rows alone, so that sums over rows do
 * not depend on the number of threads. Each block has its own scratch rows and sums.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op_author.h>

#include "fuse.h"

#define MOST_BLOCKS 64
#define FLAT 4096             /* elements of a block of flat code */
#define WORTH_A_THREAD 131072 /* elements of all operands together */

static const struct fuse_target host;

struct state {
    void *function; /* a fuse_function */
    struct fuse_code code;
    struct fuse_program program;
};

const struct ct_tensor *fuse_whole(const struct ct_tensor *in, int ins)
{
    const struct ct_tensor *t = in;

    for (int i = 1; i < ins; i++)
        if (in[i].ndim > t->ndim)
            t = &in[i];
    return t;
}

static bool fits(const struct ct_tensor *t, const struct ct_tensor *whole)
{
    struct ct_matrix m;

    if (t->dtype != CT_F32 && t->dtype != CT_BF16 && !(t->dtype == CT_F64 && t->ndim == 0))
        return false;
    return t->ndim == whole->ndim ? ct_tensor_as_matrix(t, &m) : ct_tensor_is_dense(t);
}

bool fuse_accepts(const struct ct_prepare *p)
{
    const struct ct_tensor *t = fuse_whole(p->in, p->ins);

    for (int i = 0; i < p->ins + p->outs; i++)
        if (!fits(i < p->ins ? &p->in[i] : &p->out[i - p->ins], t))
            return false;
    return p->ins > 0;
}

/* An operand of a call on tensors of ndim dimensions. Clears dense if its rows are apart. */
static struct ct_compiled_operand operand(const struct ct_tensor *t, int ndim, bool *dense)
{
    struct ct_matrix m = {0};

    if (t->ndim == ndim && ndim)
        ct_tensor_as_matrix(t, &m);
    *dense &= m.stride == m.columns || m.rows == 1;
    return (struct ct_compiled_operand){t->data, m.stride};
}

void fuse_size_call(const struct ct_tensor *in, int ins, const struct ct_tensor *out, int outs,
                    bool flat, struct ct_compiled_call *call)
{
    const struct ct_tensor *t = fuse_whole(in, ins);
    bool dense = true;

    for (int i = 0; i < ins; i++)
        call->in[i] = operand(&in[i], t->ndim, &dense);
    for (int i = 0; i < outs; i++)
        call->out[i] = operand(&out[i], t->ndim, &dense);
    call->rows = t->ndim ? ct_rows(t) : 1;
    call->columns = t->ndim ? ct_columns(t) : 1;
    call->flat = flat && dense;
    if (call->flat) {
        call->columns *= call->rows;
        call->rows = 1;
    }
}

static int blocks(int64_t rows)
{
    return (int)(rows < MOST_BLOCKS ? rows : MOST_BLOCKS);
}

static int prepare(struct ct_prepare *p)
{
    struct state *state = ct_arena_new(p->arena, struct state);
    const struct ct_tensor *t = fuse_whole(p->in, p->ins);
    int rc = fuse_read(p->op, p->arena, &state->program);

    if (rc < 0)
        return rc;
    fuse_write(&state->program, true, p->arena, &state->code);
    p->workspace = sizeof(float) * (size_t)(state->code.buffers + state->code.sums) *
                   (size_t)(t->ndim ? ct_columns(t) : 1) *
                   (size_t)(t->ndim ? blocks(ct_rows(t)) : 1);
    p->state = state;
    return fuse_load(&host, &state->code, &state->function);
}

struct call {
    const struct state *state;
    const struct ct_launch *launch;
    struct ct_compiled_call all;
    int64_t blocks;
};

static void run_blocks(void *context, int64_t begin, int64_t end)
{
    const struct call *c = context;
    const struct ct_compiled_call *all = &c->all;
    const struct fuse_code *code = &c->state->code;
    fuse_function *function;

    memcpy(&function, &c->state->function, sizeof(function));
    for (int64_t b = begin; b < end; b++) {
        float *scratch = (float *)c->launch->workspace +
                         (size_t)b * (size_t)((code->buffers + code->sums) * all->columns);
        float *sums = scratch + code->buffers * all->columns;
        int64_t last = all->flat && (b + 1) * FLAT < all->columns ? (b + 1) * FLAT : all->columns;

        if (code->sums)
            memset(sums, 0, sizeof(float) * (size_t)(code->sums * all->columns));
        if (all->flat)
            function(all->in, all->out, 0, 1, b * FLAT, last, NULL, NULL);
        else
            function(all->in, all->out, all->rows * b / c->blocks, all->rows * (b + 1) / c->blocks,
                     0, all->columns, scratch, sums);
    }
}

/* Add up the sums of all blocks, in their order. */
static void finish_sums(const struct call *c)
{
    const struct fuse_code *code = &c->state->code;
    int64_t columns = c->all.columns;
    int sum = code->buffers;

    for (int i = 0; i < c->launch->outs; i++) {
        const struct ct_tensor *t = &c->launch->out[i];
        bool narrow = c->state->program.out_dtype[i] == CT_BF16;
        float *first;

        if (c->state->program.p.node[c->state->program.out[i]].level != CT_BY_COLUMN)
            continue;
        first = (float *)c->launch->workspace + sum * columns;
        for (int64_t b = 1; b < c->blocks; b++)
            for (int64_t j = 0; j < columns; j++)
                first[j] += first[b * (code->buffers + code->sums) * columns + j];
        for (int64_t j = 0; j < columns; j++)
            if (narrow)
                ((uint16_t *)t->data)[j] = ct_f32_to_bf16(first[j]);
            else
                ((float *)t->data)[j] = first[j];
        sum++;
    }
}

static int run(const struct ct_launch *l)
{
    const struct state *state = l->state;
    struct call c = {.state = state, .launch = l};
    const struct ct_compiled_call *all = &c.all;

    fuse_size_call(l->in, l->ins, l->out, l->outs, state->code.flat, &c.all);
    c.blocks = all->flat ? (all->columns + FLAT - 1) / FLAT : blocks(all->rows);
    if (all->rows * all->columns * (l->ins + l->outs) < WORTH_A_THREAD)
        run_blocks(&c, 0, c.blocks);
    else
        ct_parallel(l, c.blocks, run_blocks, &c);
    if (state->code.sums)
        finish_sums(&c);
    return 0;
}

const struct ct_kernel fuse_cpu_kernels[] = {
    CT_KERNEL("fused", "compiled", CT_KERNEL_STRIDED, fuse_accepts, prepare, run), {0}};
