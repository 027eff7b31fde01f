/*
 * The state space scan of Mamba-2 (Dao and Gu 2024) by chunks (chunks.h): C are queries, B are
 * keys, a token adds dt x, and gates are dt A. A state lies as [n][p] here.
 *
 * Threads share blocks of the heads of a group; each reads the group's B and C once. The number of
 * blocks depends on the call alone, and their gradients of B and C are summed in order.
 */
#include <omp.h>

#include "../cpu.h"
#include "chunks.h"
#include "kernels.h"

/* Operands; the state before is state_scan's input PART where it computes a part of a sequence. */
enum { X, DT, A_LOG, B, C, D, DT_BIAS, DOCUMENTS, STATE, AFTER };
enum { PART = 8, SLOTS };

#define TASKS 16 /* at least, as far as there are heads */

/* A call of a kernel; operands by their place in the inputs of state_scan, -1: none. */
struct scan {
    const struct ct_launch *l;
    const struct ct_state_scan *how;
    int at[AFTER + 1];
    int64_t batch, tokens, heads, groups, chunks;
    int64_t blocks; /* of a group's heads */
    struct widths w;
    size_t thread; /* bytes of each */
    int threads;
};

/* One sequence of the operands. */
struct inputs {
    struct rows x, dt, b, c, documents, dy;
};

/* One head's part of a chunk. */
struct head {
    struct chunk c;
    float *x;      /* [CHUNK][ldv] */
    float *turned; /* room for a state */
    double a, bias, least, most;
    float dt[CHUNK], slope[CHUNK]; /* slope: of softplus; 0: dt is at a limit */
    bool given;                    /* there is a state before the first chunk */
};

static const int of_scan[] = {X, DT, A_LOG, B, C, D, DT_BIAS, DOCUMENTS, SLOTS + 1, -1};

static struct scan scan_of(const struct ct_tensor *x, const struct ct_tensor *b, const int *at)
{
    const int64_t *of_x = x->shape + x->ndim - 3, *of_b = b->shape + b->ndim - 3;
    struct scan s = {.batch = ct_shape_count(x->ndim - 3, x->shape),
                     .tokens = of_x[0],
                     .heads = of_x[1],
                     .groups = of_b[1],
                     .chunks = (of_x[0] + CHUNK - 1) / CHUNK,
                     .w = widths_of(of_b[2], of_x[2])};
    int64_t share = s.heads / s.groups, tasks = s.batch * s.groups;

    memcpy(s.at, at, sizeof(s.at));
    s.blocks = (TASKS + tasks - 1) / tasks;
    s.blocks = s.blocks < share ? s.blocks : share;
    return s;
}

static int64_t head_floats(const struct scan *s)
{
    return s->chunks * SHARED_FLOATS(s->w.ldk) + CHUNK_FLOATS(s->w.ldk, s->w.ldv) +
           CHUNK * s->w.ldv + 2 * s->w.ldk * s->w.ldv;
}

static int prepare_state_scan(struct ct_prepare *p, struct scan s, int64_t floats, int64_t common)
{
    struct scan *state = ct_arena_new(p->arena, struct scan);

    s.threads = cpu_threads();
    s.thread = sizeof(float) * (size_t)ROW_WIDTH(floats);
    p->workspace = s.thread * (size_t)s.threads + sizeof(float) * (size_t)common;
    *state = s;
    p->state = state;
    return 0;
}

static struct scan launched(const struct ct_launch *l)
{
    struct scan s = *(const struct scan *)l->state;

    s.l = l;
    s.how = l->op->attrs;
    return s;
}

static float *own_memory(const struct scan *s)
{
    return (float *)(void *)((char *)s->l->workspace + s->thread * (size_t)omp_get_thread_num());
}

/* Memory that all threads share. */
static float *common_memory(const struct scan *s)
{
    return (float *)(void *)((char *)s->l->workspace + s->thread * (size_t)s->threads);
}

static struct rows operand(const struct scan *s, int which, int64_t b, int dims)
{
    return s->at[which] < 0 ? (struct rows){NULL} : rows_of_input(s->l, s->at[which], b, dims);
}

static struct inputs inputs_of(const struct scan *s, int64_t b)
{
    return (struct inputs){operand(s, X, b, 3), operand(s, DT, b, 2),        operand(s, B, b, 3),
                           operand(s, C, b, 3), operand(s, DOCUMENTS, b, 1), {NULL}};
}

static float *head_place(struct head *h, const struct scan *s, float *at)
{
    at = chunk_place(&h->c, &s->w, at);
    h->x = at;
    h->turned = h->x + CHUNK * s->w.ldv;
    h->given = true;
    return h->turned + s->w.ldk * s->w.ldv;
}

static void set_head(const struct scan *s, struct head *h, int64_t head)
{
    h->a = -exp(ct_tensor_load(&s->l->in[s->at[A_LOG]], head));
    h->bias = ct_tensor_load(&s->l->in[s->at[DT_BIAS]], head);
    h->least = s->how->least;
    h->most = s->how->most > 0 ? s->how->most : INFINITY;
}

static void read_group(const struct scan *s, const struct inputs *in, int64_t group, float *memory)
{
    const struct rows *b = in->b.at ? &in->b : &in->c, *c = in->c.at ? &in->c : NULL;

    for (int64_t i = 0; i < s->chunks; i++) {
        struct shared t = shared_at(memory, &s->w, s->tokens, i);

        shared_read(&t, &s->w, c, b, i * CHUNK, group, false);
    }
}

/* dt = softplus(raw) within limits: log(1 + e^-|raw|) + max(raw, 0), without loss where the
   exponential is small. */
static void steps_of(struct head *h, const float *raw)
{
    for (int64_t i = 0; i < CHUNK; i += CPU_LANES) {
        vf x = v_load(raw + i), e = v_exp(v_min(x, -x)), y = e + 1.0f, log = v_log(y);
        vf value = v_select(y == v_set(1), e, log * e / (y - 1.0f)) + v_max(x, v_set(0));
        vf least = v_set((float)h->least), most = v_set((float)h->most);
        vi limited = (value < least) | (value > most);
        vf slope = v_select(x < v_set(0), e, v_set(1)) / y;

        v_store(h->dt + i, v_max(least, v_min(most, value)));
        v_store(h->slope + i, v_select(limited, v_set(0), slope));
    }
}

/* Read a head's part of a chunk. */
static void read_chunk(const struct scan *s, const struct inputs *in, struct head *h, float *group,
                       int64_t head, int64_t chunk)
{
    struct chunk *c = &h->c;
    float raw[CHUNK] = {0};
    int64_t ldv = s->w.ldv;

    c->s = shared_at(group, &s->w, s->tokens, chunk);
    for (int64_t i = 0; i < c->s.count; i++) {
        int64_t t = chunk * CHUNK + i;

        raw[i] = row_number(&in->dt, t, head) + (float)h->bias;
        c->first[i] = (t == 0 && !h->given) || row_begins(&in->documents, t);
        if (in->x.at)
            row_load(&in->x, t, head, h->x + i * ldv);
    }
    steps_of(h, raw);
    for (int64_t i = 0; i < c->s.count; i++) {
        c->gate[i] = (float)(h->a * (double)h->dt[i]);
        chunk_scale(c->u + i * ldv, h->dt[i], h->x + i * ldv, ldv);
    }
    chunk_zero(c->u + c->s.count * ldv, (c->s.rows - c->s.count) * ldv);
    chunk_decays(c);
}

/* A state [h, p, n] as [n][p]; absent: zeros. */
static void load_state(const struct scan *s, int which, int64_t b, int64_t head, struct head *h,
                       float *state)
{
    struct widths turned = {s->w.v, s->w.k, s->w.ldv, s->w.ldk};

    state_load(s->l, s->at[which], b, head, h->turned, &turned);
    chunk_transpose(state, s->w.ldv, h->turned, s->w.ldk, s->w.ldv, s->w.ldk);
}

static void store_state(const struct scan *s, const struct ct_tensor *t, int64_t b, int64_t head,
                        struct head *h, const float *state)
{
    chunk_transpose(h->turned, s->w.ldk, state, s->w.ldv, s->w.ldk, s->w.ldv);
    state_store(t, b, head, h->turned, s->w.ldk, s->w.v);
}

/* The heads of a task. */
struct task {
    int64_t b, group, block, begin, end;
};

static struct task task_of(const struct scan *s, int64_t i)
{
    int64_t share = s->heads / s->groups, block = i % s->blocks, group = i / s->blocks % s->groups;

    return (struct task){i / s->blocks / s->groups, group, block,
                         group * share + share * block / s->blocks,
                         group * share + share * (block + 1) / s->blocks};
}

static int64_t tasks_of(const struct scan *s)
{
    return s->batch * s->groups * s->blocks;
}

static bool all_compute(const struct ct_prepare *p, int ins)
{
    for (int i = 0; i < p->outs; i++)
        if (!cpu_is_compute_dtype(p->out[i].dtype))
            return false;
    for (int i = 0; i < ins; i++)
        if (!cpu_is_compute_dtype(p->in[i].dtype))
            return false;
    return true;
}

/* ---- forward ---- */

bool CPU_ISA(cpu_state_scan_accepts)(const struct ct_prepare *p)
{
    return all_compute(p, DOCUMENTS);
}

int CPU_ISA(cpu_state_scan_prepare)(struct ct_prepare *p)
{
    struct scan s = scan_of(&p->in[X], &p->in[B], of_scan);

    return prepare_state_scan(p, s, head_floats(&s) + CHUNK * s.w.ldv, 0);
}

static void forward_head(const struct scan *s, const struct inputs *in, struct head *h,
                         float *group, float *state, int64_t b, int64_t head)
{
    struct rows out = rows_of(s->l->out, b, 3);
    float *o = state + s->w.ldk * s->w.ldv, d = (float)ct_tensor_load(&s->l->in[D], head);

    set_head(s, h, head);
    if (h->given)
        load_state(s, STATE, b, head, h, state);
    else
        chunk_zero(state, s->w.ldk * s->w.ldv);
    for (int64_t i = 0; i < s->chunks; i++) {
        read_chunk(s, in, h, group, head, i);
        chunk_weigh(&h->c);
        chunk_output(&h->c, state, o);
        chunk_add(o, d, h->x, h->c.s.count * s->w.ldv);
        for (int64_t t = 0; t < h->c.s.count; t++)
            row_store(&out, i * CHUNK + t, head, false, o + t * s->w.ldv);
        chunk_advance(&h->c, state);
    }
}

/* Stores the results of a part of a sequence: the state, and zeros for tokens that only fill the
   row. */
static void finish_part(const struct scan *s, struct head *h, int64_t b, int64_t head,
                        int64_t tokens, const float *state)
{
    struct rows out = rows_of(s->l->out, b, 3);

    store_state(s, &s->l->in[PART], b, head, h, state);
    for (int64_t t = s->tokens; t < tokens; t++)
        memset(row_at(&out, t, head), 0, (size_t)out.size * ct_dtype_size(out.dtype));
}

int CPU_ISA(cpu_state_scan_run)(const struct ct_launch *l)
{
    const struct ct_tensor *slots = l->ins > SLOTS && l->in[SLOTS].data ? &l->in[SLOTS] : NULL;
    struct scan whole = launched(l);

    if (slots)
        whole.at[STATE] = PART;
#pragma omp parallel for schedule(static) num_threads(whole.threads)
    for (int64_t i = 0; i < tasks_of(&whole); i++) {
        struct task t = task_of(&whole, i);
        struct scan s = whole;
        struct inputs in = inputs_of(&s, t.b);
        float *memory = own_memory(&s), *at;
        struct head h;

        at = head_place(&h, &s, memory + s.chunks * SHARED_FLOATS(s.w.ldk));
        s.tokens = ct_slots_used(slots, t.b, whole.tokens);
        s.chunks = (s.tokens + CHUNK - 1) / CHUNK;
        h.given =
            slots ? !ct_slots_begin(slots, t.b) : l->ins > s.at[STATE] && l->in[s.at[STATE]].data;
        read_group(&s, &in, t.group, memory);
        for (int64_t head = t.begin; head < t.end; head++) {
            forward_head(&s, &in, &h, memory, at, t.b, head);
            if (slots)
                finish_part(&s, &h, t.b, head, whole.tokens, at);
        }
    }
    return 0;
}

/* ---- gradient ---- */

static const int of_grad[] = {1 + X, 1 + DT,      1 + A_LOG,     1 + B,     1 + C,
                              1 + D, 1 + DT_BIAS, 1 + DOCUMENTS, 1 + STATE, 1 + AFTER};

/* Memory that threads share: [tokens][ldk] of each task, of B and of C, and a sum of each head. */
struct sums {
    float *db, *dc;
    float *parameters; /* [batch][3][heads], of a_log, D and dt_bias */
};

static int64_t padded(const struct scan *s)
{
    return s->chunks * CHUNK * s->w.ldk;
}

static struct sums sums_of(const struct scan *s)
{
    float *at = common_memory(s);
    int64_t each = tasks_of(s) * padded(s);

    return (struct sums){at, at + each, at + 2 * each};
}

static void keep_states(const struct scan *s, const struct inputs *in, struct head *h, float *group,
                        float *states, int64_t b, int64_t head)
{
    int64_t size = s->w.ldk * s->w.ldv;

    load_state(s, STATE, b, head, h, states);
    for (int64_t i = 0; i + 1 < s->chunks; i++, states += size) {
        read_chunk(s, in, h, group, head, i);
        memcpy(states + size, states, sizeof(*states) * (size_t)size);
        chunk_advance(&h->c, states + size);
    }
}

static void load_gradient(const struct scan *s, const struct inputs *in, const struct chunk *c,
                          int64_t chunk, int64_t head, float *d_o)
{
    for (int64_t i = 0; i < c->s.count; i++)
        row_load(&in->dy, chunk * CHUNK + i, head, d_o + i * s->w.ldv);
    chunk_zero(d_o + c->s.count * s->w.ldv, (c->s.rows - c->s.count) * s->w.ldv);
}

/* Store dx and ddt of a chunk. sums: of the head's a_log, D and dt_bias. */
static void store_chunk(const struct scan *s, struct head *h, struct back *back, int64_t b,
                        int64_t head, int64_t chunk, double sums[3])
{
    struct rows dx = rows_of(&s->l->out[X], b, 3), ddt = rows_of(&s->l->out[DT], b, 2);
    float gates[CHUNK], d = (float)ct_tensor_load(&s->l->in[s->at[D]], head);
    int64_t ldv = s->w.ldv;

    back_gates(&h->c, back, gates);
    for (int64_t i = 0; i < h->c.s.count; i++) {
        const float *x = h->x + i * ldv, *dy = back->d_o + i * ldv;
        float *du = back->du + i * ldv;
        float step = (chunk_dot(du, x, ldv) + gates[i] * (float)h->a) * h->slope[i];

        sums[0] += (double)(gates[i] * h->c.gate[i]);
        sums[1] += (double)chunk_dot(dy, x, ldv);
        sums[2] += (double)step;
        chunk_scale(du, h->dt[i], du, ldv);
        chunk_add(du, d, dy, ldv);
        row_store(&dx, chunk * CHUNK + i, head, false, du);
        row_set(&ddt, chunk * CHUNK + i, head, false, step);
    }
}

static void back_head(const struct scan *s, const struct inputs *in, struct head *h,
                      struct back *back, float *group, float *states, const struct task *t,
                      int64_t head)
{
    struct sums all = sums_of(s);
    int64_t task = (t->b * s->groups + t->group) * s->blocks + t->block, ldk = s->w.ldk;
    float *db = all.db + task * padded(s), *dc = all.dc + task * padded(s);
    double sums[3] = {0};

    set_head(s, h, head);
    keep_states(s, in, h, group, states, t->b, head);
    load_state(s, AFTER, t->b, head, h, back->ds);
    for (int64_t i = s->chunks - 1; i >= 0; i--) {
        int64_t at = i * CHUNK * ldk;

        read_chunk(s, in, h, group, head, i);
        chunk_weigh(&h->c);
        load_gradient(s, in, &h->c, i, head, back->d_o);
        back_chunk(&h->c, back, states + i * ldk * s->w.ldv);
        store_chunk(s, h, back, t->b, head, i, sums);
        chunk_add(db + at, 1, back->dk, h->c.s.count * ldk);
        chunk_add(dc + at, 1, back->dq, h->c.s.count * ldk);
    }
    for (int k = 0; k < 3; k++)
        all.parameters[(t->b * 3 + k) * s->heads + head] = (float)sums[k];
}

bool CPU_ISA(cpu_state_scan_grad_accepts)(const struct ct_prepare *p)
{
    return all_compute(p, 1 + DOCUMENTS);
}

int CPU_ISA(cpu_state_scan_grad_prepare)(struct ct_prepare *p)
{
    struct scan s = scan_of(&p->in[1 + X], &p->in[1 + B], of_grad);

    return prepare_state_scan(
        p, s, head_floats(&s) + BACK_FLOATS(s.w.ldk, s.w.ldv) + s.chunks * s.w.ldk * s.w.ldv,
        2 * tasks_of(&s) * padded(&s) + 3 * s.batch * s.heads);
}

static void back_task(const struct scan *s, const struct task *t)
{
    struct inputs in = inputs_of(s, t->b);
    struct back back;
    struct head h;
    float *memory = own_memory(s), *at;

    in.dy = rows_of(s->l->in, t->b, 3);
    at = back_place(&back, &s->w, head_place(&h, s, memory + s->chunks * SHARED_FLOATS(s->w.ldk)));
    h.given = s->l->ins > s->at[STATE] && s->l->in[s->at[STATE]].data;
    read_group(s, &in, t->group, memory);
    for (int64_t head = t->begin; head < t->end; head++)
        back_head(s, &in, &h, &back, memory, at, t, head);
}

/* The sums of a group's blocks, in order. */
static void store_group(const struct scan *s, const struct ct_tensor *to, float *parts, int64_t b,
                        int64_t group)
{
    struct rows out = rows_of(to, b, 3);
    float *sum = parts + (b * s->groups + group) * s->blocks * padded(s);

    for (int64_t block = 1; block < s->blocks; block++)
        chunk_add(sum, 1, sum + block * padded(s), padded(s));
    for (int64_t t = 0; t < s->tokens; t++)
        row_store(&out, t, group, false, sum + t * s->w.ldk);
}

static void store_parameters(const struct scan *s, const float *sums)
{
    static const int outputs[] = {A_LOG, D, DT_BIAS};

    for (int k = 0; k < 3; k++)
        for (int64_t head = 0; head < s->heads; head++) {
            double sum = 0;

            for (int64_t b = 0; b < s->batch; b++)
                sum += (double)sums[(b * 3 + k) * s->heads + head];
            ct_tensor_store(s->l->out + outputs[k], head, sum);
        }
}

int CPU_ISA(cpu_state_scan_grad_run)(const struct ct_launch *l)
{
    struct scan s = launched(l);
    struct sums sums = sums_of(&s);

#pragma omp parallel num_threads(s.threads)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tasks_of(&s); i++) {
            struct task t = task_of(&s, i);

            chunk_zero(sums.db + i * padded(&s), padded(&s));
            chunk_zero(sums.dc + i * padded(&s), padded(&s));
            back_task(&s, &t);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < s.batch * s.groups; i++) {
            store_group(&s, l->out + B, sums.db, i / s.groups, i % s.groups);
            store_group(&s, l->out + C, sums.dc, i / s.groups, i % s.groups);
        }
    }
    store_parameters(&s, sums.parameters);
    return 0;
}

/* ---- segments ---- */

static const int of_carry[] = {0, 1, 2, 3, -1, -1, 4, 5, -1, -1};
static const int of_dstate[] = {-1, 1, 2, -1, 3, -1, 4, 5, -1, -1};

bool CPU_ISA(cpu_state_scan_carry_accepts)(const struct ct_prepare *p)
{
    return all_compute(p, 5);
}

int CPU_ISA(cpu_state_scan_carry_prepare)(struct ct_prepare *p)
{
    struct scan s = scan_of(&p->in[0], &p->in[3], of_carry);

    return prepare_state_scan(p, s, head_floats(&s), 0);
}

int CPU_ISA(cpu_state_scan_carry_run)(const struct ct_launch *l)
{
    struct scan s = launched(l);

#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t i = 0; i < tasks_of(&s); i++) {
        struct task t = task_of(&s, i);
        struct inputs in = inputs_of(&s, t.b);
        float *memory = own_memory(&s), *state;
        struct head h;

        state = head_place(&h, &s, memory + s.chunks * SHARED_FLOATS(s.w.ldk));
        read_group(&s, &in, t.group, memory);
        for (int64_t head = t.begin; head < t.end; head++) {
            float keeps[ROW_WIDTH(1)] = {1};

            set_head(&s, &h, head);
            chunk_zero(state, s.w.ldk * s.w.ldv);
            for (int64_t chunk = 0; chunk < s.chunks; chunk++) {
                read_chunk(&s, &in, &h, memory, head, chunk);
                chunk_advance(&h.c, state);
                keeps[0] *= h.c.kept;
            }
            state_store(&l->out[0], t.b, head, keeps, 1, 1);
            store_state(&s, &l->out[1], t.b, head, &h, state);
        }
    }
    return 0;
}

bool CPU_ISA(cpu_state_scan_dstate_accepts)(const struct ct_prepare *p)
{
    return all_compute(p, 5);
}

int CPU_ISA(cpu_state_scan_dstate_prepare)(struct ct_prepare *p)
{
    struct scan s = scan_of(&p->in[0], &p->in[3], of_dstate);

    return prepare_state_scan(p, s, head_floats(&s) + BACK_FLOATS(s.w.ldk, s.w.ldv), 0);
}

int CPU_ISA(cpu_state_scan_dstate_run)(const struct ct_launch *l)
{
    struct scan s = launched(l);

#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t i = 0; i < tasks_of(&s); i++) {
        struct task t = task_of(&s, i);
        struct inputs in = inputs_of(&s, t.b);
        float *memory = own_memory(&s);
        struct back back;
        struct head h;

        in.dy = rows_of(l->in, t.b, 3);
        back_place(&back, &s.w, head_place(&h, &s, memory + s.chunks * SHARED_FLOATS(s.w.ldk)));
        chunk_zero(h.x, CHUNK * s.w.ldv);
        read_group(&s, &in, t.group, memory);
        for (int64_t head = t.begin; head < t.end; head++) {
            set_head(&s, &h, head);
            chunk_zero(back.ds, s.w.ldk * s.w.ldv);
            for (int64_t chunk = s.chunks - 1; chunk >= 0; chunk--) {
                read_chunk(&s, &in, &h, memory, head, chunk);
                load_gradient(&s, &in, &h.c, chunk, head, back.d_o);
                back_advance(&h.c, &back);
            }
            store_state(&s, l->out, t.b, head, &h, back.ds);
        }
    }
    return 0;
}
