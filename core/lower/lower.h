/*
 * Interface between the sources of lowering. sums.c finds sums, place.c decides which values share
 * memory and with what strides, kernels.c finds the kernels of ops, order.c sorts ops by their
 * sections, soon.c finds ops of post that run among the microbatches, lower.c expands the order,
 * emit.c makes an op's instructions, plan.c gives buffers their offsets, and events.c orders the
 * streams.
 */
#ifndef CT_LOWER_H
#define CT_LOWER_H

#include <ctitan/program.h>

#define CT_NO_BUFFER (-1)

/* How an op runs where it adds these outputs to sums. */
struct ct_lowered_form {
    struct ct_lowered lowered;
    uint32_t add, apart; /* outputs that are added; those of them that other instructions add */
    struct ct_lowered_form *next;
};

/* Lowering's record of an op, the same for every microbatch. */
struct ct_lowered_op {
    bool in_place; /* nothing to run: the values share memory */
    struct ct_lowered lowered;
    struct ct_lowered_form *forms; /* that occur */
    struct ct_lowered **sums;      /* by output: what adds a term to it; NULL: none yet */
    uint32_t accumulate;           /* outputs that are added to what is there, if something is */
    double flops;
    int32_t order;    /* position in the graph */
    bool soon;        /* runs as soon as its inputs are complete (CT_SOON) */
    uint32_t awaited; /* inputs of such an op that are not complete yet */
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
    size_t *bytes;             /* by root: size of the buffer */
    size_t *offset;            /* by value id: of a part in its buffer, if that is dense; else
                                  program->offsets has it */
    struct ct_lowered_op *ops; /* by position */
    struct ct_op **op_at;
    size_t op_count;
    struct ct_positions *section; /* by section id: its ops */
    bool *listed;                 /* by section id: is in the order */
    uint32_t *runs;               /* by section id: times that the order runs it */
    uint32_t *missing;            /* by value id: runs that have yet to make or add to it */
    size_t unused;                /* bytes of the program's arena that were not needed */
};

/* The list of instructions that grows while the order is expanded. */
struct ct_expansion {
    struct ct_lowering *l;
    struct ct_instruction *item;
    size_t count, room, buffer_room, lowered_room;
    bool init;
    int32_t start;           /* number of the first instruction; negative in init */
    size_t last[CT_STREAMS]; /* 1 + the stream's last instruction; 0: none. See keep_beside */
    bool *begun;             /* by slot of a sum: some term of it is there */
};

/* Fill op_at, op_count, ops and order. */
void ct_lower_number_ops(struct ct_lowering *l);
/* Report faults in the order by name: a section that is missing, repeated, or not of the graph.
   Fills section, listed and runs. */
int ct_lower_check_order(struct ct_lowering *l);

/* Find the ops that run soon; after ct_lower_check_order. */
void ct_lower_find_soon(struct ct_lowering *l);
/* Fill missing; after ct_lower_place. */
void ct_lower_count_terms(struct ct_lowering *l);
/* The op at position n was emitted: emit those that can run now. */
int ct_lower_emit_soon(struct ct_expansion *x, size_t n, int item);
/* Fill summed. */
void ct_lower_find_sums(struct ct_lowering *l);
/* Fill sum, and mark the adds whose terms are made in the sum as in place. */
void ct_lower_find_terms(struct ct_lowering *l);
/* Fill summed, sum, root, bytes and program->tensors; choose kernels. After ct_lower_find_soon. */
int ct_lower_place(struct ct_lowering *l);
/* The device's kernel for a call, or the type's reference in host memory, or "none" if the device
   is only described and its kernels do not say that it lacks units; NULL: none of them. */
const struct ct_kernel *ct_lower_kernel(struct ct_lowering *l, const struct ct_prepare *request);
/* Does a kernel of the device say that the device lacks units for the call? */
bool ct_lower_is_impossible(const struct ct_prepare *request);
/* The first kernel that accepts the op; *p is filled for its `prepare`, without addresses. */
const struct ct_kernel *ct_lower_find_kernel(struct ct_lowering *l, struct ct_op *op,
                                             struct ct_prepare *p);
/* Is it "none", or the type's reference where a kernel of a device would be faster? */
bool ct_lower_is_slow(const struct ct_op_type *type, const struct ct_kernel *kernel);
/* Prepare a call of kernel, and count what that takes. */
int ct_lower_prepare(struct ct_lowering *l, const struct ct_kernel *kernel, struct ct_prepare *p);
/* Find the op's kernel and prepare it. CT_ENOENT: the device has none. */
int ct_lower_choose_kernel(struct ct_lowering *l, struct ct_op *op, struct ct_lowered_op *lowered);
/* Where v lies, for `prepare`; NULL: CT_ANYWHERE. */
struct ct_location ct_lower_location(const struct ct_lowering *l, const struct ct_value *v);

/* Position of a value and a microbatch in program->buffer_of. */
size_t ct_lower_slot(const struct ct_program *p, const struct ct_value *v, int microbatch);
/* Does v exist once for each microbatch? */
bool ct_lower_per_microbatch(const struct ct_lowering *l, const struct ct_value *v);
/* The buffer of v for a microbatch; if absent, it is created, alive from instruction `at`. */
int32_t ct_lower_buffer(struct ct_expansion *x, const struct ct_value *v, int microbatch,
                        int32_t at);
/* Whether a term of the sum that v belongs to is there. */
bool *ct_lower_begun(struct ct_expansion *x, const struct ct_value *v, int microbatch);
/* The buffers that an instruction reads are not reused until `last`. */
void ct_lower_keep_inputs(struct ct_expansion *x, const struct ct_instruction *i, int32_t last);
/* Append the instructions of the op at position n of the graph, and of those that can run then. */
int ct_lower_emit(struct ct_expansion *x, size_t n, int item, int microbatch);
/* At most as many instructions, and new buffers, are emitted for the op at position n. */
size_t ct_lower_most_instructions(const struct ct_lowering *l, size_t n);
size_t ct_lower_most_buffers(const struct ct_lowering *l, size_t n);

/* Assign an offset to every buffer; fill the program's byte counts. */
void ct_lower_plan(struct ct_program *program, struct ct_arena *scratch);
/* Add signals and waits between streams. */
void ct_lower_events(struct ct_program *program, struct ct_arena *scratch);

#endif
