#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/rates.h>
#include <ctitan/model.h>
#include <ctitan/op.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>
#include <ctitan/text.h>

#include "cli.h"

/* "ops" lists the op types of the core and of lib; a plugin's own are not loaded here. */
static bool help_ops(const char *name)
{
    const struct ct_op_type *type;

    if (strcmp(name, "ops"))
        return false;
    for (size_t i = 0; (type = ct_op_at(i)); i++)
        print_item(0, type->name, 28, type->summary);
    printf("\n`ctitan help OP` shows the signature and the attributes of one.\n");
    return true;
}

static int print_op(const struct ct_op_type *type)
{
    printf("op %s: %s\n\n  %s\n", type->name, type->summary, type->signature);
    print_option_list(type->attrs);
    return 0;
}

static bool help_section(const char *name)
{
    const struct ct_recipe_section *s = ct_recipe_section_find(name);

    if (s) {
        printf("[%s] of a recipe: ", s->name);
        print_sentence(s->summary);
        print_option_list(s->options);
        return true;
    }
    if (strcmp(name, "plugins"))
        return false;
    printf("[plugins] of a recipe: Which plugins are loaded.\n\n  load = NAME, NAME, ...\n"
           "      The plugins of the run. Each plugin's options are in the section with its\n"
           "      name. `ctitan plugins` lists all installed plugins.\n");
    return true;
}

/* Fails if name is near that of a verb or of a section of the core. */
static int name_nearest(const char *name)
{
    const char *names[64], *near;
    size_t count = 0;

    for (; verb_at(count) && count < CT_COUNT(names); count++)
        names[count] = verb_at(count)->name;
    for (size_t i = 0; ct_recipe_section_at(i)->name && count < CT_COUNT(names); i++)
        names[count++] = ct_recipe_section_at(i)->name;
    near = ct_nearest(name, names, count);
    return near ? ct_fail(CT_ECONFIG, "no verb or section %s; did you mean %s?", name, near) : 0;
}

/* The sizes of a model, from its descriptor. */
static void print_flavors(const struct ct_model_ops *ops)
{
    const char *at = ops->flavors;
    char count[32];

    for (; at && ((const struct ct_flavor *)at)->name; at += ops->flavor_size) {
        const struct ct_flavor *flavor = (const void *)at;

        printf("  flavor %-10s %18s parameters\n", flavor->name,
               ct_grouped(flavor->parameters, count));
    }
}

/* The families of decoders that the plugin builds by description. */
static void print_families(struct ct_arena *arena, const char *plugin)
{
    const char **names, *list;
    size_t count = ct_hf_families(arena, plugin, &names);

    if (!count)
        return;
    list = ct_arena_printf(arena,
                           "%s; [model] init_from chooses one by the model_type of its "
                           "config.json",
                           ct_plugin_list(arena, names, count));
    print_item(2, "families", 12, list);
}

static void print_models(struct ct_arena *arena, const struct ct_plugin *plugin)
{
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++) {
        if (o->kind != CT_MODEL)
            continue;
        print_flavors(o->ops);
        print_families(arena, plugin->name);
    }
}

/* A family's name is no plugin's: the one that builds it is explained. NULL: there is none. */
static const char *family_plugin(struct ct_arena *arena, const char *name)
{
    char plugin[64], path[PATH_MAX];

    if (ct_hf_family(name, path, sizeof(path)) < 0 ||
        ct_hf_plugin(name, plugin, sizeof(plugin)) < 0 || !strcmp(plugin, name))
        return NULL;
    printf("model_type %s is described by %s\n\n", name, path);
    return ct_arena_strdup(arena, plugin);
}

/* Kernels for one device may be offered several times. */
static bool is_offered_before(const struct ct_plugin *plugin, const struct ct_offer *offer)
{
    for (const struct ct_offer *o = plugin->offers; o < offer; o++)
        if (o->kind == offer->kind && !strcmp(o->name, offer->name))
            return true;
    return false;
}

/* There is no plugin of this name, and the failure says so. */
static int unknown_name(const char *name)
{
    struct ct_arena scratch = {0};
    const char *sections = ct_recipe_sections_of(&scratch, name);
    int rc;

    if (sections)
        rc = ct_fail(CT_ECONFIG,
                     "%s is an option in %s of a recipe: `ctitan help SECTION` explains it", name,
                     sections);
    else
        rc = name_nearest(name) < 0 ? CT_ECONFIG
                                    : ct_context(CT_ECONFIG, "no verb or section %s", name);
    ct_arena_finish(&scratch);
    return rc;
}

static int help_plugin(const char *name)
{
    const struct ct_plugin *plugin;
    struct ct_arena scratch = {0};
    char path[PATH_MAX];
    int rc = ct_plugin_path(name, path, sizeof(path));

    if (rc < 0)
        return unknown_name(name);
    rc = ct_plugin_describe(path, &plugin);
    if (rc < 0)
        return rc;
    print_item(0, ct_arena_printf(&scratch, "[%s]", plugin->name), (int)strlen(plugin->name) + 3,
               plugin->summary);
    printf("plugin %s %s\n  file %s\n", plugin->name, plugin->version, path);
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        if (!is_offered_before(plugin, o))
            printf("  offers %s %s\n", ct_kind_name(o->kind), o->name);
    for (const char *const *r = plugin->needs; r && *r; r++)
        printf("  needs %s\n", *r);
    for (const char *const *c = plugin->conflicts; c && *c; c++)
        printf("  conflicts with %s\n", *c);
    print_models(&scratch, plugin);
    if (plugin->options && plugin->options->name)
        print_option_list(plugin->options);
    else
        printf("  no options\n");
    ct_arena_finish(&scratch);
    return 0;
}

static int explain_plugin_verb(const struct plugin_verb *verb)
{
    print_plugin_verb(verb);
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
        rc = explain_plugin_verb(verb) < 0 ? CT_EINVAL : 1;
    ct_arena_finish(&arena);
    return rc;
}

static void print_plugin_verbs(void)
{
    struct ct_arena arena = {0};
    struct plugin_verbs all;

    find_plugin_verbs(&arena, &all);
    if (all.count)
        printf("\nVerbs of plugins:\n");
    for (size_t i = 0; i < all.count; i++)
        print_item(
            2, all.verb[i].name, 13,
            ct_arena_printf(&arena, "%s (%s)", all.verb[i].ops->summary, all.verb[i].plugin));
    ct_arena_finish(&arena);
}

/* A plugin may have the name of an op. */
static int help_plugin_or_op(const char *name)
{
    const struct ct_op_type *type = ct_op_find(name);
    struct ct_arena scratch = {0};
    char path[PATH_MAX];
    const char *plugin =
        ct_plugin_path(name, path, sizeof(path)) < 0 ? family_plugin(&scratch, name) : NULL;
    int rc = help_plugin(plugin ? plugin : name);

    ct_arena_finish(&scratch);
    return rc < 0 && type ? print_op(type) : rc;
}

/* ---- pages for man and shells ---- */

static void append(struct pages *p, struct page_list *list, struct page_entry entry)
{
    list->entry =
        ct_arena_grow(&p->arena, list->entry, &list->room, list->count + 1, sizeof(*list->entry));
    list->entry[list->count++] = entry;
}

static void append_plugin(struct pages *p, const struct ct_plugin *plugin)
{
    append(p, &p->plugins,
           (struct page_entry){
               .name = plugin->name, .summary = plugin->summary, .options = plugin->options});
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++) {
        const struct ct_verb_ops *v = o->ops;

        if (o->kind == CT_VERB)
            append(p, &p->verbs,
                   (struct page_entry){.name = o->name,
                                       .summary = v->summary,
                                       .usage = v->usage,
                                       .details = v->details,
                                       .arguments = v->arguments,
                                       .examples = v->examples});
    }
}

/* Plugins that cannot be read are left out. */
static void collect_pages(struct pages *p)
{
    const struct ct_plugin *plugin;
    const struct verb *v;
    const char **names;
    size_t count = ct_plugin_names(&p->arena, &names);

    for (size_t i = 0; (v = verb_at(i)); i++)
        append(p, &p->verbs,
               (struct page_entry){.name = v->name,
                                   .summary = v->summary,
                                   .details = v->details,
                                   .arguments = v->arguments,
                                   .examples = v->examples});
    for (size_t i = 0; ct_recipe_section_at(i)->name; i++) {
        const struct ct_recipe_section *s = ct_recipe_section_at(i);

        append(p, &p->sections,
               (struct page_entry){.name = s->name, .summary = s->summary, .options = s->options});
    }
    for (size_t i = 0; i < count; i++)
        if (ct_plugin_describe(names[i], &plugin) == 0)
            append_plugin(p, plugin);
}

struct request {
    struct ct_arena arena;
    const char *name;
    bool man, bash, zsh, fish;
};

static const struct ct_argument arguments[] = {
    CT_ARG_OPTIONAL(struct request, name, "NAME",
                    "A verb, a section of recipes, a plugin, a model, an op, or `ops`"),
    CT_ARG_FLAG(struct request, man, "man", 0, "Print the manual page"),
    CT_ARG_FLAG(struct request, bash, "bash", 0, "Print the completion for bash"),
    CT_ARG_FLAG(struct request, zsh, "zsh", 0, "Print the completion for zsh"),
    CT_ARG_FLAG(struct request, fish, "fish", 0, "Print the completion for fish"),
    {0}};

static int print_pages(const struct request *r)
{
    struct pages pages = {0};

    collect_pages(&pages);
    if (r->man)
        print_manual(&pages);
    if (r->bash)
        print_bash(&pages);
    if (r->zsh)
        print_zsh(&pages);
    if (r->fish)
        print_fish(&pages);
    ct_arena_finish(&pages.arena);
    return 0;
}

/* A verb and a section may have the same name: both are shown. */
static int help_name(const char *name)
{
    const struct verb *verb = verb_find(name);
    bool section;
    int offered;

    if (verb)
        print_verb(verb);
    if (verb && (ct_recipe_section_find(name) || !strcmp(name, "plugins")))
        printf("\n");
    section = help_section(name) || help_ops(name);
    offered = verb ? 1 : help_plugin_verb(name);
    if (offered < 0)
        return offered;
    return offered || section ? 0 : help_plugin_or_op(name);
}

static void print_all(void)
{
    struct ct_arena arena = {0};
    const char **names, *list = "";
    size_t count = ct_plugin_names(&arena, &names);

    printf("ctitan trains language models, on one process or many, as a recipe says: an INI\n"
           "file that lists plugins and their options.\n\nTo begin:\n"
           "  ctitan train recipes/quickstart.ini    trains a small model in a minute or two\n"
           "  ctitan help train                      explains a verb, like ctitan train -h\n\n");
    print_overview(stdout);
    print_plugin_verbs();
    printf("\nSections of a recipe; `ctitan help SECTION` shows options, defaults and ranges:\n");
    for (size_t i = 0; ct_recipe_section_at(i)->name; i++)
        print_item(2, ct_recipe_section_at(i)->name, 17, ct_recipe_section_at(i)->summary);
    print_item(2, "plugins", 17, "Which plugins are loaded");
    for (size_t i = 0; i < count; i++)
        list = ct_arena_printf(&arena, "%s%s%s", list, i ? ", " : "", names[i]);
    printf("\nPlugins; `ctitan help PLUGIN` shows what each offers, and sizes of models:\n");
    print_item(0, "", 2, count ? list : "none found: set CTITAN_PLUGIN_PATH");
    printf("\n`ctitan help ops` lists the op types, for authors of plugins.\n");
    ct_arena_finish(&arena);
}

static int help(int argc, char **argv)
{
    struct request r = {0};
    int rc = ct_arguments_parse(arguments, argc, argv, &r.arena, &r);

    if (rc == 0 && (r.man || r.bash || r.zsh || r.fish))
        rc = print_pages(&r);
    else if (rc == 0 && r.name)
        rc = help_name(r.name);
    else if (rc == 0)
        print_all();
    ct_arena_finish(&r.arena);
    return rc;
}

const struct verb verb_help = {
    .name = "help",
    .summary = "explain a verb, a section of recipes, a plugin, a model or an op",
    .run = help,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan help train", "ctitan help llama")};
