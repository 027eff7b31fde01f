/* Room on disks. */
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include <ctitan/error.h>
#include <ctitan/space.h>

int ct_file_room(const char *folder, double *bytes)
{
    struct statvfs fs;

    if (statvfs(folder, &fs) < 0)
        return ct_fail(CT_EIO, "the free space of %s: %s", folder, strerror(errno));
    *bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    return 0;
}
