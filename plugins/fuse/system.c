/*
 * The system's C compiler, for kernels in host memory: its command, and one process for each file.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "compile.h"

extern char **environ;

/* ---- the command ---- */

/* The first processor's model and features. */
static void add_processor(XXH3_state_t *hash)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[8192];

    while (file && fgets(line, sizeof(line), file) && *line != '\n')
        if (!strncmp(line, "model name", 10) || !strncmp(line, "flags", 5) ||
            !strncmp(line, "Features", 8) || !strncmp(line, "CPU", 3))
            hash_text(hash, line);
    if (file)
        fclose(file);
}

static void split(struct compiler *c, const char *text)
{
    char *copy = ct_arena_strdup(&c->arena, text), *rest;

    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        c->word = ct_arena_grow(&c->arena, c->word, &c->room, c->words + 1, sizeof(*c->word));
        c->word[c->words++] = word;
    }
}

/* Find program in PATH. */
static int find_program(const char *program, char path[CT_PATH_ROOM])
{
    const char *folders = getenv("PATH");
    char list[CT_PATH_ROOM], *rest;

    snprintf(list, sizeof(list), "%s", folders ? folders : "/usr/bin:/bin");
    snprintf(path, CT_PATH_ROOM, "%s", program);
    if (strchr(program, '/'))
        return access(path, X_OK) == 0 ? 0 : CT_ENOENT;
    for (char *f = strtok_r(list, ":", &rest); f; f = strtok_r(NULL, ":", &rest)) {
        snprintf(path, CT_PATH_ROOM, "%s/%s", f, program);
        if (access(path, X_OK) == 0)
            return 0;
    }
    return CT_ENOENT;
}

static int add_compiler(struct compiler *c)
{
    char path[CT_PATH_ROOM];
    struct stat is;

    for (size_t i = 0; i < c->words; i++)
        hash_text(c->hash, c->word[i]);
    if (!c->words || find_program(c->word[0], path) < 0 || stat(path, &is) < 0)
        return ct_fail(CT_ENOENT, "no C compiler: \"%s\" is not in PATH",
                       c->words ? c->word[0] : "");
    hash_text(c->hash, path);
    XXH3_128bits_update(c->hash, &is.st_size, sizeof(is.st_size));
    XXH3_128bits_update(c->hash, &is.st_mtim, sizeof(is.st_mtim));
    return 0;
}

const char *system_command(void)
{
    const char *other = getenv("CC");

    if (*fuse_config.compiler)
        return fuse_config.compiler;
    return other && *other ? other : "cc";
}

int system_begin(struct compiler *c)
{
    int rc;

    split(c, system_command());
    split(c, fuse_config.flags);
    rc = add_compiler(c);
    if (rc == 0)
        add_processor(c->hash);
    return rc;
}

/* ---- processes ---- */

int system_start(const struct compiler *c, struct job *job)
{
    char *source = ct_arena_printf((struct ct_arena *)&c->arena, "%s.c", job->path);
    char *object = ct_arena_printf((struct ct_arena *)&c->arena, "%s.new", job->path);
    char *log = ct_arena_printf((struct ct_arena *)&c->arena, "%s.log", job->path);
    char *const last[] = {"-shared", "-fPIC", "-o", object, source, "-lm", NULL};
    char **arguments =
        ct_arena_array((struct ct_arena *)&c->arena, char *, c->words + CT_COUNT(last));
    posix_spawn_file_actions_t actions;
    int rc;

    memcpy(arguments, c->word, sizeof(*arguments) * c->words);
    memcpy(arguments + c->words, last, sizeof(last));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    rc = posix_spawnp(&job->pid, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc) {
        job->pid = 0;
        return ct_fail(CT_ENOENT, "starting %s: %s", arguments[0], strerror(rc));
    }
    return 0;
}

static int refused(const struct compiler *c, const struct job *job)
{
    char path[CT_PATH_ROOM + 8], *text = NULL;
    struct ct_arena scratch = {0};
    size_t size;
    int rc;

    snprintf(path, sizeof(path), "%s.log", job->path);
    if (ct_file_read(&scratch, path, 1 << 20, &text, &size) < 0)
        text = "";
    rc = ct_fail(CT_EIO, "%s does not compile %s.c: %.400s", c->word[0], job->path, text);
    ct_arena_finish(&scratch);
    return rc;
}

int system_wait(const struct compiler *c, struct job *job)
{
    char path[CT_PATH_ROOM + 8];
    int status = -1;

    while (waitpid(job->pid, &status, 0) < 0 && errno == EINTR)
        ;
    job->pid = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        return refused(c, job);
    snprintf(path, sizeof(path), "%s.log", job->path);
    unlink(path);
    return 0;
}
