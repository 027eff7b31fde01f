/*
 * Latency of every collective, at several numbers of ranks and sizes, against copying memory and
 * against Open MPI.
 *
 *     bench-comm LOCAL.so PEER_MPI|- ROUNDS RANKS..
 *
 * In each round the communicator and its peer run one after the other; the table has the medians
 * over the rounds, in microseconds, and ratios. All_reduce is in place. "arena": buffers lie in
 * the symmetric arena. "copy": every rank copies what it must receive, all at the same
 * time: no collective that delivers its result in memory can be faster. "least": see least.c.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/lib/measure.h>
#include <ctitan/plugin.h>

#include "bench.h"

#define MAX_ROUNDS 32

static const char *plugin_path, *peer_path;

/* ---- one rank of ours ---- */

struct ours {
    struct ct_group *g;
    char *in, *out;
};

__attribute__((noreturn)) static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ct_error_message());
    exit(1);
}

static void call(void *context, enum kind kind, size_t bytes)
{
    struct ours *o = context;
    struct ct_group *g = o->g;
    size_t count = bytes / sizeof(float), part = count / (size_t)g->size;
    int rc = 0;

    switch (kind) {
    case BARRIER:
        rc = ct_group_barrier(g);
        break;
    case ALL_REDUCE:
        rc = ct_group_all_reduce(g, o->out, o->out, count, CT_F32, CT_REDUCE_SUM);
        break;
    case ALL_GATHER:
        rc = ct_group_all_gather(g, o->in, o->out, part, CT_F32);
        break;
    case REDUCE_SCATTER:
        rc = ct_group_reduce_scatter(g, o->in, o->out, part, CT_F32, CT_REDUCE_SUM);
        break;
    case ALL_TO_ALL:
        rc = ct_group_all_to_all(g, o->in, o->out, part, CT_F32);
        break;
    case BROADCAST:
        rc = ct_group_broadcast(g, o->out, count, CT_F32, 0);
        break;
    default:
        rc = ct_group_exchange(g, o->in, (g->position + 1) % g->size, o->out,
                               (g->position + g->size - 1) % g->size, bytes, 0);
    }
    if (rc < 0)
        fail(kind_names[kind]);
}

static double slowest(void *context, double seconds)
{
    struct ours *o = context;

    if (ct_group_all_reduce(o->g, &seconds, &seconds, 1, CT_F64, CT_REDUCE_MAX) < 0)
        fail("all_reduce");
    return seconds;
}

/* The least copies that each rank must make, on all ranks at once. */
static void copy_call(void *context, enum kind kind, size_t bytes)
{
    struct ours *o = context;
    size_t n = (size_t)o->g->size;
    size_t received[KINDS] = {0,     bytes, bytes - bytes / n, bytes / n * (n - 1), bytes,
                              bytes, bytes};

    if (kind != BARRIER)
        memcpy(o->out, o->in, received[kind]);
}

static void run_rank(int rank, int world, const char *job, struct shared *shared)
{
    const struct ct_plugin *plugin;
    struct ct_comm_request request = {.rank = rank,
                                      .world = world,
                                      .local_rank = rank,
                                      .local_ranks = world,
                                      .job = job,
                                      .timeout = 60};
    size_t bytes = sizes[SIZES - 1];
    struct ct_comm *comm;
    struct ours heap, arena;
    int64_t ranks[256];
    void *base, *library = dlopen(plugin_path, RTLD_NOW);
    const struct ct_comm_ops *ops;

    plugin = library ? dlsym(library, "ct_plugin_v1") : NULL;
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    ops = plugin->offers[0].ops;
    for (int i = 0; i < world; i++)
        ranks[i] = i;
    if (ct_options_reset(plugin->options, plugin->config) < 0 || ops->open(&request, &comm) < 0 ||
        ops->reserve(comm, 2 * bytes, &base) < 0 ||
        ops->group(comm, ranks, world, "world", &heap.g) < 0)
        fail("start");
    arena = (struct ours){.g = heap.g, .in = base, .out = (char *)base + bytes};
    memset(base, 1, 2 * bytes); /* untouched, all pages would be one page of zeros */
    heap.in = malloc(2 * bytes);
    heap.out = heap.in + bytes;
    memset(heap.in, 1, 2 * bytes);
    bench_round(&(struct subject){&heap, rank, world, call, slowest, "", 0});
    least_round(shared, rank, world);
    bench_round(&(struct subject){&arena, rank, world, call, slowest, ",arena", 0});
    bench_round(&(struct subject){&heap, rank, world, copy_call, slowest, ",copy", 0});
    ops->close(comm);
    exit(0);
}

/* ---- the parent ---- */

struct row {
    char name[40];
    size_t bytes;
    double us[MAX_ROUNDS];
    int count;
};

static struct row rows[256];
static int row_count;

static void add(const char *prefix, const char *name, size_t bytes, double us)
{
    char full[40];
    int i = 0;

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    while (i < row_count && (strcmp(rows[i].name, full) || rows[i].bytes != bytes))
        i++;
    if (i == row_count) {
        rows[row_count] = (struct row){.bytes = bytes};
        memcpy(rows[row_count++].name, full, sizeof(full));
    }
    if (rows[i].count < MAX_ROUNDS)
        rows[i].us[rows[i].count++] = us;
}

static double median_of(const char *prefix, const char *name, const char *suffix, size_t bytes)
{
    char full[40];

    snprintf(full, sizeof(full), "%s%s%s", prefix, name, suffix);
    for (int i = 0; i < row_count; i++) {
        if (strcmp(rows[i].name, full) || rows[i].bytes != bytes)
            continue;
        return ct_median(rows[i].us, (size_t)rows[i].count);
    }
    return 0;
}

static void collect(int fd, const char *prefix)
{
    FILE *in = fdopen(fd, "r");
    char line[128], name[32];
    size_t bytes;
    double us;

    while (in && fgets(line, sizeof(line), in))
        if (sscanf(line, "%31s %zu %lf", name, &bytes, &us) == 3)
            add(prefix, name, bytes, us);
    if (in)
        fclose(in);
}

static void wait_for(int count)
{
    int status;

    for (int i = 0; i < count; i++)
        if (wait(&status) < 0 || status)
            fprintf(stderr, "a rank failed\n");
}

static void run_ours(int world)
{
    static int number;
    struct shared *shared = least_create(world);
    char job[64];
    int out[2];

    snprintf(job, sizeof(job), "bench-%d-%d", (int)getpid(), number++);
    if (!shared || pipe2(out, O_CLOEXEC) < 0)
        exit(1);
    for (int i = 0; i < world; i++) {
        if (fork())
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], 1);
        run_rank(i, world, job, shared);
    }
    close(out[1]);
    collect(out[0], "");
    wait_for(world);
}

static void run_peer(int world)
{
    char ranks[16];
    int out[2];

    if (!strcmp(peer_path, "-") || pipe2(out, O_CLOEXEC) < 0)
        return;
    snprintf(ranks, sizeof(ranks), "%d", world);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(out[1], 1);
        execlp("mpirun", "mpirun", "-n", ranks, "--oversubscribe", "--allow-run-as-root",
               "--bind-to", "none", peer_path, NULL);
        perror("mpirun");
        _exit(1);
    }
    close(out[1]);
    collect(out[0], "mpi ");
    wait_for(1);
}

static void print_cell(double us, double peer)
{
    if (us == 0)
        printf(" %9s", "-");
    else
        printf(" %9.*f", us < 100 ? 1 : 0, us);
    if (us == 0 || peer == 0)
        printf(" %6s", "");
    else
        printf(" %5.1fx", peer / us);
}

static void print_table(int world)
{
    printf("\n%2d ranks %14s %9s %9s %6s %9s %6s %9s %9s\n", world, "bytes", "Open MPI", "heap", "",
           "arena", "", "copy", "least");
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < (kind ? SIZES : 1); i++) {
            const char *name = kind_names[kind];
            size_t bytes = kind ? sizes[i] : 0;
            double peer = median_of("mpi ", name, "", bytes);

            printf("%-14s %8zu", name, bytes);
            printf(" %9.*f", peer < 100 ? 1 : 0, peer);
            print_cell(median_of("", name, "", bytes), peer);
            print_cell(median_of("", name, ",arena", bytes), peer);
            printf(" %9.1f", median_of("", name, ",copy", bytes));
            print_cell(median_of("", name, ",least", bytes), 0);
            printf("\n");
        }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int rounds;

    if (argc < 5) {
        fprintf(stderr, "usage: %s LOCAL.so PEER_MPI|- ROUNDS RANKS..\n", argv[0]);
        return 2;
    }
    plugin_path = argv[1];
    peer_path = argv[2];
    rounds = atoi(argv[3]);
    printf("microseconds of a call, slowest rank, median of %d rounds; x: times faster than Open "
           "MPI\n",
           rounds);
    for (int i = 4; i < argc; i++) {
        row_count = 0;
        for (int r = 0; r < rounds; r++) {
            run_ours(atoi(argv[i]));
            run_peer(atoi(argv[i]));
        }
        print_table(atoi(argv[i]));
    }
    return 0;
}
