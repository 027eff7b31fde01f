/*
 * For kernels of the cpu (ctitan/lib/cpu.h): operands of one shape and any strides, as runs of
 * elements that are contiguous in all of them.
 *
 * Dimensions are merged wherever every operand allows it: dense tensors are one run, column slices
 * of a matrix are one run per row.
 */
#ifndef CT_CPU_RUNS_H
#define CT_CPU_RUNS_H

#ifdef _OPENMP
#include <omp.h>
#endif

#include <ctitan/lib/cpu.h>

#define CPU_OPERANDS 32

struct cpu_runs {
    int rank; /* dimensions outside the runs */
    int64_t shape[CT_MAX_DIMS];
    int64_t stride[CPU_OPERANDS][CT_MAX_DIMS];
    int64_t count, length;
};

static inline bool cpu_runs_may_merge(const struct cpu_runs *runs, int operands, int outer)
{
    for (int i = 0; i < operands; i++)
        if (runs->stride[i][outer] != runs->stride[i][outer + 1] * runs->shape[outer + 1])
            return false;
    return true;
}

static inline void cpu_runs_drop(struct cpu_runs *runs, int operands, int dim)
{
    for (int d = dim; d + 1 < runs->rank; d++) {
        runs->shape[d] = runs->shape[d + 1];
        for (int i = 0; i < operands; i++)
            runs->stride[i][d] = runs->stride[i][d + 1];
    }
    runs->rank--;
}

/* Dimensions of size 1 go; neighbours that are one dimension in all operands become one. */
static inline void cpu_runs_merge(struct cpu_runs *runs, int operands)
{
    for (int d = runs->rank - 1; d >= 0; d--)
        if (runs->shape[d] == 1)
            cpu_runs_drop(runs, operands, d);
    for (int d = runs->rank - 2; d >= 0; d--) {
        if (!cpu_runs_may_merge(runs, operands, d))
            continue;
        runs->shape[d + 1] *= runs->shape[d];
        cpu_runs_drop(runs, operands, d);
    }
}

static inline struct cpu_runs cpu_runs_of(const struct ct_tensor *const *t, int operands, int rank)
{
    struct cpu_runs runs = {.rank = rank, .count = 1, .length = 1};

    for (int d = 0; d < rank; d++)
        runs.shape[d] = t[0]->shape[d];
    for (int i = 0; i < operands; i++)
        for (int d = 0; t[i] && d < rank; d++)
            runs.stride[i][d] = t[i]->stride[d];
    return runs;
}

/*
 * The last dimension of t[0] as runs. Operands that lack it (rank one lower: a number per row) have
 * one element per run; NULL ones are skipped.
 */
static inline struct cpu_runs cpu_rows_of(const struct ct_tensor *const *t, int operands)
{
    int last = t[0]->ndim - 1;
    struct cpu_runs runs = cpu_runs_of(t, operands, last);

    runs.length = t[0]->shape[last];
    cpu_runs_merge(&runs, operands);
    runs.count = ct_shape_count(runs.rank, runs.shape);
    return runs;
}

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

typedef void cpu_run_body(void *const *data, int64_t n);

static inline struct cpu_runs cpu_runs_of_elements(const struct ct_tensor *const *t, int operands)
{
    struct cpu_runs runs = cpu_runs_of(t, operands, t[0]->ndim);
    bool contiguous = true;

    cpu_runs_merge(&runs, operands);
    for (int i = 0; i < operands && runs.rank; i++)
        contiguous &= runs.stride[i][runs.rank - 1] == 1;
    if (runs.rank && contiguous)
        runs.length = runs.shape[--runs.rank];
    runs.count = ct_shape_count(runs.rank, runs.shape);
    return runs;
}

static inline void cpu_runs_walk(const struct cpu_runs *runs, const struct ct_tensor *const *t,
                                 int operands, struct cpu_range range, cpu_run_body *body)
{
    void *data[CPU_OPERANDS];

    while (range.begin < range.end) {
        int64_t run = range.begin / runs->length, at = range.begin % runs->length;
        int64_t left = range.end - range.begin, n = runs->length - at;

        n = n < left ? n : left;
        for (int i = 0; i < operands; i++) {
            int64_t first = cpu_run_at(runs, i, run) + at;
            data[i] = (char *)t[i]->data + first * (int64_t)ct_dtype_size(t[i]->dtype);
        }
        body(data, n);
        range.begin += n;
    }
}

/*
 * body on all elements, in shards of n contiguous ones that the compute threads share. All operands
 * are present and have t[0]'s shape; data[i] points into operand i. Shared where the source is
 * built with OpenMP.
 */
static inline void cpu_for_runs(const struct ct_tensor *const *t, int operands, cpu_run_body *body)
{
    struct cpu_runs runs = cpu_runs_of_elements(t, operands);
    int64_t elements = runs.count * runs.length;

#ifdef _OPENMP
#pragma omp parallel if (cpu_worth_threads(elements))
    cpu_runs_walk(&runs, t, operands,
                  cpu_share(elements, 64, omp_get_thread_num(), omp_get_num_threads()), body);
#else
    cpu_runs_walk(&runs, t, operands, (struct cpu_range){0, elements}, body);
#endif
}

#endif
