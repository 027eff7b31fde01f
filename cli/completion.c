/*
 * Completions of the command line for bash, zsh and fish, from the tables of verbs and options.
 *
 * How a value is completed follows from its name in the table: "SECTION.KEY=VALUE" from the options
 * of recipes, "PLUGIN" from the plugins, and choices from the choices. All others are files.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"

enum value { NO_VALUE, FILES, CHOICES, SETTINGS, KEYS, PLUGINS };

static enum value value_of(const struct ct_argument *a)
{
    const char *name = ct_argument_is_word(a) ? a->name : a->value;

    if (!name)
        return NO_VALUE;
    if (a->choices)
        return CHOICES;
    if (!strncmp(name, "SECTION.KEY=", 12) || !strncmp(name, "PLUGIN.KEY=", 11))
        return SETTINGS;
    if (!strcmp(name, "SECTION.KEY"))
        return KEYS;
    if (!strcmp(name, "PLUGIN"))
        return PLUGINS;
    return FILES;
}

static void print_choices(const char *choices)
{
    for (const char *c = choices; c && *c; c++)
        putchar(*c == '|' ? ' ' : *c);
}

/* With settings: "SECTION.KEY" of each option, and `end`. */
static void print_names(const struct page_list *list, bool settings, const char *end)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct page_entry *e = &list->entry[i];

        if (!settings)
            printf(" %s", e->name);
        for (const struct ct_option *o = e->options; settings && o && o->name; o++)
            printf(" %s.%s%s", e->name, o->name, end);
    }
}

/* Calls print for every row of a verb, and for those that all verbs have. */
typedef void row_printer(const struct page_entry *verb, const struct ct_argument *a);

static void for_each_row(const struct page_entry *verb, row_printer *print)
{
    for (const struct ct_argument *a = verb->arguments; a && a->name; a++)
        print(verb, a);
    for (const struct ct_argument *a = ct_common_arguments; a->name; a++)
        print(verb, a);
}

/* ---- bash ---- */

static void print_bash_option(const struct page_entry *verb, const struct ct_argument *a)
{
    (void)verb;
    if (ct_argument_is_word(a))
        return;
    if (a->letter)
        printf(" -%c", a->letter);
    printf(" --%s", a->name);
}

/* The words that complete the value of an option, or the first word of a verb. */
static void print_bash_value(const struct page_entry *verb, const struct ct_argument *a)
{
    static const char *const words[] = {
        [SETTINGS] = "$settings", [KEYS] = "${settings//=/}", [PLUGINS] = "$plugins"};
    enum value value = value_of(a);

    if (value == NO_VALUE || value == FILES)
        return;
    if (ct_argument_is_word(a))
        printf("    %s:) first=\"", verb->name);
    else
        printf("    %s:--%s) words=\"", verb->name, a->name);
    if (value == CHOICES)
        print_choices(a->choices);
    else
        printf("%s", words[value]);
    printf("\"%s ;;\n", value == SETTINGS ? " && compopt -o nospace" : "");
}

void print_bash(const struct pages *p)
{
    printf("# Completion of ctitan's command line for bash: `ctitan help --bash` writes it.\n"
           "_ctitan()\n{\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
           "    local words='' options='' first='' verbs sections plugins settings\n"
           "    verbs='");
    print_names(&p->verbs, false, "");
    printf("'\n    sections='");
    print_names(&p->sections, false, "");
    printf("'\n    plugins='");
    print_names(&p->plugins, false, "");
    printf("'\n    settings='");
    print_names(&p->sections, true, "=");
    print_names(&p->plugins, true, "=");
    printf("'\n    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < p->verbs.count; i++) {
        printf("    %s) options='", p->verbs.entry[i].name);
        for_each_row(&p->verbs.entry[i], print_bash_option);
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    case ${COMP_WORDS[1]}: in\n"
           "    help:) first=\"$verbs $sections $plugins\" ;;\n");
    for (size_t i = 0; i < p->verbs.count; i++)
        for (const struct ct_argument *a = p->verbs.entry[i].arguments; a && a->name; a++)
            if (ct_argument_is_word(a)) {
                print_bash_value(&p->verbs.entry[i], a);
                break;
            }
    printf("    esac\n"
           "    ((COMP_CWORD != 2)) || words=$first\n"
           "    case ${COMP_WORDS[1]}:$before in\n");
    for (size_t i = 0; i < p->verbs.count; i++)
        for (const struct ct_argument *a = p->verbs.entry[i].arguments; a && a->name; a++)
            if (!ct_argument_is_word(a))
                print_bash_value(&p->verbs.entry[i], a);
    printf("    esac\n"
           "    ((COMP_CWORD != 1)) || words=$verbs\n"
           "    [[ $word != -* ]] || words=$options\n"
           "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
           "}\n"
           "complete -o default -F _ctitan ctitan\n");
}

/* ---- zsh ---- */

/* A text in single quotes, in which ':' and brackets of _arguments are escaped. */
static void print_zsh_text(const char *text)
{
    for (; *text; text++) {
        if (strchr(":[]\\", *text))
            putchar('\\');
        if (*text == '\'')
            fputs("'\\'", stdout);
        putchar(*text);
    }
}

static void print_zsh_action(const struct ct_argument *a)
{
    switch (value_of(a)) {
    case CHOICES:
        printf("(");
        print_choices(a->choices);
        printf(")");
        break;
    case SETTINGS:
        printf("_ctitan_settings");
        break;
    case KEYS:
        printf("_ctitan_keys");
        break;
    case PLUGINS:
        printf("($plugins)");
        break;
    default:
        printf("_files");
    }
}

static void print_zsh_option(const char *dashes, const char *name, const struct ct_argument *a)
{
    printf(" \\\n            '*%s%s[", dashes, name);
    print_zsh_text(a->doc);
    putchar(']');
    if (a->value) {
        putchar(':');
        print_zsh_text(a->value);
        putchar(':');
        print_zsh_action(a);
    }
    putchar('\'');
}

static void print_zsh_row(const struct page_entry *verb, const struct ct_argument *a)
{
    if (ct_argument_is_word(a)) {
        printf(" \\\n            '%s%s:", a->max > 1 ? "*" : "", a->min < 1 ? ":" : "");
        print_zsh_text(a->name);
        putchar(':');
        if (!strcmp(verb->name, "help"))
            printf("($verbs $sections $plugins)");
        else
            print_zsh_action(a);
        putchar('\'');
        return;
    }
    if (a->letter)
        print_zsh_option("-", (char[]){a->letter, '\0'}, a);
    print_zsh_option("--", a->name, a);
}

void print_zsh(const struct pages *p)
{
    printf("#compdef ctitan\n"
           "# Completion of ctitan's command line for zsh: `ctitan help --zsh` writes it.\n"
           "_ctitan_settings() { compadd -S '' -- $settings }\n"
           "_ctitan_keys() { compadd -- ${settings%%=} }\n"
           "_ctitan() {\n"
           "    local -a verbs sections plugins settings\n"
           "    verbs=(");
    print_names(&p->verbs, false, "");
    printf(")\n    sections=(");
    print_names(&p->sections, false, "");
    printf(")\n    plugins=(");
    print_names(&p->plugins, false, "");
    printf(")\n    settings=(");
    print_names(&p->sections, true, "=");
    print_names(&p->plugins, true, "=");
    printf(")\n"
           "    if ((CURRENT == 2)); then\n"
           "        compadd -- $verbs\n"
           "        return\n"
           "    fi\n"
           "    shift words\n"
           "    ((CURRENT--))\n"
           "    case $words[1] in\n");
    for (size_t i = 0; i < p->verbs.count; i++) {
        printf("    %s)\n        _arguments", p->verbs.entry[i].name);
        for_each_row(&p->verbs.entry[i], print_zsh_row);
        printf("\n        ;;\n");
    }
    printf("    esac\n}\n_ctitan \"$@\"\n");
}

/* ---- fish ---- */

static void print_fish_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
}

static void print_fish_values(const struct page_entry *verb, const struct ct_argument *a)
{
    switch (value_of(a)) {
    case CHOICES:
        printf(" -xa '");
        print_choices(a->choices);
        putchar('\'');
        break;
    case SETTINGS:
        printf(" -xa '$__ctitan_settings'");
        break;
    case KEYS:
        printf(" -xa '$__ctitan_keys'");
        break;
    case PLUGINS:
        printf(" -xa '$__ctitan_plugins'");
        break;
    case NO_VALUE:
        break;
    default:
        printf(!strcmp(verb->name, "help") ? " -xa '$__ctitan_names'" : " -rF");
    }
}

static void print_fish_row(const struct page_entry *verb, const struct ct_argument *a)
{
    printf("complete -c ctitan -n '__fish_seen_subcommand_from %s'", verb->name);
    if (!ct_argument_is_word(a)) {
        printf(" -l %s", a->name);
        if (a->letter)
            printf(" -s %c", a->letter);
        printf(" -d '");
        print_fish_text(a->doc);
        putchar('\'');
    }
    print_fish_values(verb, a);
    putchar('\n');
}

void print_fish(const struct pages *p)
{
    printf("# Completion of ctitan's command line for fish: `ctitan help --fish` writes it.\n"
           "set -g __ctitan_plugins");
    print_names(&p->plugins, false, "");
    printf("\nset -g __ctitan_names");
    print_names(&p->verbs, false, "");
    print_names(&p->sections, false, "");
    print_names(&p->plugins, false, "");
    printf("\nset -g __ctitan_settings");
    print_names(&p->sections, true, "=");
    print_names(&p->plugins, true, "=");
    printf("\nset -g __ctitan_keys");
    print_names(&p->sections, true, "");
    print_names(&p->plugins, true, "");
    putchar('\n');
    for (size_t i = 0; i < p->verbs.count; i++) {
        printf("complete -c ctitan -n __fish_use_subcommand -fa %s -d '", p->verbs.entry[i].name);
        print_fish_text(p->verbs.entry[i].summary);
        printf("'\n");
    }
    for (size_t i = 0; i < p->verbs.count; i++)
        for_each_row(&p->verbs.entry[i], print_fish_row);
}
