#ifndef BINARY_H
#define BINARY_H

#include <stdbool.h>
#include <stddef.h>

/* CT_ECONFIG: by its first bytes the file is of a format that is not read, or of another encoding
   than UTF-8; the message says what to do. Only plain text is searched for NUL bytes, as JSON has
   none. */
int binary_refuse(const char *path, const char *data, size_t size, bool plain);

#endif
