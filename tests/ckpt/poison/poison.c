/*
 * A hook that makes three steps not finite, each the first time that it is run.
 */
#include <math.h>

#include <ctitan/plugin.h>
#include <ctitan/state.h>

static int on_event(const struct ct_event_data *data, void *context)
{
    static const float infinity[] = {INFINITY};
    static bool done[16];
    const struct ct_state *state = &data->run->states[1];
    int64_t offset[CT_MAX_DIMS] = {0}, shape[CT_MAX_DIMS];

    (void)context;
    if ((data->step != 5 && data->step != 8 && data->step != 13) || done[data->step])
        return 0;
    done[data->step] = true;
    for (int d = 0; d < state->ndim; d++)
        shape[d] = 1;
    return ct_run_write(data->run, state, offset, shape, infinity);
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook), .events = 1u << CT_EVENT_STEP_BEGIN, .call = on_event};

CT_PLUGIN(.name = "poison", .version = "1.0", .summary = "Makes steps 5, 8 and 13 not finite",
          .offers = CT_OFFERS({CT_HOOK, "poison", &hook}));
