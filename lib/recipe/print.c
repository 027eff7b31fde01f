/*
 * The resolved recipe: every option with its value and where that is from.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/file.h>
#include <ctitan/lib/recipe.h>
#include <ctitan/lib/text.h>
#include <ctitan/plugin.h>

#include "settings.h"

#define COMMENT_COLUMN 48

static void print_plugins(const struct ct_recipe *recipe, FILE *out)
{
    fprintf(out, "[plugins]\n");
    for (size_t i = 0; i < recipe->plugin_count; i++) {
        const char *comma = i + 1 < recipe->plugin_count ? "," : "";
        int used = fprintf(out, "%s%s%s", i ? "       " : "load = ", recipe->plugins[i], comma);

        fprintf(out, "%*s; %s\n", used < COMMENT_COLUMN ? COMMENT_COLUMN - used : 1, "",
                recipe->plugin_sources[i]);
    }
}

static void print_option(const struct ct_recipe *recipe, const char *section,
                         const struct ct_option *option, const void *config, FILE *out)
{
    const struct ct_setting *setting = ct_recipe_find(recipe, section, option->name);
    char short_value[64];
    int used = fprintf(out, "%s = ", option->name);

    if (option->type == CT_STRING || option->type == CT_CHOICE) {
        const char *value = *(const char *const *)((const char *)config + option->offset);

        used += fprintf(out, "%s", value ? value : "");
    } else {
        ct_option_format(option, config, short_value, sizeof(short_value));
        used += fprintf(out, "%s", short_value);
    }
    fprintf(out, "%*s; %s\n", used < COMMENT_COLUMN ? COMMENT_COLUMN - used : 1, "",
            setting ? setting->source : "default");
}

static void print_section(const struct ct_recipe *recipe, const char *name,
                          const struct ct_option *options, const void *config, FILE *out)
{
    fprintf(out, "\n[%s]\n", name);
    for (const struct ct_option *o = options; o->name; o++)
        print_option(recipe, name, o, config, out);
}

void ct_recipe_print_resolved(const struct ct_recipe *recipe, FILE *out)
{
    const struct ct_plugin *p;

    fprintf(out, "; %s, with every option and where its value is from\n\n", recipe->path);
    print_plugins(recipe, out);
    for (size_t i = 0; ct_recipe_section_at(i)->name; i++) {
        const struct ct_recipe_section *s = ct_recipe_section_at(i);

        print_section(recipe, s->name, s->options, s->config, out);
    }
    for (size_t i = 0; (p = ct_plugin_at(i)); i++)
        if (p->options)
            print_section(recipe, p->name, p->options, p->config, out);
}

static void print_recipe(const void *recipe, FILE *out)
{
    ct_recipe_print_resolved(recipe, out);
}

int ct_recipe_save(const struct ct_recipe *recipe, const char *path)
{
    return ct_file_print(path, print_recipe, recipe);
}
