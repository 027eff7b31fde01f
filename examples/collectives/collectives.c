/*
 * A record of every collective, one line of JSON each, in DUMP_FOLDER/collectives-RANK.jsonl.
 *
 * A group is identified by its ranks, name and instance, and numbers its calls. Lines of two ranks'
 * files with the same group and sequence are of the same call. A run that fails ends its file with
 * the calls that were enqueued and have not finished. Those that never began wait for other work,
 * those that began wait for a peer.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

struct call {
    struct ct_event_data enqueued;
    double started; /* 0: not yet */
    bool open;      /* enqueued and not finished */
};

/* Events of a collective come from the thread of its stream. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static const struct ct_program *program; /* program of the calls */
static struct call *calls;               /* by index, starting at the first init op */
static size_t count;
static bool ended;

static int open_file(const struct ct_run *run)
{
    char path[CT_PATH_ROOM];
    int rc = ct_run_path(run, path, "collectives-%lld.jsonl", (long long)run->rank);

    if (rc < 0)
        return rc;
    out = fopen(path, run->progress.step > 1 ? "ae" : "we");
    return out ? 0 : ct_fail(CT_EIO, "cannot write %s: %s", path, strerror(errno));
}

static int64_t bytes_of(const struct ct_tensor *t, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        if (t[i].ndim >= 0)
            sum += ct_tensor_count(&t[i]) * (int64_t)ct_dtype_size(t[i].dtype);
    return sum;
}

static void put_group(const struct ct_group *g)
{
    fprintf(out, "\"ranks\": [");
    for (int i = 0; i < g->size; i++)
        fprintf(out, "%s%d", i ? ", " : "", g->ranks[i]);
    fprintf(out, "], \"group\": \"%s\", \"instance\": %d, ", g->name, g->instance);
}

static void put_time(const char *name, double time)
{
    if (time > 0)
        fprintf(out, ", \"%s\": %.9f", name, time);
    else
        fprintf(out, ", \"%s\": null", name);
}

/* The bytes of the larger side (the whole tensor of a gather), which are the same on all ranks. */
static void put(const struct call *c, double finished)
{
    const struct ct_event_data *e = &c->enqueued;
    const struct ct_launch *l = &e->instruction->lowered->launch;
    int64_t in = bytes_of(l->in, l->ins), all = bytes_of(l->out, l->outs);

    fprintf(out, "{\"rank\": %lld, ", (long long)l->rank);
    if (e->group)
        put_group(e->group);
    fprintf(out, "\"sequence\": %lld, \"op\": \"%s\", \"bytes\": %lld, \"value\": \"%s\", ",
            (long long)e->sequence, e->instruction->op->type->name,
            (long long)(in > all ? in : all),
            l->op->outs ? l->op->out[0]->name : l->op->in[0]->name);
    fprintf(out, "\"step\": %lld, \"section\": \"%s\", \"microbatch\": %d", (long long)e->step,
            e->section, e->microbatch);
    put_time("enqueued", e->time);
    put_time("started", c->started);
    put_time("finished", finished);
    fprintf(out, "}\n");
}

/* The table of calls is rebuilt for the program that runs: training's, or validation's. */
static struct call *find(const struct ct_event_data *data)
{
    const struct ct_program *p = data->program;

    if (p != program) {
        free(calls);
        program = p;
        count = p->init_count + p->step_count;
        calls = calloc(count, sizeof(*calls));
    }
    return calls ? &calls[data->index + (int64_t)p->init_count] : NULL;
}

static int note(const struct ct_event_data *data)
{
    struct call *call;

    if (!out && open_file(data->run) < 0)
        return CT_EIO;
    call = find(data);
    if (!call)
        return ct_fail(CT_ENOMEM, "%zu calls", count);
    if (data->event == CT_EVENT_COLLECTIVE_ENQUEUED)
        *call = (struct call){*data, 0, true};
    if (data->event == CT_EVENT_COLLECTIVE_STARTED)
        call->started = data->time;
    if (data->event == CT_EVENT_COLLECTIVE_FINISHED) {
        put(call, data->time);
        call->open = false;
    }
    return 0;
}

static int finish(void)
{
    FILE *file = out;
    bool failed = false;

    ended = true;
    for (size_t i = 0; calls && i < count; i++)
        if (calls[i].open)
            put(&calls[i], 0);
    free(calls);
    calls = NULL;
    out = NULL;
    if (file)
        failed = ferror(file) || fclose(file);
    return failed ? ct_fail(CT_EIO, "the record of collectives: %s", strerror(errno)) : 0;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    int rc = 0;

    (void)context;
    pthread_mutex_lock(&lock);
    if (data->event == CT_EVENT_FAILURE || data->event == CT_EVENT_RUN_END)
        rc = finish();
    else if (data->event == CT_EVENT_STEP_END)
        rc = out && fflush(out) ? ct_fail(CT_EIO, "%s", strerror(errno)) : 0;
    else if (data->run && !ended)
        rc = note(data);
    pthread_mutex_unlock(&lock);
    return rc;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook),
    .events = 1u << CT_EVENT_COLLECTIVE_ENQUEUED | 1u << CT_EVENT_COLLECTIVE_STARTED |
              1u << CT_EVENT_COLLECTIVE_FINISHED | 1u << CT_EVENT_STEP_END |
              1u << CT_EVENT_FAILURE | 1u << CT_EVENT_RUN_END,
    .call = on_event};

CT_PLUGIN(.name = "collectives", .version = "1.0",
          .summary = "A record of every collective, with group, number and times",
          .offers = CT_OFFERS({CT_HOOK, "collectives", &hook}));
