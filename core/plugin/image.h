/*
 * The data of a shared object, as it is in memory once the linker has loaded it, read from the file
 * without any of its code running.
 *
 * An image has the file's segments at their distances, and its relocations are applied: a pointer
 * to something in the object points into the image. A pointer to what other objects define points
 * to zeros behind the segments, and so does not lead out of the image. A text or a
 * table in the image without an end ends there. Everything in the file is checked before it is
 * used, as it may be truncated, damaged or no shared object.
 */
#ifndef CT_PLUGIN_IMAGE_H
#define CT_PLUGIN_IMAGE_H

#include <ctitan/base.h>

#define CT_IMAGE_ZEROS ((size_t)8192) /* larger than any struct of a plugin */

/* Addresses and sizes in the object; 0: it has none. */
struct ct_image_tables {
    uint64_t symbols, strings, hash, gnu_hash;
    uint64_t relocations, relocations_size, packed, packed_size;
};

struct ct_image {
    char *base;
    size_t size; /* of the segments; the zeros follow */
    struct ct_image_tables tables;
};

/* Read the object at path. CT_ENOENT: the file cannot be opened; CT_EABI: it is no shared object
   for this machine, or a damaged one; CT_EIO. The message does not have the path. */
int ct_image_open(const char *path, struct ct_image *image);
void ct_image_close(struct ct_image *image);

/* The data that the object exports as name; NULL: none, or less than size bytes of it. */
const void *ct_image_find(const struct ct_image *image, const char *name, size_t size);

/* Whether size bytes at p are in the image or in its zeros, and aligned if they are a word or a
   struct. */
bool ct_image_has(const struct ct_image *image, const void *p, size_t size);

#endif
