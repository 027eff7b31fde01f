/* Offloading: ops that copy between the device's memory and its host memory. */
#ifndef OFFLOAD_H
#define OFFLOAD_H

#include <ctitan/op.h>

extern const struct ct_op_type offload_op_load, offload_op_store, offload_op_offload;

/* Load a copy of an offloaded value to the device. */
struct ct_value *offload_load(struct ct_builder *b, const char *name, struct ct_value *x);
/* Store x, on the device, over the offloaded value y. */
struct ct_op *offload_store(struct ct_builder *b, struct ct_value *y, struct ct_value *x);
/* Make an offloaded copy of x. */
struct ct_value *offload_out(struct ct_builder *b, const char *name, struct ct_value *x);

#endif
