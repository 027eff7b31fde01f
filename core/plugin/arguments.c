/*
 * Command lines of verbs, by their tables.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/verb.h>

#define OPTIONS 64 /* of a verb, in suggestions */

const struct ct_argument ct_common_arguments[] = {
    CT_ARG_FLAG(struct ct_common_arguments, help, "help", 'h', "Show this help"),
    CT_ARG_FLAG(struct ct_common_arguments, quiet, "quiet", 'q', "Log warnings and errors only"),
    CT_ARG_FLAG(struct ct_common_arguments, verbose, "verbose", 'v', "Log more"),
    {0}};

#define SHOWN 40 /* characters of choices, at most, in a usage */

bool ct_argument_is_word(const struct ct_argument *a)
{
    return isupper((unsigned char)*a->name);
}

int ct_argument_print(const struct ct_argument *a, bool long_name, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};

    if (ct_argument_is_word(a)) {
        ct_line_add(&line, "%s%s", a->choices && strlen(a->choices) <= SHOWN ? a->choices : a->name,
                    a->max > 1 ? "..." : "");
        return (int)line.used;
    }
    if (a->letter)
        ct_line_add(&line, "-%c", a->letter);
    if (!a->letter || long_name)
        ct_line_add(&line, "%s--%s", a->letter ? ", " : "", a->name);
    if (a->value)
        ct_line_add(&line, " %s", a->value);
    return (int)line.used;
}

/* ---- values ---- */

static int take_integer(const struct ct_argument *a, const char *option, const char *text,
                        int64_t *number)
{
    char *end;

    errno = 0;
    *number = strtoll(text, &end, 10);
    if (end == text || *end || (double)*number < a->min)
        return ct_fail(CT_ECONFIG, "%s %s: expected a number, at least %.15g", option, text,
                       a->min);
    if (errno || (double)*number > a->max)
        return ct_fail(CT_ECONFIG, "%s %s: expected a number, at most %.15g", option, text, a->max);
    return 0;
}

static int take_number(const struct ct_argument *a, const char *option, const char *text,
                       double *number)
{
    char *end;

    *number = strtod(text, &end);
    if (end != text && !*end && *number >= a->min && *number <= a->max)
        return 0;
    if (a->max < 1e15)
        return ct_fail(CT_ECONFIG, "%s %s: expected a number from %.15g to %.15g", option, text,
                       a->min, a->max);
    return ct_fail(CT_ECONFIG, "%s %s: expected a number, at least %.15g", option, text, a->min);
}

static int take_bytes(const char *option, const char *text, double *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    const char *unit;

    *bytes = strtod(text, &end);
    unit = *end ? strchr(units, *end) : NULL;
    for (const char *u = units; unit && u <= unit; u++)
        *bytes *= 1024;
    end += unit ? 1 + 2 * !strcmp(end + 1, "iB") : 0;
    if (end == text || *end || !(*bytes > 0))
        return ct_fail(CT_ECONFIG, "%s %s: expected bytes, like 80G", option, text);
    return 0;
}

/* "ls, verify, show or diff" */
static void list_choices(const char *choices, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};

    for (const char *c = choices; *c; c++)
        if (*c != '|')
            ct_line_add(&line, "%c", *c);
        else
            ct_line_add(&line, "%s", strchr(c + 1, '|') ? ", " : " or ");
}

static int take_choice(const struct ct_argument *a, const char *option, const char *text,
                       const char **chosen)
{
    char list[512] = "", copy[512], *rest = copy;
    const char *names[OPTIONS];
    size_t count = 0;

    snprintf(copy, sizeof(copy), "%s", a->choices);
    for (char *one; (one = strsep(&rest, "|")) && count < CT_COUNT(names);)
        names[count++] = one;
    *chosen = text;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(names[i], text))
            return 0;
    list_choices(a->choices, list, sizeof(list));
    return ct_fail(CT_ECONFIG, "%s %s: expected %s%s", option, text, list,
                   ct_did_you_mean(text, names, count));
}

static void add_text(struct ct_texts *texts, struct ct_arena *arena, const char *text)
{
    texts->at = ct_arena_grow(arena, texts->at, &texts->room, texts->count + 1, sizeof(*texts->at));
    texts->at[texts->count++] = text;
}

/* option: as it was written, or the name of a word. value: NULL for a flag. */
static int take(const struct ct_argument *a, struct ct_arena *arena, void *into, const char *option,
                const char *value)
{
    void *at = (char *)into + a->offset;

    switch (a->kind) {
    case CT_ARGUMENT_FLAG:
        *(bool *)at = true;
        return 0;
    case CT_ARGUMENT_TEXT:
        *(const char **)at = value;
        return 0;
    case CT_ARGUMENT_TEXTS:
        add_text(at, arena, value);
        return 0;
    case CT_ARGUMENT_INTEGER:
        return take_integer(a, option, value, at);
    case CT_ARGUMENT_NUMBER:
        return take_number(a, option, value, at);
    case CT_ARGUMENT_BYTES:
        return take_bytes(option, value, at);
    case CT_ARGUMENT_CHOICE:
        return take_choice(a, option, value, at);
    case CT_ARGUMENT_TAKE:
        return a->take(at, arena, option, value ? value : "");
    }
    return ct_fail(CT_EINVAL, "%s: an argument of unknown kind %d", option, (int)a->kind);
}

/* ---- words and options ---- */

struct parser {
    const struct ct_argument *table;
    const char *verb;
    struct ct_arena *arena;
    void *into;
    int words; /* taken so far */
};

static const struct ct_argument *find_in(const struct ct_argument *table, const char *word,
                                         size_t length)
{
    for (const struct ct_argument *a = table; a && a->name; a++) {
        if (ct_argument_is_word(a))
            continue;
        if (word[1] == '-' ? strlen(a->name) == length - 2 && !memcmp(a->name, word + 2, length - 2)
                           : a->letter && a->letter == word[1])
            return a;
    }
    return NULL;
}

/* The row of an option, "--set", "--set=x", "-n" or "-n3", of the table or of all verbs. *attached:
   the value in the word itself, or NULL. */
static const struct ct_argument *find_option(const struct ct_argument *table, const char *word,
                                             const char **attached)
{
    size_t length = word[1] == '-' ? strcspn(word, "=") : 2;
    const struct ct_argument *a = find_in(table, word, length);

    *attached = word[length] ? word + length + (word[length] == '=') : NULL;
    return a ? a : find_in(ct_common_arguments, word, length);
}

static bool is_common(const struct ct_argument *a)
{
    for (const struct ct_argument *c = ct_common_arguments; c->name; c++)
        if (c == a)
            return true;
    return false;
}

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1];
}

static int unknown_option(const struct parser *p, const char *word)
{
    const char *names[OPTIONS], *near = NULL;
    size_t count = 0, length = strcspn(word, "=");
    char name[64];

    for (const struct ct_argument *a = p->table; a->name && count < CT_COUNT(names); a++)
        if (!ct_argument_is_word(a))
            names[count++] = a->name;
    for (const struct ct_argument *a = ct_common_arguments; a->name && count < OPTIONS; a++)
        names[count++] = a->name;
    snprintf(name, sizeof(name), "%.*s", (int)length, word);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    if (!strncmp(name, "--", 2))
        near = ct_nearest(name + 2, names, count);
    return ct_fail(CT_ECONFIG, "%s has no option %.*s; %s%s%s`ctitan help %s` lists them", p->verb,
                   (int)length, word, near ? "did you mean --" : "", near ? near : "",
                   near ? "? " : "", p->verb);
}

/* The row of the next word; NULL: there is none. */
static const struct ct_argument *next_word(const struct parser *p)
{
    int before = 0;

    for (const struct ct_argument *a = p->table; a->name; a++) {
        if (!ct_argument_is_word(a))
            continue;
        if (p->words < before + (int)a->max)
            return a;
        before += (int)a->max;
    }
    return NULL;
}

/* " RECIPE", " A [B]", " RUN... (8 at most)" */
static void list_words(const struct parser *p, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};

    for (const struct ct_argument *a = p->table; a->name; a++) {
        char shown[256];

        if (!ct_argument_is_word(a))
            continue;
        ct_argument_print(a, false, shown, sizeof(shown));
        ct_line_add(&line, a->min < 1 ? " [%s]" : " %s", shown);
        if (a->max > 1)
            ct_line_add(&line, " (%.15g at most)", a->max);
    }
}

static int extra_word(const struct parser *p, const char *word)
{
    char words[512] = "";

    list_words(p, words, sizeof(words));
    if (!*words)
        return ct_fail(CT_ECONFIG,
                       "%s takes options only, but there is %s; `ctitan help %s` shows them",
                       p->verb, word, p->verb);
    return ct_fail(CT_ECONFIG,
                   "%s: expected%s, but there is also %s; `ctitan help %s` shows the arguments",
                   p->verb, words, word, p->verb);
}

static int missing_word(const struct parser *p, const struct ct_argument *a)
{
    char doc[256], name[256];

    ct_argument_print(a, false, name, sizeof(name));
    snprintf(doc, sizeof(doc), "%s", a->doc);
    *doc = (char)tolower((unsigned char)*doc);
    return ct_fail(CT_ECONFIG, "%s: %s is missing: %s; `ctitan help %s` shows the arguments",
                   p->verb, a->choices ? name : a->name, doc, p->verb);
}

static int take_word(struct parser *p, const char *word)
{
    const struct ct_argument *a = next_word(p);

    if (!a)
        return extra_word(p, word);
    p->words++;
    return take(a, p->arena, p->into, p->verb, word);
}

/* Returns the number of words that the option took, 1 or 2. */
static int take_option(struct parser *p, const char *word, const char *next)
{
    const char *attached, *option;
    const struct ct_argument *a = find_option(p->table, word, &attached);
    int rc;

    if (!a)
        return unknown_option(p, word);
    option = word[1] == '-' || !attached
                 ? ct_arena_printf(p->arena, "%.*s", (int)strcspn(word, "="), word)
                 : ct_arena_printf(p->arena, "-%c", a->letter);
    if (!a->value && attached)
        return ct_fail(CT_ECONFIG, "%s: %s takes no value", p->verb, option);
    if (a->value && !attached && !next)
        return ct_fail(CT_ECONFIG, "%s: %s needs a value, %s", p->verb, option, a->value);
    rc = is_common(a)
             ? 0
             : take(a, p->arena, p->into, option, a->value ? attached ? attached : next : NULL);
    return rc < 0 ? rc : 1 + (a->value && !attached);
}

/* Words go to the rows in their order, so the first row without its words lacks them. */
static int check_words(const struct parser *p)
{
    int left = p->words;

    for (const struct ct_argument *a = p->table; a->name; a++) {
        if (!ct_argument_is_word(a))
            continue;
        if (left < (int)a->min)
            return missing_word(p, a);
        left -= left < (int)a->max ? left : (int)a->max;
    }
    return 0;
}

int ct_arguments_parse(const struct ct_argument *table, int argc, char **argv,
                       struct ct_arena *arena, void *into)
{
    struct parser p = {table, argv[0], arena, into, 0};
    bool only_words = false;
    int rc = 0;

    for (int i = 1; rc >= 0 && i<argc; i += rc> 1 ? rc : 1) {
        if (!only_words && !strcmp(argv[i], "--"))
            only_words = true;
        else if (!only_words && is_option(argv[i]))
            rc = take_option(&p, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        else
            rc = take_word(&p, argv[i]);
    }
    return rc < 0 ? rc : check_words(&p);
}

int ct_arguments_unknown(const struct ct_argument *table, int argc, char **argv)
{
    struct parser p = {table, argv[0], NULL, NULL, 0};
    bool only_words = false;

    for (int i = 1; i < argc; i++) {
        const char *attached;
        const struct ct_argument *a;

        if (!only_words && !strcmp(argv[i], "--")) {
            only_words = true;
        } else if (!only_words && is_option(argv[i])) {
            a = find_option(table, argv[i], &attached);
            if (!a)
                return i;
            i += a->value && !attached;
        } else {
            if (!next_word(&p))
                return i;
            p.words++;
        }
    }
    return 0;
}

void ct_arguments_common(const struct ct_argument *table, int argc, char **argv,
                         struct ct_common_arguments *common)
{
    *common = (struct ct_common_arguments){0};
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *attached;
        const struct ct_argument *a =
            is_option(argv[i]) ? find_option(table, argv[i], &attached) : NULL;

        if (a && is_common(a))
            *(bool *)((char *)common + a->offset) = true;
        i += a && a->value && !attached;
    }
}
