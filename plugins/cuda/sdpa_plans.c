/*
 * Plans of cuDNN for attention, and what they are given.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include <ctitan/log.h>

#include <ctitan/lib/ops.h>

#include "dnn_cache.h"
#include "sdpa_plans.h"

#define LARGEST_HEAD 128
#define LATENT_HEAD 192 /* of q and k, with v of LARGEST_HEAD: */
#define LATENT_SINCE 90 /* from this compute capability on */
#define LANES 8
#define PACKED_SINCE 91900 /* the oldest cuDNN whose plans for packed sequences were looked at */

struct gpu_dnn {
    cudnnHandle_t handle;
    bool missing, added; /* added: plans to those in files */
    struct sdpa_plan *plans;
};

/* NULL: cuDNN is not to be had, or not wanted. */
static struct gpu_dnn *dnn_of(struct gpu *gpu)
{
    if (gpu_config.attention == GPU_PLAIN || gpu_config.attention == GPU_TENSOR)
        return NULL;
    if (!gpu->dnn) {
        gpu->dnn = calloc(1, sizeof(*gpu->dnn));
        if (!gpu->dnn || gpu->described)
            return gpu->dnn;
        gpu->dnn->missing = dnn_load() < 0 || dnn_handle_create(&gpu->dnn->handle) < 0;
        if (gpu->dnn->missing)
            ct_warn("cuda: attention runs on this plugin's own kernels, which are slower: %s",
                    ct_error_message());
    }
    return gpu->dnn->missing ? NULL : gpu->dnn;
}

bool sdpa_is_offered(struct gpu *gpu)
{
    return dnn_of(gpu) != NULL;
}

void gpu_dnn_close(struct gpu *gpu)
{
    if (!gpu->dnn)
        return;
    for (struct sdpa_plan *p = gpu->dnn->plans, *next; p; p = next) {
        next = p->next;
        if (!gpu->described)
            dnn_graph_destroy(&p->graph);
        free(p);
    }
    if (!gpu->described)
        dnn_handle_destroy(gpu->dnn->handle);
    if (gpu->dnn->added)
        dnn_cache_remove_unread();
    free(gpu->dnn);
}

/* Known faults of versions of cuDNN, from the notes in NVIDIA's own front end. */
static const char *known_fault(int version, const struct sdpa_shape *s)
{
    if (version < 90600)
        return "cuDNN before 9.6 requires zeroed sums";
    if (version == 91000 || version == 91001)
        return "cuDNN 9.10.0 and 9.10.1 give wrong results";
    if (s->of_v != s->size && version < 91100)
        return "cuDNN before 9.11 has no heads of 192 with values of 128";
    if (s->packed && version < PACKED_SINCE)
        return "documents are left to cuDNN from 9.19 on";
    if (s->backward && s->keys % 128 && version <= 91500)
        return "cuDNN up to 9.15 requires a multiple of 128 keys";
    return s->queries < 2 || s->keys < 2 ? "cuDNN requires at least two tokens" : NULL;
}

static int make_plan(struct gpu *gpu, struct sdpa_plan *p)
{
    const char *fault = known_fault(dnn_version(), &p->shape);

    if (fault)
        return ct_fail(CT_EINVAL, "%s", fault);
    sdpa_describe(&p->graph, &p->shape);
    return dnn_cache_plan(gpu, &p->graph, gpu->dnn->handle, &gpu->dnn->added);
}

/* Plan for a described device, without cuDNN. The workspace is a bound: sums in float32 of the
   gradients of queries, keys and values, which is what cuDNN's backward keeps at most; what packed
   ones need is this plugin's, and cuDNN keeps descriptors. */
static int bound_plan(struct sdpa_plan *p)
{
    const struct sdpa_shape *s = &p->shape;
    int64_t of_q = s->queries * s->size, of_k = s->keys * s->size, of_v = s->keys * s->of_v;

    if (s->packed)
        p->graph.workspace = SDPA_PACKED_BYTES(s->batch);
    else if (s->ordered)
        p->graph.workspace = SDPA_ORDERED_BYTES(s);
    else if (s->backward)
        p->graph.workspace = (size_t)(s->batch * s->heads * (of_q + of_k + of_v)) * sizeof(float);
    return 0;
}

const struct sdpa_plan *sdpa_find_plan(struct gpu *gpu, const struct sdpa_shape *shape)
{
    struct gpu_dnn *dnn = dnn_of(gpu);
    struct sdpa_plan *p = dnn ? dnn->plans : NULL;

    while (p && memcmp(&p->shape, shape, sizeof(*shape)))
        p = p->next;
    if (!dnn || p)
        return p && p->works ? p : NULL;
    p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->shape = *shape;
    p->next = dnn->plans;
    dnn->plans = p;
    p->works = (gpu->described ? bound_plan(p) : make_plan(gpu, p)) == 0;
    if (!p->works)
        ct_warn("cuda: attention of %lld queries in %lld heads of %lld runs without cuDNN: %s",
                (long long)shape->queries, (long long)shape->heads, (long long)shape->size,
                ct_error_message());
    return p->works ? p : NULL;
}

/* ---- shapes ---- */

bool sdpa_take_strides(int64_t to[3], const struct ct_tensor *t)
{
    memcpy(to, t->stride, 3 * sizeof(*to));
    return t->stride[3] == 1 && to[0] % LANES == 0 && to[1] % LANES == 0 && to[2] % LANES == 0;
}

/* v is as large as q and k, except in latent attention (DeepSeek-V3). */
bool sdpa_has_heads(const struct gpu *gpu, const struct sdpa_shape *s)
{
    if (s->size == LATENT_HEAD && s->of_v == LARGEST_HEAD)
        return gpu->cuda.capability >= LATENT_SINCE;
    return s->of_v == s->size && s->size % LANES == 0 && s->size <= LARGEST_HEAD;
}

/* ---- running ---- */

void sdpa_give(struct sdpa_pack *pack, int64_t id, void *address)
{
    pack->ids[pack->count] = id;
    pack->addresses[pack->count++] = address;
}

void sdpa_give_numbers(const struct ct_launch *l, const struct sdpa_plan *plan,
                       struct sdpa_pack *pack)
{
    double scale = ct_op_float(l->op, "scale");
    const struct sdpa_shape *s = &plan->shape;

    pack->scale = (float)(scale > 0 ? scale : 1 / sqrt((double)s->size));
    pack->lowest = dnn_version() < 91000 ? -FLT_MAX : -INFINITY;
    pack->window = (float)s->window;
    pack->one = 1;
    sdpa_give(pack, SDPA_SCALE, &pack->scale);
    if (s->causal)
        sdpa_give(pack, SDPA_LOWEST, &pack->lowest);
    if (s->window)
        sdpa_give(pack, SDPA_WINDOW, &pack->window);
    if (s->backward)
        sdpa_give(pack, SDPA_ONE, &pack->one);
}

int sdpa_execute(const struct ct_launch *l, const struct sdpa_plan *plan, struct sdpa_pack *pack,
                 void *workspace)
{
    return dnn_run(&plan->graph, gpu_of(l->device)->dnn->handle, l->stream, pack->ids,
                   pack->addresses, pack->count, workspace);
}
