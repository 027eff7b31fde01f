/*
 * `ctitan lora`: the adapters that a recipe has trained, merged with the weights into a Hugging
 * Face folder, or by themselves in a folder of peft. The recipe's run is opened as `generate` opens
 * it: on one rank, with its newest checkpoint.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_recipe.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>
#include <ctitan/verb.h>

#include "lora.h"

struct request {
    struct ct_arena arena;
    const char *action, *recipe, *folder;
    bool merge, force; /* force: replace a model in the folder */
    struct ct_recipe_changes changes;
};

static const struct ct_argument arguments[] = {
    CT_ARG_CHOSEN(struct request, action, "ACTION", "merge|adapter",
                  "Write weights with the adapters in them, or the adapters alone for peft"),
    CT_ARG_WORD(struct request, recipe, "RECIPE", "The recipe that has trained the adapters"),
    CT_ARG_WORD(struct request, folder, "FOLDER", "The folder to write"),
    CT_ARG_CHANGES(struct request, changes),
    CT_ARG_FLAG(struct request, force, "force", 0, "Replace a model in the folder"),
    {0}};

static int read_recipe(struct request *r, struct ct_recipe **recipe)
{
    int rc = ct_hf_recipe(&r->arena, r->recipe, &r->changes, recipe);

    return rc == 0 ? ct_recipe_apply(*recipe) : rc;
}

/* ---- the run ---- */

static int write(struct ct_run *run, const struct request *r)
{
    struct lora_merged merged = {0};
    int rc = lora_is_trained(run), back;

    if (rc == 0)
        return ct_fail(CT_ECONFIG,
                       "the adapters of %s are not trained: it has no checkpoint in [job] "
                       "dump_folder = %s, or does not load ckpt",
                       r->recipe, ct_config.job.dump_folder);
    if (rc < 0 || !r->merge)
        return rc < 0 ? rc : lora_save(run, r->folder);
    rc = lora_merge(run, &merged);
    if (rc == 0)
        rc = ct_hf_save(run, r->folder);
    back = lora_unmerge(run, &merged);
    return rc < 0 ? rc : back;
}

static int open_and_write(struct ct_recipe *recipe, const struct request *r)
{
    const struct ct_run_options options = {.depth = CT_RUN_READY, .logits = true};
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

/* Whether a plugin of the recipe has an option that names this one, to be loaded with it. */
static bool is_brought(const struct ct_recipe *recipe)
{
    const struct ct_plugin *p;

    for (size_t i = 0; (p = ct_plugin_at(i)); i++) {
        const char *name = p->brings ? ct_recipe_get(recipe, p->name, p->brings) : "";

        if (!name)
            name = ct_option_find(p->options, p->brings)->fallback;
        if (!strcmp(name, "lora"))
            return true;
    }
    return false;
}

/* Whether the recipe loads this plugin: its options are its section then. */
static int check_loaded(const struct ct_recipe *recipe)
{
    for (size_t i = 0; i < recipe->plugin_count; i++)
        if (!strcmp(recipe->plugins[i], "lora"))
            return 0;
    if (is_brought(recipe))
        return 0;
    return ct_fail(CT_ECONFIG, "%s does not load lora: there are no adapters", recipe->path);
}

static int run_lora(int argc, char **argv)
{
    struct ct_recipe *recipe;
    struct request r = {0};
    int rc = ct_arguments_parse(arguments, argc, argv, &r.arena, &r);

    if (rc == 0) {
        r.merge = !strcmp(r.action, "merge");
        rc = read_recipe(&r, &recipe);
    }
    if (rc == 0)
        rc = check_loaded(recipe);
    if (rc == 0)
        rc = ct_hf_check_free(r.folder, r.force);
    if (rc == 0)
        rc = open_and_write(recipe, &r);
    ct_arena_finish(&r.arena);
    return rc;
}

const struct ct_verb_ops lora_verb = {
    .size = sizeof(lora_verb),
    .summary = "merge a recipe's adapters into a Hugging Face folder, or write them for peft",
    .run = run_lora,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan lora merge recipes/llama3_8b_lora.ini merged",
                         "ctitan lora adapter recipes/llama3_8b_lora.ini adapter --force")};
