/*
 * A line about this rank, once a second, for the launcher of several hosts: where a host is lost,
 * its records are lost with it, and the page has this line in their place.
 */
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/flight.h>
#include <ctitan/lib/launch.h>
#include <ctitan/run.h>

#include "flight.h"

#define EVERY 1.0 /* seconds */

static struct {
    struct ct_flight_run run;          /* this rank's file, mapped a second time */
    const struct ct_flight_header *of; /* the file that is written; NULL: none is mapped */
    double next;
} digest;

/* The first call that a stream has begun and not ended. */
static void add_call(const struct ct_flight_run *run, int rank, char *text, size_t room)
{
    const struct ct_flight_header *h = run->rank[rank].h;
    size_t used = strlen(text);

    if (h->position.phase == CT_FLIGHT_IN_CALL)
        return; /* it is the position */
    for (int g = 0; g < (int)h->group_count; g++) {
        const struct ct_flight_group *group = ct_flight_group(h, g);

        if (group->started.sequence <= group->finished.sequence)
            continue;
        used += (size_t)snprintf(text + used, room - used, "; has begun: ");
        if (used < room)
            ct_flight_describe_call(run, rank, g, group->started.sequence, text + used,
                                    room - used);
        return;
    }
}

void flight_digest(int rank)
{
    char path[CT_PATH_ROOM], text[512], position[400];
    const struct ct_flight_header *h;

    if (ct_now() < digest.next || !ct_launch_hears())
        return;
    digest.next = ct_now() + EVERY;
    if (digest.of != flight_own) {
        flight_digest_end();
        if (ct_run_path(NULL, path, "flight/rank-%d.ring", rank) < 0 ||
            ct_flight_run_open_rank(path, &digest.run) < 0)
            return;
        digest.of = flight_own;
    }
    h = digest.run.rank[rank].h;
    digest.run.now = ct_flight_time(h, ct_now());
    ct_flight_describe_position(&digest.run, rank, position, sizeof(position));
    add_call(&digest.run, rank, position, sizeof(position));
    snprintf(text, sizeof(text), "pid %d on %s: %s", h->pid, h->host, position);
    ct_launch_tell(rank, text);
}

void flight_digest_end(void)
{
    if (digest.of)
        ct_flight_run_close(&digest.run);
    digest.of = NULL;
}
