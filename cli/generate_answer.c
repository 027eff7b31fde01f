/*
 * The text of an answer: found stops, and the part of it that can be printed.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include "generate.h"

bool stops_have(const struct stops *stops, int32_t token)
{
    for (size_t i = 0; i < stops->ids_count; i++)
        if (stops->ids[i] == token)
            return true;
    return false;
}

/* The first stop that begins at `from` or later; NULL: none. */
static const char *find_stop(const struct answer *a, const struct stops *stops, size_t from)
{
    const char *first = NULL;

    for (size_t i = 0; i < stops->count; i++) {
        const char *at =
            memmem(a->text + from, a->size - from, stops->texts[i], strlen(stops->texts[i]));

        if (at && (!first || at < first))
            first = at;
    }
    return first;
}

bool answer_add(struct ct_arena *arena, struct answer *a, const struct stops *stops,
                const char *text, size_t size)
{
    size_t from = a->size < stops->longest ? 0 : a->size - stops->longest;
    const char *stop;

    if (!size)
        return false;
    a->text = ct_arena_grow(arena, a->text, &a->room, a->size + size, 1);
    memcpy(a->text + a->size, text, size);
    a->size += size;
    stop = find_stop(a, stops, from);
    if (stop)
        a->size = (size_t)(stop - a->text);
    return stop != NULL;
}

/* Bytes before the end that may be the beginning of a stop. */
static size_t held_for_stops(const struct answer *a, const struct stops *stops)
{
    size_t most = 0;

    for (size_t i = 0; i < stops->count; i++)
        for (size_t n = strlen(stops->texts[i]); n-- > most;)
            if (n && n <= a->size && !memcmp(a->text + a->size - n, stops->texts[i], n))
                most = n;
    return most;
}

/* Bytes of a UTF-8 character at the end of a text that needs more of them. */
static size_t unfinished(const char *text, size_t size)
{
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char c = (unsigned char)text[size - back];
        size_t needs = c >= 0xf0 && c < 0xf8 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;

        if (c >= 0xf8 || c < 0x80)
            return 0;
        if (c >= 0xc0)
            return needs > back ? back : 0;
    }
    return 0;
}

int answer_show(struct answer *a, const struct stops *stops, bool ended)
{
    size_t end = a->size - (ended ? 0 : held_for_stops(a, stops));

    if (!ended)
        end -= unfinished(a->text, end);
    if (end > a->shown) {
        fwrite(a->text + a->shown, 1, end - a->shown, stdout);
        a->shown = end;
    }
    return fflush(stdout) ? ct_fail(CT_EIO, "stdout: %s", strerror(errno)) : 0;
}
