/*
 * `ctitan check`: crashes. Code of the plugin runs in this process, and may end it. What is being
 * called is kept as text, so that the handler of the signal only has to write it.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static char calling[512];

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGSEGV, "SIGSEGV: memory that is not there"},
               {SIGBUS, "SIGBUS: memory that is not there"},
               {SIGFPE, "SIGFPE: an integer divided by 0"},
               {SIGILL, "SIGILL: no instruction of this processor"},
               {SIGABRT, "SIGABRT: an assertion, or damaged memory"}};

void check_calling(const char *format, ...)
{
    va_list list;

    fflush(stdout);
    va_start(list, format);
    vsnprintf(calling, sizeof(calling), format, list);
    va_end(list);
}

static void say(const char *text)
{
    if (write(STDOUT_FILENO, text, strlen(text)) < 0)
        _exit(1);
}

static void crashed(int number)
{
    say("FAILED  ");
    say(calling);
    say(": it crashes (");
    for (size_t i = 0; i < CT_COUNT(signals); i++)
        if (signals[i].number == number)
            say(signals[i].name);
    say("); nothing after it was tried. `gdb --args ctitan check ..` shows where\n");
    _exit(1);
}

void check_leave_crashes(void)
{
    struct sigaction now;

    for (size_t i = 0; i < CT_COUNT(signals); i++)
        if (sigaction(signals[i].number, NULL, &now) == 0 && now.sa_handler == crashed)
            signal(signals[i].number, SIG_DFL);
}

void check_catch_crashes(void)
{
    struct sigaction action = {.sa_handler = crashed, .sa_flags = SA_ONSTACK}, before;
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16}; /* where none is left */

    if (stack.ss_sp)
        sigaltstack(&stack, NULL);
    for (size_t i = 0; i < CT_COUNT(signals); i++)
        if (sigaction(signals[i].number, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(signals[i].number, &action, NULL); /* a sanitizer's handler stays */
}
