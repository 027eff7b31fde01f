/*
 * Structs of plugins, converted to the layout of this build.
 *
 * A struct shorter than this build's comes from a plugin built against an older minor version. It
 * is copied, and the fields that it lacks are 0. Except for the table below, the core reads no
 * plugin struct before it is converted here.
 */
#include <string.h>

#include <ctitan/device/comm.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/model.h>
#include <ctitan/objective.h>
#include <ctitan/pass.h>
#include <ctitan/reader.h>

#include "plugin/abi.h"

/* The least bytes of a struct: fields up to and including this one must be there. */
#define LAYOUT(type, field)                                                                        \
    {                                                                                              \
        sizeof(type), offsetof(type, field) + sizeof(((type *)0)->field), #type                    \
    }

/* Kinds not listed here belong to libraries, which call ct_struct_widen themselves. */
static const struct layout {
    size_t size, least;
    const char *type;
} layouts[CT_KIND_COUNT] = {
    [CT_KERNELS] = LAYOUT(struct ct_kernel, run),
    [CT_TRANSFORM] = LAYOUT(struct ct_transform, apply),
    [CT_MODEL] = LAYOUT(struct ct_model_ops, description),
    [CT_DEVICE] = LAYOUT(struct ct_device_ops, diagnose),
    [CT_COMMUNICATOR] = LAYOUT(struct ct_comm_ops, call),
    [CT_DATA] = LAYOUT(struct ct_data_ops, vocabulary),
    [CT_TOKENIZER] = LAYOUT(struct ct_tokenizer_ops, decode),
    [CT_OPTIMIZER] = LAYOUT(struct ct_optimizer_ops, lr),
    [CT_LR_SCHEDULE] = LAYOUT(struct ct_lr_schedule_ops, factor),
    [CT_AXIS] = LAYOUT(struct ct_axis_ops, degree),
    [CT_HOOK] = LAYOUT(struct ct_hook, context),
    [CT_VERB] = LAYOUT(struct ct_verb_ops, run),
    [CT_OBJECTIVE] = LAYOUT(struct ct_objective_ops, build),
    [CT_ORDER] = LAYOUT(struct ct_order_ops, order),
    [CT_READER] = LAYOUT(struct ct_reader_ops, read),
    [CT_BESIDE] = LAYOUT(struct ct_beside_ops, read),
};
static const struct layout option_layout = LAYOUT(struct ct_option, choices);
static const struct layout weights_layout = LAYOUT(struct ct_weights_ops, identify);

static size_t size_of(const void *given)
{
    return *(const size_t *)given;
}

static int check_size(const void *given, size_t least, size_t size)
{
    if (size_of(given) >= least && size_of(given) <= size)
        return 0;
    return ct_fail(CT_EABI, "begins with %zu, and its size in bytes was expected, %zu",
                   size_of(given), size);
}

int ct_abi_widen(struct ct_arena *arena, const void *given, size_t least, size_t size,
                 const void **widened)
{
    int rc = check_size(given, least, size);
    void *copy;

    *widened = given;
    if (rc < 0 || size_of(given) == size)
        return rc;
    copy = ct_arena_alloc(arena, size);
    memcpy(copy, given, size_of(given));
    memcpy(copy, &size, sizeof(size));
    *widened = copy;
    return 0;
}

/* The first element gives the size of all; one that begins with 0 ends the array. */
static size_t count_elements(const char *given)
{
    size_t stride = size_of(given), count = 0;

    while (stride && size_of(given + count * stride))
        count++;
    return count;
}

int ct_abi_widen_array(struct ct_arena *arena, const void *given, size_t least, size_t size,
                       const void **widened)
{
    size_t stride = size_of(given), count;
    int rc = stride ? check_size(given, least, size) : 0;
    char *copy;

    *widened = given;
    if (rc < 0 || stride == size || !stride)
        return rc;
    count = count_elements(given);
    copy = ct_arena_alloc(arena, (count + 1) * size);
    for (size_t i = 0; i < count; i++) {
        memcpy(copy + i * size, (const char *)given + i * stride, stride);
        memcpy(copy + i * size, &size, sizeof(size));
    }
    *widened = copy;
    return 0;
}

static int refuse(const struct ct_offer *o, const struct layout *l)
{
    struct ct_error_kept why = ct_error_keep();

    return ct_fail(CT_EABI,
                   "the %s %s: %s: %s: begin it with .size = sizeof(%s), and rebuild the plugin",
                   ct_kind_name(o->kind), o->name, l->type, why.message, l->type);
}

/* The struct that a model points to. Where the plugin is not loaded, one of a library is zeros. */
static int widen_weights(struct ct_offer *o, struct ct_arena *arena)
{
    const struct layout *l = &weights_layout;
    const struct ct_model_ops *model = o->ops;
    const void *weights = model->weights;
    struct ct_model_ops *changed;
    int rc =
        weights && size_of(weights) ? ct_abi_widen(arena, weights, l->least, l->size, &weights) : 0;

    if (rc < 0)
        return refuse(o, l);
    if (weights == model->weights)
        return 0;
    changed = ct_arena_copy(arena, model, sizeof(*model));
    changed->weights = weights;
    o->ops = changed;
    return 0;
}

static int widen_offer(struct ct_offer *o, struct ct_arena *arena)
{
    const struct layout *l = &layouts[(unsigned)o->kind < CT_KIND_COUNT ? o->kind : CT_NOTHING];
    int rc;

    if (!o->ops || !l->size)
        return 0;
    if (o->kind == CT_KERNELS)
        rc = ct_abi_widen_array(arena, o->ops, l->least, l->size, &o->ops);
    else
        rc = ct_abi_widen(arena, o->ops, l->least, l->size, &o->ops);
    if (rc < 0)
        return refuse(o, l);
    return o->kind == CT_MODEL ? widen_weights(o, arena) : 0;
}

static int widen_offers(struct ct_plugin *p, struct ct_arena *arena)
{
    struct ct_offer *copy;
    size_t count = 0;
    int rc = 0;

    while (p->offers[count].kind != CT_NOTHING)
        count++;
    copy = ct_arena_array(arena, struct ct_offer, count + 1);
    memcpy(copy, p->offers, count * sizeof(*copy));
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = widen_offer(&copy[i], arena);
    p->offers = copy;
    return rc;
}

int ct_plugin_widen(struct ct_plugin *p, struct ct_arena *arena)
{
    const void *options = p->options;
    int rc = 0;

    if (options)
        rc = ct_abi_widen_array(arena, options, option_layout.least, option_layout.size, &options);
    if (rc < 0)
        return ct_context(rc, "its options: %s", option_layout.type);
    p->options = options;
    return widen_offers(p, arena);
}

int ct_struct_widen(const void *given, size_t least, size_t size, const void **widened)
{
    static struct ct_arena arena; /* process-wide */

    return ct_abi_widen(&arena, given, least, size, widened);
}
