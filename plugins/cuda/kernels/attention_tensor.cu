/*
 * Attention in bfloat16 on tensor cores, for any documents, positions and windows, which cuDNN
 * would need a matrix of all pairs for: tile by tile with a running maximum and sum (Dao 2023).
 * Tiles in which no query sees a key are not read.
 *
 * A block of four warps has ROWS rows of its own, 16 for each warp: queries, or, for the gradients
 * of keys and values, keys. It walks over tiles of ROWS rows of the other side; the next one is
 * fetched meanwhile. Rows have HEAD columns in shared memory, those beyond the head's size are
 * zeros: KEY of q and k, VALUE of v and o. Every sum has a fixed order.
 */
#include "attention_mask.cuh"
#include "tensor.cuh"

#define ROWS GPU_ATTENTION_ROWS
#define THREADS GPU_ATTENTION_THREADS
#define LOG2_E 1.44269504f

typedef tile_ids<ROWS> ids_of_tile;

/* ---- tiles in shared memory ---- */

/* Where eight columns are, from a multiple of eight on: the chunks of eight rows are in different
   banks. */
template <int HEAD> DEVICE int place(int row, int column)
{
    return row * HEAD + (column / 8 ^ row % 8) * 8;
}

/* ROWS tokens of one head, from `begin` on, from x[token][column]. */
template <int HEAD>
DEVICE void fetch_rows(bfloat16 *tile, const void *x, int64_t stride, int64_t begin, int64_t tokens,
                       int32_t size)
{
    const bfloat16 *from = (const bfloat16 *)x;

    for (int i = (int)threadIdx.x; i < ROWS * HEAD / 8; i += THREADS) {
        int row = i / (HEAD / 8), column = i % (HEAD / 8) * 8;
        bool is_there = begin + row < tokens && column < size;

        copy_async(tile + place<HEAD>(row, column),
                   is_there ? from + (begin + row) * stride + column : nullptr, from);
    }
}

/* Operands of multiply_add, of 16 rows from i on and 16 columns from k on; turned: of 16 columns
   from i on as rows, and 16 rows from k on. */
template <int HEAD> DEVICE void load_part(uint32_t (&r)[4], const bfloat16 *tile, int i, int k)
{
    int lane = (int)threadIdx.x % 32, matrix = lane / 8, row = lane % 8;

    load_matrices<false>(r, tile + place<HEAD>(i + matrix % 2 * 8 + row, k + matrix / 2 * 8));
}

template <int HEAD> DEVICE void load_turned(uint32_t (&r)[4], const bfloat16 *tile, int i, int k)
{
    int lane = (int)threadIdx.x % 32, matrix = lane / 8, row = lane % 8;

    load_matrices<true>(r, tile + place<HEAD>(k + matrix / 2 * 8 + row, i + matrix % 2 * 8));
}

/* ---- products ---- */

/* A warp's 16 rows and some of a tile's, which are columns. Element e of [n] is in row own_row(e)
   of the warp's and column own_column(n, e). */
template <int COLUMNS> struct pairs {
    float at[COLUMNS / 8][4];
};

DEVICE int own_row(int e)
{
    return (int)threadIdx.x % 32 / 4 + e / 2 * 8;
}

DEVICE int own_column(int n, int e)
{
    return n * 8 + (int)threadIdx.x % 4 * 2 + e % 2;
}

DEVICE int warp_rows()
{
    return (int)threadIdx.x / 32 * 16;
}

/* c = the warp's rows of a times the rows of b from `from` on */
template <int HEAD, int COLUMNS>
DEVICE void multiply_rows(pairs<COLUMNS> &c, const bfloat16 *a, const bfloat16 *b, int from)
{
    c = {};
#pragma unroll 1
    for (int k = 0; k < HEAD; k += 16) {
        uint32_t x[4], y[4];

        load_part<HEAD>(x, a, warp_rows(), k);
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            load_part<HEAD>(y, b, from + n * 16, k);
            multiply_add(c.at[2 * n], x, y[0], y[2]);
            multiply_add(c.at[2 * n + 1], x, y[1], y[3]);
        }
    }
}

DEVICE uint32_t pair_of(float low, float high)
{
    return from_float<bfloat16>(low).bits | (uint32_t)from_float<bfloat16>(high).bits << 16;
}

/* sum[row][column] += c[row][i] b[from + i][column], over i */
template <int HEAD, int COLUMNS>
DEVICE void add_product(float (&sum)[HEAD / 8][4], const pairs<COLUMNS> &c, const bfloat16 *b,
                        int from)
{
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; k++) {
        const float *low = c.at[2 * k], *high = c.at[2 * k + 1];
        uint32_t x[4] = {pair_of(low[0], low[1]), pair_of(low[2], low[3]),
                         pair_of(high[0], high[1]), pair_of(high[2], high[3])};
        uint32_t y[4];

#pragma unroll
        for (int n = 0; n < HEAD / 16; n++) {
            load_turned<HEAD>(y, b, n * 16, from + k * 16);
            multiply_add(sum[2 * n], x, y[0], y[2]);
            multiply_add(sum[2 * n + 1], x, y[1], y[3]);
        }
    }
}

/* Rows of x, scaled by one number for each half of the warp's rows. */
template <int HEAD>
DEVICE void write_rows(int32_t size, void *x, const int64_t *stride, int kind, int64_t b,
                       int64_t head, int64_t begin, int64_t tokens, const float (&sum)[HEAD / 8][4],
                       const float (&scale)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t token = begin + warp_rows() + own_row(2 * half);
        int64_t at = b * stride[0] + token * stride[1] + head * stride[2];

        if (token >= tokens)
            continue;
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++) {
            float both[2] = {sum[n][2 * half] * scale[half], sum[n][2 * half + 1] * scale[half]};

            if (n * 8 < size)
                store_as<2>(kind, x, at + own_column(n, 0), both);
        }
    }
}

/* ---- what is seen ---- */

/* The block's own rows: the least and largest positions and documents. */
struct extent {
    int32_t first, last, first_document, last_document;
};

/* Into shared memory; all threads have written the ids, and may read the extent behind. */
DEVICE void find_extent(const ids_of_tile &ids, extent *to)
{
    extent x = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};

    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < ROWS; i++) {
        if (ids.position[i] == INT32_MAX)
            continue;
        x.first = min(x.first, ids.position[i]);
        x.last = max(x.last, ids.position[i]);
        x.first_document = min(x.first_document, ids.document[i]);
        x.last_document = max(x.last_document, ids.document[i]);
    }
    if (threadIdx.x == 0)
        *to = x;
    __syncthreads();
}

/* How far queries are behind keys: from the least pair to the largest. */
struct distance {
    int64_t least, most;
};

template <bool OWN_QUERIES> DEVICE distance distance_to(const extent &own, int32_t position)
{
    distance d = {(int64_t)own.first - position, (int64_t)own.last - position};

    if (!OWN_QUERIES)
        d = {-d.most, -d.least};
    return d;
}

/* May a row of the block see the other side's token, or be seen by it? No is certain. */
template <bool OWN_QUERIES>
DEVICE bool may_see(const gpu_attention &a, const extent &own, int32_t position, int32_t document)
{
    distance d = distance_to<OWN_QUERIES>(own, position);

    return document >= own.first_document && document <= own.last_document &&
           (!a.causal || d.most >= 0) && (!a.window || (d.least < a.window && d.most > -a.window));
}

/* Do all rows of the block? */
template <bool OWN_QUERIES>
DEVICE bool all_see(const gpu_attention &a, const extent &own, int32_t position, int32_t document)
{
    distance d = distance_to<OWN_QUERIES>(own, position);

    return position != INT32_MAX && document == own.first_document &&
           document == own.last_document && (!a.causal || d.least >= 0) &&
           (!a.window || (d.most < a.window && d.least > -a.window));
}

DEVICE int64_t begin_of(int tile)
{
    return (int64_t)tile * ROWS;
}

/* The first tile from number j on that is not skipped; behind all if there is none. */
template <bool OWN_QUERIES>
DEVICE int next_tile(const gpu_attention &a, const extent &own, const gpu_side &other, int64_t b,
                     int j)
{
    for (; begin_of(j) < other.tokens; j++) {
        int64_t token = begin_of(j) + threadIdx.x;
        bool seen = threadIdx.x < ROWS && token < other.tokens &&
                    may_see<OWN_QUERIES>(a, own, position_of(other, b, token),
                                         document_of(other, b, token));

        if (__syncthreads_or(seen))
            break;
    }
    return j;
}

DEVICE bool sees(const gpu_attention &a, const ids_of_tile &q, int i, const ids_of_tile &k, int j)
{
    return q.position[i] != INT32_MAX && k.position[j] != INT32_MAX &&
           q.document[i] == k.document[j] &&
           is_near(k.position[j], q.position[i], a.causal, a.window);
}

/* Are there pairs that do not see each other? The same answer for all threads. */
template <bool OWN_QUERIES>
DEVICE bool is_partial(const gpu_attention &a, const extent &own, const ids_of_tile &other)
{
    int i = (int)threadIdx.x;

    return __syncthreads_or(i < ROWS && !all_see<OWN_QUERIES>(a, own, other.position[i % ROWS],
                                                              other.document[i % ROWS]));
}

/* Pairs that do not see each other become -infinity. Columns are those of `other`, from `from`. */
template <bool OWN_QUERIES, int COLUMNS>
DEVICE void hide(const gpu_attention &a, const ids_of_tile &mine, const ids_of_tile &other,
                 pairs<COLUMNS> &c, int from)
{
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = warp_rows() + own_row(e), column = from + own_column(n, e);

            if (OWN_QUERIES ? !sees(a, mine, row, other, column)
                            : !sees(a, other, column, mine, row))
                c.at[n][e] = -INFINITY;
        }
}

/* The four lanes that share a row, together. */
DEVICE float row_sum(float x)
{
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

DEVICE float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

/* ---- a block's walk over tiles of two operands ---- */

/* One side of one head: q and do, or k and v. */
struct side {
    const gpu_side *ids;
    const void *x, *y;
    int64_t x_stride, y_stride;
};

/* Two slots of a tile of each operand, in turn. */
template <int KEY, int VALUE> struct tiles {
    bfloat16 *memory;
    ids_of_tile *ids;

    DEVICE_MEMBER bfloat16 *x(int slot) const
    {
        return memory + slot * ROWS * (KEY + VALUE);
    }
    DEVICE_MEMBER bfloat16 *y(int slot) const
    {
        return x(slot) + ROWS * KEY;
    }
    DEVICE_MEMBER void fetch(const gpu_attention &a, const side &s, int64_t b, int j,
                             int slot) const
    {
        int64_t begin = begin_of(j);

        if (begin < s.ids->tokens) {
            read_ids<ROWS>(*s.ids, b, begin, &ids[slot]);
            fetch_rows<KEY>(x(slot), s.x, s.x_stride, begin, s.ids->tokens, a.key.size);
            fetch_rows<VALUE>(y(slot), s.y, s.y_stride, begin, s.ids->tokens, a.value.size);
        }
        commit_copies();
    }
};

DEVICE const bfloat16 *head_of(const void *x, const int64_t *stride, int64_t b, int64_t head)
{
    return (const bfloat16 *)x + b * stride[0] + head * stride[2];
}

/* ---- forward ---- */

/* A row's maximum and sum so far, of halves of the warp's rows. */
struct softmax_state {
    float top[2], sum[2];
};

/* Scores become probabilities, up to a factor; what was summed before is to be rescaled. */
DEVICE void take_scores(pairs<ROWS> &s, softmax_state &state, float scale, float (&rescale)[2])
{
    float base[2];

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = state.top[half];

#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
            top = fmaxf(top, fmaxf(s.at[n][2 * half], s.at[n][2 * half + 1]));
        top = row_max(top);
        base[half] = top == -INFINITY ? 0.0f : top * scale;
        rescale[half] = exp2f(state.top[half] * scale - base[half]);
        state.top[half] = top;
        state.sum[half] *= rescale[half];
    }
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s.at[n][e] = exp2f(fmaf(s.at[n][e], scale, -base[e / 2]));
            state.sum[e / 2] += s.at[n][e];
        }
}

template <int KEY, int VALUE> DEVICE void forward(const gpu_attention &a, int tile)
{
    __shared__ ids_of_tile q_ids, k_ids[2];
    __shared__ extent own;
    DYNAMIC_SHARED(bfloat16, q);
    int64_t begin = (int64_t)tile * ROWS, head = blockIdx.y, b = blockIdx.z;
    int64_t group = head / (a.heads / a.groups);
    side s = {&a.keys, head_of(a.k, a.k_stride, b, group), head_of(a.v, a.v_stride, b, group),
              a.k_stride[1], a.v_stride[1]};
    tiles<KEY, VALUE> kv = {q + ROWS * KEY, k_ids};
    softmax_state state = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[VALUE / 8][4] = {}, rescale[2];
    int next;

    read_ids<ROWS>(a.queries, b, begin, &q_ids);
    fetch_rows<KEY>(q, head_of(a.q, a.q_stride, b, head), a.q_stride[1], begin, a.queries.tokens,
                    a.key.size);
    find_extent(q_ids, &own);
    next = next_tile<true>(a, own, a.keys, b, 0);
    kv.fetch(a, s, b, next, 0);
    for (int j = next, slot = 0; begin_of(j) < a.keys.tokens; j = next, slot ^= 1) {
        pairs<ROWS> c;

        next = next_tile<true>(a, own, a.keys, b, j + 1);
        kv.fetch(a, s, b, next, slot ^ 1);
        await_copies<1>();
        __syncthreads();
        multiply_rows<KEY>(c, q, kv.x(slot), 0);
        if (is_partial<true>(a, own, k_ids[slot]))
            hide<true>(a, q_ids, k_ids[slot], c, 0);
        take_scores(c, state, a.scale * LOG2_E, rescale);
#pragma unroll
        for (int n = 0; n < VALUE / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[n][e] *= rescale[e / 2];
        add_product<VALUE>(o, c, kv.y(slot), 0);
        __syncthreads();
    }
    await_copies<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t token = begin + warp_rows() + own_row(2 * half);
        float sum = row_sum(state.sum[half]);

        rescale[half] = sum == 0 ? 0.0f : 1.0f / sum;
        if (token < a.queries.tokens && threadIdx.x % 4 == 0)
            a.lse[(b * a.heads + head) * a.queries.tokens + token] =
                state.top[half] * a.scale + logf(sum);
    }
    write_rows<VALUE>(a.value.size, a.o, a.o_stride, a.out_kind[0], b, head, begin,
                      a.queries.tokens, o, rescale);
}

/* ---- backward ---- */

/* Rows are queries, columns keys, PART at a time. */
template <int KEY, int VALUE> DEVICE void gradient_of_queries(const gpu_attention &a, int tile)
{
    enum { PART = KEY <= 128 ? ROWS : ROWS / 2 }; /* what registers hold */
    __shared__ ids_of_tile q_ids, k_ids[2];
    __shared__ extent own;
    DYNAMIC_SHARED(bfloat16, q);
    bfloat16 *d_o = q + ROWS * KEY;
    int64_t begin = (int64_t)tile * ROWS, head = blockIdx.y, b = blockIdx.z;
    int64_t group = head / (a.heads / a.groups);
    side s = {&a.keys, head_of(a.k, a.k_stride, b, group), head_of(a.v, a.v_stride, b, group),
              a.k_stride[1], a.v_stride[1]};
    tiles<KEY, VALUE> kv = {d_o + ROWS * VALUE, k_ids};
    float dq[KEY / 8][4] = {}, lse[2], delta[2];
    const float scales[2] = {a.scale, a.scale};
    int next;

    read_ids<ROWS>(a.queries, b, begin, &q_ids);
    fetch_rows<KEY>(q, head_of(a.q, a.q_stride, b, head), a.q_stride[1], begin, a.queries.tokens,
                    a.key.size);
    fetch_rows<VALUE>(d_o, head_of(a.d_o, a.do_stride, b, head), a.do_stride[1], begin,
                      a.queries.tokens, a.value.size);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t token = begin + warp_rows() + own_row(2 * half);
        int64_t row = (b * a.heads + head) * a.queries.tokens + token;
        bool is_there = token < a.queries.tokens;

        lse[half] = is_there ? a.lse_in[row] * LOG2_E : 0.0f;
        delta[half] = is_there ? a.delta[row] : 0.0f;
    }
    find_extent(q_ids, &own);
    next = next_tile<true>(a, own, a.keys, b, 0);
    kv.fetch(a, s, b, next, 0);
    for (int j = next, slot = 0; begin_of(j) < a.keys.tokens; j = next, slot ^= 1) {
        bool partial;

        next = next_tile<true>(a, own, a.keys, b, j + 1);
        kv.fetch(a, s, b, next, slot ^ 1);
        await_copies<1>();
        __syncthreads();
        partial = is_partial<true>(a, own, k_ids[slot]);
#pragma unroll 1
        for (int from = 0; from < ROWS; from += PART) {
            pairs<PART> c, dp;

            multiply_rows<KEY>(c, q, kv.x(slot), from);
            if (partial)
                hide<true>(a, q_ids, k_ids[slot], c, from);
            multiply_rows<VALUE>(dp, d_o, kv.y(slot), from);
#pragma unroll
            for (int n = 0; n < PART / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float p = c.at[n][e] == -INFINITY
                                  ? 0.0f
                                  : exp2f(fmaf(c.at[n][e], a.scale * LOG2_E, -lse[e / 2]));

                    c.at[n][e] = p * (dp.at[n][e] - delta[e / 2]);
                }
            add_product<KEY>(dq, c, kv.x(slot), from);
        }
        __syncthreads();
    }
    await_copies<0>();
    write_rows<KEY>(a.key.size, a.dq, a.dq_stride, a.out_kind[0], b, head, begin, a.queries.tokens,
                    dq, scales);
}

/* Values of a tile of queries: their lse, times log2(e), and delta. */
struct row_values {
    float lse[ROWS], delta[ROWS];
};

DEVICE void read_values(const gpu_attention &a, int64_t b, int64_t head, int64_t begin,
                        row_values *values)
{
    int64_t token = begin + threadIdx.x, row = (b * a.heads + head) * a.queries.tokens + token;

    if (threadIdx.x >= ROWS)
        return;
    values->lse[threadIdx.x] = token < a.queries.tokens ? a.lse_in[row] * LOG2_E : 0.0f;
    values->delta[threadIdx.x] = token < a.queries.tokens ? a.delta[row] : 0.0f;
}

/* Rows are keys, columns queries, PART at a time; all heads of the group, one after the other. */
template <int KEY, int VALUE> DEVICE void gradient_of_keys(const gpu_attention &a, int tile)
{
    enum { PART = KEY == 64 ? ROWS : KEY == 128 ? ROWS / 2 : ROWS / 4 }; /* what registers hold */
    __shared__ ids_of_tile k_ids, q_ids[2];
    __shared__ extent own;
    __shared__ row_values values[2];
    DYNAMIC_SHARED(bfloat16, k);
    bfloat16 *v = k + ROWS * KEY;
    int64_t begin = (int64_t)tile * ROWS, group = blockIdx.y, b = blockIdx.z;
    int64_t share = a.heads / a.groups;
    tiles<KEY, VALUE> q_do = {v + ROWS * VALUE, q_ids};
    float dk[KEY / 8][4] = {}, dv[VALUE / 8][4] = {};
    const float scales[2] = {a.scale, a.scale}, ones[2] = {1, 1};

    read_ids<ROWS>(a.keys, b, begin, &k_ids);
    fetch_rows<KEY>(k, head_of(a.k, a.k_stride, b, group), a.k_stride[1], begin, a.keys.tokens,
                    a.key.size);
    fetch_rows<VALUE>(v, head_of(a.v, a.v_stride, b, group), a.v_stride[1], begin, a.keys.tokens,
                      a.value.size);
    find_extent(k_ids, &own);
    for (int64_t head = group * share; head < (group + 1) * share; head++) {
        side s = {&a.queries, head_of(a.q, a.q_stride, b, head),
                  head_of(a.d_o, a.do_stride, b, head), a.q_stride[1], a.do_stride[1]};
        int next = next_tile<false>(a, own, a.queries, b, 0);

        read_values(a, b, head, begin_of(next), &values[0]);
        q_do.fetch(a, s, b, next, 0);
        for (int j = next, slot = 0; begin_of(j) < a.queries.tokens; j = next, slot ^= 1) {
            bool partial;

            next = next_tile<false>(a, own, a.queries, b, j + 1);
            read_values(a, b, head, begin_of(next), &values[slot ^ 1]);
            q_do.fetch(a, s, b, next, slot ^ 1);
            await_copies<1>();
            __syncthreads();
            partial = is_partial<false>(a, own, q_ids[slot]);
#pragma unroll 1
            for (int from = 0; from < ROWS; from += PART) {
                const float *lse = values[slot].lse + from, *delta = values[slot].delta + from;
                pairs<PART> c, dp;

                multiply_rows<KEY>(c, k, q_do.x(slot), from);
                if (partial)
                    hide<false>(a, k_ids, q_ids[slot], c, from);
#pragma unroll
                for (int n = 0; n < PART / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        c.at[n][e] =
                            c.at[n][e] == -INFINITY
                                ? 0.0f
                                : exp2f(fmaf(c.at[n][e], a.scale * LOG2_E, -lse[own_column(n, e)]));
                add_product<VALUE>(dv, c, q_do.y(slot), from);
                multiply_rows<VALUE>(dp, v, q_do.y(slot), from);
#pragma unroll
                for (int n = 0; n < PART / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        c.at[n][e] *= dp.at[n][e] - delta[own_column(n, e)];
                add_product<KEY>(dk, c, q_do.x(slot), from);
            }
            __syncthreads();
        }
        await_copies<0>();
        __syncthreads();
    }
    write_rows<KEY>(a.key.size, a.dk, a.dk_stride, a.out_kind[1], b, group, begin, a.keys.tokens,
                    dk, scales);
    write_rows<VALUE>(a.value.size, a.dv, a.dv_stride, a.out_kind[2], b, group, begin,
                      a.keys.tokens, dv, ones);
}

DEVICE int last_tile(const gpu_attention &a)
{
    return (int)((a.queries.tokens + ROWS - 1) / ROWS) - 1;
}

DEVICE bool has_tile(const gpu_side &s, int i)
{
    return i * (int64_t)ROWS < s.tokens;
}

/* The same arguments, of which the compiler keeps nothing from one tile to the next. */
DEVICE const gpu_attention &afresh(const gpu_attention &a)
{
    const gpu_attention *same = &a;

#ifndef SIMULATED
    asm volatile("" : "+l"(same)::"memory");
#endif
    __syncthreads();
    return *same;
}

/* Kernels of `rest` do nothing unless they are needed, and have few blocks, as empty ones take time
   too: each takes several tiles. For the gradients of keys registers do not suffice for that. */
#define ATTENTION(KEY, VALUE)                                                                      \
    KERNEL(attention_tensor_##KEY, gpu_attention, GPU_ATTENTION_THREADS)                           \
    {                                                                                              \
        forward<KEY, VALUE>(a, last_tile(a) - (int)blockIdx.x);                                    \
    }                                                                                              \
    KERNEL(attention_tensor_dq_##KEY, gpu_attention, GPU_ATTENTION_THREADS)                        \
    {                                                                                              \
        gradient_of_queries<KEY, VALUE>(a, last_tile(a) - (int)blockIdx.x);                        \
    }                                                                                              \
    KERNEL(attention_tensor_dkv_##KEY, gpu_attention, GPU_ATTENTION_THREADS)                       \
    {                                                                                              \
        if (is_wanted(a))                                                                          \
            gradient_of_keys<KEY, VALUE>(a, (int)blockIdx.x);                                      \
    }                                                                                              \
    KERNEL(attention_tensor_rest_##KEY, gpu_attention, GPU_ATTENTION_THREADS)                      \
    {                                                                                              \
        for (int i = (int)blockIdx.x; *a.wanted && has_tile(a.queries, i); i += (int)gridDim.x)    \
            forward<KEY, VALUE>(afresh(a), i);                                                     \
    }                                                                                              \
    KERNEL(attention_tensor_rest_dq_##KEY, gpu_attention, GPU_ATTENTION_THREADS)                   \
    {                                                                                              \
        for (int i = (int)blockIdx.x; *a.wanted && has_tile(a.queries, i); i += (int)gridDim.x)    \
            gradient_of_queries<KEY, VALUE>(afresh(a), i);                                         \
    }
ATTENTION(64, 64)
ATTENTION(128, 128)
ATTENTION(192, 128)
