/* Samples of the op types of the core and of lib/ops that do not give their own. */
#ifndef TEST_SAMPLE_H
#define TEST_SAMPLE_H

#include <ctitan/lib/app/check.h>

/* {NULL} ends it. */
extern const struct ct_sample samples[];

#endif
