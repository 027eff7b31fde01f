/*
 * Log lines on standard error. A file or a program gets TorchTitan's form of a line; a terminal,
 * where somebody looks on, the time of day, and the level of warnings and errors alone.
 */
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/lib/outlet.h>
#include <ctitan/lib/terminal.h>

#include "cli.h"

static int columns;          /* of the terminal; 0: it is none */
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

/* A line that wraps could not be erased. */
static void show_status(const char *line)
{
    ct_outlet_print(STDERR_FILENO, "%.*s", columns - 1, line);
    status_is_shown = true;
}

static void write_short(enum ct_log_level level, const struct tm *when, const char *line)
{
    static const char *const names[] = {[CT_LOG_ERROR] = "error: ", [CT_LOG_WARNING] = "warning: "};
    const char *name = level <= CT_LOG_WARNING ? names[level] : "";

    ct_outlet_print(STDERR_FILENO, "%02d:%02d:%02d %s%s\n", when->tm_hour, when->tm_min,
                    when->tm_sec, name, line);
}

static void write_long(enum ct_log_level level, const struct tm *when, int milliseconds,
                       const char *line)
{
    char text[32];

    strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", when);
    ct_outlet_print(STDERR_FILENO, "[ctitan] %s,%03d - root - %s - %s\n", text, milliseconds,
                    level_name(level), line);
}

static void write_line(enum ct_log_level level, const char *line, void *context)
{
    struct timeval now;
    struct tm local;

    (void)context;
    if (level == CT_LOG_STATUS && !columns)
        return;
    erase_status();
    if (level == CT_LOG_STATUS) {
        show_status(line);
        return;
    }
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &local);
    if (columns)
        write_short(level, &local, line);
    else
        write_long(level, &local, (int)(now.tv_usec / 1000), line);
}

static bool quiet, verbose;
static enum ct_log_level chosen = CT_LOG_WARNING; /* before the limits */

void log_limit(bool be_quiet, bool be_verbose)
{
    quiet = be_quiet;
    verbose = be_verbose;
    log_to_terminal(chosen);
}

void log_to_terminal(enum ct_log_level level)
{
    chosen = level;
    if (quiet && level > CT_LOG_WARNING)
        level = CT_LOG_WARNING;
    if (verbose)
        level = CT_LOG_DEBUG;
    columns = ct_terminal_columns(STDERR_FILENO);
    ct_log_to(write_line, NULL, level);
}

void log_finish(void)
{
    erase_status();
}
