#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "cli.h"

static const struct ct_argument arguments[] = {ARG_RECIPE, ARG_CHANGES, ARG_LOCAL, ARG_WORLD,
                                               ARG_RANK,   ARG_STAGE,   ARG_DUMPS, {0}};

static int explain(int argc, char **argv)
{
    struct ct_run_options options = {.depth = CT_RUN_GRAPH};
    struct ct_recipe *recipe;
    struct ct_run *run = NULL;
    struct ct_dump dump;
    struct args args = {0};
    int rc = args_parse(arguments, argc, argv, &args);

    if (rc < 0)
        return rc;
    ct_dump_init(&dump, args.dump_after || args.dump_kernels ? args.dump_after : "changed", stdout,
                 NULL);
    options.passes.dump = &dump;
    options.world = args.ranks;
    options.rank = args.rank;
    if (args.rank >= (args.ranks ? args.ranks : 1))
        rc = ct_fail(CT_ECONFIG, "--rank %lld of %lld ranks", (long long)args.rank,
                     (long long)(args.ranks ? args.ranks : 1));
    if (rc == 0)
        rc = args_recipe(&args, &recipe);
    if (rc == 0)
        rc = ct_run_open(recipe, &options, &run);
    if (rc == 0)
        ct_run_close(run);
    return args_finish(&args, rc);
}

const struct verb verb_explain = {
    .name = "explain",
    .summary = "show the graph after each transform",
    .run = explain,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan explain recipes/debug.ini",
                         "ctitan explain recipes/debug.ini --world 4 --with fsdp --rank 3")};
