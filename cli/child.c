/*
 * Children write to files in memory, not to pipes: none of them waits for a reader.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/file.h>

#include "child.h"

#define PROGRAM "ctitan: " /* begins messages */

void argv_add_list(struct ct_arena *arena, struct argv *argv, const char *const *words)
{
    for (; *words; words++) {
        argv->list =
            ct_arena_grow(arena, argv->list, &argv->room, argv->count + 2, sizeof(*argv->list));
        argv->list[argv->count++] = *words;
        argv->list[argv->count] = NULL;
    }
}

/* ---- those that run ---- */

#define MOST_RUNNING 256 /* that a signal ends */

static volatile pid_t running[MOST_RUNNING]; /* -PID: with its group */

static void replace_running(pid_t before, pid_t now)
{
    for (size_t i = 0; i < MOST_RUNNING; i++)
        if (running[i] == before) {
            running[i] = now;
            return;
        }
}

/* Uses only what is safe in a handler. Children that ran on would write what is removed then. */
static void end_running(void)
{
    for (size_t i = 0; i < MOST_RUNNING; i++) {
        pid_t pid = running[i];

        if (!pid)
            continue;
        kill(pid, SIGKILL); /* the ranks of a launcher end with it */
        while (waitpid(pid < 0 ? -pid : pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
}

int child_start(const char *program, const char *const *argv, double patience, struct child *child)
{
    extern char **environ;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int rc;

    child->out = memfd_create("out", MFD_CLOEXEC);
    child->err = memfd_create("err", MFD_CLOEXEC);
    if (child->out < 0 || child->err < 0) {
        rc = errno;
        if (child->out >= 0)
            close(child->out);
        return ct_fail(CT_EIO, "starting %s %s: %s", argv[0], argv[1], strerror(rc));
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, child->out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, child->err, STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    if (patience > 0)
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    child->end = patience > 0 ? ct_now() + patience : 0;
    rc = posix_spawnp(&child->pid, program, &actions, &attributes, (char **)argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (rc == 0) {
        replace_running(0, patience > 0 ? -child->pid : child->pid);
        return 0;
    }
    close(child->out);
    close(child->err);
    return ct_fail(CT_EIO, "starting %s %s: %s", argv[0], argv[1], strerror(rc));
}

/* Cut the line breaks at the end of a text. Returns its last line. */
static char *cut_line(char *text)
{
    size_t n = strlen(text);

    while (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';
    return strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
}

static const char *last_line(struct ct_arena *arena, int file)
{
    char text[2048];
    off_t size = lseek(file, 0, SEEK_END), from = size - (off_t)sizeof(text) + 1;
    ssize_t n = pread(file, text, sizeof(text) - 1, from > 0 ? from : 0);
    char *line;

    text[n > 0 ? n : 0] = '\0';
    line = cut_line(text);
    if (strstr(line, LAST_LINE_ABOVE)) { /* of a launcher */
        *line = '\0';
        line = cut_line(text);
    }
    return ct_arena_strdup(arena,
                           strncmp(line, PROGRAM, strlen(PROGRAM)) ? line : line + strlen(PROGRAM));
}

/* Wait for the child's end, and kill its group when its time is over. Returns its exit status, or
   1 if that is lost. */
static int wait_for(const struct child *child)
{
    int status = 0;
    pid_t ended;

    while ((ended = waitpid(child->pid, &status, child->end > 0 ? WNOHANG : 0)) == 0 ||
           (ended < 0 && errno == EINTR)) {
        if (child->end > 0 && ct_now() > child->end)
            kill(-child->pid, SIGKILL);
        if (ended == 0)
            ct_nap(0.005);
    }
    replace_running(child->end > 0 ? -child->pid : child->pid, 0);
    if (ended < 0)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int child_finish(struct ct_arena *arena, struct child *child, FILE **out, const char **last)
{
    int status = wait_for(child);

    *last = last_line(arena, child->err);
    close(child->err);
    lseek(child->out, 0, SEEK_SET);
    if (out)
        *out = fdopen(child->out, "r");
    else
        close(child->out);
    return status;
}

/* ---- folders ---- */

static const char *scratch; /* removed by a signal that ends the process */
static pid_t scratch_owner;
static const int ends[] = {SIGINT, SIGTERM, SIGHUP};

/* Only what is safe in a handler: rm removes the folder. */
static void end_without_scratch(int number)
{
    char *const argv[] = {(char[]){"rm"}, (char[]){"-rf"}, (char[]){"--"},
                          (char *)(uintptr_t)scratch, NULL};
    pid_t child;

    signal(number, SIG_DFL);
    if (scratch && scratch_owner == getpid()) {
        end_running();
        child = fork();
        if (child == 0) {
            setpgid(0, 0); /* a group may get the signal once more */
            execve("/bin/rm", argv, environ);
            _exit(127);
        }
        while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    raise(number);
}

static void watch_ends(void (*from)(int number), void (*to)(int number))
{
    struct sigaction now;

    for (size_t i = 0; i < CT_COUNT(ends); i++)
        if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler == from)
            signal(ends[i], to);
}

char *scratch_folder(struct ct_arena *arena, const char *name)
{
    const char *temporary = getenv("TMPDIR");
    char *folder = ct_arena_printf(arena, "%s/ctitan-%s-XXXXXX",
                                   temporary && *temporary ? temporary : "/tmp", name);

    if (mkdtemp(folder)) {
        scratch = folder;
        scratch_owner = getpid();
        watch_ends(SIG_DFL, end_without_scratch);
        return folder;
    }
    ct_fail(CT_EIO, "%s: %s", folder, strerror(errno));
    return NULL;
}

void scratch_remove(const char *folder)
{
    if (!folder)
        return;
    if (folder == scratch) {
        watch_ends(end_without_scratch, SIG_DFL);
        scratch = NULL;
    }
    ct_file_remove_folder(folder);
}
