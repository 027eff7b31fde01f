/*
 * Codes in a run's memory: made from a model's weights, some rows at a time, and decoded for who
 * writes these. The rows that are read together have whole blocks, so that each is read once. A
 * rank reads its own rows, and those that share blocks with these; if scales have scales, all.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "qlora.h"

#define AT_ONCE ((int64_t)1 << 20) /* numbers in memory */

struct encoding {
    struct ct_run *run;
    const struct ct_state *codes, *absmax, *nested; /* nested: NULL, or of double quantisation */
    unsigned base;
    struct qlora_blocks blocks;
    int (*read)(void *context, const int64_t *offset, const int64_t *shape, float *to);
    void *context;
    struct ct_arena arena;
    float *scale; /* by block */
    uint8_t *nested_code;
    float *nested_scale;
    float *numbers; /* of the rows in hand */
    char *made;     /* codes of these */
};

static const struct ct_state *beside(struct ct_arena *arena, const struct ct_run *run,
                                     const struct ct_state *param, const char *suffix)
{
    return ct_run_state(run, ct_arena_printf(arena, "%s%s", param->name, suffix));
}

static int open(struct encoding *e, struct ct_run *run, const struct ct_state *param)
{
    *e = (struct encoding){.run = run, .codes = param};
    e->base = param->dtype == CT_U4 ? QLORA_NF4 : QLORA_INT8;
    e->absmax = beside(&e->arena, run, param, QLORA_ABSMAX);
    e->nested = beside(&e->arena, run, param, QLORA_NESTED);
    e->blocks = qlora_blocks_of(param->shape[0], param->shape[1]);
    return e->absmax ? 0 : ct_fail(CT_EINVAL, "the run lacks the scales of %s", param->name);
}

/* Rows after which a row begins with a block again. */
static int64_t period_of(const struct qlora_blocks *b)
{
    int64_t rows = 1;

    while (rows * b->columns % QLORA_BLOCK)
        rows *= 2;
    return rows;
}

/* Rows that have whole blocks. */
static int64_t rows_at_once(const struct qlora_blocks *b)
{
    int64_t period = period_of(b), times = AT_ONCE / (period * b->columns + !b->columns);

    return times > 1 ? times * period : period;
}

/* ---- scales and codes ---- */

static void note_rows(struct encoding *e, int64_t row, int64_t rows)
{
    int64_t first = row * e->blocks.columns;

    for (int64_t i = 0; i < rows * e->blocks.columns; i++) {
        float *scale = &e->scale[(first + i) / QLORA_BLOCK], x = fabsf(e->numbers[i]);

        *scale = x > *scale || isnan(x) ? x : *scale;
    }
}

/* The rows whose numbers decide on scales of this rank: all if scales have scales, whose mean is of
   the whole weight; otherwise its own, and those that share blocks with these. */
static void find_rows(const struct encoding *e, int64_t *begin, int64_t *end)
{
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS], period = period_of(&e->blocks);

    *begin = 0;
    *end = e->blocks.rows;
    if (e->nested)
        return;
    ct_run_shard(e->run, e->codes, e->run->rank, shape, offset);
    *begin = offset[0] / period * period;
    if (offset[0] + shape[0] < *end)
        *end = (offset[0] + shape[0] + period - 1) / period * period;
    *end = !shape[0] ? *begin : *end < e->blocks.rows ? *end : e->blocks.rows;
}

static void encode_row(const struct encoding *e, int64_t row, int64_t column, int64_t columns,
                       const float *x, struct ct_tensor *codes, int64_t at)
{
    int64_t first = row * e->blocks.columns + column;

    for (int64_t j = 0; j < columns; j++)
        ct_tensor_store(codes, at + j,
                        qlora_code(e->base, x[j], e->scale[(first + j) / QLORA_BLOCK]));
}

/* The codes of this rank's part of the rows in hand, [row, row + rows). */
static int write_codes(struct encoding *e, int64_t row, int64_t rows)
{
    int64_t shape[CT_MAX_DIMS], begin[CT_MAX_DIMS], at[CT_MAX_DIMS] = {0}, end;
    struct ct_tensor t;

    ct_run_shard(e->run, e->codes, e->run->rank, shape, begin);
    end = begin[0] + shape[0] < row + rows ? begin[0] + shape[0] : row + rows;
    at[0] = row > begin[0] ? row - begin[0] : 0;
    shape[0] = end - begin[0] - at[0];
    if (shape[0] <= 0 || !shape[1])
        return 0;
    t = ct_tensor_dense(e->made, e->codes->dtype, 2, shape);
    memset(e->made, 0, ct_tensor_bytes(&t));
    for (int64_t i = 0; i < shape[0]; i++) {
        int64_t number = begin[0] + at[0] + i;

        encode_row(e, number, begin[1], shape[1],
                   e->numbers + (number - row) * e->blocks.columns + begin[1], &t, i * shape[1]);
    }
    return ct_run_write(e->run, e->codes, at, shape, e->made);
}

static int read_rows(struct encoding *e)
{
    int64_t step = rows_at_once(&e->blocks), begin, end;
    int rc = 0;

    find_rows(e, &begin, &end);
    for (int64_t row = begin; rc == 0 && row < end; row += step) {
        int64_t offset[CT_MAX_DIMS] = {row}, left = end - row;
        int64_t shape[CT_MAX_DIMS] = {left < step ? left : step, e->blocks.columns};

        rc = e->read(e->context, offset, shape, e->numbers);
        if (rc == 0) {
            note_rows(e, row, shape[0]);
            rc = write_codes(e, row, shape[0]);
        }
    }
    for (int64_t i = 0; rc == 0 && i < e->blocks.blocks; i++)
        if (!isfinite(e->scale[i]))
            return ct_fail(CT_ECONFIG, "%s is not finite, and has no codes", e->codes->name);
    if (rc == 0 && e->nested)
        qlora_nest(&e->blocks, e->scale, e->nested_code, e->nested_scale);
    return rc;
}

/* The scales of this rank's rows, or their codes. */
static int write_scales(struct encoding *e)
{
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    size_t item = ct_dtype_size(e->absmax->dtype);
    char *all;

    ct_run_shard(e->run, e->absmax, e->run->rank, shape, offset);
    all = ct_arena_alloc(&e->arena, ct_run_shard_bytes(e->run, e->absmax) + 1);
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t k = 0; k < shape[1]; k++) {
            int64_t block = qlora_first(&e->blocks, offset[0] + i) + offset[1] + k;
            const void *from =
                e->nested ? (const void *)&e->nested_code[block] : (const void *)&e->scale[block];

            if (block < e->blocks.blocks)
                memcpy(all + (size_t)(i * shape[1] + k) * item, from, item);
        }
    return ct_run_write(e->run, e->absmax, NULL, NULL, all);
}

static int encode(struct ct_run *run, const struct ct_state *param,
                  int (*read)(void *context, const int64_t *offset, const int64_t *shape,
                              float *to),
                  void *context)
{
    struct encoding e;
    int rc = open(&e, run, param);
    const struct qlora_blocks *b = &e.blocks;

    e.read = read;
    e.context = context;
    e.scale = ct_arena_array(&e.arena, float, b->blocks + 1);
    e.nested_code = ct_arena_array(&e.arena, uint8_t, b->blocks + 1);
    e.nested_scale = ct_arena_array(&e.arena, float, b->groups + 1);
    e.numbers = ct_arena_array(&e.arena, float, rows_at_once(b) * b->columns + 1);
    e.made = ct_arena_array(&e.arena, char, rows_at_once(b) * (b->columns + 1));
    if (rc == 0)
        rc = read_rows(&e);
    if (rc == 0)
        rc = write_scales(&e);
    if (rc == 0 && e.nested)
        rc = ct_run_write(run, e.nested, NULL, NULL, e.nested_scale);
    ct_arena_finish(&e.arena);
    return rc;
}

/* ---- decoding ---- */

static int read_all(struct encoding *e, const struct ct_state *s, const int64_t *offset,
                    const int64_t *shape, void **data)
{
    *data = ct_arena_alloc(&e->arena, ct_dtype_bytes(s->dtype, s->ndim, shape) + 1);
    return ct_run_read(e->run, s, offset, shape, *data);
}

/* A box that begins with an even column of the shard. */
static int decode_box(struct encoding *e, const int64_t *offset, const int64_t *shape, float *to)
{
    int64_t begin[CT_MAX_DIMS], slots[CT_MAX_DIMS], first[CT_MAX_DIMS];
    int64_t from[CT_MAX_DIMS] = {offset[0]}, size[CT_MAX_DIMS] = {shape[0]};
    float pairs[256][2];
    void *codes, *scales = NULL, *nested = NULL;
    size_t row, item = ct_dtype_size(e->absmax->dtype);
    int rc;

    ct_run_shard(e->run, e->codes, e->run->rank, NULL, begin);
    ct_run_shard(e->run, e->absmax, e->run->rank, slots, first);
    size[1] = slots[1];
    rc = read_all(e, e->codes, offset, shape, &codes);
    if (rc == 0)
        rc = read_all(e, e->absmax, from, size, &scales);
    if (rc == 0 && e->nested)
        rc = read_all(e, e->nested, (int64_t[]){0}, e->nested->shape, &nested);
    if (rc < 0)
        return rc;
    qlora_pairs(pairs);
    row = ct_dtype_bytes(e->codes->dtype, 1, &shape[1]);
    for (int64_t i = 0; i < shape[0]; i++) {
        const char *scale = (const char *)scales + (size_t)(i * slots[1]) * item;
        struct qlora_row r = {.blocks = &e->blocks,
                              .base = e->base,
                              .pairs = pairs,
                              .row = begin[0] + offset[0] + i,
                              .column = begin[1] + offset[1],
                              .slot = first[1],
                              .absmax = nested ? NULL : (const float *)(const void *)scale,
                              .codes = (const uint8_t *)scale,
                              .nested = nested};

        qlora_decode(&r, (const uint8_t *)codes + (size_t)i * row, shape[1], to + i * shape[1]);
    }
    return 0;
}

static int decode(struct ct_run *run, const struct ct_state *param, const int64_t *offset,
                  const int64_t *shape, float *to)
{
    struct encoding e;
    int rc = open(&e, run, param);

    if (rc == 0 && ct_shape_count(2, shape) > 0)
        rc = decode_box(&e, offset, shape, to);
    ct_arena_finish(&e.arena);
    return rc;
}

const struct ct_coding *qlora_coding(void)
{
    static const struct ct_coding coding = {
        .size = sizeof(struct ct_coding), .encode = encode, .decode = decode};

    return &coding;
}
