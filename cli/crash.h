/* Signals by which code of plugins ends a process. */
#ifndef CT_CLI_CRASH_H
#define CT_CLI_CRASH_H

/* Call handler on crashes from now on, on a stack of its own, once; a sanitizer's handler stays. */
void crash_catch(void (*handler)(int number));
/* Leave crashes to the system again, where handler is set. */
void crash_leave(void (*handler)(int number));
/* "SIGSEGV: memory that is not there" */
const char *crash_name(int number);
/* Write text to fd; for handlers. */
void crash_say(int fd, const char *text);

/*
 * While a run trains: a crash is said to be that of the plugin, hook or op that was called, and
 * then ends the process as without this. `run_interrupted` is called by the handler of a signal
 * that asks the run to end: code of a plugin that does not return is named after 2 s, and ends the
 * process by the same signal after 20 s.
 */
void run_catch_crashes(int rank);
void run_interrupted(int number);
void run_leave_crashes(void);

#endif
