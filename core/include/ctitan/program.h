/*
 * Lowering: from the graph and an order of its sections to a flat program with a memory plan.
 *
 * A program is the list of instructions that one rank runs in one step. Each instruction has its
 * kernel, its stream, the events it waits for, and tensors at fixed offsets in one arena. Nothing
 * is decided at run time. The same lowering tells what any rank of any mesh needs: the device must
 * be open, but none of its memory is taken.
 *
 * Memory is planned to the byte. A buffer has a category and a lifetime: instructions [first, last]
 * in program order, where those of init have negative numbers. Buffers whose lifetimes overlap do
 * not overlap in memory. Parameters, states, inputs and scalars are always live, and fetches from
 * their first write to the end of the step. Offsets are multiples of CT_BUFFER_ALIGNMENT; those in
 * the device's host memory begin at CT_HOST_OFFSET.
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
/* "optimizer": the name of the category in plans. */
CT_API const char *ct_category_name(enum ct_category category);

#define CT_HOST_OFFSET ((size_t)1 << 60)
#define CT_BUFFER_ALIGNMENT ((size_t)256) /* what libraries of devices ask of their workspaces */

struct ct_buffer {
    const struct ct_value *value; /* it names the buffer; NULL: workspace */
    size_t bytes, offset;
    int32_t first, last; /* lifetime; INT32_MIN .. INT32_MAX: always */
    int32_t microbatch;  /* -1: one per step */
    uint8_t category;    /* enum ct_category */
    uint8_t space;       /* enum ct_space */
};

/* A program's need of one of the device's memories. */
struct ct_memory {
    size_t persistent;                 /* parameters, states, inputs, scalars: these come first */
    size_t bytes;                      /* in total */
    size_t peak[CT_CATEGORY_COUNT];    /* each category's own peak */
    size_t at_peak[CT_CATEGORY_COUNT]; /* each category when the total is largest */
};

/* One or two sections of one microbatch. Their ops run in the graph's order: I with W is a whole
   backward. */
struct ct_span {
    const struct ct_section *section[2]; /* second NULL: only one section */
    int microbatch;                      /* -1: sections that run once per step */
};

struct ct_order_item {
    const char *name;      /* "2B3", for messages */
    struct ct_span run;    /* section[0] NULL: nothing to run */
    struct ct_span beside; /* its ops alternate with those of run; section[0] NULL: none */
    bool release; /* do not run `run`: drop its last outputs, to be recomputed by its next run */
};

/*
 * The order in which a step runs sections. Sections of init are never listed. Sections of pre that
 * are not listed run before the list, those of post after it. A section of F, I and W that has ops
 * is listed once for every microbatch. An op must come after those whose results it uses.
 */
struct ct_order {
    struct ct_order_item *item;
    size_t count, room;
};

/* Add an item at the end of order; the list grows in arena. */
CT_API void ct_order_append(struct ct_arena *arena, struct ct_order *order,
                            struct ct_order_item item);
/* Microbatch by microbatch: F, then I with W, where the graph has them. */
CT_API void ct_order_default(struct ct_graph *graph, int microbatches, struct ct_arena *arena,
                             struct ct_order *order);

struct ct_run;

/* An op as lowered: what its instructions of all microbatches have in common. */
struct ct_lowered {
    int32_t id; /* index into program->lowered */
    const struct ct_kernel *kernel;
    struct ct_group *group;  /* of a collective; NULL: none, or this rank alone */
    double sent;             /* bytes to other ranks, by the algorithm that sends least */
    size_t workspace;        /* bytes; 0: none */
    struct ct_launch launch; /* without addresses: data NULL; ndim -1: absent */
    const size_t *offsets;   /* by operand: where it begins in its buffer; absent: 0 */
    double traffic;          /* of a call, bytes: see struct ct_prepare */
};

/* One call of a kernel in a step. Its operands are the inputs, then the outputs, then the
   workspace. */
struct ct_instruction {
    const struct ct_op *op;
    const struct ct_lowered *lowered;
    const int32_t *buffers;   /* by operand: index into program->buffers; -1: absent, none */
    const int32_t *waits;     /* events to wait for, -1 ends; NULL: none */
    int32_t item, microbatch; /* index into program->order, -1: before or after it */
    int32_t signal;           /* event to record afterwards; -1: none */
    int16_t stream;
};

/* Bytes of the host's memory that a program takes, counted. */
struct ct_program_size {
    size_t before;   /* what its arena held before: recipe, graphs */
    size_t program;  /* instructions, buffers, and the like */
    size_t kernels;  /* arenas of kernels' `prepare`; without what libraries allocate */
    size_t lowering; /* during ct_lower alone */
};

struct ct_program {
    struct ct_arena *arena;
    struct ct_run *run; /* owner, set by the run; NULL: none */
    const struct ct_graph *graph;
    struct ct_instruction *init, *step;
    size_t init_count, step_count;
    struct ct_lowered **lowered;
    size_t lowered_count;
    struct ct_order order;
    struct ct_buffer *buffers;
    size_t buffer_count;
    struct ct_tensor *tensors; /* by value id: local shape and strides; data NULL */
    size_t *offsets;           /* by value id: where it begins in its buffer */
    int32_t *buffer_of;        /* at value id * (microbatches + 1) + microbatch + 1; -1: none */
    int microbatches, events;
    struct ct_memory memory, host;     /* of the device; of its host memory */
    double flops;                      /* of one step on this rank */
    double comm_bytes;                 /* sent by this rank in one step */
    double loaded_bytes, stored_bytes; /* from and to host memory in one step */
    struct ct_program_size size;
    bool repeatable; /* as requested */
};

struct ct_lower_request {
    const struct ct_graph *graph;
    const struct ct_order *order; /* of this rank; NULL: the default */
    int microbatches;
    struct ct_device *device;
    const struct ct_communicator *communicator; /* NULL: one rank, or only planning */
    int64_t rank;
    bool borrow; /* parameters and states are another executor's: no memory here (evaluation) */
    struct ct_arena *arena;
    bool repeatable; /* only kernels whose bits are the same in every run */
};

/* About the bytes of the host's memory for a program of the graph and its executor; infinite if it
   has more instructions than can be numbered. */
CT_API double ct_program_estimate(const struct ct_graph *graph, int64_t microbatches);

/* CT_ENOENT: the device has no kernel for an op, which the message names; where it is only
   described, a warning names the op, and its kernel is "none". CT_ECONFIG: the step has
   more buffers, or a larger one, than a program can hold. */
CT_API int ct_lower(const struct ct_lower_request *request, struct ct_program **program);

/* Does the kernel stand for one that a device lacks which is only described? */
CT_API bool ct_kernel_is_none(const struct ct_kernel *kernel);

/* Offset of an operand in the arena, or above CT_HOST_OFFSET in host memory. SIZE_MAX: it is
   absent, or there is no workspace. */
CT_API size_t ct_instruction_offset(const struct ct_program *program,
                                    const struct ct_instruction *instruction, int operand);

/* Whether value is, or views, a parameter or state of another executor's program. */
CT_API bool ct_program_borrows(const struct ct_program *program, const struct ct_value *value);

/* ---- running ---- */

struct ct_executor; /* a program bound to a device's memory */

/* Minimum sizes of an executor's memory; used where its program needs less. */
struct ct_executor_memory {
    size_t bytes, host; /* at least this much, on the device and in host memory */
    void *base;         /* NULL: reserved on the device; else `bytes` zeroed bytes of the caller */
    struct ct_executor
        *owner; /* NULL: none. Its memory is used, which parameters and states have in
                                  common: those of the program must lie where the owner's do, and
                                  one of both runs at a time. The owner is destroyed last */
};

/* extra NULL: no minimum. CT_ECONFIG: the program needs host memory, and the device has none; or
   its parameters and states are others than the owner's. */
CT_API int ct_executor_create(const struct ct_program *program, struct ct_device *device,
                              const struct ct_executor_memory *extra,
                              struct ct_executor **executor);
/* Bytes of the host's memory that an executor of the program takes, beside reserved memory. */
CT_API size_t ct_executor_bytes(const struct ct_program *program);
/* For a program lowered with `borrow`. Parameters and states are the owner's, matched by name.
   Everything else lies in the part of the owner's memory that is free between two steps. The owner
   needs memory for its own persistent part and all of this program. */
CT_API int ct_executor_create_borrowing(const struct ct_program *program, struct ct_executor *owner,
                                        struct ct_executor **executor);
/* Give the memory back to the device. executor may be NULL. */
CT_API void ct_executor_destroy(struct ct_executor *executor);

/* Run the init part. */
CT_API int ct_executor_init(struct ct_executor *executor);
/* Run one step and wait for its end. */
CT_API int ct_executor_step(struct ct_executor *executor);

/* When an instruction began and ended on its stream, in seconds of CLOCK_MONOTONIC; 0: it did not
   get there. Waiting for events comes before the beginning; a collective that waits for other ranks
   has begun. */
struct ct_instruction_time {
    double begin, end;
};
/* Have the device time every instruction of the next step. CT_EINVAL: it cannot. */
CT_API int ct_executor_time_next(struct ct_executor *executor);
/* Times of the last step by index in program->step, valid until the next one. NULL: it was not
   timed. */
CT_API const struct ct_instruction_time *ct_executor_times(const struct ct_executor *executor);

/* Copy a dense local shard from the host to value. microbatch -1: value exists once per step. */
CT_API int ct_executor_write(struct ct_executor *executor, const struct ct_value *value,
                             int microbatch, const void *host, size_t bytes);
/*
 * Hold a parameter or state, between two steps, on the main thread. The next steps may begin, but
 * wait before they first write a held value. Any thread releases it. Until then, any one thread may
 * copy bytes of its local shard, which is dense, to host.
 */
CT_API void ct_executor_hold(struct ct_executor *executor, const struct ct_value *value);
CT_API void ct_executor_release(struct ct_executor *executor, const struct ct_value *value);
CT_API int ct_executor_copy_out(struct ct_executor *executor, const struct ct_value *value,
                                size_t from, size_t bytes, void *host);
/* Whether a step waits for a held value now; of any thread. */
CT_API bool ct_executor_waits(struct ct_executor *executor);
/* Seconds that steps have waited for held values. */
CT_API double ct_executor_waited(const struct ct_executor *executor);
/* Before the host writes a value: wait until it is not held. After a parameter, the next step first
   repeats what makes states from parameters in init. */
CT_API void ct_executor_await(struct ct_executor *executor, const struct ct_value *value);
/* Copy a value that exists once per step to host, as a dense local shard of `bytes` bytes.
   CT_EINVAL: other values use its memory in a step. */
CT_API int ct_executor_read(struct ct_executor *executor, const struct ct_value *value, void *host,
                            size_t bytes);
/* The value's tensor, for hosts that can address the device's memory; data NULL: no memory. */
CT_API struct ct_tensor ct_executor_tensor(struct ct_executor *executor,
                                           const struct ct_value *value, int microbatch);

CT_END_DECLS

#endif
