/* The guarded memory of a call on a device whose memory the host does not reach. */
#ifndef CHECK_MIRROR_H
#define CHECK_MIRROR_H

#include "ranges.h"

struct mirror {
    struct ct_device *device;
    struct {
        void *base;
        size_t bytes;
    } reserved[2]; /* operands; the workspace */
    int count;
    char *at[2 * CHECK_OPERANDS + 1]; /* by block of the memory: its data on the device */
    struct ct_tensor in[CHECK_OPERANDS], out[CHECK_OPERANDS];
};

/* Room on the device for the blocks of m that have none. */
int mirror_reserve(struct mirror *mirror, const struct memory *m);
/* *there = l with operands on the device. */
void mirror_operands(struct mirror *mirror, const struct memory *m, const struct ct_launch *l,
                     struct ct_launch *there);
/* Run the kernel on what m contains, guards included, and read it back. */
int mirror_run(const struct mirror *mirror, const struct ct_kernel *kernel,
               const struct ct_launch *there, const struct memory *m);
void mirror_release(struct mirror *mirror);

#endif
