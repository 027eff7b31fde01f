/*
 * Finds this process's rank. Each launcher has its own variables; the first in the table whose rank
 * and world are both set has started us.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/launch.h>

#define SLURM_PORT 20000 /* and so many behind it, by the job's number */
#define SLURM_PORTS 20000

static const struct scheme {
    const char *by, *rank, *world, *local_rank, *local_ranks, *job;
    const char *restart; /* NULL: none */
} schemes[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT",
     "TORCHELASTIC_RESTART_COUNT"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", NULL},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", NULL},
    /* Only srun sets the step's size; a batch script itself is not a rank. */
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
     "SLURM_JOB_ID", "SLURM_RESTART_COUNT"},
};

static int read_number(const char *name, int min, int *value)
{
    const char *text = getenv(name);
    char *end;
    long number;

    errno = 0;
    number = strtol(text, &end, 10);
    if (end == text || *end || errno || number < min || number > 1 << 24)
        return ct_fail(CT_ECONFIG, "environment: %s=%s: expected a number, at least %d", name, text,
                       min);
    *value = (int)number;
    return 0;
}

/* "2(x3),1": three nodes of 2 tasks, one of 1. The number for a node; 0: not in the text. */
static int tasks_of_node(const char *text, int node)
{
    while (*text) {
        char *end;
        long tasks = strtol(text, &end, 10), nodes = 1;

        if (end == text)
            return 0;
        if (end[0] == '(' && end[1] == 'x') {
            nodes = strtol(end + 2, &end, 10);
            end += *end == ')';
        }
        if (node < nodes)
            return (int)tasks;
        node -= (int)nodes;
        text = end + (*end == ',');
    }
    return 0;
}

static int read_slurm_tasks(const struct scheme *s, int *value)
{
    const char *text = getenv(s->local_ranks);
    int node = 0, rc = getenv("SLURM_NODEID") ? read_number("SLURM_NODEID", 0, &node) : 0;

    if (rc < 0)
        return rc;
    *value = tasks_of_node(text, node);
    if (*value > 0)
        return 0;
    return ct_fail(CT_ECONFIG, "environment: %s=%s does not list node %d", s->local_ranks, text,
                   node);
}

/* Without variables about hosts, assume one host. */
static int read_local(const struct scheme *s, struct ct_identity *id)
{
    int rc = 0;

    id->local_rank = id->rank;
    id->local_ranks = id->world;
    if (getenv(s->local_rank))
        rc = read_number(s->local_rank, 0, &id->local_rank);
    if (rc == 0 && getenv(s->local_ranks))
        rc = strcmp(s->by, "Slurm") ? read_number(s->local_ranks, 1, &id->local_ranks)
                                    : read_slurm_tasks(s, &id->local_ranks);
    return rc;
}

static void name_job(const struct scheme *s, struct ct_identity *id)
{
    const char *name = getenv("CTITAN_JOB"), *start = getenv("CTITAN_START"),
               *step = getenv("SLURM_STEP_ID");

    if (!name && s)
        name = start;
    if (name && *name)
        snprintf(id->job, sizeof(id->job), "%s", name);
    else if (s && !strcmp(s->by, "Slurm") && getenv(s->job) && step)
        snprintf(id->job, sizeof(id->job), "slurm-%s.%s", getenv(s->job), step);
    else if (s && getenv(s->job))
        snprintf(id->job, sizeof(id->job), "%s-%s", s->by, getenv(s->job));
    else
        snprintf(id->job, sizeof(id->job), "process-%d", s ? (int)getppid() : (int)getpid());
}

/* "n[004-007,9]-gpu,m": n004-gpu. Slurm puts rank 0 on the first host of a list, unless it is told
   to distribute ranks in another way. */
static void first_of(const char *list, char *name, size_t room)
{
    struct ct_line line = {name, room, 0};

    *name = '\0';
    while (*list && *list != ',') {
        size_t size = strcspn(list, ",[");

        ct_line_add(&line, "%.*s", (int)size, list);
        list += size;
        if (*list != '[')
            continue;
        ct_line_add(&line, "%.*s", (int)strspn(list + 1, "0123456789"), list + 1);
        list += strcspn(list, "]");
        list += *list == ']';
    }
}

/* Where ranks of several hosts find rank 0, if nobody has said so. */
static void set_rendezvous(const struct ct_identity *id)
{
    const char *list = getenv("SLURM_STEP_NODELIST"), *job = getenv("SLURM_JOB_ID");
    char name[256], port[16];

    if (!list || !job || id->local_ranks == id->world)
        return;
    first_of(list, name, sizeof(name));
    snprintf(port, sizeof(port), "%ld", SLURM_PORT + strtol(job, NULL, 10) % SLURM_PORTS);
    setenv("MASTER_ADDR", name, 0);
    setenv("MASTER_PORT", port, 0);
}

static int check(const struct scheme *s, const struct ct_identity *id)
{
    if (id->rank >= id->world)
        return ct_fail(CT_ECONFIG, "environment: %s=%d is not below %s=%d", s->rank, id->rank,
                       s->world, id->world);
    if (id->local_ranks > id->world)
        return ct_fail(CT_ECONFIG, "environment: %s gives this host %d rank%s, %s=%d",
                       s->local_ranks, id->local_ranks, ct_plural(id->local_ranks), s->world,
                       id->world);
    if (id->local_rank >= id->local_ranks)
        return ct_fail(CT_ECONFIG, "environment: %s=%d is not below the %d ranks of this host",
                       s->local_rank, id->local_rank, id->local_ranks);
    if (!strcmp(s->by, "torchrun") && id->world > 1 && !getenv(s->job) && !getenv("CTITAN_JOB"))
        return ct_fail(CT_ECONFIG, "environment: RANK and WORLD_SIZE are set, MASTER_PORT is not: "
                                   "set it to the same number for all ranks of a job");
    return 0;
}

static int identify_by(const struct scheme *s, struct ct_identity *id)
{
    int rc = read_number(s->rank, 0, &id->rank);

    if (rc == 0)
        rc = read_number(s->world, 1, &id->world);
    if (rc == 0)
        rc = read_local(s, id);
    if (rc == 0)
        rc = check(s, id);
    if (rc == 0 && getenv("CTITAN_RESTART"))
        rc = read_number("CTITAN_RESTART", 0, &id->restart);
    else if (rc == 0 && s->restart && getenv(s->restart))
        rc = read_number(s->restart, 0, &id->restart);
    id->by = s->by;
    name_job(s, id);
    if (rc == 0 && !strcmp(s->by, "Slurm"))
        set_rendezvous(id);
    return rc;
}

int ct_launch_identify(struct ct_identity *id)
{
    *id = (struct ct_identity){.world = 1, .local_ranks = 1};
    for (size_t i = 0; i < CT_COUNT(schemes); i++)
        if (getenv(schemes[i].rank) && getenv(schemes[i].world))
            return identify_by(&schemes[i], id);
    if (getenv("RANK") || getenv("WORLD_SIZE"))
        return ct_fail(CT_ECONFIG, "environment: %s is set, %s is not",
                       getenv("RANK") ? "RANK" : "WORLD_SIZE",
                       getenv("RANK") ? "WORLD_SIZE" : "RANK");
    name_job(NULL, id);
    return 0;
}

bool ct_launch_is_restarted(void)
{
    struct ct_identity identity;

    return ct_launch_identify(&identity) == 0 && identity.restart > 0;
}

bool ct_launch_is_rank(void)
{
    return getenv("CTITAN_JOB") && getenv("RANK");
}
