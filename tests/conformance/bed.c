/*
 * Graphs with memory, and calls with their operands laid out.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/app/verify.h>
#include <ctitan/error.h>
#include <ctitan/plugins.h>
#include <ctitan/rng.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "conformance.h"

#define MASKED (-100)
#define GAP 24 /* elements between rows of a padded layout: rows end inside a vector */

/* ---- whole tensors ---- */

/* A dense tensor as one row. */
static struct ct_tensor flat(const struct ct_tensor *t)
{
    int64_t count = ct_tensor_count(t);

    return ct_tensor_is_dense(t) ? ct_tensor_dense(t->data, t->dtype, 1, &count) : *t;
}

static int64_t columns_of(const struct ct_tensor *t)
{
    return t->ndim ? t->shape[t->ndim - 1] : 1;
}

static int64_t rows_of(const struct ct_tensor *t)
{
    return ct_tensor_count(t) / columns_of(t);
}

static struct ct_tensor row_of(const struct ct_tensor *t, int64_t row)
{
    int64_t offset = 0;

    for (int d = t->ndim - 2; d >= 0; d--) {
        offset += row % t->shape[d] * t->stride[d];
        row /= t->shape[d];
    }
    return (struct ct_tensor){.data = (char *)t->data + offset * (int64_t)ct_dtype_size(t->dtype),
                              .dtype = t->dtype,
                              .ndim = 1,
                              .shape = {columns_of(t)},
                              .stride = {t->ndim ? t->stride[t->ndim - 1] : 1}};
}

static void read_row(const struct ct_tensor *row, double *to)
{
    int64_t n = row->shape[0], stride = row->stride[0];

    switch (row->dtype) {
    case CT_F32:
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const float *)row->data)[i * stride];
        break;
    case CT_BF16:
        for (int64_t i = 0; i < n; i++)
            to[i] = ct_bf16_to_f32(((const uint16_t *)row->data)[i * stride]);
        break;
    case CT_F64:
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const double *)row->data)[i * stride];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            to[i] = ct_tensor_load(row, i);
    }
}

static void write_row(const struct ct_tensor *row, const double *from)
{
    int64_t n = row->shape[0], stride = row->stride[0];

    switch (row->dtype) {
    case CT_F32:
        for (int64_t i = 0; i < n; i++)
            ((float *)row->data)[i * stride] = (float)from[i];
        break;
    case CT_BF16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)row->data)[i * stride] = ct_f64_to_bf16(from[i]);
        break;
    case CT_F64:
        for (int64_t i = 0; i < n; i++)
            ((double *)row->data)[i * stride] = from[i];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            ct_tensor_store(row, i, from[i]);
    }
}

static void copy_row(const struct ct_tensor *to, const struct ct_tensor *from)
{
    int64_t n = to->shape[0], a = to->stride[0], b = from->stride[0];

    switch (ct_dtype_size(to->dtype)) {
    case 1:
        for (int64_t i = 0; i < n; i++)
            ((uint8_t *)to->data)[i * a] = ((const uint8_t *)from->data)[i * b];
        break;
    case 2:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to->data)[i * a] = ((const uint16_t *)from->data)[i * b];
        break;
    case 4:
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)to->data)[i * a] = ((const uint32_t *)from->data)[i * b];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            ((uint64_t *)to->data)[i * a] = ((const uint64_t *)from->data)[i * b];
    }
}

void tensor_read(const struct ct_tensor *t, double *to)
{
    struct ct_tensor rows = flat(t);

    for (int64_t r = 0, n = rows_of(&rows); r < n; r++, to += columns_of(&rows)) {
        struct ct_tensor row = row_of(&rows, r);

        read_row(&row, to);
    }
}

void tensor_write(const struct ct_tensor *t, const double *from)
{
    struct ct_tensor rows = flat(t);

    for (int64_t r = 0, n = rows_of(&rows); r < n; r++, from += columns_of(&rows)) {
        struct ct_tensor row = row_of(&rows, r);

        write_row(&row, from);
    }
}

void tensor_copy(const struct ct_tensor *to, const struct ct_tensor *from)
{
    bool dense = ct_tensor_is_dense(to) && ct_tensor_is_dense(from);
    struct ct_tensor x = dense ? flat(to) : *to, y = dense ? flat(from) : *from;

    for (int64_t r = 0, n = rows_of(&x); r < n; r++) {
        struct ct_tensor a = row_of(&x, r), b = row_of(&y, r);

        copy_row(&a, &b);
    }
}

/* ---- the bed ---- */

static void *aligned(struct ct_arena *arena, int64_t elements, enum ct_dtype dtype)
{
    size_t bytes = (size_t)elements * ct_dtype_size(dtype);

    return (void *)(((uintptr_t)ct_arena_alloc(arena, bytes + 128) + 63) & ~(uintptr_t)63);
}

static char *replaced(struct ct_arena *arena, const char *text, const char *dtype)
{
    size_t room = strlen(text) * 2 + 64, used = 0;
    char *out = ct_arena_alloc(arena, room + strlen(text) / 2 * strlen(dtype));

    used = (size_t)sprintf(out, "graph \"case\"\n");
    for (; *text; text++) {
        if (text[0] == 'T' && text[1] && strchr("[!\"", text[1]))
            used += (size_t)sprintf(out + used, "%s", dtype);
        else
            out[used++] = *text;
    }
    out[used] = '\0';
    return out;
}

static double magnitude(const struct conformance_case *test, enum fill fill, uint64_t seed,
                        uint64_t index, double normal)
{
    switch (fill) {
    case FILL_LARGE:
        return normal * (test->exponential ? 2 : 64);
    case FILL_TINY:
        return normal * 1e-9;
    case FILL_DENORMAL:
        return index % 3 ? normal : normal * 1e-41;
    case FILL_SPARSE:
        return ct_philox(seed, 1, index).v[0] % 4 ? (index & 1 ? -0.0 : 0.0) : normal;
    case FILL_NAN:
        return index % 53 == 20 ? __builtin_nan("0xfffffffffffff") : normal; /* as GPUs make it */
    default:
        return normal;
    }
}

static double integer(const struct conformance_case *test, const char *name, enum fill fill,
                      uint64_t index, uint64_t count, uint64_t random)
{
    if (!strcmp(name, "documents"))
        return (double)(index * (uint64_t)test->limit / count);
    if (!strcmp(name, "returning")) /* documents that go on after another one */
        return (double)(index * 8 / count % (uint64_t)test->limit);
    if (!strcmp(name, "slots")) /* in no order, all different */
        return (double)((index + 1) * 7 % (uint64_t)test->limit);
    if (!strcmp(name, "labels") && (fill == FILL_TINY || (fill == FILL_SPARSE && random % 3)))
        return MASKED;
    if (!strcmp(name, "choices")) /* here and there none */
        return (double)(random % (uint64_t)(test->limit + 1)) - 1;
    if (!strcmp(name, "outer")) /* the first and last of four chunks of a sequence */
        return (double)(index < count / 2 ? index : index + count);
    if (!strcmp(name, "inner")) /* those between */
        return (double)(index + count / 2);
    return (double)(random % (uint64_t)test->limit);
}

/* Between -1 and 1, for large tensors. */
static double cheap(uint64_t index)
{
    return (double)((uint32_t)index * 2654435761u) * 0x1p-31 - 1;
}

/* Scalars and statistics have names that say what they may be. */
static double number(const struct conformance_case *test, const struct ct_value *v, enum fill fill,
                     uint64_t seed, uint64_t stream, uint64_t index)
{
    double normal = fill == FILL_CHEAP ? cheap(index) : (double)ct_normal(seed, stream, index);

    if (!strcmp(v->name, "skip"))
        return -1;
    if (!strcmp(v->name, "clip"))
        return 0.5;
    if (!strcmp(v->name, "lr"))
        return 1e-3;
    if (!strcmp(v->name, "step"))
        return 3;
    if (!strcmp(v->name, "far")) /* from 0 */
        return 100 + 0.01 * magnitude(test, fill, seed, index, normal);
    if (v->role == CT_ROLE_SCALAR)
        return 0.25 + fabs(normal);
    if (!strncmp(v->name, "variance", 8))
        return fabs(magnitude(test, fill, seed, index, normal));
    return magnitude(test, fill, seed, index, normal);
}

static void fill_value(struct bed *bed, const struct ct_value *v, enum fill fill, uint64_t seed)
{
    struct ct_tensor *t = &bed->value[v->id];
    uint64_t stream = ct_rng_stream(v->name), n = (uint64_t)ct_tensor_count(t);
    double *numbers = ct_arena_array(&bed->arena, double, n);

    for (uint64_t i = 0; i < n; i++)
        numbers[i] = ct_dtype_is_float(v->dtype)
                         ? number(bed->test, v, fill, seed, stream, i)
                         : integer(bed->test, v->name, fill, i, n, ct_philox(seed, stream, i).v[0]);
    tensor_write(t, numbers);
    tensor_read(t, numbers);
    tensor_write(&bed->exact[v->id], numbers);
}

/* Room for every value; an opaque layout may round dimensions up. */
static void give_memory(struct bed *bed)
{
    size_t n = bed->graph->value_count;

    bed->value = ct_arena_array(&bed->arena, struct ct_tensor, n);
    bed->exact = ct_arena_array(&bed->arena, struct ct_tensor, n);
    bed->sensitivity = ct_arena_array(&bed->arena, double, n);
    for (size_t i = 0; i < n; i++) {
        const struct ct_value *v = bed->graph->values[i];
        size_t count = (size_t)ct_shape_count(v->ndim, v->shape);
        size_t bytes = count * ct_dtype_size(v->dtype) + v->opaque_bytes;

        bed->value[i] = ct_tensor_dense(aligned(&bed->arena, (int64_t)bytes, CT_U8), v->dtype,
                                        v->ndim, v->shape);
        bed->exact[i] =
            ct_tensor_dense(aligned(&bed->arena, (int64_t)count, CT_F64),
                            ct_dtype_is_float(v->dtype) ? CT_F64 : v->dtype, v->ndim, v->shape);
    }
}

static void fill_sources(struct bed *bed, enum fill fill, uint64_t seed)
{
    for (size_t i = 0; i < bed->graph->value_count; i++)
        if (!bed->graph->values[i]->producer)
            fill_value(bed, bed->graph->values[i], fill, seed);
}

int bed_create(struct bed *bed, struct ct_device *device, const struct conformance_case *test,
               enum ct_dtype dtype, enum fill fill, uint64_t seed)
{
    int rc;

    *bed = (struct bed){.device = device, .test = test, .dtype = dtype, .fill = fill, .seed = seed};
    bed->graph =
        ct_graph_parse(&bed->arena, replaced(&bed->arena, test->text, ct_dtype_name(dtype)));
    if (!bed->graph)
        return ct_context(CT_EINVAL, "case \"%s\"", test->name);
    rc = ct_graph_verify(bed->graph, NULL);
    if (rc < 0)
        return ct_context(rc, "case \"%s\"", test->name);
    give_memory(bed);
    fill_sources(bed, fill, seed);
    return 0;
}

/* Everything that no op uses is wanted: transforms drop what nobody wants. */
static void fetch_all(struct ct_graph *graph)
{
    for (size_t i = 0; i < graph->value_count; i++)
        if (!graph->values[i]->use_count)
            ct_graph_fetch(graph, graph->values[i]->name, graph->values[i]);
}

int bed_transform(struct bed *bed, const struct ct_plugin *plugin)
{
    struct ct_run run = {.device_ops = bed->device->ops, .world = 1};
    char *before;
    int rc = 0;

    fetch_all(bed->graph);
    before = ct_graph_text(bed->graph, &bed->arena);
    for (const struct ct_offer *o = plugin->offers; rc >= 0 && o->kind != CT_NOTHING; o++)
        if (o->kind == CT_TRANSFORM)
            rc = ((const struct ct_transform *)o->ops)->apply(bed->graph, &run);
    if (rc >= 0)
        rc = ct_graph_verify(bed->graph, NULL);
    if (rc < 0)
        return ct_context(rc, "transforming case \"%s\"", bed->test->name);
    if (!strcmp(before, ct_graph_text(bed->graph, &bed->arena)))
        return 0;
    give_memory(bed);
    fill_sources(bed, bed->fill, bed->seed);
    return 1;
}

int bed_load(const char *name, char *const *assignments, int count, const struct ct_plugin **plugin)
{
    int rc = ct_plugin_find(name, plugin);

    if (rc >= 0 && (*plugin)->options)
        rc = ct_options_reset((*plugin)->options, (*plugin)->config);
    for (int i = 0; rc >= 0 && i < count; i++) {
        char *key = strdup(assignments[i]), *value = key ? strchr(key, '=') : NULL;

        if (!value)
            return ct_fail(CT_EINVAL, "%s: expected KEY=VALUE", assignments[i]);
        *value = '\0';
        rc = ct_options_set((*plugin)->options, (*plugin)->config, key,
                            assignments[i] + (value - key) + 1, "--set");
        free(key);
    }
    return rc < 0 ? rc : ct_plugin_register(*plugin);
}

void bed_finish(struct bed *bed)
{
    ct_arena_finish(&bed->arena);
}

/* ---- layouts ---- */

/* Dimensions but the last in another order, the rows apart by a gap. */
static bool lay_out(struct ct_tensor *t, enum layout layout, struct ct_arena *arena)
{
    int last = t->ndim - 1;
    int64_t stride;
    bool differs = t->ndim > (layout == LAYOUT_PERMUTED ? 2 : 1);

    if (layout == LAYOUT_DENSE || layout == LAYOUT_JOINED || !differs ||
        !ct_dtype_is_float(t->dtype)) {
        *t = ct_tensor_dense(aligned(arena, ct_tensor_count(t), t->dtype), t->dtype, t->ndim,
                             t->shape);
        return false;
    }
    stride = t->shape[last] + GAP;
    t->stride[last] = 1;
    for (int i = 1; i <= last; i++) {
        int d = layout == LAYOUT_PADDED ? last - i : i - 1;

        t->stride[d] = stride;
        stride *= t->shape[d];
    }
    t->data = aligned(arena, stride, t->dtype);
    return true;
}

static struct ct_tensor *operand(struct call *call, const struct ct_value *value)
{
    for (int i = 0; i < call->op->outs; i++)
        if (call->op->out[i] == value)
            return &call->out[i];
    for (int i = 0; i < call->op->ins; i++)
        if (call->op->in[i] == value)
            return &call->in[i];
    return NULL;
}

/* The values that the op would like side by side become columns of one matrix. */
static bool join(struct call *call, struct ct_arena *arena)
{
    struct ct_value **values;
    int count = call->op->type->join ? call->op->type->join(call->op, &values) : 0;
    int64_t width = 0, rows = 0, column = 0;
    char *data;

    if (count < 2)
        return false;
    for (int i = 0; i < count; i++) {
        const struct ct_tensor *t = operand(call, values[i]);

        width += t->shape[t->ndim - 1];
        rows = ct_tensor_count(t) / t->shape[t->ndim - 1];
    }
    data = aligned(arena, rows * width, values[0]->dtype);
    for (int i = 0; i < count; i++) {
        struct ct_tensor *t = operand(call, values[i]);
        int64_t stride = width;

        t->data = data + (size_t)column * ct_dtype_size(t->dtype);
        column += t->shape[t->ndim - 1];
        for (int d = t->ndim - 2; d >= 0; d--) {
            t->stride[d] = stride;
            stride *= t->shape[d];
        }
    }
    return true;
}

bool call_lay_out(struct call *call, const struct bed *bed, const struct ct_op *op,
                  enum layout layout, struct ct_arena *arena)
{
    bool differs = layout == LAYOUT_DENSE;

    *call = (struct call){.op = op, .arena = arena};
    call->in = ct_arena_array(arena, struct ct_tensor, op->ins + 1);
    call->out = ct_arena_array(arena, struct ct_tensor, op->outs + 1);
    call->present = ct_arena_array(arena, bool, op->ins + 1);
    for (int i = 0; i < op->ins; i++) {
        call->present[i] = op->in[i] != NULL;
        if (!op->in[i])
            continue;
        call->in[i] = bed->value[op->in[i]->id];
        if (op->in[i]->opaque_bytes)
            continue;
        differs |= lay_out(&call->in[i], layout, arena);
    }
    for (int i = 0; i < op->outs; i++) {
        call->out[i] = bed->value[op->out[i]->id];
        if (op->out[i]->opaque_bytes)
            continue;
        differs |= lay_out(&call->out[i], layout, arena);
    }
    if (layout == LAYOUT_JOINED)
        differs = join(call, arena);
    for (int i = 0; i < op->ins; i++)
        if (call->present[i] && !op->in[i]->opaque_bytes)
            tensor_copy(&call->in[i], &bed->value[op->in[i]->id]);
    return differs;
}

static bool all_dense(const struct call *call)
{
    for (int i = 0; i < call->op->ins; i++)
        if (call->present[i] && !ct_tensor_is_dense(&call->in[i]))
            return false;
    for (int i = 0; i < call->op->outs; i++)
        if (!ct_tensor_is_dense(&call->out[i]))
            return false;
    return true;
}

/* What the planner would show a kernel's `accepts`: no addresses. */
static void hide_addresses(struct ct_tensor *to, const struct ct_tensor *from, int count)
{
    memcpy(to, from, sizeof(*to) * (size_t)count);
    for (int i = 0; i < count; i++)
        to[i].data = NULL;
}

int call_prepare(struct call *call, const struct bed *bed, const struct ct_kernel *kernel,
                 uint32_t accumulate)
{
    const struct ct_op *op = call->op;
    struct ct_tensor *in = ct_arena_array(call->arena, struct ct_tensor, op->ins + 1);
    struct ct_tensor *out = ct_arena_array(call->arena, struct ct_tensor, op->outs + 1);
    struct ct_prepare p = {.op = op,
                           .in = in,
                           .out = out,
                           .present = call->present,
                           .ins = op->ins,
                           .outs = op->outs,
                           .accumulate = accumulate,
                           .device = bed->device,
                           .arena = call->arena,
                           .mesh = &bed->graph->mesh};
    int rc;

    if (accumulate && !(kernel->flags & CT_KERNEL_ACCUMULATES))
        return 0;
    if (!(kernel->flags & CT_KERNEL_STRIDED) && !all_dense(call))
        return 0;
    hide_addresses(in, call->in, op->ins);
    hide_addresses(out, call->out, op->outs);
    if (kernel->accepts && !kernel->accepts(&p))
        return 0;
    memcpy(in, call->in, sizeof(*in) * (size_t)op->ins);
    memcpy(out, call->out, sizeof(*out) * (size_t)op->outs);
    rc = kernel->prepare ? kernel->prepare(&p) : 0;
    if (rc < 0)
        return ct_context(rc, "preparing %s (%s)", op->type->name, kernel->name);
    call->kernel = kernel;
    call->workspace = p.workspace;
    call->launch = (struct ct_launch){
        op,
        call->in,
        call->out,
        op->ins,
        op->outs,
        accumulate,
        bed->device->host_memory ? aligned(call->arena, (int64_t)p.workspace, CT_U8) : NULL,
        p.state,
        NULL,
        bed->device};
    return 1;
}

/* ---- running ---- */

/* Bytes from an operand's first element to its last. */
static size_t extent(const struct ct_tensor *t, size_t opaque)
{
    int64_t last = 0;

    if (!t->data || ct_tensor_count(t) == 0)
        return 0;
    for (int d = 0; d < t->ndim; d++)
        last += (t->shape[d] - 1) * t->stride[d];
    return (size_t)(last + 1) * ct_dtype_size(t->dtype) + opaque;
}

/* One operand among those of a call that lie in host memory and shall lie on the device. */
struct moved {
    char *host, *device;
    size_t bytes;
};

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Operands that overlap (columns of one matrix) are moved together: they are sorted by address. */
static int by_address(const void *a, const void *b)
{
    const struct moved *x = a, *y = b;

    return x->host < y->host ? -1 : x->host > y->host;
}

static int merge(struct moved *m, int count)
{
    int kept = 0;

    qsort(m, (size_t)count, sizeof(*m), by_address);
    for (int i = 0; i < count; i++) {
        if (kept && m[i].host < m[kept - 1].host + m[kept - 1].bytes) {
            size_t end = (size_t)(m[i].host - m[kept - 1].host) + m[i].bytes;

            m[kept - 1].bytes = end > m[kept - 1].bytes ? end : m[kept - 1].bytes;
        } else {
            m[kept++] = m[i];
        }
    }
    return kept;
}

static void *moved_to(const struct moved *m, int count, const void *host)
{
    for (int i = 0; i < count; i++)
        if ((const char *)host >= m[i].host && (const char *)host < m[i].host + m[i].bytes)
            return m[i].device + ((const char *)host - m[i].host);
    return NULL;
}

static struct ct_tensor *move_tensors(const struct call *call, const struct ct_tensor *t, int count,
                                      const struct moved *m, int moves)
{
    struct ct_tensor *moved = ct_arena_array(call->arena, struct ct_tensor, count + 1);

    for (int i = 0; i < count; i++) {
        moved[i] = t[i];
        moved[i].data = t[i].data ? moved_to(m, moves, t[i].data) : NULL;
    }
    return moved;
}

/* Device memory for a call: taken once, and more when needed. */
static int device_memory(const struct ct_device_ops *ops, struct ct_device *device, size_t bytes,
                         char **memory)
{
    static size_t room;
    static void *base;
    int rc = 0;

    if (bytes > room) {
        if (base)
            ops->release(device, base, room);
        room = bytes * 2;
        rc = ops->reserve(device, room, &base);
    }
    *memory = base;
    return rc;
}

static int run_there(struct call *call, const struct bed *bed)
{
    const struct ct_device_ops *ops = bed->device->ops;
    const struct ct_op *op = call->op;
    struct moved *m = ct_arena_array(call->arena, struct moved, op->ins + op->outs + 1);
    struct ct_launch launch = call->launch;
    size_t bytes = 0;
    char *memory;
    int count = 0, rc;

    for (int i = 0; i < op->ins + op->outs; i++) {
        const struct ct_tensor *t = i < op->ins ? &call->in[i] : &call->out[i - op->ins];
        const struct ct_value *v = i < op->ins ? op->in[i] : op->out[i - op->ins];

        if (v && t->data)
            m[count++] = (struct moved){t->data, NULL, extent(t, v->opaque_bytes)};
    }
    count = merge(m, count);
    for (int i = 0; i < count; i++)
        bytes += round_up(m[i].bytes);
    rc = device_memory(ops, bed->device, bytes + call->workspace + 256, &memory);
    for (int i = 0; rc == 0 && i < count; i++) {
        m[i].device = memory;
        memory += round_up(m[i].bytes);
        rc = ops->copy_in(bed->device, m[i].device, m[i].host, m[i].bytes);
    }
    launch.in = move_tensors(call, call->in, op->ins, m, count);
    launch.out = move_tensors(call, call->out, op->outs, m, count);
    launch.workspace = memory;
    if (rc == 0)
        rc = ops->enqueue(bed->device, CT_STREAM_COMPUTE, call->kernel, &launch);
    if (rc == 0)
        rc = ops->synchronize(bed->device);
    for (int i = 0; rc == 0 && i < count; i++)
        rc = ops->copy_out(bed->device, m[i].host, m[i].device, m[i].bytes);
    return rc;
}

int call_run(struct call *call, const struct bed *bed)
{
    if (bed->device->host_memory)
        return call->kernel->run(&call->launch);
    return run_there(call, bed);
}
