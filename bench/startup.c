/*
 * Times to begin: plans of large meshes, with their proof, and the first step of a small
 * model, each as a user would ask for it.
 *
 *     build/bench/startup [ROUNDS] [CTITAN]
 *
 * Run in the root of the sources. Medians over the rounds, in which all rows run one after the
 * other. CPU time is user and system time of all threads. A small model's first step cannot end
 * before a step's own time is over, nor before the system has given its memory: the last rows say
 * how long the first step took, how long a later one, how long to touch as much new memory, and
 * how much of the command's time is outside its steps.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_ROUNDS 99
#define ON_CPUS "--without", "cuda,nccl,sac", "--with", "cpu,local"

struct sample {
    double cpu, wall, megabytes;
};

static char dump_folder[] = "/tmp/ctitan-startup-XXXXXX";
static char dump_setting[sizeof("job.dump_folder=") + sizeof(dump_folder)];

static const struct row {
    const char *what, *goal;
    const char *arguments[18];
} more_steps = {"",
                "",
                {"train", "recipes/debug.ini", "--set", "training.steps=3", "--set", dump_setting,
                 "--set", "metrics.log_freq=1"}},
  rows[] = {
      {"plan Llama 405B, 512 ranks",
       "3 s CPU",
       {"plan", "recipes/llama3_405b.ini", ON_CPUS, "--world", "512", "--rank", "5"}},
      {"plan Llama 405B, 16,384 ranks",
       "6 s CPU, 1,000 MB",
       {"plan", "recipes/llama3_405b.ini", ON_CPUS, "--world", "16384", "--rank", "5"}},
      {"the same, 64 stages, 128 microbatches",
       "",
       {"plan", "recipes/llama3_405b.ini", ON_CPUS, "--world", "16384", "--set", "pp.degree=64",
        "--set", "pp.schedule=1f1b", "--set", "training.local_batch_size=128"}},
      {"plan the debug model", "", {"plan", "recipes/debug.ini"}},
      {"train the debug model, one step",
       "0.25 s",
       {"train", "recipes/debug.ini", "--set", "training.steps=1", "--set", dump_setting}},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "startup: %s\n", what);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

static _Noreturn void become(const char *ctitan, const struct row *row)
{
    const char *arguments[24] = {ctitan};
    int nowhere = open("/dev/null", O_WRONLY);

    memcpy(arguments + 1, row->arguments, sizeof(row->arguments));
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    execv(ctitan, (char *const *)arguments);
    _exit(127);
}

static struct sample run(const char *ctitan, const struct row *row)
{
    struct rusage usage;
    double begin = now();
    int status;
    pid_t pid = fork();

    if (pid == 0)
        become(ctitan, row);
    if (pid < 0 || wait4(pid, &status, 0, &usage) < 0 || status) {
        fprintf(stderr, "startup: %s %s %s fails\n", ctitan, row->arguments[0], row->arguments[1]);
        exit(1);
    }
    return (struct sample){seconds(usage.ru_utime) + seconds(usage.ru_stime), now() - begin,
                           1e-6 * 1024 * (double)usage.ru_maxrss};
}

/* Seconds of the last logged step of the last training, which is forgotten afterwards. */
static double take_step_time(void)
{
    const char *const key = "\"step_time_s\": ";
    char path[sizeof(dump_folder) + 32], line[4096];
    double seconds = 0;
    FILE *in;

    snprintf(path, sizeof(path), "%s/metrics.jsonl", dump_folder);
    in = fopen(path, "r");
    while (in && fgets(line, sizeof(line), in)) {
        const char *field = strstr(line, key);

        seconds = field ? atof(field + strlen(key)) : 0;
    }
    if (!in || seconds <= 0)
        die("the training left no time of a step in metrics.jsonl");
    fclose(in);
    remove(path);
    return seconds;
}

/* Seconds until every page of so much memory, in huge pages, is there. */
static double touch(double megabytes)
{
    size_t huge = 2 << 20, bytes = (size_t)(1e6 * megabytes) / huge * huge + 2 * huge;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double begin = now();

    if (memory == MAP_FAILED)
        die("no memory");
    madvise(memory, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i += 4096)
        memory[i] = 1;
    begin = now() - begin;
    munmap(memory, bytes);
    return begin;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The median of the fields at first, a sample apart. */
static double median(const double *first, size_t stride, int count)
{
    double list[MOST_ROUNDS];

    for (int i = 0; i < count; i++)
        list[i] = first[(size_t)i * stride];
    qsort(list, (size_t)count, sizeof(*list), compare);
    return list[count / 2];
}

int main(int argc, char **argv)
{
    static struct sample samples[ROWS][MOST_ROUNDS];
    static double first[MOST_ROUNDS], later[MOST_ROUNDS], memory[MOST_ROUNDS], rest[MOST_ROUNDS];
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    const char *ctitan = argc > 2 ? argv[2] : "build/ctitan";
    const size_t stride = sizeof(struct sample) / sizeof(double);
    char command[64];

    if (rounds < 1 || rounds > MOST_ROUNDS || !mkdtemp(dump_folder))
        die("1 to 99 rounds");
    snprintf(dump_setting, sizeof(dump_setting), "job.dump_folder=%s", dump_folder);
    for (int n = 0; n < rounds; n++) {
        for (size_t r = 0; r < ROWS; r++)
            samples[r][n] = run(ctitan, &rows[r]);
        first[n] = take_step_time();
        rest[n] = samples[ROWS - 1][n].wall - first[n];
        memory[n] = touch(samples[ROWS - 1][n].megabytes);
        run(ctitan, &more_steps);
        later[n] = take_step_time();
    }
    printf("%-38s %8s %8s %9s   %s\n", "", "CPU, s", "wall, s", "peak, MB", "goal");
    for (size_t r = 0; r < ROWS; r++)
        printf("%-38s %8.3f %8.3f %9.0f   %s\n", rows[r].what,
               median(&samples[r][0].cpu, stride, rounds),
               median(&samples[r][0].wall, stride, rounds),
               median(&samples[r][0].megabytes, stride, rounds), rows[r].goal);
    printf("%-38s %8s %8.3f\n", "  of it the step", "", median(first, 1, rounds));
    printf("%-38s %8s %8.3f\n", "  the rest", "", median(rest, 1, rounds));
    printf("%-38s %8s %8.3f\n", "  a later step", "", median(later, 1, rounds));
    printf("%-38s %8s %8.3f\n", "  touching as much new memory", "", median(memory, 1, rounds));
    snprintf(command, sizeof(command), "rm -rf %s", dump_folder);
    return system(command) ? 1 : 0;
}
