/*
 * Texts in memory of the caller.
 */
#include <stdarg.h>
#include <stdio.h>

#include <ctitan/base.h>

void ct_line_add(struct ct_line *line, const char *fmt, ...)
{
    size_t used = line->used < line->room ? line->used : line->room;
    va_list args;

    va_start(args, fmt);
    line->used +=
        (size_t)vsnprintf(line->room ? line->text + used : NULL, line->room - used, fmt, args);
    va_end(args);
}
