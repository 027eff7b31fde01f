#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/lib/measure.h>
#include <ctitan/lib/ops.h>
#include <ctitan/number.h>
#include <ctitan/program.h>
#include <ctitan/run.h>

/* Integers after which a tensor's contents repeat. Rows that are looked up must not all fit a
   cache. */
#define INDICES ((int64_t)1 << 20)
#define ENOUGH 0.03   /* seconds of calls to measure */
#define PEAK 0.01     /* the same for products: a run's first step is reported after them */
#define SHORT 0.002   /* a shorter call is mostly overhead */
#define SMALLEST 1024 /* rows and columns of the matrices */
#define LARGEST 8192
#define ELEMENTS (16 << 20) /* of the tensors to add */

/* Numbers from -1 to 1, the same in every run, that never repeat: a device that multiplies
   repeating data draws less power, and clocks higher than a training lets it. (SplitMix64: Steele
   et al. 2014.) States of two values are a multiple of 2^40 steps apart. */
static void fill_random(const struct ct_tensor *t, uint32_t id, int64_t count)
{
    uint64_t state = (uint64_t)id << 40, z;

    for (int64_t i = 0; i < count; i++) {
        z = state += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        float x = (float)(int32_t)(z >> 32) * 0x1p-31f;

        if (t->dtype == CT_F32)
            ((float *)t->data)[i] = x;
        else if (t->dtype == CT_BF16)
            ((uint16_t *)t->data)[i] = ct_f32_to_bf16(x);
        else
            ct_tensor_store(t, i, x);
    }
}

static void fill_from(const struct ct_tensor *t, int64_t count, const struct ct_value *v,
                      ct_element *element)
{
    size_t size = ct_dtype_size(t->dtype);

    for (int64_t i = 0; i < INDICES && i < count; i++)
        ct_tensor_store(t, i, element(v, i));
    for (int64_t done = INDICES; done < count; done += INDICES)
        memcpy((char *)t->data + (size_t)done * size, t->data,
               size * (size_t)(count - done < INDICES ? count - done : INDICES));
}

/* Untouched memory is one cached page of zeroes, so write something to every source. */
static int fill(struct ct_executor *executor, const struct ct_value *v, ct_element *element)
{
    int64_t count = ct_shape_count(v->ndim, v->shape);
    size_t bytes = (size_t)count * ct_dtype_size(v->dtype);
    void *host = malloc(bytes);
    struct ct_tensor t = ct_tensor_dense(host, v->dtype, v->ndim, v->shape);
    int rc;

    if (!host)
        return ct_fail(CT_ENOMEM, "a buffer of %lld elements", (long long)count);
    if (ct_dtype_is_float(v->dtype) && v->role != CT_ROLE_SCALAR)
        fill_random(&t, v->id, count);
    else
        fill_from(&t, count, v, element);
    rc = ct_executor_write(executor, v, v->role == CT_ROLE_INPUT ? 0 : -1, host, bytes);
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

/* Times of steps of a program with one microbatch. */
static int time_steps(struct ct_executor *executor, double enough, struct ct_measured *m)
{
    double spent = 0, late = 0;
    int rc = ct_executor_init(executor), lates = 0;

    *m = (struct ct_measured){0};
    if (rc == 0)
        rc = ct_executor_step(executor);
    for (int i = 0; rc == 0 && (i < 2 || spent < enough); i++) {
        double begin = ct_now(), took;

        rc = ct_executor_step(executor);
        took = ct_now() - begin;
        spent += took;
        if (i == 0 || took < m->best)
            m->best = took;
        if (spent >= enough / 2) {
            late += took;
            lates++;
        }
    }
    m->lasting = lates ? late / lates : m->best;
    return rc;
}

int ct_measure_graph(const struct ct_graph *graph, struct ct_device *device, ct_element *element,
                     double enough, struct ct_measured *measured)
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
        rc = time_steps(executor, enough, measured);
    ct_executor_destroy(executor);
    return rc;
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
    struct ct_measured measured = {0};
    int rc = b.status;

    if (rc == 0) {
        ct_graph_fetch(graph, "y", y);
        rc = ct_measure_graph(graph, device, NULL, PEAK, &measured);
    }
    ct_arena_finish(&arena);
    *seconds = measured.best;
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
    struct ct_measured measured = {0};
    int rc = b.status;

    if (rc == 0) {
        ct_graph_fetch(graph, "z", z);
        rc = ct_measure_graph(graph, device, NULL, ENOUGH, &measured);
    }
    ct_arena_finish(&arena);
    if (rc < 0)
        return ct_context(rc, "measuring memory bandwidth");
    *bytes_per_second = 3.0 * sizeof(float) * ELEMENTS / measured.best;
    return 0;
}
