/*
 * Memory nodes: what ranks get on hosts of several nodes, which are folders here, and what the
 * kernel of this machine makes of it.
 */
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/lib/numa.h>
#include <ctitan/log.h>

#include "assertions.h"

#define NODE "sys/devices/system/node/"
#define STATUS "proc/thread-self/status"

static char root[] = "/tmp/ctitan-numa-XXXXXX";
static struct ct_arena arena;

/* Write a file of the host; text NULL: none. */
static void put(const char *path, const char *text)
{
    char *name = ct_arena_printf(&arena, "%s/%s", root, path);
    FILE *out;

    if (!text)
        return;
    for (char *slash = name + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(name, 0700);
    }
    out = fopen(name, "w");
    assert_non_null(out);
    fprintf(out, "%s\n", text);
    fclose(out);
}

static void erase(void)
{
    assert_int_equal(system(ct_arena_printf(&arena, "rm -rf %s/*", root)), 0);
}

struct host {
    const char *online, *memory;  /* nodes */
    const char *processors[4];    /* of each node */
    int cores;                    /* processor i + cores is of the core of i; 0: one of each */
    const char *allowed, *places; /* to the thread: processors, nodes */
};

static void build(const struct host *h)
{
    erase();
    put(NODE "online", h->online);
    put(NODE "has_memory", h->memory);
    for (int node = 0; node < 4; node++)
        put(ct_arena_printf(&arena, NODE "node%d/cpulist", node), h->processors[node]);
    for (int i = 0; i < 2 * h->cores; i++)
        put(ct_arena_printf(&arena, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                            i),
            ct_arena_printf(&arena, "%d,%d", i % h->cores, i % h->cores + h->cores));
    if (h->allowed)
        put(STATUS, ct_arena_printf(&arena,
                                    "Name:\tctitan\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\n"
                                    "Mems_allowed:\t1\nMems_allowed_list:\t%s",
                                    h->allowed, h->places));
}

/* "0 1:0; 2 3:1": the processors of each rank, and the nodes of its memory. */
static const char *shares(int ranks)
{
    const char *text = "";
    struct ct_numa all;

    ct_numa_read(root, &arena, &all);
    for (int rank = 0; rank < ranks; rank++) {
        struct ct_numa mine = ct_numa_share(&all, rank, ranks);
        uint64_t nodes = ct_numa_memory(&mine);

        for (int i = 0; i < mine.count; i++)
            text = ct_arena_printf(&arena, "%s%s%d", text,
                                   i      ? " "
                                   : rank ? "; "
                                          : "",
                                   mine.processor[i].id);
        text = ct_arena_printf(&arena, "%s:", text);
        for (int node = 0; node < 64; node++)
            if (nodes >> node & 1)
                text = ct_arena_printf(&arena, "%s%d", text, node);
    }
    return text;
}

static const struct host one = {"0", "0", {"0-3"}}, two = {"0-1", "0-1", {"0-3", "4-7"}},
                         threads = {"0-1", "0-1", {"0-1,4-5", "2-3,6-7"}, .cores = 4},
                         four = {"0-3", "0,2-3", {"0-1", "2-3", "", "4-5"}},
                         offline = {"0-1", "0-1", {"0,2", "4-5"}},
                         cpuset = {"0-1", "0-1", {"0-3", "4-7"}, 0, "1,6-7", "0-1"},
                         on_one = {"0-1", "0-1", {"0-3", "4-7"}, 0, "5-6", "0-1"},
                         elsewhere = {"0-1", "0-1", {"0-3", "4-7"}, 0, "0-7", "0"}, nothing = {0};

static void ranks_get_processors_and_memory(void **state)
{
    static const struct {
        const struct host *host;
        int ranks;
        const char *shares;
    } cases[] = {
        {&one, 1, "0 1 2 3:"},
        {&one, 2, "0 1 2 3:; 0 1 2 3:"},
        {&two, 1, "0 1 2 3 4 5 6 7:01"},
        {&two, 2, "0 1 2 3:0; 4 5 6 7:1"},
        {&two, 3, "0 1:0; 2 3 4:01; 5 6 7:1"},
        {&two, 4, "0 1:0; 2 3:0; 4 5:1; 6 7:1"},
        {&two, 8, "0:0; 1:0; 2:0; 3:0; 4:1; 5:1; 6:1; 7:1"},
        {&threads, 4, "0 4:0; 1 5:0; 2 6:1; 3 7:1"}, /* whole cores */
        {&four, 1, "0 1 2 3 4 5:03"},                /* node 1 has no memory, 2 no processor */
        {&four, 3, "0 1:0; 2 3:; 4 5:3"},
        {&offline, 2, "0 2:0; 4 5:1"},
        {&cpuset, 1, "1 6 7:01"},
        {&cpuset, 2, "1:0; 6 7:1"},
        {&cpuset, 4, "1 6 7:01; 1 6 7:01; 1 6 7:01; 1 6 7:01"}, /* too few */
        {&on_one, 2, "5 6:1; 5 6:1"},
        {&elsewhere, 2, "0 1 2 3:0; 4 5 6 7:"}, /* memory of node 0 only */
        {&nothing, 1, ":"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        build(cases[i].host);
        assert_string_equal(shares(cases[i].ranks), cases[i].shares);
    }
}

/* A host with nodes 0 and 1, which has one of this thread's processors in each; false: too few. */
static bool build_from_here(const char *online)
{
    struct host host = {online, online, {NULL}};
    int found = 0;
    cpu_set_t set;

    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    for (int id = 0; id < CPU_SETSIZE && found < 2; id++)
        if (CPU_ISSET(id, &set))
            host.processors[found++] = ct_arena_printf(&arena, "%d", id);
    build(&host);
    return found == 2;
}

static void ranks_are_bound(void **state)
{
    pid_t child;
    int status;

    (void)state;
    if (!build_from_here("0-1"))
        skip();
    child = fork();
    if (child == 0) {
        struct ct_numa all, mine;

        ct_numa_bind(0, 1);
        if (ct_numa_bound())
            _exit(1);
        ct_numa_read("/", &arena, &all);
        ct_numa_bind(1, 2);
        ct_numa_read("/", &arena, &mine);
        _exit(all.count >= 2 && ct_numa_bound() && mine.count == 1 &&
                      mine.processor[0].id == all.processor[1].id
                  ? 0
                  : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void *pages(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static int policy_of(const void *memory)
{
    int policy = -1;

    syscall(SYS_get_mempolicy, &policy, NULL, 0, memory, MPOL_F_ADDR);
    return policy;
}

#define BYTES ((size_t)4 << 20)

static void memory_is_placed(void **state)
{
    uint64_t node = 1;
    char *memory = pages(BYTES);
    bool able = syscall(SYS_mbind, memory, BYTES, MPOL_PREFERRED, &node, 65, 0) == 0;

    (void)state;
    munmap(memory, BYTES);
    if (!able)
        skip();
    memory = pages(BYTES);
    build(&one);
    ct_numa_place(memory, BYTES);
    assert_int_equal(policy_of(memory), MPOL_DEFAULT);
    if (build_from_here("0-1")) {
        ct_numa_place(memory, BYTES);
        assert_int_equal(policy_of(memory), MPOL_INTERLEAVE);
    }
    memset(memory, 1, BYTES);
    munmap(memory, BYTES);
}

static int lines;

static void count_line(enum ct_log_level level, const char *line, void *context)
{
    (void)level, (void)context;
    assert_non_null(strstr(line, "mbind"));
    lines++;
}

/* Node 63 is not there. */
static void a_refusal_is_said_once(void **state)
{
    char *memory = pages(BYTES);
    struct host host = {"0,63", "63", {NULL}};
    cpu_set_t set;

    (void)state;
    build(&host);
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    put(NODE "node63/cpulist", "0-1023");
    ct_log_to(count_line, NULL, CT_LOG_INFO);
    ct_numa_place(memory, BYTES);
    ct_numa_place(memory, BYTES);
    ct_log_to(NULL, NULL, CT_LOG_INFO);
    assert_int_equal(lines, 1);
    memset(memory, 1, BYTES);
    munmap(memory, BYTES);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(root) && setenv("CTITAN_SYSTEM_ROOT", root, 1) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    erase();
    ct_arena_finish(&arena);
    return rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_get_processors_and_memory),
        cmocka_unit_test(ranks_are_bound),
        cmocka_unit_test(memory_is_placed),
        cmocka_unit_test(a_refusal_is_said_once),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
