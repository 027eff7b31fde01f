/*
 * The description as a file.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/measure.h>
#include <ctitan/log.h>

#include "describe.h"

#define POINTS 12 /* of a curve */

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

static void write_rates(FILE *out, const struct describe_call *list, size_t count)
{
    double(*point)[2] = (double(*)[2])ct_arena_array(&describe.arena, double, 2 * count + 2);
    double sum[2] = {0}, ideal[2] = {0}; /* of ops without FLOPs, and with them */

    for (size_t n = 0, next; n < count; n = next) {
        const struct describe_call *last = NULL;
        size_t points = 0;

        for (next = n; next < count && !strcmp(list[next].op, list[n].op); next++)
            if (list[next].sent == 0 && list[next].ideal > 0) {
                point[points][0] = list[next].ideal;
                point[points++][1] = list[next].ideal / list[next].seconds;
                last = &list[next];
                sum[multiplies(list[n].op)] += list[next].seconds;
                ideal[multiplies(list[n].op)] += list[next].ideal;
            }
        if (!last)
            continue;
        fprintf(out, "\n[rate.%s]\nops = %s\n", last->op, last->op);
        if (last->peak > 0)
            fprintf(out, "peak = %.4g\n", last->peak);
        if (last->lookup)
            fprintf(out, "work = outputs\n");
        write_curve(out, (const double(*)[2])point, points);
    }
    if (sum[1] > 0)
        fprintf(out, "\n[rate.products]\nwork = flops\nreach = 1e-6 %.4g\n", ideal[1] / sum[1]);
    fprintf(out, "\n[rate.other]\nreach = 1e-6 %.4g\n", sum[0] > 0 ? ideal[0] / sum[0] : 1);
}

static void write_calls(FILE *out, const struct describe_call *list, size_t count)
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

static int by_bytes(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

/* Sending less does not take longer: where it seems so, the ranks have waited for each other. */
static void leave_out_waiting(double (*point)[2], size_t points)
{
    for (size_t n = points; n-- > 1;)
        point[n - 1][1] = fmin(point[n - 1][1], point[n][1]);
}

/* Collectives by what they send; without any, what copying reaches. */
static void write_host_link(FILE *out, const struct describe_call *list, size_t count)
{
    double(*point)[2] = (double(*)[2])ct_arena_array(&describe.arena, double, 2 * count + 2);
    double best = 0;
    size_t points = 0;

    for (size_t n = 0; n < count; n++)
        if (list[n].sent > 0) {
            point[points][0] = list[n].sent;
            point[points++][1] = list[n].seconds;
        }
    qsort(point, points, sizeof(*point), by_bytes);
    leave_out_waiting(point, points);
    for (size_t n = 0; n < points; n++)
        best = fmax(best, point[n][1] = point[n][0] / point[n][1]);
    for (size_t n = 0; n < points; n++)
        point[n][1] /= best;
    fputs("\n[link.host]\n", out);
    if (!points)
        fprintf(out, "; no collective was seen: a third of the bandwidth of memory\n");
    fprintf(out, "bandwidth = %.4g\nlatency = %.4g\n",
            points ? best : describe.machine.peak.bandwidth / 3, points ? 0. : 1e-6);
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
    double busy = 0, step = ct_median(describe.step, (size_t)describe.steps);

    for (size_t n = 0; n < run->program->step_count; n++)
        if (describe.sample[n].count && run->program->step[n].stream == CT_STREAM_COMPUTE)
            busy += ct_median(describe.sample[n].seconds, (size_t)describe.sample[n].count);
    return run->world > 1 ? 0 : fmax(0, (step - busy) / (double)run->program->step_count);
}

/* Sets the facts of a machine that is described for the first time, in addition to its peaks. */
static void set_device(const struct ct_run *run, struct ct_machine *machine)
{
    struct ct_device_info info = {0};

    run->device_ops->info(run->device, CT_F32, &info);
    machine->name = ct_arena_strdup(&describe.arena, info.name);
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

int describe_write(const struct ct_run *run, const char *path)
{
    struct ct_new_file file;
    struct describe_call *list;
    size_t count;
    int rc;

    if (!describe.old)
        set_device(run, &describe.machine);
    count = describe_collect(run, &list);
    rc = ct_file_begin(&file, path);
    if (rc < 0)
        return rc;
    fprintf(file.out, "; Measured by the plugin describe: %s %s, %lld rank%s, %d step%s.\n",
            ct_config.model.name, ct_config.model.flavor, (long long)run->world,
            ct_plural(run->world), describe.steps, ct_plural(describe.steps));
    write_device(file.out, &describe.machine);
    write_host_link(file.out, list, count);
    write_network(file.out, &describe.machine.network);
    write_rates(file.out, list, count);
    write_calls(file.out, list, count);
    rc = ct_file_end(&file, 0);
    if (rc == 0)
        ct_info("describe: %s has %zu measured calls", path, count);
    return rc;
}
