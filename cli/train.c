#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/run.h>

#include "cli.h"

/* What the last step gave, for the line at the end. */
static struct ct_step_result last;

static int remember(const struct ct_event_data *data, void *context)
{
    (void)context;
    last = *data->result;
    return 0;
}

static const struct ct_hook memory = {1u << CT_EVENT_STEP_END, remember, NULL};

/* Ranks that a launcher around this process announces; 1 if there is none. */
static int64_t announced_ranks(void)
{
    static const char *const names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};

    for (size_t i = 0; i < CT_COUNT(names); i++)
        if (getenv(names[i]))
            return strtoll(getenv(names[i]), NULL, 10);
    return 1;
}

static int check_ranks(int64_t ranks)
{
    if (ranks == 1)
        ranks = announced_ranks();
    if (ranks == 1)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%lld ranks: this program has no communicator yet, so a run has one rank",
                   (long long)ranks);
}

static void report(double seconds)
{
    char tokens[32];

    if (!last.step) {
        ct_info("the data ended before the first step");
        return;
    }
    ct_info("done: %lld steps, %s tokens in %.1f s, last loss %.5f; see %s", (long long)last.step,
            grouped(last.tokens_seen, tokens), seconds, last.loss, ct_config.job.dump_folder);
}

static int save_recipe(struct args *args, const struct ct_recipe *recipe)
{
    const char *folder = ct_config.job.dump_folder;
    int rc = ct_recipe_save(recipe, ct_arena_printf(&args->arena, "%s/recipe.ini", folder));

    return rc < 0 ? ct_context(rc, "[job] dump_folder") : 0;
}

static int train(struct args *args)
{
    struct ct_run_options options = {.depth = CT_RUN_READY, .world = args->ranks};
    double begin = ct_now();
    struct ct_recipe *recipe;
    struct ct_run *run = NULL;
    int rc = args_recipe(args, &recipe);

    if (rc == 0)
        rc = save_recipe(args, recipe);
    if (rc < 0)
        return rc;
    options.passes.dump_after = args->dump_after;
    options.passes.dump = stdout;
    options.passes.reproducer =
        ct_arena_printf(&args->arena, "%s/reproducer.txt", ct_config.job.dump_folder);
    rc = ct_hook_register(&memory);
    if (rc == 0)
        rc = ct_run_open(recipe, &options, &run);
    if (rc < 0)
        return rc;
    rc = ct_run_train(run);
    if (rc == 0)
        report(ct_now() - begin);
    ct_run_close(run);
    return rc;
}

int verb_train(int argc, char **argv)
{
    struct args args;
    int rc = args_parse(argc, argv, ARG_RANKS | ARG_DUMP_AFTER, &args);

    if (rc < 0)
        return rc;
    log_to_terminal(CT_LOG_INFO);
    rc = check_ranks(args.ranks);
    if (rc == 0)
        rc = train(&args);
    args_finish(&args);
    return rc;
}
