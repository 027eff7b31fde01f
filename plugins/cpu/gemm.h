/*
 * Matrix products: C = A B, or C += A B, through oneDNN or own kernels (products/).
 *
 * Operands are float32 or bfloat16 in any mixture. bfloat16 is passed to the hardware directly
 * where that is faster (cpu_bf16_native). Elsewhere it is widened to float32 in shards that stay in
 * the cache, and the result is rounded once. Both give products of bfloat16 numbers summed in
 * float32.
 *
 * Products and packings are prepared once per distinct spec and kept for the life of the process.
 * Call prepare and run on the thread that drives the run; they are not reentrant.
 */
#ifndef CPU_GEMM_H
#define CPU_GEMM_H

#include <assert.h>

#include "cpu.h"
#include "panel_pack.h"

/* Element (i, j) of A is at i * a_row + j * a_col; one of the two strides is 1. The same for B. */
struct cpu_gemm_spec {
    int64_t m, n, k; /* A[m, k], B[k, n], C[m, n] */
    int64_t a_row, a_col;
    int64_t b_row, b_col; /* both 0: packed for b_use and b_for */
    int64_t c_row;
    enum ct_dtype a_type, b_type, c_type;
    enum cpu_use b_use;
    enum ct_dtype b_for; /* dtype of the activations */
    int16_t accumulate;  /* 0 or 1 */
    int16_t own; /* 1: run by the kernels of products/, not by oneDNN; set by cpu_gemm_prepare */
};
_Static_assert(sizeof(struct cpu_gemm_spec) == 8 * sizeof(int64_t) + 6 * sizeof(int),
               "specs are compared by their bytes, so they have no padding");

/* The rows of a tensor that ct_tensor_as_matrix accepts. */
static inline struct ct_matrix cpu_rows_of(const struct ct_tensor *t)
{
    struct ct_matrix rows = {0};
    bool ok = ct_tensor_as_matrix(t, &rows);

    assert(ok);
    (void)ok;
    return rows;
}

/* The dtype in which elements are multiplied. */
static inline enum ct_dtype cpu_gemm_dtype(const struct cpu_gemm_spec *s)
{
    return s->a_type == CT_BF16 && s->b_type == CT_BF16 && cpu_bf16_native() ? CT_BF16 : CT_F32;
}

struct cpu_gemm;

/* CT_EINVAL: oneDNN failed; the message has its status and the spec. */
int cpu_gemm_prepare(const struct cpu_gemm_spec *spec, struct cpu_gemm **gemm);
/* The same, by the way that spec->own says. */
int cpu_gemm_prepare_as(const struct cpu_gemm_spec *spec, struct cpu_gemm **gemm);
/* Bytes. */
size_t cpu_gemm_workspace(const struct cpu_gemm *gemm);
int cpu_gemm_run(struct cpu_gemm *gemm, const void *a, const void *b, void *c, void *workspace);
/* Gradients of weights of one x = B, one for each product. Own ones run together, and read x
   once. count: at most CPU_MAX_WEIGHTS. */
#define CPU_MAX_WEIGHTS 32
struct cpu_gemm_operands {
    struct cpu_gemm *gemm;
    const void *a;
    void *c;
};
size_t cpu_gemm_gradients_workspace(struct cpu_gemm *const *gemm, int count);
int cpu_gemm_run_gradients(const struct cpu_gemm_operands *each, int count, const void *b,
                           void *workspace);

/*
 * Packed B: the layout that oneDNN, or the own kernels, want for one use of a weight w[n, k] with
 * activations of a dtype. Elements have the type cpu_packed_type(dtype), in which such products are
 * computed; they are numbers of the dtype, so float32 weights of bfloat16 products are rounded.
 * Weights that share k, at most CPU_MAX_WEIGHTS, may be stacked in one packed matrix.
 */
#define CPU_USES 2 /* CPU_FORWARD, CPU_BACKWARD */

struct cpu_packing_spec {
    bool use[CPU_USES];
    int count;
    const int64_t *n, *stride; /* per weight: its rows; elements between row starts */
    int64_t k;
    enum ct_dtype from, dtype; /* of the weights as they are stored, and of the activations */
};

struct cpu_packing;

enum ct_dtype cpu_packed_type(enum ct_dtype dtype);
/* Whether weights so stored are rounded to bfloat16, and stay float32. */
bool cpu_packing_rounds(enum ct_dtype from, enum ct_dtype dtype);
/* Bytes of the packed w[n, k]. */
int cpu_packed_bytes(enum cpu_use use, int64_t n, int64_t k, enum ct_dtype dtype, size_t *bytes);
/* CT_EINVAL: weights do not fit in one matrix: an n before the last is no multiple of the block. */
int cpu_packing_prepare(const struct cpu_packing_spec *spec, struct cpu_packing **packing);
/* packed: by use. */
int cpu_packing_run(struct cpu_packing *packing, const void *const *weights, void *const *packed);

/* Create the engine, restricted to ct_cpu_isa(). Must be called first. */
int cpu_gemm_start(void);

#endif
