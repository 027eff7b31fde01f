/*
 * Opening plugins. The descriptor of a shared object is checked before any of the functions in it
 * is called; only constructors of the object have run by then.
 *
 * All symbols are bound at load, so that a symbol missing in this build is reported here by name,
 * not at its first call in the middle of a run.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/plugins.h>

#include "plugin/abi.h"

struct opened {
    const struct ct_plugin *exported; /* in the shared object */
    const struct ct_plugin *plugin;   /* `exported`, in the layout of this build */
};

static struct ct_arena arena; /* process-wide */
static struct opened *opened;
static size_t opened_count, opened_room;

static int wrong_interface(const struct ct_abi *abi)
{
    return ct_fail(CT_EABI,
                   "built for plugin interface %d.%d, this program has %d.%d: rebuild the plugin "
                   "against this program's headers",
                   abi->major, abi->minor, CT_ABI_MAJOR, CT_ABI_MINOR);
}

static bool speaks_other_interface(const struct ct_abi *abi)
{
    return abi->major != CT_ABI_MAJOR || abi->minor > CT_ABI_MINOR;
}

static int check(const struct ct_plugin *p, const char *path)
{
    const char *file = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t length = strcspn(file, ".");

    if (!p->name || !p->version || !p->summary || !p->offers)
        return ct_fail(CT_EINVAL, "its descriptor lacks name, version, summary or offers");
    if (p->options && (!p->config || !p->config_size))
        return ct_fail(CT_EINVAL, "it has options, but no config to put them in");
    if (strlen(p->name) != length || memcmp(p->name, file, length))
        return ct_fail(CT_EINVAL, "calls itself %s: the file must be called %s.so", p->name,
                       p->name);
    return 0;
}

static int check_abi(const struct ct_abi *abi)
{
    size_t least = offsetof(struct ct_plugin, offers) + sizeof(struct ct_offer *);

    if (abi->magic != CT_MAGIC)
        return ct_fail(CT_EABI, "not a ctitan plugin: its descriptor begins with %#x, not %#x",
                       abi->magic, CT_MAGIC);
    if (speaks_other_interface(abi))
        return wrong_interface(abi);
    if (abi->plugin_size < least || abi->plugin_size > sizeof(struct ct_plugin))
        return ct_fail(CT_EABI, "its descriptor has %zu bytes, expected %zu: rebuild the plugin",
                       abi->plugin_size, sizeof(struct ct_plugin));
    return 0;
}

/* Length of the library's name in "libfoo.so.3: cannot open shared object file: ...". */
static size_t missing_library(const char *words)
{
    const char *colon = strstr(words, ": cannot open shared object file");

    return colon && !memchr(words, '/', (size_t)(colon - words)) ? (size_t)(colon - words) : 0;
}

/*
 * Report why path did not load, with the linker's own message first. If that is a missing symbol,
 * the lazily bound object's descriptor can tell whether the plugin is for another interface.
 */
static int explain(const char *path)
{
    const struct ct_plugin *p;
    char words[512];
    size_t library;
    void *handle;
    int rc;

    snprintf(words, sizeof(words), "%s", dlerror());
    library = missing_library(words);
    if (library)
        return ct_fail(CT_ENOENT,
                       "%s. Install the package that has it (`apt-file search %.*s` names it)",
                       words, (int)library, words);
    if (!strstr(words, "undefined symbol"))
        return ct_fail(CT_ENOENT, "%s: build the plugin again, or name another file", words);
    rc = ct_fail(CT_ENOENT,
                 "%s. The plugin is newer than this program, or one of them was rebuilt alone: "
                 "build both from one source",
                 words);
    handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    p = handle ? dlsym(handle, "ct_plugin_v1") : NULL;
    if (p && p->abi.magic == CT_MAGIC && speaks_other_interface(&p->abi))
        rc = ct_context(wrong_interface(&p->abi), "%s", words);
    if (handle)
        dlclose(handle);
    return rc;
}

static const struct ct_plugin *find_opened(const struct ct_plugin *exported)
{
    for (size_t i = 0; i < opened_count; i++)
        if (opened[i].exported == exported)
            return opened[i].plugin;
    return NULL;
}

static void remember(const struct ct_plugin *exported, const struct ct_plugin *plugin)
{
    opened = ct_arena_grow(&arena, opened, &opened_room, opened_count + 1, sizeof(*opened));
    opened[opened_count++] = (struct opened){exported, plugin};
}

/* dlopen searches other folders for a name without a slash. */
static void *load(const char *path)
{
    char here[PATH_MAX];

    if (!strchr(path, '/') && snprintf(here, sizeof(here), "./%s", path) < (int)sizeof(here))
        path = here;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

int ct_plugin_convert(const struct ct_plugin *exported, const char *path,
                      const struct ct_plugin **plugin)
{
    struct ct_plugin *p;
    int rc = check_abi(&exported->abi);

    if (rc < 0)
        return rc;
    p = ct_arena_new(&arena, struct ct_plugin);
    memcpy(p, exported, exported->abi.plugin_size);
    rc = check(p, path);
    if (rc == 0)
        rc = ct_plugin_widen(p, &arena);
    rc = rc < 0 ? rc : ct_plugin_check(p);
    if (rc == 0)
        *plugin = p;
    return rc;
}

/* Set *plugin to the exported struct, in the layout of this build. */
static int take(const struct ct_plugin *exported, const char *path, const struct ct_plugin **plugin)
{
    int rc;

    *plugin = find_opened(exported);
    if (*plugin)
        return 0;
    rc = ct_plugin_convert(exported, path, plugin);
    if (rc == 0)
        remember(exported, *plugin);
    return rc;
}

int ct_plugin_open(const char *path, const struct ct_plugin **plugin)
{
    const struct ct_plugin *exported;
    void *handle;
    int rc = ct_plugin_is_whole(path);

    if (rc < 0)
        return ct_context(rc, "plugin %s", path);
    handle = load(path);
    if (!handle) {
        rc = explain(path);
        return strncmp(ct_error_message(), path, strlen(path)) == 0
                   ? rc
                   : ct_context(rc, "plugin %s", path);
    }
    exported = dlsym(handle, "ct_plugin_v1");
    rc = exported ? take(exported, path, plugin)
                  : ct_fail(CT_EABI, "exports no ct_plugin_v1: not a ctitan plugin, or one without "
                                     "CT_PLUGIN(...)");
    if (rc == 0)
        return 0;
    dlclose(handle);
    return ct_context(rc, "plugin %s", path);
}
