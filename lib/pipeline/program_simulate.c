#include <math.h>
#include <string.h>

#include <ctitan/lib/app/simulate.h>
#include <ctitan/op.h>

#include "program_contention.h"
#include "program_lanes.h"

/* A simulation is repeated until contention changes the step by less. */
#define SETTLED 1e-4
#define ROUNDS 40

struct costs {
    const struct ct_simulate_request *request;
    double **alone, **factor; /* by index, by instruction: seconds; times as long beside others */
};

static double alone(const struct ct_simulate_request *r, int index, const struct ct_instruction *i)
{
    double factor = 1;

    for (int n = 0; n < r->slow_count; n++)
        if (r->slow[n].rank == r->rank[index])
            factor = r->slow[n].factor;
    return factor * ct_machine_seconds(r->machine, r->program[index], r->rank[index], i);
}

static void find_costs(struct ct_arena *arena, struct costs *c)
{
    const struct ct_simulate_request *r = c->request;

    c->alone = ct_arena_array(arena, double *, r->count);
    c->factor = ct_arena_array(arena, double *, r->count);
    for (int index = 0; index < r->count; index++) {
        const struct ct_program *p = r->program[index];

        c->alone[index] = ct_arena_array(arena, double, p->step_count);
        c->factor[index] = ct_arena_array(arena, double, p->step_count);
        for (size_t n = 0; n < p->step_count; n++) {
            c->alone[index][n] = alone(r, index, &p->step[n]);
            c->factor[index][n] = 1;
        }
    }
}

static double cost(const void *client, int index, const struct ct_instruction *i)
{
    const struct costs *c = client;
    size_t n = (size_t)(i - c->request->program[index]->step);

    return c->alone[index][n] * c->factor[index][n];
}

/* ---- where the time of a rank goes ---- */

static void account(const struct ct_simulate_request *r, int index, struct ct_simulated *result)
{
    const struct ct_program *p = r->program[index];
    const double *start = result->start[index], *end = result->end[index];
    struct ct_rank_times *t = &result->times[index];

    ct_rank_account(p, start, end, result->seconds, t);
    t->of_class = ct_arena_array(r->arena, double, r->machine->rate_count + 1);
    for (size_t n = 0; n < p->step_count; n++) {
        size_t class = ct_machine_class(r->machine, p->step[n].op);

        if (ct_instruction_computes(&p->step[n]))
            t->of_class[class == SIZE_MAX ? r->machine->rate_count : class] += end[n] - start[n];
    }
}

/* Times of one round, into arrays that are there from the first one on. */
static void take(const struct ct_simulate_request *r, const struct ct_program_lanes *p,
                 struct ct_simulated *result)
{
    result->seconds = 0;
    for (int index = 0; index < r->count; index++)
        for (size_t n = 0; n < r->program[index]->step_count; n++) {
            const struct ct_lane_item *item = &p->lanes.item[p->first[index] + (int32_t)n];

            result->start[index][n] = item->start;
            result->end[index][n] = item->end;
            result->seconds = fmax(result->seconds, item->end);
        }
}

/* Ranks of a host communicate by their processors, where all streams share these. Transfers of
   pipelines mostly wait, as does what goes over a network. */
static bool computes(const void *client, int index, const struct ct_instruction *i)
{
    const struct ct_simulate_request *r = ((const struct costs *)client)->request;

    if (!r->machine->in_order || i->op->type->flags & CT_OP_RENDEZVOUS)
        return false;
    return i->lowered->sent <= 0 ||
           !ct_machine_between_hosts(r->machine, r->program[index], r->rank[index], i);
}

static int run_once(const struct costs *costs, struct ct_simulated *result)
{
    const struct ct_simulate_request *request = costs->request;
    struct ct_arena scratch = {0};
    struct ct_program_lanes p = {.program = request->program,
                                 .rank = request->rank,
                                 .count = request->count,
                                 .in_order = request->in_order,
                                 .host_waits = request->host_waits,
                                 .computes = computes,
                                 .cost = cost,
                                 .client = costs,
                                 .arena = &scratch};
    int rc = ct_program_lanes_build(&p);

    if (rc == 0 && !ct_lanes_run(&p.lanes))
        rc = ct_program_lanes_stuck(&p);
    if (rc == 0)
        take(request, &p, result);
    ct_arena_finish(&scratch);
    return rc;
}

int ct_simulate(const struct ct_simulate_request *request, struct ct_simulated *result)
{
    struct ct_arena scratch = {0};
    struct costs costs = {.request = request};
    double last = 0;
    int rc = 0;

    *result = (struct ct_simulated){
        .start = ct_arena_array(request->arena, double *, request->count),
        .end = ct_arena_array(request->arena, double *, request->count),
        .times = ct_arena_array(request->arena, struct ct_rank_times, request->count)};
    for (int index = 0; index < request->count; index++) {
        size_t count = request->program[index]->step_count;

        result->start[index] = ct_arena_array(request->arena, double, count + 1);
        result->end[index] = ct_arena_array(request->arena, double, count + 1);
    }
    find_costs(&scratch, &costs);
    for (int round = 0; rc == 0 && round < ROUNDS; round++) {
        rc = run_once(&costs, result);
        if (rc < 0 || (round && fabs(result->seconds - last) < SETTLED * last) ||
            ct_contention_stretch(request, result, costs.factor) == 0)
            break;
        last = result->seconds;
    }
    for (int index = 0; rc == 0 && index < request->count; index++)
        account(request, index, result);
    ct_arena_finish(&scratch);
    return rc;
}

/* ---- measured steps ---- */

/* Where an item begins: when the last of those that it is matched with has begun. */
static double begin_of(const struct ct_program_lanes *p, double *const *start, int32_t item)
{
    double last = 0;
    int32_t at = item;

    do {
        int index = p->lanes.item[at].lane / CT_STREAMS;

        last = fmax(last, start[index][at - p->first[index]]);
        at = p->lanes.item[at].match;
    } while (at != item);
    return last;
}

static void begin_together(const struct ct_program_lanes *p, struct ct_simulated *result,
                           struct ct_arena *scratch)
{
    double **start = ct_arena_array(scratch, double *, p->count);

    for (int index = 0; index < p->count; index++) {
        size_t count = p->program[index]->step_count;

        start[index] = ct_arena_array(scratch, double, count + 1);
        memcpy(start[index], result->start[index], count * sizeof(double));
    }
    for (int index = 0; index < p->count; index++)
        for (size_t n = 0; n < p->program[index]->step_count; n++)
            result->start[index][n] =
                fmin(result->end[index][n], begin_of(p, start, p->first[index] + (int32_t)n));
}

int ct_simulated_measured(const struct ct_simulate_request *request, struct ct_simulated *result)
{
    struct ct_arena scratch = {0};
    struct ct_program_lanes p = {.program = request->program,
                                 .rank = request->rank,
                                 .count = request->count,
                                 .in_order = request->in_order,
                                 .arena = &scratch};
    double first = INFINITY, last = 0;
    int rc = ct_program_lanes_build(&p);

    if (rc == 0)
        begin_together(&p, result, &scratch);
    for (int index = 0; rc == 0 && index < request->count; index++)
        for (size_t n = 0; n < request->program[index]->step_count; n++) {
            first = fmin(first, result->start[index][n]);
            last = fmax(last, result->end[index][n]);
        }
    result->seconds = fmax(0, last - first);
    for (int index = 0; rc == 0 && index < request->count; index++)
        for (size_t n = 0; n < request->program[index]->step_count; n++) {
            result->start[index][n] -= first;
            result->end[index][n] -= first;
        }
    result->times = ct_arena_array(request->arena, struct ct_rank_times, request->count);
    for (int index = 0; rc == 0 && index < request->count; index++)
        account(request, index, result);
    ct_arena_finish(&scratch);
    return rc;
}
