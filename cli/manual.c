/*
 * The manual page and the completion of the command line, from the tables of verbs and options:
 * `ctitan help --man`, `ctitan help --bash`. Both list the plugins that are in the folders.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/lib/plugin.h>
#include <ctitan/lib/text.h>
#include <ctitan/model.h>

#include "cli.h"

/* ---- the tables ---- */

struct entry {
    const char *name, *usage, *summary;
    const struct ct_option *options;
};

struct list {
    struct entry *entry;
    size_t count, room;
};

struct tables {
    struct ct_arena arena;
    struct list verbs, sections, plugins;
};

static void append(struct tables *t, struct list *list, struct entry entry)
{
    list->entry =
        ct_arena_grow(&t->arena, list->entry, &list->room, list->count + 1, sizeof(*list->entry));
    list->entry[list->count++] = entry;
}

static void add_plugin(struct tables *t, const struct ct_plugin *plugin)
{
    append(t, &t->plugins, (struct entry){plugin->name, NULL, plugin->summary, plugin->options});
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++) {
        const struct ct_verb_ops *verb = o->ops;

        if (o->kind == CT_VERB)
            append(t, &t->verbs, (struct entry){o->name, verb->usage, verb->summary, NULL});
    }
}

/* Plugins that cannot be read are left out. */
static void collect(struct tables *t)
{
    const struct ct_plugin *plugin;
    const char **names;
    size_t count = ct_plugin_names(&t->arena, &names);

    for (const struct verb *v = verbs; v->name; v++)
        append(t, &t->verbs, (struct entry){v->name, v->usage, v->summary, NULL});
    for (size_t i = 0; ct_recipe_section_at(i)->name; i++) {
        const struct ct_recipe_section *s = ct_recipe_section_at(i);

        append(t, &t->sections, (struct entry){s->name, NULL, s->summary, s->options});
    }
    for (size_t i = 0; i < count; i++)
        if (ct_plugin_describe(names[i], &plugin) == 0)
            add_plugin(t, plugin);
}

/* ---- the manual page ---- */

/* Text in which nothing is a request or an escape of roff. */
static void print_roff(const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stdout);
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
    }
}

static void print_verb(const struct entry *verb)
{
    printf(".TP\n.B ");
    print_roff(verb->name);
    putchar(' ');
    print_roff(verb->usage);
    printf("\n%c", toupper((unsigned char)*verb->summary));
    print_roff(verb->summary + 1);
    printf(".\n");
}

static void print_section(const struct entry *section)
{
    char range[256];

    printf(".SS [");
    print_roff(section->name);
    printf("]\n");
    print_roff(section->summary);
    printf(".\n");
    for (const struct ct_option *o = section->options; o && o->name; o++) {
        ct_option_range(o, range, sizeof(range));
        printf(".TP\n.B ");
        print_roff(o->name);
        printf(" = ");
        print_roff(o->fallback ? o->fallback : "(must be set)");
        putchar('\n');
        print_roff(o->doc);
        printf(".\n");
        print_roff(ct_option_type_name(o->type));
        if (*range) {
            printf(": ");
            print_roff(range);
        }
        printf(".\n");
    }
}

static void print_manual(const struct tables *t)
{
    printf(".TH CTITAN 1 \"\" \"ctitan " CT_VERSION "\" \"User Commands\"\n"
           ".SH NAME\nctitan \\- pretraining of language models on one rank or many\n"
           ".SH SYNOPSIS\n.B ctitan\n.I VERB\n[arguments]\n"
           ".SH DESCRIPTION\n"
           "A recipe, an INI file, says what is trained, and which plugins do it. "
           "Every option has a section and a key, and can be changed on the command line "
           "with \\-\\-set SECTION.KEY=VALUE.\n"
           ".SH VERBS\n");
    for (size_t i = 0; i < t->verbs.count; i++)
        print_verb(&t->verbs.entry[i]);
    printf(".SH RECIPES\nThe value of an option is its default.\n"
           ".SS [plugins]\nWhat is loaded.\n"
           ".TP\n.B load = NAME, NAME, ...\nThe plugins of the run.\n");
    for (size_t i = 0; i < t->sections.count; i++)
        print_section(&t->sections.entry[i]);
    printf(".SH PLUGINS\nEach has a section of its name.\n");
    for (size_t i = 0; i < t->plugins.count; i++)
        print_section(&t->plugins.entry[i]);
    printf(".SH EXIT STATUS\n0: it worked. 1: the run failed. 2: the command line, the recipe or a "
           "file is wrong.\n"
           ".SH ENVIRONMENT\n.TP\n.B CTITAN_PLUGIN_PATH\n"
           "Folders that are searched for plugins before those of ctitan, separated by a colon.\n"
           ".SH EXAMPLES\n.nf\nctitan train recipes/quickstart.ini\n"
           "ctitan train recipes/quickstart.ini \\-n 2 \\-\\-with fsdp\n"
           "ctitan help adamw\n.fi\n");
}

/* ---- completion ---- */

/* The options in a usage, each once: words that begin with '-'. */
static void print_options_of(const char *usage)
{
    for (const char *at = usage; *at; at++) {
        size_t size = 0;
        bool begins = at == usage || strchr(" [|(", at[-1]);

        while (isalnum((unsigned char)at[size]) || at[size] == '-')
            size++;
        if (*at != '-' || !begins || size < 2)
            continue;
        printf(" %.*s", (int)size, at);
        at += size - 1;
    }
}

/* The choices with which a usage begins, "model|op NAME". */
static void print_choices_of(const char *usage)
{
    size_t size = strcspn(usage, " ");

    if (memchr(usage, '|', size) && islower((unsigned char)*usage))
        for (size_t i = 0; i < size; i++)
            putchar(usage[i] == '|' ? ' ' : usage[i]);
}

static void print_names(const char *variable, const struct list *list, bool settings)
{
    printf("    local %s='", variable);
    for (size_t i = 0; i < list->count; i++) {
        if (!settings)
            printf(" %s", list->entry[i].name);
        for (const struct ct_option *o = list->entry[i].options; settings && o && o->name; o++)
            printf(" %s.%s=", list->entry[i].name, o->name);
    }
    printf("'\n");
}

static void print_completion(const struct tables *t)
{
    printf("# Completion of ctitan's command line for bash: `ctitan help --bash` writes it.\n"
           "_ctitan()\n{\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
           "    local words='' options='' first=''\n");
    print_names("verbs", &t->verbs, false);
    print_names("sections", &t->sections, false);
    print_names("plugins", &t->plugins, false);
    print_names("settings", &t->sections, true);
    print_names("plugin_settings", &t->plugins, true);
    printf("    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < t->verbs.count; i++) {
        printf("    %s) options='", t->verbs.entry[i].name);
        print_options_of(t->verbs.entry[i].usage);
        printf("' first='");
        print_choices_of(t->verbs.entry[i].usage);
        printf("' ;;\n");
    }
    printf(
        "    esac\n"
        "    case $before in\n"
        "    --unset | --a-unset | --b-unset) words=\"${settings//=/} ${plugin_settings//=/}\" ;;\n"
        "    --set | --a-set | --b-set | --vary)\n"
        "        words=\"$settings $plugin_settings\"\n"
        "        compopt -o nospace\n"
        "        ;;\n"
        "    --with | --without | --a-with | --b-with) words=$plugins ;;\n"
        "    help) words=\"$verbs $sections $plugins\" ;;\n"
        "    check) words=$plugins ;;\n"
        "    *) ((COMP_CWORD != 2)) || words=$first ;;\n"
        "    esac\n"
        "    ((COMP_CWORD != 1)) || words=$verbs\n"
        "    [[ $word != -* ]] || words=$options\n"
        "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
        "}\n"
        "complete -o default -F _ctitan ctitan\n");
}

bool help_page(const char *which)
{
    bool manual = !strcmp(which, "--man");
    struct tables t = {0};

    if (!manual && strcmp(which, "--bash"))
        return false;
    collect(&t);
    if (manual)
        print_manual(&t);
    else
        print_completion(&t);
    ct_arena_finish(&t.arena);
    return true;
}
