/*
 * The host's memory that programs take, compared with what the process may have.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/host.h>
#include <ctitan/program.h>

#include "run/size.h"

/* Regions of the model with ops of microbatches, such as layers. */
static size_t count_regions(const struct ct_graph *graph)
{
    const char *last = "";
    size_t count = 0;

    ct_for_each_op (op, graph) {
        if (op->section->part != CT_PART_F || !op->region)
            continue;
        count += strcmp(last, op->region) != 0;
        last = op->region;
    }
    return count;
}

int ct_run_check_size(const struct ct_graph *graph, int64_t microbatches, double *beside)
{
    double bytes = ct_program_estimate(graph, microbatches), most = ct_host_memory() / 2;
    char needs[64] = "more instructions than can be numbered", others[128] = "";

    *beside += bytes;
    if (*beside <= most)
        return 0;
    if (isfinite(bytes))
        snprintf(needs, sizeof(needs), "%.3g GiB of host memory for its instructions",
                 bytes / 0x1p30);
    if (*beside > bytes)
        snprintf(others, sizeof(others), ", beside %.3g GiB of validation and other stages",
                 (*beside - bytes) / 0x1p30);
    return ct_fail(
        CT_ECONFIG,
        "a step of %lld microbatches through %zu layers and other regions needs %s%s; half "
        "of the memory here is %.3g GiB: use fewer microbatches (a larger [training] "
        "local_batch_size or microbatch_size, a smaller global_batch_size), fewer layers%s, "
        "or more ranks that share the layers",
        (long long)microbatches, count_regions(graph), needs, others, most / 0x1p30,
        *others ? ", fewer stages or levels of batch_ramp" : "");
}
