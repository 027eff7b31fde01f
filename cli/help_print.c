/*
 * Help as text of 80 columns: verbs with their arguments, and options of recipes.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/model.h>
#include <ctitan/text.h>

#include "cli.h"

#define DOC_COLUMN 24

/* ---- lines ---- */

/* Print a text from a column on; further lines begin there, too. It may contain line ends. */
static void print_wrapped(int column, const char *text)
{
    int used = column;

    while (*text) {
        int length = (int)strcspn(text, " \n"), space = used > column;

        if (used + space + length >= HELP_COLUMNS && used > column) {
            printf("\n%*s", column, "");
            used = column;
            space = 0;
        }
        printf("%s%.*s", space ? " " : "", length, text);
        used += space + length;
        text += length;
        if (*text == '\n' && text[1]) {
            printf("\n%*s", column, "");
            used = column;
        }
        text += *text != '\0';
    }
    putchar('\n');
}

void print_item(int indent, const char *label, int column, const char *text)
{
    int used = printf("%*s%s", indent, "", label);

    if (!text || !*text) {
        putchar('\n');
        return;
    }
    if (used + 2 > column)
        printf("\n%*s", column, "");
    else
        printf("%*s", column - used, "");
    print_wrapped(column, text);
}

void print_sentence(const char *text)
{
    struct ct_arena scratch = {0};
    char *copy = ct_arena_printf(&scratch, "%s.", text);

    *copy = (char)toupper((unsigned char)*copy);
    print_wrapped(0, copy);
    ct_arena_finish(&scratch);
}

/* ---- verbs ---- */

const char *argument_sentence(struct ct_arena *arena, const struct ct_argument *a)
{
    const char *list = "";
    char label[256];

    ct_argument_print(a, false, label, sizeof(label));
    if (!a->choices || !ct_argument_is_word(a) || !strcmp(label, a->choices))
        return ct_arena_printf(arena, "%s.", a->doc);
    for (const char *c = a->choices; *c;) {
        int length = (int)strcspn(c, "|");

        list = ct_arena_printf(arena, "%s%s%.*s", list, *list ? ", " : "", length, c);
        c += length + (c[length] == '|');
    }
    return ct_arena_printf(arena, "%s: %s.", a->doc, list);
}

static void print_argument(const struct ct_argument *a)
{
    struct ct_arena scratch = {0};
    char label[256];

    ct_argument_print(a, true, label, sizeof(label));
    print_item(ct_argument_is_word(a) || a->letter ? 2 : 6, label, DOC_COLUMN,
               argument_sentence(&scratch, a));
    ct_arena_finish(&scratch);
}

static void print_arguments(const struct ct_argument *arguments, bool words)
{
    for (const struct ct_argument *a = arguments; a && a->name; a++)
        if (ct_argument_is_word(a) == words)
            print_argument(a);
}

static void print_usage(const char *name, const struct ct_argument *arguments)
{
    printf("usage: ctitan %s", name);
    for (const struct ct_argument *a = arguments; a->name; a++) {
        char text[256];

        if (!ct_argument_is_word(a))
            continue;
        ct_argument_print(a, false, text, sizeof(text));
        printf(a->min < 1 ? " [%s]" : " %s", text);
    }
    printf(" [options]\n\n");
}

static void print_page(const char *name, const char *usage, const char *summary,
                       const char *details, const struct ct_argument *arguments,
                       const char *const *examples)
{
    if (arguments)
        print_usage(name, arguments);
    else
        printf("usage: ctitan %s %s\n\n", name, usage);
    print_sentence(summary);
    if (details)
        printf("%s", details);
    if (arguments) {
        putchar('\n');
        print_arguments(arguments, true);
        printf("\noptions:\n");
        print_arguments(arguments, false);
        print_arguments(ct_common_arguments, false);
    }
    if (examples)
        printf("\nexamples:\n");
    for (; examples && *examples; examples++)
        printf("  %s\n", *examples);
}

void print_verb(const struct verb *v)
{
    print_page(v->name, NULL, v->summary, v->details, v->arguments, v->examples);
}

void print_plugin_verb(const struct plugin_verb *v)
{
    const struct ct_verb_ops *ops = v->ops;

    print_page(v->name, ops->usage ? ops->usage : "", ops->summary, ops->details, ops->arguments,
               ops->examples);
    printf("\nThe verb is of the plugin %s.\n", v->plugin);
}

/* ---- options of recipes ---- */

void print_option_list(const struct ct_option *options)
{
    for (const struct ct_option *o = options; o && o->name; o++) {
        struct ct_arena scratch = {0};
        char range[256];

        ct_option_range(o, range, sizeof(range));
        printf("\n  %s = %s\n", o->name, o->fallback ? o->fallback : "(must be set)");
        print_item(0, "", 6, ct_arena_printf(&scratch, "%s.", o->doc));
        print_item(0, "", 6,
                   ct_arena_printf(&scratch, "%s%s%s", ct_option_type_name(o->type),
                                   *range ? ": " : "", range));
        ct_arena_finish(&scratch);
    }
}

/* ---- the overview ---- */

void print_overview(FILE *out)
{
    fprintf(out, "usage: ctitan VERB [arguments]\n");
    for (const struct verb_group *g = verb_groups; g->title; g++) {
        fprintf(out, "\n%s:\n", g->title);
        for (const struct verb *const *v = g->verbs; *v; v++)
            fprintf(out, "  %-10s %s\n", (*v)->name, (*v)->summary);
    }
}
