/*
 * Products of tiles on tensor cores: bfloat16 operands, float32 sums.
 *
 * A block of GPU_TENSOR_THREADS threads makes C[128, 128] = A[128, depth] B[128, depth]^T. Both
 * operands go through shared memory in slices of DEPTH, STAGES slices under way. A loader says
 * where a thread's 16 bytes of a slice come from. Operands are stored by row, with the depth
 * contiguous, or turned: by depth, with the rows contiguous. Chunks of 8 elements are permuted so
 * that the 8 rows which an 8 x 8 matrix is read from lie in different banks.
 */
#ifndef GPU_TENSOR_CUH
#define GPU_TENSOR_CUH

#include "device.cuh"

#define SIDE GPU_TENSOR_TILE
#define DEPTH 32
#define STAGES 3
#define SLICE (SIDE * DEPTH) /* elements of an operand */

/* ---- the hardware's operations ---- */

/* 16 bytes to shared memory, or zeros if `from` is NULL; `some` is any valid address. */
DEVICE void copy_async(bfloat16 *to, const bfloat16 *from, const bfloat16 *some)
{
#ifdef SIMULATED
    (void)some;
    simulated_copy_async(to, from, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from ? from : some),
                   "r"(from ? 16 : 0)
                 : "memory");
#endif
}

DEVICE void commit_copies()
{
#ifdef SIMULATED
    simulated_commit_copies();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* All groups of copies but the last PENDING ones have arrived; others' need a barrier. */
template <int PENDING> DEVICE void await_copies()
{
#ifdef SIMULATED
    simulated_await_copies(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
#endif
}

/* Four 8 x 8 matrices; lane i gives row i % 8 of matrix i / 8. */
template <bool TRANSPOSED> DEVICE void load_matrices(uint32_t (&r)[4], const bfloat16 *row)
{
#ifdef SIMULATED
    simulated_load_matrices(r, row, TRANSPOSED);
#else
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);

    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
#endif
}

/* c[16, 8] += a[16, 16] b[16, 8] */
DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#ifdef SIMULATED
    simulated_multiply_add(c, a, b0, b1);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* ---- slices in shared memory ---- */

/* The chunk that holds row i at depth k. */
template <bool TURNED> DEVICE int chunk_at(int i, int k)
{
    return TURNED ? k * SIDE + (i / 8 ^ k % 8) * 8 : i * DEPTH + (k / 8 ^ i / 2 % 4) * 8;
}

/* Each thread fetches two chunks of a slice: by row, of rows thread / 4 and thread / 4 + 64;
   turned, of depths thread / 16 and thread / 16 + 16. */
template <typename LOADER> DEVICE void fetch(bfloat16 *slice, const LOADER &from, int64_t depth)
{
    int thread = (int)threadIdx.x;

#pragma unroll
    for (int j = 0; j < 2; j++) {
        int i = LOADER::turned ? thread % 16 * 8 : thread / 4 + j * 64;
        int k = LOADER::turned ? thread / 16 + j * 16 : thread % 4 * 8;

        copy_async(slice + chunk_at<LOADER::turned>(i, k), from.at(j, depth), from.some);
    }
}

/* Rows [i, i + 16) at depths [k, k + 16), as an operand of multiply_add: of A {low rows and depths,
   high rows, high depths, both high}; of B the first eight columns have 0 and 2, the others 1 and
   3. */
template <bool TURNED>
DEVICE void load_operand(uint32_t (&r)[4], const bfloat16 *slice, int i, int k)
{
    int lane = (int)threadIdx.x % 32, matrix = lane / 8, row = lane % 8;

    if (TURNED)
        load_matrices<true>(r,
                            slice + chunk_at<true>(i + matrix % 2 * 8, k + matrix / 2 * 8 + row));
    else
        load_matrices<false>(r,
                             slice + chunk_at<false>(i + matrix % 2 * 8 + row, k + matrix / 2 * 8));
}

/* ---- loaders ---- */

/* Rows with contiguous depths; NULL: there is none. The caller says which are this thread's. */
struct loader_by_row {
    enum { turned = 0 };
    const bfloat16 *row[2], *some;
    int64_t depth;

    DEVICE_MEMBER const bfloat16 *at(int j, int64_t from) const
    {
        int64_t k = from + threadIdx.x % 4 * 8;

        return row[j] && k < depth ? row[j] + k : nullptr;
    }
};

/* x[depth][rows], from `row` on, a multiple of 8, as are the rows. */
struct loader_by_depth {
    enum { turned = 1 };
    const bfloat16 *x, *some;
    int64_t stride, row, rows, depth;
    const int32_t *order; /* depth k is that of token order[k] / choices; NULL: of k */
    int32_t choices;

    DEVICE_MEMBER const bfloat16 *at(int j, int64_t from) const
    {
        int64_t k = from + threadIdx.x / 16 + j * 16, i = row + threadIdx.x % 16 * 8;

        if (i >= rows || k >= depth)
            return nullptr;
        return x + (order ? order[k] / choices : k) * stride + i;
    }
};

/* ---- the product ---- */

/* What a thread sums: 4 x 4 tiles of 16 x 8 in the warp's 64 x 32. */
typedef float tile_sums[4][4][4];

struct tile_place {
    int row, column;
};

/* Where the warp's part of the tile begins. */
DEVICE tile_place warp_place()
{
    int warp = (int)threadIdx.x / 32;
    tile_place p = {warp / 4 * 64, warp % 4 * 32};

    return p;
}

/* Where elements 2 half and 2 half + 1 of tile (i, j) are: two neighbours in a row. */
DEVICE tile_place pair_place(int i, int j, int half)
{
    int lane = (int)threadIdx.x % 32;
    tile_place p = warp_place();

    p.row += i * 16 + half * 8 + lane / 4;
    p.column += j * 8 + lane % 4 * 2;
    return p;
}

template <bool A_TURNED, bool B_TURNED>
DEVICE void multiply_slice(tile_sums &c, const bfloat16 *a, const bfloat16 *b)
{
    tile_place at = warp_place();

#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t x[4][4], y[2][4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            load_operand<A_TURNED>(x[i], a, at.row + i * 16, k);
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_operand<B_TURNED>(y[j], b, at.column + j * 16, k);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                multiply_add(c[i][j], x[i], y[j / 2][j % 2], y[j / 2][j % 2 + 2]);
    }
}

/* Of A and B, in turn. */
typedef vector<bfloat16, 8> tensor_slices[2 * STAGES * SLICE / 8];

/* c += A B^T. All threads are done with the slices before and after. */
template <typename A, typename B>
DEVICE void multiply_tile(tile_sums &c, tensor_slices &slices, const A &a, const B &b,
                          int64_t depth)
{
    bfloat16 *shared = slices[0].at;
    int64_t steps = (depth + DEPTH - 1) / DEPTH;

#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) {
            fetch(shared + 2 * s * SLICE, a, s * DEPTH);
            fetch(shared + (2 * s + 1) * SLICE, b, s * DEPTH);
        }
        commit_copies();
    }
    for (int64_t s = 0, slot = 0; s < steps; s++, slot = slot + 1 == STAGES ? 0 : slot + 1) {
        int64_t next = s + STAGES - 1;
        bfloat16 *here = shared + 2 * slot * SLICE;
        bfloat16 *free = shared + 2 * (slot ? slot - 1 : STAGES - 1) * SLICE;

        await_copies<STAGES - 2>();
        __syncthreads();
        if (next < steps) {
            fetch(free, a, next * DEPTH);
            fetch(free + SLICE, b, next * DEPTH);
        }
        commit_copies();
        multiply_slice<A::turned, B::turned>(c, here, here + SLICE);
    }
    await_copies<0>();
    __syncthreads();
}

#endif
