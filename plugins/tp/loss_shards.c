/*
 * Token cross entropy in two steps, for logits that are split by vocabulary. The vocabulary is
 * divided into `shards` parts in the way of shardings (ct_shard_begin).
 * Each part gives three numbers per token: its largest logit, the sum of exp(logit - largest), and
 * the label's logit, or 0 if the label is in another shard. Merged, they give the loss. A rank
 * needs only its own shards for the first step, which has the logits.
 *
 * The largest logit is a shift that does not change the loss. Both gradients treat it as a
 * constant. Neither is a derivative by itself, but together they are.
 */
#include <math.h>

#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>
#include <ctitan/rule.h>

#include "tp.h"

enum { LARGEST, SUM, LABEL, STATISTICS };

/* Dimension `shards` of an operand is split in the same way as the vocabulary. */
static void tie_shards(struct ct_rule *rule, int vocabulary, int shards, int64_t count)
{
    const struct ct_rule_operand *of_v = &rule->operand[vocabulary], *of_p = &rule->operand[shards];
    int v = of_v->factor[of_v->ndim - 1], p = of_p->factor[of_p->ndim - 2];

    rule->factor[v].kind = rule->factor[p].kind = CT_FACTOR_PARALLEL;
    rule->factor[p].size = count;
    rule->tie[0] = v;
    rule->tie[1] = p;
}

static int check_statistics(const struct ct_value *stats)
{
    if (stats->shape[stats->ndim - 1] == STATISTICS)
        return 0;
    return ct_fail(CT_EINVAL, "%%%s has %lld numbers of a shard, not %d", stats->name,
                   (long long)stats->shape[stats->ndim - 1], STATISTICS);
}

/* ---- shards ---- */

/* This rank's logits, and the first of its shards of them. */
struct span {
    int64_t first, shard, vocabulary, shards;
};

static struct span span_of(const struct ct_launch *l, const struct ct_value *logits,
                           const struct ct_value *stats)
{
    return (struct span){.first = ct_launch_offset(l, logits, logits->ndim - 1),
                         .shard = ct_launch_offset(l, stats, stats->ndim - 2),
                         .vocabulary = logits->shape[logits->ndim - 1],
                         .shards = stats->shape[stats->ndim - 2]};
}

/* The first logit of local shard p among this rank's. */
static int64_t begin_of(const struct span *s, int64_t p)
{
    return ct_shard_begin(s->vocabulary, s->shards, s->shard + p) - s->first;
}

static void summarise(const double *logits, int64_t n, double label, double *stats)
{
    stats[LARGEST] = -INFINITY;
    for (int64_t k = 0; k < n; k++)
        stats[LARGEST] = fmax(stats[LARGEST], logits[k]);
    for (int64_t k = 0; k < n; k++)
        stats[SUM] += exp(logits[k] - stats[LARGEST]);
    if (label >= 0 && label < (double)n)
        stats[LABEL] = logits[(int64_t)label];
}

static int check_label(const struct ct_reference *r, int input, int64_t token, int logits)
{
    const struct ct_value *v = r->launch->op->in[logits];

    if (r->in[input][token] == CT_MASKED)
        return 0;
    return ct_checked_index(r->in[input], token, v->shape[v->ndim - 1], "label");
}

static int partial_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_value *logits = l->op->in[0];
    int64_t shards = l->out[0].shape[l->out[0].ndim - 2], v = ct_columns(&l->in[0]);
    struct span span = span_of(l, logits, l->op->out[0]);
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < ct_tensor_count(&l->in[1]); i++) {
        rc = check_label(&r, 1, i, 0);
        for (int64_t p = 0; rc == 0 && p < shards; p++) {
            int64_t at = begin_of(&span, p);

            summarise(r.in[0] + i * v + at, begin_of(&span, p + 1) - at,
                      r.in[1][i] - (double)(span.first + at),
                      r.out[0] + (i * shards + p) * STATISTICS);
        }
    }
    return ct_reference_end(&r, rc);
}

static int64_t shards_of(const struct ct_op *op)
{
    return ((const struct tp_cross_entropy_partial *)op->attrs)->shards;
}

static int partial_infer(struct ct_op *op)
{
    struct ct_value *stats = op->out[0];

    stats->shape[stats->ndim - 2] = shards_of(op);
    stats->shape[stats->ndim - 1] = STATISTICS;
    return 0;
}

static int partial_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    (void)arena;
    tie_shards(rule, 0, 2, shards_of(op));
    return 0;
}

static int partial_vjp(struct ct_vjp *v)
{
    struct ct_op *op = v->op;

    return ct_emit_gradients(v, &tp_op_cross_entropy_partial_grad,
                             (struct ct_value *[]){v->dout[0], op->out[0], op->in[0], op->in[1]}, 4,
                             NULL, (int[]){0}, 1);
}

const struct ct_op_type tp_op_cross_entropy_partial = {
    .size = sizeof(struct ct_op_type),
    .name = "cross_entropy_partial",
    .summary = "largest logit, sum of exponentials and label's logit of shards of the vocabulary",
    .signature = "logits[.v] T, labels[.] i -> stats[.pS] W",
    .samples = "@joint: real[2,4,6] label[2,4]; @joint shards=2: real[2,4,6] label[2,4]",
    .attrs =
        (const struct ct_option[]){CT_OPT_INT(struct tp_cross_entropy_partial, shards, "shards",
                                              "1", 1, 0x1p31, "Parts of the vocabulary"),
                                   {0}},
    .attrs_size = sizeof(struct tp_cross_entropy_partial),
    .infer = partial_infer,
    .vjp = partial_vjp,
    .factors = partial_factors,
    .reference = partial_reference,
};

static int partial_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_value *logits = l->op->in[2];
    int64_t shards = l->in[1].shape[l->in[1].ndim - 2], v = ct_columns(&l->in[2]);
    struct span span = span_of(l, logits, l->op->in[1]);
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < ct_tensor_count(&l->in[3]); i++) {
        int64_t label = (int64_t)r.in[3][i] - span.first;

        rc = check_label(&r, 3, i, 2);
        for (int64_t k = 0; rc == 0 && k < v; k++) {
            int64_t of = ct_shard_of(span.vocabulary, span.shards, span.first + k) - span.shard;
            int64_t shard = (i * shards + of) * STATISTICS;
            const double *d = r.in[0] + shard, *stats = r.in[1] + shard;

            r.out[0][i * v + k] =
                d[SUM] * exp(r.in[2][i * v + k] - stats[LARGEST]) + (k == label ? d[LABEL] : 0);
        }
    }
    return ct_reference_end(&r, rc);
}

static int partial_grad_infer(struct ct_op *op)
{
    return check_statistics(op->in[1]);
}

static int partial_grad_factors(const struct ct_op *op, struct ct_arena *arena,
                                struct ct_rule *rule)
{
    (void)arena;
    tie_shards(rule, 2, 1, op->in[1]->shape[op->in[1]->ndim - 2]);
    return 0;
}

const struct ct_op_type tp_op_cross_entropy_partial_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "cross_entropy_partial_grad",
    .summary = "gradient of cross_entropy_partial",
    .signature = "dstats[.pS] W, stats[.pS] W, logits[.v] T, labels[.] i -> dlogits[.v] T",
    .samples = "statistic[2,4,2,3] statistic[2,4,2,3] real[2,4,6] label[2,4]",
    .inplace = (const int8_t[][2]){{0, 2}, {-1, -1}},
    .infer = partial_grad_infer,
    .factors = partial_grad_factors,
    .reference = partial_grad_reference,
};

/* ---- merged ---- */

static double merged_log_sum(const double *stats, int64_t shards)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t p = 0; p < shards; p++)
        largest = fmax(largest, stats[p * STATISTICS + LARGEST]);
    for (int64_t p = 0; p < shards; p++)
        sum += stats[p * STATISTICS + SUM] * exp(stats[p * STATISTICS + LARGEST] - largest);
    return largest + log(sum);
}

static int merge_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t shards = l->in[0].shape[l->in[0].ndim - 2];

    for (int64_t i = 0; i < ct_tensor_count(&l->in[1]); i++) {
        const double *stats = r.in[0] + i * shards * STATISTICS;

        r.out[1][i] = merged_log_sum(stats, shards);
        if (r.in[1][i] == CT_MASKED)
            continue;
        *r.out[0] += r.out[1][i];
        for (int64_t p = 0; p < shards; p++)
            *r.out[0] -= stats[p * STATISTICS + LABEL];
    }
    return ct_reference_end(&r, 0);
}

static int merge_infer(struct ct_op *op)
{
    return check_statistics(op->in[0]);
}

static int merge_vjp(struct ct_vjp *v)
{
    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, &tp_op_cross_entropy_merge_grad,
        (struct ct_value *[]){v->dout[0], v->op->in[0], v->op->in[1], v->op->out[1]}, 4, NULL,
        (int[]){0}, 1);
}

const struct ct_op_type tp_op_cross_entropy_merge = {
    .size = sizeof(struct ct_op_type),
    .name = "cross_entropy_merge",
    .summary = "sum of token cross entropies from the statistics of all shards",
    .signature = "stats[.PS] T, labels[.] i -> loss[] W, lse[.] W",
    .samples = "@joint: statistic[2,4,3,3] label[2,4]",
    .infer = merge_infer,
    .vjp = merge_vjp,
    .reference = merge_reference,
};

static int merge_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t shards = l->in[1].shape[l->in[1].ndim - 2];

    for (int64_t p = 0; p < ct_tensor_count(&l->in[2]) * shards; p++) {
        const double *stats = r.in[1] + p * STATISTICS;
        double *d = r.out[0] + p * STATISTICS;

        if (r.in[2][p / shards] == CT_MASKED)
            continue;
        d[SUM] = *r.in[0] * exp(stats[LARGEST] - r.in[3][p / shards]);
        d[LABEL] = -*r.in[0];
    }
    return ct_reference_end(&r, 0);
}

static int merge_grad_infer(struct ct_op *op)
{
    return check_statistics(op->in[1]);
}

const struct ct_op_type tp_op_cross_entropy_merge_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "cross_entropy_merge_grad",
    .summary = "gradient of cross_entropy_merge",
    .signature = "dloss[] F, stats[.pS] T, labels[.] i, lse[.] W -> dstats[.pS] T",
    .samples = "positive[] statistic[2,4,2,3] label[2,4] statistic[2,4]",
    .infer = merge_grad_infer,
    .reference = merge_grad_reference,
};

struct ct_value *tp_cross_entropy_partial(struct ct_builder *b, const char *name,
                                          struct ct_value *logits, struct ct_value *labels,
                                          int64_t shards)
{
    return ct_emit_type1(b, &tp_op_cross_entropy_partial, name,
                         (struct ct_value *[]){logits, labels}, 2,
                         &(struct tp_cross_entropy_partial){shards});
}

struct ct_value *tp_cross_entropy_merge(struct ct_builder *b, const char *name,
                                        struct ct_value *stats, struct ct_value *labels)
{
    return ct_emit_type1(b, &tp_op_cross_entropy_merge, name, (struct ct_value *[]){stats, labels},
                         2, NULL);
}
