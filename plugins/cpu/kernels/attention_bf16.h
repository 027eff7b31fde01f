/*
 * Shared parts of the forward and the backward of attention in bfloat16.
 *
 * All products run on a unit (products/unit.h), in blocks of 32 by 32 that are tiles here, too.
 * Rows of keys and values are copied once, since their strides may be multiples of 2 KB, and zeros
 * fill up whole tiles. Scores, sums and the softmax are float32. Weights and gradients
 * of scores are rounded to bfloat16 before they are multiplied.
 */
#ifndef CPU_KERNELS_ATTENTION_BF16_H
#define CPU_KERNELS_ATTENTION_BF16_H

#include "../attention.h"

#define TILE CPU_PANEL
#define GRAIN TILE

#include "attention.h"
#include "attention_mask.h"

#define ROWS_AHEAD 8 /* to prefetch: they lie far apart, where the hardware does not */

/* Parts of a head, of CPU_PANEL elements. */
static inline int64_t panels_of(const struct head *h)
{
    return h->width / CPU_PANEL;
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements of a part that exist. */
static inline int elements_in(const struct head *h, int64_t panel)
{
    return (int)least(CPU_PANEL, h->size - panel * CPU_PANEL);
}

static inline char *carve_bytes(uintptr_t *at, int64_t bytes)
{
    return (char *)carve_floats(at, bytes / (int64_t)sizeof(float));
}

/* A tile's tokens of one head, for the packing functions. */
static inline struct cpu_packed_from tokens_of(const struct ct_tensor *t, int64_t b, int64_t head,
                                               int64_t tile)
{
    return (struct cpu_packed_from){CT_BF16, token_of(t, b, tile * TILE, head), t->stride[1],
                                    tokens_in(t->shape[1], tile), t->shape[3]};
}

/* Rows [TILE][width], and how a unit reads them. */
static inline void copy_rows(const struct cpu_packed_from *from, const struct head *h, char *to)
{
    const char *at = from->at;
    size_t bytes = (size_t)h->size * 2, row = (size_t)h->width * 2;

    for (int64_t r = 0; r < from->rows; r++, at += from->stride * 2, to += row) {
        __builtin_prefetch(at + ROWS_AHEAD * from->stride * 2);
        memcpy(to, at, bytes);
        memset(to + bytes, 0, row - bytes);
    }
    memset(to, 0, (size_t)(TILE - from->rows) * row);
}

static inline struct cpu_panel rows_at(const struct head *h, const char *at)
{
    return (struct cpu_panel){at, h->width * 2, 4, 2 * CPU_PANEL};
}

/* Where a matrix of A or B in panels of `depth` tokens has a panel's step for a tile. */
static inline int64_t step_of(int64_t panel, int64_t depth, int64_t tile)
{
    return panel * (depth / CPU_PANEL) * CPU_STEP_BYTES + tile * CPU_STEP_BYTES;
}

/* The transposed matrix that the unit packed, from a panel's step on. */
static inline struct cpu_panel across_at(const struct cpu_unit *unit, const char *at)
{
    struct cpu_panel a = unit->packed;

    a.at = at;
    return a;
}

/* One tile's keys against one tile's queries, over the head. */
static inline struct cpu_extent tile_extent(const struct head *h)
{
    return (struct cpu_extent){TILE, TILE, h->size};
}

/* Where a step of B has the pair of rows `row` and row + 1, from column q on. */
static inline char *pair_at(char *step, int64_t row, int64_t q)
{
    return step + q / 16 * (CPU_STEP_BYTES / 2) + row / 2 * 64 + q % 16 * 4;
}

static inline void store_pairs(char *to, vf even, vf odd)
{
    vu pairs = v_pairs(even, odd);

    memcpy(to, &pairs, sizeof(pairs));
}

#endif
