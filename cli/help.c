#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/recipe.h>
#include <ctitan/lib/text.h>
#include <ctitan/model.h>
#include <ctitan/op.h>
#include <ctitan/lib/plugin.h>

#include "cli.h"

static void print_options(const struct ct_option *options)
{
    for (const struct ct_option *o = options; o && o->name; o++) {
        char range[256];

        ct_option_range(o, range, sizeof(range));
        printf("\n  %s = %s\n", o->name, o->fallback ? o->fallback : "(must be set)");
        printf("      %s.\n", o->doc);
        printf("      %s%s%s\n", ct_option_type_name(o->type), *range ? ": " : "", range);
    }
}

static bool help_verb(const char *name)
{
    for (const struct verb *v = verbs; v->name; v++) {
        if (strcmp(v->name, name))
            continue;
        printf("usage: ctitan %s %s\n\n%s: %s\n", v->name, v->usage, v->name, v->summary);
        return true;
    }
    return false;
}

/* "ops" lists the op types of the core and of lib; a plugin's own are not loaded here. */
static bool help_ops(const char *name)
{
    const struct ct_op_type *type;

    if (strcmp(name, "ops"))
        return false;
    for (size_t i = 0; (type = ct_op_at(i)); i++)
        printf("%-26s %s\n", type->name, type->summary);
    printf("\n`ctitan help OP` shows the signature and the attributes of one.\n");
    return true;
}

static int print_op(const struct ct_op_type *type)
{
    printf("op %s: %s\n\n  %s\n", type->name, type->summary, type->signature);
    print_options(type->attrs);
    return 0;
}

static bool help_section(const char *name)
{
    const struct ct_recipe_section *s = ct_recipe_section_find(name);

    if (s) {
        printf("[%s]: %s\n", s->name, s->summary);
        print_options(s->options);
        return true;
    }
    if (strcmp(name, "plugins"))
        return false;
    printf("[plugins]: Which plugins are loaded\n\n  load = NAME, NAME, ...\n      The plugins of "
           "the run. Each plugin's options are in the section with its name.\n      `ctitan "
           "plugins` lists all installed plugins.\n");
    return true;
}

/* Fails if name is near that of a verb or of a section of the core. */
static int name_nearest(const char *name)
{
    const char *names[64], *near;
    size_t count = 0;

    for (const struct verb *v = verbs; v->name && count < CT_COUNT(names); v++)
        names[count++] = v->name;
    for (size_t i = 0; ct_recipe_section_at(i)->name && count < CT_COUNT(names); i++)
        names[count++] = ct_recipe_section_at(i)->name;
    near = ct_nearest(name, names, count);
    return near ? ct_fail(CT_ECONFIG, "no verb or section %s; did you mean %s?", name, near) : 0;
}

static int help_plugin(const char *name)
{
    const struct ct_plugin *plugin;
    char path[PATH_MAX];
    int rc = ct_plugin_path(name, path, sizeof(path));

    if (rc < 0)
        return name_nearest(name) < 0 ? CT_ECONFIG
                                      : ct_context(CT_ECONFIG, "no verb or section %s", name);
    rc = ct_plugin_describe(path, &plugin);
    if (rc < 0)
        return rc;
    printf("[%s]: %s\nplugin %s %s, %s\n", plugin->name, plugin->summary, plugin->name,
           plugin->version, path);
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        printf("  offers %s %s\n", ct_kind_name(o->kind), o->name);
    for (const char *const *r = plugin->needs; r && *r; r++)
        printf("  needs %s\n", *r);
    for (const char *const *c = plugin->conflicts; c && *c; c++)
        printf("  conflicts with %s\n", *c);
    print_options(plugin->options);
    return 0;
}

static void list_plugins(void)
{
    struct ct_arena arena = {0};
    const char **names;
    size_t count = ct_plugin_names(&arena, &names);

    for (size_t i = 0; i < count; i++)
        printf("%s%s", i ? ", " : "", names[i]);
    printf("%s\n", count ? "" : "none found");
    ct_arena_finish(&arena);
}

static int print_plugin_verb(const struct plugin_verb *verb)
{
    printf("usage: ctitan %s %s\n\n%s: %s\n", verb->name, verb->ops->usage, verb->name,
           verb->ops->summary);
    if (strcmp(verb->name, verb->plugin) != 0)
        return 0;
    printf("\n");
    return help_plugin(verb->plugin);
}

/* 1: help was shown; 0: no plugin has the verb. */
static int help_plugin_verb(const char *name)
{
    const struct plugin_verb *verb;
    struct ct_arena arena = {0};
    struct plugin_verbs all;
    int rc;

    find_plugin_verbs(&arena, &all);
    rc = find_plugin_verb(&all, name, &verb);
    if (rc == 0 && verb)
        rc = print_plugin_verb(verb) < 0 ? CT_EINVAL : 1;
    ct_arena_finish(&arena);
    return rc;
}

static void print_plugin_verbs(FILE *out)
{
    struct ct_arena arena = {0};
    struct plugin_verbs all;

    find_plugin_verbs(&arena, &all);
    for (size_t i = 0; i < all.count; i++)
        fprintf(out, "  %-9s %s (plugin %s)\n", all.verb[i].name, all.verb[i].ops->summary,
                all.verb[i].plugin);
    ct_arena_finish(&arena);
}

/* A plugin may have the name of an op. */
static int help_plugin_or_op(const char *name)
{
    const struct ct_op_type *type = ct_op_find(name);
    int rc = help_plugin(name);

    return rc < 0 && type ? print_op(type) : rc;
}

int verb_help(int argc, char **argv)
{
    if (argc > 2)
        return ct_fail(CT_ECONFIG, "help takes one name, but there is also %s", argv[2]);
    if (argc == 2 && help_page(argv[1]))
        return 0;
    if (argc == 2) {
        /* A verb and a section may have the same name: show both. */
        bool verb = help_verb(argv[1]);
        bool section = help_section(argv[1]) || help_ops(argv[1]);
        int brought = verb ? 1 : help_plugin_verb(argv[1]);

        if (brought < 0)
            return brought;
        return brought || section || !strcmp(argv[1], "help") ? 0 : help_plugin_or_op(argv[1]);
    }
    print_overview(stdout);
    print_plugin_verbs(stdout);
    printf(
        "\n`ctitan help VERB` shows a verb's arguments, `ctitan help ops` lists the op types.\n");
    printf("`ctitan help SECTION` shows the options of one section of a recipe:\n\n");
    for (size_t i = 0; ct_recipe_section_at(i)->name; i++)
        printf("  [%s]%*s %s\n", ct_recipe_section_at(i)->name,
               13 - (int)strlen(ct_recipe_section_at(i)->name), "",
               ct_recipe_section_at(i)->summary);
    printf("  [plugins]       Which plugins are loaded\n\nand of each plugin: ");
    list_plugins();
    return 0;
}
