/*
 * Contention among the streams of a rank and among ranks that share processors.
 *
 * Computing beside communication goes slower by a described factor, communication beside computing
 * by another, and what two streams send over one link at a time shares its bandwidth. Where ranks
 * share processors, a rank that waits leaves its share to the others of its host. When anything
 * runs beside anything depends on how long it all takes, so the simulation is repeated with the
 * times of the round before, until they hold still.
 */
#include <math.h>
#include <stdlib.h>

#include "program_contention.h"

/* A stream's use of one resource: intervals in order, and the length of those before each. */
struct busy {
    double *start, *end, *before;
    size_t count;
};

enum { COMPUTING, HOST_LINK, NETWORK_LINK, RESOURCES };

static int resource_of(const struct ct_simulate_request *r, int index,
                       const struct ct_instruction *i)
{
    if (!(i->op->type->flags & (CT_OP_COLLECTIVE | CT_OP_RENDEZVOUS)))
        return i->stream == CT_STREAM_COMPUTE ? COMPUTING : RESOURCES;
    if (!(i->op->type->flags & CT_OP_RENDEZVOUS) && !(i->lowered->sent > 0))
        return RESOURCES;
    return ct_machine_between_hosts(r->machine, r->program[index], r->rank[index], i) ? NETWORK_LINK
                                                                                      : HOST_LINK;
}

/* Length of a stream's work before a time. */
static double before(const struct busy *b, double time)
{
    size_t low = 0, high = b->count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (b->start[middle] < time)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? b->before[low - 1] + fmin(time, b->end[low - 1]) - b->start[low - 1] : 0;
}

static double beside(const struct busy *b, double start, double end)
{
    return b->count ? before(b, end) - before(b, start) : 0;
}

static void add(struct ct_arena *arena, struct busy *b, size_t room, double start, double end)
{
    if (!b->start) {
        b->start = ct_arena_array(arena, double, room);
        b->end = ct_arena_array(arena, double, room);
        b->before = ct_arena_array(arena, double, room);
    }
    b->before[b->count] =
        b->count ? b->before[b->count - 1] + b->end[b->count - 1] - b->start[b->count - 1] : 0;
    b->start[b->count] = start;
    b->end[b->count++] = end;
}

static int compare_starts(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

/* The time in which any stream communicates. */
static void unite(struct ct_arena *arena, struct busy busy[CT_STREAMS][RESOURCES], struct busy *all)
{
    double(*at)[2];
    size_t count = 0, room = 0;

    for (int s = 0; s < CT_STREAMS; s++)
        room += busy[s][HOST_LINK].count + busy[s][NETWORK_LINK].count;
    at = (double(*)[2])ct_arena_array(arena, double, 2 * room + 2);
    for (int s = 0; s < CT_STREAMS; s++)
        for (int n = HOST_LINK; n <= NETWORK_LINK; n++)
            for (size_t i = 0; i < busy[s][n].count; i++, count++) {
                at[count][0] = busy[s][n].start[i];
                at[count][1] = busy[s][n].end[i];
            }
    qsort(at, count, sizeof(*at), compare_starts);
    for (size_t n = 0, next; n < count; n = next) {
        double end = at[n][1];

        for (next = n + 1; next < count && at[next][0] <= end; next++)
            end = fmax(end, at[next][1]);
        add(arena, all, room, at[n][0], end);
    }
}

/* The streams of a rank. */
struct rank {
    struct busy busy[CT_STREAMS][RESOURCES], communicates;
};

static int64_t world_of(const struct ct_simulate_request *r)
{
    const struct ct_mesh *mesh = &r->program[0]->graph->mesh;

    return ct_mesh_degree(mesh, ((ct_axes)1 << mesh->count) - 1);
}

/* The share of the time from start to end in which the other ranks of a rank's host compute.
   A simulated rank stands for as many as fit; those of its own kind compute as it does. */
static double neighbours(const struct ct_simulate_request *r, const struct rank *rank, int index,
                         double start, double end)
{
    int64_t size = r->machine->ranks_per_host, world = world_of(r);
    double others = 0, here = 0;

    size = size < world ? size : world;
    for (int i = 0; i < r->count; i++)
        if (r->rank[i] / size == r->rank[index] / size) {
            here++;
            others += i == index ? 1
                                 : beside(&rank[i].busy[CT_STREAM_COMPUTE][COMPUTING], start, end) /
                                       (end - start);
        }
    return size > 1 ? (others / here * (double)size - 1) / ((double)size - 1) : 1;
}

/* Times as long as described, which is with all ranks of the host computing. */
static double among_ranks(const struct ct_simulate_request *r, const struct rank *rank, int index,
                          double start, double end)
{
    double alone = r->machine->contention.alone, share;

    if (alone == 1)
        return 1;
    share = fmin(1, neighbours(r, rank, index, start, end));
    return 1 / (share + (1 - share) / alone);
}

/* The speed of an instruction, relative to that alone, by what the rank's other streams do
   meanwhile. */
static double speed(const struct ct_machine *m, const struct rank *rank, int stream, int resource,
                    double start, double end)
{
    double length = end - start, other, same = 0, factor;

    if (resource == COMPUTING) {
        factor = m->contention.computing;
        other = beside(&rank->communicates, start, end);
    } else {
        factor = m->contention.communicating;
        other = beside(&rank->busy[CT_STREAM_COMPUTE][COMPUTING], start, end);
        for (int s = 0; s < CT_STREAMS; s++)
            same += s == stream ? 0 : beside(&rank->busy[s][resource], start, end);
    }
    /* In these shares of its time it goes at 1 / factor, and at half of its speed. */
    return (1 - fmin(1, other / length) * (1 - 1 / factor)) * (1 - fmin(1, same / length) / 2);
}

static void find_busy(const struct ct_simulate_request *r, struct ct_arena *scratch, int index,
                      const struct ct_simulated *result, struct rank *rank)
{
    const struct ct_program *p = r->program[index];
    const double *start = result->start[index], *end = result->end[index];

    for (size_t n = 0; n < p->step_count; n++) {
        int resource = end[n] > start[n] ? resource_of(r, index, &p->step[n]) : RESOURCES;

        if (resource < RESOURCES)
            add(scratch, &rank->busy[p->step[n].stream][resource], p->step_count, start[n], end[n]);
    }
    unite(scratch, rank->busy, &rank->communicates);
}

/* An instruction takes its time alone, and what it lost in the time that it took in the last round:
   unlike a division by the speed there, that is never more than what ran beside it. Returns the
   largest relative change of a factor. */
static double stretch_rank(const struct ct_simulate_request *r, const struct rank *rank, int index,
                           const struct ct_simulated *result, double *factor)
{
    const struct ct_program *p = r->program[index];
    const double *start = result->start[index], *end = result->end[index];
    double change = 0;

    for (size_t n = 0; n < p->step_count; n++) {
        int resource = end[n] > start[n] ? resource_of(r, index, &p->step[n]) : RESOURCES;
        double now = 1;

        if (resource == COMPUTING)
            now = among_ranks(r, rank, index, start[n], end[n]);
        if (resource < RESOURCES)
            now += factor[n] * (1 - speed(r->machine, &rank[index], p->step[n].stream, resource,
                                          start[n], end[n]));
        change = fmax(change, fabs(now / factor[n] - 1));
        factor[n] = now;
    }
    return change;
}

double ct_contention_stretch(const struct ct_simulate_request *request,
                             const struct ct_simulated *result, double **factor)
{
    struct ct_arena scratch = {0};
    struct rank *rank = ct_arena_array(&scratch, struct rank, request->count);
    double change = 0;

    for (int index = 0; index < request->count; index++)
        find_busy(request, &scratch, index, result, &rank[index]);
    for (int index = 0; index < request->count; index++)
        change = fmax(change, stretch_rank(request, rank, index, result, factor[index]));
    ct_arena_finish(&scratch);
    return change;
}
