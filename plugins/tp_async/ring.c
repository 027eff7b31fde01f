/*
 * Pipelines along a ring: what a rank can multiply without any other comes first, or last.
 *
 *   gather    The rank's own rows are multiplied beside the exchange of the next rank's rows, those
 *             beside the exchange of the rows behind them, and so on.
 *   scatter   The rows of other ranks are multiplied and sent one after the other, the rank's own
 *             rows last. The terms that have come by then are added in the order of the ranks.
 *
 * Rows of one sequence and one rank are multiplied at a time: they are contiguous in the whole.
 *
 *   shards   [batch x sequences, tokens, k] -> [batch, sequences, outer x ranks, tokens, k]
 *   wholes                                  -> [batch, sequences, outer, ranks x tokens, k]
 *
 * Places along the ring count from the rank's own shard on, so one op takes other rows on each
 * rank. No sharding is that of one rank's rows and the own columns of another: tp would split both.
 * tp_async.local makes of a shard a value that tp does not split and that differs from rank to
 * rank; only ops of the pipeline use such values.
 */
#include <string.h>

#include <ctitan/error.h>

#include "tp_async.h"

enum { BATCH, SEQUENCE, SHARD, TOKEN, FEATURE, DIMS };

/* Tokens [from, from + count) of a sequence, of the rank `ahead` places further. */
struct part {
    int64_t ahead, sequence, from, count;
};

struct ring {
    struct async_pipeline p; /* first */
    ct_axes axes;
    struct part *part; /* own ones first */
    /* Parts of adjacent sequences are exchanged at once: exchange e has those from first[e] on. The
       first one is no exchange: the own parts. */
    int *first, exchanges;
};

static struct ring *ring_of(struct async_pipeline *p)
{
    return (struct ring *)p;
}

/* ---- values ---- */

/* Sharding of a value whose sequences are divided, in `ndim` dimensions. */
static struct ct_sharding spread(const struct ct_sharding *s, int ndim)
{
    struct ct_sharding wide = {.unreduced = s->unreduced, .reduction = s->reduction};
    const int to[3] = {BATCH, SHARD, ndim - 1};

    for (int d = 0; d < 3; d++) {
        wide.count[to[d]] = s->count[d];
        memcpy(wide.axis[to[d]], s->axis[d], sizeof(wide.axis[0]));
    }
    return wide;
}

static struct ct_sharding divide(const struct async_pipeline *p, const struct ct_sharding *s)
{
    (void)p;
    return spread(s, DIMS);
}

static struct ct_value *divided(struct async_pipeline *p, struct ct_value *v, int64_t shards)
{
    int64_t shape[DIMS] = {p->work->rows.batch, p->work->rows.sequences, v->shape[1], v->shape[2]};
    struct ct_value *by_sequence = async_view(p, v, 4, shape, spread(&v->sharding, 4));

    shape[SHARD] = shards;
    shape[TOKEN] = v->shape[1] / shards;
    shape[FEATURE] = v->shape[2];
    return by_sequence ? async_view(p, by_sequence, DIMS, shape, spread(&v->sharding, DIMS)) : NULL;
}

/* The other way. */
static void deliver(struct async_pipeline *p, struct ct_value *v, struct ct_value *old)
{
    int64_t shape[4] = {p->work->rows.batch, p->work->rows.sequences, old->shape[1], old->shape[2]};
    struct ct_value *by_sequence = v ? async_view(p, v, 4, shape, spread(&old->sharding, 4)) : NULL;

    if (by_sequence)
        async_deliver(p, by_sequence, old);
}

static struct ct_value *like(struct ct_value *v, const struct ct_value *other)
{
    if (v)
        v->sharding = other->sharding;
    return v;
}

static struct ct_value *narrowed(struct async_pipeline *p, struct ct_value *v, int dim,
                                 int64_t from, int64_t size)
{
    if (!v || size == v->shape[dim])
        return v;
    return like(ct_narrow(&p->b, async_named(p, v, "part", -1), v, dim, from, size), v);
}

static struct ct_value *concatenated(struct async_pipeline *p, const char *name,
                                     struct ct_value *const *parts, int count, int dim)
{
    return count == 1 || !parts[0] ? parts[0]
                                   : like(ct_concat(&p->b, name, parts, count, dim), parts[0]);
}

/* A shard as a value that tp does not split, or back. */
static struct ct_value *relabelled(struct async_pipeline *p, struct ct_value *v, bool local)
{
    const struct async_rows *rows = &p->work->rows;
    struct async_local attrs = {SHARD, local ? rows->outer : rows->outer * rows->ranks};
    struct ct_value *other =
        v ? ct_emit_type1(&p->b, &async_op_local, async_named(p, v, local ? "local" : "shard", -1),
                          &v, 1, &attrs)
          : NULL;

    if (!other)
        return NULL;
    other->sharding = v->sharding;
    if (local) {
        other->sharding.count[SHARD]--;
    } else {
        other->sharding.unreduced &= ~ring_of(p)->axes;
        ct_sharding_split(&other->sharding, SHARD, async_axis(p->work->graph));
    }
    return other;
}

/* The rows of a part, of a whole. */
static struct ct_value *take(struct async_pipeline *p, struct ct_value *whole, int which)
{
    const struct part *part = &ring_of(p)->part[which];
    struct ct_value *v = divided(p, whole, p->work->rows.outer);
    struct async_ring attrs = {TOKEN, part->ahead * p->work->rows.tokens + part->from, part->count,
                               ring_of(p)->axes};

    v = narrowed(p, v, SEQUENCE, part->sequence, 1);
    return v ? like(ct_emit_type1(&p->b, &async_op_ring_narrow,
                                  async_named(p, whole, "part", which), &v, 1, &attrs),
                    v)
             : NULL;
}

/* ---- parts ---- */

/* A shard is exchanged in `chunks`: groups of sequences, or if there are more, parts of each. */
static void lay_out(struct ring *r)
{
    const struct async_rows *rows = &r->p.work->rows;
    int64_t sequences = rows->sequences, chunks = r->p.work->chunks;
    int64_t groups = chunks < sequences ? chunks : sequences;
    int64_t parts = (chunks + sequences - 1) / sequences;
    struct part *part;
    int *first;

    part = r->part =
        ct_arena_array(&r->p.scratch, struct part, sequences * (1 + (rows->ranks - 1) * parts));
    first = r->first = ct_arena_array(&r->p.scratch, int, 2 + (rows->ranks - 1) * groups * parts);
    for (int64_t s = 0; s < sequences; s++)
        *part++ = (struct part){0, s, 0, rows->tokens};
    for (int64_t ahead = 1; ahead < rows->ranks; ahead++)
        for (int64_t g = 0; g < groups; g++)
            for (int64_t k = 0; k < parts; k++) {
                int64_t from = rows->tokens * k / parts, to = rows->tokens * (k + 1) / parts;

                *++first = (int)(part - r->part);
                for (int64_t s = sequences * g / groups; s < sequences * (g + 1) / groups; s++)
                    *part++ = (struct part){ahead, s, from, to - from};
            }
    *++first = (int)(part - r->part);
    r->exchanges = (int)(first - r->first);
}

static void begin(struct ring *r, const struct async_work *work, struct ct_op *before,
                  const char *what)
{
    struct ct_arena *names = work->graph->arena;

    *r = (struct ring){.p = {.work = work,
                             .b = ct_builder_before(work->graph, before),
                             .take = take,
                             .divide = divide},
                       .axes = (ct_axes)1 << async_axis(work->graph)};
    r->p.b.why =
        ct_arena_printf(names, "tp_async: %s, in %d exchange%s with each rank, beside products",
                        what, work->chunks, ct_plural(work->chunks));
    lay_out(r);
}

/* A shard's rows of exchange e. */
static struct ct_value *rows_of(struct ring *r, struct ct_value *shard, int e)
{
    const struct part *first = &r->part[r->first[e]];
    struct ct_value *v = narrowed(&r->p, shard, SEQUENCE, first->sequence,
                                  r->part[r->first[e + 1] - 1].sequence - first->sequence + 1);

    return narrowed(&r->p, v, TOKEN, first->from, first->count);
}

/* Every rank's shard v moves by so many places. */
static struct ct_value *moved(struct ring *r, struct ct_value *v, int64_t places, int e)
{
    struct ct_op *op;

    if (!v)
        return NULL;
    op = ct_permute(&r->p.b, async_named(&r->p, r->p.work->collective->out[0], "chunk", e), &v, 1,
                    r->axes, (int)places);
    if (!op)
        return NULL;
    op->stream = async_stream();
    return like(op->out[0], v);
}

/* Parts, by number, put together to a whole. */
static struct ct_value *whole_of(struct ring *r, const char *name, struct ct_value *const *value)
{
    int64_t sequences = r->p.work->rows.sequences;
    struct ct_value **row = ct_arena_array(&r->p.scratch, struct ct_value *, sequences),
                    **part =
                        ct_arena_array(&r->p.scratch, struct ct_value *, r->first[r->exchanges]);
    struct async_ring attrs = {.dim = TOKEN, .axes = r->axes};

    for (int64_t s = 0; s < sequences; s++) {
        int count = 0;

        for (int i = 0; i < r->first[r->exchanges]; i++)
            if (r->part[i].sequence == s)
                part[count++] = value[i];
        row[s] =
            r->p.b.status
                ? NULL
                : like(ct_emit_type1(&r->p.b, &async_op_ring_concat, name, part, count, &attrs),
                       part[0]);
    }
    return concatenated(&r->p, name, row, (int)sequences, SEQUENCE);
}

/* ---- all_gather, products ---- */

/* The result of exchange e, a value of the rank's own. */
static struct ct_value *received(struct ring *r, struct ct_value *shard, int e)
{
    int64_t ahead = r->part[r->first[e]].ahead;
    struct ct_value *rows = rows_of(r, shard, e);

    return relabelled(&r->p, ahead ? moved(r, rows, -ahead, e) : rows, true);
}

/* value[k][i][n]: part n of output i of product k; row[n]: the rows of part n. */
static void multiply(struct ring *r, struct ct_value *rows, int e, struct ct_value ***const *value,
                     struct ct_value **row)
{
    const struct async_work *work = r->p.work;

    for (int n = r->first[e]; rows && n < r->first[e + 1]; n++) {
        row[n] =
            narrowed(&r->p, rows, SEQUENCE, r->part[n].sequence - r->part[r->first[e]].sequence, 1);
        for (int k = 0; row[n] && k < work->products; k++) {
            const struct ct_op *copy = async_product(&r->p, work->product[k], row[n], n);

            for (int i = 0; copy && i < copy->outs; i++)
                value[k][i][n] = copy->out[i];
        }
    }
}

static struct ct_value ****make_room(struct ring *r)
{
    const struct async_work *work = r->p.work;
    struct ct_arena *scratch = &r->p.scratch;
    struct ct_value ****value = ct_arena_array(scratch, struct ct_value ***, work->products);

    for (int k = 0; k < work->products; k++) {
        value[k] = ct_arena_array(scratch, struct ct_value **, work->product[k]->outs);
        for (int i = 0; i < work->product[k]->outs; i++)
            value[k][i] = ct_arena_array(scratch, struct ct_value *, r->first[r->exchanges]);
    }
    return value;
}

/* The first exchange stands where the gather did, each other one in front of the products of the
   rows before. */
int async_gather_by_ring(const struct async_work *work)
{
    struct ct_value *whole = work->collective->out[0], *shard, *next, **row, ****value;
    struct ring r;

    begin(&r, work, work->collective, "own rows first, others gathered");
    value = make_room(&r);
    row = ct_arena_array(&r.p.scratch, struct ct_value *, r.first[r.exchanges]);
    shard = divided(&r.p, work->collective->in[0], work->rows.outer * work->rows.ranks);
    next = received(&r, shard, 1);
    r.p.b.before = work->product[0];
    multiply(&r, received(&r, shard, 0), 0, value, row);
    for (int e = 1; e < r.exchanges; e++) {
        struct ct_value *now = next;

        next = e + 1 < r.exchanges ? received(&r, shard, e + 1) : NULL;
        multiply(&r, now, e, value, row);
    }
    for (int k = 0; k < work->products; k++)
        for (int i = 0; r.p.b.status == 0 && i < work->product[k]->outs; i++) {
            struct ct_value *old = work->product[k]->out[i];

            deliver(&r.p, whole_of(&r, async_named(&r.p, old, "whole", -1), value[k][i]), old);
        }
    if (r.p.b.status == 0 && whole->use_count + whole->fetch_count > (uint32_t)work->products)
        deliver(&r.p, whole_of(&r, async_named(&r.p, whole, "whole", -1), row), whole);
    return async_end_gather(&r.p);
}

/* ---- products, reduce_scatter ---- */

/* The terms of exchange e: the sum of products on the rows of other ranks, or on its own. */
static struct ct_value *terms(struct ring *r, const struct ct_value *sum, int e)
{
    int count = r->first[e + 1] - r->first[e];
    struct ct_value **part = ct_arena_array(&r->p.scratch, struct ct_value *, count);

    for (int i = 0; i < count; i++)
        part[i] = async_sum(&r->p, sum, r->first[e] + i);
    return concatenated(&r->p, async_named(&r->p, sum, "terms", e), part, count, SEQUENCE);
}

/* Terms of other ranks for the rank's own rows, as received. */
static struct ct_value *exchanged(struct ring *r, struct ct_value *terms, int e)
{
    return relabelled(
        &r->p, moved(r, relabelled(&r->p, terms, false), r->part[r->first[e]].ahead, e), true);
}

/* All of a rank's terms: exchanges [e, end), parts of sequences within each sequence. */
static struct ct_value *joined(struct ring *r, struct ct_value *const *term, int e, int end)
{
    int64_t parts = (r->p.work->chunks + r->p.work->rows.sequences - 1) / r->p.work->rows.sequences;
    struct ct_value **row = ct_arena_array(&r->p.scratch, struct ct_value *, end - e);
    const char *name = term[e] ? async_named(&r->p, term[e], "all", -1) : "";
    int rows = 0;

    for (; e < end; e += (int)parts)
        row[rows++] = concatenated(&r->p, name, term + e, (int)parts, TOKEN);
    return concatenated(&r->p, name, row, rows, SEQUENCE);
}

/* The terms by rank, in the order of the ring: what rank `ahead` places further needs comes from as
   many places behind. */
static struct ct_value *added(struct ring *r, const struct ct_value *sum,
                              struct ct_value *const *term)
{
    int ranks = (int)r->p.work->rows.ranks, each = (r->exchanges - 1) / (ranks - 1);
    struct ct_value **by_rank = ct_arena_array(&r->p.scratch, struct ct_value *, ranks);
    struct async_ring attrs = {.axes = r->axes};
    const char *name = async_named(&r->p, sum, "ring", -1);

    by_rank[0] = term[0];
    for (int ahead = 1; ahead < ranks; ahead++)
        by_rank[ranks - ahead] = joined(r, term, 1 + (ahead - 1) * each, 1 + ahead * each);
    if (r->p.b.status)
        return NULL;
    return like(ranks == 2
                    ? ct_add(&r->p.b, name, by_rank[0], by_rank[1])
                    : ct_emit_type1(&r->p.b, &async_op_ring_sum, name, by_rank, ranks, &attrs),
                by_rank[0]);
}

int async_scatter_by_ring(const struct async_work *work)
{
    struct ct_value *sum = work->collective->in[0], **term;
    struct ct_op *made = sum->producer;
    struct ring r;

    begin(&r, work, made, "others scattered, own rows last");
    term = ct_arena_array(&r.p.scratch, struct ct_value *, r.exchanges);
    for (int e = 1; e < r.exchanges; e++)
        term[e] = exchanged(&r, terms(&r, sum, e), e);
    term[0] = terms(&r, sum, 0);
    deliver(&r.p, relabelled(&r.p, added(&r, sum, term), false), work->collective->out[0]);
    return async_end_scatter(&r.p, made);
}
