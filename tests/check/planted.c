/*
 * More plugins with one fault each, as in broken.c: faults that show only where numbers are
 * compared, where a call is made twice, or where sequences have several documents.
 */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/collective.h>
#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/lib/compiler.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/pipeline.h>
#include <ctitan/op_author.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/program.h>
#include <ctitan/run.h>
#include <ctitan/state.h>

#include "reference.h"

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
/* others */
#define UNMASKED 16      /* a transform takes documents away from attention */
#define BEYOND 17        /* a data source gives a token that its vocabulary lacks */
#define SPECIAL 18       /* a tokenizer's end of text is no token */
#define LAST_FACTOR 19   /* a schedule's last factor is NaN */
#define UNKNOWN_EVENT 20 /* a hook waits for an event that does not exist */
#define WRITES 21        /* a hook changes a parameter */
#define FORGETS 22       /* a pipeline's schedule forgets a microbatch's W */
#define DEADLOCK 23      /* a pipeline's stages wait for each other */
#define UNREDUCED 24     /* a reduce-scatter reduces nothing */
#define IDLE 25          /* a compiler's kernels do nothing */
#define DIRTY 26         /* a device's memory is not zeroed */
#define UNALIGNED 27     /* a device's memory begins anywhere */
#define RESTLESS 28      /* an axis has another degree at each call */
#define TWICE 29         /* an order runs a section twice */
#define FALLS 30         /* a verb crashes where it knows no option */

#define IS_OP (FAULT <= NEGATIVE)
#define IS_KERNEL (FAULT > NEGATIVE && FAULT <= DECLINES)
#define IS_MODEL (FAULT > DECLINES && FAULT <= MODEL_DOCUMENTS)
#define IS_OPTIMIZER (FAULT == LAST_PARAMETER || FAULT == LAST_ELEMENT)

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

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
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_OP, TEXT(NAME), &type                                                                   \
    }
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
#define OFFERS                                                                                     \
    {CT_OP, TEXT(NAME), &type},                                                                    \
    {                                                                                              \
        CT_KERNELS, "cpu", kernels                                                                 \
    }
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
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_MODEL, TEXT(NAME), &model                                                               \
    }
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
#define OFFERS                                                                                     \
    {CT_OP, TEXT(NAME), &update_type},                                                             \
    {                                                                                              \
        CT_OPTIMIZER, TEXT(NAME), &optimizer                                                       \
    }
#endif

#if FAULT == UNMASKED
static int apply(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    ct_for_each_op (op, graph)
        if (op->type == &ct_op_attention)
            ct_op_set_input(op, 3, NULL);
    return 0;
}

static const struct ct_transform transform = {.size = sizeof(transform),
                                              .name = TEXT(NAME),
                                              .phase = CT_PHASE_PARTITION,
                                              .evaluation = true,
                                              .apply = apply};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_TRANSFORM, TEXT(NAME), &transform                                                       \
    }
#endif

#if FAULT == BEYOND
struct ct_data {
    int64_t seq_len;
};

static int open_data(const struct ct_data_request *request, struct ct_data **data)
{
    *data = calloc(1, sizeof(**data));
    (*data)->seq_len = request->seq_len;
    return 0;
}

static void close_data(struct ct_data *data)
{
    free(data);
}

static int read_data(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                     int32_t *documents)
{
    (void)documents;
    for (int64_t i = 0; i < data->seq_len; i++) {
        tokens[i] = (int32_t)((index + i) % 91);
        labels[i] = (int32_t)((index + i + 1) % 91);
    }
    return 0;
}

static bool has_documents(void)
{
    return false;
}

static int64_t vocabulary(struct ct_data *data)
{
    (void)data;
    return 20;
}

static const struct ct_data_ops data_ops = {.size = sizeof(data_ops),
                                            .open = open_data,
                                            .close = close_data,
                                            .read = read_data,
                                            .has_documents = has_documents,
                                            .vocabulary = vocabulary};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_DATA, TEXT(NAME), &data_ops                                                             \
    }
#endif

#if FAULT == SPECIAL
static int64_t vocabulary(void)
{
    return 256;
}

static int32_t special(void)
{
    return 256;
}

static int64_t encode(const char *text, size_t size, int32_t *tokens, size_t room)
{
    for (size_t i = 0; i < size && i < room; i++)
        tokens[i] = (unsigned char)text[i];
    return (int64_t)size;
}

static int decode(int32_t token, char *text, size_t room)
{
    if (room)
        *text = (char)token;
    return room ? 1 : -1;
}

static const struct ct_tokenizer_ops tokenizer = {.size = sizeof(tokenizer),
                                                  .vocabulary = vocabulary,
                                                  .bos = special,
                                                  .eos = special,
                                                  .encode = encode,
                                                  .decode = decode};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_TOKENIZER, TEXT(NAME), &tokenizer                                                       \
    }
#endif

#if FAULT == LAST_FACTOR
static double factor(int64_t step, int64_t total)
{
    return total > 1 ? sqrt((double)(total - 2 - step) / (double)total) : 1;
}

static const struct ct_lr_schedule_ops schedule = {sizeof(schedule), factor};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_LR_SCHEDULE, TEXT(NAME), &schedule                                                      \
    }
#endif

#if FAULT == UNKNOWN_EVENT || FAULT == WRITES
static int on_event(const struct ct_event_data *data, void *context)
{
    const struct ct_state *state = &data->run->states[0];
    int64_t from[CT_MAX_DIMS] = {0}, size[CT_MAX_DIMS];
    float zero = 0;

    (void)context;
    for (int d = 0; d < CT_MAX_DIMS; d++)
        size[d] = 1;
    return data->step == 2 ? ct_run_write(data->run, state, from, size, &zero) : 0;
}

static const struct ct_hook hook = {.size = sizeof(hook),
                                    .events = 1u << CT_EVENT_STEP_END |
                                              (FAULT == UNKNOWN_EVENT ? 1u << 31 : 0),
                                    .call = on_event};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_HOOK, TEXT(NAME), &hook                                                                 \
    }
#endif

#if FAULT == FORGETS || FAULT == DEADLOCK
static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    for (int rank = 0; rank < request->ranks; rank++)
        for (int m = 0; m < request->microbatches; m++) {
            /* the last stage goes backwards first, as if the microbatches had another order */
            int other = FAULT == DEADLOCK && rank ? request->microbatches - 1 - m : m;

            ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, other);
            ct_schedule_add(request, &lists[rank], CT_ACTION_I, rank, other);
            if (FAULT != FORGETS || m)
                ct_schedule_add(request, &lists[rank], CT_ACTION_W, rank, other);
        }
    return 0;
}

static const struct ct_schedule_ops schedule = {.size = sizeof(schedule),
                                                .summary = "forward, backward",
                                                .stages_per_rank_min = 1,
                                                .stages_per_rank_max = 1,
                                                .generate = generate};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_SCHEDULE, TEXT(NAME), &schedule                                                         \
    }
#endif

#if FAULT == UNREDUCED
static int call(const struct ct_launch *l, const struct ct_call *one)
{
    size_t bytes = one->count * ct_dtype_size(one->dtype);

    (void)l;
    if (one->kind != CT_CALL_REDUCE_SCATTER)
        return ct_call_run(one);
    memmove(one->out, (const char *)one->in, bytes);
    return 0;
}

static const struct ct_transport transport = {
    .size = sizeof(transport), .name = TEXT(NAME), .call = call};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_TRANSPORT, "cpu", &transport                                                            \
    }
#endif

#if FAULT == IDLE
static int version(struct ct_device *device, char *text, size_t room)
{
    (void)device;
    return room ? (strcpy(text, "1"), 0) : CT_EINVAL;
}

static int compile(struct ct_device *device, const char *source, struct ct_arena *arena,
                   void **object, size_t *bytes)
{
    (void)device;
    if (!strstr(source, "ct_"))
        return ct_fail(CT_EINVAL, "it is no source");
    *object = ct_arena_alloc(arena, 1);
    *bytes = 1;
    return 0;
}

static int load(struct ct_device *device, const void *object, size_t bytes, void **function)
{
    (void)device, (void)bytes;
    *function = (void *)(uintptr_t)object;
    return 0;
}

static int64_t workers(struct ct_device *device, int64_t rows, int64_t columns)
{
    (void)device, (void)rows, (void)columns;
    return 1;
}

static int launch(const struct ct_launch *l, void *function, const struct ct_compiled_call *one)
{
    (void)l, (void)function, (void)one;
    return 0;
}

static const struct ct_compiler_ops compiler = {.size = sizeof(compiler),
                                                .version = version,
                                                .compile = compile,
                                                .load = load,
                                                .workers = workers,
                                                .launch = launch};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_COMPILER, "cpu", &compiler                                                              \
    }
#endif

#if FAULT == DIRTY || FAULT == UNALIGNED
static struct ct_device_ops ops;

static int reserve(struct ct_device *device, size_t bytes, void **base)
{
    int rc = ct_device_reference.reserve(device, bytes + 4096, base);

    if (rc == 0 && FAULT == DIRTY)
        ((char *)*base)[bytes - 1] = 1;
    if (rc == 0 && FAULT == UNALIGNED)
        *base = (char *)*base + 64;
    return rc;
}

static void release(struct ct_device *device, void *base, size_t bytes)
{
    ct_device_reference.release(device, (char *)base - (FAULT == UNALIGNED ? 64 : 0), bytes + 4096);
}

static int open_device(const struct ct_device_request *request, struct ct_device **device)
{
    int rc = ct_device_reference.open(request, device);

    if (rc == 0) {
        (*device)->ops = &ops;
        (*device)->name = TEXT(NAME);
    }
    return rc;
}

__attribute__((constructor)) static void fill(void)
{
    ops = ct_device_reference;
    ops.open = open_device;
    ops.reserve = reserve;
    ops.release = release;
}
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_DEVICE, TEXT(NAME), &ops                                                                \
    }
#endif

#if FAULT == RESTLESS
static int64_t degree(void)
{
    static int64_t calls;

    return ++calls;
}

static const struct ct_axis_ops axis = {.size = sizeof(axis), .place = 150, .degree = degree};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_AXIS, TEXT(NAME), &axis                                                                 \
    }
#endif

#if FAULT == TWICE
static int64_t microbatch_size(void)
{
    return 0;
}

static int make_order(const struct ct_run *run, struct ct_graph *graph, int microbatches,
                      bool training, struct ct_arena *arena, struct ct_order *order)
{
    (void)run;
    ct_order_default(graph, microbatches, arena, order);
    if (training && order->count > 1)
        order->item[order->count - 1] = order->item[0];
    return 0;
}

static const struct ct_order_ops order_ops = {
    .size = sizeof(order_ops), .microbatch_size = microbatch_size, .order = make_order};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_ORDER, TEXT(NAME), &order_ops                                                           \
    }
#endif

#if FAULT == FALLS
static int run_verb(int argc, char **argv)
{
    return argc > 1 && argv[1][0] == '-' ? raise(SIGSEGV) : 0;
}

static const struct ct_verb_ops verb = {
    .size = sizeof(verb), .summary = "does nothing", .usage = "", .run = run_verb};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_VERB, TEXT(NAME), &verb                                                                 \
    }
#endif

CT_PLUGIN(.name = TEXT(NAME), .version = "1.0", .summary = "Has one fault",
          .offers = CT_OFFERS(OFFERS));
