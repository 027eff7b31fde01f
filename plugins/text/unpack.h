#ifndef UNPACK_H
#define UNPACK_H

#include <ctitan/base.h>

/* Whether these are the first bytes of a file that is compressed by gzip or zstd. */
bool unpack_is_packed(const char *data, size_t size);

/* Decompress a file's bytes to *text, which the caller frees. CT_ECONFIG: they are damaged or
   truncated, or expand so much that they cannot be text; CT_ENOMEM. */
int unpack(const char *data, size_t size, char **text, size_t *text_size);

#endif
