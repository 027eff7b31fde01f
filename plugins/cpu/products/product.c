/*
 * See product.h. A thread's block of B (or of both operands) stays in its L2 cache; where k is
 * deeper than a block, sums wait in the workspace as float32, which loses nothing.
 */
#include <string.h>

#include "../tasks.h"
#include "product.h"

#define DEPTH 1024
#define ROWS 256
#define TASK_ROWS 64        /* at least */
#define B_BYTES (512 << 10) /* where k is split */
#define GRADIENT_BLOCK 256  /* rows */
#define OWN_ROWS 128 /* of a gradient, for each thread; of fewer, threads share both operands */
#define GRADIENT_ROWS 2048 /* of both operands, packed at a time */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t up(int64_t a, int64_t unit)
{
    return (a + unit - 1) / unit * unit;
}

static int64_t panels_of(int64_t n)
{
    return (n + CPU_PANEL - 1) / CPU_PANEL;
}

bool cpu_product_takes(const struct cpu_gemm_spec *s)
{
    bool halves = s->a_type == CT_BF16 && s->b_type == CT_BF16 && !s->lanes;

    if (!halves || !s->m || !s->n || !s->k)
        return false;
    if (s->b_row == 0)
        return s->a_col == 1;
    return s->a_row == 1 && s->b_col == 1 && s->c_type == CT_F32;
}

/* Split `blocks` by `other` tasks among the threads: as few as give each thread one. */
static int64_t parts(int64_t blocks, int64_t other, int threads)
{
    return least(blocks, (threads + other - 1) / other);
}

/* Matrices that C's columns lie in. */
static int64_t pieces(const struct cpu_gemm_spec *s)
{
    return s->halves ? 2 : 1;
}

/* Bytes of a strip's results that an epilogue alone reads. */
static int64_t passed_bytes(const struct cpu_product *p)
{
    return p->unit->rows * p->columns * (int64_t)ct_dtype_size(p->spec.c_type);
}

static void plan_rows(struct cpu_product *p)
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
    p->lane_bytes = (size_t)(p->passed_at + (s->passed ? 2 * passed_bytes(p) : 0));
}

/* At most GRADIENT_BLOCK, and as many blocks for each thread. */
static int64_t rows_of_block(int64_t m, int64_t threads)
{
    int64_t rows, blocks = up((m + GRADIENT_BLOCK - 1) / GRADIENT_BLOCK, threads);

    for (;; blocks += threads) {
        rows = up((m + blocks - 1) / blocks, CPU_PANEL);
        if (rows == CPU_PANEL || (m + rows - 1) / rows % threads == 0)
            return rows;
    }
}

/* Columns of tasks that have the rows of one panel each: the threads take equally many, as far as
   can be. A task reads its panel of A from another core, which counts as CPU_PANEL columns. */
static int64_t columns_of_task(const struct cpu_product *p)
{
    int64_t best = 0, least_cost = INT64_MAX, n = up(p->spec.n, CPU_MADE_COLUMNS);

    for (int64_t columns = least(n, p->unit->columns); columns > 0; columns -= CPU_MADE_COLUMNS) {
        int64_t tasks = panels_of(p->spec.m) * ((n + columns - 1) / columns),
                cost = (tasks + p->threads - 1) / p->threads * (columns + CPU_PANEL);

        if (cost < least_cost) {
            least_cost = cost;
            best = columns;
        }
    }
    return best;
}

/* Where a thread has not enough rows of its own, all threads pack A, and columns are split too. */
static void plan_gradient(struct cpu_product *p)
{
    const struct cpu_gemm_spec *s = &p->spec;

    p->shared_a = p->threads > 1 && s->m < OWN_ROWS * p->threads;
    p->rows = p->shared_a ? CPU_PANEL : rows_of_block(s->m, p->threads);
    p->columns = p->shared_a ? columns_of_task(p) : least(up(s->n, CPU_PANEL), p->unit->columns);
    p->depth = least(up(s->k, CPU_PANEL), p->unit->depth);
    p->by_rows = (s->m + p->rows - 1) / p->rows;
    p->by_columns = p->shared_a ? (s->n + p->columns - 1) / p->columns : 1;
    p->packed = least(up(s->k, CPU_PANEL), GRADIENT_ROWS);
    p->lane_bytes =
        (size_t)((p->shared_a ? 0 : p->rows * p->packed * 2) + p->rows * p->columns * 4);
}

void cpu_product_plan(const struct cpu_unit *unit, const struct cpu_gemm_spec *spec, int threads,
                      struct cpu_product *p)
{
    *p = (struct cpu_product){.unit = unit, .spec = *spec, .threads = threads};
    p->gradient = spec->b_row != 0;
    if (p->gradient)
        plan_gradient(p);
    else
        plan_rows(p);
    p->lane_bytes = (sizeof(struct cpu_beside) + 63 + p->lane_bytes + 4095) & ~(size_t)4095;
}

/* Bytes of `columns` columns of an operand that all threads have packed. */
static size_t shared_bytes(const struct cpu_product *p, int64_t columns)
{
    return (size_t)(p->packed * up(columns, CPU_PANEL) * 2);
}

/* The threads' lanes, the operands that they share, and their tasks. */
size_t cpu_product_workspace(const struct cpu_product *p)
{
    return p->lane_bytes * (size_t)p->threads + shared_bytes(p, p->spec.n) +
           (p->shared_a ? shared_bytes(p, p->spec.m) : 0) + cpu_tasks_bytes(p->threads) + 64;
}

struct call {
    const struct cpu_product *product;
    const char *a, *b;
    char *c, *workspace;
    const struct cpu_epilogue *epilogue; /* or NULL */
    struct cpu_tasks tasks;
};

static char *memory_of(const struct call *call, int thread)
{
    uintptr_t at = ((uintptr_t)call->workspace + 63) & ~(uintptr_t)63;

    return (char *)at + call->product->lane_bytes * (size_t)thread;
}

/* What a thread keeps from one strip to the next. */
struct lane {
    char *memory;
    struct cpu_beside *beside; /* at the end of the memory */
    bool waits;                /* the epilogue of `made` has not run */
    struct cpu_made made;
    int turn; /* of two places for results that only the epilogue reads */
};

static struct lane lane_of(const struct call *call, int thread)
{
    struct lane lane = {.memory = memory_of(call, thread)};

    lane.beside =
        (void *)(memory_of(call, thread + 1) - ((sizeof(struct cpu_beside) + 63) & ~(size_t)63));
    lane.beside->turn = 0;
    lane.beside->pending = false;
    return lane;
}

/* All that waits is done. */
static void finish_lane(const struct call *call, struct lane *lane)
{
    cpu_finish_beside(lane->beside);
    if (lane->waits)
        call->epilogue->run(call->epilogue->context, &lane->made);
    lane->waits = false;
}

/* Some rows of A, as many as the unit takes, against a block of B. */
struct strip {
    struct cpu_panel a;
    const char *b;
    int64_t panel;                             /* bytes from one panel of B to the next */
    int64_t row, rows, column, columns, depth; /* columns of each piece */
    float *sums;                               /* a block for each panel of B */
    bool begun, last;
    bool add;         /* results: to what C has */
    bool made;        /* results are final */
    const char *next; /* rows of A that are read soon, or NULL */
};

/* A panel of a strip: where it is in B, and which columns of C it makes. */
struct place {
    const char *b;
    bool second; /* of two halves */
    int64_t column;
};

static struct place place_of(const struct cpu_product *p, const struct strip *s, int64_t j)
{
    int64_t each = panels_of(s->columns);
    bool second = p->spec.halves && j >= each;

    j -= second ? each : 0;
    return (struct place){s->b + (second ? p->spec.n / 2 / CPU_PANEL + j : j) * s->panel, second,
                          s->column + j * CPU_PANEL};
}

static struct cpu_result results_at(const struct call *call, const struct lane *lane,
                                    const struct strip *s, const struct place *at)
{
    const struct cpu_gemm_spec *spec = &call->product->spec;
    int64_t size = (int64_t)ct_dtype_size(spec->c_type), row = spec->c_row * size;
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

/* Results that are written soon come into the caches. */
static void fetch_results(const struct cpu_result *to, int64_t rows, int64_t columns)
{
    int64_t bytes = columns * (int64_t)ct_dtype_size(to->dtype);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < bytes; i += CPU_LINE_BYTES)
            __builtin_prefetch(to->at + r * to->row + i, 1);
}

/* Of the next strip. */
static int64_t next_rows(const struct cpu_product *p, const struct strip *s)
{
    return s->next ? least(p->unit->rows, p->spec.m - s->row - s->rows) : 0;
}

/* So do the next rows of A, from byte `from` of each on. Returns how far they came. */
static int64_t fetch_next(const struct cpu_product *p, const struct strip *s, int64_t from,
                          int64_t end)
{
    int64_t rows = next_rows(p, s);

    for (; rows > 0 && from < end; from += CPU_LINE_BYTES)
        for (int64_t r = 0; r < rows; r++)
            __builtin_prefetch(s->next + r * p->spec.a_row * 2 + from);
    return from;
}

/* The unit fetches them beside the products of the panels: some rows with each. */
static void fetch_beside(const struct cpu_product *p, const struct strip *s,
                         struct cpu_beside *beside, int64_t panel, int64_t panels)
{
    int64_t rows = next_rows(p, s), each = (rows + panels - 1) / panels, first = panel * each;

    beside->rows = (int)least(each, rows > first ? rows - first : 0);
    beside->row = p->spec.a_row * 2;
    beside->next = s->next + first * beside->row;
}

/* A strip's epilogue runs after the next strip's products: by then its lines are in the caches, and
   a unit that rounds blocks beside products has rounded the last one. */
static void pass_on(const struct call *call, struct lane *lane, const struct strip *s,
                    bool completed)
{
    struct cpu_result to = results_at(call, lane, s, &(struct place){.column = s->column});

    if (!completed)
        cpu_finish_beside(lane->beside);
    if (lane->waits)
        call->epilogue->run(call->epilogue->context, &lane->made);
    lane->made = (struct cpu_made){s->row, s->rows, s->column, s->columns, to.at, to.row};
    lane->waits = true;
    lane->turn ^= 1;
}

static void multiply_strip(const struct call *call, const struct strip *s, struct lane *lane)
{
    const struct cpu_product *p = call->product;
    const struct cpu_unit *unit = p->unit;
    int64_t whole = 0, fetched = 0, panels = panels_of(s->columns) * pieces(&p->spec);

    if (s->last && s->rows == unit->rows)
        whole = least(panels, (p->spec.n - s->column) / CPU_PANEL);
    for (int64_t j = 0; j < panels; j++) {
        struct place at = place_of(p, s, j);
        float *sum = s->sums + j * CPU_BLOCK;
        struct cpu_result to = results_at(call, lane, s, &at);

        if (unit->beside)
            fetch_beside(p, s, lane->beside, j, panels);
        else
            fetched = fetch_next(p, s, fetched, s->depth * 2 * (j + 1) / panels);
        if (s->last && (s->add || !unit->beside) && !p->spec.passed)
            fetch_results(&to, s->rows, least(CPU_PANEL, p->spec.n - at.column));
        if (j < whole)
            unit->complete(&s->a, at.b, s->depth, s->begun ? sum : NULL, &to, lane->beside);
        else
            unit->multiply(&s->a, at.b, (struct cpu_extent){(int)s->rows, CPU_PANEL, s->depth}, sum,
                           s->begun);
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

/* ---- rows ---- */

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
            multiply_strip(call, &s, lane);
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

static void run_rows(void *context, int thread, int threads)
{
    const struct call *call = context;
    const struct cpu_product *p = call->product;
    struct lane lane = lane_of(call, thread);
    int64_t task;

    (void)threads;
    p->unit->begin();
    while ((task = cpu_next_task(&call->tasks, thread)) >= 0) {
        struct cpu_range rows, columns;

        task_of_rows(p, task, &rows, &columns);
        for (int64_t i = rows.begin; i < rows.end && columns.begin < columns.end; i += p->rows)
            run_block(call, i, least(i + p->rows, rows.end), columns.begin,
                      columns.end - columns.begin, &lane);
    }
    finish_lane(call, &lane);
    p->unit->end();
}

/* ---- gradient ---- */

/* GRADIENT_ROWS rows of A and B, from row k on. */
struct gradient {
    const struct call *call;
    int64_t k, depth;
    char *b, *a; /* packed; a: if threads share it */
};

/* Rows of a matrix [depth][columns] into chunks of p->depth rows: the panels of a chunk lie side by
   side, so that those of a block fall into different sets of a cache. */
static void pack_chunks(const struct gradient *g, bool transposed, const char *at, int64_t stride,
                        int64_t columns, struct cpu_range rows, char *to)
{
    const struct cpu_product *p = g->call->product;

    for (int64_t k = 0; k < g->depth; k += p->depth) {
        int64_t begin = most(k, rows.begin), depth = least(p->depth, g->depth - k),
                panel = panels_of(depth) * CPU_STEP_BYTES;
        struct cpu_packed_from from = {CT_BF16, at + (g->k + begin) * stride * 2, stride,
                                       least(k + depth, rows.end) - begin, columns};
        struct cpu_lines lines = cpu_panel_lines(panel);
        char *step = to + (begin - k) / CPU_PANEL * CPU_STEP_BYTES;

        lines.stream = true; /* what other cores have read of B is slow to write again */
        if (from.rows > 0 && transposed)
            p->unit->pack_transposed(&from, step, panel);
        else if (from.rows > 0)
            cpu_panels()->pack_rows(&lines, &from, step);
        to += panels_of(columns) * panel;
    }
}

/* Each thread reads whole rows, which follow each other in memory. */
static void pack_shared(void *context, int thread, int threads)
{
    const struct gradient *g = context;
    const struct cpu_product *p = g->call->product;
    const struct cpu_gemm_spec *s = &p->spec;
    struct cpu_range mine = cpu_share(g->depth, CPU_PANEL, thread, threads);

    pack_chunks(g, false, g->call->b, s->b_row, s->n, mine, g->b);
    if (p->shared_a)
        pack_chunks(g, true, g->call->a, s->a_col, s->m, mine, g->a);
}

/* Packed rows of A^T: `rows` of them, which begin at row `row` of C. */
struct packed_rows {
    const char *at;
    int64_t row, rows;
};

/* A block of C, from packed panels: its sums stay in the L2 cache. */
static void multiply_block(const struct gradient *g, const struct packed_rows *a, int64_t row,
                           int64_t rows, int64_t column, float *sums, struct lane *lane)
{
    const struct cpu_product *p = g->call->product;
    const char *b = g->b, *panels = a->at;

    for (int64_t k = 0; k < g->depth; k += p->depth) {
        int64_t depth = least(p->depth, g->depth - k), panel = panels_of(depth) * CPU_STEP_BYTES;
        struct strip s = {.a = p->unit->packed,
                          .b = b + column / CPU_PANEL * panel,
                          .panel = panel,
                          .column = column,
                          .columns = least(p->columns, p->spec.n - column),
                          .depth = depth,
                          .begun = k > 0,
                          .last = k + depth == g->depth,
                          .add = p->spec.accumulate || g->k > 0,
                          .made = g->k + k + depth == p->spec.k};

        for (int64_t i = 0; i < rows; i += p->unit->rows) {
            int64_t first = i % CPU_PANEL;

            s.row = row + i;
            s.rows = least(p->unit->rows, rows - i);
            s.a.at = panels + (s.row - a->row) / CPU_PANEL * panel + first * s.a.row;
            s.sums = sums + (i - first) * p->columns + first * CPU_PANEL;
            multiply_strip(g->call, &s, lane);
        }
        panels += panels_of(a->rows) * panel;
        b += panels_of(p->spec.n) * panel;
    }
}

/* Some rows of C, all columns: the thread packs its rows of A^T. */
static void run_own_rows(const struct gradient *g, int64_t row, int64_t rows, float *sums,
                         struct lane *lane)
{
    const struct cpu_gemm_spec *s = &g->call->product->spec;
    struct packed_rows a = {lane->memory, row, rows};

    pack_chunks(g, true, g->call->a + row * 2, s->a_col, rows, (struct cpu_range){0, g->depth},
                lane->memory);
    for (int64_t column = 0; column < s->n; column += g->call->product->columns)
        multiply_block(g, &a, row, rows, column, sums, lane);
}

static void run_gradient(void *context, int thread, int threads)
{
    const struct gradient *g = context;
    const struct cpu_product *p = g->call->product;
    struct packed_rows shared = {g->a, 0, p->spec.m};
    struct lane lane = lane_of(g->call, thread);
    float *sums = (float *)(lane.memory + (p->shared_a ? 0 : p->rows * p->packed * 2));
    int64_t task;

    (void)threads;
    p->unit->begin();
    while ((task = cpu_next_task(&g->call->tasks, thread)) >= 0) {
        int64_t row = task % p->by_rows * p->rows, rows = least(p->rows, p->spec.m - row),
                column = task / p->by_rows * p->columns;

        if (p->shared_a)
            multiply_block(g, &shared, row, rows, column, sums, &lane);
        else
            run_own_rows(g, row, rows, sums, &lane);
    }
    finish_lane(g->call, &lane);
    p->unit->end();
}

void cpu_product_run(const struct cpu_product *p, const void *a, const void *b, void *c,
                     void *workspace, const struct cpu_epilogue *epilogue)
{
    struct call call = {p, a, b, c, workspace, epilogue, {0}};
    char *packed_b = memory_of(&call, p->threads),
         *packed_a = packed_b + shared_bytes(p, p->spec.n),
         *tasks = packed_a + (p->shared_a ? shared_bytes(p, p->spec.m) : 0);
    int64_t count = p->by_rows * p->by_columns;

    if (!p->gradient) {
        call.tasks = cpu_tasks_begin(tasks, count * p->down * p->across, p->threads);
        cpu_parallel(run_rows, &call);
        return;
    }
    for (int64_t k = 0; k < p->spec.k; k += p->packed) {
        struct gradient g = {&call, k, least(p->packed, p->spec.k - k), packed_b, packed_a};

        call.tasks = cpu_tasks_begin(tasks, count, p->threads);
        cpu_parallel(pack_shared, &g);
        cpu_parallel(run_gradient, &g);
    }
}

/* ---- packed weights ---- */

size_t cpu_product_packed_bytes(enum cpu_use use, int64_t n, int64_t k)
{
    int64_t columns = use == CPU_FORWARD ? n : k, depth = use == CPU_FORWARD ? k : n;

    return (size_t)(panels_of(columns) * panels_of(depth) * CPU_STEP_BYTES);
}

struct cpu_lines cpu_product_lines(enum cpu_use use, int64_t n, int64_t k)
{
    return cpu_panel_lines(panels_of(use == CPU_FORWARD ? k : n) * CPU_STEP_BYTES);
}
