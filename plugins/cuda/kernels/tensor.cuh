/*
 * Products of tiles on tensor cores: bfloat16 operands, float32 sums. For all devices, by mma.sync;
 * Hopper's own are in wgmma.cuh.
 *
 * A block of GPU_TENSOR_THREADS threads makes C[128, 128] = A[128, depth] B[128, depth]^T. Both
 * operands go through shared memory in slices of DEPTH, STAGES slices under way. Chunks of 8
 * elements are permuted so that the 8 rows which an 8 x 8 matrix is read from lie in different
 * banks.
 */
#ifndef GPU_TENSOR_CUH
#define GPU_TENSOR_CUH

#include "copies.cuh"

#define SIDE GPU_TENSOR_TILE
#define DEPTH 32
#define STAGES 3
#define SLICE (SIDE * DEPTH) /* elements of an operand */

/* ---- the hardware's operations ---- */

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

/* ---- the product ---- */

/* A thread's sums: 4 x 4 tiles of 16 x 8 in the warp's 64 x 32. */
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

/* Slices of A and B, in turn. */
typedef vector<bfloat16, 8> tensor_slices[2 * STAGES * SLICE / 8];

/* As the kernels of experts use it (experts_tiles.cuh). */
struct mma_tiles {
    enum { rows = SIDE, columns = SIDE, depth = DEPTH, a_chunks = 2, b_chunks = 2 };
    typedef tile_sums sums;
    typedef tensor_slices shared;

    template <int TURNED, int ROWS> DEVICE_MEMBER static chunk_place chunk(int j)
    {
        int thread = (int)threadIdx.x;
        chunk_place by_row = {thread / 4 + j * 64, thread % 4 * 8};
        chunk_place turned = {thread % 16 * 8, thread / 16 + j * 16};

        return TURNED ? turned : by_row;
    }

    template <int TURNED> DEVICE_MEMBER static int element(int row, int k)
    {
        return chunk_at<TURNED>(row, k);
    }

    template <int TURNED, int ROWS> DEVICE_MEMBER static int distance()
    {
        return TURNED ? 16 * SIDE : 64 * DEPTH;
    }

    /* `steps` slices of A and B come into shared memory, STAGES - 1 ahead; use(s, a, b) when slice
       s is there. All threads are done with the slices before. */
    template <typename A, typename B, typename USE>
    DEVICE_MEMBER static void each_slice(shared &slices, A &a, B &b, int steps, int each, int whole,
                                         const USE &use)
    {
        bfloat16 *shared = slices[0].at;

#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) {
            if (s < steps)
                fetch_both<mma_tiles>(shared + 2 * s * SLICE, a, b, s, each, whole);
            commit_copies();
        }
        for (int s = 0, slot = 0; s < steps; s++, slot = slot + 1 == STAGES ? 0 : slot + 1) {
            bfloat16 *here = shared + 2 * slot * SLICE;
            bfloat16 *free = shared + 2 * (slot ? slot - 1 : STAGES - 1) * SLICE;

            await_copies<STAGES - 2>();
            __syncthreads();
            if (s + STAGES - 1 < steps)
                fetch_both<mma_tiles>(free, a, b, s + STAGES - 1, each, whole);
            commit_copies();
            use(s, here, here + SLICE);
        }
        await_copies<0>();
    }

    /* c += A B^T, of so many parts (1 or 2). All threads are done with the slices before and after.
     */
    template <typename A, typename B>
    DEVICE_MEMBER static void multiply(sums &c, shared &slices, A a, B b, int whole, int parts)
    {
        int each = (whole + depth - 1) / depth, steps = each * parts;

        if (steps)
            look_up_first<mma_tiles>(a, b, whole);
        each_slice(slices, a, b, steps, each, whole,
                   [&](int, const bfloat16 *of_a, const bfloat16 *of_b) {
                       multiply_slice<A::turned, B::turned>(c, of_a, of_b);
                   });
        __syncthreads();
    }

    /* f(row, column, x): x[0] is the sum there, x[1] its neighbour's. */
    template <typename F> DEVICE_MEMBER static void each_pair(sums &c, const F &f)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    tile_place p = pair_place(i, j, half);

                    f(p.row, p.column, c[i][j] + 2 * half);
                }
    }

    /* ---- two products side by side, of the same columns: those of a warp are 16 of each ---- */

    struct gated_row {
        int row, up; /* up: of the second */
    };

    /* The meaning of row i of the operand B. */
    DEVICE_MEMBER static gated_row gated(int i)
    {
        gated_row r = {i / 32 * 16 + i % 16, i % 32 >= 16};

        return r;
    }

    /* f(row, column, g, u), as each_pair */
    template <typename F> DEVICE_MEMBER static void each_gated(sums &c, const F &f)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    tile_place p = pair_place(i, j, half);

                    f(p.row, gated(p.column).row, c[i][j] + 2 * half, c[i][j + 2] + 2 * half);
                }
    }

    /* ---- results in bfloat16: to(row, column) says where; NULL: nowhere ---- */

    template <typename TO> DEVICE_MEMBER static void store_all(sums &c, const TO &to)
    {
        each_pair(c, [&](int row, int column, const float *x) { store_at(to(row, column), x); });
    }

    template <bool UP, typename TO> DEVICE_MEMBER static void store_half(sums &c, const TO &to)
    {
        each_gated(c, [&](int row, int column, const float *g, const float *u) {
            store_at(to(row, column), UP ? u : g);
        });
    }

    DEVICE_MEMBER static void store_at(bfloat16 *to, const float *x)
    {
        float pair[2] = {x[0], x[1]};

        if (to)
            store<2>(to, pair);
    }
};

#endif
