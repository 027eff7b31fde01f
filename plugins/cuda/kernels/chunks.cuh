/*
 * Chunks of linear attention with decays, as the device cpu has them (Yang et al. 2024; Dao and Gu
 * 2024): of the tokens i of a chunk, with G[i] the sum of gates up to i, D[i, j] = exp(G[i] - G[j])
 * for j <= i of the same document, else 0, and S[k, v] the state before,
 *
 *     o = exp(G) q S + (D * q k^T) u
 *     S <- exp(G[last]) S + (D[last] k)^T u
 *
 * A block has a task: some heads of a group, in order, and all chunks of a sequence. Its matrices
 * are in memory of its own, which the L2 cache holds; numbers of tokens are in shared memory. All
 * products are of float32. Rows are padded with zeros to multiples of 16.
 */
#ifndef GPU_CHUNKS_CUH
#define GPU_CHUNKS_CUH

#include <ctitan/lib/cuda/device.cuh>

#include "sequences.cuh"

#define CHUNK GPU_CHUNK
#define SQUARE (CHUNK * CHUNK)
#define CHUNK_THREADS 256

#define FOR_THREADS(i, n) for (int i = (int)threadIdx.x; i < (n); i += (int)blockDim.x)
#define FOR_WARPS(i, n) for (int i = (int)threadIdx.x / 32; i < (n); i += (int)blockDim.x / 32)
#define LANE ((int)threadIdx.x % 32)

/* ---- a task ---- */

/* Numbers of tokens. */
struct chunk_numbers {
    float gate[CHUNK], sum[CHUNK], since[CHUNK], until[CHUNK], beta[CHUNK];
    float step[CHUNK], slope[CHUNK]; /* dt of state_scan; slope of softplus, 0 at a limit */
    float between[CHUNK], of_since[CHUNK], of_until[CHUNK], of_beta[CHUNK], of_gate[CHUNK];
    float of_step[CHUNK], of_skip[CHUNK];
    int document[CHUNK];
    bool first[CHUNK];
    float kept, of_kept;
    float rate, bias;
};

struct chunk_task {
    int64_t b, group, begin, end; /* heads */
    int64_t chunks, ldk, ldv;
    float *q, *k, *kt;                                /* [CHUNK][ldk], kt: [ldk][CHUNK] */
    float *u, *w, *o, *d_o, *du;                      /* [CHUNK][ldv]; w: of u, before beta */
    float *ut;                                        /* [ldv][CHUNK] */
    float *qk, *kk, *decay, *pairs, *solve, *d_pairs; /* [CHUNK][CHUNK] */
    float *scaled, *dq, *dk;                          /* [CHUNK][ldk] */
    float *s, *ds, *turned;                           /* [ldk][ldv]; turned: [ldv][ldk] */
    float *states;                                    /* [chunks][ldk][ldv] */
    bool given;                                       /* there is a state before the first chunk */
};

/* As many floats as `each` counts (recurrence.c). */
DEVICE chunk_task task_of(const gpu_chunks &a, int64_t ldv)
{
    chunk_task t = {};
    int64_t i = blockIdx.x, block = i % a.blocks, share = a.heads / a.groups;
    float *at = a.work + i * a.each;
    int64_t rows_k, rows_v;

    t.group = i / a.blocks % a.groups;
    t.b = i / a.blocks / a.groups;
    t.begin = t.group * share + share * block / a.blocks;
    t.end = t.group * share + share * (block + 1) / a.blocks;
    t.chunks = (a.tokens + CHUNK - 1) / CHUNK;
    t.ldk = (a.key + 15) & ~15;
    t.ldv = ldv;
    rows_k = CHUNK * t.ldk;
    rows_v = CHUNK * ldv;
    t.q = at;
    t.k = t.q + rows_k;
    t.kt = t.k + rows_k;
    t.scaled = t.kt + rows_k;
    t.dq = t.scaled + rows_k;
    t.dk = t.dq + rows_k;
    t.u = t.dk + rows_k;
    t.w = t.u + rows_v;
    t.o = t.w + rows_v;
    t.d_o = t.o + rows_v;
    t.du = t.d_o + rows_v;
    t.ut = t.du + rows_v;
    t.qk = t.ut + rows_v;
    t.kk = t.qk + SQUARE;
    t.decay = t.kk + SQUARE;
    t.pairs = t.decay + SQUARE;
    t.solve = t.pairs + SQUARE;
    t.d_pairs = t.solve + SQUARE;
    t.s = t.d_pairs + SQUARE;
    t.ds = t.s + t.ldk * ldv;
    t.turned = t.ds + t.ldk * ldv;
    t.states = t.turned + t.ldk * ldv;
    t.given = a.state.data != NULL;
    return t;
}

/* The task of this block, in shared memory: its addresses would fill the registers. given: the
   state before the first chunk counts, whether there is one or not. */
DEVICE void begin_task(const gpu_chunks &a, chunk_task &t, int64_t ldv, bool given)
{
    if (threadIdx.x == 0) {
        t = task_of(a, ldv);
        t.given |= given;
    }
    __syncthreads();
}

/* ---- matrices; each ends with a barrier ---- */

DEVICE void fill(float *x, int64_t n, float value)
{
    FOR_THREADS(i, n)
    x[i] = value;
    __syncthreads();
}

/* c[m][n] (+)= sum over l of a[i row + l step] b[l][j]; m and n are multiples of 4. */
DEVICE void multiply(float *c, int64_t ldc, const float *a, int64_t row, int64_t step,
                     const float *b, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add)
{
    int columns = (int)n / 4;

    FOR_THREADS(tile, (int)m / 4 * columns)
    {
        int64_t i = tile / columns * 4, j = tile % columns * 4;
        float sum[4][4] = {};

        for (int64_t l = 0; l < k; l++) {
            float y[4];

            load<4>(b + l * ldb + j, y);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float x = a[(i + r) * row + l * step];

#pragma unroll
                for (int v = 0; v < 4; v++)
                    sum[r][v] += x * y[v];
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float old[4] = {};

            if (add)
                load<4>(c + (i + r) * ldc + j, old);
#pragma unroll
            for (int v = 0; v < 4; v++)
                old[v] += sum[r][v];
            store<4>(c + (i + r) * ldc + j, old);
        }
    }
    __syncthreads();
}

/* to[n][m] = from[m][n] */
DEVICE void transpose(float *to, const float *from, int64_t m, int64_t n)
{
    FOR_THREADS(i, m * n)
    to[i % n * m + i / n] = from[i];
    __syncthreads();
}

/* Rows of x times a factor of each. */
DEVICE void scale_rows(float *y, const float *factor, float sign, const float *x, int64_t columns)
{
    FOR_THREADS(i, CHUNK * columns)
    y[i] = sign * factor[i / columns] * x[i];
    __syncthreads();
}

/* y[row] (+)= factor[row] x[row] . z[row] of the chunk's rows; factor NULL: 1 */
DEVICE void dot_rows(float *y, float sign, const float *factor, const float *x, const float *z,
                     int64_t columns, bool add)
{
    FOR_WARPS(i, CHUNK)
    {
        float sum = 0;

        for (int64_t j = LANE; j < columns; j += 32)
            sum += x[i * columns + j] * z[i * columns + j];
        sum = warp_sum(sum) * sign * (factor ? factor[i] : 1);
        if (LANE == 0)
            y[i] = sum + (add ? y[i] : 0);
    }
    __syncthreads();
}

/* ---- reading and writing ---- */

/* Rows of a head in a chunk, from column `skip` on, zeros elsewhere; absent: zeros. */
DEVICE void read_rows(const gpu_chunks &a, const chunk_task &t, const gpu_sequence &r,
                      int64_t chunk, int64_t head, float *to, int64_t columns, int64_t skip)
{
    FOR_THREADS(i, CHUNK * columns)
    {
        int64_t token = chunk * CHUNK + i / columns, j = i % columns - skip;
        bool there = r.data && token < a.tokens && j >= 0 && j < r.size;

        to[i] = there ? number_at(r.data, r.kind, row_offset(r, a.inner, t.b, token, head) + j) : 0;
    }
    __syncthreads();
}

DEVICE void write_rows(const gpu_chunks &a, const chunk_task &t, const gpu_sequence &r,
                       int64_t chunk, int64_t head, const float *from, int64_t columns, bool add)
{
    FOR_THREADS(i, CHUNK * columns)
    {
        int64_t token = chunk * CHUNK + i / columns, j = i % columns;

        if (token < a.tokens && j < r.size)
            put_number(r.data, r.kind, row_offset(r, a.inner, t.b, token, head) + j, from[i], add);
    }
    __syncthreads();
}

/* s[rows][ld] of a state [.., h, rows, columns], or turned around; absent: zeros. */
DEVICE void read_state(const gpu_chunks &a, const chunk_task &t, const gpu_sequence &r,
                       int64_t head, float *s, bool turned)
{
    FOR_THREADS(i, t.ldk * t.ldv)
    {
        int k = i / (int)t.ldv, v = i % (int)t.ldv;
        bool there = r.data && k < a.key && v < a.value;

        s[i] =
            there
                ? ((const float *)
                       r.data)[row_offset(r, a.inner, t.b, head, turned ? v : k) + (turned ? k : v)]
                : 0;
    }
    __syncthreads();
}

DEVICE void write_state(const gpu_chunks &a, const chunk_task &t, const gpu_sequence &r,
                        int64_t head, const float *s, int64_t columns, bool turned)
{
    FOR_THREADS(i, a.key * columns)
    {
        int64_t k = i / columns, v = i % columns;

        ((float *)r.data)[row_offset(r, a.inner, t.b, head, turned ? v : k) + (turned ? k : v)] =
            s[k * t.ldv + v];
    }
    __syncthreads();
}

/* Queries and keys of a chunk, and their products. */
DEVICE void read_keys(const gpu_chunks &a, const chunk_task &t, int64_t chunk)
{
    read_rows(a, t, a.q.data ? a.q : a.k, chunk, t.group, t.q, t.ldk, 0);
    read_rows(a, t, a.k.data ? a.k : a.q, chunk, t.group, t.k, t.ldk, 0);
    transpose(t.kt, t.k, CHUNK, t.ldk);
    multiply(t.qk, CHUNK, t.q, t.ldk, 1, t.kt, CHUNK, CHUNK, CHUNK, a.key, false);
}

/* Decays and pairs, from gates and first tokens. */
DEVICE void weigh(const gpu_chunks &a, const chunk_task &t, chunk_numbers *n, int64_t chunk)
{
    int count = a.tokens - chunk * CHUNK < CHUNK ? (int)(a.tokens - chunk * CHUNK) : CHUNK;

    if (threadIdx.x == 0) {
        int documents = 0;
        float sum = 0;

        for (int i = 0; i < CHUNK; i++) {
            n->document[i] = i < count ? documents += n->first[i] : -1;
            n->sum[i] = sum = i >= count ? sum : n->first[i] ? 0 : sum + n->gate[i];
        }
        for (int i = 0; i < CHUNK; i++) {
            n->since[i] = n->document[i] == 0 ? expf(n->sum[i]) : 0;
            n->until[i] = n->document[i] == documents ? expf(sum - n->sum[i]) : 0;
        }
        n->kept = documents == 0 ? expf(sum) : 0;
    }
    __syncthreads();
    FOR_THREADS(at, SQUARE)
    {
        int i = at / CHUNK, j = at % CHUNK;
        bool seen = j <= i && i < count && n->document[i] == n->document[j];

        t.decay[at] = seen ? expf(n->sum[i] - n->sum[j]) : 0;
        t.pairs[at] = seen ? t.decay[at] * t.qk[at] : 0;
    }
    __syncthreads();
}

/* ---- forward ---- */

/* o, from u, pairs and the state before. */
DEVICE void chunk_output(const gpu_chunks &a, const chunk_task &t, const chunk_numbers *n,
                         const float *s)
{
    multiply(t.o, t.ldv, t.q, t.ldk, 1, s, t.ldv, CHUNK, t.ldv, a.key, false);
    scale_rows(t.o, n->since, 1, t.o, t.ldv);
    multiply(t.o, t.ldv, t.pairs, CHUNK, 1, t.u, t.ldv, CHUNK, t.ldv, CHUNK, true);
}

/* The state becomes the one after the chunk. */
DEVICE void chunk_advance(const chunk_task &t, const chunk_numbers *n, float *s)
{
    FOR_THREADS(i, t.ldk * t.ldv)
    s[i] *= n->kept;
    scale_rows(t.scaled, n->until, 1, t.k, t.ldk);
    multiply(s, t.ldv, t.scaled, 1, t.ldk, t.u, t.ldv, t.ldk, t.ldv, CHUNK, true);
}

/* ---- gradient ---- */

/* du from the state behind and from o. */
DEVICE void back_into(const gpu_chunks &a, const chunk_task &t, const chunk_numbers *n)
{
    scale_rows(t.scaled, n->until, 1, t.k, t.ldk);
    multiply(t.du, t.ldv, t.scaled, t.ldk, 1, t.ds, t.ldv, CHUNK, t.ldv, a.key, false);
    multiply(t.du, t.ldv, t.pairs, 1, CHUNK, t.d_o, t.ldv, CHUNK, t.ldv, CHUNK, true);
}

/* ds becomes what the state before has of the one behind, and of o. */
DEVICE void back_advance(const chunk_task &t, const chunk_numbers *n)
{
    FOR_THREADS(i, t.ldk * t.ldv)
    t.ds[i] *= n->kept;
    scale_rows(t.scaled, n->since, 1, t.q, t.ldk);
    multiply(t.ds, t.ldv, t.scaled, 1, t.ldk, t.d_o, t.ldv, t.ldk, t.ldv, CHUNK, true);
}

/* Gradients of gates: d[i][j] belongs to value[i][j], which decays by the gates behind j up to i.
 */
DEVICE void back_decays(chunk_numbers *n, const float *d, const float *value)
{
    FOR_WARPS(gate, CHUNK)
    {
        float sum = 0;

        for (int i = gate; i < CHUNK; i++)
            for (int j = LANE; j < gate; j += 32)
                sum += d[i * CHUNK + j] * value[i * CHUNK + j];
        sum = warp_sum(sum);
        if (LANE == 0)
            n->between[gate] += sum;
    }
    __syncthreads();
}

/* du, dq, dk, ds and gradients of gates, from d_o, u, the state before and ds of the one behind. */
DEVICE void back_chunk(const gpu_chunks &a, const chunk_task &t, chunk_numbers *n, const float *s)
{
    float sum = 0;

    FOR_THREADS(i, t.ldk * t.ldv)
    sum += s[i] * t.ds[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        n->of_kept = n->kept > 0 ? n->kept * sum : 0;
    FOR_THREADS(i, CHUNK)
    n->between[i] = 0;
    __syncthreads();
    back_into(a, t, n);
    transpose(t.turned, t.ds, t.ldk, t.ldv);
    multiply(t.dk, t.ldk, t.u, t.ldv, 1, t.turned, t.ldk, CHUNK, t.ldk, a.value, false);
    scale_rows(t.dk, n->until, 1, t.dk, t.ldk);
    dot_rows(n->of_until, 1, NULL, t.dk, t.k, t.ldk, false);
    transpose(t.turned, s, t.ldk, t.ldv);
    multiply(t.dq, t.ldk, t.d_o, t.ldv, 1, t.turned, t.ldk, CHUNK, t.ldk, a.value, false);
    scale_rows(t.dq, n->since, 1, t.dq, t.ldk);
    dot_rows(n->of_since, 1, NULL, t.dq, t.q, t.ldk, false);
    back_advance(t, n);
    transpose(t.ut, t.u, CHUNK, t.ldv);
    multiply(t.d_pairs, CHUNK, t.d_o, t.ldv, 1, t.ut, CHUNK, CHUNK, CHUNK, a.value, false);
    back_decays(n, t.d_pairs, t.pairs);
    FOR_THREADS(i, SQUARE)
    t.d_pairs[i] *= t.decay[i];
    __syncthreads();
    multiply(t.dq, t.ldk, t.d_pairs, CHUNK, 1, t.k, t.ldk, CHUNK, t.ldk, CHUNK, true);
    multiply(t.dk, t.ldk, t.d_pairs, 1, CHUNK, t.q, t.ldk, CHUNK, t.ldk, CHUNK, true);
}

/* of_gate, of all gates of the chunk. */
DEVICE void back_gates(const gpu_chunks &a, chunk_numbers *n, int64_t chunk)
{
    int count = a.tokens - chunk * CHUNK < CHUNK ? (int)(a.tokens - chunk * CHUNK) : CHUNK;

    if (threadIdx.x == 0) {
        float sum = n->of_kept;

        for (int i = 0; i < count; i++) {
            n->of_gate[i] = n->between[i] + sum;
            sum += n->of_until[i];
        }
        sum = 0;
        for (int i = count - 1; i >= 0; i--) {
            sum += n->of_since[i];
            n->of_gate[i] = n->first[i] ? 0 : n->of_gate[i] + sum;
        }
    }
    __syncthreads();
}

/* Add a head's dq and dk of a chunk to the task's. */
DEVICE void add_parts(const gpu_chunks &a, const chunk_task &t, int64_t chunk, int64_t head)
{
    int64_t size = a.tokens * t.ldk;
    float *dq = a.parts + blockIdx.x * size + chunk * CHUNK * t.ldk, *dk = dq + a.tasks * size;

    FOR_THREADS(i, CHUNK * t.ldk)
    if (chunk * CHUNK + i / t.ldk < a.tokens) {
        dq[i] = t.dq[i] + (head > t.begin ? dq[i] : 0);
        dk[i] = t.dk[i] + (head > t.begin ? dk[i] : 0);
    }
    __syncthreads();
}

/* One row of dq and of dk of a group: the sums over its tasks, in order. A block has a token. */
DEVICE void sum_parts(const gpu_chunks &a)
{
    int64_t ldk = (a.key + 15) & ~15, size = a.tokens * ldk, token = blockIdx.x % a.tokens;
    int64_t group = blockIdx.x / a.tokens % a.groups, b = blockIdx.x / a.tokens / a.groups;
    const float *from = a.parts + (b * a.groups + group) * a.blocks * size + token * ldk;

    FOR_THREADS(j, a.key)
    {
        float dq = 0, dk = 0;

        for (int64_t block = 0; block < a.blocks; block++) {
            dq += from[block * size + j];
            dk += from[(a.tasks + block) * size + j];
        }
        put_number(a.dq.data, a.dq.kind, row_offset(a.dq, a.inner, b, token, group) + j, dq,
                   a.accumulate & 1);
        put_number(a.dk.data, a.dk.kind, row_offset(a.dk, a.inner, b, token, group) + j, dk,
                   a.accumulate >> 1 & 1);
    }
}

#endif
