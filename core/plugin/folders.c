/*
 * The folders of plugins: those that the environment names, then those beside this library. The
 * linker tells where this library is, so a build tree and the tests work without installation.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ctitan/error.h>
#include <ctitan/plugins.h>

#define ABSENT ".absent"

static struct ct_arena arena;
static const char **folders;
static size_t folder_count, folder_room;

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static void add_folder(const char *path)
{
    folders = ct_arena_grow(&arena, folders, &folder_room, folder_count + 1, sizeof(*folders));
    folders[folder_count++] = path;
}

static void add_environment(void)
{
    const char *list = getenv("CTITAN_PLUGIN_PATH");
    char *copy = ct_arena_strdup(&arena, list ? list : ""), *rest;

    for (char *path = strtok_r(copy, ":", &rest); path; path = strtok_r(NULL, ":", &rest))
        add_folder(path);
}

/* Installed: <libdir>/ctitan. Built: this library is in <build>/lib. */
static void add_own(void)
{
    char *path, *slash;
    Dl_info info;

    if (!dladdr((void *)(uintptr_t)add_own, &info))
        return;
    path = realpath(info.dli_fname, NULL);
    if (!path)
        return;
    slash = strrchr(path, '/');
    *slash = '\0';
    add_folder(ct_arena_printf(&arena, "%s/ctitan", path));
    slash = strrchr(path, '/');
    if (slash && !is_folder(folders[folder_count - 1])) {
        *slash = '\0';
        folders[folder_count - 1] = ct_arena_printf(&arena, "%s/plugins", path);
        add_folder(ct_arena_printf(&arena, "%s/models", path));
    }
    free(path);
}

const char *ct_plugin_folder(size_t index)
{
    if (!folders) {
        add_environment();
        add_own();
    }
    return index < folder_count ? folders[index] : NULL;
}

/* Find NAME.so or NAME/NAME.so in folder; ending: ".so". */
static bool find_in(const char *folder, const char *name, const char *ending, char *buffer,
                    size_t room)
{
    int length = snprintf(buffer, room, "%s/%s%s", folder, name, ending);

    if (length > 0 && (size_t)length < room && is_file(buffer))
        return true;
    length = snprintf(buffer, room, "%s/%s/%s%s", folder, name, name, ending);
    return length > 0 && (size_t)length < room && is_file(buffer);
}

/* The same in the folders of plugins, in order. */
static bool find_file(const char *name, const char *ending, char *buffer, size_t room)
{
    const char *folder;

    for (size_t i = 0; (folder = ct_plugin_folder(i)); i++)
        if (find_in(folder, name, ending, buffer, room))
            return true;
    return false;
}

/* Why the plugin is not installed, in arena; NULL: nothing says so. */
static const char *why_absent(struct ct_arena *where, const char *name)
{
    char path[PATH_MAX], why[512] = "";
    FILE *in;

    if (!find_file(name, ABSENT, path, sizeof(path)))
        return NULL;
    in = fopen(path, "re");
    if (in && !fgets(why, sizeof(why), in))
        *why = '\0';
    if (in)
        fclose(in);
    why[strcspn(why, "\n")] = '\0';
    return ct_arena_strdup(where, *why ? why : "something that it needs was missing");
}

static int not_found(const char *name)
{
    struct ct_arena scratch = {0};
    const char **names, *folder;
    const char *searched = "", *why = why_absent(&scratch, name);
    size_t count = why ? 0 : ct_plugin_names(&scratch, &names);

    if (why) {
        ct_fail(CT_ENOENT, "plugin %s is not installed: %s", name, why);
        ct_arena_finish(&scratch);
        return CT_ENOENT;
    }
    for (size_t i = 0; (folder = ct_plugin_folder(i)); i++)
        searched = ct_arena_printf(&scratch, "%s%s%s", searched, i ? ", " : "", folder);
    ct_fail(CT_ENOENT, "no plugin named %s%s (searched %s)", name,
            ct_did_you_mean(name, names, count), searched);
    ct_arena_finish(&scratch);
    return CT_ENOENT;
}

int ct_plugin_path(const char *name, char *buffer, size_t room)
{
    const char *end = strstr(name, ".so");

    if (strchr(name, '/') || (end && !end[3])) {
        /* The loader would search elsewhere for what has no slash. */
        if ((size_t)snprintf(buffer, room, "%s%s", strchr(name, '/') ? "" : "./", name) >= room)
            return ct_fail(CT_EINVAL, "a path of %zu characters", strlen(name));
        return is_file(name) ? 0 : ct_fail(CT_ENOENT, "no plugin at %s", name);
    }
    return find_file(name, ".so", buffer, room) ? 0 : not_found(name);
}

int ct_plugin_find(const char *name, const struct ct_plugin **plugin)
{
    char path[PATH_MAX];
    int rc = ct_plugin_path(name, path, sizeof(path));

    return rc == 0 ? ct_plugin_open(path, plugin) : rc;
}

struct names {
    struct ct_arena *arena;
    const char **item;
    size_t count, room;
};

static void add_name(struct names *names, const char *name, size_t length)
{
    char *copy = ct_arena_alloc(names->arena, length + 1);

    memcpy(copy, name, length);
    for (size_t i = 0; i < names->count; i++)
        if (!strcmp(names->item[i], copy))
            return;
    names->item = ct_arena_grow(names->arena, names->item, &names->room, names->count + 1,
                                sizeof(*names->item));
    names->item[names->count++] = copy;
}

/* Add the names of files in the folder, or in folders of it, with this ending. */
static void scan(struct names *names, const char *folder, const char *ending)
{
    DIR *dir = opendir(folder);
    size_t tail = strlen(ending);
    char path[PATH_MAX];

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        size_t length = strlen(entry->d_name);

        if (*entry->d_name == '.')
            continue;
        if (length > tail && !strcmp(entry->d_name + length - tail, ending))
            add_name(names, entry->d_name, length - tail);
        else if (find_in(folder, entry->d_name, ending, path, sizeof(path)))
            add_name(names, entry->d_name, length);
    }
    if (dir)
        closedir(dir);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static size_t sorted(struct names *found, const char ***names)
{
    if (found->count)
        qsort(found->item, found->count, sizeof(*found->item), by_name);
    *names = found->item;
    return found->count;
}

static size_t find_names(struct ct_arena *where, const char *ending, const char ***names)
{
    struct names found = {where, NULL, 0, 0};
    const char *folder;

    for (size_t i = 0; (folder = ct_plugin_folder(i)); i++)
        scan(&found, folder, ending);
    return sorted(&found, names);
}

size_t ct_plugin_names(struct ct_arena *where, const char ***names)
{
    return find_names(where, ".so", names);
}

size_t ct_plugin_absent(struct ct_arena *where, const struct ct_absent **list)
{
    const char **names;
    size_t count = find_names(where, ABSENT, &names), absent = 0;
    struct ct_absent *found = ct_arena_array(where, struct ct_absent, count + 1);
    char path[PATH_MAX];

    for (size_t i = 0; i < count; i++)
        if (!find_file(names[i], ".so", path, sizeof(path)))
            found[absent++] = (struct ct_absent){names[i], why_absent(where, names[i])};
    *list = found;
    return absent;
}

/* ---- files beside plugins ---- */

/* Visit the folders `sub` in which files beside plugins are, until visit returns true. */
static bool visit_beside(const char *sub, bool (*visit)(const char *folder, void *context),
                         void *context)
{
    struct ct_arena scratch = {0};
    const char *folder;
    bool done = false;

    for (size_t i = 0; !done && (folder = ct_plugin_folder(i)); i++) {
        struct dirent **inner;
        int count = scandir(folder, &inner, NULL, alphasort);

        done = visit(ct_arena_printf(&scratch, "%s/%s", folder, sub), context);
        for (int k = 0; k < count; k++) {
            const char *name = inner[k]->d_name;

            if (!done && *name != '.')
                done = visit(ct_arena_printf(&scratch, "%s/%s/%s", folder, name, sub), context);
            free(inner[k]);
        }
        if (count >= 0)
            free(inner);
        done = done || visit(ct_arena_printf(&scratch, "%s/../%s", folder, sub), context);
    }
    ct_arena_finish(&scratch);
    return done;
}

struct sought {
    const char *name;
    char *buffer;
    size_t room;
};

static bool has_file(const char *folder, void *context)
{
    const struct sought *s = context;
    int length = snprintf(s->buffer, s->room, "%s/%s", folder, s->name);

    return length > 0 && (size_t)length < s->room && is_file(s->buffer);
}

bool ct_plugin_file(const char *sub, const char *name, char *buffer, size_t room)
{
    return visit_beside(sub, has_file, &(struct sought){name, buffer, room});
}

struct listing {
    struct ct_arena *arena;
    const char *ending;
    struct ct_plugin_file *file;
    size_t count, room;
};

static bool is_listed(const struct listing *l, const char *name)
{
    for (size_t i = 0; i < l->count; i++)
        if (!strcmp(l->file[i].name, name))
            return true;
    return false;
}

static bool list_files(const char *folder, void *context)
{
    struct listing *l = context;
    struct names found = {l->arena, NULL, 0, 0};

    scan(&found, folder, l->ending);
    for (size_t i = 0; i < found.count; i++) {
        const char *name = found.item[i];
        const char *path = ct_arena_printf(l->arena, "%s/%s%s", folder, name, l->ending);

        if (is_listed(l, name) || !is_file(path))
            continue;
        l->file = ct_arena_grow(l->arena, l->file, &l->room, l->count + 1, sizeof(*l->file));
        l->file[l->count++] = (struct ct_plugin_file){name, path};
    }
    return false;
}

static int by_file(const void *a, const void *b)
{
    return strcmp(((const struct ct_plugin_file *)a)->name,
                  ((const struct ct_plugin_file *)b)->name);
}

size_t ct_plugin_files(struct ct_arena *where, const char *sub, const char *ending,
                       const struct ct_plugin_file **files)
{
    struct listing l = {.arena = where, .ending = ending};

    visit_beside(sub, list_files, &l);
    if (l.count)
        qsort(l.file, l.count, sizeof(*l.file), by_file);
    *files = l.file;
    return l.count;
}
