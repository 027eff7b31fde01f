/*
 * The gated delta rule by chunks (chunks.h). Of the tokens i of a chunk,
 *
 *     w[i] = v[i] - exp(G[i]) k[i] S - sum over j < i of D[i, j] (k[i] . k[j]) u[j],  u = beta w
 *
 * which is solved grain by grain. Threads share the groups of heads: each reads a group's queries
 * and keys once, and sums their gradients over its heads in order.
 */
#include <omp.h>

#include "../cpu.h"
#include "chunks.h"
#include "kernels.h"

enum { STATE = 6, SLOTS, BEFORE }; /* inputs of gated_delta */

/* The operands of one sequence; those that an op has not are absent. */
struct delta {
    struct rows q, k, v, gate, beta, documents;
    struct widths w;
    int64_t tokens, chunks, share; /* share: heads of values in a group */
};

/* One head's matrices in a chunk, beside those of every kind of linear attention. */
struct solver {
    struct chunk c;
    float *solve; /* -D * k k^T for j < i, [CHUNK][CHUNK] */
    float *v;     /* v, then w, [CHUNK][ldv] */
    float beta[CHUNK], dbeta[CHUNK];
    bool given; /* there is a state before the first chunk */
};

/* The calls of the kernels: where operands are, and the sizes. */
struct call {
    int64_t batch, groups, heads, tokens;
    struct widths w;
    size_t thread; /* bytes of each */
    int threads;
};

static struct call call_of(const struct ct_tensor *k, const struct ct_tensor *v)
{
    const int64_t *of_k = k->shape + k->ndim - 3, *of_v = v->shape + v->ndim - 3;

    return (struct call){.batch = ct_shape_count(k->ndim - 3, k->shape),
                         .groups = of_k[1],
                         .heads = of_v[1],
                         .tokens = of_k[0],
                         .w = widths_of(of_k[2], of_v[2])};
}

static int64_t chunks_of(int64_t tokens)
{
    return (tokens + CHUNK - 1) / CHUNK;
}

/* Floats of a group's tokens, and of a head whose rows of values have ldv. */
static int64_t solver_floats(const struct call *c, int64_t ldv)
{
    return chunks_of(c->tokens) * SHARED_FLOATS(c->w.ldk) + CHUNK_FLOATS(c->w.ldk, ldv) +
           CHUNK * (CHUNK + ldv);
}

static int prepare_delta(struct ct_prepare *p, struct call c, int64_t floats)
{
    struct call *state = ct_arena_new(p->arena, struct call);

    c.threads = cpu_threads();
    c.thread = sizeof(float) * (size_t)ROW_WIDTH(floats);
    p->workspace = c.thread * (size_t)c.threads;
    *state = c;
    p->state = state;
    return 0;
}

static float *own_memory(const struct ct_launch *l, const struct call *c)
{
    return (float *)(void *)((char *)l->workspace + c->thread * (size_t)omp_get_thread_num());
}

static float *solver_place(struct solver *s, const struct widths *w, float *at)
{
    at = chunk_place(&s->c, w, at);
    s->solve = at;
    s->v = s->solve + CHUNK * CHUNK;
    return s->v + CHUNK * w->ldv;
}

/* Inputs begin at `at` with q, or with k where `queries` is false; v may be missing. */
static struct delta delta_of(const struct ct_launch *l, const struct call *c, int64_t b, int q,
                             int k, int v, int gate)
{
    struct delta d = {.w = c->w, .tokens = c->tokens, .chunks = chunks_of(c->tokens)};

    d.q = rows_of_input(l, q, b, 3);
    d.k = rows_of_input(l, k, b, 3);
    if (v >= 0)
        d.v = rows_of_input(l, v, b, 3);
    d.gate = rows_of_input(l, gate, b, 2);
    d.beta = rows_of_input(l, gate + 1, b, 2);
    d.documents = rows_of_input(l, gate + 2, b, 1);
    d.share = c->heads / c->groups;
    return d;
}

static void read_group(const struct delta *d, bool queries, int64_t group, float *memory)
{
    for (int64_t i = 0; i < d->chunks; i++) {
        struct shared s = shared_at(memory, &d->w, d->tokens, i);

        shared_read(&s, &d->w, queries ? &d->q : NULL, &d->k, i * CHUNK, group, true);
    }
}

/* -D * k k^T for j < i */
static void weigh_keys(struct solver *s)
{
    for (int64_t i = 0; i < s->c.s.rows; i++)
        for (int64_t j = 0; j < i / GRAIN * GRAIN + GRAIN; j += CPU_LANES) {
            int64_t at = i * CHUNK + j;
            vi earlier = v_iota() + v_seti((int32_t)j) < (int32_t)i;

            v_store(s->solve + at,
                    v_select(earlier, -v_load(s->c.decay + at) * v_load(s->c.s.kk + at), v_set(0)));
        }
}

/* Read head h's part of a chunk; values are put `skip` columns from the left, if there are any. */
static void read_chunk(const struct delta *d, struct solver *s, float *group, int64_t h,
                       int64_t chunk, int64_t skip)
{
    struct chunk *c = &s->c;

    c->s = shared_at(group, &d->w, d->tokens, chunk);
    for (int64_t i = 0; i < c->s.count; i++) {
        int64_t t = chunk * CHUNK + i;

        c->gate[i] = row_number(&d->gate, t, h);
        s->beta[i] = row_number(&d->beta, t, h);
        c->first[i] = (t == 0 && !s->given) || row_begins(&d->documents, t);
        chunk_zero(s->v + i * c->w.ldv, skip);
        if (d->v.at)
            row_load(&d->v, t, h, s->v + i * c->w.ldv + skip);
    }
    chunk_zero(s->v + c->s.count * c->w.ldv, (c->s.rows - c->s.count) * c->w.ldv);
    for (int64_t i = c->s.count; i < c->s.rows; i++)
        s->beta[i] = 0;
    chunk_decays(c);
    weigh_keys(s);
}

/* Rows of a grain, one after the other: v[i] += solve[i][j] u[j], u[i] = beta[i] v[i]. */
static void solve_grain(struct solver *s, int64_t begin)
{
    int64_t ldv = s->c.w.ldv;

    for (int64_t i = begin; i < begin + GRAIN; i++) {
        float *v = s->v + i * ldv;

        for (int64_t j = begin; j < i; j++)
            chunk_add(v, s->solve[i * CHUNK + j], s->c.u + j * ldv, ldv);
        chunk_scale(s->c.u + i * ldv, s->beta[i], v, ldv);
    }
}

/* w and u, from the state before. */
static void solve(struct solver *s, const float *state)
{
    struct chunk *c = &s->c;
    int64_t ldv = c->w.ldv;

    chunk_multiply(c->u, ldv, c->s.k, c->w.ldk, state, ldv, c->s.rows, ldv, c->w.k, false);
    for (int64_t i = 0; i < c->s.rows; i++)
        chunk_add(s->v + i * ldv, -c->since[i], c->u + i * ldv, ldv);
    for (int64_t i = 0; i < c->s.rows; i += GRAIN) {
        if (i > 0)
            chunk_multiply(s->v + i * ldv, ldv, s->solve + i * CHUNK, CHUNK, c->u, ldv, GRAIN, ldv,
                           i, true);
        solve_grain(s, i);
    }
}

static bool accepts_delta(const struct ct_prepare *p, int rows, int gate)
{
    enum ct_dtype dtype = p->in[0].dtype;
    bool same = cpu_is_compute_dtype(dtype);

    for (int i = 0; i < rows; i++)
        same &= p->in[i].dtype == dtype;
    return same && p->in[gate].dtype == CT_F32 && p->in[gate + 1].dtype == CT_F32;
}

/* ---- forward ---- */

bool CPU_ISA(cpu_gated_delta_accepts)(const struct ct_prepare *p)
{
    return accepts_delta(p, 3, 3) && p->out[0].dtype == p->in[0].dtype;
}

int CPU_ISA(cpu_gated_delta_prepare)(struct ct_prepare *p)
{
    struct call c = call_of(&p->in[1], &p->in[2]);

    return prepare_delta(p, c, solver_floats(&c, c.w.ldv) + c.w.ldv * (c.w.ldk + CHUNK));
}

static void forward_head(const struct ct_launch *l, const struct delta *d, float *group,
                         struct solver *s, float *state, int64_t b, int64_t h)
{
    struct rows out = rows_of(l->out, b, 3);
    float *o = state + d->w.ldk * d->w.ldv;
    bool part = l->ins > STATE && l->in[STATE].data;

    if (s->given)
        state_load(l, part ? STATE : BEFORE, b, h, state, &d->w);
    else
        chunk_zero(state, d->w.ldk * d->w.ldv);
    for (int64_t i = 0; i < d->chunks; i++) {
        read_chunk(d, s, group, h, i, 0);
        solve(s, state);
        chunk_weigh(&s->c);
        chunk_output(&s->c, state, o);
        for (int64_t t = 0; t < s->c.s.count; t++)
            row_store(&out, i * CHUNK + t, h, false, o + t * d->w.ldv);
        chunk_advance(&s->c, state);
    }
    if (part)
        state_store(&l->in[STATE], b, h, state, d->w.ldv, d->w.k);
}

/* Rows of tokens that only fill the row. */
static void clear_rows(const struct ct_launch *l, int64_t b, int64_t h, int64_t from, int64_t to)
{
    struct rows out = rows_of(l->out, b, 3);

    for (int64_t t = from; t < to; t++)
        memset(row_at(&out, t, h), 0, (size_t)out.size * ct_dtype_size(out.dtype));
}

int CPU_ISA(cpu_gated_delta_run)(const struct ct_launch *l)
{
    const struct call *c = l->state;

#pragma omp parallel for schedule(static) num_threads(c->threads)
    for (int64_t i = 0; i < c->batch * c->groups; i++) {
        int64_t b = i / c->groups, group = i % c->groups;
        struct delta d = delta_of(l, c, b, 0, 1, 2, 3);
        float *memory = own_memory(l, c), *at = memory + d.chunks * SHARED_FLOATS(d.w.ldk);
        const struct ct_tensor *slots = l->ins > SLOTS && l->in[SLOTS].data ? &l->in[SLOTS] : NULL;
        struct solver s = {.given = slots ? !ct_slots_begin(slots, b)
                                          : l->ins > BEFORE && l->in[BEFORE].data};

        at = solver_place(&s, &d.w, at);
        d.tokens = ct_slots_used(slots, b, c->tokens);
        d.chunks = chunks_of(d.tokens);
        read_group(&d, true, group, memory);
        for (int64_t h = group * d.share; h < (group + 1) * d.share; h++) {
            forward_head(l, &d, memory, &s, at, b, h);
            clear_rows(l, b, h, d.tokens, c->tokens);
        }
    }
    return 0;
}

/* ---- gradient ---- */

/* Back through u: du becomes the gradient of w, and so of v. */
static void back_solve(struct solver *s, struct back *b)
{
    struct chunk *c = &s->c;
    int64_t n = c->s.rows, ldv = c->w.ldv;

    for (int64_t begin = n - GRAIN; begin >= 0; begin -= GRAIN) {
        int64_t end = begin + GRAIN;

        if (end < n)
            chunk_multiply_turned(b->du + begin * ldv, ldv, s->solve + end * CHUNK + begin, CHUNK,
                                  b->du + end * ldv, ldv, GRAIN, ldv, n - end);
        for (int64_t i = end - 1; i >= begin; i--) {
            float *du = b->du + i * ldv;

            for (int64_t j = i + 1; j < end; j++)
                chunk_add(du, s->solve[j * CHUNK + i], b->du + j * ldv, ldv);
            s->dbeta[i] = chunk_dot(du, s->v + i * ldv, ldv);
            chunk_scale(du, s->beta[i], du, ldv);
        }
    }
}

/* ds of the state before, by what it predicted. */
static void back_predicted(struct solver *s, struct back *b)
{
    struct chunk *c = &s->c;

    for (int64_t i = 0; i < c->s.rows; i++)
        chunk_scale(c->scaled + i * c->w.ldk, -c->since[i], c->s.k + i * c->w.ldk, c->w.ldk);
    chunk_multiply_turned(b->ds, c->w.ldv, c->scaled, c->w.ldk, b->du, c->w.ldv, c->w.ldk, c->w.ldv,
                          c->s.rows);
}

/* dk, ds and gradients of gates of what was predicted wrongly; du is the gradient of w. */
static void back_keys(struct solver *s, struct back *b)
{
    struct chunk *c = &s->c;
    int64_t n = c->s.rows, ldk = c->w.ldk;

    chunk_pairs(b->pairs, b->du, c->w.ldv, b->ut, n, c->w.v);
    back_decays(c, b, b->pairs, s->solve);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i / GRAIN * GRAIN + GRAIN; j += CPU_LANES) {
            int64_t at = i * CHUNK + j;
            vi earlier = v_iota() + v_seti((int32_t)j) < (int32_t)i;

            v_store(b->pairs + at,
                    v_select(earlier, -v_load(c->decay + at) * v_load(b->pairs + at), v_set(0)));
        }
    chunk_multiply(c->scaled, ldk, b->du, c->w.ldv, b->turned, ldk, n, ldk, c->w.v, false);
    for (int64_t i = 0; i < c->s.count; i++) {
        const float *of_key = c->scaled + i * ldk;

        b->since[i] -= c->since[i] * chunk_dot(of_key, c->s.k + i * ldk, ldk);
        chunk_add(b->dk + i * ldk, -c->since[i], of_key, ldk);
    }
    chunk_gather(b->dk, b->pairs, c->s.k, n, ldk);
    chunk_scatter(b->dk, b->pairs, c->s.k, n, ldk);
    back_predicted(s, b);
}

/* One thread's gradients, beside those of a chunk. */
struct sums {
    float *states;  /* before each chunk, [chunks][ldk][ldv] */
    float *dq, *dk; /* of the group, [tokens][ldk] */
};

static int64_t back_floats(const struct call *c)
{
    int64_t chunks = chunks_of(c->tokens);

    return BACK_FLOATS(c->w.ldk, c->w.ldv) + chunks * c->w.ldk * (c->w.ldv + 2 * CHUNK);
}

static void keep_states(const struct ct_launch *l, const struct delta *d, float *group,
                        struct solver *s, float *states, int64_t b, int64_t h)
{
    int64_t state = d->w.ldk * d->w.ldv;

    state_load(l, 7, b, h, states, &d->w);
    for (int64_t i = 0; i + 1 < d->chunks; i++, states += state) {
        read_chunk(d, s, group, h, i, 0);
        solve(s, states);
        memcpy(states + state, states, sizeof(*states) * (size_t)state);
        chunk_advance(&s->c, states + state);
    }
}

static void load_chunk(const struct rows *r, const struct chunk *c, int64_t chunk, int64_t h,
                       float *to)
{
    for (int64_t i = 0; i < c->s.count; i++)
        row_load(r, chunk * CHUNK + i, h, to + i * c->w.ldv);
    chunk_zero(to + c->s.count * c->w.ldv, (c->s.rows - c->s.count) * c->w.ldv);
}

static void store_chunk(const struct ct_launch *l, const struct solver *s, const struct back *back,
                        int64_t b, int64_t h, int64_t chunk)
{
    struct rows dv = rows_of(&l->out[2], b, 3), dgate = rows_of(&l->out[3], b, 2);
    struct rows dbeta = rows_of(&l->out[4], b, 2);
    float gates[CHUNK];

    back_gates(&s->c, back, gates);
    for (int64_t i = 0; i < s->c.s.count; i++) {
        int64_t t = chunk * CHUNK + i;

        row_store(&dv, t, h, l->accumulate >> 2 & 1, back->du + i * s->c.w.ldv);
        row_set(&dgate, t, h, l->accumulate >> 3 & 1, gates[i]);
        row_set(&dbeta, t, h, l->accumulate >> 4 & 1, s->dbeta[i]);
    }
}

static void back_head(const struct ct_launch *l, const struct delta *d, float *group,
                      struct solver *s, struct back *back, const struct sums *sums, int64_t b,
                      int64_t h)
{
    struct rows d_o = rows_of(l->in, b, 3);
    int64_t ldk = d->w.ldk;

    keep_states(l, d, group, s, sums->states, b, h);
    state_load(l, 8, b, h, back->ds, &d->w);
    for (int64_t i = d->chunks - 1; i >= 0; i--) {
        const float *state = sums->states + i * ldk * d->w.ldv;

        read_chunk(d, s, group, h, i, 0);
        solve(s, state);
        chunk_weigh(&s->c);
        load_chunk(&d_o, &s->c, i, h, back->d_o);
        back_chunk(&s->c, back, state);
        back_solve(s, back);
        back_keys(s, back);
        store_chunk(l, s, back, b, h, i);
        chunk_add(sums->dq + i * CHUNK * ldk, 1, back->dq, s->c.s.count * ldk);
        chunk_add(sums->dk + i * CHUNK * ldk, 1, back->dk, s->c.s.count * ldk);
    }
}

bool CPU_ISA(cpu_gated_delta_grad_accepts)(const struct ct_prepare *p)
{
    bool same = accepts_delta(p, 4, 4);

    for (int i = 0; i < 3; i++)
        same &= p->out[i].dtype == p->in[0].dtype;
    return same && p->out[3].dtype == CT_F32 && p->out[4].dtype == CT_F32;
}

int CPU_ISA(cpu_gated_delta_grad_prepare)(struct ct_prepare *p)
{
    struct call c = call_of(&p->in[2], &p->in[3]);

    return prepare_delta(p, c, solver_floats(&c, c.w.ldv) + back_floats(&c));
}

static void back_group(const struct ct_launch *l, const struct call *c, int64_t b, int64_t group)
{
    struct delta d = delta_of(l, c, b, 1, 2, 3, 4);
    struct rows dq = rows_of(&l->out[0], b, 3), dk = rows_of(&l->out[1], b, 3);
    float *memory = own_memory(l, c), *at = memory + d.chunks * SHARED_FLOATS(d.w.ldk);
    struct solver s = {.given = l->ins > 7 && l->in[7].data};
    int64_t padded = d.chunks * CHUNK * d.w.ldk;
    struct back back;
    struct sums sums;

    at = back_place(&back, &d.w, solver_place(&s, &d.w, at));
    sums = (struct sums){at + 2 * padded, at, at + padded};
    chunk_zero(sums.dq, 2 * padded);
    read_group(&d, true, group, memory);
    for (int64_t h = group * d.share; h < (group + 1) * d.share; h++)
        back_head(l, &d, memory, &s, &back, &sums, b, h);
    for (int64_t t = 0; t < d.tokens; t++) {
        row_store(&dq, t, group, l->accumulate & 1, sums.dq + t * d.w.ldk);
        row_store(&dk, t, group, l->accumulate >> 1 & 1, sums.dk + t * d.w.ldk);
    }
}

int CPU_ISA(cpu_gated_delta_grad_run)(const struct ct_launch *l)
{
    const struct call *c = l->state;

#pragma omp parallel for schedule(static) num_threads(c->threads)
    for (int64_t i = 0; i < c->batch * c->groups; i++)
        back_group(l, c, i / c->groups, i % c->groups);
    return 0;
}

/* ---- segments ---- */

bool CPU_ISA(cpu_gated_delta_carry_accepts)(const struct ct_prepare *p)
{
    return accepts_delta(p, 2, 2);
}

/* The columns of keeps and gain are one state's: that of zeros in front, and of ones. */
static struct widths both(const struct widths *w)
{
    return (struct widths){w->k, w->ldk + w->v, w->ldk, w->ldk + w->ldv};
}

int CPU_ISA(cpu_gated_delta_carry_prepare)(struct ct_prepare *p)
{
    struct call c = call_of(&p->in[0], &p->in[1]);
    int64_t ldv = both(&c.w).ldv;

    return prepare_delta(p, c, solver_floats(&c, ldv) + c.w.ldk * ldv);
}

int CPU_ISA(cpu_gated_delta_carry_run)(const struct ct_launch *l)
{
    const struct call *c = l->state;

#pragma omp parallel for schedule(static) num_threads(c->threads)
    for (int64_t i = 0; i < c->batch * c->groups; i++) {
        int64_t b = i / c->groups, group = i % c->groups;
        struct delta d = delta_of(l, c, b, 0, 0, 1, 2);
        float *memory = own_memory(l, c), *at = memory + d.chunks * SHARED_FLOATS(d.w.ldk);
        struct widths w = both(&d.w);
        struct solver s = {.given = true};

        at = solver_place(&s, &w, at);
        read_group(&d, false, group, memory);
        for (int64_t h = group * d.share; h < (group + 1) * d.share; h++) {
            chunk_zero(at, w.ldk * w.ldv);
            for (int64_t k = 0; k < w.k; k++)
                at[k * w.ldv + k] = 1;
            for (int64_t chunk = 0; chunk < d.chunks; chunk++) {
                read_chunk(&d, &s, memory, h, chunk, w.ldk);
                solve(&s, at);
                chunk_advance(&s.c, at);
            }
            state_store(&l->out[0], b, h, at, w.ldv, w.k);
            state_store(&l->out[1], b, h, at + w.ldk, w.ldv, w.k);
        }
    }
    return 0;
}

bool CPU_ISA(cpu_gated_delta_dstate_accepts)(const struct ct_prepare *p)
{
    return accepts_delta(p, 3, 3);
}

int CPU_ISA(cpu_gated_delta_dstate_prepare)(struct ct_prepare *p)
{
    struct call c = call_of(&p->in[2], &p->in[0]);

    return prepare_delta(p, c, solver_floats(&c, c.w.ldv) + BACK_FLOATS(c.w.ldk, c.w.ldv));
}

int CPU_ISA(cpu_gated_delta_dstate_run)(const struct ct_launch *l)
{
    const struct call *c = l->state;

#pragma omp parallel for schedule(static) num_threads(c->threads)
    for (int64_t i = 0; i < c->batch * c->groups; i++) {
        int64_t b = i / c->groups, group = i % c->groups;
        struct delta d = delta_of(l, c, b, 1, 2, -1, 3);
        struct rows d_o = rows_of(l->in, b, 3);
        float *memory = own_memory(l, c), *at = memory + d.chunks * SHARED_FLOATS(d.w.ldk);
        struct solver s = {.given = true};
        struct back back;

        back_place(&back, &d.w, solver_place(&s, &d.w, at));
        chunk_zero(s.v, CHUNK * d.w.ldv);
        read_group(&d, true, group, memory);
        for (int64_t h = group * d.share; h < (group + 1) * d.share; h++) {
            chunk_zero(back.ds, d.w.ldk * d.w.ldv);
            for (int64_t chunk = d.chunks - 1; chunk >= 0; chunk--) {
                read_chunk(&d, &s, memory, h, chunk, 0);
                chunk_weigh(&s.c);
                load_chunk(&d_o, &s.c, chunk, h, back.d_o);
                back_into(&s.c, &back);
                back_solve(&s, &back);
                back_advance(&s.c, &back);
                back_predicted(&s, &back);
            }
            state_store(l->out, b, h, back.ds, d.w.ldv, d.w.k);
        }
    }
    return 0;
}
