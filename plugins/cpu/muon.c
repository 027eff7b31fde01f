/*
 * Muon's kernels. The iteration is matrix products through oneDNN or own kernels (gemm.h), of
 * float32 operands, or of operands rounded to bfloat16; what lies between them is float32.
 */
#include <math.h>
#include <string.h>

#include <ctitan/op_author.h>

#include "gemm.h"
#include "loops.h"

#define STEPS 5

static bool are_dense(const struct ct_tensor *t, int count)
{
    for (int i = 0; i < count; i++)
        if (!cpu_is_compute_dtype(t[i].dtype) || !ct_tensor_is_dense(&t[i]))
            return false;
    return true;
}

static char *element(const struct ct_tensor *t, int64_t i)
{
    return (char *)t->data + (size_t)i * ct_dtype_size(t->dtype);
}

/* ---- momentum and update ---- */

static bool accepts_momentum(const struct ct_prepare *p)
{
    return are_dense(p->in + 1, 2) && are_dense(p->out, 1);
}

static void run_momentum_part(void *context, int thread, int threads)
{
    const struct ct_launch *l = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(&l->in[1]), 64, thread, threads);
    double keep = ct_op_float(l->op, "momentum");
    float clip = *(const float *)l->in[0].data;

    cpu_loops()->momentum(l->in[1].dtype, element(&l->out[0], mine.begin),
                          element(&l->in[2], mine.begin), element(&l->in[1], mine.begin),
                          (float)keep, (float)(1 - keep), clip, mine.end - mine.begin);
}

static int run_momentum(const struct ct_launch *l)
{
    if (*(const float *)l->in[0].data >= 0)
        cpu_parallel(run_momentum_part, (void *)(uintptr_t)l);
    return 0;
}

static bool accepts_update(const struct ct_prepare *p)
{
    return are_dense(p->in + 2, 2);
}

static void run_update_part(void *context, int thread, int threads)
{
    const struct ct_launch *l = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(&l->in[2]), 64, thread, threads);
    double lr = *(const double *)l->in[0].data;
    double keep = 1 - lr * ct_op_float(l->op, "weight_decay");

    cpu_loops()->blend(l->in[2].dtype, element(&l->in[2], mine.begin), (float)keep, l->in[3].dtype,
                       element(&l->in[3], mine.begin), (float)(-lr * ct_op_float(l->op, "scale")),
                       mine.end - mine.begin);
}

static int run_update(const struct ct_launch *l)
{
    if (*(const float *)l->in[1].data >= 0)
        cpu_parallel(run_update_part, (void *)(uintptr_t)l);
    return 0;
}

/* ---- the iteration, on one matrix of a stack after the other ---- */

enum { SQUARE, FOURTH, STEP, PRODUCTS }; /* a = x x^T or x^T x, a a, and x += b x or x b */

struct state {
    int64_t rows, columns, less;
    bool tall; /* the products on the right of x are the smaller ones */
    enum ct_dtype operand;
    struct cpu_gemm *product[PRODUCTS];
    /* In the workspace: x, a and b in float32, and as operands of products. */
    size_t x, a, b, x_operand, a_operand, b_operand, squares, scratch;
};

static bool accepts_orthogonal(const struct ct_prepare *p)
{
    return are_dense(p->in, 1) && are_dense(p->out, 1);
}

static int prepare_products(struct state *s)
{
    struct cpu_gemm_spec spec = {.m = s->less,
                                 .n = s->less,
                                 .k = s->tall ? s->rows : s->columns,
                                 .a_type = s->operand,
                                 .b_type = s->operand,
                                 .c_type = CT_F32,
                                 .a_row = s->tall ? 1 : s->columns,
                                 .a_col = s->tall ? s->columns : 1,
                                 .b_row = s->tall ? s->columns : 1,
                                 .b_col = s->tall ? 1 : s->columns,
                                 .c_row = s->less};
    int rc = cpu_gemm_prepare(&spec, &s->product[SQUARE]);

    spec.k = spec.a_row = spec.b_row = s->less;
    spec.a_col = spec.b_col = 1;
    if (rc >= 0)
        rc = cpu_gemm_prepare(&spec, &s->product[FOURTH]);
    spec.m = s->rows;
    spec.n = spec.c_row = s->columns;
    spec.b_row = s->columns;
    spec.accumulate = true;
    return rc < 0 ? rc : cpu_gemm_prepare(&spec, &s->product[STEP]);
}

static int prepare_orthogonal(struct ct_prepare *p)
{
    const struct ct_tensor *in = &p->in[0];
    struct state *s = ct_arena_new(p->arena, struct state);
    size_t x, a, scratch = 0, size;
    int rc;

    s->rows = in->shape[in->ndim - 2];
    s->columns = in->shape[in->ndim - 1];
    s->tall = s->rows > s->columns;
    s->less = s->tall ? s->columns : s->rows;
    s->operand = ct_op_enum(p->op, "products") ? CT_BF16 : CT_F32;
    rc = prepare_products(s);
    if (rc < 0)
        return rc;
    x = (size_t)(s->rows * s->columns);
    a = (size_t)(s->less * s->less);
    size = ct_dtype_size(s->operand);
    s->x = cpu_carve(&p->workspace, x * sizeof(float));
    s->a = cpu_carve(&p->workspace, a * sizeof(float));
    s->b = cpu_carve(&p->workspace, a * sizeof(float));
    s->x_operand = cpu_carve(&p->workspace, x * size);
    s->a_operand = s->operand == CT_F32 ? s->a : cpu_carve(&p->workspace, a * size);
    s->b_operand = s->operand == CT_F32 ? s->b : cpu_carve(&p->workspace, a * size);
    s->squares = cpu_carve(&p->workspace, (size_t)s->rows * sizeof(double));
    for (int i = 0; i < PRODUCTS; i++) {
        size = cpu_gemm_workspace(s->product[i]);
        scratch = size > scratch ? size : scratch;
    }
    s->scratch = cpu_carve(&p->workspace, scratch);
    p->state = s;
    return 0;
}

struct call {
    const struct state *s;
    const struct ct_launch *l;
    int64_t first; /* element of the stack */
};

/* A loop over elements, each of its parts on a thread: to = of_to to + of_x x, or factor x. */
struct loop {
    enum ct_dtype to_type, x_type;
    void *to;
    const void *x;
    int64_t count;
    float of_to, of_x;
    bool blends;
};

static void run_loop_part(void *context, int thread, int threads)
{
    const struct loop *a = context;
    struct cpu_range mine = cpu_share(a->count, 64, thread, threads);
    int64_t n = mine.end - mine.begin;
    void *to = (char *)a->to + (size_t)mine.begin * ct_dtype_size(a->to_type);
    const void *x = (const char *)a->x + (size_t)mine.begin * ct_dtype_size(a->x_type);

    if (a->blends)
        cpu_loops()->blend(a->to_type, to, a->of_to, a->x_type, x, a->of_x, n);
    else
        cpu_loops()->scaled(a->to_type, to, a->x_type, x, a->of_x, n);
}

static void scale(enum ct_dtype to_type, void *to, enum ct_dtype x_type, const void *x,
                  float factor, int64_t count)
{
    struct loop a = {to_type, x_type, to, x, count, 0, factor, false};

    cpu_parallel(run_loop_part, &a);
}

static void *at(const struct call *c, size_t offset)
{
    return (char *)c->l->workspace + offset;
}

static void square_rows(void *context, int thread, int threads)
{
    const struct call *c = context;
    const struct ct_tensor *in = &c->l->in[0];
    struct cpu_range mine = cpu_share(c->s->rows, 1, thread, threads);
    double *squares = at(c, c->s->squares);

    for (int64_t r = mine.begin; r < mine.end; r++)
        squares[r] = cpu_loops()->squares(in->dtype, element(in, c->first + r * c->s->columns),
                                          (struct ct_matrix){1, c->s->columns, c->s->columns});
}

/* x = the matrix over its norm. */
static void normalise(struct call *c)
{
    const struct ct_tensor *in = &c->l->in[0];
    const double *squares = at(c, c->s->squares);
    double sum = 0;

    cpu_parallel(square_rows, c);
    for (int64_t r = 0; r < c->s->rows; r++)
        sum += squares[r];
    scale(CT_F32, at(c, c->s->x), in->dtype, element(in, c->first),
          (float)(1 / fmax(sqrt(sum), 1e-7)), c->s->rows * c->s->columns);
}

static int multiply(const struct call *c, int which, size_t a, size_t b, size_t to)
{
    return cpu_gemm_run(c->s->product[which], at(c, a), at(c, b), at(c, to), at(c, c->s->scratch));
}

/* b = -4.775 a + 2.0315 a a, of a = x x^T, or x^T x if that is smaller */
static int polynomial(const struct call *c)
{
    const struct state *s = c->s;
    int64_t count = s->less * s->less;
    struct loop sum = {CT_F32, CT_F32, at(c, s->b), at(c, s->a), count, 2.0315f, -4.775f, true};
    int rc = multiply(c, SQUARE, s->x_operand, s->x_operand, s->a);

    if (s->operand != CT_F32)
        scale(s->operand, at(c, s->a_operand), CT_F32, at(c, s->a), 1, count);
    if (rc >= 0)
        rc = multiply(c, FOURTH, s->a_operand, s->a_operand, s->b);
    cpu_parallel(run_loop_part, &sum);
    if (s->operand != CT_F32)
        scale(s->operand, at(c, s->b_operand), CT_F32, at(c, s->b), 1, count);
    return rc;
}

/* x = 3.4445 x + b x, or x b */
static int iterate(const struct call *c)
{
    const struct state *s = c->s;
    size_t left = s->tall ? s->x_operand : s->b_operand;
    size_t right = s->tall ? s->b_operand : s->x_operand;
    int64_t count = s->rows * s->columns;
    int rc;

    scale(s->operand, at(c, s->x_operand), CT_F32, at(c, s->x), 1, count);
    scale(CT_F32, at(c, s->x), CT_F32, at(c, s->x), 3.4445f, count);
    rc = polynomial(c);
    return rc < 0 ? rc : multiply(c, STEP, left, right, s->x);
}

static int run_orthogonal(const struct ct_launch *l)
{
    const struct ct_tensor *out = &l->out[0];
    struct call c = {l->state, l, 0};
    int64_t count = c.s->rows * c.s->columns;
    int rc = 0;

    for (; rc >= 0 && c.first < ct_tensor_count(out); c.first += count) {
        normalise(&c);
        for (int i = 0; rc >= 0 && i < STEPS; i++)
            rc = iterate(&c);
        scale(out->dtype, element(out, c.first), CT_F32, at(&c, c.s->x), 1, count);
    }
    return rc;
}

const struct ct_kernel cpu_muon_kernels[] = {
    CT_KERNEL("muon.momentum", "vector", 0, accepts_momentum, NULL, run_momentum),
    CT_KERNEL("muon.orthogonal", "products", 0, accepts_orthogonal, prepare_orthogonal,
              run_orthogonal),
    CT_KERNEL("muon.update", "vector", 0, accepts_update, NULL, run_update),
    {0}};
