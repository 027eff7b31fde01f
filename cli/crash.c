/* Catching crashes. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/arena.h>

#include "crash.h"

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGSEGV, "SIGSEGV: memory that is not there"},
               {SIGBUS, "SIGBUS: memory that is not there"},
               {SIGFPE, "SIGFPE: an integer divided by 0"},
               {SIGILL, "SIGILL: no instruction of this processor"},
               {SIGABRT, "SIGABRT: an assertion, or damaged memory"}};

const char *crash_name(int number)
{
    for (size_t i = 0; i < CT_COUNT(signals); i++)
        if (signals[i].number == number)
            return signals[i].name;
    return "a signal";
}

void crash_say(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) < 0)
        return;
}

void crash_leave(void (*handler)(int number))
{
    struct sigaction now;

    for (size_t i = 0; i < CT_COUNT(signals); i++)
        if (sigaction(signals[i].number, NULL, &now) == 0 && now.sa_handler == handler)
            signal(signals[i].number, SIG_DFL);
}

void crash_catch(void (*handler)(int number))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = (int)(SA_ONSTACK | SA_RESETHAND)},
                     before;
    static stack_t stack = {.ss_size = 1 << 16}; /* where none is left */

    if (!stack.ss_sp)
        stack.ss_sp = malloc(stack.ss_size);
    if (stack.ss_sp)
        sigaltstack(&stack, NULL);
    for (size_t i = 0; i < CT_COUNT(signals); i++)
        if (sigaction(signals[i].number, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(signals[i].number, &action, NULL);
}
