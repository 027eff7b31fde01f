/*
 * A verb: `ctitan defaults PLUGIN` prints the section of a recipe in which every option of the
 * plugin has its default, with what it means: the beginning of a recipe.
 */
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/lib/plugin.h>
#include <ctitan/lib/text.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

static void print_option(const struct ct_option *option)
{
    char range[256];

    ct_option_range(option, range, sizeof(range));
    printf("; %s (%s%s%s)\n", option->doc, ct_option_type_name(option->type), *range ? ", " : "",
           range);
    if (option->fallback)
        printf("%s = %s\n", option->name, option->fallback);
    else
        printf("; %s must be set\n", option->name);
}

static int run(int argc, char **argv)
{
    const struct ct_plugin *plugin;
    int rc;

    if (argc != 2)
        return ct_fail(CT_ECONFIG, "%s: expected one plugin", argv[0]);
    rc = ct_plugin_find(argv[1], &plugin);
    if (rc < 0)
        return rc;
    printf("; %s\n[%s]\n", plugin->summary, plugin->name);
    for (const struct ct_option *o = plugin->options; o && o->name; o++)
        print_option(o);
    return 0;
}

static const struct ct_verb_ops verb = {.size = sizeof(struct ct_verb_ops),
                                        .summary = "a plugin's section of a recipe",
                                        .usage = "PLUGIN",
                                        .run = run};

CT_PLUGIN(.name = "defaults", .version = "1.0", .summary = "Verb: a plugin's section of a recipe",
          .offers = CT_OFFERS({CT_VERB, "defaults", &verb}));
