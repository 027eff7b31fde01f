/*
 * The settings of a recipe, and the changes that the command line makes to them.
 */
#include <jansson.h>
#include <string.h>

#include <ctitan/error.h>

#include "recipe/settings.h"

#define ON_COMMAND_LINE "--set" /* the source of such a setting */

/* ---- settings ---- */

void ct_recipe_add_section(struct ct_recipe *recipe, const char *name, const char *source)
{
    recipe->sections = ct_arena_grow(recipe->arena, recipe->sections, &recipe->section_room,
                                     recipe->section_count + 1, sizeof(*recipe->sections));
    recipe->sections[recipe->section_count++] =
        (struct ct_setting){.section = name, .source = source};
}

void ct_recipe_add(struct ct_recipe *recipe, const char *section, const char *key,
                   const char *value, const char *source)
{
    recipe->settings = ct_arena_grow(recipe->arena, recipe->settings, &recipe->room,
                                     recipe->count + 1, sizeof(*recipe->settings));
    recipe->settings[recipe->count++] =
        (struct ct_setting){.section = ct_arena_strdup(recipe->arena, section),
                            .key = ct_arena_strdup(recipe->arena, key),
                            .value = value,
                            .source = source};
}

const struct ct_setting *ct_recipe_section(const struct ct_recipe *recipe, const char *name)
{
    for (size_t i = 0; i < recipe->section_count; i++)
        if (!strcmp(recipe->sections[i].section, name))
            return &recipe->sections[i];
    return NULL;
}

struct ct_setting *ct_recipe_find(const struct ct_recipe *recipe, const char *section,
                                  const char *key)
{
    for (size_t i = 0; i < recipe->count; i++)
        if (!strcmp(recipe->settings[i].section, section) && !strcmp(recipe->settings[i].key, key))
            return &recipe->settings[i];
    return NULL;
}

const char *ct_recipe_get(const struct ct_recipe *recipe, const char *section, const char *key)
{
    const struct ct_setting *setting = ct_recipe_find(recipe, section, key);

    return setting ? setting->value : NULL;
}

const char *ct_recipe_source(const struct ct_recipe *recipe, const char *section, const char *key)
{
    const struct ct_setting *setting = recipe ? ct_recipe_find(recipe, section, key) : NULL;

    return setting ? setting->source : NULL;
}

bool ct_recipe_overrides(const struct ct_recipe *recipe, const char *section, const char *key)
{
    const char *source = ct_recipe_source(recipe, section, key);

    return source && !strcmp(source, ON_COMMAND_LINE);
}

/* A JSON string is UTF-8. */
bool ct_recipe_is_utf8(const char *text)
{
    json_t *string = json_string(text);

    json_decref(string);
    return string;
}

/* Length of the section in "section.key": up to the last dot before the value, since a section's
   name may have dots; without a dot, that of all. In "stage.2.adamw.lr" the key has one. */
static size_t section_length(const char *name)
{
    size_t whole = strcspn(name, "="), length = whole;

    if (ct_recipe_is_stage(name)) {
        length = strcspn(name, ".") + 1;
        length += strcspn(name + length, ".=");
        return length < whole ? length : whole;
    }
    while (length && name[length] != '.')
        length--;
    return length ? length : whole;
}

/* "section.key=value" */
struct assignment {
    size_t section, key; /* lengths */
    const char *value;
    size_t length, quoted; /* of the value; bytes of it that are in quotes */
};

static int divide(const struct ct_recipe *recipe, const char *text, struct assignment *a)
{
    a->section = section_length(text);
    if (text[a->section] == '=' && ct_recipe_hint_assignment(recipe, text) < 0)
        return CT_ECONFIG;
    a->key = text[a->section] == '.' ? strcspn(text + a->section + 1, "=") : 0;
    if (!a->section || !a->key || !text[a->section + 1 + a->key])
        return ct_fail(CT_ECONFIG, "--set %.80s: expected section.key=value", text);
    a->value = text + a->section + a->key + 2;
    a->value += strspn(a->value, " \t");
    a->length = strlen(a->value);
    while (a->length && ct_recipe_is_space(a->value[a->length - 1]))
        a->length--;
    a->quoted = ct_recipe_quoted(a->value, a->length);
    return 0;
}

/* Whether a recipe's file could have the same. */
static int check_assignment(const char *text, const struct assignment *a)
{
    size_t plain = a->quoted ? a->quoted : ct_recipe_without_comment(a->value, a->length);
    const char *wrong = ct_recipe_misquoted(a->value, a->length, false, false);

    if (strlen(text) > 3900 || strpbrk(a->value, "\n\r") || plain < a->length)
        return ct_fail(CT_ECONFIG,
                       "--set %.80s: a value has one line of at most 3900 characters, and no "
                       "comment; what would begin one needs quotes around the whole value, within "
                       "those of the shell: --set 'text.path=\"/data/set #1\"'",
                       text);
    if (wrong)
        return ct_fail(CT_ECONFIG, "--set %.80s: %s", text, wrong);
    return ct_recipe_is_utf8(text) ? 0 : ct_fail(CT_ECONFIG, "--set %.80s: expected UTF-8", text);
}

static void put(struct ct_recipe *recipe, const char *section, const char *key, const char *value)
{
    struct ct_setting *old = ct_recipe_find(recipe, section, key);

    if (!old) {
        ct_recipe_add(recipe, section, key, value, ON_COMMAND_LINE);
        return;
    }
    if (strcmp(old->source, ON_COMMAND_LINE) != 0)
        old->former = old->value;
    old->value = value;
    old->source = ON_COMMAND_LINE;
    old->was_default = false;
}

int ct_recipe_set(struct ct_recipe *recipe, const char *assignment)
{
    struct ct_arena *arena = recipe->arena;
    struct assignment a = {0};
    const char *section, *key;
    char *value;
    int rc = divide(recipe, assignment, &a);

    if (rc == 0)
        rc = check_assignment(assignment, &a);
    if (rc < 0)
        return rc;
    section = ct_arena_printf(arena, "%.*s", (int)a.section, assignment);
    key = ct_arena_printf(arena, "%.*s", (int)a.key, assignment + a.section + 1);
    value = ct_arena_printf(arena, "%.*s", (int)a.length, a.value);
    if (a.quoted)
        ct_recipe_unquote(a.value, a.length, value);
    put(recipe, section, key, value);
    return strcmp(section, "plugins") ? 0 : ct_recipe_list_plugins(recipe);
}

/* ---- plugins ---- */

static size_t plugin_index(const struct ct_recipe *recipe, const char *plugin)
{
    size_t i = 0;

    while (i < recipe->plugin_count && strcmp(recipe->plugins[i], plugin))
        i++;
    return i;
}

static void add_plugin(struct ct_recipe *recipe, const char *plugin, const char *source)
{
    size_t room = recipe->plugin_room;

    recipe->plugins = ct_arena_grow(recipe->arena, recipe->plugins, &recipe->plugin_room,
                                    recipe->plugin_count + 1, sizeof(*recipe->plugins));
    recipe->plugin_sources = ct_arena_grow(recipe->arena, recipe->plugin_sources, &room,
                                           recipe->plugin_count + 1, sizeof(*recipe->plugins));
    recipe->plugins[recipe->plugin_count] = plugin;
    recipe->plugin_sources[recipe->plugin_count++] = source;
}

static bool ends_in_so(const char *file, size_t length)
{
    return length > 3 && !memcmp(file + length - 3, ".so", 3);
}

/* The name of a plugin that is listed by its file: "/opt/plugins/llama.so" is llama. */
static const char *name_of(const struct ct_recipe *recipe, const char *listed)
{
    const char *slash = strrchr(listed, '/'), *file = slash ? slash + 1 : listed;
    size_t length = strlen(file);

    if (ends_in_so(file, length))
        length -= 3;
    return ct_arena_printf(recipe->arena, "%.*s", (int)length, file);
}

/* The place in the list of a plugin that is given by its name, or as it is listed. */
static size_t find_plugin(const struct ct_recipe *recipe, const char *plugin)
{
    size_t i = plugin_index(recipe, plugin);

    if (i < recipe->plugin_count)
        return i;
    for (i = 0; i < recipe->plugin_count; i++)
        if (!strcmp(name_of(recipe, recipe->plugins[i]), plugin))
            break;
    return i;
}

bool ct_recipe_loads(const struct ct_recipe *recipe, const char *plugin)
{
    return find_plugin(recipe, plugin) < recipe->plugin_count;
}

static int with_one(struct ct_recipe *recipe, const char *plugin)
{
    if (!*plugin)
        return ct_fail(CT_ECONFIG, "--with: expected the name of a plugin");
    if (!ct_recipe_is_utf8(plugin))
        return ct_fail(CT_ECONFIG, "--with %s: expected UTF-8", plugin);
    if (!ct_recipe_loads(recipe, plugin))
        add_plugin(recipe, ct_arena_strdup(recipe->arena, plugin), "--with");
    return 0;
}

/* Call it with each name of a list like "a,b". */
static int for_each_name(struct ct_recipe *recipe, const char *names,
                         int (*call)(struct ct_recipe *recipe, const char *name))
{
    char *rest = ct_arena_strdup(recipe->arena, names);
    int rc = 0;

    while (rc == 0 && rest)
        rc = call(recipe, strsep(&rest, ","));
    return rc;
}

int ct_recipe_with(struct ct_recipe *recipe, const char *plugins)
{
    return for_each_name(recipe, plugins, with_one);
}

static void drop_section(struct ct_recipe *recipe, const char *section)
{
    size_t kept = 0;

    for (size_t i = 0; i < recipe->count; i++)
        if (strcmp(recipe->settings[i].section, section))
            recipe->settings[kept++] = recipe->settings[i];
    recipe->count = kept;
    kept = 0;
    for (size_t i = 0; i < recipe->section_count; i++)
        if (strcmp(recipe->sections[i].section, section))
            recipe->sections[kept++] = recipe->sections[i];
    recipe->section_count = kept;
}

static int without_one(struct ct_recipe *recipe, const char *plugin)
{
    size_t at = find_plugin(recipe, plugin);

    if (at == recipe->plugin_count && ct_recipe_section(recipe, plugin))
        return ct_fail(CT_ECONFIG,
                       "--without %s: that is a section and no plugin; --unset %s leaves its keys "
                       "out",
                       plugin, plugin);
    if (at == recipe->plugin_count)
        return ct_fail(CT_ECONFIG, "--without %s: the recipe does not load it%s", plugin,
                       ct_did_you_mean(plugin, recipe->plugins, recipe->plugin_count));
    drop_section(recipe, name_of(recipe, recipe->plugins[at]));
    for (size_t i = at + 1; i < recipe->plugin_count; i++) {
        recipe->plugins[i - 1] = recipe->plugins[i];
        recipe->plugin_sources[i - 1] = recipe->plugin_sources[i];
    }
    recipe->plugin_count--;
    return 0;
}

int ct_recipe_without(struct ct_recipe *recipe, const char *plugins)
{
    return for_each_name(recipe, plugins, without_one);
}

int ct_recipe_unset(struct ct_recipe *recipe, const char *name)
{
    bool whole = ct_recipe_section(recipe, name);
    size_t length = whole ? strlen(name) : section_length(name);
    const char *section = ct_arena_printf(recipe->arena, "%.*s", (int)length, name);
    struct ct_setting *s = name[length] ? ct_recipe_find(recipe, section, name + length + 1) : NULL;

    if (!strcmp(section, "plugins"))
        return ct_fail(CT_ECONFIG, "--unset %s: --without PLUGIN leaves plugins out", name);
    if (name[length] ? !s : !ct_recipe_section(recipe, section))
        return ct_fail(CT_ECONFIG, "--unset %s: the recipe does not set it", name);
    if (s)
        *s = recipe->settings[--recipe->count];
    else
        drop_section(recipe, section);
    return 0;
}

/* Whether a name of a list is several: blanks are in the path of a .so alone. */
static bool lacks_comma(const char *name)
{
    size_t word = strcspn(name, " \t");

    if (!name[word])
        return false;
    return !memchr(name, '/', word) || ends_in_so(name, word) || !ends_in_so(name, strlen(name));
}

int ct_recipe_list_plugins(struct ct_recipe *recipe)
{
    const struct ct_setting *load = ct_recipe_find(recipe, "plugins", "load");
    char *rest;

    recipe->plugin_count = 0;
    if (!load || !*load->value)
        return 0;
    rest = ct_arena_strdup(recipe->arena, load->value);
    while (rest) {
        char *name = strsep(&rest, ",");
        size_t length = strlen(name += strspn(name, " \t"));

        while (length && strchr(" \t", name[length - 1]))
            name[--length] = '\0';
        if (!length)
            return ct_fail(CT_ECONFIG, "%s: load: expected a plugin's name %s a comma",
                           load->source, rest ? "before" : "after");
        if (lacks_comma(name))
            return ct_fail(CT_ECONFIG, "%s: load: expected a comma in '%s'", load->source, name);
        if (plugin_index(recipe, name) < recipe->plugin_count)
            return ct_fail(CT_ECONFIG, "%s: load: %s is listed twice", load->source, name);
        add_plugin(recipe, name, load->source);
    }
    return 0;
}
