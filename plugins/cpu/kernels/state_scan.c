/*
 * The state space scan by chunks of tokens (Dao and Gu 2024): within a chunk it is a masked product
 * of C, B and x; between chunks the state goes on. A thread has a head forward, and a group of
 * heads backward, so that sums do not depend on the number of threads. Rows of a head lie in
 * float32, in the order of their positions.
 */
#include <math.h>
#include <omp.h>
#include <string.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>

#define CHUNK CT_SCAN_CHUNK

enum { X, DT, A_LOG, B, C, D, DT_BIAS, DOCUMENTS, STATE, SLOTS };

struct scan {
    const struct ct_launch *l;
    const struct ct_tensor *in; /* X and so on */
    const struct ct_state_scan *how;
    int64_t batch, tokens, heads, p, groups, n, chunks;
    int64_t *at;
    char *threads;
    size_t each;                   /* bytes of a thread's buffers */
    float *sums;                   /* gradient: [batch][3][heads], of a_log, D and dt_bias */
    const struct ct_tensor *slots; /* of a part of a sequence; NULL: it is whole */
};

/* A thread's buffers: of one head, [tokens][size] or less. */
struct head {
    float *x, *dy, *b, *c, *dt, *y, *db, *dc, *ddt;
    float *state, *states;
    double *log_decay; /* dt A, summed from the chunk's begin */
    int64_t *first;    /* of the token's document, in all tokens; -1: before them */
    bool *limited;
    float *slope; /* of softplus */
};

static float *floats(size_t *used, char *from, int64_t count)
{
    size_t at = cpu_carve(used, (size_t)count * sizeof(float));

    return from ? (float *)(void *)(from + at) : NULL;
}

static struct head buffers(const struct scan *s, char *from, bool gradient, size_t *used)
{
    int64_t t = s->tokens, state = s->p * s->n, grown = gradient ? t : 0;
    struct head h = {.x = floats(used, from, t * s->p), .b = floats(used, from, t * s->n)};
    size_t at;

    h.c = floats(used, from, t * s->n);
    h.dt = floats(used, from, t);
    h.y = floats(used, from, t * s->p);
    h.slope = floats(used, from, t);
    h.dy = floats(used, from, grown * s->p);
    h.db = floats(used, from, grown * s->n);
    h.dc = floats(used, from, grown * s->n);
    h.ddt = floats(used, from, grown);
    h.state = floats(used, from, 2 * state);
    h.states = floats(used, from, gradient ? (s->chunks + 1) * state : 0);
    at = cpu_carve(used, (size_t)t * sizeof(double));
    h.log_decay = from ? (double *)(void *)(from + at) : NULL;
    at = cpu_carve(used, (size_t)t * sizeof(int64_t));
    h.first = from ? (int64_t *)(void *)(from + at) : NULL;
    at = cpu_carve(used, (size_t)t);
    h.limited = from ? (bool *)(from + at) : NULL;
    return h;
}

static struct scan scan_of(const struct ct_tensor *in, const void *how)
{
    int64_t tokens = in[X].shape[1];

    return (struct scan){.in = in,
                         .how = how,
                         .batch = in[X].shape[0],
                         .tokens = tokens,
                         .heads = in[X].shape[2],
                         .p = in[X].shape[3],
                         .groups = in[B].shape[2],
                         .n = in[B].shape[3],
                         .chunks = (tokens + CHUNK - 1) / CHUNK};
}

/* Set the layout of the workspace; returns its size. */
static size_t lay_out(struct scan *s, char *workspace, bool gradient)
{
    size_t used = 0, at;

    at = cpu_carve(&used, (size_t)s->tokens * sizeof(int64_t));
    s->at = workspace ? (int64_t *)(void *)(workspace + at) : NULL;
    s->sums = floats(&used, workspace, gradient ? s->batch * 3 * s->heads : 0);
    buffers(s, NULL, gradient, &s->each);
    s->threads = workspace ? workspace + used : NULL;
    return used + s->each * (size_t)omp_get_max_threads();
}

static struct head own_buffers(const struct scan *s, bool gradient)
{
    size_t used = 0;

    return buffers(s, s->threads + s->each * (size_t)omp_get_thread_num(), gradient, &used);
}

/* ---- rows of a tensor [b, t, h, size] ---- */

static int64_t row_at(const struct scan *s, const struct ct_tensor *t, int64_t b, int64_t position,
                      int64_t head)
{
    return b * t->stride[0] + s->at[position] * t->stride[1] + head * t->stride[2];
}

static void gather(const struct scan *s, const struct ct_tensor *t, int64_t b, int64_t head,
                   int64_t size, float *to)
{
    for (int64_t i = 0; i < s->tokens; i++, to += size) {
        int64_t from = row_at(s, t, b, i, head);

        for (int64_t k = 0; k < size; k++)
            to[k] = t->dtype == CT_F32 ? ((const float *)t->data)[from + k]
                                       : ct_bf16_to_f32(((const uint16_t *)t->data)[from + k]);
    }
}

static void scatter(const struct scan *s, const struct ct_tensor *t, int64_t b, int64_t head,
                    int64_t size, const float *from)
{
    for (int64_t i = 0; i < s->tokens; i++, from += size) {
        int64_t to = row_at(s, t, b, i, head);

        for (int64_t k = 0; k < size; k++)
            if (t->dtype == CT_F32)
                ((float *)t->data)[to + k] = from[k];
            else
                ((uint16_t *)t->data)[to + k] = ct_f32_to_bf16(from[k]);
    }
}

/* ---- a head ---- */

static void find_documents(const struct scan *s, int64_t b, struct head *h)
{
    const struct ct_tensor *d = s->in + DOCUMENTS;
    const int32_t *ids = s->l->ins > (int)(d - s->l->in) && d->data ? d->data : NULL;

    for (int64_t i = 0; i < s->tokens; i++)
        h->first[i] = i == 0 ? (ct_slots_begin(s->slots, b) ? 0 : -1)
                      : ids && ids[b * d->stride[0] + s->at[i] * d->stride[1]] !=
                                   ids[b * d->stride[0] + s->at[i - 1] * d->stride[1]]
                          ? i
                          : h->first[i - 1];
}

/* Read what a head takes; B and C are those of its group. */
static void read_head(const struct scan *s, int64_t b, int64_t head, struct head *h)
{
    double a = -exp(ct_tensor_load(s->in + A_LOG, head)), sum = 0;
    double bias = ct_tensor_load(s->in + DT_BIAS, head);
    double most = s->how->most > 0 ? s->how->most : INFINITY;
    const struct ct_tensor *dt = s->in + DT;

    gather(s, s->in + X, b, head, s->p, h->x);
    for (int64_t i = 0; i < s->tokens; i++) {
        int64_t from = b * dt->stride[0] + s->at[i] * dt->stride[1] + head * dt->stride[2];
        double raw = bias + (dt->dtype == CT_F32
                                 ? (double)((const float *)dt->data)[from]
                                 : (double)ct_bf16_to_f32(((const uint16_t *)dt->data)[from]));
        double value = raw > 20 ? raw : log1p(exp(raw));

        h->slope[i] = (float)(1 / (1 + exp(-raw)));
        h->limited[i] = value < s->how->least || value > most;
        value = value < s->how->least ? s->how->least : value > most ? most : value;
        h->dt[i] = (float)value;
        sum = (i % CHUNK ? sum : 0) + a * value;
        h->log_decay[i] = sum;
    }
}

/* Whether token i sees the state at the chunk's begin, which decays by that until then. */
static bool sees_state(const struct head *h, int64_t begin, int64_t i)
{
    return h->first[i] < begin;
}

static float since_begin(const struct head *h, int64_t i)
{
    return (float)exp(h->log_decay[i]);
}

/* Tokens in front of token i, in its chunk, that it sees begin with this one. */
static int64_t first_seen(const struct head *h, int64_t begin, int64_t i)
{
    return h->first[i] > begin ? h->first[i] : begin;
}

/* How token j's part decays up to token i >= j. */
static float between(const struct head *h, int64_t j, int64_t i)
{
    return (float)exp(h->log_decay[i] - h->log_decay[j]);
}

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < n; k++)
        sum += a[k] * b[k];
    return sum;
}

static void add_scaled(float *y, float a, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t k = 0; k < n; k++)
        y[k] += a * x[k];
}

/* The state [p, n] behind the chunk from the one before it. */
static void next_state(const struct scan *s, const struct head *h, int64_t begin, int64_t end,
                       const float *before, float *after)
{
    bool sees = sees_state(h, begin, end - 1);
    float keeps = since_begin(h, end - 1);

    for (int64_t k = 0; k < s->p * s->n; k++)
        after[k] = sees ? keeps * before[k] : 0;
    for (int64_t j = first_seen(h, begin, end - 1); j < end; j++) {
        float w = between(h, j, end - 1) * h->dt[j];

        for (int64_t p = 0; p < s->p; p++)
            add_scaled(after + p * s->n, w * h->x[j * s->p + p], h->b + j * s->n, s->n);
    }
}

static void forward_chunk(const struct scan *s, struct head *h, int64_t begin, int64_t end, float d)
{
    for (int64_t i = begin; i < end; i++) {
        float *y = h->y + i * s->p, keeps = since_begin(h, i);
        bool sees = sees_state(h, begin, i);

        for (int64_t p = 0; p < s->p; p++)
            y[p] = d * h->x[i * s->p + p] +
                   (sees ? keeps * dot(h->state + p * s->n, h->c + i * s->n, s->n) : 0);
        for (int64_t j = first_seen(h, begin, i); j <= i; j++)
            add_scaled(y, dot(h->c + i * s->n, h->b + j * s->n, s->n) * between(h, j, i) * h->dt[j],
                       h->x + j * s->p, s->p);
    }
}

static int64_t chunk_end(const struct scan *s, int64_t chunk)
{
    return (chunk + 1) * CHUNK < s->tokens ? (chunk + 1) * CHUNK : s->tokens;
}

/* The state of a part of a sequence, [p, n]. */
static float *kept_state(const struct scan *s, int64_t b, int64_t head)
{
    const struct ct_tensor *t = s->in + STATE;

    return (float *)t->data + b * t->stride[0] + head * t->stride[1];
}

static void copy_state(const struct scan *s, float *to, int64_t to_row, const float *from,
                       int64_t from_row)
{
    for (int64_t p = 0; p < s->p; p++)
        memcpy(to + p * to_row, from + p * from_row, sizeof(*to) * (size_t)s->n);
}

static void forward_head(const struct scan *whole, int64_t b, int64_t head)
{
    struct head h = own_buffers(whole, false);
    struct scan used = *whole, *s = &used;
    int64_t group = head / (s->heads / s->groups), row = s->slots ? s->in[STATE].stride[2] : 0;
    float d = (float)ct_tensor_load(s->in + D, head), *other = h.state + s->p * s->n;

    s->tokens = ct_slots_used(s->slots, b, whole->tokens);
    s->chunks = (s->tokens + CHUNK - 1) / CHUNK;

    find_documents(s, b, &h);
    read_head(s, b, head, &h);
    gather(s, s->in + B, b, group, s->n, h.b);
    gather(s, s->in + C, b, group, s->n, h.c);
    memset(h.state, 0, sizeof(float) * (size_t)(s->p * s->n));
    if (s->slots)
        copy_state(s, h.state, s->n, kept_state(s, b, head), row);
    for (int64_t c = 0; c < s->chunks; c++) {
        float *now = h.state;

        forward_chunk(s, &h, c * CHUNK, chunk_end(s, c), d);
        next_state(s, &h, c * CHUNK, chunk_end(s, c), now, other);
        h.state = other;
        other = now;
    }
    if (s->slots)
        copy_state(s, kept_state(s, b, head), row, h.state, s->n);
    memset(h.y + s->tokens * s->p, 0, sizeof(float) * (size_t)((whole->tokens - s->tokens) * s->p));
    scatter(whole, s->l->out, b, head, s->p, h.y);
}

bool CPU_ISA(cpu_state_scan_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[X].dtype;

    return cpu_is_compute_dtype(dtype) && p->out[0].dtype == dtype;
}

int CPU_ISA(cpu_state_scan_prepare)(struct ct_prepare *p)
{
    struct scan s = scan_of(p->in, p->op->attrs);

    p->workspace = lay_out(&s, NULL, false);
    return 0;
}

int CPU_ISA(cpu_state_scan_run)(const struct ct_launch *l)
{
    struct scan s = scan_of(l->in, l->op->attrs);

    s.l = l;
    s.slots = l->ins > SLOTS && l->in[SLOTS].data ? &l->in[SLOTS] : NULL;
    lay_out(&s, l->workspace, false);
    ct_launch_order(l, l->op->in[X], 1, s.at);
#pragma omp parallel for if (cpu_worth_threads(ct_tensor_count(s.in + X)))
    for (int64_t i = 0; i < s.batch * s.heads; i++)
        forward_head(&s, i / s.heads, i % s.heads);
    return 0;
}

/* ---- gradient ---- */

/* Within a chunk, by C B^T and dy x^T. d_log[i]: of log_decay. */
static void inside(const struct scan *s, struct head *h, int64_t begin, int64_t end, double *d_log)
{
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = first_seen(h, begin, i); j <= i; j++) {
            float w = between(h, j, i);
            float score = dot(h->c + i * s->n, h->b + j * s->n, s->n) * w;
            float product = dot(h->dy + i * s->p, h->x + j * s->p, s->p), d_score;
            double change;

            d_score = product * w * h->dt[j];
            add_scaled(h->dc + i * s->n, d_score, h->b + j * s->n, s->n);
            add_scaled(h->db + j * s->n, d_score, h->c + i * s->n, s->n);
            add_scaled(h->y + j * s->p, score * h->dt[j], h->dy + i * s->p, s->p);
            h->ddt[j] += score * product;
            change = (double)(score * h->dt[j] * product);
            d_log[i - begin] += change;
            d_log[j - begin] -= change;
        }
}

/* Between chunks: `before` is the state in front of it, `gradient` that of the state behind it, and
   becomes that of the one in front. */
static void across(const struct scan *s, struct head *h, int64_t begin, int64_t end,
                   const float *before, float *gradient, double *d_log)
{
    bool sees = sees_state(h, begin, end - 1);
    float keeps = since_begin(h, end - 1);

    if (sees)
        d_log[end - 1 - begin] += (double)(keeps * dot(gradient, before, s->p * s->n));
    for (int64_t j = first_seen(h, begin, end - 1); j < end; j++) {
        float w = between(h, j, end - 1), through = 0;

        for (int64_t p = 0; p < s->p; p++) {
            float of_b = dot(gradient + p * s->n, h->b + j * s->n, s->n);

            through += h->x[j * s->p + p] * of_b;
            h->y[j * s->p + p] += w * h->dt[j] * of_b;
            add_scaled(h->db + j * s->n, w * h->dt[j] * h->x[j * s->p + p], gradient + p * s->n,
                       s->n);
        }
        h->ddt[j] += w * through;
        d_log[end - 1 - begin] += (double)(w * h->dt[j] * through);
        d_log[j - begin] -= (double)(w * h->dt[j] * through);
    }
    for (int64_t k = 0; k < s->p * s->n; k++)
        gradient[k] = sees ? gradient[k] * keeps : 0;
    for (int64_t i = begin; i < end && sees_state(h, begin, i); i++) {
        float w = since_begin(h, i), through = 0;

        for (int64_t p = 0; p < s->p; p++) {
            float dy = h->dy[i * s->p + p];

            through += dy * dot(before + p * s->n, h->c + i * s->n, s->n);
            add_scaled(h->dc + i * s->n, w * dy, before + p * s->n, s->n);
            add_scaled(gradient + p * s->n, w * dy, h->c + i * s->n, s->n);
        }
        d_log[i - begin] += (double)(w * through);
    }
}

/* From the gradients of log_decay and dt to those of dt's input and a_log. */
static void finish_chunk(struct head *h, int64_t begin, int64_t end, double a, const double *d_log,
                         double sums[3])
{
    double later = 0;

    for (int64_t i = end; i-- > begin;) {
        double d_dt;

        later += d_log[i - begin];
        d_dt = h->limited[i] ? 0 : ((double)h->ddt[i] + later * a) * (double)h->slope[i];
        sums[0] += later * (double)h->dt[i] * a;
        sums[2] += d_dt;
        h->ddt[i] = (float)d_dt;
    }
}

static void backward_head(const struct scan *s, int64_t b, int64_t head, struct head *h)
{
    int64_t state = s->p * s->n;
    double a = -exp(ct_tensor_load(s->in + A_LOG, head)), d_log[CHUNK], sums[3] = {0};
    float d = (float)ct_tensor_load(s->in + D, head), *sum = s->sums + b * 3 * s->heads;

    read_head(s, b, head, h);
    gather(s, s->l->in, b, head, s->p, h->dy);
    memset(h->states, 0, sizeof(float) * (size_t)state);
    for (int64_t c = 0; c < s->chunks; c++)
        next_state(s, h, c * CHUNK, chunk_end(s, c), h->states + c * state,
                   h->states + (c + 1) * state);
    memset(h->state, 0, sizeof(float) * (size_t)state);
    memset(h->ddt, 0, sizeof(float) * (size_t)s->tokens);
    for (int64_t i = 0; i < s->tokens * s->p; i++) {
        sums[1] += (double)h->dy[i] * (double)h->x[i];
        h->y[i] = d * h->dy[i];
    }
    for (int64_t c = s->chunks; c-- > 0;) {
        memset(d_log, 0, sizeof(d_log));
        inside(s, h, c * CHUNK, chunk_end(s, c), d_log);
        across(s, h, c * CHUNK, chunk_end(s, c), h->states + c * state, h->state, d_log);
        finish_chunk(h, c * CHUNK, chunk_end(s, c), a, d_log, sums);
    }
    scatter(s, s->l->out + X, b, head, s->p, h->y);
    for (int64_t i = 0; i < s->tokens; i++) {
        const struct ct_tensor *ddt = s->l->out + DT;
        int64_t to = b * ddt->stride[0] + s->at[i] * ddt->stride[1] + head * ddt->stride[2];

        if (ddt->dtype == CT_F32)
            ((float *)ddt->data)[to] = h->ddt[i];
        else
            ((uint16_t *)ddt->data)[to] = ct_f32_to_bf16(h->ddt[i]);
    }
    for (int k = 0; k < 3; k++)
        sum[k * s->heads + head] = (float)sums[k];
}

static void backward_group(const struct scan *s, int64_t b, int64_t group)
{
    struct head h = own_buffers(s, true);
    int64_t each = s->heads / s->groups;

    find_documents(s, b, &h);
    gather(s, s->in + B, b, group, s->n, h.b);
    gather(s, s->in + C, b, group, s->n, h.c);
    memset(h.db, 0, sizeof(float) * (size_t)(s->tokens * s->n));
    memset(h.dc, 0, sizeof(float) * (size_t)(s->tokens * s->n));
    for (int64_t i = group * each; i < (group + 1) * each; i++)
        backward_head(s, b, i, &h);
    scatter(s, s->l->out + B, b, group, s->n, h.db);
    scatter(s, s->l->out + C, b, group, s->n, h.dc);
}

bool CPU_ISA(cpu_state_scan_grad_accepts)(const struct ct_prepare *p)
{
    for (int i = 0; i < p->outs; i++)
        if (!cpu_is_compute_dtype(p->out[i].dtype))
            return false;
    for (int i = 0; i <= 1 + DT_BIAS; i++)
        if (!cpu_is_compute_dtype(p->in[i].dtype))
            return false;
    return true;
}

int CPU_ISA(cpu_state_scan_grad_prepare)(struct ct_prepare *p)
{
    struct scan s = scan_of(p->in + 1, p->op->attrs);

    p->workspace = lay_out(&s, NULL, true);
    return 0;
}

int CPU_ISA(cpu_state_scan_grad_run)(const struct ct_launch *l)
{
    static const int outputs[] = {A_LOG, D, DT_BIAS};
    struct scan s = scan_of(l->in + 1, l->op->attrs);

    s.l = l;
    lay_out(&s, l->workspace, true);
    ct_launch_order(l, l->op->in[1 + X], 1, s.at);
#pragma omp parallel for if (cpu_worth_threads(ct_tensor_count(s.in + X)))
    for (int64_t i = 0; i < s.batch * s.groups; i++)
        backward_group(&s, i / s.groups, i % s.groups);
    for (int k = 0; k < 3; k++)
        for (int64_t head = 0; head < s.heads; head++) {
            double sum = 0;

            for (int64_t b = 0; b < s.batch; b++)
                sum += (double)s.sums[(b * 3 + k) * s.heads + head];
            ct_tensor_store(l->out + outputs[k], head, sum);
        }
    return 0;
}
