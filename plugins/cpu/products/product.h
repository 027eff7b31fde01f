/*
 * Products of matrices by own kernels (unit.h): C[m, n] (+)= A B, summed in float32. A unit for
 * float32 takes bfloat16 as well, and widens it where it copies or packs.
 *
 * Two kinds, as the linear layers need them:
 *   rows      A[m, k] in rows, B packed in panels once per step: y = x w^T and dx = dy w
 *   gradient  A = dy^T and B = x, both in rows as they lie: dw = dy^T x. Nothing is transposed in
 *             memory: chunks of rows are packed into the cache. Several with one x pack it once.
 */
#ifndef CPU_PRODUCTS_PRODUCT_H
#define CPU_PRODUCTS_PRODUCT_H

#include "../gemm.h"
#include "unit.h"

struct cpu_product {
    const struct cpu_unit *unit;
    struct cpu_gemm_spec spec;
    bool gradient;
    int threads;
    int64_t rows, columns, depth; /* a block: of C, and of k */
    int64_t by_rows, by_columns;  /* parts of C: each is a task, */
    int64_t down, across;         /* or for products of rows so many tasks, */
    int64_t task_rows;            /* of so many rows */
    bool shared_a;                /* gradient: all threads pack A, as they pack B */
    int64_t packed;               /* gradient: rows of both operands that are packed at a time */
    size_t lane_bytes;
};

/* Whether rows of A that lie so far apart, in bytes, are read in place. Those that are a multiple
   of 2 KB apart fall into a few sets of the L1 cache: they are copied. */
static inline bool cpu_in_place(int64_t row)
{
    return row % 2048 || row == 2048;
}

/* Whether a unit multiplies such matrices. */
bool cpu_product_takes(const struct cpu_unit *unit, const struct cpu_gemm_spec *spec);
/* Whether it does once B is packed. */
bool cpu_product_packs(const struct cpu_unit *unit, const struct cpu_gemm_spec *spec);
void cpu_product_plan(const struct cpu_unit *unit, const struct cpu_gemm_spec *spec, int threads,
                      struct cpu_product *product);
size_t cpu_product_workspace(const struct cpu_product *product);
void cpu_product_run(const struct cpu_product *product, const void *a, const void *b, void *c,
                     void *workspace);

/* One of several gradients of one x: their n, k, types and strides of B are the same. */
struct cpu_gradient {
    struct cpu_gemm_spec spec;
    const void *a;
    void *c;
};

/* count: at most CPU_MAX_WEIGHTS. No bit of a gradient depends on the others. */
size_t cpu_gradients_workspace(const struct cpu_unit *unit, int threads,
                               const struct cpu_gradient *each, int count);
void cpu_gradients_run(const struct cpu_unit *unit, int threads, const struct cpu_gradient *each,
                       int count, const void *b, void *workspace);

/* Bytes of w[n, k] packed for a use and a unit of a dtype, and how it lies in them. */
size_t cpu_product_packed_bytes(enum cpu_use use, int64_t n, int64_t k, enum ct_dtype dtype);
struct cpu_lines cpu_product_lines(enum cpu_use use, int64_t n, int64_t k, enum ct_dtype dtype);

#endif
