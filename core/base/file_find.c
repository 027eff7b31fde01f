/*
 * Files by shell patterns. Braces are expanded here: glob() would leave out an alternative that
 * names nothing, as long as another one names something.
 */
#include <glob.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

struct found {
    struct ct_arena *arena;
    char **paths;
    size_t count, room;
};

static void add(struct found *f, const char *path)
{
    f->paths = ct_arena_grow(f->arena, f->paths, &f->room, f->count + 1, sizeof(*f->paths));
    f->paths[f->count++] = ct_arena_strdup(f->arena, path);
}

/* A name may hold characters of patterns. */
static int add_matches(struct found *f, const char *pattern)
{
    char here[CT_PATH_ROOM];
    glob_t found;

    if (glob(pattern, GLOB_TILDE, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            add(f, found.gl_pathv[i]);
        globfree(&found);
        return 0;
    }
    globfree(&found);
    if (access(pattern, F_OK) < 0)
        return ct_fail(CT_ECONFIG, "no file or folder '%s' from the current folder, %s", pattern,
                       getcwd(here, sizeof(here)) ? here : "which is gone");
    add(f, pattern);
    return 0;
}

/* The ',' or '}' that ends an alternative; NULL: the brace is not closed. */
static const char *alternative_end(const char *at)
{
    for (int depth = 0; *at; at++) {
        if (*at == '\\' && at[1])
            at++;
        else if (*at == '{')
            depth++;
        else if ((*at == '}' || *at == ',') && depth == 0)
            return at;
        else if (*at == '}')
            depth--;
    }
    return NULL;
}

static const char *brace_end(const char *at)
{
    const char *end = alternative_end(at);

    while (end && *end == ',')
        end = alternative_end(end + 1);
    return end;
}

/* The first brace that is closed, or NULL. */
static const char *find_brace(const char *at)
{
    for (; *at; at++) {
        if (*at == '\\' && at[1])
            at++;
        else if (*at == '{' && brace_end(at + 1))
            return at;
    }
    return NULL;
}

static int expand(struct found *f, const char *pattern)
{
    const char *open = find_brace(pattern), *close = open ? brace_end(open + 1) : NULL, *end;
    int rc = 0;

    if (!open)
        return add_matches(f, pattern);
    for (const char *at = open + 1; rc == 0 && at <= close; at = end + 1) {
        end = alternative_end(at);
        rc = expand(f, ct_arena_printf(f->arena, "%.*s%.*s%s", (int)(open - pattern), pattern,
                                       (int)(end - at), at, close + 1));
    }
    return rc;
}

int ct_file_find(struct ct_arena *arena, const char *pattern, char ***paths, size_t *count)
{
    struct found f = {.arena = arena};
    int rc = expand(&f, pattern);

    *paths = f.paths;
    *count = f.count;
    return rc;
}
