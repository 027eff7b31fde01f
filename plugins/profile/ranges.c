/*
 * Ranges for Nsight Systems: the step, its sections, and each instruction while it is enqueued, by
 * the names that plans and traces have. NVTX is a header; its calls do nothing but a test unless a
 * tool has put its library into the process.
 */
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/lib/trace.h>

#include "profile.h"

#ifdef PROFILE_NVTX

#include <nvtx3/nvToolsExt.h>

static struct {
    const struct ct_program *program;
    const char **name; /* of each instruction of its step */
} ranges;

static const char *name_of(const struct ct_event_data *d)
{
    return d->program == ranges.program && d->index >= 0 ? ranges.name[d->index]
                                                         : d->instruction->op->type->name;
}

static int on_event(const struct ct_event_data *d, void *context)
{
    char name[64];

    (void)context;
    switch (d->event) {
    case CT_EVENT_STEP_BEGIN:
        snprintf(name, sizeof(name), "step %lld", (long long)d->step);
        nvtxRangePushA(name);
        break;
    case CT_EVENT_SECTION_BEGIN:
        snprintf(name, sizeof(name), "%s microbatch %d", d->section, d->microbatch);
        nvtxRangePushA(name);
        break;
    case CT_EVENT_OP_BEGIN:
        nvtxRangePushA(name_of(d));
        break;
    default:
        nvtxRangePop();
    }
    return 0;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook),
    .events = 1u << CT_EVENT_STEP_BEGIN | 1u << CT_EVENT_STEP_END | 1u << CT_EVENT_SECTION_BEGIN |
              1u << CT_EVENT_SECTION_END | 1u << CT_EVENT_OP_BEGIN | 1u << CT_EVENT_OP_END,
    .call = on_event};

int profile_ranges_begin(const struct ct_run *run)
{
    static bool registered;
    struct ct_arena *arena = run->program->arena;
    char name[256];
    int rc = registered ? 0 : ct_hook_register(&hook, "plugin profile");

    if (rc < 0)
        return rc;
    registered = true;
    ranges.program = run->program;
    ranges.name = ct_arena_array(arena, const char *, run->program->step_count + 1);
    for (size_t n = 0; n < run->program->step_count; n++) {
        ct_instruction_name(&run->program->step[n], name, sizeof(name));
        ranges.name[n] = ct_arena_strdup(arena, name);
    }
    return 0;
}

#else

int profile_ranges_begin(const struct ct_run *run)
{
    (void)run;
    return ct_fail(CT_ECONFIG,
                   "[profile] nvtx: this build has no NVTX: it needs nvtx3/nvToolsExt.h "
                   "of the CUDA toolkit when ctitan is built");
}

#endif
