/*
 * Matrix products: C = A B, or C += A B, through oneDNN.
 *
 * Operands are float32 or bfloat16 in any mixture. bfloat16 goes to the hardware as it is where
 * that pays (cpu_bf16_native); elsewhere it is widened to float32 on the way, in pieces that stay
 * in the cache, and the result is rounded once. Both give products of bfloat16 numbers summed in
 * float32.
 *
 * Products are prepared once per distinct spec and kept for the life of the process. Prepare and
 * run on the thread that drives the run; a product is not reentrant.
 */
#ifndef CPU_GEMM_H
#define CPU_GEMM_H

#include "cpu.h"

/* Element (i, j) of A lies at i * a_row + j * a_col; one of the two is 1. The same for B. */
struct cpu_gemm_spec {
    int64_t m, n, k; /* A[m, k], B[k, n], C[m, n] */
    enum ct_dtype a_type, b_type, c_type;
    int64_t a_row, a_col;
    int64_t b_row, b_col; /* both 0: packed, see below */
    int64_t c_row;
    bool accumulate;
};

struct cpu_gemm;

/* CT_EINVAL: oneDNN's own status, with the spec. */
int cpu_gemm_prepare(const struct cpu_gemm_spec *spec, struct cpu_gemm **gemm);
size_t cpu_gemm_workspace(const struct cpu_gemm *gemm);
int cpu_gemm_run(struct cpu_gemm *gemm, const void *a, const void *b, void *c, void *workspace);

/*
 * Packed B: the layout that oneDNN likes best, made by cpu_pack_run from the matrix as it is
 * stored. The elements are of cpu_packed_type(): what the product computes in. The layout depends
 * on k, n and the type only, and joins B's that lie side by side.
 */
enum ct_dtype cpu_packed_type(enum ct_dtype dtype);
int cpu_packed_bytes(int64_t k, int64_t n, enum ct_dtype dtype, size_t *bytes);

/* Called when the device opens: the engine, held to cpu_isa(). CT_ECONFIG: this oneDNN or CPU
 * cannot. */
int cpu_gemm_start(void);

#endif
