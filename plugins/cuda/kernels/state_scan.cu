/*
 * The state space scan of Mamba-2 (Dao and Gu 2024) by chunks (chunks.cuh): C are queries, B are
 * keys, a token adds dt x, and gates are dt A. A state lies as [n][p] here.
 */
#include "chunks.cuh"

DEVICE void set_head(const gpu_chunks &a, chunk_numbers *n, int64_t head)
{
    if (threadIdx.x == 0) {
        n->rate = -expf(number_at(a.rate.data, a.rate.kind, head));
        n->bias = number_at(a.bias.data, a.bias.kind, head);
    }
    __syncthreads();
}

/* dt = softplus(raw) within limits, and its slope. */
DEVICE void set_step(const gpu_chunks &a, chunk_numbers *n, int i, float raw)
{
    float e = expf(-fabsf(raw)), value = (raw < 0 ? 0 : raw) + log1pf(e);
    bool limited = value < a.least || value > a.most;

    n->slope[i] = limited ? 0 : (raw < 0 ? e : 1) / (1 + e);
    n->step[i] = value < a.least ? a.least : value > a.most ? a.most : value;
    n->gate[i] = n->rate * n->step[i];
}

DEVICE void read_chunk(const gpu_chunks &a, const chunk_task &t, chunk_numbers *n, int64_t chunk,
                       int64_t head)
{
    read_keys(a, t, chunk);
    read_rows(a, t, a.v, chunk, head, t.w, t.ldv, 0);
    FOR_THREADS(i, CHUNK)
    {
        int64_t token = chunk * CHUNK + i;
        bool there = token < a.tokens;

        set_step(a, n, i,
                 there ? number_at(a.gate.data, a.gate.kind,
                                   row_offset(a.gate, a.inner, t.b, token, head)) +
                             n->bias
                       : 0);
        n->first[i] =
            there && ((token == 0 && !t.given) || begins_at(a.documents, a.inner, t.b, token));
    }
    __syncthreads();
    scale_rows(t.u, n->step, 1, t.w, t.ldv);
    weigh(a, t, n, chunk);
}

KERNEL(state_scan, gpu_chunks, CHUNK_THREADS)
{
    __shared__ chunk_numbers n;
    __shared__ chunk_task t;

    begin_task(a, t, (a.value + 15) & ~15, false);
    for (int64_t head = t.begin; head < t.end; head++) {
        float skip = number_at(a.skip.data, a.skip.kind, head);

        set_head(a, &n, head);
        read_state(a, t, a.state, head, t.s, true);
        for (int64_t chunk = 0; chunk < t.chunks; chunk++) {
            read_chunk(a, t, &n, chunk, head);
            chunk_output(a, t, &n, t.s);
            FOR_THREADS(i, CHUNK * t.ldv)
            t.o[i] += skip * t.w[i];
            __syncthreads();
            write_rows(a, t, a.o, chunk, head, t.o, t.ldv, false);
            chunk_advance(t, &n, t.s);
        }
    }
}

KERNEL(state_scan_carry, gpu_chunks, CHUNK_THREADS)
{
    __shared__ chunk_numbers n;
    __shared__ chunk_task t;

    begin_task(a, t, (a.value + 15) & ~15, true);
    for (int64_t head = t.begin; head < t.end; head++) {
        float keeps = 1;

        set_head(a, &n, head);
        fill(t.s, t.ldk * t.ldv, 0);
        for (int64_t chunk = 0; chunk < t.chunks; chunk++) {
            read_chunk(a, t, &n, chunk, head);
            chunk_advance(t, &n, t.s);
            keeps *= n.kept;
            __syncthreads();
        }
        if (threadIdx.x == 0)
            ((float *)a.keeps.data)[row_offset(a.keeps, a.inner, t.b, head, 0)] = keeps;
        write_state(a, t, a.gain, head, t.s, a.value, true);
    }
}

KERNEL(state_scan_dstate, gpu_chunks, CHUNK_THREADS)
{
    __shared__ chunk_numbers n;
    __shared__ chunk_task t;

    begin_task(a, t, (a.value + 15) & ~15, true);
    for (int64_t head = t.begin; head < t.end; head++) {
        set_head(a, &n, head);
        fill(t.ds, t.ldk * t.ldv, 0);
        for (int64_t chunk = t.chunks - 1; chunk >= 0; chunk--) {
            read_chunk(a, t, &n, chunk, head);
            read_rows(a, t, a.d_o, chunk, head, t.d_o, t.ldv, 0);
            back_advance(t, &n);
        }
        write_state(a, t, a.dstate, head, t.ds, a.value, true);
    }
}

/* dx and ddt of a chunk; sums: of the head's rate, skip and bias, by the first thread. */
DEVICE void store_chunk(const gpu_chunks &a, const chunk_task &t, chunk_numbers *n, int64_t chunk,
                        int64_t head, float skip, double *sums)
{
    back_gates(a, n, chunk);
    dot_rows(n->of_step, 1, NULL, t.du, t.w, t.ldv, false);
    dot_rows(n->of_skip, 1, NULL, t.d_o, t.w, t.ldv, false);
    FOR_THREADS(i, CHUNK * t.ldv)
    t.du[i] = n->step[i / (int)t.ldv] * t.du[i] + skip * t.d_o[i];
    __syncthreads();
    write_rows(a, t, a.dv, chunk, head, t.du, t.ldv, false);
    FOR_THREADS(i, CHUNK)
    {
        int64_t token = chunk * CHUNK + i;
        bool there = token < a.tokens;

        n->of_step[i] = there ? (n->of_step[i] + n->of_gate[i] * n->rate) * n->slope[i] : 0;
        if (there)
            put_number(a.dgate.data, a.dgate.kind, row_offset(a.dgate, a.inner, t.b, token, head),
                       n->of_step[i], false);
    }
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < CHUNK && chunk * CHUNK + i < a.tokens; i++) {
        sums[0] += (double)(n->of_gate[i] * n->gate[i]);
        sums[1] += (double)n->of_skip[i];
        sums[2] += (double)n->of_step[i];
    }
    __syncthreads();
}

KERNEL(state_scan_grad, gpu_chunks, CHUNK_THREADS)
{
    __shared__ chunk_numbers n;
    __shared__ chunk_task t;

    begin_task(a, t, (a.value + 15) & ~15, false);
    int64_t size = t.ldk * t.ldv, sequences = a.tasks / a.blocks / a.groups;
    for (int64_t head = t.begin; head < t.end; head++) {
        float skip = number_at(a.skip.data, a.skip.kind, head);
        double sums[3] = {};

        set_head(a, &n, head);
        read_state(a, t, a.state, head, t.states, true);
        for (int64_t chunk = 0; chunk + 1 < t.chunks; chunk++) {
            float *next = t.states + (chunk + 1) * size;

            read_chunk(a, t, &n, chunk, head);
            FOR_THREADS(i, size)
            next[i] = next[i - size];
            __syncthreads();
            chunk_advance(t, &n, next);
        }
        read_state(a, t, a.after, head, t.ds, true);
        for (int64_t chunk = t.chunks - 1; chunk >= 0; chunk--) {
            read_chunk(a, t, &n, chunk, head);
            read_rows(a, t, a.d_o, chunk, head, t.d_o, t.ldv, 0);
            back_chunk(a, t, &n, t.states + chunk * size);
            store_chunk(a, t, &n, chunk, head, skip, sums);
            add_parts(a, t, chunk, head);
        }
        for (int k = 0; threadIdx.x == 0 && k < 3; k++)
            a.numbers[(k * sequences + t.b) * a.heads + head] = (float)sums[k];
    }
}

KERNEL(state_scan_sum, gpu_chunks, CHUNK_THREADS)
{
    sum_parts(a);
}

/* A thread has a head. */
KERNEL(state_scan_numbers, gpu_chunks_numbers, CHUNK_THREADS)
{
    int64_t head = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    for (int k = 0; k < 3 && head < a.heads; k++) {
        float sum = 0;

        for (int64_t b = 0; b < a.sequences; b++)
            sum += a.numbers[(k * a.sequences + b) * a.heads + head];
        put_number(a.out[k], a.kind[k], head, sum, false);
    }
}
