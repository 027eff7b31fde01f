/*
 * Op types and kernels.
 *
 * An op type is one entry of a table: its signature, its gradient, its attributes and a plain
 * reference kernel. The core defines those that it emits itself (core_ops.h); libraries and
 * plugins register more. There is no enumeration of ops anywhere.
 *
 * A signature lists inputs and outputs: "x[.k] T, *w[nk] T -> *y[.n] T" for a linear layer. It is
 * parsed once, when the type is registered. Each operand has a name, a letter for each dimension (a
 * factor), and a letter for its dtype. Shapes, dtypes, their checks, the number and the names of
 * outputs, and the propagation of shardings follow from it; most types need no `infer`.
 *
 * Factors. A factor in inputs and outputs is parallel: any axis may split it. A factor in inputs
 * only is a reduction: splitting it leaves the outputs unreduced, as sums, or as maxima where "max"
 * follows the output's dtype. A factor with a capital letter must be whole on every rank. '.' is
 * any number of leading dimensions, the same in all operands. [] is a scalar. A type whose shapes
 * only `infer` knows omits all brackets.
 *
 * Repetition. '*' before an operand repeats it: "*a, *b" are all a, then all b; "*(a, b)" is
 * a, b, a, b, .. A factor that occurs in repeated operands only is another dimension in each
 * repetition. The inputs determine how often outputs repeat.
 *
 * Flags. '?' before an input: it may be absent, or omitted at the end. '!' before an input: it is
 * updated in place. "?w[k] T", "*(!p[.] F, g[.] F)". "*?x" may repeat zero times.
 *
 * Dtypes.
 *   T  a floating dtype, the same in all operands with T
 *   A  like T, but integers are allowed too
 *   W  float32, or float64 if T is float64: statistics, losses
 *   F  any floating dtype
 *   f, d, i  float32, float64, int32
 *   c  any dtype, also with elements below a byte: codes, and what belongs to them
 *
 * Clauses follow '|', separated by commas. "h:g" ties two factors: they are split together, and the
 * first is a multiple of the second. "*widths": outputs repeat as often as the SHAPE attribute
 * `widths` has sizes. "@t": t runs along sequences, and the result depends on the position of each
 * token in its sequence. "n%size": shards of n are multiples of the number attribute `size`.
 *
 * Positions. For a factor without "@", a type promises that a result does not depend on the value
 * of its index. Sequences may be fed in another order, so that a rank's shard consists of several
 * ranges of a sequence. A type with "@t" therefore takes an input with the positions, or calls
 * ct_launch_position for each token. Its gradient's type needs the clause too. A type that needs
 * whole sequences ("x[bTn]") without "@T" is refused where they are in another order.
 *
 * Formulas. `pointwise` says what a type computes, for each element, as in "s = sigmoid(x); y =
 * x * s": a list of assignments, separated by ';'. The names are those of inputs, of attributes
 * that are numbers, truth values or choices (the position of the choice), and those assigned
 * before. Every output is assigned; from then on it is rounded to its dtype. An absent input is
 * 0. There are + - * / < >, a ? b : c, and the functions exp, log, log1p (of 1 + x), sigmoid, tanh,
 * erf, sin, cos, sqrt, abs, min, max, pow. The last dimension of the largest is the column, others
 * together are the row. row_sum(e), row_mean(e) and row_max(e) reduce a row; what they return
 * may be used in further expressions, and so may columns(), the number of columns. column_sum(e)
 * adds up all rows, for outputs such as the gradient of a weight. An operand has the factors of
 * rows and columns, of one of the two, or none: "x[.K] T, w[K] T -> y[.K] T, rstd[.] W". Nothing is
 * updated in place, and no operand repeats. The reference kernel and the gradient follow from the
 * formula: CT_FORMULA (pointwise.h). Its time is that of memory, so it counts no FLOPs.
 *
 * A kernel is found by (op type, device): the first in the device's order whose `accepts` is true
 * runs. tests/conformance checks every kernel against the reference.
 */
#ifndef CT_OP_H
#define CT_OP_H

#include <ctitan/graph.h>
#include <ctitan/option.h>

CT_BEGIN_DECLS

struct ct_rule;         /* rule.h */
struct ct_communicator; /* comm.h */
struct ct_event_data;   /* hook.h */
struct ct_transport;    /* collective.h */
struct ct_group;        /* device/comm.h */
struct ct_device;       /* device/device.h */
struct ct_recurrence;   /* lib/ops.h */

/* A request for a vector-Jacobian product: read op and dout, emit ops, set din. */
struct ct_vjp {
    struct ct_builder *b;
    struct ct_op *op;
    struct ct_value **dout; /* by output; NULL where no gradient arrives */
    struct ct_value **din;  /* by input; leave NULL where none flows */
    const bool *wanted;     /* by input: false where nobody needs din */
};

/*
 * A request to compute sequences in parts, while they are generated: change op's inputs, so that it
 * knows where its tokens are and what it keeps of those before. Ops are emitted in front of op. One
 * graph takes a chunk of tokens of each sequence, another one a single token; both have the same
 * states, by name.
 */
struct ct_cache {
    struct ct_builder *b;
    struct ct_op *op;
    struct ct_value *positions; /* int32 [batch, t]: of each token in its sequence */
    /* The same, but -1 for the tokens that only fill a row: these come last in it, nothing is kept
       of them, and nobody reads their results. A row whose first slot is 0 begins its sequence. */
    struct ct_value *slots;
    int64_t context; /* a sequence has no more tokens; slots are below that */
};

/* A mark (ct_mark) of a state that nobody has placed: the first op that updates it takes part in
   the choice of its sharding. */
#define CT_MARK_UNPLACED "unplaced"

/* One call of a kernel. Everything is local to this rank. */
struct ct_launch {
    const struct ct_op *op;     /* for op->attrs; shapes are those of the tensors below */
    const struct ct_tensor *in; /* data NULL: absent */
    const struct ct_tensor *out;
    int ins, outs;
    uint32_t accumulate; /* bit i < 32: add to out[i] instead of overwriting it */
    void *workspace;     /* as many bytes as `prepare` asked for, 64-byte aligned */
    void *state;         /* from `prepare` */
    void *stream;        /* the device's own handle */
    void *device;        /* struct ct_device */
    int64_t rank;        /* of this process in the mesh: see ct_launch_offset */
    const struct ct_mesh *mesh;
    const struct ct_event_data *event; /* of a collective: data for its events; NULL: its caller
                                          sends none */
    const struct ct_graph *graph;      /* the op's graph; NULL: sequences are in order */
};

/* A copy of launch with its tensors and event, for a device that runs the kernel after `enqueue`
   has returned. To be freed with free(); NULL: no memory. */
CT_API struct ct_launch *ct_launch_dup(const struct ct_launch *launch);

/* The index in the whole at which this rank's shard of v begins along dimension dim: the first row
   of a table that is split by rows. Along sequences use ct_launch_position. */
CT_API int64_t ct_launch_offset(const struct ct_launch *launch, const struct ct_value *v, int dim);

/*
 * The position in its sequence of the token at `index` of this rank's shard of v, whatever splits
 * the sequence and in whatever order it is fed. Dimension dim of v runs along sequences, and is a
 * factor with "@" in the signature. Calling this for a type without "@" is a bug, as is
 * ct_launch_offset along sequences that are in another order.
 */
CT_API int64_t ct_launch_position(const struct ct_launch *launch, const struct ct_value *v, int dim,
                                  int64_t index);

/*
 * Run a kernel's work in host memory on all threads of the launch's device. body is called with
 * disjoint ranges [begin, end) that cover [0, count) and run at the same time. Returns when all are
 * done. No two ranges write the same memory. The device chooses the number of ranges: for bitwise
 * equal results on any number of threads, the result of an index must not depend on its range.
 * Waking threads costs microseconds, so small kernels should not use this.
 */
typedef void ct_range_body(void *context, int64_t begin, int64_t end);
CT_API void ct_parallel(const struct ct_launch *launch, int64_t count, ct_range_body *body,
                        void *context);

/* Where an operand begins: `offset` bytes behind the begin of a buffer. The number of a buffer only
   says which operands lie in one; CT_ANYWHERE: the operand is absent, or may lie in any buffer. */
#define CT_ANYWHERE UINT32_MAX
struct ct_location {
    uint32_t buffer;
    size_t offset;
};

/* Arguments of a kernel's `accepts` and `prepare`, once per distinct call while lowering. */
struct ct_prepare {
    const struct ct_op *op;
    const struct ct_tensor *in, *out; /* local shapes and strides; data NULL */
    /* By operand, inputs first, for `prepare`: see ct_prepare_distance. NULL: not known. */
    const struct ct_location *locations;
    const bool *present; /* by input: false for an optional one that is absent */
    int ins, outs;
    uint32_t accumulate; /* outputs that some call will accumulate into */
    struct ct_device *device;
    struct ct_arena *arena; /* for state */
    size_t workspace;       /* set by `prepare`, bytes; default 0 */
    void *state;            /* set by `prepare` if wanted; passed to every launch */
    int64_t rank;           /* of this process, and the mesh: for collectives */
    const struct ct_mesh *mesh;
    const struct ct_communicator *communicator; /* comm.h; NULL: one rank, or only planning */
    struct ct_group *group;                     /* set by a collective; events name it */
    const struct ct_graph *graph;               /* the op's graph; NULL: sequences are in order */
    bool repeatable; /* [training] deterministic: kernels with CT_KERNEL_VARIES are left out */
    /* Set by `prepare`, bytes: what a call reads and writes in memory apart from each input and
       output once, such as copies in its workspace. Predictions of its time count it; default 0. */
    double traffic;
};

/* True: in every call, operand b begins *bytes behind operand a. Operands count from 0, inputs
   first. False: they may lie anywhere. */
CT_API bool ct_prepare_distance(const struct ct_prepare *p, int a, int b, ptrdiff_t *bytes);

/* Flags of a kernel. One call gives the same bits in every run, unless it has CT_KERNEL_VARIES. */
#define CT_KERNEL_ACCUMULATES 1u /* adds to floating-point outputs that launch->accumulate has */
#define CT_KERNEL_STRIDED 2u     /* any strides with a last one of 1; else only dense tensors */
#define CT_KERNEL_VARIES 4u      /* adds in no fixed order, so bits differ from run to run */

/* ct_fail(CT_ECONFIG) in `accepts`: the device lacks the units, so no plan takes the call. */
struct ct_kernel {
    size_t size;      /* set by CT_KERNEL */
    const char *op;   /* type name */
    const char *name; /* "onednn", "avx512", for plans and benchmarks */
    unsigned flags;
    bool (*accepts)(const struct ct_prepare *); /* NULL: always; ct_fail() may say why not */
    int (*prepare)(struct ct_prepare *);        /* NULL: nothing to do */
    int (*run)(const struct ct_launch *);
    /* Values (op->in + i or op->out + i) that it prefers one after the other in memory, without
       gaps. The plan tries, where they are made together and used together; `prepare` sees by
       ct_prepare_distance whether they do. NULL: none. */
    int (*stack)(const struct ct_op *op, struct ct_value ***values);
};

/* An element of an array of kernels, which ends with {0}:
   CT_KERNEL("linear", "onednn", CT_KERNEL_STRIDED, accepts, prepare, run) */
#define CT_KERNEL(...)                                                                             \
    {                                                                                              \
        .size = sizeof(struct ct_kernel), __VA_ARGS__                                              \
    }

/* Flags of an op type. */
#define CT_OP_VIEW 1u /* output 0 is input 0 in another shape: no memory, no instruction */
/* Floating outputs may have any floating dtype: casts are folded into them. */
#define CT_OP_ANY_DTYPE 2u
#define CT_OP_EFFECT 4u     /* kept even if nobody uses its outputs (mutating ops always are) */
#define CT_OP_COLLECTIVE 8u /* communicates */
#define CT_OP_LINEAR 16u    /* linear in all inputs jointly: pending sums may pass through */
/* Copies between memory spaces. No other op accesses values in host memory. */
#define CT_OP_SPACES 32u

/* Ends only when its peer takes part. What it reads keeps its memory until the next item of the
   step that computes has ended. */
#define CT_OP_RENDEZVOUS 64u
/* The reference kernel only moves bytes: a device with host memory needs no kernel of its own. */
#define CT_OP_MOVES 128u
/* The gradient is not the derivative, on purpose: it passes straight through a rounding (Bengio et
   al. 2013). `ctitan check` runs it without comparing it with finite differences. */
#define CT_OP_STRAIGHT_THROUGH 256u
/* Operands with the dtype letter A may have elements smaller than a byte (tensor.h). */
#define CT_OP_PACKED 512u
/* No gradient flows through it: its inputs are what it computes with. */
#define CT_OP_STOPS 1024u

/* How a collective runs on every device; defined with CT_COLLECTIVE (collective.h). */
struct ct_collective_ops {
    size_t size; /* of this struct */
    /* The kernel that runs it over the device's transport; NULL: the device has no transport. */
    const struct ct_kernel *(*kernel)(const struct ct_device *device);
    /* Called once for each call of the op: set p->state, p->workspace, and p->group through
       ct_collective_prepare_axes or ct_collective_prepare_ranks. The core's own have neither
       function: the library knows how they run. */
    int (*prepare)(struct ct_prepare *p);
    int (*run)(const struct ct_launch *l, const struct ct_transport *by);
    /* Bytes that each of the `ranks` ranks along the attribute "axes" sends, by the algorithm that
       sends least. in, out: bytes of its inputs and outputs. NULL: none. */
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
    /* Outputs that may reuse the memory of an input whose lifetime ends here: {output, input}
       pairs, ended by {-1, -1}; NULL: none. Applies only where shapes, dtypes and strides are
       equal. */
    const int8_t (*inplace)[2];
    /* Set dtype, ndim and shape of out[i] from in[] where the signature, which was applied before,
       does not determine them. CT_EINVAL says what does not fit. Called through ct_op_infer, which
       keeps fixed dtypes. NULL: nothing to add. */
    int (*infer)(struct ct_op *op);
    /* Change this op's factors, or create them if it has none, where the signature cannot express
       them. NULL: nothing to add. */
    int (*factors)(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule);
    /* Emit the gradient; NULL: not differentiable. */
    int (*vjp)(struct ct_vjp *);
    /* Floating-point operations of one call on these (local) shapes; multiply and add count as two.
       NULL: counted as none (memory-bound), as all formulas are. */
    double (*flops)(const struct ct_op *op, const struct ct_tensor *in,
                    const struct ct_tensor *out);
    /* Plain loops over ct_tensor_load/store, accumulating in double; honours accumulate and any
       strides. NULL only for ops that exist on one device alone. */
    int (*reference)(const struct ct_launch *);
    /* Values (op->in + i or op->out + i) that should be adjacent in memory, as columns of one
       matrix. The plan tries to do so; kernels check the strides. NULL: none. */
    int (*join)(const struct ct_op *op, struct ct_value ***values);
    /* Runs it on a device without a kernel of its own (collective.h). NULL: none. */
    const struct ct_collective_ops *collective;
    /* Emit ops of fewer outputs each that compute the same, for callers that need only some
       outputs. out[i] replaces output i and is bitwise equal. NULL: the op cannot be split up. */
    int (*apart)(struct ct_builder *b, const struct ct_op *op, struct ct_value **out);
    /* The op as a formula (see above): transforms may then compute it together with
       other ops, and its reference and gradient need not be written. NULL: it stays by itself. */
    const char *pointwise;
    /* The shardings that op needs its inputs in, and that its outputs have, for a type that
       communicates by itself in a way that no signature expresses. in and out (by input, by output)
       are replicated at first; op->in[i]->sharding is as it comes. NULL: they follow from the
       signature. */
    int (*place)(const struct ct_op *op, const struct ct_mesh *mesh, struct ct_sharding *in,
                 struct ct_sharding *out);
    /* Calls that `ctitan check` tries, separated by ';': attributes, ':', and inputs as in
       lib/app/check.h: "k=2: real[4,6]; k=1: real[2,2]". Before ':' may stand other fields of
       struct ct_sample, "@gradients=3". NULL: one is made up from the signature. */
    const char *samples;
    /* For an op that copies between a whole and its parts along one dimension: with one input, the
       output is a part of it; with several, they are the parts of the output. Returns where part i
       begins on this rank, as an index of dimension *dim of the whole. The plan lets contiguous
       parts lie in their whole. NULL: it is no such op. */
    int64_t (*part)(const struct ct_op *op, const struct ct_mesh *mesh, int64_t rank, int i,
                    int *dim);
    /* For an op along sequences ("@t"): let it compute them in parts, and go on where the call
       before ended, with states that keep what it needs of earlier tokens (struct ct_cache). NULL:
       it needs whole sequences, if its result depends on positions. */
    int (*cache)(struct ct_cache *cache);
    /* For an op whose tokens see earlier ones through a state alone: how the state passes from one
       segment of a sequence to the next (<ctitan/lib/ops.h>). NULL: it is no such op. */
    const struct ct_recurrence *recurrence;
};
/* The least size that is taken. The later fields are optional: read them through
   ct_op_type_whole. */
#define CT_OP_TYPE_SMALLEST offsetof(struct ct_op_type, pointwise)

/* Attribute types beyond those of configuration options; the compiler checks the field's type.
   Values are written as in graph text: "bfloat16", "8,256", "dp_shard.cp", "[dp_shard, -]". */
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
 * Registry. Types and kernels live as long as the process. CT_EINVAL: a second type of one name, or
 * a faulty entry; the message names the fault. The core's own types are registered before the first
 * plugin is loaded.
 */
CT_API int ct_op_register(const struct ct_op_type *type);
/* The same, but does nothing if this very type is registered already. */
CT_API int ct_op_need(const struct ct_op_type *type);
/* A registered type in this library's layout: fields that it was built without are 0. */
CT_API const struct ct_op_type *ct_op_type_whole(const struct ct_op_type *type);
/* The type called name, or NULL with the nearest name in the failure's message. */
CT_API const struct ct_op_type *ct_op_find(const char *name);
/* The i-th registered type, NULL after the last: for loops over all of them. */
CT_API const struct ct_op_type *ct_op_at(size_t index);

/* Kernels of a device ("cpu") are tried in the order of their registration. Both are kept, not
   copied. */
CT_API int ct_kernel_register(const char *device, const struct ct_kernel *kernel);
/* The kernel for a call, or NULL: the caller falls back on the type's reference or fails. Kernels
   whose flags do not cover the request (accumulation, strides, repeatable) are skipped. */
CT_API const struct ct_kernel *ct_kernel_find(const char *device, const struct ct_prepare *request);
/* The i-th kernel of a device, in the order of registration; NULL after the last. */
CT_API const struct ct_kernel *ct_kernel_at(const char *device, size_t index);

/* Number of outputs that the signature gives for op's inputs. */
CT_API int ct_op_count_outputs(const struct ct_op *op);
/* Infer dtypes and shapes of the outputs. Values with dtype_fixed keep their dtype. The failure
   names the op. */
CT_API int ct_op_infer(struct ct_op *op);
/* Input i; NULL: it is absent, or omitted at the end. */
static inline struct ct_value *ct_op_input(const struct ct_op *op, int i)
{
    return i < op->ins ? op->in[i] : NULL;
}
/* Whether an input is updated in place. */
CT_API bool ct_op_mutates(const struct ct_op *op, int input);
/* The type's `join`; 0 where it has none. */
CT_API int ct_op_join(const struct ct_op *op, struct ct_value ***values);
/* The value that this one copies from another memory space; value itself if it is no copy. */
CT_API const struct ct_value *ct_value_origin(const struct ct_value *value);

/*
 * Attributes. Code that includes the header of the type's owner reads the struct in op->attrs.
 * Other code uses these functions, by name. They assert that the attribute exists and has the type.
 */
CT_API double ct_op_float(const struct ct_op *op, const char *attribute);
CT_API int64_t ct_op_int(const struct ct_op *op, const char *attribute);
CT_API bool ct_op_bool(const struct ct_op *op, const char *attribute);
CT_API const char *ct_op_string(const struct ct_op *op, const char *attribute);
CT_API int ct_op_enum(const struct ct_op *op, const char *attribute);
CT_API ct_axes ct_op_axes(const struct ct_op *op, const char *attribute);

/* Set all attributes of a table to their fallbacks; without one to zero, a dtype to none. */
CT_API int ct_attributes_reset(const struct ct_option *table, void *attrs);

/* Bytes that this rank sends for op, from its local tensors; 0 if op is no collective. */
CT_API double ct_op_sent(const struct ct_op *op, const struct ct_mesh *mesh,
                         const struct ct_tensor *in, const struct ct_tensor *out);

/* How the core's collectives run, for other types with the same behaviour and attributes. */
CT_API extern const struct ct_collective_ops ct_collective_all_gather, ct_collective_reduce_scatter,
    ct_collective_all_reduce, ct_collective_all_to_all, ct_collective_permute, ct_collective_slice,
    ct_collective_narrow, ct_collective_pad, ct_collective_concat;

CT_END_DECLS

#endif
