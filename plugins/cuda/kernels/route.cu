/*
 * Rows of tokens on their way to the ranks of their experts: numbering, packing, summing. The host
 * does not know how many there are. Rows to a rank are numbered in the order of tokens, and a
 * token's rows are summed in the order of ranks: there is no atomic.
 */
#include "float8.cuh"

/* The rank of an expert, as ct_shard_of says. */
DEVICE int64_t rank_of(const gpu_route &a, int64_t expert)
{
    int64_t least = a.experts / a.ranks, larger = a.experts % a.ranks;
    int64_t in_larger = larger * (least + 1);

    return expert < in_larger ? expert / (least + 1) : larger + (expert - in_larger) / least;
}

/* Did token t choose an expert of this rank? */
DEVICE bool chose(const gpu_route &a, int64_t t, int64_t rank)
{
    bool here = false;

    for (int64_t k = 0; k < a.k; k++) {
        int64_t id = a.ids[t * a.k + k];

        if (id != GPU_NO_EXPERT && in_range(CT_CUDA_FAULT_EXPERT, id, t, a.experts, a.fault))
            here |= rank_of(a, id) == rank;
    }
    return here;
}

/* Block r numbers the rows to rank r. */
KERNEL(route_number, gpu_route, 256)
{
    __shared__ int32_t of_warp[32];
    int64_t rank = blockIdx.x, next = 0;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    for (int64_t from = 0; from < a.tokens; from += blockDim.x) {
        int64_t t = from + threadIdx.x, number;
        bool here = t < a.tokens && chose(a, t, rank);
        uint32_t mine = __ballot_sync(ALL_LANES, here);

        __syncthreads();
        if (lane == 0)
            of_warp[warp] = __popc(mine);
        __syncthreads();
        number = next + __popc(mine & ((1u << lane) - 1));
        for (int w = 0; w < (int)blockDim.x / 32; w++) {
            number += w < warp ? of_warp[w] : 0;
            next += of_warp[w];
        }
        if (t < a.tokens)
            a.slot[t * a.ranks + rank] = here ? (int32_t)number : -1;
    }
    if (threadIdx.x == 0)
        a.counts[rank] = (int32_t)next;
}

KERNEL(route_most, gpu_route, 32)
{
    int32_t most = 0;

    if (threadIdx.x)
        return;
    for (int64_t r = 0; r < a.ranks; r++)
        most = a.counts[r] > most ? a.counts[r] : most;
    *a.most = most;
}

/* The place, in this round, of the row of token `at / ranks` to rank `at % ranks`; -1: none. */
DEVICE int64_t place_of(const gpu_rows &a, int64_t at)
{
    int64_t slot = a.slot[at];

    return slot >= 0 && slot / a.capacity == a.round ? at % a.ranks * a.capacity + slot % a.capacity
                                                     : -1;
}

/* A warp for each token and rank: y[place] = x[token], of `size` words or bytes. */
template <typename T> DEVICE void pack(const gpu_rows &a)
{
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32, place;

    if (at >= a.tokens * a.ranks || (place = place_of(a, at)) < 0)
        return;
    for (int64_t i = threadIdx.x % 32; i < a.size; i += 32)
        ((T *)a.y)[place * a.size + i] = ((const T *)a.x)[at / a.ranks * a.size + i];
}

KERNEL(route_pack_1, gpu_rows, 256)
{
    pack<uint8_t>(a);
}

KERNEL(route_pack_4, gpu_rows, 256)
{
    pack<uint32_t>(a);
}

KERNEL(route_pack_16, gpu_rows, 256)
{
    pack<vector<uint32_t, 4>>(a);
}

/* A warp for each token: y = previous + the sum of its rows of this round. */
KERNEL(route_sum, gpu_rows, 256)
{
    int64_t token = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;

    if (token >= a.tokens)
        return;
    for (int64_t i = threadIdx.x % 32; i < a.size; i += 32) {
        float sum[1] = {0}, x[1];

        if (a.previous)
            load_as<1>(a.previous_kind, a.previous, token * a.size + i, sum);
        for (int64_t r = 0; r < a.ranks; r++) {
            int64_t place = place_of(a, token * a.ranks + r);

            if (place < 0)
                continue;
            load_as<1>(a.kind, a.x, place * a.size + i, x);
            sum[0] += x[0];
        }
        store_as<1>(a.out_kind, a.y, token * a.size + i, sum);
    }
}

/* ---- rows in 8 bits ---- */

/* A warp for each block of a row: its codes, and its largest magnitude over that of the dtype. */
KERNEL(route_quantise, gpu_row_codes, 256)
{
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32, row = at / a.blocks;
    int64_t begin = at % a.blocks * GPU_ROW_BLOCK, lane = threadIdx.x % 32;
    int64_t end = begin + GPU_ROW_BLOCK < a.columns ? begin + GPU_ROW_BLOCK : a.columns;
    float x[1], most = 0;

    if (row >= a.rows)
        return;
    for (int64_t i = begin + lane; i < end; i += 32) {
        load_as<1>(a.kind, a.x, row * a.columns + i, x);
        most = fmaxf(most, fabsf(x[0]));
    }
    most = warp_max(most);
    most = most > 0 ? fmaxf(most, 1e-12f) : most;
    for (int64_t i = begin + lane; i < end; i += 32) {
        load_as<1>(a.kind, a.x, row * a.columns + i, x);
        a.codes[row * a.columns + i] =
            narrowed<false>(most > 0 ? x[0] * (GPU_CODES_LARGEST / most) : x[0]);
    }
    if (lane == 0)
        a.factors[at] = most / GPU_CODES_LARGEST;
}

/* A warp for each block of a row: codes times its factor. */
KERNEL(route_dequantise, gpu_row_codes, 256)
{
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32, row = at / a.blocks;
    int64_t begin = at % a.blocks * GPU_ROW_BLOCK;
    int64_t end = begin + GPU_ROW_BLOCK < a.columns ? begin + GPU_ROW_BLOCK : a.columns;

    if (row >= a.rows)
        return;
    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) {
        float x[1] = {from_e4m3(a.codes[row * a.columns + i]) * a.factors[at]};

        store_as<1>(a.kind, a.x, row * a.columns + i, x);
    }
}
