/*
 * The start of a run: how long its calls may take, and where its time goes.
 */
#include <ctitan/clock.h>
#include <ctitan/collective.h>
#include <ctitan/config.h>

#include "comm/groups.h"
#include "run/start.h"

double ct_run_start_timeout(void)
{
    const struct ct_comm_config *c = &ct_config.comm;

    return c->start_timeout > 0 ? c->start_timeout : c->timeout;
}

void ct_run_lap(struct ct_run *run, enum ct_start_part part)
{
    const struct ct_communicator_groups *groups = run->communicator.groups;
    double left = ct_now() - run->start_time;

    run->spent[CT_START_GROUPS] = groups ? groups->seconds : 0;
    run->spent[part] = 0;
    for (int i = 0; i < CT_START_PART_COUNT; i++)
        left -= run->spent[i];
    run->spent[part] = left;
}

void ct_run_started(struct ct_run *run)
{
    const struct ct_comm_ops *ops = run->communicator.ops;

    ct_run_lap(run, CT_START_FIRST_STEP);
    if (run->communicator.comm && ops->set_timeout)
        ops->set_timeout(run->communicator.comm, ct_config.comm.timeout);
}

const char *ct_start_part_name(enum ct_start_part part)
{
    static const char *const names[] = {
#define X(id, text) text,
        CT_START_PARTS(X)
#undef X
    };

    return names[part];
}
