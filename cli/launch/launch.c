/*
 * `ctitan launch`: a job on several hosts, which is started again on those that are left when one
 * fails.
 *
 * Before each start every host is asked for a line about itself. The first hosts of the list that
 * answer get ranks; those behind them are spare. A host that was lost is thus taken in again once
 * it answers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/launch.h>
#include <ctitan/log.h>
#include <ctitan/plugins.h>
#include <ctitan/text.h>
#include <ctitan/device/comm.h>

#include "launch.h"

#define ANSWER 20.0 /* seconds for a host's line */
#define SRUN "srun --overlap --nodes=1 --ntasks=1 --nodelist {} sh -c"

const char *launch_shell(const struct launch_args *args)
{
    if (args->shell)
        return args->shell;
    return getenv("SLURM_JOB_ID") ? SRUN : CT_LAUNCH_SSH;
}

/* ---- what a host has ---- */

static int say_host(void)
{
    struct sysinfo info = {.mem_unit = 1};
    char name[256] = "", human[32];

    gethostname(name, sizeof(name) - 1);
    sysinfo(&info);
    printf("%s, %ld processors, %s, ctitan %s\n", name, sysconf(_SC_NPROCESSORS_ONLN),
           human_bytes((double)info.totalram * info.mem_unit, human), CT_VERSION);
    return 0;
}

static void ask_hosts(struct job *job)
{
    struct hosts_job *on = job->context;
    struct ct_arena *arena = &job->args->arena;
    const char *line =
        ct_arena_printf(arena, "%s launch --here", ct_launch_quote(arena, on->args->program));

    hosts_probe(arena, &on->hosts, launch_shell(on->args), line, ANSWER);
    for (int i = 0; i < on->hosts.count; i++) {
        const struct host *h = &on->hosts.at[i];

        if (!h->answers)
            ct_warn("host %s does not answer: %s", h->name, h->words);
        else if (job->restart == 0)
            ct_info("host %s: %s, %d rank%s", h->name, h->words, h->slots, ct_plural(h->slots));
    }
}

/* ---- which hosts take part ---- */

/* The hosts with fewest failures come first; among equals, their order in the list counts. */
static const struct host *best(const struct hosts *hosts)
{
    const struct host *found = NULL;

    for (int i = 0; i < hosts->count; i++) {
        const struct host *h = &hosts->at[i];

        if (h->answers && !h->ranks && (!found || h->failures < found->failures))
            found = h;
    }
    return found;
}

/* Give ranks to at most `most` hosts that answer. Returns how many ranks that are. */
static int take_hosts(struct hosts *hosts, int most)
{
    const struct host *next;
    int ranks = 0;

    for (int i = 0; i < hosts->count; i++)
        hosts->at[i].ranks = 0;
    for (int taken = 0; taken < most && (next = best(hosts)); taken++) {
        hosts->at[next - hosts->at].ranks = next->slots;
        ranks += next->slots;
    }
    return ranks;
}

/* Keep this many ranks; the last hosts get fewer. */
static void trim(struct hosts *hosts, int ranks)
{
    for (int i = 0; i < hosts->count; i++) {
        struct host *h = &hosts->at[i];

        h->ranks = h->ranks < ranks ? h->ranks : ranks;
        ranks -= h->ranks;
    }
}

static int count_taken(const struct hosts *hosts)
{
    int count = 0;

    for (int i = 0; i < hosts->count; i++)
        count += hosts->at[i].ranks > 0;
    return count;
}

static int choose(struct job *job)
{
    struct hosts_job *on = job->context;
    int before = job->ranks, ranks, rc;

    ask_hosts(job);
    ranks = take_hosts(&on->hosts, on->used);
    job->absent = count_taken(&on->hosts) < on->used;
    if (job->absent && job->args->elastic && before && ranks) {
        rc = job_fit(job, ranks);
        if (rc < 0)
            return rc;
        trim(&on->hosts, job->ranks);
        return 0;
    }
    if (job->absent)
        return ct_fail(CT_EPEER, "%d hosts answer, and the job needs %d", count_taken(&on->hosts),
                       on->used);
    job->ranks = ranks;
    return 0;
}

/* The host whose command failed first; a connection that ends is its failure, too. */
static void count_failure(struct job *job)
{
    struct hosts_job *on = job->context;
    int command = 0;

    if (strcmp(on->args->starter, "shell") || job->first < 0)
        return;
    for (int i = 0; i < on->hosts.count; i++)
        if (on->hosts.at[i].ranks && command++ == job->first)
            on->hosts.at[i].failures++;
}

static int renew(struct job *job)
{
    count_failure(job);
    job->first = -1; /* counted */
    return choose(job);
}

/* ---- the verb ---- */

/* The communicator says what starts its ranks; in a job of Slurm, srun is MPI's starter. */
static void choose_starter(struct launch_args *args)
{
    const struct ct_offer *offer = ct_offer_at(CT_COMMUNICATOR, 0);
    const struct ct_comm_ops *ops = offer ? offer->ops : NULL;

    if (args->starter)
        return;
    args->starter = ops && ops->starter ? ops->starter : "shell";
    if (strcmp(args->starter, "shell") && getenv("SLURM_JOB_ID"))
        args->starter = "srun";
}

static int check(const struct launch_args *args, const struct hosts *hosts)
{
    if (!strcmp(args->starter, "mpirun") && args->shell && strstr(args->shell, "{}"))
        return ct_fail(CT_ECONFIG,
                       "--shell %s: mpirun adds the host and the command itself: give "
                       "it a shell like ssh, without {}",
                       args->shell);
    if (args->spares >= hosts->count)
        return ct_fail(CT_ECONFIG, "--spares %lld of %d hosts leaves none", (long long)args->spares,
                       hosts->count);
    if (!strncmp(args->args.path, "/dev/fd/", strlen("/dev/fd/")))
        return ct_fail(CT_ECONFIG, "other hosts cannot read this recipe: give a file that all see");
    if ((args->args.elastic || args->spares) && !args->args.restarts)
        return ct_fail(CT_ECONFIG, "--elastic and --spares need --max-restarts N");
    return 0;
}

static int run_job(struct launch_args *args)
{
    struct hosts_job on = {.args = args};
    struct job job = {.args = &args->args,
                      .start = launch_on_hosts,
                      .renew = renew,
                      .gather = launch_gather,
                      .context = &on,
                      .first = -1};
    int rc = args_recipe(&args->args, &job.recipe);

    if (rc == 0)
        rc = until_set(args->args.until);
    if (rc == 0 && args->part)
        return launch_part(args);
    if (rc == 0)
        rc = args->list ? hosts_read(&args->args.arena, args->list, args->args.ranks, &on.hosts)
                        : hosts_of_slurm(&args->args.arena, args->args.ranks, &on.hosts);
    choose_starter(args);
    if (rc == 0)
        rc = check(args, &on.hosts);
    if (rc < 0)
        return rc;
    on.used = on.hosts.count - (int)args->spares;
    job.status = ct_arena_array(&args->args.arena, int, on.hosts.count);
    rc = choose(&job);
    return rc == 0 ? job_run(&job) : rc;
}

static const struct ct_argument arguments[] = {
    CT_ARG_OPTIONAL(struct args, path, "RECIPE",
                    "An INI file or a run's folder, which all hosts see"),
    ARG_CHANGES,
    CT_ARG_TEXT(struct launch_args, list, "hosts", 0, "a:8,b:8",
                "The hosts with the number of ranks on each, or the path of a file that lists "
                "them; those of the job of Slurm where it is left out"),
    CT_ARG_INT(struct args, local, "ranks", 'n', "RANKS", 1, MOST_RANKS,
               "Ranks of a host whose number is not in the list"),
    CT_ARG_INT(struct launch_args, spares, "spares", 0, "N", 0, 65536,
               "The last N hosts of the list wait to take the place of others"),
    CT_ARG_INT(struct args, restarts, "max-restarts", 0, "N", 0, MOST_RANKS,
               "Start the job again, at most N times, after a failure"),
    CT_ARG_FLAG(struct args, elastic, "elastic", 0, "Restart on fewer hosts where too few answer"),
    ARG_UNTIL,
    CT_ARG_TEXT(struct launch_args, shell, "shell", 0, "COMMAND",
                "The command that runs a line on a host, in which {} stands for the host's name; "
                "ssh where it is left out, or srun in a job of Slurm"),
    CT_ARG_CHOICE(struct launch_args, starter, "starter", 0, "shell|mpirun|srun",
                  "What starts the ranks: the shell on each host, or one command for all; the "
                  "communicator knows"),
    CT_ARG_TEXT(struct launch_args, program, "program", 0, "PATH",
                "Where ctitan is on the hosts; the path of this one where it is left out"),
    CT_ARG_TEXT(struct launch_args, address, "address", 0, "ADDRESS",
                "Where the other hosts reach the first one, in which {} stands for its name; its "
                "name where it is left out"),
    CT_ARG_INT(struct launch_args, port, "port", 0, "PORT", 1, 65534,
               "The port there; another one for each start where it is left out"),
    CT_ARG_FLAG(struct launch_args, here, "here", 0, "Print what this host has; launch asks so"),
    CT_ARG_TEXT(struct launch_args, part, "part", 0, "FIRST:RANKS:WORLD:RESTART",
                "Run the ranks of one host, with orders from standard input; launch starts it"),
    {0}};

static int launch_verb(int argc, char **argv)
{
    struct launch_args args = {0};
    char program[4096];
    ssize_t n;
    int rc = args_parse(arguments, argc, argv, &args.args);

    if (rc < 0)
        return rc;
    if (args.here)
        return args_finish(&args.args, say_host());
    log_to_terminal(CT_LOG_INFO);
    n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[n > 0 ? n : 0] = '\0';
    if (!args.program)
        args.program = program;
    if (!args.args.path)
        rc = ct_fail(CT_ECONFIG, "which RECIPE? See ctitan launch --help");
    else
        rc = run_job(&args);
    return args_finish(&args.args, rc);
}

const struct verb verb_launch = {
    .name = "launch",
    .summary = "train on several hosts, and go on when one fails",
    .run = launch_verb,
    .arguments = arguments,
    .examples =
        CT_NAMES("ctitan launch --hosts a:8,b:8 recipe.ini --with nccl",
                 "ctitan launch --hosts a:8,b:8,c:8 --spares 1 --max-restarts 10 recipe.ini"),
    .details = "All hosts need ctitan, the recipe and its files at the same paths. Checkpoints\n"
               "go to a folder that all of them see. In a job of Slurm, `ctitan launch\n"
               "recipe.ini` uses the hosts that sbatch was given.\n"};
