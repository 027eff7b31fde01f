/* See strip.h. */
#include "strip.h"

/* ---- lanes ---- */

static size_t beside_bytes(const struct cpu_unit *unit)
{
    return unit->beside ? (size_t)up(sizeof(struct cpu_beside), CPU_LINE_BYTES) : 0;
}

size_t cpu_lane_bytes(const struct cpu_unit *unit, int64_t memory)
{
    return (size_t)up((int64_t)beside_bytes(unit) + memory, 4096);
}

struct lane cpu_lane_of(const struct cpu_product *p, char *lanes, int thread)
{
    struct lane lane = {.memory = lanes + p->lane_bytes * (size_t)thread};

    if (p->unit->beside) {
        lane.beside = (void *)(lane.memory + p->lane_bytes - beside_bytes(p->unit));
        lane.beside->turn = 0;
        lane.beside->pending = false;
    }
    return lane;
}

static void run_waiting(struct lane *lane)
{
    if (lane->waits)
        lane->waits->run(lane->waits->context, &lane->made);
    lane->waits = NULL;
}

void cpu_finish_lane(struct lane *lane)
{
    cpu_finish_beside(lane->beside);
    run_waiting(lane);
}

/* ---- packed B in shards ---- */

/* A row of the weights: in which shard, below how many rows there, and how many of its weight
   follow in the shard, with itself. */
struct row {
    int64_t shard, above, left;
};

static struct row row_of(const struct cpu_shards *s, int64_t row)
{
    int64_t above = 0, each;
    int i = 0;

    for (; row >= s->widths.size[i]; row -= s->widths.size[i++])
        above += s->widths.size[i] / s->count;
    each = s->widths.size[i] / s->count;
    return (struct row){row / each, above + row % each, each - row % each};
}

/* A panel of B from some depth on, as far as it is contiguous. */
struct stretch {
    const char *at;
    int64_t depth;
};

static struct stretch stretch_of(const struct call *call, int64_t panel, int64_t k, int64_t depth)
{
    const struct cpu_gemm_spec *s = &call->product->spec;
    enum ct_dtype dtype = call->product->unit->dtype;
    int64_t whole = panel_bytes(dtype, s->k), shard = panels_of(s->n) * whole / s->b_shards.count;
    bool forward = s->b_use == CPU_FORWARD;
    struct row row = row_of(&s->b_shards, forward ? panel * CPU_PANEL : k);
    const char *b = call->b + row.shard * shard;

    if (forward)
        return (struct stretch){b + row.above / CPU_PANEL * whole + panel_bytes(dtype, k), depth};
    return (struct stretch){b + panel * (whole / s->b_shards.count) + panel_bytes(dtype, row.above),
                            least(depth, row.left)};
}

/* ---- panels of a strip ---- */

/* A panel of a strip: where it is in B, and which columns of C it makes. */
struct place {
    const char *b;
    bool second; /* of two halves */
    int64_t column;
    int64_t depth; /* of A and B that are multiplied already */
};

static struct place place_of(const struct cpu_product *p, const struct strip *s, int64_t j)
{
    int64_t each = panels_of(s->columns);
    bool second = p->spec.halves && j >= each;

    j -= second ? each : 0;
    return (struct place){.b = s->b + (second ? p->spec.n / 2 / CPU_PANEL + j : j) * s->panel,
                          .second = second,
                          .column = s->column + j * CPU_PANEL};
}

static struct cpu_result results_at(const struct call *call, const struct lane *lane,
                                    const struct strip *s, const struct place *at)
{
    const struct cpu_gemm_spec *spec = &call->product->spec;
    int64_t size = cpu_bytes_of(spec->c_type), row = spec->c_row * size;
    char *c = call->c;

    if (spec->passed)
        return (struct cpu_result){spec->c_type,
                                   lane->memory + call->product->passed_at +
                                       lane->turn * passed_bytes(call->product) +
                                       (at->column - s->column) * size,
                                   call->product->columns * size, false};
    if (at->second) {
        c = call->epilogue->half;
        row = call->epilogue->half_row * size;
    }
    return (struct cpu_result){spec->c_type, c + s->row * row + at->column * size, row, s->add};
}

/* Results that are written soon come into the L2 cache: L1 has few lines under way at a time. */
static void fetch_results(const struct cpu_result *to, int64_t rows, int64_t columns)
{
    int64_t bytes = columns * cpu_bytes_of(to->dtype);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < bytes; i += CPU_LINE_BYTES)
            __builtin_prefetch(to->at + r * to->row + i, 1, 2);
}

/* With the products of each panel, some rows of the next strip are fetched. */
static void fetch_next(const struct cpu_product *p, const struct strip *s, struct cpu_panel *a,
                       int64_t panel, int64_t panels)
{
    int64_t rows = s->next ? least(p->unit->rows, p->spec.m - s->row - s->rows) : 0,
            each = (rows + panels - 1) / panels, first = panel * each;

    a->soon_rows = (int)most(0, least(each, rows - first));
    a->soon_row = a_row_bytes(p);
    a->soon = s->next + first * a->soon_row;
}

/* A strip's epilogue runs after the next strip's products: by then its lines are in the caches, and
   a unit that rounds blocks beside products has rounded the last one. */
static void pass_on(const struct call *call, struct lane *lane, const struct strip *s,
                    bool completed)
{
    struct cpu_result to = results_at(call, lane, s, &(struct place){.column = s->column});

    if (!completed)
        cpu_finish_beside(lane->beside);
    run_waiting(lane);
    lane->made = (struct cpu_made){s->row, s->rows, s->column, s->columns, to.at, to.row};
    lane->waits = call->epilogue;
    lane->turn ^= 1;
}

/* Add the products of all stretches of a panel but the last one: a and `at` are then at that. */
static void multiply_stretches(const struct call *call, const struct strip *s, struct cpu_panel *a,
                               struct place *at, float *sum)
{
    const struct cpu_product *p = call->product;
    int64_t panel = (at->column + (at->second ? p->spec.n / 2 : 0)) / CPU_PANEL;

    while (p->spec.b_shards.count > 1) {
        struct stretch b = stretch_of(call, panel, s->k + at->depth, s->depth - at->depth);
        int64_t steps = b.depth / cpu_step_depth(p->unit->dtype);

        at->b = b.at;
        if (at->depth + b.depth == s->depth)
            return;
        p->unit->multiply(a, b.at, (struct cpu_extent){(int)s->rows, CPU_PANEL, b.depth}, sum,
                          s->begun || at->depth);
        a->at += steps * a->step;
        a->soon += steps * CPU_LINE_BYTES;
        at->depth += b.depth;
    }
}

void cpu_multiply_strip(const struct call *call, const struct strip *s, struct lane *lane)
{
    const struct cpu_product *p = call->product;
    const struct cpu_unit *unit = p->unit;
    int64_t whole = 0, panels = panels_of(s->columns) * pieces(&p->spec);
    struct cpu_panel a = s->a;

    a.new_b = s->b != lane->b;
    lane->b = s->b;
    if (s->last && s->rows == unit->rows)
        whole = least(panels, (p->spec.n - s->column) / CPU_PANEL);
    for (int64_t j = 0; j < panels; j++) {
        struct cpu_panel here = a;
        struct place at = place_of(p, s, j);
        float *sum = s->sums + j * CPU_BLOCK;
        struct cpu_result to = results_at(call, lane, s, &at);

        fetch_next(p, s, &here, j, panels);
        if (s->last && (s->add || !unit->beside) && !p->spec.passed)
            fetch_results(&to, s->rows, least(CPU_PANEL, p->spec.n - at.column));
        multiply_stretches(call, s, &here, &at, sum);
        if (j < whole)
            unit->complete(&here, at.b, s->depth - at.depth, s->begun || at.depth ? sum : NULL, &to,
                           lane->beside);
        else
            unit->multiply(&here, at.b,
                           (struct cpu_extent){(int)s->rows, CPU_PANEL, s->depth - at.depth}, sum,
                           s->begun || at.depth);
    }
    for (int64_t j = whole; s->last && j < panels; j++) {
        struct place at = place_of(p, s, j);
        struct cpu_result to = results_at(call, lane, s, &at);

        cpu_panels()->finish(s->sums + j * CPU_BLOCK, s->rows,
                             least(CPU_PANEL, p->spec.n - at.column), &to);
    }
    if (s->made && call->epilogue)
        pass_on(call, lane, s, whole > 0);
}
