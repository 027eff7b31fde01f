/*
 * The watchdog of nccl, over a device whose one event happens when the test says so: a call that
 * has a long computation before it is in time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cluster.h"

static _Atomic int recorded, happened; /* events, in the order of one stream */

static int create(CUevent *event, unsigned flags)
{
    static char events[16];
    static int count;

    (void)flags;
    *event = (CUevent)(void *)&events[count++];
    return 0;
}

static int destroy(CUevent event)
{
    (void)event;
    return 0;
}

static CUevent order[16];

static int record(CUevent event, CUstream stream)
{
    (void)stream;
    order[recorded++] = event;
    return 0;
}

static int query(CUevent event)
{
    for (int i = 0; i < happened; i++)
        if (order[i] == event)
            return 0;
    return CUDA_ERROR_NOT_READY;
}

static int capturing(CUstream stream, int *status)
{
    (void)stream;
    *status = 0;
    return 0;
}

static int set_context(CUcontext context)
{
    (void)context;
    return 0;
}

/* Each call comes after a computation that takes longer than the time-out. */
static void computation_is_not_waited_for(void **state)
{
    struct comm comm = {.timeout = 0.08};
    struct group group = {.comm = &comm};

    (void)state;
    nccl.cuEventCreate = create;
    nccl.cuEventDestroy = destroy;
    nccl.cuEventRecord = record;
    nccl.cuEventQuery = query;
    nccl.cuStreamIsCapturing = capturing;
    nccl.cuCtxSetCurrent = set_context;
    pthread_mutex_init(&comm.lock, NULL);
    assert_int_equal(nccl_watchdog_start(&comm), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(nccl_watch_begin(&group, "all_reduce", NULL), 0);
        assert_int_equal(nccl_watch_end(&group), 0);
    }
    for (int i = 0; i < 2; i++) {
        ct_nap(0.2);
        assert_false(comm.failed);
        happened += 2;
    }
    assert_int_equal(nccl_drain(&comm), 0);
    nccl_watchdog_stop(&comm);
    pthread_mutex_destroy(&comm.lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(computation_is_not_waited_for)};

    return cmocka_run_group_tests_name("watchdog", tests, NULL, NULL);
}
