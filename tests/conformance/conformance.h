/*
 * The conformance program: every kernel of a device against its op's reference.
 *
 * A case is a small graph in text form. Its ops run one after the other; each sees what the
 * reference made of the ops before it, so that gradients get consistent statistics. Every kernel
 * that accepts the call runs it in several layouts, with and without accumulation, on outputs that
 * were poisoned before, and is compared with the reference computed in float64 on the same
 * (rounded) inputs. `ctitan check` does the same to samples: ct_check_call() of lib/app/check.h
 * tries both, and has the tolerances. Cases may allow more roundings of inner values to bfloat16.
 *
 * Float8 products by cuBLASLt may be off by 2^-12 sum |a b| more. Hopper's tensor cores truncate
 * every product of an instruction to 13 bits after the point, relative to the largest (DeepSeek-V3,
 * arXiv 2412.19437, section 3.3.2; MMA-Sim, arXiv 2511.10909). What some 50 products lose comes to
 * 0.8 of that. cuBLASLt also rounds the sum to bfloat16 before it adds it to a bfloat16 result: one
 * more rounding of |ref|. Experts in 8 bits, whose products are by wgmma, round their hidden layers
 * after such sums: where one rounds to the next code, a term of a result is off by 2^-3 of itself.
 * They may be off by 2^-3 of the largest result. No other kernel has these tolerances.
 */
#ifndef TEST_CONFORMANCE_H
#define TEST_CONFORMANCE_H

#include <ctitan/device/device.h>
#include <ctitan/plugin.h>

struct conformance_case {
    const char *name;
    const char *text;    /* lines of graph text; T is the dtype under test */
    int64_t limit;       /* integers are below this */
    int inner_roundings; /* of inner values to T, one after the other, that kernels may do */
    bool exponential;    /* inputs are exponents: kept moderate; their errors are relative to 1 */
    bool large;          /* tried with one fill only */
};

/* Both ended by {0}. */
extern const struct conformance_case conformance_cases[], bench_cases[];

enum fill {
    FILL_NORMAL,
    FILL_LARGE,
    FILL_TINY,
    FILL_DENORMAL,
    FILL_SPARSE,
    FILL_NAN, /* here and there: of results, only those that are to be NaN are judged */
    FILLS,
    FILL_CHEAP = FILLS
};

/* A graph with memory: what the reference made of it so far. */
struct bed {
    struct ct_arena arena;
    struct ct_graph *graph;
    struct ct_device *device;
    struct ct_tensor
        *value; /* by id: dense, in the value's dtype; opaque values: as the kernels made it */
    struct ct_tensor *exact; /* by id: before it was rounded to that dtype */
    double *sensitivity;     /* by id: of the exact value to its op's inputs */
    enum ct_dtype dtype;     /* T */
    enum fill fill;
    uint64_t seed;
    const struct conformance_case *test;
};

/* The case's graph with T replaced, without memory. CT_EINVAL: a fault in the text. */
int bed_parse(struct bed *bed, struct ct_device *device, const struct conformance_case *test,
              enum ct_dtype dtype, enum fill fill, uint64_t seed);
/* The same with memory, its sources filled. */
int bed_create(struct bed *bed, struct ct_device *device, const struct conformance_case *test,
               enum ct_dtype dtype, enum fill fill, uint64_t seed);
/* The same after the transforms that the device's plugin offers, with memory; 0: they changed
   nothing, and the bed is as it was. */
int bed_transform(struct bed *bed, const struct ct_plugin *plugin);
void bed_finish(struct bed *bed);

/* Take a plugin in, its options at their defaults but for "KEY=VALUE" assignments. */
int bed_load(const char *name, char *const *assignments, int count,
             const struct ct_plugin **plugin);

/* The first kernel of the device that takes op, prepared for a dense call on the bed's values; its
   workspace is in arena. 1; CT_ENOENT: there is none. */
int bed_call(const struct bed *bed, const struct ct_op *op, struct ct_arena *arena,
             struct ct_launch *launch, const struct ct_kernel **kernel);

#endif
