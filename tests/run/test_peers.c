/*
 * Peers of a run: the graphs and programs of other ranks, made of what all have in common, are
 * those of a run that was opened as that rank.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#define RANKS 8

static struct ct_recipe *recipe;

static int load(void **state)
{
    static struct ct_arena arena;
    int rc = ct_ops_register();

    (void)state;
    if (rc == 0)
        rc = ct_recipe_parse(&arena, "peers.ini",
                             "[plugins]\nload = cpu, llama, tokens, adamw, fsdp, pp\n"
                             "[model]\nname = llama\nflavor = debug\n"
                             "[training]\nseq_len = 32\nlocal_batch_size = 4\n"
                             "[validation]\nfreq = 1\n"
                             "[pp]\ndegree = 4\nschedule = zbv\n[tokens]\npath = /dev/null\n",
                             &recipe);
    if (rc == 0)
        rc = ct_recipe_apply(recipe);
    if (rc < 0)
        fprintf(stderr, "%s\n", ct_error_message());
    return rc;
}

static struct ct_run *opened(int64_t rank, bool peers)
{
    const struct ct_run_options options = {
        .depth = CT_RUN_PROGRAM, .world = RANKS, .rank = rank, .peers = peers};
    struct ct_run *run = NULL;

    if (ct_run_open(recipe, &options, &run) < 0)
        fail_msg("%s", ct_error_message());
    return run;
}

/* Its graphs and programs. */
static char *text_of(const struct ct_run *run)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(out);
    ct_graph_print(run->graph, out);
    ct_program_print(run->program, out);
    ct_graph_print(run->validation_graph, out);
    ct_program_print(run->validation_program, out);
    for (size_t i = 0; i < run->state_count; i++)
        fprintf(out, "%s %d\n", run->states[i].name, run->states[i].value != NULL);
    fprintf(out, "%zu\n", run->arena_bytes);
    fclose(out);
    return text;
}

static void peers_are_as_if_opened(void **state)
{
    struct ct_run *run = opened(5, true);

    (void)state;
    for (int64_t rank = 0; rank < RANKS; rank++) {
        struct ct_run *alone = opened(rank, false), *peer = NULL;
        char *expected = text_of(alone), *text;

        if (ct_run_open_peer(run, rank, &peer) < 0)
            fail_msg("%s", ct_error_message());
        text = text_of(peer);
        assert_string_equal(text, expected);
        free(text);
        free(expected);
        ct_run_close(peer);
        ct_run_close(alone);
    }
    ct_run_close(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(peers_are_as_if_opened)};

    return cmocka_run_group_tests(tests, load, NULL);
}
