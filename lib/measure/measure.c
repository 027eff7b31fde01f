#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/measure.h>
#include <ctitan/lib/ops.h>
#include <ctitan/program.h>
#include <ctitan/run.h>

/* Number of elements after which a tensor's contents repeat. Rows that are looked up must not all
 * fit a cache. */
#define PATTERN 4096
#define INDICES ((int64_t)1 << 20)
#define ENOUGH 0.03   /* seconds of calls to measure */
#define PEAK 0.01     /* the same for products: a run's first step is reported after them */
#define SHORT 0.002   /* a shorter call is mostly overhead */
#define SMALLEST 1024 /* rows and columns of the matrices */
#define LARGEST 8192
#define ELEMENTS (16 << 20) /* of the tensors to add */

/* Untouched memory is one cached page of zeroes, so write something to every source. */
static int fill(struct ct_executor *executor, const struct ct_value *v, ct_element *element)
{
    size_t size = ct_dtype_size(v->dtype);
    int64_t count = ct_shape_count(v->ndim, v->shape);
    int64_t period = ct_dtype_is_float(v->dtype) ? PATTERN : INDICES;
    void *host = malloc((size_t)count * size);
    struct ct_tensor t = ct_tensor_dense(host, v->dtype, v->ndim, v->shape);
    int rc;

    if (!host)
        return ct_fail(CT_ENOMEM, "a buffer of %lld elements", (long long)count);
    for (int64_t i = 0; i < period && i < count; i++)
        ct_tensor_store(&t, i, element(v, i));
    for (int64_t done = period; done < count; done += period)
        memcpy((char *)host + (size_t)done * size, host,
               size * (size_t)(count - done < period ? count - done : period));
    rc = ct_executor_write(executor, v, v->role == CT_ROLE_INPUT ? 0 : -1, host,
                           (size_t)count * size);
    free(host);
    return rc;
}

static int fill_sources(struct ct_executor *executor, const struct ct_graph *graph,
                        ct_element *element)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < graph->value_count; i++)
        if (!graph->values[i]->producer)
            rc = fill(executor, graph->values[i], element);
    return rc;
}

/* Seconds of the fastest step of a program with one microbatch. */
static int best_step(struct ct_executor *executor, double enough, double *seconds)
{
    double spent = 0, best = 0;
    int rc = ct_executor_init(executor);

    if (rc == 0)
        rc = ct_executor_step(executor);
    for (int i = 0; rc == 0 && (i < 2 || spent < enough); i++) {
        double begin = ct_now(), took;

        rc = ct_executor_step(executor);
        took = ct_now() - begin;
        spent += took;
        if (i == 0 || took < best)
            best = took;
    }
    *seconds = best;
    return rc;
}

int ct_measure_graph(const struct ct_graph *graph, struct ct_device *device, ct_element *element,
                     double enough, double *seconds)
{
    struct ct_lower_request request = {
        .graph = graph, .microbatches = 1, .device = device, .arena = graph->arena};
    struct ct_program *program;
    struct ct_executor *executor = NULL;
    int rc = ct_lower(&request, &program);

    if (rc == 0)
        rc = ct_executor_create(program, device, NULL, &executor);
    if (rc == 0)
        rc = fill_sources(executor, graph, element);
    if (rc == 0)
        rc = best_step(executor, enough, seconds);
    ct_executor_destroy(executor);
    return rc;
}

static double pattern(const struct ct_value *v, int64_t i)
{
    (void)v;
    return (double)(i % 251 - 125) / 125;
}

static int time_gemm(struct ct_device *device, enum ct_dtype dtype, int64_t n, double *seconds)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "measure");
    int64_t x_shape[3] = {1, n, n}, w_shape[2] = {n, n};
    struct ct_value *x = ct_graph_source(graph, CT_ROLE_INPUT, "x", dtype, 3, x_shape);
    struct ct_value *w = ct_graph_source(graph, CT_ROLE_PARAM, "w", dtype, 2, w_shape);
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "");
    struct ct_value *y = ct_linear(&b, "y", x, w);
    int rc = b.status;

    if (rc == 0) {
        ct_graph_fetch(graph, "y", y);
        rc = ct_measure_graph(graph, device, pattern, PEAK, seconds);
    }
    ct_arena_finish(&arena);
    return rc;
}

int ct_measure_gemm(struct ct_device *device, enum ct_dtype dtype, double *flops_per_second)
{
    double seconds = 0;
    int64_t n = SMALLEST;
    int rc = time_gemm(device, dtype, n, &seconds);

    while (rc == 0 && seconds < SHORT && n < LARGEST) {
        n *= 2;
        rc = time_gemm(device, dtype, n, &seconds);
    }
    if (rc < 0)
        return ct_context(rc, "measuring %s matrix products", ct_dtype_name(dtype));
    *flops_per_second = 2.0 * (double)n * (double)n * (double)n / seconds;
    return 0;
}

int ct_measure_bandwidth(struct ct_device *device, double *bytes_per_second)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "measure");
    int64_t shape[1] = {ELEMENTS};
    struct ct_value *x = ct_graph_source(graph, CT_ROLE_INPUT, "x", CT_F32, 1, shape);
    struct ct_value *y = ct_graph_source(graph, CT_ROLE_INPUT, "y", CT_F32, 1, shape);
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "");
    struct ct_value *z = ct_add(&b, "z", x, y);
    double seconds = 0;
    int rc = b.status;

    if (rc == 0) {
        ct_graph_fetch(graph, "z", z);
        rc = ct_measure_graph(graph, device, pattern, ENOUGH, &seconds);
    }
    ct_arena_finish(&arena);
    if (rc < 0)
        return ct_context(rc, "measuring memory bandwidth");
    *bytes_per_second = 3.0 * sizeof(float) * ELEMENTS / seconds;
    return 0;
}
