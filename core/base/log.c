/*
 * One sink for all threads, called under a lock.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <ctitan/log.h>

#include "base/log.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ct_log_sink *log_sink;
static void *log_context;
static atomic_int log_level = -1;
static _Thread_local int hushed; /* calls of ct_log_hush without the other one */

void ct_log_to(ct_log_sink *sink, void *context, enum ct_log_level level)
{
    pthread_mutex_lock(&lock);
    log_sink = sink;
    log_context = context;
    log_level = sink ? (int)level : -1;
    pthread_mutex_unlock(&lock);
}

void ct_log_hush(void)
{
    hushed++;
}

void ct_log_unhush(void)
{
    hushed--;
}

/* Whether a line of this level would be dropped. */
static bool is_dropped(enum ct_log_level level)
{
    int needed = level == CT_LOG_STATUS ? (int)CT_LOG_INFO : (int)level;

    return needed > log_level || (hushed && needed >= (int)CT_LOG_INFO);
}

static void deliver(enum ct_log_level level, const char *line)
{
    pthread_mutex_lock(&lock);
    if (log_sink)
        log_sink(level, line, log_context);
    pthread_mutex_unlock(&lock);
}

void ct_log(enum ct_log_level level, const char *fmt, ...)
{
    char line[512], *longer = NULL;
    va_list args;
    int length;

    if (is_dropped(level))
        return;
    va_start(args, fmt);
    length = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (length >= (int)sizeof(line)) {
        va_start(args, fmt);
        if (vasprintf(&longer, fmt, args) < 0)
            longer = NULL;
        va_end(args);
    }
    deliver(level, longer ? longer : line);
    free(longer);
}
