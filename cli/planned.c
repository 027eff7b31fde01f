/*
 * Runs that are planned and not started: the programs of all ranks of a pipeline, their proof and
 * their time on a described machine.
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/pipeline.h>
#include <ctitan/run.h>
#include <ctitan/lib/rates.h>

#include "cli.h"

static int open_peers(struct planned *p)
{
    struct ct_run *run = p->run;
    int axis = run->graph->partition_axis, rc = 0;

    p->count = axis < 0 ? 1 : (int)run->mesh.axis[axis].size;
    p->peer = ct_arena_array(&run->arena, struct ct_run *, p->count);
    p->program = ct_arena_array(&run->arena, const struct ct_program *, p->count);
    p->rank = ct_arena_array(&run->arena, int64_t, p->count);
    ct_mesh_group(&run->mesh, run->rank, axis < 0 ? 0 : (ct_axes)1 << axis, p->rank);
    for (int n = 0; rc == 0 && n < p->count; n++) {
        if (p->rank[n] != run->rank)
            rc = ct_run_open_peer(run, p->rank[n], &p->peer[n]);
        if (rc == 0)
            p->program[n] = p->peer[n] ? p->peer[n]->program : run->program;
    }
    return rc;
}

static void close_peers(struct planned *p)
{
    for (int n = 0; n < p->count; n++)
        ct_run_close(p->peer[n]);
    p->count = 0;
}

int plan_look_at(struct planned *p, size_t stage)
{
    int rc;

    close_peers(p);
    rc = ct_run_look_at_stage(p->run, stage);
    if (rc == 0)
        rc = open_peers(p);
    return rc == 0 ? plan_prove(p) : rc;
}

int plan_open(struct ct_recipe *recipe, struct args *args, struct planned *planned)
{
    int64_t world = args->ranks ? args->ranks : 1;
    struct ct_run_options options = {.depth = CT_RUN_PROGRAM,
                                     .peers = true,
                                     .world = args->ranks,
                                     .rank = args->rank,
                                     .local_ranks = args->local ? (int)args->local : 1};
    int rc;

    *planned = (struct planned){0};
    if (args->rank >= world)
        return ct_fail(CT_ECONFIG, "--rank %lld of %lld ranks", (long long)args->rank,
                       (long long)world);
    rc = ct_run_open(recipe, &options, &planned->run);
    if (rc < 0)
        return rc;
    rc = open_peers(planned);
    if (rc < 0)
        plan_close(planned);
    return rc;
}

void plan_close(struct planned *planned)
{
    close_peers(planned);
    ct_run_close(planned->run);
}

int plan_prove(const struct planned *planned)
{
    const struct ct_run *run = planned->run;

    if (run->graph->partition_axis < 0)
        return 0;
    return ct_programs_prove(planned->program, planned->count, run->graph->partition_axis,
                             run->device->in_order);
}

/* ---- time ---- */

/* All ranks of the world, each with the program of its pipeline stage. */
static void expand(const struct planned *p, struct args *args, struct ct_simulate_request *r)
{
    const struct ct_run *run = p->run;
    const struct ct_program **program =
        ct_arena_array(&args->arena, const struct ct_program *, run->world);
    int64_t *rank = ct_arena_array(&args->arena, int64_t, run->world);
    int axis = run->graph->partition_axis;

    for (int64_t n = 0; n < run->world; n++) {
        rank[n] = n;
        program[n] = p->program[axis < 0 ? 0 : ct_mesh_coordinate(&run->mesh, n, axis)];
    }
    r->program = program;
    r->rank = rank;
    r->count = (int)run->world;
}

int plan_simulate(const struct planned *planned, struct args *args,
                  struct ct_simulate_request *request, struct ct_simulated *result)
{
    const struct ct_device *device = planned->run->device;
    int rc = ct_machine_check_ranks(args->machine, planned->run->world);

    if (rc < 0)
        return rc;
    *request = (struct ct_simulate_request){.machine = args->machine,
                                            .program = planned->program,
                                            .rank = planned->rank,
                                            .count = planned->count,
                                            .slow = args->slow.at,
                                            .slow_count = args->slow.count,
                                            .in_order = device->in_order,
                                            .host_waits = device->host_memory,
                                            .arena = &args->arena};
    for (int i = 0; i < args->slow.count; i++)
        if (args->slow.at[i].rank >= planned->run->world)
            return ct_fail(CT_ECONFIG, "--slow: there is no rank %lld among %lld",
                           (long long)args->slow.at[i].rank, (long long)planned->run->world);
    if (args->slow.count || args->all_ranks)
        expand(planned, args, request);
    return ct_simulate(request, result);
}

struct summary {
    double tokens, tflops, mfu, mfu_halved; /* per second and rank; percent */
    const struct ct_rank_times *times;      /* of the rank that computes longest */
};

static double computing(const struct ct_rank_times *t)
{
    return t->products + t->others;
}

static struct summary summarise(const struct planned *p, const struct args *args,
                                const struct ct_simulated *result)
{
    const struct ct_run *run = p->run;
    int64_t step =
        run->program->microbatches * ct_graph_batch(run->graph) * ct_config.training.seq_len;
    struct summary s = {.tokens = (double)step / result->seconds / (double)run->world,
                        .times = &result->times[0]};
    double whole, halved;

    run->model_ops->flops_per_token(run->model, ct_config.training.seq_len, &whole, &halved);
    s.tflops = whole * s.tokens / 1e12;
    s.mfu = 100 * whole * s.tokens / ct_machine_peak(args->machine, ct_compute_dtype());
    s.mfu_halved = s.mfu * halved / whole;
    for (int n = 1; n < p->count; n++)
        if (computing(&result->times[n]) > computing(s.times))
            s.times = &result->times[n];
    return s;
}

/* The resource that limits the step, in words. */
static const char *limit(const struct ct_rank_times *t)
{
    if (t->waiting > t->products && t->waiting > t->exposed)
        return "waiting for other ranks";
    if (t->exposed > t->products && t->exposed > t->others)
        return "communication";
    return t->others > t->products ? "memory bandwidth" : "matrix products";
}

static void print_part(const char *what, double seconds, double step)
{
    if (seconds > 0)
        printf("  %-32s %12.3f ms %6.1f %%\n", what, seconds * 1e3, 100 * seconds / step);
}

/* Bytes that a rank takes of a described machine. */
static double taken(const struct planned *p, const struct ct_machine *m)
{
    return (double)p->run->arena_bytes + m->beside;
}

const char *upper_bound(const struct ct_machine *machine, char text[UPPER_BOUND])
{
    struct ct_line line = {text, UPPER_BOUND, 0};

    ct_line_add(&line, "the device was not measured, so expect fewer tokens per second");
    if (machine->published.of)
        ct_line_add(&line, "; published steps took %.4g to %.4g times as long (%s)",
                    machine->published.least, machine->published.most, machine->published.of);
    return text;
}

json_t *published_json(const struct ct_machine *machine)
{
    if (!machine->published.of)
        return json_null();
    return json_pack("{s:o, s:o, s:o}", "least", ct_json_number(machine->published.least), "most",
                     ct_json_number(machine->published.most), "of",
                     ct_json_text(machine->published.of));
}

void print_times(const struct planned *planned, const struct args *args,
                 const struct ct_simulated *result)
{
    struct summary s = summarise(planned, args, result);
    const struct ct_machine *m = args->machine;
    char need[32], has[32], bound[UPPER_BOUND];

    printf("\non %s, as described in %s:\n", m->name, m->path);
    printf("  step               %.3f ms\n", result->seconds * 1e3);
    printf("  tokens per second  %.0f per rank\n", s.tokens);
    printf("  MFU                %.1f %%, causal attention counted in full; %.1f %%, by half\n",
           s.mfu, s.mfu_halved);
    if (m->memory < taken(planned, m))
        printf("  it does NOT fit into the device's memory: it needs %s of %s\n",
               human_bytes(taken(planned, m), need), human_bytes(m->memory, has));
    printf("  limited by         %s\n", limit(s.times));
    if (!ct_machine_is_measured(m))
        printf("  upper bound        %s\n", upper_bound(m, bound));
    printf("\ntimes of the rank that computes longest\n");
    for (size_t n = 0; n <= m->rate_count; n++)
        print_part(n < m->rate_count ? m->rate[n].name : "no class", s.times->of_class[n],
                   result->seconds);
    print_part("communication, exposed", s.times->exposed, result->seconds);
    print_part("waiting: bubble, other ranks", s.times->waiting, result->seconds);
    print_part("(communication, hidden)", s.times->hidden, result->seconds);
}

static bool is_listed(const json_t *names, const char *name)
{
    for (size_t i = 0; i < json_array_size(names); i++)
        if (!strcmp(json_string_value(json_array_get(names, i)), name))
            return true;
    return false;
}

/* Op types that have no kernel on the described device, each once. */
static json_t *lacking(const struct planned *p)
{
    json_t *names = json_array();

    for (int n = 0; n < p->count; n++)
        for (size_t i = 0; i < p->program[n]->step_count; i++) {
            const struct ct_instruction *at = &p->program[n]->step[i];

            if (ct_kernel_is_none(at->lowered->kernel) && !is_listed(names, at->op->type->name))
                json_array_append_new(names, ct_json_text(at->op->type->name));
        }
    return names;
}

json_t *times_json(const struct planned *planned, const struct args *args,
                   const struct ct_simulated *result)
{
    struct summary s = summarise(planned, args, result);
    const struct ct_machine *m = args->machine;
    json_t *times = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:o, s:s, s:o, s:o, s:o, s:o}", "device",
        ct_json_text(m->name), "step_seconds", ct_json_number(result->seconds),
        "tokens_per_second_per_rank", ct_json_number(s.tokens), "tflops", ct_json_number(s.tflops),
        "mfu", ct_json_number(s.mfu), "mfu_halved", ct_json_number(s.mfu_halved), "fits",
        m->memory >= taken(planned, m), "measured", ct_machine_is_measured(m), "published",
        published_json(m), "limited_by", limit(s.times), "exposed",
        ct_json_number(s.times->exposed), "hidden", ct_json_number(s.times->hidden), "waiting",
        ct_json_number(s.times->waiting), "no_kernel", lacking(planned));

    for (size_t n = 0; n < m->rate_count; n++)
        json_object_set_new(times, m->rate[n].name, ct_json_number(s.times->of_class[n]));
    return times;
}
