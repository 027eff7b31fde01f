#ifndef DATA_TEACHER_H
#define DATA_TEACHER_H

#include <sys/types.h>

struct reader;
struct data_options;

/*
 * The recipe and the teacher are two models, and a process has one. A child opens the recipe's
 * data and sends its samples; this process opens the teacher.
 */

/* Start a child. *samples: the end of a pipe, which the child writes to, and this process reads
   from. As fork; a failure is recorded. */
pid_t data_teacher_fork(int *samples);
/* In the child. */
int data_teacher_send(const struct reader *reader, int samples);
/* In the other process: write the file, and wait for the child. */
int data_teacher_write(struct data_options *o, pid_t child, int samples);

#endif
