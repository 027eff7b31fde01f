/*
 * A row added to all rows, and the sum of all rows. Threads share the columns of the sum, so it
 * does not depend on their number.
 */
#include <omp.h>
#include <string.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define VECTORS (CPU_LANES > 8 ? 16 : 8) /* of a row: as many as stay in registers */
#define STRIP (VECTORS * CPU_LANES)
#define ROWS 64 /* whose addresses are known at a time */

static char *run_at(const struct ct_tensor *t, const struct cpu_runs *runs, int operand, int64_t r)
{
    return (char *)t->data + cpu_run_at(runs, operand, r) * (int64_t)ct_dtype_size(t->dtype);
}

CPU_INLINE void add_row(enum ct_dtype dtype, const void *x, const void *row, void *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, y, i, n, v_get(dtype, x, i, n) + v_get(dtype, row, i, n));
}

bool CPU_ISA(cpu_bias_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && p->in[1].dtype == dtype && p->out[0].dtype == dtype;
}

int CPU_ISA(cpu_bias_run)(const struct ct_launch *l)
{
    const struct ct_tensor *x = l->in, *y = l->out;
    struct cpu_runs runs = cpu_rows_of((const struct ct_tensor *const[]){x, y}, 2);

#pragma omp parallel for if (cpu_worth_threads(runs.count * runs.length))
    for (int64_t r = 0; r < runs.count; r++) {
        const char *from = run_at(x, &runs, 0, r);
        char *to = run_at(y, &runs, 1, r);

        if (x->dtype == CT_F32)
            add_row(CT_F32, from, l->in[1].data, to, runs.length);
        else
            add_row(CT_BF16, from, l->in[1].data, to, runs.length);
    }
    return 0;
}

/* `vectors` of some rows, in registers where `vectors` is a constant. */
CPU_INLINE void sum_rows(enum ct_dtype dtype, const char *const *rows, int count, int64_t n,
                         int vectors, vf sum[VECTORS])
{
    vf total[VECTORS];

    memcpy(total, sum, sizeof(total));
    for (int r = 0; r < count; r++)
        for (int s = 0; s < vectors; s++)
            total[s] += v_get(dtype, rows[r], s * CPU_LANES, n);
    memcpy(sum, total, sizeof(total));
}

/* Columns first .. of all rows, at most a strip. */
CPU_INLINE void sum_strip(enum ct_dtype dtype, const struct ct_tensor *dy,
                          const struct cpu_runs *runs, int64_t first, vf sum[VECTORS])
{
    int64_t left = runs->length - first, at = first * (int64_t)ct_dtype_size(dtype);
    const char *rows[ROWS];

    memset(sum, 0, sizeof(*sum) * VECTORS);
    for (int64_t from = 0; from < runs->count; from += ROWS) {
        int count = (int)(runs->count - from < ROWS ? runs->count - from : ROWS);

        for (int r = 0; r < count; r++)
            rows[r] = run_at(dy, runs, 0, from + r) + at;
        if (left >= STRIP)
            sum_rows(dtype, rows, count, STRIP, VECTORS, sum);
        else
            sum_rows(dtype, rows, count, left, (int)((left + CPU_LANES - 1) / CPU_LANES), sum);
    }
}

bool CPU_ISA(cpu_bias_grad_accepts)(const struct ct_prepare *p)
{
    return cpu_is_compute_dtype(p->in[0].dtype) && cpu_is_compute_dtype(p->out[0].dtype);
}

int CPU_ISA(cpu_bias_grad_run)(const struct ct_launch *l)
{
    const struct ct_tensor *dy = l->in, *out = l->out;
    struct cpu_runs runs = cpu_rows_of((const struct ct_tensor *const[]){dy}, 1);
    int64_t n = runs.length;

#pragma omp parallel for if (cpu_worth_threads(runs.count * n))
    for (int64_t first = 0; first < n; first += STRIP) {
        vf sum[VECTORS];

        if (dy->dtype == CT_F32)
            sum_strip(CT_F32, dy, &runs, first, sum);
        else
            sum_strip(CT_BF16, dy, &runs, first, sum);
        for (int64_t s = 0, i = first; s < VECTORS && i < n; s++, i += CPU_LANES) {
            vf old = l->accumulate & 1 ? v_get(out->dtype, out->data, i, n) : v_set(0);

            v_put(out->dtype, out->data, i, n, old + sum[s]);
        }
    }
    return 0;
}
