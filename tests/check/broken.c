/*
 * Plugins with one fault each, for `ctitan check` to find: FAULT is the fault's number in the list
 * below, and NAME the plugin's name.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/collective.h>
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

#include "reference.h"

#define GRADIENT 1      /* an op's gradient is twice what it should be */
#define SHARDING 2      /* its signature lets ranks split what it needs whole */
#define ACCUMULATION 3  /* its reference does not add */
#define UNDECLARED 4    /* it changes an input, and does not say so */
#define KERNEL 5        /* its kernel computes something else */
#define MODEL 6         /* a model uses the op with the wrong gradient */
#define TRANSFORM 7     /* a transform changes what is computed */
#define OPTIMIZER 8     /* an optimizer follows the gradient upwards */
#define DATA 9          /* samples depend on what was read before */
#define LABELS 10       /* labels are not shifted */
#define TOKENIZER 11    /* bytes above 127 are lost */
#define HOOK 12         /* a hook fails */
#define LR_SCHEDULE 13  /* the factor depends on what was asked before */
#define DEVICE 14       /* what is copied out has a wrong byte */
#define COMMUNICATOR 15 /* it cannot be opened */
#define SCHEDULE 16     /* a backward comes before its forward */
#define ORDER 17        /* the last microbatch's backward is forgotten */
#define AXIS 18         /* its degree is -2 */
#define VERB 19         /* it ignores its arguments */
#define TRANSPORT 20    /* an all-reduce leaves each rank what it gave */
#define COMPILER 21     /* its version changes from call to call */
#define OVERRUN 22      /* a kernel writes behind its output */
#define WORKSPACE 23    /* a kernel writes behind its workspace */
#define POSITIONS 24    /* a reference takes sequences to be in order */
#define NOTANUMBER 25   /* an op is not defined for numbers below 0, and gives no samples */
#define NARROW 26       /* an op's output is float32, too narrow for differences */
#define CRASH 27        /* a kernel reads memory that is not there */
#define MISSING 28      /* an optimizer leaves a parameter out */
#define UNSKIPPED 29    /* an optimizer applies steps that must be skipped */
#define STATE 30        /* an optimizer's state takes in gradients that are not finite */
#define PLAN 31         /* a weight is not in the plan for tensor parallelism */
#define NAMES 32        /* two parameters have one name */
#define NEEDS 33        /* a transform needs what nothing gives */
#define PHASE 34        /* a transform's phase does not exist */
#define EVENTS 35       /* a hook hears nothing */
#define LATE 36         /* a hook fails with the code of a refusal, in a step */
#define NEEDED 37       /* it needs an offer of a kind that does not exist */
#define END 38          /* every second sample behind the end is there */
#define ENDLESS 39      /* a schedule adds actions without end */
#define GAPS 40         /* a kernel copies what is between two rows of an input */

#define IS_KERNEL                                                                                  \
    (FAULT == KERNEL || FAULT == OVERRUN || FAULT == WORKSPACE || FAULT == CRASH || FAULT == GAPS)
#define IS_MODEL (FAULT == MODEL || FAULT == PLAN || FAULT == NAMES)
#define IS_OPTIMIZER                                                                               \
    (FAULT == OPTIMIZER || FAULT == MISSING || FAULT == UNSKIPPED || FAULT == STATE)

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

/* ---- an op: y = x w, w the same for all rows ---- */

#if FAULT <= MODEL || IS_KERNEL || IS_MODEL

static int vjp(struct ct_vjp *v);

static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t columns = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++) {
        r.out[0][i] = r.in[0][i] * r.in[1][i];
#if FAULT == SHARDING
        r.out[0][i] += r.in[0][i / columns * columns]; /* the first of the row */
#endif
    }
    (void)columns;
#if FAULT == UNDECLARED
    ct_tensor_store(&l->in[1], 0, 7);
#endif
#if FAULT == ACCUMULATION
    struct ct_launch overwriting = *l;

    overwriting.accumulate = 0;
    r.launch = &overwriting;
#endif
    return ct_reference_end(&r, 0);
}

static const struct ct_op_type product = {.size = sizeof(struct ct_op_type),
                                          .name = TEXT(NAME),
                                          .summary = "x times w",
                                          .signature = "x[.n] T, w[.n] T -> y[.n] T",
                                          .vjp = vjp,
                                          .reference = reference};

static int vjp(struct ct_vjp *v)
{
    for (int i = 0; i < 2; i++)
        if (v->wanted[i]) {
            v->din[i] = ct_emit_type1(v->b, &ct_op_mul, ct_gradient_name(v, i),
                                      (struct ct_value *[]){v->dout[0], v->op->in[1 - i]}, 2, NULL);
            if (FAULT == GRADIENT || FAULT == MODEL)
                v->din[i] = ct_scale(v->b, "twice", v->din[i], 2);
        }
    return v->b->status;
}

static int run_rows(const struct ct_launch *l)
{
    struct ct_matrix x, w, y;

    if (!ct_tensor_as_matrix(&l->in[0], &x) || !ct_tensor_as_matrix(&l->in[1], &w) ||
        !ct_tensor_as_matrix(&l->out[0], &y))
        return ct_fail(CT_EINVAL, "rows of several strides");
    for (int64_t r = 0; r < y.rows; r++) {
        const float *from = (const float *)l->in[0].data + r * x.stride;
        const float *factor = (const float *)l->in[1].data + r * w.stride;
        float *to = (float *)l->out[0].data + r * y.stride;

        memcpy(to, from, (size_t)(y.columns + (r + 1 < y.rows)) * sizeof(*to));
        for (int64_t i = 0; i < y.columns; i++)
            to[i] *= factor[i];
    }
    return 0;
}

static int run_kernel(const struct ct_launch *l)
{
    const float *x = l->in[0].data, *w = l->in[1].data;
    float *y = l->out[0].data;

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        y[i] = x[i] * w[i] * (i == 5 && FAULT == KERNEL ? 1.001f : 1);
    if (FAULT == OVERRUN)
        y[ct_tensor_count(&l->out[0])] = 1;
    if (FAULT == WORKSPACE)
        ((char *)l->workspace)[64] = 1;
    if (FAULT == CRASH)
        y[0] = x[(int64_t)1 << 40];
    return 0;
}

static int prepare(struct ct_prepare *p)
{
    p->workspace = 64;
    return 0;
}

static bool accepts(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F32;
}

static const struct ct_kernel kernels[] = {CT_KERNEL(.op = TEXT(NAME), .name = "plain",
                                                     .accepts = accepts, .prepare = prepare,
                                                     .flags = FAULT == GAPS ? CT_KERNEL_STRIDED : 0,
                                                     .run = FAULT == GAPS ? run_rows : run_kernel),
                                           {0}};
#endif

/* ---- other ops ---- */

#if FAULT == POSITIONS || FAULT == NOTANUMBER || FAULT == NARROW
/* Running sums along sequences, logarithms, or copies. */
static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++) {
        r.out[0][i] = FAULT == NOTANUMBER ? log(r.in[0][i]) : r.in[0][i];
        if (FAULT == POSITIONS && i % l->in[0].shape[1])
            r.out[0][i] += r.out[0][i - 1];
    }
    return ct_reference_end(&r, 0);
}

#if FAULT == NARROW
static int vjp(struct ct_vjp *v)
{
    if (v->wanted[0])
        v->din[0] = ct_cast(v->b, "dx", v->dout[0], v->op->in[0]->dtype);
    return v->b->status;
}

#define OP_VJP vjp
#else
#define OP_VJP NULL
#endif

static const struct ct_op_type op = {.size = sizeof(struct ct_op_type),
                                     .name = TEXT(NAME),
                                     .summary = "one input",
                                     .signature = FAULT == POSITIONS ? "x[bT] T -> y[bT] T | @T"
                                                  : FAULT == NARROW  ? "x[.n] T -> y[.n] f"
                                                                     : "x[.n] T -> y[.n] T",
                                     .vjp = OP_VJP,
                                     .reference = reference};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_OP, TEXT(NAME), &op                                                                     \
    }
#endif

/* ---- a model ---- */

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
    struct ct_value *tokens = ct_input(&b, "tokens", shape),
                    *labels = ct_input(&b, "labels", shape);
    struct ct_value *x =
        ct_embedding(&b, NULL, tokens, ct_parameter(&b, "table", 2, sizes, CT_INIT_STD(1)));

    (void)model;
    if (FAULT == MODEL)
        x = ct_emit_type1(&b, &product, "squared", (struct ct_value *[]){x, x}, 2, NULL);
    x = ct_linear_cross_entropy(
        &b, "loss", x,
        ct_parameter(&b, FAULT == NAMES ? "table" : "head", 2, sizes, CT_INIT_STD(1)), labels);
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
    (void)model, (void)seq_len;
    *whole = *halved = 6.0 * 96 * 8;
}

static const struct ct_shard_rule plan[] = {{"table", CT_SHARD_VOCAB}, {0}};

static const struct ct_model_ops model = {.size = sizeof(struct ct_model_ops),
                                          .create = create,
                                          .build = build,
                                          .vocabulary = vocabulary,
                                          .flops_per_token = flops,
                                          .shard_plan = FAULT == PLAN ? plan : NULL};
#define OFFERS                                                                                     \
    {CT_OP, TEXT(NAME), &product},                                                                 \
    {                                                                                              \
        CT_MODEL, TEXT(NAME), &model                                                               \
    }
#elif IS_KERNEL
#define OFFERS                                                                                     \
    {CT_OP, TEXT(NAME), &product},                                                                 \
    {                                                                                              \
        CT_KERNELS, "cpu", kernels                                                                 \
    }
#elif FAULT < KERNEL
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_OP, TEXT(NAME), &product                                                                \
    }
#endif
#if (FAULT <= MODEL && FAULT != KERNEL) || IS_MODEL
extern const void *unused;
const void *unused = kernels;
#endif

#if FAULT == TRANSFORM || FAULT == NEEDS || FAULT == PHASE
static int apply(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_value *loss = ct_graph_fetched(graph, "loss");
    struct ct_builder b = ct_builder_after(graph, loss->producer);
    struct ct_value *twice = ct_scale(&b, "twice", loss, 2);

    (void)run;
    for (size_t i = 0; b.status == 0 && i < graph->fetch_count; i++)
        if (graph->fetches[i].value == loss)
            ct_graph_set_fetch(graph, i, twice);
    return b.status;
}

static const struct ct_transform transform = {.size = sizeof(struct ct_transform),
                                              .name = TEXT(NAME),
                                              .phase = FAULT == PHASE ? 77 : CT_PHASE_PARTITION,
                                              .needs = FAULT == NEEDS ? CT_NAMES("gradient") : NULL,
                                              .evaluation = true,
                                              .apply = apply};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_TRANSFORM, TEXT(NAME), &transform                                                       \
    }
#endif

#if IS_OPTIMIZER
/* p = p - lr g, or, to be wrong, p + lr g; m is the sum of gradients, which nothing needs. */
static int update(const struct ct_launch *l)
{
    double lr = ct_tensor_load(&l->in[0], 0), clip = ct_tensor_load(&l->in[1], 0);
    const struct ct_tensor *p = &l->in[2], *g = &l->in[3], *m = &l->in[4];

    for (int64_t i = 0; i < ct_tensor_count(p); i++) {
        double step = FAULT == OPTIMIZER ? -lr : lr, sum = ct_tensor_load(m, i);

        if (clip >= 0 || FAULT == STATE)
            ct_tensor_store(m, i, sum + ct_tensor_load(g, i));
        if (clip >= 0 || FAULT == UNSKIPPED)
            ct_tensor_store(
                p, i, ct_tensor_load(p, i) - step * ct_tensor_load(FAULT == UNSKIPPED ? g : m, i));
    }
    return 0;
}

static const struct ct_op_type update_type = {.size = sizeof(struct ct_op_type),
                                              .name = TEXT(NAME),
                                              .summary = "moves p",
                                              .signature =
                                                  "lr[] d, clip[] f, !p[.] F, g[.] F, !m[.] F",
                                              .reference = update};

static int build(struct ct_builder *b, struct ct_value *const *params, size_t count,
                 struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    (void)step;
    for (size_t i = FAULT == MISSING; i < count; i++) {
        struct ct_builder init = ct_init_builder(b->graph);
        const char *name = ct_arena_printf(b->graph->arena, "m.%s", params[i]->name);
        struct ct_value *m = ct_graph_source(b->graph, CT_ROLE_STATE, name, params[i]->dtype,
                                             params[i]->ndim, params[i]->shape);

        m->sharding = params[i]->sharding;
        ct_init_constant(&init, m, 0);
        ct_emit_type(b, &update_type, TEXT(NAME),
                     (struct ct_value *[]){lr, clip, params[i], params[i]->grad, m}, 5, NULL);
    }
    return b->status;
}

static double peak(void)
{
    return 1e-3;
}

static const struct ct_optimizer_ops optimizer = {sizeof(struct ct_optimizer_ops), build, peak};
#define OFFERS                                                                                     \
    {CT_OP, TEXT(NAME), &update_type},                                                             \
    {                                                                                              \
        CT_OPTIMIZER, TEXT(NAME), &optimizer                                                       \
    }
#endif

#if FAULT == DATA || FAULT == LABELS || FAULT == END
struct ct_data {
    int64_t seq_len, read;
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
    int64_t first = FAULT == DATA ? data->read++ : index;

    (void)documents;
    if (FAULT == END && (index >= 3000 || (index >= 1000 && index % 2)))
        return 1;
    for (int64_t i = 0; i < data->seq_len; i++) {
        tokens[i] = (int32_t)((first + i) % 90);
        labels[i] = (int32_t)((first + i + (FAULT != LABELS)) % 90);
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
    return 90;
}

static const struct ct_data_ops data_ops = {.size = sizeof(struct ct_data_ops),
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

#if FAULT == TOKENIZER
static int64_t vocabulary(void)
{
    return 128;
}

static int32_t none(void)
{
    return -1;
}

static int64_t encode(const char *text, size_t size, int32_t *tokens, size_t room)
{
    for (size_t i = 0; i < size && i < room; i++)
        tokens[i] = text[i] & 127;
    return (int64_t)size;
}

static int decode(int32_t token, char *text, size_t room)
{
    if (!room)
        return -1;
    *text = (char)token;
    return 1;
}

static const struct ct_tokenizer_ops tokenizer = {.size = sizeof(struct ct_tokenizer_ops),
                                                  .vocabulary = vocabulary,
                                                  .bos = none,
                                                  .eos = none,
                                                  .encode = encode,
                                                  .decode = decode};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_TOKENIZER, TEXT(NAME), &tokenizer                                                       \
    }
#endif

#if FAULT == HOOK || FAULT == EVENTS || FAULT == LATE
static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    return data->step == 2
               ? ct_fail(FAULT == LATE ? CT_ENOENT : CT_EINVAL, "the hook's disk is full")
               : 0;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = FAULT == EVENTS ? 0 : 1u << CT_EVENT_STEP_END,
                                    .call = on_event};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_HOOK, TEXT(NAME), &hook                                                                 \
    }
#endif

#if FAULT == LR_SCHEDULE || FAULT == NEEDED
static double factor(int64_t step, int64_t total)
{
    static double falling = 1;

    (void)step, (void)total;
    if (FAULT == NEEDED)
        return 1;
    return falling *= 0.99;
}

static const struct ct_lr_schedule_ops schedule = {sizeof(struct ct_lr_schedule_ops), factor};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_LR_SCHEDULE, TEXT(NAME), &schedule                                                      \
    }
#endif

#if FAULT == DEVICE
static struct ct_device_ops ops;

static int copy_out(struct ct_device *device, void *host, const void *from, size_t bytes)
{
    int rc = ct_device_reference.copy_out(device, host, from, bytes);

    if (bytes > 100 && ((char *)host)[100])
        ((char *)host)[100]++;
    return rc;
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
    ops.copy_out = copy_out;
}
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_DEVICE, TEXT(NAME), &ops                                                                \
    }
#endif

#if FAULT == COMMUNICATOR
static int open_comm(const struct ct_comm_request *request, struct ct_comm **comm)
{
    (void)request;
    *comm = NULL;
    return ct_fail(CT_EPEER, "the ranks cannot find each other");
}

static void close_comm(struct ct_comm *comm)
{
    (void)comm;
}

static int group(struct ct_comm *comm, const int64_t *ranks, int count, const char *name,
                 struct ct_group **made)
{
    (void)comm, (void)ranks, (void)count, (void)name, (void)made;
    return CT_EINVAL;
}

static int call(const struct ct_call *one)
{
    (void)one;
    return CT_EINVAL;
}

static const struct ct_comm_ops comm = {.size = sizeof(struct ct_comm_ops),
                                        .open = open_comm,
                                        .close = close_comm,
                                        .group = group,
                                        .call = call};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_COMMUNICATOR, TEXT(NAME), &comm                                                         \
    }
#endif

#if FAULT == SCHEDULE
static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    for (int rank = 0; rank < request->ranks; rank++)
        for (int m = 0; m < request->microbatches; m++) {
            ct_schedule_add(request, &lists[rank], CT_ACTION_B, rank, m);
            ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, m);
        }
    return 0;
}

static const struct ct_schedule_ops schedule = {.size = sizeof(struct ct_schedule_ops),
                                                .summary = "a backward before its forward",
                                                .stages_per_rank_min = 1,
                                                .stages_per_rank_max = 1,
                                                .generate = generate};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_SCHEDULE, TEXT(NAME), &schedule                                                         \
    }
#endif

#if FAULT == ENDLESS
static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    for (int m = 0; m < request->microbatches; m = (m + 1) % request->microbatches)
        ct_schedule_add(request, &lists[0], CT_ACTION_F, 0, m);
    return 0;
}

static const struct ct_schedule_ops schedule = {.size = sizeof(struct ct_schedule_ops),
                                                .summary = "forwards without end",
                                                .generate = generate};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_SCHEDULE, TEXT(NAME), &schedule                                                         \
    }
#endif

#if FAULT == ORDER
static int64_t microbatch_size(void)
{
    return 0;
}

static int make_order(const struct ct_run *run, struct ct_graph *graph, int microbatches,
                      bool training, struct ct_arena *arena, struct ct_order *order)
{
    (void)run;
    ct_order_default(graph, microbatches, arena, order);
    order->count -= training;
    return 0;
}

static const struct ct_order_ops order_ops = {
    .size = sizeof(struct ct_order_ops), .microbatch_size = microbatch_size, .order = make_order};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_ORDER, TEXT(NAME), &order_ops                                                           \
    }
#endif

#if FAULT == AXIS
static int64_t degree(void)
{
    return -2;
}

static const struct ct_axis_ops axis = {.size = sizeof(axis), .place = 150, .degree = degree};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_AXIS, TEXT(NAME), &axis                                                                 \
    }
#endif

#if FAULT == VERB
static int run_verb(int argc, char **argv)
{
    (void)argc, (void)argv;
    return 0;
}

static const struct ct_verb_ops verb = {
    .size = sizeof(verb), .summary = "does nothing", .usage = "", .run = run_verb};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_VERB, TEXT(NAME), &verb                                                                 \
    }
#endif

#if FAULT == TRANSPORT
static int call(const struct ct_launch *l, const struct ct_call *one)
{
    (void)l;
    if (one->kind != CT_CALL_ALL_REDUCE)
        return ct_call_run(one);
    memmove(one->out, one->in, one->count * ct_dtype_size(one->dtype));
    return 0;
}

static const struct ct_transport transport = {
    .size = sizeof(transport), .name = TEXT(NAME), .call = call};
#define OFFERS                                                                                     \
    {                                                                                              \
        CT_TRANSPORT, "cpu", &transport                                                            \
    }
#endif

#if FAULT == COMPILER
static int version(struct ct_device *device, char *text, size_t room)
{
    static int calls;

    (void)device;
    snprintf(text, room, "call %d", calls++);
    return 0;
}

static int compile(struct ct_device *device, const char *source, struct ct_arena *arena,
                   void **object, size_t *bytes)
{
    (void)device, (void)source, (void)arena, (void)object, (void)bytes;
    return ct_fail(CT_EIO, "it compiles nothing");
}

static int load(struct ct_device *device, const void *object, size_t bytes, void **function)
{
    (void)device, (void)object, (void)bytes, (void)function;
    return CT_EIO;
}

static int64_t workers(struct ct_device *device, int64_t rows, int64_t columns)
{
    (void)device, (void)rows, (void)columns;
    return 1;
}

static int launch(const struct ct_launch *l, void *function, const struct ct_compiled_call *one)
{
    (void)l, (void)function, (void)one;
    return CT_EIO;
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

CT_PLUGIN(.name = TEXT(NAME), .version = "1.0", .summary = "Has one fault",
          .needs = FAULT == NEEDED ? CT_NAMES("devic:cpu") : NULL, .offers = CT_OFFERS(OFFERS));
