/*
 * Patterns of parameters' names. The nearest parameter to a pattern is the one of which a part, or
 * an end, is nearest to what stands between the pattern's stars.
 */
#include <fnmatch.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/option.h>

#define BETWEEN ", \t"

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
