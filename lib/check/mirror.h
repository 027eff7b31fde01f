/* The guarded memory of a call on a device whose memory the host does not reach. */
#ifndef CHECK_MIRROR_H
#define CHECK_MIRROR_H

#include <ctitan/lib/app/check.h>

#include "memory.h"

struct mirror {
    struct ct_checker *checker; /* its device, and memory there */
    char **at;                  /* by block of the memory: its data on the device */
    int count;
};

/* Room on the device for the blocks of m that have none: of the operands, then of the workspace. */
int mirror_reserve(struct mirror *mirror, const struct memory *m);
/* *there = l with operands on the device. */
void mirror_operands(const struct mirror *mirror, const struct memory *m, const struct ct_launch *l,
                     struct ct_launch *there);
/* Run the kernel on what m contains, guards included, and read it back. there->workspace, if any,
   is the last block. */
int mirror_run(const struct mirror *mirror, const struct ct_kernel *kernel,
               const struct ct_launch *there, const struct memory *m);

#endif
