/*
 * Operands of products on tensor cores on their way to shared memory, in chunks of 8 elements.
 *
 * A loader says where a chunk of an operand comes from: chunk number j of this thread, whose first
 * element is in row i at depth k. Operands are stored by row, with the depth contiguous, or turned:
 * by depth, with the rows contiguous. Rows that there are not are read from others: their sums are
 * not used. The product may have two parts, one depth after the other.
 */
#ifndef GPU_COPIES_CUH
#define GPU_COPIES_CUH

#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

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

/* 4 bytes to shared memory. */
DEVICE void copy_word_async(float *to, const float *from)
{
#ifdef SIMULATED
    simulated_copy_async(to, from, 4);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#endif
}

/* A place in shared memory, as the hardware addresses it. */
#ifdef SIMULATED
typedef bfloat16 *shared_place;
#else
typedef uint32_t shared_place;
#endif

DEVICE shared_place place_of(bfloat16 *p)
{
#ifdef SIMULATED
    return p;
#else
    return (uint32_t)__cvta_generic_to_shared(p);
#endif
}

DEVICE shared_place place_after(shared_place p, int elements)
{
#ifdef SIMULATED
    return p + elements;
#else
    return p + (uint32_t)(elements * (int)sizeof(bfloat16));
#endif
}

/* 16 bytes to shared memory, or zeros; then `from` may be anywhere. */
DEVICE void copy_async_if(bool present, shared_place to, const bfloat16 *from)
{
#ifdef SIMULATED
    simulated_copy_async(to, present ? from : nullptr, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(present ? 16 : 0)
                 : "memory");
#endif
}

/* p, kept in registers: it is not computed again where it is used. */
DEVICE const bfloat16 *kept(const bfloat16 *p)
{
#ifndef SIMULATED
    asm volatile("" : "+l"(p));
#endif
    return p;
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

/* ---- loaders, for N chunks of a thread ---- */

/* row: where this thread's rows begin; depths are contiguous. */
template <int N> struct loader_by_row {
    enum { turned = 0 };
    const bfloat16 *row[N];
    int64_t apart; /* elements from a part to the next */

    DEVICE_MEMBER void look(int, int, int)
    {
    }

    DEVICE_MEMBER const bfloat16 *at(int j, int, int k, int part) const
    {
        return row[j] + (k + part * apart);
    }
};

/* x[depth][rows], of which a tile begins at x. */
template <int N> struct loader_by_depth {
    enum { turned = 1 };
    const bfloat16 *x;
    int64_t apart;
    uint32_t stride;       /* bytes to the next depth */
    int rows;              /* from x on, a multiple of 8 */
    const int32_t *tokens; /* depth k is at tokens[k]; NULL: at k */
    uint32_t place[N];

    /* Where depth k is, looked up before it is fetched. */
    DEVICE_MEMBER void look(int j, int k, int depth)
    {
        place[j] = (uint32_t)(tokens ? tokens[k < depth ? k : depth - 1] : k);
    }

    DEVICE_MEMBER const bfloat16 *at(int j, int i, int, int part) const
    {
        const bfloat16 *first = x + (i < rows ? i : 0) + part * apart;

        return (const bfloat16 *)((const char *)first + (uint64_t)place[j] * stride);
    }
};

/* Slice number s of a product whose parts have `each` slices. */
struct slice_place {
    int part, depth;
};

DEVICE slice_place find_slice(int s, int each, int thick)
{
    slice_place p = {s >= each, (s >= each ? s - each : s) * thick};

    return p;
}

/* Where chunk j of this thread is in a slice: T::chunk<TURNED, ROWS>(j). In shared memory chunks
   are T::distance<TURNED, ROWS> elements apart; the first is T::element<TURNED> of its place. */
struct chunk_place {
    int row, depth;
};

/* Ask for a slice of ROWS rows: its place, of `depth` in all. */
template <typename T, int ROWS, int N, typename LOADER>
DEVICE void fetch_slice(bfloat16 *to, const LOADER &from, slice_place s, int depth)
{
    chunk_place first = T::template chunk<LOADER::turned, ROWS>(0);
    shared_place place = place_of(to + T::template element<LOADER::turned>(first.row, first.depth));

#pragma unroll
    for (int j = 0; j < N; j++) {
        chunk_place c = T::template chunk<LOADER::turned, ROWS>(j);

        copy_async_if(s.depth + c.depth < depth,
                      place_after(place, j * T::template distance<LOADER::turned, ROWS>()),
                      from.at(j, c.row, s.depth + c.depth, s.part));
    }
}

template <typename T, int ROWS, int N, typename LOADER>
DEVICE void look_up_slice(LOADER &from, slice_place s, int depth)
{
#pragma unroll
    for (int j = 0; j < N; j++)
        from.look(j, s.depth + T::template chunk<LOADER::turned, ROWS>(j).depth, depth);
}

/* Slice s of A and B; then look up the next. */
template <typename T, typename A, typename B>
DEVICE void fetch_both(bfloat16 *slot, A &a, B &b, int s, int each, int depth)
{
    slice_place now = find_slice(s, each, T::depth), next = find_slice(s + 1, each, T::depth);

    fetch_slice<T, T::rows, T::a_chunks>(slot, a, now, depth);
    fetch_slice<T, T::columns, T::b_chunks>(slot + T::rows * T::depth, b, now, depth);
    look_up_slice<T, T::rows, T::a_chunks>(a, next, depth);
    look_up_slice<T, T::columns, T::b_chunks>(b, next, depth);
}

template <typename T, typename A, typename B> DEVICE void look_up_first(A &a, B &b, int depth)
{
    slice_place first = {0, 0};

    look_up_slice<T, T::rows, T::a_chunks>(a, first, depth);
    look_up_slice<T, T::columns, T::b_chunks>(b, first, depth);
}

#endif
