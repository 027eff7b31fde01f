/*
 * Whether a plan fits into the memory of its device. The system would hand out more than there is,
 * and end the run, or another process, when it is used.
 */
#include <stdio.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/host.h>
#include <ctitan/run.h>

#include "cli.h"

bool plan_fits(const struct ct_run *run, int64_t bytes, char memory[96])
{
    struct ct_device_info info = {.memory = 0};
    bool host = run->device->host_memory;
    char human[32];

    run->device_ops->info(run->device, CT_F32, &info);
    snprintf(memory, 96, "%s has%s %s of memory", host ? "this machine" : run->device->name,
             host && (double)info.memory < ct_host_whole_memory()
                 ? " (within the limits of this process)"
                 : "",
             human_bytes((double)info.memory, human));
    return !info.memory || bytes <= (int64_t)info.memory;
}

int check_memory(struct ct_run *run, bool one_host)
{
    bool shared = run->device->host_memory && run->world > 1 && one_host;
    int64_t mine = (int64_t)run->arena_bytes, all = mine;
    char memory[96], human[32];
    int rc =
        shared ? ct_group_all_reduce(ct_run_world(run), &mine, &all, 1, CT_I64, CT_REDUCE_SUM) : 0;

    if (rc < 0 || plan_fits(run, all, memory))
        return rc;
    return ct_fail(CT_ECONFIG,
                   "%s needs %s, and %s: lower [training] local_batch_size or seq_len, or see what "
                   "takes it with `ctitan plan`",
                   shared ? "the plan of all ranks" : "the plan", human_bytes((double)all, human),
                   memory);
}
