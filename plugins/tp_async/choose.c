/*
 * The choice of a pipeline's form, and of the number of its chunks: a model of times on a described
 * machine, or at stated rates.
 */
#include <math.h>

#include <ctitan/config.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/machine.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#include "tp_async.h"

#define MOST 16 /* chunks that the model tries */

/* ---- the machine ---- */

/* Whether the model of times decides anything. */
static bool is_open(void)
{
    return !async_config.chunks || async_config.own_first == ASYNC_AUTO;
}

/* The machine that [tp_async] machine names. A measurement may be another one tomorrow. */
static int read_named(struct ct_arena *arena, const struct ct_run *run,
                      const struct ct_machine **machine)
{
    int rc = ct_machine_read(arena, async_config.machine, machine);

    if (rc == 0 && ct_config.deterministic && is_open() && ct_machine_is_measured(*machine))
        return ct_fail(CT_ECONFIG,
                       "[training] deterministic = true: the pipelines would depend on what was "
                       "measured, as [tp_async] machine = %s has measured calls: name a "
                       "description without [calls], or none, or set [tp_async] chunks, and "
                       "own_first = always or never",
                       async_config.machine);
    return rc < 0 || !run ? rc : ct_machine_check_ranks(*machine, run->world);
}

int async_find_machine(struct ct_arena *arena, const struct ct_run *run,
                       const struct ct_machine **machine)
{
    const struct ct_offer *device;
    static bool said;
    int rc;

    *machine = NULL;
    if (*async_config.machine)
        return read_named(arena, run, machine);
    if (async_config.chunks || ct_config.deterministic || !run)
        return 0;
    rc = ct_machine_assumed(arena, machine);
    if (*machine &&
        (ct_offer_find(CT_DEVICE, (*machine)->plugin, &device) < 0 ||
         device->ops != run->device_ops || ct_machine_check_ranks(*machine, run->world) < 0))
        *machine = NULL;
    if (rc == 0 && !*machine && !said && run->rank == 0)
        ct_warn("tp_async: the number of chunks is chosen for ranks that send %g GB/s and compute "
                "%g TFLOP/s ([tp_async] link, tflops), which were not measured; `ctitan doctor "
                "--describe "
                "this -n %lld` measures this machine once",
                async_config.link, async_config.tflops, (long long)run->world);
    said = true;
    return rc;
}

/* ---- what pays ---- */

/* How work is done, and how long that takes. */
struct plan {
    bool ring;
    int chunks;
    double seconds;
};

struct model {
    const struct async_work *work;
    const struct ct_machine *machine; /* NULL: stated rates */
};

/* Seconds of an exchange of so many bytes at a time. A described machine is slower with less to
   send or to multiply. */
static double exchange_seconds(const struct model *m, double bytes)
{
    const struct ct_graph *graph = m->work->graph;

    return m->machine ? ct_machine_collective(m->machine, &graph->mesh, 0,
                                              (ct_axes)1 << async_axis(graph), bytes)
                      : bytes / (1e9 * async_config.link);
}

/* Seconds of a share of the work's GEMMs, in so many calls of each. */
static double product_seconds(const struct model *m, double share, int64_t calls)
{
    const struct async_work *w = m->work;
    double flops = w->flops * share, all = (double)(w->products * calls);

    return m->machine ? all * ct_machine_product(m->machine, w->product[0], flops / all)
                      : flops / (1e12 * async_config.tflops);
}

static double cost_of_calls(const struct model *m, int64_t calls)
{
    return m->machine ? 0 : (double)calls * 1e-6 * async_config.chunk_cost;
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

/* The best plan of a form: of those with [tp_async] chunks, if that is given. */
static struct plan best_of(const struct model *m, bool ring, struct plan best)
{
    const struct async_rows *rows = &m->work->rows;
    int64_t least = ring ? 1 : 2, most = rows->sequences > 1 ? rows->sequences : rows->tokens;

    if (ring)
        most = rows->sequences * rows->tokens;
    if (async_config.chunks)
        least = most = async_config.chunks < most ? async_config.chunks : most;
    for (int64_t chunks = least; chunks <= most && (async_config.chunks || chunks <= MOST);
         chunks++) {
        struct plan plan = ring ? by_ring(m, (int)chunks) : in_chunks(m, (int)chunks);

        if (plan.chunks > !ring && plan.seconds < best.seconds)
            best = plan;
    }
    return best;
}

/* The plan that ends first; all ranks ask for rank 0's. One chunk and no ring: at once. */
static struct plan best_plan(const struct model *m)
{
    struct plan best = in_chunks(m, 1);

    if (async_config.chunks > 1 || (async_config.chunks && async_config.own_first == ASYNC_ALWAYS))
        best.seconds = INFINITY;
    if (async_config.own_first != ASYNC_ALWAYS)
        best = best_of(m, false, best);
    if (async_config.own_first != ASYNC_NEVER)
        best = best_of(m, true, best);
    return best;
}

/* Why no form that [tp_async] allows is taken. */
static const char *why_none(const struct model *m)
{
    bool even = m->work->rows.tokens, one = async_config.chunks == 1;

    if (async_config.own_first == ASYNC_ALWAYS && !even)
        return "a ring needs sequences that are split evenly";
    if (one && (async_config.own_first == ASYNC_NEVER || !even))
        return "[tp_async] chunks = 1";
    return ct_arena_printf(
        m->work->graph->arena, "%s not pay: %.3g us are sent, beside %.3g us of products",
        one ? "[tp_async] chunks = 1, and a ring does" : "chunks do",
        1e6 * exchange_seconds(m, m->work->sent), 1e6 * product_seconds(m, 1, 1));
}

const char *async_choose(struct async_work *work, const struct ct_machine *machine)
{
    const struct ct_graph *graph = work->graph;
    const struct ct_op *op = work->collective;
    const struct model model = {work, machine};
    struct plan plan;

    work->sent = op->type->collective->sent((double)ct_value_bytes(graph, op->in[0], 0),
                                            (double)ct_value_bytes(graph, op->out[0], 0),
                                            (double)work->rows.ranks);
    plan = best_plan(&model);
    work->ring = plan.ring;
    work->chunks = plan.chunks;
    return plan.ring || plan.chunks > 1 ? NULL : why_none(&model);
}
