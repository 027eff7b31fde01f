#include <math.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/ops.h>
#include <ctitan/number.h>
#include <ctitan/objective.h>
#include <ctitan/op_author.h>
#include <ctitan/run.h>

#include "scores.h"

enum { LOGITS, LABELS };
enum { LOGP, WRONG, TOKEN, SCORES };

/* ---- the op ---- */

/* The index of the largest logit; the first of equal ones, as numpy's argmax. */
static int64_t likeliest(const double *logits, int64_t count)
{
    int64_t best = 0;

    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[LOGITS]), tokens = l->in[LABELS].shape[1];
    int rc = 0;

    for (int64_t i = 0; rc >= 0 && i < ct_rows(&l->in[LOGITS]); i++) {
        const double *logits = r.in[LOGITS] + i * v;
        int64_t best;

        if (r.in[LABELS][i] == CT_MASKED)
            continue;
        rc = ct_checked_index(r.in[LABELS], i, v, "label");
        if (rc < 0)
            break;
        best = likeliest(logits, v);
        r.out[LOGP][i / tokens] += logits[(int64_t)r.in[LABELS][i]] - ct_log_sum_exp(logits, v);
        r.out[WRONG][i / tokens] += best != (int64_t)r.in[LABELS][i];
        r.out[TOKEN][i / tokens] += (double)best;
    }
    return ct_reference_end(&r, rc < 0 ? rc : 0);
}

/* t is in inputs only: where ranks split the sequence, each has a part of the sums. */
const struct ct_op_type scores_type = {
    .size = sizeof(struct ct_op_type),
    .name = "label_scores",
    .summary = "log-probability of each sequence's labels, how many are not the likeliest token, "
               "and the sum of the likeliest ones",
    .signature = "logits[btV] T, labels[bt] i -> logp[b] W, wrong[b] W, token[b] W",
    .reference = reference,
    .samples = "@flops=0: real[2,4,6] label[2,4]",
};

/* ---- the kernel for CPUs ---- */

struct scored {
    double logp;
    int64_t best;
};

static float at(const struct ct_tensor *t, int64_t i)
{
    return t->dtype == CT_F32 ? ((const float *)t->data)[i]
                              : ct_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

static struct scored score(const struct ct_tensor *logits, int64_t row, int32_t label)
{
    int64_t v = ct_columns(logits), first = row * v, best = 0;
    double sum = 0;
    float most;

    for (int64_t k = 1; k < v; k++)
        if (at(logits, first + k) > at(logits, first + best))
            best = k;
    most = at(logits, first + best);
    for (int64_t k = 0; k < v; k++)
        sum += (double)expf(at(logits, first + k) - most);
    return (struct scored){(double)at(logits, first + label) - (double)most - log(sum), best};
}

/* Few labels are not masked. */
static void score_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const int32_t *labels = l->in[LABELS].data;
    struct scored *scored = l->workspace;
    int64_t v = ct_columns(&l->in[LOGITS]);

    for (int64_t i = begin; i < end; i++)
        if (labels[i] >= 0 && labels[i] < v)
            scored[i] = score(&l->in[LOGITS], i, labels[i]);
}

static bool accepts(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[LOGITS].dtype;

    return (dtype == CT_F32 || dtype == CT_BF16) && p->out[LOGP].dtype == CT_F32;
}

static int prepare(struct ct_prepare *p)
{
    p->workspace = (size_t)ct_rows(&p->in[LOGITS]) * sizeof(struct scored);
    return 0;
}

static int run_scores(const struct ct_launch *l)
{
    const int32_t *labels = l->in[LABELS].data;
    const struct scored *scored = l->workspace;
    int64_t tokens = l->in[LABELS].shape[1], v = ct_columns(&l->in[LOGITS]);

    ct_parallel(l, ct_rows(&l->in[LOGITS]), score_rows, (void *)(uintptr_t)l);
    for (int64_t b = 0; b < l->in[LABELS].shape[0]; b++) {
        double sum[SCORES] = {0};

        for (int64_t i = b * tokens; i < (b + 1) * tokens; i++) {
            if (labels[i] == CT_MASKED)
                continue;
            if (labels[i] < 0 || labels[i] >= v)
                return ct_fail(CT_EINVAL, "label %d of token %lld: expected 0 to %lld, or %d",
                               labels[i], (long long)i, (long long)v - 1, CT_MASKED);
            sum[LOGP] += scored[i].logp;
            sum[WRONG] += scored[i].best != labels[i];
            sum[TOKEN] += (double)scored[i].best;
        }
        for (int k = 0; k < SCORES; k++)
            ct_tensor_store(&l->out[k], b, sum[k]);
    }
    return 0;
}

const struct ct_kernel scores_kernels[] = {
    CT_KERNEL("label_scores", "rows", 0, accepts, prepare, run_scores), {0}};

/* ---- the transform ---- */

static struct ct_value *find_logits(const struct ct_graph *graph)
{
    ct_marks logits = ct_mark(CT_MARK_LOGITS);

    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->marks & logits && graph->values[i]->producer)
            return graph->values[i];
    return NULL;
}

/* Only graphs of validation have logits with the mark. */
static int add_scores(struct ct_graph *graph, struct ct_run *owner)
{
    static const char *const names[] = {SCORE_LOGP, SCORE_WRONG, SCORE_TOKEN};
    struct ct_value *logits = find_logits(graph), *labels = ct_graph_find_input(graph, "labels");
    struct ct_builder b;
    struct ct_op *op;

    (void)owner;
    if (!logits || !labels)
        return 0;
    b = ct_builder_after(graph, logits->producer);
    b.why = "scores of the plugin eval";
    op = ct_emit_type(&b, &scores_type, SCORE_LOGP, (struct ct_value *[]){logits, labels}, 2, NULL);
    for (int i = 0; op && i < SCORES; i++)
        ct_graph_fetch(graph, names[i], op->out[i]);
    return b.status;
}

const struct ct_transform scores_transform = {
    .size = sizeof(struct ct_transform),
    .name = "eval_scores",
    .summary = "validation computes the scores of sequences, too",
    .phase = CT_PHASE_SHARD,
    .evaluation = true,
    .apply = add_scores,
};
