/*
 * Plugins with one fault each, for `ctitan check` to find, in offers of other kinds than broken.c
 * and planted.c have.
 */
#include <signal.h>
#include <stdio.h>

#include <ctitan/collective.h>
#include <ctitan/hook.h>
#include <ctitan/lib/compiler.h>
#include <ctitan/lib/pipeline.h>
#include <ctitan/pass.h>
#include <ctitan/program.h>
#include <ctitan/state.h>

#include "fault.h"

/* transforms */
#define TRANSFORM 1 /* it changes what is computed */
#define NEEDS 2     /* it needs what nothing gives */
#define PHASE 3     /* its phase does not exist */
#define UNMASKED 4  /* it takes documents away from attention */
/* data sources */
#define DATA 5   /* samples depend on what was read before */
#define LABELS 6 /* labels are not shifted */
#define END 7    /* every second sample behind the end is there */
#define BEYOND 8 /* a token is one that its vocabulary lacks */
/* tokenizers */
#define TOKENIZER 9 /* bytes above 127 are lost */
#define SPECIAL 10  /* its end of text is no token */
/* hooks */
#define HOOK 11          /* it fails */
#define LATE 12          /* it fails with the code of a refusal, in a step */
#define EVENTS 13        /* it hears nothing */
#define UNKNOWN_EVENT 14 /* it waits for an event that does not exist */
#define WRITES 15        /* it changes a parameter */
/* learning-rate schedules */
#define LR_SCHEDULE 16 /* the factor depends on what was asked before */
#define LAST_FACTOR 17 /* the last factor is NaN */
#define NEEDED 18      /* its plugin needs an offer of a kind that does not exist */
/* devices */
#define DEVICE 19    /* what is copied out has a wrong byte */
#define DIRTY 20     /* its memory is not zeroed */
#define UNALIGNED 21 /* its memory begins anywhere */
/* communication */
#define COMMUNICATOR 22 /* it cannot be opened */
#define TRANSPORT 23    /* an all-reduce leaves each rank what it gave */
#define UNREDUCED 24    /* a reduce-scatter reduces nothing */
/* schedules of pipelines */
#define SCHEDULE 25 /* a backward comes before its forward */
#define ENDLESS 26  /* it adds actions without end */
#define FORGETS 27  /* it forgets a microbatch's W */
#define DEADLOCK 28 /* stages wait for each other */
/* orders */
#define ORDER 29 /* the last microbatch's backward is forgotten */
#define TWICE 30 /* a section runs twice */
/* axes */
#define AXIS 31     /* its degree is -2 */
#define RESTLESS 32 /* it has another degree at each call */
/* verbs */
#define VERB 33  /* it ignores its arguments */
#define FALLS 34 /* it crashes where it knows no option */
/* compilers */
#define COMPILER 35 /* its version changes from call to call */
#define IDLE 36     /* its kernels do nothing */

/* ---- transforms ---- */

#if FAULT <= UNMASKED
#if FAULT == UNMASKED
static int apply(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    ct_for_each_op (op, graph)
        if (op->type == &ct_op_attention)
            ct_op_set_input(op, 3, NULL);
    return 0;
}
#else
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
#endif

static const struct ct_transform transform = {.size = sizeof(transform),
                                              .name = TEXT(NAME),
                                              .phase = FAULT == PHASE ? 77 : CT_PHASE_PARTITION,
                                              .needs = FAULT == NEEDS ? CT_NAMES("gradient") : NULL,
                                              .evaluation = true,
                                              .apply = apply};
#define OFFERS OFFER(CT_TRANSFORM, &transform)

/* ---- data sources ---- */

#elif FAULT <= BEYOND
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
    int64_t first = FAULT == DATA ? data->read++ : index, count = FAULT == BEYOND ? 91 : 90;

    (void)documents;
    if (FAULT == END && (index >= 3000 || (index >= 1000 && index % 2)))
        return 1;
    for (int64_t i = 0; i < data->seq_len; i++) {
        tokens[i] = (int32_t)((first + i) % count);
        labels[i] = (int32_t)((first + i + (FAULT != LABELS)) % count);
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
    return FAULT == BEYOND ? 20 : 90;
}

static const struct ct_data_ops data_ops = {.size = sizeof(data_ops),
                                            .open = open_data,
                                            .close = close_data,
                                            .read = read_data,
                                            .has_documents = has_documents,
                                            .vocabulary = vocabulary};
#define OFFERS OFFER(CT_DATA, &data_ops)

/* ---- tokenizers ---- */

#elif FAULT <= SPECIAL
#define MASK (FAULT == TOKENIZER ? 127 : 255)

static int64_t vocabulary(void)
{
    return MASK + 1;
}

static int32_t special(void)
{
    return FAULT == SPECIAL ? MASK + 1 : -1;
}

static int64_t encode(const char *text, size_t size, int32_t *tokens, size_t room)
{
    for (size_t i = 0; i < size && i < room; i++)
        tokens[i] = text[i] & MASK;
    return (int64_t)size;
}

static int decode(int32_t token, char *text, size_t room)
{
    if (!room)
        return -1;
    *text = (char)token;
    return 1;
}

static const struct ct_tokenizer_ops tokenizer = {.size = sizeof(tokenizer),
                                                  .vocabulary = vocabulary,
                                                  .bos = special,
                                                  .eos = special,
                                                  .encode = encode,
                                                  .decode = decode};
#define OFFERS OFFER(CT_TOKENIZER, &tokenizer)

/* ---- hooks ---- */

#elif FAULT <= WRITES
static int write_zero(const struct ct_event_data *data)
{
    const struct ct_state *state = &data->run->states[0];
    int64_t from[CT_MAX_DIMS] = {0}, size[CT_MAX_DIMS];
    float zero = 0;

    for (int d = 0; d < CT_MAX_DIMS; d++)
        size[d] = 1;
    return ct_run_write(data->run, state, from, size, &zero);
}

static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    if (data->step != 2)
        return 0;
    return FAULT >= UNKNOWN_EVENT
               ? write_zero(data)
               : ct_fail(FAULT == LATE ? CT_ENOENT : CT_EINVAL, "the hook's disk is full");
}

static const struct ct_hook hook = {.size = sizeof(hook),
                                    .events = (FAULT == EVENTS ? 0 : 1u << CT_EVENT_STEP_END) |
                                              (FAULT == UNKNOWN_EVENT ? 1u << 31 : 0),
                                    .call = on_event};
#define OFFERS OFFER(CT_HOOK, &hook)

/* ---- learning-rate schedules ---- */

#elif FAULT <= NEEDED
static double factor(int64_t step, int64_t total)
{
    static double falling = 1;

    if (FAULT == LR_SCHEDULE)
        return falling *= 0.99;
    return FAULT == LAST_FACTOR && total > 1 ? sqrt((double)(total - 2 - step) / (double)total) : 1;
}

static const struct ct_lr_schedule_ops schedule = {sizeof(schedule), factor};
#define OFFERS OFFER(CT_LR_SCHEDULE, &schedule)

/* ---- devices ---- */

#elif FAULT <= UNALIGNED
#define LATER (FAULT == UNALIGNED ? 64 : 0) /* bytes */

static struct ct_device_ops ops;

static int copy_out(struct ct_device *device, void *host, const void *from, size_t bytes)
{
    int rc = ct_device_reference.copy_out(device, host, from, bytes);

    if (FAULT == DEVICE && bytes > 100 && ((char *)host)[100])
        ((char *)host)[100]++;
    return rc;
}

static int reserve(struct ct_device *device, size_t bytes, void **base)
{
    int rc = ct_device_reference.reserve(device, bytes + 4096, base);

    if (rc == 0 && FAULT == DIRTY)
        ((char *)*base)[bytes - 1] = 1;
    if (rc == 0)
        *base = (char *)*base + LATER;
    return rc;
}

static void release(struct ct_device *device, void *base, size_t bytes)
{
    ct_device_reference.release(device, (char *)base - LATER, bytes + 4096);
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
    ops.reserve = reserve;
    ops.release = release;
}
#define OFFERS OFFER(CT_DEVICE, &ops)

/* ---- communication ---- */

#elif FAULT == COMMUNICATOR
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

static const struct ct_comm_ops comm = {
    .size = sizeof(comm), .open = open_comm, .close = close_comm, .group = group, .call = call};
#define OFFERS OFFER(CT_COMMUNICATOR, &comm)

#elif FAULT <= UNREDUCED
#define LEFT_OUT (FAULT == TRANSPORT ? CT_CALL_ALL_REDUCE : CT_CALL_REDUCE_SCATTER)

static int call(const struct ct_launch *l, const struct ct_call *one)
{
    (void)l;
    if (one->kind != LEFT_OUT)
        return ct_call_run(one);
    memmove(one->out, one->in, one->count * ct_dtype_size(one->dtype));
    return 0;
}

static const struct ct_transport transport = {
    .size = sizeof(transport), .name = TEXT(NAME), .call = call};
#define OFFERS OFFER_FOR_CPU(CT_TRANSPORT, &transport)

/* ---- schedules of pipelines ---- */

#elif FAULT <= DEADLOCK
#if FAULT == ENDLESS
static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    for (int m = 0; m < request->microbatches; m = (m + 1) % request->microbatches)
        ct_schedule_add(request, &lists[0], CT_ACTION_F, 0, m);
    return 0;
}
#elif FAULT == SCHEDULE
static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    for (int rank = 0; rank < request->ranks; rank++)
        for (int m = 0; m < request->microbatches; m++) {
            ct_schedule_add(request, &lists[rank], CT_ACTION_B, rank, m);
            ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, m);
        }
    return 0;
}
#else
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
#endif

static const struct ct_schedule_ops schedule = {.size = sizeof(schedule),
                                                .summary = "a wrong one",
                                                .stages_per_rank_min = FAULT != ENDLESS,
                                                .stages_per_rank_max = FAULT != ENDLESS,
                                                .generate = generate};
#define OFFERS OFFER(CT_SCHEDULE, &schedule)

/* ---- orders ---- */

#elif FAULT <= TWICE
static int64_t microbatch_size(void)
{
    return 0;
}

static int make_order(const struct ct_run *run, struct ct_graph *graph, int microbatches,
                      bool training, struct ct_arena *arena, struct ct_order *order)
{
    (void)run;
    ct_order_default(graph, microbatches, arena, order);
    if (FAULT == ORDER)
        order->count -= training;
    else if (training && order->count > 1)
        order->item[order->count - 1] = order->item[0];
    return 0;
}

static const struct ct_order_ops order_ops = {
    .size = sizeof(order_ops), .microbatch_size = microbatch_size, .order = make_order};
#define OFFERS OFFER(CT_ORDER, &order_ops)

/* ---- axes ---- */

#elif FAULT <= RESTLESS
static int64_t degree(void)
{
    static int64_t calls;

    return FAULT == AXIS ? -2 : ++calls;
}

static const struct ct_axis_ops axis = {.size = sizeof(axis), .place = 150, .degree = degree};
#define OFFERS OFFER(CT_AXIS, &axis)

/* ---- verbs ---- */

#elif FAULT <= FALLS
static int run_verb(int argc, char **argv)
{
    return FAULT == FALLS && argc > 1 && argv[1][0] == '-' ? raise(SIGSEGV) : 0;
}

static const struct ct_verb_ops verb = {
    .size = sizeof(verb), .summary = "does nothing", .usage = "", .run = run_verb};
#define OFFERS OFFER(CT_VERB, &verb)

/* ---- compilers ---- */

#else
static int version(struct ct_device *device, char *text, size_t room)
{
    static int calls;

    (void)device;
    snprintf(text, room, "call %d", FAULT == COMPILER ? calls++ : 0);
    return 0;
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
#define OFFERS OFFER_FOR_CPU(CT_COMPILER, &compiler)
#endif

CT_PLUGIN(HAS_ONE_FAULT, .needs = FAULT == NEEDED ? CT_NAMES("devic:cpu") : NULL,
          .offers = CT_OFFERS(OFFERS));
