/*
 * ZB-V (Qi et al. 2024, "Pipeline parallelism with controllable memory"): each rank has two stages,
 * placed as a V. The last stage is on the first rank, and a microbatch turns around on the last
 * rank without a transfer. With F, I and W of equal length, ranks wait only while the first
 * microbatch arrives and the last one leaves. Each rank holds as many activations as the first rank
 * of 1F1B.
 *
 * The pattern is for at least 2 ranks - 1 microbatches; in shorter steps, the missing ones are
 * skipped.
 */
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

struct rank {
    const struct ct_schedule_request *request;
    struct ct_action_list *list;
    int stage[2];                           /* down, and up again */
    int forward[2], backward[2], weight[2]; /* next microbatch of each stage */
};

static void add(struct rank *x, enum ct_action_type type, int leg, int *next)
{
    if (*next < x->request->microbatches)
        ct_schedule_add(x->request, x->list, type, x->stage[leg], *next);
    ++*next;
}

static void forward(struct rank *x, int leg)
{
    add(x, CT_ACTION_F, leg, &x->forward[leg]);
}

static void backward(struct rank *x, int leg)
{
    add(x, CT_ACTION_I, leg, &x->backward[leg]);
}

static void weight(struct rank *x, int leg)
{
    add(x, CT_ACTION_W, leg, &x->weight[leg]);
}

/* Until the first backward of the downward leg: as many forwards as fit into a round trip. */
static void warm_up(struct rank *x, int rank, int ranks)
{
    for (int i = 0; i < 2 * (ranks - rank) - 1; i++)
        forward(x, 0);
    for (int i = 0; i < rank; i++) {
        forward(x, 1);
        forward(x, 0);
    }
    for (int i = 0; i < ranks - rank; i++) {
        forward(x, 1);
        backward(x, 1);
        weight(x, 1);
    }
}

/* Alternate between the legs, F I W on each, until all forwards are done. */
static void steady(struct rank *x, int all)
{
    while (x->forward[1] < x->forward[0] || x->forward[0] < all) {
        if (x->forward[0] < all)
            forward(x, 0);
        backward(x, 0);
        weight(x, 0);
        forward(x, 1);
        backward(x, 1);
        weight(x, 1);
    }
}

/* Input gradients are passed on first; weight gradients fill the waits and the end. */
static void cool_down(struct rank *x, int rank, int ranks)
{
    for (int i = 0; i < rank; i++) {
        backward(x, 0);
        backward(x, 1);
    }
    for (int i = 0; i < ranks - rank; i++) {
        backward(x, 0);
        weight(x, 0);
    }
    for (int leg = 1; leg >= 0; leg--)
        while (x->weight[leg] < x->backward[leg])
            weight(x, leg);
}

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    int ranks = request->ranks, least = 2 * ranks - 1;
    int all = request->microbatches > least ? request->microbatches : least;

    for (int rank = 0; rank < ranks; rank++) {
        struct rank x = {request, &lists[rank], {rank, request->stages - 1 - rank}};

        warm_up(&x, rank, ranks);
        steady(&x, all);
        cool_down(&x, rank, ranks);
    }
    return 0;
}

static const struct ct_schedule_ops schedule = {
    .size = sizeof(struct ct_schedule_ops),
    .summary = "two stages on each rank, as a V, with weight gradients later",
    .stages_per_rank_min = 2,
    .stages_per_rank_max = 2,
    .placement = ct_schedule_v,
    .generate = generate,
};

CT_PLUGIN(.name = "zbv", .version = "1.0",
          .summary = "Pipeline schedule: stages as a V, weight gradients later (ZB-V)",
          .offers = CT_OFFERS({CT_SCHEDULE, "zbv", &schedule}));
