/*
 * `ctitan check`: crashes. Code of the plugin runs in this process, and may end it. What is being
 * called is kept as text, so that the handler of the signal only has to write it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "check.h"
#include "crash.h"

static char calling[512];

void check_calling(const char *format, ...)
{
    va_list list;

    fflush(stdout);
    va_start(list, format);
    vsnprintf(calling, sizeof(calling), format, list);
    va_end(list);
}

static void crashed(int number)
{
    crash_say(STDOUT_FILENO, "FAILED  ");
    crash_say(STDOUT_FILENO, calling);
    crash_say(STDOUT_FILENO, ": it crashes (");
    crash_say(STDOUT_FILENO, crash_name(number));
    crash_say(STDOUT_FILENO,
              "); nothing after it was tried. `gdb --args ctitan check ..` shows where\n");
    _exit(1);
}

void check_leave_crashes(void)
{
    crash_leave(crashed);
}

void check_catch_crashes(void)
{
    crash_catch(crashed);
}
