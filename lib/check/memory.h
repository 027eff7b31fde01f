/* Memory of a call between guards, which must stay as they are. */
#ifndef CHECK_MEMORY_H
#define CHECK_MEMORY_H

#include <stdbool.h>

#include <ctitan/arena.h>
#include <ctitan/tensor.h>

#define GUARD 1024 /* bytes in front of guarded memory, and behind it */

struct guarded {
    char *data;
    size_t bytes;
    bool apart;                     /* the bytes are on a device; the guards alone are at `data` */
    const struct ct_tensor *tensor; /* the only one there; NULL: several, or the workspace */
    char name[32];                  /* "output 0" */
    unsigned char guard;            /* the bytes around it */
};

struct memory {
    struct ct_arena *arena;
    struct guarded *block;
    size_t room;
    int count;
};

/* Bytes between guards, 64-byte aligned. They are no numbers at first, in every floating dtype. */
char *memory_add(struct memory *m, size_t bytes, const struct ct_tensor *tensor, const char *name,
                 int index);
/* The guards of so many bytes that a device has alone. Returns where the first one ends. */
char *memory_add_apart(struct memory *m, size_t bytes, const char *name);
/* The guard behind a block. */
char *memory_behind(const struct guarded *g);
/* Fill bytes as those of a new block are. */
void memory_blank(char *data, size_t bytes);
/* The first byte that changed although it is no element's, counted from the beginning of its
   block; NULL: none did. */
const struct guarded *memory_stray(const struct memory *m, int64_t *at);

#endif
