/*
 * plan: the stages of a recipe, each planned and proven.
 */
#include <stdio.h>

#include <jansson.h>

#include <ctitan/lib/json.h>
#include <ctitan/run.h>
#include <ctitan/stage.h>
#include <ctitan/lib/rates.h>

#include "cli.h"

static struct planned_stage look(const struct ct_run *run)
{
    const struct ct_program *p = run->program, *v = run->validation_program;
    size_t validating = v ? p->memory.persistent + v->memory.bytes : 0;
    int64_t sequences = p->microbatches * ct_graph_batch(run->graph);

    return (struct planned_stage){.seq_len = ct_config.training.seq_len,
                                  .sequences = sequences,
                                  .tokens = sequences * ct_config.training.seq_len,
                                  .microbatches = p->microbatches,
                                  .bytes =
                                      validating > p->memory.bytes ? validating : p->memory.bytes,
                                  .flops = p->flops,
                                  .sent = p->comm_bytes};
}

int plan_stages(struct planned *planned, struct args *args)
{
    size_t count = ct_stage_count();
    int rc = 0;

    planned->stage = ct_arena_array(&args->arena, struct planned_stage, count);
    for (size_t k = count > 1 ? count : 0; rc == 0 && k--;) { /* it ends with the first */
        rc = plan_look_at(planned, k);
        if (rc == 0)
            planned->stage[k] = look(planned->run);
    }
    return rc;
}

void print_stages(const struct planned *planned)
{
    char tokens[32], bytes[32], flops[32], sent[32];

    if (ct_stage_count() == 1)
        return;
    printf("\nstages, each planned and proven\n");
    printf("  %3s %12s %10s %8s %12s %16s %12s %12s %12s\n", "", "from step", "sequences",
           "seq_len", "microbatches", "tokens per step", "memory", "FLOPs", "sent");
    for (size_t k = 0; k < ct_stage_count(); k++) {
        const struct planned_stage *s = &planned->stage[k];
        const struct ct_stage *stage = ct_stage_at(k);

        printf("  %3zu %12lld %10lld %8lld %12d %16s %12s %12s %12s%s%s\n", k + 1,
               (long long)stage->begin, (long long)s->sequences, (long long)s->seq_len,
               s->microbatches, ct_grouped(s->tokens, tokens), human_bytes((double)s->bytes, bytes),
               human_count(s->flops, flops), human_bytes(s->sent, sent), *stage->what ? "  " : "",
               stage->what);
    }
}

json_t *stages_json(const struct planned *planned)
{
    json_t *all = json_array();

    for (size_t k = 0; k < ct_stage_count(); k++) {
        const struct planned_stage *s = &planned->stage[k];

        json_array_append_new(
            all,
            json_pack("{s:I, s:o, s:I, s:I, s:i, s:I, s:I, s:o, s:o}", "begin",
                      (json_int_t)ct_stage_at(k)->begin, "sets", ct_json_text(ct_stage_at(k)->what),
                      "sequences", (json_int_t)s->sequences, "seq_len", (json_int_t)s->seq_len,
                      "microbatches", s->microbatches, "tokens_per_step", (json_int_t)s->tokens,
                      "memory_bytes", (json_int_t)s->bytes, "flops_per_step",
                      ct_json_number(s->flops), "comm_bytes", ct_json_number(s->sent)));
    }
    return all;
}
