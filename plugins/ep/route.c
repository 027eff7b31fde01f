/*
 * Where tokens go: numbering, packing and summing of rows. The kernels run in host memory, in
 * parallel over ranks or tokens. Every sum has the order of ranks.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>

#include "ep.h"

#define BLOCK 128 /* columns summed at once */

int64_t ep_rows(const struct ep_round *round, double most)
{
    int64_t left = (int64_t)most - round->round * round->capacity;

    if (!round->agreed)
        return round->capacity;
    return left < 0 ? 0 : left < round->capacity ? left : round->capacity;
}

static bool travels(const struct ep_round *round, int64_t slot)
{
    return slot >= 0 && slot / round->capacity == round->round;
}

/* ---- ep.route ---- */

static const struct ct_option route_attrs[] = {
    CT_OPT_INT(struct ep_route, experts, "experts", "1", 1, 1 << 20, "Experts of all ranks"),
    CT_OPT_INT(struct ep_route, ranks, "ranks", "1", 1, 1 << 16, "Ranks that share the experts"),
    CT_OPT_INT(struct ep_route, groups, "groups", "1", 1, INT32_MAX, "Groups of such ranks"),
    {0}};

static int route_infer(struct ct_op *op)
{
    const struct ep_route *a = op->attrs;
    const struct ct_value *ids = op->in[0];

    if (ids->ndim < 2)
        return ct_fail(CT_EINVAL, "ids must have two dimensions or more");
    op->out[0]->dtype = op->out[1]->dtype = CT_I32;
    op->out[0]->ndim = ids->ndim;
    memcpy(op->out[0]->shape, ids->shape, sizeof(ids->shape));
    op->out[0]->shape[ids->ndim - 1] = a->ranks;
    op->out[1]->ndim = 1;
    op->out[1]->shape[0] = a->groups;
    return 0;
}

static int route_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ep_route *a = l->op->attrs;
    int64_t k = ct_columns(&l->in[0]), tokens = ct_rows(&l->in[0]);
    double *slot = r.out[0], *count = ct_arena_array(&r.arena, double, a->ranks);
    int rc = 0;

    for (int64_t i = 0; i < tokens * a->ranks; i++)
        slot[i] = -1;
    for (int64_t i = 0; rc == 0 && i < tokens * k; i++) {
        int64_t rank;

        if (r.in[0][i] == CT_NO_EXPERT)
            continue;
        rc = ct_checked_index(r.in[0], i, a->experts, "expert");
        rank = rc == 0 ? ct_shard_of(a->experts, a->ranks, (int64_t)r.in[0][i]) : 0;
        if (rc == 0 && slot[i / k * a->ranks + rank] < 0)
            slot[i / k * a->ranks + rank] = count[rank]++;
    }
    for (int64_t rank = 0; rank < a->ranks; rank++)
        r.out[1][0] = count[rank] > r.out[1][0] ? count[rank] : r.out[1][0];
    return ct_reference_end(&r, rc);
}

const struct ct_op_type ep_route = {
    .size = sizeof(struct ct_op_type),
    .name = "ep.route",
    .summary = "numbers the rows from this rank to each that has chosen experts",
    .signature = "ids i -> slot i, most i",
    .samples = "experts=7 ranks=3: index[2,4,2]; experts=6: index[5,3]; "
               "experts=8 ranks=8: index[6,2]",
    .attrs = route_attrs,
    .attrs_size = sizeof(struct ep_route),
    .infer = route_infer,
    .reference = route_reference,
};

/* ---- ep.pack ---- */

#define ROUND                                                                                      \
    CT_OPT_INT(struct ep_round, round, "round", "0", 0, INT32_MAX, "Number of the round"),         \
        CT_OPT_INT(struct ep_round, capacity, "capacity", "1", 1, INT32_MAX,                       \
                   "Rows between two ranks in a round, at most"),                                  \
        CT_OPT_BOOL(struct ep_round, agreed, "agreed", "true",                                     \
                    "Send at most as many rows as any rank has for another")

static const struct ct_option pack_attrs[] = {
    ROUND,
    CT_OPT_INT(struct ep_round, shards, "shards", "1", 1, INT32_MAX, "Shards of tokens"),
    CT_OPT_INT(struct ep_round, ranks, "ranks", "1", 1, 1 << 16, "Ranks that share the experts"),
    {0}};

enum { ROWS, SLOT, VALUE };

static int pack_infer(struct ct_op *op)
{
    const struct ep_round *a = op->attrs;
    const struct ct_value *x = op->in[VALUE];

    op->out[0]->dtype = x->dtype;
    op->out[0]->ndim = 4;
    memcpy(op->out[0]->shape, (int64_t[]){a->shards, a->ranks, a->capacity, x->shape[x->ndim - 1]},
           4 * sizeof(int64_t));
    return 0;
}

/* In rows that are not there. */
static double nothing(const struct ct_tensor *x)
{
    return x->dtype == CT_I32 ? CT_NO_EXPERT : 0;
}

static int pack_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ep_round *a = l->op->attrs;
    int64_t rows = ep_rows(a, r.in[ROWS][0]), n = ct_columns(&l->in[VALUE]);

    for (int64_t i = 0; i < a->ranks * rows * n; i++)
        r.out[0][i] = nothing(&l->in[VALUE]);
    for (int64_t i = 0; i < ct_tensor_count(&l->in[SLOT]); i++) {
        int64_t s = (int64_t)r.in[SLOT][i];

        if (travels(a, s))
            memcpy(r.out[0] + (i % a->ranks * rows + s % a->capacity) * n,
                   r.in[VALUE] + i / a->ranks * n, sizeof(double) * (size_t)n);
    }
    return ct_reference_end(&r, 0);
}

/* Pack the rows for ranks [begin, end): rows that exist come first. */
static void pack_ranks(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const struct ep_round *a = l->op->attrs;
    const struct ct_tensor *x = &l->in[VALUE];
    const int32_t *slot = l->in[SLOT].data;
    int64_t rows = ep_rows(a, *(const int32_t *)l->in[ROWS].data), tokens = ct_rows(&l->in[SLOT]);
    size_t bytes = (size_t)ct_columns(x) * ct_dtype_size(x->dtype);

    for (int64_t r = begin; r < end; r++) {
        char *to = (char *)l->out[0].data + (size_t)(r * rows) * bytes;
        size_t count = 0;

        for (int64_t t = 0; t < tokens; t++) {
            int64_t s = slot[t * a->ranks + r];

            if (!travels(a, s))
                continue;
            memcpy(to + (size_t)(s % a->capacity) * bytes,
                   (const char *)x->data + (size_t)t * bytes, bytes);
            count++;
        }
        memset(to + count * bytes, x->dtype == CT_I32 ? 0xff : 0, ((size_t)rows - count) * bytes);
    }
}
_Static_assert(CT_NO_EXPERT == -1, "all bits set");

/* A gather or its reverse moves every token once to or from every other rank. */
static void count_gathered(const struct ct_launch *l, const struct ct_tensor *tokens)
{
    const struct ep_round *a = l->op->attrs;

    if (a->round == 0)
        ep_traffic.gathered += (double)(ct_columns(&l->in[SLOT]) - 1) *
                               (double)ct_tensor_count(tokens) *
                               (double)ct_dtype_size(tokens->dtype);
}

static int pack_run(const struct ct_launch *l)
{
    count_gathered(l, &l->in[VALUE]);
    ct_parallel(l, ((const struct ep_round *)l->op->attrs)->ranks, pack_ranks, (void *)l);
    return 0;
}

const struct ct_op_type ep_pack = {
    .size = sizeof(struct ct_op_type),
    .name = "ep.pack",
    .summary = "the rows of a round, rank by rank",
    .signature = "rows i, slot i, x A -> y A",
    .samples = "agreed=false ranks=2 capacity=7: small[1] position[7,2] real[7,6];"
               "agreed=false ranks=1 capacity=4 round=1: small[1] position[7,1] index[7,3];"
               "agreed=false ranks=2 capacity=3 round=2: small[1] position[7,2] index[7,3]",
    .attrs = pack_attrs,
    .attrs_size = sizeof(struct ep_round),
    .infer = pack_infer,
    .reference = pack_reference,
};

/* ---- ep.sum ---- */

enum { SUM_Y = 2, SUM_PREVIOUS };

static const struct ct_option sum_attrs[] = {ROUND, {0}};

static int sum_infer(struct ct_op *op)
{
    const struct ct_value *slot = op->in[SLOT], *y = op->in[SUM_Y];

    op->out[0]->dtype = y->dtype;
    op->out[0]->ndim = slot->ndim;
    memcpy(op->out[0]->shape, slot->shape, sizeof(slot->shape));
    op->out[0]->shape[slot->ndim - 1] = y->shape[y->ndim - 1];
    return 0;
}

static int sum_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ep_round *a = l->op->attrs;
    const double *previous = l->ins > SUM_PREVIOUS ? r.in[SUM_PREVIOUS] : NULL;
    int64_t rows = ep_rows(a, r.in[ROWS][0]), ranks = ct_columns(&l->in[SLOT]);
    int64_t n = ct_columns(&l->out[0]);

    for (int64_t i = 0; previous && i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = previous[i];
    for (int64_t i = 0; i < ct_tensor_count(&l->in[SLOT]); i++) {
        int64_t s = (int64_t)r.in[SLOT][i];

        for (int64_t c = 0; travels(a, s) && c < n; c++)
            r.out[0][i / ranks * n + c] +=
                r.in[SUM_Y][(i % ranks * rows + s % a->capacity) * n + c];
    }
    return ct_reference_end(&r, 0);
}

static void load(const struct ct_tensor *x, int64_t at, int64_t n, double *to, bool add)
{
    if (x->dtype == CT_F32)
        for (int64_t i = 0; i < n; i++)
            to[i] = (add ? to[i] : 0) + (double)((const float *)x->data)[at + i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = (add ? to[i] : 0) + ct_tensor_load(x, at + i);
}

static void store(const struct ct_tensor *y, int64_t at, int64_t n, const double *from)
{
    if (y->dtype == CT_F32)
        for (int64_t i = 0; i < n; i++)
            ((float *)y->data)[at + i] = (float)from[i];
    else
        for (int64_t i = 0; i < n; i++)
            ct_tensor_store(y, at + i, from[i]);
}

static void sum_tokens(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const struct ep_round *a = l->op->attrs;
    const int32_t *slot = l->in[SLOT].data;
    int64_t rows = ep_rows(a, *(const int32_t *)l->in[ROWS].data);
    int64_t ranks = ct_columns(&l->in[SLOT]), n = ct_columns(&l->out[0]);
    bool more = l->ins > SUM_PREVIOUS && l->in[SUM_PREVIOUS].data;
    double sum[BLOCK];

    for (int64_t t = begin; t < end; t++)
        for (int64_t c = 0; c < n; c += BLOCK) {
            int64_t columns = n - c < BLOCK ? n - c : BLOCK;

            memset(sum, 0, sizeof(sum));
            if (more)
                load(&l->in[SUM_PREVIOUS], t * n + c, columns, sum, false);
            for (int64_t r = 0; r < ranks; r++) {
                int64_t s = slot[t * ranks + r];

                if (travels(a, s))
                    load(&l->in[SUM_Y], (r * rows + s % a->capacity) * n + c, columns, sum, true);
            }
            store(&l->out[0], t * n + c, columns, sum);
        }
}

static int sum_run(const struct ct_launch *l)
{
    bool onto = l->ins > SUM_PREVIOUS && l->in[SUM_PREVIOUS].data == l->out[0].data &&
                l->in[SUM_PREVIOUS].dtype == l->out[0].dtype;

    count_gathered(l, &l->out[0]);
    if (!onto || ep_rows(l->op->attrs, *(const int32_t *)l->in[ROWS].data) > 0)
        ct_parallel(l, ct_rows(&l->out[0]), sum_tokens, (void *)l);
    return 0;
}

const struct ct_op_type ep_sum = {
    .size = sizeof(struct ct_op_type),
    .name = "ep.sum",
    .summary = "for each token, the sum of its rows and of those of earlier rounds",
    .signature = "rows i, slot i, y F, ?previous F -> sum F",
    .samples = "agreed=false capacity=7: small[1] position[7,2] real[1,2,7,6];"
               "agreed=false capacity=4 round=1: small[1] position[7,2] real[1,2,4,3] real[7,3];"
               "agreed=false capacity=2 round=3: small[1] position[7,1] real[1,1,2,4] real[7,4]",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = sum_attrs,
    .attrs_size = sizeof(struct ep_round),
    .inplace = (const int8_t[][2]){{0, SUM_PREVIOUS}, {-1, -1}},
    .infer = sum_infer,
    .reference = sum_reference,
};

const struct ct_kernel ep_kernels[] = {
    CT_KERNEL("ep.route", "rows", 0, NULL, NULL, route_reference),
    CT_KERNEL("ep.pack", "rows", 0, NULL, NULL, pack_run),
    CT_KERNEL("ep.sum", "rows", 0, NULL, NULL, sum_run),
    {0},
};
