/*
 * Operands of products on tensor cores on their way to shared memory, in chunks of 8 elements.
 *
 * A loader says where a chunk of an operand comes from: chunk number j of this thread, whose first
 * element is in row i at depth k; NULL: zeros. Operands are stored by row, with the depth
 * contiguous, or turned: by depth, with the rows contiguous.
 */
#ifndef GPU_COPIES_CUH
#define GPU_COPIES_CUH

#include "device.cuh"

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

/* ---- loaders ---- */

/* N rows of this thread, with contiguous depths; NULL: there is none. */
template <int N> struct loader_by_row {
    enum { turned = 0 };
    const bfloat16 *row[N], *some; /* some: any valid address */
    int64_t depth;

    DEVICE_MEMBER const bfloat16 *at(int j, int, int64_t k) const
    {
        return row[j] && k < depth ? row[j] + k : nullptr;
    }
};

/* x[depth][rows], from `row` on, a multiple of 8, as are the rows. */
struct loader_by_depth {
    enum { turned = 1 };
    const bfloat16 *x, *some;
    int64_t stride, row, rows, depth;
    const int32_t *tokens; /* depth k is that of tokens[k]; NULL: of k */

    DEVICE_MEMBER const bfloat16 *at(int, int i, int64_t k) const
    {
        if (row + i >= rows || k >= depth)
            return nullptr;
        return x + (tokens ? tokens[k] : k) * stride + row + i;
    }
};

#endif
