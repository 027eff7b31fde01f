/*
 * What the streams of a rank take from each other.
 *
 * Computing beside communication goes slower by a described factor, communication beside computing
 * by another, and what two streams send over one link at a time shares its bandwidth. When anything
 * runs beside anything depends on how long it all takes, so the simulation is repeated with the
 * times of the round before, until they hold still.
 */
#include <math.h>
#include <stdlib.h>

#include "program_contention.h"

/* What a stream does on one resource: intervals in order, and the length of those before each. */
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
    if (!(i->op->type->flags & CT_OP_RENDEZVOUS) && !(i->sent > 0))
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

/* How many times as long as alone an instruction takes, by what the other streams do meanwhile. */
static double stretch(const struct ct_machine *m, struct busy busy[CT_STREAMS][RESOURCES],
                      const struct busy *communicates, int stream, int resource, double start,
                      double end)
{
    double length = end - start, other, same = 0, factor;

    if (resource == COMPUTING) {
        factor = m->contention.computing;
        other = beside(communicates, start, end);
    } else {
        factor = m->contention.communicating;
        other = beside(&busy[CT_STREAM_COMPUTE][COMPUTING], start, end);
        for (int s = 0; s < CT_STREAMS; s++)
            same += s == stream ? 0 : beside(&busy[s][resource], start, end);
    }
    /* In these shares of its time it goes at 1 / factor, and at half of its speed. */
    return 1 / (1 - fmin(1, other / length) * (1 - 1 / factor)) / (1 - fmin(1, same / length) / 2);
}

/* Returns the largest relative change of a factor. */
static double stretch_rank(const struct ct_simulate_request *r, struct ct_arena *scratch, int index,
                           const double *start, const double *end, double *factor)
{
    const struct ct_program *p = r->program[index];
    struct busy busy[CT_STREAMS][RESOURCES] = {0}, communicates = {0};
    int *resource = ct_arena_array(scratch, int, p->step_count);
    double change = 0;

    for (size_t n = 0; n < p->step_count; n++) {
        resource[n] = end[n] > start[n] ? resource_of(r, index, &p->step[n]) : RESOURCES;
        if (resource[n] < RESOURCES)
            add(scratch, &busy[p->step[n].stream][resource[n]], p->step_count, start[n], end[n]);
    }
    unite(scratch, busy, &communicates);
    for (size_t n = 0; n < p->step_count; n++) {
        double now = 1;

        if (resource[n] < RESOURCES)
            now = stretch(r->machine, busy, &communicates, p->step[n].stream, resource[n], start[n],
                          end[n]);
        change = fmax(change, fabs(now / factor[n] - 1));
        factor[n] = now;
    }
    return change;
}

double ct_contention_stretch(const struct ct_simulate_request *request,
                             const struct ct_simulated *result, double **factor)
{
    double change = 0;

    for (int index = 0; index < request->count; index++) {
        struct ct_arena scratch = {0};

        change = fmax(change, stretch_rank(request, &scratch, index, result->start[index],
                                           result->end[index], factor[index]));
        ct_arena_finish(&scratch);
    }
    return change;
}
