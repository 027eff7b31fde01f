/*
 * Monotonic time, and the time of day.
 */
#ifndef CT_CLOCK_H
#define CT_CLOCK_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

/* Seconds of CLOCK_MONOTONIC. */
CT_API double ct_now(void);
/* Seconds since 1970, of CLOCK_REALTIME. It may be set back: for files, not for durations. */
CT_API double ct_wall_clock(void);
/* Sleep for this many seconds, or until a signal arrives. */
CT_API void ct_nap(double seconds);

CT_END_DECLS

#endif
