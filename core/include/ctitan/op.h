/*
 * Op types and kernels.
 *
 * An op type is one entry of a table: its shape rule, its gradient, its factor rule (from which
 * shardings are propagated) and a plain reference kernel. The core brings the common ones
 * (core/ops/); plugins register more. There is no enumeration of ops anywhere.
 *
 * Factor rules name each dimension by a letter: "btk,nk->btn" for a linear layer. A letter in
 * inputs and outputs is parallel: any axis may cut it. One in inputs only is a reduction: cutting
 * it leaves the outputs unreduced. A capital letter must be whole on every rank. '*' in front of an
 * operand repeats it any number of times; a letter that stands in repeated operands only is another
 * dimension in each repetition: "btk,*nk->*btn". '.' stands for any number of leading dimensions,
 * the same in all operands (in repeated operands only: others in each repetition): ".k,*nk->*.n".
 * '?' in front of an input: it may be absent, or left out at the end. An empty operand is a scalar;
 * without "->" there are no outputs. "*a,*b" are all a, then all b; "*(a,b)" is a, b, a, b, ..
 *
 * Operands are described in the same way, each with its name and one letter for its dtype:
 * "x T, *w T -> *y T".
 *   T  a floating dtype, the same in all operands with T
 *   A  as T, but integers too
 *   W  float32, or float64 if T is float64: statistics, losses
 *   F  any floating dtype
 *   f, d, i  float32, float64, int32
 * From rule and operands follow shapes, dtypes and the number of outputs, with every check of them:
 * most types need no `infer`. See rule.h.
 *
 * Kernels are found by (op type, device); the first in the device's order whose `accepts` is true
 * runs. Every kernel is held against the reference by tests/conformance.
 */
#ifndef CT_OP_H
#define CT_OP_H

#include <ctitan/graph.h>
#include <ctitan/option.h>

struct ct_rule;         /* rule.h */
struct ct_communicator; /* comm.h */

/* What a vector-Jacobian product is asked for: read op and dout, emit, set din. */
struct ct_vjp {
    struct ct_builder *b;
    struct ct_op *op;
    struct ct_value **dout; /* by output; NULL where no gradient arrives */
    struct ct_value **din;  /* by input; leave NULL where none flows */
    const bool *wanted;     /* by input: false where nobody needs din */
};

/* One call of a kernel. Everything is local to this rank. */
struct ct_launch {
    const struct ct_op
        *op; /* attributes: op->attrs; shapes: those of the tensors below, not the op's */
    const struct ct_tensor *in; /* data NULL: absent */
    const struct ct_tensor *out;
    int ins, outs;
    uint32_t accumulate; /* bit i: add to out[i] instead of overwriting it */
    void *workspace;     /* as many bytes as `prepare` asked for, 64-byte aligned */
    void *state;         /* from `prepare` */
    void *stream;        /* the device's own handle */
    void *device;        /* struct ct_device */
    int64_t rank;        /* of this process in the mesh: see ct_launch_offset */
    const struct ct_mesh *mesh;
};

/* Where this rank's piece of v begins along dimension dim of the whole: the first row of a table
   that is cut by rows, the first position of a sequence. */
CT_API int64_t ct_launch_offset(const struct ct_launch *launch, const struct ct_value *v, int dim);

/* Asked once per distinct call while lowering. */
struct ct_prepare {
    const struct ct_op *op;
    const struct ct_tensor *in, *out; /* local shapes and strides; data is NULL in all */
    const bool *present;              /* by input: false for an optional one that is absent */
    int ins, outs;
    uint32_t accumulate; /* outputs that some call will accumulate into */
    struct ct_device *device;
    struct ct_arena *arena; /* for state */
    size_t workspace;       /* to be set, bytes; 0 if left alone */
    void *state;            /* to be set if wanted; passed to every launch */
    int64_t rank;           /* of this process, and the mesh: for collectives */
    const struct ct_mesh *mesh;
    const struct ct_communicator *communicator; /* comm.h; NULL: one rank, or only planning */
};

/* Flags of a kernel. */
#define CT_KERNEL_ACCUMULATES 1u /* honours launch->accumulate on floating-point outputs */
#define CT_KERNEL_STRIDED 2u     /* any strides, but for a last one of 1; else dense is promised */

struct ct_kernel {
    const char *op;   /* type name */
    const char *name; /* "onednn", "avx512", for plans and benchmarks */
    unsigned flags;
    bool (*accepts)(const struct ct_prepare *); /* NULL: always */
    int (*prepare)(struct ct_prepare *);        /* NULL: nothing to do */
    int (*run)(const struct ct_launch *);
};

/* Flags of an op type. */
#define CT_OP_VIEW 1u /* output 0 is input 0 under another shape: no memory, no instruction */
#define CT_OP_ANY_DTYPE                                                                            \
    2u                      /* floating outputs may be of any floating dtype (casts fold into it)  \
                             */
#define CT_OP_EFFECT 4u     /* kept even if nobody uses its outputs (mutating ops always are) */
#define CT_OP_COLLECTIVE 8u /* communicates */
#define CT_OP_LINEAR 16u    /* linear in all inputs together: pending sums may pass through */
#define CT_OP_OFFLOAD                                                                              \
    32u /* moves values between the device's memories; no other op may touch                       \
           offloaded ones */

struct ct_op_type {
    const char *name;
    const char *summary; /* one line */
    const char *rule;    /* factor rule; NULL: operands must be replicated */
    const char *outputs; /* names of outputs from the second on: "rstd"; NULL: numbered */
    unsigned flags;
    const struct ct_option *attrs; /* NULL: none */
    size_t attrs_size;
    /* Outputs that may take over the memory of an input if that dies here: {output, input} pairs,
       ended by {-1, -1}; NULL: none. Shapes, dtypes and strides must be equal, else it is not done.
     */
    const int8_t (*inplace)[2];
    /* Bit i: input i is updated in place. Variadic ops: mutates_from(op, i) instead. */
    uint32_t mutates;
    bool (*mutates_input)(const struct ct_op *op, int input);

    /* Values (op->in + i or op->out + i) that would best lie side by side, as columns of one
       matrix; the plan tries, kernels look at the strides. NULL: none. */
    int (*join)(const struct ct_op *op, struct ct_value ***values);

    /* Number of outputs for these inputs; NULL: as `operands` says, or 1. */
    int (*count_outputs)(const struct ct_op *op);
    /* Set out[i]'s dtype, rank, shape from in[] where rule and operands do not say them (they were
       applied before); CT_EINVAL says what does not fit. Called through ct_op_infer, which keeps
       dtypes that were fixed. NULL: nothing to add. */
    int (*infer)(struct ct_op *op);
    /* Emit the gradient; NULL: not differentiable. */
    int (*vjp)(struct ct_vjp *);
    /* Floating-point operations of one call on these (local) shapes; multiply and add count as two.
       NULL: counted as none (memory-bound). */
    double (*flops)(const struct ct_tensor *in, const struct ct_tensor *out, int ins, int outs);
    /* Plain loops over ct_tensor_load/store, accumulating in double; honours accumulate and any
       strides. NULL only for ops that exist on one device alone. */
    int (*reference)(const struct ct_launch *);

    const char *operands; /* "x T, w T -> y T, rstd W"; NULL: `infer` checks everything */
    /* Two factors that are cut together, the first a multiple of the second: "hg" for query heads
       in groups of one key/value head. NULL: none. */
    const char *tie;
    /* What the rule does not say: change the factors of this op, or make them where there is no
       rule. NULL: nothing to add. */
    int (*factors)(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule);
};

/*
 * Registry. Types and kernels live as long as the process. CT_EINVAL on a second type of one name.
 * The core's own types are there before the first plugin is loaded.
 */
CT_API int ct_op_register(const struct ct_op_type *type);
/* NULL: none; the nearest name is in the failure's message. */
CT_API const struct ct_op_type *ct_op_find(const char *name);
/* The i-th registered type, NULL after the last: for loops over all of them. */
CT_API const struct ct_op_type *ct_op_at(size_t index);

/* Kernels of a device ("cpu") are tried in the order of their registration. */
CT_API int ct_kernel_register(const char *device, const struct ct_kernel *kernel);
/* The kernel for a call, or NULL: the caller falls back on the type's reference or fails. Kernels
   whose flags do not cover the request (accumulation, strides) are passed over. */
CT_API const struct ct_kernel *ct_kernel_find(const char *device, const struct ct_prepare *request);
CT_API const struct ct_kernel *ct_kernel_at(const char *device, size_t index);

CT_API int ct_op_count_outputs(const struct ct_op *op);
/* Dtypes and shapes of the outputs, but for dtypes with dtype_fixed; the failure names the op. */
CT_API int ct_op_infer(struct ct_op *op);
/* What value is a loaded copy of; else value. */
CT_API const struct ct_value *ct_value_origin(const struct ct_value *value);
/* An attribute by name, for kernels of ops that another plugin defines; asserts that it exists. */
CT_API double ct_op_float(const struct ct_op *op, const char *attribute);
CT_API int64_t ct_op_int(const struct ct_op *op, const char *attribute);
CT_API bool ct_op_bool(const struct ct_op *op, const char *attribute);
CT_API const char *ct_op_string(const struct ct_op *op, const char *attribute);
/* Whether an input is updated in place. */
CT_API bool ct_op_mutates(const struct ct_op *op, int input);

#endif
