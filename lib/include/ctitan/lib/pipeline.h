/*
 * Pipeline schedules: what each rank does in a step, as lists of actions, before it is lowered.
 *
 * An action is as in torch.distributed.pipelining: text "<stage><type><microbatch>", "2F0",
 * "1UNSHARD", "3SEND_F1". F is a forward, B a whole backward; I and W are a backward in two parts,
 * towards the inputs and towards the weights. A SEND bears the stage that made what it sends, a
 * RECV the stage that uses what it receives: 1SEND_F3 and 2RECV_F3 are one transfer, 2SEND_B3 and
 * 1RECV_B3 another.
 *
 * A schedule plugin returns lists of compute actions. The core adds communication
 * (ct_schedule_communicate), proves that the lists complete and cannot deadlock
 * (ct_schedule_verify), and runs them on a virtual clock (ct_schedule_simulate). Without pipeline
 * parallelism the list is F0 B0 F1 B1 ... (ct_schedule_trivial).
 */
#ifndef CT_SCHEDULE_H
#define CT_SCHEDULE_H

#include <stdio.h>

#include <ctitan/program.h>

CT_BEGIN_DECLS

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
    size_t size; /* of this struct */
    const char *summary;
    int stages_per_rank_min, stages_per_rank_max; /* 0: no limit */
    /* Rank that holds a stage. NULL: stage % ranks (looped). */
    int (*placement)(int stage, int ranks, int stages);
    /* Fill lists[rank] with compute actions. CT_ECONFIG: what the schedule cannot do, in words. */
    int (*generate)(const struct ct_schedule_request *request, struct ct_action_list *lists);
};

struct ct_offer;
/* What an offer of the kind CT_SCHEDULE points to, in this build's layout; CT_EABI: it is not. */
CT_API int ct_schedule_offered(const struct ct_offer *offer, const struct ct_schedule_ops **ops);

/* Append an action of one stage and microbatch to a list: what plugins do. */
CT_API void ct_schedule_add(const struct ct_schedule_request *request, struct ct_action_list *list,
                            enum ct_action_type type, int stage, int microbatch);

/* One rank, all stages on it, microbatch by microbatch: F then B. */
CT_API void ct_schedule_trivial(const struct ct_schedule_request *request,
                                struct ct_action_list *list);
/* Forward only: for evaluation. */
CT_API void ct_schedule_forward(const struct ct_schedule_request *request,
                                struct ct_action_list *list);

/* Rank that holds a stage: stage % ranks. */
CT_API int ct_schedule_looped(int stage, int ranks, int stages);
/* The same, but every second loop runs back: with two stages per rank, a V. */
CT_API int ct_schedule_v(int stage, int ranks, int stages);

/* ---- whole schedules ---- */

struct ct_schedule {
    const char *name;
    int ranks, stages, microbatches;
    const int *rank_of;           /* by stage */
    struct ct_action_list *lists; /* by rank */
    bool forward_only;
    bool communicates; /* has more than compute actions */
    bool own_streams;  /* right only where transfers have streams of their own */
    struct ct_arena *arena;
};

/*
 * The compute actions of a schedule, in request->arena. CT_ECONFIG: it cannot be had for this
 * number of ranks, stages or microbatches, in words. What the plugin made is not verified here.
 */
CT_API int ct_schedule_generate(const struct ct_schedule_ops *ops, const char *name,
                                const struct ct_schedule_request *request,
                                struct ct_schedule **schedule);

/* Forwards alone, for evaluation, of stages that lie as rank_of says (by stage; copied). */
CT_API int ct_schedule_forward_only(const struct ct_schedule_request *request, const int *rank_of,
                                    struct ct_schedule **schedule);

/*
 * A schedule from torch's CSV: a row for each rank, an action in each cell, empty cells are idle;
 * of compute actions alone, or with communication (then it `communicates`). ranks, stages,
 * microbatches: what the file must hold; -1: whatever it holds. CT_ECONFIG: it holds something
 * else, with row and column; CT_ENOENT, CT_EIO.
 */
CT_API int ct_schedule_read_csv(struct ct_arena *arena, const char *path, int ranks, int stages,
                                int microbatches, struct ct_schedule **schedule);
CT_API void ct_schedule_write_csv(const struct ct_schedule *schedule, FILE *out);

/* ---- communication ---- */

/* Times of one stage and one microbatch, in any unit. */
struct ct_costs {
    double forward, input, weight;                   /* F, I, W; a B takes I + W */
    const double *forward_of, *input_of, *weight_of; /* by stage, instead; or NULL */
    double send;                                     /* of a transfer between two ranks */
    double overlap;  /* share of its F + B that OVERLAP_F_B takes; 0: all of it */
    bool one_stream; /* transfers wait for compute actions, and these for them */
};

struct ct_communicate_options {
    bool unshard;       /* UNSHARD stages before their use, RESHARD them when others come first */
    int unsharded_most; /* at a time, on a rank; torch: 3. The next distinct stages are kept. */
    bool reduce_grad;   /* REDUCE_GRAD after a stage's last backward */
    const struct ct_costs *costs; /* that the order of transfers is made for; NULL: F = I = W */
};

/*
 * Add communication to compute actions. Every list stays consistent with one global order, in which
 * a SEND and its RECV are neighbours: no deadlock, even where each rank has one stream and a send
 * ends only when its receive does. The order is that of a run in which F, I and W take the times
 * of options->costs: a transfer stands where both its ranks are between two actions for the first
 * time after what it sends was made. CT_EINVAL: the compute actions do not verify.
 */
CT_API int ct_schedule_communicate(struct ct_schedule *schedule,
                                   const struct ct_communicate_options *options);

/*
 * Let each RECV stand in front of the compute action before its consumer's at the latest, in the
 * same order. For transfers that have streams of their own; on one stream such lists may deadlock.
 */
CT_API int ct_schedule_prefetch(struct ct_schedule *schedule);

/* ---- verification ---- */

/*
 * Memory that the activations of a rank may take. A stage keeps activations of one microbatch from
 * F to I (of B: its end), and others, which W uses too, from F to W.
 */
struct ct_schedule_limits {
    const size_t *until_i, *until_w; /* bytes of one microbatch, by stage */
    const size_t *room;              /* bytes, by rank */
};

/*
 * Prove that a schedule is right: each action there once, on the rank of its stage, in order;
 * transfers complete, matched, after what makes and before what uses them, in the same order on
 * both ends; stages unsharded where they compute, and reduced once; no deadlock where a send ends
 * only with its receive, neither with transfers on two streams of their own on each rank (sends,
 * receives) nor (unless own_streams) with one stream for everything; memory within limits, if not
 * NULL.
 *
 * CT_EINVAL: the message is the shortest counter-example found. What was proven is written to
 * report, if not NULL. Time and memory are linear in the number of actions.
 */
CT_API int ct_schedule_verify(const struct ct_schedule *schedule,
                              const struct ct_schedule_limits *limits, FILE *report);

/* ---- simulation ---- */

struct ct_simulation {
    double makespan;
    double bubble;   /* of the busiest rank: makespan - its compute time */
    double fraction; /* bubble / makespan */
    double *busy;    /* compute time, by rank */
    /* Most activations alive, by rank, in those of one stage and one microbatch: if I frees them,
       and if only W does. */
    double *peak_freed_at_i, *peak_freed_at_w;
    double **start, **end; /* by rank, by action */
};

/* Run a schedule that verifies on a virtual clock; results lie in arena. CT_EINVAL: it is stuck. */
CT_API int ct_schedule_simulate(const struct ct_schedule *schedule, const struct ct_costs *costs,
                                struct ct_arena *arena, struct ct_simulation *simulation);

/* ---- programs ---- */

/*
 * Prove that the programs of all ranks along an axis (by coordinate; equal in all other
 * coordinates) come to their end together: with sends that end only with their receives, and events
 * as they are. in_order: on devices that are (device.h). CT_EINVAL: a deadlock, with what each rank
 * is about to do; or two ends of a transfer that are not of one value.
 */
CT_API int ct_programs_prove(const struct ct_program *const *programs, int count, int axis,
                             bool in_order);

CT_END_DECLS

#endif
