#include <time.h>

#include <ctitan/clock.h>

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double ct_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double ct_wall_clock(void)
{
    return seconds_of(CLOCK_REALTIME);
}

void ct_nap(double seconds)
{
    time_t whole = (time_t)seconds;

    nanosleep(&(struct timespec){whole, (long)((seconds - (double)whole) * 1e9)}, NULL);
}
