/*
 * `ctitan check`: what a plugin declares: what it needs, the phase and the properties of
 * transforms, the events of hooks. Nothing of it is called here.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/pass.h>
#include <ctitan/plugins.h>

#include "check.h"
#include "cli.h"

/* ---- what a plugin needs ---- */

/* "KIND:NAME" and "KIND:*" name a kind. */
int check_needs(const struct check *c)
{
    for (const char *const *need = c->plugin->needs; need && *need; need++) {
        const char *colon = strchr(*need, ':');
        bool known = !colon;

        for (int kind = 0; !known && kind < CT_KIND_COUNT; kind++)
            known = strlen(ct_kind_name(kind)) == (size_t)(colon - *need) &&
                    !strncmp(ct_kind_name(kind), *need, (size_t)(colon - *need));
        if (!known)
            return ct_fail(CT_EINVAL, "it needs \"%s\", and there is no kind of offer %.*s", *need,
                           (int)(colon - *need), *need);
    }
    return 0;
}

/* ---- transforms ---- */

static bool lists(const char *const *names, const char *name)
{
    for (; names && *names; names++)
        if (!strcmp(*names, name))
            return true;
    return false;
}

static bool gives(const struct ct_plugin *plugin, const char *property)
{
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == CT_TRANSFORM &&
            lists(((const struct ct_transform *)o->ops)->gives, property))
            return true;
    return false;
}

/* Does any transform of ctitan, of the plugin or of one in the folders give the property? */
static bool is_given(struct check *c, const char *property)
{
    static const char *const core[] = {"gradients", "collectives", "listed", NULL};
    bool given = lists(core, property) || gives(c->plugin, property);
    const struct ct_plugin *plugin;
    const char **names;
    size_t count;

    for (size_t i = 0; !given && ct_transform_at(i); i++)
        given = lists(ct_transform_at(i)->gives, property);
    for (size_t i = 0; !given && ct_plugin_at(i); i++)
        given = gives(ct_plugin_at(i), property);
    count = given ? 0 : ct_plugin_names(&c->arena, &names);
    for (size_t i = 0; !given && i < count; i++)
        given = ct_plugin_describe(names[i], &plugin) == 0 && gives(plugin, property);
    return given;
}

int check_transform(struct check *c, const struct ct_offer *offer)
{
    const struct ct_transform *t = offer->ops;

    if ((int)t->phase < 0 || t->phase > CT_PHASE_FUSE)
        return ct_fail(CT_EINVAL, "its phase is %d, which is none of enum ct_phase", (int)t->phase);
    for (const char *const *need = t->needs; need && *need; need++)
        if (!is_given(c, *need))
            return ct_fail(CT_EINVAL,
                           "it needs \"%s\", which no transform of ctitan or of a plugin in the "
                           "folders gives; docs/plugins.md lists the properties",
                           *need);
    check_result(c, 0, "transform %s: phase %s", offer->name, ct_phase_name(t->phase));
    return 0;
}

/* ---- hooks ---- */

int check_hook(struct check *c, const struct ct_offer *offer)
{
    const struct ct_hook *hook = offer->ops;
    int count = 0;

    for (int e = 0; e < 32; e++)
        count += hook->events >> e & 1;
    if (!hook->events)
        return ct_fail(CT_EINVAL, "its `events` are 0, so it is never called");
    if (hook->events >> CT_EVENT_COUNT)
        return ct_fail(CT_EINVAL, "its `events` have bits that are no event: %#x",
                       hook->events >> CT_EVENT_COUNT << CT_EVENT_COUNT);
    check_result(c, 0, "hook %s: %d events", offer->name, count);
    return 0;
}
