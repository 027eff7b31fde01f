#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/lib/outlet.h>

#include "cli.h"

static bool terminal;        /* stderr is a terminal */
static bool status_is_shown; /* the cursor is after a progress line */

static void erase_status(void)
{
    if (status_is_shown)
        ct_outlet_print(STDERR_FILENO, "\r\033[K");
    status_is_shown = false;
}

static const char *level_name(enum ct_log_level level)
{
    switch (level) {
    case CT_LOG_ERROR:
        return "ERROR";
    case CT_LOG_WARNING:
        return "WARNING";
    case CT_LOG_DEBUG:
        return "DEBUG";
    default:
        return "INFO";
    }
}

static void write_line(enum ct_log_level level, const char *line, void *context)
{
    char when[32];
    struct timeval now;
    struct tm local;

    (void)context;
    if (level == CT_LOG_STATUS && !terminal)
        return;
    erase_status();
    if (level == CT_LOG_STATUS) {
        ct_outlet_print(STDERR_FILENO, "%s", line);
        status_is_shown = true;
        return;
    }
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &local);
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &local);
    ct_outlet_print(STDERR_FILENO, "[ctitan] %s,%03d - root - %s - %s\n", when,
                    (int)(now.tv_usec / 1000), level_name(level), line);
}

void log_to_terminal(enum ct_log_level level)
{
    terminal = isatty(STDERR_FILENO) || getenv("CTITAN_TERMINAL");
    ct_log_to(write_line, NULL, level);
}

void log_finish(void)
{
    erase_status();
}
