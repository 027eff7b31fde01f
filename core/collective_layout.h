/*
 * A collective between its two sources: collective_layout.c finds once what pieces lie where,
 * collective.c moves them, over whatever a transport is. Host memory's transport,
 * collective_host.c, needs no more than plugins do.
 */
#ifndef CT_COLLECTIVE_LAYOUT_H
#define CT_COLLECTIVE_LAYOUT_H

#include <ctitan/comm.h>
#include <ctitan/op.h>

/* Where one rank's piece lies along a dimension. */
struct ct_piece {
    int64_t offset, size;
};

struct ct_layout {
    struct ct_piece *piece;                /* by rank of the group */
    int64_t outer, inner, length, largest; /* elements before, behind and along the dimension */
};

/* One of several values that are gathered or scattered together. */
struct ct_layout_item {
    struct ct_layout whole;
    bool direct;
    size_t at, bytes; /* in the workspace: this rank's piece, of so many bytes, then all pieces */
};

/* The device's kernel that adds two single numbers. */
struct ct_add {
    const struct ct_kernel *kernel;
    struct ct_op op;
    void *state;
};

/* The state of a launch. */
struct ct_collective {
    struct ct_group *group;
    int64_t ranks;
    int64_t me;    /* position in the group */
    int64_t shift; /* of a permutation */
    enum ct_dtype dtype;
    struct ct_layout_item *items;
    struct ct_layout in, out; /* of the whole that is exchanged */
    struct ct_add *add;       /* of terms on this rank; NULL: not needed, or the transport's */
};

/* Elements of the largest packet of an exchange of x: what one rank sends to another, a piece along
   both dimensions. */
size_t ct_collective_packet(const struct ct_collective *c, const struct ct_tensor *x, int dim,
                            int to);

#endif
