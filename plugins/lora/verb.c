/*
 * `ctitan lora`: the adapters that a recipe has trained, merged with the weights into a Hugging
 * Face folder, or by themselves in a folder of peft. The recipe's run is opened as `generate` opens
 * it: on one rank, with its newest checkpoint.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/recipe.h>

#include "lora.h"

#define USAGE                                                                                      \
    "merge|adapter RECIPE.ini FOLDER [--force] [--set SECTION.KEY=VALUE]... "                      \
    "[--with PLUGIN]... [--without PLUGIN]..."

struct request {
    bool merge, force; /* force: replace a model in the folder */
    const char *recipe, *folder;
};

/* ---- the command line ---- */

static const struct {
    const char *name;
    int (*apply)(struct ct_recipe *recipe, const char *value);
} changes[] = {
    {"--set", ct_recipe_set}, {"--with", ct_recipe_with}, {"--without", ct_recipe_without}};

static int apply_change(struct ct_recipe *recipe, const char *name, const char *value)
{
    for (size_t i = 0; i < CT_COUNT(changes); i++)
        if (!strcmp(name, changes[i].name))
            return value ? changes[i].apply(recipe, value)
                         : ct_fail(CT_ECONFIG, "lora: %s needs a value", name);
    return ct_fail(CT_ECONFIG, "lora: no option %s; options: --force, --set, --with, --without",
                   name);
}

/* --force has no value. */
static bool has_value(const char *option)
{
    return strcmp(option, "--force") != 0;
}

static int parse(int argc, char **argv, struct request *r)
{
    const char *word[3] = {NULL};
    bool force = false;
    int words = 0;

    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--", 2)) {
            force |= !has_value(argv[i]);
            i += has_value(argv[i]);
        } else if (words++ < 3)
            word[words - 1] = argv[i];
    }
    if (words != 3 || (strcmp(word[0], "merge") != 0 && strcmp(word[0], "adapter") != 0))
        return ct_fail(CT_ECONFIG, "lora: expected " USAGE);
    *r = (struct request){!strcmp(word[0], "merge"), force, word[1], word[2]};
    return 0;
}

static int read_recipe(struct ct_arena *arena, int argc, char **argv, const struct request *r,
                       struct ct_recipe **recipe)
{
    int rc = ct_recipe_read(arena, r->recipe, recipe);

    for (int i = 1; rc == 0 && i < argc; i++)
        if (!strncmp(argv[i], "--", 2) && has_value(argv[i])) {
            rc = apply_change(*recipe, argv[i], argv[i + 1]);
            i++;
        }
    return rc == 0 ? ct_recipe_apply(*recipe) : rc;
}

/* ---- the run ---- */

static int write(struct ct_run *run, const struct request *r)
{
    int rc = lora_is_trained(run);

    if (rc == 0)
        return ct_fail(CT_ECONFIG,
                       "the adapters of %s are not trained: it has no checkpoint in [job] "
                       "dump_folder = %s, or does not load ckpt",
                       r->recipe, ct_config.job.dump_folder);
    if (rc < 0 || !r->merge)
        return rc < 0 ? rc : lora_save(run, r->folder);
    rc = lora_merge(run);
    return rc < 0 ? rc : ct_hf_save(run, r->folder);
}

static int open_and_write(struct ct_recipe *recipe, const struct request *r)
{
    const struct ct_run_options options = {
        .depth = CT_RUN_READY, .logits = true, .load = ct_hf_load};
    struct ct_run *run;
    int rc = ct_run_open(recipe, &options, &run);

    if (rc < 0)
        return rc;
    rc = write(run, r);
    ct_run_close(run);
    if (rc == 0)
        printf("%s: %s\n", r->folder, r->merge ? "weights with merged adapters" : "adapters");
    return rc;
}

/* Whether the recipe loads this plugin: its options are its section then. */
static int check_loaded(const struct ct_recipe *recipe)
{
    for (size_t i = 0; i < recipe->plugin_count; i++)
        if (!strcmp(recipe->plugins[i], "lora"))
            return 0;
    return ct_fail(CT_ECONFIG, "%s does not load lora: there are no adapters", recipe->path);
}

static int run(int argc, char **argv)
{
    struct ct_arena arena = {0};
    struct ct_recipe *recipe;
    struct request r = {0};
    int rc = parse(argc, argv, &r);

    if (rc == 0)
        rc = read_recipe(&arena, argc, argv, &r, &recipe);
    if (rc == 0)
        rc = check_loaded(recipe);
    if (rc == 0)
        rc = ct_hf_check_free(r.folder, r.force);
    if (rc == 0)
        rc = open_and_write(recipe, &r);
    ct_arena_finish(&arena);
    return rc;
}

const struct ct_verb_ops lora_verb = {
    .size = sizeof(lora_verb),
    .summary = "merge a recipe's adapters into a Hugging Face folder, or write them for peft",
    .usage = USAGE,
    .run = run};
