/*
 * Running a kernel of rows in host memory: operands of any strides, blocks of rows, sums over rows.
 *
 * Rows are divided into blocks whose number depends on the rows alone, so that sums over rows do
 * not depend on the number of threads. Each block has its own scratch rows and sums. Without sums,
 * the blocks of a thread are run as one. What needs neither is divided freely.
 */
#include <string.h>

#include <ctitan/lib/cpu/runs.h>
#include <ctitan/lib/rows.h>
#include <ctitan/op_author.h>

#define MOST_BLOCKS 64
#define FLAT 4096             /* elements that threads are given at least, of flat code */
#define STRIP 512             /* columns whose sums one thread adds up */
#define WORTH_A_THREAD 131072 /* elements of all operands together */
#define OPERANDS (CT_COMPILED_INPUTS + CT_COMPILED_OUTPUTS)

_Static_assert(1 + OPERANDS <= CPU_OPERANDS, "operands of runs");

struct call {
    const struct ct_launch *l;
    const struct ct_rows_call *c;
    struct cpu_runs outer; /* dimensions around rows with a common stride; operand i is 1 + i */
    int operands;
    int64_t rows, columns; /* all of them */
    int64_t inner;         /* rows that one call of the kernel may have */
    int64_t step[OPERANDS];
    bool flat;
    int64_t blocks;
};

static unsigned level_of(const struct ct_rows_call *c, int operand)
{
    return (unsigned)(c->levels[operand] - '0');
}

/* Operand i, inputs first. An input beyond the op's is absent. */
static const struct ct_tensor *tensor(const struct call *c, int i)
{
    static const struct ct_tensor absent;

    if (i >= c->c->ins)
        return &c->l->out[i - c->c->ins];
    return i < c->l->ins ? &c->l->in[i] : &absent;
}

/* The operand with rows and columns, which no absent input has. */
static const struct ct_tensor *whole_of(const struct ct_rows_call *c, const struct ct_tensor *in,
                                        const struct ct_tensor *out)
{
    for (int i = 0; i < c->outs; i++)
        if (level_of(c, c->ins + i) == (CT_BY_ROW | CT_BY_COLUMN))
            return &out[i];
    for (int i = 0; i < c->ins; i++)
        if (level_of(c, i) == (CT_BY_ROW | CT_BY_COLUMN))
            return &in[i];
    return NULL;
}

static int64_t columns_of(const struct ct_tensor *whole)
{
    return whole && whole->ndim ? ct_columns(whole) : 1;
}

static int64_t rows_of(const struct ct_tensor *whole)
{
    return whole && whole->ndim ? ct_rows(whole) : 1;
}

/* The number of blocks for code with buffers or sums. */
static int64_t blocks_of(int64_t rows)
{
    return rows < MOST_BLOCKS ? rows : MOST_BLOCKS;
}

size_t ct_rows_workspace(const struct ct_rows_call *c, const struct ct_tensor *in,
                         const struct ct_tensor *out)
{
    const struct ct_tensor *whole = whole_of(c, in, out);

    return sizeof(float) * (size_t)(c->kernel.buffers + c->kernel.sums) *
           (size_t)columns_of(whole) * (size_t)blocks_of(rows_of(whole));
}

/* ---- loops ---- */

/* May the innermost dimension be the rows of one call? A number for each row has no stride. */
static bool has_rows(const struct call *c)
{
    for (int i = 0; i < c->operands; i++)
        if (level_of(c->c, i) == CT_BY_ROW && c->outer.stride[1 + i][c->outer.rank - 1] != 1)
            return false;
    return true;
}

static bool is_dense(const struct call *c)
{
    for (int i = 0; i < c->operands; i++)
        if (level_of(c->c, i) && c->step[i] != c->columns)
            return false;
    return true;
}

/* Rows of the operands that have some; the others are in one place for all rows. */
static struct cpu_runs rows_in_memory(const struct call *c, const struct ct_tensor *whole)
{
    const struct ct_tensor *t[1 + OPERANDS] = {whole};

    for (int i = 0; i < c->operands; i++)
        if (level_of(c->c, i) & CT_BY_ROW && tensor(c, i)->data)
            t[1 + i] = tensor(c, i);
    return cpu_rows_of(t, 1 + c->operands);
}

static void find_loops(struct call *c)
{
    const struct ct_tensor *whole = whole_of(c->c, c->l->in, c->l->out);

    c->operands = c->c->ins + c->c->outs;
    c->outer = (struct cpu_runs){.count = 1, .length = 1};
    if (whole && whole->ndim)
        c->outer = rows_in_memory(c, whole);
    c->rows = c->outer.count;
    c->columns = c->outer.length;
    c->inner = 1;
    if (c->outer.rank && has_rows(c)) {
        c->inner = c->outer.shape[--c->outer.rank];
        for (int i = 0; i < c->operands; i++)
            c->step[i] = c->outer.stride[1 + i][c->outer.rank];
    }
    c->flat = c->c->kernel.flat && c->outer.rank == 0 && (c->inner == 1 || is_dense(c));
    if (c->flat) {
        c->columns *= c->rows;
        c->rows = c->inner = 1;
    }
}

/* ---- calls ---- */

/* The operands of the rows around index `outer` of the outer dimensions. */
static void set_operands(const struct call *c, int64_t outer, struct ct_compiled_operand *in,
                         struct ct_compiled_operand *out)
{
    for (int i = 0; i < c->operands; i++) {
        const struct ct_tensor *t = tensor(c, i);
        struct ct_compiled_operand *o = i < c->c->ins ? &in[i] : &out[i - c->c->ins];

        int64_t at = cpu_run_at(&c->outer, 1 + i, outer);

        *o = (struct ct_compiled_operand){t->data, c->step[i]};
        if (t->data)
            o->data = (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
    }
    for (int i = 0; i < c->c->numbers; i++)
        in[c->c->ins + i].data = (void *)(uintptr_t)&c->c->number[i];
}

/* Rows [begin, end) of all. */
static void run_rows(const struct call *c, int64_t begin, int64_t end, float *scratch, float *sums)
{
    struct ct_compiled_operand in[CT_COMPILED_INPUTS], out[CT_COMPILED_OUTPUTS];

    while (begin < end) {
        int64_t outer = begin / c->inner, row = begin % c->inner;
        int64_t last = end - begin < c->inner - row ? row + end - begin : c->inner;

        set_operands(c, outer, in, out);
        c->c->kernel.function(in, out, row, last, 0, c->columns, scratch, sums, c->l->accumulate);
        begin += last - row;
    }
}

/* The rows of blocks [begin, end), in the scratch rows of the first. */
static void run_one_block(const struct call *c, int64_t begin, int64_t end)
{
    int buffers = c->c->kernel.buffers, sums = c->c->kernel.sums;
    float *scratch = (float *)c->l->workspace + begin * (buffers + sums) * c->columns;
    float *sum = scratch + buffers * c->columns;

    memset(sum, 0, sizeof(float) * (size_t)(sums * c->columns));
    run_rows(c, c->rows * begin / c->blocks, c->rows * end / c->blocks, scratch, sum);
}

/* Without sums, blocks are one: a call of the kernel makes once what its rows have in common. */
static void run_blocks(void *context, int64_t begin, int64_t end)
{
    const struct call *c = context;

    if (!c->c->kernel.sums)
        run_one_block(c, begin, end);
    for (int64_t b = begin; c->c->kernel.sums && b < end; b++)
        run_one_block(c, b, b + 1);
}

static void run_freely(void *context, int64_t begin, int64_t end)
{
    const struct call *c = context;
    struct ct_compiled_operand in[CT_COMPILED_INPUTS], out[CT_COMPILED_OUTPUTS];

    if (!c->flat) {
        run_rows(c, begin, end, NULL, NULL);
        return;
    }
    set_operands(c, 0, in, out);
    end = end * FLAT < c->columns ? end * FLAT : c->columns;
    c->c->kernel.function(in, out, 0, 1, begin * FLAT, end, NULL, NULL, c->l->accumulate);
}

/* ---- sums ---- */

static void store(const struct ct_tensor *t, int64_t i, float value, bool add)
{
    float *wide = t->data;
    uint16_t *narrow = t->data;

    if (t->dtype == CT_F32)
        wide[i] = add ? wide[i] + value : value;
    else
        narrow[i] = ct_f32_to_bf16(add ? ct_bf16_to_f32(narrow[i]) + value : value);
}

/* Add up the sums of all blocks, in their order, for some strips of columns. */
static void finish_sums(void *context, int64_t begin, int64_t end)
{
    const struct call *c = context;
    int buffers = c->c->kernel.buffers, sums = c->c->kernel.sums, sum = buffers;

    begin *= STRIP;
    end = end * STRIP < c->columns ? end * STRIP : c->columns;
    for (int i = 0; i < c->c->outs; i++) {
        float *first = (float *)c->l->workspace + sum * c->columns;

        if (level_of(c->c, c->c->ins + i) != CT_BY_COLUMN)
            continue;
        for (int64_t b = 1; b < c->blocks; b++)
            for (int64_t j = begin; j < end; j++)
                first[j] += first[b * (buffers + sums) * c->columns + j];
        for (int64_t j = begin; j < end; j++)
            store(&c->l->out[i], j, first[j], c->l->accumulate >> i & 1);
        sum++;
    }
}

/* Have a body run on items that touch so many elements together. */
static void share(struct call *c, int64_t elements, int64_t items, ct_range_body *body)
{
    if (elements < WORTH_A_THREAD)
        body(c, 0, items);
    else
        ct_parallel(c->l, items, body, c);
}

int ct_rows_run(const struct ct_launch *l)
{
    struct call c = {.l = l, .c = l->state};
    const struct ct_rows_kernel *kernel = &c.c->kernel;
    bool by_blocks = kernel->buffers || kernel->sums;

    find_loops(&c);
    c.blocks = by_blocks ? blocks_of(c.rows) : c.flat ? (c.columns + FLAT - 1) / FLAT : c.rows;
    share(&c, c.rows * c.columns * c.operands, c.blocks, by_blocks ? run_blocks : run_freely);
    if (kernel->sums)
        share(&c, c.blocks * kernel->sums * c.columns, (c.columns + STRIP - 1) / STRIP,
              finish_sums);
    return 0;
}
