/*
 * Op types and kernels: the registry, and what is derived from a type's entry.
 *
 * Types are compiled when they are registered and kept in that order. Hash tables with open
 * addressing find them by name and by address. Kernels are an array in the order of registration:
 * they are looked up while a program is lowered, not while it runs.
 */
#include <assert.h>
#include <ctype.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/op_author.h>
#include <ctitan/pointwise.h>
#include <ctitan/rule.h>

#include "ir/kernel.h"
#include "ir/pointwise/gradient.h"
#include "ir/rule.h"

struct device_kernel {
    const char *device;
    const struct ct_kernel *kernel;
};

static struct {
    struct ct_arena arena;
    struct ct_signature **types;
    const char **names;          /* of the types, for ct_did_you_mean */
    uint32_t *by_name, *by_type; /* 1 + index into types; 0: free */
    struct device_kernel *kernels;
    size_t type_count, type_room, name_room, slots, kernel_count, kernel_room;
    bool ready;
} registry;

static const struct ct_op_type *const own[] = {
#define X(id) &ct_op_##id,
    CT_CORE_OPS(X)
#undef X
};

/* ---- tables ---- */

static size_t hash_type(const struct ct_op_type *type)
{
    return (size_t)((uintptr_t)type / _Alignof(struct ct_op_type) * 0x9E3779B97F4A7C15u >> 20);
}

static uint32_t *slot_by_name(const char *name)
{
    size_t i = ct_hash(name) & (registry.slots - 1);

    while (registry.by_name[i] && strcmp(registry.names[registry.by_name[i] - 1], name))
        i = (i + 1) & (registry.slots - 1);
    return &registry.by_name[i];
}

static uint32_t *slot_by_type(const struct ct_op_type *type)
{
    size_t i = hash_type(type) & (registry.slots - 1);

    while (registry.by_type[i] && registry.types[registry.by_type[i] - 1]->type != type)
        i = (i + 1) & (registry.slots - 1);
    return &registry.by_type[i];
}

static void enter(size_t index)
{
    *slot_by_name(registry.names[index]) = (uint32_t)index + 1;
    *slot_by_type(registry.types[index]->type) = (uint32_t)index + 1;
}

static void make_room(void)
{
    if (registry.type_count * 2 < registry.slots)
        return;
    registry.slots = registry.slots ? 2 * registry.slots : 256;
    registry.by_name = ct_arena_array(&registry.arena, uint32_t, registry.slots);
    registry.by_type = ct_arena_array(&registry.arena, uint32_t, registry.slots);
    for (size_t i = 0; i < registry.type_count; i++)
        enter(i);
}

/* ---- registering ---- */

static bool is_name(const char *name)
{
    const char *c = name;

    while (isalnum((unsigned char)*c) || *c == '_' || *c == '.')
        c++;
    return *name && !*c;
}

static int check_struct(const struct ct_op_type *type)
{
    if (type->size < CT_OP_TYPE_SMALLEST)
        return ct_fail(CT_EINVAL,
                       "an op type's struct has %zu bytes, not %zu: set .size = sizeof(struct "
                       "ct_op_type)",
                       type->size, CT_OP_TYPE_SMALLEST);
    if (!type->name || !is_name(type->name))
        return ct_fail(CT_EINVAL, "op type \"%s\": a name has letters, digits, '_' and '.'",
                       type->name ? type->name : "");
    return 0;
}

static int check_collective(const struct ct_collective_ops *c)
{
    const size_t least = offsetof(struct ct_collective_ops, sent) + sizeof(c->sent);

    if (!c || (c->size >= least && c->kernel && !c->prepare == !c->run))
        return 0;
    return ct_fail(CT_EINVAL, "its collective lacks a function: make it with CT_COLLECTIVE");
}

static int check_formula(const struct ct_op_type *type)
{
    if (!type->pointwise || !type->flops)
        return 0;
    return ct_fail(CT_EINVAL, "it is a formula, which counts no FLOPs: remove `flops`");
}

static int derive_gradient(struct ct_signature *s)
{
    struct ct_gradient *g = ct_arena_new(&registry.arena, struct ct_gradient);
    int rc = ct_gradient_derive(s, &registry.arena, g);

    s->gradient = g;
    if (rc < 0)
        return ct_context(rc, "its gradient cannot be derived, write a vjp");
    if (g->outs && *slot_by_name(g->type.name))
        return ct_fail(CT_EINVAL, "a second op type named %s", g->type.name);
    return 0;
}

static int append_type(const struct ct_op_type *type)
{
    struct ct_signature *s = ct_arena_new(&registry.arena, struct ct_signature);
    size_t n = registry.type_count + 1;
    int rc = ct_signature_compile(type, &registry.arena, s);

    if (rc < 0)
        return ct_context(rc, "op type %s", type->name);
    memcpy(&s->whole, type, type->size < sizeof(s->whole) ? type->size : sizeof(s->whole));
    rc = check_collective(s->whole.collective);
    if (rc == 0)
        rc = check_formula(&s->whole);
    if (rc == 0 && s->whole.vjp == ct_pointwise_vjp)
        rc = derive_gradient(s);
    if (rc < 0)
        return ct_context(rc, "op type %s", type->name);
    make_room();
    registry.types = ct_arena_grow(&registry.arena, registry.types, &registry.type_room, n,
                                   sizeof(*registry.types));
    registry.names = ct_arena_grow(&registry.arena, registry.names, &registry.name_room, n,
                                   sizeof(*registry.names));
    registry.types[registry.type_count] = s;
    registry.names[registry.type_count] = type->name;
    enter(registry.type_count++);
    return s->gradient && s->gradient->outs ? append_type(&s->gradient->type) : 0;
}

static void make_ready(void)
{
    if (registry.ready)
        return;
    registry.ready = true;
    make_room();
    for (size_t i = 0; i < CT_COUNT(own); i++)
        if (append_type(own[i]) < 0)
            assert(!"the core's own op types are sound");
}

static const struct ct_op_type *lookup(const char *name)
{
    uint32_t at;

    make_ready();
    at = *slot_by_name(name);
    return at ? registry.types[at - 1]->type : NULL;
}

int ct_op_register(const struct ct_op_type *type)
{
    int rc = check_struct(type);

    if (rc < 0)
        return rc;
    if (lookup(type->name))
        return ct_fail(CT_EINVAL, "a second op type named %s", type->name);
    return append_type(type);
}

static const struct ct_signature *signature_of(const struct ct_op_type *type)
{
    uint32_t at;

    make_ready();
    at = *slot_by_type(type);
    return at ? registry.types[at - 1] : NULL;
}

const struct ct_signature *ct_signature_of(const struct ct_op_type *type)
{
    const struct ct_signature *s = signature_of(type);

    if (!s)
        ct_fail(CT_ENOENT, "op type %s is not registered", type->name);
    return s;
}

const struct ct_gradient *ct_gradient_of(const struct ct_op_type *type)
{
    const struct ct_signature *s = signature_of(type);

    assert(s && s->gradient && "a registered type with ct_pointwise_vjp");
    return s->gradient;
}

const struct ct_op_type *ct_pointwise_gradient(const struct ct_op_type *type)
{
    return ct_op_need(type) == 0 ? &ct_gradient_of(type)->type : NULL;
}

int ct_op_need(const struct ct_op_type *type)
{
    return signature_of(type) ? 0 : ct_op_register(type);
}

const struct ct_op_type *ct_op_find(const char *name)
{
    const struct ct_op_type *type = lookup(name);

    if (!type)
        ct_fail(CT_ENOENT, "no op type is named %s%s", name,
                ct_did_you_mean(name, registry.names, registry.type_count));
    return type;
}

const struct ct_op_type *ct_op_at(size_t index)
{
    make_ready();
    return index < registry.type_count ? registry.types[index]->type : NULL;
}

/* ---- kernels ---- */

int ct_kernel_register(const char *device, const struct ct_kernel *kernel)
{
    if (!kernel->op || !kernel->run)
        return ct_fail(CT_EINVAL, "a kernel of device %s has no op or nothing to run", device);
    registry.kernels = ct_arena_grow(&registry.arena, registry.kernels, &registry.kernel_room,
                                     registry.kernel_count + 1, sizeof(*registry.kernels));
    registry.kernels[registry.kernel_count++] = (struct device_kernel){device, kernel};
    return 0;
}

static bool all_dense(const struct ct_prepare *request)
{
    for (int i = 0; i < request->ins; i++)
        if ((!request->present || request->present[i]) && !ct_tensor_is_dense(&request->in[i]))
            return false;
    for (int i = 0; i < request->outs; i++)
        if (!ct_tensor_is_dense(&request->out[i]))
            return false;
    return true;
}

bool ct_kernel_is_for(const struct ct_kernel *kernel, const struct ct_op_type *type)
{
    return !strcmp(kernel->op, type->name);
}

static bool suits(const struct ct_kernel *kernel, const struct ct_prepare *request)
{
    if (!ct_kernel_is_for(kernel, request->op->type))
        return false;
    if (request->accumulate && !(kernel->flags & CT_KERNEL_ACCUMULATES))
        return false;
    if (request->repeatable && kernel->flags & CT_KERNEL_VARIES)
        return false;
    if (!(kernel->flags & CT_KERNEL_STRIDED) && !all_dense(request))
        return false;
    return !kernel->accepts || kernel->accepts(request);
}

const struct ct_kernel *ct_kernel_find(const char *device, const struct ct_prepare *request)
{
    for (size_t i = 0; i < registry.kernel_count; i++) {
        const struct device_kernel *k = &registry.kernels[i];

        if (!strcmp(k->device, device) && suits(k->kernel, request))
            return k->kernel;
    }
    return NULL;
}

const struct ct_kernel *ct_kernel_at(const char *device, size_t index)
{
    for (size_t i = 0; i < registry.kernel_count; i++)
        if (!strcmp(registry.kernels[i].device, device) && index-- == 0)
            return registry.kernels[i].kernel;
    return NULL;
}

/* ---- derived from the type ---- */

#define FEW_OUTPUTS 64

static int infer(struct ct_op *op)
{
    struct ct_expansion x;
    int rc = ct_signature_expand(op, &x);

    if (rc == 0)
        rc = ct_rule_infer_dtypes(op, &x);
    if (rc == 0)
        rc = ct_rule_infer(op, &x);
    if (rc == 0 && op->type->infer)
        rc = op->type->infer(op);
    return rc;
}

int ct_op_infer(struct ct_op *op)
{
    const struct ct_value *of = op->outs ? op->out[0] : op->ins ? op->in[0] : NULL;
    enum ct_dtype few[FEW_OUTPUTS], *fixed = few;
    struct ct_arena scratch = {0};
    int rc;

    if (op->outs > FEW_OUTPUTS)
        fixed = ct_arena_array(&scratch, enum ct_dtype, op->outs);
    for (int i = 0; i < op->outs; i++)
        fixed[i] = op->out[i]->dtype;
    rc = infer(op);
    for (int i = 0; i < op->outs; i++)
        if (op->out[i]->dtype_fixed && op->type->flags & CT_OP_ANY_DTYPE)
            op->out[i]->dtype = fixed[i];
    ct_arena_finish(&scratch);
    if (rc < 0)
        return ct_context(rc, "%s(%s%s)", op->type->name, of ? "%" : "", of ? of->name : "");
    return 0;
}

const struct ct_op_type *ct_op_type_whole(const struct ct_op_type *type)
{
    const struct ct_signature *s = signature_of(type);

    return s ? &s->whole : type;
}

int ct_op_join(const struct ct_op *op, struct ct_value ***values)
{
    const struct ct_op_type *type = ct_op_type_whole(op->type);

    return type->join ? type->join(op, values) : 0;
}

const struct ct_value *ct_value_origin(const struct ct_value *value)
{
    while (value->producer && value->producer->type->flags & CT_OP_SPACES)
        value = value->producer->in[0];
    return value;
}

static const void *attribute(const struct ct_op *op, const char *name, enum ct_option_type type)
{
    const struct ct_option *o = ct_option_find(op->type->attrs, name);

    assert(o && "the op type has the attribute");
    assert(o->type == type || (type == CT_STRING && o->type == CT_CHOICE));
    return (const char *)op->attrs + o->offset;
}

double ct_op_float(const struct ct_op *op, const char *name)
{
    return *(const double *)attribute(op, name, CT_FLOAT);
}

int64_t ct_op_int(const struct ct_op *op, const char *name)
{
    return *(const int64_t *)attribute(op, name, CT_INT);
}

bool ct_op_bool(const struct ct_op *op, const char *name)
{
    return *(const bool *)attribute(op, name, CT_BOOL);
}

const char *ct_op_string(const struct ct_op *op, const char *name)
{
    return *(const char *const *)attribute(op, name, CT_STRING);
}

int ct_op_enum(const struct ct_op *op, const char *name)
{
    return (int)*(const unsigned *)attribute(op, name, CT_ENUM);
}

ct_axes ct_op_axes(const struct ct_op *op, const char *name)
{
    return *(const ct_axes *)attribute(op, name, CT_ATTR_AXES);
}

/* ---- position of a shard in the whole ---- */

static bool asks_positions(const struct ct_op *op)
{
    const struct ct_signature *s = ct_signature_of(op->type);

    return s && s->positions;
}

/* Is dimension dim of v a split sequence dimension whose chunks are fed in another order? */
static bool is_reordered(const struct ct_launch *l, const struct ct_value *v, int dim)
{
    const struct ct_value *input;
    int along;

    if (!l->graph || !l->graph->chunks || !v->sharding.count[dim] ||
        !ct_part_is_microbatch(l->op->section->part))
        return false;
    input = ct_graph_sequence_input(l->graph);
    along = input ? ct_input_sequence(input) : 0;
    return input && v->shape[dim] == input->shape[along] &&
           v->sharding.count[dim] == input->sharding.count[along] &&
           !memcmp(v->sharding.axis[dim], input->sharding.axis[along],
                   input->sharding.count[along]);
}

static int64_t offset_of(const struct ct_launch *launch, const struct ct_value *v, int dim)
{
    int64_t local[CT_MAX_DIMS], offset[CT_MAX_DIMS];

    if (!launch->mesh || launch->mesh->count == 0)
        return 0;
    ct_sharding_local(&v->sharding, launch->mesh, launch->rank, v->ndim, v->shape, local, offset);
    return offset[dim];
}

int64_t ct_launch_offset(const struct ct_launch *launch, const struct ct_value *v, int dim)
{
    assert((!is_reordered(launch, v, dim) || asks_positions(launch->op)) &&
           "sequences are in another order: the op type's signature needs \"@\", its kernel "
           "ct_launch_position");
    return offset_of(launch, v, dim);
}

int64_t ct_launch_position(const struct ct_launch *launch, const struct ct_value *v, int dim,
                           int64_t index)
{
    assert(asks_positions(launch->op) && "the op type's signature says \"@\" of a factor");
    index += offset_of(launch, v, dim);
    return launch->graph ? ct_graph_position(launch->graph, v->shape[dim], index) : index;
}
