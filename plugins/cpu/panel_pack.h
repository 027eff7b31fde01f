/*
 * Matrices B[k][n] packed in lines of 64 bytes, as products read them.
 *
 * A line holds 16 columns of a row or, in bfloat16, of a pair of rows: element [2 c + i] is
 * B(2 pair + i, c). A step has 16 such rows of a panel, which is some columns wide. What lies
 * beyond the matrix in its last panel and its last step is zero. Packed B has one half of a panel
 * after the other, packed A the lines of a row side by side (products/unit.h).
 *
 * A weight w[n, k] is B = w^T of forward products, and B = w of backward ones. Weights that share k
 * may lie one below the other in one packed matrix. They are packed in blocks, which begin at a
 * whole panel and step for both uses, so that a block that is in a cache can be packed for both.
 */
#ifndef CPU_PANEL_PACK_H
#define CPU_PANEL_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ctitan/lib/cpu.h>

#define CPU_LINE 16      /* columns */
#define CPU_PACK_ROWS 64 /* of a weight: whole panels and steps */
#define CPU_PACK_COLUMNS 512

/* Bytes of a float32 or bfloat16 element. */
static inline int64_t cpu_bytes_of(enum ct_dtype dtype)
{
    return dtype == CT_F32 ? 4 : 2;
}

/* The first whole line of some memory. */
static inline char *cpu_first_line(void *memory)
{
    return (char *)(((uintptr_t)memory + CPU_LINE_BYTES - 1) & ~(uintptr_t)(CPU_LINE_BYTES - 1));
}

struct cpu_lines {
    enum ct_dtype dtype;            /* float32 or bfloat16 */
    bool round;                     /* float32 elements are rounded to bfloat16 */
    bool stream;                    /* written past the caches: not read soon, or by others */
    int columns;                    /* of a panel; CPU_PACK_ROWS is a multiple */
    int64_t line, row, step, panel; /* bytes from one to the next */
};

/* A matrix that is packed, in rows of contiguous elements: float32 or bfloat16. */
struct cpu_packed_from {
    enum ct_dtype dtype;
    const void *at;
    int64_t stride; /* elements between rows */
    int64_t rows, columns;
};

/* How a weight w[n, k] is used: B = w^T[k, n] or B = w[n, k]. */
enum cpu_use { CPU_FORWARD, CPU_BACKWARD };

/* A packed matrix. */
struct cpu_packed_to {
    enum cpu_use use;
    struct cpu_lines lines;
    char *at; /* on 64 bytes */
};

/* Rows of B in a step. */
static inline int64_t cpu_lines_depth(const struct cpu_lines *lines)
{
    return CPU_LINE_BYTES / cpu_bytes_of(lines->dtype);
}

/* Pack weights that lie one below the other to several places at once, on all threads. */
void cpu_pack_stack(const struct cpu_packed_to *to, int places,
                    const struct cpu_packed_from *weight, int weights);

#endif
