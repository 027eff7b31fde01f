/*
 * Ops that only some decoders have. Each is a formula, which is its reference and what fuse
 * compiles; the cpu has plain loops for those that run over large values.
 */
#include <math.h>

#include <ctitan/pointwise.h>
#include <ctitan/op_author.h>

#include "decoder.h"

#define OVER_FIRST ((const int8_t[][2]){{0, 0}, {-1, -1}})

/* ---- soft cap ---- */

struct cap {
    double cap;
};

static const struct ct_option cap_attrs[] = {
    CT_OPT_FLOAT(struct cap, cap, "cap", "50", 1e-6, 1e9, "Largest magnitude of a result"), {0}};

const struct ct_op_type op_soft_cap = {
    .size = sizeof(struct ct_op_type),
    .name = "soft_cap",
    .summary = "cap tanh(x / cap)",
    .signature = "x[.] T -> y[.] T",
    .samples = "cap=2: real[2,4,6]",
    .attrs = cap_attrs,
    .attrs_size = sizeof(struct cap),
    .inplace = OVER_FIRST,
    CT_FORMULA("y = cap * tanh(x / cap)"),
};

struct ct_value *soft_cap(struct ct_builder *b, const char *name, struct ct_value *x, double cap)
{
    return ct_emit_type1(b, &op_soft_cap, name, &x, 1, &(struct cap){cap});
}

/* ---- clip ---- */

struct most {
    double most;
};

static const struct ct_option most_attrs[] = {
    CT_OPT_FLOAT(struct most, most, "most", "1", 0, 1e300, "Largest magnitude of a result"), {0}};

const struct ct_op_type op_clip = {
    .size = sizeof(struct ct_op_type),
    .name = "clip",
    .summary = "x between -most and most",
    .signature = "x[.] T -> y[.] T",
    .samples = "most=0.7: real[2,4,6]",
    .attrs = most_attrs,
    .attrs_size = sizeof(struct most),
    .inplace = OVER_FIRST,
    CT_FORMULA("y = x > most ? most : x < 0 - most ? 0 - most : x"),
};

struct ct_value *clip(struct ct_builder *b, const char *name, struct ct_value *x, double most)
{
    return ct_emit_type1(b, &op_clip, name, &x, 1, &(struct most){most});
}

/* ---- relu, and its square ---- */

struct relu {
    bool squared;
};

static const struct ct_option relu_attrs[] = {
    CT_OPT_BOOL(struct relu, squared, "squared", "false", "The square of what is above 0"), {0}};

const struct ct_op_type op_relu = {
    .size = sizeof(struct ct_op_type),
    .name = "relu",
    .summary = "max(x, 0), or its square",
    .signature = "x[.] T -> y[.] T",
    .samples = "squared=false: real[2,4,6]; squared=true: real[2,4,6]",
    .attrs = relu_attrs,
    .attrs_size = sizeof(struct relu),
    .inplace = OVER_FIRST,
    CT_FORMULA("r = max(x, 0); y = squared ? r * r : r"),
};

struct ct_value *relu(struct ct_builder *b, const char *name, struct ct_value *x, bool squared)
{
    return ct_emit_type1(b, &op_relu, name, &x, 1, &(struct relu){squared});
}

/* ---- rows without mean, of deviation 1 ---- */

static const struct ct_option whiten_attrs[] = {
    CT_OPT_FLOAT(struct ct_layer_norm, eps, "eps", "1e-05", 0, 1, "Added to the variance"), {0}};

const struct ct_op_type op_whiten = {
    .size = sizeof(struct ct_op_type),
    .name = "whiten",
    .summary = "(x - mean) / standard deviation, of rows",
    .signature = "x[.K] T -> y[.K] T, mean[.] W, rstd[.] W",
    .samples = "eps=0.01: real[2,4,6]",
    .attrs = whiten_attrs,
    .attrs_size = sizeof(struct ct_layer_norm),
    CT_FORMULA("mean = row_mean(x); c = x - mean; rstd = 1 / sqrt(row_mean(c * c) + eps);"
               "y = c * rstd"),
};

struct ct_value *whiten(struct ct_builder *b, const char *name, struct ct_value *x, double eps)
{
    return ct_emit_type1(b, &op_whiten, name, &x, 1, &(struct ct_layer_norm){eps});
}

const struct ct_op_type op_scale_columns = {
    .size = sizeof(struct ct_op_type),
    .name = "scale_columns",
    .summary = "x times a number for each column",
    .signature = "x[.K] T, w[K] T -> y[.K] T",
    .samples = "real[2,4,6] real[6]",
    .inplace = OVER_FIRST,
    CT_FORMULA("y = x * w"),
};

struct ct_value *scale_columns(struct ct_builder *b, const char *name, struct ct_value *x,
                               struct ct_value *w)
{
    return ct_emit_type1(b, &op_scale_columns, name, (struct ct_value *[]){x, w}, 2, NULL);
}

/* ---- kernels for the cpu: dense, in float32 and bfloat16 ---- */

static bool accepts(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F32 || p->in[0].dtype == CT_BF16;
}

typedef float element_fn(float a, float b, float how);

/* out = f(in 0, in 1, how), where in 1 may be absent. */
static inline void each(const struct ct_launch *l, int64_t begin, int64_t end, element_fn *f,
                        float how)
{
    const void *a = l->in[0].data, *b = l->in[l->ins - 1].data;
    void *y = l->out[0].data;

    if (l->in[0].dtype == CT_F32)
        for (int64_t i = begin; i < end; i++)
            ((float *)y)[i] = f(((const float *)a)[i], ((const float *)b)[i], how);
    else
        for (int64_t i = begin; i < end; i++)
            ((uint16_t *)y)[i] = ct_f32_to_bf16(f(ct_bf16_to_f32(((const uint16_t *)a)[i]),
                                                  ct_bf16_to_f32(((const uint16_t *)b)[i]), how));
}

static float cap_of(const struct ct_launch *l)
{
    return (float)((const struct cap *)l->op->attrs)->cap;
}

static inline float capped(float x, float same, float cap)
{
    (void)same;
    return cap * tanhf(x / cap);
}

static inline float capped_slope(float dy, float y, float cap)
{
    return dy * (1 - y / cap * (y / cap));
}

static inline float rectified(float x, float same, float squared)
{
    float r = x > 0 ? x : 0;

    (void)same;
    return squared != 0 ? r * r : r;
}

static inline float rectified_slope(float dy, float x, float squared)
{
    return x > 0 ? (squared != 0 ? 2 * x * dy : dy) : 0;
}

static float squared_of(const struct ct_launch *l)
{
    return ((const struct relu *)l->op->attrs)->squared;
}

#define KERNEL(name, f, how)                                                                       \
    static void name##_range(void *l, int64_t begin, int64_t end)                                  \
    {                                                                                              \
        each(l, begin, end, f, how(l));                                                            \
    }                                                                                              \
    static int name(const struct ct_launch *l)                                                     \
    {                                                                                              \
        ct_parallel(l, ct_tensor_count(&l->out[0]), name##_range, (void *)(uintptr_t)l);           \
        return 0;                                                                                  \
    }

KERNEL(run_soft_cap, capped, cap_of)
KERNEL(run_soft_cap_grad, capped_slope, cap_of)
KERNEL(run_relu, rectified, squared_of)
KERNEL(run_relu_grad, rectified_slope, squared_of)

/* ---- a number for each column, on the cpu ---- */

static inline float get(const struct ct_tensor *t, int64_t i)
{
    return t->dtype == CT_F32 ? ((const float *)t->data)[i]
                              : ct_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

static inline void put(const struct ct_tensor *t, int64_t i, float x, bool add)
{
    x += add ? get(t, i) : 0;
    if (t->dtype == CT_F32)
        ((float *)t->data)[i] = x;
    else
        ((uint16_t *)t->data)[i] = ct_f32_to_bf16(x);
}

static bool accepts_columns(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins + p->outs; i++) {
        enum ct_dtype dtype = (i < p->ins ? p->in[i] : p->out[i - p->ins]).dtype;

        if (dtype != CT_F32 && dtype != CT_BF16)
            return false;
    }
    return true;
}

static void scale_rows_range(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    int64_t n = ct_columns(&l->in[0]);

    for (int64_t row = begin; row < end; row++)
        for (int64_t k = 0; k < n; k++)
            put(&l->out[0], row * n + k, get(&l->in[0], row * n + k) * get(&l->in[1], k), false);
}

static int run_scale_columns(const struct ct_launch *l)
{
    ct_parallel(l, ct_rows(&l->in[0]), scale_rows_range, (void *)(uintptr_t)l);
    return 0;
}

#define COLUMNS 64 /* whose sums are made at a time */

/* dx and dw of the columns [from, to). */
static void scale_gradients(const struct ct_launch *l, int64_t from, int64_t to)
{
    const struct ct_tensor *dy = &l->in[0], *x = &l->in[1], *w = &l->in[2];
    int64_t n = ct_columns(dy);
    double sum[COLUMNS] = {0};

    for (int64_t row = 0; row < ct_rows(dy); row++)
        for (int64_t k = from; k < to; k++) {
            float d = get(dy, row * n + k);

            put(&l->out[0], row * n + k, d * get(w, k), l->accumulate & 1);
            sum[k - from] += (double)(d * get(x, row * n + k));
        }
    for (int64_t k = from; k < to; k++)
        put(&l->out[1], k, (float)sum[k - from], l->accumulate >> 1 & 1);
}

static void scale_gradients_range(void *context, int64_t begin, int64_t end)
{
    for (int64_t k = begin; k < end; k += COLUMNS)
        scale_gradients(context, k, end < k + COLUMNS ? end : k + COLUMNS);
}

static int run_scale_columns_grad(const struct ct_launch *l)
{
    ct_parallel(l, ct_columns(&l->in[0]), scale_gradients_range, (void *)(uintptr_t)l);
    return 0;
}

const struct ct_kernel decoder_cpu_kernels[] = {
    CT_KERNEL(.op = "scale_columns", .name = "loop", .accepts = accepts_columns,
              .run = run_scale_columns),
    CT_KERNEL(.op = "scale_columns_grad", .name = "loop", .flags = CT_KERNEL_ACCUMULATES,
              .accepts = accepts_columns, .run = run_scale_columns_grad),
    CT_KERNEL(.op = "soft_cap", .name = "loop", .accepts = accepts, .run = run_soft_cap),
    CT_KERNEL(.op = "soft_cap_grad", .name = "loop", .accepts = accepts, .run = run_soft_cap_grad),
    CT_KERNEL(.op = "relu", .name = "loop", .accepts = accepts, .run = run_relu),
    CT_KERNEL(.op = "relu_grad", .name = "loop", .accepts = accepts, .run = run_relu_grad),
    {0}};
