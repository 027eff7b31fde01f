/*
 * A simulated step as a trace.
 */
#include <ctitan/lib/app/simulate.h>

int ct_simulated_trace(const struct ct_simulate_request *r, const struct ct_simulated *result,
                       FILE *out)
{
    struct ct_trace trace;

    ct_trace_begin(&trace, out);
    for (int index = 0; index < r->count; index++) {
        ct_trace_rank(&trace, index, r->rank[index]);
        ct_trace_streams(&trace, index, r->program[index]);
        for (size_t n = 0; n < r->program[index]->step_count; n++) {
            ct_trace_instruction(&trace, index, &r->program[index]->step[n],
                                 result->start[index][n], result->end[index][n]);
            ct_trace_close(&trace);
        }
    }
    return ct_trace_end(&trace, NULL);
}
