/* See attention.h. Both kernels run in turn, and the median of the ratios of their times counts. */
#include <stdio.h>
#include <stdlib.h>

#include <ctitan/arena.h>
#include <ctitan/clock.h>

#include "attention.h"
#include "tuning.h"

#define PAIRS 9
#define MARGIN 1.05
#define TOKENS 512 /* of the measured call, of one sequence, */
#define HEADS_A_THREAD 4
#define MOST_SIZE 512 /* of a measured head: for larger ones too */
#define ONE 0x3f80    /* 1 in bfloat16 */
#define OPERANDS 9

const struct cpu_unit *cpu_attention_unit(void)
{
    switch (cpu_config.attention) {
    case CPU_ATTENTION_FLOAT32:
        return NULL;
    case CPU_ATTENTION_BFLOAT16:
        return cpu_best_unit();
    case CPU_ATTENTION_EMULATED:
        return &cpu_unit_emulated;
    default:
        return cpu_bf16_native() ? cpu_best_unit() : NULL;
    }
}

/* A call of the op with tensors of its own. */
struct trial {
    struct ct_arena arena;
    struct ct_op op;
    struct ct_tensor operands[OPERANDS]; /* inputs, then outputs */
    struct ct_prepare prepare;
};

static int64_t measured_size(const struct ct_tensor *like)
{
    return like->shape[3] < MOST_SIZE ? like->shape[3] : MOST_SIZE;
}

static struct ct_tensor ones(struct ct_arena *arena, enum ct_dtype dtype, int ndim,
                             const int64_t *shape)
{
    struct ct_tensor t = ct_tensor_dense(NULL, dtype, ndim, shape);
    int64_t count = ct_tensor_count(&t);

    t.data = ct_arena_alloc(arena, (size_t)count * ct_dtype_size(dtype));
    for (int64_t i = 0; i < count; i++)
        if (dtype == CT_F32)
            ((float *)t.data)[i] = 1;
        else
            ((uint16_t *)t.data)[i] = ONE;
    return t;
}

/* q, k, v -> o, lse; or grad, q, k, v, o, lse -> dq, dk, dv: causal, all heads their own. */
static void begin(struct trial *t, const struct ct_prepare *like)
{
    bool backward = like->outs == 3;
    int ins = backward ? 6 : 3, lse = backward ? 5 : 4, all = backward ? 9 : 5;
    int64_t heads = HEADS_A_THREAD * cpu_threads();
    int64_t shape[4] = {1, TOKENS, heads}, of_lse[3] = {1, heads, TOKENS};

    t->op = *like->op;
    t->op.attrs = ct_arena_alloc(&t->arena, like->op->type->attrs_size);
    ct_attributes_reset(like->op->type->attrs, t->op.attrs);
    for (int i = 0; i < all; i++) {
        shape[3] = measured_size(i < ins ? &like->in[i] : &like->out[i - ins]);
        t->operands[i] =
            i == lse ? ones(&t->arena, CT_F32, 3, of_lse) : ones(&t->arena, CT_BF16, 4, shape);
    }
    t->prepare = (struct ct_prepare){.op = &t->op,
                                     .in = t->operands,
                                     .out = t->operands + ins,
                                     .ins = ins,
                                     .outs = all - ins,
                                     .arena = &t->arena};
}

static int prepare_way(struct trial *t, const struct ct_kernel *way, struct ct_launch *launch)
{
    struct ct_prepare p = t->prepare;
    int rc = way->prepare(&p);
    char *workspace = ct_arena_alloc(&t->arena, p.workspace + 64);

    *launch = (struct ct_launch){.op = p.op,
                                 .in = p.in,
                                 .out = p.out,
                                 .ins = p.ins,
                                 .outs = p.outs,
                                 .workspace = workspace + (64 - (uintptr_t)workspace % 64) % 64,
                                 .state = p.state};
    return rc;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct question {
    const struct ct_prepare *prepare;
    const struct ct_kernel *const *ways;
};

/* Time of float32 divided by that of the unit. */
static double measure(void *context)
{
    const struct question *question = context;
    struct trial t = {0};
    struct ct_launch launches[2];
    double ratio[PAIRS];
    int rc = 0;

    begin(&t, question->prepare);
    for (int way = 0; rc >= 0 && way < 2; way++)
        rc = prepare_way(&t, question->ways[way], &launches[way]);
    for (int i = -1; rc >= 0 && i < PAIRS; i++) {
        double times[3] = {ct_now()};

        for (int way = 0; rc >= 0 && way < 2; way++) {
            rc = question->ways[way]->run(&launches[way]);
            times[way + 1] = ct_now();
        }
        if (i >= 0)
            ratio[i] = (times[1] - times[0]) / (times[2] - times[1]);
    }
    ct_arena_finish(&t.arena);
    if (rc < 0)
        return -1;
    qsort(ratio, PAIRS, sizeof(*ratio), rising);
    return ratio[PAIRS / 2];
}

/* Head sizes of q and k, and of v if they differ. */
static const char *sizes_of(const struct ct_prepare *p, char text[48])
{
    const struct ct_tensor *q = &p->in[p->outs == 3 ? 1 : 0], *v = q + 2;
    long long size = measured_size(q), of_v = measured_size(v);

    if (size == of_v)
        snprintf(text, 48, "%lld", size);
    else
        snprintf(text, 48, "%lld-%lld", size, of_v);
    return text;
}

bool cpu_choose_attention(const struct ct_prepare *prepare, const struct ct_kernel *const ways[2])
{
    const struct cpu_unit *unit = cpu_attention_unit();
    char name[96], sizes[48];

    if (cpu_config.attention != CPU_ATTENTION_AUTO)
        return true;
    snprintf(name, sizeof(name), "%s.%s.%s.%d", unit->name, prepare->op->type->name,
             sizes_of(prepare, sizes), cpu_threads());
    return cpu_tuned(name, measure, &(struct question){prepare, ways}) > MARGIN;
}
