/*
 * Pipeline schedules: what each rank does in a step, as lists of actions, before it is lowered.
 *
 * An action is as in torch.distributed.pipelining: text "<stage><type><microbatch>", "2F0",
 * "1UNSHARD", "3SEND_F1". F is a forward, B a whole backward; I and W are a backward in two parts,
 * towards the inputs and towards the weights. A SEND names the stage that made what it sends, a
 * RECV the stage that uses what it receives: 1SEND_F3 and 2RECV_F3 are one transfer, 2SEND_B3 and
 * 1RECV_B3 another.
 *
 * A schedule plugin returns lists of compute actions. This library adds communication
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

/* Add an action at the end of list, which grows in arena. */
CT_API void ct_action_append(struct ct_arena *arena, struct ct_action_list *list,
                             struct ct_action action);
/* Print "2F0", or "(2F0;1B3)OVERLAP_F_B" for a pair; returns the length that it needs, as snprintf
   does. */
CT_API int ct_action_print(const struct ct_action *action, char *text, size_t room);
/* CT_EINVAL names what is wrong with the text. */
CT_API int ct_action_parse(const char *text, struct ct_action *action);

struct ct_schedule_request {
    int ranks, stages, microbatches;
    struct ct_arena *arena;
};

/* The functions of a schedule plugin. */
struct ct_schedule_ops {
    size_t size; /* of this struct */
    const char *summary;
    int stages_per_rank_min, stages_per_rank_max; /* 0: no limit */
    /* Rank that holds a stage. NULL: stage % ranks (looped). */
    int (*placement)(int stage, int ranks, int stages);
    /* Fill lists[rank] with compute actions. CT_ECONFIG says what the schedule cannot do. A call
       that adds actions without end is broken off, so memory comes from request->arena. */
    int (*generate)(const struct ct_schedule_request *request, struct ct_action_list *lists);
};

struct ct_offer;
/* The ops of an offer of kind CT_SCHEDULE, widened to this build's struct. CT_EABI: the offer's
   struct has another layout. */
CT_API int ct_schedule_offered(const struct ct_offer *offer, const struct ct_schedule_ops **ops);

/* Append an action of one stage and microbatch to a list; for plugins. */
CT_API void ct_schedule_add(const struct ct_schedule_request *request, struct ct_action_list *list,
                            enum ct_action_type type, int stage, int microbatch);

/*
 * For interleaved schedules (Narayanan et al. 2021): the order in which a rank's forwards visit its
 * stages, here called loops, and the microbatches. Microbatches are divided into rounds of about as
 * many as there are ranks. A round passes through all stages of the rank. Rounds need not be equal:
 * the longer ones come first, because their length determines how many forwards must run ahead.
 * Backwards visit the microbatches in the same order, and the loops in reverse. The array has an
 * element for each loop and microbatch.
 */
struct ct_loop_step {
    int loop, microbatch;
};
CT_API struct ct_loop_step *ct_schedule_rounds(const struct ct_schedule_request *request);
/* Microbatches in the longest round. */
CT_API int ct_schedule_longest_round(const struct ct_schedule_request *request);

/* One rank, all stages on it, microbatch by microbatch: F then B. */
CT_API void ct_schedule_trivial(const struct ct_schedule_request *request,
                                struct ct_action_list *list);
/* Forward only: for evaluation. */
CT_API void ct_schedule_forward(const struct ct_schedule_request *request,
                                struct ct_action_list *list);

/* Rank that holds a stage: stage % ranks. */
CT_API int ct_schedule_looped(int stage, int ranks, int stages);
/* The same, but every second loop runs backwards: with two stages per rank, a V. */
CT_API int ct_schedule_v(int stage, int ranks, int stages);

/* ---- whole schedules ---- */

struct ct_schedule {
    const char *name;
    int ranks, stages, microbatches;
    const int *rank_of;           /* by stage */
    struct ct_action_list *lists; /* by rank */
    bool forward_only;
    bool communicates; /* has more than compute actions */
    bool own_streams;  /* valid only where transfers have streams of their own */
    struct ct_arena *arena;
};

/*
 * Generate the compute actions of a schedule, in request->arena. CT_ECONFIG: it does not exist for
 * this number of ranks, stages or microbatches; the message says why. The result is not verified.
 */
CT_API int ct_schedule_generate(const struct ct_schedule_ops *ops, const char *name,
                                const struct ct_schedule_request *request,
                                struct ct_schedule **schedule);

/* A schedule of forwards only, for evaluation. rank_of: rank of each stage; copied. */
CT_API int ct_schedule_forward_only(const struct ct_schedule_request *request, const int *rank_of,
                                    struct ct_schedule **schedule);

/*
 * Read a schedule from torch's CSV: a row for each rank, an action in each cell; empty cells are
 * idle. Cells of torch 2.15 that wait for a send or a reduction are checked and dropped. The file
 * has compute actions only, or communication too (then it `communicates`). ranks, stages,
 * microbatches: what the file must hold; -1: any number. CT_ECONFIG: it holds something else, with
 * row and column; CT_ENOENT, CT_EIO.
 */
CT_API int ct_schedule_read_csv(struct ct_arena *arena, const char *path, int ranks, int stages,
                                int microbatches, struct ct_schedule **schedule);
/* Write it, with the waits that torch 2.15 asks for. */
CT_API void ct_schedule_write_csv(const struct ct_schedule *schedule, FILE *out);

/* ---- communication ---- */

/* Times of one stage and one microbatch, in any unit. */
struct ct_costs {
    double forward, input, weight;                   /* F, I, W; a B takes I + W */
    const double *forward_of, *input_of, *weight_of; /* by stage, instead; or NULL */
    double send;                                     /* of a transfer between two ranks */
    double overlap;  /* time of OVERLAP_F_B, as a share of its F + B; 0: all of it */
    bool one_stream; /* transfers and compute actions wait for each other */
};

struct ct_communicate_options {
    bool unshard;       /* add UNSHARD before a stage's use, RESHARD when other stages come first */
    int unsharded_most; /* at a time, on a rank: the next stages to be used; torch: 3 */
    bool reduce_grad;   /* add REDUCE_GRAD after a stage's last backward */
    const struct ct_costs *costs; /* used to order transfers; NULL: F = I = W */
};

/*
 * Add communication to compute actions. Every list is consistent with one global order, in which a
 * SEND and its RECV are neighbours. So there is no deadlock, even if each rank has one stream and a
 * send ends only when its receive does. The order is that of a run in which F, I and W take the
 * times of options->costs. A transfer comes when both its ranks are between two actions for the
 * first time after its data was made. CT_EINVAL: the compute actions do not verify.
 */
CT_API int ct_schedule_communicate(struct ct_schedule *schedule,
                                   const struct ct_communicate_options *options);

/*
 * Move each RECV to before the compute action that precedes its consumer's, or earlier; RECVs keep
 * their order. For transfers that have streams of their own; on one stream such lists may deadlock.
 */
CT_API int ct_schedule_prefetch(struct ct_schedule *schedule);

/* ---- verification ---- */

/*
 * Memory for the activations of a rank. A stage keeps some activations of a microbatch from F to I
 * (or to the end of B), and others, which W uses too, from F to W.
 */
struct ct_schedule_limits {
    const size_t *until_i, *until_w; /* bytes of one microbatch, by stage */
    const size_t *room;              /* bytes, by rank */
};

/*
 * Prove that a schedule is right:
 *
 *   - each action occurs once, on the rank of its stage, in order;
 *   - transfers are complete and matched, after what makes and before what uses their data, in the
 *     same order on both ends;
 *   - stages are unsharded where they compute, and reduced once;
 *   - nothing deadlocks where a send ends only with its receive: with two streams for transfers on
 *     each rank (sends, receives) and, unless own_streams, with one stream for everything;
 *   - memory is within limits, if not NULL.
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
    /* Peak of live activations, by rank, in units of those of one stage and one microbatch: if I
       frees them, and if only W does. */
    double *peak_freed_at_i, *peak_freed_at_w;
    double **start, **end; /* by rank, by action */
};

/* Run a verified schedule on a virtual clock; results are in arena. CT_EINVAL: it is stuck. */
CT_API int ct_schedule_simulate(const struct ct_schedule *schedule, const struct ct_costs *costs,
                                struct ct_arena *arena, struct ct_simulation *simulation);

/* ---- programs ---- */

/*
 * Prove that the programs of all ranks along an axis (by coordinate; equal in all other
 * coordinates) reach their end together, if a send ends only with its receive and programs wait for
 * their events. in_order: the devices are in order (device.h). CT_EINVAL: a deadlock, with the next
 * instruction of each rank; or the two ends of a transfer have different values.
 */
CT_API int ct_programs_prove(const struct ct_program *const *programs, int count, int axis,
                             bool in_order);

CT_END_DECLS

#endif
