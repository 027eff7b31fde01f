/* Functions that the sources of recipes share. */
#ifndef CT_RECIPE_SETTINGS_H
#define CT_RECIPE_SETTINGS_H

#include <ctitan/lib/recipe.h>

/* The strings are kept, not copied. */
void ct_recipe_add_section(struct ct_recipe *recipe, const char *name, const char *source);
void ct_recipe_add(struct ct_recipe *recipe, const char *section, const char *key,
                   const char *value, const char *source);

/* NULL: not found. */
const struct ct_setting *ct_recipe_section(const struct ct_recipe *recipe, const char *name);
struct ct_setting *ct_recipe_find(const struct ct_recipe *recipe, const char *section,
                                  const char *key);

/* Set recipe->plugins from [plugins] load. */
int ct_recipe_list_plugins(struct ct_recipe *recipe);

#endif
