/*
 * The sections of every recipe: their options, and where the core finds the values.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/option_use.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>

#include "recipe/settings.h"

static const struct ct_option job_options[] = {
    CT_OPT_STRING(struct ct_job_config, name, "name", "", "Name of the run, for people"),
    CT_OPT_STRING(struct ct_job_config, dump_folder, "dump_folder", "./outputs",
                  "Folder for everything that the run writes"),
    CT_OPT_STRING(struct ct_job_config, description, "description", "", "What the run is for"),
    {0}};

#define DTYPES "float32|bfloat16"
_Static_assert(CT_F32 == 0 && CT_BF16 == 1, "the first dtypes are those that DTYPES names");

static const struct ct_option training_options[] = {
    CT_OPT_INT(struct ct_config, training.seq_len, "seq_len", "2048", 1, 1 << 30,
               "Tokens in a sequence"),
    CT_OPT_INT(struct ct_config, training.local_batch_size, "local_batch_size", "8", 1, 1 << 30,
               "Sequences per data-parallel rank and accumulation step"),
    CT_OPT_INT(struct ct_config, training.global_batch_size, "global_batch_size", "-1", -1, 1 << 30,
               "Sequences in a step; -1: local_batch_size times the data-parallel degree"),
    CT_OPT_STRING(struct ct_config, batch_ramp, "batch_ramp", "",
                  "START:INCREMENT:SAMPLES: steps begin with START sequences, and have INCREMENT "
                  "more at a time, up to global_batch_size, while so many samples are read; empty: "
                  "never"),
    CT_OPT_INT(struct ct_config, training.steps, "steps", "10000", 1, 1e15,
               "Steps to train for, unless the data ends before"),
    CT_OPT_INT(
        struct ct_config, training_epochs, "epochs", "0", 0, 1e9,
        "Passes over the data to train for, in the place of steps; what is left for less than a "
        "step is left out; 0: steps counts"),
    CT_OPT_STRING(
        struct ct_config, stop_after, "stop_after", "",
        "End the run in order at a time, 14:30, or so long after its start, +90m (s, m, h "
        "or d); a start after a failure keeps the time. Empty: never. --until goes first"),
    CT_OPT_INT(struct ct_config, training.seed, "seed", "0", 0, 9e15,
               "Seed of the initial weights and of the order of the data"),
    CT_OPT_FLOAT(struct ct_config, training.max_norm, "max_norm", "1.0", 0, INFINITY,
                 "Gradients are scaled down to this norm; 0: never"),
    CT_OPT_ENUM(struct ct_config, training.dtype, "dtype", "float32", DTYPES,
                "Type of weights, gradients and optimizer state"),
    CT_OPT_ENUM(struct ct_config, training.mixed_precision_param, "mixed_precision_param",
                "bfloat16", DTYPES, "Type that float32 weights are used in, forward and backward"),
    CT_OPT_ENUM(struct ct_config, training.non_finite, "non_finite", "stop", "stop|skip|rewind",
                "What a non-finite loss or gradient norm does: end the run, skip the update, or go "
                "back to the last checkpoint and skip the batch"),
    CT_OPT_BOOL(struct ct_config, deterministic, "deterministic", "false",
                "Only what gives the same bits in every run on this machine and mesh, also after a "
                "restart, at the price of speed; what cannot is an error"),
    CT_OPT_STRING(struct ct_config, training.skip, "skip", "",
                  "Transforms of the graph that are left out, comma-separated: for comparisons"),
    {0}};

static const struct ct_option model_options[] = {
    CT_OPT_STRING(struct ct_config, model.name, "name", "",
                  "The model, as its plugin is called; empty: the only one that is loaded"),
    CT_OPT_STRING(struct ct_config, model.flavor, "flavor", "debug",
                  "Size of the model, one of those that `ctitan help MODEL` lists"),
    CT_OPT_STRING(struct ct_config, model.init_from, "init_from", "",
                  "Hugging Face folder to take shape and weights from; overrides flavor"),
    CT_OPT_STRING(
        struct ct_config, model.save_to, "save_to", "",
        "Folder to write the trained weights to, as init_from reads them; also if the run is "
        "stopped. One inside the recipe's dump_folder follows --set job.dump_folder"),
    CT_OPT_FLOAT(struct ct_config, model.max_shard_size, "max_shard_size", "5", 1e-6, 1e9,
                 "Largest file of save_to, in GB; more weights get several files and an index"),
    CT_OPT_FLOAT(
        struct ct_config, initializer_range, "initializer_range", "0", 0, 1e6,
        "Standard deviation of all initial weights, as transformers has it (its default is "
        "0.02); 0: TorchTitan's rule"),
    CT_OPT_BOOL(struct ct_config, model_overwrite, "overwrite", "false",
                "Let save_to replace a model that another run wrote"),
    CT_OPT_STRING(struct ct_config, model_ignore, "ignore", "",
                  "Keys of init_from's config.json that are not known here and change nothing, "
                  "separated by commas"),
    {0}};

static const struct ct_option lr_options[] = {
    CT_OPT_INT(struct ct_config, lr_scheduler.warmup_steps, "warmup_steps", "200", 0, 1e15,
               "Steps of linear warm-up; in a schedule of fewer steps, all of them"),
    CT_OPT_INT(struct ct_config, lr_total_steps, "total_steps", "0", 0, 1e15,
               "Steps of the whole schedule, of which the run may be the beginning; 0: "
               "[training] steps"),
    CT_OPT_FLOAT(struct ct_config, lr_scheduler.decay_ratio, "decay_ratio", "-1", -1, 1,
                 "Share of the schedule's steps that decays; negative: all after the warm-up"),
    CT_OPT_ENUM(struct ct_config, lr_scheduler.decay_type, "decay_type", "linear",
                "linear|sqrt|cosine", "Shape of the decay"),
    CT_OPT_FLOAT(struct ct_config, lr_scheduler.min_lr_factor, "min_lr_factor", "0", 0, 1,
                 "Learning rate at the end, as a share of the peak"),
    {0}};

static const struct ct_option objective_options[] = {
    CT_OPT_STRING(
        struct ct_config, objective, "name", "cross_entropy",
        "The loss: cross_entropy, or the objective of a plugin, which is loaded if it has "
        "this name"),
    {0}};

static const struct ct_option comm_options[] = {
    CT_OPT_FLOAT(struct ct_comm_config, timeout, "timeout", "300", 0.1, 1e6,
                 "Seconds that a rank waits in any call before it names those who are missing"),
    CT_OPT_FLOAT(struct ct_comm_config, start_timeout, "start_timeout", "0", 0, 1e6,
                 "The same until the first step has ended: ranks may start, load weights and "
                 "compile at different times; 0: timeout"),
    CT_OPT_STRING(struct ct_comm_config, interface, "interface", "",
                  "Network interface that ranks of several hosts use, like eth1; empty: any"),
    {0}};

static const struct ct_option validation_options[] = {
    CT_OPT_INT(struct ct_config, validation.freq, "freq", "0", 0, 1e15,
               "Validate every so many steps; 0: never"),
    CT_OPT_INT(struct ct_config, validation.steps, "steps", "10", 1, 1e15,
               "Batches of a set in one validation, each of local_batch_size sequences for every "
               "data-parallel rank: more such ranks read more of the held-out data"),
    CT_OPT_INT(struct ct_config, patience, "patience", "0", 0, 1e15,
               "End the run after so many validations in a row without a best loss; 0: never"),
    CT_OPT_FLOAT(struct ct_config, min_delta, "min_delta", "0", 0, INFINITY,
                 "A loss is best if it is lower than the best one before by more than this"),
    CT_OPT_STRING(struct ct_config, best_set, "best_set", "",
                  "Name of the set whose loss says which step is best; empty: the first one that "
                  "is validated"),
    {0}};

static const struct ct_option set_options[] = {
    CT_OPT_STRING(struct ct_validation_set, path, "path", NULL,
                  "Data of the set, named as in the path of the data source"),
    {0}};

static const struct ct_recipe_section sections[] = {
    {"job", "The run as a whole", job_options, &ct_config.job},
    {"training",
     "Batch, length, precision; each section [stage.N] sets options anew from its step `begin` on",
     training_options, &ct_config},
    {"model", "What is trained", model_options, &ct_config},
    {"objective", "What the model is trained for", objective_options, &ct_config},
    {"lr_scheduler", "Learning rate over the steps: warm-up, stable, decay", lr_options,
     &ct_config},
    {"validation",
     "Loss on held-out data; each section [validation.NAME] adds a set, whose path it has",
     validation_options, &ct_config},
    {"comm", "Communication between ranks", comm_options, &ct_config.comm},
    {NULL, NULL, NULL, NULL}};

int ct_recipe_check_use(void)
{
    const char *why = "decay_ratio = 0 means no decay";
    bool decays = ct_config.lr_scheduler.decay_ratio != 0;
    const struct ct_option_use uses[] = {
        {"decay_type", decays, why}, {"min_lr_factor", decays, why}, {0}};

    return ct_options_check_use(lr_options, &ct_config, "lr_scheduler", uses);
}

/* ---- sets of validation ---- */

#define SETS 32 /* at most */
#define SET "validation."

static struct {
    struct ct_validation_set set[SETS];
    struct ct_recipe_section section[SETS];
    char name[SETS][CT_RECIPE_NAME + 1];
    size_t count;
} sets;

static bool is_name(const char *text)
{
    const char *c = text;

    while (isalnum((unsigned char)*c) || *c == '_' || *c == '-')
        c++;
    return *text && !*c;
}

static int add_set(const char *section, const char *source)
{
    const char *name = section + strlen(SET);
    size_t i = sets.count;

    if (!is_name(name))
        return ct_fail(CT_ECONFIG,
                       "%s: [%s]: expected a name of letters, digits, '_' and '-' after the dot",
                       source, section);
    if (i == SETS)
        return ct_fail(CT_ECONFIG, "%s: [%s]: more than %d sets of validation", source, section,
                       SETS);
    snprintf(sets.name[i], sizeof(*sets.name), "%s", section);
    sets.set[i].name = sets.name[i] + strlen(SET);
    sets.section[i] =
        (struct ct_recipe_section){sets.name[i], "A set of validation", set_options, &sets.set[i]};
    sets.count++;
    return 0;
}

static int find_set(const char *section, const char *source)
{
    if (strncmp(section, SET, strlen(SET)) != 0 || ct_recipe_section_find(section))
        return 0;
    return add_set(section, source);
}

int ct_recipe_find_sets(const struct ct_recipe *recipe)
{
    int rc = 0;

    sets.count = 0;
    for (size_t i = 0; rc == 0 && i < recipe->section_count; i++)
        rc = find_set(recipe->sections[i].section, recipe->sections[i].source);
    for (size_t i = 0; rc == 0 && i < recipe->count; i++)
        rc = find_set(recipe->settings[i].section, recipe->settings[i].source);
    ct_config.validation_sets = sets.set;
    ct_config.validation_set_count = sets.count;
    return rc;
}

/* ---- all sections ---- */

const struct ct_recipe_section *ct_recipe_section_at(size_t index)
{
    size_t fixed = CT_COUNT(sections) - 1;

    if (index < fixed)
        return &sections[index];
    return index - fixed < sets.count ? &sets.section[index - fixed] : &sections[fixed];
}

const struct ct_recipe_section *ct_recipe_section_find(const char *name)
{
    const struct ct_recipe_section *s;

    for (size_t i = 0; (s = ct_recipe_section_at(i))->name; i++)
        if (!strcmp(s->name, name))
            return s;
    return NULL;
}

const struct ct_plugin *ct_recipe_replaced_by(const char *section, const char *key)
{
    const struct ct_plugin *p;

    if (strcmp(section, "lr_scheduler") || !strcmp(key, "total_steps"))
        return NULL;
    for (size_t i = 0; (p = ct_plugin_at(i)); i++)
        if (ct_plugin_has(p, "learning-rate schedule:*"))
            return p;
    return NULL;
}
