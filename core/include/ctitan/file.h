/*
 * Files, in the two ways that matter: read whole, or written whole. A written file is complete or
 * absent, whatever happens meanwhile.
 */
#ifndef CT_FILE_H
#define CT_FILE_H

#include <ctitan/arena.h>

/*
 * Read a file of at most limit bytes into the arena, followed by a zero byte. CT_ENOENT: it is not
 * there; CT_EINVAL: larger; CT_EIO.
 */
CT_API int ct_file_read(struct ct_arena *arena, const char *path, size_t limit, char **text,
                        size_t *size);

/* Write size bytes under a temporary name, fsync, rename to path. Makes the folders above it. */
CT_API int ct_file_write(const char *path, const void *data, size_t size);

/* Make a folder and those above it; 0 if it is there already. */
CT_API int ct_file_make_folder(const char *path);

#endif
