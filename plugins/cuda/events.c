/*
 * Events of a step, made once and used by every step from then on.
 */
#include <stdlib.h>

#include "gpu.h"

void gpu_events_destroy(struct gpu_events *e)
{
    for (int i = 0; i < e->count; i++)
        gpu_driver.cuEventDestroy(e->event[i]);
    free(e->event);
    free((void *)e->recorded);
    *e = (struct gpu_events){0};
}

int gpu_events_begin(struct gpu_events *e, int count, unsigned flags)
{
    int rc = 0;

    for (int i = 0; i < e->count; i++)
        e->recorded[i] = 0;
    if (count <= e->count)
        return 0;
    gpu_events_destroy(e);
    e->event = calloc((size_t)count, sizeof(*e->event));
    e->recorded = calloc((size_t)count, sizeof(*e->recorded));
    if (!e->event || !e->recorded)
        return ct_fail(CT_ENOMEM, "%d events", count);
    for (; rc == 0 && e->count < count; e->count += rc == 0)
        rc = gpu_check(gpu_driver.cuEventCreate(&e->event[e->count], flags), "an event");
    return rc;
}
