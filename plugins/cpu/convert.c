#include "convert.h"

#include "loops.h"

struct conversion {
    float *wide;
    uint16_t *narrow;
    const struct ct_matrix rows;
    bool add;
};

static void widen_rows(float *to, const uint16_t *from, const struct ct_matrix *r, int64_t begin,
                       int64_t end)
{
    const struct cpu_loops *loops = cpu_loops();

    if (r->stride == r->columns) {
        loops->widen(to + begin * r->columns, from + begin * r->columns,
                     (end - begin) * r->columns);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        loops->widen(to + i * r->columns, from + i * r->stride, r->columns);
}

static void round_rows(uint16_t *to, const float *from, const struct ct_matrix *r, bool add,
                       int64_t begin, int64_t end)
{
    void (*loop)(uint16_t *, const float *, int64_t) =
        add ? cpu_loops()->round_add : cpu_loops()->round;

    if (r->stride == r->columns) {
        loop(to + begin * r->columns, from + begin * r->columns, (end - begin) * r->columns);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        loop(to + i * r->stride, from + i * r->columns, r->columns);
}

static void widen_part(void *context, int thread, int threads)
{
    const struct conversion *c = context;
    struct cpu_range mine = cpu_share(c->rows.rows, 1, thread, threads);

    widen_rows(c->wide, c->narrow, &c->rows, mine.begin, mine.end);
}

static void round_part(void *context, int thread, int threads)
{
    const struct conversion *c = context;
    struct cpu_range mine = cpu_share(c->rows.rows, 1, thread, threads);

    round_rows(c->narrow, c->wide, &c->rows, c->add, mine.begin, mine.end);
}

void cpu_widen(float *to, const uint16_t *from, struct ct_matrix rows)
{
    widen_rows(to, from, &rows, 0, rows.rows);
}

void cpu_round(uint16_t *to, const float *from, struct ct_matrix rows, bool add)
{
    round_rows(to, from, &rows, add, 0, rows.rows);
}

void cpu_widen_all(float *to, const uint16_t *from, struct ct_matrix rows)
{
    cpu_parallel(widen_part, &(struct conversion){to, (uint16_t *)from, rows, false});
}

void cpu_round_all(uint16_t *to, const float *from, struct ct_matrix rows, bool add)
{
    cpu_parallel(round_part, &(struct conversion){(float *)from, to, rows, add});
}
