/*
 * Lowering: from the graph and an order of its sections to a flat program with a memory plan.
 *
 * A program is the list of instructions that one rank runs in one step: each with its kernel, its
 * stream, the events it waits for, and tensors at fixed offsets in one arena. Nothing is decided
 * while it runs. The same lowering, without a device, answers what any rank of any mesh would need.
 *
 * Memory is planned to the byte. A buffer has a category and a life: instructions [first, last] in
 * program order (those of init have numbers below 0); two buffers whose lives overlap do not.
 * Parameters, states, scalars and fetches live always. Offsets are multiples of 64; those in the
 * device's host memory begin at CT_HOST_OFFSET.
 */
#ifndef CT_PROGRAM_H
#define CT_PROGRAM_H

#include <ctitan/device/device.h>

CT_BEGIN_DECLS

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

#define CT_HOST_OFFSET ((size_t)1 << 60)

struct ct_buffer {
    const struct ct_value *value; /* the one it is named after; NULL: workspace */
    int microbatch;               /* -1: of the step */
    enum ct_category category;
    enum ct_space space;
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

/* Sections of one microbatch whose ops run in the graph's order: I and W make a whole backward. */
struct ct_span {
    const struct ct_section *section[2]; /* the second NULL: one section alone */
    int microbatch;                      /* -1: sections that run once a step */
};

struct ct_order_item {
    const char *name;   /* "2B3": for people */
    struct ct_span run; /* section[0] NULL: nothing */
    struct ct_span
        beside;   /* runs at the same time: the ops of both alternate; section[0] NULL: none */
    bool release; /* `run` is not run: what it made last is dropped, to be made again */
};

/*
 * What a step runs in which order. Sections of init never stand in it; those of pre that do not
 * stand in it run before it, those of post behind it. A section of F, I and W that has ops stands
 * in it once for every microbatch. An op must come after those whose results it takes.
 */
struct ct_order {
    struct ct_order_item *item;
    size_t count, room;
};

CT_API void ct_order_append(struct ct_arena *arena, struct ct_order *order,
                            struct ct_order_item item);
/* Microbatch by microbatch: F, then I and W together, as far as the graph has them. */
CT_API void ct_order_default(struct ct_graph *graph, int microbatches, struct ct_arena *arena,
                             struct ct_order *order);

struct ct_run;

struct ct_instruction {
    const struct ct_op *op;
    const struct ct_kernel *kernel;
    int16_t stream;
    int32_t item, microbatch; /* index into program->order, -1: before or behind it */
    int32_t signal;           /* event to record afterwards; -1: none */
    const int32_t *waits;     /* events to wait for, -1 ends; NULL: none */
    size_t workspace;         /* offset; SIZE_MAX: none */
    struct ct_group *group;   /* of a collective; NULL: none, or this rank alone */
    double sent;              /* bytes to other ranks, by the algorithms that send least */
    struct ct_launch launch;  /* tensors carry offsets as data until the program is bound; rank -1:
                                 absent */
};

struct ct_program {
    struct ct_arena *arena;
    struct ct_run *run; /* whose it is; NULL: nobody's. Set by the run */
    const struct ct_graph *graph;
    struct ct_instruction *init, *step;
    size_t init_count, step_count;
    struct ct_order order;
    struct ct_buffer *buffers;
    size_t buffer_count;
    struct ct_tensor
        *tensors;       /* by value id: local shape and strides; data: offset in the buffer */
    int32_t *buffer_of; /* by value id x (microbatches + 1) + microbatch + 1; -1: none */
    int microbatches, events;
    struct ct_memory memory, host;     /* of the device; its host memory */
    double flops;                      /* of one step on this rank */
    double comm_bytes;                 /* sent by this rank in one step */
    double loaded_bytes, stored_bytes; /* from and to the host memory, in one step */
};

struct ct_lower_request {
    const struct ct_graph *graph;
    const struct ct_order *order; /* of this rank; NULL: the default */
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

/* ---- running ---- */

struct ct_executor; /* a program bound to a device's memory */

/* What an executor gets beyond what its program needs. */
struct ct_executor_memory {
    size_t bytes, host; /* at least, of either memory */
    void
        *base; /* NULL: taken from the device; else `bytes` zeroed bytes, which stay the caller's */
};

/* extra: NULL: nothing. CT_ECONFIG: the program needs host memory, and the device has none. */
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
/* One step; waits for its end. */
CT_API int ct_executor_step(struct ct_executor *executor);

/* Host access to a value's local shard, dense: microbatch -1 for what is there once a step. */
CT_API int ct_executor_write(struct ct_executor *executor, const struct ct_value *value,
                             int microbatch, const void *host, size_t bytes);
/*
 * Begin to copy the local shard of a parameter or state to host, dense, between two steps, on the
 * main thread. The next steps may begin meanwhile: before a step first writes a value whose copy
 * goes on, it waits. host stays the copy's until ct_executor_copy_out_wait.
 */
CT_API int ct_executor_copy_out_begin(struct ct_executor *executor, const struct ct_value *value,
                                      void *host, size_t bytes);
/* 1: all copies that were begun are done; 0: not yet, only if not to `block`. */
CT_API int ct_executor_copy_out_wait(struct ct_executor *executor, bool block);
CT_API int ct_executor_read(struct ct_executor *executor, const struct ct_value *value, void *host,
                            size_t bytes);
/* Where the value lies, for hosts that see the device's memory; data NULL if it has no place. */
CT_API struct ct_tensor ct_executor_tensor(struct ct_executor *executor,
                                           const struct ct_value *value, int microbatch);

CT_END_DECLS

#endif
