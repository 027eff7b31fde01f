/*
 * Optimal string alignment distance (Damerau 1964, with at most one edit per position). Insertions,
 * deletions, replacements and swaps of neighbours each count one.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/option.h>

#define LONGEST 64

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    size_t rows[3][LONGEST + 1], *two = rows[0], *one = rows[1], *now = rows[2];

    for (size_t j = 0; j <= m; j++)
        one[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *oldest = two;

        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = least(least(one[j], now[j - 1]) + 1, one[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], two[j - 2] + 1);
        }
        two = one;
        one = now;
        now = oldest;
    }
    return one[m];
}

const char *ct_nearest(const char *word, const char *const *names, size_t count)
{
    size_t length = strlen(word), best = (length + 2) / 3 + 1;
    const char *nearest = NULL;

    if (length > LONGEST)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t d = strlen(names[i]) > LONGEST ? best : distance(word, names[i]);

        if (d >= best || d >= strlen(names[i]))
            continue;
        best = d;
        nearest = names[i];
    }
    return nearest;
}

const char *ct_did_you_mean(const char *word, const char *const *names, size_t count)
{
    static _Thread_local char text[LONGEST + 24];
    const char *near = ct_nearest(word, names, count);

    *text = '\0';
    if (near)
        snprintf(text, sizeof(text), "; did you mean %s?", near);
    return text;
}
