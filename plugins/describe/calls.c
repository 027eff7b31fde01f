/*
 * Calls alike, of a run and of the description that it is added to.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/lib/measure.h>

#include "describe.h"

/* ---- calls alike ---- */

static int compare_calls(const void *a, const void *b)
{
    const struct describe_call *x = a, *y = b;
    int order = strcmp(x->op, y->op);

    if (!order && x->sent != y->sent)
        return x->sent < y->sent ? -1 : 1;
    if (!order && x->ideal != y->ideal)
        return x->ideal < y->ideal ? -1 : 1;
    return order ? order : strcmp(x->shapes, y->shapes);
}

/* Put the calls alike together: their median, or the shortest collective. */
static size_t merge(struct describe_call *list, size_t count)
{
    double *value = ct_arena_array(&describe.arena, double, count);
    size_t kept = 0;

    qsort(list, count, sizeof(*list), compare_calls);
    for (size_t n = 0, next; n < count; n = next) {
        for (next = n; next < count && !compare_calls(&list[next], &list[n]); next++)
            value[next - n] = list[next].seconds;
        list[kept] = list[n];
        list[kept].seconds = ct_median(value, (size_t)(next - n));
        if (list[n].sent > 0)
            list[kept].seconds = value[0];
        kept++;
    }
    return kept;
}

/* ---- the description that is added to ---- */

/* The points of a class, for each of its ops. */
static size_t old_points(const struct ct_machine_rate *rate, struct describe_call *list)
{
    size_t count = 0;

    for (size_t k = 0; k < rate->op_count; k++)
        for (size_t i = 0; i < rate->reach.count; i++) {
            const struct ct_machine_point *p = &rate->reach.point[i];

            list[count++] = (struct describe_call){.op = rate->ops[k],
                                                   .shapes = "",
                                                   .ideal = p->at,
                                                   .peak = rate->peak,
                                                   .lookup = rate->lookup,
                                                   .seconds = p->at / p->value};
        }
    return count;
}

static size_t old_calls(const struct ct_machine *old, struct describe_call *list)
{
    size_t count = 0;

    for (size_t n = 0; n < old->call_count; n++)
        list[count++] = (struct describe_call){
            .op = old->call[n].op, .shapes = old->call[n].shapes, .seconds = old->call[n].seconds};
    for (size_t n = 0; n < old->rate_count; n++)
        count += old_points(&old->rate[n], list + count);
    for (size_t i = 0; i < old->host.reach.count; i++) {
        const struct ct_machine_point *p = &old->host.reach.point[i];

        list[count++] = (struct describe_call){.op = "",
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
        count += old->rate[n].op_count * old->rate[n].reach.count;
    return count;
}

static bool is_near(double a, double b)
{
    return a > 0 && fabs(a / b - 1) < 0.0005; /* as printed */
}

/* Is this call, or point of a curve, of the old description the same as the new call? */
static bool is_alike(const struct describe_call *old, const struct describe_call *call)
{
    if (old->sent > 0)
        return is_near(old->sent, call->sent);
    if (strcmp(old->op, call->op))
        return false;
    return *old->shapes ? !strcmp(old->shapes, call->shapes) : is_near(old->ideal, call->ideal);
}

/* Calls that were measured before, too, take the shorter time: what else a machine does only slows.
   Returns how many old ones are left. */
static size_t keep_shorter(struct describe_call *old, size_t olds, struct describe_call *list,
                           size_t count)
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

/* ---- all ---- */

/* The class of an op in the description; an empty one where it has none. */
static struct ct_machine_rate class_of(const struct ct_op *op)
{
    size_t n = ct_machine_class(&describe.machine, op);

    return n == SIZE_MAX ? (struct ct_machine_rate){0} : describe.machine.rate[n];
}

size_t describe_collect(const struct ct_run *run, struct describe_call **list)
{
    size_t count = 0, room = describe.old ? most_old_calls(describe.old) : 0;

    *list = ct_arena_array(&describe.arena, struct describe_call, run->program->step_count + room);
    for (size_t n = 0; n < run->program->step_count; n++) {
        const struct ct_instruction *i = &run->program->step[n];
        const struct ct_machine_rate class = class_of(i->op);
        struct describe_sample *s = &describe.sample[n];
        char shapes[512];

        if (!s->count || (describe_communicates(i) && !(i->lowered->sent > 0)))
            continue;
        if (ct_machine_shapes(&i->lowered->launch, shapes, sizeof(shapes)) >= (int)sizeof(shapes))
            *shapes = '\0'; /* a point of the curve only */
        (*list)[count++] =
            (struct describe_call){.op = i->op->type->name,
                                   .shapes = ct_arena_strdup(&describe.arena, shapes),
                                   .ideal = ct_machine_ideal(&describe.machine, i),
                                   .peak = class.peak,
                                   .lookup = class.lookup,
                                   .sent = describe_communicates(i) ? i->lowered->sent : 0,
                                   .seconds = ct_median(s->seconds, (size_t)s->count)};
    }
    count = merge(*list, count);
    if (describe.old) {
        size_t olds = old_calls(describe.old, *list + count);

        count += keep_shorter(*list + count, olds, *list, count);
        qsort(*list, count, sizeof(**list), compare_calls);
    }
    return count;
}
