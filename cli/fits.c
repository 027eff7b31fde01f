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

/* Bytes of the host's memory that a rank takes: on a CPU those of its plan, as what it offloads is
   in a file; on a GPU those that it offloads. */
static int64_t bytes_of_host(const struct ct_run *run)
{
    return (int64_t)(run->device->host_memory ? run->arena_bytes : run->host_bytes);
}

static bool ranks_fit(int64_t bytes, char memory[96])
{
    double most = ct_host_shared_memory();

    describe_host(most, "its control groups", memory);
    return (double)bytes <= most;
}

bool plans_fit(const struct ct_run *run, int64_t ranks, char memory[96])
{
    return ranks_fit(bytes_of_host(run) * ranks, memory);
}

static int refuse(const char *what, int64_t bytes, const char *memory)
{
    char human[32];

    return ct_fail(CT_ECONFIG,
                   "%s needs %s, and %s: lower [training] local_batch_size or seq_len, or see what "
                   "takes it with `ctitan plan`",
                   what, human_bytes((double)bytes, human), memory);
}

static int refuse_offload(int64_t bytes, const char *memory)
{
    char human[32];

    return ct_fail(
        CT_ECONFIG,
        "what the ranks of this machine offload needs %s, and %s: offload less ([offload] "
        "parameters or optimizer = false, fewer ops in [sac] offload), or see what takes "
        "it with `ctitan plan`",
        human_bytes((double)bytes, human), memory);
}

int check_memory(struct ct_run *run, bool one_host)
{
    char memory[96];
    int rc = plan_fits(run, (int64_t)run->arena_bytes, memory)
                 ? 0
                 : refuse("the plan", (int64_t)run->arena_bytes, memory);
    int64_t mine[] = {bytes_of_host(run), rc < 0}, all[2];
    int summed;

    if (!one_host)
        return rc;
    summed = ct_group_all_reduce(ct_run_world(run), mine, all, 2, CT_I64, CT_REDUCE_SUM);
    if (summed < 0)
        return summed;
    if (all[1])
        return ct_group_agree(ct_run_world(run), rc);
    if (ranks_fit(all[0], memory))
        return 0;
    return run->device->host_memory ? refuse("the plan of all ranks", all[0], memory)
                                    : refuse_offload(all[0], memory);
}
