/*
 * Files, in the two ways that matter: read whole, or written whole. A written file is complete or
 * absent, whatever happens meanwhile.
 */
#ifndef CT_FILE_H
#define CT_FILE_H

#include <stdio.h>

#include <ctitan/arena.h>

CT_BEGIN_DECLS

/*
 * Read a file of at most limit bytes into the arena, followed by a zero byte. CT_ENOENT: it is not
 * there; CT_EINVAL: larger; CT_EIO.
 */
CT_API int ct_file_read(struct ct_arena *arena, const char *path, size_t limit, char **text,
                        size_t *size);

#define CT_PATH_ROOM 4096 /* characters of a path, and the end */

/*
 * A file that is written piecemeal: under a temporary name beside path until ct_file_end, which
 * puts it on disk, renames it, and puts the folder on disk.
 */
struct ct_new_file {
    FILE *out;
    char path[CT_PATH_ROOM], temporary[CT_PATH_ROOM];
};
CT_API int ct_file_begin(struct ct_new_file *file, const char *path);
/* rc: what writing it came to; negative: nothing is left of it, and rc is returned. */
CT_API int ct_file_end(struct ct_new_file *file, int rc);
/* Both, of size bytes, in a folder that is made where it is not there. */
CT_API int ct_file_write(const char *path, const void *data, size_t size);

/* Give a file or folder another name, for good: the folder that it is in is put on disk. It takes
   the place of a file, or of an empty folder, of that name. */
CT_API int ct_file_rename(const char *from, const char *to);

/* Make a folder and those above it; 0 if it is there already. */
CT_API int ct_file_make_folder(const char *path);

CT_END_DECLS

#endif
