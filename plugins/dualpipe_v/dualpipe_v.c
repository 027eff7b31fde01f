/*
 * DualPipeV (DeepSeek-AI 2025; "split in half" by Qi et al.): each rank has two stages, placed as a
 * V. In the steady phase, every forward runs together with a backward of the rank's other stage
 * (OVERLAP_F_B), so that one's communication overlaps the other's computation.
 */
#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

struct rank {
    const struct ct_schedule_request *request;
    struct ct_action_list *list;
    int stage[2];                /* down, and up again */
    int forward[2], backward[2]; /* next microbatch of each stage */
    struct ct_action *owed;      /* weight gradients still to be computed, oldest first */
    int owed_first, owed_count;
};

static void add(struct rank *x, enum ct_action_type type, int leg, int microbatch)
{
    ct_schedule_add(x->request, x->list, type, x->stage[leg], microbatch);
}

static void forward(struct rank *x, int leg)
{
    add(x, CT_ACTION_F, leg, x->forward[leg]++);
}

static void backward(struct rank *x, int leg)
{
    add(x, CT_ACTION_B, leg, x->backward[leg]++);
}

/* Compute the input gradient only; the weight gradient becomes owed. */
static void backward_input(struct rank *x, int leg)
{
    x->owed[x->owed_count++] =
        (struct ct_action){CT_ACTION_W, x->stage[leg], x->backward[leg], .microbatch_b = -1};
    add(x, CT_ACTION_I, leg, x->backward[leg]++);
}

static void weight(struct rank *x)
{
    ct_action_append(x->request->arena, x->list, x->owed[x->owed_first++]);
}

/* F of one leg with B of the other. */
static void both(struct rank *x, int leg)
{
    ct_action_append(x->request->arena, x->list,
                     (struct ct_action){CT_ACTION_OVERLAP_F_B, x->stage[leg], x->forward[leg]++,
                                        x->stage[!leg], x->backward[!leg]++});
}

static void warm_up(struct rank *x, int rank, int ranks)
{
    for (int i = 0; i < 2 * (ranks - 1 - rank); i++)
        forward(x, 0);
    for (int i = 0; i <= rank; i++) {
        forward(x, 0);
        forward(x, 1);
    }
    for (int i = 0; i < ranks - 1 - rank; i++) {
        backward_input(x, 1);
        weight(x);
        forward(x, 1);
    }
}

static void steady(struct rank *x, int rank, int ranks)
{
    int rounds = x->request->microbatches - 2 * ranks + rank + 1;

    for (int i = 0; i < rounds; i++) {
        if (i == 0 && rank == ranks - 1) {
            /* the first backward needs the forward just done, so nothing overlaps yet */
            forward(x, 0);
            backward(x, 1);
        } else {
            both(x, 0);
        }
        both(x, 1);
    }
    for (int i = 0; i < ranks - 1 - rank; i++) {
        backward(x, 1);
        both(x, 1);
    }
}

/* In the second half of this phase, only input gradients, because other ranks wait for them. */
static void cool_down(struct rank *x, int rank, int ranks)
{
    for (int i = 0; i < 2 * (rank + 1); i++) {
        int leg = i % 2 == 0;

        if (i > rank)
            backward_input(x, leg);
        else
            backward(x, leg);
    }
    for (int i = 0; i < ranks - 1 - rank; i++) {
        weight(x);
        backward_input(x, 0);
    }
    while (x->owed_first < x->owed_count)
        weight(x);
}

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    int ranks = request->ranks, microbatches = request->microbatches;

    if (microbatches < 2 * ranks)
        return ct_fail(CT_ECONFIG,
                       "%d microbatches on %d ranks: at least two for each rank are needed, %d; "
                       "make microbatches smaller, or take another schedule",
                       microbatches, ranks, 2 * ranks);
    for (int rank = 0; rank < ranks; rank++) {
        struct rank x = {request, &lists[rank], {rank, request->stages - 1 - rank}};

        x.owed = ct_arena_array(request->arena, struct ct_action, 2 * microbatches);
        warm_up(&x, rank, ranks);
        steady(&x, rank, ranks);
        cool_down(&x, rank, ranks);
    }
    return 0;
}

static const struct ct_schedule_ops schedule = {
    .size = sizeof(struct ct_schedule_ops),
    .summary = "stages as a V, forwards overlapped with backwards",
    .stages_per_rank_min = 2,
    .stages_per_rank_max = 2,
    .placement = ct_schedule_v,
    .generate = generate,
};

CT_PLUGIN(.name = "dualpipe_v", .version = "1.0",
          .summary = "Pipeline schedule: stages as a V, forwards overlapped with backwards",
          .offers = CT_OFFERS({CT_SCHEDULE, "dualpipe_v", &schedule}));
