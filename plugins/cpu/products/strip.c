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

/* ---- panels of a strip ---- */

/* The results of panel j of a strip. */
static struct cpu_result results_at(const struct call *call, const struct strip *s, int64_t j)
{
    const struct cpu_gemm_spec *spec = &call->product->spec;
    int64_t size = cpu_bytes_of(spec->c_type), row = spec->c_row * size;

    return (struct cpu_result){
        spec->c_type, call->c + s->row * row + (s->column + j * CPU_PANEL) * size, row, s->add};
}

static int64_t columns_of(const struct cpu_product *p, const struct strip *s, int64_t j)
{
    return least(CPU_PANEL, p->spec.n - s->column - j * CPU_PANEL);
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
    a->soon = s->next ? s->next + first * a->soon_row : NULL;
}

void cpu_multiply_strip(const struct call *call, const struct strip *s, struct lane *lane)
{
    const struct cpu_product *p = call->product;
    const struct cpu_unit *unit = p->unit;
    int64_t whole = 0, panels = panels_of(s->columns);
    struct cpu_panel a = s->a;

    a.new_b = s->b != lane->b;
    lane->b = s->b;
    if (s->last && s->rows == unit->rows)
        whole = least(panels, (p->spec.n - s->column) / CPU_PANEL);
    for (int64_t j = 0; j < panels; j++) {
        struct cpu_panel here = a;
        const char *b = s->b + j * s->panel;
        float *sum = s->sums + j * CPU_BLOCK;
        struct cpu_result to = results_at(call, s, j);

        fetch_next(p, s, &here, j, panels);
        if (s->last && (s->add || !unit->beside))
            fetch_results(&to, s->rows, columns_of(p, s, j));
        if (j < whole)
            unit->complete(&here, b, s->depth, s->begun ? sum : NULL, &to, lane->beside);
        else
            unit->multiply(&here, b, (struct cpu_extent){(int)s->rows, CPU_PANEL, s->depth}, sum,
                           s->begun);
    }
    for (int64_t j = whole; s->last && j < panels; j++) {
        struct cpu_result to = results_at(call, s, j);

        cpu_panels()->finish(s->sums + j * CPU_BLOCK, s->rows, columns_of(p, s, j), &to);
    }
}
