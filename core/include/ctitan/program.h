/*
 * Lowering: from the graph and a list of actions to a flat program with a memory plan.
 *
 * A program is the list of instructions that one rank runs in one step: each with its kernel, its
 * stream, the events it waits for, and tensors at fixed offsets in one arena. Nothing is decided
 * while it runs. The same lowering, without a device, answers what any rank of any mesh would need.
 *
 * Memory is planned to the byte. A buffer has a category and a life: instructions [first, last] in
 * program order (those of init have numbers below 0); two buffers whose lives overlap do not.
 * Parameters, states, scalars and fetches live always. Offsets are multiples of 64; those in the
 * device's second memory begin at CT_OFFLOADED.
 */
#ifndef CT_PROGRAM_H
#define CT_PROGRAM_H

#include <ctitan/device.h>
#include <ctitan/schedule.h>

#define CT_CATEGORIES(X)                                                                           \
    X(PARAMETER, "parameters")                                                                     \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(GRADIENT, "gradients")                                                                       \
    X(PREPARED, "prepared weights")                                                                \
    X(ACTIVATION, "activations")                                                                   \
    X(INPUT, "inputs")                                                                             \
    X(COMMUNICATION, "communication")                                                              \
    X(WORKSPACE, "workspace")

enum ct_category {
#define X(id, text) CT_CATEGORY_##id,
    CT_CATEGORIES(X)
#undef X
        CT_CATEGORY_COUNT
};

#define CT_OFFLOADED ((size_t)1 << 60)

struct ct_buffer {
    const struct ct_value *value; /* the one it is named after; NULL: workspace */
    int microbatch;               /* -1: of the step */
    enum ct_category category;
    bool offloaded; /* in the second memory */
    size_t bytes, offset;
    int64_t first, last; /* instructions; INT64_MIN .. INT64_MAX: always */
};

/* What a program needs of one of the device's memories. */
struct ct_memory {
    size_t persistent;                 /* what comes first: parameters, states, inputs, scalars */
    size_t bytes;                      /* all of it */
    size_t peak[CT_CATEGORY_COUNT];    /* each category's own peak */
    size_t at_peak[CT_CATEGORY_COUNT]; /* what each holds when the whole is largest */
};

struct ct_instruction {
    const struct ct_op *op;
    const struct ct_kernel *kernel;
    int16_t stream;
    int32_t action, microbatch; /* index into program->actions, -1: pre or post */
    int32_t signal;             /* event to record afterwards; -1: none */
    const int32_t *waits;       /* events to wait for, -1 ends; NULL: none */
    size_t workspace;           /* offset; SIZE_MAX: none */
    double sent;                /* bytes to other ranks, by the algorithms that send least */
    struct ct_launch launch; /* tensors carry offsets as data until the program is bound; rank -1:
                                absent */
};

struct ct_program {
    struct ct_arena *arena;
    const struct ct_graph *graph;
    struct ct_instruction *init, *step;
    size_t init_count, step_count;
    struct ct_action_list actions;
    struct ct_buffer *buffers;
    size_t buffer_count;
    struct ct_tensor
        *tensors;       /* by value id: local shape and strides; data: offset in the buffer */
    int32_t *buffer_of; /* by value id x (microbatches + 1) + microbatch + 1; -1: none */
    int microbatches, events;
    struct ct_memory memory, offloaded;
    double flops;                      /* of one step on this rank */
    double comm_bytes;                 /* sent by this rank in one step */
    double loaded_bytes, stored_bytes; /* from and to the second memory, in one step */
};

struct ct_lower_request {
    const struct ct_graph *graph;
    const struct ct_action_list *actions; /* of this rank; microbatch numbers below microbatches */
    int microbatches;
    struct ct_device *device;
    const struct ct_communicator *communicator; /* NULL: one rank, or only planning */
    int64_t rank;
    bool borrow; /* parameters and states get no place: they are another executor's (evaluation) */
    struct ct_arena *arena;
};

/* CT_ENOENT: an op without a kernel on the device, by name. */
CT_API int ct_lower(const struct ct_lower_request *request, struct ct_program **program);

CT_API const char *ct_category_name(enum ct_category category);
/* The program as text: one line an instruction. */
CT_API void ct_program_print(const struct ct_program *program, FILE *out);
/* Whether value is, or views, a parameter or state of another executor's program. */
CT_API bool ct_program_borrows(const struct ct_program *program, const struct ct_value *value);
/* Every violation of the plan: overlapping lives at overlapping offsets, reads before writes, a
   stream that reads what another wrote without an event between. Used by tests and `plan`. */
CT_API int ct_program_verify(const struct ct_program *program, FILE *report);

/*
 * Prove that the programs of all ranks along pp (by coordinate; equal in all other coordinates)
 * come to their end together: with sends that end only with their receives, and events as they are.
 * in_order: on devices that are (device.h). CT_EINVAL: a deadlock, with what each rank is about
 * to do; or two ends of a transfer that are not of one value.
 */
CT_API int ct_programs_prove(const struct ct_program *const *programs, int count, bool in_order);

/* ---- running ---- */

struct ct_executor; /* a program bound to a device's memory */

/* What an executor gets beyond what its program needs. */
struct ct_executor_memory {
    size_t bytes, offloaded; /* at least, of either memory */
    void
        *base; /* NULL: taken from the device; else `bytes` zeroed bytes, which stay the caller's */
};

/* extra: NULL: nothing. CT_ECONFIG: something is offloaded, and the device has no second memory. */
CT_API int ct_executor_create(const struct ct_program *program, struct ct_device *device,
                              const struct ct_executor_memory *extra,
                              struct ct_executor **executor);
/* For a program lowered with `borrow`: parameters and states are those of owner, by name;
   everything else lies in the part of owner's memory that holds nothing between two steps. That
   must be large enough: what is persistent in the owner's program, and all of this one's. */
CT_API int ct_executor_create_borrowing(const struct ct_program *program, struct ct_executor *owner,
                                        struct ct_executor **executor);
CT_API void ct_executor_destroy(struct ct_executor *executor);

/* Run the init part. */
CT_API int ct_executor_init(struct ct_executor *executor);
/* One step: pre, all actions, post; waits for its end. */
CT_API int ct_executor_step(struct ct_executor *executor);

/* Host access to a value's local piece, dense: microbatch -1 for params, states, scalars, fetches.
 */
CT_API int ct_executor_write(struct ct_executor *executor, const struct ct_value *value,
                             int microbatch, const void *host, size_t bytes);
CT_API int ct_executor_read(struct ct_executor *executor, const struct ct_value *value, void *host,
                            size_t bytes);
/* Where the value lives, for hosts that can see the device's memory; data NULL if it has no place.
 */
CT_API struct ct_tensor ct_executor_tensor(struct ct_executor *executor,
                                           const struct ct_value *value, int microbatch);

#endif
