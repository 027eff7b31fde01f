/*
 * Asynchronous tensor parallelism (Wang et al. 2023; torch's micro_pipeline_tp): what a product and
 * a collective next to it do in one go, they do in chunks, the one beside the other.
 *
 *   all_gather, products       the gather of chunk i + 1 runs beside the products of chunk i
 *   products, reduce_scatter   the scatter of chunk i runs beside the products of chunk i + 1
 *
 * A chunk is some rows of every rank's shard: whole sequences where a rank has several, else a part
 * of its shard of each sequence. So a chunk of the whole is a chunk from each rank, one behind the
 * other, and chunks of all values are parts of one dimension of a view:
 *
 *   sequences  [batch, tokens, k] -> [shards, batch / shards, tokens, k]
 *   tokens     [batch, tokens, k] -> [batch, shards, tokens / shards, k]
 *
 * Every row of a product is computed as without chunks, and every sum over ranks adds the same
 * numbers in the same order. Gradients of weights are sums over rows: they take the whole.
 */
#include <string.h>
#include <unistd.h>

#include <ctitan/core_ops.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/machine.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/rule.h>

#include "tp.h"

#define MOST 16 /* chunks that the model tries */

/* How the rows of some values are split into chunks. */
struct layout {
    bool sequences;        /* else tokens */
    int64_t outer, length; /* shards, and what chunks are parts of */
    int chunks;
    int chunk_dim, shard_dim; /* of the view */
};

struct pipeline {
    struct ct_graph *graph;
    struct ct_builder b;
    struct layout layout;
    struct ct_arena scratch;
    struct seen { /* views that are there already */
        struct ct_value *value, *view;
        struct seen *next;
    } * seen;
};

/* ---- chunks ---- */

static int64_t first_of(const struct layout *l, int chunk)
{
    return l->length * chunk / l->chunks;
}

static int64_t shards_of(const struct ct_graph *graph, const struct ct_sharding *s, int dim)
{
    int64_t shards = 1;

    for (int i = 0; i < s->count[dim]; i++)
        shards *= graph->mesh.axis[s->axis[dim][i]].size;
    return shards;
}

/* The sharding of a view that the layout splits, of a value with sharding s; and back. */
static struct ct_sharding sharding_of_view(const struct layout *l, const struct ct_sharding *s)
{
    struct ct_sharding view = {.unreduced = s->unreduced, .reduction = s->reduction};
    const int to[3] = {0, l->shard_dim, 3};

    for (int d = 0; d < 3; d++) {
        view.count[to[d]] = s->count[d];
        memcpy(view.axis[to[d]], s->axis[d], sizeof(view.axis[0]));
    }
    return view;
}

static const char *named(const struct pipeline *p, const struct ct_value *v, const char *what,
                         int chunk)
{
    return chunk < 0 ? ct_arena_printf(p->graph->arena, "%s.%s", v->name, what)
                     : ct_arena_printf(p->graph->arena, "%s.%s%d", v->name, what, chunk);
}

static struct ct_value *viewed(struct pipeline *p, struct ct_value *v)
{
    const struct layout *l = &p->layout;
    int64_t shape[4] = {v->shape[0], l->outer, l->length, v->shape[2]};
    struct ct_value *view;
    struct seen *seen = p->seen;

    while (seen && seen->value != v)
        seen = seen->next;
    if (seen)
        return seen->view;
    if (l->sequences) {
        shape[0] = l->outer;
        shape[1] = l->length;
        shape[2] = v->shape[1];
    }
    view = ct_view(&p->b, named(p, v, "view", -1), v, 4, shape);
    if (!view)
        return NULL;
    view->sharding = sharding_of_view(l, &v->sharding);
    seen = ct_arena_new(&p->scratch, struct seen);
    *seen = (struct seen){v, view, p->seen};
    p->seen = seen;
    return view;
}

static struct ct_value *chunk_of(struct pipeline *p, struct ct_value *view, int chunk)
{
    int64_t from = first_of(&p->layout, chunk);
    struct ct_value *part;

    if (!view)
        return NULL;
    part = ct_narrow(&p->b, named(p, view, "chunk", chunk), view, p->layout.chunk_dim, from,
                     first_of(&p->layout, chunk + 1) - from);
    if (part)
        part->sharding = view->sharding;
    return part;
}

/* The chunks of a value, put together, take its place and its name. */
static void deliver(struct pipeline *p, struct ct_value *const *chunks, struct ct_value *old)
{
    struct ct_value *view =
        ct_concat(&p->b, named(p, old, "view", -1), chunks, p->layout.chunks, p->layout.chunk_dim);
    struct ct_value *whole;
    const char *name = old->name;

    if (!view)
        return;
    view->sharding = sharding_of_view(&p->layout, &old->sharding);
    whole = ct_view(&p->b, NULL, view, old->ndim, old->shape);
    if (!whole)
        return;
    whole->sharding = old->sharding;
    whole->marks = old->marks;
    ct_value_replace(p->graph, old, whole);
    ct_value_rename(p->graph, old, named(p, old, "at_once", -1));
    ct_value_rename(p->graph, whole, name);
}

/* The same on a chunk. */
static struct ct_op *on_chunk(struct pipeline *p, const struct ct_op *op,
                              struct ct_value *const *in, int chunk)
{
    struct ct_op *copy =
        ct_op_clone(&p->b, op, in, ct_arena_printf(p->graph->arena, "chunk%d", chunk));

    for (int i = 0; copy && i < copy->outs; i++)
        copy->out[i]->sharding = sharding_of_view(&p->layout, &op->out[i]->sharding);
    return copy;
}

/* Of shards, or into shards; beside what computes. */
static struct ct_value *collective(struct pipeline *p, const struct ct_op *like,
                                   struct ct_value *chunk, int number)
{
    struct ct_collective_attrs attrs = *(const struct ct_collective_attrs *)like->attrs;
    struct ct_op *op;

    attrs.dim = p->layout.shard_dim;
    op = chunk ? ct_emit_type(&p->b, like->type, named(p, like->out[0], "chunk", number), &chunk, 1,
                              &attrs)
               : NULL;
    if (!op)
        return NULL;
    op->stream = CT_STREAM_CHUNK;
    op->out[0]->sharding = sharding_of_view(&p->layout, &like->out[0]->sharding);
    return op->out[0];
}

/* ---- what can be a pipeline, and what pays ---- */

/* Inputs that have the rows of its outputs, as bits; 0: it is no product of rows. */
static uint64_t row_inputs(const struct ct_op *op)
{
    struct ct_arena scratch = {0};
    struct ct_rule rule;
    uint64_t inputs = 0;

    if (op->type->flops && op->outs && op->ins <= 64 && op->out[0]->ndim == 3 &&
        ct_rule_apply(op, &scratch, &rule) == 0)
        for (int i = 0; i < op->ins; i++) {
            const struct ct_rule_operand *in = &rule.operand[i], *out = &rule.operand[op->ins];

            if (in->ndim == 3 && in->factor[0] == out->factor[0] && in->factor[1] == out->factor[1])
                inputs |= (uint64_t)1 << i;
        }
    ct_arena_finish(&scratch);
    return inputs;
}

static bool has_rows(uint64_t inputs, int i)
{
    return inputs >> i & 1;
}

/* How `shard` and the whole that it is part of are split; NULL, or why they cannot be. */
static const char *lay_out(const struct ct_graph *graph, const struct ct_value *shard, int64_t dim,
                           struct layout *l)
{
    int64_t batch = shards_of(graph, &shard->sharding, 0);
    int64_t shards = shards_of(graph, &shard->sharding, 1);

    if (shard->ndim != 3 || dim != 1)
        return "it is not split along the sequence";
    if (shard->shape[0] % batch)
        return "the batch is split unevenly";
    l->sequences = shard->shape[0] > batch;
    if (!l->sequences && shard->shape[1] % shards)
        return "the sequence is split unevenly";
    l->outer = l->sequences ? batch : shards;
    l->length = shard->shape[l->sequences ? 0 : 1] / l->outer;
    l->chunk_dim = l->sequences ? 1 : 2;
    l->shard_dim = l->sequences ? 2 : 1;
    return l->length < 2 ? "a rank has only one row" : NULL;
}

/* What is exchanged, and the products beside it. */
struct work {
    const struct ct_graph *graph;
    const struct ct_machine *machine; /* NULL: stated rates */
    const struct ct_op *product;      /* one of them */
    int products;
    double sent, flops; /* by a rank */
};

/* Of a chunk. A described machine is slower with less to send or to multiply. */
static double exchange_seconds(const struct work *w, int chunks)
{
    ct_axes tp = (ct_axes)1 << tp_axis(w->graph);

    return w->machine ? ct_machine_collective(w->machine, &w->graph->mesh, 0, tp, w->sent / chunks)
                      : w->sent / (1e9 * tp_config.link) / chunks;
}

static double product_seconds(const struct work *w, int chunks)
{
    return w->machine ? w->products * ct_machine_product(w->machine, w->product,
                                                         w->flops / w->products / chunks)
                      : w->flops / (1e12 * tp_config.tflops) / chunks;
}

/* Seconds of so many chunks: the first or last exchange and product have nothing beside them. */
static double duration(const struct work *w, int chunks)
{
    double exchange = exchange_seconds(w, chunks), products = product_seconds(w, chunks);
    double longer = exchange > products ? exchange : products;

    return exchange + products + longer * (chunks - 1) +
           (w->machine || chunks == 1 ? 0 : chunks * 1e-6 * tp_config.chunk_cost);
}

/* The number of chunks that ends first, on the described or stated machine; all ranks ask for rank
   0's. NULL, or why one is best. */
static const char *choose_chunks(const struct ct_op *collective, struct work *w, struct layout *l)
{
    const struct ct_graph *graph = w->graph;
    double best;

    w->sent =
        collective->type->collective->sent((double)ct_value_bytes(graph, collective->in[0], 0),
                                           (double)ct_value_bytes(graph, collective->out[0], 0),
                                           (double)graph->mesh.axis[tp_axis(graph)].size);
    best = duration(w, 1);
    l->chunks = (int)(tp_config.chunks < l->length ? tp_config.chunks : l->length);
    for (int chunks = 2; !tp_config.chunks && chunks <= MOST && chunks <= l->length; chunks++)
        if (duration(w, chunks) < best) {
            best = duration(w, chunks);
            l->chunks = chunks;
        }
    if (l->chunks > 1)
        return NULL;
    return ct_arena_printf(graph->arena,
                           "chunks do not pay: %.3g us are sent, beside %.3g us of products",
                           1e6 * exchange_seconds(w, 1), 1e6 * product_seconds(w, 1));
}

static struct pipeline begin(struct ct_graph *graph, struct ct_op *before,
                             const struct layout *layout, const char *what)
{
    struct pipeline p = {graph, ct_builder_before(graph, before), *layout, {0}, NULL};

    p.b.why =
        ct_arena_printf(graph->arena, "tp: %s in %d chunks, beside products", what, layout->chunks);
    return p;
}

static int keep(const struct ct_graph *graph, struct ct_op *op, const char *reason)
{
    op->why = ct_arena_printf(graph->arena, "%s%stp: at once, as %s", op->why ? op->why : "",
                              op->why ? "; " : "", reason);
    return 0;
}

/* ---- all_gather, products ---- */

/* Does op multiply the rows of v, and take nothing else of v? */
static bool multiplies(const struct ct_op *op, const struct ct_value *v)
{
    if (!has_rows(row_inputs(op), 0) || op->in[0] != v || op->section != v->producer->section)
        return false;
    for (int i = 1; i < op->ins; i++)
        if (op->in[i] == v)
            return false;
    return true;
}

struct products {
    struct ct_op **op;
    uint64_t *rows;            /* by product: row_inputs */
    struct ct_value ****chunk; /* by product, output and chunk */
    int count;
    double flops;
};

/* Can op run where `first` does? place: of the producer of each value, by id. */
static bool can_run_at(const struct ct_op *op, const struct ct_op *first, const uint32_t *place)
{
    for (int i = 1; i < op->ins; i++)
        if (op->in[i]->producer && place[op->in[i]->id] > place[first->out[0]->id])
            return false;
    return true;
}

static struct products products_of(const struct ct_graph *graph, const struct ct_value *whole,
                                   const uint32_t *place, struct ct_arena *scratch)
{
    struct products p = {.op = ct_arena_array(scratch, struct ct_op *, whole->use_count + 1),
                         .rows = ct_arena_array(scratch, uint64_t, whole->use_count + 1)};
    struct ct_op *first = NULL;

    ct_for_each_use (use, whole)
        if (multiplies(use->op, whole) &&
            (!first || place[use->op->out[0]->id] < place[first->out[0]->id]))
            first = use->op;
    if (first)
        p.op[p.count++] = first;
    ct_for_each_use (use, whole)
        if (use->op != first && multiplies(use->op, whole) && can_run_at(use->op, first, place))
            p.op[p.count++] = use->op;
    for (int k = 0; k < p.count; k++) {
        p.rows[k] = row_inputs(p.op[k]);
        p.flops += ct_op_flops(graph, p.op[k], 0);
    }
    return p;
}

static void make_room(struct products *p, int chunks, struct ct_arena *scratch)
{
    p->chunk = ct_arena_array(scratch, struct ct_value ***, p->count);
    for (int k = 0; k < p->count; k++) {
        p->chunk[k] = ct_arena_array(scratch, struct ct_value **, p->op[k]->outs);
        for (int i = 0; i < p->op[k]->outs; i++)
            p->chunk[k][i] = ct_arena_array(scratch, struct ct_value *, chunks);
    }
}

static void multiply(struct pipeline *p, struct products *products, struct ct_value *rows,
                     int chunk)
{
    for (int k = 0; rows && k < products->count; k++) {
        const struct ct_op *op = products->op[k], *copy;
        struct ct_value **in = ct_arena_array(&p->scratch, struct ct_value *, op->ins);

        memcpy(in, op->in, sizeof(*in) * (size_t)op->ins);
        in[0] = rows;
        for (int i = 1; i < op->ins; i++)
            if (has_rows(products->rows[k], i))
                in[i] = chunk_of(p, viewed(p, op->in[i]), chunk);
        copy = p->b.status ? NULL : on_chunk(p, op, in, chunk);
        for (int i = 0; copy && i < copy->outs; i++)
            products->chunk[k][i][chunk] = copy->out[i];
    }
}

static void gather(struct pipeline *p, const struct ct_op *gather, int chunk,
                   struct ct_value **gathered)
{
    if (chunk < p->layout.chunks)
        gathered[chunk] =
            collective(p, gather, chunk_of(p, viewed(p, gather->in[0]), chunk), chunk);
}

/* The gather of the first chunk stands where that of the whole did, each other one in front of the
   products of the chunk before. */
static int emit_gathers(struct pipeline *p, struct ct_op *op, struct products *products)
{
    int chunks = p->layout.chunks;
    struct ct_value *whole = op->out[0];
    struct ct_value **gathered = ct_arena_array(&p->scratch, struct ct_value *, chunks);

    make_room(products, chunks, &p->scratch);
    gather(p, op, 0, gathered);
    p->b.before = products->op[0];
    for (int c = 0; c < chunks; c++) {
        gather(p, op, c + 1, gathered);
        multiply(p, products, gathered[c], c);
    }
    for (int k = 0; k < products->count; k++)
        for (int i = 0; p->b.status == 0 && i < products->op[k]->outs; i++)
            deliver(p, products->chunk[k][i], products->op[k]->out[i]);
    if (p->b.status == 0 && whole->use_count + whole->fetch_count > (uint32_t)products->count)
        deliver(p, gathered, whole);
    for (int k = 0; p->b.status == 0 && k < products->count; k++)
        ct_graph_remove(p->graph, products->op[k]);
    if (p->b.status == 0)
        ct_graph_remove(p->graph, op);
    return p->b.status;
}

static int pipeline_gather(struct ct_graph *graph, const struct ct_machine *machine,
                           struct ct_op *op, const uint32_t *place)
{
    struct work work = {.graph = graph, .machine = machine};
    struct layout layout;
    struct ct_arena scratch = {0};
    struct products products = products_of(graph, op->out[0], place, &scratch);
    const char *reason = lay_out(graph, op->in[0], ct_op_int(op, "dim"), &layout);
    int rc;

    if (!reason && !products.count)
        reason = "no product takes it by rows";
    work.product = products.op[0];
    work.products = products.count;
    work.flops = products.flops;
    if (!reason)
        reason = choose_chunks(op, &work, &layout);
    if (reason) {
        rc = keep(graph, op, reason);
    } else {
        struct pipeline p = begin(graph, op, &layout, "gathered");

        rc = emit_gathers(&p, op, &products);
        ct_arena_finish(&p.scratch);
    }
    ct_arena_finish(&scratch);
    return rc;
}

/* ---- products, reduce_scatter ---- */

/* A sum of products, each used only here: they are added to the work; NULL, or why it is none. */
static const char *check_sum(const struct ct_graph *graph, const struct ct_value *v,
                             const struct ct_op *user, struct work *work)
{
    const struct ct_op *op = v->producer;
    const char *reason = NULL;

    if (!op || op->section != user->section)
        return "what it sums is made in another section";
    if (ct_value_only_user(v) != user)
        return ct_arena_printf(graph->arena, "%%%s is used by others, too", v->name);
    if (row_inputs(op) && op->outs == 1) {
        work->product = op;
        work->products++;
        work->flops += ct_op_flops(graph, op, 0);
    } else if (op->type == &ct_op_add) {
        for (int i = 0; !reason && i < 2; i++)
            reason = check_sum(graph, op->in[i], op, work);
    } else {
        reason = ct_arena_printf(graph->arena, "%%%s is made by %s", v->name, op->type->name);
    }
    return reason;
}

/* A chunk of the sum. */
static struct ct_value *sum(struct pipeline *p, const struct ct_value *v, int chunk)
{
    const struct ct_op *op = v->producer, *copy;
    struct ct_value **in = ct_arena_array(&p->scratch, struct ct_value *, op->ins);
    uint64_t rows = op->type == &ct_op_add ? 3 : row_inputs(op);

    memcpy(in, op->in, sizeof(*in) * (size_t)op->ins);
    for (int i = 0; i < op->ins; i++) {
        if (!has_rows(rows, i))
            continue;
        in[i] = op->type == &ct_op_add ? sum(p, op->in[i], chunk)
                                       : chunk_of(p, viewed(p, op->in[i]), chunk);
        if (!in[i])
            return NULL;
    }
    copy = on_chunk(p, op, in, chunk);
    return copy ? copy->out[0] : NULL;
}

static void remove_sum(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_op *terms[2] = {NULL, NULL};

    for (int i = 0; op->type == &ct_op_add && i < 2; i++)
        terms[i] = op->in[i]->producer;
    ct_graph_remove(graph, op);
    for (int i = 0; i < 2; i++)
        if (terms[i] && terms[i]->in_graph)
            remove_sum(graph, terms[i]);
}

static int emit_scatters(struct pipeline *p, struct ct_op *op)
{
    int chunks = p->layout.chunks;
    struct ct_value **scattered = ct_arena_array(&p->scratch, struct ct_value *, chunks);
    struct ct_op *made = op->in[0]->producer;

    for (int c = 0; c < chunks; c++)
        scattered[c] = collective(p, op, sum(p, op->in[0], c), c);
    if (p->b.status < 0)
        return p->b.status;
    deliver(p, scattered, op->out[0]);
    if (p->b.status < 0)
        return p->b.status;
    ct_graph_remove(p->graph, op);
    remove_sum(p->graph, made);
    return 0;
}

static int pipeline_scatter(struct ct_graph *graph, const struct ct_machine *machine,
                            struct ct_op *op)
{
    struct work work = {.graph = graph, .machine = machine};
    struct layout layout;
    const char *reason = lay_out(graph, op->out[0], ct_op_int(op, "dim"), &layout);
    struct pipeline p;
    int rc;

    if (!reason)
        reason = check_sum(graph, op->in[0], op, &work);
    if (!reason)
        reason = choose_chunks(op, &work, &layout);
    if (reason)
        return keep(graph, op, reason);
    p = begin(graph, op->in[0]->producer, &layout, "scattered");
    rc = emit_scatters(&p, op);
    ct_arena_finish(&p.scratch);
    return rc;
}

/* ---- all ---- */

/* The machine that chunks are chosen for: the one that is named, or this one. NULL: none, so the
   stated rates count. */
static int find_machine(struct ct_arena *arena, const struct ct_run *run,
                        const struct ct_machine **machine)
{
    const char *path = *tp_config.machine ? NULL : ct_machine_kept(arena, CT_MACHINE_THIS);
    const struct ct_offer *device;
    static bool said;
    int rc = 0;

    *machine = NULL;
    if (*tp_config.machine)
        return ct_machine_read(arena, tp_config.machine, machine);
    if (tp_config.chunks || !run)
        return 0;
    if (path && access(path, R_OK) == 0)
        rc = ct_machine_read(arena, path, machine);
    if (*machine && (ct_offer_find(CT_DEVICE, (*machine)->plugin, &device) < 0 ||
                     device->ops != run->device_ops))
        *machine = NULL;
    if (rc == 0 && !*machine && !said && run->rank == 0)
        ct_warn(
            "tp: async: the number of chunks is chosen for ranks that send %g GB/s and compute "
            "%g TFLOP/s ([tp] link, tflops), which were not measured; `ctitan doctor --describe "
            "this -n %lld` measures this machine once",
            tp_config.link, tp_config.tflops, (long long)run->world);
    said = true;
    return rc;
}

static bool is_along_tp(const struct ct_graph *graph, const struct ct_op *op)
{
    return (op->type == &ct_op_all_gather || op->type == &ct_op_reduce_scatter) && op->ins == 1 &&
           ct_part_is_microbatch(op->section->part) &&
           ct_op_axes(op, "axes") == (ct_axes)1 << tp_axis(graph);
}

int tp_pipeline(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct ct_op **found;
    uint32_t *place, n = 0;
    const struct ct_machine *machine = NULL;
    int count = 0, rc = 0;

    if (tp_axis(graph) < 0 || !tp_config.async)
        return 0;
    if (!tp_config.sequence_parallel)
        return ct_fail(CT_ECONFIG, "[tp] async = true needs sequence_parallel = true: without it "
                                   "there are no gathers and scatters to overlap with products");
    rc = find_machine(&scratch, run, &machine);
    found = ct_arena_array(&scratch, struct ct_op *, graph->value_count);
    place = ct_arena_array(&scratch, uint32_t, graph->value_count + 1);
    ct_for_each_op (op, graph) {
        n++;
        for (int i = 0; i < op->outs; i++)
            place[op->out[i]->id] = n;
        if (is_along_tp(graph, op))
            found[count++] = op;
    }
    for (int i = 0; rc == 0 && i < count; i++)
        rc = found[i]->type == &ct_op_all_gather ? pipeline_gather(graph, machine, found[i], place)
                                                 : pipeline_scatter(graph, machine, found[i]);
    ct_arena_finish(&scratch);
    return rc;
}
