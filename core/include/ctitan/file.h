/*
 * Reading and writing whole files. A written file is complete or absent, whatever interrupts the
 * write; only a device or a pipe is written to directly.
 */
#ifndef CT_FILE_H
#define CT_FILE_H

#include <stdio.h>

#include <ctitan/arena.h>

CT_BEGIN_DECLS

/*
 * Open a regular file. The result is a descriptor. CT_ENOENT: no such file; CT_EINVAL: it is not a
 * regular file (opening a pipe would wait for its writer), or not this user's; CT_EIO.
 */
enum {
    CT_FILE_WRITE = 1, /* for reading and writing */
    CT_FILE_TEAM = 2,  /* not a link, and not for everybody to write */
    CT_FILE_OWN = 4    /* not a link, belongs to this user or root, and nobody else may write it */
};
CT_API int ct_file_open(const char *path, unsigned how);
/* The same, for reading, as a stream. *in: NULL if it fails. */
CT_API int ct_file_open_stream(const char *path, FILE **in);

/*
 * Read a file of at most limit bytes into the arena, followed by a zero byte. CT_ENOENT: no such
 * file; CT_EINVAL: it is larger; CT_EIO.
 */
CT_API int ct_file_read(struct ct_arena *arena, const char *path, size_t limit, char **text,
                        size_t *size);
/* The same of a file that nobody else can change: CT_FILE_OWN. */
CT_API int ct_file_read_own(struct ct_arena *arena, const char *path, size_t limit, char **text,
                            size_t *size);

/*
 * Whether a call that failed with errno is to be made again: after EINTR at once; if the cause may
 * pass (EIO, ESTALE, EMFILE and their like), after a pause, up to 3 times in 1.05 seconds. *tries:
 * 0 before the first call. Keeps errno.
 */
CT_API bool ct_file_again(int *tries);

/* Map a regular file for reading; an empty one has base NULL. CT_ENOENT: no such file; CT_ECONFIG:
   it cannot be opened, or is not a regular file; CT_EIO. */
CT_API int ct_file_map(const char *path, const void **base, size_t *size);
CT_API void ct_file_unmap(const void *base, size_t size);

#define CT_PATH_ROOM 4096 /* bytes of a path, including the final zero */

/*
 * A file that is written in parts. It has a temporary name beside path until ct_file_end, which
 * syncs it to disk, renames it, and syncs the folder. A file that it replaces gives it its mode. If
 * path is a symbolic link, the file that it
 * leads to is replaced. A device or a pipe is written to as it is.
 */
struct ct_new_file {
    FILE *out;
    char path[CT_PATH_ROOM];      /* without symbolic links at its end */
    char temporary[CT_PATH_ROOM]; /* "": path itself is written */
};
/* Create the temporary file and open it as file->out. CT_EIO, with the path; CT_EINVAL: the path is
   too long. */
CT_API int ct_file_begin(struct ct_new_file *file, const char *path);
/* Sync and close the file, which stays under its temporary name until ct_file_end: so several files
   get their names together. out becomes NULL. */
CT_API int ct_file_close(struct ct_new_file *file);
/* rc: the result of writing. If it is negative, the file is removed and rc is returned. */
CT_API int ct_file_end(struct ct_new_file *file, int rc);
/* Write size bytes to a new file. Creates its folder if there is none. */
CT_API int ct_file_write(const char *path, const void *data, size_t size);
/* The same for what `print` prints of an object. */
typedef void ct_file_printer(const void *object, FILE *out);
CT_API int ct_file_print(const char *path, ct_file_printer *print, const void *object);

/* Check that a file can be written there, without writing it. Its folder is created. CT_EIO: it
   cannot. */
CT_API int ct_file_try(const char *path);

/* Rename a file or folder durably: the folder that contains it is synced to disk. Replaces a file,
   or an empty folder, of that name. */
CT_API int ct_file_rename(const char *from, const char *to);

/* Rename a file or folder that a new one replaces: "metrics.jsonl", whose extension is ".jsonl", to
   "metrics-before.jsonl", or "metrics-before-2.jsonl" and so on if there is one already. */
CT_API int ct_file_keep_former(const char *path, const char *extension, char kept[CT_PATH_ROOM]);
/* Sync a folder to disk, and with it the names in it; 0 where the file system cannot do that. */
CT_API int ct_file_sync_folder(const char *path);

/* Whether both paths lead to one file or folder, which exists. */
CT_API bool ct_file_is_same(const char *a, const char *b);

/* Create a folder and its parents; 0 if it exists already. */
CT_API int ct_file_make_folder(const char *path);
/* The same; mode: of those that are created, as of mkdir. */
CT_API int ct_file_make_folder_mode(const char *path, unsigned mode);
/* The same, and check that files can be written there. CT_EIO: they cannot. */
CT_API int ct_file_try_folder(const char *path);

/* Remove temporary files of ct_file_begin that a killed process of this host has left in a
   folder. */
CT_API void ct_file_sweep(const char *folder);

/* Remove a folder and all in it; 0 if there is none. Follows no links. CT_EIO. */
CT_API int ct_file_remove_folder(const char *path);

/*
 * Finds the files that a shell pattern names: wildcards, which are sorted, braces, and ~. A name
 * that looks like a pattern and matches nothing names itself. CT_ECONFIG: there is nothing for it,
 * or for one of the alternatives in its braces.
 */
CT_API int ct_file_find(struct ct_arena *arena, const char *pattern, char ***paths, size_t *count);

/* Lock a folder, which is created, for this process. The result is a descriptor that keeps the lock
   until it is closed. CT_EPEER: another process has it, and it does not end in 3 seconds. Where the
   file system has no locks, nobody is kept out, and a warning says so. */
CT_API int ct_file_lock_folder(const char *path);

/* A folder `name` for what nobody else may change, as code that is loaded. It is created for this
   user alone. path: where it is, without symbolic links. CT_ECONFIG: another user can change it or
   a folder above it; the message names the folder. CT_EIO. */
CT_API int ct_file_private_folder(char path[CT_PATH_ROOM], const char *name);

/* The same for data that a team shares: the owners and the groups of the folders are trusted, and
   those that it creates have the usual mode. */
CT_API int ct_file_team_folder(char path[CT_PATH_ROOM], const char *name);

/* The private folder ctitan/NAME in $XDG_CACHE_HOME or ~/.cache, which is created. If another user
   can change it, a warning says so, and it is /tmp/ctitan-USER/NAME. CT_ENOENT: neither variable is
   set. CT_EIO. */
CT_API int ct_file_cache_folder(char path[CT_PATH_ROOM], const char *name);

struct ct_run;
/* A path in the dump folder, which is created: "events-0.jsonl". It is that of the recipe applied
   last, whichever run is given. CT_ECONFIG: too long. */
CT_API int ct_run_path(const struct ct_run *run, char path[CT_PATH_ROOM], const char *fmt, ...)
    CT_PRINTF(3, 4);

CT_END_DECLS

#endif
