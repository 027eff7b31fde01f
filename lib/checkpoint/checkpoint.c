/*
 * The format of checkpoints, found among plugins.
 */
#include <ctitan/error.h>
#include <ctitan/lib/checkpoint.h>
#include <ctitan/plugins.h>

#define WHAT "checkpoint format:*"

static int find_plugin(struct ct_arena *scratch, const char *subject,
                       const struct ct_plugin **plugin)
{
    const char **names;
    size_t count = ct_plugin_providers(scratch, WHAT, &names);

    if (!count)
        return ct_plugin_lacking(subject, WHAT);
    if (count > 1)
        return ct_fail(CT_ECONFIG,
                       "%s a checkpoint format, and %s have one each: leave one of them in the "
                       "folders of plugins",
                       subject, ct_plugin_list(scratch, names, count));
    return ct_plugin_find(names[0], plugin);
}

int ct_checkpoints_find(const char *subject, const struct ct_checkpoint_ops **ops)
{
    struct ct_arena scratch = {0};
    const struct ct_plugin *plugin = NULL;
    const void *widened = NULL;
    int rc = find_plugin(&scratch, subject, &plugin);

    for (const struct ct_offer *o = rc == 0 ? plugin->offers : NULL; o && o->kind; o++)
        if (o->kind == CT_CHECKPOINTS)
            rc = ct_struct_widen(o->ops, sizeof(**ops), sizeof(**ops), &widened);
    *ops = widened;
    ct_arena_finish(&scratch);
    return rc;
}
