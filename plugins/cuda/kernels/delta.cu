/*
 * The gated delta rule (Yang et al. 2024) by chunks (chunks.cuh). Of the tokens i of a chunk,
 *
 *     w[i] = v[i] - exp(G[i]) k[i] S - sum over j < i of D[i, j] (k[i] . k[j]) u[j],  u = beta w
 */
#include "chunks.cuh"

#define GRAIN 16

/* Read a head's part of a chunk. given: tokens before it are in the state. */
DEVICE void read_chunk(const gpu_chunks &a, const chunk_task &t, chunk_numbers *n, int64_t chunk,
                       int64_t head, int64_t skip)
{
    read_keys(a, t, chunk);
    multiply(t.kk, CHUNK, t.k, t.ldk, 1, t.kt, CHUNK, CHUNK, CHUNK, a.key, false);
    read_rows(a, t, a.v, chunk, head, t.w, t.ldv, skip);
    FOR_THREADS(i, CHUNK)
    {
        int64_t token = chunk * CHUNK + i;
        bool there = token < a.tokens;

        n->gate[i] =
            there ? ((const float *)a.gate.data)[row_offset(a.gate, a.inner, t.b, token, head)] : 0;
        n->beta[i] =
            there ? ((const float *)a.beta.data)[row_offset(a.beta, a.inner, t.b, token, head)] : 0;
        n->first[i] =
            there && ((token == 0 && !t.given) || begins_at(a.documents, a.inner, t.b, token));
    }
    __syncthreads();
    weigh(a, t, n, chunk);
    FOR_THREADS(at, SQUARE)
    t.solve[at] = at % CHUNK < at / CHUNK ? -t.decay[at] * t.kk[at] : 0;
    __syncthreads();
}

/* w and u, from the state before. */
DEVICE void solve(const gpu_chunks &a, const chunk_task &t, const chunk_numbers *n, const float *s)
{
    multiply(t.u, t.ldv, t.k, t.ldk, 1, s, t.ldv, CHUNK, t.ldv, a.key, false);
    FOR_THREADS(i, CHUNK * t.ldv)
    t.w[i] -= n->since[i / (int)t.ldv] * t.u[i];
    __syncthreads();
    for (int begin = 0; begin < CHUNK; begin += GRAIN) {
        if (begin)
            multiply(t.w + begin * t.ldv, t.ldv, t.solve + begin * CHUNK, CHUNK, 1, t.u, t.ldv,
                     GRAIN, t.ldv, begin, true);
        FOR_THREADS(v, t.ldv)
        for (int i = begin; i < begin + GRAIN; i++) {
            float x = t.w[i * t.ldv + v];

            for (int j = begin; j < i; j++)
                x += t.solve[i * CHUNK + j] * t.u[j * t.ldv + v];
            t.w[i * t.ldv + v] = x;
            t.u[i * t.ldv + v] = n->beta[i] * x;
        }
        __syncthreads();
    }
}

/* Back through u: o becomes the gradient of w, and so of v; of_beta that of beta. */
DEVICE void back_solve(const chunk_task &t, chunk_numbers *n)
{
    for (int begin = CHUNK - GRAIN; begin >= 0; begin -= GRAIN) {
        int end = begin + GRAIN;

        if (end < CHUNK)
            multiply(t.du + begin * t.ldv, t.ldv, t.solve + end * CHUNK + begin, 1, CHUNK,
                     t.o + end * t.ldv, t.ldv, GRAIN, t.ldv, CHUNK - end, true);
        FOR_THREADS(v, t.ldv)
        for (int i = end - 1; i >= begin; i--) {
            float x = t.du[i * t.ldv + v];

            for (int j = i + 1; j < end; j++)
                x += t.solve[j * CHUNK + i] * t.o[j * t.ldv + v];
            t.du[i * t.ldv + v] = x;
            t.o[i * t.ldv + v] = n->beta[i] * x;
        }
        __syncthreads();
    }
    dot_rows(n->of_beta, 1, NULL, t.du, t.w, t.ldv, false);
}

/* ds of the state before, by what it predicted. */
DEVICE void back_predicted(const chunk_task &t, const chunk_numbers *n)
{
    scale_rows(t.scaled, n->since, -1, t.k, t.ldk);
    multiply(t.ds, t.ldv, t.scaled, 1, t.ldk, t.o, t.ldv, t.ldk, t.ldv, CHUNK, true);
}

/* dk, ds and gradients of gates of what was predicted wrongly. */
DEVICE void back_keys(const gpu_chunks &a, const chunk_task &t, chunk_numbers *n)
{
    multiply(t.d_pairs, CHUNK, t.o, t.ldv, 1, t.ut, CHUNK, CHUNK, CHUNK, a.value, false);
    back_decays(n, t.d_pairs, t.solve);
    FOR_THREADS(at, SQUARE)
    t.d_pairs[at] *= at % CHUNK < at / CHUNK ? -t.decay[at] : 0;
    __syncthreads();
    multiply(t.scaled, t.ldk, t.o, t.ldv, 1, t.turned, t.ldk, CHUNK, t.ldk, a.value, false);
    dot_rows(n->of_since, -1, n->since, t.scaled, t.k, t.ldk, true);
    FOR_THREADS(i, CHUNK * t.ldk)
    t.dk[i] -= n->since[i / (int)t.ldk] * t.scaled[i];
    __syncthreads();
    multiply(t.dk, t.ldk, t.d_pairs, CHUNK, 1, t.k, t.ldk, CHUNK, t.ldk, CHUNK, true);
    multiply(t.dk, t.ldk, t.d_pairs, 1, CHUNK, t.k, t.ldk, CHUNK, t.ldk, CHUNK, true);
    back_predicted(t, n);
}

DEVICE void store_numbers(const gpu_chunks &a, const chunk_task &t, const chunk_numbers *n,
                          int64_t chunk, int64_t head)
{
    FOR_THREADS(i, CHUNK)
    {
        int64_t token = chunk * CHUNK + i;

        if (token < a.tokens) {
            put_number(a.dgate.data, a.dgate.kind, row_offset(a.dgate, a.inner, t.b, token, head),
                       n->of_gate[i], a.accumulate >> 3 & 1);
            put_number(a.dbeta.data, a.dbeta.kind, row_offset(a.dbeta, a.inner, t.b, token, head),
                       n->of_beta[i], a.accumulate >> 4 & 1);
        }
    }
    __syncthreads();
}

KERNEL(gated_delta, gpu_chunks, CHUNK_THREADS)
{
    __shared__ chunk_numbers n;
    __shared__ chunk_task t;

    begin_task(a, t, (a.value + 15) & ~15, false);
    for (int64_t head = t.begin; head < t.end; head++) {
        read_state(a, t, a.state, head, t.s, false);
        for (int64_t chunk = 0; chunk < t.chunks; chunk++) {
            read_chunk(a, t, &n, chunk, head, 0);
            solve(a, t, &n, t.s);
            chunk_output(a, t, &n, t.s);
            write_rows(a, t, a.o, chunk, head, t.o, t.ldv, false);
            chunk_advance(t, &n, t.s);
        }
    }
}

/* The columns of keeps and gain are one state's: that of zeros in front, and of ones. */
KERNEL(gated_delta_carry, gpu_chunks, CHUNK_THREADS)
{
    __shared__ chunk_numbers n;
    int64_t width = (a.key + 15) & ~15;
    __shared__ chunk_task t;

    begin_task(a, t, width + ((a.value + 15) & ~15), true);
    for (int64_t head = t.begin; head < t.end; head++) {
        FOR_THREADS(i, t.ldk * t.ldv)
        t.s[i] = i / t.ldv == i % t.ldv && i / t.ldv < a.key ? 1 : 0;
        __syncthreads();
        for (int64_t chunk = 0; chunk < t.chunks; chunk++) {
            read_chunk(a, t, &n, chunk, head, width);
            solve(a, t, &n, t.s);
            chunk_advance(t, &n, t.s);
        }
        write_state(a, t, a.keeps, head, t.s, a.key, false);
        write_state(a, t, a.gain, head, t.s + width, a.value, false);
    }
}

KERNEL(gated_delta_dstate, gpu_chunks, CHUNK_THREADS)
{
    __shared__ chunk_numbers n;
    __shared__ chunk_task t;

    begin_task(a, t, (a.value + 15) & ~15, true);
    fill(t.w, CHUNK * t.ldv, 0);
    for (int64_t head = t.begin; head < t.end; head++) {
        fill(t.ds, t.ldk * t.ldv, 0);
        for (int64_t chunk = t.chunks - 1; chunk >= 0; chunk--) {
            read_chunk(a, t, &n, chunk, head, 0);
            read_rows(a, t, a.d_o, chunk, head, t.d_o, t.ldv, 0);
            back_into(a, t, &n);
            back_solve(t, &n);
            back_advance(t, &n);
            back_predicted(t, &n);
        }
        write_state(a, t, a.dstate, head, t.ds, a.value, false);
    }
}

KERNEL(gated_delta_grad, gpu_chunks, CHUNK_THREADS)
{
    __shared__ chunk_numbers n;
    __shared__ chunk_task t;

    begin_task(a, t, (a.value + 15) & ~15, false);
    for (int64_t head = t.begin; head < t.end; head++) {
        read_state(a, t, a.state, head, t.states, false);
        for (int64_t chunk = 0; chunk + 1 < t.chunks; chunk++) {
            float *next = t.states + (chunk + 1) * (t.ldk * t.ldv);
            const float *before = next - t.ldk * t.ldv;

            read_chunk(a, t, &n, chunk, head, 0);
            solve(a, t, &n, before);
            FOR_THREADS(i, t.ldk * t.ldv)
            next[i] = before[i];
            __syncthreads();
            chunk_advance(t, &n, next);
        }
        read_state(a, t, a.after, head, t.ds, false);
        for (int64_t chunk = t.chunks - 1; chunk >= 0; chunk--) {
            const float *s = t.states + chunk * (t.ldk * t.ldv);

            read_chunk(a, t, &n, chunk, head, 0);
            solve(a, t, &n, s);
            read_rows(a, t, a.d_o, chunk, head, t.d_o, t.ldv, 0);
            back_chunk(a, t, &n, s);
            back_solve(t, &n);
            back_keys(a, t, &n);
            back_gates(a, &n, chunk);
            write_rows(a, t, a.dv, chunk, head, t.o, t.ldv, a.accumulate >> 2 & 1);
            store_numbers(a, t, &n, chunk, head);
            add_parts(a, t, chunk, head);
        }
    }
}

KERNEL(gated_delta_sum, gpu_chunks, CHUNK_THREADS)
{
    sum_parts(a);
}
