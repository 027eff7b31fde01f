/* See loss.h. Tokens with a masked label go through the products with a zero gradient. */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>

#include "convert.h"
#include "gemm.h"
#include "loops.h"
#include "loss.h"

#define CHUNK_BYTES ((int64_t)16 << 20) /* of logits, as long as that gives enough tokens */
#define CHUNK_TOKENS 1024               /* enough tokens */

/* The products for a given number of tokens. */
struct products {
    int64_t tokens;
    struct cpu_gemm *logits, *dx[2], *dw[2]; /* [accumulate] */
};

struct head {
    struct cpu_head weight; /* as the products read it, after widening */
    int64_t k;
    bool widen_weight, round_dw;
    /* Gradients of logits lie where the logits lay, row by row. */
    enum ct_dtype dlogits_type;
    int64_t dlogits_row; /* elements from row to row */
    struct products main, tail;
    size_t losses_at, logits_at, weight_at, dw_at, gemm_at;
};

/* One chunk's rows of logits. */
struct rows_call {
    const struct head *head;
    const int32_t *labels;
    double *losses;
    float *logits;
    int64_t tokens;
    bool grad; /* otherwise the loss only */
    float dloss;
};

/* The gradient of a label's logit is reduced by 1 in float32, before rounding. */
static float consume_row(const struct head *h, const struct rows_call *c, int64_t i)
{
    const struct cpu_loops *loops = cpu_loops();
    int64_t v = h->weight.vocabulary, label = c->labels[i];
    float *row = c->logits + i * v, of_label = row[label], log_sum;

    if (!c->grad)
        return loops->log_sum_exp(CT_F32, row, v) - of_label;
    log_sum = loops->softmax_consume(h->dlogits_type, row, row, v, c->dloss);
    if (h->dlogits_type == CT_F32)
        row[label] -= c->dloss;
    else
        ((uint16_t *)row)[label] = ct_f32_to_bf16((expf(of_label - log_sum) - 1) * c->dloss);
    return log_sum - of_label;
}

static void consume_rows(void *context, int thread, int threads)
{
    const struct rows_call *c = context;
    const struct head *h = c->head;
    struct cpu_range mine = cpu_share(c->tokens, 1, thread, threads);
    int64_t v = h->weight.vocabulary;

    for (int64_t i = mine.begin; i < mine.end; i++) {
        if (c->labels[i] != CPU_MASKED)
            c->losses[i] = (double)consume_row(h, c, i);
        else if (c->grad)
            memset(c->logits + i * v, 0, (size_t)v * ct_dtype_size(h->dlogits_type));
        if (c->labels[i] == CPU_MASKED)
            c->losses[i] = 0;
    }
}

/* ---- preparing ---- */

bool cpu_head_accepts(const struct cpu_head *head, const struct cpu_head_operands *o)
{
    struct ct_matrix rows;
    bool ok = cpu_is_compute_dtype(head->dtype) && cpu_is_compute_dtype(o->x->dtype) &&
              ct_tensor_as_matrix(o->x, &rows) && o->labels->dtype == CT_I32 &&
              ct_tensor_is_dense(o->labels) && o->loss->dtype == CT_F32;

    if (!ok || !o->dloss)
        return ok;
    return cpu_is_compute_dtype(o->dx->dtype) && ct_tensor_as_matrix(o->dx, &rows) &&
           (!o->dw || (cpu_is_compute_dtype(o->dw->dtype) && ct_tensor_as_matrix(o->dw, &rows)));
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

static struct cpu_gemm_spec logits_spec(const struct head *h, int64_t tokens,
                                        const struct cpu_head_operands *o)
{
    const struct cpu_head *w = &h->weight;

    return (struct cpu_gemm_spec){.m = tokens,
                                  .n = w->vocabulary,
                                  .k = h->k,
                                  .a_type = o->x->dtype,
                                  .b_type = w->dtype,
                                  .c_type = CT_F32,
                                  .a_row = cpu_rows_of(o->x).stride,
                                  .a_col = 1,
                                  .b_row = w->stride ? 1 : 0,
                                  .b_col = w->stride,
                                  .b_use = CPU_FORWARD,
                                  .b_for = o->x->dtype,
                                  .c_row = w->vocabulary};
}

static struct cpu_gemm_spec dx_spec(const struct head *h, int64_t tokens,
                                    const struct cpu_head_operands *o)
{
    const struct cpu_head *w = &h->weight;

    return (struct cpu_gemm_spec){.m = tokens,
                                  .n = h->k,
                                  .k = w->vocabulary,
                                  .a_type = h->dlogits_type,
                                  .b_type = w->dtype,
                                  .c_type = o->dx->dtype,
                                  .a_row = h->dlogits_row,
                                  .a_col = 1,
                                  .b_row = w->stride,
                                  .b_col = w->stride ? 1 : 0,
                                  .b_use = CPU_BACKWARD,
                                  .b_for = o->x->dtype,
                                  .c_row = cpu_rows_of(o->dx).stride};
}

static struct cpu_gemm_spec dw_spec(const struct head *h, int64_t tokens,
                                    const struct cpu_head_operands *o)
{
    return (struct cpu_gemm_spec){.m = h->weight.vocabulary,
                                  .n = h->k,
                                  .k = tokens,
                                  .a_type = h->dlogits_type,
                                  .b_type = o->x->dtype,
                                  .c_type = h->round_dw ? CT_F32 : o->dw->dtype,
                                  .a_row = 1,
                                  .a_col = h->dlogits_row,
                                  .b_row = cpu_rows_of(o->x).stride,
                                  .b_col = 1,
                                  .c_row = h->round_dw ? h->k : cpu_rows_of(o->dw).stride};
}

static int prepare_products(struct products *p, const struct head *h, int64_t tokens,
                            const struct cpu_head_operands *o, size_t *workspace)
{
    int rc;

    p->tokens = tokens;
    rc = prepare_one(logits_spec(h, tokens, o), false, &p->logits, workspace);
    for (int accumulate = 0; rc >= 0 && o->dloss && accumulate < 2; accumulate++) {
        rc = prepare_one(dx_spec(h, tokens, o), accumulate, &p->dx[accumulate], workspace);
        if (rc >= 0 && o->dw)
            rc = prepare_one(dw_spec(h, tokens, o), accumulate, &p->dw[accumulate], workspace);
    }
    return rc;
}

static void plan_workspace(struct ct_prepare *p, struct head *h, int64_t tokens, size_t products)
{
    size_t at = 0, logits = (size_t)(h->main.tokens * h->weight.vocabulary);
    size_t weight = (size_t)(h->weight.vocabulary * h->k) * 4;

    h->losses_at = cpu_carve(&at, (size_t)tokens * sizeof(double));
    h->logits_at = cpu_carve(&at, logits * 4);
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
    struct ct_matrix x;
    int64_t chunk;
    int rc;

    ct_tensor_as_matrix(o->x, &x);
    chunk = chunk_tokens(x.rows, head->vocabulary);
    h->weight = *head;
    h->k = x.columns;
    h->widen_weight = head->stride && head->dtype == CT_BF16 && !cpu_bf16_native();
    if (h->widen_weight) {
        h->weight.dtype = CT_F32;
        h->weight.stride = h->k;
    }
    h->dlogits_type = o->x->dtype == CT_BF16 && cpu_bf16_native() ? CT_BF16 : CT_F32;
    h->dlogits_row = head->vocabulary * (int64_t)(sizeof(float) / ct_dtype_size(h->dlogits_type));
    h->round_dw = o->dw && o->dw->dtype == CT_BF16 && chunk < x.rows;
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
    int64_t tokens;
};

static int run_chunk(const struct head_call *c, const struct products *p, int64_t first)
{
    const struct head *h = c->head;
    const struct cpu_head_operands *o = c->o;
    char *gemm = c->workspace + h->gemm_at;
    void *dw = o->dw ? h->round_dw ? c->workspace + h->dw_at : o->dw->data : NULL;
    bool add_dw = first > 0 || (c->accumulate & CPU_ACCUMULATE_DW && !h->round_dw);
    struct rows_call rows = {h,
                             (const int32_t *)o->labels->data + first,
                             (double *)(c->workspace + h->losses_at) + first,
                             (float *)(c->workspace + h->logits_at),
                             p->tokens,
                             o->dloss != NULL,
                             o->dloss ? (float)ct_tensor_load(o->dloss, 0) : 0};
    int rc = cpu_gemm_run(p->logits, cpu_row(o->x, first), c->forward, rows.logits, gemm);

    if (rc < 0)
        return rc;
    cpu_parallel(consume_rows, &rows);
    if (!o->dloss)
        return 0;
    rc = cpu_gemm_run(p->dx[c->accumulate & CPU_ACCUMULATE_DX], rows.logits, c->backward,
                      cpu_row(o->dx, first), gemm);
    if (rc < 0 || !o->dw)
        return rc;
    return cpu_gemm_run(p->dw[add_dw], rows.logits, cpu_row(o->x, first), dw, gemm);
}

static void finish_dw(const struct head_call *c)
{
    const struct head *h = c->head;
    struct ct_matrix rows;

    ct_tensor_as_matrix(c->o->dw, &rows);
    cpu_round_all(c->o->dw->data, (const float *)(c->workspace + h->dw_at), rows,
                  c->accumulate & CPU_ACCUMULATE_DW);
}

int cpu_head_run(const struct ct_launch *l, const struct cpu_head_operands *o, uint32_t accumulate)
{
    const struct head *h = l->state;
    int64_t tokens = ct_tensor_count(o->labels), first = 0;
    struct head_call call = {h, o, l->workspace, o->forward, o->backward, accumulate, tokens};
    int rc = cpu_check_labels(o->labels, h->weight.vocabulary);

    if (rc >= 0 && h->widen_weight) {
        struct ct_matrix rows = {h->weight.vocabulary, h->k, l->in[o->dloss ? 2 : 1].stride[0]};

        cpu_widen_all((float *)(call.workspace + h->weight_at), o->forward, rows);
        call.forward = call.backward = call.workspace + h->weight_at;
    }
    for (; rc >= 0 && first < tokens; first += h->main.tokens)
        rc = run_chunk(&call, tokens - first < h->main.tokens ? &h->tail : &h->main, first);
    if (rc < 0)
        return rc;
    if (h->round_dw)
        finish_dw(&call);
    cpu_store_loss(o->loss, (double *)(call.workspace + h->losses_at), tokens,
                   accumulate & CPU_ACCUMULATE_LOSS);
    return 0;
}

/* ---- linear_cross_entropy and its gradients, whatever form the weights have ---- */

/* Inputs are x, w, labels of the loss, and dloss before them of a gradient, whose weights may be
   two. */
static struct cpu_head_operands operands_of(const struct ct_tensor *in, int ins,
                                            const struct ct_tensor *out, int outs)
{
    if (ins == CPU_LOSS_INPUTS)
        return (struct cpu_head_operands){
            .x = in, .labels = in + 2, .forward = in[1].data, .backward = in[1].data, .loss = out};
    return (struct cpu_head_operands){.dloss = in,
                                      .x = in + 1,
                                      .labels = in + ins - 1,
                                      .forward = in[2].data,
                                      .backward = in[ins - 2].data,
                                      .dx = out,
                                      .dw = outs > 2 ? out + 1 : NULL,
                                      .loss = out + outs - 1};
}

bool cpu_loss_accepts(const struct ct_prepare *p, const struct cpu_head *head)
{
    struct cpu_head_operands o = operands_of(p->in, p->ins, p->out, p->outs);

    return cpu_head_accepts(head, &o);
}

int cpu_loss_prepare(struct ct_prepare *p, const struct cpu_head *head)
{
    struct cpu_head_operands o = operands_of(p->in, p->ins, p->out, p->outs);

    return cpu_head_prepare(p, head, &o);
}

/* Outputs are dx, dw and loss, dx and loss, or loss. */
static uint32_t accumulated(const struct ct_launch *l)
{
    uint32_t loss = l->accumulate >> (l->outs - 1) & 1 ? CPU_ACCUMULATE_LOSS : 0;
    uint32_t gradients = l->accumulate & ((1u << (l->outs - 1)) - 1);

    return gradients | loss;
}

int cpu_loss_run(const struct ct_launch *l)
{
    struct cpu_head_operands o = operands_of(l->in, l->ins, l->out, l->outs);

    return cpu_head_run(l, &o, accumulated(l));
}

/* ---- on unpacked weights ---- */

static struct cpu_head plain_head(const struct ct_prepare *p)
{
    const struct ct_tensor *w = cpu_loss_weight(p);

    return (struct cpu_head){w->shape[0], w->dtype, w->stride[0]};
}

static bool accepts_plain(const struct ct_prepare *p)
{
    struct cpu_head head = plain_head(p);

    return cpu_loss_weight(p)->stride[1] == 1 && cpu_loss_accepts(p, &head);
}

static int prepare_plain(struct ct_prepare *p)
{
    struct cpu_head head = plain_head(p);

    return cpu_loss_prepare(p, &head);
}

#define FLAGS (CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED)
#define GEMM(op) CT_KERNEL(op, "gemm", FLAGS, accepts_plain, prepare_plain, cpu_loss_run)

const struct ct_kernel cpu_loss_kernels[] = {GEMM("linear_cross_entropy"),
                                             GEMM("linear_cross_entropy_grad"),
                                             GEMM("linear_cross_entropy_dx"),
                                             {0}};
