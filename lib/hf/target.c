/*
 * Folders that a model may be written to. The file `saved_models` in the dump folder has a line for
 * each folder that a run has written: time of change and size of its config.json, and its path.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/log.h>

#define RECORD "saved_models"
#define LIMIT ((size_t)1 << 20) /* bytes of it */

static bool is_of_model(const char *name)
{
    static const char *const ends[] = {".safetensors", ".bin", ".pth", ".gguf"};

    if (!strcmp(name, "config.json") || !strcmp(name, CT_PEFT_CONFIG))
        return true;
    for (size_t i = 0; i < CT_COUNT(ends); i++)
        if (ct_ends_in(name, ends[i]))
            return true;
    return false;
}

static bool holds_model(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    bool found = false;

    while (dir && !found && (entry = readdir(dir)))
        found = is_of_model(entry->d_name);
    if (dir)
        closedir(dir);
    return found;
}

static bool in_dump_folder(const char *folder)
{
    char inner[PATH_MAX], outer[PATH_MAX];
    size_t size;

    if (!realpath(folder, inner) || !realpath(ct_config.job.dump_folder, outer))
        return false;
    size = strlen(outer);
    return !strncmp(inner, outer, size) && inner[size] == '/';
}

/* The line of a folder's record. false: it has no config, or its path cannot be recorded. */
static bool describe(const char *folder, char *line, size_t size)
{
    char path[PATH_MAX], config[PATH_MAX + 32];
    struct stat st;

    if (!realpath(folder, path) || strchr(path, '\n'))
        return false;
    snprintf(config, sizeof(config), "%s/config.json", path);
    if (stat(config, &st) < 0)
        snprintf(config, sizeof(config), "%s/" CT_PEFT_CONFIG, path);
    return stat(config, &st) == 0 &&
           snprintf(line, size, "%" PRId64 ".%09ld %" PRId64 " %s\n", (int64_t)st.st_mtim.tv_sec,
                    st.st_mtim.tv_nsec, (int64_t)st.st_size, path) < (int)size;
}

/* The record's text; "": there is none. */
static int read_record(struct ct_arena *arena, char **text)
{
    const char *path = ct_arena_printf(arena, "%s/" RECORD, ct_config.job.dump_folder);
    size_t size;
    int rc = ct_file_read(arena, path, LIMIT, text, &size);

    if (rc == CT_ENOENT)
        *text = ct_arena_strdup(arena, "");
    return rc == CT_ENOENT ? 0 : rc;
}

/* Whether a run in this dump folder wrote the model that is in a folder. */
static bool is_recorded(const char *folder)
{
    struct ct_arena arena = {0};
    char line[PATH_MAX + 64], *text, *found;
    bool recorded = describe(folder, line, sizeof(line)) && read_record(&arena, &text) == 0 &&
                    (found = strstr(text, line)) && (found == text || found[-1] == '\n');

    ct_arena_finish(&arena);
    return recorded;
}

/* ---- a run ---- */

static int check_target(const char *folder)
{
    if (ct_config.model_overwrite)
        return 0;
    if (ct_file_is_same(folder, ct_config.model.init_from))
        return ct_fail(CT_ECONFIG, "it is the folder of [model] init_from, whose weights would be "
                                   "replaced: give another one, or set [model] overwrite = true");
    if (!holds_model(folder) || in_dump_folder(folder) || is_recorded(folder))
        return 0;
    return ct_fail(CT_ECONFIG, "the folder has a model that this run did not write: give another "
                               "one, or set [model] overwrite = true to replace it");
}

int ct_hf_try_target(const char *option, const char *folder)
{
    int rc = ct_file_try_folder(folder);

    if (rc == 0)
        rc = check_target(folder);
    return rc < 0 ? ct_context(CT_ECONFIG, "%s = %s", option, folder) : 0;
}

int ct_hf_take_target(const struct ct_run *run, const char *folder)
{
    bool goes_on = run->began > 1 && is_recorded(folder);
    char path[PATH_MAX], kept[CT_PATH_ROOM];
    int rc;

    if (!run->began || goes_on || ct_config.model_overwrite || !holds_model(folder))
        return ct_file_make_folder(folder);
    if (!realpath(folder, path))
        return ct_fail(CT_EIO, "%s: %s", folder, strerror(errno));
    rc = ct_file_keep_former(path, "", kept);
    if (rc < 0)
        return rc;
    ct_info("the model of an earlier run in %s is in %s now", folder, kept);
    return ct_file_make_folder(path);
}

/* The path in a line, which follows two numbers. */
static const char *path_in(const char *line)
{
    for (int i = 0; i < 2; i++) {
        line += strcspn(line, " \n");
        line += *line == ' ';
    }
    return line;
}

/* The record's text with this line, in the place of those of its path. */
static char *replace_line(struct ct_arena *arena, const char *text, const char *line)
{
    const char *path = path_in(line);
    char *all = ct_arena_alloc(arena, strlen(text) + strlen(line) + 1), *end = all;

    for (size_t size; *text; text += size) {
        size = strcspn(text, "\n");
        size += text[size] != 0;
        if (text[size - 1] == '\n' && strncmp(path_in(text), path, strlen(path)) != 0)
            end = mempcpy(end, text, size);
    }
    strcpy(end, line);
    return all;
}

void ct_hf_note_target(const struct ct_run *run, const char *folder)
{
    char path[CT_PATH_ROOM], line[PATH_MAX + 64], *text;
    struct ct_arena arena = {0};
    int rc;

    if (!run->began || is_recorded(folder) || !describe(folder, line, sizeof(line)))
        return;
    rc = ct_run_path(run, path, RECORD);
    if (rc == 0)
        rc = read_record(&arena, &text);
    if (rc == 0) {
        text = replace_line(&arena, text, line);
        rc = ct_file_write(path, text, strlen(text));
    }
    if (rc < 0)
        ct_warn("%s is complete, but not recorded as this run's: %s; a run that goes on takes it "
                "for the model of another one",
                folder, ct_error_message());
    ct_arena_finish(&arena);
}

/* ---- a verb ---- */

int ct_hf_check_free(const char *folder, bool force)
{
    return force || !holds_model(folder)
               ? 0
               : ct_fail(CT_ECONFIG,
                         "%s has a model already: give another folder, or --force to replace it",
                         folder);
}
