/*
 * Text that can be read only once: the output of a process, and what comes through a pipe.
 *
 * It is read to its end into a spool. A process must end with status 0; the writer of a pipe tells
 * nothing but that it has ended.
 */
#ifndef STREAM_H
#define STREAM_H

#include "spool.h"

/* Run `command` by sh, without input, and write its output to out. Its stderr goes to this
   process's. CT_ECONFIG: it cannot be started, or it fails; the message has its last line. CT_EIO:
   out is full. */
int stream_run(const char *command, struct spool *out);
/* Read a pipe, after the wait for its writer. CT_ECONFIG: it cannot be opened. CT_EIO. */
int stream_read(const char *path, struct spool *out);

#endif
