/*
 * Attention with grouped heads (Vaswani et al. 2017; Ainslie et al. 2023). The row statistic lse is
 * the log of the sum of exponentials of the scaled scores. Besides the operands, the backward needs
 * only lse: p = exp(s - lse) (Dao et al. 2022).
 *
 * Queries and keys may be shards of a sequence, in any order: positions and documents determine
 * which query sees which key. With the statistics of the whole, gradients of shards simply add up.
 */
#include <math.h>

#include <ctitan/rule.h>

#include "list.h"

const struct ct_option ct_attention_attrs[] = {
    CT_OPT_BOOL(struct ct_attention, causal, "causal", "true", "A query sees no later key"),
    CT_OPT_FLOAT(struct ct_attention, scale, "scale", "0", 0, 1e30,
                 "Factor of the scores; 0: 1 over the root of d"),
    CT_OPT_INT(struct ct_attention, window, "window", "0", 0, 0x1p53,
               "A query sees keys closer to it than this; 0: any"),
    CT_OPT_BOOL(struct ct_attention, blockwise, "blockwise", "false",
                "Keys are split like queries: each rank sees only its own block of keys"),
    CT_OPT_INT(
        struct ct_attention, known, "known", "0", 0, 1 << 20,
        "Positions follow from the graph; keys are from the rank this many places before, less 1"),
    CT_OPT_FLOAT(struct ct_attention, softcap, "softcap", "0", 0, 1e30,
                 "Scores s become softcap tanh(s / softcap); 0: they stay"),
    CT_OPT_FLOAT(
        struct ct_attention, alibi, "alibi", "0", 0, 1e3,
        "Scores sink with the distance of a key, in head i of n by 2^(-alibi (i + 1) / n); "
        "0: they stay"),
    {0},
};

/* Rows of q[b, t, h, d], k[b, s, g, d], v[b, s, g, v_size] and lse[b, h, t], and the masks. */
struct heads {
    int64_t batch, t, s, h, g, d, v_size;
    const double *documents, *k_documents; /* [b, t], [b, s]; NULL: one document */
    const double *positions, *k_positions; /* the same; NULL: consecutive from first, k_first */
    int64_t first, k_first;
    double scale, window; /* window 0: none */
    bool causal;
    double softcap, alibi; /* 0: none */
    int64_t first_head, all_heads;
};

/* q is input `at`, k and v the next ones; the optional inputs begin at `more`. */
static struct heads heads_of(const struct ct_launch *l, const struct ct_reference *r, int at,
                             int more)
{
    const struct ct_tensor *q = &l->in[at], *k = &l->in[at + 1];
    const double *optional[4] = {NULL};
    double scale = ct_op_float(l->op, "scale");

    for (int i = 0; i < 4 && more + i < l->ins; i++)
        optional[i] = r->in[more + i];
    return (struct heads){
        .batch = q->shape[0],
        .t = q->shape[1],
        .s = k->shape[1],
        .h = q->shape[2],
        .g = k->shape[2],
        .d = q->shape[3],
        .v_size = l->in[at + 2].shape[3],
        .documents = optional[0],
        .k_documents = optional[1] ? optional[1] : optional[0],
        .positions = optional[2],
        .k_positions = optional[3],
        .first = ct_launch_offset(l, l->op->in[at], 1),
        .k_first = ct_launch_offset(l, l->op->in[at + 1], 1),
        .scale = scale > 0 ? scale : 1 / sqrt((double)q->shape[3]),
        .window = (double)ct_op_int(l->op, "window"),
        .causal = ct_op_bool(l->op, "causal"),
        .softcap = ct_op_float(l->op, "softcap"),
        .alibi = ct_op_float(l->op, "alibi"),
        .first_head = ct_launch_offset(l, l->op->in[at], 2),
        .all_heads = l->op->in[at]->shape[2],
    };
}

double ct_alibi_slope(double alibi, int64_t heads, int64_t head)
{
    int64_t power = 1;

    while (2 * power <= heads)
        power *= 2;
    if (head < power)
        return exp2(-alibi * (double)(head + 1) / (double)power);
    return exp2(-alibi * (double)(2 * (head - power) + 1) / (double)(2 * power));
}

static int64_t query_row(const struct heads *a, int64_t b, int64_t i, int64_t h)
{
    return (b * a->t + i) * a->h + h;
}

static int64_t key_row(const struct heads *a, int64_t b, int64_t j, int64_t h)
{
    return (b * a->s + j) * a->g + h / (a->h / a->g);
}

/* How far query i is behind key j. */
static double distance(const struct heads *a, int64_t b, int64_t i, int64_t j)
{
    double position = a->positions ? a->positions[b * a->t + i] : (double)(a->first + i);
    double k_position = a->k_positions ? a->k_positions[b * a->s + j] : (double)(a->k_first + j);

    return position - k_position;
}

/* Does query i see key j? */
static bool sees(const struct heads *a, int64_t b, int64_t i, int64_t j)
{
    double behind = distance(a, b, i, j);

    return (!a->causal || behind >= 0) && (!a->window || fabs(behind) < a->window) &&
           (!a->documents || a->documents[b * a->t + i] == a->k_documents[b * a->s + j]);
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;

    for (int64_t k = 0; k < n; k++)
        sum += x[k] * y[k];
    return sum;
}

static void add_scaled(double *y, double a, const double *x, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        y[k] += a * x[k];
}

/* A scaled score, changed as the attributes say. */
static double changed(const struct heads *a, int64_t b, int64_t i, int64_t j, int64_t h, double s)
{
    if (a->softcap > 0)
        s = a->softcap * tanh(s / a->softcap);
    if (a->alibi > 0)
        s -= ct_alibi_slope(a->alibi, a->all_heads, a->first_head + h) * fabs(distance(a, b, i, j));
    return s;
}

/* Its derivative, given what it became. */
static double slope_at(const struct heads *a, double s)
{
    return a->softcap > 0 ? 1 - s / a->softcap * (s / a->softcap) : 1;
}

/* Scores of one query; -inf for keys that it does not see. Returns their log sum exp. */
static double scores(const struct heads *a, const double *q, const double *k, int64_t b, int64_t i,
                     int64_t h, double *s)
{
    double largest = -INFINITY, sum = 0;

    q += query_row(a, b, i, h) * a->d;
    for (int64_t j = 0; j < a->s; j++) {
        const double *key = k + key_row(a, b, j, h) * a->d;

        s[j] = sees(a, b, i, j) ? changed(a, b, i, j, h, a->scale * dot(q, key, a->d)) : -INFINITY;
        largest = s[j] > largest || isnan(s[j]) ? s[j] : largest;
    }
    for (int64_t j = 0; j < a->s && largest != -INFINITY; j++)
        sum += exp(s[j] - largest);
    return largest + log(sum);
}

static bool unseen(double score)
{
    return score == -INFINITY;
}

static int attention_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct heads a = heads_of(l, &r, 0, 3);
    double *s = ct_arena_array(&r.arena, double, a.s);

    for (int64_t row = 0; row < a.batch * a.h * a.t; row++) {
        int64_t b = row / a.t / a.h, h = row / a.t % a.h, i = row % a.t;
        double lse = scores(&a, r.in[0], r.in[1], b, i, h, s);

        r.out[1][row] = lse;
        for (int64_t j = 0; j < a.s; j++)
            if (!unseen(s[j]))
                add_scaled(r.out[0] + query_row(&a, b, i, h) * a.v_size, exp(s[j] - lse),
                           r.in[2] + key_row(&a, b, j, h) * a.v_size, a.v_size);
    }
    return ct_reference_end(&r, 0);
}

/* ---- shards ---- */

static bool present(const struct ct_op *op, int i)
{
    return i < op->ins && op->in[i];
}

static void join_factors(const struct ct_op *op, struct ct_rule *rule, int from, int to)
{
    for (int o = 0; o < op->ins + op->outs; o++)
        for (int d = 0; d < rule->operand[o].ndim; d++)
            if (rule->operand[o].factor[d] == from)
                rule->operand[o].factor[d] = to;
}

/* Queries can be split unless they share documents with the keys. */
static int shards(const struct ct_op *op, struct ct_rule *rule, int at, int more)
{
    int t = rule->operand[at].factor[1], s = rule->operand[at + 1].factor[1];
    int64_t queries = rule->factor[t].size, keys = rule->factor[s].size;
    const struct ct_attention *how = op->attrs;
    bool blockwise = how->blockwise;
    bool shared = present(op, more) && !present(op, more + 1);

    if (how->softcap > 0 && how->alibi > 0)
        return ct_fail(CT_EINVAL, "softcap and alibi exclude each other");
    if (present(op, more + 1) && !present(op, more))
        return ct_fail(CT_EINVAL, "k_documents without documents");
    if (queries != keys && (blockwise || shared))
        return ct_fail(CT_EINVAL, "%lld queries and %lld keys %s", (long long)queries,
                       (long long)keys, shared ? "share documents" : "are not blocks of a whole");
    if (shared)
        rule->factor[t].kind = CT_FACTOR_WHOLE;
    if (blockwise)
        join_factors(op, rule, s, t);
    return 0;
}

static int attention_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    (void)arena;
    return shards(op, rule, 0, 3);
}

static int attention_grad_factors(const struct ct_op *op, struct ct_arena *arena,
                                  struct ct_rule *rule)
{
    (void)arena;
    return shards(op, rule, 1, 6);
}

/* ---- types ---- */

/* The share of query-key pairs of a sequence that is seen. A causal query sees half of the keys;
   with a window, pairs are counted one by one. */
static double share_seen(const struct ct_attention *how, double tokens)
{
    double w = (double)how->window, seen;

    if (!how->window || w >= tokens)
        return how->causal ? 0.5 : 1;
    seen = how->causal ? w * tokens - w * (w - 1) / 2 : (2 * w - 1) * tokens - w * (w - 1);
    return seen / (tokens * tokens);
}

/* FLOPs of so many products over the head size of keys, and over that of values, for the queries
   and the keys that they see. q is input `at`, k and v the next ones. If queries are a shard, or
   both are, this is the mean over the ranks. */
static double pair_flops(const struct ct_op *op, const struct ct_tensor *in, int at, int by_key,
                         int by_value)
{
    const struct ct_tensor *q = &in[at], *k = &in[at + 1], *v = &in[at + 2];
    double pairs = (double)(q->shape[0] * q->shape[1] * q->shape[2]) * (double)k->shape[1];

    return 2.0 * (double)(by_key * q->shape[3] + by_value * v->shape[3]) * pairs *
           share_seen(op->attrs, (double)op->in[at + 1]->shape[1]);
}

static double attention_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    (void)out;
    return pair_flops(op, in, 0, 1, 1);
}

static int attention_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in;
    struct ct_value *all[10] = {v->dout[0], in[0], in[1], in[2], NULL, v->op->out[1]};
    int rc = ct_attention_result(v->op, &all[4]);

    if (rc < 0 || !v->dout[0])
        return rc;
    for (int i = 3; i < v->op->ins; i++)
        all[3 + i] = in[i];
    return ct_emit_gradients(v, &ct_op_attention_grad, all, v->op->ins + 3, v->op->attrs,
                             (int[]){0, 1, 2}, 3);
}

const struct ct_op_type ct_op_attention = {
    .size = sizeof(struct ct_op_type),
    .name = "attention",
    .summary = "attention: softmax(scale q k^T) v over the keys that are seen",
    .signature = "q[bthD] T, k[bSgD] T, v[bSgV] T, ?documents[bt] i, ?k_documents[bS] i, "
                 "?positions[bt] i, ?k_positions[bS] i -> o[bthV] T, lse[bht] W | h:g, @t, @S",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = ct_attention_attrs,
    .attrs_size = sizeof(struct ct_attention),
    .vjp = attention_vjp,
    .flops = attention_flops,
    .factors = attention_factors,
    .cache = ct_cache_attention,
    .reference = attention_reference,
    .samples =
        "@inner_roundings=1: real[2,6,4,4] real[2,6,2,4] real[2,6,2,4] document[2,6];"
        " @inner_roundings=1: real[2,5,4,2] real[2,5,4,2] real[2,5,4,2] -;"
        " @inner_roundings=1: real[2,5,6,2] real[2,5,2,2] real[2,5,2,2] -;"
        " @inner_roundings=1: real[2,4,4,4] real[2,6,2,4] real[2,6,2,4] document[2,4] "
        "document[2,6] position[2,4] position[2,6];"
        " @inner_roundings=1: real[2,6,2,4] real[2,4,2,4] real[2,4,2,4] document[2,6] "
        "document[2,4];"
        " @inner_roundings=1: real[2,4,2,2] real[2,3,2,2] real[2,3,2,2] - - position[2,4];"
        " @inner_roundings=1 @flops=2048 blockwise=true: real[2,8,4,2] real[2,8,2,2] real[2,8,2,2] "
        "document[2,8] document[2,8] position[2,8] position[2,8];"
        " @inner_roundings=1: real[2,5,4,3] real[2,5,2,3] real[2,5,2,2] document[2,5];"
        " @inner_roundings=1 causal=false scale=0.3: real[1,4,2,2] real[1,3,2,2] real[1,3,2,5] - - "
        "position[1,4];"
        " @inner_roundings=1 causal=false: real[2,3,4,2] real[2,5,2,2] real[2,5,2,2] -;"
        " @inner_roundings=1 window=2 scale=0.3: real[2,6,2,2] real[2,6,2,2] real[2,6,2,2] "
        "document[2,6];"
        " @inner_roundings=1 causal=false window=2: real[1,6,2,2] real[1,6,2,2] real[1,6,2,2] -;"
        " @inner_roundings=1 softcap=0.7: real[2,6,4,4] real[2,6,2,4] real[2,6,2,3];"
        " @inner_roundings=1 alibi=8: real[2,6,4,4] real[2,6,2,4] real[2,6,2,3]",
};

static int attention_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const double *d_o = r.in[0], *q = r.in[1], *k = r.in[2], *v = r.in[3], *o = r.in[4];
    struct heads a = heads_of(l, &r, 1, 6);
    double *s = ct_arena_array(&r.arena, double, a.s);

    for (int64_t row = 0; row < a.batch * a.h * a.t; row++) {
        int64_t b = row / a.t / a.h, h = row / a.t % a.h, i = row % a.t;
        int64_t at = query_row(&a, b, i, h) * a.d, o_at = query_row(&a, b, i, h) * a.v_size;
        double delta = dot(d_o + o_at, o + o_at, a.v_size);

        scores(&a, q, k, b, i, h, s);
        for (int64_t j = 0; j < a.s; j++) {
            int64_t key = key_row(&a, b, j, h);
            const double *v_j = v + key * a.v_size;
            double p, ds;

            if (unseen(s[j]))
                continue;
            p = exp(s[j] - r.in[5][row]);
            ds = p * (dot(d_o + o_at, v_j, a.v_size) - delta) * a.scale * slope_at(&a, s[j]);
            add_scaled(r.out[0] + at, ds, k + key * a.d, a.d);
            add_scaled(r.out[1] + key * a.d, ds, q + at, a.d);
            add_scaled(r.out[2] + key * a.v_size, p, d_o + o_at, a.v_size);
        }
    }
    return ct_reference_end(&r, 0);
}

static double attention_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                                   const struct ct_tensor *out)
{
    (void)out;
    return pair_flops(op, in, 1, 3, 2);
}

const struct ct_op_type ct_op_attention_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "attention_grad",
    .summary = "gradient of attention",
    .signature = "do[bthV] T, q[bthD] T, k[bSgD] T, v[bSgV] T, o[bthV] T, lse[bht] W, "
                 "?documents[bt] i, ?k_documents[bS] i, ?positions[bt] i, ?k_positions[bS] i "
                 "-> dq[bthD] T, dk[bSgD] T, dv[bSgV] T | h:g, @t, @S",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = ct_attention_attrs,
    .attrs_size = sizeof(struct ct_attention),
    .flops = attention_grad_flops,
    .factors = attention_grad_factors,
    .reference = attention_grad_reference,
    .samples =
        "@inner_roundings=1: real[2,4,4,4] real[2,4,4,4] real[2,6,2,4] real[2,6,2,4] real[2,4,4,4] "
        "statistic[2,4,4] document[2,4] document[2,6] position[2,4] position[2,6];"
        " @inner_roundings=1 @flops=2560 blockwise=true: real[2,8,2,2] real[2,8,2,2] real[2,8,2,2] "
        "real[2,8,2,2] real[2,8,2,2] statistic[2,2,8] document[2,8] document[2,8];"
        " @inner_roundings=1: real[2,5,4,2] real[2,5,4,3] real[2,5,2,3] real[2,5,2,2] "
        "real[2,5,4,2] statistic[2,4,5] document[2,5];"
        " @inner_roundings=1: real[2,6,4,4] real[2,6,4,4] real[2,6,2,4] real[2,6,2,4] "
        "real[2,6,4,4] statistic[2,4,6] document[2,6];"
        " @inner_roundings=1: real[2,6,4,4] real[2,6,4,4] real[2,6,4,4] real[2,6,4,4] "
        "real[2,6,4,4] statistic[2,4,6] -;"
        " @inner_roundings=1 softcap=0.7: real[2,6,4,3] real[2,6,4,4] real[2,6,2,4] real[2,6,2,3] "
        "real[2,6,4,3] statistic[2,4,6]",
};

struct ct_value *ct_attention(struct ct_builder *b, const char *name, struct ct_value *q,
                              struct ct_value *k, struct ct_value *v, struct ct_value *documents,
                              const struct ct_attention *how)
{
    return ct_emit_type1(b, &ct_op_attention, name, (struct ct_value *[]){q, k, v, documents}, 4,
                         how);
}
