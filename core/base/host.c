/*
 * Limits of memory. A control group has that of each group that it is in. In a container the names
 * of groups may be those of the host, which are not below the mount: the mount itself is then the
 * container's group.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctitan/file.h>
#include <ctitan/host.h>

/* INFINITY: there is no such file, or it says "max". */
static double read_limit(const char *folder, const char *group, const char *name)
{
    char path[2 * CT_PATH_ROOM];
    double limit = INFINITY;
    FILE *in;

    snprintf(path, sizeof(path), "%s%s/%s", folder, group, name);
    in = fopen(path, "re");
    if (in && fscanf(in, "%lf", &limit) != 1)
        limit = INFINITY;
    if (in)
        fclose(in);
    return limit;
}

/* The least limit of a group and of those that it is in; its name is changed. */
static double read_limits(const char *folder, char *group, const char *name)
{
    double limit = read_limit(folder, group, name);

    for (char *end; (end = strrchr(group, '/'));) {
        *end = '\0';
        limit = fmin(limit, read_limit(folder, group, name));
    }
    return limit;
}

/* Whether a list such as "cpu,memory" has the word memory. */
static bool has_memory(const char *list)
{
    for (const char *at = list; (at = strstr(at, "memory")); at++)
        if ((at == list || at[-1] == ',') && (at[6] == ',' || !at[6]))
            return true;
    return false;
}

/* A line is NUMBER:CONTROLLERS:PATH; version 2 has no controllers. */
static double limit_of_line(char *line, const char *mount)
{
    char folder[CT_PATH_ROOM], *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;

    if (!path)
        return INFINITY;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (!*++controllers)
        return read_limits(mount, path, "memory.max");
    if (!has_memory(controllers))
        return INFINITY;
    snprintf(folder, sizeof(folder), "%s/memory", mount);
    return read_limits(folder, path, "memory.limit_in_bytes");
}

double ct_host_group_limit(const char *groups, const char *mount)
{
    FILE *in = fopen(groups, "re");
    double limit = INFINITY;
    char line[CT_PATH_ROOM];

    while (in && fgets(line, sizeof(line), in))
        limit = fmin(limit, limit_of_line(line, mount));
    if (in)
        fclose(in);
    return limit;
}

double ct_host_whole_memory(void)
{
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

double ct_host_shared_memory(void)
{
    return fmin(ct_host_whole_memory(), ct_host_group_limit("/proc/self/cgroup", "/sys/fs/cgroup"));
}

double ct_host_memory(void)
{
    double bytes = ct_host_shared_memory();
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        bytes = fmin(bytes, (double)limit.rlim_cur);
    return bytes;
}
