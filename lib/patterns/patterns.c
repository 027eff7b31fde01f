/*
 * Patterns of parameters' names. The nearest parameter to a pattern is the one of which a part, or
 * an end, is nearest to what stands between the pattern's stars.
 */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/option.h>

#define BETWEEN ", \t"

bool ct_ends_in(const char *name, const char *end)
{
    size_t size = strlen(name), length = strlen(end);

    return size >= length && !strcmp(name + size - length, end);
}

struct ct_patterns ct_patterns_read(struct ct_arena *arena, const char *list)
{
    char *rest = ct_arena_strdup(arena, list), *item;
    struct ct_patterns p = {ct_arena_array(arena, const char *, strlen(list) / 2 + 1), 0};

    while ((item = strsep(&rest, BETWEEN)))
        if (*item)
            p.pattern[p.count++] = item;
    return p;
}

int ct_patterns_find(const struct ct_patterns *p, const char *name)
{
    for (size_t i = 0; i < p->count; i++)
        if (!fnmatch(p->pattern[i], name, 0))
            return (int)i;
    return -1;
}

/* ---- patterns that fit nothing ---- */

struct words {
    struct ct_arena arena;
    const char **word, **of; /* of: the parameter's name */
    size_t count, room, of_room;
};

static void add_word(struct words *w, const char *word, const char *of)
{
    w->word = ct_arena_grow(&w->arena, w->word, &w->room, w->count + 1, sizeof(*w->word));
    w->of = ct_arena_grow(&w->arena, w->of, &w->of_room, w->count + 1, sizeof(*w->of));
    w->word[w->count] = word;
    w->of[w->count++] = of;
}

/* The name, what follows each of its dots, and the parts between them. */
static void add_words(struct words *w, const char *name)
{
    for (const char *at = name; at; at = strchr(at, '.')) {
        at += *at == '.';
        add_word(w, at, name);
        add_word(w, ct_arena_printf(&w->arena, "%.*s", (int)strcspn(at, "."), at), name);
    }
}

static const char *nearest(struct words *w, const char *pattern)
{
    const char *begin = pattern + strspn(pattern, "*.");
    size_t length = strlen(begin);
    const char *near;

    while (length && strchr("*.", begin[length - 1]))
        length--;
    near = ct_nearest(ct_arena_printf(&w->arena, "%.*s", (int)length, begin), w->word, w->count);
    for (size_t i = 0; near && i < w->count; i++)
        if (w->word[i] == near)
            return w->of[i];
    return NULL;
}

static int refuse(const char *pattern, struct ct_value *const *params, size_t count,
                  const char *where)
{
    struct words w = {.count = 0};
    const char *near;

    for (size_t i = 0; i < count; i++)
        add_words(&w, params[i]->name);
    near = nearest(&w, pattern);
    ct_fail(CT_ECONFIG, "%s: %s fits no parameter; %s is %s", where, pattern,
            near ? "the nearest" : "one",
            near    ? near
            : count ? params[0]->name
                    : "not there");
    ct_arena_finish(&w.arena);
    return CT_ECONFIG;
}

int ct_patterns_check(const struct ct_patterns *p, struct ct_value *const *params, size_t count,
                      const char *where)
{
    for (size_t i = 0; i < p->count; i++) {
        size_t k = 0;

        while (k < count && fnmatch(p->pattern[i], params[k]->name, 0))
            k++;
        if (k == count)
            return refuse(p->pattern[i], params, count, where);
    }
    return 0;
}

/* ---- factors ---- */

/* Split the factor off a pattern. */
static int read_factor(char *entry, const char *where, double *factor)
{
    char *colon = strrchr(entry, ':'), *end = NULL;

    if (colon && colon > entry)
        *factor = strtod(colon + 1, &end);
    if (!end || end == colon + 1 || *end || !isfinite(*factor) || *factor < 0)
        return ct_fail(CT_ECONFIG,
                       "%s: %s: expected PATTERN:FACTOR with a factor of at least 0, such as "
                       "*embed*:0.1",
                       where, entry);
    *colon = '\0';
    return 0;
}

/* An entry behind others that have all its parameters would be ignored. */
static int check_order(const struct ct_patterns *p, struct ct_value *const *params, size_t count,
                       const char *where)
{
    for (int k = 0; k < (int)p->count; k++) {
        size_t i = 0;

        while (i < count && ct_patterns_find(p, params[i]->name) != k)
            i++;
        if (i == count)
            return ct_fail(CT_ECONFIG,
                           "%s: patterns before %s fit all its parameters: put it in front of them",
                           where, p->pattern[k]);
    }
    return 0;
}

int ct_factors_read(struct ct_arena *arena, const char *list, struct ct_value *const *params,
                    size_t count, const char *where, struct ct_factors *f)
{
    int rc = 0;

    f->patterns = ct_patterns_read(arena, list);
    f->factor = ct_arena_array(arena, double, f->patterns.count);
    for (size_t i = 0; rc == 0 && i < f->patterns.count; i++) {
        char *entry = ct_arena_strdup(arena, f->patterns.pattern[i]);

        rc = read_factor(entry, where, &f->factor[i]);
        f->patterns.pattern[i] = entry;
    }
    if (rc == 0)
        rc = ct_patterns_check(&f->patterns, params, count, where);
    return rc == 0 ? check_order(&f->patterns, params, count, where) : rc;
}

double ct_factors_of(const struct ct_factors *factors, const char *name)
{
    int i = ct_patterns_find(&factors->patterns, name);

    return i < 0 ? 1 : factors->factor[i];
}
