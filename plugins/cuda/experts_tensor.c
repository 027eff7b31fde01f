/*
 * Mixtures of experts in bfloat16: grouped products on tensor cores, on Hopper by wgmma
 * (kernels/experts_wgmma.cu), elsewhere by mma.sync (kernels/experts_tensor.cu).
 *
 * The gate's and the other half's products share a launch, which makes the hidden layer at once.
 * Gradients of x through both halves are one sum. Rows and hidden values are rounded to bfloat16.
 */
#include <float.h>
#include <math.h>

#include "experts.h"

#define HOPPER 90 /* the only compute capability that has wgmma */

/* The tiles of a kind of products. */
struct tiles {
    int rows, columns;
    size_t shared;
};

static const struct tiles by_mma = {GPU_TENSOR_TILE, GPU_TENSOR_TILE, 0};
static const struct tiles by_wgmma = {GPU_WGMMA_ROWS, GPU_WGMMA_COLUMNS, GPU_WGMMA_SHARED};

/* Vectors are of 8 elements. */
bool gpu_experts_fit_tiles(const int64_t *gate)
{
    return gate[1] % 8 == 0 && gate[2] % 8 == 0;
}

bool gpu_experts_in_tiles(const struct ct_prepare *p)
{
    int at = gpu_experts_x(p->op);

    for (int i = at ? at - 1 : 0; i < p->ins; i++)
        if (i != at + WEIGHTS && i != at + IDS && p->in[i].dtype != CT_BF16)
            return false;
    return gpu_experts_fit_tiles(p->in[at + GATE].shape);
}

bool gpu_has_wgmma(const struct ct_prepare *p)
{
    return gpu_config.wgmma && gpu_of(p->device)->cuda.capability == HOPPER;
}

static bool accept(const struct ct_prepare *p)
{
    return gpu_experts_accept(p) && gpu_experts_in_tiles(p);
}

static bool accept_wgmma(const struct ct_prepare *p)
{
    return gpu_has_wgmma(p) && accept(p);
}

static struct gpu_expert_rows of_choices(const void *x, int64_t columns)
{
    return (struct gpu_expert_rows){x, columns, CT_CUDA_BF16, false};
}

/* A function of products, with a block for each tile of its grid. */
static int launch_tiles(const struct experts_call *c, int function, struct ct_cuda_size grid,
                        const void *arguments)
{
    return ct_cuda_launch(c->l, c->state->f[function], grid,
                          (struct ct_cuda_size){GPU_TENSOR_THREADS, 1, 1}, c->tiles->shared,
                          arguments);
}

/* Tiles of the rows, however the choices fall, and of `columns`. */
static struct ct_cuda_size tiles_of(const struct experts_call *c, int64_t columns)
{
    int64_t rows = ct_cuda_blocks(c->all.choices, c->tiles->rows) + c->all.experts;

    return (struct ct_cuda_size){(unsigned)ct_cuda_blocks(columns, c->tiles->columns),
                                 (unsigned)rows, 1};
}

/* Sort the choices; h of each, or g and u, or all; nothing if g and u were kept. */
static int begin(const struct experts_call *c)
{
    bool gradient = gpu_experts_is_gradient(c->l->op), keeps = gpu_experts_keeps(c->l->op);
    struct gpu_experts_gated a = {.h = gradient ? NULL : c->g,
                                  .g = gradient || keeps ? c->kept_g : NULL,
                                  .u = gradient || keeps ? c->kept_u : NULL,
                                  .in = gpu_rows_of_tokens(&c->in[X]),
                                  .gate = c->in[GATE].data,
                                  .up = c->in[UP].data,
                                  .gate_bias = c->gate_bias,
                                  .up_bias = c->up_bias,
                                  .how = c->how,
                                  .counts = c->all.counts,
                                  .tokens = c->all.tokens,
                                  .experts = c->all.experts,
                                  .f = c->f};
    int rc = gpu_sort_choices(c->l, &c->state->choices, &c->all);

    return rc < 0 || (gradient && keeps) ? rc : launch_tiles(c, HIDDEN, tiles_of(c, 2 * c->f), &a);
}

/* to = the sum of the parts' rows times the experts' weights; turned: by their transposes. */
static int multiply(const struct experts_call *c, struct gpu_experts_tensor parts, int64_t columns,
                    bool turned, void *to)
{
    parts.c = to;
    parts.counts = c->all.counts;
    parts.tokens = c->all.tokens;
    parts.experts = c->all.experts;
    parts.columns = columns;
    return launch_tiles(c, turned ? TURNED : PRODUCT, tiles_of(c, columns), &parts);
}

static struct experts_call call_by(const struct ct_launch *l, const struct tiles *tiles)
{
    struct experts_call c = gpu_experts_call(l, sizeof(uint16_t));

    c.tiles = tiles;
    return c;
}

static int run_tensor_experts(struct experts_call c)
{
    struct gpu_experts_tensor down = {
        .in = {of_choices(c.g, c.f)}, .weight = {c.in[DOWN].data}, .parts = 1};
    int rc = begin(&c);

    if (rc == 0)
        rc = multiply(&c, down, c.n, false, c.rows);
    return rc < 0 ? rc : gpu_combine_rows(&c);
}

/* dg over g, du over u, the weighted hidden layer over dh. */
static int hidden_gradients(const struct experts_call *c)
{
    struct gpu_experts_tensor down = {
        .in = {gpu_rows_of_tokens(&c->in[-1])}, .weight = {c->in[DOWN].data}, .parts = 1};
    struct gpu_experts_rows rows = {.all = c->all,
                                    .from_g = c->kept_g,
                                    .from_u = c->kept_u,
                                    .g = c->g,
                                    .u = c->u,
                                    .dh = c->dh,
                                    .dweights = gpu_dweights(c->l),
                                    .weights = c->in[WEIGHTS].data,
                                    .f = c->f,
                                    .how = c->how,
                                    .accumulate = c->l->accumulate >> 1 & 1};
    int rc = begin(c);

    if (isfinite(c->how.limit)) /* what was beyond it is infinite now */
        rows.how.beyond = FLT_MAX;
    if (rc == 0)
        rc = multiply(c, down, c->f, true, c->dh);
    return rc < 0 ? rc : gpu_launch_rows(c->l, c->state->f[HIDDEN_GRAD], c->all.choices, &rows);
}

static int sum_tokens(const struct experts_call *c)
{
    struct gpu_experts_tensor halves = {.in = {of_choices(c->g, c->f), of_choices(c->u, c->f)},
                                        .weight = {c->in[GATE].data, c->in[UP].data},
                                        .parts = 2};
    int rc = multiply(c, halves, c->n, true, c->rows);

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
    struct ct_cuda_size grid = {(unsigned)ct_cuda_blocks(right.columns, c->tiles->columns),
                                (unsigned)ct_cuda_blocks(left.columns, c->tiles->rows),
                                (unsigned)c->all.experts};

    return launch_tiles(c, OUTER, grid, &a);
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

static int run_gradients(struct experts_call c)
{
    int rc = hidden_gradients(&c);

    if (rc == 0 && c.l->op->type != &ct_op_experts_dx)
        rc = sum_weights(&c);
    return rc == 0 && c.l->op->type != &ct_op_experts_dw ? sum_tokens(&c) : rc;
}

/* HIDDEN makes the hidden layer of the gate's and the other half's products at once. */
#define BY(which)                                                                                  \
    static int prepare_##which(struct ct_prepare *p)                                               \
    {                                                                                              \
        return gpu_experts_prepare(p, sizeof(uint16_t),                                            \
                                   CT_CUDA_NAMES("experts_product_" #which,                        \
                                                 "experts_turned_" #which,                         \
                                                 "experts_outer_" #which, "experts_gated_" #which, \
                                                 "experts_gated_grad", "experts_combine_tensor")); \
    }                                                                                              \
    static int run_##which(const struct ct_launch *l)                                              \
    {                                                                                              \
        return run_tensor_experts(call_by(l, &by_##which));                                        \
    }                                                                                              \
    static int run_gradients_##which(const struct ct_launch *l)                                    \
    {                                                                                              \
        return run_gradients(call_by(l, &by_##which));                                             \
    }
BY(mma)
BY(wgmma)

#define KERNELS(which, accept)                                                                     \
    CT_KERNEL("experts", #which, 0, accept, prepare_##which, run_##which),                         \
        CT_KERNEL("experts_dx", #which, 0, accept, prepare_##which, run_gradients_##which),        \
        CT_KERNEL("experts_dw", #which, CT_KERNEL_ACCUMULATES, accept, prepare_##which,            \
                  run_gradients_##which),                                                          \
        CT_KERNEL("experts_grad", #which, CT_KERNEL_ACCUMULATES, accept, prepare_##which,          \
                  run_gradients_##which),                                                          \
        CT_KERNEL("experts_kept", #which, 0, accept, prepare_##which, run_##which),                \
        CT_KERNEL("experts_kept_grad", #which, CT_KERNEL_ACCUMULATES, accept, prepare_##which,     \
                  run_gradients_##which)

const struct ct_kernel gpu_experts_tensor_kernels[] = {
    KERNELS(wgmma, accept_wgmma), KERNELS(mma, accept), {0}};
