/*
 * Mixtures of experts: the chosen layers as grouped products.
 *
 * The products are this plugin's own. Those in bfloat16 run on tensor cores (experts_tensor.c);
 * those here in float32 on plain cores, many times slower. The host does not wait for the choices:
 * grids are as large as any choice needs, and blocks without work end at once.
 */
#include <math.h>

#include "experts.h"

static int64_t rows_of(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim - 1, t->shape);
}

static int64_t columns_of(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

int gpu_launch_rows(const struct ct_launch *l, struct ct_cuda_function *f, int64_t rows,
                    const void *arguments)
{
    return ct_cuda_launch(l, f,
                          (struct ct_cuda_size){(unsigned)ct_cuda_blocks(rows, THREADS / 32), 1, 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, arguments);
}

static bool sums_tokens(const struct ct_op *op)
{
    return op->type != &ct_op_experts_dw;
}

int gpu_first_gradient(const struct ct_op *op)
{
    return op->type == &ct_op_experts_dw ? 0 : 2;
}

float *gpu_dweights(const struct ct_launch *l)
{
    return gpu_experts_is_gradient(l->op) && sums_tokens(l->op) ? l->out[1].data : NULL;
}

/* ---- calls ---- */

bool gpu_experts_accept(const struct ct_prepare *p)
{
    int at = gpu_experts_x(p->op);

    for (int i = 0; i < p->ins; i++)
        if (i != at + WEIGHTS && i != at + IDS && !ct_cuda_computes(p->in[i].dtype))
            return false;
    for (int i = 0; i < p->outs; i++)
        if (!ct_cuda_computes(p->out[i].dtype))
            return false;
    return p->in[at + WEIGHTS].dtype == CT_F32 &&
           ct_tensor_count(&p->in[at + WEIGHTS]) <= GPU_MOST_CHOICES;
}

int gpu_find_choices(const struct ct_prepare *p, struct gpu_choices *f)
{
    int rc = gpu_find(p, f->sort, "experts_clear", "experts_count", "experts_sort");

    return rc < 0 ? rc : gpu_find(p, f->sum.f, "experts_sum", "experts_sum_vector");
}

int gpu_experts_prepare(struct ct_prepare *p, size_t element, const char *const *functions)
{
    struct experts_state *s = ct_arena_new(p->arena, struct experts_state);
    int at = gpu_experts_x(p->op);
    bool gradient = gpu_experts_is_gradient(p->op);
    size_t choices = (size_t)ct_tensor_count(&p->in[at + WEIGHTS]);
    size_t f = choices * (size_t)p->in[at + GATE].shape[1] * element;
    int rc;

    s->counts = ct_cuda_carve(&p->workspace, (size_t)p->in[at + GATE].shape[0] * sizeof(int32_t));
    s->order = ct_cuda_carve(&p->workspace, choices * sizeof(int32_t));
    s->tokens = ct_cuda_carve(&p->workspace, choices * sizeof(int32_t));
    s->place = ct_cuda_carve(&p->workspace, choices * sizeof(int32_t));
    s->g = ct_cuda_carve(&p->workspace, f);
    s->u = ct_cuda_carve(&p->workspace, gradient || element == sizeof(float) ? f : 0);
    s->dh = ct_cuda_carve(&p->workspace, gradient ? f : 0);
    s->rows = ct_cuda_carve(
        &p->workspace,
        sums_tokens(p->op) ? choices * (size_t)columns_of(&p->in[at + X]) * element : 0);
    p->state = s;
    rc = gpu_find_choices(p, &s->choices);
    return rc < 0 ? rc : ct_cuda_find(p, &gpu_code, CT_F32, functions, s->f);
}

/* Saved hidden layers have one dtype: that of the kernels on tensor cores, if they take the op. */
static bool accept_kept(const struct ct_prepare *p)
{
    return gpu_experts_accept(p) && !gpu_experts_in_tiles(p);
}

static int prepare_experts(struct ct_prepare *p)
{
    return gpu_experts_prepare(p, sizeof(float),
                               CT_CUDA_NAMES("experts_product", "experts_product", "experts_outer",
                                             "experts_hidden", "experts_hidden_grad",
                                             "experts_combine"));
}

struct gpu_gate gpu_gate_of(const struct ct_experts *how)
{
    float limit = how->limit > 0 ? (float)how->limit : INFINITY;

    return (struct gpu_gate){.alpha = how->alpha != 0 ? (float)how->alpha : 1,
                             .limit = limit,
                             .offset = (float)how->offset,
                             .beyond = limit};
}

struct experts_call gpu_experts_call(const struct ct_launch *l, size_t element)
{
    const struct experts_state *s = l->state;
    int at = gpu_experts_x(l->op);
    const struct ct_tensor *in = l->in + at;
    bool biased = l->ins > at + GATE_BIAS, keeps = gpu_experts_keeps(l->op);
    size_t half = (size_t)(ct_tensor_count(&in[WEIGHTS]) * in[GATE].shape[1]) * element;
    char *work = l->workspace, *kept = !keeps ? NULL : at ? l->in[0].data : l->out[1].data;

    return (struct experts_call){
        .l = l,
        .state = s,
        .in = in,
        .all = {.counts = (int32_t *)(work + s->counts),
                .order = (int32_t *)(work + s->order),
                .tokens = (int32_t *)(work + s->tokens),
                .place = (int32_t *)(work + s->place),
                .ids = in[IDS].data,
                .choices = ct_tensor_count(&in[WEIGHTS]),
                .k = columns_of(&in[WEIGHTS]),
                .first = ct_launch_offset(l, l->op->in[at + GATE], 0),
                .experts = in[GATE].shape[0],
                .all = l->op->in[at + GATE]->shape[0],
                .fault = ct_cuda_of(l->device)->fault},
        .how = gpu_gate_of(l->op->attrs),
        .gate_bias = biased ? in[GATE_BIAS].data : NULL,
        .up_bias = biased ? in[UP_BIAS].data : NULL,
        .tokens = rows_of(&in[X]),
        .n = columns_of(&in[X]),
        .f = in[GATE].shape[1],
        .g = work + s->g,
        .u = work + s->u,
        .dh = work + s->dh,
        .rows = work + s->rows,
        .kept_g = keeps ? kept : work + s->g,
        .kept_u = keeps ? kept + half : work + s->u,
    };
}

int gpu_sort_choices(const struct ct_launch *l, const struct gpu_choices *f,
                     const struct gpu_experts *all)
{
    struct ct_cuda_size experts = {(unsigned)all->experts, 1, 1}, block = {THREADS, 1, 1};
    struct ct_cuda_size sorting = {GPU_SORT_THREADS, 1, 1};
    int rc = ct_cuda_launch(
        l, f->sort[0], (struct ct_cuda_size){(unsigned)ct_cuda_blocks(all->choices, THREADS), 1, 1},
        block, 0, all);

    for (int i = 1; rc == 0 && i < 3; i++)
        rc = ct_cuda_launch(l, f->sort[i], experts, sorting, 0, all);
    return rc;
}

struct gpu_expert_rows gpu_rows_of_tokens(const struct ct_tensor *t)
{
    return (struct gpu_expert_rows){t->data, columns_of(t), ct_cuda_float_of(t->dtype), true};
}

static struct gpu_expert_rows of_choices(const void *x, int64_t columns)
{
    return (struct gpu_expert_rows){x, columns, CT_CUDA_F32, false};
}

/* to = rows times the experts' `weight`; turned: by its transpose. */
static int multiply(const struct experts_call *c, struct gpu_expert_rows rows,
                    const struct ct_tensor *weight, bool turned, bool accumulate, void *to)
{
    struct gpu_experts_product a = {.c = to,
                                    .in = rows,
                                    .weight = weight->data,
                                    .counts = c->all.counts,
                                    .tokens = c->all.tokens,
                                    .experts = c->all.experts,
                                    .columns = weight->shape[turned ? 2 : 1],
                                    .weight_kind = ct_cuda_float_of(weight->dtype),
                                    .turned = turned,
                                    .accumulate = accumulate};
    int64_t tiles = ct_cuda_blocks(c->all.choices, GPU_EXPERTS_TILE) + c->all.experts;

    return ct_cuda_launch(
        c->l, c->state->f[PRODUCT],
        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.columns, GPU_EXPERTS_TILE),
                              (unsigned)tiles, 1},
        (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

/* Sort the choices; g and u of each, unless they were kept. */
static int begin(const struct experts_call *c)
{
    struct gpu_expert_rows x = gpu_rows_of_tokens(&c->in[X]);
    int rc = gpu_sort_choices(c->l, &c->state->choices, &c->all);

    if (rc < 0 || c->l->op->type == &ct_op_experts_kept_grad)
        return rc;
    rc = multiply(c, x, &c->in[GATE], false, false, c->kept_g);
    return rc < 0 ? rc : multiply(c, x, &c->in[UP], false, false, c->kept_u);
}

int gpu_combine_rows(const struct experts_call *c)
{
    const struct ct_tensor *y = &c->l->out[0];
    bool gradient = gpu_experts_is_gradient(c->l->op), adds = c->l->accumulate >> 1 & 1;
    struct gpu_experts_combine a = {.y = y->data,
                                    .dweights = adds ? NULL : gpu_dweights(c->l),
                                    .rows = c->rows,
                                    .weights = gradient ? NULL : c->in[WEIGHTS].data,
                                    .place = c->all.place,
                                    .tokens = c->tokens,
                                    .columns = c->n,
                                    .k = c->all.k,
                                    .kind = ct_cuda_float_of(y->dtype),
                                    .accumulate = c->l->accumulate & 1};

    return gpu_launch_rows(c->l, c->state->f[COMBINE], a.tokens, &a);
}

static struct gpu_experts_rows rows_of_choices(const struct experts_call *c)
{
    return (struct gpu_experts_rows){
        .all = c->all,
        .from_g = c->kept_g,
        .from_u = c->kept_u,
        .g = c->g,
        .u = c->u,
        .dh = c->dh,
        .weights = c->in[WEIGHTS].data,
        .gate_bias = c->gate_bias,
        .up_bias = c->up_bias,
        .f = c->f,
        .how = c->how,
        .bias_kind = c->gate_bias ? ct_cuda_float_of(c->in[GATE_BIAS].dtype) : 0};
}

static int run_experts(const struct ct_launch *l)
{
    struct experts_call c = gpu_experts_call(l, sizeof(float));
    struct gpu_experts_rows rows = rows_of_choices(&c);
    int rc = begin(&c);

    if (rc == 0)
        rc = gpu_launch_rows(l, c.state->f[HIDDEN], c.all.choices, &rows);
    if (rc == 0)
        rc = multiply(&c, of_choices(c.g, c.f), &c.in[DOWN], false, false, c.rows);
    return rc < 0 ? rc : gpu_combine_rows(&c);
}

/* ---- gradients ---- */

/* dg over g, du over u, the weighted hidden layer over dh. */
static int hidden_gradients(const struct experts_call *c)
{
    struct gpu_experts_rows rows = rows_of_choices(c);
    int rc = begin(c);

    rows.dweights = gpu_dweights(c->l);
    rows.accumulate = c->l->accumulate >> 1 & 1;
    if (rc == 0)
        rc = multiply(c, gpu_rows_of_tokens(&c->in[-1]), &c->in[DOWN], true, false, c->dh);
    return rc < 0 ? rc : gpu_launch_rows(c->l, c->state->f[HIDDEN_GRAD], c->all.choices, &rows);
}

static int sum_tokens(const struct experts_call *c)
{
    int rc = multiply(c, of_choices(c->g, c->f), &c->in[GATE], true, false, c->rows);

    if (rc == 0)
        rc = multiply(c, of_choices(c->u, c->f), &c->in[UP], true, true, c->rows);
    return rc < 0 ? rc : gpu_combine_rows(c);
}

/* Gradient number i of the experts' weights. */
static int outer(const struct experts_call *c, struct gpu_expert_rows left,
                 struct gpu_expert_rows right, int i)
{
    int out = gpu_first_gradient(c->l->op) + i;
    const struct ct_tensor *t = &c->l->out[out];
    struct gpu_experts_outer a = {.out = t->data,
                                  .left = left,
                                  .right = right,
                                  .counts = c->all.counts,
                                  .tokens = c->all.tokens,
                                  .kind = ct_cuda_float_of(t->dtype),
                                  .accumulate = c->l->accumulate >> out & 1};

    return ct_cuda_launch(
        c->l, c->state->f[OUTER],
        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(right.columns, GPU_EXPERTS_TILE),
                              (unsigned)ct_cuda_blocks(left.columns, GPU_EXPERTS_TILE),
                              (unsigned)c->all.experts},
        (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

int gpu_sum_experts(const struct ct_launch *l, const struct gpu_choices *f,
                    const struct gpu_experts *all, struct gpu_expert_rows rows,
                    const float *weights, int out)
{
    const struct ct_tensor *t = &l->out[out];
    struct gpu_experts_sum a = {.out = t->data,
                                .in = rows,
                                .weights = weights,
                                .counts = all->counts,
                                .order = all->order,
                                .tokens = all->tokens,
                                .kind = ct_cuda_float_of(t->dtype),
                                .accumulate = l->accumulate >> out & 1};
    bool vector = gpu_may_load_8(rows.x, rows.kind, rows.columns) &&
                  gpu_may_load_8(t->data, a.kind, rows.columns);
    int64_t columns = ct_cuda_blocks(rows.columns, vector ? 8 * 32 : 32);

    return ct_cuda_launch(l, f->sum.f[vector],
                          (struct ct_cuda_size){(unsigned)columns, (unsigned)all->experts, 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

int gpu_sum_biases(const struct experts_call *c, struct gpu_expert_rows dg,
                   struct gpu_expert_rows du)
{
    const struct gpu_choices *f = &c->state->choices;
    int first = gpu_first_gradient(c->l->op);
    int rc = c->gate_bias ? gpu_sum_experts(c->l, f, &c->all, dg, NULL, first + 3) : 0;

    return rc < 0 || !c->gate_bias ? rc : gpu_sum_experts(c->l, f, &c->all, du, NULL, first + 4);
}

static int sum_weights(const struct experts_call *c)
{
    struct gpu_expert_rows x = gpu_rows_of_tokens(&c->in[X]), dg = of_choices(c->g, c->f);
    struct gpu_expert_rows du = of_choices(c->u, c->f);
    int rc = gpu_sum_biases(c, dg, du);

    if (rc == 0)
        rc = outer(c, dg, x, 0);
    if (rc == 0)
        rc = outer(c, du, x, 1);
    return rc < 0 ? rc : outer(c, gpu_rows_of_tokens(&c->in[-1]), of_choices(c->dh, c->f), 2);
}

static int run_gradients(const struct ct_launch *l)
{
    struct experts_call c = gpu_experts_call(l, sizeof(float));
    int rc = hidden_gradients(&c);

    if (rc == 0 && l->op->type != &ct_op_experts_dx)
        rc = sum_weights(&c);
    return rc == 0 && sums_tokens(l->op) ? sum_tokens(&c) : rc;
}

const struct ct_kernel gpu_experts_kernels[] = {
    CT_KERNEL("experts", "plain", 0, gpu_experts_accept, prepare_experts, run_experts),
    CT_KERNEL("experts_dx", "plain", 0, gpu_experts_accept, prepare_experts, run_gradients),
    CT_KERNEL("experts_dw", "plain", CT_KERNEL_ACCUMULATES, gpu_experts_accept, prepare_experts,
              run_gradients),
    CT_KERNEL("experts_grad", "plain", CT_KERNEL_ACCUMULATES, gpu_experts_accept, prepare_experts,
              run_gradients),
    CT_KERNEL("experts_kept", "plain", 0, accept_kept, prepare_experts, run_experts),
    CT_KERNEL("experts_kept_grad", "plain", CT_KERNEL_ACCUMULATES, accept_kept, prepare_experts,
              run_gradients),
    {0}};
