/*
 * The units "tiles" and, built with CPU_TILES_EMULATED, "emulated": blocks of 32x32 in four
 * accumulators. B is loaded past the L1 cache, so that it does not evict the panel of A.
 *
 * Vectors are free while tiles multiply, so a block is rounded during the next one, from some steps
 * into it on: at once would wait for the tiles' stores.
 */
#include <ctitan/lib/cpu/tiles.h>
#include "unit.h"

#define ROW_BYTES (CPU_PANEL * 4) /* of the sums */
#define LAG 3                     /* steps until a stored block is read */
#define ROWS_A_STEP 2             /* of it, that are rounded beside a step */

static void load_sums(const float *sum)
{
    tile_load(0, sum, ROW_BYTES);
    tile_load(1, sum + 16, ROW_BYTES);
    tile_load(2, sum + CPU_BLOCK / 2, ROW_BYTES);
    tile_load(3, sum + CPU_BLOCK / 2 + 16, ROW_BYTES);
}

static void clear_sums(void)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
}

static void store_sums(float *sum)
{
    tile_store(0, sum, ROW_BYTES);
    tile_store(1, sum + 16, ROW_BYTES);
    tile_store(2, sum + CPU_BLOCK / 2, ROW_BYTES);
    tile_store(3, sum + CPU_BLOCK / 2 + 16, ROW_BYTES);
}

/* Where a product is: a step of A and B. */
struct at {
    const char *a, *b;
    int64_t row, step; /* bytes of A */
};

static inline void multiply_step(struct at *at)
{
    tile_load(4, at->a, at->row);
    tile_load_once(6, at->b, 64);
    tile_load_once(7, at->b + 1024, 64);
    tile_product(0, 4, 6);
    tile_load(5, at->a + 16 * at->row, at->row);
    tile_product(1, 4, 7);
    tile_product(2, 5, 6);
    tile_product(3, 5, 7);
    at->a += at->step;
    at->b += CPU_STEP_BYTES;
}

static void multiply(const struct cpu_panel *a, const char *b, struct cpu_extent extent, float *sum,
                     bool add)
{
    struct at at = {a->at, b, a->row, a->step};

    if (add)
        load_sums(sum);
    else
        clear_sums();
    for (int64_t step = 0; step * CPU_PANEL < extent.depth; step++) {
        cpu_fetch_soon(a, step);
        multiply_step(&at);
    }
    store_sums(sum);
}

static void complete(const struct cpu_panel *a, const char *b, int64_t depth, const float *sum,
                     const struct cpu_result *to, struct cpu_beside *beside)
{
    const struct cpu_panels *panels = cpu_panels();
    struct at at = {a->at, b, a->row, a->step};
    const float *from = beside->sums[beside->turn];
    struct cpu_result before = beside->to;
    int64_t row = beside->pending ? 0 : CPU_PANEL;

    if (sum)
        load_sums(sum);
    else
        clear_sums();
    for (int64_t step = 0; step * CPU_PANEL < depth; step++) {
        cpu_fetch_soon(a, step);
        multiply_step(&at);
        if (step >= LAG && row < CPU_PANEL) {
            panels->finish(from + row * CPU_PANEL, ROWS_A_STEP, CPU_PANEL, &before);
            before.at += ROWS_A_STEP * before.row;
            row += ROWS_A_STEP;
        }
    }
    if (row < CPU_PANEL)
        panels->finish(from + row * CPU_PANEL, CPU_PANEL - row, CPU_PANEL, &before);
    beside->turn ^= 1;
    beside->pending = true;
    beside->to = *to;
    store_sums(beside->sums[beside->turn]);
}

static void pack_transposed(const struct cpu_packed_from *from, char *to, int64_t panel)
{
    cpu_panels()->pack_transposed(from, to, panel);
}

#ifdef CPU_TILES_EMULATED
#define UNIT cpu_unit_emulated
#define NAME "emulated"
#else
#define UNIT cpu_unit_tiles
#define NAME "tiles"
#endif

const struct cpu_unit UNIT = {
    .name = NAME,
    .dtype = CT_BF16,
    .rows = CPU_PANEL,
    .depth = 512,
    .columns = 256,
    .block = 768 << 10,
    .beside = true,
    .begin = tile_begin,
    .end = tile_end,
    .multiply = multiply,
    .complete = complete,
    .pack_transposed = pack_transposed,
    .packed = {.row = 64, .word = 4, .step = CPU_STEP_BYTES},
};
