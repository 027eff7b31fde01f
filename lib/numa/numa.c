/*
 * See numa.h. The kernel writes sets of processors and nodes as lists, "0-3,8".
 */
#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctitan/lib/numa.h>
#include <ctitan/log.h>

#define NODES 64
#define LINE 8192
#define EVERYTHING "0-1000000" /* a list */
#define STATUS "proc/thread-self/status"

static bool bound;

static bool several(uint64_t nodes)
{
    return nodes & (nodes - 1);
}

/* ---- reading ---- */

/* Reads the text that follows `begin` on the first such line of a file; the line stays as it was if
   none does. */
static void CT_PRINTF(4, 5)
    read_line(char line[LINE], const char *begin, const char *root, const char *path, ...)
{
    char name[512], text[LINE];
    int n = snprintf(name, sizeof(name), "%s/", root);
    va_list args;
    FILE *in;

    va_start(args, path);
    if (n < (int)sizeof(name))
        vsnprintf(name + n, sizeof(name) - (size_t)n, path, args);
    va_end(args);
    in = fopen(name, "re");
    while (in && fgets(text, sizeof(text), in))
        if (!strncmp(text, begin, strlen(begin))) {
            memcpy(line, text + strlen(begin), strlen(text) - strlen(begin) + 1);
            break;
        }
    if (in)
        fclose(in);
}

/* The next range of a list; false at its end. */
static bool next_range(const char **list, int *first, int *last)
{
    char *end;

    *first = *last = (int)strtol(*list, &end, 10);
    if (end == *list)
        return false;
    if (*end == '-')
        *last = (int)strtol(end + 1, &end, 10);
    *list = end + (*end == ',');
    return true;
}

static bool contains(const char *list, int id)
{
    for (int first, last; next_range(&list, &first, &last);)
        if (id >= first && id <= last)
            return true;
    return false;
}

static int core_of(const char *root, int id)
{
    char first[LINE];

    snprintf(first, sizeof(first), "%d", id);
    read_line(first, "", root, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", id);
    return atoi(first);
}

struct reader {
    const char *root;
    char allowed[LINE]; /* processors */
    struct ct_arena *arena;
    struct ct_numa *numa;
    size_t room;
};

static void add_processor(struct reader *r, int id, int node)
{
    struct ct_numa *numa = r->numa;

    if (!contains(r->allowed, id))
        return;
    numa->processor = ct_arena_grow(r->arena, numa->processor, &r->room, (size_t)numa->count + 1,
                                    sizeof(*numa->processor));
    numa->processor[numa->count++] = (struct ct_processor){
        .id = id, .core = several(numa->nodes) ? core_of(r->root, id) : id, .node = node};
}

static void add_processors(struct reader *r, int node)
{
    char list[LINE] = "";
    const char *at = list;

    read_line(list, "", r->root, "sys/devices/system/node/node%d/cpulist", node);
    for (int id, last; next_range(&at, &id, &last);)
        for (; id <= last; id++)
            add_processor(r, id, node);
}

static int compare(const void *a, const void *b)
{
    const struct ct_processor *x = a, *y = b;

    if (x->node != y->node)
        return x->node - y->node;
    return x->core != y->core ? x->core - y->core : x->id - y->id;
}

/* The nodes that a file lists, after `begin`. */
static uint64_t read_nodes(const char *begin, const char *root, const char *path,
                           const char *missing)
{
    char list[LINE];
    uint64_t nodes = 0;

    snprintf(list, sizeof(list), "%s", missing);
    read_line(list, begin, root, "%s", path);
    for (int node = 0; node < NODES; node++)
        nodes |= (uint64_t)contains(list, node) << node;
    return nodes;
}

void ct_numa_read(const char *root, struct ct_arena *arena, struct ct_numa *numa)
{
    const char *told = getenv("CTITAN_SYSTEM_ROOT");
    struct reader r = {root ? root : told ? told : "", EVERYTHING, arena, numa, 0};

    *numa = (struct ct_numa){0};
    numa->nodes = read_nodes("", r.root, "sys/devices/system/node/online", "");
    numa->memory = numa->nodes & read_nodes("", r.root, "sys/devices/system/node/has_memory", "") &
                   read_nodes("Mems_allowed_list:", r.root, STATUS, EVERYTHING);
    read_line(r.allowed, "Cpus_allowed_list:", r.root, STATUS);
    for (int node = 0; node < NODES; node++)
        if (numa->nodes >> node & 1)
            add_processors(&r, node);
    if (numa->count)
        qsort(numa->processor, (size_t)numa->count, sizeof(*numa->processor), compare);
}

/* ---- decisions ---- */

struct ct_numa ct_numa_share(const struct ct_numa *numa, int rank, int ranks)
{
    const struct ct_processor *p = numa->processor;
    int64_t count = numa->count;
    struct ct_numa share = *numa;

    if (count < ranks || p[0].node == p[count - 1].node)
        return share;
    share.processor += count * rank / ranks;
    share.count = (int)(count * (rank + 1) / ranks - count * rank / ranks);
    return share;
}

uint64_t ct_numa_memory(const struct ct_numa *numa)
{
    uint64_t nodes = 0;

    for (int i = 0; i < numa->count; i++)
        nodes |= (uint64_t)1 << numa->processor[i].node;
    return several(numa->nodes) ? nodes & numa->memory : 0;
}

/* ---- the kernel ---- */

static void refused(const char *what)
{
    static bool said;

    if (!said)
        ct_info("memory nodes: %s: %s; ranks run, but memory may be far from their processors",
                what, strerror(errno));
    said = true;
}

static void bind_to(const struct ct_numa *mine)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < mine->count; i++)
        if (mine->processor[i].id < CPU_SETSIZE)
            CPU_SET(mine->processor[i].id, &set);
    bound = sched_setaffinity(0, sizeof(set), &set) == 0;
    if (!bound)
        refused("sched_setaffinity");
}

void ct_numa_bind(int rank, int ranks)
{
    struct ct_arena scratch = {0};
    struct ct_numa all, mine;

    ct_numa_read(NULL, &scratch, &all);
    mine = ct_numa_share(&all, rank, ranks);
    if (mine.count < all.count)
        bind_to(&mine);
    ct_arena_finish(&scratch);
}

bool ct_numa_bound(void)
{
    return bound;
}

void ct_numa_place(void *memory, size_t bytes)
{
    struct ct_arena scratch = {0};
    int policy = MPOL_DEFAULT;
    struct ct_numa numa;
    uint64_t nodes;

    ct_numa_read(NULL, &scratch, &numa);
    nodes = ct_numa_memory(&numa);
    ct_arena_finish(&scratch);
    if (!nodes)
        return;
    syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0);
    if (policy != MPOL_DEFAULT)
        return;
    policy = several(nodes) ? MPOL_INTERLEAVE : MPOL_PREFERRED;
    if (syscall(SYS_mbind, memory, bytes, policy, &nodes, NODES + 1, 0) < 0)
        refused("mbind");
}
