/*
 * A strip of a GEMM: some rows of A, as many as a unit takes at a time, against a block of B. Both
 * kinds of GEMMs (product.h) are made of strips.
 */
#ifndef CPU_PRODUCTS_STRIP_H
#define CPU_PRODUCTS_STRIP_H

#include <ctitan/lib/cpu/tasks.h>
#include "product.h"

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t up(int64_t a, int64_t unit)
{
    return (a + unit - 1) / unit * unit;
}

static inline int64_t panels_of(int64_t n)
{
    return (n + CPU_PANEL - 1) / CPU_PANEL;
}

/* Bytes of a panel, so deep. */
static inline int64_t panel_bytes(enum ct_dtype dtype, int64_t depth)
{
    int64_t step = cpu_step_depth(dtype);

    return (depth + step - 1) / step * CPU_STEP_BYTES;
}

/* Bytes of an element that the unit reads. */
static inline int64_t element_bytes(const struct cpu_product *p)
{
    return cpu_bytes_of(p->unit->dtype);
}

/* Bytes between rows of A as it is stored. */
static inline int64_t a_row_bytes(const struct cpu_product *p)
{
    return p->spec.a_row * cpu_bytes_of(p->spec.a_type);
}

/* The operands of a product. */
struct call {
    const struct cpu_product *product;
    const char *a, *b;
    char *c;
};

/* Bytes of a lane for a block's sums, if any wait: k is split, or blocks of C are not whole. m: the
   rows of C. */
static inline int64_t sums_bytes(const struct cpu_product *p, int64_t m)
{
    bool wait = p->spec.k > p->depth || CPU_PANEL % p->unit->rows || m % p->unit->rows ||
                p->spec.n % CPU_PANEL;

    return wait ? p->rows * p->columns * (int64_t)sizeof(float) : 0;
}

/* A thread's state from one strip to the next. */
struct lane {
    char *memory;
    struct cpu_beside *beside; /* at the end of the memory; or NULL */
    const char *b;             /* the block of the last strip */
};

/* Bytes of a lane that has so much memory. */
size_t cpu_lane_bytes(const struct cpu_unit *unit, int64_t memory);
/* lanes: on a line. */
struct lane cpu_lane_of(const struct cpu_product *p, char *lanes, int thread);

struct strip {
    struct cpu_panel a;
    const char *b;
    int64_t panel; /* bytes from one panel of B to the next */
    int64_t row, rows, column, columns, depth;
    float *sums; /* a block for each panel of B */
    bool begun, last;
    bool add;         /* results: to what C has */
    const char *next; /* rows of A that are read soon, or NULL */
};

void cpu_multiply_strip(const struct call *call, const struct strip *s, struct lane *lane);

/* The two kinds, by product.c. p has the unit, the spec, the kind and the threads; of gradients the
   spec is the first one's. memory: on a line. */
void cpu_plan_rows(struct cpu_product *p);
void cpu_run_rows(const struct call *call, char *memory);
void cpu_plan_gradients(struct cpu_product *p, const struct cpu_gradient *each, int count);
size_t cpu_gradients_memory(const struct cpu_product *p, const struct cpu_gradient *each,
                            int count);
void cpu_run_gradients(const struct cpu_product *p, const struct cpu_gradient *each, int count,
                       const void *b, char *memory);

#endif
