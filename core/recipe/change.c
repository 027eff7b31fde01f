/*
 * Changes of the command line to a recipe.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/recipe.h>

#include "recipe/settings.h"

static const struct {
    const char *option;
    int (*apply)(struct ct_recipe *recipe, const char *value);
} kinds[] = {
    {"--set", ct_recipe_set},
    {"--unset", ct_recipe_unset},
    {"--with", ct_recipe_with},
    {"--without", ct_recipe_without},
};

int ct_recipe_take_change(void *at, struct ct_arena *arena, const char *option, const char *value)
{
    struct ct_recipe_changes *changes = at;

    changes->at =
        ct_arena_grow(arena, changes->at, &changes->room, changes->count + 1, sizeof(*changes->at));
    changes->at[changes->count++] = (struct ct_recipe_change){option, value};
    return 0;
}

/* --set plugins.load makes the list that --with and --without change, and other --set may be for a
   plugin that --with adds. */
static int round_of(const struct ct_recipe_change *c)
{
    if (strcmp(c->option, "--set") != 0)
        return 1;
    return strncmp(c->value, "plugins.", 8) ? 2 : 0;
}

static int apply(struct ct_recipe *recipe, const struct ct_recipe_change *c)
{
    for (size_t i = 0; i < CT_COUNT(kinds); i++)
        if (!strcmp(kinds[i].option, c->option))
            return kinds[i].apply(recipe, c->value);
    return ct_fail(CT_EINVAL, "%s is no change of a recipe", c->option);
}

int ct_recipe_change(struct ct_recipe *recipe, const struct ct_recipe_changes *changes)
{
    int rc = 0;

    for (int round = 0; round < 3; round++)
        for (size_t i = 0; rc == 0 && i < changes->count; i++)
            if (round_of(&changes->at[i]) == round)
                rc = apply(recipe, &changes->at[i]);
    return rc == 0 ? ct_recipe_check_values(recipe) : rc;
}
