/*
 * A plugin as the loader would have it: opened by name, its options set from "key=value" strings.
 */
#ifndef PLUGIN_UNDER_TEST_H
#define PLUGIN_UNDER_TEST_H

#include <stdlib.h>

#include "assertions.h"

#include <ctitan/arena.h>
#include <ctitan/model.h>
#include <ctitan/plugins.h>

static inline const struct ct_plugin *test_plugin(const char *name)
{
    const struct ct_plugin *plugin = NULL;
    char path[4096];

    if (ct_plugin_path(name, path, sizeof(path)) < 0 || ct_plugin_open(path, &plugin) < 0)
        fail_msg("%s: %s", name, ct_error_message());
    return plugin;
}

static inline const void *test_offer(const struct ct_plugin *plugin, enum ct_kind kind)
{
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == kind)
            return o->ops;
    fail_msg("%s offers no %s", plugin->name, ct_kind_name(kind));
    return NULL;
}

/* A transform by its name. */
static inline const struct ct_transform *test_transform(const struct ct_plugin *plugin,
                                                        const char *name)
{
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == CT_TRANSFORM && !strcmp(o->name, name))
            return o->ops;
    fail_msg("%s has no transform %s", plugin->name, name);
    return NULL;
}

/* Defaults, then settings up to NULL. Configurations keep pointers to texts: they live on. */
static inline void test_options(const struct ct_plugin *plugin, const char *const *settings)
{
    static struct ct_arena texts;

    assert_int_equal(ct_options_reset(plugin->options, plugin->config), 0);
    for (; *settings; settings++) {
        char *key = ct_arena_strdup(&texts, *settings), *value = strchr(key, '=');

        *value++ = '\0';
        if (ct_options_set(plugin->options, plugin->config, key, value, "test") < 0)
            fail_msg("%s: %s", *settings, ct_error_message());
    }
}
#define TEST_OPTIONS(plugin, ...) test_options(plugin, (const char *const[]){__VA_ARGS__, NULL})

/* A fresh folder under the temporary one, and a file in it. */
static inline const char *test_folder(void)
{
    static char path[64];

    strcpy(path, "/tmp/ctitan-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void test_write(const char *path, const void *data, size_t size)
{
    FILE *out = fopen(path, "w");

    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

static inline void test_remove(const char *folder)
{
    char command[4096];

    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

#endif
