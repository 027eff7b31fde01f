/*
 * Recording: events become records of this rank's file.
 *
 * A record is one cache line. The thread that drives the run claims it by counting `written` up.
 * Which record an instruction has is kept in a table by index, so that STARTED and FINISHED find
 * it. When a call of a group fails, nothing is recorded any more: the file shows the moment of the
 * failure.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/launch.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#include "flight.h"

struct flight_config flight_config;
struct ct_flight_header *_Atomic flight_own;

/* The record of an instruction in the current step. */
struct claimed {
    struct ct_flight_record *record;
    uint64_t id;
};

static struct {
    const struct ct_run *run;
    size_t bytes;
    const struct ct_flight_instruction
        *plan[CT_FLIGHT_PROGRAMS]; /* at the first init instruction */
    struct claimed *claimed[CT_FLIGHT_PROGRAMS];
    struct ct_flight_group *groups;
    struct ct_flight_record *ring;
    uint64_t ring_mask;
    struct claimed step, call;
    struct ct_flight_position before; /* the call of the host */
    bool ops;
} now;

/* ---- records ---- */

static struct claimed claim(struct ct_flight_record given)
{
    uint64_t id = atomic_load_explicit(&flight_own->written, memory_order_relaxed) + 1;
    struct ct_flight_record *r = &now.ring[(id - 1) & now.ring_mask];

    atomic_store_explicit(&r->id, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    memcpy((char *)r + sizeof(r->id), (char *)&given + sizeof(r->id), sizeof(*r) - sizeof(r->id));
    atomic_store_explicit(&r->id, id, memory_order_release);
    atomic_store_explicit(&flight_own->written, id, memory_order_release);
    return (struct claimed){r, id};
}

/* The claimed record, unless the ring has gone round since. */
static struct ct_flight_record *still(const struct claimed *c)
{
    return c->record && atomic_load_explicit(&c->record->id, memory_order_relaxed) == c->id
               ? c->record
               : NULL;
}

/* The end of a record's call, which other threads of this process read meanwhile. */
static void finish(struct ct_flight_record *r, double time)
{
    __atomic_store(&r->finished, &time, __ATOMIC_RELAXED);
}

static double end_of(const struct ct_flight_record *r)
{
    double time;

    __atomic_load(&r->finished, &time, __ATOMIC_RELAXED);
    return time;
}

static int program_of(const struct ct_event_data *d)
{
    return d->program == now.run->program ? 0 : 1;
}

static size_t entry_of(const struct ct_event_data *d)
{
    return (size_t)(d->index + (int64_t)d->program->init_count);
}

static void mark(struct ct_flight_mark *m, const struct ct_event_data *d, int program)
{
    m->time = d->time;
    m->program = program;
    m->index = (int32_t)d->index;
    m->step = d->step;
    m->sequence = d->sequence;
}

static void move_to(enum ct_flight_phase phase, int program, int64_t index, double time)
{
    struct ct_flight_position *p = &flight_own->position;

    p->phase = phase;
    p->program = program;
    p->index = (int32_t)index;
    p->since = time;
}

/* ---- calls of programs ---- */

static void on_collective(const struct ct_event_data *d)
{
    int which = program_of(d), group;
    struct claimed *c = &now.claimed[which][entry_of(d)];
    struct ct_flight_record *r;

    group = now.plan[which][entry_of(d)].group;
    if (group < 0 || flight_own->broken > 0)
        return;
    switch (d->event) {
    case CT_EVENT_COLLECTIVE_ENQUEUED:
        *c = claim((struct ct_flight_record){.enqueued = d->time,
                                             .sequence = d->sequence,
                                             .step = d->step,
                                             .index = (int32_t)d->index,
                                             .group = (int16_t)group,
                                             .program = (int16_t)which,
                                             .kind = CT_FLIGHT_CALL});
        mark(&now.groups[group].enqueued, d, which);
        break;
    case CT_EVENT_COLLECTIVE_STARTED:
        if ((r = still(c)))
            r->started = d->time;
        mark(&now.groups[group].started, d, which);
        break;
    case CT_EVENT_COLLECTIVE_FINISHED:
        if ((r = still(c)))
            finish(r, d->time);
        mark(&now.groups[group].finished, d, which);
        if (d->run->device->enqueues && r)
            flight_straggler_call(r->started, d->time);
        if (flight_config.divergence_freq)
            flight_divergence_op(d);
        break;
    default: /* failed */
        flight_own->broken = d->time;
    }
}

/* ---- calls of the host ---- */

static int host_group(const struct ct_group *group)
{
    uint64_t count = flight_own->group_count;

    for (uint64_t i = 0; i < count; i++)
        if (now.groups[i].key == group)
            return (int)i;
    return -1; /* not in a program, and not the world */
}

static void on_call(const struct ct_event_data *d)
{
    int group = d->group ? host_group(d->group) : -1;
    struct ct_event_data data = *d;
    struct ct_flight_group *g;
    struct ct_flight_record *r;

    if (group < 0 || flight_own->broken > 0)
        return;
    g = &now.groups[group];
    data.index = (int64_t)d->call->kind;
    if (d->event == CT_EVENT_CALL_BEGIN) {
        now.call = claim((struct ct_flight_record){.enqueued = d->time,
                                                   .started = d->time,
                                                   .sequence = d->sequence,
                                                   .step = flight_own->position.step,
                                                   .index = (int32_t)data.index,
                                                   .group = (int16_t)group,
                                                   .kind = CT_FLIGHT_HOST_CALL});
        if (d->sequence) {
            mark(&g->enqueued, &data, -1);
            mark(&g->started, &data, -1);
        }
        now.before = flight_own->position;
        move_to(CT_FLIGHT_IN_CALL, -1, group, d->time);
        return;
    }
    if ((r = still(&now.call)))
        finish(r, d->time);
    if (d->sequence)
        mark(&g->finished, &data, -1);
    move_to((enum ct_flight_phase)now.before.phase, now.before.program, now.before.index, d->time);
}

/* ---- steps and instructions ---- */

/* When the last call ended that an instruction waits for. */
static double last_awaited(const struct ct_event_data *d, int which)
{
    const struct ct_flight_instruction *f = &now.plan[which][entry_of(d)];
    const int32_t *waits = CT_FLIGHT_AT(flight_own, flight_own->waits);
    double last = 0;

    for (uint32_t i = 0; i < f->wait_count; i++) {
        size_t entry = (size_t)(waits[f->waits + i] + (int64_t)d->program->init_count);
        struct ct_flight_record *r = still(&now.claimed[which][entry]);

        if (r && end_of(r) > last)
            last = end_of(r);
    }
    return last;
}

static void count_work(const struct ct_event_data *d, int which)
{
    flight_straggler_op(&now.plan[which][entry_of(d)], flight_own->position.since,
                        last_awaited(d, which), d->time);
}

static void on_op(const struct ct_event_data *d)
{
    int which = program_of(d);
    bool begins = d->event == CT_EVENT_OP_BEGIN;
    enum ct_flight_phase after = d->index < 0 ? CT_FLIGHT_IN_OPENING : CT_FLIGHT_IN_BETWEEN;
    struct claimed *c;
    struct ct_flight_record *r;

    if (flight_own->broken > 0)
        return;
    if (!begins && d->index >= 0 && which == 0 && flight_config.straggler_freq)
        count_work(d, which);
    if (!begins && flight_config.divergence_freq && d->instruction->stream == CT_STREAM_COMPUTE)
        flight_divergence_op(d);
    move_to(begins ? CT_FLIGHT_IN_INSIDE : after, which, d->index, d->time);
    if (!now.ops || now.plan[which][entry_of(d)].group >= 0)
        return;
    c = &now.claimed[which][entry_of(d)];
    if (begins)
        *c = claim((struct ct_flight_record){.enqueued = d->time,
                                             .started = d->time,
                                             .step = d->step,
                                             .index = (int32_t)d->index,
                                             .group = -1,
                                             .program = (int16_t)which,
                                             .kind = CT_FLIGHT_OP});
    else if ((r = still(c)))
        finish(r, d->time);
}

static int on_step(const struct ct_event_data *d)
{
    struct ct_flight_record *r;
    int rc = 0;

    flight_own->position.step = d->step;
    if (d->event == CT_EVENT_STEP_BEGIN) {
        if (flight_config.divergence_freq)
            rc = flight_divergence_step_begin(d->run, d->step);
        move_to(CT_FLIGHT_IN_DATA, 0, 0, d->time);
        now.step = claim((struct ct_flight_record){
            .enqueued = d->time, .step = d->step, .group = -1, .kind = CT_FLIGHT_STEP});
        return rc;
    }
    move_to(CT_FLIGHT_IN_HOOKS, -1, 0, d->time);
    if ((r = still(&now.step))) {
        r->started = r->enqueued + d->result->data_seconds;
        finish(r, d->time);
    }
    if (flight_config.divergence_freq)
        rc = flight_divergence_step_end(d->run, d->step);
    return rc == 0 && flight_config.straggler_freq ? flight_straggler_step(d->run, d->result) : rc;
}

/* ---- the file ---- */

static uint64_t align(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

struct part {
    const void *data;
    size_t bytes, room;
    uint64_t at;
};

static uint64_t lay_out(struct part *parts, size_t count)
{
    uint64_t at = align(sizeof(struct ct_flight_header));

    for (size_t i = 0; i < count; i++) {
        parts[i].at = at;
        at += align(parts[i].room);
    }
    return at;
}

static int map_file(const char *path, size_t bytes, void **data)
{
    int file, rc;

    unlink(path);
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0)
        return ct_fail(CT_EIO, "cannot write %s: %s", path, strerror(errno));
    rc = posix_fallocate(file, 0, (off_t)bytes); /* a full disk must not be found out later */
    if (rc == 0) {
        *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
        rc = *data == MAP_FAILED ? errno : 0;
    }
    close(file);
    if (rc == 0)
        return 0;
    unlink(path);
    return ct_fail(CT_EIO, "%s, of %zu bytes: %s%s", path, bytes, strerror(rc),
                   rc == ENODEV ? ": its file system cannot map files that are written; set [job] "
                                  "dump_folder to a local folder, or go --without flight_recorder"
                                : "");
}

static void describe(struct ct_flight_header *h, const struct ct_run *run)
{
    struct ct_identity identity;

    h->layout = CT_FLIGHT_LAYOUT;
    h->header_bytes = sizeof(*h);
    h->rank = (int32_t)run->rank;
    h->world = (int32_t)run->world;
    h->pid = getpid();
    gethostname(h->host, sizeof(h->host) - 1);
    snprintf(h->job, sizeof(h->job), "%s", ct_config.job.name);
    if (ct_launch_identify(&identity) == 0)
        snprintf(h->start, sizeof(h->start), "%s", identity.job);
    h->clock = ct_wall_clock() - ct_now();
    h->begin = run->start_time;
    h->beat = ct_now();
    h->timeout = ct_config.comm.timeout;
    h->position.step = run->progress.step;
    h->position.since = h->beat;
}

static uint64_t power_of_two(int64_t least)
{
    uint64_t n = 1;

    while (n < (uint64_t)least)
        n *= 2;
    return n;
}

static int use(const struct ct_run *run, struct ct_flight_header *h)
{
    const struct ct_program *programs[CT_FLIGHT_PROGRAMS] = {run->program, run->validation_program};

    flight_own = h;
    now.groups = CT_FLIGHT_AT(h, h->groups);
    now.ring = CT_FLIGHT_AT(h, h->ring);
    now.ring_mask = h->ring_count - 1;
    now.ops = flight_config.record == FLIGHT_RECORD_ALL;
    for (int i = 0; i < CT_FLIGHT_PROGRAMS; i++) {
        size_t count = programs[i] ? programs[i]->init_count + programs[i]->step_count : 0;

        now.plan[i] = CT_FLIGHT_AT(h, h->program[i].instructions);
        free(now.claimed[i]);
        now.claimed[i] = programs[i] ? calloc(count + 1, sizeof(struct claimed)) : NULL;
        if (programs[i] && !now.claimed[i])
            return ct_fail(CT_ENOMEM, "flight_recorder: a table of %zu instructions", count);
    }
    return 0;
}

enum { INSTRUCTIONS, WAITS, GROUPS, RANKS, STRINGS, RECIPE, TABLES };

static int create(const struct ct_run *run, const struct flight_plan *plan)
{
    uint64_t records = power_of_two(run->program ? flight_config.records : 1), bytes;
    const struct flight_table *tables[] = {&plan->instructions, &plan->waits,   &plan->groups,
                                           &plan->ranks,        &plan->strings, &plan->recipe};
    struct part parts[TABLES + 1];
    char path[CT_PATH_ROOM];
    struct ct_flight_header *h;
    void *data;
    int rc;

    for (int i = 0; i < TABLES; i++)
        parts[i] = (struct part){tables[i]->data, tables[i]->used, tables[i]->used, 0};
    parts[TABLES] = (struct part){.room = records * sizeof(struct ct_flight_record)};
    bytes = lay_out(parts, TABLES + 1);
    rc = ct_run_path(run, path, "flight/rank-%lld.ring", (long long)run->rank);
    if (rc == 0)
        rc = map_file(path, bytes, &data);
    if (rc < 0)
        return rc;
    h = data;
    for (int i = 0; i < TABLES; i++)
        if (parts[i].bytes)
            memcpy(CT_FLIGHT_AT(h, parts[i].at), parts[i].data, parts[i].bytes);
    describe(h, run);
    h->bytes = now.bytes = bytes;
    h->waits = parts[WAITS].at;
    h->groups = parts[GROUPS].at;
    h->group_count = plan->groups.used / sizeof(struct ct_flight_group);
    h->ranks = parts[RANKS].at;
    h->strings = parts[STRINGS].at;
    h->recipe = parts[RECIPE].at;
    h->ring = parts[TABLES].at;
    h->ring_count = records;
    for (int i = 0; i < CT_FLIGHT_PROGRAMS; i++) {
        h->program[i] = plan->program[i];
        h->program[i].instructions += parts[INSTRUCTIONS].at;
    }
    rc = use(run, h);
    if (rc < 0)
        return rc;
    atomic_thread_fence(memory_order_release);
    h->magic = CT_FLIGHT_MAGIC;
    return 0;
}

/* The previous run's file of this process stays as it is. */
static void leave(void)
{
    if (!flight_own)
        return;
    flight_watch_end();
    munmap(flight_own, now.bytes);
    flight_own = NULL;
}

/* At first without programs, so that a rank that does not get further is seen. The watching thread
   goes on with the second file; it may still write to the first, which stays mapped. */

static int open_file(const struct ct_run *run)
{
    struct flight_plan plan = {0};
    char path[CT_PATH_ROOM];
    int rc = ct_run_path(run, path, "flight");

    if (now.run != run)
        leave();
    now.run = run;
    flight_plan_string(&plan, "");
    if (run->program)
        flight_plan_add(&plan, 0, run->program);
    if (run->validation_program)
        flight_plan_add(&plan, 1, run->validation_program);
    flight_plan_group(&plan, run->world_group);
    flight_plan_recipe(&plan);
    if (rc == 0)
        rc = ct_file_make_folder(path);
    if (rc == 0)
        rc = create(run, &plan);
    flight_plan_finish(&plan);
    return rc < 0 ? rc : flight_watch_begin();
}

/* ---- the end ---- */

static void on_end(const struct ct_event_data *d)
{
    bool failed = d->event == CT_EVENT_FAILURE;

    flight_own->ended = d->time;
    flight_own->code = d->code;
    snprintf(flight_own->message, sizeof(flight_own->message), "%s", d->message ? d->message : "");
    atomic_thread_fence(memory_order_release);
    flight_own->state = failed ? CT_FLIGHT_FAILED : CT_FLIGHT_ENDED;
    if (failed)
        flight_explain();
    else
        move_to(CT_FLIGHT_IN_OVER, -1, 0, d->time);
    flight_straggler_end();
    flight_watch_end();
}

static int on_event(const struct ct_event_data *d, void *context)
{
    int rc;

    (void)context;
    if (d->event == CT_EVENT_CALL_BEGIN || d->event == CT_EVENT_CALL_END) {
        if (flight_own)
            on_call(d);
        return 0;
    }
    if (d->event == CT_EVENT_JOB_END)
        flight_job_end(d->job, d->message != NULL);
    if (d->event == CT_EVENT_COLLECTIVE_FAILED && !d->instruction && flight_own &&
        flight_own->broken <= 0)
        flight_own->broken = d->time;
    if (!d->run)
        return 0;
    if (d->event == CT_EVENT_RUN_OPEN)
        return open_file(d->run);
    if (d->run != now.run || !flight_own)
        return 0; /* planned only, or not trained */
    switch (d->event) {
    case CT_EVENT_OP_BEGIN:
    case CT_EVENT_OP_END:
        on_op(d);
        break;
    case CT_EVENT_STEP_BEGIN:
    case CT_EVENT_STEP_END:
        return on_step(d);
    case CT_EVENT_FAILURE:
    case CT_EVENT_RUN_END:
        on_end(d);
        break;
    case CT_EVENT_PLAN_READY:
        return open_file(d->run);
    case CT_EVENT_STAGE_BEGIN:
        rc = open_file(d->run); /* it has other programs */
        if (rc < 0)
            return rc;
        /* fall through */
    case CT_EVENT_RUN_READY:
        return flight_config.divergence_freq ? flight_divergence_begin(d->run) : 0;
    default:
        on_collective(d);
    }
    return 0;
}

#define BIT(event) (1u << CT_EVENT_##event)
static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook),
    .events = BIT(RUN_OPEN) | BIT(PLAN_READY) | BIT(RUN_READY) | BIT(STAGE_BEGIN) |
              BIT(STEP_BEGIN) | BIT(STEP_END) | BIT(OP_BEGIN) | BIT(OP_END) |
              BIT(COLLECTIVE_ENQUEUED) | BIT(COLLECTIVE_STARTED) | BIT(COLLECTIVE_FINISHED) |
              BIT(COLLECTIVE_FAILED) | BIT(CALL_BEGIN) | BIT(CALL_END) | BIT(FAILURE) |
              BIT(JOB_END) | BIT(RUN_END),
    .call = on_event};

static const struct ct_option options[] = {
    CT_OPT_INT(struct flight_config, records, "records", "16384", 64, 1 << 24,
               "Records in the ring, rounded up to a power of two; 64 bytes each"),
    CT_OPT_ENUM(struct flight_config, record, "record", "calls", "calls|all",
                "What to record: communication and steps, or every instruction"),
    CT_OPT_FLOAT(struct flight_config, hang_timeout, "hang_timeout", "0", 0, 1e9,
                 "Seconds without progress after which a rank ends itself; 0: never. ([comm] "
                 "timeout ends ranks that wait for others)"),
    CT_OPT_INT(struct flight_config, straggler_freq, "straggler_freq", "10", 0, 1 << 30,
               "Number of steps between comparisons of the ranks' work times; 0: never"),
    CT_OPT_FLOAT(struct flight_config, straggler_ratio, "straggler_ratio", "1.33", 1, 1e6,
                 "A rank is slow if it works this many times as long as the median rank"),
    CT_OPT_INT(struct flight_config, divergence_freq, "divergence_freq", "0", 0, 1 << 30,
               "Number of steps between comparisons of replicated values, by hash; 0: never"),
    {0}};

CT_PLUGIN(.name = "flight_recorder", .version = "1.0",
          .summary = "Records what every rank does, and explains why a run hangs",
          .options = options, .config = &flight_config, .config_size = sizeof(flight_config),
          .offers = CT_OFFERS({CT_HOOK, "flight_recorder", &hook}));
