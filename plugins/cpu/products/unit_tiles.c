/*
 * The units "tiles" and, built with CPU_TILES_EMULATED, "emulated": blocks of 32x32 in four
 * accumulators. B is loaded past the L1 cache, so that it does not evict the panel of A.
 */
#include "tiles.h"
#include "unit.h"

#define ROW_BYTES (CPU_PANEL * 4) /* of the sums */

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

static void multiply(const struct cpu_panel *a, const char *b, struct cpu_extent extent, float *sum,
                     bool add)
{
    const char *at = a->at;

    if (add)
        load_sums(sum);
    else
        clear_sums();
    for (int64_t k = 0; k < extent.depth; k += CPU_PANEL, at += a->step, b += CPU_STEP_BYTES) {
        tile_load(4, at, a->row);
        tile_load_once(6, b, 64);
        tile_load_once(7, b + 1024, 64);
        tile_product(0, 4, 6);
        tile_load(5, at + 16 * a->row, a->row);
        tile_product(1, 4, 7);
        tile_product(2, 5, 6);
        tile_product(3, 5, 7);
    }
    store_sums(sum);
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
    .rows = CPU_PANEL,
    .depth = 512,
    .columns = 256,
    .begin = tile_begin,
    .end = tile_end,
    .multiply = multiply,
    .pack_transposed = pack_transposed,
    .packed = {.row = 64, .pair = 4, .step = CPU_STEP_BYTES},
};
