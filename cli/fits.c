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

/* whose: the limits that leave so much of the machine's memory. */
static void describe_host(double bytes, const char *whose, char memory[96])
{
    char human[32];

    snprintf(memory, 96, "this machine has%s%s%s %s of memory",
             bytes < ct_host_whole_memory() ? " (within the limits of " : "",
             bytes < ct_host_whole_memory() ? whose : "", bytes < ct_host_whole_memory() ? ")" : "",
             human_bytes(bytes, human));
}

bool plan_fits(const struct ct_run *run, int64_t bytes, char memory[96])
{
    struct ct_device_info info = {.memory = 0};
    char human[32];

    run->device_ops->info(run->device, CT_F32, &info);
    if (run->device->host_memory)
        describe_host((double)info.memory, "this process", memory);
    else
        snprintf(memory, 96, "%s has %s of memory", run->device->name,
                 human_bytes((double)info.memory, human));
    return !info.memory || bytes <= (int64_t)info.memory;
}

bool plans_fit(int64_t bytes, char memory[96])
{
    double most = ct_host_shared_memory();

    describe_host(most, "its control groups", memory);
    return (double)bytes <= most;
}

static int refuse(const char *what, int64_t bytes, const char *memory)
{
    char human[32];

    return ct_fail(CT_ECONFIG,
                   "%s needs %s, and %s: lower [training] local_batch_size or seq_len, or see what "
                   "takes it with `ctitan plan`",
                   what, human_bytes((double)bytes, human), memory);
}

int check_memory(struct ct_run *run, bool one_host)
{
    bool computes = run->device->host_memory; /* and a CPU offloads to a file */
    int64_t bytes = (int64_t)(computes ? run->arena_bytes : run->host_bytes);
    char memory[96];
    int rc = plan_fits(run, (int64_t)run->arena_bytes, memory)
                 ? 0
                 : refuse("the plan", (int64_t)run->arena_bytes, memory);
    int64_t mine[] = {bytes, rc < 0}, all[2];
    int summed;

    if (!one_host)
        return rc;
    summed = ct_group_all_reduce(ct_run_world(run), mine, all, 2, CT_I64, CT_REDUCE_SUM);
    if (summed < 0)
        return summed;
    if (all[1])
        return ct_group_agree(ct_run_world(run), rc);
    return plans_fit(all[0], memory)
               ? 0
               : refuse(computes ? "the plan of all ranks" : "what all ranks offload", all[0],
                        memory);
}
