/*
 * Operands of one shape and any strides, as runs of elements that are contiguous in all of them.
 *
 * Dimensions are merged wherever every operand allows it: dense tensors are one run, column slices
 * of a matrix are one run per row.
 */
#ifndef CPU_KERNELS_RUNS_H
#define CPU_KERNELS_RUNS_H

#include <ctitan/tensor.h>

#define CPU_OPERANDS (1 + CT_MAX_DIMS)

struct cpu_runs {
    int rank; /* dimensions outside the runs */
    int64_t shape[CT_MAX_DIMS];
    int64_t stride[CPU_OPERANDS][CT_MAX_DIMS];
    int64_t count, length;
};

/*
 * The last dimension of t[0] as runs. Operands that lack it (rank one lower: a number per row) have
 * one element per run; NULL ones are skipped.
 */
struct cpu_runs cpu_rows_of(const struct ct_tensor *const *t, int operands);

/* First element of a run in an operand. */
static inline int64_t cpu_run_at(const struct cpu_runs *runs, int operand, int64_t run)
{
    const int64_t *stride = runs->stride[operand];
    int64_t at = 0;

    for (int d = runs->rank - 1; d > 0; d--) {
        at += run % runs->shape[d] * stride[d];
        run /= runs->shape[d];
    }
    return runs->rank ? at + run * stride[0] : 0;
}

/*
 * body on all elements, in shards of n contiguous ones that the compute threads share. All operands
 * are present and have t[0]'s shape; data[i] points into operand i.
 */
typedef void cpu_run_body(void *const *data, int64_t n);
void cpu_for_runs(const struct ct_tensor *const *t, int operands, cpu_run_body *body);

/* True if work of so many elements is worth waking threads for. */
static inline bool cpu_worth_threads(int64_t elements)
{
    return elements >= 16384;
}

#endif
