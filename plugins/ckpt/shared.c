/*
 * Whether all ranks see the folder in which rank 0 publishes checkpoints. Files of a rank that does
 * not would be in a folder of its own host, and the checkpoint incomplete.
 */
#include <fcntl.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>

#include "ckpt.h"

#define PATIENCE 2.0 /* seconds until a file of rank 0 is seen elsewhere */
#define NAP 0.05
#define ALL INT32_MAX

static bool is_seen(const char *path)
{
    double end = ct_now() + PATIENCE;
    bool seen;

    while (!(seen = access(path, F_OK) == 0) && ct_now() < end)
        ct_nap(NAP);
    return seen;
}

/* The first rank that does not see a file that rank 0 has made; ALL: all see it. */
static int find_blind(struct ct_run *run, const char *path, int32_t *first)
{
    struct ct_group *world = ct_run_world(run);
    int file = run->rank == 0 ? open(path, O_CREAT | O_CLOEXEC | O_WRONLY, 0644) : -1;
    int rc = ct_group_barrier(world);
    int32_t mine = 0, most = 0; /* ALL without the first such rank */

    if (rc == 0 && !is_seen(path))
        mine = ALL - (int32_t)run->rank;
    if (rc == 0)
        rc = ct_group_all_reduce(world, &mine, &most, 1, CT_I32, CT_REDUCE_MAX);
    *first = most > 0 ? ALL - most : ALL;
    if (file >= 0) {
        close(file);
        unlink(path);
    }
    return rc;
}

int ckpt_check_shared(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    int32_t first = ALL;
    int rc = 0;

    if (run->world > 1)
        rc = find_blind(run,
                        ct_arena_printf(&scratch, "%s/seen-%016llx", ckpt_own.folder,
                                        (unsigned long long)ckpt_own.nonce),
                        &first);
    ct_arena_finish(&scratch);
    if (rc < 0 || first == ALL || first == 0) /* 0: the file could not be made */
        return rc;
    return ct_fail(CT_ECONFIG,
                   "rank %d does not see what rank 0 writes to %s, so checkpoints would be "
                   "incomplete: give a [ckpt] folder that all hosts share, or set [ckpt] files = "
                   "local",
                   first, ckpt_own.folder);
}
