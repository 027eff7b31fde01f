/*
 * Pipeline actions: what a rank does in a step, before it is lowered.
 *
 * As in torch.distributed.pipelining: text "<stage><type><microbatch>", "2F0", "1UNSHARD",
 * "3SEND_F1". A schedule plugin returns one list of compute actions per pipeline rank; the core
 * adds communication. Without pipeline parallelism the list is F0 B0 F1 B1 ...
 * (ct_schedule_trivial).
 */
#ifndef CT_SCHEDULE_H
#define CT_SCHEDULE_H

#include <ctitan/arena.h>

#define CT_ACTIONS(X)                                                                              \
    X(F, "F")                                                                                      \
    X(I, "I")                                                                                      \
    X(W, "W")                                                                                      \
    X(B, "B")                                                                                      \
    X(UNSHARD, "UNSHARD")                                                                          \
    X(RESHARD, "RESHARD")                                                                          \
    X(SEND_F, "SEND_F")                                                                            \
    X(RECV_F, "RECV_F")                                                                            \
    X(SEND_B, "SEND_B")                                                                            \
    X(RECV_B, "RECV_B")                                                                            \
    X(REDUCE_GRAD, "REDUCE_GRAD")                                                                  \
    X(OVERLAP_F_B, "OVERLAP_F_B")

enum ct_action_type {
#define X(id, text) CT_ACTION_##id,
    CT_ACTIONS(X)
#undef X
        CT_ACTION_TYPES
};

struct ct_action {
    enum ct_action_type type;
    int stage, microbatch;     /* microbatch -1: none (UNSHARD and the like) */
    int stage_b, microbatch_b; /* the backward half of OVERLAP_F_B */
};

struct ct_action_list {
    struct ct_action *item;
    size_t count, room;
};

CT_API void ct_action_append(struct ct_arena *arena, struct ct_action_list *list,
                             struct ct_action action);
CT_API int ct_action_print(const struct ct_action *action, char *text, size_t room);
/* CT_EINVAL names what is wrong with the text. */
CT_API int ct_action_parse(const char *text, struct ct_action *action);

struct ct_schedule_request {
    int ranks, stages, microbatches;
    struct ct_arena *arena;
};

/* What a schedule plugin offers. */
struct ct_schedule_ops {
    const char *summary;
    int stages_per_rank_min, stages_per_rank_max;
    /* Rank that holds a stage. NULL: stage % ranks (looped). */
    int (*placement)(int stage, int ranks, int stages);
    /* Fill lists[rank] with compute actions. CT_ECONFIG: what the schedule cannot do, in words. */
    int (*generate)(const struct ct_schedule_request *request, struct ct_action_list *lists);
};

/* One rank, all stages on it, microbatch by microbatch: F then B. */
CT_API void ct_schedule_trivial(const struct ct_schedule_request *request,
                                struct ct_action_list *list);
/* Forward only: for evaluation. */
CT_API void ct_schedule_forward(const struct ct_schedule_request *request,
                                struct ct_action_list *list);

#endif
