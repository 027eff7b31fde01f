/*
 * Plain attention in float32, forward and backward, for any positions and documents: tile by tile
 * with a running maximum and sum (Dao et al. 2022). What it is for: float32, and where cuDNN is not
 * to be had; cuDNN's kernels are many times faster in bfloat16.
 *
 * A block of 256 threads has TILE rows of its own (queries, or, for the gradients of keys and
 * values, keys) and walks over tiles of the other side. Eight threads share a row: each makes every
 * eighth score of it, and owns every eighth of its columns in what is summed up. Scores go from the
 * ones to the others through shared memory.
 */
#include "attention_mask.cuh"

#define TILE 32
#define SHARE 8 /* threads of a row */
#define OWNED (256 / SHARE)

typedef tile_ids<TILE> row_ids;

DEVICE int own_row()
{
    return (int)threadIdx.x / SHARE;
}

DEVICE int own_share()
{
    return (int)threadIdx.x % SHARE;
}

/* Rows [begin, begin + TILE) of one head, as float32; rows beyond the end are 0. */
template <typename T>
DEVICE void read_tile(const gpu_head &h, const void *x, const int64_t *stride, int64_t b,
                      int64_t head, int64_t begin, int64_t tokens, float *tile)
{
    for (int i = (int)threadIdx.x; i < TILE * h.size; i += (int)blockDim.x) {
        int64_t token = begin + i / h.size;
        const T *row = (const T *)x + b * stride[0] + token * stride[1] + head * stride[2];

        tile[i / h.size * h.padded + i % h.size] =
            token < tokens ? to_float(row[i % h.size]) : 0.0f;
    }
}

DEVICE bool sees(const gpu_attention &a, const row_ids *q, int i, const row_ids *k, int j)
{
    return k->position[j] != INT32_MAX && k->document[j] == q->document[i] &&
           is_near(k->position[j], q->position[i], a.causal, a.window);
}

DEVICE float dot(const gpu_head &h, const float *x, const float *y)
{
    float sum = 0;

    for (int i = 0; i < h.size; i++)
        sum += x[i] * y[i];
    return sum;
}

/* As ct_alibi_slope says. */
DEVICE float slope_of(const gpu_attention &a, int64_t head)
{
    int64_t power = 1;

    head += a.first_head;
    while (2 * power <= a.all_heads)
        power *= 2;
    return head < power ? exp2f(-a.alibi * (float)(head + 1) / (float)power)
                        : exp2f(-a.alibi * (float)(2 * (head - power) + 1) / (float)(2 * power));
}

/* A scaled score, of a query that is this far behind the key. */
DEVICE float changed(const gpu_attention &a, int64_t head, float score, int64_t behind)
{
    if (a.softcap > 0)
        return a.softcap * tanhf(score / a.softcap);
    return a.alibi > 0 ? score - slope_of(a, head) * fabsf((float)behind) : score;
}

DEVICE int64_t behind(const row_ids *q, int i, const row_ids *k, int j)
{
    return (int64_t)q->position[i] - k->position[j];
}

/* The eight threads of a row, together. */
DEVICE float row_sum(float x)
{
    for (int step = SHARE / 2; step; step >>= 1)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

DEVICE float row_max(float x)
{
    for (int step = SHARE / 2; step; step >>= 1)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/* Does a query of the block see a key of the tile? The same answer for all threads. */
DEVICE bool any_seen(const gpu_attention &a, const row_ids *q, const row_ids *k, bool own_queries)
{
    bool seen = false;

    for (int j = own_share(); j < TILE; j += SHARE)
        seen |= own_queries ? sees(a, q, own_row(), k, j) : sees(a, q, j, k, own_row());
    return __syncthreads_or(seen);
}

/* acc[column] += sum over the tile of weight[row][..] x[..][column], for the columns owned. */
DEVICE void gather(const gpu_head &h, const float *weights, const float *x, float *acc)
{
    for (int j = 0; j < TILE; j++) {
        float weight = weights[own_row() * TILE + j];

#pragma unroll
        for (int i = 0; i < OWNED; i++) {
            int column = own_share() + i * SHARE;

            if (column < h.size)
                acc[i] += weight * x[j * h.padded + column];
        }
    }
}

DEVICE void write_owned(const gpu_head &h, void *out, const int64_t *stride, int kind, int64_t b,
                        int64_t head, int64_t token, const float *acc, float scale)
{
    int64_t at = b * stride[0] + token * stride[1] + head * stride[2];

#pragma unroll
    for (int i = 0; i < OWNED; i++) {
        int column = own_share() + i * SHARE;
        float x[1] = {acc[i] * scale};

        if (column < h.size)
            store_as<1>(kind, out, at + column, x);
    }
}

/* ---- forward ---- */

template <typename T> DEVICE void attention(const gpu_attention &a)
{
    __shared__ row_ids q_ids, k_ids;
    int64_t begin = (int64_t)blockIdx.x * TILE, head = blockIdx.y, b = blockIdx.z;
    int64_t group = head / (a.heads / a.groups), token = begin + own_row();
    float acc[OWNED] = {0}, top = -INFINITY, sum = 0;
    DYNAMIC_SHARED(float, q);
    float *k = q + TILE * a.key.padded, *v = k + TILE * a.key.padded;
    float *weights = v + TILE * a.value.padded;

    read_tile<T>(a.key, a.q, a.q_stride, b, head, begin, a.queries.tokens, q);
    read_ids<TILE>(a.queries, b, begin, &q_ids);
    for (int64_t j = 0; j < a.keys.tokens; j += TILE) {
        float s[TILE / SHARE], above, rescale, part = 0;

        __syncthreads();
        read_ids<TILE>(a.keys, b, j, &k_ids);
        __syncthreads();
        if (!any_seen(a, &q_ids, &k_ids, true))
            continue;
        read_tile<T>(a.key, a.k, a.k_stride, b, group, j, a.keys.tokens, k);
        read_tile<T>(a.value, a.v, a.v_stride, b, group, j, a.keys.tokens, v);
        __syncthreads();
        above = top;
        for (int i = 0; i < TILE / SHARE; i++) {
            int key = own_share() + i * SHARE;

            s[i] = sees(a, &q_ids, own_row(), &k_ids, key)
                       ? a.scale * dot(a.key, q + own_row() * a.key.padded, k + key * a.key.padded)
                       : -INFINITY;
        }
        for (int i = 0; (a.softcap > 0 || a.alibi > 0) && i < TILE / SHARE; i++)
            if (s[i] != -INFINITY)
                s[i] = changed(a, head, s[i],
                               behind(&q_ids, own_row(), &k_ids, own_share() + i * SHARE));
        for (int i = 0; i < TILE / SHARE; i++)
            above = fmaxf(above, s[i]);
        above = row_max(above);
        rescale = above == -INFINITY ? 1.0f : expf(top - above);
        for (int i = 0; i < TILE / SHARE; i++) {
            float p = s[i] == -INFINITY ? 0.0f : expf(s[i] - above);

            weights[own_row() * TILE + own_share() + i * SHARE] = p;
            part += p;
        }
        sum = sum * rescale + row_sum(part);
        top = above;
        for (int i = 0; i < OWNED; i++)
            acc[i] *= rescale;
        __syncwarp();
        gather(a.value, weights, v, acc);
    }
    if (token >= a.queries.tokens)
        return;
    write_owned(a.value, a.o, a.o_stride, a.out_kind[0], b, head, token, acc,
                sum == 0 ? 0.0f : 1.0f / sum);
    if (own_share() == 0)
        a.lse[(b * a.heads + head) * a.queries.tokens + token] = top + logf(sum);
}

/* ---- backward ---- */

/* delta[b, h, t] = sum of do o: a warp for each, or for several */
template <typename T> DEVICE void delta_of_row(const gpu_attention &a, int64_t row)
{
    int64_t t = row % a.queries.tokens, head = row / a.queries.tokens % a.heads;
    int64_t b = row / a.queries.tokens / a.heads;
    const T *d_o =
        (const T *)a.d_o + b * a.do_stride[0] + t * a.do_stride[1] + head * a.do_stride[2];
    const T *o =
        (const T *)a.o_in + b * a.oin_stride[0] + t * a.oin_stride[1] + head * a.oin_stride[2];
    float sum = 0;

    for (int i = (int)threadIdx.x % 32; i < a.value.size; i += 32)
        sum += to_float(d_o[i]) * to_float(o[i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        a.delta[row] = sum;
}

template <typename T> DEVICE void attention_delta(const gpu_attention &a)
{
    int64_t rows = is_wanted(a) ? a.batch * a.heads * a.queries.tokens : 0;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;

    for (; row < rows; row += (int64_t)gridDim.x * blockDim.x / 32)
        delta_of_row<T>(a, row);
}

/* p = exp(s - lse) of a pair, and the gradient of its scaled score. */
struct pair {
    float p, ds;
};

DEVICE pair pair_of(const gpu_attention &a, int64_t head, bool seen, int64_t behind, const float *q,
                    const float *k, const float *d_o, const float *v, float lse, float delta)
{
    pair x = {0.0f, 0.0f};
    float score, slope;

    if (!seen)
        return x;
    score = changed(a, head, a.scale * dot(a.key, q, k), behind);
    slope = a.softcap > 0 ? 1.0f - score / a.softcap * (score / a.softcap) : 1.0f;
    x.p = expf(score - lse);
    x.ds = x.p * (dot(a.value, d_o, v) - delta) * a.scale * slope;
    return x;
}

DEVICE void read_rows(const gpu_attention &a, int64_t b, int64_t head, int64_t begin, float *lse,
                      float *delta)
{
    int64_t token = begin + threadIdx.x, at = (b * a.heads + head) * a.queries.tokens + token;

    if (threadIdx.x >= TILE)
        return;
    lse[threadIdx.x] = token < a.queries.tokens ? a.lse_in[at] : 0.0f;
    delta[threadIdx.x] = token < a.queries.tokens ? a.delta[at] : 0.0f;
}

/* Rows are queries. */
template <typename T> DEVICE void attention_dq(const gpu_attention &a)
{
    __shared__ row_ids q_ids, k_ids;
    __shared__ float lse[TILE], delta[TILE];
    int64_t begin = (int64_t)blockIdx.x * TILE, head = blockIdx.y, b = blockIdx.z;
    int64_t group = head / (a.heads / a.groups), token = begin + own_row();
    float acc[OWNED] = {0};
    DYNAMIC_SHARED(float, q);
    float *d_o = q + TILE * a.key.padded, *k = d_o + TILE * a.value.padded;
    float *v = k + TILE * a.key.padded, *weights = v + TILE * a.value.padded;
    int key_row = own_row() * a.key.padded, value_row = own_row() * a.value.padded;

    read_tile<T>(a.key, a.q, a.q_stride, b, head, begin, a.queries.tokens, q);
    read_tile<T>(a.value, a.d_o, a.do_stride, b, head, begin, a.queries.tokens, d_o);
    read_ids<TILE>(a.queries, b, begin, &q_ids);
    read_rows(a, b, head, begin, lse, delta);
    for (int64_t j = 0; j < a.keys.tokens; j += TILE) {
        __syncthreads();
        read_ids<TILE>(a.keys, b, j, &k_ids);
        __syncthreads();
        if (!any_seen(a, &q_ids, &k_ids, true))
            continue;
        read_tile<T>(a.key, a.k, a.k_stride, b, group, j, a.keys.tokens, k);
        read_tile<T>(a.value, a.v, a.v_stride, b, group, j, a.keys.tokens, v);
        __syncthreads();
        for (int key = own_share(); key < TILE; key += SHARE)
            weights[own_row() * TILE + key] =
                pair_of(a, head, sees(a, &q_ids, own_row(), &k_ids, key),
                        behind(&q_ids, own_row(), &k_ids, key), q + key_row, k + key * a.key.padded,
                        d_o + value_row, v + key * a.value.padded, lse[own_row()], delta[own_row()])
                    .ds;
        __syncwarp();
        gather(a.key, weights, k, acc);
    }
    if (token < a.queries.tokens)
        write_owned(a.key, a.dq, a.dq_stride, a.out_kind[0], b, head, token, acc, 1.0f);
}

/* Rows are keys; all heads of the group, one after the other. */
template <typename T> DEVICE void attention_dkv(const gpu_attention &a)
{
    __shared__ row_ids q_ids, k_ids;
    __shared__ float lse[TILE], delta[TILE];
    int64_t begin = (int64_t)blockIdx.x * TILE, group = blockIdx.y, b = blockIdx.z;
    int64_t share = a.heads / a.groups, token = begin + own_row();
    int64_t tiles = (a.queries.tokens + TILE - 1) / TILE;
    float of_k[OWNED] = {0}, of_v[OWNED] = {0};
    DYNAMIC_SHARED(float, k);
    float *v = k + TILE * a.key.padded, *q = v + TILE * a.value.padded;
    float *d_o = q + TILE * a.key.padded, *p = d_o + TILE * a.value.padded, *ds = p + TILE * TILE;
    int key_row = own_row() * a.key.padded, value_row = own_row() * a.value.padded;

    read_tile<T>(a.key, a.k, a.k_stride, b, group, begin, a.keys.tokens, k);
    read_tile<T>(a.value, a.v, a.v_stride, b, group, begin, a.keys.tokens, v);
    read_ids<TILE>(a.keys, b, begin, &k_ids);
    for (int64_t i = 0; i < share * tiles; i++) {
        int64_t head = group * share + i / tiles, from = i % tiles * TILE;

        __syncthreads();
        read_ids<TILE>(a.queries, b, from, &q_ids);
        __syncthreads();
        if (!any_seen(a, &q_ids, &k_ids, false))
            continue;
        read_tile<T>(a.key, a.q, a.q_stride, b, head, from, a.queries.tokens, q);
        read_tile<T>(a.value, a.d_o, a.do_stride, b, head, from, a.queries.tokens, d_o);
        read_rows(a, b, head, from, lse, delta);
        __syncthreads();
        for (int query = own_share(); query < TILE; query += SHARE) {
            bool seen =
                from + query < a.queries.tokens && sees(a, &q_ids, query, &k_ids, own_row());
            pair x = pair_of(a, head, seen, behind(&q_ids, query, &k_ids, own_row()),
                             q + query * a.key.padded, k + key_row, d_o + query * a.value.padded,
                             v + value_row, lse[query], delta[query]);

            p[own_row() * TILE + query] = x.p;
            ds[own_row() * TILE + query] = x.ds;
        }
        __syncwarp();
        gather(a.key, ds, q, of_k);
        gather(a.value, p, d_o, of_v);
    }
    if (token >= a.keys.tokens)
        return;
    write_owned(a.key, a.dk, a.dk_stride, a.out_kind[1], b, group, token, of_k, 1.0f);
    write_owned(a.value, a.dv, a.dv_stride, a.out_kind[2], b, group, token, of_v, 1.0f);
}

/* Three blocks of dq: left alone, ptxas aims at four, and spills. */
#define ATTENTION(T, dtype)                                                                        \
    KERNEL(attention_##dtype, gpu_attention, 256)                                                  \
    {                                                                                              \
        attention<T>(a);                                                                           \
    }                                                                                              \
    KERNEL(attention_delta_##dtype, gpu_attention, 256)                                            \
    {                                                                                              \
        attention_delta<T>(a);                                                                     \
    }                                                                                              \
    KERNEL(attention_dq_##dtype, gpu_attention, 256 COMMA 3)                                       \
    {                                                                                              \
        attention_dq<T>(a);                                                                        \
    }                                                                                              \
    KERNEL(attention_dkv_##dtype, gpu_attention, 256)                                              \
    {                                                                                              \
        attention_dkv<T>(a);                                                                       \
    }
FOR_DTYPES(ATTENTION)

/* ---- beside cuDNN's kernels ---- */

/* A warp for each token of a head. */
KERNEL(attention_unseen, gpu_unseen, 256)
{
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int64_t head = row % a.heads, token = row / a.heads % a.tokens, b = row / a.heads / a.tokens;
    float zero[1] = {0.0f};

    if (b >= a.batch || (token >= a.from && token < a.to))
        return;
    for (int i = (int)threadIdx.x % 32; i < a.size; i += 32)
        store_as<1>(a.kind, a.x, b * a.stride[0] + token * a.stride[1] + head * a.stride[2] + i,
                    zero);
    if (a.lse && threadIdx.x % 32 == 0)
        a.lse[(b * a.heads + head) * a.tokens + token] = -INFINITY;
}

/* Does a document begin at this token, number `at` of its row? */
DEVICE bool begins(const gpu_packing &a, int64_t token, int32_t at)
{
    return at == 0 || a.documents[token] != a.documents[token - 1];
}

DEVICE int32_t next_of_row(const gpu_packing &a, int32_t at)
{
    return at + 1 < a.tokens ? at + 1 : 0;
}

/* Has an earlier sequence of its row the id of sequence s? Its tokens would be seen. */
DEVICE bool is_repeated(const gpu_packing &a, int64_t s)
{
    int64_t row = a.first[s] / a.tokens * a.tokens;
    int32_t id = a.documents[a.first[s]];

    for (int64_t i = s - 1; i >= 0 && a.first[i] >= row; i--)
        if (a.documents[a.first[i]] == id)
            return true;
    return false;
}

/* One block, of which a thread takes tokens that follow each other. */
KERNEL(attention_documents, gpu_packing, GPU_PACKERS)
{
    int64_t count = a.rows * a.tokens, each = (count + GPU_PACKERS - 1) / GPU_PACKERS;
    int64_t from = each * threadIdx.x, to = from + each < count ? from + each : count;
    int32_t own = 0, at = (int32_t)(from % a.tokens), total, next;
    bool bad = false;

    for (int64_t i = from; i < to; i++, at = next_of_row(a, at))
        own += begins(a, i, at);
    next = sum_before_thread(own, &total);
    at = (int32_t)(from % a.tokens);
    for (int64_t i = from; i < to && next < a.most; i++, at = next_of_row(a, at))
        if (begins(a, i, at))
            a.first[next++] = (int32_t)i;
    __syncthreads();
    for (int64_t s = threadIdx.x; s < total && total <= a.most; s += GPU_PACKERS)
        bad |= is_repeated(a, s);
    bad = __syncthreads_or(bad || total > a.most);
    if (bad)
        total = 0;
    for (int64_t s = threadIdx.x; s <= a.most; s += GPU_PACKERS) {
        int64_t begin = s < total ? a.first[s] : count;
        int64_t end = s + 1 < total ? a.first[s + 1] : count;

        if (s < a.most)
            a.lengths[s] = (int32_t)(end - begin);
        for (int i = 0; i < a.tensors; i++)
            a.begins[i * a.pitch + s] = begin * a.stride[i];
    }
    if (threadIdx.x == 0)
        *a.unpacked = bad;
}

KERNEL(attention_statistics, gpu_pack_statistics, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, token = i % a.tokens;
    int64_t head = i / a.tokens % a.heads, row = i / a.tokens / a.heads;
    int64_t at = (row * a.tokens + token) * a.heads + head;

    if (row >= a.rows)
        return;
    if (a.pack)
        a.of_tokens[at] = a.of_rows[i];
    else
        a.of_rows[i] = a.of_tokens[at];
}

/* A warp for each vector. */
KERNEL(cache_write, gpu_cache_write, 256)
{
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int64_t group = row % a.groups, token = row / a.groups, b = token / a.tokens, position;
    const uint8_t *from = (const uint8_t *)a.x;
    uint8_t *to = (uint8_t *)a.cache;

    if (row >= a.rows)
        return;
    position = a.positions[token];
    if (position < 0)
        return;
    if (!in_range(CT_CUDA_FAULT_SLOT, position, token, a.slots, a.fault))
        return;
    from += b * a.stride[0] + token % a.tokens * a.stride[1] + group * a.stride[2];
    to += b * a.cache_stride[0] + position * a.cache_stride[1] + group * a.cache_stride[2];
    for (int i = (int)threadIdx.x % 32; i < a.bytes; i += 32)
        to[i] = from[i];
}

/* ---- merging ---- */

/* Attention over two sets of keys from that over each: a warp for each query of a head. */
KERNEL(attention_merge, gpu_attention_merge, 256)
{
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int64_t head = row % a.heads, t = row / a.heads % a.tokens, b = row / a.heads / a.tokens;
    int64_t at = (b * a.heads + head) * a.tokens + t;
    float first, second, top, of_first, of_second, sum;

    if (b >= a.batch)
        return;
    first = a.a_lse[at];
    second = a.b_lse[at];
    top = fmaxf(first, second);
    of_first = first == -INFINITY ? 0.0f : expf(first - top);
    of_second = second == -INFINITY ? 0.0f : expf(second - top);
    sum = of_first + of_second;
    for (int64_t i = row * a.size + threadIdx.x % 32; i < (row + 1) * a.size; i += 32) {
        float x[1], y[1];

        load_as<1>(a.a_kind, a.a, i, x);
        load_as<1>(a.a_kind, a.b, i, y);
        x[0] = sum == 0 ? 0.0f : (of_first * x[0] + of_second * y[0]) / sum;
        store_as<1>(a.out_kind, a.o, i, x);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        a.lse[at] = sum == 0 ? -INFINITY : top + logf(sum);
}
