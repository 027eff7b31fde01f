/* Commands on other hosts, by a remote shell. */
#include <string.h>

#include <ctitan/arena.h>
#include <ctitan/lib/launch.h>

const char *ct_launch_quote(struct ct_arena *arena, const char *word)
{
    size_t n = strlen(word), used = 0;
    char *quoted = ct_arena_array(arena, char, 4 * n + 3);

    quoted[used++] = '\'';
    for (; *word; word++) {
        const char *as = *word == '\'' ? "'\\''" : (const char[]){*word, '\0'};

        memcpy(quoted + used, as, strlen(as));
        used += strlen(as);
    }
    quoted[used++] = '\'';
    quoted[used] = '\0';
    return quoted;
}

const char *const *ct_launch_on_host(struct ct_arena *arena, const char *shell, const char *host,
                                     const char *line)
{
    char *copy = ct_arena_strdup(arena, shell), *rest = NULL;
    const char **argv = ct_arena_array(arena, const char *, strlen(shell) + 3);
    bool placed = false;
    size_t count = 0;

    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        placed |= !strcmp(word, "{}");
        argv[count++] = strcmp(word, "{}") ? word : host;
    }
    if (!placed)
        argv[count++] = host;
    argv[count++] = line;
    argv[count] = NULL;
    return argv;
}

const char *ct_launch_line(struct ct_arena *arena, const char *const *argv)
{
    const char *line = "exec";

    for (; *argv; argv++)
        line = ct_arena_printf(arena, "%s %s", line, ct_launch_quote(arena, *argv));
    return line;
}
