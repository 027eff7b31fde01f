/* Functions that the sources of recipes share. */
#ifndef CT_RECIPE_SETTINGS_H
#define CT_RECIPE_SETTINGS_H

#include <ctitan/plugin.h>
#include <ctitan/recipe.h>

#define CT_RECIPE_NAME 48 /* most characters of the name of a section or a key */
/* The end of the first line of a recipe that a run recorded, and of comments about defaults. */
#define CT_RECIPE_RECORDED ", with every option and where its value is from"
#define CT_RECIPE_DEFAULT "default"
#define CT_RECIPE_LINE 4000 /* most characters of a line, without comment and white space around */

/* Whether c divides the words of a line: white space of any kind but a newline. */
bool ct_recipe_is_space(char c);
/* Length of text without its comment and the white space before that. */
size_t ct_recipe_without_comment(const char *text, size_t length);

/* ---- quote.c: values in quotes (recipe.h) ---- */

/* Where a comment begins in text; its length: there is none. */
size_t ct_recipe_comment(const char *text, size_t length);
/* Bytes of the quotes that text begins with, and of what they hold. 0: there are none, nothing in
   them needs them, or more than a comment follows. */
size_t ct_recipe_quoted(const char *text, size_t length);
/* Why text, a line's part of a value and what follows, has wrong quotes: white space is at their
   ends, a comment begins within a pair that is around a part of it, or one that begins an item of a
   list is not closed. in_list: the line before ends with a comma. recorded: a run wrote the recipe,
   and earlier versions did not quote such items. NULL: it has not. */
const char *ct_recipe_misquoted(const char *text, size_t length, bool in_list, bool recorded);
/* Write what these bytes stand for, at most as many, with a final zero. Returns how many without
   it. */
size_t ct_recipe_unquote(const char *quoted, size_t length, char *text);

/*
 * Whether a line of this length reads as "key =", "key:" or "[section]". Such a line is refused as
 * the continuation of a value. In a list, after a comma, an item may have a colon: lm_head: 0.5.
 */
bool ct_recipe_begins_setting(const char *text, size_t length, bool in_list);

/* The strings are kept, not copied. */
void ct_recipe_add_section(struct ct_recipe *recipe, const char *name, const char *source);
void ct_recipe_add(struct ct_recipe *recipe, const char *section, const char *key,
                   const char *value, const char *source);

/* NULL: not found. */
const struct ct_setting *ct_recipe_section(const struct ct_recipe *recipe, const char *name);
struct ct_setting *ct_recipe_find(const struct ct_recipe *recipe, const char *section,
                                  const char *key);

/* The plugin whose schedule takes the place of a key of [lr_scheduler]; NULL: none. */
const struct ct_plugin *ct_recipe_replaced_by(const char *section, const char *key);

/* Whether text is UTF-8, as checkpoints and other JSON that keep a recipe need it. */
bool ct_recipe_is_utf8(const char *text);

/* ---- habits.c: names and values of other systems ---- */

/* Whether another system calls an option so, which has another name here. */
bool ct_recipe_is_habit(const char *key);
/* CT_ECONFIG with words about an unknown key or section; 0: there are none. */
int ct_recipe_hint_key(const struct ct_recipe *recipe, const char *where, const char *section,
                       const char *key);
int ct_recipe_hint_section(const struct ct_recipe *recipe, const char *source, const char *name);
/* The same about "lr=1e-3", which has no section. */
int ct_recipe_hint_assignment(const struct ct_recipe *recipe, const char *assignment);
/* CT_ECONFIG: a value is in quotes, or begins with ~. Other files of this form may have such. */
int ct_recipe_check_values(const struct ct_recipe *recipe);
/* CT_ECONFIG: the text is JSON or YAML. */
int ct_recipe_check_kind(const char *path, const char *text);

/* Make sections of all [validation.NAME] of a recipe, and sets of ct_config. CT_ECONFIG: NAME is
   no name. */
int ct_recipe_find_sets(const struct ct_recipe *recipe);

/* CT_ECONFIG: an option of [lr_scheduler] has no effect beside the others. */
int ct_recipe_check_use(void);

/* A table of options and the destination of its values: a section of the core or of a plugin. */
struct ct_recipe_target {
    const char *name;
    const struct ct_option *options; /* NULL: a plugin without */
    void *config;
    const struct ct_plugin *plugin; /* NULL: the core's */
};
/* false: there are fewer, or none of that name. */
bool ct_recipe_target_at(size_t index, struct ct_recipe_target *target);
bool ct_recipe_target_find(const char *name, struct ct_recipe_target *target);

/* ---- stages.c ---- */

/* Whether it is a section [stage.N]. */
bool ct_recipe_is_stage(const char *section);
/* "stage.2"; NULL: the recipe has no such section. */
const char *ct_recipe_stage_section(const struct ct_recipe *recipe, size_t number);
/* Make the list of stages (stage.h), when all other settings have been applied. CT_ECONFIG. */
int ct_recipe_find_stages(struct ct_recipe *recipe);
/* An option of the recipe was given a value later. */
void ct_recipe_note_given(const char *section, const char *key, const char *value);
/* The recipe's own value of an option that stages set; NULL: none sets it. */
const char *ct_recipe_own_value(const struct ct_option *option);

/* Set recipe->plugins from [plugins] load. */
int ct_recipe_list_plugins(struct ct_recipe *recipe);

#endif
