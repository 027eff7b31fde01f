#include "runs.h"

#include <omp.h>

#include "../cpu.h"

static bool mergeable(const struct cpu_runs *runs, int operands, int outer)
{
    for (int i = 0; i < operands; i++)
        if (runs->stride[i][outer] != runs->stride[i][outer + 1] * runs->shape[outer + 1])
            return false;
    return true;
}

static void drop(struct cpu_runs *runs, int operands, int dim)
{
    for (int d = dim; d + 1 < runs->rank; d++) {
        runs->shape[d] = runs->shape[d + 1];
        for (int i = 0; i < operands; i++)
            runs->stride[i][d] = runs->stride[i][d + 1];
    }
    runs->rank--;
}

/* Dimensions of size 1 go; neighbours that are one dimension in all operands become one. */
static void merge(struct cpu_runs *runs, int operands)
{
    for (int d = runs->rank - 1; d >= 0; d--)
        if (runs->shape[d] == 1)
            drop(runs, operands, d);
    for (int d = runs->rank - 2; d >= 0; d--) {
        if (!mergeable(runs, operands, d))
            continue;
        runs->shape[d + 1] *= runs->shape[d];
        drop(runs, operands, d);
    }
}

static struct cpu_runs runs_of(const struct ct_tensor *const *t, int operands, int rank)
{
    struct cpu_runs runs = {.rank = rank, .count = 1, .length = 1};

    for (int d = 0; d < rank; d++)
        runs.shape[d] = t[0]->shape[d];
    for (int i = 0; i < operands; i++)
        for (int d = 0; t[i] && d < rank; d++)
            runs.stride[i][d] = t[i]->stride[d];
    return runs;
}

struct cpu_runs cpu_rows_of(const struct ct_tensor *const *t, int operands)
{
    int last = t[0]->ndim - 1;
    struct cpu_runs runs = runs_of(t, operands, last);

    runs.length = t[0]->shape[last];
    merge(&runs, operands);
    runs.count = ct_shape_count(runs.rank, runs.shape);
    return runs;
}

static struct cpu_runs elements_of(const struct ct_tensor *const *t, int operands)
{
    struct cpu_runs runs = runs_of(t, operands, t[0]->ndim);
    bool contiguous = true;

    merge(&runs, operands);
    for (int i = 0; i < operands && runs.rank; i++)
        contiguous &= runs.stride[i][runs.rank - 1] == 1;
    if (runs.rank && contiguous)
        runs.length = runs.shape[--runs.rank];
    runs.count = ct_shape_count(runs.rank, runs.shape);
    return runs;
}

static void walk(const struct cpu_runs *runs, const struct ct_tensor *const *t, int operands,
                 struct cpu_range range, cpu_run_body *body)
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

void cpu_for_runs(const struct ct_tensor *const *t, int operands, cpu_run_body *body)
{
    struct cpu_runs runs = elements_of(t, operands);
    int64_t elements = runs.count * runs.length;

#pragma omp parallel if (cpu_worth_threads(elements))
    walk(&runs, t, operands, cpu_share(elements, 64, omp_get_thread_num(), omp_get_num_threads()),
         body);
}
