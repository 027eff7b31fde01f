#ifndef CT_IR_KERNEL_H
#define CT_IR_KERNEL_H

#include <ctitan/op.h>

/* A kernel names the type of op that it is for. Cheaper than ct_op_find, whose failure looks for a
   name that may have been meant. */
bool ct_kernel_is_for(const struct ct_kernel *kernel, const struct ct_op_type *type);

#endif
