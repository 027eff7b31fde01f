/* Products of rows. A thread's block of B stays in its L2 cache; where k is deeper than a block,
   sums wait in the workspace as float32, which loses nothing. */
#include <string.h>

#include "strip.h"

#define ROW_BYTES 2048 /* of A, of one block */
#define ROWS 256
#define TASK_ROWS 64        /* at least */
#define B_BYTES (512 << 10) /* at most, where k is split */

/* Split `blocks` by `other` tasks among the threads: as few as give each thread one. */
static int64_t parts(int64_t blocks, int64_t other, int threads)
{
    return least(blocks, (threads + other - 1) / other);
}

/* A copied row of A, of one block: not a multiple of 2 KB. */
static int64_t copied_row(const struct cpu_product *p)
{
    return p->depth * element_bytes(p) + CPU_LINE_BYTES;
}

/* Whether the unit can read so many rows of A, so deep, where they are, and as fast. */
static bool in_place(const struct cpu_product *p, int64_t rows, int64_t depth)
{
    return p->spec.a_type == p->unit->dtype && depth % cpu_step_depth(p->unit->dtype) == 0 &&
           (rows % CPU_PANEL == 0 || p->unit->partial) && cpu_in_place(a_row_bytes(p));
}

static int64_t copied_bytes(const struct cpu_product *p)
{
    return in_place(p, p->spec.m, p->spec.k) ? 0 : CPU_PANEL * copied_row(p);
}

void cpu_plan_rows(struct cpu_product *p)
{
    const struct cpu_gemm_spec *s = &p->spec;
    int64_t size = element_bytes(p), parts_of_k = (s->k * size + ROW_BYTES - 1) / ROW_BYTES,
            n = s->n, columns, block, rows;

    p->depth = up((s->k + parts_of_k - 1) / parts_of_k, cpu_step_depth(p->unit->dtype)); /* equal */
    p->by_rows = parts(panels_of(s->m), 1, p->threads);
    p->by_columns = parts(panels_of(n), p->by_rows, p->threads);
    columns = panels_of(panels_of(n) * CPU_PANEL / p->by_columns) * CPU_PANEL;
    block = parts_of_k > 1 ? least(B_BYTES, p->unit->block) : p->unit->block;
    p->columns = least(columns, block / size / p->depth / CPU_PANEL * CPU_PANEL);
    rows = (panels_of(s->m) + p->by_rows - 1) / p->by_rows * CPU_PANEL;
    p->task_rows = least(rows, most(TASK_ROWS, least(up(rows / 2, CPU_PANEL), ROWS)));
    p->rows = s->k > p->depth ? p->task_rows : CPU_PANEL;
    p->down = (rows + p->task_rows - 1) / p->task_rows;
    p->across = (columns + p->columns - 1) / p->columns;
    p->lane_bytes = cpu_lane_bytes(p->unit, copied_bytes(p) + sums_bytes(p, s->m));
}

static void copy_row(const struct cpu_product *p, const char *from, char *to, int64_t n)
{
    if (p->spec.a_type == p->unit->dtype)
        memcpy(to, from, (size_t)(n * element_bytes(p)));
    else
        cpu_panels()->widen(from, (float *)to, n);
}

/* Rows from `row` on, k from `k` on: in place, or copied, with zeros beyond A. */
static struct cpu_panel panel_of_a(const struct call *call, int64_t row, int64_t k, int64_t depth,
                                   char *copy)
{
    const struct cpu_product *p = call->product;
    const struct cpu_gemm_spec *s = &p->spec;
    int64_t rows = least(CPU_PANEL, s->m - row), stride = a_row_bytes(p), copied = copied_row(p),
            size = element_bytes(p), whole = up(depth, cpu_step_depth(p->unit->dtype));
    const char *at = call->a + row * stride + k * cpu_bytes_of(s->a_type);

    if (in_place(p, rows, depth))
        return (struct cpu_panel){at, stride, 4, CPU_LINE_BYTES};
    for (int64_t r = 0; r < CPU_PANEL; r++) {
        int64_t n = r < rows ? depth : 0;

        copy_row(p, at + r * stride, copy + r * copied, n);
        memset(copy + r * copied + n * size, 0, (size_t)((whole - n) * size));
    }
    return (struct cpu_panel){copy, copied, 4, CPU_LINE_BYTES};
}

/* Rows [row, end) of C, columns of one block of B. */
static void run_block(const struct call *call, int64_t row, int64_t end, int64_t column,
                      int64_t columns, struct lane *lane)
{
    const struct cpu_product *p = call->product;
    const struct cpu_gemm_spec *spec = &p->spec;
    int64_t panel = panel_bytes(p->unit->dtype, spec->k), a_bytes = cpu_bytes_of(spec->a_type);
    float *sums = (float *)(lane->memory + copied_bytes(p));

    for (int64_t k = 0; k < spec->k; k += p->depth) {
        struct strip s = {.b =
                              call->b + column / CPU_PANEL * panel + panel_bytes(p->unit->dtype, k),
                          .panel = panel,
                          .column = column,
                          .columns = columns,
                          .depth = least(p->depth, spec->k - k),
                          .begun = k > 0,
                          .last = k + p->depth >= spec->k,
                          .add = spec->accumulate};

        for (int64_t i = row; i < end; i += s.rows) {
            int64_t first = (i - row) % CPU_PANEL;

            if (first == 0)
                s.a = panel_of_a(call, i, k, s.depth, lane->memory);
            else
                s.a.at += s.rows * s.a.row;
            s.row = i;
            s.rows = cpu_unit_rows(p->unit, least(CPU_PANEL - first, end - i));
            s.sums = sums + (i - row - first) * p->columns + first * CPU_PANEL;
            s.next = call->a + ((i + s.rows) * spec->a_row + k) * a_bytes;
            cpu_multiply_strip(call, &s, lane);
        }
    }
}

/* The rows and columns that one task computes. Tasks of a thread's part follow each other down a
   block of B. */
static void task_of_rows(const struct cpu_product *p, int64_t task, struct cpu_range *rows,
                         struct cpu_range *columns)
{
    int64_t part = task / (p->down * p->across), j = task / p->down % p->across;

    *rows = cpu_share(p->spec.m, CPU_PANEL, (int)(part % p->by_rows), (int)p->by_rows);
    *columns = cpu_share(p->spec.n, CPU_PANEL, (int)(part / p->by_rows), (int)p->by_columns);
    rows->begin += task % p->down * p->task_rows;
    rows->end = least(rows->end, rows->begin + p->task_rows);
    columns->begin += j * p->columns;
    columns->end = least(columns->end, columns->begin + p->columns);
}

struct run {
    const struct call *call;
    char *lanes;
    struct cpu_tasks tasks;
};

static void run_tasks(void *context, int thread, int threads)
{
    const struct run *run = context;
    const struct cpu_product *p = run->call->product;
    struct lane lane = cpu_lane_of(p, run->lanes, thread);
    int64_t task;

    (void)threads;
    p->unit->begin();
    while ((task = cpu_next_task(&run->tasks, thread)) >= 0) {
        struct cpu_range rows, columns;

        task_of_rows(p, task, &rows, &columns);
        for (int64_t i = rows.begin; i < rows.end && columns.begin < columns.end; i += p->rows)
            run_block(run->call, i, least(i + p->rows, rows.end), columns.begin,
                      columns.end - columns.begin, &lane);
    }
    cpu_finish_beside(lane.beside);
    p->unit->end();
}

void cpu_run_rows(const struct call *call, char *memory)
{
    const struct cpu_product *p = call->product;
    int64_t count = p->by_rows * p->by_columns * p->down * p->across;

    cpu_parallel(run_tasks,
                 &(struct run){call, memory,
                               cpu_tasks_begin(memory + p->lane_bytes * (size_t)p->threads, count,
                                               p->threads)});
}
