/*
 * The plugins loaded in this process, and their offers.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/op.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/plugins.h>

static struct ct_arena arena; /* process-wide */
static const struct ct_plugin **plugins;
static size_t plugin_count, plugin_room;

static const char *const kind_names[] = {"nothing",
#define X(id, name, type) name,
                                         CT_KINDS(X)
#undef X
};

const char *ct_kind_name(enum ct_kind kind)
{
    return kind_names[kind];
}

/* ---- what is loaded ---- */

const struct ct_plugin *ct_plugin_at(size_t index)
{
    return index < plugin_count ? plugins[index] : NULL;
}

static bool offers(const struct ct_plugin *p, enum ct_kind kind, const char *name)
{
    for (const struct ct_offer *o = p->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == kind && (!name || !strcmp(o->name, name)))
            return true;
    return false;
}

/* Several plugins may offer kernels, their code and transports for one device; any other offer is
 * unique by kind and name. */
static bool is_unique(enum ct_kind kind)
{
    return kind != CT_KERNELS && kind != CT_TRANSPORT && kind != CT_CODE;
}

static int check_new_offers(const struct ct_plugin *p)
{
    for (const struct ct_offer *o = p->offers; o->kind != CT_NOTHING; o++)
        for (size_t i = 0; is_unique(o->kind) && i < plugin_count; i++)
            if (offers(plugins[i], o->kind, o->name))
                return ct_fail(CT_ECONFIG,
                               "plugins %s and %s both offer the %s %s: take one of them out of "
                               "[plugins] load",
                               plugins[i]->name, p->name, kind_names[o->kind], o->name);
    return 0;
}

static bool gives(const struct ct_plugin *p, const char *result)
{
    for (const struct ct_offer *o = p->offers; o->kind != CT_NOTHING; o++) {
        const struct ct_transform *t = o->kind == CT_TRANSFORM ? o->ops : NULL;

        for (const char *const *name = t ? t->gives : NULL; name && *name; name++)
            if (!strcmp(*name, result))
                return true;
    }
    return false;
}

bool ct_plugin_has(const struct ct_plugin *p, const char *what)
{
    const char *colon = strchr(what, ':');

    if (!colon)
        return !strcmp(p->name, what);
    if (!strncmp(what, "result:", strlen("result:")))
        return gives(p, colon + 1);
    for (const struct ct_offer *o = p->offers; o->kind != CT_NOTHING; o++) {
        const char *kind = kind_names[o->kind];

        if (strlen(kind) == (size_t)(colon - what) && !memcmp(kind, what, strlen(kind)) &&
            (!strcmp(colon + 1, "*") || !strcmp(colon + 1, o->name)))
            return true;
    }
    return false;
}

static int clash(const struct ct_plugin *p, const struct ct_plugin *other)
{
    for (const char *const *what = p->conflicts; what && *what; what++)
        if (ct_plugin_has(other, *what))
            return ct_fail(CT_ECONFIG,
                           "plugins %s and %s cannot be used together: take one of them out of "
                           "[plugins] load",
                           p->name, other->name);
    return 0;
}

static int check_conflicts(const struct ct_plugin *p)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < plugin_count; i++) {
        if (!strcmp(plugins[i]->name, p->name))
            return ct_fail(CT_ECONFIG, "two plugins are called %s", p->name);
        rc = clash(p, plugins[i]);
        if (rc == 0)
            rc = clash(plugins[i], p);
    }
    return rc;
}

static int register_kernels(const struct ct_offer *offer)
{
    int rc = 0;

    for (const struct ct_kernel *k = offer->ops; rc == 0 && k->op; k++)
        rc = ct_kernel_register(offer->name, k);
    return rc;
}

static int register_offers(const struct ct_plugin *p)
{
    int rc = 0;

    for (const struct ct_offer *o = p->offers; rc == 0 && o->kind != CT_NOTHING; o++) {
        if (o->kind == CT_OP)
            rc = ct_op_register(o->ops);
        else if (o->kind == CT_KERNELS)
            rc = register_kernels(o);
        else if (o->kind == CT_HOOK)
            rc = ct_hook_register(o->ops, ct_arena_printf(&arena, "plugin %s", p->name));
    }
    return rc < 0 ? ct_context(rc, "plugin %s", p->name) : 0;
}

int ct_plugin_register(const struct ct_plugin *plugin)
{
    int rc;

    for (size_t i = 0; i < plugin_count; i++)
        if (plugins[i] == plugin)
            return 0;
    rc = check_conflicts(plugin);
    if (rc == 0)
        rc = check_new_offers(plugin);
    if (rc == 0)
        rc = register_offers(plugin);
    if (rc < 0)
        return rc;
    plugins = ct_arena_grow(&arena, plugins, &plugin_room, plugin_count + 1, sizeof(*plugins));
    plugins[plugin_count++] = plugin;
    return 0;
}

/* ---- offers ---- */

const struct ct_offer *ct_offer_at(enum ct_kind kind, size_t index)
{
    for (size_t i = 0; i < plugin_count; i++)
        for (const struct ct_offer *o = plugins[i]->offers; o->kind != CT_NOTHING; o++)
            if (o->kind == kind && index-- == 0)
                return o;
    return NULL;
}

int ct_offer_find(enum ct_kind kind, const char *name, const struct ct_offer **offer)
{
    const struct ct_offer *found = NULL, *o;
    char what[128];

    for (size_t i = 0; (o = ct_offer_at(kind, i)); i++) {
        if (name && strcmp(o->name, name))
            continue;
        if (found)
            return ct_fail(CT_ECONFIG,
                           "%s and %s are both loaded, and this run takes one %s: take the other "
                           "out of [plugins] load",
                           found->name, o->name, kind_names[kind]);
        found = o;
    }
    if (found) {
        *offer = found;
        return 0;
    }
    snprintf(what, sizeof(what), "%s:%s", kind_names[kind], name ? name : "*");
    return ct_plugin_lacking("this run needs", what);
}
