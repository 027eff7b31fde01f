/*
 * Time, from the one clock that is used everywhere.
 */
#ifndef CT_CLOCK_H
#define CT_CLOCK_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

/* Seconds of CLOCK_MONOTONIC. */
CT_API double ct_now(void);
/* Sleep for this many seconds, or until a signal arrives. */
CT_API void ct_nap(double seconds);

CT_END_DECLS

#endif
