/*
 * A plugin for tests: plants a fault on one rank through public interfaces, for the flight recorder
 * to explain. It is also the source of the data, so that it can hang while reading.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>
#include <ctitan/state.h>

#define FAULTS                                                                                     \
    "none|data|kernel|die|stop|disk|hook|barrier|slow|host|skip|collective|order|size|dtype|"      \
    "deadlock|send|flip"

static struct config {
    const char *fault;
    int64_t rank, step;
    double seconds;
} config;

static const struct ct_option options[] = {
    CT_OPT_CHOICE(struct config, fault, "fault", "none", FAULTS, "What goes wrong"),
    CT_OPT_INT(struct config, rank, "rank", "1", 0, 1 << 20, "Where"),
    CT_OPT_INT(struct config, step, "step", "3", 1, 1 << 30, "From which step on"),
    CT_OPT_FLOAT(struct config, seconds, "seconds", "0.02", 0, 1e6, "Of a slow instruction"),
    {0}};

static bool is(const char *fault)
{
    return !strcmp(config.fault, fault);
}

static void hang(void)
{
    for (;;)
        ct_nap(1);
}

static const struct ct_run *run; /* set before the data is read in a step */
static int64_t step;

static bool here(void)
{
    return run && run->rank == config.rank && step >= config.step;
}

/* ---- data ---- */

static int open_data(const struct ct_data_request *request, struct ct_data **data)
{
    static int64_t length;

    length = request->seq_len;
    *data = (struct ct_data *)&length;
    return 0;
}

static void close_data(struct ct_data *data)
{
    (void)data;
}

static int read_data(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                     int32_t *documents)
{
    int64_t length = *(int64_t *)data;

    (void)documents;
    if (is("data") && here())
        hang();
    for (int64_t i = 0; i < length; i++) {
        tokens[i] = (int32_t)((index * 31 + i * 7) % 61);
        labels[i] = (int32_t)((index * 31 + i * 7 + 7) % 61);
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
    return 61;
}

static const struct ct_data_ops data = {.size = sizeof(data),
                                        .open = open_data,
                                        .close = close_data,
                                        .read = read_data,
                                        .has_documents = has_documents,
                                        .vocabulary = vocabulary};

/* ---- while it runs ---- */

/* Write to a full disk. */
static int save(void)
{
    FILE *out = fopen("/dev/full", "we");
    int error = 0;

    if (!out)
        return ct_fail(CT_EIO, "/dev/full: %s", strerror(errno));
    if (fputs("weights", out) < 0 || fflush(out))
        error = errno;
    fclose(out);
    return error ? ct_fail(CT_EIO, "saving step %lld: %s", (long long)step, strerror(error)) : 0;
}

/* One bit of a parameter changes. */
static int flip(struct ct_run *of)
{
    const struct ct_state *state = &of->states[0];
    uint32_t word = 0;
    int64_t offset[CT_MAX_DIMS] = {0}, shape[CT_MAX_DIMS] = {1, 1, 1, 1, 1, 1};
    int rc = ct_run_read(of, state, offset, shape, &word);

    word ^= 1u << 13;
    return rc < 0 ? rc : ct_run_write(of, state, offset, shape, &word);
}

static int on_step_end(const struct ct_event_data *d)
{
    if (is("disk") && here() && save() < 0)
        return CT_EIO;
    if (is("hook") && here())
        hang();
    if (is("flip") && here() && d->step == config.step)
        return flip(d->run);
    if (is("hook"))
        return ct_group_barrier(ct_run_world(d->run));
    if (is("barrier") && step >= config.step) {
        uint8_t byte = 0, all[64];

        return here()
                   ? ct_group_all_reduce(ct_run_world(d->run), &byte, all, 1, CT_U8, CT_REDUCE_SUM)
                   : ct_group_all_gather(ct_run_world(d->run), &byte, all, 1, CT_U8);
    }
    return 0;
}

static int on_op(const struct ct_event_data *d)
{
    const struct ct_op_type *type = d->instruction->op->type;
    static bool stopped;

    if (!here() || d->program != run->program || !type->flops || d->microbatch < 0)
        return 0;
    if (d->event == CT_EVENT_OP_END) {
        if (is("host"))
            ct_nap(config.seconds);
        return 0;
    }
    if (is("kernel"))
        hang();
    if (is("die"))
        raise(SIGKILL);
    if (is("stop") && !stopped) {
        stopped = true;
        raise(SIGSTOP);
    }
    if (is("slow"))
        ct_nap(config.seconds);
    return 0;
}

static int on_event(const struct ct_event_data *d, void *context)
{
    (void)context;
    if (d->event == CT_EVENT_STEP_BEGIN) {
        run = d->run;
        step = d->step;
        return 0;
    }
    if (!d->run)
        return 0;
    return d->event == CT_EVENT_STEP_END ? on_step_end(d) : on_op(d);
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_STEP_BEGIN | 1u << CT_EVENT_STEP_END |
                                              1u << CT_EVENT_OP_BEGIN | 1u << CT_EVENT_OP_END,
                                    .call = on_event};

/* ---- in the program ---- */

/* The n-th op of a type outside of init, or NULL. */
static struct ct_op *find(const struct ct_graph *graph, const struct ct_op_type *type, int n)
{
    ct_for_each_op (op, graph)
        if (op->type == type && op->section->part != CT_PART_INIT && n-- == 0)
            return op;
    return NULL;
}

/* An all_reduce that every rank gets: of `x`, along an axis. */
static int add_sum(struct ct_graph *graph, const char *name, struct ct_value *x, int axis)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_POST, "");
    struct ct_op *sum;

    b.why = "planted";
    sum = ct_all_reduce(&b, name, &x, 1, 1u << axis, CT_REDUCE_MAX);
    if (!sum)
        return b.status;
    sum->stream = ct_stream("reduce", 0);
    sum->out[0]->sharding = x->sharding;
    ct_graph_fetch(graph, name, sum->out[0]);
    return 0;
}

static struct ct_value *parameter(const struct ct_graph *graph, int n)
{
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM && n-- == 0)
            return graph->values[i];
    return NULL;
}

/* The other dtype is of the same values. */
static struct ct_value *as_bfloat16(struct ct_graph *graph, struct ct_value *x)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_POST, "");
    struct ct_value *y = ct_cast(&b, "planted.cast", x, CT_BF16);

    if (y)
        y->sharding = x->sharding;
    return y;
}

/* Two sums along different axes; half of the ranks call them in the other order. */
static int add_deadlock(struct ct_graph *graph, int64_t rank)
{
    int first = (int)(ct_mesh_coordinate(&graph->mesh, rank, 0) +
                      ct_mesh_coordinate(&graph->mesh, rank, 1)) %
                2;
    static const char *const names[] = {"planted.rows", "planted.columns"};
    int rc = add_sum(graph, names[first], parameter(graph, 0), first);

    return rc < 0 ? rc : add_sum(graph, names[!first], parameter(graph, 0), !first);
}

static int skip(struct ct_graph *graph)
{
    struct ct_op *op = find(graph, &ct_op_all_reduce, 0);

    if (!op)
        return ct_fail(CT_EINVAL, "no all_reduce to skip");
    for (int i = 0; i < op->outs; i++)
        ct_value_replace(graph, op->out[i], op->in[i]);
    ct_graph_remove(graph, op);
    return 0;
}

/* Any rank: the calls that all make. */
static int plant_everywhere(struct ct_graph *graph, int64_t rank)
{
    struct ct_value *x = parameter(graph, 0), *y = parameter(graph, 1);
    bool guilty = rank == config.rank;

    if (is("deadlock"))
        return add_deadlock(graph, rank);
    if (is("size"))
        return add_sum(graph, "planted", guilty ? y : x, 0);
    if (is("dtype"))
        return add_sum(graph, "planted", guilty ? as_bfloat16(graph, x) : x, 0);
    if (is("order")) {
        int rc = add_sum(graph, guilty ? "planted.b" : "planted.a", guilty ? y : x, 0);

        return rc < 0 ? rc : add_sum(graph, guilty ? "planted.a" : "planted.b", guilty ? x : y, 0);
    }
    return is("skip") && guilty ? skip(graph) : 0;
}

/* A stage sends to the wrong one. */
static int misdirect(struct ct_graph *graph)
{
    struct ct_op *op = find(graph, &ct_op_send, 0);
    struct ct_transfer *attrs = op ? op->attrs : NULL;

    if (!attrs)
        return ct_fail(CT_EINVAL, "nothing is sent");
    attrs->to = attrs->to + 1;
    return 0;
}

static int apply(struct ct_graph *graph, struct ct_run *of)
{
    if (is("send") && of->rank == config.rank)
        return misdirect(graph);
    return plant_everywhere(graph, of->rank);
}

static const struct ct_transform transform = {.size = sizeof(struct ct_transform),
                                              .name = "planted",
                                              .summary = "one rank gets another program",
                                              .phase = CT_PHASE_FUSE,
                                              .by_rank = true,
                                              .apply = apply};

CT_PLUGIN(.name = "planted", .version = "1.0", .summary = "Data, and a fault on one rank",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_DATA, "planted", &data}, {CT_HOOK, "planted", &hook},
                              {CT_TRANSFORM, "planted", &transform}));
