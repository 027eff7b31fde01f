/*
 * Op types and kernels: the registry, and what is derived from a type's entry.
 *
 * Both registries are arrays in the order of registration: there are tens of types and hundreds of
 * kernels, and they are looked up while a graph is built and lowered, not while it runs.
 */
#include <assert.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/rule.h>

#include "ops/standard.h"

struct device_kernel {
    const char *device;
    const struct ct_kernel *kernel;
};

static struct {
    struct ct_arena arena;
    const struct ct_op_type **types;
    const char **names; /* of the types, for ct_nearest */
    struct device_kernel *kernels;
    size_t type_count, type_room, name_room, kernel_count, kernel_room;
    bool ready;
} registry;

static void append_type(const struct ct_op_type *type)
{
    size_t n = registry.type_count + 1;

    registry.types = ct_arena_grow(&registry.arena, registry.types, &registry.type_room, n,
                                   sizeof(*registry.types));
    registry.names = ct_arena_grow(&registry.arena, registry.names, &registry.name_room, n,
                                   sizeof(*registry.names));
    registry.types[registry.type_count] = type;
    registry.names[registry.type_count++] = type->name;
}

static void make_ready(void)
{
    if (registry.ready)
        return;
    registry.ready = true;
    for (const struct ct_op_type *const *type = ct_standard_ops; *type; type++)
        append_type(*type);
}

static const struct ct_op_type *lookup(const char *name)
{
    make_ready();
    for (size_t i = 0; i < registry.type_count; i++)
        if (!strcmp(registry.names[i], name))
            return registry.types[i];
    return NULL;
}

int ct_op_register(const struct ct_op_type *type)
{
    int rc;

    if (lookup(type->name))
        return ct_fail(CT_EINVAL, "a second op type named %s", type->name);
    if (!type->operands && !type->infer)
        return ct_fail(CT_EINVAL, "op type %s has neither operands nor infer", type->name);
    rc = ct_rule_check(type);
    if (rc < 0)
        return ct_context(rc, "op type %s", type->name);
    append_type(type);
    return 0;
}

const struct ct_op_type *ct_op_find(const char *name)
{
    const struct ct_op_type *type = lookup(name);
    const char *near;

    if (type)
        return type;
    near = ct_nearest(name, registry.names, registry.type_count);
    if (near)
        ct_fail(CT_ENOENT, "no op type is named %s; the nearest is %s", name, near);
    else
        ct_fail(CT_ENOENT, "no op type is named %s", name);
    return NULL;
}

const struct ct_op_type *ct_op_at(size_t index)
{
    make_ready();
    return index < registry.type_count ? registry.types[index] : NULL;
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

static bool suits(const struct ct_kernel *kernel, const struct ct_prepare *request)
{
    if (strcmp(kernel->op, request->op->type->name))
        return false;
    if (request->accumulate && !(kernel->flags & CT_KERNEL_ACCUMULATES))
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

int ct_op_count_outputs(const struct ct_op *op)
{
    if (op->type->count_outputs)
        return op->type->count_outputs(op);
    return op->type->operands ? ct_operands_count_outputs(op) : 1;
}

/* Shapes of the outputs by the rule; -1 where only the type's `infer` knows. */
static int infer_shapes(struct ct_op *op, struct ct_arena *scratch)
{
    struct ct_rule rule;
    int rc = ct_rule_apply(op, scratch, &rule);

    for (int i = 0; rc == 0 && op->type->rule && i < op->outs; i++) {
        const struct ct_rule_operand *operand = &rule.operand[op->ins + i];

        op->out[i]->rank = operand->rank;
        for (int d = 0; d < operand->rank; d++)
            op->out[i]->shape[d] = rule.factor[operand->factor[d]].size;
    }
    return rc;
}

static int infer(struct ct_op *op, struct ct_arena *scratch)
{
    int rc = op->type->operands ? ct_operands_apply(op) : 0;

    if (rc == 0)
        rc = infer_shapes(op, scratch);
    if (rc == 0 && op->type->infer)
        rc = op->type->infer(op);
    return rc;
}

int ct_op_infer(struct ct_op *op)
{
    const struct ct_value *of = op->outs ? op->out[0] : op->ins ? op->in[0] : NULL;
    struct ct_arena scratch = {0};
    enum ct_dtype *fixed = ct_arena_array(&scratch, enum ct_dtype, op->outs + 1);
    int rc;

    for (int i = 0; i < op->outs; i++)
        fixed[i] = op->out[i]->dtype;
    rc = infer(op, &scratch);
    for (int i = 0; i < op->outs; i++)
        if (op->out[i]->dtype_fixed && op->type->flags & CT_OP_ANY_DTYPE)
            op->out[i]->dtype = fixed[i];
    ct_arena_finish(&scratch);
    if (rc < 0)
        return ct_context(rc, "%s(%s%s)", op->type->name, of ? "%" : "", of ? of->name : "");
    return 0;
}

static const void *attribute(const struct ct_op *op, const char *name, enum ct_option_type type)
{
    for (const struct ct_option *o = op->type->attrs; o && o->name; o++)
        if (!strcmp(o->name, name)) {
            assert(o->type == type || (type == CT_STRING && o->type == CT_CHOICE));
            return (const char *)op->attrs + o->offset;
        }
    assert(!"the op type has the attribute");
    return NULL;
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

bool ct_op_mutates(const struct ct_op *op, int input)
{
    if (op->type->mutates_input)
        return op->type->mutates_input(op, input);
    return input < 32 && op->type->mutates >> input & 1;
}

int64_t ct_launch_offset(const struct ct_launch *launch, const struct ct_value *v, int dim)
{
    int64_t local[CT_MAX_RANK], offset[CT_MAX_RANK];

    if (!launch->mesh || launch->mesh->count == 0)
        return 0;
    ct_sharding_local(&v->sharding, launch->mesh, launch->rank, v->rank, v->shape, local, offset);
    return offset[dim];
}
