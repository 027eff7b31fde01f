/* Graphs with memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/app/verify.h>
#include <ctitan/error.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/plugins.h>
#include <ctitan/rng.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "conformance.h"

#define MASKED (-100)

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

/* Slot of a token of a row that begins its sequence, goes on with half a row, or has no token. */
static double slot(uint64_t row, int64_t token, int64_t tokens)
{
    if (row == 0)
        return (double)token;
    return row == 1 && token < tokens / 2 ? (double)(100 + token) : -1;
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
    if (!strcmp(name, "fed"))
        return slot(index / (uint64_t)test->limit % 3, (int64_t)index % test->limit, test->limit);
    if (!strcmp(name, "labels") && (fill == FILL_TINY || (fill == FILL_SPARSE && random % 3)))
        return MASKED;
    if (!strcmp(name, "choices")) /* here and there none */
        return (double)(random % (uint64_t)(test->limit + 1)) - 1;
    if (!strcmp(name, "uneven")) /* 1, 127 and 129 of 257, and none of the first */
        return index < 1 ? 1 : index < 128 ? 2 : 3;
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
    ct_check_write(t, numbers);
    ct_check_read(t, numbers);
    ct_check_write(&bed->exact[v->id], numbers);
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
        size_t bytes = ct_dtype_bytes(v->dtype, v->ndim, v->shape) + v->opaque_bytes;

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

int bed_parse(struct bed *bed, struct ct_device *device, const struct conformance_case *test,
              enum ct_dtype dtype, enum fill fill, uint64_t seed)
{
    int rc;

    *bed = (struct bed){.device = device, .test = test, .dtype = dtype, .fill = fill, .seed = seed};
    bed->graph =
        ct_graph_parse(&bed->arena, replaced(&bed->arena, test->text, ct_dtype_name(dtype)));
    if (!bed->graph)
        return ct_context(CT_EINVAL, "case \"%s\"", test->name);
    rc = ct_graph_verify(bed->graph, NULL);
    return rc < 0 ? ct_context(rc, "case \"%s\"", test->name) : 0;
}

int bed_create(struct bed *bed, struct ct_device *device, const struct conformance_case *test,
               enum ct_dtype dtype, enum fill fill, uint64_t seed)
{
    int rc = bed_parse(bed, device, test, dtype, fill, seed);

    if (rc < 0)
        return rc;
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

int bed_call(const struct bed *bed, const struct ct_op *op, struct ct_arena *arena,
             struct ct_launch *launch, const struct ct_kernel **kernel)
{
    struct ct_tensor *in = ct_arena_array(arena, struct ct_tensor, op->ins + 1);
    struct ct_tensor *out = ct_arena_array(arena, struct ct_tensor, op->outs + 1);
    size_t workspace = 0;
    int rc = 0;

    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            in[i] = bed->value[op->in[i]->id];
    for (int i = 0; i < op->outs; i++)
        out[i] = bed->value[op->out[i]->id];
    *launch = (struct ct_launch){
        .op = op, .in = in, .out = out, .ins = op->ins, .outs = op->outs, .graph = bed->graph};
    for (size_t i = 0; rc == 0 && (*kernel = ct_kernel_at(bed->device->name, i)); i++)
        if (!strcmp((*kernel)->op, op->type->name))
            rc = ct_check_prepare(bed->device, *kernel, launch, arena, &workspace);
    launch->workspace = aligned(arena, (int64_t)workspace, CT_U8);
    return rc ? rc : ct_fail(CT_ENOENT, "no kernel takes %s", op->type->name);
}
