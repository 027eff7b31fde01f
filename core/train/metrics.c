#include <math.h>
#include <string.h>

#include <ctitan/tensor.h>
#include <ctitan/train.h>

#include "train/metrics.h"

int metrics_read(struct ct_executor *executor, const struct ct_graph *graph, const char *name,
                 double *x)
{
    const struct ct_value *v = ct_graph_fetched(graph, name);
    struct ct_tensor t;
    double data = 0;
    int rc;

    *x = 0;
    if (!v)
        return 0;
    rc = ct_executor_read(executor, v, &data, ct_dtype_size(v->dtype));
    t = ct_tensor_dense(&data, v->dtype, 0, NULL);
    *x = ct_tensor_load(&t, 0);
    if (isnan(*x))
        *x = NAN; /* its sign says nothing, and would be printed */
    return rc;
}

static bool divides(const struct ct_graph *graph, const char *name)
{
    for (size_t i = 0; i < graph->fetch_count; i++)
        if (graph->fetches[i].over && !strcmp(graph->fetches[i].over, name))
            return true;
    return false;
}

static bool is_metric(const struct ct_graph *graph, const struct ct_fetch *f)
{
    return f->value->ndim == 0 && strcmp(f->name, "loss") != 0 &&
           strcmp(f->name, "grad_norm") != 0 && strcmp(f->name, CT_UPDATE_FACTOR) != 0 &&
           !divides(graph, f->name);
}

void metrics_init(struct metrics *m, struct ct_run *run, struct ct_executor *executor,
                  const struct ct_graph *graph)
{
    *m = (struct metrics){.run = run, .executor = executor, .graph = graph};
    m->metric = ct_arena_array(&run->arena, struct ct_metric, graph->fetch_count + 1);
    m->sum = ct_arena_array(&run->arena, double, graph->fetch_count + 1);
    m->over = ct_arena_array(&run->arena, double, graph->fetch_count + 1);
    for (size_t i = 0; i < graph->fetch_count; i++)
        if (is_metric(graph, &graph->fetches[i]))
            m->metric[m->count++].name = graph->fetches[i].name;
}

void metrics_begin(struct metrics *m)
{
    memset(m->sum, 0, sizeof(*m->sum) * m->count);
    memset(m->over, 0, sizeof(*m->over) * m->count);
}

int metrics_add(struct metrics *m)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < m->count; i++) {
        const char *over = ct_graph_fetched_over(m->graph, m->metric[i].name);
        double sum, count = 0;

        rc = metrics_read(m->executor, m->graph, m->metric[i].name, &sum);
        if (rc == 0 && over)
            rc = metrics_read(m->executor, m->graph, over, &count);
        m->sum[i] += sum;
        m->over[i] += count;
    }
    return rc;
}

void metrics_publish(struct metrics *m)
{
    for (size_t i = 0; i < m->count; i++) {
        bool mean = ct_graph_fetched_over(m->graph, m->metric[i].name);

        m->metric[i].value = !mean ? m->sum[i] : m->over[i] != 0 ? m->sum[i] / m->over[i] : NAN;
    }
    m->run->metrics = m->metric;
    m->run->metric_count = m->count;
}
