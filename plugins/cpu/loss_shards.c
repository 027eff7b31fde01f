/*
 * Cross entropy on shards of the vocabulary (plugins/tp defines what the numbers mean). The logits
 * are read once for the statistics and once for their gradient; all other work is on three numbers
 * per shard.
 */
#include <math.h>
#include <string.h>

#include "loops.h"
#include "loss.h"

enum { LARGEST, SUM, LABEL, STATISTICS };

/* The local part of the vocabulary: its first logit, its number of shards and the first of them. */
struct span {
    int64_t first, shards, shard, vocabulary, all_shards;
};

static struct span span_of(const struct ct_launch *l, int input, const struct ct_value *stats,
                           int64_t shards)
{
    const struct ct_value *v = l->op->in[input];

    return (struct span){.first = ct_launch_offset(l, v, v->ndim - 1),
                         .shards = shards,
                         .shard = ct_launch_offset(l, stats, stats->ndim - 2),
                         .vocabulary = v->shape[v->ndim - 1],
                         .all_shards = stats->shape[stats->ndim - 2]};
}

/* The first logit of local shard p among this rank's. */
static int64_t begin_of(const struct span *s, int64_t p)
{
    return ct_shard_begin(s->vocabulary, s->all_shards, s->shard + p) - s->first;
}

static int64_t vocabulary(const struct ct_value *logits)
{
    return logits->shape[logits->ndim - 1];
}

static bool plain(const struct ct_tensor *t, enum ct_dtype dtype)
{
    return t->dtype == dtype && ct_tensor_is_dense(t);
}

static bool rows_acceptable(const struct ct_tensor *t)
{
    struct ct_matrix rows;

    return cpu_is_compute_dtype(t->dtype) && ct_tensor_as_matrix(t, &rows) && rows.columns > 0;
}

static const char *element_at(enum ct_dtype dtype, const char *row, int64_t i)
{
    return row + (size_t)i * ct_dtype_size(dtype);
}

static float element(enum ct_dtype dtype, const char *row, int64_t i)
{
    const char *at = element_at(dtype, row, i);

    return dtype == CT_F32 ? *(const float *)at : ct_bf16_to_f32(*(const uint16_t *)at);
}

/* ---- shards ---- */

struct partial_call {
    const struct ct_tensor *logits, *labels, *stats;
    struct span span;
    bool add;
};

static bool accepts_partial(const struct ct_prepare *p)
{
    return rows_acceptable(&p->in[0]) && plain(&p->in[1], CT_I32) && plain(&p->out[0], CT_F32);
}

static void partial_rows(void *context, int thread, int threads)
{
    const struct partial_call *c = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(c->labels), 1, thread, threads);
    enum ct_dtype dtype = c->logits->dtype;

    for (int64_t i = mine.begin; i < mine.end; i++) {
        const char *row = cpu_row(c->logits, i);
        int64_t label = ((const int32_t *)c->labels->data)[i] - c->span.first;

        for (int64_t p = 0; p < c->span.shards; p++) {
            int64_t at = begin_of(&c->span, p), n = begin_of(&c->span, p + 1) - at;
            const char *shard = element_at(dtype, row, at);
            float *out = (float *)c->stats->data + (i * c->span.shards + p) * STATISTICS;
            float stats[STATISTICS] = {-INFINITY, 0, 0};

            if (n > 0)
                stats[SUM] = cpu_loops()->sum_exp(dtype, shard, n, &stats[LARGEST]);
            if (label >= at && label < at + n)
                stats[LABEL] = element(dtype, row, label);
            for (int k = 0; k < STATISTICS; k++)
                out[k] = c->add ? out[k] + stats[k] : stats[k];
        }
    }
}

static int run_partial(const struct ct_launch *l)
{
    struct partial_call call = {&l->in[0], &l->in[1], &l->out[0],
                                span_of(l, 0, l->op->out[0], l->out[0].shape[l->out[0].ndim - 2]),
                                l->accumulate & 1};
    int rc = cpu_check_labels(call.labels, vocabulary(l->op->in[0]));

    if (rc == 0)
        cpu_parallel(partial_rows, &call);
    return rc;
}

struct partial_grad_call {
    const struct ct_tensor *dstats, *stats, *logits, *labels, *dlogits;
    struct span span;
    bool add;
};

static bool accepts_partial_grad(const struct ct_prepare *p)
{
    return plain(&p->in[0], CT_F32) && plain(&p->in[1], CT_F32) && rows_acceptable(&p->in[2]) &&
           plain(&p->in[3], CT_I32) && rows_acceptable(&p->out[0]);
}

static void put(enum ct_dtype dtype, char *row, int64_t i, float value)
{
    if (dtype == CT_F32)
        ((float *)row)[i] = value;
    else
        ((uint16_t *)row)[i] = ct_f32_to_bf16(value);
}

/* One shard of a row. The label's element is computed separately, so that it is rounded once. */
static void partial_grad_shard(const struct partial_grad_call *c, const char *logits, char *out,
                               int64_t n, int64_t label, const float *d, float largest)
{
    enum ct_dtype to = c->dlogits->dtype, from = c->logits->dtype;
    bool here = label >= 0 && label < n;
    float of_label = here ? d[SUM] * expf(element(from, logits, label) - largest) + d[LABEL] : 0;

    if (here && c->add)
        of_label += element(to, out, label);
    if (d[SUM] != 0)
        cpu_loops()->softmax(to, out, from, logits, n, largest, d[SUM], c->add);
    else if (!c->add)
        memset(out, 0, (size_t)n * ct_dtype_size(to));
    if (here)
        put(to, out, label, of_label);
}

static void partial_grad_rows(void *context, int thread, int threads)
{
    const struct partial_grad_call *c = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(c->labels), 1, thread, threads);
    const float *d = c->dstats->data, *stats = c->stats->data;

    for (int64_t i = mine.begin; i < mine.end; i++) {
        const char *logits = cpu_row(c->logits, i);
        char *out = cpu_row(c->dlogits, i);
        int64_t label = ((const int32_t *)c->labels->data)[i] - c->span.first;

        for (int64_t p = 0; p < c->span.shards; p++) {
            int64_t at = (i * c->span.shards + p) * STATISTICS;
            int64_t begin = begin_of(&c->span, p), n = begin_of(&c->span, p + 1) - begin;

            partial_grad_shard(c, element_at(c->logits->dtype, logits, begin),
                               out + (size_t)begin * ct_dtype_size(c->dlogits->dtype), n,
                               label - begin, d + at, stats[at + LARGEST]);
        }
    }
}

static int run_partial_grad(const struct ct_launch *l)
{
    struct partial_grad_call call = {
        .dstats = &l->in[0],
        .stats = &l->in[1],
        .logits = &l->in[2],
        .labels = &l->in[3],
        .dlogits = &l->out[0],
        .span = span_of(l, 2, l->op->in[1], l->in[1].shape[l->in[1].ndim - 2]),
        .add = l->accumulate & 1};
    int rc = cpu_check_labels(call.labels, vocabulary(l->op->in[2]));

    if (rc == 0)
        cpu_parallel(partial_grad_rows, &call);
    return rc;
}

/* ---- merged ---- */

struct merge_call {
    const struct ct_tensor *stats, *labels, *lse;
    double *losses;
    bool add_lse;
};

static bool accepts_merge(const struct ct_prepare *p)
{
    return plain(&p->in[0], CT_F32) && plain(&p->in[1], CT_I32) && p->out[0].dtype == CT_F32 &&
           plain(&p->out[1], CT_F32);
}

static int prepare_merge(struct ct_prepare *p)
{
    p->workspace = (size_t)ct_tensor_count(&p->in[1]) * sizeof(double);
    return 0;
}

static double merged_log_sum(const float *stats, int64_t shards, double *of_label)
{
    double sum = 0;
    float largest = stats[LARGEST];

    *of_label = 0;
    for (int64_t p = 1; p < shards; p++)
        largest = fmaxf(largest, stats[p * STATISTICS + LARGEST]);
    for (int64_t p = 0; p < shards; p++, stats += STATISTICS) {
        sum += (double)(stats[SUM] * expf(stats[LARGEST] - largest));
        *of_label += (double)stats[LABEL];
    }
    return (double)largest + log(sum);
}

static void merge_rows(void *context, int thread, int threads)
{
    const struct merge_call *c = context;
    int64_t shards = c->stats->shape[c->stats->ndim - 2];
    struct cpu_range mine = cpu_share(ct_tensor_count(c->labels), 1, thread, threads);
    float *lse = c->lse->data;

    for (int64_t i = mine.begin; i < mine.end; i++) {
        const float *stats = (const float *)c->stats->data + i * shards * STATISTICS;
        double of_label, log_sum = merged_log_sum(stats, shards, &of_label);
        bool masked = ((const int32_t *)c->labels->data)[i] == CPU_MASKED;

        c->losses[i] = masked ? 0 : log_sum - of_label;
        lse[i] = c->add_lse ? lse[i] + (float)log_sum : (float)log_sum;
    }
}

static int run_merge(const struct ct_launch *l)
{
    struct merge_call call = {&l->in[0], &l->in[1], &l->out[1], l->workspace, l->accumulate & 2};

    cpu_parallel(merge_rows, &call);
    cpu_store_loss(&l->out[0], call.losses, ct_tensor_count(call.labels), l->accumulate & 1);
    return 0;
}

struct merge_grad_call {
    const struct ct_tensor *stats, *labels, *lse, *dstats;
    float dloss;
    bool add;
};

static bool accepts_merge_grad(const struct ct_prepare *p)
{
    return plain(&p->in[1], CT_F32) && plain(&p->in[2], CT_I32) && plain(&p->in[3], CT_F32) &&
           plain(&p->out[0], CT_F32);
}

static void merge_grad_rows(void *context, int thread, int threads)
{
    const struct merge_grad_call *c = context;
    int64_t shards = c->stats->shape[c->stats->ndim - 2];
    struct cpu_range mine = cpu_share(ct_tensor_count(c->labels), 1, thread, threads);

    for (int64_t i = mine.begin * shards; i < mine.end * shards; i++) {
        const float *stats = (const float *)c->stats->data + i * STATISTICS;
        float *out = (float *)c->dstats->data + i * STATISTICS, d[STATISTICS] = {0};

        if (((const int32_t *)c->labels->data)[i / shards] != CPU_MASKED) {
            d[SUM] = c->dloss * expf(stats[LARGEST] - ((const float *)c->lse->data)[i / shards]);
            d[LABEL] = -c->dloss;
        }
        for (int k = 0; k < STATISTICS; k++)
            out[k] = c->add ? out[k] + d[k] : d[k];
    }
}

static int run_merge_grad(const struct ct_launch *l)
{
    struct merge_grad_call call = {.stats = &l->in[1],
                                   .labels = &l->in[2],
                                   .lse = &l->in[3],
                                   .dstats = &l->out[0],
                                   .dloss = (float)ct_tensor_load(&l->in[0], 0),
                                   .add = l->accumulate & 1};

    cpu_parallel(merge_grad_rows, &call);
    return 0;
}

#define FLAGS (CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED)

const struct ct_kernel cpu_loss_shard_kernels[] = {
    CT_KERNEL("cross_entropy_partial", "vector", FLAGS, accepts_partial, NULL, run_partial),
    CT_KERNEL("cross_entropy_partial_grad", "vector", FLAGS, accepts_partial_grad, NULL,
              run_partial_grad),
    CT_KERNEL("cross_entropy_merge", "vector", FLAGS, accepts_merge, prepare_merge, run_merge),
    CT_KERNEL("cross_entropy_merge_grad", "vector", FLAGS, accepts_merge_grad, NULL,
              run_merge_grad),
    {0}};
