/*
 * Reading a recipe's text through inih.
 *
 * inih (as Debian builds it) gives its handler no line numbers, splits lines at 200 characters and
 * does not report sections. Our own line reader in front of it joins continuation lines, drops
 * comments, and records line numbers and sections. As a value may have any length, the reader keeps
 * it: inih gets the key alone, and the handler takes the value from the reader.
 */
#include <ctype.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

#include "recipe/settings.h"

struct reader {
    struct ct_recipe *recipe;
    const char *at;     /* next physical line */
    int physical;       /* its number, from 1 */
    int line;           /* first physical line of the logical line last returned */
    const char *aside;  /* its value, when inih got the key alone */
    bool recorded;      /* by a run: comments say which values were defaults */
    bool was_default;   /* the value of the logical line last returned */
    const char *wrong;  /* with the quotes of that value; NULL: nothing */
    int *began;         /* by inih's line number, from 1: physical line of that logical line */
    size_t lines, room; /* used and allocated length of began */
    int rc;
};

bool ct_recipe_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

bool ct_recipe_begins_setting(const char *text, size_t length, bool in_list)
{
    size_t name = *text == '[', end;

    for (end = name; end < length && is_name(text[end]);)
        end++;
    if (end == name || isdigit((unsigned char)text[name]) || strchr("-.", text[name]))
        return false;
    if (name)
        return end + 1 == length && text[end] == ']';
    for (name = end; end < length && ct_recipe_is_space(text[end]);)
        end++;
    if (end == length || text[end] != ':')
        return end < length && text[end] == '=';
    return !in_list && (end > name || end + 1 == length || ct_recipe_is_space(text[end + 1]));
}

static int CT_PRINTF(3, 4) fail_at(struct reader *r, int line, const char *fmt, ...)
{
    char what[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return r->rc = ct_fail(CT_ECONFIG, "%s:%d: %s", r->recipe->path, line, what);
}

size_t ct_recipe_without_comment(const char *text, size_t length)
{
    length = ct_recipe_comment(text, length);
    while (length && ct_recipe_is_space(text[length - 1]))
        length--;
    return length;
}

struct physical {
    const char *text;
    size_t length;     /* without comment and trailing space; 0: empty */
    size_t quoted;     /* bytes at its end that are in quotes, with these */
    const char *wrong; /* with quotes; NULL: nothing */
    bool indented;
    bool ends_default; /* its comment says so */
    const char *next;
};

/* Whether a line ends with the words. */
static bool ends_with(const char *line, size_t length, const char *words)
{
    size_t end = strlen(words);

    while (length && ct_recipe_is_space(line[length - 1]))
        length--;
    return length >= end && !memcmp(line + length - end, words, end);
}

/* Where a line has a value, or goes on with one. */
static size_t value_at(const char *line, size_t length)
{
    size_t at = 0;

    if (length && !ct_recipe_is_space(*line))
        at = strchr("[;#", *line) ? length : strcspn(line, "=:\n") + 1;
    while (at < length && ct_recipe_is_space(line[at]))
        at++;
    return at < length ? at : length;
}

static struct physical look(const char *at, bool in_list, bool recorded)
{
    size_t whole = strcspn(at, "\n"), value = value_at(at, whole);
    struct physical p = {.text = at, .next = at + whole + (at[whole] == '\n')};

    p.quoted = ct_recipe_quoted(at + value, whole - value);
    p.wrong = ct_recipe_misquoted(at + value, whole - value, in_list, recorded);
    p.length = p.quoted ? value + p.quoted : ct_recipe_without_comment(at, whole);
    p.ends_default = ends_with(at + p.length, whole - p.length, "; " CT_RECIPE_DEFAULT) ||
                     ends_with(at + p.length, whole - p.length, ", " CT_RECIPE_DEFAULT);
    p.indented = p.length && ct_recipe_is_space(*at);
    while (p.length && ct_recipe_is_space(*p.text)) {
        p.text++;
        p.length--;
    }
    return p;
}

static int take(struct reader *r, struct physical *p, bool in_list)
{
    *p = look(r->at, in_list, r->recorded);
    r->at = p->next;
    r->physical++;
    if (p->length > CT_RECIPE_LINE)
        return fail_at(r, r->physical - 1, "the line has more than %d characters", CT_RECIPE_LINE);
    return 0;
}

struct line {
    char *text;
    size_t length, room;
};

static void append(struct reader *r, struct line *line, const struct physical *p)
{
    size_t space = line->length ? 1 : 0, plain = p->length - p->quoted;

    line->text = ct_arena_grow(r->recipe->arena, line->text, &line->room,
                               line->length + space + p->length + 1, 1);
    if (space)
        line->text[line->length] = ' ';
    memcpy(line->text + line->length + space, p->text, plain);
    line->length += space + plain;
    line->length += ct_recipe_unquote(p->text + plain, p->quoted, line->text + line->length);
    if (!r->wrong)
        r->wrong = p->wrong;
}

static int refuse_indentation(struct reader *r, const struct physical *p, int begun)
{
    int length = p->length < 60 ? (int)p->length : 60, at = r->physical - 1;

    if (ct_recipe_begins_setting(p->text, p->length, false) && begun)
        return fail_at(r, at,
                       "'%.*s' is indented, so it would continue the value of line %d: remove the "
                       "indentation; text that belongs to the value goes to the end of the line "
                       "before",
                       length, p->text, begun);
    if (ct_recipe_begins_setting(p->text, p->length, false))
        return fail_at(r, at, "'%.*s' is indented: remove the indentation", length, p->text);
    return fail_at(
        r, at,
        "a line that begins with white space continues a value; there is none before it: "
        "remove the indentation");
}

/* The next logical line, NULL at the end. Comments and empty lines do not end a continuation. */
static char *logical_line(struct reader *r)
{
    struct physical p = {0};
    struct line line = {0};

    while (*r->at && !p.length)
        if (take(r, &p, false) < 0)
            return NULL;
    if (!p.length)
        return NULL;
    r->line = r->physical - 1;
    r->wrong = NULL;
    r->was_default = r->recorded && p.ends_default;
    if (p.indented) {
        refuse_indentation(r, &p, 0);
        return NULL;
    }
    append(r, &line, &p);
    while (*r->at && *line.text != '[') {
        bool in_list = line.text[line.length - 1] == ',';

        p = look(r->at, in_list, r->recorded);
        if (p.length && !p.indented)
            break;
        if (take(r, &p, in_list) < 0)
            return NULL;
        if (ct_recipe_begins_setting(p.text, p.length, in_list)) {
            refuse_indentation(r, &p, r->line);
            return NULL;
        }
        if (p.length)
            append(r, &line, &p);
    }
    return line.text;
}

static int open_section(struct reader *r, const char *line)
{
    size_t length = strcspn(line + 1, "]");
    struct ct_recipe *recipe = r->recipe;
    const struct ct_setting *twin;
    const char *name;

    if (!line[1 + length])
        return fail_at(r, r->line, "the section %s has no closing ]", line);
    if (line[2 + length])
        return fail_at(r, r->line, "'%s' after the section's closing ]", line + 2 + length);
    name = ct_arena_printf(recipe->arena, "%.*s", (int)length, line + 1);
    if (!length || length > CT_RECIPE_NAME || strpbrk(name, " \t"))
        return fail_at(r, r->line,
                       "[%s] is not a section's name: expected 1 to 48 characters without spaces",
                       name);
    twin = ct_recipe_section(recipe, name);
    if (twin)
        return fail_at(r, r->line, "section [%s] already began at %s", name, twin->source);
    ct_recipe_add_section(recipe, name,
                          ct_arena_printf(recipe->arena, "%s:%d", recipe->path, r->line));
    return 0;
}

/* Check the key of "key = value" and keep the value in the reader, so that inih sees "key =". */
static int set_aside(struct reader *r, char *line)
{
    size_t length = strcspn(line, "=:");
    char *value = line + length + 1;

    r->aside = NULL;
    if (!line[length])
        return fail_at(r, r->line, "expected 'key = value' or '[section]', not '%.60s'", line);
    if (!r->recipe->section_count)
        return fail_at(r, r->line, "'%.60s' stands before the first [section]", line);
    while (length && ct_recipe_is_space(line[length - 1]))
        length--;
    if (!length || length > CT_RECIPE_NAME)
        return fail_at(r, r->line, "'%.60s' is not a key: expected 1 to 48 characters", line);
    if (!ct_recipe_is_utf8(line))
        return fail_at(r, r->line, "'%.60s' is not UTF-8, which recipes are written in", line);
    r->aside = ct_arena_strdup(r->recipe->arena, value + strspn(value, " \t"));
    *value = '\0';
    return 0;
}

/* inih's fgets: returns one logical line that fits its buffer. */
static char *next_line(char *buffer, int size, void *stream)
{
    struct reader *r = stream;
    char *line = r->rc < 0 ? NULL : logical_line(r);

    if (!line)
        return NULL;
    r->began = ct_arena_grow(r->recipe->arena, r->began, &r->room, r->lines + 1, sizeof(*r->began));
    r->began[r->lines++] = r->line;
    if ((*line == '[' ? open_section(r, line) : set_aside(r, line)) < 0)
        return NULL;
    if ((size_t)snprintf(buffer, (size_t)size, "%s", line) >= (size_t)size) {
        fail_at(r, r->line, "'%.60s...' is too long for a name", line);
        return NULL;
    }
    return buffer;
}

static int on_setting(void *user, const char *section, const char *key, const char *value)
{
    struct reader *r = user;
    struct ct_recipe *recipe = r->recipe;
    const struct ct_setting *twin = ct_recipe_find(recipe, section, key);

    (void)value;
    if (twin) {
        fail_at(r, r->line, "[%s] %s was already set at %s", section, key, twin->source);
        return 0;
    }
    if (r->wrong) {
        fail_at(r, r->line, "[%s] %s = %.80s: %s", section, key, r->aside, r->wrong);
        return 0;
    }
    ct_recipe_add(recipe, section, key, r->aside,
                  ct_arena_printf(recipe->arena, "%s:%d", recipe->path, r->line));
    recipe->settings[recipe->count - 1].was_default = r->was_default;
    return 1;
}

static int parse(struct reader *r)
{
    int bad = ini_parse_stream(next_line, r, on_setting, r);

    if (r->rc < 0)
        return r->rc;
    if (bad > 0 && (size_t)bad <= r->lines)
        return fail_at(r, r->began[bad - 1], "expected 'key = value' or '[section]'");
    return ct_recipe_list_plugins(r->recipe);
}

/* A failure names the kind that the file's name says. */
static int parse_kind(struct reader *r)
{
    const char *suffix = strrchr(r->recipe->path, '.');
    bool toml = suffix && !strcmp(suffix, ".toml");
    int rc = parse(r);

    if (rc == 0 && toml)
        rc = ct_recipe_check_values(r->recipe);
    return rc < 0 && toml
               ? ct_context(rc, "%s: this is TOML, but a recipe is an INI file", r->recipe->path)
               : rc;
}

int ct_recipe_parse(struct ct_arena *arena, const char *path, const char *text,
                    struct ct_recipe **recipe)
{
    struct reader r = {.at = text, .physical = 1};
    int rc;

    if (!strncmp(text, "\xef\xbb\xbf", 3))
        r.at += 3;
    r.recorded = *r.at == ';' && ends_with(r.at, strcspn(r.at, "\n"), CT_RECIPE_RECORDED);
    r.recipe = ct_arena_new(arena, struct ct_recipe);
    r.recipe->arena = arena;
    r.recipe->path = ct_arena_strdup(arena, path);
    if (!ct_recipe_is_utf8(path))
        return ct_fail(CT_ECONFIG, "recipe %s: its name is not UTF-8", path);
    rc = ct_recipe_check_kind(path, r.at);
    if (rc == 0)
        rc = parse_kind(&r);
    if (rc == 0)
        *recipe = r.recipe;
    return rc;
}

int ct_recipe_read(struct ct_arena *arena, const char *path, struct ct_recipe **recipe)
{
    char *text;
    size_t size;
    int rc = ct_file_read(arena, path, CT_RECIPE_FILE, &text, &size);

    if (rc < 0)
        return rc == CT_ENOENT ? rc : CT_ECONFIG;
    if (strlen(text) != size)
        return ct_fail(CT_ECONFIG, "%s: not an INI file: it has a zero byte", path);
    return ct_recipe_parse(arena, path, text, recipe);
}
