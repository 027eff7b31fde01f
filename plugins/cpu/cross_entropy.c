/* Cross entropy of materialised logits, row by row, and helpers shared by all losses. */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>

#include "loops.h"
#include "loss.h"

int cpu_check_labels(const struct ct_tensor *labels, int64_t vocabulary)
{
    const int32_t *label = labels->data;
    int64_t n = ct_tensor_count(labels);

    for (int64_t i = 0; i < n; i++)
        if (label[i] != CPU_MASKED && (label[i] < 0 || label[i] >= vocabulary))
            return ct_fail(CT_EINVAL, "label %d of token %lld: expected 0 to %lld, or %d", label[i],
                           (long long)i, (long long)vocabulary - 1, CPU_MASKED);
    return 0;
}

void cpu_store_loss(const struct ct_tensor *loss, const double *losses, int64_t n, bool add)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += losses[i];
    ct_tensor_store(loss, 0, add ? ct_tensor_load(loss, 0) + sum : sum);
}

char *cpu_row(const struct ct_tensor *t, int64_t row)
{
    struct ct_matrix rows;

    ct_tensor_as_matrix(t, &rows);
    return (char *)t->data + (size_t)(row * rows.stride) * ct_dtype_size(t->dtype);
}

static float element(enum ct_dtype dtype, const void *row, int64_t i)
{
    return dtype == CT_F32 ? ((const float *)row)[i] : ct_bf16_to_f32(((const uint16_t *)row)[i]);
}

static void add_to_element(enum ct_dtype dtype, void *row, int64_t i, float value)
{
    if (dtype == CT_F32)
        ((float *)row)[i] += value;
    else
        ((uint16_t *)row)[i] = ct_f32_to_bf16(ct_bf16_to_f32(((uint16_t *)row)[i]) + value);
}

struct logits_call {
    const struct ct_tensor *logits, *labels, *lse, *dlogits;
    double *losses;
    float dloss;
    bool add, add_lse;
};

static bool logits_acceptable(const struct ct_tensor *logits, const struct ct_tensor *labels,
                              const struct ct_tensor *lse)
{
    struct ct_matrix rows;

    return cpu_is_compute_dtype(logits->dtype) && ct_tensor_as_matrix(logits, &rows) &&
           rows.columns > 0 && labels->dtype == CT_I32 && ct_tensor_is_dense(labels) &&
           lse->dtype == CT_F32 && ct_tensor_is_dense(lse);
}

static bool accepts_cross_entropy(const struct ct_prepare *p)
{
    return logits_acceptable(p->in, p->in + 1, p->out + 1) && p->out[0].dtype == CT_F32;
}

static int prepare_cross_entropy(struct ct_prepare *p)
{
    p->workspace = (size_t)ct_tensor_count(&p->in[1]) * sizeof(double);
    return 0;
}

static void cross_entropy_rows(void *context, int thread, int threads)
{
    const struct logits_call *c = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(c->labels), 1, thread, threads);
    const int32_t *label = c->labels->data;
    float *lse = c->lse->data;

    for (int64_t i = mine.begin; i < mine.end; i++) {
        const char *row = cpu_row(c->logits, i);
        float log_sum =
            cpu_loops()->log_sum_exp(c->logits->dtype, row, c->logits->shape[c->logits->ndim - 1]);

        c->losses[i] = 0;
        if (label[i] != CPU_MASKED)
            c->losses[i] = (double)(log_sum - element(c->logits->dtype, row, label[i]));
        lse[i] = c->add_lse ? lse[i] + log_sum : log_sum;
    }
}

static int run_cross_entropy(const struct ct_launch *l)
{
    struct logits_call call = {.logits = l->in,
                               .labels = l->in + 1,
                               .lse = l->out + 1,
                               .losses = l->workspace,
                               .add_lse = l->accumulate & 2};
    int rc = cpu_check_labels(call.labels, call.logits->shape[call.logits->ndim - 1]);

    if (rc < 0)
        return rc;
    cpu_parallel(cross_entropy_rows, &call);
    cpu_store_loss(&l->out[0], call.losses, ct_tensor_count(call.labels), l->accumulate & 1);
    return 0;
}

static bool accepts_cross_entropy_grad(const struct ct_prepare *p)
{
    struct ct_matrix rows;

    return logits_acceptable(p->in + 1, p->in + 2, p->in + 3) &&
           cpu_is_compute_dtype(p->out[0].dtype) && ct_tensor_as_matrix(&p->out[0], &rows);
}

static void cross_entropy_grad_rows(void *context, int thread, int threads)
{
    const struct logits_call *c = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(c->labels), 1, thread, threads);
    int64_t v = c->logits->shape[c->logits->ndim - 1];
    enum ct_dtype dtype = c->dlogits->dtype;
    const int32_t *label = c->labels->data;
    const float *lse = c->lse->data;

    for (int64_t i = mine.begin; i < mine.end; i++) {
        char *out = cpu_row(c->dlogits, i);
        float of_label, before;

        if (label[i] == CPU_MASKED) {
            if (!c->add)
                memset(out, 0, (size_t)v * ct_dtype_size(dtype));
            continue;
        }
        of_label = element(c->logits->dtype, cpu_row(c->logits, i), label[i]);
        before = c->add ? element(dtype, out, label[i]) : 0;
        cpu_loops()->softmax(dtype, out, c->logits->dtype, cpu_row(c->logits, i), v, lse[i],
                             c->dloss, c->add);
        if (dtype == CT_F32)
            add_to_element(dtype, out, label[i], -c->dloss);
        else
            ((uint16_t *)out)[label[i]] =
                ct_f32_to_bf16(before + (expf(of_label - lse[i]) - 1) * c->dloss);
    }
}

static int run_cross_entropy_grad(const struct ct_launch *l)
{
    struct logits_call call = {.logits = l->in + 1,
                               .labels = l->in + 2,
                               .lse = l->in + 3,
                               .dlogits = l->out,
                               .dloss = (float)ct_tensor_load(&l->in[0], 0),
                               .add = l->accumulate & 1};
    int rc = cpu_check_labels(call.labels, call.logits->shape[call.logits->ndim - 1]);

    if (rc < 0)
        return rc;
    cpu_parallel(cross_entropy_grad_rows, &call);
    return 0;
}

#define FLAGS (CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED)

const struct ct_kernel cpu_cross_entropy_kernels[] = {
    CT_KERNEL("cross_entropy", "vector", FLAGS, accepts_cross_entropy, prepare_cross_entropy,
              run_cross_entropy),
    CT_KERNEL("cross_entropy_grad", "vector", FLAGS, accepts_cross_entropy_grad, NULL,
              run_cross_entropy_grad),
    {0}};
