/*
 * Standard output and standard error that nobody has to read.
 *
 * A pipe or a terminal whose reader has stopped (`less`, Ctrl-S, a log collector that hangs) makes
 * a process that writes to it stand still, with all ranks that wait for it. An outlet takes what
 * there is no room for, up to CT_OUTLET_ROOM bytes, and passes it on with what is written later. It
 * waits while the reader goes on reading. If it is full and nobody has read for CT_OUTLET_PATIENCE
 * seconds, it drops whole writes, and says later how many lines were lost. A file takes everything.
 *
 * fd is STDOUT_FILENO or STDERR_FILENO. One thread at a time uses an outlet.
 */
#ifndef CT_OUTLET_H
#define CT_OUTLET_H

#include <poll.h>

#include <ctitan/base.h>

CT_BEGIN_DECLS

#define CT_OUTLET_ROOM (1 << 20)
#define CT_OUTLET_PATIENCE 2.0

/* Lines, or a part of one. */
CT_API void ct_outlet_write(int fd, const char *data, size_t bytes);
CT_API void ct_outlet_print(int fd, const char *fmt, ...) CT_PRINTF(2, 3);

/* Whether `bytes` can be written without waiting, because there is room or because they would be
   dropped. */
CT_API bool ct_outlet_has_room(int fd, size_t bytes);

/* For a loop that polls: what to poll for, fd -1 if nothing waits; and to pass on what waits. */
CT_API struct pollfd ct_outlet_poll(int fd);
CT_API void ct_outlet_push(int fd);

/* Write at once what the reader takes, before all that waits. Safe in a handler of a signal. */
CT_API void ct_outlet_interject(int fd, const char *data, size_t bytes);

/* The process is to end: from now on, nothing here waits longer than half a second for a reader.
   Safe in a handler of a signal. */
CT_API void ct_outlet_hurry(void);

/* Pass on what waits, as long as that takes, or after ct_outlet_hurry for half a second. */
CT_API void ct_outlet_flush(int fd);

CT_END_DECLS

#endif
