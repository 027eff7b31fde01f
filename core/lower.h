/*
 * Lowering, between its sources: place.c decides which values share memory and with what strides,
 * lower.c expands actions into instructions, lower_actions.c says what an action runs, plan.c gives
 * buffers their offsets, events.c orders the streams.
 */
#ifndef CT_LOWER_H
#define CT_LOWER_H

#include <ctitan/program.h>

#define CT_NO_BUFFER (-1)

/* What lowering knows of an op: the same for every microbatch. */
struct ct_lowered_op {
    const struct ct_kernel *kernel;
    void *state;
    size_t workspace;
    uint32_t accumulate; /* outputs that add up over microbatches */
    double flops;
    double sent;   /* bytes, by a collective */
    int32_t order; /* position in the graph */
    int unshards;  /* of part pre, but run by this stage's UNSHARD; -1: not */
    int reduces;   /* of part post, but run by this stage's REDUCE_GRAD; -1: not */
};

struct ct_lowering {
    const struct ct_lower_request *request;
    const struct ct_graph *graph;
    struct ct_program *program;
    struct ct_arena *arena; /* of the program */
    struct ct_arena scratch;
    struct ct_users users;
    int32_t *order;            /* by value id: position of the producer; -1: a source */
    bool *summed;              /* by value id: stands for its sum over the microbatches */
    uint32_t *root;            /* by value id: the value whose buffer it lies in */
    size_t *bytes;             /* by root: size of the buffer */
    struct ct_lowered_op *ops; /* by position */
    struct ct_op **op_at;
    size_t op_count;
};

/* Which ops actions run that would else run before or after all of them. */
void ct_lower_mark_actions(struct ct_lowering *l);
/* Does action run the op at position n? */
bool ct_lower_belongs(const struct ct_lowering *l, size_t n, const struct ct_action *action);
/* Does an op of part pre or post run outside of all actions? */
bool ct_lower_outside(const struct ct_lowering *l, size_t n);

/* Fill order, summed, root, bytes and program->tensors; choose kernels. */
int ct_lower_place(struct ct_lowering *l);
/* The device's kernel for a call, or, in host memory, the type's reference; NULL: neither. */
const struct ct_kernel *ct_lower_kernel(struct ct_lowering *l, const struct ct_prepare *request);
/* Give every buffer an offset; fill the program's byte counts. */
void ct_lower_plan(struct ct_program *program, struct ct_arena *scratch);
/* Signals and waits between streams. */
void ct_lower_events(struct ct_program *program, struct ct_arena *scratch);

#endif
