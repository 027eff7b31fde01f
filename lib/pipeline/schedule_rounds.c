/*
 * Orders of forwards for ranks with several stages.
 */
#include <ctitan/lib/pipeline.h>

/* Rounds of about as many microbatches as there are ranks; the longer ones come first. */
static int count_rounds(const struct ct_schedule_request *r)
{
    return r->microbatches < r->ranks ? 1 : r->microbatches / r->ranks;
}

struct ct_loop_step *ct_schedule_rounds(const struct ct_schedule_request *r)
{
    int loops = r->stages / r->ranks, rounds = count_rounds(r), first = 0;
    struct ct_loop_step *order =
        ct_arena_array(r->arena, struct ct_loop_step, loops * r->microbatches);
    struct ct_loop_step *at = order;

    for (int round = 0; round < rounds; round++) {
        int length = r->microbatches / rounds + (round < r->microbatches % rounds);

        for (int loop = 0; loop < loops; loop++)
            for (int m = first; m < first + length; m++)
                *at++ = (struct ct_loop_step){loop, m};
        first += length;
    }
    return order;
}

int ct_schedule_longest_round(const struct ct_schedule_request *r)
{
    int rounds = count_rounds(r);

    return (r->microbatches + rounds - 1) / rounds;
}
