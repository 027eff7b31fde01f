#include "assertions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/host.h>

static char folder[] = "/tmp/ctitan-host-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[256];
    FILE *out;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

/* The limit that a process in these groups has. */
static double limit_in(const char *groups)
{
    char path[256];

    write_file("groups", groups);
    snprintf(path, sizeof(path), "%s/groups", folder);
    return ct_host_group_limit(path, folder);
}

static void make_folder(const char *name)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void groups_have_the_limits_of_those_around_them(void **state)
{
    (void)state;
    assert_true(limit_in("0::/job/step\n") == INFINITY);
    make_folder("job");
    make_folder("job/step");
    write_file("job/step/memory.max", "max\n");
    assert_true(limit_in("0::/job/step\n") == INFINITY);
    write_file("job/memory.max", "1000\n");
    assert_true(limit_in("0::/job/step\n") == 1000);
    write_file("job/step/memory.max", "2000\n");
    assert_true(limit_in("0::/job/step\n") == 1000);
    write_file("job/step/memory.max", "500\n");
    assert_true(limit_in("4:pids:/job\n0::/job/step\n") == 500);
    assert_true(limit_in("0::/other\n") == INFINITY);
    /* In a container: the name is the host's, and the mount is the group. */
    write_file("memory.max", "300\n");
    assert_true(limit_in("0::/kubepods/pod/x\n") == 300);
}

static void version_1_has_a_folder_of_its_own(void **state)
{
    (void)state;
    make_folder("memory");
    make_folder("memory/job");
    write_file("memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("memory/job/memory.limit_in_bytes", "4000\n");
    assert_true(limit_in("5:cpu,cpuacct:/job\n4:memory:/job/gone\n") == 4000);
    assert_true(limit_in("4:hugetlb,memory:/job\n") == 4000);
    assert_true(limit_in("4:memory_other:/job\n") == INFINITY);
    assert_true(limit_in("4:memory:/\n") > 1e18);
    assert_true(limit_in("nothing\n") == INFINITY);
}

static void a_process_may_have_at_most_the_machine(void **state)
{
    (void)state;
    assert_true(ct_host_memory() > 0 && ct_host_memory() <= ct_host_whole_memory());
}

static void an_address_space_is_not_shared(void **state)
{
    double shared = ct_host_shared_memory();
    struct rlimit before, limit;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limit = (struct rlimit){.rlim_cur = (rlim_t)shared / 2, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    assert_true(ct_host_memory() == (double)limit.rlim_cur);
    assert_true(ct_host_shared_memory() == shared);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
}

static int make_mount(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_mount(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_1_has_a_folder_of_its_own),
        cmocka_unit_test(groups_have_the_limits_of_those_around_them),
        cmocka_unit_test(an_address_space_is_not_shared),
        cmocka_unit_test(a_process_may_have_at_most_the_machine),
    };

    return cmocka_run_group_tests(tests, make_mount, remove_mount);
}
