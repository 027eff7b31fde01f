/*
 * Gradients of weights, of one x or of one for each. All threads pack x, and where a thread would
 * have too few rows of its own, dy as well; else each packs its own rows. A block's sums stay in
 * the L2 cache; those of more than PACKED_ROWS rows are added up in C.
 */
#include "strip.h"

#define BLOCK_ROWS 256   /* at most */
#define OWN_ROWS 128     /* for each thread; of fewer, threads share both operands */
#define PACKED_ROWS 2048 /* of both operands, packed at a time */
#define COLUMNS 64       /* of a task: a multiple */

/* ---- planning ---- */

static int64_t blocks_of(const struct cpu_gradient *each, int count, int64_t rows)
{
    int64_t blocks = 0;

    for (int i = 0; i < count; i++)
        blocks += (each[i].spec.m + rows - 1) / rows;
    return blocks;
}

/* Rows of a task with a thread's own rows: the threads take equally many, as far as can be. It
   reads all of B from another core, which counts as CPU_PANEL rows. */
static int64_t rows_of_block(const struct cpu_gradient *each, int count, int threads)
{
    int64_t best = 0, least_cost = INT64_MAX;

    for (int64_t rows = BLOCK_ROWS; rows > 0; rows -= CPU_PANEL) {
        int64_t tasks = blocks_of(each, count, rows),
                cost = (tasks + threads - 1) / threads * (rows + CPU_PANEL);

        if (cost < least_cost) {
            least_cost = cost;
            best = rows;
        }
    }
    return best;
}

/* The same for columns of tasks that have the rows of one panel each. A thread reads these, and the
   columns of B, from other cores. */
static int64_t columns_of_task(const struct cpu_product *p, int64_t panels)
{
    int64_t best = 0, least_cost = INT64_MAX, n = up(p->spec.n, COLUMNS);

    for (int64_t columns = least(n, p->unit->columns); columns > 0; columns -= COLUMNS) {
        int64_t tasks = panels * ((n + columns - 1) / columns),
                each = (tasks + p->threads - 1) / p->threads,
                cost = each * (columns + CPU_PANEL) + columns;

        if (cost < least_cost) {
            least_cost = cost;
            best = columns;
        }
    }
    return best;
}

/* Bytes of `columns` columns of a packed operand. */
static int64_t packed_bytes(const struct cpu_product *p, int64_t columns)
{
    return panels_of(columns) * panel_bytes(p->unit->dtype, p->packed);
}

void cpu_plan_gradients(struct cpu_product *p, const struct cpu_gradient *each, int count)
{
    const struct cpu_gemm_spec *s = &p->spec;
    int64_t rows = 0, sums = 0;

    for (int i = 0; i < count; i++)
        rows += each[i].spec.m;
    p->shared_a = p->threads > 1 && rows < OWN_ROWS * p->threads;
    p->rows = p->shared_a ? CPU_PANEL : rows_of_block(each, count, p->threads);
    p->by_rows = blocks_of(each, count, p->rows);
    p->columns =
        p->shared_a ? columns_of_task(p, p->by_rows) : least(up(s->n, CPU_PANEL), p->unit->columns);
    p->by_columns = p->shared_a ? (s->n + p->columns - 1) / p->columns : 1;
    p->depth = least(up(s->k, CPU_PANEL), p->unit->depth);
    p->packed = least(up(s->k, CPU_PANEL), PACKED_ROWS);
    for (int i = 0; i < count; i++)
        sums = most(sums, sums_bytes(p, each[i].spec.m));
    p->lane_bytes = cpu_lane_bytes(p->unit, (p->shared_a ? 0 : packed_bytes(p, p->rows)) + sums);
}

size_t cpu_gradients_memory(const struct cpu_product *p, const struct cpu_gradient *each, int count)
{
    size_t bytes = p->lane_bytes * (size_t)p->threads + (size_t)packed_bytes(p, p->spec.n);

    for (int i = 0; p->shared_a && i < count; i++)
        bytes += (size_t)packed_bytes(p, each[i].spec.m);
    return bytes + cpu_tasks_bytes(p->threads);
}

/* ---- running ---- */

/* One of the gradients. */
struct shard {
    struct cpu_product product; /* the plan of all, with its own spec */
    struct call call;
    char *a; /* packed, if threads share it */
};

/* PACKED_ROWS rows of A and B, from row k on. */
struct run {
    const struct cpu_product *plan;
    const struct shard *shard;
    int shards;
    int64_t k, depth;
    char *lanes, *b; /* b: packed */
    struct cpu_tasks tasks;
};

/* Rows of a matrix [depth][columns] into chunks of p->depth rows: the panels of a chunk lie side by
   side, so that those of a block fall into different sets of a cache. */
static void pack_chunks(const struct run *run, bool transposed,
                        const struct cpu_packed_from *matrix, struct cpu_range rows, char *to)
{
    const struct cpu_product *p = run->plan;
    enum ct_dtype dtype = p->unit->dtype;
    int64_t row = matrix->stride * cpu_bytes_of(matrix->dtype);

    for (int64_t k = 0; k < run->depth; k += p->depth) {
        int64_t begin = most(k, rows.begin), depth = least(p->depth, run->depth - k),
                panel = panel_bytes(dtype, depth);
        struct cpu_packed_from from = *matrix;
        struct cpu_lines lines = cpu_panel_lines(dtype, panel);
        char *step = to + panel_bytes(dtype, begin - k);

        from.at = (const char *)matrix->at + (run->k + begin) * row;
        from.rows = least(k + depth, rows.end) - begin;

        lines.stream = true; /* what other cores have read of B is slow to write again */
        if (from.rows > 0 && transposed)
            p->unit->pack_transposed(&from, step, panel);
        else if (from.rows > 0)
            cpu_panels()->pack_rows(&lines, &from, step);
        to += panels_of(matrix->columns) * panel;
    }
}

/* Columns of A as it is stored: rows of C. */
static struct cpu_packed_from columns_of_a(const struct call *call, int64_t column, int64_t columns)
{
    const struct cpu_gemm_spec *s = &call->product->spec;

    return (struct cpu_packed_from){s->a_type, call->a + column * cpu_bytes_of(s->a_type), s->a_col,
                                    0, columns};
}

/* Each thread reads whole rows, which follow each other in memory. */
static void pack_shared(void *context, int thread, int threads)
{
    const struct run *run = context;
    const struct cpu_gemm_spec *s = &run->plan->spec;
    struct cpu_range mine = cpu_share(run->depth, CPU_PANEL, thread, threads);

    pack_chunks(run, false,
                &(struct cpu_packed_from){s->b_type, run->shard->call.b, s->b_row, 0, s->n}, mine,
                run->b);
    for (const struct shard *a = run->shard; a < run->shard + run->shards && a->a; a++) {
        struct cpu_packed_from from = columns_of_a(&a->call, 0, a->product.spec.m);

        pack_chunks(run, true, &from, mine, a->a);
    }
}

/* Packed rows of A^T: `rows` of them, which begin at row `row` of C. */
struct packed_rows {
    const char *at;
    int64_t row, rows;
};

/* A block of C, from packed panels. */
static void multiply_block(const struct run *run, const struct call *call,
                           const struct packed_rows *a, int64_t row, int64_t rows, int64_t column,
                           float *sums, struct lane *lane)
{
    const struct cpu_product *p = call->product;
    const char *b = run->b, *panels = a->at;

    for (int64_t k = 0; k < run->depth; k += p->depth) {
        int64_t depth = least(p->depth, run->depth - k), panel = panel_bytes(p->unit->dtype, depth);
        struct strip s = {.a = p->unit->packed,
                          .b = b + column / CPU_PANEL * panel,
                          .panel = panel,
                          .column = column,
                          .columns = least(p->columns, p->spec.n - column),
                          .depth = depth,
                          .begun = k > 0,
                          .last = k + depth == run->depth,
                          .add = p->spec.accumulate || run->k > 0};

        for (int64_t i = 0; i < rows; i += s.rows) {
            int64_t first = i % CPU_PANEL;

            s.row = row + i;
            s.rows = cpu_unit_rows(p->unit, least(CPU_PANEL - first, rows - i));
            s.a.at = panels + (s.row - a->row) / CPU_PANEL * panel + first * s.a.row;
            s.sums = sums + (i - first) * p->columns + first * CPU_PANEL;
            cpu_multiply_strip(call, &s, lane);
        }
        panels += panels_of(a->rows) * panel;
        b += panels_of(p->spec.n) * panel;
    }
}

/* Some rows of C, all columns: the thread packs its rows of A^T. */
static void run_own_rows(const struct run *run, const struct call *call, int64_t row, int64_t rows,
                         float *sums, struct lane *lane)
{
    const struct cpu_gemm_spec *s = &call->product->spec;
    struct packed_rows a = {lane->memory, row, rows};
    struct cpu_packed_from from = columns_of_a(call, row, rows);

    pack_chunks(run, true, &from, (struct cpu_range){0, run->depth}, lane->memory);
    for (int64_t column = 0; column < s->n; column += call->product->columns)
        multiply_block(run, call, &a, row, rows, column, sums, lane);
}

/* The gradient of a task, whose block becomes its own. */
static const struct shard *shard_of(const struct run *run, int64_t *block)
{
    const struct shard *shard = run->shard;

    for (;; shard++) {
        int64_t blocks = (shard->product.spec.m + run->plan->rows - 1) / run->plan->rows;

        if (*block < blocks)
            return shard;
        *block -= blocks;
    }
}

static void run_task(const struct run *run, int64_t task, float *sums, struct lane *lane)
{
    const struct cpu_product *p = run->plan;
    int64_t block = task % p->by_rows, column = task / p->by_rows * p->columns;
    const struct shard *shard = shard_of(run, &block);
    int64_t m = shard->product.spec.m, row = block * p->rows, rows = least(p->rows, m - row);

    if (p->shared_a)
        multiply_block(run, &shard->call, &(struct packed_rows){shard->a, 0, m}, row, rows, column,
                       sums, lane);
    else
        run_own_rows(run, &shard->call, row, rows, sums, lane);
}

static void run_tasks(void *context, int thread, int threads)
{
    const struct run *run = context;
    const struct cpu_product *p = run->plan;
    struct lane lane = cpu_lane_of(p, run->lanes, thread);
    float *sums = (float *)(lane.memory + (p->shared_a ? 0 : packed_bytes(p, p->rows)));
    int64_t task;

    (void)threads;
    p->unit->begin();
    while ((task = cpu_next_task(&run->tasks, thread)) >= 0)
        run_task(run, task, sums, &lane);
    cpu_finish_beside(lane.beside);
    p->unit->end();
}

/* Returns the memory behind the packed operands. */
static char *place_operands(const struct cpu_product *p, const struct cpu_gradient *each, int count,
                            const void *b, char *memory, struct shard *shard)
{
    for (int i = 0; i < count; i++) {
        struct shard *s = &shard[i];

        s->product = *p;
        s->product.spec = each[i].spec;
        s->call = (struct call){&s->product, each[i].a, b, each[i].c};
        s->a = p->shared_a ? memory : NULL;
        memory += p->shared_a ? packed_bytes(p, each[i].spec.m) : 0;
    }
    return memory;
}

void cpu_run_gradients(const struct cpu_product *p, const struct cpu_gradient *each, int count,
                       const void *b, char *memory)
{
    struct shard shard[CPU_MAX_WEIGHTS];
    struct run run = {.plan = p, .shard = shard, .shards = count, .lanes = memory};
    char *tasks;

    run.b = memory + p->lane_bytes * (size_t)p->threads;
    tasks = place_operands(p, each, count, b, run.b + packed_bytes(p, p->spec.n), shard);
    for (run.k = 0; run.k < p->spec.k; run.k += p->packed) {
        run.depth = least(p->packed, p->spec.k - run.k);
        run.tasks = cpu_tasks_begin(tasks, p->by_rows * p->by_columns, p->threads);
        cpu_parallel(pack_shared, &run);
        cpu_parallel(run_tasks, &run);
    }
}
