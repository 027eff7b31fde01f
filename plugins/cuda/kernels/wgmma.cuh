/*
 * Products of tiles on Hopper's tensor cores (wgmma): bfloat16 operands, or codes of 8 bits (e4m3);
 * float32 sums.
 *
 * A block of two warpgroups makes C[128, COLUMNS] = A[128, depth] B[COLUMNS, depth]^T, 64 rows
 * each. Both operands go through shared memory in slices of WGMMA_DEPTH. The tensor cores work on
 * one slice while the threads ask for a later one; a slot is filled again when both warpgroups have
 * done with what was in it, two slices ago.
 *
 * Operands lie in shared memory as the hardware reads them, in rows of 128 bytes, whose chunks of
 * 16 bytes change places with the row's number (the 128-byte swizzle). By row: 64 depths of a row.
 * Turned: 64 rows at a depth, then the next depth; the next 64 rows follow after all depths.
 *
 * Codes are copied in pairs, as if these were bfloat16, and lie as that does by row: a slice has
 * 128 depths of codes. The hardware takes no turned codes.
 */
#ifndef GPU_WGMMA_CUH
#define GPU_WGMMA_CUH

#include "copies.cuh"

/* The body of a kernel by wgmma: elsewhere it is empty, and is not launched. */
#if defined(SIMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ON_HOPPER(...) __VA_ARGS__
#else
#define ON_HOPPER(...)
#endif

#define WGMMA_DEPTH 64
#define WGMMA_EIGHT 1024                           /* bytes of eight rows of 128 bytes */
#define WGMMA_ATOM (WGMMA_DEPTH / 8 * WGMMA_EIGHT) /* turned: of 64 rows at all depths */

/* ---- the hardware's operations ---- */

DEVICE uint64_t shared_address(const void *p)
{
#ifdef SIMULATED
    return (uint64_t)((const unsigned char *)p - simulated_shared);
#else
    return __cvta_generic_to_shared(p);
#endif
}

/* Where and how an operand of 16 depths lies (PTX ISA, matrix descriptors for wgmma): its address,
   the distance from 64 turned rows to the next (unused where stored by row), the distance from 8
   rows or turned depths to the next, all in 16 bytes, and the swizzle of 128 bytes. */
template <bool TURNED> DEVICE uint64_t wgmma_operand(const bfloat16 *p)
{
    uint64_t next_rows = TURNED ? WGMMA_ATOM : 16;

    return shared_address(p) >> 4 | next_rows >> 4 << 16 | (uint64_t)(WGMMA_EIGHT >> 4) << 32 |
           1ull << 62;
}

#define FOUR(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define SIXTY_FOUR(i) SIXTEEN(i), SIXTEEN(i + 16), SIXTEEN(i + 32), SIXTEEN(i + 48)
#define FIRST_SUMS                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* c[64, 256] += a[64, 16] b[256, 16]^T, by a warpgroup, some time before it is awaited */
template <bool A_TURNED, bool B_TURNED> struct wgmma_of_bfloat16 {
    enum { a_turned = A_TURNED, b_turned = B_TURNED };

    DEVICE_MEMBER static void multiply(float (&c)[128], uint64_t a, uint64_t b, bool)
    {
#ifdef SIMULATED
        simulated_wgmma(c, a, b, A_TURNED, B_TURNED);
#else
        asm volatile(
            "{ .reg .pred add; setp.ne.b32 add, %130, 0; "
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FIRST_SUMS
            ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
            "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
            "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "
            "%124, %125, %126, %127}, %128, %129, add, 1, 1, %131, %132; }"
            : SIXTY_FOUR(0), SIXTY_FOUR(64)
            : "l"(a), "l"(b), "r"(1), "n"((int)A_TURNED), "n"((int)B_TURNED));
#endif
    }
};

/* c[64, 128] = a[64, 32] b[128, 32]^T of codes, or, where it adds, + c; likewise */
struct wgmma_of_codes {
    enum { a_turned = 0, b_turned = 0 };

    DEVICE_MEMBER static void multiply(float (&c)[64], uint64_t a, uint64_t b, bool adds)
    {
#ifdef SIMULATED
        simulated_wgmma_codes(c, a, b, adds);
#else
        asm volatile("{ .reg .pred add; setp.ne.b32 add, %66, 0; "
                     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" FIRST_SUMS
                     "}, %64, %65, add, 1, 1; }"
                     : SIXTY_FOUR(0)
                     : "l"(a), "l"(b), "r"((int)adds));
#endif
    }
};
#undef FIRST_SUMS
#undef SIXTY_FOUR
#undef SIXTEEN
#undef FOUR

/* Before a warpgroup's first product after its sums were touched. */
DEVICE void wgmma_begin()
{
#ifndef SIMULATED
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE void wgmma_commit()
{
#ifdef SIMULATED
    simulated_commit_products();
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* All groups of this warpgroup's products but the last PENDING ones are done. */
template <int PENDING> DEVICE void wgmma_await()
{
#ifdef SIMULATED
    simulated_await_products(PENDING);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(PENDING) : "memory");
#endif
}

/* The sums are not touched earlier, nor later, than here. */
template <int N> DEVICE void wgmma_hold(float (&c)[N])
{
#ifndef SIMULATED
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(c[i])::"memory");
#else
    (void)c;
#endif
}

/* Shows this thread's writes to shared memory to the tensor cores, after a barrier. */
DEVICE void show_to_tensor_cores()
{
#ifndef SIMULATED
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* ---- slices in shared memory ---- */

/* The dynamic shared memory of a block, from where the swizzle's pattern begins. */
DEVICE bfloat16 *wgmma_slots()
{
    DYNAMIC_SHARED(bfloat16, all);

    return all + (-shared_address(all) & (WGMMA_EIGHT - 1)) / sizeof(bfloat16);
}

/* The element where the chunk of row i at depth k begins. */
template <bool TURNED> DEVICE int wgmma_chunk(int i, int k)
{
    return TURNED ? i / 64 * (WGMMA_ATOM / 2) + k * 64 + (i % 64 / 8 ^ k % 8) * 8
                  : i * 64 + (k / 8 ^ i % 8) * 8;
}

/* ---- the product ---- */

/* This warpgroup's rows of a slice, by M. Sums that do not go on begin anew. */
template <typename M, int N> DEVICE void wgmma_slice(float (&c)[N], const bfloat16 *slot, bool on)
{
    const bfloat16 *mine = slot + threadIdx.x / 128 * (WGMMA_ATOM / 2); /* 64 rows either way */
    const bfloat16 *others = slot + GPU_WGMMA_ROWS * WGMMA_DEPTH;

    wgmma_begin();
#pragma unroll
    for (int k = 0; k < WGMMA_DEPTH; k += 16)
        M::multiply(c, wgmma_operand<M::a_turned>(mine + (M::a_turned ? k * 64 : k)),
                    wgmma_operand<M::b_turned>(others + (M::b_turned ? k * 64 : k)), on || k > 0);
    wgmma_commit();
}

/* Tiles of so many columns. Slices are asked for so far AHEAD; BESIDE: bytes that a slot has behind
   them. */
template <int COLUMNS, int AHEAD, int BESIDE> struct wgmma_shape {
    enum {
        rows = GPU_WGMMA_ROWS,
        columns = COLUMNS,
        depth = WGMMA_DEPTH,
        ahead = AHEAD,
        slots = AHEAD + 2,
        slot = (rows + columns) * depth + BESIDE / 2, /* elements */
        bytes = 2 * slots * slot + WGMMA_EIGHT,
        a_chunks = rows * depth / 8 / GPU_TENSOR_THREADS,
        b_chunks = columns * depth / 8 / GPU_TENSOR_THREADS
    };
    typedef float sums[COLUMNS / 2];
    typedef bfloat16 *shared;

    /* A warp reads runs of 128 bytes, or whole depths of the turned. */
    template <int TURNED, int ROWS> DEVICE_MEMBER static chunk_place chunk(int j)
    {
        const int across = (TURNED ? ROWS : depth) / 8, down = GPU_TENSOR_THREADS / across;
        int one = (int)threadIdx.x % across * 8, other = (int)threadIdx.x / across + j * down;
        chunk_place by_row = {other, one}, turned = {one, other};

        return TURNED ? turned : by_row;
    }

    template <int TURNED> DEVICE_MEMBER static int element(int row, int k)
    {
        return wgmma_chunk<TURNED>(row, k);
    }

    /* Rows, or depths, are 64 elements apart. */
    template <int TURNED, int ROWS> DEVICE_MEMBER static int distance()
    {
        return GPU_TENSOR_THREADS / ((TURNED ? ROWS : depth) / 8) * 64;
    }

    DEVICE_MEMBER static bfloat16 *slot_of(bfloat16 *all, int s)
    {
        return all + s % slots * slot;
    }

    /* Slice s, when all threads see it and are done with the one before the last. */
    DEVICE_MEMBER static const bfloat16 *arrived(bfloat16 *all, int s)
    {
        await_copies<ahead - 1>();
        show_to_tensor_cores();
        __syncthreads();
        return slot_of(all, s);
    }

    /* Where sums 4 j + 2 half and the next are. */
    DEVICE_MEMBER static int row_at(int half)
    {
        int thread = (int)threadIdx.x;

        return thread / 32 * 16 + half * 8 + thread % 32 / 4;
    }

    DEVICE_MEMBER static int column_at(int j)
    {
        return j * 8 + (int)threadIdx.x % 4 * 2;
    }

    template <typename F> DEVICE_MEMBER static void each_pair(sums &c, const F &f)
    {
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                f(row_at(half), column_at(j), c + 4 * j + 2 * half);
    }
};

/* Exchanges among the four lanes that hold 32 columns of a row, two of every eight: each gets
   eight in a row. */
DEVICE void turn_quad(uint32_t (&r)[4])
{
    int lane = (int)threadIdx.x;

#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & bit)) {
                bool high = lane & bit;
                uint32_t got = __shfl_xor_sync(ALL_LANES, high ? r[i] : r[i | bit], bit);

                if (high)
                    r[i] = got;
                else
                    r[i | bit] = got;
            }
}

/* bfloat16, as the kernels of experts use it (experts_tiles.cuh). */
struct wgmma_tiles : wgmma_shape<GPU_WGMMA_COLUMNS, 2, 0> {
    template <typename A, typename B>
    DEVICE_MEMBER static void multiply(sums &c, bfloat16 *all, A a, B b, int whole, int parts)
    {
        int each = (whole + depth - 1) / depth, steps = each * parts;

        auto ask = [&](int s) {
            if (s < steps)
                fetch_both<wgmma_tiles>(slot_of(all, s), a, b, s, each, whole);
            commit_copies();
        };
        if (steps)
            look_up_first<wgmma_tiles>(a, b, whole);
#pragma unroll
        for (int s = 0; s < ahead; s++)
            ask(s);
        wgmma_hold(c);
        for (int s = 0; s < steps; s++) {
            wgmma_slice<wgmma_of_bfloat16<A::turned, B::turned>>(c, arrived(all, s), true);
            ask(s + ahead);
            wgmma_await<1>();
        }
        wgmma_await<0>();
        wgmma_hold(c);
        await_copies<0>();
        __syncthreads();
    }

    /* ---- two products side by side: 128 columns of the first, then the same of the second ---- */

    struct gated_row {
        int row, up;
    };

    DEVICE_MEMBER static gated_row gated(int i)
    {
        gated_row r = {i % (columns / 2), i >= columns / 2};

        return r;
    }

    template <typename F> DEVICE_MEMBER static void each_gated(sums &c, const F &f)
    {
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                f(row_at(half), column_at(j), c + 4 * j + 2 * half, c + 4 * (j + 16) + 2 * half);
    }

    /* ---- results in bfloat16 ---- */

    /* Stores sums 4 j and on, j from `begin` to `end`; the first is column 0. */
    template <typename TO>
    DEVICE_MEMBER static void store_range(sums &c, int begin, int end, const TO &to)
    {
#pragma unroll
        for (int j = begin; j < end; j += 4)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                union {
                    uint32_t words[4];
                    vector<bfloat16, 8> eight;
                } x;
                bfloat16 *at = to(row_at(half), (j - begin + (int)threadIdx.x % 4) * 8);

#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float *pair = c + 4 * (j + i) + 2 * half;

                    x.words[i] = from_float<bfloat16>(pair[0]).bits |
                                 (uint32_t)from_float<bfloat16>(pair[1]).bits << 16;
                }
                turn_quad(x.words);
                if (at)
                    *(vector<bfloat16, 8> *)at = x.eight;
            }
    }

    template <typename TO> DEVICE_MEMBER static void store_all(sums &c, const TO &to)
    {
        store_range(c, 0, 32, to);
    }

    template <bool UP, typename TO> DEVICE_MEMBER static void store_half(sums &c, const TO &to)
    {
        store_range(c, UP ? 16 : 0, UP ? 32 : 16, to);
    }
};

static_assert((int)wgmma_tiles::bytes == GPU_WGMMA_SHARED, "slots");

#endif
