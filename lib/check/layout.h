/* The operands of a call, laid out in guarded memory. */
#ifndef CHECK_LAYOUT_H
#define CHECK_LAYOUT_H

#include <ctitan/lib/app/check.h>

#include "memory.h"

enum layout {
    DENSE,
    SPACED,   /* rows of all operands apart by a few elements */
    PADDED,   /* rows of floating operands apart by part of a vector */
    PERMUTED, /* and dimensions but the last in another order */
    JOINED,   /* values that the op would like side by side are columns of one matrix */
    LAYOUTS
};

struct operands {
    struct memory memory;
    struct ct_tensor *in, *out;
    bool beside; /* dense operands lie one behind the other, as the buffers of a plan */
};

/* Inputs have their values. `operands` has its arena, and whether they are beside each other.
   False: the layout does not differ from the dense one for this op. */
bool lay_out(struct operands *operands, const struct ct_check_case *c, enum layout layout);
/* Makes the bytes that the call wrote to opaque operands their values. */
void take_opaque(const struct operands *operands, const struct ct_check_case *c);

#endif
