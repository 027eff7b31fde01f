/*
 * Mixtures of experts in 8 bits (float8.experts and its gradients, of plugin float8).
 *
 * Operands become codes in the workspace, along the lines that a product sums: x, hidden layers and
 * gradients by row, weights by row or turned, and the operands of gradients of weights by column.
 * Codes of an operand are made in front of its first product: two areas hold all of them in turn.
 * Lines are filled up to 16 codes: sizes may be any. On Hopper products of rowwise and blockwise
 * codes are by wgmma (kernels/experts_float8_wgmma.cu); those of MXFP8, whose sums of 32 codes
 * would leave the tensor cores idle there, and all elsewhere by mma.sync
 * (kernels/experts_float8.cu).
 */
#include "experts.h"
#include "kernels/code_rows.h"

#define BLOCK GPU_CODES_BLOCK

enum { ROWWISE = 1, BLOCKWISE, MXFP8 }; /* values of the attribute `recipe` */

/* Functions. COLUMNS: codes along columns; TURNED: squares of weights, along columns. */
enum {
    ROWS,
    COLUMNS,
    SQUARES,
    SQUARES_TURNED,
    CODES_PRODUCT,
    CODES_OUTER,
    LAYER,
    LAYER_GRAD,
    SUM,
    CODES_FUNCTIONS
};

/* Bits: both gradients are one task, too. */
enum task { FORWARD, TOKENS_GRADIENT, WEIGHTS_GRADIENT, BOTH_GRADIENTS };

/* Where codes and factors of an area lie in the workspace. */
struct area {
    size_t codes, factors;
};

struct codes_state {
    struct gpu_choices choices;
    struct ct_cuda_function *f[CODES_FUNCTIONS];
    size_t counts, order, tokens, place, g, u, dh, rows;
    struct area first, second; /* of a product's operands */
    size_t shared;             /* bytes of a product's block */
};

/* Names of the products' functions, whose tiles have the same size. */
struct products {
    const char *product, *outer;
    size_t shared;
};

static const struct products by_mma = {"codes_product", "codes_outer", 0};
static const struct products by_mma_mx = {"codes_product_mx", "codes_outer_mx", 0};
static const struct products by_wgmma[] = {
    [ROWWISE] = {"codes_product_rowwise_wgmma", "codes_outer_rowwise_wgmma", GPU_CODES_SHARED},
    [BLOCKWISE] = {"codes_product_blockwise_wgmma", "codes_outer_blockwise_wgmma",
                   GPU_CODES_SHARED}};

/* Sizes of a call. */
struct sizes {
    int64_t tokens, k, choices, n, f, experts;
    int64_t block; /* numbers of a line with one factor; 0: all */
    bool squares;  /* of weights share a factor: recipe = blockwise */
};

struct codes_call {
    const struct ct_launch *l;
    const struct codes_state *state;
    const struct ct_tensor *in; /* in[X] and so on */
    struct sizes size;
    struct gpu_experts all;
    int32_t kind; /* of inner values: that of x */
    char *work;
    void *g, *u, *dh, *rows;
};

/* ---- sizes ---- */

static int64_t block_of(int recipe)
{
    return recipe == BLOCKWISE ? BLOCK : recipe == MXFP8 ? GPU_CODES_MX : 0;
}

static struct sizes sizes_of(const struct ct_op *op, const struct ct_tensor *in)
{
    int recipe = ct_op_enum(op, "recipe");
    const struct ct_tensor *x = &in[X], *weights = &in[WEIGHTS];

    return (struct sizes){.tokens = ct_shape_count(x->ndim - 1, x->shape),
                          .k = weights->shape[weights->ndim - 1],
                          .choices = ct_tensor_count(weights),
                          .n = x->shape[x->ndim - 1],
                          .f = in[GATE].shape[1],
                          .experts = in[GATE].shape[0],
                          .block = block_of(recipe),
                          .squares = recipe == BLOCKWISE};
}

static int64_t line_of(int64_t depth)
{
    return (depth + 15) / 16 * 16;
}

static int64_t squares_of(int64_t columns)
{
    return ct_cuda_blocks(columns, BLOCK);
}

/* Factors of a line of so many numbers. */
static int64_t factors_of(const struct sizes *s, int64_t columns)
{
    return s->block ? ct_cuda_blocks(columns, s->block) : 1;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Codes of a line that has the rows of all choices, each expert's from a multiple of BLOCK on. */
static int64_t choices_line(const struct sizes *s)
{
    return squares_of(s->choices + BLOCK * s->experts) * BLOCK;
}

/* ---- codes: where they are, by what they are of ---- */

/* Rows of tokens, or of choices. */
static struct gpu_codes codes_by_row(const struct sizes *s, int64_t columns)
{
    return (struct gpu_codes){.stride = line_of(columns),
                              .share = 1,
                              .line = factors_of(s, columns),
                              .block = s->block > 0};
}

/* Weights of `rows` lines of so many columns, as they are or turned. */
static struct gpu_codes codes_of_weights(const struct sizes *s, int64_t rows, int64_t columns,
                                         bool turned)
{
    int64_t across = squares_of(columns), lines = turned ? columns : rows;
    int64_t depth = turned ? rows : columns;
    struct gpu_codes c = {
        .stride = line_of(depth), .share = 1, .line = factors_of(s, depth), .block = s->block > 0};

    c.each = lines * c.line;
    if (s->squares) {
        c.share = BLOCK;
        c.line = turned ? 1 : across;
        c.block = turned ? across : 1;
        c.each = squares_of(rows) * across;
    }
    return c;
}

/* Columns of rows of choices. */
static struct gpu_codes codes_by_column(const struct sizes *s, int64_t columns)
{
    return (struct gpu_codes){.stride = choices_line(s),
                              .share = 1,
                              .line = 1,
                              .block = s->block ? columns : 0,
                              .each = columns};
}

/* ---- the workspace ---- */

/* Room for either: rows of tokens and choices, weights, columns. */
static struct area carve_area(struct ct_prepare *p, const struct sizes *s, bool weights,
                              bool columns)
{
    int64_t wide = larger(s->n, s->f), rows = larger(s->tokens, s->choices);
    int64_t codes = rows * line_of(wide), factors = rows * factors_of(s, wide);
    struct area a;

    if (weights) {
        codes = s->experts * larger(s->f * line_of(s->n), s->n * line_of(s->f));
        factors = s->experts *
                  (s->squares ? squares_of(s->f) * squares_of(s->n)
                              : larger(s->f * factors_of(s, s->n), s->n * factors_of(s, s->f)));
    }
    if (columns) {
        codes = larger(codes, wide * choices_line(s));
        factors = larger(factors, wide * (s->block ? choices_line(s) / s->block : s->experts));
    }
    a.codes = ct_cuda_carve(&p->workspace, (size_t)codes);
    a.factors = ct_cuda_carve(&p->workspace, (size_t)factors * sizeof(float));
    return a;
}

/* Bytes that pass through the workspace by numbers that become codes: they are read, and the codes
   written and read. */
static double coded(double numbers, size_t element)
{
    return numbers * ((double)element + 2);
}

/* The same of rows with so many columns: if these share a scale, long ones are read twice. */
static double coded_rows(const struct sizes *s, double numbers, int64_t columns, size_t element)
{
    return coded(numbers, s->block || columns <= GPU_ROW ? element : 2 * element);
}

/* The same of columns: if all rows share a scale, numbers are read twice. */
static double coded_columns(const struct sizes *s, double numbers, size_t element)
{
    return coded(numbers, s->block ? element : 2 * element);
}

static double traffic_of(const struct sizes *s, enum task task, size_t element)
{
    double x = (double)(s->tokens * s->n), f = (double)(s->choices * s->f);
    double rows = (double)(s->choices * s->n), w = (double)(s->experts * s->f * s->n);
    double inner = f * 4 * (double)element; /* two values, written and read */
    double bytes = coded_rows(s, x + 2 * w, s->n, element) + inner;

    if (task == FORWARD)
        return bytes + coded_rows(s, f + w, s->f, element) + 8 * rows;
    bytes += coded_rows(s, x, s->n, element) + coded_columns(s, w, element) + 2 * inner;
    if (task & WEIGHTS_GRADIENT)
        bytes += coded_columns(s, 3 * f + 2 * rows, element);
    if (task & TOKENS_GRADIENT)
        bytes += coded_rows(s, 2 * f, s->f, element) + coded_columns(s, 2 * w, element) + 16 * rows;
    return bytes;
}

static bool accept_mma(const struct ct_prepare *p, enum task task)
{
    int at = task != FORWARD;
    enum ct_dtype dtype = p->in[at + X].dtype;

    for (int i = 0; i < p->ins; i++)
        if (p->present[i] && i != at + WEIGHTS && i != at + IDS && p->in[i].dtype != dtype)
            return false;
    for (int i = 0; i < p->outs; i++)
        if (!ct_cuda_computes(p->out[i].dtype))
            return false;
    return ct_cuda_computes(dtype) && p->in[at + WEIGHTS].dtype == CT_F32 &&
           ct_tensor_count(&p->in[at + WEIGHTS]) <= GPU_MOST_CHOICES;
}

static bool accept_wgmma(const struct ct_prepare *p, enum task task)
{
    return gpu_has_wgmma(p) && ct_op_enum(p->op, "recipe") != MXFP8 && accept_mma(p, task);
}

static int prepare_by(struct ct_prepare *p, enum task task, const struct products *by)
{
    struct codes_state *s = ct_arena_new(p->arena, struct codes_state);
    int at = task != FORWARD;
    struct sizes size = sizes_of(p->op, p->in + at);
    size_t element = ct_dtype_size(p->in[at + X].dtype), choices = (size_t)size.choices;
    size_t f = choices * (size_t)size.f * element;
    int rc;

    s->counts = ct_cuda_carve(&p->workspace, (size_t)size.experts * sizeof(int32_t));
    s->order = ct_cuda_carve(&p->workspace, choices * sizeof(int32_t));
    s->tokens = ct_cuda_carve(&p->workspace, choices * sizeof(int32_t));
    s->place = ct_cuda_carve(&p->workspace, choices * sizeof(int32_t));
    s->g = ct_cuda_carve(&p->workspace, f);
    s->u = ct_cuda_carve(&p->workspace, f);
    s->dh = ct_cuda_carve(&p->workspace, task == FORWARD ? 0 : f);
    s->rows = ct_cuda_carve(
        &p->workspace, task == WEIGHTS_GRADIENT ? 0 : choices * (size_t)size.n * sizeof(float));
    s->first = carve_area(p, &size, false, task & WEIGHTS_GRADIENT);
    s->second = carve_area(p, &size, true, task & WEIGHTS_GRADIENT);
    s->shared = by->shared;
    p->traffic = traffic_of(&size, task, element);
    p->state = s;
    rc = gpu_find_choices(p, &s->choices);
    return rc < 0 ? rc
                  : gpu_find(p, s->f, "codes_of_rows",
                             size.block ? "codes_of_column_blocks" : "codes_of_columns",
                             "codes_of_squares", "codes_of_squares_turned", by->product, by->outer,
                             "codes_hidden", "codes_hidden_grad", "experts_combine");
}

static int prepare_mma(struct ct_prepare *p, enum task task)
{
    return prepare_by(p, task, ct_op_enum(p->op, "recipe") == MXFP8 ? &by_mma_mx : &by_mma);
}

static int prepare_wgmma(struct ct_prepare *p, enum task task)
{
    return prepare_by(p, task, &by_wgmma[ct_op_enum(p->op, "recipe")]);
}

/* ---- a call ---- */

static struct codes_call codes_call(const struct ct_launch *l, enum task task)
{
    const struct codes_state *s = l->state;
    int at = task != FORWARD;
    const struct ct_tensor *in = l->in + at;
    struct sizes size = sizes_of(l->op, in);
    char *work = l->workspace;

    return (struct codes_call){.l = l,
                               .state = s,
                               .in = in,
                               .size = size,
                               .all = {.counts = (int32_t *)(work + s->counts),
                                       .order = (int32_t *)(work + s->order),
                                       .tokens = (int32_t *)(work + s->tokens),
                                       .place = (int32_t *)(work + s->place),
                                       .ids = in[IDS].data,
                                       .choices = size.choices,
                                       .k = size.k,
                                       .first = ct_launch_offset(l, l->op->in[at + GATE], 0),
                                       .experts = size.experts,
                                       .all = l->op->in[at + GATE]->shape[0],
                                       .fault = ct_cuda_of(l->device)->fault},
                               .kind = ct_cuda_float_of(in[X].dtype),
                               .work = work,
                               .g = work + s->g,
                               .u = work + s->u,
                               .dh = work + s->dh,
                               .rows = work + s->rows};
}

static struct gpu_codes placed(const struct codes_call *c, const struct area *area,
                               struct gpu_codes codes)
{
    codes.codes = (uint8_t *)c->work + area->codes;
    codes.factors = (float *)(c->work + area->factors);
    return codes;
}

static int encode(const struct codes_call *c, int function, struct ct_cuda_size grid,
                  const struct gpu_encode *a)
{
    return ct_cuda_launch(c->l, c->state->f[function], grid, (struct ct_cuda_size){THREADS, 1, 1},
                          0, a);
}

static int32_t rule_of(const struct sizes *s)
{
    return s->squares ? GPU_CODES_EXACT : s->block ? GPU_CODES_MX_RCEIL : GPU_CODES_POWER_OF_TWO;
}

/* Codes of x[rows, columns], each row a line; counts: NULL, or x has rows of choices. */
static int encode_rows(const struct codes_call *c, struct gpu_codes to, const void *x, int64_t rows,
                       int64_t columns, const int32_t *counts)
{
    int64_t block = c->size.block;
    struct gpu_encode a = {.to = to,
                           .x = x,
                           .counts = counts,
                           .rows = rows,
                           .columns = columns,
                           .experts = c->size.experts,
                           .along = block,
                           .kind = c->kind,
                           .rule = rule_of(&c->size)};
    int64_t warps = rows * (block ? ct_cuda_blocks(columns, GPU_ROW_STEP) : 1);

    return gpu_launch_rows(c->l, c->state->f[ROWS], warps, &a);
}

/* Codes of weight `which`, into the second area. */
static int encode_weight(const struct codes_call *c, int which, bool turned, struct gpu_codes *to)
{
    const struct ct_tensor *w = &c->in[which];
    int64_t rows = w->shape[1], columns = w->shape[2];
    struct gpu_encode a = {.x = w->data,
                           .rows = rows,
                           .columns = columns,
                           .experts = c->size.experts,
                           .along = c->size.block ? c->size.block : rows,
                           .kind = c->kind,
                           .rule = rule_of(&c->size)};

    *to = a.to = placed(c, &c->state->second, codes_of_weights(&c->size, rows, columns, turned));
    if (c->size.squares)
        return encode(c, turned ? SQUARES_TURNED : SQUARES,
                      (struct ct_cuda_size){(unsigned)squares_of(columns),
                                            (unsigned)squares_of(rows), (unsigned)a.experts},
                      &a);
    if (!turned)
        return encode_rows(c, a.to, a.x, a.experts * rows, columns, NULL);
    return encode(c, COLUMNS,
                  (struct ct_cuda_size){(unsigned)ct_cuda_blocks(columns, GPU_CODES_CHUNK),
                                        (unsigned)a.experts, 1},
                  &a);
}

/* Rows of choices, or of their tokens, which may be weighted. */
struct source {
    const void *x;
    int64_t columns;
    bool of_tokens, weighted;
};

/* Codes of the columns of rows, into an area. */
static int encode_columns(const struct codes_call *c, const struct area *area, struct source from,
                          struct gpu_codes *to)
{
    struct gpu_encode a = {.x = from.x,
                           .counts = c->all.counts,
                           .tokens = from.of_tokens ? c->all.tokens : NULL,
                           .order = c->all.order,
                           .weights = from.weighted ? c->in[WEIGHTS].data : NULL,
                           .columns = from.columns,
                           .experts = c->size.experts,
                           .along = c->size.block ? c->size.block : larger(c->size.choices, 1),
                           .kind = c->kind,
                           .rule = c->size.squares ? GPU_CODES_POWER_OF_TWO : rule_of(&c->size)};

    *to = a.to = placed(c, area, codes_by_column(&c->size, from.columns));
    return encode(c, COLUMNS,
                  (struct ct_cuda_size){(unsigned)ct_cuda_blocks(from.columns, GPU_CODES_CHUNK),
                                        (unsigned)a.experts, 1},
                  &a);
}

/* ---- products ---- */

struct result {
    void *c;
    int32_t kind, accumulate;
    const struct ct_tensor *bias; /* NULL: none */
};

/* A product, with a block for each tile. */
static int launch_product(const struct codes_call *c, int function, struct ct_cuda_size grid,
                          const void *arguments)
{
    return ct_cuda_launch(c->l, c->state->f[function], grid,
                          (struct ct_cuda_size){GPU_TENSOR_THREADS, 1, 1}, c->state->shared,
                          arguments);
}

/* The rows whose codes are `rows`, of tokens or of choices, times the experts' weight `which`. */
static int multiply(const struct codes_call *c, struct gpu_codes rows, bool of_tokens, int which,
                    bool turned, struct result to)
{
    const struct ct_tensor *w = &c->in[which];
    struct gpu_codes_product a = {.c = to.c,
                                  .in = rows,
                                  .bias = to.bias ? to.bias->data : NULL,
                                  .counts = c->all.counts,
                                  .tokens = of_tokens ? c->all.tokens : NULL,
                                  .experts = c->size.experts,
                                  .columns = w->shape[turned ? 2 : 1],
                                  .depth = w->shape[turned ? 1 : 2],
                                  .kind = to.kind,
                                  .accumulate = to.accumulate};
    int64_t tiles = ct_cuda_blocks(c->size.choices, GPU_TENSOR_TILE) + c->size.experts;
    int rc = encode_weight(c, which, turned, &a.weight);

    return rc < 0 ? rc
                  : launch_product(
                        c, CODES_PRODUCT,
                        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.columns, GPU_TENSOR_TILE),
                                              (unsigned)tiles, 1},
                        &a);
}

/* Codes of rows of tokens, in the first area. */
static int encode_tokens(const struct codes_call *c, const struct ct_tensor *x,
                         struct gpu_codes *rows)
{
    *rows = placed(c, &c->state->first, codes_by_row(&c->size, c->size.n));
    return encode_rows(c, *rows, x->data, c->size.tokens, c->size.n, NULL);
}

/* Inner rows [choices, f] times weight `which`, to rows of results. */
static int multiply_inner(const struct codes_call *c, const void *x, int which, bool turned,
                          bool accumulate)
{
    struct gpu_codes rows = placed(c, &c->state->first, codes_by_row(&c->size, c->size.f));
    int rc = encode_rows(c, rows, x, c->size.choices, c->size.f, c->all.counts);

    return rc < 0 ? rc
                  : multiply(c, rows, false, which, turned,
                             (struct result){c->rows, CT_CUDA_F32, accumulate, NULL});
}

/* Output `which` = the gradient of an expert's weight: left^T and what the second area has, of so
   many columns. */
static int outer(const struct codes_call *c, int which, struct source left, struct gpu_codes right,
                 int64_t columns)
{
    const struct ct_tensor *t = &c->l->out[which];
    struct gpu_codes_outer a = {.out = t->data,
                                .right = right,
                                .counts = c->all.counts,
                                .rows = left.columns,
                                .columns = columns,
                                .kind = ct_cuda_float_of(t->dtype),
                                .accumulate = c->l->accumulate >> which & 1};
    int rc = encode_columns(c, &c->state->first, left, &a.left);

    return rc < 0 ? rc
                  : launch_product(
                        c, CODES_OUTER,
                        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.columns, GPU_TENSOR_TILE),
                                              (unsigned)ct_cuda_blocks(a.rows, GPU_TENSOR_TILE),
                                              (unsigned)c->size.experts},
                        &a);
}

/* ---- tasks ---- */

static const struct ct_tensor *bias_of(const struct codes_call *c, int which)
{
    return c->in + which < c->l->in + c->l->ins ? &c->in[which] : NULL;
}

/* Sort the choices; g and u of each. */
static int begin_codes(const struct codes_call *c)
{
    struct gpu_codes x;
    int rc = gpu_sort_choices(c->l, &c->state->choices, &c->all);

    if (rc == 0)
        rc = encode_tokens(c, &c->in[X], &x);
    if (rc == 0)
        rc = multiply(c, x, true, GATE, false,
                      (struct result){c->g, c->kind, 0, bias_of(c, GATE_BIAS)});
    return rc < 0 ? rc
                  : multiply(c, x, true, UP, false,
                             (struct result){c->u, c->kind, 0, bias_of(c, UP_BIAS)});
}

static struct gpu_experts_rows inner_rows(const struct codes_call *c)
{
    const struct ct_op *op = c->l->op;
    struct ct_experts how = {.alpha = ct_op_float(op, "alpha"),
                             .limit = ct_op_float(op, "limit"),
                             .offset = ct_op_float(op, "offset")};

    return (struct gpu_experts_rows){.all = c->all,
                                     .from_g = c->g,
                                     .from_u = c->u,
                                     .g = c->g,
                                     .u = c->u,
                                     .dh = c->dh,
                                     .weights = c->in[WEIGHTS].data,
                                     .f = c->size.f,
                                     .how = gpu_gate_of(&how),
                                     .kind = c->kind};
}

/* Output 0: sums of rows by token; gradients: of tokens, unweighted. */
static int sum_rows(const struct codes_call *c, bool gradient)
{
    const struct ct_tensor *y = &c->l->out[0];
    bool adds = c->l->accumulate >> 1 & 1;
    struct gpu_experts_combine a = {.y = y->data,
                                    .dweights = gradient && !adds ? c->l->out[1].data : NULL,
                                    .rows = c->rows,
                                    .weights = gradient ? NULL : c->in[WEIGHTS].data,
                                    .place = c->all.place,
                                    .tokens = c->size.tokens,
                                    .columns = c->size.n,
                                    .k = c->size.k,
                                    .kind = ct_cuda_float_of(y->dtype),
                                    .accumulate = c->l->accumulate & 1};

    return gpu_launch_rows(c->l, c->state->f[SUM], a.tokens, &a);
}

static int run_codes(const struct ct_launch *l)
{
    struct codes_call c = codes_call(l, FORWARD);
    struct gpu_experts_rows rows = inner_rows(&c);
    int rc = begin_codes(&c);

    if (rc == 0)
        rc = gpu_launch_rows(l, c.state->f[LAYER], c.size.choices, &rows);
    if (rc == 0)
        rc = multiply_inner(&c, c.g, DOWN, false, false);
    return rc < 0 ? rc : sum_rows(&c, false);
}

/* dg over g, du over u, the hidden layer over dh. */
static int inner_gradients(const struct codes_call *c, float *dweights)
{
    struct gpu_experts_rows rows = inner_rows(c);
    struct gpu_codes dy;
    int rc = begin_codes(c);

    rows.dweights = dweights;
    rows.accumulate = c->l->accumulate >> 1 & 1;
    if (rc == 0)
        rc = encode_tokens(c, &c->l->in[0], &dy);
    if (rc == 0)
        rc = multiply(c, dy, true, DOWN, true, (struct result){c->dh, c->kind, 0, NULL});
    return rc < 0 ? rc : gpu_launch_rows(c->l, c->state->f[LAYER_GRAD], c->size.choices, &rows);
}

/* The sum of inner rows [choices, f] by expert, if there are biases. */
static int sum_bias(const struct codes_call *c, const void *x, int out)
{
    struct gpu_expert_rows rows = {x, c->size.f, c->kind, false};

    if (!bias_of(c, GATE_BIAS))
        return 0;
    return gpu_sum_experts(c->l, &c->state->choices, &c->all, rows, NULL, out);
}

/* Outputs 0 and 1, of which the second is there. */
static int tokens_gradients(const struct codes_call *c)
{
    int rc = multiply_inner(c, c->g, GATE, true, false);

    if (rc == 0)
        rc = multiply_inner(c, c->u, UP, true, true);
    return rc < 0 ? rc : sum_rows(c, true);
}

/* Outputs from `first` on. */
static int weights_gradients(const struct codes_call *c, int first)
{
    struct source x = {c->in[X].data, c->size.n, true, false};
    struct source dg = {c->g, c->size.f, false, false}, du = {c->u, c->size.f, false, false};
    struct source h = {c->dh, c->size.f, false, false};
    struct source dy = {c->l->in[0].data, c->size.n, true, true};
    struct gpu_codes right;
    int rc = sum_bias(c, c->g, first + 3);

    if (rc == 0)
        rc = sum_bias(c, c->u, first + 4);
    if (rc == 0)
        rc = encode_columns(c, &c->state->second, x, &right);
    if (rc == 0)
        rc = outer(c, first, dg, right, x.columns);
    if (rc == 0)
        rc = outer(c, first + 1, du, right, x.columns);
    if (rc == 0)
        rc = encode_columns(c, &c->state->second, h, &right);
    return rc < 0 ? rc : outer(c, first + 2, dy, right, h.columns);
}

static int run_gradients(const struct ct_launch *l, enum task task)
{
    bool tokens = task & TOKENS_GRADIENT;
    struct codes_call c = codes_call(l, task);
    int rc = inner_gradients(&c, tokens ? l->out[1].data : NULL);

    if (rc == 0 && task & WEIGHTS_GRADIENT)
        rc = weights_gradients(&c, tokens ? 2 : 0);
    return rc < 0 || !tokens ? rc : tokens_gradients(&c);
}

static int run_codes_dx(const struct ct_launch *l)
{
    return run_gradients(l, TOKENS_GRADIENT);
}

static int run_codes_dw(const struct ct_launch *l)
{
    return run_gradients(l, WEIGHTS_GRADIENT);
}

static int run_codes_grad(const struct ct_launch *l)
{
    return run_gradients(l, BOTH_GRADIENTS);
}

/* ---- kernels ---- */

#define TASK(name, task, which)                                                                    \
    static bool accept_##name##_##which(const struct ct_prepare *p)                                \
    {                                                                                              \
        return accept_##which(p, task);                                                            \
    }                                                                                              \
    static int prepare_##name##_##which(struct ct_prepare *p)                                      \
    {                                                                                              \
        return prepare_##which(p, task);                                                           \
    }
#define TASKS(which)                                                                               \
    TASK(codes, FORWARD, which)                                                                    \
    TASK(codes_dx, TOKENS_GRADIENT, which)                                                         \
    TASK(codes_dw, WEIGHTS_GRADIENT, which)                                                        \
    TASK(codes_grad, BOTH_GRADIENTS, which)
TASKS(wgmma)
TASKS(mma)

#define CODES_KERNEL(op, name, which)                                                              \
    CT_KERNEL(op, #which, CT_KERNEL_ACCUMULATES, accept_##name##_##which,                          \
              prepare_##name##_##which, run_##name)
#define CODES_KERNELS(which)                                                                       \
    CODES_KERNEL("float8.experts", codes, which),                                                  \
        CODES_KERNEL("float8.experts_dx", codes_dx, which),                                        \
        CODES_KERNEL("float8.experts_dw", codes_dw, which),                                        \
        CODES_KERNEL("float8.experts_grad", codes_grad, which)

const struct ct_kernel gpu_experts_float8_kernels[] = {
    CODES_KERNELS(wgmma), CODES_KERNELS(mma), {0}};
