/*
 * Recipes as users name them on a command line, with what a Hugging Face folder decides.
 */
#ifndef CT_HF_RECIPE_H
#define CT_HF_RECIPE_H

#include <ctitan/arena.h>
#include <ctitan/recipe.h>

CT_BEGIN_DECLS

/* Read a recipe, into arena, and change it. path is that of a recipe, "-" (standard input), the
   dump folder of a run, or a Hugging Face folder, for which a recipe is made. A recipe without a
   model gets the one of config.json in [model] init_from, and one whose data needs a tokenizer, and
   which has none, that of this folder. *recipe is set if the failure is of a change.
   CT_ENOENT: there is no such file; CT_ECONFIG. */
CT_API int ct_hf_recipe(struct ct_arena *arena, const char *path,
                        const struct ct_recipe_changes *changes, struct ct_recipe **recipe);

/* The plugin, in arena, whose tokenizer reads this file, or what is in this folder; NULL: none. */
CT_API const char *ct_hf_tokenizer(struct ct_arena *arena, const char *path);

CT_END_DECLS

#endif
