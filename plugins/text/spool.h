/*
 * A file without a name, for what may be larger than memory. It is written from the beginning to
 * the end, and then mapped. The system keeps in memory what fits, and the rest on disk.
 */
#ifndef SPOOL_H
#define SPOOL_H

#include <stdio.h>

#include <ctitan/base.h>

struct spool {
    FILE *file;
    const char *folder; /* for messages */
    size_t size;        /* bytes written */
    const void *data;   /* after spool_map */
};

/* CT_EIO: the folder takes no file. */
int spool_open(struct spool *spool, const char *folder);
int spool_write(struct spool *spool, const void *data, size_t size);
/* End writing, and set `data`: `size` bytes, or NULL if there are none. */
int spool_map(struct spool *spool);
/* spool may be zeros. */
void spool_close(struct spool *spool);

#endif
