/*
 * Seconds of an instruction on a described machine.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/lib/machine.h>
#include <ctitan/op.h>

#include "calls.h"

/* The value at x, interpolated on logarithmic scales. */
static double at(const struct ct_machine_curve *curve, double x)
{
    const struct ct_machine_point *p = curve->point;
    size_t n = 0;
    double share;

    while (n < curve->count && p[n].at < x)
        n++;
    if (n == 0 || n == curve->count)
        return p[n ? n - 1 : 0].value;
    share = log(x / p[n - 1].at) / log(p[n].at / p[n - 1].at);
    return p[n - 1].value * pow(p[n].value / p[n - 1].value, share);
}

static double bytes_of(const struct ct_tensor *t)
{
    return t->ndim < 0 ? 0 : (double)ct_tensor_bytes(t);
}

/* ---- classes ---- */

/* The class that lists an op of this name; SIZE_MAX: none. */
static size_t listed(const struct ct_machine *machine, const char *name)
{
    for (size_t n = 0; n < machine->rate_count; n++)
        for (size_t i = 0; i < machine->rate[n].op_count; i++)
            if (!strcmp(machine->rate[n].ops[i], name))
                return n;
    return SIZE_MAX;
}

static size_t fallback(const struct ct_machine *machine, bool flops)
{
    for (size_t n = 0; n < machine->rate_count; n++)
        if (!machine->rate[n].op_count && machine->rate[n].flops == flops)
            return n;
    return SIZE_MAX;
}

size_t ct_machine_class(const struct ct_machine *machine, const struct ct_op *op)
{
    const char *name = op->type->name, *dot = strrchr(name, '.');
    size_t class = listed(machine, name);

    if (class == SIZE_MAX && dot) /* an op that a plugin puts in the place of `linear` */
        class = listed(machine, dot + 1);
    if (class == SIZE_MAX && op->type->flops)
        class = fallback(machine, true);
    return class == SIZE_MAX ? fallback(machine, false) : class;
}

double ct_machine_peak(const struct ct_machine *machine, enum ct_dtype dtype)
{
    switch (dtype) {
    case CT_BF16:
    case CT_F16:
        return machine->peak.bfloat16;
    case CT_E4M3:
    case CT_E5M2:
        return machine->peak.float8 > 0 ? machine->peak.float8 : machine->peak.bfloat16;
    default:
        return machine->peak.float32;
    }
}

/* ---- computing ---- */

/* The narrowest floating dtype among the first two inputs: in it the product is computed. */
static enum ct_dtype product_dtype(const struct ct_launch *l)
{
    enum ct_dtype dtype = CT_F64;

    for (int i = 0; i < l->ins && i < 2; i++)
        if (l->in[i].ndim >= 0 && ct_dtype_is_float(l->in[i].dtype) &&
            ct_dtype_size(l->in[i].dtype) < ct_dtype_size(dtype))
            dtype = l->in[i].dtype;
    return dtype;
}

static double bytes_moved(const struct ct_launch *l, bool lookup)
{
    double bytes = 0;

    for (int i = 0; i < l->ins && !lookup; i++)
        bytes += bytes_of(&l->in[i]) * (ct_op_mutates(l->op, i) ? 2 : 1);
    for (int i = 0; i < l->outs; i++)
        bytes += bytes_of(&l->out[i]) * (lookup || l->accumulate >> i & 1 ? 2 : 1);
    return bytes;
}

static double flops_of(const struct ct_launch *l)
{
    return l->op->type->flops ? l->op->type->flops(l->op, l->in, l->out) : 0;
}

static const struct ct_machine_rate *rate_of(const struct ct_machine *m, const struct ct_op *op)
{
    size_t n = ct_machine_class(m, op);

    return n == SIZE_MAX ? NULL : &m->rate[n];
}

static double peak_of(const struct ct_machine *m, const struct ct_machine_rate *rate,
                      enum ct_dtype dtype)
{
    return rate && rate->peak > 0 ? rate->peak : ct_machine_peak(m, dtype);
}

double ct_machine_ideal(const struct ct_machine *machine, const struct ct_instruction *instruction)
{
    const struct ct_machine_rate *rate = rate_of(machine, instruction->op);
    const struct ct_launch *l = &instruction->lowered->launch;
    double products = flops_of(l) / peak_of(machine, rate, product_dtype(l));
    double moves = bytes_moved(l, rate && rate->lookup) / machine->peak.bandwidth;

    return fmax(products, moves);
}

static double reached(const struct ct_machine_rate *rate, double ideal)
{
    return ideal > 0 && rate ? ideal / at(&rate->reach, ideal) : ideal;
}

/* Seconds for bytes that a kernel moves before or after its work, as copies do. Rates that were
   measured are those of whole calls, and have them in them. */
static double traffic(const struct ct_machine *m, double bytes)
{
    size_t memory = fallback(m, false);

    if (ct_machine_is_measured(m))
        return 0;
    return reached(memory == SIZE_MAX ? NULL : &m->rate[memory], bytes / m->peak.bandwidth);
}

static double computing(const struct ct_machine *m, const struct ct_instruction *i)
{
    return reached(rate_of(m, i->op), ct_machine_ideal(m, i)) + traffic(m, i->lowered->traffic);
}

/* ---- calls that have been measured ---- */

static void print_shapes(struct ct_line *line, const struct ct_tensor *tensor, int count)
{
    for (int i = 0; i < count; i++) {
        ct_line_add(line, i ? ":" : "");
        for (int d = 0; d < tensor[i].ndim; d++)
            ct_line_add(line, "%s%lld", d ? "," : "", (long long)tensor[i].shape[d]);
    }
}

int ct_machine_shapes(const struct ct_launch *launch, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};
    const char *dtype = "";

    for (int i = launch->ins; i-- > 0;)
        if (launch->in[i].ndim >= 0 && ct_dtype_is_float(launch->in[i].dtype))
            dtype = ct_dtype_name(launch->in[i].dtype);
    print_shapes(&line, launch->in, launch->ins);
    ct_line_add(&line, ">");
    print_shapes(&line, launch->out, launch->outs);
    ct_line_add(&line, ":%s", dtype);
    return (int)line.used;
}

static double measured(const struct ct_machine *m, const struct ct_launch *l)
{
    char shapes[512];
    struct ct_machine_call key = {.op = l->op->type->name, .shapes = shapes};
    const struct ct_machine_call *found;

    if (!m->call_count || ct_machine_shapes(l, shapes, sizeof(shapes)) >= (int)sizeof(shapes))
        return 0;
    found = bsearch(&key, m->call, m->call_count, sizeof(*m->call), ct_machine_compare_calls);
    return found ? found->seconds : 0;
}

/* ---- communication ---- */

/* How a group of ranks lies on hosts. */
struct span {
    int64_t ranks, hosts, here; /* here: ranks of the first member's host */
};

static struct span span_of(const struct ct_machine *m, const struct ct_mesh *mesh, int64_t rank,
                           ct_axes axes)
{
    struct span s = {.ranks = ct_mesh_degree(mesh, axes)};
    int64_t stride = 1, low = rank, high = rank;

    for (int a = mesh->count; a-- > 0; stride *= mesh->axis[a].size) {
        int64_t c = ct_mesh_coordinate(mesh, rank, a);

        if (axes >> a & 1) {
            low -= c * stride;
            high += (mesh->axis[a].size - 1 - c) * stride;
        }
    }
    if (low / m->ranks_per_host == high / m->ranks_per_host) {
        s.hosts = 1;
        s.here = s.ranks;
        return s;
    }
    /* Members are spaced evenly enough: the innermost axis of the group decides. */
    stride = 1;
    s.here = 1;
    for (int a = mesh->count; a-- > 0; stride *= mesh->axis[a].size)
        if (axes >> a & 1 && stride < m->ranks_per_host) {
            int64_t fits = m->ranks_per_host / stride;

            s.here *= mesh->axis[a].size < fits ? mesh->axis[a].size : fits;
        }
    s.hosts = (s.ranks + s.here - 1) / s.here;
    return s;
}

static double link_seconds(const struct ct_machine_link *link, double bytes)
{
    return bytes > 0 ? bytes / (link->bandwidth * at(&link->reach, bytes)) : 0;
}

/* A ring through all ranks, or a tree where that has fewer steps. The network links of the group's
   ranks on a host share the traffic between hosts. */
static double collective(const struct ct_machine *m, const struct span *s, double sent)
{
    double inside = link_seconds(&m->host, sent), between = 0;
    double steps = (double)(s->here - 1), hops = (double)(s->hosts - 1);
    double tree = 2 * ceil(log2((double)(s->here > 1 ? s->here : 1))),
           far = 2 * ceil(log2((double)s->hosts));

    if (s->hosts > 1)
        between = link_seconds(&m->network, sent / (double)s->here);
    return fmax(inside, between) + fmin(steps, tree) * m->host.latency +
           fmin(hops, far) * m->network.latency;
}

/* Neighbours of a pipeline are on different hosts where hosts hold one stage. */
bool ct_machine_between_hosts(const struct ct_machine *machine, const struct ct_program *program,
                              int64_t rank, const struct ct_instruction *instruction)
{
    bool transfers = instruction->op->type->flags & CT_OP_RENDEZVOUS;
    ct_axes axes = transfers ? (ct_axes)1 << program->graph->partition_axis
                             : ct_op_axes(instruction->op, "axes");
    struct span s = span_of(machine, &program->graph->mesh, rank, axes);

    return s.hosts > 1 && (!transfers || s.here <= 1);
}

static double transfer(const struct ct_machine *m, const struct ct_program *p, int64_t rank,
                       const struct ct_instruction *i)
{
    const struct ct_machine_link *link =
        ct_machine_between_hosts(m, p, rank, i) ? &m->network : &m->host;
    double bytes = 0;

    for (int n = 0; n < i->lowered->launch.ins; n++)
        bytes += bytes_of(&i->lowered->launch.in[n]);
    for (int n = 0; n < i->lowered->launch.outs; n++)
        bytes += bytes_of(&i->lowered->launch.out[n]);
    return link->latency + link_seconds(link, bytes);
}

double ct_machine_product(const struct ct_machine *machine, const struct ct_op *op, double flops)
{
    const struct ct_machine_rate *rate = rate_of(machine, op);
    double peak = peak_of(machine, rate, op->in[0]->dtype);

    return machine->launch + reached(rate, peak > 0 ? flops / peak : 0);
}

double ct_machine_collective(const struct ct_machine *machine, const struct ct_mesh *mesh,
                             int64_t rank, ct_axes axes, double sent)
{
    struct span s = span_of(machine, mesh, rank, axes);

    return machine->launch + collective(machine, &s, sent);
}

double ct_machine_seconds(const struct ct_machine *machine, const struct ct_program *program,
                          int64_t rank, const struct ct_instruction *instruction)
{
    const struct ct_op_type *type = instruction->op->type;
    double seconds;

    if (type->flags & CT_OP_RENDEZVOUS)
        return machine->launch + transfer(machine, program, rank, instruction);
    if (instruction->lowered->sent > 0) {
        struct span s =
            span_of(machine, &program->graph->mesh, rank, ct_op_axes(instruction->op, "axes"));

        return machine->launch + collective(machine, &s, instruction->lowered->sent);
    }
    seconds = measured(machine, &instruction->lowered->launch);
    return machine->launch + (seconds > 0 ? seconds : computing(machine, instruction));
}
