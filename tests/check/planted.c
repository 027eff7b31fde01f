/*
 * More plugins with one fault each, as in broken.c: faults that show only where numbers are
 * compared, or where sequences have several documents.
 */
#include "fault.h"

/* ops: a matrix product, by its reference right */
#define TENFOLD 1   /* it counts ten times its FLOPs */
#define UNCOUNTED 2 /* it counts none */
#define NOT_FLOPS 3 /* it counts NaN */
#define NEGATIVE 4  /* it counts less than nothing */
/* kernels: sums along sequences, within documents */
#define ONE_DOCUMENT 5 /* it takes a sequence to be one document */
#define UNCLEARED 6    /* it adds to its workspace, which nobody clears */
#define SHARED 7       /* ranges share a variable of the file */
#define OVERLAP 8      /* ranges write the first element of the next */
#define LOST 9         /* ranges add to a variable of the caller */
#define DECLINES 10    /* it accepts no call */
/* models */
#define MODEL_TENFOLD 11   /* ten times the FLOPs */
#define MODEL_NAN 12       /* no number of FLOPs */
#define MODEL_DOCUMENTS 13 /* tokens see other documents */
/* optimizers */
#define LAST_PARAMETER 14 /* the last parameter has an op that does nothing */
#define LAST_ELEMENT 15   /* the last element stays */

#define IS_OP (FAULT <= NEGATIVE)
#define IS_KERNEL (FAULT > NEGATIVE && FAULT <= DECLINES)
#define IS_MODEL (FAULT > DECLINES && FAULT <= MODEL_DOCUMENTS)
#define IS_OPTIMIZER (FAULT == LAST_PARAMETER || FAULT == LAST_ELEMENT)

#if IS_OP
static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t rows = ct_rows(&l->in[0]), k = ct_columns(&l->in[0]), n = l->in[1].shape[0];

    for (int64_t i = 0; i < rows * n; i++)
        for (int64_t j = 0; j < k; j++)
            r.out[0][i] += r.in[0][i / n * k + j] * r.in[1][i % n * k + j];
    return ct_reference_end(&r, 0);
}

__attribute__((unused)) static double flops(const struct ct_op *op, const struct ct_tensor *in,
                                            const struct ct_tensor *out)
{
    double right = 2.0 * (double)ct_tensor_count(&out[0]) * (double)ct_columns(&in[0]);

    (void)op;
    return FAULT == TENFOLD ? 10 * right : FAULT == NOT_FLOPS ? (double)NAN : -right;
}

static const struct ct_op_type type = {.size = sizeof(type),
                                       .name = TEXT(NAME),
                                       .summary = "x times w",
                                       .signature = "x[.k] T, w[nk] T -> y[.n] T",
                                       .flops = FAULT == UNCOUNTED ? NULL : flops,
                                       .reference = reference};
#define OFFERS OFFER(CT_OP, &type)
#endif

#if IS_KERNEL
static double sum_to(const double *x, const double *document, int64_t first, int64_t i)
{
    double sum = 0;

    for (int64_t k = first; k <= i; k++)
        sum += document[k] == document[i] ? x[k] : 0;
    return sum;
}

static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t length = l->in[0].shape[1];

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = sum_to(r.in[0], r.in[1], i / length * length, i);
    return ct_reference_end(&r, 0);
}

static const struct ct_op_type type = {.size = sizeof(type),
                                       .name = TEXT(NAME),
                                       .summary = "sums along a document",
                                       .signature = "x[bT] T, documents[bT] i -> y[bT] T",
                                       .reference = reference};

struct job {
    const struct ct_launch *l;
    float calls;
};

extern float shared[8];
float shared[8];

static void row(const struct ct_launch *l, int64_t b, float *sum)
{
    int64_t length = l->in[0].shape[1];
    const float *x = (const float *)l->in[0].data + b * length;
    const int32_t *document = (const int32_t *)l->in[1].data + b * length;
    float *y = (float *)l->out[0].data + b * length;

    for (int64_t i = 0; i < length; i++) {
        if (!i || (FAULT != ONE_DOCUMENT && document[i] != document[i - 1]))
            *sum = FAULT == UNCLEARED ? 0 * *sum : 0;
        *sum += x[i];
        y[i] = *sum;
    }
}

static void rows(void *context, int64_t begin, int64_t end)
{
    struct job *job = context;
    const struct ct_launch *l = job->l;
    float own, *sum = FAULT == SHARED ? shared : FAULT == UNCLEARED ? l->workspace : &own;

    for (int64_t b = begin; b < end; b++) {
        row(l, b, sum);
        job->calls += FAULT == LOST ? (float)(b + 1) : 0;
    }
    if (FAULT == OVERLAP && end < l->in[0].shape[0])
        ((float *)l->out[0].data)[end * l->in[0].shape[1]] = (float)begin;
}

static int run_kernel(const struct ct_launch *l)
{
    struct job job = {l, 0};

    ct_parallel(l, FAULT == UNCLEARED ? 1 : l->in[0].shape[0], rows, &job);
    if (FAULT == UNCLEARED && l->in[0].shape[0] > 1)
        for (int64_t b = 1; b < l->in[0].shape[0]; b++)
            rows(&job, b, b + 1);
    return 0;
}

static int prepare(struct ct_prepare *p)
{
    p->workspace = 64;
    return 0;
}

static bool accepts(const struct ct_prepare *p)
{
    return FAULT != DECLINES && p->in[0].dtype == CT_F32;
}

static const struct ct_kernel kernels[] = {CT_KERNEL(.op = TEXT(NAME), .name = "plain",
                                                     .accepts = accepts, .prepare = prepare,
                                                     .run = run_kernel),
                                           {0}};
#define OFFERS OFFER(CT_OP, &type), OFFER_FOR_CPU(CT_KERNELS, kernels)
#endif

#if IS_MODEL
static int create(struct ct_run *run, struct ct_model **model)
{
    (void)run;
    *model = NULL;
    return 0;
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "head");
    int64_t shape[] = {request->batch, request->seq_len}, sizes[] = {96, 8};
    int64_t heads[] = {request->batch, request->seq_len, 1, 8};
    struct ct_value *tokens = ct_input(&b, "tokens", shape),
                    *labels = ct_input(&b, "labels", shape);
    struct ct_value *documents = request->documents ? ct_input(&b, "documents", shape) : NULL;
    struct ct_value *x =
        ct_embedding(&b, NULL, tokens, ct_parameter(&b, "table", 2, sizes, CT_INIT_STD(1)));

    (void)model;
    x = ct_view(&b, "heads", x, 4, heads);
    x = ct_attention(&b, "seen", x, x, x, FAULT == MODEL_DOCUMENTS ? NULL : documents, NULL);
    x = ct_view(&b, "joined", x, 3, (int64_t[]){shape[0], shape[1], 8});
    x = ct_linear_cross_entropy(&b, "loss", x, ct_parameter(&b, "head", 2, sizes, CT_INIT_STD(1)),
                                labels);
    if (x)
        ct_graph_fetch(graph, "loss", x);
    return b.status;
}

static int64_t vocabulary(const struct ct_model *model)
{
    (void)model;
    return 96;
}

static void flops(const struct ct_model *model, int64_t seq_len, double *whole, double *halved)
{
    double head = 6.0 * 96 * 8, attention = 12.0 * 8 * (double)seq_len;

    (void)model;
    *whole = (head + attention) * (FAULT == MODEL_TENFOLD ? 10 : 1);
    *halved = FAULT == MODEL_NAN ? (double)NAN : head + attention / 2;
}

static const struct ct_model_ops model = {.size = sizeof(model),
                                          .create = create,
                                          .build = build,
                                          .vocabulary = vocabulary,
                                          .flops_per_token = flops};
#define OFFERS OFFER(CT_MODEL, &model)
#endif

#if IS_OPTIMIZER
/* p = p - lr g, where `applied` */
static int update(const struct ct_launch *l)
{
    double lr = ct_tensor_load(&l->in[0], 0), clip = ct_tensor_load(&l->in[1], 0);
    const struct ct_tensor *p = &l->in[2];
    bool applied = clip >= 0 && ct_op_bool(l->op, "applied");

    for (int64_t i = 0; applied && i < ct_tensor_count(p) - (FAULT == LAST_ELEMENT); i++)
        ct_tensor_store(p, i, ct_tensor_load(p, i) - lr * ct_tensor_load(&l->in[3], i));
    return 0;
}

struct attributes {
    bool applied;
};
static const struct ct_option attributes[] = {
    CT_OPT_BOOL(struct attributes, applied, "applied", "true", "Whether it does anything"), {0}};
static const struct ct_op_type update_type = {.size = sizeof(update_type),
                                              .name = TEXT(NAME),
                                              .summary = "moves p",
                                              .signature = "lr[] d, clip[] f, !p[.] F, g[.] F",
                                              .attrs = attributes,
                                              .attrs_size = sizeof(struct attributes),
                                              .reference = update};

static int build(struct ct_builder *b, struct ct_value *const *params, size_t count,
                 struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    (void)step;
    for (size_t i = 0; i < count; i++)
        ct_emit_type(b, &update_type, TEXT(NAME),
                     (struct ct_value *[]){lr, clip, params[i], params[i]->grad}, 4,
                     &(struct attributes){FAULT != LAST_PARAMETER || i + 1 < count});
    return b->status;
}

static double peak(void)
{
    return 1e-3;
}

static const struct ct_optimizer_ops optimizer = {sizeof(optimizer), build, peak};
#define OFFERS OFFER(CT_OP, &update_type), OFFER(CT_OPTIMIZER, &optimizer)
#endif

CT_PLUGIN(HAS_ONE_FAULT, .offers = CT_OFFERS(OFFERS));
