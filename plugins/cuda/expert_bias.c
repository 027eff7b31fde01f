/*
 * Biases of the chosen experts, on dense tensors: sums of a token's, dot products with its
 * gradient, and sums of gradients by expert, for which choices are sorted.
 */
#include "experts.h"

/* ids: the input ids, in front of the biases. Results but y may have any dtype. */
static bool accept(const struct ct_prepare *p, int ids, bool only_float)
{
    enum ct_dtype out = p->out[0].dtype;

    return ct_cuda_computes(p->in[ids + 1].dtype) &&
           (only_float ? out == CT_F32 : ct_cuda_computes(out)) &&
           ct_tensor_count(&p->in[ids]) < INT32_MAX;
}

static bool accepts_expert_bias(const struct ct_prepare *p)
{
    return accept(p, 1, false);
}

static bool accepts_dweights(const struct ct_prepare *p)
{
    return accept(p, 1, true);
}

static bool accepts_dbias(const struct ct_prepare *p)
{
    return accept(p, 2, false);
}

/* The choices, and the biases of the experts that lie here. */
static struct gpu_experts choices_of(const struct ct_launch *l, int ids)
{
    const struct ct_tensor *t = &l->in[ids];

    return (struct gpu_experts){.ids = t->data,
                                .choices = ct_tensor_count(t),
                                .k = t->shape[t->ndim - 1],
                                .first = ct_launch_offset(l, l->op->in[ids + 1], 0),
                                .experts = l->in[ids + 1].shape[0],
                                .all = l->op->in[ids + 1]->shape[0],
                                .fault = ct_cuda_of(l->device)->fault};
}

/* x: y or dy, by which expert_bias and expert_bias_dweights differ. */
static struct gpu_expert_bias arguments(const struct ct_launch *l, const void *x, bool *vector)
{
    struct gpu_experts all = choices_of(l, 1);
    const struct ct_tensor *bias = &l->in[2];
    struct gpu_expert_bias a = {.bias = bias->data,
                                .ids = all.ids,
                                .tokens = all.choices / all.k,
                                .columns = bias->shape[1],
                                .k = all.k,
                                .first = all.first,
                                .experts = all.experts,
                                .all = all.all,
                                .kind = ct_cuda_float_of(bias->dtype),
                                .fault = all.fault};

    *vector = gpu_may_load_8(x, a.kind, a.columns) && gpu_may_load_8(bias->data, a.kind, a.columns);
    return a;
}

static int prepare_bias(struct ct_prepare *p)
{
    return gpu_prepare(p, "@", "@_vector");
}

static int run_expert_bias(const struct ct_launch *l)
{
    bool vector;
    struct gpu_expert_bias a = arguments(l, l->out[0].data, &vector);

    a.y = l->out[0].data;
    a.weights = l->in[0].data;
    return gpu_launch_rows(l, ct_cuda_function(l, vector), a.tokens, &a);
}

static int run_dweights(const struct ct_launch *l)
{
    bool vector;
    struct gpu_expert_bias a = arguments(l, l->in[0].data, &vector);

    a.dy = l->in[0].data;
    a.dweights = l->out[0].data;
    return gpu_launch_rows(l, ct_cuda_function(l, vector), a.tokens * a.k, &a);
}

/* Functions, and offsets in the workspace. */
struct state {
    struct gpu_choices choices;
    size_t counts, order, tokens, place;
};

static int prepare_dbias(struct ct_prepare *p)
{
    struct state *s = ct_arena_new(p->arena, struct state);
    size_t choices = (size_t)ct_tensor_count(&p->in[2]) * sizeof(int32_t);

    s->counts = ct_cuda_carve(&p->workspace, (size_t)p->in[3].shape[0] * sizeof(int32_t));
    s->order = ct_cuda_carve(&p->workspace, choices);
    s->tokens = ct_cuda_carve(&p->workspace, choices);
    s->place = ct_cuda_carve(&p->workspace, choices);
    p->state = s;
    return gpu_find_choices(p, &s->choices);
}

static int run_dbias(const struct ct_launch *l)
{
    const struct state *s = l->state;
    struct gpu_experts all = choices_of(l, 2);
    char *work = l->workspace;
    int rc;

    all.counts = (int32_t *)(work + s->counts);
    all.order = (int32_t *)(work + s->order);
    all.tokens = (int32_t *)(work + s->tokens);
    all.place = (int32_t *)(work + s->place);
    rc = gpu_sort_choices(l, &s->choices, &all);
    return rc < 0 ? rc
                  : gpu_sum_experts(l, &s->choices, &all, gpu_rows_of_tokens(&l->in[0]),
                                    l->in[1].data, 0);
}

const struct ct_kernel gpu_expert_bias_kernels[] = {
    CT_KERNEL("expert_bias", "plain", 0, accepts_expert_bias, prepare_bias, run_expert_bias),
    CT_KERNEL("expert_bias_dweights", "plain", 0, accepts_dweights, prepare_bias, run_dweights),
    CT_KERNEL("expert_bias_dbias", "plain", CT_KERNEL_ACCUMULATES, accepts_dbias, prepare_dbias,
              run_dbias),
    {0}};
