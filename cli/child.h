/* Other verbs, run in processes of their own: what they print is kept. Folders for what they
   leave. */
#ifndef CT_CHILD_H
#define CT_CHILD_H

#include <stdio.h>
#include <sys/types.h>

#include <ctitan/arena.h>

/* Arguments of a child, in an arena; NULL ends the list. */
struct argv {
    const char **list;
    size_t count, room;
};

/* Add words, which NULL ends. */
void argv_add_list(struct ct_arena *arena, struct argv *argv, const char *const *words);
#define argv_add(arena, argv, ...)                                                                 \
    argv_add_list((arena), (argv), (const char *const[]){__VA_ARGS__, NULL})

struct child {
    pid_t pid;
    int out, err; /* what it prints */
    double end;   /* when it is killed; 0: never */
};

#define THIS_PROGRAM "/proc/self/exe"

/* Run a program, found on PATH, with argv, which NULL ends. patience above 0: the process and its
   own children are a group, which is killed if it runs for more seconds than that. It reads
   nothing. */
int child_start(const char *program, const char *const *argv, double patience, struct child *child);
/* How a launcher's last line ends where the rank that it names has said more before it. */
#define LAST_LINE_ABOVE "; its message is above"

/* Wait for its end, and return its exit status, or 128 + the signal that ended it. *out: what it
   printed, at the beginning; the caller closes it. NULL: not wanted. *last: the last line of its
   messages, without the program's name, and the one before a launcher's. */
int child_finish(struct ct_arena *arena, struct child *child, FILE **out, const char **last);

/* A new folder in $TMPDIR or /tmp, "ctitan-NAME-XXXXXX"; NULL with the failure recorded. */
char *scratch_folder(struct ct_arena *arena, const char *name);
/* Remove a folder that this process has made, with all that is in it. NULL: nothing. */
void scratch_remove(const char *folder);

#endif
