/*
 * experts and their gradients by own kernels (products/).
 *
 * One expert after the other: its weights are packed, and up to ROWS of its rows are multiplied at
 * a time, each product by all threads. g, u and dh stay float32; where bfloat16 is multiplied, h,
 * dg and du are rounded to it for the products that read them. Where it is widened, rows and
 * weights are when they are gathered and packed. Sums run in the order of the choices.
 *
 * Packing costs as much as some rows' products. A call of few choices, as decoding has, multiplies
 * with weights as they lie (loops_rows.c) in the products of the forward: gate, up and down. That
 * the shape decides, and not how many rows an expert has, keeps a row's bits those of its call.
 */
#include <string.h>

#include <ctitan/lib/ops.h>

#include "experts.h"
#include "products/product.h"

#define ROWS 512
/* Choices of a call, below which the packing of weights does not pay, by the unit's dtype. */
#define FEW_F32 48
#define FEW_BF16 16

enum { GATE, DOWN, DH, DX, DW, DDOWN, PRODUCTS };

/* Packings of an expert's weights. */
enum { P_GATE, P_UP, P_DOWN, P_GATE_BACK, P_UP_BACK, PACKINGS };

struct state {
    struct experts_sizes sizes;
    int threads;
    bool few; /* choices, so that weights of the forward are not packed */
    const struct cpu_unit *unit;
    /* In the workspace. [ROWS][n]: x and dy in the unit's dtype, rows; [ROWS][f]: g, u and dh, and
       in the unit's dtype a (h or dg) and b (du). [f]: an expert's biases. */
    size_t x, dy, rows, g, u, dh, a, b, bias[2], packed[PACKINGS], gradient[GRADIENTS], scratch;
};

struct call {
    const struct state *s;
    const struct ct_launch *l;
    struct experts_choices choices;
    const struct ct_tensor *in;  /* of experts */
    int64_t expert, from, count; /* the rows at work */
    float *sums, *dweights;
    bool gradient; /* dy is wanted, too */
    bool kept;     /* g and u are kept, or were */
};

/* ---- products ---- */

static struct cpu_gemm_spec spec_of(const struct state *state, int which, int64_t rows)
{
    const struct experts_sizes *s = &state->sizes;
    bool gradient = which == DW || which == DDOWN;
    bool to_f = which == GATE || which == DH || which == DDOWN;
    int64_t columns = to_f ? s->f : s->n, other = to_f ? s->n : s->f;
    struct cpu_gemm_spec spec = {.m = gradient ? other : rows,
                                 .n = columns,
                                 .k = gradient ? rows : other,
                                 .a_type = state->unit->dtype,
                                 .b_type = state->unit->dtype,
                                 .c_type = CT_F32,
                                 .a_row = gradient ? 1 : other,
                                 .a_col = gradient ? other : 1,
                                 .b_row = gradient ? columns : 0,
                                 .b_col = gradient ? 1 : 0,
                                 .c_row = columns,
                                 .b_use =
                                     which == GATE || which == DOWN ? CPU_FORWARD : CPU_BACKWARD};

    return spec;
}

/* The largest of all numbers of rows, and of these products. */
static size_t scratch_bytes(const struct state *s, int first, int end)
{
    size_t most = 0;

    for (int which = first; which < end; which++)
        for (int64_t rows = CPU_PANEL; rows <= ROWS; rows += CPU_PANEL) {
            struct cpu_gemm_spec spec = spec_of(s, which, rows);
            struct cpu_product product;
            size_t bytes;

            cpu_product_plan(s->unit, &spec, s->threads, &product);
            bytes = cpu_product_workspace(&product);
            most = bytes > most ? bytes : most;
            if (which != DW)
                continue;
            bytes = cpu_gradients_workspace(
                s->unit, s->threads, (struct cpu_gradient[]){{.spec = spec}, {.spec = spec}}, 2);
            most = bytes > most ? bytes : most;
        }
    return most;
}

static int prepare_experts(struct ct_prepare *p)
{
    struct state *s = ct_arena_new(p->arena, struct state);
    size_t *size = &p->workspace, n, f;
    bool gradient = cpu_experts_is_gradient(p->op), sums = cpu_experts_sums_tokens(p->op);
    bool kept = cpu_experts_keeps(p->op);
    size_t bytes;

    s->sizes = cpu_experts_sizes(p);
    s->threads = cpu_threads();
    s->unit = cpu_own_unit(cpu_packed_type(p->in[cpu_experts_x(p->op)].dtype));
    s->few = s->sizes.tokens * s->sizes.k < (s->unit->dtype == CT_F32 ? FEW_F32 : FEW_BF16);
    bytes = ct_dtype_size(s->unit->dtype);
    n = ROWS * (size_t)s->sizes.n;
    f = ROWS * (size_t)s->sizes.f;
    s->x = cpu_carve(size, n * bytes);
    s->dy = cpu_carve(size, gradient ? n * bytes : 0);
    s->rows = cpu_carve(size, sums ? n * sizeof(float) : 0);
    s->g = cpu_carve(size, kept ? 0 : f * sizeof(float));
    s->u = cpu_carve(size, kept ? 0 : f * sizeof(float));
    s->dh = cpu_carve(size, gradient ? f * sizeof(float) : 0);
    s->a = cpu_carve(size, f * bytes);
    s->b = cpu_carve(size, gradient ? f * bytes : 0);
    for (int i = 0; i < 2; i++)
        s->bias[i] = cpu_carve(size, s->sizes.biased ? (size_t)s->sizes.f * sizeof(float) : 0);
    for (int i = 0; i < PACKINGS; i++) {
        int64_t rows = i == P_DOWN ? s->sizes.n : s->sizes.f;
        int64_t columns = i == P_DOWN ? s->sizes.f : s->sizes.n;
        bool back = i > P_DOWN || (i == P_DOWN && gradient);

        s->packed[i] =
            cpu_carve(size, i <= P_DOWN || (gradient && sums)
                                ? cpu_product_packed_bytes(back ? CPU_BACKWARD : CPU_FORWARD, rows,
                                                           columns, s->unit->dtype)
                                : 0);
    }
    for (int i = 0; i < GRADIENTS; i++)
        s->gradient[i] = cpu_carve(size, cpu_experts_buffer_bytes(p, i));
    s->scratch = cpu_carve(size, scratch_bytes(s, GATE, PRODUCTS));
    p->state = s;
    return 0;
}

static void *at(const struct call *c, size_t offset)
{
    return (char *)c->l->workspace + offset;
}

/* g of the rows at work, or u: in the workspace, or where they are kept. */
static float *half(const struct call *c, bool other)
{
    return c->kept ? cpu_experts_kept(c->l, &c->s->sizes, other, c->from)
                   : at(c, other ? c->s->u : c->s->g);
}

static void multiply(const struct call *c, int which, const void *a, const void *b, void *to,
                     bool add)
{
    struct cpu_gemm_spec spec = spec_of(c->s, which, c->count);
    struct cpu_product product;

    spec.accumulate = add;
    cpu_product_plan(c->s->unit, &spec, c->s->threads, &product);
    cpu_product_run(&product, a, b, to, at(c, c->s->scratch));
}

static const void *weight(const struct call *c, int input)
{
    const struct ct_tensor *w = &c->in[input];

    return (const char *)w->data +
           c->expert * w->shape[1] * w->shape[2] * (int64_t)ct_dtype_size(w->dtype);
}

static void pack(const struct call *c, int packing, int input, enum cpu_use use)
{
    const struct ct_tensor *w = &c->in[input];
    int64_t rows = w->shape[1], columns = w->shape[2];
    struct cpu_packed_from from = {w->dtype, weight(c, input), columns, rows, columns};
    struct cpu_packed_to to = {use, cpu_product_lines(use, rows, columns, c->s->unit->dtype),
                               at(c, c->s->packed[packing])};

    to.lines.stream = c->s->threads > 1; /* all threads read it: see gradient.c */
    cpu_pack_stack(&to, 1, &from, 1);
}

struct few {
    const struct cpu_few_rows *gemm;
    int64_t columns;
};

static void multiply_columns(void *context, int thread, int threads)
{
    const struct few *few = context;
    struct cpu_range mine = cpu_share(few->columns, 4, thread, threads);

    cpu_loops()->multiply_few(few->gemm, mine.begin, mine.end);
}

/* to = a w^T, of the rows at work, by a weight that is packed unless choices are few. */
static void project(const struct call *c, int which, const void *a, int packing, int input,
                    float *to)
{
    const struct ct_tensor *w = &c->in[input];
    struct cpu_few_rows gemm = {.a_type = c->s->unit->dtype,
                                .b_type = w->dtype,
                                .rows = c->count,
                                .k = w->shape[2],
                                .a = a,
                                .b = weight(c, input),
                                .c = to,
                                .c_row = w->shape[1]};

    if (c->s->few)
        cpu_parallel(multiply_columns, &(struct few){&gemm, w->shape[1]});
    else
        multiply(c, which, a, at(c, c->s->packed[packing]), to, false);
}

/* ---- rows ---- */

static struct cpu_range share(const struct call *c, int thread, int threads)
{
    return cpu_share(c->count, 1, thread, threads);
}

/* Element i of a buffer in the unit's dtype. */
static void *element(const struct call *c, size_t offset, int64_t i)
{
    return (char *)at(c, offset) + i * (int64_t)ct_dtype_size(c->s->unit->dtype);
}

/* x, and dy if it is wanted, of the choices' tokens. */
static void gather(void *context, int thread, int threads)
{
    const struct call *c = context;
    struct cpu_range mine = share(c, thread, threads);
    int64_t n = c->s->sizes.n;

    for (int64_t r = mine.begin; r < mine.end; r++) {
        int64_t token = c->choices.order[c->from + r] / c->s->sizes.k;

        cpu_experts_copy(&c->in[0], token * n, n, c->s->unit->dtype, element(c, c->s->x, r * n));
        if (c->gradient)
            cpu_experts_copy(&c->in[-1], token * n, n, c->s->unit->dtype,
                             element(c, c->s->dy, r * n));
    }
}

/* h, times the choices' weights where y's rows are not. */
static void hidden(void *context, int thread, int threads)
{
    const struct call *c = context;
    struct cpu_range mine = share(c, thread, threads);
    const float *g = half(c, false), *u = half(c, true);

    for (int64_t r = mine.begin; r < mine.end; r++) {
        float factor = c->gradient ? c->choices.weights[c->choices.order[c->from + r]] : 1;
        int64_t f = r * c->s->sizes.f;

        cpu_loops()->gated(c->s->unit->dtype, element(c, c->s->a, f), g + f, u + f,
                           c->s->sizes.gate, factor, c->s->sizes.f);
    }
}

/* dg and du, and the gradients of the choices' weights if they are wanted. */
static void hidden_gradients(void *context, int thread, int threads)
{
    const struct call *c = context;
    struct cpu_range mine = share(c, thread, threads);
    const float *g = half(c, false), *u = half(c, true), *dh = at(c, c->s->dh);

    for (int64_t r = mine.begin; r < mine.end; r++) {
        int64_t choice = c->choices.order[c->from + r], f = r * c->s->sizes.f;
        float dot = cpu_loops()->gated_grad(
            c->s->unit->dtype, element(c, c->s->a, f), element(c, c->s->b, f), dh + f, g + f, u + f,
            c->s->sizes.gate, c->choices.weights[choice], c->s->sizes.f);

        if (c->dweights)
            c->dweights[choice] += dot;
    }
}

/* Some columns of the rows, to the sums of their tokens. */
static void add_rows(void *context, int thread, int threads)
{
    const struct call *c = context;
    struct cpu_range mine = cpu_share(c->s->sizes.n, 16, thread, threads);

    cpu_experts_add(&c->choices, c->from, c->count, at(c, c->s->rows), !c->gradient, mine, c->sums);
}

/* The expert's biases, to the rows of g and u. */
static void add_biases(void *context, int thread, int threads)
{
    const struct call *c = context;
    struct cpu_range mine = share(c, thread, threads);
    int64_t f = c->s->sizes.f;

    for (int64_t r = mine.begin; r < mine.end; r++) {
        cpu_loops()->add_scaled(half(c, false) + r * f, CT_F32, at(c, c->s->bias[0]), 1, f);
        cpu_loops()->add_scaled(half(c, true) + r * f, CT_F32, at(c, c->s->bias[1]), 1, f);
    }
}

static void gate_and_up(struct call *c)
{
    cpu_parallel(gather, c);
    if (c->gradient && c->kept)
        return;
    project(c, GATE, at(c, c->s->x), P_GATE, W_GATE, half(c, false));
    project(c, GATE, at(c, c->s->x), P_UP, W_UP, half(c, true));
    if (c->s->sizes.biased)
        cpu_parallel(add_biases, c);
}

/* ---- experts ---- */

static int begin(const struct ct_launch *l, struct call *c)
{
    const struct state *s = l->state;

    *c = (struct call){.s = s,
                       .l = l,
                       .in = l->in + cpu_experts_x(l->op),
                       .gradient = cpu_experts_is_gradient(l->op),
                       .kept = cpu_experts_keeps(l->op)};
    if (cpu_experts_sums_tokens(l->op))
        c->sums = cpu_experts_sums(l, &s->sizes);
    if (c->gradient && c->sums)
        c->dweights = cpu_experts_dweights(l);
    return cpu_experts_sort(l, &s->sizes, &c->choices);
}

static void load_bias(const struct call *c, int i, int input)
{
    int64_t f = c->s->sizes.f;

    cpu_experts_copy(&c->in[input], c->expert * f, f, CT_F32, at(c, c->s->bias[i]));
}

static void pack_weights(const struct call *c)
{
    if (!c->s->few && !(c->gradient && c->kept)) {
        pack(c, P_GATE, W_GATE, CPU_FORWARD);
        pack(c, P_UP, W_UP, CPU_FORWARD);
    }
    if (c->gradient)
        pack(c, P_DOWN, W_DOWN, CPU_BACKWARD);
    else if (!c->s->few)
        pack(c, P_DOWN, W_DOWN, CPU_FORWARD);
    if (c->gradient && c->sums) {
        pack(c, P_GATE_BACK, W_GATE, CPU_BACKWARD);
        pack(c, P_UP_BACK, W_UP, CPU_BACKWARD);
    }
}

/* Does the expert have rows? Then its weights are packed, and its biases loaded. */
static bool begin_expert(struct call *c, int64_t expert)
{
    c->expert = expert;
    c->from = c->choices.first[expert];
    if (c->from == c->choices.first[expert + 1])
        return false;
    pack_weights(c);
    if (c->s->sizes.biased) {
        load_bias(c, 0, B_GATE);
        load_bias(c, 1, B_UP);
    }
    return true;
}

/* The expert's next rows, after those at work: in equal parts. */
static bool next_rows(struct call *c)
{
    int64_t first = c->choices.first[c->expert], end = c->choices.first[c->expert + 1];
    int64_t rows = end - first, parts = (rows + ROWS - 1) / ROWS, left;
    int64_t part = ((rows + parts - 1) / parts + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;

    c->from += c->count;
    left = end - c->from;
    c->count = left < part ? left : part;
    return left > 0;
}

static int run_forward(const struct ct_launch *l)
{
    struct call c;
    int rc = begin(l, &c);

    if (rc < 0)
        return rc;
    for (int64_t e = 0; e < c.s->sizes.count; e++)
        if (begin_expert(&c, e))
            for (c.count = 0; next_rows(&c);) {
                gate_and_up(&c);
                cpu_parallel(hidden, &c);
                project(&c, DOWN, at(&c, c.s->a), P_DOWN, W_DOWN, at(&c, c.s->rows));
                cpu_parallel(add_rows, &c);
            }
    cpu_experts_store(l, &c.s->sizes);
    return 0;
}

/* g, u and dh of the rows at work. */
static void begin_rows(struct call *c)
{
    gate_and_up(c);
    multiply(c, DH, at(c, c->s->dy), at(c, c->s->packed[P_DOWN]), at(c, c->s->dh), false);
}

/* The rows' gradients of tokens, from dg and du. */
static void add_tokens(struct call *c)
{
    multiply(c, DX, at(c, c->s->a), at(c, c->s->packed[P_GATE_BACK]), at(c, c->s->rows), false);
    multiply(c, DX, at(c, c->s->b), at(c, c->s->packed[P_UP_BACK]), at(c, c->s->rows), true);
    cpu_parallel(add_rows, c);
}

static int run_dx(const struct ct_launch *l)
{
    struct call c;
    int rc = begin(l, &c);

    if (rc < 0)
        return rc;
    for (int64_t e = 0; e < c.s->sizes.count; e++)
        if (begin_expert(&c, e))
            for (c.count = 0; next_rows(&c);) {
                begin_rows(&c);
                cpu_parallel(hidden_gradients, &c);
                add_tokens(&c);
            }
    cpu_experts_store(l, &c.s->sizes);
    return 0;
}

static float *gradient(const struct call *c, int i)
{
    return cpu_experts_gradient(c->l, i, c->expert, at(c, c->s->gradient[i]));
}

/* Over the rows at work. */
static bool adds_to_gradient(const struct call *c, int i)
{
    return c->from > c->choices.first[c->expert] || cpu_experts_continues(c->l, i);
}

/* The gate's and the up projection's, which read the same tokens. */
static void add_gate_and_up(const struct call *c)
{
    struct cpu_gemm_spec spec = spec_of(c->s, DW, c->count);
    struct cpu_gradient both[] = {{spec, at(c, c->s->a), gradient(c, D_GATE)},
                                  {spec, at(c, c->s->b), gradient(c, D_UP)}};

    both[0].spec.accumulate = adds_to_gradient(c, D_GATE);
    both[1].spec.accumulate = adds_to_gradient(c, D_UP);
    cpu_gradients_run(c->s->unit, c->s->threads, both, 2, at(c, c->s->x), at(c, c->s->scratch));
}

/* Some columns of dg and du, to the gradients of the biases. */
static void add_to_biases(void *context, int thread, int threads)
{
    const struct call *c = context;
    int64_t f = c->s->sizes.f;
    struct cpu_range mine = cpu_share(f, 32, thread, threads);

    for (int64_t r = 0; r < c->count; r++) {
        cpu_loops()->add_scaled(gradient(c, D_GATE_BIAS) + mine.begin, c->s->unit->dtype,
                                element(c, c->s->a, r * f + mine.begin), 1, mine.end - mine.begin);
        cpu_loops()->add_scaled(gradient(c, D_UP_BIAS) + mine.begin, c->s->unit->dtype,
                                element(c, c->s->b, r * f + mine.begin), 1, mine.end - mine.begin);
    }
}

/* The gradients of the weights of the expert, which has rows; those of its tokens if they are
   wanted. */
static void sum_expert(struct call *c)
{
    const struct state *s = c->s;
    int gradients = s->sizes.biased ? GRADIENTS : D_GATE_BIAS;

    for (int i = D_GATE_BIAS; i < gradients; i++)
        cpu_experts_begin_sum(c->l, i, c->expert, at(c, s->gradient[i]));
    for (c->count = 0; next_rows(c);) {
        begin_rows(c);
        cpu_parallel(hidden, c);
        multiply(c, DDOWN, at(c, s->dy), at(c, s->a), gradient(c, D_DOWN),
                 adds_to_gradient(c, D_DOWN));
        cpu_parallel(hidden_gradients, c);
        add_gate_and_up(c);
        if (s->sizes.biased)
            cpu_parallel(add_to_biases, c);
        if (c->sums)
            add_tokens(c);
    }
    for (int i = 0; i < gradients; i++)
        cpu_experts_end_sum(c->l, i, c->expert, at(c, s->gradient[i]));
}

static int run_weights(const struct ct_launch *l)
{
    struct call c;
    int rc = begin(l, &c);

    if (rc < 0)
        return rc;
    for (int64_t e = 0; e < c.s->sizes.count; e++)
        if (begin_expert(&c, e))
            sum_expert(&c);
        else
            cpu_experts_clear(l, e);
    if (c.sums)
        cpu_experts_store(l, &c.s->sizes);
    return 0;
}

const struct ct_kernel cpu_experts_kernels[] = {
    CT_KERNEL("experts", "unit", 0, cpu_experts_accept, prepare_experts, run_forward),
    CT_KERNEL("experts_kept", "unit", 0, cpu_experts_accept, prepare_experts, run_forward),
    CT_KERNEL("experts_dx", "unit", 0, cpu_experts_accept, prepare_experts, run_dx),
    CT_KERNEL("experts_dw", "unit", CT_KERNEL_ACCUMULATES, cpu_experts_accept, prepare_experts,
              run_weights),
    CT_KERNEL("experts_grad", "unit", CT_KERNEL_ACCUMULATES, cpu_experts_accept, prepare_experts,
              run_weights),
    CT_KERNEL("experts_kept_grad", "unit", CT_KERNEL_ACCUMULATES, cpu_experts_accept,
              prepare_experts, run_weights),
    {0},
};
