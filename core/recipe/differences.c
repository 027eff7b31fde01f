/* Two resolved recipes, option by option. */
#include <string.h>

#include <ctitan/recipe.h>

/* Plugins of one recipe that the other lacks. */
static void compare_plugins(const struct ct_recipe *one, const struct ct_recipe *other,
                            bool one_is_former, ct_recipe_difference *tell, void *context)
{
    for (size_t i = 0; i < one->plugin_count; i++)
        if (!ct_recipe_loads(other, one->plugins[i]))
            tell("plugins", one->plugins[i], one_is_former ? "loaded" : "not loaded",
                 one_is_former ? "not loaded" : "loaded", context);
}

int ct_recipe_differences(const char *path, const char *before, const char *now,
                          ct_recipe_difference *tell, void *context)
{
    struct ct_arena scratch = {0};
    struct ct_recipe *a, *b;
    int rc = ct_recipe_parse(&scratch, path, before, &a);

    if (rc == 0)
        rc = ct_recipe_parse(&scratch, "the recipe", now, &b);
    if (rc == 0) {
        compare_plugins(a, b, true, tell, context);
        compare_plugins(b, a, false, tell, context);
    }
    for (size_t i = 0; rc == 0 && i < a->count; i++) {
        const struct ct_setting *s = &a->settings[i];
        const char *value =
            strcmp(s->section, "plugins") ? ct_recipe_get(b, s->section, s->key) : NULL;

        if (value && strcmp(value, s->value) != 0)
            tell(s->section, s->key, s->value, value, context);
    }
    ct_arena_finish(&scratch);
    return rc;
}
