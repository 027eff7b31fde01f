/*
 * AdamW (Loshchilov and Hutter 2019) over all tensors at once.
 *
 * Tensors whose p, g, m and v each follow the previous tensor's in memory form one run; the memory
 * plan places them that way. The elements of all runs are divided evenly among the threads, in
 * shards of 64 bytes.
 */
#include <math.h>

#include <ctitan/error.h>

#include "cpu.h"
#include "loops.h"

#define HEAD 3   /* lr, step, clip */
#define MOST 5   /* operands: p, g, m, v, copy */
#define SHARD 32 /* elements; a multiple of 64 bytes in every dtype */

struct run {
    char *data[MOST];
    enum ct_dtype dtype[MOST];
    int64_t count, first; /* number of elements; elements of all earlier runs */
};

struct adamw {
    struct run *run; /* capacity: one run per tensor */
    int operands;    /* of each tensor */
};

struct call {
    struct cpu_adamw step;
    const struct run *run;
    int runs;
    int64_t count;
};

static bool takes(const struct ct_prepare *p, int i, int operands)
{
    for (int j = 0; j < operands; j++)
        if (p->present[i + j] &&
            (!cpu_is_compute_dtype(p->in[i + j].dtype) || !ct_tensor_is_dense(&p->in[i + j])))
            return false;
    if (operands > 4 && p->present[i + 4] &&
        (p->in[i].dtype != CT_F32 || p->in[i + 4].dtype != CT_BF16))
        return false;
    return p->in[i + 2].dtype == p->in[i + 3].dtype;
}

static bool accepts_groups(const struct ct_prepare *p, int operands)
{
    for (int i = HEAD; i < p->ins; i += operands)
        if (!takes(p, i, operands))
            return false;
    return true;
}

static bool accepts(const struct ct_prepare *p)
{
    return accepts_groups(p, 4);
}

static bool accepts_copies(const struct ct_prepare *p)
{
    return accepts_groups(p, 5);
}

static int prepare_groups(struct ct_prepare *p, int operands)
{
    struct adamw *state = ct_arena_new(p->arena, struct adamw);

    state->run = ct_arena_array(p->arena, struct run, (p->ins - HEAD) / operands);
    state->operands = operands;
    p->state = state;
    return 0;
}

static int prepare(struct ct_prepare *p)
{
    return prepare_groups(p, 4);
}

static int prepare_copies(struct ct_prepare *p)
{
    return prepare_groups(p, 5);
}

/* A copy that is absent, or there is none: data and bytes are 0. */
static bool follows(const struct run *run, const struct ct_tensor *t, int operands)
{
    for (int j = 0; j < operands; j++)
        if (!run->data[j] != !t[j].data || run->dtype[j] != t[j].dtype ||
            (t[j].data &&
             run->data[j] + (size_t)run->count * ct_dtype_size(t[j].dtype) != t[j].data))
            return false;
    return true;
}

static void collect_runs(const struct ct_launch *l, struct run *run, struct call *call)
{
    int operands = ((const struct adamw *)l->state)->operands;

    for (int i = HEAD; i < l->ins; i += operands) {
        const struct ct_tensor *t = &l->in[i];
        int64_t n = ct_tensor_count(t);

        if (call->runs && follows(&run[call->runs - 1], t, operands)) {
            run[call->runs - 1].count += n;
        } else {
            struct run *next = &run[call->runs++];

            *next = (struct run){.count = n, .first = call->count};
            for (int j = 0; j < operands; j++) {
                next->data[j] = t[j].data;
                next->dtype[j] = t[j].dtype;
            }
        }
        call->count += n;
    }
    call->run = run;
}

static void update_part(struct cpu_adamw step, const struct run *run, int64_t begin, int64_t end)
{
    char *at[MOST] = {0};

    for (int j = 0; j < MOST; j++)
        if (run->data[j])
            at[j] = run->data[j] + (size_t)begin * ct_dtype_size(run->dtype[j]);
    step.p = run->dtype[0];
    step.g = run->dtype[1];
    step.m = run->dtype[2];
    step.v = run->dtype[3];
    cpu_loops()->adamw(&step, at[0], at[1], at[2], at[3], (uint16_t *)at[4], end - begin);
}

static void update(void *context, int thread, int threads)
{
    const struct call *c = context;
    struct cpu_range mine = cpu_share(c->count, SHARD, thread, threads);

    for (int i = 0; i < c->runs; i++) {
        const struct run *run = &c->run[i];
        int64_t begin = mine.begin > run->first ? mine.begin - run->first : 0;
        int64_t end = mine.end - run->first < run->count ? mine.end - run->first : run->count;

        if (begin < end)
            update_part(c->step, run, begin, end);
    }
}

static int run(const struct ct_launch *l)
{
    const struct adamw *state = l->state;
    double lr = ct_tensor_load(&l->in[0], 0), t = ct_tensor_load(&l->in[1], 0);
    double clip = ct_tensor_load(&l->in[2], 0);
    double beta1 = ct_op_float(l->op, "beta1"), beta2 = ct_op_float(l->op, "beta2");
    struct call call = {0};

    if (clip < 0)
        return 0;
    call.step = (struct cpu_adamw){
        .decay = (float)(1 - lr * ct_op_float(l->op, "weight_decay")),
        .beta1 = (float)beta1,
        .beta2 = (float)beta2,
        .rest1 = (float)(1 - beta1),
        .rest2 = (float)(1 - beta2),
        .step_size = (float)(lr / (1 - pow(beta1, t))),
        .root_correction = (float)(1 / sqrt(1 - pow(beta2, t))),
        .eps = (float)ct_op_float(l->op, "eps"),
        .clip = (float)clip,
    };
    collect_runs(l, state->run, &call);
    cpu_parallel(update, &call);
    return 0;
}

/* ---- copies ---- */

static bool accepts_copy(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_BF16 && p->in[1].dtype == CT_F32;
}

static void copy(void *context, int thread, int threads)
{
    const struct ct_launch *l = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(&l->in[0]), SHARD, thread, threads);

    cpu_loops()->round((uint16_t *)l->in[0].data + mine.begin,
                       (const float *)l->in[1].data + mine.begin, mine.end - mine.begin);
}

static int run_copy(const struct ct_launch *l)
{
    cpu_parallel(copy, (void *)(uintptr_t)l);
    return 0;
}

const struct ct_kernel cpu_adamw_kernels[] = {
    CT_KERNEL("adamw", "vector", 0, accepts, prepare, run),
    CT_KERNEL("adamw.copies", "vector", 0, accepts_copies, prepare_copies, run),
    CT_KERNEL("adamw.copy", "vector", 0, accepts_copy, NULL, run_copy),
    {0}};
