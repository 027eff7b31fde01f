#include <math.h>
#include <string.h>

#include <ctitan/error.h>

#include "convert.h"
#include "gemm.h"
#include "loops.h"
#include "loss.h"

#define MASKED (-100)
#define CHUNK_BYTES ((int64_t)16 << 20) /* of logits, while there are enough tokens */
#define CHUNK_TOKENS 512                /* enough */

#define ACCUMULATE_DX 1u
#define ACCUMULATE_DW 2u
#define ACCUMULATE_LOSS 4u

/* The products for one number of tokens. */
struct products {
    int64_t tokens;
    struct cpu_gemm *logits, *dx[2], *dw[2]; /* [accumulate] */
};

struct head {
    struct cpu_head weight; /* as the products read it: after widening */
    int64_t k;
    bool widen_weight, round_dw;
    enum ct_dtype dlogits_type;
    struct products main, tail;
    size_t losses_at, logits_at, dlogits_at, weight_at, dw_at, gemm_at;
};

/* ---- labels and rows ---- */

static int check_labels(const struct ct_tensor *labels, int64_t vocabulary)
{
    const int32_t *label = labels->data;
    int64_t n = ct_tensor_count(labels);

    for (int64_t i = 0; i < n; i++)
        if (label[i] != MASKED && (label[i] < 0 || label[i] >= vocabulary))
            return ct_fail(CT_EINVAL, "label %d of token %lld: expected 0 to %lld, or %d", label[i],
                           (long long)i, (long long)vocabulary - 1, MASKED);
    return 0;
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

static void store_loss(const struct ct_tensor *loss, const double *losses, int64_t n, bool add)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += losses[i];
    ct_tensor_store(loss, 0, add ? ct_tensor_load(loss, 0) + sum : sum);
}

/* One chunk's rows of logits. */
struct rows_call {
    const struct head *head;
    const int32_t *labels;
    double *losses;
    float *logits;
    char *dlogits; /* NULL: the loss only */
    int64_t tokens;
    float dloss;
};

/* The gradient of a label's logit loses 1 in float32, before anything is rounded. */
static float consume_row(const struct head *h, const struct rows_call *c, int64_t i)
{
    const struct cpu_loops *loops = cpu_loops();
    int64_t v = h->weight.vocabulary, label = c->labels[i];
    float *row = c->logits + i * v, of_label = row[label], log_sum;
    char *out = c->dlogits + (size_t)(i * v) * ct_dtype_size(h->dlogits_type);

    if (!c->dlogits)
        return loops->log_sum_exp(CT_F32, row, v) - of_label;
    log_sum = loops->softmax_consume(h->dlogits_type, out, row, v, c->dloss);
    if (h->dlogits_type == CT_F32)
        ((float *)out)[label] -= c->dloss;
    else
        ((uint16_t *)out)[label] = ct_f32_to_bf16((expf(of_label - log_sum) - 1) * c->dloss);
    return log_sum - of_label;
}

static void consume_rows(void *context, int thread, int threads)
{
    const struct rows_call *c = context;
    const struct head *h = c->head;
    struct cpu_range mine = cpu_share(c->tokens, 1, thread, threads);
    size_t row = (size_t)h->weight.vocabulary * ct_dtype_size(h->dlogits_type);

    for (int64_t i = mine.begin; i < mine.end; i++) {
        if (c->labels[i] != MASKED)
            c->losses[i] = (double)consume_row(h, c, i);
        else if (c->dlogits)
            memset(c->dlogits + (size_t)i * row, 0, row);
        if (c->labels[i] == MASKED)
            c->losses[i] = 0;
    }
}

/* ---- preparing ---- */

bool cpu_head_accepts(const struct cpu_head *head, const struct cpu_head_operands *o)
{
    struct cpu_rows rows;
    bool ok = cpu_is_compute_dtype(head->dtype) && cpu_is_compute_dtype(o->x->dtype) &&
              cpu_as_rows(o->x, &rows) && o->labels->dtype == CT_I32 &&
              ct_tensor_is_dense(o->labels) && o->loss->dtype == CT_F32;

    if (!ok || !o->dloss)
        return ok;
    return cpu_is_compute_dtype(o->dx->dtype) && cpu_as_rows(o->dx, &rows) &&
           cpu_is_compute_dtype(o->dw->dtype) && cpu_as_rows(o->dw, &rows);
}

static int64_t chunk_tokens(int64_t tokens, int64_t vocabulary)
{
    int64_t most = CHUNK_BYTES / (4 * (vocabulary ? vocabulary : 1)), chunks;

    most = most > CHUNK_TOKENS ? most : CHUNK_TOKENS;
    chunks = (tokens + most - 1) / most;
    return chunks ? (tokens + chunks - 1) / chunks : 0;
}

static int prepare_one(struct cpu_gemm_spec spec, bool accumulate, struct cpu_gemm **gemm,
                       size_t *workspace)
{
    int rc;

    spec.accumulate = accumulate;
    rc = cpu_gemm_prepare(&spec, gemm);
    if (rc >= 0 && cpu_gemm_workspace(*gemm) > *workspace)
        *workspace = cpu_gemm_workspace(*gemm);
    return rc;
}

static int prepare_products(struct products *p, const struct head *h, int64_t tokens,
                            const struct cpu_head_operands *o, size_t *workspace)
{
    const struct cpu_head *w = &h->weight;
    struct cpu_rows x = {0}, dx = {0}, dw = {0};
    struct cpu_gemm_spec logits, back_x, back_w;
    bool packed = !w->stride;
    int rc;

    p->tokens = tokens;
    cpu_as_rows(o->x, &x);
    logits = (struct cpu_gemm_spec){
        tokens,  w->vocabulary,          h->k,          o->x->dtype, w->dtype, CT_F32, x.stride, 1,
        !packed, packed ? 0 : w->stride, w->vocabulary, false};
    rc = prepare_one(logits, false, &p->logits, workspace);
    if (rc < 0 || !o->dloss)
        return rc;
    cpu_as_rows(o->dx, &dx);
    cpu_as_rows(o->dw, &dw);
    back_x = (struct cpu_gemm_spec){tokens,    h->k,         w->vocabulary, h->dlogits_type,
                                    w->dtype,  o->dx->dtype, w->vocabulary, 1,
                                    w->stride, !packed,      dx.stride,     false};
    back_w = (struct cpu_gemm_spec){w->vocabulary,
                                    h->k,
                                    tokens,
                                    h->dlogits_type,
                                    o->x->dtype,
                                    h->round_dw ? CT_F32 : o->dw->dtype,
                                    1,
                                    w->vocabulary,
                                    x.stride,
                                    1,
                                    h->round_dw ? h->k : dw.stride,
                                    false};
    for (int accumulate = 0; rc >= 0 && accumulate < 2; accumulate++) {
        rc = prepare_one(back_x, accumulate, &p->dx[accumulate], workspace);
        if (rc >= 0)
            rc = prepare_one(back_w, accumulate, &p->dw[accumulate], workspace);
    }
    return rc;
}

static void plan_workspace(struct ct_prepare *p, struct head *h, int64_t tokens, size_t products)
{
    size_t at = 0, logits = (size_t)(h->main.tokens * h->weight.vocabulary);
    size_t weight = (size_t)(h->weight.vocabulary * h->k) * 4;

    h->losses_at = cpu_carve(&at, (size_t)tokens * sizeof(double));
    h->logits_at = cpu_carve(&at, logits * 4);
    h->dlogits_at = h->dlogits_type == CT_BF16 ? cpu_carve(&at, logits * 2) : h->logits_at;
    h->weight_at = cpu_carve(&at, h->widen_weight ? weight : 0);
    h->dw_at = cpu_carve(&at, h->round_dw ? weight : 0);
    h->gemm_at = cpu_carve(&at, products);
    p->workspace = at;
}

int cpu_head_prepare(struct ct_prepare *p, const struct cpu_head *head,
                     const struct cpu_head_operands *o)
{
    struct head *h = ct_arena_new(p->arena, struct head);
    size_t products = 0;
    struct cpu_rows x;
    int64_t chunk;
    int rc;

    cpu_as_rows(o->x, &x);
    chunk = chunk_tokens(x.rows, head->vocabulary);
    h->weight = *head;
    h->k = x.columns;
    h->widen_weight = head->stride && head->dtype == CT_BF16 && !cpu_bf16_native();
    if (h->widen_weight) {
        h->weight.dtype = CT_F32;
        h->weight.stride = h->k;
    }
    h->dlogits_type = o->x->dtype == CT_BF16 && cpu_bf16_native() ? CT_BF16 : CT_F32;
    h->round_dw = o->dloss && o->dw->dtype == CT_BF16 && chunk < x.rows;
    rc = prepare_products(&h->main, h, chunk, o, &products);
    if (rc >= 0 && chunk && x.rows % chunk)
        rc = prepare_products(&h->tail, h, x.rows % chunk, o, &products);
    plan_workspace(p, h, x.rows, products);
    p->state = h;
    return rc;
}

/* ---- running ---- */

struct head_call {
    const struct head *head;
    const struct cpu_head_operands *o;
    char *workspace;
    const void *forward, *backward;
    uint32_t accumulate;
};

static char *row_of(const struct ct_tensor *t, int64_t row)
{
    struct cpu_rows rows;

    cpu_as_rows(t, &rows);
    return (char *)t->data + (size_t)(row * rows.stride) * ct_dtype_size(t->dtype);
}

static int run_chunk(const struct head_call *c, const struct products *p, int64_t first)
{
    const struct head *h = c->head;
    const struct cpu_head_operands *o = c->o;
    char *gemm = c->workspace + h->gemm_at, *dlogits = c->workspace + h->dlogits_at;
    void *dw = o->dloss ? h->round_dw ? c->workspace + h->dw_at : o->dw->data : NULL;
    bool add_dw = first > 0 || (c->accumulate & ACCUMULATE_DW && !h->round_dw);
    struct rows_call rows = {h,
                             (const int32_t *)o->labels->data + first,
                             (double *)(c->workspace + h->losses_at) + first,
                             (float *)(c->workspace + h->logits_at),
                             o->dloss ? dlogits : NULL,
                             p->tokens,
                             o->dloss ? (float)ct_tensor_load(o->dloss, 0) : 0};
    int rc = cpu_gemm_run(p->logits, row_of(o->x, first), c->forward, rows.logits, gemm);

    if (rc < 0)
        return rc;
    cpu_parallel(consume_rows, &rows);
    if (!o->dloss)
        return 0;
    rc = cpu_gemm_run(p->dx[c->accumulate & ACCUMULATE_DX], dlogits, c->backward,
                      row_of(o->dx, first), gemm);
    if (rc < 0)
        return rc;
    return cpu_gemm_run(p->dw[add_dw], dlogits, row_of(o->x, first), dw, gemm);
}

static void finish_dw(const struct head_call *c)
{
    const struct head *h = c->head;
    struct cpu_rows rows;

    cpu_as_rows(c->o->dw, &rows);
    cpu_round_all(c->o->dw->data, (const float *)(c->workspace + h->dw_at), rows,
                  c->accumulate & ACCUMULATE_DW);
}

int cpu_head_run(const struct ct_launch *l, const struct cpu_head_operands *o, uint32_t accumulate)
{
    const struct head *h = l->state;
    struct head_call call = {h, o, l->workspace, o->forward, o->backward, accumulate};
    int64_t tokens = ct_tensor_count(o->labels), first = 0;
    int rc = check_labels(o->labels, h->weight.vocabulary);

    if (rc >= 0 && h->widen_weight) {
        struct cpu_rows rows = {h->weight.vocabulary, h->k, l->in[o->dloss ? 2 : 1].stride[0]};

        cpu_widen_all((float *)(call.workspace + h->weight_at), o->forward, rows);
        call.forward = call.backward = call.workspace + h->weight_at;
    }
    for (; rc >= 0 && first < tokens; first += h->main.tokens)
        rc = run_chunk(&call, tokens - first < h->main.tokens ? &h->tail : &h->main, first);
    if (rc < 0)
        return rc;
    if (h->round_dw)
        finish_dw(&call);
    store_loss(o->loss, (double *)(call.workspace + h->losses_at), tokens,
               accumulate & ACCUMULATE_LOSS);
    return 0;
}

/* ---- linear_cross_entropy and its gradient, on plain weights ---- */

static struct cpu_head plain_head(const struct ct_tensor *w)
{
    return (struct cpu_head){w->shape[0], w->dtype, w->stride[0]};
}

static struct cpu_head_operands loss_operands(const struct ct_tensor *in,
                                              const struct ct_tensor *out)
{
    return (struct cpu_head_operands){
        .x = in, .labels = in + 2, .forward = in[1].data, .backward = in[1].data, .loss = out};
}

static struct cpu_head_operands grad_operands(const struct ct_tensor *in,
                                              const struct ct_tensor *out)
{
    return (struct cpu_head_operands){in,         in + 1, in + 3,  in[2].data,
                                      in[2].data, out,    out + 1, out + 2};
}

static bool accepts_loss(const struct ct_prepare *p)
{
    struct cpu_head head = plain_head(p->in + 1);
    struct cpu_head_operands o = loss_operands(p->in, p->out);

    return p->in[1].stride[1] == 1 && cpu_head_accepts(&head, &o);
}

static int prepare_loss(struct ct_prepare *p)
{
    struct cpu_head head = plain_head(p->in + 1);
    struct cpu_head_operands o = loss_operands(p->in, p->out);

    return cpu_head_prepare(p, &head, &o);
}

static int run_loss(const struct ct_launch *l)
{
    struct cpu_head_operands o = loss_operands(l->in, l->out);

    return cpu_head_run(l, &o, l->accumulate & 1 ? ACCUMULATE_LOSS : 0);
}

static bool accepts_grad(const struct ct_prepare *p)
{
    struct cpu_head head = plain_head(p->in + 2);
    struct cpu_head_operands o = grad_operands(p->in, p->out);

    return p->in[2].stride[1] == 1 && cpu_head_accepts(&head, &o);
}

static int prepare_grad(struct ct_prepare *p)
{
    struct cpu_head head = plain_head(p->in + 2);
    struct cpu_head_operands o = grad_operands(p->in, p->out);

    return cpu_head_prepare(p, &head, &o);
}

static int run_grad(const struct ct_launch *l)
{
    struct cpu_head_operands o = grad_operands(l->in, l->out);

    return cpu_head_run(l, &o, l->accumulate);
}

/* ---- on logits that exist ---- */

struct logits_call {
    const struct ct_tensor *logits, *labels, *lse, *dlogits;
    double *losses;
    float dloss;
    bool add, add_lse;
};

static bool logits_acceptable(const struct ct_tensor *logits, const struct ct_tensor *labels,
                              const struct ct_tensor *lse)
{
    struct cpu_rows rows;

    return cpu_is_compute_dtype(logits->dtype) && cpu_as_rows(logits, &rows) && rows.columns > 0 &&
           labels->dtype == CT_I32 && ct_tensor_is_dense(labels) && lse->dtype == CT_F32 &&
           ct_tensor_is_dense(lse);
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
        const char *row = row_of(c->logits, i);
        float log_sum =
            cpu_loops()->log_sum_exp(c->logits->dtype, row, c->logits->shape[c->logits->rank - 1]);

        c->losses[i] = 0;
        if (label[i] != MASKED)
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
    int rc = check_labels(call.labels, call.logits->shape[call.logits->rank - 1]);

    if (rc < 0)
        return rc;
    cpu_parallel(cross_entropy_rows, &call);
    store_loss(&l->out[0], call.losses, ct_tensor_count(call.labels), l->accumulate & 1);
    return 0;
}

static bool accepts_cross_entropy_grad(const struct ct_prepare *p)
{
    struct cpu_rows rows;

    return logits_acceptable(p->in + 1, p->in + 2, p->in + 3) &&
           cpu_is_compute_dtype(p->out[0].dtype) && cpu_as_rows(&p->out[0], &rows);
}

static void cross_entropy_grad_rows(void *context, int thread, int threads)
{
    const struct logits_call *c = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(c->labels), 1, thread, threads);
    int64_t v = c->logits->shape[c->logits->rank - 1];
    enum ct_dtype dtype = c->dlogits->dtype;
    const int32_t *label = c->labels->data;
    const float *lse = c->lse->data;

    for (int64_t i = mine.begin; i < mine.end; i++) {
        char *out = row_of(c->dlogits, i);
        float of_label, before;

        if (label[i] == MASKED) {
            if (!c->add)
                memset(out, 0, (size_t)v * ct_dtype_size(dtype));
            continue;
        }
        of_label = element(c->logits->dtype, row_of(c->logits, i), label[i]);
        before = c->add ? element(dtype, out, label[i]) : 0;
        cpu_loops()->softmax(dtype, out, c->logits->dtype, row_of(c->logits, i), v, lse[i],
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
    int rc = check_labels(call.labels, call.logits->shape[call.logits->rank - 1]);

    if (rc < 0)
        return rc;
    cpu_parallel(cross_entropy_grad_rows, &call);
    return 0;
}

#define FLAGS (CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED)

const struct ct_kernel cpu_loss_kernels[] = {
    {"linear_cross_entropy", "onednn", FLAGS, accepts_loss, prepare_loss, run_loss},
    {"linear_cross_entropy_grad", "onednn", FLAGS, accepts_grad, prepare_grad, run_grad},
    {"cross_entropy", "vector", FLAGS, accepts_cross_entropy, prepare_cross_entropy,
     run_cross_entropy},
    {"cross_entropy_grad", "vector", FLAGS, accepts_cross_entropy_grad, NULL,
     run_cross_entropy_grad},
    {0}};
