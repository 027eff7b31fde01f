/*
 * Starting ranks on hosts.
 *
 * By the remote shell, each host runs `ctitan launch --part`, which starts its ranks with
 * torchrun's variables and follows the orders that come through the shell's connection. The
 * connection thus is the control: who may use the shell may control the job, and no port is open
 * for it. The job's secret comes first through it: a command line can be read by all users. MPI's
 * ranks need what mpirun or srun gives them, so one such command starts them all.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/run.h>
#include <ctitan/lib/launch.h>

#include "../child.h"
#include "launch.h"

#define LEAST_PORT 20000
#define PORTS 20000
#define SECRET "CTITAN_SECRET" /* begins the names of its variables */
#define LATE 5.0 /* seconds that ranks have, after [comm] timeout, to say what they waited for */

/* Variables that ranks on other hosts get as well. */
static bool is_passed_on(const char *variable)
{
    static const char *const begins[] = {"CTITAN_", "CUDA_", "GOMP_",           "LD_LIBRARY_PATH=",
                                         "NCCL_",   "OMP_",  "XDG_CACHE_HOME=", "UCX_"};

    if (!strncmp(variable, SECRET, strlen(SECRET)))
        return false;
    for (size_t i = 0; i < CT_COUNT(begins); i++)
        if (!strncmp(variable, begins[i], strlen(begins[i])))
            return true;
    return false;
}

static void add_train(struct job *job, struct argv *argv)
{
    struct ct_arena *arena = &job->args->arena;

    argv_add(arena, argv, job->args->path);
    args_changes(job->args, argv);
    if (job->batch)
        argv_add(arena, argv, "--set", job->batch);
}

static const struct host *first_host(const struct hosts *hosts)
{
    for (int i = 0; i < hosts->count; i++)
        if (hosts->at[i].ranks)
            return &hosts->at[i];
    return NULL;
}

/* ---- by the remote shell ---- */

/* Where the others reach the first host: its name, or --address with the name for {}. */
static const char *address_of(struct ct_arena *arena, const struct launch_args *args,
                              const struct host *first)
{
    const char *at = args->address ? strstr(args->address, "{}") : NULL;

    if (!args->address)
        return first->name;
    return at ? ct_arena_printf(arena, "%.*s%s%s", (int)(at - args->address), args->address,
                                first->name, at + 2)
              : args->address;
}

static int64_t port_of(const struct job *job, const struct launch_args *args)
{
    return args->port ? args->port : LEAST_PORT + (getpid() * 7 + job->restart) % PORTS;
}

/* The line of shell that starts the ranks of one host, from rank0 on. */
static const char *line_of(struct job *job, const struct host *host, int rank0)
{
    const struct hosts_job *on = job->context;
    const struct launch_args *args = on->args;
    struct ct_arena *arena = &job->args->arena;
    const struct host *first = first_host(&on->hosts);
    struct argv argv = {0};
    char folder[4096];

    argv_add(arena, &argv, "env");
    for (char **v = environ; *v; v++)
        if (is_passed_on(*v))
            argv_add(arena, &argv, *v);
    argv_add(arena, &argv, ct_arena_printf(arena, "MASTER_ADDR=%s", address_of(arena, args, first)),
             ct_arena_printf(arena, "MASTER_PORT=%lld", (long long)port_of(job, args)),
             args->program, "launch", "--part",
             ct_arena_printf(arena, "%d:%d:%d:%d", rank0, host->ranks, job->ranks, job->restart));
    add_train(job, &argv);
    return ct_arena_printf(arena, "cd %s && %s",
                           ct_launch_quote(arena, getcwd(folder, sizeof(folder)) ? folder : "."),
                           ct_launch_line(arena, argv.list));
}

static int by_shell(struct job *job, struct ct_launch_request *request)
{
    const struct hosts_job *on = job->context;
    struct ct_arena *arena = &job->args->arena;
    struct ct_launch_command *commands =
        ct_arena_array(arena, struct ct_launch_command, on->hosts.count);
    int rank0 = 0;

    for (int i = 0; i < on->hosts.count; i++) {
        const struct host *h = &on->hosts.at[i];

        if (!h->ranks)
            continue;
        commands[request->ranks++] =
            (struct ct_launch_command){.name = ct_arena_printf(arena, "host %s", h->name),
                                       .argv = ct_launch_on_host(arena, launch_shell(on->args),
                                                                 h->name, line_of(job, h, rank0)),
                                       .first = ct_arena_printf(arena, "%s\n", on->secret),
                                       .ordered = true};
        rank0 += h->ranks;
    }
    request->commands = commands;
    return job_launch(job, request);
}

/* ---- by one command ---- */

/* "a:8,b:8" */
static const char *list_of(struct ct_arena *arena, const struct hosts *hosts)
{
    const char *list = "";

    for (int i = 0; i < hosts->count; i++) {
        const struct host *h = &hosts->at[i];
        bool bare = !strchr(h->name, ':');

        if (h->ranks)
            list = ct_arena_printf(arena, "%s%s%s%s%s:%d", list, *list ? "," : "", bare ? "" : "[",
                                   h->name, bare ? "" : "]", h->ranks);
    }
    return list;
}

static void add_mpirun(struct job *job, struct argv *argv)
{
    const struct hosts_job *on = job->context;
    struct ct_arena *arena = &job->args->arena;
    const char *shell = on->args->shell;

    argv_add(arena, argv, "mpirun", "--host", list_of(arena, &on->hosts), "-n",
             ct_arena_printf(arena, "%d", job->ranks), "--bind-to", "none");
    if (shell)
        argv_add(arena, argv, "--mca", "plm_rsh_agent", shell);
    if (geteuid() == 0)
        argv_add(arena, argv, "--allow-run-as-root");
    argv_add(arena, argv, "-x", SECRET);
    for (char **v = environ; *v; v++)
        if (is_passed_on(*v))
            argv_add(arena, argv, "-x", ct_arena_printf(arena, "%.*s", (int)strcspn(*v, "="), *v));
}

static void add_srun(struct job *job, struct argv *argv)
{
    const struct hosts_job *on = job->context;
    struct ct_arena *arena = &job->args->arena;
    const char *list = "";
    int hosts = 0;

    /* A host stands as often as it has ranks, which are numbered in this order. */
    for (int i = 0; i < on->hosts.count; i++) {
        hosts += on->hosts.at[i].ranks > 0;
        for (int k = 0; k < on->hosts.at[i].ranks; k++)
            list = ct_arena_printf(arena, "%s%s%s", list, *list ? "," : "", on->hosts.at[i].name);
    }
    argv_add(arena, argv, "srun", "--overlap", "--mpi=pmix", "--kill-on-bad-exit=1", "--nodelist",
             list, "--distribution=arbitrary", "-N", ct_arena_printf(arena, "%d", hosts), "-n",
             ct_arena_printf(arena, "%d", job->ranks));
}

static int by_one_command(struct job *job, struct ct_launch_request *request)
{
    const struct hosts_job *on = job->context;
    struct ct_arena *arena = &job->args->arena;
    struct ct_launch_command command = {.name = on->args->starter, .ends_by = SIGUSR1};
    char restart[16];
    struct argv argv = {0};
    int rc;

    snprintf(restart, sizeof(restart), "%d", job->restart);
    setenv("CTITAN_RESTART", restart, 1);
    setenv(SECRET, on->secret, 1);
    if (!strcmp(on->args->starter, "srun"))
        add_srun(job, &argv);
    else
        add_mpirun(job, &argv);
    argv_add(arena, &argv, on->args->program, "train");
    add_train(job, &argv);
    command.argv = argv.list;
    request->ranks = 1;
    request->commands = &command;
    rc = job_launch(job, request);
    job->after =
        0; /* the command's end is all that is seen: it tells nothing of a rank's failure */
    return rc;
}

/* The same name for the job's ranks on all hosts, another one for each start. */
static void name_start(const struct job *job)
{
    char name[64];

    snprintf(name, sizeof(name), "launch-%d-%llx-%d", (int)getpid(),
             (unsigned long long)(ct_now() * 1e6), job->restart);
    setenv("CTITAN_START", name, 1);
}

static int find_secret(struct hosts_job *on)
{
    int rc = *on->secret ? 1 : ct_secret_find(on->secret);

    return rc == 0 ? ct_secret_make(on->secret) : rc;
}

int launch_on_hosts(struct job *job)
{
    struct hosts_job *on = job->context;
    char *const argv[] = {(char[]){"ctitan"}, NULL};
    struct ct_launch_request request = {.argv = argv, .patience = ct_config.comm.timeout + LATE};
    int rc = find_secret(on);

    if (rc < 0)
        return rc;
    name_start(job);
    return strcmp(on->args->starter, "shell") ? by_one_command(job, &request)
                                              : by_shell(job, &request);
}

/* ---- the ranks of this host ---- */

static int read_part(const char *text, int numbers[4])
{
    char end;

    if (sscanf(text, "%d:%d:%d:%d%c", &numbers[0], &numbers[1], &numbers[2], &numbers[3], &end) !=
            4 ||
        numbers[0] < 0 || numbers[1] < 1 || numbers[0] > numbers[2] - numbers[1] || numbers[3] < 0)
        return ct_fail(CT_ECONFIG, "--part %s: expected FIRST:RANKS:WORLD:RESTART", text);
    return 0;
}

/* The line with the job's secret, before the orders, which are read later. It becomes the ranks'
   environment. */
static int take_secret(void)
{
    char secret[CT_SECRET_ROOM];
    size_t n = 0;

    while (n < sizeof(secret)) {
        ssize_t got = read(STDIN_FILENO, secret + n, sizeof(secret) - n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return ct_fail(CT_EPEER, "the launcher of this job is gone");
        n += (size_t)got;
    }
    secret[n - 1] = '\0'; /* the line's end */
    if (!ct_secret_is(secret))
        return ct_fail(CT_ECONFIG, "--part: standard input does not begin with the job's secret, "
                                   "which `ctitan launch` sends");
    setenv(SECRET, secret, 1);
    return 0;
}

int launch_part(struct launch_args *args)
{
    struct ct_arena *arena = &args->args.arena;
    struct argv argv = {0};
    struct job job = {.args = &args->args};
    struct ct_launch_request request = {.ordered = true};
    bool followed = false;
    int part[4], rc = read_part(args->part, part);

    if (rc == 0)
        rc = take_secret();
    if (rc < 0)
        return rc;
    rc = train_prepare(&(struct ct_identity){
        .rank = part[0], .world = part[2], .local_ranks = part[1], .restart = part[3]});
    if (rc < 0)
        return rc;
    job.restart = part[3];
    job.status = ct_arena_array(arena, int, part[1]);
    argv_add(arena, &argv, "ctitan", "train");
    add_train(&job, &argv);
    request.argv = (char *const *)argv.list;
    request.ranks = part[1];
    request.rank0 = part[0];
    request.world = part[2];
    request.silence = ct_config.comm.timeout;
    request.followed = &followed;
    request.job = getenv("CTITAN_START");
    rc = job_launch(&job, &request);
    if (followed)
        failure_status = CT_LAUNCH_FOLLOWS;
    else if (rc < 0 && job.first >= 0 && WIFSIGNALED(job.status[job.first]))
        failure_status = 128 + WTERMSIG(job.status[job.first]);
    return rc;
}
