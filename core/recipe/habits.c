/*
 * Names that other systems use, in recipes and on command lines: refused, with words about the name
 * here. One table has those that are called differently. A name that is right elsewhere needs no
 * row, since options are looked up in the tables of the core and of plugins.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>

#include "recipe/settings.h"

#define SHOWN 3 /* sections of an option */

/* A key, or a section in brackets, and what it is here: a section, a key, an offer, or NULLs. */
struct habit {
    const char *name;
    const char *section, *key; /* section NULL: any that has the key */
    const char *offer;         /* the section of a loaded plugin that offers it */
    const char *words;         /* instead, or as well; NULL: none */
};

#define ACCUMULATION                                                                               \
    "a step has local_batch_size sequences of each data-parallel rank, times the accumulated "     \
    "microbatches"
#define RANKS "-n RANKS starts as many ranks"
#define NO_SWITCH "a plugin that [plugins] load lists is on: no section has a switch"
#define LOCAL_FILES "files of this machine: nothing is downloaded"
#define OWN_SECTIONS                                                                               \
    "each technique is a plugin, with its options in a section of its name; `ctitan plugins` "     \
    "lists them"

static const struct habit habits[] = {
    {"learning_rate", NULL, "lr"},
    {"max_lr", NULL, "lr"},
    {"min_lr", "lr_scheduler", "min_lr_factor", NULL, "a share of the peak"},
    {"scheduler", "lr_scheduler", "decay_type"},
    {"lr_scheduler_type", "lr_scheduler", "decay_type"},
    {"lr_decay_style", "lr_scheduler", "decay_type"},
    {"warmup", "lr_scheduler", "warmup_steps"},
    {"lr_warmup_iters", "lr_scheduler", "warmup_steps"},
    {"warmup_ratio", "lr_scheduler", "warmup_steps", NULL, "in steps"},
    {"batch_size", "training", "local_batch_size", NULL,
     "sequences of a rank; global_batch_size has those of a step"},
    {"micro_batch_size", "training", "local_batch_size"},
    {"per_device_train_batch_size", "training", "local_batch_size"},
    {"train_batch_size", "training", "global_batch_size"},
    {"rampup_batch_size", "training", "batch_ramp", NULL, "START:INCREMENT:SAMPLES"},
    {"gradient_accumulation_steps", "training", "global_batch_size", NULL, ACCUMULATION},
    {"accumulate_grad_batches", "training", "global_batch_size", NULL, ACCUMULATION},
    {"grad_accum_steps", "training", "global_batch_size", NULL, ACCUMULATION},
    {"max_steps", "training", "steps"},
    {"train_steps", "training", "steps"},
    {"max_iters", "training", "steps"},
    {"train_iters", "training", "steps"},
    {"num_epochs", "training", "epochs"},
    {"num_train_epochs", "training", "epochs"},
    {"max_epochs", "training", "epochs"},
    {"max_seq_len", "training", "seq_len"},
    {"max_seq_length", "training", "seq_len"},
    {"sequence_length", "training", "seq_len"},
    {"seq_length", "training", "seq_len"},
    {"block_size", "training", "seq_len"},
    {"context_length", "training", "seq_len"},
    {"max_length", "training", "seq_len"},
    {"max_grad_norm", "training", "max_norm"},
    {"gradient_clipping", "training", "max_norm"},
    {"gradient_clip_val", "training", "max_norm"},
    {"grad_clip", "training", "max_norm"},
    {"clip_grad", "training", "max_norm"},
    {"clip_grad_norm", "training", "max_norm"},
    {"bf16", "training", "mixed_precision_param", NULL, "bfloat16 is its default"},
    {"fp16", "training", "mixed_precision_param", NULL, "float16 is not supported"},
    {"mixed_precision", "training", "mixed_precision_param"},
    {"precision", "training", "mixed_precision_param", NULL,
     "and [training] dtype for weights that are stored"},
    {"torch_dtype", "training", "dtype"},
    {"mixed_precision_reduce", NULL, "reduce_dtype"},
    {"init_timeout_seconds", "comm", "start_timeout"},
    {"train_timeout_seconds", "comm", "timeout"},
    {"adam_beta1", NULL, "beta1"},
    {"adam_beta2", NULL, "beta2"},
    {"data_parallel_shard_degree", NULL, "shard_degree"},
    {"data_parallel_replicate_degree", NULL, "replicate_degree"},
    {"tensor_parallel_degree", NULL, NULL, NULL, OWN_SECTIONS},
    {"context_parallel_degree", NULL, NULL, NULL, OWN_SECTIONS},
    {"expert_parallel_degree", NULL, NULL, NULL, OWN_SECTIONS},
    {"compile", NULL, NULL, NULL, OWN_SECTIONS},
    {"dataset", NULL, "path", NULL, LOCAL_FILES},
    {"dataset_path", NULL, "path", NULL, LOCAL_FILES},
    {"enable_wandb", NULL, NULL, NULL, NO_SWITCH},
    {"enable", NULL, NULL, NULL, NO_SWITCH},
    {"enabled", NULL, NULL, NULL, NO_SWITCH},
    {"output_dir", "job", "dump_folder"},
    {"output", "job", "dump_folder"},
    {"logging_steps", NULL, "log_freq"},
    {"eval_steps", "validation", "freq"},
    {"early_stopping_patience", "validation", "patience"},
    {"early_stopping_threshold", "validation", "min_delta"},
    {"model_name_or_path", "model", "init_from"},
    {"model_path", "model", "init_from"},
    {"pretrained", "model", "init_from"},
    {"model", NULL, NULL, NULL,
     "--with NAME loads the plugin of a model, --set model.flavor=SIZE chooses its size"},
    {"resume", NULL, NULL, NULL, "a plugin of checkpoints resumes a run by itself"},
    {"resume_from_checkpoint", NULL, NULL, NULL, "a plugin of checkpoints resumes by itself"},
    {"config", NULL, NULL, NULL, "the recipe is a word without an option"},
    {"config_file", NULL, NULL, NULL, "the recipe is a word without an option"},
    {"job.config_file", NULL, NULL, NULL, "the recipe is a word without an option"},
    {"gpus", NULL, NULL, NULL, RANKS},
    {"devices", NULL, NULL, NULL, RANKS},
    {"nproc_per_node", NULL, NULL, NULL, RANKS},
    {"num_processes", NULL, NULL, NULL, RANKS},
    {"world_size", NULL, NULL, NULL, RANKS},
    {"[train]", "training"},
    {"[trainer]", "training"},
    {"[optimizer]", NULL, NULL, "optimizer:*"},
    {"[optim]", NULL, NULL, "optimizer:*"},
    {"[data]", NULL, NULL, "data source:*"},
    {"[dataset]", NULL, NULL, "data source:*"},
    {"[dataloader]", NULL, NULL, "data source:*"},
    {"[tokenizer]", NULL, NULL, "tokenizer:*"},
    {"[scheduler]", "lr_scheduler"},
    {"[debug]", "training"},
    {"[profiling]", NULL, NULL, NULL, OWN_SECTIONS},
    {"[compile]", NULL, NULL, NULL, OWN_SECTIONS},
    {"[activation_checkpoint]", NULL, NULL, NULL, OWN_SECTIONS},
    {"[experimental]", NULL, NULL, NULL, OWN_SECTIONS},
    {"[fault_tolerance]", NULL, NULL, NULL, OWN_SECTIONS},
    {"[logging]", NULL, NULL, NULL, OWN_SECTIONS},
    {"[parallelism]", NULL, NULL, NULL, OWN_SECTIONS},
    {"[distributed]", NULL, NULL, NULL, OWN_SECTIONS},
    {"[checkpoint]", NULL, NULL, NULL, OWN_SECTIONS},
};

static const struct habit *find_habit(const char *name)
{
    for (size_t i = 0; i < CT_COUNT(habits); i++)
        if (!strcmp(habits[i].name, name))
            return &habits[i];
    return NULL;
}

/* ---- where options are ---- */

struct places {
    const char *section[SHOWN];
    size_t count;
    bool loaded; /* the recipe has them */
};

static void add_place(struct places *p, const char *section)
{
    if (p->count < SHOWN)
        p->section[p->count++] = section;
}

static void search(struct places *p, const char *const *plugins, size_t count, const char *key)
{
    const struct ct_plugin *plugin;

    for (size_t i = 0; i < count; i++)
        if (ct_plugin_describe(plugins[i], &plugin) == 0 && plugin->options &&
            ct_option_find(plugin->options, key))
            add_place(p, plugin->name);
}

static bool is_listed(const struct ct_recipe *recipe, const char *plugin)
{
    for (size_t i = 0; recipe && i < recipe->plugin_count; i++)
        if (!strcmp(recipe->plugins[i], plugin))
            return true;
    return false;
}

/* The plugin NAME_MORE that has the key of a section NAME: what was an option of NAME may have
   become a plugin. */
static void find_offspring(struct ct_arena *arena, const struct ct_recipe *recipe,
                           const char *section, const char *key, struct places *p)
{
    const char **names;
    size_t count = ct_plugin_names(arena, &names), length = strlen(section);

    *p = (struct places){0};
    for (size_t i = 0; i < count && !p->count; i++)
        if (!strncmp(names[i], section, length) && names[i][length] == '_')
            search(p, &names[i], 1, key);
    p->loaded = p->count && is_listed(recipe, p->section[0]);
}

/* The sections that have the key: of the core and the recipe's plugins, else of others. */
static void find_places(struct ct_arena *arena, const struct ct_recipe *recipe, const char *key,
                        struct places *p)
{
    const char **names;
    size_t count;

    *p = (struct places){.loaded = true};
    for (size_t i = 0; ct_recipe_section_at(i)->name; i++)
        if (ct_option_find(ct_recipe_section_at(i)->options, key))
            add_place(p, ct_recipe_section_at(i)->name);
    if (recipe)
        search(p, recipe->plugins, recipe->plugin_count, key);
    if (p->count)
        return;
    p->loaded = false;
    count = ct_plugin_names(arena, &names);
    search(p, names, count, key);
}

/* "[adamw] or [muon]", in arena. */
static const char *list_places(struct ct_arena *arena, const struct places *p)
{
    const char *list = "";

    for (size_t i = 0; i < p->count; i++)
        list = ct_arena_printf(arena, "%s%s[%s]", list, i ? " or " : "", p->section[i]);
    return list;
}

const char *ct_recipe_sections_of(struct ct_arena *arena, const char *key)
{
    struct places p;

    find_places(arena, NULL, key, &p);
    return p.count ? list_places(arena, &p) : NULL;
}

/* The section of a loaded plugin that offers `what`; NULL: none. */
static const char *find_offered(const struct ct_recipe *recipe, const char *what)
{
    const struct ct_plugin *plugin;

    for (size_t i = 0; i < recipe->plugin_count; i++)
        if (ct_plugin_describe(recipe->plugins[i], &plugin) == 0 && ct_plugin_has(plugin, what))
            return plugin->name;
    return NULL;
}

/* ---- recipes ---- */

static const char *with_words(struct ct_arena *arena, const char *text, const struct habit *h)
{
    if (!h || !h->words)
        return text;
    return ct_arena_printf(arena, *text ? "%s: %s" : "%s%s", text, h->words);
}

/* NAME's option MORE is the plugin NAME_MORE: words about it, in arena; NULL: there is none. */
static const char *plugin_of_option(struct ct_arena *arena, const char *section, const char *key)
{
    const char *plugin = ct_arena_printf(arena, "%s_%s", section, key), **names;
    size_t count = ct_plugin_names(arena, &names);

    for (size_t i = 0; i < count; i++)
        if (!strcmp(names[i], plugin))
            return ct_arena_printf(arena,
                                   "plugin %s does it where [plugins] load lists it (--with %s), "
                                   "with its options in [%s]; else remove the line",
                                   plugin, plugin, plugin);
    return NULL;
}

/* A hint what to write instead of a section's key, in arena; NULL: not known. */
static const char *key_hint(struct ct_arena *arena, const struct ct_recipe *recipe,
                            const char *section, const char *name)
{
    const struct habit *h = find_habit(name);
    const char *key = h && h->key ? h->key : name;
    const char *plugin = plugin_of_option(arena, section, name);
    struct places p;

    if (plugin)
        return plugin;
    if (h && h->section)
        return with_words(arena, ct_arena_printf(arena, "write %s in [%s]", key, h->section), h);
    if (h && !h->key)
        return with_words(arena, "", h);
    find_offspring(arena, recipe, section, key, &p);
    if (!p.count)
        find_places(arena, recipe, key, &p);
    if (!p.count)
        return NULL;
    return with_words(arena,
                      ct_arena_printf(arena, "write %s in %s%s", key, list_places(arena, &p),
                                      p.loaded ? "" : ", a plugin that [plugins] load must list"),
                      h);
}

int ct_recipe_hint_key(const struct ct_recipe *recipe, const char *where, const char *section,
                       const char *key)
{
    struct ct_arena scratch = {0};
    const char *hint = key_hint(&scratch, recipe, section, key);
    int rc = hint ? ct_fail(CT_ECONFIG, "%s: no option named %s: %s", where, key, hint) : 0;

    ct_arena_finish(&scratch);
    return rc;
}

bool ct_recipe_is_habit(const char *key)
{
    return find_habit(key);
}

int ct_recipe_hint_section(const struct ct_recipe *recipe, const char *source, const char *name)
{
    struct ct_arena scratch = {0};
    const struct habit *h = find_habit(ct_arena_printf(&scratch, "[%s]", name));
    const char *section = h && h->offer ? find_offered(recipe, h->offer) : NULL;
    int rc = 0;

    ct_arena_finish(&scratch);
    if (!h)
        return 0;
    if (h->section)
        rc = ct_fail(CT_ECONFIG, "%s: no section [%s]: write [%s]", source, name, h->section);
    else if (section)
        rc = ct_fail(CT_ECONFIG,
                     "%s: no section [%s]: write [%s], as the options of a plugin are in the "
                     "section of its name",
                     source, name, section);
    else
        rc = ct_fail(CT_ECONFIG, "%s: no section [%s]: %s", source, name,
                     h->words ? h->words : OWN_SECTIONS);
    return rc;
}

/* The message has the value without these quotes, or in those that it needs. */
static int refuse_quotes(const struct ct_setting *s, size_t length)
{
    struct ct_arena scratch = {0};
    const char *value = ct_arena_printf(&scratch, "%.*s", (int)length - 2, s->value + 1);
    int rc =
        ct_fail(CT_ECONFIG, "%s: [%s] %s = %s: values have no quotes: write %s = %s", s->source,
                s->section, s->key, s->value, s->key, ct_recipe_quote(&scratch, value));

    ct_arena_finish(&scratch);
    return rc;
}

static int check_value(const struct ct_setting *s)
{
    size_t length = strlen(s->value);
    const char *home = getenv("HOME");
    /* A value that could begin a comment was in quotes; it may have others. */
    char quote = ct_recipe_comment(s->value, length) == length ? *s->value : '\0';

    if (length >= 2 && (quote == '"' || quote == '\'') && s->value[length - 1] == quote)
        return refuse_quotes(s, length);
    if (quote == '"' && !strchr(s->value + 1, '"'))
        return ct_fail(CT_ECONFIG,
                       "%s: [%s] %s = %s: the quote is not closed; only a value with \" #\" or "
                       "\" ;\" is in quotes",
                       s->source, s->section, s->key, s->value);
    if (!strcmp(s->value, "~") || !strncmp(s->value, "~/", 2))
        return ct_fail(CT_ECONFIG, "%s: [%s] %s = %s: ~ stands for no folder here: write %s = %s%s",
                       s->source, s->section, s->key, s->value, s->key,
                       home ? home : "the whole path", home ? s->value + 1 : "");
    return 0;
}

int ct_recipe_check_values(const struct ct_recipe *recipe)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < recipe->count; i++)
        rc = check_value(&recipe->settings[i]);
    return rc;
}

/* ---- other kinds of files ---- */

static bool is_yaml(const char *line, size_t length)
{
    size_t name = 0;

    if (length >= 3 && !strncmp(line, "---", 3))
        return true;
    while (name < length && (isalnum((unsigned char)line[name]) || strchr("_-.", line[name])))
        name++;
    return name && name < length && line[name] == ':' &&
           (name + 1 == length || strchr(" \t\r", line[name + 1]));
}

int ct_recipe_check_kind(const char *path, const char *text)
{
    const char *kind = NULL;

    while (*text && strchr(" \t\r\n", *text))
        text++;
    while (*text == '#' || *text == ';')
        text += strcspn(text, "\n") + strspn(text + strcspn(text, "\n"), " \t\r\n");
    if (*text == '{')
        kind = "JSON";
    else if (is_yaml(text, strcspn(text, "\n")))
        kind = "YAML";
    return kind ? ct_fail(CT_ECONFIG,
                          "%s: this is %s, but a recipe is an INI file: lines [SECTION], and below "
                          "them KEY = VALUE; `ctitan help` lists the sections",
                          path, kind)
                : 0;
}

/* ---- command lines ---- */

/* "--set adamw.lr=1e-3 or --set muon.lr=1e-3" */
static const char *list_settings(struct ct_arena *arena, const struct places *p, const char *key,
                                 const char *value)
{
    const char *list = "";

    for (size_t i = 0; i < p->count; i++)
        list = ct_arena_printf(arena, "%s%s--set %s.%s=%s", list, i ? " or " : "", p->section[i],
                               key, value);
    return list;
}

/* A plugin's name: "--tp 2". NULL: it is none. */
static const char *plugin_hint(struct ct_arena *arena, const char *name, const char *value)
{
    const struct ct_plugin *plugin;
    const char **names;
    size_t count = ct_plugin_names(arena, &names);

    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) != 0)
            continue;
        if (value && ct_plugin_describe(name, &plugin) == 0 && plugin->options &&
            ct_option_find(plugin->options, "degree"))
            return ct_arena_printf(arena, "write --with %s --set %s.degree=%s", name, name, value);
        return ct_arena_printf(arena, "write --with %s", name);
    }
    return NULL;
}

/* "training.steps" names an option of a recipe. NULL: it has no point. */
static const char *setting_hint(struct ct_arena *arena, const char *name, const char *value)
{
    const char *point = strchr(name, '.');

    if (!point || point == name || !point[1])
        return NULL;
    return ct_arena_printf(arena, "write --set %s=%s", name, value ? value : "VALUE");
}

/* Words about an option that a verb does not have; NULL: there are none. recipe may be NULL. */
static const char *option_hint(struct ct_arena *arena, const struct ct_recipe *recipe,
                               const char *name, const char *value)
{
    const struct habit *h = find_habit(name);
    const char *key = h && h->key ? h->key : name, *hint;
    const char *shown = value && !(h && h->words) ? value : "VALUE";
    struct places p = {.count = 0};

    if (h && !h->key)
        return with_words(arena, "", h);
    hint = h ? NULL : plugin_hint(arena, name, value);
    if (!hint && !h)
        hint = setting_hint(arena, name, value);
    if (hint)
        return hint;
    if (h && h->section)
        add_place(&p, h->section);
    else
        find_places(arena, recipe, key, &p);
    if (!p.count)
        return NULL;
    return with_words(arena,
                      ct_arena_printf(arena, "write %s", list_settings(arena, &p, key, shown)), h);
}

int ct_recipe_hint_assignment(const struct ct_recipe *recipe, const char *assignment)
{
    struct ct_arena scratch = {0};
    size_t key = strcspn(assignment, "=");
    const char *hint =
        option_hint(&scratch, recipe, ct_arena_printf(&scratch, "%.*s", (int)key, assignment),
                    assignment + key + 1);
    int rc =
        hint ? ct_fail(CT_ECONFIG, "--set %.80s: expected section.key=value: %s", assignment, hint)
             : 0;

    ct_arena_finish(&scratch);
    return rc;
}

int ct_recipe_hint_argument(const char *verb, const char *word, const char *next)
{
    struct ct_arena scratch = {0};
    const char *name = word + strspn(word, "-"), *value = strchr(name, '='), *hint;
    char *copy = ct_arena_printf(&scratch, "%.*s", (int)strcspn(name, "="), name);
    bool option = *word == '-';
    int rc = 0;

    for (char *c = copy; *c; c++)
        *c = *c == '-' ? '_' : *c;
    value = value ? value + 1 : option && next && *next != '-' ? next : NULL;
    hint = option || value ? option_hint(&scratch, NULL, copy, value) : NULL;
    if (hint && option)
        rc = ct_fail(CT_ECONFIG, "%s has no option %.*s: %s", verb, (int)strcspn(word, "="), word,
                     hint);
    else if (hint)
        rc = ct_fail(CT_ECONFIG, "%s: %s: %s", verb, word, hint);
    ct_arena_finish(&scratch);
    return rc;
}
