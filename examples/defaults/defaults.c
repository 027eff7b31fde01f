/*
 * A verb: `ctitan defaults PLUGIN` prints the section of a recipe in which every option of the
 * plugin has its default, with what it means: the beginning of a recipe.
 */
#include <stdio.h>

#include <ctitan/plugins.h>
#include <ctitan/text.h>
#include <ctitan/verb.h>

static void print_option(const struct ct_option *option, bool brief)
{
    char range[256];

    ct_option_range(option, range, sizeof(range));
    if (!brief)
        printf("; %s (%s%s%s)\n", option->doc, ct_option_type_name(option->type),
               *range ? ", " : "", range);
    if (option->fallback)
        printf("%s = %s\n", option->name, option->fallback);
    else
        printf("; %s must be set\n", option->name);
}

struct request {
    const char *plugin;
    bool brief;
};

static const struct ct_argument arguments[] = {
    CT_ARG_WORD(struct request, plugin, "PLUGIN", "Its name, or its file"),
    CT_ARG_FLAG(struct request, brief, "brief", 'b', "Leave out what the options mean"),
    {0}};

static int run(int argc, char **argv)
{
    const struct ct_plugin *plugin;
    struct ct_arena arena = {0};
    struct request r = {0};
    int rc = ct_arguments_parse(arguments, argc, argv, &arena, &r);

    if (rc == 0)
        rc = ct_plugin_describe(r.plugin, &plugin);
    if (rc == 0)
        printf("; %s\n[%s]\n", plugin->summary, plugin->name);
    for (const struct ct_option *o = rc == 0 ? plugin->options : NULL; o && o->name; o++)
        print_option(o, r.brief);
    ct_arena_finish(&arena);
    return rc;
}

static const struct ct_verb_ops verb = {
    .size = sizeof(struct ct_verb_ops),
    .summary = "print a plugin's section of a recipe",
    .run = run,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan defaults adamw", "ctitan defaults adamw --brief")};

CT_PLUGIN(.name = "defaults", .version = "1.0", .summary = "Verb: a plugin's section of a recipe",
          .offers = CT_OFFERS({CT_VERB, "defaults", &verb}));
