/*
 * The faults that a check of this folder finds.
 */
#ifndef CT_VERIFY_FAULTS_H
#define CT_VERIFY_FAULTS_H

#include <stdio.h>

#include <ctitan/base.h>

/* Zeroed at first, except for report. */
struct ct_faults {
    FILE *report; /* where each is a line; NULL: nowhere */
    int count;
    char first[512];
};
/* Count a fault, write it to report as a line, and keep the first. */
void ct_fault(struct ct_faults *faults, const char *fmt, ...) CT_PRINTF(2, 3);
/* 0: there was none. Else records the first as this thread's failure, and returns CT_EINVAL. */
int ct_faults_end(const struct ct_faults *faults);

#endif
