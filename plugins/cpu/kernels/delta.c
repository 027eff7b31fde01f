/*
 * The gated delta rule in chunks. Threads share the heads of keys, so that each gradient of a key
 * is summed by one of them, in the order of its heads of values.
 */
#include <omp.h>

#include "delta.h"

static bool accepts(const struct ct_prepare *p, int at)
{
    enum ct_dtype dtype = p->in[0].dtype;
    bool same = cpu_is_compute_dtype(dtype);

    for (int i = 0; i < at + 3; i++)
        same &= p->in[i].dtype == dtype;
    return same && p->in[at + 3].dtype == CT_F32 && p->in[at + 4].dtype == CT_F32;
}

struct state {
    size_t order, thread; /* bytes */
    int threads;
};

/* Room for the order of tokens, and for each thread this many floats beside a chunk. */
static int prepare(struct ct_prepare *p, int at, int64_t floats)
{
    struct state *s = ct_arena_new(p->arena, struct state);
    int64_t ldk = DELTA_ROW(p->in[at].shape[3]), ldv = DELTA_ROW(p->in[at + 2].shape[3]);

    s->threads = cpu_threads();
    cpu_carve(&p->workspace, sizeof(int64_t) * (size_t)p->in[at].shape[1]);
    s->order = p->workspace;
    s->thread = sizeof(float) * (size_t)(DELTA_CHUNK_FLOATS(ldk, ldv) + floats);
    p->workspace += s->thread * (size_t)s->threads;
    p->state = s;
    return 0;
}

static float *own_memory(const struct ct_launch *l)
{
    const struct state *s = l->state;

    return (float *)((char *)l->workspace + s->order + s->thread * (size_t)omp_get_thread_num());
}

/* ---- forward ---- */

bool CPU_ISA(cpu_gated_delta_accepts)(const struct ct_prepare *p)
{
    return accepts(p, 0) && p->out[0].dtype == p->in[0].dtype;
}

int CPU_ISA(cpu_gated_delta_prepare)(struct ct_prepare *p)
{
    int64_t ldk = DELTA_ROW(p->in[0].shape[3]), ldv = DELTA_ROW(p->in[2].shape[3]);

    return prepare(p, 0, ldk * ldv + CHUNK * (ldk + ldv));
}

/* Between the state of a part of a sequence and rows of ldv. */
static void copy_state(const struct delta *d, int64_t b, int64_t h, float *s, bool back)
{
    const struct ct_tensor *t = d->state;
    float *at = (float *)t->data + b * t->stride[0] + h * t->stride[1];

    for (int64_t i = 0; i < d->dk; i++, at += t->stride[2], s += d->ldv)
        memcpy(back ? at : s, back ? s : at, sizeof(*s) * (size_t)d->dv);
}

static void forward_head(const struct ct_launch *l, const struct delta *d, int64_t b, int64_t h)
{
    struct chunk c;
    float *s = delta_place(&c, d->ldk, d->ldv, own_memory(l)), *o = s + d->ldk * d->ldv;
    float *scaled = o + CHUNK * d->ldv;
    int64_t used = ct_slots_used(d->slots, b, d->tokens);

    memset(s, 0, sizeof(*s) * (size_t)(d->ldk * d->ldv));
    if (d->state)
        copy_state(d, b, h, s, false);
    for (int64_t begin = 0; begin < used; begin += CHUNK) {
        delta_read(d, &c, b, h, begin, used);
        delta_solve(d, &c, s);
        memset(o, 0, sizeof(*o) * (size_t)(c.count * d->ldv));
        delta_multiply(o, d->ldv, c.q, d->ldk, 1, s, d->ldv, c.count, d->ldv, d->dk);
        for (int64_t i = 0; i < c.count * d->ldv; i++)
            o[i] *= c.since[i / d->ldv];
        delta_multiply(o, d->ldv, c.pairs, CHUNK, 1, c.u, d->ldv, c.count, d->ldv, c.count);
        for (int64_t i = 0; i < c.count; i++)
            delta_store(d, l->out, b, begin + i, h, false, o + i * d->ldv);
        delta_advance(d, &c, s, scaled);
    }
    memset(o, 0, sizeof(*o) * (size_t)d->ldv);
    for (int64_t t = used; t < d->tokens; t++)
        delta_store(d, l->out, b, t, h, false, o);
    if (d->state)
        copy_state(d, b, h, s, true);
}

int CPU_ISA(cpu_gated_delta_run)(const struct ct_launch *l)
{
    struct delta d = delta_of(l, 0);

#pragma omp parallel for schedule(static) num_threads(((const struct state *)l->state)->threads)
    for (int64_t i = 0; i < d.batch * d.heads; i++)
        forward_head(l, &d, i / d.heads, i % d.heads);
    return 0;
}

/* ---- gradient ---- */

/* One thread's matrices beside those of the chunk. */
struct back {
    struct chunk c;
    float *states;           /* before each chunk, [chunks][ldk][ldv] */
    float *ds, *turned;      /* gradient of the state, and its or the state's transpose */
    float *d_o, *du, *ut;    /* [CHUNK][ldv]; ut: of u or du, transposed */
    float *dq, *dk, *scaled; /* [CHUNK][ldk] */
    float *pairs, *solve;    /* [CHUNK][CHUNK], gradients of pairs and of A */
    float *dq_sum, *dk_sum;  /* of a group of heads, [tokens][ldk] */
    float sum[CHUNK], dbeta[CHUNK];
};

static int64_t back_floats(int64_t tokens, int64_t ldk, int64_t ldv)
{
    int64_t chunks = (tokens + CHUNK - 1) / CHUNK;

    return (chunks + 2) * ldk * ldv + CHUNK * (3 * ldv + 3 * ldk + 2 * CHUNK) + 2 * tokens * ldk;
}

static void place_back(struct back *w, const struct delta *d, float *memory)
{
    int64_t state = d->ldk * d->ldv, chunks = (d->tokens + CHUNK - 1) / CHUNK;

    w->states = delta_place(&w->c, d->ldk, d->ldv, memory);
    w->ds = w->states + chunks * state;
    w->turned = w->ds + state;
    w->d_o = w->turned + state;
    w->du = w->d_o + CHUNK * d->ldv;
    w->ut = w->du + CHUNK * d->ldv;
    w->dq = w->ut + CHUNK * d->ldv;
    w->dk = w->dq + CHUNK * d->ldk;
    w->scaled = w->dk + CHUNK * d->ldk;
    w->pairs = w->scaled + CHUNK * d->ldk;
    w->solve = w->pairs + CHUNK * CHUNK;
    w->dq_sum = w->solve + CHUNK * CHUNK;
    w->dk_sum = w->dq_sum + d->tokens * d->ldk;
}

static void keep_states(const struct delta *d, struct back *w, int64_t b, int64_t h)
{
    int64_t state = d->ldk * d->ldv;
    float *s = w->states;

    memset(s, 0, sizeof(*s) * (size_t)state);
    for (int64_t begin = 0; begin + CHUNK < d->tokens; begin += CHUNK, s += state) {
        delta_read(d, &w->c, b, h, begin, d->tokens);
        delta_solve(d, &w->c, s);
        memcpy(s + state, s, sizeof(*s) * (size_t)state);
        delta_advance(d, &w->c, s + state, w->scaled);
    }
}

static void zero(float *x, int64_t count)
{
    memset(x, 0, sizeof(*x) * (size_t)count);
}

/* du, dk and the gradients of gates' sums, from the state after the chunk. */
static void back_state(const struct delta *d, struct back *w, const float *s)
{
    struct chunk *c = &w->c;
    int64_t n = c->count;
    float last = c->kept * delta_dot(s, w->ds, d->dk * d->ldv);

    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d->ldk; j++)
            w->scaled[i * d->ldk + j] = c->until[i] * c->k[i * d->ldk + j];
    delta_multiply(w->du, d->ldv, w->scaled, d->ldk, 1, w->ds, d->ldv, n, d->ldv, d->dk);
    delta_transpose(w->turned, d->ldk, w->ds, d->ldv, d->dk, d->dv);
    delta_multiply(w->dk, d->ldk, c->u, d->ldv, 1, w->turned, d->ldk, n, d->ldk, d->dv);
    for (int64_t i = 0; i < n; i++) {
        float *dk = w->dk + i * d->ldk, of_gate;

        for (int64_t j = 0; j < d->ldk; j++)
            dk[j] *= c->until[i];
        of_gate = delta_dot(dk, c->k + i * d->ldk, d->ldk);
        w->sum[i] -= of_gate;
        last += of_gate;
    }
    w->sum[n - 1] += last;
    for (int64_t i = 0; i < d->dk * d->ldv; i++)
        w->ds[i] *= c->kept;
}

/* du, dq, dk from o; ds of the state before. turned: the state before, transposed. */
static void back_output(const struct delta *d, struct back *w)
{
    struct chunk *c = &w->c;
    int64_t n = c->count;

    delta_multiply(w->du, d->ldv, c->pairs, 1, CHUNK, w->d_o, d->ldv, n, d->ldv, n);
    delta_transpose(w->ut, CHUNK, c->u, d->ldv, n, d->dv);
    zero(w->pairs, CHUNK * CHUNK);
    delta_multiply(w->pairs, CHUNK, w->d_o, d->ldv, 1, w->ut, CHUNK, n, CHUNK, d->dv);
    zero(w->dq, n * d->ldk);
    delta_multiply(w->dq, d->ldk, w->d_o, d->ldv, 1, w->turned, d->ldk, n, d->ldk, d->dv);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < d->ldk; j++) {
            w->dq[i * d->ldk + j] *= c->since[i];
            w->scaled[i * d->ldk + j] = c->since[i] * c->q[i * d->ldk + j];
        }
        w->sum[i] += delta_dot(w->dq + i * d->ldk, c->q + i * d->ldk, d->ldk);
        for (int64_t j = 0; j < n; j++) {
            float of_gate = w->pairs[i * CHUNK + j] * c->pairs[i * CHUNK + j];

            w->sum[i] += j < i ? of_gate : 0;
            w->sum[j] -= j < i ? of_gate : 0;
            w->pairs[i * CHUNK + j] *= c->decay[i * CHUNK + j];
        }
    }
    delta_multiply(w->ds, d->ldv, w->scaled, 1, d->ldk, w->d_o, d->ldv, d->dk, d->ldv, n);
    delta_multiply(w->dq, d->ldk, w->pairs, CHUNK, 1, c->k, d->ldk, n, d->ldk, n);
    delta_multiply(w->dk, d->ldk, w->pairs, 1, CHUNK, c->q, d->ldk, n, d->ldk, n);
}

/* Through u: du becomes the gradient of w, and so of v. */
static void back_solve(const struct delta *d, struct back *w)
{
    struct chunk *c = &w->c;
    int64_t n = c->count;

    for (int64_t i = n - 1; i >= 0; i--) {
        float *du = w->du + i * d->ldv;

        if (i + 1 < n)
            delta_multiply(du, d->ldv, c->solve + (i + 1) * CHUNK + i, 1, CHUNK, du + d->ldv,
                           d->ldv, 1, d->ldv, n - 1 - i);
        w->dbeta[i] = delta_dot(du, c->v + i * d->ldv, d->ldv);
        for (int64_t j = 0; j < d->ldv; j++)
            du[j] *= c->beta[i];
    }
    zero(w->solve, CHUNK * CHUNK);
    delta_multiply(w->solve, CHUNK, w->du, d->ldv, 1, w->ut, CHUNK, n, CHUNK, d->dv);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < CHUNK; j++) {
            float of_gate = j < i ? w->solve[i * CHUNK + j] * c->solve[i * CHUNK + j] : 0;

            w->sum[i] += of_gate;
            w->sum[j] -= of_gate;
            w->solve[i * CHUNK + j] *= j < i ? -c->decay[i * CHUNK + j] : 0;
        }
}

/* dk and ds, from the products in w. turned: the state before, transposed. */
static void back_products(const struct delta *d, struct back *w)
{
    struct chunk *c = &w->c;
    int64_t n = c->count;

    zero(w->scaled, n * d->ldk);
    delta_multiply(w->scaled, d->ldk, w->du, d->ldv, 1, w->turned, d->ldk, n, d->ldk, d->dv);
    for (int64_t i = 0; i < n; i++) {
        float *scaled = w->scaled + i * d->ldk;
        const float *k = c->k + i * d->ldk;

        w->sum[i] -= c->since[i] * delta_dot(scaled, k, d->ldk);
        for (int64_t j = 0; j < d->ldk; j++) {
            w->dk[i * d->ldk + j] -= c->since[i] * scaled[j];
            scaled[j] = -c->since[i] * k[j];
        }
    }
    delta_multiply(w->dk, d->ldk, w->solve, CHUNK, 1, c->k, d->ldk, n, d->ldk, n);
    delta_multiply(w->dk, d->ldk, w->solve, 1, CHUNK, c->k, d->ldk, n, d->ldk, n);
    delta_multiply(w->ds, d->ldv, w->scaled, 1, d->ldk, w->du, d->ldv, d->dk, d->ldv, n);
}

static void store_scalar(const struct delta *d, const struct ct_launch *l, int output, int64_t b,
                         int64_t position, int64_t h, float value)
{
    float *to = (float *)(void *)(delta_row(d, l->out + output, b, position, h));

    *to = (l->accumulate >> output & 1 ? *to : 0) + value;
}

/* A gate counts for its token and later ones, but not where a document begins. */
static void store_chunk(const struct ct_launch *l, const struct delta *d, struct back *w, int64_t b,
                        int64_t h, int64_t begin)
{
    float of_gate = 0;

    for (int64_t i = w->c.count - 1; i >= 0; i--) {
        int64_t t = begin + i, at = t * d->ldk;

        of_gate += w->sum[i];
        store_scalar(d, l, 3, b, t, h, w->c.first[i] ? 0 : of_gate);
        store_scalar(d, l, 4, b, t, h, w->dbeta[i]);
        delta_store(d, l->out + 2, b, t, h, l->accumulate >> 2 & 1, w->du + i * d->ldv);
        for (int64_t j = 0; j < d->ldk; j++) {
            w->dq_sum[at + j] += w->dq[i * d->ldk + j];
            w->dk_sum[at + j] += w->dk[i * d->ldk + j];
        }
    }
}

static void back_head(const struct ct_launch *l, const struct delta *d, struct back *w, int64_t b,
                      int64_t h)
{
    int64_t chunk = (d->tokens - 1) / CHUNK;

    keep_states(d, w, b, h);
    zero(w->ds, d->ldk * d->ldv);
    for (; chunk >= 0; chunk--) {
        const float *s = w->states + chunk * d->ldk * d->ldv;

        delta_read(d, &w->c, b, h, chunk * CHUNK, d->tokens);
        delta_solve(d, &w->c, s);
        for (int64_t i = 0; i < w->c.count; i++)
            delta_load(d, l->in, b, chunk * CHUNK + i, h, w->d_o + i * d->ldv);
        zero(w->sum, CHUNK);
        zero(w->du, CHUNK * d->ldv);
        zero(w->dk, CHUNK * d->ldk);
        back_state(d, w, s);
        delta_transpose(w->turned, d->ldk, s, d->ldv, d->dk, d->dv);
        back_output(d, w);
        back_solve(d, w);
        back_products(d, w);
        store_chunk(l, d, w, b, h, chunk * CHUNK);
    }
}

bool CPU_ISA(cpu_gated_delta_grad_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return accepts(p, 1) && p->out[0].dtype == dtype && p->out[1].dtype == dtype &&
           p->out[2].dtype == dtype && p->out[3].dtype == CT_F32 && p->out[4].dtype == CT_F32;
}

int CPU_ISA(cpu_gated_delta_grad_prepare)(struct ct_prepare *p)
{
    int64_t ldk = DELTA_ROW(p->in[1].shape[3]), ldv = DELTA_ROW(p->in[3].shape[3]);

    return prepare(p, 1, back_floats(p->in[1].shape[1], ldk, ldv));
}

int CPU_ISA(cpu_gated_delta_grad_run)(const struct ct_launch *l)
{
    struct delta d = delta_of(l, 1);

#pragma omp parallel for schedule(static) num_threads(((const struct state *)l->state)->threads)
    for (int64_t i = 0; i < d.batch * d.groups; i++) {
        int64_t b = i / d.groups, group = i % d.groups;
        struct back w;

        place_back(&w, &d, own_memory(l));
        zero(w.dq_sum, 2 * d.tokens * d.ldk);
        for (int64_t h = group * d.share; h < (group + 1) * d.share; h++)
            back_head(l, &d, &w, b, h);
        for (int64_t t = 0; t < d.tokens; t++) {
            delta_store(&d, l->out, b, t, group, l->accumulate & 1, w.dq_sum + t * d.ldk);
            delta_store(&d, l->out + 1, b, t, group, l->accumulate >> 1 & 1, w.dk_sum + t * d.ldk);
        }
    }
    return 0;
}
