/*
 * Needs of plugins that a run lacks, and the plugins that have them; and plugins whose bits differ
 * from run to run.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugins.h>

size_t ct_plugin_providers(struct ct_arena *scratch, const char *what, const char ***names)
{
    size_t count = ct_plugin_names(scratch, names), kept = 0;
    const struct ct_plugin *p;

    for (size_t i = 0; i < count; i++) {
        if (ct_plugin_describe((*names)[i], &p) == 0 && ct_plugin_has(p, what))
            (*names)[kept++] = (*names)[i];
    }
    return kept;
}

const char *ct_plugin_list(struct ct_arena *scratch, const char *const *names, size_t count)
{
    const char *list = "";

    for (size_t i = 0; i < count; i++)
        list = ct_arena_printf(scratch, "%s%s%s", list, i ? ", " : "", names[i]);
    return list;
}

/* A plugin that is not installed is not asked what it offers: often a thing of its own name. */
static int not_built(struct ct_arena *scratch, const char *subject, const char *thing,
                     const char *name)
{
    const struct ct_absent *absent;
    size_t count = ct_plugin_absent(scratch, &absent);

    for (size_t i = 0; i < count; i++)
        if (!strcmp(absent[i].name, name))
            return ct_fail(CT_ENOENT, "%s %s, and plugin %s is not installed: %s", subject, thing,
                           name, absent[i].why);
    return 0;
}

/* Words about files of plugins whose descriptor is not read: they may have it. */
static const char *unreadable(struct ct_arena *scratch)
{
    const char **names, *text = "";
    size_t count = ct_plugin_names(scratch, &names), found = 0;
    const struct ct_plugin *p;

    for (size_t i = 0; i < count; i++)
        if (ct_plugin_describe(names[i], &p) < 0 && !found++)
            text = ct_arena_printf(scratch, "; plugin %s, which may have one, cannot be read: %s",
                                   names[i], ct_error_message());
    return found < 2 ? text
                     : ct_arena_printf(scratch, "%s (and so %zu more: `ctitan plugins` lists them)",
                                       text, found - 1);
}

/* No plugin offers what: "model:lama". The message names plugins that offer another of its kind. */
static int offered_by_none(struct ct_arena *scratch, const char *subject, const char *thing,
                           const char *what)
{
    int kind = (int)strcspn(what, ":");
    const char **names;
    size_t count =
        ct_plugin_providers(scratch, ct_arena_printf(scratch, "%.*s:*", kind, what), &names);
    int rc = not_built(scratch, subject, thing, what + kind + 1);

    if (rc < 0)
        return rc;
    if (!count)
        return ct_fail(CT_ENOENT, "%s %s, and no plugin that was found has one%s", subject, thing,
                       unreadable(scratch));
    return ct_fail(CT_ENOENT, "%s %s, and no plugin that was found has it; with a %.*s: %s%s",
                   subject, thing, kind, what, ct_plugin_list(scratch, names, count),
                   ct_did_you_mean(what + kind + 1, names, count));
}

bool ct_plugin_is_registered(const char *name)
{
    for (size_t i = 0; ct_plugin_at(i); i++)
        if (!strcmp(ct_plugin_at(i)->name, name))
            return true;
    return false;
}

int ct_plugin_lacking(const char *subject, const char *what)
{
    const char *colon = strchr(what, ':');
    struct ct_arena scratch = {0};
    const char **names, *thing = what;
    size_t count = ct_plugin_providers(&scratch, what, &names);
    int rc;

    if (colon && !strcmp(colon, ":*"))
        thing = ct_arena_printf(&scratch, "%s %.*s", strchr("aeiou", *what) ? "an" : "a",
                                (int)(colon - what), what);
    else if (colon)
        thing = ct_arena_printf(&scratch, "the %.*s %s", (int)(colon - what), what, colon + 1);
    else
        thing = ct_arena_printf(&scratch, "plugin %s", what);
    if (count)
        rc = ct_fail(CT_ENOENT, "%s %s: add %s%s to [plugins] load", subject, thing,
                     count > 1 ? "one of " : "", ct_plugin_list(&scratch, names, count));
    else if (colon)
        rc = offered_by_none(&scratch, subject, thing, what);
    else
        rc = ct_fail(CT_ENOENT, "%s %s, and no plugin that was found has it", subject, thing);
    ct_arena_finish(&scratch);
    return rc;
}

static bool satisfied(const char *what)
{
    const struct ct_plugin *p;

    for (size_t i = 0; (p = ct_plugin_at(i)); i++)
        if (ct_plugin_has(p, what))
            return true;
    return false;
}

int ct_plugin_check_all(void)
{
    const struct ct_plugin *p;
    char subject[128];

    for (size_t i = 0; (p = ct_plugin_at(i)); i++)

        for (const char *const *what = p->needs; what && *what; what++) {
            if (satisfied(*what))
                continue;
            snprintf(subject, sizeof(subject), "plugin %s needs", p->name);
            ct_plugin_lacking(subject, *what);
            return CT_ECONFIG;
        }
    return 0;
}

int ct_plugin_check_repeatable(void)
{
    const struct ct_plugin *p;
    const char *why = NULL;

    for (size_t i = 0; (p = ct_plugin_at(i)) && !why; i++)
        if (p->varies && (why = p->varies()))
            ct_fail(CT_ECONFIG, "[training] deterministic = true: plugin %s: %s", p->name, why);
    return why ? CT_ECONFIG : 0;
}
