/* Products of rows. A thread's block of B stays in its L2 cache; where k is deeper than a block,
   sums wait in the workspace as float32, which loses nothing. */
#include <string.h>

#include "strip.h"

#define DEPTH 1024
#define ROWS 256
#define TASK_ROWS 64        /* at least */
#define B_BYTES (512 << 10) /* where k is split */

/* Split `blocks` by `other` tasks among the threads: as few as give each thread one. */
static int64_t parts(int64_t blocks, int64_t other, int threads)
{
    return least(blocks, (threads + other - 1) / other);
}

void cpu_plan_rows(struct cpu_product *p)
{
    const struct cpu_gemm_spec *s = &p->spec;
    int64_t parts_of_k = (s->k + DEPTH - 1) / DEPTH, n = s->n / pieces(s), columns, block, rows;

    p->depth = up((s->k + parts_of_k - 1) / parts_of_k, CPU_PANEL); /* equal parts */
    p->by_rows = parts(panels_of(s->m), 1, p->threads);
    p->by_columns = parts(panels_of(n), p->by_rows, p->threads);
    columns = panels_of(panels_of(n) * CPU_PANEL / p->by_columns) * CPU_PANEL;
    block = parts_of_k > 1 ? B_BYTES : p->unit->block;
    p->columns = least(columns, block / 2 / p->depth / pieces(s) / CPU_PANEL * CPU_PANEL);
    rows = (panels_of(s->m) + p->by_rows - 1) / p->by_rows * CPU_PANEL;
    p->task_rows = least(rows, most(TASK_ROWS, least(up(rows / 2, CPU_PANEL), ROWS)));
    p->rows = s->k > p->depth ? p->task_rows : CPU_PANEL;
    p->down = (rows + p->task_rows - 1) / p->task_rows;
    p->across = (columns + p->columns - 1) / p->columns;
    p->passed_at = CPU_PANEL * (2 * p->depth + 64) + p->rows * p->columns * pieces(s) * 4;
    p->lane_bytes = cpu_lane_bytes(p->passed_at + (s->passed ? 2 * passed_bytes(p) : 0));
}

/* Rows from `row` on, k from `k` on. What the unit would read beyond A is copied beside zeros; so
   are rows that lie a multiple of 2 KB apart, in the same few sets of the L1 cache. */
static struct cpu_panel panel_of_a(const struct call *call, int64_t row, int64_t k, int64_t depth,
                                   char *copy)
{
    const struct cpu_product *p = call->product;
    const struct cpu_gemm_spec *s = &p->spec;
    int64_t rows = least(CPU_PANEL, s->m - row), stride = s->a_row * 2, copied = p->depth * 2 + 64;
    const char *at = call->a + row * stride + k * 2;

    if (depth % CPU_PANEL == 0 && (rows == CPU_PANEL || p->unit->partial) &&
        (stride % 2048 || stride == 2048))
        return (struct cpu_panel){at, stride, 4, 2 * CPU_PANEL};
    for (int64_t r = 0; r < CPU_PANEL; r++) {
        int64_t bytes = r < rows ? depth * 2 : 0;

        memcpy(copy + r * copied, at + r * stride, (size_t)bytes);
        memset(copy + r * copied + bytes, 0, (size_t)(up(depth, CPU_PANEL) * 2 - bytes));
    }
    return (struct cpu_panel){copy, copied, 4, 2 * CPU_PANEL};
}

/* Rows [row, end) of C, columns of one block of B. */
static void run_block(const struct call *call, int64_t row, int64_t end, int64_t column,
                      int64_t columns, struct lane *lane)
{
    const struct cpu_product *p = call->product;
    const struct cpu_gemm_spec *spec = &p->spec;
    int64_t panel = up(spec->k, CPU_PANEL) * 2 * CPU_PANEL;
    float *sums = (float *)(lane->memory + CPU_PANEL * (2 * p->depth + 64));

    for (int64_t k = 0; k < spec->k; k += p->depth) {
        bool last = k + p->depth >= spec->k;
        struct strip s = {.b = call->b + column / CPU_PANEL * panel + k * 2 * CPU_PANEL,
                          .panel = panel,
                          .column = column,
                          .columns = columns,
                          .depth = least(p->depth, spec->k - k),
                          .begun = k > 0,
                          .last = last,
                          .add = spec->accumulate,
                          .made = last};

        for (int64_t i = row; i < end; i += p->unit->rows) {
            int64_t first = (i - row) % CPU_PANEL;

            if (first == 0)
                s.a = panel_of_a(call, i, k, s.depth, lane->memory);
            else
                s.a.at += p->unit->rows * s.a.row;
            s.row = i;
            s.rows = least(p->unit->rows, end - i);
            s.sums = sums + (i - row - first) * p->columns * pieces(spec) + first * CPU_PANEL;
            s.next = call->a + ((i + s.rows) * spec->a_row + k) * 2;
            cpu_multiply_strip(call, &s, lane);
        }
    }
}

/* What one task makes. Tasks of a thread's part follow each other down a block of B. */
static void task_of_rows(const struct cpu_product *p, int64_t task, struct cpu_range *rows,
                         struct cpu_range *columns)
{
    int64_t part = task / (p->down * p->across), j = task / p->down % p->across;

    *rows = cpu_share(p->spec.m, CPU_PANEL, (int)(part % p->by_rows), (int)p->by_rows);
    *columns = cpu_share(p->spec.n / pieces(&p->spec), CPU_PANEL, (int)(part / p->by_rows),
                         (int)p->by_columns);
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
    struct lane lane = cpu_lane_of(run->lanes, p->lane_bytes, thread);
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
    cpu_finish_lane(&lane);
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
