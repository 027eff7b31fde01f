/*
 * Facts about devices, for `ctitan doctor`.
 */
#include <stdio.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/measure.h>

#include "cli.h"
#include "doctor.h"

/* The best of several measurements counts, because other processes only make a machine slower. */
#define LOOKS 5

static void take_best(struct ct_arena *arena, struct rate *best, int rc, double rate)
{
    if (rc < 0)
        best->failure = ct_arena_strdup(arena, ct_error_message());
    else if (rate > best->value)
        best->value = rate;
}

static void measure_gemm(struct ct_arena *arena, struct ct_device *device, enum ct_dtype dtype,
                         struct rate *best)
{
    for (int i = 0; !best->failure && i < LOOKS; i++) {
        double rate = 0;
        int rc = ct_measure_gemm(device, dtype, &rate);

        take_best(arena, best, rc, rate);
    }
}

static void measure_bandwidth(struct ct_arena *arena, struct ct_device *device, struct rate *best)
{
    for (int i = 0; !best->failure && i < LOOKS; i++) {
        double rate = 0;
        int rc = ct_measure_bandwidth(device, &rate);

        take_best(arena, best, rc, rate);
    }
}

/* Where lines of a device's diagnosis go. */
static struct {
    struct ct_arena *arena;
    struct ct_texts *lines;
} diagnosis;

static void take_line(const char *line)
{
    struct ct_texts *t = diagnosis.lines;

    t->at = ct_arena_grow(diagnosis.arena, t->at, &t->room, t->count + 1, sizeof(*t->at));
    t->at[t->count++] = ct_arena_strdup(diagnosis.arena, line);
}

static void diagnose(struct ct_arena *arena, const struct ct_device_ops *ops,
                     struct device_facts *d)
{
    diagnosis.arena = arena;
    diagnosis.lines = &d->diagnosis;
    if (ops->diagnose)
        ops->diagnose(take_line);
}

void device_look(struct ct_arena *arena, const char *name, const struct ct_device_ops *ops,
                 struct device_facts *d)
{
    struct ct_device_request request = {.local_ranks = 1};
    struct ct_device *device;

    *d = (struct device_facts){.name = name};
    if (ops->open(&request, &device) < 0) {
        d->failure = ct_arena_strdup(arena, ct_error_message());
        diagnose(arena, ops, d);
        return;
    }
    device->ops = ops;
    ops->info(device, CT_F32, &d->info);
    diagnose(arena, ops, d);
    measure_gemm(arena, device, CT_F32, &d->float32);
    measure_gemm(arena, device, CT_BF16, &d->bfloat16);
    measure_bandwidth(arena, device, &d->bandwidth);
    ops->close(device);
}

static void print_rate(const char *what, const struct rate *r, const char *unit)
{
    char text[32];

    if (r->failure)
        printf("    %-25s %s\n", what, r->failure);
    else
        printf("    %-25s %s%s\n", what, human_count(r->value, text), unit);
}

void device_print(const struct device_facts *d)
{
    char memory[32];

    if (d->failure)
        printf("  %s: %s\n", d->name, d->failure);
    else
        printf("  %s: %s, %s\n", d->name, d->info.name,
               human_bytes((double)d->info.memory, memory));
    for (size_t i = 0; i < d->diagnosis.count; i++)
        printf("    %s\n", d->diagnosis.at[i]);
    if (d->failure)
        return;
    print_rate("matrix product, float32", &d->float32, "FLOP/s");
    print_rate("matrix product, bfloat16", &d->bfloat16, "FLOP/s");
    print_rate("memory bandwidth", &d->bandwidth, "B/s");
}

static json_t *rate_json(const struct device_facts *d, const struct rate *r)
{
    return d->failure || r->failure ? json_null() : ct_json_number(r->value);
}

json_t *device_json(const struct device_facts *d)
{
    json_t *lines = ct_json_texts(d->diagnosis.at, d->diagnosis.count);

    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", ct_json_text(d->name), "failure",
        ct_json_text(d->failure), "model", ct_json_text(d->failure ? NULL : d->info.name),
        "memory_bytes", d->failure ? json_null() : ct_json_number((double)d->info.memory),
        "float32_flops", rate_json(d, &d->float32), "bfloat16_flops", rate_json(d, &d->bfloat16),
        "bytes_per_second", rate_json(d, &d->bandwidth), "diagnosis", lines);
}
