/*
 * Attention in cuDNN's terms: matrix products, pointwise operations and reductions on tensors
 * [batch, head, row, column], in the order in which cuDNN knows them (Dao et al. 2022 for what the
 * backward needs). Scores and what is made of them are virtual.
 */
#include "sdpa.h"

#define FLOAT CUDNN_DATA_FLOAT
#define BF16 CUDNN_DATA_BFLOAT16

/* Products by what their rows and columns are: queries and keys, queries and elements of heads,
   keys and elements of heads. */
enum product { SCORES, BY_QUERIES, BY_KEYS };

struct builder {
    struct dnn_graph *g;
    const struct sdpa_shape *s;
    dnn_tensor scale;
    dnn_tensor *given; /* by id: tensors that are described so far; several operations take one */
};

/* One tensor of a graph for each id. */
static dnn_tensor of_batch(const struct builder *b, int64_t id, int type, int64_t count)
{
    int64_t size[4] = {count, 1, 1, 1}, stride[4] = {1, 1, 1, 1};

    if (!b->given[id])
        b->given[id] = dnn_tensor_new(b->g, id, type, size, stride);
    return b->given[id];
}

/* A tensor whose sequences begin where those of `id` do, if they are packed. */
static dnn_tensor tensor_like(const struct builder *b, int64_t id, int64_t own, int type,
                              const int64_t size[4], const int64_t stride[4])
{
    dnn_tensor begins = b->s->packed && id
                            ? of_batch(b, SDPA_BEGINS + id, CUDNN_DATA_INT64, b->s->batch + 1)
                            : NULL;

    return dnn_packed_tensor_new(b->g, own, type, size, stride, begins);
}

static void multiply(const struct builder *b, dnn_tensor x, dnn_tensor y, dnn_tensor to,
                     enum product how)
{
    struct dnn_extent extent = {.zero_outside = b->s->packed && how == SCORES && !b->s->backward};
    dnn_tensor queries, keys;

    if (b->s->packed) {
        queries = of_batch(b, SDPA_QUERY_LENGTHS, CUDNN_DATA_INT32, b->s->batch);
        keys = of_batch(b, SDPA_KEY_LENGTHS, CUDNN_DATA_INT32, b->s->batch);
        extent.rows = how == BY_KEYS ? keys : queries;
        extent.columns = how == SCORES ? keys : NULL;
        extent.inner = how == SCORES ? NULL : how == BY_KEYS ? queries : keys;
    }
    dnn_matmul(b->g, x, y, to, &extent);
}

/* Tokens of heads, with so many elements, as rows; transposed: as columns. */
static dnn_tensor operand(const struct builder *b, int64_t id, int type, int64_t heads,
                          int64_t tokens, int64_t elements, const int64_t stride[3],
                          bool transposed)
{
    int64_t size[4] = {b->s->batch, heads, tokens, elements};
    int64_t step[4] = {stride[0], stride[2], stride[1], 1};

    if (transposed) {
        size[2] = elements;
        size[3] = tokens;
        step[2] = 1;
        step[3] = stride[1];
    }
    if (id == SDPA_VIRTUAL)
        return dnn_tensor_new(b->g, id, type, size, step);
    if (!b->given[id])
        b->given[id] = tensor_like(b, id, id, type, size, step);
    return b->given[id];
}

static dnn_tensor dense(const struct builder *b, int64_t id, int type, int64_t rows,
                        int64_t columns)
{
    int64_t h = b->s->heads, size[4] = {b->s->batch, h, rows, columns};
    int64_t stride[4] = {h * rows * columns, rows * columns, columns, 1};

    return dnn_tensor_new(b->g, id, type, size, stride);
}

/* The transpose of dense, in the memory of dense. */
static dnn_tensor turned(const struct builder *b, int type, int64_t rows, int64_t columns)
{
    int64_t h = b->s->heads, size[4] = {b->s->batch, h, columns, rows};
    int64_t stride[4] = {h * rows * columns, rows * columns, 1, columns};

    return dnn_tensor_new(b->g, SDPA_VIRTUAL, type, size, stride);
}

static dnn_tensor scores_like(const struct builder *b, int type)
{
    return dense(b, SDPA_VIRTUAL, type, b->s->queries, b->s->keys);
}

static dnn_tensor per_row(const struct builder *b, int64_t id)
{
    return dense(b, id, FLOAT, b->s->queries, 1);
}

/* LSE, or what is laid out like it. */
static dnn_tensor statistic(const struct builder *b, int64_t id)
{
    int64_t h = b->s->heads, size[4] = {b->s->batch, h, b->s->queries, 1};
    int64_t stride[4] = {h * b->s->rows, b->s->rows, 1, 1};
    int64_t packed[4] = {h * b->s->queries, 1, h, 1};

    return tensor_like(b, SDPA_LSE, id, FLOAT, size, b->s->packed ? packed : stride);
}

/* y = mode(x, other), as large as the scores */
static dnn_tensor apply(const struct builder *b, int mode, dnn_tensor x, dnn_tensor other)
{
    dnn_tensor y = scores_like(b, FLOAT);

    dnn_pointwise(b->g, mode, FLOAT, x, other, NULL, y, -1);
    return y;
}

static dnn_tensor scores(const struct builder *b)
{
    const struct sdpa_shape *s = b->s;
    dnn_tensor q = operand(b, SDPA_Q, BF16, s->heads, s->queries, s->size, s->q, false);
    dnn_tensor k = operand(b, SDPA_K, BF16, s->groups, s->keys, s->size, s->k, true);
    dnn_tensor x = scores_like(b, FLOAT);

    multiply(b, q, k, x, SCORES);
    return apply(b, CUDNN_POINTWISE_MUL, x, b->scale);
}

/* The number of each score's row (axis 2) or column (3). */
static dnn_tensor index_of(const struct builder *b, dnn_tensor x, int axis)
{
    dnn_tensor index = scores_like(b, CUDNN_DATA_INT32);

    dnn_pointwise(b->g, CUDNN_POINTWISE_GEN_INDEX, FLOAT, x, NULL, NULL, index, axis);
    return index;
}

static dnn_tensor compare(const struct builder *b, int mode, dnn_tensor left, dnn_tensor right)
{
    dnn_tensor holds = scores_like(b, CUDNN_DATA_BOOLEAN);

    dnn_pointwise(b->g, mode, CUDNN_DATA_BOOLEAN, left, right, NULL, holds, -1);
    return holds;
}

/* x where mode(left, right) holds, else -infinity. */
static dnn_tensor keep_where(const struct builder *b, dnn_tensor x, int mode, dnn_tensor left,
                             dnn_tensor right)
{
    dnn_tensor seen = compare(b, mode, left, right), y = scores_like(b, FLOAT);

    dnn_pointwise(b->g, CUDNN_POINTWISE_BINARY_SELECT, FLOAT, x, dnn_scalar_new(b->g, SDPA_LOWEST),
                  seen, y, -1);
    return y;
}

/* Hides scores beyond the end of a packed sequence. */
static dnn_tensor hide_outside(const struct builder *b, dnn_tensor x)
{
    int64_t batch = b->s->batch;
    dnn_tensor row = index_of(b, x, 2), column = index_of(b, x, 3);

    row = compare(b, CUDNN_POINTWISE_CMP_LT, row,
                  of_batch(b, SDPA_QUERY_LENGTHS, CUDNN_DATA_INT32, batch));
    column = compare(b, CUDNN_POINTWISE_CMP_LT, column,
                     of_batch(b, SDPA_KEY_LENGTHS, CUDNN_DATA_INT32, batch));
    return keep_where(b, x, CUDNN_POINTWISE_LOGICAL_AND, row, column);
}

/* Where attention is causal, keys after the query are hidden, and with a window those before it. */
static dnn_tensor hide_unseen(const struct builder *b, dnn_tensor x)
{
    dnn_tensor row, column, end;

    if (b->s->packed)
        x = hide_outside(b, x);
    if (!b->s->causal)
        return x;
    row = index_of(b, x, 2);
    column = index_of(b, x, 3);
    x = keep_where(b, x, CUDNN_POINTWISE_CMP_GE, row, column);
    if (!b->s->window)
        return x;
    row = index_of(b, x, 2);
    column = index_of(b, x, 3);
    end = scores_like(b, FLOAT); /* a key's window ends before this row */
    dnn_pointwise(b->g, CUDNN_POINTWISE_ADD, FLOAT, column, dnn_scalar_new(b->g, SDPA_WINDOW), NULL,
                  end, 3);
    return keep_where(b, x, CUDNN_POINTWISE_CMP_GT, end, row);
}

/* ---- forward ---- */

static void forward(const struct builder *b)
{
    const struct sdpa_shape *s = b->s;
    dnn_tensor v = operand(b, SDPA_V, BF16, s->groups, s->keys, s->of_v, s->v, false);
    dnn_tensor o =
        operand(b, SDPA_O, s->o_float ? FLOAT : BF16, s->heads, s->queries, s->of_v, s->o, false);
    dnn_tensor lse = statistic(b, SDPA_LSE), largest = per_row(b, SDPA_VIRTUAL);
    dnn_tensor sum = per_row(b, SDPA_VIRTUAL), log = per_row(b, SDPA_VIRTUAL);
    dnn_tensor p = scores_like(b, BF16), x = scores(b);

    x = hide_unseen(b, x);
    dnn_reduce(b->g, CUDNN_REDUCE_TENSOR_MAX, x, largest);
    x = apply(b, CUDNN_POINTWISE_SUB, x, largest);
    x = apply(b, CUDNN_POINTWISE_EXP, x, NULL);
    dnn_reduce(b->g, CUDNN_REDUCE_TENSOR_ADD, x, sum);
    dnn_pointwise(b->g, CUDNN_POINTWISE_LOG, FLOAT, sum, NULL, NULL, log, -1);
    dnn_pointwise(b->g, CUDNN_POINTWISE_ADD, FLOAT, largest, log, NULL, lse, -1);
    dnn_pointwise(b->g, CUDNN_POINTWISE_DIV, FLOAT, x, sum, NULL, p, -1);
    multiply(b, p, v, o, BY_QUERIES);
}

/* ---- backward ---- */

/* delta = sum of do o by rows */
static dnn_tensor row_products(const struct builder *b, dnn_tensor d_o)
{
    const struct sdpa_shape *s = b->s;
    dnn_tensor o = operand(b, SDPA_O, BF16, s->heads, s->queries, s->of_v, s->o, false);
    dnn_tensor product =
        operand(b, SDPA_VIRTUAL, FLOAT, s->heads, s->queries, s->of_v, s->o, false);
    dnn_tensor sum = per_row(b, SDPA_VIRTUAL);
    dnn_tensor delta = s->packed ? statistic(b, SDPA_DELTA) : per_row(b, SDPA_DELTA);

    dnn_pointwise(b->g, CUDNN_POINTWISE_MUL, FLOAT, d_o, o, NULL, product, -1);
    dnn_reduce(b->g, CUDNN_REDUCE_TENSOR_ADD, product, sum);
    dnn_pointwise(b->g, CUDNN_POINTWISE_MUL, FLOAT, sum, dnn_scalar_new(b->g, SDPA_ONE), NULL,
                  delta, -1);
    return delta;
}

static dnn_tensor probabilities(const struct builder *b)
{
    dnn_tensor x = apply(b, CUDNN_POINTWISE_SUB, scores(b), statistic(b, SDPA_LSE));

    return apply(b, CUDNN_POINTWISE_EXP, hide_unseen(b, x), NULL);
}

/* The gradient of each head's keys or values: it begins where that of its group does, times heads
   of a group, which cuDNN knows by itself. */
static dnn_tensor packed_heads(const struct builder *b, int64_t id, int64_t elements,
                               const int64_t stride[3])
{
    const struct sdpa_shape *s = b->s;
    int64_t share = s->heads / s->groups, size[4] = {s->batch, s->heads, s->keys, elements};
    int64_t step[4] = {share * stride[0], stride[2], share * stride[1], 1};

    return tensor_like(b, id, id == SDPA_DK ? SDPA_DK_HEADS : SDPA_DV_HEADS, BF16, size, step);
}

/* out = a^T x, over all heads of a group. Each head's own is bfloat16, as cuDNN's own descriptions
   have it: for float32, kernels for Blackwell do not compile (9.19), and Hopper's write twice as
   much. */
static void product_by_keys(const struct builder *b, dnn_tensor a, dnn_tensor x, int64_t id,
                            int64_t elements, const int64_t stride[3])
{
    const struct sdpa_shape *s = b->s;
    dnn_tensor transposed = turned(b, BF16, s->queries, s->keys), of_heads;
    dnn_tensor out = operand(b, id, BF16, s->groups, s->keys, elements, stride, false);

    dnn_reshape(b->g, a, transposed);
    if (s->heads == s->groups) {
        multiply(b, transposed, x, out, BY_KEYS);
        return;
    }
    of_heads = s->packed ? packed_heads(b, id, elements, stride)
                         : dense(b, SDPA_VIRTUAL, BF16, s->keys, elements);
    multiply(b, transposed, x, of_heads, BY_KEYS);
    dnn_reduce(b->g, CUDNN_REDUCE_TENSOR_ADD, of_heads, out);
}

/* dq before it is rounded, with the strides of dq. */
static dnn_tensor sum_of_queries(const struct builder *b)
{
    const struct sdpa_shape *s = b->s;
    int64_t size[4] = {s->batch, s->heads, s->queries, s->size};
    int64_t step[4] = {s->dq[0], s->dq[2], s->dq[1], 1};

    return tensor_like(b, SDPA_DQ, SDPA_DQ_SUM, FLOAT, size, step);
}

static void product_by_queries(const struct builder *b, dnn_tensor ds)
{
    const struct sdpa_shape *s = b->s;
    int64_t size[4] = {s->batch, s->groups, s->keys, s->size};
    int64_t step[4] = {s->k[0], s->k[2], s->k[1], 1};
    dnn_tensor k = tensor_like(b, SDPA_K, SDPA_VIRTUAL, BF16, size, step), sum;
    dnn_tensor dq = operand(b, SDPA_DQ, BF16, s->heads, s->queries, s->size, s->dq, false);

    dnn_reshape(b->g, operand(b, SDPA_K, BF16, s->groups, s->keys, s->size, s->k, true), k);
    if (s->ordered) {
        multiply(b, ds, k, dq, BY_QUERIES);
        return;
    }
    sum = s->dq_sum_placed || s->packed ? sum_of_queries(b)
                                        : dense(b, SDPA_DQ_SUM, FLOAT, s->queries, s->size);
    multiply(b, ds, k, sum, BY_QUERIES);
    dnn_pointwise(b->g, CUDNN_POINTWISE_IDENTITY, FLOAT, sum, NULL, NULL, dq, -1);
}

static void backward(const struct builder *b)
{
    const struct sdpa_shape *s = b->s;
    dnn_tensor d_o = operand(b, SDPA_D_O, BF16, s->heads, s->queries, s->of_v, s->d_o, false);
    dnn_tensor v = operand(b, SDPA_V, BF16, s->groups, s->keys, s->of_v, s->v, true);
    dnn_tensor q = operand(b, SDPA_Q, BF16, s->heads, s->queries, s->size, s->q, false);
    dnn_tensor delta = row_products(b, d_o), p = probabilities(b);
    dnn_tensor dp = scores_like(b, FLOAT), ds = scores_like(b, BF16);

    product_by_keys(b, p, d_o, SDPA_DV, s->of_v, s->dv);
    multiply(b, d_o, v, dp, SCORES);
    dp = apply(b, CUDNN_POINTWISE_SUB, dp, delta);
    dp = apply(b, CUDNN_POINTWISE_MUL, dp, p);
    dnn_pointwise(b->g, CUDNN_POINTWISE_MUL, FLOAT, dp, b->scale, NULL, ds, -1);
    product_by_keys(b, ds, q, SDPA_DK, s->size, s->dk);
    product_by_queries(b, ds);
}

void sdpa_describe(struct dnn_graph *g, const struct sdpa_shape *shape)
{
    dnn_tensor given[SDPA_IDS] = {NULL};
    struct builder b = {.g = g, .s = shape, .given = given};

    b.scale = dnn_scalar_new(g, SDPA_SCALE);
    if (shape->backward)
        backward(&b);
    else
        forward(&b);
}
