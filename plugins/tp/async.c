/*
 * Asynchronous tensor parallelism (Wang et al. 2023; torch's micro_pipeline_tp): what a product and
 * a collective next to it do in one go, a pipeline does in parts, the one beside the other.
 *
 *   all_gather, products       the next rows are exchanged beside the products of those before
 *   products, reduce_scatter   sums of products are exchanged beside the next products
 *
 * There are two forms of a pipeline, chunks.c and ring.c. A model of their times on a described
 * machine chooses one of them, and into how many parts it divides the rows of a rank; or none.
 *
 * Every row of a product is computed as without a pipeline, and every sum over ranks adds the same
 * numbers in the same order. Gradients of weights are sums over rows: they take the whole.
 */
#include <math.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/machine.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>

#include "async.h"

#define MOST 16 /* chunks that the model tries */

/* ---- rows ---- */

static int64_t shards_of(const struct ct_graph *graph, const struct ct_sharding *s, int dim)
{
    int64_t shards = 1;

    for (int i = 0; i < s->count[dim]; i++)
        shards *= graph->mesh.axis[s->axis[dim][i]].size;
    return shards;
}

/* How the rows of a shard are laid out; NULL, or why no pipeline can exchange them. */
static const char *find_rows(struct tp_work *work, const struct ct_value *shard)
{
    const struct ct_graph *graph = work->graph;
    struct tp_rows *rows = &work->rows;
    int64_t shards = shards_of(graph, &shard->sharding, 1);

    if (shard->ndim != 3 || ct_op_int(work->collective, "dim") != 1)
        return "it is not split along the sequence";
    *rows = (struct tp_rows){.batch = shards_of(graph, &shard->sharding, 0),
                             .ranks = graph->mesh.axis[tp_axis(graph)].size};
    rows->sequences = shard->shape[0] / rows->batch;
    rows->outer = shards / rows->ranks;
    rows->tokens = shard->shape[1] % shards ? 0 : shard->shape[1] / shards;
    if (shard->shape[0] % rows->batch)
        return "the batch is split unevenly";
    if (!rows->tokens && rows->sequences == 1)
        return "the sequence is split unevenly";
    return rows->tokens * rows->sequences == 1 ? "a rank has only one row" : NULL;
}

/* ---- what pays ---- */

/* How work is done, and how long that takes. */
struct plan {
    bool ring;
    int chunks;
    double seconds;
};

struct model {
    struct tp_work *work;
    const struct ct_machine *machine; /* NULL: stated rates */
};

/* Seconds of an exchange of so many bytes at a time. A described machine is slower with less to
   send or to multiply. */
static double exchange_seconds(const struct model *m, double bytes)
{
    const struct ct_graph *graph = m->work->graph;

    return m->machine ? ct_machine_collective(m->machine, &graph->mesh, 0,
                                              (ct_axes)1 << tp_axis(graph), bytes)
                      : bytes / (1e9 * tp_config.link);
}

/* Seconds of a share of the work's GEMMs, in so many calls of each. */
static double product_seconds(const struct model *m, double share, int64_t calls)
{
    const struct tp_work *w = m->work;
    double flops = w->flops * share, all = (double)(w->products * calls);

    return m->machine ? all * ct_machine_product(m->machine, w->product[0], flops / all)
                      : flops / (1e12 * tp_config.tflops);
}

static double cost_of_calls(const struct model *m, int64_t calls)
{
    return m->machine ? 0 : (double)calls * 1e-6 * tp_config.chunk_cost;
}

/* The first or last exchange and product have nothing beside them. */
static struct plan in_chunks(const struct model *m, int chunks)
{
    double exchange = exchange_seconds(m, m->work->sent / chunks);
    double products = product_seconds(m, 1.0 / chunks, 1);
    double longer = exchange > products ? exchange : products;

    return (struct plan){false, chunks,
                         exchange + products + longer * (chunks - 1) +
                             (chunks > 1 ? cost_of_calls(m, chunks) : 0)};
}

/* The own products begin at once. (A scatter is the same, from its end on.) */
static struct plan by_ring(const struct model *m, int chunks)
{
    int64_t sequences = m->work->rows.sequences, ranks = m->work->rows.ranks;
    int64_t parts = (chunks + sequences - 1) / sequences,
            each = parts > 1 ? parts * sequences : chunks;
    int64_t steps = (ranks - 1) * each;
    double share = 1.0 / (double)ranks, received = 0, multiplied;

    multiplied = product_seconds(m, share, sequences);
    share = (1 - share) / (double)steps;
    for (int64_t i = 0; i < steps; i++) {
        received += exchange_seconds(m, m->work->sent / (double)steps);
        multiplied = received > multiplied ? received : multiplied;
        multiplied += product_seconds(m, share, sequences * parts / each);
    }
    return (struct plan){true, (int)each,
                         multiplied + cost_of_calls(m, sequences * (1 + (ranks - 1) * parts))};
}

/* The best plan of a form: of those with [tp] chunks, if that is given. */
static struct plan best_of(const struct model *m, bool ring, struct plan best)
{
    const struct tp_rows *rows = &m->work->rows;
    int64_t least = ring ? 1 : 2, most = rows->sequences > 1 ? rows->sequences : rows->tokens;

    if (ring)
        most = rows->sequences * rows->tokens;
    if (tp_config.chunks)
        least = most = tp_config.chunks < most ? tp_config.chunks : most;
    for (int64_t chunks = least; chunks <= most && (tp_config.chunks || chunks <= MOST); chunks++) {
        struct plan plan = ring ? by_ring(m, (int)chunks) : in_chunks(m, (int)chunks);

        if (plan.chunks > !ring && plan.seconds < best.seconds)
            best = plan;
    }
    return best;
}

/* The plan that ends first, on the described or stated machine; all ranks ask for rank 0's. One
   chunk and no ring: at once. */
static struct plan choose(const struct model *m)
{
    struct plan best = in_chunks(m, 1);

    if (tp_config.chunks > 1 || (tp_config.chunks && tp_config.own_first == TP_ALWAYS))
        best.seconds = INFINITY;
    if (tp_config.own_first != TP_ALWAYS)
        best = best_of(m, false, best);
    if (tp_config.own_first != TP_NEVER)
        best = best_of(m, true, best);
    return best;
}

/* Choose a plan and follow it; reason: why there is none. */
static int pipeline(const struct model *m, const char *reason, bool gathers)
{
    static int (*const write[2][2])(const struct tp_work *) = {
        {tp_scatter_in_chunks, tp_gather_in_chunks}, {tp_scatter_by_ring, tp_gather_by_ring}};
    struct tp_work *work = m->work;
    const struct ct_graph *graph = work->graph;
    struct ct_op *op = work->collective;
    struct plan plan;

    if (!reason) {
        work->sent = op->type->collective->sent((double)ct_value_bytes(graph, op->in[0], 0),
                                                (double)ct_value_bytes(graph, op->out[0], 0),
                                                (double)m->work->rows.ranks);
        plan = choose(m);
        work->chunks = plan.chunks;
        if (plan.ring || plan.chunks > 1)
            return write[plan.ring][gathers](work);
        reason = ct_arena_printf(
            graph->arena, "chunks do not pay: %.3g us are sent, beside %.3g us of products",
            1e6 * exchange_seconds(m, work->sent), 1e6 * product_seconds(m, 1, 1));
    }
    op->why = ct_arena_printf(graph->arena, "%s%stp: at once, as %s", op->why ? op->why : "",
                              op->why ? "; " : "", reason);
    return 0;
}

/* ---- all_gather, products ---- */

/* Places of the producers of values, by id; those of later values are not known. */
struct places {
    uint32_t *of;
    size_t count;
};

static bool uses(const struct ct_op *op, const struct ct_value *v)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] == v)
            return true;
    return false;
}

/* Does op multiply the rows of v, and take nothing else of v? */
static bool multiplies(const struct ct_op *op, const struct ct_value *v)
{
    if (!(tp_row_inputs(op) & 1) || op->in[0] != v || op->section != v->producer->section)
        return false;
    for (int i = 1; i < op->ins; i++)
        if (op->in[i] == v)
            return false;
    return true;
}

/* Can op run where `first` does? */
static bool can_run_at(const struct ct_op *op, const struct ct_op *first,
                       const struct places *places)
{
    for (int i = 1; i < op->ins; i++) {
        const struct ct_value *v = op->in[i];

        if (v && v->producer &&
            (v->id >= places->count || places->of[v->id] > places->of[first->out[0]->id]))
            return false;
    }
    return true;
}

/* Move the first product to where the gathered value is first used: its other users may be before
   all products. False: it cannot run there. */
static bool begin_at_first_use(struct tp_work *work, struct places *places, struct ct_op *product)
{
    const struct ct_value *whole = work->collective->out[0];
    struct ct_op *user = work->collective->next;

    while (user != product && !uses(user, whole))
        user = user->next;
    if (user == product)
        return true;
    if (user->section != product->section || user->outs == 0 || user->out[0]->id >= places->count ||
        !can_run_at(product, user, places))
        return false;
    ct_op_move(work->graph, product, user);
    for (int i = 0; i < product->outs; i++)
        places->of[product->out[i]->id] = places->of[user->out[0]->id] - 1;
    return true;
}

/* NULL, or why there are none. */
static const char *find_products(struct tp_work *work, struct places *places,
                                 struct ct_arena *scratch)
{
    const struct ct_value *whole = work->collective->out[0];
    struct ct_op *first = NULL;

    work->product = ct_arena_array(scratch, struct ct_op *, whole->use_count + 1);
    ct_for_each_use (use, whole)
        if (multiplies(use->op, whole) &&
            (!first || places->of[use->op->out[0]->id] < places->of[first->out[0]->id]))
            first = use->op;
    if (!first)
        return "no product takes it by rows";
    if (!begin_at_first_use(work, places, first))
        return "it is used before a product could be";
    work->product[work->products++] = first;
    ct_for_each_use (use, whole)
        if (use->op != first && multiplies(use->op, whole) && can_run_at(use->op, first, places))
            work->product[work->products++] = use->op;
    for (int k = 0; k < work->products; k++)
        work->flops += ct_op_flops(work->graph, work->product[k], 0);
    return NULL;
}

static int pipeline_gather(const struct model *m, struct places *places, struct ct_arena *scratch)
{
    struct tp_work *work = m->work;
    const char *reason = find_rows(work, work->collective->in[0]);

    if (!reason)
        reason = find_products(work, places, scratch);
    return pipeline(m, reason, true);
}

/* ---- products, reduce_scatter ---- */

/* A sum of products, each used only here: they are added to the work; NULL, or why it is none. */
static const char *check_sum(const struct ct_value *v, const struct ct_op *user,
                             struct tp_work *work)
{
    struct ct_op *op = v->producer;
    const char *reason = NULL;

    if (!op || op->section != user->section)
        return "what it sums is made in another section";
    if (ct_value_only_user(v) != user)
        return ct_arena_printf(work->graph->arena, "%%%s is used by others, too", v->name);
    if (tp_row_inputs(op) && op->outs == 1) {
        work->product[0] = op;
        work->products++;
        work->flops += ct_op_flops(work->graph, op, 0);
    } else if (op->type == &ct_op_add) {
        for (int i = 0; !reason && i < 2; i++)
            reason = check_sum(op->in[i], op, work);
    } else {
        reason = ct_arena_printf(work->graph->arena, "%%%s is made by %s", v->name, op->type->name);
    }
    return reason;
}

static int pipeline_scatter(const struct model *m, struct ct_arena *scratch)
{
    struct tp_work *work = m->work;
    struct ct_op *op = work->collective;
    const char *reason = find_rows(work, op->out[0]);

    work->product = ct_arena_array(scratch, struct ct_op *, 1);
    if (!reason)
        reason = check_sum(op->in[0], op, work);
    return pipeline(m, reason, false);
}

/* ---- all ---- */

/* The machine that chunks are chosen for: the one that is named, or the one that the run is planned
   for. NULL: none, so the stated rates count. */
static int find_machine(struct ct_arena *arena, const struct ct_run *run,
                        const struct ct_machine **machine)
{
    const struct ct_offer *device;
    static bool said;
    int rc;

    *machine = NULL;
    if (*tp_config.machine) {
        rc = ct_machine_read(arena, tp_config.machine, machine);
        return rc < 0 || !run ? rc : ct_machine_check_ranks(*machine, run->world);
    }
    if (tp_config.chunks || !run)
        return 0;
    rc = ct_machine_assumed(arena, machine);
    if (*machine &&
        (ct_offer_find(CT_DEVICE, (*machine)->plugin, &device) < 0 ||
         device->ops != run->device_ops || ct_machine_check_ranks(*machine, run->world) < 0))
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
    struct places places = {.count = graph->value_count};
    const struct ct_machine *machine = NULL;
    uint32_t n = 0;
    int count = 0, rc = 0;

    if (tp_axis(graph) < 0 || !tp_config.async)
        return 0;
    if (!tp_config.sequence_parallel)
        return ct_fail(CT_ECONFIG, "[tp] async = true needs sequence_parallel = true: without it "
                                   "there are no gathers and scatters to overlap with products");
    rc = find_machine(&scratch, run, &machine);
    found = ct_arena_array(&scratch, struct ct_op *, graph->value_count);
    places.of = ct_arena_array(&scratch, uint32_t, graph->value_count + 1);
    ct_for_each_op (op, graph) {
        n++;
        for (int i = 0; i < op->outs; i++)
            places.of[op->out[i]->id] = n;
        if (is_along_tp(graph, op))
            found[count++] = op;
    }
    for (int i = 0; rc == 0 && i < count; i++) {
        struct tp_work work = {.graph = graph, .collective = found[i]};
        struct model model = {&work, machine};

        rc = found[i]->type == &ct_op_all_gather ? pipeline_gather(&model, &places, &scratch)
                                                 : pipeline_scatter(&model, &scratch);
    }
    ct_arena_finish(&scratch);
    return rc;
}
