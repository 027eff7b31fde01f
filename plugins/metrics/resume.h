/*
 * Where a run went on: after a start from a checkpoint, or after it went back to one. The first
 * step that is logged from there on has the members "resumed_after" (a step), "ranks", and
 * "changed": {"adamw.lr": ["0.1", "0.2"], "plugin tp": ["not loaded", "loaded"]}, the options that
 * have changed since the run was last started.
 */
#ifndef METRICS_RESUME_H
#define METRICS_RESUME_H

#include <stdio.h>

#include <ctitan/run.h>

/* RUN_OPEN: the dump folder still has the recipe of the last start. */
void resume_open(void);
/* A step ended. */
void resume_step(int64_t step);
/* Write ", " and the members, if a step or more went on elsewhere than after the last one. */
int resume_write(const struct ct_run *run, FILE *out);
void resume_close(void);

#endif
