/*
 * Where the time of a step goes: intervals in which a rank computes, and in which it communicates.
 */
#include <math.h>
#include <stdlib.h>

#include <ctitan/arena.h>
#include <ctitan/lib/trace.h>

bool ct_instruction_computes(const struct ct_instruction *i)
{
    return !(i->op->type->flags & (CT_OP_COLLECTIVE | CT_OP_RENDEZVOUS | CT_OP_SPACES));
}

struct interval {
    double start, end;
};

static int compare_intervals(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;

    return x->start < y->start ? -1 : x->start > y->start;
}

/* Join intervals that overlap; returns how many are left. */
static size_t join(struct interval *list, size_t count)
{
    size_t kept = 0;

    if (count)
        qsort(list, count, sizeof(*list), compare_intervals);
    for (size_t n = 0; n < count; n++) {
        if (kept && list[n].start <= list[kept - 1].end) {
            if (list[n].end > list[kept - 1].end)
                list[kept - 1].end = list[n].end;
        } else {
            list[kept++] = list[n];
        }
    }
    return kept;
}

static double length(const struct interval *list, size_t count)
{
    double sum = 0;

    for (size_t n = 0; n < count; n++)
        sum += list[n].end - list[n].start;
    return sum;
}

/* Length of what two lists of disjoint, sorted intervals have in common. */
static double common(const struct interval *a, size_t as, const struct interval *b, size_t bs)
{
    double sum = 0;

    for (size_t i = 0, j = 0; i < as && j < bs;) {
        double start = a[i].start > b[j].start ? a[i].start : b[j].start;
        double end = a[i].end < b[j].end ? a[i].end : b[j].end;

        if (end > start)
            sum += end - start;
        if (a[i].end < b[j].end)
            i++;
        else
            j++;
    }
    return sum;
}

void ct_rank_account(const struct ct_program *p, const double *start, const double *end,
                     double seconds, struct ct_rank_times *t)
{
    struct ct_arena scratch = {0};
    struct interval *busy = ct_arena_array(&scratch, struct interval, p->step_count + 1);
    struct interval *talk = ct_arena_array(&scratch, struct interval, p->step_count + 1);
    size_t busies = 0, talks = 0;

    *t = (struct ct_rank_times){0};
    for (size_t n = 0; n < p->step_count; n++) {
        const struct ct_instruction *i = &p->step[n];
        struct interval at = {start[n], end[n]};

        if (ct_instruction_computes(i)) {
            *(i->op->type->flops ? &t->products : &t->others) += at.end - at.start;
            busy[busies++] = at;
        } else {
            talk[talks++] = at;
        }
    }
    busies = join(busy, busies);
    talks = join(talk, talks);
    t->hidden = common(busy, busies, talk, talks);
    t->exposed = length(talk, talks) - t->hidden;
    t->waiting = fmax(0, seconds - length(busy, busies) - t->exposed);
    ct_arena_finish(&scratch);
}
