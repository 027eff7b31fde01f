/*
 * Muon, descent by the sign, and the moving average of weights. The iteration of Muon is matrix
 * products of float32 (TF32 with [cuda] tf32), or of operands rounded to bfloat16, with float32
 * sums: with A = x x^T, x becomes 3.4445 x + (-4.775 A + 2.0315 A A) x, five times.
 */
#include "blas.h"

#define THREADS 256
#define STEPS 5

/* A block for each GPU_GRAIN elements. */
static int over_elements(const struct ct_launch *l, struct ct_cuda_function *f, int64_t count,
                         const void *arguments)
{
    return ct_cuda_launch(l, f,
                          (struct ct_cuda_size){(unsigned)ct_cuda_blocks(count, GPU_GRAIN), 1, 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, arguments);
}

/* All operands but the first `scalars` are dense float32 or bfloat16. */
static bool are_compute(const struct ct_prepare *p, int scalars)
{
    for (int i = scalars; i < p->ins; i++)
        if (!ct_cuda_computes(p->in[i].dtype) || !ct_tensor_is_dense(&p->in[i]))
            return false;
    for (int i = 0; i < p->outs; i++)
        if (!ct_cuda_computes(p->out[i].dtype) || !ct_tensor_is_dense(&p->out[i]))
            return false;
    return true;
}

/* ---- the moving average ---- */

enum { STEP, PARAM, AVERAGE };

static bool accepts_average(const struct ct_prepare *p)
{
    return are_compute(p, PARAM) && p->in[AVERAGE].dtype == CT_F32 && p->in[STEP].dtype == CT_F64;
}

static int prepare_average(struct ct_prepare *p)
{
    return gpu_prepare(p, "moving_average");
}

static int run_average(const struct ct_launch *l)
{
    struct gpu_average a = {.average = l->in[AVERAGE].data,
                            .p = l->in[PARAM].data,
                            .step = l->in[STEP].data,
                            .count = ct_tensor_count(&l->in[PARAM]),
                            .decay = ct_op_float(l->op, "decay"),
                            .kind = ct_cuda_float_of(l->in[PARAM].dtype)};

    return over_elements(l, ct_cuda_function(l, 0), a.count, &a);
}

/* ---- descent by the sign ---- */

static bool accepts_sign(const struct ct_prepare *p)
{
    return are_compute(p, 1) && p->in[0].dtype == CT_F32;
}

static int prepare_sign(struct ct_prepare *p)
{
    return gpu_prepare(p, "sign_step");
}

static int run_sign(const struct ct_launch *l)
{
    int rc = 0;

    for (int i = 1; rc >= 0 && i < l->ins; i += 2) {
        struct gpu_sign_step a = {
            .p = l->in[i].data,
            .g = l->in[i + 1].data,
            .clip = l->in[0].data,
            .count = ct_tensor_count(&l->in[i]),
            .kind = {ct_cuda_float_of(l->in[i].dtype), ct_cuda_float_of(l->in[i + 1].dtype)},
            .rate = (float)ct_op_float(l->op, "rate")};

        rc = over_elements(l, ct_cuda_function(l, 0), a.count, &a);
    }
    return rc;
}

/* ---- momentum and update ---- */

static bool accepts_momentum(const struct ct_prepare *p)
{
    return are_compute(p, 1) && p->in[0].dtype == CT_F32;
}

static int prepare_momentum(struct ct_prepare *p)
{
    return gpu_prepare(p, "muon_momentum");
}

static int run_momentum(const struct ct_launch *l)
{
    double keep = ct_op_float(l->op, "momentum");
    struct gpu_muon a = {.y = l->out[0].data,
                         .m = l->in[2].data,
                         .x = l->in[1].data,
                         .clip = l->in[0].data,
                         .count = ct_tensor_count(&l->in[1]),
                         .kind = {ct_cuda_float_of(l->out[0].dtype),
                                  ct_cuda_float_of(l->in[1].dtype),
                                  ct_cuda_float_of(l->in[2].dtype)},
                         .keep = (float)keep,
                         .rest = (float)(1 - keep)};

    return over_elements(l, ct_cuda_function(l, 0), a.count, &a);
}

static bool accepts_update(const struct ct_prepare *p)
{
    return are_compute(p, 2) && p->in[0].dtype == CT_F64 && p->in[1].dtype == CT_F32;
}

static int prepare_update(struct ct_prepare *p)
{
    return gpu_prepare(p, "muon_update");
}

static int run_update(const struct ct_launch *l)
{
    struct gpu_muon a = {
        .m = l->in[2].data,
        .x = l->in[3].data,
        .lr = l->in[0].data,
        .clip = l->in[1].data,
        .count = ct_tensor_count(&l->in[2]),
        .kind = {0, ct_cuda_float_of(l->in[3].dtype), ct_cuda_float_of(l->in[2].dtype)},
        .keep = (float)ct_op_float(l->op, "scale"),
        .rest = (float)ct_op_float(l->op, "weight_decay")};

    return over_elements(l, ct_cuda_function(l, 0), a.count, &a);
}

/* ---- the iteration, on one matrix of a stack after the other ---- */

enum { SQUARES, ADD, NORMALISE, SCALE, POLYNOMIAL, FUNCTIONS };

struct state {
    struct ct_cuda_function *f[FUNCTIONS];
    enum ct_dtype operand;
    /* Offsets in the workspace, behind that of products: x, a and b in float32, and as operands. */
    size_t sums, squares, x, a, b, x_operand, a_operand, b_operand;
};

struct matrix {
    const struct ct_launch *l;
    const struct state *at;
    int64_t rows, columns, less; /* less: the smaller of both */
};

static void *matrix_at(const struct matrix *m, size_t offset)
{
    return (char *)m->l->workspace + offset;
}

static bool accepts_orthogonal(const struct ct_prepare *p)
{
    return are_compute(p, 0) && p->in[0].ndim >= 2;
}

static int prepare_orthogonal(struct ct_prepare *p)
{
    struct state *s = ct_arena_new(p->arena, struct state);
    int64_t rows = p->in[0].shape[p->in[0].ndim - 2], columns = p->in[0].shape[p->in[0].ndim - 1];
    int64_t less = rows < columns ? rows : columns;
    size_t x = (size_t)(rows * columns), a = (size_t)(less * less), size;

    s->operand = ct_op_enum(p->op, "products") ? CT_BF16 : CT_F32;
    size = ct_dtype_size(s->operand);
    p->workspace = GPU_BLAS_WORKSPACE;
    s->squares = ct_cuda_carve(&p->workspace, sizeof(double));
    s->sums = ct_cuda_carve(&p->workspace,
                            (size_t)ct_cuda_blocks(rows * columns, GPU_GRAIN) * sizeof(double));
    s->x = ct_cuda_carve(&p->workspace, x * sizeof(float));
    s->a = ct_cuda_carve(&p->workspace, a * sizeof(float));
    s->b = ct_cuda_carve(&p->workspace, a * sizeof(float));
    s->x_operand = ct_cuda_carve(&p->workspace, x * size);
    s->a_operand = s->operand == CT_F32 ? s->a : ct_cuda_carve(&p->workspace, a * size);
    s->b_operand = s->operand == CT_F32 ? s->b : ct_cuda_carve(&p->workspace, a * size);
    p->state = s;
    return gpu_find(p, s->f, "sum_squares", "add_doubles", "muon_normalise", "muon_scale",
                    "muon_polynomial");
}

/* x = from / its norm, in float32 */
static int normalise(const struct matrix *m, const void *from, enum ct_dtype dtype)
{
    int64_t count = m->rows * m->columns;
    struct gpu_squares squares = {.sums = matrix_at(m, m->at->sums), .tensors = 1};
    struct gpu_add_doubles add = {.out = matrix_at(m, m->at->squares),
                                  .in = squares.sums,
                                  .count = ct_cuda_blocks(count, GPU_GRAIN)};
    struct gpu_muon a = {.y = matrix_at(m, m->at->x),
                         .x = from,
                         .squares = add.out,
                         .count = count,
                         .kind = {CT_CUDA_F32, ct_cuda_float_of(dtype), 0}};
    int rc;

    squares.tensor[0] = from;
    squares.count[0] = count;
    squares.kind[0] = (uint8_t)ct_cuda_float_of(dtype);
    squares.first_block[1] = (int32_t)add.count;
    rc = over_elements(m->l, m->at->f[SQUARES], count, &squares);
    if (rc == 0)
        rc = ct_cuda_launch(m->l, m->at->f[ADD], (struct ct_cuda_size){1, 1, 1},
                            (struct ct_cuda_size){1024, 1, 1}, 0, &add);
    return rc < 0 ? rc : over_elements(m->l, m->at->f[NORMALISE], count, &a);
}

/* to = factor x; x is float32. */
static int scale(const struct matrix *m, size_t x, float factor, int64_t count, enum ct_dtype dtype,
                 void *to)
{
    struct gpu_muon a = {.y = to,
                         .x = matrix_at(m, x),
                         .count = count,
                         .kind = {ct_cuda_float_of(dtype), CT_CUDA_F32, 0},
                         .keep = factor};

    return over_elements(m->l, m->at->f[SCALE], count, &a);
}

/* Multiplies two operands; the result is float32. */
static int multiply(const struct matrix *m, struct gpu_product p, size_t a, size_t b, size_t c)
{
    p.a = matrix_at(m, a);
    p.b = matrix_at(m, b);
    p.c = matrix_at(m, c);
    p.a_dtype = p.b_dtype = m->at->operand;
    p.c_dtype = CT_F32;
    p.c_stride = p.n;
    return gpu_multiply(m->l, &p, m->l->workspace);
}

/* b = -4.775 a + 2.0315 a a, of a = x x^T, or x^T x if that is smaller */
static int polynomial(const struct matrix *m)
{
    const struct state *s = m->at;
    bool tall = m->rows > m->columns;
    int64_t count = m->less * m->less;
    struct gpu_muon_polynomial sum = {.to = matrix_at(m, s->b_operand),
                                      .x = matrix_at(m, s->a),
                                      .y = matrix_at(m, s->b),
                                      .count = count,
                                      .of_x = -4.775f,
                                      .of_y = 2.0315f,
                                      .kind = ct_cuda_float_of(s->operand)};
    struct gpu_product square = {.m = m->less,
                                 .n = m->less,
                                 .k = tall ? m->rows : m->columns,
                                 .a_stride = m->columns,
                                 .b_stride = m->columns,
                                 .a_by_k = tall,
                                 .b_by_k = tall};
    struct gpu_product fourth = {
        .m = m->less, .n = m->less, .k = m->less, .a_stride = m->less, .b_stride = m->less};
    int rc = multiply(m, square, s->x_operand, s->x_operand, s->a);

    if (rc == 0 && s->operand != CT_F32)
        rc = scale(m, s->a, 1, count, s->operand, matrix_at(m, s->a_operand));
    if (rc == 0)
        rc = multiply(m, fourth, s->a_operand, s->a_operand, s->b);
    return rc < 0 ? rc
                  : ct_cuda_launch(
                        m->l, s->f[POLYNOMIAL],
                        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(count, 4 * THREADS), 1, 1},
                        (struct ct_cuda_size){THREADS, 1, 1}, 0, &sum);
}

/* x = 3.4445 x + b x, or x b; b is symmetric */
static int step(const struct matrix *m)
{
    const struct state *s = m->at;
    bool tall = m->rows > m->columns;
    int64_t count = m->rows * m->columns;
    struct gpu_product p = {.m = m->rows,
                            .n = m->columns,
                            .k = m->less,
                            .a_stride = m->less,
                            .b_stride = tall ? m->less : m->columns,
                            .b_by_k = !tall,
                            .accumulate = true};
    int rc = scale(m, s->x, 1, count, s->operand, matrix_at(m, s->x_operand));

    if (rc == 0)
        rc = scale(m, s->x, 3.4445f, count, CT_F32, matrix_at(m, s->x));
    if (rc == 0)
        rc = polynomial(m);
    if (rc < 0)
        return rc;
    return tall ? multiply(m, p, s->x_operand, s->b_operand, s->x)
                : multiply(m, p, s->b_operand, s->x_operand, s->x);
}

static int run_orthogonal(const struct ct_launch *l)
{
    const struct ct_tensor *in = &l->in[0], *out = &l->out[0];
    struct matrix m = {l, l->state, in->shape[in->ndim - 2], in->shape[in->ndim - 1], 0};
    int64_t count = m.rows * m.columns;
    int rc = 0;

    m.less = m.rows < m.columns ? m.rows : m.columns;
    for (int64_t first = 0; rc == 0 && first < ct_tensor_count(in); first += count) {
        rc = normalise(&m, (const char *)in->data + (size_t)first * ct_dtype_size(in->dtype),
                       in->dtype);
        for (int i = 0; rc == 0 && i < STEPS; i++)
            rc = step(&m);
        if (rc == 0)
            rc = scale(&m, m.at->x, 1, count, out->dtype,
                       (char *)out->data + (size_t)first * ct_dtype_size(out->dtype));
    }
    return rc;
}

const struct ct_kernel gpu_muon_kernels[] = {
    CT_KERNEL("ema", "vector", 0, accepts_average, prepare_average, run_average),
    CT_KERNEL("sign_step", "vector", 0, accepts_sign, prepare_sign, run_sign),
    CT_KERNEL("muon.momentum", "vector", 0, accepts_momentum, prepare_momentum, run_momentum),
    CT_KERNEL("muon.orthogonal", "cublaslt", 0, accepts_orthogonal, prepare_orthogonal,
              run_orthogonal),
    CT_KERNEL("muon.update", "vector", 0, accepts_update, prepare_update, run_update),
    {0}};
