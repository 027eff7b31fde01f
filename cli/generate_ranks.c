/*
 * Lines of standard input for all ranks: rank 0 reads them. While it waits, the others hear from it
 * each second, so that none gives it up.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>

#include "generate.h"

#define WAITING (-1)
#define ENDED (-2)
#define BEAT 1000 /* milliseconds */

/* Its length without the end of the line, WAITING or ENDED. */
static int64_t read_own(char **line, size_t *room, bool waits)
{
    struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
    ssize_t size;

    if (!waits && poll(&ready, 1, BEAT) == 0)
        return WAITING;
    size = getline(line, room, stdin);
    if (size < 0)
        return ENDED;
    (*line)[strcspn(*line, "\n")] = '\0';
    return (int64_t)strlen(*line);
}

/* Words of a text of this length, with its end. */
static size_t words_of(int64_t length)
{
    return (size_t)length / sizeof(int32_t) + 1;
}

static int grow(char **line, size_t *room, int64_t length)
{
    size_t bytes = words_of(length) * sizeof(int32_t);
    char *larger = *room < bytes ? realloc(*line, bytes) : *line;

    if (!larger)
        return ct_fail(CT_ENOMEM, "a line of %lld bytes", (long long)length);
    *line = larger;
    *room = *room < bytes ? bytes : *room;
    return 0;
}

int ranks_read_line(const struct ct_run *run, char **line, size_t *room)
{
    struct ct_group *world = ct_run_world(run);
    int32_t length = WAITING;
    int rc = 0;

    if (run->world > 1 && run->rank == 0)
        setvbuf(stdin, NULL, _IONBF, 0); /* so that poll sees what there is */
    while (rc == 0 && length == WAITING) {
        if (run->rank == 0)
            length = (int32_t)read_own(line, room, run->world == 1);
        rc = ct_group_broadcast(world, &length, 1, CT_I32, 0);
    }
    if (rc < 0 || length == ENDED)
        return rc;
    rc = grow(line, room, length);
    if (rc == 0)
        rc = ct_group_broadcast(world, *line, words_of(length), CT_I32, 0);
    return rc < 0 ? rc : 1;
}
