/*
 * RMS norm, with and without the residual sum in front of it, and its gradient.
 *
 * A row is read from memory once; the second look at it finds it in the first-level cache.
 */
#include <omp.h>

#include "norm.h"

static bool all_are(enum ct_dtype dtype, const struct ct_tensor *t, int count)
{
    for (int i = 0; i < count; i++)
        if (t[i].dtype != dtype)
            return false;
    return true;
}

struct forward {
    struct ct_tensor x, residual, y, sum, rstd; /* residual and sum: data NULL without */
    struct cpu_runs runs;
    const float *w;
    float eps;
};

CPU_INLINE vf add_residual(enum ct_dtype dtype, const void *x, const void *residual, void *sum,
                           int64_t i, int64_t n)
{
    vf v = v_get(dtype, x, i, n) + v_get(dtype, residual, i, n);

    v_put(dtype, sum, i, n, v);
    return dtype == CT_BF16 ? v_widen(v_narrow(v)) : v;
}

CPU_INLINE float sum_of_squares(enum ct_dtype dtype, const void *x, const void *residual, void *sum,
                                int64_t n)
{
    vf total[STEPS] = {{0}};

    for (int64_t i = 0; i < n;)
        for (int s = 0; s < STEPS && i < n; s++, i += CPU_LANES) {
            vf v = residual ? add_residual(dtype, x, residual, sum, i, n) : v_get(dtype, x, i, n);
            total[s] += v * v;
        }
    return v_sum((total[0] + total[1]) + (total[2] + total[3]));
}

CPU_INLINE void forward_row(enum ct_dtype dtype, const struct forward *f, int64_t r)
{
    int64_t n = f->runs.length;
    void *x = row_at(&f->x, &f->runs, 0, r), *y = row_at(&f->y, &f->runs, 1, r);
    void *residual = f->residual.data ? row_at(&f->residual, &f->runs, 3, r) : NULL;
    void *sum = residual ? row_at(&f->sum, &f->runs, 4, r) : x;
    const float *w = f->w;
    float squares = residual ? sum_of_squares(dtype, x, residual, sum, n)
                             : sum_of_squares(dtype, x, NULL, NULL, n);
    float rstd = 1.0f / sqrtf(squares / (float)n + f->eps);

    *(float *)row_at(&f->rstd, &f->runs, 2, r) = rstd;
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, y, i, n, v_get(dtype, sum, i, n) * rstd * v_get(CT_F32, w, i, n));
}

static void forward_rows(const struct forward *f, struct cpu_range rows)
{
    if (f->x.dtype == CT_F32)
        for (int64_t r = rows.begin; r < rows.end; r++)
            forward_row(CT_F32, f, r);
    else
        for (int64_t r = rows.begin; r < rows.end; r++)
            forward_row(CT_BF16, f, r);
}

static int forward(const struct ct_launch *launch, struct forward f, const struct ct_tensor *w)
{
    const struct state *s = launch->state;
    const struct ct_tensor *t[] = {&f.x, &f.y, &f.rstd, &f.residual, &f.sum};

    f.runs = cpu_rows_of(t, f.residual.data ? 5 : 3);
    f.w = widen_weight(w, s->offset, (float *)((char *)launch->workspace + s->weight));
    f.eps = s->eps;
#pragma omp parallel if (cpu_worth_threads(f.runs.count * f.runs.length))
    forward_rows(&f, cpu_share(f.runs.count, 1, omp_get_thread_num(), omp_get_num_threads()));
    return 0;
}

bool CPU_ISA(cpu_rms_norm_accepts)(const struct ct_prepare *prepare)
{
    enum ct_dtype dtype = prepare->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && cpu_is_compute_dtype(prepare->in[1].dtype) &&
           prepare->out[0].dtype == dtype && prepare->out[1].dtype == CT_F32;
}

int CPU_ISA(cpu_rms_norm_prepare)(struct ct_prepare *prepare)
{
    return prepare_state(prepare, "eps", "offset", 0);
}

int CPU_ISA(cpu_rms_norm_run)(const struct ct_launch *launch)
{
    const struct ct_tensor *in = launch->in, *out = launch->out;

    return forward(launch, (struct forward){.x = in[0], .y = out[0], .rstd = out[1]}, in + 1);
}

bool CPU_ISA(cpu_add_rms_norm_accepts)(const struct ct_prepare *prepare)
{
    enum ct_dtype dtype = prepare->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && cpu_is_compute_dtype(prepare->in[2].dtype) &&
           all_are(dtype, prepare->in, 2) && all_are(dtype, prepare->out, 2) &&
           prepare->out[2].dtype == CT_F32;
}

int CPU_ISA(cpu_add_rms_norm_prepare)(struct ct_prepare *prepare)
{
    return prepare_state(prepare, "eps", "offset", 0);
}

int CPU_ISA(cpu_add_rms_norm_run)(const struct ct_launch *launch)
{
    const struct ct_tensor *in = launch->in, *out = launch->out;
    struct forward f = {.x = in[0], .residual = in[1], .y = out[0], .sum = out[1], .rstd = out[2]};

    return forward(launch, f, in + 2);
}

struct gradient {
    const struct ct_tensor *dy, *x, *rstd, *dres, *dx; /* dres NULL: absent */
    struct cpu_runs runs;
    const float *w;
    bool accumulate; /* into dx */
};

/* dw += dy x rstd; returns the sum of dy w x. */
CPU_INLINE float first_pass(enum ct_dtype dtype, const void *dy, const void *x, const float *w,
                            float *dw, float rstd, int64_t n)
{
    vf dot[STEPS] = {{0}};

    for (int64_t i = 0; i < n;)
        for (int s = 0; s < STEPS && i < n; s++, i += CPU_LANES) {
            vf product = v_get(dtype, dy, i, n) * v_get(dtype, x, i, n);
            v_put(CT_F32, dw, i, n, v_get(CT_F32, dw, i, n) + product * rstd);
            dot[s] += product * v_get(CT_F32, w, i, n);
        }
    return v_sum((dot[0] + dot[1]) + (dot[2] + dot[3]));
}

/* dx = rstd dy w - x rstd^3 mean(dy w x), plus dres, plus dx if it accumulates. */
CPU_INLINE void gradient_row(enum ct_dtype dtype, const struct gradient *g, float *dw, int64_t r)
{
    int64_t n = g->runs.length;
    const void *dy = row_at(g->dy, &g->runs, 0, r), *x = row_at(g->x, &g->runs, 1, r);
    void *dx = row_at(g->dx, &g->runs, 3, r);
    const void *more = g->dres ? row_at(g->dres, &g->runs, 4, r) : NULL;
    const float *w = g->w;
    bool accumulate = g->accumulate;
    float rstd = *(const float *)row_at(g->rstd, &g->runs, 2, r);
    float mean = first_pass(dtype, dy, x, w, dw, rstd, n) / (float)n * (rstd * rstd * rstd);

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf d = v_get(dtype, dy, i, n) * v_get(CT_F32, w, i, n) * rstd;

        d -= v_get(dtype, x, i, n) * mean;
        if (more)
            d += v_get(dtype, more, i, n);
        if (accumulate)
            d += v_get(dtype, dx, i, n);
        v_put(dtype, dx, i, n, d);
    }
}

static void gradient_rows(const struct gradient *g, float *dw, struct cpu_range rows)
{
    memset(dw, 0, (size_t)g->runs.length * sizeof(float));
    if (g->x->dtype == CT_F32)
        for (int64_t r = rows.begin; r < rows.end; r++)
            gradient_row(CT_F32, g, dw, r);
    else
        for (int64_t r = rows.begin; r < rows.end; r++)
            gradient_row(CT_BF16, g, dw, r);
}

bool CPU_ISA(cpu_rms_norm_grad_accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *in = prepare->in;
    enum ct_dtype dtype = in[0].dtype;

    return cpu_is_compute_dtype(dtype) && cpu_is_compute_dtype(in[2].dtype) &&
           cpu_is_compute_dtype(prepare->out[1].dtype) && in[1].dtype == dtype &&
           in[3].dtype == CT_F32 && prepare->out[0].dtype == dtype &&
           (prepare->ins < 5 || !prepare->present[4] || in[4].dtype == dtype);
}

int CPU_ISA(cpu_rms_norm_grad_prepare)(struct ct_prepare *prepare)
{
    return prepare_state(prepare, NULL, "offset", 1);
}

int CPU_ISA(cpu_rms_norm_grad_run)(const struct ct_launch *launch)
{
    const struct state *s = launch->state;
    const struct ct_tensor *in = launch->in, *out = launch->out;
    char *partial = (char *)launch->workspace + s->partial;
    struct gradient g = {.dy = in, .x = in + 1, .rstd = in + 3, .dx = out};

    g.dres = launch->ins > 4 && in[4].data ? in + 4 : NULL;
    g.accumulate = launch->accumulate & 1;
    g.runs = cpu_rows_of((const struct ct_tensor *const[]){g.dy, g.x, g.rstd, g.dx, g.dres}, 5);
    g.w = widen_weight(in + 2, s->offset, (float *)((char *)launch->workspace + s->weight));
#pragma omp parallel num_threads(s->threads)
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();

        gradient_rows(&g, (float *)(partial + s->partial_bytes * (size_t)thread),
                      cpu_share(g.runs.count, 1, thread, threads));
#pragma omp barrier
        reduce(out + 1, partial, s->partial_bytes, threads, launch->accumulate >> 1 & 1,
               cpu_share(g.runs.length, 64, thread, threads));
    }
    return 0;
}
