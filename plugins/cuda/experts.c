/*
 * Mixtures of experts: the choice of experts, and the chosen layers as grouped products.
 *
 * The products are this plugin's own, in float32 on plain cores: correct, reproducible, and many
 * times slower than products on tensor cores. The host does not wait for the choices: grids are as
 * large as any choice needs, and blocks without work end at once.
 */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256
#define MOST_TILES ((int64_t)60000)

static int64_t rows_of(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim - 1, t->shape);
}

static int64_t columns_of(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

/* A warp for each row. */
static int launch_rows(const struct ct_launch *l, const char *name, int64_t rows,
                       const void *arguments)
{
    return gpu_launch(l, name, (struct gpu_size){(unsigned)gpu_blocks(rows, THREADS / 32), 1, 1},
                      (struct gpu_size){THREADS, 1, 1}, 0, arguments);
}

static struct gpu_fault *fault_of(const struct ct_launch *l)
{
    return (void *)(uintptr_t)gpu_of(l->device)->fault_address;
}

/* ---- the choice ---- */

static bool accepts_top_k(const struct ct_prepare *p)
{
    return gpu_is_compute_dtype(p->in[0].dtype) && p->out[0].dtype == CT_F32;
}

static bool accepts_top_k_grad(const struct ct_prepare *p)
{
    return gpu_is_compute_dtype(p->in[2].dtype) && gpu_is_compute_dtype(p->out[0].dtype) &&
           p->in[0].dtype == CT_F32;
}

static struct gpu_top_k choice_of(const struct ct_launch *l, const struct ct_tensor *x)
{
    const struct ct_top_k *attrs = l->op->attrs;

    return (struct gpu_top_k){.x = x->data,
                              .rows = rows_of(x),
                              .experts = columns_of(x),
                              .k = attrs->k,
                              .kind = gpu_float_kind(x->dtype),
                              .normalised = attrs->normalised,
                              .fault = fault_of(l)};
}

static int run_top_k(const struct ct_launch *l)
{
    struct gpu_top_k a = choice_of(l, &l->in[0]);

    a.weights = l->out[0].data;
    a.ids = l->out[1].data;
    return launch_rows(l, "top_k", a.rows, &a);
}

static int run_top_k_grad(const struct ct_launch *l)
{
    struct gpu_top_k a = choice_of(l, &l->in[2]);

    a.k = columns_of(&l->in[0]);
    a.dweights = l->in[0].data;
    a.chosen = l->in[1].data;
    a.dx = l->out[0].data;
    a.out_kind = gpu_float_kind(l->out[0].dtype);
    return launch_rows(l, "top_k_grad", a.rows, &a);
}

/* ---- the experts ---- */

enum { X, WEIGHTS, IDS, GATE, UP, DOWN, OPERANDS };

/* Offsets in the workspace. */
struct state {
    size_t counts, order, place, g, u, dh, rows;
};

/* One call; input `at` is x. */
struct call {
    const struct ct_launch *l;
    const struct ct_tensor *in; /* in[X] and so on */
    struct gpu_experts all;
    int64_t tokens, n, f;
    float *g, *u, *dh, *rows;
};

static bool accepts_at(const struct ct_prepare *p, int at)
{
    for (int i = 0; i < p->ins; i++)
        if (i != at + WEIGHTS && i != at + IDS && !gpu_is_compute_dtype(p->in[i].dtype))
            return false;
    for (int i = 0; i < p->outs; i++)
        if (!gpu_is_compute_dtype(p->out[i].dtype))
            return false;
    return p->in[at + WEIGHTS].dtype == CT_F32 &&
           ct_tensor_count(&p->in[at + WEIGHTS]) <= MOST_TILES * GPU_EXPERTS_TILE;
}

static bool accepts(const struct ct_prepare *p)
{
    return accepts_at(p, 0);
}

static bool accepts_grad(const struct ct_prepare *p)
{
    return accepts_at(p, 1);
}

static int prepare_at(struct ct_prepare *p, int at, bool gradient, bool combines)
{
    struct state *s = ct_arena_new(p->arena, struct state);
    size_t choices = (size_t)ct_tensor_count(&p->in[at + WEIGHTS]);
    size_t f = choices * (size_t)p->in[at + GATE].shape[1] * sizeof(float);

    s->counts = gpu_carve(&p->workspace, (size_t)p->in[at + GATE].shape[0] * sizeof(int32_t));
    s->order = gpu_carve(&p->workspace, choices * sizeof(int32_t));
    s->place = gpu_carve(&p->workspace, choices * sizeof(int32_t));
    s->g = gpu_carve(&p->workspace, f);
    s->u = gpu_carve(&p->workspace, f);
    if (gradient)
        s->dh = gpu_carve(&p->workspace, f);
    if (combines)
        s->rows =
            gpu_carve(&p->workspace, choices * (size_t)columns_of(&p->in[at + X]) * sizeof(float));
    p->state = s;
    return 0;
}

static int prepare(struct ct_prepare *p)
{
    return prepare_at(p, 0, false, true);
}

static int prepare_dx(struct ct_prepare *p)
{
    return prepare_at(p, 1, true, true);
}

static int prepare_dw(struct ct_prepare *p)
{
    return prepare_at(p, 1, true, false);
}

static struct call call_of(const struct ct_launch *l, int at)
{
    const struct state *s = l->state;
    const struct ct_tensor *in = l->in + at;
    char *work = l->workspace;

    return (struct call){
        .l = l,
        .in = in,
        .all = {.counts = (int32_t *)(work + s->counts),
                .order = (int32_t *)(work + s->order),
                .place = (int32_t *)(work + s->place),
                .ids = in[IDS].data,
                .choices = ct_tensor_count(&in[WEIGHTS]),
                .k = columns_of(&in[WEIGHTS]),
                .first = ct_launch_offset(l, l->op->in[at + GATE], 0),
                .experts = in[GATE].shape[0],
                .all = l->op->in[at + GATE]->shape[0],
                .fault = fault_of(l)},
        .tokens = rows_of(&in[X]),
        .n = columns_of(&in[X]),
        .f = in[GATE].shape[1],
        .g = (float *)(work + s->g),
        .u = (float *)(work + s->u),
        .dh = (float *)(work + s->dh),
        .rows = (float *)(work + s->rows),
    };
}

static int sort_choices(const struct call *c)
{
    struct gpu_size experts = {(unsigned)c->all.experts, 1, 1}, block = {THREADS, 1, 1};
    int rc = gpu_launch(c->l, "experts_clear",
                        (struct gpu_size){(unsigned)gpu_blocks(c->all.choices, THREADS), 1, 1},
                        block, 0, &c->all);

    if (rc == 0)
        rc = gpu_launch(c->l, "experts_count", experts, block, 0, &c->all);
    return rc < 0 ? rc : gpu_launch(c->l, "experts_sort", experts, block, 0, &c->all);
}

static struct gpu_expert_rows of_tokens(const struct ct_tensor *t)
{
    return (struct gpu_expert_rows){t->data, columns_of(t), gpu_float_kind(t->dtype), true};
}

static struct gpu_expert_rows of_choices(const float *x, int64_t columns)
{
    return (struct gpu_expert_rows){x, columns, GPU_F32, false};
}

/* to = rows times the experts' `weight`; turned: by its transpose. */
static int multiply(const struct call *c, struct gpu_expert_rows rows,
                    const struct ct_tensor *weight, bool turned, bool accumulate, float *to)
{
    struct gpu_experts_product a = {.c = to,
                                    .in = rows,
                                    .weight = weight->data,
                                    .counts = c->all.counts,
                                    .order = c->all.order,
                                    .experts = c->all.experts,
                                    .columns = weight->shape[turned ? 2 : 1],
                                    .k = (int32_t)c->all.k,
                                    .weight_kind = gpu_float_kind(weight->dtype),
                                    .turned = turned,
                                    .accumulate = accumulate};
    int64_t tiles = gpu_blocks(c->all.choices, GPU_EXPERTS_TILE) + c->all.experts;

    return gpu_launch(
        c->l, "experts_product",
        (struct gpu_size){(unsigned)gpu_blocks(a.columns, GPU_EXPERTS_TILE), (unsigned)tiles, 1},
        (struct gpu_size){THREADS, 1, 1}, 0, &a);
}

/* Sort the choices; g and u of each. */
static int begin(const struct call *c)
{
    int rc = sort_choices(c);

    if (rc == 0)
        rc = multiply(c, of_tokens(&c->in[X]), &c->in[GATE], false, false, c->g);
    return rc < 0 ? rc : multiply(c, of_tokens(&c->in[X]), &c->in[UP], false, false, c->u);
}

static int combine(const struct call *c, const float *weights, float *dweights)
{
    const struct ct_tensor *y = &c->l->out[0];
    struct gpu_experts_combine a = {.y = y->data,
                                    .dweights = dweights,
                                    .rows = c->rows,
                                    .weights = weights,
                                    .place = c->all.place,
                                    .tokens = c->tokens,
                                    .columns = c->n,
                                    .k = c->all.k,
                                    .kind = gpu_float_kind(y->dtype),
                                    .accumulate = c->l->accumulate & 1};

    return launch_rows(c->l, "experts_combine", a.tokens, &a);
}

static int run(const struct ct_launch *l)
{
    struct call c = call_of(l, 0);
    struct gpu_experts_rows rows = {.all = c.all, .g = c.g, .u = c.u, .f = c.f};
    int rc = begin(&c);

    if (rc == 0)
        rc = launch_rows(l, "experts_hidden", c.all.choices, &rows);
    if (rc == 0)
        rc = multiply(&c, of_choices(c.g, c.f), &c.in[DOWN], false, false, c.rows);
    return rc < 0 ? rc : combine(&c, c.in[WEIGHTS].data, NULL);
}

/* dg over g, du over u, the weighted hidden layer over dh. */
static int hidden_gradients(const struct call *c, float *dweights)
{
    struct gpu_experts_rows rows = {.all = c->all,
                                    .g = c->g,
                                    .u = c->u,
                                    .dh = c->dh,
                                    .dweights = dweights,
                                    .weights = c->in[WEIGHTS].data,
                                    .f = c->f};
    int rc = begin(c);

    if (rc == 0)
        rc = multiply(c, of_tokens(&c->l->in[0]), &c->in[DOWN], true, false, c->dh);
    return rc < 0 ? rc : launch_rows(c->l, "experts_hidden_grad", c->all.choices, &rows);
}

static int run_dx(const struct ct_launch *l)
{
    struct call c = call_of(l, 1);
    int rc = hidden_gradients(&c, l->out[1].data);

    if (rc == 0)
        rc = multiply(&c, of_choices(c.g, c.f), &c.in[GATE], true, false, c.rows);
    if (rc == 0)
        rc = multiply(&c, of_choices(c.u, c.f), &c.in[UP], true, true, c.rows);
    return rc < 0 ? rc : combine(&c, NULL, l->out[1].data);
}

static int outer(const struct call *c, struct gpu_expert_rows left, struct gpu_expert_rows right,
                 int out)
{
    const struct ct_tensor *t = &c->l->out[out];
    struct gpu_experts_outer a = {.out = t->data,
                                  .left = left,
                                  .right = right,
                                  .counts = c->all.counts,
                                  .order = c->all.order,
                                  .k = (int32_t)c->all.k,
                                  .kind = gpu_float_kind(t->dtype),
                                  .accumulate = c->l->accumulate >> out & 1};

    return gpu_launch(c->l, "experts_outer",
                      (struct gpu_size){(unsigned)gpu_blocks(right.columns, GPU_EXPERTS_TILE),
                                        (unsigned)gpu_blocks(left.columns, GPU_EXPERTS_TILE),
                                        (unsigned)c->all.experts},
                      (struct gpu_size){THREADS, 1, 1}, 0, &a);
}

static int run_dw(const struct ct_launch *l)
{
    struct call c = call_of(l, 1);
    int rc = hidden_gradients(&c, NULL);

    if (rc == 0)
        rc = outer(&c, of_choices(c.g, c.f), of_tokens(&c.in[X]), 0);
    if (rc == 0)
        rc = outer(&c, of_choices(c.u, c.f), of_tokens(&c.in[X]), 1);
    return rc < 0 ? rc : outer(&c, of_tokens(&l->in[0]), of_choices(c.dh, c.f), 2);
}

const struct ct_kernel gpu_experts_kernels[] = {
    CT_KERNEL("top_k", "rows", 0, accepts_top_k, NULL, run_top_k),
    CT_KERNEL("top_k_grad", "rows", 0, accepts_top_k_grad, NULL, run_top_k_grad),
    CT_KERNEL("experts", "plain", 0, accepts, prepare, run),
    CT_KERNEL("experts_dx", "plain", 0, accepts_grad, prepare_dx, run_dx),
    CT_KERNEL("experts_dw", "plain", CT_KERNEL_ACCUMULATES, accepts_grad, prepare_dw, run_dw),
    {0}};
