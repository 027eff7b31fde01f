/*
 * Describes this machine while a recipe trains on it: a file for `ctitan plan --device` and
 * `ctitan simulate` (lib/machine.h).
 *
 * From the third step on, each instruction that computes is timed where it runs, with its caches
 * and its neighbours, from the end of the collectives that it waits for, and each collective from
 * its start to its end on its stream. Calls of the same op, shapes and dtype count together, by
 * their median; of a collective the shortest counts, as the others wait for ranks that come late.
 * What is added to a description takes the shorter time where both have it, and of the machine all
 * that the description says.
 * The file lists all calls that were seen, and for each op a curve, from which other sizes are
 * interpolated; other ops with FLOPs follow the mean of those, and other ones that of the rest.
 *
 * Only for devices whose kernels run on the host's threads.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/lib/comm.h>
#include <ctitan/lib/file.h>
#include <ctitan/lib/machine.h>
#include <ctitan/lib/measure.h>
#include <ctitan/log.h>
#include <ctitan/op.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#define WARM 2 /* steps that are not counted */
#define SAMPLES 32
#define POINTS 12 /* of a curve */
#define NAP 0.03  /* seconds that a measurement takes */

static struct config {
    const char *file;
    bool add;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, file, "file", NULL, "The description to write"),
    CT_OPT_BOOL(
        struct config, add, "add", "false",
        "Keep what the file says, if it is there; of calls that both have, the shorter time"),
    {0}};

/* An instruction of the step. */
struct sample {
    double began, ended, seconds[SAMPLES];
    int count;
};

/* Calls alike, or a point of a curve in the description that is added to. */
struct call {
    const char *op, *shapes;     /* shapes "": a point only */
    double ideal, sent, seconds; /* ideal 0: a call of that description, whose point stands alone */
};

static struct {
    struct ct_arena arena;
    struct sample *sample; /* by instruction */
    int32_t *signaller;    /* by event: its instruction; -1: none */
    double step[SAMPLES];
    int steps;
    struct ct_machine machine;    /* measured, or that of `old` */
    const struct ct_machine *old; /* NULL: nothing is added to */
} now;

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static double median(double *value, int count)
{
    qsort(value, (size_t)count, sizeof(*value), compare_doubles);
    return value[count / 2];
}

static bool communicates(const struct ct_instruction *i)
{
    return i->op->type->flags & (CT_OP_COLLECTIVE | CT_OP_RENDEZVOUS);
}

/* ---- the description that is added to ---- */

/* Shares of peaks are comparable only with the same peaks, and times with the same sharing of
   processors. */
static int read_old(const struct ct_run *run)
{
    int rc = ct_machine_read(&now.arena, config.file, &now.old);

    if (rc < 0)
        return ct_context(rc, "[describe] add");
    if (now.old->ranks_per_host != run->world || now.old->in_order != (run->world > 1))
        return ct_fail(
            CT_ECONFIG,
            "[describe] add: %s describes a host of %lld ranks%s, and this run has %lld: "
            "describe it in another file",
            config.file, (long long)now.old->ranks_per_host,
            now.old->in_order ? ", whose streams share processors" : "", (long long)run->world);
    now.machine = *now.old;
    return 0;
}

static size_t old_calls(const struct ct_machine *old, struct call *list)
{
    size_t count = 0;

    for (size_t n = 0; n < old->call_count; n++)
        list[count++] = (struct call){
            .op = old->call[n].op, .shapes = old->call[n].shapes, .seconds = old->call[n].seconds};
    for (size_t n = 0; n < old->rate_count; n++)
        for (size_t i = 0; old->rate[n].op_count && i < old->rate[n].reach.count; i++) {
            const struct ct_machine_point *p = &old->rate[n].reach.point[i];

            list[count++] = (struct call){.op = old->rate[n].ops[0],
                                          .shapes = "",
                                          .ideal = p->at,
                                          .seconds = p->at / p->value};
        }
    for (size_t i = 0; i < old->host.reach.count; i++) {
        const struct ct_machine_point *p = &old->host.reach.point[i];

        list[count++] = (struct call){.op = "",
                                      .shapes = "",
                                      .sent = p->at,
                                      .seconds = p->at / (old->host.bandwidth * p->value)};
    }
    return count;
}

static size_t most_old_calls(const struct ct_machine *old)
{
    size_t count = old->call_count + old->host.reach.count;

    for (size_t n = 0; n < old->rate_count; n++)
        count += old->rate[n].reach.count;
    return count;
}

static bool is_near(double a, double b)
{
    return a > 0 && fabs(a / b - 1) < 0.0005; /* as printed */
}

/* Is this call, or point of a curve, of the old description the same as the new call? */
static bool is_alike(const struct call *old, const struct call *call)
{
    if (old->sent > 0)
        return is_near(old->sent, call->sent);
    if (strcmp(old->op, call->op))
        return false;
    return *old->shapes ? !strcmp(old->shapes, call->shapes) : is_near(old->ideal, call->ideal);
}

/* Calls that were measured before, too, take the shorter time: what else a machine does only slows.
   Returns how many old ones are left. */
static size_t keep_shorter(struct call *old, size_t olds, struct call *list, size_t count)
{
    size_t kept = 0;

    for (size_t i = 0; i < olds; i++) {
        bool found = false;

        for (size_t n = 0; n < count; n++)
            if (is_alike(&old[i], &list[n])) {
                found = true;
                if (*old[i].shapes || old[i].sent > 0)
                    list[n].seconds = fmin(list[n].seconds, old[i].seconds);
            }
        if (!found)
            old[kept++] = old[i];
    }
    return kept;
}

/* ---- timing ---- */

static bool counts(const struct ct_event_data *d)
{
    return now.sample && d->run && d->program == d->run->program && d->index >= 0 && d->step > WARM;
}

static int begin(const struct ct_event_data *d)
{
    if (counts(d))
        now.sample[d->index].began = d->time;
    return 0;
}

/* OP_BEGIN comes before the instruction waits for collectives on other streams. */
static double began(const struct ct_event_data *d)
{
    double time = now.sample[d->index].began;

    for (const int32_t *w = d->instruction->waits; w && *w >= 0; w++)
        if (now.signaller[*w] >= 0)
            time = fmax(time, now.sample[now.signaller[*w]].ended);
    return time;
}

static int end(const struct ct_event_data *d)
{
    struct sample *s = counts(d) ? &now.sample[d->index] : NULL;

    if (!s)
        return 0;
    if (communicates(d->instruction))
        s->ended = d->time;
    if (s->count < SAMPLES)
        s->seconds[s->count++] = d->time - began(d);
    return 0;
}

static void find_signallers(const struct ct_program *program)
{
    now.signaller = ct_arena_array(&now.arena, int32_t, program->events + 1);
    memset(now.signaller, -1, sizeof(*now.signaller) * ((size_t)program->events + 1));
    for (size_t n = 0; n < program->step_count; n++)
        if (program->step[n].signal >= 0 && communicates(&program->step[n]))
            now.signaller[program->step[n].signal] = (int32_t)n;
}

/* What products of rank 0 reach while the other ranks multiply, too, over what they reach alone:
   ranks may share processors, even where each has a core in name. */
static int measure_alone(struct ct_run *run, double *alone)
{
    struct ct_group *world = ct_run_world(run);
    double speed[2] = {1, 1}, ignored;
    int rc = 0;

    for (int together = 0; rc == 0 && run->world > 1 && together < 2; together++) {
        rc = ct_group_barrier(world);
        if (rc == 0 && run->rank == 0) {
            ct_nap(together * NAP);
            rc = ct_measure_gemm(run->device, CT_BF16, &speed[together]);
        }
        for (int i = 0; rc == 0 && run->rank != 0 && together && i < 4; i++)
            rc = ct_measure_gemm(run->device, CT_BF16, &ignored);
    }
    *alone = fmin(1, speed[1] / speed[0]);
    return rc < 0 ? rc : ct_group_barrier(world);
}

static int too_few_steps(void)
{
    return ct_fail(CT_ECONFIG, "plugin describe needs more than %d steps", WARM);
}

static int ready(struct ct_run *run)
{
    double f32 = 0, bf16 = 0, bandwidth = 0;
    int rc = 0;

    if (!run->device->host_memory)
        return ct_fail(CT_ECONFIG,
                       "plugin describe can only measure devices whose kernels run on the host's "
                       "threads, not %s: write its description by hand",
                       run->device->name);
    if (ct_config.training.steps <= WARM)
        return too_few_steps();
    now.sample = ct_arena_array(&now.arena, struct sample, run->program->step_count);
    find_signallers(run->program);
    if (config.add && access(config.file, F_OK) == 0)
        return read_old(run);
    rc = ct_measure_gemm(run->device, CT_F32, &f32);
    if (rc == 0)
        rc = ct_measure_gemm(run->device, CT_BF16, &bf16);
    if (rc == 0)
        rc = ct_measure_bandwidth(run->device, &bandwidth);
    if (rc == 0)
        rc = measure_alone(run, &now.machine.contention.alone);
    now.machine.peak.float32 = f32;
    now.machine.peak.bfloat16 = bf16;
    now.machine.peak.bandwidth = bandwidth;
    return rc;
}

/* ---- calls alike ---- */

static int compare_calls(const void *a, const void *b)
{
    const struct call *x = a, *y = b;
    int order = strcmp(x->op, y->op);

    if (!order && x->sent != y->sent)
        return x->sent < y->sent ? -1 : 1;
    if (!order && x->ideal != y->ideal)
        return x->ideal < y->ideal ? -1 : 1;
    return order ? order : strcmp(x->shapes, y->shapes);
}

/* Put the calls alike together: their median, or the shortest collective. */
static size_t merge(struct call *list, size_t count)
{
    double *value = ct_arena_array(&now.arena, double, count);
    size_t kept = 0;

    qsort(list, count, sizeof(*list), compare_calls);
    for (size_t n = 0, next; n < count; n = next) {
        for (next = n; next < count && !compare_calls(&list[next], &list[n]); next++)
            value[next - n] = list[next].seconds;
        list[kept] = list[n];
        list[kept].seconds = median(value, (int)(next - n));
        if (list[n].sent > 0)
            list[kept].seconds = value[0];
        kept++;
    }
    return kept;
}

static size_t collect(const struct ct_run *run, struct call **list)
{
    size_t count = 0, room = now.old ? most_old_calls(now.old) : 0;

    *list = ct_arena_array(&now.arena, struct call, run->program->step_count + room);
    for (size_t n = 0; n < run->program->step_count; n++) {
        const struct ct_instruction *i = &run->program->step[n];
        struct sample *s = &now.sample[n];
        char shapes[512];

        if (!s->count || (communicates(i) && !(i->sent > 0)))
            continue;
        if (ct_machine_shapes(&i->launch, shapes, sizeof(shapes)) >= (int)sizeof(shapes))
            *shapes = '\0'; /* a point of the curve only */
        (*list)[count++] = (struct call){.op = i->op->type->name,
                                         .shapes = ct_arena_strdup(&now.arena, shapes),
                                         .ideal = ct_machine_ideal(&now.machine, i),
                                         .sent = communicates(i) ? i->sent : 0,
                                         .seconds = median(s->seconds, s->count)};
    }
    count = merge(*list, count);
    if (now.old) {
        size_t olds = old_calls(now.old, *list + count);

        count += keep_shorter(*list + count, olds, *list, count);
        qsort(*list, count, sizeof(**list), compare_calls);
    }
    return count;
}

/* ---- the file ---- */

/* Points "at share" with rising `at`, POINTS of them at most. */
static void write_curve(FILE *out, const double (*point)[2], size_t count)
{
    size_t every = count / POINTS + 1;
    double last = 0;
    bool any = false;

    fprintf(out, "reach =");
    for (size_t n = 0; n < count; n++)
        if ((n % every == 0 || n + 1 == count) && point[n][0] > last) {
            fprintf(out, "%s %.4g %.4g", any ? "," : "", point[n][0], point[n][1]);
            last = point[n][0] * 1.0005; /* as printed */
            any = true;
        }
    fprintf(out, "%s\n", any ? "" : " 1 1");
}

static bool multiplies(const char *op)
{
    const struct ct_op_type *type = ct_op_find(op);

    return type && type->flops;
}

static void write_rates(FILE *out, const struct call *list, size_t count)
{
    double(*point)[2] = (double(*)[2])ct_arena_array(&now.arena, double, 2 * count + 2);
    double sum[2] = {0}, ideal[2] = {0}; /* of ops without FLOPs, and with them */
    size_t points;

    for (size_t n = 0, next; n < count; n = next) {
        points = 0;
        for (next = n; next < count && !strcmp(list[next].op, list[n].op); next++)
            if (list[next].sent == 0 && list[next].ideal > 0) {
                point[points][0] = list[next].ideal;
                point[points++][1] = list[next].ideal / list[next].seconds;
                sum[multiplies(list[n].op)] += list[next].seconds;
                ideal[multiplies(list[n].op)] += list[next].ideal;
            }
        if (!points)
            continue;
        fprintf(out, "\n[rate.%s]\nops = %s\n", list[n].op, list[n].op);
        write_curve(out, (const double(*)[2])point, points);
    }
    if (sum[1] > 0)
        fprintf(out, "\n[rate.products]\nwork = flops\nreach = 1e-6 %.4g\n", ideal[1] / sum[1]);
    fprintf(out, "\n[rate.other]\nreach = 1e-6 %.4g\n", sum[0] > 0 ? ideal[0] / sum[0] : 1);
}

static void write_calls(FILE *out, const struct call *list, size_t count)
{
    const char *op = "";

    fprintf(out,
            "\n; Calls that were measured: shapes of inputs and outputs, dtype, seconds.\n[calls]");
    for (size_t n = 0; n < count; n++) {
        if (list[n].sent > 0 || !*list[n].shapes)
            continue;
        if (strcmp(op, list[n].op))
            fprintf(out, "\n%s =", op = list[n].op);
        fprintf(out, "\n  %s %.4g", list[n].shapes, list[n].seconds);
    }
    fputc('\n', out);
}

/* Sending less does not take longer: where it seems so, the ranks have waited for each other. */
static void leave_out_waiting(double (*point)[2], size_t points)
{
    for (size_t n = points; n-- > 1;)
        point[n - 1][1] = fmin(point[n - 1][1], point[n][1]);
}

/* Collectives by what they send; without any, what copying reaches. */
static void write_host_link(FILE *out, const struct call *list, size_t count)
{
    double(*point)[2] = (double(*)[2])ct_arena_array(&now.arena, double, 2 * count + 2);
    double best = 0;
    size_t points = 0;

    for (size_t n = 0; n < count; n++)
        if (list[n].sent > 0) {
            point[points][0] = list[n].sent;
            point[points++][1] = list[n].seconds;
        }
    qsort(point, points, sizeof(*point), compare_doubles);
    leave_out_waiting(point, points);
    for (size_t n = 0; n < points; n++)
        best = fmax(best, point[n][1] = point[n][0] / point[n][1]);
    for (size_t n = 0; n < points; n++)
        point[n][1] /= best;
    fputs("\n[link.host]\n", out);
    if (!points)
        fprintf(out, "; no collective was seen: a third of the bandwidth of memory\n");
    fprintf(out, "bandwidth = %.4g\nlatency = %.4g\n",
            points ? best : now.machine.peak.bandwidth / 3, points ? 0. : 1e-6);
    if (points)
        write_curve(out, (const double(*)[2])point, points);
}

/* The link between hosts is not measured: what the description said of it stays. */
static void write_network(FILE *out, const struct ct_machine_link *link)
{
    if (!(link->bandwidth > 0))
        return;
    fprintf(out, "\n[link.network]\nbandwidth = %.4g\nlatency = %.4g\nreach =", link->bandwidth,
            link->latency);
    for (size_t i = 0; i < link->reach.count; i++)
        fprintf(out, "%s %.4g %.4g", i ? "," : "", link->reach.point[i].at,
                link->reach.point[i].value);
    fputc('\n', out);
}

/* Seconds of a step in addition to its instructions, divided by their number. */
static double overhead(const struct ct_run *run)
{
    double busy = 0, step = median(now.step, now.steps);

    for (size_t n = 0; n < run->program->step_count; n++)
        if (now.sample[n].count && run->program->step[n].stream == CT_STREAM_COMPUTE)
            busy += median(now.sample[n].seconds, now.sample[n].count);
    return run->world > 1 ? 0 : fmax(0, (step - busy) / (double)run->program->step_count);
}

/* What is known of a machine that is described for the first time, in addition to its peaks. */
static void set_device(const struct ct_run *run, struct ct_machine *machine)
{
    struct ct_device_info info = {0};

    run->device_ops->info(run->device, CT_F32, &info);
    machine->name = ct_arena_strdup(&now.arena, info.name);
    machine->plugin = run->device->name;
    machine->memory = (double)info.memory;
    machine->ranks_per_host = run->world;
    machine->launch = overhead(run);
    machine->in_order = run->world > 1;
    machine->contention.computing = machine->contention.communicating = 1;
}

static void write_device(FILE *out, const struct ct_machine *m)
{
    fprintf(out,
            "[device]\nname = %s\nplugin = %s\nmemory = %.0f\nbeside = %.0f\n"
            "ranks_per_host = %lld\nlaunch = %.4g\nin_order = %s\n\n[peak]\nfloat32 = %.4g\n"
            "bfloat16 = %.4g\nfloat8 = %.4g\nbandwidth = %.4g\n\n[contention]\ncomputing = %.4g\n"
            "communicating = %.4g\nalone = %.4g\n",
            m->name, m->plugin, m->memory, m->beside, (long long)m->ranks_per_host, m->launch,
            m->in_order ? "true" : "false", m->peak.float32, m->peak.bfloat16, m->peak.float8,
            m->peak.bandwidth, m->contention.computing, m->contention.communicating,
            m->contention.alone);
}

static int write_machine(const struct ct_run *run)
{
    struct ct_new_file file;
    struct call *list;
    size_t count;
    int rc;

    if (!now.old)
        set_device(run, &now.machine);
    count = collect(run, &list);
    rc = ct_file_begin(&file, config.file);
    if (rc < 0)
        return rc;
    fprintf(file.out, "; Measured by the plugin describe: %s %s, %lld ranks, %d steps.\n",
            ct_config.model.name, ct_config.model.flavor, (long long)run->world, now.steps);
    write_device(file.out, &now.machine);
    write_host_link(file.out, list, count);
    write_network(file.out, &now.machine.network);
    write_rates(file.out, list, count);
    write_calls(file.out, list, count);
    rc = ct_file_end(&file, 0);
    if (rc == 0)
        ct_info("describe: %s has %zu measured calls", config.file, count);
    return rc;
}

static int step_end(const struct ct_event_data *d)
{
    if (d->step > WARM && now.steps < SAMPLES)
        now.step[now.steps++] = d->result->seconds - d->result->data_seconds;
    return 0;
}

static int on_event(const struct ct_event_data *d, void *context)
{
    (void)context;
    switch (d->event) {
    case CT_EVENT_RUN_READY:
        return ready(d->run);
    case CT_EVENT_OP_BEGIN:
        return communicates(d->instruction) ? 0 : begin(d);
    case CT_EVENT_OP_END:
        return communicates(d->instruction) ? 0 : end(d);
    case CT_EVENT_COLLECTIVE_STARTED:
        return begin(d);
    case CT_EVENT_COLLECTIVE_FINISHED:
        return end(d);
    case CT_EVENT_STEP_END:
        return step_end(d);
    case CT_EVENT_RUN_END:
        if (d->run->rank != 0)
            return 0;
        if (!now.steps)
            return too_few_steps();
        return write_machine(d->run);
    default:
        return 0;
    }
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook),
    .events = 1u << CT_EVENT_RUN_READY | 1u << CT_EVENT_OP_BEGIN | 1u << CT_EVENT_OP_END |
              1u << CT_EVENT_COLLECTIVE_STARTED | 1u << CT_EVENT_COLLECTIVE_FINISHED |
              1u << CT_EVENT_STEP_END | 1u << CT_EVENT_RUN_END,
    .call = on_event};

CT_PLUGIN(.name = "describe", .version = "1.0",
          .summary = "Measures this machine while a recipe trains, for plans and simulations",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "describe", &hook}));
