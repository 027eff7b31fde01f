/*
 * Slow ranks. Every rank sums up what its main thread does in a step; now and then all ranks tell
 * each other, and rank 0 compares.
 *
 * A rank that is slow works longer than the others, which wait for it: what counts is work, not the
 * time of the step, which is the same for all. The time in which an instruction waits for a call is
 * taken off. The kind of work is the one that exceeds the median of all ranks most. Where kernels
 * are only enqueued, all that is known is the time in which no call ran.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>
#include <ctitan/run.h>

#include "flight.h"

#define LEAST 0.02 /* of a step: less than that is no matter */

#define KINDS(X)                                                                                   \
    X(PRODUCTS, "products", "matrix products")                                                     \
    X(MEMORY, "memory", "memory-bound kernels")                                                    \
    X(TRANSFERS, "transfers", "copies from and to host memory")                                    \
    X(DEVICE, "device", "kernels of the device")                                                   \
    X(HOST, "host", "host code and hooks between instructions")                                    \
    X(DATA, "data", "reading data")

enum kind {
#define X(id, key, text) KIND_##id,
    KINDS(X)
#undef X
        KIND_COUNT
};

/* Seconds, since the ranks last compared. */
struct share {
    double step, work[KIND_COUNT];
};

static struct share own;
static double last_end;
static double calls, host; /* seconds in which calls ran in this step; of host code before it */
static int64_t steps;
static int suspect = -1; /* slow in the last comparison */
static FILE *out;

void flight_straggler_op(const struct ct_flight_instruction *f, double begin, double awaited,
                         double end)
{
    if (last_end > 0)
        own.work[KIND_HOST] += begin - last_end;
    last_end = end;
    begin = awaited > begin ? awaited : begin;
    if (f->work < CT_FLIGHT_CALLS)
        own.work[f->work == CT_FLIGHT_PRODUCTS ? KIND_PRODUCTS
                 : f->work == CT_FLIGHT_MEMORY ? KIND_MEMORY
                                               : KIND_TRANSFERS] += end - begin;
}

void flight_straggler_call(double begin, double end)
{
    calls += end - begin;
}

/* ---- comparing ---- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* kind KIND_COUNT: all work. */
static double work_of(const struct share *s, int kind)
{
    double sum = 0;

    if (kind < KIND_COUNT)
        return s->work[kind];
    for (int k = 0; k < KIND_COUNT; k++)
        sum += s->work[k];
    return sum;
}

/* Over all ranks. */
static double median(const struct share *all, int count, int kind, double *scratch)
{
    for (int r = 0; r < count; r++)
        scratch[r] = work_of(&all[r], kind);
    qsort(scratch, (size_t)count, sizeof(*scratch), compare_doubles);
    return scratch[(count - 1) / 2];
}

static void say_slow(const struct ct_run *run, const struct share *all, int slow, double *scratch)
{
    static const char *const texts[] = {
#define X(id, key, text) text,
        KINDS(X)
#undef X
    };
    int count = (int)run->world, worst = 0;
    double most = 0, usual = median(all, count, KIND_COUNT, scratch);

    for (int k = 0; k < KIND_COUNT; k++) {
        double excess = all[slow].work[k] - median(all, count, k, scratch);

        if (excess > most) {
            most = excess;
            worst = k;
        }
    }
    snprintf(flight_own->slow, sizeof(flight_own->slow),
             "rank %d is slow: it works %.4g s in a step, others %.4g s; %.4g s of the difference "
             "are in %s (steps %lld to %lld)",
             slow, work_of(&all[slow], KIND_COUNT) / (double)steps, usual / (double)steps,
             most / (double)steps, texts[worst], (long long)(flight_own->position.step - steps + 1),
             (long long)flight_own->position.step);
    ct_warn("%s", flight_own->slow);
}

/* The rank that works longest, if that is too long; else -1. */
static int find_slow(const struct ct_run *run, const struct share *all, double *scratch)
{
    double usual = median(all, (int)run->world, KIND_COUNT, scratch), longest = 0;
    int slow = 0;

    for (int r = 0; r < run->world; r++)
        if (work_of(&all[r], KIND_COUNT) > longest) {
            longest = work_of(&all[r], KIND_COUNT);
            slow = r;
        }
    return longest > flight_config.straggler_ratio * usual &&
                   longest - usual > LEAST * all[slow].step
               ? slow
               : -1;
}

static int write_line(const struct ct_run *run, const struct share *all, int slow)
{
    static const char *const keys[] = {
#define X(id, key, text) key,
        KINDS(X)
#undef X
    };
    char path[CT_PATH_ROOM];
    int rc = out ? 0 : ct_run_path(run, path, "flight/ranks.jsonl");

    if (rc < 0)
        return rc;
    if (!out && !(out = fopen(path, "ae")))
        return ct_fail(CT_EIO, "cannot write %s: %s", path, strerror(errno));
    fprintf(out,
            "{\"step\": %lld, \"steps\": %lld, \"slow\": ", (long long)flight_own->position.step,
            (long long)steps);
    fprintf(out, slow < 0 ? "null, \"ranks\": [" : "%d, \"ranks\": [", slow);
    for (int r = 0; r < run->world; r++) {
        double n = (double)steps, wait = all[r].step - work_of(&all[r], KIND_COUNT);

        fprintf(out, "%s{\"rank\": %d, \"step_s\": %.6g, \"wait_s\": %.6g", r ? ", " : "", r,
                all[r].step / n, (wait > 0 ? wait : 0) / n);
        for (int k = 0; k < KIND_COUNT; k++)
            fprintf(out, ", \"%s_s\": %.6g", keys[k], all[r].work[k] / n);
        fputc('}', out);
    }
    fputs("]}\n", out);
    return fflush(out) ? ct_fail(CT_EIO, "flight/ranks.jsonl: %s", strerror(errno)) : 0;
}

static int compare(const struct ct_run *run)
{
    struct share *all = calloc((size_t)run->world, sizeof(*all));
    double *scratch = calloc((size_t)run->world, sizeof(*scratch));
    int rc = all && scratch ? 0 : ct_fail(CT_ENOMEM, "times of %d ranks", (int)run->world), slow;

    if (rc == 0)
        rc = ct_group_all_gather(ct_run_world(run), &own, all, sizeof(own), CT_U8);
    if (rc == 0 && run->rank == 0) {
        slow = find_slow(run, all, scratch);
        if (slow >= 0 && slow == suspect) /* once may be chance */
            say_slow(run, all, slow, scratch);
        suspect = slow;
        rc = write_line(run, all, slow);
    }
    free(all);
    free(scratch);
    return rc;
}

int flight_straggler_step(const struct ct_run *run, const struct ct_step_result *r)
{
    int rc = 0;

    own.step += r->seconds;
    own.work[KIND_DATA] += r->data_seconds;
    if (run->device->enqueues) { /* the host's times in instructions say nothing about kernels */
        double device = r->seconds - r->data_seconds - calls - (own.work[KIND_HOST] - host);

        memset(own.work, 0, sizeof(double) * KIND_DEVICE);
        own.work[KIND_DEVICE] += device > 0 ? device : 0;
    }
    last_end = calls = 0;
    host = own.work[KIND_HOST];
    steps++;
    if (run->world > 1 && r->step % flight_config.straggler_freq == 0) {
        rc = compare(run);
        own = (struct share){0};
        host = 0;
        steps = 0;
    }
    return rc;
}

void flight_straggler_end(void)
{
    if (out)
        fclose(out);
    out = NULL;
    own = (struct share){0};
    last_end = calls = host = 0;
    steps = 0;
    suspect = -1;
}
