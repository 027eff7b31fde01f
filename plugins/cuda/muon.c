/*
 * Muon and the moving average of weights. The iteration of Muon is matrix products in float32 (TF32
 * with [cuda] tf32): with A = x x^T, x becomes (3.4445 I - 4.775 A + 2.0315 A A) x, five times.
 */
#include "blas.h"

#define THREADS 256
#define STEPS 5

/* A block for each GPU_GRAIN elements. */
static int over_elements(const struct ct_launch *l, const char *name, int64_t count,
                         const void *arguments)
{
    return gpu_launch(l, name, (struct gpu_size){(unsigned)gpu_blocks(count, GPU_GRAIN), 1, 1},
                      (struct gpu_size){THREADS, 1, 1}, 0, arguments);
}

/* All operands but the first `scalars` are dense float32 or bfloat16. */
static bool are_compute(const struct ct_prepare *p, int scalars)
{
    for (int i = scalars; i < p->ins; i++)
        if (!gpu_is_compute_dtype(p->in[i].dtype) || !ct_tensor_is_dense(&p->in[i]))
            return false;
    for (int i = 0; i < p->outs; i++)
        if (!gpu_is_compute_dtype(p->out[i].dtype) || !ct_tensor_is_dense(&p->out[i]))
            return false;
    return true;
}

/* ---- the moving average ---- */

enum { STEP, PARAM, AVERAGE };

static bool accepts_average(const struct ct_prepare *p)
{
    return are_compute(p, PARAM) && p->in[AVERAGE].dtype == CT_F32 && p->in[STEP].dtype == CT_F64;
}

static int run_average(const struct ct_launch *l)
{
    struct gpu_average a = {.average = l->in[AVERAGE].data,
                            .p = l->in[PARAM].data,
                            .step = l->in[STEP].data,
                            .count = ct_tensor_count(&l->in[PARAM]),
                            .decay = ct_op_float(l->op, "decay"),
                            .kind = gpu_float_kind(l->in[PARAM].dtype)};

    return over_elements(l, "moving_average", a.count, &a);
}

/* ---- momentum and update ---- */

static bool accepts_momentum(const struct ct_prepare *p)
{
    return are_compute(p, 1) && p->in[0].dtype == CT_F32;
}

static int run_momentum(const struct ct_launch *l)
{
    double keep = ct_op_float(l->op, "momentum");
    struct gpu_muon a = {.y = l->out[0].data,
                         .m = l->in[2].data,
                         .x = l->in[1].data,
                         .clip = l->in[0].data,
                         .count = ct_tensor_count(&l->in[1]),
                         .kind = {gpu_float_kind(l->out[0].dtype), gpu_float_kind(l->in[1].dtype),
                                  gpu_float_kind(l->in[2].dtype)},
                         .keep = (float)keep,
                         .rest = (float)(1 - keep)};

    return over_elements(l, "muon_momentum", a.count, &a);
}

static bool accepts_update(const struct ct_prepare *p)
{
    return are_compute(p, 2) && p->in[0].dtype == CT_F64 && p->in[1].dtype == CT_F32;
}

static int run_update(const struct ct_launch *l)
{
    struct gpu_muon a = {
        .m = l->in[2].data,
        .x = l->in[3].data,
        .lr = l->in[0].data,
        .clip = l->in[1].data,
        .count = ct_tensor_count(&l->in[2]),
        .kind = {0, gpu_float_kind(l->in[3].dtype), gpu_float_kind(l->in[2].dtype)},
        .keep = (float)ct_op_float(l->op, "scale"),
        .rest = (float)ct_op_float(l->op, "weight_decay")};

    return over_elements(l, "muon_update", a.count, &a);
}

/* ---- the iteration, on one matrix of a stack after the other ---- */

struct state {
    size_t sums, squares, x[2], a, b; /* offsets in the workspace, behind that of products */
};

struct matrix {
    const struct ct_launch *l;
    const struct state *at;
    int64_t rows, columns, less; /* less: the smaller of both */
};

static float *matrix_at(const struct matrix *m, size_t offset)
{
    return (float *)((char *)m->l->workspace + offset);
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

    p->workspace = GPU_BLAS_WORKSPACE;
    s->squares = gpu_carve(&p->workspace, sizeof(double));
    s->sums =
        gpu_carve(&p->workspace, (size_t)gpu_blocks(rows * columns, GPU_GRAIN) * sizeof(double));
    for (int i = 0; i < 2; i++)
        s->x[i] = gpu_carve(&p->workspace, (size_t)(rows * columns) * sizeof(float));
    s->a = gpu_carve(&p->workspace, (size_t)(less * less) * sizeof(float));
    s->b = gpu_carve(&p->workspace, (size_t)(less * less) * sizeof(float));
    p->state = s;
    return 0;
}

/* x = from / its norm, in float32 */
static int normalise(const struct matrix *m, const void *from, enum ct_dtype dtype)
{
    int64_t count = m->rows * m->columns;
    struct gpu_squares squares = {.sums = (void *)matrix_at(m, m->at->sums), .tensors = 1};
    struct gpu_add_doubles add = {.out = (void *)matrix_at(m, m->at->squares),
                                  .in = squares.sums,
                                  .count = gpu_blocks(count, GPU_GRAIN)};
    struct gpu_muon a = {.y = matrix_at(m, m->at->x[0]),
                         .x = from,
                         .squares = add.out,
                         .count = count,
                         .kind = {GPU_F32, gpu_float_kind(dtype), 0}};
    int rc;

    squares.tensor[0] = from;
    squares.count[0] = count;
    squares.kind[0] = (uint8_t)gpu_float_kind(dtype);
    squares.first_block[1] = (int32_t)add.count;
    rc = over_elements(m->l, "sum_squares", count, &squares);
    if (rc == 0)
        rc = gpu_launch(m->l, "add_doubles", (struct gpu_size){1, 1, 1},
                        (struct gpu_size){1024, 1, 1}, 0, &add);
    return rc < 0 ? rc : over_elements(m->l, "muon_normalise", count, &a);
}

static int multiply(const struct matrix *m, struct gpu_product p)
{
    p.a_dtype = p.b_dtype = p.c_dtype = CT_F32;
    p.c_stride = p.n;
    return gpu_multiply(m->l, &p, m->l->workspace);
}

/* b = 3.4445 I - 4.775 a + 2.0315 a a, of a = x x^T, or x^T x if that is smaller */
static int polynomial(const struct matrix *m, const float *x)
{
    float *a = matrix_at(m, m->at->a), *b = matrix_at(m, m->at->b);
    bool tall = m->rows > m->columns;
    struct gpu_muon_polynomial sum = {b, a, m->less, -4.775f, 2.0315f, 3.4445f};
    int rc = multiply(m, (struct gpu_product){.m = m->less,
                                              .n = m->less,
                                              .k = tall ? m->rows : m->columns,
                                              .a = x,
                                              .b = x,
                                              .c = a,
                                              .a_stride = m->columns,
                                              .b_stride = m->columns,
                                              .a_by_k = tall,
                                              .b_by_k = tall});

    if (rc == 0)
        rc = multiply(m, (struct gpu_product){.m = m->less,
                                              .n = m->less,
                                              .k = m->less,
                                              .a = a,
                                              .b = a,
                                              .c = b,
                                              .a_stride = m->less,
                                              .b_stride = m->less});
    return rc < 0 ? rc
                  : gpu_launch(m->l, "muon_polynomial",
                               (struct gpu_size){
                                   (unsigned)gpu_blocks(m->less * m->less, 4 * THREADS), 1, 1},
                               (struct gpu_size){THREADS, 1, 1}, 0, &sum);
}

/* to = b x, or x b; b is symmetric */
static int step(const struct matrix *m, const float *x, float *to)
{
    const float *b = matrix_at(m, m->at->b);
    bool tall = m->rows > m->columns;
    int rc = polynomial(m, x);

    return rc < 0 ? rc
                  : multiply(m, (struct gpu_product){.m = m->rows,
                                                     .n = m->columns,
                                                     .k = m->less,
                                                     .a = tall ? x : b,
                                                     .b = tall ? b : x,
                                                     .c = to,
                                                     .a_stride = m->less,
                                                     .b_stride = tall ? m->less : m->columns,
                                                     .b_by_k = !tall});
}

static int run_orthogonal(const struct ct_launch *l)
{
    const struct ct_tensor *in = &l->in[0], *out = &l->out[0];
    struct matrix m = {l, l->state, in->shape[in->ndim - 2], in->shape[in->ndim - 1], 0};
    int64_t count = m.rows * m.columns;
    int rc = 0;

    m.less = m.rows < m.columns ? m.rows : m.columns;
    for (int64_t first = 0; rc == 0 && first < ct_tensor_count(in); first += count) {
        struct gpu_muon copy = {.y = (char *)out->data + (size_t)first * ct_dtype_size(out->dtype),
                                .x = matrix_at(&m, m.at->x[STEPS % 2]),
                                .count = count,
                                .kind = {gpu_float_kind(out->dtype), GPU_F32, 0}};

        rc = normalise(&m, (const char *)in->data + (size_t)first * ct_dtype_size(in->dtype),
                       in->dtype);
        for (int i = 0; rc == 0 && i < STEPS; i++)
            rc = step(&m, matrix_at(&m, m.at->x[i % 2]), matrix_at(&m, m.at->x[(i + 1) % 2]));
        if (rc == 0)
            rc = over_elements(l, "muon_normalise", count, &copy);
    }
    return rc;
}

const struct ct_kernel gpu_muon_kernels[] = {
    CT_KERNEL("ema", "vector", 0, accepts_average, NULL, run_average),
    CT_KERNEL("muon.momentum", "vector", 0, accepts_momentum, NULL, run_momentum),
    CT_KERNEL("muon.orthogonal", "cublaslt", 0, accepts_orthogonal, prepare_orthogonal,
              run_orthogonal),
    CT_KERNEL("muon.update", "vector", 0, accepts_update, NULL, run_update),
    {0}};
