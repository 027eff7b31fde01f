/*
 * The manual page, from the tables of verbs and options: `ctitan help --man`.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/text.h>

#include "cli.h"

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

static void print_argument(const struct ct_argument *a)
{
    struct ct_arena scratch = {0};
    char label[256];

    ct_argument_print(a, true, label, sizeof(label));
    printf(".TP\n.B ");
    print_roff(label);
    putchar('\n');
    print_roff(argument_sentence(&scratch, a));
    putchar('\n');
    ct_arena_finish(&scratch);
}

/* "RECIPE [options]" */
static void print_synopsis(const struct page_entry *verb)
{
    for (const struct ct_argument *a = verb->arguments; a && a->name; a++) {
        char text[256];

        if (!ct_argument_is_word(a))
            continue;
        ct_argument_print(a, false, text, sizeof(text));
        printf(a->min < 1 ? " [" : " ");
        print_roff(text);
        printf(a->min < 1 ? "]" : "");
    }
    if (verb->arguments)
        printf(" [options]");
    else
        print_roff(verb->usage ? verb->usage : "");
}

static void print_verb_page(const struct page_entry *verb)
{
    printf(".SS ctitan ");
    print_roff(verb->name);
    print_synopsis(verb);
    printf("\n%c", toupper((unsigned char)*verb->summary));
    print_roff(verb->summary + 1);
    printf(".\n");
    if (verb->details)
        print_roff(verb->details);
    for (const struct ct_argument *a = verb->arguments; a && a->name; a++)
        print_argument(a);
    if (verb->examples)
        printf(".PP\nExamples:\n.nf\n");
    for (const char *const *e = verb->examples; e && *e; e++) {
        print_roff(*e);
        putchar('\n');
    }
    if (verb->examples)
        printf(".fi\n");
}

static void print_section(const struct page_entry *section)
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

void print_manual(const struct pages *t)
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
        print_verb_page(&t->verbs.entry[i]);
    printf(".SS Options of all verbs\n");
    for (const struct ct_argument *a = ct_common_arguments; a->name; a++)
        print_argument(a);
    printf(".SH RECIPES\nThe value of an option is its default.\n"
           ".SS [plugins]\nWhich plugins are loaded.\n"
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
           ".TP\n.B NO_COLOR\nIf it is set, and not empty, nothing is coloured.\n"
           ".SH EXAMPLES\n.nf\nctitan train recipes/quickstart.ini\n"
           "ctitan train recipes/quickstart.ini \\-n 2 \\-\\-with fsdp\n"
           "ctitan help adamw\n.fi\n");
}
