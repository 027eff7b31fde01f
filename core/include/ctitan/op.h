/*
 * Op types and kernels.
 *
 * An op type is one entry of a table: its signature, its gradient, its attributes and a plain
 * reference kernel. The core brings those that it emits itself (core_ops.h), libraries and plugins
 * register more. There is no enumeration of ops anywhere.
 *
 * A signature lists inputs and outputs: "x[.k] T, *w[nk] T -> *y[.n] T" for a linear layer. It is
 * read once, when the type is registered. Each operand has a name, a letter for each dimension (a
 * factor), and a letter for its dtype. Shapes, dtypes, their checks, the number and the names of
 * outputs, and the propagation of shardings follow from it; most types need no `infer`.
 *
 * Factors. One in inputs and outputs is parallel: any axis may split it. One in inputs only is a
 * reduction: splitting it leaves the outputs unreduced, as sums, or as maxima where the output says
 * "max" behind its dtype. A capital letter must be whole on every rank. '.' is any number of
 * leading dimensions, the same in all operands. [] is a scalar. A type whose shapes only `infer`
 * knows leaves all brackets out.
 *
 * Repetition. '*' in front of an operand repeats it: "*a, *b" are all a, then all b; "*(a, b)" is
 * a, b, a, b, .. Factors that stand in repeated operands only are other dimensions in each
 * repetition. How often outputs repeat follows from the inputs.
 *
 * Flags. '?' in front of an input: it may be absent, or left out at the end. '!': it is updated in
 * place. "?w[k] T", "*(!p[.] F, g[.] F)". "*?x" may repeat zero times.
 *
 * Dtypes.
 *   T  a floating dtype, the same in all operands with T
 *   A  as T, but integers too
 *   W  float32, or float64 if T is float64: statistics, losses
 *   F  any floating dtype
 *   f, d, i  float32, float64, int32
 *
 * Clauses, behind '|', with commas between. "h:g" ties two factors: they are split together, the
 * first is a multiple of the second. "*widths": outputs repeat as often as the SHAPE attribute
 * `widths` has sizes. "@t": t runs along sequences, and the result depends on where in its sequence
 * a token stands.
 *
 * Positions. Of a factor without "@", a type promises that the result at an index does not depend
 * on the number of that index. Sequences may be fed in another order, so that a rank's shard is
 * several stretches of them: a type with "@t" takes an input with the positions, or asks
 * ct_launch_position for each token. Its gradient's type needs the clause too. A type that wants
 * whole sequences ("x[bTn]") without "@T" is refused where they are in another order.
 *
 * Kernels are found by (op type, device); the first in the device's order whose `accepts` is true
 * runs. Every kernel is held against the reference by tests/conformance.
 */
#ifndef CT_OP_H
#define CT_OP_H

#include <ctitan/graph.h>
#include <ctitan/option.h>

CT_BEGIN_DECLS

struct ct_rule;         /* rule.h */
struct ct_communicator; /* comm.h */
struct ct_event_data;   /* hook.h */
struct ct_transport;    /* device/collective.h */
struct ct_group;        /* device/comm.h */
struct ct_device;       /* device/device.h */

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
    const struct ct_event_data *event; /* of a collective: what its events say; NULL: none are
                                          sent by the one who runs it */
    const struct ct_graph *graph;      /* whose op it is; NULL: sequences are in order */
};

/* Where this rank's shard of v begins along dimension dim of the whole: the first row of a table
   that is split by rows. Along a sequence only positions have a meaning: see below. */
CT_API int64_t ct_launch_offset(const struct ct_launch *launch, const struct ct_value *v, int dim);

/*
 * The position in its sequence of the token with this index in the rank's shard of v. Dimension dim
 * of v runs along sequences, and is a factor with "@" in the signature: whatever splits it, and in
 * whatever order sequences are fed. For types whose signature has no "@", this is a fault of the
 * program, as is ct_launch_offset along sequences that are in another order.
 */
CT_API int64_t ct_launch_position(const struct ct_launch *launch, const struct ct_value *v, int dim,
                                  int64_t index);

/*
 * Work of a kernel in host memory on all threads of the launch's device: body is called with ranges
 * [begin, end) that make up [0, count), each index in one of them, and returns when all are done.
 * Ranges run at the same time. How many there are is the device's business: for equal bits on any
 * number of threads, the result of an index does not depend on the range that it is in. Waking
 * threads costs microseconds: small kernels do without.
 */
typedef void ct_range_body(void *context, int64_t begin, int64_t end);
CT_API void ct_parallel(const struct ct_launch *launch, int64_t count, ct_range_body *body,
                        void *context);

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
    struct ct_group *group;       /* to be set by a collective: who takes part; events name it */
    const struct ct_graph *graph; /* whose op it is; NULL: sequences are in order */
};

/* Flags of a kernel. */
#define CT_KERNEL_ACCUMULATES 1u /* honours launch->accumulate on floating-point outputs */
#define CT_KERNEL_STRIDED 2u     /* any strides, but for a last one of 1; else dense is promised */

struct ct_kernel {
    size_t size;      /* set by CT_KERNEL */
    const char *op;   /* type name */
    const char *name; /* "onednn", "avx512", for plans and benchmarks */
    unsigned flags;
    bool (*accepts)(const struct ct_prepare *); /* NULL: always */
    int (*prepare)(struct ct_prepare *);        /* NULL: nothing to do */
    int (*run)(const struct ct_launch *);
};

/* An element of an array of kernels, which ends with {0}:
   CT_KERNEL("linear", "onednn", CT_KERNEL_STRIDED, accepts, prepare, run) */
#define CT_KERNEL(...)                                                                             \
    {                                                                                              \
        .size = sizeof(struct ct_kernel), __VA_ARGS__                                              \
    }

/* Flags of an op type. */
#define CT_OP_VIEW 1u /* output 0 is input 0 under another shape: no memory, no instruction */
/* Floating outputs may be of any floating dtype: casts fold into them. */
#define CT_OP_ANY_DTYPE 2u
#define CT_OP_EFFECT 4u     /* kept even if nobody uses its outputs (mutating ops always are) */
#define CT_OP_COLLECTIVE 8u /* communicates */
#define CT_OP_LINEAR 16u    /* linear in all inputs together: pending sums may pass through */
/* Copies between memory spaces; no other op reaches values in host memory. */
#define CT_OP_SPACES 32u

/* Ends only when its peer is there: what it reads keeps its memory until the step's next item that
   computes is over. */
#define CT_OP_RENDEZVOUS 64u

/* What is known of a collective on every device; made by CT_COLLECTIVE (device/collective.h). */
struct ct_collective_ops {
    size_t size; /* of this struct */
    /* The kernel that runs it over the device's transport; NULL: the device has no transport. */
    const struct ct_kernel *(*kernel)(const struct ct_device *device);
    /* Once for each call: set p->state, p->workspace, and p->group through
       ct_collective_prepare_axes and its like. */
    int (*prepare)(struct ct_prepare *p);
    int (*run)(const struct ct_launch *l, const struct ct_transport *by);
    /* Bytes that a rank of the `ranks` along the attribute "axes" sends, by the algorithms that
       send least, from those of its inputs and outputs. NULL: none. */
    double (*sent)(double in, double out, double ranks);
};

struct ct_op_type {
    size_t size;         /* sizeof(struct ct_op_type), as the plugin was built */
    const char *name;    /* letters, digits, '_' and '.' */
    const char *summary; /* one line */
    const char *signature;
    unsigned flags;
    const struct ct_option *attrs; /* of the attribute struct; NULL: none */
    size_t attrs_size;
    /* Outputs that may take over the memory of an input if that dies here: {output, input} pairs,
       ended by {-1, -1}; NULL: none. Only where shapes, dtypes and strides are equal. */
    const int8_t (*inplace)[2];
    /* Set out[i]'s dtype, ndim, shape from in[] where the signature does not say them (it was
       applied before); CT_EINVAL says what does not fit. Called through ct_op_infer, which keeps
       dtypes that were fixed. NULL: nothing to add. */
    int (*infer)(struct ct_op *op);
    /* What the signature does not say: change the factors of this op, or make them where it has
       none. NULL: nothing to add. */
    int (*factors)(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule);
    /* Emit the gradient; NULL: not differentiable. */
    int (*vjp)(struct ct_vjp *);
    /* Floating-point operations of one call on these (local) shapes; multiply and add count as two.
       NULL: counted as none (memory-bound). */
    double (*flops)(const struct ct_op *op, const struct ct_tensor *in,
                    const struct ct_tensor *out);
    /* Plain loops over ct_tensor_load/store, accumulating in double; honours accumulate and any
       strides. NULL only for ops that exist on one device alone. */
    int (*reference)(const struct ct_launch *);
    /* Values (op->in + i or op->out + i) that would best lie side by side, as columns of one
       matrix; the plan tries, kernels look at the strides. NULL: none. */
    int (*join)(const struct ct_op *op, struct ct_value ***values);
    /* How any device runs it without a kernel of its own (device/collective.h). NULL: none. */
    const struct ct_collective_ops *collective;
    /* Emit the same by ops of fewer outputs each, for who wants some of them only: out[i] is what
       stands for output i, to the last bit. NULL: it is one computation. */
    int (*apart)(struct ct_builder *b, const struct ct_op *op, struct ct_value **out);
};
/* The fields that every version has; later ones are zero for types that were built without them. */
#define CT_OP_TYPE_SMALLEST offsetof(struct ct_op_type, join)

/* The types of attributes that options of a configuration do not have; _Generic checks the field.
   Texts are those of graph text: "bfloat16", "8,256", "dp_shard.cp", "[dp_shard, -]". */
#define CT_OPT_DTYPE(T, f, name, fallback, doc)                                                    \
    {                                                                                              \
        sizeof(struct ct_option), name, fallback, doc, CT_ATTR_DTYPE,                              \
            CT_OPT_AT(T, f, enum ct_dtype), 0, 0, NULL                                             \
    }
#define CT_OPT_SHAPE(T, f, name, fallback, doc)                                                    \
    {                                                                                              \
        sizeof(struct ct_option), name, fallback, doc, CT_ATTR_SHAPE,                              \
            CT_OPT_AT(T, f, struct ct_shape), 0, 0, NULL                                           \
    }
#define CT_OPT_AXES(T, f, name, doc)                                                               \
    {                                                                                              \
        sizeof(struct ct_option), name, "", doc, CT_ATTR_AXES, CT_OPT_AT(T, f, ct_axes), 0, 0,     \
            NULL                                                                                   \
    }
#define CT_OPT_SHARDING(T, f, name, doc)                                                           \
    {                                                                                              \
        sizeof(struct ct_option), name, "", doc, CT_ATTR_SHARDING,                                 \
            CT_OPT_AT(T, f, struct ct_target), 0, 0, NULL                                          \
    }

/*
 * Registry. Types and kernels live as long as the process. CT_EINVAL on a second type of one name,
 * and on a faulty entry, with the fault. The core's own types are there before the first plugin is
 * loaded.
 */
CT_API int ct_op_register(const struct ct_op_type *type);
/* The same, unless this very type is registered. */
CT_API int ct_op_need(const struct ct_op_type *type);
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
/* Why no kernel takes a call: each that the device has for the op, and what it refuses. As
   snprintf. */
CT_API int ct_kernel_refusals(const char *device, const struct ct_prepare *request, char *text,
                              size_t room);

/* Outputs by the signature, for op's inputs. */
CT_API int ct_op_count_outputs(const struct ct_op *op);
/* Dtypes and shapes of the outputs, but for dtypes with dtype_fixed; the failure names the op. */
CT_API int ct_op_infer(struct ct_op *op);
/* Whether an input is updated in place. */
CT_API bool ct_op_mutates(const struct ct_op *op, int input);
/* The type's `join`; 0 where it has none. */
CT_API int ct_op_join(const struct ct_op *op, struct ct_value ***values);
/* The value of which this is a copy in another memory space; value itself if it is none. */
CT_API const struct ct_value *ct_value_origin(const struct ct_value *value);

/*
 * Attributes. Who includes the header of the type's owner reads its struct from op->attrs; these
 * are for others, by name. They assert that the attribute exists and has the type.
 */
CT_API double ct_op_float(const struct ct_op *op, const char *attribute);
CT_API int64_t ct_op_int(const struct ct_op *op, const char *attribute);
CT_API bool ct_op_bool(const struct ct_op *op, const char *attribute);
CT_API const char *ct_op_string(const struct ct_op *op, const char *attribute);
CT_API int ct_op_enum(const struct ct_op *op, const char *attribute);
CT_API ct_axes ct_op_axes(const struct ct_op *op, const char *attribute);

/* All attributes of a table to their fallbacks; those without one to zero, a dtype to none. */
CT_API int ct_attributes_reset(const struct ct_option *table, void *attrs);
/* ct_options_set for attributes. mesh names the axes; NULL: there are none. */
CT_API int ct_attribute_set(const struct ct_mesh *mesh, const struct ct_option *table, void *attrs,
                            const char *name, const char *text, const char *where);
/* ct_option_format for an attribute of op. */
CT_API int ct_attribute_format(const struct ct_mesh *mesh, const struct ct_op *op,
                               const struct ct_option *option, char *text, size_t room);

/*
 * Values that only some ranks along the graph's partition_axis have. `origin` is the value as all
 * ranks know it: its id is the tag, its dtype, shape and sharding are what is sent.
 */
CT_API int ct_send(struct ct_builder *b, const struct ct_value *origin, struct ct_value *value,
                   int from, int to);
CT_API struct ct_value *ct_receive(struct ct_builder *b, const char *name,
                                   const struct ct_value *origin, int from, int to);
/* x as a pending sum over partition_axis: the first rank that has x gives it, the others zeros. */
CT_API struct ct_value *ct_contribution(struct ct_builder *b, const char *name, struct ct_value *x);

/* The core's own op types that others meet in graphs. */
CT_API extern const struct ct_op_type ct_op_send, ct_op_receive, ct_op_contribution;

/* Bytes that this rank sends for op, from its local tensors; 0 for one that is no collective. */
CT_API double ct_op_sent(const struct ct_op *op, const struct ct_mesh *mesh,
                         const struct ct_tensor *in, const struct ct_tensor *out);

/* What the core's collectives do, for types of the same behaviour and attributes. */
CT_API extern const struct ct_collective_ops ct_collective_all_gather, ct_collective_reduce_scatter,
    ct_collective_all_reduce, ct_collective_all_to_all, ct_collective_permute, ct_collective_slice,
    ct_collective_narrow, ct_collective_concat, ct_collective_send, ct_collective_receive,
    ct_collective_contribution;

CT_END_DECLS

#endif
