/*
 * Where the time of a run went over all its attempts, beside what `simulate --mtbf` expects for as
 * many failures.
 */
#include <math.h>
#include <stdlib.h>

#include <ctitan/error.h>

#include "goodput.h"
#include "report.h"

/* The run as the simulation takes it; false: too little is known. */
static bool as_failing(const struct report_run *run, const struct run_time *t, int64_t *interval,
                       struct failing_run *f)
{
    int64_t steps = run_last_step(&run->log, &run->status);
    struct run_option option;

    *interval = run_option_find(&run->recipe, "ckpt.interval", &option) ? atoll(option.value) : 0;
    if (!t->failures || *interval < 1 || steps < 1 || !(t->trained > 0))
        return false;
    *f = (struct failing_run){
        .step = t->trained / (double)steps,
        .mtbf = (t->all - t->paused) / (double)t->failures,
        .restart = t->start / (double)t->attempts + (t->idle - t->paused) / (double)t->failures,
        .stall = t->save / fmax((double)steps / (double)*interval, 1),
        .hosts = 1,
    };
    return true;
}

const char *report_time_text(struct ct_arena *arena, const struct report_run *run)
{
    struct run_time t = run_read_time(arena, run->folder);
    const char *text = run_time_text(arena, &t);
    struct failing_run f;
    struct goodput g;
    int64_t interval;

    if (!as_failing(run, &t, &interval, &f))
        return text;
    goodput_simulate(&f, interval, &g);
    return ct_arena_printf(arena,
                           "%s. simulate --mtbf expects %.1f %% for a failure every %s, with a "
                           "checkpoint every %lld step%s",
                           text, 100 * g.trained, run_long_text(arena, f.mtbf), (long long)interval,
                           ct_plural(interval));
}
