/*
 * The stages of a recipe, from its sections [stage.N] and [training] batch_ramp. Each option that
 * varies has a text for each stage.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugins.h>
#include <ctitan/stage.h>
#include <ctitan/text.h>

#include "recipe/settings.h"

#define STAGE "stage."
#define BEGIN "begin"
#define TRAINING "training"
#define BATCH "global_batch_size"
#define RAMP "batch_ramp"

/* An option that a stage sets. */
struct varied {
    const char *section;
    struct ct_recipe_target target;
    const struct ct_option *option;
    const char *own;              /* value of the recipe */
    const char *text[CT_STAGES];  /* of each stage; NULL: that of the one before */
    const char *where[CT_STAGES]; /* what says so, for messages */
};

static struct {
    struct ct_recipe *recipe;
    struct ct_stage stage[CT_STAGES];
    size_t count;
    struct varied *varied;
    size_t varied_count, room;
} all = {.stage[0] = {.begin = 1, .what = ""}, .count = 1};

size_t ct_stage_count(void)
{
    return all.count;
}

const struct ct_stage *ct_stage_at(size_t index)
{
    return &all.stage[index];
}

size_t ct_stage_of(int64_t step)
{
    size_t i = all.count - 1;

    while (i && all.stage[i].begin > step)
        i--;
    return i;
}

/* ---- sections ---- */

bool ct_recipe_is_stage(const char *section)
{
    return !strncmp(section, STAGE, strlen(STAGE));
}

static const struct ct_setting *section_of(const struct ct_recipe *recipe, size_t number)
{
    char name[32];

    snprintf(name, sizeof(name), STAGE "%zu", number);
    for (size_t i = 0; i < recipe->section_count; i++)
        if (!strcmp(recipe->sections[i].section, name))
            return &recipe->sections[i];
    for (size_t i = 0; i < recipe->count; i++) /* --set alone makes no section */
        if (!strcmp(recipe->settings[i].section, name))
            return &recipe->settings[i];
    return NULL;
}

const char *ct_recipe_stage_section(const struct ct_recipe *recipe, size_t number)
{
    const struct ct_setting *s = section_of(recipe, number);

    return s ? s->section : NULL;
}

struct number {
    int64_t value;
};

/* Written as other options are: 40000 or 4e4. -1: it is no positive number. */
static int64_t number_of(const char *text)
{
    static const struct ct_option options[] = {
        CT_OPT_INT(struct number, value, "number", "1", 1, 1e15, "A step, or samples"), {0}};
    struct number number;

    return ct_options_set(options, &number, "number", text, STAGE) == 0 ? number.value : -1;
}

static int check_name(const struct ct_recipe *recipe, const struct ct_setting *s)
{
    size_t count = 1;

    if (!ct_recipe_is_stage(s->section))
        return 0;
    while (section_of(recipe, count + 1))
        count++;
    for (size_t n = 2; n <= count; n++)
        if (!strcmp(section_of(recipe, n)->section, s->section))
            return 0;
    return ct_fail(CT_ECONFIG,
                   "%s: [%s]: stages are [stage.2], [stage.3] and so on, without a gap; the first "
                   "one is the recipe itself",
                   s->source, s->section);
}

static int read_begin(const struct ct_recipe *recipe, const struct ct_setting *section,
                      int64_t before, int64_t *begin)
{
    const struct ct_setting *s = ct_recipe_find(recipe, section->section, BEGIN);

    if (!s)
        return ct_fail(CT_ECONFIG, "%s: [%s] begin must be set: the first step of the stage",
                       section->source, section->section);
    *begin = number_of(s->value);
    if (*begin > before)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%s: [%s] begin = %s: expected a step after %lld, with which the "
                   "stage before begins",
                   s->source, s->section, s->value, (long long)before);
}

const char *ct_recipe_get_at(const struct ct_recipe *recipe, int64_t step, const char *section,
                             const char *key)
{
    const char *value = ct_recipe_get(recipe, section, key), *full, *text;
    const struct ct_setting *s;

    full = ct_arena_printf(recipe->arena, "%s.%s", section, key);
    for (size_t n = 2; (s = section_of(recipe, n)); n++) {
        text = ct_recipe_get(recipe, s->section, BEGIN);
        if (!text || number_of(text) > step)
            break;
        text = ct_recipe_get(recipe, s->section, full);
        text = text ? text : ct_recipe_get(recipe, s->section, key);
        value = text ? text : value;
    }
    return value;
}

int64_t ct_recipe_integer_at(const struct ct_recipe *recipe, int64_t step, const char *section,
                             const char *key)
{
    const char *text = ct_recipe_get_at(recipe, step, section, key);
    int64_t number = text ? number_of(text) : 0;

    return number > 0 ? number : 0;
}

/* ---- the list ---- */

/* Add the stage that begins with a step, if there is none. Returns its index. */
static int add_stage(int64_t begin, size_t *index)
{
    size_t i = ct_stage_of(begin);

    *index = i;
    if (all.stage[i].begin == begin)
        return 0;
    if (all.count == CT_STAGES)
        return ct_fail(CT_ECONFIG, "a run has at most %d stages", CT_STAGES);
    *index = ++i;
    memmove(&all.stage[i + 1], &all.stage[i], sizeof(*all.stage) * (all.count - i));
    all.stage[i] = (struct ct_stage){.begin = begin, .what = ""};
    all.count++;
    return 0;
}

static struct varied *vary(const char *section, const struct ct_recipe_target *target,
                           const struct ct_option *option)
{
    struct varied *v;

    for (size_t i = 0; i < all.varied_count; i++)
        if (all.varied[i].option == option)
            return &all.varied[i];
    all.varied = ct_arena_grow(all.recipe->arena, all.varied, &all.room, all.varied_count + 1,
                               sizeof(*all.varied));
    v = &all.varied[all.varied_count++];
    *v = (struct varied){.section = section,
                         .target = *target,
                         .option = option,
                         .own = ct_option_text(option, target->config, all.recipe->arena)};
    return v;
}

static void set_text(struct varied *v, size_t stage, const char *key, const char *text,
                     const char *where)
{
    const char *what = all.stage[stage].what;

    v->text[stage] = text;
    v->where[stage] = where;
    if (stage)
        all.stage[stage].what =
            ct_arena_printf(all.recipe->arena, "%s%s%s = %s", what, *what ? ", " : "", key, text);
}

/* ---- what a stage may set ---- */

static bool is_one_of(const char *word, const char *const *words)
{
    while (*words && strcmp(*words, word) != 0)
        words++;
    return *words;
}

/* The options of a plugin are read when graphs and data are made, which each stage has of its own,
   if all that it offers is of these kinds. */
static bool is_of_stages(const struct ct_plugin *p)
{
    static const enum ct_kind kinds[] = {CT_DATA, CT_OPTIMIZER, CT_TRANSFORM,
                                         CT_OP,   CT_KERNELS,   CT_CODE};

    for (const struct ct_offer *o = p->offers; o->kind != CT_NOTHING; o++) {
        size_t i = 0;

        while (i < CT_COUNT(kinds) && kinds[i] != o->kind)
            i++;
        if (i == CT_COUNT(kinds))
            return false;
    }
    return true;
}

/* Why no stage can set an option; NULL: it can. */
static const char *obstacle(const struct ct_recipe_target *target, const char *key)
{
    static const char *const keys[] = {"seq_len", "local_batch_size", BATCH, "max_norm", NULL};

    if (target->plugin)
        return is_of_stages(target->plugin) ? NULL : "is read once, when the run begins";
    return !strcmp(target->name, TRAINING) && is_one_of(key, keys) ? NULL
                                                                   : "belongs to the whole run";
}

/* CT_ECONFIG with words about a name that other systems have for an option; 0: there are none. */
static int hint(const struct ct_setting *s, const char *key)
{
    return ct_recipe_is_habit(key)
               ? ct_recipe_hint_key(
                     all.recipe,
                     ct_arena_printf(all.recipe->arena, "%s: [%s]", s->source, s->section),
                     s->section, key)
               : 0;
}

static int find_named(const struct ct_setting *s, struct ct_recipe_target *target, const char **key)
{
    const char *dot = strrchr(s->key, '.');
    const char *section = ct_arena_printf(all.recipe->arena, "%.*s", (int)(dot - s->key), s->key),
               *why;

    *key = dot + 1;
    if (!ct_recipe_target_find(section, target) || !target->options)
        return ct_fail(CT_ECONFIG, "%s: [%s] %s: the recipe has no section [%s] with options",
                       s->source, s->section, s->key, section);
    if (!ct_option_find(target->options, *key))
        return hint(s, *key) < 0 ? CT_ECONFIG
                                 : ct_options_set(target->options, target->config, *key, s->value,
                                                  ct_arena_printf(all.recipe->arena, "%s: [%s]",
                                                                  s->source, s->section));
    why = obstacle(target, *key);
    return why ? ct_fail(CT_ECONFIG, "%s: [%s] %s: [%s] %s %s, so a stage cannot set it", s->source,
                         s->section, s->key, section, *key, why)
               : 0;
}

/* A key without a section is that of the only section that has it, of those that a stage may
   set. */
static int find_key(const struct ct_setting *s, struct ct_recipe_target *found)
{
    struct ct_recipe_target target, other = {0};
    const char *names[CT_COUNT(all.stage)];
    size_t count = 0, known = 0;

    for (size_t i = 0; ct_recipe_target_at(i, &target); i++) {
        bool has = target.options && ct_option_find(target.options, s->key);

        for (const struct ct_option *o = target.options; o && o->name; o++)
            if (known < CT_COUNT(names) && !obstacle(&target, o->name))
                names[known++] = o->name;
        if (has && obstacle(&target, s->key))
            other = target;
        else if (has && count++)
            return ct_fail(CT_ECONFIG, "%s: [%s] %s is an option of [%s] and of [%s]: write %s.%s",
                           s->source, s->section, s->key, found->name, target.name, target.name,
                           s->key);
        else if (has)
            *found = target;
    }
    if (count)
        return 0;
    if (other.name)
        return ct_fail(CT_ECONFIG, "%s: [%s] %s: [%s] %s %s, so a stage cannot set it", s->source,
                       s->section, s->key, other.name, s->key, obstacle(&other, s->key));
    if (hint(s, s->key) < 0)
        return CT_ECONFIG;
    return ct_fail(CT_ECONFIG, "%s: [%s] %s: no option that a stage can set is called so%s",
                   s->source, s->section, s->key, ct_did_you_mean(s->key, names, known));
}

static int add_setting(const struct ct_setting *s, size_t stage)
{
    struct ct_recipe_target target = {0};
    const char *key = s->key;
    int rc = strchr(key, '.') ? find_named(s, &target, &key) : find_key(s, &target);
    struct varied *v;

    if (rc < 0)
        return rc;
    v = vary(target.name, &target, ct_option_find(target.options, key));
    if (v->text[stage])
        return ct_fail(CT_ECONFIG, "%s: [%s] %s: the stage sets [%s] %s twice, also at %s",
                       s->source, s->section, s->key, target.name, key, v->where[stage]);
    set_text(v, stage, s->key, s->value,
             ct_arena_printf(all.recipe->arena, "%s: [%s]", s->source, s->section));
    return 0;
}

static int add_sections(const struct ct_recipe *recipe)
{
    const struct ct_setting *section;
    int64_t begin = 1;
    size_t stage;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < recipe->section_count; i++)
        rc = check_name(recipe, &recipe->sections[i]);
    for (size_t i = 0; rc == 0 && i < recipe->count; i++)
        rc = check_name(recipe, &recipe->settings[i]);
    for (size_t n = 2; rc == 0 && (section = section_of(recipe, n)); n++) {
        rc = read_begin(recipe, section, begin, &begin);
        if (rc == 0)
            rc =
                ct_context(add_stage(begin, &stage), "%s: [%s]", section->source, section->section);
    }
    return rc;
}

static int add_settings(const struct ct_recipe *recipe)
{
    const struct ct_setting *section;
    int rc = 0;

    for (size_t n = 2; rc == 0 && (section = section_of(recipe, n)); n++) {
        size_t stage = ct_stage_of(number_of(ct_recipe_get(recipe, section->section, BEGIN)));

        for (size_t i = 0; rc == 0 && i < recipe->count; i++)
            if (!strcmp(recipe->settings[i].section, section->section) &&
                strcmp(recipe->settings[i].key, BEGIN) != 0)
                rc = add_setting(&recipe->settings[i], stage);
    }
    return rc;
}

/* ---- batch_ramp ---- */

struct ramp {
    int64_t start, increment, samples, levels; /* levels: increments up to the whole batch */
    int64_t end;                               /* the step that has the whole batch first */
    const char *source;
};

static int parse_ramp(struct ramp *r)
{
    const struct ct_setting *s = ct_recipe_find(all.recipe, TRAINING, RAMP);
    int64_t whole = ct_config.training.global_batch_size, number[3];
    char *rest = ct_arena_strdup(all.recipe->arena, ct_config.batch_ramp), *word;
    size_t count = 0;

    r->source = s ? s->source : all.recipe->path;
    while ((word = strsep(&rest, ":"))) {
        if (count < CT_COUNT(number))
            number[count] = number_of(word);
        if (count++ < CT_COUNT(number) && !(number[count - 1] > 0 && number[count - 1] <= 1e12))
            count = CT_COUNT(number) + 1;
    }
    if (count != CT_COUNT(number))
        return ct_fail(CT_ECONFIG,
                       "%s: [training] batch_ramp = %s: expected START:INCREMENT:SAMPLES, three "
                       "positive numbers: the batch begins with START sequences, and grows by "
                       "INCREMENT up to global_batch_size while SAMPLES are read",
                       r->source, ct_config.batch_ramp);
    *r = (struct ramp){
        .start = number[0], .increment = number[1], .samples = number[2], .source = r->source};
    if (whole < 0)
        return ct_fail(CT_ECONFIG,
                       "%s: [training] batch_ramp grows up to global_batch_size: set "
                       "that",
                       r->source);
    if (r->start >= whole || (whole - r->start) % r->increment)
        return ct_fail(CT_ECONFIG,
                       "%s: [training] batch_ramp = %s: %lld sequences do not become "
                       "global_batch_size = %lld by steps of %lld",
                       r->source, ct_config.batch_ramp, (long long)r->start, (long long)whole,
                       (long long)r->increment);
    r->levels = (whole - r->start) / r->increment;
    return r->levels < CT_STAGES
               ? 0
               : ct_fail(CT_ECONFIG,
                         "%s: [training] batch_ramp = %s has %lld increments: at "
                         "most %d",
                         r->source, ct_config.batch_ramp, (long long)r->levels, CT_STAGES - 1);
}

/* Megatron's rule: after `read` samples the batch has start + increment * floor(read * levels /
   samples) sequences, at most all. Calls add for each level that has a step. */
static int for_each_level(struct ramp *r, int (*add)(int64_t begin, int64_t batch))
{
    int64_t level = 0, step = 1, read = 0;
    int rc = add(1, r->start);

    while (rc == 0 && level < r->levels) {
        int64_t batch = r->start + level * r->increment;
        int64_t left = (level + 1) * r->samples - read * r->levels;
        int64_t steps = (left + batch * r->levels - 1) / (batch * r->levels);

        read += steps * batch;
        step += steps;
        level = read * r->levels / r->samples;
        level = level < r->levels ? level : r->levels;
        rc = add(step, r->start + level * r->increment);
    }
    r->end = step;
    return rc;
}

static int add_level(int64_t begin, int64_t batch)
{
    size_t stage;

    (void)batch;
    return add_stage(begin, &stage);
}

static struct varied *vary_batch(void)
{
    struct ct_recipe_target target;

    ct_recipe_target_find(TRAINING, &target);
    return vary(TRAINING, &target, ct_option_find(target.options, BATCH));
}

static int set_level(int64_t begin, int64_t batch)
{
    set_text(vary_batch(), ct_stage_of(begin), BATCH,
             ct_arena_printf(all.recipe->arena, "%lld", (long long)batch), "[training] batch_ramp");
    return 0;
}

/* Sections may set the batch behind the ramp. */
static int check_ramp(const struct ramp *r)
{
    const struct varied *v = vary_batch();

    for (size_t k = 1; k < all.count && all.stage[k].begin <= r->end; k++)
        if (v->text[k])
            return ct_fail(CT_ECONFIG,
                           "%s %s: [training] batch_ramp says the batch up to step %lld, and the "
                           "stage begins with step %lld",
                           v->where[k], BATCH, (long long)r->end, (long long)all.stage[k].begin);
    return 0;
}

/* ---- all ---- */

int ct_stage_enter(size_t index)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < all.varied_count; i++) {
        const struct varied *v = &all.varied[i];
        size_t from = index;

        while (from && !v->text[from])
            from--;
        rc = ct_options_set(v->target.options, v->target.config, v->option->name,
                            v->text[from] ? v->text[from] : v->own,
                            v->where[from] ? v->where[from] : "the recipe");
    }
    return rc;
}

int ct_stage_alone(size_t index)
{
    int rc = ct_stage_enter(index);

    all.count = 1;
    all.varied_count = 0;
    return rc;
}

/* Check values, and find out which stages have data of their own. */
static int try_all(void)
{
    int rc = 0;

    for (size_t k = 1; rc == 0 && k < all.count; k++) {
        struct ct_stage *stage = &all.stage[k];

        rc = ct_stage_enter(k);
        if (rc == 0 && ct_config.training.global_batch_size == 0)
            rc = ct_fail(CT_ECONFIG,
                         "the stage from step %lld on: global_batch_size = 0: expected "
                         "at least 1, or -1",
                         (long long)stage->begin);
        for (size_t i = 0; i < all.varied_count; i++) {
            const struct varied *v = &all.varied[i];
            bool samples = v->target.plugin ? ct_plugin_has(v->target.plugin, "data source:*")
                                            : !strcmp(v->option->name, "seq_len");

            stage->own_data |= samples && v->text[k];
        }
    }
    return rc == 0 ? ct_stage_enter(0) : rc;
}

int ct_recipe_find_stages(struct ct_recipe *recipe)
{
    bool ramps = ct_config.batch_ramp && *ct_config.batch_ramp;
    struct ramp ramp = {0};
    int rc;

    all.recipe = recipe;
    all.varied = NULL;
    all.count = 1;
    all.varied_count = all.room = 0;
    all.stage[0] = (struct ct_stage){.begin = 1, .what = ""};
    rc = add_sections(recipe);
    if (rc == 0 && ramps)
        rc = parse_ramp(&ramp);
    if (rc == 0 && ramps)
        rc = ct_context(for_each_level(&ramp, add_level), "%s: [training] batch_ramp", ramp.source);
    if (rc == 0)
        rc = add_settings(recipe);
    if (rc == 0 && ramps)
        rc = check_ramp(&ramp);
    if (rc == 0 && ramps)
        rc = for_each_level(&ramp, set_level);
    return rc == 0 ? try_all() : rc;
}

void ct_recipe_note_given(const char *section, const char *key, const char *value)
{
    for (size_t i = 0; i < all.varied_count; i++)
        if (!strcmp(all.varied[i].section, section) && !strcmp(all.varied[i].option->name, key))
            all.varied[i].own = value;
}

const char *ct_recipe_own_value(const struct ct_option *option)
{
    for (size_t i = 0; i < all.varied_count; i++)
        if (all.varied[i].option == option)
            return all.varied[i].own;
    return NULL;
}
