/*
 * Where a setting was made that a failure is about. What is found after a recipe was read, in the
 * core or in a plugin, names the setting: "[section] key", at the beginning of the message or after
 * what was being done.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include "recipe/settings.h"

static const struct ct_setting *find_named(const struct ct_recipe *recipe, const char *message)
{
    for (const char *at = message; (at = strchr(at, '[')); at++) {
        char section[64], key[64];

        if (at > message && (at < message + 2 || strncmp(at - 2, ": ", 2) != 0))
            continue;
        if (sscanf(at, "[%63[^]]] %63[A-Za-z0-9_]", section, key) == 2)
            return ct_recipe_find(recipe, section, key);
    }
    return NULL;
}

int ct_recipe_locate(const struct ct_recipe *recipe, int rc)
{
    const struct ct_setting *setting;

    if (!recipe || (rc != CT_ECONFIG && rc != CT_ENOENT))
        return rc;
    setting = find_named(recipe, ct_error_message());
    if (!setting || !strncmp(ct_error_message(), setting->source, strlen(setting->source)))
        return rc;
    return ct_context(rc, "%s", setting->source);
}
