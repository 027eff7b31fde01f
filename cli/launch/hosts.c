/*
 * Lists of hosts, and the remote shell.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/lib/launch.h>

#include "../child.h"
#include "hosts.h"

#define MOST_SLOTS 4096
#define MOST_HOSTS 65536
#define MOST_BYTES ((size_t)32 << 20) /* of a list */
#define SEPARATORS ", \t\n"

/* ---- lists ---- */

/* "a:8", "[::1]:8", "a". The number stays where there is none. */
static int cut_slots(char *word, int64_t *slots)
{
    char *colon = strrchr(word, ':'), *bracket = strrchr(word, ']'), *end;

    if (!colon || (bracket && bracket > colon) || (!bracket && strchr(word, ':') != colon))
        return 0; /* a bare address of IPv6 has colons, too */
    *colon = '\0';
    *slots = strtoll(colon + 1, &end, 10);
    if (end == colon + 1 || *end || *slots < 1 || *slots > MOST_SLOTS)
        return ct_fail(CT_ECONFIG, "%s:%s: expected HOST:RANKS, with 1 to %d ranks", word,
                       colon + 1, MOST_SLOTS);
    return 0;
}

static int add_host(struct ct_arena *arena, struct hosts *hosts, size_t *room, char *word,
                    int64_t slots)
{
    int rc = cut_slots(word, &slots);
    size_t n = strlen(word);

    if (rc < 0)
        return rc;
    if (slots < 1)
        return ct_fail(CT_ECONFIG, "%s: how many ranks? Write %s:RANKS, or give -n RANKS", word,
                       word);
    if (n > 2 && word[0] == '[' && word[n - 1] == ']') {
        word[n - 1] = '\0';
        word++;
    }
    if (!*word || *word == '-')
        return ct_fail(CT_ECONFIG, "'%s' is not the name of a host", word);
    for (int i = 0; i < hosts->count; i++)
        if (!strcmp(hosts->at[i].name, word))
            return ct_fail(CT_ECONFIG, "host %s is listed twice", word);
    if (hosts->count == MOST_HOSTS)
        return ct_fail(CT_ECONFIG, "more than %d hosts", MOST_HOSTS);
    hosts->at = ct_arena_grow(arena, hosts->at, room, (size_t)hosts->count + 1, sizeof(*hosts->at));
    hosts->at[hosts->count++] =
        (struct host){.name = ct_arena_strdup(arena, word), .slots = (int)slots};
    return 0;
}

static int read_words(struct ct_arena *arena, char *text, int64_t each, struct hosts *hosts)
{
    size_t room = 0;
    char *rest = NULL;
    int rc = 0;

    *hosts = (struct hosts){0};
    for (char *word = strtok_r(text, SEPARATORS, &rest); rc == 0 && word;
         word = strtok_r(NULL, SEPARATORS, &rest))
        rc = add_host(arena, hosts, &room, word, each);
    if (rc == 0 && !hosts->count)
        rc = ct_fail(CT_ECONFIG, "the list of hosts is empty");
    return rc;
}

/* All that is left of a stream. */
static int read_stream(struct ct_arena *arena, FILE *in, char **text)
{
    size_t length = 0, room = 0, n;

    *text = NULL;
    do {
        *text = ct_arena_grow(arena, *text, &room, length + 1024, 1);
        n = fread(*text + length, 1, room - length - 1, in);
        length += n;
    } while (n > 0 && length <= MOST_BYTES);
    (*text)[length] = '\0';
    if (length > MOST_BYTES)
        return ct_fail(CT_ECONFIG, "a list of more than %zu bytes", MOST_BYTES);
    return ferror(in) ? ct_fail(CT_ECONFIG, "%s", strerror(errno)) : 0;
}

/* Lines of a file or a pipe, without those that begin with #, as one text. */
static int read_file(struct ct_arena *arena, const char *path, char **text)
{
    FILE *in = fopen(path, "re");
    int rc = in ? read_stream(arena, in, text) : ct_fail(CT_ECONFIG, "%s", strerror(errno));

    if (in)
        fclose(in);
    if (rc < 0)
        return ct_context(rc, "%s", path);
    for (char *comment = *text; (comment = strchr(comment, '#'));)
        memset(comment, ' ', strcspn(comment, "\n"));
    return 0;
}

int hosts_read(struct ct_arena *arena, const char *text, int64_t each, struct hosts *hosts)
{
    char *copy = ct_arena_strdup(arena, text);
    int rc = strchr(text, '/') || access(text, F_OK) == 0 ? read_file(arena, text, &copy) : 0;

    if (rc == 0)
        rc = read_words(arena, copy, each, hosts);
    return rc < 0 ? ct_context(rc, "--hosts") : 0;
}

/* The output of a program. Only scontrol is called so: it knows how Slurm shortens lists. */
static char *output_of(struct ct_arena *arena, const char *command)
{
    FILE *in = popen(command, "r");
    char *text = NULL;
    int rc = in ? read_stream(arena, in, &text) : CT_EIO;

    return in && pclose(in) == 0 && rc == 0 ? text : NULL;
}

int hosts_of_slurm(struct ct_arena *arena, int64_t each, struct hosts *hosts)
{
    const char *tasks = getenv("SLURM_NTASKS_PER_NODE");
    char *list;

    if (!getenv("SLURM_JOB_NODELIST"))
        return ct_fail(CT_ECONFIG,
                       "--hosts is missing: expected a:8,b:8, or the path of a file "
                       "with a host in each line; it can be left out in a job of Slurm");
    list = output_of(arena, "scontrol show hostnames \"$SLURM_JOB_NODELIST\"");
    if (!list)
        return ct_fail(CT_ECONFIG, "scontrol cannot list the hosts of this job: give --hosts");
    if (!each && tasks)
        each = strtoll(tasks, NULL, 10);
    if (each < 1)
        return ct_fail(CT_ECONFIG, "how many ranks has a host? Give -n RANKS, or start the job "
                                   "with sbatch --ntasks-per-node=RANKS");
    return read_words(arena, list, each, hosts);
}

/* ---- probes ---- */

/* The last line of what a child printed. */
static const char *last_of(struct ct_arena *arena, FILE *out)
{
    const char *last = "";
    char *line = NULL;
    size_t room = 0;

    while (out && getline(&line, &room, out) > 0)
        last = ct_arena_printf(arena, "%.*s", (int)strcspn(line, "\r\n"), line);
    free(line);
    if (out)
        fclose(out);
    return last;
}

static void end_probe(struct ct_arena *arena, struct child *child, struct host *host,
                      double seconds)
{
    const char *failure;
    FILE *out;
    int status = child_finish(arena, child, &out, &failure);

    host->answers = status == 0;
    host->words = last_of(arena, out);
    if (status == 128 + SIGKILL)
        host->words = ct_arena_printf(arena, "no answer within %g s", seconds);
    else if (!host->answers)
        host->words = *failure ? failure : "the remote shell fails";
}

void hosts_probe(struct ct_arena *arena, struct hosts *hosts, const char *shell, const char *line,
                 double seconds)
{
    struct child *child = ct_arena_array(arena, struct child, hosts->count);

    for (int i = 0; i < hosts->count; i++) {
        struct host *h = &hosts->at[i];
        const char *const *argv = ct_launch_on_host(arena, shell, h->name, line);

        h->answers = child_start(argv[0], argv, seconds, &child[i]) == 0;
    }
    for (int i = 0; i < hosts->count; i++)
        if (hosts->at[i].answers)
            end_probe(arena, &child[i], &hosts->at[i], seconds);
        else
            hosts->at[i].words = ct_arena_strdup(arena, "the remote shell cannot be started");
}
