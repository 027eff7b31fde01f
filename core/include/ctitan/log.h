/*
 * Log lines. Libraries and plugins never print: they log, and main() decides where lines go.
 *
 * A status is a line that shows progress and that the next line replaces. Terminals show it; files
 * never get it. Safe from any thread; the sink is called by one thread at a time.
 */
#ifndef CT_LOG_H
#define CT_LOG_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

enum ct_log_level { CT_LOG_ERROR, CT_LOG_WARNING, CT_LOG_INFO, CT_LOG_DEBUG, CT_LOG_STATUS };

typedef void ct_log_sink(enum ct_log_level level, const char *line, void *context);

/* Lines above level are dropped before they are formatted; a status counts as CT_LOG_INFO. sink
   NULL drops everything (the default). */
CT_API void ct_log_to(ct_log_sink *sink, void *context, enum ct_log_level level);
/* Log one line, formatted as by printf, without a final newline. */
CT_API void ct_log(enum ct_log_level level, const char *fmt, ...) CT_PRINTF(2, 3);
#define ct_info(...) ct_log(CT_LOG_INFO, __VA_ARGS__)
#define ct_warn(...) ct_log(CT_LOG_WARNING, __VA_ARGS__)
#define ct_debug(...) ct_log(CT_LOG_DEBUG, __VA_ARGS__)
#define ct_status(...) ct_log(CT_LOG_STATUS, __VA_ARGS__)

CT_END_DECLS

#endif
