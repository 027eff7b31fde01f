/*
 * AdamW whose moments take 8 bits: float8_e4m3 codes, with a float32 scale for each block of a row.
 *
 * The second moment is kept as its root, so that its codes span 36 powers of two. Codes are rounded
 * stochastically: rounded to nearest, a moment would not decay at all where one step changes it by
 * less than half the distance of two codes. The random number of an element depends on the step and
 * on its index in the whole tensor, and a block never crosses a shard, so the moments are the same
 * on every mesh.
 */
#include <math.h>

#include <ctitan/error.h>
#include <ctitan/number.h>
#include <ctitan/op_author.h>

#include "adamw.h"

#define MOST 256       /* elements of a block */
#define LEAST 4        /* takes half of the bytes of float32; shorter ones would save little */
#define SHARDS 8       /* in which a row can be split between blocks */
#define LARGEST 448.0f /* of the codes */
#define NORMAL 0x1p-6f /* the smallest normal one */
#define SMALLEST 0x1p-9f

enum { LR, STEP, CLIP, P, G, M, M_SCALE, V, V_SCALE, INPUTS };

int64_t adamw_float8_block(const struct ct_value *param)
{
    int64_t columns = param->ndim ? param->shape[param->ndim - 1] : 1, block = 1;

    while (block < MOST && columns % (2 * block * SHARDS) == 0)
        block *= 2;
    return param->ndim >= 2 && block >= LEAST ? block : 0;
}

/* ---- a block ---- */

struct block {
    float p[MOST], g[MOST], m[MOST], v[MOST];
    float m_scale, v_scale;
};

struct step {
    float lr, keep, clip, beta1, beta2, eps, correct1, correct2;
    uint32_t number;
};

/* 23 random bits of an element in a step. */
static uint32_t random_bits(uint32_t index, uint32_t step)
{
    uint32_t h = index * 0x9e3779b1u ^ step;

    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return (h ^ h >> 16) >> 9;
}

/* |x| <= LARGEST, rounded up or down to a code's value, nearer ones with higher probability. NaN
   stays, whatever its bits. */
static float rounded(float x, uint32_t random)
{
    uint32_t bits = ct_float_bits(x), magnitude = bits & 0x7fffffffu;
    float small =
        (float)(int32_t)(ct_float_of(magnitude) / SMALLEST + (float)random * 0x1p-23f) * SMALLEST;
    uint32_t normal = (magnitude + (random >> 3)) & ~0xfffffu;

    normal = magnitude < ct_float_bits(NORMAL) ? ct_float_bits(small) : normal;
    normal = magnitude > ct_float_bits(LARGEST) ? magnitude : normal;
    return ct_float_of(normal | (bits & 0x80000000u));
}

static float largest(const float *x, int64_t n)
{
    float most = 0;

    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

static float quantise(float *x, int64_t n, uint32_t index, uint32_t step)
{
    float scale = largest(x, n) / LARGEST, by = scale > 0 ? 1 / scale : 0;

    for (int64_t i = 0; i < n; i++) {
        float y = x[i] * by;

        y = y > LARGEST ? LARGEST : y < -LARGEST ? -LARGEST : y;
        x[i] = rounded(y, random_bits(index + (uint32_t)i, step));
    }
    return scale;
}

static void update(const struct step *s, struct block *b, int64_t n, uint32_t index)
{
    for (int64_t i = 0; i < n; i++) {
        float g = b->g[i] * s->clip, root = b->v[i] * b->v_scale;

        b->m[i] = s->beta1 * (b->m[i] * b->m_scale) + (1 - s->beta1) * g;
        b->v[i] = sqrtf(s->beta2 * root * root + (1 - s->beta2) * g * g);
        b->p[i] =
            b->p[i] * s->keep - s->lr / s->correct1 * b->m[i] / (b->v[i] / s->correct2 + s->eps);
    }
    b->m_scale = quantise(b->m, n, index, s->number);
    b->v_scale = quantise(b->v, n, index, ~s->number);
}

/* ---- the op ---- */

static struct step step_of(const struct ct_launch *l)
{
    const struct adamw_hyper *h = l->op->attrs;
    double lr = ct_tensor_load(&l->in[LR], 0) * h->lr_factor,
           step = ct_tensor_load(&l->in[STEP], 0);

    return (struct step){.lr = (float)lr,
                         .keep = (float)(1 - lr * h->weight_decay),
                         .clip = (float)ct_tensor_load(&l->in[CLIP], 0),
                         .beta1 = (float)h->beta1,
                         .beta2 = (float)h->beta2,
                         .eps = (float)h->eps,
                         .correct1 = (float)(1 - pow(h->beta1, step)),
                         .correct2 = (float)sqrt(1 - pow(h->beta2, step)),
                         .number = (uint32_t)(int64_t)step * 0x632be5abu};
}

/* The index, in the whole tensor, of the first element of a row of this rank. */
static uint32_t first_of_row(const struct ct_launch *l, int64_t row)
{
    const struct ct_tensor *p = &l->in[P];
    const struct ct_value *whole = l->op->in[P];
    int last = p->ndim - 1;
    uint64_t index = (uint64_t)ct_launch_offset(l, whole, last), stride = 1;

    for (int d = last; d >= 0; d--) {
        if (d < last) {
            index += (uint64_t)(row % p->shape[d] + ct_launch_offset(l, whole, d)) * stride;
            row /= p->shape[d];
        }
        stride *= (uint64_t)whole->shape[d];
    }
    return (uint32_t)(index ^ index >> 32);
}

static void load(const struct ct_tensor *t, int64_t at, float *to, int64_t n)
{
    if (t->dtype == CT_F32 && ct_tensor_is_dense(t))
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const float *)t->data)[at + i];
    else if (t->dtype == CT_E4M3 && ct_tensor_is_dense(t))
        for (int64_t i = 0; i < n; i++)
            to[i] = ct_e4m3_to_f32(((const uint8_t *)t->data)[at + i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)ct_tensor_load(t, at + i);
}

static void store(const struct ct_tensor *t, int64_t at, const float *from, int64_t n)
{
    if (t->dtype == CT_F32 && ct_tensor_is_dense(t))
        for (int64_t i = 0; i < n; i++)
            ((float *)t->data)[at + i] = from[i];
    else if (t->dtype == CT_E4M3 && ct_tensor_is_dense(t))
        for (int64_t i = 0; i < n; i++)
            ((uint8_t *)t->data)[at + i] = ct_f32_to_e4m3(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            ct_tensor_store(t, at + i, (double)from[i]);
}

static void update_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    struct step s = step_of(l);
    int64_t columns = ct_columns(&l->in[P]), blocks = ct_columns(&l->in[M_SCALE]);
    int64_t n = columns / blocks;
    struct block b;

    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < blocks; i++) {
            int64_t at = row * columns + i * n;

            load(&l->in[P], at, b.p, n);
            load(&l->in[G], at, b.g, n);
            load(&l->in[M], at, b.m, n);
            load(&l->in[V], at, b.v, n);
            load(&l->in[M_SCALE], row * blocks + i, &b.m_scale, 1);
            load(&l->in[V_SCALE], row * blocks + i, &b.v_scale, 1);
            update(&s, &b, n, first_of_row(l, row) + (uint32_t)(i * n));
            store(&l->in[P], at, b.p, n);
            store(&l->in[M], at, b.m, n);
            store(&l->in[V], at, b.v, n);
            store(&l->in[M_SCALE], row * blocks + i, &b.m_scale, 1);
            store(&l->in[V_SCALE], row * blocks + i, &b.v_scale, 1);
        }
}

static int check_blocks(const struct ct_launch *l)
{
    int64_t columns = ct_columns(&l->in[P]), blocks = ct_columns(&l->in[M_SCALE]);

    return blocks > 0 && columns % blocks == 0 && columns / blocks <= MOST
               ? 0
               : ct_fail(CT_EINVAL, "adamw.float8: %lld blocks of %lld elements", (long long)blocks,
                         (long long)columns);
}

static int reference(const struct ct_launch *l)
{
    int rc = check_blocks(l);

    if (rc == 0 && ct_tensor_load(&l->in[CLIP], 0) >= 0)
        update_rows((void *)(uintptr_t)l, 0, ct_rows(&l->in[P]));
    return rc;
}

int adamw_float8_run(const struct ct_launch *l)
{
    int rc = check_blocks(l);

    if (rc == 0 && ct_tensor_load(&l->in[CLIP], 0) >= 0)
        ct_parallel(l, ct_rows(&l->in[P]), update_rows, (void *)(uintptr_t)l);
    return rc;
}

const struct ct_op_type adamw_float8 = {
    .size = sizeof(struct ct_op_type),
    .name = "adamw.float8",
    .summary = "as adamw, with moments in blocks of codes with a scale; v is the moment's root",
    .signature = "lr[] d, step[] d, clip[] f, !p[.r] F, g[.r] F, !m[.r] F, !m_scale[.b] f, "
                 "!v[.r] F, !v_scale[.b] f | r:b",
    .samples = "square[] square[] factor[] real[2,3,8] real[2,3,8] real[2,3,8] factor[2,3,2] "
               "positive[2,3,8] factor[2,3,2];"
               "weight_decay=0.5 lr_factor=0.25: square[] square[] factor[] real[2,3,8] "
               "real[2,3,8] real[2,3,8] factor[2,3,2] positive[2,3,8] factor[2,3,2]",
    .attrs = adamw_attrs,
    .attrs_size = sizeof(struct adamw_hyper),
    .reference = reference,
};
