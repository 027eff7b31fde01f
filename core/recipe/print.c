/*
 * The resolved recipe: every option with its value and where that is from.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/file.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>
#include <ctitan/text.h>

#include "recipe/settings.h"

#define COMMENT_COLUMN 48

static void print_plugins(const struct ct_recipe *recipe, FILE *out)
{
    struct ct_arena scratch = {0};

    fprintf(out, "[plugins]\n");
    for (size_t i = 0; i < recipe->plugin_count; i++) {
        const char *comma = i + 1 < recipe->plugin_count ? "," : "";
        const char *item = ct_arena_printf(&scratch, "%s%s", recipe->plugins[i], comma);
        int used = fprintf(out, "%s%s", i ? "       " : "load = ", ct_recipe_quote(&scratch, item));

        fprintf(out, "%*s; %s\n", used < COMMENT_COLUMN ? COMMENT_COLUMN - used : 1, "",
                recipe->plugin_sources[i]);
    }
    ct_arena_finish(&scratch);
}

/* Whether a line that begins with this value reads as a setting or a section. It has the first word
   alone if the second does not fit. */
static bool begins_setting(const char *value, bool in_list)
{
    size_t first = strcspn(value, " "), both = first;

    if (value[first])
        both += 1 + strcspn(value + first + 1, " ");
    return ct_recipe_begins_setting(value, both > CT_RECIPE_LINE ? first : strlen(value), in_list);
}

/* Whether a value may go on in the next line after `at` characters: lines are joined by a blank. */
static bool can_break(const char *value, size_t at)
{
    return value[at] == ' ' && at && !ct_recipe_is_space(value[at - 1]) &&
           !ct_recipe_is_space(value[at + 1]) && !strchr(";#", value[at + 1]) &&
           !begins_setting(value + at + 1, value[at - 1] == ',');
}

/* Characters that quotes add to a part of a value. */
static size_t quotes_of(const char *value, size_t length)
{
    size_t count = 2;

    if (ct_recipe_comment(value, length) == length)
        return 0;
    for (size_t i = 0; i < length; i++)
        count += value[i] == '"';
    return count;
}

/* How much of a value fits in a line with this room; 0: nothing. */
static size_t take_line(const char *value, size_t room)
{
    size_t whole = strlen(value), length = whole < room ? whole : room;

    while (length && ((length < whole && !can_break(value, length)) ||
                      length + quotes_of(value, length) > room))
        length--;
    return length;
}

static void print_source(const struct ct_setting *setting, int used, FILE *out)
{
    fprintf(out, "%*s; %s%s\n", used < COMMENT_COLUMN ? COMMENT_COLUMN - used : 1, "",
            setting ? setting->source : CT_RECIPE_DEFAULT,
            setting && setting->was_default ? ", " CT_RECIPE_DEFAULT : "");
}

static int print_part(const char *value, size_t length, FILE *out)
{
    struct ct_arena scratch = {0};
    const char *part = ct_arena_printf(&scratch, "%.*s", (int)length, value);
    int used = fprintf(out, "%s", ct_recipe_quote(&scratch, part));

    ct_arena_finish(&scratch);
    return used;
}

/* A value that is too long for a line goes on in others. */
static void print_text(const char *name, const char *value, const struct ct_setting *setting,
                       FILE *out)
{
    /* Without blanks, a value that cannot be moved to the next line has room in the first one. */
    const char *equals = begins_setting(value, false) ? "=" : " = ";
    int used = fprintf(out, "%s%s", name, equals);
    size_t length = take_line(value, CT_RECIPE_LINE - (size_t)used);

    used += print_part(value, length, out);
    print_source(setting, used, out);
    while (*(value += length)) {
        value += *value == ' ';
        length = take_line(value, CT_RECIPE_LINE);
        if (!length)
            length = strlen(value);
        fputs("    ", out);
        print_part(value, length, out);
        fputc('\n', out);
    }
}

static void print_option(const struct ct_recipe *recipe, const char *section,
                         const struct ct_option *option, const void *config, FILE *out)
{
    const struct ct_setting *setting = ct_recipe_find(recipe, section, option->name);
    const char *own = ct_recipe_own_value(option);
    char short_value[64];

    if (own) {
        print_text(option->name, own, setting, out);
    } else if (option->type == CT_STRING || option->type == CT_CHOICE) {
        const char *value = *(const char *const *)((const char *)config + option->offset);

        print_text(option->name, value ? value : "", setting, out);
    } else {
        ct_option_format(option, config, short_value, sizeof(short_value));
        print_text(option->name, short_value, setting, out);
    }
}

/* The steps of epochs are counted from the data: the recipe says the epochs alone. */
static bool is_counted(const char *section, const char *option)
{
    return ct_config.training_epochs && !strcmp(section, "training") && !strcmp(option, "steps");
}

static void print_section(const struct ct_recipe *recipe, const char *name,
                          const struct ct_option *options, const void *config, FILE *out)
{
    fprintf(out, "\n[%s]\n", name);
    for (const struct ct_option *o = options; o->name; o++)
        if (!ct_recipe_replaced_by(name, o->name) && !is_counted(name, o->name))
            print_option(recipe, name, o, config, out);
}

static void print_stages(const struct ct_recipe *recipe, FILE *out)
{
    const char *section;

    for (size_t n = 2; (section = ct_recipe_stage_section(recipe, n)); n++) {
        fprintf(out, "\n[%s]\n", section);
        for (size_t i = 0; i < recipe->count; i++)
            if (!strcmp(recipe->settings[i].section, section))
                print_text(recipe->settings[i].key, recipe->settings[i].value, &recipe->settings[i],
                           out);
    }
}

void ct_recipe_print_resolved(const struct ct_recipe *recipe, FILE *out)
{
    const struct ct_plugin *p;

    fprintf(out, "; %s" CT_RECIPE_RECORDED "\n\n", recipe->path);
    print_plugins(recipe, out);
    for (size_t i = 0; ct_recipe_section_at(i)->name; i++) {
        const struct ct_recipe_section *s = ct_recipe_section_at(i);

        print_section(recipe, s->name, s->options, s->config, out);
    }
    for (size_t i = 0; (p = ct_plugin_at(i)); i++)
        if (p->options)
            print_section(recipe, p->name, p->options, p->config, out);
    print_stages(recipe, out);
}

static void print_recipe(const void *recipe, FILE *out)
{
    ct_recipe_print_resolved(recipe, out);
}

int ct_recipe_save(const struct ct_recipe *recipe, const char *path)
{
    return ct_file_print(path, print_recipe, recipe);
}
