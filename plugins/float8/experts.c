/*
 * Mixtures whose products are Float8: those of lib/ops/experts.c, with the same operands.
 *
 * Each product rounds its operands by tiles (recipes below), and sums in float32. With the choices
 * of an expert as rows:
 *
 *   g = x gate^T, u = x up^T, h = act(g) u, y = h down^T          rows of x and h; weights
 *   dh = dy down, dx = dg gate + du up                            rows of gradients; weights
 *   dgate = dg^T x, dup = du^T x, ddown = (weight dy)^T h         columns, along the choices
 *
 * x, h and gradients are rounded again for the last line. Scales of its tiles are powers of two, as
 * in DeepSeek-V3 (2024, 3.3.2): which tokens share one then matters for numbers alone that
 * underflow, and ranks that have other tokens get the same gradients. g, u, h and their gradients
 * are rounded to the dtype of x.
 *
 * These ops stand in for the others once all shardings are known (use_experts), so mixtures are
 * split over ranks as without Float8. lib/ops/join_gradients.c makes float8.experts_grad.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/number.h>
#include <ctitan/op_author.h>

#include "grouped.h"

#define TILE 128 /* of blockwise */
#define UNIT 16  /* sizes are multiples of it; of mxfp8, of FLOAT8_BLOCK */

enum { X, WEIGHTS, IDS, GATE, UP, DOWN, GATE_BIAS, UP_BIAS, OPERANDS };

static const struct float8_tiles recipes[] = {
    [FLOAT8_EXPERTS_ROWWISE] = {.token = {1, 0, FLOAT8_POWER_OF_TWO},
                                .weight = {1, 0, FLOAT8_POWER_OF_TWO},
                                .weight_t = {0, 1, FLOAT8_POWER_OF_TWO},
                                .column = {0, 1, FLOAT8_POWER_OF_TWO}},
    [FLOAT8_EXPERTS_BLOCKWISE] = {.token = {1, TILE, FLOAT8_EXACT},
                                  .weight = {TILE, TILE, FLOAT8_EXACT},
                                  .weight_t = {TILE, TILE, FLOAT8_EXACT},
                                  .column = {TILE, 1, FLOAT8_POWER_OF_TWO}},
    [FLOAT8_EXPERTS_MXFP8] = {.token = {1, FLOAT8_BLOCK, FLOAT8_MX_RCEIL},
                              .weight = {1, FLOAT8_BLOCK, FLOAT8_MX_RCEIL},
                              .weight_t = {FLOAT8_BLOCK, 1, FLOAT8_MX_RCEIL},
                              .column = {FLOAT8_BLOCK, 1, FLOAT8_MX_RCEIL}},
};

/* ---- a call ---- */

/* Bits: both gradients are one task, too. */
enum task { FORWARD, TOKENS_GRADIENT, WEIGHTS_GRADIENT, BOTH_GRADIENTS };

struct mixture {
    const struct ct_launch *l;
    enum task task;
    const struct float8_tiles *tiles;
    const struct ct_tensor *in; /* from X on */
    int64_t tokens, k, n, f, count, first;
    bool dense;          /* all inputs */
    bool biased, narrow; /* narrow: inner values are bfloat16 */
    double alpha, limit, offset;
    struct ct_arena arena;
    size_t carved;
    int64_t *order;                  /* choices by expert */
    int64_t *begin, *next;           /* [count + 1] in order */
    float *x, *row;                  /* [rows, n] of an expert */
    float *again, *other;            /* [rows, n or f] */
    float *g, *u, *h, *dh, *dg, *du; /* [rows, f] */
    float *w, *dw;                   /* a weight; its gradient */
    double *y, *weight_sum;          /* sums of tokens; of choices' weights */
};

static float load(const struct mixture *m, const struct ct_tensor *t, int64_t i)
{
    if (m->dense && t->dtype == CT_F32)
        return ((const float *)t->data)[i];
    if (m->dense && t->dtype == CT_BF16)
        return ct_bf16_to_f32(((const uint16_t *)t->data)[i]);
    return (float)ct_tensor_load(t, i);
}

/* Memory of the workspace; of the arena where there is none, as for the reference. Without a launch
   it is only counted. */
static void *carve(struct mixture *m, int64_t count, size_t size)
{
    size_t bytes = ((size_t)count * size + 63) & ~(size_t)63, at = m->carved;

    m->carved += bytes;
    if (!m->l)
        return NULL;
    if (!m->l->workspace)
        return ct_arena_alloc(&m->arena, bytes + 1);
    return (char *)m->l->workspace + at;
}

/* The same, as zeros. */
static void *carve_zeros(struct mixture *m, int64_t count, size_t size)
{
    void *memory = carve(m, count, size);

    return memory ? memset(memory, 0, (size_t)count * size) : NULL;
}

static float *floats(struct mixture *m, int64_t rows, int64_t columns)
{
    return carve(m, rows * columns, sizeof(float));
}

/* An expert may be chosen by all. */
static void carve_all(struct mixture *m)
{
    int64_t rows = m->tokens * m->k, wide = m->n > m->f ? m->n : m->f;

    m->order = carve_zeros(m, rows, sizeof(*m->order));
    m->begin = carve_zeros(m, m->count + 1, sizeof(*m->begin));
    m->next = carve_zeros(m, m->count + 1, sizeof(*m->next));
    m->x = floats(m, rows, m->n);
    m->row = floats(m, rows, m->n);
    m->again = floats(m, rows, wide);
    m->g = floats(m, rows, m->f);
    m->u = floats(m, rows, m->f);
    m->h = floats(m, rows, m->f);
    m->w = floats(m, m->n, m->f);
    if (m->task != FORWARD) {
        m->dh = floats(m, rows, m->f);
        m->dg = floats(m, rows, m->f);
        m->du = floats(m, rows, m->f);
    }
    if (m->task & WEIGHTS_GRADIENT) {
        m->other = floats(m, rows, wide);
        m->dw = floats(m, m->n, m->f);
    }
    if (m->task != WEIGHTS_GRADIENT)
        m->y = carve_zeros(m, m->tokens * m->n, sizeof(*m->y));
    if (m->task & TOKENS_GRADIENT)
        m->weight_sum = carve_zeros(m, m->tokens * m->k, sizeof(*m->weight_sum));
}

static int64_t id_at(const struct mixture *m, int64_t choice)
{
    return (int64_t)ct_tensor_load(&m->in[IDS], choice);
}

/* Choices sorted by the experts of this rank, tokens in order. */
static int sort(struct mixture *m)
{
    int64_t choices = m->tokens * m->k, whole = m->l->op->in[m->in - m->l->in + GATE]->shape[0];

    for (int64_t i = 0; i < choices; i++) {
        int64_t id = id_at(m, i), e = id - m->first;

        if (id != CT_NO_EXPERT && (id < 0 || id >= whole))
            return ct_fail(CT_EINVAL, "expert %lld of choice %lld: expected 0 to %lld",
                           (long long)id, (long long)i, (long long)whole - 1);
        if (id != CT_NO_EXPERT && e >= 0 && e < m->count)
            m->begin[e + 1]++;
    }
    for (int64_t e = 0; e < m->count; e++)
        m->next[e + 1] = m->begin[e + 1] += m->begin[e];
    for (int64_t i = 0; i < choices; i++) {
        int64_t e = id_at(m, i) - m->first;

        if (id_at(m, i) != CT_NO_EXPERT && e >= 0 && e < m->count)
            m->order[m->next[e]++] = i;
    }
    return 0;
}

/* Index of X among the inputs. */
static int first_input(enum task task)
{
    return task != FORWARD;
}

static int begin(struct mixture *m, const struct ct_launch *l, enum task task)
{
    const struct float8_experts *how = l->op->attrs;
    int at = first_input(task);

    *m = (struct mixture){.l = l,
                          .task = task,
                          .tiles = &recipes[how->recipe],
                          .in = l->in + at,
                          .tokens = ct_rows(&l->in[at]),
                          .k = ct_columns(&l->in[at + WEIGHTS]),
                          .n = ct_columns(&l->in[at]),
                          .f = l->in[at + GATE].shape[1],
                          .count = l->in[at + GATE].shape[0],
                          .first = ct_launch_offset(l, l->op->in[at + GATE], 0),
                          .biased = l->ins > at + GATE_BIAS,
                          .narrow = l->in[at].dtype == CT_BF16,
                          .dense = true,
                          .alpha = how->gate.alpha != 0 ? how->gate.alpha : 1,
                          .limit = how->gate.limit > 0 ? how->gate.limit : INFINITY,
                          .offset = how->gate.offset};
    for (int i = 0; i < l->ins; i++)
        m->dense &= l->in[i].ndim < 0 || ct_tensor_is_dense(&l->in[i]);
    carve_all(m);
    return sort(m);
}

/* ---- parts of it ---- */

static float narrowed(const struct mixture *m, double x)
{
    return m->narrow ? ct_bf16_to_f32(ct_f32_to_bf16((float)x)) : (float)x;
}

/* Rows of tokens, [tokens, n], of expert e's choices. */
static int64_t gather(const struct mixture *m, int64_t e, const struct ct_tensor *from, float *to)
{
    int64_t rows = m->begin[e + 1] - m->begin[e];

    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < m->n; j++)
            to[r * m->n + j] = load(m, from, m->order[m->begin[e] + r] / m->k * m->n + j);
    return rows;
}

/* Weight `which` of expert e, rounded. */
static const float *weight(const struct mixture *m, int64_t e, int which,
                           const struct float8_tile *tile)
{
    int64_t rows = which == DOWN ? m->n : m->f, columns = which == DOWN ? m->f : m->n;

    for (int64_t i = 0; i < rows * columns; i++)
        m->w[i] = load(m, &m->in[which], e * rows * columns + i);
    float8_round_trip(m->l, m->w, rows, columns, tile);
    return m->w;
}

/* A copy of rows, rounded. */
static const float *rounded(const struct mixture *m, const float *x, int64_t rows, int64_t columns,
                            const struct float8_tile *tile)
{
    memcpy(m->again, x, sizeof(*x) * (size_t)(rows * columns));
    float8_round_trip(m->l, m->again, rows, columns, tile);
    return m->again;
}

static double at_most(double x, double limit)
{
    return x > limit ? limit : x;
}

static double within(double x, double limit)
{
    return x < -limit ? -limit : at_most(x, limit);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* g, u and h of expert e's rows, which are in m->x. */
static void hidden(const struct mixture *m, int64_t e, int64_t rows)
{
    const float *x = rounded(m, m->x, rows, m->n, &m->tiles->token);

    float8_multiply_nt(m->l, m->g, x, weight(m, e, GATE, &m->tiles->weight), rows, m->f, m->n);
    float8_multiply_nt(m->l, m->u, x, weight(m, e, UP, &m->tiles->weight), rows, m->f, m->n);
    for (int64_t i = 0; i < rows * m->f; i++) {
        int64_t of_expert = e * m->f + i % m->f;
        double g, u;

        m->g[i] = narrowed(m, m->g[i] + (m->biased ? load(m, &m->in[GATE_BIAS], of_expert) : 0.0f));
        m->u[i] = narrowed(m, m->u[i] + (m->biased ? load(m, &m->in[UP_BIAS], of_expert) : 0.0f));
        g = at_most((double)m->g[i], m->limit);
        u = within((double)m->u[i], m->limit) + m->offset;
        m->h[i] = narrowed(m, g * sigmoid(m->alpha * g) * u);
    }
}

/* dh of the rows, for a weight of 1, and dg and du with the choices' weights. dy is in m->row. */
static void hidden_gradients(const struct mixture *m, int64_t e, int64_t rows)
{
    const float *dy = rounded(m, m->row, rows, m->n, &m->tiles->token);

    float8_multiply_nn(m->l, m->dh, dy, weight(m, e, DOWN, &m->tiles->weight_t), rows, m->f, m->n,
                       false);
    for (int64_t i = 0; i < rows * m->f; i++) {
        float of_choice = load(m, &m->in[WEIGHTS], m->order[m->begin[e] + i / m->f]);
        double raw_g = (double)m->g[i], raw_u = (double)m->u[i];
        double g = at_most(raw_g, m->limit), u = within(raw_u, m->limit);
        double a = sigmoid(m->alpha * g), dh;

        m->dh[i] = narrowed(m, (double)m->dh[i]);
        dh = (double)m->dh[i] * (double)of_choice;
        m->dg[i] = raw_g > m->limit
                       ? 0
                       : narrowed(m, dh * (u + m->offset) * a * (1 + m->alpha * g * (1 - a)));
        m->du[i] = fabs(raw_u) > m->limit ? 0 : narrowed(m, dh * g * a);
    }
}

/* Add rows to their tokens, in the order of experts. */
static void scatter(const struct mixture *m, int64_t e, int64_t rows, const float *from,
                    bool weighted)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t choice = m->order[m->begin[e] + r], token = choice / m->k;
        double factor = weighted ? (double)load(m, &m->in[WEIGHTS], choice) : 1;

        for (int64_t j = 0; j < m->n; j++)
            m->y[token * m->n + j] += factor * (double)from[r * m->n + j];
    }
}

/* To output `which`, or added to it. */
static void store(const struct ct_launch *l, int which, int64_t at, double x)
{
    const struct ct_tensor *to = &l->out[which];

    ct_tensor_store(to, at, x + (l->accumulate >> which & 1 ? ct_tensor_load(to, at) : 0));
}

static void store_all(const struct ct_launch *l, int which, const double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        store(l, which, i, x[i]);
}

static int run_forward(const struct ct_launch *l)
{
    struct mixture m;
    int rc = begin(&m, l, FORWARD);

    for (int64_t e = 0; rc == 0 && e < m.count; e++) {
        int64_t rows = gather(&m, e, &m.in[X], m.x);

        hidden(&m, e, rows);
        float8_multiply_nt(l, m.row, rounded(&m, m.h, rows, m.f, &m.tiles->token),
                           weight(&m, e, DOWN, &m.tiles->weight), rows, m.n, m.f);
        scatter(&m, e, rows, m.row, true);
    }
    if (rc == 0)
        store_all(l, 0, m.y, m.tokens * m.n);
    ct_arena_finish(&m.arena);
    return rc;
}

/* Outputs: gradients of tokens, and of the choices' weights. */
static void tokens_gradients(struct mixture *m, int64_t e, int64_t rows)
{
    const struct ct_launch *l = m->l;

    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;

        for (int64_t j = 0; j < m->f; j++)
            sum += (double)m->dh[r * m->f + j] * (double)m->h[r * m->f + j];
        m->weight_sum[m->order[m->begin[e] + r]] = sum;
    }
    float8_multiply_nn(l, m->row, rounded(m, m->dg, rows, m->f, &m->tiles->token),
                       weight(m, e, GATE, &m->tiles->weight_t), rows, m->n, m->f, false);
    float8_multiply_nn(l, m->row, rounded(m, m->du, rows, m->f, &m->tiles->token),
                       weight(m, e, UP, &m->tiles->weight_t), rows, m->n, m->f, true);
    scatter(m, e, rows, m->row, false);
}

/* Output `which` = a^T b, of rounded columns: a has `m` of them, b `n`. */
static void weight_gradient(const struct mixture *mixture, int64_t e, int which, const float *a,
                            int64_t m, const float *b, int64_t n, int64_t rows)
{
    memcpy(mixture->other, b, sizeof(*b) * (size_t)(rows * n));
    float8_round_trip(mixture->l, mixture->other, rows, n, &mixture->tiles->column);
    float8_multiply_tn(mixture->l, mixture->dw,
                       rounded(mixture, a, rows, m, &mixture->tiles->column), mixture->other, m, n,
                       rows);
    for (int64_t i = 0; i < m * n; i++)
        store(mixture->l, which, e * m * n + i, (double)mixture->dw[i]);
}

static void bias_gradient(const struct mixture *m, int64_t e, int which, const float *d,
                          int64_t rows)
{
    for (int64_t j = 0; j < m->f; j++) {
        double sum = 0;

        for (int64_t r = 0; r < rows; r++)
            sum += (double)d[r * m->f + j];
        store(m->l, which, e * m->f + j, sum);
    }
}

/* Outputs from `first` on: gradients of weights. dy, in m->row, becomes weighted. */
static void weights_gradients(struct mixture *m, int64_t e, int64_t rows, int first)
{
    weight_gradient(m, e, first, m->dg, m->f, m->x, m->n, rows);
    weight_gradient(m, e, first + 1, m->du, m->f, m->x, m->n, rows);
    for (int64_t i = 0; i < rows * m->n; i++)
        m->row[i] = narrowed(m, (double)m->row[i] * (double)load(m, &m->in[WEIGHTS],
                                                                 m->order[m->begin[e] + i / m->n]));
    weight_gradient(m, e, first + 2, m->row, m->n, m->h, m->f, rows);
    if (m->biased) {
        bias_gradient(m, e, first + 3, m->dg, rows);
        bias_gradient(m, e, first + 4, m->du, rows);
    }
}

/* Gradients of tokens are the first outputs. They need no more of dy than its products. */
static int run_gradients(const struct ct_launch *l, enum task task)
{
    struct mixture m;
    int rc = begin(&m, l, task), weights = task & TOKENS_GRADIENT ? 2 : 0;

    for (int64_t e = 0; rc == 0 && e < m.count; e++) {
        int64_t rows = gather(&m, e, &m.in[X], m.x);

        hidden(&m, e, rows);
        gather(&m, e, &l->in[0], m.row);
        hidden_gradients(&m, e, rows);
        if (task & WEIGHTS_GRADIENT)
            weights_gradients(&m, e, rows, weights);
        if (task & TOKENS_GRADIENT)
            tokens_gradients(&m, e, rows);
    }
    if (rc == 0 && task & TOKENS_GRADIENT) {
        store_all(l, 0, m.y, m.tokens * m.n);
        store_all(l, 1, m.weight_sum, m.tokens * m.k);
    }
    ct_arena_finish(&m.arena);
    return rc;
}

static int run_dx(const struct ct_launch *l)
{
    return run_gradients(l, TOKENS_GRADIENT);
}

static int run_dw(const struct ct_launch *l)
{
    return run_gradients(l, WEIGHTS_GRADIENT);
}

static int run_grad(const struct ct_launch *l)
{
    return run_gradients(l, BOTH_GRADIENTS);
}

/* ---- types ---- */

static int infer(struct ct_op *op)
{
    return ct_op_experts.infer(op);
}

static int grad_infer(struct ct_op *op)
{
    return ct_op_experts_dx.infer(op);
}

#define FLOPS(which)                                                                               \
    static double which##_flops(const struct ct_op *op, const struct ct_tensor *in,                \
                                const struct ct_tensor *out)                                       \
    {                                                                                              \
        return ct_op_##which.flops(op, in, out);                                                   \
    }
FLOPS(experts)
FLOPS(experts_dx)
FLOPS(experts_dw)
FLOPS(experts_grad)

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct float8_experts, gate.alpha, "alpha", "0", -1e300, 1e300,
                 "Factor of the gate in the sigmoid; 0: 1"),
    CT_OPT_FLOAT(struct float8_experts, gate.limit, "limit", "0", 0, 1e300,
                 "Upper limit of the gate, and of the other half's magnitude; 0: none"),
    CT_OPT_FLOAT(struct float8_experts, gate.offset, "offset", "0", -1e300, 1e300,
                 "Added to the other half"),
    CT_OPT_ENUM(struct float8_experts, recipe, "recipe", "rowwise", FLOAT8_EXPERTS_RECIPES,
                "Which numbers share a scale"),
    {0}};

#define INPUTS                                                                                     \
    "x[.N] T, weights[.K] W, ids[.K] i, gate[efN] T, up[efN] T, down[eNf] T, "                     \
    "*(?gate_bias[ef] T, ?up_bias[ef] T)"

#define GRAD_SAMPLES(flops)                                                                        \
    "@flops=" flops ": real[3,4] real[3,4] statistic[3,2] index[3,2] real[6,1,4] real[6,1,4] "     \
    "real[6,4,1]; @flops=" flops " recipe=blockwise alpha=1.702 limit=1 offset=1: real[3,4] "      \
    "real[3,4] statistic[3,2] index[3,2] real[6,1,4] real[6,1,4] real[6,4,1] real[6,1] real[6,1]"
#define TYPE                                                                                       \
    .size = sizeof(struct ct_op_type), .attrs = attrs, .attrs_size = sizeof(struct float8_experts)

const struct ct_op_type float8_op_experts = {
    TYPE,
    .name = "float8.experts",
    .summary = "experts, with products of 8-bit operands",
    .signature = INPUTS " -> y[.N] T",
    .infer = infer,
    .flops = experts_flops,
    .reference = run_forward,
    .samples = "@flops=288: real[2,3,4] statistic[2,3,2] index[2,3,2] real[6,1,4] real[6,1,4] "
               "real[6,4,1]; @flops=288 recipe=blockwise alpha=1.702 limit=1 offset=1: real[2,3,4] "
               "statistic[2,3,2] index[2,3,2] real[6,1,4] real[6,1,4] real[6,4,1] real[6,1] "
               "real[6,1]",
};

const struct ct_op_type float8_op_experts_dx = {
    TYPE,
    .name = "float8.experts_dx",
    .summary = "gradient of float8.experts towards tokens and weights of choices",
    .signature = "dy[.N] T, " INPUTS " -> dx[.N] T, dweights[.K] W",
    .flags = CT_OP_ANY_DTYPE,
    .infer = grad_infer,
    .flops = experts_dx_flops,
    .reference = run_dx,
    .samples = GRAD_SAMPLES("240"),
};

const struct ct_op_type float8_op_experts_dw = {
    TYPE,
    .name = "float8.experts_dw",
    .summary = "gradient of float8.experts towards their weights",
    .signature = "dy[.N] T, " INPUTS " -> dgate[efN] T, dup[efN] T, ddown[eNf] T, "
                 "*(dgate_bias[ef] T, dup_bias[ef] T)",
    .flags = CT_OP_ANY_DTYPE,
    .infer = grad_infer,
    .flops = experts_dw_flops,
    .reference = run_dw,
    .samples = GRAD_SAMPLES("288"),
};

const struct ct_op_type float8_op_experts_grad = {
    TYPE,
    .name = "float8.experts_grad",
    .summary = "float8.experts_dx and float8.experts_dw in one",
    .signature = "dy[.N] T, " INPUTS " -> dx[.N] T, dweights[.K] W, dgate[efN] T, dup[efN] T, "
                 "ddown[eNf] T, *(dgate_bias[ef] T, dup_bias[ef] T)",
    .flags = CT_OP_ANY_DTYPE,
    .infer = grad_infer,
    .flops = experts_grad_flops,
    .reference = run_grad,
    .samples = GRAD_SAMPLES("384"),
};

static bool accepts(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (p->present[i] && !ct_tensor_is_dense(&p->in[i]))
            return false;
    return true;
}

static int prepare_task(struct ct_prepare *p, enum task task)
{
    int at = first_input(task);
    struct mixture m = {.task = task,
                        .tokens = ct_rows(&p->in[at]),
                        .k = ct_columns(&p->in[at + WEIGHTS]),
                        .n = ct_columns(&p->in[at]),
                        .f = p->in[at + GATE].shape[1],
                        .count = p->in[at + GATE].shape[0]};

    carve_all(&m);
    p->workspace = m.carved;
    return 0;
}

static int prepare(struct ct_prepare *p)
{
    return prepare_task(p, FORWARD);
}

static int prepare_dx(struct ct_prepare *p)
{
    return prepare_task(p, TOKENS_GRADIENT);
}

static int prepare_dw(struct ct_prepare *p)
{
    return prepare_task(p, WEIGHTS_GRADIENT);
}

static int prepare_grad(struct ct_prepare *p)
{
    return prepare_task(p, BOTH_GRADIENTS);
}

const struct ct_kernel float8_experts_kernels[] = {
    CT_KERNEL("float8.experts", "emulated", CT_KERNEL_ACCUMULATES, accepts, prepare, run_forward),
    CT_KERNEL("float8.experts_dx", "emulated", CT_KERNEL_ACCUMULATES, accepts, prepare_dx, run_dx),
    CT_KERNEL("float8.experts_dw", "emulated", CT_KERNEL_ACCUMULATES, accepts, prepare_dw, run_dw),
    CT_KERNEL("float8.experts_grad", "emulated", CT_KERNEL_ACCUMULATES, accepts, prepare_grad,
              run_grad),
    {0}};

/* ---- in the graph ---- */

static const struct ct_op_type *instead_of(const struct ct_op *op)
{
    if (op->type == &ct_op_experts)
        return &float8_op_experts;
    if (op->type == &ct_op_experts_dx)
        return &float8_op_experts_dx;
    return op->type == &ct_op_experts_dw ? &float8_op_experts_dw : NULL;
}

static int check(const struct ct_graph *graph, const struct ct_op *op, const struct ct_value *gate)
{
    int64_t local[CT_MAX_DIMS],
        unit = float8_config.experts == FLOAT8_EXPERTS_MXFP8 ? FLOAT8_BLOCK : UNIT;
    int64_t block = recipes[float8_config.experts].token.columns;

    if (gate->shape[1] % unit || gate->shape[2] % unit)
        return ct_fail(CT_ECONFIG,
                       "[float8] experts = %s: the experts of %s have %lld hidden units of %lld "
                       "inputs: both must be multiples of %d",
                       float8_word("experts", graph->arena), op->region, (long long)gate->shape[1],
                       (long long)gate->shape[2], (int)unit);
    ct_sharding_local(&gate->sharding, &graph->mesh, 0, gate->ndim, gate->shape, local, NULL);
    if (block && local[1] != gate->shape[1] && local[1] % block)
        return ct_fail(CT_ECONFIG,
                       "[float8] experts = %s: ranks have %lld of the %lld hidden units of the "
                       "experts of %s, which is no multiple of %d",
                       float8_word("experts", graph->arena), (long long)local[1],
                       (long long)gate->shape[1], op->region, (int)block);
    return 0;
}

int float8_use_experts(struct ct_graph *graph, struct ct_run *run)
{
    struct float8_experts how = {.recipe = float8_config.experts};
    int rc = 0;

    if (how.recipe == FLOAT8_EXPERTS_NONE)
        return 0;
    ct_for_each_op (op, graph) {
        const struct ct_op_type *type = instead_of(op);
        struct ct_value *in[1 + OPERANDS];

        if (!type || rc < 0)
            continue;
        rc = check(graph, op, op->in[(type != &float8_op_experts) + GATE]);
        if (rc < 0)
            continue;
        how.gate = *(const struct ct_experts *)op->attrs;
        memcpy(in, op->in, sizeof(*in) * (size_t)op->ins);
        op->why = ct_arena_printf(graph->arena, "float8: %s products of experts",
                                  float8_word("experts", graph->arena));
        ct_op_become(graph, op, type, in, op->ins, &how);
    }
    (void)run;
    return rc;
}
