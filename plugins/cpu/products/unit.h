/*
 * Units that multiply matrices of bfloat16 or float32, and the layout that they read.
 *
 * Words are 4 bytes: a number in float32, or a pair of neighbours along k in bfloat16. A panel of
 * B[k][n] holds PANEL columns in steps of 16 words of k, 2 KB each: two tiles of 16 columns, and in
 * a tile 16 rows of words. Of pairs, element [pair][2 c + i] of a tile is B(2 pair + i, c). Rows
 * and columns beyond the matrix are zero. A panel is contiguous.
 *
 * A unit multiplies some rows of A with one panel and adds to a block of float32 sums. Each sum
 * runs through k in one order, whatever the blocking and the number of threads, so results do not
 * depend on them. Inputs and results below 2^-126 count as zero.
 *
 *   dots            AVX512_BF16: pairs of A broadcast against two vectors of B
 *   multiply_adds   AVX-512, float32: the same with numbers; with AVX2 multiply_adds_avx2, on any
 *                   processor multiply_adds_portable
 *   tiles           AMX: 32 rows of A as two tiles against the two tiles of B
 *   emulated        the tile unit in C, bit for bit: for tests on processors without one
 */
#ifndef CPU_PRODUCTS_UNIT_H
#define CPU_PRODUCTS_UNIT_H

#include <stdbool.h>
#include <stdint.h>

#include <ctitan/tensor.h>

#include <ctitan/lib/cpu.h>
#include "../panel_pack.h"

#define CPU_PANEL 32
#define CPU_STEP_BYTES 2048               /* of a panel, for a line of each row of A */
#define CPU_BLOCK (CPU_PANEL * CPU_PANEL) /* sums of one panel of A with one of B */

/* Rows of A. Strides in bytes: from row to row, from word to word of k, from step to step. */
struct cpu_panel {
    const char *at;
    int64_t row, word, step;
    /* Rows that are read soon, as they are stored: with each step a unit fetches a line of each
       into the L2 cache. */
    const char *soon;
    int64_t soon_row; /* bytes */
    int soon_rows;
    bool new_b; /* nothing has read this block of B: it is fetched ahead of its use */
};

static inline void cpu_fetch_soon(const struct cpu_panel *a, int64_t step)
{
    for (int r = 0; r < a->soon_rows; r++)
        __builtin_prefetch(a->soon + r * a->soon_row + step * CPU_LINE_BYTES, 0, 2);
}

/* The extent of a panel's GEMM. Elements of A and B beyond the depth, up to a whole step,
   are zero; sums beyond the columns may be written. */
struct cpu_extent {
    int rows, columns; /* at most PANEL */
    int64_t depth;
};

/* Where results go: c (+)= sums, rounded to dtype once. */
struct cpu_result {
    enum ct_dtype dtype;
    char *at;
    int64_t row; /* bytes */
    bool add;
};

/* Work that a thread may do beside a GEMM: it rounds the block before. */
struct cpu_beside {
    float sums[2][CPU_BLOCK]; /* in turn */
    struct cpu_result to;
    int turn;
    bool pending;
};

/* How B lies in panels, `panel` bytes apart. */
static inline struct cpu_lines cpu_panel_lines(enum ct_dtype dtype, int64_t panel)
{
    return (struct cpu_lines){.dtype = dtype,
                              .columns = CPU_PANEL,
                              .line = CPU_STEP_BYTES / 2,
                              .row = CPU_LINE_BYTES,
                              .step = CPU_STEP_BYTES,
                              .panel = panel};
}

struct cpu_unit {
    const char *name;
    enum ct_dtype dtype; /* of A and B */
    int rows;            /* of A in one call; fewer only if partial */
    bool partial;
    /* Gradients: how deep packed panels are, and how many columns of B stay in the cache. */
    int depth, columns;
    int block;   /* bytes of packed B that stay in the L2 cache, if k is not split */
    bool beside; /* `complete` rounds a block beside the next one's products */
    /* On each thread around its calls. */
    void (*begin)(void);
    void (*end)(void);
    /* sum[rows][PANEL] (+)= A B */
    void (*multiply)(const struct cpu_panel *a, const char *b, struct cpu_extent extent, float *sum,
                     bool add);
    /* The last product of a block with `rows` rows and PANEL columns: A B, plus sum if there is
       one, goes to the results: at once, or beside the next call, or in cpu_finish_beside. */
    void (*complete)(const struct cpu_panel *a, const char *b, int64_t depth, const float *sum,
                     const struct cpu_result *to, struct cpu_beside *beside);
    /* A = from^T: panels of PANEL columns of `from`, `panel` bytes apart; rows are the depth. */
    void (*pack_transposed)(const struct cpu_packed_from *from, char *to, int64_t panel);
    struct cpu_panel packed; /* strides of what pack_transposed wrote */
};

/* Elements along k in a step. */
static inline int64_t cpu_step_depth(enum ct_dtype dtype)
{
    return CPU_LINE_BYTES / cpu_bytes_of(dtype);
}

/* Rows of the next call, of those that are left of a panel: all calls take about equally many. */
static inline int64_t cpu_unit_rows(const struct cpu_unit *unit, int64_t left)
{
    int64_t calls = (left + unit->rows - 1) / unit->rows;

    return (left + calls - 1) / calls;
}

/* A panel's product in as many calls as the unit needs for its rows. */
static inline void cpu_multiply(const struct cpu_unit *unit, struct cpu_panel a, const char *b,
                                struct cpu_extent extent, float *sum, bool add)
{
    struct cpu_extent part = extent;

    for (int row = 0; row < extent.rows; row += part.rows) {
        part.rows = (int)cpu_unit_rows(unit, extent.rows - row);
        unit->multiply(&a, b, part, sum + row * CPU_PANEL, add);
        a.at += part.rows * a.row;
    }
}

/* The functions of one instruction set (kernels/panel_pack.c and panels.c). */
struct cpu_panels {
    /* B = from, and B = from^T. */
    void (*pack_rows)(const struct cpu_lines *lines, const struct cpu_packed_from *from, char *to);
    void (*pack_columns)(const struct cpu_lines *lines, const struct cpu_packed_from *from,
                         char *to);
    /* A = from^T for the tile units. */
    void (*pack_transposed)(const struct cpu_packed_from *from, char *to, int64_t panel);
    /* The results of sum[rows][PANEL], as far as `columns`. */
    void (*finish)(const float *sum, int64_t rows, int64_t columns, const struct cpu_result *to);
    /* n numbers in bfloat16 as float32. */
    void (*widen)(const void *from, float *to, int64_t n);
    /* The unit "dots", or NULL, and one of multiply-adds. */
    const struct cpu_unit *dots, *multiply_adds;
    /* Dot products per float32 multiply-add in the same time, measured in 0.1 ms; or NULL. */
    double (*dots_rate)(void *context);
};

const struct cpu_panels *cpu_panels(void);

static inline void cpu_finish_beside(struct cpu_beside *b)
{
    if (!b)
        return;
    if (b->pending)
        cpu_panels()->finish(b->sums[b->turn], CPU_PANEL, CPU_PANEL, &b->to);
    b->pending = false;
}

/* Functions of kernels/panel_pack.c. */
void CPU_ISA(cpu_pack_rows)(const struct cpu_lines *lines, const struct cpu_packed_from *from,
                            char *to);
void CPU_ISA(cpu_pack_columns)(const struct cpu_lines *lines, const struct cpu_packed_from *from,
                               char *to);
void CPU_ISA(cpu_pack_transposed)(const struct cpu_packed_from *from, char *to, int64_t panel);

extern const struct cpu_unit cpu_unit_emulated;
#ifdef CPU_WITH_TILES
extern const struct cpu_unit cpu_unit_tiles;
#endif

/* The fastest unit for bfloat16 that this machine has, or NULL. */
const struct cpu_unit *cpu_best_unit(void);
/* The process's unit for products that are computed in a dtype, or NULL if these are oneDNN's. */
const struct cpu_unit *cpu_unit(enum ct_dtype dtype);
/* The same whatever [cpu] products says. There is one for float32, and one for bfloat16 where
   cpu_bf16_native(). */
const struct cpu_unit *cpu_own_unit(enum ct_dtype dtype);

#endif
