/*
 * What plugins need and a run lacks, and which plugins have it.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/plugin.h>

/* "bytes, bpe": the plugins in the folders that are, or offer, what. It loads them, as the caller
   is about to fail anyway. */
static const char *providers(struct ct_arena *scratch, const char *what)
{
    const char **names, *list = "";
    size_t count = ct_plugin_names(scratch, &names);
    const struct ct_plugin *p;
    char path[PATH_MAX];

    for (size_t i = 0; i < count; i++) {
        if (ct_plugin_path(names[i], path, sizeof(path)) < 0 || ct_plugin_open(path, &p) < 0)
            continue;
        if (ct_plugin_has(p, what))
            list = ct_arena_printf(scratch, "%s%s%s", list, *list ? ", " : "", names[i]);
    }
    return list;
}

int ct_plugin_lacking(const char *subject, const char *what)
{
    const char *colon = strchr(what, ':');
    struct ct_arena scratch = {0};
    const char *list = providers(&scratch, what);
    const char *thing = what;
    int rc;

    if (colon && !strcmp(colon, ":*"))
        thing = ct_arena_printf(&scratch, "%s %.*s", strchr("aeiou", *what) ? "an" : "a",
                                (int)(colon - what), what);
    else if (colon)
        thing = ct_arena_printf(&scratch, "the %.*s %s", (int)(colon - what), what, colon + 1);
    else
        thing = ct_arena_printf(&scratch, "plugin %s", what);
    if (*list)
        rc = ct_fail(CT_ENOENT, "%s %s: add %s%s to [plugins] load", subject, thing,
                     strchr(list, ',') ? "one of " : "", list);
    else if (colon)
        rc = ct_fail(
            CT_ENOENT, "%s %s, and no plugin that was found has it; with a %.*s: %s", subject,
            thing, (int)(colon - what), what,
            providers(&scratch, ct_arena_printf(&scratch, "%.*s:*", (int)(colon - what), what)));
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
