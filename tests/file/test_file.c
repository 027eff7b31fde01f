#include "assertions.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctitan/file.h>

static char folder[] = "/tmp/ctitan-file-XXXXXX";

static const char *in(struct ct_arena *arena, const char *name)
{
    return ct_arena_printf(arena, "%s/%s", folder, name);
}

static bool without_modes; /* as on some file systems */

/* Stands before that of the C library. */
int fchmod(int fd, mode_t mode)
{
    errno = EPERM;
    return without_modes ? -1 : (int)syscall(SYS_fchmod, fd, mode);
}

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;

    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        count += *e->d_name != '.';
    closedir(dir);
    return count;
}

static void what_is_written_is_read(void **state)
{
    struct ct_arena arena = {0};
    const char *path = in(&arena, "a/b/c.txt");
    char *text;
    size_t size;

    (void)state;
    assert_int_equal(ct_file_write(path, "hello\0!", 7), 0);
    assert_int_equal(ct_file_read(&arena, path, 7, &text, &size), 0);
    assert_int_equal(size, 7);
    assert_memory_equal(text, "hello\0!", 8);
    assert_int_equal(ct_file_write(path, "", 0), 0);
    assert_int_equal(ct_file_read(&arena, path, 0, &text, &size), 0);
    assert_int_equal(size, 0);
    assert_int_equal(entries(in(&arena, "a/b")), 1);
    ct_arena_finish(&arena);
}

static void what_is_written_is_mapped(void **state)
{
    struct ct_arena arena = {0};
    const void *base;
    size_t size;

    (void)state;
    assert_int_equal(ct_file_write(in(&arena, "mapped"), "hello", 5), 0);
    assert_int_equal(ct_file_map(in(&arena, "mapped"), &base, &size), 0);
    assert_int_equal(size, 5);
    assert_memory_equal(base, "hello", 5);
    ct_file_unmap(base, size);
    assert_int_equal(ct_file_write(in(&arena, "mapped"), "", 0), 0);
    assert_int_equal(ct_file_map(in(&arena, "mapped"), &base, &size), 0);
    assert_null(base);
    assert_int_equal(size, 0);
    ct_file_unmap(base, size);
    assert_fails(ct_file_map(in(&arena, "none"), &base, &size), CT_ENOENT, "none");
    assert_fails(ct_file_map(folder, &base, &size), CT_ECONFIG, "is not a regular file");
    assert_int_equal(unlink(in(&arena, "mapped")), 0);
    ct_arena_finish(&arena);
}

static void a_folder_is_removed_but_not_what_its_links_lead_to(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    assert_int_equal(ct_file_write(in(&arena, "kept/file"), "", 0), 0);
    assert_int_equal(ct_file_write(in(&arena, "gone/below/file"), "", 0), 0);
    assert_int_equal(symlink(in(&arena, "kept"), in(&arena, "gone/link")), 0);
    assert_int_equal(ct_file_remove_folder(in(&arena, "gone")), 0);
    assert_int_not_equal(access(in(&arena, "gone"), F_OK), 0);
    assert_int_equal(access(in(&arena, "kept/file"), F_OK), 0);
    assert_int_equal(ct_file_remove_folder(in(&arena, "gone")), 0);
    assert_int_equal(ct_file_remove_folder(in(&arena, "kept")), 0);
    ct_arena_finish(&arena);
}

static void failures_leave_nothing_behind(void **state)
{
    struct ct_arena arena = {0};
    const void *mapped;
    char *text;
    size_t size;

    (void)state;
    assert_fails(ct_file_read(&arena, in(&arena, "none"), 9, &text, &size), CT_ENOENT, "none");
    assert_fails(ct_file_read(&arena, folder, 9, &text, &size), CT_EINVAL, "is not a regular file");
    assert_int_equal(mkfifo(in(&arena, "pipe"), 0600), 0); /* which nobody writes to */
    assert_fails(ct_file_read(&arena, in(&arena, "pipe"), 9, &text, &size), CT_EINVAL, "regular");
    assert_fails(ct_file_map(in(&arena, "pipe"), &mapped, &size), CT_ECONFIG, "regular");
    unlink(in(&arena, "pipe"));
    assert_int_equal(ct_file_write(in(&arena, "big"), "123456789", 9), 0);
    assert_fails(ct_file_read(&arena, in(&arena, "big"), 8, &text, &size), CT_EINVAL, "at most 8");
    assert_int_equal(ct_file_make_folder(in(&arena, "taken")), 0);
    assert_int_equal(ct_file_make_folder(in(&arena, "taken")), 0);
    assert_fails(ct_file_write(in(&arena, "taken"), "x", 1), CT_EIO, "taken");
    assert_fails(ct_file_make_folder(in(&arena, "big")), CT_EIO, "is not a folder");
    assert_fails(ct_file_make_folder(""), CT_EINVAL, "is empty");
    assert_fails(ct_file_make_folder(in(&arena, "big/inside")), CT_EIO, "cannot create the folder");
    assert_fails(ct_file_write(in(&arena, "big/inside"), "x", 1), CT_EIO, "big");
    assert_int_equal(entries(folder), 3);
    ct_arena_finish(&arena);
}

static int make(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int clean(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

static void a_folder_is_renamed_where_there_is_none_with_files(void **state)
{
    struct ct_arena arena = {0};
    const char *from = in(&arena, "step.tmp"), *to = in(&arena, "step");

    (void)state;
    assert_int_equal(ct_file_write(in(&arena, "step.tmp/file"), "1", 1), 0);
    assert_int_equal(ct_file_rename(from, to), 0);
    assert_int_equal(entries(to), 1);
    assert_int_equal(ct_file_make_folder(from), 0);
    assert_int_equal(ct_file_rename(from, from), 0);
    assert_fails(ct_file_rename(in(&arena, "nothing"), to), CT_EIO, "No such file");
    assert_fails(ct_file_rename(from, to), CT_EIO, "not empty");
    ct_arena_finish(&arena);
}

static void links_stay_and_what_they_lead_to_is_written(void **state)
{
    struct ct_arena arena = {0};
    const char *far = in(&arena, "links/far"), *near = in(&arena, "links/near");
    char *text;
    size_t size;

    (void)state;
    assert_int_equal(ct_file_make_folder(in(&arena, "links/deep")), 0);
    assert_int_equal(symlink("deep/file", far), 0);
    assert_int_equal(symlink(far, near), 0);
    for (int i = 0; i < 2; i++) { /* that leads to nothing at first */
        assert_int_equal(ct_file_write(near, "12", 2), 0);
        assert_int_equal(ct_file_read(&arena, in(&arena, "links/deep/file"), 2, &text, &size), 0);
        assert_int_equal(entries(in(&arena, "links")), 3);
        assert_int_equal(entries(in(&arena, "links/deep")), 1);
    }
    assert_int_equal(readlink(near, (char[8]){0}, 8), 8);
    assert_int_equal(symlink("loop", in(&arena, "links/loop")), 0);
    assert_fails(ct_file_write(in(&arena, "links/loop"), "1", 1), CT_EIO, "symbolic links");
    ct_arena_finish(&arena);
}

static void devices_and_pipes_are_written_in_place(void **state)
{
    struct ct_arena arena = {0};
    const char *pipe = in(&arena, "pipe"), *null = in(&arena, "null");
    struct stat st;
    char got[4];
    int from;

    (void)state;
    assert_int_equal(mkfifo(pipe, 0600), 0);
    from = open(pipe, O_RDONLY | O_NONBLOCK);
    assert_int_equal(ct_file_write(pipe, "1234", 4), 0);
    assert_int_equal(read(from, got, sizeof(got)), 4);
    close(from);
    assert_int_equal(stat(pipe, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(symlink("/dev/null", null), 0);
    assert_int_equal(ct_file_write(null, "1234", 4), 0);
    assert_int_equal(stat(null, &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_fails(ct_file_write("/dev/full", "1234", 4), CT_EIO, "/dev/full: No space");
    ct_arena_finish(&arena);
}

/* Whoever can create names in the folder cannot lead the writer to another file. */
static void a_link_of_the_temporary_name_is_replaced(void **state)
{
    struct ct_arena arena = {0};
    const char *path = in(&arena, "plain"), *victim = in(&arena, "victim");
    struct ct_new_file file;
    struct stat st;

    (void)state;
    assert_int_equal(ct_file_write(victim, "1", 1), 0);
    assert_int_equal(ct_file_write(path, "2", 1), 0);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(ct_file_begin(&file, path), 0);
    assert_int_equal(ct_file_end(&file, CT_EIO), CT_EIO);
    assert_int_equal(symlink(victim, file.temporary), 0);
    assert_int_equal(ct_file_write(path, "345", 3), 0);
    assert_int_equal(stat(victim, &st), 0);
    assert_int_equal(st.st_size, 1);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(st.st_size, 3);
    assert_int_equal(st.st_mode & 0777, 0600);
    ct_arena_finish(&arena);
}

static void a_file_is_replaced_where_modes_cannot_change(void **state)
{
    struct ct_arena arena = {0};
    const char *path = in(&arena, "modes/plain");
    struct stat st;

    (void)state;
    assert_int_equal(ct_file_write(path, "1", 1), 0);
    assert_int_equal(chmod(path, 0600), 0);
    without_modes = true;
    assert_int_equal(ct_file_write(path, "22", 2), 0);
    without_modes = false;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 2);
    assert_int_equal(entries(in(&arena, "modes")), 1);
    ct_arena_finish(&arena);
}

static void what_killed_processes_left_is_swept(void **state)
{
    struct ct_arena arena = {0};
    const char *path = in(&arena, "sweep/log"), *own, *gone, *other;
    struct ct_new_file file;
    int stem;

    (void)state;
    assert_int_equal(ct_file_write(in(&arena, "sweep/2147483647.tmp"), "", 0), 0);
    assert_int_equal(ct_file_begin(&file, path), 0);
    stem = (int)(strrchr(file.temporary, '-') - file.temporary);
    own = ct_arena_strdup(&arena, file.temporary);
    gone = ct_arena_printf(&arena, "%.*s-2147483647.tmp", stem, own);
    other = ct_arena_printf(&arena, "%s.00000000-2147483647.tmp", path); /* of another host */
    assert_int_equal(ct_file_end(&file, 0), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ct_file_write(gone, "", 0), 0);
    assert_int_equal(ct_file_write(own, "", 0), 0);
    assert_int_equal(ct_file_write(other, "", 0), 0);
    assert_int_equal(ct_file_write(in(&arena, "sweep/log.x2147483647.tmp"), "", 0), 0);
    ct_file_sweep(in(&arena, "sweep"));
    assert_int_equal(access(gone, F_OK), -1);
    assert_int_equal(entries(in(&arena, "sweep")), 4);
    ct_file_sweep(in(&arena, "none"));
    ct_arena_finish(&arena);
}

static void only_regular_files_are_opened(void **state)
{
    struct ct_arena arena = {0};
    const char *pipe = in(&arena, "waits");
    const void *base;
    FILE *stream;
    char *text;
    size_t size;

    (void)state;
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_fails(ct_file_open(pipe, 0), CT_EINVAL, "waits is not a regular file");
    assert_fails(ct_file_open(pipe, CT_FILE_WRITE), CT_EINVAL, "waits is not a regular file");
    assert_fails(ct_file_open_stream(pipe, &stream), CT_EINVAL, "waits is not a regular file");
    assert_null(stream);
    assert_fails(ct_file_read(&arena, pipe, 9, &text, &size), CT_EINVAL, "is not a regular file");
    assert_fails(ct_file_map(pipe, &base, &size), CT_ECONFIG, "waits is not a regular file");
    assert_fails(ct_file_open(in(&arena, "none"), 0), CT_ENOENT, "none: No such file");
    assert_int_equal(unlink(pipe), 0);
    ct_arena_finish(&arena);
}

static int open_mode(const char *path, mode_t mode, unsigned how)
{
    int fd;

    assert_int_equal(chmod(path, mode), 0);
    fd = ct_file_open(path, how);
    if (fd >= 0)
        close(fd);
    return fd < 0 ? fd : 0;
}

static void files_of_others_are_not_opened_as_own(void **state)
{
    struct ct_arena arena = {0};
    const char *path = in(&arena, "own/code"), *link = in(&arena, "own/link");

    (void)state;
    assert_int_equal(ct_file_write(path, "code", 4), 0);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(open_mode(path, 0755, CT_FILE_OWN), 0);
    assert_fails(open_mode(path, 0775, CT_FILE_OWN), CT_EINVAL, "other users (mode 0775)");
    assert_int_equal(open_mode(path, 0775, CT_FILE_TEAM), 0);
    assert_fails(open_mode(path, 0666, CT_FILE_TEAM), CT_EINVAL, "other users (mode 0666)");
    assert_int_equal(open_mode(path, 0666, 0), 0);
    assert_int_equal(open_mode(link, 0600, 0), 0);
    assert_fails(open_mode(link, 0600, CT_FILE_OWN), CT_EIO, "symbolic links");
    assert_fails(open_mode(link, 0600, CT_FILE_TEAM), CT_EIO, "symbolic links");
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, 0), 0);
        assert_fails(open_mode(path, 0600, CT_FILE_OWN), CT_EINVAL, "another user (12345)");
    }
    ct_arena_finish(&arena);
}

static int with_mode(const char *path, mode_t mode, const char *name, bool team)
{
    char got[CT_PATH_ROOM];

    assert_int_equal(chmod(path, mode), 0);
    return team ? ct_file_team_folder(got, name) : ct_file_private_folder(got, name);
}

static void folders_of_others_are_not_private(void **state)
{
    struct ct_arena arena = {0};
    const char *above = in(&arena, "above"), *own = in(&arena, "above/private");
    char got[CT_PATH_ROOM], real[CT_PATH_ROOM];
    struct stat s;

    (void)state;
    assert_int_equal(ct_file_private_folder(got, own), 0);
    assert_int_equal(stat(own, &s), 0);
    assert_int_equal(s.st_mode & 07777, 0700);
    assert_non_null(realpath(own, real));
    assert_string_equal(got, real);
    assert_int_equal(with_mode(own, 0755, own, false), 0);
    assert_fails(with_mode(own, 01777, own, false), CT_ECONFIG, "private can be written");
    assert_fails(with_mode(own, 01777, own, true), CT_ECONFIG, "private can be written");
    assert_int_equal(with_mode(own, 0700, own, false), 0);
    assert_fails(with_mode(above, 0777, own, false), CT_ECONFIG, "above can be written");
    assert_int_equal(with_mode(above, 01777, own, false), 0);
    assert_int_equal(with_mode(above, 02770, own, true), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(own, 12345, 12345), 0);
        assert_fails(with_mode(above, 0700, own, false), CT_ECONFIG, "another user (12345)");
        assert_int_equal(with_mode(above, 0700, own, true), 0);
        assert_int_equal(chown(own, 0, 12345), 0); /* the group of another user */
        assert_fails(with_mode(own, 0770, own, false), CT_ECONFIG, "(mode 0770)");
    }
    ct_arena_finish(&arena);
}

static void a_cache_that_others_can_change_is_not_used(void **state)
{
    struct ct_arena arena = {0};
    char got[CT_PATH_ROOM], expected[CT_PATH_ROOM];
    const char *base = in(&arena, "caches");

    (void)state;
    setenv("XDG_CACHE_HOME", base, 1);
    snprintf(expected, sizeof(expected), "%s/ctitan/things", base);
    assert_int_equal(ct_file_cache_folder(got, "things"), 0);
    assert_string_equal(got, expected);
    assert_int_equal(chmod(base, 0777), 0);
    assert_int_equal(ct_file_cache_folder(got, "test-of-caches"), 0);
    snprintf(expected, sizeof(expected), "/tmp/ctitan-%u/test-of-caches", geteuid());
    assert_string_equal(got, expected);
    assert_int_equal(rmdir(got), 0);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(what_is_written_is_mapped),
        cmocka_unit_test(a_folder_is_removed_but_not_what_its_links_lead_to),
        cmocka_unit_test(failures_leave_nothing_behind),
        cmocka_unit_test(a_folder_is_renamed_where_there_is_none_with_files),
        cmocka_unit_test(links_stay_and_what_they_lead_to_is_written),
        cmocka_unit_test(devices_and_pipes_are_written_in_place),
        cmocka_unit_test(a_link_of_the_temporary_name_is_replaced),
        cmocka_unit_test(a_file_is_replaced_where_modes_cannot_change),
        cmocka_unit_test(what_killed_processes_left_is_swept),
        cmocka_unit_test(only_regular_files_are_opened),
        cmocka_unit_test(files_of_others_are_not_opened_as_own),
        cmocka_unit_test(folders_of_others_are_not_private),
        cmocka_unit_test(a_cache_that_others_can_change_is_not_used),
    };

    return cmocka_run_group_tests(tests, make, clean);
}
