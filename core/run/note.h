/* Notes of a run (ct_run_note in hook.h) at another level of the log. For core only. */
#ifndef CT_RUN_NOTE_H
#define CT_RUN_NOTE_H

#include <ctitan/log.h>
#include <ctitan/run.h>

/* Log a text and fire NOTE with it. On rank 0; other ranks do nothing. */
int ct_run_tell(struct ct_run *run, enum ct_log_level level, int64_t step, const char *kind,
                const char *text);

#endif
