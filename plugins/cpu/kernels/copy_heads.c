/*
 * Copies of heads, and the sums of their gradients.
 */
#include <omp.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

/* This rank's heads and groups, both counted from the first of all; size: of a head. */
struct span {
    int64_t rows, heads, groups, first, first_group, share, size;
};

static struct span span_of(const struct ct_launch *launch, bool back)
{
    const struct ct_op *op = launch->op;
    const struct ct_value *heads = back ? op->in[0] : op->out[0];
    const struct ct_value *groups = back ? op->out[0] : op->in[0];
    const int64_t *of_heads = (back ? launch->in : launch->out)->shape;
    const int64_t *of_groups = (back ? launch->out : launch->in)->shape;
    int d = heads->ndim - 2;

    return (struct span){.rows = ct_shape_count(d, of_heads),
                         .heads = of_heads[d],
                         .groups = of_groups[d],
                         .first = ct_launch_offset(launch, heads, d),
                         .first_group = ct_launch_offset(launch, groups, d),
                         .share = heads->shape[d] / groups->shape[d],
                         .size = of_heads[d + 1]};
}

static bool is_compute(const struct ct_prepare *prepare)
{
    return cpu_is_compute_dtype(prepare->out->dtype) && prepare->in->dtype == prepare->out->dtype;
}

bool CPU_ISA(cpu_copy_heads_accepts)(const struct ct_prepare *prepare)
{
    return is_compute(prepare);
}

int CPU_ISA(cpu_copy_heads_run)(const struct ct_launch *launch)
{
    const struct span s = span_of(launch, false);
    int64_t bytes = s.size * (int64_t)ct_dtype_size(launch->in->dtype);
    const char *from = launch->in->data;
    char *to = launch->out->data;

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(launch->out)))
    for (int64_t row = 0; row < s.rows; row++)
        for (int64_t h = 0; h < s.heads; h++) {
            int64_t group = (s.first + h) / s.share - s.first_group;

            memcpy(to + (row * s.heads + h) * bytes, from + (row * s.groups + group) * bytes,
                   (size_t)bytes);
        }
    return 0;
}

/* Local heads [begin, end) are copies of local group g. */
static struct cpu_range copies_of(const struct span *s, int64_t g)
{
    int64_t begin = (s->first_group + g) * s->share - s->first, end = begin + s->share;

    return (struct cpu_range){begin > 0 ? begin : 0, end < s->heads ? end : s->heads};
}

CPU_INLINE void add_copies(enum ct_dtype dtype, const struct span *s, const char *from, char *to,
                           int64_t row)
{
    int64_t bytes = s->size * (int64_t)ct_dtype_size(dtype);

    for (int64_t g = 0; g < s->groups; g++) {
        struct cpu_range r = copies_of(s, g);

        for (int64_t i = 0; i < s->size; i += CPU_LANES) {
            vf sum = {0};

            for (int64_t h = r.begin; h < r.end; h++)
                sum += v_get(dtype, from + (row * s->heads + h) * bytes, i, s->size);
            v_put(dtype, to + (row * s->groups + g) * bytes, i, s->size, sum);
        }
    }
}

bool CPU_ISA(cpu_copy_heads_grad_accepts)(const struct ct_prepare *prepare)
{
    return is_compute(prepare);
}

int CPU_ISA(cpu_copy_heads_grad_run)(const struct ct_launch *launch)
{
    const struct span s = span_of(launch, true);
    const char *from = launch->in->data;
    char *to = launch->out->data;

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(launch->in)))
    for (int64_t row = 0; row < s.rows; row++)
        if (launch->in->dtype == CT_F32)
            add_copies(CT_F32, &s, from, to, row);
        else
            add_copies(CT_BF16, &s, from, to, row);
    return 0;
}
