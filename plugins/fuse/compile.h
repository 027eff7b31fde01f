/*
 * Between compile.c, which has kernels compiled and keeps them on disk, and system.c, which calls
 * the system's C compiler.
 */
#ifndef FUSE_COMPILE_H
#define FUSE_COMPILE_H

#include <string.h>
#include <sys/types.h>
#include <xxhash.h>

#include <ctitan/file.h>

#include "fuse.h"

struct compiler {
    struct ct_arena arena;
    const struct fuse_target *target;
    char **word; /* command and flags; the rest is added for each file */
    size_t words, room;
    XXH3_state_t *hash; /* of everything that determines objects in addition to the source */
    char folder[CT_PATH_ROOM];
};

struct job {
    const struct ct_rows_code *code;
    char path[CT_PATH_ROOM]; /* without ".c", ".so" */
    int lock;                /* of PATH.c; -1: not taken */
    pid_t pid;               /* 0: none */
};

static inline void hash_text(XXH3_state_t *hash, const char *text)
{
    XXH3_128bits_update(hash, text, strlen(text) + 1);
}

/* ---- system.c ---- */

/* The compiler and its first arguments. */
const char *system_command(void);
/* Read the command and its flags, and add them to the hash. */
int system_begin(struct compiler *c);
/* Have PATH.c compiled to PATH.new by a process. */
int system_start(const struct compiler *c, struct job *job);
/* Wait for it. CT_EIO: it refused, and said why. */
int system_wait(const struct compiler *c, struct job *job);

#endif
