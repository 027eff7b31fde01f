/*
 * Rows of a table by token, and the sum of gradients per row. A rank may hold a shard of the table:
 * tokens that lie in another shard give zeros here, and add nothing.
 *
 * The gradient first links the tokens of each row into a list, in order. Threads then share the
 * rows of the table: each is summed in float32 and written once. The result does not depend on the
 * number of threads.
 */
#include <omp.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define COLUMNS 1024 /* summed at a time */
#define ROWS 64      /* of the table, a thread's share */

/* The rows of a table that lie here. */
struct shard {
    int64_t first, rows, all; /* all: of the whole table */
};

static struct shard shard_of(const struct ct_launch *launch, const struct ct_value *table,
                             const struct ct_tensor *local)
{
    return (struct shard){ct_launch_offset(launch, table, 0), local->shape[0], table->shape[0]};
}

static bool has(const struct shard *shard, int32_t token)
{
    return token >= shard->first && token < shard->first + shard->rows;
}

static int check_token(const struct shard *shard, int32_t token)
{
    if (token >= 0 && token < shard->all)
        return 0;
    return ct_fail(CT_EINVAL, "token %d is outside the table of %lld rows", token,
                   (long long)shard->all);
}

CPU_INLINE void convert(enum ct_dtype from, const void *x, enum ct_dtype to, void *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(to, y, i, n, v_get(from, x, i, n));
}

static void copy_row(enum ct_dtype from, const void *x, enum ct_dtype to, void *y, int64_t n)
{
    if (from == to)
        memcpy(y, x, (size_t)n * ct_dtype_size(to));
    else if (from == CT_F32)
        convert(CT_F32, x, CT_BF16, y, n);
    else
        convert(CT_BF16, x, CT_F32, y, n);
}

static int32_t token_at(const struct ct_tensor *tokens, const struct cpu_runs *runs, int64_t r)
{
    return ((const int32_t *)tokens->data)[cpu_run_at(runs, 1, r)];
}

static char *row_of(const struct ct_tensor *t, int64_t at)
{
    return (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
}

bool CPU_ISA(cpu_embedding_accepts)(const struct ct_prepare *prepare)
{
    return prepare->in[0].dtype == CT_I32 && cpu_is_compute_dtype(prepare->in[1].dtype) &&
           cpu_is_compute_dtype(prepare->out[0].dtype);
}

static void copy_token(const struct shard *shard, const struct ct_tensor *table, int32_t token,
                       const struct ct_tensor *y, int64_t at, int64_t n)
{
    if (has(shard, token))
        copy_row(table->dtype, row_of(table, (token - shard->first) * table->stride[0]), y->dtype,
                 row_of(y, at), n);
    else
        memset(row_of(y, at), 0, (size_t)n * ct_dtype_size(y->dtype));
}

int CPU_ISA(cpu_embedding_run)(const struct ct_launch *launch)
{
    const struct ct_tensor *tokens = launch->in, *table = launch->in + 1, *y = launch->out;
    struct cpu_runs runs = cpu_rows_of((const struct ct_tensor *const[]){y, tokens}, 2);
    struct shard shard = shard_of(launch, launch->op->in[1], table);

    for (int64_t r = 0; r < runs.count; r++) {
        int rc = check_token(&shard, token_at(tokens, &runs, r));

        if (rc < 0)
            return rc;
    }
#pragma omp parallel for schedule(static) if (cpu_worth_threads(runs.count * runs.length))
    for (int64_t r = 0; r < runs.count; r++)
        copy_token(&shard, table, token_at(tokens, &runs, r), y, cpu_run_at(&runs, 0, r),
                   runs.length);
    return 0;
}

struct lists {
    int32_t *first; /* by row of the shard: its first token's index; -1: none */
    int32_t *next;  /* by index: the next with the same token; -1: the end */
};

/* The lists of all tokens but `padding`. */
static int link_tokens(const struct ct_tensor *tokens, const struct cpu_runs *runs,
                       const struct shard *shard, int64_t padding, struct lists *lists)
{
    memset(lists->first, 0xff, (size_t)shard->rows * sizeof(*lists->first));
    for (int64_t r = runs->count - 1; r >= 0; r--) {
        int32_t token = token_at(tokens, runs, r);
        int64_t row = token - shard->first;
        int rc = check_token(shard, token);

        if (rc < 0)
            return rc;
        if (!has(shard, token) || token == padding)
            continue;
        lists->next[r] = lists->first[row];
        lists->first[row] = (int32_t)r;
    }
    return 0;
}

struct gradient {
    const struct ct_tensor *dy, *dtable;
    struct cpu_runs runs;
    struct lists lists;
    bool accumulate;
};

CPU_INLINE void add_row(enum ct_dtype dtype, float *total, const void *dy, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_F32, total, i, n, v_get(CT_F32, total, i, n) + v_get(dtype, dy, i, n));
}

/* Columns [at, at + n) of a row that has tokens. */
static void sum_columns(const struct gradient *g, int64_t row, int64_t at, int64_t n)
{
    float total[COLUMNS];
    char *out = row_of(g->dtable, row * g->dtable->stride[0] + at);

    if (g->accumulate)
        copy_row(g->dtable->dtype, out, CT_F32, total, n);
    else
        memset(total, 0, (size_t)n * sizeof(float));
    for (int32_t r = g->lists.first[row]; r >= 0; r = g->lists.next[r]) {
        const char *dy = row_of(g->dy, cpu_run_at(&g->runs, 0, r) + at);

        if (g->dy->dtype == CT_F32)
            add_row(CT_F32, total, dy, n);
        else
            add_row(CT_BF16, total, dy, n);
    }
    copy_row(CT_F32, total, g->dtable->dtype, out, n);
}

static void sum_row(const struct gradient *g, int64_t row)
{
    int64_t n = g->runs.length;

    for (int64_t at = 0; at < n; at += COLUMNS)
        sum_columns(g, row, at, n - at < COLUMNS ? n - at : COLUMNS);
}

static void clear_rows(const struct ct_tensor *t, int64_t begin, int64_t end, int64_t n)
{
    size_t bytes = (size_t)n * ct_dtype_size(t->dtype);

    if (t->stride[0] == n)
        memset(row_of(t, begin * n), 0, bytes * (size_t)(end - begin));
    else
        for (int64_t row = begin; row < end; row++)
            memset(row_of(t, row * t->stride[0]), 0, bytes);
}

static void sum_rows(const struct gradient *g, int64_t begin, int64_t end)
{
    while (begin < end) {
        int64_t row = begin;

        while (row < end && g->lists.first[row] < 0)
            row++;
        if (!g->accumulate && begin < row)
            clear_rows(g->dtable, begin, row, g->runs.length);
        if (row < end)
            sum_row(g, row);
        begin = row + 1;
    }
}

bool CPU_ISA(cpu_embedding_grad_accepts)(const struct ct_prepare *prepare)
{
    return cpu_is_compute_dtype(prepare->in[0].dtype) && prepare->in[1].dtype == CT_I32 &&
           cpu_is_compute_dtype(prepare->out[0].dtype) &&
           ct_tensor_count(prepare->in + 1) < INT32_MAX;
}

int CPU_ISA(cpu_embedding_grad_prepare)(struct ct_prepare *prepare)
{
    int64_t tokens = ct_tensor_count(prepare->in + 1);

    prepare->workspace = (size_t)(prepare->out->shape[0] + tokens) * sizeof(int32_t);
    return 0;
}

int CPU_ISA(cpu_embedding_grad_run)(const struct ct_launch *launch)
{
    const struct ct_embedding_grad *attrs = launch->op->attrs;
    const struct ct_tensor *tokens = launch->in + 1;
    struct gradient g = {
        .dy = launch->in, .dtable = launch->out, .accumulate = launch->accumulate & 1};
    struct shard shard = shard_of(launch, launch->op->out[0], g.dtable);
    int64_t rows = shard.rows;
    int rc;

    g.runs = cpu_rows_of((const struct ct_tensor *const[]){g.dy, tokens}, 2);
    g.lists.first = launch->workspace;
    g.lists.next = g.lists.first + rows;
    rc = link_tokens(tokens, &g.runs, &shard, attrs->padding, &g.lists);
    if (rc < 0)
        return rc;
#pragma omp parallel for schedule(dynamic) if (cpu_worth_threads(rows * g.runs.length))
    for (int64_t row = 0; row < rows; row += ROWS)
        sum_rows(&g, row, row + ROWS < rows ? row + ROWS : rows);
    return 0;
}
