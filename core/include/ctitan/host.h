/*
 * The host's memory, and how much of it this process may have.
 */
#ifndef CT_HOST_H
#define CT_HOST_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

/* Bytes of memory that this process and others share: the machine's, or less where one of its
   control groups (versions 1 and 2) has a limit, which is that of all processes of the group. */
CT_API double ct_host_shared_memory(void);
/* Bytes of memory that this process may have: the same, or less where its address space has a limit
   (ulimit -v), which each process has for itself. */
CT_API double ct_host_memory(void);
/* The machine's memory, in bytes. */
CT_API double ct_host_whole_memory(void);
/* The least limit of control groups: `groups` is a file as /proc/self/cgroup, which names them,
   `mount` a folder as /sys/fs/cgroup, where they are. INFINITY: there is none. */
CT_API double ct_host_group_limit(const char *groups, const char *mount);

CT_END_DECLS

#endif
