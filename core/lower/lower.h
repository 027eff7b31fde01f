/*
 * Interface between the sources of lowering. sums.c finds sums, place.c decides which values share
 * memory and with what strides, kernels.c finds the kernels of ops, order.c sorts ops by their
 * sections, lower.c expands the order into instructions, plan.c gives buffers their offsets, and
 * events.c orders the streams.
 */
#ifndef CT_LOWER_H
#define CT_LOWER_H

#include <ctitan/program.h>

#define CT_NO_BUFFER (-1)
#define CT_OFFSET_BITS 40 /* of a location; those above are the number of a buffer */

/* What lowering knows of an op, the same for every microbatch. */
struct ct_lowered_op {
    bool in_place; /* nothing to run: the values share memory */
    const struct ct_kernel *kernel;
    void *state;
    struct ct_group *group; /* of a collective */
    size_t workspace;
    uint32_t accumulate; /* outputs that are added to what is there, if something is */
    double flops;
    double sent;   /* bytes sent by a collective */
    int32_t order; /* position in the graph */
};

/* Positions of ops in the graph, ascending. */
struct ct_positions {
    uint32_t *at;
    size_t count;
};

struct ct_lowering {
    const struct ct_lower_request *request;
    const struct ct_graph *graph;
    struct ct_program *program;
    struct ct_arena *arena; /* of the program */
    struct ct_arena scratch;
    int32_t *order;            /* by value id: position of the producer; -1: a source */
    bool *summed;              /* by value id: represents its sum over the microbatches */
    uint32_t *sum;             /* by value id: the value that it is a term of, else itself */
    uint32_t *root;            /* by value id: the value whose buffer it uses */
    uint32_t *next;            /* by value id: the next of its class, a ring */
    bool *spread;              /* by root: kernels prefer its rows padded */
    size_t *bytes;             /* by root: size of the buffer */
    size_t *offset;            /* by value id: of a part in its buffer, if that is dense */
    struct ct_lowered_op *ops; /* by position */
    struct ct_op **op_at;
    size_t op_count;
    struct ct_positions *section; /* by section id: its ops */
    bool *listed;                 /* by section id: is in the order */
};

/* Report faults in the order by name: a section that is missing, repeated, or not of the graph. */
int ct_lower_check_order(struct ct_lowering *l);

/* Fill summed. */
void ct_lower_find_sums(struct ct_lowering *l);
/* Fill sum, and mark the adds whose terms are made in the sum as in place. */
void ct_lower_find_terms(struct ct_lowering *l);
/* Fill order, summed, sum, root, bytes and program->tensors; choose kernels. */
int ct_lower_place(struct ct_lowering *l);
/* The device's kernel for a call, or, in host memory, the type's reference; NULL: neither. */
const struct ct_kernel *ct_lower_kernel(struct ct_lowering *l, const struct ct_prepare *request);
/* The first kernel that accepts the op; *p is filled for its `prepare`, but for addresses. */
const struct ct_kernel *ct_lower_find_kernel(struct ct_lowering *l, struct ct_op *op,
                                             struct ct_prepare *p);
/* Find the op's kernel and prepare it. CT_ENOENT: the device has none. */
int ct_lower_choose_kernel(struct ct_lowering *l, struct ct_op *op, struct ct_lowered_op *lowered);
/* Assign an offset to every buffer; fill the program's byte counts. */
void ct_lower_plan(struct ct_program *program, struct ct_arena *scratch);
/* Add signals and waits between streams. */
void ct_lower_events(struct ct_program *program, struct ct_arena *scratch);

#endif
