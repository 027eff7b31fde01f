/*
 * The names of streams: a short, process-wide table.
 */
#include <string.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/stream.h>

static struct {
    struct ct_arena arena;
    const char *name[CT_STREAMS];
    unsigned properties[CT_STREAMS];
    int count;
} table = {.name = {[CT_STREAM_COMPUTE] = "compute"}, .count = 1};

static bool is_name(const char *name)
{
    return *name && !name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                       "0123456789_")];
}

static int position(const char *name)
{
    int i = 0;

    while (i < table.count && strcmp(table.name[i], name) != 0)
        i++;
    return i;
}

int ct_stream_find(const char *name)
{
    int i = position(name);

    return i < table.count ? i : CT_ENOENT;
}

int ct_stream(const char *name, unsigned properties)
{
    int i = position(name);

    if (i == table.count && !is_name(name))
        return ct_fail(CT_EINVAL, "stream \"%s\": a name has letters, digits and '_'", name);
    if (i == CT_STREAMS)
        return ct_fail(CT_EINVAL, "no room for stream %s: there are %d already", name, CT_STREAMS);
    if (i == table.count)
        table.name[table.count++] = ct_arena_strdup(&table.arena, name);
    table.properties[i] |= properties;
    return i;
}

int ct_stream_count(void)
{
    return table.count;
}

const char *ct_stream_name(int stream)
{
    return stream >= 0 && stream < table.count ? table.name[stream] : NULL;
}

unsigned ct_stream_properties(int stream)
{
    return stream >= 0 && stream < table.count ? table.properties[stream] : 0;
}
