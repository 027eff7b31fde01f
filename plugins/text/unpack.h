#ifndef UNPACK_H
#define UNPACK_H

#include "spool.h"

/* Whether these are the first bytes of a file that is compressed by gzip or zstd. */
bool unpack_is_packed(const char *data, size_t size);

/* Decompress a file's bytes into an open spool, and map it. CT_ECONFIG: they are damaged or
   truncated, or expand so much that they cannot be text; CT_ENOMEM; CT_EIO. */
int unpack(const char *data, size_t size, struct spool *text);

#endif
