/*
 * AdamW (Loshchilov and Hutter 2019) over all tensors at once.
 *
 * Tensors whose p, g, m and v each follow the previous tensor's in memory form one run; the memory
 * plan places them that way. The elements of all runs are divided into tasks, which the threads
 * share (tasks.h).
 */
#include <math.h>

#include <ctitan/error.h>

#include "cpu.h"
#include "loops.h"
#include "panel_pack.h"
#include <ctitan/lib/cpu/tasks.h>

#define HEAD 3          /* lr, step, clip */
#define MOST 5          /* operands in the shape of the parameter: p, g, m, v, copy */
#define TASK (64 << 10) /* elements */
#define SHARD 32        /* elements; a multiple of 64 bytes in every dtype */

struct run {
    char *data[MOST];
    enum ct_dtype dtype[MOST];
    int64_t count, first; /* number of elements; elements of all earlier runs */
};

struct adamw {
    struct run *run; /* capacity: one run per tensor */
    int group;       /* operands of each tensor */
};

struct call {
    struct cpu_adamw step;
    const struct run *run;
    int runs;
    int64_t count;
    struct cpu_tasks tasks;
};

/* ---- preparing ---- */

static bool takes(const struct ct_prepare *p, int i, int group)
{
    for (int j = 0; j < group; j++)
        if (p->present[i + j] &&
            (!cpu_is_compute_dtype(p->in[i + j].dtype) || !ct_tensor_is_dense(&p->in[i + j])))
            return false;
    if (group == MOST && p->present[i + 4] &&
        (p->in[i].dtype != CT_F32 || p->in[i + 4].dtype != CT_BF16))
        return false;
    return p->in[i + 2].dtype == p->in[i + 3].dtype;
}

static bool accepts_groups(const struct ct_prepare *p, int group)
{
    for (int i = HEAD; i < p->ins; i += group)
        if (!takes(p, i, group))
            return false;
    return true;
}

static bool accepts_adamw(const struct ct_prepare *p)
{
    return accepts_groups(p, MOST - 1);
}

static bool accepts_copies(const struct ct_prepare *p)
{
    return accepts_groups(p, MOST);
}

static int prepare_groups(struct ct_prepare *p, int group)
{
    struct adamw *state = ct_arena_new(p->arena, struct adamw);

    *state = (struct adamw){.run = ct_arena_array(p->arena, struct run, (p->ins - HEAD) / group),
                            .group = group};
    p->state = state;
    p->workspace = CPU_LINE_BYTES + cpu_tasks_bytes(cpu_threads());
    return 0;
}

static int prepare_adamw(struct ct_prepare *p)
{
    return prepare_groups(p, MOST - 1);
}

static int prepare_copies(struct ct_prepare *p)
{
    return prepare_groups(p, MOST);
}

/* ---- runs ---- */

/* A copy that is absent, or there is none: data and bytes are 0. */
static bool follows(const struct run *run, const struct ct_tensor *t, int group)
{
    for (int j = 0; j < group; j++)
        if (!run->data[j] != !t[j].data || run->dtype[j] != t[j].dtype ||
            (t[j].data &&
             run->data[j] + (size_t)run->count * ct_dtype_size(t[j].dtype) != t[j].data))
            return false;
    return true;
}

static struct run begin_run(const struct ct_tensor *t, int group)
{
    struct run run = {.count = ct_tensor_count(t)};

    for (int j = 0; j < group; j++) {
        run.data[j] = t[j].data;
        run.dtype[j] = t[j].dtype;
    }
    return run;
}

static void collect_runs(const struct ct_launch *l, const struct adamw *state, struct call *call)
{
    struct run *run = state->run;

    for (int i = 0; HEAD + i * state->group < l->ins; i++) {
        const struct ct_tensor *t = &l->in[HEAD + i * state->group];
        int64_t n = ct_tensor_count(t);

        if (call->runs && follows(&run[call->runs - 1], t, state->group)) {
            run[call->runs - 1].count += n;
        } else {
            run[call->runs] = begin_run(t, state->group);
            run[call->runs++].first = call->count;
        }
        call->count += n;
    }
    call->run = run;
}

/* ---- updating ---- */

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

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void update_range(const struct call *c, struct cpu_range range)
{
    for (int i = 0; i < c->runs; i++) {
        const struct run *run = &c->run[i];
        int64_t begin = range.begin > run->first ? range.begin - run->first : 0;
        int64_t end = least(range.end - run->first, run->count);

        if (begin < end)
            update_part(c->step, run, begin, end);
    }
}

static void update(void *context, int thread, int threads)
{
    const struct call *c = context;
    int64_t task;

    (void)threads;
    while ((task = cpu_next_task(&c->tasks, thread)) >= 0)
        update_range(c, (struct cpu_range){task * TASK, (task + 1) * TASK});
}

static int run_adamw(const struct ct_launch *l)
{
    const struct adamw *state = l->state;
    double lr = ct_tensor_load(&l->in[0], 0) * ct_op_float(l->op, "lr_factor");
    double t = ct_tensor_load(&l->in[1], 0);
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
    collect_runs(l, state, &call);
    call.tasks = cpu_tasks_begin(cpu_first_line(l->workspace), (call.count + TASK - 1) / TASK,
                                 cpu_threads());
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
    CT_KERNEL("adamw", "vector", 0, accepts_adamw, prepare_adamw, run_adamw),
    CT_KERNEL("adamw.copies", "vector", 0, accepts_copies, prepare_copies, run_adamw),
    CT_KERNEL("cast_into", "vector", 0, accepts_copy, NULL, run_copy),
    {0}};
