/*
 * Asynchronous tensor parallelism (Wang et al. 2023; torch's micro_pipeline_tp): what a product and
 * a collective next to it do in one go, a pipeline does in parts, the one beside the other.
 *
 *   all_gather, products       the next rows are exchanged beside the products of those before
 *   products, reduce_scatter   sums of products are exchanged beside the next products
 *
 * The graph says all that is needed of tensor parallelism: the mesh has an axis `tp`, and sequences
 * are gathered and scattered along it. There are two forms of a pipeline, chunks.c and ring.c. A
 * model of their times on a described machine (choose.c) chooses one of them, and into how many
 * parts it divides the rows of a rank; or none.
 *
 * Every row of a product is computed as without a pipeline, and every sum over ranks adds the same
 * numbers in the same order. Gradients of weights are sums over rows: they take the whole.
 */
#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#include "tp_async.h"

struct async_config async_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct async_config, chunks, "chunks", "0", 0, 1 << 10,
               "Exchanges of a rank's rows; 0: the fastest by the rates below"),
    CT_OPT_ENUM(struct async_config, own_first, "own_first", "auto", "auto|always|never",
                "Multiply a rank's own rows beside the first exchange, and in front of the last; "
                "auto: where it is faster"),
    CT_OPT_STRING(
        struct async_config, machine, "machine", "",
        "Description of the machine that chunks = 0 is chosen for, as of --device; empty: "
        "`this`, if doctor has described it, else the rates that follow"),
    CT_OPT_FLOAT(struct async_config, link, "link", "10", 1e-3, 1e6,
                 "Bytes per second that a rank sends, in 1e9"),
    CT_OPT_FLOAT(struct async_config, tflops, "tflops", "0.2", 1e-6, 1e6,
                 "FLOPs per second of a rank's products, in 1e12"),
    CT_OPT_FLOAT(struct async_config, chunk_cost, "chunk_cost", "20", 0, 1e6,
                 "Cost of one more chunk, in microseconds"),
    {0}};

int async_axis(const struct ct_graph *graph)
{
    return ct_mesh_find(&graph->mesh, "tp");
}

/* ---- collectives along tp ---- */

static bool is_exchange(const struct ct_op *op)
{
    return op->type == &ct_op_all_gather || op->type == &ct_op_reduce_scatter;
}

static bool is_along_tp(const struct ct_graph *graph, const struct ct_op *op)
{
    return (is_exchange(op) || op->type == &ct_op_all_reduce) && op->ins == 1 &&
           ct_part_is_microbatch(op->section->part) &&
           ct_op_axes(op, "axes") == (ct_axes)1 << async_axis(graph);
}

struct found {
    struct ct_op **exchange;
    int count;
    bool sequence;           /* one of them is along the sequence */
    const struct ct_op *sum; /* of activations that every rank has whole, or NULL */
    struct async_places places;
};

static void find_exchanges(struct ct_graph *graph, struct ct_arena *scratch, struct found *f)
{
    uint32_t n = 0;

    f->exchange = ct_arena_array(scratch, struct ct_op *, graph->value_count);
    f->places.count = graph->value_count;
    f->places.of = ct_arena_array(scratch, uint32_t, graph->value_count + 1);
    ct_for_each_op (op, graph) {
        n++;
        for (int i = 0; i < op->outs; i++)
            f->places.of[op->out[i]->id] = n;
        if (!is_along_tp(graph, op))
            continue;
        if (is_exchange(op))
            f->exchange[f->count++] = op;
        if (op->in[0]->ndim == 3 && !is_exchange(op))
            f->sum = op;
        else if (op->in[0]->ndim == 3 && ct_op_int(op, "dim") == 1)
            f->sequence = true;
    }
}

/* Single tokens of `generate`, which has no loss, are never split. */
static int check_sequence(const struct ct_graph *graph, const struct found *f)
{
    if (f->sequence || !f->sum || !ct_graph_fetched(graph, "loss"))
        return 0;
    return ct_fail(CT_ECONFIG,
                   "tp_async: %%%s is all-reduced along tp, and no sequence is split along it: "
                   "without gathers and scatters there is nothing to overlap with products; set "
                   "[tp] sequence_parallel = true, or take tp_async out of [plugins] load",
                   f->sum->out[0]->name);
}

/* ---- pipelines ---- */

/* Choose a pipeline and write it; reason: why there is none. */
static int write_pipeline(struct async_work *work, const struct ct_machine *machine,
                          const char *reason, bool gathers)
{
    static int (*const write[2][2])(const struct async_work *) = {
        {async_scatter_in_chunks, async_gather_in_chunks},
        {async_scatter_by_ring, async_gather_by_ring}};
    struct ct_op *op = work->collective;

    if (!reason)
        reason = async_choose(work, machine);
    if (!reason)
        return write[work->ring][gathers](work);
    op->why = ct_arena_printf(work->graph->arena, "%s%stp_async: at once, as %s",
                              op->why ? op->why : "", op->why ? "; " : "", reason);
    return 0;
}

static int make_pipelines(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct found found = {0};
    const struct ct_machine *machine = NULL;
    int rc;

    if (async_axis(graph) < 0)
        return 0;
    find_exchanges(graph, &scratch, &found);
    rc = check_sequence(graph, &found);
    if (rc == 0)
        rc = async_find_machine(&scratch, run, &machine);
    for (int i = 0; rc == 0 && i < found.count; i++) {
        struct async_work work = {.graph = graph, .collective = found.exchange[i]};
        bool gathers = found.exchange[i]->type == &ct_op_all_gather;
        const char *reason = gathers ? async_find_gather(&work, &found.places, &scratch)
                                     : async_find_scatter(&work, &scratch);

        rc = write_pipeline(&work, machine, reason, gathers);
    }
    ct_arena_finish(&scratch);
    return rc;
}

static const struct ct_transform pipelines = {
    .size = sizeof(struct ct_transform),
    .name = "tp_async",
    .summary = "runs products and the collectives next to them in chunks that overlap",
    .phase = CT_PHASE_OVERLAP,
    .after = CT_NAMES("prefetched", "bucketed"),
    .evaluation = true,
    .apply = make_pipelines,
};

CT_PLUGIN(.name = "tp_async", .version = "1.0",
          .summary = "Tensor parallelism whose exchanges run beside products",
          .needs = CT_NAMES("mesh axis:tp"), .options = options, .config = &async_config,
          .config_size = sizeof(async_config),
          .offers = CT_OFFERS({CT_TRANSFORM, "tp_async", &pipelines},
                              {CT_OP, "tp_async.local", &async_op_local},
                              {CT_OP, "tp_async.ring_narrow", &async_op_ring_narrow},
                              {CT_OP, "tp_async.ring_concat", &async_op_ring_concat},
                              {CT_OP, "tp_async.ring_sum", &async_op_ring_sum},
                              {CT_KERNELS, "cpu", async_ring_kernels}));
