/*
 * Checks of a plugin's descriptor, beyond those of the loader. A function that is missing is
 * named when the plugin is opened, not when a run calls it.
 */
#include <ctype.h>
#include <string.h>

#include <ctitan/device/comm.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/objective.h>
#include <ctitan/pass.h>
#include <ctitan/plugins.h>
#include <ctitan/reader.h>

/* ---- offers ---- */

/* Functions and texts that must be set. */
#define MUST(kind, type, field)                                                                    \
    {                                                                                              \
        CT_##kind, offsetof(struct ct_##type, field), #field                                       \
    }

static const struct must {
    enum ct_kind kind;
    size_t at;
    const char *field;
} musts[] = {
    MUST(KERNELS, kernel, run),
    MUST(TRANSFORM, transform, name),
    MUST(TRANSFORM, transform, apply),
    MUST(MODEL, model_ops, create),
    MUST(MODEL, model_ops, build),
    MUST(MODEL, model_ops, vocabulary),
    MUST(MODEL, model_ops, flops_per_token),
    MUST(DEVICE, device_ops, open),
    MUST(DEVICE, device_ops, close),
    MUST(DEVICE, device_ops, info),
    MUST(DEVICE, device_ops, reserve),
    MUST(DEVICE, device_ops, release),
    MUST(DEVICE, device_ops, copy_in),
    MUST(DEVICE, device_ops, copy_out),
    MUST(DEVICE, device_ops, enqueue),
    MUST(DEVICE, device_ops, events),
    MUST(DEVICE, device_ops, record),
    MUST(DEVICE, device_ops, wait),
    MUST(DEVICE, device_ops, synchronize),
    MUST(COMMUNICATOR, comm_ops, open),
    MUST(COMMUNICATOR, comm_ops, close),
    MUST(COMMUNICATOR, comm_ops, group),
    MUST(COMMUNICATOR, comm_ops, call),
    MUST(DATA, data_ops, open),
    MUST(DATA, data_ops, close),
    MUST(DATA, data_ops, vocabulary),
    MUST(TOKENIZER, tokenizer_ops, vocabulary),
    MUST(TOKENIZER, tokenizer_ops, bos),
    MUST(TOKENIZER, tokenizer_ops, eos),
    MUST(TOKENIZER, tokenizer_ops, encode),
    MUST(TOKENIZER, tokenizer_ops, decode),
    MUST(OPTIMIZER, optimizer_ops, build),
    MUST(LR_SCHEDULE, lr_schedule_ops, factor),
    MUST(AXIS, axis_ops, degree),
    MUST(HOOK, hook, call),
    MUST(OBJECTIVE, objective_ops, build),
    MUST(VERB, verb_ops, summary),
    MUST(VERB, verb_ops, run),
    MUST(ORDER, order_ops, microbatch_size),
    MUST(ORDER, order_ops, order),
    MUST(TRANSPORT, transport, call),
    MUST(READER, reader_ops, suffixes),
    MUST(READER, reader_ops, read),
    MUST(BESIDE, beside_ops, streams),
    MUST(BESIDE, beside_ops, open),
    MUST(BESIDE, beside_ops, close),
    MUST(BESIDE, beside_ops, read),
};

/* A struct that is too short is refused by what reads it. */
static bool is_set(const void *ops, size_t at)
{
    void *pointer;

    if (*(const size_t *)ops < at + sizeof(pointer))
        return true;
    memcpy(&pointer, (const char *)ops + at, sizeof(pointer));
    return pointer;
}

/* It reads text, or streams of its own. */
static int check_data(const struct ct_offer *o)
{
    const struct ct_data_ops *ops = o->ops;
    size_t all = offsetof(struct ct_data_ops, read_streams) + sizeof(ops->read_streams);
    const char *lacking = NULL;

    if (ops->size >= all && (ops->streams || ops->read_streams))
        lacking = !ops->streams ? "streams" : !ops->read_streams ? "read_streams" : NULL;
    else if (!is_set(ops, offsetof(struct ct_data_ops, read)))
        lacking = "read";
    else if (!is_set(ops, offsetof(struct ct_data_ops, has_documents)))
        lacking = "has_documents";
    return lacking ? ct_fail(CT_EINVAL, "the %s %s: its `%s` is not set", ct_kind_name(o->kind),
                             o->name, lacking)
                   : 0;
}

/* A format of weights has all of its functions. */
#define PART(field)                                                                                \
    {                                                                                              \
        offsetof(struct ct_weights_ops, field), #field                                             \
    }

static int check_model(const struct ct_offer *o)
{
    static const struct {
        size_t at;
        const char *field;
    } parts[] = {PART(load), PART(save), PART(identify)};
    const struct ct_model_ops *ops = o->ops;
    size_t all = offsetof(struct ct_model_ops, weights) + sizeof(ops->weights);
    const struct ct_weights_ops *w = ops->size >= all ? ops->weights : NULL;

    for (size_t i = 0; w && i < CT_COUNT(parts); i++)
        if (!is_set(w, parts[i].at))
            return ct_fail(CT_EINVAL, "the %s %s: `%s` of its `weights` is not set",
                           ct_kind_name(o->kind), o->name, parts[i].field);
    return 0;
}

static int check_offer(const struct ct_offer *o)
{
    const struct ct_optimizer_ops *optimizer = o->ops;

    if ((int)o->kind < 0 || o->kind >= CT_KIND_COUNT)
        return ct_fail(CT_EINVAL, "offers a thing of unknown kind %d", (int)o->kind);
    if (!o->name || !o->ops)
        return ct_fail(CT_EINVAL, "offers a %s without a name or without content",
                       ct_kind_name(o->kind));
    for (size_t i = 0; i < CT_COUNT(musts); i++)
        if (musts[i].kind == o->kind && !is_set(o->ops, musts[i].at))
            return ct_fail(CT_EINVAL, "the %s %s: its `%s` is not set", ct_kind_name(o->kind),
                           o->name, musts[i].field);
    if (o->kind == CT_OPTIMIZER && !optimizer->takes && !optimizer->lr)
        return ct_fail(CT_EINVAL, "the optimizer %s: neither `lr` nor `takes` is set", o->name);
    if (o->kind == CT_DATA)
        return check_data(o);
    return o->kind == CT_MODEL ? check_model(o) : 0;
}

/* ---- options ---- */

static bool is_name(const char *name)
{
    for (const char *c = name; *c; c++)
        if (!islower((unsigned char)*c) && !isdigit((unsigned char)*c) && *c != '_')
            return false;
    return *name;
}

static int check_options(const struct ct_plugin *p)
{
    for (const struct ct_option *o = p->options; o && o->name; o++) {
        if (!is_name(o->name))
            return ct_fail(CT_EINVAL, "option \"%s\": a name has small letters, digits and '_'",
                           o->name);
        if (ct_option_find(p->options, o->name) != o)
            return ct_fail(CT_EINVAL, "it has two options called %s", o->name);
        if (!o->doc)
            return ct_fail(CT_EINVAL, "option %s has no line that says what it is", o->name);
        if (o->offset >= p->config_size)
            return ct_fail(CT_EINVAL, "option %s lies behind the %zu bytes of its config", o->name,
                           p->config_size);
    }
    if (p->brings && !ct_option_find(p->options, p->brings))
        return ct_fail(CT_EINVAL, "it brings in what its option %s names, and has no such option",
                       p->brings);
    return 0;
}

int ct_plugin_check(const struct ct_plugin *plugin)
{
    int rc = check_options(plugin);

    for (const struct ct_offer *o = plugin->offers; rc == 0 && o->kind != CT_NOTHING; o++)
        rc = check_offer(o);
    return rc;
}
