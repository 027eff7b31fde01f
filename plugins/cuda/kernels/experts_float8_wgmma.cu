/*
 * Mixtures of experts in 8 bits: grouped products of codes on Hopper's tensor cores. On other
 * devices these kernels are empty, and are not launched.
 *
 * The hardware keeps 14 bits of a sum while it adds codes. So the sums of 128 codes, a slice, begin
 * anew, and are added to others in float32: while the tensor cores work on a slice, the threads add
 * what the one before brought. These sums alternate between two sets of registers.
 */
#include "codes_tiles.cuh"
#include "wgmma.cuh"

#define LINES (GPU_WGMMA_ROWS + GPU_CODES_BLOCK) /* of a tile: its rows, then its columns */

/* Numbers with one factor: a line's; its blocks'; of columns, squares'. */
enum sharing { WHOLE_LINES, BLOCKS, SQUARES };

/* Where the factor of one of the tile's lines is, and how far apart those of its blocks are. */
struct line_factor {
    const float *first;
    uint32_t block;
};

/* As the products of codes use it (codes_tiles.cuh). */
template <int SHARING> struct wgmma_codes : wgmma_shape<GPU_CODES_BLOCK, 4, LINES * 4> {
    enum { along = GPU_CODES_BLOCK };

    /* The factor of this thread's line, whose number is the thread's. */
    template <typename ROW, typename COLUMN>
    DEVICE_MEMBER static line_factor factors_of(const gpu_codes &of_rows,
                                                const gpu_codes &of_columns, tile_size size,
                                                const ROW &row, const COLUMN &column)
    {
        bool is_row = threadIdx.x < rows;
        int64_t i = is_row ? threadIdx.x : threadIdx.x - rows;
        const gpu_codes &codes = is_row ? of_rows : of_columns;

        i = i < (is_row ? size.rows : size.columns) ? i : 0;
        line_factor f = {codes.factors + (is_row ? row(i) : column(i)), (uint32_t)codes.block};

        return f;
    }

    /* The factors of slice s, behind it. */
    DEVICE_MEMBER static float *factors_behind(bfloat16 *all, int s)
    {
        return (float *)(slot_of(all, s) + (rows + columns) * depth);
    }

    /* f(i, the factor of sum i), for each */
    template <typename F> DEVICE_MEMBER static void each_factor(const float *factors, const F &f)
    {
        const float *of_columns = factors + rows;
        float of_row[2] = {factors[row_at(0)], factors[row_at(1)]};
        float of_column[2] = {of_columns[0], of_columns[0]};

#pragma unroll
        for (int j = 0; j < columns / 8; j++) {
            if (SHARING != SQUARES)
                load<2>(of_columns + column_at(j), of_column);
#pragma unroll
            for (int i = 0; i < 4; i++)
                f(4 * j + i, of_row[i / 2] * of_column[i % 2]);
        }
    }

    /* c += part times the factors of its slice, unless lines have one each */
    DEVICE_MEMBER static void add(sums &c, const sums &part, const float *factors)
    {
        if (SHARING == WHOLE_LINES)
#pragma unroll
            for (int i = 0; i < columns / 2; i++)
                c[i] += part[i];
        else
            each_factor(factors, [&](int i, float factor) { c[i] += part[i] * factor; });
    }

    /* N slices, from s on. All of their products end here: ptxas would have each wait for the one
       before, if sums were read while others go on into the next turn of a loop. */
    template <int N, typename BEGIN, typename END>
    DEVICE_MEMBER static void overlap(int s, sums (&part)[2], const BEGIN &begin, const END &end)
    {
        wgmma_hold(part[0]);
        wgmma_hold(part[1]);
        begin(s, part[0]);
#pragma unroll
        for (int i = 1; i < N; i++) {
            begin(s + i, part[i % 2]);
            wgmma_await<1>();
            end(s + i - 1, part[(i - 1) % 2]);
        }
        wgmma_await<0>();
        end(s + N - 1, part[(N - 1) % 2]);
    }

    /* c = the sums of lines of so many codes */
    template <typename A, typename B>
    DEVICE_MEMBER static void multiply(sums &c, bfloat16 *all, A a, B b, int64_t codes, tile_size,
                                       const line_factor &factor)
    {
        int pairs = (int)(filled_up(codes) / 2), steps = (pairs + depth - 1) / depth;
        sums part[2] = {};

        auto ask = [&](int s) {
            if (s < steps)
                fetch_both<wgmma_codes>(slot_of(all, s), a, b, s, steps, pairs);
            if (s < (SHARING == WHOLE_LINES ? 1 : steps))
                copy_word_async(factors_behind(all, s) + threadIdx.x,
                                factor.first + (uint32_t)s * factor.block);
            commit_copies();
        };
        auto begin = [&](int s, sums &of_slice) {
            wgmma_slice<wgmma_of_codes>(of_slice, arrived(all, s), false);
            ask(s + ahead);
        };
        auto end = [&](int s, sums &of_slice) {
            wgmma_hold(of_slice);
            add(c, of_slice, factors_behind(all, s));
        };
        int s = 0;

        if (steps == 0)
            return;
#pragma unroll
        for (int i = 0; i < ahead; i++)
            ask(i);
        for (; s + 4 <= steps; s += 4)
            overlap<4>(s, part, begin, end);
        if (s + 2 <= steps) {
            overlap<2>(s, part, begin, end);
            s += 2;
        }
        if (s < steps)
            overlap<1>(s, part, begin, end);
        if (SHARING == WHOLE_LINES)
            each_factor(factors_behind(all, 0), [&](int i, float factor) { c[i] *= factor; });
    }
};

static_assert((int)wgmma_codes<BLOCKS>::bytes == GPU_CODES_SHARED, "slots");
static_assert(GPU_WGMMA_ROWS == GPU_TENSOR_TILE && GPU_CODES_BLOCK == GPU_TENSOR_TILE, "tiles");

KERNEL(codes_product_rowwise_wgmma, gpu_codes_product, GPU_TENSOR_THREADS)
{
    ON_HOPPER(bfloat16 *slots = wgmma_slots();
              product_of_codes<wgmma_codes<WHOLE_LINES>>(a, slots);)
}

KERNEL(codes_product_blockwise_wgmma, gpu_codes_product, GPU_TENSOR_THREADS)
{
    ON_HOPPER(bfloat16 *slots = wgmma_slots(); product_of_codes<wgmma_codes<SQUARES>>(a, slots);)
}

KERNEL(codes_outer_rowwise_wgmma, gpu_codes_outer, GPU_TENSOR_THREADS)
{
    ON_HOPPER(bfloat16 *slots = wgmma_slots(); outer_of_codes<wgmma_codes<WHOLE_LINES>>(a, slots);)
}

KERNEL(codes_outer_blockwise_wgmma, gpu_codes_outer, GPU_TENSOR_THREADS)
{
    ON_HOPPER(bfloat16 *slots = wgmma_slots(); outer_of_codes<wgmma_codes<BLOCKS>>(a, slots);)
}
