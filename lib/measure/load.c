#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/lib/measure.h>

#define SHORTEST 0.1 /* seconds */

static double tick(void)
{
    return 1.0 / (double)sysconf(_SC_CLK_TCK);
}

/* Seconds that a process and the children that it has waited for have computed. 0: it is gone. */
static double process_seconds(long process)
{
    char path[64], line[1024] = "", *rest = NULL;
    double spent[4] = {0};
    FILE *in;

    snprintf(path, sizeof(path), "/proc/%ld/stat", process);
    in = fopen(path, "re");
    if (in && fgets(line, sizeof(line), in))
        rest = strrchr(line, ')'); /* a name may have any characters */
    if (in)
        fclose(in);
    if (!rest || sscanf(rest, ") %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lf %lf %lf %lf",
                        &spent[0], &spent[1], &spent[2], &spent[3]) != 4)
        return 0;
    return (spent[0] + spent[1] + spent[2] + spent[3]) * tick();
}

double ct_load_job(bool several)
{
    char path[64];
    long parent = (long)getppid(), process;
    double seconds = 0;
    FILE *in;

    if (!several)
        return process_seconds((long)getpid());
    snprintf(path, sizeof(path), "/proc/%ld/task/%ld/children", parent, parent);
    in = fopen(path, "re");
    if (!in)
        return NAN;
    while (fscanf(in, "%ld", &process) == 1)
        seconds += process_seconds(process);
    fclose(in);
    return seconds;
}

double ct_load_children(void)
{
    struct rusage own;

    getrusage(RUSAGE_CHILDREN, &own);
    return (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
           1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
}

struct ct_load ct_load_now(double own)
{
    struct ct_load load = {.at = ct_now(), .own = own};
    double spent[8];
    char line[512];
    cpu_set_t set;
    FILE *in = fopen("/proc/stat", "re");
    int cpu;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        CPU_ZERO(&set);
    while (in && fgets(line, sizeof(line), in))
        if (sscanf(line, "cpu%d %lf %lf %lf %lf %lf %lf %lf %lf", &cpu, &spent[0], &spent[1],
                   &spent[2], &spent[3], &spent[4], &spent[5], &spent[6], &spent[7]) == 9 &&
            cpu < CPU_SETSIZE && CPU_ISSET(cpu, &set)) {
            /* 3 and 4 are idle, 7 another guest's */
            load.busy += (spent[0] + spent[1] + spent[2] + spent[5] + spent[6] + spent[7]) * tick();
            load.processors++;
        }
    if (in)
        fclose(in);
    return load;
}

double ct_load_others(const struct ct_load *from, const struct ct_load *to)
{
    double seconds = to->at - from->at;
    double share = (to->busy - from->busy - (to->own - from->own)) / (seconds * to->processors);

    return seconds >= SHORTEST && isfinite(share) ? fmin(fmax(share, 0), 1) : NAN;
}
