/*
 * Adapters of stacked weights [experts, out, in]: y = w + scale b a, matrix by matrix, is what the
 * ops of the mixture multiply with, whatever these are. So the gradient of y, which the mixture
 * gives, is that of a whole weight; da and db are made of it at once, and it lives no longer.
 */
#include <math.h>
#include <string.h>

#include <ctitan/op_author.h>

#include "floats.h"
#include "lora.h"

enum { W, A, B };

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct lora_scaled, scale, "scale", "1", -HUGE_VAL, HUGE_VAL, "Factor of b a"),
    CT_OPT_BOOL(struct lora_scaled, frozen, "frozen", "false", "No gradient flows into w"),
    {0}};

static double scale_of(const struct ct_launch *l)
{
    return ((const struct lora_scaled *)l->op->attrs)->scale;
}

/* ---- how they are split ---- */

static void copy_dim(struct ct_sharding *to, int dim, const struct ct_sharding *from, int of)
{
    to->count[dim] = from->count[of];
    memcpy(to->axis[dim], from->axis[of], sizeof(from->axis[of]));
}

/* Shardings of a and b beside a weight with this one. */
static void place_beside(const struct ct_sharding *w, struct ct_sharding *a, struct ct_sharding *b)
{
    copy_dim(a, 0, w, 0);
    copy_dim(a, 2, w, 2);
    copy_dim(b, 0, w, 0);
    copy_dim(b, 1, w, 1);
}

static ct_axes axes_of(const struct ct_sharding *s, int dim)
{
    struct ct_sharding one = {0};

    copy_dim(&one, 0, s, dim);
    return ct_sharding_axes(&one);
}

/* Both gradients are linear in dy, whose pending sums they pass on: a rank never sends one of a
   whole weight. */
static int place_da(const struct ct_op *op, const struct ct_mesh *mesh, struct ct_sharding *in,
                    struct ct_sharding *out)
{
    (void)mesh;
    in[0] = op->in[0]->sharding;
    place_beside(&in[0], &out[0], &in[1]);
    out[0].unreduced = in[0].unreduced | axes_of(&in[0], 1);
    return 0;
}

static int place_db(const struct ct_op *op, const struct ct_mesh *mesh, struct ct_sharding *in,
                    struct ct_sharding *out)
{
    (void)mesh;
    in[0] = op->in[0]->sharding;
    place_beside(&in[0], &in[1], &out[0]);
    out[0].unreduced = in[0].unreduced | axes_of(&in[0], 2);
    return 0;
}

/* ---- references ---- */

static int merge_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t rank = l->in[A].shape[1], rows = l->in[W].shape[1], columns = l->in[W].shape[2];

    for (int64_t i = 0; i < ct_tensor_count(&l->in[W]); i++) {
        int64_t row = i / columns, expert = row / rows, column = i % columns;
        double sum = 0;

        for (int64_t k = 0; k < rank; k++)
            sum += r.in[B][row * rank + k] * r.in[A][(expert * rank + k) * columns + column];
        r.out[0][i] = r.in[W][i] + scale_of(l) * sum;
    }
    return ct_reference_end(&r, 0);
}

/* dy, b -> da */
static int da_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t rank = l->in[1].shape[2], rows = l->in[0].shape[1], columns = l->in[0].shape[2];

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        for (int64_t row = i / columns, k = 0; k < rank; k++)
            r.out[0][(row / rows * rank + k) * columns + i % columns] +=
                scale_of(l) * r.in[0][i] * r.in[1][row * rank + k];
    return ct_reference_end(&r, 0);
}

/* dy, a -> db */
static int db_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t rank = l->in[1].shape[1], rows = l->in[0].shape[1], columns = l->in[0].shape[2];

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        for (int64_t row = i / columns, k = 0; k < rank; k++)
            r.out[0][row * rank + k] +=
                scale_of(l) * r.in[0][i] * r.in[1][(row / rows * rank + k) * columns + i % columns];
    return ct_reference_end(&r, 0);
}

static double merge_flops(const struct ct_op *op, const struct ct_tensor *in,
                          const struct ct_tensor *out)
{
    (void)op, (void)out;
    return 2 * (double)ct_tensor_count(&in[W]) * (double)in[A].shape[1];
}

static double da_flops(const struct ct_op *op, const struct ct_tensor *in,
                       const struct ct_tensor *out)
{
    (void)op, (void)out;
    return 2 * (double)ct_tensor_count(&in[0]) * (double)in[1].shape[2];
}

static int merge_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in;
    int rc = 0;

    if (!((const struct lora_scaled *)v->op->attrs)->frozen)
        v->din[W] = v->dout[0];
    if (v->wanted[A])
        rc = ct_emit_gradients(v, &lora_op_merge_da, (struct ct_value *[]){v->dout[0], in[B]}, 2,
                               v->op->attrs, (int[]){A}, 1);
    if (rc == 0 && v->wanted[B])
        rc = ct_emit_gradients(v, &lora_op_merge_db, (struct ct_value *[]){v->dout[0], in[A]}, 2,
                               v->op->attrs, (int[]){B}, 1);
    return rc;
}

/* ---- types ---- */

const struct ct_op_type lora_op_merge = {
    .size = sizeof(struct ct_op_type),
    .name = "lora.merge",
    .summary = "stacked weights with their adapters: w + scale b a",
    .signature = "w[enk] T, a[eRk] T, b[enR] T -> y[enk] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .samples = "@flops=1152: real[2,6,12] real[2,4,12] real[2,6,4]; scale=0.5 @flops=1152: "
               "real[2,6,12] real[2,4,12] real[2,6,4]",
    .attrs = attrs,
    .attrs_size = sizeof(struct lora_scaled),
    .vjp = merge_vjp,
    .flops = merge_flops,
    .reference = merge_reference,
};

const struct ct_op_type lora_op_merge_da = {
    .size = sizeof(struct ct_op_type),
    .name = "lora.merge_da",
    .summary = "gradient of lora.merge towards a",
    .signature = "dy[enk] T, b[enR] T -> da[eRk] T",
    .flags = CT_OP_ANY_DTYPE,
    .samples = "scale=0.5 @flops=1152: real[2,6,12] real[2,6,4]",
    .attrs = attrs,
    .attrs_size = sizeof(struct lora_scaled),
    .flops = da_flops,
    .reference = da_reference,
    .place = place_da,
};

const struct ct_op_type lora_op_merge_db = {
    .size = sizeof(struct ct_op_type),
    .name = "lora.merge_db",
    .summary = "gradient of lora.merge towards b",
    .signature = "dy[enk] T, a[eRk] T -> db[enR] T",
    .flags = CT_OP_ANY_DTYPE,
    .samples = "scale=0.5 @flops=1152: real[2,6,12] real[2,4,12]",
    .attrs = attrs,
    .attrs_size = sizeof(struct lora_scaled),
    .flops = merge_flops,
    .reference = db_reference,
    .place = place_db,
};

/* ---- kernels ---- */

/* Where row i of a stack's matrix e, or of a single matrix, is in memory. */
static int64_t row_at(const struct ct_tensor *t, int64_t e, int64_t i)
{
    return (t->ndim > 2 ? e * t->stride[0] : 0) + i * t->stride[t->ndim - 2];
}

static float number(const struct ct_tensor *t, int64_t at)
{
    float one;

    return *lora_floats_get(t, at, 1, &one);
}

void lora_sum_rows(const struct ct_launch *l, int64_t e, int64_t row, int64_t rows, int64_t at,
                   int64_t n, float sum[][LORA_CHUNK])
{
    const struct ct_tensor *w = &l->in[W], *a = &l->in[A], *b = &l->in[B];
    float room[LORA_CHUNK], scale = (float)scale_of(l);

    for (int64_t i = 0; i < rows; i++)
        memcpy(sum[i], lora_floats_get(w, row_at(w, e, row + i) + at, n, room),
               sizeof(**sum) * (size_t)n);
    for (int64_t r = 0; r < a->shape[a->ndim - 2]; r++) {
        const float *part = lora_floats_get(a, row_at(a, e, r) + at, n, room);

        for (int64_t i = 0; i < rows; i++)
            lora_floats_add(sum[i], scale * number(b, row_at(b, e, row + i) + r), part, n);
    }
}

static void merge_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const struct ct_tensor *w = &l->in[W];
    float sum[1][LORA_CHUNK];

    for (int64_t row = begin; row < end; row++)
        for (int64_t at = 0, e = row / w->shape[1], i = row % w->shape[1]; at < w->shape[2];
             at += LORA_CHUNK) {
            int64_t left = w->shape[2] - at, n = left < LORA_CHUNK ? left : LORA_CHUNK;

            lora_sum_rows(l, e, i, 1, at, n, sum);
            lora_floats_put(&l->out[0], row_at(&l->out[0], e, i) + at, n, l->accumulate & 1,
                            sum[0]);
        }
}

static int merge_run(const struct ct_launch *l)
{
    ct_parallel(l, l->in[W].shape[0] * l->in[W].shape[1], merge_rows, (void *)(uintptr_t)l);
    return 0;
}

#define STRIP 64 /* columns, and rows of da, whose sums are made together */

/* Rows [first, first + count) and n columns from `at` of the da of one matrix. */
static void da_tile(const struct ct_launch *l, int64_t e, int64_t first, int64_t count, int64_t at,
                    int64_t n)
{
    const struct ct_tensor *dy = &l->in[0], *b = &l->in[1], *da = &l->out[0];
    float sum[STRIP][STRIP] = {{0}}, room[STRIP], scale = (float)scale_of(l);

    for (int64_t i = 0; i < dy->shape[1]; i++) {
        const float *d = lora_floats_get(dy, row_at(dy, e, i) + at, n, room);

        for (int64_t r = 0; r < count; r++)
            lora_floats_add(sum[r], scale * number(b, row_at(b, e, i) + first + r), d, n);
    }
    for (int64_t r = 0; r < count; r++)
        lora_floats_put(da, row_at(da, e, first + r) + at, n, l->accumulate & 1, sum[r]);
}

static int64_t strips(int64_t n)
{
    return (n + STRIP - 1) / STRIP;
}

static void da_strips(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const struct ct_tensor *da = &l->out[0];
    int64_t across = strips(da->shape[2]);

    for (int64_t strip = begin; strip < end; strip++)
        for (int64_t first = 0, at = strip % across * STRIP; first < da->shape[1]; first += STRIP) {
            int64_t rows = da->shape[1] - first, columns = da->shape[2] - at;

            da_tile(l, strip / across, first, rows < STRIP ? rows : STRIP, at,
                    columns < STRIP ? columns : STRIP);
        }
}

static int da_run(const struct ct_launch *l)
{
    ct_parallel(l, l->out[0].shape[0] * strips(l->out[0].shape[2]), da_strips,
                (void *)(uintptr_t)l);
    return 0;
}

static float db_number(const struct ct_launch *l, int64_t e, int64_t i, int64_t r)
{
    const struct ct_tensor *dy = &l->in[0], *a = &l->in[1];
    float rooms[2][LORA_CHUNK];
    double sum = 0;

    for (int64_t at = 0; at < dy->shape[2]; at += LORA_CHUNK) {
        int64_t n = dy->shape[2] - at < LORA_CHUNK ? dy->shape[2] - at : LORA_CHUNK;

        sum += lora_floats_dot(lora_floats_get(dy, row_at(dy, e, i) + at, n, rooms[0]),
                               lora_floats_get(a, row_at(a, e, r) + at, n, rooms[1]), n);
    }
    return (float)(scale_of(l) * sum);
}

static void db_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const struct ct_tensor *db = &l->out[0];

    for (int64_t row = begin; row < end; row++)
        for (int64_t r = 0, e = row / db->shape[1], i = row % db->shape[1]; r < db->shape[2]; r++) {
            float sum = db_number(l, e, i, r);

            lora_floats_put(db, row_at(db, e, i) + r, 1, l->accumulate & 1, &sum);
        }
}

static int db_run(const struct ct_launch *l)
{
    ct_parallel(l, l->out[0].shape[0] * l->out[0].shape[1], db_rows, (void *)(uintptr_t)l);
    return 0;
}

static bool accepts(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins + p->outs; i++) {
        const struct ct_tensor *t = i < p->ins ? &p->in[i] : &p->out[i - p->ins];

        if ((t->dtype != CT_F32 && t->dtype != CT_BF16) || t->stride[2] != 1)
            return false;
    }
    return true;
}

#define FLAGS (CT_KERNEL_STRIDED | CT_KERNEL_ACCUMULATES)

const struct ct_kernel lora_stack_kernels[] = {
    CT_KERNEL("lora.merge", "rows", FLAGS, accepts, NULL, merge_run),
    CT_KERNEL("lora.merge_da", "strips", FLAGS, accepts, NULL, da_run),
    CT_KERNEL("lora.merge_db", "rows", FLAGS, accepts, NULL, db_run),
    {0}};
