/*
 * Layer norm and its gradient. A row is read from memory once; later looks at it find it in the
 * first-level cache.
 */
#include <omp.h>

#include "norm.h"

CPU_INLINE float mean_of(enum ct_dtype dtype, const void *x, int64_t n)
{
    vf total[STEPS] = {{0}};

    for (int64_t i = 0; i < n;)
        for (int s = 0; s < STEPS && i < n; s++, i += CPU_LANES)
            total[s] += v_get(dtype, x, i, n);
    return v_sum((total[0] + total[1]) + (total[2] + total[3])) / (float)n;
}

CPU_INLINE float variance_of(enum ct_dtype dtype, const void *x, int64_t n, float mean)
{
    int64_t whole = n - n % CPU_LANES;
    vf total[STEPS] = {{0}}, rest = v_get(dtype, x, whole, n) - mean;
    float sum;

    for (int64_t i = 0; i < whole;)
        for (int s = 0; s < STEPS && i < whole; s++, i += CPU_LANES) {
            vf d = v_get(dtype, x, i, n) - mean;

            total[s] += d * d;
        }
    sum = v_sum((total[0] + total[1]) + (total[2] + total[3]));
    for (int lane = 0; lane < n - whole; lane++)
        sum += rest[lane] * rest[lane];
    return sum / (float)n;
}

struct forward {
    struct ct_tensor x, y, mean, rstd;
    struct cpu_runs runs;
    const float *w, *bias; /* bias NULL: none */
    float eps;
};

CPU_INLINE void forward_row(enum ct_dtype dtype, const struct forward *f, int64_t r)
{
    int64_t n = f->runs.length;
    void *x = row_at(&f->x, &f->runs, 0, r), *y = row_at(&f->y, &f->runs, 1, r);
    float mean = mean_of(dtype, x, n);
    float rstd = 1.0f / sqrtf(variance_of(dtype, x, n, mean) + f->eps);

    *(float *)row_at(&f->mean, &f->runs, 2, r) = mean;
    *(float *)row_at(&f->rstd, &f->runs, 3, r) = rstd;
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf v = (v_get(dtype, x, i, n) - mean) * rstd * v_get(CT_F32, f->w, i, n);

        v_put(dtype, y, i, n, f->bias ? v + v_get(CT_F32, f->bias, i, n) : v);
    }
}

bool CPU_ISA(cpu_layer_norm_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && p->in[1].dtype == dtype &&
           (p->ins < 3 || !p->present[2] || p->in[2].dtype == dtype) && p->out[0].dtype == dtype &&
           p->out[1].dtype == CT_F32 && p->out[2].dtype == CT_F32;
}

int CPU_ISA(cpu_layer_norm_prepare)(struct ct_prepare *p)
{
    /* A thread's share of the workspace is not its own here: it holds the bias. */
    return prepare_state(p, "eps", NULL, 1);
}

int CPU_ISA(cpu_layer_norm_run)(const struct ct_launch *l)
{
    const struct state *s = l->state;
    const struct ct_tensor *in = l->in, *out = l->out;
    char *memory = l->workspace;
    struct forward f = {in[0], out[0], out[1], out[2], .eps = s->eps};

    f.runs = cpu_rows_of((const struct ct_tensor *const[]){&f.x, &f.y, &f.mean, &f.rstd}, 4);
    f.w = widen_weight(in + 1, 0, (float *)(memory + s->weight));
    if (l->ins > 2 && in[2].data)
        f.bias = widen_weight(in + 2, 0, (float *)(memory + s->partial));
#pragma omp parallel for if (cpu_worth_threads(f.runs.count * f.runs.length))
    for (int64_t r = 0; r < f.runs.count; r++)
        if (f.x.dtype == CT_F32)
            forward_row(CT_F32, &f, r);
        else
            forward_row(CT_BF16, &f, r);
    return 0;
}

/* ---- gradient ---- */

struct gradient {
    const struct ct_tensor *dy, *x, *mean, *rstd, *dx;
    struct cpu_runs runs;
    const float *w;
    bool accumulate; /* into dx */
};

/* x' = (x - mean) rstd, g = dy w; dx = rstd (g - mean of g - x' mean of g x'). */
CPU_INLINE void gradient_row(enum ct_dtype dtype, const struct gradient *g, float *dw, float *db,
                             int64_t r)
{
    int64_t n = g->runs.length;
    const void *dy = row_at(g->dy, &g->runs, 0, r), *x = row_at(g->x, &g->runs, 1, r);
    float mean = *(const float *)row_at(g->mean, &g->runs, 2, r);
    float rstd = *(const float *)row_at(g->rstd, &g->runs, 3, r), of_g, of_gx;
    void *dx = row_at(g->dx, &g->runs, 4, r);
    vf sum = v_set(0), dot = v_set(0);

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf d = v_get(dtype, dy, i, n), white = (v_get(dtype, x, i, n) - mean) * rstd;
        vf weighted = d * v_get(CT_F32, g->w, i, n);

        v_put(CT_F32, dw, i, n, v_get(CT_F32, dw, i, n) + d * white);
        v_put(CT_F32, db, i, n, v_get(CT_F32, db, i, n) + d);
        sum += weighted;
        dot += weighted * white;
    }
    of_g = v_sum(sum) / (float)n;
    of_gx = v_sum(dot) / (float)n;
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf white = (v_get(dtype, x, i, n) - mean) * rstd;
        vf d = rstd * (v_get(dtype, dy, i, n) * v_get(CT_F32, g->w, i, n) - of_g - white * of_gx);

        v_put(dtype, dx, i, n, g->accumulate ? d + v_get(dtype, dx, i, n) : d);
    }
}

static void gradient_rows(const struct gradient *g, float *dw, float *db, struct cpu_range rows)
{
    memset(dw, 0, (size_t)g->runs.length * sizeof(float));
    memset(db, 0, (size_t)g->runs.length * sizeof(float));
    for (int64_t r = rows.begin; r < rows.end; r++)
        if (g->x->dtype == CT_F32)
            gradient_row(CT_F32, g, dw, db, r);
        else
            gradient_row(CT_BF16, g, dw, db, r);
}

bool CPU_ISA(cpu_layer_norm_grad_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && p->in[1].dtype == dtype && p->in[2].dtype == dtype &&
           p->in[3].dtype == CT_F32 && p->in[4].dtype == CT_F32 && p->out[0].dtype == dtype &&
           cpu_is_compute_dtype(p->out[1].dtype) && cpu_is_compute_dtype(p->out[2].dtype);
}

int CPU_ISA(cpu_layer_norm_grad_prepare)(struct ct_prepare *p)
{
    return prepare_state(p, NULL, NULL, 2);
}

int CPU_ISA(cpu_layer_norm_grad_run)(const struct ct_launch *l)
{
    const struct state *s = l->state;
    const struct ct_tensor *in = l->in, *out = l->out;
    char *dw = (char *)l->workspace + s->partial;
    char *db = dw + s->partial_bytes * (size_t)s->threads;
    struct gradient g = {in, in + 1, in + 3, in + 4, out, .accumulate = l->accumulate & 1};

    g.runs = cpu_rows_of((const struct ct_tensor *const[]){g.dy, g.x, g.mean, g.rstd, g.dx}, 5);
    g.w = widen_weight(in + 2, 0, (float *)((char *)l->workspace + s->weight));
#pragma omp parallel num_threads(s->threads)
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        size_t at = s->partial_bytes * (size_t)thread;
        struct cpu_range columns = cpu_share(g.runs.length, 64, thread, threads);

        gradient_rows(&g, (float *)(dw + at), (float *)(db + at),
                      cpu_share(g.runs.count, 1, thread, threads));
#pragma omp barrier
        reduce(out + 1, dw, s->partial_bytes, threads, l->accumulate >> 1 & 1, columns);
        reduce(out + 2, db, s->partial_bytes, threads, l->accumulate >> 2 & 1, columns);
    }
    return 0;
}
