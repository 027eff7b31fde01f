/*
 * Conformance of what plugins offer, for `ctitan check` and for tests.
 *
 * A sample is one call of an op type, in small sizes. Its reference kernel is run in many ways, and
 * everything that an op type promises is compared: strides, accumulation, outputs in the memory of
 * inputs, dtypes, gradients against central differences, and its factors: shards computed by two
 * ranks are shards of the whole.
 *
 * All checks return 0 or the number of cases that they tried, or a failure whose message says what
 * was called, what is wrong, and where.
 */
#ifndef CT_CHECK_H
#define CT_CHECK_H

#include <ctitan/device/device.h>
#include <ctitan/model.h>
#include <ctitan/op.h>

CT_BEGIN_DECLS

struct ct_check_allowance;

struct ct_sample {
    const char *type;
    const char *attrs; /* "eps=0.01 seed=3"; NULL: the defaults */
    /* "real[2,3] index[2] -": inputs by what fills them. real: normal numbers; fixed: as real,
       without a derivative; positive: 0.5 to 1.5; statistic and square: likewise, in float32 at
       least and in float64; given: as statistic, without a derivative; factor: likewise, in
       float32; index: 0 to 5; small: 0 or 1; label: as index, each third masked; document: runs of
       four equal numbers; packed: runs of three; position; offloaded: as positive, in another
       memory; quantised: as fixed, in E4M3; "-": absent. */
    const char *inputs;
    unsigned gradients; /* bit i: output i may be given a gradient; 0: output 0 only */
    double step;        /* of finite differences; 0: 1e-4 */
    bool joint;         /* a gradient only together with that of the op in front */
    char replaced;      /* where this factor is split, a transform replaces the op; 0: none */
    bool counted;       /* the type's `flops` are exactly these; else they are about those of the
                           products that the signature shows */
    double flops;
    int inner_roundings; /* of inner values to bfloat16, one after the other, that kernels may do */
};

/*
 * The samples of a type: those in its field `samples`, or one made from its signature. The array is
 * in arena, ended by {0}. CT_EINVAL: they do not parse, or the signature has no dimensions and the
 * type no samples.
 */
CT_API int ct_samples_of(const struct ct_op_type *type, struct ct_arena *arena,
                         struct ct_sample **samples);

/* Read one of "word[2,3] word -", and move on; false at the end. ndim: -1 for "-". */
CT_API bool ct_sample_operand(const char **text, char word[32], int *ndim, int64_t *shape);

/* One thing that every op type promises, and its test. */
struct ct_op_check {
    const char *name;
    int (*check)(const struct ct_sample *sample);
};
CT_API extern const struct ct_op_check ct_op_checks[]; /* ended by {0} */

/* ---- kernels against the reference ---- */

/*
 * A call of an op with numbers, for the kernels of a device. Each kernel that accepts it runs it in
 * every layout of its operands, with and without accumulation, on outputs that were poisoned before
 * and in memory between guards. It is compared with the reference, computed in float64 on the same
 * rounded inputs.
 */
struct ct_check_case {
    const char *what; /* is called, for messages: "rms_norm(real[2,3])" */
    const struct ct_graph *graph;
    const struct ct_op *op;
    const struct ct_tensor *value; /* by id: dense, in the value's dtype. Kernels see copies of the
                                      inputs; opaque results are written back for later ops */
    int inner_roundings;           /* of inner values to bfloat16 that kernels may do */
    double least;                  /* errors are relative to the largest element, or to this */
    bool only_nan; /* of results, only those that are to be NaN are judged: they must be it */
    bool again;    /* on other numbers: gaps of a few elements and ranges of ct_parallel are not
                      tried again */
    /* Allows a kernel's results more than the tolerance; NULL: nothing more. */
    void (*allow)(const struct ct_check_case *c, const struct ct_kernel *kernel, int operand,
                  bool accumulated, struct ct_check_allowance *allowance);
    void *context; /* for `allow` */
};

struct ct_check_allowance {
    double rounding;   /* relative, of one rounding of the result; it has its dtype's */
    const double *own; /* by element, or NULL, which it has */
};

/* An operand as it should be after the call. Outputs come first, then inputs. */
struct ct_check_expected {
    struct ct_tensor exact;   /* in float64, or integers; data NULL: opaque, or absent */
    struct ct_tensor rounded; /* all results rounded on the way; data NULL: not known */
    double sensitivity;       /* change of the exact result when inputs change in their 22nd bit */
    double largest;           /* finite element of exact, by size */
};

/* The inputs of a reference: as they are, with results in float64 or in their dtypes; each changed
   by ct_check_disturb(); all positive, with results in float64. */
enum ct_check_inputs { CT_CHECK_EXACT, CT_CHECK_ROUNDED, CT_CHECK_DISTURBED, CT_CHECK_SIZES };

/* Run the reference on copies of the values: the operands after it, outputs first, in arena. */
CT_API int ct_check_reference(const struct ct_check_case *c, enum ct_check_inputs inputs,
                              struct ct_arena *arena, struct ct_tensor *operands);
/* The reference's results, by operand, in arena; with only_nan the exact ones alone. */
CT_API int ct_check_expect(const struct ct_check_case *c, struct ct_arena *arena,
                           struct ct_check_expected **expected);

/* A device whose kernels are tried, and memory there for operands. Begins with the rest zero. */
struct ct_checker {
    struct ct_device *device;
    struct {
        void *base;
        size_t bytes;
    } reserved[2]; /* of operands; of the workspace; nothing on devices with host memory */
};

/* Try the kernel. Returns the number of calls that it accepted, or a failure that says what is
   wrong. *worst: raised to the largest error, in tolerances. */
CT_API int ct_check_call(struct ct_checker *checker, const struct ct_kernel *kernel,
                         const struct ct_check_case *c, const struct ct_check_expected *expected,
                         double *worst);
/* The calls that an op type's sample makes: in each dtype that the kernel accepts, and with
   sequences in another order. 0: it accepts none of these calls. */
CT_API int ct_check_kernel(struct ct_checker *checker, const struct ct_kernel *kernel,
                           const struct ct_sample *sample);
/* Release the memory on the device. */
CT_API void ct_checker_finish(struct ct_checker *checker);

/* Prepare the kernel for a launch whose op, operands and `accumulate` are set: its state is set,
   and *workspace is the bytes that it needs. 1: done; 0: it does not accept; or a failure. */
CT_API int ct_check_prepare(struct ct_device *device, const struct ct_kernel *kernel,
                            struct ct_launch *launch, struct ct_arena *arena, size_t *workspace);

/* Whole tensors as numbers, in row-major order; strides are honoured. */
CT_API void ct_check_read(const struct ct_tensor *t, double *to);
CT_API void ct_check_write(const struct ct_tensor *t, const double *from);

/* ---- how far a kernel may be from the reference ---- */

/*
 * The tolerance for an element w of an output of dtype D, in a tensor whose largest element is S:
 *     rounding(D) |w| + (8 + 3 sqrt(K)) 2^-24 S + R 2^-8 S + 2 C
 * rounding is one rounding to D; K is the number of terms of a sum, whose float32 rounding errors
 * grow as a random walk (three deviations); R are roundings of inner values to bfloat16 that are
 * allowed; C is how much the exact result changes when every input is changed by 2^-22 of itself:
 * what the problem's own condition costs in float32. An op whose outputs are computed from its
 * rounded outputs may be near the reference on rounded results instead, with one rounding more.
 * Integers are equal.
 */
struct ct_check_call {
    const struct ct_op *op;
    const struct ct_tensor *in, *out;
    int inner_roundings;
};

/* One rounding to dtype, relative; 0 for integers. */
CT_API double ct_check_rounding(enum ct_dtype dtype);
/* The tolerance without the rounding. dtype: of the operand; largest: S; sensitivity: C. */
CT_API double ct_check_slack(const struct ct_check_call *call, enum ct_dtype dtype, double largest,
                             double sensitivity);
/* Error of got over the tolerance, at its worst, and where; before: what was accumulated into; own:
   what elements have beside slack, or NULL. Above 1 is a fault. */
CT_API double ct_check_error(const double *got, const double *want, int64_t count, double slack,
                             const double *own, double before, double rounding, int64_t *where);
/* Every element of an operand grows or shrinks by 2^-22 of itself, by chance. */
CT_API void ct_check_disturb(double *numbers, int64_t count, int operand);

/* The gradient of a model's loss, in float64 by reference kernels, against central differences of
   every parameter in a random direction, but those whose gradient is ct_expert_excess; its names,
   and its shard plan. CT_EINVAL names the parameter that is wrong. */
CT_API int ct_check_model(const struct ct_model_ops *ops, struct ct_model *model);

/* By reference kernels: a step moves every element of every parameter, and one with a negative
   `clip` changes nothing. Returns the number of parameters, 0 if it takes none of those that are
   tried. */
CT_API int ct_check_optimizer(const struct ct_optimizer_ops *ops);

/* ---- machines: a graph, and dense host memory for its values ---- */

struct ct_trial {
    struct ct_arena arena;
    struct ct_graph *graph;
    struct ct_op *op;         /* of the sample */
    struct ct_tensor *memory; /* by value id */
    size_t room;
};

/* The sample's op in float64, or with every floating input in another dtype; inputs are filled.
   Returns the failure of emitting it. */
CT_API int ct_trial_create(struct ct_trial *m, const struct ct_sample *sample, enum ct_dtype dtype);
/* Free the trial's memory. */
CT_API void ct_trial_finish(struct ct_trial *m);
/* The value's memory: dense, zeroed at first. */
CT_API struct ct_tensor *ct_trial_tensor(struct ct_trial *m, const struct ct_value *value);
/* Fill a value as the word `fill` of a sample says, with numbers that depend on its id and the
   element only. */
CT_API void ct_trial_fill(struct ct_trial *m, const struct ct_value *value, const char *fill);
/* Run op, or all ops from there on, by their reference kernels. */
CT_API int ct_trial_run(struct ct_trial *m, const struct ct_op *op);
CT_API int ct_trial_run_from(struct ct_trial *m, const struct ct_op *op);

CT_END_DECLS

#endif
