/*
 * Parts of all attention kernels: the geometry of a call, tokens of a head in tiles, and products.
 *
 * The sources are built twice: with products in float32, and with products in bfloat16 on a unit
 * (products/unit.h; ON_UNIT). In float32 operands are plain matrices, and heads are padded with
 * zeros to whole lines; a unit has panels of its own, and blocks of 32 by 32 that are tiles here.
 *
 * A tile is TILE queries by TILE keys. Scores lie as s[key][query], queries along the vector lanes:
 * the softmax over keys then runs down the lanes, without a horizontal step. Scores, sums and the
 * softmax are float32. Operands are copied to DTYPE, as their strides may be multiples of 2 KB;
 * weights and gradients of scores are rounded to it. Tokens are padded to whole tiles: padded
 * queries are computed and never stored, padded keys are masked.
 */
#ifndef CPU_KERNELS_ATTENTION_H
#define CPU_KERNELS_ATTENTION_H

#include <ctitan/op.h>

#include "../attention.h"
#include "product.h"
#include "vector.h"

#ifndef ON_UNIT
#define ON_UNIT false
#endif
#if ON_UNIT
#define KERNEL(op, function) CPU_ISA(cpu_##op##_bf16_##function)
#define DTYPE CT_BF16
#define BYTES 2 /* of an element */
#define TILE CPU_PANEL
#define TILES 4 /* that are taken at a time, so that products are deep */
#define GRAIN TILE
#else
#define KERNEL(op, function) CPU_ISA(cpu_##op##_##function)
#define DTYPE CT_F32
#define BYTES 4
#define TILE 64
#define TILES 1
#define GRAIN 16 /* keys: on the diagonal, vectors of queries end at multiples */
#endif
#define MASKED (-1e30f) /* finite: a difference of two is 0, not NaN */
#define LOWEST (-1e20f) /* far above MASKED: where all is masked so far, weights are 0 */
#define LOG2_E 1.44269504f
#define LINES 128    /* bytes: processors fetch lines in pairs */
#define ROWS_AHEAD 8 /* to prefetch: they lie far apart, where the hardware does not */

/* Elements of a token in one head. */
struct head {
    int64_t size, width; /* width: in whole panels, or in whole lines */
};

struct attention {
    const struct cpu_unit *unit; /* if ON_UNIT */
    int64_t batch, queries, keys, heads, groups;
    struct head key, value; /* of q and k; of v and o */
    int64_t query_tiles, key_tiles;
    int64_t padded; /* keys, in whole tiles */
    float scale;    /* of the scores */
};

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline struct head head_of(const struct ct_tensor *t)
{
    int64_t part = ON_UNIT ? CPU_PANEL : CPU_LINE;

    return (struct head){t->shape[3], (t->shape[3] + part - 1) / part * part};
}

/* k and v follow q. */
static inline struct attention attention_of(const struct ct_op *op, const struct ct_tensor *q)
{
    const struct ct_tensor *k = q + 1, *v = q + 2;
    double scale = ct_op_float(op, "scale");
    struct attention a = {.unit = ON_UNIT ? cpu_attention_unit() : NULL,
                          .batch = q->shape[0],
                          .queries = q->shape[1],
                          .keys = k->shape[1],
                          .heads = q->shape[2],
                          .groups = k->shape[2]};

    a.key = head_of(q);
    a.value = head_of(v);
    a.query_tiles = (a.queries + TILE - 1) / TILE;
    a.key_tiles = (a.keys + TILE - 1) / TILE;
    a.padded = a.key_tiles * TILE;
    a.scale = (float)(scale > 0 ? scale : 1 / sqrt((double)a.key.size));
    return a;
}

static inline void *token_of(const struct ct_tensor *t, int64_t b, int64_t token, int64_t head)
{
    int64_t at = b * t->stride[0] + token * t->stride[1] + head * t->stride[2];

    return (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
}

/* Tasks that one thread takes at a time, of `parts` per head: all of the heads whose tokens share
   lines of a cache, which two threads would take from each other with each write. */
static inline int tasks_together(const struct attention *a, const struct ct_tensor *q,
                                 int64_t parts, int64_t tasks, int threads)
{
    int64_t bytes = least(a->key.size, a->value.size) * (int64_t)ct_dtype_size(q->dtype),
            together = bytes < LINES ? LINES / bytes * parts : 1;

    together = least(together, tasks / (8 * threads));
    return together > 1 ? (int)together : 1;
}

/* Tokens of a tile that exist, of so many in all. */
static inline int64_t tokens_in(int64_t tokens, int64_t tile)
{
    return least(TILE, tokens - tile * TILE);
}

/* Tokens of the tiles [begin, end) that exist: the depth of products over them. */
static inline int64_t depth_of(int64_t tokens, int64_t begin, int64_t end)
{
    return least(end * TILE, tokens) - begin * TILE;
}

/* ---- memory ---- */

/* Memory at *at, which moves on by whole cache lines. */
static inline void *carve_bytes(uintptr_t *at, int64_t bytes)
{
    void *memory = (void *)*at;

    *at += ((uintptr_t)bytes + 63) & ~(uintptr_t)63;
    return memory;
}

static inline float *carve_floats(uintptr_t *at, int64_t floats)
{
    return carve_bytes(at, floats * (int64_t)sizeof(float));
}

/* Elements that lie together, of a head: a panel, or all. */
static inline int64_t panel_of(const struct head *h)
{
    return ON_UNIT ? CPU_PANEL : h->width;
}

static inline int64_t panels_of(const struct head *h)
{
    return ON_UNIT ? h->width / CPU_PANEL : 1;
}

/* Elements of a panel that exist. */
static inline int elements_in(const struct head *h, int64_t panel)
{
    return (int)least(panel_of(h), h->size - panel * panel_of(h));
}

/* Bytes in front of a tile, in rows of a head. */
static inline int64_t rows_before(const struct head *h, int64_t tile)
{
    return tile * TILE * h->width * BYTES;
}

/* Bytes in front of a tile, in a panel of `depth` tokens. */
static inline int64_t panel_before(const struct head *h, int64_t panel, int64_t depth, int64_t tile)
{
    return (panel * depth + tile * TILE) * panel_of(h) * BYTES;
}

/* ---- packing ---- */

/* A tile's tokens of one head, for the packing functions. */
static inline struct cpu_packed_from tokens_of(const struct ct_tensor *t, int64_t b, int64_t head,
                                               int64_t tile)
{
    return (struct cpu_packed_from){t->dtype, token_of(t, b, tile * TILE, head), t->stride[1],
                                    tokens_in(t->shape[1], tile), t->shape[3]};
}

CPU_INLINE void copy_rows_as(enum ct_dtype dtype, const struct cpu_packed_from *from,
                             const struct head *h, char *to)
{
    int64_t step = from->stride * cpu_bytes_of(dtype), row = h->width * BYTES;
    const char *at = from->at;

    for (int64_t r = 0; r < from->rows; r++, at += step, to += row)
        for (int64_t i = 0; i < h->width; i += CPU_LANES) {
            vf v = {0};

            __builtin_prefetch(at + ROWS_AHEAD * step + i * cpu_bytes_of(dtype));
            if (i < h->size)
                v = v_get(dtype, at, i, h->size);
            v_put(DTYPE, to, i, h->width, v);
        }
    memset(to, 0, (size_t)((TILE - from->rows) * row));
}

/* Rows [TILE][width]: A, and in float32 B. */
static inline struct cpu_packed_from copy_rows(const struct cpu_packed_from *from,
                                               const struct head *h, char *to)
{
    if (from->dtype == CT_F32)
        copy_rows_as(CT_F32, from, h, to);
    else
        copy_rows_as(CT_BF16, from, h, to);
    return (struct cpu_packed_from){DTYPE, to, h->width, TILE, h->size};
}

/* A = tokens^T; in float32, of rows of tokens. */
static inline void pack_across(const struct attention *a, const struct cpu_packed_from *from,
                               const struct head *h, int64_t tile, char *to)
{
    if (ON_UNIT)
        a->unit->pack_transposed(from, to + panel_before(h, 0, a->padded, tile),
                                 panel_before(h, 1, a->padded, 0));
    else
        copy_rows(from, h, to + rows_before(h, tile));
}

/* B = tokens^T, a tile; in float32, [width][TILE]. */
static inline void pack_columns(const struct cpu_packed_from *from, char *to)
{
    struct cpu_lines lines = {.dtype = CT_F32,
                              .columns = TILE,
                              .line = CPU_LINE_BYTES,
                              .row = TILE * BYTES,
                              .step = CPU_LINE * TILE * BYTES};

    if (ON_UNIT)
        lines = cpu_panel_lines(CT_BF16, 0);
    CPU_ISA(cpu_pack_columns)(&lines, from, to);
}

/* columns[width][TILE], each query times its factor -> the tokens of a tile that exist */
CPU_INLINE void unpack_as(enum ct_dtype dtype, const struct head *h, const float *columns,
                          const float *factor, int64_t n, char *to, int64_t step)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        for (int64_t j = 0; j < h->size; j += CPU_LANES) {
            vf block[CPU_LANES];
            for (int64_t r = 0; r < CPU_LANES; r++)
                block[r] = v_load(columns + (j + r) * TILE + i) * v_load(factor + i);
            v_transpose(block);
            for (int64_t r = 0; r < CPU_LANES && i + r < n; r++)
                v_put(dtype, to + (i + r) * step, j, h->size, block[r]);
        }
}

static inline void unpack(const struct ct_tensor *t, const struct head *h, int64_t b, int64_t head,
                          int64_t tile, const float *columns, const float *factor)
{
    char *to = token_of(t, b, tile * TILE, head);
    int64_t step = t->stride[1] * (int64_t)ct_dtype_size(t->dtype),
            n = tokens_in(t->shape[1], tile);

    if (t->dtype == CT_F32)
        unpack_as(CT_F32, h, columns, factor, n, to, step);
    else
        unpack_as(CT_BF16, h, columns, factor, n, to, step);
}

/* ---- products ---- */

/* Keys from 0 on that a query of a tile may see, in grains. */
static inline int64_t keys_of(bool diagonal, int64_t query)
{
    return diagonal ? query / GRAIN * GRAIN + GRAIN : TILE;
}

/* Keys [key, key + keys) and queries [query, TILE) of a tile. */
struct span {
    int64_t key, keys, query;
};

/* On the diagonal, GRAIN keys each with the queries that may see one of them. */
static inline int spans_of(bool diagonal, int64_t keys, struct span spans[TILE / GRAIN])
{
    spans[0] = (struct span){0, keys, 0};
    if (!diagonal || GRAIN == TILE)
        return 1;
    for (int64_t i = 0; i < TILE / GRAIN; i++)
        spans[i] = (struct span){i * GRAIN, GRAIN, i * GRAIN};
    return TILE / GRAIN;
}

/* c[rows][c_row] (+)= A B, on a unit: c_row is TILE. In float32, B is rows of b_row elements. */
static inline void times(const struct attention *a, struct cpu_panel rows, const char *b,
                         int64_t b_row, struct cpu_extent extent, float *c, int64_t c_row, bool add)
{
    struct product p = {.c = c,
                        .a = (const float *)(const void *)rows.at,
                        .b = (const float *)(const void *)b,
                        .c_row = c_row,
                        .row = rows.row / BYTES,
                        .step = rows.word / BYTES,
                        .b_row = b_row,
                        .m = (extent.rows + 3) & ~3,
                        .n = (extent.columns + CPU_LANES - 1) / CPU_LANES * CPU_LANES,
                        .k = extent.depth,
                        .add = add};

    if (ON_UNIT)
        cpu_multiply(a->unit, rows, b, extent, c, add);
    else
        multiply(p);
}

/* scores[key][query] = rows of keys times columns of queries, over the head */
static inline void score(const struct attention *a, const struct head *h, bool diagonal,
                         const char *keys, const char *columns, float *scores)
{
    struct span spans[TILE / GRAIN];
    int count = spans_of(diagonal, TILE, spans);

    for (int i = 0; i < count; i++) {
        int64_t key = spans[i].key, query = spans[i].query;
        struct cpu_panel rows = {keys + key * h->width * BYTES, h->width * BYTES, 4,
                                 CPU_LINE_BYTES};

        times(a, rows, columns + query * BYTES, TILE,
              (struct cpu_extent){(int)spans[i].keys, (int)(TILE - query), h->size},
              scores + key * TILE + query, TILE, false);
    }
}

/* columns[..][query] += sum over keys of tokens^T [..][key] weights[key][query], of `depth` keys
   of `across`, which has panels of a->padded */
static inline void add_across(const struct attention *a, const struct head *h, bool diagonal,
                              const char *across, const char *weights, int64_t depth,
                              float *columns)
{
    struct span spans[TILE / GRAIN];
    int count = spans_of(diagonal, depth, spans);

    for (int64_t panel = 0; panel < panels_of(h); panel++)
        for (int i = 0; i < count; i++) {
            int64_t key = spans[i].key, query = spans[i].query;
            struct cpu_panel rows = {.row = 4, .word = h->width * BYTES};

            if (ON_UNIT)
                rows = a->unit->packed;
            rows.at = across + panel_before(h, panel, a->padded, 0) + key * h->width * BYTES;
            times(a, rows, weights + (key * TILE + query) * BYTES, TILE,
                  (struct cpu_extent){elements_in(h, panel), (int)(TILE - query), spans[i].keys},
                  columns + panel * TILE * panel_of(h) + query, TILE, true);
        }
}

/* Bytes in front of a word of column q of B = tokens^T. */
static inline int64_t word_before(int64_t word, int64_t q)
{
    if (!ON_UNIT)
        return (word * TILE + q) * 4;
    return word / CPU_LINE * CPU_STEP_BYTES + q / CPU_LINE * (CPU_STEP_BYTES / 2) +
           word % CPU_LINE * CPU_LINE_BYTES + q % CPU_LINE * 4;
}

/* Rows k and k + 1 of B from column q on; k is even. */
CPU_INLINE void put_pair(char *b, int64_t k, int64_t q, vf even, vf odd)
{
    char *at = b + word_before(k * BYTES / 4, q);
    vu pairs = v_pairs(even, odd);

    if (ON_UNIT) {
        memcpy(at, &pairs, sizeof(pairs));
        return;
    }
    memcpy(at, &even, sizeof(even));
    memcpy(at + TILE * BYTES, &odd, sizeof(odd));
}

#endif
